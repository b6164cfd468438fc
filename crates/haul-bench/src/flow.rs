//! Bandwidth: as many messages outstanding as the plan allows, in one direction or both.
//!
//! A measurement ends with an RDMA Read of a few bytes after the last message of each queue pair.
//! Its response proves that all messages before it are placed, on any transport; without it, iWARP
//! Writes that are still in socket buffers would be counted. Receives are granted as credits: iWARP
//! ends a connection whose peer sends without any.

use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use haul::fault::{Code, Fault};
use haul_io::clock::process_cpu;
use haul_verbs::{Data, SendFlags, SendOp, SendWr, SgeList, WcOpcode, WorkCompletion};

use crate::control::{Control, Message, Place};
use crate::disk::Disk;
use crate::end::End;
use crate::error::{range, verb};
use crate::path::tally::Tally;
use crate::pattern::{self, Stamp, place};
use crate::plan::{Op, POST_LIST_MAX};
use crate::report::Spent;
use crate::tag::{Kind, Tag};

/// Completions taken at a time.
const COMPLETIONS: usize = 64;
/// The Read after the last message, bytes.
const FLUSH: u32 = 8;
/// The control connection is checked every so many iterations, and whenever idle.
const LOOK_EVERY: u32 = 64;

/// The credit state of a queue pair.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlowAccount {
    /// Messages for which the peer has posted receives.
    credits: u64,
    /// Receives posted again for which the peer has no credit yet.
    returned: u32,
}

impl FlowAccount {
    pub(crate) fn new(rx_depth: u32) -> Self {
        Self {
            credits: rx_depth.into(),
            returned: 0,
        }
    }
}

/// The state of the Read after the last message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flush {
    Not,
    Posted,
    Done,
}

/// A queue pair in one measurement.
#[derive(Debug, Clone, Copy)]
struct Lane {
    posted: u64,
    /// Of those, complete.
    retired: u64,
    flush: Flush,
    received: u64,
}

/// The direction of messages in a measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ways {
    /// This end sends or reads.
    pub(crate) out: bool,
    /// The peer sends or reads.
    pub(crate) back: bool,
}

/// One measurement at one end.
#[derive(Debug)]
pub(crate) struct Flow<'a> {
    pub(crate) end: &'a End,
    pub(crate) peer: &'a Place,
    pub(crate) control: &'a Control,
    pub(crate) disk: &'a Disk,
    accounts: &'a mut [FlowAccount],
    lanes: Vec<Lane>,
    ways: Ways,
    size: u32,
    iterations: Option<u64>,
    until: Option<Instant>,
    /// Bytes of a message that is copied when posted.
    inline: Vec<u8>,
    peer_finished: Option<Vec<u64>>,
    bytes: u64,
    verified: u64,
    /// Completed bytes that are not in the tally yet.
    fresh: u64,
    /// Completed bytes by time since the first post.
    tally: Tally,
}

impl<'a> Flow<'a> {
    /// Prepares to send or receive messages of `size` bytes, `iterations` on each queue pair or
    /// until the plan's time is over.
    pub(crate) fn new(
        (end, peer, control, disk): (&'a End, &'a Place, &'a Control, &'a Disk),
        accounts: &'a mut [FlowAccount],
        ways: Ways,
        size: u32,
        iterations: Option<u64>,
    ) -> Result<Self, Fault> {
        let lane = Lane {
            posted: 0,
            retired: 0,
            flush: Flush::Not,
            received: 0,
        };
        let inline = if size <= end.plan.inline && end.plan.op != Op::Read {
            vec![0; size as usize]
        } else {
            Vec::new()
        };
        let flow = Self {
            lanes: vec![lane; end.qps.len()],
            end,
            peer,
            control,
            disk,
            accounts,
            ways,
            size,
            iterations,
            until: None,
            inline,
            peer_finished: None,
            bytes: 0,
            verified: 0,
            fresh: 0,
            tally: Tally::new(1),
        };
        flow.prepare()?;
        Ok(flow)
    }

