//! Two ends over messages: start-up, order, repetition, and the checks that differ from a stream's.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::common;

use common::packets::{MessageEnd, Net, Path};
use common::random::Random;
use common::{everything, pattern};
use haul_iwarp::ReliableConnection as _;
use haul_iwarp::wire::Features;
use haul_iwarp::wire::ddp::{Header, Model};
use haul_iwarp::wire::hello::{Hello, Terms};
use haul_iwarp::wire::rdmap::{Opcode, Terminate};
use haul_iwarp::{
    Completion, CompletionKind, Crc32c, Error, Event, Incompatible, MessageConfig,
    MessageConnection, Operation, PostError, RecvWr, SendWr, Stag, State, Status, TermCode, Time,
};

const CALM: Path = Path {
    loss: 0,
    doubles: 0,
    jitter: 1,
};
const SEND: Operation = Operation::Send {
    solicited: false,
    invalidate: None,
};

fn config() -> MessageConfig {
    common::with(MessageConfig::default(), |config| {
        config.qp = common::config().qp
    })
}

fn open() -> Net {
    let mut net = Net::new([config(), config()], CALM, 1, b"");
    net.establish();
    net
}

fn post(end: &mut MessageEnd, id: u64, op: Operation, bytes: Vec<u8>) {
    let slot = u32::try_from(id).unwrap();
    let wr = SendWr::new(id, slot, op, u32::try_from(bytes.len()).unwrap());
    end.connection.post_send(wr).expect("it is taken");
    end.ram.sends.insert(slot, bytes);
}

fn receive(end: &mut MessageEnd, id: u64, len: u32) {
    let slot = u32::try_from(id).unwrap();
    end.connection
        .post_receive(RecvWr::new(id, slot, len))
        .expect("it is taken");
    end.ram.receives.insert(slot, vec![0; len as usize]);
}

fn ids(completions: &[Completion]) -> Vec<(u64, Status)> {
    completions
        .iter()
        .map(|done| (done.id, done.status))
        .collect()
}

/// Messages that `end` has to send, in order.
fn said(end: &mut MessageEnd) -> Vec<(u64, Vec<u8>)> {
    end.drain();
    std::mem::take(&mut end.out)
}

#[test]
fn writes_are_placed_in_any_order_and_sends_complete_in_theirs() {
    let mut net = open();
    let [a, b] = &mut net.ends;
    let stag = b.ram.register(0x100, 0, vec![0; 10_000], everything());
    receive(b, 1, 3_000);
    receive(b, 2, 3_000);
    let placed = false;
    post(
        a,
        1,
        Operation::Write {
            stag,
            to: 0,
            placed,
        },
        pattern(10_000, 1),
    );
    post(a, 2, SEND, pattern(3_000, 2));
    post(a, 3, SEND, pattern(2_000, 3));
    let mut messages = said(a);
    let first = messages.remove(0);
    messages.reverse();
    for (index, octets) in &messages {
        b.take(*index, octets);
        b.take(*index, octets);
    }
    assert!(b.completions.is_empty(), "the first is missing");
    assert_eq!(b.connection.waiting(), 2);
    assert!(b.ram.receives[&1] == pattern(3_000, 2));
    assert!(b.ram.receives[&2][..2_000] == pattern(2_000, 3));
    let rest = (1_452 - 14) & !3;
    assert!(b.ram.regions[0][rest..] == pattern(10_000, 1)[rest..]);
    let placed = b.ram.placed;
    b.take(first.0, &first.1);
    assert_eq!(b.ram.placed - placed, rest as u64);
    assert_eq!(
        ids(&b.completions),
        [(1, Status::Success), (2, Status::Success)]
    );
    assert_eq!(b.connection.waiting(), 0);
    assert!(a.completions.is_empty(), "nothing is acknowledged");
    a.connection.handle_released(a.now, 100);
    a.drain();
    assert_eq!(
        ids(&a.completions),
        [1, 2, 3].map(|id| (id, Status::Success))
    );
}

#[test]
fn messages_are_made_again_until_they_are_acknowledged() {
    let mut net = open();
    let [a, b] = &mut net.ends;
    let stag = b.ram.register(0x100, 0, pattern(5_000, 1), everything());
    a.ram.register(0x200, 0, vec![0; 5_000], everything());
    let read = Operation::Read {
        sink: Stag(0x200),
        sink_to: 0,
        source: stag,
        source_to: 0,
    };
    let wr = SendWr::new(1, 0, read, 5_000);
    a.connection.post_send(wr).unwrap();
    for (index, octets) in said(a) {
        b.take(index, &octets);
    }
    let answer = said(b);
    assert_eq!(answer.len(), 4);
    for (index, octets) in &answer {
        assert_eq!(b.again(*index).as_ref(), Some(octets));
    }
    // Memory that is withdrawn is not read again.
    let entry = b.ram.stags.remove(&stag).unwrap();
    assert_eq!(b.again(answer[0].0), None);
    b.ram.stags.insert(stag, entry);
    b.connection.handle_released(b.now, answer[3].0 + 1);
    assert_eq!(b.again(answer[3].0), None);
}

