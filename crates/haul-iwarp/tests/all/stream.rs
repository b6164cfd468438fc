//! Two ends over a stream: every operation arrives as it was meant, however the stream is cut.

use crate::common;

use common::{config, everything, pair, pattern, settle, settle_in};
use haul_iwarp::ReliableConnection as _;
use haul_iwarp::wire::rdmap::AtomicOp;
use haul_iwarp::{
    CompletionKind, Error, Event, HEADER_MAX, Operation, PostError, RecvWr, Rights, SECOND_NS,
    SendWr, Stag, State, Status, StreamConfig,
};

const SEND: Operation = Operation::Send {
    solicited: false,
    invalidate: None,
};

fn write(stag: Stag, to: u64) -> Operation {
    let placed = false;
    Operation::Write { stag, to, placed }
}

fn variants() -> Vec<(&'static str, StreamConfig, StreamConfig)> {
    let plain = config();
    let mut foreign = plain;
    foreign.extensions = false;
    let mut markers = plain;
    markers.markers = true;
    let mut strict = plain;
    strict.strict = true;
    let mut no_crc = plain;
    no_crc.crc = false;
    let mut first = plain;
    first.revision = 1;
    vec![
        ("between Longhaul ends", plain, plain),
        ("to a foreign end", plain, foreign),
        ("with markers one way", markers, plain),
        ("with markers both ways", markers, markers),
        ("strict", strict, strict),
        ("without CRC", no_crc, no_crc),
        ("with revision 1", first, plain),
        (
            "strict with markers",
            common::with(markers, |config| config.strict = true),
            markers,
        ),
    ]
}

#[test]
fn sends_and_writes_arrive_however_the_stream_is_cut() {
    for (what, initiator, responder) in variants() {
        for most in [1, 2, 3, 7, 64, 513, usize::MAX] {
            let (mut a, mut b) = pair(initiator, responder);
            let stag = b
                .ram
                .register(0x1100, 1 << 40, vec![0; 200_000], everything());
            b.post_receive(1, 10_000);
            b.post_receive(2, 5);
            a.post_send(10, write(stag, (1 << 40) + 3), pattern(150_001, 1));
            a.post_send(11, SEND, pattern(9_999, 2));
            a.post_send(12, SEND, Vec::new());
            settle_in(&mut a, &mut b, most);
            let at = format!("{what}, {most} octets at a time");
            assert_eq!(b.connection.error(), None, "{at}");
            assert!(b.ram.regions[0][3..150_004] == pattern(150_001, 1), "{at}");
            assert!(b.ram.receives[&1][..9_999] == pattern(9_999, 2), "{at}");
            let got: Vec<_> = b
                .completions
                .iter()
                .map(|c| (c.id, c.len, c.status))
                .collect();
            assert_eq!(
                got,
                [(1, 9_999, Status::Success), (2, 0, Status::Success)],
                "{at}"
            );
            let done: Vec<_> = a.completions.iter().map(|c| (c.id, c.status)).collect();
            assert_eq!(done, [10, 11, 12].map(|id| (id, Status::Success)), "{at}");
            assert_eq!(a.connection.params().unwrap().crc, initiator.crc, "{at}");
        }
    }
}

fn read(sink_to: u64, source_to: u64) -> Operation {
    Operation::Read {
        sink: Stag(0x200),
        sink_to,
        source: Stag(0x100),
        source_to,
    }
}

fn add(to: u64) -> Operation {
    let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
    let stag = Stag(0x100);
    Operation::Atomic { stag, to, op }
}

#[test]
fn reads_and_atomics_are_never_more_than_agreed() {
    let mut initiator = config();
    initiator.qp.ord = 7;
    let mut responder = config();
    responder.qp.ird = 3;
    let (mut a, mut b) = pair(initiator, responder);
    assert_eq!(a.connection.params().unwrap().ord, 3);
    assert_eq!(b.connection.params().unwrap().ird, 3);
    b.ram.register(0x100, 0, pattern(64, 0), everything());
    a.ram.register(0x200, 0, vec![0; 64], everything());
    for id in 0..10 {
        let op = if id % 2 == 0 { read(0, 0) } else { add(8) };
        a.post_read(id, op, 8);
    }
    a.drain();
    assert_eq!(a.fpdus.len(), 3, "the others wait for responses");
    settle(&mut a, &mut b);
    let done: Vec<u64> = a.completions.iter().map(|c| c.id).collect();
    assert_eq!(done, (0..10).collect::<Vec<_>>());
    assert_eq!((a.connection.error(), b.connection.error()), (None, None));
}

