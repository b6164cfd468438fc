//! Write-Record, case by case: the target's record of segments that were lost, duplicated,
//! reordered, late or forged.
#![expect(clippy::cast_possible_truncation, reason = "small numbers")]

use crate::common;

use common::datagrams::{
    BASE, MS, Node, SEG, SEND, TAG, at, at_offset, config, forged, ranges, received, record_op,
    records, region, resealed, settle, target, two,
};
use common::pattern;
use common::random::Random;
use haul_iwarp::Operation;
use haul_iwarp::Rights;
use haul_iwarp::datagram::wire::{DataHeader, Datagram, Flags, MsgId, Opcode, Psn};
use haul_iwarp::datagram::{Action, Reason, Record, RecordMode, RecordStatus, UdConfig, UdEvent};
use haul_iwarp::wire::ddp::Model;
use haul_iwarp::wire::rdmap;

/// Returns the target's record of a message of `count` segments of which only `arriving` arrive, in
/// that order.
fn written(count: u32, arriving: &[usize], tail_copy: u32) -> (Node, Vec<u8>) {
    let mut a = Node::with(
        1,
        common::with(config(1), |config| config.tail_copy = tail_copy),
    );
    let mut b = target(config(2));
    let bytes = pattern((count * SEG - 3) as usize, 9);
    let sent = a.segments(b.destination(), record_op(), bytes.clone());
    for n in arriving {
        b.take(at(0), a.addr, &sent[*n]);
    }
    settle(&mut b, at(0));
    (b, bytes)
}

fn assert_true(node: &Node, record: &Record, bytes: &[u8]) {
    let mut valid = 0;
    for (start, end) in ranges(record) {
        let octets = start as usize..end as usize;
        assert_eq!(region(node)[octets.clone()], bytes[octets], "{record:?}");
        valid += end - start;
    }
    assert_eq!(valid, record.valid);
}

/// Segments that arrive, how the record ends, and what is valid.
type Case = (&'static [usize], RecordStatus, &'static [(u32, u32)]);

#[test]
fn a_record_reports_the_arrived_ranges_whatever_was_lost() {
    const LAST: u32 = 4 * SEG - 3;
    let cases: [Case; 8] = [
        (&[0, 1, 2, 3], RecordStatus::Full, &[(0, LAST)]),
        (&[3, 2, 1, 0], RecordStatus::Full, &[(0, LAST)]),
        (&[1, 2, 3], RecordStatus::Partial, &[(SEG, LAST)]),
        (
            &[0, 1, 3],
            RecordStatus::Partial,
            &[(0, 2 * SEG), (3 * SEG, LAST)],
        ),
        (
            &[0, 3, 1],
            RecordStatus::Partial,
            &[(0, 2 * SEG), (3 * SEG, LAST)],
        ),
        (&[0, 1, 2], RecordStatus::Aged, &[(0, 3 * SEG)]),
        (&[2], RecordStatus::Aged, &[(2 * SEG, 3 * SEG)]),
        (&[3], RecordStatus::Partial, &[(3 * SEG, LAST)]),
    ];
    for (arriving, status, valid) in cases {
        let (node, bytes) = written(4, arriving, 0);
        let [record] = records(&node)[..] else {
            panic!("{:?}", node.events);
        };
        assert_eq!(record.status, Some(status), "{arriving:?}");
        assert_eq!(ranges(record), valid);
        assert_true(&node, record, &bytes);
        assert_eq!(
            (record.stag, record.to, record.len),
            (TAG, BASE, 4 * SEG - 3)
        );
    }
}

