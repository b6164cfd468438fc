//! The consumer's side: placement of each stream, scheduling of reads, acknowledgements, delivery
//! in order.

mod grant;
mod inline;
mod pushed;
mod report;
mod rx;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use super::extent::Arena;
use super::plan::{Estimate, Mode, Pacer, PathEstimate, Plan};
use super::{Breach, End};
use crate::time::Time;
use crate::wire::{Key, Record, SlabAnnounce};
use crate::{ConnId, SlabSeq};

use rx::Rx;
pub use rx::{Data, Read};

/// The initial window of a connection: this share of the free arena, and at most this many bytes,
/// so that idle connections take little from active ones.
const WINDOW_START_SHARE: u64 = 2_048;
const WINDOW_START_MAX: u64 = 256 << 10;
/// Checksums of a slab may fail so often.
const TRIES_MAX: u8 = 8;

/// Bytes that came with an announcement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inline {
    /// Where in the arena they belong.
    pub at: u64,
    /// The bytes.
    pub octets: Vec<u8>,
}

/// Choices for a consumer.
#[derive(Debug, Clone)]
pub struct ConsumerConfig {
    /// Bytes of memory for arriving data, a power of two. Credits never exceed it.
    pub arena_bytes: u64,
    /// Least extent of it, a power of two. A connection begins with one of a quarter of that, and
    /// another.
    pub extent_bytes_min: u64,
    /// Largest extent, a power of two.
    pub extent_bytes_max: u64,
    /// Slabs that may be announced and not acknowledged.
    pub window_slabs: u16,
    /// Records in them, all together.
    pub records_max: usize,
    /// Most connections: a first extent is reserved for each, the rest is shared.
    pub conns_max: usize,
    /// Which end moves the bytes.
    pub mode: Mode,
    /// Whether checksums of records are compared.
    pub verify: bool,
    /// Largest read, bytes.
    pub message_max: u32,
    /// Reads that the channel may have outstanding (ORD).
    pub reads_max: u16,
    /// Rate not to be exceeded, bits per second: of a reserved path, or of a policer.
    pub rate_bps: Option<u64>,
    /// Burst that a policer lets pass, bytes.
    pub burst_bytes: Option<u64>,
}

impl Default for ConsumerConfig {
    fn default() -> Self {
        Self {
            arena_bytes: 256 << 20,
            extent_bytes_min: 4 << 10,
            extent_bytes_max: 4 << 20,
            window_slabs: 256,
            records_max: 16 << 10,
            conns_max: 16 << 10,
            mode: Mode::Pull,
            verify: true,
            message_max: 16 << 20,
            reads_max: 128,
            rate_bps: None,
            burst_bytes: None,
        }
    }
}

/// A read to be posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Get {
    /// For [`Consumer::handle_got`].
    pub id: GetId,
    /// From where.
    pub key: Key,
    /// To where in the arena, bytes.
    pub at: u64,
    /// Bytes.
    pub len: u32,
}

/// A read in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GetId(pub u64);

/// A record to be checked: the CRC32C over [`Consumer::places`] of it, to
/// [`Consumer::handle_verified`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verify {
    /// Its slab.
    pub slab: SlabSeq,
    /// Which of the slab's records.
    pub index: usize,
    /// Its connection.
    pub conn: ConnId,
    /// Where in the stream.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

/// Memory that the peer is to be allowed to write (push).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// For which connection.
    pub conn: ConnId,
    /// From which offset of its stream.
    pub offset: u64,
    /// Where in the arena.
    pub at: u64,
    /// Bytes.
    pub len: u64,
}

