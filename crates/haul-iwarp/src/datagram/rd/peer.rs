//! State of one peer: small while it is idle, larger while packets are in flight or missing.

use haul_cc::time::MICROSECOND_NS;
use haul_cc::{Ack as Acked, Loss, Pacer, RttEstimator, Time};

use super::control::{control_shim, low};
use super::receiving::{Expected, Receiving};
use super::sending::{Address, Segments, Sending};
use super::sizes::Size;
use super::window::{Expired, Progress, Window};
use super::work::{RdConfig, Remote};
use crate::datagram::wire::{ACK_RANGES_MAX, Ack, Body, Cookie, MsgId, Psn, Shim};
use crate::qp::SendWr;

/// A peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) remote: Remote,
    /// Its epoch; zero until the handshake is complete.
    pub(super) epoch: u32,
    pub(super) phase: Phase,
    /// First packet numbers of both directions.
    pub(super) own_initial: u32,
    pub(super) peer_initial: u32,
    /// When the cookie that this peer returned was issued; zero if this end sent the HELLO.
    pub(super) known_since: Time,
    /// Bytes of a datagram that this end proposes, or that both have agreed on.
    pub(super) offered: u16,
    /// It accepts other segment sizes.
    pub(super) has_sizes: bool,
    /// The segment size of the next message.
    size: Size,
    /// Reads and atomics outstanding at most, to it and from it.
    pub(super) ord: u16,
    pub(super) ird: u16,

    /// The packet and the message that will be sent next.
    pub(super) next: u64,
    pub(super) next_msg: MsgId,
    /// It accepts packets below this one.
    limit: u64,
    /// Number of its latest ACK.
    ack_seen: u32,
    /// A round trip, ns, for the next time that something is sent; zero while none was measured.
    pub(super) round_trip_ns: u64,

    pub(super) expected: Expected,
    /// The lowest packet refused for lack of a receive, and since when.
    pub(super) refused: Option<(u64, Time)>,
    ack: AckState,

    pub(super) sending: Option<Box<Sending>>,
    pub(super) receiving: Option<Box<Receiving>>,
    pub(super) schedule: Schedule,
}

/// The state of the association.
#[derive(Debug, Clone, Copy)]
pub(super) enum Phase {
    /// A hello was sent; no reply yet.
    Calling {
        cookie: Option<Cookie>,
        tries: u32,
        due: Time,
        said: Option<Time>,
    },
    Known,
}

/// Where the queue pair has the peer in its lists.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Schedule {
    pub(super) ready: bool,
    pub(super) timer: Option<Time>,
    pub(super) idle: Option<u64>,
    pub(super) starved: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct AckState {
    /// Packets since the last ACK.
    waiting: u32,
    due: Option<Time>,
    number: u32,
    /// Wire bytes that have arrived.
    octets: u32,
    /// Of the packet that arrived last: its time stamp, and when it came.
    echo: u32,
    at: Time,
}

/// The most packets that are sent back to back if the pacer allows.
const BURST_BYTES: u64 = 65_000;

impl Peer {
    pub(super) fn new(remote: Remote, phase: Phase, own_initial: u32, next_msg: MsgId) -> Self {
        let next = first(own_initial);
        Self {
            remote,
            epoch: 0,
            phase,
            own_initial,
            peer_initial: 0,
            known_since: Time::ZERO,
            offered: 0,
            has_sizes: false,
            size: Size::AGREED,
            ord: 0,
            ird: 0,
            next,
            next_msg,
            limit: next,
            ack_seen: 0,
            round_trip_ns: 0,
            expected: Expected { cum: 0, top: 0 },
            refused: None,
            ack: AckState::default(),
            sending: None,
            receiving: None,
            schedule: Schedule::default(),
        }
    }

    /// The parameters of the peer's hello, or of its reply to ours.
    pub(super) fn learn(&mut self, epoch: u32, initial: u32, window: u32) {
        self.phase = Phase::Known;
        self.epoch = epoch;
        self.peer_initial = initial;
        let cum = first(initial);
        self.expected = Expected { cum, top: cum };
        self.limit = self.next + u64::from(window);
    }

    pub(super) fn is_known(&self) -> bool {
        matches!(self.phase, Phase::Known)
    }

    /// Whether the peer can be closed without loss: no packet or acknowledgement is pending, and
    /// none is missing.
    pub(super) fn is_idle(&self) -> bool {
        let quiet = self
            .sending
            .as_ref()
            .is_none_or(|sending| sending.is_idle());
        self.is_known() && quiet && self.receiving.is_none() && self.ack.due.is_none()
    }

    /// Bytes of memory beside the structure itself.
    pub(super) fn heap_bytes(&self) -> usize {
        let sending = self.sending.as_ref();
        let receiving = self.receiving.as_ref();
        sending.map_or(0, |sending| size_of::<Sending>() + sending.heap_bytes())
            + receiving.map_or(0, |_| size_of::<Receiving>())
    }

