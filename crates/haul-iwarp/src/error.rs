//! Errors, by who is to blame, and the table of their codes on the wire.

use std::fmt;

use crate::wire::ParseError;

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

/// An error as a Terminate carries it: layer, type and code.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TermCode {
    /// 0 RDMAP, 1 DDP, 2 the lower layer.
    pub layer: u8,
    /// Error type, 4 bits.
    pub etype: u8,
    /// Error code.
    pub code: u8,
}

macro_rules! codes {
    ($($name:ident = $layer:literal / $etype:literal / $code:literal, $text:literal;)*) => {
        impl TermCode {
            $(#[doc = $text] pub const $name: Self = Self::new($layer, $etype, $code);)*

            /// Returns the code in words.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match (self.layer, self.etype, self.code) {
                    $(($layer, $etype, $code) => $text,)*
                    (0, 0, _) => "local catastrophic error",
                    _ => "error unknown to the RFCs",
                }
            }
        }
    };
}

codes! {
    // RFC 5040 §4.8, Figure 9.
    LOCAL_CATASTROPHIC = 0 / 0 / 0, "local catastrophic error";
    INVALID_STAG = 0 / 1 / 0x00, "invalid STag";
    BOUNDS = 0 / 1 / 0x01, "base or bounds violation";
    ACCESS = 0 / 1 / 0x02, "access rights violation";
    NOT_ASSOCIATED = 0 / 1 / 0x03, "STag not associated with the stream";
    TO_WRAP = 0 / 1 / 0x04, "tagged offset wraps";
    PROTECTION_CANNOT_INVALIDATE = 0 / 1 / 0x09, "STag cannot be invalidated";
    RDMAP_VERSION = 0 / 2 / 0x05, "invalid RDMAP version";
    UNEXPECTED_OPCODE = 0 / 2 / 0x06, "unexpected opcode";
    STREAM_CATASTROPHIC = 0 / 2 / 0x07, "catastrophic error of this stream";
    UNSPECIFIED = 0 / 2 / 0xff, "unspecified remote operation error";
    // RFC 5041 §7.2.
    DDP_CATASTROPHIC = 1 / 0 / 0x00, "DDP: local catastrophic error";
    DDP_INVALID_STAG = 1 / 1 / 0x00, "DDP: invalid STag";
    DDP_BOUNDS = 1 / 1 / 0x01, "DDP: base or bounds violation";
    DDP_NOT_ASSOCIATED = 1 / 1 / 0x02, "DDP: STag not associated with the stream";
    DDP_TO_WRAP = 1 / 1 / 0x03, "DDP: tagged offset wraps";
    DDP_VERSION_TAGGED = 1 / 1 / 0x04, "DDP: invalid version, tagged";
    DDP_INVALID_QN = 1 / 2 / 0x01, "DDP: invalid queue number";
    DDP_NO_BUFFER = 1 / 2 / 0x02, "DDP: no buffer is posted";
    DDP_INVALID_MSN = 1 / 2 / 0x03, "DDP: message sequence number out of range";
    DDP_INVALID_MO = 1 / 2 / 0x04, "DDP: invalid message offset";
    DDP_TOO_LONG = 1 / 2 / 0x05, "DDP: message too long for its buffer";
    DDP_VERSION_UNTAGGED = 1 / 2 / 0x06, "DDP: invalid version, untagged";
    // RFC 5044 §8, RFC 6581 §8.
    MPA_CLOSED = 2 / 0 / 0x01, "MPA: connection lost";
    MPA_CRC = 2 / 0 / 0x02, "MPA: CRC mismatch";
    MPA_MARKER = 2 / 0 / 0x03, "MPA: marker and length disagree";
    MPA_STARTUP = 2 / 0 / 0x04, "MPA: invalid start-up frame";
    MPA_CATASTROPHIC = 2 / 0 / 0x05, "MPA: local catastrophic error";
    MPA_IRD = 2 / 0 / 0x06, "MPA: insufficient IRD";
    MPA_RTR = 2 / 0 / 0x07, "MPA: no matching ready-to-receive kind";
    // No RFC's: no error, but the end of a connection (docs/protocol/iwarp.md, close notice).
    CLOSE_NOTICE = 15 / 0 / 0x00, "close notice";
}

impl TermCode {
    /// Makes a code, possibly one that no RFC has.
    #[must_use]
    pub const fn new(layer: u8, etype: u8, code: u8) -> Self {
        Self { layer, etype, code }
    }

    /// Returns whether layer and type are in the RFCs' tables.
    #[must_use]
    pub const fn is_known_layer(self) -> bool {
        matches!((self.layer, self.etype), (0, 0..=2) | (1, 0..=3) | (2, 0))
    }
}

impl fmt::Debug for TermCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "TermCode({}/{}/{:02x})",
            self.layer, self.etype, self.code
        )
    }
}

impl fmt::Display for TermCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layer, etype, code } = self;
        write!(f, "{} ({layer}/{etype}/{code:02x})", self.text())
    }
}
