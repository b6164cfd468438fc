//! The directories of a tree at the receiver, whose attributes are set when everything else is
//! finished.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::entry::{self, Batch, Entry};
use crate::fs::tree::Tree;

/// Directories in the order of the offer. The memory of one batch; further ones are in a file
/// without a name in the target.
#[derive(Debug, Default)]
pub(super) struct Directories {
    batch: Batch,
    file: Option<File>,
    /// Where each batch in the file ends.
    ends: Vec<u64>,
}

impl Directories {
    /// Adds a directory.
    ///
    /// # Errors
    /// The target has no room.
    pub(super) fn push(&mut self, entry: &Entry, tree: &Tree) -> io::Result<()> {
        if self.batch.push(entry) {
            return Ok(());
        }
        let full = std::mem::take(&mut self.batch).into_bytes();
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(tree.scratch()?),
        };
        let begin = self.ends.last().copied().unwrap_or(0);
        file.write_all_at(&full, begin)?;
        self.ends.push(begin + full.len() as u64);
        // An empty batch takes any entry.
        self.batch.push(entry);
        Ok(())
    }

    /// Calls `act` with each directory, the last one first.
    ///
    /// # Errors
    /// A batch cannot be read back.
    pub(super) fn each_backwards(self, mut act: impl FnMut(&Entry)) -> io::Result<()> {
        let mut each = |batch: &[u8]| {
            let entries = entry::parse(batch).map_err(io::Error::other)?;
            entries.iter().rev().for_each(&mut act);
            Ok::<_, io::Error>(())
        };
        each(&self.batch.into_bytes())?;
        let Some(file) = self.file else {
            return Ok(());
        };
        let begins = std::iter::once(&0).chain(&self.ends);
        let batches: Vec<_> = begins.zip(&self.ends).collect();
        for (begin, end) in batches.into_iter().rev() {
            let mut batch = vec![0; usize::try_from(end - begin).unwrap_or(0)];
            file.read_exact_at(&mut batch, *begin)?;
            each(&batch)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use haul_io::file::Dir;

    use super::*;
    use crate::entry::{Extra, What};
    use crate::fs::path::Relative;
    use crate::wire::Time;

    #[test]
    fn many_directories_take_the_memory_of_one_batch_and_come_back_in_reverse() {
        let root = tempfile::tempdir().unwrap();
        let tree = Tree::new(Dir::open(root.path()).unwrap(), [1; 8]);
        let mut directories = Directories::default();
        for index in 0..200_u32 {
            let entry = Entry {
                path: Relative::new(index.to_string().as_bytes()).unwrap(),
                modified: Time {
                    seconds: 0,
                    nanos: index,
                },
                mode: 0o700,
                is_member: true,
                what: What::Directory,
                extra: Some(Extra {
                    xattrs: vec![(b"user.a"[..].into(), vec![7; 10_000].into())],
                    ..Extra::default()
                }),
            };
            directories.push(&entry, &tree).unwrap();
        }
        assert!(directories.ends.len() > 5);
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
        let mut found = Vec::new();
        directories
            .each_backwards(|entry| found.push(entry.modified.nanos))
            .unwrap();
        assert!(found.into_iter().eq((0..200).rev()));
    }
}
