//! The role of the end that sends the files.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, after, never, select, unbounded};

use super::{Carrier, CarrierEnd, GRACE, Meter, account_of, channel_fault, saturating_sum, spawn};
use crate::channel::Opening;
use crate::fault::{Code, Fault};
use crate::link::Link;
use crate::report::{Event, FileResult, Observer};
use crate::session::hash::{Hashed, Whole, hash_source};
use crate::source::{FileSource, SourceFile, Standing};
use crate::wire::{
    self, Commit, Complete, FilePlan, FileRoot, Message, Offer, Plan, RUNS_MAX, Run,
};

/// How often to check whether the last bytes of a file have left.
const LEAVE_TICK: Duration = Duration::from_millis(2);

/// Result of a sender; after a failure, the state until then.
#[derive(Debug, Default)]
pub(crate) struct SenderOutcome {
    /// The receiver's plan for each file.
    pub(crate) plan: Vec<FilePlan>,
    /// Bytes requested since, without repairs, for each file.
    missing: Vec<u64>,
    /// Files of which the receiver has blocks of another source.
    is_stale: Vec<usize>,
    /// The hash of each published file.
    pub(crate) roots: Vec<Option<[u8; 32]>>,
    /// Counters of this end.
    pub(crate) spent: Complete,
    /// The receiver's counters.
    pub(crate) peer: Complete,
}

/// Makes the messages that precede [`run`]: the offer, and a `Commit` for each empty file.
pub(crate) fn offer(files: &[SourceFile], binding: &[u8; 32]) -> Result<Vec<Message>, Fault> {
    let entries = files.iter().map(SourceFile::entry).collect();
    let mut messages = vec![Message::Offer(Offer { files: entries })];
    for whole in empty_files(files) {
        messages.push(commit(binding, &files[whole.file as usize], whole)?);
    }
    Ok(messages)
}

/// Lists the files without a block to hash.
fn empty_files(files: &[SourceFile]) -> impl Iterator<Item = Whole> {
    let empty = (0..).zip(files).filter(|(_, source)| source.size == 0);
    empty.map(|(file, source)| Whole {
        file,
        root: *source.blocks().root(&[]).as_bytes(),
        end: 0,
    })
}

fn commit(binding: &[u8; 32], source: &SourceFile, whole: Whole) -> Result<Message, Fault> {
    let Whole { file, root, end } = whole;
    let seal = wire::seal(binding, &source.entry(), &root)?;
    Ok(Message::Commit(Commit { file, seal, end }))
}

/// Sends the requested blocks of the offered files until the receiver has everything.
pub(crate) fn run(
    link: &Link,
    files: Vec<SourceFile>,
    binding: [u8; 32],
    opening: Opening,
    observer: &dyn Observer,
    outcome: &mut SenderOutcome,
) -> Result<(), Fault> {
    let meter = Meter::start();
    outcome.roots = vec![None; files.len()];
    let source = FileSource::new(files);
    let carrier = Carrier::new(&opening);
    let result = std::thread::scope(|scope| {
        let (events, happened) = unbounded();
        let (source, carrier) = (&source, &carrier);
        let channel_events = events.clone();
        let send = move || {
            let end = carrier.run(opening, |channel| channel.send(source));
            // The session may be over.
            let _ = channel_events.send(Happened::Channel(end));
        };
        let hash = move || {
            hash_source(source, |hashed| {
                events.send(Happened::Hashed(hashed)).is_ok()
            });
        };
        let empty = empty_files(source.files());
        let mut session = Session {
            link,
            source,
            binding,
            carrier,
            observer,
            meter,
            leaving: BTreeMap::new(),
            committed: empty.map(|whole| (whole.file, whole)).collect(),
        };
        let result = spawn(scope, "haul-send", send)
            .and_then(|()| spawn(scope, "haul-hash", hash))
            .and_then(|()| session.converse(&happened, outcome))
            .map_err(|fault| session.revoke(fault, outcome));
        source.complete();
        carrier.close();
        drop(happened);
        result
    });
    outcome.spent = meter.spent(carrier.moved(source.taken()), 0, carrier.stats());
    result
}

enum Happened {
    Channel(CarrierEnd),
    Hashed(Result<Hashed, Fault>),
}

