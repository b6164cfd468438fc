//! Sends over datagrams, case by case: lost, doubled, reversed, flooded, lied about; and what
//! leaves the sender.
#![expect(clippy::cast_possible_truncation, reason = "small numbers")]

use crate::common;

use common::datagrams::{
    Node, SEND, SEND_SEG, TAG, at, config, received, record_op, resealed, settle, target, two,
};
use common::pattern;
use haul_iwarp::Operation;
use haul_iwarp::datagram::wire::{Body, Datagram, Kind};
use haul_iwarp::datagram::{Action, Reason, UdReceived, UdSendWr};
use haul_iwarp::{PostError, RecvWr};

#[test]
fn a_send_arrives_with_its_source_and_is_copied_nowhere_else() {
    let (mut a, mut b) = two();
    let slot = b.receive(100);
    let sent = a.segments(
        b.destination(),
        Operation::Send {
            solicited: true,
            invalidate: None,
        },
        vec![7; 60],
    );
    assert_eq!(sent.len(), 1);
    assert!(matches!(b.take(at(0), a.addr, &sent[0]), Action::Place(_)));
    let [received] = received(&b)[..] else {
        panic!("{:?}", b.events);
    };
    assert_eq!(
        (
            received.id,
            received.len,
            received.from,
            received.solicited,
            received.group
        ),
        (u64::from(slot), 60, a.source(), true, false)
    );
    assert_eq!(b.ram.receives[&slot][..60], [7; 60]);
    assert_eq!(b.ud.poll_timeout(), None);
}

#[test]
fn messages_in_a_row_have_segments_of_one_length_where_a_few_more_make_them_so() {
    let room = SEND_SEG;
    for (len, alone, in_a_row) in [
        // Two, three and three for two; more than a third more do not pay.
        (
            room + 2,
            [room, 2, 0, 0],
            [room / 2 + 1, room / 2 + 1, 0, 0],
        ),
        (
            3 * (room - 8),
            [room, room, room - 24, 0],
            [room - 8, room - 8, room - 8, 0],
        ),
        (
            4 * (room - 10),
            [room, room, room, room - 40],
            [room - 10; 4],
        ),
        (room + 3, [room, 3, 0, 0], [room, 3, 0, 0]),
    ] {
        let (mut a, b) = two();
        for _ in 0..2 {
            a.post(b.destination(), SEND, vec![7; len as usize]);
        }
        let lengths: Vec<u32> = a
            .transmit(at(0))
            .iter()
            .map(|(_, bytes)| payload_len(bytes))
            .collect();
        let of = |each: [u32; 4]| each.into_iter().filter(|len| *len > 0);
        assert_eq!(lengths, of(in_a_row).chain(of(alone)).collect::<Vec<_>>());
    }
}

