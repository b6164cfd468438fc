//! Marks of congestion (ECN): a queue that marks early, and ends that slow down for it.

use haul_cc::time::{MILLISECOND_NS, SECOND_NS};
use haul_cc::{Algorithm, Time};
use haul_sim::{Flow, World, scenario};
use haul_udt::Config;

const RATE_BPS: u64 = 100_000_000;
const RTT_MS: u64 = 40;
const BDP_BYTES: u64 = RATE_BPS / 8 * RTT_MS / 1_000;
const SECONDS: u64 = 10;
const WORLDS: u64 = 40;
/// Payload bytes of a full packet, of the 1,500 that it takes on the wire.
const PAYLOAD: f64 = 1_456.0 / 1_500.0;

/// What a transfer made of the path.
struct Made {
    /// Share of the ceiling over [`SECONDS`] after the first two.
    goodput: f64,
    dropped: u64,
    marked: u64,
    ecn: [bool; 2],
}

/// One flow over a queue of a bandwidth-delay product that marks above `mark_bytes`; whether each
/// end offers ECN.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn transfer(control: Algorithm, mark_bytes: u64, offers: [bool; 2]) -> Made {
    let mut path = scenario::plain(RATE_BPS, RTT_MS, 0.0);
    path.forward.ecn_mark_bytes = Some(mark_bytes);
    let mut world = World::new(&path, 3);
    let [client, server] = offers.map(|offer_ecn| {
        let mut config = Config::default();
        config.control = control;
        config.offer_ecn = offer_ecn;
        config
    });
    let flow = world.add(Flow {
        client,
        server,
        stream_bytes: [u64::MAX / 4, 0],
        ..Flow::default()
    });
    let begun = Time::from_ns(2 * SECOND_NS);
    world.run_until(begun);
    let placed = |world: &World| world.host(flow, 1).map_or(0, |host| host.rx.placed_bytes);
    let before = placed(&world);
    world.run_until(begun.after(SECONDS * SECOND_NS));
    let stats = world.link(0).stats();
    let bps = (placed(&world) - before) as f64 * 8.0 / SECONDS as f64;
    Made {
        goodput: bps / (RATE_BPS as f64 * PAYLOAD),
        dropped: stats.queue_dropped,
        marked: stats.marked,
        ecn: [0, 1].map(|side| {
            let host = world.host(flow, side).expect("it is there");
            host.connection.params().expect("it is open").ecn
        }),
    }
}

#[test]
fn cubic_loses_less_where_marks_tell_it_earlier() {
    let heeding = transfer(Algorithm::Cubic, BDP_BYTES / 2, [true; 2]);
    let deaf = transfer(Algorithm::Cubic, BDP_BYTES / 2, [true, false]);
    assert_eq!(
        (heeding.ecn, deaf.ecn),
        ([true; 2], [false; 2]),
        "it takes both ends"
    );
    println!(
        "dropped {} with marks heeded, {} without",
        heeding.dropped, deaf.dropped
    );
    assert!(heeding.marked > 0 && heeding.dropped < deaf.dropped / 2);
    assert!(heeding.goodput > 0.95, "{}", heeding.goodput);
}

#[test]
fn the_model_fills_a_path_whose_queue_marks_early() {
    for share in [4, 20] {
        let made = transfer(Algorithm::Model, BDP_BYTES / share, [true; 2]);
        println!(
            "threshold 1/{share} of the path: {:.1} % of the ceiling, {} marked, {} dropped",
            made.goodput * 100.0,
            made.marked,
            made.dropped
        );
        assert!(made.goodput > 0.95 && made.dropped == 0, "{}", made.goodput);
    }
}

/// Two models that both hold too high a rate: the queue stands, and its marks bring them down.
/// Which of the two is too high, and for how long, is chance: the mean of some worlds.
#[test]
fn models_that_share_a_marking_queue_keep_it_short() {
    let share = |seed: u64, offer_ecn: bool| {
        let mut path = scenario::plain(RATE_BPS, RTT_MS, 0.0);
        path.forward.ecn_mark_bytes = Some(BDP_BYTES / 20);
        let mut world = World::new(&path, seed);
        let mut config = Config::default();
        config.offer_ecn = offer_ecn;
        let flows = [0, 1].map(|_| {
            world.add(Flow {
                client: config.clone(),
                server: config.clone(),
                stream_bytes: [u64::MAX / 4, 0],
                ..Flow::default()
            })
        });
        let (mut now, mut waiting, mut looks) = (Time::from_ns(2 * SECOND_NS), 0, 0_u64);
        world.run_until(now);
        let before = flows.map(|flow| world.host(flow, 1).map_or(0, |host| host.rx.placed_bytes));
        while now < Time::from_ns((2 + SECONDS) * SECOND_NS) {
            now = now.after(10 * MILLISECOND_NS);
            world.run_until(now);
            let stats = flows.map(|flow| {
                let host = world.host(flow, 0).expect("it is there");
                host.connection.stats().expect("it is open").rtt_ns
            });
            waiting += stats
                .iter()
                .map(|rtt| rtt - rtt.min(&(RTT_MS * MILLISECOND_NS)))
                .sum::<u64>();
            looks += 2;
        }
        let placed = flows.map(|flow| world.host(flow, 1).map_or(0, |host| host.rx.placed_bytes));
        let both: u64 = placed
            .iter()
            .zip(before)
            .map(|(after, before)| after - before)
            .sum();
        (both * 8 / SECONDS, waiting / looks / 1_000)
    };
    let mean = |offer_ecn| {
        let shares = (1..=WORLDS).map(|seed| share(seed, offer_ecn));
        let sum = shares.fold((0, 0), |sum, share| (sum.0 + share.0, sum.1 + share.1));
        (sum.0 / WORLDS, sum.1 / WORLDS)
    };
    let ((deaf_bps, deaf_us), (bps, us)) = (mean(false), mean(true));
    println!(
        "without marks {deaf_bps} bit/s and {deaf_us} us of queue, with marks {bps} bit/s and {us} us"
    );
    // The means of so many worlds differ by a twentieth by chance.
    assert!(us <= deaf_us * 11 / 10, "the queue is longer with marks");
    assert!(bps > RATE_BPS * 90 / 100, "{bps} bit/s");
}

#[test]
fn a_path_that_swallows_the_first_data_is_tried_without() {
    let mut path = scenario::plain(RATE_BPS, RTT_MS, 0.0);
    // The handshake takes two round trips; then nothing passes for a while.
    let (dark, light) = (
        Time::from_ns(85 * MILLISECOND_NS),
        Time::from_ns(4 * SECOND_NS),
    );
    path.blackouts.push((dark.as_ns(), light.as_ns()));
    let mut world = World::new(&path, 1);
    let flow = world.add(Flow {
        stream_bytes: [1 << 20, 0],
        ..Flow::default()
    });
    let says = |world: &World| {
        world
            .host(flow, 0)
            .map(|host| host.connection.is_ecn_capable())
    };
    world.run_until(dark);
    assert_eq!(says(&world), Some(true));
    world.run_until(light);
    assert_eq!(says(&world), Some(false));
    world.run_until(light.after(5 * SECOND_NS));
    assert!(
        world
            .host(flow, 1)
            .is_some_and(|host| host.rx.placed_bytes == 1 << 20)
    );
}
