//! Pieces of a data packet: how a packet that was made for a wider path travels on a narrower one.
//!
//! A retransmitted packet keeps its sequence number, its place and its payload, so it cannot be
//! split into packets with numbers of their own. The sender cuts its bytes into pieces of one
//! length, and the receiver handles the packet when the last piece has arrived. Header: control
//! type `0x7fff`, extended type "LH", kind 5, the packet's sequence number, the receiving socket.

use super::check::seal_control;
use super::field::{HEADER_LEN, SocketId, word};

/// A piece of a data packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketPiece<'a> {
    /// Sequence number of the data packet.
    pub number: u32,
    /// Its first byte is byte `index * bytes.len()` of the packet.
    pub index: u16,
    /// Bytes of the packet, header included: at least [`HEADER_LEN`].
    pub total: u16,
    /// Its bytes; those beyond `total` are padding. Never empty.
    pub bytes: &'a [u8],
}

/// Kind of Longhaul's control packets.
const KIND: u32 = 5;
/// Index and total.
const PREFIX: usize = 4;
/// A control packet of type `0x7fff`, extended type "LH".
const WORD0: u32 = 0xffff_4c48;

impl<'a> PacketPiece<'a> {
    /// Reads a datagram; none if it is not a piece, or not a well-formed one.
    #[must_use]
    pub fn parse(datagram: &'a [u8]) -> Option<Self> {
        let (header, body) = datagram.split_first_chunk::<HEADER_LEN>()?;
        if word(header, 0) != WORD0 || word(header, 1) != KIND {
            return None;
        }
        let (prefix, bytes) = body.split_first_chunk::<PREFIX>()?;
        let [index, total] = [0, 2].map(|at| u16::from_be_bytes([prefix[at], prefix[at + 1]]));
        let start = usize::from(index) * bytes.len();
        let fits = usize::from(total) >= HEADER_LEN && start < usize::from(total);
        (fits && !bytes.is_empty()).then(|| Self {
            number: word(header, 2),
            index,
            total,
            bytes,
        })
    }

    /// Appends the datagram.
    pub fn emit(&self, destination: SocketId, out: &mut Vec<u8>) {
        for word in [WORD0, KIND, self.number, destination.0] {
            out.extend_from_slice(&word.to_be_bytes());
        }
        out.extend_from_slice(&self.index.to_be_bytes());
        out.extend_from_slice(&self.total.to_be_bytes());
        out.extend_from_slice(self.bytes);
    }
}

/// Returns the length of each piece, headers included, where packets of `len` bytes are cut for
/// datagrams of at most `max` bytes: as many pieces as it takes, all as short as that allows.
#[must_use]
pub const fn piece_len(len: usize, max: usize) -> usize {
    let room = max - HEADER_LEN - PREFIX;
    len.div_ceil(len.div_ceil(room)) + HEADER_LEN + PREFIX
}

/// Appends the pieces of the data packet `datagram` for the socket `destination` to `out`, each
/// `piece_len` bytes long, with checks where both ends have agreed on them. Returns how many.
pub fn cut(
    datagram: &[u8],
    destination: SocketId,
    checked: bool,
    piece_len: usize,
    out: &mut Vec<u8>,
) -> usize {
    let total = u16::try_from(datagram.len()).unwrap_or(u16::MAX);
    let mut count = 0;
    for (index, bytes) in (0..).zip(datagram.chunks(piece_len - HEADER_LEN - PREFIX)) {
        let start = out.len();
        let piece = PacketPiece {
            number: word(datagram, 0),
            index,
            total,
            bytes,
        };
        piece.emit(destination, out);
        out.resize(start + piece_len, 0);
        if checked {
            seal_control(&mut out[start..]);
        }
        count += 1;
    }
    count
}
