//! The plan of a path measurement, the same for all engines: the client sends it, the server checks
//! it and takes part.

use haul::fault::{Code, Fault};
use haul_cc::Algorithm;
use serde::{Deserialize, Serialize};

use crate::plan::{self as verbs, Over};

/// The longest message, bytes.
pub const MESSAGE_MAX: u32 = 64 << 20;
/// The longest payload of a UDP datagram, bytes.
pub const DATAGRAM_MAX: u32 = 65_507;
/// The shortest datagram: its header.
pub const DATAGRAM_MIN: u32 = 32;
/// Parallel streams.
pub const STREAMS_MAX: u16 = 128;
/// Memory that messages go round in, of one stream, bytes.
pub const MEMORY_MAX: u64 = 1 << 30;
/// Most bytes per RDMA completion, so that figures over time are smooth; each longer message has
/// one.
const COMPLETION_BYTES: u32 = 256 << 10;
/// Memory of all streams of one end, bytes.
const TOTAL_MAX: u64 = 4 << 30;
/// The longest measurement, milliseconds.
const TIME_MS_MAX: u64 = 3_600_000;

/// What carries the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// The kernel's TCP.
    Tcp,
    /// Datagrams at a rate, without retransmission.
    Udp,
    /// Reliable UDP, with placement on arrival.
    Udt,
    /// RDMA over TCP.
    IwarpTcp,
    /// RDMA over UDT.
    IwarpUdt,
    /// RDMA by unreliable datagrams.
    Ud,
    /// RDMA by reliable datagrams.
    Rd,
}

impl Engine {
    /// The name on the command line and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Udt => "udt",
            Self::IwarpTcp => "iwarp-tcp",
            Self::IwarpUdt => "iwarp-udt",
            Self::Ud => "ud",
            Self::Rd => "rd",
        }
    }

    /// Returns whether [`PathPlan::message`] applies.
    #[must_use]
    pub const fn has_messages(self) -> bool {
        !matches!(self, Self::Udt)
    }

    /// The service, and the transport of connections, of RDMA engines.
    #[must_use]
    pub const fn verbs(self) -> Option<(verbs::Service, Option<Over>)> {
        match self {
            Self::Tcp | Self::Udp | Self::Udt => None,
            Self::IwarpTcp => Some((verbs::Service::Rc, Some(Over::Tcp))),
            Self::IwarpUdt => Some((verbs::Service::Rc, Some(Over::Udt))),
            Self::Ud => Some((verbs::Service::Ud, None)),
            Self::Rd => Some((verbs::Service::Rd, None)),
        }
    }
}

/// How TCP is given the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SendBy {
    /// `write(2)`: a copy into the kernel.
    #[default]
    Write,
    /// `sendfile(2)` from a file.
    Sendfile,
    /// `splice(2)` from a file, `vmsplice(2)` from memory.
    Splice,
    /// `MSG_ZEROCOPY` from memory.
    Zerocopy,
}

/// How TCP gives them back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReceiveBy {
    /// `read(2)` into memory, and from there to the sink.
    #[default]
    Read,
    /// `splice(2)` through a pipe.
    Splice,
}

/// Where bytes come from, and where they go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Medium {
    /// Memory of the process.
    #[default]
    Memory,
    /// A file that lies in memory.
    Ramdisk,
    /// A file of the end's own choice.
    File,
}

/// When a measurement is over.
pub use verbs::Limit;

/// The plan of a measurement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathPlan {
    /// What carries the bytes.
    pub engine: Engine,
    /// How TCP is given them.
    pub send_by: SendBy,
    /// How TCP gives them back.
    pub receive_by: ReceiveBy,
    /// Where they come from.
    pub source: Medium,
    /// Where they go.
    pub sink: Medium,
    /// The server sends.
    pub reverse: bool,
    /// The verb, of engines that are RDMA.
    pub op: verbs::Op,
    /// Bytes of a message: of a call for TCP, of a datagram for UDP, of a work request for RDMA.
    /// UDT has none.
    pub message: u32,
    /// Messages that may be outstanding: for RDMA and zero-copy sends.
    pub depth: u32,
    /// Memory that the messages of a stream go round in, bytes.
    pub memory: u64,
    /// Parallel streams, or queue pairs.
    pub streams: u16,
    /// Payload that is sent at most, by all streams together, bits per second.
    pub rate_bps: Option<u64>,
    /// When it is over; iterations are bytes of all streams together.
    pub limit: PathLimit,
    /// The beginning that does not count, milliseconds.
    pub omit_ms: u64,
    /// The interval of progress reports, milliseconds.
    pub interval_ms: u64,
    /// The congestion control: of the kernel's for TCP, of [`Algorithm::NAMED`] for UDT, where a
    /// declared rate needs none.
    pub congestion: Option<String>,
    /// Socket buffers that are asked for, bytes; else the system decides.
    pub buffer: Option<u32>,
    /// The kernel cuts and joins datagrams.
    pub gso: bool,
    /// How queue pairs of connected RDMA find each other.
    #[serde(default)]
    pub connect: verbs::Connect,
    /// It runs beside another measurement, as traffic that that one is to meet.
    #[serde(default)]
    pub beside: bool,
}

