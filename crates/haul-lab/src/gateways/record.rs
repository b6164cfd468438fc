//! The record of a measurement, `results.json`, and its table.

use std::fmt::Write as _;

use haul_report::machine::Machine;
use haul_report::stats::median;
use serde::Serialize;

/// Changes when a reader of `results.json` must.
const SCHEMA: &str = "haul.gateways/2";
/// How much longer than a direct connection gateways may take.
const RATIO_MAX: f64 = 1.1;
/// Jain's index that downloads in one session must have.
const FAIRNESS_MIN: f64 = 0.9;
/// The permitted increase of the round-trip time of an interactive connection, s.
const ADDED_MAX_S: f64 = 0.020;

/// Everything.
#[derive(Debug, Serialize)]
pub(super) struct Results {
    schema: &'static str,
    pub(super) machine: Machine,
    pub(super) quick: bool,
    pub(super) repeat: u16,
    pub(super) rate: String,
    /// The signal that ended it early.
    pub(super) interrupted: Option<i32>,
    pub(super) cells: Vec<Cell>,
}

/// One path.
#[derive(Debug, Serialize)]
pub(super) struct Cell {
    pub(super) rtt_ms: f64,
    pub(super) loss: f64,
    pub(super) rows: Vec<Row>,
    /// Warnings about the figures.
    pub(super) warnings: Vec<String>,
}

/// One kind of traffic.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) traffic: &'static str,
    pub(super) bar: Bar,
    /// Each run: its time or what the application prints as its latency, s; or Jain's index.
    pub(super) direct: Vec<f64>,
    pub(super) gateways: Vec<f64>,
    /// Why it was not measured.
    pub(super) not_run: Option<String>,
    /// Runs that failed.
    pub(super) failed: Vec<String>,
}

/// Requirements on gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Bar {
    /// At most 1.1 of the direct time; one round trip, the connection's first, is left out.
    Time,
    /// A latency: at most 1.1 of the direct one.
    Latency,
    /// A latency beside bulk data: at most the round-trip time and 20 ms.
    Beside,
    /// Jain's index, not a time: at least 0.9.
    Fairness,
}

impl Results {
    pub(super) fn new(quick: bool, repeat: u16, rate: String) -> Self {
        Self {
            schema: SCHEMA,
            machine: Machine::describe(),
            quick,
            repeat,
            rate,
            interrupted: None,
            cells: Vec::new(),
        }
    }

    /// Whether a run failed, or all were not made.
    pub(super) fn is_complete(&self) -> bool {
        let mut rows = self.cells.iter().flat_map(|cell| &cell.rows);
        self.interrupted.is_none() && rows.all(|row| row.failed.is_empty())
    }

    /// A line for each kind of traffic that was not measured, with the reason.
    pub(super) fn skipped(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for row in self.cells.iter().flat_map(|cell| &cell.rows) {
            if let Some(why) = &row.not_run {
                let line = format!("SKIPPED: {}: {why}", row.traffic);
                if !lines.contains(&line) {
                    lines.push(line);
                }
            }
        }
        lines
    }

    /// The medians, for people.
    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "{}\n{}, medians of {}; seconds, of fairness Jain's index\n",
            self.machine.line(),
            self.rate,
            self.repeat
        );
        if self.quick {
            text += "a tenth of each kind of traffic: no times to judge\n";
        }
        for cell in &self.cells {
            let _ = writeln!(text, "\nRTT {} ms, loss {:e}", cell.rtt_ms, cell.loss);
            let _ = writeln!(
                text,
                "  {:22}{:>10}{:>10}{:>8}",
                "traffic", "direct", "gateways", "ratio"
            );
            for row in &cell.rows {
                text += &row.line(cell.rtt_ms / 1000.0, !self.quick);
            }
            for warning in &cell.warnings {
                let _ = writeln!(text, "  warning: {warning}");
            }
        }
        text
    }
}

