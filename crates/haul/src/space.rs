//! The transfer space of a session: the requested runs of blocks of its files, one after another.
//!
//! Both ends append the same runs in the same order, so an offset of the space means the same byte
//! of the same file at both, and a channel needs no framing of its own.

use std::collections::VecDeque;

use crate::wire::Run;

/// A contiguous part of one file inside the space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Offset in the space, bytes.
    pub(crate) start: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// Id of the file.
    pub(crate) file: u32,
    /// Where in the file it begins, bytes.
    pub(crate) position: u64,
}

/// One run of blocks, placed in the space; `T` is the owner's data about it.
#[derive(Debug)]
pub(crate) struct Placed<T> {
    pub(crate) segment: Segment,
    pub(crate) run: Run,
    pub(crate) extra: T,
}

/// The runs that are not retired, in order.
#[derive(Debug)]
pub(crate) struct Space<T> {
    runs: VecDeque<Placed<T>>,
    /// Number of retired runs.
    retired: usize,
    end: u64,
}

impl<T> Space<T> {
    pub(crate) const fn new() -> Self {
        Self {
            runs: VecDeque::new(),
            retired: 0,
            end: 0,
        }
    }

    /// Returns the first offset past the space.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Returns the first offset that is not retired.
    pub(crate) fn begin(&self) -> u64 {
        let first = self.runs.front();
        first.map_or(self.end, |placed| placed.segment.start)
    }

    /// Returns the run of that index, counted from the first that was appended; the first that is
    /// left in place of one that is retired.
    pub(crate) fn run(&self, index: &mut usize) -> Option<&Placed<T>> {
        *index = (*index).max(self.retired);
        self.runs.get(*index - self.retired)
    }

    /// Returns the number of runs that were appended.
    pub(crate) fn count(&self) -> usize {
        self.retired + self.runs.len()
    }

    /// Forgets the runs at the beginning for which `is_over` holds.
    pub(crate) fn retire(&mut self, mut is_over: impl FnMut(&Placed<T>) -> bool) {
        while self.runs.front().is_some_and(&mut is_over) {
            self.runs.pop_front();
            self.retired += 1;
        }
    }

    /// Appends a run which covers `len` bytes of its file from `position` on; false where the
    /// space would become longer than offsets can name.
    #[must_use]
    pub(crate) fn append(&mut self, run: Run, position: u64, len: u64, extra: T) -> bool {
        let Some(end) = self.end.checked_add(len) else {
            return false;
        };
        let segment = Segment {
            start: self.end,
            len,
            file: run.file,
            position,
        };
        self.runs.push_back(Placed {
            segment,
            run,
            extra,
        });
        self.end = end;
        true
    }

    /// Returns the run that holds `offset`.
    pub(crate) fn at(&self, offset: u64) -> Option<&Placed<T>> {
        if offset >= self.end {
            return None;
        }
        let after = self
            .runs
            .partition_point(|placed| placed.segment.start <= offset);
        self.runs.get(after.checked_sub(1)?)
    }

    /// Returns the segment from `offset` to the end of its run.
    pub(crate) fn rest_of_run(&self, offset: u64) -> Option<Segment> {
        let segment = self.at(offset)?.segment;
        let inside = offset - segment.start;
        Some(Segment {
            start: offset,
            len: segment.len - inside,
            file: segment.file,
            position: segment.position + inside,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(file: u32) -> Run {
        Run {
            file,
            first: 0,
            count: 1,
        }
    }

    #[test]
    fn offsets_fall_into_the_run_that_holds_them() {
        let mut space = Space::new();
        assert!(space.append(run(0), 100, 10, ()));
        assert!(space.append(run(3), 0, 5, ()));
        assert_eq!(space.end(), 15);
        assert_eq!(
            space.rest_of_run(4),
            Some(Segment {
                start: 4,
                len: 6,
                file: 0,
                position: 104
            })
        );
        assert_eq!(
            space.rest_of_run(10),
            Some(Segment {
                start: 10,
                len: 5,
                file: 3,
                position: 0
            })
        );
        assert_eq!(space.rest_of_run(15), None);
        assert!(!space.append(run(0), 0, u64::MAX, ()));
    }

    #[test]
    fn what_is_retired_is_forgotten_and_the_rest_keeps_its_place() {
        let mut space = Space::new();
        for file in 0..3 {
            assert!(space.append(run(file), 0, 10, ()));
        }
        space.retire(|placed| placed.run.file != 1);
        assert_eq!((space.begin(), space.end(), space.count()), (10, 30, 3));
        assert_eq!(space.rest_of_run(9), None);
        assert_eq!(space.rest_of_run(12).map(|rest| rest.file), Some(1));
        let mut index = 0;
        assert_eq!(space.run(&mut index).map(|placed| placed.run.file), Some(1));
        assert_eq!(index, 1);
        space.retire(|_| true);
        assert_eq!((space.begin(), space.rest_of_run(29)), (30, None));
    }
}
