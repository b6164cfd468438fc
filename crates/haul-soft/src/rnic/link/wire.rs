//! A connection of either kind: TCP or UDT below, the same verbs above.

use std::io;

use haul_io::poller::Poller;
use haul_iwarp::{Error, Event, Params, PostError, QpConfig, RecvWr, SendWr, Time};
use haul_verbs::{QpStatistics, RateLimit};

use super::env::Env;
use super::tcp::TcpLink;
use super::udt::UdtLink;

/// A connection and its protocol.
#[derive(Debug)]
pub(in crate::rnic) enum Wire {
    Tcp(Box<TcpLink>),
    Udt(Box<UdtLink>),
}

/// The same for both kinds of link.
macro_rules! each {
    ($wire:expr, $link:ident => $body:expr) => {
        match $wire {
            Wire::Tcp($link) => $body,
            Wire::Udt($link) => $body,
        }
    };
}

impl Wire {
    // ---- the link

    pub(in crate::rnic) fn register(&mut self, poller: &Poller, token: u64) -> io::Result<()> {
        each!(self, link => link.register(poller, token))
    }

    pub(in crate::rnic) fn unregister(&self, poller: &Poller) {
        each!(self, link => link.unregister(poller));
    }

    pub(in crate::rnic) fn turn(&mut self, env: &mut Env<'_>) -> bool {
        each!(self, link => link.turn(env))
    }

    pub(in crate::rnic) fn transmit(&mut self, env: &mut Env<'_>) -> bool {
        each!(self, link => link.transmit(env))
    }

    /// There is more to send than there was time for.
    pub(in crate::rnic) fn has_more(&self) -> bool {
        each!(self, link => link.has_more())
    }

    /// No more is sent once all is.
    pub(in crate::rnic) fn end(&mut self) {
        each!(self, link => link.end());
    }

    /// Sends no faster from now on.
    pub(in crate::rnic) fn limit_rate(&mut self, limit: RateLimit) {
        each!(self, link => link.limit_rate(limit));
    }

    pub(in crate::rnic) fn statistics(&self) -> QpStatistics {
        each!(self, link => link.statistics())
    }

    // ---- the core

    pub(in crate::rnic) fn post_send(&mut self, wr: SendWr) -> Result<(), PostError> {
        each!(self, link => link.core.post_send(wr))
    }

    pub(in crate::rnic) fn post_receive(&mut self, wr: RecvWr) -> Result<(), PostError> {
        each!(self, link => link.core.post_receive(wr))
    }

    pub(in crate::rnic) fn set_queue_pair(&mut self, qp: QpConfig) {
        each!(self, link => link.core.set_queue_pair(qp));
    }

    pub(in crate::rnic) fn requested(&self) -> Option<(u16, u16)> {
        each!(self, link => link.core.requested())
    }

    pub(in crate::rnic) fn accept(&mut self, now: Time, private: &[u8]) -> Result<(), PostError> {
        if let Self::Udt(link) = self {
            link.fit_segments();
        }
        each!(self, link => link.core.accept(now, private))
    }

    pub(in crate::rnic) fn reject(&mut self, now: Time, private: &[u8]) -> Result<(), PostError> {
        each!(self, link => link.core.reject(now, private))
    }

    /// What is posted is finished, then the peer is told that nothing follows.
    pub(in crate::rnic) fn finish(&mut self, now: Time) {
        each!(self, link => link.core.close(now));
    }

    pub(in crate::rnic) fn abort(&mut self, now: Time) {
        each!(self, link => link.core.abort(now));
    }

    pub(in crate::rnic) fn poll_event(&mut self) -> Option<Event> {
        each!(self, link => link.core.poll_event())
    }

    pub(in crate::rnic) fn poll_timeout(&self) -> Option<Time> {
        each!(self, link => link.core.poll_timeout())
    }

    pub(in crate::rnic) fn handle_timeout(&mut self, now: Time) {
        each!(self, link => link.core.handle_timeout(now));
    }

    pub(in crate::rnic) fn params(&self) -> Option<Params> {
        each!(self, link => link.core.params())
    }

    pub(in crate::rnic) fn private_data(&self) -> &[u8] {
        each!(self, link => link.core.private_data())
    }

    pub(in crate::rnic) fn error(&self) -> Option<Error> {
        each!(self, link => link.core.error())
    }

    /// When a link whose packets are paced wants to be moved.
    pub(in crate::rnic) fn due(&self, now: Time) -> Option<Time> {
        match self {
            Self::Tcp(_) => None,
            Self::Udt(link) => link.due(now),
        }
    }
}
