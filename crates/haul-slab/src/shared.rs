//! Memory that two processes map.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::region::{Hold, Region};

/// Memory of a sealed memfd, which another process may map and write at any time. Clones are the
/// same.
///
/// Its length cannot change, so no access ends in a signal. Its bytes are reached as atomics
/// ([`SharedMemory::words`]) or by the copies of a [`Region`].
#[derive(Debug, Clone)]
pub struct SharedMemory(Arc<Mapped>);

#[derive(Debug)]
struct Mapped {
    fd: OwnedFd,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is an address range; nothing in it is tied to the thread that made it.
unsafe impl Send for Mapped {}
// SAFETY: as above; access to the bytes goes through atomics and raw copies.
unsafe impl Sync for Mapped {}

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
        Self::map(fd, len)
    }

    /// Maps the memory that another process has made.
    ///
    /// # Errors
    /// `InvalidData` if its length could change, is zero or above `most`, or if it is on reserved
    /// huge pages; else that of `mmap(2)`.
    pub fn adopt(fd: OwnedFd, most: usize) -> io::Result<Self> {
        let refuse = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|_| refuse("it is no memfd"))?;
        if !seals.contains(SEALS) {
            return Err(refuse("its length is not sealed"));
        }
        let about = rustix::fs::fstat(&fd)?;
        // A huge page that is missing would be a signal.
        let page = rustix::param::page_size() as u64;
        if u64::try_from(about.st_blksize).ok() != Some(page) {
            return Err(refuse("it is on huge pages"));
        }
        let len = usize::try_from(about.st_size).unwrap_or(usize::MAX);
        if len == 0 || len > most {
            return Err(refuse("its length is out of bounds"));
        }
        Self::map(fd, len)
    }

    fn map(fd: OwnedFd, len: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, &fd, 0)
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self(Arc::new(Mapped { fd, start, len })))
    }

    /// Its descriptor, for the other process.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
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

    /// All of it, as a region.
    #[must_use]
    pub fn region(&self) -> Region {
        Region::new(self.0.start, self.0.len, Hold::Shared(self.clone()))
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.0.start
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map`, and nobody uses it any more. A refusal keeps it.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    fn memfd(flags: MemfdFlags) -> OwnedFd {
        rustix::fs::memfd_create(c"test", MemfdFlags::CLOEXEC | flags).unwrap()
    }

    #[test]
    fn both_mappings_are_the_same_bytes() {
        let near = SharedMemory::create(10_000).unwrap();
        let far = SharedMemory::adopt(near.fd().try_clone_to_owned().unwrap(), 1 << 20).unwrap();
        assert_eq!((near.len(), far.len()), (12_288, 12_288));
        near.words()[9].store(7, Ordering::Release);
        let mut bytes = [0; 8];
        far.region().read(72, &mut bytes).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), 7);
        let cut = far.region().cut(72, 8).unwrap();
        let (memory, offset) = cut.shared().unwrap();
        assert_eq!((memory.len(), offset), (12_288, 72));
        assert!(Region::map(1).unwrap().shared().is_none());
    }

    #[test]
    fn what_could_shrink_is_refused() {
        let unsealed = memfd(MemfdFlags::ALLOW_SEALING);
        rustix::fs::ftruncate(&unsealed, 4096).unwrap();
        for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::GROW] {
            rustix::fs::fcntl_add_seals(&unsealed, seals).unwrap();
            let fd = unsealed.try_clone().unwrap();
            assert!(SharedMemory::adopt(fd, 4096).is_err());
        }
        rustix::fs::fcntl_add_seals(&unsealed, SEALS).unwrap();
        assert!(SharedMemory::adopt(unsealed.try_clone().unwrap(), 4095).is_err());
        SharedMemory::adopt(unsealed, 4096).unwrap();
        let empty = memfd(MemfdFlags::ALLOW_SEALING);
        rustix::fs::fcntl_add_seals(&empty, SEALS).unwrap();
        assert!(SharedMemory::adopt(empty, 4096).is_err());
        let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
        assert!(SharedMemory::adopt(file, usize::MAX).is_err());
        let read_only = memfd(MemfdFlags::ALLOW_SEALING);
        rustix::fs::ftruncate(&read_only, 4096).unwrap();
        rustix::fs::fcntl_add_seals(&read_only, SEALS | SealFlags::WRITE).unwrap();
        assert!(SharedMemory::adopt(read_only, 4096).is_err());
    }

    #[test]
    fn impossible_lengths_are_refused() {
        for len in [0, usize::MAX, usize::MAX / 2 + 1] {
            assert!(SharedMemory::create(len).is_err());
        }
    }
}
