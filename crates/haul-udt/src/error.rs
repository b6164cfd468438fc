//! Errors, by who is to blame.

use crate::wire::ParseError;

/// Why a datagram was not taken, or a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[expect(
    clippy::error_impl_error,
    reason = "named with its crate: haul_udt::Error"
)]
pub enum Error {
    /// Not a UDT packet. The datagram is ignored.
    #[error("not a UDT packet: {0}")]
    Malformed(#[from] ParseError),
    /// A well-formed packet that no correct peer sends. Ignored, and counted against the peer.
    #[error("the peer broke the protocol: {0}")]
    PeerMisbehaved(Misbehaviour),
    /// The peer refused the connection, with libudt's code.
    #[error("the peer refused the connection (code {0})")]
    Refused(u32),
    /// The peer uses another version or the other socket type.
    #[error("the peer is not compatible: {0}")]
    Incompatible(&'static str),
    /// Nothing was received for too long.
    #[error("the peer does not answer")]
    TimedOut,
    /// The connection is closed, or was never open.
    #[error("the connection is closed")]
    Closed,
}

/// The violation of a misbehaving peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Misbehaviour {
    /// Acknowledged, or reported as lost, packets that were never sent.
    #[error("feedback about packets that were never sent")]
    NeverSent,
    /// Sent beyond the window it was given.
    #[error("data beyond the window")]
    BeyondWindow,
    /// Sent more payload than the agreed packet size holds.
    #[error("oversized packet")]
    Oversized,
    /// Sent behind the end of its stream, or ended it twice.
    #[error("data behind the end of the stream")]
    BehindEnd,
    /// Gave a packet an offset that contradicts its neighbours.
    #[error("contradictory stream offset")]
    Offset,
    /// Feedback that contradicts itself.
    #[error("feedback that contradicts itself")]
    Feedback,
    /// A packet that does not belong to this state or this mode.
    #[error("packet out of place")]
    OutOfPlace,
}

/// A packet that could not be queued, by the local user's doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Stream operations on a message socket, or the other way about.
    #[error("wrong kind of socket for this operation")]
    WrongKind,
    /// The message is empty or longer than the send window.
    #[error("a message has 1 to {max} bytes")]
    Size {
        /// The limit, bytes.
        max: u64,
    },
    /// The connection is closed or closing, or this direction of it has ended.
    #[error("the connection is closed")]
    Closed,
    /// The peer takes no end of one direction: plain UDT ends both at once.
    #[error("the peer knows only the end of both directions")]
    NoHalves,
}
