//! Goodput of reliable datagram with the default congestion control on virtual time: one peer,
//! Writes of 256 KiB, the start-up phase left out.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "small numbers, and figures for people"
)]

use crate::common;

use common::rd::{MS, SECOND, World};
use haul_iwarp::Operation;
use haul_iwarp::{Rights, Stag};
use haul_netem::{LinkConfig, LossModel, Shaper};

const RATE_BPS: u64 = if cfg!(debug_assertions) {
    100_000_000
} else {
    1_000_000_000
};
const MESSAGE: usize = 256 << 10;
const RAMP_RTTS: u64 = 10;

fn path(rtt_ms: u64, loss: f64) -> LinkConfig {
    let bdp = RATE_BPS / 8 * rtt_ms / 1_000;
    LinkConfig {
        delay_ns: rtt_ms * MS / 2,
        loss: if loss > 0.0 {
            LossModel::Random(loss)
        } else {
            LossModel::None
        },
        rate: Some(Shaper {
            rate_bps: RATE_BPS,
            queue_bytes: Some(bdp.clamp(256 << 10, 16 << 20)),
            queue_packets: None,
        }),
        ..LinkConfig::default()
    }
}

/// Bytes completed per second times eight, and the share of packets that were retransmitted.
fn measure(rtt_ms: u64, loss: f64, window: u32) -> (f64, f64) {
    let mut world = World::with(2, path(rtt_ms, loss), 11, |_, config| {
        config.window = window;
    });
    let zeros = vec![0; MESSAGE];
    world.ends[1]
        .ram
        .register(0x100, 0, zeros.clone(), Rights::REMOTE_WRITE);
    let write = Operation::Write {
        stag: Stag(0x100),
        to: 0,
        placed: false,
    };
    let mut completed = 0;
    let mut run = |world: &mut World, ns: u64| {
        let (end, before) = (world.now + ns, completed);
        while world.now < end {
            completed += world.ends[0].completions().len();
            while world
                .try_post(0, 1, write, zeros.clone(), MESSAGE as u32, false)
                .is_ok()
            {}
            world.run_for(2 * MS);
        }
        completed - before
    };
    run(&mut world, 2 * SECOND.max(RAMP_RTTS * rtt_ms * MS));
    let span = 4 * SECOND;
    let messages = run(&mut world, span);
    let stats = world.ends[0].qp.stats();
    let goodput = (messages * MESSAGE * 8) as f64 / (span as f64 / SECOND as f64);
    (goodput, stats.repeated as f64 / stats.sent as f64)
}

#[test]
fn the_rate_found_by_itself_fills_the_path() {
    for (rtt_ms, loss) in [(1, 0.0), (100, 0.0), (100, 1e-3), (100, 1e-2)] {
        let (goodput, repeated) = measure(rtt_ms, loss, 1 << 14);
        let ceiling = RATE_BPS as f64 * (1_418.0 / 1_500.0) * (1.0 - loss);
        let share = goodput / ceiling;
        println!(
            "{rtt_ms} ms, loss {loss}: {:.1} Mb/s, {share:.3} of the ceiling, {repeated:.4} sent again",
            goodput / 1e6
        );
        assert!(share > 0.85, "{share}");
        assert!(repeated < loss + 0.02, "{repeated}");
    }
}
