//! Announcements of slabs and the answers to them (part B3).

use super::ParseError;
use super::codec::{Reader, Writer};
use crate::{ConnId, SlabSeq};

/// Most records of a slab.
pub const RECORDS_MAX: usize = 4_096;
/// Most inline bytes of a slab: as many as an idle TCP connection sends at once.
pub const INLINE_MAX: usize = 14 << 10;
/// Most answers about slabs out of order in one PDU.
const SELECTIVE_MAX: usize = 1_024;

const RECORD_CRC: u16 = 1;
const RECORD_FIN: u16 = 2;
const RECORD_RST: u16 = 4;

const SLAB_LAST: u16 = 1;
const SLAB_PUSH: u16 = 2;
const SLAB_INLINE: u16 = 4;

/// The key to memory for the peer: a steering tag, and the tagged offset at which a range begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Key {
    /// Steering tag.
    pub stag: u32,
    /// Tagged offset, bytes.
    pub to: u64,
}

/// A range of one connection's stream within a slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// The connection.
    pub conn: ConnId,
    /// Where in the connection's stream the range begins, bytes.
    pub offset: u64,
    /// Bytes; 0 if only the end of the stream is announced.
    pub len: u32,
    /// CRC32C over the range.
    pub crc: Option<u32>,
    /// The stream ends behind the range: half close.
    pub fin: bool,
    /// The connection was reset behind the range, with this code.
    pub reset: Option<u16>,
    /// Where the range may be read (pull) or written (grants of push).
    pub key: Key,
}

impl Record {
    /// Bytes of a record on the wire.
    pub const LEN: usize = 40;

    /// Where in the stream the range ends; `parse` has seen that this is a number.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.len as u64)
    }

    /// ```text
    ///  0  4  connection   4  2  flags: 1 CRC, 2 FIN, 4 RST   6  2  0   8  8  offset in the stream   16  4  bytes
    /// 20  4  CRC32C; with RST the code                      24  4  STag  28  4  0                   32  8  TO
    /// ```
    fn emit(&self, out: &mut Writer) {
        let mut flags = 0;
        let mut check = 0;
        if let Some(crc) = self.crc {
            (flags, check) = (RECORD_CRC, crc);
        }
        if let Some(code) = self.reset {
            (flags, check) = (RECORD_RST, u32::from(code));
        }
        if self.fin {
            flags |= RECORD_FIN;
        }
        out.u32(self.conn.0).u16(flags).u16(0).u64(self.offset);
        out.u32(self.len).u32(check);
        out.u32(self.key.stag).u32(0).u64(self.key.to);
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let (conn, flags, _) = (ConnId(reader.u32()?), reader.u16()?, reader.u16()?);
        let (offset, len, check) = (reader.u64()?, reader.u32()?, reader.u32()?);
        let (stag, _, to) = (reader.u32()?, reader.u32()?, reader.u64()?);
        let (crc, fin) = (flags & RECORD_CRC != 0, flags & RECORD_FIN != 0);
        let reset = flags & RECORD_RST != 0;
        if flags & !(RECORD_CRC | RECORD_FIN | RECORD_RST) != 0 {
            return Err(ParseError::Value("flag of a record"));
        }
        if reset && (fin || crc || len != 0) {
            return Err(ParseError::Value("record of a reset"));
        }
        if len == 0 && !fin && !reset {
            return Err(ParseError::Value("record of nothing"));
        }
        if offset.checked_add(u64::from(len)).is_none() {
            return Err(ParseError::Value("offset of a record"));
        }
        let code = u16::try_from(check).map_err(|_| ParseError::Value("code of a reset"));
        Ok(Self {
            conn,
            offset,
            len,
            crc: crc.then_some(check),
            fin,
            reset: reset.then_some(code).transpose()?,
            key: Key { stag, to },
        })
    }
}

/// A slab that is ready; also, with `grant`, memory that may be written, and in SLAB_PUSHED the
/// written ranges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlabAnnounce {
    /// Its number.
    pub seq: SlabSeq,
    /// No slab comes after this one.
    pub last: bool,
    /// From the consumer: ranges that the producer may write.
    pub grant: bool,
    /// The producer's clock, µs.
    pub t_us: u64,
    /// Its content, at most [`RECORDS_MAX`] records.
    pub records: Vec<Record>,
    /// The bytes of all records, one behind the other, at most [`INLINE_MAX`]: they need not be
    /// read. Empty: they are to be.
    pub inline: Vec<u8>,
}

