//! Datagrams of a sealed service, and the handshake that precedes them, as bytes. All big-endian:
//!
//! ```text
//!   0  1  0xd1
//!   1  1  type: 16 GREETING, 17 REPLY, 18 STALE, 19 SEALED
//!   2  2  flags: SEC and no others
//!   4  4  the first bytes of the salt of the end that it is for; zero in GREETING
//!   8  8  salt of the sender
//!  16     GREETING: 16 zeros · REPLY: tag 16 · STALE: nothing
//!  16  8  SEALED: number
//!  24     SEALED: ciphertext of a datagram without its CRC, tag 16
//! ```
//!
//! The engine interprets the numbers and keys (docs/protocol/datagram.md).

use super::reject::Reject;
use super::shim::{Flags, PROTOCOL};
use crate::crc::CRC_LEN;
use crate::wire::{be16, be64, put16, put64};

/// Bytes of a salt.
pub const SALT_LEN: usize = 8;
/// Bytes before the ciphertext of a sealed datagram.
pub const SEALED_HEAD_LEN: usize = 24;
/// Bytes of a tag.
pub const SEALED_TAG_LEN: usize = 16;
/// Bytes by which a sealed datagram is longer than the datagram inside with its CRC.
pub const SEALED_AROUND: usize = SEALED_HEAD_LEN + SEALED_TAG_LEN - CRC_LEN;
/// Bytes of a GREETING and of a REPLY: no answer is longer than its cause.
pub const GREETING_LEN: usize = HEAD_LEN + SEALED_TAG_LEN;
/// Bytes of a STALE.
pub const STALE_LEN: usize = HEAD_LEN;

const HEAD_LEN: usize = 16;
const GREETING: u8 = 16;
const REPLY: u8 = 17;
const STALE: u8 = 18;
const SEALED: u8 = 19;

/// Random name that an end chooses for its half of a pair of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Salt(pub [u8; SALT_LEN]);

impl Salt {
    /// Returns the mark that identifies datagrams for this salt.
    #[must_use]
    pub const fn mark(self) -> Mark {
        let [a, b, c, d, ..] = self.0;
        Mark([a, b, c, d])
    }
}

/// The first bytes of a salt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark(pub [u8; 4]);

/// A datagram of a sealed service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sealed {
    /// The sender wants to send to this end.
    Greeting {
        /// The sender's salt.
        from: Salt,
    },
    /// The answer: both salts make the keys.
    Reply {
        /// Of the greeting's salt.
        to: Mark,
        /// The sender's salt.
        from: Salt,
    },
    /// The sender has no key for the datagram that this answers.
    Stale {
        /// Of the salt that the datagram came under.
        to: Mark,
    },
    /// A datagram under the keys of two salts.
    Datagram {
        /// Of the salt of this end.
        to: Mark,
        /// The sender's salt.
        from: Salt,
        /// Different in all datagrams under these salts in this direction.
        number: u64,
    },
}

impl Sealed {
    /// Reads the part that is in the clear.
    ///
    /// # Errors
    /// [`Reject`]: not this protocol, not sealed, or not of the length that the type has.
    pub fn parse(octets: &[u8]) -> Result<Self, Reject> {
        if octets.first() != Some(&PROTOCOL) {
            return Err(Reject::Foreign);
        }
        let head = octets
            .first_chunk::<HEAD_LEN>()
            .ok_or(Reject::Malformed("length"))?;
        if be16(head, 2) != Flags::SEC.bits() {
            return Err(Reject::Unsupported("not sealed"));
        }
        let [_, kind, _, _, a, b, c, d, salt @ ..] = *head;
        let (to, from) = (Mark([a, b, c, d]), Salt(salt));
        let rest = octets.len() - HEAD_LEN;
        match kind {
            GREETING if rest == SEALED_TAG_LEN => Ok(Self::Greeting { from }),
            REPLY if rest == SEALED_TAG_LEN => Ok(Self::Reply { to, from }),
            STALE if rest == 0 => Ok(Self::Stale { to }),
            SEALED if octets.len() >= SEALED_HEAD_LEN + SEALED_TAG_LEN => Ok(Self::Datagram {
                to,
                from,
                number: be64(octets, HEAD_LEN),
            }),
            GREETING | REPLY | STALE | SEALED => Err(Reject::Malformed("length")),
            _ => Err(Reject::Unsupported("type")),
        }
    }

    /// Writes the cleartext part, followed by zeros; returns their length without the sealed part.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let none = Mark([0; 4]);
        let (kind, to, from, len) = match *self {
            Self::Greeting { from } => (GREETING, none, from, GREETING_LEN),
            Self::Reply { to, from } => (REPLY, to, from, GREETING_LEN),
            Self::Stale { to } => (STALE, to, Salt([0; SALT_LEN]), STALE_LEN),
            Self::Datagram { to, from, .. } => (SEALED, to, from, SEALED_HEAD_LEN),
        };
        out[..len].fill(0);
        (out[0], out[1]) = (PROTOCOL, kind);
        put16(out, 2, Flags::SEC.bits());
        out[4..8].copy_from_slice(&to.0);
        out[8..HEAD_LEN].copy_from_slice(&from.0);
        if let Self::Datagram { number, .. } = *self {
            put64(out, HEAD_LEN, number);
        }
        len
    }
}

/// Bytes that a REPLY's tag authenticates: those before it, and the whole salt that it answers.
#[must_use]
pub fn reply_head(reply: &[u8; GREETING_LEN], greeted: Salt) -> [u8; HEAD_LEN + SALT_LEN] {
    let mut head = [0; HEAD_LEN + SALT_LEN];
    head[..HEAD_LEN].copy_from_slice(&reply[..HEAD_LEN]);
    head[HEAD_LEN..].copy_from_slice(&greeted.0);
    head
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(salt: [u8; 8], mark: [u8; 4], number: u64) {
            let (from, to) = (Salt(salt), Mark(mark));
            for sealed in [
                Sealed::Greeting { from },
                Sealed::Reply { to, from },
                Sealed::Stale { to },
                Sealed::Datagram { to, from, number },
            ] {
                let mut octets = [0xff; SEALED_HEAD_LEN + SEALED_TAG_LEN];
                let len = match sealed {
                    Sealed::Datagram { .. } => sealed.emit(&mut octets) + SEALED_TAG_LEN,
                    _ => sealed.emit(&mut octets),
                };
                prop_assert_eq!(Sealed::parse(&octets[..len]).ok(), Some(sealed));
                for short in 0..len {
                    prop_assert!(Sealed::parse(&octets[..short]).is_err());
                }
            }
        }

        #[test]
        fn anything_is_read_or_refused(octets in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(sealed) = Sealed::parse(&octets) {
                let mut again = [0; 64];
                sealed.emit(&mut again);
                let len = octets.len().min(STALE_LEN);
                prop_assert_eq!(Sealed::parse(&octets).ok(), Some(sealed));
                prop_assert_eq!(&again[..4], &octets[..4.min(len)]);
            }
        }
    }
}
