//! How threads wake each other up without a lost or a stale wake-up.
//!
//! Each protocol is implemented here once, separate from the data that is waited for, so that loom
//! can run every interleaving of it (`./test loom`): [`Bell`] many threads that sleep until an item
//! can be taken · [`Notices`] a queue with a file descriptor · [`Readiness`] threads and a
//! descriptor that wait for conditions · [`SleepFlag`] one thread that sleeps by means of its own,
//! [`SleepWord`] the same between processes ·
//! `Rest` the sleep of a [`Poller`](crate::poller::Poller).
//!
//! All but [`Notices`] follow one rule. The waking thread publishes, executes a fence, then checks
//! for sleepers. The thread that goes to sleep announces that, executes a fence, then checks once
//! more. So one of the two sees the other.

mod sync;

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use crate::clock::Clock;

use sync::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, PoisonError,
    Signal, fence,
};

/// Wakes threads that sleep, each in its own way, until there is an item to take.
///
/// A thread that finds nothing calls [`Bell::enter`], checks once more, sleeps on [`Bell::signal`]
/// and its other wake-up sources, and calls [`Bell::leave`]. Then it must check again: it may have
/// consumed the wake-up that another sleeper needs. A thread that takes an item and leaves more
/// calls [`Bell::ring`].
#[derive(Debug)]
pub struct Bell {
    sleepers: AtomicU32,
    /// The signal is set, or about to be set; the thread that clears it changes this back.
    rung: AtomicBool,
    signal: Signal,
}

impl Bell {
    /// Creates a bell without sleepers.
    ///
    /// # Errors
    /// Of `eventfd(2)`: out of file descriptors or memory.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            sleepers: AtomicU32::new(0),
            rung: AtomicBool::new(false),
            signal: Signal::new()?,
        })
    }

    /// Wakes the sleepers, if there are any, after something was published.
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        // If another thread sets the signal, the sleepers wake up. A thread that clears it checks
        // again afterwards.
        if self.sleepers.load(Ordering::Relaxed) > 0 && !self.rung.swap(true, Ordering::AcqRel) {
            self.signal.set();
        }
    }

    /// Counts this thread among the sleepers.
    pub fn enter(&self) {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Ends the sleep that [`Bell::enter`] began. The caller checks for items afterwards.
    pub fn leave(&self) {
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        // Only the thread that has cleared a set signal may clear this flag. Otherwise a thread
        // that is about to set the signal would leave it set for ever.
        if self.rung.load(Ordering::Acquire) && self.signal.clear() {
            self.rung.swap(false, Ordering::AcqRel);
            fence(Ordering::SeqCst);
        }
    }

    /// Readable after a [`Bell::ring`] that found sleepers, until one of them leaves.
    #[must_use]
    pub fn signal(&self) -> &Signal {
        &self.signal
    }
}

/// A queue with a file descriptor that is readable while the queue is not empty.
#[derive(Debug)]
pub struct Notices<T> {
    queue: Mutex<VecDeque<T>>,
    signal: Signal,
    limit: usize,
}

impl<T> Notices<T> {
    /// Creates an empty queue; items pushed beyond `limit` are dropped.
    ///
    /// # Errors
    /// Of `eventfd(2)`: out of file descriptors or memory.
    pub fn new(limit: usize) -> io::Result<Self> {
        Ok(Self {
            queue: Mutex::new(VecDeque::new()),
            signal: Signal::new()?,
            limit,
        })
    }

    /// Appends `notice`.
    pub fn push(&self, notice: T) {
        let mut queue = lock(&self.queue);
        if queue.len() < self.limit {
            queue.push_back(notice);
            // With the lock: a pop in between would leave the signal set for an empty queue.
            // Always, and not only for the first notice: an edge-triggered event loop needs one for
            // each.
            self.signal.set();
        }
    }

    /// Takes the oldest notice.
    pub fn pop(&self) -> Option<T> {
        let mut queue = lock(&self.queue);
        let notice = queue.pop_front();
        if queue.is_empty() {
            self.signal.clear();
        }
        notice
    }

    /// Returns whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        lock(&self.queue).is_empty()
    }

    /// Readable while something is in the queue.
    #[must_use]
    pub fn signal(&self) -> &Signal {
        &self.signal
    }
}

/// Announces that a thread sleeps, by means of its own, until something is published for it.
#[derive(Debug, Default)]
pub struct SleepFlag(AtomicU64);

impl SleepFlag {
    /// Announces that this thread sleeps unless it finds something now.
    pub fn set(&self) {
        SleepWord(&self.0).set();
    }

    /// Announces that this thread is awake.
    pub fn clear(&self) {
        SleepWord(&self.0).clear();
    }

    /// Whether the thread must be woken after something was published for it.
    #[must_use]
    pub fn is_set(&self) -> bool {
        SleepWord(&self.0).is_set()
    }
}