    // ---- sending

    /// Returns the sending side, created if there is none.
    pub(super) fn sending(&mut self, now: Time, config: &RdConfig, seed: u64) -> &mut Sending {
        let next = self.next;
        let round_trip_ns = self.round_trip_ns;
        self.sending.get_or_insert_with(|| {
            let packet = u64::from(config.datagram_max) + u64::from(config.lower_len);
            let controller = config.control.build(packet, seed);
            let pacer = Pacer::new(controller.pacing_rate(), packet, BURST_BYTES);
            let window = Window::new(now, next, config.window);
            let mut rtt = RttEstimator::default();
            if round_trip_ns > 0 {
                rtt.update(now, round_trip_ns);
            }
            Box::new(Sending::new(window, rtt, controller, pacer))
        })
    }

    /// Takes the RTT measured in the handshake.
    pub(super) fn set_round_trip(&mut self, now: Time, ns: u64) {
        self.round_trip_ns = ns;
        if let Some(sending) = &mut self.sending {
            sending.rtt.update(now, ns);
        }
    }

    pub(super) fn post(&mut self, now: Time, config: &RdConfig, seed: u64, wr: SendWr) {
        self.sending(now, config, seed).post(wr);
    }

    /// Returns the packet to send now, if one may leave; creates it if it is new.
    pub(super) fn choose_packet(&mut self, now: Time, config: &RdConfig) -> Option<u64> {
        if !self.is_known() {
            return None;
        }
        let (limit, ord, ird) = (self.limit, self.ord, self.ird);
        let segments = Segments::new(self.size, self.offered);
        let sending = self.sending.as_mut()?;
        if let Some(psn) = sending.window.probe() {
            return Some(psn);
        }
        let repeat = sending.window.to_repeat(limit);
        let end = limit.min(sending.window.una() + u64::from(config.window));
        let fresh = self.next < end && sending.has_next(ord, ird);
        if repeat.is_none() && !fresh {
            if !sending.has_next(ord, ird) {
                let in_flight = sending.window.in_flight_bytes();
                sending.samples.arrivals.note_app_limited(in_flight);
            }
            sending.pacer.handle_idle(now);
            return None;
        }
        if sending.window.in_flight_bytes() >= sending.controller.window_bytes() {
            sending.pacer.handle_idle(now);
            return None;
        }
        sending.pacer.set_rate(sending.controller.pacing_rate());
        sending.pacer.set_base_rtt(sending.rtt.minimum_ns());
        if sending.pacer.budget_bytes(now) == 0 {
            return None;
        }
        if repeat.is_some() {
            return repeat;
        }
        let psn = self.next;
        sending
            .make(ord, ird, psn, &mut self.next_msg, segments)
            .then(|| self.next += 1)?;
        Some(psn)
    }

    /// Sets the bytes of UDP payload that the path carries.
    pub(super) fn choose_size(&mut self, octets: u32) {
        let size = Size::fitting(octets, self.offered).filter(|_| self.has_sizes);
        self.size = size.unwrap_or_default();
    }

    /// Bytes of UDP payload of the longest packet in flight; zero if there is none.
    pub(super) fn longest_in_flight(&self, config: &RdConfig) -> u32 {
        let sending = self.sending.as_ref();
        let bytes = sending.map_or(0, |sending| sending.window.longest_bytes());
        bytes.saturating_sub(config.lower_len)
    }

    /// Whether a path with this limit, bytes, is too small for a packet in flight to this peer, or
    /// for the agreed segment sizes.
    pub(super) fn is_too_long(&self, octets: u32, config: &RdConfig) -> bool {
        let can_shorten = self.has_sizes && Size::fitting(octets, self.offered).is_some();
        u32::from(self.offered) > octets
            && (!can_shorten || self.longest_in_flight(config) > octets)
    }

    /// Notes that a packet of `bytes` on the wire was sent.
    pub(super) fn handle_sent(&mut self, now: Time, psn: u64, bytes: u32) {
        let Some(sending) = self.sending.as_mut() else {
            return;
        };
        let in_flight = sending.window.in_flight_bytes() + u64::from(bytes);
        if sending.pacer.handle_sent(now, u64::from(bytes)) {
            sending.samples.arrivals.note_late(in_flight);
        }
        sending.window.handle_sent(now, psn, bytes);
    }

    pub(super) fn address(&self, config: &RdConfig) -> Address {
        Address {
            dst_qpn: self.remote.qpn,
            src_qpn: config.qpn,
            epoch: config.epoch,
        }
    }

