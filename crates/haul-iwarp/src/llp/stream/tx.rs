//! Segments to FPDUs: length before, padding and CRC after the segment, markers if the peer
//! requests them (RFC 5044 §4).

use std::ops::Range;

use crate::crc::{CRC_LEN, Crc32c};
use crate::llp::{Segment, TRAILER_MAX};
use crate::wire::mpa::{LENGTH_LEN, MARKER_LEN, MARKER_SPACING, marker, pad_len};

/// An FPDU to be sent: without markers header, payload and [`Fpdu::trailer`]; with markers the
/// pieces that [`Fpdu::pieces`] returns, and the CRC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fpdu {
    /// Header and payload.
    pub segment: Segment,
    /// Bytes of padding, 0..=3.
    pub pad: usize,
    /// The CRC is to be computed; else it is sent as zero.
    pub crc: bool,
    /// The peer requests markers.
    pub markers: bool,
    /// Position of the FPDU in the stream since start-up.
    pub position: u64,
}

/// Padding and CRC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    octets: [u8; TRAILER_MAX],
    len: usize,
}

impl Trailer {
    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.octets[..self.len]
    }
}

/// A part of an FPDU with markers, in the order of the stream. The CRC is over all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Bytes of the header slot.
    Header(Range<usize>),
    /// A marker.
    Marker([u8; MARKER_LEN]),
    /// Bytes of the segment's payload.
    Payload(Range<u32>),
    /// This many zeros.
    Pad(usize),
}

impl Fpdu {
    pub(super) fn new(segment: Segment, crc: bool, markers: bool, position: u64) -> Self {
        let ulpdu = ulpdu_len(&segment);
        Self {
            segment,
            pad: pad_len(ulpdu) as usize,
            crc,
            markers,
            position,
        }
    }

    /// Returns the padding and the CRC. `digest` is over header slot and payload, and is continued
    /// over the padding; if the CRC is not in use it does not matter.
    #[must_use]
    pub fn trailer(&self, mut digest: Crc32c) -> Trailer {
        digest.update(&[0; 3][..self.pad]);
        self.trailer_of(digest)
    }

    /// Returns the padding and the CRC, where `digest` is over all pieces, padding and markers
    /// included.
    #[must_use]
    pub fn trailer_of(&self, digest: Crc32c) -> Trailer {
        let mut octets = [0; TRAILER_MAX];
        if self.crc {
            octets[self.pad..self.pad + CRC_LEN].copy_from_slice(&digest.to_wire());
        }
        Trailer {
            octets,
            len: self.pad + CRC_LEN,
        }
    }

    /// Returns the length in the stream, in bytes, markers included.
    #[must_use]
    pub fn wire_len(&self) -> u64 {
        if !self.markers {
            let segment = &self.segment;
            let body = segment.header_len + segment.payload_len as usize + self.pad;
            return (body + CRC_LEN) as u64;
        }
        let mut pieces = self.pieces();
        while pieces.next().is_some() {}
        pieces.position + CRC_LEN as u64 - self.position
    }

    /// Returns the FPDU in parts; after the last of them comes the CRC.
    #[must_use]
    pub fn pieces(&self) -> Pieces<'_> {
        let leads = self.markers && self.position.is_multiple_of(MARKER_SPACING);
        Pieces {
            fpdu: self,
            position: self.position,
            start: self.position + if leads { MARKER_LEN as u64 } else { 0 },
            done: 0,
        }
    }
}

/// See [`Fpdu::pieces`].
#[derive(Debug, Clone)]
pub struct Pieces<'a> {
    fpdu: &'a Fpdu,
    position: u64,
    /// Position of the length field.
    start: u64,
    /// Bytes of header, payload and padding that are out.
    done: u64,
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let into = self.position % MARKER_SPACING;
        if self.fpdu.markers && into == 0 {
            let offset = self.position.saturating_sub(self.start);
            self.position += MARKER_LEN as u64;
            return Some(Piece::Marker(marker(
                u16::try_from(offset).unwrap_or(u16::MAX),
            )));
        }
        let room = if self.fpdu.markers {
            MARKER_SPACING - into
        } else {
            u64::MAX
        };
        let segment = &self.fpdu.segment;
        let header_end = segment.header_len as u64;
        let payload_end = header_end + u64::from(segment.payload_len);
        let end = payload_end + self.fpdu.pad as u64;
        let (piece_start, piece_end) = match self.done {
            done if done < header_end => (0, header_end),
            done if done < payload_end => (header_end, payload_end),
            done if done < end => (payload_end, end),
            _ => return None,
        };
        let from = self.done - piece_start;
        let len = (piece_end - self.done).min(room);
        self.done += len;
        self.position += len;
        let (from, to) = (
            usize::try_from(from).ok()?,
            usize::try_from(from + len).ok()?,
        );
        Some(if piece_start == 0 {
            Piece::Header(from..to)
        } else if piece_end == payload_end {
            Piece::Payload(u32::try_from(from).ok()?..u32::try_from(to).ok()?)
        } else {
            Piece::Pad(to - from)
        })
    }
}

/// Bytes of the ULPDU: without the length field, which is in the header slot.
pub(super) fn ulpdu_len(segment: &Segment) -> u32 {
    let header = u32::try_from(segment.header_len - LENGTH_LEN).unwrap_or(u32::MAX);
    header + segment.payload_len
}
