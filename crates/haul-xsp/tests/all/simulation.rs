//! Chains of hosts on virtual time, from seeds: whatever the timing, whatever breaks, each
//! connection's streams arrive exactly, in order, with half close and reset where they belong; and
//! no memory is held in the end.
//!
//! `HAUL_SEED` repeats one seed, `HAUL_SIM_SEEDS` says how many.
#![expect(clippy::cast_possible_truncation, reason = "small numbers from a seed")]

use crate::common;

use std::sync::atomic::{AtomicU64, Ordering};

use common::app::judge;
use common::random::Random;
use common::world::{MS, Setup, World};
use haul_xsp::bag::plan::Mode;
use haul_xsp::bag::{ConsumerConfig, ProducerConfig};
use haul_xsp::wire::AuthMethod;
use haul_xsp::{AuthConfig, SECOND_NS, SessionConfig, SharedKey};

fn setup(random: &mut Random) -> Setup {
    let mode = if random.chance(300) {
        Mode::Push
    } else {
        Mode::Pull
    };
    let key = SharedKey::new("site", b"0123456789abcdef");
    let method = if random.chance(500) {
        AuthMethod::SharedKey
    } else {
        AuthMethod::Anonymous
    };
    let config = SessionConfig {
        conns_max: 16,
        keepalive_ns: 500 * MS,
        lifetime_ns: 60 * SECOND_NS,
        auth: AuthConfig {
            methods: vec![method],
            keys: vec![key],
            ..AuthConfig::default()
        },
        producer: ProducerConfig {
            regions: 3 + random.below(6) as u16,
            region_bytes: 8 << 10,
            region_bytes_start: 1 << (10 + random.below(4)),
            mode,
            records_max: 1 + random.below(64) as usize,
            ..ProducerConfig::default()
        },
        consumer: ConsumerConfig {
            arena_bytes: 1 << (13 + random.below(4)),
            extent_bytes_min: 256,
            extent_bytes_max: 2 << 10,
            mode,
            message_max: 200 + random.below(2_000) as u32,
            reads_max: 1 + random.below(16) as u16,
            rate_bps: random.chance(200).then_some(500_000_000),
            ..ConsumerConfig::default()
        },
        ..SessionConfig::default()
    };
    Setup {
        segments: 1 + random.below(3) as usize,
        config,
        end_to_end: random.chance(500),
        conns: 1 + random.below(12),
        total_max: 1 + random.below(30_000),
        resets: random.chance(500),
        breaks: 0,
        crashes: 0,
        detours: 0,
        corrupt: if random.chance(300) { 2 } else { 0 },
        latency_max: 1 + random.below(20 * MS),
    }
}

fn seeds() -> Vec<u64> {
    let one = option("HAUL_SEED");
    one.map_or_else(
        || (1..=option("HAUL_SIM_SEEDS").unwrap_or(40).min(100_000)).collect(),
        |seed| vec![seed],
    )
}

pub(crate) fn option(name: &str) -> Option<u64> {
    #[expect(
        clippy::disallowed_methods,
        reason = "which seeds to run is the tester's choice"
    )]
    let value = std::env::var(name).ok()?;
    value.parse().ok()
}

fn for_all_seeds(run: impl Fn(u64) + std::panic::RefUnwindSafe) {
    let failed: Vec<u64> = seeds()
        .into_iter()
        .filter(|seed| std::panic::catch_unwind(|| run(*seed)).is_err())
        .collect();
    assert!(
        failed.is_empty(),
        "these seeds failed (repeat one with HAUL_SEED=…): {failed:?}"
    );
}

fn run(seed: u64, setup: Setup) -> World {
    let mut world = World::new(seed, setup);
    world.run();
    let [near, far] = &world.apps;
    judge(seed, near, far);
    world
}

#[test]
fn streams_arrive_exactly_whatever_the_timing() {
    let inline = AtomicU64::new(0);
    for_all_seeds(|seed| {
        let setup = setup(&mut Random::new(seed));
        let mut world = run(seed, setup);
        world.drain_all(200 * MS);
        inline.fetch_add(world.inline, Ordering::Relaxed);
        assert_eq!(
            world.held(),
            0,
            "seed {seed}: somebody holds memory of connections that are gone"
        );
    });
    let inline = inline.into_inner();
    assert!(
        seeds().len() == 1 || inline > 0,
        "no slab came with its announcement"
    );
}

#[test]
fn streams_go_on_where_control_connections_break() {
    for_all_seeds(|seed| {
        let mut random = Random::new(seed ^ 0xb4ea);
        let setup = Setup {
            breaks: 1 + random.below(4),
            ..setup(&mut random)
        };
        run(seed, setup);
    });
}

#[test]
fn gateways_that_crash_lose_nothing_that_is_acknowledged_from_end_to_end() {
    for_all_seeds(|seed| {
        let mut random = Random::new(seed ^ 0xc4a5);
        let base = setup(&mut random);
        let setup = Setup {
            end_to_end: true,
            segments: 2 + random.below(2) as usize,
            crashes: 1 + random.below(3),
            breaks: random.below(5),
            ..base
        };
        run(seed, setup);
    });
}

#[test]
fn sessions_that_are_acknowledged_from_end_to_end_go_on_over_other_hops() {
    let detours = AtomicU64::new(0);
    for_all_seeds(|seed| {
        let mut random = Random::new(seed ^ 0xde70);
        let base = setup(&mut random);
        let setup = Setup {
            end_to_end: true,
            segments: 2 + random.below(2) as usize,
            detours: 1 + random.below(3),
            crashes: random.below(2),
            breaks: random.below(3),
            ..base
        };
        let world = run(seed, setup);
        detours.fetch_add(world.detours, Ordering::Relaxed);
    });
    let detours = detours.into_inner();
    assert!(
        seeds().len() == 1 || detours > 0,
        "nobody has gone another way"
    );
}