    /// Data of an earlier measurement must not pass for this one's.
    fn prepare(&self) -> Result<(), Fault> {
        if !self.end.plan.verify {
            return Ok(());
        }
        self.end
            .prepare(self.size, |qp, number| Stamp { qp, number })
    }

    /// Runs the measurement; returns its duration, and the bytes completed in each
    /// [`STEP`](crate::path::tally::STEP).
    pub(crate) fn run(
        mut self,
        time: Option<Duration>,
        dead_after: Duration,
    ) -> Result<(Spent, Vec<u64>), Fault> {
        let cpu = process_cpu().unwrap_or_default();
        let start = Instant::now();
        self.until = time.map(|time| start + time);
        // The measured time starts here.
        self.tally.add(0, 0);
        let result = self.turns(start, dead_after);
        let (ns, messages) = result.map_err(|fault| self.control.account_of(fault))?;
        let used = process_cpu().unwrap_or_default().since(cpu);
        self.verify_written()?;
        let spent = Spent {
            messages,
            ns: u64::try_from(ns.as_nanos()).unwrap_or(u64::MAX),
            bytes: self.bytes,
            verified: self.verified,
            ..Spent::default()
        };
        Ok((spent.with_cpu(used), self.tally.steps()))
    }

    /// Posts and takes completions until both directions are done; returns the duration of this
    /// end's, and its messages.
    fn turns(&mut self, start: Instant, dead_after: Duration) -> Result<(Duration, u64), Fault> {
        let mut completions = [WorkCompletion::default(); COMPLETIONS];
        let mut finished = None;
        let (mut turn, mut heard) = (0_u32, start);
        loop {
            if self.ways.out && finished.is_none() {
                self.fill()?;
                if self.lanes.iter().all(|lane| lane.flush == Flush::Done) {
                    finished = Some(start.elapsed());
                    self.tell_finished()?;
                }
            }
            if self.is_over(finished.is_some()) {
                break;
            }
            let count = self.wait(&mut completions)?;
            for completion in &completions[..count] {
                self.complete(completion)?;
            }
            if self.fresh > 0 {
                self.tally.add(0, std::mem::take(&mut self.fresh));
            }
            if count > 0 && (self.ways.out || self.end.plan.is_notified()) {
                heard = Instant::now();
            } else if finished.is_none() && self.ways.out && heard.elapsed() > dead_after {
                return Err(Fault::new(
                    Code::PeerGone,
                    format!("nothing was completed for {} s", dead_after.as_secs()),
                ));
            }
            turn = turn.wrapping_add(1);
            if count == 0 || turn.is_multiple_of(LOOK_EVERY) {
                self.look()?;
            }
        }
        if !self.ways.out && self.is_file() {
            self.disk.sync()?;
            self.tell_finished()?;
        }
        let messages = self.lanes.iter().map(|lane| lane.posted).sum();
        // A file is complete when the sink reports it.
        let ns = match finished {
            Some(_) if self.is_file() => start.elapsed(),
            Some(ns) => ns,
            None => Duration::ZERO,
        };
        Ok((ns, messages))
    }

    fn is_file(&self) -> bool {
        self.end.plan.file.is_some()
    }

    fn is_over(&self, finished: bool) -> bool {
        if self.ways.out && !finished {
            return false;
        }
        if self.ways.out && self.is_file() {
            return self.peer_finished.is_some();
        }
        match (&self.peer_finished, self.ways.back) {
            (_, false) => true,
            (None, true) => false,
            (Some(sent), true) => {
                let received = self.lanes.iter().map(|lane| lane.received);
                !self.end.plan.is_notified() || received.eq(sent.iter().copied())
            }
        }
    }

    /// Waits for completions. A passive target need not poll eagerly.
    fn wait(&self, out: &mut [WorkCompletion]) -> Result<usize, Fault> {
        if self.ways.out || self.end.plan.is_notified() {
            return self.end.wait(out);
        }
        let tick = Some(Duration::from_millis(20));
        self.end.cq.wait(out, tick).map_err(verb)
    }

