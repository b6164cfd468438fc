//! Recorded libudt packets come out as they went in, and what is written is read the same.

use proptest::prelude::*;

use super::emit::emit;
use super::*;

const STREAM: &str = include_str!("../../tests/data/udt-stream.txt");
const DGRAM: &str = include_str!("../../tests/data/udt-dgram.txt");

/// The packets of a capture, payload left out.
fn packets(capture: &str) -> Vec<Vec<u8>> {
    let lines = capture.lines().filter(|line| !line.starts_with('#'));
    let hex = lines.map(|line| line.split(' ').nth(2).unwrap());
    hex.map(|hex| {
        let octets = (0..hex.len()).step_by(2);
        octets
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
            .collect()
    })
    .collect()
}

#[test]
fn every_recorded_packet_of_libudt_is_written_as_it_was_read() {
    let mut kinds = std::collections::BTreeSet::new();
    for capture in [STREAM, DGRAM] {
        for bytes in packets(capture) {
            let packet = Packet::parse(&bytes).unwrap();
            let destination = Packet::destination(&bytes).unwrap();
            assert_eq!(emit(&packet, destination), bytes, "{packet:?}");
            let name = format!("{packet:?}");
            let kind = name.split([' ', '{']).next().unwrap().to_owned();
            kinds.insert(kind);
        }
    }
    let expected = [
        "Control(Ack",
        "Control(Ack2",
        "Control(DropRequest",
        "Control(Handshake",
        "Control(Nak(LossRanges",
        "Control(Shutdown)",
        "Data(Data",
    ];
    assert!(kinds.iter().eq(expected), "{kinds:?}");
}

#[test]
fn a_plain_handshake_offers_nothing_and_ours_has_the_magic_number() {
    let first = &packets(STREAM)[0];
    let Ok(Packet::Control(Control::Handshake { body, offer, .. })) = Packet::parse(first) else {
        panic!("a handshake");
    };
    assert_eq!(offer, Offer::default());
    let mut out = Vec::new();
    let offer = Offer {
        placement: true,
        ecn: true,
        finish: true,
        check: false,
        path: true,
        seal: true,
    };
    ControlWriter::new(&mut out, SocketId(0)).handshake(&body, offer);
    assert_eq!(out[4..12], *b"\0\0\0\x6eHAUL");
    assert_eq!(out[16..], first[16..]);
}

#[test]
fn loss_lists_that_are_cut_or_run_backwards_are_refused() {
    let nak = |words: &[u32]| {
        let mut out = Vec::new();
        ControlWriter::new(&mut out, SocketId(1)).nak();
        words
            .iter()
            .for_each(|word| out.extend_from_slice(&word.to_be_bytes()));
        Packet::parse(&out).map(|_| ())
    };
    assert_eq!(nak(&[5, CONTROL_BIT | 7, 9]), Ok(()));
    assert_eq!(
        nak(&[CONTROL_BIT | 0x7fff_fff0, 3]),
        Ok(()),
        "across the wrap"
    );
    for bad in [
        &[5, CONTROL_BIT | 7][..],
        &[CONTROL_BIT | 7, CONTROL_BIT | 9],
        &[CONTROL_BIT | 9, 7],
    ] {
        assert_eq!(nak(bad), Err(ParseError::LossList));
    }
    assert!(nak(&[]).is_err());
}

fn any_kind() -> impl Strategy<Value = SocketKind> {
    prop_oneof![Just(SocketKind::Stream), Just(SocketKind::Datagram)]
}

fn any_request() -> impl Strategy<Value = RequestKind> {
    prop_oneof![
        Just(RequestKind::Induction),
        Just(RequestKind::Rendezvous),
        Just(RequestKind::Conclusion),
        Just(RequestKind::Agreement),
        (1_001_u32..0x7fff_ffff).prop_map(RequestKind::Rejected),
    ]
}

prop_compose! {
    fn any_handshake()(
        kind in any_kind(),
        request in any_request(),
        words in any::<[u32; 6]>(),
        peer in any::<[u32; 4]>().prop_map(PeerAddress),
    ) -> Handshake {
        Handshake {
            version: words[0],
            kind,
            initial: Seq::new(words[1]),
            mss: words[2],
            flight: words[3],
            request,
            socket: SocketId(words[4]),
            cookie: words[5],
            peer,
        }
    }
}

/// A loss list of ascending ranges, as bytes.
fn any_gaps() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec((1_u64..1_000, 0_u64..50), 1..40).prop_map(|ranges| {
        let (mut bytes, mut at) = (Vec::new(), 1 << 30);
        for (skip, more) in ranges {
            at += skip;
            push_range(&mut bytes, at, at + more);
            at += more + 1;
        }
        bytes
    })
}

