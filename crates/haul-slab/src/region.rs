//! A raw range of memory that is reached by copying.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::copy;
use crate::mapping::Mapping;
use crate::piece::Piece;
use crate::shared::SharedMemory;
use crate::span::{Gather, Scatter};

/// Memory that somebody else may write. Clones name the same bytes; the last one gives them back.
///
/// All access is checked against its bounds and goes through copies. A copy that races with a
/// peer's write, or with another thread's, is no data race: it sees old and new bytes mixed. Wait
/// for the completion that reports the bytes.
#[derive(Clone)]
pub struct Region {
    start: NonNull<u8>,
    /// `start .. start + len` stays mapped as long as `hold` lives.
    len: usize,
    hold: Arc<Hold>,
}

/// What keeps a region's bytes mapped.
#[derive(Debug)]
pub(crate) enum Hold {
    Mapping(Mapping),
    Piece(#[expect(dead_code, reason = "held for its drop")] Piece),
    Shared(SharedMemory),
    /// The user of [`Region::from_raw`] answers for it.
    Foreign,
}

/// A range that does not lie inside its region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes from {offset} on are not inside the region of {region_len} bytes")]
pub struct OutOfBounds {
    /// Where the range starts, bytes from the region's start.
    pub offset: u64,
    /// How long it is, bytes.
    pub len: u64,
    /// How long the region is, bytes.
    pub region_len: u64,
}

// SAFETY: a region is a raw range; nothing in it is tied to a thread, and the hold is shared by an
// `Arc`.
unsafe impl Send for Region {}
// SAFETY: as above; copies of several threads are atomic accesses, and no method forms a reference
// to the bytes except to atomics.
unsafe impl Sync for Region {}

/// Bytes that [`Region::visit`] shows at a time: they stay in the first-level cache.
const WINDOW_BYTES: usize = 4 << 10;

impl Region {
    pub(crate) fn new(start: NonNull<u8>, len: usize, hold: Hold) -> Self {
        Self {
            start,
            len,
            hold: Arc::new(hold),
        }
    }

    /// A region with a mapping of its own, zeroed; whole pages behind `len` stay unused. Many small
    /// ones come better from an [`Arena`](crate::Arena).
    ///
    /// # Errors
    /// `InvalidInput` for zero or an impossible length; else that of `mmap(2)`.
    pub fn map(len: usize) -> io::Result<Self> {
        let mapping = Mapping::new(len)?;
        Ok(Self::new(mapping.start(), len, Hold::Mapping(mapping)))
    }

    /// Memory of the caller's, as `ibv_reg_mr` takes it.
    ///
    /// # Safety
    /// `start .. start + len` stays valid for reads and writes until the last clone, and the last
    /// thing made from it, is gone; and meanwhile no Rust reference to these bytes is used while
    /// they are posted, or while a peer has rights to them.
    #[must_use]
    pub unsafe fn from_raw(start: NonNull<u8>, len: usize) -> Self {
        Self::new(start, len, Hold::Foreign)
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// No bytes at all: possible for foreign memory and for cuts only.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of its first byte, as a number: what virtual-address based memory regions start
    /// at.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.start.as_ptr().addr() as u64
    }

    /// Its first byte, for providers that hand memory to a device. What is done through the pointer
    /// is `unsafe` and must form no reference; the bytes stay mapped as long as a clone of the
    /// region lives.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// All of the memory that another process may map.
    #[must_use]
    pub fn of_shared(memory: &SharedMemory) -> Self {
        Self::new(memory.start(), memory.len(), Hold::Shared(memory.clone()))
    }

    /// The memory that another process may map, if it lies in such, and where it starts there.
    #[must_use]
    pub fn shared(&self) -> Option<(&SharedMemory, usize)> {
        match &*self.hold {
            Hold::Shared(memory) => {
                let offset = self.as_ptr().addr() - memory.start().as_ptr().addr();
                Some((memory, offset))
            }
            Hold::Mapping(_) | Hold::Piece(_) | Hold::Foreign => None,
        }
    }

    /// A part of it, which keeps the whole mapped.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    pub fn cut(&self, offset: usize, len: usize) -> Result<Self, OutOfBounds> {
        Ok(Self {
            start: self.check(offset, len)?,
            len,
            hold: Arc::clone(&self.hold),
        })
    }

