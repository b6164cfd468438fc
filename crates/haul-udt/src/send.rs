//! The sending side of a connection: queued data, packets in flight, packets to retransmit.
//!
//! Payload is named, never held: bytes have positions in the send space (the stream offset, or
//! where a message was appended), and the caller keeps `released()..` readable.

use std::collections::VecDeque;

use haul_cc::Time;

use crate::config::{Params, WINDOW_BYTES_MIN};
use crate::error::{Error, Misbehaviour, SendError};
use crate::gaps::Gaps;
use crate::plain::WINDOW_MIN;
use crate::seq::Seq;
use crate::wire::{Data, Feedback, LossRanges, MESSAGE_MAX_PLACEMENT, SocketId, SocketKind};

/// The sending side.
#[derive(Debug)]
pub(crate) struct Sender {
    kind: SocketKind,
    params: Params,
    wire_overhead: u64,
    peer: SocketId,
    started: Time,
    /// Packets from `first` on that are sent and not cumulatively acknowledged.
    packets: VecDeque<Packet>,
    first: u64,
    /// Number of the first packet of all.
    start: u64,
    /// Stream: end of the written data, and of the data that may go in short packets.
    written: u64,
    pushed: u64,
    finish: Finish,
    /// Position of the next new packet.
    position: u64,
    messages: VecDeque<MessageOut>,
    next_message: u32,
    lost: VecDeque<u64>,
    /// Packets below `reported` that the peer lacks, ascending. Selective feedback only.
    missing: Vec<u64>,
    /// One past the highest packet that feedback has covered.
    reported: u64,
    /// When the most recently sent packet that arrived had been sent (RFC 8985 `RACK.xmit_ts`).
    newest_delivered: Time,
    limits: Limits,
    in_flight_bytes: u64,
    totals: SendTotals,
    told: Told,
    /// Stream: payload of a packet at most.
    full: u32,
    /// Longest packet that was retransmitted more than once lately, payload bytes.
    stuck: u32,
}

/// The end of this direction of the stream: a packet without payload behind all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finish {
    No,
    Wanted,
    Sent,
}

/// How far the peer lets us go.
#[derive(Debug)]
struct Limits {
    /// Packets from here on would not be taken.
    packet: u64,
    /// Stream offset from which on payload would not be taken.
    offset: u64,
}

/// Counters of the sending side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SendTotals {
    /// Data packets sent, repeats included.
    pub packets: u64,
    /// Payload bytes sent, repeats included.
    pub payload_bytes: u64,
    /// Data packets retransmitted.
    pub resent_packets: u64,
    /// Payload bytes retransmitted.
    pub resent_bytes: u64,
    /// Packets declared lost.
    pub lost_packets: u64,
    /// Of `resent_bytes`, those whose original had only been late.
    pub reordered_bytes: u64,
    /// Of `resent_bytes`, those that the receiver's buffer could not hold.
    pub refused_bytes: u64,
    /// Of `resent_bytes`, those sent after a timeout.
    pub timer_bytes: u64,
    /// Messages given up because their time to live had passed.
    pub dropped_messages: u64,
}

impl SendTotals {
    /// Returns those of `resent_bytes` that the path lost.
    #[must_use]
    pub fn path_lost_bytes(&self) -> u64 {
        self.resent_bytes
            .saturating_sub(self.reordered_bytes + self.refused_bytes + self.timer_bytes)
    }
}

/// The peer's counts of packets that arrived in vain, since the start.
#[derive(Debug, Default)]
struct Told {
    duplicates: u32,
    refused: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    InFlight,
    /// Declared lost; queued to be retransmitted.
    Lost,
    Delivered,
    /// Its message was given up; a message drop request was sent.
    GivenUp,
    /// Its message was given up; queued to repeat the message drop request.
    Retell,
}

#[derive(Debug, Clone, Copy)]
struct Packet {
    position: u64,
    sent: Time,
    message: u32,
    /// Offset of the payload within its message.
    message_offset: u32,
    expires: Option<Expiry>,
    len: u16,
    state: State,
    transmissions: u8,
    /// A timer declared it lost.
    by_timer: bool,
    first: bool,
    last: bool,
    in_order: bool,
}

