//! The gaps that selective feedback lists.

use std::ops::Range;

use crate::error::{Error, Misbehaviour};
use crate::wire::LossRanges;

/// A cursor over the gaps of one feedback, for ascending packet numbers.
#[derive(Debug, Clone)]
pub(crate) struct Gaps<'a> {
    ranges: std::iter::Peekable<GapIter<'a>>,
    from: u64,
    to: u64,
}

#[derive(Debug, Clone)]
struct GapIter<'a> {
    losses: LossRanges<'a>,
    index: usize,
    near: u64,
}

impl Iterator for GapIter<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        let (first, last, words) = self.losses.range_at(self.index)?;
        self.index += words;
        let first = first.extend(self.near);
        Some((first, last.extend(first)))
    }
}

impl<'a> Gaps<'a> {
    /// Checks that the gaps ascend and lie from `from` to `to`.
    pub(crate) fn new(losses: LossRanges<'a>, from: u64, to: u64) -> Result<Self, Error> {
        let iter = GapIter {
            losses,
            index: 0,
            near: from,
        };
        let mut before = from;
        for (first, last) in iter.clone() {
            if first < before || last < first || last >= to {
                return Err(Error::PeerMisbehaved(Misbehaviour::Feedback));
            }
            before = last + 1;
        }
        Ok(Self {
            ranges: iter.peekable(),
            from,
            to,
        })
    }

    fn covers(&self, number: u64) -> bool {
        (self.from..self.to).contains(&number)
    }

    /// The places of the covered ones among `numbers`, which ascend.
    pub(crate) fn covered_of(&self, numbers: &[u64]) -> Range<usize> {
        let place = |bound: u64| numbers.partition_point(|&number| number < bound);
        place(self.from)..place(self.to)
    }

    /// The feedback does not show that packet `number` has arrived.
    pub(crate) fn leaves_open(&mut self, number: u64) -> bool {
        if !self.covers(number) {
            return true;
        }
        while self.ranges.next_if(|&(_, last)| last < number).is_some() {}
        self.ranges
            .peek()
            .is_some_and(|&(first, _)| first <= number)
    }
}
