//! Where the engine alone drives: messages, requests that it refuses, and the end.

use std::net::SocketAddr;
use std::time::Duration;

use haul_verbs::{Peer, QpState, QpType, SendOp, WcOpcode, WcStatus};

use crate::support::{End, pattern};

#[test]
fn messages_arrive_and_are_answered() {
    for qp_type in [QpType::Ud, QpType::Rd] {
        let (near, far) = (End::by_engine(qp_type), End::by_engine(qp_type));
        let text = pattern(1_000, 1);
        near.write(0, &text);
        for wr_id in 0..200 {
            far.receive(wr_id, 0, 1_000);
            near.receive(wr_id, 2_000, 1_000);
            near.post(wr_id, SendOp::Send, 0, 1_000, far.peer());
            near.success(wr_id, WcOpcode::Send);
            let wc = far.success(wr_id, WcOpcode::Recv);
            assert_eq!((wc.byte_len, wc.src), (1_000, Some(near.peer())));
            far.post(wr_id, SendOp::Send, 0, 1_000, near.peer());
            far.success(wr_id, WcOpcode::Send);
            near.success(wr_id, WcOpcode::Recv);
        }
        assert!(near.read(2_000, 1_000) == text);
    }
}

#[test]
fn a_reliable_message_waits_for_its_receive() {
    let (near, far) = (End::by_engine(QpType::Rd), End::by_engine(QpType::Rd));
    near.post(1, SendOp::Send, 0, 64, far.peer());
    std::thread::sleep(Duration::from_millis(50));
    far.nothing();
    far.receive(2, 0, 64);
    far.success(2, WcOpcode::Recv);
    near.success(1, WcOpcode::Send);
}

#[test]
fn a_request_that_the_engine_refuses_completes_and_the_next_one_works() {
    let (near, far) = (End::by_engine(QpType::Ud), End::by_engine(QpType::Ud));
    let group = Peer::group(SocketAddr::from(([239, 1, 2, 3], 4_000)));
    far.receive(3, 0, 64);
    for wr_id in 0..300 {
        // More than the send queue holds: each completion frees its place.
        near.post(wr_id, SendOp::RdmaRead(far.mr.remote(0)), 0, 8, group);
        let wc = near.completion();
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::LocQpOpErr));
    }
    assert_eq!(near.qp.state(), QpState::Rts);
    near.post(300, SendOp::Send, 0, 64, far.peer());
    near.success(300, WcOpcode::Send);
    far.success(3, WcOpcode::Recv);
}

#[test]
fn what_was_posted_before_the_end_is_sent() {
    const COUNT: u64 = 32;
    for drops in [false, true] {
        let (near, far) = (End::by_engine(QpType::Ud), End::new());
        for wr_id in 0..COUNT {
            far.receive(wr_id, 0, 64);
        }
        for wr_id in 0..COUNT {
            near.post(wr_id, SendOp::Send, 0, 64, far.peer());
        }
        if drops {
            drop(near.qp);
        } else {
            near.qp.disconnect().unwrap();
        }
        for wr_id in 0..COUNT {
            far.success(wr_id, WcOpcode::Recv);
        }
    }
}

#[test]
fn what_is_posted_around_the_end_is_flushed() {
    for qp_type in [QpType::Ud, QpType::Rd] {
        let (near, far) = (End::by_engine(qp_type), End::new());
        near.receive(0, 0, 64);
        near.qp.disconnect().unwrap();
        near.receive(1, 0, 64);
        near.post(2, SendOp::Send, 0, 64, far.peer());
        let mut seen: Vec<_> = (0..3)
            .map(|_| {
                let wc = near.completion();
                assert_eq!(wc.status, WcStatus::WrFlushErr);
                wc.wr_id
            })
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2]);
        assert_eq!(near.qp.state(), QpState::Err);
    }
}
