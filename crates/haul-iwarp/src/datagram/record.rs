//! Write-Record at the target: the arrived ranges of each message, and when its record closes.
//!
//! A message of one segment is checked, placed and reported, and leaves nothing but its number
//! among the closed ones of its source. Others have a record until it is closed; later data is not
//! placed, because the user may be reusing the memory.

use std::collections::VecDeque;

use super::config::UdConfig;
use super::ranges::{RangeSet, Verdict};
use super::sources::{Closed, Known, Sources};
use super::wire::{MsgId, Psn};
use super::work::{Chunk, Reason, Record, RecordMode, RecordStatus, UdEvent, ValidityMap};
use crate::address::Source;
use crate::stag::Stag;
use crate::time::Time;

/// Most ranges of a validity map. A segment that needs one more is neither placed nor reported.
const RANGES: usize = 64;
/// Of the usual time between segments, how often it may pass without one.
const IDLE_FACTOR: u64 = 8;
/// Weight of a new sample of that time: 1/8.
const IDLE_SHIFT: u32 = 3;

/// Header fields common to all segments of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) from: Source,
    pub(super) id: MsgId,
    pub(super) stag: Stag,
    pub(super) base: u64,
    pub(super) len: u32,
    pub(super) immediate: Option<u64>,
}

/// A segment of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) psn: Psn,
    /// The last one itself, not the copy that was sent ahead.
    pub(super) is_last: bool,
}

#[derive(Debug, Default)]
struct Writer {
    closed: Closed,
    /// Records, the oldest first.
    open: Vec<usize>,
}

impl Known for Writer {
    fn is_idle(&self) -> bool {
        self.open.is_empty()
    }
}

#[derive(Debug)]
struct Open {
    /// None: free.
    message: Option<Message>,
    writer: usize,
    ranges: RangeSet,
    first: Time,
    last: Time,
    /// The usual time between arrivals, nanoseconds; 0 while there was only one.
    usual_ns: u64,
    highest: Psn,
    saw_last: bool,
}

impl Open {
    fn is_of(&self, from: &Source, id: MsgId) -> bool {
        let message = self.message.as_ref();
        message.is_some_and(|message| message.id == id && message.from == *from)
    }
}

/// Records, open and closed.
#[derive(Debug)]
pub(super) struct Records {
    open: Vec<Open>,
    free: Vec<usize>,
    writers: Sources<Writer>,
    /// The record of the last datagram.
    recent: usize,
    /// Not later than the first record's deadline.
    deadline: Option<Time>,
    /// Closed records that the user may query.
    kept: VecDeque<Record>,
    /// How many were closed, and how many of these to make room.
    pub(super) count: u64,
    pub(super) evicted: u64,
}

/// The action for a segment that may be placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// It is its whole message.
    Whole,
    /// It belongs to this record.
    Piece(usize),
}

impl Records {
    pub(super) fn new(config: &UdConfig) -> Self {
        Self {
            open: Vec::new(),
            free: Vec::new(),
            writers: Sources::new(config.sources.max(config.records + 1), config.key),
            recent: 0,
            deadline: None,
            kept: VecDeque::new(),
            count: 0,
            evicted: 0,
        }
    }

    fn find(&mut self, writer: Option<usize>, from: &Source, id: MsgId) -> Option<usize> {
        let is_it = |open: &Open| open.is_of(from, id);
        if self.open.get(self.recent).is_some_and(is_it) {
            return Some(self.recent);
        }
        let mut open = self.writers[writer?].open.iter().copied();
        let found = open.find(|at| is_it(&self.open[*at]))?;
        self.recent = found;
        Some(found)
    }

    /// The tag of a segment became invalid.
    pub(super) fn revoke(
        &mut self,
        config: &UdConfig,
        from: &Source,
        id: MsgId,
        stag: Stag,
        events: &mut VecDeque<UdEvent>,
    ) {
        let writer = self.writers.find(from);
        if let Some(at) = self.find(writer, from, id)
            && self.open[at].message.is_some_and(|open| open.stag == stag)
        {
            self.close(config, at, RecordStatus::Revoked, events);
        }
    }

