//! Attributes of entries: captured at the source, applied at the target.
//!
//! | attribute | when |
//! |---|---|
//! | mode, modification time | always; not the mode of a symbolic link |
//! | owner and group, numeric | if the target acts as root |
//! | set-user-ID, set-group-ID and capabilities of files | with [`Keep::setuid`], and if the owner is kept |
//! | extended attributes: `user.*`, and as root `trusted.*` | with [`Keep::xattrs`] |
//! | POSIX ACLs, raw | with [`Keep::acls`]: access and default |
//!
//! `security.*` beside the capabilities belongs to the policy of a host and is not captured. What
//! the target cannot store does not fail an entry: [`Lost`] counts it.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use haul_io::file::{Dir, FileTime};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags, chownat,
    fchmod, fchown, fgetxattr, flistxattr, fsetxattr, futimens, utimensat,
};
use rustix::io::Errno;

use super::entry::Stat;

/// Bits that give a file more rights than its caller has.
const SETUID: u32 = 0o6000;
/// Bytes of names, and of one value, that the kernel returns at most.
const XATTR_MAX: usize = 64 << 10;
/// Bytes of all extended attributes of an entry, names included: what one offer may carry.
pub const XATTRS_MAX: usize = 128 << 10;

const CAPABILITY: &[u8] = b"security.capability";
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// Which attributes to keep beside mode and time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Keep {
    /// Owner and group, as root only.
    pub owner: bool,
    /// Extended attributes.
    pub xattrs: bool,
    /// POSIX ACLs.
    pub acls: bool,
    /// Set-user-ID, set-group-ID and file capabilities.
    pub setuid: bool,
}

/// The attributes of a file or directory, to be applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// Permission bits (`0o7777`).
    pub mode: u32,
    /// Time of the last change of the content.
    pub modified: FileTime,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Extended attributes with their values, ACLs and capabilities included.
    pub xattrs: Vec<Xattr>,
}

/// An extended attribute: its name, and its value.
pub type Xattr = (Box<[u8]>, Box<[u8]>);

impl Meta {
    /// Takes the attributes of an entry, without extended ones.
    #[must_use]
    pub fn of(stat: &Stat) -> Self {
        Self {
            mode: stat.mode,
            modified: stat.modified,
            uid: stat.uid,
            gid: stat.gid,
            xattrs: Vec::new(),
        }
    }
}

/// Attributes that were not kept: for each kind, the number of entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lost {
    /// Permission bits.
    pub mode: u64,
    /// Set-user-ID, set-group-ID or capabilities, for want of [`Keep::setuid`] or of the owner.
    pub setuid: u64,
    /// Modification time.
    pub time: u64,
    /// Owner or group.
    pub owner: u64,
    /// Extended attributes.
    pub xattrs: u64,
    /// POSIX ACLs.
    pub acls: u64,
    /// Further names of a file that became files of their own.
    pub links: u64,
}

impl Lost {
    /// Adds what another entry lost.
    pub fn add(&mut self, other: Self) {
        self.mode += other.mode;
        self.setuid += other.setuid;
        self.time += other.time;
        self.owner += other.owner;
        self.xattrs += other.xattrs;
        self.acls += other.acls;
        self.links += other.links;
    }

    /// Returns whether something was lost.
    #[must_use]
    pub fn is_any(&self) -> bool {
        *self != Self::default()
    }

    fn of_xattr(name: &[u8]) -> Self {
        let mut lost = Self::default();
        if ACLS.contains(&name) {
            lost.acls = 1;
        } else if name == CAPABILITY {
            lost.setuid = 1;
        } else {
            lost.xattrs = 1;
        }
        lost
    }

    /// Notes for one entry what was lost in one of several steps.
    fn merge(&mut self, other: Self) {
        self.mode |= other.mode;
        self.setuid |= other.setuid;
        self.time |= other.time;
        self.owner |= other.owner;
        self.xattrs |= other.xattrs;
        self.acls |= other.acls;
    }
}

