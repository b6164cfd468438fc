//! File descriptors that one thread or process makes readable for another, and waiting for a few
//! descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// What a writable pipe takes without blocking (`PIPE_BUF` of Linux), bytes.
pub const PIPE_BUF: usize = 4096;

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

/// One end of a pair that wakes the other, for two processes. Each end has an open file of its own,
/// so that what the other process does to it does not change how this one waits.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

impl Doorbell {
    /// Makes both ends.
    ///
    /// # Errors
    /// Of `socketpair(2)`: out of file descriptors or memory.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
        let (near, far) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?;
        Ok((Self(near), far))
    }

    /// The far end, as it came from the process that made the pair.
    #[must_use]
    pub fn new(far: OwnedFd) -> Self {
        Self(far)
    }

    /// Makes the other end readable. If there is no room it is readable.
    pub fn ring(&self) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let _ = rustix::net::send(&self.0, &[1], flags);
    }

    /// Takes what has come, so that this end is not readable until the other one rings again.
    pub fn clear(&self) {
        let mut bytes = [0; 256];
        // An end that is never empty is looked at again.
        for _ in 0..16 {
            match rustix::net::recv(&self.0, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((count, _)) if count == bytes.len() => {}
                _ => return,
            }
        }
    }
}

impl AsFd for Doorbell {
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

/// Writes all bytes, at most [`PIPE_BUF`], if that does not block. Only another process that writes
/// into the same pipe at this moment may still make it block.
///
/// # Errors
/// `WouldBlock` if there is no room; else that of `poll(2)` or `write(2)`.
pub fn write_now(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    if bytes.len() > PIPE_BUF {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    if !wait_writable([fd], Some(0))? {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    match rustix::io::write(fd, bytes)? {
        count if count == bytes.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
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
    fn a_full_pipe_takes_nothing_and_does_not_block() {
        let (mut reader, writer) = io::pipe().unwrap();
        let piece = [b'x'; PIPE_BUF];
        let mut written = 0;
        while write_now(writer.as_fd(), &piece).is_ok() {
            written += PIPE_BUF;
        }
        let fails = |bytes: &[u8]| write_now(writer.as_fd(), bytes).unwrap_err().kind();
        assert!(written >= PIPE_BUF);
        assert_eq!(fails(b"x"), io::ErrorKind::WouldBlock);
        assert_eq!(fails(&[0; PIPE_BUF + 1]), io::ErrorKind::InvalidInput);
        io::Read::read_exact(&mut reader, &mut vec![0; written]).unwrap();
        write_now(writer.as_fd(), b"y").unwrap();
        drop(reader);
        assert_eq!(fails(b"z"), io::ErrorKind::BrokenPipe);
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