    /// A tag is not valid any more.
    pub(super) fn revoke_stag(
        &mut self,
        config: &UdConfig,
        stag: Stag,
        events: &mut VecDeque<UdEvent>,
    ) {
        for at in 0..self.open.len() {
            if self.open[at]
                .message
                .is_some_and(|message| message.stag == stag)
            {
                self.close(config, at, RecordStatus::Revoked, events);
            }
        }
    }

    /// Judges a segment that has passed the checks of memory; `admit` checks the message as a
    /// whole, and is asked at its first segment.
    pub(super) fn judge(
        &mut self,
        now: Time,
        config: &UdConfig,
        message: &Message,
        piece: &Piece,
        admit: impl FnOnce() -> Result<(), Reason>,
        events: &mut VecDeque<UdEvent>,
    ) -> Result<Plan, Reason> {
        let writer = self.writers.find(&message.from);
        if let Some(at) = self.find(writer, &message.from, message.id) {
            return self.judge_open(at, message, piece);
        }
        if writer.is_some_and(|writer| self.writers[writer].closed.contains(message.id)) {
            return Err(Reason::Late);
        }
        if message.len > config.record_max {
            return Err(Reason::TooLong);
        }
        admit()?;
        if config.supersede_overlapping {
            self.supersede(config, writer, message, events);
        }
        if piece.end - piece.start == message.len {
            return Ok(Plan::Whole);
        }
        self.make_room(config, writer, events);
        Ok(Plan::Piece(self.enter(now, config, message, piece.psn)))
    }

    fn judge_open(&self, at: usize, message: &Message, piece: &Piece) -> Result<Plan, Reason> {
        let open = &self.open[at];
        if open.message.as_ref() != Some(message) {
            return Err(Reason::Malformed);
        }
        match open.ranges.judge(piece.start, piece.end, RANGES) {
            Verdict::New => Ok(Plan::Piece(at)),
            Verdict::Known => Err(Reason::Duplicate),
            Verdict::Full => Err(Reason::MapFull),
        }
    }

    fn supersede(
        &mut self,
        config: &UdConfig,
        writer: Option<usize>,
        message: &Message,
        events: &mut VecDeque<UdEvent>,
    ) {
        let overlaps = |older: &Message| {
            older.stag == message.stag
                && message.id.past(older.id) > 0
                && older.base < message.base + u64::from(message.len)
                && message.base < older.base + u64::from(older.len)
        };
        let Some(writer) = writer else {
            return;
        };
        for index in (0..self.writers[writer].open.len()).rev() {
            let at = self.writers[writer].open[index];
            if self.open[at].message.as_ref().is_some_and(overlaps) {
                self.close(config, at, RecordStatus::Superseded, events);
            }
        }
    }

    fn make_room(
        &mut self,
        config: &UdConfig,
        writer: Option<usize>,
        events: &mut VecDeque<UdEvent>,
    ) {
        let own = writer.map_or(&[][..], |writer| &self.writers[writer].open);
        let oldest = own.first().copied();
        if let Some(at) = oldest
            && own.len() >= config.records_per_source.max(1)
        {
            self.close(config, at, RecordStatus::Superseded, events);
        } else if self.open.len() - self.free.len() >= config.records.max(1)
            && let Some(at) = oldest.or_else(|| self.stalest())
        {
            self.close(config, at, RecordStatus::Evicted, events);
        }
    }

    fn stalest(&self) -> Option<usize> {
        (0..self.open.len())
            .filter(|at| self.open[*at].message.is_some())
            .min_by_key(|at| self.open[*at].last)
    }

