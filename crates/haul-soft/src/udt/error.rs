//! Why a link could not be opened, or ended early.

use std::io;

use haul_udt::Error;

/// Why a link could not be opened, or ended early.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The protocol ended it: the peer refused, fell silent, or is not compatible.
    #[error(transparent)]
    Protocol(#[from] Error),
    /// The network: no route, refused, not permitted.
    #[error("UDP: {0}")]
    Network(#[source] io::Error),
    /// The peer does not answer, and this is the latest error of the socket.
    #[error("the peer does not answer (UDP: {0})")]
    Silent(#[source] io::Error),
    /// This host has no thread, memory or descriptor for it.
    #[error("this host has no room for it: {0}")]
    System(#[source] io::Error),
    /// The source of what was to be sent.
    #[error("reading what is to be sent: {0}")]
    Source(#[source] io::Error),
    /// The sink of what arrived.
    #[error("writing what arrived: {0}")]
    Sink(#[source] io::Error),
    /// The peer closed before everything had passed.
    #[error("the peer closed the channel early")]
    PeerClosed,
    /// [`super::Remote::close`] was called.
    #[error("the channel was closed")]
    Closed,
    /// A protected connection got no keys.
    #[error(transparent)]
    Handshake(#[from] haul_seal::handshake::HandshakeError),
    /// The peer is a plain UDT socket; bulk needs Longhaul's extension.
    #[error("the peer speaks plain UDT, without placement")]
    Plain,
    /// Another process that drives the connection has told this.
    #[error("{0}")]
    Told(String),
}
