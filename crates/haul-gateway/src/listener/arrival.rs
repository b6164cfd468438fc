//! Accepted connections with their destinations.

use std::net::SocketAddr;

use haul_io::clock::Clock;
use haul_io::stream::Stream;
use haul_xsp::Time;
use haul_xsp::wire::{Endpoint, Metadata};

use crate::answer::Answer;
use crate::caller::{Call, Party};

/// An accepted connection. Exactly its handshake has been read from it.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// The connection, which never blocks, and is reset when it is dropped.
    pub(crate) stream: Stream,
    /// The client's address.
    pub(crate) client: SocketAddr,
    /// The destination.
    pub(crate) to: Endpoint,
    /// The protocol of the reply.
    pub(crate) answer: Answer,
    /// Metadata from the client.
    pub(crate) metadata: Metadata,
}

impl Arrival {
    /// A connection whose protocol has no handshake with this gateway.
    pub(super) fn silent(stream: Stream, client: SocketAddr, to: Endpoint) -> Self {
        Self {
            stream,
            client,
            to,
            answer: Answer::None,
            metadata: Metadata::default(),
        }
    }
}

impl From<Arrival> for Call {
    fn from(arrival: Arrival) -> Self {
        Self {
            party: Party::Client(arrival.stream, arrival.answer),
            from: arrival.client.to_string(),
            to: arrival.to,
            named: None,
            metadata: arrival.metadata,
            began: Time::from_ns(Clock::new().now_ns()),
            is_again: false,
        }
    }
}

/// How a listener learns the destination of a connection.
#[derive(Debug, Clone)]
pub(super) enum Greeting {
    /// All connections go there.
    Known(Endpoint),
    /// The kernel knows where the client connected to.
    Diverted,
    /// The client names it.
    Socks5,
    Http,
}
