//! Files: names confined beneath a directory, positioned writes, preallocation, durable rename.
//!
//! A name that came from a peer is only ever resolved by [`Dir`], with `openat2` and
//! `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS`, so that neither `..`, an
//! absolute path nor a symbolic link, also one swapped in meanwhile, leads outside.

#![expect(
    clippy::disallowed_types,
    reason = "this crate is where files are opened"
)]

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Component, Path};

use haul_slab::{Gather, Scatter};
use rustix::fs::{AtFlags, FallocateFlags, FileType, MemfdFlags, Mode, OFlags, RenameFlags};
use rustix::fs::{ResolveFlags, Timespec, Timestamps};

/// An open directory. Everything named through it stays beneath it.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A time as file systems keep it, before 1970 included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileTime {
    /// Whole seconds since 1970, rounded down.
    pub seconds: i64,
    /// 0 <= nanos < 1,000,000,000
    pub nanos: u32,
}

/// Type, size and time of a name, without following a symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata {
    /// A regular file, as opposed to a directory, link, device, pipe or socket.
    pub regular: bool,
    /// Bytes.
    pub size: u64,
    /// Time of the last change of the content. Every user with write access to the file can set it.
    pub modified: FileTime,
    /// Time of the last change of content or attributes. The kernel alone sets it.
    pub changed: FileTime,
    /// Permission bits (`0o7777`).
    pub mode: u32,
    /// Device and inode number: the identity of the file.
    pub identity: (u64, u64),
    /// Bytes of storage taken.
    pub allocated: u64,
    /// The file has other names beside this one.
    pub linked: bool,
}

