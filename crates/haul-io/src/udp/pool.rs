//! A fixed set of receive buffers in one allocation, handed out and taken back without lock or
//! allocation.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// One receive buffer, owned. Goes back to its pool when dropped, on whatever thread.
pub struct Buffer {
    pool: Arc<Pool>,
    index: usize,
    len: usize,
}

impl Buffer {
    /// Makes the first `len` bytes the content.
    pub(super) fn set_len(&mut self, len: usize) {
        self.len = len.min(self.pool.buffer_bytes);
    }

    /// All of the buffer, whatever its content.
    pub(super) fn whole_mut(&mut self) -> &mut [u8] {
        let start = self.pool.start_of(self.index).as_ptr();
        // SAFETY: the range is inside the pool's mapping, which is zeroed when made and so
        // initialised, and belongs to `self` alone (see `Pool`); it is borrowed as long as `self`
        // is.
        unsafe { slice::from_raw_parts_mut(start, self.pool.buffer_bytes) }
    }

    /// The content, to be changed in place.
    pub(super) fn content_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        &mut self.whole_mut()[..len]
    }

    /// The content.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        let start = self.pool.start_of(self.index).as_ptr();
        // SAFETY: as in `whole_mut`; `len` is at most `buffer_bytes`.
        unsafe { slice::from_raw_parts(start, self.len) }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("index", &self.index)
            .field("len", &self.len)
            .finish()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.pool.give_back(self.index);
    }
}

/// Invariant: each index below `buffers` is either free (its bit is set) or owned by exactly one
/// [`Buffer`].
pub(super) struct Pool {
    base: NonNull<u8>,
    buffers: usize,
    /// A multiple of the page size.
    buffer_bytes: usize,
    /// One bit per buffer, 1 = free.
    free: Box<[AtomicU64]>,
}

// SAFETY: the memory is reached only through `Buffer`s, which own disjoint ranges; `base` is not
// bound to a thread.
unsafe impl Send for Pool {}
// SAFETY: as above; the shared part is atomics and constants.
unsafe impl Sync for Pool {}

impl Pool {
    /// All buffers free. Memory is taken from the system when first touched.
    pub(super) fn new(buffers: usize, buffer_bytes: usize) -> io::Result<Arc<Self>> {
        let bytes = buffers
            .checked_mul(buffer_bytes)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing that exists.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, flags) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let free = (0..buffers.div_ceil(64)).map(|word| {
            let bits = buffers - word * 64;
            AtomicU64::new(if bits >= 64 {
                u64::MAX
            } else {
                (1 << bits) - 1
            })
        });
        Ok(Arc::new(Self {
            base,
            buffers,
            buffer_bytes,
            free: free.collect(),
        }))
    }

    pub(super) fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// A free buffer, empty, if there is one.
    pub(super) fn take(self: &Arc<Self>) -> Option<Buffer> {
        for (word_index, word) in self.free.iter().enumerate() {
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 {
                let bit = bits & bits.wrapping_neg();
                // Acquire: what the last owner still read or wrote happens before what the new one
                // does.
                let before = word.fetch_and(!bit, Ordering::Acquire);
                if before & bit != 0 {
                    let index =
                        word_index * 64 + usize::try_from(bit.trailing_zeros()).unwrap_or(0);
                    return Some(Buffer {
                        pool: Arc::clone(self),
                        index,
                        len: 0,
                    });
                }
                bits = before & !bit;
            }
        }
        None
    }

    fn give_back(&self, index: usize) {
        // Release: pairs with the Acquire of the next owner.
        self.free[index / 64].fetch_or(1 << (index % 64), Ordering::Release);
    }

    fn start_of(&self, index: usize) -> NonNull<u8> {
        debug_assert!(index < self.buffers);
        // SAFETY: indices are below `buffers`, so the result is inside the mapping of `buffers *
        // buffer_bytes`.
        unsafe { self.base.add(index * self.buffer_bytes) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let bytes = self.buffers * self.buffer_bytes;
        // SAFETY: the mapping was made with this size, and no `Buffer` is left, as each holds the
        // pool alive.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let free: u32 = self
            .free
            .iter()
            .map(|word| word.load(Ordering::Relaxed).count_ones())
            .sum();
        f.debug_struct("Pool")
            .field("buffers", &self.buffers)
            .field("free", &free)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn every_buffer_is_handed_out_once_and_comes_back() {
        let pool = Pool::new(70, 4096).unwrap();
        let mut held: Vec<Buffer> = (0..70).map(|_| pool.take().unwrap()).collect();
        assert!(pool.take().is_none());
        for (value, buffer) in (0..).zip(&mut held) {
            buffer.whole_mut().fill(value);
            buffer.set_len(4096);
        }
        for (value, buffer) in (0..).zip(&held) {
            assert!(buffer.iter().all(|&byte| byte == value));
        }
        held.clear();
        held.extend((0..70).map_while(|_| pool.take()));
        assert_eq!(held.len(), 70);
    }

    #[test]
    fn threads_never_share_a_buffer() {
        let pool = Pool::new(3, 4096).unwrap();
        let workers: Vec<_> = (0..2_u8)
            .map(|mark| {
                let pool = Arc::clone(&pool);
                thread::spawn(move || {
                    for _ in 0..2_000 {
                        let Some(mut buffer) = pool.take() else {
                            continue;
                        };
                        buffer.whole_mut()[..16].fill(mark);
                        buffer.set_len(16);
                        assert!(buffer.iter().all(|&byte| byte == mark));
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().unwrap();
        }
    }
}
