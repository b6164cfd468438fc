//! The role of the end that receives the files.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, select, unbounded};
use haul_io::file::Dir;

use super::durable::{Job, make_durable};
use super::hash::{Found, hash_targets};
use super::plan::{Planned, prepare};
use super::sender::{restarted, stale};
use super::{Carrier, CarrierEnd, Meter, account_of, channel_fault, saturating_sum, spawn};
use crate::channel::Opening;
use crate::fault::{Code, Fault};
use crate::link::Link;
use crate::report::{Event, FileResult, Observer};
use crate::sink::{BlockId, FileSink};
use crate::target::Target;
use crate::tree::Digest;
use crate::wire::{
    self, Commit, Complete, Confirm, Digests, FilePlan, FileRoot, Locate, Message, Offer, PieceRun,
    Pieces, Plan, Policy, Progress, REPAIRS_MAX, RUNS_MAX, Repair, Run, Wants,
};

/// How often to report progress to the sender.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);
/// Maximum number of repairs of a block. If one packet in 20 is damaged, one piece in two arrives
/// whole, and 32 rounds fail for a mebibyte once in 10^9 times.
const ATTEMPTS: u8 = 32;

/// What the request says about the files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) policy: Policy,
    /// Of the request, for [`wire::seal`].
    pub(crate) binding: [u8; 32],
}

/// Result of a receiver; after a failure, the state until then.
#[derive(Debug, Default)]
pub(crate) struct ReceiverOutcome {
    /// The plan for each file.
    pub(crate) plan: Vec<FilePlan>,
    /// The hash of each published file.
    pub(crate) roots: Vec<Option<[u8; 32]>>,
    /// Counters of this end.
    pub(crate) spent: Complete,
    /// The sender's counters.
    pub(crate) peer: Complete,
}

