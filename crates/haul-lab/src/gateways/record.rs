//! The record of a measurement, `results.json`, and its table.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use haul_report::machine::Machine;
use haul_report::stats::median;
use serde::{Deserialize, Serialize};

/// Changes when a reader of `results.json` must.
const SCHEMA: &str = "haul.gateways/2";
/// How much longer than a direct connection gateways may take.
const RATIO_MAX: f64 = 1.1;
/// Jain's index that downloads in one session must have.
const FAIRNESS_MIN: f64 = 0.9;
/// The permitted increase of the round-trip time of an interactive connection, s.
const ADDED_MAX_S: f64 = 0.020;

/// Everything.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Results {
    schema: String,
    pub(super) machine: Machine,
    pub(super) quick: bool,
    pub(super) repeat: u16,
    pub(super) rate: String,
    /// The signal that ended it early.
    pub(super) interrupted: Option<i32>,
    pub(super) cells: Vec<Cell>,
}

/// One path.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) rtt_ms: f64,
    pub(super) loss: f64,
    pub(super) rows: Vec<Row>,
    /// Warnings about the figures.
    pub(super) warnings: Vec<String>,
}

/// One kind of traffic.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) traffic: String,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
            schema: SCHEMA.into(),
            machine: Machine::describe(),
            quick,
            repeat,
            rate,
            interrupted: None,
            cells: Vec::new(),
        }
    }

    /// Reads `results.json` of a directory.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("results.json");
        let read = || -> Result<Self> {
            let results: Self = serde_json::from_str(&std::fs::read_to_string(&path)?)?;
            ensure!(results.schema == SCHEMA, "the schema is not {SCHEMA}");
            Ok(results)
        };
        read().with_context(|| format!("cannot read {}", path.display()))
    }

    /// Adds what another measurement with the same options on a machine of the same kind has.
    pub(super) fn add(&mut self, other: Self) -> Result<()> {
        let kind = |results: &Self| {
            let machine = &results.machine;
            let what = format!("{} cores of {}", machine.cores, machine.cpu);
            let version = machine.haul_commit.clone();
            (
                (what, machine.kernel.clone(), version),
                (results.quick, results.repeat, results.rate.clone()),
            )
        };
        let (own, others) = (kind(self), kind(&other));
        ensure!(
            own == others,
            "cannot merge results of different machines, builds or options: {own:?}, {others:?}"
        );
        self.interrupted = self.interrupted.or(other.interrupted);
        for cell in other.cells {
            let path = (cell.rtt_ms, cell.loss);
            let mut cells = self.cells.iter_mut();
            match cells.find(|known| (known.rtt_ms, known.loss) == path) {
                Some(known) => known.add(cell),
                None => self.cells.push(cell),
            }
        }
        Ok(())
    }

    /// Whether all runs were made, and none failed.
    pub(super) fn is_complete(&self) -> bool {
        let mut rows = self.cells.iter().flat_map(|cell| &cell.rows);
        let all = |row: &Row| row.failed.is_empty() && !row.lacks_runs(self.repeat);
        self.interrupted.is_none() && rows.all(all)
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
                if row.lacks_runs(self.repeat) {
                    let (direct, gateways) = (row.direct.len(), row.gateways.len());
                    let _ = writeln!(text, "    medians of {direct} and {gateways} runs");
                }
            }
            for warning in &cell.warnings {
                let _ = writeln!(text, "  warning: {warning}");
            }
        }
        text
    }
}

impl Cell {
    fn add(&mut self, other: Self) {
        for row in other.rows {
            match self
                .rows
                .iter_mut()
                .find(|known| known.traffic == row.traffic)
            {
                Some(known) => {
                    known.direct.extend(row.direct);
                    known.gateways.extend(row.gateways);
                    known.failed.extend(row.failed);
                }
                None => self.rows.push(row),
            }
        }
        for warning in other.warnings {
            if !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
    }
}

impl Row {
    pub(super) fn new(traffic: &str, bar: Bar) -> Self {
        Self {
            traffic: traffic.into(),
            bar,
            direct: Vec::new(),
            gateways: Vec::new(),
            not_run: None,
            failed: Vec::new(),
        }
    }

    /// Whether the measurement was ended before all runs of this row.
    fn lacks_runs(&self, repeat: u16) -> bool {
        let made = self.direct.len() + self.gateways.len() + self.failed.len();
        self.not_run.is_none() && made < 2 * usize::from(repeat)
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

    fn part(rtt_ms: f64, traffic: &str, runs: &[f64]) -> Results {
        let mut results = Results::new(true, 2, "300Mbit".into());
        let mut row = Row::new(traffic, Bar::Time);
        (row.direct, row.gateways) = (runs.to_vec(), runs.to_vec());
        results.cells.push(Cell {
            rtt_ms,
            loss: 0.0,
            rows: vec![row],
            warnings: Vec::new(),
        });
        results
    }

    #[test]
    fn merged_results_are_those_of_one_measurement() {
        let mut whole = part(80.0, "scp", &[1.0]);
        whole.add(part(80.0, "scp", &[2.0])).unwrap();
        whole.add(part(80.0, "bulk", &[3.0, 4.0])).unwrap();
        whole.add(part(20.0, "bulk", &[5.0])).unwrap();
        let runs = |cell: &Cell| -> Vec<(String, Vec<f64>)> {
            let rows = cell.rows.iter();
            rows.map(|row| (row.traffic.clone(), row.gateways.clone()))
                .collect()
        };
        let all: Vec<_> = whole.cells.iter().map(runs).collect();
        let of = |traffic: &str, runs: &[f64]| (traffic.to_owned(), runs.to_vec());
        let first = vec![of("scp", &[1.0, 2.0]), of("bulk", &[3.0, 4.0])];
        assert_eq!(all, [first, vec![of("bulk", &[5.0])]]);
        // One row has one run of two.
        assert!(!whole.is_complete());
        assert_eq!(whole.table().matches("medians of 1 and 1 runs").count(), 1);
        whole.add(part(20.0, "bulk", &[6.0])).unwrap();
        assert!(whole.is_complete());
        let mut other = part(20.0, "bulk", &[7.0]);
        other.rate = "1Gbit".into();
        assert!(whole.add(other).is_err());
        let mut other = part(20.0, "bulk", &[7.0]);
        other.machine.cores += 1;
        assert!(whole.add(other).is_err());
    }

    #[test]
    fn results_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let out = crate::out::Out::make(Some(folder.path().into())).unwrap();
        let written = crate::out::json(&part(20.0, "scp", &[1.0])).unwrap();
        out.keep("results.json", &written).unwrap();
        let read = Results::read(folder.path()).unwrap();
        assert_eq!(crate::out::json(&read).unwrap(), written);
        let older = written.replace(SCHEMA, "haul.gateways/1");
        out.keep("results.json", &older).unwrap();
        let error = format!("{:#}", Results::read(folder.path()).unwrap_err());
        assert!(
            error.contains("the schema is not haul.gateways/2"),
            "{error}"
        );
    }

    #[test]
    fn a_failed_run_is_not_complete() {
        let mut results = Results::new(true, 1, "300Mbit".into());
        let mut row = Row::new("bulk", Bar::Time);
        row.failed.push("direct: wrong bytes".into());
        row.gateways.push(1.0);
        assert!(results.is_complete());
        results.cells.push(Cell {
            rtt_ms: 20.0,
            loss: 1e-4,
            rows: vec![row],
            warnings: Vec::new(),
        });
        assert!(!results.is_complete());
        assert!(results.table().contains("failed: direct: wrong bytes"));
    }
}
