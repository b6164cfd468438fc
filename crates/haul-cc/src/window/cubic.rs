//! CUBIC (RFC 9438): growth by the cube of the time since the last loss, so that the window is flat
//! where the loss was.

use super::{Law, MINIMUM_WINDOW, Progress, Window, seconds};
use crate::time::Time;

/// Window growth by the cube of the time since the last loss.
#[derive(Debug, Default)]
pub struct Cubic {
    window_max: f64,
    /// Start of the congestion avoidance epoch and the time to regain `window_max`, seconds.
    epoch: Option<(Time, f64)>,
    /// Window that Reno would have (RFC 9438 §4.3).
    reno: f64,
}

/// RFC 9438 §4.6.
const BETA: f64 = 0.7;
/// RFC 9438 §5.
const C: f64 = 0.4;
/// RFC 9438 §4.3.
const RENO_ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

impl Cubic {
    /// A law that has last seen a loss at `window`, packets.
    pub(super) fn since(window: f64) -> Self {
        Self {
            window_max: window,
            ..Self::default()
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
}

impl Window<Cubic> {
    /// Makes a control that goes on from `window_bytes` without slow start.
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
            ..Self::new(Cubic::since(window), packet_bytes)
        }
    }
}

impl Law for Cubic {
    const SLOW_START: &'static str = "cubic/slow-start";
    const AVOIDANCE: &'static str = "cubic/avoidance";

    fn grow(&mut self, progress: &Progress, window: f64) -> f64 {
        let (start, regain) = *self.epoch.get_or_insert_with(|| {
            self.reno = window;
            self.window_max = self.window_max.max(window);
            (progress.now, ((self.window_max - window) / C).cbrt())
        });
        let elapsed = seconds(progress.now.since(start)) + seconds(progress.smoothed_rtt_ns);
        let cubic = C * (elapsed - regain).powi(3) + self.window_max;
        self.reno += RENO_ALPHA * progress.acked / window;
        let target = cubic.clamp(window, 1.5 * window).max(self.reno);
        window + (target - window) / window * progress.acked
    }

    fn reduce(&mut self, window: f64) -> f64 {
        let fast_convergence = window < self.window_max;
        self.window_max = if fast_convergence {
            window * (1.0 + BETA) / 2.0
        } else {
            window
        };
        self.epoch = None;
        window * BETA
    }
}
