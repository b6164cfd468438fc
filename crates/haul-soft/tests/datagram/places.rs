//! A send queue's place is taken from the posting of a request until its completion has been
//! polled.

use std::time::{Duration, Instant};

use haul_verbs::{
    Data, DatagramInit, Error, PostError, QpType, RecvWr, SendFlags, SendOp, SendWr, Sources,
    WcOpcode,
};

use crate::support::{End, capacity};

fn pair(qp_type: QpType) -> (End, End) {
    let end = || End::with(qp_type, DatagramInit::default(), Sources::Any);
    (end(), end())
}

#[track_caller]
fn fits(posted: Result<(), PostError>) -> bool {
    match posted.map_err(|error| error.error) {
        Ok(()) => true,
        Err(Error::Full(_)) => false,
        Err(other) => panic!("{other}"),
    }
}

fn write(near: &End, far: &End, flags: SendFlags) -> bool {
    let op = SendOp::RdmaWrite(far.mr.remote(0));
    let wr = SendWr::new(1, op, Data::Inline(&[7; 64])).with_flags(flags);
    fits(near.qp.post_send(&[wr.to(far.peer())]))
}

fn fill(mut post: impl FnMut() -> bool) -> u32 {
    (0..2_000).map(|_| u32::from(post())).sum()
}

/// Lets requests complete, without polling their completions.
fn drive(ends: [&End; 2]) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(200) {
        for end in ends {
            end.cq.poll(&mut []).unwrap();
        }
    }
}

fn a_send_queue_is_full_until_completions_are_polled(qp_type: QpType) {
    let (near, far) = pair(qp_type);
    let depth = capacity().max_send_wr;
    let one = || write(&near, &far, SendFlags::SIGNALED);
    assert_eq!(fill(one), depth);
    drive([&near, &far]);
    assert_eq!(fill(one), 0);
    for polled in [1, 100] {
        for _ in 0..polled {
            near.success(1, WcOpcode::RdmaWrite);
        }
        assert_eq!(fill(one), polled);
        drive([&near, &far]);
    }
    for _ in 0..depth {
        near.success(1, WcOpcode::RdmaWrite);
    }
    let silent = || write(&near, &far, SendFlags::empty());
    assert_eq!(fill(silent), depth);
    drive([&near, &far]);
    assert_eq!(fill(silent), 0);
}

#[test]
fn a_send_queue_of_ud_is_full_until_completions_are_polled() {
    a_send_queue_is_full_until_completions_are_polled(QpType::Ud);
}

#[test]
fn a_send_queue_of_rd_is_full_until_completions_are_polled() {
    a_send_queue_is_full_until_completions_are_polled(QpType::Rd);
}

#[test]
fn a_receive_queue_of_ud_is_full_until_completions_are_polled() {
    let (near, far) = pair(QpType::Ud);
    let receive = || fits(far.qp.post_recv(&[RecvWr::new(5, far.mr.sge(0, 64))]));
    assert_eq!(fill(receive), capacity().max_recv_wr);
    for number in 0..10 {
        near.post(number, SendOp::Send, 0, 8, far.peer());
    }
    drive([&near, &far]);
    assert_eq!(fill(receive), 0);
    far.success(5, WcOpcode::Recv);
    assert_eq!(fill(receive), 1);
}
