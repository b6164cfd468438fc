//! The record of a comparison, `results.json`: every run, the medians, and the machine.

use std::process::ExitCode;

use haul_io::process::Ended;
use haul_report::machine::Machine;
use haul_report::stats::median;
use serde::Serialize;

use super::arrivals::Arrivals;
use super::cell::Cell;
use super::plan::{Load, Reported};
use super::tool::Tool;
use crate::report::{DirectionReport, Report};

/// Changes when a reader of `results.json` must.
const SCHEMA: &str = "haul.compare/1";
/// Round trips that the ramp may take if the tool knows the rate.
pub const RAMP_RTTS_DECLARED: f64 = 3.0;
/// Round trips that the ramp may take if the tool does not know the rate.
pub const RAMP_RTTS: f64 = 8.0;
/// The tool that others are compared with on emulated paths, in goodput and processor time.
pub const RIVAL: &str = "iperf3-bbr";
/// Arrivals are kept in spans of this length, s.
const SPAN_S: f64 = 0.1;

/// Everything.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    schema: &'static str,
    /// The machine that it was measured on.
    pub machine: Machine,
    repeat: u16,
    seconds: Option<u32>,
    bytes: Option<u64>,
    /// Tools that were asked for and could not run.
    pub skipped: Vec<Skipped>,
    /// The signal that ended it early.
    pub interrupted: Option<i32>,
    /// The paths, in order.
    pub cells: Vec<CellRecord>,
}

/// A tool that could not run.
#[derive(Clone, Debug, Serialize)]
pub struct Skipped {
    /// Its name on the command line.
    pub tool: String,
    /// Why it could not run.
    pub reason: String,
}

/// One path.
#[derive(Clone, Debug, Serialize)]
pub struct CellRecord {
    /// The name of the path.
    pub name: String,
    /// The description of its scenario.
    pub description: String,
    /// Whether the path comes from a matrix of figures rather than from a scenario.
    pub in_matrix: bool,
    /// Rate from `a` to `b`, bits per second.
    pub rate_bps: Option<u64>,
    /// Round-trip time without load.
    pub rtt_ms: f64,
    /// Share of packets from `a` to `b` that do not arrive whole.
    pub loss: f64,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Rate times round-trip time.
    pub bdp_bytes: Option<f64>,
    /// One record for each tool, in the order of the command line.
    pub tools: Vec<ToolRecord>,
}

/// One tool on one path.
#[derive(Clone, Debug, Serialize)]
pub struct ToolRecord {
    /// Its name on the command line.
    pub tool: String,
    /// It received the rate as an option.
    pub declared: bool,
    /// The most payload per second that the path can carry, bits per second.
    pub ceiling_bps: Option<f64>,
    /// The median of each figure by itself.
    pub median: Option<Figures>,
    /// The requirements that the median misses; `None` if there are none, empty if it meets all.
    pub shortfalls: Option<Vec<String>>,
    /// Every run, in order.
    pub runs: Vec<RunRecord>,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct RunRecord {
    repetition: u16,
    /// The share of the processors that others kept busy just before.
    load_before: f64,
    /// The measurement; `None` if the run failed.
    pub figures: Option<Figures>,
    /// Why the run failed.
    pub error: Option<String>,
    /// Deviations of the emulation from its scenario.
    pub warnings: Vec<String>,
    /// Counters of the emulated path.
    pub path: Option<PathCounts>,
}

/// Counters of the emulated path, in wire packets from `a` to `b` unless stated otherwise.
#[derive(Clone, Debug, Serialize)]
pub struct PathCounts {
    offered: u64,
    delivered: u64,
    lost: u64,
    queue_dropped: u64,
    policed: u64,
    queue_bytes_max: u64,
    late_us_p99: f64,
    /// From `b` to `a`.
    reverse_offered: u64,
    reverse_lost: u64,
    emulator_cpu_s: f64,
}

/// The measurement of one run, or the medians of several. Processor times are per 10⁹ bytes of
/// payload.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figures {
    /// All payload received.
    pub bytes: f64,
    /// The time over which goodput is taken.
    pub seconds: f64,
    /// Payload per second, bits.
    pub goodput_bps: f64,
    /// Goodput with the time left out that the ramp may take.
    pub after_ramp_bps: Option<f64>,
    /// Goodput as a share of the ceiling.
    pub ceiling_share: Option<f64>,
    /// The same share, with the time left out that the ramp may take.
    pub after_ramp_share: Option<f64>,
    /// Payload retransmitted, divided by payload received.
    pub resent_share: f64,
    /// Until nine tenths of the final rate.
    pub ramp_ms: Option<f64>,
    /// The same in round trips.
    pub ramp_rtts: Option<f64>,
    /// Of the processes at the sending end.
    pub cpu_a_s_per_gb: f64,
    /// Of the processes at the receiving end.
    pub cpu_b_s_per_gb: f64,
    /// Of the whole machine, the emulator's threads too.
    pub machine_s_per_gb: f64,
    /// Largest resident size of the sending process.
    pub peak_rss_a_bytes: f64,
    /// Largest resident size of the receiving process.
    pub peak_rss_b_bytes: f64,
    /// Bytes that arrived at the receiver's device in each 100 ms, headers of what the kernel joins
    /// counted once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub arrived_by_100ms: Vec<u64>,
}

