//! The figures of one run, in one form for all engines.

use haul::fault::{Code, Fault};
use haul_report::stats::jain;
use serde::{Deserialize, Serialize};

use super::account::{Account, Received, Sent};
use super::meter::{Hardware, Spent};
use super::plan::{Engine, PathPlan};
use super::tally::STEP;
use crate::plan::Op;
use crate::report::{Cpu, Figure, Row};

/// A shorter measurement is mostly its beginning, seconds.
const SHORT_S: f64 = 0.5;

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Which part of the occasion it belongs to; empty where there are none.
    #[serde(default)]
    pub section: String,
    /// The setting that it was made with.
    #[serde(default)]
    pub setting: String,
    /// Which repetition, from 0.
    #[serde(default)]
    pub repetition: u32,
    /// The other traffic, in words, and its amount.
    #[serde(default)]
    pub beside: Option<Beside>,
    /// The plan.
    pub plan: PathPlan,
    /// From the first arrival to the last, or the requested time, without the omitted beginning.
    /// For TCP with an omitted beginning, by the sender's clock.
    pub seconds: f64,
    /// Payload that arrived in that time.
    pub bytes: u64,
    /// Both, in bits per second.
    pub goodput_bps: f64,
    /// Bytes that arrived in each interval since the first arrival. For RDMA, bytes complete at the
    /// requester since the first post; none for unreliable datagrams.
    pub intervals: Vec<Interval>,
    /// Bytes of each stream, over all the time.
    pub stream_bytes: Vec<u64>,
    /// Jain's index of these, where there are several.
    pub fairness: Option<f64>,
    /// Messages per second, of RDMA.
    pub messages_per_s: Option<f64>,
    /// The path as the sender saw it.
    pub path: PathView,
    /// Of datagrams.
    pub datagrams: Option<Lost>,
    /// The sending end.
    pub sender: End,
    /// The receiving end.
    pub receiver: End,
    /// Its limit.
    pub verdict: Verdict,
    /// Why a figure is not to be trusted.
    pub warnings: Vec<String>,
}

/// The other traffic.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Beside {
    /// In words.
    pub what: String,
    /// How much of it: flows, bits per second, a share.
    pub level: f64,
    /// The goodput of the other traffic, bits per second, if known.
    pub goodput_bps: Option<f64>,
}

/// Bytes that arrived in a span of time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Seconds since the first arrival.
    pub start_s: f64,
    /// Seconds since the first arrival.
    pub end_s: f64,
    /// Bytes that arrived in between.
    pub bytes: u64,
}

impl Interval {
    /// Bits per second.
    #[must_use]
    pub fn goodput_bps(&self) -> f64 {
        rate(self.bytes, self.end_s - self.start_s)
    }
}

/// The sender's view of the path; values that its engine does not measure are absent.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PathView {
    /// Smoothed round-trip time at the end.
    pub rtt_ms: Option<f64>,
    /// The least of it.
    pub rtt_min_ms: Option<f64>,
    /// Payload retransmitted, bytes.
    pub retransmitted_bytes: Option<u64>,
    /// Of the time with something to send, what the receiver's window took, percent.
    pub receiver_limited_percent: Option<f64>,
    /// The same of the sender's buffer.
    pub buffer_limited_percent: Option<f64>,
    /// Zero-copy sends that the kernel copied after all, percent.
    pub copied_percent: Option<f64>,
    /// Of the streams' time, what they waited for the source's file, percent.
    pub source_percent: Option<f64>,
    /// The same of the sink's.
    pub sink_percent: Option<f64>,
    /// Until the sink's file was on its disk, after the last arrival.
    pub flush_s: Option<f64>,
    /// Once an interval.
    pub samples: Vec<PathSample>,
}

/// The path at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PathSample {
    /// Seconds since the start.
    pub at_s: f64,
    /// Smoothed round-trip time.
    pub rtt_ms: f64,
    /// The congestion window (TCP), or data in flight (UDT), bytes.
    pub window_bytes: u64,
    /// Payload retransmitted so far, bytes.
    pub retransmitted_bytes: u64,
}

