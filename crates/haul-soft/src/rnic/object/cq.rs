//! Completion queues and channels, as applications hold them.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use haul_io::clock::Clock;
use haul_verbs::provider::{CompletionChannelOps, CqOps};
use haul_verbs::{Error, Notify, Result, WorkCompletion};

use super::device::Rnic;
use super::spin::{SpinPolicy, Wait};
use crate::rnic::queue::{Channel, Queue};
use crate::rnic::shard::Progress;
use crate::rnic::time::{deadline, remaining};

/// A completion queue as the application sees it.
#[derive(Debug)]
pub(super) struct Cq {
    pub(super) queue: Arc<Queue>,
    pub(super) rnic: Arc<Rnic>,
    /// Since when polls have found nothing and moved nothing, ns; zero if the latest did.
    idle_since_ns: AtomicU64,
    /// Whether this time they look before they sleep.
    idle_looks: AtomicBool,
    /// Waits in a row that no nap was too short for.
    whole_naps: AtomicU32,
    spin: SpinPolicy,
}

/// How long a poll that finds nothing sleeps at most, ns: what arrives ends it, but the application
/// may look for something else between its polls.
const NAP_NS: u64 = 50_000;
/// The same for an application that finds something after every nap: a timer that is due soon costs
/// more than the nap.
const LONG_NAP_NS: u64 = 1_000_000;
/// Waits in a row that show such an application.
const WHOLE_NAPS: u32 = 16;

impl Cq {
    pub(super) fn new(
        rnic: Arc<Rnic>,
        entries: u32,
        channel: Option<Arc<Channel>>,
        token: u64,
    ) -> Result<Self> {
        let events = Arc::clone(&rnic.async_events);
        let armed = Arc::clone(rnic.armed());
        Ok(Self {
            queue: Arc::new(Queue::new(entries, channel, token, events, armed)?),
            rnic,
            idle_since_ns: AtomicU64::new(0),
            idle_looks: AtomicBool::new(false),
            whole_naps: AtomicU32::new(0),
            spin: SpinPolicy::new(),
        })
    }

    fn poll_once(&self, out: &mut [WorkCompletion]) -> Result<usize> {
        let count = self.queue.pop(out);
        if count == 0 && self.queue.has_overflowed() {
            return Err(Error::CqOverflow);
        }
        Ok(count)
    }

    /// In a poll that finds nothing: lets others run if that goes on. Whether it slept.
    fn doze(&self, now: u64, nap_ns: u64) -> Result<bool> {
        let since = self.idle_since_ns.load(Ordering::Relaxed);
        let wait = if since == 0 {
            let wait = self.spin.begin(now);
            self.idle_since_ns.store(wait.since_ns, Ordering::Relaxed);
            self.idle_looks.store(wait.looks, Ordering::Relaxed);
            wait
        } else {
            Wait {
                since_ns: since,
                looks: self.idle_looks.load(Ordering::Relaxed),
            }
        };
        let sleeps = wait.is_asleep(now);
        if sleeps {
            self.sleep(Some(nap_ns))?;
        }
        Ok(sleeps)
    }

    /// Sleeps before it drives, if this poll is to sleep: driving first would be one system call
    /// more.
    fn doze_and_drive(&self, out: &mut [WorkCompletion]) -> Result<usize> {
        let whole_naps = self.whole_naps.load(Ordering::Relaxed);
        let nap_ns = if whole_naps >= WHOLE_NAPS {
            LONG_NAP_NS
        } else {
            NAP_NS
        };
        let clock = Clock::new();
        let slept = self.doze(clock.now_ns(), nap_ns)?;
        let (count, drive) = self.drive_and_poll(out, clock.now_ns())?;
        if count > 0 || drive == Progress::Moved {
            self.note_found();
            let more = whole_naps.saturating_add(1);
            self.whole_naps.store(more, Ordering::Relaxed);
        } else if slept {
            self.whole_naps.store(0, Ordering::Relaxed);
        }
        Ok(count)
    }

    /// After a poll that found something, or moved something.
    fn note_found(&self) {
        let since_ns = self.idle_since_ns.load(Ordering::Relaxed);
        if since_ns == 0 {
            return;
        }
        self.idle_since_ns.store(0, Ordering::Relaxed);
        let looks = self.idle_looks.load(Ordering::Relaxed);
        let wait = Wait { since_ns, looks };
        self.spin.end(wait, Clock::new().now_ns());
    }

