//! Queues of events with a file descriptor: of connections, and asynchronous ones.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use haul_io::clock::Clock;
use haul_io::notify::Signal;
use haul_verbs::cm::CmEvent;
use haul_verbs::provider::EventChannelOps;
use haul_verbs::{AsyncEvent, Error, Result};

use super::context::Rnic;
use super::cq::sleep_on;
use super::{deadline, lock, remaining};

/// Events in order, readable through a file descriptor.
#[derive(Debug)]
pub(super) struct Events<T> {
    queue: Mutex<VecDeque<T>>,
    signal: Signal,
    /// Further events are dropped: for those that nobody is obliged to take.
    limit: usize,
}

/// Asynchronous events of an opened device.
pub(super) type AsyncEvents = Events<AsyncEvent>;
/// Events of connections.
pub(super) type CmEvents = Events<CmEvent>;

/// An application that looks at none of them is told of the first ones.
const ASYNC_EVENTS_MAX: usize = 1_024;

impl<T> Events<T> {
    pub(super) fn new() -> Result<Self> {
        Self::with_limit(usize::MAX)
    }

    fn with_limit(limit: usize) -> Result<Self> {
        Ok(Self {
            queue: Mutex::default(),
            signal: Signal::new().map_err(Error::os("eventfd"))?,
            limit,
        })
    }

    pub(super) fn push(&self, event: T) {
        let mut queue = lock(&self.queue);
        if queue.len() < self.limit {
            queue.push_back(event);
            self.signal.set();
        }
    }

    pub(super) fn pop(&self) -> Option<T> {
        let mut queue = lock(&self.queue);
        let event = queue.pop_front();
        if queue.is_empty() {
            self.signal.clear();
        }
        event
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }
}

pub(super) fn async_events() -> Result<AsyncEvents> {
    Events::with_limit(ASYNC_EVENTS_MAX)
}

/// A channel for events of connections, as the application sees it: it keeps the engine alive.
#[derive(Debug)]
pub(super) struct EventChannel {
    pub(super) events: Arc<CmEvents>,
    pub(super) _rnic: Arc<Rnic>,
}

impl EventChannelOps for EventChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.events.fd()
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
            sleep_on(&self.events.signal, remaining(end, now))
                .map_err(Error::os("waiting for an event"))?;
        }
    }
}