#[derive(Debug)]
struct Slab {
    records: Vec<Item>,
    /// Records that are not placed.
    left: usize,
    /// Its bytes come with its announcement.
    is_inline: bool,
    /// It was announced, and the peer's writes may be in flight (push).
    awaits_writes: bool,
    state: SlabState,
    /// Keys are of before a resumption: not to be used.
    stale: bool,
    /// Counts announcements: a read with the key of an old one may fail without anybody's fault.
    announcement: u32,
    tries: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlabState {
    Open,
    /// Confirmed when no read is in flight.
    Revoking,
    Placed,
    Revoked,
}

#[derive(Debug)]
struct Item {
    record: Record,
    /// `placed <= posted <= record.len`
    posted: u32,
    placed: u32,
    outstanding: u16,
    failed: bool,
    /// A read failed although its key was of the last announcement.
    blamed: bool,
    done: bool,
}

/// Reads, acknowledges, hands out.
#[derive(Debug)]
pub struct Consumer {
    config: ConsumerConfig,
    arena: Arena,
    conns: BTreeMap<ConnId, Rx>,
    /// Not done with, in order; the first has number `first`.
    slabs: VecDeque<Slab>,
    first: SlabSeq,
    /// Records in `slabs`, which forget them when they are placed or revoked. At most
    /// `config.records_max`.
    records: usize,
    /// Records with bytes to be asked for.
    to_get: VecDeque<(SlabSeq, usize)>,
    /// Slab, record, bytes, and the announcement that the key is of.
    gets: HashMap<GetId, (SlabSeq, usize, u32, u32)>,
    next_get: u64,
    inline: VecDeque<Inline>,
    /// Slabs that are written and not announced (push): at most `config.window_slabs`.
    written: BTreeSet<SlabSeq>,
    pushed_bytes: u64,
    to_verify: VecDeque<Verify>,
    readable: VecDeque<ConnId>,
    /// Reported as readable.
    unread: BTreeSet<ConnId>,
    /// Connections whose credit waits for memory.
    hungry: VecDeque<ConnId>,
    grants: VecDeque<(Grant, Option<Key>)>,
    /// Grants at the front that are known to have keys. The next may have one, too.
    keyed: usize,
    /// Extents given back whose keys the peer has.
    closed: VecDeque<(u64, u64)>,
    credits: BTreeSet<ConnId>,
    /// No data channel is up, so credit cannot wait for keys (push).
    is_channelless: bool,
    acked_conns: BTreeSet<ConnId>,
    /// Connections for [`Self::take_touched`].
    touched: Vec<ConnId>,
    nacks: VecDeque<(SlabSeq, u16, Vec<u16>)>,
    ack_due: bool,
    pacer: Pacer,
    paced_until: Option<Time>,
    plan: Plan,
    estimate: Estimate,
    /// Reports consumption to the far end: at the session's ends, never at relays.
    acknowledge: bool,
    /// The progress of streams is being reported: nothing moves until the peer has answered.
    frozen: bool,
    /// Consumption meanwhile: connection, stream offset, bytes.
    used_meanwhile: Vec<(ConnId, u64, u64)>,
}

/// Code of a SLAB_NACK: a checksum.
const NACK_CRC: u16 = 1;
/// Code of a SLAB_NACK: a read that failed.
const NACK_REMOTE: u16 = 3;

impl Consumer {
    /// Makes a consumer with an arena of its own.
    #[must_use]
    pub fn new(config: ConsumerConfig, acknowledge: bool) -> Self {
        let least = config.extent_bytes_min.next_power_of_two();
        let bytes = config.arena_bytes.next_power_of_two().max(least);
        let mut consumer = Self {
            arena: Arena::new(bytes, least, config.conns_max),
            conns: BTreeMap::new(),
            slabs: VecDeque::new(),
            first: SlabSeq(0),
            records: 0,
            to_get: VecDeque::new(),
            gets: HashMap::new(),
            next_get: 0,
            inline: VecDeque::new(),
            written: BTreeSet::new(),
            pushed_bytes: 0,
            to_verify: VecDeque::new(),
            readable: VecDeque::new(),
            unread: BTreeSet::new(),
            hungry: VecDeque::new(),
            grants: VecDeque::new(),
            keyed: 0,
            closed: VecDeque::new(),
            credits: BTreeSet::new(),
            is_channelless: false,
            acked_conns: BTreeSet::new(),
            touched: Vec::new(),
            nacks: VecDeque::new(),
            ack_due: false,
            pacer: Pacer::new(),
            paced_until: None,
            plan: first_plan(&config),
            estimate: Estimate::default(),
            acknowledge,
            frozen: false,
            used_meanwhile: Vec::new(),
            config,
        };
        consumer.replan(Time::default());
        consumer
    }

