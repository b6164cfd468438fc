//! Bandwidth of messages that are counted where they arrive: unreliable datagrams, and
//! Write-Record.
//!
//! Only the queue's depth (and `--rate`) limits the sender, and its completions do not show what
//! arrived. So the receiver counts: a Send by its receive's completion, a Write-Record by its
//! record, complete or partial; a Read is counted by its requester. After the sender has reported
//! how much it sent, the receiver waits until all of it is accounted for, or until nothing has
//! arrived for a while.

use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use haul::fault::{Code, Fault};
use haul_io::clock::process_cpu;
use haul_verbs::{
    Data, RecordStatus, SendFlags, SendOp, SendWr, WcOpcode, WcStatus, WorkCompletion, WriteRecord,
};

use crate::control::{Control, Message, Place};
use crate::end::End;
use crate::error::{range, verb};
use crate::flow::{Ways, check};
use crate::pattern::{self, Stamp, place};
use crate::plan::{Op, POST_LIST_MAX};
use crate::report::{Arrived, Spent};
use crate::tag::{Kind, Tag};

/// Completions taken at a time.
const COMPLETIONS: usize = 64;
/// The control connection is checked every so many iterations, and whenever idle.
const LOOK_EVERY: u32 = 64;
/// After this long without an arrival, and so many polls, missing messages count as lost. A record
/// is closed earlier (docs/protocol/datagram.md). The polls matter because a busy machine may not
/// have polled in that time.
const QUIET: Duration = Duration::from_millis(500);
const LOOKS: u32 = 10;

/// Messages sent by a queue pair in one measurement.
#[derive(Debug, Clone, Copy, Default)]
struct Lane {
    posted: u64,
    /// Of those, complete.
    retired: u64,
    /// Posted since the last one that reports its completion.
    unreported: u64,
    done: bool,
}

/// One measurement at one end.
#[derive(Debug)]
pub(crate) struct Volley<'a> {
    end: &'a End,
    peer: &'a Place,
    control: &'a Control,
    lanes: Vec<Lane>,
    ways: Ways,
    size: u32,
    iterations: Option<u64>,
    until: Option<Instant>,
    inline: Vec<u8>,
    /// The peer's count of sent messages, once reported.
    peer_sent: Option<u64>,
    arrived: Arrived,
    first: Option<Instant>,
    heard: Instant,
    /// Polls since the last completion.
    looks: u32,
    verified: u64,
}