#[test]
fn a_fence_waits_for_reads_and_atomics() {
    let (mut a, mut b) = pair(config(), config());
    b.ram.register(0x100, 0, pattern(64, 0), everything());
    a.ram.register(0x200, 0, vec![0; 64], everything());
    a.post_read(1, read(0, 0), 16);
    a.try_post_send(2, write(Stag(0x100), 0), vec![9; 16], true)
        .unwrap();
    a.drain();
    assert_eq!(a.fpdus.len(), 1);
    settle(&mut a, &mut b);
    assert_eq!(
        a.ram.regions[0][..16],
        pattern(64, 0)[..16],
        "the read saw what was before"
    );
    assert_eq!(b.ram.regions[0][..16], [9; 16]);
}

#[test]
fn requests_complete_in_the_order_of_posting() {
    let (mut a, mut b) = pair(config(), config());
    b.ram.register(0x100, 0, pattern(64, 0), everything());
    a.ram.register(0x200, 0, vec![0; 64], everything());
    a.post_read(1, read(0, 0), 16);
    a.post_send(2, write(Stag(0x100), 32), vec![9; 16]);
    a.drain();
    assert!(
        a.completions.is_empty(),
        "the Write is out, the Read before it is not back"
    );
    settle(&mut a, &mut b);
    assert_eq!(
        a.completions.iter().map(|c| c.id).collect::<Vec<_>>(),
        [1, 2]
    );
}

#[test]
fn a_write_with_proof_completes_when_it_is_placed_at_the_peer() {
    let (mut a, mut b) = pair(config(), config());
    let stag = b.ram.register(0x100, 0, vec![0; 64], everything());
    let placed = true;
    a.post_send(
        1,
        Operation::Write {
            stag,
            to: 0,
            placed,
        },
        vec![9; 64],
    );
    a.drain();
    assert!(a.completions.is_empty());
    assert_eq!(a.fpdus.len(), 2, "the Write, and a Read of nothing");
    settle(&mut a, &mut b);
    let done = a.completions[0];
    assert_eq!(
        (done.kind, done.len, done.id),
        (CompletionKind::Write, 64, 1)
    );
    assert_eq!(a.completions.len(), 1);
}

#[test]
fn a_write_completes_only_when_its_bytes_are_no_longer_needed() {
    let (mut a, mut b) = pair(config(), config());
    b.ram.register(0x100, 0, vec![0; 64], everything());
    a.post_send(1, write(Stag(0x100), 0), vec![9; 64]);
    let mut header = [0; HEADER_MAX];
    let fpdu = a
        .connection
        .poll_transmit(a.now, &mut a.ram, &mut header)
        .unwrap();
    assert_eq!(a.connection.poll_event(), None);
    a.connection.handle_released(a.now, fpdu.segment.index);
    assert_eq!(a.connection.poll_event(), None);
    a.connection.handle_released(a.now, fpdu.segment.index + 1);
    assert!(matches!(
        a.connection.poll_event(),
        Some(Event::Completion(_))
    ));
}

#[test]
fn queues_have_limits() {
    let mut initiator = config();
    (initiator.qp.send_depth, initiator.qp.recv_depth) = (3, 2);
    initiator.qp.ord = 0;
    let (mut a, _) = pair(initiator, config());
    let mut post = |id, op| a.try_post_send(id, op, vec![], false);
    assert_eq!(post(1, read(0, 0)), Err(PostError::NoReads));
    let placed = true;
    let proven = Operation::Write {
        stag: Stag(1),
        to: 0,
        placed,
    };
    assert_eq!(post(1, proven), Err(PostError::NoReads));
    assert_eq!([1, 2, 3].map(|id| post(id, SEND)), [Ok(()); 3]);
    assert_eq!(post(4, SEND), Err(PostError::Full));
    let receive = |id| RecvWr::new(id, 0, 1);
    assert_eq!(a.connection.post_receive(receive(1)), Ok(()));
    assert_eq!(a.connection.post_receive(receive(2)), Ok(()));
    assert_eq!(a.connection.post_receive(receive(3)), Err(PostError::Full));
}

