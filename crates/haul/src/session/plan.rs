//! Plans a transfer: what is present of the offered entries, and whether the rest has room.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex};

use haul_io::file::Dir;

use super::saturating_sum;
use crate::entry::{Entry, What};
use crate::fault::{Code, Fault};
use crate::fs::entry::Kind;
use crate::fs::path::Relative;
use crate::fs::tree::{Token, Tree};
use crate::journal::Verified;
use crate::lock;
use crate::name::Name;
use crate::room::Room;
use crate::target::{Found, HASH_PIECE, Target, lock_part};
use crate::wire::Policy;

/// The directory that receives the entries.
pub(crate) struct Destination {
    tree: Arc<Tree>,
    dir: Arc<Dir>,
    /// Names the temporary files of members, and the lock.
    name: Name,
    lock: Mutex<Option<File>>,
    folding: Mutex<Folding>,
}

/// The names of the directory that was looked at last, if it folds case: there a name may be found
/// that is another file's.
#[derive(Default)]
struct Folding {
    parent: Option<Relative>,
    names: Option<HashSet<OsString>>,
}

/// What an entry needs.
pub(super) enum Planned {
    /// Nothing: it is present as offered.
    Complete,
    /// Its part file is open.
    Part {
        target: Arc<Target>,
        verified: Vec<Verified>,
        /// A part of another source was discarded.
        restarted: bool,
        /// Bytes that are present.
        present: u64,
    },
    /// It is to be requested, or made.
    Wanted,
}

/// Storage that entries still need.
#[derive(Debug, Default)]
pub(super) struct Left {
    bytes: u64,
    entries: u64,
}

impl Left {
    pub(super) fn add(&mut self, entry: &Entry) {
        self.bytes = self.bytes.saturating_add(entry.data());
        self.entries += 1;
    }
}

impl Destination {
    /// Takes the directory for a request with this binding. Another transfer of the same request
    /// into it has the same temporary names, so that it replaces what a killed one left.
    pub(crate) fn new(dir: Dir, binding: &[u8; 32]) -> Result<Self, Fault> {
        let failed = |error| Fault::file("cannot open the target", &error);
        let copy = dir.open_beneath(std::path::Path::new("")).map_err(failed)?;
        let stat = rustix::fs::fstat(&dir).map_err(|error| failed(error.into()))?;
        let mut hash = blake3::Hasher::new();
        hash.update(binding);
        hash.update(&stat.st_dev.to_le_bytes());
        hash.update(&stat.st_ino.to_le_bytes());
        let hash = hash.finalize();
        let mut token = Token::default();
        token.copy_from_slice(&hash.as_bytes()[..size_of::<Token>()]);
        let hex = hash.to_hex();
        Ok(Self {
            tree: Arc::new(Tree::new(copy, token)),
            dir: Arc::new(dir),
            name: Name::new(format!("haul-{}", &hex.as_str()[..16]).as_bytes())?,
            lock: Mutex::new(None),
            folding: Mutex::default(),
        })
    }

    pub(super) fn tree(&self) -> Arc<Tree> {
        Arc::clone(&self.tree)
    }

    /// Finds out what an entry needs, and makes a directory. If `may_open`, opens the part file of
    /// one that arrives block by block.
    pub(super) fn plan(
        &self,
        entry: &Entry,
        policy: Policy,
        may_open: bool,
    ) -> Result<Planned, Fault> {
        if entry.is_member {
            self.lock()?;
        }
        self.find(entry, policy, may_open)
            .map_err(|fault| self.conflict(entry).unwrap_or(fault))
    }

