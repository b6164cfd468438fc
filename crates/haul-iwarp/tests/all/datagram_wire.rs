//! The bytes of datagrams: the reference's vectors, round trips, and every contradiction that a
//! datagram can have.

use haul_iwarp::datagram::wire::{
    ACK_RANGES_MAX, ANY_QPN, Ack, Body, COOKIE_LEN, Close, Cookie, DATA_HEADER_MAX, DataHeader,
    Datagram, Flags, Hello, Kind, MsgId, Notice, NoticeCode, Opcode, Probe, Psn, Rate, Reject,
    Shim, Terms,
};
use haul_iwarp::wire::ddp::Model;
use haul_iwarp::wire::rdmap;
use haul_iwarp::{Crc32c, Stag};
use proptest::prelude::*;

const SEND: &str = "d1008000 00000012 00000034 cafef00d 00000001 00000001 00000004 00000000
    4143 00000000 00000000 00000001 00000000 70696e67 73f2050a";
const RECORD: [&str; 2] = [
    "d1000000 00000012 00000034 cafef00d 00000002 00000002 00000014 00000000
    814c 11223300 0000000000001000 000102030405060708090a0b 61c3f3a0",
    "d1008000 00000012 00000034 cafef00d 00000003 00000002 00000014 0000000c
    c14c 11223300 000000000000100c 0c0d0e0f10111213 667df18a",
];
const ACK: &str = "d1012000 00000034 00000012 deadbeef 00000007 00000000 00000000 00000000
    0000000a 0000040a 00012345 000000fa 0002 0000 0000000c 0000000e 00000014 00000015 3b2538eb";

fn octets(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pair = |pair: &[u8]| {
        u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("digits")
    };
    digits.chunks(2).map(pair).collect()
}

fn shim() -> Shim {
    Shim {
        kind: Kind::Data,
        flags: Flags::LAST,
        dst_qpn: 0x12,
        src_qpn: 0x34,
        epoch: 0xcafe_f00d,
        psn: Psn(1),
        msg_id: MsgId(1),
        msg_len: 4,
        seg_off: 0,
    }
}

fn untagged(msn: u32, mo: u32) -> Model {
    Model::Untagged {
        ulp: 0,
        qn: 0,
        msn,
        mo,
    }
}

fn sealed(header: &DataHeader<'_>, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0; DATA_HEADER_MAX];
    let len = header.emit(&mut out);
    out.truncate(len);
    out.extend_from_slice(payload);
    resealed(out)
}

fn resealed(mut covered: Vec<u8>) -> Vec<u8> {
    let mut crc = Crc32c::new();
    crc.update(&covered);
    covered.extend_from_slice(&crc.to_wire());
    covered
}

fn send() -> DataHeader<'static> {
    DataHeader {
        shim: shim(),
        ext: &[],
        opcode: Opcode::Rdmap(rdmap::Opcode::Send),
        model: untagged(1, 0),
    }
}

fn record(seg_off: u32, flags: Flags) -> DataHeader<'static> {
    DataHeader {
        shim: Shim {
            flags,
            psn: Psn(2).plus(seg_off / 12),
            msg_id: MsgId(2),
            msg_len: 20,
            seg_off,
            ..shim()
        },
        ext: &[],
        opcode: Opcode::WriteRecord,
        model: Model::Tagged {
            stag: Stag(0x1122_3300),
            to: 0x1000 + u64::from(seg_off),
        },
    }
}

#[test]
fn the_reference_encoders_vectors_come_out_and_go_in() {
    let all: Vec<u8> = (0..20).collect();
    assert_eq!(sealed(&send(), b"ping"), octets(SEND));
    assert_eq!(
        sealed(&record(0, Flags::NONE), &all[..12]),
        octets(RECORD[0])
    );
    assert_eq!(
        sealed(&record(12, Flags::LAST), &all[12..]),
        octets(RECORD[1])
    );

    let bytes = octets(RECORD[1]);
    let Body::Data(segment) = Datagram::open(&bytes).unwrap().body else {
        panic!("no DATA");
    };
    assert_eq!(segment.opcode, Opcode::WriteRecord);
    assert_eq!(segment.payload, &all[12..]);

    let ranges = [(Psn(12), Psn(14)), (Psn(20), Psn(21))];
    let ack = Ack::new(Psn(10), Psn(1034), 0x12345, 250, &ranges);
    let head = Shim {
        kind: Kind::Ack,
        flags: Flags::RD,
        dst_qpn: 0x34,
        src_qpn: 0x12,
        epoch: 0xdead_beef,
        psn: Psn(7),
        msg_id: MsgId(0),
        msg_len: 0,
        seg_off: 0,
    };
    let mut out = [0; 600];
    let len = Body::Ack(ack).emit(&head, &mut out);
    assert_eq!(out[..len], octets(ACK));
    let read = Datagram::open(&out[..len]).unwrap();
    assert_eq!((read.shim, read.body), (head, Body::Ack(ack)));
}

