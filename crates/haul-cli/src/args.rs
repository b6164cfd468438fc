//! What the command line may say. Nothing is looked up or opened here.

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
    /// Serve a directory: take files that are sent to it and give those that are asked for
    Serve(Serve),
    /// Send files to a server: haul send FILE… HOST:DIR/
    Send(Send),
    /// Get files from a server: haul get HOST:FILE… DIR/
    Get(Get),
    /// Measure a path, or the RDMA verbs
    Bench(Bench),
    /// The whole picture of a path: streams, messages, stability, other traffic, and what limits it
    Profile(Box<profile::Profile>),
    /// Look whether this host is set up for long fat networks, and print the lines that mend it
    Doctor(profile::Doctor),
    /// Show results of bench run and profile again, or compare two
    Report(profile::Report),
    /// Run an unmodified program with its sockets on iWARP wherever the peer's are too
    Run(Run),
    /// Carry the TCP of programs that cannot change over long fat networks, in slabs
    #[command(subcommand)]
    Gateway(Gateway),
    /// What can do RDMA here: the software provider, and the machine's devices or why there are
    /// none
    Devices(Devices),
    /// An emulated WAN on this machine: hosts, paths, comparisons
    Lab(haul_lab::Args),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Gateway {
    /// Run a gateway until it is told to stop: SIGTERM lets its connections finish, a second one
    /// does not; SIGHUP has it read its configuration again
    Run(GatewayRun),
    /// Tell everything that is wrong with a configuration; exit 0 if it can be used, 2 if not
    Check(GatewayCheck),
    /// Measure how fast slabs can merely be filled here: takes connections, fills slabs with what
    /// they bring, and drops it, which no data channel can be faster than. Tells the rate each
    /// second; Ctrl-C ends it
    Fill(GatewayFill),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct GatewayRun {
    /// The configuration, TOML (docs/gateways.md)
    pub(crate) config: PathBuf,
    /// Time that connections have to finish after SIGTERM, seconds
    #[arg(long, value_name = "S", default_value_t = 30)]
    pub(crate) patience: u64,
    /// Say nothing but what does not work
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Serve {
    /// The directory; nothing outside it can be reached
    pub(crate) dir: PathBuf,
    #[arg(
        long,
        value_name = "ADDR:PORT",
        help = "Address to listen on, as ADDR, ADDR:PORT or [ADDR]:PORT; may be given more than \
                once [default: 127.0.0.1 and ::1]"
    )]
    pub(crate) listen: Vec<String>,
    /// Port for addresses given without one, TCP and UDP
    #[arg(long, default_value_t = haul::DEFAULT_PORT, env = "HAUL_PORT")]
    pub(crate) port: u16,
    /// Give files and take none
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Listen beyond this machine although there is no authentication and no encryption yet
    #[arg(long)]
    pub(crate) allow_insecure: bool,
    /// Transfers at the same time; further ones are told to try again
    #[arg(long, value_name = "N", default_value_t = haul::server::SESSIONS_DEFAULT)]
    pub(crate) max_sessions: usize,
    /// Say nothing about single transfers
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, ClapArgs)]
#[command(override_usage = "haul send [OPTIONS] FILE… HOST:DIR/", after_help = SEND_EXAMPLES)]
pub(crate) struct Send {
    /// The files, then where they go: HOST:DIR/ or HOST:PORT:DIR/ (an empty DIR is the server's
    /// directory itself; with a / at its end a missing DIR is made)
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
    /// The files of one server, as HOST:FILE or HOST:PORT:FILE, then the local directory they go to
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
        help = "Stop trying again this long after the last progress; 0 never tries again \
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
    /// The server sends, this end receives
    #[arg(long)]
    pub(crate) reverse: bool,
    /// How long to send
    #[arg(long, value_parser = duration, value_name = "TIME", default_value = "10s",
          conflicts_with = "bytes")]
    pub(crate) time: Duration,
    /// How much to send, instead of a time
    #[arg(long, value_parser = bytes, value_name = "SIZE")]
    pub(crate) bytes: Option<u64>,
    #[command(flatten)]
    pub(crate) path: Path,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchKind {
    /// Take part in what clients of run, rdma and profile ask for, one at a time
    Serve(rdma::Serve),
    /// Measure a path by any engine: TCP, UDP, UDT, RDMA; memory, files; CPU of both ends
    Run(Box<path::Run>),
    /// The RDMA verbs: write, read and send, bandwidth and latency, as perftest measures them
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
    /// UDP port at which hosts ask each other; the same at both ends
    #[arg(long, value_name = "PORT", default_value_t = haul_socket::agent::DEFAULT_PORT)]
    pub(crate) port: u16,
    #[arg(
        long,
        value_name = "FILE",
        num_args = 0..=1,
        require_equals = true,
        help = "Say at the end what became of each socket, on stderr or in FILE"
    )]
    pub(crate) report: Option<Option<PathBuf>>,
    /// Report as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// The library that is preloaded [default: beside haul, or in ../lib]
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
  haul run -- sipp -sn uas                     its UDP on UD where clients run under haul run too
  haul run --report -- curl -O http://host/f   its TCP on RC, and at the end what became of each socket
  haul run --gateway gw.site-b.example -- rsync -a data/ rsync://host/data/   its TCP through a gateway";