struct Session<'a> {
    link: &'a Link,
    source: &'a FileSource,
    /// Of the request: [`wire::seal`] covers it.
    binding: [u8; 32],
    carrier: &'a Carrier,
    observer: &'a dyn Observer,
    meter: Meter,
    /// Files of which every block has been hashed, and not every byte has left yet.
    leaving: BTreeMap<u32, Whole>,
    /// Files that the receiver may publish.
    committed: BTreeMap<u32, Whole>,
}

impl Session<'_> {
    fn converse(
        &mut self,
        happened: &Receiver<Happened>,
        outcome: &mut SenderOutcome,
    ) -> Result<(), Fault> {
        let mut happened = happened.clone();
        loop {
            let tick = if self.leaving.is_empty() {
                never()
            } else {
                after(LEAVE_TICK)
            };
            select! {
                recv(self.link.incoming()) -> message => {
                    let message = message.map_err(|_| Fault::protocol("no control connection"))??;
                    if self.handle(message, outcome)? {
                        return Ok(());
                    }
                }
                recv(happened) -> event => match event {
                    Ok(Happened::Hashed(hashed)) => match hashed? {
                        Hashed::Digests(digests) => self.link.send(&Message::Digests(digests))?,
                        Hashed::Pieces(pieces) => self.link.send(&Message::Pieces(pieces))?,
                        Hashed::Whole(whole) => {
                            self.leaving.insert(whole.file, whole);
                        }
                        Hashed::Proved(file) => self.commit(file)?,
                    },
                    Ok(Happened::Channel(end)) => self.on_channel(end)?,
                    Err(_) => happened = never(),
                },
                recv(tick) -> _ => {}
            }
            self.commit_what_left()?;
        }
    }

    /// Commits the files whose last byte has left.
    fn commit_what_left(&mut self) -> Result<(), Fault> {
        if self.leaving.is_empty() {
            return Ok(());
        }
        let sent = self.carrier.moved(self.source.taken());
        let left = self.leaving.values().filter(|whole| whole.end <= sent);
        let left: Vec<Whole> = left.copied().collect();
        for whole in left {
            self.leaving.remove(&whole.file);
            self.committed.insert(whole.file, whole);
            if self.is_unchanged(whole.file)? {
                self.commit(whole.file)?;
            }
        }
        Ok(())
    }

    /// Returns whether a source still is what was offered. If only its content shows that, has the
    /// hasher read it.
    fn is_unchanged(&self, file: u32) -> Result<bool, Fault> {
        let standing = self.source.files()[file as usize].check_unchanged()?;
        if standing == Standing::Touched {
            self.source.prove(file);
        }
        Ok(standing == Standing::Unchanged)
    }

    fn commit(&self, file: u32) -> Result<(), Fault> {
        let Some(whole) = self.committed.get(&file) else {
            return Ok(());
        };
        let source = &self.source.files()[file as usize];
        self.link.send(&commit(&self.binding, source, *whole)?)
    }

    /// Reports to the receiver why the session ends, and returns what to report to the user. The
    /// receiver may publish a committed file before it reads that the source has changed: then the
    /// fault is transient, and the next attempt sends the source as it is now.
    fn revoke(&mut self, fault: Fault, outcome: &mut SenderOutcome) -> Fault {
        self.link.report(&fault);
        if fault.code != Code::SourceChanged || self.committed.is_empty() {
            return fault;
        }
        let deadline = Instant::now() + GRACE;
        let mut is_published = false;
        while let Ok(Ok(message)) = self.link.incoming().recv_deadline(deadline) {
            if let Message::Done(done) = message {
                is_published |= self.on_done(&done, outcome).is_ok();
            }
        }
        if is_published {
            Fault::new(
                Code::PeerGone,
                "a source changed just after it was delivered",
            )
        } else {
            fault
        }
    }

    /// Returns true after the last message of the session.
    fn handle(&mut self, message: Message, outcome: &mut SenderOutcome) -> Result<bool, Fault> {
        match message {
            Message::Plan(plan) => self.on_plan(plan, outcome)?,
            Message::Wants(wants) => {
                if wants.runs.len() > RUNS_MAX {
                    return Err(Fault::protocol(
                        "the receiver asked for too many runs at once",
                    ));
                }
                self.source.append(&wants.runs)?;
                self.count_as_missing(&wants.runs, outcome);
            }
            Message::Locate(locate) => self.source.locate(locate)?,
            Message::Repair(repair) => self.source.repair(&repair)?,
            Message::Confirm(confirm) => self.source.confirm(&confirm.runs)?,
            Message::Progress(progress) => {
                let total = saturating_sum(self.source.files().iter().map(|file| file.size));
                self.observer.event(&Event::Progress {
                    present: progress.present,
                    total,
                    moved: self.carrier.moved(self.source.taken()),
                });
                // A slow receiver can still be stopped from publishing what has changed since.
                for &file in self.committed.keys() {
                    self.is_unchanged(file)?;
                }
            }
            Message::Done(done) => self.on_done(&done, outcome)?,
            Message::Complete(peer) => {
                let done = |(plan, root): (&FilePlan, &Option<_>)| plan.complete || root.is_some();
                if outcome.plan.is_empty() || !outcome.plan.iter().zip(&outcome.roots).all(done) {
                    return Err(Fault::protocol("the receiver ended before all was done"));
                }
                outcome.peer = peer;
                let spent = self
                    .meter
                    .spent(self.source.taken(), 0, self.carrier.stats());
                self.link.send(&Message::Complete(spent))?;
                return Ok(true);
            }
            other => return Err(other.misplaced()),
        }
        Ok(false)
    }

    /// Counts requested bytes. Present blocks that belong to another source are requested later.
    fn count_as_missing(&self, runs: &[Run], outcome: &mut SenderOutcome) {
        for run in runs {
            let (index, len) = (run.file as usize, self.source.len(run));
            if let (Some(missing), Some(plan)) =
                (outcome.missing.get_mut(index), outcome.plan.get_mut(index))
            {
                *missing = missing.saturating_add(len);
                let file = &self.source.files()[index];
                let present = plan.present.min(file.size.saturating_sub(*missing));
                if present < plan.present && !outcome.is_stale.contains(&index) {
                    outcome.is_stale.push(index);
                    self.observer.event(&Event::Note(&stale(&file.name)));
                }
                plan.present = present;
            }
        }
    }

    fn on_done(&mut self, done: &FileRoot, outcome: &mut SenderOutcome) -> Result<(), Fault> {
        let index = done.file as usize;
        let (Some(file), Some(root), Some(plan)) = (
            self.source.files().get(index),
            outcome.roots.get_mut(index),
            outcome.plan.get(index),
        ) else {
            return Err(Fault::protocol(
                "the receiver completed a file that was not offered",
            ));
        };
        let whole = self.committed.remove(&done.file);
        if whole.is_none_or(|whole| whole.root != done.blake3) {
            return Err(wire::damaged());
        }
        *root = Some(done.blake3);
        self.observer.event(&Event::FileDone(&FileResult::copied(
            &file.name,
            file.size,
            done.blake3,
            plan.present,
        )));
        Ok(())
    }

    fn on_plan(&mut self, plan: Plan, outcome: &mut SenderOutcome) -> Result<(), Fault> {
        let files = self.source.files();
        if plan.files.len() != files.len() {
            return Err(Fault::protocol("the receiver's plan is about other files"));
        }
        for (file, plan) in files.iter().zip(&plan.files) {
            if plan.restarted {
                self.observer.event(&Event::Note(&restarted(&file.name)));
            }
        }
        let total = saturating_sum(files.iter().map(|file| file.size));
        let present = saturating_sum(plan.files.iter().map(|file| file.present));
        self.observer.event(&Event::Planned {
            files: files.len(),
            total,
            present,
        });
        for (file, _) in (0..).zip(&plan.files).filter(|(_, plan)| plan.complete) {
            self.committed.remove(&file);
        }
        outcome.missing = vec![0; plan.files.len()];
        outcome.plan = plan.files;
        Ok(())
    }

    fn on_channel(&self, end: CarrierEnd) -> Result<(), Fault> {
        match end {
            CarrierEnd::NotOpened(fault) => Err(account_of(self.link, fault)),
            CarrierEnd::Ran(Ok(())) => Err(account_of(
                self.link,
                Fault::new(Code::PeerGone, "the data connection was closed"),
            )),
            CarrierEnd::Ran(Err(error)) => Err(channel_fault(self.link, &error)),
        }
    }
}

/// Notes that a partial copy is discarded.
pub(crate) fn restarted(name: &impl std::fmt::Display) -> String {
    format!("'{name}' has changed since its partial copy was made; starting over")
}

/// Notes that some blocks of a partial copy are stale.
pub(crate) fn stale(name: &impl std::fmt::Display) -> String {
    format!("'{name}' has changed since its partial copy was made; what differs is fetched again")
}
