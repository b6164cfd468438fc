//! An open connection: both directions, congestion control, and the timers that keep them going.

use std::collections::VecDeque;

use haul_cc::time::{MICROSECOND_NS, MILLISECOND_NS, SECOND_NS};
use haul_cc::{
    Ack as ControlAck, Algorithm, Arrivals, Controller, Loss, Marks, Pacer, PathMtu, Rate,
    RateSample, Remembered, RttEstimator, Time,
};

use super::stats::Stats;
use super::transmit::{PayloadRange, Transmit};
use crate::config::{Config, HEADER, Params, SEAL};
use crate::error::{Error, Misbehaviour, SendError};
use crate::handshake::Agreed;
use crate::numbering::Refused;
use crate::plain::{PlainControl, SYN_NS, append_losses};
use crate::recv::{Received, Receiver};
use crate::send::{Emit, Progress, Sender};
use crate::seq::Seq;
use crate::wire::{
    Ack, AckRates, Control, ControlWriter, Data, Feedback, HEADER_LEN, SenderInfo, SocketId,
};

/// An open connection.
#[derive(Debug)]
pub(super) struct Established {
    pub(super) params: Params,
    pub(super) peer: SocketId,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    controller: Box<dyn Controller>,
    pacer: Pacer,
    pub(super) rtt: RttEstimator,
    rate_max: Rate,
    pub(super) wire_overhead: u64,
    feedback: FeedbackState,
    pub(super) timers: Timers,
    /// Control packets that wait to be written.
    pub(super) pending: Pending,
    pub(super) path: PathMtu,
    closing: Option<Time>,
    misbehaviour: u32,
}

/// The sender's state of its peer's selective feedback.
#[derive(Debug, Default)]
struct FeedbackState {
    number: Option<u32>,
    arrivals: Arrivals,
    train: Train,
    /// Marks that the peer has reported.
    marked_packets: u32,
    interval_ns: u64,
    interval_told: Option<(u64, Time)>,
    /// Number of the latest sender info.
    info_number: u32,
    probe: Probe,
}

/// A probe of a silent peer: a sender info, whose answer reports what has arrived. Data is not
/// retransmitted instead, because the peer's thread may only be late.
#[derive(Debug, Default)]
enum Probe {
    #[default]
    None,
    Wanted,
    /// With this number, then.
    Sent(u32, Time),
}

/// The packets whose dispersion is the first estimate of the path's rate: they must leave back to
/// back.
#[derive(Debug, Default)]
struct Train {
    /// Its first packet.
    from: u64,
    /// The peer has reported on all of it.
    taken: bool,
    /// There was too little to send: the peer's report on it is no rate of the path.
    spoiled: bool,
    /// There is enough for another one.
    due: bool,
    /// Wire bytes in flight when it began: it has a window of its own beside them.
    behind_bytes: u64,
    /// When it began, if it is not the first.
    began: Option<Time>,
}

#[derive(Debug)]
pub(super) struct Timers {
    received_at: Time,
    sent_at: Time,
    /// From when the retransmission timeout counts.
    pub(super) waiting_since: Time,
    /// When the peer last acknowledged something new, or the first unacknowledged packet left.
    progress: Time,
    pub(super) timeouts_in_a_row: u32,
    timeouts: u32,
    idle_timeout_ns: u64,
    linger_ns: u64,
}

#[derive(Debug, Default)]
pub(super) struct Pending {
    ack2: Option<u32>,
    ack2_at: Time,
    drop: Option<(u32, u64, u64)>,
    /// Numbers of the peer's probes of the path.
    pub(super) answers: VecDeque<u32>,
}

