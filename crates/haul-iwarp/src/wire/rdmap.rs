//! RDMAP operations (RFC 5040 §4, RFC 7306).

use super::TermCode;
use super::{ParseError, be16, be32, be64, ddp, put16, put32, put64};
use crate::stag::Stag;

/// Bytes of a Read Request's payload.
pub const READ_REQUEST_LEN: usize = 28;
/// Bytes of an Atomic Request's payload.
pub const ATOMIC_REQUEST_LEN: usize = 52;
/// Bytes of an Atomic Response's payload.
pub const ATOMIC_RESPONSE_LEN: usize = 12;
/// Bytes of Immediate Data.
pub const IMMEDIATE_LEN: usize = 8;
/// Bytes of the longest Terminate: control, segment length, DDP header, Read Request.
pub const TERMINATE_LEN_MAX: usize = 6 + ddp::UNTAGGED_LEN + READ_REQUEST_LEN;

const VERSION: u8 = 0x40;
const VERSION_MASK: u8 = 0xc0;
const OPCODE_MASK: u8 = 0x0f;

/// The operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// RDMA Write.
    Write = 0x0,
    /// RDMA Read Request.
    ReadRequest = 0x1,
    /// RDMA Read Response.
    ReadResponse = 0x2,
    /// Send.
    Send = 0x3,
    /// Send with Invalidate.
    SendInvalidate = 0x4,
    /// Send with Solicited Event.
    SendSolicited = 0x5,
    /// Send with Solicited Event and Invalidate.
    SendSolicitedInvalidate = 0x6,
    /// Terminate.
    Terminate = 0x7,
    /// Immediate Data (RFC 7306 §6).
    Immediate = 0x8,
    /// Immediate Data with Solicited Event.
    ImmediateSolicited = 0x9,
    /// Atomic Request (RFC 7306 §5).
    AtomicRequest = 0xa,
    /// Atomic Response.
    AtomicResponse = 0xb,
    /// Send with immediate data: a Send whose ULP field (RFC 5041 §4.3) holds it. Reserved by
    /// RDMAP, for peers that have agreed on it ([`super::Features::send_immediate`]); 0xc and 0xd
    /// are taken behind the datagram shim.
    SendImmediate = 0xe,
    /// Send with immediate data and Solicited Event.
    SendSolicitedImmediate = 0xf,
}

impl Opcode {
    /// Reads RDMAP's control byte.
    ///
    /// # Errors
    /// Another version, or an opcode that is reserved. Reserved bits are ignored.
    pub const fn parse(control: u8) -> Result<Self, ParseError> {
        if control & VERSION_MASK != VERSION {
            return Err(ParseError::RdmapVersion(control >> 6));
        }
        Ok(match control & OPCODE_MASK {
            0x0 => Self::Write,
            0x1 => Self::ReadRequest,
            0x2 => Self::ReadResponse,
            0x3 => Self::Send,
            0x4 => Self::SendInvalidate,
            0x5 => Self::SendSolicited,
            0x6 => Self::SendSolicitedInvalidate,
            0x7 => Self::Terminate,
            0x8 => Self::Immediate,
            0x9 => Self::ImmediateSolicited,
            0xa => Self::AtomicRequest,
            0xb => Self::AtomicResponse,
            0xe => Self::SendImmediate,
            0xf => Self::SendSolicitedImmediate,
            reserved => return Err(ParseError::Opcode(reserved)),
        })
    }

    /// Makes the Send with these properties.
    #[must_use]
    pub const fn send(solicited: bool, invalidates: bool) -> Self {
        match (solicited, invalidates) {
            (false, false) => Self::Send,
            (false, true) => Self::SendInvalidate,
            (true, false) => Self::SendSolicited,
            (true, true) => Self::SendSolicitedInvalidate,
        }
    }

    /// Makes the Immediate Data with this property.
    #[must_use]
    pub const fn immediate(solicited: bool) -> Self {
        if solicited {
            Self::ImmediateSolicited
        } else {
            Self::Immediate
        }
    }

    /// Returns whether it is a message of the Send family that asks for the peer to be woken.
    #[must_use]
    pub const fn is_solicited(self) -> bool {
        matches!(
            self,
            Self::SendSolicited
                | Self::SendSolicitedInvalidate
                | Self::SendSolicitedImmediate
                | Self::ImmediateSolicited
        )
    }

    /// Returns RDMAP's control byte.
    #[must_use]
    pub const fn emit(self) -> u8 {
        VERSION | self as u8
    }

    /// Returns the bytes of the operation's own header after the DDP header, at most `payload`:
    /// what the core has to see.
    #[must_use]
    pub fn header_len(control: u8, payload: usize) -> usize {
        let own = match Self::parse(control) {
            Ok(Self::ReadRequest) => READ_REQUEST_LEN,
            Ok(Self::AtomicRequest) => ATOMIC_REQUEST_LEN,
            Ok(Self::AtomicResponse) => ATOMIC_RESPONSE_LEN,
            Ok(Self::Immediate | Self::ImmediateSolicited) => IMMEDIATE_LEN,
            Ok(Self::Terminate) => TERMINATE_LEN_MAX,
            _ => 0,
        };
        own.min(payload)
    }
}

