//! Who sleeps misses nothing, and keeps nobody else from being served.

use std::time::{Duration, Instant};

use haul_verbs::cm::CmEvent;
use haul_verbs::{RecvWr, SendFlags, SendOp, SendWr, WcStatus, WorkCompletion};

use crate::support::{
    End, LOOPBACK, MEMORY, PATIENCE, Wish, connect_to, connected, make_qp, over_both,
};

/// A thread that waits is asleep by then.
const ASLEEP: Duration = Duration::from_millis(100);

/// The next completion, by polling.
fn polled(end: &End) -> WorkCompletion {
    let mut out = [WorkCompletion::default()];
    let start = Instant::now();
    while end.cq.poll(&mut out).unwrap() == 0 {
        assert!(start.elapsed() < PATIENCE, "{:?}", end.qp.failure());
    }
    out[0]
}

fn a_sleeper_keeps_no_other_connection_from_being_made_and_served(wish: &Wish) {
    let wish = Wish {
        remote_placement: true,
        ..*wish
    };
    let (near, far) = connected(&wish);
    let listener = far.context.listen(LOOPBACK, &far.events, 8).unwrap();
    let second = make_qp(&far.pd, &far.context.create_cq(64, None, 0).unwrap(), &wish);
    far.receive(1, 0, 8);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| far.success(1));
        std::thread::sleep(ASLEEP);
        let third = End::new(&wish.options(), &wish);
        third
            .qp
            .connect(listener.local_addr(), &wish.param(), &third.events)
            .unwrap();
        let CmEvent::ConnectRequest(request) = far.event() else {
            panic!("no request");
        };
        request.accept(&second, &wish.param()).unwrap();
        far.established();
        third.established();
        for number in 0..10 {
            third.post(number, SendOp::RdmaWrite(far.mr.remote(0)), 0, 100_000);
            third.success(number);
        }
        assert!(!sleeper.is_finished());
        near.post(2, SendOp::Send, 0, 8);
        sleeper.join().unwrap();
    });
}

fn what_is_posted_while_another_thread_sleeps_is_sent_to_its_end(wish: &Wish) {
    let (near, far) = connected(wish);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| near.success(31));
        std::thread::sleep(ASLEEP);
        let len = MEMORY as u32;
        for number in 0..32 {
            let op = SendOp::RdmaWrite(far.mr.remote(0));
            let wr = SendWr::new(number, op, near.mr.sge(0, len));
            let wr = match number {
                31 => wr.with_flags(SendFlags::SIGNALED),
                _ => wr.with_flags(SendFlags::empty()),
            };
            near.qp.post_send(&[wr]).unwrap();
        }
        sleeper.join().unwrap();
    });
}

fn a_poll_comes_back_though_every_one_before_found_something(wish: &Wish) {
    let (near, far) = connected(wish);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..200 {
                far.receive(number, 0, 8);
                near.receive(number, 0, 8);
                far.post(1_000, SendOp::Send, 0, 8);
                assert_eq!(polled(&far).status, WcStatus::Success);
                assert_eq!(polled(&far).status, WcStatus::Success);
            }
        });
        for _ in 0..200 {
            assert_eq!(polled(&near).status, WcStatus::Success);
            near.post(1_000, SendOp::Send, 0, 8);
            assert_eq!(polled(&near).status, WcStatus::Success);
        }
    });
    let mut out = [WorkCompletion::default()];
    let start = Instant::now();
    for _ in 0..100 {
        assert_eq!(near.cq.poll(&mut out).unwrap(), 0);
    }
    assert!(start.elapsed() < Duration::from_secs(2));
}

fn a_second_connection_over_one_queue_is_heard_by_who_sleeps(wish: &Wish) {
    let (near, far) = connected(wish);
    let third = End::new(&wish.options(), wish);
    far.receive(1, 0, 8);
    far.receive(3, 0, 8);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| far.completion());
        std::thread::sleep(ASLEEP);
        let second = make_qp(&far.pd, &far.cq, wish);
        let receive = RecvWr::new(2, far.mr.sge(0, 8));
        second.post_recv(&[receive]).unwrap();
        connect_to(&third, &far, &second, wish);
        third.post(9, SendOp::Send, 0, 8);
        third.success(9);
        assert_eq!(sleeper.join().unwrap().wr_id, 2);
        near.post(4, SendOp::Send, 0, 8);
        far.success(1);
    });
}

over_both!(
    a_sleeper_keeps_no_other_connection_from_being_made_and_served,
    what_is_posted_while_another_thread_sleeps_is_sent_to_its_end,
    a_poll_comes_back_though_every_one_before_found_something,
    a_second_connection_over_one_queue_is_heard_by_who_sleeps,
);
