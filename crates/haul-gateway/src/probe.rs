//! Asks whether a session can be opened by a way, and whether data channels can.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::bounded;
use haul_xsp::wire::NackStatus;

use crate::config::{ChannelKind, Route, Via};
use crate::refusal::{Refusal, code};
use crate::session::Worker;
use crate::shared::{SessionCommand, Shared};

/// Returns the route with one of its ways alone.
pub(crate) fn by_way(route: &Route, way: &[Via]) -> Route {
    Route {
        via: way.to_vec(),
        or_via: Vec::new(),
        ..route.clone()
    }
}

/// Asks the gateways on the way of a route whether its session can be opened, and returns the
/// channel kinds that its segments would use. Blocks at most `patience`. No gateway keeps any
/// state.
pub(crate) fn session(
    shared: &Arc<Shared>,
    route: &Route,
    patience: Duration,
) -> Result<Vec<Option<ChannelKind>>, Refusal> {
    let (sender, result) = bounded(1);
    Worker::probe(shared, route, sender).map_err(|why| busy(&why))?;
    result.recv_timeout(patience).map_err(|_| late())?
}

/// Opens a session by the way of a route, and in it a data channel of `kind` to the first gateway;
/// then it ends the session. Blocks at most `patience`. `None`: that gateway does not offer the
/// kind.
pub(crate) fn channel(
    shared: &Arc<Shared>,
    route: &Route,
    kind: ChannelKind,
    patience: Duration,
) -> Option<Result<(), Refusal>> {
    let mut route = route.clone();
    if let Some(first) = route.via.first_mut() {
        *first = first.with_channels(vec![kind]);
    }
    match session(shared, &route, patience) {
        Err(why) if why.is_without_channel() => return None,
        Err(why) => return Some(Err(why)),
        Ok(_) => {}
    }
    let opened = Worker::open_trial(shared, &route).map_err(|why| busy(&why));
    Some(opened.and_then(|opener| {
        let (sender, result) = bounded(1);
        // If the session has ended, the sender is dropped.
        let _ = opener.send(SessionCommand::Await(sender));
        let opened = result.recv_timeout(patience).map_err(|_| late());
        let _ = opener.send(SessionCommand::Abort);
        opened?
    }))
}

fn busy(why: &str) -> Refusal {
    Refusal::new(code(NackStatus::Busy), Some(why))
}

fn late() -> Refusal {
    Refusal::new(code(NackStatus::TimedOut), Some("no answer came in time"))
}
