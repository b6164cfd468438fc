//! The command line of `haul bench rdma`. Where perftest has a letter or a name for the same, it is
//! understood too.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use haul_bench::plan::{DEPTH_MAX, POST_LIST_MAX, QPS_MAX, SIZE_MAX};
use haul_soft::rnic::Cpus;

use super::transfer::{Channel, OutputArgs};
use super::trust::ServerTrust;
use crate::quantity::{bytes, duration, rate};

#[derive(Debug, Args)]
#[command(
    subcommand_negates_reqs = true,
    args_conflicts_with_subcommands = true,
    override_usage = "haul bench rdma [OPTIONS] HOST\n       haul bench rdma serve [OPTIONS]"
)]
pub(crate) struct Rdma {
    #[command(subcommand)]
    pub(crate) kind: Option<RdmaKind>,
    #[arg(
        required = true,
        help = "The server: HOST, HOST:PORT or [ADDRESS]:PORT"
    )]
    pub(crate) host: Option<String>,
    /// TCP port of the server
    #[arg(long, short, default_value_t = haul_bench::DEFAULT_PORT)]
    pub(crate) port: u16,
    #[command(flatten)]
    pub(crate) trust: super::trust::ClientTrust,
    #[command(flatten)]
    pub(crate) device: Device,
    #[command(flatten)]
    pub(crate) wire: Wire,
    /// Transport service: connections, or datagrams over UDP
    #[arg(long, value_enum, default_value_t = Service::Rc)]
    pub(crate) qp: Service,
    /// RDMA verb [default: write; for --qp ud write-record]
    #[arg(long, value_enum)]
    pub(crate) op: Option<Op>,
    /// Bandwidth, or the latency of one message at a time
    #[arg(long, value_enum, default_value_t = Test::Bw)]
    pub(crate) test: Test,
    /// Bytes of a message: 64, 64KiB [default: 64KiB, for latency 64]
    #[arg(long, short, value_parser = size, value_name = "SIZE", conflicts_with_all = ["sizes", "all"])]
    pub(crate) size: Option<u32>,
    /// Message sizes in powers of two: 1..8388608
    #[arg(long, value_parser = sizes, value_name = "FROM..TO", conflicts_with = "all")]
    pub(crate) sizes: Option<std::ops::RangeInclusive<u32>>,
    /// Message sizes from 2^0 to 2^23; Send over unreliable datagrams to 2^20
    #[arg(long, short)]
    pub(crate) all: bool,
    #[arg(long, short = 't', visible_alias = "tx-depth", value_name = "N",
          help = "Outstanding messages per queue pair [default: 128, idle 16]",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(DEPTH_MAX)))]
    pub(crate) depth: Option<u32>,
    #[arg(long, short, value_name = "N",
          help = "Posted receives per queue pair [default: 4 × depth, less for long messages; idle 16]",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(DEPTH_MAX)))]
    pub(crate) rx_depth: Option<u32>,
    /// Queue pairs
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(QPS_MAX)))]
    pub(crate) qps: u32,
    /// Connect this many queue pairs, use each once, and print the memory that they take
    #[arg(long, value_name = "N", conflicts_with_all = ["qps", "test", "op", "bidirectional", "file"],
          value_parser = clap::value_parser!(u32).range(1..=i64::from(QPS_MAX)))]
    pub(crate) idle_qps: Option<u32>,
    /// Both ends send at the same time
    #[arg(long, short)]
    pub(crate) bidirectional: bool,
    /// Duration for each size
    #[arg(long, short = 'D', visible_alias = "duration", value_parser = duration, value_name = "TIME",
          default_value = "2s")]
    pub(crate) time: Duration,
    /// Messages per queue pair, instead of --time
    #[arg(long, short = 'n', visible_alias = "iters", value_name = "N", conflicts_with = "time", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) iterations: Option<u64>,
    /// Work requests per post call
    #[arg(long, short = 'l', value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(POST_LIST_MAX)))]
    pub(crate) post_list: u32,
    /// Signal one completion per N messages [default: a quarter of the depth]
    #[arg(long, short = 'Q', value_name = "N")]
    pub(crate) cq_mod: Option<u32>,
    /// Inline messages up to this length when they are posted
    #[arg(
        long,
        short = 'I',
        visible_alias = "inline-size",
        value_name = "BYTES",
        default_value_t = 0
    )]
    pub(crate) inline: u32,
    /// Outstanding reads per queue pair (IRD and ORD)
    #[arg(long, short = 'o', value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u16).range(1..=0x3ffe))]
    pub(crate) outs: u16,
    /// How both ends wait for completions
    #[arg(long, value_enum, default_value_t = Wait::Adaptive)]
    pub(crate) wait: Wait,
    /// Sleep until a completion event; the same as --wait events
    #[arg(long, short, conflicts_with = "wait")]
    pub(crate) events: bool,
    /// Bytes of an IP packet of a datagram service [default: the MTU of the route, at most 1500]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(576..))]
    pub(crate) path_mtu: Option<u16>,
    /// Maximum rate per queue pair: 1Gbit. Counts payload of unreliable datagrams, and wire bytes
    /// of connections
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(crate) max_rate: Option<u64>,
    /// Connect with the connection manager (default)
    #[arg(
        long,
        short = 'R',
        visible_alias = "rdma-cm",
        conflicts_with = "exchange"
    )]
    pub(crate) cm: bool,
    /// Connect with parameters exchanged over TCP, if the provider supports that
    #[arg(long, short = 'x')]
    pub(crate) exchange: bool,
    /// Complete a write only after the peer has placed it, also over iWARP
    #[arg(long)]
    pub(crate) remote_placement: bool,
    /// Verify every byte at the target; the time counts as measured
    #[arg(long)]
    pub(crate) verify: bool,
    /// Send this file instead of memory; the server writes it to the path of its own --file
    #[arg(long, value_name = "PATH")]
    pub(crate) file: Option<PathBuf>,
    /// Connection timeout
    #[arg(long, value_parser = duration, value_name = "TIME", default_value = "10s")]
    pub(crate) connect_timeout: Duration,
    /// Timeout without messages from the peer
    #[arg(long, value_parser = duration, value_name = "TIME", default_value = "20s")]
    pub(crate) peer_timeout: Duration,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RdmaKind {
    /// Serve clients, one at a time
    Serve(BenchServe),
}

