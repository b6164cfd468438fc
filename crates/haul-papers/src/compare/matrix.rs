//! The paths of a matrix.

use anyhow::Result;
use haul_lab::compare::cell::{Cell, figures, named, unshaped};

use super::args::CompareArgs;

/// Every path that the arguments ask for.
pub(super) fn all(args: &CompareArgs) -> Result<Vec<Cell>> {
    if args.unshaped {
        return args.mtus.iter().map(|&mtu| unshaped(mtu)).collect();
    }
    if !args.scenarios.is_empty() {
        return args.scenarios.iter().map(|which| named(which)).collect();
    }
    let mut cells = Vec::new();
    for &rate in &args.rates {
        for &mtu in &args.mtus {
            for &rtt in &args.rtts {
                for &loss in &args.losses {
                    cells.push(figures(rate, rtt, loss, mtu)?);
                }
            }
        }
    }
    Ok(cells)
}
