//! The producer's side: regions divided into partitions, ready data packed into slabs, slabs kept
//! until they are acknowledged.

mod pack;
mod push;
mod resume;
mod ring;
mod stream;

use std::collections::{BTreeMap, VecDeque};

use super::plan::{Flight, Mode, Pacer, RingSize};
use super::{Breach, End, Memory, Place};
use crate::time::Time;
use crate::wire::{INLINE_MAX, Key, Pdu, Record, SlabAck, SlabAnnounce, SlabStatus};
use crate::{ConnId, SlabSeq};

pub use ring::Fill;
use ring::Ring;
use stream::{Range, Slab, SlabState, Tx, join, trim};

/// Ready ranges are joined up to this length, so that single bytes do not each cost a record and a
/// read.
const JOIN_MAX: u64 = 1 << 20;
/// Bytes of a connection that may wait for slabs however many connections do.
const READY_BYTES: u64 = 64 << 10;
/// Slabs allowed before the peer's first grant.
const SLABS_AT_FIRST: u16 = 64;
/// Most inline bytes in flight while there is no data channel: a first request, and as much as a
/// control connection carries in its first round trips.
const CHANNELLESS_INLINE_MAX: u64 = 64 << 10;
/// Attempts at a slab.
const TRIES_MAX: u8 = 8;

/// Settings of a producer.
#[derive(Debug, Clone)]
pub struct ProducerConfig {
    /// Regions of the ring, at least 3; 3 is the paper's triple buffering.
    pub regions: u16,
    /// Most bytes of a region. The engine has `regions` of them.
    pub region_bytes: u64,
    /// Bytes of a region that are used at first; grows to `region_bytes` where the path waits.
    pub region_bytes_start: u64,
    /// Which end moves the bytes.
    pub mode: Mode,
    /// Memory is kept until the far end of the session has the bytes (end-to-end acknowledgement,
    /// at the origin).
    pub retain: bool,
    /// A stream is released only when the far end of the session has reported its whole arrival.
    pub await_delivery: bool,
    /// Most records of a slab.
    pub records_max: usize,
    /// Most slabs that are not acknowledged.
    pub slabs_max: u16,
    /// Longest time that the first byte of bulk data waits for more while slabs are in flight, ns;
    /// a quarter of the RTT if less. While half of the slabs that may be in flight are, all data
    /// waits longer.
    pub flush_max_ns: u64,
}

impl Default for ProducerConfig {
    fn default() -> Self {
        Self {
            regions: 8,
            region_bytes: 16 << 20,
            region_bytes_start: 1 << 20,
            mode: Mode::Pull,
            retain: false,
            await_delivery: false,
            records_max: 256,
            slabs_max: 256,
            flush_max_ns: 1_000_000,
        }
    }
}

/// A write of push mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Put {
    /// For [`Producer::handle_put`].
    pub id: PutId,
    /// From where.
    pub place: Place,
    /// To where.
    pub key: Key,
}

/// A write in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PutId(pub SlabSeq, pub u64);

