//! Reliable datagrams: order, exactly once, over paths that lose.

use std::net::UdpSocket;

use haul_verbs::{
    DatagramInit, Peer, QpState, QpType, RecvWr, Remote, SendOp, SendWr, Sge, SgeList, Sources,
    WcData, WcOpcode, WcStatus,
};

use crate::relay::Relay;
use crate::support::{End, LOOPBACK, pattern};

fn reliable() -> End {
    End::with(QpType::Rd, DatagramInit::default(), Sources::Validated)
}

#[test]
fn messages_arrive_in_order_and_once() {
    let (near, far) = (reliable(), reliable());
    for wr_id in 0..100 {
        far.receive(wr_id, wr_id * 4_000, 4_000);
    }
    near.write(0, &pattern(4_000, 1));
    for wr_id in 0..100 {
        near.post(wr_id, SendOp::Send, 0, 1 + wr_id as u32 * 30, far.peer());
    }
    for wr_id in 0..100 {
        let wc = far.success(wr_id, WcOpcode::Recv);
        assert_eq!(wc.byte_len, 1 + wr_id as u32 * 30);
        assert_eq!(wc.src, Some(near.peer()));
        near.success(wr_id, WcOpcode::Send);
    }
    let last = far.read(99 * 4_000, 2_971);
    assert!(last == pattern(4_000, 1)[..2_971]);
    let counted = near.statistics();
    assert_eq!(counted.peers, 1);
    assert!(counted.peer_bytes > 0);
}

#[test]
fn everything_arrives_through_a_path_that_loses_a_tenth() {
    let (near, far) = (reliable(), reliable());
    let relay = Relay::new(far.addr, |seen| seen.index % 10 == 7);
    let peer = Peer::new(relay.near_side, far.qp.qp_num());
    let bytes = pattern(300_000, 2);
    near.write(0, &bytes);
    for wr_id in 0..3 {
        far.receive(wr_id, wr_id * 100_000, 100_000);
        near.post(wr_id, SendOp::Send, wr_id * 100_000, 100_000, peer);
    }
    near.post(
        3,
        SendOp::WriteRecord(far.mr.remote(1 << 20)),
        0,
        200_000,
        peer,
    );
    far.write(2 << 20, &bytes);
    near.post(
        4,
        SendOp::RdmaRead(far.mr.remote(2 << 20)),
        1 << 20,
        100_000,
        peer,
    );
    for wr_id in 0..3 {
        far.success(wr_id, WcOpcode::Recv);
    }
    let record = far.completion();
    assert_eq!(record.opcode, WcOpcode::RecvWriteRecord);
    assert_eq!(record.byte_len, 200_000);
    for wr_id in 0..5 {
        let wc = near.completion();
        assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, wr_id));
    }
    assert!(far.read(0, 300_000) == bytes);
    assert!(far.read(1 << 20, 200_000) == bytes[..200_000]);
    assert!(near.read(1 << 20, 100_000) == bytes[..100_000]);
    assert!(!relay.lost().is_empty());
    assert!(near.statistics().resent > 0);
}

#[test]
fn atomics_happen_exactly_once_whatever_is_lost() {
    let (near, far) = (reliable(), reliable());
    let relay = Relay::new(far.addr, |seen| seen.index % 4 == 2);
    let peer = Peer::new(relay.near_side, far.qp.qp_num());
    for wr_id in 0..20 {
        let add = SendOp::FetchAdd {
            remote: far.mr.remote(0),
            add: 1,
        };
        near.post(wr_id, add, 8, 8, peer);
        near.success(wr_id, WcOpcode::FetchAdd);
        let old = u64::from_ne_bytes(near.read(8, 8).try_into().unwrap());
        assert_eq!(old, wr_id);
    }
    assert_eq!(far.read(0, 8), 20_u64.to_ne_bytes());
}

#[test]
fn what_arrives_and_what_is_refused_is_counted() {
    let (near, far) = (reliable(), reliable());
    let stray = UdpSocket::bind(LOOPBACK).unwrap();
    for sent in 1..=200 {
        stray.send_to(b"nothing of ours", far.addr).unwrap();
        if sent % 50 == 0 {
            far.counts(|counts| counts.received == sent && counts.malformed == sent);
        }
    }
    let wrong = Remote {
        rkey: far.mr.rkey() ^ 1,
        ..far.mr.remote(0)
    };
    near.post(1, SendOp::RdmaWrite(wrong), 0, 8, far.peer());
    assert_eq!(near.completion().status, WcStatus::RemAccessErr);
    assert_eq!(far.statistics().refused, 1);
    far.receive(1, 0, 10);
    near.post(2, SendOp::Send, 0, 100, far.peer());
    assert_eq!(near.completion().status, WcStatus::RemInvReqErr);
    assert_eq!(far.statistics().too_long, 1);
    let before = far.statistics();
    assert!(before.received > 202, "{before:?}");
    let elsewhere = Peer::new(far.addr, far.qp.qp_num() ^ 0x800);
    near.post(3, SendOp::Send, 0, 8, elsewhere);
    far.counts(|counts| counts.unknown_qp > before.unknown_qp);
}