#[test]
fn what_the_peer_does_not_know_is_not_sent_to_it() {
    let mut foreign = config();
    foreign.extensions = false;
    let (mut a, _) = pair(config(), foreign);
    let immediate = Operation::Immediate {
        data: 1,
        solicited: false,
    };
    let attached = Operation::SendImmediate {
        data: 1,
        solicited: false,
    };
    for op in [add(0), immediate, attached] {
        let refused = a.try_post_send(1, op, vec![], false);
        assert_eq!(refused, Err(PostError::Unsupported));
    }
    let params = a.connection.params().unwrap();
    assert!(!params.extended);
    assert_eq!(params.ulpdu_max, 1_460 - 6, "one FPDU to a segment");
}

#[test]
fn receives_may_come_from_a_shared_queue() {
    let mut responder = config();
    responder.qp.shared_receive = true;
    let (mut a, mut b) = pair(config(), responder);
    for slot in [40, 41] {
        let wr = RecvWr::new(slot.into(), slot, 8);
        b.ram.shared.push_back(wr);
        b.ram.receives.insert(slot, vec![0; 8]);
    }
    a.post_send(1, SEND, b"first".to_vec());
    a.post_send(2, SEND, b"second".to_vec());
    settle(&mut a, &mut b);
    assert_eq!(
        b.completions.iter().map(|c| c.id).collect::<Vec<_>>(),
        [40, 41]
    );
    assert_eq!(&b.ram.receives[&41], b"second\0\0");
    a.post_send(3, SEND, b"third".to_vec());
    settle(&mut a, &mut b);
    let code = haul_iwarp::TermCode::DDP_NO_BUFFER;
    assert_eq!(b.connection.error(), Some(Error::PeerMisbehaved(code)));
    assert_eq!(a.connection.error(), Some(Error::Terminated(code)));
}

#[test]
fn closing_finishes_what_is_posted_and_flushes_receives() {
    let (mut a, mut b) = pair(config(), config());
    let stag = b.ram.register(0x100, 0, vec![0; 64], everything());
    b.post_receive(1, 8);
    a.post_receive(2, 8);
    a.post_send(1, write(stag, 0), vec![9; 64]);
    a.connection.close(a.now);
    assert_eq!(
        a.try_post_send(2, SEND, vec![], false),
        Err(PostError::NotOpen)
    );
    settle(&mut a, &mut b);
    assert!(a.shut_down);
    assert_eq!(a.connection.state(), State::Finished);
    assert_eq!(b.ram.regions[0], [9; 64]);
    b.connection.handle_eof(b.now);
    b.drain();
    assert!(b.has(Event::Disconnect));
    assert_eq!(b.connection.error(), None);
    assert_eq!(b.completions[0].status, Status::Flushed);
    a.connection.handle_eof(a.now);
    a.drain();
    assert!(a.has(Event::Disconnect));
    assert_eq!(a.connection.error(), None);
    let done: Vec<_> = a.completions.iter().map(|c| (c.id, c.status)).collect();
    assert_eq!(done, [(1, Status::Success), (2, Status::Flushed)]);
}

#[test]
fn what_a_peer_that_closes_did_not_wait_for_is_flushed_and_no_fault() {
    let (mut a, mut b) = pair(config(), config());
    a.post_send(0, write(Stag(1), 0), vec![]);
    settle(&mut a, &mut b);
    b.post_receive(1, 8);
    b.connection.close(b.now);
    b.drain();
    assert_eq!(b.connection.state(), State::Finished);
    let notice = std::mem::take(&mut b.wire);
    a.feed(&notice);
    // Sent in part, and not at all.
    a.try_post_send(1, SEND, vec![1; 64], false).unwrap();
    let mut header = [0; HEADER_MAX];
    let fpdu = a.connection.poll_transmit(a.now, &mut a.ram, &mut header);
    assert!(fpdu.is_some());
    a.try_post_send(2, SEND, vec![2; 64], false).unwrap();
    a.connection.handle_eof(a.now);
    a.drain();
    assert!(a.has(Event::Disconnect));
    assert_eq!(a.connection.error(), None);
    let done: Vec<_> = a.completions.iter().map(|c| (c.id, c.status)).collect();
    assert_eq!(done[1..], [(1, Status::Flushed), (2, Status::Flushed)]);
    // The end that closed sees an orderly disconnect.
    b.feed(&header[..8]);
    b.connection.handle_eof(b.now);
    b.drain();
    assert!(b.has(Event::Disconnect));
    assert_eq!(b.connection.error(), None);
}

