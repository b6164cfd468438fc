//! How threads wake each other up without a lost or a stale wake-up.
//!
//! Each protocol stands here once, apart from what is waited for, so that loom can run every
//! interleaving of it (`./test loom`): [`Bell`] many threads that sleep until something can be
//! taken · [`Notices`] a queue with a file descriptor · [`Readiness`] threads and a descriptor that
//! wait for conditions · [`SleepFlag`] one thread that sleeps by means of its own · `Rest` the
//! sleep of a [`Poller`](crate::poller::Poller).
//!
//! All but [`Notices`] follow one rule. The waking thread publishes, then a fence, then it looks
//! for sleepers. The thread that goes to sleep says so, then a fence, then it looks once more. So
//! one of the two sees the other.

mod sync;

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use crate::clock::Clock;

use sync::{
    AtomicBool, AtomicU8, AtomicU32, Condvar, Mutex, MutexGuard, Ordering, PoisonError, Signal,
    fence,
};

/// Wakes threads that sleep, each by whatever means it has, until there is something to take.
///
/// A thread that finds nothing calls [`Bell::enter`], looks once more, sleeps on [`Bell::signal`]
/// and whatever else may end its sleep, and calls [`Bell::leave`]. Then it must look again: it may
/// have used up the wake-up that another sleeper needs. A thread that takes something and leaves
/// more behind calls [`Bell::ring`].
#[derive(Debug)]
pub struct Bell {
    sleepers: AtomicU32,
    /// The signal is set, or about to be set; whoever clears it changes this back.
    rung: AtomicBool,
    signal: Signal,
}

impl Bell {
    /// Makes a bell that nobody sleeps at.
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
        // Where another thread sets the signal, the sleepers wake up. Where one clears it, that one
        // looks again afterwards.
        if self.sleepers.load(Ordering::Relaxed) > 0 && !self.rung.swap(true, Ordering::AcqRel) {
            self.signal.set();
        }
    }

    /// Counts this thread among the sleepers.
    pub fn enter(&self) {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Ends what [`Bell::enter`] began. The caller looks for something to take afterwards.
    pub fn leave(&self) {
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        // Only the thread that has cleared a set signal may clear this flag. Otherwise a thread
        // that is about to set the signal would leave behind one that nobody clears.
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

/// A queue with a file descriptor that is readable while something is in it.
#[derive(Debug)]
pub struct Notices<T> {
    queue: Mutex<VecDeque<T>>,
    signal: Signal,
    limit: usize,
}

impl<T> Notices<T> {
    /// Makes an empty queue; what is pushed beyond `limit` is dropped.
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
            // With the lock: a pop in between would leave a signal behind that is set for nothing.
            // Always, and not only for the first notice: an event loop that asks for edges wants
            // one for each.
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

    /// Whether nothing is in it.
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

/// Says that a thread sleeps, by means of its own, until something is published for it.
#[derive(Debug, Default)]
pub struct SleepFlag(AtomicBool);

impl SleepFlag {
    /// This thread sleeps unless it finds something now.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// This thread is awake.
    pub fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether the thread must be woken after something was published for it.
    #[must_use]
    pub fn is_set(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed)
    }
}

/// Conditions, as bits, that threads wait for and that a file descriptor reports. One thread makes
/// them true.
#[derive(Debug)]
pub struct Readiness {
    /// What the descriptor is to report.
    watched: AtomicU32,
    signal: Signal,
    /// What threads wait for.
    awaited: AtomicU32,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Readiness {
    /// Makes one that nobody waits at.
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

    /// Returns which of `wanted` are true by `ready`. If none is, the descriptor becomes readable
    /// when one becomes true. The descriptor is for one watcher.
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

    /// Waits until one of `wanted` is true by `ready`, or `timeout` has passed; returns those that
    /// are.
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

    /// Wakes those who wait for what is true by `ready`, after that was published.
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

    /// Readable when something that was polled for has become true.
    #[must_use]
    pub fn signal(&self) -> &Signal {
        &self.signal
    }
}

/// What the one thread that sleeps at a poller tells those who wake it.
#[derive(Debug)]
pub(crate) struct Rest(AtomicU8);

const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
const NOTIFIED: u8 = 2;

impl Rest {
    pub(crate) fn new() -> Self {
        Self(AtomicU8::new(AWAKE))
    }

    /// Whether the thread may sleep: nobody has woken it since it last slept.
    pub(crate) fn begin(&self) -> bool {
        // Acquire: what a waking thread wrote before is seen after this.
        let awake = self
            .0
            .compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire);
        awake.is_ok()
    }

    /// Ends what [`Rest::begin`] began; whether somebody has woken the thread.
    pub(crate) fn end(&self) -> bool {
        self.0.swap(AWAKE, Ordering::AcqRel) == NOTIFIED
    }

    /// Wakes the thread; whether the caller must end its sleep.
    pub(crate) fn wake(&self) -> bool {
        // Always a read-modify-write, never a plain load first: a load could see an old NOTIFIED
        // while the poller's thread, past its own swap, has already looked at the queue without
        // seeing what was put there.
        self.0.swap(NOTIFIED, Ordering::AcqRel) == ASLEEP
    }
}

/// What a thread that panicked has left is whole: no state here spans a call that may panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, loom))]
mod tests;