/// Packs and keeps.
#[derive(Debug)]
pub struct Producer {
    config: ProducerConfig,
    ring: Ring,
    size: RingSize,
    conns: BTreeMap<ConnId, Tx>,
    /// Connections with something to pack, in turn.
    round: VecDeque<ConnId>,
    /// Those of them that have little.
    little: VecDeque<ConnId>,
    /// Bytes ready in all connections.
    ready_bytes: u64,
    /// When the first ready byte of the connections in `round` was committed.
    ready_since: Option<Time>,
    /// When the last slab of connections with little was packed.
    little_at: Time,
    urgent: bool,
    /// Nothing is packed before this time, even if it is due.
    held: Option<Time>,
    /// Not acknowledged, in order; the first has number `first`.
    slabs: VecDeque<Slab>,
    first: SlabSeq,
    unacked_bytes: u64,
    /// Inline bytes of these, which are few, because they use the control connection.
    inline_bytes: u64,
    /// Most of them.
    inline_bytes_max: u64,
    /// Records in slabs that are not acknowledged.
    unacked_records: usize,
    /// Slabs that are neither inline nor acknowledged.
    moved: usize,
    /// Limit of bulk bytes in flight.
    flight: Flight,
    window_bytes: u64,
    window_slabs: u16,
    /// To be announced, with keys or inline.
    to_seal: VecDeque<SlabSeq>,
    /// To be written (push).
    to_put: VecDeque<SlabSeq>,
    outgoing: VecDeque<SlabSeq>,
    revokes: VecDeque<SlabSeq>,
    /// Written and not marked on the data channels (push).
    marks: VecDeque<SlabSeq>,
    /// The first slab that is not announced yet.
    unannounced: SlabSeq,
    retired: VecDeque<SlabSeq>,
    /// Counts attempts at slabs, to distinguish writes of an old one.
    attempts: u64,
    released: VecDeque<(ConnId, u64, Place)>,
    /// Connections that may be done ([`Self::is_done`]).
    touched: Vec<ConnId>,
    rtt_ns: u64,
    /// Of writes (push).
    pacer: Pacer,
    /// Bytes of the longest.
    put_bytes_max: u64,
    paced_until: Option<Time>,
}

impl Producer {
    /// A producer with a ring of its own.
    ///
    /// # Errors
    /// Fewer than three regions: one is filled, one drained, and nothing would be in flight.
    pub fn new(config: ProducerConfig) -> Result<Self, TooFewRegions> {
        if config.regions < 3 || config.region_bytes == 0 || config.records_max == 0 {
            return Err(TooFewRegions);
        }
        let (n, most) = (u64::from(config.regions), config.region_bytes);
        let start = config.region_bytes_start.clamp(1, most);
        Ok(Self {
            ring: Ring::new(config.regions, start),
            size: RingSize::new(start * n, most * n),
            conns: BTreeMap::new(),
            round: VecDeque::new(),
            little: VecDeque::new(),
            ready_bytes: 0,
            ready_since: None,
            little_at: Time::default(),
            urgent: false,
            held: None,
            slabs: VecDeque::new(),
            first: SlabSeq(0),
            unacked_bytes: 0,
            inline_bytes: 0,
            inline_bytes_max: INLINE_MAX as u64,
            unacked_records: 0,
            moved: 0,
            flight: Flight::default(),
            window_bytes: u64::MAX,
            window_slabs: SLABS_AT_FIRST,
            to_seal: VecDeque::new(),
            to_put: VecDeque::new(),
            outgoing: VecDeque::new(),
            revokes: VecDeque::new(),
            marks: VecDeque::new(),
            unannounced: SlabSeq(0),
            retired: VecDeque::new(),
            attempts: 0,
            released: VecDeque::new(),
            touched: Vec::new(),
            rtt_ns: 0,
            pacer: Pacer::new(),
            put_bytes_max: u64::MAX,
            paced_until: None,
            config,
        })
    }

    // Connections.

    pub(crate) fn open(&mut self, conn: ConnId, from: u64) {
        let tx = Tx {
            credit: from,
            next: from,
            packed: from,
            delivered: from,
            ..Tx::default()
        };
        self.conns.insert(conn, tx);
    }

    pub(crate) fn on_credit(&mut self, conn: ConnId, credit: u64) {
        if let Some(tx) = self.conns.get_mut(&conn) {
            tx.credit = tx.credit.max(credit);
            self.enqueue(conn);
        }
    }

    /// Removes a finished connection and frees its memory.
    pub(crate) fn remove(&mut self, conn: ConnId) {
        self.discard(conn);
        if let Some(mut tx) = self.conns.remove(&conn) {
            for range in tx.retained.drain(..) {
                self.free(conn, range.offset, range.place);
            }
            self.ring.close_partition(conn);
        }
    }

    /// Returns the bytes that the connection may still commit: the peer's credit less the committed
    /// bytes.
    #[must_use]
    pub fn credit(&self, conn: ConnId) -> u64 {
        let open = self.conns.get(&conn).filter(|tx| tx.end.is_none());
        open.map_or(0, |tx| tx.credit.saturating_sub(tx.next))
    }

