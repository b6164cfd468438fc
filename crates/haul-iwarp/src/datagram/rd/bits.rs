//! A flag per packet of a window, as a ring of words: whether it has arrived, or was acknowledged.

use std::ops::Range;

/// Flags for the packets of a window. A packet outside the window has no flag: callers check that
/// first.
#[derive(Debug)]
pub(super) struct Bits {
    words: Box<[u64]>,
}

const WORD: u64 = 64;

impl Bits {
    /// Flags for windows of at most `window` packets, none of them set.
    pub(super) fn new(window: u32) -> Self {
        let words = window.max(1).next_power_of_two().div_ceil(64) as usize;
        Self {
            words: vec![0; words].into_boxed_slice(),
        }
    }

    fn at(&self, psn: u64) -> (usize, u32) {
        let word = (psn / WORD) & (self.words.len() as u64 - 1);
        (word as usize, (psn % WORD) as u32)
    }

    pub(super) fn is_set(&self, psn: u64) -> bool {
        let (word, bit) = self.at(psn);
        self.words[word] >> bit & 1 == 1
    }

    pub(super) fn set(&mut self, psn: u64) {
        let (word, bit) = self.at(psn);
        self.words[word] |= 1 << bit;
    }

    pub(super) fn clear(&mut self, psn: u64) {
        let (word, bit) = self.at(psn);
        self.words[word] &= !(1 << bit);
    }

    /// The first packet of `range` whose flag is `wanted`, or the end of the range.
    pub(super) fn find(&self, range: Range<u64>, wanted: bool) -> u64 {
        let mut psn = range.start;
        while psn < range.end {
            let (word, bit) = self.at(psn);
            let word = if wanted {
                self.words[word]
            } else {
                !self.words[word]
            };
            let rest = word >> bit;
            if rest != 0 {
                return (psn + u64::from(rest.trailing_zeros())).min(range.end);
            }
            psn += WORD - u64::from(bit);
        }
        range.end
    }

    /// The end of the last stretch of `range` whose flag is set: behind its last set flag, or the
    /// start of the range.
    fn end_of_set(&self, range: Range<u64>) -> u64 {
        let mut end = range.end;
        while end > range.start {
            let (word, bit) = self.at(end - 1);
            let rest = self.words[word] << (63 - bit);
            if rest != 0 {
                return (end - u64::from(rest.leading_zeros())).max(range.start);
            }
            end = end.saturating_sub(u64::from(bit) + 1);
        }
        range.start
    }

    /// The highest run of set flags within `range`.
    pub(super) fn last_run(&self, range: Range<u64>) -> Option<Range<u64>> {
        let end = self.end_of_set(range.clone());
        (end > range.start).then(|| self.run(end - 1, range.start..end))
    }

    /// The run of set flags that holds `psn`, within `range`.
    pub(super) fn run(&self, psn: u64, range: Range<u64>) -> Range<u64> {
        let mut start = psn;
        while start > range.start && self.is_set(start - 1) {
            let (word, bit) = self.at(start - 1);
            // The set flags that end at this bit.
            let ones = u64::from((self.words[word] << (63 - bit)).leading_ones());
            start = start.saturating_sub(ones).max(range.start);
        }
        start..self.find(psn..range.end, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_across_words_and_around_the_ring() {
        for base in [0, 1, 63, 64, 100, 200, 1 << 32] {
            let mut bits = Bits::new(256);
            let window = base..base + 256;
            for psn in base + 10..base + 150 {
                bits.set(psn);
            }
            assert_eq!(bits.find(window.clone(), true), base + 10);
            assert_eq!(bits.find(base + 10..base + 256, false), base + 150);
            for psn in [base + 10, base + 77, base + 149] {
                assert_eq!(bits.run(psn, window.clone()), base + 10..base + 150);
            }
            bits.clear(base + 80);
            assert_eq!(bits.run(base + 149, window.clone()), base + 81..base + 150);
            assert_eq!(bits.run(base + 20, window.clone()), base + 10..base + 80);
            assert_eq!(bits.last_run(window.clone()), Some(base + 81..base + 150));
            assert_eq!(bits.last_run(base..base + 81), Some(base + 10..base + 80));
            assert_eq!(bits.last_run(base + 150..base + 256), None);
        }
    }
}