/// The outcome of datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Lost {
    /// They were sent.
    pub sent: u64,
    /// They came.
    pub received: u64,
    /// The others.
    pub lost: u64,
    /// Divided by the sent datagrams.
    pub lost_percent: f64,
    /// They came after one that was sent later.
    pub late: u64,
    /// Mean deviation of the delay (RFC 3550 §6.4.1).
    pub jitter_ms: f64,
    /// The receiver's kernel dropped them: its buffer was full.
    pub kernel_drops: u64,
}

/// Resources that one end used. Percentages are of one core, unless stated otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// Seconds of the process in user code.
    pub cpu_user_s: f64,
    /// Seconds in the kernel on its behalf.
    pub cpu_system_s: f64,
    /// Both, for each 10^9 bytes that arrived.
    pub cpu_s_per_gb: Option<f64>,
    /// User time.
    pub user_percent: f64,
    /// Kernel time.
    pub system_percent: f64,
    /// The busiest thread of data.
    pub thread_percent: Option<f64>,
    /// Interrupts, of the whole machine.
    pub irq_percent: Option<f64>,
    /// The kernel's interrupt work, of the whole machine.
    pub softirq_percent: Option<f64>,
    /// Processors of the machine that were busy, percent of all. Both ends' where they are on one
    /// machine.
    pub machine_percent: Option<f64>,
    /// Of that, this end's process, percent of all.
    pub machine_own_percent: Option<f64>,
    /// Context switches per second, to wait for something.
    pub voluntary_per_s: Option<f64>,
    /// Context switches per second, because others were to run.
    pub involuntary_per_s: Option<f64>,
    /// The processor's counters.
    pub counters: Option<Hardware>,
    /// Why there are none.
    pub no_counters: Option<String>,
}

/// The stages that bytes go through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Reading the source's file.
    SourceDisk,
    /// The sender's processor.
    SenderCpu,
    /// The rate that was asked for.
    Rate,
    /// Buffers and windows at the ends.
    Window,
    /// The path between the hosts.
    #[default]
    Path,
    /// The receiver's processor.
    ReceiverCpu,
    /// Writing the sink's file.
    SinkDisk,
}

impl Stage {
    /// In words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SourceDisk => "source disk",
            Self::SenderCpu => "sender CPU",
            Self::Rate => "the rate asked for",
            Self::Window => "window",
            Self::Path => "path",
            Self::ReceiverCpu => "receiver CPU",
            Self::SinkDisk => "sink disk",
        }
    }
}

/// The limit of a run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Verdict {
    /// The stage.
    pub stage: Stage,
    /// The evidence.
    pub why: String,
    /// The remedy.
    pub advice: String,
}

impl Run {
    /// The reports of both ends, before the verdict.
    pub(crate) fn of(plan: &PathPlan, sender: &Account, receiver: &Account) -> Result<Self, Fault> {
        let (Some(sent), Some(received)) = (&sender.sent, &receiver.received) else {
            return Err(Fault::protocol("the server has no account of its part"));
        };
        let counted = Counted::of(plan, sent, received);
        let streams = if received.streams.len() > 1 {
            received.streams.clone()
        } else {
            Vec::new()
        };
        let shares: Vec<f64> = received
            .streams
            .iter()
            .map(|bytes| to_f64(*bytes))
            .collect();
        Ok(Self {
            section: String::new(),
            setting: String::new(),
            repetition: 0,
            beside: None,
            seconds: counted.seconds,
            bytes: counted.bytes,
            goodput_bps: rate(counted.bytes, counted.seconds),
            intervals: intervals(plan, &received.steps, to_f64(received.ns) / 1e9),
            fairness: if streams.is_empty() {
                None
            } else {
                jain(&shares)
            },
            stream_bytes: streams,
            messages_per_s: None,
            path: path_view(plan, sent, received, sender, receiver),
            datagrams: lost(sent, received),
            sender: End::of(&sender.spent, received.bytes),
            receiver: End::of(&receiver.spent, received.bytes),
            verdict: Verdict::default(),
            warnings: warnings(&counted, sent),
            plan: plan.clone(),
        })
    }

