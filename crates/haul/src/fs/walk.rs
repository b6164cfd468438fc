//! The walk of a source tree: entries while it still reads, a directory before its content.
//!
//! Several threads read directories, each opened beneath the root by `openat2`, and send the
//! entries in chunks through a bounded queue; a consumer that is slow stops them. Nothing is
//! sorted, but for the names of one read, by their inodes. What cannot be examined is a [`Failure`]
//! among the entries, not the end of the walk.
//!
//! Memory: the queue (4096 entries), 16,384 directories not yet read, and up to 64 MiB for files
//! with several names. If more directories wait, the thread that finds one reads it at once; it
//! then holds one descriptor for each level of the tree. If more files have several names, further
//! ones are entries of their own, which [`Counts::links_split`] counts.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender};
use haul_io::file::{Dir, FileTime};
use rustix::fs::RawDir;

use super::entry::{Entry, Kind, Stat, examine};
use super::filter::{Filter, Scope};
use super::path::Relative;
use crate::fault::plain;
use crate::{lock, name};

/// Entries that a thread sends at once.
const CHUNK: usize = 128;
/// Chunks that wait for the consumer.
const CHUNKS: usize = 32;
/// Directories that wait to be read.
const PENDING_MAX: usize = 16 << 10;
/// Memory for files with several names, bytes.
const LINKS_MAX: usize = 64 << 20;
/// What one such file takes beside its path, bytes.
const LINK_OVERHEAD: usize = 96;
/// Read size of a directory, bytes.
const DIRECTORY_BUFFER: usize = 32 << 10;

/// The options of a walk.
#[derive(Debug, Clone)]
pub struct Options {
    /// Threads that read directories.
    pub threads: usize,
    /// Which entries to return.
    pub filter: Filter,
    /// Where to begin, as [`super::filter::read_list`] returns it; `None` is the whole tree. The
    /// directories above are returned too.
    pub list: Option<Vec<Relative>>,
    /// Read directories below those where the walk begins.
    pub is_recursive: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: 4,
            filter: Filter::default(),
            list: None,
            is_recursive: true,
        }
    }
}

/// A part of the tree that could not be examined. The walk goes on, and its scan is incomplete.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} '{}': {}", shown(path), plain(error))]
pub struct Failure {
    /// The entry or directory, below the root; the name may be one that [`Relative`] refuses.
    pub path: Box<[u8]>,
    /// What failed.
    pub doing: Doing,
    /// Why.
    pub error: io::Error,
}

fn shown(path: &[u8]) -> String {
    crate::printable(if path.is_empty() { b"." } else { path })
}

/// The step of a walk that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// Opening a directory; its content is missing.
    Open,
    /// Reading a directory; the rest of its content is missing.
    Read,
    /// Examining an entry.
    Examine,
    /// Naming an entry: the path is too long.
    Name,
    /// Reading the ignore file of a directory; its content is missing.
    Filter,
}

impl std::fmt::Display for Doing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Open => "open the directory",
            Self::Read => "read the directory",
            Self::Examine => "examine",
            Self::Name => "name",
            Self::Filter => "use .haulignore of the directory",
        })
    }
}

/// The entries that a walk has returned so far, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Regular files, further names not counted.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Directories below the root.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Further names of files.
    pub hard_links: u64,
    /// Names of files with several names that are entries of their own, for lack of memory.
    pub links_split: u64,
    /// Devices, pipes and sockets.
    pub special: u64,
    /// Entries that the filter left out; what lies below a directory is not counted.
    pub excluded: u64,
    /// What could not be examined.
    pub failures: u64,
}

/// A walk in progress: an iterator over entries and failures.
///
/// It ends early only if it is dropped, which stops its threads.
#[derive(Debug)]
pub struct Walk {
    root: Entry,
    shared: Arc<Shared>,
    /// `None` once dropped.
    chunks: Option<Receiver<Vec<Found>>>,
    chunk: std::vec::IntoIter<Found>,
    links: Links,
    counts: Counts,
    threads: Vec<JoinHandle<()>>,
}

type Found = Result<Entry, Failure>;

impl Walk {
    /// Begins to walk what lies below `root`.
    ///
    /// # Errors
    /// The root cannot be examined, or no thread can be started.
    pub fn start(root: Dir, options: &Options) -> io::Result<Self> {
        Self::with_pending(root, options, PENDING_MAX)
    }

