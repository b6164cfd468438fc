//! Where a consumer puts streams: extents of an arena, powers of two, found by halving (a buddy
//! allocator).

use std::collections::BTreeSet;

/// The arena's free space. Offsets and lengths are bytes; the memory itself is the engine's.
#[derive(Debug)]
pub(crate) struct Arena {
    least: u64,
    /// Free extents by size: `least << index`. Sorted, so that the lower half of the arena is
    /// preferred.
    free: Vec<BTreeSet<u64>>,
    free_bytes: u64,
    bytes: u64,
    /// Most bytes that may be taken of all but the firsts.
    most: u64,
    firsts: Firsts,
}

/// The first extent of each connection: small ones side by side after all others, so that
/// connections that have moved little share pages.
#[derive(Debug)]
struct Firsts {
    /// Where they begin; they go on to the end of the arena.
    from: u64,
    len: u64,
    /// From here on none has been taken yet.
    fresh: u64,
    /// Those that were given back.
    given: BTreeSet<u64>,
}

impl Arena {
    /// An arena of `bytes`, in extents of at least `least`: both powers of two, `least <= bytes`.
    /// For each of `conns` connections there is a quarter of a least one beside, as far as that is
    /// no more than a quarter of it all.
    pub(crate) fn new(bytes: u64, least: u64, conns: usize) -> Self {
        let len = least / 4;
        let apart = len.saturating_mul((conns as u64).next_power_of_two());
        let apart = apart.max(least).min(bytes / 4);
        let apart = if len > 0 && apart >= least { apart } else { 0 };
        let from = bytes - apart;
        let mut free = vec![BTreeSet::new(); (bytes / least).ilog2() as usize + 1];
        let mut at = 0;
        while at < from {
            // Halves of the rest, down to the area of first extents.
            let size = if apart == 0 { bytes } else { (bytes - at) / 2 };
            free[(size / least).ilog2() as usize].insert(at);
            at += size;
        }
        Self {
            least,
            free,
            free_bytes: from,
            bytes,
            most: from,
            firsts: Firsts {
                from,
                len,
                fresh: from,
                given: BTreeSet::new(),
            },
        }
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Limits the memory that may be taken, from now on. Memory in use is not affected. Returns
    /// whether more may be taken than before.
    pub(crate) fn set_most(&mut self, bytes: u64) -> bool {
        let before = std::mem::replace(&mut self.most, bytes.clamp(self.least, self.firsts.from));
        self.most > before
    }

    /// Free bytes, whether or not they may be taken.
    pub(crate) const fn all_free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// Returns the permitted memory without first extents.
    pub(crate) fn shared_bytes(&self) -> u64 {
        self.firsts.from.min(self.most)
    }

    /// Free bytes that may be taken.
    pub(crate) fn free_bytes(&self) -> u64 {
        let taken = self.firsts.from - self.free_bytes;
        self.free_bytes.min(self.most.saturating_sub(taken))
    }

    pub(crate) const fn least(&self) -> u64 {
        self.least
    }

    /// Bytes that are taken.
    pub(crate) fn used_bytes(&self) -> u64 {
        let Firsts {
            from,
            len,
            fresh,
            ref given,
        } = self.firsts;
        from - self.free_bytes + (fresh - from) - len * given.len() as u64
    }

    /// How long a connection's first extent is.
    pub(crate) const fn first_bytes(&self) -> u64 {
        self.firsts.len
    }

    /// Takes the first extent of a connection; `None` if none is left (their area is at most a
    /// quarter of the arena).
    pub(crate) fn take_first(&mut self) -> Option<(u64, u64)> {
        let firsts = &mut self.firsts;
        let at = match firsts.given.pop_first() {
            Some(at) => at,
            None if firsts.fresh < self.bytes => {
                firsts.fresh += firsts.len;
                firsts.fresh - firsts.len
            }
            None => return None,
        };
        Some((at, firsts.len))
    }

    /// An extent of at most `want` bytes, the largest available; `None` if not even the smallest is
    /// free.
    pub(crate) fn take(&mut self, want: u64) -> Option<(u64, u64)> {
        let free = self.free_bytes();
        if free < self.least {
            return None;
        }
        let want = want.min(free);
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

    /// Returns an extent from `take` or `take_first`.
    pub(crate) fn give(&mut self, mut at: u64, len: u64) {
        if at >= self.firsts.from {
            self.firsts.given.insert(at);
            return;
        }
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
        // The last least extent is for the firsts of up to four connections.
        let (mut arena, whole) = (Arena::new(1 << 16, 1 << 10, 4), (1 << 16) - (1 << 10));
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
                assert!(at.is_multiple_of(len) && at + len <= whole);
                assert!(taken.iter().all(|(a, l)| at + len <= *a || a + l <= at));
                taken.push((at, len));
            } else if !taken.is_empty() {
                let index = usize::try_from(dice).unwrap() % taken.len();
                let (at, len) = taken.swap_remove(index);
                arena.give(at, len);
            }
            let used: u64 = taken.iter().map(|(_, len)| len).sum();
            assert_eq!(
                (arena.free_bytes() + used, arena.used_bytes()),
                (whole, used)
            );
        }
        taken.into_iter().for_each(|(at, len)| arena.give(at, len));
        let halves = std::iter::from_fn(|| arena.take(1 << 16));
        assert!(
            halves
                .map(|(_, len)| len)
                .eq((10..16).rev().map(|bits| 1 << bits))
        );
    }