/// A [`SleepFlag`] in memory that processes share: for one thread, or for several that are counted.
/// A process that writes something else there sleeps too long, or is woken for nothing.
#[derive(Debug, Clone, Copy)]
pub struct SleepWord<'a>(pub &'a AtomicU64);

impl SleepWord<'_> {
    /// As [`SleepFlag::set`], for the only thread that sleeps here.
    pub fn set(self) {
        self.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// As [`SleepFlag::clear`], after [`SleepWord::set`].
    pub fn clear(self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// As [`SleepFlag::set`], for one thread more.
    pub fn enter(self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// As [`SleepFlag::clear`], after [`SleepWord::enter`]; whether others sleep.
    pub fn leave(self) -> bool {
        self.0.fetch_sub(1, Ordering::Relaxed) > 1
    }

    /// As [`SleepFlag::is_set`].
    #[must_use]
    pub fn is_set(self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) != 0
    }
}

/// Conditions, as bits, that threads wait for and that a file descriptor reports. One thread makes
/// them true.
#[derive(Debug)]
pub struct Readiness {
    /// The events that the descriptor reports.
    watched: AtomicU32,
    signal: Signal,
    /// Events that threads wait for.
    awaited: AtomicU32,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Readiness {
    /// Creates one without waiters.
    ///
    /// # Errors
    /// Of `eventfd(2)`: out of file descriptors or memory.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            watched: AtomicU32::new(0),
            signal: Signal::new()?,
            awaited: AtomicU32::new(0),
            lock: Mutex::new(()),
            changed: Condvar::new(),
        })
    }

    /// Returns which of `wanted` are in `ready`. If none is, the descriptor becomes readable when
    /// one is. The descriptor is for one watcher.
    pub fn poll(&self, wanted: u32, ready: impl Fn() -> u32) -> u32 {
        self.signal.clear();
        self.watched.store(wanted, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let ready = ready() & wanted;
        if ready != 0 {
            self.watched.store(0, Ordering::Relaxed);
        }
        ready
    }

    /// Waits until one of `wanted` is in `ready`, or `timeout` has passed; returns those that are.
    pub fn wait(&self, wanted: u32, timeout: Option<Duration>, ready: impl Fn() -> u32) -> u32 {
        let clock = Clock::new();
        let ns = |timeout: Duration| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let until = timeout.map(|timeout| clock.now_ns().saturating_add(ns(timeout)));
        let mut guard = lock(&self.lock);
        loop {
            self.awaited.fetch_or(wanted, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let ready = ready() & wanted;
            let left = until.map(|until| until.saturating_sub(clock.now_ns()));
            if ready != 0 || left == Some(0) {
                return ready;
            }
            guard = match left {
                Some(left) => {
                    let woken = self.changed.wait_timeout(guard, Duration::from_nanos(left));
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let woken = self.changed.wait(guard);
                    woken.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }

    /// Wakes the threads that wait for an event in `ready`, which must have been published.
    pub fn notify(&self, ready: impl Fn() -> u32) {
        fence(Ordering::SeqCst);
        let watched = self.watched.load(Ordering::Relaxed);
        let awaited = self.awaited.load(Ordering::Relaxed);
        if watched | awaited == 0 {
            return;
        }
        let ready = ready();
        if watched & ready != 0 {
            self.watched.store(0, Ordering::Relaxed);
            self.signal.set();
        }
        if awaited & ready != 0 {
            let guard = lock(&self.lock);
            self.awaited.store(0, Ordering::Relaxed);
            drop(guard);
            self.changed.notify_all();
        }
    }

    /// Readable when a polled condition has become true.
    #[must_use]
    pub fn signal(&self) -> &Signal {
        &self.signal
    }
}

/// The state that the one thread sleeping at a poller shares with its wakers.
#[derive(Debug)]
pub(crate) struct Rest(AtomicU8);

const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
const NOTIFIED: u8 = 2;

impl Rest {
    pub(crate) fn new() -> Self {
        Self(AtomicU8::new(AWAKE))
    }

    /// Returns whether the thread may sleep: it has not been woken since it last slept.
    pub(crate) fn begin(&self) -> bool {
        // Acquire: earlier writes of a waking thread are visible after this.
        let awake = self
            .0
            .compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire);
        awake.is_ok()
    }

    /// Ends the sleep that [`Rest::begin`] began; returns whether the thread was woken.
    pub(crate) fn end(&self) -> bool {
        self.0.swap(AWAKE, Ordering::AcqRel) == NOTIFIED
    }

    /// Wakes the thread; returns whether the caller must end its sleep.
    pub(crate) fn wake(&self) -> bool {
        // Always a read-modify-write, never a plain load first: a load could see an old NOTIFIED
        // while the poller's thread, past its own swap, has already checked the queue without
        // seeing the new item.
        self.0.swap(NOTIFIED, Ordering::AcqRel) == ASLEEP
    }
}

/// State left by a panicking thread is consistent: no update here spans a call that may panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, loom))]
mod tests;
