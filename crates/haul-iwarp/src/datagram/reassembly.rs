//! Sends of several segments, placed straight into a posted receive. Whichever segment arrives
//! first takes the receive.
//!
//! A message that is given up returns its receive to the head of the queue. If all slots are taken,
//! the source's own oldest message is evicted; if it has none, the least recently active message.
//! So a flooding source evicts its own messages, and many forged sources evict stale ones.

use super::config::UdConfig;
use super::ranges::{RangeSet, Verdict};
use super::sources::{Closed, Known, Sources};
use super::wire::MsgId;
use super::work::Reason;
use crate::address::Source;
use crate::operation::RecvWr;
use crate::time::Time;

/// Ranges of an incomplete Send at most. A message of 1 MiB in segments of 1,400 bytes has no more
/// than 375.
const RANGES: usize = 1_024;

/// Header fields common to all segments of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) from: Source,
    pub(super) id: MsgId,
    pub(super) len: u32,
    pub(super) solicited: bool,
    pub(super) group: bool,
}

#[derive(Debug, Default)]
struct Sender {
    closed: Closed,
    /// Slots, the oldest first.
    open: Vec<usize>,
}

impl Known for Sender {
    fn is_idle(&self) -> bool {
        self.open.is_empty()
    }
}

#[derive(Debug)]
struct Slot {
    /// None: free.
    message: Option<Message>,
    sender: usize,
    wr: RecvWr,
    ranges: RangeSet,
    first: Time,
    last: Time,
}

/// Incomplete Sends.
#[derive(Debug)]
pub(super) struct Reassembly {
    slots: Vec<Slot>,
    free: Vec<usize>,
    senders: Sources<Sender>,
    /// How many were evicted to make space for others.
    pub(super) evicted: u64,
    /// Bytes that the open messages announce together.
    octets: u64,
    /// The slot of the last datagram.
    recent: usize,
    /// Not later than the first slot's deadline.
    deadline: Option<Time>,
    limit: usize,
    limit_per_source: usize,
    limit_octets: u64,
    idle_ns: u64,
    total_ns: u64,
}

/// Why a message has no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unknown {
    New,
    Closed,
}