    /// Reserves memory for bytes of a connection, at most `want`. Call [`Self::commit`] directly
    /// afterwards, so reserve when data is ready to be read. `None`: no credit, or the ring is
    /// full; this connection is left out of slabs until that changes.
    pub fn reserve(&mut self, now: Time, conn: ConnId, want: u64) -> Option<Fill> {
        let credit = self.credit(conn);
        if credit == 0 || want == 0 {
            return None;
        }
        let unpacked = self.conns.get(&conn).map_or(0, Tx::unpacked);
        if unpacked >= self.most_ready() {
            return None;
        }
        let fill = self.ring.reserve(conn, want.min(credit));
        if fill.is_none() {
            // A larger ring would not help a path that is already full.
            if self.unacked_bytes + self.ready_bytes < self.flight.most() {
                self.size.on_limited();
            }
            if !self.round.is_empty() {
                self.ready_since = self.ready_since.or(Some(now));
            }
        }
        fill
    }

    /// Most bytes of a connection that wait for slabs: its share of what may be in flight. More of
    /// them would leave no earlier, and take memory from other connections.
    fn most_ready(&self) -> u64 {
        let share = self.flight.most() / 2 / self.round.len().max(1) as u64;
        share.max(READY_BYTES)
    }

    /// Commits the first `len` bytes of the memory that [`Self::reserve`] returned. `crc`: of these
    /// bytes.
    pub fn commit(&mut self, now: Time, conn: ConnId, len: u64, crc: Option<u32>) {
        let Some(place) = self.ring.commit(conn, len) else {
            return;
        };
        // The connection was reset meanwhile: drops them.
        if !self.append(now, conn, place, crc) {
            self.ring.free(conn, place);
        }
        self.urgent |= self.ring.take_completed();
    }

    /// Takes bytes in foreign memory, to be sent from there; [`Self::poll_released`] reports when
    /// they are free. If they exceed [`Self::credit`], takes nothing and returns `false`.
    #[must_use]
    pub fn forward(
        &mut self,
        now: Time,
        conn: ConnId,
        at: u64,
        len: u64,
        crc: Option<u32>,
    ) -> bool {
        let memory = Memory::Foreign;
        len <= self.credit(conn) && self.append(now, conn, Place { memory, at, len }, crc)
    }

    fn append(&mut self, now: Time, conn: ConnId, place: Place, crc: Option<u32>) -> bool {
        let Some(tx) = self.conns.get_mut(&conn).filter(|tx| tx.end.is_none()) else {
            return false;
        };
        let range = Range {
            offset: tx.next,
            place,
            crc,
        };
        tx.next += place.len;
        let last = tx
            .ready
            .back_mut()
            .filter(|last| last.place.len + place.len <= JOIN_MAX);
        if !last.is_some_and(|last| join(last, &range)) {
            tx.ready.push_back(range);
        }
        self.ready_bytes += place.len;
        self.enqueue(conn);
        if !self.round.is_empty() {
            self.ready_since = self.ready_since.or(Some(now));
        }
        true
    }

    /// Sends ready data with the next slab, without waiting for more.
    pub fn flush(&mut self) {
        self.urgent = true;
    }

    /// Ends the stream after the committed bytes.
    pub(crate) fn finish(&mut self, conn: ConnId, end: End) {
        let Some(tx) = self.conns.get_mut(&conn) else {
            return;
        };
        if tx.end_packed || matches!(tx.end, Some(End::Reset(_))) {
            return;
        }
        tx.end = Some(end);
        self.urgent = true;
        self.enqueue(conn);
    }

    /// Its end has already arrived at the far end.
    pub(crate) fn set_ended(&mut self, conn: ConnId) {
        if let Some(tx) = self.conns.get_mut(&conn) {
            tx.end = Some(End::Fin);
            (tx.end_packed, tx.end_acked) = (true, true);
            tx.delivered = tx.next + 1;
            tx.end_told = true;
        }
    }