    /// Handles an ACK.
    pub(super) fn handle_ack(&mut self, now: Time, shim: &Shim, ack: &Ack<'_>) {
        let Some(sending) = self.sending.as_mut() else {
            return;
        };
        let una = sending.window.una();
        let extend = |psn: Psn| near(una, psn.0);
        let cum = extend(ack.cum);
        if cum > self.next {
            return; // for what was never sent
        }
        let rtt_us = low(now.as_ns() / MICROSECOND_NS).wrapping_sub(ack.echo_ts);
        let rtt_ns = u64::from(rtt_us)
            .checked_sub(u64::from(ack.delay_us))
            .map(|us| us.max(1) * MICROSECOND_NS)
            .filter(|&ns| ns < RTT_NS_MAX);
        if let Some(rtt_ns) = rtt_ns {
            sending.rtt.update(now, rtt_ns);
        }
        let ranges = ack.ranges().map(|(start, end)| extend(start)..extend(end));
        let limit = extend(ack.limit);
        let progress = sending.window.handle_ack(now, cum, ranges, &sending.rtt);
        let fresh = shim.psn.past(Psn(self.ack_seen)) > 0;
        let mut arrival = None;
        if fresh {
            self.ack_seen = shim.psn.0;
            self.limit = limit;
            sending.window.handle_limit(now, limit);
            let interval_ns = sending.controller.sampling_interval_ns();
            let newest_sent = sending.window.newest_sent();
            arrival = sending
                .samples
                .take(shim.msg_id.0, shim.msg_len, newest_sent, interval_ns);
        }
        let in_flight_bytes = sending.window.in_flight_bytes();
        let lost = self.next;
        report_loss(now, sending, &progress, lost);
        let news = Acked {
            acked_bytes: progress.acked_bytes,
            rtt_ns,
            smoothed_rtt_ns: sending.rtt.smoothed_ns(),
            arrival,
            link_capacity_pps: None,
            in_flight_bytes,
            app_limited: sending.samples.arrivals.is_app_limited(),
        };
        sending.controller.handle_ack(now, &news);
    }

    /// Runs the timers of the packets in flight.
    pub(super) fn handle_silence(&mut self, now: Time, config: &RdConfig) -> Option<Expired> {
        let next = self.next;
        let sending = self.sending.as_mut()?;
        let mut progress = Progress::default();
        sending.window.detect(now, &sending.rtt, &mut progress);
        report_loss(now, sending, &progress, next);
        let delay_ns = config.ack_delay_ns;
        let expired = sending
            .window
            .handle_timeout(now, &sending.rtt, delay_ns, config.tries);
        if let Some(Expired::All(progress)) = &expired {
            report_loss(now, sending, progress, next);
            sending.controller.handle_timeout(now);
        }
        expired
    }

    /// Drops the sending side's state after it has been idle for long.
    pub(super) fn rest(&mut self, now: Time, linger_ns: u64) {
        let Some(sending) = self.sending.as_mut() else {
            return;
        };
        if !sending.is_idle() {
            sending.quiet_since = None;
            return;
        }
        let since = *sending.quiet_since.get_or_insert(now);
        if now >= since.after(linger_ns) {
            self.round_trip_ns = sending.rtt.smoothed_ns();
            self.sending = None;
        }
    }

    /// Whether the peer should acknowledge this packet at once, because no packet follows it.
    pub(super) fn wants_ack_of(&self, psn: u64) -> bool {
        let more = |sending: &Sending| sending.has_next(self.ord, self.ird);
        psn + 1 == self.next && !self.sending.as_ref().is_some_and(|half| more(half))
    }

    /// Whether this packet or message is still outstanding.
    pub(super) fn is_waiting_for(&self, psn: Psn, msg: MsgId) -> bool {
        self.sending.as_ref().is_some_and(|sending| {
            let una = sending.window.una();
            (una..self.next).contains(&near(una, psn.0)) || sending.has_begun(msg)
        })
    }

    /// Handles the peer's close, which acknowledges all packets below `psn`. Returns false if `psn`
    /// does not belong to this association.
    pub(super) fn handle_last_ack(&mut self, now: Time, psn: Psn) -> bool {
        let Some(sending) = self.sending.as_mut() else {
            return near(self.next, psn.0) == self.next;
        };
        let una = sending.window.una();
        let cum = near(una, psn.0);
        if cum > self.next || cum < una {
            return false;
        }
        sending
            .window
            .handle_ack(now, cum, std::iter::empty(), &sending.rtt);
        true
    }

    // ---- receiving

    /// Returns when data last arrived.
    pub(super) fn heard(&self) -> Time {
        self.ack.at
    }

    /// Whether data or an acknowledgement has come, so that the peer knows this end.
    pub(super) fn is_heard(&self) -> bool {
        self.ack_seen != 0 || self.ack.at != Time::ZERO
    }

    /// Returns the packet with these low bits that is nearest to the next expected one.
    pub(super) fn extend(&self, psn: Psn) -> u64 {
        near(self.expected.cum, psn.0)
    }

