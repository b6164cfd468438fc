//! Behaviour common to all operations of a datagram queue pair: groups, malformed input, notices,
//! close.
#![expect(clippy::cast_possible_truncation, reason = "small numbers")]

use crate::common;

use common::datagrams::{
    Node, SEND, TAG, at, completions, config, forged, received, resealed, target, two,
};
use haul_iwarp::Operation;
use haul_iwarp::datagram::wire::{ANY_QPN, DataHeader, Flags, MsgId, Opcode};
use haul_iwarp::datagram::{Action, Destination, Reason, UdEvent, UdSendWr, UdStatus};
use haul_iwarp::wire::ddp::Model;
use haul_iwarp::wire::rdmap;
use haul_iwarp::{PostError, Rights, Stag};

// ---- groups

#[test]
fn groups_get_sends_and_records_on_request_only() {
    let group = Destination {
        addr: ([239, 1, 2, 3], 4_791).into(),
        qpn: ANY_QPN,
    };
    let tag = Stag(0xff00_0001);
    for group_writes in [false, true] {
        let mut a = Node::new(1);
        let mut b = Node::with(
            2,
            common::with(config(2), |config| config.group_writes = group_writes),
        );
        for stag in [tag, TAG] {
            b.ram
                .register(stag.0, 0, vec![0; 4_000], Rights::REMOTE_WRITE);
            b.ram.open.insert(stag);
        }
        b.receive(2_000);
        for segment in a.segments(group, SEND, vec![3; 1_500]) {
            b.take(at(0), a.addr, &segment);
        }
        assert!(received(&b)[0].group);
        for stag in [tag, TAG] {
            let op = Operation::WriteRecord {
                stag,
                to: 0,
                immediate: None,
            };
            let sent = a.segments(group, op, vec![3; 100]);
            let taken = matches!(b.take(at(0), a.addr, &sent[0]), Action::Place(_));
            assert_eq!(taken, group_writes && stag == tag);
        }
        let mut wr = UdSendWr::new(
            0,
            0,
            group,
            Operation::Write {
                stag: tag,
                to: 0,
                placed: false,
            },
            1,
        );
        wr.signalled = false;
        assert_eq!(a.ud.post_send(wr), Err(PostError::Unsupported));
        assert_eq!(b.transmit(at(0)), []);
    }
}

// ---- nothing ends the queue pair

#[test]
fn rubbish_is_counted_and_changes_nothing() {
    let (mut a, mut b) = two();
    b.receive(100);
    let good = a.segments(b.destination(), SEND, vec![7; 60]);
    for at_octet in 0..good[0].len() {
        let mut bad = good[0].clone();
        bad[at_octet] ^= 0x10;
        assert!(matches!(b.take(at(0), a.addr, &bad), Action::Drop(_)));
    }
    let counters = b.ud.counters();
    assert_eq!(counters.dropped(Reason::Foreign), 1);
    assert_eq!(counters.dropped(Reason::BadCrc) as usize, good[0].len() - 1);
    let reports = b.events.len();
    assert_eq!(reports, 1, "one report in a second: {:?}", b.events);
    let elsewhere = resealed(&good[0], |bytes| bytes[7] ^= 1);
    assert_eq!(
        b.take(at(0), a.addr, &elsewhere),
        Action::Drop(Reason::WrongQp)
    );
    b.take(at(0), a.addr, &good[0]);
    assert_eq!(received(&b).len(), 1);
    assert_eq!(b.transmit(at(0)), [], "and nothing is answered");
}

#[test]
fn operations_that_need_a_connection_are_refused() {
    let (a, mut b) = two();
    b.receive(100);
    for opcode in [
        rdmap::Opcode::SendInvalidate,
        rdmap::Opcode::SendSolicitedInvalidate,
        rdmap::Opcode::AtomicRequest,
        rdmap::Opcode::Terminate,
    ] {
        let change = |header: &mut DataHeader<'static>| {
            header.opcode = Opcode::Rdmap(opcode);
            header.shim.msg_len = 60;
            header.shim.flags = Flags::LAST;
            header.model = Model::Untagged {
                ulp: TAG.0,
                qn: header.opcode.queue().unwrap(),
                msn: header.shim.msg_id.0,
                mo: 0,
            };
        };
        let bytes = forged(&a, &b, change, 60);
        assert_eq!(
            b.take(at(0), a.addr, &bytes),
            Action::Drop(Reason::Unsupported)
        );
    }
    assert!(b.ram.stags.contains_key(&TAG));
}

#[test]
fn notices_are_few_and_not_longer_than_their_cause() {
    let mut b = target(common::with(config(2), |config| config.notices = true));
    let mut a = Node::new(1);
    let mut received_octets = 0;
    for n in 0..1_000 {
        let sent = a.segments(b.destination(), SEND, vec![7; 1]);
        received_octets += sent[0].len();
        b.take(at(n), a.addr, &sent[0]);
    }
    let answers = b.transmit(at(1_000));
    assert_eq!(answers.len(), 10, "ten in a second");
    assert!(b.octets_sent <= received_octets);
    for (to, bytes) in answers {
        assert_eq!(to, a.addr);
        a.take(at(1_000), b.addr, &bytes);
    }
    assert!(matches!(
        a.events[0],
        UdEvent::Notice {
            msg_id: MsgId(1),
            ..
        }
    ));
    assert_eq!(b.transmit(at(1_000)), []);
}

#[test]
fn closing_gives_everything_back() {
    let (mut a, mut b) = two();
    b.receive(1_000);
    let whole = b.receive(1_000);
    let sent = a.segments(b.destination(), SEND, vec![7; 900]);
    b.take(at(0), a.addr, &sent[0]);
    b.post(a.destination(), SEND, vec![1; 10]);
    b.ud.close();
    b.poll();
    assert_eq!(received(&b).len(), 2);
    assert_eq!(received(&b)[1].slot, whole);
    assert!(
        received(&b)
            .iter()
            .all(|received| received.status == UdStatus::Flushed)
    );
    assert_eq!(completions(&b)[0].status, UdStatus::Flushed);
    assert_eq!(
        b.take(at(0), a.addr, &sent[1]),
        Action::Drop(Reason::WrongQp)
    );
    assert_eq!(b.ud.poll_timeout(), None);
}