    fn enter(&mut self, now: Time, config: &UdConfig, message: &Message, psn: Psn) -> usize {
        let writer = self.writers.enter(&message.from);
        let at = self.free.pop().unwrap_or_else(|| {
            self.open.push(Open {
                message: None,
                writer,
                ranges: RangeSet::default(),
                first: now,
                last: now,
                usual_ns: 0,
                highest: psn,
                saw_last: false,
            });
            self.open.len() - 1
        });
        let open = &mut self.open[at];
        open.message = Some(*message);
        open.ranges.clear();
        (open.writer, open.first, open.last) = (writer, now, now);
        (open.usual_ns, open.highest, open.saw_last) = (0, psn, false);
        self.writers[writer].open.push(at);
        self.recent = at;
        self.expect(config, at);
        at
    }

    /// Records a placed segment.
    pub(super) fn placed(
        &mut self,
        now: Time,
        config: &UdConfig,
        message: &Message,
        piece: &Piece,
        plan: Plan,
        events: &mut VecDeque<UdEvent>,
    ) {
        if config.record_mode == RecordMode::PerChunk {
            events.push_back(UdEvent::Chunk(chunk(message, piece)));
        }
        let writer = match plan {
            Plan::Whole => {
                let writer = self.writers.enter(&message.from);
                self.writers[writer].closed.push(message.id);
                let record = record(message, &RangeSet::default(), Some(RecordStatus::Full));
                self.report(config, record, events);
                writer
            }
            Plan::Piece(at) => return self.grow(now, config, at, piece, events),
        };
        self.advance(config, writer, piece.psn, events);
    }

    /// Adds a segment to a record.
    pub(super) fn grow(
        &mut self,
        now: Time,
        config: &UdConfig,
        at: usize,
        piece: &Piece,
        events: &mut VecDeque<UdEvent>,
    ) {
        self.note(now, at, piece);
        self.expect(config, at);
        let open = &self.open[at];
        let writer = open.writer;
        if open
            .message
            .is_some_and(|message| open.ranges.covered() >= message.len)
        {
            self.close(config, at, RecordStatus::Full, events);
        }
        self.advance(config, writer, piece.psn, events);
    }

    /// Whether the record `at` is this message's, and `start..end` of it is new.
    pub(super) fn wants(&self, at: usize, from: &Source, id: MsgId, start: u32, end: u32) -> bool {
        let is_it = |open: &Open| {
            open.is_of(from, id) && open.ranges.judge(start, end, RANGES) == Verdict::New
        };
        self.open.get(at).is_some_and(is_it)
    }

    /// Handles the withdrawal of the memory of the record `at`.
    pub(super) fn revoke_at(
        &mut self,
        config: &UdConfig,
        at: usize,
        events: &mut VecDeque<UdEvent>,
    ) {
        self.close(config, at, RecordStatus::Revoked, events);
    }

    fn note(&mut self, now: Time, at: usize, piece: &Piece) {
        let open = &mut self.open[at];
        open.ranges.insert(piece.start, piece.end);
        // Datagrams of one batch share an arrival time, so the interval between them is unknown.
        let gap = now.as_ns().saturating_sub(open.last.as_ns());
        if gap > 0 && open.usual_ns == 0 {
            open.usual_ns = gap;
        } else if gap > 0 {
            let usual = open.usual_ns - (open.usual_ns >> IDLE_SHIFT);
            open.usual_ns = (usual + (gap >> IDLE_SHIFT)).max(1);
        }
        open.last = open.last.max(now);
        open.saw_last |= piece.is_last;
        if piece.psn.past(open.highest) > 0 {
            open.highest = piece.psn;
        }
    }

    /// Closes messages of a source that has reached `psn`, if their last segment is long past.
    fn advance(
        &mut self,
        config: &UdConfig,
        writer: usize,
        psn: Psn,
        events: &mut VecDeque<UdEvent>,
    ) {
        let grace = i64::from(config.record_grace_packets);
        for index in (0..self.writers[writer].open.len()).rev() {
            let at = self.writers[writer].open[index];
            let open = &self.open[at];
            if open.saw_last && i64::from(psn.past(open.highest)) >= grace {
                self.close(config, at, RecordStatus::Partial, events);
            }
        }
    }

