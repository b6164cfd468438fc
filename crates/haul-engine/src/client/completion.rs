//! Completion queues and channels.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use haul_io::notify::{Doorbell, Signal};
use haul_io::wake::SleepWord;
use haul_slab::SharedMemory;
use haul_verbs::provider::{CompletionChannelOps, CqOps};
use haul_verbs::{Error, Notify, Result, WorkCompletion};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::core::Core;
use super::inbox::{Came, Deadline, Inbox};
use super::link::{Link, OpenQp, Sleepers, UNEXPECTED, gone};
use crate::entry;
use crate::lock::lock;
use crate::message::{Reply, Request};
use crate::ring::{Consumer, Place};
use crate::shared::{ANY, ARMED, OVERFLOWED, SLEEPERS, SOLICITED, WANTS_ROOM, queue_bytes};

/// Looks at an empty queue after which one asks whether the engine lives.
const LOOKS: u32 = 256;

#[derive(Debug)]
pub(super) struct Cq {
    pub(super) core: Arc<Core>,
    pub(super) number: u32,
    token: u64,
    channel: Option<Arc<CompletionChannel>>,
    /// Readable while the engine has woken a thread that sleeps here.
    wake: Doorbell,
    /// Set by a thread that leaves something for others that sleep here.
    left: Signal,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    ring: Consumer,
    /// Of requests that the engine did not complete before it ended.
    flushed: VecDeque<WorkCompletion>,
    empty_looks: u32,
}

impl Inner {
    fn is_empty(&self) -> bool {
        self.flushed.is_empty()
            && self.ring.available() == Ok(0)
            && self.ring.place().mark(OVERFLOWED).load(Ordering::Acquire) == 0
    }
}

impl Cq {
    pub(super) fn create(
        core: &Arc<Core>,
        entries: u32,
        channel: Option<Arc<CompletionChannel>>,
        token: u64,
    ) -> Result<Arc<Self>> {
        Error::at_least("entries", entries.into(), 1)?;
        Error::at_most("entries", entries.into(), core.attributes.max_cqe.into())?;
        let memory = SharedMemory::create(queue_bytes(entries));
        let memory = memory.map_err(Error::os("memory of a completion queue"))?;
        let place = Place::new(&memory, 0, entries, entry::COMPLETION).ok_or(UNEXPECTED)?;
        let request = Request::CreateCq {
            entries,
            channel: channel.as_ref().map(|channel| channel.inbox.number()),
            token,
        };
        let fd = memory.fd().ok_or(UNEXPECTED)?;
        let (reply, descriptors) = core.link.call(&request, &[fd])?;
        let (Reply::Object(number), Some(wake)) = (reply, descriptors.into_iter().next()) else {
            return Err(UNEXPECTED);
        };
        let cq = Arc::new(Self {
            core: Arc::clone(core),
            number,
            token,
            channel,
            wake: Doorbell::new(wake),
            left: Signal::new().map_err(Error::os("eventfd"))?,
            inner: Mutex::new(Inner {
                ring: Consumer::new(place),
                flushed: VecDeque::new(),
                empty_looks: 0,
            }),
        });
        if let Some(channel) = &cq.channel {
            lock(&channel.queues).push(token);
        }
        let sleepers: Weak<Self> = Arc::downgrade(&cq);
        core.link.add_queue(sleepers);
        Ok(cq)
    }

    fn link(&self) -> &Link {
        &self.core.link
    }

    fn is_empty(&self) -> bool {
        lock(&self.inner).is_empty()
    }

    /// Takes completions out of the ring; none if the engine wrote what cannot be. `held` gets
    /// queue pairs that are to be dropped without the lock.
    fn take(
        &self,
        inner: &mut Inner,
        out: &mut [WorkCompletion],
        held: &mut Vec<Arc<dyn OpenQp>>,
    ) -> Option<usize> {
        let mut available = inner.ring.available().ok()?;
        let mut count = 0;
        let any = available > 0;
        while available > 0
            && let Some(place) = out.get_mut(count)
        {
            available -= 1;
            let mut completion = entry::completion(&inner.ring.take()).ok()?;
            let is_it = |qp: &&Arc<dyn OpenQp>| qp.qp_num() == completion.qp_num;
            if held.last().filter(is_it).is_none() {
                // Of a queue pair that is gone nobody waits for anything.
                let Some(qp) = self.link().qp(completion.qp_num) else {
                    continue;
                };
                held.push(qp);
            }
            if let Some(qp) = held.last() {
                qp.complete(&mut completion);
            }
            *place = completion;
            count += 1;
        }
        if any {
            inner.ring.release();
            fence(Ordering::SeqCst);
            let place = inner.ring.place();
            let wants_room = place.mark(WANTS_ROOM);
            if wants_room.load(Ordering::Relaxed) != 0 && wants_room.swap(0, Ordering::AcqRel) != 0
            {
                self.link().ring();
            }
            if available > 0 && SleepWord(place.mark(SLEEPERS)).is_set() {
                self.left.set();
            }
        }
        Some(count)
    }

