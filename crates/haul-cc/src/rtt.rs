//! Round-trip estimates: smoothed (RFC 6298 §2) and windowed minimum.

use crate::filter::WindowedMin;
use crate::time::{MILLISECOND_NS, SECOND_NS, Time};

/// Smoothed round-trip time, its variation and the recent minimum.
#[derive(Debug, Clone)]
pub struct RttEstimator {
    smoothed_ns: u64,
    variation_ns: u64,
    latest_ns: u64,
    minimum: WindowedMin,
    sampled: bool,
}

/// UDT starts from 100 ms and 50 ms (libudt `core.cpp`), which also serves as a guess for anybody's
/// WAN.
const INITIAL_SMOOTHED_NS: u64 = 100 * MILLISECOND_NS;
const INITIAL_VARIATION_NS: u64 = 50 * MILLISECOND_NS;
/// A path's base delay may change; what is older than this no longer counts.
const MINIMUM_WINDOW_NS: u64 = 30 * SECOND_NS;

impl Default for RttEstimator {
    fn default() -> Self {
        Self {
            smoothed_ns: INITIAL_SMOOTHED_NS,
            variation_ns: INITIAL_VARIATION_NS,
            latest_ns: INITIAL_SMOOTHED_NS,
            minimum: WindowedMin::new(MINIMUM_WINDOW_NS),
            sampled: false,
        }
    }
}

impl RttEstimator {
    /// Takes one measurement.
    pub fn update(&mut self, now: Time, sample_ns: u64) {
        let sample_ns = sample_ns.max(1);
        self.latest_ns = sample_ns;
        self.minimum.update(now, sample_ns);
        if !self.sampled {
            self.sampled = true;
            self.smoothed_ns = sample_ns;
            self.variation_ns = sample_ns / 2;
            return;
        }
        let deviation = self.smoothed_ns.abs_diff(sample_ns);
        self.variation_ns = (3 * self.variation_ns + deviation) / 4;
        self.smoothed_ns = (7 * self.smoothed_ns + sample_ns) / 8;
    }

    /// Takes the peer's own smoothed figures (UDT's ACK carries them), blended as a sample would
    /// be.
    pub fn adopt(&mut self, now: Time, smoothed_ns: u64, variation_ns: u64) {
        self.update(now, smoothed_ns);
        self.variation_ns = (3 * self.variation_ns + variation_ns) / 4;
    }

    /// Whether any measurement was taken.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.sampled
    }

    /// Returns the smoothed round-trip time, ns.
    #[must_use]
    pub fn smoothed_ns(&self) -> u64 {
        self.smoothed_ns
    }

    /// Returns the mean deviation, ns.
    #[must_use]
    pub fn variation_ns(&self) -> u64 {
        self.variation_ns
    }

    /// Returns the latest measurement, ns.
    #[must_use]
    pub fn latest_ns(&self) -> u64 {
        self.latest_ns
    }

    /// Returns the least of the last 30 s, ns; the smoothed guess before any measurement.
    #[must_use]
    pub fn minimum_ns(&self) -> u64 {
        self.minimum.value().unwrap_or(self.smoothed_ns)
    }

    /// Returns `smoothed + 4 * variation` (RFC 6298 §2.3), ns.
    #[must_use]
    pub fn timeout_ns(&self) -> u64 {
        self.smoothed_ns + 4 * self.variation_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_sample_replaces_the_guess_and_later_ones_blend() {
        let mut rtt = RttEstimator::default();
        assert_eq!(rtt.minimum_ns(), INITIAL_SMOOTHED_NS);
        rtt.update(Time::ZERO, 8_000);
        assert_eq!((rtt.smoothed_ns(), rtt.variation_ns()), (8_000, 4_000));
        rtt.update(Time::from_ns(1), 16_000);
        assert_eq!((rtt.smoothed_ns(), rtt.variation_ns()), (9_000, 5_000));
        assert_eq!(rtt.minimum_ns(), 8_000);
        assert_eq!(rtt.timeout_ns(), 29_000);
    }

    #[test]
    fn minimum_forgets_an_old_path() {
        let mut rtt = RttEstimator::default();
        rtt.update(Time::ZERO, 1_000);
        for second in 1..=40 {
            rtt.update(Time::from_ns(second * SECOND_NS), 5_000);
        }
        assert_eq!(rtt.minimum_ns(), 5_000);
    }
}