    /// Copies bytes out of it, from `offset` on.
    ///
    /// # Errors
    /// [`OutOfBounds`]; nothing is copied then.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), OutOfBounds> {
        let from = self.check(offset, to.len())?;
        // SAFETY: `check` has found `to.len()` mapped bytes at `from`; a reference to other memory
        // cannot overlap with them.
        unsafe { copy::load(from, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Copies bytes into it, from `offset` on.
    ///
    /// # Errors
    /// [`OutOfBounds`]; nothing is copied then.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), OutOfBounds> {
        let to = self.check(offset, from.len())?;
        // SAFETY: `check` has found `from.len()` mapped bytes at `to`; a reference to other memory
        // cannot overlap with them.
        unsafe { copy::store(from.as_ptr(), to, from.len()) };
        Ok(())
    }

    /// Sets `len` bytes from `offset` on.
    ///
    /// # Errors
    /// [`OutOfBounds`]; nothing is set then.
    pub fn fill(&self, offset: usize, len: usize, byte: u8) -> Result<(), OutOfBounds> {
        let to = self.check(offset, len)?;
        // SAFETY: `check` has found `len` mapped bytes at `to`.
        unsafe { copy::fill(to, len, byte) };
        Ok(())
    }

    /// Asks for `len` bytes from `offset` on to be in the cache soon, to be written or to be read;
    /// what is not inside does not count. For those who know where the next bytes of a stream go
    /// while they still have to do with these.
    pub fn prefetch(&self, offset: usize, len: usize, to_write: bool) {
        let end = offset.saturating_add(len).min(self.len);
        for at in (offset..end).step_by(CACHE_LINE_BYTES) {
            // SAFETY: `at` is below `len`, so the result is inside the range.
            let line = unsafe { self.start.add(at) };
            prefetch_line(line, to_write);
        }
    }

    /// Shows `len` bytes from `offset` on through a small window, piece by piece: for checksums.
    /// What is shown is a copy, so a peer's write cannot change it under the reader.
    ///
    /// # Errors
    /// [`OutOfBounds`]; nothing is shown then.
    pub fn visit(
        &self,
        offset: usize,
        len: usize,
        mut show: impl FnMut(&[u8]),
    ) -> Result<(), OutOfBounds> {
        self.check(offset, len)?;
        let mut window = [MaybeUninit::<u8>::uninit(); WINDOW_BYTES];
        let mut at = offset;
        while at < offset + len {
            let piece = WINDOW_BYTES.min(offset + len - at);
            let from = self.check(at, piece)?;
            // SAFETY: `check` has found `piece` mapped bytes at `from`, and the window holds as
            // many.
            unsafe { copy::load(from, window.as_mut_ptr().cast(), piece) };
            // SAFETY: the copy has filled the first `piece` bytes of the window.
            show(unsafe { std::slice::from_raw_parts(window.as_ptr().cast(), piece) });
            at += piece;
        }
        Ok(())
    }

    /// The 8 bytes at `offset` as an atomic, in the machine's byte order.
    ///
    /// # Errors
    /// [`OutOfBounds`]. An address that is not a multiple of 8 is the caller's to refuse first: it
    /// is `Break`.
    pub fn atomic(&self, offset: usize) -> Result<ControlFlow<(), &AtomicU64>, OutOfBounds> {
        let at = self.check(offset, size_of::<u64>())?.cast::<AtomicU64>();
        if !at.is_aligned() {
            return Ok(ControlFlow::Break(()));
        }
        // SAFETY: mapped, aligned, and borrowed for no longer than the region; atomics may be
        // written by others.
        Ok(ControlFlow::Continue(unsafe { at.as_ref() }))
    }

    /// The range as a source for system calls.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    pub fn gather(&self, offset: usize, len: usize) -> Result<Gather<'_>, OutOfBounds> {
        Ok(Gather::new(self.check(offset, len)?, len))
    }

    /// The range as a target for system calls.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    pub fn scatter(&self, offset: usize, len: usize) -> Result<Scatter<'_>, OutOfBounds> {
        Ok(Scatter::new(self.check(offset, len)?, len))
    }

    /// Gives the memory of a region with its own mapping back to the system until it is used again.
    /// Its content is lost. Other regions do not change.
    pub fn discard(&self) {
        if let Hold::Mapping(mapping) = &*self.hold {
            mapping.discard();
        }
    }

    fn check(&self, offset: usize, len: usize) -> Result<NonNull<u8>, OutOfBounds> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(OutOfBounds {
                offset: offset as u64,
                len: len as u64,
                region_len: self.len as u64,
            });
        }
        // SAFETY: `offset` is at most `len`, so the result is inside the range or just behind it.
        Ok(unsafe { self.start.add(offset) })
    }
}

const CACHE_LINE_BYTES: usize = 64;

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn prefetch_line(line: NonNull<u8>, to_write: bool) {
    use std::arch::x86_64::{_MM_HINT_ET0, _MM_HINT_T0, _mm_prefetch};
    let line = line.as_ptr().cast_const().cast();
    if to_write {
        // SAFETY: the instruction reads no memory that the program can see, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(line) };
    } else {
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line) };
    }
}

