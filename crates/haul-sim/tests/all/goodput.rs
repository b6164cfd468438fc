//! What the protocol and its control make of a path, measured on virtual time: the rate found by
//! itself, one stream, the allowed ramp of eight round trips left out.
//!
//! In a debug build, which is slow, the link has a tenth of the rate and only a few cells are
//! measured.

use haul_cc::time::{MILLISECOND_NS, SECOND_NS};
use haul_cc::{Algorithm, Rate, Time};
use haul_netem::{LossModel, Policer, Reorder};
use haul_sim::{Flow, Path, Stalls, World, scenario};

use crate::workers::on_all_processors;
use haul_udt::Config;

const RATE_BPS: u64 = if cfg!(debug_assertions) {
    100_000_000
} else {
    1_000_000_000
};
const SECONDS: u64 = if cfg!(debug_assertions) { 2 } else { 10 };
const RAMP_RTTS: u64 = 8;
/// A train that shows the rate, and at the higher one a paced train that confirms it; both arrive
/// within the round trips that their acknowledgements take.
const START_RTTS: u64 = if cfg!(debug_assertions) { 2 } else { 3 };
const PAYLOAD: f64 = 1_456.0;
const WIRE: f64 = 1_500.0;

/// A path and what is expected of it.
struct Cell {
    name: String,
    path: Path,
    control: Algorithm,
    /// What the sender knows of a policer: its rate, and half of its burst.
    told: Option<(Rate, u64)>,
    stalls: [Option<Stalls>; 2],
    stamps_arrivals: bool,
    ramp_ns: u64,
    ceiling_bps: f64,
    share_min: f64,
    resent_max: f64,
}

#[test]
fn the_rate_found_by_itself_fills_the_path() {
    let mut cells = Vec::new();
    let all = [1, 10, 50, 100, 200];
    let rtts_ms = if cfg!(debug_assertions) {
        &all[1..2]
    } else {
        &all[..]
    };
    for &rtt_ms in rtts_ms {
        for loss in [0.0, 1e-5, 1e-4, 1e-3, 1e-2] {
            cells.push(lossy(rtt_ms, loss));
        }
    }
    measure(cells);
}

#[test]
fn reordered_packets_are_not_taken_for_lost() {
    let mut cell = lossy(50, 0.0);
    cell.name = "5 % reordered by up to 10 ms".into();
    cell.path.forward.reorder = Some(Reorder {
        probability: 0.05,
        delay_ns: 10 * MILLISECOND_NS,
    });
    measure(vec![cell]);
}

/// Connections that say a little at first, as those of RDMA and of gateways do, are no slower once
/// they have much to send.
#[test]
fn a_flow_that_trickles_at_first_fills_the_path_as_soon_as_it_may() {
    let (rtt_ns, began) = (50 * MILLISECOND_NS, SECOND_NS);
    for trickle in [0, 1, 20_000, 60_000] {
        let writes = (4..12).map(|round| (Time::from_ns(round * rtt_ns), trickle));
        let bulk = (Time::from_ns(began), u64::MAX / 4);
        let mut world = World::new(&scenario::plain(RATE_BPS, 50, 0.0), 7);
        let flow = world.add(Flow {
            later: writes.chain([bulk]).collect(),
            ..Flow::default()
        });
        let placed = |world: &World| world.host(flow, 1).map_or(0, |host| host.rx.placed_bytes);
        let ramp = Time::from_ns(began + START_RTTS * rtt_ns);
        world.run_until(ramp);
        let before = placed(&world);
        world.run_until(ramp.after(rtt_ns));
        let share =
            (placed(&world) - before) as f64 * WIRE / PAYLOAD / (RATE_BPS as f64 / 8.0 * 0.05);
        assert!(
            share > 0.9,
            "{trickle}: {share} of the rate after {START_RTTS} round trips"
        );
    }
}