impl Dir {
    /// Opens a directory that the local user named; symbolic links are followed.
    ///
    /// # Errors
    /// That of `open(2)`.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Self { fd })
    }

    /// Takes an open directory.
    #[must_use]
    pub fn of_file(file: File) -> Self {
        Self { fd: file.into() }
    }

    /// Opens a directory below this one; an empty path is this directory itself.
    ///
    /// # Errors
    /// That of `openat2(2)`; `CrossesDevices` where the path would lead outside or through a link.
    pub fn open_beneath(&self, relative: &Path) -> io::Result<Self> {
        let path = if relative.as_os_str().is_empty() {
            Path::new(".")
        } else {
            relative
        };
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(Self {
            fd: beneath(&self.fd, path, flags, Mode::empty())?,
        })
    }

    /// Opens a directory below this one, making those that are missing on the way, durably.
    ///
    /// # Errors
    /// As [`Dir::open_beneath`], and that of `mkdirat(2)`.
    pub fn make_beneath(&self, relative: &Path) -> io::Result<Self> {
        let mut dir = self.open_beneath(Path::new(""))?;
        for part in relative {
            match rustix::fs::mkdirat(&dir.fd, part, Mode::from_raw_mode(0o777)) {
                Ok(()) => dir.sync()?,
                Err(rustix::io::Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            dir = dir.open_beneath(Path::new(part))?;
        }
        Ok(dir)
    }

    /// Opens a file below this directory for reading. A pipe or device does not block the call;
    /// the caller looks at [`Metadata::regular`].
    ///
    /// # Errors
    /// That of `openat2(2)`; `CrossesDevices` where the path would lead outside or through a link.
    pub fn open_file(&self, relative: &Path) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        Ok(File::from(beneath(
            &self.fd,
            relative,
            flags,
            Mode::empty(),
        )?))
    }

    /// Opens `name` for reading and writing, making it where it does not exist.
    ///
    /// # Errors
    /// That of `openat2(2)`.
    pub fn open_or_create(&self, name: &OsStr, mode: u32) -> io::Result<File> {
        let flags = OFlags::RDWR
            | OFlags::CREATE
            | OFlags::CLOEXEC
            | OFlags::NONBLOCK
            | OFlags::NOCTTY
            | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(mode);
        Ok(File::from(beneath(&self.fd, Path::new(name), flags, mode)?))
    }

    /// Returns the metadata of `name` in this directory, or `None` if there is no such name.
    ///
    /// # Errors
    /// That of `fstatat(2)`.
    pub fn metadata(&self, name: &OsStr) -> io::Result<Option<Metadata>> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(from_stat(&stat))),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Renames `from` to `to`, and replaces an existing `to` only if `replace` is set.
    ///
    /// # Errors
    /// That of `renameat2(2)`; `AlreadyExists` where `to` exists and may not be replaced.
    pub fn rename(&self, from: &OsStr, to: &OsStr, replace: bool) -> io::Result<()> {
        let flags = if replace {
            RenameFlags::empty()
        } else {
            RenameFlags::NOREPLACE
        };
        Ok(rustix::fs::renameat_with(
            &self.fd, from, &self.fd, to, flags,
        )?)
    }

    /// Removes a file's name; a name that does not exist is no error.
    ///
    /// # Errors
    /// That of `unlinkat(2)`.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes the directory's names durable.
    ///
    /// # Errors
    /// That of `fsync(2)`.
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.fd)?)
    }

    /// Bytes that this user may still write to the file system behind the directory.
    ///
    /// # Errors
    /// That of `fstatvfs(3)`.
    pub fn free_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::fstatvfs(&self.fd)?;
        Ok(available(stat.f_bfree, stat.f_bavail).saturating_mul(stat.f_frsize))
    }

    /// Files that this user may still make on the file system behind the directory; `None` if it
    /// has no limit.
    ///
    /// # Errors
    /// That of `fstatvfs(3)`.
    pub fn free_inodes(&self) -> io::Result<Option<u64>> {
        let stat = rustix::fs::fstatvfs(&self.fd)?;
        Ok((stat.f_files > 0).then(|| available(stat.f_ffree, stat.f_favail)))
    }

    /// A number of the file system behind the directory: the one it reports, which survives a
    /// restart of the machine, or the device number if it reports none.
    ///
    /// # Errors
    /// Those of `fstatvfs(3)` and `fstat(2)`.
    pub fn file_system(&self) -> io::Result<u64> {
        match rustix::fs::fstatvfs(&self.fd)?.f_fsid {
            0 => Ok(rustix::fs::fstat(&self.fd)?.st_dev),
            known => Ok(known),
        }
    }
}

/// Begins to read the first `len` bytes of the file from the disk, and waits for nothing of it. A
/// file system that cannot do that ignores it.
pub fn start_reading(file: &impl AsFd, len: u64) {
    let len = std::num::NonZeroU64::new(len);
    let _ = rustix::fs::fadvise(file, 0, len, rustix::fs::Advice::WillNeed);
}

/// Begins to write what of the file is not on the disk yet, and waits for nothing of it. What
/// cannot be written shows when the file is synchronised.
pub fn start_writeback(file: &impl AsFd) {
    // SAFETY: the descriptor is open, and the call takes no pointer. A length of 0 means up to the
    // end.
    unsafe {
        libc::sync_file_range(file.as_fd().as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE);
    }
}

/// Makes a file to be written from its start, or empties the one that is there.
///
/// # Errors
/// Those of `open(2)`.
pub fn create_output(path: &Path) -> io::Result<Box<dyn io::Write + Send>> {
    Ok(Box::new(File::create(path)?))
}

/// Opens a file that the local user named to append to it, or makes it.
///
/// # Errors
/// That of `open(2)`.
pub fn append_output(path: &Path) -> io::Result<Box<dyn io::Write + Send>> {
    let opened = File::options().append(true).create(true).open(path);
    Ok(Box::new(opened?))
}

