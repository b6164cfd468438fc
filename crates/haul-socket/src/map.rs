//! A file of the table, mapped: shared memory that is nothing but atomic numbers, so that whatever
//! another process writes is a value.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};

use crate::buffer::{self, Streams};

/// A type of atomic numbers only, for which every byte string of its size is a value.
///
/// # Safety
/// The implementer asserts this, and that the alignment is at most a page.
pub(crate) unsafe trait Shared: Sync {}

/// A `T` in a shared mapping of a file.
#[derive(Debug)]
pub(crate) struct Mapped<T: Shared> {
    start: NonNull<T>,
    /// What else of the file is mapped.
    pub(crate) streams: Streams,
    /// Device and inode of the file.
    pub(crate) identity: (u64, u64),
}

// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl<T: Shared> Send for Mapped<T> {}
// SAFETY: a `Shared` is changed through atomics only.
unsafe impl<T: Shared> Sync for Mapped<T> {}

impl<T: Shared> Mapped<T> {
    /// Maps `path`, which must be this user's own regular file; makes it if `create`.
    ///
    /// # Errors
    /// Of opening and mapping; `PermissionDenied` where the file is somebody else's, `InvalidData`
    /// where it is too short.
    pub(crate) fn open(path: &Path, create: bool) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(create)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if metadata.mode() & 0o077 != 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let len = size_of::<T>();
        // On a boundary of pages of whatever size.
        let streams_at = len.next_multiple_of(1 << 16) as u64;
        let whole = streams_at + buffer::LEN as u64;
        if create && metadata.len() < whole {
            file.set_len(whole)?;
        } else if metadata.len() < whole {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let streams = Streams::reserve(&file, streams_at)?;
        let start = map(&file.into(), len)?;
        Ok(Self {
            start: start.cast(),
            streams,
            identity: (metadata.dev(), metadata.ino()),
        })
    }
}

fn map(file: &OwnedFd, len: usize) -> io::Result<NonNull<u8>> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses the address; nothing that exists is touched.
    let start = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            len,
            protection,
            MapFlags::SHARED,
            file.as_fd(),
            0,
        )
    }?;
    NonNull::new(start.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

impl<T: Shared> std::ops::Deref for Mapped<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the mapping has the size of a `T` and is page-aligned, it lives as long as
        // `self`, and every content is a `T` that only changes through atomics.
        unsafe { self.start.as_ref() }
    }
}

impl<T: Shared> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: mapped by `open` with this length, and nobody has a reference any more.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), size_of::<T>()) };
        debug_assert!(unmapped.is_ok());
    }
}
