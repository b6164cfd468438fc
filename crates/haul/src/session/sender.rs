//! The role of the end that sends the files.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, at, never, select, unbounded};

use super::{Carrier, CarrierEnd, Meter, account_of, channel_fault, saturating_sum, spawn};
use crate::channel::Opening;
use crate::fault::{Code, Fault};
use crate::link::Link;
use crate::report::{Event, FileResult, Observer};
use crate::session::hash::{Hashed, HashedOr, Whole, hash_source};
use crate::source::{FileSource, SourceFile, Standing};
use crate::wire::{
    self, Commit, Complete, FilePlan, FileRoot, Message, Offer, Plan, RUNS_MAX, Run,
};

/// When to check again whether the last bytes of a file have left: after the lower bound at first,
/// then twice as long each time, up to a quarter of a round trip within these bounds.
const CHECK_AFTER: RangeInclusive<Duration> = Duration::from_millis(2)..=Duration::from_millis(50);
/// If the channel's counter has stood still for this long, what the channel has taken counts as
/// sent: not every kernel counts, and some count retransmissions that never left.
const STANDSTILL: Duration = Duration::from_millis(500);
/// How long a sender that withdraws a commit waits for the receiver's answer. The receiver may have
/// to finish an fsync first.
const ANSWER: Duration = Duration::from_secs(10);

/// Result of a sender; after a failure, the state until then.
#[derive(Debug, Default)]
pub(crate) struct SenderOutcome {
    /// The receiver's plan for each file.
    pub(crate) plan: Vec<FilePlan>,
    /// Bytes requested since, without repairs, for each file.
    missing: Vec<u64>,
    /// Files of which the receiver has blocks of another source.
    is_stale: Vec<usize>,
    /// A file changed after the receiver had published it as offered.
    pub(crate) is_superseded: bool,
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
        let mut session = Session::new(link, source, binding, carrier, observer, meter);
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
    Hashed(HashedOr),
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
    /// What the channel had sent at the latest check, and since when.
    sent: u64,
    sent_at: Instant,
    /// When to check next, if a file is leaving, and how long after the latest check that is.
    check_at: Option<Instant>,
    pause: Duration,
    /// The receiver has every byte.
    is_all_present: bool,
    /// Files whose attributes changed: the hasher is reading them again.
    proving: BTreeSet<u32>,
    /// Files that the receiver may publish: their `Commit` was sent.
    committed: BTreeMap<u32, Whole>,
    /// The file whose change ends the session.
    changed: Option<u32>,
}

impl<'a> Session<'a> {
    fn new(
        link: &'a Link,
        source: &'a FileSource,
        binding: [u8; 32],
        carrier: &'a Carrier,
        observer: &'a dyn Observer,
        meter: Meter,
    ) -> Self {
        let empty = empty_files(source.files());
        Self {
            link,
            source,
            binding,
            carrier,
            observer,
            meter,
            leaving: BTreeMap::new(),
            sent: 0,
            sent_at: Instant::now(),
            check_at: None,
            pause: *CHECK_AFTER.start(),
            is_all_present: false,
            proving: BTreeSet::new(),
            changed: None,
            committed: empty.map(|whole| (whole.file, whole)).collect(),
        }
    }

    fn converse(
        &mut self,
        happened: &Receiver<Happened>,
        outcome: &mut SenderOutcome,
    ) -> Result<(), Fault> {
        let mut happened = happened.clone();
        loop {
            let tick = self.check_at.map_or_else(never, at);
            select! {
                recv(self.link.incoming()) -> message => {
                    let message = message.map_err(|_| Fault::protocol("no control connection"))??;
                    if self.handle(message, outcome)? {
                        return Ok(());
                    }
                }
                recv(happened) -> event => match event {
                    Ok(Happened::Hashed(hashed)) => self.on_hashed(hashed, outcome)?,
                    Ok(Happened::Channel(end)) => self.on_channel(end)?,
                    Err(_) => happened = never(),
                },
                recv(tick) -> _ => self.commit_what_left()?,
            }
        }
    }