/// Requests the missing blocks of the offered files and places them in `dir` until all files are
/// published.
pub(crate) fn run(
    link: &Link,
    dir: &Arc<Dir>,
    offer: &Offer,
    terms: Terms,
    opening: Opening,
    observer: &dyn Observer,
    outcome: &mut ReceiverOutcome,
) -> Result<(), Fault> {
    let meter = Meter::start();
    let carrier = Carrier::new(&opening);
    let mut moved = (0, 0);
    let result = prepare(dir, offer, terms.policy).and_then(|planned| {
        outcome.plan.clone_from(&planned.plans);
        outcome.roots = vec![None; planned.plans.len()];
        receive(
            link, planned, offer, terms, opening, observer, &carrier, meter, outcome, &mut moved,
        )
    });
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
    planned: Planned,
    offer: &Offer,
    terms: Terms,
    opening: Opening,
    observer: &dyn Observer,
    carrier: &Carrier,
    meter: Meter,
    outcome: &mut ReceiverOutcome,
    moved: &mut (u64, u64),
) -> Result<(), Fault> {
    let targets: Vec<_> = planned
        .files
        .iter()
        .map(|file| file.target.clone())
        .collect();
    let stop = AtomicBool::new(false);
    let (complete, completed) = unbounded();
    let sink = Arc::new(FileSink::new(targets.clone(), complete));
    std::thread::scope(|scope| {
        let (events, happened) = unbounded();
        let (jobs, job_queue) = unbounded();
        let (targets, stop) = (&targets, &stop);
        let channel_events = events.clone();
        let channel_sink = Arc::clone(&sink);
        let receive = move || {
            let end = carrier.run(opening, |channel| channel.receive(&*channel_sink));
            // The session may be over, here and below.
            let _ = channel_events.send(Happened::Channel(end));
        };
        let hash_events = events.clone();
        let hash = move || {
            hash_targets(targets, &completed, stop, |found| {
                hash_events.send(Happened::Hashed(found)).is_ok()
            });
        };
        let persist = move || {
            make_durable(targets, &job_queue, stop, |result| {
                let _ = events.send(Happened::Published(result));
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
            offer,
            binding: terms.binding,
            observer,
            carrier,
            sink: &sink,
            jobs,
            total: saturating_sum(planned.files.iter().map(|file| file.size)),
            present_before: saturating_sum(planned.plans.iter().map(|plan| plan.present)),
            repaired: 0,
            repairs: 0,
            damaged: VecDeque::new(),
            in_repair: 0,
            in_repair_max: 1,
            left: 0,
            meter,
            files: planned.files.into_iter().map(Incoming::new).collect(),
        };
        let result = session.converse(&planned.plans, &happened, outcome);
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
    Hashed(Result<Found, Fault>),
    Published(Result<u32, Fault>),
    /// The thread that publishes has ended.
    Persisted,
}

struct Session<'a> {
    link: &'a Link,
    offer: &'a Offer,
    /// Of the request, for [`wire::seal`].
    binding: [u8; 32],
    observer: &'a dyn Observer,
    carrier: &'a Carrier,
    sink: &'a FileSink,
    jobs: Sender<Job>,
    meter: Meter,
    files: Vec<Incoming>,
    /// Bytes of all offered files.
    total: u64,
    /// Bytes that were present at the beginning.
    present_before: u64,
    /// Bytes requested again.
    repaired: u64,
    /// The number of their runs.
    repairs: usize,
    /// Blocks that arrived damaged and wait for their repair …
    damaged: VecDeque<BlockId>,
    /// … how many are in repair, and how many may be: one more for each that was repaired. A path
    /// that damages data damages control messages as well, and a session that repairs all at once
    /// ends before it has repaired any.
    in_repair: usize,
    in_repair_max: usize,
    /// Files that are not published.
    left: usize,
}

/// A file of the session.
struct Incoming {
    target: Option<Arc<Target>>,
    /// The digests of the blocks that are verified.
    digests: Vec<Option<Digest>>,
    unverified: u32,
    doubtful: HashMap<u32, Doubtful>,
    /// A present block differs from the source.
    is_stale: bool,
    /// A block arrived damaged.
    is_damaged: bool,
    root: Option<[u8; 32]>,
    /// Where its requested runs end in the space.
    end: u64,
    /// The sender's latest.
    commit: Option<Commit>,
    is_publishing: bool,
}

/// A block that is not verified yet.
#[derive(Default)]
struct Doubtful {
    announced: Option<Digest>,
    computed: Option<Digest>,
    /// The digests of the pieces of a block that arrived damaged; empty until the sender has sent
    /// them.
    pieces: Option<Vec<Digest>>,
    attempts: u8,
    /// An earlier session left it here, and the sender has not confirmed it yet.
    is_left: bool,
}

impl Incoming {
    fn new(file: super::plan::PlannedFile) -> Self {
        let count = file
            .target
            .as_ref()
            .map_or(0, |target| target.blocks.count());
        let left = |(block, digest)| {
            let doubtful = Doubtful {
                computed: Some(digest),
                is_left: true,
                ..Doubtful::default()
            };
            (block, doubtful)
        };
        Self {
            target: file.target,
            unverified: count,
            digests: vec![None; count as usize],
            doubtful: file.verified.into_iter().map(left).collect(),
            is_stale: false,
            is_damaged: false,
            root: None,
            end: 0,
            commit: None,
            is_publishing: false,
        }
    }

    /// Returns the runs of blocks that an earlier session left here, or those that are missing.
    fn runs(&self, file: u32, are_left: bool) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for block in (0..u32::try_from(self.digests.len()).unwrap_or(u32::MAX))
            .filter(|block| self.doubtful.contains_key(block) == are_left)
        {
            match runs.last_mut() {
                Some(run) if run.first + run.count == block => run.count += 1,
                _ => runs.push(Run {
                    file,
                    first: block,
                    count: 1,
                }),
            }
        }
        runs
    }
}

impl Session<'_> {
    fn converse(
        &mut self,
        plans: &[FilePlan],
        happened: &Receiver<Happened>,
        outcome: &mut ReceiverOutcome,
    ) -> Result<(), Fault> {
        self.link.send(&Message::Plan(Plan {
            files: plans.to_vec(),
        }))?;
        self.observer.event(&Event::Planned {
            files: plans.len(),
            total: self.total,
            present: self.present_before,
        });
        for (plan, file) in plans.iter().zip(&self.files) {
            if let (true, Some(target)) = (plan.restarted, &file.target) {
                self.observer.event(&Event::Note(&restarted(&target.name)));
            }
        }
        self.ask_for_missing()?;
        self.left = self
            .files
            .iter()
            .filter(|file| file.target.is_some())
            .count();
        for file in 0..self.files.len() {
            self.publish_if_due(file)?;
        }
        let mut reported = (Instant::now(), self.present_before);
        while self.left > 0 {
            select! {
                recv(self.link.incoming()) -> message => {
                    let message = message.map_err(|_| Fault::protocol("no control connection"))??;
                    self.handle(message, outcome)?;
                }
                recv(happened) -> event => match event {
                    Ok(event) => self.on_event(event, outcome)?,
                    Err(_) => return Err(Fault::new(Code::Other, "the session's threads ended")),
                },
                default(PROGRESS_EVERY) => {}
            }
            if reported.0.elapsed() >= PROGRESS_EVERY && self.present() != reported.1 {
                reported = (Instant::now(), self.present());
                self.link.send(&Message::Progress(Progress {
                    present: reported.1,
                }))?;
                self.observer.event(&Event::Progress {
                    present: reported.1,
                    total: self.total,
                    moved: self.sink.placed(),
                });
            }
        }
        self.finish(outcome)
    }

    /// Ends the thread that publishes, and sends `Done` for each file that it published meanwhile:
    /// a sender that ends the session must know which files have their names.
    fn acknowledge(&mut self, happened: &Receiver<Happened>, outcome: &mut ReceiverOutcome) {
        self.jobs = unbounded().0;
        for event in happened {
            match event {
                Happened::Published(Ok(file)) => {
                    // The connection may be lost.
                    let _ = self.on_published(file, outcome);
                }
                Happened::Persisted => return,
                _ => {}
            }
        }
    }

    fn finish(&self, outcome: &mut ReceiverOutcome) -> Result<(), Fault> {
        let stats = self.carrier.stats();
        let spent = self.meter.spent(self.sink.placed(), self.repaired, stats);
        self.link.send(&Message::Complete(spent))?;
        loop {
            // All files are published: a failure now costs only the sender's counters.
            match self.link.incoming().recv_timeout(super::GRACE) {
                Ok(Ok(Message::Complete(peer))) => {
                    outcome.peer = peer;
                    return Ok(());
                }
                Ok(Ok(_)) => {}
                Ok(Err(_)) | Err(_) => return Ok(()),
            }
        }
    }

    fn present(&self) -> u64 {
        (self.present_before + self.sink.placed()).saturating_sub(self.repaired)
    }

    /// Requests the missing blocks, and the digests of the present ones.
    fn ask_for_missing(&mut self) -> Result<(), Fault> {
        let files = || (0..).zip(&self.files);
        let runs = |are_left| -> Vec<Run> {
            files()
                .flat_map(|(file, incoming)| incoming.runs(file, are_left))
                .collect()
        };
        let (missing, left) = (runs(false), runs(true));
        for runs in missing.chunks(RUNS_MAX) {
            self.ask(runs.to_vec())?;
        }
        for runs in left.chunks(RUNS_MAX) {
            let runs = runs.to_vec();
            self.link.send(&Message::Confirm(Confirm { runs }))?;
        }
        Ok(())
    }

    fn ask(&mut self, runs: Vec<Run>) -> Result<(), Fault> {
        for (file, end) in self.sink.append(&runs)? {
            self.files[file as usize].end = end;
        }
        self.link.send(&Message::Wants(Wants { runs }))
    }

    fn handle(&mut self, message: Message, outcome: &mut ReceiverOutcome) -> Result<(), Fault> {
        match message {
            Message::Digests(digests) => self.on_digests(&digests, outcome),
            Message::Pieces(pieces) => self.on_pieces(&pieces),
            Message::Commit(commit) => {
                let file = commit.file as usize;
                let incoming = self.files.get_mut(file);
                let incoming = incoming.ok_or_else(|| Fault::protocol("no such file"))?;
                incoming.commit = Some(commit);
                self.publish_if_due(file)
            }
            other => Err(other.misplaced()),
        }
    }

    fn on_digests(
        &mut self,
        message: &Digests,
        outcome: &mut ReceiverOutcome,
    ) -> Result<(), Fault> {
        let (digests, rest) = message.digests.as_chunks::<32>();
        let known = self
            .files
            .get(message.file as usize)
            .map_or(0, |file| file.digests.len());
        if !rest.is_empty() || message.first as usize + digests.len() > known {
            return Err(Fault::protocol(
                "the peer sent digests of blocks that no file has",
            ));
        }
        for (block, digest) in (message.first..).zip(digests) {
            let id = BlockId {
                file: message.file,
                block,
            };
            let incoming = &mut self.files[message.file as usize];
            if incoming.digests[block as usize].is_none() {
                incoming.doubtful.entry(block).or_default().announced = Some(*digest);
                self.compare(id, outcome)?;
            }
        }
        Ok(())
    }

    fn on_event(&mut self, event: Happened, outcome: &mut ReceiverOutcome) -> Result<(), Fault> {
        match event {
            Happened::Hashed(found) => match found? {
                Found::Block(id, digest) => {
                    self.job(Job::Complete { file: id.file })?;
                    let incoming = &mut self.files[id.file as usize];
                    incoming.doubtful.entry(id.block).or_default().computed = Some(digest);
                    self.compare(id, outcome)
                }
                Found::Pieces(id, digests) => self.compare_pieces(id, &digests, outcome),
            },
            Happened::Published(file) => self.on_published(file?, outcome),
            Happened::Persisted => Err(Fault::new(Code::Other, "the session's threads ended")),
            Happened::Channel(end) => Err(self.on_channel(end)),
        }
    }

    fn on_published(&mut self, file: u32, outcome: &mut ReceiverOutcome) -> Result<(), Fault> {
        let incoming = &self.files[file as usize];
        let (Some(target), Some(root)) = (&incoming.target, incoming.root) else {
            return Err(Fault::new(
                Code::Other,
                "a file was published before it was verified",
            ));
        };
        self.observer.event(&Event::FileDone(&FileResult::copied(
            &target.name,
            target.size,
            root,
            outcome.plan[file as usize].present,
        )));
        outcome.roots[file as usize] = Some(root);
        self.left -= 1;
        self.link
            .send(&Message::Done(FileRoot { file, blake3: root }))
    }

    /// Compares the two digests of a block once both are known.
    fn compare(&mut self, id: BlockId, outcome: &mut ReceiverOutcome) -> Result<(), Fault> {
        let incoming = &mut self.files[id.file as usize];
        let Some(doubtful) = incoming.doubtful.get_mut(&id.block) else {
            return Ok(());
        };
        let (Some(announced), Some(computed)) = (doubtful.announced, doubtful.computed) else {
            return Ok(());
        };
        if announced == computed {
            if doubtful.pieces.is_some() {
                self.in_repair = self.in_repair.saturating_sub(1);
                self.in_repair_max += 1;
            }
            let is_noted = doubtful.is_left && !incoming.is_stale;
            incoming.doubtful.remove(&id.block);
            incoming.digests[id.block as usize] = Some(computed);
            incoming.unverified -= 1;
            if !is_noted {
                self.job(Job::Verified {
                    file: id.file,
                    block: (id.block, computed),
                })?;
            }
            self.locate()?;
            return self.publish_if_due(id.file as usize);
        }
        if doubtful.is_left {
            *doubtful = Doubtful::default();
            return self.replace(id, outcome);
        }
        *doubtful = Doubtful {
            pieces: Some(Vec::new()),
            ..Doubtful::default()
        };
        self.damaged.push_back(id);
        self.locate()
    }

    /// Requests the digests of the pieces of damaged blocks, for as many as may be in repair.
    fn locate(&mut self) -> Result<(), Fault> {
        while self.in_repair < self.in_repair_max
            && let Some(BlockId { file, block }) = self.damaged.pop_front()
        {
            self.in_repair += 1;
            self.link.send(&Message::Locate(Locate { file, block }))?;
        }
        Ok(())
    }

    /// Takes the digests of the pieces of a damaged block.
    fn on_pieces(&mut self, message: &Pieces) -> Result<(), Fault> {
        let id = BlockId {
            file: message.file,
            block: message.block,
        };
        let incoming = self.files.get_mut(id.file as usize);
        let doubtful = incoming.and_then(|incoming| {
            let blocks = incoming.target.as_ref()?.blocks;
            let doubtful = incoming.doubtful.get_mut(&id.block)?;
            Some((doubtful, blocks.pieces(id.block)))
        });
        let (digests, rest) = message.digests.as_chunks::<32>();
        match doubtful {
            Some((doubtful, pieces))
                if doubtful.pieces.as_ref().is_some_and(Vec::is_empty)
                    && rest.is_empty()
                    && digests.len() == pieces.count() as usize =>
            {
                doubtful.pieces = Some(digests.to_vec());
                self.sink.rehash(id);
                Ok(())
            }
            _ => Err(Fault::protocol(
                "the peer sent digests of pieces that were not requested",
            )),
        }
    }

    /// Requests again the pieces whose digests differ from the sender's.
    fn compare_pieces(
        &mut self,
        id: BlockId,
        found: &[Digest],
        outcome: &mut ReceiverOutcome,
    ) -> Result<(), Fault> {
        let incoming = &mut self.files[id.file as usize];
        let Some((doubtful, target)) = incoming
            .doubtful
            .get_mut(&id.block)
            .zip(incoming.target.as_ref())
        else {
            return Ok(());
        };
        let Some(announced) = &doubtful.pieces else {
            return Ok(());
        };
        let mut runs: Vec<PieceRun> = Vec::new();
        for piece in (0..).zip(announced.iter().zip(found)) {
            match (piece, runs.last_mut()) {
                ((_, (announced, found)), _) if announced == found => {}
                ((index, _), Some(run)) if run.first + run.count == index => run.count += 1,
                ((first, _), _) => runs.push(PieceRun { first, count: 1 }),
            }
        }
        let pieces = target.blocks.pieces(id.block);
        if runs.is_empty() {
            let digest = Some(pieces.block(announced));
            (doubtful.announced, doubtful.computed) = (digest, digest);
            return self.compare(id, outcome);
        }
        doubtful.attempts += 1;
        let (from, name) = (pieces.range(runs[0].first, 1).0, &target.name);
        if doubtful.attempts > ATTEMPTS {
            let place = format!("data from byte {from} of '{name}' on");
            return Err(Fault::new(
                Code::Integrity,
                format!("{place} arrived damaged {} times", doubtful.attempts),
            )
            .hint("check the memory and network adapters of both ends"));
        }
        if !std::mem::replace(&mut incoming.is_damaged, true) {
            let note =
                format!("data from byte {from} of '{name}' on arrived damaged; repairing it");
            self.observer.event(&Event::Note(&note));
        }
        self.repairs += runs.len();
        if self.repairs > REPAIRS_MAX {
            return Err(Fault::new(
                Code::PeerGone,
                "too much arrived damaged for one connection",
            ));
        }
        self.repaired += self.sink.append_pieces(id, &runs)?;
        self.link.send(&Message::Repair(Repair {
            file: id.file,
            block: id.block,
            runs,
        }))
    }

    /// Requests a block that an earlier session left here and that differs from the source.
    fn replace(&mut self, id: BlockId, outcome: &mut ReceiverOutcome) -> Result<(), Fault> {
        let incoming = &mut self.files[id.file as usize];
        let Some(target) = incoming.target.clone() else {
            return Ok(());
        };
        if !std::mem::replace(&mut incoming.is_stale, true) {
            target.forget()?;
            let verified = (0..).zip(&incoming.digests);
            let verified: Vec<_> = verified
                .filter_map(|(block, digest)| Some((block, (*digest)?)))
                .collect();
            for block in verified {
                self.job(Job::Verified {
                    file: id.file,
                    block,
                })?;
            }
            self.observer.event(&Event::Note(&stale(&target.name)));
        }
        let (_, len) = target.blocks.range(id.block, 1);
        self.present_before = self.present_before.saturating_sub(len);
        if let Some(plan) = outcome.plan.get_mut(id.file as usize) {
            plan.present = plan.present.saturating_sub(len);
        }
        let run = Run {
            file: id.file,
            first: id.block,
            count: 1,
        };
        self.ask(vec![run])
    }

    /// Makes a file durable once all its blocks are verified, and publishes it once the sender has
    /// committed all its requested runs.
    fn publish_if_due(&mut self, index: usize) -> Result<(), Fault> {
        let incoming = &mut self.files[index];
        let Some(target) = &incoming.target else {
            return Ok(());
        };
        if incoming.unverified > 0 || incoming.is_publishing {
            return Ok(());
        }
        let file = u32::try_from(index).map_err(|_| Fault::protocol("too many files"))?;
        let is_settled = incoming.root.is_some();
        let root = *incoming.root.get_or_insert_with(|| {
            let digests: Vec<Digest> = incoming.digests.iter().flatten().copied().collect();
            *target.blocks.root(&digests).as_bytes()
        });
        let commit = incoming.commit.filter(|commit| commit.end >= incoming.end);
        incoming.is_publishing = commit.is_some();
        if let Some(commit) = commit {
            let entry = self.offer.files.get(index);
            let entry = entry.ok_or_else(|| Fault::protocol("no such file"))?;
            if wire::seal(&self.binding, entry, &root)? != commit.seal {
                return Err(wire::damaged());
            }
        }
        if !is_settled {
            self.job(Job::Settle { file })?;
        }
        if commit.is_some() {
            self.job(Job::Publish { file })?;
        }
        Ok(())
    }

    fn on_channel(&self, end: CarrierEnd) -> Fault {
        match end {
            CarrierEnd::NotOpened(fault) => account_of(self.link, fault),
            CarrierEnd::Ran(Ok(())) => account_of(
                self.link,
                Fault::new(Code::PeerGone, "the data connection was closed"),
            ),
            CarrierEnd::Ran(Err(error)) => channel_fault(self.link, &error),
        }
    }

    fn job(&self, job: Job) -> Result<(), Fault> {
        self.jobs
            .send(job)
            .map_err(|_| Fault::new(Code::Other, "the thread that writes the journal ended"))
    }
}
