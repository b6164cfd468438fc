//! File systems whose times are as coarse as those of FAT and of NFS version 3 servers, and files
//! that say nothing of their size: a small file system in memory, mounted by FUSE.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use crate::support::{MIB, Place, haul, make_file, read_file, set_time, text};

const TTL: Duration = Duration::ZERO;

/// One folder in memory.
struct Folder {
    /// Times are rounded down to multiples of it.
    grain: Duration,
    /// Files have this size for `stat`, whatever is in them.
    shown_size: Option<u64>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    names: BTreeMap<OsString, u64>,
    /// By inode number, from 2 on.
    files: BTreeMap<u64, File>,
}

struct File {
    bytes: Vec<u8>,
    mode: u32,
    modified: SystemTime,
}

impl Folder {
    /// Mounts it where that is allowed.
    fn mount(grain: Duration, shown_size: Option<u64>, at: &Path) -> Option<BackgroundSession> {
        let folder = Self {
            grain,
            shown_size,
            state: Mutex::default(),
        };
        let mounted = fuser::spawn_mount(folder, at, &fuser::Config::default());
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
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

impl Filesystem for Folder {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let state = self.state.lock().unwrap();
        let inode = state.names.get(name);
        match inode.and_then(|&inode| self.attr(inode, &state)) {
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
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let blocks = 1 << 20;
        reply.statfs(blocks, blocks, blocks, 1 << 20, 1 << 20, 4096, 255, 4096);
    }

    fn unlink(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        match self.state.lock().unwrap().names.remove(name) {
            Some(_) => reply.ok(),
            None => reply.error(Errno::ENOENT),
        }
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
        let mut state = self.state.lock().unwrap();
        if flags.contains(RenameFlags::RENAME_NOREPLACE) && state.names.contains_key(new) {
            return reply.error(Errno::EEXIST);
        }
        let Some(inode) = state.names.remove(name) else {
            return reply.error(Errno::ENOENT);
        };
        state.names.insert(new.to_owned(), inode);
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
        let Some(_mounted) = Folder::mount(grain, None, &place.server("")) else {
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
    let grain = Duration::from_nanos(1);
    let Some(_mounted) = Folder::mount(grain, Some(0), &source) else {
        return;
    };
    std::fs::write(source.join("long"), vec![7; 3 * MIB + 1]).unwrap();
    let server = place.serve();
    haul(["send", &text(&source.join("long")), &server.at("")]).ok();
    assert!(read_file(&place.server("long")) == vec![7; 3 * MIB + 1]);
}
