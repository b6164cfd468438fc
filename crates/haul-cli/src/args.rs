//! The command line. Parsing opens no file and looks up no name.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use haul_gateway::config::{ChannelKind, HostPort, Key, NoHostPort, SessionMetadata};

use crate::quantity::{bytes, duration, rate};

pub(crate) mod path;
pub(crate) mod profile;
pub(crate) mod rdma;

/// Moves files over long fat networks.
#[derive(Debug, Parser)]
#[command(name = "haul", version, propagate_version = true, max_term_width = 100)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a directory to haul send and haul get
    Serve(Serve),
    /// Send files to a server: haul send FILE… HOST:DIR/
    Send(Send),
    /// Get files from a server: haul get HOST:FILE… DIR/
    Get(Get),
    /// Measure a path, or the RDMA verbs
    Bench(Bench),
    /// Profile a path: streams, message sizes, stability, cross traffic, and what limits it
    Profile(Box<profile::Profile>),
    /// Check whether this host is tuned for long fat networks, and print the commands that fix it
    Doctor(profile::Doctor),
    /// Show stored results of bench run and profile, or compare two
    Report(profile::Report),
    /// Run an unmodified application; carry its sockets over iWARP where the peer also runs haul
    /// run
    Run(Run),
    /// Carry the TCP connections of unmodified applications over long fat networks
    #[command(subcommand)]
    Gateway(Gateway),
    /// List RDMA devices: the software provider, and the hardware devices or why there are none
    Devices(Devices),
    /// Emulate a WAN on this machine: hosts, paths, a comparison of tools
    Lab(haul_lab::Args),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Gateway {
    /// Run a gateway. The first SIGTERM drains connections, a second exits at once; SIGHUP reloads
    /// the configuration
    Run(GatewayRun),
    /// Check a configuration and print every error; exit 0 if it is valid, 2 if not
    Check(GatewayCheck),
    /// Ingest-only benchmark: how fast this host can fill slabs, the upper bound for every data
    /// channel. Accepts connections, drops their data and prints the rate each second; Ctrl-C ends
    /// it
    Fill(GatewayFill),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct GatewayRun {
    /// The TOML configuration (docs/gateways.md)
    pub(crate) config: PathBuf,
    /// Drain timeout after SIGTERM, in seconds
    #[arg(long, value_name = "S", default_value_t = 30)]
    pub(crate) patience: u64,
    /// Print only failures
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Serve {
    /// The directory to serve; clients cannot reach files outside it
    pub(crate) dir: PathBuf,
    #[arg(
        long,
        value_name = "ADDR:PORT",
        help = "Address to listen on: ADDR, ADDR:PORT or [ADDR]:PORT; repeatable \
                [default: 127.0.0.1 and ::1]"
    )]
    pub(crate) listen: Vec<String>,
    /// TCP and UDP port for addresses without a port
    #[arg(long, default_value_t = haul::DEFAULT_PORT, env = "HAUL_PORT")]
    pub(crate) port: u16,
    /// Let clients read files but not write them
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Listen on non-loopback addresses without authentication and encryption
    #[arg(long)]
    pub(crate) allow_insecure: bool,
    /// Maximum concurrent transfers; the server asks further clients to retry
    #[arg(long, value_name = "N", default_value_t = haul::server::SESSIONS_DEFAULT)]
    pub(crate) max_sessions: usize,
    /// Do not report single transfers
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, ClapArgs)]
#[command(override_usage = "haul send [OPTIONS] FILE… HOST:DIR/", after_help = SEND_EXAMPLES)]
pub(crate) struct Send {
    /// The files, then the destination: HOST:DIR/ or HOST:PORT:DIR/. An empty DIR is the directory
    /// that the server serves. If DIR ends in / and is missing, the server creates it
    #[arg(required = true, num_args = 2.., value_names = ["FILE", "HOST:DIR/"])]
    pub(crate) operands: Vec<OsString>,
    #[command(flatten)]
    pub(crate) transfer: Transfer,
}

const SEND_EXAMPLES: &str = "\
Examples:
  haul send run42.h5 run43.h5 host:campaign/
  haul send run42.h5 '[2001:db8::1]:campaign/'   an IPv6 address goes in brackets, with quotes
  haul send --gateway gw.site-b.example --gateway-key site-b.key run42.h5 host:campaign/";

#[derive(Debug, ClapArgs)]
#[command(override_usage = "haul get [OPTIONS] HOST:FILE… DIR/", after_help = GET_EXAMPLES)]
pub(crate) struct Get {
    /// The files on one server, as HOST:FILE or HOST:PORT:FILE, then the local directory
    #[arg(required = true, num_args = 2.., value_names = ["HOST:FILE", "DIR/"])]
    pub(crate) operands: Vec<OsString>,
    #[command(flatten)]
    pub(crate) transfer: Transfer,
}

const GET_EXAMPLES: &str = "\
Examples:
  haul get host:campaign/run42.h5 host:campaign/run43.h5 ./
  haul get '[2001:db8::1]:run42.h5' ./   an IPv6 address goes in brackets, with quotes";