#[test]
fn reads_into_the_same_memory_may_be_answered_in_any_order() {
    const LEN: u32 = 5_000;
    let path = Path {
        loss: 20,
        doubles: 10,
        jitter: 200,
    };
    for seed in 0..50 {
        let mut net = Net::new([config(), config()], path, seed, b"");
        net.establish();
        let [a, b] = &mut net.ends;
        let source = b.ram.register(0x100, 0, pattern(6_000, 1), everything());
        let sink = a.ram.register(0x200, 0, vec![0; 8_000], everything());
        // The same, the same, a part, a part of both, its own, empty.
        let places = [(0, LEN), (0, LEN), (1_000, 8), (2_000, 6_000), (0, 900)];
        let mut random = Random::new(seed);
        for id in 0..40 {
            let (sink_to, len) = places[usize::try_from(random.below(5)).unwrap()];
            let op = Operation::Read {
                sink,
                sink_to,
                source,
                source_to: 0,
            };
            let wr = SendWr::new(id, 0, op, len);
            a.connection.post_send(wr).unwrap();
        }
        net.settle();
        let done = (0..40).map(|id| (id, Status::Success)).collect::<Vec<_>>();
        assert_eq!(ids(&net.ends[0].completions), done, "seed {seed}");
        assert_eq!(net.ends[0].connection.error(), None, "seed {seed}");
    }
}

#[test]
fn a_short_answer_is_found_out_though_reads_share_their_memory() {
    let mut net = open();
    let [a, b] = &mut net.ends;
    let source = b.ram.register(0x100, 0, pattern(100, 1), everything());
    let sink = a.ram.register(0x200, 0, vec![0; 100], everything());
    for id in 0..2 {
        let op = Operation::Read {
            sink,
            sink_to: 0,
            source,
            source_to: 0,
        };
        let wr = SendWr::new(id, 0, op, 100);
        a.connection.post_send(wr).unwrap();
    }
    for (index, octets) in said(a) {
        b.take(index, &octets);
    }
    let answers = said(b);
    assert_eq!(answers.len(), 2);
    let header = Header {
        last: true,
        control: Opcode::ReadResponse.emit(),
        model: Model::Tagged { stag: sink, to: 0 },
    };
    for (index, _) in answers {
        a.take(index, &of(header, &[7; 99]));
    }
    let error = Error::PeerMisbehaved(TermCode::UNSPECIFIED);
    assert_eq!(a.connection.error(), Some(error));
}

#[test]
fn rejection_and_private_data_reach_the_initiator() {
    let mut net = Net::new([config(), config()], CALM, 1, b"knock");
    net.settle();
    let end = &mut net.ends[1];
    assert_eq!(end.connection.private_data(), b"knock");
    assert_eq!(end.connection.requested(), Some((16, 16)));
    end.connection.reject(end.now, b"away").unwrap();
    net.settle();
    let end = &net.ends[0];
    assert_eq!(end.connection.error(), Some(Error::Rejected));
    assert_eq!(end.connection.private_data(), b"away");
    assert!(end.events.contains(&Event::Disconnect));
    assert!(net.ends[1].events.contains(&Event::ShutdownSend));
    let refused = MessageConnection::connect(Time::default(), config(), &[0; 513]);
    assert_eq!(refused.err(), Some(PostError::PrivateData));
}

#[test]
fn segments_are_as_long_as_both_ends_can_take() {
    let mut short = config();
    short.segment_max = 600;
    let mut net = Net::new([config(), short], CALM, 1, b"");
    net.establish();
    for end in &net.ends {
        let params = end.connection.params().unwrap();
        assert_eq!(params.ulpdu_max, 600);
        // That is for streams.
        assert!(!params.features.close_notice);
    }
    let mut tiny = config();
    tiny.segment_max = 100;
    let mut net = Net::new([tiny, config()], CALM, 1, b"");
    net.settle();
    let error = Error::PeerIncompatible(Incompatible::SegmentSize);
    assert_eq!(net.ends[1].connection.error(), Some(error));
}