/// Segments per segmentation-offload call (`UDP_MAX_SEGMENTS` of older Linux).
const BATCH_PACKETS_MAX: usize = 64;
/// A super-packet is an IP packet to the kernel: 64 KiB.
const BATCH_BYTES_MAX: u64 = 65_000;
/// Most that leaves before the pacer pauses, in as many batches as it takes.
const PACED_BYTES_MAX: u64 = 512 << 10;
/// The first flight goes out in batches this large, so that the receiver can time the gaps between
/// them.
const TRAIN_PACKETS: u64 = 64;
const TRAIN_BATCH_PACKETS: u64 = 16;
const FEEDBACK_NS_MIN: u64 = 250 * MICROSECOND_NS;
const FEEDBACK_NS_MAX: u64 = 10 * MILLISECOND_NS;
const FEEDBACK_RENEW_NS: u64 = 500 * MILLISECOND_NS;
const KEEP_ALIVE_NS: u64 = SECOND_NS;
/// libudt's least expiration interval.
const EXPIRATION_NS_MIN: u64 = 300 * MILLISECOND_NS;
const TIMEOUT_NS_MAX: u64 = 2 * SECOND_NS;
/// Probes without an answer before everything in flight counts as lost.
const PROBES: u32 = 2;
const REORDER_NS_MIN: u64 = MILLISECOND_NS;
/// Idle timeouts for which the application of a plain UDT peer may pause.
const PAUSES: u64 = 10;
const RTT_NS_MAX: u64 = 60 * SECOND_NS;

impl Established {
    pub(super) fn new(
        now: Time,
        config: &Config,
        agreed: &Agreed,
        initial: u32,
        seed: u64,
    ) -> Self {
        let params = agreed.params;
        let mut config = config.clone();
        if params.seal {
            config.lower_len += SEAL;
        }
        let wire_overhead = u64::from(config.lower_len) + HEADER_LEN as u64;
        let path = PathMtu::new(params.payload_len + config.lower_len + HEADER);
        let packet_bytes = if params.path {
            path.current().into()
        } else {
            u64::from(params.payload_len) + wire_overhead
        };
        let controller = algorithm(&config, params).build(packet_bytes, seed);
        let mut pacer = Pacer::new(controller.pacing_rate(), packet_bytes, PACED_BYTES_MAX);
        pacer.limit_burst(config.burst_bytes);
        let mut rtt = RttEstimator::default();
        if let Some(sample_ns) = agreed.rtt_ns {
            rtt.update(now, sample_ns);
        }
        // One wrap above zero, so that packet numbers before the first stay positive.
        let first = |initial: u32| u64::from(initial) + (1 << 31);
        let mut open = Self {
            params,
            peer: agreed.peer,
            sender: Sender::new(
                now,
                config.kind,
                params,
                wire_overhead,
                agreed.peer,
                first(initial),
            ),
            receiver: Receiver::new(&config, params, first(agreed.peer_initial)),
            pacer,
            controller,
            rtt,
            rate_max: config.rate_max,
            wire_overhead,
            feedback: FeedbackState {
                interval_ns: FEEDBACK_NS_MIN,
                train: Train {
                    from: first(initial),
                    ..Train::default()
                },
                ..FeedbackState::default()
            },
            timers: Timers {
                received_at: now,
                sent_at: now,
                waiting_since: now,
                progress: now,
                timeouts_in_a_row: 0,
                timeouts: 0,
                idle_timeout_ns: config.idle_timeout_ns,
                linger_ns: config.linger_ns,
            },
            pending: Pending::default(),
            path,
            closing: None,
            misbehaviour: 0,
        };
        open.follow_path();
        open
    }

    /// Takes another congestion control and idle timeout. The time until now was no silence: the
    /// connection was not driven.
    pub(super) fn configure(&mut self, now: Time, config: &Config, seed: u64) {
        let packet_bytes = u64::from(self.sender.full_len()) + self.wire_overhead;
        self.controller = algorithm(config, self.params).build(packet_bytes, seed);
        self.timers.idle_timeout_ns = config.idle_timeout_ns;
        self.timers.received_at = now;
    }

    /// Starts from the path state of an earlier connection.
    pub(super) fn resume(&mut self, remembered: Remembered) {
        let rtt_ns = self.rtt.is_sampled().then(|| self.rtt.minimum_ns());
        self.controller.resume(remembered, rtt_ns);
    }

    pub(super) fn limit_rate(&mut self, rate_max: Rate, burst_bytes: Option<u64>) {
        self.rate_max = rate_max;
        self.pacer.limit_burst(burst_bytes);
    }

    pub(super) fn params(&self) -> Params {
        self.params
    }

