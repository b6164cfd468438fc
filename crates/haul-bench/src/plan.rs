//! The plan of a measurement: the client sends it, the server checks it and takes part.

use haul::fault::{Code, Fault};
use serde::{Deserialize, Serialize};

/// The longest message, bytes (2^23, as in perftest).
pub const SIZE_MAX: u32 = 1 << 23;
/// Queue pairs of one bench.
pub const QPS_MAX: u32 = 16_384;
/// Work requests in a queue.
pub const DEPTH_MAX: u32 = 16_384;
/// Most reads that a queue pair may have outstanding (14 bits of RFC 6581, less the value for "not
/// negotiated").
pub const OUTS_MAX: u16 = 0x3ffe;
/// Work requests posted in one call.
pub const POST_LIST_MAX: u32 = 64;
/// Memory that one end registers, bytes.
const MEMORY_MAX: u64 = 8 << 30;
/// The longest Send of an unreliable datagram service, bytes (docs/protocol/datagram.md).
pub const UD_SEND_MAX: u32 = 1 << 20;
/// Without a reason for more, messages go round in so much memory: it stays in a processor's cache.
const CACHED: u32 = 64 << 10;
/// Neighbouring messages share no cache line.
const LINE: u32 = 64;

/// The verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// RDMA Write.
    Write,
    /// RDMA Read.
    Read,
    /// Send and receive.
    Send,
    /// RDMA Write-Record, which only datagram services have.
    WriteRecord,
}

/// The service of the queue pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    /// Reliable connections.
    #[default]
    Rc,
    /// Unreliable datagrams.
    Ud,
    /// Reliable datagrams.
    Rd,
}

/// The measured quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// Bytes and messages per second.
    Bw,
    /// The time of one message.
    Lat,
    /// The memory that connected, idle queue pairs take.
    Idle,
}

/// How queue pairs are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Connect {
    /// By the connection manager.
    #[default]
    Cm,
    /// By parameters exchanged over the control connection.
    Exchange,
}

/// How an end waits for completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Waiting {
    /// Polls for a moment, then sleeps.
    Adaptive,
    /// Polls without a limit.
    Poll,
    /// Sleeps until the completion channel is readable.
    Events,
}

/// When a measurement is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// After so long, milliseconds.
    TimeMs(u64),
    /// After so many messages on each queue pair.
    Iterations(u64),
}

/// The transport of connections of the software provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Over {
    /// TCP.
    Tcp,
    /// UDT.
    Udt,
}

/// Parameters for providers with a wire format of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wire {
    /// CRCs (RFC 5044 §4.4).
    pub crc: bool,
    /// The longest FPDU, bytes; the provider's own choice where there is none.
    pub fpdu_max: Option<u32>,
    /// Verify CRCs before anything is placed.
    pub strict: bool,
    /// The transport of connections; `None` leaves the choice to each end.
    #[serde(default)]
    pub over: Option<Over>,
}

/// The plan of a measurement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The service.
    pub service: Service,
    /// The verb.
    pub op: Op,
    /// The measured quantity.
    pub test: Test,
    /// Message sizes, bytes, one after another.
    pub sizes: Vec<u32>,
    /// Messages outstanding on each queue pair.
    pub depth: u32,
    /// Receives posted on each queue pair.
    pub rx_depth: u32,
    /// Queue pairs.
    pub qps: u32,
    /// Both ends send at the same time.
    pub bidirectional: bool,
    /// When each size is done.
    pub limit: Limit,
    /// Work requests posted in one call.
    pub post_list: u32,
    /// One of so many messages reports its completion.
    pub cq_mod: u32,
    /// Messages up to this length are copied when they are posted, bytes.
    pub inline: u32,
    /// Reads outstanding on each queue pair (IRD and ORD).
    pub outs: u16,
    /// Every byte is checked at the end it came to.
    pub verify: bool,
    /// How to wait.
    pub waiting: Waiting,
    /// How to connect.
    pub connect: Connect,
    /// Completions mean that the bytes are placed at the peer.
    pub remote_placement: bool,
    /// Bytes of the file that is sent instead of memory.
    pub file: Option<u64>,
    /// The wire format.
    pub wire: Wire,
    /// Bytes of an IP packet of a datagram service; `None` takes the route's MTU.
    pub path_mtu: Option<u16>,
    /// The most that an end sends over each queue pair, bytes per second: payload of unreliable
    /// datagrams, for connections, wire bytes.
    pub max_rate: Option<u64>,
    /// It runs beside another measurement, as traffic that that one is to meet.
    #[serde(default)]
    pub beside: bool,
}

