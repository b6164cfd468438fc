//! The command line of `haul bench run`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory as _, Parser, ValueEnum};
use haul_bench::path::plan::{self, MESSAGE_MAX, PathLimit, PathPlan, STREAMS_MAX};

use super::explain::explain;
use super::rdma::{Device, Op};
use super::transfer::OutputArgs;
use super::trust::ClientTrust;
use crate::quantity::{bytes, duration, rate};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchRun {
    /// The server: HOST, HOST:PORT or [ADDRESS]:PORT
    pub(crate) host: String,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(flatten)]
    pub(crate) options: Options,
    /// Measure a second setting with these options in turns, and print the ratio
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    pub(crate) vs: Option<String>,
    /// Number of measurements of each setting [default: 1, with --vs 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeat: Option<u32>,
    /// Write report.html, results.json and results.csv into this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

const EXAMPLES: &str = "\
Examples:
  haul bench serve --listen 0.0.0.0 --allow-insecure    the other end
  haul bench run host                                   TCP, memory to memory, ten seconds
  haul bench run host --engine udt --out report         UDT, and a page with pictures
  haul bench run host --engine udp --rate 500Mbit       datagrams: loss and jitter
  haul bench run host --send sendfile --source ramdisk --vs '--send write'";

/// How the server is reached.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerArgs {
    /// TCP port of the server
    #[arg(long, short, default_value_t = haul_bench::DEFAULT_PORT)]
    pub(crate) port: u16,
    /// The file that --source file sends
    #[arg(long, value_name = "PATH")]
    pub(crate) source_file: Option<PathBuf>,
    /// The file that --sink file writes with --reverse; created or truncated
    #[arg(long, value_name = "PATH")]
    pub(crate) sink_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) device: Device,
    #[command(flatten)]
    pub(crate) trust: ClientTrust,
    /// Connection timeout
    #[arg(long, value_parser = duration, value_name = "TIME", default_value = "10s")]
    pub(crate) connect_timeout: Duration,
    /// Timeout without messages from the peer
    #[arg(long, value_parser = duration, value_name = "TIME", default_value = "20s")]
    pub(crate) peer_timeout: Duration,
}

/// The options of a plan that were given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct Options {
    /// Protocol engine [default: tcp]
    #[arg(long, short, value_enum)]
    pub(crate) engine: Option<Engine>,
    /// System call that gives data to TCP [default: write]
    #[arg(long, value_enum)]
    pub(crate) send: Option<SendBy>,
    /// System call that takes data from TCP [default: read]
    #[arg(long, value_enum)]
    pub(crate) receive: Option<ReceiveBy>,
    /// Source of the data [default: memory, for --send sendfile ramdisk]
    #[arg(long, value_enum)]
    pub(crate) source: Option<Medium>,
    /// Sink of the data [default: memory]
    #[arg(long, value_enum)]
    pub(crate) sink: Option<Medium>,
    /// Reverse the direction: the server sends
    #[arg(long)]
    pub(crate) reverse: bool,
    /// RDMA verb [default: write, for ud write-record]
    #[arg(long, value_enum)]
    pub(crate) op: Option<Op>,
    #[arg(long, short, value_parser = message, value_name = "SIZE",
          help = "Bytes per system call, datagram or work request [default: 128KiB, udp 1448, RDMA 64KiB]; not for udt")]
    pub(crate) message: Option<u32>,
    /// Outstanding messages (RDMA, zerocopy), or datagrams per call (udp) [default: 128]
    #[arg(long, value_name = "N")]
    pub(crate) depth: Option<u32>,
    /// How queue pairs connect, for iwarp-tcp and iwarp-udt [default: cm]
    #[arg(long, value_enum)]
    pub(crate) connect: Option<Connect>,
    /// Buffer of each stream [default: 512KiB]
    #[arg(long, value_parser = bytes, value_name = "SIZE")]
    pub(crate) memory: Option<u64>,
    /// Parallel streams or queue pairs [default: 1]
    #[arg(long, short = 'P', value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(STREAMS_MAX)))]
    pub(crate) streams: Option<u16>,
    /// Maximum rate of all streams together: 1Gbit
    #[arg(long, value_parser = rate, value_name = "RATE")]
    pub(crate) rate: Option<u64>,
    /// Duration [default: 10s]
    #[arg(long, short, value_parser = duration, value_name = "TIME", conflicts_with = "bytes")]
    pub(crate) time: Option<Duration>,
    /// Bytes to send, instead of --time
    #[arg(long, value_parser = bytes, value_name = "SIZE")]
    pub(crate) bytes: Option<u64>,
    /// Leave out this much at the beginning (slow start)
    #[arg(long, short = 'O', value_parser = duration, value_name = "TIME")]
    pub(crate) omit: Option<Duration>,
    /// Interval of progress reports [default: 1s]
    #[arg(long, short, value_parser = duration, value_name = "TIME")]
    pub(crate) interval: Option<Duration>,
    /// Congestion control. tcp: those of the kernel (cubic, bbr, …); udt: those of
    /// docs/congestion.md (model, bic, htcp, …)
    #[arg(long, short = 'C', value_name = "NAME", alias = "cc")]
    pub(crate) congestion: Option<String>,
    /// Socket buffer size [default: chosen by the kernel]
    #[arg(long, value_parser = message, value_name = "SIZE")]
    pub(crate) buffer: Option<u32>,
    /// One datagram per system call, without segmentation and receive offload
    #[arg(long)]
    pub(crate) no_gso: bool,
}

