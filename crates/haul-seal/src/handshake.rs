//! What makes the keys of a connection that has no control connection.
//!
//! The engine carries the bytes of a handshake in front of the connection's own. Whoever implements
//! these traits knows identities and a protocol that authenticates them.

use std::fmt;
use std::net::IpAddr;

use crate::secret::Seal;

/// Which transport a handshake protects. Handshakes for one give no keys for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// iWARP over TCP.
    Tcp,
    /// iWARP over UDT.
    Udt,
    /// A byte stream over UDT.
    UdtStream,
}

/// Why a connection has no keys.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The peer sent no handshake: it does not protect its connections.
    #[error("the peer does not protect its connections; configure both ends alike")]
    Unprotected,
    /// One line: what is wrong with the peer, or what it reports about this end.
    #[error("{0}")]
    Failed(String),
}

/// Begins the handshakes of an end's connections.
pub trait Protect: fmt::Debug + Send + Sync {
    /// Begins a handshake as the end that connects to `peer`.
    ///
    /// # Errors
    /// [`HandshakeError::Failed`] if it cannot begin.
    fn initiate(
        &self,
        peer: IpAddr,
        transport: Transport,
    ) -> Result<Box<dyn Handshake>, HandshakeError>;

    /// Begins a handshake as the end that accepts.
    ///
    /// # Errors
    /// As [`Protect::initiate`].
    fn respond(&self, transport: Transport) -> Result<Box<dyn Handshake>, HandshakeError>;
}

/// The handshake of one connection.
pub trait Handshake: fmt::Debug + Send {
    /// Takes bytes of the peer and returns how many belong to the handshake and were taken. The
    /// caller keeps the others: once there is a [`Handshake::seal`] they are what follows, and
    /// before that the beginning of what has not arrived whole.
    ///
    /// # Errors
    /// [`HandshakeError`]. What [`Handshake::write`] has then tells the peer why.
    fn read(&mut self, bytes: &[u8]) -> Result<usize, HandshakeError>;

    /// Appends what is to be sent.
    fn write(&mut self, out: &mut Vec<u8>);

    /// Returns the keys once the handshake is complete. At the end that connects, the peer has been
    /// authenticated then, and may still refuse.
    fn seal(&self) -> Option<Seal>;

    /// At the end that connects, after completion: reads what came in the place of the first sealed
    /// bytes, and returns why the peer refuses, if it does.
    fn refusal(&mut self, bytes: &[u8]) -> Option<HandshakeError>;
}
