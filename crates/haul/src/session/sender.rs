//! The role of the end that sends the files.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, at, never, select, unbounded};
use haul_cc::Remembered;

use super::outcome::{Counts, Operand};
use super::{Carrier, CarrierEnd, Meter, OnPanic, account_of, channel_fault, spawn, threads_ended};
use crate::channel::Opening;
use crate::early::{self, Prefix};
use crate::entry::{Batch, Entry, What};
use crate::fault::{Code, Fault};
use crate::limit::Limit;
use crate::link::Link;
use crate::outbound::{FileSource, Offered};
use crate::report::{Event, FileResult, Observer};
use crate::scan::Scanned;
use crate::session::hash::{Hashed, HashedOr, Whole, hash_source};
use crate::source::Standing;
use crate::tree::Blocks;
use crate::wire::{
    self, Attributes, Commit, Complete, Failed, FileRoot, FileRuns, LeftOut, Message, Offer, Part,
    Plan, RUNS_MAX, Run, Seals,
};

/// When to check again whether the last bytes of a file have left: after the lower bound at first,
/// then twice as long each time, up to a quarter of a round trip within these bounds.
const CHECK_AFTER: RangeInclusive<Duration> = Duration::from_millis(2)..=Duration::from_millis(10);
/// If the channel's counter has stood still for this long, what the channel has taken counts as
/// sent: not every kernel counts, and some count retransmissions that never left.
const STANDSTILL: Duration = Duration::from_millis(500);
/// Entries that are left out between two offers.
const LEFT_OUT_MAX: usize = 256;
/// How long the first offer waits for a scan: a small tree is offered whole in the first flight …
const SCAN_WAIT: Duration = Duration::from_millis(50);
/// … and of a large one so many bytes of entries, which that flight carries: 10 packets of TCP, of
/// which the greeting and the request take some.
const FIRST_BATCH: usize = 8 << 10;
/// How long a sender that withdraws a commit waits for the receiver's answer. The receiver may have
/// to finish an fsync first.
const ANSWER: Duration = Duration::from_secs(10);

/// What a sender offers.
pub(crate) struct Catalogue {
    /// The first entries, which [`offer`] has offered.
    pub(crate) operands: Vec<Offered>,
    /// The first members of trees, which [`offer`] has offered behind them.
    pub(crate) members: Vec<Offered>,
    /// Further members, until all are offered.
    pub(crate) scan: Option<Receiver<Scanned>>,
    /// What the scan has found and [`offer`] has not offered.
    pub(crate) left_over: Option<Scanned>,
    /// The rate at which the content is read at most.
    pub(crate) limit: Limit,
}

impl Catalogue {
    /// Returns what the first offers have, in the order of the ids.
    fn offered(&self) -> impl Iterator<Item = &Offered> + Clone {
        self.operands.iter().chain(&self.members)
    }

    /// Adds what the scan soon finds to the first offer, up to something that fails: that is
    /// reported after the peer's greeting.
    fn gather(&mut self, batch: &mut Batch) {
        let until = Instant::now() + SCAN_WAIT;
        // A scan that has failed is found at the next offer.
        while batch.len() < FIRST_BATCH
            && let Some(scan) = &self.scan
            && let Ok(scanned) = scan.recv_deadline(until)
        {
            match scanned {
                Scanned::Entry(one) if batch.push(&one.entry) => self.members.push(*one),
                scanned => {
                    if let Scanned::End { .. } = scanned {
                        self.scan = None;
                    }
                    self.left_over = Some(scanned);
                    return;
                }
            }
        }
    }
}

/// Result of a sender; after a failure, the state until then.
#[derive(Debug, Default)]
pub(crate) struct SenderOutcome {
    /// The files that were offered by themselves, by id.
    pub(crate) operands: HashMap<u32, Operand>,
    pub(crate) counts: Counts,
    /// Bytes of members of trees that were present at the receiver.
    pub(crate) resumed: u64,
    /// The receiver has answered the first offer.
    is_planned: bool,
    /// Bytes requested since, without repairs, for each file that was offered by itself.
    missing: HashMap<u32, u64>,
    /// Of those, files of which the receiver has blocks of another source.
    stale: BTreeSet<u32>,
    /// Early data that the receiver has discarded, bytes.
    discarded: u64,
    /// A file changed after the receiver had published it as offered.
    pub(crate) is_superseded: bool,
    /// Attributes that could not be read at this end.
    pub(crate) unread: Attributes,
    /// Attributes that the receiver could not keep.
    pub(crate) lost: Attributes,
    /// What a later transfer may start from.
    pub(crate) shown: Option<Remembered>,
    /// Counters of this end.
    pub(crate) spent: Complete,
    /// The receiver's counters.
    pub(crate) peer: Complete,
}