impl Reassembly {
    pub(super) fn new(config: &UdConfig) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            senders: Sources::new(config.sources.max(config.slots + 1), config.key),
            evicted: 0,
            octets: 0,
            recent: 0,
            deadline: None,
            limit: config.slots.max(1),
            limit_per_source: config.slots_per_source.max(1),
            limit_octets: config.slot_octets,
            idle_ns: config.slot_idle_ns,
            total_ns: config.slot_total_ns,
        }
    }

    /// The slot of a message.
    pub(super) fn find(&mut self, from: &Source, id: MsgId) -> Result<usize, Unknown> {
        let is_it = |slot: &Slot| {
            slot.message
                .is_some_and(|message| message.id == id && message.from == *from)
        };
        if self.slots.get(self.recent).is_some_and(is_it) {
            return Ok(self.recent);
        }
        let Some(sender) = self.senders.find(from) else {
            return Err(Unknown::New);
        };
        let sender = &self.senders[sender];
        let mut open = sender.open.iter().copied();
        match open.find(|at| is_it(&self.slots[*at])) {
            Some(at) => {
                self.recent = at;
                Ok(at)
            }
            None if sender.closed.contains(id) => Err(Unknown::Closed),
            None => Err(Unknown::New),
        }
    }

    /// Returns the receive of a segment of an open message, if it may be placed.
    pub(super) fn judge(
        &self,
        at: usize,
        message: &Message,
        start: u32,
        end: u32,
    ) -> Result<RecvWr, Reason> {
        let slot = &self.slots[at];
        if slot.message.as_ref() != Some(message) {
            return Err(Reason::Malformed);
        }
        match slot.ranges.judge(start, end, RANGES) {
            Verdict::New => Ok(slot.wr),
            Verdict::Known => Err(Reason::Duplicate),
            Verdict::Full => Err(Reason::MapFull),
        }
    }

    /// Refuses a message: its further segments are dropped.
    pub(super) fn refuse(&mut self, from: &Source, id: MsgId) {
        let sender = self.senders.enter(from);
        self.senders[sender].closed.push(id);
    }

    /// Evicts one message to make space for one of `len` bytes and returns its receive; call until
    /// it returns `None`.
    pub(super) fn make_room(&mut self, from: &Source, len: u32) -> Option<RecvWr> {
        let own = match self.senders.find(from) {
            Some(sender) => self.senders[sender].open.as_slice(),
            None => &[],
        };
        let is_full = self.slots.len() - self.free.len() >= self.limit
            || self.octets + u64::from(len) > self.limit_octets;
        if own.len() < self.limit_per_source && !is_full {
            return None;
        }
        let victim = own.first().copied().or_else(|| self.stalest())?;
        self.evicted += 1;
        Some(self.close(victim))
    }

    /// Takes a receive from a source that holds several, for a source that holds none.
    pub(super) fn spare(&mut self, from: &Source) -> Option<RecvWr> {
        let open = |slot: &&Slot| slot.message.is_some();
        let richest = self
            .slots
            .iter()
            .filter(open)
            .map(|slot| slot.sender)
            .max_by_key(|sender| self.senders[*sender].open.len())?;
        let own = self
            .senders
            .find(from)
            .is_some_and(|own| !self.senders[own].open.is_empty());
        let slots = &self.senders[richest].open;
        let victim = (slots.len() > 1 && !own).then(|| slots[0])?;
        self.evicted += 1;
        Some(self.close(victim))
    }

    fn stalest(&self) -> Option<usize> {
        let open = |at: &usize| self.slots[*at].message.is_some();
        (0..self.slots.len())
            .filter(open)
            .min_by_key(|at| self.slots[*at].last)
    }

    /// Opens a message; the caller has made space.
    pub(super) fn open(&mut self, now: Time, message: Message, wr: RecvWr) -> usize {
        let sender = self.senders.enter(&message.from);
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                message: None,
                sender,
                wr,
                ranges: RangeSet::default(),
                first: now,
                last: now,
            });
            self.slots.len() - 1
        });
        self.octets += u64::from(message.len);
        let slot = &mut self.slots[at];
        slot.message = Some(message);
        (slot.sender, slot.wr, slot.first, slot.last) = (sender, wr, now, now);
        slot.ranges.clear();
        self.senders[sender].open.push(at);
        self.recent = at;
        let due = self.due(at);
        self.deadline = Some(self.deadline.map_or(due, |deadline| deadline.min(due)));
        at
    }

    /// Records a placed segment; returns the message if it is now complete.
    pub(super) fn placed(
        &mut self,
        now: Time,
        at: usize,
        start: u32,
        end: u32,
    ) -> Option<(Message, RecvWr)> {
        let slot = &mut self.slots[at];
        slot.ranges.insert(start, end);
        slot.last = now;
        let message = slot.message?;
        if slot.ranges.covered() < message.len {
            return None;
        }
        Some((message, self.close(at)))
    }

    /// Frees a slot and returns its receive.
    fn close(&mut self, at: usize) -> RecvWr {
        let slot = &mut self.slots[at];
        if let Some(message) = slot.message.take() {
            self.octets -= u64::from(message.len);
            let sender = &mut self.senders[slot.sender];
            sender.open.retain(|open| *open != at);
            sender.closed.push(message.id);
            self.free.push(at);
        }
        slot.wr
    }

    /// Abandons a message whose receive's buffers were withdrawn.
    pub(super) fn fail(&mut self, at: usize) -> Option<(Message, RecvWr)> {
        let message = self.slots[at].message?;
        Some((message, self.close(at)))
    }

    fn due(&self, at: usize) -> Time {
        let slot = &self.slots[at];
        slot.last
            .after(self.idle_ns)
            .min(slot.first.after(self.total_ns))
    }

    pub(super) const fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Abandons a message that has timed out; call until it returns `None`.
    pub(super) fn expire(&mut self, now: Time) -> Option<RecvWr> {
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return None;
        }
        let open = |at: &usize| self.slots[*at].message.is_some();
        let first = (0..self.slots.len())
            .filter(open)
            .map(|at| (self.due(at), at))
            .min();
        match first {
            Some((due, at)) if due <= now => Some(self.close(at)),
            _ => {
                self.deadline = first.map(|(due, _)| due);
                None
            }
        }
    }

    /// Abandons any one message; call until it returns `None`.
    pub(super) fn abandon(&mut self) -> Option<RecvWr> {
        let at = (0..self.slots.len()).find(|at| self.slots[*at].message.is_some())?;
        Some(self.close(at))
    }
}
