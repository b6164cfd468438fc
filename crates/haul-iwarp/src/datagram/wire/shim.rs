//! The 32 bytes that every datagram begins with, big-endian:
//!
//! ```text
//!   0  1  0xd1: protocol 0xd, version 1
//!   1  1  type
//!   2  2  flags; the low four bits are the number of EXT words, 0x00f0 the size of segments (RD)
//!   4  4  QPN of the destination, 24 bits; 0xffffff is every member of a group
//!   8  4  QPN of the source, 24 bits
//!  12  4  epoch of the source: random, not zero, new each time its QP is activated
//!  16  4  number of the packet, from a random start
//!  20  4  number of the message, from 1; in responses, of the request
//!  24  4  bytes of the message, in every segment
//!  28  4  offset of this segment's payload in the message
//! ```

use super::reject::Reject;
use crate::wire::{be16, be32, put16, put32};

/// Bytes of the shim.
pub const SHIM_LEN: usize = 32;
/// The QPN of every member of a group.
pub const ANY_QPN: u32 = 0x00ff_ffff;
/// The highest QPN of one QP.
pub const QPN_MAX: u32 = ANY_QPN - 1;

/// EXT words in a datagram at most: the field has four bits.
pub const EXT_WORDS_MAX: usize = 15;
pub(super) const PROTOCOL: u8 = 0xd1;
const EXT_MASK: u16 = 0x000f;
const SIZE_MASK: u16 = 0x00f0;

/// The types of datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A DDP segment.
    Data = 0,
    /// Acknowledgement (RD).
    Ack = 1,
    /// Start of a handshake, with or without a cookie.
    Hello = 2,
    /// The answer to a hello without one.
    Cookie = 3,
    /// The answer to a hello with a good one.
    Ready = 4,
    /// Something sent was refused.
    Notice = 5,
    /// A receiver's report on one sender.
    Rate = 6,
    /// The source forgets this peer.
    Close = 7,
    /// Does a datagram of this size arrive?
    Probe = 8,
    /// It did.
    ProbeAck = 9,
}

impl Kind {
    const fn parse(octet: u8) -> Option<Self> {
        Some(match octet {
            0 => Self::Data,
            1 => Self::Ack,
            2 => Self::Hello,
            3 => Self::Cookie,
            4 => Self::Ready,
            5 => Self::Notice,
            6 => Self::Rate,
            7 => Self::Close,
            8 => Self::Probe,
            9 => Self::ProbeAck,
            _ => return None,
        })
    }
}

/// The flags of a shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(u16);

impl Flags {
    /// None.
    pub const NONE: Self = Self(0);
    /// The segment ends its message.
    pub const LAST: Self = Self(0x8000);
    /// RD: requests an immediate ACK.
    pub const ACKREQ: Self = Self(0x4000);
    /// Reliable datagram.
    pub const RD: Self = Self(0x2000);
    /// To a group.
    pub const MCAST: Self = Self(0x1000);
    /// RD: sent before, with the same packet number.
    pub const RTX: Self = Self(0x0800);
    /// A copy of the last segment, sent ahead of it in case the other is lost.
    pub const TAILDUP: Self = Self(0x0400);
    /// Sealed ([`super::Sealed`]); in no datagram inside.
    pub const SEC: Self = Self(0x0200);
    /// A response: the message number is the request's.
    pub const RESP: Self = Self(0x0100);

    /// Returns the 16 bits.
    #[must_use]
    pub(super) const fn bits(self) -> u16 {
        self.0
    }

    /// Returns the union of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Adds `other` if `is_so`.
    #[must_use]
    pub const fn with_if(self, other: Self, is_so: bool) -> Self {
        if is_so { self.with(other) } else { self }
    }

    /// Sets the number of a size of segments, 0..=15 (RD).
    #[must_use]
    pub const fn with_size(self, number: u8) -> Self {
        Self(self.0 & !SIZE_MASK | (number as u16) << 4 & SIZE_MASK)
    }

    /// Returns the number of the size of segments, 0..=15 (RD).
    #[must_use]
    pub const fn size(self) -> u8 {
        self.0.to_be_bytes()[1] >> 4
    }

    /// Returns whether all of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

macro_rules! serial {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(pub u32);

        impl $name {
            /// Returns the number `n` further.
            #[must_use]
            pub const fn plus(self, n: u32) -> Self {
                Self(self.0.wrapping_add(n))
            }

            /// Returns how far this number is past `other`; negative if it is before it (RFC 1982).
            #[must_use]
            pub const fn past(self, other: Self) -> i32 {
                self.0.wrapping_sub(other.0).cast_signed()
            }
        }
    };
}

serial! {
    /// The number of a packet. Wraps; compared by RFC 1982.
    Psn
}

serial! {
    /// The number of a message. Wraps; compared by RFC 1982.
    MsgId
}

