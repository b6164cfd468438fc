//! A file descriptor that one thread makes readable for another, and waiting for a few descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

/// Readable while it was signalled and not cleared (`eventfd(2)`).
#[derive(Debug)]
pub struct Signal(OwnedFd);

impl Signal {
    /// # Errors
    /// Of `eventfd(2)`: out of file descriptors or memory.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(eventfd(0, flags)?))
    }

    /// Makes it readable.
    pub fn set(&self) {
        // Only a counter that stands at its limit refuses, and then it is readable anyway.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Makes it unreadable; whether it was readable.
    pub fn clear(&self) -> bool {
        rustix::io::read(&self.0, &mut [0_u8; 8]).is_ok()
    }
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until one of `fds` is readable or has failed, or `timeout_ns` has passed; without one, for
/// ever. False when nothing is ready. A signal may end it early.
///
/// # Errors
/// Of `poll(2)`.
pub fn wait_readable<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    timeout_ns: Option<u64>,
) -> io::Result<bool> {
    wait(fds, PollFlags::IN, timeout_ns)
}

/// As [`wait_readable`], until there is room to write.
///
/// # Errors
/// Of `poll(2)`.
pub fn wait_writable<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    timeout_ns: Option<u64>,
) -> io::Result<bool> {
    wait(fds, PollFlags::OUT, timeout_ns)
}

/// Whether the other end of a connection has ended it, or its direction to this end.
///
/// # Errors
/// Of `poll(2)`.
pub fn has_hung_up(fd: BorrowedFd<'_>) -> io::Result<bool> {
    wait([fd], PollFlags::RDHUP, Some(0))
}

fn wait<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    what: PollFlags,
    timeout_ns: Option<u64>,
) -> io::Result<bool> {
    let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, what));
    let timeout = timeout_ns.map(|ns| Timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
    });
    match poll(&mut fds, timeout.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_peer_is_noticed_behind_unread_bytes() {
        let (mut near, far) = crate::tcp::pair().unwrap();
        io::Write::write_all(&mut near, b"unread").unwrap();
        assert!(!has_hung_up(far.as_fd()).unwrap());
        drop(near);
        wait([far.as_fd()], PollFlags::RDHUP, Some(1_000_000_000)).unwrap();
        assert!(has_hung_up(far.as_fd()).unwrap());
    }

    #[test]
    fn a_signal_is_seen_until_it_is_cleared() {
        let signal = Signal::new().unwrap();
        assert!(!wait_readable([signal.as_fd()], Some(0)).unwrap());
        signal.set();
        signal.set();
        assert!(wait_readable([signal.as_fd()], Some(0)).unwrap());
        assert!(signal.clear());
        assert!(!signal.clear());
        assert!(!wait_readable([signal.as_fd()], Some(1_000)).unwrap());
        assert!(wait_writable([signal.as_fd()], Some(0)).unwrap());
    }
}
