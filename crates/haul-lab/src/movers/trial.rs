//! One run: a fresh lab, the mover's server on `b`, its command on `a`, and the copy compared.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use haul_report::machine;

use super::record::{Cell, Outcome, Run};
use super::sets::{self, Made, Set};
use super::tool::{Direction, Mover, Server, Site};
use super::tree::{self, Compared};
use crate::compare::runner::{Runner, Running, Stop, spawn};
use crate::lab::Lab;
use crate::report::Report;
use crate::sshd::Sshd;

/// Time for a server to start.
const READY: Duration = Duration::from_secs(10);

/// The common parameters of all runs.
#[derive(Debug)]
pub(super) struct Trials<'a> {
    pub(super) runner: &'a Runner<'a>,
    pub(super) rate_bps: u64,
    /// Where `sets` and `targets` are.
    pub(super) work: PathBuf,
    pub(super) cold: bool,
}

/// The measurement of a command that ended or was ended.
struct Timed {
    outcome: Outcome,
    wire_bytes: u64,
    warnings: Vec<String>,
}

impl Trials<'_> {
    /// Runs a mover once. A failure is an outcome.
    pub(super) fn run(
        &self,
        cell: Cell,
        made: &Made,
        mover: &Mover,
        round: u16,
        limit_s: f64,
    ) -> Result<Run, Stop> {
        let mut run = Run {
            cell,
            mover: mover.name.to_owned(),
            round,
            outcome: Outcome::Failed(String::new()),
            wire_bytes: 0,
            allocated_bytes: 0,
            differences: [].into(),
            load_before: 0.0,
            warnings: Vec::new(),
        };
        if let Some(why) = mover.missing(cell.set) {
            run.outcome = Outcome::NotRun(why);
            return Ok(run);
        }
        let target = self.target()?;
        let source = self.work.join(&made.path);
        let copy = target.join(source.file_name().unwrap_or_default());
        sets::prepare(cell.set, &source, &copy)?;
        self.drop_caches()?;
        run.load_before = machine::settle(self.runner.settle);
        match self.timed(cell, (&source, &target), mover, round, limit_s) {
            Ok(timed) => {
                run.outcome = match timed.outcome {
                    // Only a peer is ended because it is slow.
                    Outcome::CutAfterS(after) if mover.is_ours => Outcome::Failed(format!(
                        "was ended after {after:.0} s, which --limit allows"
                    )),
                    outcome => outcome,
                };
                run.wire_bytes = timed.wire_bytes;
                run.warnings = timed.warnings;
            }
            Err(Stop::Failed(error)) => run.outcome = Outcome::Failed(crate::line(&error)),
            Err(interrupted) => return Err(interrupted),
        }
        if run.seconds().is_some() {
            match tree::compare(&source, &copy) {
                Ok(compared) => run.judge(compared),
                Err(error) => run.outcome = Outcome::Failed(crate::line(&error)),
            }
        }
        Ok(run)
    }

    /// Makes a directory for a copy, and removes the copy before it.
    ///
    /// ext4 does not use inodes again that were freed in the last minutes, and looks at each of
    /// them for every new file: a mover of many files would pay for the copy that was removed
    /// before it began. So each copy is put elsewhere on the disk, as top directories are.
    fn target(&self) -> Result<PathBuf> {
        let targets = self.work.join("targets");
        empty(&targets)?;
        // Other file systems know no such mark, and have no need of it.
        let mut spread = Command::new("chattr");
        let _ = spread
            .arg("+T")
            .arg(&targets)
            .stderr(Stdio::null())
            .status();
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let target = targets.join(now.as_nanos().to_string());
        fs::create_dir(&target).with_context(|| format!("cannot make {}", target.display()))?;
        Ok(target)
    }

    fn timed(
        &self,
        cell: Cell,
        (source, target): (&Path, &Path),
        mover: &Mover,
        round: u16,
        limit_s: f64,
    ) -> Result<Timed, Stop> {
        let mut scenario = cell.path(self.rate_bps)?;
        scenario.seed = scenario.seed.wrapping_add(round.into());
        let lab = Lab::start(&scenario)?;
        let site = Site {
            work: &self.work,
            source,
            target,
            scratch: lab.scratch(),
            haul: &self.runner.programs.haul,
            set: cell.set,
        };
        let mut server = self.serve(&lab, &site, mover)?;
        let outcome = self.client(&lab, &site, mover, &mut server, limit_s)?;
        let report = Report::from(lab.stats());
        let ways = match mover.direction {
            // To find what differs, both ends send.
            _ if cell.set == Set::Changed => vec![&report.forward, &report.reverse],
            Direction::Push => vec![&report.forward],
            Direction::Pull => vec![&report.reverse],
        };
        let delivered = ways.into_iter().flatten().map(|way| way.delivered_bytes);
        Ok(Timed {
            outcome,
            wire_bytes: delivered.sum(),
            warnings: report.warnings(),
        })
    }

    /// Starts the mover's server and waits until it listens.
    fn serve(&self, lab: &Lab, site: &Site<'_>, mover: &Mover) -> Result<Option<Running>, Stop> {
        match mover.server {
            Server::Sshd => {
                // It ends with the lab.
                Sshd::start(self.runner, lab, "b", site.scratch)?;
                Ok(None)
            }
            Server::Script { script, port, ends } => {
                let mut server = spawn(lab, "b", &site.line(script))?;
                self.runner
                    .listening_within(lab, "b", port, &mut server, READY)?;
                Ok(ends.then_some(server))
            }
        }
    }

    /// Runs the command, and waits until the copy is on the disk.
    fn client(
        &self,
        lab: &Lab,
        site: &Site<'_>,
        mover: &Mover,
        server: &mut Option<Running>,
        limit_s: f64,
    ) -> Result<Outcome, Stop> {
        let begin = Instant::now();
        let limit = Duration::from_secs_f64(limit_s);
        let mut client = spawn(lab, "a", &mover.client(site))?;
        let ends = [
            ("the command", Some(&mut client)),
            ("the server", server.as_mut()),
        ];
        for (who, running) in ends {
            let Some(running) = running else { continue };
            let left = limit.saturating_sub(begin.elapsed());
            let Some(ended) = self.runner.wait_at_most(running, left)? else {
                let after = begin.elapsed().as_secs_f64();
                return Ok(Outcome::CutAfterS(after));
            };
            if !ended.status.success() {
                return Err(Stop::Failed(running.failure(who, &ended)));
            }
        }
        sync(site.target)?;
        Ok(Outcome::Seconds(begin.elapsed().as_secs_f64()))
    }

    fn drop_caches(&self) -> Result<()> {
        sync(&self.work)?;
        if self.cold {
            fs::write(DROP_CACHES, "3").with_context(|| format!("cannot write {DROP_CACHES}"))?;
        }
        Ok(())
    }
}

