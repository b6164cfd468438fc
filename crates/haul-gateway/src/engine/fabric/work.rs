//! RDMA Reads and Writes on queue pairs of one protection domain.

use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;

use haul_slab::{AccessFlags, Region};
use haul_verbs::{
    CompletionChannel, Context, Cq, Error, Mr, MrAddressing, MrInit, Notify, Pd, Peer, Qp, Remote,
    SendOp, SendWr, Sge, Sources, Transport, WcStatus, WorkCompletion,
};
use haul_xsp::ChanId;
use haul_xsp::bag::{Get, Put, PutId};
use haul_xsp::wire::Key;

use super::{Guard, News, READS_MAX};

/// Completions that are taken at a time.
const BATCH: usize = 64;

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
}

impl Job {
    const fn len(&self) -> u64 {
        match self {
            Self::Get(get) => get.len as u64,
            Self::Put { local, .. } => local.len as u64,
        }
    }

    const fn over(self, is_done: bool) -> News {
        match self {
            Self::Get(get) => News::Got(get.id, is_done),
            Self::Put { id, .. } => News::Put(id, is_done),
        }
    }

    fn request(&self, wr_id: u64, arena: &Mr) -> SendWr<'static> {
        let remote = |key: Key| Remote {
            addr: key.to,
            rkey: key.stag,
        };
        match self {
            Self::Get(get) => SendWr::new(
                wr_id,
                SendOp::RdmaRead(remote(get.key)),
                arena.sge(get.at, get.len),
            ),
            Self::Put { key, local, .. } => {
                SendWr::new(wr_id, SendOp::RdmaWrite(remote(*key)), *local)
            }
        }
    }
}

/// What memory the peer is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opens {
    /// Each record, or grant, for as long as it is announced: where registering is a matter of this process.
    Parts,
    /// The regions that they are in, for as long as the fabric is there: where registering asks the kernel, and pins memory.
    Wholes,
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
    next: u64,
    batch: Box<[WorkCompletion; BATCH]>,
}

impl Work {
    /// Room for the reads and writes of `lanes` queue pairs. What is read goes to `arena`.
    pub(super) fn new(
        context: &Context,
        arena: &Region,
        lanes: u16,
        opens: Opens,
    ) -> Result<Self, Error> {
        let pd = context.alloc_pd()?;
        let completions = context.create_completion_channel()?;
        let entries = u32::from(lanes.max(1)) * u32::from(READS_MAX) * 4;
        let cq = context.create_cq(entries, Some(&completions), 0)?;
        cq.arm(Notify::Any)?;
        let mut sink = AccessFlags::LOCAL_WRITE;
        if opens == Opens::Wholes && context.attributes()?.transport == Transport::Iwarp {
            // What a Read brings is tagged data from the peer like a Write's, and iWARP devices ask for the right to that.
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
        let mr = self.pd.register(MrInit {
            region: part,
            access,
            addressing: MrAddressing::default(),
            sources,
        })?;
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

    /// Posts what waits, as far as there is room, on the queue pair that has least to do.
    pub(super) fn post(&mut self, lanes: &mut [Lane]) {
        while let Some(job) = self.waiting.front().copied() {
            let lane = lanes.iter_mut().filter(|lane| lane.is_up);
            let Some(lane) = lane.min_by_key(|lane| lane.outstanding) else {
                return;
            };
            let wr_id = self.next;
            // No room, or in error: then its completions say so.
            let request = SendWr {
                peer: lane.peer,
                ..job.request(wr_id, &self.arena)
            };
            if lane.qp.post_send(&[request]).is_err() {
                return;
            }
            lane.outstanding += job.len();
            self.jobs.insert(wr_id, (job, lane.qp.qp_num()));
            self.next += 1;
            self.waiting.pop_front();
        }
    }

    /// What is over since the last call. Completions of what is neither read nor write are for `other`.
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
                news.push(job.over(is_done));
            }
            if count < BATCH {
                return Ok(());
            }
        }
    }

    /// Its queue pairs are gone: everything under way has failed.
    pub(super) fn end(self, news: &mut Vec<News>) {
        let begun = self.jobs.into_values().map(|(job, _)| job);
        news.extend(begun.chain(self.waiting).map(|job| job.over(false)));
    }
}

fn index(octets: u64) -> Result<usize, Error> {
    usize::try_from(octets).map_err(|_| Error::Invalid("more octets than there is memory"))
}
