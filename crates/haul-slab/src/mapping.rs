//! Anonymous memory from the kernel, on huge pages where it has them.

use std::io;
use std::ptr::NonNull;

/// How a mapping got its pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// Reserved huge pages (`MAP_HUGETLB`).
    Huge,
    /// Ordinary pages that the kernel was asked to join into huge ones (`MADV_HUGEPAGE`); it may or
    /// may not have.
    Transparent,
    /// Ordinary pages.
    Small,
}

/// A private anonymous mapping, zeroed, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    pages: Pages,
}

// SAFETY: a mapping is an address range; nothing in it is tied to the thread that made it.
unsafe impl Send for Mapping {}
// SAFETY: as above; access to the bytes goes through raw pointers whose users answer for races.
unsafe impl Sync for Mapping {}

/// The default huge page of x86-64 and of AArch64 with 4 KiB pages.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;
/// The smallest page of any Linux.
const PAGE_BYTES: usize = 4 << 10;

impl Mapping {
    /// # Errors
    /// `InvalidInput` for zero or for more than the address space holds; else that of `mmap(2)`.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let unit = if len >= HUGE_PAGE_BYTES {
            HUGE_PAGE_BYTES
        } else {
            PAGE_BYTES
        };
        let len = len
            .checked_next_multiple_of(unit)
            .filter(|len| *len > 0 && isize::try_from(*len).is_ok())
            .ok_or(io::ErrorKind::InvalidInput)?;
        system::map(len)
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn pages(&self) -> Pages {
        self.pages
    }

    /// Gives the pages back to the system: they read as zeros.
    pub(crate) fn discard(&self) {
        system::discard(self.start, self.len);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        system::unmap(self.start, self.len);
    }
}

#[cfg(not(miri))]
mod system {
    use super::{HUGE_PAGE_BYTES, Mapping, NonNull, Pages, io};

    pub(super) fn map(len: usize) -> io::Result<Mapping> {
        if len < HUGE_PAGE_BYTES {
            return map_with(len, 0, Pages::Small);
        }
        if let Ok(mapping) = map_with(len, libc::MAP_HUGETLB, Pages::Huge) {
            return Ok(mapping);
        }
        let mut mapping = map_with(len, 0, Pages::Small)?;
        // SAFETY: the range is this mapping's own; the advice changes no content.
        let advised =
            unsafe { libc::madvise(mapping.start.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        if advised == 0 {
            mapping.pages = Pages::Transparent;
        }
        Ok(mapping)
    }

    fn map_with(len: usize, flags: libc::c_int, pages: Pages) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing that
        // exists.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, len, pages })
    }

    pub(super) fn discard(start: NonNull<u8>, len: usize) {
        // SAFETY: the range is a mapping's own, and stays mapped; its bytes are only read and
        // written by copies for which any content is valid. A kernel that refuses keeps the pages.
        unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_DONTNEED) };
    }

    pub(super) fn unmap(start: NonNull<u8>, len: usize) {
        // SAFETY: the range was mapped by `map_with` and the mapping is being dropped, so nobody
        // uses it any more.
        unsafe { libc::munmap(start.as_ptr().cast(), len) };
    }
}

/// Miri has no huge pages; the allocator's memory shows the same mistakes.
#[cfg(miri)]
mod system {
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    use super::{Mapping, NonNull, PAGE_BYTES, Pages, io};

    pub(super) fn discard(_start: NonNull<u8>, _len: usize) {}

    pub(super) fn map(len: usize) -> io::Result<Mapping> {
        let layout = Layout::from_size_align(len, PAGE_BYTES).map_err(io::Error::other)?;
        // SAFETY: the caller has made sure that the length is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping {
            start,
            len,
            pages: Pages::Small,
        })
    }

    pub(super) fn unmap(start: NonNull<u8>, len: usize) {
        if let Ok(layout) = Layout::from_size_align(len, PAGE_BYTES) {
            // SAFETY: `map` allocated it with this layout.
            unsafe { dealloc(start.as_ptr(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_whole_pages() {
        assert_eq!(Mapping::new(1).unwrap().len(), PAGE_BYTES);
        assert_eq!(
            Mapping::new(HUGE_PAGE_BYTES + 1).unwrap().len(),
            2 * HUGE_PAGE_BYTES
        );
    }

    #[test]
    fn lengths_that_cannot_be_are_refused() {
        for len in [0, usize::MAX, usize::MAX / 2 + 1] {
            assert_eq!(
                Mapping::new(len).unwrap_err().kind(),
                io::ErrorKind::InvalidInput
            );
        }
    }
}
