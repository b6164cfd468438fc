//! Latency: one message at a time, there and back.
//!
//! A Send is answered by a Send, and a Write by a Write: each end polls the last byte of its memory
//! until it changes, as perftest does. If the transport may place the end of a message before its
//! beginning, or an end is to sleep, an empty Send after the Write signals its arrival. A Read is
//! its own answer. A Write-Record has arrived when its record is complete.
//!
//! Over unreliable datagrams a message or its answer may be lost: after a while without an answer
//! the next one is sent, and the one before counts as lost, not as a sample.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use haul::fault::{Code, Fault};
use haul_io::clock::process_cpu;
use haul_verbs::{
    Data, RecordStatus, SendFlags, SendOp, SendWr, SgeList, Transport, WcOpcode, WcStatus,
    WorkCompletion,
};

use crate::control::{Control, Message, Place};
use crate::end::End;
use crate::error::{range, verb};
use crate::flow::check;
use crate::pattern::{self, Stamp, place};
use crate::plan::{Op, Service, Waiting};
use crate::report::{Arrived, Spent};
use crate::tag::{Kind, Tag};

/// Samples that are kept.
const SAMPLES_MAX: usize = 1 << 24;
/// A message no longer than this is one segment on any path: it is placed at once.
const ONE_SEGMENT: u32 = 1024;
/// Over unreliable datagrams, a message without an answer by then counts as lost.
const ANSWER_TIME: Duration = Duration::from_millis(500);
/// An end that polls memory checks the control connection once in so many iterations.
const LOOK_EVERY: u32 = 32;

/// How an end detects the arrival of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arrival {
    /// Its last byte has changed.
    LastByte,
    /// A receive is complete.
    Receive,
    /// This end's read is complete.
    Read,
    /// A record is complete.
    Record,
}

/// The outcome of waiting for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaited {
    /// It has arrived, at this place.
    At(usize),
    /// It counts as lost.
    Lost,
    /// The peer has finished.
    Finished,
}

/// One measurement at one end.
#[derive(Debug)]
pub(crate) struct PingPong<'a> {
    end: &'a End,
    peer: &'a Place,
    control: &'a Control,
    size: u32,
    arrival: Arrival,
    inline: Vec<u8>,
    /// One of so many sends reports its completion.
    moderation: u64,
    verified: u64,
    lost: u64,
    /// The receive that the last message took: it is posted again once an answer is in flight.
    taken: Option<u64>,
    /// The service may lose messages.
    may_lose: bool,
    finished: bool,
    heard: Instant,
    dead_after: Duration,
}

/// The result of the requesting end: RTTs in nanoseconds.
#[derive(Debug)]
pub(crate) struct Trips {
    pub(crate) spent: Spent,
    pub(crate) samples: Vec<u64>,
}

