//! Paths that a session has asked of the network, and what gateways report about them.

use haul_xsp::wire::PathState;

use super::super::circuit::Circuit;
use crate::config::PathRule;
use crate::path::word;
use crate::status::Path;

/// What is asked for, and what is said about it.
#[derive(Debug, Default)]
pub(super) struct Paths {
    /// What this end's route wants.
    pub(super) rules: Vec<PathRule>,
    pub(super) asked: Vec<Asked>,
    /// What gateways on the way say about the route's, the last of each.
    pub(super) heard: Vec<Path>,
    pub(super) next: u32,
}

/// A request to this gateway's own back end.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) number: u32,
    /// Who is to be told: the side and the request there. None: this end wants it itself.
    pub(super) from: Option<(usize, u32)>,
    pub(super) shown: Path,
    /// None while it is being taken down.
    pub(super) circuit: Option<Circuit>,
}

impl Asked {
    /// How it is, for who asks.
    pub(super) fn told(&self) -> (PathState, String) {
        let states = [PathState::Pending, PathState::Up, PathState::Failed];
        let state = states
            .into_iter()
            .find(|state| word(*state) == self.shown.state);
        (state.unwrap_or(PathState::Expired), self.shown.text.clone())
    }
}

impl Paths {
    pub(super) fn shown(&self) -> Vec<Path> {
        let own = self.asked.iter().map(|asked| &asked.shown);
        own.chain(&self.heard).cloned().collect()
    }
}
