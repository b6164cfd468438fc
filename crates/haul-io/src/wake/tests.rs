//! Every interleaving of threads that wake each other. A lost wake-up is a deadlock, which loom
//! reports.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::thread;

use super::*;

/// A completion queue, but for what is in it.
struct Queue {
    bell: Bell,
    entries: loom::sync::Mutex<u32>,
    len: AtomicU32,
}

impl Queue {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            bell: Bell::new().unwrap(),
            entries: loom::sync::Mutex::new(0),
            len: AtomicU32::new(0),
        })
    }

    fn push(&self) {
        let mut entries = self.entries.lock().unwrap();
        *entries += 1;
        self.len.store(*entries, Ordering::Release);
        drop(entries);
        self.bell.ring();
    }

    fn pop(&self) -> bool {
        if self.len.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut entries = self.entries.lock().unwrap();
        let took = *entries > 0;
        *entries -= u32::from(took);
        self.len.store(*entries, Ordering::Release);
        let more = *entries > 0;
        drop(entries);
        if more {
            self.bell.ring();
        }
        took
    }

    /// Takes an entry, sleeping until there is one.
    fn wait(&self) {
        while !self.pop() {
            self.bell.enter();
            if self.len.load(Ordering::Acquire) == 0 {
                self.bell.signal.sleep();
            }
            self.bell.leave();
        }
    }

    /// Goes to sleep and leaves at once: its timeout, or an arrival on a socket. Whether it took an
    /// entry.
    fn doze(&self) -> bool {
        self.bell.enter();
        self.bell.leave();
        self.pop()
    }

    /// Nothing would wake the next sleeper for ever: what is set will be cleared.
    fn check(&self) {
        let rung = self.bell.rung.load(Ordering::Relaxed);
        assert_eq!(
            self.bell.signal.is_set(),
            rung,
            "a signal that nobody clears"
        );
    }
}

#[test]
fn loom_a_sleeper_that_leaves_for_another_reason_leaves_no_stale_signal() {
    loom::model(|| {
        let queue = Queue::new();
        let poster = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.push())
        };
        if !queue.doze() {
            queue.wait();
        }
        poster.join().unwrap();
        queue.check();
    });
}

#[test]
fn loom_a_sleeper_that_leaves_takes_no_others_wake_up() {
    loom::model(|| {
        let queue = Queue::new();
        let others: Vec<_> = [Queue::push, Queue::wait]
            .into_iter()
            .map(|run| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || run(&queue))
            })
            .collect();
        if queue.doze() {
            queue.push();
        }
        for other in others {
            other.join().unwrap();
        }
        queue.check();
    });
}

#[test]
fn loom_two_entries_wake_two_sleepers() {
    loom::model(|| {
        let queue = Queue::new();
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || queue.wait())
            })
            .collect();
        queue.push();
        queue.push();
        for waiter in waiters {
            waiter.join().unwrap();
        }
        queue.check();
    });
}

#[test]
fn loom_notices_are_signalled_while_there_are_any() {
    loom::model(|| {
        let notices = Arc::new(Notices::new(usize::MAX).unwrap());
        let takers: Vec<_> = (0..2)
            .map(|_| {
                let notices = Arc::clone(&notices);
                thread::spawn(move || {
                    while notices.pop().is_none() {
                        notices.signal.sleep();
                    }
                })
            })
            .collect();
        notices.push(1);
        notices.push(2);
        for taker in takers {
            taker.join().unwrap();
        }
        assert!(!notices.signal.is_set());
    });
}

#[test]
fn loom_a_thread_that_announces_sleep_misses_nothing() {
    loom::model(|| {
        let shared = Arc::new((
            SleepFlag::default(),
            AtomicBool::new(false),
            Signal::new().unwrap(),
        ));
        let sleeper = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (flag, given, signal) = &*shared;
                while !given.load(Ordering::Relaxed) {
                    flag.set();
                    if !given.load(Ordering::Relaxed) {
                        signal.sleep();
                    }
                    flag.clear();
                }
            })
        };
        let (flag, given, signal) = &*shared;
        given.store(true, Ordering::Relaxed);
        if flag.is_set() {
            signal.set();
        }
        sleeper.join().unwrap();
    });
}

/// As threads of a process wait for completions that another one writes: they share a descriptor,
/// and whoever clears it for the others sets it again.
#[test]
fn loom_threads_that_are_counted_miss_nothing() {
    loom::model(|| {
        let shared = Arc::new((AtomicU64::new(0), AtomicU32::new(0), Signal::new().unwrap()));
        let take = |items: &AtomicU32| {
            let taken = items.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
                count.checked_sub(1)
            });
            taken.is_ok()
        };
        let sleepers: Vec<_> = (0..2)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let (word, items, signal) = &*shared;
                    let word = SleepWord(word);
                    while !take(items) {
                        word.enter();
                        if items.load(Ordering::Relaxed) == 0 {
                            signal.sleep();
                        }
                        let others = word.leave();
                        signal.clear();
                        if others && items.load(Ordering::Relaxed) > 0 {
                            signal.set();
                        }
                    }
                })
            })
            .collect();
        let (word, items, signal) = &*shared;
        for _ in 0..2 {
            items.fetch_add(1, Ordering::Relaxed);
            if SleepWord(word).is_set() {
                signal.set();
            }
        }
        for sleeper in sleepers {
            sleeper.join().unwrap();
        }
    });
}

#[test]
fn loom_waiters_and_watchers_of_the_descriptor_are_both_woken() {
    loom::model(|| {
        let shared = Arc::new((Readiness::new().unwrap(), AtomicU32::new(0)));
        let ready = |bits: &AtomicU32| bits.load(Ordering::Relaxed);
        let waiter = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (readiness, bits) = &*shared;
                assert_eq!(readiness.wait(1, None, || ready(bits)), 1);
            })
        };
        let watcher = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (readiness, bits) = &*shared;
                while readiness.poll(2, || ready(bits)) == 0 {
                    readiness.signal.sleep();
                }
            })
        };
        let (readiness, bits) = &*shared;
        for bit in [2, 1] {
            bits.fetch_or(bit, Ordering::Relaxed);
            readiness.notify(|| ready(bits));
        }
        waiter.join().unwrap();
        watcher.join().unwrap();
    });
}

/// A command queue, an acceptor that is to stop, a stream's engine: something is published, then
/// the poller is woken.
#[test]
fn loom_a_poller_misses_no_wake_up() {
    loom::model(|| {
        let shared = Arc::new((Rest::new(), AtomicU32::new(0), Signal::new().unwrap()));
        let wakers: Vec<_> = (0..2)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let (rest, commands, signal) = &*shared;
                    commands.fetch_add(1, Ordering::Relaxed);
                    if rest.wake() {
                        signal.set();
                    }
                })
            })
            .collect();
        let (rest, commands, signal) = &*shared;
        while commands.load(Ordering::Relaxed) < 2 {
            if rest.begin() {
                signal.sleep();
                // Edge-triggered: the wait uses the event up.
                signal.clear();
            }
            rest.end();
        }
        for waker in wakers {
            waker.join().unwrap();
        }
    });
}
