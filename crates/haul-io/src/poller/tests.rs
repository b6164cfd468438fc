use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::NONBLOCK,
        None,
    )
    .unwrap()
}

#[test]
fn deadline_ends_the_wait_and_is_not_undercut() {
    set_timer_slack_ns(1).unwrap();
    let clock = Clock::new();
    let mut poller = Poller::new().unwrap();
    let mut events = Events::with_capacity(4);
    for wait_ns in [0, 50_000, 1_000_000, 2_500_000] {
        let deadline = clock.now_ns() + wait_ns;
        poller.wait(&mut events, Some(deadline), clock).unwrap();
        let late = clock
            .now_ns()
            .checked_sub(deadline)
            .expect("woke before the deadline");
        assert!(events.is_empty());
        // A loaded machine may be late; only absurd lateness means a wrong unit.
        assert!(late < 500_000_000, "{late} ns late");
    }
}

#[test]
fn waits_shorter_than_a_millisecond_are_kept() {
    set_timer_slack_ns(1).unwrap();
    let clock = Clock::new();
    let mut poller = Poller::new().unwrap();
    let mut events = Events::with_capacity(1);
    let lateness = |_| {
        let deadline = clock.now_ns() + 50_000;
        poller.wait(&mut events, Some(deadline), clock).unwrap();
        clock.now_ns() - deadline
    };
    let best = (0..100).map(lateness).min().unwrap();
    // Rounded to milliseconds, each would be 900 µs late.
    assert!(best < 400_000, "{best} ns late at best");
}

#[test]
fn deadline_in_the_past_returns_at_once() {
    let clock = Clock::new();
    let mut poller = Poller::new().unwrap();
    let mut events = Events::with_capacity(1);
    poller.wait(&mut events, Some(1), clock).unwrap();
    assert!(events.is_empty());
}

#[test]
fn wake_before_the_wait_is_not_lost() {
    let clock = Clock::new();
    let mut poller = Poller::new().unwrap();
    let mut events = Events::with_capacity(1);
    let waker = poller.waker();
    waker.wake();
    waker.wake();
    poller.wait(&mut events, None, clock).unwrap();
    assert!(events.woken() && events.iter().count() == 0);
    poller
        .wait(&mut events, Some(clock.now_ns() + 1_000_000), clock)
        .unwrap();
    assert!(!events.woken(), "two wakes before one wait are one wake");
}

#[test]
fn work_left_before_a_wake_is_always_seen() {
    const ITEMS: u64 = 20_000;
    let clock = Clock::new();
    let mut poller = Poller::new().unwrap();
    let mut events = Events::with_capacity(1);
    let waker = poller.waker();
    let queue = Arc::new(AtomicU64::new(0));
    let left = Arc::clone(&queue);
    let worker = thread::spawn(move || {
        for item in 1..=ITEMS {
            left.store(item, Ordering::Relaxed);
            waker.wake();
            if item % 64 == 0 {
                thread::yield_now();
            }
        }
    });
    while queue.load(Ordering::Relaxed) < ITEMS {
        let deadline = clock.now_ns() + 5_000_000_000;
        poller.wait(&mut events, Some(deadline), clock).unwrap();
        assert!(clock.now_ns() < deadline, "a wake was lost");
    }
    worker.join().unwrap();
}

#[test]
fn readable_descriptor_is_reported_with_its_token_until_read() {
    let clock = Clock::new();
    let mut poller = Poller::new().unwrap();
    let mut events = Events::with_capacity(4);
    let (near, far) = pair();
    poller.add(&near, 7, Interest::READ).unwrap();
    rustix::io::write(&far, b"x").unwrap();
    for _ in 0..2 {
        poller.wait(&mut events, None, clock).unwrap();
        let event = events.iter().next().unwrap();
        assert_eq!(
            (event.token, event.readable, event.writable, event.closed),
            (7, true, false, false)
        );
    }
    rustix::io::read(&near, &mut [0; 8]).unwrap();
    poller.modify(&near, 8, Interest::BOTH).unwrap();
    poller.wait(&mut events, None, clock).unwrap();
    let event = events.iter().next().unwrap();
    assert_eq!(
        (event.token, event.readable, event.writable),
        (8, false, true)
    );
    drop(far);
    poller.wait(&mut events, None, clock).unwrap();
    assert!(events.iter().all(|event| event.closed && event.readable));
    poller.remove(&near).unwrap();
    poller
        .wait(&mut events, Some(clock.now_ns() + 1_000_000), clock)
        .unwrap();
    assert!(events.is_empty());
}

#[test]
fn more_ready_descriptors_than_room_are_reported_over_several_waits() {
    let clock = Clock::new();
    let mut poller = Poller::new().unwrap();
    let mut events = Events::with_capacity(1);
    let pairs: Vec<_> = (0..8).map(|_| pair()).collect();
    for (token, (near, _)) in (0..).zip(&pairs) {
        poller.add(near, token, Interest::WRITE).unwrap();
    }
    let mut seen = [false; 8];
    for _ in 0..64 {
        poller.wait(&mut events, None, clock).unwrap();
        for event in events.iter() {
            seen[usize::try_from(event.token).unwrap()] = true;
        }
    }
    assert_eq!(seen, [true; 8]);
}

#[test]
fn reserved_token_and_zero_slack_are_refused() {
    let poller = Poller::new().unwrap();
    let (near, _far) = pair();
    let error = poller.add(&near, u64::MAX, Interest::READ).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert_eq!(
        set_timer_slack_ns(0).unwrap_err().kind(),
        io::ErrorKind::InvalidInput
    );
}
