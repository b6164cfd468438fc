//! Bytes made by an independent generator and accepted by tshark's dissectors, figures 5 and 6 of
//! RFC 5044 among them: they are read as they are meant, and made by our ends exactly as they
//! stand.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::common;

use std::collections::BTreeMap;

use common::{End, config, ends, everything, pattern, settle};
use haul_iwarp::ReliableConnection as _;
use haul_iwarp::wire::ddp::{Header, Model};
use haul_iwarp::wire::mpa::{Enhanced, FRAME_LEN, FrameHead, FrameKind, RtrKinds};
use haul_iwarp::wire::rdmap::{
    AtomicOp, AtomicRequest, AtomicResponse, Opcode, ReadRequest, Terminate, parse_immediate,
};
use haul_iwarp::{CompletionKind, Crc32c, Error, Operation, Stag, Status, TermCode};

const SOURCE: &str = include_str!("../data/vectors.txt");

/// Name to bytes: lines `name [len]:`, then the bytes in groups.
fn vectors() -> BTreeMap<&'static str, Vec<u8>> {
    let mut vectors = BTreeMap::new();
    let mut lines = SOURCE.lines();
    while let Some(line) = lines.next() {
        let Some((name, len)) = line
            .strip_suffix("]:")
            .and_then(|line| line.split_once(" ["))
        else {
            continue;
        };
        let digits: String = lines.next().unwrap().split_whitespace().collect();
        let octets: Vec<u8> = (0..digits.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
            .collect();
        assert_eq!(octets.len(), len.parse::<usize>().unwrap(), "{name}");
        vectors.insert(name, octets);
    }
    vectors
}

fn vector(name: &str) -> Vec<u8> {
    vectors()[name].clone()
}

/// Header, payload and CRC of an FPDU without markers.
fn split(fpdu: &[u8]) -> (Header, &[u8]) {
    let len = usize::from(u16::from_be_bytes([fpdu[0], fpdu[1]]));
    let (body, crc) = fpdu.split_last_chunk::<4>().unwrap();
    assert_eq!(body.len(), (2 + len).next_multiple_of(4), "padding");
    assert!(body[2 + len..].iter().all(|octet| *octet == 0));
    let mut digest = Crc32c::new();
    digest.update(body);
    assert_eq!(digest.to_wire(), *crc, "CRC");
    let header = Header::parse(&body[2..2 + len]).unwrap();
    let mut emitted = [0; 18];
    let header_len = header.emit(&mut emitted);
    assert_eq!(
        emitted[..header_len],
        body[2..2 + header_len],
        "parse and emit"
    );
    (header, &body[2 + header_len..2 + len])
}

fn opcode(name: &str) -> Opcode {
    let octets = vector(name);
    let (header, _) = split(&octets);
    let opcode = Opcode::parse(header.control).unwrap();
    assert_eq!(opcode.emit(), header.control);
    opcode
}

#[test]
fn every_segment_has_the_opcode_and_the_crc_that_it_should_have() {
    let expected = [
        ("rtr_write0", Opcode::Write),
        ("send", Opcode::Send),
        ("send_se", Opcode::SendSolicited),
        ("send_inv", Opcode::SendInvalidate),
        ("write_seg0", Opcode::Write),
        ("write_seg1", Opcode::Write),
        ("read_req", Opcode::ReadRequest),
        ("read_resp", Opcode::ReadResponse),
        ("atomic_fadd_req", Opcode::AtomicRequest),
        ("atomic_resp", Opcode::AtomicResponse),
        ("atomic_cas_req", Opcode::AtomicRequest),
        ("atomic_resp2", Opcode::AtomicResponse),
        ("imm", Opcode::Immediate),
        ("terminate_ddp", Opcode::Terminate),
        ("terminate_rdmap", Opcode::Terminate),
    ];
    for (name, wanted) in expected {
        assert_eq!(opcode(name), wanted, "{name}");
    }
    // The rest: frames, and FPDUs with markers. Each has a test of its own.
    let others = ["fig5", "fig6", "marker1000", "mpa_rep", "mpa_req"];
    assert_eq!(expected.len() + others.len(), vectors().len());
    assert!(others.iter().all(|name| vectors().contains_key(name)));
}