    fn with_pending(root: Dir, options: &Options, pending_max: usize) -> io::Result<Self> {
        let (stat, _) = Stat::of(&rustix::fs::fstat(&root)?);
        let (sender, chunks) = crossbeam_channel::bounded(CHUNKS);
        let first = match &options.list {
            None => Job::Directory(Relative::root(), Scope::default()),
            Some(list) => Job::List(list.clone()),
        };
        let mut walk = Self {
            root: Entry {
                path: Relative::root(),
                kind: Kind::Directory,
                stat,
            },
            shared: Arc::new(Shared {
                root,
                queue: Mutex::new(Queue {
                    pending: vec![first],
                    pending_max,
                    busy: 0,
                    stopped: false,
                }),
                changed: Condvar::new(),
                filter: options.filter.clone(),
                is_recursive: options.is_recursive,
                excluded: AtomicU64::new(0),
            }),
            chunks: Some(chunks),
            chunk: Vec::new().into_iter(),
            links: Links::default(),
            counts: Counts::default(),
            threads: Vec::new(),
        };
        for _ in 0..options.threads.max(1) {
            let mut worker = Worker::new(&walk.shared, sender.clone());
            let thread = std::thread::Builder::new().name("haul-walk".into());
            walk.threads.push(thread.spawn(move || worker.run())?);
        }
        Ok(walk)
    }

    /// Returns the root itself, which is not among the entries.
    #[must_use]
    pub fn root(&self) -> &Entry {
        &self.root
    }

    /// Returns what the walk has returned until now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            excluded: self.shared.excluded.load(Ordering::Relaxed),
            ..self.counts
        }
    }

    /// Ends the walk. What a thread would have returned that panicked is a failure.
    fn end(&mut self) -> Option<Found> {
        let joined = self.threads.drain(..).map(JoinHandle::join);
        if joined.filter(Result::is_err).count() == 0 {
            return None;
        }
        let found = Err(Failure {
            path: Box::default(),
            doing: Doing::Read,
            error: io::Error::other("a thread that reads directories has failed"),
        });
        self.count(&found);
        Some(found)
    }

    fn count(&mut self, found: &Found) {
        let counts = &mut self.counts;
        match found {
            Ok(entry) => match entry.kind {
                Kind::File => {
                    counts.files += 1;
                    counts.bytes = counts.bytes.saturating_add(entry.stat.size);
                }
                Kind::Directory => counts.directories += 1,
                Kind::Symlink(_) => counts.symlinks += 1,
                Kind::HardLink(_) => counts.hard_links += 1,
                Kind::Special => counts.special += 1,
            },
            Err(_) => counts.failures += 1,
        }
    }
}

impl Iterator for Walk {
    type Item = Result<Entry, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut found = loop {
            if let Some(found) = self.chunk.next() {
                break found;
            }
            let Ok(chunk) = self.chunks.as_ref()?.recv() else {
                return self.end();
            };
            self.chunk = chunk.into_iter();
        };
        if let Ok(entry) = &mut found
            && entry.kind == Kind::File
            && entry.stat.links > 1
        {
            // Decided here and not by the threads, so that the first name has been returned.
            match self.links.look(entry) {
                Name::First => {}
                Name::Further(first) => entry.kind = Kind::HardLink(first),
                Name::Unknown => self.counts.links_split += 1,
            }
        }
        self.count(&found);
        Some(found)
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        lock(&self.shared.queue).stopped = true;
        self.shared.changed.notify_all();
        // A thread that waits for room in the queue ends with it.
        self.chunks = None;
        for thread in self.threads.drain(..) {
            // A panic of a thread has been printed; there is no more to do about it.
            let _ = thread.join();
        }
    }
}

/// Files with several names, of which not all have been returned.
#[derive(Debug, Default)]
struct Links {
    first: HashMap<(u64, u64), Linked>,
    memory: usize,
}

#[derive(Debug)]
struct Linked {
    path: Relative,
    /// Names that have not been returned.
    left: u64,
    /// Another file may get the inode number during the walk, but not with this time.
    changed: FileTime,
}

enum Name {
    First,
    Further(Relative),
    /// No memory is left to remember it.
    Unknown,
}

