//! Joins pieces to data packets. Engines own a [`Joiner`]; a [`Connection`](crate::Connection) sees
//! whole packets only.

use crate::wire::{PacketPiece, is_data};

/// Packets of which pieces have arrived. Its memory is bounded: 8 packets.
#[derive(Debug, Default)]
pub struct Joiner {
    slots: [Slot; PACKETS],
    /// The slot that is evicted next.
    oldest: usize,
}

/// Packets that may be incomplete at a time. A sender sends the pieces of one packet in a row, so
/// more are incomplete only where pieces overtake each other or are lost. A packet that has to make
/// room counts as lost and is retransmitted.
const PACKETS: usize = 8;
/// Bytes of the longest packet, that of jumbo frames.
const PACKET_MAX: usize = 9_216;
/// The shortest piece has some 500 bytes.
const PIECES_MAX: usize = 64;

#[derive(Debug, Default)]
struct Slot {
    /// Number and length of the packet, and length of a piece; none where the slot is free.
    key: Option<(u32, u16, usize)>,
    /// Bit by index of the piece.
    arrived: u64,
    bytes: Vec<u8>,
}

impl Joiner {
    /// Takes a piece and returns the data packet that it completes. Nothing but data comes in
    /// pieces.
    pub fn join(&mut self, piece: &PacketPiece<'_>) -> Option<&[u8]> {
        let (total, len) = (usize::from(piece.total), piece.bytes.len());
        let count = total.div_ceil(len);
        if total > PACKET_MAX || count > PIECES_MAX || usize::from(piece.index) >= count {
            return None;
        }
        let key = Some((piece.number, piece.total, len));
        let at = self.slot_of(key);
        let slot = &mut self.slots[at];
        if slot.key != key {
            slot.key = key;
            slot.arrived = 0;
            slot.bytes.resize(total, 0);
        }
        let start = usize::from(piece.index) * len;
        let end = total.min(start + len);
        let bytes = &piece.bytes[..end - start];
        // The packet is retransmitted: its earlier pieces may be damaged or misplaced.
        if slot.arrived >> piece.index & 1 != 0 && slot.bytes[start..end] != *bytes {
            slot.arrived = 0;
        }
        slot.bytes[start..end].copy_from_slice(bytes);
        slot.arrived |= 1 << piece.index;
        if slot.arrived.count_ones() as usize != count {
            return None;
        }
        slot.key = None;
        is_data(&slot.bytes).then_some(&slot.bytes)
    }

    fn slot_of(&mut self, key: Option<(u32, u16, usize)>) -> usize {
        let find = |key| self.slots.iter().position(|slot| slot.key == key);
        find(key).or_else(|| find(None)).unwrap_or_else(|| {
            self.oldest = (self.oldest + 1) % PACKETS;
            self.oldest
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::{HEADER_LEN, SocketId, cut, piece_len};

    const DESTINATION: SocketId = SocketId(9);

    fn packet(len: usize, number: u32) -> Vec<u8> {
        let fill = |at: usize| {
            at.wrapping_mul(31)
                .wrapping_add(number as usize)
                .to_le_bytes()[0]
        };
        let mut packet: Vec<u8> = (0..len).map(fill).collect();
        packet[..4].copy_from_slice(&number.to_be_bytes());
        packet
    }

    proptest! {
        #[test]
        fn pieces_in_any_order_make_each_packet_once(
            lens in prop::collection::vec(HEADER_LEN..9_200, 1..4),
            max in 520_usize..1_500,
            order in any::<u64>(),
        ) {
            let packets: Vec<_> = (7..).zip(&lens).map(|(number, &len)| packet(len, number)).collect();
            let piece_len = piece_len(*lens.iter().max().unwrap(), max);
            prop_assert!(piece_len <= max);
            let mut flat = Vec::new();
            for packet in &packets {
                let before = flat.len();
                prop_assert_eq!(cut(packet, DESTINATION, false, piece_len, &mut flat), (flat.len() - before) / piece_len);
            }
            let mut pieces: Vec<&[u8]> = flat.chunks(piece_len).collect();
            pieces.sort_by_key(|piece| {
                let id = u64::from(piece[11]) << 8 | u64::from(piece[17]);
                (id + 1).wrapping_mul(order | 1)
            });
            let (mut joiner, mut whole) = (Joiner::default(), Vec::new());
            for bytes in pieces {
                let piece = PacketPiece::parse(bytes).unwrap();
                if let Some(packet) = joiner.join(&piece) {
                    whole.push(packet.to_vec());
                }
            }
            whole.sort();
            prop_assert!(whole == packets);
        }
    }

    #[test]
    fn a_packet_without_all_its_pieces_makes_room() {
        let mut joiner = Joiner::default();
        let mut flat = Vec::new();
        for number in 0..20 {
            flat.clear();
            cut(&packet(1_472, number), DESTINATION, false, 756, &mut flat);
            let first = PacketPiece::parse(&flat[..756]).unwrap();
            assert_eq!(joiner.join(&first), None);
            assert_eq!(joiner.join(&first), None, "the same piece twice");
        }
        let last = PacketPiece::parse(&flat[756..]).unwrap();
        assert_eq!(joiner.join(&last), Some(&packet(1_472, 19)[..]));
        assert_eq!(
            joiner.join(&last),
            None,
            "its packet is not whole a second time"
        );
    }
}
