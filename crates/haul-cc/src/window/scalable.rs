//! Scalable TCP (T. Kelly, "Scalable TCP: Improving Performance in Highspeed Wide Area Networks",
//! CCR 33(2), 2003): both steps in proportion to the window, so that recovery takes the same number
//! of round trips at any rate.

use super::{Law, Progress};

/// Multiplicative increase, multiplicative decrease. It has no state of its own.
#[derive(Debug, Default)]
pub struct Scalable;

/// Growth by each packet acknowledged (§3 of the paper).
const INCREASE: f64 = 0.01;
/// The factor of a reduction (§3 of the paper: by an eighth).
const BETA: f64 = 0.875;

impl Law for Scalable {
    const SLOW_START: &'static str = "scalable/slow-start";
    const AVOIDANCE: &'static str = "scalable/avoidance";

    /// Below 100 packets Reno is faster; the paper changes over where it carries as much (16
    /// packets).
    fn grow(&mut self, progress: &Progress, window: f64) -> f64 {
        window + progress.acked * INCREASE.max(1.0 / window)
    }

    fn reduce(&mut self, window: f64) -> f64 {
        window * BETA
    }
}