impl Links {
    fn look(&mut self, entry: &Entry) -> Name {
        let cost = |path: &Relative| path.as_bytes().len() + LINK_OVERHEAD;
        let Stat {
            identity,
            changed,
            links,
            ..
        } = entry.stat;
        match self.first.entry(identity) {
            Slot::Occupied(mut known) if known.get().changed == changed => {
                let linked = known.get_mut();
                let path = linked.path.clone();
                linked.left -= 1;
                if linked.left == 0 {
                    self.memory -= cost(&path);
                    known.remove();
                }
                return Name::Further(path);
            }
            Slot::Occupied(other) => self.memory -= cost(&other.remove().path),
            Slot::Vacant(_) => {}
        }
        if self.memory + cost(&entry.path) > LINKS_MAX {
            return Name::Unknown;
        }
        self.memory += cost(&entry.path);
        let linked = Linked {
            path: entry.path.clone(),
            left: links - 1,
            changed,
        };
        self.first.insert(identity, linked);
        Name::First
    }
}

#[derive(Debug)]
struct Shared {
    root: Dir,
    queue: Mutex<Queue>,
    /// A directory was added, or no more will be.
    changed: Condvar,
    filter: Filter,
    is_recursive: bool,
    excluded: AtomicU64,
}

#[derive(Debug)]
struct Queue {
    pending: Vec<Job>,
    pending_max: usize,
    /// Threads that read a directory, and may find more.
    busy: usize,
    stopped: bool,
}

#[derive(Debug)]
enum Job {
    /// A directory to read, and the ignore files that count above it.
    Directory(Relative, Scope),
    /// Where to begin.
    List(Vec<Relative>),
}

impl Shared {
    /// Blocks until there is a directory to read; `None` at the end of the walk.
    fn take(&self) -> Option<Job> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.stopped {
                return None;
            }
            if let Some(job) = queue.pending.pop() {
                queue.busy += 1;
                return Some(job);
            }
            if queue.busy == 0 {
                return None;
            }
            queue = self
                .changed
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn done(&self) {
        let mut queue = lock(&self.queue);
        queue.busy -= 1;
        if queue.busy == 0 {
            self.changed.notify_all();
        }
    }

    /// Adds directories to be read, and returns those for which there is no room.
    fn add(&self, mut found: Vec<Job>) -> Vec<Job> {
        let mut queue = lock(&self.queue);
        let room = queue.pending_max.saturating_sub(queue.pending.len());
        let rest = found.split_off(room.min(found.len()));
        queue.pending.append(&mut found);
        self.changed.notify_all();
        rest
    }
}

/// A thread reads a directory, until this is dropped: also by a panic, or the others would wait.
struct Busy<'a>(&'a Shared);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.done();
    }
}

/// A directory above a path of a list.
enum Above {
    Open(Dir, Scope),
    Excluded,
    Failed,
}

impl Above {
    fn of(entered: Option<(Dir, Scope)>) -> Self {
        entered.map_or(Self::Failed, |(dir, scope)| Self::Open(dir, scope))
    }
}

/// The consumer is gone.
struct Stopped;

struct Worker {
    shared: Arc<Shared>,
    chunks: Sender<Vec<Found>>,
    chunk: Vec<Found>,
    /// Directories in `chunk`, to be read once it is sent.
    found: Vec<Job>,
}

impl Worker {
    fn new(shared: &Arc<Shared>, chunks: Sender<Vec<Found>>) -> Self {
        Self {
            shared: Arc::clone(shared),
            chunks,
            chunk: Vec::new(),
            found: Vec::new(),
        }
    }

    fn run(&mut self) {
        let shared = Arc::clone(&self.shared);
        while let Some(job) = shared.take() {
            let _busy = Busy(&shared);
            if self.work(job).is_err() {
                return;
            }
        }
    }

    fn work(&mut self, job: Job) -> Result<(), Stopped> {
        match job {
            Job::Directory(path, outer) => {
                if let Some((dir, scope)) = self.enter(&path, &outer)? {
                    self.read(&dir, &path, &scope)?;
                }
            }
            Job::List(list) => self.list(&list)?,
        }
        self.flush()
    }

    /// Opens a directory, and reads its ignore file.
    fn enter(&mut self, path: &Relative, outer: &Scope) -> Result<Option<(Dir, Scope)>, Stopped> {
        let (doing, error) = match self.shared.root.open_beneath(path.as_path()) {
            Err(error) => (Doing::Open, error),
            Ok(dir) => match self.shared.filter.enter(&dir, path, outer) {
                Err(error) => (Doing::Filter, error),
                Ok(scope) => return Ok(Some((dir, scope))),
            },
        };
        self.fail(path.as_bytes(), doing, error)?;
        Ok(None)
    }