/// Opens a file that the local user named for reading; symbolic links are followed, and a pipe or
/// device does not block the call.
///
/// # Errors
/// That of `open(2)`.
pub fn open_source(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// The same as [`Dir::metadata`], for an open file.
///
/// # Errors
/// That of `fstat(2)`.
pub fn metadata(file: &impl AsFd) -> io::Result<Metadata> {
    Ok(from_stat(&rustix::fs::fstat(file)?))
}

/// Reserves storage for `len` bytes and makes the file at least that long. A file system that
/// cannot reserve only gets the length.
///
/// # Errors
/// `StorageFull` or `QuotaExceeded` where there is no room, otherwise that of `fallocate(2)`.
pub fn preallocate(file: &File, len: u64) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
            if file.metadata()?.len() < len {
                file.set_len(len)?;
            }
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// Copies up to `len` bytes at `position` of a file to the same place of another, as far as the
/// first one reaches; file systems that can share the storage do.
///
/// # Errors
/// That of `copy_file_range(2)`, `pread(2)` or `pwrite(2)`.
pub fn copy_at(from: &File, to: &File, position: u64, len: usize) -> io::Result<()> {
    const BUFFER: usize = 256 << 10;
    let (mut at, end) = (position, position + len as u64);
    let mut buffer = Vec::new();
    while at < end {
        let left = usize::try_from(end - at).unwrap_or(usize::MAX);
        let copied = if buffer.is_empty() {
            let (mut source, mut target) = (at, at);
            rustix::fs::copy_file_range(from, Some(&mut source), to, Some(&mut target), left)
                .map_err(io::Error::from)
        } else {
            let piece = left.min(BUFFER);
            let read = from.read_at(&mut buffer[..piece], at)?;
            to.write_all_at(&buffer[..read], at).map(|()| read)
        };
        match copied {
            Ok(0) => break,
            Ok(bytes) => at += bytes as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Some pairs of file systems, and some kernels, copy nothing.
            Err(_) if buffer.is_empty() => buffer.resize(BUFFER, 0),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes all of `parts`, one after another, from `position` on. The slices are used up.
///
/// # Errors
/// That of `pwritev(2)`.
pub fn write_all_at(
    file: BorrowedFd<'_>,
    mut parts: &mut [IoSlice<'_>],
    mut position: u64,
) -> io::Result<()> {
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match rustix::io::pwritev(file, parts, position) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                position += written as u64;
                IoSlice::advance_slices(&mut parts, written);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Reads all of `range`, memory that others may write, from `position` on.
///
/// # Errors
/// That of `pread(2)`; `UnexpectedEof` where the file ends early.
pub fn read_exact_at(file: impl AsFd, mut range: Scatter<'_>, mut position: u64) -> io::Result<()> {
    while !range.is_empty() {
        let offset = libc::off_t::try_from(position).map_err(io::Error::other)?;
        let vector = (&raw mut range).cast();
        // SAFETY: `Scatter` has the layout of iovec and borrows for writing what it names; the call
        // writes there only.
        let count = unsafe { libc::preadv(file.as_fd().as_raw_fd(), vector, 1, offset) };
        match usize::try_from(count) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                range = range.skip(count);
                position += count as u64;
            }
            Err(_) => unless_interrupted()?,
        }
    }
    Ok(())
}

/// Writes all of `range`, memory that others may write, to `position`.
///
/// # Errors
/// That of `pwrite(2)`.
pub fn write_region_at(
    file: impl AsFd,
    mut range: Gather<'_>,
    mut position: u64,
) -> io::Result<()> {
    while !range.is_empty() {
        let offset = libc::off_t::try_from(position).map_err(io::Error::other)?;
        let vector = (&raw const range).cast();
        // SAFETY: `Gather` has the layout of iovec and borrows what it names; the call reads it and
        // writes no memory.
        let count = unsafe { libc::pwritev(file.as_fd().as_raw_fd(), vector, 1, offset) };
        match usize::try_from(count) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                range = range.skip(count);
                position += count as u64;
            }
            Err(_) => unless_interrupted()?,
        }
    }
    Ok(())
}

/// The error of the call that has just failed, unless it is to be made again.
fn unless_interrupted() -> io::Result<()> {
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted {
        return Ok(());
    }
    Err(error)
}

/// Sets the time of the last change; the time of the last access is left alone. File systems round
/// the time to their granularity and clamp it to their range without an error.
///
/// # Errors
/// That of `futimens(3)`.
pub fn set_modified(file: &File, modified: FileTime) -> io::Result<()> {
    let times = Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: modified.seconds,
            tv_nsec: modified.nanos.into(),
        },
    };
    Ok(rustix::fs::futimens(file, &times)?)
}

