//! DATA: a DDP segment behind the shim. Several fields are in both the shim and the DDP header; the
//! parser requires that they agree.
//!
//! EXT words, in this order: RD has the time at which the packet was sent, in microseconds; then
//! come the operation's: two words of immediate data (Write-Record with immediate), or pairs of
//! offset and length (Read Request: the requested ranges; none means all).

use super::{EXT_WORDS_MAX, Ext, Flags, Kind, Psn, Reject, SHIM_LEN, Shim};
use crate::wire::ddp::{self, Header, Model};
use crate::wire::{put32, rdmap};

/// Bytes of the longest header of DATA: shim, EXT, DDP header, and the payload of a request, which
/// the core writes.
pub const DATA_HEADER_MAX: usize =
    SHIM_LEN + 4 * EXT_WORDS_MAX + ddp::UNTAGGED_LEN + rdmap::ATOMIC_REQUEST_LEN;

const CONTROL_VERSION: u8 = 0x40;
const WRITE_RECORD: u8 = 0xc;
const WRITE_RECORD_IMMEDIATE: u8 = 0xd;

/// The operations: RDMAP's, and two that only exist behind the shim, with opcodes that RDMAP
/// reserves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// RFC 5040, RFC 7306.
    Rdmap(rdmap::Opcode),
    /// Write-Record.
    WriteRecord,
    /// Write-Record with eight bytes of immediate data, in every segment.
    WriteRecordImmediate,
}

impl Opcode {
    fn parse(control: u8) -> Result<Self, Reject> {
        match control {
            0x4c => Ok(Self::WriteRecord),
            0x4d => Ok(Self::WriteRecordImmediate),
            _ => rdmap::Opcode::parse(control)
                .map(Self::Rdmap)
                .map_err(|_| Reject::Malformed("RDMAP version or opcode")),
        }
    }

    const fn emit(self) -> u8 {
        match self {
            Self::Rdmap(opcode) => opcode.emit(),
            Self::WriteRecord => CONTROL_VERSION | WRITE_RECORD,
            Self::WriteRecordImmediate => CONTROL_VERSION | WRITE_RECORD_IMMEDIATE,
        }
    }

    /// Returns the queue of an untagged operation (RFC 5040 §4.3); none is tagged.
    #[must_use]
    pub const fn queue(self) -> Option<u32> {
        match self {
            Self::WriteRecord
            | Self::WriteRecordImmediate
            | Self::Rdmap(rdmap::Opcode::Write | rdmap::Opcode::ReadResponse) => None,
            Self::Rdmap(rdmap::Opcode::ReadRequest | rdmap::Opcode::AtomicRequest) => {
                Some(ddp::QN_READ)
            }
            Self::Rdmap(rdmap::Opcode::AtomicResponse) => Some(ddp::QN_ATOMIC),
            Self::Rdmap(rdmap::Opcode::Terminate) => Some(ddp::QN_TERMINATE),
            Self::Rdmap(_) => Some(ddp::QN_SEND),
        }
    }

    const fn is_response(self) -> bool {
        matches!(
            self,
            Self::Rdmap(rdmap::Opcode::ReadResponse | rdmap::Opcode::AtomicResponse)
        )
    }
}

/// A DDP segment that agrees with its shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment<'a> {
    /// The operation.
    pub opcode: Opcode,
    /// Where the payload belongs. Untagged: queue, number and offset agree with operation and shim.
    /// Tagged: neither the message's base nor its end wraps.
    pub model: Model,
    /// RD: when the packet was sent, microseconds of the sender's clock.
    pub timestamp: Option<u32>,
    /// The operation's EXT words: two, an even number, or none, as it needs.
    pub ext: Ext<'a>,
    /// The data.
    pub payload: &'a [u8],
}

