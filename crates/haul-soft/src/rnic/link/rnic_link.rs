//! What a queue pair's connection is to its shard, whatever carries it.

use std::io;
use std::sync::Arc;

use haul_io::poller::Poller;
use haul_iwarp::{ReliableConnection, Time};
use haul_verbs::{QpStatistics, RateLimit};

use super::env::{Env, Watched};

/// A socket and the protocol on it: one vtable call for each turn, none for each packet.
pub(in crate::rnic) trait RnicLink: std::fmt::Debug + Send {
    fn core(&self) -> &dyn ReliableConnection;

    fn core_mut(&mut self) -> &mut dyn ReliableConnection;

    /// Watches the socket.
    fn register(&mut self, poller: &Poller, token: u64) -> io::Result<()>;

    /// Watches the socket no longer.
    fn unregister(&self, poller: &Poller);

    /// Receives and sends; whether anything moved.
    fn turn(&mut self, env: &mut Env<'_>) -> bool;

    /// Sends; whether anything moved.
    fn transmit(&mut self, env: &mut Env<'_>) -> bool;

    /// There is more to send than there was time for.
    fn has_more(&self) -> bool;

    /// Sends nothing more once all is sent.
    fn end(&mut self);

    /// Sends no faster from now on.
    fn limit_rate(&mut self, limit: RateLimit);

    fn statistics(&self) -> QpStatistics;

    /// Why the connection failed, where that is below what its protocol sees.
    fn failure(&self) -> Option<&str> {
        None
    }

    /// Offers segments as long as the path carries by now. Only before the connection is accepted.
    fn fit_segments(&mut self) {}

    /// When packets want to leave, or to be asked for.
    fn due(&self, _now: Time) -> Option<Time> {
        None
    }

    /// Whether [`RnicLink::due`] may return a time.
    fn is_clocked(&self) -> bool {
        false
    }

    /// The socket, while the link waits for arrivals there and for nothing else.
    fn watched(&self) -> Option<&Arc<Watched>> {
        None
    }

    /// Ends the link after its protocol has ended; returns it where the transport has still to
    /// deliver what was sent last.
    fn close(self: Box<Self>, now: Time, poller: &Poller) -> Option<Box<dyn RnicLink>>;

    /// Whether a link that was closed has delivered everything.
    fn is_closed(&self) -> bool {
        true
    }
}
