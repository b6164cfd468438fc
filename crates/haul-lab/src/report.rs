//! Reports on a path, as text and as JSON.

use std::fmt;

use serde::Serialize;

use crate::emulator::DirectionStats;
use crate::lab::LabStats;

/// Lateness above which the emulation is no longer accurate.
const LATE_US_MAX: f64 = 1000.0;

/// The counters of a lab.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// From `a` to `b`; `None` where the kernel emulates.
    pub forward: Option<DirectionReport>,
    /// From `b` to `a`.
    pub reverse: Option<DirectionReport>,
    /// Packets that the emulator lost by its own fault: they should be 0.
    pub emulator_drops: u64,
    /// Processor time that the emulator has used.
    pub emulator_cpu_s: f64,
}

/// The counters of one direction, in wire packets.
#[derive(Clone, Debug, Serialize)]
pub struct DirectionReport {
    /// Packets sent into the path.
    pub offered: u64,
    /// Bytes of them, IP headers included.
    pub offered_bytes: u64,
    /// Packets that arrived, each counted once.
    pub delivered: u64,
    /// Bytes of them.
    pub delivered_bytes: u64,
    /// Lost on the wire.
    pub lost: u64,
    /// Dropped by the full queue.
    pub queue_dropped: u64,
    /// Dropped by the policer.
    pub policed: u64,
    /// Met a queue above its threshold for marks; those that were ECN-capable arrived marked.
    pub ecn_marked: u64,
    /// Arrived twice.
    pub duplicated: u64,
    /// Held back.
    pub reordered: u64,
    /// Arrived damaged.
    pub corrupted: u64,
    /// The fullest that the queue was, bytes.
    pub queue_bytes_max: u64,
    /// How late the emulator delivered, half of the time at most, in microseconds.
    pub late_us_p50: f64,
    /// How late it delivered 99 times of 100 at most.
    pub late_us_p99: f64,
}

impl From<LabStats> for Report {
    fn from(stats: LabStats) -> Self {
        let directions = stats.path.map(|path| [path.forward, path.reverse]);
        let overruns = directions
            .iter()
            .flatten()
            .map(|direction| direction.overruns)
            .sum::<u64>();
        let cpu_ns = directions
            .iter()
            .flatten()
            .map(|direction| direction.cpu_ns)
            .sum::<u64>();
        Self {
            forward: stats.path.map(|path| path.forward.into()),
            reverse: stats.path.map(|path| path.reverse.into()),
            emulator_drops: overruns + stats.edge_overruns + stats.device_drops,
            emulator_cpu_s: thousandths(cpu_ns / 1_000_000),
        }
    }
}

impl From<DirectionStats> for DirectionReport {
    fn from(stats: DirectionStats) -> Self {
        let link = stats.link;
        Self {
            offered: link.offered,
            offered_bytes: link.offered_bytes,
            delivered: link.delivered,
            delivered_bytes: link.delivered_bytes,
            lost: link.lost,
            queue_dropped: link.queue_dropped,
            policed: link.policed,
            ecn_marked: link.marked,
            duplicated: link.duplicated,
            reordered: link.reordered,
            corrupted: link.corrupted,
            queue_bytes_max: link.backlog_max.bytes,
            late_us_p50: thousandths(stats.lateness.quantile_ns(0.5)),
            late_us_p99: thousandths(stats.lateness.quantile_ns(0.99)),
        }
    }
}

impl Report {
    /// Deviations of the emulation from its scenario, if any.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.emulator_drops > 0 {
            warnings.push(format!(
                "the emulator could not keep up and dropped {} packets that the path would have carried",
                self.emulator_drops
            ));
        }
        for (way, direction) in [("forward", &self.forward), ("reverse", &self.reverse)] {
            if let Some(direction) = direction
                && direction.late_us_p99 > LATE_US_MAX
            {
                let late_ms = direction.late_us_p99 / 1000.0;
                warnings.push(format!(
                    "one packet in a hundred was delivered {late_ms:.1} ms late or more ({way})"
                ));
            }
        }
        warnings
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (way, direction) in [("a → b", &self.forward), ("b → a", &self.reverse)] {
            if let Some(direction) = direction {
                writeln!(f, "{way}: {direction}")?;
            }
        }
        write!(
            f,
            "emulator: {:.2} s of processor time",
            self.emulator_cpu_s
        )
    }
}

impl fmt::Display for DirectionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} packets arrived", self.delivered, self.offered)?;
        let parts = [
            (self.lost, "lost"),
            (self.queue_dropped, "dropped by the queue"),
            (self.policed, "dropped by the policer"),
            (self.ecn_marked, "marked if ECN-capable"),
            (self.duplicated, "doubled"),
            (self.reordered, "overtaken"),
            (self.corrupted, "damaged"),
        ];
        for (count, what) in parts.into_iter().filter(|&(count, _)| count > 0) {
            write!(f, ", {count} {what}")?;
        }
        write!(
            f,
            "; lateness: median {:.0} µs, 99th percentile {:.0} µs",
            self.late_us_p50, self.late_us_p99
        )
    }
}

fn thousandths(value: u64) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        reason = "durations of a run are far below 2^53 of their units"
    )]
    let value = value as f64;
    value / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulator::PathStats;

    #[test]
    fn an_emulator_that_could_not_keep_up_reports_it() {
        let mut path = PathStats::default();
        let report = Report::from(LabStats {
            path: Some(path),
            device_drops: 0,
            ..LabStats::default()
        });
        assert!(report.warnings().is_empty());
        path.forward.overruns = 2;
        let report = Report::from(LabStats {
            path: Some(path),
            device_drops: 3,
            ..LabStats::default()
        });
        assert!(report.warnings()[0].contains("dropped 5 packets"));
        let text = report.to_string();
        assert!(text.contains("a → b: 0 of 0 packets arrived"), "{text}");
        assert!(
            text.contains("lateness: median 0 µs, 99th percentile 0 µs"),
            "{text}"
        );
    }
}