#[test]
fn a_copy_of_the_last_segment_goes_ahead_and_saves_the_tail() {
    // Of ten segments the copy is the second: eight others follow before the last.
    let (node, bytes) = written(10, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 8);
    let [record] = records(&node)[..] else {
        panic!("{:?}", node.events);
    };
    assert_eq!(
        record.status,
        Some(RecordStatus::Full),
        "the last itself was lost"
    );
    assert_true(&node, record, &bytes);
    let mut a = Node::new(1);
    let sent = a.segments(node.destination(), record_op(), bytes);
    assert_eq!(sent.len(), 11);
    assert_eq!(sent[1].len(), sent[10].len());
    assert_eq!(
        sent[1][44..sent[1].len() - 4],
        sent[10][44..sent[10].len() - 4]
    );

    let (node, _) = written(10, &[0, 1, 2], 8);
    assert_eq!(
        records(&node)[0].status,
        Some(RecordStatus::Aged),
        "the copy does not mean that the rest is late"
    );
    let (node, _) = written(8, &[0, 1, 2, 3, 4, 5, 6, 7], 8);
    assert_eq!(
        records(&node)[0].status,
        Some(RecordStatus::Full),
        "too short for a copy"
    );
}

#[test]
fn duplicates_are_placed_once_and_reported_once() {
    for count in [1, 4] {
        let (mut a, mut b) = two();
        let bytes = pattern((count * SEG) as usize, 9);
        let sent = a.segments(b.destination(), record_op(), bytes);
        for segment in &sent {
            b.take(at(0), a.addr, segment);
            let again = b.take(at(0), a.addr, segment);
            assert!(matches!(
                again,
                Action::Drop(Reason::Duplicate | Reason::Late)
            ));
        }
        settle(&mut b, at(0));
        assert_eq!(records(&b).len(), 1);
        assert_eq!(b.placed.len(), count as usize);
    }
}

#[test]
fn what_comes_after_the_close_is_not_placed() {
    let (mut a, mut b) = two();
    let sent = a.segments(b.destination(), record_op(), vec![1; 3 * SEG as usize]);
    b.take(at(0), a.addr, &sent[0]);
    let closed = settle(&mut b, at(0));
    assert_eq!(records(&b).len(), 1);
    b.ram.regions[0].fill(0xee);
    for segment in &sent {
        assert_eq!(b.take(closed, a.addr, segment), Action::Drop(Reason::Late));
    }
    assert!(region(&b).iter().all(|octet| *octet == 0xee));
    settle(&mut b, closed);
    assert_eq!(records(&b).len(), 1);
    assert_eq!(b.ud.counters().dropped(Reason::Late), 3);
}

#[test]
fn the_packets_of_the_source_are_a_clock_as_well() {
    let (mut a, mut b) = two();
    let sent = a.segments(b.destination(), record_op(), vec![1; 3 * SEG as usize]);
    b.take(at(0), a.addr, &sent[0]);
    b.take(at(0), a.addr, &sent[2]);
    for n in 1..=64 {
        assert_eq!(records(&b).len(), n - 1, "after {n} packets");
        let other = a.segments(b.destination(), record_op(), vec![1; 10]);
        b.take(at(0), a.addr, &other[0]);
    }
    let closed = records(&b)
        .iter()
        .filter(|record| record.status == Some(RecordStatus::Partial))
        .count();
    assert_eq!(closed, 1, "at one and the same time");
}

#[test]
fn a_record_ages_by_what_is_usual_between_its_segments() {
    let waits = |gap_ms: u64| {
        let (mut a, mut b) = two();
        let sent = a.segments(b.destination(), record_op(), vec![1; 30 * SEG as usize]);
        for n in 0..20 {
            b.pass(at(gap_ms * n));
            b.take(at(gap_ms * n), a.addr, &sent[n as usize]);
        }
        let last = at(gap_ms * 19);
        let closed = settle(&mut b, last);
        assert_eq!(records(&b)[0].status, Some(RecordStatus::Aged));
        (closed.as_ns() - last.as_ns()) / MS
    };
    let (least, most) = UdConfig::default().record_idle_ns;
    assert_eq!(waits(1), least / MS);
    assert!((15..=16).contains(&waits(2)), "eight times two");
    assert_eq!(waits(40), most / MS);
}