/// The options of `--vs`.
#[derive(Debug, Parser)]
#[command(name = "--vs", no_binary_name = true, disable_help_flag = true)]
struct Vs {
    #[command(flatten)]
    options: Options,
}

impl Options {
    /// Reads the options of `--vs`, which are words without quotes.
    pub(crate) fn parse_words(text: &str) -> Result<Self, String> {
        match Vs::try_parse_from(text.split_whitespace()) {
            Ok(vs) => Ok(vs.options),
            Err(error) => {
                let text = explain(error, &Vs::command()).to_string();
                let first = text.lines().next().unwrap_or("it makes no sense");
                Err(first.trim_start_matches("error: ").to_owned())
            }
        }
    }

    /// Returns these options, with those of `base` where they are missing.
    pub(crate) fn over(&self, base: &Self) -> Self {
        let own = self.clone();
        // A time and a number of bytes exclude each other.
        let limited = own.time.is_some() || own.bytes.is_some();
        Self {
            engine: own.engine.or(base.engine),
            send: own.send.or(base.send),
            receive: own.receive.or(base.receive),
            source: own.source.or(base.source),
            sink: own.sink.or(base.sink),
            reverse: own.reverse || base.reverse,
            op: own.op.or(base.op),
            message: own.message.or(base.message),
            depth: own.depth.or(base.depth),
            connect: own.connect.or(base.connect),
            memory: own.memory.or(base.memory),
            streams: own.streams.or(base.streams),
            rate: own.rate.or(base.rate),
            time: if limited { own.time } else { base.time },
            bytes: if limited { own.bytes } else { base.bytes },
            omit: own.omit.or(base.omit),
            interval: own.interval.or(base.interval),
            congestion: own.congestion.or_else(|| base.congestion.clone()),
            buffer: own.buffer.or(base.buffer),
            no_gso: own.no_gso || base.no_gso,
        }
    }