    /// Drops ready data that is not in a slab.
    pub(crate) fn discard(&mut self, conn: ConnId) {
        let Some(tx) = self.conns.get_mut(&conn) else {
            return;
        };
        tx.next = tx.packed;
        for range in std::mem::take(&mut tx.ready) {
            self.ready_bytes -= range.place.len;
            self.free(conn, range.offset, range.place);
        }
    }

    /// Whether the stream has ended, and the peer (if memory is kept, the far end) has all of it.
    pub(crate) fn is_done(&self, conn: ConnId) -> bool {
        self.conns.get(&conn).is_none_or(|tx| match tx.end {
            // Memory that a slab names may still be read.
            _ if tx.in_slabs > 0 => false,
            Some(_) if tx.end_told => true,
            Some(End::Fin) if self.config.await_delivery && !tx.abandoned => false,
            Some(_) => tx.end_packed && tx.end_acked,
            None => false,
        })
    }

    /// Returns the connections whose slabs were acknowledged since the last call, of those whose
    /// stream has ended.
    pub(crate) fn take_touched(&mut self) -> Vec<ConnId> {
        std::mem::take(&mut self.touched)
    }

    /// The far end has closed its receiving side of the stream.
    pub(crate) fn abandon(&mut self, conn: ConnId) {
        if let Some(tx) = self.conns.get_mut(&conn) {
            tx.abandoned = true;
        }
    }

    /// The end of the stream has arrived at the far end, with or without all earlier bytes.
    pub(crate) fn on_finished(&mut self, conn: ConnId) {
        if let Some(tx) = self.conns.get_mut(&conn) {
            tx.end_told |= tx.end.is_some();
        }
    }

    /// The report of a peer that has all of a stream, and its end.
    pub(crate) fn whole(&self, conn: ConnId) -> Option<u64> {
        let tx = self.conns.get(&conn)?;
        (tx.end == Some(End::Fin) && tx.end_packed).then_some(tx.next + 1)
    }

    /// Whether the peer's close of its receiving side has an effect.
    pub(crate) fn is_stoppable(&self, conn: ConnId) -> bool {
        self.conns.get(&conn).is_some_and(|tx| !tx.end_packed)
    }

    pub(crate) fn has_ended(&self, conn: ConnId) -> bool {
        self.conns.get(&conn).is_none_or(|tx| tx.end.is_some())
    }

    // Slabs.

    fn enqueue(&mut self, conn: ConnId) {
        let Some(tx) = self.conns.get_mut(&conn) else {
            return;
        };
        if !tx.in_round && tx.packable() {
            tx.in_round = true;
            let queue = if tx.has_little() {
                &mut self.little
            } else {
                &mut self.round
            };
            queue.push_back(conn);
        }
    }

    /// Packs nothing before `until`: the caller shares its rate with other sessions.
    pub fn hold(&mut self, until: Time) {
        self.held = Some(until);
    }

    /// Lets held data leave.
    pub fn release(&mut self) {
        self.held = None;
    }

    /// Whether something is due and held.
    #[must_use]
    pub const fn is_held(&self) -> bool {
        self.held.is_some()
    }

    fn should_pack(&self, now: Time) -> bool {
        self.held.is_none_or(|until| until <= now) && self.is_due(now)
    }