    /// Makes progress, then looks again.
    fn drive_and_poll(&self, out: &mut [WorkCompletion], now: u64) -> Result<(usize, Progress)> {
        let drive = self.rnic.drive(now);
        Ok((self.poll_once(out)?, drive))
    }

    /// Sleeps until something is pushed, something arrives for a shard that this thread can drive,
    /// or `timeout_ns` has passed. The caller polls afterwards: this may have used up the wake-up
    /// that another sleeper needs.
    fn sleep(&self, timeout_ns: Option<u64>) -> Result<()> {
        let queue = &self.queue;
        let bell = queue.bell();
        bell.enter();
        let result = if queue.is_empty() {
            self.rnic.sleep(bell.signal(), timeout_ns)
        } else {
            Ok(())
        };
        bell.leave();
        if result.is_err() && !queue.is_empty() {
            // The caller does not poll then.
            bell.ring();
        }
        result.map_err(Error::os("waiting for completions"))
    }
}

impl CqOps for Cq {
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize> {
        let count = self.poll_once(out)?;
        if self.rnic.is_offloaded() {
            return Ok(count);
        }
        // A queue that always has something must not keep this thread from driving.
        if count == out.len() && !self.rnic.is_due() {
            self.note_found();
            return Ok(count);
        }
        if count > 0 {
            self.note_found();
            self.rnic.drive(Clock::new().now_ns());
            return Ok(count + self.queue.pop(&mut out[count..]));
        }
        if self.rnic.only_listens() {
            return self.doze_and_drive(out);
        }
        let now = Clock::new().now_ns();
        let (more, drive) = self.drive_and_poll(out, now)?;
        if more == 0 && drive != Progress::Moved {
            if self.doze(now, NAP_NS)? {
                return Ok(self.queue.pop(out));
            }
        } else {
            self.note_found();
        }
        Ok(more)
    }

    fn wait(&self, out: &mut [WorkCompletion], timeout: Option<Duration>) -> Result<usize> {
        let clock = Clock::new();
        let end = deadline(clock, timeout);
        let count = self.poll_once(out)?;
        if count > 0 {
            return Ok(count);
        }
        let mut now = clock.now_ns();
        let mut waiting = self.spin.begin(now);
        // Looking would take the processor time that the engine is to save.
        waiting.looks &= !self.rnic.is_offloaded();
        if !waiting.looks {
            // What has arrived ends it at once: looking first would be one system call more.
            self.sleep(remaining(end, now))?;
            now = clock.now_ns();
        }
        loop {
            let (count, drive) = self.drive_and_poll(out, now)?;
            if count > 0 {
                self.spin.end(waiting, now);
                return Ok(count);
            }
            now = clock.now_ns();
            if end.is_some_and(|end| now >= end) {
                return Ok(0);
            }
            match drive {
                Progress::Moved => {
                    self.spin.end(waiting, now);
                    waiting = self.spin.begin(now);
                }
                Progress::Busy | Progress::Still if waiting.is_asleep(now) => {
                    self.sleep(remaining(end, now))?;
                    now = clock.now_ns();
                }
                Progress::Busy | Progress::Still => std::hint::spin_loop(),
            }
        }
    }

    fn arm(&self, notify: Notify) -> Result<()> {
        if !self.queue.has_channel() {
            return Err(Error::Invalid("the completion queue has no channel"));
        }
        if self.queue.arm(notify) {
            self.rnic.attend();
        }
        Ok(())
    }
}

/// A completion channel as the application sees it: it keeps the engine alive.
#[derive(Debug)]
pub(super) struct CompletionChannel {
    pub(super) channel: Arc<Channel>,
    pub(super) rnic: Arc<Rnic>,
}

impl CompletionChannelOps for CompletionChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.channel.signal().as_fd()
    }

    fn poll_event(&self) -> Result<Option<u64>> {
        Ok(self.channel.pop())
    }

    fn wait_event(&self, timeout: Option<Duration>) -> Result<Option<u64>> {
        let clock = Clock::new();
        let end = deadline(clock, timeout);
        loop {
            if let Some(token) = self.poll_event()? {
                return Ok(Some(token));
            }
            let now = clock.now_ns();
            if end.is_some_and(|end| now >= end) {
                return Ok(None);
            }
            self.rnic
                .sleep(self.channel.signal(), remaining(end, now))
                .map_err(Error::os("waiting for an event"))?;
            if self.channel.is_empty() {
                self.rnic.drive(clock.now_ns());
            }
        }
    }
}
