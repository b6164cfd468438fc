//! What a listener does next in a handshake with a client.

use haul_xsp::wire::Endpoint;

/// What is to be done, once the octets that were taken are read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing: all octets are taken, and more must come.
    More,
    /// This is to be sent. More follows, perhaps in what was not taken.
    Reply(&'static [u8]),
    /// The client is to be connected there. What follows is its stream's.
    Done(Endpoint),
    /// This is to be sent, and the connection closed.
    Refuse(Vec<u8>),
}
