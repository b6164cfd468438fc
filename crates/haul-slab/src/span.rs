//! Ranges for `writev(2)` and `readv(2)`: raw, checked, and laid out as the kernel wants them.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// A range that a system call reads: of a region, or of ordinary memory. Has the layout of `struct
/// iovec`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Gather<'a>(libc::iovec, PhantomData<&'a [u8]>);

/// A range that a system call writes: of a region, or of ordinary memory. Has the layout of `struct
/// iovec`.
#[repr(transparent)]
pub struct Scatter<'a>(libc::iovec, PhantomData<&'a mut [u8]>);

// SAFETY: a range is borrowed memory that any thread may hand to the kernel.
unsafe impl Send for Gather<'_> {}
// SAFETY: as above; nothing is read through it in this program.
unsafe impl Sync for Gather<'_> {}
// SAFETY: as for `Gather`.
unsafe impl Send for Scatter<'_> {}
// SAFETY: as for `Gather`.
unsafe impl Sync for Scatter<'_> {}

impl<'a> Gather<'a> {
    pub(crate) fn new(start: NonNull<u8>, len: usize) -> Self {
        Self(iovec(start, len), PhantomData)
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iov_len
    }

    /// No bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iov_len == 0
    }

    /// The range without its first `bytes` (without all of them where it has fewer).
    #[must_use]
    pub fn skip(self, bytes: usize) -> Self {
        Self(skip(self.0, bytes), PhantomData)
    }
}

impl<'a> From<&'a [u8]> for Gather<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::new(NonNull::from(bytes).cast(), bytes.len())
    }
}

impl<'a> Scatter<'a> {
    pub(crate) fn new(start: NonNull<u8>, len: usize) -> Self {
        Self(iovec(start, len), PhantomData)
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iov_len
    }

    /// No bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iov_len == 0
    }

    /// The range without its first `bytes` (without all of them where it has fewer).
    #[must_use]
    pub fn skip(self, bytes: usize) -> Self {
        Self(skip(self.0, bytes), PhantomData)
    }
}

impl<'a> From<&'a mut [u8]> for Scatter<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        let len = bytes.len();
        Self::new(NonNull::from(bytes).cast(), len)
    }
}

fn iovec(start: NonNull<u8>, len: usize) -> libc::iovec {
    libc::iovec {
        iov_base: start.as_ptr().cast(),
        iov_len: len,
    }
}

fn skip(range: libc::iovec, bytes: usize) -> libc::iovec {
    let bytes = bytes.min(range.iov_len);
    libc::iovec {
        iov_base: range.iov_base.cast::<u8>().wrapping_add(bytes).cast(),
        iov_len: range.iov_len - bytes,
    }
}

impl fmt::Debug for Gather<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gather({} bytes)", self.len())
    }
}

impl fmt::Debug for Scatter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scatter({} bytes)", self.len())
    }
}