    /// Explains why an entry has no place: something of another kind has its name, or that of a
    /// directory above it.
    fn conflict(&self, entry: &Entry) -> Option<Fault> {
        for path in entry.path.ancestors().chain([entry.path.clone()]) {
            let (there, _) = self.tree.look(&path).ok()??;
            let here = match &entry.what {
                _ if path != entry.path => "a directory",
                What::Directory => "a directory",
                What::File(_) | What::HardLink { .. } => "a file",
                What::Symlink { .. } => "a symbolic link",
            };
            let there = match there {
                Kind::File | Kind::HardLink(_) => "a file",
                Kind::Directory => "a directory",
                Kind::Symlink(_) => "a symbolic link",
                Kind::Special => "a device, pipe or socket",
            };
            if here != there && (here == "a directory" || there != "a file") {
                let text = format!(
                    "'{path}' is {here} at the source and {there} at the target: remove or rename \
                     one of them, or send to another directory"
                );
                return Some(Fault::new(Code::Refused, text));
            }
        }
        None
    }

    fn find(&self, entry: &Entry, policy: Policy, may_open: bool) -> Result<Planned, Fault> {
        let failed = |error| Fault::file(&format!("cannot write '{}'", entry.path), &error);
        match &entry.what {
            What::Directory => {
                let made = self.tree.make_directory(&entry.path, entry.mode);
                made.map(|_| Planned::Complete).map_err(failed)
            }
            What::Symlink { target } => {
                let known = self.tree.look(&entry.path).map_err(failed)?;
                let is_same = |kind: &Kind| matches!(kind, Kind::Symlink(is) if **is == **target);
                self.link(entry, policy, known.is_some_and(|(kind, _)| is_same(&kind)))
            }
            What::HardLink { path } => {
                let inode = |path| -> Result<_, Fault> {
                    let found = self.tree.look(path).map_err(failed)?;
                    Ok(found.map(|(_, stat)| stat.identity))
                };
                let known = inode(&entry.path)?;
                self.link(entry, policy, known.is_some() && known == inode(path)?)
            }
            What::File(_) => {
                let dir = self.parent(&entry.path).map_err(failed)?;
                let planned = if entry.is_small() || !may_open {
                    match Target::is_present(&dir, entry, policy)? {
                        true => Planned::Complete,
                        false => Planned::Wanted,
                    }
                } else {
                    open(&dir, entry, policy)?
                };
                if matches!(planned, Planned::Complete)
                    && self.is_other_case(&dir, &entry.path).map_err(failed)?
                {
                    let text = format!("'{}' differs from a name there only in case", entry.path);
                    return Err(Fault::new(Code::Exists, text));
                }
                Ok(planned)
            }
        }
    }

    /// Returns whether a name that was found is that of another file, on a file system that ignores
    /// case.
    fn is_other_case(&self, dir: &Dir, path: &Relative) -> io::Result<bool> {
        let Some((parent, name)) = path.split() else {
            return Ok(false);
        };
        let mut known = lock(&self.folding);
        if known.parent.as_ref() != Some(&parent) {
            let Some(other) = other_case(name) else {
                return Ok(false);
            };
            let folds = dir.metadata(&other)?.is_some();
            *known = Folding {
                names: folds.then(|| names(dir)).transpose()?,
                parent: Some(parent),
            };
        }
        Ok(known
            .names
            .as_ref()
            .is_some_and(|names| !names.contains(name)))
    }

    fn link(&self, entry: &Entry, policy: Policy, is_same: bool) -> Result<Planned, Fault> {
        if is_same {
            return Ok(Planned::Complete);
        }
        let failed = |error| Fault::file(&format!("cannot write '{}'", entry.path), &error);
        let known = self.tree.look(&entry.path).map_err(failed)?;
        match known {
            Some((Kind::Directory, _)) => Err(Fault::new(
                Code::Refused,
                format!("'{}' is a directory at the target", entry.path),
            )),
            Some(_) if !policy.replace => Err(Fault::new(
                Code::Exists,
                format!("'{}' exists at the target", entry.path),
            )),
            _ => Ok(Planned::Wanted),
        }
    }

