//! The options that several commands share: of transfers, data channels and output.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use haul::fault::{Code, Fault};
use haul_control::trust::ClientConfig;

use super::through::ThroughArgs;
use super::trust;
use crate::quantity::{duration, rate};
use crate::timetable::{Bwlimit, bwlimit};

/// What `send`, `get` and `sync` have in common.
#[derive(Debug, Args)]
pub(crate) struct Transfer {
    /// Change nothing; print what would be copied, replaced and deleted
    #[arg(long, short = 'n')]
    pub(crate) dry_run: bool,
    /// Limit the rate, by local time if wanted: 200Mbit, or '08:00,200Mbit 19:00,off', or @FILE,
    /// which SIGHUP has read again
    #[arg(long, value_parser = bwlimit, value_name = "LIMIT")]
    pub(crate) bwlimit: Option<Bwlimit>,
    #[command(flatten)]
    pub(crate) existing: Existing,
    #[command(flatten)]
    pub(crate) tree: Tree,
    #[command(flatten)]
    pub(crate) path: ChannelArgs,
    #[command(flatten)]
    pub(crate) trust: trust::ClientTrust,
    #[command(flatten)]
    pub(crate) ssh: trust::Ssh,
    #[command(flatten)]
    pub(crate) through: ThroughArgs,
    #[arg(
        long,
        value_parser = duration,
        value_name = "TIME",
        help = "Stop reconnecting this long after the last progress; 0 never reconnects \
                [default: never stop]"
    )]
    pub(crate) give_up_after: Option<Duration>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// How to treat files that exist at the receiver.
#[derive(Debug, Args)]
pub(crate) struct Existing {
    /// Fail if a different file of the same name exists, instead of replacing it
    #[arg(long)]
    pub(crate) no_replace: bool,
    /// Verify partial files by their hashes before resuming, and retransfer complete files
    #[arg(long)]
    pub(crate) recheck: bool,
}

/// Directory trees.
#[derive(Debug, Args)]
pub(crate) struct Tree {
    /// When the files of a tree are durable: many together, each alone, or whenever the system
    /// writes them
    #[arg(
        help_heading = "Trees",
        long,
        value_enum,
        value_name = "WHEN",
        default_value = "batch"
    )]
    pub(crate) durable: Durable,
    /// Keep extended attributes
    #[arg(help_heading = "Trees", long)]
    pub(crate) xattrs: bool,
    /// Keep POSIX access control lists
    #[arg(help_heading = "Trees", long)]
    pub(crate) acls: bool,
    /// Keep the set-user-ID and set-group-ID bits and file capabilities, if the owner is kept
    #[arg(help_heading = "Trees", long)]
    pub(crate) setuid: bool,
    /// Exit with 1 if an attribute of a file could not be kept
    #[arg(help_heading = "Trees", long)]
    pub(crate) strict_metadata: bool,
    #[command(flatten)]
    pub(crate) failed: FailedTo,
}

/// A list of the paths that failed.
#[derive(Debug, Args)]
pub(crate) struct FailedTo {
    /// Write the path of each entry that failed to this file, one in a line, for --from-file
    #[arg(long, value_name = "FILE")]
    pub(crate) failed_to: Option<PathBuf>,
    /// The paths in lists of paths end in NUL, not in a line end
    #[arg(long, short = '0')]
    pub(crate) null: bool,
}

impl FailedTo {
    /// Refuses what a dry run does not do: an option without effect would mislead.
    pub(crate) fn check_dry_run(&self, has_list: bool) -> Result<(), Fault> {
        if self.failed_to.is_some() {
            let text = "--failed-to lists what failed, and --dry-run moves nothing that could fail";
            return Err(Fault::new(Code::Usage, text).hint("leave one of both out"));
        }
        self.check(has_list)
    }

    /// Refuses `-0` without a list: an option without effect would mislead.
    pub(crate) fn check(&self, has_list: bool) -> Result<(), Fault> {
        if !self.null || has_list || self.failed_to.is_some() {
            return Ok(());
        }
        let fault = Fault::new(Code::Usage, "-0 is about lists of paths, and there is none");
        Err(fault.hint("leave it out"))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Durable {
    /// Many files together, before their names appear
    Batch,
    /// Each file alone, before the next
    File,
    /// When the system writes them: a crash of the host may lose files that were reported
    None,
}

impl From<Durable> for haul::client::Durable {
    fn from(durable: Durable) -> Self {
        match durable {
            Durable::Batch => Self::Batch,
            Durable::File => Self::File,
            Durable::None => Self::None,
        }
    }
}

/// The data channel.
#[derive(Debug, Args)]
pub(crate) struct ChannelArgs {
    #[arg(
        long,
        env = "HAUL_PORT",
        help = format!("TCP and UDP port of the server [default: {}]", haul::DEFAULT_PORT)
    )]
    pub(crate) port: Option<u16>,
    #[arg(
        long,
        value_enum,
        help = "Kind of data channel [default: udt, with --gateway tcp]"
    )]
    pub(crate) channel: Option<Channel>,
    /// Parallel streams
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=i64::from(haul::channel::STREAMS_MAX)))]
    pub(crate) streams: u16,
    /// Known or permitted rate of the path: 10Gbit, 1.2GiB
    #[arg(long, value_parser = rate, value_name = "RATE")]
    pub(crate) rate: Option<u64>,
    /// Congestion control. udt: model (default), cubic, reno, bic, htcp, highspeed, scalable,
    /// vegas, daimd; tcp: those of the kernel
    #[arg(long, value_name = "NAME", alias = "tcp-congestion")]
    pub(crate) cc: Option<String>,
    /// Connection timeout
    #[arg(long, value_parser = duration, value_name = "TIME", default_value = "10s")]
    pub(crate) connect_timeout: Duration,
    /// Timeout without packets or acknowledgements from the peer
    #[arg(long, value_parser = duration, value_name = "TIME", default_value = "20s")]
    pub(crate) peer_timeout: Duration,
}

/// Output options.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct OutputArgs {
    /// Print one JSON object to stdout at the end
    #[arg(long)]
    pub(crate) json: bool,
    /// Print one JSON object per event to stdout, one per line
    #[arg(long)]
    pub(crate) json_stream: bool,
    /// Print only errors to stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Channel {
    /// Reliable UDP; finds its rate or uses --rate, and holds it under loss
    Udt,
    /// Kernel TCP
    Tcp,
}

impl From<Channel> for haul::channel::ChannelKind {
    fn from(channel: Channel) -> Self {
        match channel {
            Channel::Tcp => Self::Tcp,
            Channel::Udt => Self::Udt,
        }
    }
}

impl ChannelArgs {
    pub(crate) fn client_config(
        &self,
        host: String,
        port: Option<u16>,
    ) -> Result<haul::client::Config, Fault> {
        let control = ClientConfig::insecure()?;
        Ok(haul::client::Config {
            host,
            port: port.or(self.port).unwrap_or(haul::DEFAULT_PORT),
            channel: self.channel.unwrap_or(Channel::Udt).into(),
            streams: self.streams,
            rate_bps: self.rate,
            congestion: self.cc.clone(),
            connect_timeout: self.connect_timeout.max(Duration::from_millis(1)),
            dead_after: self.peer_timeout.max(Duration::from_secs(1)),
            give_up_after: None,
            sealed: control.verifies_server(),
            control,
            dialer: None,
            access: None,
            may_fall_back: false,
            paths: None,
            limit: None,
        })
    }
}
