//! What is requested, and when: as much as there is room for.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::state::{Blockwise, ReceiverOutcome, Session, Small, State};
use crate::fault::{Code, Fault};
use crate::report::Event;
use crate::session::durable::Job;
use crate::session::plan::Planned;
use crate::session::sender::restarted;
use crate::sink::BlockId;
use crate::wire::{Confirm, FileRun, FileRuns, Message, Part, Plan, RUNS_MAX, Run, Wants};

/// Small files that were requested and are not written yet, bytes; they arrive in memory.
const ARENA: u64 = 64 << 20;

impl Session<'_> {
    /// Requests the blocks of the files that were opened with their batch.
    pub(super) fn request_opened(&mut self, files: std::ops::Range<u32>) -> Result<(), Fault> {
        let of = |are_left| -> Vec<Run> {
            let incoming = files.clone().filter_map(|file| {
                match self.files.get(&file).map(|incoming| &incoming.state) {
                    Some(State::Blocks(blocks)) => Some(blocks.runs(file, are_left)),
                    _ => None,
                }
            });
            incoming.flatten().collect()
        };
        let (missing, left) = (of(false), of(true));
        for runs in missing.chunks(RUNS_MAX) {
            self.ask(runs.to_vec())?;
        }
        for runs in left.chunks(RUNS_MAX) {
            let runs = runs.to_vec();
            self.link.send(&Message::Confirm(Confirm { runs }))?;
        }
        for run in left {
            self.take_old(run);
        }
        Ok(())
    }

    /// Has the blocks of a run copied that the file which is replaced may have.
    fn take_old(&self, run: Run) {
        let Some(State::Blocks(blocks)) = self.files.get(&run.file).map(|file| &file.state) else {
            return;
        };
        for block in run.first..run.first + run.count {
            if blocks.doubtful.get(&block).is_some_and(|one| one.is_old) {
                let file = run.file;
                self.sink.take_old(BlockId { file, block });
            }
        }
    }

    /// Requests what waits while there is room: memory for small files, open files for the others.
    pub(super) fn request(&mut self, outcome: &mut ReceiverOutcome) -> Result<(), Fault> {
        let mut smalls: Vec<(u32, u64)> = Vec::new();
        while let Some(&file) = self.queue.front() {
            let Some(incoming) = self.files.get_mut(&file) else {
                self.queue.pop_front();
                continue;
            };
            // Early data, of which some may be verified already.
            if !matches!(incoming.state, State::Waiting(_)) {
                self.queue.pop_front();
                continue;
            }
            let size = incoming.entry.data();
            if incoming.entry.file().is_none() || incoming.entry.is_small() && size == 0 {
                incoming.state = State::Writing;
                let entry = Box::new(incoming.entry.clone());
                let content = Vec::new();
                self.job(Job::Member {
                    file,
                    entry,
                    content,
                })?;
            } else if incoming.entry.is_small() {
                let open = self.requested - self.written.load(Ordering::Acquire);
                if open > 0 && open + size > ARENA {
                    break;
                }
                incoming.state = State::Small(Small::default());
                self.requested += size;
                smalls.push((file, size));
            } else if self.targets.has_room() {
                self.ask_files(&std::mem::take(&mut smalls))?;
                self.open(file, outcome)?;
            } else {
                break;
            }
            self.queue.pop_front();
        }
        self.ask_files(&smalls)
    }

    /// Opens a file whose turn has come and requests its blocks.
    fn open(&mut self, file: u32, outcome: &mut ReceiverOutcome) -> Result<(), Fault> {
        let Some(incoming) = self.files.get_mut(&file) else {
            return Ok(());
        };
        let planned = self.root.plan(&incoming.entry, self.terms.policy, true);
        let planned = planned.and_then(|planned| match planned {
            Planned::Part { ref target, .. } => target.reserve().map(|()| planned),
            planned => Ok(planned),
        });
        match planned {
            Ok(Planned::Part {
                target,
                verified,
                present,
                restarted: is_restarted,
            }) => {
                if is_restarted {
                    self.observer.event(&Event::Note(&restarted(&target.shown)));
                }
                self.present_before = self.present_before.saturating_add(present);
                match outcome.operands.get_mut(&file) {
                    Some(operand) => operand.present = present,
                    None => outcome.resumed += present,
                }
                if present > 0 || is_restarted {
                    let part = Part {
                        file,
                        present,
                        restarted: is_restarted,
                    };
                    self.link.send(&Message::Plan(Plan {
                        first: file,
                        parts: vec![part],
                        ..Plan::default()
                    }))?;
                }
                self.targets.insert(file, Arc::clone(&target));
                let mut blocks = Blockwise::new(target, verified);
                if let State::Waiting(commit) = incoming.state {
                    blocks.commit = commit;
                }
                incoming.state = State::Blocks(Box::new(blocks));
                self.request_opened(file..file + 1)?;
                self.publish_if_due(file)
            }
            Ok(_) => {
                let text = "something else got its name at the target meanwhile";
                self.fail(file, &Fault::new(Code::FileError, text), outcome)
            }
            Err(fault) => self.fail(file, &fault, outcome),
        }
    }

    pub(super) fn ask(&mut self, runs: Vec<Run>) -> Result<(), Fault> {
        for (file, end) in self.sink.append(&runs)? {
            if let Some(blocks) = self.blockwise(file)? {
                blocks.end = end;
            }
        }
        self.link.send(&Message::Wants(Wants { runs }))
    }

    /// Requests small files.
    pub(super) fn ask_files(&mut self, files: &[(u32, u64)]) -> Result<(), Fault> {
        if files.is_empty() {
            return Ok(());
        }
        self.sink.append_files(files)?;
        let runs = runs_of(files.iter().map(|(file, _)| *file));
        self.link.send(&Message::WantFiles(FileRuns { runs }))
    }
}

/// Returns the runs of ascending ids.
pub(super) fn runs_of(files: impl Iterator<Item = u32>) -> Vec<FileRun> {
    let mut runs: Vec<FileRun> = Vec::new();
    for file in files {
        match runs.last_mut() {
            Some(run) if run.first + run.count == file => run.count += 1,
            _ => runs.push(FileRun {
                first: file,
                count: 1,
            }),
        }
    }
    runs
}