    /// Returns when [`Self::poll_sealed`] may have a slab without another event.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let little = self.may_pack_little().then(|| self.little_due());
        let round = self
            .may_pack_round()
            .then(|| self.flush_at().unwrap_or_default());
        let packs = little.into_iter().chain(round).min();
        let packs = packs.map(|at| self.held.unwrap_or(at));
        packs.into_iter().chain(self.paced_until).min()
    }

    /// A time in the past is no timeout: its caller polls for what has become due.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        self.paced_until = self.paced_until.filter(|until| *until > now);
    }

    /// Returns a slab to announce: pass its keys (pull) to [`Self::announce`], or its bytes if it
    /// [has them inline](Self::is_inline). A slab that is announced again comes here again: its old
    /// keys are not valid any more.
    pub fn poll_sealed(&mut self, now: Time) -> Option<SlabSeq> {
        self.held = self.held.filter(|until| *until > now);
        loop {
            while let Some(seq) = self.to_seal.pop_front() {
                if self
                    .slab(seq)
                    .is_some_and(|slab| slab.state == SlabState::Sealed)
                {
                    return Some(seq);
                }
            }
            let before = self.next_seq();
            if self.should_pack(now) {
                self.pack(now, u64::MAX);
            }
            if self.next_seq() == before {
                return None;
            }
        }
    }

    /// As [`Self::poll_sealed`] while there is no data channel: slabs that need none, because their
    /// bytes are inline or they have none, up to the first that needs one. Only data that fits
    /// inline is packed here.
    pub fn poll_keyless(&mut self, now: Time) -> Option<SlabSeq> {
        self.held = self.held.filter(|until| *until > now);
        while let Some(seq) = self.to_seal.front().copied() {
            let sealed = self
                .slab(seq)
                .filter(|slab| slab.state == SlabState::Sealed);
            if sealed.is_some_and(|slab| !slab.is_inline && slab.bytes > 0) {
                return None;
            }
            let is_sealed = sealed.is_some();
            self.to_seal.pop_front();
            if is_sealed {
                return Some(seq);
            }
        }
        let room = self.inline_room();
        if room == 0 || !self.should_pack(now) {
            return None;
        }
        self.pack(now, room);
        self.to_seal.pop_front()
    }

    /// Returns how many bytes the next announcement may carry.
    #[must_use]
    pub fn inline_room(&self) -> u64 {
        let room = self.inline_bytes_max.saturating_sub(self.inline_bytes);
        room.min(INLINE_MAX as u64)
    }

    /// Allows more inline bytes in flight while there is no data channel.
    pub(crate) const fn set_channel(&mut self, is_up: bool) {
        self.inline_bytes_max = if is_up {
            INLINE_MAX as u64
        } else {
            CHANNELLESS_INLINE_MAX
        };
    }

    /// The queue in which a slab waits for its next step.
    const fn queue_of(&mut self, is_pushed: bool) -> &mut VecDeque<SlabSeq> {
        if is_pushed {
            &mut self.to_put
        } else {
            &mut self.to_seal
        }
    }

    fn next_seq(&self) -> SlabSeq {
        SlabSeq(self.first.0 + self.slabs.len() as u64)
    }

    fn slab(&self, seq: SlabSeq) -> Option<&Slab> {
        let index = seq.0.checked_sub(self.first.0)?;
        self.slabs.get(usize::try_from(index).ok()?)
    }

    fn slab_mut(&mut self, seq: SlabSeq) -> Option<&mut Slab> {
        let index = seq.0.checked_sub(self.first.0)?;
        self.slabs.get_mut(usize::try_from(index).ok()?)
    }

    /// Returns the content of a slab: each range, and its place.
    pub fn records(&self, seq: SlabSeq) -> impl Iterator<Item = (&Record, Place)> {
        let records = self.slab(seq).map(|slab| slab.records.as_slice());
        records
            .unwrap_or_default()
            .iter()
            .map(|(record, memory, at)| {
                let (memory, at, len) = (*memory, *at, u64::from(record.len));
                (record, Place { memory, at, len })
            })
    }

    /// Sets the checksum of a record that has none, because it contains only a part of a committed
    /// range. Call it before [`Self::announce`].
    pub fn set_crc(&mut self, seq: SlabSeq, index: usize, crc: u32) {
        let slab = self
            .slab_mut(seq)
            .filter(|slab| slab.state == SlabState::Sealed && slab.tries == 0);
        if let Some((record, ..)) = slab.and_then(|slab| slab.records.get_mut(index))
            && record.len > 0
        {
            record.crc = record.crc.or(Some(crc));
        }
    }

    /// Announces a slab with the keys that `key` returns for each place.
    pub fn announce(&mut self, seq: SlabSeq, mut key: impl FnMut(Place) -> Key) {
        let Some(slab) = self
            .slab_mut(seq)
            .filter(|slab| slab.state == SlabState::Sealed)
        else {
            return;
        };
        for (record, memory, at) in &mut slab.records {
            let place = Place {
                memory: *memory,
                at: *at,
                len: u64::from(record.len),
            };
            record.key = if record.len > 0 {
                key(place)
            } else {
                Key::default()
            };
        }
        slab.state = SlabState::Announced;
        self.outgoing.push_back(seq);
    }

    /// Whether a slab's bytes go with its announcement ([`Self::announce_inline`]), because little
    /// is in flight: that saves the wait for a read, and opens no memory.
    #[must_use]
    pub fn is_inline(&self, seq: SlabSeq) -> bool {
        self.slab(seq).is_some_and(|slab| slab.is_inline)
    }

    /// Announces a slab with its bytes: those of all its [records](Self::records), one behind the
    /// other. A slab that is announced again is inline again: the peer does not accept it in
    /// another way.
    pub fn announce_inline(&mut self, seq: SlabSeq, octets: Vec<u8>) {
        let slab = self
            .slab_mut(seq)
            .filter(|slab| slab.state == SlabState::Sealed && slab.bytes == octets.len() as u64);
        if let Some(slab) = slab {
            slab.inline = octets;
            slab.state = SlabState::Announced;
            self.outgoing.push_back(seq);
        }
    }

    /// Messages for the peer.
    pub(crate) fn poll_pdu(&mut self, now: Time) -> Option<Pdu> {
        if let Some(seq) = self.revokes.pop_front() {
            return Some(Pdu::SlabRevoke { seq });
        }
        // A slab that the peer had before a resumption may be complete before it is announced
        // again.
        self.unannounced = self.unannounced.max(self.first);
        while self
            .slab(self.unannounced)
            .is_some_and(|slab| slab.state == SlabState::Done)
        {
            self.unannounced = self.unannounced.next();
        }
        // First announcements are in order, regardless of the order in which slabs became ready.
        while let Some(at) = self
            .outgoing
            .iter()
            .position(|seq| *seq <= self.unannounced)
        {
            let seq = self.outgoing.remove(at)?;
            let state = self.slab(seq).map(|slab| slab.state);
            if state == Some(SlabState::Sealed) {
                // It is written and then announced again; nothing after it is announced before.
                continue;
            }
            self.unannounced = self.unannounced.max(seq.next());
            let Some(slab) = self
                .slab_mut(seq)
                .filter(|slab| slab.state == SlabState::Announced)
            else {
                continue;
            };
            let announce = SlabAnnounce {
                seq,
                last: false,
                grant: false,
                t_us: now.as_ns() / 1_000,
                records: slab.records.iter().map(|(record, _, _)| *record).collect(),
                inline: std::mem::take(&mut slab.inline),
            };
            let is_pushed = slab.is_pushed;
            return Some(if is_pushed {
                Pdu::SlabPushed(announce)
            } else {
                Pdu::SlabAnnounce(announce)
            });
        }
        None
    }

    /// Withdraws a slab that is announced: its connections end with `code`, and its memory is free
    /// once the peer has confirmed that it reads no more.
    pub fn revoke(&mut self, seq: SlabSeq, code: u16) {
        let Some(slab) = self
            .slab_mut(seq)
            .filter(|slab| slab.state != SlabState::Done)
        else {
            return;
        };
        slab.state = SlabState::Revoking;
        let conns: Vec<ConnId> = slab
            .records
            .iter()
            .map(|(record, ..)| record.conn)
            .collect();
        self.revokes.push_back(seq);
        for conn in conns {
            self.discard(conn);
            if let Some(tx) = self.conns.get_mut(&conn) {
                tx.end = Some(End::Reset(code));
                tx.end_packed = true;
            }
        }
    }

    pub(crate) fn on_ack(&mut self, now: Time, ack: &SlabAck) -> Result<(), Breach> {
        if ack.next > self.next_seq() {
            return Err(Breach::NoSlab);
        }
        (self.window_bytes, self.window_slabs) = (ack.window_bytes, ack.window_slabs);
        let before = self.unacked_bytes;
        while self.first < ack.next {
            self.slab_done(self.first)?;
            self.pop_done();
        }
        for (seq, status) in &ack.others {
            let slab = self.slab(*seq).ok_or(Breach::NoSlab)?;
            let is_revoked = slab.state == SlabState::Revoking;
            if *status == SlabStatus::Revoked && !is_revoked && slab.state != SlabState::Done {
                return Err(Breach::NoSlab);
            }
            self.slab_done(*seq)?;
        }
        self.pop_done();
        let round_ns = self.rtt_ns * self.config.mode.round_trips();
        let waits = !self.round.is_empty();
        self.flight
            .on_acked(now, before - self.unacked_bytes, round_ns, waits);
        if self.size.on_time(now, self.rtt_ns, self.ring.used()) {
            self.resize();
        }
        Ok(())
    }

    fn resize(&mut self) {
        let regions = u64::from(self.config.regions);
        self.ring.set_region_bytes(self.size.target() / regions);
    }

    fn pop_done(&mut self) {
        while self
            .slabs
            .front()
            .is_some_and(|slab| slab.state == SlabState::Done)
        {
            self.slabs.pop_front();
            self.first = self.first.next();
        }
    }

    /// The peer has the slab: its memory is free, unless it is kept for the far end.
    fn slab_done(&mut self, seq: SlabSeq) -> Result<(), Breach> {
        let Some(slab) = self.slab_mut(seq) else {
            return Ok(());
        };
        let is_revoked = slab.state == SlabState::Revoking;
        match slab.state {
            SlabState::Done => return Ok(()),
            SlabState::Sealed if slab.tries == 0 => return Err(Breach::NoSlab),
            _ => slab.state = SlabState::Done,
        }
        let records = std::mem::take(&mut slab.records);
        let (bytes, inline_bytes) = (slab.bytes, slab.inline_bytes());
        let is_moved = slab.is_moved();
        self.unacked_bytes -= bytes;
        self.inline_bytes -= inline_bytes;
        self.moved -= usize::from(is_moved);
        self.unacked_records -= records.len();
        self.retired.push_back(seq);
        for (record, memory, at) in records {
            if let Some(tx) = self.conns.get_mut(&record.conn) {
                tx.in_slabs = tx.in_slabs.saturating_sub(1);
                tx.unacked = tx.unacked.saturating_sub(record.len.into());
                tx.end_acked |= record.fin || record.reset.is_some() || is_revoked;
                if tx.end.is_some() {
                    self.touched.push(record.conn);
                }
                let end = record.end();
                while tx
                    .grants
                    .front()
                    .is_some_and(|(at, len, _)| at + len <= end)
                {
                    tx.grants.pop_front();
                }
                if self.config.retain {
                    continue;
                }
            } else if self.config.retain {
                continue;
            }
            let place = Place {
                memory,
                at,
                len: u64::from(record.len),
            };
            self.free(record.conn, record.offset, place);
        }
        Ok(())
    }

    fn free(&mut self, conn: ConnId, offset: u64, place: Place) {
        match place.memory {
            _ if place.len == 0 => {}
            Memory::Region(_) => self.ring.free(conn, place),
            Memory::Foreign => self.released.push_back((conn, offset, place)),
        }
    }

    /// Returns a finished slab: invalidate its keys before any other call, because its memory may
    /// be filled again.
    pub fn poll_retired(&mut self) -> Option<SlabSeq> {
        self.retired.pop_front()
    }

    /// Returns foreign memory that is free again: connection, stream offset, place.
    pub fn poll_released(&mut self) -> Option<(ConnId, u64, Place)> {
        self.released.pop_front()
    }

    pub(crate) fn on_nack(&mut self, seq: SlabSeq) -> Result<(), Breach> {
        let slab = self.slab(seq).ok_or(Breach::NoSlab)?;
        match slab.state {
            SlabState::Announced => self.again(seq),
            SlabState::Sealed if slab.tries == 0 => Err(Breach::NoSlab),
            _ => Ok(()),
        }
    }

    fn again(&mut self, seq: SlabSeq) -> Result<(), Breach> {
        self.attempts += 1;
        let attempt = self.attempts;
        let Some(slab) = self
            .slab_mut(seq)
            .filter(|slab| slab.state != SlabState::Done)
        else {
            return Ok(());
        };
        slab.tries += 1;
        if slab.tries == TRIES_MAX {
            return Err(Breach::Hopeless);
        }
        if slab.state != SlabState::Revoking {
            slab.begin(attempt);
            let is_pushed = slab.is_pushed;
            let queue = self.queue_of(is_pushed);
            if !queue.contains(&seq) {
                queue.push_back(seq);
            }
        }
        Ok(())
    }

    /// The far end has all before `delivered`, which counts the end of the stream as one byte.
    pub(crate) fn on_delivered(&mut self, conn: ConnId, delivered: u64) -> Result<(), Breach> {
        self.on_arrived(conn, delivered)?;
        if let Some(tx) = self.conns.get_mut(&conn) {
            tx.end_told |= tx.end.is_some() && delivered > tx.next;
        }
        Ok(())
    }

    /// The same without the end of the stream. More of a reset stream may have arrived than this
    /// end counts.
    pub(crate) fn on_arrived(&mut self, conn: ConnId, delivered: u64) -> Result<(), Breach> {
        let Some(tx) = self.conns.get_mut(&conn) else {
            return Ok(());
        };
        tx.high = tx.high.max(tx.packed + u64::from(tx.end_packed));
        if delivered > tx.high {
            return Err(Breach::Delivered);
        }
        tx.delivered = tx.delivered.max(delivered);
        let freed = trim(&mut tx.retained, delivered);
        for range in freed {
            self.free(conn, range.offset, range.place);
        }
        Ok(())
    }

    // Measures.

    pub(crate) fn set_rtt(&mut self, rtt_ns: u64) {
        self.rtt_ns = rtt_ns;
        let (regions, mode) = (self.config.regions, self.config.mode);
        self.flight.on_rtt(rtt_ns * mode.round_trips());
        if self.size.on_rtt(rtt_ns, regions, mode) {
            self.resize();
        }
    }

    /// Returns the bytes of the ring that the path may need, if more than half of the ring in use
    /// is occupied; otherwise 0.
    #[must_use]
    pub fn wanted(&self) -> u64 {
        let is_filling = self.ring.used() > self.size.target() / 2;
        if is_filling { self.size.wanted() } else { 0 }
    }

    /// Limits the bytes of the ring in use, from now on.
    pub fn set_most(&mut self, bytes: u64) {
        let regions = u64::from(self.config.regions);
        if self
            .size
            .set_most(bytes.min(self.config.region_bytes * regions))
        {
            self.resize();
        }
    }

    /// Bytes of the ring that are occupied, and bytes of it that are in use at present.
    #[must_use]
    pub fn occupancy(&self) -> (u64, u64) {
        (self.ring.used(), self.size.target())
    }

    /// Bytes that are announced and not acknowledged, and the peer's limit for them; `None` before
    /// its first grant.
    #[must_use]
    pub fn window(&self) -> (u64, Option<u64>) {
        let granted = (self.window_bytes != u64::MAX).then_some(self.window_bytes);
        (self.unacked_bytes, granted)
    }

    /// Slabs that are not acknowledged.
    #[must_use]
    pub fn unacked(&self) -> usize {
        self.slabs.len()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.slabs.is_empty() && self.round.is_empty() && self.little.is_empty()
    }
}

/// A ring needs a region to fill, one to drain, and one in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a ring needs at least three regions, with room in them")]
pub struct TooFewRegions;

#[cfg(test)]
mod tests;