/// Milliseconds since the connection began, after which a message is stale.
#[derive(Debug, Clone, Copy)]
struct Expiry(u32);

#[derive(Debug)]
struct MessageOut {
    number: u32,
    len: u64,
    sent: u64,
    in_order: bool,
    expires: Option<Expiry>,
}

/// The packet to put on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Emit {
    Data {
        header: Data,
        position: u64,
        len: u32,
    },
    DropRequest {
        message: u32,
        first: u64,
        last: u64,
    },
}

/// The outcome of feedback.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Progress {
    pub(crate) acked_bytes: u64,
    pub(crate) lost_bytes: u64,
    pub(crate) first_lost: u64,
    /// Time since the echoed packet was sent, if it was sent once only.
    pub(crate) echo_ns: Option<u64>,
}

const MESSAGE_MAX_PLAIN: u32 = 0x1fff_ffff;
const THIN_PACKETS: usize = 16;
const MILLISECOND_NS: u64 = haul_cc::time::MILLISECOND_NS;

impl Sender {
    pub(crate) fn new(
        now: Time,
        kind: SocketKind,
        params: Params,
        wire_overhead: u64,
        peer: SocketId,
        first: u64,
    ) -> Self {
        Self {
            kind,
            params,
            wire_overhead,
            peer,
            started: now,
            packets: VecDeque::new(),
            first,
            start: first,
            written: 0,
            pushed: 0,
            finish: Finish::No,
            position: 0,
            messages: VecDeque::new(),
            next_message: 1,
            lost: VecDeque::new(),
            missing: Vec::new(),
            reported: first,
            newest_delivered: Time::ZERO,
            limits: Limits {
                packet: first + u64::from(params.peer_flight_packets),
                // Plain UDT4 counts packets only.
                offset: if params.placement {
                    WINDOW_BYTES_MIN
                } else {
                    u64::MAX
                },
            },
            in_flight_bytes: 0,
            totals: SendTotals::default(),
            told: Told::default(),
            full: params.payload_len,
            stuck: 0,
        }
    }

    // ---- commands

    pub(crate) fn write(&mut self, bytes: u64, push: bool) -> Result<(), SendError> {
        if self.kind != SocketKind::Stream {
            return Err(SendError::WrongKind);
        }
        if bytes > 0 && self.finish != Finish::No {
            return Err(SendError::Closed);
        }
        self.written += bytes;
        if push {
            self.pushed = self.written;
        }
        Ok(())
    }

    /// Ends this direction of the stream. Streams only.
    pub(crate) fn finish(&mut self) {
        self.pushed = self.written;
        if self.finish == Finish::No {
            self.finish = Finish::Wanted;
        }
    }

    pub(crate) fn send_message(
        &mut self,
        now: Time,
        len: u64,
        in_order: bool,
        ttl_ns: Option<u64>,
    ) -> Result<u32, SendError> {
        if self.kind != SocketKind::Datagram {
            return Err(SendError::WrongKind);
        }
        let max = u64::from(self.params.payload_len) * u64::from(self.params.peer_flight_packets);
        if len == 0 || len > max {
            return Err(SendError::Size { max });
        }
        let number = self.next_message;
        let wrap = if self.params.placement {
            MESSAGE_MAX_PLACEMENT
        } else {
            MESSAGE_MAX_PLAIN
        };
        self.next_message = number % wrap + 1;
        let expires = ttl_ns.map(|ttl| Expiry(self.millis(now.after(ttl))));
        self.messages.push_back(MessageOut {
            number,
            len,
            sent: 0,
            in_order,
            expires,
        });
        Ok(number)
    }

    /// Stream: packets that are sent from now on carry at most `bytes`.
    pub(crate) fn set_full_len(&mut self, bytes: u32) {
        self.full = bytes;
    }

    /// Whether packets with more than `bytes` of payload were retransmitted more than once since
    /// this was last asked.
    pub(crate) fn take_stuck(&mut self, bytes: u32) -> bool {
        std::mem::take(&mut self.stuck) > bytes
    }

