//! Errors, by who is to blame; their codes on the wire are [`NackStatus`].

use crate::auth::AuthError;
use crate::bag::Breach;
use crate::wire::{self, NackStatus, ParseError};

/// Why a session ended or could not begin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(
    clippy::error_impl_error,
    reason = "named with its crate: haul_xsp::Error"
)]
pub enum Error {
    /// The peer broke a rule of the protocol, and received the reason.
    #[error("the peer broke the protocol: {0}")]
    PeerMisbehaved(#[from] Misbehaviour),
    /// The peer speaks another version of XSP.
    #[error("it speaks XSP version {0} and this end version {ours}; update the older one", ours = wire::version())]
    Incompatible(u8),
    /// The authentication of the peer failed.
    #[error("the peer is not authenticated: {0}")]
    NotAuthenticated(#[from] AuthError),
    /// A hop refused, failed, or ended the session.
    #[error("{} ended the session: {status:?} {text}", Hop(*hop_index))]
    Ended {
        /// Why.
        status: NackStatus,
        /// Which hop, counted from 0 as in the list of hops; `None` is the peer itself.
        hop_index: Option<u16>,
        /// In words.
        text: String,
    },
    /// No answer in time, or suspended for longer than the session's lifetime.
    #[error("the peer did not answer in time")]
    TimedOut,
    /// For the hold, the peer's host has refused, could not be reached, or has ended the control
    /// connection without a reconnect.
    #[error("it is gone: nobody was there for the whole hold")]
    Gone,
    /// The control connection delivered damaged data: the caller closes it, as one that broke.
    #[error("a control message arrived damaged")]
    Damaged,
    /// The control connection broke and the session cannot be resumed.
    #[error("the control connection was lost")]
    Lost,
    /// This end closed it.
    #[error("closed by this end")]
    Closed,
}

/// A hop in words.
struct Hop(Option<u16>);

impl std::fmt::Display for Hop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(index) => write!(f, "hop {index}"),
            None => write!(f, "the peer"),
        }
    }
}

/// The violation of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Misbehaviour {
    /// Bytes that are no PDU.
    #[error("{0}")]
    Parse(#[from] ParseError),
    /// An intact PDU of another version; see [`Error::Incompatible`].
    #[error("a PDU of version {0}")]
    Version(u8),
    /// It was damaged; see [`Error::Damaged`].
    #[error("a PDU arrived damaged")]
    Damaged,
    /// A PDU of another session.
    #[error("a PDU of another session")]
    Session,
    /// A PDU was left out or repeated.
    #[error("PDU {found} where {expected} was due")]
    Sequence {
        /// The number due.
        expected: u32,
        /// The number found.
        found: u32,
    },
    /// A body larger than was agreed on.
    #[error("a body of {0} bytes")]
    TooLarge(u32),
    /// A PDU that this state does not allow.
    #[error("a PDU of type {0} out of turn")]
    OutOfTurn(u16),
    /// Slabs.
    #[error("{0}")]
    Slab(#[from] Breach),
}

impl Error {
    /// Returns the code for the peer.
    #[must_use]
    pub const fn status(&self) -> NackStatus {
        match self {
            Self::PeerMisbehaved(Misbehaviour::Parse(ParseError::Unknown { .. })) => {
                NackStatus::Unsupported
            }
            Self::PeerMisbehaved(_) => NackStatus::Protocol,
            Self::Incompatible(_) => NackStatus::Unsupported,
            Self::NotAuthenticated(_) => NackStatus::NotAuthenticated,
            Self::Ended { status, .. } => *status,
            Self::TimedOut => NackStatus::TimedOut,
            Self::Gone => NackStatus::CannotConnect,
            Self::Lost | Self::Damaged | Self::Closed => NackStatus::Closing,
        }
    }
}

/// A request of the local user that is not possible. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// The session is not open.
    #[error("the session is not open")]
    NotOpen,
    /// Nothing waits for this answer.
    #[error("nothing waits for this answer")]
    NoRequest,
    /// More connections, channels or messages than agreed on; try again when some are gone.
    #[error("a limit is reached")]
    Full,
    /// A connection that does not exist, or a number that may not be used.
    #[error("no such connection")]
    NoConnection,
    /// More bytes than a PDU holds.
    #[error("too many bytes for one message")]
    TooLarge,
    /// The ends of a segment have no common protocol.
    #[error("no common protocol")]
    NoProtocol,
    /// A hop list of nothing or too much.
    #[error("a list of hops that cannot be")]
    Hops,
    /// The configuration cannot work.
    #[error("{0}")]
    Config(#[from] crate::bag::TooFewRegions),
}