impl SlabAnnounce {
    /// Bytes of all records.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.records.iter().map(|r| u64::from(r.len)).sum()
    }

    pub(super) fn emit(&self, out: &mut Writer) {
        let count = u16::try_from(self.records.len()).unwrap_or(u16::MAX);
        let flags = (u16::from(self.last) * SLAB_LAST)
            | (u16::from(self.grant) * SLAB_PUSH)
            | (u16::from(!self.inline.is_empty()) * SLAB_INLINE);
        let total = u32::try_from(self.total()).unwrap_or(u32::MAX);
        out.u64(self.seq.0).u16(flags).u16(count);
        out.u32(total).u64(self.t_us);
        self.records.iter().for_each(|record| record.emit(out));
        out.bytes(&self.inline);
    }

    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let (seq, flags, count) = (SlabSeq(reader.u64()?), reader.u16()?, reader.u16()?);
        let (total, t_us) = (reader.u32()?, reader.u64()?);
        let count = usize::from(count);
        if count > RECORDS_MAX {
            return Err(ParseError::TooMany("records"));
        }
        let is_inline = flags & SLAB_INLINE != 0;
        let inline = if is_inline { total as usize } else { 0 };
        if is_inline && (flags & SLAB_PUSH != 0 || !(1..=INLINE_MAX).contains(&inline)) {
            return Err(ParseError::Value("slab with inline bytes"));
        }
        if reader.remaining() < count * Record::LEN + inline {
            return Err(ParseError::Value("number of records"));
        }
        let records: Result<Vec<_>, _> = (0..count).map(|_| Record::parse(reader)).collect();
        let announce = Self {
            seq,
            last: flags & SLAB_LAST != 0,
            grant: flags & SLAB_PUSH != 0,
            t_us,
            records: records?,
            inline: reader.bytes(inline)?.to_vec(),
        };
        if announce.total() != u64::from(total) {
            return Err(ParseError::Value("total of a slab"));
        }
        Ok(announce)
    }
}

/// The outcome of a slab that is reported out of order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlabStatus {
    /// It is placed.
    Placed,
    /// It is withdrawn; nothing will touch its memory any more.
    Revoked,
}

/// Released slabs, and further credit for announcements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlabAck {
    /// All slabs before this one are done with.
    pub next: SlabSeq,
    /// Bytes that may be announced beyond `next`.
    pub window_bytes: u64,
    /// Slabs that may be announced beyond `next`.
    pub window_slabs: u16,
    /// Slabs from `next` on that are done with already.
    pub others: Vec<(SlabSeq, SlabStatus)>,
}

impl SlabAck {
    pub(super) fn emit(&self, out: &mut Writer) {
        let count = self.others.len().min(SELECTIVE_MAX);
        out.u64(self.next.0)
            .u64(self.window_bytes)
            .u16(self.window_slabs)
            .u16(u16::try_from(count).unwrap_or(u16::MAX))
            .u32(0);
        for (seq, status) in self.others.iter().take(count) {
            let status = match status {
                SlabStatus::Placed => 0,
                SlabStatus::Revoked => 1,
            };
            out.u64(seq.0).u16(status).u16(0).u32(0);
        }
    }

    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let (next, window_bytes) = (SlabSeq(reader.u64()?), reader.u64()?);
        let (window_slabs, count, _) = (reader.u16()?, reader.u16()?, reader.u32()?);
        if usize::from(count) > SELECTIVE_MAX {
            return Err(ParseError::TooMany("slabs out of order"));
        }
        let mut others = Vec::with_capacity(usize::from(count).min(reader.remaining() / 16));
        for _ in 0..count {
            let (seq, status) = (SlabSeq(reader.u64()?), reader.u16()?);
            reader.bytes(6)?;
            let status = match status {
                0 => SlabStatus::Placed,
                1 => SlabStatus::Revoked,
                _ => return Err(ParseError::Value("status of a slab")),
            };
            others.push((seq, status));
        }
        Ok(Self {
            next,
            window_bytes,
            window_slabs,
            others,
        })
    }
}