/// Reads the extended attributes of an open file or directory that are to be kept, sorted by name.
///
/// An attribute that cannot be read, or is beyond [`XATTRS_MAX`], is lost.
///
/// # Errors
/// That of `flistxattr(2)`; a file system without extended attributes has none.
pub fn capture_xattrs(file: impl AsFd, keep: Keep) -> io::Result<(Vec<Xattr>, Lost)> {
    let mut lost = Lost::default();
    let mut xattrs = Vec::new();
    if !keep.xattrs && !keep.acls && !keep.setuid {
        return Ok((xattrs, lost));
    }
    let mut names = Vec::with_capacity(XATTR_MAX);
    match flistxattr(&file, rustix::buffer::spare_capacity(&mut names)) {
        Ok(_) => {}
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok((xattrs, lost)),
        Err(error) => return Err(error.into()),
    }
    let is_root = crate::is_root();
    let mut total = 0;
    for name in names.split(|byte| *byte == 0) {
        if name.is_empty() || !is_kept(name, keep, is_root) {
            continue;
        }
        let mut value = Vec::with_capacity(XATTR_MAX);
        match fgetxattr(
            &file,
            OsStr::from_bytes(name),
            rustix::buffer::spare_capacity(&mut value),
        ) {
            Ok(_) if total + name.len() + value.len() <= XATTRS_MAX => {
                total += name.len() + value.len();
                xattrs.push((name.into(), value.into()));
            }
            // Removed since the names were read.
            Err(Errno::NODATA) => {}
            Ok(_) | Err(_) => lost.merge(Lost::of_xattr(name)),
        }
    }
    xattrs.sort();
    Ok((xattrs, lost))
}

/// Returns whether an extended attribute of this name is kept. The source asks, and the target
/// asks too, for names that a peer chose.
fn is_kept(name: &[u8], keep: Keep, is_root: bool) -> bool {
    if ACLS.contains(&name) {
        keep.acls
    } else if name == CAPABILITY {
        keep.setuid && is_root
    } else if name.starts_with(b"trusted.") {
        keep.xattrs && is_root
    } else {
        keep.xattrs && name.starts_with(b"user.")
    }
}

/// Applies attributes to an open file or directory, and returns what could not be kept.
///
/// The owner comes first, because a change of it clears bits of the mode, and the time last,
/// because every other change may set it.
pub fn apply(file: impl AsFd, meta: &Meta, keep: Keep) -> Lost {
    let is_root = crate::is_root();
    let mut lost = Lost::default();
    let current = rustix::fs::fstat(&file).ok();
    let mut is_owned =
        current.is_some_and(|stat| (stat.st_uid, stat.st_gid) == (meta.uid, meta.gid));
    // On a directory they give no rights: new entries inherit its group.
    let gives_rights =
        current.is_none_or(|stat| FileType::from_raw_mode(stat.st_mode) != FileType::Directory);
    if keep.owner && is_root && !is_owned {
        is_owned = owner(meta).is_some_and(|(uid, gid)| fchown(&file, uid, gid).is_ok());
        lost.owner = u64::from(!is_owned);
    }
    for (name, value) in &meta.xattrs {
        // Capabilities give rights, as the bits do; both make sense only for the same owner.
        let is_allowed = is_kept(name, keep, is_root) && (name[..] != *CAPABILITY || is_owned);
        let set = || fsetxattr(&file, OsStr::from_bytes(name), value, XattrFlags::empty());
        if !is_allowed || set().is_err() {
            lost.merge(Lost::of_xattr(name));
        }
    }
    let mut mode = meta.mode & 0o7777;
    if gives_rights && mode & SETUID != 0 && !(keep.setuid && is_owned) {
        mode &= !SETUID;
        lost.setuid = 1;
    }
    if fchmod(&file, Mode::from_raw_mode(mode)).is_err() {
        lost.mode = 1;
    } else if gives_rights && mode & SETUID != 0 {
        // The kernel drops bits without an error where the caller is not of the group.
        let stored = rustix::fs::fstat(&file).map_or(0, |stat| stat.st_mode & SETUID);
        lost.setuid |= u64::from(stored != mode & SETUID);
    }
    lost.time = u64::from(futimens(&file, &times(meta.modified)).is_err());
    lost
}