/// The first 32 bytes of a datagram, but for the number of EXT words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shim {
    /// The type.
    pub kind: Kind,
    /// The flags.
    pub flags: Flags,
    /// The destination.
    pub dst_qpn: u32,
    /// The sender.
    pub src_qpn: u32,
    /// Which activation of the sender; not zero.
    pub epoch: u32,
    /// Number of the packet.
    pub psn: Psn,
    /// Number of the message.
    pub msg_id: MsgId,
    /// Bytes of the message.
    pub msg_len: u32,
    /// Where in the message this segment's payload belongs.
    pub seg_off: u32,
}

impl Shim {
    /// Reads a shim and the number of EXT words behind it.
    ///
    /// # Errors
    /// [`Reject`]: not this protocol, a type or flag that is not known here, or a shim that
    /// contradicts itself.
    pub fn parse(octets: &[u8; SHIM_LEN]) -> Result<(Self, usize), Reject> {
        if octets[0] != PROTOCOL {
            return Err(Reject::Foreign);
        }
        let kind = Kind::parse(octets[1]).ok_or(Reject::Unsupported("type"))?;
        let bits = be16(octets, 2);
        let shim = Self {
            kind,
            flags: Flags(bits & !EXT_MASK),
            dst_qpn: be32(octets, 4),
            src_qpn: be32(octets, 8),
            epoch: be32(octets, 12),
            psn: Psn(be32(octets, 16)),
            msg_id: MsgId(be32(octets, 20)),
            msg_len: be32(octets, 24),
            seg_off: be32(octets, 28),
        };
        shim.check()?;
        Ok((shim, usize::from(bits & EXT_MASK)))
    }

    fn check(&self) -> Result<(), Reject> {
        let flags = self.flags;
        if flags.contains(Flags::SEC) {
            return Err(Reject::Unsupported("sealed"));
        }
        if self.dst_qpn > ANY_QPN || self.src_qpn > QPN_MAX {
            return Err(Reject::Malformed("QPN"));
        }
        if self.epoch == 0 {
            return Err(Reject::Malformed("epoch zero"));
        }
        if flags.contains(Flags::MCAST) != (self.dst_qpn == ANY_QPN) {
            return Err(Reject::Malformed("group and QPN"));
        }
        let reliable = flags.contains(Flags::RD);
        if reliable && flags.contains(Flags::MCAST) {
            return Err(Reject::Malformed("reliable to a group"));
        }
        if !reliable && (flags.contains(Flags::ACKREQ) || flags.contains(Flags::RTX)) {
            return Err(Reject::Malformed("a flag of RD without RD"));
        }
        Ok(())
    }

    /// Writes the shim, with `words` EXT words to follow.
    pub(super) fn emit(&self, words: usize, out: &mut [u8]) {
        debug_assert!(words <= EXT_WORDS_MAX);
        let words = u16::try_from(words).unwrap_or(0) & EXT_MASK;
        out[0] = PROTOCOL;
        out[1] = self.kind as u8;
        put16(out, 2, self.flags.0 | words);
        put32(out, 4, self.dst_qpn);
        put32(out, 8, self.src_qpn);
        put32(out, 12, self.epoch);
        put32(out, 16, self.psn.0);
        put32(out, 20, self.msg_id.0);
        put32(out, 24, self.msg_len);
        put32(out, 28, self.seg_off);
    }

    /// Sets the packet number of the shim in `octets`, and advances its message offset by `by`
    /// bytes.
    pub(super) fn advance(octets: &mut [u8], psn: Psn, by: u32) {
        put32(octets, 16, psn.0);
        put32(octets, 28, be32(octets, 28).wrapping_add(by));
    }

    /// Bytes of the shim in `octets` and of the EXT words after it.
    pub(super) fn len_with_ext(octets: &[u8]) -> usize {
        SHIM_LEN + 4 * usize::from(be16(octets, 2) & EXT_MASK)
    }
}

/// The words between shim and body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ext<'a>(&'a [u8]);

impl<'a> Ext<'a> {
    /// `octets` is a multiple of four.
    pub(super) const fn new(octets: &'a [u8]) -> Self {
        Self(octets)
    }

    /// Returns how many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len() / 4
    }

    /// Returns whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a word.
    #[must_use]
    pub fn word(&self, at: usize) -> Option<u32> {
        (at < self.len()).then(|| be32(self.0, at * 4))
    }

    /// Returns all words.
    pub fn words(&self) -> impl ExactSizeIterator<Item = u32> + use<'a> {
        self.0
            .as_chunks::<4>()
            .0
            .iter()
            .map(|word| u32::from_be_bytes(*word))
    }

    /// Returns the words from `at` on; none if there are fewer.
    #[must_use]
    pub fn from(&self, at: usize) -> Self {
        Self(self.0.get(at * 4..).unwrap_or(&[]))
    }
}
