//! The record, `results.jsonl`: one JSON object a line, the arguments first, then each run. An
//! interrupted measurement resumes from it.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use haul_report::machine::Machine;
use haul_report::stats::median;
use serde::{Deserialize, Serialize};

use super::sets::{Made, Set};
use super::tool::{ALL, ours};
use super::tree::Difference;
use crate::scenario::Scenario;

/// Changes when a reader of the lines must.
const SCHEMA: &str = "haul.movers/1";
/// Time limit of another tool, in multiples of ours.
const TIMES_MAX: f64 = 10.0;

/// The common parameters of all runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct About {
    schema: String,
    pub(super) machine: Machine,
    pub(super) scale: f64,
    pub(super) rate_bps: u64,
    pub(super) sets: Vec<Made>,
    /// The page caches were dropped before each run.
    pub(super) cold: bool,
}

/// A path and the tree that is moved over it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) set: Set,
    pub(super) rtt_ms: f64,
    pub(super) loss: f64,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Run {
    #[serde(flatten)]
    pub(super) cell: Cell,
    pub(super) mover: String,
    pub(super) round: u16,
    #[serde(flatten)]
    pub(super) outcome: Outcome,
    /// IP packets that arrived at the receiver's end of the path, of `changed` at both ends, bytes.
    pub(super) wire_bytes: u64,
    /// Bytes that the copy occupies on disk.
    pub(super) allocated_bytes: u64,
    /// Kinds of differences with their counts; only if the tree is complete.
    pub(super) differences: BTreeMap<Difference, u64>,
    /// Share of the processors that others kept busy just before.
    pub(super) load_before: f64,
    pub(super) warnings: Vec<String>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// From the command's start to its exit and the copy on the disk.
    Seconds(f64),
    /// It was ended after this time, which is ten times ours.
    CutAfterS(f64),
    Failed(String),
    /// The mover is not installed, or needs rights that are not there.
    NotRun(String),
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
enum Line {
    About(Box<About>),
    Run(Box<Run>),
}

/// The runs so far, and the file in which they are kept.
#[derive(Debug)]
pub(super) struct Journal {
    pub(super) about: About,
    pub(super) runs: Vec<Run>,
    file: Option<File>,
}

impl Cell {
    /// Its path.
    pub(super) fn path(self, rate_bps: u64) -> Result<Scenario> {
        let Self { rtt_ms, loss, .. } = self;
        let text =
            format!("[path]\nrate = \"{rate_bps}bit\"\nrtt = \"{rtt_ms}ms\"\nloss = {loss:e}\n");
        Scenario::parse("movers", &text)
    }
}

impl About {
    pub(super) fn new(scale: f64, rate_bps: u64, sets: Vec<Made>, cold: bool) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            machine: Machine::describe(),
            scale,
            rate_bps,
            sets,
            cold,
        }
    }

    /// Whether runs under these arguments may stand beside each other. Of sets, those count that
    /// both have.
    fn fits(&self, other: &Self) -> bool {
        let same_sets = self.sets.iter().all(|made| {
            let mut found = other.sets.iter().filter(|other| other.set == made.set);
            found.all(|other| other == made)
        });
        let (one, two) = (&self.machine, &other.machine);
        self.schema == other.schema
            && self.scale.to_bits() == other.scale.to_bits()
            && (self.rate_bps, self.cold) == (other.rate_bps, other.cold)
            && (&one.cpu, one.cores, &one.kernel) == (&two.cpu, two.cores, &two.kernel)
            && same_sets
    }

    pub(super) fn made(&self, set: Set) -> Option<&Made> {
        self.sets.iter().find(|made| made.set == set)
    }
}

