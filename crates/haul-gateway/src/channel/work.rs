//! RDMA Reads and Writes on queue pairs of one protection domain, and the marks behind writes:
//! Sends, which are not delivered before what was written earlier on the same queue pair is in
//! place.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::BorrowedFd;

use haul_slab::{AccessFlags, Region};
use haul_verbs::{
    CompletionChannel, Context, Cq, Error, Mr, MrInit, Notify, Pd, Peer, Qp, RecvWr, Remote,
    SendOp, SendWr, Sge, Sources, Transport, WcStatus, WorkCompletion,
};
use haul_xsp::bag::{Get, Put, PutId};
use haul_xsp::wire::Key;
use haul_xsp::{ChanId, SlabSeq};

use super::fabric::{Guard, Lost, News, READS_MAX, Wanted};

/// Completions that are taken at a time.
const BATCH: usize = 64;
/// Octets of a mark: the slab, and on how many queue pairs it is told.
pub(super) const MARK_BYTES: u32 = 16;
/// Marks that a peer may have under way on a queue pair: of as many slabs as it may have (64), and
/// as many that are written again.
const MARKS: u32 = 128;
/// Numbers of receives for marks have this bit and the place.
const MARK: u64 = 1 << 61;

/// A data channel: a queue pair.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) chan: ChanId,
    pub(super) qp: Qp,
    pub(super) is_up: bool,
    /// Whom it talks to, where there is no connection that says so.
    pub(super) peer: Option<Peer>,
    /// How the first of its requests failed that did.
    pub(super) failure: Option<WcStatus>,
    /// Octets of the reads and writes on it.
    outstanding: u64,
}

