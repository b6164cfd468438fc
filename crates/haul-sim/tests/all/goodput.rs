//! What the protocol and its control make of a path, measured on virtual time: the rate found by
//! itself, one stream, the allowed ramp of eight round trips left out.
//!
//! In a debug build, which is slow, the link has a tenth of the rate and only a few cells are
//! measured.

use std::sync::Mutex;

use haul_cc::time::{MILLISECOND_NS, SECOND_NS};
use haul_cc::{Algorithm, Rate, Time};
use haul_netem::{LossModel, Policer, Reorder};
use haul_sim::{Flow, Path, World, scenario};
use haul_udt::Config;

const RATE_BPS: u64 = if cfg!(debug_assertions) {
    100_000_000
} else {
    1_000_000_000
};
const SECONDS: u64 = if cfg!(debug_assertions) { 2 } else { 10 };
const RAMP_RTTS: u64 = 8;
/// A train that shows the rate, and at the higher one a paced train that confirms it; both arrive
/// within the round trips that they take to be told of.
const START_RTTS: u64 = if cfg!(debug_assertions) { 2 } else { 3 };
const PAYLOAD: f64 = 1_456.0;
const WIRE: f64 = 1_500.0;

/// A path and what is expected of it.
struct Cell {
    name: String,
    path: Path,
    rtt_ms: u64,
    control: Algorithm,
    /// What the sender is told of a policer: its rate, and half of its burst.
    told: Option<(Rate, u64)>,
    pauses: [Option<(u64, u64)>; 2],
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
            cell.pauses[1] = Some((every_ns, length_ms * MILLISECOND_NS));
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

#[expect(clippy::cast_precision_loss, reason = "rates are far below 2^52")]
fn lossy(rtt_ms: u64, loss: f64) -> Cell {
    Cell {
        name: format!("{rtt_ms} ms, loss {loss}"),
        path: scenario::plain(RATE_BPS, rtt_ms, loss),
        rtt_ms,
        control: Algorithm::Model,
        told: None,
        pauses: [None; 2],
        ceiling_bps: RATE_BPS as f64 * PAYLOAD / WIRE * (1.0 - loss),
        share_min: if loss > 1e-3 { 0.93 } else { 0.97 },
        resent_max: loss * 1.5 + 0.005,
    }
}

/// Measures all cells, on all processors, prints them, and then complains of those that fall short.
fn measure(cells: Vec<Cell>) {
    let queue = Mutex::new(cells.into_iter());
    let short = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        while let Some(cell) = queue.lock().expect("no worker panics").next() {
            let (share, resent) = run(&cell);
            println!(
                "{}: {:.2} % of the ceiling, {:.3} % sent again",
                cell.name,
                share * 100.0,
                resent * 100.0
            );
            if share < cell.share_min || resent > cell.resent_max {
                short.lock().expect("no worker panics").push(cell.name);
            }
        }
    };
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    let short = short.into_inner().expect("no worker panics");
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
        pauses: cell.pauses,
        ..Flow::default()
    });
    let placed = |world: &World| world.host(flow, 1).map_or(0, |host| host.rx.placed_bytes);
    let sent = |world: &World| {
        let stats = world.host(flow, 0).and_then(|host| host.connection.stats());
        stats.expect("the connection is open").sent
    };
    let ramp = Time::from_ns(RAMP_RTTS * cell.rtt_ms * MILLISECOND_NS);
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
