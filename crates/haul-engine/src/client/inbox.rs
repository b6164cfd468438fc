//! Sockets that events come over from an engine.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use haul_io::clock::Clock;
use haul_io::notify::{has_hung_up, wait_readable};
use haul_verbs::{Error, Result};
use rustix::net::RecvFlags;

use super::link::{Link, UNEXPECTED};
use crate::message::{Reply, Request};
use crate::socket::{Packet, Packets};

/// A socket, and the object of the engine that sends over it, which ends with it.
#[derive(Debug)]
pub(super) struct Inbox {
    link: Arc<Link>,
    number: u32,
    socket: Packets,
}

/// What has come.
pub(super) enum Came {
    Packet(Packet),
    Nothing,
    /// The engine is gone.
    End,
}

impl Inbox {
    /// Asks the engine for an object that sends events.
    pub(super) fn create(link: &Arc<Link>, request: &Request) -> Result<Self> {
        let (reply, descriptors) = link.call(request, &[])?;
        let (Reply::Object(number), Some(socket)) = (reply, descriptors.into_iter().next()) else {
            return Err(UNEXPECTED);
        };
        Ok(Self::new(link, number, socket))
    }

    /// What the engine has given for an object.
    pub(super) fn new(link: &Arc<Link>, number: u32, socket: OwnedFd) -> Self {
        Self {
            link: Arc::clone(link),
            number,
            socket: Packets::new(socket),
        }
    }

    /// Its number at the engine.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn receive(&self) -> Result<Came> {
        receive(&self.link, &self.socket)
    }

    /// Waits until `poll` finds an event. An engine that is gone sends no more.
    pub(super) fn wait<T>(
        &self,
        timeout: Option<Duration>,
        poll: impl Fn() -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let waiting = || Error::os("waiting for an event");
        let deadline = Deadline::after(timeout);
        loop {
            if let Some(event) = poll()? {
                return Ok(Some(event));
            }
            let left = deadline.left_ns();
            if left == Some(0) {
                return Ok(None);
            }
            if has_hung_up(self.fd()).map_err(waiting())? {
                return poll();
            }
            wait_readable([self.fd()], left).map_err(waiting())?;
        }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.link.close(self.number);
    }
}

/// Takes a packet with an event, if there is one.
pub(super) fn receive(link: &Link, socket: &Packets) -> Result<Came> {
    match socket.receive(RecvFlags::DONTWAIT) {
        Ok(Some(packet)) => Ok(Came::Packet(packet)),
        Ok(None) => {
            link.die();
            Ok(Came::End)
        }
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(Came::Nothing),
        Err(error) => Err(Error::os("waiting for an event")(error)),
    }
}

/// When a wait is over, if ever.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    clock: Clock,
    at_ns: Option<u64>,
}

impl Deadline {
    pub(super) fn after(timeout: Option<Duration>) -> Self {
        let clock = Clock::new();
        let ns = |timeout: Duration| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let at_ns = timeout.map(|timeout| clock.now_ns().saturating_add(ns(timeout)));
        Self { clock, at_ns }
    }

    pub(super) fn left_ns(self) -> Option<u64> {
        self.at_ns.map(|at| at.saturating_sub(self.clock.now_ns()))
    }
}