#[test]
fn an_end_in_the_middle_is_a_loss() {
    // In the middle of an FPDU.
    let (mut a, mut b) = pair(config(), config());
    b.post_receive(1, 64);
    a.post_send(1, SEND, vec![1; 64]);
    a.drain();
    let wire = std::mem::take(&mut a.wire);
    b.feed(&wire[..50]);
    b.connection.handle_eof(b.now);
    b.drain();
    assert_eq!(b.connection.error(), Some(Error::Lost));
    assert_eq!(b.completions[0].status, Status::Flushed);
    // With a read outstanding.
    let (mut a, _) = pair(config(), config());
    a.post_read(1, read(0, 0), 8);
    a.drain();
    a.connection.handle_eof(a.now);
    a.drain();
    assert_eq!(a.connection.error(), Some(Error::Lost));
    assert_eq!(a.completions[0].status, Status::Flushed);
    // A reset.
    let (mut a, _) = pair(config(), config());
    a.post_receive(1, 8);
    a.connection.handle_lost(a.now);
    a.drain();
    assert_eq!(a.connection.error(), Some(Error::Lost));
    assert!(a.has(Event::Disconnect));
    let wr = RecvWr::new(2, 2, 8);
    assert_eq!(a.connection.post_receive(wr), Err(PostError::NotOpen));
}

#[test]
fn only_a_close_notice_makes_the_end_of_a_stream_an_end_in_order() {
    let mut foreign = config();
    foreign.extensions = false;
    for (theirs, notices) in [(config(), true), (foreign, false)] {
        for closes in [true, false] {
            let (mut a, mut b) = pair(config(), theirs);
            a.post_send(1, write(Stag(1), 0), vec![]);
            settle(&mut a, &mut b);
            if closes {
                b.connection.close(b.now);
                settle(&mut a, &mut b);
                assert!(b.shut_down);
            }
            assert!(
                !a.has(Event::Disconnect),
                "the end of the stream is the end"
            );
            a.connection.handle_eof(a.now);
            a.drain();
            assert!(a.has(Event::Disconnect));
            let lost = notices && !closes;
            assert_eq!(a.connection.error(), lost.then_some(Error::Lost));
        }
    }
    // The responder may not send before the initiator's first message.
    let (mut a, _) = pair(config(), config());
    a.connection.handle_eof(a.now);
    a.drain();
    assert_eq!(a.connection.error(), None);
}

#[test]
fn a_close_notice_follows_all_that_was_posted() {
    let (mut a, mut b) = pair(config(), config());
    for id in 0..5 {
        b.post_receive(id, 8);
        a.post_send(id, SEND, vec![1; 8]);
    }
    a.connection.close(a.now);
    settle(&mut a, &mut b);
    assert!(a.shut_down);
    b.connection.handle_eof(b.now);
    b.drain();
    assert_eq!(b.connection.error(), None);
    assert!(b.completions.iter().all(|c| c.status == Status::Success));
    assert_eq!(b.completions.len(), 5);
}

