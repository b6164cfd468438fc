//! Many files that become durable together.
//!
//! A batch writes all files under temporary names, makes them durable with one `syncfs(2)`, renames
//! all, and synchronises each directory whose names changed once. So a file never has its final
//! name before its content is durable, and the caller reports a file only after both.
//!
//! `syncfs` reports failed writes since Linux 5.8, and FUSE does not pass it on; there, each file
//! is synchronised by itself. If `syncfs` reports a failure, it does not tell which file it
//! concerns: every file of the batch on that file system fails.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use super::path::Relative;
use super::tree::{Part, Tree};

/// When a file is durable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, minicbor::Encode, minicbor::Decode)]
#[cbor(index_only)]
pub enum Durable {
    /// Each file by itself, before the next.
    #[n(1)]
    File,
    /// The files of a batch together.
    #[default]
    #[n(0)]
    Batch,
    /// When the kernel writes it: a crash of the host may lose files that were reported.
    #[n(2)]
    None,
}

/// Files that are complete under their temporary names.
#[derive(Debug)]
pub struct Batch<'a> {
    tree: &'a Tree,
    durable: Durable,
    replace: bool,
    written: Vec<Written>,
    /// One file of each file system. `syncfs` through it reports what failed since it was opened.
    file_systems: HashMap<u64, FileSystem>,
}

#[derive(Debug)]
struct Written {
    path: Relative,
    device: u64,
    /// It has its name already.
    is_named: bool,
    result: io::Result<()>,
}

#[derive(Debug)]
struct FileSystem {
    file: File,
    can_sync: bool,
}

impl<'a> Batch<'a> {
    /// Begins a batch. Files that exist are replaced only where `replace` is set.
    #[must_use]
    pub fn new(tree: &'a Tree, durable: Durable, replace: bool) -> Self {
        Self {
            tree,
            durable,
            replace,
            written: Vec::new(),
            file_systems: HashMap::new(),
        }
    }

    /// Returns the number of files in the batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.written.len()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.written.is_empty()
    }

    /// Adds a file with all its content and attributes, and closes it. A batch holds one descriptor
    /// for each file system, however many files it has.
    pub fn add(&mut self, part: Part) {
        let (path, file) = part.into_parts();
        let (device, result) = match file.metadata() {
            Ok(meta) => (meta.dev(), self.prepare(file, meta.dev())),
            Err(error) => (0, Err(error)),
        };
        self.written.push(Written {
            path,
            device,
            is_named: false,
            result,
        });
    }

    /// Adds a link, which has its name already and becomes durable with the files.
    pub fn add_link(&mut self, path: Relative) {
        self.written.push(Written {
            path,
            device: 0,
            is_named: true,
            result: Ok(()),
        });
    }

    fn prepare(&mut self, file: File, device: u64) -> io::Result<()> {
        match self.durable {
            Durable::None => return Ok(()),
            Durable::File => return file.sync_all(),
            Durable::Batch => {}
        }
        let known = self.file_systems.get(&device);
        let can_sync = known.map_or_else(|| can_sync(&file), |known| known.can_sync);
        if !can_sync {
            file.sync_all()?;
        }
        let system = FileSystem { file, can_sync };
        self.file_systems.entry(device).or_insert(system);
        Ok(())
    }

    /// Removes the temporary files.
    pub fn discard(self) {
        for written in self.written.iter().filter(|written| !written.is_named) {
            // What cannot be removed stays; the next transfer replaces it.
            let _ = self.tree.discard(&written.path);
        }
    }

    /// Makes the files durable and gives them their names; returns the result of each, in the order
    /// in which they were added. A file that failed has left no temporary name.
    #[must_use]
    pub fn commit(mut self) -> Vec<(Relative, io::Result<()>)> {
        self.sync_content();
        for written in &mut self.written {
            if written.result.is_ok() {
                if !written.is_named {
                    written.result = self.tree.publish(&written.path, self.replace);
                }
                if self.durable == Durable::File {
                    sync_names(self.tree, std::slice::from_mut(written));
                }
            } else {
                // The first error is the one to report.
                let _ = self.tree.discard(&written.path);
            }
        }
        match self.durable {
            Durable::Batch => sync_names(self.tree, &mut self.written),
            Durable::File => {}
            Durable::None => self.tree.forget_names(),
        }
        let results = self.written.into_iter();
        results
            .map(|written| (written.path, written.result))
            .collect()
    }

    fn sync_content(&mut self) {
        for (device, system) in self.file_systems.drain() {
            if !system.can_sync {
                continue;
            }
            let Err(error) = rustix::fs::syncfs(&system.file) else {
                continue;
            };
            let on_it = self.written.iter_mut();
            let on_it = on_it.filter(|one| one.device == device && !one.is_named);
            for written in on_it.filter(|written| written.result.is_ok()) {
                written.result = Err(error.into());
            }
        }
    }
}