impl Row {
    pub(super) fn new(traffic: &'static str, bar: Bar) -> Self {
        Self {
            traffic,
            bar,
            direct: Vec::new(),
            gateways: Vec::new(),
            not_run: None,
            failed: Vec::new(),
        }
    }

    fn line(&self, rtt_s: f64, is_judged: bool) -> String {
        let mut text = format!("  {:22}", self.traffic);
        if let Some(why) = &self.not_run {
            let _ = writeln!(text, "{why}");
            return text;
        }
        let shown = |value: Option<f64>| value.map_or_else(|| "-".into(), |v| format!("{v:.3}"));
        let (direct, gateways) = (median(self.direct.clone()), median(self.gateways.clone()));
        let ratio = direct
            .zip(gateways)
            .map(|(direct, gateways)| gateways / direct);
        let ratio = ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"));
        let _ = write!(
            text,
            "{:>10}{:>10}{ratio:>8}",
            shown(direct),
            shown(gateways)
        );
        if let Some((direct, gateways)) = direct.zip(gateways).filter(|_| is_judged) {
            text += match self.bar.is_met(rtt_s, direct, gateways) {
                true => "  ok",
                false => "  missed",
            };
        }
        text.push('\n');
        for why in &self.failed {
            let _ = writeln!(text, "    failed: {why}");
        }
        text
    }
}

impl Bar {
    /// Whether gateways are as they must be.
    fn is_met(self, rtt_s: f64, direct: f64, gateways: f64) -> bool {
        match self {
            Self::Time => gateways - rtt_s <= RATIO_MAX * direct,
            Self::Latency => gateways <= RATIO_MAX * direct,
            Self::Beside => gateways <= rtt_s + ADDED_MAX_S,
            Self::Fairness => gateways >= FAIRNESS_MIN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_judged_by_medians() {
        assert!(Bar::Time.is_met(0.08, 1.0, 1.18) && !Bar::Time.is_met(0.08, 1.0, 1.19));
        assert!(Bar::Latency.is_met(0.08, 0.1, 0.11) && !Bar::Latency.is_met(0.08, 0.1, 0.12));
        assert!(Bar::Fairness.is_met(0.08, 0.5, 0.9) && !Bar::Fairness.is_met(0.08, 1.0, 0.89));
        assert!(Bar::Beside.is_met(0.08, 9.0, 0.1) && !Bar::Beside.is_met(0.08, 9.0, 0.101));
        let mut row = Row::new("bulk", Bar::Time);
        row.direct = vec![1.0, 9.0, 1.0];
        row.gateways = vec![1.05, 1.06, 5.0];
        let line = "1.000     1.060    1.06";
        assert!(row.line(0.0, true).ends_with(&format!("{line}  ok\n")));
        assert!(row.line(0.0, false).ends_with(&format!("{line}\n")));
        row.not_run = Some("not installed: sshd".into());
        assert!(row.line(0.0, true).ends_with("not installed: sshd\n"));
    }

    #[test]
    fn what_is_not_measured_is_told_once() {
        let mut results = Results::new(true, 1, "300Mbit".into());
        for loss in [0.0, 1e-4] {
            let mut missing = Row::new("scp", Bar::Time);
            missing.not_run = Some("not installed: sshd".into());
            results.cells.push(Cell {
                rtt_ms: 20.0,
                loss,
                rows: vec![Row::new("bulk", Bar::Time), missing],
                warnings: Vec::new(),
            });
        }
        assert_eq!(results.skipped(), ["SKIPPED: scp: not installed: sshd"]);
    }

    #[test]
    fn a_failed_run_is_not_complete() {
        let mut results = Results::new(true, 1, "300Mbit".into());
        let mut row = Row::new("bulk", Bar::Time);
        row.failed.push("wrong bytes".into());
        assert!(results.is_complete());
        results.cells.push(Cell {
            rtt_ms: 20.0,
            loss: 1e-4,
            rows: vec![row],
            warnings: Vec::new(),
        });
        assert!(!results.is_complete());
        assert!(results.table().contains("failed: wrong bytes"));
    }
}