impl Journal {
    /// Opens the record of a directory and reads it; without a directory nothing is kept.
    pub(super) fn open(folder: Option<&Path>, about: About) -> Result<Self> {
        let mut journal = Self {
            about,
            runs: Vec::new(),
            file: None,
        };
        let Some(folder) = folder else {
            return Ok(journal);
        };
        let path: PathBuf = folder.join("results.jsonl");
        let named = || format!("cannot use {}", path.display());
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text.with_context(named)?,
        };
        // A killed process may have left a partial line.
        let whole = text.rfind('\n').map_or(0, |at| at + 1);
        for (number, line) in text[..whole].lines().enumerate() {
            let read = serde_json::from_str(line);
            match read.with_context(|| format!("line {} of {}", number + 1, path.display()))? {
                Line::About(earlier) => {
                    ensure!(
                        earlier.fits(&journal.about),
                        "{} is of another machine, scale, rate or set: choose another --out",
                        path.display()
                    );
                    journal.keep_sets(*earlier);
                }
                Line::Run(run) => journal.runs.push(*run),
            }
        }
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true);
        let mut file = options.open(&path).with_context(named)?;
        file.set_len(whole as u64).with_context(named)?;
        io::Seek::seek(&mut file, io::SeekFrom::End(0)).with_context(named)?;
        journal.file = Some(file);
        journal.append(&Line::About(Box::new(journal.about.clone())))?;
        Ok(journal)
    }

    /// Sets that an earlier measurement has and this one does not.
    fn keep_sets(&mut self, earlier: About) {
        for made in earlier.sets {
            if self.about.made(made.set).is_none() {
                self.about.sets.push(made);
            }
        }
    }

    pub(super) fn add(&mut self, run: Run) -> Result<()> {
        self.append(&Line::Run(Box::new(run.clone())))?;
        self.runs.push(run);
        Ok(())
    }

    fn append(&mut self, line: &Line) -> Result<()> {
        if let Some(file) = &mut self.file {
            let mut text = serde_json::to_vec(line)?;
            text.push(b'\n');
            file.write_all(&text)
                .context("cannot write results.jsonl")?;
        }
        Ok(())
    }

    /// Whether a run need not be made: it was, or an earlier one was ended or could not be made,
    /// and this one would be too.
    pub(super) fn has(&self, cell: Cell, mover: &str, round: u16) -> bool {
        self.of(cell, mover).any(|run| {
            let is_final = matches!(run.outcome, Outcome::CutAfterS(_) | Outcome::NotRun(_));
            run.round == round || is_final
        })
    }

    pub(super) fn of<'a>(&'a self, cell: Cell, mover: &'a str) -> impl Iterator<Item = &'a Run> {
        let runs = self.runs.iter();
        runs.filter(move |run| run.cell == cell && run.mover == mover)
    }

    /// The median time of a mover.
    pub(super) fn seconds(&self, cell: Cell, mover: &str) -> Option<f64> {
        let times = self.of(cell, mover).filter_map(Run::seconds);
        median(times.collect())
    }

    /// The most that a mover may take, s: ten times ours, once ours is known.
    pub(super) fn limit_s(&self, cell: Cell, is_ours: bool, most_s: f64) -> f64 {
        let seconds = self.seconds(cell, ours(cell.set)).filter(|_| !is_ours);
        seconds.map_or(most_s, |ours| (ours * TIMES_MAX).min(most_s))
    }

    /// Whether no run of ours failed. That a peer fails is a result.
    pub(super) fn is_whole(&self) -> bool {
        let is_ours = |run: &&Run| {
            ALL.iter()
                .any(|mover| mover.is_ours && mover.name == run.mover)
        };
        let mut ours = self.runs.iter().filter(is_ours);
        ours.all(|run| !matches!(run.outcome, Outcome::Failed(_)))
    }

    /// The cells that have runs, in the order in which they were measured.
    pub(super) fn cells(&self) -> Vec<Cell> {
        let mut cells: Vec<Cell> = Vec::new();
        for run in &self.runs {
            if !cells.contains(&run.cell) {
                cells.push(run.cell);
            }
        }
        cells
    }
}