    /// Opens the directory of an entry; makes it if it was not offered.
    fn parent(&self, path: &Relative) -> io::Result<Arc<Dir>> {
        let Some((parent, _)) = path.split().filter(|(parent, _)| !parent.is_root()) else {
            return Ok(Arc::clone(&self.dir));
        };
        match self.tree.directory(&parent) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.tree.make_directory(&parent, 0o777)?;
                self.tree.directory(&parent)
            }
            result => result,
        }
    }

    /// Keeps another transfer of the same tree away: both would use the same temporary names.
    fn lock(&self) -> Result<(), Fault> {
        let mut held = lock(&self.lock);
        if held.is_none() {
            let taken = lock_part(&self.dir, &self.name, 0o600);
            *held = Some(taken.map_err(|fault| match fault.code {
                Code::TargetBusy => Fault {
                    text: "another transfer is writing the same tree".to_owned(),
                    ..fault
                },
                _ => fault,
            })?);
        }
        Ok(())
    }

    /// Lets another transfer of the same tree begin: everything has its name.
    pub(super) fn unlock(&self) {
        // Held until the name is gone: nobody else may lock it meanwhile.
        let held = lock(&self.lock).take();
        if held.is_some() {
            // What cannot be removed stays; the next transfer of the same tree uses it.
            let _ = self.dir.remove(&self.name.part());
        }
    }

    /// Checks that there is room for what was opened and for what is still to be requested.
    pub(super) fn check_room(&self, opened: &[Arc<Target>], left: &Left) -> Result<(), Fault> {
        let missing = opened.iter().map(|target| target.missing_storage());
        let missing = missing.collect::<Result<Vec<_>, _>>()?;
        let missing = saturating_sum(missing.into_iter()).saturating_add(left.bytes);
        let failed = |error| Fault::file("cannot ask the target how much room it has", &error);
        Room::of(&self.dir)
            .map_err(failed)?
            .check(missing, left.entries)
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        self.unlock();
    }
}

/// Returns a name that differs only in the case of its letters, if it has letters.
fn other_case(name: &OsStr) -> Option<OsString> {
    let text = String::from_utf8_lossy(name.as_bytes());
    let other = [text.to_uppercase(), text.to_lowercase()];
    other
        .into_iter()
        .find(|other| *other != text)
        .map(OsString::from)
}

fn names(dir: &Dir) -> io::Result<HashSet<OsString>> {
    let entries = rustix::fs::Dir::read_from(dir)?;
    let name = |entry: rustix::io::Result<rustix::fs::DirEntry>| {
        Ok(OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned())
    };
    entries.map(name).collect()
}

/// Opens the part file of an entry.
fn open(dir: &Arc<Dir>, entry: &Entry, policy: Policy) -> Result<Planned, Fault> {
    let found = Target::find(dir, entry, policy).map_err(|fault| match fault.code {
        // Of this file alone: the lock of the tree is held.
        Code::TargetBusy if entry.is_member => Fault {
            code: Code::FileError,
            ..fault
        },
        _ => fault,
    })?;
    let (target, mut verified, restarted) = match found {
        Found::Complete => return Ok(Planned::Complete),
        Found::Part {
            target,
            verified,
            restarted,
        } => (target, verified, restarted),
    };
    if policy.recheck {
        recheck(&target, &mut verified)?;
    }
    let blocks = verified
        .iter()
        .map(|(block, _)| target.blocks.range(*block, 1).1);
    let present = saturating_sum(blocks);
    Ok(Planned::Part {
        target: Arc::from(target),
        verified,
        restarted,
        present,
    })
}

/// Keeps only the blocks that still match the journal, in the journal as well.
fn recheck(target: &Target, verified: &mut Vec<Verified>) -> Result<(), Fault> {
    let mut buffer = vec![0; HASH_PIECE];
    let (mut failed, before) = (None, verified.len());
    verified.retain(
        |(block, digest)| match target.hash_block(*block, &mut buffer) {
            Ok(found) => found == *digest,
            Err(error) => {
                failed.get_or_insert(error);
                false
            }
        },
    );
    if let Some(error) = failed {
        return Err(target.fault("cannot read back", &error));
    }
    if verified.len() < before {
        target.forget()?;
        target.commit(verified)?;
    }
    Ok(())
}
