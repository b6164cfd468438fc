//! Counters of the emulator.

use haul_netem::LinkStats;

/// The counters of one direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct DirectionStats {
    /// The link's counters, per wire packet.
    pub link: LinkStats,
    /// Packets read from the device, super-packets counted once.
    pub packets_read: u64,
    /// Packets written to the other device, super-packets counted once.
    pub packets_written: u64,
    /// Wire packets dropped because the emulator had no memory: its fault, not the path's.
    pub overruns: u64,
    /// Packets that could not be parsed, and those that the other device refused.
    pub refused: u64,
    /// How late packets were delivered.
    pub lateness: Lateness,
    /// Processor time of the direction's thread, in nanoseconds.
    pub cpu_ns: u64,
}

/// How long after it was due each packet was delivered: a histogram with four steps per doubling.
#[derive(Clone, Copy, Debug)]
pub struct Lateness {
    counts: [u64; STEPS],
}

const STEPS: usize = 128;

impl Default for Lateness {
    fn default() -> Self {
        Self { counts: [0; STEPS] }
    }
}

impl Lateness {
    pub(super) fn record(&mut self, late_ns: u64) {
        self.counts[step(late_ns)] += 1;
    }

    /// The lateness that this share of packets does not exceed, in nanoseconds, to within a
    /// quarter; 0 if there was no packet.
    #[must_use]
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let total: u64 = self.counts.iter().sum();
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rank among fewer than 2^53 packets"
        )]
        let rank = (total as f64 * share.clamp(0.0, 1.0)).ceil() as u64;
        let mut seen = 0;
        for (step, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank && seen > 0 {
                return upper_ns(step);
            }
        }
        0
    }

    /// Returns the counts since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            counts: std::array::from_fn(|i| self.counts[i].saturating_sub(earlier.counts[i])),
        }
    }
}

/// Two bits below the highest one choose the step within a doubling.
fn step(late_ns: u64) -> usize {
    if late_ns < 4 {
        return usize::try_from(late_ns).unwrap_or(0);
    }
    let doubling = late_ns.ilog2();
    let quarter = (late_ns >> (doubling - 2)) & 3;
    let step = u64::from(doubling - 1) * 4 + quarter;
    usize::try_from(step).unwrap_or(STEPS).min(STEPS - 1)
}

/// The largest value of a step.
fn upper_ns(step: usize) -> u64 {
    if step < 4 {
        return step as u64;
    }
    let (doubling, quarter) = (step / 4 + 1, step % 4);
    ((quarter as u64 + 5) << (doubling - 2)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_a_quarter_of_a_doubling() {
        for late_ns in [0, 1, 3, 4, 5, 7, 8, 100, 1023, 1024, 50_000, 1_000_000] {
            let upper = upper_ns(step(late_ns));
            assert!(
                upper >= late_ns && upper <= late_ns + late_ns / 4,
                "{late_ns} {upper}"
            );
        }
        assert_eq!(step(u64::MAX), STEPS - 1);
    }

    #[test]
    fn quantiles_come_from_the_ranks() {
        let mut lateness = Lateness::default();
        assert_eq!(lateness.quantile_ns(0.5), 0);
        for late_ns in 1..=1000 {
            lateness.record(late_ns * 1000);
        }
        let half = lateness.quantile_ns(0.5);
        assert!((500_000..625_000).contains(&half), "{half}");
        let most = lateness.quantile_ns(0.99);
        assert!((990_000..1_250_000).contains(&most), "{most}");
        assert_eq!(lateness.since(&lateness).quantile_ns(1.0), 0);
    }
}
