//! FPDUs on their way to a TCP socket, gathered for one system call.

use arrayvec::ArrayVec;
use haul_iwarp::{Fpdu, HEADER_MAX, Payload, Piece};
use haul_slab::Gather;
use haul_verbs::SGE_MAX;

use crate::rnic::buffers::{Range, Source};
use crate::rnic::tap::Flow;

/// FPDUs for one system call.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Headers, trailers and small payloads.
    flat: Vec<u8>,
    parts: Vec<Part>,
    /// Where FPDUs end in the batch, and their indices.
    ends: Vec<(usize, u64)>,
    len: usize,
    /// sent <= len
    sent: usize,
    /// The first part that is not sent whole, where it starts in `flat`, and how much of it is
    /// sent. Parts before it are not looked at again: their requests may be complete.
    first: usize,
    first_flat: usize,
    skip: usize,
    /// Payloads of any length are copied behind their headers, to be sealed from there.
    copies: bool,
}

#[derive(Debug, Clone, Copy)]
enum Part {
    /// The next so many bytes of `flat`.
    Flat(usize),
    Payload(Payload, u32),
}

/// FPDUs, and bytes, of one batch.
pub(super) const BATCH_FPDUS: usize = 64;
const BATCH_BYTES: usize = 512 << 10;
/// A payload no longer than this is copied behind its header: one range for the kernel instead of
/// three.
const FLAT_MAX: u32 = 512;
/// Ranges of one system call: a flat part before and behind each payload.
const RANGES: usize = BATCH_FPDUS * (SGE_MAX + 1) + 1;

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes no more FPDUs.
    pub(super) fn is_full(&self) -> bool {
        self.ends.len() >= BATCH_FPDUS || self.len >= BATCH_BYTES
    }

    pub(super) fn is_sent(&self) -> bool {
        self.sent >= self.len
    }

    /// Copies payloads, or gathers long ones from where they lie.
    pub(super) fn set_copies(&mut self, copies: bool) {
        self.copies = copies;
    }

    /// Begins an FPDU: where it starts, and the place of its header.
    pub(super) fn begin(&mut self) -> (usize, &mut [u8]) {
        let start = self.flat.len();
        self.flat.resize(start + HEADER_MAX, 0);
        (start, &mut self.flat[start..])
    }

    /// Takes back the FPDU that was begun at `start`.
    pub(super) fn cancel(&mut self, start: usize) {
        self.flat.truncate(start);
    }

    /// Index of the segment after the last FPDU that is sent whole, if there is one.
    pub(super) fn released(&self) -> Option<u64> {
        let whole = self.ends.partition_point(|(end, _)| *end <= self.sent);
        let (_, index) = self.ends.get(whole.checked_sub(1)?)?;
        Some(index + 1)
    }

    /// Payloads that are not sent whole.
    pub(super) fn payloads(&self) -> impl Iterator<Item = (Payload, u32)> {
        self.parts[self.first..]
            .iter()
            .filter_map(|part| match *part {
                Part::Payload(payload, len) => Some((payload, len)),
                Part::Flat(_) => None,
            })
    }

    pub(super) fn clear(&mut self) {
        self.flat.clear();
        self.parts.clear();
        self.ends.clear();
        (self.len, self.sent) = (0, 0);
        (self.first, self.first_flat, self.skip) = (0, 0, 0);
    }

    /// So much more is sent.
    pub(super) fn advance(&mut self, sent: usize) {
        self.sent += sent;
        self.skip += sent;
        while let Some(part) = self.parts.get(self.first) {
            let (len, flat) = match *part {
                Part::Flat(len) => (len, len),
                Part::Payload(_, len) => (len as usize, 0),
            };
            if self.skip < len {
                return;
            }
            self.skip -= len;
            self.first_flat += flat;
            self.first += 1;
        }
    }

    /// Adds the FPDU that was begun at `start`, whose header is in its place.
    pub(super) fn add(&mut self, start: usize, fpdu: &Fpdu, source: &Source<'_>) {
        self.flat.truncate(start + fpdu.segment.header_len);
        if fpdu.markers {
            self.add_with_markers(start, fpdu, source);
        } else {
            let payload_len = fpdu.segment.payload_len;
            let mut digest = haul_iwarp::Crc32c::new();
            // What answers a read may be changed by anybody at any time: its CRC is that of a copy,
            // and the copy is sent.
            let shared = matches!(fpdu.segment.payload, Payload::Region { .. });
            let copied = self.copies || payload_len <= FLAT_MAX || shared && fpdu.crc;
            if copied {
                source.visit(|bytes| self.flat.extend_from_slice(bytes));
                if fpdu.crc {
                    digest.update(&self.flat[start..]);
                }
            } else {
                if fpdu.crc {
                    digest.update(&self.flat[start..]);
                    source.visit(|bytes| digest.update(bytes));
                }
                self.add_flat(self.flat.len() - start);
                self.parts
                    .push(Part::Payload(fpdu.segment.payload, payload_len));
                self.len += payload_len as usize;
            }
            let flat_end = self.flat.len();
            self.flat.extend_from_slice(fpdu.trailer(digest).as_bytes());
            let behind = if copied { start } else { flat_end };
            self.add_flat(self.flat.len() - behind);
        }
        self.ends.push((self.len, fpdu.segment.index));
    }

    /// All of it is copied: peers that ask for markers are rare, and their FPDUs short.
    fn add_with_markers(&mut self, start: usize, fpdu: &Fpdu, source: &Source<'_>) {
        let header: ArrayVec<u8, HEADER_MAX> = self.flat.drain(start..).collect();
        let mut payload = Vec::with_capacity(fpdu.segment.payload_len as usize);
        source.visit(|bytes| payload.extend_from_slice(bytes));
        for piece in fpdu.pieces() {
            match piece {
                Piece::Header(range) => self.flat.extend_from_slice(&header[range]),
                Piece::Marker(marker) => self.flat.extend_from_slice(&marker),
                Piece::Payload(range) => {
                    let bytes = &payload[range.start as usize..range.end as usize];
                    self.flat.extend_from_slice(bytes);
                }
                Piece::Pad(len) => self.flat.resize(self.flat.len() + len, 0),
            }
        }
        let mut digest = haul_iwarp::Crc32c::new();
        digest.update(&self.flat[start..]);
        let trailer = fpdu.trailer_of(digest);
        self.flat.extend_from_slice(&trailer.as_bytes()[fpdu.pad..]);
        self.add_flat(self.flat.len() - start);
    }

    fn add_flat(&mut self, len: usize) {
        self.len += len;
        match self.parts.last_mut() {
            Some(Part::Flat(before)) => *before += len,
            _ => self.parts.push(Part::Flat(len)),
        }
    }

    /// What is not sent yet, if there is no payload in it.
    pub(super) fn only_flat(&self) -> Option<&[u8]> {
        match self.parts[self.first..] {
            [Part::Flat(len)] => {
                let from = self.first_flat;
                self.flat.get(from + self.skip..from + len)
            }
            _ => None,
        }
    }

    /// What is not sent yet, as ranges.
    pub(super) fn gather<'b>(&'b self, sources: &'b [Source<'_>]) -> ArrayVec<Gather<'b>, RANGES> {
        let mut ranges = ArrayVec::new();
        let (mut skip, mut flat) = (self.skip, self.first_flat);
        let mut sources = sources.iter();
        let mut push = |range: Gather<'b>| {
            let passed = skip.min(range.len());
            skip -= passed;
            if passed < range.len() {
                ranges.push(range.skip(passed));
            }
        };
        for part in &self.parts[self.first..] {
            match part {
                Part::Flat(len) => {
                    push(Gather::from(&self.flat[flat..flat + len]));
                    flat += len;
                }
                Part::Payload(..) => match sources.next() {
                    Some(Source::Ranges(list)) => {
                        list.iter().filter_map(Range::gather).for_each(&mut push);
                    }
                    Some(Source::Inline(bytes)) => push(Gather::from(*bytes)),
                    None => {}
                },
            }
        }
        ranges
    }

    /// Shows the next `sent` bytes to the tap.
    pub(super) fn show(&self, sources: &[Source<'_>], sent: usize, flow: &mut Flow) {
        let (mut skip, mut left, mut flat) = (self.skip, sent, self.first_flat);
        let mut sources = sources.iter();
        let mut show = |bytes: &[u8]| {
            let passed = skip.min(bytes.len());
            skip -= passed;
            let rest = &bytes[passed..];
            let now = &rest[..rest.len().min(left)];
            left -= now.len();
            flow.show(now);
        };
        for part in &self.parts[self.first..] {
            match part {
                Part::Flat(len) => {
                    show(&self.flat[flat..flat + len]);
                    flat += len;
                }
                Part::Payload(..) => {
                    if let Some(source) = sources.next() {
                        source.visit(&mut show);
                    }
                }
            }
        }
        flow.sent();
    }
}