#[test]
fn no_record_is_open_for_more_than_two_seconds() {
    let (mut a, mut b) = two();
    let sent = a.segments(b.destination(), record_op(), vec![1; 100 * SEG as usize]);
    for (n, segment) in sent.iter().enumerate() {
        let now = at(n as u64 * 50);
        b.pass(now);
        b.take(now, a.addr, segment);
    }
    assert_eq!(records(&b)[0].status, Some(RecordStatus::Aged));
    assert_eq!(records(&b).len(), 1);
    assert_eq!(ranges(records(&b)[0]).last().unwrap().1 / SEG, 40);
}

#[test]
fn the_ninth_message_of_a_source_closes_its_first() {
    let (mut a, mut b) = two();
    let mut other = Node::new(3);
    let others = other.segments(b.destination(), record_op(), vec![2; 2 * SEG as usize]);
    b.take(at(0), other.addr, &others[0]);
    let mut sent = Vec::new();
    for n in 0..9 {
        let op = Operation::WriteRecord {
            stag: TAG,
            to: BASE + 2_000 * n,
            immediate: None,
        };
        sent.push(a.segments(b.destination(), op, vec![1; 2 * SEG as usize]));
        b.take(at(0), a.addr, &sent[n as usize][0]);
    }
    let [record] = records(&b)[..] else {
        panic!("{:?}", b.events);
    };
    assert_eq!(record.status, Some(RecordStatus::Superseded));
    assert_eq!((record.from, record.to), (a.source(), BASE));
    assert_eq!(
        b.take(at(0), a.addr, &sent[0][1]),
        Action::Drop(Reason::Late)
    );
}

#[test]
fn on_request_a_newer_message_to_the_same_place_closes_the_older() {
    for supersede_overlapping in [false, true] {
        let (mut a, mut b) = (
            Node::new(1),
            target(common::with(config(2), |config| {
                config.supersede_overlapping = supersede_overlapping
            })),
        );
        let mut sent = Vec::new();
        for to in [BASE, BASE + 2 * u64::from(SEG), BASE + u64::from(SEG)] {
            let op = Operation::WriteRecord {
                stag: TAG,
                to,
                immediate: None,
            };
            sent = a.segments(b.destination(), op, vec![1; 2 * SEG as usize]);
            b.take(at(0), a.addr, &sent[0]);
        }
        let count = if supersede_overlapping { 2 } else { 0 };
        assert_eq!(records(&b).len(), count);
        b.take(at(0), a.addr, &sent[1]);
        assert_eq!(records(&b).last().unwrap().status, Some(RecordStatus::Full));
    }
}

#[test]
fn records_are_limited_and_the_stalest_makes_room() {
    let mut b = target(common::with(config(2), |config| config.records = 4));
    let mut a = Node::new(1);
    let sent = a.segments(b.destination(), record_op(), vec![1; 2 * SEG as usize]);
    for n in 0..10 {
        let source = ([203, 0, 113, 1], 5_000 + n).into();
        b.take(at(n.into()), source, &sent[0]);
    }
    assert_eq!(records(&b).len(), 6);
    for (n, record) in (0..).zip(records(&b)) {
        assert_eq!(record.status, Some(RecordStatus::Evicted));
        assert_eq!(record.from.addr.port(), 5_000 + n);
    }
    assert_eq!(b.ud.counters().evicted, 6);
}

#[test]
fn a_tag_that_is_taken_away_ends_its_records() {
    for told in [false, true] {
        let (mut a, mut b) = two();
        let sent = a.segments(b.destination(), record_op(), vec![1; 3 * SEG as usize]);
        b.take(at(0), a.addr, &sent[0]);
        let entry = b.ram.stags.remove(&TAG).unwrap();
        if told {
            b.ud.handle_invalidated(TAG);
            b.poll();
            assert_eq!(records(&b).len(), 1);
        }
        assert_eq!(
            b.take(at(0), a.addr, &sent[1]),
            Action::Drop(Reason::BadStag)
        );
        assert_eq!(records(&b)[0].status, Some(RecordStatus::Revoked));
        assert_eq!(ranges(records(&b)[0]), [(0, SEG)]);
        b.ram.stags.insert(TAG, entry);
        assert_eq!(b.take(at(0), a.addr, &sent[2]), Action::Drop(Reason::Late));
        assert_eq!(b.placed.len(), 1);
    }
}