#[test]
fn immediate_data_follows_a_write_that_is_whole() {
    let (near, far) = (reliable(), reliable());
    let bytes = pattern(100_000, 4);
    near.write(0, &bytes);
    let relay = Relay::new(far.addr, |seen| seen.index % 5 == 1);
    let peer = Peer::new(relay.near_side, far.qp.qp_num());
    far.receive(7, 0, 0);
    let op = SendOp::RdmaWriteWithImm(far.mr.remote(4_096), 0xfeed);
    near.post(1, op, 0, 100_000, peer);
    let wc = far.success(7, WcOpcode::RecvRdmaWithImm);
    assert_eq!((wc.data, wc.byte_len), (WcData::Imm(0xfeed), 100_000));
    assert!(far.read(4_096, 100_000) == bytes);
    near.success(1, WcOpcode::RdmaWrite);
    near.nothing();
}

#[test]
fn immediate_data_of_an_empty_send_and_of_an_empty_write_are_told_apart() {
    let (near, far) = (reliable(), reliable());
    for (wr_id, op, completes) in [
        (1, SendOp::SendWithImm(7), WcOpcode::Recv),
        (
            2,
            SendOp::RdmaWriteWithImm(far.mr.remote(0), 7),
            WcOpcode::RecvRdmaWithImm,
        ),
    ] {
        far.receive(wr_id, 0, 64);
        let wr = SendWr::new(wr_id, op, SgeList::EMPTY).to(far.peer());
        near.qp.post_send(&[wr]).unwrap();
        let wc = far.success(wr_id, completes);
        assert_eq!((wc.data, wc.byte_len), (WcData::Imm(7), 0));
    }
}

#[test]
fn a_receive_with_a_wrong_key_fails_alone() {
    for len in [8, 8_000] {
        let (near, far) = (reliable(), reliable());
        let wrong = Sge {
            lkey: far.mr.lkey() ^ 1,
            ..far.mr.sge(0, 8_000)
        };
        far.qp.post_recv(&[RecvWr::new(1, wrong)]).unwrap();
        far.receive(2, 0, 8_000);
        far.receive(3, 0, 8_000);
        near.post(1, SendOp::Send, 0, len, far.peer());
        let wc = far.completion();
        assert_eq!((wc.wr_id, wc.status), (1, WcStatus::LocProtErr), "{len}");
        assert_ne!(near.completion().status, WcStatus::Success);
        near.post(2, SendOp::Send, 0, len, far.peer());
        near.success(2, WcOpcode::Send);
        far.success(2, WcOpcode::Recv);
    }
}

#[test]
fn a_refused_write_with_immediate_data_says_so_once() {
    let (near, far) = (reliable(), reliable());
    far.receive(7, 0, 0);
    let remote = Remote {
        rkey: far.mr.remote(0).rkey ^ 1,
        ..far.mr.remote(0)
    };
    near.post(1, SendOp::RdmaWriteWithImm(remote, 1), 0, 8, far.peer());
    let wc = near.completion();
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::RemAccessErr));
    near.nothing();
    far.nothing();
}

#[test]
fn a_peer_that_is_not_there_fails_its_requests_and_no_others() {
    let mut impatient = DatagramInit::default();
    impatient.retries = 2;
    let near = End::with(QpType::Rd, impatient, Sources::Validated);
    let far = reliable();
    let gone = UdpSocket::bind(LOOPBACK).unwrap();
    let nobody = Peer::new(gone.local_addr().unwrap(), 9);
    near.post(1, SendOp::Send, 0, 8, nobody);
    far.receive(1, 0, 8);
    near.post(2, SendOp::Send, 0, 8, far.peer());
    far.success(1, WcOpcode::Recv);
    near.success(2, WcOpcode::Send);
    let wc = near.completion();
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::RetryExcErr));
    assert_eq!(near.qp.state(), QpState::Rts);
}

#[test]
fn a_receive_that_comes_late_gets_the_message() {
    let (near, far) = (reliable(), reliable());
    let imm = SendOp::WriteRecordWithImm(far.mr.remote(0), 5);
    near.post(1, imm, 0, 0, far.peer());
    assert_eq!(far.completion().data, WcData::Imm(5));
    near.success(1, WcOpcode::WriteRecord);
    near.post(2, SendOp::Send, 0, 8, far.peer());
    far.counts(|counts| counts.no_receive > 0);
    far.receive(7, 0, 8);
    far.success(7, WcOpcode::Recv);
    near.success(2, WcOpcode::Send);
}

#[test]
fn a_service_of_the_other_kind_does_not_understand() {
    let (near, far) = (End::new(), reliable());
    far.receive(1, 0, 64);
    let wr = SendWr::new(1, SendOp::Send, near.mr.sge(0, 8)).to(far.peer());
    near.qp.post_send(&[wr]).unwrap();
    near.success(1, WcOpcode::Send);
    far.counts(|counts| counts.unknown_qp + counts.malformed > 0);
    far.nothing();
}
