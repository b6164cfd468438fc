//! Loss on the wire: independent, or in bursts.

use crate::config::LossModel;
use crate::rng::Rng;

#[derive(Clone, Debug)]
pub(crate) struct Loss {
    pub(crate) model: LossModel,
    bad: bool,
    rng: Rng,
}

impl Loss {
    /// The chain of Gilbert and Elliott starts in the good state.
    pub(crate) fn new(model: LossModel, rng: Rng) -> Self {
        Self {
            model,
            bad: false,
            rng,
        }
    }

    /// Whether the next packet is lost.
    #[inline]
    pub(crate) fn hits(&mut self) -> bool {
        match self.model {
            LossModel::None => false,
            LossModel::Random(p) => self.rng.chance(p),
            LossModel::GilbertElliott {
                p,
                r,
                loss_good,
                loss_bad,
            } => {
                if self.rng.chance(if self.bad { r } else { p }) {
                    self.bad = !self.bad;
                }
                self.rng.chance(if self.bad { loss_bad } else { loss_good })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKETS: u32 = 1_000_000;

    fn run(model: LossModel) -> (f64, f64) {
        let mut loss = Loss::new(model, Rng::new(11));
        let (mut lost, mut bursts, mut before) = (0_u32, 0_u32, false);
        for _ in 0..PACKETS {
            let hit = loss.hits();
            lost += u32::from(hit);
            bursts += u32::from(hit && !before);
            before = hit;
        }
        (
            f64::from(lost) / f64::from(PACKETS),
            f64::from(lost) / f64::from(bursts.max(1)),
        )
    }

    #[test]
    fn random_loss_has_its_rate_and_does_not_cluster() {
        let (share, burst) = run(LossModel::Random(0.01));
        assert!((share - 0.01).abs() < 0.0003, "{share}");
        assert!((burst - 1.0 / 0.99).abs() < 0.01, "{burst}");
    }

    #[test]
    fn bursts_have_the_length_and_share_of_the_chain() {
        let model = LossModel::GilbertElliott {
            p: 0.001,
            r: 0.1,
            loss_good: 0.0,
            loss_bad: 1.0,
        };
        let (share, burst) = run(model);
        assert!((share - 0.001 / 0.101).abs() < 0.001, "{share}");
        assert!((burst - 10.0).abs() < 0.5, "{burst}");
    }

    #[test]
    fn the_states_have_their_own_loss() {
        let model = LossModel::GilbertElliott {
            p: 0.01,
            r: 0.01,
            loss_good: 0.1,
            loss_bad: 0.3,
        };
        let (share, _) = run(model);
        assert!((share - 0.2).abs() < 0.005, "{share}");
    }

    #[test]
    fn no_loss_loses_nothing_and_all_loss_everything() {
        assert!(run(LossModel::None).0 < f64::EPSILON);
        assert!(run(LossModel::Random(1.0)).0 > 1.0 - f64::EPSILON);
    }
}
