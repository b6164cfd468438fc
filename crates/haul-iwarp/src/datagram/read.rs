//! RDMA Read over datagrams, both ends.
//!
//! The requester keeps a record of the arrived ranges and requests missing ones again. The
//! responder keeps only a queue of responses: a duplicate request is answered again, unless its
//! response is still queued.

use std::collections::VecDeque;

use super::config::UdConfig;
use super::ranges::{RangeSet, Verdict};
use super::wire::MsgId;
use super::work::{Reason, UdCompletion, UdEvent, UdSendWr, UdStatus, ValidityMap};
use crate::address::{Destination, Source};
use crate::operation::Operation;
use crate::stag::Stag;
use crate::time::{SECOND_NS, Time};
use crate::wire::rdmap::ReadRequest;

/// Ranges that a request can name.
pub(super) const RANGES_MAX: usize = 7;
/// Most requests for missing ranges at once.
const ROUND: usize = 4;
/// Ranges of a read that may be known with gaps between them.
const KNOWN_RANGES: usize = 64;
/// Bounds of the time after which a requester expects nothing more.
const IDLE_NS: (u64, u64) = (SECOND_NS / 100, SECOND_NS);
/// Round trips after which a requester expects nothing more.
const IDLE_FACTOR: u64 = 4;
/// Unanswered requests in a row after which the peer may have lost this end's state.
const DOUBT: u32 = 2;

/// Up to [`RANGES_MAX`] parts of a message (start, end exclusive), in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Parts {
    parts: [(u32, u32); RANGES_MAX],
    count: usize,
}

impl Parts {
    /// Adds one; a request that does not fit is left out.
    pub(super) fn push(&mut self, part: (u32, u32)) {
        if let Some(free) = self.parts.get_mut(self.count) {
            *free = part;
            self.count += 1;
        }
    }

    pub(super) fn as_slice(&self) -> &[(u32, u32)] {
        &self.parts[..self.count]
    }
}

#[derive(Debug)]
struct Read {
    wr: UdSendWr,
    id: MsgId,
    request: ReadRequest,
    /// The responder, known from the first response on.
    source: Option<Source>,
    ranges: RangeSet,
    /// Requests that are due, the last one first.
    due: Vec<Parts>,
    /// It waits until the peer knows this end.
    waits: bool,
    asked: Time,
    /// More than one request was sent: a response yields no RTT sample.
    repeated: bool,
    /// Something new has come since it was asked for.
    answered: bool,
    tries: u32,
    idle_ns: u64,
    next: Time,
    end: Time,
}

/// Reads of this end.
#[derive(Debug)]
pub(super) struct Reads {
    open: Vec<Read>,
}

/// A segment of a response that may be placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) from: Source,
    pub(super) id: MsgId,
    pub(super) start: u32,
    pub(super) end: u32,
}

/// A request to be sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) to: Destination,
    pub(super) id: MsgId,
    pub(super) request: ReadRequest,
    /// Empty: all of it.
    pub(super) parts: Parts,
    pub(super) slot: u32,
}

impl Reads {
    pub(super) const fn new() -> Self {
        Self { open: Vec::new() }
    }

    pub(super) const fn len(&self) -> usize {
        self.open.len()
    }

    /// Begins a read. `waits`: not before [`Self::handle_known`].
    pub(super) fn begin(
        &mut self,
        now: Time,
        config: &UdConfig,
        wr: UdSendWr,
        id: MsgId,
        rtt_us: u32,
        waits: bool,
    ) {
        let Operation::Read {
            sink,
            sink_to,
            source,
            source_to,
        } = wr.op
        else {
            return;
        };
        let request = ReadRequest {
            sink,
            sink_to,
            len: wr.len,
            source,
            source_to,
        };
        let idle_ns = match rtt_us {
            0 => config.read_first_ns,
            rtt => idle_after(u64::from(rtt) * 1_000),
        };
        let mut read = Read {
            wr,
            id,
            request,
            source: None,
            ranges: RangeSet::default(),
            due: Vec::new(),
            waits,
            asked: now,
            repeated: false,
            answered: false,
            tries: 0,
            idle_ns,
            next: now.after(idle_ns),
            end: now.after(config.read_total_ns),
        };
        if !waits {
            read.ask(now);
        }
        self.open.push(read);
    }

