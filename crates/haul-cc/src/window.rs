//! The common part of all window-based controls (RFC 5681): slow start, one reduction for the
//! losses of a round trip, no growth until that round trip is over, and pacing by the window.
//! Growth in congestion avoidance and the reduction after a loss are each one's [`Law`].

mod bic;
mod cubic;
mod high_speed;
mod htcp;
mod reno;
mod scalable;
mod vegas;

use std::fmt::Debug;

use crate::controller::{Ack, Controller, Loss, Rate, Snapshot};
use crate::time::Time;
pub use bic::Bic;
pub use cubic::Cubic;
pub use high_speed::HighSpeed;
pub use htcp::Htcp;
pub use reno::Reno;
pub use scalable::Scalable;
pub use vegas::Vegas;

/// How one control changes its window, in packets.
pub trait Law: Debug + Send {
    /// [`Snapshot::state`] in slow start.
    const SLOW_START: &'static str;
    /// [`Snapshot::state`] in congestion avoidance.
    const AVOIDANCE: &'static str;

    /// Takes what the path shows, in slow start and in congestion avoidance. A window in the answer
    /// ends slow start with it.
    fn measure(&mut self, progress: &Progress, window: f64) -> Option<f64> {
        let _ = (progress, window);
        None
    }

    /// The window after [`Progress::acked`] packets were acknowledged in congestion avoidance.
    fn grow(&mut self, progress: &Progress, window: f64) -> f64;

    /// Returns the window after a loss.
    fn reduce(&mut self, window: f64) -> f64;
}

/// Progress of data that arrived, while nothing is being recovered.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// When it came.
    pub now: Time,
    /// Packets acknowledged.
    pub acked: f64,
    /// Round-trip time of the newest of them, ns.
    pub rtt_ns: Option<u64>,
    /// Smoothed round-trip time, ns.
    pub smoothed_rtt_ns: u64,
}

/// A window that changes by the law `L`.
#[derive(Debug)]
pub struct Window<L> {
    law: L,
    packet_bytes: f64,
    /// In packets; fractional so that growth below one packet per report is not lost.
    window: f64,
    /// Slow start goes on below this.
    threshold: f64,
    rtt_ns: u64,
    /// No further reduction for losses of packets sent before this one.
    recovery_until: u64,
    /// Bytes in flight at the reduction of which nothing has been received; until there are none,
    /// nothing grows.
    recovery_bytes: u64,
}

/// The window of before anything is known, packets.
const INITIAL_WINDOW: f64 = 64.0;
const MINIMUM_WINDOW: f64 = 4.0;
/// Windows beyond this are not meaningful in f64 arithmetic of packets and bytes.
const WINDOW_CEILING: f64 = 1e9;
const PACING_PERCENT_SLOW_START: u64 = 200;
const PACING_PERCENT: u64 = 120;

impl<L: Law> Window<L> {
    /// Makes a control by `law` for packets of `packet_bytes` wire bytes.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "packet sizes are far below 2^52"
    )]
    pub fn new(law: L, packet_bytes: u64) -> Self {
        Self {
            law,
            packet_bytes: packet_bytes as f64,
            window: INITIAL_WINDOW,
            threshold: f64::INFINITY,
            rtt_ns: 0,
            recovery_until: 0,
            recovery_bytes: 0,
        }
    }

    /// Returns the law, with its state.
    #[must_use]
    pub fn law(&self) -> &L {
        &self.law
    }

    fn is_slow_start(&self) -> bool {
        self.window < self.threshold
    }

    /// Takes what is acknowledged off what is being recovered; answers what is beyond it.
    fn recover(&mut self, acked_bytes: u64) -> u64 {
        let recovered = acked_bytes.min(self.recovery_bytes);
        self.recovery_bytes -= recovered;
        acked_bytes - recovered
    }

    fn reduce(&mut self) {
        self.window = self.law.reduce(self.window).max(MINIMUM_WINDOW);
        self.threshold = self.window;
    }
}

impl<L: Law> Controller for Window<L> {
    #[expect(
        clippy::cast_precision_loss,
        reason = "bytes per report are far below 2^52"
    )]
    fn handle_ack(&mut self, now: Time, ack: &Ack) {
        self.rtt_ns = ack.smoothed_rtt_ns;
        let window_used = ack.in_flight_bytes + ack.acked_bytes >= self.window_bytes() * 3 / 4;
        let acked_bytes = self.recover(ack.acked_bytes);
        if acked_bytes == 0 || (ack.app_limited && !window_used) {
            return;
        }
        let progress = Progress {
            now,
            acked: acked_bytes as f64 / self.packet_bytes,
            rtt_ns: ack.rtt_ns,
            smoothed_rtt_ns: ack.smoothed_rtt_ns,
        };
        let enough = self.law.measure(&progress, self.window);
        if !self.is_slow_start() {
            let grown = self.law.grow(&progress, self.window);
            self.window = grown.clamp(MINIMUM_WINDOW, WINDOW_CEILING);
            // A law may also take something off: that is no reason to start slowly again.
            self.threshold = self.threshold.min(self.window);
        } else if let Some(window) = enough {
            self.window = window.max(MINIMUM_WINDOW);
            self.threshold = self.window;
        } else {
            self.window = (self.window + progress.acked).min(WINDOW_CEILING);
        }
    }

    fn handle_loss(&mut self, _now: Time, loss: &Loss) {
        if loss.first_packet < self.recovery_until {
            self.recover(loss.lost_bytes);
            return;
        }
        self.recovery_until = loss.next_packet;
        self.recovery_bytes = loss.in_flight_bytes;
        self.reduce();
    }

    fn handle_timeout(&mut self, _now: Time) {
        self.reduce();
        self.window = MINIMUM_WINDOW;
        self.recovery_bytes = 0;
    }

    fn pacing_rate(&self) -> Rate {
        if self.rtt_ns == 0 {
            return Rate::UNLIMITED;
        }
        let gain = if self.is_slow_start() {
            PACING_PERCENT_SLOW_START
        } else {
            PACING_PERCENT
        };
        Rate::of(self.window_bytes(), self.rtt_ns).percent(gain)
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the window is clamped to a positive range far below 2^52 bytes"
    )]
    fn window_bytes(&self) -> u64 {
        (self.window * self.packet_bytes) as u64
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            state: if self.is_slow_start() {
                L::SLOW_START
            } else {
                L::AVOIDANCE
            },
            pacing: self.pacing_rate(),
            window_bytes: self.window_bytes(),
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "round trips and epochs are far below 2^52 ns"
)]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests;