/// An application that writes a little at a time, faster than the first window lets it leave: each
/// write must not begin another train, with a window of its own.
#[test]
fn a_flow_that_writes_piece_by_piece_neither_floods_the_path_nor_starves() {
    let (rate_bps, rtt_ms, piece) = (300_000_000, 80, 10_000);
    let began = 200 * MILLISECOND_NS;
    // Twice as fast as the path, and once more when that is over.
    let writes = (0..1_000).map(|at| (Time::from_ns(began + at * 130_000), piece));
    let bulk = (Time::from_ns(2 * SECOND_NS), u64::MAX / 4);
    let mut world = World::new(&scenario::plain(rate_bps, rtt_ms, 0.0), 7);
    let flow = world.add(Flow {
        later: writes.chain([bulk]).collect(),
        ..Flow::default()
    });
    let placed = |world: &World| world.host(flow, 1).map_or(0, |host| host.rx.placed_bytes);
    let resent = |world: &World| {
        let stats = world.host(flow, 0).and_then(|host| host.connection.stats());
        stats.map_or(u64::MAX, |stats| stats.sent.resent_packets)
    };
    // The path needs 275 ms for it, the start a few round trips.
    world.run_until(Time::from_ns(
        began + 275 * MILLISECOND_NS + 4 * rtt_ms * MILLISECOND_NS,
    ));
    assert_eq!((placed(&world), resent(&world)), (1_000 * piece, 0));
    world.run_until(Time::from_ns(2 * SECOND_NS + 4 * rtt_ms * MILLISECOND_NS));
    let before = placed(&world);
    let rtts_ns = 4 * rtt_ms * MILLISECOND_NS;
    world.run_until(Time::from_ns(2 * SECOND_NS + 2 * rtts_ns));
    let ideal = rate_bps as f64 / 8.0 * rtts_ns as f64 / SECOND_NS as f64;
    let share = (placed(&world) - before) as f64 * WIRE / PAYLOAD / ideal;
    assert!(share > 0.9, "{share} of the rate");
}

/// An application sends, is silent, and sends again: wherever in its cycle of bursts the silence
/// finds the control, the path is full again at once. Threads that run late make the cycles differ.
#[test]
fn a_flow_that_was_silent_fills_the_path_again() {
    const WRITES: [u64; 4] = [1, 4, 9, 21];
    let (rate_bps, seeds) = (100_000_000, 1..=24_u64);
    let cells = [20, 80].into_iter().flat_map(|rtt_ms| {
        let stalls = [
            None,
            Some(Stalls::Random {
                every_ns: 20 * MILLISECOND_NS,
                length_ns: 2 * MILLISECOND_NS,
            }),
        ];
        let seeds = seeds.clone();
        stalls
            .into_iter()
            .flat_map(move |stalls| seeds.clone().map(move |seed| (rtt_ms, stalls, seed)))
    });
    let slow = on_all_processors(cells, |(rtt_ms, stalls, seed)| {
        // One and a half seconds each, and a little more with each seed.
        let bytes = rate_bps / 8 * (150 + 3 * seed) / 100;
        let at = |second: u64| Time::from_ns(second * SECOND_NS);
        let mut world = World::new(&scenario::plain(rate_bps, rtt_ms, 0.0), seed);
        let flow = world.add(Flow {
            stream_bytes: [20_000, 0],
            later: WRITES.map(|second| (at(second), bytes)).into(),
            stalls: [stalls; 2],
            stamps_arrivals: true,
            ..Flow::default()
        });
        let ideal_ns = bytes * 8 * SECOND_NS / rate_bps;
        let limit_ns = ideal_ns / 8 * 9 + RAMP_RTTS * rtt_ms * MILLISECOND_NS;
        let mut due = 20_000;
        for second in WRITES {
            due += bytes;
            world.run_until(at(second).after(limit_ns));
            let placed = world.host(flow, 1).map_or(0, |host| host.rx.placed_bytes);
            if placed < due {
                let text = format!(
                    "{rtt_ms} ms, seed {seed}, {stalls:?}: {} bytes missing of those of second {second}",
                    due - placed
                );
                return Some(text);
            }
        }
        None
    });
    let slow: Vec<_> = slow.into_iter().flatten().collect();
    assert!(slow.is_empty(), "{slow:#?}");
}

/// What waits for a thread is read all at once, faster than the path carries: that is no rate of
/// the path's.
#[test]
fn threads_that_run_late_cost_little() {
    let every_ns = 170 * MILLISECOND_NS;
    let mut cells = Vec::new();
    for rtt_ms in [10, 50, 100] {
        for length_ms in [5, 15, 25] {
            let mut cell = lossy(rtt_ms, 1e-4);
            cell.name += &format!(", the receiver late by {length_ms} ms");
            cell.stalls[1] = Some(Stalls::Regular {
                every_ns,
                length_ns: length_ms * MILLISECOND_NS,
            });
            // Two round trips may be in flight, and the queue holds one.
            (cell.share_min, cell.resent_max) = if length_ms < rtt_ms {
                (0.9, 0.02)
            } else {
                (0.7, 0.02)
            };
            cells.push(cell);
        }
    }
    measure(cells);
}