    /// Checks a response against its read. An empty response to an empty read completes it here.
    pub(super) fn judge(
        &mut self,
        answer: &Answer,
        sink: Stag,
        base: u64,
        len: u32,
    ) -> Result<(), Reason> {
        let read = self
            .find(&answer.from, answer.id)
            .ok_or(Reason::Unexpected)?;
        if read.source.is_some_and(|source| source != answer.from) {
            return Err(Reason::Unexpected);
        }
        let request = &read.request;
        if (sink, base, len) != (request.sink, request.sink_to, request.len) {
            return Err(Reason::Malformed);
        }
        if len == 0 {
            return Ok(());
        }
        match read.ranges.judge(answer.start, answer.end, KNOWN_RANGES) {
            Verdict::New => Ok(()),
            Verdict::Known => Err(Reason::Duplicate),
            Verdict::Full => Err(Reason::MapFull),
        }
    }

    fn find(&mut self, from: &Source, id: MsgId) -> Option<&mut Read> {
        let to = from.destination();
        self.open
            .iter_mut()
            .find(|read| read.id == id && read.wr.to == to)
    }

    /// A response is placed, or empty. Returns the RTT in microseconds, if it is unambiguous.
    pub(super) fn placed(
        &mut self,
        now: Time,
        answer: &Answer,
        events: &mut VecDeque<UdEvent>,
    ) -> Option<u32> {
        let read = self.find(&answer.from, answer.id)?;
        read.source = Some(answer.from);
        let mut rtt_us = None;
        if !read.answered && !read.repeated {
            let rtt_ns = now.as_ns().saturating_sub(read.asked.as_ns());
            read.idle_ns = idle_after(rtt_ns);
            rtt_us = u32::try_from(rtt_ns.div_ceil(1_000)).ok();
        }
        read.answered = true;
        read.next = now.after(read.idle_ns);
        if answer.start < answer.end {
            read.ranges.insert(answer.start, answer.end);
        }
        if read.ranges.covered() == read.request.len {
            self.finish(
                &answer.from.destination(),
                answer.id,
                UdStatus::Success,
                events,
            );
        }
        rtt_us
    }

    /// Handles a response whose sink was withdrawn.
    pub(super) fn fail(&mut self, answer: &Answer, events: &mut VecDeque<UdEvent>) {
        let to = answer.from.destination();
        self.finish(&to, answer.id, UdStatus::LocalProtection, events);
    }

    fn finish(
        &mut self,
        to: &Destination,
        id: MsgId,
        status: UdStatus,
        events: &mut VecDeque<UdEvent>,
    ) {
        let is_it = |read: &Read| read.id == id && read.wr.to == *to;
        if let Some(at) = self.open.iter().position(is_it) {
            let read = self.open.swap_remove(at);
            events.push_back(read.completion(status));
        }
    }

    /// Takes the outcome of a validation: the peer knows this end, or does not answer.
    pub(super) fn handle_known(
        &mut self,
        now: Time,
        to: &Destination,
        known: bool,
        events: &mut VecDeque<UdEvent>,
    ) {
        for at in (0..self.open.len()).rev() {
            let read = &mut self.open[at];
            if read.wr.to != *to {
                continue;
            }
            if known {
                read.waits = false;
                read.ask(now);
            } else if read.waits {
                let read = self.open.swap_remove(at);
                events.push_back(read.completion(UdStatus::TimedOut));
            }
        }
    }

    /// Repeats the request, or gives up. Calls `doubt` with each peer that may have lost this end's
    /// state.
    pub(super) fn expire(
        &mut self,
        now: Time,
        config: &UdConfig,
        events: &mut VecDeque<UdEvent>,
        mut doubt: impl FnMut(Destination),
    ) {
        for at in (0..self.open.len()).rev() {
            let read = &mut self.open[at];
            if read.deadline() > now {
                continue;
            }
            if read.answered {
                read.tries = 0;
            } else {
                read.tries += 1;
                read.idle_ns = (read.idle_ns * 2).min(IDLE_NS.1);
            }
            if read.end <= now || read.tries >= config.read_tries.max(1) {
                let status = if read.ranges.covered() > 0 {
                    UdStatus::Partial
                } else {
                    UdStatus::TimedOut
                };
                let read = self.open.swap_remove(at);
                events.push_back(read.completion(status));
                continue;
            }
            read.repeated = true;
            read.ask(now);
            if read.tries >= DOUBT {
                doubt(read.wr.to);
            }
        }
    }