    /// Returns when a record is closed without further arrivals, and with which status.
    fn due(&self, config: &UdConfig, at: usize) -> (Time, RecordStatus) {
        let open = &self.open[at];
        let total = open.first.after(config.record_total_ns);
        let (least, most) = config.record_idle_ns;
        let idle_ns = match open.usual_ns {
            0 => most,
            usual => usual.saturating_mul(IDLE_FACTOR).min(most).max(least),
        };
        let idle = open.last.after(idle_ns);
        let grace = open.last.after(config.record_grace_ns);
        if open.saw_last && grace <= idle.min(total) {
            (grace, RecordStatus::Partial)
        } else {
            (idle.min(total), RecordStatus::Aged)
        }
    }

    fn expect(&mut self, config: &UdConfig, at: usize) {
        let (due, _) = self.due(config, at);
        self.deadline = Some(self.deadline.map_or(due, |deadline| deadline.min(due)));
    }

    pub(super) const fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Closes the records whose time is over.
    pub(super) fn expire(&mut self, now: Time, config: &UdConfig, events: &mut VecDeque<UdEvent>) {
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return;
        }
        self.deadline = None;
        for at in 0..self.open.len() {
            if self.open[at].message.is_none() {
                continue;
            }
            let (due, status) = self.due(config, at);
            if due <= now {
                self.close(config, at, status, events);
            } else {
                self.expect(config, at);
            }
        }
    }

    fn close(
        &mut self,
        config: &UdConfig,
        at: usize,
        status: RecordStatus,
        events: &mut VecDeque<UdEvent>,
    ) {
        let open = &mut self.open[at];
        let Some(message) = open.message.take() else {
            return;
        };
        let writer = &mut self.writers[open.writer];
        writer.open.retain(|other| *other != at);
        writer.closed.push(message.id);
        self.free.push(at);
        let record = record(&message, &open.ranges, Some(status));
        self.report(config, record, events);
    }

    fn report(&mut self, config: &UdConfig, record: Record, events: &mut VecDeque<UdEvent>) {
        self.count += 1;
        self.evicted += u64::from(record.status == Some(RecordStatus::Evicted));
        match config.record_mode {
            RecordMode::Aggregate => events.push_back(UdEvent::Record(record)),
            RecordMode::PerChunk => {}
            RecordMode::Query => {
                if self.kept.len() >= config.records_kept.max(1) {
                    self.kept.pop_front();
                }
                self.kept.push_back(record);
            }
        }
    }

    /// The state of a message, open or kept.
    pub(super) fn validity(&self, from: &Source, id: MsgId) -> Option<Record> {
        let is_it = |record: &Record| record.msg_id == id && record.from == *from;
        self.iter().find(is_it)
    }

    /// Those that are kept, then those that are open.
    pub(super) fn iter(&self) -> impl Iterator<Item = Record> + '_ {
        let open = self.open.iter().filter_map(|open| {
            let message = open.message.as_ref()?;
            Some(record(message, &open.ranges, None))
        });
        self.kept.iter().cloned().chain(open)
    }

    pub(super) fn take(&mut self) -> Option<Record> {
        self.kept.pop_front()
    }
}

fn record(message: &Message, ranges: &RangeSet, status: Option<RecordStatus>) -> Record {
    let (valid, map) = if status == Some(RecordStatus::Full) {
        (message.len, ValidityMap::Full)
    } else {
        (
            ranges.covered(),
            ValidityMap::Ranges(ranges.as_slice().into()),
        )
    };
    Record {
        from: message.from,
        msg_id: message.id,
        stag: message.stag,
        to: message.base,
        len: message.len,
        valid,
        map,
        status,
        immediate: message.immediate,
    }
}

const fn chunk(message: &Message, piece: &Piece) -> Chunk {
    Chunk {
        from: message.from,
        msg_id: message.id,
        stag: message.stag,
        to: message.base + piece.start as u64,
        len: piece.end - piece.start,
        offset: piece.start,
        message_len: message.len,
        immediate: message.immediate,
    }
}