/// Threads of both ends that stall at random, and whole hosts, of which nobody can tell when a
/// packet came. That is neither a queue of the path's nor a neighbour's: taken for one, it has left
/// 57 % of a gigabit at 10 ms.
#[test]
fn hosts_that_stall_at_random_lose_little_more_than_the_time() {
    let mut cells = Vec::new();
    for rtt_ms in [10, 20, 50] {
        for mbps in [100, 300, 1_000] {
            for (stall_ms, stamps_arrivals) in [(2, true), (2, false), (5, true), (5, false)] {
                let loss = if mbps == 300 { 1e-4 } else { 1e-3 };
                let mut cell = cell(mbps * 1_000_000, rtt_ms, loss);
                let who = if stamps_arrivals { "threads" } else { "hosts" };
                cell.name += &format!(", {mbps} Mb/s, {who} stall for {stall_ms} ms");
                cell.stalls = [Some(Stalls::Random {
                    every_ns: 20 * MILLISECOND_NS,
                    length_ns: stall_ms * MILLISECOND_NS,
                }); 2];
                cell.stamps_arrivals = stamps_arrivals;
                // One that stalls during the first train begins with too low a rate.
                cell.ramp_ns = SECOND_NS;
                // They run for ten elevenths and for four fifths of the time.
                cell.share_min = match (stamps_arrivals, stall_ms) {
                    (true, 2) => 0.91,
                    (true, _) => 0.80,
                    (false, _) => 0.75,
                };
                // A host that stalls makes up for it, and the queue is as long as a stall.
                cell.resent_max = if stamps_arrivals { loss + 0.01 } else { 0.1 };
                cells.push(cell);
            }
        }
    }
    measure(cells);
}

/// A queue of a fortieth of the path holds a fifth of a burst and is shorter than what passes for
/// noise. Bursts every six round trips overflowed it: 0.5 % was retransmitted.
#[test]
fn a_short_queue_is_overflowed_rarely() {
    let cells = [0.0, 1e-3].map(|loss| {
        let mut cell = cell(1_000_000_000, 100, loss);
        cell.name += ", queue of 300 kB";
        if let Some(shaper) = &mut cell.path.forward.rate {
            shaper.queue_bytes = Some(300_000);
        }
        cell.share_min = 0.985;
        cell.resent_max = loss + 0.004;
        cell
    });
    measure(cells.into());
}

/// A batch of a millisecond did not fit: half of the path was left with a queue of 64 kB.
#[test]
fn a_queue_shorter_than_a_batch_is_found() {
    let cells = [32_000, 64_000, 100_000].map(|queue_bytes| {
        let mut cell = cell(1_000_000_000, 50, 1e-4);
        cell.name += &format!(", queue of {queue_bytes} B");
        if let Some(shaper) = &mut cell.path.forward.rate {
            shaper.queue_bytes = Some(queue_bytes);
        }
        // Each trial takes several round trips.
        cell.ramp_ns = 3 * SECOND_NS;
        cell.share_min = 0.93;
        cell.resent_max = 0.08;
        cell
    });
    measure(cells.into());
}

/// Its requests are repeated every 250 ms, and any of them may be the one that was answered.
#[test]
fn a_handshake_over_a_long_path_measures_no_round_trip_that_is_too_short() {
    for rtt_ms in (50..2_000).step_by(90) {
        let mut world = World::new(&scenario::plain(10_000_000, rtt_ms, 0.0), rtt_ms);
        let flow = world.add(Flow {
            stream_bytes: [1_000_000, 0],
            ..Flow::default()
        });
        world.run_until(Time::from_ns(60 * SECOND_NS));
        let stats = world.host(flow, 0).and_then(|host| host.connection.stats());
        let measured_ns = stats.expect("the connection is open").rtt_min_ns;
        let range = rtt_ms * MILLISECOND_NS..(rtt_ms + 20) * MILLISECOND_NS;
        assert!(
            range.contains(&measured_ns),
            "{rtt_ms} ms: {measured_ns} ns"
        );
    }
}