    fn read(&mut self, dir: &impl AsFd, path: &Relative, scope: &Scope) -> Result<(), Stopped> {
        let mut buffer = Vec::with_capacity(DIRECTORY_BUFFER);
        let mut names = RawDir::new(dir, buffer.spare_capacity_mut());
        // File systems return names in the order of their hashes; that of inodes is the disk's.
        let mut batch: Vec<(u64, CString)> = Vec::new();
        while let Some(read) = names.next() {
            match read {
                Ok(name) => batch.push((name.ino(), name.file_name().to_owned())),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return self.fail(path.as_bytes(), Doing::Read, error.into()),
            }
            if names.is_buffer_empty() {
                batch.sort_unstable();
                for (_, name) in batch.drain(..) {
                    self.name(dir, path, &name, scope)?;
                }
                self.flush()?;
            }
        }
        Ok(())
    }

    fn name(
        &mut self,
        dir: &impl AsFd,
        parent: &Relative,
        name: &CStr,
        scope: &Scope,
    ) -> Result<(), Stopped> {
        let bytes = name.to_bytes();
        if matches!(bytes, b"." | b"..") || name::is_own(bytes) {
            return Ok(());
        }
        let Ok(path) = parent.join(bytes) else {
            let path = [parent.as_bytes(), b"/", bytes].concat();
            return self.fail(&path, Doing::Name, rustix::io::Errno::NAMETOOLONG.into());
        };
        match examine(dir, name) {
            Ok((kind, stat)) => self
                .take(Entry { path, kind, stat }, scope, self.shared.is_recursive)
                .map(|_| ()),
            // Removed since the directory was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => self.fail(path.as_bytes(), Doing::Examine, error),
        }
    }

    /// Returns an entry unless it is excluded, and where `descends` has a directory read. Returns
    /// whether it was returned.
    fn take(&mut self, entry: Entry, scope: &Scope, descends: bool) -> Result<bool, Stopped> {
        let is_directory = entry.kind == Kind::Directory;
        if self
            .shared
            .filter
            .excludes(scope, &entry.path, is_directory)
        {
            self.shared.excluded.fetch_add(1, Ordering::Relaxed);
            return Ok(false);
        }
        if is_directory && descends {
            self.found
                .push(Job::Directory(entry.path.clone(), scope.clone()));
        }
        self.push(Ok(entry))?;
        Ok(true)
    }

    /// Begins at each path of a list, which is sorted.
    fn list(&mut self, list: &[Relative]) -> Result<(), Stopped> {
        let root = Relative::root();
        if list == [root.clone()] {
            return self.work(Job::Directory(root, Scope::default()));
        }
        let entered = self.enter(&root, &Scope::default())?;
        // The directories above the path before, from the root on.
        let mut above = vec![(root, Above::of(entered))];
        for path in list {
            above.retain(|(directory, _)| path.is_in(directory));
            let known = above.len() - 1;
            for ancestor in path.ancestors().skip(known) {
                let found = self.descend(&above, &ancestor)?;
                above.push((ancestor, found));
            }
            match above.last() {
                Some((_, Above::Open(dir, scope))) => {
                    self.begin(dir, path, scope, true)?;
                }
                Some((_, Above::Failed)) => {
                    let error = io::ErrorKind::NotFound.into();
                    self.fail(path.as_bytes(), Doing::Examine, error)?;
                }
                Some((_, Above::Excluded)) | None => {}
            }
        }
        Ok(())
    }

    /// Returns and enters a directory that lies above a path of a list.
    fn descend(
        &mut self,
        above: &[(Relative, Above)],
        directory: &Relative,
    ) -> Result<Above, Stopped> {
        match above.last() {
            Some((_, Above::Open(dir, scope))) => match self.begin(dir, directory, scope, false)? {
                Some(true) => self.enter(directory, scope).map(Above::of),
                Some(false) => Ok(Above::Excluded),
                None => Ok(Above::Failed),
            },
            Some((_, Above::Excluded)) => Ok(Above::Excluded),
            Some((_, Above::Failed)) | None => Ok(Above::Failed),
        }
    }

