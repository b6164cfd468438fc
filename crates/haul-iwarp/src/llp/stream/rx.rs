//! Bytes of the stream to headers, placements and checked FPDUs (RFC 5044 §4).

use super::next::Next;
use crate::crc::{CRC_LEN, Crc32c};
use crate::llp::HEADER_MAX;
use crate::memory::{Placement, Target};
use crate::wire::TermCode;
use crate::wire::ddp::Header;
use crate::wire::mpa::{LENGTH_LEN, MARKER_LEN, MARKER_SPACING, pad_len, parse_marker};
use crate::wire::rdmap::Opcode;

/// Bytes from which the rest of an FPDU's shape follows: its length, and the two control bytes.
const SHAPE_LEN: usize = LENGTH_LEN + 2;

/// The FPDU that is being received.
#[derive(Debug)]
pub(super) struct Rx {
    phase: Phase,
    /// Length and headers, have of them; have <= need <= HEADER_MAX.
    header: [u8; HEADER_MAX],
    have: usize,
    need: usize,
    /// End of the headers in `header`; stays when the FPDU is whole, until the next begins.
    segment_end: usize,
    /// Bytes of `header` that are in the digest.
    digested: usize,
    /// Bytes of payload that are still to come.
    payload_left: u32,
    /// Bytes of padding and CRC, and how many of them are there.
    trailer_len: usize,
    trailer_have: usize,
    crc: [u8; CRC_LEN],
    digest: Crc32c,
    /// Where the rest of the payload goes.
    target: Target,
    /// Bytes that are in the engine's stage.
    staged: u32,

    markers: bool,
    /// Bytes of the stream since start-up; counted where there are markers.
    position: u64,
    fpdu_start: u64,
    marker: [u8; MARKER_LEN],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Header,
    Payload,
    Trailer,
}

/// The outcome of parsing the input.
pub(super) enum Seen {
    /// Nothing yet: feed more.
    Incomplete,
    /// The headers are complete: [`Rx::segment`]. Pass the payload's destination to [`Rx::begin`].
    Headers,
    /// Payload follows.
    Payload,
    /// The FPDU is whole; its CRC is right, or does not match.
    Whole { crc_matches: bool },
    /// A marker does not point at the start of its FPDU.
    BadMarker,
}

