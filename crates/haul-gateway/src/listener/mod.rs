//! Listeners: where applications' connections come in.
//!
//! A listener's thread accepts connections, performs the handshake of the client's protocol, and
//! hands the connection on with its destination. It reads exactly the handshake: later bytes stay
//! in the socket.
//!
//! Map: `open` a listener and its socket · `acceptor` its thread · `handshake` what a client asks
//! for: `socks`, `connect` · `step` what the listener does next · `arrival` a connection and its
//! destination.

mod acceptor;
mod arrival;
mod connect;
mod handshake;
mod open;
mod socks;
mod step;

pub(crate) use acceptor::CLIENT_MEMORY;
pub(crate) use arrival::Arrival;
pub(crate) use open::{Listener, OpenError};

#[cfg(fuzzing)]
pub(crate) use {
    connect::Connect,
    handshake::{Handshake, listen},
    socks::Socks,
};
