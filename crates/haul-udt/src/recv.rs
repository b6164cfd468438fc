//! The receiving side of a connection: arrived packets, their placement, and feedback to the
//! sender.
//!
//! Between Longhaul ends a stream packet names its stream offset, so it is placed at once wherever
//! it belongs. Otherwise it takes a slot of the receive window. Feedback is selective to Longhaul
//! ends ([`Receiver::write_feedback`]) and UDT4's ACK, light ACK and NAK to plain ones
//! ([`crate::plain`]).

use haul_cc::Time;
use haul_cc::filter::WindowedMax;
use haul_cc::time::{MICROSECOND_NS, MILLISECOND_NS, SECOND_NS};

use crate::config::{Config, Params, WINDOW_BYTES_MIN};
use crate::error::{Error, Misbehaviour};
use crate::holes::{Arrival, Hole, Holes};
use crate::plain::PlainFeedback;
use crate::seq::{Seq, extend_offset};
use crate::slots::Slots;
use crate::wire::{
    ControlWriter, Data, FEEDBACK_GAP_WORDS_MAX, Feedback, HEADER_LEN, LossRanges, SenderInfo,
    SocketId, SocketKind, push_range,
};

/// Where the payload of an arrived packet belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Stream offset between Longhaul ends, otherwise the position of a slot in the receive memory,
    /// bytes.
    pub position: u64,
    /// Bytes; the payload follows the header of [`HEADER_LEN`] bytes.
    pub len: u32,
}

/// The classification of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// Payload that belongs there and had not arrived before.
    Data(Placement),
    /// Payload that had arrived before, or does not fit: not to be placed.
    Discard,
    /// No payload.
    Control,
}

#[derive(Debug)]
enum Discipline {
    /// Packets name their stream offsets.
    Placed {
        /// Stream offset below which the caller has taken everything.
        consumed: u64,
        window_bytes: u64,
        flight_packets: u64,
        /// Packets have carried enough of their offset for any window.
        wide: bool,
        /// Stream offset from which on the caller has no space, if it has set one
        /// ([`Receiver::limit_room`]).
        room_end: Option<u64>,
    },
    /// Packets take slots.
    Slotted(Slots),
}

/// The receiving side.
#[derive(Debug)]
pub(crate) struct Receiver {
    params: Params,
    lower_len: u64,
    holes: Holes,
    discipline: Discipline,
    plain: Option<PlainFeedback>,
    /// The packet without payload that ends the stream, once it has come.
    end: Option<u64>,
    /// Payload bytes that were given a place.
    placed_bytes: u64,
    /// Packets dropped for lack of space; wraps.
    refused: u32,
    /// Number of the latest sender info.
    probe: u32,
    arrivals: Arrivals,
    schedule: Schedule,
    /// The last drop request of a plain peer: message and last packet.
    last_drop: Option<(u32, u64)>,
}

/// Facts that selective feedback reports.
#[derive(Debug)]
struct Arrivals {
    bytes: u64,
    packets: u64,
    last_at: Time,
    /// The packet that arrived last, and when this end saw it.
    echo: (u64, Time),
    duplicates: u32,
    marked: u32,
    reorder_us: WindowedMax,
    train: Train,
}

/// Dispersion of packets that were sent back to back: the connection's first, until the sender
/// announces a train.
#[derive(Debug)]
struct Train {
    from: u64,
    started: Option<Time>,
    bytes: u32,
    ns: u32,
}

/// When to send selective feedback.
#[derive(Debug)]
struct Schedule {
    number: u32,
    interval_ns: u64,
    due: Option<Time>,
    written_at: Time,
    /// Repetitions of unchanged feedback still to send, in case feedback was lost.
    repeats: u32,
    /// Where the next rotating report of old gaps begins.
    cursor: u64,
    /// The latest report did not list everything …
    is_partial: bool,
    /// … and was written when so many wire bytes had arrived.
    written_bytes: u64,
    /// Stream offset, and packet of the slots, up to which the sender was last allowed to go.
    limit_reported: u64,
    packet_limit_reported: u64,
}

