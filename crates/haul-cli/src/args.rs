//! The command line. Parsing opens no file and looks up no name.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

use crate::quantity::{bytes, duration};

pub(crate) mod engine;
mod explain;
pub(crate) mod list;
pub(crate) mod path;
pub(crate) mod profile;
pub(crate) mod rdma;
pub(crate) mod sync;
mod through;
mod transfer;
pub(crate) mod trust;

pub(crate) use explain::explain;
use list::Choose;
pub(crate) use through::ThroughArgs;
pub(crate) use transfer::{Channel, ChannelArgs, FailedTo, OutputArgs, Transfer};

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
    /// Send files and directory trees to a host: haul send FILE… HOST:DIR/
    Send(Send),
    /// Get files and directory trees from a host: haul get HOST:FILE… DIR/
    Get(Get),
    /// Make a directory tree as another one is, of which one is local: haul sync SOURCE HOST:DIR/
    Sync(Box<sync::Sync>),
    /// List a directory of a host: haul ls HOST:DIR
    Ls(Box<list::Ls>),
    /// Compare a local tree with one of a host by digests: haul verify SOURCE DESTINATION
    Verify(Box<list::Verify>),
    /// Receive files from one sender, who enters the code that this command prints
    Receive(trust::Receive),
    /// Make, show and trust keys, for haul serve and its clients
    #[command(subcommand)]
    Key(trust::Key),
    /// The other end of haul send HOST:…, which ssh starts
    #[command(hide = true)]
    Agent(trust::Agent),
    /// Measure a path, or the RDMA verbs
    Bench(Bench),
    /// Profile a path: streams, message sizes, stability, cross traffic, and what limits it
    Profile(Box<profile::Profile>),
    /// Check whether this host is tuned for long fat networks, and print the commands that fix it
    Doctor(profile::Doctor),
    /// Show stored results of bench run and profile, or compare two
    Report(profile::Report),
    /// Run an unmodified application: its connections go through a gateway, or over iWARP to peers
    /// under haul run
    Run(Run),
    /// Carry the TCP connections of unmodified applications over long fat networks
    #[command(subcommand)]
    Gateway(Gateway),
    /// Move data for applications in a process of its own, on processors that they leave alone
    #[command(subcommand)]
    Engine(engine::Engine),
    /// List RDMA devices: of software, of an engine, and of hardware, or why there are none
    Devices(Devices),
    /// Emulate a WAN on this machine: hosts, paths, a comparison of tools
    Lab(haul_lab::Args),
    /// Show the values of options that configuration files, the environment and defaults give
    #[command(subcommand)]
    Config(Config),
    /// Print or install the completions of a shell
    Completions(Completions),
    /// Read files of hosts for an application, which sends messages on stdin (docs/python.md)
    #[command(hide = true)]
    Api(Box<Api>),
    /// Write the manual pages
    #[command(hide = true)]
    Man(Man),
}

/// What `haul` alone prints.
pub(crate) const FIRST_STEPS: &str = "\
haul moves files over long fat networks.

  Send a directory tree to a host that you reach by ssh, or get one:
    haul send results alice@host:/data/
    haul get alice@host:/data/results .
  Receive from a host without ssh; this prints the command for the other end, and a code:
    haul receive incoming/
  Speed up applications that you cannot change, by a gateway at each end of the path:
    haul gateway run gateway.toml
  Find out what a path carries, and what limits it ('haul bench serve' at the other end):
    haul profile host

haul help lists all commands; haul help COMMAND describes one.
";

