//! Bytes to meaning and back. Every `parse` checks its lengths once; what it returns needs no
//! further check of form. Values (tags, offsets, sequence numbers) are for the state machines to
//! judge.
//!
//! [`mpa`] start-up frames, padding and markers (RFC 5044, RFC 6581) · [`ddp`] segment headers (RFC
//! 5041) · [`rdmap`] operations (RFC 5040, RFC 7306) · [`hello`] what replaces MPA's start-up over
//! messages · [`TermCode`] why a Terminate was sent.

pub mod ddp;
pub mod hello;
pub mod mpa;
pub mod rdmap;
mod term;

pub use term::TermCode;

/// Capabilities of an end beyond RFC 5040, as bits in both ends' start-up messages. Unknown bits
/// are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// 1: RFC 7306 atomics.
    pub atomics: bool,
    /// 2: RFC 7306 immediate data.
    pub immediate: bool,
    /// 4: immediate data with the payload of a Send ([`rdmap::Opcode::SendImmediate`]), which no
    /// RFC has.
    pub send_immediate: bool,
    /// 8: over streams, a close notice precedes the end of a stream that is in order
    /// ([`TermCode::CLOSE_NOTICE`]).
    pub close_notice: bool,
    /// 16: over messages, segments have no CRC, because the lower layer authenticates them.
    pub no_crc: bool,
}

impl Features {
    /// All that this implementation has, whatever the lower layer is.
    pub const ALL: Self = Self {
        atomics: true,
        immediate: true,
        send_immediate: true,
        close_notice: true,
        no_crc: false,
    };

    pub(crate) const fn parse(bits: u16) -> Self {
        Self {
            atomics: bits & 1 != 0,
            immediate: bits & 2 != 0,
            send_immediate: bits & 4 != 0,
            close_notice: bits & 8 != 0,
            no_crc: bits & 16 != 0,
        }
    }

    pub(crate) fn emit(self) -> u16 {
        u16::from(self.atomics)
            | u16::from(self.immediate) << 1
            | u16::from(self.send_immediate) << 2
            | u16::from(self.close_notice) << 3
            | u16::from(self.no_crc) << 4
    }

    /// Returns the common capabilities.
    #[must_use]
    pub const fn common(self, other: Self) -> Self {
        Self {
            atomics: self.atomics && other.atomics,
            immediate: self.immediate && other.immediate,
            send_immediate: self.send_immediate && other.send_immediate,
            close_notice: self.close_notice && other.close_notice,
            no_crc: self.no_crc && other.no_crc,
        }
    }
}

/// Why bytes cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Too short for its kind.
    #[error("{len} bytes are too few for a {what}")]
    Short {
        /// The kind of header or message.
        what: &'static str,
        /// Its length.
        len: usize,
    },
    /// Not the length that it must have.
    #[error("a {what} of {len} bytes")]
    Length {
        /// The kind of header or message.
        what: &'static str,
        /// Its length.
        len: usize,
    },
    /// The key of an MPA frame, or the magic of a hello, is another one.
    #[error("this is not a start-up frame")]
    Key,
    /// A frame of the role that this end has itself.
    #[error("both ends take the same role")]
    Role,
    /// A revision of MPA, or a version of the hello, that does not exist.
    #[error("unknown revision {0}")]
    Revision(u8),
    /// More private data than the protocol allows, or less than its flags promise.
    #[error("private data of {0} bytes")]
    PrivateData(u16),
    /// Not DDP version 1.
    #[error("DDP version {version}")]
    DdpVersion {
        /// The version found.
        version: u8,
        /// Whether the segment is tagged.
        tagged: bool,
    },
    /// Not RDMAP version 1.
    #[error("RDMAP version {0}")]
    RdmapVersion(u8),
    /// An opcode that RDMAP does not have.
    #[error("RDMAP opcode {0:#x}")]
    Opcode(u8),
    /// An atomic operation that RFC 7306 does not have.
    #[error("atomic operation {0}")]
    AtomicOp(u8),
}

/// Sixteen bits at `at`; callers have checked the length.
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from(be16(bytes, at)) << 16 | u32::from(be16(bytes, at + 2))
}

pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}

pub(crate) fn put16(out: &mut [u8], at: usize, value: u16) {
    out[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

pub(crate) fn put32(out: &mut [u8], at: usize, value: u32) {
    out[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

pub(crate) fn put64(out: &mut [u8], at: usize, value: u64) {
    out[at..at + 8].copy_from_slice(&value.to_be_bytes());
}
