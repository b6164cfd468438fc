//! Memory that two processes map.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// Memory of a sealed memfd, which another process may map and write at any time. Clones are the
/// same.
///
/// Its length cannot change, so no access is beyond its end. Its bytes are reached as atomics
/// ([`SharedMemory::words`]) or by the copies of a [`Region`](crate::Region). The other process
/// may give pages back, which then come from whoever touches them first; where the kernel does
/// not overcommit memory and has none, that is a signal.
#[derive(Debug, Clone)]
pub struct SharedMemory(Arc<Mapped>);

#[derive(Debug)]
struct Mapped {
    /// None: another process has made it, and keeps it.
    fd: Option<OwnedFd>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is an address range; nothing in it is tied to the thread that made it.
unsafe impl Send for Mapped {}
// SAFETY: as above; access to the bytes goes through atomics and raw copies.
unsafe impl Sync for Mapped {}

/// The kind of file system of memfds on reserved huge pages (`statfs(2)`).
const HUGETLBFS_MAGIC: rustix::fs::FsWord = 0x9584_58f6;

/// What keeps the length of the memory.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

impl SharedMemory {
    /// Makes at least `len` bytes of memory, zeroed: whole pages, all of them there.
    ///
    /// # Errors
    /// `InvalidInput` for zero or an impossible length; else that of `memfd_create(2)`,
    /// `fallocate(2)` or `mmap(2)`.
    pub fn create(len: usize) -> io::Result<Self> {
        let len = len
            .checked_next_multiple_of(rustix::param::page_size())
            .filter(|len| *len > 0 && isize::try_from(*len).is_ok())
            .ok_or(io::ErrorKind::InvalidInput)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(c"haul", flags)?;
        // Pages that are missing could end a program later, when there is no memory.
        rustix::fs::fallocate(&fd, rustix::fs::FallocateFlags::empty(), 0, len as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SEALS)?;
        let (start, len) = map(&fd, 0, len)?;
        Ok(Self::new(Some(fd), start, len))
    }

    fn new(fd: Option<OwnedFd>, start: NonNull<u8>, len: usize) -> Self {
        Self(Arc::new(Mapped { fd, start, len }))
    }

    /// Maps all of the memory that another process has made.
    ///
    /// # Errors
    /// `InvalidData` if its length could change, is zero or above `most`, or if it is on reserved
    /// huge pages; else that of `mmap(2)`.
    pub fn adopt(fd: &OwnedFd, most: usize) -> io::Result<Self> {
        let size = Self::examine(fd)?;
        let len = usize::try_from(size).ok().filter(|len| *len <= most);
        let len = len.ok_or_else(|| refuse("its length is out of bounds"))?;
        let (start, len) = map(fd, 0, len)?;
        Ok(Self::new(None, start, len))
    }

    /// Maps the pages of a part of such memory; with where the part starts in them.
    ///
    /// # Errors
    /// As [`SharedMemory::adopt`]; `InvalidData` for a part that is not inside.
    pub fn adopt_part(fd: &OwnedFd, offset: u64, len: usize) -> io::Result<(Self, usize)> {
        let size = Self::examine(fd)?;
        let outside = || refuse("the part is not inside");
        let end = offset.checked_add(len as u64).filter(|end| *end <= size);
        let page = rustix::param::page_size() as u64;
        let skip = offset % page;
        let first = offset - skip;
        let whole = usize::try_from(end.ok_or_else(outside)? - first).map_err(|_| outside())?;
        let skip = usize::try_from(skip).map_err(|_| outside())?;
        let (start, whole) = map(fd, first, whole)?;
        Ok((Self::new(None, start, whole), skip))
    }

    /// The bytes of a memfd whose length cannot change.
    fn examine(fd: &OwnedFd) -> io::Result<u64> {
        let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| refuse("it is no memfd"))?;
        if !seals.contains(SEALS) {
            return Err(refuse("its length is not sealed"));
        }
        // A reserved huge page that is missing would be a signal.
        if rustix::fs::fstatfs(fd)?.f_type == HUGETLBFS_MAGIC {
            return Err(refuse("it is on reserved huge pages"));
        }
        let size = u64::try_from(rustix::fs::fstat(fd)?.st_size).unwrap_or(0);
        if size == 0 {
            return Err(refuse("it is empty"));
        }
        Ok(size)
    }

    /// Its descriptor, for the other process; none of memory that was adopted.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.fd.as_ref().map(AsFd::as_fd)
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// All of it, as words in the machine's byte order.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        let start = self.0.start.cast::<AtomicU64>().as_ptr();
        // SAFETY: the mapping is page-aligned, has so many bytes and lives as long as `self`; other
        // threads and processes change it by atomics or by copies that count as such.
        unsafe { std::slice::from_raw_parts(start, self.0.len / size_of::<u64>()) }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.0.start
    }
}

fn refuse(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

fn map(fd: &OwnedFd, offset: u64, len: usize) -> io::Result<(NonNull<u8>, usize)> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a mapping at an address of the kernel's choice touches nothing that exists.
    let start = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            len,
            access,
            MapFlags::SHARED,
            fd,
            offset,
        )
    }?;
    let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
    Ok((start, len))
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map`, and nobody uses it any more. A refusal keeps it.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    fn memfd(flags: MemfdFlags) -> OwnedFd {
        rustix::fs::memfd_create(c"test", MemfdFlags::CLOEXEC | flags).expect("a memfd")
    }

    #[test]
    fn what_could_shrink_is_refused() {
        let unsealed = memfd(MemfdFlags::ALLOW_SEALING);
        rustix::fs::ftruncate(&unsealed, 4096).unwrap();
        for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::GROW] {
            rustix::fs::fcntl_add_seals(&unsealed, seals).unwrap();
            assert!(SharedMemory::adopt(&unsealed, 4096).is_err());
        }
        rustix::fs::fcntl_add_seals(&unsealed, SEALS).unwrap();
        assert!(SharedMemory::adopt(&unsealed, 4095).is_err());
        SharedMemory::adopt(&unsealed, 4096).unwrap();
        let empty = memfd(MemfdFlags::ALLOW_SEALING);
        rustix::fs::fcntl_add_seals(&empty, SEALS).unwrap();
        assert!(SharedMemory::adopt(&empty, 4096).is_err());
        let read_only = rustix::fs::OFlags::RDONLY;
        let file =
            rustix::fs::open("/proc/self/exe", read_only, rustix::fs::Mode::empty()).unwrap();
        assert!(SharedMemory::adopt(&file, usize::MAX).is_err());
        let read_only = memfd(MemfdFlags::ALLOW_SEALING);
        rustix::fs::ftruncate(&read_only, 4096).unwrap();
        rustix::fs::fcntl_add_seals(&read_only, SEALS | SealFlags::WRITE).unwrap();
        assert!(SharedMemory::adopt(&read_only, 4096).is_err());
    }

    #[test]
    fn impossible_lengths_are_refused() {
        for len in [0, usize::MAX, usize::MAX / 2 + 1] {
            assert!(SharedMemory::create(len).is_err());
        }
    }
}