/// Takes away the permission bits that `mode` lacks; adds none, so that the user's umask holds.
///
/// # Errors
/// That of `fchmod(2)`.
pub fn restrict_mode(file: &File, mode: u32) -> io::Result<()> {
    let current = metadata(file)?.mode & 0o777;
    Ok(rustix::fs::fchmod(
        file,
        Mode::from_raw_mode(current & mode),
    )?)
}

/// An in-memory file with `content`.
///
/// # Errors
/// That of `memfd_create(2)` or of the write.
pub fn memory_file(content: &[u8]) -> io::Result<File> {
    let file = File::from(rustix::fs::memfd_create(c"haul", MemfdFlags::CLOEXEC)?);
    file.write_all_at(content, 0)?;
    Ok(file)
}

/// Raises the number of files that this process may have open as far as the system lets it.
pub fn raise_open_file_limit() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // Refused only where the limit is already what it is going to be.
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised);
}

/// Limits that the system sets to this process; none is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Memory that it may pin, bytes.
    pub locked_bytes: Option<u64>,
    /// Files that it may raise its own limit to.
    pub open_files: Option<u64>,
}

impl Limits {
    /// Those of this process.
    #[must_use]
    pub fn of_this_process() -> Self {
        use rustix::process::{Resource, getrlimit};
        Self {
            locked_bytes: getrlimit(Resource::Memlock).current,
            open_files: getrlimit(Resource::Nofile).maximum,
        }
    }
}

fn beneath(dir: &OwnedFd, path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    loop {
        match rustix::fs::openat2(dir, path, flags, mode, resolve) {
            // Because of a concurrent rename, the kernel could not verify that the path stays
            // beneath the directory (openat2(2), EAGAIN).
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            // One kind for both ways of leading outside; `io::ErrorKind` has no stable one for
            // ELOOP.
            Err(rustix::io::Errno::LOOP) => return Err(rustix::io::Errno::XDEV.into()),
            // Linux before 5.6.
            Err(rustix::io::Errno::NOSYS) => return step_by_step(dir, path, flags, mode),
            result => return Ok(result?),
        }
    }
}

/// As [`beneath`] where the kernel has no `openat2`: opens each component without following links.
/// A directory that is moved away meanwhile is followed, as by `openat2`. `..` always leads
/// outside.
fn step_by_step(dir: &OwnedFd, path: &Path, mut flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    let outside = || io::Error::from(rustix::io::Errno::XDEV);
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(outside());
            }
        }
    }
    if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
        flags |= OFlags::DIRECTORY;
    }
    let Some(last) = names.pop() else {
        return Ok(rustix::fs::openat(dir, ".", flags, mode)?);
    };
    let step = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = None;
    for name in names {
        let from = at.as_ref().unwrap_or(dir);
        let next = rustix::fs::openat(from, name, step, Mode::empty())?;
        match FileType::from_raw_mode(rustix::fs::fstat(&next)?.st_mode) {
            FileType::Directory => at = Some(next),
            FileType::Symlink => return Err(outside()),
            _ => return Err(rustix::io::Errno::NOTDIR.into()),
        }
    }
    let from = at.as_ref().unwrap_or(dir);
    let is_link = |fd: &OwnedFd| {
        let stat = rustix::fs::fstat(fd)?;
        Ok::<_, io::Error>(FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
    };
    match rustix::fs::openat(from, last, flags | OFlags::NOFOLLOW, mode) {
        Err(rustix::io::Errno::LOOP) => Err(outside()),
        // So the kernel refuses a link where a directory is wanted.
        Err(rustix::io::Errno::NOTDIR) => {
            let found = rustix::fs::openat(from, last, step, Mode::empty())?;
            Err(if is_link(&found)? {
                outside()
            } else {
                rustix::io::Errno::NOTDIR.into()
            })
        }
        Ok(found) if !flags.contains(OFlags::NOFOLLOW) && is_link(&found)? => Err(outside()),
        result => Ok(result?),
    }
}