impl Run {
    pub(super) const fn seconds(&self) -> Option<f64> {
        match self.outcome {
            Outcome::Seconds(seconds) => Some(seconds),
            _ => None,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::tool::OURS;
    use super::*;

    pub(in super::super) const CELL: Cell = Cell {
        set: Set::Tiny,
        rtt_ms: 100.0,
        loss: 1e-4,
    };

    pub(in super::super) fn run(mover: &str, round: u16, outcome: Outcome) -> Run {
        Run {
            cell: CELL,
            mover: mover.to_owned(),
            round,
            outcome,
            wire_bytes: 5,
            allocated_bytes: 4096,
            differences: [(Difference::Mode, 2)].into(),
            load_before: 0.5,
            warnings: Vec::new(),
        }
    }

    pub(in super::super) fn journal(runs: Vec<Run>) -> Journal {
        Journal {
            about: about(0.01),
            runs,
            file: None,
        }
    }

    fn about(scale: f64) -> About {
        let made = Made {
            set: Set::Tiny,
            material: "bytes".into(),
            files: 1000,
            bytes: 4_096_000,
            data_bytes: 4_096_000,
            path: "sets/tiny".into(),
        };
        About {
            schema: SCHEMA.into(),
            machine: Machine::default(),
            scale,
            rate_bps: 1_000_000_000,
            sets: vec![made],
            cold: true,
        }
    }

    #[test]
    fn a_measurement_goes_on_where_it_was_killed() {
        let folder = tempfile::tempdir().unwrap();
        let path = Some(folder.path());
        let mut journal = Journal::open(path, about(0.01)).unwrap();
        journal.add(run(OURS, 0, Outcome::Seconds(2.0))).unwrap();
        journal
            .add(run("scp-8", 0, Outcome::CutAfterS(20.0)))
            .unwrap();
        journal
            .add(run("tar-nc", 0, Outcome::Failed("why".into())))
            .unwrap();
        let runs = journal.runs.clone();
        let file = folder.path().join("results.jsonl");
        let whole = std::fs::read_to_string(&file).unwrap();
        // The last line was not written to its end.
        std::fs::write(&file, format!("{whole}{{\"line\":\"run\",\"se")).unwrap();
        let mut journal = Journal::open(path, about(0.01)).unwrap();
        assert_eq!(journal.runs, runs);
        journal.add(run(OURS, 1, Outcome::Seconds(3.0))).unwrap();
        let journal = Journal::open(path, about(0.01)).unwrap();
        assert_eq!(journal.runs.len(), 4);
        assert!(journal.has(CELL, OURS, 0) && journal.has(CELL, OURS, 1));
        assert!(!journal.has(CELL, OURS, 2) && !journal.has(CELL, "rsync-ssh", 0));
        let other = Cell { loss: 0.0, ..CELL };
        assert!(!journal.has(other, OURS, 0));
        // A run that hit its time limit is not repeated; a failed one is, in the next round.
        assert!(journal.has(CELL, "scp-8", 2));
        assert!(journal.has(CELL, "tar-nc", 0) && !journal.has(CELL, "tar-nc", 1));
        assert!(journal.is_whole());
        let failed = run(OURS, 2, Outcome::Failed("why".into()));
        assert!(!tests::journal(vec![failed]).is_whole());
    }

    #[test]
    fn runs_of_another_scale_do_not_stand_beside_these() {
        let folder = tempfile::tempdir().unwrap();
        Journal::open(Some(folder.path()), about(0.01)).unwrap();
        let error = Journal::open(Some(folder.path()), about(0.02)).unwrap_err();
        assert!(error.to_string().contains("another --out"), "{error}");
    }

    #[test]
    fn a_peer_ends_at_ten_times_ours() {
        let times = [2.0, 9.0, 3.0].map(Outcome::Seconds);
        let runs = (0..).zip(times).map(|(round, time)| run(OURS, round, time));
        let journal = journal(runs.collect());
        assert_eq!(journal.seconds(CELL, OURS), Some(3.0));
        let limit = |is_ours, most_s| journal.limit_s(CELL, is_ours, most_s).to_bits();
        assert_eq!(limit(false, 600.0), 30.0_f64.to_bits());
        assert_eq!(limit(false, 20.0), 20.0_f64.to_bits());
        assert_eq!(limit(true, 600.0), 600.0_f64.to_bits());
        let none = Journal {
            runs: Vec::new(),
            ..journal
        };
        assert_eq!(
            none.limit_s(CELL, false, 600.0).to_bits(),
            600.0_f64.to_bits()
        );
    }
}