    /// The result of a verbs benchmark, before the verdict.
    pub(crate) fn of_verbs(plan: &PathPlan, row: &Row) -> Result<Self, Fault> {
        let Figure::Bandwidth(bandwidth) = &row.figure else {
            return Err(Fault::new(
                Code::Other,
                "the bench of the verbs measured no bandwidth",
            ));
        };
        let (sender, receiver) = match plan.op {
            Op::Read => (&row.server, &row.client),
            _ => (&row.client, &row.server),
        };
        Ok(Self {
            section: String::new(),
            setting: String::new(),
            repetition: 0,
            beside: None,
            plan: plan.clone(),
            seconds: bandwidth.seconds,
            bytes: bandwidth.total_bytes,
            goodput_bps: bandwidth.bw_average_gbps * 1e9,
            intervals: intervals(plan, &row.steps, bandwidth.seconds),
            stream_bytes: Vec::new(),
            fairness: None,
            messages_per_s: Some(bandwidth.message_rate_mps * 1e6),
            path: PathView {
                rtt_ms: row.path.map(|seen| seen.rtt_ms),
                retransmitted_bytes: row.path.map(|seen| seen.resent_bytes),
                ..PathView::default()
            },
            datagrams: row.datagram.as_ref().map(|datagram| Lost {
                sent: datagram.sent_messages,
                received: datagram.complete_messages + datagram.partial_messages,
                lost: datagram.lost_messages,
                lost_percent: 100.0 - datagram.valid_percent,
                late: 0,
                jitter_ms: 0.0,
                kernel_drops: datagram.kernel_drops,
            }),
            sender: End::of_verbs(sender),
            receiver: End::of_verbs(receiver),
            verdict: Verdict::default(),
            warnings: row.warnings.clone(),
        })
    }

    /// Payload retransmitted, percent of the payload that arrived; both over the whole run.
    #[must_use]
    pub fn retransmitted_percent(&self) -> Option<f64> {
        let again = self.path.retransmitted_bytes?;
        let all = self.intervals.iter().map(|one| one.bytes);
        let all = all.fold(0, u64::saturating_add).max(self.bytes);
        Some(100.0 * to_f64(again) / to_f64(all.max(1)))
    }
}

impl End {
    fn of(spent: &Spent, bytes: u64) -> Self {
        let seconds = to_f64(spent.wall_us.max(1)) / 1e6;
        let percent = |us: u64| 100.0 * to_f64(us) / 1e6 / seconds;
        let cpu = to_f64(spent.user_us.saturating_add(spent.system_us)) / 1e6;
        let machine = &spent.machine;
        Self {
            cpu_user_s: to_f64(spent.user_us) / 1e6,
            cpu_system_s: to_f64(spent.system_us) / 1e6,
            cpu_s_per_gb: (bytes > 0).then(|| cpu * 1e9 / to_f64(bytes)),
            user_percent: percent(spent.user_us),
            system_percent: percent(spent.system_us),
            thread_percent: Some(percent(spent.thread_us)),
            irq_percent: Some(percent(machine.irq_us)),
            softirq_percent: Some(percent(machine.softirq_us)),
            machine_percent: (machine.cores > 0)
                .then(|| (percent(machine.busy_us) / f64::from(machine.cores)).min(100.0)),
            machine_own_percent: (machine.cores > 0).then(|| {
                percent(spent.user_us.saturating_add(spent.system_us)) / f64::from(machine.cores)
            }),
            voluntary_per_s: Some(to_f64(spent.voluntary) / seconds),
            involuntary_per_s: Some(to_f64(spent.involuntary) / seconds),
            counters: spent.counters,
            no_counters: spent
                .no_counters
                .as_ref()
                .map(|why| haul::printable(why.as_bytes())),
        }
    }

    fn of_verbs(cpu: &Cpu) -> Self {
        Self {
            cpu_user_s: cpu.cpu_user_s,
            cpu_system_s: cpu.cpu_system_s,
            cpu_s_per_gb: cpu.cpu_s_per_gb,
            user_percent: cpu.user_percent,
            system_percent: cpu.system_percent,
            thread_percent: None,
            irq_percent: None,
            softirq_percent: None,
            machine_percent: None,
            machine_own_percent: None,
            voluntary_per_s: None,
            involuntary_per_s: None,
            counters: None,
            no_counters: Some("not counted in benches of RDMA".into()),
        }
    }

