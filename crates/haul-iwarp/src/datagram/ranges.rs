//! Which bytes of a message are there: sorted ranges with gaps between them, up to a limit.

/// Ranges (start, end exclusive).
#[derive(Debug, Default)]
pub(super) struct RangeSet {
    /// Sorted; each ends before the next begins.
    ranges: Vec<(u32, u32)>,
    /// The sum of their lengths.
    covered: u32,
}

/// The effect that a further range would have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It has something that is not there.
    New,
    /// All of it is there.
    Known,
    /// It would be one range too many.
    Full,
}

impl RangeSet {
    pub(super) const fn covered(&self) -> u32 {
        self.covered
    }

    pub(super) fn as_slice(&self) -> &[(u32, u32)] {
        &self.ranges
    }

    pub(super) fn clear(&mut self) {
        self.ranges.clear();
        self.covered = 0;
    }

    /// The ranges that `start..end` touches or overlaps, as indices.
    fn touched(&self, start: u32, end: u32) -> (usize, usize) {
        // Data that arrives in order touches the last range.
        if let Some(&(last_start, last_end)) = self.ranges.last()
            && start >= last_start
        {
            let count = self.ranges.len();
            let first = if start <= last_end { count - 1 } else { count };
            return (first, count);
        }
        let first = self.ranges.partition_point(|range| range.1 < start);
        let behind = self.ranges.partition_point(|range| range.0 <= end);
        (first, behind)
    }

    /// Returns the effect that [`Self::insert`] of a non-empty range would have, with at most
    /// `limit` ranges.
    pub(super) fn judge(&self, start: u32, end: u32, limit: usize) -> Verdict {
        let (first, behind) = self.touched(start, end);
        if let Some(&(known_start, known_end)) = self.ranges.get(first)
            && known_start <= start
            && end <= known_end
        {
            return Verdict::Known;
        }
        if first == behind && self.ranges.len() >= limit {
            return Verdict::Full;
        }
        Verdict::New
    }

    /// Adds a range that is not empty.
    pub(super) fn insert(&mut self, start: u32, end: u32) {
        let (first, behind) = self.touched(start, end);
        if first == behind {
            self.ranges.insert(first, (start, end));
            self.covered += end - start;
            return;
        }
        let merged = (
            start.min(self.ranges[first].0),
            end.max(self.ranges[behind - 1].1),
        );
        let before: u32 = self.ranges[first..behind].iter().map(|r| r.1 - r.0).sum();
        self.covered = self.covered - before + (merged.1 - merged.0);
        self.ranges[first] = merged;
        if behind - first > 1 {
            self.ranges.drain(first + 1..behind);
        }
    }

    /// Returns the ranges of `len` bytes that are missing.
    pub(super) fn gaps(&self, len: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let starts = std::iter::once(0).chain(self.ranges.iter().map(|range| range.1));
        let ends = self.ranges.iter().map(|range| range.0).chain([len]);
        starts.zip(ends).filter(|(start, end)| start < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_agrees_with_a_bitmap() {
        let mut state = 7_u32;
        let mut random = move |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % below
        };
        for _ in 0..2_000 {
            let (mut set, mut bits) = (RangeSet::default(), [false; 100]);
            for _ in 0..30 {
                let start = random(100);
                let end = start + 1 + random(100 - start).min(12);
                let octets = &mut bits[start as usize..end.min(100) as usize];
                let end = end.min(100);
                let verdict = set.judge(start, end, 6);
                assert_eq!(verdict == Verdict::Known, octets.iter().all(|bit| *bit));
                if verdict == Verdict::New {
                    octets.fill(true);
                    set.insert(start, end);
                }
                assert!(set.as_slice().len() <= 6);
                assert_eq!(
                    set.covered() as usize,
                    bits.iter().filter(|bit| **bit).count()
                );
                assert!(set.as_slice().windows(2).all(|pair| pair[0].1 < pair[1].0));
                let gaps: u32 = set.gaps(100).map(|gap| gap.1 - gap.0).sum();
                assert_eq!(gaps + set.covered(), 100);
            }
        }
    }
}
