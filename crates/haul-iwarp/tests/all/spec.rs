//! The worked exchanges of docs/protocol/iwarp.md, datagram.md and reliable-datagram.md, read and
//! written.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../../../tests/pages/hex.rs"]
mod hex;

use haul_iwarp::datagram::wire::{
    Body, CONTROL_MAX, DATA_HEADER_MAX, DataHeader, Datagram, Flags, Opcode,
};
use haul_iwarp::wire::ddp::{Header, Model};
use haul_iwarp::wire::hello::Hello;
use haul_iwarp::wire::mpa::{Capabilities, Enhanced, FRAME_LEN, FrameHead, FrameKind};
use haul_iwarp::wire::rdmap::{self, Terminate};
use haul_iwarp::{Crc32c, TermCode};

use hex::bytes;

const IWARP: &str = include_str!("../../../../docs/protocol/iwarp.md");
const UD: &str = include_str!("../../../../docs/protocol/datagram.md");
const RD: &str = include_str!("../../../../docs/protocol/reliable-datagram.md");

/// Checks the CRC and returns the bytes that it covers.
fn covered(bytes: &[u8]) -> &[u8] {
    let (covered, crc) = bytes.split_last_chunk().unwrap();
    let mut digest = Crc32c::new();
    digest.update(covered);
    assert_eq!(digest.to_wire(), *crc);
    covered
}

/// Header and payload of a segment, which this build would write like that.
fn segment(bytes: &[u8]) -> (Header, &[u8]) {
    let header = Header::parse(bytes).unwrap();
    let mut written = [0; 18];
    let len = header.emit(&mut written);
    assert_eq!(written[..len], bytes[..len]);
    (header, &bytes[len..])
}

#[test]
fn the_exchange_over_tcp_is_what_this_build_reads_and_writes() {
    for (name, kind) in [
        ("mpa-request", FrameKind::Request),
        ("mpa-reply", FrameKind::Reply),
    ] {
        let frame = bytes(IWARP, name);
        let (fixed, private) = frame.split_first_chunk::<FRAME_LEN>().unwrap();
        let head = FrameHead::parse(fixed, kind).unwrap();
        assert!(head.crc && head.enhanced && !head.markers && !head.reject);
        assert_eq!(usize::from(head.private_len), private.len());
        let (enhanced, rest) = Enhanced::parse(private).unwrap();
        assert_eq!(
            (enhanced.peer_to_peer, enhanced.ird, enhanced.ord),
            (None, 16, 16)
        );
        let (capabilities, []) = Capabilities::parse(rest) else {
            panic!("private data");
        };
        let capabilities = capabilities.unwrap();
        assert!(capabilities.features.close_notice && capabilities.fpdu_units == 256);
        let written = [&head.emit()[..], &enhanced.emit(), &capabilities.emit()];
        assert_eq!(written.concat(), frame, "{name}");
    }
    for (name, payload) in [
        ("send", &b"hello world!"[..]),
        ("close-notice", &[0xf0, 0, 0, 0]),
    ] {
        let fpdu = bytes(IWARP, name);
        let (len, ulpdu) = covered(&fpdu).split_first_chunk().unwrap();
        assert_eq!(usize::from(u16::from_be_bytes(*len)), ulpdu.len());
        assert_eq!(segment(ulpdu).1, payload);
    }
    let notice = Terminate {
        code: TermCode::CLOSE_NOTICE,
        segment_len: None,
        header: None,
        read: None,
    };
    let mut written = [0; rdmap::TERMINATE_LEN_MAX];
    assert_eq!(notice.emit(&mut written), 4);
    assert_eq!(written[..4], [0xf0, 0, 0, 0]);
}

#[test]
fn the_exchange_over_messages_is_what_this_build_reads_and_writes() {
    for name in ["hello-request", "hello-ready", "hello-finish"] {
        let message = bytes(IWARP, name);
        let mut written = Vec::new();
        Hello::parse(&message).unwrap().emit(&mut written);
        assert_eq!(written, message, "{name}");
    }
    let message = bytes(IWARP, "message-send");
    let (header, payload) = segment(covered(&message));
    assert!(header.last && matches!(header.model, Model::Untagged { qn: 0, msn: 1, .. }));
    assert_eq!(payload, b"ping");
}

/// The datagram as this build writes what it has read.
fn written(datagram: &Datagram<'_>) -> Vec<u8> {
    let mut out = vec![0; DATA_HEADER_MAX.max(CONTROL_MAX)];
    let Body::Data(segment) = &datagram.body else {
        let len = datagram.body.emit(&datagram.shim, &mut out);
        out.truncate(len);
        return out;
    };
    let ext: Vec<u32> = datagram.ext.words().collect();
    let header = DataHeader {
        shim: datagram.shim,
        ext: &ext,
        opcode: segment.opcode,
        model: segment.model,
    };
    let len = header.emit(&mut out);
    out.truncate(len);
    out.extend_from_slice(segment.payload);
    let mut crc = Crc32c::new();
    crc.update(&out);
    out.extend_from_slice(&crc.to_wire());
    out
}

#[test]
fn the_datagrams_of_the_pages_are_what_this_build_reads_and_writes() {
    let names = ["hello", "cookie", "send", "record-first", "record-last"];
    let datagrams = names.map(|name| bytes(UD, name));
    let reliable = ["rd-send", "rd-ack"].map(|name| bytes(RD, name));
    for datagram in datagrams.iter().chain(&reliable) {
        assert_eq!(written(&Datagram::open(datagram).unwrap()), *datagram);
    }
    let [.., first, last] = &datagrams;
    for (datagram, len) in [(first, 12), (last, 8)] {
        let Body::Data(segment) = Datagram::open(datagram).unwrap().body else {
            panic!("no DATA");
        };
        assert_eq!(
            (segment.opcode, segment.payload.len()),
            (Opcode::WriteRecord, len)
        );
    }
    let [send, ack] = reliable
        .each_ref()
        .map(|bytes| Datagram::open(bytes).unwrap());
    let (Body::Data(segment), Body::Ack(ack_body)) = (send.body, ack.body) else {
        panic!("not DATA and ACK");
    };
    assert!(send.shim.flags.contains(Flags::RD.with(Flags::ACKREQ)));
    assert_eq!(segment.timestamp, Some(ack_body.echo_ts));
    assert_eq!(ack_body.cum, send.shim.psn.plus(1));
    assert_eq!(ack.shim.seg_off, send.shim.epoch);
}
