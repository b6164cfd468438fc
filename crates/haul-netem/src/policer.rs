//! A token bucket that drops what exceeds it.

use crate::config::Policer;

/// Tokens that one byte costs: a nanosecond at `rate_bps` brings `rate_bps` tokens.
const BYTE_TOKENS: u128 = 8_000_000_000;

#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    rate_bps: u128,
    full: u128,
    /// `0 <= tokens <= full`
    tokens: u128,
    filled_ns: u64,
}

impl Bucket {
    pub(crate) fn new(policer: Policer) -> Self {
        let full = u128::from(policer.burst_bytes) * BYTE_TOKENS;
        Self {
            rate_bps: policer.rate_bps.max(1).into(),
            full,
            tokens: full,
            filled_ns: 0,
        }
    }

    /// Whether the packet passes; if it does, its tokens are spent.
    pub(crate) fn admit(&mut self, now_ns: u64, wire_bytes: u32) -> bool {
        let elapsed = now_ns.saturating_sub(self.filled_ns);
        self.filled_ns = now_ns;
        self.tokens = (self.tokens + u128::from(elapsed) * self.rate_bps).min(self.full);
        let cost = u128::from(wire_bytes) * BYTE_TOKENS;
        let passes = cost <= self.tokens;
        if passes {
            self.tokens -= cost;
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_bucket_passes_its_burst_and_no_more() {
        let mut bucket = Bucket::new(Policer {
            rate_bps: 8_000_000_000,
            burst_bytes: 10_000,
        });
        assert_eq!((0..20).filter(|_| bucket.admit(0, 1000)).count(), 10);
    }

    #[test]
    fn an_empty_bucket_fills_to_the_nanosecond() {
        let mut bucket = Bucket::new(Policer {
            rate_bps: 8_000_000_000,
            burst_bytes: 10_000,
        });
        assert!(bucket.admit(0, 10_000));
        assert!(!bucket.admit(999, 1000));
        assert!(bucket.admit(1000, 1000));
        assert!(!bucket.admit(1000, 1));
        assert!(
            bucket.admit(u64::MAX, 10_000),
            "an idle bucket is full again, not fuller"
        );
        assert!(!bucket.admit(u64::MAX, 1));
    }

    #[test]
    fn twice_the_rate_passes_half() {
        let mut bucket = Bucket::new(Policer {
            rate_bps: 1_000_000_000,
            burst_bytes: 15_000,
        });
        let passed = (0..100_000_u64)
            .filter(|i| bucket.admit(i * 6000, 1500))
            .count();
        assert!((50_000..=50_011).contains(&passed), "{passed}");
    }
}
