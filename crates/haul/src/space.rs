//! The transfer space of a session: the requested runs of blocks of its files, one after another.
//!
//! Both ends append the same runs in the same order, so an offset of the space means the same byte
//! of the same file at both, and a channel needs no framing of its own.

use crate::wire::Run;

/// A contiguous part of one file inside the space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Offset in the space, bytes.
    pub(crate) start: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// Index of the file.
    pub(crate) file: usize,
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

/// All runs so far, in order.
#[derive(Debug)]
pub(crate) struct Space<T> {
    runs: Vec<Placed<T>>,
    end: u64,
}

impl<T> Space<T> {
    pub(crate) const fn new() -> Self {
        Self {
            runs: Vec::new(),
            end: 0,
        }
    }

    /// Returns the first offset past the space.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn runs(&self) -> &[Placed<T>] {
        &self.runs
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
            file: run.file as usize,
            position,
        };
        self.runs.push(Placed {
            segment,
            run,
            extra,
        });
        self.end = end;
        true
    }

    /// Returns the index of the run that holds `offset`.
    pub(crate) fn index_of(&self, offset: u64) -> Option<usize> {
        if offset >= self.end {
            return None;
        }
        Some(
            self.runs
                .partition_point(|placed| placed.segment.start <= offset)
                - 1,
        )
    }

    /// Returns the segment from `offset` to the end of its run.
    pub(crate) fn rest_of_run(&self, offset: u64) -> Option<Segment> {
        let segment = self.runs[self.index_of(offset)?].segment;
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
}