    /// Sets the rate and burst of the path, which this end enforces by the reads that it requests.
    pub fn set_limit(&mut self, now: Time, rate_bps: Option<u64>, burst_bytes: Option<u64>) {
        (self.config.rate_bps, self.config.burst_bytes) = (rate_bps, burst_bytes);
        self.plan = first_plan(&self.config);
        self.replan(now);
    }

    // Connections.

    pub(crate) fn open(&mut self, conn: ConnId, from: u64) {
        let share = self.arena.all_free_bytes() / WINDOW_START_SHARE;
        let window = share.min(WINDOW_START_MAX).max(self.arena.least()) + self.arena.first_bytes();
        self.conns.insert(conn, Rx::new(from, window));
        self.grant(conn);
    }

    /// The end of the stream has been handed out before.
    pub(crate) fn set_ended(&mut self, conn: ConnId) {
        if let Some(rx) = self.conns.get_mut(&conn) {
            (rx.end, rx.end_read) = (Some(End::Fin), true);
        }
    }

    /// Bytes that the peer may send: an offset in the stream. For CONN_OPEN and CONN_ACK.
    pub(crate) fn credit(&mut self, conn: ConnId) -> u64 {
        self.credits.remove(&conn);
        self.conns.get(&conn).map_or(0, |rx| rx.credit)
    }

    pub(crate) fn remove(&mut self, conn: ConnId) {
        let Some(rx) = self.conns.remove(&conn) else {
            return;
        };
        self.give(rx.extents());
        self.credits.remove(&conn);
        self.acked_conns.remove(&conn);
        self.drop_grants(|grant| grant.conn == conn);
    }

    fn give(&mut self, extents: impl Iterator<Item = (u64, u64)>) {
        for (at, len) in extents {
            self.arena.give(at, len);
            if self.config.mode == Mode::Push {
                self.closed.push_back((at, len));
                // Inline data has used it up before its memory was opened.
                self.drop_grants(|grant| grant.len > 0 && grant.at == at);
            }
        }
        self.feed();
    }

    /// Promises more to connections that wait for memory, as far as there is some.
    fn feed(&mut self) {
        for _ in 0..self.hungry.len() {
            if let Some(conn) = self.hungry.pop_front() {
                if let Some(rx) = self.conns.get_mut(&conn) {
                    rx.hungry = false;
                }
                self.grant(conn);
            }
        }
    }

    /// The application closes its receiving side of a stream: later data is dropped.
    pub(crate) fn discard(&mut self, conn: ConnId) {
        let Some(rx) = self.conns.get_mut(&conn) else {
            return;
        };
        rx.discarded = true;
        let mut freed = Vec::new();
        while let Some(Read::Data(data)) = rx.read(u64::MAX) {
            freed.extend(rx.release(data.offset, data.len));
        }
        self.give(freed.into_iter());
    }

    /// The stream has ended, and its end has been delivered, or the application had closed this
    /// direction.
    pub(crate) fn is_done(&self, conn: ConnId) -> bool {
        self.conns.get(&conn).is_none_or(|rx| {
            if rx.discarded {
                rx.end.is_some() && rx.gets == 0
            } else {
                rx.end_read
            }
        })
    }

