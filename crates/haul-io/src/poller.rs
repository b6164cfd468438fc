//! Waiting for sockets, wake-ups and deadlines: one poller per engine thread.
//!
//! Control flow: the engine drains its sockets and queues, computes its next deadline, and calls
//! [`Poller::wait`]; other threads leave work in a queue and call [`Waker::wake`], which costs one
//! atomic operation while the engine is busy and one system call when it sleeps.

use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

use crate::clock::Clock;
use crate::wake::Rest;

/// The kernel's default lets a thread's timers run 50 µs late; a pacer needs them on time.
///
/// # Errors
/// The error of `prctl(2)`. Zero is refused as `InvalidInput` (the kernel would take it as "the
/// default").
pub fn set_timer_slack_ns(slack_ns: u64) -> io::Result<()> {
    let slack = NonZeroU64::new(slack_ns).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(rustix::thread::set_current_timer_slack(Some(slack))?)
}

/// Waits for many file descriptors, a waker and a deadline at once (level-triggered `epoll`).
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    wake: Arc<WakeState>,
}

/// The events to wait for on a file descriptor. Errors and hang-ups are always reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interest {
    /// Bytes, or a connection, or the end of the stream can be read.
    pub readable: bool,
    /// Writable.
    pub writable: bool,
}

impl Interest {
    /// Readable only.
    pub const READ: Self = Self {
        readable: true,
        writable: false,
    };
    /// Writable only.
    pub const WRITE: Self = Self {
        readable: false,
        writable: true,
    };
    /// Both.
    pub const BOTH: Self = Self {
        readable: true,
        writable: true,
    };

    fn flags(self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::empty();
        flags.set(
            epoll::EventFlags::IN | epoll::EventFlags::RDHUP,
            self.readable,
        );
        flags.set(epoll::EventFlags::OUT, self.writable);
        flags
    }
}