    fn on_hashed(&mut self, hashed: HashedOr, outcome: &SenderOutcome) -> Result<(), Fault> {
        match hashed {
            Ok(Hashed::Digests(digests)) => self.link.send(&Message::Digests(digests)),
            Ok(Hashed::Pieces(pieces)) => self.link.send(&Message::Pieces(pieces)),
            Ok(Hashed::Whole(whole)) => {
                if self.leaving.is_empty() {
                    (self.sent_at, self.pause) = (Instant::now(), *CHECK_AFTER.start());
                }
                self.leaving.insert(whole.file, whole);
                self.commit_what_left()
            }
            Ok(Hashed::Proved(file)) => {
                self.proving.remove(&file);
                self.commit_what_left()
            }
            // Published as offered, before the hasher had read it again.
            Err((file, _))
                if outcome.roots[file as usize].is_some() && self.proving.remove(&file) =>
            {
                Ok(())
            }
            Err((file, fault)) => {
                self.changed = Some(file);
                Err(fault)
            }
        }
    }

    /// Commits the files whose last byte has left.
    fn commit_what_left(&mut self) -> Result<(), Fault> {
        let now = Instant::now();
        let (taken, stats) = (self.source.taken(), self.carrier.stats());
        let sent = stats.moved(taken);
        if sent != self.sent {
            (self.sent, self.sent_at) = (sent, now);
        }
        let is_still = now.duration_since(self.sent_at) >= STANDSTILL;
        let sent = if is_still || self.is_all_present {
            taken
        } else {
            sent
        };
        let left = self.leaving.values().filter(|whole| whole.end <= sent);
        let left: Vec<Whole> = left.copied().collect();
        for whole in left {
            if self.is_unchanged(whole.file)? {
                self.leaving.remove(&whole.file);
                self.committed.insert(whole.file, whole);
                let source = &self.source.files()[whole.file as usize];
                self.link.send(&commit(&self.binding, source, whole)?)?;
            }
        }
        let rtt = Duration::from_micros(stats.rtt_us.unwrap_or(0).into());
        let most = (rtt / 4).clamp(*CHECK_AFTER.start(), *CHECK_AFTER.end());
        // A file that is being read again needs no check until then.
        let is_waiting = |file| !self.proving.contains(file);
        self.check_at = (self.leaving.keys().any(is_waiting)).then(|| now + self.pause);
        self.pause = (self.pause * 2).min(most);
        Ok(())
    }

    /// Returns whether a source still is what was offered. If only its content shows that, has the
    /// hasher read it: the file counts as changed until the hasher has [`Hashed::Proved`] it.
    fn is_unchanged(&mut self, file: u32) -> Result<bool, Fault> {
        if self.proving.contains(&file) {
            return Ok(false);
        }
        let standing = self.source.files()[file as usize].check_unchanged();
        let standing = standing.inspect_err(|_| self.changed = Some(file))?;
        if standing == Standing::Touched {
            self.proving.insert(file);
            self.source.prove(file);
        }
        Ok(standing == Standing::Unchanged)
    }