fn payload_len(bytes: &[u8]) -> u32 {
    match Datagram::open(bytes).map(|datagram| datagram.body) {
        Ok(Body::Data(data)) => data.payload.len() as u32,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_message_of_one_datagram_that_was_doubled_is_delivered_once() {
    let (mut a, mut b) = two();
    for _ in 0..4 {
        b.receive(100);
    }
    let imm = Operation::Immediate {
        data: 1,
        solicited: false,
    };
    let first = a.segments(b.destination(), SEND, vec![7; 60]).remove(0);
    let second = a.segments(b.destination(), imm, Vec::new()).remove(0);
    for datagram in [&second, &first] {
        b.take(at(0), a.addr, datagram);
    }
    for datagram in [&first, &second] {
        let again = b.take(at(0), a.addr, datagram);
        assert_eq!(again, Action::Drop(Reason::Duplicate));
    }
    assert_eq!(received(&b).len(), 2);

    // A message dropped for lack of a receive does not count as delivered.
    let (mut a, mut b) = two();
    let sent = a.segments(b.destination(), SEND, vec![7; 60]).remove(0);
    assert_eq!(b.take(at(0), a.addr, &sent), Action::Drop(Reason::Rnr));
    b.receive(100);
    assert!(matches!(b.take(at(0), a.addr, &sent), Action::Place(_)));

    // The same number from another, or from the same after it began anew, is another message.
    let mut c = Node::with(1, common::with(config(1), |config| config.epoch = 9));
    let other = c.segments(b.destination(), SEND, vec![7; 60]).remove(0);
    b.receive(100);
    assert!(matches!(b.take(at(0), c.addr, &other), Action::Place(_)));
}

#[test]
fn without_a_receive_a_send_is_dropped_and_counted() {
    let (mut a, mut b) = two();
    let sent = a.segments(b.destination(), SEND, vec![7; 60]);
    assert_eq!(b.take(at(0), a.addr, &sent[0]), Action::Drop(Reason::Rnr));
    assert_eq!(b.ud.counters().dropped(Reason::Rnr), 1);
    b.receive(100);
    let again = a.segments(b.destination(), SEND, vec![7; 60]);
    b.take(at(0), a.addr, &again[0]);
    assert_eq!(received(&b).len(), 1);
}

#[test]
fn a_send_that_is_too_long_leaves_the_receive_where_it_was() {
    let (mut a, mut b) = two();
    let (small, large) = (b.receive(40), b.receive(5_000));
    let long = a.segments(b.destination(), SEND, vec![1; 41]);
    assert_eq!(
        b.take(at(0), a.addr, &long[0]),
        Action::Drop(Reason::TooLong)
    );
    let longer = a.segments(b.destination(), SEND, vec![1; 4_000]);
    assert_eq!(
        b.take(at(0), a.addr, &longer[0]),
        Action::Drop(Reason::TooLong)
    );
    for segment in &longer[1..] {
        assert_eq!(b.take(at(0), a.addr, segment), Action::Drop(Reason::Late));
    }
    assert_eq!(
        b.ud.counters().dropped(Reason::TooLong),
        2,
        "once for each message"
    );
    let fits = a.segments(b.destination(), SEND, vec![1; 40]);
    b.take(at(0), a.addr, &fits[0]);
    assert_eq!(received(&b)[0].slot, small);
    let longer = a.segments(b.destination(), SEND, vec![1; 4_000]);
    for segment in &longer {
        b.take(at(0), a.addr, segment);
    }
    assert_eq!(received(&b)[1].slot, large);
}

#[test]
fn a_send_in_segments_is_whole_in_any_order_and_never_in_part() {
    for lost in [None, Some(0), Some(4), Some(9)] {
        for reversed in [false, true] {
            let (mut a, mut b) = two();
            let slot = b.receive(10 * SEND_SEG);
            let bytes = pattern(9 * SEND_SEG as usize + 5, 3);
            let mut sent = a.segments(b.destination(), SEND, bytes.clone());
            assert_eq!(sent.len(), 10);
            if reversed {
                sent.reverse();
            }
            for (n, segment) in sent.iter().enumerate() {
                if lost != Some(n) {
                    b.take(at(0), a.addr, segment);
                    let again = b.take(at(0), a.addr, segment);
                    assert!(matches!(
                        again,
                        Action::Drop(Reason::Duplicate | Reason::Late)
                    ));
                }
            }
            settle(&mut b, at(0));
            if lost.is_some() {
                assert_eq!(received(&b), [] as [&UdReceived; 0]);
                assert_eq!(b.ud.counters().abandoned, 1);
                let next = a.segments(b.destination(), SEND, vec![1; 10]);
                b.take(at(3_000), a.addr, &next[0]);
                assert_eq!(received(&b)[0].slot, slot, "it is the next again");
            } else {
                assert_eq!(received(&b).len(), 1);
                assert_eq!(b.ram.receives[&slot][..bytes.len()], bytes);
            }
        }
    }
}

#[test]
fn a_send_is_given_up_half_a_second_after_its_last_segment_and_two_after_its_first() {
    let (mut a, mut b) = two();
    b.receive(40 * SEND_SEG);
    let sent = a.segments(b.destination(), SEND, vec![1; 40 * SEND_SEG as usize]);
    b.take(at(0), a.addr, &sent[0]);
    b.pass(at(499));
    assert_eq!(b.ud.counters().abandoned, 0);
    b.pass(at(500));
    assert_eq!(b.ud.counters().abandoned, 1);
    assert_eq!(
        b.take(at(501), a.addr, &sent[1]),
        Action::Drop(Reason::Late)
    );

    let sent = a.segments(b.destination(), SEND, vec![1; 40 * SEND_SEG as usize]);
    for (n, segment) in sent.iter().take(20).enumerate() {
        let now = at(1_000 + 100 * n as u64);
        b.pass(now);
        b.take(now, a.addr, segment);
    }
    b.pass(at(2_999));
    assert_eq!(b.ud.counters().abandoned, 1);
    b.pass(at(3_000));
    assert_eq!(b.ud.counters().abandoned, 2);
}

#[test]
fn sources_and_epochs_are_distinguished() {
    let mut b = target(config(2));
    let mut senders = [
        Node::new(1),
        Node::new(3),
        Node::with(1, common::with(config(1), |config| config.epoch = 9)),
    ];
    let slots = [0; 3].map(|_| b.receive(1_000));
    let sent: Vec<_> = (1..)
        .zip(&mut senders)
        .map(|(n, a)| a.segments(b.destination(), SEND, vec![n; 600]))
        .collect();
    for part in 0..2 {
        for (a, sent) in senders.iter().zip(&sent) {
            b.take(at(0), a.addr, &sent[part]);
        }
    }
    for (n, received) in received(&b).iter().enumerate() {
        assert_eq!(received.from, senders[n].source());
        assert_eq!(received.slot, slots[n]);
        assert_eq!(b.ram.receives[&slots[n]][..600], [n as u8 + 1; 600]);
    }
    assert_eq!(received(&b).len(), 3);
}

#[test]
fn a_source_that_floods_takes_from_itself() {
    let (mut a, mut b) = two();
    let mut flood = Node::new(3);
    for _ in 0..40 {
        b.receive(1_000);
    }
    let good = a.segments(b.destination(), SEND, vec![5; 900]);
    b.take(at(0), a.addr, &good[0]);
    for _ in 0..500 {
        let bad = flood.segments(b.destination(), SEND, vec![6; 900]);
        b.take(at(0), flood.addr, &bad[0]);
    }
    assert_eq!(b.ud.counters().abandoned, 500 - 16);
    assert_eq!(b.ud.counters().dropped(Reason::Rnr), 0);
    b.take(at(1), a.addr, &good[1]);
    assert_eq!(received(&b)[0].from, a.source());
}

#[test]
fn the_last_receive_is_taken_from_a_source_with_several() {
    let (mut a, mut b) = two();
    let mut flood = Node::new(3);
    for _ in 0..8 {
        b.receive(1_000);
    }
    for _ in 0..100 {
        let bad = flood.segments(b.destination(), SEND, vec![6; 900]);
        b.take(at(0), flood.addr, &bad[0]);
    }
    for len in [10, 900] {
        for segment in a.segments(b.destination(), SEND, vec![5; len]) {
            b.take(at(0), a.addr, &segment);
        }
    }
    assert_eq!(received(&b).len(), 2);
}

#[test]
fn many_that_pretend_to_be_others_take_what_is_stale() {
    let mut b = Node::with(2, common::with(config(2), |config| config.slots = 8));
    for _ in 0..20 {
        b.receive(2_000);
    }
    let mut a = Node::new(1);
    let good = a.segments(b.destination(), SEND, vec![5; 4 * SEND_SEG as usize]);
    let mut flood = Node::new(3);
    let bad = flood.segments(b.destination(), SEND, vec![6; 900]);
    for (n, segment) in good.iter().enumerate() {
        let now = at(n as u64);
        b.take(now, a.addr, segment);
        for port in 1..6 {
            let spoofed = ([203, 0, 113, n as u8], 5_000 + port).into();
            b.take(now, spoofed, &bad[0]);
        }
    }
    assert_eq!(received(&b)[0].from, a.source());
    assert!(b.ud.counters().evicted >= 10);
}

#[test]
fn what_incomplete_sends_may_announce_is_limited() {
    let mut b = Node::with(
        2,
        common::with(config(2), |config| config.slot_octets = 10_000),
    );
    for _ in 0..8 {
        b.receive(20_000);
    }
    let mut a = Node::new(1);
    for (n, abandoned) in [(4_000, 0), (4_000, 0), (4_000, 1), (9_000, 3)] {
        let sent = a.segments(b.destination(), SEND, vec![5; n]);
        b.take(at(0), a.addr, &sent[0]);
        assert_eq!(b.ud.counters().abandoned, abandoned);
    }
    let sent = a.segments(b.destination(), SEND, vec![5; 10_001]);
    assert_eq!(
        b.take(at(0), a.addr, &sent[0]),
        Action::Drop(Reason::TooLong)
    );
}

#[test]
fn receives_may_come_from_a_shared_queue_and_go_back_to_this_ones_head() {
    let mut b = Node::with(
        2,
        common::with(config(2), |config| config.shared_receive = true),
    );
    for slot in 100..102 {
        b.ram.receives.insert(slot, vec![0; 2_000]);
        b.ram
            .shared
            .push_back(RecvWr::new(slot.into(), slot, 2_000));
    }
    let mut a = Node::new(1);
    let sent = a.segments(b.destination(), SEND, vec![5; 900]);
    b.take(at(0), a.addr, &sent[0]);
    assert_eq!(b.ram.shared.len(), 1);
    settle(&mut b, at(0));
    for _ in 0..2 {
        let sent = a.segments(b.destination(), SEND, vec![5; 9]);
        b.take(at(9_000), a.addr, &sent[0]);
    }
    let slots: Vec<_> = received(&b).iter().map(|received| received.slot).collect();
    assert_eq!(slots, [100, 101]);
}

#[test]
fn segments_that_contradict_each_other_are_dropped_one_by_one() {
    let (mut a, mut b) = two();
    b.receive(5_000);
    let bytes = pattern(3 * SEND_SEG as usize, 1);
    let sent = a.segments(b.destination(), SEND, bytes.clone());
    b.take(at(0), a.addr, &sent[0]);
    let longer = resealed(&sent[1], |bytes| bytes[27] += 1);
    assert_eq!(
        b.take(at(0), a.addr, &longer),
        Action::Drop(Reason::Malformed)
    );
    b.take(at(0), a.addr, &sent[1]);
    b.take(at(0), a.addr, &sent[2]);
    let slot = received(&b)[0].slot;
    assert_eq!(b.ram.receives[&slot][..bytes.len()], bytes);
}

#[test]
fn immediate_data_uses_a_receive_and_leaves_its_buffers_alone() {
    let (mut a, mut b) = two();
    let slot = b.receive(4);
    let op = Operation::Immediate {
        data: 0x0123_4567_89ab_cdef,
        solicited: true,
    };
    let sent = a.segments(b.destination(), op, Vec::new());
    assert_eq!(b.take(at(0), a.addr, &sent[0]), Action::Done);
    let received = received(&b)[0];
    assert_eq!(received.immediate, Some(0x0123_4567_89ab_cdef));
    assert_eq!(
        (received.slot, received.len, received.solicited),
        (slot, 0, true)
    );
}

#[test]
fn segments_have_one_length_but_the_last_and_fill_the_path() {
    for (op, overhead) in [(SEND, 54), (record_op(), 50)] {
        for datagram_max in [548, 1_472, 8_972] {
            let mut a = Node::with(
                1,
                common::with(config(1), |config| {
                    config.datagram_max = datagram_max;
                    config.tail_copy = 0;
                }),
            );
            let max = (datagram_max - overhead) as usize;
            let b = Node::new(2);
            a.find_path(at(0), &b);
            for len in [1, max - 1, max, max + 1, 5 * max, 5 * max + 1] {
                let bytes = pattern(len, len as u8);
                let mut sent = a.segments(b.destination(), op, bytes.clone());
                // Probes of the path go with them.
                sent.retain(|octets| octets[1] == Kind::Data as u8);
                assert_eq!(sent.len(), len.div_ceil(max));
                let (last, others) = sent.split_last().unwrap();
                assert!(
                    others
                        .iter()
                        .all(|other| other.len() == datagram_max as usize)
                );
                assert!(last.len() <= datagram_max as usize);
                let mut whole = Vec::new();
                for segment in &sent {
                    let Body::Data(segment) = Datagram::open(segment).unwrap().body else {
                        panic!("no DATA");
                    };
                    whole.extend_from_slice(segment.payload);
                }
                assert_eq!(whole, bytes);
            }
        }
    }
}

#[test]
fn what_cannot_be_sent_is_refused_when_posted() {
    let mut a = Node::with(1, common::with(config(1), |config| config.send_depth = 2));
    let wr = |op, len| UdSendWr::new(1, 1, Node::new(2).destination(), op, len);
    let read = Operation::Read {
        sink: TAG,
        sink_to: 0,
        source: TAG,
        source_to: 0,
    };
    let high = Operation::Write {
        stag: TAG,
        to: u64::MAX - 5,
        placed: false,
    };
    for (op, limit) in [(SEND, 1 << 20), (high, 5), (read, 64 << 20)] {
        let len = limit + 1;
        let refused = Err(PostError::TooLong { len, limit });
        assert_eq!(a.ud.post_send(wr(op, len)), refused);
    }
    assert_eq!(a.ud.post_send(wr(high, 5)), Ok(()));
    assert_eq!(a.ud.post_send(wr(SEND, 5)), Ok(()));
    assert_eq!(a.ud.post_send(wr(SEND, 5)), Err(PostError::Full));
}