impl Poller {
    /// # Errors
    /// Of `epoll_create1(2)` and `eventfd(2)`: out of file descriptors or memory.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        // Edge-triggered: each write to the eventfd is one event, and no read is necessary.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(
            &epoll,
            &eventfd,
            epoll::EventData::new_u64(WAKE_TOKEN),
            flags,
        )?;
        let wake = Arc::new(WakeState {
            rest: Rest::new(),
            eventfd,
        });
        Ok(Self { epoll, wake })
    }

    /// Watches `fd` and reports it as `token`. The caller keeps `fd` open until it has removed it.
    ///
    /// # Errors
    /// Of `epoll_ctl(2)`; the token `u64::MAX` is taken and is `InvalidInput`.
    pub fn add(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(
            &self.epoll,
            fd,
            user_data(token)?,
            interest.flags(),
        )?)
    }

    /// Changes the interest in, and the token of, a watched `fd`.
    ///
    /// # Errors
    /// As for [`Poller::add`].
    pub fn modify(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(
            &self.epoll,
            fd,
            user_data(token)?,
            interest.flags(),
        )?)
    }

    /// Watches `fd` no longer.
    ///
    /// # Errors
    /// Of `epoll_ctl(2)`.
    pub fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    /// A handle for other threads to end a [`Poller::wait`].
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker {
            wake: Arc::clone(&self.wake),
        }
    }

    /// Waits until something is ready, a waker was used, `deadline_ns` of `clock` has passed, or a
    /// signal arrived, and stores the ready descriptors in `events`. Returns early without an event
    /// only because of a signal or a late wake-up.
    ///
    /// # Errors
    /// Of `epoll_pwait2(2)`.
    pub fn wait(
        &mut self,
        events: &mut Events,
        deadline_ns: Option<u64>,
        clock: Clock,
    ) -> io::Result<()> {
        events.ready.clear();
        events.woken = false;
        let timeout_ns = if self.wake.rest.begin() {
            deadline_ns.map(|deadline| deadline.saturating_sub(clock.now_ns()))
        } else {
            Some(0)
        };
        let waited = self.epoll_wait(events, timeout_ns);
        events.woken = self.wake.rest.end();
        waited?;
        events.ready.retain(|event| event.data.u64() != WAKE_TOKEN);
        Ok(())
    }

    fn epoll_wait(&self, events: &mut Events, timeout_ns: Option<u64>) -> io::Result<()> {
        match epoll_pwait2(
            self.epoll.as_fd(),
            &mut events.ready,
            timeout_ns.map(timespec),
        ) {
            Err(Errno::NOSYS) => {}
            Ok(()) | Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        // Before Linux 5.11 there are only whole milliseconds, rounded up so as not to spin.
        let rounded = timeout_ns.map(|ns| timespec(ns.div_ceil(1_000_000) * 1_000_000));
        let room = rustix::buffer::spare_capacity(&mut events.ready);
        match epoll::wait(&self.epoll, room, rounded.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Readable while a watched descriptor is ready, wake-ups included, so that a thread can wait for a
/// poller that another one will query.
impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Ends the [`Poller::wait`] in progress, or makes the next one return at once. Any thread may hold
/// one.
#[derive(Debug, Clone)]
pub struct Waker {
    wake: Arc<WakeState>,
}

impl Waker {
    /// Wakes the poller's thread. Earlier writes of this thread are visible to it when its `wait`
    /// has returned.
    pub fn wake(&self) {
        if self.wake.rest.wake() {
            // Only a counter that stands at its limit refuses, and then the event is pending
            // anyway.
            let _ = rustix::io::write(&self.wake.eventfd, &1_u64.to_ne_bytes());
        }
    }
}

/// Room for the events of one wait, filled by [`Poller::wait`].
pub struct Events {
    ready: Vec<epoll::Event>,
    woken: bool,
}

// SAFETY: the vector is not `Send` only because an event's data may be a pointer; ours are numbers
// only.
unsafe impl Send for Events {}

impl Events {
    /// Room for `capacity` events (at least one); more wait in the kernel for the next call.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            ready: Vec::with_capacity(capacity.max(1) + 1),
            woken: false,
        }
    }

    /// The file descriptors that are ready.
    pub fn iter(&self) -> impl Iterator<Item = Event> {
        self.ready
            .iter()
            .map(|event| Event::new(event.data.u64(), event.flags))
    }

    /// A waker was used since the last wait.
    #[must_use]
    pub fn woken(&self) -> bool {
        self.woken
    }

    /// Neither a file descriptor nor a waker: the deadline has passed, or a signal arrived.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty() && !self.woken
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// One file descriptor that is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The token it was added with.
    pub token: u64,
    /// A read will not block (it may return an error or the end of the stream).
    pub readable: bool,
    /// A write will not block (it may return an error).
    pub writable: bool,
    /// The peer has closed, or the descriptor has an error.
    pub closed: bool,
}

impl Event {
    fn new(token: u64, flags: epoll::EventFlags) -> Self {
        use epoll::EventFlags as Flags;
        let broken = flags.intersects(Flags::ERR | Flags::HUP);
        Self {
            token,
            readable: broken || flags.intersects(Flags::IN | Flags::RDHUP),
            writable: broken || flags.contains(Flags::OUT),
            closed: broken || flags.contains(Flags::RDHUP),
        }
    }
}

#[derive(Debug)]
struct WakeState {
    rest: Rest,
    eventfd: OwnedFd,
}

const WAKE_TOKEN: u64 = u64::MAX;

fn user_data(token: u64) -> io::Result<epoll::EventData> {
    if token == WAKE_TOKEN {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(epoll::EventData::new_u64(token))
}

/// Waits to the nanosecond. (`rustix` rounds to milliseconds unless it may assume Linux 5.11 at
/// build time.)
fn epoll_pwait2(
    epoll: BorrowedFd<'_>,
    ready: &mut Vec<epoll::Event>,
    timeout: Option<Timespec>,
) -> Result<(), Errno> {
    let room = ready.spare_capacity_mut();
    let room_len = libc::c_int::try_from(room.len()).unwrap_or(libc::c_int::MAX);
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `room` has space for `room_len` events, whose type has the kernel's layout; `timeout`
    // is null or a live `__kernel_timespec`; there is no signal mask. The kernel writes events
    // only.
    let count = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            epoll.as_raw_fd(),
            room.as_mut_ptr(),
            room_len,
            timeout,
            ptr::null::<libc::sigset_t>(),
            0_usize,
        )
    };
    let count = usize::try_from(count)
        .map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL))?;
    let len = ready.len() + count;
    // SAFETY: the kernel has filled `count` events at the start of the spare room, and no more than
    // fit.
    unsafe { ready.set_len(len) };
    Ok(())
}

fn timespec(ns: u64) -> Timespec {
    let seconds = i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX);
    let nanos = u32::try_from(ns % 1_000_000_000).unwrap_or(0);
    Timespec {
        tv_sec: seconds,
        tv_nsec: nanos.into(),
    }
}

#[cfg(test)]
mod tests;