/// The payload of a Read Request (RFC 5040 §4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRequest {
    /// The requester's sink: its own tag, which the response repeats.
    pub sink: Stag,
    /// Tagged offset there.
    pub sink_to: u64,
    /// Bytes.
    pub len: u32,
    /// The source of the read.
    pub source: Stag,
    /// Tagged offset there.
    pub source_to: u64,
}

impl ReadRequest {
    /// # Errors
    /// Not 28 bytes.
    pub fn parse(payload: &[u8]) -> Result<Self, ParseError> {
        exactly("Read Request", payload, READ_REQUEST_LEN)?;
        Ok(Self {
            sink: Stag(be32(payload, 0)),
            sink_to: be64(payload, 4),
            len: be32(payload, 12),
            source: Stag(be32(payload, 16)),
            source_to: be64(payload, 20),
        })
    }

    /// Returns the bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; READ_REQUEST_LEN] {
        let mut out = [0; READ_REQUEST_LEN];
        put32(&mut out, 0, self.sink.0);
        put64(&mut out, 4, self.sink_to);
        put32(&mut out, 12, self.len);
        put32(&mut out, 16, self.source.0);
        put64(&mut out, 20, self.source_to);
        out
    }

    /// Returns the request with its first `done` bytes answered (RFC 5040 §4.8).
    #[must_use]
    pub const fn advanced(mut self, done: u32) -> Self {
        self.sink_to = self.sink_to.wrapping_add(done as u64);
        self.source_to = self.source_to.wrapping_add(done as u64);
        self.len -= done;
        self
    }
}

/// An atomic operation on a 64-bit word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomicOp {
    /// Adds. Each bit of the mask is the top bit of a field, out of which nothing is carried; zero
    /// is one field.
    FetchAdd {
        /// The addend.
        add: u64,
        /// The tops of the fields.
        mask: u64,
    },
    /// Replaces the bits of `swap_mask`, if the bits of `compare_mask` are those of `compare`.
    CmpSwap {
        /// The value to store.
        swap: u64,
        /// Which of its bits.
        swap_mask: u64,
        /// The value to compare with.
        compare: u64,
        /// Which of its bits.
        compare_mask: u64,
    },
}

impl AtomicOp {
    /// Returns the value that replaces `original` (RFC 7306 §5.1).
    #[must_use]
    pub const fn apply(self, original: u64) -> u64 {
        match self {
            Self::FetchAdd { add, mask } => masked_add(original, add, mask),
            Self::CmpSwap {
                swap,
                swap_mask,
                compare,
                compare_mask,
            } => {
                if (compare ^ original) & compare_mask == 0 {
                    (original & !swap_mask) | (swap & swap_mask)
                } else {
                    original
                }
            }
        }
    }
}

/// Adds in fields whose top bits are `mask`: without the top bits a sum carries into the top bit of
/// its field at most, and the top bit itself is an exclusive or.
const fn masked_add(a: u64, b: u64, mask: u64) -> u64 {
    let low = (a & !mask).wrapping_add(b & !mask);
    low ^ ((a ^ b) & mask)
}

/// The payload of an Atomic Request (RFC 7306 §5.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicRequest {
    /// Repeated by the response.
    pub id: u32,
    /// The tag of the word.
    pub stag: Stag,
    /// Tagged offset of the word.
    pub to: u64,
    /// The operation.
    pub op: AtomicOp,
}

const AOP_FETCH_ADD: u32 = 0;
const AOP_CMP_SWAP: u32 = 2;

impl AtomicRequest {
    /// # Errors
    /// Not 52 bytes, or an operation that RFC 7306 does not have.
    pub fn parse(payload: &[u8]) -> Result<Self, ParseError> {
        exactly("Atomic Request", payload, ATOMIC_REQUEST_LEN)?;
        let (data, mask) = (be64(payload, 20), be64(payload, 28));
        let op = match be32(payload, 0) & 0xf {
            AOP_FETCH_ADD => AtomicOp::FetchAdd { add: data, mask },
            AOP_CMP_SWAP => AtomicOp::CmpSwap {
                swap: data,
                swap_mask: mask,
                compare: be64(payload, 36),
                compare_mask: be64(payload, 44),
            },
            _ => return Err(ParseError::AtomicOp(payload[3] & 0xf)),
        };
        Ok(Self {
            id: be32(payload, 4),
            stag: Stag(be32(payload, 8)),
            to: be64(payload, 12),
            op,
        })
    }