const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Whether this process may drop the page caches.
pub(super) fn may_drop_caches() -> bool {
    fs::write(DROP_CACHES, "1").is_ok()
}

impl Run {
    /// Records the result of a comparison. A copy with incomplete data is a failure.
    fn judge(&mut self, compared: Compared) {
        self.allocated_bytes = compared.allocated;
        let losses = compared.counts.iter().filter(|(kind, _)| kind.is_loss());
        let losses: Vec<String> = losses
            .map(|(kind, count)| {
                let example = compared.examples.get(kind);
                let example = example.map_or_else(String::new, |path| path.display().to_string());
                format!("{count} {} ({example} …)", kind.name())
            })
            .collect();
        if losses.is_empty() {
            self.differences = compared.counts;
        } else {
            self.outcome = Outcome::Failed(format!("the copy is not whole: {}", losses.join(", ")));
        }
    }
}

/// Makes a directory, empty.
fn empty(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => fs::create_dir_all(folder),
    }
    .with_context(|| format!("cannot make an empty {}", folder.display()))
}

/// As `sync -f`: waits until all of its file system is on the disk.
fn sync(folder: &Path) -> Result<()> {
    let about = || format!("cannot sync {}", folder.display());
    let file = File::open(folder).with_context(about)?;
    rustix::fs::syncfs(&file).with_context(about)
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::run;
    use super::super::tree::Difference;
    use super::*;

    #[test]
    fn lost_data_fails_a_run_and_lost_metadata_does_not() {
        let judged = |difference| {
            let mut run = run("tar-nc", 0, Outcome::Seconds(1.0));
            let mut compared = Compared::default();
            compared.counts.insert(difference, 3);
            compared.examples.insert(difference, "folder/file".into());
            run.judge(compared);
            run
        };
        let lost = judged(Difference::Modified);
        assert_eq!(lost.outcome, Outcome::Seconds(1.0));
        assert_eq!(lost.differences[&Difference::Modified], 3);
        let Outcome::Failed(why) = judged(Difference::Content).outcome else {
            panic!("wrong bytes count as a copy");
        };
        assert!(why.contains("3 with other content (folder/file"), "{why}");
    }
}