#[test]
fn memory_that_goes_between_check_and_placement_is_not_reported() {
    let (mut a, mut b) = two();
    let sent = a.segments(b.destination(), record_op(), vec![1; 3 * SEG as usize]);
    b.take(at(0), a.addr, &sent[0]);
    let datagram = Datagram::open(&sent[1]).unwrap();
    let action = b.ud.handle_datagram(at(0), &mut b.ram, a.addr, &datagram);
    assert!(matches!(action, Action::Place(_)));
    b.ud.handle_placed(at(0), false);
    b.poll();
    assert_eq!(records(&b)[0].status, Some(RecordStatus::Revoked));
    assert_eq!(ranges(records(&b)[0]), [(0, SEG)]);
}

#[test]
fn too_many_gaps_are_not_placed_and_never_claimed() {
    let (mut a, mut b) = two();
    let bytes = pattern(200 * SEG as usize, 4);
    let sent = a.segments(b.destination(), record_op(), bytes.clone());
    for segment in sent.iter().step_by(2) {
        b.take(at(0), a.addr, segment);
    }
    assert_eq!(b.placed.len(), 64);
    assert!(b.ud.counters().dropped(Reason::MapFull) > 30);
    settle(&mut b, at(0));
    let record = records(&b)[0];
    assert_eq!(ranges(record).len(), 64);
    assert_true(&b, record, &bytes);
}

#[test]
fn segments_that_overlap_count_once() {
    let (a, mut b) = two();
    for (offset, len) in [(0, 300), (200, 300), (250, 100), (100, 500)] {
        b.take(at(0), a.addr, &forged(&a, &b, at_offset(offset), len));
    }
    settle(&mut b, at(0));
    assert_eq!(ranges(records(&b)[0]), [(0, 600)]);
    assert_eq!(records(&b)[0].valid, 600);
    assert_eq!(b.placed.len(), 3, "one had nothing new");
}

#[test]
fn lies_within_a_message_cost_the_segment_that_lies() {
    let (a, mut b) = two();
    b.take(at(0), a.addr, &forged(&a, &b, at_offset(0), 100));
    let longer = forged(
        &a,
        &b,
        |header| {
            at_offset(100)(header);
            header.shim.msg_len = 2_000;
        },
        100,
    );
    let elsewhere = forged(
        &a,
        &b,
        |header| {
            header.shim.seg_off = 100;
            header.model = Model::Tagged {
                stag: TAG,
                to: BASE + 200,
            };
        },
        100,
    );
    let otherwise = forged(
        &a,
        &b,
        |header| {
            at_offset(100)(header);
            header.opcode = Opcode::WriteRecordImmediate;
            header.ext = &[1, 2];
        },
        100,
    );
    for lie in [longer, elsewhere, otherwise] {
        assert_eq!(b.take(at(0), a.addr, &lie), Action::Drop(Reason::Malformed));
    }
    let beyond = forged(&a, &b, at_offset(950), 100);
    assert_eq!(
        b.take(at(0), a.addr, &beyond),
        Action::Drop(Reason::Malformed)
    );
    settle(&mut b, at(0));
    assert_eq!(ranges(records(&b)[0]), [(0, 100)]);
    assert_eq!(b.placed, [(0, 0, 100)]);
}

#[test]
fn a_message_that_does_not_fit_is_refused_whole() {
    let (a, mut b) = two();
    let size = 1 << 20;
    let cases: [(u64, u32, Reason); 4] = [
        (BASE + size - 500, 1_000, Reason::Bounds),
        (BASE - 1, 1_000, Reason::Bounds),
        (BASE, u32::MAX, Reason::TooLong),
        (BASE, 1 << 21, Reason::Bounds),
    ];
    for (to, len, reason) in cases {
        let change = |header: &mut DataHeader<'static>| {
            header.shim.msg_len = len;
            header.model = Model::Tagged { stag: TAG, to };
        };
        let bytes = forged(&a, &b, change, 100);
        assert_eq!(b.take(at(0), a.addr, &bytes), Action::Drop(reason));
    }
    assert_eq!(b.placed, []);
    assert_eq!(b.ud.poll_timeout(), None, "nothing was opened");
}

