//! UDT4 packets: bytes to meaning and back (reference: UDT4 draft §3, libudt 4.11 `packet.cpp`).
//!
//! [`Packet::parse`] is the only fallible step: it checks every length once; what it returns needs
//! no further check of form. Values (sequence numbers in range, sizes within limits) are for the
//! state machine to judge.

pub(crate) mod check;
mod control;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod emit;
mod feedback;
mod field;
mod handshake;
mod piece;
mod ranges;
mod seal;
#[cfg(test)]
mod spec;

pub use control::{Ack, AckRates, Control};
pub use feedback::{FEEDBACK_GAP_WORDS_MAX, Feedback, SenderInfo};
pub use field::{HEADER_LEN, ParseError, SocketId};
pub use handshake::{Handshake, Offer, PeerAddress, RequestKind, SocketKind};
pub use piece::{PacketPiece, cut, piece_len};
pub use ranges::LossRanges;
pub use seal::{SEAL_LEN, SEALED_HEAD_LEN, Sealed};

pub(crate) use control::ControlWriter;
pub(crate) use handshake::{REJECT_INCOMPATIBLE, UDT_VERSION};
pub(crate) use ranges::push_range;
pub(crate) use seal::{opened_packet, phase_and_number};

use crate::seq::Seq;
use field::{CONTROL_BIT, word};

/// Bytes of IPv4 and UDP headers in front of a UDT packet.
pub const LOWER_LEN_V4: usize = 28;
/// Bytes of IPv6 and UDP headers in front of a UDT packet.
pub const LOWER_LEN_V6: usize = 48;

/// Whether a datagram is a data packet, if it is a packet.
#[must_use]
pub fn is_data(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|first| first & 0x80 == 0)
}
const FIRST_BIT: u32 = 1 << 31;
const LAST_BIT: u32 = 1 << 30;
const ORDER_BIT: u32 = 1 << 29;
const RESENT_BIT: u32 = 1 << 28;
const PROMPT_BIT: u32 = 1 << 27;
const MESSAGE_MASK: u32 = ORDER_BIT - 1;
const MESSAGE_MASK_EXTENDED: u32 = PROMPT_BIT - 1;
/// Bits of a stream offset that a data packet carries: word 2, and the message number's.
const OFFSET_BITS: u32 = 32 + MESSAGE_MASK_EXTENDED.count_ones();
/// The greatest message number between Longhaul ends.
pub(crate) const MESSAGE_MAX_PLACEMENT: u32 = MESSAGE_MASK_EXTENDED;

/// A packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packet<'a> {
    /// Payload, which follows the header and is not looked at.
    Data(Data),
    /// Everything else.
    Control(Control<'a>),
}

/// The header of a data packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Data {
    /// Sequence number.
    pub seq: Seq,
    /// First packet of a message.
    pub first: bool,
    /// Last packet of a message.
    pub last: bool,
    /// The message is to be delivered in order.
    pub in_order: bool,
    /// Message number, 29 bits; between Longhaul ends the uppermost are [`Data::resent`] and
    /// [`Data::prompt`].
    pub message: u32,
    /// Plain UDT: microseconds since the sender's socket was made. Between Longhaul ends: the lower
    /// 32 bits of the stream offset ([`Data::offset`]), or the offset within the message
    /// (docs/protocol/udt.md).
    pub word2: u32,
    /// Receiving socket.
    pub destination: SocketId,
}

impl Data {
    /// Writes the header.
    #[must_use]
    pub fn emit(&self) -> [u8; HEADER_LEN] {
        let flags = (u32::from(self.first) * FIRST_BIT)
            | (u32::from(self.last) * LAST_BIT)
            | (u32::from(self.in_order) * ORDER_BIT);
        let mut header = [0; HEADER_LEN];
        header[0..4].copy_from_slice(&self.seq.get().to_be_bytes());
        header[4..8].copy_from_slice(&(flags | (self.message & MESSAGE_MASK)).to_be_bytes());
        header[8..12].copy_from_slice(&self.word2.to_be_bytes());
        header[12..16].copy_from_slice(&self.destination.0.to_be_bytes());
        header
    }

    /// Whether the packet is a retransmission; between Longhaul ends only.
    #[must_use]
    pub fn resent(&self) -> bool {
        self.message & RESENT_BIT != 0
    }

    /// Whether the sender asks for feedback at once, as no packet follows for now; between Longhaul
    /// ends only.
    #[must_use]
    pub fn prompt(&self) -> bool {
        self.message & PROMPT_BIT != 0
    }

    /// Returns the message number without the marks, 27 bits; between Longhaul ends only.
    #[must_use]
    pub fn message_extended(&self) -> u32 {
        self.message & MESSAGE_MASK_EXTENDED
    }

    /// Returns a message number with the mark of [`Data::resent`]; between Longhaul ends only.
    #[must_use]
    pub fn mark(message: u32, resent: bool) -> u32 {
        (message & MESSAGE_MASK_EXTENDED) | (u32::from(resent) * RESENT_BIT)
    }

    /// Returns the bits of the stream offset that the header carries, and how many they are: 59, or
    /// 32 from version 0.1.0; between Longhaul ends only.
    #[must_use]
    pub fn offset(&self) -> (u64, u32) {
        let low = u64::from(self.word2);
        if !self.is_wide() {
            return (low, 32);
        }
        (u64::from(self.message_extended()) << 32 | low, OFFSET_BITS)
    }

    /// Whether the message number is a part of the stream offset; between Longhaul ends only.
    #[must_use]
    pub(crate) fn is_wide(&self) -> bool {
        !self.last
    }

    /// Makes the fields that carry a stream offset: [`Data::last`], [`Data::message`] and
    /// [`Data::word2`]; between Longhaul ends only.
    #[expect(clippy::cast_possible_truncation, reason = "the offset's halves")]
    pub(crate) fn of_offset(offset: u64, resent: bool) -> (bool, u32, u32) {
        let high = (offset >> 32) as u32;
        (false, Self::mark(high, resent), offset as u32)
    }

    /// Asks for feedback at once ([`Data::prompt`]); between Longhaul ends only.
    pub fn ask(&mut self) {
        self.message |= PROMPT_BIT;
    }
}

impl<'a> Packet<'a> {
    /// Reads a datagram. Payload of data packets is not touched.
    ///
    /// # Errors
    /// [`ParseError`] where a length or an enumeration is not UDT4's.
    pub fn parse(datagram: &'a [u8]) -> Result<Self, ParseError> {
        let short = ParseError::Short {
            what: "UDT header",
            len: datagram.len(),
        };
        let (header, body) = datagram.split_first_chunk::<HEADER_LEN>().ok_or(short)?;
        let word0 = word(header, 0);
        if word0 & CONTROL_BIT != 0 {
            return Control::parse(header, body).map(Self::Control);
        }
        let word1 = word(header, 1);
        Ok(Self::Data(Data {
            seq: Seq::new(word0),
            first: word1 & FIRST_BIT != 0,
            last: word1 & LAST_BIT != 0,
            in_order: word1 & ORDER_BIT != 0,
            message: word1 & MESSAGE_MASK,
            word2: word(header, 2),
            destination: SocketId(word(header, 3)),
        }))
    }

    /// Returns the receiving socket of a datagram; `None` if the datagram is too short.
    #[must_use]
    pub fn destination(datagram: &[u8]) -> Option<SocketId> {
        datagram
            .first_chunk::<HEADER_LEN>()
            .map(|header| SocketId(word(header, 3)))
    }
}

#[cfg(test)]
mod tests;
