//! MPA: start-up frames (RFC 5044 §7.1, RFC 6581 §9), Longhaul's capabilities in their private
//! data, and the arithmetic of FPDUs and markers (RFC 5044 §4).

use super::{Features, ParseError, be16, put16};

/// Bytes of a start-up frame before its private data.
pub const FRAME_LEN: usize = 20;
/// The most private data a frame carries (RFC 5044 §7.1.1).
pub const PRIVATE_DATA_MAX: usize = 512;
/// Bytes of the length field that opens an FPDU.
pub const LENGTH_LEN: usize = 2;
/// Bytes of a marker.
pub const MARKER_LEN: usize = 4;
/// A marker stands at every multiple of this many bytes of the stream.
pub const MARKER_SPACING: u64 = 512;
/// The least MULPDU (RFC 5044 §4.5).
pub const MULPDU_MIN: u32 = 128;
/// In IRD and ORD of RFC 6581: not negotiated.
pub const NOT_NEGOTIATED: u16 = 0x3fff;

const KEY_REQUEST: &[u8; 16] = b"MPA ID Req Frame";
const KEY_REPLY: &[u8; 16] = b"MPA ID Rep Frame";
const FLAG_MARKERS: u8 = 0x80;
const FLAG_CRC: u8 = 0x40;
const FLAG_REJECT: u8 = 0x20;
const FLAG_ENHANCED: u8 = 0x10;
const ENHANCED_LEN: usize = 4;

/// Which of the two frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// From the initiator.
    Request,
    /// From the responder.
    Reply,
}

/// The fixed part of a start-up frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHead {
    /// Which frame.
    pub kind: FrameKind,
    /// The sender requests markers in the stream to it.
    pub markers: bool,
    /// The sender requests CRCs in both directions.
    pub crc: bool,
    /// In a reply: the connection is refused.
    pub reject: bool,
    /// RFC 6581 data is at the start of the private data.
    pub enhanced: bool,
    /// 1 or 2.
    pub revision: u8,
    /// Bytes after the fixed part, 0..=512.
    pub private_len: u16,
}

impl FrameHead {
    /// Reads and checks the fixed part, then the part whose length it states.
    ///
    /// # Errors
    /// Another key, the key of the other role, an unknown revision, too much private data.
    pub fn parse(bytes: &[u8; FRAME_LEN], expected: FrameKind) -> Result<Self, ParseError> {
        let kind = match bytes.first_chunk::<16>() {
            Some(KEY_REQUEST) => FrameKind::Request,
            Some(KEY_REPLY) => FrameKind::Reply,
            _ => return Err(ParseError::Key),
        };
        if kind != expected {
            return Err(ParseError::Role);
        }
        let (flags, revision, private_len) = (bytes[16], bytes[17], be16(bytes, 18));
        if !(1..=2).contains(&revision) {
            return Err(ParseError::Revision(revision));
        }
        let enhanced = flags & FLAG_ENHANCED != 0 && revision == 2;
        let fits = usize::from(private_len) <= PRIVATE_DATA_MAX
            && (!enhanced || usize::from(private_len) >= ENHANCED_LEN);
        if !fits {
            return Err(ParseError::PrivateData(private_len));
        }
        Ok(Self {
            kind,
            markers: flags & FLAG_MARKERS != 0,
            crc: flags & FLAG_CRC != 0,
            reject: flags & FLAG_REJECT != 0 && kind == FrameKind::Reply,
            enhanced,
            revision,
            private_len,
        })
    }

    /// Returns the bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; FRAME_LEN] {
        let mut out = [0; FRAME_LEN];
        out[..16].copy_from_slice(match self.kind {
            FrameKind::Request => KEY_REQUEST,
            FrameKind::Reply => KEY_REPLY,
        });
        for (set, flag) in [
            (self.markers, FLAG_MARKERS),
            (self.crc, FLAG_CRC),
            (self.reject, FLAG_REJECT),
            (self.enhanced, FLAG_ENHANCED),
        ] {
            out[16] |= if set { flag } else { 0 };
        }
        out[17] = self.revision;
        put16(&mut out, 18, self.private_len);
        out
    }
}

/// Ways to make the first FPDU of a peer-to-peer connection (RFC 6581 §4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RtrKinds {
    /// A zero-length Send.
    pub send: bool,
    /// A zero-length RDMA Write.
    pub write: bool,
    /// A zero-length RDMA Read.
    pub read: bool,
}

/// The enhanced header of RFC 6581, before the private data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Enhanced {
    /// Peer to peer: the initiator opens with a ready-to-receive FPDU, of these kinds. `None` is
    /// client-server.
    pub peer_to_peer: Option<RtrKinds>,
    /// Inbound reads, 0..=0x3fff.
    pub ird: u16,
    /// Outbound reads, 0..=0x3fff.
    pub ord: u16,
}