    #[test]
    fn no_more_is_taken_than_may_be() {
        let mut arena = Arena::new(1 << 16, 1 << 10, 4);
        arena.set_most(10 << 10);
        assert_eq!(arena.free_bytes(), 10 << 10);
        let (first, second) = (arena.take(1 << 16).unwrap(), arena.take(1 << 16).unwrap());
        assert_eq!((first.1, second.1), (8 << 10, 2 << 10));
        assert_eq!((arena.free_bytes(), arena.take(1 << 10)), (0, None));
        assert!(arena.take_first().is_some(), "connections can still begin");
        // Less than the memory in use: nothing more until some is returned.
        arena.set_most(4 << 10);
        arena.give(second.0, second.1);
        assert_eq!(arena.take(1 << 10), None);
        arena.give(first.0, first.1);
        assert_eq!(arena.free_bytes(), 4 << 10);
        arena.set_most(u64::MAX);
        assert_eq!(arena.free_bytes(), arena.shared_bytes());
        assert_eq!(arena.shared_bytes(), (1 << 16) - (1 << 10));
    }

    #[test]
    fn first_extents_lie_side_by_side_and_there_is_one_for_each() {
        let mut arena = Arena::new(1 << 20, 4 << 10, 100);
        let firsts: Vec<(u64, u64)> = std::iter::from_fn(|| arena.take_first()).collect();
        assert_eq!(firsts.len(), 128);
        assert_eq!(arena.used_bytes(), 128 << 10);
        assert_eq!(firsts[0], ((1 << 20) - (128 << 10), 1 << 10));
        for (one, next) in firsts.iter().zip(&firsts[1..]) {
            assert_eq!((one.0 + one.1, one.1), next.to_owned());
        }
        for (at, len) in [firsts[70], firsts[3]] {
            arena.give(at, len);
        }
        assert_eq!(arena.used_bytes(), 126 << 10);
        assert_eq!(arena.take_first(), Some(firsts[3]));
        assert_eq!(arena.take_first(), Some(firsts[70]));
        assert_eq!(arena.take_first(), None);
        // Larger extents do not come from the area of first extents.
        while let Some((at, len)) = arena.take(4 << 10) {
            assert!(at + len <= firsts[0].0);
        }
    }

    #[test]
    fn first_extents_take_no_more_than_a_quarter() {
        let mut arena = Arena::new(64 << 10, 4 << 10, 16 << 10);
        assert_eq!(std::iter::from_fn(|| arena.take_first()).count(), 16);
        let mut arena = Arena::new(8 << 10, 4 << 10, 1);
        assert_eq!(arena.take_first(), None);
        assert_eq!(arena.take(8 << 10), Some((0, 8 << 10)));
    }
}
