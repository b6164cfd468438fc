//! Sending without a copy in user space: `splice(2)` through a pipe, and `MSG_ZEROCOPY`.

#![expect(
    clippy::disallowed_types,
    reason = "this crate is where sockets are opened"
)]

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::pipe::{PipeFlags, SpliceFlags};

/// The requested size of a pipe; without privileges a system allows 1 MiB (`fs.pipe-max-size`).
const PIPE_BYTES: usize = 1 << 20;

/// A pipe through which pages move between files, memory and sockets.
#[derive(Debug)]
pub struct Pipe {
    out: OwnedFd,
    into: OwnedFd,
    bytes: usize,
}

impl Pipe {
    /// A pipe as large as the system lets it be, up to 1 MiB.
    ///
    /// # Errors
    /// That of `pipe2(2)`.
    pub fn new() -> io::Result<Self> {
        let (out, into) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        // Where it may not grow, it stays as it was made.
        let _ = rustix::pipe::fcntl_setpipe_size(&into, PIPE_BYTES);
        let bytes = rustix::pipe::fcntl_getpipe_size(&into)?;
        Ok(Self { out, into, bytes })
    }

    /// Sends `len` bytes of `file` from `position` on.
    ///
    /// # Errors
    /// That of `splice(2)`; `UnexpectedEof` where the file ends early.
    pub fn send_file(
        &self,
        stream: &TcpStream,
        file: BorrowedFd<'_>,
        mut position: u64,
        len: u64,
    ) -> io::Result<()> {
        let mut left = len;
        while left > 0 {
            let want = usize::try_from(left).unwrap_or(usize::MAX).min(self.bytes);
            let flags = SpliceFlags::MOVE;
            let got = retry(|| {
                rustix::pipe::splice(file, Some(&mut position), &self.into, None, want, flags)
            })?;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.drain(stream.as_fd(), None, got)?;
            left -= got as u64;
        }
        Ok(())
    }

    /// Sends `bytes` from where they lie (`vmsplice(2)`). The kernel may read them until the peer
    /// has acknowledged them: what is changed before is what may be sent.
    ///
    /// # Errors
    /// That of `vmsplice(2)` or `splice(2)`.
    pub fn send_memory(&self, stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let range = libc::iovec {
                iov_base: rest.as_ptr().cast_mut().cast(),
                iov_len: rest.len().min(self.bytes),
            };
            // SAFETY: the pipe is open, `range` lies in `rest`, which is borrowed for the call; the
            // kernel takes references to its pages and only reads them.
            let got = unsafe { libc::vmsplice(self.into.as_raw_fd(), &raw const range, 1, 0) };
            let Ok(got) = usize::try_from(got) else {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return Err(error);
            };
            self.drain(stream.as_fd(), None, got)?;
            rest = &rest[got..];
        }
        Ok(())
    }

    /// Moves what has arrived, at most `len` bytes, to `place` in `file` (a device such as
    /// `/dev/null` takes no place); how many bytes, zero at the end of the stream.
    ///
    /// # Errors
    /// That of `splice(2)`.
    pub fn receive(
        &self,
        stream: &TcpStream,
        file: BorrowedFd<'_>,
        place: Option<u64>,
        len: usize,
    ) -> io::Result<usize> {
        let flags = SpliceFlags::MOVE;
        let got = retry(|| {
            rustix::pipe::splice(stream, None, &self.into, None, len.min(self.bytes), flags)
        })?;
        self.drain(file, place, got)?;
        Ok(got)
    }

    fn drain(&self, to: BorrowedFd<'_>, mut place: Option<u64>, len: usize) -> io::Result<()> {
        let mut left = len;
        while left > 0 {
            let flags = SpliceFlags::MOVE | SpliceFlags::MORE;
            let put =
                retry(|| rustix::pipe::splice(&self.out, None, to, place.as_mut(), left, flags))?;
            if put == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            left -= put;
        }
        Ok(())
    }
}