/// The raw result of a run.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(super) reported: Reported,
    pub(super) arrivals: Arrivals,
    pub(super) a: Ended,
    pub(super) b: Ended,
    pub(super) machine_s: f64,
    /// The time to send, for tools with such an option.
    pub(super) sends_s: Option<f64>,
}

impl Results {
    pub(crate) fn new(repeat: u16, load: Load, skipped: Vec<Skipped>) -> Self {
        let (seconds, bytes) = match load {
            Load::Seconds(seconds) => (Some(seconds), None),
            Load::Bytes(bytes) => (None, Some(bytes)),
        };
        Self {
            schema: SCHEMA,
            machine: Machine::describe(),
            repeat,
            seconds,
            bytes,
            skipped,
            interrupted: None,
            cells: Vec::new(),
        }
    }

    /// Adds a path, with its medians.
    pub(crate) fn push(&mut self, mut cell: CellRecord) {
        for tool in &mut cell.tools {
            let figures: Vec<&Figures> = tool
                .runs
                .iter()
                .filter_map(|run| run.figures.as_ref())
                .collect();
            tool.median = Figures::median(&figures);
        }
        self.cells.push(cell);
    }

    /// No run failed.
    pub(crate) fn complete(&self) -> bool {
        let mut runs = self
            .cells
            .iter()
            .flat_map(|cell| &cell.tools)
            .flat_map(|tool| &tool.runs);
        runs.all(|run| run.error.is_none())
    }

    /// The exit code of a program that has measured this: an interruption's, or whether a run
    /// failed.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match (self.interrupted, self.complete()) {
            (Some(signal), _) => ExitCode::from(u8::try_from(128 + signal).unwrap_or(1)),
            (None, true) => ExitCode::SUCCESS,
            (None, false) => ExitCode::FAILURE,
        }
    }

    /// How much each run sent.
    pub fn amount(&self) -> String {
        match (self.seconds, self.bytes) {
            (Some(seconds), _) => format!("{seconds} s each"),
            (None, bytes) => format!("{} bytes each", bytes.unwrap_or(0)),
        }
    }

    /// How many runs a median is taken of.
    pub fn repeat(&self) -> u16 {
        self.repeat
    }
}

impl CellRecord {
    pub(crate) fn new(cell: &Cell, tools: &[Tool]) -> Self {
        Self {
            name: cell.name.clone(),
            description: cell.scenario.description.clone(),
            in_matrix: cell.in_matrix,
            rate_bps: cell.rate_bps(),
            rtt_ms: cell.rtt_s() * 1e3,
            loss: cell.loss(),
            mtu: cell.scenario.mtu,
            bdp_bytes: cell.bdp_bytes(),
            tools: tools
                .iter()
                .map(|tool| ToolRecord {
                    tool: tool.name.clone(),
                    declared: tool.is_declared(),
                    ceiling_bps: cell.ceiling_bps(tool.header_bytes()),
                    median: None,
                    shortfalls: None,
                    runs: Vec::new(),
                })
                .collect(),
        }
    }

    /// A tool's medians on this path.
    pub fn median_of(&self, tool: &str) -> Option<&Figures> {
        self.tools
            .iter()
            .find(|record| record.tool == tool)?
            .median
            .as_ref()
    }
}

impl RunRecord {
    pub(crate) fn new(repetition: u16, load_before: f64) -> Self {
        Self {
            repetition,
            load_before,
            figures: None,
            error: None,
            warnings: Vec::new(),
            path: None,
        }
    }
}

impl PathCounts {
    /// `None` where nothing was emulated here.
    pub(crate) fn new(report: &Report) -> Option<Self> {
        let (forward, reverse): (&DirectionReport, &DirectionReport) =
            (report.forward.as_ref()?, report.reverse.as_ref()?);
        Some(Self {
            offered: forward.offered,
            delivered: forward.delivered,
            lost: forward.lost,
            queue_dropped: forward.queue_dropped,
            policed: forward.policed,
            queue_bytes_max: forward.queue_bytes_max,
            late_us_p99: forward.late_us_p99,
            reverse_offered: reverse.offered,
            reverse_lost: reverse.lost,
            emulator_cpu_s: report.emulator_cpu_s,
        })
    }
}

