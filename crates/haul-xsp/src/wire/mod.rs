//! XSP version 2: bytes to meaning and back. Every `parse` checks each length once; what it
//! returns needs no further check of form. Values (offsets, credits, sequence numbers) are for the
//! state machines to judge.
//!
//! [`Header`] and [`Pdu`] what a control connection carries · `tlv` the elements behind the fixed
//! parts · `hop` hops, protocols, parameters, endpoints · `first` requests for connections ·
//! `metadata` what applications declare · `slab` announcements and their answers.
//! Layouts: docs/protocol/xsp.md.

mod code;
mod codec;
mod error;
mod first;
mod hop;
mod metadata;
mod pdu;
mod slab;

pub use code::{AuthMethod, NackStatus, PathAction, PathState};
pub use codec::{DEPTH_MAX, TLVS_MAX};
pub use error::ParseError;
pub use first::{EARLY_MAX, FIRSTS_MAX, First};
pub use hop::{Address, Endpoint, HOPS_MAX, Hop, HopFlags, Mode, Params, Proto, ProtoOffer};
pub use metadata::{
    METADATA_KEY_MAX, METADATA_PAIRS_MAX, METADATA_RESERVED, METADATA_VALUE_MAX, Metadata,
    MetadataError,
};
pub use pdu::{ChanParams, Claim, ConnState, Pdu, SessAck, SessOpen, TEXT_MAX, TICKET_LEN};
pub use slab::{INLINE_MAX, Key, RECORDS_MAX, Record, SlabAck, SlabAnnounce, SlabStatus};

use codec::Reader;
pub(crate) use hop::cut;

use crate::SessionId;

/// Bytes of the header of a PDU.
pub const HEADER_LEN: usize = 32;
/// Most bytes of a body (part B1).
pub const BODY_MAX: usize = 1 << 20;
/// The first byte of every PDU.
pub const VERSION: u8 = 2;

/// The version that this end speaks: [`VERSION`], or the next one in tests.
pub(crate) fn version() -> u8 {
    #[cfg(debug_assertions)]
    if crate::next::is_incompatible() {
        return VERSION + 1;
    }
    VERSION
}

/// Flag of a PDU that answers another.
pub const FLAG_RESP: u8 = 0x80;
/// Flag of a PDU whose channel is the CRC32C of the PDU with zeros there.
pub const FLAG_CHECK: u8 = 0x40;
/// Flag of a PDU that a reader ignores if it does not know the type.
pub const FLAG_OPTIONAL: u8 = 0x20;

/// The version of a peer, by its first byte. Versions 0 and 1 are for [`crate::v1`].
#[must_use]
pub const fn detect(first: u8) -> Option<u8> {
    match first {
        0..=VERSION => Some(first),
        _ => None,
    }
}

/// The first 32 bytes of a PDU.
///
/// ```text
///  0   1  version, 2           1   1  flags          2   2  type       4   4  bytes of the body
///  8  16  session             24   4  channel, 0 is the session's own control       28   4  sequence number
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// [`FLAG_RESP`], [`FLAG_CHECK`], [`FLAG_OPTIONAL`] and flags that are not used yet.
    pub flags: u8,
    /// Type of the PDU.
    pub kind: u16,
    /// Bytes of the body, at most [`BODY_MAX`].
    pub len: u32,
    /// The session.
    pub session: SessionId,
    /// The channel it belongs to; 0 is the session's control. With [`FLAG_CHECK`]: the check.
    pub chan: u32,
    /// One more for every PDU of a direction of a control connection, from 1.
    pub seq: u32,
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// Another version, or a body beyond [`BODY_MAX`].
    pub fn parse(octets: &[u8; HEADER_LEN]) -> Result<Self, ParseError> {
        let mut reader = Reader::new(octets, "header");
        let version = reader.u8()?;
        if version != self::version() {
            return Err(ParseError::Version(version));
        }
        let header = Self {
            flags: reader.u8()?,
            kind: reader.u16()?,
            len: reader.u32()?,
            session: SessionId(reader.array()?),
            chan: reader.u32()?,
            seq: reader.u32()?,
        };
        if header.len as usize > BODY_MAX {
            return Err(ParseError::Body(header.len));
        }
        Ok(header)
    }

    /// Writes it.
    #[must_use]
    pub fn emit(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        (out[0], out[1]) = (version(), self.flags);
        out[2..4].copy_from_slice(&self.kind.to_be_bytes());
        out[4..8].copy_from_slice(&self.len.to_be_bytes());
        out[8..24].copy_from_slice(&self.session.0);
        out[24..28].copy_from_slice(&self.chan.to_be_bytes());
        out[28..].copy_from_slice(&self.seq.to_be_bytes());
        out
    }
}