    pub(super) fn peer(&self) -> SocketId {
        self.peer
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    pub(super) fn is_drained(&self) -> bool {
        self.sender.is_drained()
    }

    /// Nothing arrived for the idle timeout, or packets are in flight and none was acknowledged
    /// for [`Established::stall_limit_ns`].
    pub(super) fn is_dead(&self, now: Time) -> bool {
        let stalled = |ns| ns >= self.stall_limit_ns();
        now.since(self.timers.received_at) >= self.timers.idle_timeout_ns
            || self.stalled_ns(now).is_some_and(stalled)
    }

    /// How long packets may be in flight without an acknowledgement of any of them: the idle
    /// timeout. A plain UDT peer whose application does not read silently drops what its full
    /// buffer cannot hold: such a peer has [`PAUSES`] times as long.
    fn stall_limit_ns(&self) -> u64 {
        let pauses = !self.params.placement && self.sender.is_shut();
        let times = if pauses { PAUSES } else { 1 };
        self.timers.idle_timeout_ns.saturating_mul(times)
    }

    /// How long packets have been in flight without an acknowledgement of any of them.
    pub(super) fn stalled_ns(&self, now: Time) -> Option<u64> {
        let in_flight = self.sender.has_unacknowledged();
        in_flight.then(|| now.since(self.timers.progress))
    }

    pub(super) fn stats(&self) -> Stats {
        let (received_packets, received_bytes, duplicates) = self.receiver.stats();
        Stats {
            sent: self.sender.totals(),
            received_packets,
            received_bytes,
            duplicates,
            misbehaviour: self.misbehaviour,
            refused: Refused::default(),
            rtt_ns: self.rtt.smoothed_ns(),
            rtt_min_ns: self.rtt.minimum_ns(),
            in_flight_bytes: self.sender.in_flight_bytes(),
            control: self.controller.snapshot(),
            shown: self.controller.shown(),
            timeouts: self.timers.timeouts,
        }
    }

    // ---- commands

    pub(super) fn write(&mut self, now: Time, bytes: u64, push: bool) -> Result<(), SendError> {
        self.begin_waiting(now);
        self.sender.write(bytes, push)
    }

    pub(super) fn finish(&mut self, now: Time) -> Result<(), SendError> {
        if !self.params.finish {
            return Err(SendError::NoHalves);
        }
        self.begin_waiting(now);
        self.sender.finish();
        Ok(())
    }

    pub(super) fn send_message(
        &mut self,
        now: Time,
        len: u64,
        in_order: bool,
        ttl_ns: Option<u64>,
    ) -> Result<u32, SendError> {
        self.begin_waiting(now);
        self.sender.send_message(now, len, in_order, ttl_ns)
    }

    pub(super) fn close(&mut self, now: Time) {
        let _ = self.sender.write(0, true);
        let end = now.after(self.timers.linger_ns);
        self.closing.get_or_insert(end);
    }

    /// Time without unacknowledged packets does not count towards the timeout.
    fn begin_waiting(&mut self, now: Time) {
        if !self.sender.has_unacknowledged() {
            self.timers.waiting_since = now;
        }
    }

    // ---- inputs

    pub(super) fn handle_data(
        &mut self,
        now: Time,
        arrived: Time,
        data: &Data,
        payload_len: usize,
    ) -> Result<Received, Error> {
        self.timers.received_at = now;
        let result = self.receiver.handle_data(now, arrived, data, payload_len);
        self.judge(result)
    }

    pub(super) fn handle_control(
        &mut self,
        now: Time,
        arrived: Time,
        control: &Control<'_>,
    ) -> Result<(), Error> {
        self.timers.received_at = now;
        let result = match control {
            Control::Feedback(feedback) if self.params.placement => {
                self.on_feedback(now, arrived, feedback)
            }
            Control::SenderInfo(info) if self.params.placement => {
                self.receiver.handle_sender_info(now, *info);
                Ok(())
            }
            Control::Ack { number, body } if !self.params.placement => {
                self.on_ack(now, *number, body)
            }
            Control::Nak(losses) if !self.params.placement => {
                let repeat_ns = self.rtt.smoothed_ns();
                self.sender
                    .handle_nak(now, losses, repeat_ns)
                    .map(|progress| self.on_loss(now, &progress))
            }
            Control::Ack2 { number } if !self.params.placement => {
                if let Some((plain, ..)) = self.receiver.plain() {
                    plain.handle_ack2(now, *number);
                }
                Ok(())
            }
            Control::DropRequest {
                message,
                first,
                last,
            } => self.receiver.handle_drop(now, *message, *first, *last),
            Control::Probe { number } if self.params.path => {
                self.note_probe(*number);
                Ok(())
            }
            Control::ProbeAnswer { number } if self.params.path => {
                self.on_probe_answer(now, *number);
                Ok(())
            }
            Control::KeepAlive
            | Control::CongestionWarning
            | Control::PeerError(_)
            | Control::User(_) => Ok(()),
            _ => Err(Error::PeerMisbehaved(Misbehaviour::OutOfPlace)),
        };
        self.judge(result)
    }

    fn judge<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if matches!(result, Err(Error::PeerMisbehaved(_))) {
            self.misbehaviour = self.misbehaviour.saturating_add(1);
        }
        result
    }

