//! The role of the end that receives the files.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, select, unbounded};
use haul_control::abridged;

use super::directories::Directories;
use super::durable::{Job, Report, make_durable};
use super::hash::{Found, hash_targets};
use super::members::{Ended, Members};
use super::outcome::Operand;
use super::plan::{self, Destination, Planned};
use super::sender::restarted;
use super::{Carrier, CarrierEnd, Meter, OnPanic, account_of, channel_fault, spawn, threads_ended};
mod blocks;
mod requests;
mod state;

use blocks::too_much_damage;
use requests::runs_of;
use state::{ATTEMPTS, Blockwise, Incoming, Linked, Session, Small, State};
pub(crate) use state::{ReceiverOutcome, Terms};

use crate::channel::Opening;
use crate::early::{self, Prefix};
use crate::entry::{self, Entry, What};
use crate::fault::{Code, Fault, RESUME};
use crate::fs::meta::Lost;
use crate::link::Link;
use crate::name::PATH_MAX;
use crate::report::{Event, FileResult, Observer};
use crate::sink::FileSink;
use crate::target::{Target, Targets};
use crate::wire::{
    self, Attributes, Complete, ENTRIES_OPEN, Failed, FileRoot, FileRuns, Message, Offer, Part,
    Plan, Progress, REPAIRS_MAX, Seals, WEIGHT_OPEN,
};

/// How often to report progress to the sender.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);
/// Blocks of replaced files that are compared by pieces at a time at first: they are no damage.
const OLD_AT_FIRST: usize = 64;
/// Files with several names in one transfer.
const LINKS_MAX: usize = 1 << 20;

/// Requests the missing blocks of the offered files and places them below `root` until all files
/// are published.
pub(crate) fn run(
    link: &Link,
    first: &Offer,
    root: Destination,
    terms: &Terms<'_>,
    opening: Opening,
    observer: &dyn Observer,
    outcome: &mut ReceiverOutcome,
) -> Result<(), Fault> {
    let meter = Meter::start();
    let carrier = Carrier::new(&opening);
    let mut moved = (0, 0);
    let tree = root.tree();
    let result = tree.confined(|| {
        receive(
            link, first, root, terms, opening, observer, &carrier, meter, outcome, &mut moved,
        )
    });
    let result = result.unwrap_or_else(|error| Err(Fault::system(&error)));
    carrier.close();
    if let Err(fault) = &result {
        link.report(fault);
    }
    outcome.spent = meter.spent(moved.0, moved.1, carrier.stats());
    result
}

