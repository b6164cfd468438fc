//! A token bucket: how much may leave now, and when more may.

use haul_iwarp::{SECOND_NS, Time};
use haul_verbs::RateLimit;

/// Bytes that may leave back to back after a pause, by default.
const BURST_BYTES: u64 = 64 << 10;

/// Bytes per second, and a burst.
#[derive(Debug)]
pub(super) struct Bucket {
    rate: u64,
    full: i64,
    /// What each datagram costs beyond its payload.
    overhead: usize,
    /// In bytes; below zero after a datagram that was let through on credit.
    tokens: i64,
    filled: Time,
}

impl Bucket {
    /// A full one, of payload. A rate of zero is taken for one byte a second.
    pub(super) fn of_payload(rate: u64, now: Time) -> Self {
        Self::new(rate, BURST_BYTES, 0, now)
    }

    /// A full one, of all that is on the wire, where headers and checksum of a datagram are
    /// `overhead`.
    pub(super) fn of_wire(limit: RateLimit, overhead: usize, now: Time) -> Self {
        let burst = limit.max_burst_bytes.unwrap_or(BURST_BYTES);
        Self::new(limit.bits_per_second / 8, burst, overhead, now)
    }

    fn new(rate: u64, burst: u64, overhead: usize, now: Time) -> Self {
        let full = i64::try_from(burst).unwrap_or(i64::MAX).max(1);
        Self {
            rate: rate.max(1),
            full,
            overhead,
            tokens: full,
            filled: now,
        }
    }

    /// When the next datagram may leave, if not now.
    pub(super) fn due(&self) -> Option<Time> {
        if self.tokens > 0 {
            return None;
        }
        let lack = u128::from(self.tokens.unsigned_abs()) + 1;
        let ns = (lack * u128::from(SECOND_NS)).div_ceil(u128::from(self.rate));
        Some(self.filled.after(u64::try_from(ns).unwrap_or(u64::MAX)))
    }

    /// Whether a datagram may leave at `now`.
    pub(super) fn is_open(&mut self, now: Time) -> bool {
        let passed = now.as_ns().saturating_sub(self.filled.as_ns());
        let gained = u128::from(passed) * u128::from(self.rate) / u128::from(SECOND_NS);
        let gained = u64::try_from(gained).unwrap_or(u64::MAX);
        if gained > 0 {
            // What is not a whole byte yet stays in the clock.
            let spent = u128::from(gained) * u128::from(SECOND_NS) / u128::from(self.rate);
            self.filled = self.filled.after(u64::try_from(spent).unwrap_or(u64::MAX));
            let gained = i64::try_from(gained).unwrap_or(i64::MAX);
            self.tokens = self.tokens.saturating_add(gained).min(self.full);
        }
        self.tokens > 0
    }

    /// A datagram with so many bytes of payload has left.
    pub(super) fn take(&mut self, bytes: usize) {
        let bytes = i64::try_from(bytes + self.overhead).unwrap_or(i64::MAX);
        self.tokens = self.tokens.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_the_long_run_no_more_leaves_than_the_rate_and_a_burst() {
        for rate in [1, 999, 125_000, 10_000_000_000] {
            let mut bucket = Bucket::of_payload(rate, Time::from_ns(5));
            let (mut now, mut sent) = (Time::from_ns(5), 0_u128);
            for _ in 0..10_000 {
                if bucket.is_open(now) {
                    bucket.take(1_400);
                    sent += 1_400;
                } else {
                    let due = bucket.due().unwrap_or(now);
                    assert!(due > now, "{rate}");
                    now = due;
                }
            }
            let passed = u128::from(now.as_ns() - 5);
            let allowed = passed * u128::from(rate) / u128::from(SECOND_NS) + 65_536 + 1_400;
            assert!(sent <= allowed && sent + 140_000 > allowed, "{rate} {sent}");
        }
    }

    #[test]
    fn a_rest_earns_no_more_than_a_burst() {
        let mut bucket = Bucket::of_payload(1_000_000, Time::default());
        let later = Time::from_ns(100 * SECOND_NS);
        let mut count = 0;
        while bucket.is_open(later) {
            bucket.take(1_024);
            count += 1;
        }
        assert_eq!(count, 64);
    }

    #[test]
    fn a_limit_of_the_wire_counts_what_is_around_the_payload() {
        let limit = RateLimit::new(8_000_000).with_burst(Some(15_000));
        let mut bucket = Bucket::of_wire(limit, 100, Time::default());
        let mut count = 0;
        while bucket.is_open(Time::default()) {
            bucket.take(1_400);
            count += 1;
        }
        assert_eq!(count, 10);
        assert_eq!(bucket.due().map(|due| due.as_ns().div_ceil(1_000)), Some(1));
    }
}
