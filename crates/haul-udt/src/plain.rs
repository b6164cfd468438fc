//! Feedback to a plain UDT4 peer: ACK every SYN, light ACK every 64 packets, NAK (UDT4 draft §6,
//! libudt `core.cpp`).

use haul_cc::time::{MICROSECOND_NS, MILLISECOND_NS};
use haul_cc::{RttEstimator, Time};

use crate::estimate::Estimator;
use crate::holes::Holes;
use crate::seq::Seq;
use crate::wire::{Ack, AckRates, ControlWriter, SocketId, push_range};

/// UDT's constant feedback interval.
pub(crate) const SYN_NS: u64 = 10 * MILLISECOND_NS;
const LIGHT_ACK_PACKETS: u64 = 64;
const HISTORY: usize = 1_024;
/// libudt never advertises less.
pub(crate) const WINDOW_MIN: u64 = 2;
/// Words of a loss list in one packet of 1,500 bytes, the least mss that libudt uses.
const NAK_WORDS_MAX: usize = 300;

/// State of feedback to a plain peer.
#[derive(Debug)]
pub(crate) struct PlainFeedback {
    pub(crate) estimator: Estimator,
    /// Round-trip time as ACK and ACK2 show it.
    pub(crate) rtt: RttEstimator,
    /// Loss was noticed and not reported yet.
    pub(crate) nak_due: bool,
    ack_number: u32,
    last_ack: u64,
    last_ack_at: Time,
    last_speed_at: Time,
    last_light: u64,
    acknowledged: u64,
    history: Vec<(u32, u64, Time)>,
}

impl PlainFeedback {
    pub(crate) fn new(first: u64) -> Self {
        Self {
            estimator: Estimator::default(),
            rtt: RttEstimator::default(),
            nak_due: false,
            ack_number: 0,
            last_ack: first,
            last_ack_at: Time::ZERO,
            last_speed_at: Time::ZERO,
            last_light: first,
            acknowledged: first,
            history: Vec::with_capacity(HISTORY),
        }
    }

    /// When the next ACK or repeated NAK may be due.
    pub(crate) fn due(&self, holes: &Holes) -> Option<Time> {
        let unacknowledged = holes.next() > self.acknowledged || !holes.is_empty();
        if self.nak_due || holes.next() >= self.last_light + LIGHT_ACK_PACKETS {
            return Some(Time::ZERO);
        }
        unacknowledged.then(|| self.last_ack_at.after(SYN_NS))
    }

    /// Writes the most urgent packet, if any is due.
    pub(crate) fn write(
        &mut self,
        now: Time,
        peer: SocketId,
        holes: &Holes,
        free_packets: u64,
        out: &mut Vec<u8>,
    ) -> Option<PlainControl> {
        let repeat_ns = self.rtt.timeout_ns() + SYN_NS;
        if self.nak_due || self.nak_repeat_due(now, holes, repeat_ns) {
            self.nak_due = false;
            ControlWriter::new(out, peer).nak();
            return Some(PlainControl::Nak { repeat_ns });
        }
        let next = holes.next();
        let rtt_ns = self.rtt.timeout_ns();
        let syn_passed = now.since(self.last_ack_at) >= SYN_NS;
        let repeated = next == self.last_ack;
        if syn_passed {
            self.last_ack_at = now;
            if next > self.acknowledged && (!repeated || self.history_age(now) > rtt_ns) {
                self.write_ack(now, next, free_packets, ControlWriter::new(out, peer));
                return Some(PlainControl::Ack);
            }
        } else if next >= self.last_light + LIGHT_ACK_PACKETS {
            self.last_light = next;
            ControlWriter::new(out, peer).ack(
                0,
                &Ack {
                    next: Seq::of(next),
                    rates: None,
                },
            );
            return Some(PlainControl::Ack);
        }
        None
    }

    fn nak_repeat_due(&self, now: Time, holes: &Holes, repeat_ns: u64) -> bool {
        now.since(self.last_ack_at) >= SYN_NS
            && holes
                .iter()
                .any(|hole| now.since(hole.reported) > repeat_ns)
    }

    fn history_age(&self, now: Time) -> u64 {
        self.history
            .last()
            .map_or(u64::MAX, |(_, _, at)| now.since(*at))
    }

    fn write_ack(&mut self, now: Time, next: u64, free_packets: u64, writer: ControlWriter<'_>) {
        self.ack_number = self.ack_number % 0x7fff_ffff + 1;
        self.last_ack = next;
        self.last_light = next;
        if self.history.len() == HISTORY {
            self.history.remove(0);
        }
        self.history.push((self.ack_number, next, now));
        let speed = (now.since(self.last_speed_at) > SYN_NS).then(|| {
            self.last_speed_at = now;
            (self.estimator.arrival_pps(), self.estimator.capacity_pps())
        });
        let microseconds = |ns: u64| u32::try_from(ns / MICROSECOND_NS).unwrap_or(u32::MAX);
        let rates = AckRates {
            rtt_us: microseconds(self.rtt.smoothed_ns()),
            rtt_variation_us: microseconds(self.rtt.variation_ns()),
            window_packets: u32::try_from(free_packets.max(WINDOW_MIN)).unwrap_or(u32::MAX),
            speed,
        };
        writer.ack(
            self.ack_number,
            &Ack {
                next: Seq::of(next),
                rates: Some(rates),
            },
        );
    }

    /// The peer has our ACK.
    pub(crate) fn handle_ack2(&mut self, now: Time, number: u32) {
        let Some(index) = self.history.iter().position(|entry| entry.0 == number) else {
            return;
        };
        let (_, next, at) = self.history[index];
        self.acknowledged = self.acknowledged.max(next);
        self.rtt.update(now, now.since(at));
        self.history.drain(..=index);
    }
}

/// The packet that [`PlainFeedback::write`] has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlainControl {
    Ack,
    /// Only the header: the ranges follow by [`append_losses`].
    Nak {
        repeat_ns: u64,
    },
}

/// Appends all holes that have not been reported for `repeat_ns`, and marks them reported.
pub(crate) fn append_losses(now: Time, holes: &mut Holes, repeat_ns: u64, out: &mut Vec<u8>) {
    let limit = out.len() + NAK_WORDS_MAX * 4;
    for hole in holes.iter_mut() {
        if out.len() + 8 > limit {
            return;
        }
        if hole.reported == Time::ZERO || now.since(hole.reported) > repeat_ns {
            hole.reported = now;
            push_range(out, hole.start, hole.end - 1);
        }
    }
}