    /// Packets in flight with more than `bytes` of payload are lost: the path does not carry them.
    pub(crate) fn lose_longer(&mut self, bytes: u32) {
        for number in self.first..self.next_packet() {
            let is_longer = |packet: &Packet| u32::from(packet.len) > bytes;
            if self.get(number).is_some_and(is_longer) {
                self.mark_lost(number, &mut Progress::default());
            }
        }
    }

    // ---- getters

    /// Payload of a full packet, bytes.
    pub(crate) fn full_len(&self) -> u32 {
        self.full
    }

    pub(crate) fn is_stream(&self) -> bool {
        self.kind == SocketKind::Stream
    }

    /// Send space below this position need not be kept.
    pub(crate) fn released(&self) -> u64 {
        self.packets
            .front()
            .map_or(self.position, |packet| packet.position)
    }

    /// Packets that are cumulatively acknowledged.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.first - self.start
    }

    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.packets.is_empty() && !self.has_fresh()
    }

    pub(crate) fn has_unacknowledged(&self) -> bool {
        !self.packets.is_empty()
    }

    /// So few packets are unacknowledged that feedback on each costs little.
    pub(crate) fn is_thin(&self) -> bool {
        self.packets.len() <= THIN_PACKETS
    }

    pub(crate) fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes
    }

    /// When the most recently sent packet that arrived had been sent.
    pub(crate) fn newest_delivered(&self) -> Time {
        self.newest_delivered
    }

    pub(crate) fn next_packet(&self) -> u64 {
        self.first + self.packets.len() as u64
    }

    pub(crate) fn totals(&self) -> SendTotals {
        let resent = self.totals.resent_bytes - self.totals.timer_bytes;
        let bytes = |packets: u32| u64::from(packets) * u64::from(self.full);
        let refused_bytes = bytes(self.told.refused).min(resent);
        SendTotals {
            refused_bytes,
            reordered_bytes: bytes(self.told.duplicates).min(resent - refused_bytes),
            ..self.totals
        }
    }

    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Bytes that wait to be sent for the first time are at least so many.
    pub(crate) fn has_backlog(&self, bytes: u64) -> bool {
        let mut waiting = self.written.saturating_sub(self.position);
        let mut messages = self.messages.iter();
        while waiting < bytes {
            let Some(message) = messages.next() else {
                return false;
            };
            waiting += message.len - message.sent;
        }
        true
    }

    /// Whether new payload is queued and within the peer's limits.
    pub(crate) fn has_sendable(&self) -> bool {
        self.fresh_len().is_some()
    }

    /// All that was sent has arrived, and the peer's limits keep the rest back.
    pub(crate) fn is_blocked(&self) -> bool {
        self.packets.is_empty() && self.has_fresh() && self.fresh_len().is_none()
    }

    /// The peer reports that its buffer is full: a plain peer's window is [`WINDOW_MIN`] then.
    pub(crate) fn is_shut(&self) -> bool {
        self.limits.packet <= self.first + WINDOW_MIN
    }

    pub(crate) fn has_fresh(&self) -> bool {
        self.position < self.written || !self.messages.is_empty() || self.finish == Finish::Wanted
    }

    // ---- output

    /// The next packet: lost ones first, oldest first.
    pub(crate) fn emit(&mut self, now: Time) -> Option<Emit> {
        while let Some(&number) = self.lost.front() {
            self.lost.pop_front();
            if let Some(emit) = self.resend(now, number) {
                return Some(emit);
            }
        }
        self.fresh(now)
    }

    /// Length of the payload that [`Sender::emit`] would name next, to keep segments of a batch
    /// alike.
    pub(crate) fn peek_len(&mut self, now: Time) -> Option<u32> {
        self.skip_stale(now);
        while let Some(&number) = self.lost.front() {
            let waiting = |packet: &&Packet| matches!(packet.state, State::Lost | State::Retell);
            if let Some(packet) = self.get(number).filter(waiting) {
                return Some(u32::from(packet.len));
            }
            // It has arrived after all.
            self.lost.pop_front();
        }
        self.fresh_len()
    }

    fn resend(&mut self, now: Time, number: u64) -> Option<Emit> {
        let expired_by = self.millis(now);
        let packet = self.get(number)?;
        if !matches!(packet.state, State::Lost | State::Retell) {
            return None;
        }
        if packet.state == State::Retell || packet.expires.is_some_and(|at| at.0 < expired_by) {
            return Some(self.give_up(now, number));
        }
        let index = self.index(number)?;
        let packet = &mut self.packets[index];
        packet.state = State::InFlight;
        packet.sent = now;
        packet.transmissions = packet.transmissions.saturating_add(1);
        let packet = *packet;
        if packet.transmissions > 2 {
            self.stuck = self.stuck.max(packet.len.into());
        }
        if packet.by_timer {
            self.totals.timer_bytes += u64::from(packet.len);
        }
        self.totals.resent_packets += 1;
        self.totals.resent_bytes += u64::from(packet.len);
        Some(self.count(now, number, &packet))
    }

    fn fresh(&mut self, now: Time) -> Option<Emit> {
        self.skip_stale(now);
        let len = self.fresh_len()?;
        let mut packet = Packet {
            position: self.position,
            sent: now,
            message: self.next_message,
            message_offset: 0,
            expires: None,
            len: u16::try_from(len).ok()?,
            state: State::InFlight,
            transmissions: 1,
            by_timer: false,
            first: true,
            last: true,
            in_order: true,
        };
        if let Some(message) = self.messages.front_mut() {
            packet.message = message.number;
            packet.message_offset = u32::try_from(message.sent).unwrap_or(u32::MAX);
            packet.expires = message.expires;
            packet.in_order = message.in_order;
            packet.first = message.sent == 0;
            message.sent += u64::from(len);
            packet.last = message.sent == message.len;
            if packet.last {
                self.messages.pop_front();
            }
        } else {
            // libudt numbers each send() call; its receiver ignores the number in stream mode.
            self.next_message = self.next_message % MESSAGE_MAX_PLACEMENT + 1;
        }
        if len == 0 {
            self.finish = Finish::Sent;
        }
        self.position += u64::from(len);
        let number = self.next_packet();
        self.packets.push_back(packet);
        Some(self.count(now, number, &packet))
    }

    /// Messages whose time passed before any packet of theirs was sent leave no trace on the wire.
    fn skip_stale(&mut self, now: Time) {
        let millis = self.millis(now);
        let stale = |message: &MessageOut| {
            message.sent == 0 && message.expires.is_some_and(|at| at.0 < millis)
        };
        while let Some(message) = self.messages.front().filter(|&message| stale(message)) {
            self.position += message.len;
            self.totals.dropped_messages += 1;
            self.messages.pop_front();
        }
    }

    fn fresh_len(&self) -> Option<u32> {
        if self.next_packet() >= self.limits.packet {
            return None;
        }
        if let Some(message) = self.messages.front() {
            let most = self.params.payload_len;
            let rest = u32::try_from(message.len - message.sent);
            return Some(rest.map_or(most, |rest| rest.min(most)));
        }
        let available = self
            .written
            .min(self.limits.offset)
            .saturating_sub(self.position);
        let short_allowed = self.pushed > self.position || self.packets.is_empty();
        if available >= u64::from(self.full) {
            Some(self.full)
        } else if available > 0 && short_allowed && self.position + available == self.written {
            u32::try_from(available).ok()
        } else if self.finish == Finish::Wanted && self.position == self.written {
            Some(0)
        } else {
            None
        }
    }

    fn count(&mut self, now: Time, number: u64, packet: &Packet) -> Emit {
        self.in_flight_bytes += u64::from(packet.len) + self.wire_overhead;
        self.totals.packets += 1;
        self.totals.payload_bytes += u64::from(packet.len);
        Emit::Data {
            header: self.header(now, number, packet),
            position: packet.position,
            len: u32::from(packet.len),
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the wire carries lower halves"
    )]
    fn header(&self, now: Time, number: u64, packet: &Packet) -> Data {
        let resent = packet.transmissions > 1;
        let (last, message, word2) = match (self.params.placement, self.kind) {
            (true, SocketKind::Stream) => Data::of_offset(packet.position, resent),
            (true, SocketKind::Datagram) => {
                let message = Data::mark(packet.message, resent);
                (packet.last, message, packet.message_offset)
            }
            (false, _) => {
                let sent_us = now.since(self.started) / 1_000;
                (packet.last, packet.message, sent_us as u32)
            }
        };
        Data {
            seq: Seq::of(number),
            first: packet.first,
            last,
            in_order: packet.in_order,
            message,
            word2,
            destination: self.peer,
        }
    }

    /// Gives up the message that packet `number` belongs to.
    fn give_up(&mut self, now: Time, number: u64) -> Emit {
        let message = self.get(number).map_or(0, |packet| packet.message);
        let same = |packet: &Packet| packet.message == message;
        let (mut first, mut last) = (number, number);
        while first > self.first && self.get(first - 1).is_some_and(same) {
            first -= 1;
        }
        while self.get(last + 1).is_some_and(same) {
            last += 1;
        }
        let mut newly = false;
        for number in first..=last {
            let Some(index) = self.index(number) else {
                continue;
            };
            let packet = &mut self.packets[index];
            if packet.state == State::Delivered {
                continue;
            }
            newly |= !matches!(packet.state, State::GivenUp | State::Retell);
            if packet.state == State::InFlight {
                self.in_flight_bytes -= u64::from(packet.len) + self.wire_overhead;
            }
            packet.state = State::GivenUp;
            packet.sent = now;
        }
        if newly {
            self.totals.dropped_messages += 1;
        }
        if self
            .messages
            .front()
            .is_some_and(|front| front.number == message)
            && let Some(front) = self.messages.pop_front()
        {
            self.position += front.len - front.sent;
        }
        Emit::DropRequest {
            message,
            first,
            last,
        }
    }

    // ---- input from a Longhaul peer

    /// Takes selective feedback. `reorder_ns`: how much later than a delivered packet one may have
    /// been sent and still be only late. `probed`: the feedback answers a probe that was sent then,
    /// so earlier packets that it does not name have not arrived.
    pub(crate) fn handle_feedback(
        &mut self,
        now: Time,
        feedback: &Feedback<'_>,
        reorder_ns: u64,
        base_rtt_ns: u64,
        probed: Option<Time>,
    ) -> Result<Progress, Error> {
        let next = feedback.next.extend(self.first);
        let highest = feedback.highest.extend(next);
        let from = feedback.covered_from.extend(next);
        let to = feedback.covered_to.extend(next);
        if next > highest || highest > self.next_packet() {
            return Err(Error::PeerMisbehaved(Misbehaviour::NeverSent));
        }
        if from < next || to > highest || from > to {
            return Err(Error::PeerMisbehaved(Misbehaviour::Feedback));
        }
        let gaps = Gaps::new(feedback.gaps, from, to)?;
        let mut progress = Progress::default();
        self.limits.packet = feedback
            .packet_limit
            .extend(highest)
            .max(self.limits.packet);
        self.limits.offset = feedback.offset_limit.max(self.limits.offset);
        let echo = feedback.echo.extend(next);
        if let Some(packet) = self.get(echo).filter(|packet| packet.transmissions == 1) {
            progress.echo_ns = Some(now.since(packet.sent));
        }
        let mut delivery = Delivery {
            now,
            base_rtt_ns,
            newest: self.newest_delivered,
            acked_bytes: 0,
        };
        self.advance(next, &mut delivery);
        self.recheck_missing(gaps.clone(), &mut delivery);
        self.look_at_new(to, gaps.clone(), &mut delivery);
        self.newest_delivered = delivery.newest.max(probed.unwrap_or_default());
        progress.acked_bytes = delivery.acked_bytes;
        self.told = Told {
            duplicates: feedback.duplicates,
            refused: feedback.refused,
        };
        self.detect_losses(gaps, reorder_ns, &mut progress);
        if probed.is_some() {
            self.lose_tail(highest, reorder_ns, &mut progress);
        }
        Ok(progress)
    }

    /// Everything below `next` has arrived.
    fn advance(&mut self, next: u64, delivery: &mut Delivery) {
        while self.first < next {
            let Some(packet) = self.packets.pop_front() else {
                return;
            };
            self.first += 1;
            self.in_flight_bytes -= delivery.take(&packet, self.wire_overhead);
        }
    }

    /// Packets known to be missing that feedback covers and no longer lists have arrived.
    fn recheck_missing(&mut self, mut gaps: Gaps<'_>, delivery: &mut Delivery) {
        let mut missing = std::mem::take(&mut self.missing);
        missing.drain(..missing.partition_point(|&number| number < self.first));
        let covered = gaps.covered_of(&missing);
        let mut kept = covered.start;
        for index in covered.clone() {
            let number = missing[index];
            if gaps.leaves_open(number) {
                missing[kept] = number;
                kept += 1;
            } else {
                self.deliver(number, delivery);
            }
        }
        missing.drain(kept..covered.end);
        self.missing = missing;
    }

    /// Packets that feedback covers for the first time have arrived, or are missing from now on.
    fn look_at_new(&mut self, end: u64, mut gaps: Gaps<'_>, delivery: &mut Delivery) {
        for number in self.reported.max(self.first)..end {
            if gaps.leaves_open(number) {
                self.missing.push(number);
            } else {
                self.deliver(number, delivery);
            }
        }
        self.reported = self.reported.max(end);
    }

    fn deliver(&mut self, number: u64, delivery: &mut Delivery) {
        let Some(index) = self.index(number) else {
            return;
        };
        let packet = &mut self.packets[index];
        self.in_flight_bytes -= delivery.take(packet, self.wire_overhead);
        packet.state = State::Delivered;
    }

    /// A missing packet is lost once one sent well after it has arrived (RFC 8985 §6.2). Only
    /// packets that this feedback covers count: the state of the others is unknown.
    fn detect_losses(&mut self, mut gaps: Gaps<'_>, reorder_ns: u64, progress: &mut Progress) {
        let missing = std::mem::take(&mut self.missing);
        for &number in &missing[gaps.covered_of(&missing)] {
            let overdue = self.get(number).is_some_and(|packet| {
                matches!(packet.state, State::InFlight | State::GivenUp)
                    && packet.sent.after(reorder_ns) <= self.newest_delivered
            });
            if overdue && gaps.leaves_open(number) {
                self.mark_lost(number, progress);
            }
        }
        self.missing = missing;
    }

    /// Packets above the highest one that arrived are lost if they were sent well before the probe
    /// that the peer has answered.
    fn lose_tail(&mut self, highest: u64, reorder_ns: u64, progress: &mut Progress) {
        for number in highest.max(self.first)..self.next_packet() {
            let overdue = self
                .get(number)
                .is_some_and(|packet| packet.sent.after(reorder_ns) <= self.newest_delivered);
            if overdue {
                self.mark_lost(number, progress);
            }
        }
    }

    /// A timer has run out for a packet.
    fn expire(&mut self, number: u64, progress: &mut Progress) {
        self.mark_lost(number, progress);
        if let Some(index) = self.index(number)
            && self.packets[index].state == State::Lost
        {
            self.packets[index].by_timer = true;
        }
    }

    fn mark_lost(&mut self, number: u64, progress: &mut Progress) {
        let Some(index) = self.index(number) else {
            return;
        };
        let packet = &mut self.packets[index];
        if packet.state == State::GivenUp {
            packet.state = State::Retell;
        } else if packet.state == State::InFlight {
            packet.state = State::Lost;
            packet.by_timer = false;
            let wire_bytes = u64::from(packet.len) + self.wire_overhead;
            self.in_flight_bytes -= wire_bytes;
            self.totals.lost_packets += 1;
            progress.first_lost = if progress.lost_bytes == 0 {
                number
            } else {
                progress.first_lost.min(number)
            };
            progress.lost_bytes += wire_bytes;
        } else {
            return;
        }
        // In order: a plain peer acknowledges nothing beyond the first packet that it lacks.
        let at = self.lost.partition_point(|&lost| lost < number);
        self.lost.insert(at, number);
    }

    // ---- input from a plain UDT peer

    /// Everything below `next` has arrived; the peer takes `window` packets from there.
    pub(crate) fn handle_ack(
        &mut self,
        now: Time,
        next: Seq,
        window: Option<u32>,
    ) -> Result<Progress, Error> {
        let next = next.extend(self.first);
        if next > self.next_packet() {
            return Err(Error::PeerMisbehaved(Misbehaviour::NeverSent));
        }
        let mut delivery = Delivery {
            now,
            base_rtt_ns: 0,
            newest: Time::ZERO,
            acked_bytes: 0,
        };
        self.advance(next, &mut delivery);
        if let Some(window) = window {
            self.limits.packet = next.max(self.first) + u64::from(window);
        }
        Ok(Progress {
            acked_bytes: delivery.acked_bytes,
            ..Progress::default()
        })
    }

    /// The peer lacks these. A packet retransmitted within `repeat_ns` counts as in flight.
    pub(crate) fn handle_nak(
        &mut self,
        now: Time,
        losses: &LossRanges<'_>,
        repeat_ns: u64,
    ) -> Result<Progress, Error> {
        let end = self.next_packet();
        let mut named = 0;
        for (first, last) in losses.iter() {
            let first = first.extend(self.first);
            let last = last.extend(first);
            if last >= end {
                return Err(Error::PeerMisbehaved(Misbehaviour::NeverSent));
            }
            named += (last + 1).saturating_sub(first.max(self.first));
        }
        // Overlapping ranges would make a small packet cost much work.
        if named > end - self.first {
            return Err(Error::PeerMisbehaved(Misbehaviour::Feedback));
        }
        let mut progress = Progress::default();
        for (first, last) in losses.iter() {
            let first = first.extend(self.first);
            for number in first.max(self.first)..=last.extend(first) {
                let recent = self.get(number).is_some_and(|packet| {
                    packet.transmissions > 1 && now.since(packet.sent) < repeat_ns
                });
                if !recent {
                    self.mark_lost(number, &mut progress);
                }
            }
        }
        Ok(progress)
    }

    // ---- time

    /// Nothing was received for too long: sends the last packet again as a probe, to make the peer
    /// answer.
    pub(crate) fn probe(&mut self) -> Progress {
        let mut progress = Progress::default();
        let unacknowledged = (self.first..self.next_packet()).rev();
        let candidates: Vec<u64> = unacknowledged
            .filter(|&number| {
                self.get(number)
                    .is_some_and(|p| matches!(p.state, State::InFlight | State::GivenUp))
            })
            .take(1)
            .collect();
        for number in candidates {
            self.expire(number, &mut progress);
        }
        progress
    }

    /// All that is in flight counts as lost.
    pub(crate) fn lose_all(&mut self) -> Progress {
        let mut progress = Progress::default();
        for number in self.first..self.next_packet() {
            self.expire(number, &mut progress);
        }
        progress
    }

    // ---- helpers

    fn millis(&self, at: Time) -> u32 {
        u32::try_from(at.since(self.started) / MILLISECOND_NS).unwrap_or(u32::MAX)
    }

    fn index(&self, number: u64) -> Option<usize> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        (index < self.packets.len()).then_some(index)
    }

    fn get(&self, number: u64) -> Option<&Packet> {
        self.packets
            .get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }
}

/// Accounts for packets that feedback shows to have arrived.
#[derive(Debug)]
struct Delivery {
    now: Time,
    base_rtt_ns: u64,
    newest: Time,
    acked_bytes: u64,
}

impl Delivery {
    /// Counts a packet; answers the wire bytes that leave the flight.
    fn take(&mut self, packet: &Packet, overhead: u64) -> u64 {
        let wire_bytes = u64::from(packet.len) + overhead;
        let given_up = matches!(packet.state, State::GivenUp | State::Retell);
        if packet.state == State::Delivered {
            return 0;
        }
        if !given_up {
            self.acked_bytes += wire_bytes;
        }
        // A packet sent (or given up) again less than a round trip ago was answered for its first
        // transmission.
        let repeated = packet.transmissions > 1 || given_up;
        let ambiguous = repeated && self.now.since(packet.sent) < self.base_rtt_ns;
        if !ambiguous {
            self.newest = self.newest.max(packet.sent);
        }
        if packet.state == State::InFlight {
            wire_bytes
        } else {
            0
        }
    }
}
