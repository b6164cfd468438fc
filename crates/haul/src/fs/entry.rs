//! What a name in a tree stands for.

use std::ffi::CStr;
use std::io;
use std::os::fd::AsFd;

use haul_io::file::FileTime;
use rustix::fs::{AtFlags, FileType};

use super::path::Relative;

/// An entry of a tree: a path, its kind and its attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where it is, below the root.
    pub path: Relative,
    /// What it is.
    pub kind: Kind,
    /// Its attributes; those of a symbolic link are its own.
    pub stat: Stat,
}

/// The kind of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link with its target, which is never followed.
    Symlink(Box<[u8]>),
    /// A further name of the file that an earlier entry of this path named.
    HardLink(Relative),
    /// A device, pipe or socket: not copied.
    Special,
}

/// The attributes of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Bytes.
    pub size: u64,
    /// Bytes of storage taken.
    pub allocated: u64,
    /// Time of the last change of the content.
    pub modified: FileTime,
    /// Time of the last change of content or attributes. The kernel alone sets it.
    pub changed: FileTime,
    /// Device and inode number: the identity of the file.
    pub identity: (u64, u64),
    /// Names that the file has.
    pub links: u64,
    /// Permission bits (`0o7777`).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl Stat {
    /// Takes what a system call returned, with the type of the file.
    pub(crate) fn of(stat: &rustix::fs::Stat) -> (Self, FileType) {
        let taken = Self {
            size: u64::try_from(stat.st_size).unwrap_or(0),
            allocated: u64::try_from(stat.st_blocks)
                .unwrap_or(0)
                .saturating_mul(512),
            modified: time(stat.st_mtime, stat.st_mtime_nsec),
            changed: time(stat.st_ctime, stat.st_ctime_nsec),
            identity: (stat.st_dev, stat.st_ino),
            links: number(stat.st_nlink),
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
        };
        (taken, FileType::from_raw_mode(stat.st_mode))
    }
}

/// Returns what `name` stands for, without following a symbolic link.
pub(super) fn examine(dir: &impl AsFd, name: &CStr) -> io::Result<(Kind, Stat)> {
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let (stat, kind) = Stat::of(&stat);
    let kind = match kind {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(dir, name, Vec::new())?;
            Kind::Symlink(target.into_bytes().into())
        }
        _ => Kind::Special,
    };
    Ok((kind, stat))
}

/// Widens a number whose width depends on the architecture.
fn number(value: impl Into<u64>) -> u64 {
    value.into()
}

fn time(seconds: i64, nanos: impl TryInto<u32>) -> FileTime {
    FileTime {
        seconds,
        nanos: nanos.try_into().unwrap_or(0),
    }
}
