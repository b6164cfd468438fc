//! How sure a share is that has been counted.

/// A share, and the limits between which the true one lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval {
    pub(super) low: f64,
    pub(super) high: f64,
}

/// 95 % and 99.9 % of a normal distribution lie within this many standard deviations.
pub(super) const SIGMAS_95: f64 = 1.96;
pub(super) const SIGMAS_999: f64 = 3.29;

/// Wilson's score interval for a share of `hits` among `trials` that are worth `effective`
/// independent ones.
pub(super) fn wilson(hits: u64, trials: u64, effective: f64, sigmas: f64) -> Interval {
    if trials == 0 || effective < 1.0 {
        return Interval {
            low: 0.0,
            high: 1.0,
        };
    }
    let share = ratio(hits, trials);
    let z2 = sigmas * sigmas / effective;
    let centre = (share + z2 / 2.0) / (1.0 + z2);
    let spread = (share * (1.0 - share) * z2 + z2 * z2 / 4.0).sqrt() / (1.0 + z2);
    Interval {
        low: (centre - spread).max(0.0),
        high: (centre + spread).min(1.0),
    }
}

/// One count over another; 0 of 0 is 0.
#[expect(
    clippy::cast_precision_loss,
    reason = "counts of packets are far below 2^53"
)]
pub(super) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_that_of_the_textbook() {
        // 10 of 100 at 95 %: 0.0552 to 0.1744 (Wilson 1927; Agresti and Coull 1998).
        let interval = wilson(10, 100, 100.0, SIGMAS_95);
        assert!(
            (interval.low - 0.0552).abs() < 1e-4 && (interval.high - 0.1744).abs() < 1e-4,
            "{interval:?}"
        );
    }

    #[test]
    fn nothing_seen_is_not_nothing_there() {
        let interval = wilson(0, 1000, 1000.0, SIGMAS_95);
        assert!(interval.low < 1e-12 && interval.high > 0.003);
        assert_eq!(
            wilson(0, 0, 0.0, SIGMAS_95),
            Interval {
                low: 0.0,
                high: 1.0
            }
        );
    }
}
