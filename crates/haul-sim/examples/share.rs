//! Flows over one bottleneck on virtual time: `share RATE_MBPS RTT_MS SECONDS QUEUE_BDP_PERCENT
//! SEED CONTROL CONTROL… [-v]`. Controls are named as in `haul_cc::Algorithm`; each comes two
//! seconds after the one before. Prints each flow's rate over the time when all are there, and
//! Jain's index; with `-v` also every second.
#![forbid(unsafe_code)]
#![expect(clippy::cast_precision_loss, reason = "figures for people")]

use haul_cc::time::SECOND_NS;
use haul_cc::{Algorithm, Time};
use haul_sim::{Flow, World, scenario};
use haul_udt::Config;

/// A flow comes when the one before has settled.
const HEAD_START_S: u64 = 2;

fn main() {
    let (options, args): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|arg| arg == "-v");
    let number = |index: usize| args.get(index).and_then(|arg| arg.parse::<u64>().ok());
    let figures = (number(0), number(1), number(2), number(3), number(4));
    let controls = args.iter().skip(5).map(|name| name.parse());
    let controls: Result<Vec<Algorithm>, _> = controls.collect();
    let ((Some(mbps), Some(rtt_ms), Some(seconds), Some(queue), Some(seed)), Ok(controls)) =
        (figures, controls)
    else {
        eprintln!(
            "usage: share RATE_MBPS RTT_MS SECONDS QUEUE_BDP_PERCENT SEED CONTROL CONTROL… [-v]"
        );
        return;
    };
    let mut path = scenario::plain(mbps * 1_000_000, rtt_ms, 0.0);
    let queue_bytes = mbps * 125 * rtt_ms * queue / 100;
    for shaper in [&mut path.forward.rate, &mut path.reverse.rate]
        .into_iter()
        .flatten()
    {
        shaper.queue_bytes = Some(queue_bytes.max(64_000));
    }
    let mut world = World::new(&path, seed);
    let flows: Vec<usize> = controls
        .iter()
        .zip(0..)
        .map(|(&control, order)| world.add(flow(control, order)))
        .collect();
    run(&mut world, &flows, seconds, !options.is_empty());
}

fn flow(control: Algorithm, order: u64) -> Flow {
    let mut config = Config::default();
    config.control = control;
    Flow {
        client: config.clone(),
        server: config,
        starts: Time::from_ns(order * HEAD_START_S * SECOND_NS),
        stream_bytes: [u64::MAX / 4, 0],
        ..Flow::default()
    }
}

fn run(world: &mut World, flows: &[usize], seconds: u64, verbose: bool) {
    let placed = |world: &World| -> Vec<u64> {
        let bytes = |&flow: &usize| world.host(flow, 1).map_or(0, |host| host.rx.placed_bytes);
        flows.iter().map(bytes).collect()
    };
    let rates = |from: &[u64], to: &[u64], seconds: u64| -> Vec<f64> {
        let moved = from.iter().zip(to).map(|(from, to)| to - from);
        moved
            .map(|bytes| bytes as f64 * 8e-6 / seconds as f64)
            .collect()
    };
    let settled = HEAD_START_S * (flows.len() as u64 - 1).max(1);
    world.run_until(Time::from_ns(settled * SECOND_NS));
    let start = placed(world);
    let mut last = start.clone();
    for second in 1..=seconds {
        world.run_until(Time::from_ns((settled + second) * SECOND_NS));
        let now = placed(world);
        if verbose {
            let state = |&flow: &usize| {
                let stats = world.host(flow, 0).and_then(|host| host.connection.stats());
                stats.map_or("closed", |stats| stats.control.state)
            };
            let states: Vec<&str> = flows.iter().map(state).collect();
            println!(
                "{second:4} s {:8.1?} Mb/s {states:?}",
                rates(&last, &now, 1)
            );
        }
        last = now;
    }
    let rates = rates(&start, &last, seconds);
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    println!(
        "{rates:.1?} Mb/s, Jain's index {:.3}",
        sum * sum / (rates.len() as f64 * squares)
    );
}