#[test]
fn start_up_frames_are_read_and_written() {
    for (name, kind, private) in [
        ("mpa_req", FrameKind::Request, &b"hello"[..]),
        ("mpa_rep", FrameKind::Reply, b"ok"),
    ] {
        let octets = vector(name);
        let (fixed, data) = octets.split_first_chunk::<FRAME_LEN>().unwrap();
        let head = FrameHead::parse(fixed, kind).unwrap();
        assert!(head.crc && head.enhanced && !head.markers && !head.reject);
        assert_eq!(
            (head.revision, usize::from(head.private_len)),
            (2, data.len())
        );
        assert_eq!(head.emit(), *fixed);
        let (enhanced, rest) = Enhanced::parse(data).unwrap();
        let kinds = RtrKinds {
            write: true,
            read: kind == FrameKind::Request,
            send: false,
        };
        assert_eq!(enhanced.peer_to_peer, Some(kinds), "{name}");
        assert_eq!((enhanced.ird, enhanced.ord), (16, 16));
        assert_eq!(enhanced.emit(), data[..4]);
        assert_eq!(rest, private);
    }
}

#[test]
fn what_operations_carry_is_read_and_written() {
    let octets = vector("read_req");
    let (_, payload) = split(&octets);
    let request = ReadRequest::parse(payload).unwrap();
    let wanted = ReadRequest {
        sink: Stag(0xaabb_cc00),
        sink_to: 0x1000,
        len: 8,
        source: Stag(0x1122_3300),
        source_to: 0x7f00_0000_1000,
    };
    assert_eq!(request, wanted);
    assert_eq!(request.emit(), *payload);

    for (name, id, op) in [
        ("atomic_fadd_req", 7, AtomicOp::FetchAdd { add: 5, mask: 0 }),
        ("atomic_cas_req", 8, CAS),
    ] {
        let octets = vector(name);
        let (_, payload) = split(&octets);
        let request = AtomicRequest::parse(payload).unwrap();
        let (stag, to) = (wanted.source, wanted.source_to);
        assert_eq!(request, AtomicRequest { id, stag, to, op }, "{name}");
        assert_eq!(request.emit(), *payload);
    }
    for (name, id, original) in [
        ("atomic_resp", 7, 0x0706_0504_0302_0100),
        ("atomic_resp2", 8, 5),
    ] {
        let octets = vector(name);
        let (_, payload) = split(&octets);
        let response = AtomicResponse::parse(payload).unwrap();
        assert_eq!(response, AtomicResponse { id, original });
        assert_eq!(response.emit(), *payload);
    }
    let octets = vector("imm");
    assert_eq!(parse_immediate(split(&octets).1), Ok(0x1122_3344_5566_7788));
}

#[test]
fn terminates_are_read_and_written() {
    for (name, code, blamed, read) in [
        ("terminate_ddp", TermCode::DDP_BOUNDS, "write_seg0", false),
        ("terminate_rdmap", TermCode::ACCESS, "read_req", true),
    ] {
        let octets = vector(name);
        let (_, payload) = split(&octets);
        let terminate = Terminate::parse(payload);
        assert_eq!(terminate.code, code);
        let blamed = vector(blamed);
        let header_len = Header::len_of(blamed[2]);
        let mut header: [u8; 18] = terminate.header.unwrap();
        if read {
            assert_eq!(header[13], 4, "the generator blames message 4");
            header[13] = 1;
        } else {
            assert_eq!(header[0], 0xc1, "the generator blames a last segment");
            header[0] = 0x81;
        }
        assert_eq!(header[..header_len], blamed[2..2 + header_len], "{name}");
        let request = read.then(|| ReadRequest::parse(split(&blamed).1).unwrap());
        assert_eq!(terminate.read, request);
        let len = u16::from_be_bytes([blamed[0], blamed[1]]);
        assert_eq!(terminate.segment_len, Some(len));
        let mut emitted = [0; 52];
        let emitted_len = terminate.emit(&mut emitted);
        assert_eq!(emitted[..emitted_len], *payload, "{name}");
    }
}

const CAS: AtomicOp = AtomicOp::CmpSwap {
    swap: 9,
    swap_mask: u64::MAX,
    compare: 5,
    compare_mask: u64::MAX,
};

/// Ends configured as the generator is: peer to peer, capabilities offered by the first byte of
/// private data only.
fn open() -> (End, End) {
    let kinds = RtrKinds {
        write: true,
        read: true,
        send: false,
    };
    let mut initiator = config();
    initiator.peer_to_peer = Some(kinds);
    common::pair(initiator, config())
}