fn any_control() -> impl Strategy<Value = Vec<u8>> {
    let written = |write: fn(ControlWriter<'_>, [u32; 6])| {
        any::<[u32; 6]>().prop_map(move |words| {
            let mut out = Vec::new();
            write(ControlWriter::new(&mut out, SocketId(words[5])), words);
            out
        })
    };
    prop_oneof![
        (any_handshake(), any::<[bool; 6]>()).prop_map(
            |(body, [placement, ecn, finish, check, path, seal])| {
                let mut out = Vec::new();
                ControlWriter::new(&mut out, SocketId(0)).handshake(
                    &body,
                    Offer {
                        placement,
                        ecn,
                        finish,
                        check,
                        path,
                        seal,
                    },
                );
                out
            }
        ),
        written(|writer, _| writer.keep_alive()),
        written(|writer, _| writer.shutdown()),
        written(|writer, words| writer.probe(words[0], 0)),
        written(|writer, words| writer.probe_answer(words[0])),
        written(|writer, words| writer.ack2(words[0])),
        written(|writer, words| writer.drop_request(words[0], words[1].into(), words[2].into())),
        written(|writer, words| writer.ack(
            words[0],
            &Ack {
                next: Seq::new(words[1]),
                rates: (words[2] > words[3]).then_some(AckRates {
                    rtt_us: words[1],
                    rtt_variation_us: words[2],
                    window_packets: words[3],
                    speed: (words[0] > words[3]).then_some((words[4], words[0])),
                }),
            },
        )),
        written(|writer, words| writer.sender_info(SenderInfo {
            feedback_interval_us: words[0],
            number: words[2],
            train_from: Seq::new(words[1]),
        })),
        any_gaps().prop_map(|gaps| {
            let mut out = Vec::new();
            ControlWriter::new(&mut out, SocketId(1)).nak();
            out.extend_from_slice(&gaps);
            out
        }),
        (any::<[u32; 16]>(), any::<[u64; 3]>(), any_gaps()).prop_map(|(words, long, gaps)| {
            let mut out = Vec::new();
            let fixed = Feedback {
                number: words[0],
                next: Seq::new(words[1]),
                highest: Seq::new(words[2]),
                echo: Seq::new(words[3]),
                echo_age_us: words[4],
                arrived_bytes: long[0],
                arrived_at_ns: long[1],
                packet_limit: Seq::new(words[5]),
                offset_limit: long[2],
                duplicates: words[6],
                reorder_us: words[7],
                train_from: Seq::new(words[13]),
                train_bytes: words[8],
                train_ns: words[9],
                marked_packets: words[12],
                probe: words[14],
                refused: words[15],
                covered_from: Seq::new(words[10]),
                covered_to: Seq::new(words[11]),
                gaps: LossRanges::NONE,
            };
            ControlWriter::new(&mut out, SocketId(1)).feedback(words[0], &fixed);
            out.extend_from_slice(&gaps);
            out
        }),
    ]
}

proptest! {
    #[test]
    fn every_control_packet_is_read_as_it_was_written(bytes in any_control()) {
        let packet = Packet::parse(&bytes).unwrap();
        prop_assert_eq!(emit(&packet, Packet::destination(&bytes).unwrap()), bytes);
    }

    #[test]
    fn every_data_header_is_read_as_it_was_written(
        flags in any::<[bool; 3]>(),
        seq in 0_u32..(1 << 31),
        message in 0..=MESSAGE_MASK,
        words in any::<[u32; 2]>(),
    ) {
        let data = Data {
            seq: Seq::new(seq),
            first: flags[0],
            last: flags[1],
            in_order: flags[2],
            message,
            word2: words[0],
            destination: SocketId(words[1]),
        };
        let header = data.emit();
        prop_assert_eq!(Packet::parse(&header), Ok(Packet::Data(data)));
    }

    #[test]
    fn random_bytes_parse_or_not_and_keep_their_meaning(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200),
        kind in 0_u8..10,
        control in any::<bool>(),
    ) {
        if control && bytes.len() > 4 {
            bytes[..4].copy_from_slice(&[0x80, kind, 0, 0]);
        }
        if let Ok(packet) = Packet::parse(&bytes) {
            let again = emit(&packet, Packet::destination(&bytes).unwrap());
            if !again.is_empty() {
                let packet = Packet::parse(&again).unwrap();
                prop_assert_eq!(emit(&packet, Packet::destination(&again).unwrap()), again);
            }
        }
    }
}
