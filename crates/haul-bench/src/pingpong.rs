//! Latency: one message at a time, there and back.
//!
//! A Send is answered by a Send, and a Write by a Write: each end looks at the last byte of its memory until it changes,
//! as perftest does. Where a transport may place the end of a message before its beginning, and where an end is to sleep,
//! an empty Send behind the Write says that it is there. A Read is its own answer.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use haul::fault::{Code, Fault};
use haul_io::clock::process_cpu;
use haul_verbs::{Data, SendFlags, SendOp, SendWr, SgeList, Transport, WorkCompletion};

use crate::control::{Control, Message, Place};
use crate::end::{End, range, verb};
use crate::flow::{check, place};
use crate::pattern::{self, Stamp};
use crate::plan::{Op, Waiting};
use crate::report::Spent;
use crate::tag::{Kind, Tag};

/// Samples that are kept.
const SAMPLES_MAX: usize = 1 << 24;
/// A message no longer than this is one segment on any path: it is placed at once.
const ONE_SEGMENT: u32 = 1024;
/// Somebody who looks at memory looks at the conversation once in so many times.
const LOOK_EVERY: u32 = 32;

/// How an end learns that the message is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arrival {
    /// Its last byte has changed.
    LastByte,
    /// A receive is complete.
    Receive,
    /// This end's read is complete.
    Read,
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
    finished: bool,
    heard: Instant,
    dead_after: Duration,
}

/// What the end that asks has found: round trips in nanoseconds.
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
        let out_of_order = end.transport == Transport::IwarpUdt && size > ONE_SEGMENT;
        let arrival = match plan.op {
            Op::Read => Arrival::Read,
            Op::Write if !out_of_order && plan.waiting != Waiting::Events => Arrival::LastByte,
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
            finished: false,
            heard: Instant::now(),
            dead_after,
        };
        let to = place(end.layout.to(0, 0));
        end.mr.region().fill(to, size as usize, 0).map_err(range)?;
        this.make(0)?;
        Ok(this)
    }

    /// The end that asks.
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
        let spent = Spent {
            messages,
            ns: nanos(start.elapsed()),
            bytes: messages * u64::from(self.size),
            verified: self.verified,
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
            if !self.await_arrival(number)? {
                return Err(Fault::protocol("the peer has finished first"));
            }
            let now = Instant::now();
            samples.push(nanos(now - last));
            last = now;
            self.heard = now;
        }
        Ok(samples)
    }

    /// The end that answers.
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
        while self.await_arrival(number)? {
            self.post(number)?;
            number += 1;
        }
        Ok(number)
    }

    /// Posts a message.
    fn post(&mut self, number: u64) -> Result<(), Fault> {
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
        end.qps[0].post_send(&batch).map_err(|error| {
            let failure = end.qps[0].failure();
            failure.map_or_else(
                || verb(error.error),
                |failure| Fault::new(Code::PeerGone, format!("queue pair 0: {failure}")),
            )
        })
    }

    /// Makes the bytes of a message: where somebody looks at its last byte, that differs from the one before.
    fn make(&self, number: u64) -> Result<(), Fault> {
        let region = self.end.mr.region();
        let from = place(self.end.layout.from(0, 0));
        let len = self.size as usize;
        if self.end.plan.verify && self.end.plan.op != Op::Read {
            pattern::write(region, from, len, stamp(number)).map_err(range)?;
        } else if self.end.plan.verify && number == 0 {
            pattern::write(region, from, len, stamp(0)).map_err(range)?;
        }
        if self.arrival == Arrival::LastByte {
            let last = [mark(number)];
            region.write(from + len - 1, &last).map_err(range)?;
        }
        Ok(())
    }

    /// Waits until the message is there; false where the peer has finished instead.
    fn await_arrival(&mut self, number: u64) -> Result<bool, Fault> {
        let arrived = match self.arrival {
            Arrival::LastByte => self.await_last_byte(number)?,
            Arrival::Receive => self.await_completion(Kind::Recv)?,
            Arrival::Read => self.await_completion(Kind::Data)?,
        };
        let Some(to) = arrived else {
            return Ok(false);
        };
        if self.end.plan.verify {
            let looked_at = usize::from(self.arrival == Arrival::LastByte);
            let read = self.arrival == Arrival::Read;
            let len = self.size as usize - looked_at;
            let region = self.end.mr.region();
            check(region, to, len, stamp(if read { 0 } else { number }))?;
            if read {
                region.fill(to, len, 0).map_err(range)?;
            }
            self.verified += 1;
        }
        Ok(true)
    }

    /// Looks at memory, and lets the provider move meanwhile.
    fn await_last_byte(&mut self, number: u64) -> Result<Option<usize>, Fault> {
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
                    return Ok(None);
                }
                self.be_patient()?;
            }
        }
        Ok(Some(to))
    }

    /// Where the message lies that the completion is of.
    fn await_completion(&mut self, kind: Kind) -> Result<Option<usize>, Fault> {
        let mut completions = [WorkCompletion::default(); 4];
        loop {
            let count = self.end.wait(&mut completions)?;
            let mut arrived = None;
            for completion in &completions[..count] {
                self.end.check(completion)?;
                let tag = Tag::from(completion.wr_id);
                if tag.kind() == Kind::Recv {
                    self.end.post_recv(&self.end.qps[0], 0, tag.number())?;
                }
                if tag.kind() == kind {
                    let direct = self.end.plan.op != Op::Send;
                    let slot = if direct { 0 } else { tag.number() };
                    arrived = Some(place(self.end.layout.to(0, slot)));
                }
            }
            if arrived.is_some() {
                return Ok(arrived);
            }
            if count == 0 {
                self.look()?;
                if self.finished {
                    return Ok(None);
                }
                self.be_patient()?;
            }
        }
    }

    fn look(&mut self) -> Result<(), Fault> {
        match self.control.poll()? {
            None => {}
            Some(Message::Finished { .. }) => self.finished = true,
            Some(other) => return Err(other.misplaced()),
        }
        Ok(())
    }

    /// An answer that does not come is not waited for for ever. Who answers waits as long as there is a conversation.
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

fn stamp(number: u64) -> Stamp {
    Stamp { qp: 0, number }
}

/// A byte that somebody else may be writing, through the word that it lies in.
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
