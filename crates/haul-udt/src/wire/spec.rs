//! The worked example of docs/protocol/udt.md, read and written.

#[path = "../../../../tests/pages/hex.rs"]
mod hex;

use super::check::{opened, seal_control, seal_data};
use super::emit::emit;
use super::{Control, HEADER_LEN, Packet, PacketPiece, SocketId};

use hex::bytes;

const PAGE: &str = include_str!("../../../../docs/protocol/udt.md");
const SOCKET: SocketId = SocketId(7);

#[test]
fn the_packets_of_the_page_are_what_this_build_reads_and_writes() {
    let handshake = bytes(PAGE, "handshake");
    let parsed = Packet::parse(&handshake).unwrap();
    let Packet::Control(Control::Handshake { body, offer, .. }) = &parsed else {
        panic!("{parsed:?}");
    };
    assert!(offer.placement && offer.ecn && offer.finish && offer.check && offer.path);
    assert_eq!((body.socket, body.mss), (SOCKET, 1_500));
    assert_eq!(emit(&parsed, SocketId(0)), handshake);

    let data = bytes(PAGE, "data");
    assert_eq!(opened(&data), SOCKET);
    let Packet::Data(parsed) = Packet::parse(&data).unwrap() else {
        panic!("no data");
    };
    assert!(parsed.first && parsed.last && parsed.prompt() && !parsed.resent());
    let mut header = parsed.emit();
    header[12..].copy_from_slice(&SOCKET.0.to_be_bytes());
    seal_data(&mut header, 6);
    assert_eq!([&header[..], b"hello\n"].concat(), data);

    for name in ["sender-info", "feedback"] {
        let control = bytes(PAGE, name);
        assert_eq!(opened(&control), SOCKET, "{name}");
        let mut written = emit(&Packet::parse(&control).unwrap(), SOCKET);
        seal_control(&mut written);
        assert_eq!(written, control, "{name}");
    }

    let pieces = bytes(PAGE, "pieces");
    let (first, second) = pieces.split_at(pieces.len() / 2);
    let (mut packet, mut written) = (Vec::new(), Vec::new());
    for datagram in [first, second] {
        let piece = PacketPiece::parse(datagram).unwrap();
        packet.extend_from_slice(piece.bytes);
        piece.emit(SOCKET, &mut written);
    }
    assert_eq!(packet, (0..40).collect::<Vec<u8>>());
    assert_eq!(
        (written, first.len()),
        (pieces.clone(), HEADER_LEN + 4 + 20)
    );
}
