//! Reads over datagrams, and how sources make themselves known.

use crate::common;

use common::datagrams::{BASE, MS, Net, Node, Weather, at, completions, config, resealed};
use common::pattern;
use haul_iwarp::Operation;
use haul_iwarp::datagram::wire::{
    Body, Cookie, DATA_HEADER_MAX, DataHeader, Flags, Hello, Kind, MsgId, Opcode, Psn, Rate, Shim,
    Terms,
};
use haul_iwarp::datagram::{Action, Reason, Source, UdConfig, UdEvent, UdStatus, ValidityMap};
use haul_iwarp::wire::ddp::Model;
use haul_iwarp::wire::rdmap::{self, ReadRequest};
use haul_iwarp::{Crc32c, Rights, SECOND_NS, Stag};

const SOURCE_TAG: Stag = Stag(0x5500_0001);
const SINK_TAG: Stag = Stag(0x6600_0001);
const SIZE: u32 = 100_000;

fn read_op(offset: u64) -> Operation {
    Operation::Read {
        sink: SINK_TAG,
        sink_to: BASE,
        source: SOURCE_TAG,
        source_to: offset,
    }
}

/// A requester and a responder with something to read.
fn readers(weather: Weather, seed: u64) -> Net {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    a.ram.register(
        SINK_TAG.0,
        BASE,
        vec![0; SIZE as usize],
        Rights::LOCAL_WRITE,
    );
    b.ram.register(
        SOURCE_TAG.0,
        0,
        pattern(SIZE as usize, 5),
        Rights::REMOTE_READ,
    );
    Net::new(vec![a, b], weather, seed)
}

#[test]
fn a_read_makes_itself_known_and_brings_the_octets() {
    let mut net = readers(
        Weather {
            delay_ns: MS,
            ..Weather::default()
        },
        1,
    );
    let to = net.nodes[1].destination();
    net.nodes[0].read(to, read_op(100), SIZE - 100);
    net.nodes[0].read(to, read_op(0), 0);
    net.run(SECOND_NS);
    let [a, b] = &net.nodes[..] else {
        unreachable!()
    };
    let done = completions(a);
    assert_eq!(done.len(), 2, "{:?}", a.events);
    assert!(done.iter().all(|done| done.status == UdStatus::Success));
    assert_eq!(
        a.ram.regions[0][..SIZE as usize - 100],
        b.ram.regions[0][100..]
    );
    assert!(a.events.contains(&UdEvent::Validated { to, known: true }));
    let wire = u64::from(SIZE) + 50 * 300;
    assert!((b.octets_sent as u64) < wire, "nothing was sent twice");
    assert!(
        net.nodes
            .iter()
            .all(|node| node.ud.poll_timeout().is_none())
    );
}

#[test]
fn what_is_missing_of_a_read_is_asked_for_again() {
    for seed in 0..30 {
        let mut net = readers(
            Weather {
                loss: 200,
                double: 50,
                delay_ns: 2 * MS,
                jitter_ns: MS,
                ..Weather::default()
            },
            seed,
        );
        let to = net.nodes[1].destination();
        net.nodes[0].read(to, read_op(0), SIZE);
        net.run(20 * SECOND_NS);
        let [a, b] = &net.nodes[..] else {
            unreachable!()
        };
        assert_eq!(completions(a)[0].status, UdStatus::Success, "seed {seed}");
        assert_eq!(a.ram.regions[0], b.ram.regions[0]);
        assert!(b.octets_sent < 3 * SIZE as usize, "only what is missing");
    }
}

#[test]
fn a_read_without_an_answer_ends() {
    let mut net = readers(
        Weather {
            loss: 1_000,
            ..Weather::default()
        },
        1,
    );
    let to = net.nodes[1].destination();
    net.nodes[0].read(to, read_op(0), SIZE);
    net.run(60 * SECOND_NS);
    let done = completions(&net.nodes[0]);
    assert_eq!((done[0].status, done[0].len), (UdStatus::TimedOut, 0));
    assert_eq!(net.nodes[0].ud.outstanding(), 0);
}

#[test]
fn a_read_that_stops_in_the_middle_ends_in_part() {
    let mut net = readers(Weather::default(), 1);
    let to = net.nodes[1].destination();
    net.nodes[0].read(to, read_op(0), SIZE);
    let mut answers = 0;
    while net.nodes[0].placed.len() < 30 {
        assert!(net.step(at(100), |_, _| ()));
        answers += 1;
        assert!(answers < 1_000);
    }
    net.nodes[1].ram.stags.clear();
    net.lose_all();
    net.run(60 * SECOND_NS);
    let a = &net.nodes[0];
    let done = completions(a)[0];
    assert_eq!(done.status, UdStatus::Partial);
    let ValidityMap::Ranges(ranges) = &done.map else {
        panic!("{done:?}");
    };
    let valid: u32 = ranges.iter().map(|range| range.1 - range.0).sum();
    assert_eq!(valid, done.len);
    for (start, end) in ranges {
        let octets = *start as usize..*end as usize;
        assert_eq!(
            a.ram.regions[0][octets.clone()],
            net.nodes[1].ram.regions[0][octets]
        );
    }
}