#[test]
fn memory_that_goes_is_charged_to_the_operation_that_it_was_for() {
    // Of three Sends, the second's: before, and in the midst of, its FPDU.
    for begun in [false, true] {
        let (mut a, mut b) = pair(config(), config());
        settle(&mut a, &mut b);
        for id in 1..4 {
            a.try_post_send(id, SEND, vec![2; 64], false).unwrap();
        }
        let mut header = [0; HEADER_MAX];
        for _ in 0..2 {
            let fpdu = a.connection.poll_transmit(a.now, &mut a.ram, &mut header);
            let payload = fpdu.unwrap().segment.payload;
            if payload == (haul_iwarp::Payload::Request { slot: 2, offset: 0 }) {
                a.connection.handle_payload_gone(a.now, payload, begun);
            }
        }
        a.drain();
        let code = haul_iwarp::TermCode::INVALID_STAG;
        assert_eq!(a.connection.error(), Some(Error::LocalMemory(code)));
        let done: Vec<_> = a.completions.iter().map(|c| (c.id, c.status)).collect();
        let flushed = |id| (id, Status::Flushed);
        assert_eq!(done, [flushed(1), (2, Status::LocalProtection), flushed(3)]);
        assert_eq!(
            a.wire.is_empty(),
            begun,
            "a Terminate in the middle of an FPDU"
        );
    }
    // It is none of the peer's requests.
    let (mut a, mut b) = pair(config(), config());
    settle(&mut a, &mut b);
    let source = a.ram.register(0x200, 0, vec![0; 64], Rights::REMOTE_READ);
    b.ram.register(0x300, 0, vec![0; 64], Rights::LOCAL_WRITE);
    let read = Operation::Read {
        sink: Stag(0x300),
        sink_to: 0,
        source,
        source_to: 0,
    };
    b.post_read(7, read, 64);
    b.drain();
    a.try_post_send(1, SEND, vec![2; 64], false).unwrap();
    let mut header = [0; HEADER_MAX];
    let fpdu = a.connection.poll_transmit(a.now, &mut a.ram, &mut header);
    let payload = fpdu.unwrap().segment.payload;
    a.connection.handle_payload_gone(a.now, payload, false);
    a.drain();
    let wire = std::mem::take(&mut a.wire);
    b.connection.handle_bytes(b.now, &mut b.ram, &wire);
    b.drain();
    let code = haul_iwarp::TermCode::LOCAL_CATASTROPHIC;
    assert_eq!(b.connection.error(), Some(Error::Terminated(code)));
    assert_eq!(b.completions[0].status, Status::Flushed);
    // A receive's.
    let (mut a, mut b) = pair(config(), config());
    b.post_receive(8, 64);
    b.post_receive(9, 64);
    b.post_send(1, SEND, vec![1; 8]);
    a.post_send(1, SEND, vec![9; 64]);
    a.drain();
    let wire = std::mem::take(&mut a.wire);
    b.connection.handle_bytes(b.now, &mut b.ram, &wire);
    b.connection.handle_memory_gone(b.now);
    b.drain();
    let done: Vec<_> = b.completions.iter().map(|c| (c.id, c.status)).collect();
    let flushed = |id| (id, Status::Flushed);
    assert_eq!(done, [flushed(1), (8, Status::LocalProtection), flushed(9)]);
    // Memory lost under a peer's Write: requests are flushed, none is blamed.
    let (mut a, mut b) = pair(config(), config());
    let stag = b.ram.register(0x100, 0, vec![0; 64], Rights::REMOTE_WRITE);
    b.post_send(1, SEND, vec![1; 8]);
    a.post_send(1, write(stag, 0), vec![9; 64]);
    a.drain();
    let wire = std::mem::take(&mut a.wire);
    b.connection.handle_bytes(b.now, &mut b.ram, &wire);
    b.connection.handle_memory_gone(b.now);
    b.drain();
    assert_eq!(b.completions[0].status, Status::Flushed);
}

#[test]
fn a_peer_that_does_not_close_is_not_waited_for_forever() {
    let (mut a, mut b) = pair(config(), config());
    settle(&mut a, &mut b);
    a.connection.close(a.now);
    a.drain();
    let deadline = a.connection.poll_timeout().expect("it is waited for");
    a.connection.handle_timeout(deadline);
    a.drain();
    assert!(a.has(Event::Disconnect));
    assert_eq!(a.connection.poll_timeout(), None);
}

#[test]
fn a_peer_that_answers_nothing_is_given_up_while_something_waits_for_it() {
    let mut impatient = config();
    impatient.peer_timeout_ns = Some(SECOND_NS);
    let (mut a, mut b) = pair(impatient, config());
    settle(&mut a, &mut b);
    let sink = a.ram.register(0x100, 0, vec![0; 64], Rights::LOCAL_WRITE);
    let source = b.ram.register(0x200, 0, vec![7; 64], Rights::REMOTE_READ);
    let read = Operation::Read {
        sink,
        sink_to: 0,
        source,
        source_to: 0,
    };
    assert_eq!(a.connection.poll_timeout(), None, "nothing waits");
    a.post_read(1, read, 64);
    a.drain();
    assert_eq!(a.connection.poll_timeout(), Some(a.now.after(SECOND_NS)));
    settle(&mut a, &mut b);
    assert_eq!(a.completions[0].status, Status::Success);
    assert_eq!(a.connection.poll_timeout(), None, "it was answered");
    // Any of its bytes is a sign of life.
    a.post_read(2, read, 64);
    a.drain();
    b.feed(&std::mem::take(&mut a.wire));
    let answer = std::mem::take(&mut b.wire);
    a.now = a.now.after(SECOND_NS - 1);
    a.feed(&answer[..20]);
    assert_eq!(a.connection.poll_timeout(), Some(a.now.after(SECOND_NS)));
    a.connection.handle_timeout(a.now.after(SECOND_NS - 1));
    a.drain();
    assert_eq!(a.completions.len(), 1);
    a.connection.handle_timeout(a.now.after(SECOND_NS));
    a.drain();
    assert_eq!(a.completions[1].status, Status::Flushed);
    assert_eq!(a.connection.error(), Some(Error::TimedOut));
    assert_eq!(a.connection.poll_timeout(), None);
}