    fn on_feedback(
        &mut self,
        now: Time,
        arrived: Time,
        feedback: &Feedback<'_>,
    ) -> Result<(), Error> {
        let stale = |last: u32| feedback.number.wrapping_sub(last).cast_signed() <= 0;
        if self.feedback.number.is_some_and(stale) {
            return Ok(());
        }
        let reorder_ns = self.reorder_ns(feedback.reorder_us);
        let probed = match self.feedback.probe {
            Probe::Sent(number, at) if number == feedback.probe => Some(at),
            _ => None,
        };
        let base_rtt_ns = self.rtt.minimum_ns();
        let progress =
            self.sender
                .handle_feedback(now, feedback, reorder_ns, base_rtt_ns, probed)?;
        if probed.is_some() {
            self.feedback.probe = Probe::None;
        }
        self.feedback.number = Some(feedback.number);
        if progress.acked_bytes > 0 {
            self.timers.progress = now;
        }
        if progress.acked_bytes > 0 || progress.lost_bytes > 0 {
            self.timers.waiting_since = now;
            self.timers.timeouts_in_a_row = 0;
        }
        let age_ns = u64::from(feedback.echo_age_us) * MICROSECOND_NS + now.since(arrived);
        let rtt_ns = progress.echo_ns.and_then(|echo| echo.checked_sub(age_ns));
        let rtt_ns = rtt_ns.filter(|&ns| ns > 0 && ns < RTT_NS_MAX);
        if let Some(rtt_ns) = rtt_ns {
            self.rtt.update(now, rtt_ns);
        }
        self.on_loss(now, &progress);
        self.on_marks(now, feedback);
        let arrival = self.sample_arrivals(feedback);
        self.controller.handle_ack(
            now,
            &ControlAck {
                acked_bytes: progress.acked_bytes,
                rtt_ns,
                smoothed_rtt_ns: self.rtt.smoothed_ns(),
                arrival,
                link_capacity_pps: None,
                in_flight_bytes: self.sender.in_flight_bytes(),
                app_limited: self.feedback.arrivals.is_app_limited(),
            },
        );
        self.choose_feedback_interval();
        Ok(())
    }

    /// How much later than a delivered packet a missing one may have been sent and still be only
    /// late.
    fn reorder_ns(&self, reorder_us: u32) -> u64 {
        let seen_ns = u64::from(reorder_us) * MICROSECOND_NS;
        let guess_ns = self.rtt.minimum_ns() / 16;
        (seen_ns * 5 / 4).max(guess_ns).clamp(
            REORDER_NS_MIN,
            2 * self.rtt.smoothed_ns().max(REORDER_NS_MIN),
        )
    }

    fn on_marks(&mut self, now: Time, feedback: &Feedback<'_>) {
        let marked = feedback
            .marked_packets
            .wrapping_sub(self.feedback.marked_packets);
        self.feedback.marked_packets = feedback.marked_packets;
        if marked == 0 || !self.params.ecn {
            return;
        }
        let next_packet = self.sender.next_packet();
        let packet_bytes = u64::from(self.sender.full_len()) + self.wire_overhead;
        self.controller.handle_marks(
            now,
            &Marks {
                marked_bytes: u64::from(marked) * packet_bytes,
                highest_packet: feedback.highest.extend(next_packet),
                next_packet,
                in_flight_bytes: self.sender.in_flight_bytes(),
            },
        );
    }