#[test]
fn lost_feedback_costs_nothing() {
    let mut cell = lossy(50, 0.0);
    cell.name = "10 % of feedback lost".into();
    cell.path.reverse.loss = LossModel::Random(0.1);
    measure(vec![cell]);
}

#[test]
fn a_declared_rate_passes_a_policer() {
    let policed_bps = RATE_BPS / 2;
    let mut cell = lossy(50, 0.0);
    cell.name = "a policer at half the rate, 1 MiB burst, rate declared".into();
    cell.path.forward.policer = Some(Policer {
        rate_bps: policed_bps,
        burst_bytes: 1 << 20,
    });
    cell.control = Algorithm::Fixed(Rate::from_bps(policed_bps));
    cell.ceiling_bps /= 2.0;
    cell.share_min = 0.95;
    measure(vec![cell]);
}

#[test]
fn a_limit_of_rate_and_burst_passes_a_policer() {
    let policed_bps = RATE_BPS / 2;
    let told = |burst_bytes: u64| {
        let mut cell = lossy(50, 0.0);
        cell.name = format!("a policer at half the rate, {burst_bytes} B burst, both told");
        cell.path.forward.policer = Some(Policer {
            rate_bps: policed_bps,
            burst_bytes,
        });
        cell.told = Some((Rate::from_bps(policed_bps), burst_bytes / 2));
        cell.ceiling_bps /= 2.0;
        cell.share_min = 0.95;
        cell
    };
    measure([16 << 10, 64 << 10, 1 << 20].map(told).into());
}

fn lossy(rtt_ms: u64, loss: f64) -> Cell {
    cell(RATE_BPS, rtt_ms, loss)
}

#[expect(clippy::cast_precision_loss, reason = "rates are far below 2^52")]
fn cell(rate_bps: u64, rtt_ms: u64, loss: f64) -> Cell {
    Cell {
        name: format!("{rtt_ms} ms, loss {loss}"),
        path: scenario::plain(rate_bps, rtt_ms, loss),
        control: Algorithm::Model,
        told: None,
        stalls: [None; 2],
        stamps_arrivals: false,
        ramp_ns: RAMP_RTTS * rtt_ms * MILLISECOND_NS,
        ceiling_bps: rate_bps as f64 * PAYLOAD / WIRE * (1.0 - loss),
        share_min: if loss > 1e-3 { 0.93 } else { 0.97 },
        resent_max: loss * 1.5 + 0.005,
    }
}

/// Measures all cells, on all processors, prints them, and then complains of those that fall short.
fn measure(cells: Vec<Cell>) {
    let short = on_all_processors(cells.into_iter(), |cell| {
        let (share, resent) = run(&cell);
        println!(
            "{}: {:.2} % of the ceiling, {:.3} % sent again",
            cell.name,
            share * 100.0,
            resent * 100.0
        );
        (share < cell.share_min || resent > cell.resent_max).then_some(cell.name)
    });
    let short: Vec<_> = short.into_iter().flatten().collect();
    assert!(short.is_empty(), "these cells fall short: {short:#?}");
}

/// Share of the ceiling, and share of the payload that was retransmitted.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn run(cell: &Cell) -> (f64, f64) {
    let mut config = Config::default();
    config.control = cell.control;
    config.rate_max = cell.told.map_or(Rate::UNLIMITED, |(rate, _)| rate);
    config.burst_bytes = cell.told.map(|(_, burst_bytes)| burst_bytes);
    let mut world = World::new(&cell.path, 7);
    let flow = world.add(Flow {
        client: config.clone(),
        server: config,
        stream_bytes: [u64::MAX / 4, 0],
        stalls: cell.stalls,
        stamps_arrivals: cell.stamps_arrivals,
        ..Flow::default()
    });
    let placed = |world: &World| world.host(flow, 1).map_or(0, |host| host.rx.placed_bytes);
    let sent = |world: &World| {
        let stats = world.host(flow, 0).and_then(|host| host.connection.stats());
        stats.expect("the connection is open").sent
    };
    let ramp = Time::from_ns(cell.ramp_ns);
    world.run_until(ramp);
    let before = placed(&world);
    world.run_until(ramp.after(SECONDS * SECOND_NS));
    let goodput_bps = (placed(&world) - before) as f64 * 8.0 / SECONDS as f64;
    let sent = sent(&world);
    (
        goodput_bps / cell.ceiling_bps,
        sent.resent_bytes as f64 / sent.payload_bytes as f64,
    )
}
