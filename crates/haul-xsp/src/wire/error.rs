//! Why a PDU cannot be read.

/// Why bytes cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Another version of the protocol, or another protocol.
    #[error("version {0} is not spoken here")]
    Version(u8),
    /// Too short for its kind.
    #[error("too few bytes for a {0}")]
    Short(&'static str),
    /// Bytes remain behind it.
    #[error("bytes remain behind a {0}")]
    Long(&'static str),
    /// A body beyond the limit.
    #[error("a body of {0} bytes")]
    Body(u32),
    /// A PDU, or an element that must be understood, that this version does not have.
    #[error("unknown {what} {code}")]
    Unknown {
        /// The field with the unknown value.
        what: &'static str,
        /// Its code.
        code: u16,
    },
    /// A field has an invalid value.
    #[error("a {0} that may not be")]
    Value(&'static str),
    /// More of something than is allowed.
    #[error("too many {0}")]
    TooMany(&'static str),
    /// Text is not UTF-8.
    #[error("text that is not UTF-8")]
    Text,
}