#[test]
fn a_read_ends_when_its_sink_goes() {
    let mut net = readers(Weather::default(), 1);
    let to = net.nodes[1].destination();
    net.nodes[0].read(to, read_op(0), SIZE);
    while net.nodes[0].placed.is_empty() {
        assert!(net.step(at(100), |_, _| ()));
    }
    net.nodes[0].ram.stags.clear();
    net.run(SECOND_NS);
    assert_eq!(
        completions(&net.nodes[0])[0].status,
        UdStatus::LocalProtection
    );
    assert_eq!(net.nodes[0].placed.len(), 1);
}

#[test]
fn a_responder_that_forgot_is_made_to_know_again() {
    let mut net = readers(
        Weather {
            delay_ns: MS,
            ..Weather::default()
        },
        1,
    );
    let to = net.nodes[1].destination();
    net.nodes[0].read(to, read_op(0), 1_000);
    net.run(SECOND_NS);
    let memory = std::mem::take(&mut net.nodes[1].ram);
    net.nodes[1] = Node::with(
        2,
        common::with(config(2), |config| {
            config.epoch = 99;
            config.key = [77; 16];
        }),
    );
    net.nodes[1].ram = memory;
    net.nodes[0].read(to, read_op(0), 1_000);
    net.run(5 * SECOND_NS);
    let done = completions(&net.nodes[0]);
    assert_eq!(done.len(), 2);
    assert!(done.iter().all(|done| done.status == UdStatus::Success));
}

#[test]
fn answers_are_accepted_from_the_requested_peer_only() {
    let mut net = readers(Weather::default(), 1);
    let (to, victim) = (net.nodes[1].destination(), net.nodes[0].addr);
    net.nodes[0].read(to, read_op(0), SIZE);
    let mut answers = Vec::new();
    for _ in 0..4 {
        for (_, bytes) in net.nodes[0].transmit(at(0)) {
            net.nodes[1].take(at(0), victim, &bytes);
        }
        for (_, bytes) in net.nodes[1].transmit(at(0)) {
            if bytes[1] == 0 {
                answers.push(bytes);
            } else {
                net.nodes[0].take(at(0), to.addr, &bytes);
            }
        }
    }
    let a = &mut net.nodes[0];
    let other = ([192, 0, 2, 99], 4_791).into();
    assert_eq!(
        a.take(at(0), other, &answers[0]),
        Action::Drop(Reason::Unexpected)
    );
    let sink = resealed(&answers[0], |bytes| bytes[36] ^= 1);
    assert_eq!(
        a.take(at(0), to.addr, &sink),
        Action::Drop(Reason::Malformed)
    );
    assert!(matches!(
        a.take(at(0), to.addr, &answers[0]),
        Action::Place(_)
    ));
    let epoch = resealed(&answers[1], |bytes| bytes[15] ^= 1);
    assert_eq!(
        a.take(at(0), to.addr, &epoch),
        Action::Drop(Reason::Unexpected)
    );
    let unasked = resealed(&answers[1], |bytes| bytes[23] ^= 8);
    assert_eq!(
        a.take(at(0), to.addr, &unasked),
        Action::Drop(Reason::Unexpected)
    );
    assert_eq!(a.placed.len(), 1);
}

/// A Read Request that claims to come from `from`.
fn read_request(from: &Source, to: &Node, request: &ReadRequest) -> Vec<u8> {
    let header = DataHeader {
        shim: Shim {
            kind: Kind::Data,
            flags: Flags::LAST,
            dst_qpn: to.qpn,
            src_qpn: from.qpn,
            epoch: from.epoch,
            psn: Psn(1),
            msg_id: MsgId(1),
            msg_len: 28,
            seg_off: 0,
        },
        ext: &[],
        opcode: Opcode::Rdmap(rdmap::Opcode::ReadRequest),
        model: Model::Untagged {
            ulp: 0,
            qn: 1,
            msn: 1,
            mo: 0,
        },
    };
    let mut out = vec![0; DATA_HEADER_MAX];
    let len = header.emit(&mut out);
    out.truncate(len);
    out.extend_from_slice(&request.emit());
    let mut crc = Crc32c::new();
    crc.update(&out);
    out.extend_from_slice(&crc.to_wire());
    out
}

