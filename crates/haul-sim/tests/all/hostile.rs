//! Transfers over paths that are bad in random ways, one seed at a time: every byte must arrive
//! where it belongs, every message once and in its order, and both ends must close, all in bounded
//! virtual time.
//!
//! `HAUL_SIM_SEEDS` is how many seeds (200 when not told), `HAUL_SEED` repeats one of them.
#![expect(
    clippy::disallowed_methods,
    reason = "the number of seeds comes from the environment"
)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use haul_cc::time::{MILLISECOND_NS, SECOND_NS};
use haul_cc::{Algorithm, Rate, Time};
use haul_netem::Rng;
use haul_sim::{Damage, Flow, MessageOut, World, scenario};
use haul_udt::Config;
use haul_udt::wire::SocketKind;

const SEEDS: u64 = 200;
/// The slowest path has 1 Mb/s and loses a third.
const TRANSFER_NS_MAX: u64 = 900 * SECOND_NS;
/// An end that misses every shutdown waits for its idle timeout of 30 s.
const CLOSE_NS_MAX: u64 = 60 * SECOND_NS;

#[test]
fn every_byte_and_message_survives_hostile_paths() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    if let Some(seed) = number("HAUL_SEED") {
        let report = run(seed);
        println!("seed {seed}: {report:?}");
        return;
    }
    let seeds = number("HAUL_SIM_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(0);
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        let (mut failures, mut damage) = (Vec::new(), Damage::default());
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return (failures, damage);
            }
            match catch_unwind(AssertUnwindSafe(|| run(seed))) {
                Ok(report) => {
                    damage.caught += report.damage.caught;
                    damage.missed += report.damage.missed;
                }
                Err(_) => failures.push(seed),
            }
        }
    };
    let mut failures = Vec::new();
    let mut damage = Damage::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            let (failed, damaged) = thread.join().expect("a worker catches what it runs");
            failures.extend(failed);
            damage.caught += damaged.caught;
            damage.missed += damaged.missed;
        }
    });
    failures.sort_unstable();
    println!("simulated {seeds} seeds, {} failures", failures.len());
    println!(
        "damaged packets: {} caught by the checksum, {} not (dropped all the same)",
        damage.caught, damage.missed
    );
    assert!(
        failures.is_empty(),
        "these seeds failed (repeat one with HAUL_SEED=…): {failures:?}"
    );
}

#[test]
fn damage_that_no_checksum_of_udp_finds_is_loss() {
    const WORLDS: u64 = 60;
    let mut missed = 0;
    for seed in 1..=WORLDS {
        let mut rng = Rng::new(seed);
        let mut flow = random_flow(&mut rng);
        (flow.client.offer_placement, flow.server.offer_placement) = (true, true);
        let mut path = scenario::hostile(rng.next_u64());
        (path.forward.corrupt, path.reverse.corrupt) = (0.05, 0.05);
        let mut world = World::new(&path, seed);
        world.miss_damage();
        let index = world.add(flow);
        world.run_until(Time::from_ns(TRANSFER_NS_MAX));
        for side in 0..2 {
            let host = world.host(index, side);
            let host = host.unwrap_or_else(|| panic!("seed {seed}: side {side} never came to be"));
            assert_eq!(host.rx.wrong, None, "seed {seed}: side {side}");
            assert_eq!(host.closed(), None, "seed {seed}: side {side} ended early");
        }
        assert!(
            world.outcome(index).finished.is_some(),
            "seed {seed}: not finished"
        );
        missed += world.damaged().missed;
    }
    println!("{missed} damaged headers and control packets arrived");
    assert!(missed > 1_000, "{missed} are too few to tell");
}

#[derive(Debug)]
struct Report {
    #[expect(dead_code, reason = "printed when a seed is repeated")]
    kind: SocketKind,
    #[expect(dead_code, reason = "printed when a seed is repeated")]
    finished_ms: u64,
    damage: Damage,
}

