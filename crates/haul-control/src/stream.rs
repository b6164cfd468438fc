//! The byte stream below TLS: a TCP connection, or two pipes to a child process.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use haul_io::{notify, tcp};

use crate::lock;

/// How often a waiting end checks whether it was closed: nothing else wakes it on a pipe.
const TICK: Duration = Duration::from_millis(250);
/// Bytes that a writable pipe takes without blocking (`PIPE_BUF` of Linux).
const PIPE_PIECE: usize = 4096;

/// A byte stream that two threads use, one for each direction. No method blocks beyond its
/// deadline.
#[derive(Debug)]
pub struct Stream {
    ends: Ends,
    is_closed: AtomicBool,
}

#[derive(Debug)]
enum Ends {
    Tcp(Arc<TcpStream>),
    Pipes {
        input: File,
        /// `None` once this end writes no more.
        output: Mutex<Option<File>>,
    },
}

impl Stream {
    /// Takes over a TCP connection.
    ///
    /// # Errors
    /// That of `fcntl(2)` or `setsockopt(2)`.
    pub fn tcp(stream: impl Into<Arc<TcpStream>>) -> io::Result<Self> {
        let stream = stream.into();
        stream.set_nonblocking(true)?;
        tcp::send_at_once(&stream)?;
        Ok(Self::over(Ends::Tcp(stream)))
    }

    /// Takes over two pipes, such as the standard output and input of an ssh child, or this
    /// process's own standard input and output.
    #[must_use]
    pub fn pipes(input: OwnedFd, output: OwnedFd) -> Self {
        Self::over(Ends::Pipes {
            input: input.into(),
            output: Mutex::new(Some(output.into())),
        })
    }

    fn over(ends: Ends) -> Self {
        Self {
            ends,
            is_closed: AtomicBool::new(false),
        }
    }

    /// Returns the TCP connection, if it is one.
    #[must_use]
    pub fn as_tcp(&self) -> Option<&TcpStream> {
        match &self.ends {
            Ends::Tcp(stream) => Some(stream),
            Ends::Pipes { .. } => None,
        }
    }

    /// Ends both directions at once.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.finish();
        if let Ends::Tcp(stream) = &self.ends {
            // An error means that it is closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Returns whether the peer has ended the connection; false where that cannot be known.
    #[must_use]
    pub fn has_hung_up(&self) -> bool {
        notify::has_hung_up(self.input()).unwrap_or(false)
    }

    /// Ends this end's direction: the peer reads the end of the stream after all that was written.
    pub(crate) fn finish(&self) {
        match &self.ends {
            // An error means that it is closed already.
            Ends::Tcp(stream) => drop(stream.shutdown(Shutdown::Write)),
            Ends::Pipes { output, .. } => drop(lock(output).take()),
        }
    }

    /// Reads what has arrived, 0 at the end of the stream. `TimedOut` at the deadline.
    pub(crate) fn read(&self, bytes: &mut [u8], deadline: Instant) -> io::Result<usize> {
        loop {
            self.wait(deadline, |timeout| {
                notify::wait_readable([self.input()], Some(timeout))
            })?;
            let read = match &self.ends {
                Ends::Tcp(stream) => (&mut &**stream).read(bytes),
                Ends::Pipes { input, .. } => (&mut &*input).read(bytes),
            };
            match read {
                Err(error) if is_transient(&error) => {}
                read => return read,
            }
        }
    }

    /// Writes all of `bytes`. `TimedOut` if they are not taken by the deadline.
    pub(crate) fn write(&self, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = match &self.ends {
                Ends::Tcp(stream) => {
                    let writable = |timeout| notify::wait_writable([stream.as_fd()], Some(timeout));
                    self.wait(deadline, writable)?;
                    (&mut &**stream).write(bytes)
                }
                Ends::Pipes { output, .. } => {
                    let guard = lock(output);
                    let pipe = guard.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
                    let writable = |timeout| notify::wait_writable([pipe.as_fd()], Some(timeout));
                    // `close` needs the lock: it is held for one check at most.
                    if !writable(nanoseconds(TICK.min(self.left(deadline)?)))? {
                        continue;
                    }
                    (&mut &*pipe).write(&bytes[..bytes.len().min(PIPE_PIECE)])
                }
            };
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => bytes = &bytes[count..],
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn input(&self) -> BorrowedFd<'_> {
        match &self.ends {
            Ends::Tcp(stream) => stream.as_fd(),
            Ends::Pipes { input, .. } => input.as_fd(),
        }
    }

    /// Calls `is_ready` with times of at most [`TICK`] until it is.
    fn wait(
        &self,
        deadline: Instant,
        is_ready: impl Fn(u64) -> io::Result<bool>,
    ) -> io::Result<()> {
        while !is_ready(nanoseconds(TICK.min(self.left(deadline)?)))? {}
        Ok(())
    }

    fn left(&self, deadline: Instant) -> io::Result<Duration> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(left)
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