#[test]
fn a_flip_of_any_bit_is_noticed() {
    for vector in [SEND, RECORD[0], RECORD[1], ACK] {
        let good = octets(vector);
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let wanted = if bit < 8 {
                Reject::Foreign
            } else {
                Reject::Crc
            };
            assert_eq!(Datagram::open(&bad), Err(wanted), "bit {bit}");
        }
    }
}

#[test]
fn no_length_cut_short_is_taken() {
    for vector in [SEND, RECORD[1], ACK] {
        let good = octets(vector);
        let covered = &good[..good.len() - 4];
        for len in 0..covered.len() {
            let cut = resealed(covered[..len].to_vec());
            assert!(Datagram::open(&cut).is_err(), "{len} octets");
        }
    }
}

/// A change to a header, and the expected error.
type Lie = (&'static str, fn(&mut DataHeader<'static>));

#[test]
fn contradictions_are_malformed() {
    let lies: [Lie; 14] = [
        ("last segment", |h| h.shim.flags = Flags::NONE),
        ("last segment", |h| h.shim.msg_len = 30),
        ("beyond the message", |h| h.shim.msg_len = 19),
        ("beyond the message", |h| {
            h.shim.seg_off = u32::MAX;
        }),
        ("DDP header and shim disagree", |h| {
            h.model = untagged(2, 12);
        }),
        ("DDP header and shim disagree", |h| {
            h.model = Model::Tagged {
                stag: Stag(1),
                to: 11,
            };
        }),
        ("DDP header and shim disagree", |h| {
            h.model = Model::Tagged {
                stag: Stag(1),
                to: u64::MAX - 6,
            };
        }),
        ("QPN", |h| h.shim.src_qpn = ANY_QPN),
        ("QPN", |h| h.shim.dst_qpn = ANY_QPN + 1),
        ("epoch zero", |h| h.shim.epoch = 0),
        ("group and QPN", |h| h.shim.dst_qpn = ANY_QPN),
        ("response", |h| {
            h.shim.flags = h.shim.flags.with(Flags::RESP);
        }),
        ("a flag of RD without RD", |h| {
            h.shim.flags = h.shim.flags.with(Flags::RTX);
        }),
        ("no timestamp", |h| {
            h.shim.flags = h.shim.flags.with(Flags::RD);
        }),
    ];
    for (why, lie) in lies {
        let mut header = record(12, Flags::LAST);
        lie(&mut header);
        let bytes = sealed(&header, &[7; 8]);
        assert_eq!(
            Datagram::open(&bytes),
            Err(Reject::Malformed(why)),
            "{header:?}"
        );
    }
    let mut empty = record(0, Flags::NONE);
    empty.shim.msg_len = 1;
    assert_eq!(
        Datagram::open(&sealed(&empty, &[])),
        Err(Reject::Malformed("empty segment"))
    );
    for (model, shim) in [
        (untagged(2, 0), shim()),
        (untagged(1, 1), shim()),
        (
            Model::Untagged {
                ulp: 0,
                qn: 1,
                msn: 1,
                mo: 0,
            },
            shim(),
        ),
    ] {
        let header = DataHeader {
            model,
            shim,
            ..send()
        };
        assert_eq!(
            Datagram::open(&sealed(&header, b"ping")),
            Err(Reject::Malformed("DDP header and shim disagree"))
        );
    }
}

#[test]
fn immediate_data_is_in_two_words() {
    let header = DataHeader {
        ext: &[0x0123_4567, 0x89ab_cdef],
        opcode: Opcode::WriteRecordImmediate,
        ..record(12, Flags::LAST)
    };
    let bytes = sealed(&header, &[1; 8]);
    let Body::Data(segment) = Datagram::open(&bytes).unwrap().body else {
        panic!("no DATA");
    };
    assert_eq!(segment.immediate(), Some(0x0123_4567_89ab_cdef));
    let none = DataHeader { ext: &[], ..header };
    assert_eq!(
        Datagram::open(&sealed(&none, &[1; 8])),
        Err(Reject::Malformed("EXT words"))
    );
}

#[test]
fn a_cookie_is_no_longer_than_the_hello_that_asked() {
    let mut out = [0; 600];
    let hello = Body::Hello(Hello {
        cookie: None,
        terms: Terms::default(),
    });
    let asked = hello.emit(&shim(), &mut out);
    let cookie = Body::Cookie(Cookie([1; COOKIE_LEN]));
    assert!(cookie.emit(&shim(), &mut out) <= asked);
}

