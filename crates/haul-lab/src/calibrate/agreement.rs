//! Two emulators of the same path: do they agree?

use std::fmt;

use serde::Serialize;

use super::interval::SIGMAS_999;
use super::path::{DirectionCheck, PathCheck};

/// Delays agree that differ by no more than this share.
const DELAY_OFF: f64 = 0.01;

/// How this program's emulator compares with the kernel's netem.
#[derive(Clone, Debug, Serialize)]
pub struct Agreement {
    /// From `a` to `b`.
    pub forward: DirectionAgreement,
    /// From `b` to `a`.
    pub reverse: DirectionAgreement,
    /// Nothing differs.
    pub agree: bool,
}

/// How they compare in one direction.
#[derive(Clone, Debug, Serialize)]
pub struct DirectionAgreement {
    /// The mean delay, milliseconds.
    pub delay_mean: Compared,
    /// Half of the packets took so long at most, milliseconds.
    pub delay_p50: Compared,
    /// 99 of 100 did.
    pub delay_p99: Compared,
    /// The share of packets lost. It agrees if two counts of the same share differ more than that
    /// by chance once in a thousand times.
    pub loss: Compared,
}

/// A figure of both.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// This program's emulator.
    pub ours: f64,
    /// The kernel's netem.
    pub netem: f64,
    /// How much they may differ.
    pub bound: f64,
    /// They differ by no more.
    pub agree: bool,
}

impl Agreement {
    /// Compares two measurements of the same scenario.
    #[must_use]
    pub fn of(ours: &PathCheck, netem: &PathCheck) -> Self {
        let forward = DirectionAgreement::of(&ours.forward, &netem.forward);
        let reverse = DirectionAgreement::of(&ours.reverse, &netem.reverse);
        let agree = forward.agrees() && reverse.agrees();
        Self {
            forward,
            reverse,
            agree,
        }
    }
}

impl DirectionAgreement {
    fn of(ours: &DirectionCheck, netem: &DirectionCheck) -> Self {
        let delay = |of: fn(&DirectionCheck) -> f64| {
            Compared::new(of(ours), of(netem), DELAY_OFF * of(netem))
        };
        Self {
            delay_mean: delay(|direction| direction.delays.mean_ms),
            delay_p50: delay(|direction| direction.delays.quantiles_ms[3]),
            delay_p99: delay(|direction| direction.delays.quantiles_ms[5]),
            loss: Compared::new(
                ours.loss.measured,
                netem.loss.measured,
                by_chance(ours, netem),
            ),
        }
    }

    fn agrees(&self) -> bool {
        let all = [self.delay_mean, self.delay_p50, self.delay_p99, self.loss];
        all.iter().all(|compared| compared.agree)
    }
}

/// How far two counts of the same share of independent losses are apart by chance, 999 times of
/// 1000.
fn by_chance(ours: &DirectionCheck, netem: &DirectionCheck) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        reason = "counts of packets are far below 2^53"
    )]
    let counts = [ours, netem].map(|direction| direction.loss_packets.max(1) as f64);
    let lost = ours.loss.measured * counts[0] + netem.loss.measured * counts[1];
    let share = lost / (counts[0] + counts[1]);
    SIGMAS_999 * (share * (1.0 - share) * (1.0 / counts[0] + 1.0 / counts[1])).sqrt()
}

impl Compared {
    fn new(ours: f64, netem: f64, bound: f64) -> Self {
        Self {
            ours,
            netem,
            bound,
            agree: (ours - netem).abs() <= bound,
        }
    }
}

impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "beside the kernel's netem")?;
        let mark = |compared: Compared| if compared.agree { "ok" } else { "OFF" };
        for (way, direction) in [("a → b", &self.forward), ("b → a", &self.reverse)] {
            for (name, delay) in [
                ("mean", direction.delay_mean),
                ("50 %", direction.delay_p50),
                ("99 %", direction.delay_p99),
            ] {
                writeln!(
                    f,
                    "  {way}  delay, {name}  {:.3} ms, netem's {:.3} ms ({:+.2} %)  {}",
                    delay.ours,
                    delay.netem,
                    (delay.ours / delay.netem - 1.0) * 100.0,
                    mark(delay)
                )?;
            }
            let loss = direction.loss;
            writeln!(
                f,
                "  {way}  loss         {:.3e}, netem's {:.3e} (by chance {:.1e} apart)  {}",
                loss.ours,
                loss.netem,
                loss.bound,
                mark(loss)
            )?;
        }
        let word = if self.agree {
            "they agree"
        } else {
            "they do NOT agree"
        };
        write!(f, "  {word}")
    }
}

#[cfg(test)]
mod tests {
    use super::super::path::tests::direction;
    use super::*;

    fn path(delay_ns: u64, lost: u64) -> PathCheck {
        let direction = direction(delay_ns, 100_000, 100_000 - lost);
        PathCheck {
            scenario: "test".into(),
            forward: direction.clone(),
            reverse: direction,
            emulator_drops: 0,
            honest: true,
        }
    }

    #[test]
    fn emulators_agree_within_one_percent_of_delay_and_the_chance_of_loss() {
        let netem = path(20_000_000, 1_000);
        for (ours, agree) in [
            (path(20_190_000, 1_000), true),
            (path(20_210_000, 1_000), false),
            (path(19_790_000, 1_000), false),
            // The bound is 3.29 times the root of 2 x 0.01 x 0.99 / 100000: 146 packets.
            (path(20_000_000, 1_140), true),
            (path(20_000_000, 1_160), false),
        ] {
            let found = Agreement::of(&ours, &netem);
            assert_eq!(found.agree, agree, "{found}");
        }
    }

    #[test]
    fn nothing_measured_is_no_agreement() {
        let mut ours = path(20_000_000, 0);
        ours.forward.delays.mean_ms = f64::NAN;
        assert!(!Agreement::of(&ours, &path(20_000_000, 0)).agree);
    }
}