    fn poll_once(
        &self,
        out: &mut [WorkCompletion],
        held: &mut Vec<Arc<dyn OpenQp>>,
    ) -> Result<usize> {
        let mut inner = lock(&self.inner);
        let Some(mut count) = self.take(&mut inner, out, held) else {
            drop(inner);
            self.link().die();
            return Ok(0);
        };
        if count > 0 {
            inner.empty_looks = 0;
            return Ok(count);
        }
        if self.link().is_dead() {
            *held = self.link().qps();
            for qp in &*held {
                qp.flush(self.number, &mut inner.flushed);
            }
        }
        while let Some(place) = out.get_mut(count)
            && let Some(flushed) = inner.flushed.pop_front()
        {
            *place = flushed;
            count += 1;
        }
        if count > 0 {
            return Ok(count);
        }
        if inner.ring.place().mark(OVERFLOWED).load(Ordering::Acquire) != 0 {
            return Err(Error::CqOverflow);
        }
        inner.empty_looks += 1;
        if inner.empty_looks.is_multiple_of(LOOKS) {
            drop(inner);
            self.link().look();
        }
        Ok(0)
    }
}

impl Sleepers for Cq {
    fn wake(&self) {
        self.left.set();
    }
}

impl CqOps for Cq {
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize> {
        self.poll_once(out, &mut Vec::new())
    }

    fn wait(&self, out: &mut [WorkCompletion], timeout: Option<Duration>) -> Result<usize> {
        let deadline = Deadline::after(timeout);
        loop {
            let was_dead = self.link().is_dead();
            let count = self.poll(out)?;
            if count > 0 || out.is_empty() {
                return Ok(count);
            }
            if was_dead {
                return Err(gone());
            }
            let left = deadline.left_ns();
            if left == Some(0) {
                return Ok(0);
            }
            let place = lock(&self.inner).ring.place().clone();
            let sleepers = SleepWord(place.mark(SLEEPERS));
            sleepers.enter();
            let slept = if self.is_empty() && !self.link().look() {
                self.sleep(left)
            } else {
                Ok(())
            };
            let others = sleepers.leave();
            self.wake.clear();
            self.left.clear();
            if others && (!self.is_empty() || self.link().is_dead()) {
                // What this thread leaves is theirs.
                self.left.set();
            }
            slept?;
        }
    }

    fn arm(&self, notify: Notify) -> Result<()> {
        if self.channel.is_none() {
            return Err(Error::Invalid("the completion queue has no channel"));
        }
        let inner = lock(&self.inner);
        let armed = inner.ring.place().mark(ARMED);
        match notify {
            Notify::Any => armed.store(ANY, Ordering::Release),
            // Armed for any stays so.
            Notify::Solicited => {
                let order = (Ordering::AcqRel, Ordering::Relaxed);
                let _ = armed.compare_exchange(0, SOLICITED, order.0, order.1);
            }
        }
        fence(Ordering::SeqCst);
        Ok(())
    }
}

impl Cq {
    /// Waits until something is there, or for the end of the engine.
    fn sleep(&self, left_ns: Option<u64>) -> Result<()> {
        let mut fds = [
            PollFd::new(&self.wake, PollFlags::IN),
            PollFd::new(&self.left, PollFlags::IN),
            PollFd::from_borrowed_fd(self.link().life(), PollFlags::empty()),
        ];
        let timeout = left_ns.map(Duration::from_nanos);
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Error::os("waiting for completions")(error.into())),
        }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        if let Some(channel) = &self.channel {
            let mut queues = lock(&channel.queues);
            if let Some(at) = queues.iter().position(|token| *token == self.token) {
                queues.swap_remove(at);
            }
        }
        self.link().close(self.number);
    }
}

#[derive(Debug)]
pub(super) struct CompletionChannel {
    pub(super) core: Arc<Core>,
    inbox: Inbox,
    /// Tokens of its queues.
    queues: Mutex<Vec<u64>>,
    /// Tokens of queues to look at since the engine is gone.
    last: Mutex<Option<VecDeque<u64>>>,
}

impl CompletionChannel {
    pub(super) fn create(core: &Arc<Core>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            core: Arc::clone(core),
            inbox: Inbox::create(&core.link, &Request::CreateCompletionChannel)?,
            queues: Mutex::default(),
            last: Mutex::default(),
        }))
    }
}

impl CompletionChannelOps for CompletionChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.inbox.fd()
    }

    fn poll_event(&self) -> Result<Option<u64>> {
        match self.inbox.receive()? {
            Came::Packet(packet) => {
                let token = packet.bytes.as_slice().try_into().map_err(|_| UNEXPECTED)?;
                Ok(Some(u64::from_ne_bytes(token)))
            }
            Came::Nothing => Ok(None),
            Came::End => {
                let mut last = lock(&self.last);
                let queues = || lock(&self.queues).iter().copied().collect();
                Ok(last.get_or_insert_with(queues).pop_front())
            }
        }
    }

    fn wait_event(&self, timeout: Option<Duration>) -> Result<Option<u64>> {
        self.inbox.wait(timeout, || self.poll_event())
    }
}