/// Synchronises the directories whose names changed. What is in one that fails has failed; if that
/// is only directories, the next synchronisation fails.
fn sync_names(tree: &Tree, written: &mut [Written]) {
    let mut failed: HashMap<_, _> = tree
        .sync()
        .into_iter()
        .map(|one| (one.0, (one.1, false)))
        .collect();
    if failed.is_empty() {
        return;
    }
    for written in written.iter_mut().filter(|written| written.result.is_ok()) {
        for above in written.path.ancestors().chain([Relative::root()]) {
            if let Some((error, is_known)) = failed.get_mut(&above) {
                written.result = Err(io::Error::new(error.kind(), error.to_string()));
                *is_known = true;
            }
        }
    }
    let unknown = failed.into_iter().filter(|(_, (_, is_known))| !is_known);
    tree.keep_failed(unknown.map(|(path, (error, _))| (path, error)));
}

/// Returns whether `syncfs` makes a file of this file system durable and reports what failed.
fn can_sync(file: &File) -> bool {
    const FUSE: u64 = 0x6573_5546;
    let system = rustix::fs::fstatfs(file).map(|system| u64::try_from(system.f_type).unwrap_or(0));
    reports_failures() && system.is_ok_and(|system| system != FUSE)
}

/// Returns whether this kernel's `syncfs` reports failed writes: since Linux 5.8.
fn reports_failures() -> bool {
    static REPORTS: OnceLock<bool> = OnceLock::new();
    *REPORTS.get_or_init(|| {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
        release.is_ok_and(|release| is_since_5_8(&release))
    })
}

