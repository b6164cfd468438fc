//! A byte ring whose every range is contiguous: one memory object mapped twice in a row.
//!
//! Data flow: one thread (the [`Producer`]) fills free space and commits it; another (the
//! [`Consumer`]) reads any part of what is committed, as often as it likes and several parts at
//! once, and releases it from the front when it is done with it (a sender: when it is
//! acknowledged). Positions are offsets of the stream from its start, and never wrap.
//!
//! Waiting is outside: a side that finds the ring full or empty sleeps on its own poller, and the
//! other side wakes it. The ring cannot run under Miri or loom, as it lives in mapped memory; its
//! index arithmetic is checked against an oracle instead, and its synchronisation between two
//! threads by a test.

use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// Creates a ring that holds at least `capacity_bytes` (rounded up to whole pages) and returns its
/// two ends.
///
/// # Errors
/// Of `memfd_create(2)` and `mmap(2)`: out of memory, address space or file descriptors.
/// `InvalidInput` when twice the capacity overflows.
pub fn mirror_ring(capacity_bytes: usize) -> io::Result<(Producer, Consumer)> {
    let capacity = capacity_bytes
        .max(1)
        .checked_next_multiple_of(rustix::param::page_size())
        .ok_or(io::ErrorKind::InvalidInput)?;
    let object = memfd_create(c"ring", MemfdFlags::CLOEXEC)?;
    ftruncate(&object, capacity as u64)?;
    mirror_ring_at(object.as_fd(), 0, capacity)
}

/// Bytes of a page, of which [`mirror_ring_at`] takes whole ones.
#[must_use]
pub fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// Creates a ring in the `capacity_bytes` of a memory object at `offset`, whole pages that must
/// stay there.
///
/// Its cursors are this process's. Where another process maps the same bytes, the two tell each
/// other how far they are, and each moves both ends of its own ring. A process that breaks its word
/// changes bytes under the other, which must decide nothing by them.
///
/// # Errors
/// `InvalidInput` for what is not whole pages or overflows; else that of `mmap(2)`.
pub fn mirror_ring_at(
    object: BorrowedFd<'_>,
    offset: u64,
    capacity_bytes: usize,
) -> io::Result<(Producer, Consumer)> {
    let shared = Arc::new(Shared {
        memory: Mirror::new(object, offset, capacity_bytes)?,
        committed: Line(AtomicU64::new(0)),
        released: Line(AtomicU64::new(0)),
        ending: AtomicU8::new(OPEN),
        consumer_gone: AtomicBool::new(false),
    });
    let producer = Producer {
        shared: Arc::clone(&shared),
        committed: 0,
        released: 0,
    };
    Ok((
        producer,
        Consumer {
            shared,
            released: 0,
        },
    ))
}

/// The end that fills the ring. Only it accesses the free space, `committed .. released +
/// capacity`.
pub struct Producer {
    shared: Arc<Shared>,
    /// Equal to the shared cursor, of which this is the only writer.
    committed: u64,
    /// A past value of the shared cursor: at most it.
    released: u64,
}

impl Producer {
    /// Free space, up to `max` bytes of it; empty when the ring is full.
    pub fn writable(&mut self, max: usize) -> &mut [u8] {
        let capacity = self.shared.memory.capacity;
        let mut free = capacity - used(self.committed, self.released);
        if free < max {
            // Acquire: the consumer's reads of what it released happen before our writes over it.
            self.released = self.shared.released.0.load(Ordering::Acquire);
            free = capacity - used(self.committed, self.released);
        }
        let start = self.shared.memory.at(self.committed).as_ptr();
        // SAFETY: at most `capacity` bytes from a place in the first mapping stay inside the two;
        // they are initialised (new memory is zero); and they are free space, which no other
        // reference covers until `commit`, for which `self` must be borrowed anew.
        unsafe { slice::from_raw_parts_mut(start, free.min(max)) }
    }

    /// Commits the first `len` bytes of the free space to the consumer.
    ///
    /// # Panics
    /// When `len` exceeds the result of the last [`Producer::writable`], which is a fault of the
    /// caller.
    pub fn commit(&mut self, len: usize) {
        let free = self.shared.memory.capacity - used(self.committed, self.released);
        assert!(len <= free, "committed {len} bytes of {free} free ones");
        self.committed += len as u64;
        // Release: our writes happen before the consumer's reads.
        self.shared
            .committed
            .0
            .store(self.committed, Ordering::Release);
    }

    /// Returns the end offset of the committed bytes.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// Offset of the first byte that the consumer still holds.
    pub fn released(&mut self) -> u64 {
        // Acquire: as in `writable`.
        self.released = self.shared.released.0.load(Ordering::Acquire);
        self.released
    }

    /// Bytes that can be held.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.shared.memory.capacity
    }

    /// The consumer is gone.
    #[must_use]
    pub fn is_consumer_gone(&self) -> bool {
        self.shared.consumer_gone.load(Ordering::Acquire)
    }

    /// The stream ends at [`Producer::committed`]. Without this, the consumer sees a producer that
    /// was lost.
    pub fn finish(self) {
        // Release: the last commit happens before the consumer sees the end.
        self.shared.ending.store(FINISHED, Ordering::Release);
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        let ending = &self.shared.ending;
        // A declared end stays; a later failure changes nothing.
        let _ = ending.compare_exchange(OPEN, LOST, Ordering::Release, Ordering::Relaxed);
    }
}