fn run(seed: u64) -> Report {
    let mut rng = Rng::new(seed ^ 0x6861_756c);
    let flow = random_flow(&mut rng);
    let kind = flow.client.kind;
    let mut world = World::new(&scenario::hostile(rng.next_u64()), rng.next_u64());
    let index = world.add(flow.clone());
    world.run_until(Time::from_ns(TRANSFER_NS_MAX));
    let finished = world.outcome(index).finished;
    for side in 0..2 {
        let Some(host) = world.host(index, side) else {
            panic!("seed {seed}: side {side} never came to be");
        };
        assert_eq!(host.rx.wrong, None, "seed {seed}: side {side}");
        assert_eq!(host.closed(), None, "seed {seed}: side {side} ended early");
        assert!(
            finished.is_some(),
            "seed {seed}: not finished; side {side} delivered {} bytes and {} messages of {:?}, {:?}",
            host.rx.delivered_bytes,
            host.rx.messages.len(),
            (
                &flow.stream_bytes,
                [flow.messages[0].len(), flow.messages[1].len()]
            ),
            host.connection.stats(),
        );
        if kind == SocketKind::Stream {
            let bytes = flow.stream_bytes[1 - side];
            assert_eq!(host.rx.delivered_bytes, bytes, "seed {seed}: side {side}");
        }
        let misbehaviour = host
            .connection
            .stats()
            .map_or(0, |stats| stats.misbehaviour);
        assert_eq!(misbehaviour, 0, "seed {seed}: side {side} blames its peer");
    }
    close(&mut world, index, seed, rng.below(2) == 0);
    Report {
        kind,
        finished_ms: finished.map_or(0, |at| at.as_ns() / MILLISECOND_NS),
        damage: world.damaged(),
    }
}

fn close(world: &mut World, flow: usize, seed: u64, by_client: bool) {
    world.close(flow, usize::from(!by_client));
    world.run_until(world.now().after(CLOSE_NS_MAX));
    for side in 0..2 {
        let closed = world.host(flow, side).and_then(|host| host.closed());
        assert!(
            matches!(closed, Some(None | Some(haul_udt::Error::TimedOut))),
            "seed {seed}: side {side} did not close: {closed:?}"
        );
    }
}

fn random_flow(rng: &mut Rng) -> Flow {
    let kind = if rng.chance(0.5) {
        SocketKind::Stream
    } else {
        SocketKind::Datagram
    };
    let [client, server] = [random_config(rng, kind), random_config(rng, kind)];
    // A message has to fit into the smaller of the windows.
    let message_max = 40 * u64::from(client.payload_len().min(server.payload_len()));
    let mut flow = Flow {
        client,
        server,
        bytes_matter: true,
        rendezvous: rng
            .chance(0.2)
            .then(|| Time::from_ns(rng.below(3_000) * MILLISECOND_NS)),
        ..Flow::default()
    };
    for side in 0..2 {
        if rng.chance(0.2) {
            flow.rest_ns[side] = rng.below(400) * MILLISECOND_NS;
        }
        if kind == SocketKind::Stream {
            flow.stream_bytes[side] = random_size(rng);
        } else {
            flow.messages[side] = random_messages(rng, message_max);
        }
    }
    flow
}

fn random_config(rng: &mut Rng, kind: SocketKind) -> Config {
    let mtus = [576, 1_280, 1_500, 1_500, 1_500, 9_000];
    let mtu = mtus[usize::try_from(rng.below(6)).unwrap_or(0)];
    let control = match rng.below(4) {
        0 => Algorithm::Cubic,
        1 => Algorithm::Fixed(Rate::from_bps(1_000_000 + rng.below(100_000_000))),
        _ => Algorithm::Model,
    };
    let mut config = Config::default();
    config.kind = kind;
    config.mtu = mtu;
    config.control = control;
    config.offer_placement = rng.chance(0.6);
    config.slot_memory_bytes = if rng.chance(0.5) { 100_000 } else { 2 << 20 };
    config.receive_window_bytes = 1 << 20;
    config
}

/// Mostly small: what is hard happens at the beginning and at the end.
fn random_size(rng: &mut Rng) -> u64 {
    match rng.below(8) {
        0 => 0,
        1 => 1,
        2 => 1_456,
        3 => 1_000_000 + rng.below(1_000_000),
        _ => rng.below(200_000),
    }
}

fn random_messages(rng: &mut Rng, max: u64) -> Vec<MessageOut> {
    let (count, in_order, mortal) = (rng.below(60), rng.unit(), rng.below(3) == 0);
    let message = |_| MessageOut {
        len: 1 + if rng.chance(0.2) {
            rng.below(max)
        } else {
            rng.below(2_000)
        },
        in_order: rng.chance(in_order),
        ttl_ns: (mortal && rng.chance(0.5)).then(|| rng.below(800) * MILLISECOND_NS),
    };
    (0..count).map(message).collect()
}
