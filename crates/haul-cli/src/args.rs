//! The command line. Parsing opens no file and looks up no name.

use std::error::Error as _;
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::num::{IntErrorKind, ParseIntError};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{RangedU64ValueParser, StyledStr};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args as ClapArgs, CommandFactory as _, Parser, Subcommand, ValueEnum};
use haul::fault::{Code, Fault};
use haul_control::trust::ClientConfig;
use haul_gateway::config::{ChannelKind, HostPort, Key, NoHostPort, SessionMetadata};

use crate::quantity::{bytes, duration, rate};
use crate::timetable::{Bwlimit, bwlimit};

pub(crate) mod list;
pub(crate) mod path;
pub(crate) mod profile;
pub(crate) mod rdma;
pub(crate) mod sync;
pub(crate) mod trust;

use list::Choose;

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
    /// List RDMA devices: the software provider, and the hardware devices or why there are none
    Devices(Devices),
    /// Emulate a WAN on this machine: hosts, paths, a comparison of tools
    Lab(haul_lab::Args),
    /// Show the values of options that configuration files, the environment and defaults give
    #[command(subcommand)]
    Config(Config),
    /// Print or install the completions of a shell
    Completions(Completions),
    /// Write the manual pages
    #[command(hide = true)]
    Man(Man),
}

/// Adds to an error of the command line what clap does not tell: the variable that a wrong value is
/// of, what a number is, and whose option another command was given.
pub(crate) fn explain(mut error: clap::Error) -> clap::Error {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let (argument, value) = (
        text(ContextKind::InvalidArg),
        text(ContextKind::InvalidValue),
    );
    let Some(argument) = argument else {
        return error;
    };
    let option = argument.split(' ').next().unwrap_or_default();
    let option = option.strip_prefix("--").unwrap_or_default();
    if error.kind() == ErrorKind::UnknownArgument {
        let mut owners = owners(&Args::command(), "haul", option);
        if let Some(last) = owners.pop() {
            let owners = match owners.is_empty() {
                true => last,
                false => format!("{} and {last}", owners.join(", ")),
            };
            let tip = format!("--{option} is an option of {owners}");
            let tip = ContextValue::StyledStrs(vec![StyledStr::from(tip)]);
            error.insert(ContextKind::Suggested, tip);
        }
        return error;
    }
    let Some(value) = value.filter(|_| error.kind() == ErrorKind::ValueValidation) else {
        return error;
    };
    let shown = variable(&Args::command(), option, &value).unwrap_or(argument);
    let number = error.source().and_then(|why| why.downcast_ref());
    let why = match number.map(ParseIntError::kind) {
        Some(IntErrorKind::PosOverflow) => "the number is too large".to_owned(),
        Some(_) => "write a whole number".to_owned(),
        None => error.source().map_or_else(String::new, ToString::to_string),
    };
    let text = format!(
        "invalid value '{value}' for '{shown}': {why}\n\nFor more information, try '--help'.\n"
    );
    clap::Error::raw(ErrorKind::ValueValidation, text)
}

/// Returns the commands below this one that have the option.
fn owners(command: &clap::Command, name: &str, option: &str) -> Vec<String> {
    let commands = command.get_subcommands();
    let commands = commands.filter(|command| !command.is_hide_set());
    commands
        .flat_map(|command| {
            let name = format!("{name} {}", command.get_name());
            let is_of = |arg: &clap::Arg| arg.get_long() == Some(option) && !arg.is_hide_set();
            let below = owners(command, &name, option);
            let own = command.get_arguments().any(is_of).then_some(name);
            own.into_iter().chain(below)
        })
        .collect()
}

/// Returns the variable that holds the value of an option which the command line does not have.
fn variable(command: &clap::Command, option: &str, value: &str) -> Option<String> {
    let flag = format!("--{option}");
    let is_given = |word: OsString| word.to_string_lossy().split('=').next() == Some(&flag);
    if option.is_empty() || std::env::args_os().any(is_given) {
        return None;
    }
    let own = command.get_arguments().find_map(|arg| {
        let name = arg.get_env().filter(|_| arg.get_long() == Some(option))?;
        (std::env::var_os(name)? == value).then(|| name.to_string_lossy().into_owned())
    });
    let below = || {
        let mut commands = command.get_subcommands();
        commands.find_map(|command| variable(command, option, value))
    };
    own.or_else(below)
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

/// What `send`, `get` and `sync` have in common.
#[derive(Debug, ClapArgs)]
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
    pub(crate) path: Path,
    #[command(flatten)]
    pub(crate) trust: trust::ClientTrust,
    #[command(flatten)]
    pub(crate) ssh: trust::Ssh,
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
    pub(crate) path: Path,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchKind {
    /// Serve clients of bench run, bench rdma and profile, one at a time
    Serve(Box<rdma::Serve>),
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

/// Gateways to go through; this process is the near end of the session.
#[derive(Debug, Clone, ClapArgs)]
pub(crate) struct Through {
    /// Connect through these gateways, in order (docs/gateways.md) [default port: 7400]
    #[arg(help_heading = "Gateways", long, value_name = "HOST[:PORT],…", value_delimiter = ',', value_parser = hop)]
    pub(crate) gateway: Vec<HostPort>,
    /// Alternative gateways if those fail; repeatable
    #[arg(help_heading = "Gateways", long, requires = "gateway", value_name = "HOST[:PORT],…", value_parser = way)]
    pub(crate) gateway_or: Vec<Way>,
    /// The key shared with the first gateway, and its name there [default name: the file name
    /// without its extension]
    #[arg(help_heading = "Gateways", long, requires = "gateway", value_name = "[NAME=]FILE", value_parser = key)]
    pub(crate) gateway_key: Option<Key>,
    /// Data channels to try, in order of preference: iwarp/udt, tcp, verbs [default: as for routes]
    #[arg(
        help_heading = "Gateways",
        long,
        requires = "gateway",
        value_name = "KIND,…",
        value_delimiter = ','
    )]
    pub(crate) gateway_channel: Vec<ChannelKind>,
    /// Client certificate (PEM) for TLS to the first gateway
    #[arg(help_heading = "Gateways", long, requires_all = ["gateway", "gateway_tls_key", "gateway_tls_roots"], value_name = "FILE")]
    pub(crate) gateway_tls_certificate: Option<PathBuf>,
    /// Private key of the certificate
    #[arg(
        help_heading = "Gateways",
        long,
        requires = "gateway_tls_certificate",
        value_name = "FILE"
    )]
    pub(crate) gateway_tls_key: Option<PathBuf>,
    /// Root certificates that must have issued the gateway's certificate
    #[arg(
        help_heading = "Gateways",
        long,
        requires = "gateway_tls_certificate",
        value_name = "FILE"
    )]
    pub(crate) gateway_tls_roots: Option<PathBuf>,
    /// Session metadata for the logs and pages of the gateways; repeatable
    #[arg(help_heading = "Gateways", long, requires = "gateway", value_name = "KEY=VALUE", value_parser = pair)]
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
        .ok_or_else(|| "write ADDR:PORT, with an IPv6 address in brackets: [::1]:7410".to_owned())
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

/// Directory trees.
#[derive(Debug, ClapArgs)]
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
#[derive(Debug, ClapArgs)]
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
#[derive(Debug, ClapArgs)]
pub(crate) struct Path {
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

impl From<Channel> for haul::channel::ChannelKind {
    fn from(channel: Channel) -> Self {
        match channel {
            Channel::Tcp => Self::Tcp,
            Channel::Udt => Self::Udt,
        }
    }
}

impl Path {
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Args::command().debug_assert();
    }
}