#[test]
fn what_is_no_hello_is_refused_at_the_start() {
    let mut hello = Vec::new();
    Hello::Ready.emit(&mut hello);
    for (index, message) in [
        (0, hello.clone()),
        (0, finish(0)),
        (1, hello),
        (0, segment(Opcode::Write, 0)),
    ] {
        let mut end = MessageEnd::new(MessageConnection::listen(Time::default(), config()));
        end.take(index, &message);
        assert!(matches!(end.connection.error(), Some(Error::Startup(_))));
        assert!(end.events.contains(&Event::Disconnect));
    }
    let end = MessageConnection::listen(Time::default(), config());
    assert!(!end.verify(b"LHIW"));
    assert!(!end.verify(&[]));
}

/// A segment of 8 bytes: tagged, or to queue 0 as message `msn`.
fn segment(opcode: Opcode, msn: u32) -> Vec<u8> {
    let model = if opcode == Opcode::Write || opcode == Opcode::ReadResponse {
        Model::Tagged {
            stag: Stag(0x100),
            to: 0,
        }
    } else {
        Model::Untagged {
            ulp: 0,
            qn: 0,
            msn,
            mo: 0,
        }
    };
    of(
        Header {
            last: true,
            control: opcode.emit(),
            model,
        },
        &[7; 8],
    )
}

fn of(header: Header, payload: &[u8]) -> Vec<u8> {
    let mut octets = vec![0; 18];
    let len = header.emit(&mut octets);
    octets.truncate(len);
    octets.extend_from_slice(payload);
    let mut digest = Crc32c::new();
    digest.update(&octets);
    octets.extend(digest.to_wire());
    octets
}

fn send(msn: u32, mo: u32, last: bool, len: usize) -> Vec<u8> {
    let model = Model::Untagged {
        ulp: 0,
        qn: 0,
        msn,
        mo,
    };
    let control = Opcode::Send.emit();
    of(
        Header {
            last,
            control,
            model,
        },
        &vec![7; len],
    )
}

#[test]
fn checks_hold_in_any_order_and_nothing_is_placed() {
    for (what, messages, code) in [
        (
            "tag",
            vec![segment(Opcode::Write, 0)],
            TermCode::DDP_INVALID_STAG,
        ),
        (
            "response",
            vec![segment(Opcode::ReadResponse, 0)],
            TermCode::UNEXPECTED_OPCODE,
        ),
        (
            "behind",
            vec![send(0, 0, true, 8)],
            TermCode::DDP_INVALID_MSN,
        ),
        (
            "beyond the receives",
            vec![send(3, 0, true, 8)],
            TermCode::DDP_NO_BUFFER,
        ),
        (
            "offset",
            vec![send(2, 65, true, 8)],
            TermCode::DDP_INVALID_MO,
        ),
        ("length", vec![send(2, 60, true, 8)], TermCode::DDP_TOO_LONG),
        (
            "overlap",
            vec![send(1, 0, false, 60), send(1, 4, true, 8)],
            TermCode::DDP_INVALID_MO,
        ),
        (
            "gap",
            vec![send(1, 0, false, 8), send(1, 12, true, 8)],
            TermCode::DDP_INVALID_MO,
        ),
        ("short", vec![of_octets(&[0x41])], TermCode::UNSPECIFIED),
        ("empty", vec![of_octets(&[])], TermCode::UNSPECIFIED),
        ("hello", vec![request()], TermCode::STREAM_CATASTROPHIC),
    ] {
        let mut net = open();
        let end = &mut net.ends[1];
        receive(end, 1, 64);
        receive(end, 2, 64);
        let (last, before) = messages.split_last().unwrap();
        let mut index = 2;
        for message in before {
            end.take(index, message);
            index += 1;
        }
        let placed = end.ram.placed;
        let mut message = last.clone();
        if what == "gap" {
            // A gap shows when the message would complete, its bytes being where they said they
            // belong.
            message = last.clone();
            end.take(index, &message);
        } else {
            end.take(index, &message);
            assert_eq!(end.ram.placed, placed, "{what}");
        }
        assert_eq!(
            end.connection.error(),
            Some(Error::PeerMisbehaved(code)),
            "{what}"
        );
        let well = end
            .completions
            .iter()
            .filter(|done| done.status == Status::Success);
        assert_eq!(well.count(), 0, "{what}");
        net.settle();
        assert_eq!(
            net.ends[0].connection.error(),
            Some(Error::Terminated(code)),
            "{what}"
        );
    }
}

