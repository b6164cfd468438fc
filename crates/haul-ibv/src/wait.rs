//! Waiting for a descriptor, with a deadline.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use haul_verbs::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// When waiting ends.
#[derive(Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) fn after(timeout: Option<Duration>) -> Self {
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    /// None: for ever.
    pub(crate) fn left(&self) -> Option<Duration> {
        let deadline = self.0?;
        Some(deadline.saturating_duration_since(Instant::now()))
    }

    pub(crate) fn is_over(&self) -> bool {
        self.left() == Some(Duration::ZERO)
    }
}

/// Whether the descriptor has become readable in time.
///
/// # Errors
/// That of `poll(2)`.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, deadline: &Deadline) -> Result<bool> {
    loop {
        let left = deadline.left().map(|left| Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        match rustix::event::poll(&mut fds, left.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(Error::os("poll")(error.into())),
        }
    }
}

/// # Errors
/// That of `fcntl(2)`.
pub(crate) fn set_nonblocking(fd: impl AsFd) -> Result<()> {
    let set = || {
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK)
    };
    set().map_err(|error| Error::os("fcntl")(error.into()))
}
