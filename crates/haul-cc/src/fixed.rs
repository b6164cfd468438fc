//! A declared rate: for a dedicated circuit, or under a policer whose limit is known.
//!
//! Loss is ignored; the window only bounds what is sent into a dead path.

use crate::controller::{Ack, Controller, Loss, Rate, Snapshot};
use crate::time::{MILLISECOND_NS, Time};

/// Sends at the declared rate.
#[derive(Debug)]
pub struct Fixed {
    rate: Rate,
    packet_bytes: u64,
    rtt_ns: u64,
}

/// Round trips in flight: one, and what waits for a retransmission or for delayed feedback.
const WINDOW_RTTS: u64 = 3;
/// At exactly the link's rate a queue that once arose would stand for ever, and every late batch
/// would overflow it.
const DRAIN_PER_MILLE: u64 = 995;
const FEEDBACK_NS_MIN: u64 = MILLISECOND_NS;
const FEEDBACK_NS_MAX: u64 = 5 * MILLISECOND_NS;
const WINDOW_PACKETS_MIN: u64 = 256;
const INITIAL_RTT_NS: u64 = 300 * MILLISECOND_NS;
const SLACK_NS: u64 = 50 * MILLISECOND_NS;

impl Fixed {
    /// Makes a control for `rate`, wire bytes per second.
    #[must_use]
    pub fn new(rate: Rate, packet_bytes: u64) -> Self {
        Self {
            rate,
            packet_bytes,
            rtt_ns: INITIAL_RTT_NS,
        }
    }
}

impl Controller for Fixed {
    fn handle_ack(&mut self, _now: Time, ack: &Ack) {
        self.rtt_ns = ack.smoothed_rtt_ns;
    }

    fn handle_loss(&mut self, _now: Time, _loss: &Loss) {}

    fn handle_timeout(&mut self, _now: Time) {}

    fn pacing_rate(&self) -> Rate {
        Rate::from_bytes_per_second(self.rate.bytes_per_second() / 1_000 * DRAIN_PER_MILLE)
    }

    fn feedback_interval_ns(&self) -> u64 {
        (self.rtt_ns / 2).clamp(FEEDBACK_NS_MIN, FEEDBACK_NS_MAX)
    }

    fn window_bytes(&self) -> u64 {
        self.rate
            .bytes_in(self.rtt_ns * WINDOW_RTTS + SLACK_NS)
            .max(WINDOW_PACKETS_MIN * self.packet_bytes)
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            state: "fixed",
            pacing: self.pacing_rate(),
            window_bytes: self.window_bytes(),
        }
    }
}