impl Enhanced {
    /// Reads the enhanced data and returns it with the private data proper.
    ///
    /// # Errors
    /// Fewer than four bytes.
    pub fn parse(private: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let short = ParseError::Short {
            what: "enhanced start-up frame",
            len: private.len(),
        };
        let (words, rest) = private.split_at_checked(ENHANCED_LEN).ok_or(short)?;
        let (first, second) = (be16(words, 0), be16(words, 2));
        let kinds = RtrKinds {
            send: first & 0x4000 != 0,
            write: second & 0x8000 != 0,
            read: second & 0x4000 != 0,
        };
        let enhanced = Self {
            peer_to_peer: (first & 0x8000 != 0).then_some(kinds),
            ird: first & NOT_NEGOTIATED,
            ord: second & NOT_NEGOTIATED,
        };
        Ok((enhanced, rest))
    }

    /// Returns the bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; ENHANCED_LEN] {
        let kinds = self.peer_to_peer.unwrap_or_default();
        let bit = |set: bool, value: u16| if set { value } else { 0 };
        let first = bit(self.peer_to_peer.is_some(), 0x8000) | bit(kinds.send, 0x4000);
        let second = bit(kinds.write, 0x8000) | bit(kinds.read, 0x4000);
        let mut out = [0; ENHANCED_LEN];
        put16(&mut out, 0, first | self.ird & NOT_NEGOTIATED);
        put16(&mut out, 2, second | self.ord & NOT_NEGOTIATED);
        out
    }
}

/// Capabilities of a Longhaul end beyond RFC 5040, in the last bytes of the private data.
///
/// ```text
///  0  4  "RXX1"
///  4  2  capabilities: 1 atomics, 2 immediate data, 4 Send with immediate data, 8 close notice
///          ([`super::Features`])
///  6  2  largest FPDU accepted, in units of 256 bytes
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// The bits.
    pub features: Features,
    /// The largest FPDU that is accepted, in units of 256 bytes.
    pub fpdu_units: u16,
}

/// Bytes of [`Capabilities`].
pub const CAPABILITIES_LEN: usize = 8;
const CAPABILITIES_TAG: &[u8; 4] = b"RXX1";

impl Capabilities {
    /// Reads capabilities if there are any, from the end, and returns them with the private data
    /// proper.
    #[must_use]
    pub fn parse(private: &[u8]) -> (Option<Self>, &[u8]) {
        let Some((rest, octets)) = private.split_last_chunk::<CAPABILITIES_LEN>() else {
            return (None, private);
        };
        if &octets[..4] != CAPABILITIES_TAG {
            return (None, private);
        }
        let capabilities = Self {
            features: Features::parse(be16(octets, 4)),
            fpdu_units: be16(octets, 6),
        };
        (Some(capabilities), rest)
    }

    /// Returns the bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; CAPABILITIES_LEN] {
        let mut out = [0; CAPABILITIES_LEN];
        out[..4].copy_from_slice(CAPABILITIES_TAG);
        put16(&mut out, 4, self.features.emit());
        put16(&mut out, 6, self.fpdu_units);
        out
    }

    /// Returns the common capabilities.
    #[must_use]
    pub fn common(self, other: Self) -> Self {
        Self {
            features: self.features.common(other.features),
            fpdu_units: self.fpdu_units.min(other.fpdu_units),
        }
    }
}

/// Returns the bytes of padding after a ULPDU of `ulpdu` bytes.
#[must_use]
pub const fn pad_len(ulpdu: u32) -> u32 {
    2_u32.wrapping_add(ulpdu).wrapping_neg() & 3
}

/// Returns the longest ULPDU whose FPDU fits a segment of `emss` bytes (RFC 5044 §4.5), not more
/// than DDP may send.
#[must_use]
pub fn mulpdu(emss: u32, markers: bool) -> u32 {
    let overhead = if markers {
        6 + 4 * emss.div_ceil(512) + emss % 4
    } else {
        6 + emss % 4
    };
    let mulpdu = emss.saturating_sub(overhead);
    mulpdu.clamp(MULPDU_MIN, super::ddp::ULPDU_MAX)
}

/// Makes a marker that stands `fpdu_offset` bytes after the start of its FPDU (RFC 5044 §4.3).
#[must_use]
pub fn marker(fpdu_offset: u16) -> [u8; MARKER_LEN] {
    let [high, low] = fpdu_offset.to_be_bytes();
    [0, 0, high, low]
}

/// Returns the value of a marker: bytes since the start of its FPDU. The reserved half and the two
/// lowest bits are ignored.
#[must_use]
pub const fn parse_marker(marker: [u8; MARKER_LEN]) -> u16 {
    u16::from_be_bytes([marker[2], marker[3]]) & !3
}