    /// Not if the first data was not answered: some paths drop ECN-capable packets (RFC 9000
    /// §13.4.2).
    pub(super) fn may_say_ecn(&self) -> bool {
        let unanswered = self.sender.released() == 0 && self.timers.timeouts >= PROBES;
        self.params.ecn && !unanswered
    }

    pub(super) fn handle_marks(&mut self, datagrams: u32) {
        self.receiver.note_marks(datagrams);
    }

    fn on_loss(&mut self, now: Time, progress: &Progress) {
        if progress.lost_bytes == 0 {
            return;
        }
        self.controller.handle_loss(
            now,
            &Loss {
                lost_bytes: progress.lost_bytes,
                first_packet: progress.first_lost,
                next_packet: self.sender.next_packet(),
                in_flight_bytes: self.sender.in_flight_bytes(),
            },
        );
    }

    /// The arrival rate by a report: until a whole train has arrived, its dispersion.
    fn sample_arrivals(&mut self, feedback: &Feedback<'_>) -> Option<RateSample> {
        let sample = self.feedback.arrivals.take(
            feedback.arrived_at_ns,
            feedback.arrived_bytes,
            self.sender.newest_delivered(),
            self.controller.sampling_interval_ns(),
        );
        let train = &mut self.feedback.train;
        if train.taken {
            return sample;
        }
        let highest = feedback.highest.extend(self.sender.next_packet());
        let is_known = feedback.train_from == Seq::of(train.from);
        // If the train passed before its announcement arrived, another one is due.
        train.spoiled |= !is_known && highest >= train.from + TRAIN_PACKETS;
        if train.spoiled || !is_known {
            return None;
        }
        train.taken = highest >= train.from + TRAIN_PACKETS;
        if feedback.train_ns == 0 {
            return sample;
        }
        let whole = highest >= train.from + TRAIN_PACKETS - TRAIN_BATCH_PACKETS;
        let (bytes, interval_ns) = (feedback.train_bytes.into(), feedback.train_ns.into());
        whole.then(|| RateSample {
            rate: Rate::of(bytes, interval_ns),
            interval_ns,
            bytes,
            app_limited: false,
            late: false,
            whole_train: train.taken,
        })
    }

    fn choose_feedback_interval(&mut self) {
        let wanted = self.controller.feedback_interval_ns();
        self.feedback.interval_ns = wanted.clamp(FEEDBACK_NS_MIN, FEEDBACK_NS_MAX);
    }

    fn on_ack(&mut self, now: Time, number: u32, ack: &Ack) -> Result<(), Error> {
        let window = ack.rates.map(|rates| rates.window_packets);
        let progress = self.sender.handle_ack(now, ack.next, window)?;
        if progress.acked_bytes > 0 {
            self.timers.progress = now;
        }
        self.timers.waiting_since = now;
        self.timers.timeouts_in_a_row = 0;
        let Some(rates) = ack.rates else {
            return Ok(());
        };
        if now.since(self.pending.ack2_at) >= SYN_NS || progress.acked_bytes == 0 {
            self.pending.ack2 = Some(number);
        }
        let (rtt_ns, variation_ns) = nanoseconds(&rates);
        self.rtt
            .adopt(now, rtt_ns.min(RTT_NS_MAX), variation_ns.min(RTT_NS_MAX));
        let packet_bytes = u64::from(self.params.payload_len) + self.wire_overhead;
        let arrival = rates
            .speed
            .filter(|&(pps, _)| pps > 0)
            .map(|(pps, _)| RateSample {
                rate: Rate::from_bytes_per_second(u64::from(pps) * packet_bytes),
                interval_ns: SYN_NS,
                bytes: progress.acked_bytes,
                app_limited: false,
                late: false,
                whole_train: false,
            });
        self.controller.handle_ack(
            now,
            &ControlAck {
                acked_bytes: progress.acked_bytes,
                rtt_ns: Some(rtt_ns),
                smoothed_rtt_ns: self.rtt.smoothed_ns(),
                arrival,
                link_capacity_pps: rates.speed.map(|(_, capacity)| u64::from(capacity)),
                in_flight_bytes: self.sender.in_flight_bytes(),
                app_limited: !self.sender.has_sendable(),
            },
        );
        Ok(())
    }

