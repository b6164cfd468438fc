//! What a link is asked to be.

use std::fmt;

/// One direction of a path. The default is a perfect wire: no delay, no limit, no loss.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkConfig {
    /// Propagation delay in nanoseconds, after the packet has left the shaper.
    pub delay_ns: u64,
    /// The delay wanders within `delay_ns ± jitter_ns`, without reordering packets.
    pub jitter_ns: u64,
    /// Loss on the wire.
    pub loss: LossModel,
    /// The link's rate and the queue in front of it. `None`: infinitely fast, no queue.
    pub rate: Option<Shaper>,
    /// Packets that leave more than this in the queue, themselves included, have their congestion
    /// marked (RFC 3168): a threshold below the queue's end. `None`: the queue marks
    /// nothing.
    pub ecn_mark_bytes: Option<u64>,
    /// A token bucket in front of the queue that drops what exceeds it.
    pub policer: Option<Policer>,
    /// Packets that are held so that later ones overtake them.
    pub reorder: Option<Reorder>,
    /// Probability that a packet arrives twice.
    pub duplicate: f64,
    /// Probability that a packet arrives damaged.
    pub corrupt: f64,
}

/// Loss on the wire: a lost packet has passed the queue and used its share of the rate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum LossModel {
    /// No loss.
    #[default]
    None,
    /// Every packet is lost with this probability, independently.
    Random(f64),
    /// Gilbert and Elliott's two-state chain, which loses packets in bursts. Before each packet the
    /// chain may change its state; then the packet is lost with the probability of the state. With
    /// `loss_good` 0 and `loss_bad` 1 the mean burst has `1/r` packets and the share lost is
    /// `p/(p+r)`.
    GilbertElliott {
        /// Probability per packet of going from the good state to the bad one.
        p: f64,
        /// Probability per packet of going from the bad state to the good one.
        r: f64,
        /// Probability of loss in the good state.
        loss_good: f64,
        /// Probability of loss in the bad state.
        loss_bad: f64,
    },
}

/// The rate of a link and the queue that waits for it.
///
/// A packet occupies the queue until its last bit has left. A packet that finds the link idle is
/// always taken, whatever the limits. With both limits `None` the queue is without end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shaper {
    /// Bits per second, over the wire sizes passed to [`Link::admit`](crate::Link::admit).
    pub rate_bps: u64,
    /// Most bytes in the queue.
    pub queue_bytes: Option<u64>,
    /// Most packets in the queue.
    pub queue_packets: Option<u64>,
}

/// A token bucket that drops, and never delays, what exceeds it. It starts full.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policer {
    /// Bits per second at which the bucket fills.
    pub rate_bps: u64,
    /// Depth of the bucket: the most bytes that pass back to back.
    pub burst_bytes: u64,
}

/// Packets held back so that those behind them overtake.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reorder {
    /// Probability that a packet is held.
    pub probability: f64,
    /// How much longer than the others a held packet takes, in nanoseconds.
    pub delay_ns: u64,
}

/// A value that no link can have.
#[derive(Clone, Debug, PartialEq)]
pub enum ConfigError {
    /// A probability outside 0 to 1, or not a number.
    Probability {
        /// Which one.
        name: &'static str,
        /// Its value.
        value: f64,
    },
    /// A rate of zero bits per second.
    ZeroRate {
        /// Whose rate.
        name: &'static str,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Probability { name, value } => {
                write!(
                    f,
                    "{name} is {value}, but a probability lies between 0 and 1"
                )
            }
            Self::ZeroRate { name } => write!(f, "{name} is 0 bit/s: leave it out for no limit"),
        }
    }
}

impl std::error::Error for ConfigError {}

impl LinkConfig {
    /// Whether a link can be what is asked.
    ///
    /// [`Link::new`](crate::Link::new) takes any value (a probability below 0 or not a number
    /// counts as 0, one above 1 as 1, a rate of 0 as 1 bit/s); whoever reads a configuration from
    /// outside checks it here first.
    ///
    /// # Errors
    /// The first value that makes no sense.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut probabilities = vec![("duplicate", self.duplicate), ("corrupt", self.corrupt)];
        match self.loss {
            LossModel::None => {}
            LossModel::Random(p) => probabilities.push(("loss", p)),
            LossModel::GilbertElliott {
                p,
                r,
                loss_good,
                loss_bad,
            } => probabilities.extend([
                ("burst loss p", p),
                ("burst loss r", r),
                ("burst loss in the good state", loss_good),
                ("burst loss in the bad state", loss_bad),
            ]),
        }
        probabilities.extend(self.reorder.map(|reorder| ("reorder", reorder.probability)));
        for (name, value) in probabilities {
            if !(0.0..=1.0).contains(&value) {
                return Err(ConfigError::Probability { name, value });
            }
        }
        if self.rate.is_some_and(|shaper| shaper.rate_bps == 0) {
            return Err(ConfigError::ZeroRate { name: "rate" });
        }
        if self.policer.is_some_and(|policer| policer.rate_bps == 0) {
            return Err(ConfigError::ZeroRate {
                name: "policer rate",
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_perfect_wire_is_the_default_and_is_valid() {
        assert_eq!(LinkConfig::default().check(), Ok(()));
    }

    #[test]
    fn nonsense_is_named() {
        let config = LinkConfig {
            loss: LossModel::Random(1.5),
            ..LinkConfig::default()
        };
        let error = config.check().unwrap_err();
        assert_eq!(
            error.to_string(),
            "loss is 1.5, but a probability lies between 0 and 1"
        );
        let config = LinkConfig {
            duplicate: f64::NAN,
            ..LinkConfig::default()
        };
        assert!(matches!(
            config.check(),
            Err(ConfigError::Probability {
                name: "duplicate",
                ..
            })
        ));
        let policer = Some(Policer {
            rate_bps: 0,
            burst_bytes: 1,
        });
        let config = LinkConfig {
            policer,
            ..LinkConfig::default()
        };
        assert_eq!(
            config.check(),
            Err(ConfigError::ZeroRate {
                name: "policer rate"
            })
        );
    }
}
