//! What a bulk channel moves: a linear *transfer space* of bytes, read from a [`Source`] at one end
//! and placed into a [`Sink`] at the other, in any order.
//!
//! Both ends agree on what each offset of the space means before the first byte moves, so a channel
//! needs no framing of its own and may place a byte the moment it arrives (DESIGN §5: placement is
//! separate from delivery).

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Where the bytes of a transfer space come from. Shared by the threads of a channel.
pub trait Source: Send + Sync {
    /// Waits until the space holds bytes past `offset`, is complete, or `timeout` has passed.
    fn wait(&self, offset: u64, timeout: Duration) -> Extent;

    /// Fills all of `buf` with the bytes at `offset`; the range is known to lie inside the space.
    ///
    /// # Errors
    /// The error of the file read; a source that has become shorter is `UnexpectedEof`.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// The bytes from `offset` on, where they lie in memory already: channels send them from there.
    fn memory_at(&self, _offset: u64) -> Option<&[u8]> {
        None
    }

    /// The file behind `offset`, for channels that can hand it to the kernel whole (`sendfile`).
    fn file_at(&self, offset: u64) -> Option<FileRange<'_>>;
}

/// How far a transfer space reaches now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Offsets below this one can be read.
    pub end: u64,
    /// No byte will be added at or after `end`.
    pub complete: bool,
}

/// A run of the transfer space that lies in one file.
#[derive(Debug, Clone, Copy)]
pub struct FileRange<'a> {
    /// The open file.
    pub fd: BorrowedFd<'a>,
    /// Position in the file, bytes.
    pub position: u64,
    /// Bytes from there that belong to the run.
    pub len: u64,
}

/// Where the bytes of a transfer space go. Shared by the threads of a channel.
pub trait Sink: Send + Sync {
    /// Places the concatenation of `parts` at `offset`. Called once per byte of the space, in any
    /// order.
    ///
    /// # Errors
    /// The error of the write (disk full, quota); it ends the channel. A range outside the space
    /// that this end asked for is an error as well, and nothing of it is written.
    fn place(&self, offset: u64, parts: &[IoSlice<'_>]) -> io::Result<()>;

    /// Whether `place` may wait, as for a disk. Channels then call it from a thread that nothing
    /// else depends on.
    fn may_block(&self) -> bool {
        true
    }
}
