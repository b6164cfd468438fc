//! An experiment: how a figure is made.

use std::time::Duration;

use anyhow::Result;

use super::bench::Context;
use super::record::Figure;
use haul_lab::compare::runner::Stop;

/// How a figure is made.
pub(super) struct Experiment {
    /// How long it takes, about, where that is known.
    pub(super) lasts: fn(&Context<'_>) -> Duration,
    /// Fills it in.
    pub(super) run: fn(&Context<'_>, &mut Figure) -> Result<(), Stop>,
    /// Its title, and what the paper claims with it.
    pub(super) about: fn() -> Figure,
}

/// For experiments whose duration is not known.
pub(super) fn unknown(_: &Context<'_>) -> Duration {
    Duration::ZERO
}
