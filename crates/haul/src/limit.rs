//! A limit on the rate of a transfer, which may change while it runs.
//!
//! The sending side paces what its channel may read. A client that receives sends the limit to the
//! server, which then paces.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time in which a channel that was idle may catch up.
const BURST: Duration = Duration::from_millis(50);
/// Minimum burst, bytes: several packets, so that few are short.
const BURST_MIN: u64 = 32 << 10;

/// A limit that all its clones share. At first there is none.
#[derive(Debug, Clone, Default)]
pub struct Limit(Arc<AtomicU64>);

impl Limit {
    /// Sets the limit, bits per second; `None` is none.
    pub fn set(&self, rate_bps: Option<u64>) {
        self.0.store(rate_bps.unwrap_or(0), Ordering::Relaxed);
    }

    /// Returns the limit, bits per second.
    #[must_use]
    pub fn rate_bps(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|rate| *rate > 0)
    }
}

/// Which offsets of a transfer space may be read now.
#[derive(Debug)]
pub(crate) struct Pacer {
    limit: Limit,
    /// Offsets below this one may be read.
    end: u64,
    at: Option<Instant>,
}

impl Pacer {
    pub(crate) fn new(limit: Limit) -> Self {
        Self {
            limit,
            end: 0,
            at: None,
        }
    }

    /// Returns the limit.
    pub(crate) fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Returns the end of what may be read at `now`. What lies below `taken` has been read.
    pub(crate) fn end(&mut self, taken: u64, now: Instant) -> u64 {
        let Some(rate_bps) = self.limit.rate_bps() else {
            self.at = None;
            return u64::MAX;
        };
        let bytes = |time: Duration| {
            let bytes = u128::from(rate_bps) * time.as_nanos() / 8_000_000_000;
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        let since = self.at.map(|at| now.saturating_duration_since(at));
        let earned = since.map_or(0, bytes);
        let burst = bytes(BURST).max(BURST_MIN);
        // Little by little it would be short packets.
        if earned >= burst / 4 || self.at.is_none() {
            self.end = self
                .end
                .max(taken)
                .saturating_add(earned)
                .min(taken.saturating_add(burst));
            self.at = Some(now);
        }
        self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads all that it may each millisecond; returns the bytes.
    fn read(pacer: &mut Pacer, taken: &mut u64, from: Instant, time: Duration) -> u64 {
        let before = *taken;
        for ms in 0..=u64::try_from(time.as_millis()).unwrap() {
            *taken = pacer
                .end(*taken, from + Duration::from_millis(ms))
                .max(*taken);
        }
        *taken - before
    }

    #[test]
    fn the_rate_is_the_limit_also_after_it_changes_and_after_a_pause() {
        let limit = Limit::default();
        let (mut pacer, start) = (Pacer::new(limit.clone()), Instant::now());
        assert_eq!(pacer.end(5, start), u64::MAX);
        let (mut taken, second) = (1000, Duration::from_secs(1));
        for (index, rate) in [8_000_000, 64_000, 800_000_000].into_iter().enumerate() {
            limit.set(Some(rate));
            // Each time after a minute in which nothing was read.
            let from = start + Duration::from_secs(60 * (index as u64 + 1));
            let moved = read(&mut pacer, &mut taken, from, second * 10);
            let ideal = rate / 8 * 10;
            assert!(moved <= ideal + ideal / 50 + BURST_MIN, "{rate}: {moved}");
            assert!(moved >= ideal - ideal / 20 - BURST_MIN, "{rate}: {moved}");
        }
        limit.set(None);
        assert_eq!(pacer.end(taken, start), u64::MAX);
    }
}