#[derive(Debug, ClapArgs)]
pub(crate) struct GatewayCheck {
    /// The configuration, TOML (docs/gateways.md); the files that it names are read too
    pub(crate) file: PathBuf,
    /// Print one JSON object on stdout instead
    #[arg(long)]
    pub(crate) json: bool,
    /// Ask the gateways of each route as well whether its session could be had, without opening it
    #[arg(long, conflicts_with = "json")]
    pub(crate) reach: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct GatewayFill {
    /// Where it takes connections: 192.0.2.1:7410, [::]:7410
    #[arg(value_name = "ADDR:PORT", value_parser = listen)]
    pub(crate) listen: SocketAddr,
    /// The ring that slabs are of
    #[arg(long, value_name = "SIZE", value_parser = ring, default_value = "64MiB")]
    pub(crate) ring: u64,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Devices {
    /// Print one JSON object on stdout instead
    #[arg(long)]
    pub(crate) json: bool,
}

/// Gateways to go through; this process is the near end of the session.
#[derive(Debug, Clone, ClapArgs)]
#[command(next_help_heading = "Gateways")]
pub(crate) struct Through {
    /// Go through these gateways, in this order (docs/gateways.md) [default port: 7400]
    #[arg(long, value_name = "HOST[:PORT],…", value_delimiter = ',', value_parser = hop)]
    pub(crate) gateway: Vec<HostPort>,
    /// Go through these instead, where those cannot be had; may be given again
    #[arg(long, requires = "gateway", value_name = "HOST[:PORT],…", value_parser = way)]
    pub(crate) gateway_or: Vec<Way>,
    /// The key that is shared with the first gateway, and its name there [default name: the file's,
    /// without extension]
    #[arg(long, requires = "gateway", value_name = "[NAME=]FILE", value_parser = key)]
    pub(crate) gateway_key: Option<Key>,
    /// What the octets may go by, the best first: tcp, udp, udt, iwarp/tcp, iwarp/udt, verbs
    /// [default: as routes have it]
    #[arg(
        long,
        requires = "gateway",
        value_name = "KIND,…",
        value_delimiter = ','
    )]
    pub(crate) gateway_channel: Vec<ChannelKind>,
    /// This end's certificate, PEM, for TLS to the first gateway
    #[arg(long, requires_all = ["gateway", "gateway_tls_key", "gateway_tls_roots"], value_name = "FILE")]
    pub(crate) gateway_tls_certificate: Option<PathBuf>,
    /// The certificate's key
    #[arg(long, requires = "gateway_tls_certificate", value_name = "FILE")]
    pub(crate) gateway_tls_key: Option<PathBuf>,
    /// The roots that the gateway's certificate must come from
    #[arg(long, requires = "gateway_tls_certificate", value_name = "FILE")]
    pub(crate) gateway_tls_roots: Option<PathBuf>,
    /// Say this about the session to the gateways on the way, for their logs and pages; may be
    /// given again
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
        .ok_or_else(|| "give ADDR:PORT, IPv6 in brackets: [::]:7410".to_owned())
}

fn hop(text: &str) -> Result<HostPort, NoHostPort> {
    HostPort::parse_or(text, haul_gateway::config::DEFAULT_PORT)
}

/// Octets of a ring, as routes have them.
fn ring(text: &str) -> Result<u64, String> {
    let ring = bytes(text)?;
    if ring.is_power_of_two() && haul_gateway::Filler::RINGS.contains(&ring) {
        return Ok(ring);
    }
    Err("give a power of two from 8MiB to 64GiB".into())
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

/// How files that exist at the receiver are treated.
#[derive(Debug, ClapArgs)]
pub(crate) struct Existing {
    /// Fail where a different file of the same name exists instead of replacing it
    #[arg(long)]
    pub(crate) no_replace: bool,
    /// Hash what is there of a partial file again before believing it; send complete files again
    #[arg(long)]
    pub(crate) recheck: bool,
}

/// How the bytes travel.
#[derive(Debug, ClapArgs)]
pub(crate) struct Path {
    /// The server's port, TCP and UDP
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
    /// The rate that the path is known to have, or that may be used: 10Gbit, 1.2GiB
    #[arg(long, value_parser = rate, value_name = "RATE")]
    pub(crate) rate: Option<u64>,
    /// Congestion control; udt: model (default), cubic, reno, bic, htcp, highspeed, scalable,
    /// vegas, daimd; tcp: the kernel's
    #[arg(long, value_name = "NAME", alias = "tcp-congestion")]
    pub(crate) cc: Option<String>,
    /// How long connecting may take
    #[arg(long, value_parser = duration, value_name = "TIME", default_value = "10s")]
    pub(crate) connect_timeout: Duration,
    /// After this long without a word, or with data unacknowledged, the peer is taken for gone
    #[arg(long, value_parser = duration, value_name = "TIME", default_value = "20s")]
    pub(crate) peer_timeout: Duration,
}

/// What is printed.
#[derive(Debug, Clone, Copy, ClapArgs)]
pub(crate) struct Output {
    /// Print one JSON object on stdout at the end
    #[arg(long)]
    pub(crate) json: bool,
    /// Print one JSON object for each event, a line each, on stdout
    #[arg(long)]
    pub(crate) json_stream: bool,
    /// Print nothing on stderr but errors
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Channel {
    /// Reliable UDP: finds its rate, or keeps to --rate; holds it under loss
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
