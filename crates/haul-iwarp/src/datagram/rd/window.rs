//! The unacknowledged packets of one direction: transmission times, loss detection, probe timer.
//!
//! A retransmission keeps its PSN, so an acknowledgement does not identify the transmission that
//! arrived. The echoed time stamp does for RTT samples, and the order of transmissions kept here
//! for loss (RFC 8985, RFC 9002 §6).

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use haul_cc::time::MILLISECOND_NS;
use haul_cc::{RttEstimator, Time};

use super::bits::Bits;

/// See the module.
#[derive(Debug)]
pub(super) struct Window {
    /// The oldest packet that is not acknowledged; `sent[n]` is packet `una + n`.
    una: u64,
    sent: VecDeque<Sent>,
    acked: Bits,
    /// Transmissions in their order, by packet; those that are not a packet's latest are stale.
    log: VecDeque<(u64, u64)>,
    transmissions: u64,
    lost: BTreeSet<u64>,
    refused: u32,
    in_flight_bytes: u64,
    /// Number and time of the latest transmission that is known to have arrived.
    newest: Option<(u64, Time)>,
    /// 3..=64: how many later transmissions may arrive before a packet is lost.
    reorder: u64,
    /// When the last useful acknowledgement arrived.
    quiet_since: Time,
    /// Timeouts since anything arrived from the peer.
    tries: u32,
    /// Probes of a peer that has no receive for a packet.
    refused_probes: u32,
    /// May exceed the window.
    probe: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    InFlight,
    Acked,
    /// To be retransmitted.
    Lost,
    /// The peer had no receive for it: to be retransmitted when the peer announces one.
    Refused,
}

#[derive(Debug, Clone, Copy)]
struct Sent {
    at: Time,
    transmission: u64,
    bytes: u32,
    state: State,
    again: bool,
}

/// The outcome of an acknowledgement or a timer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) acked_bytes: u64,
    pub(super) lost_bytes: u64,
    pub(super) first_lost: u64,
}

/// The action that a timeout requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expired {
    /// Retransmits one packet to elicit an acknowledgement.
    Probe,
    /// Everything in flight counts as lost.
    All(Progress),
    /// The peer does not answer.
    Dead,
}

const REORDER_MIN: u64 = 3;
const REORDER_MAX: u64 = 64;
const TIMEOUT_NS_MIN: u64 = 5 * MILLISECOND_NS;
const TIMEOUT_NS_MAX: u64 = 4_000 * MILLISECOND_NS;
/// The clock's grain (RFC 9002 §6.1.2).
const GRAIN_NS: u64 = MILLISECOND_NS;

impl Window {
    pub(super) fn new(now: Time, next: u64, packets: u32) -> Self {
        Self {
            una: next,
            sent: VecDeque::new(),
            acked: Bits::new(packets),
            log: VecDeque::new(),
            transmissions: 0,
            lost: BTreeSet::new(),
            refused: 0,
            in_flight_bytes: 0,
            newest: None,
            reorder: REORDER_MIN,
            quiet_since: now,
            tries: 0,
            refused_probes: 0,
            probe: None,
        }
    }

    pub(super) fn una(&self) -> u64 {
        self.una
    }

    /// Returns the next new packet.
    pub(super) fn next(&self) -> u64 {
        self.una + self.sent.len() as u64
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Returns when the latest of the packets that have arrived was sent.
    pub(super) fn newest_sent(&self) -> Time {
        self.newest.map_or(Time::ZERO, |(_, at)| at)
    }

    pub(super) fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes
    }

    /// Bytes of memory that it holds.
    pub(super) fn heap_bytes(&self) -> usize {
        self.sent.capacity() * size_of::<Sent>() + self.log.capacity() * size_of::<(u64, u64)>()
    }

    /// Returns the packet to retransmit now, if the peer takes packets below `limit`.
    pub(super) fn to_repeat(&self, limit: u64) -> Option<u64> {
        self.lost.first().copied().filter(|&psn| psn < limit)
    }

    pub(super) fn probe(&self) -> Option<u64> {
        self.probe
    }

    /// Records that packet `psn`, the next or an earlier one, leaves with `bytes` on the wire.
    pub(super) fn handle_sent(&mut self, now: Time, psn: u64, bytes: u32) {
        if self.in_flight_bytes == 0 && self.tries == 0 && self.refused == 0 {
            self.quiet_since = now;
        }
        if self.probe == Some(psn) {
            self.probe = None;
        }
        self.transmissions += 1;
        let transmission = self.transmissions;
        self.log.push_back((transmission, psn));
        let sent = Sent {
            at: now,
            transmission,
            bytes,
            state: State::InFlight,
            again: psn < self.next(),
        };
        if psn >= self.next() {
            self.sent.push_back(sent);
        } else {
            self.leave_state(psn);
            if let Some(at) = self.at(psn) {
                self.sent[at] = sent;
            }
        }
        self.in_flight_bytes += u64::from(bytes);
    }

