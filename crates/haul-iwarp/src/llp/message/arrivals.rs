//! Which messages have arrived: one bit each from the first that is missing to the last that came.

use std::collections::VecDeque;

const BITS: u64 = u64::BITS as u64;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// All messages below have arrived.
    base: u64,
    /// Bit 0 of word 0 stands for the message `base` rounded down to a multiple of 64. Empty, or
    /// its last word is not zero, but for its first.
    words: VecDeque<u64>,
}

/// The position of a message relative to the earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    Fresh,
    Duplicate,
    /// Further ahead than the window: a lower layer with limits does not let this happen.
    BeyondWindow,
}

impl Arrivals {
    /// All messages below this one have arrived.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// Notes that message `index` is there.
    pub(super) fn insert(&mut self, index: u64, window: u64) -> Arrival {
        if index < self.base {
            return Arrival::Duplicate;
        }
        if index - self.base >= window {
            return Arrival::BeyondWindow;
        }
        let Ok(word) = usize::try_from(index / BITS - self.base / BITS) else {
            return Arrival::BeyondWindow;
        };
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        let bit = 1 << (index % BITS);
        if self.words[word] & bit != 0 {
            return Arrival::Duplicate;
        }
        self.words[word] |= bit;
        self.advance();
        Arrival::Fresh
    }

    fn advance(&mut self) {
        while let Some(&front) = self.words.front() {
            let into = self.base % BITS;
            let run = u64::from((front >> into).trailing_ones());
            self.base += run;
            if into + run < BITS {
                return;
            }
            self.words.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_beyond_the_window_leaves_no_trace() {
        let mut arrivals = Arrivals::default();
        assert_eq!(arrivals.insert(100, 100), Arrival::BeyondWindow);
        assert_eq!(arrivals.insert(99, 100), Arrival::Fresh);
        assert_eq!(arrivals.insert(99, 100), Arrival::Duplicate);
        assert_eq!(arrivals.base(), 0);
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_set(indices in prop::collection::vec(0_u64..300, 0..600)) {
            let (mut arrivals, mut set) = (Arrivals::default(), BTreeSet::new());
            for index in indices {
                let fresh = set.insert(index);
                let said = arrivals.insert(index, 1_000);
                prop_assert_eq!(said == Arrival::Fresh, fresh);
                let base = (0..).find(|index| !set.contains(index)).unwrap();
                prop_assert_eq!(arrivals.base(), base);
            }
        }
    }
}