    // ---- time

    /// True when the connection has lingered long enough and is to be closed.
    pub(super) fn handle_timeout(&mut self, now: Time) -> bool {
        if self.closing.is_some_and(|until| now >= until) {
            return true;
        }
        self.search_path(now);
        if self.sender.has_unacknowledged() && now >= self.retransmission_due() {
            self.timers.waiting_since = now;
            self.timers.timeouts_in_a_row += 1;
            self.timers.timeouts += 1;
            let hopeless = !self.params.placement || self.timers.timeouts_in_a_row > PROBES;
            // An application may wait for the last packets, and they are few. Of others the peer is
            // asked first.
            let is_tail = self.sender.is_thin() && !self.sender.has_fresh();
            if self.params.placement && !is_tail {
                self.feedback.probe = Probe::Wanted;
                if hopeless {
                    self.controller.handle_timeout(now);
                }
                return false;
            }
            let progress = if hopeless {
                self.sender.lose_all()
            } else {
                self.sender.probe()
            };
            if hopeless {
                self.on_loss(now, &progress);
                self.controller.handle_timeout(now);
            }
        }
        false
    }

    fn retransmission_due(&self) -> Time {
        let doubled = self.timers.timeouts_in_a_row.min(6);
        let timeout_ns = if self.params.placement {
            (self.rtt.timeout_ns() + 2 * self.feedback.interval_ns + SYN_NS) << doubled
        } else {
            (self.rtt.timeout_ns() + SYN_NS).max(EXPIRATION_NS_MIN) << doubled
        };
        let limit = TIMEOUT_NS_MAX.max(2 * self.rtt.smoothed_ns());
        self.timers.waiting_since.after(timeout_ns.min(limit))
    }

    pub(super) fn timeout(&self) -> Time {
        let mut due = self.timers.received_at.after(self.timers.idle_timeout_ns);
        due = due.min(self.timers.sent_at.after(KEEP_ALIVE_NS));
        if self.sender.has_unacknowledged() {
            due = due.min(self.timers.progress.after(self.stall_limit_ns()));
            due = due.min(self.retransmission_due());
        }
        if self.params.placement && self.sender.is_blocked() {
            let told = self.feedback.interval_told;
            due = due.min(told.map_or(Time::ZERO, |(_, at)| at.after(FEEDBACK_RENEW_NS)));
        }
        if let Some(at) = self.receiver.feedback_due() {
            due = due.min(at);
        }
        if let Some(until) = self.closing {
            due = due.min(until);
        }
        if let Some(at) = self.path_due() {
            due = due.min(at);
        }
        due.min(self.plain_due()).min(self.data_due())
    }

    fn plain_due(&self) -> Time {
        self.receiver.plain_due().unwrap_or(Time::from_ns(u64::MAX))
    }

    fn data_due(&self) -> Time {
        self.paced_until().unwrap_or(Time::from_ns(u64::MAX))
    }

    pub(super) fn paced_until(&self) -> Option<Time> {
        let sendable = self.sender.has_lost() || self.sender.has_sendable();
        let open = sendable && self.sender.in_flight_bytes() < self.window_bytes();
        open.then(|| self.pacer.ready_at())
    }

    // ---- output

    pub(super) fn poll_transmit(&mut self, now: Time, out: &mut Transmit) -> bool {
        let some = self.write_control(now, &mut out.control) || self.write_data(now, out);
        if some {
            self.timers.sent_at = now;
        }
        some
    }

    fn write_control(&mut self, now: Time, out: &mut Vec<u8>) -> bool {
        let peer = self.peer;
        if let Some(number) = self.pending.ack2.take() {
            self.pending.ack2_at = now;
            ControlWriter::new(out, peer).ack2(number);
            return true;
        }
        if let Some((message, first, last)) = self.pending.drop.take() {
            ControlWriter::new(out, peer).drop_request(message, first, last);
            return true;
        }
        if self.receiver.feedback_due().is_some_and(|at| now >= at) {
            self.receiver.write_feedback(now, self.peer, out);
            return true;
        }
        if self.write_path(now, out)
            || self.write_plain(now, out)
            || self.write_sender_info(now, out)
        {
            return true;
        }
        if now.since(self.timers.sent_at) >= KEEP_ALIVE_NS {
            ControlWriter::new(out, peer).keep_alive();
            return true;
        }
        false
    }