/// The case's name, the change to the target, and the expected reason.
type Refusal = (&'static str, fn(&mut Node), Reason);

#[test]
fn memory_is_for_those_whom_it_is_for() {
    let (a, mut b) = two();
    let write = |header: &mut DataHeader<'static>| {
        header.opcode = Opcode::Rdmap(rdmap::Opcode::Write);
    };
    let cases: [Refusal; 4] = [
        (
            "right",
            |b| set(b, |entry| entry.rights = Rights::REMOTE_READ),
            Reason::Access,
        ),
        (
            "domain",
            |b| set(b, |entry| entry.pd.0 += 1),
            Reason::Access,
        ),
        (
            "QP",
            |b| set(b, |entry| entry.qp = Some(haul_iwarp::QpNum(77))),
            Reason::Access,
        ),
        ("source", |b| b.ram.open.clear(), Reason::UnknownPeer),
    ];
    for (what, change, reason) in cases {
        let (_, mut b) = two();
        change(&mut b);
        for bytes in [forged(&a, &b, |_| (), 100), forged(&a, &b, write, 100)] {
            assert_eq!(
                b.take(at(0), a.addr, &bytes),
                Action::Drop(reason),
                "{what}"
            );
        }
        assert_eq!(b.placed, []);
        b.ud.admit(&a.source());
        let action = b.take(at(0), a.addr, &forged(&a, &b, |_| (), 100));
        assert_eq!(matches!(action, Action::Place(_)), what == "source");
    }
    let bytes = forged(&a, &b, write, 100);
    assert!(matches!(b.take(at(0), a.addr, &bytes), Action::Place(_)));
    assert_eq!(b.events, [], "a plain Write is not reported");
}

fn set(node: &mut Node, change: impl FnOnce(&mut haul_iwarp::StagEntry)) {
    change(node.ram.stags.get_mut(&TAG).expect("it is there"));
}

#[test]
fn message_numbers_wrap() {
    let (a, mut b) = two();
    for n in 0..200_u32 {
        let id = MsgId(u32::MAX - 100).plus(n);
        let segment = |offset| {
            forged(
                &a,
                &b,
                |header| {
                    at_offset(offset)(header);
                    header.shim.msg_id = id;
                    header.shim.psn = Psn(u32::MAX - 50).plus(n);
                    header.shim.flags = Flags::NONE.with_if(Flags::LAST, offset > 0);
                },
                500,
            )
        };
        let (first, second) = (segment(0), segment(500));
        b.take(at(0), a.addr, &first);
        b.take(at(0), a.addr, &second);
        assert_eq!(b.take(at(0), a.addr, &first), Action::Drop(Reason::Late));
    }
    assert_eq!(records(&b).len(), 200);
    assert!(
        records(&b)
            .iter()
            .all(|r| r.status == Some(RecordStatus::Full))
    );
}

#[test]
fn segments_are_no_longer_than_the_path_from_the_moment_it_is_known() {
    let long = |n| common::with(config(n), |config| config.datagram_max = 1_472);
    let (mut a, mut b) = (Node::with(1, long(1)), target(long(2)));
    let bytes = pattern(30_000, 7);
    let other = Node::new(3);
    a.find_path(at(0), &b);
    a.find_path(at(0), &other);
    a.post(b.destination(), record_op(), bytes.clone());
    // Three of them are in flight when ICMP reports the first as too long.
    for _ in 0..3 {
        assert_eq!(a.next(at(0)).unwrap().1.len(), 1_472);
    }
    a.ud.handle_path(at(0), b.addr.ip(), 1_000);
    for (_, segment) in a.transmit(at(0)) {
        assert!(segment.len() <= 1_000);
        b.take(at(0), a.addr, &segment);
    }
    settle(&mut b, at(1));
    let start = 3 * (1_472 - 50);
    assert_eq!(ranges(records(&b)[0]), [(start, 30_000)]);
    let valid = start as usize..30_000;
    assert!(region(&b)[valid.clone()] == bytes[valid]);
    // Other hosts are not affected, and after ten minutes it is tried again.
    let longest = |node: &mut Node, to, ms| {
        node.post(to, SEND, vec![0; 3_000]);
        let sent = node.transmit(at(ms));
        sent.iter().map(|(_, octets)| octets.len()).max().unwrap()
    };
    assert_eq!(longest(&mut a, other.destination(), 2), 1_472);
    assert!(longest(&mut a, b.destination(), 599_999) <= 1_000);
    a.find_path(at(600_001), &b);
    assert_eq!(longest(&mut a, b.destination(), 600_002), 1_472);
}

