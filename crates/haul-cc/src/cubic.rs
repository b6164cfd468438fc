//! CUBIC (RFC 9438), paced. Loss means congestion; at most one reduction per round trip.

use crate::controller::{Ack, Controller, Loss, Rate, Snapshot};
use crate::time::Time;

/// Window growth by the cube of the time since the last loss.
#[derive(Debug)]
pub struct Cubic {
    packet_bytes: f64,
    /// Window in packets; fractional so that growth below one packet per report is not lost.
    window: f64,
    threshold: f64,
    window_max: f64,
    /// Start of the congestion avoidance epoch and the time to regain `window_max`, seconds.
    epoch: Option<(Time, f64)>,
    /// Window that Reno would have (RFC 9438 §4.3).
    reno: f64,
    rtt_ns: u64,
    /// No further reduction for losses of packets sent before this one.
    recovery_until: u64,
}

/// RFC 9438 §4.6.
const BETA: f64 = 0.7;
/// RFC 9438 §5.
const C: f64 = 0.4;
const INITIAL_WINDOW: f64 = 64.0;
const MINIMUM_WINDOW: f64 = 4.0;
/// Windows beyond this are not meaningful in f64 arithmetic of packets and bytes.
const WINDOW_CEILING: f64 = 1e9;
/// RFC 9438 §4.3.
const RENO_ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
const PACING_PERCENT_SLOW_START: u64 = 200;
const PACING_PERCENT: u64 = 120;

impl Cubic {
    /// A control for packets of `packet_bytes` wire bytes.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "packet sizes are far below 2^52"
    )]
    pub fn new(packet_bytes: u64) -> Self {
        Self {
            packet_bytes: packet_bytes as f64,
            window: INITIAL_WINDOW,
            threshold: f64::INFINITY,
            window_max: 0.0,
            epoch: None,
            reno: 0.0,
            rtt_ns: 0,
            recovery_until: 0,
        }
    }

    /// A control that goes on from `window_bytes` without slow start.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "windows are far below 2^52 bytes"
    )]
    pub fn resume(packet_bytes: u64, window_bytes: u64) -> Self {
        let window = (window_bytes as f64 / packet_bytes as f64).max(MINIMUM_WINDOW);
        Self {
            window,
            threshold: window,
            window_max: window,
            ..Self::new(packet_bytes)
        }
    }

    /// The time to regain the window of before a reduction (RFC 9438 §4.2), ns.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cube root of a window below the ceiling is minutes at most"
    )]
    pub(crate) fn regain_ns(&self) -> u64 {
        ((self.window_max * (1.0 - BETA) / C).cbrt() * 1e9) as u64
    }

    fn is_slow_start(&self) -> bool {
        self.window < self.threshold
    }

    fn grow(&mut self, now: Time, acked: f64) {
        let (start, regain) = *self.epoch.get_or_insert_with(|| {
            self.reno = self.window;
            self.window_max = self.window_max.max(self.window);
            (now, ((self.window_max - self.window) / C).cbrt())
        });
        let rtt = seconds(self.rtt_ns);
        let elapsed = seconds(now.since(start)) + rtt;
        let cubic = C * (elapsed - regain).powi(3) + self.window_max;
        self.reno += RENO_ALPHA * acked / self.window;
        let target = cubic.clamp(self.window, 1.5 * self.window).max(self.reno);
        self.window += (target - self.window) / self.window * acked;
        self.window = self.window.clamp(MINIMUM_WINDOW, WINDOW_CEILING);
    }

    fn reduce(&mut self) {
        let fast_convergence = self.window < self.window_max;
        self.window_max = if fast_convergence {
            self.window * (1.0 + BETA) / 2.0
        } else {
            self.window
        };
        self.window = (self.window * BETA).max(MINIMUM_WINDOW);
        self.threshold = self.window;
        self.epoch = None;
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "round trips and epochs are far below 2^52 ns"
)]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