#[derive(Debug, Args)]
pub(crate) struct BenchServe {
    #[arg(
        long,
        value_name = "ADDR:PORT",
        help = "Address to listen on: ADDR, ADDR:PORT or [ADDR]:PORT; may be given more than \
                once [default: 127.0.0.1 and ::1]"
    )]
    pub(crate) listen: Vec<String>,
    /// TCP port for addresses without a port
    #[arg(long, short, default_value_t = haul_bench::DEFAULT_PORT)]
    pub(crate) port: u16,
    /// TCP or UDP port of queue pairs and streams [default: any free port]
    #[arg(
        long,
        value_name = "PORT",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub(crate) data_port: u16,
    #[command(flatten)]
    pub(crate) trust: ServerTrust,
    #[command(flatten)]
    pub(crate) device: Device,
    /// Write the file of a client to PATH; without it the server drops the bytes
    #[arg(long, value_name = "PATH")]
    pub(crate) file: Option<PathBuf>,
    /// The file that 'bench run --source file --reverse' sends
    #[arg(long, value_name = "PATH")]
    pub(crate) source_file: Option<PathBuf>,
    /// The file that 'bench run --sink file' writes; created or truncated
    #[arg(long, value_name = "PATH")]
    pub(crate) sink_file: Option<PathBuf>,
    /// Exit after one client
    #[arg(long, short = '1')]
    pub(crate) one_off: bool,
    /// Timeout without messages from a client
    #[arg(long, value_parser = duration, value_name = "TIME", default_value = "20s")]
    pub(crate) peer_timeout: Duration,
    /// Do not report single clients
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// The RDMA device.
#[derive(Debug, Clone, Args)]
pub(crate) struct Device {
    /// Provider: soft, engine (of `haul engine run`), or ibv:NAME for the libibverbs device NAME
    #[arg(long, value_name = "PROVIDER", default_value = "soft")]
    pub(crate) provider: Provider,
    /// Transport of the software provider
    #[arg(long, value_enum, default_value_t = Channel::Tcp)]
    pub(crate) channel: Channel,
    /// Engine threads of the software provider
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) shards: u16,
    /// Whose threads of the software provider send and receive
    #[arg(long, value_enum, default_value_t = Drive::Caller)]
    pub(crate) drive: Drive,
    /// Processors of the engine threads, for --drive engine: 1, 2,3 or 4-7
    #[arg(long, value_name = "LIST")]
    pub(crate) engine_cpus: Option<Cpus>,
    /// Write the packets of the software provider to a capture file
    #[arg(long, value_name = "PATH")]
    pub(crate) pcap: Option<PathBuf>,
}