    /// User and kernel time, percent of one core.
    #[must_use]
    pub fn percent(&self) -> f64 {
        self.user_percent + self.system_percent
    }
}

/// The span that counts: without the omitted beginning, and without arrivals after the requested
/// time.
struct Counted {
    bytes: u64,
    seconds: f64,
    /// No data arrived after the omitted beginning.
    nothing_left: bool,
}

impl Counted {
    fn of(plan: &PathPlan, sent: &Sent, received: &Received) -> Self {
        match &sent.acknowledged {
            Some(acknowledged) if plan.omit_ms > 0 && plan.engine == Engine::Tcp => Self {
                bytes: acknowledged.bytes.min(sent.bytes),
                seconds: to_f64(acknowledged.ns.get()) / 1e9,
                nothing_left: false,
            },
            _ => Self::received(plan, received),
        }
    }

    /// As the receiver counts.
    fn received(plan: &PathPlan, received: &Received) -> Self {
        let step_ms = u64::try_from(STEP.as_millis()).unwrap_or(1).max(1);
        let steps = |ms: u64| usize::try_from(ms / step_ms).unwrap_or(usize::MAX);
        let seconds = |steps: usize| to_f64(steps as u64 * step_ms) / 1e3;
        let all = to_f64(received.ns) / 1e9;
        let skip = steps(plan.omit_ms);
        let nothing_left = skip > 0 && seconds(skip) >= all;
        let skip = if nothing_left { 0 } else { skip };
        // Data that arrives after the sender has stopped was queued on the path, for some streams
        // and not for others.
        let end = plan.time_ms().map(steps);
        let end = end.filter(|end| *end > skip && seconds(*end) < all);
        let before = |step: usize| sum(&received.steps[..step.min(received.steps.len())]);
        let until = end.map_or(received.bytes, before);
        Self {
            bytes: until.saturating_sub(before(skip)),
            seconds: end.map_or(all, seconds) - seconds(skip),
            nothing_left,
        }
    }
}

fn warnings(counted: &Counted, sent: &Sent) -> Vec<String> {
    let mut warnings = Vec::new();
    if counted.nothing_left {
        warnings.push("it was over before what --omit leaves out: all of it counts".into());
    }
    if counted.bytes == 0 {
        warnings.push("nothing arrived".into());
    } else if counted.seconds < SHORT_S {
        warnings.push(format!("only {:.2} s long", counted.seconds));
    }
    if sent.copied_per_mille.is_some_and(|share| share > 500) {
        warnings
            .push("the kernel made copies of most zero-copy sends, as it does on loopback".into());
    }
    warnings
}

fn intervals(plan: &PathPlan, counts: &[u64], end_of_all: f64) -> Vec<Interval> {
    let step_ms = u64::try_from(STEP.as_millis()).unwrap_or(1).max(1);
    let steps = usize::try_from(plan.interval_ms.div_ceil(step_ms))
        .unwrap_or(1)
        .max(1);
    let step_s = STEP.as_secs_f64();
    let spans = counts.chunks(steps).enumerate();
    let interval = |(index, counts): (usize, &[u64])| {
        let start_s = to_f64((index * steps) as u64) * step_s;
        let end_s = start_s + to_f64(counts.len() as u64) * step_s;
        Interval {
            start_s,
            end_s: end_s.min(end_of_all.max(start_s + 1e-6)),
            bytes: sum(counts),
        }
    };
    spans.map(interval).collect()
}

