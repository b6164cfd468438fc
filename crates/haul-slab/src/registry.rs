//! Registered regions by their names: looked up for every operation, taken away at once.
//!
//! A lookup counts itself into its slot and holds a [`Guard`] while it uses the memory. Taking a
//! name away clears a bit, so that no further lookup succeeds, and then waits until those that did
//! are gone: a few microseconds, for nobody sleeps with a guard in hand. After that no one places
//! into the region any more (RFC 5042 §6.4.1 and the "immediate" of IBTA's invalidation).

use std::any::Any;
use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::access::AccessFlags;
use crate::region::Region;
use crate::stag::{Permutation, Stag};
use crate::sync::{Arc, AtomicU64, Ordering, PlainArc, UnsafeCell, yield_now};

/// A registered region and who may use it.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The bytes.
    pub region: Region,
    /// The address of the first byte. `base + region.len()` does not pass 2^64.
    pub base: u64,
    /// What may be done.
    pub access: AccessFlags,
    /// Its protection domain.
    pub pd: u32,
    /// The owner's own, for what it wants to know at a lookup beside these.
    pub note: Option<PlainArc<dyn Any + Send + Sync>>,
}

impl Entry {
    /// Where `len` bytes from `addr` on start in the region, if they are inside.
    #[must_use]
    pub fn offset(&self, addr: u64, len: u64) -> Option<usize> {
        let offset = addr.checked_sub(self.base)?;
        let end = offset.checked_add(len)?;
        (end <= self.region.len() as u64)
            .then(|| usize::try_from(offset).ok())
            .flatten()
    }
}

/// All registered regions of an opened device. Clones are the same.
#[derive(Debug, Clone)]
pub struct Registry(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    permutation: Permutation,
    chunks: Box<[OnceLock<Box<[Slot]>>]>,
    free: Mutex<Free>,
}

#[derive(Debug)]
struct Free {
    /// Slots that were used, oldest first: a name is not used again soon.
    used: VecDeque<u32>,
    /// Slots from here on were never used.
    fresh: u32,
}

/// One name's place.
#[derive(Debug)]
struct Slot {
    /// `VALID`, the key, and how many lookups are counted in.
    state: AtomicU64,
    /// Written only while not valid and, since it last was, nobody counted in; read only by who is
    /// counted in while valid.
    entry: UnsafeCell<Option<Entry>>,
}

// SAFETY: the entry is `Send` and `Sync`, and `state` orders all access to it.
unsafe impl Sync for Slot {}
// SAFETY: as above.
unsafe impl Send for Slot {}

const VALID: u64 = 1 << 63;
const KEY_SHIFT: u32 = 32;
const KEY_MASK: u64 = 0xff << KEY_SHIFT;
const COUNT_MASK: u64 = (1 << KEY_SHIFT) - 1;

const CHUNK: u32 = if cfg!(loom) { 1 } else { 256 };
/// Regions that can be registered at once.
pub const REGIONS_MAX: u32 = CHUNK * 256;

/// A region's registration; dropping it ends it and frees the name.
#[derive(Debug)]
pub struct Registration {
    registry: Registry,
    stag: Stag,
}

impl Registry {
    /// An empty one. `seed` must be random: names are hard to guess because of it.
    #[must_use]
    pub fn new(seed: [u64; 2]) -> Self {
        let chunks = (0..REGIONS_MAX / CHUNK).map(|_| OnceLock::new()).collect();
        let free = Mutex::new(Free {
            used: VecDeque::new(),
            fresh: 0,
        });
        Self(Arc::new(Shared {
            permutation: Permutation::new(seed),
            chunks,
            free,
        }))
    }

    /// Gives a region a name; none where [`REGIONS_MAX`] have one, or where its addresses would
    /// wrap.
    #[must_use]
    pub fn register(&self, entry: Entry) -> Option<Registration> {
        entry.base.checked_add(entry.region.len() as u64)?;
        let number = self.0.take_slot()?;
        let slot = self.0.slot(number)?;
        // SAFETY: the slot came off the free list: it is not valid, so no lookup reads it, and this
        // thread alone has it.
        slot.entry.with_mut(|place| unsafe { *place = Some(entry) });
        // Relaxed: only this thread changes the key. Lookups that come too early may be counting
        // themselves in and out.
        let old = slot.state.load(Ordering::Relaxed);
        let key = (old & KEY_MASK) >> KEY_SHIFT;
        // Release: whoever finds it valid finds the entry.
        slot.state.fetch_or(VALID, Ordering::Release);
        let index = self.0.permutation.index(number);
        Some(Registration {
            registry: self.clone(),
            stag: Stag::new(index, u8::try_from(key).unwrap_or(0)),
        })
    }