impl Lane {
    pub(super) const fn new(chan: ChanId, qp: Qp) -> Self {
        Self {
            chan,
            qp,
            is_up: false,
            peer: None,
            failure: None,
            outstanding: 0,
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

    const fn over(self, is_done: bool) -> Option<News> {
        match self {
            Self::Get(get) => Some(News::Got(get.id, is_done)),
            Self::Put { id, .. } => Some(News::Put(id, is_done)),
            Self::Mark(_) => None,
        }
    }

    /// Of a read or a write.
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

/// What memory the peer is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opens {
    /// Each record, or grant, for as long as it is announced: where registering is a matter of this
    /// process.
    Parts,
    /// The regions that they are in, for as long as the fabric is there: where registering asks the
    /// kernel, and pins memory.
    Wholes,
}

/// Marks behind writes.
#[derive(Debug)]
struct Marks {
    /// Places: those that are sent, then those that arrive.
    memory: Mr,
    /// Counts marks of this end's: their places are used in turn, and the peer has the last but
    /// `MARKS` before it lets more be.
    sent: u32,
    /// Places for arriving ones that are with a queue pair.
    receives: u32,
    receives_max: u32,
    /// On how many queue pairs a slab's mark has arrived: at most `receives_max`.
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

    /// A queue pair may be sent marks.
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

    /// Writes the mark of a slab that is told on so many queue pairs; where it lies.
    fn write(&mut self, seq: SlabSeq, lanes: usize) -> Result<Sge, Lost> {
        let place = self.sent % MARKS;
        self.sent = self.sent.wrapping_add(1);
        let octets = [seq.0, lanes as u64].map(u64::to_be_bytes);
        let region = self.memory.region();
        let written = region.write(Self::at(place), octets.as_flattened());
        written.map_err(|error| Lost(error.to_string()))?;
        Ok(self.place(place))
    }

    /// A mark has arrived: the slab, once it has on each queue pair.
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

/// What queue pairs of one kind share.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) pd: Pd,
    pub(super) cq: Cq,
    completions: CompletionChannel,
    /// What is read goes here.
    arena: Mr,
    /// Regions that are registered as they are, and what for.
    wholes: Vec<(Mr, AccessFlags)>,
    opens: Opens,
    jobs: HashMap<u64, (Job, u32)>,
    /// Until there is room on a queue pair.
    waiting: VecDeque<Job>,
    /// Where octets are written (push).
    marks: Option<Marks>,
    /// Of the mark that waits first: where it lies, and the queue pairs that have yet to be given
    /// it.
    begun: Option<(Sge, VecDeque<u32>)>,
    next: u64,
    batch: Box<[WorkCompletion; BATCH]>,
}

impl Work {
    /// Room for the reads and writes of as many queue pairs as are `wanted`. What is read goes to
    /// `arena`.
    pub(super) fn new(
        context: &Context,
        arena: &Region,
        wanted: &Wanted,
        opens: Opens,
    ) -> Result<Self, Error> {
        let pd = context.alloc_pd()?;
        let completions = context.create_completion_channel()?;
        let lanes = wanted.lanes.max(1);
        let marks = wanted.pushes.then(|| Marks::new(&pd, lanes)).transpose()?;
        let marked = if marks.is_some() { 2 * MARKS } else { 0 };
        let entries = u32::from(lanes) * (u32::from(READS_MAX) * 4 + marked);
        let cq = context.create_cq(entries, Some(&completions), 0)?;
        cq.arm(Notify::Any)?;
        let mut sink = AccessFlags::LOCAL_WRITE;
        if opens == Opens::Wholes && context.attributes()?.transport == Transport::Iwarp {
            // What a Read brings is tagged data from the peer like a Write's, and iWARP devices ask
            // for the right to that.
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

    /// Readable while reads and writes are over.
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
        sources: Sources,
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
        let mr = self
            .pd
            .register(MrInit::new(part, access).with_sources(sources))?;
        let key = Key {
            stag: mr.rkey(),
            to: mr.addr(),
        };
        Ok((Guard::Registered { _mr: mr }, key))
    }

    /// A region registered as it is, with these rights at least.
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

    /// Receives that a queue pair needs for marks.
    pub(super) const fn marks_max(&self) -> u32 {
        match self.marks {
            Some(_) => MARKS,
            None => 0,
        }
    }

    /// A queue pair is about to be used, and may be sent marks.
    pub(super) fn expect_marks(&mut self, qp: &Qp) -> Result<(), Error> {
        match &mut self.marks {
            Some(marks) => marks.expect(qp),
            None => Ok(()),
        }
    }

    /// Tells the peer, on every queue pair, when what was given to [`Self::put`] so far is in
    /// place.
    pub(super) fn mark(&mut self, seq: SlabSeq) {
        self.waiting.push_back(Job::Mark(seq));
    }

    /// A completion that is neither of a read nor of a write, but perhaps of a receive of
    /// [`Self::expect_marks`].
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
        // It may be over, which its completions tell.
        let _ = marks.receive(qp, place);
        Ok(())
    }

    /// A mark has arrived in memory of the caller's.
    pub(super) fn marked(
        &mut self,
        octets: [u8; MARK_BYTES as usize],
        news: &mut Vec<News>,
    ) -> Result<(), Lost> {
        if let Some(marks) = &mut self.marks {
            news.extend(marks.on_arrived(octets)?.map(News::Written));
        }
        Ok(())
    }

    /// Posts what waits, as far as there is room: reads and writes on the queue pair that has least
    /// to do, marks on each.
    pub(super) fn post(&mut self, lanes: &mut [Lane]) -> Result<(), Lost> {
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
        lane.outstanding += job.len();
        let is_posted = self.post_on(lane, job, request);
        if !is_posted {
            lane.outstanding -= job.len();
        }
        is_posted
    }

    /// `false`: there is no room, or it is in error; then its completions say so.
    fn post_on(&mut self, lane: &Lane, job: Job, request: SendWr<'_>) -> bool {
        let peer = lane.peer;
        let is_posted = lane.qp.post_send(&[SendWr { peer, ..request }]).is_ok();
        if is_posted {
            self.jobs.insert(self.next, (job, lane.qp.qp_num()));
            self.next += 1;
        }
        is_posted
    }

    fn post_mark(&mut self, seq: SlabSeq, lanes: &[Lane]) -> Result<bool, Lost> {
        let Some(marks) = &mut self.marks else {
            return Ok(true);
        };
        let up = || lanes.iter().filter(|lane| lane.is_up);
        let (local, mut left) = match self.begun.take() {
            Some(begun) => begun,
            None => {
                let left: VecDeque<u32> = up().map(|lane| lane.qp.qp_num()).collect();
                if left.is_empty() {
                    return Ok(false);
                }
                (marks.write(seq, left.len())?, left)
            }
        };
        while let Some(next) = left.front() {
            // One that is gone takes the others with it.
            let lane = up().find(|lane| lane.qp.qp_num() == *next);
            let request = SendWr::new(self.next, SendOp::Send, local);
            if lane.is_some_and(|lane| !self.post_on(lane, Job::Mark(seq), request)) {
                self.begun = Some((local, left));
                return Ok(false);
            }
            left.pop_front();
        }
        Ok(true)
    }

    /// What is over since the last call. Completions of what is neither read nor write are for
    /// `other`.
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
                    if !is_done {
                        lane.failure.get_or_insert(done.status);
                    }
                }
                news.extend(job.over(is_done));
            }
            if count < BATCH {
                return Ok(());
            }
        }
    }

    /// Its queue pairs are gone: everything under way has failed.
    pub(super) fn end(self, news: &mut Vec<News>) {
        let begun = self.jobs.into_values().map(|(job, _)| job);
        news.extend(begun.chain(self.waiting).filter_map(|job| job.over(false)));
    }
}

fn index(octets: u64) -> Result<usize, Error> {
    usize::try_from(octets).map_err(|_| Error::Invalid("more octets than there is memory"))
}