/// When a measurement of a path is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PathLimit {
    /// After so long, milliseconds.
    TimeMs(u64),
    /// After so many bytes.
    Bytes(u64),
}

impl PathPlan {
    /// Memory to memory for ten seconds, on one stream.
    #[must_use]
    pub fn new(engine: Engine) -> Self {
        let message = match engine {
            Engine::Tcp | Engine::Udt => 128 << 10,
            // Fits a packet of 1500 bytes with the headers of IPv6 and UDP.
            Engine::Udp => 1448,
            Engine::IwarpTcp | Engine::IwarpUdt | Engine::Ud | Engine::Rd => 64 << 10,
        };
        Self {
            engine,
            send_by: SendBy::Write,
            receive_by: ReceiveBy::Read,
            source: Medium::Memory,
            sink: Medium::Memory,
            reverse: false,
            op: if matches!(engine, Engine::Ud) {
                verbs::Op::WriteRecord
            } else {
                verbs::Op::Write
            },
            message,
            depth: 128,
            memory: 512 << 10,
            streams: 1,
            rate_bps: None,
            limit: PathLimit::TimeMs(10_000),
            omit_ms: 0,
            interval_ms: 1_000,
            congestion: None,
            buffer: None,
            gso: true,
            connect: verbs::Connect::Cm,
            beside: false,
        }
    }

    /// Checks everything that the other end may have made up, and that makes no sense together.
    ///
    /// # Errors
    /// [`Code::Usage`] with what is wrong.
    pub fn validate(&self) -> Result<(), Fault> {
        let within = |name: &str, value: u64, min: u64, max: u64| {
            if (min..=max).contains(&value) {
                return Ok(());
            }
            Err(usage(format!("{name} is {value}, not {min} to {max}")))
        };
        let (min, max) = match self.engine {
            Engine::Udp => (DATAGRAM_MIN, DATAGRAM_MAX),
            Engine::Tcp | Engine::Udt => (1, MESSAGE_MAX),
            _ => (1, verbs::SIZE_MAX),
        };
        within("the message", self.message.into(), min.into(), max.into())?;
        within(
            "the number of streams",
            self.streams.into(),
            1,
            STREAMS_MAX.into(),
        )?;
        within("the depth", self.depth.into(), 1, verbs::DEPTH_MAX.into())?;
        within("the memory", self.memory, 1, MEMORY_MAX)?;
        let each = self.round();
        if each.saturating_mul(self.streams.into()) > TOTAL_MAX {
            return Err(usage(
                "4 GiB of memory at each end are the most: ask for less memory or fewer streams",
            ));
        }
        within("the interval in ms", self.interval_ms, 100, 60_000)?;
        match self.limit {
            PathLimit::TimeMs(ms) => {
                within("the time in ms", ms, 1, TIME_MS_MAX)?;
                if self.omit_ms >= ms {
                    return Err(usage(
                        "all of the time is left out: measure longer than --omit",
                    ));
                }
            }
            PathLimit::Bytes(bytes) => within("the number of bytes", bytes, 1, u64::MAX >> 8)?,
        }
        if self
            .congestion
            .as_ref()
            .is_some_and(|name| name.is_empty() || name.len() > 15)
        {
            return Err(usage("a congestion control has a name of 1 to 15 letters"));
        }
        if self.engine == Engine::Udt
            && let Some(Err(error)) = self
                .congestion
                .as_ref()
                .map(|name| name.parse::<Algorithm>())
        {
            return Err(usage(error.to_string()));
        }
        self.validate_combination()
            .map_or(Ok(()), |text| Err(usage(text)))
    }