impl SenderOutcome {
    /// Returns the bytes that were present at the receiver.
    fn resumed(&self) -> u64 {
        let operands = self.operands.values().map(|operand| operand.present);
        self.resumed.saturating_add(super::saturating_sum(operands))
    }
}

/// Makes the messages that precede [`run`]: the offer of the operands and of the first members of
/// trees, and a `Commit` for each that is blank.
pub(crate) fn offer(catalogue: &mut Catalogue, binding: &[u8; 32]) -> Vec<Message> {
    let (mut offers, mut batch, mut first) = (Vec::new(), Batch::default(), 0);
    let offer = |first, batch: &mut Batch| Offer {
        first,
        entries: std::mem::take(batch).into_bytes(),
        is_last: false,
        early: None,
    };
    for (file, offered) in (0..).zip(&catalogue.operands) {
        if !batch.push(&offered.entry) {
            offers.push(offer(first, &mut batch));
            first = file;
            // An empty batch takes any entry.
            batch.push(&offered.entry);
        }
    }
    catalogue.gather(&mut batch);
    // The receiver waits for an offer, although a scan may find the first entry late.
    let mut last = offer(first, &mut batch);
    last.is_last = catalogue.scan.is_none();
    offers.push(last);
    let early = early_data(catalogue.offered()).1;
    offers[0].early = Some(early).filter(|early| *early > 0);
    let blank = blank_files(catalogue.offered());
    let commits = blank.map(|(whole, offered)| commit(binding, &offered.entry, whole));
    let offers = offers.into_iter().map(Message::Offer);
    offers.chain(commits).collect()
}

/// Returns the entries of the first batch that may have early data, and how many bytes of it.
fn early_data<'a>(
    offered: impl Iterator<Item = &'a Offered> + Clone,
) -> (impl Iterator<Item = &'a Entry>, u32) {
    let mut batch = Batch::default();
    let entries = offered.clone().take(early::ENTRIES_MAX);
    let count = entries.take_while(|one| batch.push(&one.entry)).count();
    let entries = offered.take(count).map(|one| &one.entry);
    let early = early::choose(entries.clone());
    (entries, early)
}

/// Lists the files that move by blocks and have none.
fn blank_files<'a>(
    offered: impl Iterator<Item = &'a Offered>,
) -> impl Iterator<Item = (Whole, &'a Offered)> {
    let blank = (0..).zip(offered).filter(|(_, one)| one.entry.is_blank());
    blank.map(|(file, offered)| (blank_file(file), offered))
}

/// Makes what hashing a file without data returns.
fn blank_file(file: u32) -> Whole {
    Whole {
        file,
        root: *Blocks::new(0).root(&[]).as_bytes(),
        end: 0,
    }
}

fn commit(binding: &[u8; 32], entry: &Entry, whole: Whole) -> Message {
    let Whole { file, root, end } = whole;
    let seal = entry.seal(binding, &root);
    Message::Commit(Commit { file, seal, end })
}