/// Where messages lie in an end's memory region. Both ends have the same: a half that messages come
/// out of, a half that they go into, and a line for each queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    qps: u64,
    /// Messages of a queue pair in each half.
    pub(crate) slots: u64,
    stride: u64,
}

impl Plan {
    /// Checks every field of a plan, which the peer may have forged, and their combinations.
    ///
    /// # Errors
    /// [`Code::Usage`] with what is wrong.
    pub fn validate(&self) -> Result<(), Fault> {
        let range = |name: &str, value: u32, max: u32| {
            if (1..=max).contains(&value) {
                return Ok(());
            }
            Err(usage(format!("{name} is {value}, not 1 to {max}")))
        };
        if self.sizes.is_empty() || self.sizes.len() > 64 {
            return Err(usage("1 to 64 message sizes are possible"));
        }
        for size in &self.sizes {
            range("the size", *size, SIZE_MAX)?;
        }
        range("the number of queue pairs", self.qps, QPS_MAX)?;
        range("the depth", self.depth, DEPTH_MAX)?;
        range("the receive depth", self.rx_depth, DEPTH_MAX)?;
        range("the post list", self.post_list, POST_LIST_MAX)?;
        range("the completion moderation", self.cq_mod, self.depth)?;
        range(
            "the number of outstanding reads",
            self.outs.into(),
            OUTS_MAX.into(),
        )?;
        match self.limit {
            Limit::TimeMs(1..=3_600_000) => {}
            Limit::TimeMs(_) => return Err(usage("a time between 1 ms and 1 h is possible")),
            Limit::Iterations(0) => return Err(usage("without iterations nothing is measured")),
            Limit::Iterations(_) => {}
        }
        self.validate_combination()?;
        self.validate_service()?;
        self.layout().map(|_| ())
    }

    fn validate_combination(&self) -> Result<(), Fault> {
        let wrong = match self.test {
            Test::Lat if self.qps > 1 => Some("latency is measured on one queue pair"),
            Test::Lat if self.bidirectional => Some("latency is measured both ways already"),
            Test::Lat | Test::Idle if self.file.is_some() => {
                Some("a file has a bandwidth, nothing else")
            }
            _ if self.file.is_some() && self.bidirectional => Some("a file goes one way"),
            _ if self.file.is_some() && self.op == Op::Read => {
                Some("a file goes by write or by send")
            }
            _ if self.file.is_some() && self.sizes.len() > 1 => {
                Some("a file is sent in messages of one size")
            }
            _ if self.file == Some(0) => Some("the file is empty"),
            _ => None,
        };
        wrong.map_or(Ok(()), |text| Err(usage(text)))
    }

    fn validate_service(&self) -> Result<(), Fault> {
        let (op, connected) = (self.op, self.service == Service::Rc);
        let unreliable = self.service == Service::Ud;
        let wrong = match self.test {
            _ if connected && op == Op::WriteRecord => {
                Some("Write-Record is for datagram services: add --qp ud or --qp rd")
            }
            _ if connected && self.path_mtu.is_some() => {
                Some("only datagram services take a path MTU")
            }
            _ if self.max_rate == Some(0) => Some("nothing is sent at a rate of 0"),
            _ if self.service == Service::Rd && self.max_rate.is_some() => {
                Some("reliable datagrams find their rate by themselves, and take none")
            }
            _ if connected => None,
            _ if unreliable && op == Op::Write => {
                Some("nobody learns of a Write by unreliable datagrams: ask for --op write-record")
            }
            _ if self.file.is_some() => Some("a file goes over connections"),
            Test::Idle => Some("datagram services have nothing connected that could be idle"),
            _ if self.connect == Connect::Exchange => {
                Some("datagram services are not connected: leave --exchange out")
            }
            _ if self.remote_placement => Some("remote placement is for connections"),
            _ if !self.wire.crc => Some("datagrams always have a CRC"),
            _ if self.wire.fpdu_max.is_some() || self.wire.strict => {
                Some("FPDUs are for connections: datagrams take --path-mtu")
            }
            _ if unreliable && op == Op::Send && self.size_max() > UD_SEND_MAX => {
                Some("a Send by unreliable datagrams has 1 MiB at most")
            }
            _ => None,
        };
        wrong.map_or(Ok(()), |text| Err(usage(text)))
    }

    /// The longest message, bytes.
    pub(crate) fn size_max(&self) -> u32 {
        self.sizes.iter().copied().max().unwrap_or(1)
    }

    /// Whether the receiving end takes part in each message, so that the sender needs credit.
    pub(crate) fn is_notified(&self) -> bool {
        self.op == Op::Send && self.service != Service::Ud || self.file.is_some()
    }