fn path_view(
    plan: &PathPlan,
    sent: &Sent,
    received: &Received,
    sender: &Account,
    receiver: &Account,
) -> PathView {
    let reliable = plan.engine != Engine::Udp;
    let share = |per_mille: Option<u32>| per_mille.map(|share| f64::from(share) / 10.0);
    let of_streams = |ns: u64, spent: &Spent| {
        let time = to_f64(spent.wall_us) * 1e3 * f64::from(plan.streams);
        (ns > 0).then(|| 100.0 * to_f64(ns) / time.max(1.0))
    };
    let last = sent.samples.last();
    let ms = |us: u32| (us > 0).then(|| f64::from(us) / 1e3);
    PathView {
        rtt_ms: last.and_then(|sample| ms(sample.rtt_us)),
        rtt_min_ms: last.and_then(|sample| ms(sample.rtt_us_min)),
        retransmitted_bytes: reliable.then_some(sent.retransmitted),
        receiver_limited_percent: share(sent.receiver_limited_per_mille),
        buffer_limited_percent: share(sent.buffer_limited_per_mille),
        copied_percent: share(sent.copied_per_mille),
        source_percent: of_streams(sent.source_ns, &sender.spent),
        sink_percent: of_streams(
            received.sink_ns.saturating_add(received.flush_ns),
            &receiver.spent,
        ),
        flush_s: (received.flush_ns > 0).then(|| to_f64(received.flush_ns) / 1e9),
        samples: if reliable {
            let sample = |sample: &super::account::Sample| PathSample {
                at_s: to_f64(sample.at_ms) / 1e3,
                rtt_ms: f64::from(sample.rtt_us) / 1e3,
                window_bytes: sample.window,
                retransmitted_bytes: sample.retransmitted,
            };
            sent.samples.iter().map(sample).collect()
        } else {
            Vec::new()
        },
    }
}

fn lost(sent: &Sent, received: &Received) -> Option<Lost> {
    let counted = received.datagrams?;
    let lost = sent.datagrams.saturating_sub(counted.received);
    Some(Lost {
        sent: sent.datagrams,
        received: counted.received,
        lost,
        lost_percent: 100.0 * to_f64(lost) / to_f64(sent.datagrams.max(1)),
        late: counted.late,
        jitter_ms: to_f64(counted.jitter_ns) / 1e6,
        kernel_drops: counted.kernel_drops,
    })
}

/// A peer's counts may be anything.
fn sum(counts: &[u64]) -> u64 {
    counts.iter().copied().fold(0, u64::saturating_add)
}