    pub(super) fn has(&self, psn: u64) -> bool {
        let there = |receiving: &Receiving| psn < self.expected.top && receiving.has(psn);
        psn < self.expected.cum || self.receiving.as_ref().is_some_and(|half| there(half))
    }

    /// Counts a received data packet of `octets` bytes on the wire.
    pub(super) fn note_arrival(&mut self, now: Time, octets: u32, timestamp: u32) {
        self.ack.octets = self.ack.octets.wrapping_add(octets);
        (self.ack.echo, self.ack.at) = (timestamp, now);
    }

    /// Schedules an acknowledgement: at once, or with the next packet.
    pub(super) fn want_ack(&mut self, now: Time, at_once: bool, config: &RdConfig) {
        self.ack.waiting += 1;
        let due = if at_once || self.ack.waiting >= config.ack_every {
            now
        } else {
            now.after(config.ack_delay_ns)
        };
        self.ack.due = Some(self.ack.due.map_or(due, |at| at.min(due)));
    }

    /// Writes an acknowledgement, if one is due.
    pub(super) fn write_ack(
        &mut self,
        now: Time,
        config: &RdConfig,
        out: &mut [u8],
    ) -> Option<usize> {
        if self.ack.due.is_none_or(|at| now < at) {
            return None;
        }
        (self.ack.due, self.ack.waiting) = (None, 0);
        self.ack.number = self.ack.number.wrapping_add(1);
        let mut runs = [(0, 0); ACK_RANGES_MAX];
        let count = match &mut self.receiving {
            Some(receiving) => receiving.ranges(&self.expected, &mut runs),
            None => 0,
        };
        let ranges = runs.map(|(start, end)| (Psn(low(start)), Psn(low(end))));
        let limit = match self.refused {
            Some((psn, _)) => psn,
            None => self.expected.cum + u64::from(config.window),
        };
        let delay_us = now.since(self.ack.at) / MICROSECOND_NS;
        let ack = Ack::new(
            Psn(low(self.expected.cum)),
            Psn(low(limit)),
            self.ack.echo,
            low(delay_us),
            &ranges[..count],
        );
        let shim = Shim {
            psn: Psn(self.ack.number),
            msg_id: MsgId(low(self.ack.at.as_ns() / MICROSECOND_NS)),
            msg_len: self.ack.octets,
            ..control_shim(config, self.remote.qpn, self.epoch)
        };
        Some(Body::Ack(ack).emit(&shim, out))
    }

    // ---- time

    /// Returns the time of the next timer.
    pub(super) fn due(&self, now: Time, config: &RdConfig) -> Option<Time> {
        if let Phase::Calling { due, .. } = self.phase {
            return Some(due);
        }
        let mut due = self.ack.due;
        let mut sooner = |at: Option<Time>| {
            due = match (due, at) {
                (Some(due), Some(at)) => Some(due.min(at)),
                (due, at) => due.or(at),
            };
        };
        if let Some(sending) = &self.sending {
            sooner(sending.window.due(&sending.rtt, config.ack_delay_ns));
            sooner(self.packet_due(sending, now, config));
            if let Some(since) = sending.quiet_since.filter(|_| sending.is_idle()) {
                sooner(Some(since.after(config.linger_ns)));
            }
        }
        due
    }

    fn packet_due(&self, sending: &Sending, now: Time, config: &RdConfig) -> Option<Time> {
        let window = &sending.window;
        if window.probe().is_some() {
            return Some(now);
        }
        let end = self.limit.min(window.una() + u64::from(config.window));
        let fresh = self.next < end && sending.has_next(self.ord, self.ird);
        let open = window.in_flight_bytes() < sending.controller.window_bytes();
        let some = window.to_repeat(self.limit).is_some() || fresh;
        (some && open).then(|| sending.pacer.ready_at().max(now))
    }
}

fn report_loss(now: Time, sending: &mut Sending, progress: &Progress, next: u64) {
    if progress.lost_bytes > 0 {
        let loss = Loss {
            lost_bytes: progress.lost_bytes,
            first_packet: progress.first_lost,
            next_packet: next,
            in_flight_bytes: sending.window.in_flight_bytes(),
        };
        sending.controller.handle_loss(now, &loss);
    }
}

const RTT_NS_MAX: u64 = 60 * haul_cc::time::SECOND_NS;

/// A direction's first packet; one wrap above zero, so that numbers before it are numbers as well.
fn first(initial: u32) -> u64 {
    u64::from(initial) + (1 << 32)
}

/// The number with the low half `psn` that is nearest to `known`.
fn near(known: u64, psn: u32) -> u64 {
    let ahead = psn.wrapping_sub(low(known)).cast_signed();
    known.saturating_add_signed(i64::from(ahead))
}