    /// Receives posted again before the sender gets credit for them.
    pub(crate) fn credit_batch(&self) -> u32 {
        (self.rx_depth / 4).max(1)
    }

    /// Most credit messages in flight.
    pub(crate) fn credits_in_flight(&self) -> u32 {
        self.rx_depth / self.credit_batch() + 1
    }

    /// Room for work requests in the send queue.
    pub(crate) fn send_queue(&self) -> u32 {
        let per_message = if self.file.is_some() { 2 } else { 1 };
        self.depth * per_message + self.credits_in_flight() + 2
    }

    /// Room for work requests in the receive queue.
    pub(crate) fn receive_queue(&self) -> u32 {
        match self.test {
            // One is posted again only when the answer is in flight.
            Test::Lat if self.service == Service::Ud => self.rx_depth + 1,
            _ if self.service == Service::Ud => self.rx_depth,
            Test::Bw if !self.is_notified() => 1,
            Test::Idle => self.rx_depth,
            _ => self.rx_depth + self.credits_in_flight(),
        }
    }

    /// Where messages lie.
    pub(crate) fn layout(&self) -> Result<Layout, Fault> {
        let stride = self.size_max().next_multiple_of(LINE);
        let deepest = self.depth.max(self.receive_queue());
        let slots = if self.verify || self.file.is_some() {
            deepest
        } else {
            (CACHED / stride).clamp(1, deepest)
        };
        let layout = Layout {
            qps: self.qps.into(),
            slots: slots.into(),
            stride: stride.into(),
        };
        let len = layout.len();
        if len > MEMORY_MAX {
            return Err(usage(format!(
                "{} MiB of memory at each end are too much; ask for less depth or fewer queue pairs",
                len >> 20
            )));
        }
        Ok(layout)
    }

    /// The length of message `number` of the file, bytes; zero behind its end.
    pub(crate) fn file_piece(&self, number: u64) -> u32 {
        let size = u64::from(self.size_max());
        let Some(bytes) = self.file else { return 0 };
        let left = bytes.saturating_sub(number.saturating_mul(size));
        u32::try_from(left.min(size)).unwrap_or(0)
    }

    /// How many messages of the file go over queue pair `qp`: they are dealt out.
    pub(crate) fn file_messages(&self, qp: u64) -> u64 {
        let size = u64::from(self.size_max());
        let messages = self.file.unwrap_or(0).div_ceil(size);
        messages
            .saturating_sub(qp)
            .div_ceil(u64::from(self.qps).max(1))
    }
}

impl Layout {
    /// Bytes.
    pub(crate) fn len(&self) -> u64 {
        2 * self.half() + self.qps * u64::from(LINE)
    }

    /// Where message `number` of queue pair `qp` comes from.
    pub(crate) fn from(&self, qp: u64, number: u64) -> u64 {
        (qp * self.slots + number % self.slots) * self.stride
    }

    /// Where it goes to.
    pub(crate) fn to(&self, qp: u64, number: u64) -> u64 {
        self.half() + self.from(qp, number)
    }

    /// A line of the queue pair's own.
    pub(crate) fn line(&self, qp: u64) -> u64 {
        2 * self.half() + qp * u64::from(LINE)
    }

    fn half(&self) -> u64 {
        self.qps * self.slots * self.stride
    }
}