    /// The end of a stream, announced without a slab.
    pub(crate) fn on_end(&mut self, now: Time, record: &Record) -> Result<(), Breach> {
        let rx = self
            .conns
            .get_mut(&record.conn)
            .ok_or(Breach::NoConnection)?;
        rx.on_announce(record, now, 0)?;
        let unused = rx.take_unused();
        if rx.on_placed(record) {
            self.readable.push_back(record.conn);
        }
        self.give(unused.into_iter());
        Ok(())
    }

    /// Whether all bytes that were handed out are used up.
    pub(crate) fn is_settled(&self, conn: ConnId) -> bool {
        self.conns.get(&conn).is_none_or(Rx::is_settled)
    }

    /// Whether the stream ended with a reset.
    pub(crate) fn was_reset(&self, conn: ConnId) -> bool {
        let end = self.conns.get(&conn).map(|rx| rx.end);
        end.is_none_or(|end| matches!(end, Some(End::Reset(_))))
    }

    /// Whether its progress has not been reported to the far end yet.
    pub(crate) fn owes_ack(&self, conn: ConnId) -> bool {
        self.acked_conns.contains(&conn)
    }

    /// Whether no read would write into its memory.
    pub(crate) fn is_quiet(&self, conn: ConnId) -> bool {
        self.conns.get(&conn).is_none_or(|rx| rx.gets == 0)
    }

    // Slabs.

    pub(crate) fn on_announce(
        &mut self,
        now: Time,
        slab: &SlabAnnounce,
        is_pushed: bool,
    ) -> Result<(), Breach> {
        let is_keyless =
            !slab.inline.is_empty() || slab.records.iter().all(|record| record.len == 0);
        let may = match self.config.mode {
            Mode::Pull => !is_pushed,
            Mode::Push => is_pushed != is_keyless,
        };
        if !may {
            return Err(Breach::Push);
        }
        let next = self.first.0 + self.slabs.len() as u64;
        if slab.seq.0 < next {
            return self.on_again(now, slab, is_pushed);
        }
        if slab.seq.0 > next {
            return Err(Breach::Order);
        }
        if self.slabs.len() >= usize::from(self.config.window_slabs) {
            return Err(Breach::Window);
        }
        if slab.records.is_empty() || self.records + slab.records.len() > self.config.records_max {
            return Err(Breach::Window);
        }
        let rtt_ns = self.estimate.rtt_ns().unwrap_or(0);
        for record in &slab.records {
            let rx = self
                .conns
                .get_mut(&record.conn)
                .ok_or(Breach::NoConnection)?;
            let wants_more = rx.on_announce(record, now, rtt_ns)?;
            if rx.end.is_some() {
                let unused = rx.take_unused();
                self.give(unused.into_iter());
                continue;
            }
            if wants_more {
                self.grant(record.conn);
            }
        }
        let items: Vec<Item> = slab
            .records
            .iter()
            .map(|record| Item::new(*record))
            .collect();
        self.records += items.len();
        let left = items.len();
        self.slabs.push_back(Slab {
            records: items,
            left,
            is_inline: !slab.inline.is_empty(),
            awaits_writes: false,
            state: SlabState::Open,
            stale: false,
            announcement: 0,
            tries: 0,
        });
        self.take_inline(slab);
        if is_pushed {
            self.await_writes(now, slab.seq);
        } else {
            self.start(slab.seq);
        }
        Ok(())
    }

    /// Records to be read are queued; the others are complete.
    fn start(&mut self, seq: SlabSeq) {
        let Some(slab) = self.slab(seq) else {
            return;
        };
        let (count, is_inline) = (slab.records.len(), slab.is_inline);
        for index in 0..count {
            let Some(item) = self.item(seq, index).filter(|item| !item.done) else {
                continue;
            };
            if item.record.len > 0 && !is_inline {
                self.to_get.push_back((seq, index));
            } else {
                self.come(seq, index);
            }
        }
    }

