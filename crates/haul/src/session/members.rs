//! Members of a tree at the receiver: small files, links and the attributes of directories.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::directories::Directories;
use crate::entry::{Entry, What};
use crate::fault::Fault;
use crate::fs::batch::{Batch, Durable};
use crate::fs::meta::{self, Lost};
use crate::fs::path::Relative;
use crate::fs::tree::Tree;
use crate::wire::Policy;

/// Members that become durable together at first, so that the first files soon have their names;
/// then twice as many each time …
const TOGETHER_FIRST: usize = 64;
/// … up to this …
const TOGETHER: usize = 4096;
/// … and their bytes …
const TOGETHER_BYTES: u64 = 64 << 20;
/// … and as long as the first of them has waited: a disk that makes files slowly.
const TOGETHER_FOR: Duration = Duration::from_millis(500);

/// A member that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) file: u32,
    pub(super) result: Result<(), Fault>,
}

/// Members that are written and not durable under their names yet.
pub(super) struct Members<'a> {
    tree: &'a Tree,
    policy: Policy,
    batch: Batch<'a>,
    /// The ids of what is in the batch.
    files: Vec<u32>,
    /// What failed.
    others: Vec<Ended>,
    bytes: u64,
    /// When the first of these members began to be written.
    since: Option<Instant>,
    /// How many members make it full.
    together: usize,
    /// Content that has left memory, bytes.
    written: &'a AtomicU64,
    lost: Lost,
}

impl<'a> Members<'a> {
    pub(super) fn new(tree: &'a Tree, policy: Policy, written: &'a AtomicU64) -> Self {
        Self {
            tree,
            policy,
            batch: Batch::new(tree, policy.durable, policy.replace),
            files: Vec::new(),
            others: Vec::new(),
            bytes: 0,
            since: None,
            together: TOGETHER_FIRST,
            written,
            lost: Lost::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.others.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.files.len() + self.others.len() >= self.together
            || self.bytes >= TOGETHER_BYTES
            || self
                .since
                .is_some_and(|since| since.elapsed() >= TOGETHER_FOR)
    }

    /// Adds what a file lost that is not of the batch.
    pub(super) fn add_lost(&mut self, lost: Lost) {
        self.lost.add(lost);
    }

    /// Writes a small file under its temporary name, or makes a link.
    pub(super) fn take(&mut self, file: u32, entry: &Entry, content: &[u8]) {
        self.since.get_or_insert_with(Instant::now);
        let taken = match &entry.what {
            What::Symlink { target } => self.symlink(entry, target),
            What::HardLink { path } => self.link(path, entry),
            What::File(_) | What::Directory => self.write(entry, content),
        };
        self.bytes += content.len() as u64;
        self.written
            .fetch_add(content.len() as u64, Ordering::AcqRel);
        match taken {
            Ok(()) => self.files.push(file),
            Err(error) => {
                let result = Err(cannot_write(&entry.path, &error));
                self.others.push(Ended { file, result });
            }
        }
    }

    fn write(&mut self, entry: &Entry, content: &[u8]) -> io::Result<()> {
        let part = self.tree.create(&entry.path, entry.mode)?;
        if let Err(error) = part.file().write_all_at(content, 0) {
            // The first error is the one to report.
            let _ = self.tree.discard(&entry.path);
            return Err(error);
        }
        let lost = meta::apply(part.file(), &entry.meta(), self.policy.keep());
        self.lost.add(lost);
        self.batch.add(part);
        Ok(())
    }

    fn symlink(&mut self, entry: &Entry, target: &[u8]) -> io::Result<()> {
        self.tree
            .symlink(&entry.path, target, self.policy.replace)?;
        let (dir, name) = self.tree.resolve(&entry.path)?;
        let lost = meta::apply_to_link(&dir, &name, &entry.meta(), self.policy.keep());
        self.lost.add(lost);
        self.batch.add_link(entry.path.clone());
        Ok(())
    }

    /// Gives a file another name; where the file system allows it no more, copies the file.
    fn link(&mut self, existing: &Relative, entry: &Entry) -> io::Result<()> {
        match self
            .tree
            .hard_link(existing, &entry.path, self.policy.replace)
        {
            Err(error) if may_copy(&error) => {
                let (dir, name) = self.tree.resolve(existing)?;
                let from = dir.open_file(name.as_ref())?;
                let part = self.tree.create(&entry.path, entry.mode)?;
                io::copy(&mut &from, &mut part.file())?;
                let lost = meta::apply(part.file(), &entry.meta(), self.policy.keep());
                self.lost.add(Lost { links: 1, ..lost });
                self.batch.add(part);
            }
            result => {
                result?;
                self.batch.add_link(entry.path.clone());
            }
        }
        Ok(())
    }

    /// Makes what waits durable and gives it its names, unless `stop` is set; returns what ended.
    pub(super) fn flush(&mut self, stop: &AtomicBool) -> Vec<Ended> {
        (self.bytes, self.since) = (0, None);
        self.together = (2 * self.together).min(TOGETHER);
        let new = Batch::new(self.tree, self.policy.durable, self.policy.replace);
        let batch = std::mem::replace(&mut self.batch, new);
        let files = std::mem::take(&mut self.files);
        let mut ended = std::mem::take(&mut self.others);
        if stop.load(Ordering::Acquire) {
            batch.discard();
            return Vec::new();
        }
        let of_file = |(file, (path, result)): (u32, (Relative, io::Result<()>))| Ended {
            file,
            result: result.map_err(|error| cannot_write(&path, &error)),
        };
        ended.extend(files.into_iter().zip(batch.commit()).map(of_file));
        ended
    }

    /// Makes the names of directories that were made durable.
    ///
    /// # Errors
    /// What could not be made durable.
    pub(super) fn sync_names(&self) -> Result<(), Fault> {
        if self.policy.durable == Durable::None {
            return Ok(());
        }
        match self.tree.sync().first() {
            Some((path, error)) => Err(cannot_write(path, error)),
            None => Ok(()),
        }
    }

    /// Returns what members lost since it was asked the last time.
    pub(super) fn take_lost(&mut self) -> Option<Lost> {
        Some(std::mem::take(&mut self.lost)).filter(Lost::is_any)
    }

    /// Sets the attributes of the directories, the inner ones first, and makes everything durable.
    ///
    /// # Errors
    /// What could not be made durable.
    pub(super) fn finish(&mut self, directories: Directories) -> Result<(), Fault> {
        let each = |entry: &Entry| {
            let applied = self.tree.directory(&entry.path);
            let applied = applied.map(|dir| meta::apply(&*dir, &entry.meta(), self.policy.keep()));
            let all = Lost {
                mode: 1,
                time: 1,
                ..Lost::default()
            };
            self.lost.add(applied.unwrap_or(all));
        };
        let failed = |error| Fault::file("cannot write to the target", &error);
        directories.each_backwards(each).map_err(failed)?;
        self.sync_names()?;
        if self.policy.durable != Durable::None {
            let root = self.tree.directory(&Relative::root());
            let synced = root.and_then(|root| Ok(rustix::fs::syncfs(&*root)?));
            synced.map_err(failed)?;
        }
        Ok(())
    }
}

fn cannot_write(path: &Relative, error: &io::Error) -> Fault {
    Fault::file(&format!("cannot write '{path}'"), error)
}

/// Returns whether a hard link that could not be made is a copy instead.
fn may_copy(error: &io::Error) -> bool {
    use io::ErrorKind::{CrossesDevices, PermissionDenied, TooManyLinks, Unsupported};
    matches!(
        error.kind(),
        TooManyLinks | CrossesDevices | PermissionDenied | Unsupported
    )
}