#[test]
fn an_unvalidated_peer_gets_no_more_bytes_than_it_sends() {
    let mut net = readers(Weather::default(), 1);
    let b = &mut net.nodes[1];
    b.ram.open.insert(SOURCE_TAG);
    let spoofed = Source {
        addr: ([203, 0, 113, 5], 53).into(),
        qpn: 5,
        epoch: 5,
    };
    let request = ReadRequest {
        sink: SINK_TAG,
        sink_to: 0,
        len: SIZE,
        source: SOURCE_TAG,
        source_to: 0,
    };
    let read = read_request(&spoofed, b, &request);
    assert_eq!(
        b.take(at(0), spoofed.addr, &read),
        Action::Drop(Reason::UnknownPeer)
    );
    assert_eq!(
        b.transmit(at(0)),
        [],
        "not even if its owner admits anybody"
    );

    let shim = Shim {
        kind: Kind::Hello,
        flags: Flags::NONE,
        dst_qpn: b.qpn,
        src_qpn: spoofed.qpn,
        epoch: spoofed.epoch,
        psn: Psn(0),
        msg_id: MsgId(9),
        msg_len: 0,
        seg_off: 0,
    };
    let mut octets_in = 0;
    for n in 0..3_u8 {
        for body in [
            Body::Hello(Hello {
                cookie: None,
                terms: Terms::default(),
            }),
            Body::Hello(Hello {
                cookie: Some(Cookie([n + 1; 16])),
                terms: Terms::default(),
            }),
            Body::Rate(Rate::default()),
            Body::Probe(haul_iwarp::datagram::wire::Probe { token: 1, size: 44 }),
        ] {
            let mut out = [0; 600];
            let len = body.emit(&shim, &mut out);
            octets_in += len;
            b.take(at(0), spoofed.addr, &out[..len]);
            b.transmit(at(0));
        }
    }
    assert!(b.octets_sent > 0 && b.octets_sent <= octets_in);
    assert_eq!(b.ud.counters().dropped(Reason::BadCookie), 3);
    assert_eq!(
        b.take(at(0), spoofed.addr, &read),
        Action::Drop(Reason::UnknownPeer)
    );
}

#[test]
fn a_cookie_is_good_for_its_source_and_its_time_only() {
    let mut b = Node::new(2);
    let mut a = Node::new(1);
    a.ud.validate(at(0), b.destination()).unwrap();
    let hello = a.transmit(at(0)).remove(0).1;
    b.take(at(0), a.addr, &hello);
    let cookie = b.transmit(at(0)).remove(0).1;
    a.take(at(0), b.addr, &cookie);
    let second = a.transmit(at(0)).remove(0).1;
    let elsewhere = ([192, 0, 2, 1], 4_792).into();
    let late = at(10_001);
    assert_eq!(
        b.take(at(1), elsewhere, &second),
        Action::Drop(Reason::BadCookie)
    );
    assert_eq!(
        b.take(late, a.addr, &second),
        Action::Drop(Reason::BadCookie)
    );
    let epoch = resealed(&second, |bytes| bytes[15] ^= 1);
    assert_eq!(
        b.take(at(1), a.addr, &epoch),
        Action::Drop(Reason::BadCookie)
    );
    assert_eq!(b.take(at(1), a.addr, &second), Action::Done);
}

#[test]
fn a_responder_does_what_it_is_asked_once_and_not_for_too_many() {
    let mut net = readers(Weather::default(), 1);
    let asker = net.nodes[0].source();
    let b = &mut net.nodes[1];
    b.ud.admit(&asker);
    let request = |len: u32, source_to: u64| ReadRequest {
        sink: SINK_TAG,
        sink_to: 0,
        len,
        source: SOURCE_TAG,
        source_to,
    };
    let wide = read_request(&asker, b, &request(SIZE, 1));
    assert_eq!(
        b.take(at(0), asker.addr, &wide),
        Action::Drop(Reason::Bounds)
    );
    let wraps = ReadRequest {
        sink_to: u64::MAX,
        ..request(10, 0)
    };
    let wraps = read_request(&asker, b, &wraps);
    assert_eq!(
        b.take(at(0), asker.addr, &wraps),
        Action::Drop(Reason::Malformed)
    );
    let good = read_request(&asker, b, &request(10, 0));
    assert_eq!(b.take(at(0), asker.addr, &good), Action::Done);
    assert_eq!(b.take(at(0), asker.addr, &good), Action::Drop(Reason::Busy));
    for n in 2..20 {
        let other = resealed(&good, |bytes| {
            bytes[23] = n;
            bytes[45] = n;
        });
        b.take(at(0), asker.addr, &other);
    }
    let per_source = UdConfig::default().read_jobs_per_source;
    assert_eq!(b.transmit(at(0)).len(), per_source);
}

#[test]
fn probes_and_rates_get_through() {
    let mut net = Net::new(vec![Node::new(1), Node::new(2)], Weather::default(), 1);
    let (a, b) = (net.nodes[0].source(), net.nodes[1].source());
    net.nodes[0].ud.probe(b.destination(), 17, 1_400);
    let rate = Rate {
        packets: 5,
        ..Rate::default()
    };
    net.nodes[1].ud.report_rate(&a, rate);
    net.run(MS);
    let probed = UdEvent::Probed {
        from: b,
        token: 17,
        size: 1_400,
    };
    assert_eq!(net.nodes[0].events, [probed], "no rate for unknown peers");
    net.nodes[1].ud.admit(&a);
    net.nodes[1].ud.report_rate(&a, rate);
    net.run(MS);
    assert_eq!(net.nodes[0].events[1], UdEvent::Rate { from: b, rate });
}
