//! What all packets share: the header's length, socket ids, words, and errors of parsing.

/// Bytes of every UDT header.
pub const HEADER_LEN: usize = 16;

/// Set in the first word of control packets.
pub(super) const CONTROL_BIT: u32 = 1 << 31;

/// A socket's id, unique within its host. Zero addresses a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct SocketId(pub u32);

/// Why bytes are not a UDT packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Shorter than its header or its fixed body.
    #[error("packet of {len} bytes is too short for a {what}")]
    Short {
        /// The kind of header or message.
        what: &'static str,
        /// Its length, bytes.
        len: usize,
    },
    /// Longer than its fixed body.
    #[error("handshake of {len} bytes has trailing data")]
    Long {
        /// Its length, bytes.
        len: usize,
    },
    /// A handshake between Longhaul ends whose check does not match: it was damaged on the path.
    #[error("a handshake that was damaged on the way")]
    Damaged,
    /// A control type that UDT4 does not have.
    #[error("unknown control type {0}")]
    UnknownControl(u16),
    /// A loss list whose last range has no end, or whose range runs backwards.
    #[error("malformed loss list")]
    LossList,
    /// An enumeration's value that UDT4 does not have.
    #[error("unknown {what} {value}")]
    UnknownValue {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u32,
    },
}

/// The `index`th 32-bit word; zero past the end, which callers have excluded by checking lengths.
pub(super) fn word(bytes: &[u8], index: usize) -> u32 {
    bytes
        .get(index * 4..)
        .and_then(|rest| rest.first_chunk::<4>())
        .map_or(0, |chunk| u32::from_be_bytes(*chunk))
}

pub(super) fn double_word(bytes: &[u8], index: usize) -> u64 {
    u64::from(word(bytes, index)) << 32 | u64::from(word(bytes, index + 1))
}
