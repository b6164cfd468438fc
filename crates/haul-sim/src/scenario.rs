//! Paths: plain ones by their figures, and random ones for the seeds.

use haul_netem::{LinkConfig, LossModel, Reorder, Rng, Shaper};

use crate::world::Path;

const MILLISECOND_NS: u64 = 1_000_000;

/// A symmetric path of `rate_bps` with `rtt_ms` and random loss in both directions; the queue is as
/// the lab's default, one bandwidth-delay product within 256 KiB and 16 MiB.
#[must_use]
pub fn plain(rate_bps: u64, rtt_ms: u64, loss: f64) -> Path {
    let bdp_bytes = rate_bps / 8 * rtt_ms / 1_000;
    let link = LinkConfig {
        delay_ns: rtt_ms * MILLISECOND_NS / 2,
        loss: if loss > 0.0 {
            LossModel::Random(loss)
        } else {
            LossModel::None
        },
        rate: Some(Shaper {
            rate_bps,
            queue_bytes: Some(bdp_bytes.clamp(256 << 10, 16 << 20)),
            queue_packets: None,
        }),
        ..LinkConfig::default()
    };
    Path {
        forward: link.clone(),
        reverse: link,
        blackouts: Vec::new(),
    }
}

/// A random path that is bad in random ways, from `seed`.
#[must_use]
pub fn hostile(seed: u64) -> Path {
    let mut rng = Rng::new(seed);
    let forward = hostile_link(&mut rng);
    let reverse = hostile_link(&mut rng);
    let mut blackouts = Vec::new();
    for _ in 0..rng.below(3) {
        let from = rng.below(3_000) * MILLISECOND_NS;
        blackouts.push((from, from + rng.below(2_500) * MILLISECOND_NS));
    }
    Path {
        forward,
        reverse,
        blackouts,
    }
}

fn hostile_link(rng: &mut Rng) -> LinkConfig {
    let delay_ns = rng.below(150 * MILLISECOND_NS);
    let loss = match rng.below(4) {
        0 => LossModel::None,
        1 => LossModel::Random(0.3 * rng.unit()),
        2 => LossModel::Random(0.01 * rng.unit()),
        _ => LossModel::GilbertElliott {
            p: 0.02 * rng.unit(),
            r: 0.1 + 0.5 * rng.unit(),
            loss_good: 0.0,
            loss_bad: 0.5 + 0.5 * rng.unit(),
        },
    };
    LinkConfig {
        delay_ns,
        jitter_ns: rng.below(5) * MILLISECOND_NS,
        loss,
        rate: Some(Shaper {
            rate_bps: 1_000_000 + rng.below(200_000_000),
            queue_bytes: Some(20_000 + rng.below(1 << 20)),
            queue_packets: None,
        }),
        ecn_mark_bytes: None,
        policer: None,
        reorder: (rng.below(2) == 0).then(|| Reorder {
            probability: 0.1 * rng.unit(),
            delay_ns: rng.below(30) * MILLISECOND_NS,
        }),
        duplicate: if rng.below(2) == 0 {
            0.05 * rng.unit()
        } else {
            0.0
        },
        corrupt: if rng.below(2) == 0 {
            0.05 * rng.unit()
        } else {
            0.0
        },
    }
}
