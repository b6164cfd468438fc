//! Queues of events with a file descriptor: of connections, and asynchronous ones.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use haul_io::clock::Clock;
use haul_io::wake::Notices;
use haul_verbs::cm::CmEvent;
use haul_verbs::provider::EventChannelOps;
use haul_verbs::{AsyncEvent, Error, Result};

use super::context::Rnic;
use super::cq::sleep_on;
use super::{deadline, remaining};

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

/// A channel for events of connections, as the application sees it: it keeps the engine alive.
#[derive(Debug)]
pub(super) struct EventChannel {
    pub(super) events: Arc<CmEvents>,
    pub(super) _rnic: Arc<Rnic>,
}

impl EventChannelOps for EventChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.events.signal().as_fd()
    }

    fn poll(&self) -> Result<Option<CmEvent>> {
        Ok(self.events.pop())
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<Option<CmEvent>> {
        let clock = Clock::new();
        let end = deadline(clock, timeout);
        loop {
            if let Some(event) = self.events.pop() {
                return Ok(Some(event));
            }
            let now = clock.now_ns();
            if end.is_some_and(|end| now >= end) {
                return Ok(None);
            }
            // The engine's own threads make connections: they are rare, and need no haste.
            sleep_on(self.events.signal(), remaining(end, now))
                .map_err(Error::os("waiting for an event"))?;
        }
    }
}