    fn at(&self, psn: u64) -> Option<usize> {
        let at = usize::try_from(psn.checked_sub(self.una)?).ok()?;
        (at < self.sent.len()).then_some(at)
    }

    /// Takes a packet out of the account of its state.
    fn leave_state(&mut self, psn: u64) -> Option<Sent> {
        let sent = self.sent[self.at(psn)?];
        match sent.state {
            State::InFlight => self.in_flight_bytes -= u64::from(sent.bytes),
            State::Lost => {
                self.lost.remove(&psn);
            }
            State::Refused => self.refused -= 1,
            State::Acked => {}
        }
        Some(sent)
    }

    /// Takes an acknowledgement of everything below `cum` and of `ranges` above it. Packets that
    /// were never sent are ignored.
    pub(super) fn handle_ack(
        &mut self,
        now: Time,
        cum: u64,
        ranges: impl Iterator<Item = Range<u64>>,
        rtt: &RttEstimator,
    ) -> Progress {
        let mut progress = Progress::default();
        self.tries = 0;
        let cum = cum.clamp(self.una, self.next());
        for psn in self.una..cum {
            self.take(now, psn, rtt, &mut progress);
        }
        for range in ranges {
            let end = range.end.min(self.next());
            let mut psn = range.start.max(cum);
            while psn < end {
                psn = self.acked.find(psn..end, false);
                if psn < end {
                    self.take(now, psn, rtt, &mut progress);
                }
            }
        }
        while self.una < cum {
            self.acked.clear(self.una);
            self.sent.pop_front();
            self.una += 1;
        }
        if progress.acked_bytes > 0 {
            self.quiet_since = now;
            self.probe = None;
        }
        self.detect(now, rtt, &mut progress);
        progress
    }

    fn take(&mut self, now: Time, psn: u64, rtt: &RttEstimator, progress: &mut Progress) {
        let Some(sent) = self
            .leave_state(psn)
            .filter(|sent| sent.state != State::Acked)
        else {
            return;
        };
        if let Some(at) = self.at(psn) {
            self.sent[at].state = State::Acked;
        }
        self.acked.set(psn);
        progress.acked_bytes += u64::from(sent.bytes);
        let too_soon = sent.again && now.since(sent.at) < rtt.minimum_ns() * 3 / 4;
        if sent.state == State::Lost || too_soon {
            // It was only late: an earlier transmission has arrived.
            self.reorder = (2 * self.reorder).min(REORDER_MAX);
        } else if self
            .newest
            .is_none_or(|(number, _)| number < sent.transmission)
        {
            self.newest = Some((sent.transmission, sent.at));
        }
    }

    /// Marks packets as lost that were sent well before one that has arrived.
    pub(super) fn detect(&mut self, now: Time, rtt: &RttEstimator, progress: &mut Progress) {
        let Some((newest, _)) = self.newest else {
            return;
        };
        let late_ns = late_ns(rtt);
        while let Some(&(transmission, psn)) = self.log.front() {
            let current = self.at(psn).map(|at| self.sent[at]);
            let sent = current
                .filter(|sent| sent.transmission == transmission && sent.state == State::InFlight);
            if let Some(sent) = sent {
                let overtaken = transmission + self.reorder <= newest;
                let late = transmission < newest && sent.at.after(late_ns) <= now;
                if !overtaken && !late {
                    return;
                }
                self.lose(psn, progress);
            }
            self.log.pop_front();
        }
    }

    fn lose(&mut self, psn: u64, progress: &mut Progress) {
        let Some(at) = self.at(psn) else {
            return;
        };
        let bytes = u64::from(self.sent[at].bytes);
        self.sent[at].state = State::Lost;
        self.in_flight_bytes -= bytes;
        self.lost.insert(psn);
        if progress.lost_bytes == 0 {
            progress.first_lost = psn;
        }
        progress.first_lost = progress.first_lost.min(psn);
        progress.lost_bytes += bytes;
    }

