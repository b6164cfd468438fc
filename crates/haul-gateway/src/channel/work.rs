//! RDMA Reads and Writes on queue pairs of one protection domain, and marks behind writes. A mark
//! is a Send, which is not delivered before earlier writes of its queue pair are in place.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::BorrowedFd;

use haul_slab::{AccessFlags, Region};
use haul_verbs::{
    CompletionChannel, Context, Cq, Error, Mr, MrInit, Notify, Pd, Qp, RecvWr, Remote, SendOp,
    SendWr, Sge, Transport, WcStatus, WorkCompletion,
};
use haul_xsp::bag::{Get, Put, PutId, SLABS_MOVED_MAX};
use haul_xsp::wire::Key;
use haul_xsp::{ChanId, SlabSeq};

use super::fabric::{Guard, Lost, News, Wanted};

/// Completions taken at a time.
const BATCH: usize = 64;
/// Length of a mark, bytes: the slab, and the number of queue pairs that carry the mark.
const MARK_BYTES: u32 = 16;
/// Most marks in flight on a queue pair: of the slabs in flight, and of as many that are rewritten.
const MARKS: u32 = 2 * SLABS_MOVED_MAX;
/// Marks the receives for marks.
const MARK: u64 = 1 << 61;

/// A data channel: a queue pair.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) chan: ChanId,
    pub(super) qp: Qp,
    pub(super) is_up: bool,
    /// A request has failed, or the queue pair was disconnected. The disconnection ends all lanes.
    /// Some devices report it late or not at all. Until the fabric is replaced nothing is posted.
    pub(super) has_failed: bool,
    /// Bytes of reads and writes in flight.
    outstanding: u64,
    /// Marks in flight. At most [`MARKS`], because their memory is used in turn.
    marks: u32,
}

impl Lane {
    pub(super) const fn new(chan: ChanId, qp: Qp) -> Self {
        Self {
            chan,
            qp,
            is_up: false,
            has_failed: false,
            outstanding: 0,
            marks: 0,
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Job {
    Get(Get),
    Put { id: PutId, key: Key, local: Sge },
    Mark(SlabSeq),
}

impl Job {
    const fn len(&self) -> u64 {
        match self {
            Self::Get(get) => get.len as u64,
            Self::Put { local, .. } => local.len as u64,
            Self::Mark(_) => 0,
        }
    }

    const fn marks(&self) -> u32 {
        matches!(self, Self::Mark(_)) as u32
    }

    const fn over(self, is_done: bool) -> Option<News> {
        match self {
            Self::Get(get) => Some(News::Got(get.id, is_done)),
            Self::Put { id, .. } => Some(News::Put(id, is_done)),
            Self::Mark(_) => None,
        }
    }

    /// Builds the request of a read or a write.
    fn request(&self, wr_id: u64, arena: &Mr) -> Option<SendWr<'static>> {
        let remote = |key: Key| Remote {
            addr: key.to,
            rkey: key.stag,
        };
        let (op, local) = match self {
            Self::Get(get) => {
                let local = arena.sge(get.at, get.len);
                (SendOp::RdmaRead(remote(get.key)), local)
            }
            Self::Put { key, local, .. } => (SendOp::RdmaWrite(remote(*key)), *local),
            Self::Mark(_) => return None,
        };
        Some(SendWr::new(wr_id, op, local))
    }
}

/// Which memory is registered for the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opens {
    /// Each record or grant while it is announced: for devices that register within this process.
    Parts,
    /// Whole regions while the fabric exists: for devices whose registration asks the kernel, and
    /// pins memory.
    Wholes,
}

/// Marks behind writes.
#[derive(Debug)]
struct Marks {
    /// Places: for marks to send, then for arriving ones.
    memory: Mr,
    /// Counts marks sent. Their places are used in turn.
    sent: u32,
    /// Places for arriving marks that are posted.
    receives: u32,
    receives_max: u32,
    /// For each slab, the queue pairs on which its mark has arrived: at most `receives_max`.
    arrived: BTreeMap<SlabSeq, u64>,
}

impl Marks {
    fn new(pd: &Pd, lanes: u16) -> Result<Self, Error> {
        let receives_max = u32::from(lanes) * MARKS;
        let bytes = (MARKS + receives_max) * MARK_BYTES;
        let region = Region::map(bytes as usize).map_err(|source| Error::Os {
            what: "memory for marks",
            source,
        })?;
        Ok(Self {
            memory: pd.reg_mr(&region, AccessFlags::LOCAL_WRITE)?,
            sent: 0,
            receives: 0,
            receives_max,
            arrived: BTreeMap::new(),
        })
    }