fn is_since_5_8(release: &str) -> bool {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map_while(|n| n.parse().ok());
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (5, 8)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use haul_io::file::Dir;

    use super::*;

    fn path(text: &str) -> Relative {
        Relative::new(text.as_bytes()).unwrap()
    }

    fn add(batch: &mut Batch<'_>, tree: &Tree, name: &str, content: &str) {
        let part = tree.create(&path(name), 0o600).unwrap();
        part.file().write_all_at(content.as_bytes(), 0).unwrap();
        batch.add(part);
    }

    #[test]
    fn files_have_their_names_together_and_errors_are_their_own() {
        for durable in [Durable::File, Durable::Batch, Durable::None] {
            let root = tempfile::tempdir().unwrap();
            let tree = Tree::new(Dir::open(root.path()).unwrap(), [1; 8]);
            std::fs::write(root.path().join("exists"), "old").unwrap();
            let mut batch = Batch::new(&tree, durable, false);
            for name in ["a/1", "exists", "a/b/2", "3"] {
                add(&mut batch, &tree, name, "new");
                assert!(tree.look(&path("3")).unwrap().is_none());
            }
            assert_eq!(batch.len(), 4);
            let results = batch.commit();
            let failed: Vec<_> = results
                .iter()
                .filter(|(_, result)| result.is_err())
                .collect();
            assert_eq!(failed.len(), 1, "{failed:?}");
            assert_eq!(failed[0].0, path("exists"));
            for name in ["a/1", "a/b/2", "3"] {
                assert_eq!(std::fs::read(root.path().join(name)).unwrap(), b"new");
            }
            assert_eq!(std::fs::read(root.path().join("exists")).unwrap(), b"old");
            assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 3);
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_fails_alone_and_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let tree = Tree::new(Dir::open(root.path()).unwrap(), [1; 8]);
        let mut batch = Batch::new(&tree, Durable::Batch, false);
        add(&mut batch, &tree, "good", "x");
        add(&mut batch, &tree, "bad", "x");
        batch.written[1].result = Err(io::ErrorKind::StorageFull.into());
        let results = batch.commit();
        assert!(results[0].1.is_ok());
        assert_eq!(
            results[1].1.as_ref().unwrap_err().kind(),
            io::ErrorKind::StorageFull
        );
        assert!(root.path().join("good").exists());
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failure_of_the_file_system_is_one_of_all_its_files() {
        let root = tempfile::tempdir().unwrap();
        let tree = Tree::new(Dir::open(root.path()).unwrap(), [1; 8]);
        let mut batch = Batch::new(&tree, Durable::Batch, false);
        add(&mut batch, &tree, "one", "x");
        add(&mut batch, &tree, "two", "x");
        add(&mut batch, &tree, "elsewhere", "x");
        batch.written[2].device += 1;
        for system in batch.file_systems.values_mut() {
            // syncfs refuses a descriptor that was opened for its path only.
            let flags = rustix::fs::OFlags::PATH;
            let path = rustix::fs::open(root.path(), flags, rustix::fs::Mode::empty()).unwrap();
            (system.file, system.can_sync) = (File::from(path), true);
        }
        let results = batch.commit();
        let is_ok: Vec<_> = results.iter().map(|(_, result)| result.is_ok()).collect();
        assert_eq!(is_ok, [false, false, true]);
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_directory_that_cannot_be_made_durable_fails_its_files() {
        let root = tempfile::tempdir().unwrap();
        let tree = Tree::new(Dir::open(root.path()).unwrap(), [1; 8]);
        let mut written = ["a/1", "b/2", "b/c/3"].map(|name| Written {
            path: path(name),
            device: 0,
            is_named: name == "b/2",
            result: Ok(()),
        });
        // A link has taken its name, so that it cannot be opened for the fsync.
        std::os::unix::fs::symlink(".", root.path().join("b")).unwrap();
        tree.touch(&path("b"));
        sync_names(&tree, &mut written);
        let is_ok = written.map(|written| written.result.is_ok());
        assert_eq!(is_ok, [true, false, false]);
        tree.touch(&path("b"));
        sync_names(&tree, &mut []);
        assert_eq!(tree.sync().len(), 1, "the directory is none of a file");
        assert_eq!(tree.sync().len(), 0);
    }

    #[test]
    fn the_kernel_version_decides() {
        for (release, since) in [
            ("5.8.0-1-amd64", true),
            ("6.18.44", true),
            ("10.0", true),
            ("5.7.19", false),
            ("4.19.0-8", false),
            ("", false),
        ] {
            assert_eq!(is_since_5_8(release), since, "{release}");
        }
    }

    #[test]
    fn many_files_take_few_descriptors() {
        let root = tempfile::tempdir().unwrap();
        let tree = Tree::new(Dir::open(root.path()).unwrap(), [1; 8]);
        let mut batch = Batch::new(&tree, Durable::Batch, false);
        for index in 0..100 {
            add(&mut batch, &tree, &format!("d/{index}"), "x");
        }
        assert_eq!(batch.file_systems.len(), 1);
        assert!(batch.commit().iter().all(|(_, result)| result.is_ok()));
    }
}
