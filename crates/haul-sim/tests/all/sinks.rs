//! A receiver that cannot take more holds its sender back by credit: whatever its sink does,
//! nothing is repeated because of it.

use haul_cc::Time;
use haul_cc::time::SECOND_NS;
use haul_netem::LossModel;
use haul_sim::{Flow, ROOM_BYTES, World, scenario};

const MBPS: u64 = 1_000_000;
const BYTES: u64 = 160 << 20;

/// Sends over 1 Gb/s, 20 ms, one packet in 10,000 lost, to a sink of these rates.
fn run(name: &str, sink: Vec<(u64, u64)>, bytes: u64) {
    let mut path = scenario::plain(1_000 * MBPS, 20, 1e-4);
    path.reverse.loss = LossModel::None;
    let mut world = World::new(&path, 7);
    let flow = world.add(Flow {
        stream_bytes: [bytes, 0],
        sink,
        ..Flow::default()
    });
    world.run_until(Time::from_ns(300 * SECOND_NS));
    assert!(
        world.outcome(flow).finished.is_some(),
        "{name}: not finished"
    );
    let stats = |side| {
        world
            .host(flow, side)
            .and_then(|host| host.connection.stats())
    };
    let (sender, receiver) = (stats(0).expect("open"), stats(1).expect("open"));
    let sent = sender.sent;
    println!("{name}: {sent:?}");
    let held = world
        .host(flow, 1)
        .map_or(u64::MAX, |host| host.rx.held_most);
    assert!(held <= ROOM_BYTES, "{name}: {held} bytes were held");
    assert_eq!(receiver.misbehaviour, 0, "{name}: beyond its credit");
    assert_eq!(sent.refused_bytes, 0, "{name}");
    assert_eq!(sent.timer_bytes, 0, "{name}");
    assert_eq!(sent.reordered_bytes, 0, "{name}");
    // Chance, not more.
    assert!(sent.path_lost_bytes() < bytes / 2_000, "{name}: {sent:?}");
}

#[test]
fn a_slow_sink_holds_its_sender_back_and_nothing_is_repeated() {
    run("10 Mb/s", vec![(0, 10 * MBPS)], 80 << 20);
    run("100 Mb/s", vec![(0, 100 * MBPS)], BYTES);
    run("400 Mb/s", vec![(0, 400 * MBPS)], BYTES);
}

#[test]
fn a_sink_that_stalls_or_alternates_holds_its_sender_back_and_nothing_is_repeated() {
    let stall = |at: u64| [(at * SECOND_NS, 0), ((at + 3) * SECOND_NS, 400 * MBPS)];
    let stalls = [(0, 400 * MBPS)]
        .into_iter()
        .chain(stall(1))
        .chain(stall(5));
    run("stalls of 3 s", stalls.collect(), BYTES);
    let turns = (0..120).map(|turn| {
        (
            turn * SECOND_NS / 2,
            if turn % 2 == 0 { 400 } else { 10 } * MBPS,
        )
    });
    run("400 and 10 Mb/s by turns", turns.collect(), BYTES);
}
