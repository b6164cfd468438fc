//! Room for bytes of streams that cannot be delivered yet, a piece for each socket of the table,
//! in the table's file: it is shared like the rest of a stream's state, and survives `fork` and
//! `exec`.
//!
//! The file has holes where nothing was ever held. A process reserves the addresses of all pieces
//! and opens those that it needs, so that mlockall(2) finds nothing to fill.

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::iovec;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

/// Sockets of the table.
pub(crate) const SOCKETS: usize = 1 << 17;
/// Bytes of a piece: an FPDU on the wire.
pub(crate) const BUFFER: usize = 1 << 14;
/// Pieces that are opened together.
const TOGETHER: usize = 64;
/// Bytes of all pieces.
pub(crate) const LEN: usize = SOCKETS * BUFFER;

/// The pieces.
#[derive(Debug)]
pub(crate) struct Streams {
    start: NonNull<u8>,
    open: [AtomicBool; SOCKETS / TOGETHER],
}

// SAFETY: addresses of shared memory, which is read and written by system calls and by whoever has
// a stream's lock.
unsafe impl Send for Streams {}
// SAFETY: likewise.
unsafe impl Sync for Streams {}

impl Streams {
    /// Reserves addresses for what lies at `offset` in the file.
    ///
    /// # Errors
    /// Of mmap(2).
    pub(crate) fn reserve(file: impl AsFd, offset: u64) -> io::Result<Self> {
        let (none, flags) = (ProtFlags::empty(), MapFlags::SHARED);
        let anywhere = std::ptr::null_mut();
        // SAFETY: the kernel chooses the address; nothing that exists is touched.
        let start = unsafe { rustix::mm::mmap(anywhere, LEN, none, flags, file, offset) }?;
        Ok(Self {
            start: NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?,
            open: [const { AtomicBool::new(false) }; SOCKETS / TOGETHER],
        })
    }

    /// The piece of a socket; `None` without memory, or beyond the last one.
    pub(crate) fn of(&self, number: usize) -> Option<iovec> {
        let open = self.open.get(number / TOGETHER)?;
        if !open.load(Ordering::Acquire) {
            let len = TOGETHER * BUFFER;
            let first = number / TOGETHER * len;
            let start = self.start.as_ptr().wrapping_add(first).cast();
            let both = MprotectFlags::READ | MprotectFlags::WRITE;
            // SAFETY: within what was reserved.
            unsafe { rustix::mm::mprotect(start, len, both) }.ok()?;
            open.store(true, Ordering::Release);
        }
        Some(iovec {
            iov_base: self.start.as_ptr().wrapping_add(number * BUFFER).cast(),
            iov_len: BUFFER,
        })
    }

    /// What is in a piece is not needed any more.
    pub(crate) fn vacate(&self, number: usize) {
        if let Some(piece) = self.of(number) {
            // SAFETY: within what was reserved; whoever has the stream's lock is the only one that
            // uses it.
            let _ = unsafe { rustix::mm::madvise(piece.iov_base, BUFFER, Advice::LinuxRemove) };
        }
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        // SAFETY: mapped by `reserve` with this length, and nobody has a piece any more.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), LEN) };
        debug_assert!(unmapped.is_ok());
    }
}