fn from_stat(stat: &rustix::fs::Stat) -> Metadata {
    Metadata {
        regular: FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        modified: time(stat.st_mtime, stat.st_mtime_nsec),
        changed: time(stat.st_ctime, stat.st_ctime_nsec),
        mode: stat.st_mode & 0o7777,
        identity: (stat.st_dev, stat.st_ino),
        allocated: u64::try_from(stat.st_blocks)
            .unwrap_or(0)
            .saturating_mul(512),
        linked: stat.st_nlink > 1,
    }
}

fn time(seconds: i64, nanos: impl TryInto<u32>) -> FileTime {
    FileTime {
        seconds,
        nanos: nanos.try_into().unwrap_or(0),
    }
}

/// Returns what the user of this process may take of a resource: root may take the reserve, too.
fn available(root: u64, others: u64) -> u64 {
    if rustix::process::geteuid().is_root() {
        root
    } else {
        others
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn paths_lead_to_the_same_with_and_without_openat2() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        std::fs::create_dir_all(at("a/b")).unwrap();
        std::fs::write(at("a/b/file"), "x").unwrap();
        symlink("b", at("a/link")).unwrap();
        symlink("b/file", at("a/file-link")).unwrap();
        symlink("/etc", at("a/out")).unwrap();
        symlink("nowhere", at("a/broken")).unwrap();
        let dir = File::open(root.path()).unwrap().into();
        let paths = [
            "a",
            "a/",
            "a/b",
            "a/b/",
            "./a/./b",
            ".",
            "a/b/file",
            "a/b/file/",
            "a/b/file/x",
            "a/link",
            "a/link/",
            "a/link/file",
            "a/file-link",
            "a/out",
            "a/out/passwd",
            "a/broken",
            "a/broken/x",
            "missing",
            "missing/x",
            "a/missing",
            "..",
            "/etc",
        ];
        let every = [
            OFlags::RDONLY,
            OFlags::RDONLY | OFlags::DIRECTORY,
            OFlags::RDONLY | OFlags::NOFOLLOW,
            OFlags::PATH,
            OFlags::PATH | OFlags::NOFOLLOW,
            OFlags::PATH | OFlags::DIRECTORY,
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
        ];
        let outcome = |result: io::Result<OwnedFd>| {
            let stat = result.and_then(|fd| Ok(rustix::fs::fstat(fd)?));
            stat.map(|stat| stat.st_ino).map_err(|error| error.kind())
        };
        for path in paths.map(Path::new) {
            for flags in every {
                let flags = flags | OFlags::CLOEXEC;
                let is_new = flags.contains(OFlags::CREATE);
                // Nobody creates a file as a directory.
                if is_new && path.as_os_str().as_encoded_bytes().ends_with(b"/") {
                    continue;
                }
                let mode = Mode::from(if is_new { 0o600 } else { 0 });
                let [one, other] = [beneath, step_by_step].map(|open| {
                    let found = outcome(open(&dir, path, flags, mode));
                    if is_new && found.is_ok() {
                        std::fs::remove_file(root.path().join(path)).unwrap();
                        return Ok(0);
                    }
                    found
                });
                assert_eq!(one, other, "{} {flags:?}", path.display());
            }
        }
    }
}