impl Controller for Cubic {
    #[expect(
        clippy::cast_precision_loss,
        reason = "bytes per report are far below 2^52"
    )]
    fn handle_ack(&mut self, now: Time, ack: &Ack) {
        self.rtt_ns = ack.smoothed_rtt_ns;
        let window_used = ack.in_flight_bytes + ack.acked_bytes >= self.window_bytes() * 3 / 4;
        if ack.app_limited && !window_used {
            return;
        }
        let acked = ack.acked_bytes as f64 / self.packet_bytes;
        if self.is_slow_start() {
            self.window = (self.window + acked).min(WINDOW_CEILING);
        } else {
            self.grow(now, acked);
        }
    }

    fn handle_loss(&mut self, _now: Time, loss: &Loss) {
        if loss.first_packet < self.recovery_until {
            return;
        }
        self.recovery_until = loss.next_packet;
        self.reduce();
    }

    fn handle_timeout(&mut self, _now: Time) {
        self.reduce();
        self.window = MINIMUM_WINDOW;
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
        let state = if self.is_slow_start() {
            "cubic/slow-start"
        } else {
            "cubic/avoidance"
        };
        Snapshot {
            state,
            pacing: self.pacing_rate(),
            window_bytes: self.window_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::MILLISECOND_NS;

    const PACKET: u64 = 1_500;

    fn full_ack(cubic: &Cubic) -> Ack {
        Ack {
            acked_bytes: cubic.window_bytes(),
            smoothed_rtt_ns: 100 * MILLISECOND_NS,
            in_flight_bytes: cubic.window_bytes(),
            ..Ack::default()
        }
    }

    #[test]
    fn slow_start_doubles_per_round_trip() {
        let mut cubic = Cubic::new(PACKET);
        let before = cubic.window_bytes();
        cubic.handle_ack(Time::ZERO, &full_ack(&cubic));
        assert_eq!(cubic.window_bytes(), 2 * before);
    }

    #[test]
    fn one_reduction_per_round_trip_by_beta() {
        let mut cubic = Cubic::new(PACKET);
        let before = cubic.window_bytes();
        cubic.handle_loss(
            Time::ZERO,
            &Loss {
                first_packet: 5,
                next_packet: 64,
                ..Loss::default()
            },
        );
        cubic.handle_loss(
            Time::ZERO,
            &Loss {
                first_packet: 9,
                next_packet: 64,
                ..Loss::default()
            },
        );
        assert_eq!(cubic.window_bytes(), before * 7 / 10);
    }

    #[test]
    fn regains_the_old_window_in_about_the_cubic_time() {
        let mut cubic = Cubic::new(PACKET);
        for _ in 0..7 {
            cubic.handle_ack(Time::ZERO, &full_ack(&cubic));
        }
        let before = cubic.window_bytes();
        cubic.handle_loss(
            Time::ZERO,
            &Loss {
                first_packet: 1,
                next_packet: 2,
                ..Loss::default()
            },
        );
        let packets = f64::from(u32::try_from(before / PACKET).unwrap());
        let regain_rounds = (packets * 0.3 / 0.4).cbrt() / 0.1;
        let mut rounds = 0_u32;
        while cubic.window_bytes() < before * 99 / 100 {
            let now =
                Time::from_ns(MILLISECOND_NS * 100).after(100 * MILLISECOND_NS * u64::from(rounds));
            cubic.handle_ack(now, &full_ack(&cubic));
            rounds += 1;
            assert!(rounds < 1_000);
        }
        let rounds = f64::from(rounds);
        assert!(
            rounds > regain_rounds * 0.6 && rounds < regain_rounds * 1.2,
            "{rounds} {regain_rounds}"
        );
    }

    #[test]
    fn an_idle_sender_does_not_grow() {
        let mut cubic = Cubic::new(PACKET);
        let before = cubic.window_bytes();
        let ack = Ack {
            acked_bytes: PACKET,
            app_limited: true,
            smoothed_rtt_ns: 1,
            ..Ack::default()
        };
        cubic.handle_ack(Time::ZERO, &ack);
        assert_eq!(cubic.window_bytes(), before);
    }
}
