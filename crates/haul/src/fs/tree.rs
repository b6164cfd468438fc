//! The target tree: names resolved and changed beneath an open root.
//!
//! A component that is a symbolic link, or no directory, is an error, also one swapped in
//! meanwhile. What gets a name is complete first: files and links are made under a temporary name
//! and renamed, so an error at any step leaves what had the name as it was.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, OnceLock};

use haul_io::file::Dir;
use haul_io::process::open_file_limit;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::entry::{Kind, Stat, examine};
use super::path::Relative;
use crate::lock;
use crate::name::TEMP_SUFFIX;

/// Open directories that are kept.
const OPEN_MAX: usize = 64;

/// Names of directories that are kept until they are durable, bytes.
const TOUCHED_MAX: usize = 8 << 20;
/// Directories that could not be made durable and are remembered.
const FAILED_MAX: usize = 64;

/// Which session's temporary names these are. No two sessions that may write one tree at a time
/// have the same token; one that resumes has the token of before, and reuses what was left.
pub type Token = [u8; 8];

/// A directory and everything below it, to be written.
#[derive(Debug)]
pub struct Tree {
    root: Arc<Dir>,
    token: String,
    /// The directories used last, the most recent one first.
    open: Mutex<VecDeque<(Relative, Arc<Dir>)>>,
    touched: Mutex<Touched>,
}

/// Directories whose names have changed since they were durable.
#[derive(Debug, Default)]
struct Touched {
    names: BTreeSet<Relative>,
    /// Of `names`, bytes.
    bytes: usize,
    /// What could not be made durable, and nobody knows of yet.
    failed: Vec<(Relative, io::Error)>,
}

/// A file under its temporary name.
#[derive(Debug)]
pub struct Part {
    path: Relative,
    file: File,
}

impl Part {
    /// Returns the path that the file is going to have.
    #[must_use]
    pub fn path(&self) -> &Relative {
        &self.path
    }

    /// Returns the file, for its content and attributes.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn into_parts(self) -> (Relative, File) {
        (self.path, self.file)
    }
}

impl Tree {
    /// Takes the root of the tree.
    #[must_use]
    pub fn new(root: Dir, token: Token) -> Self {
        Self {
            root: Arc::new(root),
            token: token.iter().map(|byte| format!("{byte:02x}")).collect(),
            open: Mutex::default(),
            touched: Mutex::default(),
        }
    }