    /// Reports to the receiver why the session ends, and returns what to report to the user. The
    /// receiver may publish a committed file before it reads that the source has changed.
    fn revoke(&mut self, fault: Fault, outcome: &mut SenderOutcome) -> Fault {
        let committed = |file: &u32| self.committed.contains_key(file);
        let Some(changed) = self.changed.filter(committed) else {
            let fault = match fault.code {
                Code::SourceChanged => fault.with("; it was not delivered"),
                _ => fault,
            };
            self.link.report(&fault);
            return fault;
        };
        self.link.report(&fault);
        let deadline = Instant::now() + ANSWER;
        loop {
            match self.link.incoming().recv_deadline(deadline) {
                Ok(Ok(Message::Done(done))) if self.on_done(&done, outcome).is_ok() => {
                    if done.file == changed {
                        outcome.is_superseded = true;
                        return fault.with("; it was delivered as it was before");
                    }
                }
                Ok(Ok(_)) => {}
                // The receiver sends its error after its last `Done`.
                Ok(Err(answer)) if answer.code == fault.code => {
                    return fault.with("; it was not delivered");
                }
                Ok(Err(_)) | Err(_) => {
                    return fault.with("; whether it was delivered is not known");
                }
            }
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
                self.is_all_present = progress.present >= total;
                if self.is_all_present && !self.leaving.is_empty() {
                    self.commit_what_left()?;
                }
                // A slow receiver can still be stopped from publishing what has changed since.
                let committed: Vec<u32> = self.committed.keys().copied().collect();
                for file in committed {
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use super::*;
    use crate::session::State;
    use crate::session::tests::{Counting, Silent, links, source};
    use crate::source::{Aside, Work};

    /// The blocks of a file are hashed again, for a stale partial copy, while the file is read
    /// again because its attributes changed.
    #[test]
    fn a_touched_file_is_committed_only_once_it_is_proved() {
        let (near, far) = links();
        let (file, handle) = source("a", b"content");
        let source = FileSource::new(vec![file]);
        let channel = Arc::new(Counting::default());
        let carrier = Carrier {
            cancel: crate::cancel::Cancel::default(),
            state: std::sync::Mutex::new(State::Open(channel)),
        };
        let mut session = Session::new(&near, &source, [0; 32], &carrier, &Silent, Meter::start());
        let whole = |end| {
            Ok(Hashed::Whole(Whole {
                file: 0,
                root: [1; 32],
                end,
            }))
        };
        let outcome = SenderOutcome {
            roots: vec![None],
            ..SenderOutcome::default()
        };
        let wait = || far.incoming().recv_timeout(Duration::from_millis(50));
        handle
            .set_permissions(std::fs::Permissions::from_mode(0o640))
            .unwrap();
        session.on_hashed(whole(0), &outcome).unwrap();
        assert!(matches!(
            source.work(&mut 0),
            Some(Work::Aside(Aside::Prove(0)))
        ));
        let reread = || {
            session.on_hashed(whole(0), &outcome).unwrap();
            session.commit_what_left().unwrap();
            assert!(wait().is_err(), "committed unproven");
            Ok(true)
        };
        source.files()[0].prove(reread).unwrap();
        session.on_hashed(Ok(Hashed::Proved(0)), &outcome).unwrap();
        assert!(matches!(wait(), Ok(Ok(Message::Commit(_)))));
    }

    #[test]
    fn a_counter_that_stands_still_delays_a_commit_and_does_not_prevent_it() {
        let (near, far) = links();
        let source = FileSource::new(vec![source("a", b"content").0]);
        source
            .append(&[Run {
                file: 0,
                first: 0,
                count: 1,
            }])
            .unwrap();
        let channel = Arc::new(Counting(Some(0)));
        let carrier = Carrier {
            cancel: crate::cancel::Cancel::default(),
            state: std::sync::Mutex::new(State::Open(channel)),
        };
        haul_soft::bulk::Source::wait(&source, 7, Duration::ZERO);
        let mut session = Session::new(&near, &source, [0; 32], &carrier, &Silent, Meter::start());
        let whole = Whole {
            file: 0,
            root: [1; 32],
            end: 7,
        };
        let outcome = SenderOutcome {
            roots: vec![None],
            ..SenderOutcome::default()
        };
        session
            .on_hashed(Ok(Hashed::Whole(whole)), &outcome)
            .unwrap();
        assert!(session.check_at.is_some() && far.incoming().is_empty());
        std::thread::sleep(STANDSTILL);
        session.commit_what_left().unwrap();
        let sent = far.incoming().recv_timeout(Duration::from_secs(5));
        assert!(matches!(sent, Ok(Ok(Message::Commit(_)))));
    }
}