/// Runs the threads of the session around its conversation.
#[expect(
    clippy::too_many_arguments,
    reason = "one caller; a struct would only rename them"
)]
fn receive(
    link: &Link,
    first: &Offer,
    root: Destination,
    terms: &Terms<'_>,
    opening: Opening,
    observer: &dyn Observer,
    carrier: &Carrier,
    meter: Meter,
    outcome: &mut ReceiverOutcome,
    moved: &mut (u64, u64),
) -> Result<(), Fault> {
    let targets = Arc::new(Targets::default());
    let stop = AtomicBool::new(false);
    let (written, tree) = (AtomicU64::new(0), root.tree());
    let members = Members::new(&tree, terms.policy, &written);
    let (complete, completed) = unbounded();
    let sink = Arc::new(FileSink::new(Arc::clone(&targets), complete));
    std::thread::scope(|scope| {
        let (events, happened) = unbounded();
        let (jobs, job_queue) = unbounded();
        let (targets, stop) = (&*targets, &stop);
        let channel_events = events.clone();
        let channel_sink = Arc::clone(&sink);
        let receive = move || {
            let _watch = OnPanic(|| drop(channel_events.send(Happened::Panicked)));
            let end = carrier.run(opening, |channel| channel.receive(&*channel_sink));
            // The session may be over, here and below.
            let _ = channel_events.send(Happened::Channel(end));
        };
        let hash_events = events.clone();
        let hash = move || {
            let _watch = OnPanic(|| drop(hash_events.send(Happened::Panicked)));
            hash_targets(targets, &completed, stop, |found| {
                hash_events.send(Happened::Hashed(found)).is_ok()
            });
        };
        let persist = move || {
            let _watch = OnPanic(|| drop(events.send(Happened::Persisted)));
            make_durable(targets, members, &job_queue, stop, |report| {
                let _ = events.send(Happened::Reported(report));
            });
            let _ = events.send(Happened::Persisted);
        };
        let started = spawn(scope, "haul-receive", receive)
            .and_then(|()| spawn(scope, "haul-hash", hash))
            .and_then(|()| spawn(scope, "haul-persist", persist));
        if let Err(fault) = started {
            carrier.close();
            // Those that did start end as below.
            drop((jobs, sink));
            return Err(fault);
        }
        let mut session = Session {
            link,
            root,
            terms,
            observer,
            carrier,
            sink: &sink,
            targets,
            jobs,
            meter,
            files: HashMap::new(),
            paths: HashSet::new(),
            weight: 0,
            directories: Directories::default(),
            links: HashMap::new(),
            next: 0,
            is_last: false,
            queue: VecDeque::new(),
            requested: 0,
            written: &written,
            total: 0,
            present_before: 0,
            repaired: 0,
            repairs: 0,
            damaged: VecDeque::new(),
            in_repair: 0,
            in_repair_max: if terms.policy.delta { OLD_AT_FIRST } else { 1 },
            is_finishing: false,
            is_finished: false,
            has_peer: false,
        };
        let planned = session.on_first_offer(first, outcome);
        sink.open();
        let result = planned.and_then(|()| session.converse(&happened, outcome));
        *moved = (sink.placed(), session.repaired);
        stop.store(true, Ordering::Release);
        carrier.close();
        if result.is_err() {
            session.acknowledge(&happened, outcome);
        }
        // The thread behind `jobs` ends when `jobs` is dropped, the hasher when the sink is.
        drop(session);
        drop(sink);
        result
    })
}

enum Happened {
    Channel(CarrierEnd),
    Hashed(Result<Found, (u32, Fault)>),
    Reported(Report),
    /// The thread that publishes has ended.
    Persisted,
    /// Another thread has failed.
    Panicked,
}

