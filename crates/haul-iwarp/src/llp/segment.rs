//! Segments that are to be sent.

use crate::crc::CRC_LEN;
use crate::qp::Payload;

/// Bytes that a header slot must have: length field, DDP header, and the longest header of an
/// operation.
pub const HEADER_MAX: usize = crate::wire::mpa::LENGTH_LEN + crate::qp::SEGMENT_HEADER_MAX;

/// Bytes of the longest trailer: padding and CRC.
pub const TRAILER_MAX: usize = 3 + CRC_LEN;

/// A segment to be sent: header bytes in the caller's slot, payload by name, then
/// [`crate::Fpdu::trailer`] or [`crate::Datagram::trailer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Number of the segment, counted from 0 on this connection. Call `handle_released` when it is
    /// no longer needed.
    pub index: u64,
    /// Bytes in the header slot.
    pub header_len: usize,
    /// Where the payload lies.
    pub payload: Payload,
    /// Bytes of payload.
    pub payload_len: u32,
}