fn of_octets(body: &[u8]) -> Vec<u8> {
    let mut digest = Crc32c::new();
    digest.update(body);
    [body, &digest.to_wire()].concat()
}

fn request() -> Vec<u8> {
    request_with(Features::ALL)
}

fn request_with(features: Features) -> Vec<u8> {
    let mut message = Vec::new();
    Hello::Request(Terms {
        features,
        ird: 1,
        ord: 1,
        segment_max: 1_000,
        private: b"",
    })
    .emit(&mut message);
    message
}

#[test]
fn a_send_with_immediate_data_is_for_ends_that_agree_on_it() {
    let data = 0x0102_0304;
    let op = Operation::SendImmediate {
        data,
        solicited: false,
    };
    let mut net = open();
    receive(&mut net.ends[1], 1, 64);
    post(&mut net.ends[0], 2, op, vec![5; 64]);
    net.settle();
    let done = &net.ends[1].completions[0];
    let kind = CompletionKind::ReceiveSendImmediate {
        data,
        solicited: false,
    };
    assert_eq!(
        (done.status, done.kind, done.len),
        (Status::Success, kind, 64)
    );
    assert_eq!(net.ends[1].ram.receives[&1], [5; 64]);

    // A peer from before there was such a thing.
    let older = Features {
        send_immediate: false,
        ..Features::ALL
    };
    let mut end = MessageEnd::new(MessageConnection::listen(Time::default(), config()));
    end.take(0, &request_with(older));
    end.connection.accept(Time::default(), b"").unwrap();
    receive(&mut end, 1, 64);
    let wr = SendWr::new(2, 2, op, 4);
    assert_eq!(end.connection.post_send(wr), Err(PostError::Unsupported));
    end.take(1, &segment(Opcode::SendImmediate, 1));
    let error = Error::PeerMisbehaved(TermCode::UNEXPECTED_OPCODE);
    assert_eq!(end.connection.error(), Some(error));
    assert_eq!(end.ram.placed, 0);
}

/// Opens a connection of which each end may have a lower layer that seals.
fn open_over([first, second]: [bool; 2]) -> Net {
    let config = |sealed| common::with(config(), |config| config.sealed = sealed);
    let mut net = Net::new([config(first), config(second)], CALM, 1, b"");
    net.establish();
    net
}

#[test]
fn segments_have_no_crc_where_the_lower_layers_of_both_ends_seal() {
    for sealed in [[true; 2], [true, false], [false, true], [false; 2]] {
        let has_crc = sealed != [true; 2];
        let mut net = open_over(sealed);
        for end in &net.ends {
            assert_eq!(end.connection.params().unwrap().crc, has_crc, "{sealed:?}");
        }
        let [a, b] = &mut net.ends;
        receive(b, 1, 64);
        post(a, 2, SEND, pattern(64, 1));
        let [(index, message)] = &said(a)[..] else {
            panic!("one segment");
        };
        assert_eq!(message.len(), 18 + 64 + if has_crc { 4 } else { 0 });
        // What is made again is alike.
        assert_eq!(a.again(*index).as_ref(), Some(message));
        let mut damaged = message.clone();
        damaged[40] ^= 1;
        assert_eq!(b.connection.verify(&damaged), !has_crc);
        b.take(*index, message);
        assert_eq!(b.ram.receives[&1], pattern(64, 1));
        let now = a.now;
        net.ends[0].connection.close(now);
        net.settle();
        for end in &net.ends {
            assert_eq!(end.connection.error(), None);
        }
    }
}

#[test]
fn a_hello_has_a_crc_whatever_the_lower_layer_does() {
    let mut message = finish(2);
    message[8] ^= 1;
    assert!(!open_over([true; 2]).ends[1].connection.verify(&message));
    // An authenticated peer whose messages are too short is at fault.
    for message in [&[][..], &[0x41], &[0x41, 0x43, 0, 0]] {
        let mut net = open_over([true; 2]);
        net.ends[1].take(2, message);
        let error = Error::PeerMisbehaved(TermCode::UNSPECIFIED);
        assert_eq!(net.ends[1].connection.error(), Some(error));
    }
}

#[test]
fn what_waits_for_its_turn_is_bounded() {
    let mut net = open();
    let end = &mut net.ends[1];
    receive(end, 1, 64);
    // Message 1 ends again and again, and the message with index 2 never comes.
    for index in 3..1_000 {
        end.take(index, &send(1, 0, true, 0));
    }
    let error = Error::PeerMisbehaved(TermCode::STREAM_CATASTROPHIC);
    assert_eq!(end.connection.error(), Some(error));
    assert_eq!(end.connection.waiting(), 0);
    let mut net = open();
    net.ends[1].take(1 << 30, &send(1, 0, true, 0));
    assert_eq!(
        net.ends[1].connection.error(),
        Some(error),
        "beyond any window"
    );
}

