//! Two flows over one bottleneck on virtual time: `share RATE_MBPS RTT_MS SECONDS QUEUE_BDP_PERCENT CONTROL CONTROL [-v]`.
//! Controls: model, cubic. Prints each flow's share over the time when both are there, and Jain's index.
#![expect(clippy::unwrap_used, reason = "a tool for developers")]

use haul_cc::time::{MILLISECOND_NS, SECOND_NS};
use haul_cc::{Algorithm, Time};
use haul_sim::{Flow, World, scenario};
use haul_udt::Config;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize| args[index].parse::<u64>().unwrap();
    let (rate_bps, rtt_ms, seconds) = (number(0) * 1_000_000, number(1), number(2));
    let mut path = scenario::plain(rate_bps, rtt_ms, 0.0);
    let bdp = rate_bps / 8 * rtt_ms / 1_000;
    for link in [&mut path.forward, &mut path.reverse] {
        link.rate.as_mut().unwrap().queue_bytes = Some((bdp * number(3) / 100).max(64_000));
    }
    let mut world = World::new(&path, 3);
    let flows: Vec<usize> = args[4..6]
        .iter()
        .enumerate()
        .map(|(index, name)| {
            let control = if name == "cubic" {
                Algorithm::Cubic
            } else {
                Algorithm::Model
            };
            let config = Config {
                control,
                ..Config::default()
            };
            world.add(Flow {
                client: config.clone(),
                server: config,
                starts: Time::from_ns(index as u64 * 2 * SECOND_NS),
                stream_bytes: [u64::MAX / 4, 0],
                ..Flow::default()
            })
        })
        .collect();
    let placed =
        |world: &World, flow: usize| world.host(flow, 1).map_or(0, |host| host.rx.placed_bytes);
    let mut now = Time::from_ns(2 * SECOND_NS);
    world.run_until(now);
    let start: Vec<u64> = flows.iter().map(|&flow| placed(&world, flow)).collect();
    let mut last = start.clone();
    for _ in 0..seconds {
        now = now.after(1_000 * MILLISECOND_NS);
        world.run_until(now);
        if args.iter().any(|arg| arg == "-v") {
            for (index, &flow) in flows.iter().enumerate() {
                let bytes = placed(&world, flow);
                let stats = world.host(flow, 0).and_then(|host| host.connection.stats());
                let (rtt, state, lost) = stats.map_or((0, "", 0), |s| {
                    (s.rtt_ns, s.control.state, s.sent.lost_packets)
                });
                print!(
                    "{:8.1} Mb/s rtt {:6.1} {state:24} lost {lost:7} | ",
                    (bytes - last[index]) as f64 * 8e-6,
                    rtt as f64 / 1e6
                );
                last[index] = bytes;
            }
            println!();
        }
    }
    let rates: Vec<f64> = flows
        .iter()
        .enumerate()
        .map(|(i, &f)| (placed(&world, f) - start[i]) as f64 * 8e-6 / seconds as f64)
        .collect();
    let jain = rates.iter().sum::<f64>().powi(2)
        / (rates.len() as f64 * rates.iter().map(|r| r * r).sum::<f64>());
    println!(
        "{args:?} rates {rates:.1?} Mb/s of {} jain {jain:.3}",
        rate_bps / 1_000_000
    );
}