impl Session<'_> {
    fn converse(
        &mut self,
        happened: &Receiver<Happened>,
        outcome: &mut ReceiverOutcome,
    ) -> Result<(), Fault> {
        let mut reported = (Instant::now(), 0);
        let mut limit = self.terms.limit;
        while !self.is_finished {
            if let Some((limit, sent)) = &mut limit
                && limit.rate_bps() != *sent
            {
                *sent = limit.rate_bps();
                self.link.send(&Message::Rate(wire::Rate { bps: *sent }))?;
            }
            select! {
                recv(self.link.incoming()) -> message => {
                    let message = message.map_err(|_| Fault::protocol("no control connection"))??;
                    self.handle(message, outcome)?;
                }
                recv(happened) -> event => {
                    let event = event.map_err(|_| threads_ended())?;
                    self.on_event(event, outcome)?;
                    for event in happened.try_iter().take(EVENTS) {
                        self.on_event(event, outcome)?;
                    }
                    self.request(outcome)?;
                }
                default(PROGRESS_EVERY) => {}
            }
            if reported.0.elapsed() >= PROGRESS_EVERY && self.present() != reported.1 {
                reported = (Instant::now(), self.present());
                self.link.send(&Message::Progress(Progress {
                    present: reported.1,
                }))?;
                self.report_progress(outcome);
            }
        }
        self.finish(outcome)
    }

    fn report_progress(&self, outcome: &ReceiverOutcome) {
        self.observer.event(&Event::Progress {
            present: self.present(),
            total: self.total,
            moved: self.sink.placed(),
            resumed: outcome.resumed(),
            files: outcome.counts.finished(),
            is_scanned: self.is_last,
        });
    }

    /// Ends the thread that publishes, and sends `Done` for each file that it published meanwhile:
    /// a sender that ends the session must know which files have their names.
    fn acknowledge(&mut self, happened: &Receiver<Happened>, outcome: &mut ReceiverOutcome) {
        self.jobs = unbounded().0;
        for event in happened {
            match event {
                // The connection may be lost.
                Happened::Reported(Report::Published(file)) => {
                    let _ = self.on_published(file, outcome);
                }
                Happened::Reported(Report::Members(ended)) => {
                    let _ = self.on_members(ended, outcome);
                }
                Happened::Reported(Report::Lost(lost)) => {
                    let _ = self.on_lost(lost, outcome);
                }
                Happened::Persisted => return,
                _ => {}
            }
        }
    }

    fn finish(&self, outcome: &mut ReceiverOutcome) -> Result<(), Fault> {
        // Before the sender, and its user, know that it is over.
        self.root.unlock();
        let stats = self.carrier.stats();
        let spent = self.meter.spent(self.sink.placed(), self.repaired, stats);
        let lost = Some(outcome.lost).filter(Attributes::is_any);
        self.link
            .send(&Message::Complete(Complete { lost, ..spent }))?;
        // All files are published: a failure now costs only the sender's counters.
        if self.has_peer {
            return Ok(());
        }
        loop {
            match self.link.incoming().recv_timeout(super::GRACE) {
                Ok(Ok(Message::Complete(peer))) => {
                    outcome.peer = peer;
                    break;
                }
                Ok(Ok(_)) => {}
                Ok(Err(_)) | Err(_) => break,
            }
        }
        Ok(())
    }

    fn present(&self) -> u64 {
        (self.present_before + self.sink.placed()).saturating_sub(self.repaired)
    }

    fn handle(&mut self, message: Message, outcome: &mut ReceiverOutcome) -> Result<(), Fault> {
        match message {
            Message::Offer(offer) => self.on_offer(&offer, outcome),
            Message::Digests(digests) => self.on_digests(&digests, outcome),
            Message::Pieces(pieces) => self.on_pieces(&pieces),
            Message::Seals(seals) => self.on_seals(&seals, outcome),
            Message::Failed(failed) => {
                let fault = failed.fault();
                self.on_source_failed(failed.file, fault, outcome)
            }
            Message::LeftOut(left_out) if left_out.path.len() > 2 * PATH_MAX => {
                Err(Fault::protocol("a path is too long"))
            }
            Message::LeftOut(left_out) => {
                let Some(code) = left_out.code else {
                    outcome.counts.special += 1;
                    return Ok(());
                };
                let fault = Fault::new(Code::from_number(code), abridged(&left_out.text));
                outcome.counts.failed += 1;
                self.observer.event(&Event::Failed {
                    path: &left_out.path,
                    fault: &fault,
                });
                Ok(())
            }
            Message::Commit(commit) => {
                if let Some(incoming) = self.files.get_mut(&commit.file)
                    && let State::Waiting(early) = &mut incoming.state
                    && incoming.entry.is_blank()
                {
                    *early = Some(commit);
                    return Ok(());
                }
                let Some(incoming) = self.blockwise(commit.file)? else {
                    return Ok(());
                };
                incoming.commit = Some(commit);
                self.publish_if_due(commit.file)
            }
            Message::Complete(peer) => {
                (outcome.peer, self.has_peer) = (peer, true);
                Ok(())
            }
            other => Err(other.misplaced()),
        }
    }

    /// Plans the first batch of entries, which may have early data, and answers it.
    fn on_first_offer(
        &mut self,
        offer: &Offer,
        outcome: &mut ReceiverOutcome,
    ) -> Result<(), Fault> {
        let entries = entry::parse(&offer.entries)?;
        let early = early::divide(entries.iter(), offer.early.unwrap_or(0))?;
        self.plan_batch(offer, entries, &early, outcome)
    }

    fn on_offer(&mut self, offer: &Offer, outcome: &mut ReceiverOutcome) -> Result<(), Fault> {
        if offer.early.is_some() {
            return Err(Fault::protocol("the peer sent early data late"));
        }
        self.plan_batch(offer, entry::parse(&offer.entries)?, &[], outcome)
    }

    /// Plans a batch of entries and answers it.
    fn plan_batch(
        &mut self,
        offer: &Offer,
        entries: Vec<Entry>,
        early: &[Prefix],
        outcome: &mut ReceiverOutcome,
    ) -> Result<(), Fault> {
        let count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
        let next = self.next.checked_add(count);
        let next = next.filter(|_| offer.first == self.next && !self.is_last);
        let next = next.ok_or_else(|| Fault::protocol("the peer sent an offer out of order"))?;
        let weight: usize = entries.iter().map(Entry::weight).sum();
        if self.files.len() + entries.len() > ENTRIES_OPEN || self.weight + weight > WEIGHT_OPEN {
            return Err(Fault::protocol("the peer offers too many files at once"));
        }
        let mut answer = Plan {
            first: offer.first,
            count,
            complete: vec![0; entries.len().div_ceil(8)],
            parts: Vec::new(),
        };
        self.is_last = offer.is_last;
        let mut opened = Vec::new();
        let planned = self.plan_all(entries, &mut answer, &mut opened, outcome);
        if let Err(fault) = planned.and_then(|()| self.root.check_room(&opened, &self.files_left()))
        {
            for target in opened.iter().filter(|target| target.is_new()) {
                target.discard();
            }
            return Err(fault);
        }
        opened.iter().try_for_each(|target| target.reserve())?;
        self.next = next;
        self.take_early(early, &mut answer)?;
        self.link.send(&Message::Plan(answer))?;
        if offer.first == 0 && (count > 0 || self.is_last) {
            self.observer.event(&Event::Planned {
                files: next as usize,
                total: self.total,
                present: self.present_before,
            });
        }
        self.request_opened(offer.first..next)?;
        self.request(outcome)?;
        for file in offer.first..next {
            self.publish_if_due(file)?;
        }
        self.finish_if_done()
    }

    /// Places early data in the files of which nothing is present, as the sender concludes from the
    /// plan, and discards the rest.
    fn take_early(&mut self, early: &[Prefix], answer: &mut Plan) -> Result<(), Fault> {
        for prefix in early {
            let file = prefix.file;
            let state = self.files.get_mut(&file).map(|file| &mut file.state);
            let is_wanted = match &state {
                Some(State::Blocks(blocks)) => blocks.doubtful.is_empty(),
                Some(State::Waiting(_)) => prefix.is_small,
                _ => false,
            };
            let end = self.sink.begin(*prefix, is_wanted)?;
            match state {
                Some(State::Blocks(blocks)) if is_wanted && prefix.is_whole => {
                    (blocks.is_early, blocks.end) = (true, end);
                }
                Some(state @ State::Waiting(_)) if is_wanted => {
                    *state = State::Small(Small::default());
                    self.requested += prefix.len;
                }
                // It is opened later, when there is room.
                Some(State::Waiting(_)) => answer.parts.push(Part {
                    file,
                    present: 0,
                    restarted: false,
                }),
                _ => {}
            }
        }
        // What follows may take long, and early data may have arrived.
        self.sink.open();
        Ok(())
    }

    fn plan_all(
        &mut self,
        entries: Vec<Entry>,
        answer: &mut Plan,
        opened: &mut Vec<Arc<Target>>,
        outcome: &mut ReceiverOutcome,
    ) -> Result<(), Fault> {
        for (index, entry) in entries.into_iter().enumerate() {
            let file = answer.first + u32::try_from(index).unwrap_or(u32::MAX);
            if !self.paths.insert(entry.path.clone()) {
                let text = format!("two files are called '{}'", entry.path);
                return Err(
                    Fault::new(Code::Usage, text).hint("send them to different directories")
                );
            }
            self.total = self.total.saturating_add(entry.data());
            outcome.counts.offer(&entry);
            let may_open = self.targets.has_room();
            let planned = (self.terms.allows)(&entry).and_then(|()| {
                if self.is_unwanted(&entry) {
                    return Ok(Planned::Complete);
                }
                self.plan_link(&entry)
                    .unwrap_or_else(|| self.root.plan(&entry, self.terms.policy, may_open))
            });
            if !entry.is_member {
                let operand = Operand::new(&entry, planned.as_ref().ok());
                outcome.operands.insert(file, operand);
            }
            let is_complete = self.note_plan(file, entry, planned, answer, opened, outcome)?;
            if is_complete {
                answer.complete[index / 8] |= 1 << (index % 8);
            }
        }
        Ok(())
    }

    /// Returns whether this end leaves what an entry offers as it is here.
    fn is_unwanted(&self, entry: &Entry) -> bool {
        let is_directory = matches!(entry.what, What::Directory);
        let only = self.terms.only.filter(|_| !is_directory);
        only.is_some_and(|only| !only.contains(&entry.path))
    }

    /// Plans a hard link whose file is not finished, has failed, or was not offered.
    fn plan_link(&self, entry: &Entry) -> Option<Result<Planned, Fault>> {
        let What::HardLink { path } = &entry.what else {
            return None;
        };
        let why = match self.links.get(&path.short_hash()) {
            Some(Linked::Done) => return None,
            Some(Linked::Pending(_)) => return Some(Ok(Planned::Wanted)),
            Some(Linked::Failed) => "failed",
            None if self.links.len() == LINKS_MAX => {
                "is beyond the number of files with several names that one transfer may have"
            }
            None => "was not offered",
        };
        let text = format!("'{}' is a link to '{path}', which {why}", entry.path);
        Some(Err(Fault::new(Code::FileError, text)))
    }

    /// Takes the plan of an entry; returns whether it is finished.
    fn note_plan(
        &mut self,
        file: u32,
        entry: Entry,
        planned: Result<Planned, Fault>,
        answer: &mut Plan,
        opened: &mut Vec<Arc<Target>>,
        outcome: &mut ReceiverOutcome,
    ) -> Result<bool, Fault> {
        let state = match planned {
            Err(fault) if entry.is_member && !ends_session(fault.code) => {
                self.paths.remove(&entry.path);
                self.note_linked(&entry, Linked::Failed);
                self.tell_failed(file, &entry, &fault, outcome)?;
                return Ok(true);
            }
            Err(fault) => return Err(fault),
            Ok(Planned::Complete) => {
                self.note_linked(&entry, Linked::Done);
                if let What::Directory = entry.what {
                    self.note_directory(&entry)?;
                } else {
                    outcome.counts.skipped += 1;
                }
                self.present_before = self.present_before.saturating_add(entry.data());
                if entry.is_member {
                    outcome.resumed += entry.data();
                }
                self.paths.remove(&entry.path);
                return Ok(true);
            }
            Ok(Planned::Part {
                target,
                verified,
                restarted: is_restarted,
                present,
            }) => {
                if is_restarted {
                    self.observer.event(&Event::Note(&restarted(&target.shown)));
                }
                self.present_before = self.present_before.saturating_add(present);
                if entry.is_member {
                    outcome.resumed += present;
                }
                if present > 0 || is_restarted {
                    answer.parts.push(Part {
                        file,
                        present,
                        restarted: is_restarted,
                    });
                }
                self.targets.insert(file, Arc::clone(&target));
                opened.push(Arc::clone(&target));
                State::Blocks(Box::new(Blockwise::new(target, verified)))
            }
            Ok(Planned::Wanted) => State::Waiting(None),
        };
        self.note_linked(&entry, Linked::Pending(Vec::new()));
        let is_waiting = matches!(state, State::Waiting(_));
        let waits_for = match &entry.what {
            What::HardLink { path } => self.links.get_mut(&path.short_hash()),
            _ => None,
        };
        match waits_for {
            Some(Linked::Pending(waiting)) => waiting.push(file),
            _ if is_waiting => self.queue.push_back(file),
            _ => {}
        }
        self.weight += entry.weight();
        self.files.insert(file, Box::new(Incoming { entry, state }));
        Ok(false)
    }

    /// Remembers a file to which hard links may follow.
    fn note_linked(&mut self, entry: &Entry, state: Linked) {
        if entry.file().is_some_and(|file| file.is_linked) && self.links.len() < LINKS_MAX {
            self.links.insert(entry.path.short_hash(), state);
        }
    }

    /// Has the attributes of a directory set at the end.
    fn note_directory(&mut self, entry: &Entry) -> Result<(), Fault> {
        if self.terms.adds_only {
            return Ok(());
        }
        let noted = self.directories.push(entry, &self.root.tree());
        noted.map_err(|error| Fault::file("cannot write to the target", &error))
    }

    /// Returns the entries whose storage is not reserved.
    fn files_left(&self) -> plan::Left {
        let mut left = plan::Left::default();
        for incoming in self.files.values() {
            if !matches!(incoming.state, State::Blocks(_)) {
                left.add(&incoming.entry);
            }
        }
        left
    }

    /// Fails an entry and tells the sender; the session goes on unless the entry was offered by
    /// itself or the disk is full.
    fn fail(
        &mut self,
        file: u32,
        fault: &Fault,
        outcome: &mut ReceiverOutcome,
    ) -> Result<(), Fault> {
        let Some(incoming) = self.remove(file) else {
            return Ok(());
        };
        if !incoming.entry.is_member || ends_session(fault.code) {
            return Err(fault.clone());
        }
        self.tell_failed(file, &incoming.entry, fault, outcome)?;
        self.locate()?;
        self.after(&incoming.entry, false, outcome)?;
        self.finish_if_done()
    }

    fn tell_failed(
        &mut self,
        file: u32,
        entry: &Entry,
        fault: &Fault,
        outcome: &mut ReceiverOutcome,
    ) -> Result<(), Fault> {
        outcome.counts.failed += 1;
        self.observer.event(&Event::Failed {
            path: entry.path.as_bytes(),
            fault,
        });
        self.link.send(&Message::Failed(Failed {
            file,
            code: fault.code.number(),
            text: fault.text.clone(),
        }))
    }

    /// Forgets a member that the sender cannot send.
    fn on_source_failed(
        &mut self,
        file: u32,
        fault: Fault,
        outcome: &mut ReceiverOutcome,
    ) -> Result<(), Fault> {
        let is_writing = |incoming: &Incoming| matches!(incoming.state, State::Writing);
        match self.files.get(&file) {
            None if file < self.next => return Ok(()),
            Some(incoming) if !incoming.entry.is_member => return Err(fault),
            // It is as it was sealed: the sender reports what it found later.
            Some(incoming) if is_writing(incoming) => return Ok(()),
            Some(_) => {}
            None => return Err(Fault::protocol("no such file")),
        }
        let Some(incoming) = self.remove(file) else {
            return Ok(());
        };
        outcome.counts.failed += 1;
        self.observer.event(&Event::Failed {
            path: incoming.entry.path.as_bytes(),
            fault: &fault,
        });
        self.locate()?;
        self.after(&incoming.entry, false, outcome)?;
        self.request(outcome)?;
        self.finish_if_done()
    }

    /// Forgets an entry that is finished.
    fn remove(&mut self, file: u32) -> Option<Incoming> {
        let incoming = *self.files.remove(&file)?;
        self.weight -= incoming.entry.weight();
        self.paths.remove(&incoming.entry.path);
        if let State::Blocks(blocks) = &incoming.state {
            // Others may be repaired in its place.
            let waiting = self.damaged.len();
            self.damaged.retain(|id| id.file != file);
            let waiting = waiting - self.damaged.len();
            let damaged = blocks.doubtful.values();
            let damaged = damaged.filter(|block| block.pieces.is_some()).count();
            self.in_repair = self.in_repair.saturating_sub(damaged - waiting);
            blocks.target.drop_rest();
            self.targets.remove(file);
        }
        if let State::Small(Small {
            content: Some((_, content)),
            ..
        }) = &incoming.state
        {
            self.requested -= content.len() as u64;
        }
        Some(incoming)
    }

    /// Makes the hard links that waited for a file, or fails them.
    fn after(
        &mut self,
        entry: &Entry,
        is_done: bool,
        outcome: &mut ReceiverOutcome,
    ) -> Result<(), Fault> {
        let known = entry.file().is_some_and(|file| file.is_linked);
        let known = known.then(|| self.links.get_mut(&entry.path.short_hash()));
        let Some(known) = known.flatten() else {
            return Ok(());
        };
        let now = if is_done {
            Linked::Done
        } else {
            Linked::Failed
        };
        let Linked::Pending(waiting) = std::mem::replace(known, now) else {
            return Ok(());
        };
        if is_done {
            self.queue.extend(waiting);
            return Ok(());
        }
        for file in waiting {
            let text = format!("it is a link to '{}', which failed", entry.path);
            self.fail(file, &Fault::new(Code::FileError, text), outcome)?;
        }
        Ok(())
    }

    /// Has the attributes of directories set once everything else is finished.
    fn finish_if_done(&mut self) -> Result<(), Fault> {
        if self.is_last && self.files.is_empty() && !self.is_finishing {
            self.is_finishing = true;
            let directories = std::mem::take(&mut self.directories);
            self.job(Job::Finish(directories))?;
        }
        Ok(())
    }

    fn on_seals(&mut self, message: &Seals, outcome: &mut ReceiverOutcome) -> Result<(), Fault> {
        let (seals, rest) = message.seals.as_chunks::<32>();
        if !rest.is_empty() {
            return Err(Fault::protocol("the peer sent seals that cannot be read"));
        }
        for (file, seal) in (message.first..self.next).zip(seals) {
            match self.files.get_mut(&file).map(|file| &mut file.state) {
                Some(State::Small(small)) => small.seal = Some(*seal),
                // It failed.
                None => continue,
                Some(_) => {
                    return Err(Fault::protocol(
                        "the peer sealed a file that was not requested",
                    ));
                }
            }
            self.compare_small(file, outcome)?;
        }
        Ok(())
    }

    /// Writes a small file once it is verified; requests it again if it arrived damaged.
    fn compare_small(&mut self, file: u32, outcome: &mut ReceiverOutcome) -> Result<(), Fault> {
        let Some(incoming) = self.files.get_mut(&file) else {
            return Ok(());
        };
        let State::Small(small) = &mut incoming.state else {
            return Ok(());
        };
        let Some(seal) = small.seal else {
            return Ok(());
        };
        let Some((digest, content)) = small.content.take() else {
            return Ok(());
        };
        if incoming.entry.seal(&self.terms.binding, &digest) == seal {
            let entry = Box::new(incoming.entry.clone());
            incoming.state = State::Writing;
            return self.job(Job::Member {
                file,
                entry,
                content,
            });
        }
        small.seal = None;
        small.attempts += 1;
        if small.attempts > ATTEMPTS {
            let text = format!("'{}' arrived damaged {ATTEMPTS} times", incoming.entry.path);
            let fault = Fault::new(Code::Integrity, text)
                .hint("check the memory and network adapters of both ends");
            self.requested -= content.len() as u64;
            return self.fail(file, &fault, outcome);
        }
        self.repairs += 1;
        if self.repairs > REPAIRS_MAX {
            return Err(too_much_damage());
        }
        self.repaired += content.len() as u64;
        self.ask_files(&[(file, content.len() as u64)])
    }

    fn on_event(&mut self, event: Happened, outcome: &mut ReceiverOutcome) -> Result<(), Fault> {
        match event {
            Happened::Hashed(Err((file, fault))) => self.fail(file, &fault, outcome),
            Happened::Hashed(Ok(found)) => match found {
                Found::Block(id, digest) => {
                    self.job(Job::Complete { file: id.file })?;
                    let Some(blocks) = self.blockwise(id.file)? else {
                        return Ok(());
                    };
                    blocks.doubtful.entry(id.block).or_default().computed = Some(digest);
                    self.compare(id, outcome)
                }
                Found::Pieces(id, digests) => self.compare_pieces(id, &digests, outcome),
                Found::Small(file, digest, content) => {
                    match self.files.get_mut(&file).map(|file| &mut file.state) {
                        Some(State::Small(small)) => small.content = Some((digest, content)),
                        // It failed meanwhile.
                        _ => self.requested -= content.len() as u64,
                    }
                    self.compare_small(file, outcome)
                }
            },
            Happened::Reported(report) => match report {
                Report::Published(file) => self.on_published(file, outcome),
                Report::Members(ended) => self.on_members(ended, outcome),
                Report::Failed(file, fault) => self.fail(file, &fault, outcome),
                Report::Lost(lost) => self.on_lost(lost, outcome),
                Report::Finished(finished) => {
                    finished?;
                    self.is_finished = true;
                    Ok(())
                }
            },
            Happened::Persisted | Happened::Panicked => Err(threads_ended()),
            Happened::Channel(end) => Err(self.on_channel(end)),
        }
    }

    /// Takes what members lost, and tells the sender: another session counts it no more.
    fn on_lost(&self, lost: Lost, outcome: &mut ReceiverOutcome) -> Result<(), Fault> {
        let lost = lost.into();
        outcome.lost.add(&lost);
        self.link.send(&Message::Lost(lost))
    }

    /// Takes members that have ended: those that are durable under their names, and failures.
    fn on_members(
        &mut self,
        ended: Vec<Ended>,
        outcome: &mut ReceiverOutcome,
    ) -> Result<(), Fault> {
        let mut done = Vec::new();
        for Ended { file, result } in ended {
            if let Err(fault) = result {
                self.fail(file, &fault, outcome)?;
                continue;
            }
            let Some(incoming) = self.remove(file) else {
                continue;
            };
            outcome.counts.copy(&incoming.entry);
            self.after(&incoming.entry, true, outcome)?;
            done.push(file);
        }
        done.sort_unstable();
        if !done.is_empty() {
            let runs = runs_of(done.into_iter());
            self.link.send(&Message::DoneFiles(FileRuns { runs }))?;
        }
        self.finish_if_done()
    }

    fn on_published(&mut self, file: u32, outcome: &mut ReceiverOutcome) -> Result<(), Fault> {
        let Some(Incoming { entry, state }) = self.remove(file) else {
            return Ok(());
        };
        let State::Blocks(blocks) = state else {
            return Ok(());
        };
        let Some(root) = blocks.root else {
            return Err(Fault::new(
                Code::Other,
                "a file was published before it was verified",
            ));
        };
        let operand = outcome.operands.get_mut(&file);
        let present = operand.as_ref().map_or(0, |operand| operand.present);
        self.observer.event(&Event::FileDone(&FileResult::copied(
            &entry.path,
            entry.size(),
            entry.hash_of_file(root),
            present,
        )));
        if let Some(operand) = operand {
            operand.root = Some(root);
        }
        outcome.counts.copy(&entry);
        self.link
            .send(&Message::Done(FileRoot { file, blake3: root }))?;
        self.after(&entry, true, outcome)?;
        self.finish_if_done()
    }

    fn on_channel(&self, end: CarrierEnd) -> Fault {
        match end {
            CarrierEnd::NotOpened(fault) => account_of(self.link, fault),
            CarrierEnd::Ran(Ok(())) => {
                let text = "the sender closed the data connection before everything had arrived";
                account_of(self.link, Fault::new(Code::PeerGone, text).hint(RESUME))
            }
            CarrierEnd::Ran(Err(error)) => channel_fault(self.link, &error),
        }
    }

    fn job(&self, job: Job) -> Result<(), Fault> {
        self.jobs
            .send(job)
            .map_err(|_| Fault::new(Code::Other, "the thread that writes the journal ended"))
    }
}

/// Events that are handled before anything else is requested.
const EVENTS: usize = 1024;

/// Returns whether a failure of one member ends the session: the others would fail as well.
const fn ends_session(code: Code) -> bool {
    matches!(code, Code::DiskFull | Code::TargetBusy | Code::Protocol)
}
