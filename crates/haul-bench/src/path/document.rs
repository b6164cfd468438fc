//! The JSON document of one series of measurements.

use haul_report::machine::Machine;
use haul_report::stats::Spread;
use serde::{Deserialize, Serialize};

use super::record::Run;

/// The schema's name (docs/schema/bench-run-v1.json).
pub const SCHEMA: &str = "haul.bench-run/1";

/// The purpose of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// `haul bench run`.
    Run,
    /// `haul profile`.
    Profile,
}

/// One occasion.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// [`SCHEMA`].
    pub schema: String,
    /// It went well.
    pub ok: bool,
    /// Its purpose.
    pub kind: Kind,
    /// The command.
    pub command: String,
    /// The server's address, or the name of a scenario.
    pub peer: String,
    /// The machine that asked.
    pub client: Machine,
    /// The other host, if it reported itself.
    pub server: Option<Machine>,
    /// The settings that were compared, in order; one where none were.
    pub settings: Vec<Setting>,
    /// All runs, in order.
    pub runs: Vec<Run>,
    /// How two settings compare.
    pub comparison: Option<Comparison>,
    /// The findings of a profile.
    pub findings: Vec<Finding>,
    /// Measurements that failed, and why.
    pub left_out: Vec<String>,
}

/// A setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Its short name, as runs have it.
    pub label: String,
    /// Its options.
    pub options: String,
}

/// Something that was found out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Its subject.
    pub about: String,
    /// The finding.
    pub text: String,
    /// The remedy, if any.
    pub advice: Option<String>,
}

/// The first setting's goodput by the second's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The first one.
    pub a: String,
    /// The second one.
    pub b: String,
    /// Of goodput.
    pub goodput: Ratio,
    /// Of processor time for each byte, both ends together; below 1 the first one is cheaper.
    pub cpu_per_gb: Option<Ratio>,
}

/// A ratio with its spread.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Pairs, or the smaller number of runs.
    pub count: usize,
    /// The median of the pairs' ratios; the ratio of the medians where runs are no pairs.
    pub ratio: f64,
    /// The least.
    pub low: f64,
    /// The most.
    pub high: f64,
}

impl Ratio {
    /// Of runs that were made in turns: each is compared with its neighbour, so that slow changes
    /// do not count.
    #[must_use]
    pub fn paired(a: &[f64], b: &[f64]) -> Option<Self> {
        let pairs = a.iter().zip(b).filter(|(_, b)| **b > 0.0);
        let ratios: Vec<f64> = pairs.map(|(a, b)| a / b).collect();
        let spread = Spread::of(&ratios)?;
        Some(Self {
            count: spread.count,
            ratio: spread.median,
            low: spread.min,
            high: spread.max,
        })
    }

    /// Of runs of different occasions: the ratio of the medians, and of the extremes.
    #[must_use]
    pub fn unpaired(a: &[f64], b: &[f64]) -> Option<Self> {
        let (a, b) = (Spread::of(a)?, Spread::of(b)?);
        (b.min > 0.0).then(|| Self {
            count: a.count.min(b.count),
            ratio: a.median / b.median,
            low: a.min / b.max,
            high: a.max / b.min,
        })
    }

    /// Whether one is faster beyond the spread; none where that is not certain.
    #[must_use]
    pub fn differs(&self) -> Option<bool> {
        let certain = self.count > 1 && (self.low > 1.0 || self.high < 1.0);
        certain.then_some(self.ratio > 1.0)
    }

    /// In words.
    #[must_use]
    pub fn words(&self) -> String {
        format!(
            "{:.3} ({:.3} to {:.3}, {} runs each)",
            self.ratio, self.low, self.high, self.count
        )
    }
}

impl Document {
    /// Nothing measured yet.
    #[must_use]
    pub fn new(kind: Kind, command: String) -> Self {
        Self {
            schema: SCHEMA.into(),
            ok: true,
            kind,
            command,
            peer: String::new(),
            client: Machine::describe(),
            server: None,
            settings: Vec::new(),
            runs: Vec::new(),
            comparison: None,
            findings: Vec::new(),
            left_out: Vec::new(),
        }
    }

    /// Compares the two settings, if there are two.
    pub fn compare(&mut self) {
        let [a, b] = self.settings.as_slice() else {
            return;
        };
        let of = |label: &str, value: fn(&Run) -> Option<f64>| {
            let runs = self.runs.iter().filter(|run| run.setting == label);
            runs.filter_map(value).collect::<Vec<f64>>()
        };
        let goodput = Ratio::paired(&of(&a.label, goodput), &of(&b.label, goodput));
        self.comparison = goodput.map(|goodput| Comparison {
            a: a.label.clone(),
            b: b.label.clone(),
            goodput,
            cpu_per_gb: Ratio::paired(&of(&a.label, cpu_per_gb), &of(&b.label, cpu_per_gb)),
        });
    }
}

/// Goodput, as a value that is always there.
#[expect(
    clippy::unnecessary_wraps,
    reason = "one of several values that may be missing"
)]
pub(crate) fn goodput(run: &Run) -> Option<f64> {
    Some(run.goodput_bps)
}

/// Processor time of both ends for each 10^9 bytes.
pub(crate) fn cpu_per_gb(run: &Run) -> Option<f64> {
    Some(run.sender.cpu_s_per_gb? + run.receiver.cpu_s_per_gb?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::plan::Engine;
    use crate::path::record::tests::run;

    #[test]
    fn what_changes_slowly_does_not_count_between_neighbours() {
        let ratio = Ratio::paired(&[1.0, 2.0, 4.0], &[2.0, 4.0, 8.0]).unwrap();
        assert_eq!(
            (ratio.ratio, ratio.low, ratio.high, ratio.count),
            (0.5, 0.5, 0.5, 3)
        );
        assert_eq!(ratio.differs(), Some(false));
        let ratio = Ratio::unpaired(&[1.0, 2.0, 4.0], &[2.0, 4.0, 8.0]).unwrap();
        assert_eq!((ratio.ratio, ratio.low, ratio.high), (0.5, 0.125, 2.0));
        assert_eq!(ratio.differs(), None);
        assert_eq!(Ratio::paired(&[1.0], &[0.0]), None);
    }

    #[test]
    fn settings_are_compared_by_their_labels() {
        let mut document = Document::new(Kind::Run, "haul bench run".into());
        for (label, factor) in [("A", 2.0), ("B", 1.0), ("A", 2.2), ("B", 1.0)] {
            let mut run = run(Engine::Tcp);
            run.setting = label.into();
            run.goodput_bps *= factor;
            document.runs.push(run);
        }
        document.compare();
        assert_eq!(document.comparison, None);
        document.settings = ["A", "B"]
            .map(|label| Setting {
                label: label.into(),
                options: String::new(),
            })
            .to_vec();
        document.compare();
        let comparison = document.comparison.unwrap();
        assert!((comparison.goodput.ratio - 2.1).abs() < 1e-9);
        assert_eq!(comparison.goodput.differs(), Some(true));
    }
}
