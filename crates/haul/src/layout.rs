//! Where the data of a file lies: a sparse file is moved, hashed and journaled as its data alone,
//! one run after another.

use std::ops::Range;

use crate::entry::{Extent, FileEntry};

/// Maps positions in the data of a file to positions in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// `None` if all of the file is data.
    extents: Option<Vec<Placed>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Placed {
    /// Where it begins in the data.
    at: u64,
    extent: Extent,
}

impl Layout {
    pub(crate) fn new(file: &FileEntry) -> Self {
        let mut at = 0;
        let place = |extent: &Extent| {
            let placed = Placed {
                at,
                extent: *extent,
            };
            at += extent.len;
            placed
        };
        let extents = file.extents.as_ref();
        Self {
            extents: extents.map(|extents| extents.iter().map(place).collect()),
        }
    }

    /// Returns whether the file has holes.
    pub(crate) const fn is_sparse(&self) -> bool {
        self.extents.is_some()
    }

    /// Returns a number that another layout hardly has; 0 of a file without holes.
    pub(crate) fn mark(&self) -> u32 {
        let Some(extents) = &self.extents else {
            return 0;
        };
        let mut hasher = blake3::Hasher::new();
        for Placed { extent, .. } in extents {
            hasher.update(&extent.start.to_le_bytes());
            hasher.update(&extent.len.to_le_bytes());
        }
        let hash = hasher.finalize();
        u32::from_le_bytes([0, 1, 2, 3].map(|at: usize| hash.as_bytes()[at])).max(1)
    }

    /// Returns the runs of data of a sparse file.
    pub(crate) fn runs(&self) -> Option<impl Iterator<Item = Range<u64>>> {
        let run = |placed: &Placed| {
            let Extent { start, len } = placed.extent;
            start..start + len
        };
        Some(self.extents.as_ref()?.iter().map(run))
    }

    /// Returns where in the file the data from `position` on lies, and how much of it.
    pub(crate) fn place(&self, position: u64) -> (u64, u64) {
        let Some(extents) = &self.extents else {
            return (position, u64::MAX);
        };
        let after = extents.partition_point(|placed| placed.at <= position);
        let Some(Placed { at, extent }) = after.checked_sub(1).and_then(|last| extents.get(last))
        else {
            return (position, u64::MAX);
        };
        let inside = position - at;
        (
            extent.start + inside,
            extent.len.saturating_sub(inside).max(1),
        )
    }

    /// Calls `act` with each part of `position..position + len` that lies together in the file: its
    /// place there, and which part of the bytes it is.
    pub(crate) fn each<E>(
        &self,
        position: u64,
        len: usize,
        mut act: impl FnMut(u64, Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut done = 0;
        while done < len {
            let (place, together) = self.place(position + done as u64);
            let together = usize::try_from(together).unwrap_or(usize::MAX);
            let end = done + together.min(len - done);
            act(place, done..end)?;
            done = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_lies_where_its_extent_is() {
        let extents = [(10, 5), (100, 20)].map(|(start, len)| Extent { start, len });
        let layout = Layout::new(&FileEntry {
            size: 200,
            unproven: false,
            is_linked: false,
            extents: Some(extents.to_vec()),
        });
        let mut parts = Vec::new();
        let note = |place, range| {
            parts.push((place, range));
            Ok::<_, ()>(())
        };
        layout.each(3, 10, note).unwrap();
        assert_eq!(parts, [(13, 0..2), (100, 2..10)]);
        assert_eq!(layout.place(5), (100, 20));
        let runs: Vec<_> = layout.runs().unwrap().collect();
        assert_eq!(runs, [10..15, 100..120]);
        assert!(Layout::default().runs().is_none());
        assert_eq!(Layout::new(&FileEntry::dense(7)).place(5).0, 5);
    }
}
