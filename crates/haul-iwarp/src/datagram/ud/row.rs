//! Segments of a Write-Record that come in a row.
//!
//! Consecutive datagrams of a long message differ in three counters that increase by known steps.
//! Once one datagram has passed every check, the next one's header is compared with its expected
//! bytes instead of being parsed.

use std::net::SocketAddr;

use crate::address::Source;
use crate::datagram::record::Piece;
use crate::datagram::wire::{DATA_HEADER_MAX, DataHeader, Flags, MsgId, Psn, Segment, Shim};
use crate::stag::Stag;
use crate::wire::ddp::Model;

/// The expected header of the next segment, and the parsed last one.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) from: Source,
    pub(super) id: MsgId,
    pub(super) stag: Stag,
    /// Where the message begins.
    pub(super) base: u64,
    pub(super) group: bool,
    /// Its record.
    pub(super) at: usize,
    header: [u8; DATA_HEADER_MAX],
    header_len: usize,
    psn: Psn,
    start: u32,
    /// Bytes of payload in each segment, and in all of the message.
    each: u32,
    message_len: u32,
}

impl Row {
    /// The header expected after a segment of the record `at`; none after the final segment, and
    /// none with EXT words, which take the full parser.
    pub(super) fn after(
        from: &Source,
        shim: &Shim,
        segment: &Segment<'_>,
        at: usize,
    ) -> Option<Self> {
        let Model::Tagged { to, stag } = segment.model else {
            return None;
        };
        if shim.flags.contains(Flags::LAST) || !segment.ext.is_empty() {
            return None;
        }
        let mut header = [0; DATA_HEADER_MAX];
        let header_len = DataHeader {
            shim: *shim,
            ext: &[],
            opcode: segment.opcode,
            model: segment.model,
        }
        .emit(&mut header);
        let mut row = Self {
            from: *from,
            id: shim.msg_id,
            stag,
            base: to - u64::from(shim.seg_off),
            group: shim.flags.contains(Flags::MCAST),
            at,
            header,
            header_len,
            psn: shim.psn,
            start: shim.seg_off,
            each: u32::try_from(segment.payload.len()).ok()?,
            message_len: shim.msg_len,
        };
        row.advance();
        Some(row)
    }

    /// Returns the place in its message and the payload of a segment, if it is the next and not the
    /// last.
    pub(super) fn next<'a>(
        &self,
        from: SocketAddr,
        covered: &'a [u8],
    ) -> Option<(Piece, &'a [u8])> {
        let (header, payload) = covered.split_at_checked(self.header_len)?;
        let end = self.start.checked_add(self.each)?;
        let is_next = payload.len() == self.each as usize
            && end < self.message_len
            && header == &self.header[..self.header_len]
            && from == self.from.addr;
        let piece = Piece {
            start: self.start,
            end,
            psn: self.psn,
            is_last: false,
        };
        is_next.then_some((piece, payload))
    }

    pub(super) fn advance(&mut self) {
        self.psn = self.psn.plus(1);
        self.start = self.start.saturating_add(self.each);
        DataHeader::advance(&mut self.header[..self.header_len], self.psn, self.each);
    }
}