    fn look(&mut self) -> Result<(), Fault> {
        match self.control.poll()? {
            None => Ok(()),
            Some(Message::Finished { messages }) => {
                self.peer_finished = Some(messages);
                Ok(())
            }
            Some(other) => Err(other.misplaced()),
        }
    }

    fn tell_finished(&self) -> Result<(), Fault> {
        let messages = self.lanes.iter().map(|lane| lane.posted).collect();
        self.control.send(&Message::Finished { messages })
    }

    /// Posts as many messages as the queues and credits allow.
    fn fill(&mut self) -> Result<(), Fault> {
        let over = self.until.is_some_and(|until| Instant::now() >= until);
        for index in 0..self.lanes.len() {
            loop {
                let lane = &self.lanes[index];
                if lane.flush != Flush::Not {
                    break;
                }
                let left = if over { 0 } else { self.left(index) };
                if left == 0 {
                    self.post_flush(index)?;
                    break;
                }
                let count = left.min(self.room(index));
                if count == 0 {
                    break;
                }
                self.post(index, count)?;
            }
        }
        Ok(())
    }

    /// Messages that the queue pair is still to send.
    fn left(&self, index: usize) -> u64 {
        let quota = match (self.is_file(), self.iterations) {
            (true, _) => self.end.plan.file_messages(index as u64),
            (false, Some(iterations)) => iterations,
            (false, None) => u64::MAX,
        };
        quota.saturating_sub(self.lanes[index].posted)
    }

    /// Messages that can be posted at once.
    fn room(&self, index: usize) -> u64 {
        let (lane, plan) = (&self.lanes[index], &self.end.plan);
        let room = u64::from(plan.depth) - (lane.posted - lane.retired);
        let room = room.min(plan.post_list.into());
        // Messages with different content are copied one at a time.
        let room = if plan.verify && !self.inline.is_empty() {
            room.min(1)
        } else {
            room
        };
        if plan.is_notified() {
            room.min(self.accounts[index].credits)
        } else {
            room
        }
    }

    fn post(&mut self, index: usize, count: u64) -> Result<(), Fault> {
        let first = self.lanes[index].posted;
        for number in first..first + count {
            let len = self.fetch(index as u64, number)?;
            self.bytes += u64::from(len);
        }
        let mut batch: ArrayVec<SendWr<'_>, { 2 * POST_LIST_MAX as usize }> = ArrayVec::new();
        for number in first..first + count {
            self.requests(index as u64, number, &mut batch);
        }
        for request in &mut batch {
            *request = self.end.to(index, *request);
        }
        self.end.qps[index]
            .post_send(&batch)
            .map_err(|error| self.post_failed(index, error))?;
        drop(batch);
        self.lanes[index].posted += count;
        if self.end.plan.is_notified() {
            self.accounts[index].credits -= count;
        }
        Ok(())
    }

    /// Copies the payload of a message to its place; returns its length.
    fn fetch(&mut self, qp: u64, number: u64) -> Result<u32, Fault> {
        let from = self.end.layout.from(qp, number);
        if self.is_file() {
            let (message, len) = self.file_message(qp, number);
            let offset = message * u64::from(self.size);
            let region = self.end.mr.region();
            self.disk.read(region, place(from), len, offset)?;
            return Ok(len);
        }
        if self.end.plan.verify && self.end.plan.op != Op::Read {
            self.stamp(qp, number)?;
            let region = self.end.mr.region();
            region.read(place(from), &mut self.inline).map_err(range)?;
        }
        Ok(self.size)
    }

    /// The number in the file, and the length, of a queue pair's message.
    fn file_message(&self, qp: u64, number: u64) -> (u64, u32) {
        let message = number * self.lanes.len() as u64 + qp;
        (message, self.end.plan.file_piece(message))
    }

