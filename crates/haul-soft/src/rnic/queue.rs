//! Completion queues as the shards see them: they push, applications pop.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use haul_io::wake::{Bell, Notices};
use haul_verbs::{AsyncEvent, Error, Notify, Result, WcStatus, WorkCompletion};

use super::events::AsyncEvents;
use super::lock::lock;
use super::places::Held;

/// A completion queue as the shards see it: they push, applications pop.
#[derive(Debug)]
pub(super) struct Queue {
    entries: Mutex<VecDeque<Pushed>>,
    capacity: usize,
    /// Entries, to be looked at without the lock.
    len: AtomicUsize,
    overflowed: AtomicBool,
    channel: Option<Arc<Channel>>,
    token: u64,
    armed: AtomicU8,
    /// Queues of the device that are armed, this one among them if it is.
    armed_queues: Arc<AtomicU32>,
    /// Wakes threads that sleep until something is pushed.
    bell: Bell,
    async_events: Arc<AsyncEvents>,
}

/// A completion, and what it gives back.
#[derive(Debug)]
pub(super) struct Pushed {
    pub(super) wc: WorkCompletion,
    /// What is free in a work queue once this is polled; a record of a Write-Record had no place.
    pub(super) held: Option<Held>,
}

const ARMED_NOT: u8 = 0;
const ARMED_ANY: u8 = 1;
const ARMED_SOLICITED: u8 = 2;

impl Queue {
    pub(super) fn new(
        capacity: u32,
        channel: Option<Arc<Channel>>,
        token: u64,
        async_events: Arc<AsyncEvents>,
        armed_queues: Arc<AtomicU32>,
    ) -> Result<Self> {
        Ok(Self {
            entries: Mutex::new(VecDeque::new()),
            capacity: capacity as usize,
            len: AtomicUsize::new(0),
            overflowed: AtomicBool::new(false),
            channel,
            token,
            armed: AtomicU8::new(ARMED_NOT),
            armed_queues,
            bell: Bell::new().map_err(Error::os("eventfd"))?,
            async_events,
        })
    }

    /// Moves completions here, and wakes whoever waits. False where they do not fit: then the queue
    /// has overflowed, and what its queue pairs still complete is lost.
    pub(super) fn push(&self, batch: &mut Vec<Pushed>) -> bool {
        if batch.is_empty() {
            return true;
        }
        let mut entries = lock(&self.entries);
        let room = self.capacity - entries.len();
        let fits = batch.len() <= room;
        // Also for one that no longer fits: whoever waits for it is to look.
        let solicited =
            |pushed: &Pushed| pushed.wc.solicited || pushed.wc.status != WcStatus::Success;
        let solicited = batch.iter().any(solicited);
        batch.truncate(room);
        entries.extend(batch.drain(..));
        self.len.store(entries.len(), Ordering::Release);
        drop(entries);
        if !fits && !self.overflowed.swap(true, Ordering::AcqRel) {
            self.async_events
                .push(AsyncEvent::CqError { token: self.token });
        }
        self.notify(solicited);
        fits
    }

    /// Whether `more` completions leave half of the queue free: what a peer can cause without a
    /// work request of this end must not push out what work requests are owed.
    pub(super) fn has_half_free(&self, more: usize) -> bool {
        self.len.load(Ordering::Acquire) + more <= self.capacity / 2
    }

    fn notify(&self, solicited: bool) {
        self.bell.ring();
        let wanted = match self.armed.load(Ordering::SeqCst) {
            ARMED_ANY => true,
            ARMED_SOLICITED => solicited,
            _ => false,
        };
        if wanted
            && self.disarm()
            && let Some(channel) = &self.channel
        {
            channel.push(self.token);
        }
    }

    /// Has the next completion, or the next solicited one, announced on the channel; whether it was
    /// not armed before. Armed for any stays so.
    pub(super) fn arm(&self, notify: Notify) -> bool {
        let armed = match notify {
            Notify::Any => ARMED_ANY,
            Notify::Solicited => ARMED_SOLICITED,
        };
        self.armed_queues.fetch_add(1, Ordering::SeqCst);
        let before = self
            .armed
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| {
                (now != ARMED_ANY).then_some(armed)
            });
        let is_new = before == Ok(ARMED_NOT);
        if !is_new {
            self.armed_queues.fetch_sub(1, Ordering::SeqCst);
        }
        is_new
    }

    /// Whether it was armed.
    fn disarm(&self) -> bool {
        let was = self.armed.swap(ARMED_NOT, Ordering::SeqCst) != ARMED_NOT;
        if was {
            self.armed_queues.fetch_sub(1, Ordering::SeqCst);
        }
        was
    }

    pub(super) fn pop(&self, out: &mut [WorkCompletion]) -> usize {
        if self.len.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut entries = lock(&self.entries);
        let count = out.len().min(entries.len());
        for (place, entry) in out.iter_mut().zip(entries.drain(..count)) {
            *place = entry.wc;
            drop(entry.held);
        }
        self.len.store(entries.len(), Ordering::Release);
        let more = !entries.is_empty();
        drop(entries);
        if more {
            self.bell.ring();
        }
        count
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    pub(super) fn has_channel(&self) -> bool {
        self.channel.is_some()
    }

    /// Wakes threads that sleep until something is pushed.
    pub(super) fn bell(&self) -> &Bell {
        &self.bell
    }

    pub(super) fn has_overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Acquire)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.disarm();
    }
}

/// A completion channel: tokens of queues that had what they were armed for.
pub(super) type Channel = Notices<u64>;

pub(super) fn channel() -> Result<Channel> {
    Notices::new(usize::MAX).map_err(Error::os("eventfd"))
}
