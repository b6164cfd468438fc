//! What became of the entries of a session.

use super::plan::Planned;
use crate::entry::{Entry, What};

/// A file that was offered by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Operand {
    /// For people.
    pub(crate) name: String,
    pub(crate) size: u64,
    /// Bytes that were present at the receiver.
    pub(crate) present: u64,
    /// The hash of the file, once it is published.
    pub(crate) root: Option<[u8; 32]>,
}

impl Operand {
    pub(super) fn new(entry: &Entry, planned: Option<&Planned>) -> Self {
        Self {
            name: entry.shown(),
            size: entry.size(),
            present: match planned {
                Some(Planned::Complete) => entry.size(),
                Some(Planned::Part { present, .. }) => *present,
                Some(Planned::Wanted) | None => 0,
            },
            root: None,
        }
    }
}

/// Numbers of the entries of a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Files that were offered, hard links not counted.
    pub(crate) files: u64,
    pub(crate) directories: u64,
    /// Symbolic and hard links.
    pub(crate) links: u64,
    /// Bytes of the files.
    pub(crate) bytes: u64,
    /// Files and links that this session made.
    pub(crate) copied: u64,
    /// Files and links that were present as offered.
    pub(crate) skipped: u64,
    /// Entries that failed.
    pub(crate) failed: u64,
    /// Devices, pipes and sockets, which are not copied.
    pub(crate) special: u64,
}

impl Counts {
    /// Counts an entry that is offered.
    pub(super) fn offer(&mut self, entry: &Entry) {
        match entry.what {
            What::File(_) => self.files += 1,
            What::Directory => self.directories += 1,
            What::Symlink { .. } | What::HardLink { .. } => self.links += 1,
        }
        self.bytes = self.bytes.saturating_add(entry.size());
    }

    /// Counts an entry that was made.
    pub(super) fn copy(&mut self, entry: &Entry) {
        if !matches!(entry.what, What::Directory) {
            self.copied += 1;
        }
    }

    /// Returns the number of files and links that are finished.
    pub(crate) const fn finished(&self) -> u64 {
        self.copied + self.skipped
    }
}