    /// All bytes of a record are here that was not read.
    fn come(&mut self, seq: SlabSeq, index: usize) {
        let Some(item) = self.item(seq, index).filter(|item| !item.done) else {
            return;
        };
        item.failed = false;
        (item.posted, item.placed) = (item.record.len, item.record.len);
        let waits = |verify: &Verify| verify.slab == seq && verify.index == index;
        if !self.to_verify.iter().any(waits) {
            self.placed(seq, index);
        }
    }

    fn on_again(&mut self, now: Time, slab: &SlabAnnounce, is_pushed: bool) -> Result<(), Breach> {
        let Some(known) = slab
            .seq
            .0
            .checked_sub(self.first.0)
            .and_then(|index| usize::try_from(index).ok())
        else {
            // It was done with before the control connection was lost.
            self.ack_due = true;
            return Ok(());
        };
        let known = self.slabs.get_mut(known).ok_or(Breach::Order)?;
        self.ack_due = true;
        if matches!(known.state, SlabState::Placed | SlabState::Revoked) {
            return Ok(());
        }
        let is_same = known.is_inline != slab.inline.is_empty()
            && known.records.len() == slab.records.len()
            && known
                .records
                .iter()
                .zip(&slab.records)
                .all(|(item, record)| {
                    let key = item.record.key;
                    Record { key, ..*record } == item.record
                });
        if !is_same {
            return Err(Breach::Changed);
        }
        if known.state != SlabState::Open {
            return Ok(());
        }
        known.stale = false;
        known.announcement += 1;
        let is_inline = known.is_inline;
        for (item, record) in known.records.iter_mut().zip(&slab.records) {
            item.record.key = record.key;
        }
        let count = known.records.len();
        if is_pushed {
            self.await_writes(now, slab.seq);
            return Ok(());
        }
        self.take_inline(slab);
        for index in 0..count {
            if is_inline {
                self.come(slab.seq, index);
            } else if self.item(slab.seq, index).is_some_and(|item| !item.done) {
                self.retry(slab.seq, index);
            }
        }
        Ok(())
    }

    /// Asks again for a record that failed, once no read of it is in flight and its slab has keys.
    fn retry(&mut self, seq: SlabSeq, index: usize) {
        if self
            .slab(seq)
            .is_none_or(|slab| slab.stale || slab.state != SlabState::Open)
        {
            return;
        }
        let Some(item) = self
            .item(seq, index)
            .filter(|item| item.outstanding == 0 && !item.done)
        else {
            return;
        };
        if item.failed {
            item.failed = false;
            (item.posted, item.placed) = (0, 0);
        }
        if item.posted < item.record.len && !self.to_get.contains(&(seq, index)) {
            self.to_get.push_back((seq, index));
        }
    }

    fn slab(&self, seq: SlabSeq) -> Option<&Slab> {
        let index = seq.0.checked_sub(self.first.0)?;
        self.slabs.get(usize::try_from(index).ok()?)
    }

    fn slab_mut(&mut self, seq: SlabSeq) -> Option<&mut Slab> {
        let index = seq.0.checked_sub(self.first.0)?;
        self.slabs.get_mut(usize::try_from(index).ok()?)
    }

    fn item(&mut self, seq: SlabSeq, index: usize) -> Option<&mut Item> {
        self.slab_mut(seq)?.records.get_mut(index)
    }