    /// Returns the last component of `path`, in `dir`: whether it was taken, or `None` if it cannot
    /// be examined, which is a failure if the list names it.
    fn begin(
        &mut self,
        dir: &Dir,
        path: &Relative,
        scope: &Scope,
        is_listed: bool,
    ) -> Result<Option<bool>, Stopped> {
        let name = CString::new(path.name()).unwrap_or_default();
        match examine(dir, &name) {
            Ok((kind, stat)) => {
                let path = path.clone();
                let taken = self.take(Entry { path, kind, stat }, scope, is_listed)?;
                Ok(Some(taken))
            }
            Err(error) => {
                if is_listed {
                    self.fail(path.as_bytes(), Doing::Examine, error)?;
                }
                Ok(None)
            }
        }
    }

    fn fail(&mut self, path: &[u8], doing: Doing, error: io::Error) -> Result<(), Stopped> {
        let path = path.into();
        self.push(Err(Failure { path, doing, error }))
    }

    fn push(&mut self, found: Found) -> Result<(), Stopped> {
        self.chunk.push(found);
        if self.chunk.len() >= CHUNK {
            self.flush()?;
        }
        Ok(())
    }

    /// Sends the entries, then lets the directories among them be read.
    fn flush(&mut self) -> Result<(), Stopped> {
        if !self.chunk.is_empty() {
            let chunk = std::mem::take(&mut self.chunk);
            self.chunks.send(chunk).map_err(|_| Stopped)?;
        }
        if !self.found.is_empty() {
            let found = std::mem::take(&mut self.found);
            for job in self.shared.add(found) {
                self.work(job)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::path::Path;

    use rustix::fs::{Mode, OFlags};

    use super::super::filter::{Action, read_list};
    use super::*;

    fn walk(path: &Path) -> Walk {
        Walk::start(Dir::open(path).unwrap(), &Options::default()).unwrap()
    }

    fn entries(path: &Path) -> Vec<Entry> {
        walk(path).map(Result::unwrap).collect()
    }

    #[test]
    fn a_thread_that_panics_makes_the_walk_incomplete() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "x").unwrap();
        let mut walk = walk(dir.path());
        let thread = std::thread::spawn(|| panic!("as a test wants"));
        walk.threads.push(thread);
        let found: Vec<_> = walk.by_ref().map(|found| found.is_ok()).collect();
        assert_eq!(found, [true, false]);
        assert_eq!(walk.counts().failures, 1);
    }

    #[test]
    fn an_inode_that_another_file_got_meanwhile_is_no_link() {
        let entry = |name: &str, nanos| Entry {
            path: Relative::new(name.as_bytes()).unwrap(),
            kind: Kind::File,
            stat: Stat {
                size: 1,
                allocated: 512,
                modified: FileTime {
                    seconds: 1,
                    nanos: 0,
                },
                changed: FileTime { seconds: 1, nanos },
                identity: (2, 3),
                links: 2,
                mode: 0o600,
                uid: 0,
                gid: 0,
            },
        };
        let mut links = Links::default();
        assert!(matches!(links.look(&entry("a", 1)), Name::First));
        assert!(matches!(links.look(&entry("b", 2)), Name::First));
        let further = links.look(&entry("c", 2));
        assert!(matches!(further, Name::Further(first) if first.as_bytes() == b"b"));
        assert_eq!((links.first.len(), links.memory), (0, 0));
    }

    #[test]
    fn every_kind_is_returned_once_and_a_directory_before_its_content() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for outer in 0..40 {
            std::fs::create_dir_all(at(&format!("{outer}/deep/er"))).unwrap();
            for inner in 0..20 {
                std::fs::write(at(&format!("{outer}/deep/er/{inner}")), "x").unwrap();
            }
        }
        symlink("/nowhere", at("0/link")).unwrap();
        symlink("..", at("1/loop")).unwrap();
        std::fs::write(at("2/.x.haul-part"), "not complete").unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("3/pipe"), Mode::RUSR).unwrap();
        let mut walk = walk(dir.path());
        let root = walk.root().clone();
        assert_eq!(root.stat.identity.1, dir.path().metadata().unwrap().ino());
        let mut seen = HashSet::from([Relative::root()]);
        for entry in walk.by_ref().map(Result::unwrap) {
            assert!(seen.contains(&entry.path.split().unwrap().0), "{entry:?}");
            let found =
                std::fs::symlink_metadata(at(std::str::from_utf8(entry.path.as_bytes()).unwrap()))
                    .unwrap();
            assert_eq!(entry.stat.size, found.size());
            assert_eq!(entry.stat.modified.seconds, found.mtime());
            assert_eq!(entry.stat.allocated, found.blocks() * 512);
            assert!(seen.insert(entry.path), "returned twice");
        }
        let expected = Counts {
            files: 800,
            bytes: 800,
            directories: 120,
            symlinks: 2,
            special: 1,
            ..Counts::default()
        };
        assert_eq!(walk.counts(), expected);
    }

    #[test]
    fn a_link_is_returned_with_its_target() {
        let dir = tempfile::tempdir().unwrap();
        symlink("../to/\n", dir.path().join("link")).unwrap();
        let kinds: Vec<_> = entries(dir.path()).into_iter().map(|e| e.kind).collect();
        assert_eq!(kinds, [Kind::Symlink(b"../to/\n"[..].into())]);
    }

    #[test]
    fn further_names_of_a_file_name_the_first_one_returned() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "x").unwrap();
        for index in 0..50 {
            let below = dir.path().join(index.to_string());
            std::fs::create_dir(&below).unwrap();
            std::fs::hard_link(dir.path().join("a"), below.join("b")).unwrap();
        }
        let mut walk = walk(dir.path());
        let mut first = None;
        for entry in walk.by_ref().map(Result::unwrap) {
            match entry.kind {
                Kind::File => assert!(first.replace(entry.path).is_none()),
                Kind::HardLink(to) => assert_eq!(Some(to), first),
                _ => {}
            }
        }
        assert_eq!((walk.counts().files, walk.counts().hard_links), (1, 50));
        assert_eq!(
            walk.links.memory, 0,
            "forgotten once every name was returned"
        );
    }

    #[test]
    fn names_beyond_the_memory_for_links_are_files_of_their_own() {
        let mut links = Links {
            memory: LINKS_MAX,
            ..Links::default()
        };
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "x").unwrap();
        let entry = entries(dir.path()).remove(0);
        assert!(matches!(links.look(&entry), Name::Unknown));
        assert!(links.first.is_empty());
    }

    #[test]
    fn a_directory_that_cannot_be_read_is_a_failure_among_entries() {
        let dir = tempfile::tempdir().unwrap();
        // A descriptor of this kind fails in getdents, as a damaged directory does.
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let unreadable = rustix::fs::open(dir.path(), flags, Mode::empty()).unwrap();
        let mut walk = walk(dir.path());
        let (sender, chunks) = crossbeam_channel::bounded(CHUNKS);
        let mut worker = Worker::new(&walk.shared, sender);
        let listed = worker.read(
            &unreadable,
            &Relative::new(b"sub").unwrap(),
            &Scope::default(),
        );
        assert!(listed.is_ok() && worker.flush().is_ok());
        walk.chunks = Some(chunks);
        drop(worker);
        let failure = walk.next().unwrap().unwrap_err();
        assert_eq!(
            (&failure.path[..], failure.doing),
            (&b"sub"[..], Doing::Read)
        );
        assert_eq!(walk.counts().failures, 1);
        assert!(walk.next().is_none());
    }

    #[test]
    fn a_directory_swapped_for_a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("outside")).unwrap();
        std::fs::write(dir.path().join("outside/secret"), "x").unwrap();
        std::fs::create_dir(dir.path().join("root")).unwrap();
        symlink("../outside", dir.path().join("root/sub")).unwrap();
        let root = Dir::open(&dir.path().join("root")).unwrap();
        let mut walk = Walk::start(root, &Options::default()).unwrap();
        assert!(walk.by_ref().all(|found| found.is_ok()));
        let (sender, chunks) = crossbeam_channel::bounded(CHUNKS);
        let mut worker = Worker::new(&walk.shared, sender);
        // The walk saw a directory; now there is a link.
        let sub = Job::Directory(Relative::new(b"sub").unwrap(), Scope::default());
        assert!(worker.work(sub).is_ok());
        let found = chunks.recv().unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].as_ref().unwrap_err().doing, Doing::Open);
    }

    #[test]
    fn more_directories_than_may_wait_are_all_read() {
        let dir = tempfile::tempdir().unwrap();
        for outer in 0..10 {
            for inner in 0..10 {
                let path = dir.path().join(format!("{outer}/{inner}/below"));
                std::fs::create_dir_all(path).unwrap();
            }
        }
        let root = Dir::open(dir.path()).unwrap();
        let mut walk = Walk::with_pending(root, &Options::default(), 3).unwrap();
        assert!(walk.by_ref().all(|found| found.is_ok()));
        assert_eq!(walk.counts().directories, 210);
    }

    fn paths(dir: &Path, options: Options) -> (Vec<String>, Counts) {
        let mut walk = Walk::start(Dir::open(dir).unwrap(), &options).unwrap();
        let found = walk.by_ref().filter_map(Result::ok);
        let mut paths: Vec<_> = found.map(|entry| entry.path.to_string()).collect();
        paths.sort();
        (paths, walk.counts())
    }

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for file in ["a/1", "a/2.o", "b/c/3", "b/c/4.o", "b/d/5", "e"] {
            let file = dir.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, "x").unwrap();
        }
        dir
    }

    #[test]
    fn what_is_excluded_is_not_returned_and_not_entered() {
        let dir = tree();
        let rules = [(Action::Exclude, "*.o"), (Action::Exclude, "c/")];
        let filter = Filter::new(rules, true).unwrap();
        std::fs::write(dir.path().join("b/.haulignore"), "/d\n").unwrap();
        let options = Options {
            filter,
            ..Options::default()
        };
        let (found, counts) = paths(dir.path(), options.clone());
        assert_eq!(found, ["a", "a/1", "b", "b/.haulignore", "e"]);
        assert_eq!((counts.excluded, counts.failures), (3, 0));
        std::fs::write(dir.path().join("b/.haulignore"), b"\xff").unwrap();
        let (found, counts) = paths(dir.path(), options);
        assert_eq!(found, ["a", "a/1", "b", "e"], "nothing below is taken");
        assert_eq!(counts.failures, 1);
    }

    #[test]
    fn a_list_begins_at_its_paths_and_returns_the_directories_above() {
        let dir = tree();
        let list = |paths: &[&str], filter: Filter| Options {
            list: Some(read_list(paths.join("\n").as_bytes(), false).unwrap()),
            filter,
            ..Options::default()
        };
        let all = Filter::default();
        let (found, counts) = paths(dir.path(), list(&["b/c", "b/d/5", "a/1"], all.clone()));
        let expected = ["a", "a/1", "b", "b/c", "b/c/3", "b/c/4.o", "b/d", "b/d/5"];
        assert_eq!(found, expected);
        assert_eq!(counts.failures, 0);
        let (found, counts) = paths(dir.path(), list(&["b/none", "e/x", "e"], all.clone()));
        assert_eq!(found, ["b", "e"]);
        assert_eq!(
            counts.failures, 1,
            "a missing file is one; e stands for e/x"
        );
        let (found, counts) = paths(dir.path(), list(&["none/a", "none/b"], all.clone()));
        assert!(found.is_empty());
        assert_eq!(counts.failures, 2, "each path of the list");
        let (found, _) = paths(dir.path(), list(&["."], all));
        assert_eq!(found.len(), 10);
        let filter = Filter::new([(Action::Exclude, "/b/c")], false).unwrap();
        let (found, counts) = paths(dir.path(), list(&["b/c/3", "b/d/5"], filter));
        assert_eq!(found, ["b", "b/d", "b/d/5"]);
        assert_eq!(counts.excluded, 1);
    }

    #[test]
    fn a_walk_that_is_not_recursive_stays_at_the_top() {
        let dir = tree();
        let options = Options {
            is_recursive: false,
            ..Options::default()
        };
        let (found, _) = paths(dir.path(), options);
        assert_eq!(found, ["a", "b", "e"]);
    }

    #[test]
    fn a_walk_that_is_dropped_stops_its_threads() {
        let dir = tempfile::tempdir().unwrap();
        for index in 0..2 * CHUNK * CHUNKS {
            std::fs::write(dir.path().join(index.to_string()), "").unwrap();
        }
        let mut walk = walk(dir.path());
        let shared = Arc::downgrade(&walk.shared);
        assert!(walk.next().unwrap().is_ok());
        drop(walk);
        assert!(shared.upgrade().is_none(), "a thread still runs");
    }
}
