//! Delay that wanders without reordering.
//!
//! Independent random delays would either reorder packets or, if order is forced on them, pile them
//! up behind the slowest one, so that the delay is always near its maximum. So the delay is a
//! function of time instead: straight lines between random knots [`KNOT_JITTERS`] jitters apart.
//! Its slope is at most one half, so of two packets the earlier one always arrives first, and the
//! mean stays where it was asked for, at any packet rate.

use crate::rng::Rng;

/// Distance of two knots, in multiples of the jitter: the slope is at most 2 / 4.
const KNOT_JITTERS: u64 = 4;

#[derive(Clone, Debug)]
pub(crate) struct Jitter {
    jitter_ns: u64,
    from: Knot,
    to: Knot,
    rng: Rng,
}

#[derive(Clone, Copy, Debug, Default)]
struct Knot {
    at_ns: u64,
    /// `0 <= offset_ns <= 2 * jitter_ns`: the deviation, shifted to be positive.
    offset_ns: u64,
}

impl Jitter {
    pub(crate) fn new(jitter_ns: u64, rng: Rng) -> Self {
        Self {
            jitter_ns,
            from: Knot::default(),
            to: Knot::default(),
            rng,
        }
    }

    pub(crate) fn set(&mut self, jitter_ns: u64) {
        if jitter_ns != self.jitter_ns {
            self.jitter_ns = jitter_ns;
            (self.from, self.to) = (Knot::default(), Knot::default());
        }
    }

    /// `base_ns ± jitter` for a packet that leaves now; never below zero.
    #[inline]
    pub(crate) fn delay_ns(&mut self, departure_ns: u64, base_ns: u64) -> u64 {
        if self.jitter_ns == 0 {
            return base_ns;
        }
        if departure_ns >= self.to.at_ns {
            self.advance(departure_ns);
        }
        let span = u128::from((self.to.at_ns - self.from.at_ns).max(1));
        let done = u128::from(departure_ns.saturating_sub(self.from.at_ns)).min(span);
        let weighted =
            u128::from(self.from.offset_ns) * (span - done) + u128::from(self.to.offset_ns) * done;
        let offset_ns = u64::try_from(weighted / span).unwrap_or(u64::MAX);
        base_ns
            .saturating_add(offset_ns)
            .saturating_sub(self.jitter_ns)
    }

    /// The line that covers this time. After a pause longer than a line, a new one starts here.
    fn advance(&mut self, departure_ns: u64) {
        let span_ns = self.jitter_ns.saturating_mul(KNOT_JITTERS);
        self.from = self.to;
        if departure_ns >= self.from.at_ns.saturating_add(span_ns) || self.from.at_ns == 0 {
            self.from = Knot {
                at_ns: departure_ns,
                offset_ns: self.draw(),
            };
        }
        self.to = Knot {
            at_ns: self.from.at_ns.saturating_add(span_ns),
            offset_ns: self.draw(),
        };
    }

    fn draw(&mut self) -> u64 {
        self.rng
            .below(self.jitter_ns.saturating_mul(2).saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn delay_wanders_over_its_whole_range_around_its_mean() {
        let mut jitter = Jitter::new(2 * MS, Rng::new(5));
        let delays: Vec<u64> = (0..1_000_000_u64)
            .map(|i| jitter.delay_ns(i * 12_000, 50 * MS))
            .collect();
        let mean = delays.iter().sum::<u64>() / delays.len() as u64;
        assert!(mean.abs_diff(50 * MS) < MS / 10, "{mean}");
        let (min, max) = (*delays.iter().min().unwrap(), *delays.iter().max().unwrap());
        assert!((48 * MS..48 * MS + MS / 10).contains(&min), "{min}");
        assert!((52 * MS - MS / 10..=52 * MS).contains(&max), "{max}");
    }

    #[test]
    fn order_is_kept_at_any_spacing() {
        let mut jitter = Jitter::new(3 * MS, Rng::new(6));
        let mut rng = Rng::new(8);
        let (mut now, mut last) = (0, 0);
        for _ in 0..200_000 {
            now += rng.below(40_000);
            let at = now + jitter.delay_ns(now, 10 * MS);
            assert!(at >= last);
            last = at;
        }
    }

    #[test]
    fn jitter_above_the_delay_never_goes_back_in_time() {
        let mut jitter = Jitter::new(10 * MS, Rng::new(5));
        for i in 0..10_000 {
            assert!(jitter.delay_ns(i * MS, MS) <= 11 * MS);
        }
    }
}
