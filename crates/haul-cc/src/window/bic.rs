//! BIC (L. Xu, K. Harfoush, I. Rhee, "Binary Increase Congestion Control (BIC) for Fast
//! Long-Distance Networks", INFOCOM 2004): a search for the window between what is left after a
//! loss and where the loss was.
//!
//! The window grows by half of the distance to its value before the loss per round trip, by
//! [`INCREMENT_MAX`] packets at most, slowly near that value, and mirror-symmetrically beyond it.
//! The reduction and the threshold of "near" follow Linux, which reduces by a fifth, not the
//! paper's eighth. (Linux's constants are 16 packets and a quarter of the distance, applied twice
//! per round trip.)

use super::{Law, Progress};

/// Binary increase.
#[derive(Debug, Default)]
pub struct Bic {
    /// Where the last loss was, packets; less with fast convergence.
    window_max: f64,
}

/// The factor of a reduction.
const BETA: f64 = 0.8;
/// Reno's rule up to this window, packets.
const LOW_WINDOW: f64 = 14.0;
/// Most packets more per round trip.
const INCREMENT_MAX: f64 = 32.0;
/// Packets more per round trip near the old window, which is so much below it or so much above,
/// packets.
const INCREMENT_NEAR: f64 = 0.4;
const NEAR_BELOW: f64 = 8.0;
const NEAR_ABOVE: f64 = 4.0;
/// The part of the distance that a round trip adds, below the old window and above.
const SHARE_BELOW: f64 = 1.0 / 2.0;
const SHARE_ABOVE: f64 = 2.0 / 3.0;

impl Bic {
    /// Packets more per round trip.
    fn increment(&self, window: f64) -> f64 {
        let below = self.window_max - window;
        if window <= LOW_WINDOW {
            1.0
        } else if (-NEAR_ABOVE..NEAR_BELOW).contains(&below) {
            INCREMENT_NEAR
        } else {
            (below * SHARE_BELOW)
                .max(-below * SHARE_ABOVE)
                .min(INCREMENT_MAX)
        }
    }
}

impl Law for Bic {
    const SLOW_START: &'static str = "bic/slow-start";
    const AVOIDANCE: &'static str = "bic/avoidance";

    fn grow(&mut self, progress: &Progress, window: f64) -> f64 {
        window + self.increment(window) * progress.acked / window
    }

    fn reduce(&mut self, window: f64) -> f64 {
        self.window_max = if window < self.window_max {
            // Fast convergence: a loss below the old window means that another flow has joined.
            window * (1.0 + BETA) / 2.0
        } else {
            window
        };
        if window <= LOW_WINDOW {
            window / 2.0
        } else {
            window * BETA
        }
    }
}