/// What `send` and `get` have in common.
#[derive(Debug, ClapArgs)]
pub(crate) struct Transfer {
    #[command(flatten)]
    pub(crate) existing: Existing,
    #[command(flatten)]
    pub(crate) path: Path,
    #[command(flatten)]
    pub(crate) through: Through,
    #[arg(
        long,
        value_parser = duration,
        value_name = "TIME",
        help = "Stop reconnecting this long after the last progress; 0 never reconnects \
                [default: never stop]"
    )]
    pub(crate) give_up_after: Option<Duration>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, ClapArgs)]
#[command(
    subcommand_negates_reqs = true,
    args_conflicts_with_subcommands = true,
    override_usage = "haul bench serve [OPTIONS]\n       haul bench run [OPTIONS] HOST\n       haul bench rdma [OPTIONS] HOST\n       haul bench [OPTIONS] HOST"
)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) kind: Option<BenchKind>,
    #[arg(
        required = true,
        help = "The server: HOST, HOST:PORT or [ADDRESS]:PORT"
    )]
    pub(crate) host: Option<String>,
    /// Reverse the direction: the server sends
    #[arg(long)]
    pub(crate) reverse: bool,
    /// Duration of the measurement
    #[arg(long, value_parser = duration, value_name = "TIME", default_value = "10s",
          conflicts_with = "bytes")]
    pub(crate) time: Duration,
    /// Bytes to send, instead of --time
    #[arg(long, value_parser = bytes, value_name = "SIZE")]
    pub(crate) bytes: Option<u64>,
    #[command(flatten)]
    pub(crate) path: Path,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchKind {
    /// Serve clients of bench run, bench rdma and profile, one at a time
    Serve(rdma::Serve),
    /// Measure a path over TCP, UDP, UDT or RDMA, from memory or files, with CPU time at both ends
    Run(Box<path::Run>),
    /// Measure RDMA write, read and send: bandwidth and latency, as perftest does
    Rdma(Box<rdma::Rdma>),
}

#[derive(Debug, ClapArgs)]
#[command(override_usage = "haul run [OPTIONS] -- PROGRAM [ARGS]…", after_help = RUN_EXAMPLES)]
pub(crate) struct Run {
    /// Carry UDP only
    #[arg(long, conflicts_with_all = ["stream", "gateway"])]
    pub(crate) datagram: bool,
    /// Carry TCP only
    #[arg(long, conflicts_with = "gateway")]
    pub(crate) stream: bool,
    /// Carry UDP by Write-Record instead of Send
    #[arg(long, conflicts_with_all = ["stream", "gateway"])]
    pub(crate) write_record: bool,
    #[command(flatten)]
    pub(crate) through: Through,
    /// Discovery UDP port; must be the same at both ends
    #[arg(long, value_name = "PORT", default_value_t = haul_socket::agent::DEFAULT_PORT)]
    pub(crate) port: u16,
    #[arg(
        long,
        value_name = "FILE",
        num_args = 0..=1,
        require_equals = true,
        help = "At the end, print how each socket was carried, on stderr or to FILE"
    )]
    pub(crate) report: Option<Option<PathBuf>>,
    /// Print the report as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// The library to preload [default: beside haul, or in ../lib]
    #[arg(long, value_name = "FILE", env = "HAUL_PRELOAD")]
    pub(crate) preload: Option<PathBuf>,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        value_names = ["PROGRAM", "ARGS"]
    )]
    pub(crate) program: Vec<OsString>,
}

const RUN_EXAMPLES: &str = "\
Examples:
  haul run -- sipp -sn uas                     its UDP over UD where clients also run under haul run
  haul run --report -- curl -O http://host/f   its TCP over RC; prints how each socket was carried
  haul run --gateway gw.site-b.example -- rsync -a data/ rsync://host/data/   its TCP through a gateway";