    fn stamp(&self, qp: u64, number: u64) -> Result<(), Fault> {
        let from = place(self.end.layout.from(qp, number));
        let stamp = Stamp { qp, number };
        pattern::write(self.end.mr.region(), from, self.size as usize, stamp).map_err(range)
    }

    /// The work requests of a message.
    fn requests<'b, const N: usize>(
        &'b self,
        qp: u64,
        number: u64,
        batch: &mut ArrayVec<SendWr<'b>, N>,
    ) {
        let (end, layout) = (self.end, &self.end.layout);
        let moderation = u64::from(end.plan.cq_mod);
        let signaled = (number + 1).is_multiple_of(moderation);
        let flags = if signaled {
            SendFlags::SIGNALED
        } else {
            SendFlags::empty()
        };
        let tag = Tag::new(Kind::Data, qp, moderation).into();
        let len = if self.is_file() {
            self.file_message(qp, number).1
        } else {
            self.size
        };
        let data = if self.inline.is_empty() || self.is_file() {
            Data::from(end.sge(layout.from(qp, number), len))
        } else {
            Data::Inline(&self.inline)
        };
        let write = SendOp::RdmaWrite(self.peer.remote(layout.to(qp, number)));
        match end.plan.op {
            Op::Write if self.is_file() => {
                batch.push(SendWr::new(tag, write, data).with_flags(SendFlags::empty()));
                batch.push(SendWr::new(tag, SendOp::Send, SgeList::EMPTY).with_flags(flags));
            }
            // Write-Record is measured by `volley`.
            Op::Write | Op::WriteRecord => {
                batch.push(SendWr::new(tag, write, data).with_flags(flags))
            }
            Op::Send => batch.push(SendWr::new(tag, SendOp::Send, data).with_flags(flags)),
            Op::Read => {
                let read = SendOp::RdmaRead(self.peer.remote(layout.from(qp, number)));
                let into = end.sge(layout.to(qp, number), len);
                batch.push(SendWr::new(tag, read, into).with_flags(flags));
            }
        }
    }

    fn post_flush(&mut self, index: usize) -> Result<(), Fault> {
        let qp = index as u64;
        let into = self.end.sge(self.end.layout.line(qp), FLUSH);
        let read = SendOp::RdmaRead(self.peer.remote(self.end.layout.line(qp)));
        let tag = Tag::new(Kind::Flush, qp, 0).into();
        self.end.qps[index]
            .post_send(&[self.end.to(index, SendWr::new(tag, read, into))])
            .map_err(|error| self.post_failed(index, error))?;
        self.lanes[index].flush = Flush::Posted;
        Ok(())
    }

    /// Posting fails on a queue pair that has just failed: reports the cause of that instead.
    fn post_failed(&self, index: usize, error: haul_verbs::PostError) -> Fault {
        match self.end.qps[index].failure() {
            Some(failure) => Fault::new(Code::PeerGone, format!("queue pair {index}: {failure}")),
            None => verb(error.error),
        }
    }

    fn complete(&mut self, completion: &WorkCompletion) -> Result<(), Fault> {
        self.end.check(completion)?;
        let tag = Tag::from(completion.wr_id);
        let index = usize::try_from(tag.qp()).unwrap_or(usize::MAX);
        if index >= self.lanes.len() {
            return Err(Fault::new(Code::Other, "a completion of nobody's"));
        }
        match tag.kind() {
            Kind::Data => self.retire(index, tag.number()),
            Kind::Flush => {
                let lane = self.lanes[index];
                self.retire(index, lane.posted - lane.retired)?;
                self.lanes[index].flush = Flush::Done;
                Ok(())
            }
            Kind::Credit => Ok(()),
            Kind::Recv if self.is_credit(completion) => {
                self.accounts[index].credits += u64::from(self.end.plan.credit_batch());
                let qp = &self.end.qps[index];
                self.end.post_recv(qp, tag.qp(), tag.number())
            }
            Kind::Recv => self.receive(index, tag.number(), completion),
        }
    }

    /// Handles completed messages; of Reads, the bytes have arrived.
    fn retire(&mut self, index: usize, count: u64) -> Result<(), Fault> {
        let first = self.lanes[index].retired;
        self.lanes[index].retired += count;
        self.fresh += count * u64::from(self.size);
        if self.end.plan.op == Op::Read && self.end.plan.verify {
            let slots = self.end.layout.slots;
            for number in first..first + count {
                let qp = index as u64;
                let number = number % slots;
                let to = place(self.end.layout.to(qp, number));
                self.check_bytes(to, Stamp { qp, number })?;
                let region = self.end.mr.region();
                region.fill(to, self.size as usize, 0).map_err(range)?;
            }
        }
        Ok(())
    }

    /// Credits are empty messages, and so are the notices of a file's writes, in the other
    /// direction.
    fn is_credit(&self, completion: &WorkCompletion) -> bool {
        let notices = self.is_file() && self.end.plan.op == Op::Write;
        completion.opcode == WcOpcode::Recv
            && completion.byte_len == 0
            && (self.ways.out || !notices)
    }

    fn receive(
        &mut self,
        index: usize,
        slot: u64,
        completion: &WorkCompletion,
    ) -> Result<(), Fault> {
        let (qp, number) = (index as u64, self.lanes[index].received);
        self.lanes[index].received += 1;
        let notice = self.end.plan.op == Op::Write;
        let at = place(self.end.layout.to(qp, if notice { number } else { slot }));
        if self.is_file() {
            let (message, len) = self.file_message(qp, number);
            if len == 0 || !notice && completion.byte_len != len {
                return Err(Fault::protocol("the peer sends more or less than the file"));
            }
            let offset = message * u64::from(self.size);
            self.disk.write(self.end.mr.region(), at, len, offset)?;
        } else if completion.byte_len != self.size {
            return Err(Fault::protocol("a message has another length"));
        } else if self.end.plan.verify {
            self.check_bytes(at, Stamp { qp, number })?;
        }
        self.end.post_recv(&self.end.qps[index], qp, slot)?;
        self.give_back(index)
    }

    /// Grants the peer credit for reposted receives from time to time.
    fn give_back(&mut self, index: usize) -> Result<(), Fault> {
        let account = &mut self.accounts[index];
        account.returned += 1;
        if account.returned < self.end.plan.credit_batch() {
            return Ok(());
        }
        account.returned = 0;
        let tag = Tag::new(Kind::Credit, index as u64, 0).into();
        let credit = SendWr::new(tag, SendOp::Send, SgeList::EMPTY);
        let credit = self.end.to(index, credit);
        self.end.qps[index]
            .post_send(&[credit])
            .map_err(|error| self.post_failed(index, error))
    }

    /// Compares the last messages written to each place, which are still there.
    fn verify_written(&mut self) -> Result<(), Fault> {
        let plan = &self.end.plan;
        if !plan.verify || plan.op != Op::Write || self.is_file() {
            return Ok(());
        }
        for (qp, sent) in (0..).zip(self.peer_finished.take().unwrap_or_default()) {
            for number in sent.saturating_sub(self.end.layout.slots)..sent {
                let at = place(self.end.layout.to(qp, number));
                self.check_bytes(at, Stamp { qp, number })?;
            }
        }
        Ok(())
    }

    fn check_bytes(&mut self, at: usize, stamp: Stamp) -> Result<(), Fault> {
        let region = self.end.mr.region();
        check(region, at, self.size as usize, stamp)?;
        self.verified += 1;
        Ok(())
    }
}

/// Compares a message with its expected content.
pub(crate) fn check(
    region: &haul_slab::Region,
    at: usize,
    len: usize,
    stamp: Stamp,
) -> Result<(), Fault> {
    match pattern::check(region, at, len, stamp).map_err(range)? {
        None => Ok(()),
        Some(wrong) => Err(Fault::new(
            Code::Integrity,
            format!(
                "message {} of queue pair {}: byte {wrong} of {len} is not what was sent",
                stamp.number, stamp.qp
            ),
        )),
    }
}