    /// Runs `work` on a thread that changes nothing outside the tree, whatever paths it is led to,
    /// where the kernel sees to that: a second guard, beside the way in which paths are resolved
    /// here. The threads that it starts are like it.
    ///
    /// # Errors
    /// The system has no thread.
    pub(crate) fn confined<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let work = || {
            // Older kernels have no such guard.
            let _ = haul_io::confine::write_beneath(&*self.root);
            work()
        };
        std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().name("haul-files".into());
            let thread = builder.spawn_scoped(scope, work)?;
            Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })
    }

    /// Opens a directory of the tree.
    ///
    /// # Errors
    /// That of `openat2(2)`; `CrossesDevices` where a component is a symbolic link.
    pub fn directory(&self, path: &Relative) -> io::Result<Arc<Dir>> {
        if path.is_root() {
            return Ok(Arc::clone(&self.root));
        }
        let mut open = lock(&self.open);
        let known = open.iter().position(|(known, _)| known == path);
        let found = match known.and_then(|at| open.remove(at)) {
            Some(found) => found,
            None => (
                path.clone(),
                Arc::new(self.root.open_beneath(path.as_path())?),
            ),
        };
        let dir = Arc::clone(&found.1);
        open.push_front(found);
        open.truncate(open_share(OPEN_MAX));
        Ok(dir)
    }

    /// Returns what a path stands for, without following a symbolic link; `None` where there is
    /// nothing.
    ///
    /// # Errors
    /// Those of [`Tree::directory`] and `fstatat(2)`.
    pub fn look(&self, path: &Relative) -> io::Result<Option<(Kind, Stat)>> {
        let found = self.resolve(path).and_then(|(dir, name)| {
            let name = CString::new(name.into_vec())?;
            examine(&dir, &name)
        });
        match found {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a directory, and those above it, where they are missing. Returns whether it was.
    ///
    /// Its owner may use it until its own mode is set.
    ///
    /// # Errors
    /// Those of [`Tree::directory`] and `mkdirat(2)`; `NotADirectory` where something else has the
    /// name.
    pub fn make_directory(&self, path: &Relative, mode: u32) -> io::Result<bool> {
        match self.directory(path) {
            Ok(_) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        for above in path.ancestors() {
            self.make_one(&above, 0o777)?;
        }
        self.make_one(path, mode)
    }

    fn make_one(&self, path: &Relative, mode: u32) -> io::Result<bool> {
        let (dir, name) = self.resolve(path)?;
        match rustix::fs::mkdirat(&dir, &name, Mode::from_raw_mode(mode & 0o777 | 0o700)) {
            Ok(()) => self.touch_parent(path),
            Err(Errno::EXIST) => return self.directory(path).map(|_| false),
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }

    /// Makes an empty file for `path` under its temporary name, and the directories above.
    ///
    /// `mode` restricts who may read it until its own mode is set.
    ///
    /// # Errors
    /// Those of [`Tree::make_directory`] and `openat2(2)`.
    pub fn create(&self, path: &Relative, mode: u32) -> io::Result<Part> {
        let (dir, name) = self.make_parent(path)?;
        let part = self.part_name(&name);
        let file = create_new(&dir, &part, Mode::from_raw_mode(mode & 0o777 | 0o600))?;
        Ok(Part {
            path: path.clone(),
            file: File::from(file),
        })
    }

    /// Gives a file its final name; what has that name is replaced only where `replace` is set.
    ///
    /// # Errors
    /// That of `renameat2(2)`; `AlreadyExists` where the name exists and may not be replaced, or
    /// where it differs from an existing one only in case.
    pub fn publish(&self, path: &Relative, replace: bool) -> io::Result<()> {
        let (dir, name) = self.resolve(path)?;
        self.rename_part(path, &dir, &name, replace)
    }

    /// Removes a file that did not get its final name.
    ///
    /// # Errors
    /// That of `unlinkat(2)`.
    pub fn discard(&self, path: &Relative) -> io::Result<()> {
        let (dir, name) = self.resolve(path)?;
        dir.remove(&self.part_name(&name))
    }

    /// Makes a symbolic link, in place of a file or link that has the name.
    ///
    /// # Errors
    /// As [`Tree::create`] and [`Tree::publish`].
    pub fn symlink(&self, path: &Relative, target: &[u8], replace: bool) -> io::Result<()> {
        let (dir, name) = self.make_parent(path)?;
        let part = self.part_name(&name);
        let target = OsStr::from_bytes(target);
        match rustix::fs::symlinkat(target, &dir, &part) {
            Err(Errno::EXIST) => {
                dir.remove(&part)?;
                rustix::fs::symlinkat(target, &dir, &part)?;
            }
            result => result?,
        }
        self.rename_part(path, &dir, &name, replace)
    }

    /// Gives the file `existing` the further name `path`, in place of a file or link that has it.
    ///
    /// # Errors
    /// As [`Tree::create`] and [`Tree::publish`]; `TooManyLinks` where the file system allows no
    /// more names (the caller copies the file), and `CrossesDevices` where a mount lies between.
    pub fn hard_link(&self, existing: &Relative, path: &Relative, replace: bool) -> io::Result<()> {
        let (from, old) = self.resolve(existing)?;
        let (dir, name) = self.make_parent(path)?;
        let part = self.part_name(&name);
        let link = || rustix::fs::linkat(&from, &old, &dir, &part, AtFlags::empty());
        match link() {
            Err(Errno::EXIST) => {
                dir.remove(&part)?;
                link()?;
            }
            result => result?,
        }
        self.rename_part(path, &dir, &name, replace)?;
        // Where both names were of one file already, rename(2) does nothing.
        dir.remove(&part)
    }

    /// Removes a name that is not a directory's; one that does not exist is no error.
    ///
    /// # Errors
    /// Those of [`Tree::directory`] and `unlinkat(2)`.
    pub fn remove(&self, path: &Relative) -> io::Result<()> {
        self.unlink(path, AtFlags::empty())
    }

    /// Removes an empty directory; one that does not exist is no error.
    ///
    /// # Errors
    /// Those of [`Tree::directory`] and `unlinkat(2)`; `DirectoryNotEmpty`.
    pub fn remove_directory(&self, path: &Relative) -> io::Result<()> {
        self.unlink(path, AtFlags::REMOVEDIR)?;
        lock(&self.open).retain(|(open, _)| open != path);
        lock(&self.touched).names.remove(path);
        Ok(())
    }

    fn unlink(&self, path: &Relative, flags: AtFlags) -> io::Result<()> {
        let (dir, name) = match self.resolve(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            result => result?,
        };
        match rustix::fs::unlinkat(&dir, &name, flags) {
            Ok(()) => self.touch_parent(path),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Returns the directory that holds `path`, open, and the name in it.
    ///
    /// # Errors
    /// Those of [`Tree::directory`]; `InvalidInput` for the root.
    pub fn resolve(&self, path: &Relative) -> io::Result<(Arc<Dir>, OsString)> {
        let (parent, name) = path.split().ok_or(io::ErrorKind::InvalidInput)?;
        Ok((self.directory(&parent)?, name.to_owned()))
    }

    /// Makes the names that have changed durable, each directory once, and returns what failed.
    pub fn sync(&self) -> Vec<(Relative, io::Error)> {
        let touched = std::mem::take(&mut *lock(&self.touched));
        let sync = |path: Relative| match self.directory(&path).and_then(|dir| dir.sync()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Some((path, error)),
            _ => None,
        };
        let mut failed = touched.failed;
        failed.extend(touched.names.into_iter().filter_map(sync));
        failed
    }

    /// Forgets which names have changed: nobody waits until they are durable.
    pub fn forget_names(&self) {
        *lock(&self.touched) = Touched::default();
    }

    /// Remembers what [`Tree::sync`] returned, for the next one.
    pub fn keep_failed(&self, failed: impl IntoIterator<Item = (Relative, io::Error)>) {
        let mut touched = lock(&self.touched);
        let room = FAILED_MAX.saturating_sub(touched.failed.len());
        touched.failed.extend(failed.into_iter().take(room));
    }

    /// Notes that a directory must be made durable. Blocks while too many are made so.
    pub fn touch(&self, directory: &Relative) {
        let mut touched = lock(&self.touched);
        if touched.names.contains(directory) {
            return;
        }
        touched.bytes += directory.as_bytes().len() + size_of::<Relative>();
        touched.names.insert(directory.clone());
        if touched.bytes > TOUCHED_MAX {
            drop(touched);
            self.keep_failed(self.sync());
        }
    }

    /// Makes a file without a name in the root.
    ///
    /// # Errors
    /// Those of `openat(2)` and `unlinkat(2)`.
    pub fn scratch(&self) -> io::Result<File> {
        // No temporary name of a member: those have a name before the token.
        let name = OsString::from(format!(".{}{TEMP_SUFFIX}", self.token));
        let file = create_new(&self.root, &name, Mode::from_raw_mode(0o600))?;
        self.root.remove(&name)?;
        Ok(File::from(file))
    }

    fn touch_parent(&self, path: &Relative) {
        if let Some((parent, _)) = path.split() {
            self.touch(&parent);
        }
    }

    fn make_parent(&self, path: &Relative) -> io::Result<(Arc<Dir>, OsString)> {
        let (parent, name) = path.split().ok_or(io::ErrorKind::InvalidInput)?;
        self.make_directory(&parent, 0o777)?;
        Ok((self.directory(&parent)?, name.to_owned()))
    }

    fn rename_part(
        &self,
        path: &Relative,
        dir: &Dir,
        name: &OsStr,
        replace: bool,
    ) -> io::Result<()> {
        let part = self.part_name(name);
        let named =
            refuse_other_case(dir, name, &part).and_then(|()| dir.rename(&part, name, replace));
        if named.is_err() {
            // The first error is the one to report.
            let _ = dir.remove(&part);
        }
        self.touch_parent(path);
        named
    }

    /// Returns `.NAME.TOKEN.haul-temp`, with a long name cut and made unique by a hash.
    fn part_name(&self, name: &OsStr) -> OsString {
        let mut part = b".".to_vec();
        part.extend_from_slice(&name.as_bytes()[..name.len().min(200)]);
        if name.len() > 200 {
            let hash = blake3::hash(name.as_bytes()).to_hex();
            part.extend_from_slice(&hash.as_bytes()[..16]);
        }
        part.push(b'.');
        part.extend_from_slice(self.token.as_bytes());
        part.extend_from_slice(TEMP_SUFFIX.as_bytes());
        OsString::from_vec(part)
    }
}

/// Returns how many files one purpose may keep open, at most `most`: fewer where the process may
/// open few.
pub(crate) fn open_share(most: usize) -> usize {
    static LIMIT: OnceLock<u64> = OnceLock::new();
    let share = *LIMIT.get_or_init(open_file_limit) / 8;
    usize::try_from(share).unwrap_or(most).clamp(1, most)
}

/// Makes a file of this name, which is one component. One that exists was left by this session
/// before it was killed, and is removed.
fn create_new(dir: &Dir, name: &OsStr, mode: Mode) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    // O_EXCL follows no link, so openat(2) stays in `dir`.
    let create = || rustix::fs::openat(dir, name, flags, mode);
    match create() {
        Err(Errno::EXIST) => {
            dir.remove(name)?;
            Ok(create()?)
        }
        result => Ok(result?),
    }
}

/// Refuses a name for which the directory has one that differs only in case: renaming would
/// replace that other file. `part` exists there.
pub(crate) fn refuse_other_case(dir: &Dir, name: &OsStr, part: &OsStr) -> io::Result<()> {
    if dir.metadata(name)?.is_none()
        || dir.metadata(&part.to_ascii_uppercase())?.is_none()
        || has_exactly(dir, name)?
    {
        return Ok(());
    }
    let text = "a name exists that differs only in case";
    Err(io::Error::new(io::ErrorKind::AlreadyExists, text))
}

/// Returns whether the directory lists this name, byte by byte.
fn has_exactly(dir: &Dir, name: &OsStr) -> io::Result<bool> {
    for entry in rustix::fs::Dir::read_from(dir)? {
        if entry?.file_name().to_bytes() == name.as_bytes() {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt, symlink};
    use std::path::Path;

    use super::*;

    fn path(text: &str) -> Relative {
        Relative::new(text.as_bytes()).unwrap()
    }

    fn tree(root: &Path) -> Tree {
        Tree::new(Dir::open(root).unwrap(), [7; 8])
    }

    fn names(root: &Path) -> Vec<String> {
        let names = std::fs::read_dir(root)
            .unwrap()
            .map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_has_its_name_only_once_it_is_published() {
        let root = tempfile::tempdir().unwrap();
        let tree = tree(root.path());
        let file = path("a/b/file");
        let part = tree.create(&file, 0o640).unwrap();
        part.file().write_all_at(b"new", 0).unwrap();
        assert!(tree.look(&file).unwrap().is_none());
        tree.publish(&file, false).unwrap();
        assert_eq!(std::fs::read(root.path().join("a/b/file")).unwrap(), b"new");
        assert_eq!(names(&root.path().join("a/b")), ["file"]);
        assert_eq!(tree.sync().len(), 0);
        assert!(lock(&tree.touched).names.is_empty());
    }

    /// A directory is swapped for a link that leads outside, again and again, while files are made
    /// in it. `HAUL_RACES` says how many.
    #[test]
    fn a_directory_swapped_for_a_link_while_files_are_made_leads_nowhere() {
        let races = std::env::var("HAUL_RACES").map_or(5_000, |races| races.parse().unwrap());
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (inside, aside) = (root.path().join("d"), root.path().join("aside"));
        std::fs::create_dir(&inside).unwrap();
        symlink(outside.path(), root.path().join("link")).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        let made = std::thread::scope(|scope| {
            scope.spawn(|| {
                // The tree may make the directory at any moment, so that a step fails.
                let link = root.path().join("link");
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = std::fs::rename(&inside, &aside);
                    if std::fs::rename(&link, &inside).is_ok() {
                        std::thread::yield_now();
                        std::fs::rename(&inside, &link).unwrap();
                    }
                    let _ = std::fs::rename(&aside, &inside);
                    let _ = std::fs::remove_dir_all(&aside);
                    // Now files can be made.
                    std::thread::sleep(std::time::Duration::from_micros(100));
                }
            });
            let mut made = 0;
            for _ in 0..races {
                // Each with a cold cache of directories.
                let tree = tree(root.path());
                let create = || tree.create(&path("d/f"), 0o600);
                made += u32::from(
                    create()
                        .and_then(|_| tree.publish(&path("d/f"), true))
                        .is_ok(),
                );
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            made
        });
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
        println!("{made} of {races} were made");
        assert!(made > 0);
    }

    #[test]
    fn what_was_left_under_the_temporary_name_is_replaced() {
        let root = tempfile::tempdir().unwrap();
        let tree = tree(root.path());
        drop(tree.create(&path("f"), 0o600).unwrap());
        let part = tree.create(&path("f"), 0o600).unwrap();
        assert_eq!(part.file().metadata().unwrap().len(), 0);
        assert_eq!(names(root.path()), [".f.0707070707070707.haul-temp"]);
        assert!(crate::name::is_own(names(root.path())[0].as_bytes()));
        tree.discard(&path("f")).unwrap();
        assert!(names(root.path()).is_empty());
    }

    #[test]
    fn an_existing_file_stays_whole_unless_it_may_be_replaced() {
        let root = tempfile::tempdir().unwrap();
        let tree = tree(root.path());
        std::fs::write(root.path().join("f"), "old").unwrap();
        tree.create(&path("f"), 0o600).unwrap();
        let refused = tree.publish(&path("f"), false).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(root.path().join("f")).unwrap(), b"old");
        assert_eq!(names(root.path()), ["f"], "no temporary file is left");
        tree.create(&path("f"), 0o600).unwrap();
        tree.publish(&path("f"), true).unwrap();
        assert_eq!(std::fs::read(root.path().join("f")).unwrap(), b"");
    }

    #[test]
    fn neither_links_nor_files_in_the_way_lead_elsewhere() {
        let outside = tempfile::tempdir().unwrap();
        let root = tempfile::tempdir().unwrap();
        let tree = tree(root.path());
        symlink(outside.path(), root.path().join("link")).unwrap();
        std::fs::write(root.path().join("file"), "x").unwrap();
        for (way, kind) in [
            ("link", io::ErrorKind::CrossesDevices),
            ("file", io::ErrorKind::NotADirectory),
        ] {
            let below = path(&format!("{way}/x"));
            assert_eq!(
                tree.make_directory(&path(way), 0o755).unwrap_err().kind(),
                kind
            );
            assert_eq!(tree.make_directory(&below, 0o755).unwrap_err().kind(), kind);
            assert_eq!(tree.create(&below, 0o600).unwrap_err().kind(), kind);
            assert_eq!(tree.symlink(&below, b"t", true).unwrap_err().kind(), kind);
            assert!(tree.hard_link(&path("file"), &below, true).is_err());
            assert!(tree.remove(&below).is_err() && tree.remove_directory(&below).is_err());
        }
        assert!(names(outside.path()).is_empty());
        // A link as the last component is itself replaced.
        tree.create(&path("link"), 0o600).unwrap();
        tree.publish(&path("link"), true).unwrap();
        assert!(
            root.path()
                .join("link")
                .symlink_metadata()
                .unwrap()
                .is_file()
        );
        // A directory is not replaced by a file.
        tree.make_directory(&path("dir"), 0o755).unwrap();
        tree.create(&path("dir"), 0o600).unwrap();
        assert!(tree.publish(&path("dir"), true).is_err());
    }

    #[test]
    fn links_are_made_and_replaced() {
        let root = tempfile::tempdir().unwrap();
        let tree = tree(root.path());
        std::fs::write(root.path().join("old"), "x").unwrap();
        tree.symlink(&path("d/s"), b"\xff/..", false).unwrap();
        let (kind, _) = tree.look(&path("d/s")).unwrap().unwrap();
        assert_eq!(kind, Kind::Symlink(b"\xff/.."[..].into()));
        assert!(tree.symlink(&path("d/s"), b"other", false).is_err());
        tree.symlink(&path("d/s"), b"other", true).unwrap();
        for _ in 0..2 {
            // The second time, both names are of one file already.
            tree.hard_link(&path("old"), &path("d/s"), true).unwrap();
        }
        let stat = root.path().join("d/s").symlink_metadata().unwrap();
        assert_eq!(stat.nlink(), 2);
        assert_eq!(names(&root.path().join("d")), ["s"]);
        let missing = tree.hard_link(&path("none"), &path("y"), true).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn removing_takes_names_and_empty_directories() {
        let root = tempfile::tempdir().unwrap();
        let tree = tree(root.path());
        tree.create(&path("a/f"), 0o600).unwrap();
        tree.publish(&path("a/f"), false).unwrap();
        let full = tree.remove_directory(&path("a")).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::DirectoryNotEmpty);
        tree.remove(&path("a/f")).unwrap();
        tree.remove(&path("a/f")).unwrap();
        tree.remove_directory(&path("a")).unwrap();
        assert!(names(root.path()).is_empty());
        assert!(
            tree.make_directory(&path("a"), 0o755).unwrap(),
            "not the one removed"
        );
        tree.create(&path("a/g"), 0o600).unwrap();
        tree.publish(&path("a/g"), false).unwrap();
        assert_eq!(tree.sync().len(), 0);
    }

    #[test]
    fn few_directories_stay_open() {
        let root = tempfile::tempdir().unwrap();
        let tree = tree(root.path());
        for index in 0..3 * OPEN_MAX {
            let dir = path(&format!("d{index}"));
            assert!(tree.make_directory(&dir, 0o755).unwrap());
            tree.directory(&dir).unwrap();
            tree.directory(&path("d0")).unwrap();
        }
        let open = lock(&tree.open);
        assert_eq!(open.len(), OPEN_MAX);
        assert_eq!(open[0].0, path("d0"));
    }

    #[test]
    fn the_longest_name_has_a_temporary_one_of_its_own() {
        let tree = tree(Path::new("."));
        let mut other = [b'a'; 255];
        other[254] = b'b';
        let (one, two) = ([b'a'; 255], other);
        let part = |name: &[u8]| tree.part_name(OsStr::from_bytes(name));
        assert!(part(&one).len() <= 255);
        assert_ne!(part(&one), part(&two));
    }
}
