//! Names of memory regions: sparse and hard to guess.

/// A steering tag (RFC 5041 §4.1): a 24-bit index, and an 8-bit key that changes each time the
/// index is used again. The lkey and rkey of verbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stag(pub u32);

const HALF_BITS: u32 = 12;
const HALF_MASK: u32 = (1 << HALF_BITS) - 1;
/// Four make a random permutation of random round functions (Luby, Rackoff 1988); these are not, so
/// there are more.
const ROUNDS: usize = 6;

impl Stag {
    pub(crate) fn new(index: u32, key: u8) -> Self {
        Self(index << 8 | u32::from(key))
    }

    pub(crate) fn index(self) -> u32 {
        self.0 >> 8
    }

    /// The part that the owner counts up.
    #[must_use]
    pub fn key(self) -> u8 {
        self.0.to_le_bytes()[0]
    }
}

/// A keyed permutation of 24-bit numbers (a Feistel network): table slots, which count up from
/// zero, to indices that tell nothing of it (RFC 5042 §6.2.1 asks for that).
#[derive(Debug, Clone)]
pub(crate) struct Permutation([u64; ROUNDS]);

impl Permutation {
    /// `seed` is random.
    pub(crate) fn new(seed: [u64; 2]) -> Self {
        use std::hash::Hasher;

        Self(std::array::from_fn(|round| {
            let mut hasher = siphasher::sip::SipHasher13::new_with_keys(seed[0], seed[1]);
            hasher.write_usize(round);
            // Odd, so that no input is lost in the product.
            hasher.finish() | 1
        }))
    }

    pub(crate) fn index(&self, slot: u32) -> u32 {
        let (mut left, mut right) = (slot >> HALF_BITS & HALF_MASK, slot & HALF_MASK);
        for key in self.0 {
            (left, right) = (right, left ^ round(key, right));
        }
        left << HALF_BITS | right
    }

    pub(crate) fn slot(&self, index: u32) -> u32 {
        let (mut left, mut right) = (index >> HALF_BITS & HALF_MASK, index & HALF_MASK);
        for key in self.0.iter().rev() {
            (left, right) = (right ^ round(*key, left), left);
        }
        left << HALF_BITS | right
    }
}

/// The middle of a product, where every bit of both factors has had its say.
fn round(key: u64, half: u32) -> u32 {
    let mixed = key.wrapping_mul(u64::from(half) | 1 << HALF_BITS);
    let mixed = (mixed ^ mixed >> 29).wrapping_mul(key.rotate_left(32) | 1);
    u32::try_from(mixed >> (64 - HALF_BITS)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INDICES: u32 = 1 << 24;

    #[test]
    fn every_slot_has_an_index_of_its_own_and_comes_back() {
        let permutation = Permutation::new([0x0123_4567_89ab_cdef, 0x0011_2233_4455_6677]);
        let step = if cfg!(miri) { 65_537 } else { 7 };
        let mut seen = vec![false; INDICES as usize];
        for slot in (0..INDICES).step_by(step) {
            let index = permutation.index(slot);
            assert!(index < INDICES);
            assert!(!std::mem::replace(&mut seen[index as usize], true));
            assert_eq!(permutation.slot(index), slot);
        }
    }

    #[test]
    fn neighbours_are_scattered_and_seeds_differ() {
        let (one, two) = (Permutation::new([0, 1]), Permutation::new([0, 2]));
        let near = |a: u32, b: u32| a.abs_diff(b) < 1 << 12;
        let indices: Vec<u32> = (0..1_000).map(|slot| one.index(slot)).collect();
        let neighbours = indices.windows(2).filter(|pair| near(pair[0], pair[1]));
        assert!(neighbours.count() < 10);
        let same = (0..1_000).filter(|slot| one.index(*slot) == two.index(*slot));
        assert!(same.count() < 3);
    }
}
