//! Flows that share a path, on virtual time.

use haul_cc::Time;
use haul_cc::time::{MILLISECOND_NS, SECOND_NS};
use haul_sim::{Flow, Stalls, World, scenario};

const RATE_BPS: u64 = 300_000_000;
const SECONDS: u64 = 60;
/// Minutes of each path: one of twenty has shares that an index of 0.97 says of, the mean of twenty
/// is above 0.995.
const SEEDS: u64 = 4;
/// Ten seconds of each path.
const NEWCOMERS: u64 = 8;
/// The second flow comes when the first has settled.
const HEAD_START: Time = Time::from_ns(2 * SECOND_NS);

/// Payload of each of two flows with the default control in so many seconds, over a queue of a
/// bandwidth-delay product.
fn share(rtt_ms: u64, seed: u64, seconds: u64, stalls: Option<Stalls>) -> [u64; 2] {
    let path = scenario::plain(RATE_BPS, rtt_ms, 0.0);
    let mut world = World::new(&path, seed);
    let flows = [Time::ZERO, HEAD_START].map(|starts| {
        world.add(Flow {
            starts,
            stalls: [stalls; 2],
            stamps_arrivals: true,
            stream_bytes: [u64::MAX / 4, 0],
            ..Flow::default()
        })
    });
    let placed = |world: &World| {
        flows.map(|flow| world.host(flow, 1).map_or(0, |host| host.rx.placed_bytes))
    };
    world.run_until(HEAD_START);
    let before = placed(&world);
    world.run_until(HEAD_START.after(seconds * SECOND_NS));
    let after = placed(&world);
    [0, 1].map(|flow| after[flow] - before[flow])
}

/// Jain's index of fairness.
fn jain(first: f64, second: f64) -> f64 {
    (first + second).powi(2) / (2.0 * (first.powi(2) + second.powi(2)))
}

#[test]
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn two_flows_of_the_default_control_share_a_path() {
    for rtt_ms in [10, 50, 100] {
        let mut mean = 0.0;
        for seed in 1..=SEEDS {
            let [first, second] = share(rtt_ms, seed, SECONDS, None).map(|bytes| bytes as f64);
            let jain = jain(first, second);
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

/// A newcomer has its share within seconds, on hosts at rest and on those whose threads stall.
#[test]
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn a_newcomer_soon_has_its_share() {
    const BUSY: Stalls = Stalls::Random {
        every_ns: 20 * MILLISECOND_NS,
        length_ns: 2 * MILLISECOND_NS,
    };
    for rtt_ms in [20, 80] {
        for stalls in [None, Some(BUSY)] {
            let shares = (1..=NEWCOMERS).map(|seed| share(rtt_ms, seed, 10, stalls));
            let indices = shares.map(|[first, second]| jain(first as f64, second as f64));
            let indices: Vec<_> = indices.collect();
            println!("{rtt_ms} ms, {stalls:?}: {indices:.3?}");
            let mean = indices.iter().sum::<f64>() / NEWCOMERS as f64;
            let least = indices.into_iter().fold(f64::MAX, f64::min);
            let mean_min = if stalls.is_none() { 0.95 } else { 0.92 };
            assert!(least > 0.75 && mean > mean_min, "{mean:.3} in the mean");
        }
    }
}

/// Two flows that both hold the whole rate lower it as soon as they see what arrives.
#[test]
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn a_newcomer_overflows_the_queue_for_a_short_time() {
    const RTT_MS: u64 = 80;
    let lost = (1..=NEWCOMERS).map(|seed| {
        let mut world = World::new(&scenario::plain(RATE_BPS, RTT_MS, 0.0), seed);
        for starts in [Time::ZERO, HEAD_START] {
            world.add(Flow {
                starts,
                stream_bytes: [u64::MAX / 4, 0],
                ..Flow::default()
            });
        }
        world.run_until(HEAD_START);
        let before = *world.link(0).stats();
        world.run_until(HEAD_START.after(16 * RTT_MS * MILLISECOND_NS));
        let after = world.link(0).stats();
        let dropped = after.queue_dropped - before.queue_dropped;
        dropped as f64 / (after.offered - before.offered) as f64
    });
    let lost: Vec<_> = lost.collect();
    println!("lost: {lost:.4?}");
    assert!(lost.iter().sum::<f64>() / NEWCOMERS as f64 <= 0.05);
}
