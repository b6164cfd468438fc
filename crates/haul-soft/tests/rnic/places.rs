//! A work queue's place is taken from the posting of a request until its completion has been
//! polled.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use haul_verbs::{
    Cq, Data, Error, Qp, QpInit, QpState, RecvWr, Remote, SendFlags, SendOp, SendWr, SrqInit,
    WcStatus, WorkCompletion,
};

use crate::support::{End, PATIENCE, Wish, capacity, connect, connected, make_qp, over_both};

const DEPTH: u32 = 128;

fn wish(wish: &Wish) -> Wish {
    Wish {
        depth: DEPTH,
        ..*wish
    }
}

/// Posts a Write; whether there was a place for it.
#[track_caller]
fn post(qp: &Qp, wr_id: u64, to: Remote, flags: SendFlags) -> bool {
    let wr = SendWr::new(wr_id, SendOp::RdmaWrite(to), Data::Inline(&[7; 64]));
    fits(qp.post_send(&[wr.with_flags(flags)]))
}

#[track_caller]
fn fits(posted: Result<(), haul_verbs::PostError>) -> bool {
    match posted.map_err(|error| error.error) {
        Ok(()) => true,
        Err(Error::Full(_)) => false,
        Err(other) => panic!("{other}"),
    }
}

/// Posts until there is no place; how many there were.
fn fill(mut post: impl FnMut() -> bool) -> u32 {
    (0..2_000).map(|_| u32::from(post())).sum()
}

/// Lets requests complete, without polling their completions.
fn drive(cq: &Cq) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(200) {
        cq.poll(&mut []).unwrap();
    }
}

fn a_send_queue_is_full_until_completions_are_polled(given: &Wish) {
    let (near, far) = connected(&wish(given));
    let to = far.mr.remote(0);
    let one = || post(&near.qp, 1, to, SendFlags::SIGNALED);
    assert_eq!(fill(one), DEPTH);
    drive(&near.cq);
    assert_eq!(fill(one), 0);
    for polled in [1, 10, 100] {
        for _ in 0..polled {
            near.success(1);
        }
        assert_eq!(fill(one), polled);
        drive(&near.cq);
    }
    assert_eq!(near.qp.state(), QpState::Rts);
}

fn an_unsignalled_request_has_its_place_until_the_next_completion_is_polled(given: &Wish) {
    let (near, far) = connected(&wish(given));
    let to = far.mr.remote(0);
    let silent = || post(&near.qp, 1, to, SendFlags::empty());
    assert!((0..DEPTH - 10).all(|_| silent()));
    assert!(post(&near.qp, 2, to, SendFlags::SIGNALED));
    assert_eq!(fill(silent), 9);
    drive(&near.cq);
    assert_eq!(fill(silent), 0);
    near.success(2);
    // The nine behind it have no completion behind them.
    assert_eq!(fill(silent), DEPTH - 9);
}

fn a_receive_queue_is_full_until_completions_are_polled(given: &Wish) {
    let (near, far) = connected(&wish(given));
    let receive = || fits(far.qp.post_recv(&[RecvWr::new(5, far.mr.sge(0, 64))]));
    assert_eq!(fill(receive), DEPTH);
    for number in 0..10 {
        near.post(number, SendOp::Send, 0, 8);
        near.success(number);
    }
    drive(&far.cq);
    assert_eq!(fill(receive), 0);
    far.success(5);
    far.success(5);
    assert_eq!(fill(receive), 2);
}

fn in_error_both_queues_are_full_until_flushes_are_polled(given: &Wish) {
    let (near, far) = connected(&wish(given));
    let bad = Remote {
        rkey: !far.mr.rkey(),
        ..far.mr.remote(0)
    };
    assert!(post(&near.qp, 1, bad, SendFlags::SIGNALED));
    let mut out = [WorkCompletion::default(); 256];
    while near.qp.state() != QpState::Err {
        near.cq
            .wait(&mut out, Some(Duration::from_millis(10)))
            .unwrap();
    }
    near.cq.wait(&mut out, Some(Duration::ZERO)).unwrap();
    let send = || post(&near.qp, 3, far.mr.remote(0), SendFlags::empty());
    let receive = || fits(near.qp.post_recv(&[RecvWr::new(4, near.mr.sge(0, 64))]));
    for _ in 0..2 {
        assert_eq!((fill(send), fill(receive)), (DEPTH, DEPTH));
        let mut flushed = 0;
        while flushed < 2 * DEPTH as usize {
            let count = near.cq.wait(&mut out, Some(PATIENCE)).unwrap();
            assert!(count > 0);
            assert!(
                out[..count]
                    .iter()
                    .all(|wc| wc.status == WcStatus::WrFlushErr)
            );
            flushed += count;
        }
        assert_eq!(near.cq.poll(&mut out).unwrap(), 0);
    }
}