#[test]
fn a_flood_of_reads_beyond_ird_ends_the_connection() {
    let mut net = open();
    let end = &mut net.ends[1];
    let model = |msn| Model::Untagged {
        ulp: 0,
        qn: 1,
        msn,
        mo: 0,
    };
    for msn in 1..=17 {
        let control = Opcode::ReadRequest.emit();
        let header = Header {
            last: true,
            control,
            model: model(msn),
        };
        // The message with index 2 is missing: none of them is delivered.
        let message = of(header, &[0; 28]);
        let now = end.now;
        end.connection
            .handle_message(now, &mut end.ram, u64::from(msn) + 2, &message);
    }
    let error = Error::PeerMisbehaved(TermCode::STREAM_CATASTROPHIC);
    assert_eq!(end.connection.error(), Some(error));
}

#[test]
fn both_ends_may_finish_and_an_end_without_it_is_a_loss() {
    let mut net = open();
    let now = net.ends[0].now;
    for end in &mut net.ends {
        end.connection.close(now);
    }
    net.settle();
    for end in &net.ends {
        assert_eq!(end.connection.state(), State::Closed);
        assert_eq!(end.connection.error(), None);
    }
    let mut net = open();
    let end = &mut net.ends[0];
    receive(end, 1, 8);
    end.connection.handle_eof(now);
    end.drain();
    assert_eq!(end.connection.error(), Some(Error::Lost));
    assert_eq!(ids(&end.completions), [(1, Status::Flushed)]);
}

/// The bytes of a finish after `received` messages.
fn finish(received: u64) -> Vec<u8> {
    let mut octets = Vec::new();
    Hello::Finish { received }.emit(&mut octets);
    octets
}

#[test]
fn a_finish_overtakes_acknowledgements_and_nothing_that_arrived_is_flushed() {
    let mut net = open();
    let [a, b] = &mut net.ends;
    receive(a, 1, 8);
    post(b, 2, SEND, pattern(8, 1));
    for (index, octets) in said(b) {
        a.take(index, &octets);
    }
    assert_eq!(ids(&a.completions), [(1, Status::Success)]);
    assert!(b.completions.is_empty(), "nothing is acknowledged");
    a.connection.close(a.now);
    for (index, octets) in said(a) {
        b.take(index, &octets);
    }
    assert_eq!(ids(&b.completions), [(2, Status::Success)]);
    assert_eq!(b.connection.error(), None);
    assert_eq!(b.connection.state(), State::Closed);
}

#[test]
fn what_a_finish_does_not_count_is_flushed_and_it_counts_no_more_than_was_sent() {
    for (received, error) in [
        (1, None),
        (
            3,
            Some(Error::PeerMisbehaved(TermCode::STREAM_CATASTROPHIC)),
        ),
        (
            u64::MAX,
            Some(Error::PeerMisbehaved(TermCode::STREAM_CATASTROPHIC)),
        ),
    ] {
        let mut net = open();
        let b = &mut net.ends[1];
        post(b, 1, SEND, pattern(8, 1));
        assert_eq!(said(b).len(), 1);
        b.take(2, &finish(received));
        assert_eq!(b.connection.error(), error, "{received}");
        assert_eq!(ids(&b.completions), [(1, Status::Flushed)]);
    }
}

#[test]
fn silence_is_not_waited_out() {
    let mut end = MessageEnd::new(MessageConnection::listen(Time::default(), config()));
    let deadline = end.connection.poll_timeout().unwrap();
    end.connection.handle_timeout(deadline);
    end.drain();
    assert_eq!(end.connection.error(), Some(Error::TimedOut));
    let mut net = open();
    let end = &mut net.ends[0];
    end.connection.close(end.now);
    end.drain();
    let deadline = end.connection.poll_timeout().unwrap();
    end.connection.handle_timeout(deadline);
    end.drain();
    assert!(end.events.contains(&Event::Disconnect));
}

#[test]
fn a_terminate_names_the_segment() {
    let mut net = open();
    let message = segment(Opcode::Write, 0);
    net.ends[1].take(2, &message);
    net.settle();
    let heard: Terminate = *net.ends[0].connection.terminate().expect("it was sent");
    assert_eq!(heard.segment_len, Some(22));
    assert_eq!(heard.header.unwrap()[..14], message[..14]);
}
