//! Figures, and the counts behind them.

use haul::fault::Fault;
use haul_io::clock::CpuTime;
use serde::{Deserialize, Serialize};

use crate::plan::{Limit, Op, Plan, Service, Test};

/// Fewest samples for the 99th percentile, and for the 99.9th.
const SAMPLES_P99: u64 = 1_000;
const SAMPLES_P999: u64 = 10_000;
/// A shorter measurement is mostly its beginning and its end, seconds.
const SHORT_S: f64 = 0.2;

/// Resources that one end used for one size, as sent to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Spent {
    /// Processor time in user code, microseconds.
    pub cpu_user_us: u64,
    /// Processor time in the kernel on behalf of the process, microseconds.
    pub cpu_system_us: u64,
    /// Messages that this end sent or read; zero where it only took part.
    pub messages: u64,
    /// From its first post until the last message was placed, nanoseconds.
    pub ns: u64,
    /// Bytes of those messages.
    pub bytes: u64,
    /// Messages whose bytes this end has checked.
    pub verified: u64,
    /// BLAKE3 of the file, where one was moved and is to be verified.
    pub file_hash: Option<[u8; 32]>,
    /// Bytes that this end's connections have sent more than once.
    pub resent_bytes: u64,
    /// The longest of their smoothed round trips, nanoseconds; zero where none is known.
    pub round_trip_ns: u64,
    /// The outcome of the other end's messages, or of this end's Reads, by unreliable datagrams.
    pub arrived: Arrived,
}

/// The outcome of messages that may be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Arrived {
    /// Messages that arrived completely.
    pub complete: u64,
    /// Messages that are valid in part.
    pub partial: u64,
    /// Valid bytes of both.
    pub bytes: u64,
    /// From the first completion to the last of a message that had not to be waited for to the end,
    /// nanoseconds.
    pub ns: u64,
    /// Datagrams that the kernel dropped because its receive buffer was full.
    pub kernel_drops: u64,
}

impl Spent {
    pub(crate) fn with_cpu(mut self, used: CpuTime) -> Self {
        self.cpu_user_us = used.user_ns / 1000;
        self.cpu_system_us = used.system_ns / 1000;
        self
    }
}

/// Processor time of one end.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Cpu {
    /// Seconds in user code.
    pub cpu_user_s: f64,
    /// Seconds in the kernel on behalf of the process.
    pub cpu_system_s: f64,
    /// Both, for each 10^9 bytes moved.
    pub cpu_s_per_gb: Option<f64>,
    /// User time as a share of one core, percent.
    pub user_percent: f64,
    /// Kernel time as a share of one core, percent.
    pub system_percent: f64,
}

/// The bandwidth of one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bandwidth {
    /// Messages, both directions and all queue pairs together.
    pub iterations: u64,
    /// Bytes in them.
    pub total_bytes: u64,
    /// From the first post until the last message was placed; of the longer direction.
    pub seconds: f64,
    /// 10^9 bits per second; the sum of both directions.
    pub bw_average_gbps: f64,
    /// 10^6 messages per second; the sum of both directions.
    pub message_rate_mps: f64,
    /// Bits per second that the client sent or read.
    pub client_gbps: f64,
    /// Bits per second that the server sent or read.
    pub server_gbps: f64,
}

/// The latency of one size, microseconds. Of a Send or Write half of the round trip, of a Read the
/// whole.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Latency {
    /// Samples.
    pub iterations: u64,
    /// How long the measurement took.
    pub seconds: f64,
    /// The smallest.
    pub min_us: f64,
    /// The median, which perftest calls typical.
    pub typical_us: f64,
    /// The mean.
    pub average_us: f64,
    /// The standard deviation.
    pub stdev_us: f64,
    /// 99 % are at most so long.
    pub p99_us: f64,
    /// 99.9 % are at most so long.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

/// The measurement of one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Of a bandwidth test.
    Bandwidth(Bandwidth),
    /// Of a latency test.
    Latency(Latency),
}