impl<'a> Volley<'a> {
    /// Prepares to send or count messages of `size` bytes, `iterations` on each queue pair or until
    /// the plan's time is over.
    pub(crate) fn new(
        (end, peer, control): (&'a End, &'a Place, &'a Control),
        ways: Ways,
        size: u32,
        iterations: Option<u64>,
    ) -> Result<Self, Fault> {
        let inline = size <= end.plan.inline && end.plan.op != Op::Read;
        let this = Self {
            lanes: vec![Lane::default(); end.qps.len()],
            end,
            peer,
            control,
            ways,
            size,
            iterations,
            until: None,
            inline: vec![0; if inline { size as usize } else { 0 }],
            peer_sent: None,
            arrived: Arrived::default(),
            first: None,
            heard: Instant::now(),
            looks: 0,
            verified: 0,
        };
        this.prepare()?;
        Ok(this)
    }

    /// Data of an earlier measurement must not pass for this one's.
    fn prepare(&self) -> Result<(), Fault> {
        if !self.end.plan.verify {
            return Ok(());
        }
        self.end.prepare(self.size, |qp, slot| self.stamp(qp, slot))
    }

    /// The payload of a message. The receiver of a Send cannot know its number, so all Sends have
    /// the same.
    fn stamp(&self, qp: u64, slot: u64) -> Stamp {
        let number = if self.end.plan.op == Op::Send {
            0
        } else {
            slot
        };
        Stamp { qp, number }
    }

    /// Runs the measurement.
    pub(crate) fn run(
        mut self,
        time: Option<Duration>,
        dead_after: Duration,
    ) -> Result<Spent, Fault> {
        let dropped = self.kernel_drops();
        let cpu = process_cpu().unwrap_or_default();
        let start = Instant::now();
        self.until = time.map(|time| start + time);
        self.heard = start;
        let result = self.turns(start, dead_after);
        let ns = result.map_err(|fault| self.control.account_of(fault))?;
        let used = process_cpu().unwrap_or_default().since(cpu);
        self.arrived.kernel_drops = self.kernel_drops().saturating_sub(dropped);
        let messages = self.lanes.iter().map(|lane| lane.posted).sum::<u64>();
        let spent = Spent {
            messages,
            ns: nanos(ns),
            bytes: messages * u64::from(self.size),
            verified: self.verified,
            arrived: self.arrived,
            ..Spent::default()
        };
        Ok(spent.with_cpu(used))
    }

    /// Returns the duration of sending.
    fn turns(&mut self, start: Instant, dead_after: Duration) -> Result<Duration, Fault> {
        let mut completions = [WorkCompletion::default(); COMPLETIONS];
        let mut finished = None;
        let mut turn = 0_u32;
        loop {
            if self.ways.out && finished.is_none() {
                self.fill()?;
                if self
                    .lanes
                    .iter()
                    .all(|lane| lane.done && lane.retired == lane.posted)
                {
                    finished = Some(start.elapsed());
                    let messages = self.lanes.iter().map(|lane| lane.posted).collect();
                    self.control.send(&Message::Finished { messages })?;
                    self.heard = Instant::now();
                }
            }
            if (finished.is_some() || !self.ways.out) && self.has_counted() {
                return Ok(finished.unwrap_or_default());
            }
            let count = self.end.wait(&mut completions)?;
            for completion in &completions[..count] {
                self.complete(completion)?;
            }
            self.looks = if count > 0 {
                0
            } else {
                self.looks.saturating_add(1)
            };
            if count > 0 {
                self.heard = Instant::now();
            } else if finished.is_none() && self.ways.out && self.heard.elapsed() > dead_after {
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
    }

    /// Whether all messages of the peer are accounted for, or arrivals have ceased.
    fn has_counted(&self) -> bool {
        match (self.ways.back, self.peer_sent) {
            (false, _) => true,
            (true, None) => false,
            (true, Some(_)) if self.end.plan.op == Op::Read => true,
            (true, Some(sent)) => {
                let counted = self.arrived.complete + self.arrived.partial;
                counted >= sent || self.looks >= LOOKS && self.heard.elapsed() >= QUIET
            }
        }
    }

    fn look(&mut self) -> Result<(), Fault> {
        // Later messages of the peer belong to the next reader.
        if self.peer_sent.is_some() {
            return Ok(());
        }
        match self.control.poll()? {
            None => Ok(()),
            Some(Message::Finished { messages }) => {
                let sum = messages
                    .iter()
                    .fold(0_u64, |sum, sent| sum.saturating_add(*sent));
                self.peer_sent = Some(sum);
                self.heard = Instant::now();
                self.looks = 0;
                Ok(())
            }
            Some(other) => Err(other.misplaced()),
        }
    }

    /// Posts as many messages as the queue allows.
    fn fill(&mut self) -> Result<(), Fault> {
        let over = self.until.is_some_and(|until| Instant::now() >= until);
        for index in 0..self.lanes.len() {
            if over && self.lanes[index].unreported == 0 {
                self.lanes[index].done = true;
            }
            while !self.lanes[index].done {
                let posted = self.lanes[index].posted;
                let left = match self.iterations {
                    _ if over => 1,
                    Some(iterations) => iterations - posted,
                    None => u64::MAX,
                };
                let count = left.min(self.room(index));
                if count == 0 {
                    break;
                }
                // The last one reports, so that all before it are known to be gone.
                self.post(index, count, count == left)?;
                self.lanes[index].done = count == left;
            }
        }
        Ok(())
    }

    /// Messages that can be posted at once.
    fn room(&self, index: usize) -> u64 {
        let (lane, plan) = (self.lanes[index], &self.end.plan);
        let depth = match plan.op {
            Op::Read => plan.depth.min(plan.outs.into()),
            _ => plan.depth,
        };
        let room = u64::from(depth) - (lane.posted - lane.retired);
        // Messages with different content are copied one at a time.
        let one_by_one = plan.verify && !self.inline.is_empty();
        room.min(if one_by_one { 1 } else { plan.post_list.into() })
    }

    fn post(&mut self, index: usize, count: u64, last: bool) -> Result<(), Fault> {
        let (end, qp) = (self.end, index as u64);
        let first = self.lanes[index].posted;
        if end.plan.verify && !self.inline.is_empty() {
            let from = place(end.layout.from(qp, first));
            let region = end.mr.region();
            region.read(from, &mut self.inline).map_err(range)?;
        }
        // The completions of Reads report the outcome of each.
        let moderation = match end.plan.op {
            Op::Read => 1,
            _ => u64::from(end.plan.cq_mod),
        };
        let mut unreported = self.lanes[index].unreported;
        let mut batch: ArrayVec<SendWr<'_>, { POST_LIST_MAX as usize }> = ArrayVec::new();
        for number in first..first + count {
            unreported += 1;
            let reports = unreported >= moderation || last && number + 1 == first + count;
            let stands_for = match end.plan.op {
                Op::Read => number,
                _ => unreported,
            };
            let tag = Tag::new(Kind::Data, qp, stands_for);
            let flags = if reports {
                SendFlags::SIGNALED
            } else {
                SendFlags::empty()
            };
            if reports {
                unreported = 0;
            }
            let request = self.request(tag, qp, number).with_flags(flags);
            batch.push(end.to(index, request));
        }
        end.qps[index].post_send(&batch).map_err(|error| {
            let failure = end.qps[index].failure();
            failure.map_or_else(
                || verb(error.error),
                |failure| Fault::new(Code::PeerGone, format!("queue pair {index}: {failure}")),
            )
        })?;
        drop(batch);
        self.lanes[index].posted += count;
        self.lanes[index].unreported = unreported;
        Ok(())
    }

    fn request(&self, tag: Tag, qp: u64, number: u64) -> SendWr<'_> {
        let (end, layout) = (self.end, &self.end.layout);
        let data = if self.inline.is_empty() {
            Data::from(end.sge(layout.from(qp, number), self.size))
        } else {
            Data::Inline(&self.inline)
        };
        match end.plan.op {
            Op::Read => {
                let read = SendOp::RdmaRead(self.peer.remote(layout.from(qp, number)));
                let into = end.sge(layout.to(qp, number), self.size);
                SendWr::new(tag.into(), read, into)
            }
            Op::Send => SendWr::new(tag.into(), SendOp::Send, data),
            Op::Write | Op::WriteRecord => {
                let to = self.peer.remote(layout.to(qp, number));
                SendWr::new(tag.into(), SendOp::WriteRecord(to), data)
            }
        }
    }

    fn complete(&mut self, completion: &WorkCompletion) -> Result<(), Fault> {
        let ok = completion.status == WcStatus::Success;
        if ok && completion.opcode == WcOpcode::RecvWriteRecord {
            return self.record(completion);
        }
        let tag = Tag::from(completion.wr_id);
        let index = place(tag.qp());
        let gave_up = completion.status == WcStatus::RespTimeoutErr
            && self.end.plan.op == Op::Read
            && tag.kind() == Kind::Data;
        if !gave_up {
            self.end.check(completion)?;
        }
        if index >= self.lanes.len() {
            return Err(Fault::new(Code::Other, "a completion of nobody's"));
        }
        match tag.kind() {
            Kind::Data if self.end.plan.op == Op::Read => {
                self.read(index, tag.number(), completion)
            }
            Kind::Data => {
                self.lanes[index].retired += tag.number();
                Ok(())
            }
            Kind::Recv => self.receive(index, tag.number(), completion),
            Kind::Flush | Kind::Credit => Ok(()),
        }
    }

    /// Handles an arrived Send.
    fn receive(
        &mut self,
        index: usize,
        slot: u64,
        completion: &WorkCompletion,
    ) -> Result<(), Fault> {
        let qp = index as u64;
        if completion.byte_len != self.size {
            // Late, from an earlier measurement.
            return self.end.post_recv(&self.end.qps[index], qp, slot);
        }
        self.check_slot(qp, slot)?;
        self.count(self.size, true);
        self.end.post_recv(&self.end.qps[index], qp, slot)
    }

    /// Checks a complete message and clears it, so that it cannot pass for the next one.
    fn check_slot(&mut self, qp: u64, slot: u64) -> Result<(), Fault> {
        if !self.end.plan.verify {
            return Ok(());
        }
        let at = place(self.end.layout.to(qp, slot));
        let region = self.end.mr.region();
        check(region, at, self.size as usize, self.stamp(qp, slot))?;
        region.fill(at, self.size as usize, 0).map_err(range)?;
        self.verified += 1;
        Ok(())
    }

    /// Handles a Write-Record, complete or partial.
    fn record(&mut self, completion: &WorkCompletion) -> Result<(), Fault> {
        let mut numbers = self.end.qps.iter().map(|qp| qp.qp_num());
        let Some(index) = numbers.position(|number| number == completion.qp_num) else {
            return Err(Fault::new(Code::Other, "a record of nobody's"));
        };
        let Some(record) = self.end.qps[index].take_record(completion.wr_id) else {
            // A queue pair keeps so many; the completion still reports how much is valid.
            self.count(completion.byte_len, true);
            return Ok(());
        };
        if record.len != self.size {
            // Late, from an earlier measurement.
            return Ok(());
        }
        if self.end.plan.verify {
            self.check_record(index as u64, &record)?;
        }
        // A timer closes other records, long after the last arrival.
        let prompt = matches!(record.status, RecordStatus::Full | RecordStatus::Partial);
        self.count(record.valid, prompt);
        Ok(())
    }

    /// Checks that the ranges that a record reports as valid have the right bytes.
    fn check_record(&mut self, qp: u64, record: &WriteRecord) -> Result<(), Fault> {
        let (end, layout) = (self.end, &self.end.layout);
        let at = record.target.addr.wrapping_sub(end.mr.addr());
        let slot = (0..layout.slots).find(|slot| layout.to(qp, *slot) == at);
        let Some(slot) = slot else {
            return Err(Fault::protocol(
                "a record is of memory that nobody was to write to",
            ));
        };
        let mut valid = 0;
        for range_ in &record.valid_ranges {
            let bytes = range_.start as usize..range_.end as usize;
            valid += range_.end - range_.start;
            let stamp = self.stamp(qp, slot);
            let wrong = pattern::check_range(end.mr.region(), place(at), bytes, stamp);
            if let Some(wrong) = wrong.map_err(range)? {
                let text = format!(
                    "queue pair {qp}: byte {wrong} of {} is called valid and is not what was sent",
                    self.size
                );
                return Err(Fault::new(Code::Integrity, text));
            }
        }
        if valid != record.valid {
            let text = "a record's ranges are not what it calls valid";
            return Err(Fault::new(Code::Integrity, text));
        }
        self.verified += 1;
        Ok(())
    }

    /// A Read is complete, or has timed out with the ranges of its record.
    fn read(
        &mut self,
        index: usize,
        number: u64,
        completion: &WorkCompletion,
    ) -> Result<(), Fault> {
        let qp = index as u64;
        self.lanes[index].retired += 1;
        if completion.status != WcStatus::Success {
            let record = self.end.qps[index].take_record(completion.wr_id);
            self.count(record.map_or(0, |record| record.valid), false);
            return Ok(());
        }
        self.check_slot(qp, number % self.end.layout.slots)?;
        self.count(self.size, true);
        Ok(())
    }

    fn count(&mut self, valid: u32, prompt: bool) {
        match valid {
            0 => return,
            valid if valid == self.size => self.arrived.complete += 1,
            _ => self.arrived.partial += 1,
        }
        self.arrived.bytes += u64::from(valid);
        let now = Instant::now();
        let first = *self.first.get_or_insert(now);
        if prompt {
            self.arrived.ns = nanos(now - first);
        }
    }

    fn kernel_drops(&self) -> u64 {
        let counted = self.end.qps.iter().map(|qp| qp.datagram_statistics());
        counted
            .map(|counted| counted.map_or(0, |counted| counted.kernel_drops))
            .sum()
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