fn psn() -> impl Strategy<Value = Psn> {
    any::<u32>().prop_map(Psn)
}

fn emitted(body: &Body<'_>) -> Vec<u8> {
    let mut out = vec![0xff; 9_000];
    let len = body.emit(&shim(), &mut out);
    out.truncate(len);
    out
}

fn survives(body: &Body<'_>) {
    let bytes = emitted(body);
    let read = Datagram::open(&bytes).expect("our own");
    assert_eq!(read.body, *body);
    assert_eq!(read.shim.kind, body.kind());
    assert_eq!(read.wire_len, bytes.len());
}

proptest! {
    #[test]
    fn acks_survive(
        cum in psn(),
        limit in psn(),
        echo in any::<u32>(),
        delay in any::<u32>(),
        ranges in prop::collection::vec((psn(), psn()), 0..40),
    ) {
        let ack = Ack::new(cum, limit, echo, delay, &ranges);
        prop_assert!(ack.ranges().count() <= ACK_RANGES_MAX);
        survives(&Body::Ack(ack));
    }

    #[test]
    fn hellos_survive(
        cookie in any::<[u8; COOKIE_LEN]>(),
        numbers in any::<(u32, u32, u32, u16, u16, u16)>(),
        private in prop::collection::vec(any::<u8>(), 0..512),
    ) {
        let (caps, init_psn, window, max_seg, ird, ord) = numbers;
        let init_psn = Psn(init_psn);
        let terms = Terms { caps, init_psn, window, max_seg, ird, ord, private: &private };
        let cookie = (cookie != [0; COOKIE_LEN]).then_some(Cookie(cookie));
        survives(&Body::Hello(Hello { cookie, terms }));
        survives(&Body::Ready(terms));
        survives(&Body::Cookie(Cookie([3; COOKIE_LEN])));
    }

    #[test]
    fn the_other_types_survive(
        n in any::<[u32; 8]>(),
        octets in any::<u64>(),
        code in 6_u16..,
        size in 44_u32..9_000,
    ) {
        survives(&Body::Rate(Rate {
            interval_us: n[0],
            packets: n[1],
            octets,
            lost: n[2],
            duplicate: n[3],
            ce: n[4],
            no_buffer: n[5],
            hint_kbps: n[6],
        }));
        for code in [
            NoticeCode::Rnr,
            NoticeCode::TooLong,
            NoticeCode::Access,
            NoticeCode::Unsupported,
            NoticeCode::UnknownPeer,
            NoticeCode::Other(code),
        ] {
            survives(&Body::Notice(Notice { code, detail: n[7] }));
        }
        survives(&Body::Close(Close { code }));
        survives(&Body::Probe(Probe { token: n[0], size }));
        survives(&Body::ProbeAck(Probe { token: n[0], size: n[1] }));
        prop_assert_eq!(emitted(&Body::Probe(Probe { token: 1, size })).len(), size as usize);
    }

    #[test]
    fn segments_survive(
        psn in psn(),
        off in any::<u16>(),
        rest in any::<u16>(),
        payload in prop::collection::vec(any::<u8>(), 1..1_500),
        to in any::<u32>(),
        sent in any::<u32>(),
        reliable in any::<bool>(),
    ) {
        let len = u32::from(off) + u32::from(rest) + u32::try_from(payload.len()).unwrap();
        let header = DataHeader {
            shim: Shim {
                flags: Flags::NONE
                    .with_if(Flags::LAST, rest == 0)
                    .with_if(Flags::RD, reliable),
                psn,
                msg_len: len,
                seg_off: u32::from(off),
                ..shim()
            },
            ext: if reliable { &[sent] } else { &[] },
            opcode: Opcode::WriteRecord,
            model: Model::Tagged { stag: Stag(to), to: u64::from(to) + u64::from(off) },
        };
        let bytes = sealed(&header, &payload);
        let read = Datagram::open(&bytes).unwrap();
        prop_assert_eq!(read.shim, header.shim);
        let Body::Data(segment) = read.body else { panic!("no DATA") };
        prop_assert_eq!(segment.model, header.model);
        prop_assert_eq!(segment.timestamp, reliable.then_some(sent));
        prop_assert_eq!(segment.payload, &payload[..]);
    }

    #[test]
    fn bytes_with_a_good_crc_do_no_harm(mut octets in prop::collection::vec(any::<u8>(), 0..200)) {
        if octets.len() > 2 {
            (octets[0], octets[1]) = (0xd1, octets[1] % 11);
        }
        let _ = Datagram::open(&resealed(octets));
    }
}
