//! Where a consumer puts streams: extents of an arena, powers of two, found by halving (a buddy allocator).

use std::collections::BTreeSet;

/// The arena's free space. Offsets and lengths are octets; the memory itself is the engine's.
#[derive(Debug)]
pub(crate) struct Arena {
    least: u64,
    /// Free extents by size: `least << index`. Sorted, so that the lower half of the arena is preferred.
    free: Vec<BTreeSet<u64>>,
    free_bytes: u64,
    bytes: u64,
}

impl Arena {
    /// An arena of `bytes`, in extents of at least `least`: both powers of two, `least <= bytes`.
    pub(crate) fn new(bytes: u64, least: u64) -> Self {
        let orders = (bytes / least).ilog2() as usize + 1;
        let mut free = vec![BTreeSet::new(); orders];
        free[orders - 1].insert(0);
        Self {
            least,
            free,
            free_bytes: bytes,
            bytes,
        }
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) const fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    pub(crate) const fn least(&self) -> u64 {
        self.least
    }

    /// An extent of at most `want` octets, the largest that there is; `None` if there is not even the least.
    pub(crate) fn take(&mut self, want: u64) -> Option<(u64, u64)> {
        let want = (want.max(self.least) / self.least).ilog2() as usize;
        let want = want.min(self.free.len() - 1);
        let larger = (want..self.free.len()).find(|order| !self.free[*order].is_empty());
        let found =
            larger.or_else(|| (0..want).rev().find(|order| !self.free[*order].is_empty()))?;
        let at = self.free[found].pop_first()?;
        for order in (want..found).rev() {
            let half = at + self.size(order);
            self.free[order].insert(half);
        }
        let len = self.size(found.min(want));
        self.free_bytes -= len;
        Some((at, len))
    }

    /// Gives back what `take` gave.
    pub(crate) fn give(&mut self, mut at: u64, len: u64) {
        self.free_bytes += len;
        let mut order = (len / self.least).ilog2() as usize;
        while order + 1 < self.free.len() {
            let size = self.size(order);
            if !self.free[order].remove(&(at ^ size)) {
                break;
            }
            at &= !size;
            order += 1;
        }
        self.free[order].insert(at);
    }

    const fn size(&self, order: usize) -> u64 {
        self.least << order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_never_overlap_and_all_come_together_again() {
        let mut arena = Arena::new(1 << 16, 1 << 10);
        let (mut taken, mut state) = (Vec::<(u64, u64)>::new(), 7_u64);
        for _ in 0..20_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let dice = state >> 33;
            if dice.is_multiple_of(2) {
                let Some((at, len)) = arena.take(1 << (dice / 2 % 18)) else {
                    assert_eq!(arena.free_bytes(), 0);
                    continue;
                };
                assert!(at.is_multiple_of(len) && at + len <= 1 << 16);
                assert!(taken.iter().all(|(a, l)| at + len <= *a || a + l <= at));
                taken.push((at, len));
            } else if !taken.is_empty() {
                let index = usize::try_from(dice).unwrap() % taken.len();
                let (at, len) = taken.swap_remove(index);
                arena.give(at, len);
            }
            let used: u64 = taken.iter().map(|(_, len)| len).sum();
            assert_eq!(arena.free_bytes() + used, 1 << 16);
        }
        taken.into_iter().for_each(|(at, len)| arena.give(at, len));
        assert_eq!(arena.take(1 << 16), Some((0, 1 << 16)));
    }
}