/// The outcome of messages that may be lost, of both directions if there are two.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Datagram {
    /// Messages that were sent, or asked for by Reads.
    pub sent_messages: u64,
    /// Bytes of those.
    pub sent_bytes: u64,
    /// Messages that arrived completely.
    pub complete_messages: u64,
    /// Messages that are valid in part.
    pub partial_messages: u64,
    /// Messages without any valid byte.
    pub lost_messages: u64,
    /// Valid bytes at the receiver.
    pub valid_bytes: u64,
    /// The share of the bytes that is valid, percent.
    pub valid_percent: f64,
    /// Datagrams that the kernel of the receiver dropped because its buffer was full.
    pub kernel_drops: u64,
}

/// One row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Bytes of a message.
    pub bytes: u32,
    /// The measured values.
    #[serde(flatten)]
    pub figure: Figure,
    /// Resources used by the client.
    pub client: Cpu,
    /// Resources used by the server.
    pub server: Cpu,
    /// Messages whose bytes were checked, and right.
    pub verified_messages: u64,
    /// BLAKE3 of the file at both ends, in hexadecimal.
    pub file_blake3: Option<String>,
    /// The outcome of messages that may be lost, for unreliable datagrams.
    pub datagram: Option<Datagram>,
    /// The path as measured by the sending end's connections, if they measure it.
    #[serde(skip)]
    pub path: Option<PathSeen>,
    /// Warnings about the figures.
    pub warnings: Vec<String>,
    /// Bytes that were complete at the client in each tenth of a second since the first post; of a
    /// bandwidth without unreliable datagrams and Write-Record.
    #[serde(skip)]
    pub steps: Vec<u64>,
}

/// A path as the connections of one end saw it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathSeen {
    /// The longest smoothed round trip, ms.
    pub rtt_ms: f64,
    /// Bytes sent more than once.
    pub resent_bytes: u64,
}

impl PathSeen {
    #[expect(clippy::cast_precision_loss, reason = "a time for people")]
    pub(crate) fn of(spent: &Spent) -> Option<Self> {
        (spent.round_trip_ns > 0).then(|| Self {
            rtt_ms: spent.round_trip_ns as f64 / 1e6,
            resent_bytes: spent.resent_bytes,
        })
    }
}

/// Memory of one end before and after its queue pairs were connected and used once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Memory {
    /// Memory of the process that is backed by nothing but itself, KiB, before.
    pub before_kib: u64,
    /// The same after.
    pub after_kib: u64,
    /// Growth of the kernel's own objects and of all socket buffers of the machine meanwhile, KiB.
    pub kernel_kib: u64,
}

/// Memory that idle queue pairs take.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Idle {
    /// Queue pairs.
    pub qps: u32,
    /// Of the client process, KiB each.
    pub client_kib_per_qp: f64,
    /// Of the server process, KiB each.
    pub server_kib_per_qp: f64,
    /// Of the client's kernel; of both ends where they are on one machine. KiB each.
    pub client_kernel_kib_per_qp: f64,
    /// The server's.
    pub server_kernel_kib_per_qp: f64,
}

/// The name of a device and its transport.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// The provider.
    pub provider: String,
    /// The device.
    pub name: String,
    /// `iwarp`, `iwarp_udt`, `iwarp_udp`, `roce`, `infiniband`.
    pub transport: String,
}

/// The result of a bench.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The server's address.
    pub peer: String,
    /// The server's software and version.
    pub software: String,
    /// The service.
    pub service: Service,
    /// The verb.
    pub op: Op,
    /// Its measurement.
    pub test: Test,
    /// Queue pairs.
    pub qps: u32,
    /// Messages outstanding on each.
    pub depth: u32,
    /// Both ends sent.
    pub bidirectional: bool,
    /// The client's device.
    pub client_device: DeviceInfo,
    /// The server's device.
    pub server_device: DeviceInfo,
    /// A row for each size.
    pub rows: Vec<Row>,
    /// Of an idle test.
    pub idle: Option<Idle>,
}

/// Follows a bench.
pub trait VerbsObserver {
    /// The queue pairs are connected.
    fn connected(&self, summary: &Summary);
    /// A size is done.
    fn row(&self, row: &Row);
    /// Something the user should know.
    fn note(&self, text: &str);
}