    /// Applies the peer's limit: an unacknowledged packet at or above `limit` counts as refused,
    /// and a refused one below it is retransmitted.
    pub(super) fn handle_limit(&mut self, now: Time, limit: u64) {
        if self.refused > 0 {
            for psn in self.una..limit.min(self.next()) {
                if let Some(at) = self.at(psn)
                    && self.sent[at].state == State::Refused
                {
                    self.sent[at].state = State::Lost;
                    self.lost.insert(psn);
                    self.refused -= 1;
                    self.refused_probes = 0;
                    self.quiet_since = now;
                }
            }
        }
        for psn in limit.max(self.una)..self.next() {
            if let Some(at) = self.at(psn)
                && matches!(self.sent[at].state, State::InFlight | State::Lost)
            {
                self.leave_state(psn);
                self.sent[at].state = State::Refused;
                self.refused += 1;
            }
        }
    }

    /// Returns when [`Window::handle_timeout`] or [`Window::detect`] has something to do.
    pub(super) fn due(&self, rtt: &RttEstimator, ack_delay_ns: u64) -> Option<Time> {
        if self.in_flight_bytes == 0 && self.refused == 0 || self.probe.is_some() {
            return None;
        }
        let silence = self.quiet_since.after(self.patience_ns(rtt, ack_delay_ns));
        Some(self.late_at(rtt).map_or(silence, |at| at.min(silence)))
    }

    /// Returns when the oldest transmission counts as lost unless it is acknowledged.
    fn late_at(&self, rtt: &RttEstimator) -> Option<Time> {
        let (newest, _) = self.newest?;
        let &(transmission, psn) = self.log.front()?;
        let sent = self.sent[self.at(psn)?];
        let waits = transmission < newest && sent.transmission == transmission;
        (waits && sent.state == State::InFlight).then(|| sent.at.after(late_ns(rtt)))
    }

    fn patience_ns(&self, rtt: &RttEstimator, ack_delay_ns: u64) -> u64 {
        let timeout_ns = (rtt.timeout_ns() + ack_delay_ns).max(TIMEOUT_NS_MIN);
        if self.in_flight_bytes == 0 {
            return (timeout_ns << self.refused_probes.min(6)).min(TIMEOUT_NS_MAX);
        }
        let doubled = match self.tries {
            0 => return (2 * rtt.smoothed_ns() + ack_delay_ns).clamp(GRAIN_NS, timeout_ns),
            tries => (tries - 1).min(10),
        };
        (timeout_ns << doubled).min(TIMEOUT_NS_MAX.max(timeout_ns))
    }

    /// The timer expired without an acknowledgement: probes again, at most `tries_max` times.
    pub(super) fn handle_timeout(
        &mut self,
        now: Time,
        rtt: &RttEstimator,
        ack_delay_ns: u64,
        tries_max: u32,
    ) -> Option<Expired> {
        let patience_ns = self.patience_ns(rtt, ack_delay_ns);
        let due = self.due(rtt, ack_delay_ns)?;
        if now < due || now < self.quiet_since.after(patience_ns) {
            return None;
        }
        if self.tries > tries_max {
            return Some(Expired::Dead);
        }
        self.quiet_since = now;
        self.tries += 1;
        if self.in_flight_bytes == 0 {
            self.refused_probes += 1;
            self.probe = self.first(State::Refused);
            return Some(Expired::Probe);
        }
        if self.tries == 1 {
            // The last one: its acknowledgement covers all the others.
            let last = self
                .sent
                .iter()
                .rposition(|sent| sent.state == State::InFlight);
            self.probe = last.map(|at| self.una + at as u64);
            return Some(Expired::Probe);
        }
        let mut progress = Progress::default();
        for psn in self.una..self.next() {
            if self
                .at(psn)
                .is_some_and(|at| self.sent[at].state == State::InFlight)
            {
                self.lose(psn, &mut progress);
            }
        }
        self.log.clear();
        self.probe = self.lost.first().copied();
        Some(Expired::All(progress))
    }

    /// Bytes on the wire of the longest packet that is not acknowledged; zero if there is none.
    pub(super) fn longest_bytes(&self) -> u32 {
        let open = self.sent.iter().filter(|sent| sent.state != State::Acked);
        open.map(|sent| sent.bytes).max().unwrap_or(0)
    }

    fn first(&self, state: State) -> Option<u64> {
        let at = self.sent.iter().position(|sent| sent.state == state)?;
        Some(self.una + at as u64)
    }
}

fn late_ns(rtt: &RttEstimator) -> u64 {
    let slow_ns = rtt.smoothed_ns().max(rtt.latest_ns());
    (slow_ns + slow_ns / 8).max(slow_ns + GRAIN_NS / 4)
}