/// Elsewhere the processor finds out by itself.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn prefetch_line(_line: NonNull<u8>, _to_write: bool) {}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("start", &self.start)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn bytes_go_in_and_come_out() {
        let region = Region::map(10_000).unwrap();
        let bytes: Vec<u8> = (0..=255).cycle().take(9_000).collect();
        region.write(1_000, &bytes).unwrap();
        let mut seen = vec![0; 9_000];
        region.read(1_000, &mut seen).unwrap();
        assert_eq!(seen, bytes);
        let mut shown = Vec::new();
        region
            .visit(1_000, 9_000, |piece| shown.extend_from_slice(piece))
            .unwrap();
        assert_eq!(shown, bytes);
    }

    #[test]
    fn nothing_reaches_past_the_end() {
        let region = Region::map(100).unwrap();
        for (offset, len) in [
            (0, 101),
            (100, 1),
            (101, 0),
            (usize::MAX, 1),
            (1, usize::MAX),
        ] {
            assert!(region.gather(offset, len).is_err(), "{offset} {len}");
            assert!(region.scatter(offset, len).is_err(), "{offset} {len}");
            assert!(region.fill(offset, len, 1).is_err(), "{offset} {len}");
            assert!(region.cut(offset, len).is_err(), "{offset} {len}");
        }
        assert!(region.gather(100, 0).is_ok());
        assert!(region.write(99, &[1, 2]).is_err());
        assert!(region.read(99, &mut [1, 2]).is_err());
        assert!(region.visit(99, 2, |_| {}).is_err());
    }

    #[test]
    fn what_is_asked_for_ahead_may_lie_anywhere() {
        let region = Region::map(4096).unwrap();
        for (offset, len) in [
            (0, 4096),
            (4000, 1_000_000),
            (4096, 1),
            (usize::MAX, usize::MAX),
        ] {
            region.prefetch(offset, len, true);
            region.prefetch(offset, len, false);
        }
    }

    #[test]
    fn a_cut_keeps_the_whole_mapped() {
        let region = Region::map(4096).unwrap();
        region.fill(0, 4096, 7).unwrap();
        let cut = region.cut(4000, 96).unwrap();
        drop(region);
        let mut seen = [0; 96];
        cut.read(0, &mut seen).unwrap();
        assert_eq!(seen, [7; 96]);
    }

    #[test]
    fn atomics_are_aligned_and_inside() {
        let region = Region::map(64).unwrap();
        let ControlFlow::Continue(word) = region.atomic(8).unwrap() else {
            panic!("8 is a multiple of 8");
        };
        word.fetch_add(5, Ordering::Relaxed);
        let mut seen = [0; 8];
        region.read(8, &mut seen).unwrap();
        assert_eq!(u64::from_ne_bytes(seen), 5);
        assert!(region.atomic(4).unwrap().is_break());
        assert!(region.atomic(60).is_err());
    }

    #[test]
    fn memory_of_the_callers_can_be_a_region() {
        let mut bytes = [0_u8; 32];
        let start = NonNull::new(bytes.as_mut_ptr()).unwrap();
        // SAFETY: the array outlives the region and is looked at only after the region is gone.
        let region = unsafe { Region::from_raw(start, 32) };
        region.fill(3, 2, 9).unwrap();
        drop(region);
        assert_eq!(bytes[2..6], [0, 9, 9, 0]);
    }

    #[cfg(not(miri))]
    #[test]
    fn both_mappings_are_the_same_bytes() {
        let near = SharedMemory::create(10_000).unwrap();
        let fd = near.fd().unwrap().try_clone_to_owned().unwrap();
        let far = SharedMemory::adopt(&fd, 1 << 20).unwrap();
        assert!(far.fd().is_none());
        assert_eq!((near.len(), far.len()), (12_288, 12_288));
        near.words()[9].store(7, Ordering::Release);
        let mut bytes = [0; 8];
        Region::of_shared(&far).read(72, &mut bytes).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), 7);
        let cut = Region::of_shared(&far).cut(72, 8).unwrap();
        let (memory, offset) = cut.shared().unwrap();
        assert_eq!((memory.len(), offset), (12_288, 72));
        assert!(Region::map(1).unwrap().shared().is_none());
        Region::of_shared(&near).write(5_000, b"part").unwrap();
        let (part, skip) = SharedMemory::adopt_part(&fd, 5_000, 7_000).unwrap();
        let mut bytes = [0; 4];
        Region::of_shared(&part).read(skip, &mut bytes).unwrap();
        assert_eq!((part.len(), skip, &bytes), (7_904, 904, b"part"));
        for (offset, len) in [(5_000, 7_289), (u64::MAX, 1), (0, usize::MAX), (12_289, 0)] {
            assert!(SharedMemory::adopt_part(&fd, offset, len).is_err());
        }
    }
}