    /// The next request to send.
    pub(super) fn poll(&mut self) -> Option<Asked> {
        let read = self.open.iter_mut().find(|read| !read.due.is_empty())?;
        Some(Asked {
            to: read.wr.to,
            id: read.id,
            request: read.request,
            parts: read.due.pop()?,
            slot: read.wr.slot,
        })
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.open.iter().map(Read::deadline).min()
    }

    /// Ends all reads.
    pub(super) fn flush(&mut self, events: &mut VecDeque<UdEvent>) {
        for read in self.open.drain(..) {
            events.push_back(read.completion(UdStatus::Flushed));
        }
    }
}

impl Read {
    /// While it waits for the peer to know this end, that has a time-out of its own.
    fn deadline(&self) -> Time {
        if self.waits {
            self.end
        } else {
            self.next.min(self.end)
        }
    }

    /// Creates the requests for missing ranges.
    fn ask(&mut self, now: Time) {
        self.asked = now;
        self.answered = false;
        self.next = now.after(self.idle_ns);
        self.due.clear();
        if self.ranges.covered() == 0 {
            self.due.push(Parts::default());
            return;
        }
        let mut gaps = self.ranges.gaps(self.request.len).peekable();
        while gaps.peek().is_some() && self.due.len() < ROUND {
            let mut parts = Parts::default();
            for gap in gaps.by_ref().take(RANGES_MAX) {
                parts.push(gap);
            }
            self.due.push(parts);
        }
        self.due.reverse();
    }

    fn completion(self, status: UdStatus) -> UdEvent {
        let map = if status == UdStatus::Success {
            ValidityMap::Full
        } else {
            ValidityMap::Ranges(self.ranges.as_slice().into())
        };
        UdEvent::Completion(UdCompletion {
            id: self.wr.id,
            slot: self.wr.slot,
            op: self.wr.op,
            status,
            len: self.ranges.covered(),
            map,
            signalled: self.wr.signalled,
        })
    }
}

fn idle_after(rtt_ns: u64) -> u64 {
    rtt_ns
        .saturating_mul(IDLE_FACTOR)
        .clamp(IDLE_NS.0, IDLE_NS.1)
}

/// A response that is being sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) to: Source,
    pub(super) id: MsgId,
    pub(super) request: ReadRequest,
    /// Not empty.
    pub(super) parts: Parts,
    /// The part that is being sent, and its bytes that are sent.
    part: usize,
    done: u32,
}

impl Job {
    pub(super) const fn new(to: Source, id: MsgId, request: ReadRequest, parts: Parts) -> Self {
        Self {
            to,
            id,
            request,
            parts,
            part: 0,
            done: 0,
        }
    }

    /// The next segment, of at most `max` bytes, and whether it is the job's last.
    pub(super) fn next(&mut self, max: u32) -> (u32, u32, bool) {
        let parts = self.parts.as_slice();
        let (start, end) = parts[self.part];
        let start = start + self.done;
        let len = (end - start).min(max);
        self.done += len;
        if start + len == end {
            self.part += 1;
            self.done = 0;
        }
        (start, len, self.part == parts.len())
    }
}

/// Responses to the peers' reads.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    queue: VecDeque<Job>,
}

impl Jobs {
    /// Queues a response, unless it is queued already or the queue is full.
    pub(super) fn push(&mut self, config: &UdConfig, job: Job) -> Result<(), Reason> {
        let same =
            |other: &Job| other.to == job.to && other.id == job.id && other.parts == job.parts;
        let of_source = self.queue.iter().filter(|other| other.to == job.to).count();
        if self.queue.iter().any(same)
            || self.queue.len() >= config.read_jobs
            || of_source >= config.read_jobs_per_source
        {
            return Err(Reason::Busy);
        }
        self.queue.push_back(job);
        Ok(())
    }

    pub(super) fn front(&mut self) -> Option<&mut Job> {
        self.queue.front_mut()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn pop(&mut self) {
        self.queue.pop_front();
    }

    /// Gives the turn to the next response.
    pub(super) fn rotate(&mut self) {
        if let Some(job) = self.queue.pop_front() {
            self.queue.push_back(job);
        }
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }
}