fn retry(mut call: impl FnMut() -> rustix::io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// Zero-copy sends: the kernel reads the memory in place, and reports when it is done with it.
#[derive(Debug)]
pub struct ZeroCopy<'a> {
    stream: &'a TcpStream,
    /// Calls that sent something, and those that the kernel is done with.
    begun: u32,
    done: u32,
    /// Calls of which the kernel made a copy after all.
    copied: u64,
}

impl<'a> ZeroCopy<'a> {
    /// Prepares a connection.
    ///
    /// # Errors
    /// `InvalidInput` or `Unsupported` where the kernel cannot.
    pub fn new(stream: &'a TcpStream) -> io::Result<Self> {
        let on: libc::c_int = 1;
        let length = libc::socklen_t::try_from(size_of_val(&on)).map_err(io::Error::other)?;
        // SAFETY: the descriptor is open for the borrow's life, and the value is an int of the
        // stated length.
        let result = unsafe {
            libc::setsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ZEROCOPY,
                (&raw const on).cast(),
                length,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            stream,
            begun: 0,
            done: 0,
            copied: 0,
        })
    }

    /// Sends all of `bytes` once fewer than `outstanding` earlier calls are unfinished. The kernel
    /// may read them until it reports that it is done: later changes may be sent.
    ///
    /// # Errors
    /// That of `send(2)` or of the connection.
    pub fn send_all(&mut self, bytes: &[u8], outstanding: u32) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            while self.begun.wrapping_sub(self.done) >= outstanding.max(1) {
                self.reap(true)?;
            }
            // SAFETY: the descriptor is open for the borrow's life, and the kernel reads `rest`
            // only, whose pages it keeps as long as it needs them.
            let sent = unsafe {
                libc::send(
                    self.stream.as_raw_fd(),
                    rest.as_ptr().cast(),
                    rest.len(),
                    libc::MSG_ZEROCOPY | libc::MSG_NOSIGNAL,
                )
            };
            match usize::try_from(sent) {
                Ok(sent) => {
                    self.begun = self.begun.wrapping_add(1);
                    rest = &rest[sent..];
                }
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    // The pages that may be pinned are all in use: some come back.
                    error
                        if error.raw_os_error() == Some(libc::ENOBUFS)
                            && self.begun != self.done =>
                    {
                        self.reap(true)?;
                    }
                    error => return Err(error),
                },
            }
        }
        self.reap(false)
    }

    /// Calls of which the kernel made a copy after all, as it does on loopback.
    #[must_use]
    pub fn copied(&self) -> u64 {
        self.copied
    }

    /// Calls that sent something.
    #[must_use]
    pub fn calls(&self) -> u32 {
        self.begun
    }

    /// Takes note of what the kernel is done with.
    fn reap(&mut self, wait: bool) -> io::Result<()> {
        if wait {
            // Events of the error queue are always reported, regardless of the requested ones.
            let mut fds = [PollFd::new(self.stream, PollFlags::empty())];
            match rustix::event::poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut any = false;
        while let Some(notice) = self.notice()? {
            let (first, last, copied) = notice;
            let count = last.wrapping_sub(first).wrapping_add(1);
            self.done = self.done.wrapping_add(count);
            if copied {
                self.copied += u64::from(count);
            }
            any = true;
        }
        if wait
            && !any
            && let Some(error) = self.stream.take_error()?
        {
            return Err(error);
        }
        if wait && !any {
            // Woken by the end of the connection and not by a notification: a plain write returns
            // the error.
            self.stream.peer_addr()?;
        }
        Ok(())
    }

    /// The next notice of the error queue: the first and the last call that it is about, and
    /// whether they were copied.
    fn notice(&self) -> io::Result<Option<(u32, u32, bool)>> {
        /// `SO_EE_ORIGIN_ZEROCOPY` and `SO_EE_CODE_ZEROCOPY_COPIED` of `linux/errqueue.h`.
        const ORIGIN: u8 = 5;
        const COPIED: u8 = 1;
        let mut control = [0_u64; 16];
        // SAFETY: a `msghdr` is numbers and pointers, for which zero is a value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        // SAFETY: `message` has no data and states the length of its control buffer, which outlives
        // the call.
        let got = unsafe {
            libc::recvmsg(
                self.stream.as_raw_fd(),
                &raw mut message,
                libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT,
            )
        };
        if got < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        // `cmsghdr` is 16 bytes on 64-bit Linux; `sock_extended_err` follows: errno u32, origin,
        // type, code, pad u8, info u32, data u32.
        let header = size_of::<libc::cmsghdr>();
        let bytes: Vec<u8> = control.iter().flat_map(|word| word.to_ne_bytes()).collect();
        if message.msg_controllen < header + 16 {
            return Ok(None);
        }
        let word = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[header + at..header + at + 4]);
            u32::from_ne_bytes(word)
        };
        let (origin, code) = (bytes[header + 4], bytes[header + 6]);
        if word(0) != 0 || origin != ORIGIN {
            return Ok(None);
        }
        Ok(Some((word(8), word(12), code == COPIED)))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len)
            .map(|at| u8::try_from(at * 7 % 251).unwrap())
            .collect()
    }

    /// Returns the bytes that arrive when `send` sends.
    fn arrives(send: impl FnOnce(&TcpStream) + Send + 'static) -> Vec<u8> {
        let (near, mut far) = pair();
        let sender = std::thread::spawn(move || send(&near));
        let mut all = Vec::new();
        far.read_to_end(&mut all).unwrap();
        sender.join().unwrap();
        all
    }

    #[test]
    fn files_and_memory_go_through_a_pipe() {
        let content = pattern(3_000_000);
        let bytes = content.clone();
        let got = arrives(move |stream| {
            let file = crate::file::memory_file(&bytes).unwrap();
            let pipe = Pipe::new().unwrap();
            pipe.send_file(stream, file.as_fd(), 10, 2_999_990).unwrap();
            let past = pipe.send_file(stream, file.as_fd(), 3_000_000, 1);
            assert_eq!(past.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        });
        assert!(got == content[10..]);
        // The sent memory stays unchanged until it has arrived.
        let bytes = std::sync::Arc::new(content.clone());
        let kept = std::sync::Arc::clone(&bytes);
        let got = arrives(move |stream| Pipe::new().unwrap().send_memory(stream, &bytes).unwrap());
        assert!(got == *kept);
    }

    #[test]
    fn what_arrives_goes_through_a_pipe_to_its_place() {
        let (near, far) = pair();
        let content = pattern(200_000);
        let bytes = content.clone();
        let sender = std::thread::spawn(move || {
            use std::io::Write;
            (&near).write_all(&bytes).unwrap();
        });
        let file = crate::file::memory_file(&[]).unwrap();
        let (pipe, mut at) = (Pipe::new().unwrap(), 0);
        loop {
            let got = pipe
                .receive(&far, file.as_fd(), Some(5 + at), 1 << 20)
                .unwrap();
            if got == 0 {
                break;
            }
            at += got as u64;
        }
        sender.join().unwrap();
        let mut placed = vec![0; content.len()];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut placed, 5).unwrap();
        assert!(placed == content);
    }

    #[test]
    fn memory_is_sent_from_where_it_lies_and_given_back() {
        let content = std::sync::Arc::new(pattern(5_000_000));
        let bytes = std::sync::Arc::clone(&content);
        let got = arrives(move |stream| {
            let mut sender = ZeroCopy::new(stream).unwrap();
            for piece in bytes.chunks(100_000) {
                sender.send_all(piece, 4).unwrap();
            }
            assert!(sender.begun.wrapping_sub(sender.done) <= 4, "{sender:?}");
            assert!(sender.calls() >= 50 && sender.copied() <= u64::from(sender.calls()));
        });
        assert!(got == *content);
    }
}