fn usage(text: impl Into<String>) -> Fault {
    Fault::new(Code::Usage, text)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn plan() -> Plan {
        Plan {
            service: Service::Rc,
            op: Op::Write,
            test: Test::Bw,
            sizes: vec![65_536],
            depth: 128,
            rx_depth: 128,
            qps: 1,
            bidirectional: false,
            limit: Limit::TimeMs(1000),
            post_list: 1,
            cq_mod: 1,
            inline: 0,
            outs: 16,
            verify: false,
            waiting: Waiting::Adaptive,
            connect: Connect::Cm,
            remote_placement: false,
            file: None,
            wire: Wire {
                crc: true,
                fpdu_max: None,
                strict: false,
                over: None,
            },
            path_mtu: None,
            max_rate: None,
            beside: false,
        }
    }

    #[test]
    fn a_plan_that_makes_no_sense_is_refused_with_the_reason() {
        assert_eq!(plan().validate(), Ok(()));
        type Change = fn(&mut Plan);
        let wrong: [(&str, Change); 12] = [
            ("size is 0", |plan| plan.sizes = vec![0]),
            ("size is 8388609", |plan| plan.sizes = vec![SIZE_MAX + 1]),
            ("message sizes", |plan| plan.sizes.clear()),
            ("depth is 0", |plan| plan.depth = 0),
            ("queue pairs is 4294967295", |plan| plan.qps = u32::MAX),
            ("post list is 65", |plan| plan.post_list = 65),
            ("moderation is 129", |plan| plan.cq_mod = 129),
            ("time", |plan| plan.limit = Limit::TimeMs(0)),
            ("iterations", |plan| plan.limit = Limit::Iterations(0)),
            ("one queue pair", |plan| {
                plan.test = Test::Lat;
                plan.qps = 2;
            }),
            ("by write or by send", |plan| {
                plan.op = Op::Read;
                plan.file = Some(1);
            }),
            ("too much", |plan| {
                plan.sizes = vec![SIZE_MAX];
                plan.depth = DEPTH_MAX;
                plan.verify = true;
            }),
        ];
        for (text, change) in wrong {
            let mut plan = plan();
            change(&mut plan);
            let fault = plan.validate().unwrap_err();
            assert!(fault.text.contains(text), "{text}: {fault}");
        }
    }

    #[test]
    fn every_service_has_its_verbs_and_is_refused_others() {
        let of = |service, op| Plan {
            service,
            op,
            ..plan()
        };
        for op in [Op::Send, Op::WriteRecord, Op::Read] {
            assert_eq!(of(Service::Ud, op).validate(), Ok(()));
            assert_eq!(of(Service::Rd, op).validate(), Ok(()));
        }
        assert_eq!(of(Service::Rd, Op::Write).validate(), Ok(()));
        type Change = fn(&mut Plan);
        let wrong: [(&str, Service, Op, Change); 11] = [
            ("--op write-record", Service::Ud, Op::Write, |_| {}),
            ("--qp ud", Service::Rc, Op::WriteRecord, |_| {}),
            ("path MTU", Service::Rc, Op::Send, |plan| {
                plan.path_mtu = Some(1500);
            }),
            ("and take none", Service::Rd, Op::Send, |plan| {
                plan.max_rate = Some(1);
            }),
            ("rate of 0", Service::Ud, Op::Send, |plan| {
                plan.max_rate = Some(0);
            }),
            ("1 MiB at most", Service::Ud, Op::Send, |plan| {
                plan.sizes = vec![UD_SEND_MAX + 1];
            }),
            ("over connections", Service::Rd, Op::Send, |plan| {
                plan.file = Some(1);
            }),
            ("idle", Service::Ud, Op::Send, |plan| plan.test = Test::Idle),
            ("--exchange", Service::Rd, Op::Send, |plan| {
                plan.connect = Connect::Exchange;
            }),
            ("always have a CRC", Service::Ud, Op::Send, |plan| {
                plan.wire.crc = false;
            }),
            ("--path-mtu", Service::Ud, Op::Send, |plan| {
                plan.wire.fpdu_max = Some(1024);
            }),
        ];
        for (text, service, op, change) in wrong {
            let mut plan = of(service, op);
            change(&mut plan);
            let fault = plan.validate().unwrap_err();
            assert!(fault.text.contains(text), "{text}: {fault}");
        }
    }

    #[test]
    fn messages_lie_apart_and_inside() {
        let mut plan = plan();
        plan.sizes = vec![1, 100];
        plan.qps = 3;
        plan.depth = 4;
        plan.cq_mod = 1;
        plan.rx_depth = 5;
        plan.verify = true;
        let layout = plan.layout().unwrap();
        let mut at = Vec::new();
        for qp in 0..3 {
            at.extend((0..layout.slots).map(|number| layout.from(qp, number)));
            at.extend((0..layout.slots).map(|number| layout.to(qp, number)));
            at.push(layout.line(qp));
        }
        at.sort_unstable();
        for pair in at.windows(2) {
            assert!(pair[1] - pair[0] >= 64, "{at:?}");
        }
        assert!(at.last().unwrap() + 64 <= layout.len());
        assert_eq!(layout.from(1, 0), layout.from(1, layout.slots));
    }

    #[test]
    fn a_file_is_dealt_out_whole() {
        let mut plan = plan();
        plan.sizes = vec![1000];
        for (bytes, qps) in [(1, 1), (1, 3), (999, 2), (1000, 2), (12_345, 4), (3000, 3)] {
            plan.file = Some(bytes);
            plan.qps = qps;
            let mut sum = 0;
            for qp in 0..u64::from(qps) {
                for turn in 0..plan.file_messages(qp) {
                    let piece = plan.file_piece(turn * u64::from(qps) + qp);
                    assert!(piece > 0);
                    sum += u64::from(piece);
                }
            }
            assert_eq!(sum, bytes, "{bytes} over {qps}");
        }
    }
}