    fn write_plain(&mut self, now: Time, out: &mut Vec<u8>) -> bool {
        let peer = self.peer;
        let Some((plain, holes, free)) = self.receiver.plain() else {
            return false;
        };
        if plain.due(holes).is_none_or(|at| now < at) {
            return false;
        }
        match plain.write(now, peer, holes, free, out) {
            Some(PlainControl::Nak { repeat_ns }) => {
                append_losses(now, holes, repeat_ns, out);
                if out.len() == HEADER_LEN {
                    // The missing packets have arrived meanwhile.
                    out.clear();
                }
                !out.is_empty()
            }
            Some(PlainControl::Ack) => true,
            None => false,
        }
    }

    /// Requests a feedback interval from the receiver, while data is in flight.
    fn write_sender_info(&mut self, now: Time, out: &mut Vec<u8>) -> bool {
        let awaits = self.sender.has_unacknowledged() || self.sender.is_blocked();
        if !self.params.placement || !awaits {
            return false;
        }
        self.send_wishes(now, out)
    }

    fn send_wishes(&mut self, now: Time, out: &mut Vec<u8>) -> bool {
        let wanted = self.feedback.interval_ns;
        let current = self
            .feedback
            .interval_told
            .is_some_and(|(told, at)| told == wanted && now.since(at) < FEEDBACK_RENEW_NS);
        let probes = matches!(self.feedback.probe, Probe::Wanted);
        if current && !probes {
            return false;
        }
        self.feedback.info_number = self.feedback.info_number.wrapping_add(1);
        if probes {
            self.feedback.probe = Probe::Sent(self.feedback.info_number, now);
        }
        self.feedback.interval_told = Some((wanted, now));
        let interval_us = u32::try_from(wanted / MICROSECOND_NS).unwrap_or(u32::MAX);
        ControlWriter::new(out, self.peer).sender_info(SenderInfo {
            feedback_interval_us: interval_us,
            train_from: Seq::of(self.feedback.train.from),
            number: self.feedback.info_number,
        });
        true
    }

    fn write_data(&mut self, now: Time, out: &mut Transmit) -> bool {
        self.note_backlog(now);
        let window = self.window_bytes();
        let in_flight = self.sender.in_flight_bytes();
        let sendable = self.sender.has_lost() || self.sender.has_sendable();
        if sendable && self.begins_train() {
            return self.begin_train(now, &mut out.control);
        }
        if !sendable || in_flight >= window {
            if !sendable {
                self.note_app_limited(in_flight);
            }
            self.pacer.handle_idle(now);
            return false;
        }
        self.pacer
            .set_rate(self.controller.pacing_rate().min(self.rate_max));
        self.pacer.limit_batch(self.controller.batch_bytes());
        self.pacer.set_base_rtt(self.rtt.minimum_ns());
        let budget = self
            .pacer
            .budget_bytes(now)
            .min(self.batch_limit())
            .min(window - in_flight);
        if self.pacer.budget_bytes(now) == 0 {
            return false;
        }
        let unacknowledged = self.sender.has_unacknowledged();
        let sent = self.fill_batch(now, budget, out);
        if sent == 0 {
            return self.pending.drop.is_some() && self.write_control(now, &mut out.control);
        }
        if !unacknowledged {
            self.timers.waiting_since = now;
            self.timers.progress = now;
        }
        self.controller.handle_sent(sent);
        if self.pacer.handle_sent(now, sent) {
            self.feedback.arrivals.note_late(in_flight + sent);
        }
        true
    }

    fn batch_limit(&self) -> u64 {
        let packet_bytes = u64::from(self.sender.full_len()) + self.wire_overhead;
        let trains = self.params.placement && !self.feedback.train.taken;
        if trains || self.sender.totals().packets < TRAIN_PACKETS {
            (TRAIN_BATCH_PACKETS * packet_bytes).min(BATCH_BYTES_MAX)
        } else {
            BATCH_BYTES_MAX
        }
    }

