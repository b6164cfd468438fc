//! Flows that share a path, on virtual time.

use haul_cc::Time;
use haul_cc::time::SECOND_NS;
use haul_sim::{Flow, World, scenario};

const RATE_BPS: u64 = 300_000_000;
const SECONDS: u64 = 60;
/// Minutes of each path: one of twenty has shares that an index of 0.97 says of, the mean of twenty
/// is above 0.995.
const SEEDS: u64 = 4;
/// The second flow comes when the first has settled.
const HEAD_START: Time = Time::from_ns(2 * SECOND_NS);

/// Payload of each of two flows with the default control in a minute, over a queue of a
/// bandwidth-delay product.
fn share(rtt_ms: u64, seed: u64) -> [u64; 2] {
    let path = scenario::plain(RATE_BPS, rtt_ms, 0.0);
    let mut world = World::new(&path, seed);
    let flows = [Time::ZERO, HEAD_START].map(|starts| {
        world.add(Flow {
            starts,
            stream_bytes: [u64::MAX / 4, 0],
            ..Flow::default()
        })
    });
    let placed = |world: &World| {
        flows.map(|flow| world.host(flow, 1).map_or(0, |host| host.rx.placed_bytes))
    };
    world.run_until(HEAD_START);
    let before = placed(&world);
    world.run_until(HEAD_START.after(SECONDS * SECOND_NS));
    let after = placed(&world);
    [0, 1].map(|flow| after[flow] - before[flow])
}

#[test]
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn two_flows_of_the_default_control_share_a_path() {
    for rtt_ms in [10, 50, 100] {
        let mut mean = 0.0;
        for seed in 1..=SEEDS {
            let [first, second] = share(rtt_ms, seed).map(|bytes| bytes as f64);
            let jain = (first + second).powi(2) / (2.0 * (first.powi(2) + second.powi(2)));
            let used = (first + second) * 8.0 / (RATE_BPS * SECONDS) as f64;
            println!(
                "{rtt_ms} ms, seed {seed}: Jain's index {jain:.3}, {:.1} % used",
                used * 100.0
            );
            assert!(jain >= 0.95 && used > 0.92, "{rtt_ms} ms, seed {seed}");
            mean += jain / SEEDS as f64;
        }
        assert!(mean >= 0.98, "{rtt_ms} ms: {mean:.3} in the mean");
    }
}
