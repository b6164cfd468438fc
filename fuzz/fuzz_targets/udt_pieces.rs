//! Pieces of data packets, hostile ones among good ones: what is joined has the length that its
//! pieces name, and a good packet whose pieces come in a row arrives as it was.

#![no_main]

use arbitrary::Arbitrary;
use haul_udt::Joiner;
use haul_udt::wire::{HEADER_LEN, PacketPiece, SocketId, cut, piece_len};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
enum Step {
    Bytes(Vec<u8>),
    PacketPiece {
        number: u8,
        index: u16,
        total: u16,
        bytes: Vec<u8>,
    },
    Packet {
        number: u32,
        len: u16,
        max: u16,
    },
}

fuzz_target!(|steps: Vec<Step>| {
    let mut joiner = Joiner::default();
    for step in steps {
        match step {
            Step::Bytes(bytes) => take(&mut joiner, &bytes),
            Step::PacketPiece {
                number,
                index,
                total,
                bytes,
            } => {
                let mut datagram = Vec::new();
                let number = number.into();
                PacketPiece {
                    number,
                    index,
                    total,
                    bytes: &bytes,
                }
                .emit(SocketId(1), &mut datagram);
                take(&mut joiner, &datagram);
            }
            Step::Packet { number, len, max } => whole(&mut joiner, number, len, max),
        }
    }
});

fn take(joiner: &mut Joiner, datagram: &[u8]) {
    if let Some(piece) = PacketPiece::parse(datagram)
        && let Some(packet) = joiner.join(&piece)
    {
        assert_eq!(packet.len(), usize::from(piece.total));
    }
}

fn whole(joiner: &mut Joiner, number: u32, len: u16, max: u16) {
    let len = HEADER_LEN + usize::from(len) % 9_200;
    let max = 540 + usize::from(max) % 1_000;
    let mut packet: Vec<u8> = (0..len).map(|at| at.to_le_bytes()[0]).collect();
    packet[..4].copy_from_slice(&number.to_be_bytes());
    let (len, mut pieces) = (piece_len(len, max), Vec::new());
    cut(&packet, SocketId(9), false, len, &mut pieces);
    let mut joined = None;
    for datagram in pieces.chunks(len) {
        let piece = PacketPiece::parse(datagram).expect("it was written by us");
        joined = joiner.join(&piece).map(<[u8]>::to_vec);
    }
    // Hostile pieces of the same number, length and size may have come before.
    if let Some(joined) = joined {
        assert_eq!(joined, packet);
    }
}
