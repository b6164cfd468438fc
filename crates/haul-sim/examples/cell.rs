//! One cell of the goodput matrix on virtual time: `cell RATE_MBPS RTT_MS LOSS SECONDS
//! [fixed|model|cubic|daimd] [SHARE_REORDERED US] [QUEUE_BYTES]`. Prints goodput, its share of the
//! ceiling, what was retransmitted, and the control's state every tenth of a second with `-v`.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numbers of a command line"
)]

use haul_cc::time::{MILLISECOND_NS, SECOND_NS};
use haul_cc::{Algorithm, Rate, Time};
use haul_sim::{Flow, World, scenario};
use haul_udt::Config;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let verbose = args.iter().any(|arg| arg == "-v");
    let args: Vec<&String> = args.iter().filter(|arg| *arg != "-v").collect();
    let number = |index: usize, default: f64| {
        args.get(index)
            .map_or(default, |arg| arg.parse().expect("a number"))
    };
    let (rate_bps, rtt_ms) = ((number(0, 1000.0) * 1e6) as u64, number(1, 100.0) as u64);
    let (loss, seconds) = (number(2, 0.0), number(3, 10.0) as u64);
    let control = match args.get(4).map(|arg| arg.as_str()) {
        Some("fixed") => Algorithm::Fixed(Rate::from_bps(rate_bps)),
        Some("cubic") => Algorithm::Cubic,
        Some("daimd") => Algorithm::Daimd,
        _ => Algorithm::Model,
    };
    let mut path = scenario::plain(rate_bps, rtt_ms, loss);
    if number(5, 0.0) > 0.0 {
        path.forward.reorder = Some(haul_netem::Reorder {
            probability: number(5, 0.0),
            delay_ns: number(6, 500.0) as u64 * 1_000,
        });
    }
    let queue_bytes = number(7, 0.0) as u64;
    if let Some(link) = path.forward.rate.as_mut().filter(|_| queue_bytes > 0) {
        link.queue_bytes = Some(queue_bytes);
    }
    let mut world = World::new(&path, 1);
    let mut config = Config::default();
    config.control = control;
    let flow = Flow {
        client: config.clone(),
        server: config,
        stream_bytes: [u64::MAX / 4, 0],
        ..Flow::default()
    };
    let flow = world.add(flow);
    let ramp_ns = 10 * rtt_ms * MILLISECOND_NS;
    let mut at_ramp = 0;
    let end = Time::from_ns(seconds * SECOND_NS + ramp_ns);
    let step = if verbose { 10 } else { 50 } * MILLISECOND_NS;
    let mut now = Time::ZERO;
    let mut last = 0;
    while now < end {
        now = now.after(step);
        world.run_until(now);
        let placed = world.host(flow, 1).map_or(0, |host| host.rx.placed_bytes);
        if now.as_ns() <= ramp_ns {
            at_ramp = placed;
        }
        if verbose && let Some(stats) = world.host(flow, 0).and_then(|host| host.connection.stats())
        {
            println!(
                "{:7.3} {:8.1} Mb/s pace {:8.1} rtt {:7.2} min {:7.2} flight {:9} window {:9} lost {:7} resent {:7} to {} {}",
                now.as_ns() as f64 / 1e9,
                (placed - last) as f64 * 8.0 / (step as f64 / 1e9) / 1e6,
                stats.control.pacing.bps() as f64 / 1e6,
                stats.rtt_ns as f64 / 1e6,
                stats.rtt_min_ns as f64 / 1e6,
                stats.in_flight_bytes,
                stats.control.window_bytes,
                stats.sent.lost_packets,
                stats.sent.resent_packets,
                stats.timeouts,
                stats.control.state,
            );
        }
        last = placed;
    }
    let stats = world
        .host(flow, 0)
        .and_then(|host| host.connection.stats())
        .expect("open");
    let goodput = (last - at_ramp) as f64 * 8.0 / seconds as f64;
    let ceiling = rate_bps as f64 * 1456.0 / 1500.0 * (1.0 - loss);
    println!(
        "{:6} Mb/s {:4} ms loss {loss:<7} goodput {:8.2} Mb/s = {:6.2} % resent {:5.3} % (allowed {:5.3} %) queue drops {} timeouts {}",
        rate_bps / 1_000_000,
        rtt_ms,
        goodput / 1e6,
        100.0 * goodput / ceiling,
        100.0 * stats.sent.resent_bytes as f64 / stats.sent.payload_bytes as f64,
        150.0 * loss + 0.5,
        world.link(0).stats().queue_dropped,
        stats.timeouts,
    );
}
