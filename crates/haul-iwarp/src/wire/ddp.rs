//! DDP segment headers (RFC 5041 §4).

use super::{ParseError, be32, be64, put32, put64};
use crate::stag::Stag;

/// Bytes of a tagged header.
pub const TAGGED_LEN: usize = 14;
/// Bytes of an untagged header.
pub const UNTAGGED_LEN: usize = 18;
/// The longest ULPDU that DDP may hand to MPA (RFC 5044 §3).
pub const ULPDU_MAX: u32 = 64_768;

/// Queue of the Send family and of Immediate Data (RFC 5040 §4.3).
pub const QN_SEND: u32 = 0;
/// Queue of Read Requests and Atomic Requests.
pub const QN_READ: u32 = 1;
/// Queue of Terminate.
pub const QN_TERMINATE: u32 = 2;
/// Queue of Atomic Responses (RFC 7306 §5.2).
pub const QN_ATOMIC: u32 = 3;

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;
const VERSION_MASK: u8 = 0x03;
const VERSION: u8 = 1;

/// The header of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Last segment of its message.
    pub last: bool,
    /// The byte that belongs to RDMAP.
    pub control: u8,
    /// Where the payload belongs.
    pub model: Model,
}

/// The two buffer models of DDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Model {
    /// The sender names the memory.
    Tagged {
        /// The tag.
        stag: Stag,
        /// Tagged offset.
        to: u64,
    },
    /// The receiver has a queue of buffers.
    Untagged {
        /// 32 bits for RDMAP: the tag that a Send with Invalidate names.
        ulp: u32,
        /// Queue number.
        qn: u32,
        /// Message sequence number; the first is 1.
        msn: u32,
        /// Message offset.
        mo: u32,
    },
}

impl Header {
    /// Returns the length, in bytes, of the header that starts with `control`.
    #[must_use]
    pub const fn len_of(control: u8) -> usize {
        if control & TAGGED != 0 {
            TAGGED_LEN
        } else {
            UNTAGGED_LEN
        }
    }

    /// Returns the length of this header, in bytes.
    #[must_use]
    pub const fn wire_len(&self) -> usize {
        match self.model {
            Model::Tagged { .. } => TAGGED_LEN,
            Model::Untagged { .. } => UNTAGGED_LEN,
        }
    }

    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// Too short, or another version. Reserved bits are ignored (RFC 5041 §4.2).
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let short = ParseError::Short {
            what: "DDP header",
            len: bytes.len(),
        };
        let first = *bytes.first().ok_or(short)?;
        if bytes.len() < Self::len_of(first) {
            return Err(short);
        }
        let tagged = first & TAGGED != 0;
        let version = first & VERSION_MASK;
        if version != VERSION {
            return Err(ParseError::DdpVersion { version, tagged });
        }
        let model = if tagged {
            Model::Tagged {
                stag: Stag(be32(bytes, 2)),
                to: be64(bytes, 6),
            }
        } else {
            Model::Untagged {
                ulp: be32(bytes, 2),
                qn: be32(bytes, 6),
                msn: be32(bytes, 10),
                mo: be32(bytes, 14),
            }
        };
        Ok(Self {
            last: first & LAST != 0,
            control: bytes[1],
            model,
        })
    }

    /// Writes the header to the start of `out`, which has room for [`UNTAGGED_LEN`]; returns its
    /// bytes.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        out[0] = VERSION | if self.last { LAST } else { 0 };
        out[1] = self.control;
        match self.model {
            Model::Tagged { stag, to } => {
                out[0] |= TAGGED;
                put32(out, 2, stag.0);
                put64(out, 6, to);
            }
            Model::Untagged { ulp, qn, msn, mo } => {
                put32(out, 2, ulp);
                put32(out, 6, qn);
                put32(out, 10, msn);
                put32(out, 14, mo);
            }
        }
        self.wire_len()
    }

    /// Advances the header at the start of `octets` in its message.
    pub(crate) fn advance(octets: &mut [u8], by: u32) {
        if octets[0] & TAGGED != 0 {
            put64(octets, 6, be64(octets, 6).wrapping_add(by.into()));
        } else {
            put32(octets, 14, be32(octets, 14).wrapping_add(by));
        }
    }
}
