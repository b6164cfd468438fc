//! HighSpeed TCP (RFC 3649): the larger the window, the more is added per round trip and the less
//! is taken off by a loss, such that the window answers to a loss rate p as 0.12 / p^0.835. Windows
//! between two rows of the RFC's table (appendix B) take the figures of the higher one, as in
//! Linux.

use super::{Law, Progress};

/// Reno up to [`LOW_WINDOW`], beyond it the functions of RFC 3649 §5.
#[derive(Debug, Default)]
pub struct HighSpeed {
    /// Slow start is over. The loss that ends it halves the window: in the round trip before it the
    /// window has doubled.
    settled: bool,
}

/// `Low_Window` of RFC 3649 §5, packets.
const LOW_WINDOW: f64 = 38.0;
/// `High_Window`.
const HIGH_WINDOW: f64 = 83_000.0;
/// `High_Decrease`.
const HIGH_DECREASE: f64 = 0.1;
/// Reno's reduction.
const LOW_DECREASE: f64 = 0.5;

/// The share that a loss takes off: b(w).
fn decrease(window: f64) -> f64 {
    let way = (window / LOW_WINDOW).ln() / (HIGH_WINDOW / LOW_WINDOW).ln();
    LOW_DECREASE + (HIGH_DECREASE - LOW_DECREASE) * way.clamp(0.0, 1.0)
}

/// Packets more per round trip: a(w).
fn increase(window: f64) -> f64 {
    if window <= LOW_WINDOW {
        return 1.0;
    }
    let loss_rate = 0.078 / window.powf(1.2);
    let decrease = decrease(window);
    window * window * loss_rate * 2.0 * decrease / (2.0 - decrease)
}

#[cfg(test)]
impl HighSpeed {
    /// One that has left slow start.
    pub(super) fn settled() -> Self {
        Self { settled: true }
    }
}

/// The window of the next row of the RFC's table: where a(w) has become a whole number.
fn next_row(window: f64) -> f64 {
    let packets = increase(window).ceil();
    let mut row = window;
    while increase(row) < packets {
        row += 1.0;
    }
    row
}

impl Law for HighSpeed {
    const SLOW_START: &'static str = "highspeed/slow-start";
    const AVOIDANCE: &'static str = "highspeed/avoidance";

    fn grow(&mut self, progress: &Progress, window: f64) -> f64 {
        self.settled = true;
        window + increase(window).ceil() * progress.acked / window
    }

    fn reduce(&mut self, window: f64) -> f64 {
        let share = if self.settled {
            decrease(next_row(window))
        } else {
            LOW_DECREASE
        };
        window * (1.0 - share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of the table of RFC 3649 appendix B: window, a(w), b(w).
    const TABLE: [(f64, f64, f64); 6] = [
        (38.0, 1.0, 0.50),
        (118.0, 2.0, 0.44),
        (1_058.0, 8.0, 0.33),
        (10_661.0, 30.0, 0.21),
        (38_750.0, 56.0, 0.14),
        (83_981.0, 71.0, 0.10),
    ];

    #[test]
    fn the_functions_give_the_rfcs_table() {
        for (window, a, b) in TABLE {
            let (increase, decrease) = (increase(window), decrease(window));
            assert!((increase - a).abs() < 0.1 * a, "a({window}) = {increase}");
            assert!((decrease - b).abs() < 0.006, "b({window}) = {decrease}");
        }
    }
}