#[test]
fn an_abort_flushes_at_once_and_sends_nothing() {
    let (mut a, mut b) = pair(config(), config());
    settle(&mut a, &mut b);
    a.post_send(1, SEND, vec![1; 8]);
    a.connection.abort(a.now);
    a.drain();
    assert!(a.wire.is_empty());
    assert_eq!(a.completions[0].status, Status::Flushed);
    assert!(a.has(Event::Disconnect));
}

#[test]
fn a_placement_that_cannot_be_carried_out_ends_the_connection() {
    let (mut a, mut b) = pair(config(), config());
    let stag = b.ram.register(0x100, 0, vec![0; 64], Rights::REMOTE_WRITE);
    a.post_send(1, write(stag, 0), vec![9; 64]);
    a.drain();
    let wire = std::mem::take(&mut a.wire);
    let received = b.connection.handle_bytes(b.now, &mut b.ram, &wire);
    assert!(matches!(received.next, haul_iwarp::Next::Place(_)));
    b.connection.handle_memory_gone(b.now);
    b.drain();
    let code = haul_iwarp::TermCode::DDP_INVALID_STAG;
    assert_eq!(b.connection.error(), Some(Error::LocalMemory(code)));
    let wire = std::mem::take(&mut b.wire);
    a.feed(&wire);
    assert_eq!(a.connection.error(), Some(Error::Terminated(code)));
}

#[test]
fn an_idle_connection_is_small() {
    let (a, b) = pair(config(), config());
    for end in [&a, &b] {
        assert!(
            size_of_val(&end.connection) <= 1_536,
            "{}",
            size_of_val(&end.connection)
        );
    }
    assert!(size_of::<SendWr>() <= 80);
}

#[test]
fn a_responder_may_close_before_it_may_speak() {
    // At once, if nothing is queued.
    let (_, mut b) = pair(config(), config());
    assert_eq!(b.connection.state(), State::Waiting);
    b.connection.close(b.now);
    b.drain();
    assert!(b.shut_down);
    assert_eq!(b.connection.error(), None);
    // Otherwise as soon as the queue is sent.
    let (mut a, mut b) = pair(config(), config());
    a.post_receive(1, 8);
    b.post_send(1, SEND, b"bye".to_vec());
    b.connection.close(b.now);
    assert_eq!(
        b.try_post_send(2, SEND, vec![], false),
        Err(PostError::NotOpen)
    );
    settle(&mut a, &mut b);
    assert!(!b.shut_down);
    a.post_send(1, write(Stag(1), 0), vec![]);
    settle(&mut a, &mut b);
    assert!(b.shut_down);
    assert_eq!(a.completions[1].len, 3);
}

#[test]
fn an_answer_whose_memory_is_gone_ends_the_connection() {
    let (mut a, mut b) = pair(config(), config());
    b.ram.register(0x100, 0, pattern(64, 0), everything());
    a.ram.register(0x200, 0, vec![0; 64], everything());
    a.post_read(1, read(0, 0), 16);
    a.drain();
    let wire = std::mem::take(&mut a.wire);
    b.connection.handle_bytes(b.now, &mut b.ram, &wire);
    let mut header = [0; HEADER_MAX];
    let fpdu = b.connection.poll_transmit(b.now, &mut b.ram, &mut header);
    let payload = fpdu.unwrap().segment.payload;
    b.connection.handle_payload_gone(b.now, payload, false);
    b.drain();
    let code = haul_iwarp::TermCode::INVALID_STAG;
    assert_eq!(b.connection.error(), Some(Error::LocalMemory(code)));
    let wire = std::mem::take(&mut b.wire);
    a.feed(&wire);
    assert_eq!(a.connection.error(), Some(Error::Terminated(code)));
    assert_eq!(a.completions[0].status, Status::RemoteAccess);
}