    /// The region of this name, for as long as the guard is held: a moment. Do not take a name away
    /// meanwhile.
    #[must_use]
    pub fn lookup(&self, stag: Stag) -> Option<Guard<'_>> {
        let number = self.0.permutation.slot(stag.index());
        let slot = self.0.slot_if_there(number)?;
        // Acquire: what `register` wrote is seen. AcqRel, for the count must stand before the entry
        // is read.
        let state = slot.state.fetch_add(1, Ordering::AcqRel);
        let guard = Guard { slot };
        let wanted = VALID | u64::from(stag.key()) << KEY_SHIFT;
        (state & (VALID | KEY_MASK) == wanted).then_some(guard)
    }

    /// Takes the name away for good; when this returns nobody uses the region through it. False
    /// where it was not valid.
    pub fn invalidate(&self, stag: Stag) -> bool {
        let number = self.0.permutation.slot(stag.index());
        let Some(slot) = self.0.slot_if_there(number) else {
            return false;
        };
        let wanted = VALID | u64::from(stag.key()) << KEY_SHIFT;
        let mut state = slot.state.load(Ordering::Relaxed);
        loop {
            if state & (VALID | KEY_MASK) != wanted {
                return false;
            }
            // AcqRel: pairs with lookups on both sides.
            let cleared = slot.state.compare_exchange_weak(
                state,
                state & !VALID,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            match cleared {
                Ok(_) => break,
                Err(now) => state = now,
            }
        }
        slot.wait_until_unused();
        // SAFETY: not valid any more, and everybody who had counted in before is gone; later ones
        // do not look.
        slot.entry.with_mut(|place| unsafe { *place = None });
        true
    }
}

impl Slot {
    fn new(key: u8) -> Self {
        Self {
            state: AtomicU64::new(u64::from(key) << KEY_SHIFT),
            entry: UnsafeCell::new(None),
        }
    }

    fn wait_until_unused(&self) {
        let mut turns = 0_u32;
        // Acquire: what the last user did to the memory has happened.
        while self.state.load(Ordering::Acquire) & COUNT_MASK != 0 {
            turns += 1;
            if turns > 100 || cfg!(loom) {
                yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

impl Shared {
    fn take_slot(&self) -> Option<u32> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        // Reuse only when many others have been used since: there is room for that.
        if free.fresh < REGIONS_MAX && free.used.len() < (REGIONS_MAX / 2) as usize {
            free.fresh += 1;
            return Some(free.fresh - 1);
        }
        free.used.pop_front()
    }

    /// Makes the chunk where it is missing.
    fn slot(&self, number: u32) -> Option<&Slot> {
        let chunk = self.chunks.get((number / CHUNK) as usize)?;
        let slots = chunk.get_or_init(|| {
            let first = number - number % CHUNK;
            let key = |slot: u32| self.permutation.index(slot).to_le_bytes()[1];
            (first..first + CHUNK)
                .map(|slot| Slot::new(key(slot)))
                .collect()
        });
        slots.get((number % CHUNK) as usize)
    }

    fn slot_if_there(&self, number: u32) -> Option<&Slot> {
        let slots = self.chunks.get((number / CHUNK) as usize)?.get()?;
        slots.get((number % CHUNK) as usize)
    }
}

impl Registration {
    /// The name.
    #[must_use]
    pub fn stag(&self) -> Stag {
        self.stag
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.registry.invalidate(self.stag);
        let shared = &self.registry.0;
        let number = shared.permutation.slot(self.stag.index());
        if let Some(slot) = shared.slot_if_there(number) {
            // Another key for the next use; the count may be moving, so only the key's bits are
            // touched.
            let key = self.stag.key();
            let change = u64::from(key ^ key.wrapping_add(1)) << KEY_SHIFT;
            slot.state.fetch_xor(change, Ordering::Relaxed);
            let mut free = shared.free.lock().unwrap_or_else(PoisonError::into_inner);
            free.used.push_back(number);
        }
    }
}

/// The use of a registered region. Whoever takes its name away waits for the guard's end.
#[derive(Debug)]
pub struct Guard<'a> {
    slot: &'a Slot,
}

impl Deref for Guard<'_> {
    type Target = Entry;

    fn deref(&self) -> &Entry {
        // SAFETY: `lookup` gives a guard out only after it has counted itself into a valid slot,
        // whose entry is not changed before the count is back.
        let entry = self.slot.entry.with(|place| unsafe { &*place });
        entry
            .as_ref()
            .unwrap_or_else(|| unreachable!("a valid slot has an entry"))
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // Release: what was done to the memory has happened for whoever waits.
        self.slot.state.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