    fn note_app_limited(&mut self, in_flight: u64) {
        self.feedback.arrivals.note_app_limited(in_flight);
        let train = &mut self.feedback.train;
        let (next, train_ends) = (self.sender.next_packet(), train.from + TRAIN_PACKETS);
        train.spoiled |= !train.taken && (train.from + 1..train_ends).contains(&next);
    }

    /// Returns the bytes that may be in flight. Another train does not wait for earlier packets: on
    /// an unmeasured path that would waste a round trip for few packets.
    fn window_bytes(&self) -> u64 {
        let train = &self.feedback.train;
        let under_way = !train.taken && self.sender.next_packet() < train.from + TRAIN_PACKETS;
        let behind = if under_way { train.behind_bytes } else { 0 };
        self.controller.window_bytes() + behind
    }

    /// Lost packets go first.
    fn begins_train(&self) -> bool {
        self.feedback.train.due && !self.sender.has_lost()
    }

    /// Another train is due when the first was spoiled and there is enough for one: a whole one,
    /// or, once in a round trip, more than the window. Otherwise an application that writes small
    /// pieces would begin a train with each write, each with a window of its own.
    fn note_backlog(&mut self, now: Time) {
        if !self.feedback.train.spoiled || self.feedback.train.due || !self.params.placement {
            return;
        }
        let bytes = TRAIN_PACKETS * u64::from(self.sender.full_len());
        let round_ns = self.rtt.smoothed_ns();
        let began = self.feedback.train.began;
        let may = began.is_none_or(|began| now.since(began) >= round_ns);
        let is_full = self.sender.in_flight_bytes() >= self.controller.window_bytes();
        self.feedback.train.due =
            may && is_full && self.sender.has_sendable() || self.sender.has_backlog(bytes);
    }

    /// Announces to the peer that a train begins with the next packet.
    fn begin_train(&mut self, now: Time, out: &mut Vec<u8>) -> bool {
        self.feedback.train = Train {
            from: self.sender.next_packet(),
            behind_bytes: self.sender.in_flight_bytes(),
            began: Some(now),
            ..Train::default()
        };
        self.feedback.interval_told = None;
        self.send_wishes(now, out)
    }

    /// Packets of one length, but for a shorter last one, as far as `budget` wire bytes go. Answers
    /// wire bytes.
    fn fill_batch(&mut self, now: Time, budget: u64, out: &mut Transmit) -> u64 {
        let mut sent = 0;
        while let Some(len) = self.sender.peek_len(now) {
            let wire_bytes = u64::from(len) + self.wire_overhead;
            let segment = out.payload.first().map_or(len, |range| range.len);
            let previous = out.payload.last().map_or(len, |range| range.len);
            let full =
                out.headers.len() >= BATCH_PACKETS_MAX || (sent > 0 && sent + wire_bytes > budget);
            if full || len > segment || previous < segment {
                break;
            }
            match self.sender.emit(now) {
                Some(Emit::Data {
                    mut header,
                    position,
                    len,
                }) => {
                    // No other packet follows, so its acknowledgement should not be delayed.
                    if self.params.placement
                        && self.sender.is_thin()
                        && self.sender.peek_len(now).is_none()
                    {
                        header.ask();
                    }
                    out.headers.push(header.emit());
                    out.payload.push(PayloadRange { position, len });
                    sent += u64::from(len) + self.wire_overhead;
                }
                Some(Emit::DropRequest {
                    message,
                    first,
                    last,
                }) => {
                    self.pending.drop = Some((message, first, last));
                    break;
                }
                None => break,
            }
        }
        sent
    }
}

/// Returns the control of a connection with these parameters.
fn algorithm(config: &Config, params: Params) -> Algorithm {
    if params.placement {
        config.control
    } else {
        config.control_plain
    }
}

fn nanoseconds(rates: &AckRates) -> (u64, u64) {
    (
        u64::from(rates.rtt_us) * MICROSECOND_NS,
        u64::from(rates.rtt_variation_us) * MICROSECOND_NS,
    )
}
