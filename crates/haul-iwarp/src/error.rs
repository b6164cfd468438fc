//! Errors, by who is to blame.

use crate::wire::{ParseError, TermCode};

/// Why a connection ended or could not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[expect(
    clippy::error_impl_error,
    reason = "named with its crate: haul_iwarp::Error"
)]
pub enum Error {
    /// The peer's start-up frame is not one.
    #[error("the peer does not speak iWARP here: {0}")]
    Startup(ParseError),
    /// The peer's start-up frame requests an impossible combination.
    #[error("the peer is not compatible: {0}")]
    PeerIncompatible(Incompatible),
    /// The peer refused; its reply is in the connection's private data.
    #[error("the peer refused the connection")]
    Rejected,
    /// The peer broke a rule of the protocol, and this end sent a Terminate with this code.
    #[error("the peer broke the protocol: {0}")]
    PeerMisbehaved(TermCode),
    /// The peer reported that this end broke a rule.
    #[error("the peer ended the connection: {0}")]
    Terminated(TermCode),
    /// Local memory that a running operation needs is not accessible any more.
    #[error("local memory was withdrawn or does not allow the operation: {0}")]
    LocalMemory(TermCode),
    /// The lower layer failed, or ended in the middle.
    #[error("the connection was lost")]
    Lost,
    /// The peer did not answer in time.
    #[error("the peer did not answer in time")]
    TimedOut,
    /// This end closed with work outstanding.
    #[error("closed by this end")]
    Aborted,
}

/// The parameter that the peer requires and this end does not support.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Incompatible {
    /// It asks for more reads than this end can take.
    #[error("it needs more inbound reads")]
    Reads,
    /// No common way to make the first FPDU.
    #[error("no common kind of ready-to-receive message")]
    ReadyToReceive,
    /// It closed the connection instead of a reply: revision 1 may be tried.
    #[error("it closed instead of replying; it may know MPA revision 1 only")]
    Revision,
    /// Its segments would be too small to be useful.
    #[error("its segment limit is too small")]
    SegmentSize,
}

/// Work that was not taken, by the local user's doing. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue is full: reap completions.
    #[error("the queue is full")]
    Full,
    /// The connection is in error or closed. The work would only be flushed.
    #[error("the connection is not open")]
    NotOpen,
    /// A read or atomic, where none was negotiated.
    #[error("the peer takes no reads")]
    NoReads,
    /// More private data than a start-up frame holds.
    #[error("too much private data for a start-up frame")]
    PrivateData,
    /// Not asked, or answered already.
    #[error("no request waits for an answer")]
    NoRequest,
    /// The peer does not know this operation.
    #[error("the peer does not support this operation")]
    Unsupported,
    /// More bytes than a message of this service may have, or than there are tagged offsets.
    #[error("the message has {len} bytes, and may have {limit}")]
    TooLong {
        /// Bytes of the message.
        len: u32,
        /// The most bytes that it may have.
        limit: u32,
    },
}
