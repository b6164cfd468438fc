//! Dispatches connections to the sessions of their routes, which are opened on demand.

use std::sync::Arc;

use haul_xsp::wire::{Endpoint, NackStatus};

use crate::caller::Call;
use crate::config::Route;
use crate::host::Shown;
use crate::shared::{SessionCommand, SessionHandle, Shared};
use crate::sync::lock;

/// Sends a connection to the session of its route, which is opened if there is none.
pub(crate) fn dispatch(shared: &Arc<Shared>, call: Call) {
    let Some(call) = hand_in(shared, call) else {
        return;
    };
    // Among simultaneous connections, one opens the session.
    let _opening = lock(&shared.opening);
    let Some(call) = hand_in(shared, call) else {
        return;
    };
    match open_session(shared, &call.to) {
        Ok(opener) => {
            // It has just begun, and may have ended already.
            if let Err(back) = opener.send(SessionCommand::Call(call))
                && let SessionCommand::Call(call) = *back
            {
                shared.turn_away(call, NackStatus::CannotConnect, None);
            }
        }
        Err((status, why)) => {
            let text = format!("no session for {}: {why}", Shown(&call.to));
            shared.turn_away(call, status, Some(&text));
        }
    }
}

/// Opens the session of the route that leads to `to`. The caller holds `opening`.
pub(crate) fn open_session(
    shared: &Arc<Shared>,
    to: &Endpoint,
) -> Result<SessionHandle, (NackStatus, String)> {
    let config = shared.config();
    let no_route = || (NackStatus::NoRoute, "no route leads there".to_owned());
    open_route(shared, config.route(to).ok_or_else(no_route)?)
}

/// Opens the session of a route. The caller holds `opening`.
pub(crate) fn open_route(
    shared: &Arc<Shared>,
    route: &Route,
) -> Result<SessionHandle, (NackStatus, String)> {
    let opener = shared
        .open_session(route)
        .map_err(|why| (NackStatus::Busy, why))?;
    let mut registers = shared.registers();
    registers.openers.retain(|(known, _)| known != route);
    registers.openers.push((route.clone(), opener.clone()));
    Ok(opener)
}

/// Sends a connection to the session of its route, or refuses it if there is no route. Returns it
/// if there is no session.
fn hand_in(shared: &Shared, mut call: Call) -> Option<Call> {
    if shared.is_draining() {
        shared.turn_away(call, NackStatus::Closing, None);
        return None;
    }
    let config = shared.config();
    let Some(route) = config.route(&call.to) else {
        shared.turn_away(call, NackStatus::NoRoute, None);
        return None;
    };
    if route.forward_client {
        call.forward_client();
    }
    let registers = shared.registers();
    let Some(opener) = registers.opener(route) else {
        return Some(call);
    };
    match opener
        .send(SessionCommand::Call(call))
        .map_err(|back| *back)
    {
        Err(SessionCommand::Call(back)) => Some(back),
        _ => None,
    }
}
