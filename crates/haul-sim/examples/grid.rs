//! Paths of 1 to 400 Gb/s on virtual time, as docs/congestion.md has them: `grid [chosen|all]
//! [sealed] [eight] [FILTER]`, where FILTER is a part of a cell's name as printed. Prints a line
//! for each cell as it ends, or for each of eight streams that share it; on as many threads as
//! there are processors.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a program for developers")]

use std::sync::Mutex;

use haul_seal::{Cipher, Seal, Secret};
use haul_sim::Cell;

const GBPS: [u64; 5] = [1, 10, 40, 100, 400];
const RTTS_MS: [u64; 5] = [1, 20, 100, 200, 500];
const LOSSES: [f64; 4] = [0.0, 1e-5, 1e-4, 1e-3];
const QUEUES: [f64; 3] = [0.05, 0.5, 1.0];
const SEED: u64 = 1;

fn name(cell: &Cell) -> String {
    format!(
        "{:3} Gb/s {:3} ms loss {:<5} queue {:<4}",
        cell.rate_bps / 1_000_000_000,
        cell.rtt_ms,
        cell.loss,
        cell.queue
    )
}

fn all() -> Vec<Cell> {
    let mut cells = Vec::new();
    for gbps in GBPS {
        for rtt_ms in RTTS_MS {
            for loss in LOSSES {
                cells.extend(QUEUES.map(|queue| Cell::new(gbps, rtt_ms, loss, queue)));
            }
        }
    }
    cells
}

/// 24 cells: 400 Gb/s with every round-trip time and loss, and what the other rates were worst at.
fn chosen() -> Vec<Cell> {
    let mut cells = Vec::new();
    for rtt_ms in RTTS_MS {
        cells.extend(LOSSES.map(|loss| Cell::new(400, rtt_ms, loss, 0.5)));
    }
    cells.extend([
        Cell::new(40, 200, 1e-3, 0.5),
        Cell::new(100, 100, 1e-3, 0.05),
        Cell::new(100, 200, 1e-3, 0.5),
        Cell::new(400, 200, 1e-3, 0.05),
    ]);
    cells
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| args.iter().any(|arg| arg == word);
    let filters: Vec<&String> = args
        .iter()
        .filter(|arg| !["all", "chosen", "sealed", "eight"].contains(&arg.as_str()))
        .collect();
    let seal = has("sealed").then(|| Seal {
        secret: Secret::new([7; 32]),
        cipher: Cipher::Aes128Gcm,
    });
    let mut cells = if has("all") { all() } else { chosen() };
    cells.retain(|cell| {
        filters
            .iter()
            .all(|part| name(cell).contains(part.as_str()))
    });
    if cells.is_empty() {
        eprintln!(
            "no cell has {filters:?} in its name; they are like: {}",
            name(&all()[0])
        );
        std::process::exit(2);
    }
    println!(
        "cell                                     share  steady   ramp, RTT  resent   queue    kept   packets"
    );
    let streams = if has("eight") { 8 } else { 1 };
    let cells = Mutex::new(cells.into_iter());
    let work = || {
        while let Some(cell) = { cells.lock().unwrap().next() } {
            let figures = cell.run(seal.as_ref(), streams, cell.whole_ns(), SEED);
            for figures in figures {
                println!(
                    "{} {:6.2} % {:6.2} % {:7.1} {:7.3} % {:7.3} {:7.3} {:9}",
                    name(&cell),
                    figures.share * 100.0,
                    figures.steady * 100.0,
                    figures.ramp_rtts.unwrap_or(f64::NAN),
                    figures.resent * 100.0,
                    figures.queue_most,
                    figures.kept_most,
                    figures.packets
                );
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
}