fn a_shared_receive_queue_is_full_until_completions_are_polled(given: &Wish) {
    let wish = wish(given);
    let (near, mut far) = (
        End::new(&wish.options(), &wish),
        End::new(&wish.options(), &wish),
    );
    let mut srq_init = SrqInit::default();
    srq_init.max_wr = 8;
    let srq = far.pd.create_srq(&srq_init).unwrap();
    let mut init = QpInit::new(&far.cq);
    init.capacity = capacity(&wish);
    init.srq = Some(&srq);
    far.qp = far.pd.create_qp(&init).unwrap();
    let receive = || fits(srq.post_recv(&[RecvWr::new(5, far.mr.sge(0, 64))]));
    assert_eq!(fill(receive), 8);
    connect(&near, &far, &wish);
    for number in 0..6 {
        near.post(number, SendOp::Send, 0, 8);
        near.success(number);
    }
    drive(&far.cq);
    assert_eq!(fill(receive), 0);
    far.success(5);
    assert_eq!(fill(receive), 1);
    for _ in 0..5 {
        far.success(5);
    }
    assert_eq!(fill(receive), 5);
}

/// Requests of [`four_posters_and_three_waiters_count_alike`]: `HAUL_REQUESTS`, or 100,000.
fn requests() -> u64 {
    let set = std::env::var("HAUL_REQUESTS").ok();
    set.map_or(100_000, |text| text.parse().unwrap())
}

fn four_posters_and_three_waiters_count_alike(given: &Wish) {
    let wish = wish(given);
    let many = requests();
    let (mut near, far) = (
        End::new(&wish.options(), &wish),
        End::new(&wish.options(), &wish),
    );
    // As many entries as places: one completion too many and it overflows.
    near.cq = near.context.create_cq(DEPTH, None, 0).unwrap();
    near.qp = make_qp(&near.pd, &near.cq, &wish);
    connect(&near, &far, &wish);
    let seen: Vec<AtomicBool> = (0..many).map(|_| AtomicBool::new(false)).collect();
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let end = Instant::now() + PATIENCE * u32::try_from(many.div_ceil(100_000)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= many {
                        return;
                    }
                    while !post(&near.qp, number, far.mr.remote(0), SendFlags::SIGNALED) {
                        assert!(Instant::now() < end);
                        std::thread::yield_now();
                    }
                }
            });
        }
        for _ in 0..3 {
            scope.spawn(|| {
                let mut out = [WorkCompletion::default(); 16];
                while done.load(Ordering::Relaxed) < many {
                    assert!(Instant::now() < end);
                    let count = near
                        .cq
                        .wait(&mut out, Some(Duration::from_millis(20)))
                        .unwrap();
                    for wc in &out[..count] {
                        assert_eq!(wc.status, WcStatus::Success);
                        let before = seen[wc.wr_id as usize].swap(true, Ordering::Relaxed);
                        assert!(!before, "request {} completed twice", wc.wr_id);
                    }
                    done.fetch_add(count as u64, Ordering::Relaxed);
                }
            });
        }
    });
    assert!(seen.iter().all(|seen| seen.load(Ordering::Relaxed)));
    let places = fill(|| post(&near.qp, 0, far.mr.remote(0), SendFlags::SIGNALED));
    assert_eq!(places, DEPTH);
}

over_both!(
    a_send_queue_is_full_until_completions_are_polled,
    an_unsignalled_request_has_its_place_until_the_next_completion_is_polled,
    a_receive_queue_is_full_until_completions_are_polled,
    in_error_both_queues_are_full_until_flushes_are_polled,
    a_shared_receive_queue_is_full_until_completions_are_polled,
    four_posters_and_three_waiters_count_alike,
);
