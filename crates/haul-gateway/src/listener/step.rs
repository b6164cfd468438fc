//! The next step of a listener in a handshake with a client.

use haul_xsp::wire::Endpoint;

/// The action after the taken bytes are read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Wait for more: all bytes are taken.
    More,
    /// Send this. More follows, perhaps in the bytes not taken.
    Reply(&'static [u8]),
    /// Connect the client to this destination. What follows is its stream.
    Done(Endpoint),
    /// Send this, and close.
    Refuse(Vec<u8>),
}
