//! File systems whose times are as coarse as those of FAT and of NFS version 3 servers, that ignore
//! case, allow few links or fail: a small file system in memory, mounted by FUSE.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use crate::support::{MIB, Place, haul, make_file, read_file, set_time, text};

const TTL: Duration = Duration::ZERO;

/// One folder in memory.
pub(crate) struct Folder {
    /// Times are rounded down to multiples of it.
    pub(crate) grain: Duration,
    /// Files have this size for `stat`, whatever is in them.
    pub(crate) shown_size: Option<u64>,
    /// Names that differ in case are the same.
    pub(crate) folds_case: bool,
    /// Names that a file may have.
    pub(crate) links_max: u32,
    pub(crate) fault: Arc<Fault>,
    pub(crate) pace: Arc<Pace>,
    pub(crate) state: Mutex<State>,
}

impl Default for Folder {
    fn default() -> Self {
        Self {
            grain: Duration::from_nanos(1),
            shown_size: None,
            folds_case: false,
            links_max: u32::MAX,
            fault: Arc::default(),
            pace: Arc::default(),
            state: Mutex::default(),
        }
    }
}

/// How slowly files are made, and how many were before the first got its name.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    pub(crate) create: Duration,
    pub(crate) made: AtomicU32,
    pub(crate) made_at_first_rename: OnceLock<u32>,
}

/// A call to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Create,
    Open,
    Read,
    Write,
    SetAttr,
    Fsync,
    Rename,
    Unlink,
    ReadDir,
}

/// Which call fails, once or from then on; and of which file reads fail.
#[derive(Debug, Default)]
pub(crate) struct Fault(Mutex<Option<(Call, u32, i32, bool)>>, Mutex<Victim>);

/// A file that cannot be read.
#[derive(Debug, Default)]
struct Victim {
    /// Reads until it is chosen, while it is not.
    skip: Option<u32>,
    inode: Option<u64>,
}

impl Fault {
    /// Has all reads fail of the file that is read after `skip` other reads.
    pub(crate) fn arm_one_file(&self, skip: u32) {
        self.1.lock().unwrap().skip = Some(skip);
    }

    fn is_of_victim(&self, inode: u64) -> bool {
        let mut victim = self.1.lock().unwrap();
        match victim.skip {
            Some(0) => (victim.skip, victim.inode) = (None, Some(inode)),
            Some(skip) => victim.skip = Some(skip - 1),
            None => {}
        }
        victim.inode == Some(inode)
    }

    /// Has the call fail that comes after `skip` others of its kind, and with `is_lasting` all that
    /// follow.
    pub(crate) fn arm(&self, call: Call, skip: u32, errno: i32, is_lasting: bool) {
        *self.0.lock().unwrap() = Some((call, skip, errno, is_lasting));
    }

    /// Returns whether the call has not failed yet.
    pub(crate) fn disarm(&self) -> bool {
        self.0
            .lock()
            .unwrap()
            .take()
            .is_some_and(|armed| armed.1 < u32::MAX)
    }

    fn of(&self, call: Call) -> Option<Errno> {
        let mut armed = self.0.lock().unwrap();
        let (of, skip, errno, is_lasting) = armed.as_mut()?;
        if *of != call || *skip == u32::MAX && !*is_lasting {
            return None;
        }
        if *skip > 0 && *skip < u32::MAX {
            *skip -= 1;
            return None;
        }
        *skip = u32::MAX;
        Some(Errno::from_i32(*errno))
    }
}

/// Ends the call with its error if it is to fail.
macro_rules! fail {
    ($self:ident, $call:ident, $reply:ident) => {
        if let Some(errno) = $self.fault.of(Call::$call) {
            return $reply.error(errno);
        }
    };
}

#[derive(Default)]
pub(crate) struct State {
    names: BTreeMap<OsString, u64>,
    /// By inode number, from 2 on.
    files: BTreeMap<u64, File>,
}

pub(crate) struct File {
    bytes: Vec<u8>,
    mode: u32,
    modified: SystemTime,
}

impl Folder {
    /// Mounts it where that is allowed.
    pub(crate) fn mount(self, at: &Path) -> Option<BackgroundSession> {
        let mounted = fuser::spawn_mount(self, at, &fuser::Config::default());
        if let Err(error) = &mounted {
            println!("SKIPPED: a file system in memory needs /dev/fuse and root: {error}");
        }
        mounted.ok()
    }

