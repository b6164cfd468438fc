//! Reno (RFC 5681 §3.1): a packet more per round trip, half after a loss.

use super::{Law, Progress};

/// The classic rule. It has no state of its own.
#[derive(Debug, Default)]
pub struct Reno;

impl Law for Reno {
    const SLOW_START: &'static str = "reno/slow-start";
    const AVOIDANCE: &'static str = "reno/avoidance";

    fn grow(&mut self, progress: &Progress, window: f64) -> f64 {
        window + progress.acked / window
    }

    fn reduce(&mut self, window: f64) -> f64 {
        window / 2.0
    }
}