#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Print each value and where it comes from: default, /etc/haul/config.toml,
    /// ~/.config/haul/config.toml, environment or command line
    Show(ConfigShow),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ConfigShow {
    /// A command, and options as it would have them [default: all commands that read the files]
    #[arg(value_names = ["COMMAND", "OPTIONS"], trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) line: Vec<String>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
    /// Write them where the user's shell looks for them
    #[arg(long)]
    pub(crate) install: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Man {
    /// Where to write them
    pub(crate) dir: PathBuf,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Api {
    #[command(flatten)]
    pub(crate) path: ChannelArgs,
    #[command(flatten)]
    pub(crate) trust: trust::ClientTrust,
    #[command(flatten)]
    pub(crate) ssh: trust::Ssh,
    #[command(flatten)]
    pub(crate) through: ThroughArgs,
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
    #[command(flatten)]
    pub(crate) trust: trust::ServerTrust,
    /// Maximum concurrent transfers; the server asks further clients to retry
    #[arg(long, value_name = "N", default_value_t = haul::server::SESSIONS_DEFAULT,
          value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) max_sessions: usize,
    /// Drain timeout after the first SIGTERM
    #[arg(long, value_parser = duration, value_name = "TIME", default_value = "30s")]
    pub(crate) patience: Duration,
    /// Do not report single transfers
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Serve metrics as OpenMetrics at http://ADDR:PORT/metrics, without authentication
    #[arg(long, value_name = "ADDR:PORT", value_parser = listen)]
    pub(crate) metrics: Option<SocketAddr>,
    /// A name by which clients reach the metrics, besides addresses; repeatable
    #[arg(long, value_name = "NAME", requires = "metrics")]
    pub(crate) metrics_name: Vec<String>,
    /// Print one JSON object for each session and each failed login, on stdout
    #[arg(long)]
    pub(crate) log_json: bool,
}

#[derive(Debug, ClapArgs)]
#[command(override_usage = "haul send [OPTIONS] FILE… HOST:DIR/", after_help = SEND_EXAMPLES)]
pub(crate) struct Send {
    /// The files and directories, then the destination: [USER@]HOST:DIR/ by ssh, or
    /// haul://HOST[:PORT]/DIR/ at a server, or haul:HOST:PORT at a 'haul receive'. If DIR ends in /
    /// and is missing, it is made
    #[arg(required = true, value_names = ["FILE", "HOST:DIR/"])]
    pub(crate) operands: Vec<OsString>,
    #[command(flatten)]
    pub(crate) choose: Choose,
    /// Do not use or store measured path rates
    #[arg(long)]
    pub(crate) no_path_memory: bool,
    #[command(flatten)]
    pub(crate) transfer: Transfer,
}

const SEND_EXAMPLES: &str = "\
Examples:
  haul send run42.h5 run43.h5 alice@host:campaign/   by ssh: haul must be installed there too
  haul send run42.h5 haul://host/campaign/           to a server of haul serve
  haul send results host:/data/                      a tree, as /data/results; results/. its contents
  haul send --exclude '*.tmp' results host:/data/    without some of it
  haul send run42.h5 '[2001:db8::1]:campaign/'       an IPv6 address goes in brackets, with quotes
  haul send --gateway gw.site-b.example --gateway-key site-b.key run42.h5 haul://host/campaign/";

#[derive(Debug, ClapArgs)]
#[command(override_usage = "haul get [OPTIONS] HOST:FILE… DIR/", after_help = GET_EXAMPLES)]
pub(crate) struct Get {
    /// The files and directories on one host, as [USER@]HOST:FILE by ssh or
    /// haul://HOST[:PORT]/FILE at a server, then the local directory
    #[arg(required = true, value_names = ["HOST:FILE", "DIR/"])]
    pub(crate) operands: Vec<OsString>,
    #[command(flatten)]
    pub(crate) choose: Choose,
    #[command(flatten)]
    pub(crate) transfer: Transfer,
}

const GET_EXAMPLES: &str = "\
Examples:
  haul get host:campaign/run42.h5 host:campaign/run43.h5 ./   by ssh
  haul get haul://host:4730/campaign/run42.h5 ./              from a server of haul serve
  haul get '[2001:db8::1]:run42.h5' ./   an IPv6 address goes in brackets, with quotes";

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
    #[command(flatten)]
    pub(crate) trust: trust::ClientTrust,
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
    pub(crate) path: ChannelArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchKind {
    /// Serve clients of bench run, bench rdma and profile, one at a time
    Serve(Box<rdma::BenchServe>),
    /// Measure a path over TCP, UDP, UDT or RDMA, from memory or files, with CPU time at both ends
    Run(Box<path::BenchRun>),
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
    pub(crate) through: ThroughArgs,
    /// Let connections of applications that do not load the library go past the gateway
    #[arg(long, requires = "gateway")]
    pub(crate) allow_direct: bool,
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
    /// Also ask the gateways of each route for a session, and open each kind of data channel once
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

fn listen(text: &str) -> Result<SocketAddr, String> {
    haul::server::listen_address(text, None)
        .ok_or_else(|| "write ADDR:PORT, with an IPv6 address in brackets: [::1]:7410".to_owned())
}

/// Reads the size of a ring, with the bounds that routes have.
fn ring(text: &str) -> Result<u64, String> {
    let ring = bytes(text)?;
    if ring.is_power_of_two() && haul_gateway::Filler::RINGS.contains(&ring) {
        return Ok(ring);
    }
    Err("write a power of two from 8MiB to 64GiB".into())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Args::command().debug_assert();
    }
}