impl<'a> Segment<'a> {
    pub(super) fn parse(shim: &Shim, ext: Ext<'a>, octets: &'a [u8]) -> Result<Self, Reject> {
        let header = Header::parse(octets).map_err(|_| Reject::Malformed("DDP header"))?;
        let payload = &octets[header.wire_len()..];
        let opcode = Opcode::parse(header.control)?;
        check_extent(shim, header.last, payload.len())?;
        check_model(shim, opcode, header.model)?;
        let (timestamp, ext) = if shim.flags.contains(Flags::RD) {
            let sent = ext.word(0).ok_or(Reject::Malformed("no timestamp"))?;
            (Some(sent), ext.from(1))
        } else {
            (None, ext)
        };
        let fits = match opcode {
            Opcode::WriteRecordImmediate => ext.len() == 2,
            Opcode::Rdmap(rdmap::Opcode::ReadRequest) => ext.len().is_multiple_of(2),
            _ => ext.is_empty(),
        };
        if !fits {
            return Err(Reject::Malformed("EXT words"));
        }
        Ok(Self {
            opcode,
            model: header.model,
            timestamp,
            ext,
            payload,
        })
    }

    /// Returns the immediate data of a Write-Record that has some.
    #[must_use]
    pub fn immediate(&self) -> Option<u64> {
        if self.opcode != Opcode::WriteRecordImmediate {
            return None;
        }
        let (high, low) = (self.ext.word(0)?, self.ext.word(1)?);
        Some(u64::from(high) << 32 | u64::from(low))
    }
}

/// The extent of the segment by the shim and the DDP header.
fn check_extent(shim: &Shim, last: bool, payload: usize) -> Result<(), Reject> {
    let end = u64::from(shim.seg_off) + payload as u64;
    if end > u64::from(shim.msg_len) {
        return Err(Reject::Malformed("beyond the message"));
    }
    if payload == 0 && shim.msg_len != 0 {
        return Err(Reject::Malformed("empty segment"));
    }
    let is_last = end == u64::from(shim.msg_len);
    if last != is_last || shim.flags.contains(Flags::LAST) != is_last {
        return Err(Reject::Malformed("last segment"));
    }
    if shim.flags.contains(Flags::TAILDUP) && !is_last {
        return Err(Reject::Malformed("copy of a segment that is not the last"));
    }
    Ok(())
}

fn check_model(shim: &Shim, opcode: Opcode, model: Model) -> Result<(), Reject> {
    if shim.flags.contains(Flags::RESP) != opcode.is_response() {
        return Err(Reject::Malformed("response"));
    }
    let agrees = match model {
        Model::Untagged { qn, msn, mo, .. } => {
            opcode.queue() == Some(qn) && msn == shim.msg_id.0 && mo == shim.seg_off
        }
        Model::Tagged { to, .. } => {
            opcode.queue().is_none()
                && to
                    .checked_sub(u64::from(shim.seg_off))
                    .and_then(|base| base.checked_add(u64::from(shim.msg_len)))
                    .is_some()
        }
    };
    if agrees {
        Ok(())
    } else {
        Err(Reject::Malformed("DDP header and shim disagree"))
    }
}

/// The bytes before the payload of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataHeader<'a> {
    /// The shim; its kind is [`Kind::Data`], and [`Flags::LAST`] goes to the DDP header as well.
    pub shim: Shim,
    /// EXT words, [`EXT_WORDS_MAX`] at most.
    pub ext: &'a [u32],
    /// The operation.
    pub opcode: Opcode,
    /// Where the data belongs.
    pub model: Model,
}

impl DataHeader<'_> {
    /// Writes the header to the start of `out`, which has room for [`DATA_HEADER_MAX`]; returns its
    /// bytes. The CRC is over these and the data.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        debug_assert_eq!(self.shim.kind, Kind::Data);
        self.shim.emit(self.ext.len(), out);
        let mut at = SHIM_LEN;
        for word in self.ext {
            put32(out, at, *word);
            at += 4;
        }
        let header = Header {
            last: self.shim.flags.contains(Flags::LAST),
            control: self.opcode.emit(),
            model: self.model,
        };
        at + header.emit(&mut out[at..])
    }

    /// Advances the header in `octets` to the segment `by` bytes later in the same message.
    pub(crate) fn advance(octets: &mut [u8], psn: Psn, by: u32) {
        Shim::advance(octets, psn, by);
        let at = Shim::len_with_ext(octets);
        Header::advance(&mut octets[at..], by);
    }
}