    fn place(&self, place: u32) -> Sge {
        let at = u64::from(place) * u64::from(MARK_BYTES);
        self.memory.sge(at, MARK_BYTES)
    }

    fn at(place: u32) -> usize {
        place as usize * MARK_BYTES as usize
    }

    /// Posts receives for marks on a queue pair.
    fn expect(&mut self, qp: &Qp) -> Result<(), Error> {
        if self.receives + MARKS > self.receives_max {
            return Err(Error::Invalid("more channels than were asked for"));
        }
        let places = self.receives..self.receives + MARKS;
        self.receives = places.end;
        places
            .into_iter()
            .try_for_each(|place| self.receive(qp, MARKS + place))
    }

    fn receive(&self, qp: &Qp, place: u32) -> Result<(), Error> {
        let request = RecvWr::new(MARK | u64::from(place), self.place(place));
        let posted = qp.post_recv(&[request]);
        posted.map_err(|refused| refused.error)
    }

    /// Writes the mark of a slab for this number of queue pairs, and returns its place.
    fn write(&mut self, seq: SlabSeq, lanes: usize) -> Result<Sge, Lost> {
        let place = self.sent % MARKS;
        self.sent = self.sent.wrapping_add(1);
        let octets = [seq.0, lanes as u64].map(u64::to_be_bytes);
        let region = self.memory.region();
        let written = region.write(Self::at(place), octets.as_flattened());
        written.map_err(|error| Lost(error.to_string()))?;
        Ok(self.place(place))
    }

    /// Counts an arriving mark. Returns the slab once its mark has arrived on each queue pair.
    fn on_arrived(&mut self, octets: [u8; MARK_BYTES as usize]) -> Result<Option<SlabSeq>, Lost> {
        let [seq, lanes] = octets.as_chunks::<8>().0 else {
            return Ok(None);
        };
        let (seq, lanes) = (
            SlabSeq(u64::from_be_bytes(*seq)),
            u64::from_be_bytes(*lanes),
        );
        let count = self.arrived.remove(&seq).unwrap_or(0) + 1;
        if count >= lanes {
            return Ok(Some(seq));
        }
        if self.arrived.len() >= self.receives_max as usize {
            return Err(Lost(
                "the peer marks more slabs than there may be".to_owned(),
            ));
        }
        self.arrived.insert(seq, count);
        Ok(None)
    }
}

/// State shared by queue pairs of one kind.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) pd: Pd,
    pub(super) cq: Cq,
    completions: CompletionChannel,
    /// Where reads go.
    arena: Mr,
    /// Regions registered as a whole, with their access.
    wholes: Vec<(Mr, AccessFlags)>,
    opens: Opens,
    jobs: HashMap<u64, (Job, u32)>,
    /// Jobs that wait for room on a queue pair.
    waiting: VecDeque<Job>,
    /// If data is moved by writes (push).
    marks: Option<Marks>,
    /// The mark that waits first: its place, and the queue pairs that still need it.
    begun: Option<(Sge, VecDeque<u32>)>,
    next: u64,
    batch: Box<[WorkCompletion; BATCH]>,
}

impl Work {
    /// Allocates work requests for the reads and writes of all requested queue pairs. Reads go to
    /// `arena`.
    pub(super) fn new(
        context: &Context,
        arena: &Region,
        wanted: &Wanted,
        sends_max: u32,
        opens: Opens,
    ) -> Result<Self, Error> {
        let pd = context.alloc_pd()?;
        let completions = context.create_completion_channel()?;
        let lanes = wanted.lanes.max(1);
        let marks = wanted.pushes.then(|| Marks::new(&pd, lanes)).transpose()?;
        let marked = if marks.is_some() { 2 * MARKS } else { 0 };
        let entries = u32::from(lanes) * (sends_max * 2 + marked);
        let cq = context.create_cq(entries, Some(&completions), 0)?;
        cq.arm(Notify::Any)?;
        let mut sink = AccessFlags::LOCAL_WRITE;
        if opens == Opens::Wholes && context.attributes()?.transport == Transport::Iwarp {
            // The response to a Read is tagged data like a Write's, and iWARP devices require
            // remote write access for it.
            sink |= AccessFlags::REMOTE_WRITE;
        }
        Ok(Self {
            arena: pd.reg_mr(arena, sink)?,
            wholes: Vec::new(),
            opens,
            cq,
            completions,
            pd,
            jobs: HashMap::new(),
            waiting: VecDeque::new(),
            marks,
            begun: None,
            next: 0,
            batch: Box::new([WorkCompletion::default(); BATCH]),
        })
    }

