//! The command lines of `haul ls` and `haul verify`, and the options that choose entries of a tree.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use haul::fs::filter::Action;

use super::through::ThroughArgs;
use super::transfer::{ChannelArgs, FailedTo};
use super::trust;
use crate::quantity::duration;

/// How to reach a server for a listing.
#[derive(Debug, Args)]
pub(crate) struct Reach {
    #[arg(
        long,
        env = "HAUL_PORT",
        help = format!("TCP port of the server [default: {}]", haul::DEFAULT_PORT)
    )]
    pub(crate) port: Option<u16>,
    /// Connection timeout
    #[arg(long, value_parser = duration, value_name = "TIME", default_value = "10s")]
    pub(crate) connect_timeout: Duration,
    /// Timeout without packets or acknowledgements from the peer
    #[arg(long, value_parser = duration, value_name = "TIME", default_value = "20s")]
    pub(crate) peer_timeout: Duration,
    #[command(flatten)]
    pub(crate) trust: trust::ClientTrust,
    #[command(flatten)]
    pub(crate) ssh: trust::Ssh,
    #[command(flatten)]
    pub(crate) through: ThroughArgs,
}

impl Reach {
    /// Returns the options of a transfer with these values.
    pub(crate) fn path(&self) -> ChannelArgs {
        ChannelArgs {
            port: self.port,
            channel: None,
            streams: 1,
            rate: None,
            cc: None,
            connect_timeout: self.connect_timeout,
            peer_timeout: self.peer_timeout,
        }
    }
}

#[derive(Debug, Args)]
#[command(override_usage = "haul ls [OPTIONS] HOST:PATH", after_help = LS_EXAMPLES)]
pub(crate) struct Ls {
    /// A directory or file: [USER@]HOST:PATH by ssh, or haul://HOST[:PORT]/PATH at a server
    #[arg(value_name = "HOST:PATH")]
    pub(crate) operand: OsString,
    /// List the whole tree
    #[arg(long, short = 'R')]
    pub(crate) recursive: bool,
    /// Print one JSON object per entry to stdout, one per line
    #[arg(long)]
    pub(crate) json_stream: bool,
    #[command(flatten)]
    pub(crate) rules: Rules,
    #[command(flatten)]
    pub(crate) reach: Reach,
}

const LS_EXAMPLES: &str = "\
Examples:
  haul ls host:campaign/                         by ssh
  haul ls -R --exclude '*.tmp' haul://host/data  all below, at a server of haul serve";

#[derive(Debug, Args)]
#[command(override_usage = "haul verify [OPTIONS] SOURCE DESTINATION", after_help = VERIFY_EXAMPLES)]
pub(crate) struct Verify {
    /// Tree or file; one of SOURCE and DESTINATION is local, the other [USER@]HOST:PATH or
    /// haul://HOST[:PORT]/PATH
    #[arg(value_name = "SOURCE")]
    pub(crate) source: OsString,
    /// Its copy
    #[arg(value_name = "DESTINATION")]
    pub(crate) destination: OsString,
    /// Write the hashes of the files that are the same, for b3sum --check in the tree's directory
    #[arg(long, value_name = "FILE")]
    pub(crate) manifest: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) failed: FailedTo,
    /// Compare what .haulignore files exclude, too
    #[arg(long)]
    pub(crate) no_ignore: bool,
    /// Print one JSON object per difference to stdout, one per line
    #[arg(long)]
    pub(crate) json_stream: bool,
    /// Print only differences and errors
    #[arg(long, short)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) rules: Rules,
    #[command(flatten)]
    pub(crate) reach: Reach,
}

const VERIFY_EXAMPLES: &str = "\
Examples:
  haul verify data/ host:campaign/data/     compares by digests; no content crosses the network
  haul verify --manifest data.b3 data/ haul://host/data && (cd data && b3sum --check ../data.b3)
Exit code 11 if an entry of the source is missing or different at the destination";

/// Which entries of directory trees to take.
#[derive(Debug, Args)]
pub(crate) struct Choose {
    #[command(flatten)]
    pub(crate) rules: Rules,
    /// Ignore .haulignore files
    #[arg(long)]
    pub(crate) no_ignore: bool,
    /// Take only the paths in FILE, one a line, relative to the directory; - is standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) from_file: Option<PathBuf>,
}

/// Rules in the order in which they were given: the first that matches decides.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rules(pub(crate) Vec<(Action, String)>);

impl FromArgMatches for Rules {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut rules = Self::default();
        rules.update_from_arg_matches(matches)?;
        Ok(rules)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let of = |action, id: &str| {
            let patterns = matches.get_many::<String>(id).unwrap_or_default().cloned();
            let indices = matches.indices_of(id).unwrap_or_default();
            indices
                .zip(patterns.map(move |pattern| (action, pattern)))
                .collect::<Vec<_>>()
        };
        let mut all = of(Action::Include, "include");
        all.append(&mut of(Action::Exclude, "exclude"));
        all.sort_by_key(|(index, _)| *index);
        self.0 = all.into_iter().map(|(_, rule)| rule).collect();
        Ok(())
    }
}

impl Args for Rules {
    fn augment_args(command: Command) -> Command {
        let option = |name: &'static str, help: &'static str| {
            Arg::new(name)
                .long(name)
                .value_name("PATTERN")
                .action(ArgAction::Append)
                .help(help)
        };
        command
            .arg(option(
                "include",
                "Include entries that match, even if a later --exclude matches too; repeatable",
            ))
            .arg(option(
                "exclude",
                "Exclude entries that match (rsync's patterns); repeatable. The first matching rule \
                 decides",
            ))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        rules: Rules,
    }

    #[test]
    fn rules_keep_their_order() {
        let line = ["x", "--exclude", "a", "--include=b", "--exclude", "c"];
        let rules = Line::parse_from(line).rules.0;
        let rules: Vec<_> = rules.iter().map(|(a, p)| (*a, p.as_str())).collect();
        let expected = [
            (Action::Exclude, "a"),
            (Action::Include, "b"),
            (Action::Exclude, "c"),
        ];
        assert_eq!(rules, expected);
        assert!(Line::parse_from(["x"]).rules.0.is_empty());
    }
}
