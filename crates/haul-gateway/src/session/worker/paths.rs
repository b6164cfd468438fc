//! Paths that a session has asked of the network, and what gateways report about them.

use haul_xsp::wire::PathState;

use super::super::circuit::Circuit;
use crate::config::PathRule;
use crate::path::word;
use crate::status::Path;

/// Path requests, and reports on them.
#[derive(Debug, Default)]
pub(super) struct Paths {
    /// The rules of this end's route.
    pub(super) rules: Vec<PathRule>,
    pub(super) asked: Vec<Asked>,
    /// The last report of each gateway on the way about the route's path.
    pub(super) heard: Vec<Path>,
    pub(super) next: u32,
}

/// A request to this gateway's own back end.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) number: u32,
    /// The requester: the side and its request number. `None`: this end.
    pub(super) from: Option<(usize, u32)>,
    pub(super) shown: Path,
    /// `None` while it is being taken down.
    pub(super) circuit: Option<Circuit>,
}

impl Asked {
    /// Returns the present state, for the peer that asked.
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
