//! Channels for events of connections.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use haul_io::clock::Clock;
use haul_io::notify::wait_readable;
use haul_verbs::cm::CmEvent;
use haul_verbs::provider::EventChannelOps;
use haul_verbs::{Error, Result};

use super::device::Rnic;
use crate::rnic::events::CmEvents;
use crate::rnic::time::{deadline, remaining};

/// A channel for events of connections, as the application sees it: it keeps the engine alive.
#[derive(Debug)]
pub(in crate::rnic) struct EventChannel {
    pub(in crate::rnic) events: Arc<CmEvents>,
    pub(in crate::rnic) _rnic: Arc<Rnic>,
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
            wait_readable([self.events.signal().as_fd()], remaining(end, now))
                .map_err(Error::os("waiting for an event"))?;
        }
    }
}