pub(crate) fn cpu(spent: &Spent, bytes: u64, seconds: f64) -> Cpu {
    let in_seconds = |micros: u64| to_f64(micros) / 1e6;
    let (user, system) = (
        in_seconds(spent.cpu_user_us),
        in_seconds(spent.cpu_system_us),
    );
    let percent = |time: f64| {
        if seconds > 0.0 {
            100.0 * time / seconds
        } else {
            0.0
        }
    };
    Cpu {
        cpu_user_s: user,
        cpu_system_s: system,
        cpu_s_per_gb: (bytes > 0).then(|| (user + system) * 1e9 / to_f64(bytes)),
        user_percent: percent(user),
        system_percent: percent(system),
    }
}

/// The outcome of messages that may be lost.
pub(crate) fn datagram(plan: &Plan, client: &Spent, server: &Spent) -> Option<Datagram> {
    if plan.service != Service::Ud {
        return None;
    }
    let sum = |get: fn(&Spent) -> u64| get(client) + get(server);
    let (sent, bytes) = (sum(|spent| spent.messages), sum(|spent| spent.bytes));
    let complete = sum(|spent| spent.arrived.complete);
    let partial = sum(|spent| spent.arrived.partial);
    let valid = sum(|spent| spent.arrived.bytes);
    Some(Datagram {
        sent_messages: sent,
        sent_bytes: bytes,
        complete_messages: complete,
        partial_messages: partial,
        lost_messages: sent.saturating_sub(complete + partial),
        valid_bytes: valid,
        valid_percent: 100.0 * to_f64(valid) / to_f64(bytes.max(1)),
        kernel_drops: sum(|spent| spent.arrived.kernel_drops),
    })
}

/// Returns the bytes moved by each end. For unreliable datagrams: those valid at the receiver, over
/// the longer of the sending and the receiving time.
pub(crate) fn delivered(plan: &Plan, client: Spent, server: Spent) -> (Spent, Spent) {
    if plan.service != Service::Ud || plan.test != Test::Bw {
        return (client, server);
    }
    let moved = |sender: &Spent, receiver: &Spent| Spent {
        messages: receiver.arrived.complete,
        bytes: receiver.arrived.bytes,
        ns: if sender.messages == 0 {
            0
        } else {
            sender.ns.max(receiver.arrived.ns)
        },
        ..*sender
    };
    if plan.op == Op::Read {
        return (moved(&client, &client), moved(&server, &server));
    }
    (moved(&client, &server), moved(&server, &client))
}

/// The figures of both directions together.
pub(crate) fn bandwidth(client: &Spent, server: &Spent) -> Bandwidth {
    let rate = |count: u64, spent: &Spent| to_f64(count) / to_f64(spent.ns.max(1)) * 1e9;
    let gbps = |spent: &Spent| rate(spent.bytes, spent) * 8.0 / 1e9;
    Bandwidth {
        iterations: client.messages + server.messages,
        total_bytes: client.bytes + server.bytes,
        seconds: to_f64(client.ns.max(server.ns)) / 1e9,
        bw_average_gbps: gbps(client) + gbps(server),
        message_rate_mps: (rate(client.messages, client) + rate(server.messages, server)) / 1e6,
        client_gbps: gbps(client),
        server_gbps: gbps(server),
    }
}

/// The figures of `round_trips`, nanoseconds, at least one; each counts as `parts` latencies.
pub(crate) fn latency(mut round_trips: Vec<u64>, parts: u32, ns: u64) -> Latency {
    round_trips.sort_unstable();
    let us = |round_trip: f64| round_trip / f64::from(parts) / 1e3;
    let count = to_f64(round_trips.len() as u64).max(1.0);
    let mean = round_trips.iter().map(|ns| to_f64(*ns)).sum::<f64>() / count;
    let square = |ns: &u64| (to_f64(*ns) - mean).powi(2);
    let variance = round_trips.iter().map(square).sum::<f64>() / count;
    let at = |per_mille| us(to_f64(quantile(&round_trips, per_mille)));
    Latency {
        iterations: round_trips.len() as u64,
        seconds: to_f64(ns) / 1e9,
        min_us: at(0),
        typical_us: at(500),
        average_us: us(mean),
        stdev_us: us(variance.sqrt()),
        p99_us: at(990),
        p999_us: at(999),
        max_us: at(1000),
    }
}