impl Rx {
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Header,
            header: [0; HEADER_MAX],
            have: 0,
            need: SHAPE_LEN,
            segment_end: LENGTH_LEN,
            digested: 0,
            payload_left: 0,
            trailer_len: 0,
            trailer_have: 0,
            crc: [0; CRC_LEN],
            digest: Crc32c::new(),
            target: Target::Discard,
            staged: 0,
            markers: false,
            position: 0,
            fpdu_start: 0,
            marker: [0; MARKER_LEN],
        }
    }

    pub(super) fn expect_markers(&mut self) {
        self.markers = true;
    }

    /// Whether the stream may end here.
    pub(super) fn is_between(&self) -> bool {
        self.have == 0
    }

    pub(super) fn digest(&mut self) -> &mut Crc32c {
        &mut self.digest
    }

    /// The least number of bytes that will change anything.
    pub(super) fn wants(&self) -> usize {
        match self.phase {
            Phase::Header => self.need - self.have,
            Phase::Payload => self.payload_left as usize,
            Phase::Trailer => self.trailer_len - self.trailer_have,
        }
    }

    /// Takes bytes up to the next decision; advances `at`.
    pub(super) fn look(&mut self, bytes: &[u8], at: &mut usize) -> Seen {
        loop {
            if self.phase == Phase::Header && self.have == self.need {
                if self.need > SHAPE_LEN || self.is_malformed() {
                    return Seen::Headers;
                }
                self.need = self.shape();
                continue;
            }
            if self.phase == Phase::Trailer && self.trailer_have == self.trailer_len {
                let crc_matches = self.crc == self.digest.to_wire();
                self.digest = Crc32c::new();
                self.phase = Phase::Header;
                (self.have, self.need, self.digested) = (0, SHAPE_LEN, 0);
                return Seen::Whole { crc_matches };
            }
            // A marker before the CRC belongs to this FPDU, one behind it to the next.
            if self.is_in_marker() {
                let Some(agrees) = self.take_marker(bytes, at) else {
                    return Seen::Incomplete;
                };
                if !agrees {
                    return Seen::BadMarker;
                }
                continue;
            }
            if self.phase == Phase::Payload {
                if self.payload_left > 0 {
                    return Seen::Payload;
                }
                self.phase = Phase::Trailer;
            }
            if *at == bytes.len() {
                return Seen::Incomplete;
            }
            self.take(bytes, at);
        }
    }

    /// Takes bytes of header or trailer, up to the next marker.
    fn take(&mut self, bytes: &[u8], at: &mut usize) {
        let more = (bytes.len() - *at)
            .min(self.until_marker())
            .min(self.wants());
        let new = &bytes[*at..*at + more];
        if self.phase == Phase::Header {
            if self.have == 0 {
                self.fpdu_start = self.position;
            }
            self.header[self.have..self.have + more].copy_from_slice(new);
            self.have += more;
        } else {
            let pad = self.trailer_len - CRC_LEN;
            let (pads, crc) = new.split_at(more.min(pad.saturating_sub(self.trailer_have)));
            if !pads.is_empty() {
                self.digest.update(pads);
            }
            self.trailer_have += more;
            let end = self.trailer_have.saturating_sub(pad);
            self.crc[end - crc.len()..end].copy_from_slice(crc);
        }
        *at += more;
        self.position += more as u64;
    }

    fn is_in_marker(&self) -> bool {
        self.markers && self.position % MARKER_SPACING < MARKER_LEN as u64
    }

    fn until_marker(&self) -> usize {
        if !self.markers {
            return usize::MAX;
        }
        let into = self.position % MARKER_SPACING;
        usize::try_from(MARKER_SPACING - into).unwrap_or(usize::MAX)
    }

    /// Takes bytes of a marker; once it is complete, checks that it matches the FPDU.
    fn take_marker(&mut self, bytes: &[u8], at: &mut usize) -> Option<bool> {
        while self.is_in_marker() {
            let octet = *bytes.get(*at)?;
            let into = self.position % MARKER_SPACING;
            self.marker[usize::try_from(into).unwrap_or(0)] = octet;
            self.position += 1;
            *at += 1;
        }
        let stood = self.position - MARKER_LEN as u64;
        let between = self.phase == Phase::Header && self.have == 0;
        let expected = if between { 0 } else { stood - self.fpdu_start };
        if self.phase == Phase::Header {
            self.digest_header();
        }
        self.digest.update(&self.marker);
        Some(u64::from(parse_marker(self.marker)) == expected)
    }

    fn digest_header(&mut self) {
        self.digest.update(&self.header[self.digested..self.have]);
        self.digested = self.have;
    }

    /// Bytes of the ULPDU by its length field.
    fn ulpdu_len(&self) -> u32 {
        u32::from(u16::from_be_bytes([self.header[0], self.header[1]]))
    }

    fn is_malformed(&self) -> bool {
        (self.ulpdu_len() as usize) < Header::len_of(self.header[LENGTH_LEN])
    }

    /// Bytes of length and headers together.
    fn shape(&self) -> usize {
        let header_len = Header::len_of(self.header[LENGTH_LEN]);
        let payload = self.ulpdu_len() as usize - header_len;
        LENGTH_LEN + header_len + Opcode::header_len(self.header[LENGTH_LEN + 1], payload)
    }

    /// DDP and RDMAP headers, and the bytes of the whole segment; `None` if it is too short to
    /// have them.
    pub(super) fn segment(&self) -> (Option<&[u8]>, u32) {
        let whole = !self.is_malformed();
        let octets = whole.then(|| &self.header[LENGTH_LEN..self.shape()]);
        (octets, self.ulpdu_len())
    }

    /// The headers of the FPDU that was concluded last, or is being received.
    pub(super) fn last_segment(&self) -> (&[u8], u32) {
        (&self.header[LENGTH_LEN..self.segment_end], self.ulpdu_len())
    }

    /// The payload is to go to `target`.
    pub(super) fn begin(&mut self, target: Target) {
        self.digest_header();
        self.segment_end = if self.is_malformed() {
            LENGTH_LEN
        } else {
            self.have
        };
        let ulpdu = self.ulpdu_len();
        let pad = pad_len(ulpdu);
        let body = 2 + ulpdu;
        let seen = u32::try_from(self.have).unwrap_or(u32::MAX);
        if body < seen {
            // A ULPDU of 0 or 1: padding was taken for control bytes.
            (self.payload_left, self.trailer_len) = (0, (body + pad - seen) as usize + CRC_LEN);
        } else {
            (self.payload_left, self.trailer_len) = (body - seen, pad as usize + CRC_LEN);
        }
        (self.trailer_have, self.staged) = (0, 0);
        (self.target, self.phase) = (target, Phase::Payload);
    }

    /// The bytes of payload that follow without a marker, and where they go.
    pub(super) fn placement(&self) -> Placement {
        let len = u32::try_from(self.until_marker()).unwrap_or(u32::MAX);
        Placement {
            target: self.target,
            len: len.min(self.payload_left),
        }
    }

    pub(super) fn stage(&self) -> Next {
        Next::Stage {
            offset: self.staged,
            len: self.placement().len,
        }
    }

    /// `len` bytes of payload were taken from the stream.
    pub(super) fn placed(&mut self, len: u32) {
        let len = len.min(self.payload_left);
        self.payload_left -= len;
        self.staged += len;
        self.position += u64::from(len);
        match &mut self.target {
            Target::Region { offset, .. } => *offset += u64::from(len),
            Target::Receive { offset, .. } => *offset += len,
            Target::Discard => {}
        }
    }

    /// The code of the Terminate for a truncated segment (docs/protocol/iwarp.md).
    pub(super) const SHORT: TermCode = TermCode::UNSPECIFIED;
}
