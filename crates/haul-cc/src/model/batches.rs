//! Shorter batches where the path's queue does not hold one.
//!
//! A sender lets packets go in batches, and a queue shorter than a batch loses the rest of each
//! one, at any rate. No delay shows it. So where much is lost for several round trips, batches are
//! tried that are half as long. They stay if clearly less is lost, and are given up if not: random
//! loss does not depend on them, and short batches cost processor time.

/// The length of batches, and the present trial.
#[derive(Debug, Default)]
pub(super) struct Batches {
    /// How often the length was halved.
    halvings: u32,
    /// Bytes lost and sent in the rounds of this period, and how many those are.
    period: (u64, u64, u32),
    trial: Trial,
    /// Periods to wait after a trial in vain.
    patience: u32,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Trial {
    /// Periods that pass before the next one may begin.
    #[default]
    None,
    Wait(u32),
    /// The rounds that follow the change: what was sent before is still answered.
    Begun {
        lost_ppm: u64,
    },
    /// The rounds that count.
    Counts {
        lost_ppm: u64,
    },
}

/// Rounds of a period.
const ROUNDS: u32 = 3;
/// What must be lost to try, millionths.
const LOST_PPM: u64 = 10_000;
const HALVINGS_MAX: u32 = 3;
const PATIENCE_MIN: u32 = 8;
const PATIENCE_MAX: u32 = 512;

impl Batches {
    /// The greatest length of a batch where `usual` is that of most, bytes; none that counts
    /// unless it was halved.
    pub(super) fn limit(&self, usual: u64) -> u64 {
        match self.halvings {
            0 => u64::MAX,
            halvings => usual >> halvings,
        }
    }

    /// A queue stood that is longer than a batch, or may have: what is lost says nothing.
    pub(super) fn handle_queue(&mut self) {
        self.period = (0, 0, 0);
        if let Trial::Begun { .. } | Trial::Counts { .. } = self.trial {
            self.halvings -= 1;
            self.trial = Trial::None;
        }
    }

    /// A round trip has ended in which this much was lost and sent.
    pub(super) fn handle_round(&mut self, lost_bytes: u64, sent_bytes: u64) {
        let (lost, sent, rounds) = &mut self.period;
        *lost += lost_bytes;
        *sent += sent_bytes;
        *rounds += 1;
        if *rounds < ROUNDS {
            return;
        }
        let lost_ppm = (*lost * 1_000_000).checked_div(*sent).unwrap_or(0);
        self.period = (0, 0, 0);
        self.trial = match self.trial {
            Trial::Wait(periods) if periods > 1 => Trial::Wait(periods - 1),
            Trial::Begun { lost_ppm } => Trial::Counts { lost_ppm },
            Trial::Counts { lost_ppm: before } if lost_ppm * 4 > before * 3 => {
                self.halvings -= 1;
                self.patience = (2 * self.patience).clamp(PATIENCE_MIN, PATIENCE_MAX);
                Trial::Wait(self.patience)
            }
            _ if lost_ppm > LOST_PPM && self.halvings < HALVINGS_MAX => {
                self.halvings += 1;
                Trial::Begun { lost_ppm }
            }
            _ => Trial::None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Periods, each of which loses what this tells of the length of batches.
    fn pass(batches: &mut Batches, periods: u32, lost_per_mille: impl Fn(u64) -> u64) -> u64 {
        let mut shortened = 0;
        for _ in 0..periods * ROUNDS {
            let limit = batches.limit(128 << 10);
            shortened += u64::from(limit < 128 << 10);
            batches.handle_round(lost_per_mille(limit) * 1_000, 1_000_000);
        }
        shortened
    }

    #[test]
    fn batches_become_as_short_as_the_queue() {
        let mut batches = Batches::default();
        // What is longer than 40 kB is lost.
        pass(&mut batches, 20, |bytes| {
            let bytes = bytes.min(128 << 10);
            1_000 * bytes.saturating_sub(40_000) / bytes
        });
        assert_eq!(batches.limit(128 << 10), 32 << 10);
    }

    #[test]
    fn random_loss_shortens_nothing_for_long() {
        let mut batches = Batches::default();
        let shortened = pass(&mut batches, 4_000, |_| 30);
        assert!(shortened < 150, "{shortened} of 12000 rounds");
        assert_eq!(pass(&mut batches, 4_000, |_| 5), 0);
        assert_eq!(batches.limit(128 << 10), u64::MAX);
    }
}