fn rate(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        to_f64(bytes) * 8.0 / seconds
    } else {
        0.0
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
pub(crate) fn to_f64(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
pub(crate) mod tests {
    use std::num::NonZeroU64;

    use super::*;
    use crate::path::account::{Acknowledged, Datagrams};
    use crate::path::plan::PathLimit;

    /// A run of a second at a gigabit, limited by nothing that shows.
    pub(crate) fn run(engine: Engine) -> Run {
        let (sender, receiver) = accounts();
        Run::of(&PathPlan::new(engine), &sender, &receiver)
            .unwrap()
            .judged()
    }

    fn accounts() -> (Account, Account) {
        let spent = Spent {
            wall_us: 1_000_000,
            user_us: 100_000,
            system_us: 200_000,
            thread_us: 250_000,
            ..Spent::default()
        };
        let sent = Sent {
            bytes: 125_000_000,
            ..Sent::default()
        };
        let received = Received {
            bytes: 125_000_000,
            ns: 1_000_000_000,
            steps: vec![12_500_000; 10],
            streams: vec![125_000_000],
            ..Received::default()
        };
        let sender = Account {
            spent: spent.clone(),
            sent: Some(sent),
            received: None,
        };
        let receiver = Account {
            spent,
            sent: None,
            received: Some(received),
        };
        (sender, receiver)
    }

    #[test]
    fn goodput_is_what_arrived_over_the_time_of_arrivals() {
        let run = run(Engine::Tcp);
        assert_eq!(
            (run.goodput_bps, run.seconds, run.intervals.len()),
            (1e9, 1.0, 1)
        );
        assert!((run.sender.percent() - 30.0).abs() < 1e-9);
        assert!((run.sender.cpu_s_per_gb.unwrap() - 2.4).abs() < 1e-9);
        assert_eq!(run.fairness, None);
    }

    #[test]
    fn what_is_left_out_does_not_count() {
        let (sender, mut receiver) = accounts();
        let received = receiver.received.as_mut().unwrap();
        received.steps = vec![
            0, 0, 0, 0, 0, 25_000_000, 25_000_000, 25_000_000, 25_000_000, 25_000_000,
        ];
        let mut plan = PathPlan::new(Engine::Tcp);
        plan.omit_ms = 500;
        let run = Run::of(&plan, &sender, &receiver).unwrap();
        assert_eq!(
            (run.bytes, run.seconds, run.goodput_bps),
            (125_000_000, 0.5, 2e9)
        );
        plan.limit = PathLimit::TimeMs(900);
        let run = Run::of(&plan, &sender, &receiver).unwrap();
        assert_eq!((run.bytes, run.goodput_bps), (100_000_000, 2e9));
        plan.limit = PathLimit::TimeMs(60_000);
        plan.omit_ms = 5_000;
        let run = Run::of(&plan, &sender, &receiver).unwrap();
        assert_eq!(run.bytes, 125_000_000);
        assert!(run.warnings[0].contains("--omit"), "{:?}", run.warnings);
    }

    #[test]
    fn tcp_without_its_beginning_is_what_was_acknowledged() {
        let (mut sender, receiver) = accounts();
        let acknowledged = |bytes| {
            Some(Acknowledged {
                bytes,
                ns: NonZeroU64::new(500_000_000).unwrap(),
            })
        };
        let figure = |plan: &PathPlan, sender: &Account| {
            let run = Run::of(plan, sender, &receiver).unwrap();
            (run.bytes, run.seconds)
        };
        let mut plan = PathPlan::new(Engine::Tcp);
        sender.sent.as_mut().unwrap().acknowledged = acknowledged(50_000_000);
        assert_eq!(figure(&plan, &sender), (125_000_000, 1.0));
        plan.omit_ms = 500;
        assert_eq!(figure(&plan, &sender), (50_000_000, 0.5));
        // Where arrivals are counted in any order, the receiver knows best.
        plan.engine = Engine::Udt;
        assert_eq!(figure(&plan, &sender), (62_500_000, 0.5));
        // No more than was sent.
        plan.engine = Engine::Tcp;
        sender.sent.as_mut().unwrap().acknowledged = acknowledged(u64::MAX);
        assert_eq!(figure(&plan, &sender), (125_000_000, 0.5));
    }

    #[test]
    fn intervals_add_up_and_the_last_ends_with_the_last_arrival() {
        let (sender, mut receiver) = accounts();
        let received = receiver.received.as_mut().unwrap();
        (received.ns, received.steps) = (1_250_000_000, vec![10; 13]);
        let mut plan = PathPlan::new(Engine::Tcp);
        plan.interval_ms = 500;
        let run = Run::of(&plan, &sender, &receiver).unwrap();
        let ends: Vec<_> = run
            .intervals
            .iter()
            .map(|one| (one.end_s * 1e3).round())
            .collect();
        assert_eq!(ends, [500.0, 1000.0, 1250.0]);
        assert_eq!(run.intervals.iter().map(|one| one.bytes).sum::<u64>(), 130);
    }

    #[test]
    fn datagrams_that_did_not_come_are_lost() {
        let (mut sender, mut receiver) = accounts();
        sender.sent.as_mut().unwrap().datagrams = 1000;
        receiver.received.as_mut().unwrap().datagrams = Some(Datagrams {
            received: 990,
            ..Datagrams::default()
        });
        let run = Run::of(&PathPlan::new(Engine::Udp), &sender, &receiver).unwrap();
        let lost = run.datagrams.unwrap();
        assert_eq!((lost.lost, lost.lost_percent), (10, 1.0));
        assert_eq!(run.path.retransmitted_bytes, None);
    }

    #[test]
    fn a_run_is_read_as_it_was_written() {
        let run = run(Engine::Udt);
        let text = serde_json::to_string(&run).unwrap();
        assert_eq!(serde_json::from_str::<Run>(&text).unwrap(), run);
    }

    #[test]
    fn an_end_without_an_account_is_at_fault() {
        let (sender, _) = accounts();
        let fault = Run::of(&PathPlan::new(Engine::Tcp), &sender, &sender).unwrap_err();
        assert_eq!(fault.code, Code::Protocol);
    }
}
