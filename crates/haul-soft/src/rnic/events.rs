//! Queues of events with a file descriptor: of connections, and asynchronous ones.

use haul_io::wake::Notices;
use haul_verbs::cm::CmEvent;
use haul_verbs::{AsyncEvent, Error, Result};

/// Asynchronous events of an opened device.
pub(super) type AsyncEvents = Notices<AsyncEvent>;
/// Events of connections.
pub(super) type CmEvents = Notices<CmEvent>;

/// An application that takes none of them gets the first ones.
const ASYNC_EVENTS_MAX: usize = 1_024;

pub(super) fn async_events() -> Result<AsyncEvents> {
    Notices::new(ASYNC_EVENTS_MAX).map_err(Error::os("eventfd"))
}

pub(super) fn cm_events() -> Result<CmEvents> {
    Notices::new(usize::MAX).map_err(Error::os("eventfd"))
}