#[test]
fn immediate_data_comes_with_the_record_whatever_is_lost() {
    let (mut a, mut b) = two();
    let op = Operation::WriteRecord {
        stag: TAG,
        to: BASE,
        immediate: Some(0xfeed_0000_0000_beef),
    };
    let sent = a.segments(b.destination(), op, vec![1; 1_400]);
    assert_eq!(sent.len(), 3);
    assert!(sent[..2].iter().all(|segment| segment.len() == 548));
    b.take(at(0), a.addr, &sent[1]);
    settle(&mut b, at(0));
    assert_eq!(records(&b)[0].immediate, Some(0xfeed_0000_0000_beef));
}

#[test]
fn chunks_are_reported_one_by_one() {
    let mut b = target(common::with(config(2), |config| {
        config.record_mode = RecordMode::PerChunk
    }));
    let mut a = Node::new(1);
    let sent = a.segments(b.destination(), record_op(), vec![1; 2 * SEG as usize]);
    for segment in [&sent[1], &sent[0], &sent[1]] {
        b.take(at(0), a.addr, segment);
    }
    assert_eq!(b.events.len(), 2);
    for (event, offset) in b.events.iter().zip([SEG, 0]) {
        let UdEvent::Chunk(chunk) = event else {
            panic!("{event:?}");
        };
        assert_eq!(
            (chunk.from, chunk.msg_id, chunk.immediate),
            (a.source(), MsgId(1), None)
        );
        assert_eq!(
            (chunk.stag, chunk.to, chunk.len),
            (TAG, BASE + u64::from(offset), SEG)
        );
        assert_eq!((chunk.offset, chunk.message_len), (offset, 2 * SEG));
    }
}

#[test]
fn polled_records_cause_no_events() {
    let mut b = target(common::with(config(2), |config| {
        config.record_mode = RecordMode::Query;
        config.records_kept = 2;
    }));
    let mut a = Node::new(1);
    let sent = a.segments(b.destination(), record_op(), vec![1; 2 * SEG as usize]);
    b.take(at(0), a.addr, &sent[1]);
    let open = b.ud.validity(&a.source(), MsgId(1)).unwrap();
    assert_eq!((open.status, ranges(&open)), (None, vec![(SEG, 2 * SEG)]));
    b.take(at(0), a.addr, &sent[0]);
    let closed = b.ud.validity(&a.source(), MsgId(1)).unwrap();
    assert_eq!(
        (closed.status, closed.valid),
        (Some(RecordStatus::Full), 2 * SEG)
    );
    for _ in 0..2 {
        let sent = a.segments(b.destination(), record_op(), vec![1; 10]);
        b.take(at(0), a.addr, &sent[0]);
    }
    assert_eq!(b.ud.validity(&a.source(), MsgId(1)), None, "two are kept");
    assert_eq!(b.ud.records().count(), 2);
    assert_eq!(b.ud.take_record().unwrap().msg_id, MsgId(2));
    assert_eq!(b.ud.take_record().unwrap().msg_id, MsgId(3));
    assert_eq!(b.ud.take_record(), None);
    assert_eq!(b.events, []);
}

#[test]
fn an_empty_message_is_a_message() {
    let (mut a, mut b) = two();
    b.receive(0);
    for op in [record_op(), SEND] {
        let sent = a.segments(b.destination(), op, Vec::new());
        assert_eq!(sent.len(), 1);
        assert_eq!(b.take(at(0), a.addr, &sent[0]), Action::Done);
    }
    assert_eq!(records(&b)[0].status, Some(RecordStatus::Full));
    assert_eq!(received(&b)[0].len, 0);
}

