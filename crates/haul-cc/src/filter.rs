//! Windowed extremes in constant space, after K. Nichols' algorithm as used for BBR: the best,
//! second-best and third-best of the window, each younger than the one before.

use crate::time::Time;

#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Time,
    value: u64,
}

#[derive(Debug, Clone)]
struct Windowed {
    window_ns: u64,
    best: Option<[Sample; 3]>,
}

impl Windowed {
    fn update(&mut self, at: Time, value: u64, better_or_equal: fn(u64, u64) -> bool) {
        let new = Sample { at, value };
        let Some(best) = &mut self.best else {
            self.best = Some([new; 3]);
            return;
        };
        if better_or_equal(value, best[0].value) || at.since(best[2].at) > self.window_ns {
            *best = [new; 3];
            return;
        }
        if better_or_equal(value, best[1].value) {
            best[1] = new;
            best[2] = new;
        } else if better_or_equal(value, best[2].value) {
            best[2] = new;
        }
        let age = at.since(best[0].at);
        if age > self.window_ns {
            *best = [best[1], best[2], new];
            if at.since(best[0].at) > self.window_ns {
                *best = [best[1], best[2], new];
            }
        } else if best[1].at == best[0].at && age > self.window_ns / 4 {
            best[1] = new;
            best[2] = new;
        } else if best[2].at == best[1].at && age > self.window_ns / 2 {
            best[2] = new;
        }
    }
}

/// The greatest value of the last `window_ns`.
#[derive(Debug, Clone)]
pub struct WindowedMax(Windowed);

impl WindowedMax {
    /// Makes an empty filter over `window_ns` nanoseconds.
    #[must_use]
    pub fn new(window_ns: u64) -> Self {
        Self(Windowed {
            window_ns,
            best: None,
        })
    }

    /// Changes the window; takes effect with the next sample.
    pub fn set_window(&mut self, window_ns: u64) {
        self.0.window_ns = window_ns;
    }

    /// Takes a sample.
    pub fn update(&mut self, at: Time, value: u64) {
        self.0.update(at, value, |new, old| new >= old);
    }

    /// Drops all samples but `value`.
    pub fn reset(&mut self, at: Time, value: u64) {
        self.0.best = Some([Sample { at, value }; 3]);
    }

    /// Returns the maximum; `None` before the first sample.
    #[must_use]
    pub fn value(&self) -> Option<u64> {
        self.0.best.map(|best| best[0].value)
    }
}

/// The least value of the last `window_ns`.
#[derive(Debug, Clone)]
pub struct WindowedMin(Windowed);

impl WindowedMin {
    /// Makes an empty filter over `window_ns` nanoseconds.
    #[must_use]
    pub fn new(window_ns: u64) -> Self {
        Self(Windowed {
            window_ns,
            best: None,
        })
    }

    /// Takes a sample.
    pub fn update(&mut self, at: Time, value: u64) {
        self.0.update(at, value, |new, old| new <= old);
    }

    /// Returns the minimum; `None` before the first sample.
    #[must_use]
    pub fn value(&self) -> Option<u64> {
        self.0.best.map(|best| best[0].value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maximum_holds_for_the_window_and_then_falls_to_the_next_best() {
        let mut max = WindowedMax::new(100);
        for (at, value) in [(0, 50), (30, 20), (60, 10), (90, 5)] {
            max.update(Time::from_ns(at), value);
            assert_eq!(max.value(), Some(50));
        }
        max.update(Time::from_ns(101), 1);
        assert!(max.value().unwrap() < 50);
        assert!(max.value().unwrap() >= 10);
    }

    #[test]
    fn minimum_never_exceeds_the_true_minimum_of_the_last_quarter() {
        let mut min = WindowedMin::new(100);
        for at in 0..1_000_u64 {
            let value = 1_000 + (at * 7919) % 977;
            min.update(Time::from_ns(at), value);
            let recent = (at.saturating_sub(25)..=at)
                .map(|t| 1_000 + (t * 7919) % 977)
                .min();
            assert!(min.value() <= recent);
        }
    }
}
