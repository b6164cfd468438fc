//! The frame of a sealed datagram: header, phase bit and number in the clear, then ciphertext and
//! tag. Encryption itself is outside of this crate.

use super::field::{HEADER_LEN, word};

/// Bytes that sealing adds to a packet: number and tag.
pub const SEAL_LEN: usize = NUMBER_LEN + TAG_LEN;
/// Bytes of a sealed datagram that stay in the clear and are authenticated.
pub const SEALED_HEAD_LEN: usize = HEADER_LEN + NUMBER_LEN;

const NUMBER_LEN: usize = 4;
const TAG_LEN: usize = 16;
const PHASE_BIT: u32 = 1 << 31;

/// Names the key and the nonce of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sealed {
    /// Keys of this direction before this one.
    pub generation: u64,
    /// Sealed datagrams of this direction before this one, under any key; gaps are possible.
    pub number: u64,
}

impl Sealed {
    /// Returns the name of the datagram that is `count` behind this one in a batch.
    #[must_use]
    pub fn plus(self, count: usize) -> Self {
        Self {
            number: self.number + count as u64,
            ..self
        }
    }

    /// Returns the cleartext part of the packet with `header`.
    #[must_use]
    pub fn head(self, header: &[u8; HEADER_LEN]) -> [u8; SEALED_HEAD_LEN] {
        let phase = if self.generation & 1 == 1 {
            PHASE_BIT
        } else {
            0
        };
        // The lower 31 bits.
        let number = u32::try_from(self.number & u64::from(PHASE_BIT - 1)).unwrap_or(0);
        let mut head = [0; SEALED_HEAD_LEN];
        head[..HEADER_LEN].copy_from_slice(header);
        head[HEADER_LEN..].copy_from_slice(&(phase | number).to_be_bytes());
        head
    }
}

/// Reads the phase bit and the lower 31 bits of the number; none where a datagram is too short to
/// be sealed.
pub(crate) fn phase_and_number(datagram: &[u8]) -> Option<(bool, u32)> {
    let is_long = datagram.len() >= HEADER_LEN + SEAL_LEN;
    let word = word(datagram, HEADER_LEN / 4);
    is_long.then_some((word & PHASE_BIT != 0, word & (PHASE_BIT - 1)))
}

/// Makes a packet of an opened datagram, whose plaintext of `len` bytes lies behind its head: moves
/// the header to the plaintext.
pub(crate) fn opened_packet(datagram: &mut [u8], len: usize) -> &mut [u8] {
    datagram.copy_within(..HEADER_LEN, SEALED_HEAD_LEN - HEADER_LEN);
    &mut datagram[SEALED_HEAD_LEN - HEADER_LEN..SEALED_HEAD_LEN + len]
}