    /// Returns a read to post now; `None` while the path is full.
    pub fn poll_get(&mut self, now: Time) -> Option<Get> {
        self.paced_until = None;
        while self.gets.len() < usize::from(self.plan.depth) {
            let (seq, index) = *self.to_get.front()?;
            let chunk = self.plan.chunk;
            let known = seq
                .0
                .checked_sub(self.first.0)
                .and_then(|at| usize::try_from(at).ok());
            let slab = known.and_then(|at| self.slabs.get_mut(at));
            let Some(slab) = slab.filter(|slab| slab.state == SlabState::Open && !slab.stale)
            else {
                self.to_get.pop_front();
                continue;
            };
            let announcement = slab.announcement;
            let Some(item) = slab
                .records
                .get_mut(index)
                .filter(|item| !item.done && !item.failed)
            else {
                self.to_get.pop_front();
                continue;
            };
            let left = item.record.len - item.posted;
            // All of it is asked for already, and it is done with when it has been checked.
            if left == 0 {
                self.to_get.pop_front();
                continue;
            }
            let offset = item.record.offset + u64::from(item.posted);
            let rx = self
                .conns
                .get_mut(&item.record.conn)
                .filter(|rx| !rx.discarded);
            let Some((rx, (at, room))) =
                rx.and_then(|rx| rx.place(offset).map(|place| (rx, place)))
            else {
                // The application has closed this direction: it counts as read.
                self.to_get.pop_front();
                item.posted = item.record.len;
                if item.outstanding == 0 {
                    self.item_done(seq, index);
                }
                continue;
            };
            let len = u64::from(left.min(chunk)).min(room);
            if let Err(at) = self.pacer.take(now, len) {
                self.paced_until = Some(at);
                return None;
            }
            let len = u32::try_from(len).unwrap_or(left);
            let to = item.record.key.to.wrapping_add(u64::from(item.posted));
            let key = Key {
                to,
                ..item.record.key
            };
            item.posted += len;
            item.outstanding += 1;
            rx.gets += 1;
            let id = GetId(self.next_get);
            self.next_get += 1;
            self.gets.insert(id, (seq, index, len, announcement));
            return Some(Get { id, key, at, len });
        }
        None
    }

    /// A read is over: its bytes are in place, or it failed and will write no more.
    ///
    /// # Errors
    /// The slab failed too often.
    pub fn handle_got(&mut self, now: Time, id: GetId, is_placed: bool) -> Result<(), Breach> {
        let Some((seq, index, len, announcement)) = self.gets.remove(&id) else {
            return Ok(());
        };
        let is_last = self
            .slab(seq)
            .is_some_and(|slab| slab.announcement == announcement);
        let Some(item) = self.item(seq, index) else {
            return Ok(());
        };
        item.outstanding -= 1;
        item.failed |= !is_placed;
        item.blamed |= !is_placed && is_last;
        let conn = item.record.conn;
        if is_placed {
            item.placed += len;
        }
        let rx = self.conns.get_mut(&conn);
        let is_discarded = rx.as_ref().is_none_or(|rx| rx.discarded);
        if let Some(rx) = rx {
            rx.gets -= 1;
        }
        self.touch(conn);
        if is_placed {
            self.estimate_arrival(now, u64::from(len));
        }
        self.settle(seq, index, is_discarded)
    }

    /// Settles a record that has no read in flight.
    fn settle(&mut self, seq: SlabSeq, index: usize, is_discarded: bool) -> Result<(), Breach> {
        let is_revoking = self
            .slab(seq)
            .is_some_and(|slab| slab.state == SlabState::Revoking);
        let Some(item) = self.item(seq, index).filter(|item| item.outstanding == 0) else {
            return Ok(());
        };
        let is_whole = item.posted == item.record.len;
        let is_blamed = std::mem::take(&mut item.blamed);
        if is_revoking {
            self.settle_revoked(seq);
        } else if is_discarded {
            self.item_done(seq, index);
        } else if is_blamed {
            return self.failed(seq, index, NACK_REMOTE);
        } else if item.failed || !is_whole {
            self.retry(seq, index);
        } else {
            self.placed(seq, index);
        }
        Ok(())
    }

    /// A record of a slab has to be announced again.
    fn failed(&mut self, seq: SlabSeq, index: usize, code: u16) -> Result<(), Breach> {
        let Some(slab) = self.slab_mut(seq) else {
            return Ok(());
        };
        // If the keys are stale, the new announcement is already in flight.
        if slab.stale {
            return Ok(());
        }
        slab.stale = true;
        slab.tries += 1;
        if slab.tries == TRIES_MAX {
            return Err(Breach::Hopeless);
        }
        let index = u16::try_from(index).unwrap_or(u16::MAX);
        self.nacks.push_back((seq, code, vec![index]));
        Ok(())
    }