impl Figures {
    pub(crate) fn new(cell: &Cell, tool: &Tool, measured: &Measured) -> Self {
        let Measured {
            reported,
            arrivals,
            a,
            b,
            machine_s,
            sends_s,
        } = measured;
        #[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
        let (bytes, rss_a, rss_b) = (
            reported.bytes as f64,
            a.peak_rss_bytes as f64,
            b.peak_rss_bytes as f64,
        );
        let rtt_s = cell.rtt_s();
        let allowed_rtts = if tool.is_declared() {
            RAMP_RTTS_DECLARED
        } else {
            RAMP_RTTS
        };
        let allowed_s = allowed_rtts * rtt_s;
        let transfer = arrivals.transfer(rtt_s, reported.seconds, reported.ends);
        let (counted, seconds) =
            reported.within(transfer.map(|transfer| transfer.seconds()), *sends_s);
        let transfer = transfer.map(|transfer| transfer.cut(seconds));
        let after = transfer.and_then(|transfer| transfer.share_after(allowed_s));
        let after_ramp_bps = after.map(|share| counted * 8.0 * share / (seconds - allowed_s));
        let goodput_bps = counted * 8.0 / seconds;
        let ceiling = cell.ceiling_bps(tool.header_bytes());
        let ramp_s = transfer.and_then(|transfer| transfer.ramp_s());
        let per_gb = |seconds: f64| seconds / (bytes / 1e9);
        Self {
            bytes,
            seconds,
            goodput_bps,
            after_ramp_bps,
            ceiling_share: ceiling.map(|most| goodput_bps / most),
            after_ramp_share: ceiling.and_then(|most| Some(after_ramp_bps? / most)),
            resent_share: reported.resent_bytes / bytes,
            ramp_ms: ramp_s.map(|s| s * 1e3),
            ramp_rtts: ramp_s.filter(|_| rtt_s > 0.0).map(|s| s / rtt_s),
            cpu_a_s_per_gb: per_gb((a.user + a.system).as_secs_f64()),
            cpu_b_s_per_gb: per_gb((b.user + b.system).as_secs_f64()),
            machine_s_per_gb: per_gb(*machine_s),
            peak_rss_a_bytes: rss_a,
            peak_rss_b_bytes: rss_b,
            arrived_by_100ms: transfer.map_or_else(Vec::new, |transfer| transfer.by_step(SPAN_S)),
        }
    }

    /// Each figure's median over the runs that have it.
    pub(crate) fn median(runs: &[&Self]) -> Option<Self> {
        let some = |get: fn(&Self) -> Option<f64>| {
            median(runs.iter().filter_map(|run| get(run)).collect())
        };
        let all = |get: fn(&Self) -> f64| median(runs.iter().map(|run| get(run)).collect());
        Some(Self {
            bytes: all(|run| run.bytes)?,
            seconds: all(|run| run.seconds)?,
            goodput_bps: all(|run| run.goodput_bps)?,
            after_ramp_bps: some(|run| run.after_ramp_bps),
            ceiling_share: some(|run| run.ceiling_share),
            after_ramp_share: some(|run| run.after_ramp_share),
            resent_share: all(|run| run.resent_share)?,
            ramp_ms: some(|run| run.ramp_ms),
            ramp_rtts: some(|run| run.ramp_rtts),
            cpu_a_s_per_gb: all(|run| run.cpu_a_s_per_gb)?,
            cpu_b_s_per_gb: all(|run| run.cpu_b_s_per_gb)?,
            machine_s_per_gb: all(|run| run.machine_s_per_gb)?,
            peak_rss_a_bytes: all(|run| run.peak_rss_a_bytes)?,
            peak_rss_b_bytes: all(|run| run.peak_rss_b_bytes)?,
            arrived_by_100ms: Vec::new(),
        })
    }

    /// Processor time of the processes at both ends.
    pub fn cpu_s_per_gb(&self) -> f64 {
        self.cpu_a_s_per_gb + self.cpu_b_s_per_gb
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_has_a_median_of_its_own() {
        let run = |goodput_bps: f64, ramp_ms: Option<f64>| Figures {
            goodput_bps,
            ramp_ms,
            ..Figures::default()
        };
        let runs = [run(3.0, None), run(1.0, Some(7.0)), run(2.0, Some(9.0))];
        let median = Figures::median(&runs.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!((median.goodput_bps, median.ramp_ms), (2.0, Some(8.0)));
        assert!(Figures::median(&[]).is_none());
    }
}
