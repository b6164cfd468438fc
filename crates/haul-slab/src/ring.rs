//! Slots that stages hand on in order, each stage on a thread of its own, without lock or copy.
//!
//! ```text
//!            retire        forward          fill
//!  position    3              5              9
//!   … ┌───┬───┬───┬───┬───┬───┬───┬───┬───┬───┐ …
//!     │   │ r │ f │ f │ f │ f │   free for fill
//!   … └───┴───┴───┴───┴───┴───┴───┴───┴───┴───┘ …
//! ```
//! Each [`Stage`] owns one cursor and may move it up to its upstream's: `fill <= retire + slots`,
//! `forward <= fill`, `retire <= forward`, for any number of stages. What a slot's state is follows
//! from which stage holds it; there is no status in the slot. Work on held slots may finish in any
//! order ([`Stage::finish`]); cursors move in order all the same.
//!
//! It never sleeps: whoever finds nothing to do waits outside, by whatever means it has. So it can
//! be model-checked.

use crate::region::{OutOfBounds, Region};
use crate::sync::{Arc, AtomicU64, Ordering, Padded};

/// Makes the stages of a ring over `memory`, cut into slots of `slot_len` bytes (a whole number of
/// them, a power of two; what is left over stays unused). The first stage finds all slots free.
///
/// # Errors
/// [`Shape`] says what is wrong with the numbers.
pub fn stages(memory: &Region, slot_len: usize, stages: usize) -> Result<Vec<Stage>, Shape> {
    let fitting = memory.len().checked_div(slot_len).unwrap_or(0);
    if !(2..=STAGES_MAX).contains(&stages) {
        return Err(Shape::Stages);
    }
    if fitting == 0 {
        return Err(Shape::TooSmall);
    }
    let slots = 1_u64 << fitting.ilog2();
    let cursors = (0..stages).map(|_| Padded(AtomicU64::new(0))).collect();
    let shared = Arc::new(Shared { cursors });
    let stage = |index: usize| {
        let upstream = index.checked_sub(1).unwrap_or(stages - 1);
        let lead = if index == 0 { slots } else { 0 };
        Stage {
            shared: Arc::clone(&shared),
            memory: memory.clone(),
            slot_len,
            slots,
            index,
            upstream,
            lead,
            cursor: 0,
            limit: lead,
            done: vec![0; usize::try_from(slots.div_ceil(64)).unwrap_or(usize::MAX)].into(),
        }
    };
    Ok((0..stages).map(stage).collect())
}

/// Nobody has needed more.
const STAGES_MAX: usize = 16;

/// Why a ring cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Shape {
    /// One stage would hand to itself; more than 16 are a mistake.
    #[error("a ring has 2 to 16 stages")]
    Stages,
    /// Not one slot fits, or slots have no length.
    #[error("the memory does not hold a slot")]
    TooSmall,
}

#[derive(Debug)]
struct Shared {
    /// One for each stage; each is stored to by its stage only.
    cursors: Box<[Padded<AtomicU64>]>,
}

/// The end of a ring that works on slots and hands them on. It cannot be cloned: it is the only
/// writer of its cursor.
#[derive(Debug)]
pub struct Stage {
    shared: Arc<Shared>,
    memory: Region,
    slot_len: usize,
    /// A power of two.
    slots: u64,
    index: usize,
    upstream: usize,
    /// How far this stage may be ahead of its upstream: the whole ring for the first, else nothing.
    lead: u64,
    /// This stage's own cursor; the shared one is stored from it.
    cursor: u64,
    /// cursor <= limit <= upstream's cursor + lead: how far it may go, as last seen.
    limit: u64,
    /// Held slots that are finished; bit `position % slots`.
    done: Box<[u64]>,
}

impl Stage {
    /// How many slots this stage holds, from [`Stage::position`] on; looks at the upstream only if
    /// they are fewer than `want`.
    ///
    /// Acquire on the upstream's cursor: what upstream did to a slot before it handed it on is seen
    /// here.
    pub fn acquire(&mut self, want: u64) -> u64 {
        if self.limit - self.cursor < want {
            let upstream = self.shared.cursors[self.upstream].0.load(Ordering::Acquire);
            self.limit = upstream + self.lead;
        }
        self.limit - self.cursor
    }

    /// The first slot this stage holds, or the next one it will hold. Positions count slots since
    /// the start and never wrap in practice.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.cursor
    }

    /// Slots in the ring.
    #[must_use]
    pub fn slots(&self) -> u64 {
        self.slots
    }

    /// Bytes of a slot.
    #[must_use]
    pub fn slot_len(&self) -> usize {
        self.slot_len
    }

    /// Where a held slot starts in the ring's memory; none for a slot that this stage does not
    /// hold.
    #[must_use]
    pub fn offset(&self, position: u64) -> Option<usize> {
        let held = (self.cursor..self.limit).contains(&position);
        let index = usize::try_from(position % self.slots).ok()?;
        held.then(|| index * self.slot_len)
    }

    /// The memory of a held slot; none for a slot that this stage does not hold. It must not be
    /// used once the slot has been handed on: nothing breaks, but the bytes are another stage's.
    #[must_use]
    pub fn slot(&self, position: u64) -> Option<Result<Region, OutOfBounds>> {
        let offset = self.offset(position)?;
        Some(self.memory.cut(offset, self.slot_len))
    }

    /// Hands on the first `count` held slots; all of them where it holds fewer. How many that were.
    ///
    /// Release on the own cursor: downstream sees what was done to the slots.
    pub fn release(&mut self, count: u64) -> u64 {
        let count = count.min(self.limit - self.cursor);
        for position in self.cursor..self.cursor + count {
            self.mark(position, false);
        }
        self.advance(count);
        count
    }

    /// Marks the work on a held slot as done, and passes on all slots up to the first one that is
    /// not done. Returns how many; a slot that this stage does not hold changes nothing.
    pub fn finish(&mut self, position: u64) -> u64 {
        if self.offset(position).is_none() {
            return 0;
        }
        self.mark(position, true);
        let mut count = 0;
        while self.cursor + count < self.limit && self.is_done(self.cursor + count) {
            self.mark(self.cursor + count, false);
            count += 1;
        }
        self.advance(count);
        count
    }

    fn advance(&mut self, count: u64) {
        if count > 0 {
            self.cursor += count;
            let own = &self.shared.cursors[self.index].0;
            own.store(self.cursor, Ordering::Release);
        }
    }

    fn bit(&self, position: u64) -> (usize, u64) {
        let index = position % self.slots;
        let word = usize::try_from(index / 64).unwrap_or(usize::MAX);
        (word, 1 << (index % 64))
    }

    fn is_done(&self, position: u64) -> bool {
        let (word, bit) = self.bit(position);
        self.done[word] & bit != 0
    }

    fn mark(&mut self, position: u64, done: bool) {
        let (word, bit) = self.bit(position);
        if done {
            self.done[word] |= bit;
        } else {
            self.done[word] &= !bit;
        }
    }
}

#[cfg(test)]
mod tests;
