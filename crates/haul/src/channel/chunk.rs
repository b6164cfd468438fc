//! Chunks: what a stream of a TCP channel carries, each behind a header that places it.

use std::time::Duration;

use crate::wire::crc32c;

/// Maximum chunk, bytes.
pub(super) const CHUNK: u64 = 1 << 20;
/// Offset, length, check.
pub(crate) const CHUNK_HEADER: usize = 16;
/// Bytes of an incomplete chunk are placed after this long, so that progress shows on slow paths.
pub(super) const PLACE_AFTER: Duration = Duration::from_millis(50);

pub(crate) fn chunk_header(offset: u64, len: u32) -> [u8; CHUNK_HEADER] {
    let mut header = [0; CHUNK_HEADER];
    header[..8].copy_from_slice(&offset.to_be_bytes());
    header[8..12].copy_from_slice(&len.to_be_bytes());
    let check = crc32c(&header[..12]);
    header[12..].copy_from_slice(&check);
    header
}

/// Offset and length of a chunk; `None` where its header was damaged.
pub(crate) fn parse_chunk_header(header: [u8; CHUNK_HEADER]) -> Option<(u64, u32)> {
    let (covered, check) = header.split_last_chunk::<4>()?;
    let (offset, len) = covered.split_first_chunk()?;
    let len = len.try_into().map(u32::from_be_bytes).ok()?;
    (crc32c(covered) == *check).then(|| (u64::from_be_bytes(*offset), len))
}