/// Packets of a train.
const TRAIN_PACKETS: u64 = 64;
/// The feedback interval until the sender has requested one.
const INTERVAL_NS_INITIAL: u64 = 2 * MILLISECOND_NS;
const INTERVAL_NS_MIN: u64 = 50 * MICROSECOND_NS;
const INTERVAL_NS_MAX: u64 = 100 * MILLISECOND_NS;
const REPEATS: u32 = 2;
/// The longest window where packets carry 32 bits of their offset: a quarter of the range.
const NARROW_WINDOW_BYTES: u64 = 1 << 30;
/// The longest window where they carry 59.
const WINDOW_BYTES_MAX: u64 = 1 << 57;
/// Bytes of a window for which one more gap is kept.
const WINDOW_BYTES_PER_HOLE: u64 = 32 << 10;
/// Between reports that follow at once, so many wire bytes of data arrive: 500 times a report's.
const EXTRA_REPORT_BYTES: u64 = 600 << 10;
const REORDER_WINDOW_NS: u64 = 5 * SECOND_NS;

impl Receiver {
    pub(crate) fn new(config: &Config, params: Params, first: u64) -> Self {
        let placed = params.placement && config.kind == SocketKind::Stream;
        let discipline = if placed {
            Discipline::Placed {
                consumed: 0,
                window_bytes: config
                    .receive_window_bytes
                    .clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX),
                flight_packets: u64::from(config.flight_packets),
                wide: false,
                room_end: None,
            }
        } else {
            Discipline::Slotted(Slots::new(
                first,
                config.receive_slots(),
                params.payload_len_max,
                !params.placement,
            ))
        };
        let memory_bytes = match &discipline {
            Discipline::Placed { window_bytes, .. } => *window_bytes,
            Discipline::Slotted(slots) => slots.memory_bytes(),
        };
        let holes_max = usize::try_from(memory_bytes / WINDOW_BYTES_PER_HOLE).unwrap_or(usize::MAX);
        Self {
            params,
            lower_len: u64::from(config.lower_len),
            holes: Holes::new(first, holes_max),
            discipline,
            plain: (!params.placement).then(|| PlainFeedback::new(first)),
            end: None,
            placed_bytes: 0,
            refused: 0,
            probe: 0,
            arrivals: Arrivals {
                bytes: 0,
                packets: 0,
                last_at: Time::ZERO,
                echo: (first, Time::ZERO),
                duplicates: 0,
                marked: 0,
                reorder_us: WindowedMax::new(REORDER_WINDOW_NS),
                train: Train::new(first),
            },
            schedule: Schedule {
                number: 0,
                interval_ns: INTERVAL_NS_INITIAL,
                due: None,
                written_at: Time::ZERO,
                repeats: 0,
                cursor: first,
                is_partial: false,
                written_bytes: 0,
                limit_reported: 0,
                packet_limit_reported: 0,
            },
            last_drop: None,
        }
    }

    /// A data packet of `payload_len` bytes was seen at `now`; it had reached this host at
    /// `arrived`.
    pub(crate) fn handle_data(
        &mut self,
        now: Time,
        arrived: Time,
        data: &Data,
        payload_len: usize,
    ) -> Result<Received, Error> {
        let len = u32::try_from(payload_len).unwrap_or(u32::MAX);
        let ends = len == 0;
        if (ends && !self.params.finish) || len > self.params.payload_len_max {
            return Err(Error::PeerMisbehaved(Misbehaviour::Oversized));
        }
        let prompt = self.params.placement && data.prompt();
        let number = data.seq.extend(self.holes.next());
        let wire_bytes = u64::from(len) + HEADER_LEN as u64 + self.lower_len;
        self.arrivals.take(arrived, wire_bytes);
        if !data.resent() {
            self.arrivals.train.take(arrived, number, wire_bytes);
        }
        if let Some(plain) = &mut self.plain {
            plain.estimator.take(arrived, number, data.seq.get());
        }
        if number < self.holes.next() {
            return Ok(self.duplicate(now, prompt));
        }
        // A packet below the highest number belongs in a gap, with later ones already there.
        let behind_end = match self.end {
            Some(end) => number > end,
            None => ends && number < self.holes.highest(),
        };
        if behind_end {
            return Err(Error::PeerMisbehaved(Misbehaviour::BehindEnd));
        }
        let placement = match self.judge(number, data, len)? {
            Some((offset, len)) => self.holes.take(now, number, offset, len),
            None => {
                self.refused = self.refused.wrapping_add(1);
                self.note_news(now, prompt);
                return Ok(Received::Discard);
            }
        };
        match placement {
            Arrival::Duplicate => return Ok(self.duplicate(now, prompt)),
            Arrival::Refused => {
                self.refused = self.refused.wrapping_add(1);
                return Ok(Received::Discard);
            }
            Arrival::Contradiction => return Err(Error::PeerMisbehaved(Misbehaviour::Offset)),
            Arrival::Filled(noticed) if self.params.placement && !data.resent() => {
                let late_us = now.since(noticed) / MICROSECOND_NS;
                self.arrivals.reorder_us.update(now, late_us);
            }
            Arrival::Ahead => {
                if let Some(plain) = &mut self.plain {
                    plain.nak_due = true;
                }
            }
            Arrival::Filled(_) | Arrival::Next => {}
        }
        self.arrivals.echo = (number, now);
        self.note_news(now, prompt);
        if ends {
            self.end = Some(number);
            return Ok(Received::Control);
        }
        self.placed_bytes += u64::from(len);
        Ok(Received::Data(self.place(number, data, len)))
    }

    /// Notes that so many of the next packets were marked.
    pub(crate) fn note_marks(&mut self, packets: u32) {
        self.arrivals.marked = self.arrivals.marked.wrapping_add(packets);
    }

    /// Checks that the packet fits into the offered window. Returns its stream offset and length
    /// (both zero where packets take slots), or `None` if it lies beyond the window.
    fn judge(&self, number: u64, data: &Data, len: u32) -> Result<Option<(u64, u64)>, Error> {
        match &self.discipline {
            Discipline::Placed { flight_packets, .. } => {
                let offset = extend_offset(data.offset(), self.holes.offset_highest());
                if number >= self.holes.next() + flight_packets
                    || offset + u64::from(len) > self.offset_limit()
                {
                    return Err(Error::PeerMisbehaved(Misbehaviour::BeyondWindow));
                }
                Ok(Some((offset, u64::from(len))))
            }
            // A plain sender knows the window only from ACKs and may overrun it.
            Discipline::Slotted(slots) => Ok((number < slots.limit()).then_some((0, 0))),
        }
    }

    fn place(&mut self, number: u64, data: &Data, len: u32) -> Placement {
        match &mut self.discipline {
            Discipline::Placed { wide, .. } => {
                *wide |= data.is_wide();
                let position = extend_offset(data.offset(), self.holes.offset_highest());
                Placement { position, len }
            }
            Discipline::Slotted(slots) => {
                let message = if self.params.placement {
                    data.message_extended()
                } else {
                    data.message
                };
                let piece = slots.put(number, data, message, len);
                Placement {
                    position: piece.position,
                    len: piece.len,
                }
            }
        }
    }

    fn duplicate(&mut self, now: Time, prompt: bool) -> Received {
        self.arrivals.duplicates = self.arrivals.duplicates.wrapping_add(1);
        self.note_news(now, prompt);
        Received::Discard
    }

    /// `prompt`: the sender waits for feedback. Requests and responses in quick succession share
    /// one packet of feedback.
    fn note_news(&mut self, now: Time, prompt: bool) {
        let schedule = &mut self.schedule;
        let arrived_bytes = self.arrivals.bytes - schedule.written_bytes;
        let goes_on = schedule.is_partial && arrived_bytes >= EXTRA_REPORT_BYTES;
        let due = if self.arrivals.packets <= 2 * TRAIN_PACKETS {
            now
        } else if prompt || goes_on {
            now.max(schedule.written_at.after(INTERVAL_NS_MIN))
        } else {
            now.after(schedule.interval_ns)
        };
        schedule.due = Some(schedule.due.map_or(due, |old| old.min(due)));
        schedule.repeats = REPEATS;
    }

    /// The sender gave up packets of `message`.
    pub(crate) fn handle_drop(
        &mut self,
        now: Time,
        message: u32,
        first: Seq,
        last: Seq,
    ) -> Result<(), Error> {
        let Discipline::Slotted(slots) = &mut self.discipline else {
            return Err(Error::PeerMisbehaved(Misbehaviour::OutOfPlace));
        };
        let first = first.extend(self.holes.next());
        let last = last.extend(first);
        if last < first || last > slots.limit() {
            return Err(Error::PeerMisbehaved(Misbehaviour::BeyondWindow));
        }
        // libudt names one packet too many, which belongs to the next message. It never repeats
        // itself; a peer that does means the number literally.
        let repeated = self.last_drop.replace((message, last)) == Some((message, last));
        let spare_last = !self.params.placement && last > first && !repeated;
        let end = if spare_last { last } else { last + 1 };
        let base = slots.limit() - slots.capacity();
        for number in first.max(base)..end.min(slots.limit()) {
            if slots.may_drop(number, message) {
                self.holes.give_up(now, number, number);
                slots.drop_packet(number);
            }
        }
        self.note_news(now, false);
        Ok(())
    }

    /// A sender without window repeats its request, so the reply is the current window.
    pub(crate) fn handle_sender_info(&mut self, now: Time, info: SenderInfo) {
        self.probe = info.number;
        let wished_ns = u64::from(info.feedback_interval_us) * MICROSECOND_NS;
        self.schedule.interval_ns = wished_ns.clamp(INTERVAL_NS_MIN, INTERVAL_NS_MAX);
        self.schedule.due = Some(now);
        let train_from = info.train_from.extend(self.holes.next());
        if train_from != self.arrivals.train.from {
            self.arrivals.train = Train::new(train_from);
        }
    }

    /// Stream offset below which everything has arrived; only where packets are placed.
    pub(crate) fn delivered_offset(&self) -> u64 {
        self.holes.offset_next()
    }

    /// The stream has ended, and all of it has arrived.
    pub(crate) fn is_finished(&self) -> bool {
        self.end.is_some_and(|end| end < self.holes.next())
    }

    /// The caller took (or no longer needs to keep) everything below stream offset `to`.
    pub(crate) fn consume(&mut self, now: Time, to: u64) {
        let Discipline::Placed { consumed, .. } = &mut self.discipline else {
            return;
        };
        *consumed = to.max(*consumed);
        let step = self.offset_window() / 4;
        self.note_limit(now, step);
    }

    /// The caller holds `held` payload bytes that arrived, and can hold `most` at a time: the
    /// sender may go no further than that. Earlier offers remain valid.
    pub(crate) fn limit_room(&mut self, now: Time, held: u64, most: u64) {
        let least = self.schedule.limit_reported.max(WINDOW_BYTES_MIN);
        let end = self.placed_bytes + most.saturating_sub(held);
        let Discipline::Placed { room_end, .. } = &mut self.discipline else {
            return;
        };
        *room_end = Some(end.max(room_end.unwrap_or(least)));
        self.note_limit(now, most / 4);
    }

    /// Stream offset from which on payload is not taken.
    fn offset_limit(&self) -> u64 {
        match &self.discipline {
            Discipline::Placed {
                consumed, room_end, ..
            } => (consumed + self.offset_window()).min(room_end.unwrap_or(u64::MAX)),
            Discipline::Slotted(_) => u64::MAX,
        }
    }

    /// Stream bytes beyond the last one consumed that are taken.
    fn offset_window(&self) -> u64 {
        match &self.discipline {
            Discipline::Placed {
                window_bytes, wide, ..
            } if *wide => *window_bytes,
            Discipline::Placed { window_bytes, .. } => NARROW_WINDOW_BYTES.min(*window_bytes),
            Discipline::Slotted(_) => u64::MAX,
        }
    }

    /// Announces a limit that has moved by more than `step` to the sender.
    fn note_limit(&mut self, now: Time, step: u64) {
        let limit = self.offset_limit();
        if limit.saturating_sub(self.schedule.limit_reported) > step {
            self.schedule.due = Some(now);
            self.schedule.repeats = REPEATS;
        }
    }

    /// The caller freed slots: announces the space to a Longhaul sender that waits for it.
    pub(crate) fn note_room(&mut self) {
        let Discipline::Slotted(slots) = &self.discipline else {
            return;
        };
        let (limit, reported) = (slots.limit(), self.schedule.packet_limit_reported);
        if self.params.placement && reported > 0 && limit - reported > slots.capacity() / 4 {
            self.schedule.due = Some(Time::ZERO);
            self.schedule.repeats = REPEATS;
        }
    }

    pub(crate) fn slots(&mut self) -> Option<&mut Slots> {
        match &mut self.discipline {
            Discipline::Slotted(slots) => Some(slots),
            Discipline::Placed { .. } => None,
        }
    }

    pub(crate) fn stats(&self) -> (u64, u64, u32) {
        (
            self.arrivals.packets,
            self.arrivals.bytes,
            self.arrivals.duplicates,
        )
    }

    /// The feedback state of a plain peer, with the parts of the receiver that it needs.
    pub(crate) fn plain(&mut self) -> Option<(&mut PlainFeedback, &mut Holes, u64)> {
        let free = match &self.discipline {
            Discipline::Slotted(slots) => slots.free_slots(self.holes.next()),
            Discipline::Placed { .. } => 0,
        };
        self.plain
            .as_mut()
            .map(|plain| (plain, &mut self.holes, free))
    }

    /// When an ACK or NAK for a plain peer may be due.
    pub(crate) fn plain_due(&self) -> Option<Time> {
        self.plain.as_ref().and_then(|plain| plain.due(&self.holes))
    }

    /// Returns when [`Receiver::write_feedback`] is to be called.
    pub(crate) fn feedback_due(&self) -> Option<Time> {
        self.schedule.due.filter(|_| self.plain.is_none())
    }

    /// Writes selective feedback.
    pub(crate) fn write_feedback(&mut self, now: Time, peer: SocketId, out: &mut Vec<u8>) {
        let schedule = &mut self.schedule;
        schedule.number = schedule.number.wrapping_add(1);
        schedule.due = None;
        schedule.written_at = now;
        if schedule.repeats > 0 {
            schedule.repeats -= 1;
            schedule.due = Some(now.after(2 * schedule.interval_ns));
        }
        let (covered_from, covered_to) = self.coverage();
        let all = (self.holes.next(), self.holes.highest());
        self.schedule.is_partial = (covered_from, covered_to) != all;
        self.schedule.written_bytes = self.arrivals.bytes;
        let packet_limit = match &self.discipline {
            Discipline::Placed { flight_packets, .. } => self.holes.next() + flight_packets,
            Discipline::Slotted(slots) => slots.limit(),
        };
        let offset_limit = self.offset_limit();
        self.schedule.limit_reported = offset_limit;
        self.schedule.packet_limit_reported = packet_limit;
        let (echo, echo_at) = self.arrivals.echo;
        let age_us = now.since(echo_at) / MICROSECOND_NS;
        let fixed = Feedback {
            number: self.schedule.number,
            next: Seq::of(self.holes.next()),
            highest: Seq::of(self.holes.highest()),
            echo: Seq::of(echo),
            echo_age_us: u32::try_from(age_us).unwrap_or(u32::MAX),
            arrived_bytes: self.arrivals.bytes,
            arrived_at_ns: self.arrivals.last_at.as_ns(),
            packet_limit: Seq::of(packet_limit),
            offset_limit,
            duplicates: self.arrivals.duplicates,
            reorder_us: self.reorder_us(),
            train_from: Seq::of(self.arrivals.train.from),
            train_bytes: self.arrivals.train.bytes,
            train_ns: self.arrivals.train.ns,
            marked_packets: self.arrivals.marked,
            probe: self.probe,
            refused: self.refused,
            covered_from: Seq::of(covered_from),
            covered_to: Seq::of(covered_to),
            gaps: LossRanges::NONE,
        };
        ControlWriter::new(out, peer).feedback(fixed.number, &fixed);
        let listed = self.holes.iter_from(covered_from);
        for hole in listed.take_while(|hole| hole.start < covered_to) {
            push_range(out, hole.start, hole.end - 1);
        }
    }

    fn reorder_us(&self) -> u32 {
        let us = self.arrivals.reorder_us.value().unwrap_or(0);
        u32::try_from(us).unwrap_or(u32::MAX)
    }

    /// The part of the window that the next feedback lists: all of it, or, where too much is
    /// missing, by turns the newest part and the older ones.
    fn coverage(&mut self) -> (u64, u64) {
        let (next, highest) = (self.holes.next(), self.holes.highest());
        let mut words = 0;
        let mut is_too_much = |hole: &&Hole| {
            words += if hole.end - hole.start > 1 { 2 } else { 1 };
            words > FEEDBACK_GAP_WORDS_MAX
        };
        if !self.schedule.number.is_multiple_of(2) {
            let cut = self.holes.iter().rev().find(is_too_much);
            return (cut.map_or(next, |hole| hole.end), highest);
        }
        let from = if self.schedule.cursor >= highest {
            next
        } else {
            self.schedule.cursor.max(next)
        };
        let mut rest = self.holes.iter_from(from).peekable();
        let from = rest.peek().map_or(from, |hole| hole.start.min(from));
        let cut = rest.find(&mut is_too_much);
        self.schedule.cursor = cut.map_or(0, |hole| hole.start);
        (from, cut.map_or(highest, |hole| hole.start))
    }
}

impl Arrivals {
    fn take(&mut self, arrived: Time, wire_bytes: u64) {
        self.bytes += wire_bytes;
        self.packets += 1;
        self.last_at = self.last_at.max(arrived);
    }
}

impl Train {
    fn new(from: u64) -> Self {
        Self {
            from,
            started: None,
            bytes: 0,
            ns: 0,
        }
    }

    fn take(&mut self, arrived: Time, number: u64, wire_bytes: u64) {
        let place = number.checked_sub(self.from);
        if place.is_none_or(|place| place >= TRAIN_PACKETS) {
            return;
        }
        let started = *self.started.get_or_insert(arrived);
        let ns = arrived.since(started);
        if ns > 0 {
            self.bytes = self
                .bytes
                .saturating_add(u32::try_from(wire_bytes).unwrap_or(0));
            self.ns = u32::try_from(ns).unwrap_or(u32::MAX);
        }
    }
}