impl Default for Device {
    fn default() -> Self {
        Self {
            provider: Provider::Soft,
            channel: Channel::Tcp,
            shards: 1,
            drive: Drive::Caller,
            engine_cpus: None,
            pcap: None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Drive {
    /// The threads that post, poll or wait
    Caller,
    /// The engine threads alone
    Engine,
}

/// Options of the software provider that both ends need alike.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Wire {
    /// Do not send or request CRCs
    #[arg(long)]
    pub(crate) no_crc: bool,
    /// Maximum FPDU length, 512 to 65536
    #[arg(long, visible_alias = "mtu", value_parser = bytes, value_name = "BYTES")]
    pub(crate) fpdu: Option<u64>,
    /// Verify CRCs before placement, which costs a copy
    #[arg(long)]
    pub(crate) strict_crc: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Provider {
    Soft,
    Engine,
    Ibv(String),
}

impl std::str::FromStr for Provider {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "soft" => Ok(Self::Soft),
            None if text == "engine" => Ok(Self::Engine),
            Some(("ibv", name)) if !name.is_empty() => Ok(Self::Ibv(name.to_owned())),
            _ => Err("write soft, engine, or ibv:NAME with the name of a device".into()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Op {
    /// RDMA Write
    Write,
    /// RDMA Read
    Read,
    /// Send and receive
    Send,
    /// RDMA Write-Record: a Write whose target learns which bytes are valid; datagrams only
    WriteRecord,
}

impl From<Op> for haul_bench::Op {
    fn from(op: Op) -> Self {
        match op {
            Op::Write => Self::Write,
            Op::Read => Self::Read,
            Op::Send => Self::Send,
            Op::WriteRecord => Self::WriteRecord,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Service {
    /// Reliable connections
    Rc,
    /// Unreliable datagrams
    Ud,
    /// Reliable datagrams
    Rd,
}

impl From<Service> for haul_bench::Service {
    fn from(service: Service) -> Self {
        match service {
            Service::Rc => Self::Rc,
            Service::Ud => Self::Ud,
            Service::Rd => Self::Rd,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Test {
    /// Bandwidth
    Bw,
    /// Latency
    Lat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wait {
    /// Poll briefly, then sleep
    Adaptive,
    /// Poll
    Poll,
    /// Sleep until a completion event
    Events,
}

pub(super) fn size(text: &str) -> Result<u32, String> {
    let size = bytes(text)?;
    u32::try_from(size)
        .ok()
        .filter(|size| *size <= SIZE_MAX)
        .ok_or_else(|| format!("a message has 1 to {SIZE_MAX} bytes"))
}

fn sizes(text: &str) -> Result<std::ops::RangeInclusive<u32>, String> {
    let (from, to) = text
        .split_once("..")
        .ok_or("write two sizes, like 1..8388608")?;
    let (from, to) = (size(from)?, size(to)?);
    if from > to {
        return Err("the first size is larger than the second".into());
    }
    Ok(from..=to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_ranges_inside_the_limits() {
        assert_eq!(sizes("1..8MiB"), Ok(1..=SIZE_MAX));
        for bad in ["8..4", "1", "0..4", "1..16MiB", ".."] {
            assert!(sizes(bad).is_err(), "{bad}");
        }
        assert_eq!(size("64KiB"), Ok(65_536));
    }

    #[test]
    fn a_provider_may_name_a_device() {
        assert_eq!("soft".parse(), Ok(Provider::Soft));
        assert_eq!("ibv:rxe0".parse(), Ok(Provider::Ibv("rxe0".into())));
        for bad in ["", "ibv", "ibv:", "soft:x", "verbs"] {
            assert!(bad.parse::<Provider>().is_err(), "{bad}");
        }
    }
}