    fn round(&self, time: SystemTime) -> SystemTime {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let beyond = since.as_nanos() % self.grain.as_nanos();
        time - Duration::from_nanos(u64::try_from(beyond).unwrap())
    }

    /// Returns the name as it is in the folder.
    fn find(&self, name: &OsStr, state: &State) -> Option<OsString> {
        if state.names.contains_key(name) || !self.folds_case {
            return state.names.contains_key(name).then(|| name.to_owned());
        }
        let mut names = state.names.keys();
        names.find(|known| folded(known) == folded(name)).cloned()
    }

    fn attr(&self, inode: u64, state: &State) -> Option<FileAttr> {
        let file = state.files.get(&inode);
        if file.is_none() && inode != u64::from(INodeNo::ROOT) {
            return None;
        }
        let time = file.map_or(SystemTime::UNIX_EPOCH, |file| file.modified);
        let size = file.map_or(0, |file| file.bytes.len() as u64);
        let (kind, mode) = match file {
            Some(file) => (FileType::RegularFile, file.mode),
            None => (FileType::Directory, 0o755),
        };
        Some(FileAttr {
            ino: INodeNo(inode),
            size: self.shown_size.filter(|_| file.is_some()).unwrap_or(size),
            blocks: size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm: (mode & 0o7777) as u16,
            nlink: names_of(inode, state).max(1),
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

fn folded(name: &OsStr) -> String {
    name.to_string_lossy().to_lowercase()
}

fn names_of(inode: u64, state: &State) -> u32 {
    let names = state.names.values().filter(|&&one| one == inode);
    u32::try_from(names.count()).unwrap()
}

impl Filesystem for Folder {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let state = self.state.lock().unwrap();
        let inode = self.find(name, &state).map(|name| state.names[&name]);
        match inode.and_then(|inode| self.attr(inode, &state)) {
            Some(attr) => reply.entry(&TTL, &attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let state = self.state.lock().unwrap();
        match self.attr(inode.into(), &state) {
            Some(attr) => reply.attr(&TTL, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        fail!(self, SetAttr, reply);
        let mut state = self.state.lock().unwrap();
        if let Some(file) = state.files.get_mut(&inode.into()) {
            file.mode = mode.unwrap_or(file.mode);
            if let Some(size) = size {
                file.bytes.resize(usize::try_from(size).unwrap(), 0);
            }
            if let Some(modified) = modified {
                file.modified = self.round(match modified {
                    TimeOrNow::SpecificTime(time) => time,
                    TimeOrNow::Now => SystemTime::now(),
                });
            }
        }
        match self.attr(inode.into(), &state) {
            Some(attr) => reply.attr(&TTL, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        fail!(self, Create, reply);
        std::thread::sleep(self.pace.create);
        self.pace.made.fetch_add(1, Ordering::SeqCst);
        let mut state = self.state.lock().unwrap();
        let inode = state.files.keys().last().map_or(2, |last| last + 1);
        let file = File {
            bytes: Vec::new(),
            mode,
            modified: self.round(SystemTime::now()),
        };
        state.files.insert(inode, file);
        state.names.insert(name.to_owned(), inode);
        let attr = self.attr(inode, &state).unwrap();
        reply.created(
            &TTL,
            &attr,
            Generation(0),
            FileHandle(0),
            FopenFlags::FOPEN_DIRECT_IO,
        );
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        fail!(self, Open, reply);
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        fail!(self, Read, reply);
        if self.fault.is_of_victim(inode.into()) {
            return reply.error(Errno::EIO);
        }
        let state = self.state.lock().unwrap();
        let bytes = &state.files[&inode.into()].bytes;
        let begin = bytes.len().min(usize::try_from(offset).unwrap());
        let end = bytes.len().min(begin + size as usize);
        reply.data(&bytes[begin..end]);
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        fail!(self, Write, reply);
        let mut state = self.state.lock().unwrap();
        let now = self.round(SystemTime::now());
        let file = state.files.get_mut(&inode.into()).unwrap();
        let begin = usize::try_from(offset).unwrap();
        file.bytes
            .resize(file.bytes.len().max(begin + data.len()), 0);
        file.bytes[begin..begin + data.len()].copy_from_slice(data);
        file.modified = now;
        reply.written(u32::try_from(data.len()).unwrap());
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        fail!(self, Fsync, reply);
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let blocks = 1 << 20;
        reply.statfs(blocks, blocks, blocks, 1 << 20, 1 << 20, 4096, 255, 4096);
    }

    fn unlink(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        fail!(self, Unlink, reply);
        let mut state = self.state.lock().unwrap();
        let name = self.find(name, &state);
        match name.and_then(|name| state.names.remove(&name)) {
            Some(_) => reply.ok(),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn link(&self, _: &Request, inode: INodeNo, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut state = self.state.lock().unwrap();
        if self.find(name, &state).is_some() {
            return reply.error(Errno::EEXIST);
        }
        if names_of(inode.into(), &state) >= self.links_max {
            return reply.error(Errno::EMLINK);
        }
        state.names.insert(name.to_owned(), inode.into());
        let attr = self.attr(inode.into(), &state).unwrap();
        reply.entry(&TTL, &attr, Generation(0));
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        fail!(self, Fsync, reply);
        reply.ok();
    }

    fn rename(
        &self,
        _: &Request,
        _: INodeNo,
        name: &OsStr,
        _: INodeNo,
        new: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        fail!(self, Rename, reply);
        let made = || self.pace.made.load(Ordering::SeqCst);
        self.pace.made_at_first_rename.get_or_init(made);
        let mut state = self.state.lock().unwrap();
        let replaced = self.find(new, &state);
        if flags.contains(RenameFlags::RENAME_NOREPLACE) && replaced.is_some() {
            return reply.error(Errno::EEXIST);
        }
        let Some(name) = self.find(name, &state) else {
            return reply.error(Errno::ENOENT);
        };
        let inode = state.names.remove(&name).unwrap();
        // As where case is ignored: what is replaced keeps its name.
        state
            .names
            .insert(replaced.unwrap_or_else(|| new.to_owned()), inode);
        reply.ok();
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        fail!(self, ReadDir, reply);
        let state = self.state.lock().unwrap();
        for (at, (name, &inode)) in (1..)
            .zip(&state.names)
            .skip(usize::try_from(offset).unwrap())
        {
            if reply.add(INodeNo(inode), at, FileType::RegularFile, name) {
                break;
            }
        }
        reply.ok();
    }
}

#[test]
fn a_target_with_times_of_one_or_two_seconds_knows_a_file_again() {
    for grain in [1, 2] {
        let place = Place::new();
        let grain = Duration::from_secs(grain);
        let folder = Folder {
            grain,
            ..Folder::default()
        };
        let Some(_mounted) = folder.mount(&place.server("")) else {
            return;
        };
        let server = place.serve();
        for (name, size) in [("a", 3 * MIB + 1), ("b", 5), ("c", 0)] {
            make_file(&place.client(name), size, 1);
            set_time(&place.client(name), 1_700_000_001, 987_654_321);
            let send = || {
                let ended = haul(["send", &text(&place.client(name)), &server.at(""), "--json"]);
                ended.ok().json()["files"][0]["status"].clone()
            };
            assert_eq!(send(), "copied");
            assert_eq!(send(), "already_there");
            assert!(read_file(&place.server(name)) == read_file(&place.client(name)));
            make_file(&place.client(name), size, 2);
            set_time(&place.client(name), 1_700_000_009, 0);
            assert_eq!(send(), "copied");
            assert!(read_file(&place.server(name)) == read_file(&place.client(name)));
        }
        assert_eq!(std::fs::read_dir(place.server("")).unwrap().count(), 3);
    }
}

#[test]
fn a_source_that_shows_no_size_is_read_to_its_end() {
    let place = Place::new();
    let source = place.outside("online");
    std::fs::create_dir(&source).unwrap();
    let folder = Folder {
        shown_size: Some(0),
        ..Folder::default()
    };
    let Some(_mounted) = folder.mount(&source) else {
        return;
    };
    std::fs::write(source.join("long"), vec![7; 3 * MIB + 1]).unwrap();
    let server = place.serve();
    haul(["send", &text(&source.join("long")), &server.at("")]).ok();
    assert!(read_file(&place.server("long")) == vec![7; 3 * MIB + 1]);
}
