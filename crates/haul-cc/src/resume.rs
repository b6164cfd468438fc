//! Careful resume: a start that uses a part of the rate that an earlier connection found on the
//! same path, for two round trips (draft-ietf-tsvwg-careful-resume).
//!
//! A control starts as usual, with trains that measure. After the answer to the first one,
//! [`CarefulResume`] fills one round trip, the one after the second train: it sends at half of the
//! remembered rate, which the control by itself would not use yet. Before that (*reconnaissance*)
//! it sends nothing, and requires that every round-trip time agrees with the remembered one and
//! that the first train shows from half to twice the remembered rate. It is over
//!
//! * when a round-trip time does not agree (*retreat*);
//! * when more than [`LOSS_PERCENT`] of what was sent is lost, or some of it is marked (*retreat*);
//! * when the control knows the rate by itself (*validated*).
//!
//! Afterwards the control behaves as without a remembered rate.

use crate::controller::{Rate, Remembered};
use crate::time::MILLISECOND_NS;

impl Remembered {
    /// Returns whether a round-trip time may be that of the same path.
    #[must_use]
    pub const fn agrees(&self, rtt_ns: u64) -> bool {
        let most = self.rtt_ns.saturating_add(self.rtt_ns / 2 + RTT_NOISE_NS);
        rtt_ns >= self.rtt_ns / 2 && rtt_ns <= most
    }
}

/// Share of the remembered rate that is sent before it is validated.
const JUMP_PERCENT: u64 = 50;
/// More lost than this share of what was sent means that the path does not carry it.
const LOSS_PERCENT: u64 = 2;
/// … but not so few bytes: random loss takes single packets.
const LOSS_BYTES_MIN: u64 = 8 * 1_500;
/// RTT difference that counts as noise on short paths.
const RTT_NOISE_NS: u64 = 5 * MILLISECOND_NS;

/// The state of a careful resume.
#[derive(Debug)]
pub struct CarefulResume {
    remembered: Remembered,
    phase: Phase,
    sent_bytes: u64,
    lost_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing is sent yet; whether a round-trip time was measured.
    Reconnaissance {
        agrees: bool,
    },
    /// Half of the remembered rate is sent.
    Unvalidated,
    Over,
}

impl CarefulResume {
    /// Begins with the reconnaissance.
    #[must_use]
    pub const fn new(remembered: Remembered) -> Self {
        Self {
            remembered,
            phase: Phase::Reconnaissance { agrees: false },
            sent_bytes: 0,
            lost_bytes: 0,
        }
    }

    /// Returns the rate to send at beyond the control's own.
    #[must_use]
    pub fn rate(&self) -> Option<Rate> {
        let jump = self.remembered.rate.percent(JUMP_PERCENT);
        (self.phase == Phase::Unvalidated).then_some(jump)
    }

    /// Returns the most wire bytes in flight beyond the control's own: half of the remembered rate
    /// times one round trip.
    #[must_use]
    pub fn window_bytes(&self) -> u64 {
        self.rate()
            .map_or(0, |rate| rate.bytes_in(self.remembered.rtt_ns))
    }

    /// Takes a round-trip time, ns.
    pub const fn handle_rtt(&mut self, rtt_ns: u64) {
        match &mut self.phase {
            Phase::Over => {}
            _ if !self.remembered.agrees(rtt_ns) => self.phase = Phase::Over,
            Phase::Reconnaissance { agrees } => *agrees = true,
            Phase::Unvalidated => {}
        }
    }

    /// Takes the rate that the first train showed.
    pub fn handle_train(&mut self, shown: Rate) {
        let Phase::Reconnaissance { agrees } = self.phase else {
            return;
        };
        let jump = self.remembered.rate.percent(JUMP_PERCENT);
        // On a path that has become much faster the control finds the rate sooner by itself.
        let is_like = jump <= shown && shown.percent(JUMP_PERCENT) <= self.remembered.rate;
        self.phase = if agrees && is_like {
            Phase::Unvalidated
        } else {
            Phase::Over
        };
    }

    /// Records sent wire bytes.
    pub const fn handle_sent(&mut self, bytes: u64) {
        self.sent_bytes = self.sent_bytes.saturating_add(bytes);
    }

    /// Records lost wire bytes.
    pub const fn handle_loss(&mut self, bytes: u64) {
        self.lost_bytes = self.lost_bytes.saturating_add(bytes);
        let is_random = self.lost_bytes <= LOSS_BYTES_MIN
            || self.lost_bytes <= self.sent_bytes / 100 * LOSS_PERCENT;
        if !is_random {
            self.phase = Phase::Over;
        }
    }

    /// Ends the resumption: the path's queue is filling, or the control knows the rate.
    pub const fn finish(&mut self) {
        self.phase = Phase::Over;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate::from_bps(800_000_000);
    const RTT_NS: u64 = 100 * MILLISECOND_NS;

    fn resume() -> CarefulResume {
        CarefulResume::new(Remembered {
            rate: RATE,
            rtt_ns: RTT_NS,
        })
    }

    fn jumping() -> CarefulResume {
        let mut resume = resume();
        resume.handle_rtt(RTT_NS + 3 * MILLISECOND_NS);
        assert_eq!((resume.rate(), resume.window_bytes()), (None, 0));
        resume.handle_train(Rate::from_bps(400_000_000));
        assert_eq!(resume.rate(), Some(Rate::from_bps(400_000_000)));
        assert_eq!(resume.window_bytes(), 5_000_000);
        resume
    }

    #[test]
    fn nothing_is_sent_on_a_path_with_another_round_trip_time() {
        for other in [RTT_NS / 2 - 1, RTT_NS * 3 / 2 + RTT_NOISE_NS + 1] {
            let mut resume = jumping();
            resume.handle_rtt(other);
            assert_eq!(resume.rate(), None, "{other}");
            // This is final.
            resume.handle_rtt(RTT_NS);
            resume.handle_train(RATE);
            assert_eq!(resume.rate(), None, "{other}");
        }
        let mut unmeasured = resume();
        unmeasured.handle_train(RATE);
        assert_eq!(unmeasured.rate(), None);
    }

    #[test]
    fn nothing_is_sent_where_the_first_train_shows_less_than_that() {
        let mut resume = resume();
        resume.handle_rtt(RTT_NS);
        resume.handle_train(Rate::from_bps(399_000_000));
        assert_eq!(resume.rate(), None);
        resume.handle_train(RATE);
        assert_eq!(resume.rate(), None, "the first train decides");
        let mut faster = CarefulResume::new(resume.remembered);
        faster.handle_rtt(RTT_NS);
        faster.handle_train(Rate::from_bps(1_700_000_000));
        assert_eq!(faster.rate(), None, "the path has become faster");
    }

    #[test]
    fn loss_beyond_random_loss_ends_it() {
        let mut resume = jumping();
        resume.handle_sent(1_000_000);
        resume.handle_loss(20_000);
        assert!(resume.rate().is_some());
        resume.handle_loss(1);
        assert_eq!(resume.rate(), None);
        let mut resume = jumping();
        resume.handle_sent(90_000);
        resume.handle_loss(LOSS_BYTES_MIN);
        assert!(resume.rate().is_some(), "eight packets may be lost");
        resume.handle_loss(1_500);
        assert_eq!(resume.rate(), None);
    }
}