/// The end that reads the ring. Only it accesses the unreleased bytes, `released .. committed`.
pub struct Consumer {
    shared: Arc<Shared>,
    /// Equal to the shared cursor, of which this is the only writer.
    released: u64,
}

impl Consumer {
    /// Returns the end offset of the readable bytes.
    #[must_use]
    pub fn committed(&self) -> u64 {
        // Acquire: the producer's writes happen before our reads.
        self.shared.committed.0.load(Ordering::Acquire)
    }

    /// Returns the stream's end offset at present, and whether more can follow.
    #[must_use]
    pub fn extent(&self) -> (u64, Ending) {
        // Reads the ending first: bytes committed before the end was declared must not be missed.
        let ending = match self.shared.ending.load(Ordering::Acquire) {
            OPEN => Ending::Open,
            FINISHED => Ending::Finished,
            _ => Ending::Lost,
        };
        (self.committed(), ending)
    }

    /// Offset of the first byte that is still held.
    #[must_use]
    pub fn released(&self) -> u64 {
        self.released
    }

    /// Bytes that can be held.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.shared.memory.capacity
    }

    /// Returns the `len` bytes of the stream at `offset`; `None` if some are released or not yet
    /// committed.
    #[must_use]
    pub fn slice(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let end = offset.checked_add(len as u64)?;
        if offset < self.released || end > self.committed() {
            return None;
        }
        let start = self.shared.memory.at(offset).as_ptr();
        // SAFETY: the range is held, so it is at most `capacity` bytes from a place in the first
        // mapping and stays inside the two, initialised; the producer does not write to it before
        // `release`, for which `self` must be borrowed anew.
        Some(unsafe { slice::from_raw_parts(start, len) })
    }

    /// Releases everything before `offset` to the producer. An offset that is already released has
    /// no effect.
    ///
    /// # Panics
    /// When `offset` is beyond what was committed, which is a fault of the caller.
    pub fn release(&mut self, offset: u64) {
        let committed = self.committed();
        assert!(
            offset <= committed,
            "released up to {offset}, but only {committed} bytes came"
        );
        if offset > self.released {
            self.released = offset;
            // Release: our reads happen before the producer's writes over them.
            self.shared.released.0.store(offset, Ordering::Release);
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.shared.consumer_gone.store(true, Ordering::Release);
    }
}

/// Whether more can come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// More may come.
    Open,
    /// Nothing more; the stream is complete.
    Finished,
    /// The producer is gone without having declared the stream complete.
    Lost,
}

/// 0 <= released <= committed <= released + capacity.
struct Shared {
    memory: Mirror,
    /// Written by the producer only.
    committed: Line<AtomicU64>,
    /// Written by the consumer only.
    released: Line<AtomicU64>,
    ending: AtomicU8,
    consumer_gone: AtomicBool,
}

const OPEN: u8 = 0;
const FINISHED: u8 = 1;
const LOST: u8 = 2;

/// A cache line of its own (two, as processors fetch them in pairs), so that the two ends do not
/// disturb each other.
#[repr(align(128))]
struct Line<T>(T);

/// Bytes between two cursors, which are never more than a capacity apart.
fn used(committed: u64, released: u64) -> usize {
    usize::try_from(committed - released).unwrap_or(usize::MAX)
}

/// The same `capacity` bytes of memory, seen at `base` and again at `base + capacity`.
struct Mirror {
    base: NonNull<u8>,
    capacity: usize,
}

// SAFETY: the mappings are not bound to a thread; the two cursors determine which side may touch
// which range.
unsafe impl Send for Mirror {}
// SAFETY: as above.
unsafe impl Sync for Mirror {}

impl Mirror {
    fn new(object: BorrowedFd<'_>, offset: u64, capacity: usize) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let whole = capacity > 0 && capacity.is_multiple_of(page);
        let twice = capacity
            .checked_mul(2)
            .filter(|_| whole && offset.is_multiple_of(page as u64))
            .ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing that exists.
        let base = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                twice,
                ProtFlags::empty(),
                MapFlags::PRIVATE,
            )
        }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // From here on dropping it unmaps the reservation.
        let mirror = Self { base, capacity };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        for half in [0, capacity] {
            // SAFETY: `half` is 0 or `capacity`, inside the reservation of twice the capacity.
            let place = unsafe { base.add(half) };
            // SAFETY: it replaces `capacity` bytes of our own reservation, to which no reference
            // exists yet.
            unsafe {
                mmap(
                    place.as_ptr().cast(),
                    capacity,
                    access,
                    flags,
                    object,
                    offset,
                )
            }?;
        }
        Ok(mirror)
    }

    /// Returns the address of the stream's byte at `offset`, in the first mapping.
    fn at(&self, offset: u64) -> NonNull<u8> {
        let place = usize::try_from(offset % self.capacity as u64).unwrap_or(0);
        // SAFETY: `place` is below `capacity`, inside the first mapping.
        unsafe { self.base.add(place) }
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        // SAFETY: the reservation was made with this size, and both ends of the ring, whose slices
        // borrow them, are gone.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), 2 * self.capacity) };
        debug_assert!(unmapped.is_ok());
    }
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let capacity = self.capacity();
        f.debug_struct("Producer")
            .field("committed", &self.committed)
            .field("capacity", &capacity)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("released", &self.released)
            .field("committed", &self.committed())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