/// Sends the requested blocks of the offered files until the receiver has everything.
pub(crate) fn run(
    link: &Link,
    catalogue: Catalogue,
    binding: [u8; 32],
    opening: Opening,
    observer: &dyn Observer,
    outcome: &mut SenderOutcome,
) -> Result<(), Fault> {
    let meter = Meter::start();
    for (file, offered) in (0..).zip(catalogue.offered()) {
        outcome.counts.offer(&offered.entry);
        outcome.unread.add(&offered.lost.into());
        if !offered.entry.is_member {
            let operand = Operand::new(&offered.entry, None);
            outcome.operands.insert(file, operand);
        }
    }
    let blank = blank_files(catalogue.offered());
    let committed = blank.map(|(whole, _)| (whole.file, whole)).collect();
    let total = catalogue.offered().map(|one| one.entry.data());
    let total = super::saturating_sum(total);
    let (entries, early) = early_data(catalogue.offered());
    let early = early::divide(entries, early)?;
    let mut next = u32::try_from(catalogue.operands.len()).unwrap_or(u32::MAX);
    let source = FileSource::new(catalogue.operands);
    for member in catalogue.members {
        source.offer(next, member);
        next += 1;
    }
    let left_over = match catalogue.left_over {
        Some(Scanned::End { split }) => {
            outcome.unread.links += split;
            None
        }
        left_over => left_over,
    };
    source.pace(catalogue.limit);
    source.begin(&early)?;
    let carrier = Carrier::new(&opening);
    let result = std::thread::scope(|scope| {
        let (events, happened) = unbounded();
        let (source, carrier) = (&source, &carrier);
        let channel_events = events.clone();
        let send = move || {
            let _watch = OnPanic(|| drop(channel_events.send(Happened::Panicked)));
            let end = carrier.run(opening, |channel| channel.send(source));
            // The session may be over.
            let _ = channel_events.send(Happened::Channel(end));
        };
        let hash = move || {
            let _watch = OnPanic(|| drop(events.send(Happened::Panicked)));
            hash_source(source, |hashed| {
                events.send(Happened::Hashed(hashed)).is_ok()
            });
        };
        let mut session = Session {
            next,
            total,
            left_over,
            committed,
            early,
            ..Session::new(link, source, binding, carrier, observer, meter)
        };
        // Without it files are read all the same.
        let _ = spawn(scope, "haul-fetch", || source.fetch_ahead());
        let result = spawn(scope, "haul-send", send)
            .and_then(|()| spawn(scope, "haul-hash", hash))
            .and_then(|()| session.converse(catalogue.scan, &happened, outcome))
            .map_err(|fault| session.revoke(fault, outcome));
        source.complete();
        carrier.close();
        drop(happened);
        result
    });
    let stats = carrier.stats();
    let moved = carrier.moved(source.taken());
    let moved = moved.saturating_sub(outcome.discarded);
    outcome.spent = meter.spent(moved, 0, stats);
    outcome.shown = stats.shown;
    result
}

enum Happened {
    Channel(CarrierEnd),
    Hashed(HashedOr),
    Panicked,
}