/// The smallest sample that at least so many per mille are not above (nearest rank).
fn quantile(sorted: &[u64], per_mille: usize) -> u64 {
    let rank = (sorted.len() * per_mille).div_ceil(1000);
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or_default()
}

/// Warnings about the figure.
pub(crate) fn warnings(figure: &Figure, plan: &Plan) -> Vec<String> {
    let mut warnings = Vec::new();
    let by_time = matches!(plan.limit, Limit::TimeMs(_));
    let more = match plan.limit {
        _ if plan.file.is_some() => "a longer file",
        Limit::TimeMs(_) => "more --time",
        Limit::Iterations(_) => "more --iterations",
    };
    let outstanding = u64::from(plan.qps) * u64::from(plan.depth);
    match figure {
        Figure::Latency(latency) => {
            let what = match latency.iterations {
                0..SAMPLES_P99 => Some("p99 and p99.9"),
                SAMPLES_P99..SAMPLES_P999 => Some("p99.9"),
                _ => None,
            };
            if let Some(what) = what {
                let count = latency.iterations;
                let limited = if by_time { " (limited by time)" } else { "" };
                warnings.push(format!(
                    "{count} iterations{limited} are too few for {what}; it takes {more}"
                ));
            }
        }
        Figure::Bandwidth(bandwidth) => {
            if plan.file.is_none() && bandwidth.iterations < 8 * outstanding {
                let count = bandwidth.iterations;
                let limited = if by_time { " (limited by time)" } else { "" };
                warnings.push(format!(
                    "{count} iterations{limited} are few for {outstanding} outstanding; it takes {more}"
                ));
            }
            if bandwidth.seconds < SHORT_S {
                let seconds = bandwidth.seconds;
                warnings.push(format!(
                    "{seconds:.3} s are short for a bandwidth; it takes {more}"
                ));
            }
        }
    }
    if plan.verify && plan.file.is_none() {
        warnings.push("checking the bytes is part of what was measured".into());
    }
    warnings
}

/// Both hashes agree, where there are any.
pub(crate) fn same_file(client: &Spent, server: &Spent) -> Result<Option<String>, Fault> {
    match (client.file_hash, server.file_hash) {
        (Some(here), Some(there)) if here != there => Err(Fault::new(
            haul::fault::Code::Integrity,
            "the file at the server is not the one that was sent",
        )),
        (Some(here), Some(_)) => Ok(Some(blake3::Hash::from(here).to_string())),
        _ => Ok(None),
    }
}