    /// All bytes of a record are in place.
    fn placed(&mut self, seq: SlabSeq, index: usize) {
        let verify = self.config.verify;
        let Some(item) = self.item(seq, index) else {
            return;
        };
        let Record {
            conn,
            offset,
            len,
            crc,
            ..
        } = item.record;
        if verify && crc.is_some() && len > 0 && self.is_wanted(conn) {
            self.to_verify.push_back(Verify {
                slab: seq,
                index,
                conn,
                offset,
                len,
            });
        } else {
            self.item_done(seq, index);
        }
    }

    fn is_wanted(&self, conn: ConnId) -> bool {
        self.conns.get(&conn).is_some_and(|rx| !rx.discarded)
    }

    /// Returns a record whose checksum is to be computed.
    pub fn poll_verify(&mut self) -> Option<Verify> {
        self.to_verify.pop_front()
    }

    /// Where a range of a connection's stream is: offset in the arena and bytes of each part.
    pub fn places(&self, conn: ConnId, offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
        let rx = self.conns.get(&conn);
        let mut done = 0;
        std::iter::from_fn(move || {
            let (at, room) = rx?.place(offset + done).filter(|_| done < len)?;
            let part = room.min(len - done);
            done += part;
            Some((at, part))
        })
    }

    /// The checksum of a record, as computed.
    ///
    /// # Errors
    /// The slab failed too often.
    pub fn handle_verified(&mut self, verify: &Verify, crc: u32) -> Result<(), Breach> {
        let Verify { slab, index, .. } = *verify;
        let is_wanted = self.is_wanted(verify.conn);
        let Some(item) = self.item(slab, index).filter(|item| !item.done) else {
            return Ok(());
        };
        if item.record.crc == Some(crc) || !is_wanted {
            self.item_done(slab, index);
            return Ok(());
        }
        item.failed = true;
        self.failed(slab, index, NACK_CRC)
    }

    fn item_done(&mut self, seq: SlabSeq, index: usize) {
        let Some(item) = self.item(seq, index).filter(|item| !item.done) else {
            return;
        };
        item.done = true;
        let record = item.record;
        if let Some(slab) = self.slab_mut(seq) {
            slab.left -= 1;
            if slab.left == 0 && slab.state == SlabState::Open {
                slab.state = SlabState::Placed;
                self.ack_due = true;
                // Written again although it was there: nothing of it is waited for.
                self.count_writes(seq, false);
                self.forget_records(seq);
            }
        }
        if let Some(rx) = self.conns.get_mut(&record.conn)
            && rx.on_placed(&record)
        {
            self.readable.push_back(record.conn);
        }
        self.pop_done();
    }

    /// Drops the records of a placed or revoked slab, as the producer does when it is acknowledged.
    fn forget_records(&mut self, seq: SlabSeq) {
        let records = self
            .slab_mut(seq)
            .map(|slab| std::mem::take(&mut slab.records));
        self.records -= records.map_or(0, |records| records.len());
    }

    fn pop_done(&mut self) {
        while self
            .slabs
            .front()
            .is_some_and(|slab| matches!(slab.state, SlabState::Placed | SlabState::Revoked))
        {
            if let Some(slab) = self.slabs.pop_front() {
                self.records -= slab.records.len();
            }
            self.first = self.first.next();
        }
    }