/// Applies owner and time to the symbolic link `name`, and returns what could not be kept.
pub fn apply_to_link(dir: &Dir, name: &OsStr, meta: &Meta, keep: Keep) -> Lost {
    let mut lost = Lost::default();
    let Ok(name) = CString::new(name.as_bytes()) else {
        return lost;
    };
    if keep.owner && crate::is_root() {
        let owned = owner(meta).is_some_and(|(uid, gid)| {
            chownat(dir, &name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).is_ok()
        });
        lost.owner = u64::from(!owned);
    }
    let set = utimensat(dir, &name, &times(meta.modified), AtFlags::SYMLINK_NOFOLLOW);
    lost.time = u64::from(set.is_err());
    lost
}

/// Returns owner and group for system calls; the highest number means "leave it as it is" there.
fn owner(meta: &Meta) -> Option<(Option<Uid>, Option<Gid>)> {
    if meta.uid == u32::MAX || meta.gid == u32::MAX {
        return None;
    }
    Some((Some(Uid::from_raw(meta.uid)), Some(Gid::from_raw(meta.gid))))
}

fn times(modified: FileTime) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: modified.seconds,
            tv_nsec: modified.nanos.into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    const ALL: Keep = Keep {
        owner: true,
        xattrs: true,
        acls: true,
        setuid: true,
    };

    fn meta(mode: u32, file: &File) -> Meta {
        let found = file.metadata().unwrap();
        Meta {
            mode,
            modified: FileTime {
                seconds: -1,
                nanos: 7,
            },
            uid: found.uid(),
            gid: found.gid(),
            xattrs: Vec::new(),
        }
    }

    fn xattr(name: &str, value: &[u8]) -> Xattr {
        (name.as_bytes().into(), value.into())
    }

    #[test]
    fn mode_and_time_are_kept_and_setuid_only_with_its_flag() {
        let file = tempfile::tempfile().unwrap();
        let wanted = meta(0o4755, &file);
        let lost = apply(&file, &wanted, Keep::default());
        assert_eq!(
            lost,
            Lost {
                setuid: 1,
                ..Lost::default()
            }
        );
        let found = file.metadata().unwrap();
        assert_eq!(found.mode() & 0o7777, 0o755);
        assert_eq!((found.mtime(), found.mtime_nsec()), (-1, 7));
        let keep = Keep {
            setuid: true,
            ..Keep::default()
        };
        assert_eq!(apply(&file, &wanted, keep), Lost::default());
        assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o4755);
    }

    #[test]
    fn a_directory_keeps_that_new_entries_inherit_its_group() {
        let dir = tempfile::tempdir().unwrap();
        let opened = File::open(dir.path()).unwrap();
        let lost = apply(&opened, &meta(0o3775, &opened), Keep::default());
        assert!(!lost.is_any());
        assert_eq!(opened.metadata().unwrap().mode() & 0o7777, 0o3775);
    }

    #[test]
    fn setuid_of_another_owner_is_not_given_to_this_one() {
        let file = tempfile::tempfile().unwrap();
        let mut wanted = meta(0o4755, &file);
        wanted.uid += 1;
        let keep = Keep {
            setuid: true,
            ..Keep::default()
        };
        assert_eq!(apply(&file, &wanted, keep).setuid, 1);
        assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o755);
    }

    #[test]
    fn the_owner_is_kept_as_root() {
        if !crate::is_root() {
            println!("SKIPPED: not root");
            return;
        }
        let file = tempfile::tempfile().unwrap();
        let mut wanted = meta(0o6750, &file);
        (wanted.uid, wanted.gid) = (12_345, 54_321);
        assert_eq!(apply(&file, &wanted, ALL), Lost::default());
        let found = file.metadata().unwrap();
        assert_eq!((found.uid(), found.gid()), (12_345, 54_321));
        assert_eq!(
            found.mode() & 0o7777,
            0o6750,
            "not cleared by the change of owner"
        );
        let dir = tempfile::tempdir().unwrap();
        symlink("nowhere", dir.path().join("link")).unwrap();
        let opened = Dir::open(dir.path()).unwrap();
        assert!(!apply_to_link(&opened, OsStr::new("link"), &wanted, ALL).is_any());
        let found = dir.path().join("link").symlink_metadata().unwrap();
        assert_eq!((found.uid(), found.mtime()), (12_345, -1));
        wanted.uid = u32::MAX;
        assert_eq!(apply(&file, &wanted, ALL).owner, 1);
        assert_eq!(file.metadata().unwrap().uid(), 12_345);
    }

    #[test]
    fn extended_attributes_and_acls_arrive_as_they_were() {
        // An ACL with a named user: version 2, then tag, permissions and id of each entry.
        let mut acl = 2_u32.to_le_bytes().to_vec();
        for (tag, rights, id) in [
            (1_u16, 6_u16, u32::MAX),
            (2, 4, 12_345),
            (4, 4, u32::MAX),
            (16, 4, u32::MAX),
            (32, 0, u32::MAX),
        ] {
            acl.extend([tag.to_le_bytes(), rights.to_le_bytes()].concat());
            acl.extend(id.to_le_bytes());
        }
        let source = tempfile::NamedTempFile::new_in(".").unwrap();
        let mut wanted = meta(0o640, source.as_file());
        wanted.xattrs = vec![
            xattr("system.posix_acl_access", &acl),
            xattr("user.empty", b""),
            xattr("user.haul", b"\0\xff"),
        ];
        if apply(source.as_file(), &wanted, ALL).is_any() {
            println!("SKIPPED: the file system has no ACLs or extended attributes");
            return;
        }
        let (captured, lost) = capture_xattrs(source.as_file(), ALL).unwrap();
        assert_eq!((captured, lost.is_any()), (wanted.xattrs.clone(), false));
        let (none, _) = capture_xattrs(source.as_file(), Keep::default()).unwrap();
        assert!(none.is_empty());
        let acls = Keep {
            acls: true,
            ..Keep::default()
        };
        let (captured, _) = capture_xattrs(source.as_file(), acls).unwrap();
        assert_eq!(captured, wanted.xattrs[..1]);
        assert_eq!(source.as_file().metadata().unwrap().mtime(), -1);
    }

    #[test]
    fn attributes_that_were_not_asked_for_are_counted_and_not_set() {
        let file = tempfile::NamedTempFile::new_in(".").unwrap();
        let mut wanted = meta(0o600, file.as_file());
        wanted.xattrs = vec![
            xattr("security.capability", b"x"),
            xattr("security.selinux", b"x"),
            xattr("system.posix_acl_access", b"x"),
            xattr("user.a", b"x"),
            xattr("user.b", b"x"),
        ];
        let lost = apply(file.as_file(), &wanted, Keep::default());
        let expected = Lost {
            setuid: 1,
            acls: 1,
            xattrs: 1,
            ..Lost::default()
        };
        assert_eq!(lost, expected, "entries are counted, not attributes");
        let (kept, _) = capture_xattrs(file.as_file(), ALL).unwrap();
        assert!(kept.is_empty(), "{kept:?}");
    }

    #[test]
    fn what_entries_lost_adds_up() {
        let mut lost = Lost {
            mode: 1,
            time: 1,
            ..Lost::default()
        };
        lost.add(Lost {
            mode: 1,
            owner: 1,
            ..Lost::default()
        });
        assert_eq!(
            lost,
            Lost {
                mode: 2,
                time: 1,
                owner: 1,
                ..Lost::default()
            }
        );
    }
}