    fn validate_combination(&self) -> Option<&'static str> {
        let tcp = self.engine == Engine::Tcp;
        let verbs = self.engine.verbs().is_some();
        let memory = self.source == Medium::Memory;
        match self.send_by {
            SendBy::Sendfile | SendBy::Splice | SendBy::Zerocopy if !tcp => {
                return Some("only TCP has different ways of sending: leave --send out");
            }
            SendBy::Sendfile if memory => {
                return Some("sendfile sends files: add --source ramdisk or --source file");
            }
            SendBy::Zerocopy if !memory => {
                return Some("zerocopy sends memory: leave --source out, or send by sendfile");
            }
            _ => {}
        }
        match self.engine {
            _ if !tcp && self.receive_by == ReceiveBy::Splice => {
                Some("only TCP is received by splice: leave --receive out")
            }
            _ if !tcp && self.engine != Engine::Udt && self.congestion.is_some() => Some(
                "only TCP and UDT have a choice of congestion controls: leave --congestion out",
            ),
            Engine::Udt if self.congestion.is_some() && self.rate_bps.is_some() => Some(
                "a declared rate takes the place of a congestion control: leave one of them out",
            ),
            engine if !engine.has_messages() && self.message != Self::new(engine).message => {
                Some("UDT is a stream, without messages: leave --message out")
            }
            Engine::Udp if !memory || self.sink != Medium::Memory => {
                Some("datagrams may be lost: UDP goes from memory to memory")
            }
            Engine::Udp if matches!(self.limit, PathLimit::Bytes(_)) => {
                Some("UDP is measured for a time: leave --bytes out")
            }
            _ if verbs && matches!(self.limit, PathLimit::Bytes(_)) => {
                Some("RDMA is measured for a time: leave --bytes out")
            }
            _ if verbs && (self.source == Medium::Ramdisk || self.sink != Medium::Memory) => {
                Some("RDMA goes from memory to memory; for a file ask 'haul bench rdma --file'")
            }
            _ if verbs && self.source == Medium::File => {
                Some("RDMA goes from memory to memory; for a file ask 'haul bench rdma --file'")
            }
            _ if verbs && self.reverse => {
                Some("RDMA goes to the server: --op read has it come back")
            }
            _ if verbs && self.omit_ms > 0 => Some("RDMA warms up by itself: leave --omit out"),
            engine
                if self.connect == verbs::Connect::Exchange
                    && !matches!(engine.verbs(), Some((verbs::Service::Rc, _))) =>
            {
                Some("only RDMA over connections has a connection manager: leave --connect out")
            }
            Engine::Rd if self.rate_bps.is_some() => {
                Some("reliable datagrams find their rate by themselves: leave --rate out")
            }
            _ => None,
        }
    }

    /// Bytes that the messages of a stream go round in: as many whole messages as the memory holds,
    /// at least one.
    #[must_use]
    pub fn round(&self) -> u64 {
        let message = u64::from(self.message.max(1));
        (self.memory / message).max(1) * message
    }

    /// How long it sends, milliseconds; none where it sends so many bytes.
    #[must_use]
    pub fn time_ms(&self) -> Option<u64> {
        match self.limit {
            PathLimit::TimeMs(ms) => Some(ms),
            PathLimit::Bytes(_) => None,
        }
    }

    /// The rate of one stream, bits per second.
    #[must_use]
    pub fn stream_rate_bps(&self) -> Option<u64> {
        let streams = u64::from(self.streams.max(1));
        self.rate_bps.map(|rate| (rate / streams).max(1))
    }

    /// The same as a plan of verbs, of engines that are.
    #[must_use]
    pub fn to_verbs(&self) -> Option<verbs::Plan> {
        let (service, over) = self.engine.verbs()?;
        let depth = self.depth.clamp(1, verbs::DEPTH_MAX);
        let time_ms = self.time_ms()?;
        // Receives take 256 MiB at most, as those of `haul bench rdma`.
        let receives = ((256 << 20) / self.message.max(1)).max(depth.min(16));
        Some(verbs::Plan {
            service,
            op: self.op,
            test: verbs::Test::Bw,
            sizes: vec![self.message],
            depth,
            rx_depth: (4 * depth).min(receives).clamp(1, verbs::DEPTH_MAX),
            qps: self.streams.into(),
            bidirectional: false,
            limit: Limit::TimeMs(time_ms),
            post_list: 1,
            cq_mod: (depth / 4)
                .min(COMPLETION_BYTES / self.message.max(1))
                .max(1),
            inline: 0,
            outs: match self.op {
                verbs::Op::Read => u16::try_from(depth)
                    .unwrap_or(u16::MAX)
                    .min(verbs::OUTS_MAX),
                _ => 16,
            },
            verify: false,
            waiting: verbs::Waiting::Adaptive,
            connect: self.connect,
            remote_placement: false,
            file: None,
            wire: verbs::Wire {
                crc: true,
                fpdu_max: None,
                strict: false,
                over,
            },
            path_mtu: None,
            max_rate: self.stream_rate_bps().map(|bits| (bits / 8).max(1)),
            beside: self.beside,
        })
    }
}

