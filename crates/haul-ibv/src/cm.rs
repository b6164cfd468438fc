//! Connections through librdmacm.
//!
//! An event channel has a thread, which takes the library's events: the steps towards a connection
//! (address, route, request) are taken there, a connection that ends is flushed there, whether or
//! not the application looks, and only what concerns the application comes out. The queue pairs are
//! not librdmacm's: this crate passes their numbers to it, and changes their states with the
//! attributes that it returns.
//!
//! Map: `channel` event channels and their thread · `connection` one that is being made or is there
//! · `listener` listeners and requests · here what is done about an event.

use std::sync::{Arc, PoisonError};

use haul_verbs::cm::CmEvent;
use haul_verbs::{Blame, Result};

use crate::context::Context;
use crate::ffi::cm::event;
use crate::queue::{Connect, Qp};

mod channel;
mod connection;
mod listener;

pub(crate) use channel::Handle;
pub(crate) use connection::Connection;
pub(crate) use listener::Listener;

use channel::{EventChannel, Id, Notice, Role};
use connection::Step;

/// Opens an event channel.
pub(crate) fn open_channel(context: Arc<Context>) -> Result<Arc<EventChannel>> {
    EventChannel::new(context, handle)
}

/// What to do about an event, and what to report to the application.
fn handle(channel: &Arc<EventChannel>, notice: Notice) -> Option<CmEvent> {
    if notice.event == event::CONNECT_REQUEST {
        return handle_request(channel, notice);
    }
    let Some(Role::Connection(qp)) = channel.role(notice.id.ptr()) else {
        return None;
    };
    let qp = qp.upgrade()?;
    match Step::of(&notice) {
        Step::None => None,
        Step::Route => advance(&qp, |connection| connection.resolve_route()),
        Step::Request => advance(&qp, |connection| connection.request(&qp)),
        Step::Respond => match connection::respond(channel.cm(), &qp, notice.id) {
            Ok(()) => Some(connection::established(&qp, notice)),
            Err(error) => Some(connection::unreachable(
                &qp,
                Blame::Local,
                error.to_string(),
            )),
        },
        Step::Established => Some(connection::established(&qp, notice)),
        Step::Rejected => Some(connection::rejected(&qp, notice.private_data)),
        Step::Unreachable(blame, why) => Some(connection::unreachable(&qp, blame, why)),
        Step::Disconnected(failure) => Some(connection::disconnected(&qp, failure)),
    }
}

/// Takes the next step towards a connection.
fn advance(qp: &Qp, step: impl FnOnce(&dyn Connect) -> Result<()>) -> Option<CmEvent> {
    let connection = qp.connection.lock().unwrap_or_else(PoisonError::into_inner);
    let taken = step(connection.as_deref()?);
    drop(connection);
    let error = taken.err()?;
    Some(connection::unreachable(
        qp,
        Blame::Network,
        error.to_string(),
    ))
}

fn handle_request(channel: &Arc<EventChannel>, notice: Notice) -> Option<CmEvent> {
    // Dropping the identifier turns the peer away.
    let id = Id::adopt(Arc::clone(channel), notice.id);
    let Some(Role::Listener(pending)) = channel.role(notice.listen_id) else {
        return None;
    };
    let device = id.device()?;
    if device != channel.context().name {
        return None;
    }
    listener::request(id, &pending, notice)
}