    /// Readable when reads or writes have completed.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.completions.fd()
    }

    pub(super) fn posts(&self) -> usize {
        self.jobs.len() + self.waiting.len()
    }

    pub(super) fn open(
        &mut self,
        region: &Region,
        at: u64,
        len: u64,
        access: AccessFlags,
    ) -> Result<(Guard, Key), Error> {
        let (at, len) = (index(at)?, index(len)?);
        let part = region
            .cut(at, len)
            .map_err(|_| Error::Invalid("a range outside its region"))?;
        if self.opens == Opens::Wholes {
            let remote = self.whole(region, access)?.remote(at as u64);
            let key = Key {
                stag: remote.rkey,
                to: remote.addr,
            };
            return Ok((Guard::Whole, key));
        }
        let mr = self.pd.register(MrInit::new(part, access))?;
        let key = Key {
            stag: mr.rkey(),
            to: mr.addr(),
        };
        Ok((Guard::Registered { _mr: mr }, key))
    }

    /// Registers a whole region with at least this access.
    fn whole(&mut self, region: &Region, access: AccessFlags) -> Result<&Mr, Error> {
        let fits = |(mr, rights): &(Mr, AccessFlags)| {
            mr.region().as_ptr() == region.as_ptr() && rights.contains(access)
        };
        let known = self.wholes.iter().position(fits);
        let known = match known {
            Some(known) => known,
            None => {
                self.wholes.push((self.pd.reg_mr(region, access)?, access));
                self.wholes.len() - 1
            }
        };
        Ok(&self.wholes[known].0)
    }

    pub(super) fn get(&mut self, get: Get) {
        self.waiting.push_back(Job::Get(get));
    }

    pub(super) fn put(&mut self, put: &Put, region: &Region) -> Result<(), Error> {
        let len =
            u32::try_from(put.place.len).map_err(|_| Error::Invalid("a write that is too long"))?;
        let region = self.whole(region, AccessFlags::empty())?;
        let local = region.sge(put.place.at, len);
        self.waiting.push_back(Job::Put {
            id: put.id,
            key: put.key,
            local,
        });
        Ok(())
    }

    /// Receives for marks of a queue pair.
    pub(super) const fn marks_max(&self) -> u32 {
        match self.marks {
            Some(_) => MARKS,
            None => 0,
        }
    }

    /// Posts receives for marks on a new queue pair.
    pub(super) fn expect_marks(&mut self, qp: &Qp) -> Result<(), Error> {
        match &mut self.marks {
            Some(marks) => marks.expect(qp),
            None => Ok(()),
        }
    }

    /// Marks a slab on every queue pair, behind all writes so far.
    pub(super) fn mark(&mut self, seq: SlabSeq) {
        self.waiting.push_back(Job::Mark(seq));
    }

    /// Handles a completion that may be of a receive of [`Self::expect_marks`].
    pub(super) fn on_mark(
        &mut self,
        done: &WorkCompletion,
        qp: &Qp,
        news: &mut Vec<News>,
    ) -> Result<(), Lost> {
        let is_mark = done.wr_id & MARK == MARK && done.status == WcStatus::Success;
        let Some(marks) = self.marks.as_mut().filter(|_| is_mark) else {
            return Ok(());
        };
        let place = u32::try_from(done.wr_id & !MARK).unwrap_or(u32::MAX);
        if done.byte_len == MARK_BYTES {
            let mut octets = [0; MARK_BYTES as usize];
            let read = marks.memory.region().read(Marks::at(place), &mut octets);
            read.map_err(|error| Lost(error.to_string()))?;
            news.extend(marks.on_arrived(octets)?.map(News::Written));
        }
        // The connection may have ended, which its completions report.
        let _ = marks.receive(qp, place);
        Ok(())
    }

    /// Posts queued requests, as far as queue pairs take them: reads and writes on the least busy
    /// queue pair, marks on each.
    pub(super) fn post(&mut self, lanes: &mut [Lane]) -> Result<(), Lost> {
        // Slabs of a failed lane are written again. If the others did it, the peer would count
        // their new marks with the old ones.
        if lanes.iter().any(|lane| lane.has_failed) {
            return Ok(());
        }
        while let Some(job) = self.waiting.front().copied() {
            let is_posted = match job {
                Job::Mark(seq) => self.post_mark(seq, lanes)?,
                Job::Get(_) | Job::Put { .. } => self.post_one(job, lanes),
            };
            if !is_posted {
                break;
            }
            self.waiting.pop_front();
        }
        Ok(())
    }

    fn post_one(&mut self, job: Job, lanes: &mut [Lane]) -> bool {
        let lane = lanes.iter_mut().filter(|lane| lane.is_up);
        let lane = lane.min_by_key(|lane| lane.outstanding);
        let request = job.request(self.next, &self.arena);
        let (Some(lane), Some(request)) = (lane, request) else {
            return false;
        };
        self.post_on(lane, job, request)
    }

    /// Returns false if there is no room, or the queue pair is in error; its completions report
    /// that.
    fn post_on(&mut self, lane: &mut Lane, job: Job, request: SendWr<'_>) -> bool {
        let is_posted = lane.qp.post_send(&[request]).is_ok();
        if is_posted {
            self.jobs.insert(self.next, (job, lane.qp.qp_num()));
            self.next += 1;
            lane.outstanding += job.len();
            lane.marks += job.marks();
        }
        is_posted
    }

    fn post_mark(&mut self, seq: SlabSeq, lanes: &mut [Lane]) -> Result<bool, Lost> {
        let Some(marks) = &mut self.marks else {
            return Ok(true);
        };
        let (local, mut left) = match self.begun.take() {
            Some(begun) => begun,
            None => {
                let up = || lanes.iter().filter(|lane| lane.is_up);
                // The memory of the next mark may still be in use.
                if up().next().is_none() || up().any(|lane| lane.marks >= MARKS) {
                    return Ok(false);
                }
                let left: VecDeque<u32> = up().map(|lane| lane.qp.qp_num()).collect();
                (marks.write(seq, left.len())?, left)
            }
        };
        while let Some(next) = left.front() {
            // A lost queue pair takes the others with it.
            let lane = lanes
                .iter_mut()
                .find(|lane| lane.is_up && lane.qp.qp_num() == *next);
            let request = SendWr::new(self.next, SendOp::Send, local);
            if lane.is_some_and(|lane| !self.post_on(lane, Job::Mark(seq), request)) {
                self.begun = Some((local, left));
                return Ok(false);
            }
            left.pop_front();
        }
        Ok(true)
    }

    /// Handles completions. Those that are neither of reads nor of writes go to `other`.
    pub(super) fn poll(
        &mut self,
        lanes: &mut [Lane],
        news: &mut Vec<News>,
        mut other: impl FnMut(&WorkCompletion),
    ) -> Result<(), Error> {
        while self.completions.poll_event()?.is_some() {
            self.cq.arm(Notify::Any)?;
        }
        loop {
            let count = self.cq.poll(&mut self.batch[..])?;
            for done in &self.batch[..count] {
                let Some((job, qp_num)) = self.jobs.remove(&done.wr_id) else {
                    other(done);
                    continue;
                };
                let is_done = done.status == WcStatus::Success;
                if let Some(lane) = lanes.iter_mut().find(|lane| lane.qp.qp_num() == qp_num) {
                    lane.outstanding -= job.len();
                    lane.marks -= job.marks();
                    lane.has_failed |= !is_done;
                }
                news.extend(job.over(is_done));
            }
            if count < BATCH {
                return Ok(());
            }
        }
    }

    /// Fails everything in flight; the queue pairs are gone.
    pub(super) fn end(self, news: &mut Vec<News>) {
        let begun = self.jobs.into_values().map(|(job, _)| job);
        news.extend(begun.chain(self.waiting).filter_map(|job| job.over(false)));
    }
}

fn index(octets: u64) -> Result<usize, Error> {
    usize::try_from(octets).map_err(|_| Error::Invalid("more octets than there is memory"))
}
