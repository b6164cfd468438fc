//! High rates: gigabytes in flight, found and filled within a few round trips. The whole grid is
//! `examples/grid.rs`.

use haul_seal::{Cipher, Seal, Secret};
use haul_sim::Cell;

use crate::workers::on_all_processors;

/// A path, round-trip times that it runs for, and what is expected of it.
struct Expected {
    cell: Cell,
    rtts: u64,
    is_sealed: bool,
    share_min: f64,
}

fn expected(gbps: u64, rtt_ms: u64, loss: f64, rtts: u64, share_min: f64) -> Expected {
    Expected {
        cell: Cell::new(gbps, rtt_ms, loss, 0.5),
        rtts,
        is_sealed: false,
        share_min,
    }
}

#[test]
fn gigabytes_in_flight_fill_the_path() {
    let mut all = vec![
        // The rate is found after three to four round trips.
        expected(10, 20, 1e-3, 40, 0.86),
        expected(100, 20, 1e-3, 40, 0.86),
        expected(400, 20, 1e-3, 40, 0.86),
    ];
    if !cfg!(debug_assertions) {
        all.push(expected(40, 200, 0.0, 30, 0.88));
        all.push(expected(100, 200, 1e-3, 30, 0.88));
        all.push(expected(400, 200, 1e-3, 12, 0.7));
    }
    all.push(Expected {
        is_sealed: true,
        ..expected(40, 20, 1e-3, 30, 0.82)
    });
    let short = on_all_processors(all.into_iter(), |expected| {
        let Expected { cell, rtts, .. } = expected;
        let seal = expected.is_sealed.then(|| Seal {
            secret: Secret::new([7; 32]),
            cipher: Cipher::Aes128Gcm,
        });
        let figures = cell.run(seal.as_ref(), 1, rtts * cell.rtt_ns(), 1)[0];
        println!("{cell:?}: {figures:?}");
        let is_short = figures.share < expected.share_min
            || figures.resent > 1.5 * cell.loss + 0.005
            // A repair may be lost once.
            || figures.kept_most > 4.5;
        is_short.then(|| format!("{cell:?}: {figures:?}"))
    });
    let short: Vec<_> = short.into_iter().flatten().collect();
    assert!(short.is_empty(), "{short:#?}");
}