    pub(crate) fn on_revoke(&mut self, seq: SlabSeq, code: u16) -> Result<(), Breach> {
        if seq.0 >= self.first.0 + self.slabs.len() as u64 {
            return Err(Breach::NoSlab);
        }
        self.ack_due = true;
        let Some(slab) = self
            .slab_mut(seq)
            .filter(|slab| slab.state == SlabState::Open)
        else {
            return Ok(());
        };
        slab.state = SlabState::Revoking;
        let lost: Vec<Record> = slab
            .records
            .iter()
            .filter(|item| !item.done)
            .map(|item| item.record)
            .collect();
        let whole: Vec<Record> = slab.records.iter().map(|item| item.record).collect();
        for record in lost.iter().chain(&whole) {
            if let Some(rx) = self.conns.get_mut(&record.conn)
                && rx.on_revoked(code)
            {
                self.readable.push_back(record.conn);
            }
            self.touch(record.conn);
        }
        self.settle_revoked(seq);
        Ok(())
    }

    fn settle_revoked(&mut self, seq: SlabSeq) {
        if let Some(slab) = self.slab_mut(seq)
            && slab.records.iter().all(|item| item.outstanding == 0)
        {
            slab.state = SlabState::Revoked;
            self.ack_due = true;
            self.forget_records(seq);
        }
    }

    // Returns the next data for the application.

    /// Returns a connection with something to read that had nothing before.
    pub fn poll_readable(&mut self) -> Option<ConnId> {
        let conn = self.readable.pop_front()?;
        self.unread.insert(conn);
        Some(conn)
    }

    /// Returns the next bytes of a connection, at most `most`, or its end. Bytes stay where they
    /// are until [`Self::release`].
    pub fn read(&mut self, conn: ConnId, most: u64) -> Option<Read> {
        if self.frozen {
            return None;
        }
        let read = self
            .conns
            .get_mut(&conn)
            .filter(|rx| !rx.discarded)?
            .read(most);
        if matches!(read, Some(Read::End(_))) {
            self.touched.push(conn);
            if self.acknowledge {
                self.acked_conns.insert(conn);
            }
        }
        read
    }

    /// Returns the connections that were reported as readable and still are, for a caller that
    /// could not take everything.
    pub(crate) fn waiting(&mut self) -> Vec<ConnId> {
        let mut waiting = std::mem::take(&mut self.unread);
        waiting.retain(|conn| self.is_readable(*conn));
        self.unread.clone_from(&waiting);
        waiting.into_iter().collect()
    }

    /// Whether a connection was reported as readable and has data left.
    #[must_use]
    pub fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Whether there is something to read.
    #[must_use]
    pub fn is_readable(&self, conn: ConnId) -> bool {
        self.conns.get(&conn).is_some_and(Rx::is_readable)
    }

    /// Releases bytes that the application has consumed, in any order. Bytes of a connection that
    /// was reset meanwhile must be released too.
    pub fn release(&mut self, conn: ConnId, offset: u64, len: u64) {
        if self.frozen {
            self.used_meanwhile.push((conn, offset, len));
            return;
        }
        let Some(rx) = self.conns.get_mut(&conn) else {
            return;
        };
        let freed = rx.release(offset, len);
        if self.acknowledge {
            self.acked_conns.insert(conn);
        }
        self.touch(conn);
        self.give(freed.into_iter());
        self.grant(conn);
    }

    /// How far a stream has got here: before which offset all is used up, and whether its end has
    /// been handed out.
    pub(crate) fn delivered(&self, conn: ConnId) -> Option<(u64, bool)> {
        self.conns.get(&conn).map(Rx::delivered)
    }
}

impl Item {
    const fn new(record: Record) -> Self {
        Self {
            record,
            posted: 0,
            placed: 0,
            outstanding: 0,
            failed: false,
            blamed: false,
            done: false,
        }
    }
}

/// Before anything is measured: as many reads as there may be.
fn first_plan(config: &ConsumerConfig) -> Plan {
    Plan {
        chunk: config.message_max.min(super::plan::CHUNK_MIN),
        depth: config.reads_max.max(1),
        bucket_bytes: u64::MAX,
        starved: false,
    }
}

#[cfg(test)]
mod tests;
