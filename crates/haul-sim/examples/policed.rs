//! The default control behind a policer that nobody has told it of, on virtual time:
//! `policed LINK_MBPS POLICED_MBPS RTT_MS BURST_KIB SECONDS [-v]`, or the whole matrix where there are no arguments. Prints goodput as a
//! share of what the policed rate can carry, and the share of the payload that was sent again; with `-v` also the control's state.
#![forbid(unsafe_code)]
#![expect(clippy::cast_precision_loss, reason = "figures for people")]

use haul_cc::Time;
use haul_cc::time::{MILLISECOND_NS, SECOND_NS};
use haul_netem::Policer;
use haul_sim::{Flow, World, scenario};

const PAYLOAD_SHARE: f64 = 1_456.0 / 1_500.0;
const LENGTHS_S: [u64; 3] = [4, 10, 30];

#[derive(Clone, Copy)]
struct Cell {
    link_mbps: u64,
    policed_mbps: u64,
    rtt_ms: u64,
    burst_kib: u64,
}

fn main() {
    let (options, args): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|arg| arg == "-v");
    let numbers: Vec<u64> = args.iter().filter_map(|arg| arg.parse().ok()).collect();
    if let &[link_mbps, policed_mbps, rtt_ms, burst_kib, seconds] = numbers.as_slice() {
        let cell = Cell {
            link_mbps,
            policed_mbps,
            rtt_ms,
            burst_kib,
        };
        run(cell, &[seconds], !options.is_empty());
        return;
    }
    for policed_mbps in [500, 100] {
        for rtt_ms in [2, 20, 100] {
            for burst_kib in [64, 256, 1024, 4096] {
                let cell = Cell {
                    link_mbps: 1000,
                    policed_mbps,
                    rtt_ms,
                    burst_kib,
                };
                run(cell, &LENGTHS_S, false);
            }
        }
    }
}

fn run(cell: Cell, lengths_s: &[u64], verbose: bool) {
    let mut path = scenario::plain(cell.link_mbps * 1_000_000, cell.rtt_ms, 0.0);
    path.forward.policer = Some(Policer {
        rate_bps: cell.policed_mbps * 1_000_000,
        burst_bytes: cell.burst_kib << 10,
    });
    let mut world = World::new(&path, 7);
    let flow = world.add(Flow {
        stream_bytes: [u64::MAX / 4, 0],
        ..Flow::default()
    });
    let placed = |world: &World| world.host(flow, 1).map_or(0, |host| host.rx.placed_bytes);
    let mut line = format!(
        "{:5} of {:5} Mb/s {:4} ms {:5} KiB:",
        cell.policed_mbps, cell.link_mbps, cell.rtt_ms, cell.burst_kib
    );
    let (mut now, mut last) = (Time::ZERO, 0);
    for &seconds in lengths_s {
        while now < Time::from_ns(seconds * SECOND_NS) {
            now = now.after(10 * MILLISECOND_NS);
            world.run_until(now);
            if verbose
                && let Some(stats) = world.host(flow, 0).and_then(|host| host.connection.stats())
            {
                println!(
                    "{:7.3} {:8.1} Mb/s pace {:8.1} rtt {:7.2} flight {:9} window {:9} lost {:7} resent {:7} {}",
                    now.as_ns() as f64 / 1e9,
                    (placed(&world) - last) as f64 * 8.0 / 1e4,
                    stats.control.pacing.bps() as f64 / 1e6,
                    stats.rtt_ns as f64 / 1e6,
                    stats.in_flight_bytes,
                    stats.control.window_bytes,
                    stats.sent.lost_packets,
                    stats.sent.resent_packets,
                    stats.control.state,
                );
                last = placed(&world);
            }
        }
        let Some(stats) = world.host(flow, 0).and_then(|host| host.connection.stats()) else {
            continue;
        };
        let could = cell.policed_mbps as f64 * 1e6 / 8.0 * seconds as f64 * PAYLOAD_SHARE;
        line += &format!(
            "  {seconds:2} s {:6.2} % {:6.2} % again,",
            100.0 * placed(&world) as f64 / could,
            100.0 * stats.sent.resent_bytes as f64 / stats.sent.payload_bytes as f64
        );
    }
    println!("{}", line.trim_end_matches(','));
}
