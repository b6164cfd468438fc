//! A whole datagram.

use super::reject::Reject;
use super::shim::{PROTOCOL, SHIM_LEN, Shim};
use super::{Body, Ext};
use crate::crc::{CRC_LEN, Crc32c};
use crate::wire::be32;

/// Bytes of a UDP payload over IPv4 at most.
pub const DATAGRAM_MAX: usize = 65_507;

/// A datagram that has been checked as far as that needs no state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// The first 32 bytes.
    pub shim: Shim,
    /// The words between shim and body.
    pub ext: Ext<'a>,
    /// The rest.
    pub body: Body<'a>,
    /// Bytes of the UDP payload.
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

    /// Checks protocol and CRC. Returns the datagram without its CRC, for [`Self::parse`].
    ///
    /// # Errors
    /// [`Reject::Foreign`], [`Reject::Crc`].
    pub fn check(datagram: &'a [u8]) -> Result<&'a [u8], Reject> {
        if datagram.first() != Some(&PROTOCOL) {
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

/// Bytes of a datagram that [`sender`] needs.
pub const SENDER_LEN: usize = 16;

/// Returns the queue pair and epoch of the sender of a datagram that begins so; the network quotes
/// no more than its beginning when it complains of it. None if it is not of this protocol.
#[must_use]
pub fn sender(start: &[u8; SENDER_LEN]) -> Option<(u32, u32)> {
    (start[0] == PROTOCOL).then(|| (be32(start, 8), be32(start, 12)))
}