fn usage(text: impl Into<String>) -> Fault {
    Fault::new(Code::Usage, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Engine; 7] = [
        Engine::Tcp,
        Engine::Udp,
        Engine::Udt,
        Engine::IwarpTcp,
        Engine::IwarpUdt,
        Engine::Ud,
        Engine::Rd,
    ];

    #[test]
    fn every_engine_has_a_plan_that_makes_sense() {
        for engine in ALL {
            let plan = PathPlan::new(engine);
            assert_eq!(plan.validate(), Ok(()), "{engine:?}");
            let verbs = plan.to_verbs();
            assert_eq!(verbs.is_some(), engine.verbs().is_some());
            if let Some(verbs) = verbs {
                assert_eq!(verbs.validate(), Ok(()), "{engine:?}");
            }
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let wrong = |engine, change: fn(&mut PathPlan)| {
            let mut plan = PathPlan::new(engine);
            change(&mut plan);
            plan.validate().unwrap_err().text
        };
        for (engine, change, text) in [
            (
                Engine::Tcp,
                (|p| p.message = 0) as fn(&mut PathPlan),
                "the message is 0",
            ),
            (Engine::Tcp, |p| p.streams = 0, "streams is 0"),
            (Engine::Tcp, |p| p.memory = u64::MAX, "the memory is"),
            (
                Engine::Tcp,
                |p| (p.message, p.streams) = (64 << 20, 128),
                "4 GiB",
            ),
            (
                Engine::Tcp,
                |p| p.limit = PathLimit::TimeMs(0),
                "time in ms is 0",
            ),
            (Engine::Tcp, |p| p.omit_ms = 10_000, "left out"),
            (
                Engine::Tcp,
                |p| p.congestion = Some("x".repeat(16)),
                "1 to 15 letters",
            ),
            (
                Engine::Tcp,
                |p| p.send_by = SendBy::Sendfile,
                "--source ramdisk",
            ),
            (
                Engine::Udt,
                |p| p.send_by = SendBy::Splice,
                "leave --send out",
            ),
            (Engine::Udt, |p| p.message = 1000, "leave --message out"),
            (
                Engine::Udt,
                |p| p.congestion = Some("bbr".into()),
                "no congestion control",
            ),
            (
                Engine::Udt,
                |p| (p.congestion, p.rate_bps) = (Some("bic".into()), Some(9)),
                "declared rate",
            ),
            (
                Engine::Rd,
                |p| p.congestion = Some("bic".into()),
                "only TCP and UDT",
            ),
            (Engine::Udp, |p| p.message = 31, "not 32 to"),
            (Engine::Udp, |p| p.source = Medium::File, "memory to memory"),
            (
                Engine::Rd,
                |p| p.limit = PathLimit::Bytes(5),
                "leave --bytes out",
            ),
            (Engine::IwarpUdt, |p| p.reverse = true, "--op read"),
            (Engine::Rd, |p| p.rate_bps = Some(9), "leave --rate out"),
            (
                Engine::Rd,
                |p| p.connect = verbs::Connect::Exchange,
                "leave --connect out",
            ),
        ] {
            let found = wrong(engine, change);
            assert!(found.contains(text), "{found}");
        }
    }

    #[test]
    fn messages_go_round_in_whole_messages() {
        let mut plan = PathPlan::new(Engine::Tcp);
        (plan.memory, plan.message) = (1000, 300);
        assert_eq!(plan.round(), 900);
        plan.message = 5000;
        assert_eq!(plan.round(), 5000);
    }
}