#[test]
fn our_ends_make_the_same_octets() {
    let (mut a, mut b) = open();
    let (source, source_to) = (Stag(0x1122_3300), 0x7f00_0000_1000);
    let mut word = pattern(64, 0);
    word[..8].copy_from_slice(&[0, 1, 2, 3, 4, 5, 6, 7]);
    b.ram.register(source.0, source_to, word, everything());
    b.ram.register(0x1122_3344, 0, vec![0; 8], everything());
    a.ram
        .register(0xaabb_cc00, 0x1000, vec![0; 8], everything());
    for id in 1..=3 {
        b.post_receive(id, 64);
    }
    let send = |solicited, invalidate| Operation::Send {
        solicited,
        invalidate,
    };
    let read = Operation::Read {
        sink: Stag(0xaabb_cc00),
        sink_to: 0x1000,
        source,
        source_to,
    };
    let atomic = |op| Operation::Atomic {
        stag: source,
        to: source_to,
        op,
    };
    let placed = false;
    a.post_send(1, send(false, None), b"hello world!".to_vec());
    a.post_send(2, send(false, Some(Stag(0x1122_3344))), b"x".to_vec());
    a.post_send(
        3,
        Operation::Immediate {
            data: 0x1122_3344_5566_7788,
            solicited: false,
        },
        vec![],
    );
    a.post_read(4, read, 8);
    for id in 5..=6 {
        a.post_send(
            id,
            Operation::Write {
                stag: source,
                to: 0,
                placed,
            },
            vec![],
        );
    }
    a.post_read(7, atomic(AtomicOp::FetchAdd { add: 5, mask: 0 }), 8);
    settle(&mut a, &mut b);
    b.ram.regions[0][..8].copy_from_slice(&5_u64.to_le_bytes());
    a.post_read(8, atomic(CAS), 8);
    settle(&mut a, &mut b);
    let names = ["rtr_write0", "send", "send_inv", "imm", "read_req"];
    for (at, name) in names.into_iter().enumerate() {
        assert_eq!(a.fpdus[at], vector(name), "{name}");
    }
    assert_eq!(a.fpdus[7], vector("atomic_fadd_req"));
    assert_eq!(a.fpdus[8], vector("atomic_cas_req"));
    for (at, name) in ["read_resp", "atomic_resp", "atomic_resp2"]
        .into_iter()
        .enumerate()
    {
        assert_eq!(b.fpdus[at], vector(name), "{name}");
    }
    assert_eq!(b.ram.regions[0][..8], 9_u64.to_le_bytes());
    assert_eq!(b.ram.invalidated, [Stag(0x1122_3344)]);
    let originals: Vec<_> = a.completions[6..].iter().map(|done| done.kind).collect();
    let atomic = |original| CompletionKind::Atomic { original };
    assert_eq!(originals, [atomic(0x0706_0504_0302_0100), atomic(5)]);
}

#[test]
fn our_ends_take_the_same_octets() {
    let (mut a, mut b) = open();
    b.ram
        .register(0x1122_3300, 0x7f00_0000_1000, vec![0; 70], everything());
    b.ram.register(0x1122_3344, 0, vec![0; 8], everything());
    b.post_receive(1, 12);
    b.post_receive(2, 1);
    b.post_receive(3, 0);
    settle(&mut a, &mut b);
    for name in [
        "write_seg0",
        "write_seg1",
        "send",
        "send_inv",
        "imm",
        "read_req",
        "atomic_fadd_req",
    ] {
        b.feed(&vector(name));
    }
    assert_eq!(b.connection.error(), None);
    let ascending: Vec<u8> = (0..70).collect();
    assert_eq!(b.ram.regions[0][8..], ascending[8..]);
    assert_eq!(
        b.ram.regions[0][..8],
        (0x0706_0504_0302_0100_u64 + 5).to_le_bytes()
    );
    assert_eq!(b.ram.receives[&1], b"hello world!");
    assert_eq!(b.ram.receives[&2], b"x");
    let immediate = CompletionKind::ReceiveImmediate {
        data: 0x1122_3344_5566_7788,
        solicited: false,
    };
    assert_eq!(b.completions[2].kind, immediate);
    assert_eq!(b.fpdus, [vector("read_resp"), vector("atomic_resp")]);

    // The first message of another connection.
    let (_, mut b) = open();
    b.post_receive(1, 4);
    b.feed(&vector("send_se"));
    let kind = CompletionKind::Receive {
        solicited: true,
        invalidated: None,
    };
    assert_eq!(
        (b.completions[0].kind, b.completions[0].status),
        (kind, Status::Success)
    );
    assert_eq!(b.ram.receives[&1], b"ping");
}