pub(crate) fn idle(qps: u32, client: &Memory, server: &Memory) -> Idle {
    let each = |kib: u64| to_f64(kib) / f64::from(qps.max(1));
    let own = |memory: &Memory| each(memory.after_kib.saturating_sub(memory.before_kib));
    Idle {
        qps,
        client_kib_per_qp: own(client),
        server_kib_per_qp: own(server),
        client_kernel_kib_per_qp: each(client.kernel_kib),
        server_kernel_kib_per_qp: each(server.kernel_kib),
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures of fewer digits")]
fn to_f64(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples_by_nearest_rank() {
        let latency = latency((1..=1000).map(|n| n * 2000).collect(), 2, 5_000_000_000);
        assert_eq!((latency.min_us, latency.max_us), (1.0, 1000.0));
        assert_eq!(latency.typical_us, 500.0);
        assert_eq!((latency.p99_us, latency.p999_us), (990.0, 999.0));
        assert_eq!(latency.average_us, 500.5);
        assert!((latency.stdev_us - 288.675).abs() < 0.001);
        assert_eq!(latency.seconds, 5.0);
        assert_eq!(quantile(&[7], 0), 7);
        assert_eq!(quantile(&[7], 1000), 7);
        assert_eq!(quantile(&[1, 2], 500), 1);
    }

    #[test]
    fn both_directions_add_up() {
        let client = Spent {
            messages: 1_000_000,
            bytes: 125_000_000,
            ns: 1_000_000_000,
            ..Spent::default()
        };
        let server = Spent {
            ns: 2_000_000_000,
            ..client
        };
        let both = bandwidth(&client, &server);
        assert_eq!(both.bw_average_gbps, 1.5);
        assert_eq!((both.client_gbps, both.server_gbps), (1.0, 0.5));
        assert_eq!(both.message_rate_mps, 1.5);
        assert_eq!(both.seconds, 2.0);
        assert_eq!(
            bandwidth(&client, &Spent::default()).bw_average_gbps,
            1.0,
            "an end that sends nothing adds nothing"
        );
    }

    #[test]
    fn of_what_may_be_lost_counts_what_came() {
        let plan = Plan {
            service: Service::Ud,
            op: Op::WriteRecord,
            ..crate::plan::tests::plan()
        };
        let client = Spent {
            messages: 100,
            bytes: 100_000,
            ns: 1_000_000,
            ..Spent::default()
        };
        let server = Spent {
            arrived: Arrived {
                complete: 60,
                partial: 30,
                bytes: 75_000,
                ns: 2_000_000,
                kernel_drops: 4,
            },
            ..Spent::default()
        };
        let found = datagram(&plan, &client, &server).unwrap();
        assert_eq!((found.sent_messages, found.sent_bytes), (100, 100_000));
        assert_eq!((found.complete_messages, found.partial_messages), (60, 30));
        assert_eq!((found.lost_messages, found.valid_bytes), (10, 75_000));
        assert_eq!((found.valid_percent, found.kernel_drops), (75.0, 4));
        let (client, server) = delivered(&plan, client, server);
        let figure = bandwidth(&client, &server);
        assert_eq!((figure.total_bytes, figure.iterations), (75_000, 60));
        assert_eq!(figure.bw_average_gbps, 0.3);
        assert_eq!(figure.server_gbps, 0.0);
    }

    #[test]
    fn processor_time_is_reported_per_gigabyte_and_per_core() {
        let spent = Spent {
            cpu_user_us: 500_000,
            cpu_system_us: 1_500_000,
            ..Spent::default()
        };
        let cpu = cpu(&spent, 4_000_000_000, 2.0);
        assert_eq!(cpu.cpu_s_per_gb, Some(0.5));
        assert_eq!((cpu.user_percent, cpu.system_percent), (25.0, 75.0));
        assert_eq!(super::cpu(&spent, 0, 0.0).cpu_s_per_gb, None);
    }

    #[test]
    fn figures_of_few_samples_carry_a_warning() {
        let figure = |count| Figure::Latency(latency(vec![1000; count], 2, 1));
        let plan = |limit, depth| Plan {
            limit,
            depth,
            ..crate::plan::tests::plan()
        };
        let one = plan(Limit::Iterations(1), 1);
        assert!(warnings(&figure(999), &one)[0].contains("p99 and p99.9"));
        let timed = plan(Limit::TimeMs(1), 1);
        assert!(warnings(&figure(9_999), &timed)[0].contains("limited by time"));
        assert!(warnings(&figure(10_000), &one).is_empty());
        let spent = Spent {
            messages: 1000,
            bytes: 1000,
            ns: 100_000_000,
            ..Spent::default()
        };
        let figure = Figure::Bandwidth(bandwidth(&spent, &Spent::default()));
        assert_eq!(warnings(&figure, &plan(Limit::Iterations(1), 128)).len(), 2);
        assert_eq!(warnings(&figure, &plan(Limit::Iterations(1), 8)).len(), 1);
    }

    #[test]
    fn idle_memory_is_shared_among_the_queue_pairs() {
        let memory = Memory {
            before_kib: 1000,
            after_kib: 5000,
            kernel_kib: 500,
        };
        let idle = idle(1000, &memory, &Memory::default());
        assert_eq!(idle.client_kib_per_qp, 4.0);
        assert_eq!(idle.client_kernel_kib_per_qp, 0.5);
        assert_eq!(idle.server_kib_per_qp, 0.0);
    }
}