    /// Returns the bytes; fields that the operation does not use are zero, their masks all ones.
    #[must_use]
    pub fn emit(&self) -> [u8; ATOMIC_REQUEST_LEN] {
        let (aop, data, mask, compare, compare_mask) = match self.op {
            AtomicOp::FetchAdd { add, mask } => (AOP_FETCH_ADD, add, mask, 0, u64::MAX),
            AtomicOp::CmpSwap {
                swap,
                swap_mask,
                compare,
                compare_mask,
            } => (AOP_CMP_SWAP, swap, swap_mask, compare, compare_mask),
        };
        let mut out = [0; ATOMIC_REQUEST_LEN];
        put32(&mut out, 0, aop);
        put32(&mut out, 4, self.id);
        put32(&mut out, 8, self.stag.0);
        put64(&mut out, 12, self.to);
        put64(&mut out, 20, data);
        put64(&mut out, 28, mask);
        put64(&mut out, 36, compare);
        put64(&mut out, 44, compare_mask);
        out
    }
}

/// The payload of an Atomic Response (RFC 7306 §5.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicResponse {
    /// From the request.
    pub id: u32,
    /// The word as it was.
    pub original: u64,
}

impl AtomicResponse {
    /// # Errors
    /// Not 12 bytes.
    pub fn parse(payload: &[u8]) -> Result<Self, ParseError> {
        exactly("Atomic Response", payload, ATOMIC_RESPONSE_LEN)?;
        Ok(Self {
            id: be32(payload, 0),
            original: be64(payload, 4),
        })
    }

    /// Returns the bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; ATOMIC_RESPONSE_LEN] {
        let mut out = [0; ATOMIC_RESPONSE_LEN];
        put32(&mut out, 0, self.id);
        put64(&mut out, 4, self.original);
        out
    }
}

/// Reads Immediate Data.
///
/// # Errors
/// Not 8 bytes.
pub fn parse_immediate(payload: &[u8]) -> Result<u64, ParseError> {
    exactly("Immediate Data", payload, IMMEDIATE_LEN)?;
    Ok(be64(payload, 0))
}

fn exactly(what: &'static str, payload: &[u8], len: usize) -> Result<(), ParseError> {
    if payload.len() == len {
        return Ok(());
    }
    Err(ParseError::Length {
        what,
        len: payload.len(),
    })
}

/// The payload of a Terminate (RFC 5040 §4.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terminate {
    /// Layer, type and code of the error.
    pub code: TermCode,
    /// Bytes of the segment to blame: bits M and D.
    pub segment_len: Option<u16>,
    /// DDP header of the segment to blame, as it came; needs `segment_len`. Of a tagged header the
    /// last four are unused.
    pub header: Option<[u8; ddp::UNTAGGED_LEN]>,
    /// The header of the Read Request at fault: bit R.
    pub read: Option<ReadRequest>,
}

const TERM_M: u8 = 0x80;
const TERM_D: u8 = 0x40;
const TERM_R: u8 = 0x20;
const TERM_FLAGS: u8 = TERM_M | TERM_D | TERM_R;

impl Terminate {
    /// Creates a Terminate with a code and no headers.
    #[must_use]
    pub const fn bare(code: TermCode) -> Self {
        Self {
            code,
            segment_len: None,
            header: None,
            read: None,
        }
    }

    /// Reads as much as is there: a Terminate is never refused, as it ends the stream in any case.
    /// On little-endian hosts, siw swaps the two halves of the first byte and sets the lowest bits
    /// of the third; these bits identify it.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Self {
        let octet = |at: usize| payload.get(at).copied().unwrap_or(0);
        let swapped = octet(2) & TERM_FLAGS == 0 && octet(2) != 0;
        let straight = TermCode::new(octet(0) >> 4, octet(0) & 0xf, octet(1));
        let turned = TermCode::new(octet(0) & 0xf, octet(0) >> 4, octet(1));
        if swapped || !straight.is_known_layer() && turned.is_known_layer() {
            return Self::bare(turned);
        }
        let mut terminate = Self::bare(straight);
        if octet(2) & TERM_D == 0 || payload.len() < 6 {
            return terminate;
        }
        let header_len = ddp::Header::len_of(octet(6));
        if let Some((octets, rest)) = payload[6..].split_at_checked(header_len) {
            let mut header = [0; ddp::UNTAGGED_LEN];
            header[..header_len].copy_from_slice(octets);
            terminate.segment_len = Some(be16(payload, 4));
            terminate.header = Some(header);
            if octet(2) & TERM_R != 0
                && let Some(request) = rest.get(..READ_REQUEST_LEN)
            {
                terminate.read = ReadRequest::parse(request).ok();
            }
        }
        terminate
    }

    /// Writes the bytes to the start of `out`, which has room for [`TERMINATE_LEN_MAX`]; returns
    /// how many.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        out[0] = self.code.layer << 4 | self.code.etype & 0xf;
        out[1] = self.code.code;
        (out[2], out[3]) = (0, 0);
        let (Some(len), Some(header)) = (self.segment_len, &self.header) else {
            return 4;
        };
        out[2] = TERM_M | TERM_D;
        put16(out, 4, len);
        let header_len = ddp::Header::len_of(header[0]);
        let mut end = 6 + header_len;
        out[6..end].copy_from_slice(&header[..header_len]);
        if let Some(read) = &self.read {
            out[2] |= TERM_R;
            out[end..end + READ_REQUEST_LEN].copy_from_slice(&read.emit());
            end += READ_REQUEST_LEN;
        }
        end
    }
}