/// Two of each end, one of which knows no shorter way for neighbours.
fn pairs() -> [(Node, Node); 2] {
    [false, true].map(|one_by_one| {
        let (mut a, mut b) = two();
        (a.one_by_one, b.one_by_one) = (one_by_one, one_by_one);
        (a, b)
    })
}

#[test]
fn neighbours_leave_as_what_they_would_have_been_alone() {
    let [(mut short, b), (mut long, _)] = pairs();
    let immediate = Operation::WriteRecord {
        stag: TAG,
        to: BASE,
        immediate: Some(7),
    };
    let write = Operation::Write {
        stag: TAG,
        to: BASE,
        placed: false,
    };
    let ops = [record_op(), SEND, immediate, write, record_op()];
    for (n, op) in ops.into_iter().enumerate() {
        for count in [1, 2, 3, 9, 10, 11, 80, 200] {
            for octets in [count * SEG - 3, count * SEG, count * SEG + 1] {
                let bytes = pattern(octets as usize, n as u8);
                short.post(b.destination(), op, bytes.clone());
                long.post(b.destination(), op, bytes);
            }
        }
        // The path becomes narrower in the middle of a message.
        for _ in 0..50 {
            assert_eq!(short.next(at(0)), long.next(at(0)));
        }
        for node in [&mut short, &mut long] {
            let octets = 548 - 20 * n as u32;
            node.ud.handle_path(at(0), b.addr.ip(), octets);
        }
        assert_eq!(short.transmit(at(0)), long.transmit(at(0)));
        assert_eq!(short.events, long.events);
    }
    assert_eq!(short.ud.counters(), long.ud.counters());
    assert!(short.alike.1 > 1_000 && long.alike.1 == 0);
}

#[test]
fn neighbours_are_taken_as_they_would_have_been_alone() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let [(mut a, mut short), (_, mut long)] = pairs();
        let mut sent = Vec::new();
        for n in 0..4_u64 {
            let op = Operation::WriteRecord {
                stag: TAG,
                to: BASE + n * 40_000,
                immediate: (n == 2).then_some(n),
            };
            let octets = 1 + random.below(40_000) as usize;
            sent.extend(a.segments(short.destination(), op, pattern(octets, n as u8)));
        }
        let (mut now, mut at_segment) = (at(0), 0);
        while at_segment < sent.len() {
            let mut bytes = sent[at_segment].clone();
            at_segment += 1;
            match random.below(60) {
                0 => continue,
                1 => at_segment = at_segment.saturating_sub(3),
                2 => {
                    let octet = random.below(bytes.len() as u64) as usize;
                    bytes[octet] ^= 1 << random.below(8);
                }
                // Datagrams with a valid CRC and contradictory fields.
                3 => {
                    bytes = resealed(&bytes, |octets| {
                        octets[random.below(50) as usize] ^= 1 << random.below(8);
                    });
                }
                4 => bytes = resealed(&bytes[..bytes.len() - 1], |_| {}),
                5 => now = now.after(random.below(400) * MS),
                _ => {}
            }
            let gone = random.below(2_000) == 0;
            let from = if random.below(100) == 0 {
                ([192, 0, 2, 77], 4_791).into()
            } else {
                a.addr
            };
            let actions = [&mut short, &mut long].map(|node| {
                if gone {
                    node.ram.open.clear();
                }
                node.pass(now);
                node.take(now, from, &bytes)
            });
            assert_eq!(actions[0], actions[1], "seed {seed}, segment {at_segment}");
        }
        settle(&mut short, now);
        settle(&mut long, now);
        assert_eq!(short.events, long.events, "seed {seed}");
        assert_eq!(short.placed, long.placed);
        assert_eq!(short.ud.counters(), long.ud.counters());
        assert_eq!(region(&short), region(&long));
        assert!(short.alike.0 > 0 && long.alike.0 == 0, "seed {seed}");
    }
}