    /// The whole plan.
    pub(crate) fn plan(&self) -> PathPlan {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let base = PathPlan::new(self.engine.unwrap_or(Engine::Tcp).into());
        let send_by = self.send.map_or(base.send_by, plan::SendBy::from);
        let source = match (self.source, send_by) {
            (Some(source), _) => source.into(),
            (None, plan::SendBy::Sendfile) => plan::Medium::Ramdisk,
            (None, _) => base.source,
        };
        let limit = self.time.map(|time| PathLimit::TimeMs(ms(time)));
        let limit = limit.or_else(|| self.bytes.map(PathLimit::Bytes));
        PathPlan {
            send_by,
            receive_by: self.receive.map_or(base.receive_by, plan::ReceiveBy::from),
            source,
            sink: self.sink.map_or(base.sink, plan::Medium::from),
            reverse: self.reverse,
            op: self.op.map_or(base.op, haul_bench::Op::from),
            message: self.message.unwrap_or(base.message),
            depth: self.depth.unwrap_or(base.depth),
            connect: self
                .connect
                .map_or(base.connect, haul_bench::plan::Connect::from),
            memory: self.memory.unwrap_or(base.memory),
            streams: self.streams.unwrap_or(base.streams),
            rate_bps: self.rate,
            limit: limit.unwrap_or(base.limit),
            omit_ms: self.omit.map_or(0, ms),
            interval_ms: self.interval.map_or(base.interval_ms, ms),
            congestion: self.congestion.clone(),
            buffer: self.buffer,
            gso: !self.no_gso,
            ..base
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    /// TCP of the kernel
    Tcp,
    /// UDP datagrams at --rate or as fast as possible; no retransmission
    Udp,
    /// Reliable UDP, with placement on arrival
    Udt,
    /// RDMA over TCP
    IwarpTcp,
    /// RDMA over UDT
    IwarpUdt,
    /// RDMA over unreliable datagrams
    Ud,
    /// RDMA over reliable datagrams
    Rd,
}

impl From<Engine> for plan::Engine {
    fn from(engine: Engine) -> Self {
        match engine {
            Engine::Tcp => Self::Tcp,
            Engine::Udp => Self::Udp,
            Engine::Udt => Self::Udt,
            Engine::IwarpTcp => Self::IwarpTcp,
            Engine::IwarpUdt => Self::IwarpUdt,
            Engine::Ud => Self::Ud,
            Engine::Rd => Self::Rd,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Connect {
    /// Connection manager
    Cm,
    /// Out-of-band exchange of parameters
    Exchange,
}

impl From<Connect> for haul_bench::plan::Connect {
    fn from(connect: Connect) -> Self {
        match connect {
            Connect::Cm => Self::Cm,
            Connect::Exchange => Self::Exchange,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SendBy {
    /// write(2): a copy into the kernel
    Write,
    /// sendfile(2), from a file
    Sendfile,
    /// splice(2) from a file, vmsplice(2) from memory
    Splice,
    /// MSG_ZEROCOPY, from memory
    Zerocopy,
}

impl From<SendBy> for plan::SendBy {
    fn from(send: SendBy) -> Self {
        match send {
            SendBy::Write => Self::Write,
            SendBy::Sendfile => Self::Sendfile,
            SendBy::Splice => Self::Splice,
            SendBy::Zerocopy => Self::Zerocopy,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReceiveBy {
    /// read(2) into memory
    Read,
    /// splice(2) through a pipe
    Splice,
}

impl From<ReceiveBy> for plan::ReceiveBy {
    fn from(receive: ReceiveBy) -> Self {
        match receive {
            ReceiveBy::Read => Self::Read,
            ReceiveBy::Splice => Self::Splice,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Medium {
    /// Memory of the process
    Memory,
    /// A file in memory
    Ramdisk,
    /// The file of --source-file or --sink-file
    File,
}

impl From<Medium> for plan::Medium {
    fn from(medium: Medium) -> Self {
        match medium {
            Medium::Memory => Self::Memory,
            Medium::Ramdisk => Self::Ramdisk,
            Medium::File => Self::File,
        }
    }
}

fn message(text: &str) -> Result<u32, String> {
    let size = bytes(text)?;
    u32::try_from(size)
        .ok()
        .filter(|size| *size <= MESSAGE_MAX)
        .ok_or_else(|| format!("at most {MESSAGE_MAX} bytes are possible"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Options {
        Options::parse_words(text).unwrap()
    }

    #[test]
    fn congestion_control_has_the_name_of_send_as_well() {
        assert_eq!(options("--cc bbr"), options("--congestion bbr"));
    }

    #[test]
    fn options_of_vs_are_laid_over_the_others() {
        let base = options("--engine tcp --streams 4 --bytes 1GiB --reverse");
        let over = options("--engine udt --time 3s").over(&base);
        let plan = over.plan();
        assert_eq!(
            (plan.engine, plan.streams, plan.reverse),
            (plan::Engine::Udt, 4, true)
        );
        assert_eq!(plan.limit, PathLimit::TimeMs(3000));
        assert_eq!(options("").over(&base), base);
        for bad in ["--engine ip", "--vs x", "host"] {
            assert!(Options::parse_words(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_way_of_sending_has_a_source_that_goes_with_it() {
        for way in ["write", "sendfile", "splice", "zerocopy"] {
            let plan = options(&format!("--send {way}")).plan();
            assert_eq!(plan.validate(), Ok(()), "{way}");
        }
    }
}