struct Session<'a> {
    link: &'a Link,
    source: &'a FileSource,
    /// Of the request: [`Entry::seal`] covers it.
    binding: [u8; 32],
    carrier: &'a Carrier,
    observer: &'a dyn Observer,
    meter: Meter,
    /// Id of the next entry to offer.
    next: u32,
    /// Bytes of all files offered so far.
    total: u64,
    /// More entries may follow.
    is_scanning: bool,
    /// An entry for which the last batch had no room.
    left_over: Option<Scanned>,
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
    /// The early data of which the plan has not told yet whether it was placed.
    early: Vec<Prefix>,
    /// The receiver has this end's counters as of the last commit.
    is_reported: bool,
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
        Self {
            link,
            source,
            binding,
            carrier,
            observer,
            meter,
            next: 0,
            total: 0,
            is_scanning: false,
            left_over: None,
            leaving: BTreeMap::new(),
            sent: 0,
            sent_at: Instant::now(),
            check_at: None,
            pause: *CHECK_AFTER.start(),
            is_all_present: false,
            proving: BTreeSet::new(),
            changed: None,
            committed: BTreeMap::new(),
            early: Vec::new(),
            is_reported: false,
        }
    }

    fn converse(
        &mut self,
        scan: Option<Receiver<Scanned>>,
        happened: &Receiver<Happened>,
        outcome: &mut SenderOutcome,
    ) -> Result<(), Fault> {
        let (mut happened, nothing) = (happened.clone(), never());
        self.is_scanning = scan.is_some();
        self.report(outcome)?;
        loop {
            let tick = self.check_at.map_or_else(never, at);
            let scanned = scan.as_ref();
            // What fails of a tree is reported after the peer's greeting, which its plan follows.
            let may_offer = self.is_scanning && self.link.is_greeted() && self.source.has_room();
            let scanned = scanned.filter(|_| may_offer).unwrap_or(&nothing);
            if may_offer && let Some(left_over) = self.left_over.take() {
                self.offer_batch(left_over, scanned, outcome)?;
                continue;
            }
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
                    Ok(Happened::Panicked) => return Err(threads_ended()),
                    Err(_) => happened = never(),
                },
                recv(scanned) -> first => {
                    let ended = |_| Fault::new(Code::Other, "the thread that scans the tree ended");
                    self.offer_batch(first.map_err(ended)?, scanned, outcome)?;
                }
                recv(tick) -> _ => self.commit_what_left(outcome)?,
            }
        }
    }

    /// Offers what the scan has found: what is there now, up to a full batch.
    fn offer_batch(
        &mut self,
        first: Scanned,
        scan: &Receiver<Scanned>,
        outcome: &mut SenderOutcome,
    ) -> Result<(), Fault> {
        let (mut batch, begin, mut blank) = (Batch::default(), self.next, Vec::new());
        let mut left_out = Vec::new();
        let mut scanned = Some(first);
        while let Some(one) = scanned.take() {
            match one {
                Scanned::Entry(offered) => {
                    if !batch.push(&offered.entry) {
                        self.left_over = Some(Scanned::Entry(offered));
                        break;
                    }
                    if offered.entry.is_blank() {
                        blank.push(commit(&self.binding, &offered.entry, blank_file(self.next)));
                        self.committed.insert(self.next, blank_file(self.next));
                    }
                    outcome.counts.offer(&offered.entry);
                    outcome.unread.add(&offered.lost.into());
                    self.total = self.total.saturating_add(offered.entry.data());
                    self.source.offer(self.next, *offered);
                    self.next = self
                        .next
                        .checked_add(1)
                        .ok_or_else(|| Fault::new(Code::Refused, "the tree has too many files"))?;
                }
                Scanned::Special(path) => {
                    outcome.counts.special += 1;
                    left_out.push(LeftOut {
                        path,
                        code: None,
                        text: String::new(),
                    });
                }
                Scanned::Failed(path, fault) => {
                    outcome.counts.failed += 1;
                    self.observer.event(&Event::Failed {
                        path: &path,
                        fault: &fault,
                    });
                    left_out.push(LeftOut {
                        path,
                        code: Some(fault.code.number()),
                        text: fault.text,
                    });
                }
                Scanned::End { split } => {
                    outcome.unread.links += split;
                    self.is_scanning = false;
                    break;
                }
            }
            if left_out.len() >= LEFT_OUT_MAX {
                break;
            }
            // A scan that has failed is found at the next one.
            scanned = scan.try_recv().ok();
        }
        if batch.is_empty() && left_out.is_empty() && self.is_scanning {
            return Ok(());
        }
        // An offer precedes what is left out: nothing else may be the first message.
        self.send_offer(begin, batch)?;
        for left_out in left_out {
            self.link.send(&Message::LeftOut(left_out))?;
        }
        blank.iter().try_for_each(|commit| self.link.send(commit))
    }

    fn send_offer(&self, first: u32, batch: Batch) -> Result<(), Fault> {
        self.link.send(&Message::Offer(Offer {
            first,
            entries: batch.into_bytes(),
            is_last: !self.is_scanning,
            early: None,
        }))
    }

    fn on_hashed(&mut self, hashed: HashedOr, outcome: &mut SenderOutcome) -> Result<(), Fault> {
        match hashed {
            Ok(Hashed::Digests(digests)) => self.link.send(&Message::Digests(digests)),
            Ok(Hashed::Pieces(pieces)) => self.link.send(&Message::Pieces(pieces)),
            Ok(Hashed::Smalls(first, roots)) => {
                let mut seals = Vec::with_capacity(roots.len() * 32);
                for (file, root) in (first..).zip(roots) {
                    let seal = self.source.get(file).map(|one| {
                        one.seal();
                        one.entry.seal(&self.binding, &root)
                    });
                    seals.extend_from_slice(&seal.unwrap_or_default());
                }
                self.link.send(&Message::Seals(Seals { first, seals }))?;
                self.report(outcome)
            }
            Ok(Hashed::Whole(whole)) => {
                if self.leaving.is_empty() {
                    (self.sent_at, self.pause) = (Instant::now(), *CHECK_AFTER.start());
                }
                self.leaving.insert(whole.file, whole);
                self.commit_what_left(outcome)
            }
            Ok(Hashed::Proved(file)) => {
                self.proving.remove(&file);
                self.commit_what_left(outcome)
            }
            Err((file, fault)) => self.on_unreadable(file, fault, outcome),
        }
    }

    /// Goes on without a member that cannot be sent; anything else ends the session.
    fn on_unreadable(
        &mut self,
        file: u32,
        fault: Fault,
        outcome: &mut SenderOutcome,
    ) -> Result<(), Fault> {
        let Some(offered) = self.source.get(file) else {
            // A member that has failed, or a file that was published as offered before the hasher
            // had read it again.
            return Ok(());
        };
        if !offered.entry.is_member {
            self.changed = Some(file);
            return Err(fault);
        }
        self.link.send(&Message::Failed(Failed {
            file,
            code: fault.code.number(),
            text: fault.text.clone(),
        }))?;
        self.fail(file, &fault, outcome);
        Ok(())
    }

    fn fail(&mut self, file: u32, fault: &Fault, outcome: &mut SenderOutcome) {
        self.proving.remove(&file);
        self.leaving.remove(&file);
        self.committed.remove(&file);
        let Some(offered) = self.source.fail(file) else {
            return;
        };
        outcome.counts.failed += 1;
        self.observer.event(&Event::Failed {
            path: offered.entry.path.as_bytes(),
            fault,
        });
    }

    /// Commits the files whose last byte has left.
    fn commit_what_left(&mut self, outcome: &mut SenderOutcome) -> Result<(), Fault> {
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
            if self.is_unchanged(whole.file, outcome)?
                && let Some(offered) = self.source.get(whole.file)
            {
                self.leaving.remove(&whole.file);
                self.committed.insert(whole.file, whole);
                self.link
                    .send(&commit(&self.binding, &offered.entry, whole))?;
            }
        }
        self.report(outcome)?;
        let rtt = Duration::from_micros(stats.rtt_us.unwrap_or(0).into());
        let most = (rtt / 4).clamp(*CHECK_AFTER.start(), *CHECK_AFTER.end());
        // A file that is being read again needs no check until then.
        let is_waiting = |file| !self.proving.contains(file);
        self.check_at = (self.leaving.keys().any(is_waiting)).then(|| now + self.pause);
        self.pause = (self.pause * 2).min(most);
        Ok(())
    }

    /// Reports this end's counters once everything is committed or sealed, so that the receiver
    /// need not wait for them at the end.
    fn report(&mut self, outcome: &SenderOutcome) -> Result<(), Fault> {
        if self.is_reported || self.is_scanning {
            return Ok(());
        }
        let is_sent = |file, one: &Offered| one.is_sent() || self.committed.contains_key(&file);
        if !self.source.is_all(is_sent) {
            return Ok(());
        }
        self.is_reported = true;
        self.link.send(&Message::Complete(self.spent(outcome)))
    }

    /// Returns this end's counters.
    fn spent(&self, outcome: &SenderOutcome) -> Complete {
        let moved = self.source.taken().saturating_sub(outcome.discarded);
        let spent = self.meter.spent(moved, 0, self.carrier.stats());
        let lost = Some(outcome.unread).filter(Attributes::is_any);
        Complete { lost, ..spent }
    }

    /// Returns whether a source still is what was offered. If only its content shows that, has the
    /// hasher read it: the file counts as changed until the hasher has [`Hashed::Proved`] it.
    fn is_unchanged(&mut self, file: u32, outcome: &mut SenderOutcome) -> Result<bool, Fault> {
        if self.proving.contains(&file) {
            return Ok(false);
        }
        let Some(offered) = self.source.get(file) else {
            self.leaving.remove(&file);
            return Ok(false);
        };
        let source = offered.source();
        let standing = match source.and_then(crate::source::SourceFile::check_unchanged) {
            Ok(standing) => standing,
            Err(fault) => return self.on_unreadable(file, fault, outcome).map(|()| false),
        };
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
            Message::Plan(plan) => self.on_plan(&plan, outcome)?,
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
            Message::WantFiles(wanted) => self.source.append_files(&wanted.runs)?,
            Message::Progress(progress) => self.on_progress(progress.present, outcome)?,
            Message::Rate(rate) => self.source.set_rate(rate.bps),
            Message::Done(done) => self.on_done(&done, outcome)?,
            Message::DoneFiles(done) => self.on_done_files(&done, outcome)?,
            Message::Lost(lost) => outcome.lost.add(&lost),
            Message::Failed(failed) => {
                let offered = self.source.get(failed.file);
                let fault = failed.fault();
                if offered.is_some_and(|offered| !offered.entry.is_member) {
                    return Err(fault);
                }
                self.fail(failed.file, &fault, outcome);
                self.source.retire();
            }
            Message::Complete(peer) => {
                if !outcome.is_planned || self.is_scanning || !self.source.is_empty() {
                    return Err(Fault::protocol("the receiver ended before all was done"));
                }
                outcome.peer = peer;
                outcome.lost = outcome.peer.lost.unwrap_or(outcome.lost);
                self.link.send(&Message::Complete(self.spent(outcome)))?;
                return Ok(true);
            }
            other => return Err(other.misplaced()),
        }
        Ok(false)
    }

    fn on_progress(&mut self, present: u64, outcome: &mut SenderOutcome) -> Result<(), Fault> {
        let moved = self.carrier.moved(self.source.taken());
        self.observer.event(&Event::Progress {
            present,
            total: self.total,
            moved: moved.saturating_sub(outcome.discarded),
            resumed: outcome.resumed(),
            files: outcome.counts.finished(),
            is_scanned: !self.is_scanning,
        });
        self.is_all_present = !self.is_scanning && present >= self.total;
        if self.is_all_present && !self.leaving.is_empty() {
            self.commit_what_left(outcome)?;
        }
        // A slow receiver can still be stopped from publishing what has changed since.
        let committed: Vec<u32> = self.committed.keys().copied().collect();
        for file in committed {
            self.is_unchanged(file, outcome)?;
        }
        Ok(())
    }

    /// Counts requested bytes. Present blocks that belong to another source are requested later.
    fn count_as_missing(&self, runs: &[Run], outcome: &mut SenderOutcome) {
        for run in runs {
            let Some(operand) = outcome.operands.get_mut(&run.file) else {
                continue;
            };
            let missing = outcome.missing.entry(run.file).or_default();
            *missing = missing.saturating_add(self.source.len(run));
            let present = operand.present.min(operand.size.saturating_sub(*missing));
            if present < operand.present && !outcome.stale.contains(&run.file) {
                outcome.stale.insert(run.file);
                self.observer.event(&Event::Note(&stale(&operand.name)));
            }
            operand.present = present;
        }
    }

    fn on_done(&mut self, done: &FileRoot, outcome: &mut SenderOutcome) -> Result<(), Fault> {
        let Some(offered) = self.source.get(done.file) else {
            // It failed after it was committed; that it is published all the same changes nothing.
            return match done.file < self.next {
                true => Ok(()),
                false => Err(Fault::protocol(
                    "the receiver completed a file that was not offered",
                )),
            };
        };
        let whole = self.committed.remove(&done.file);
        if whole.is_none_or(|whole| whole.root != done.blake3) {
            return Err(wire::damaged());
        }
        self.source.finish(done.file);
        self.source.retire();
        outcome.counts.copy(&offered.entry);
        let operand = outcome.operands.get_mut(&done.file);
        let present = operand.as_ref().map_or(0, |operand| operand.present);
        if let Some(operand) = operand {
            operand.root = Some(done.blake3);
        }
        self.observer.event(&Event::FileDone(&FileResult::copied(
            &offered.entry.path,
            offered.entry.size(),
            offered.entry.hash_of_file(done.blake3),
            present,
        )));
        Ok(())
    }

    /// Takes members that are durable under their names.
    fn on_done_files(&mut self, done: &FileRuns, outcome: &mut SenderOutcome) -> Result<(), Fault> {
        for run in &done.runs {
            let end = run.first.checked_add(run.count);
            let end = end.filter(|end| *end <= self.next);
            let end = end.ok_or_else(|| Fault::protocol("entries done that were not offered"))?;
            for file in run.first..end {
                let Some(offered) = self.source.finish(file) else {
                    continue;
                };
                let is_whole = offered.entry.is_small() || offered.entry.file().is_none();
                if !is_whole {
                    return Err(Fault::protocol("a file is done before it was committed"));
                }
                outcome.counts.copy(&offered.entry);
            }
        }
        self.source.retire();
        Ok(())
    }

    fn on_plan(&mut self, plan: &Plan, outcome: &mut SenderOutcome) -> Result<(), Fault> {
        let end = plan.first.checked_add(plan.count);
        let end = end.filter(|end| *end <= self.next);
        let count = plan.count as usize;
        let end = end.filter(|_| plan.complete.len() == count.div_ceil(8));
        let end = end.ok_or_else(|| Fault::protocol("the receiver's plan is about other files"))?;
        for part in &plan.parts {
            let Some(offered) = self.source.get(part.file) else {
                continue;
            };
            let present = part.present.min(offered.entry.data());
            match outcome.operands.get_mut(&part.file) {
                Some(operand) => operand.present = present,
                None => outcome.resumed += present,
            }
            if part.restarted {
                let note = restarted(&offered.entry.path);
                self.observer.event(&Event::Note(&note));
            }
        }
        self.note_early(plan, end, outcome);
        for (index, file) in (plan.first..end).enumerate() {
            if plan.complete[index / 8] & (1 << (index % 8)) == 0 {
                continue;
            }
            self.committed.remove(&file);
            // One that failed is forgotten already.
            let Some(offered) = self.source.finish(file) else {
                continue;
            };
            if !matches!(offered.entry.what, What::Directory) {
                outcome.counts.skipped += 1;
            }
            match outcome.operands.get_mut(&file) {
                Some(operand) => operand.present = operand.size,
                None => outcome.resumed += offered.entry.data(),
            }
        }
        let is_first = plan.count > 0 || !self.is_scanning;
        if is_first && !std::mem::replace(&mut outcome.is_planned, true) {
            self.observer.event(&Event::Planned {
                files: end as usize,
                total: self.total,
                present: outcome.resumed(),
            });
        }
        Ok(())
    }

    /// Notes of which files the receiver has placed the early data: those of which it did not name
    /// a part. A part of no bytes that is not new says that it has no room for the file yet.
    fn note_early(&mut self, plan: &Plan, end: u32, outcome: &mut SenderOutcome) {
        let mut early = std::mem::take(&mut self.early);
        early.retain(|prefix| {
            if !(plan.first..end).contains(&prefix.file) {
                return true;
            }
            let index = (prefix.file - plan.first) as usize;
            let is_complete = plan.complete[index / 8] & (1 << (index % 8)) != 0;
            let mut parts = plan.parts.iter();
            let is_discarded =
                |part: &Part| part.file == prefix.file && (part.present > 0 || !part.restarted);
            if is_complete || parts.any(is_discarded) {
                outcome.discarded += prefix.len;
                self.source.discard(prefix.file);
            }
            false
        });
        self.early = early;
    }

    fn on_channel(&self, end: CarrierEnd) -> Result<(), Fault> {
        match end {
            CarrierEnd::NotOpened(fault) => Err(account_of(self.link, fault)),
            CarrierEnd::Ran(Ok(())) => Err(account_of(
                self.link,
                Fault::new(Code::PeerGone, "this end closed the data connection"),
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
    use crate::outbound::{Aside, Work};
    use crate::session::State;
    use crate::session::tests::{Counting, Silent, links, source};

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
        let mut outcome = SenderOutcome::default();
        let wait = || far.incoming().recv_timeout(Duration::from_millis(50));
        handle
            .set_permissions(std::fs::Permissions::from_mode(0o640))
            .unwrap();
        session.on_hashed(whole(0), &mut outcome).unwrap();
        assert!(matches!(
            source.work(&mut 0),
            Some(Work::Aside(Aside::Prove(0)))
        ));
        let mut reread_outcome = SenderOutcome::default();
        let reread = || {
            let outcome = &mut reread_outcome;
            session.on_hashed(whole(0), outcome).unwrap();
            session.commit_what_left(outcome).unwrap();
            assert!(wait().is_err(), "committed unproven");
            Ok(true)
        };
        source
            .get(0)
            .unwrap()
            .source()
            .unwrap()
            .prove(reread)
            .unwrap();
        session
            .on_hashed(Ok(Hashed::Proved(0)), &mut outcome)
            .unwrap();
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
        let mut outcome = SenderOutcome::default();
        session
            .on_hashed(Ok(Hashed::Whole(whole)), &mut outcome)
            .unwrap();
        assert!(session.check_at.is_some() && far.incoming().is_empty());
        std::thread::sleep(STANDSTILL);
        session.commit_what_left(&mut outcome).unwrap();
        let sent = far.incoming().recv_timeout(Duration::from_secs(5));
        assert!(matches!(sent, Ok(Ok(Message::Commit(_)))));
    }
}