#[test]
fn a_terminate_is_reported_to_the_user() {
    for (name, code) in [
        ("terminate_ddp", TermCode::DDP_BOUNDS),
        ("terminate_rdmap", TermCode::ACCESS),
    ] {
        let (_, mut b) = open();
        b.feed(&vector(name));
        assert_eq!(
            b.connection.error(),
            Some(Error::Terminated(code)),
            "{name}"
        );
        assert!(b.fpdus.is_empty(), "a Terminate is not answered");
    }
}

/// A responder that wants markers, and an initiator that obliges.
fn with_markers() -> (End, End) {
    let mut responder = config();
    responder.markers = true;
    responder.extensions = false;
    common::pair(config(), responder)
}

#[test]
fn markers_stand_where_figures_5_and_6_have_them() {
    let send = Operation::Send {
        solicited: false,
        invalidate: None,
    };
    let (mut a, mut b) = with_markers();
    b.post_receive(1, 24);
    a.post_send(1, send, vec![0; 24]);
    settle(&mut a, &mut b);
    assert_eq!(a.fpdus, [vector("fig5")]);
    assert_eq!(b.completions.len(), 1);

    // Figure 6 begins at 0x1ec: the first message fills the stream up to there.
    let (mut a, mut b) = with_markers();
    b.post_receive(1, 464);
    b.post_receive(2, 24);
    a.post_send(1, send, vec![1; 464]);
    a.post_send(2, send, vec![0; 24]);
    settle(&mut a, &mut b);
    assert_eq!(a.fpdus[0].len(), 0x1ec);
    assert_eq!(a.fpdus[1], vector("fig6"));
    assert_eq!(b.completions.len(), 2);

    // A message of 1,000 bytes after that of figure 5; the vector is its beginning, its length
    // stands beside it.
    let (mut a, mut b) = with_markers();
    b.post_receive(1, 24);
    b.post_receive(2, 1_000);
    a.post_send(1, send, vec![0; 24]);
    a.post_send(2, send, vec![7; 1_000]);
    settle(&mut a, &mut b);
    assert_eq!(a.fpdus[1][..8], vector("marker1000"));
    assert_eq!(SOURCE.lines().last(), Some("1032"));
    assert_eq!(a.fpdus[1].len(), 1_032);
    assert_eq!(b.ram.receives[&2], vec![7; 1_000]);
}

#[test]
fn an_octet_that_is_wrong_anywhere_is_noticed() {
    for name in ["send", "write_seg0", "read_req"] {
        let good = vector(name);
        for at in 0..good.len() {
            let (_, mut b) = open();
            b.ram
                .register(0x1122_3300, 0x7f00_0000_1000, vec![0; 70], everything());
            b.post_receive(1, 64);
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            b.feed(&bad);
            // A length that grew has to be filled before its CRC is there to be wrong.
            b.feed(&vec![0; 66_000]);
            assert_eq!(
                b.connection.error(),
                Some(Error::PeerMisbehaved(TermCode::MPA_CRC)),
                "{name}, octet {at}"
            );
            assert_eq!(
                b.completions
                    .iter()
                    .filter(|c| c.status == Status::Success)
                    .count(),
                0
            );
            let (_, payload) = split(&b.fpdus[0]);
            assert_eq!(
                Terminate::parse(payload),
                Terminate::bare(TermCode::MPA_CRC)
            );
        }
    }
}

#[test]
fn queue_numbers_are_those_of_the_rfcs() {
    for (name, queue) in [
        ("send", 0),
        ("imm", 0),
        ("read_req", 1),
        ("atomic_fadd_req", 1),
        ("terminate_ddp", 2),
        ("atomic_resp", 3),
    ] {
        let octets = vector(name);
        let (header, _) = split(&octets);
        let Model::Untagged { qn, .. } = header.model else {
            panic!("{name} is untagged");
        };
        assert_eq!(qn, queue, "{name}");
    }
    let (_, b) = ends(config(), config(), b"");
    assert!(b.fpdus.is_empty());
}