impl<'a> PingPong<'a> {
    pub(crate) fn new(
        (end, peer, control): (&'a End, &'a Place, &'a Control),
        size: u32,
        dead_after: Duration,
    ) -> Result<Self, Fault> {
        let plan = &end.plan;
        let out_of_order = matches!(end.transport, Transport::IwarpUdt | Transport::IwarpUdp)
            && size > ONE_SEGMENT;
        let arrival = match plan.op {
            Op::Read => Arrival::Read,
            Op::Write if !out_of_order && plan.waiting != Waiting::Events => Arrival::LastByte,
            Op::WriteRecord => Arrival::Record,
            Op::Write | Op::Send => Arrival::Receive,
        };
        let inline = size <= plan.inline && plan.op != Op::Read;
        let this = Self {
            end,
            peer,
            control,
            size,
            arrival,
            inline: if inline {
                vec![0; size as usize]
            } else {
                Vec::new()
            },
            moderation: u64::from(plan.depth / 2).max(1),
            verified: 0,
            lost: 0,
            taken: None,
            may_lose: plan.service == Service::Ud,
            finished: false,
            heard: Instant::now(),
            dead_after,
        };
        let to = place(end.layout.to(0, 0));
        end.mr.region().fill(to, size as usize, 0).map_err(range)?;
        this.make(0)?;
        Ok(this)
    }

    /// The requesting end.
    pub(crate) fn ask(mut self, iterations: Option<u64>, time: Duration) -> Result<Trips, Fault> {
        let cpu = process_cpu().unwrap_or_default();
        let start = Instant::now();
        let samples = self
            .ask_all(start, iterations, time)
            .map_err(|fault| self.control.account_of(fault))?;
        let used = process_cpu().unwrap_or_default().since(cpu);
        let messages = samples.len() as u64;
        self.control.send(&Message::Finished {
            messages: vec![messages],
        })?;
        let bytes = u64::from(self.size);
        let spent = Spent {
            messages: messages + self.lost,
            ns: nanos(start.elapsed()),
            bytes: (messages + self.lost) * bytes,
            verified: self.verified,
            arrived: Arrived {
                complete: messages,
                bytes: messages * bytes,
                ..Arrived::default()
            },
            ..Spent::default()
        };
        Ok(Trips {
            spent: spent.with_cpu(used),
            samples,
        })
    }

    fn ask_all(
        &mut self,
        start: Instant,
        iterations: Option<u64>,
        time: Duration,
    ) -> Result<Vec<u64>, Fault> {
        let mut samples = Vec::new();
        let mut last = start;
        self.heard = start;
        let wanted = iterations.map_or(SAMPLES_MAX, place).min(SAMPLES_MAX);
        while samples.len() < wanted && (iterations.is_some() || last - start < time) {
            let number = samples.len() as u64;
            self.post(number)?;
            let awaited = self.await_arrival(number)?;
            let now = Instant::now();
            match awaited {
                Awaited::At(_) => {
                    samples.push(nanos(now - last));
                    self.heard = now;
                }
                Awaited::Lost => self.lost += 1,
                Awaited::Finished => return Err(Fault::protocol("the peer has finished first")),
            }
            last = now;
        }
        self.refill()?;
        Ok(samples)
    }

    /// The responding end.
    pub(crate) fn answer(mut self) -> Result<Spent, Fault> {
        let cpu = process_cpu().unwrap_or_default();
        let messages = self
            .answer_all()
            .map_err(|fault| self.control.account_of(fault))?;
        let used = process_cpu().unwrap_or_default().since(cpu);
        let spent = Spent {
            messages,
            verified: self.verified,
            ..Spent::default()
        };
        Ok(spent.with_cpu(used))
    }

    fn answer_all(&mut self) -> Result<u64, Fault> {
        let mut number = 0;
        if self.arrival == Arrival::Read {
            let mut none = [WorkCompletion::default(); 1];
            while !self.finished {
                self.end.wait(&mut none)?;
                self.look()?;
            }
            return Ok(0);
        }
        loop {
            match self.await_arrival(number)? {
                Awaited::At(_) => {
                    self.post(number)?;
                    number += 1;
                }
                // The requester repeats the request.
                Awaited::Lost => {}
                Awaited::Finished => return Ok(number),
            }
        }
    }

    /// Posts a message, then the receive for the one after its answer.
    fn post(&mut self, number: u64) -> Result<(), Fault> {
        self.send(number)?;
        self.refill()
    }

    fn send(&mut self, number: u64) -> Result<(), Fault> {
        self.make(number)?;
        if !self.inline.is_empty() {
            let from = place(self.end.layout.from(0, 0));
            let region = self.end.mr.region();
            region.read(from, &mut self.inline).map_err(range)?;
        }
        let (end, layout) = (self.end, &self.end.layout);
        let signaled = self.arrival == Arrival::Read || number.is_multiple_of(self.moderation);
        let flags = if signaled {
            SendFlags::SIGNALED
        } else {
            SendFlags::empty()
        };
        let tag = Tag::new(Kind::Data, 0, number).into();
        let data = if self.inline.is_empty() {
            Data::from(end.sge(layout.from(0, 0), self.size))
        } else {
            Data::Inline(&self.inline)
        };
        let write = SendOp::RdmaWrite(self.peer.remote(layout.to(0, 0)));
        let mut batch: ArrayVec<SendWr<'_>, 2> = ArrayVec::new();
        match (end.plan.op, self.arrival) {
            (Op::Send, _) => batch.push(SendWr::new(tag, SendOp::Send, data)),
            (Op::WriteRecord, _) => {
                let to = self.peer.remote(layout.to(0, 0));
                batch.push(SendWr::new(tag, SendOp::WriteRecord(to), data));
            }
            (Op::Write, Arrival::Receive) => {
                batch.push(SendWr::new(tag, write, data).with_flags(SendFlags::empty()));
                batch.push(SendWr::new(tag, SendOp::Send, SgeList::EMPTY));
            }
            (Op::Write, _) => batch.push(SendWr::new(tag, write, data)),
            (Op::Read, _) => {
                let read = SendOp::RdmaRead(self.peer.remote(layout.from(0, 0)));
                let into = end.sge(layout.to(0, 0), self.size);
                batch.push(SendWr::new(tag, read, into));
            }
        }
        if let Some(last) = batch.last_mut() {
            *last = last.with_flags(flags);
        }
        for request in &mut batch {
            *request = end.to(0, *request);
        }
        end.qps[0].post_send(&batch).map_err(|error| {
            let failure = end.qps[0].failure();
            failure.map_or_else(
                || verb(error.error),
                |failure| Fault::new(Code::PeerGone, format!("queue pair 0: {failure}")),
            )
        })
    }

    /// Posts the receive again that the last message took.
    fn refill(&mut self) -> Result<(), Fault> {
        let Some(slot) = self.taken.take() else {
            return Ok(());
        };
        self.end.post_recv(&self.end.qps[0], 0, slot)
    }

    /// Fills a message: if the target polls the last byte, it differs from that of the message
    /// before.
    fn make(&self, number: u64) -> Result<(), Fault> {
        let region = self.end.mr.region();
        let from = place(self.end.layout.from(0, 0));
        let len = self.size as usize;
        if self.end.plan.verify && self.end.plan.op != Op::Read {
            pattern::write(region, from, len, self.stamp(number)).map_err(range)?;
        } else if self.end.plan.verify && number == 0 {
            pattern::write(region, from, len, self.stamp(0)).map_err(range)?;
        }
        if self.arrival == Arrival::LastByte {
            let last = [mark(number)];
            region.write(from + len - 1, &last).map_err(range)?;
        }
        Ok(())
    }

    /// Waits for the message.
    fn await_arrival(&mut self, number: u64) -> Result<Awaited, Fault> {
        let awaited = match self.arrival {
            Arrival::LastByte => self.await_last_byte(number)?,
            Arrival::Receive => self.await_completion(Kind::Recv)?,
            Arrival::Read => self.await_completion(Kind::Data)?,
            Arrival::Record => self.await_completion(Kind::Recv)?,
        };
        let Awaited::At(to) = awaited else {
            return Ok(awaited);
        };
        if self.end.plan.verify {
            let looked_at = usize::from(self.arrival == Arrival::LastByte);
            let read = self.arrival == Arrival::Read;
            let len = self.size as usize - looked_at;
            let region = self.end.mr.region();
            check(region, to, len, self.stamp(if read { 0 } else { number }))?;
            if read {
                region.fill(to, len, 0).map_err(range)?;
            }
            self.verified += 1;
        }
        Ok(awaited)
    }

    /// The bytes to verify. The responder does not know the number of messages that may be lost.
    fn stamp(&self, number: u64) -> Stamp {
        let number = if self.may_lose { 0 } else { number };
        Stamp { qp: 0, number }
    }

    /// Polls memory, and drives the provider meanwhile.
    fn await_last_byte(&mut self, number: u64) -> Result<Awaited, Fault> {
        let to = place(self.end.layout.to(0, 0));
        let last = to + self.size as usize - 1;
        let mut completions = [WorkCompletion::default(); 4];
        let mut turn = 0_u32;
        while byte_at(self.end.mr.region(), last)? != mark(number) {
            let count = self.end.cq.poll(&mut completions).map_err(verb)?;
            for completion in &completions[..count] {
                self.end.check(completion)?;
            }
            turn = turn.wrapping_add(1);
            if turn.is_multiple_of(LOOK_EVERY) {
                self.look()?;
                if self.finished {
                    return Ok(Awaited::Finished);
                }
                self.be_patient()?;
            }
        }
        Ok(Awaited::At(to))
    }

    /// Returns the place of a completion's message.
    fn await_completion(&mut self, kind: Kind) -> Result<Awaited, Fault> {
        let mut completions = [WorkCompletion::default(); 4];
        let begun = Instant::now();
        loop {
            let count = self.end.wait(&mut completions)?;
            let mut arrived = None;
            for completion in &completions[..count] {
                if self.is_record(completion) {
                    if self.is_whole(completion) {
                        arrived = Some(place(self.end.layout.to(0, 0)));
                    }
                    continue;
                }
                let read = self.end.plan.op == Op::Read;
                if self.may_lose && read && completion.status == WcStatus::RespTimeoutErr {
                    // Ignores its record: a partial message is no answer.
                    let _ = self.end.qps[0].take_record(completion.wr_id);
                    return Ok(Awaited::Lost);
                }
                self.end.check(completion)?;
                let tag = Tag::from(completion.wr_id);
                if tag.kind() == Kind::Recv {
                    self.refill()?;
                    self.taken = Some(tag.number());
                    if self.may_lose && completion.byte_len != self.size {
                        // Late, from an earlier measurement.
                        continue;
                    }
                }
                if tag.kind() == kind {
                    let direct = self.end.plan.op != Op::Send;
                    let slot = if direct { 0 } else { tag.number() };
                    arrived = Some(place(self.end.layout.to(0, slot)));
                }
            }
            if let Some(to) = arrived {
                return Ok(Awaited::At(to));
            }
            if count == 0 {
                self.look()?;
                if self.finished {
                    return Ok(Awaited::Finished);
                }
                self.be_patient()?;
                // A Read reports its own timeout.
                if self.may_lose && self.arrival != Arrival::Read && begun.elapsed() > ANSWER_TIME {
                    return Ok(Awaited::Lost);
                }
            }
        }
    }

    fn is_record(&self, completion: &WorkCompletion) -> bool {
        completion.status == WcStatus::Success && completion.opcode == WcOpcode::RecvWriteRecord
    }

    fn is_whole(&self, completion: &WorkCompletion) -> bool {
        let record = self.end.qps[0].take_record(completion.wr_id);
        record.is_some_and(|record| record.status == RecordStatus::Full && record.len == self.size)
    }

    fn look(&mut self) -> Result<(), Fault> {
        match self.control.poll()? {
            None => {}
            Some(Message::Finished { .. }) => self.finished = true,
            Some(other) => return Err(other.misplaced()),
        }
        Ok(())
    }

    /// The wait for an answer is bounded. The responder waits as long as the control connection is
    /// open.
    fn be_patient(&self) -> Result<(), Fault> {
        if self.heard.elapsed() > self.dead_after {
            return Err(Fault::new(
                Code::PeerGone,
                format!("no answer for {} s", self.dead_after.as_secs()),
            ));
        }
        Ok(())
    }
}

/// The last byte of a message: never zero, and never that of the message before.
fn mark(number: u64) -> u8 {
    u8::try_from(number % 255).unwrap_or(0) + 1
}

/// Reads a byte that a peer may be writing, through the word that contains it.
fn byte_at(region: &haul_slab::Region, at: usize) -> Result<u8, Fault> {
    let word = at & !7;
    match region.atomic(word).map_err(range)? {
        ControlFlow::Continue(atomic) => {
            Ok(atomic.load(Ordering::Acquire).to_ne_bytes()[at - word])
        }
        ControlFlow::Break(()) => Err(Fault::new(Code::Other, "memory is not aligned")),
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_changes_the_last_byte() {
        for number in 0..1000 {
            assert_ne!(mark(number), 0);
            assert_ne!(mark(number), mark(number + 1));
        }
    }

    #[test]
    fn a_byte_is_seen_where_it_was_written() {
        let region = haul_slab::Region::map(64).unwrap();
        for at in 0..64 {
            let value = u8::try_from(at).unwrap() + 1;
            region.write(at, &[value]).unwrap();
            assert_eq!(byte_at(&region, at).unwrap(), value);
        }
    }
}