#[derive(Debug, ClapArgs)]
pub(crate) struct GatewayCheck {
    /// The TOML configuration (docs/gateways.md); the files it names are also read
    pub(crate) file: PathBuf,
    /// Print one JSON object to stdout instead
    #[arg(long)]
    pub(crate) json: bool,
    /// Also ask the gateways of each route whether they would accept a session, without opening one
    #[arg(long, conflicts_with = "json")]
    pub(crate) reach: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct GatewayFill {
    /// Address to accept connections on: 192.0.2.1:7410, [::]:7410
    #[arg(value_name = "ADDR:PORT", value_parser = listen)]
    pub(crate) listen: SocketAddr,
    /// Size of the ring of slabs
    #[arg(long, value_name = "SIZE", value_parser = ring, default_value = "64MiB")]
    pub(crate) ring: u64,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Devices {
    /// Print one JSON object to stdout instead
    #[arg(long)]
    pub(crate) json: bool,
}

/// Gateways to go through; this process is the near end of the session.
#[derive(Debug, Clone, ClapArgs)]
#[command(next_help_heading = "Gateways")]
pub(crate) struct Through {
    /// Connect through these gateways, in order (docs/gateways.md) [default port: 7400]
    #[arg(long, value_name = "HOST[:PORT],…", value_delimiter = ',', value_parser = hop)]
    pub(crate) gateway: Vec<HostPort>,
    /// Alternative gateways if those fail; repeatable
    #[arg(long, requires = "gateway", value_name = "HOST[:PORT],…", value_parser = way)]
    pub(crate) gateway_or: Vec<Way>,
    /// The key shared with the first gateway, and its name there [default name: the file name
    /// without its extension]
    #[arg(long, requires = "gateway", value_name = "[NAME=]FILE", value_parser = key)]
    pub(crate) gateway_key: Option<Key>,
    /// Data channels to try, in order of preference: iwarp/udt, tcp, verbs [default: as for routes]
    #[arg(
        long,
        requires = "gateway",
        value_name = "KIND,…",
        value_delimiter = ','
    )]
    pub(crate) gateway_channel: Vec<ChannelKind>,
    /// Client certificate (PEM) for TLS to the first gateway
    #[arg(long, requires_all = ["gateway", "gateway_tls_key", "gateway_tls_roots"], value_name = "FILE")]
    pub(crate) gateway_tls_certificate: Option<PathBuf>,
    /// Private key of the certificate
    #[arg(long, requires = "gateway_tls_certificate", value_name = "FILE")]
    pub(crate) gateway_tls_key: Option<PathBuf>,
    /// Root certificates that must have issued the gateway's certificate
    #[arg(long, requires = "gateway_tls_certificate", value_name = "FILE")]
    pub(crate) gateway_tls_roots: Option<PathBuf>,
    /// Session metadata for the logs and pages of the gateways; repeatable
    #[arg(long, requires = "gateway", value_name = "KEY=VALUE", value_parser = pair)]
    pub(crate) metadata: Vec<String>,
}

/// One pair of metadata; whether all go together is seen when they are.
fn pair(text: &str) -> Result<String, String> {
    SessionMetadata::default().insert_pair(text)?;
    Ok(text.to_owned())
}

/// Gateways in order.
#[derive(Debug, Clone)]
pub(crate) struct Way(pub(crate) Vec<HostPort>);

fn way(text: &str) -> Result<Way, NoHostPort> {
    text.split(',').map(hop).collect::<Result<_, _>>().map(Way)
}

fn listen(text: &str) -> Result<SocketAddr, String> {
    haul::server::listen_address(text, None)
        .ok_or_else(|| "write ADDR:PORT, with an IPv6 address in brackets: [::]:7410".to_owned())
}

fn hop(text: &str) -> Result<HostPort, NoHostPort> {
    HostPort::parse_or(text, haul_gateway::config::DEFAULT_PORT)
}

/// Reads the size of a ring, with the bounds that routes have.
fn ring(text: &str) -> Result<u64, String> {
    let ring = bytes(text)?;
    if ring.is_power_of_two() && haul_gateway::Filler::RINGS.contains(&ring) {
        return Ok(ring);
    }
    Err("write a power of two from 8MiB to 64GiB".into())
}

/// `NAME=FILE`, or `FILE` with a name like the file's.
fn key(text: &str) -> Result<Key, String> {
    let (name, file) = match text.split_once('=') {
        Some((name, file)) => (Some(name), file),
        None => (
            std::path::Path::new(text)
                .file_stem()
                .and_then(OsStr::to_str),
            text,
        ),
    };
    let name = name.filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| format!("'{text}' has no name; write NAME=FILE"))?;
    Ok(Key {
        name: name.to_owned(),
        file: file.into(),
        class: None,
    })
}

/// How to treat files that exist at the receiver.
#[derive(Debug, ClapArgs)]
pub(crate) struct Existing {
    /// Fail if a different file of the same name exists, instead of replacing it
    #[arg(long)]
    pub(crate) no_replace: bool,
    /// Verify partial files by their hashes before resuming, and retransfer complete files
    #[arg(long)]
    pub(crate) recheck: bool,
}

/// The data channel.
#[derive(Debug, ClapArgs)]
pub(crate) struct Path {
    /// TCP and UDP port of the server
    #[arg(long, default_value_t = haul::DEFAULT_PORT, env = "HAUL_PORT")]
    pub(crate) port: u16,
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
#[derive(Debug, Clone, Copy, ClapArgs)]
pub(crate) struct Output {
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

impl From<Channel> for haul::channel::Kind {
    fn from(channel: Channel) -> Self {
        match channel {
            Channel::Tcp => Self::Tcp,
            Channel::Udt => Self::Udt,
        }
    }
}

impl Path {
    pub(crate) fn client_config(&self, host: String, port: Option<u16>) -> haul::client::Config {
        haul::client::Config {
            host,
            port: port.unwrap_or(self.port),
            channel: self.channel.unwrap_or(Channel::Udt).into(),
            streams: self.streams,
            rate_bps: self.rate,
            congestion: self.cc.clone(),
            connect_timeout: self.connect_timeout.max(Duration::from_millis(1)),
            dead_after: self.peer_timeout.max(Duration::from_secs(1)),
            give_up_after: None,
            dialer: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Args::command().debug_assert();
    }
}
