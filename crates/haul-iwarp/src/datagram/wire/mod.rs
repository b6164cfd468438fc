//! Octets of datagrams to meaning and back (docs/protocol/datagram.md).
//!
//! ```text
//!   SHIM 32 | EXT 4*n | DDP segment: header 14 or 18, data | CRC32C 4      DATA
//!   SHIM 32 | EXT 4*n | body                               | CRC32C 4      everything else
//! ```
//! [`Datagram::open`] checks the CRC and then everything that needs no state; what it returns needs
//! no further check of form. [`DataHeader`] and [`Body::emit`] write. `shim` the 32 octets ·
//! `segment` DATA · `body` the other types.

mod body;
mod segment;
mod shim;

pub use body::{
    ACK_RANGES_MAX, Ack, Body, CONTROL_MAX, COOKIE_LEN, Close, Cookie, Hello, Notice, NoticeCode,
    PRIVATE_MAX, Probe, Rate, Terms,
};
pub use segment::{DATA_HEADER_MAX, DataHeader, Opcode, Segment};
pub use shim::{ANY_QPN, Ext, Flags, Kind, MsgId, Psn, QPN_MAX, SHIM_LEN, Shim};

use crate::crc::{CRC_LEN, Crc32c};
use crate::wire::be32;

/// EXT words in a datagram at most: the field has four bits.
pub const EXT_WORDS_MAX: usize = 15;
/// Octets of a UDP payload over IPv4 at most.
pub const DATAGRAM_MAX: usize = 65_507;

/// Why a datagram is not one of ours, or not a whole one. It is dropped and counted; nothing is
/// answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Reject {
    /// Its first octet is not this protocol's and version's, or it is shorter than any.
    #[error("not a datagram of this protocol")]
    Foreign,
    /// Its CRC is wrong.
    #[error("its CRC is wrong")]
    Crc,
    /// Its type is unknown, or it is sealed and this end has no keys.
    #[error("not understood: {0}")]
    Unsupported(&'static str),
    /// Its CRC is right and its fields contradict each other: the sender is wrong, or lies.
    #[error("malformed: {0}")]
    Malformed(&'static str),
}

/// A datagram that has been checked as far as that needs no state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// The first 32 octets.
    pub shim: Shim,
    /// The words between shim and body.
    pub ext: Ext<'a>,
    /// The rest.
    pub body: Body<'a>,
    /// Octets of the UDP payload.
    pub wire_len: usize,
}

impl<'a> Datagram<'a> {
    /// Checks protocol, version and CRC, then reads.
    ///
    /// # Errors
    /// See [`Reject`].
    pub fn open(datagram: &'a [u8]) -> Result<Self, Reject> {
        Self::check(datagram).and_then(Self::parse)
    }

    /// Checks protocol and CRC. What it returns, the datagram without its CRC, is for
    /// [`Self::parse`].
    ///
    /// # Errors
    /// [`Reject::Foreign`], [`Reject::Crc`].
    pub fn check(datagram: &'a [u8]) -> Result<&'a [u8], Reject> {
        if datagram.first() != Some(&shim::PROTOCOL) {
            return Err(Reject::Foreign);
        }
        let (covered, crc) = datagram
            .split_last_chunk::<CRC_LEN>()
            .ok_or(Reject::Foreign)?;
        let mut wanted = Crc32c::new();
        wanted.update(covered);
        if *crc != wanted.to_wire() {
            return Err(Reject::Crc);
        }
        Ok(covered)
    }

    /// Reads a datagram without its CRC, which was checked.
    ///
    /// # Errors
    /// See [`Reject`]; all but [`Reject::Crc`].
    pub fn parse(covered: &'a [u8]) -> Result<Self, Reject> {
        let (head, rest) = covered
            .split_first_chunk::<SHIM_LEN>()
            .ok_or(Reject::Foreign)?;
        let (shim, words) = Shim::parse(head)?;
        let (ext, rest) = rest
            .split_at_checked(words * 4)
            .ok_or(Reject::Malformed("EXT beyond the end"))?;
        let ext = Ext::new(ext);
        Ok(Self {
            shim,
            ext,
            body: Body::parse(&shim, ext, rest)?,
            wire_len: covered.len() + CRC_LEN,
        })
    }
}

/// Octets of a datagram from which [`sender`] can be told.
pub const SENDER_LEN: usize = 16;

/// Queue pair and epoch of who has sent a datagram that begins so; the network quotes no more than
/// its beginning when it complains of it. None if it is not of this protocol.
#[must_use]
pub fn sender(start: &[u8; SENDER_LEN]) -> Option<(u32, u32)> {
    (start[0] == shim::PROTOCOL).then(|| (be32(start, 8), be32(start, 12)))
}

/// Appends the CRC to the `len` octets at the start of `out`; returns the octets of the whole.
fn seal(out: &mut [u8], len: usize) -> usize {
    let mut crc = Crc32c::new();
    crc.update(&out[..len]);
    out[len..len + CRC_LEN].copy_from_slice(&crc.to_wire());
    len + CRC_LEN
}
