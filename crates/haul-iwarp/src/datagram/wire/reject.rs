//! Why datagrams are rejected.

/// Why a datagram is not one of ours, or not a whole one. It is dropped and counted; nothing is
/// answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Reject {
    /// Its first byte is not this protocol's and version's, or it is shorter than any.
    #[error("not a datagram of this protocol")]
    Foreign,
    /// Its CRC is wrong.
    #[error("its CRC is wrong")]
    Crc,
    /// Its type is unknown, or it is sealed and this end has no keys.
    #[error("not understood: {0}")]
    Unsupported(&'static str),
    /// Its CRC is right and its fields contradict each other: the sender is wrong, or lies.
    #[error("malformed: {0}")]
    Malformed(&'static str),
}
