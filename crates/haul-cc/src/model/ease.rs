//! Easing off where a short queue stays full.
//!
//! The rate is the greatest that samples have shown, and so a little more than the path has. A
//! queue that is too short to be told from noise then fills, stays full, and loses the difference
//! for ever. Loss and a delay that lasts a whole round trip show that together. The flow then sends
//! less for as long as that queue takes to empty, and a little less from then on. If the delay does
//! not fall, it was something else, and the next attempt waits longer.

use crate::time::{MILLISECOND_NS, Time};

/// What is done about it.
#[derive(Debug)]
pub(super) struct Ease {
    latest: Option<Attempt>,
    /// What the pace is below the rate, in thousandths.
    trim: u64,
    /// Rounds since the queue was last full.
    calm: u64,
    /// No attempt before this.
    after: Time,
    /// Round trips to wait after an attempt in vain.
    patience: u64,
}

#[derive(Debug, Clone, Copy)]
struct Attempt {
    until: Time,
    /// The delay that it is to take away.
    delay_ns: u64,
}

/// A round trip that has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    pub(super) rtt_ns: u64,
    /// The least delay in it.
    pub(super) delay_ns: u64,
    pub(super) lost_bytes: u64,
    pub(super) sent_bytes: u64,
}

/// The pace while the queue is to empty, thousandths of the rate, and for how many times the delay:
/// together they take away four fifths of it.
const EMPTYING: u64 = 950;
const TIMES: u64 = 16;
/// How much less is sent after an attempt that has helped, and in all, in thousandths.
const TRIM: u64 = 5;
const TRIM_MAX: u64 = 20;
/// After so many rounds without a full queue, one thousandth more is sent.
const CALM_ROUNDS: u64 = 16;
/// Shorter delays are noise.
const DELAY_NS_MIN: u64 = MILLISECOND_NS;
/// Bytes lost of a thousand.
const LOST_PER_MILLE: u64 = 2;
const PATIENCE_MAX: u64 = 32;

impl Ease {
    pub(super) fn new() -> Self {
        Self {
            latest: None,
            trim: 0,
            calm: 0,
            after: Time::ZERO,
            patience: 1,
        }
    }

    /// The pace, thousandths of the rate.
    pub(super) fn gain(&self, now: Time) -> u64 {
        match self.latest {
            Some(attempt) if now < attempt.until => EMPTYING,
            _ => 1_000 - self.trim,
        }
    }

    /// The path has shown more.
    pub(super) fn forget(&mut self) {
        (self.latest, self.trim) = (None, 0);
    }

    /// Judges the latest attempt, and begins one where a queue is full for the whole of a round
    /// trip; `may` tells whether the flow is free to.
    pub(super) fn handle_round(&mut self, now: Time, ended: &Ended, may: bool) {
        let is_full = ended.delay_ns >= DELAY_NS_MIN
            && ended.lost_bytes * 1_000 > ended.sent_bytes * LOST_PER_MILLE;
        self.calm = if is_full { 0 } else { self.calm + 1 };
        if self.calm == CALM_ROUNDS {
            (self.calm, self.trim) = (0, self.trim.saturating_sub(1));
        }
        if let Some(attempt) = self.latest {
            // What it does arrives a round trip later, and is seen in the whole of the next one.
            if now.since(attempt.until) < 2 * ended.rtt_ns {
                return;
            }
            self.latest = None;
            if ended.delay_ns * 2 < attempt.delay_ns {
                self.patience = 1;
            } else {
                self.trim = self.trim.saturating_sub(TRIM);
                self.patience = (2 * self.patience).min(PATIENCE_MAX);
                self.after = now.after(self.patience * ended.rtt_ns);
            }
        }
        if may && is_full && now >= self.after {
            let length_ns = (TIMES * ended.delay_ns).min(2 * ended.rtt_ns);
            self.trim = (self.trim + TRIM).min(TRIM_MAX);
            self.latest = Some(Attempt {
                until: now.after(length_ns),
                delay_ns: ended.delay_ns,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT_NS: u64 = 100 * MILLISECOND_NS;

    /// Rounds of 100 ms, of which each has this delay and loses so many of a thousand bytes.
    struct Rounds {
        ease: Ease,
        now: Time,
    }

    impl Rounds {
        fn new() -> Self {
            let (ease, now) = (Ease::new(), Time::from_ns(RTT_NS));
            Self { ease, now }
        }

        fn pass(&mut self, count: u64, delay_us: u64, lost: u64) {
            for _ in 0..count {
                self.now = self.now.after(RTT_NS);
                let ended = Ended {
                    rtt_ns: RTT_NS,
                    delay_ns: delay_us * 1_000,
                    lost_bytes: lost * 1_000,
                    sent_bytes: 1_000_000,
                };
                self.ease.handle_round(self.now, &ended, true);
            }
        }

        fn gain(&self) -> u64 {
            self.ease.gain(self.now)
        }
    }

    #[test]
    fn a_queue_that_stays_full_is_emptied_and_filled_no_more() {
        let mut rounds = Rounds::new();
        rounds.pass(1, 2_000, 8);
        assert_eq!(rounds.gain(), EMPTYING);
        rounds.now = rounds.now.after(TIMES * 2 * MILLISECOND_NS);
        assert_eq!(rounds.gain(), 1_000 - TRIM);
        rounds.pass(3, 300, 0);
        assert_eq!(rounds.gain(), 1_000 - TRIM);
        // Full once more, and again: not without end.
        for _ in 0..10 {
            rounds.pass(1, 2_000, 8);
            rounds.pass(4, 300, 0);
        }
        assert_eq!(rounds.gain(), 1_000 - TRIM_MAX);
        rounds.pass(CALM_ROUNDS * TRIM_MAX, 300, 0);
        assert_eq!(rounds.gain(), 1_000);
    }

    #[test]
    fn a_delay_that_does_not_fall_is_left_alone() {
        let mut rounds = Rounds::new();
        let mut emptying = 0;
        for _ in 0..1_000 {
            rounds.pass(1, 2_000, 20);
            emptying += u64::from(rounds.gain() == EMPTYING);
        }
        assert!(emptying < 40, "{emptying} rounds of 1000");
        assert!(rounds.gain() >= 1_000 - TRIM || rounds.gain() == EMPTYING);
    }

    #[test]
    fn neither_loss_nor_delay_alone_is_a_full_queue() {
        for (delay_us, lost) in [(2_000, 2), (900, 50), (0, 300)] {
            let mut rounds = Rounds::new();
            rounds.pass(100, delay_us, lost);
            assert_eq!(rounds.gain(), 1_000, "{delay_us} us, {lost}");
        }
    }
}
