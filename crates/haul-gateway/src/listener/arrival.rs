//! Connections that clients of a listener have opened, with their destinations.

use std::net::SocketAddr;

use haul_io::stream::Stream;
use haul_xsp::wire::{Endpoint, Metadata};

use crate::answer::Answer;
use crate::caller::{Call, Party};

/// A connection that wants to go somewhere. Nothing behind what its listener speaks has been read from
/// it.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// The connection, which never waits, and is reset when it is dropped.
    pub(crate) stream: Stream,
    /// Who came.
    pub(crate) client: SocketAddr,
    /// Where to.
    pub(crate) to: Endpoint,
    /// How it is answered.
    pub(crate) answer: Answer,
    /// What the client says about it.
    pub(crate) metadata: Metadata,
}

impl From<Arrival> for Call {
    fn from(arrival: Arrival) -> Self {
        Self {
            party: Party::Client(arrival.stream, arrival.answer),
            from: arrival.client.to_string(),
            to: arrival.to,
            named: None,
            metadata: arrival.metadata,
            is_again: false,
        }
    }
}

/// How a listener learns where a connection wants to go.
#[derive(Debug, Clone)]
pub(super) enum Greeting {
    /// All go there.
    Known(Endpoint),
    /// Where the client connected to, which the kernel knows.
    Diverted,
    /// The client says it.
    Socks5,
    Http,
}
