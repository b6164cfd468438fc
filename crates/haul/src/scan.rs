//! Scans trees at their source: entries in the order of the offer, while the walk still goes on.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crossbeam_channel::{Receiver, SendError, Sender, bounded};
use haul_io::file::Dir;

use crate::entry::{EXTENTS_MAX, Entry, Extent, Extra, FileEntry, SMALL_MAX, What};
use crate::fault::{Code, Fault};
use crate::fs;
use crate::fs::entry::{Kind, Stat};
use crate::fs::extents::Extents;
use crate::fs::meta::{Lost, Xattr, capture_xattrs};
use crate::fs::path::Relative;
use crate::fs::walk::{Options, Walk};
use crate::outbound::{Offered, Origin};
use crate::wire::Policy;

/// Entries that wait to be offered.
const AHEAD: usize = 4096;

/// What a scan finds.
#[derive(Debug)]
pub(crate) enum Scanned {
    Entry(Box<Offered>),
    /// A device, pipe or socket, which is not copied.
    Special(Vec<u8>),
    /// Something that cannot be examined, with its path.
    Failed(Vec<u8>, Fault),
    /// Nothing follows. A scan that ends without it has failed.
    End {
        /// Names of files with several names that are offered as files of their own.
        split: u64,
    },
}

/// A tree to scan.
#[derive(Debug)]
pub(crate) struct Root {
    pub(crate) dir: Dir,
    /// Its path in the offer; that of a tree whose contents are offered alone is the root.
    pub(crate) path: Relative,
}

/// Scans the trees one after another, on a thread of its own, until the receiver is dropped.
///
/// # Errors
/// A root cannot be examined, or there is no thread.
pub(crate) fn start(
    roots: Vec<Root>,
    policy: Policy,
    members: Options,
) -> Result<Receiver<Scanned>, Fault> {
    let (sender, receiver) = bounded(AHEAD);
    let thread = std::thread::Builder::new().name("haul-scan".into());
    let scan = move || {
        let mut split = 0;
        for root in roots {
            match scan(root, policy, &members, &sender) {
                Ok(found) => split += found,
                // The session has ended.
                Err(SendError(_)) => return,
            }
        }
        // As above.
        let _ = sender.send(Scanned::End { split });
    };
    thread
        .spawn(scan)
        .map(|_| receiver)
        .map_err(|error| Fault::system(&error))
}

/// Returns how many names are [`Scanned::End`]'s `split`.
fn scan(
    root: Root,
    policy: Policy,
    members: &Options,
    to: &Sender<Scanned>,
) -> Result<u64, SendError<Scanned>> {
    let Root { dir, path } = root;
    let failed = |error: &io::Error| {
        let fault = Fault::file(&format!("cannot read the directory '{path}'"), error);
        to.send(Scanned::Failed(path.as_bytes().to_vec(), fault))
            .map(|()| 0)
    };
    let walked = dir
        .open_beneath(Path::new(""))
        .and_then(|copy| Walk::start(copy, members));
    let mut walk = match walked {
        Ok(walk) => walk,
        Err(error) => return failed(&error),
    };
    let skip = match path.is_root() {
        true => 0,
        false => path.as_bytes().len() + 1,
    };
    let scan = Scan {
        root: Arc::new(dir),
        skip,
        path: path.clone(),
        policy,
    };
    if !path.is_root() {
        to.send(scan.entry(walk.root().clone()))?;
    }
    for found in walk.by_ref() {
        to.send(match found {
            Ok(found) => scan.entry(found),
            Err(failure) => {
                let mut path = scan.shown(&failure.path);
                if path.is_empty() {
                    path.push(b'.');
                }
                let doing = format!("cannot {} '{}'", failure.doing, crate::printable(&path));
                let fault = Fault::file(&doing, &failure.error);
                Scanned::Failed(path, fault)
            }
        })?;
    }
    Ok(walk.counts().links_split)
}

struct Scan {
    root: Arc<Dir>,
    /// How many bytes of a path in the offer lead to the root.
    skip: usize,
    path: Relative,
    policy: Policy,
}

impl Scan {
    fn entry(&self, found: fs::entry::Entry) -> Scanned {
        let below = found.path.clone();
        match self.offered(found) {
            Ok(Some(offered)) => Scanned::Entry(Box::new(offered)),
            Ok(None) => Scanned::Special(self.shown(below.as_bytes())),
            Err(fault) => Scanned::Failed(self.shown(below.as_bytes()), fault),
        }
    }

    /// Returns the path in the offer of what may not have a valid one.
    fn shown(&self, below: &[u8]) -> Vec<u8> {
        match (self.path.is_root(), below.is_empty()) {
            (true, _) => below.to_vec(),
            (false, true) => self.path.as_bytes().to_vec(),
            (false, false) => [self.path.as_bytes(), b"/", below].concat(),
        }
    }

    fn offered(&self, found: fs::entry::Entry) -> Result<Option<Offered>, Fault> {
        let fs::entry::Entry { path, kind, stat } = found;
        let what = match kind {
            Kind::File => What::File(self.file(&path, &stat)?),
            Kind::Directory => What::Directory,
            Kind::Symlink(target) => What::Symlink {
                target: target.into_vec(),
            },
            Kind::HardLink(first) => What::HardLink {
                path: self.path.append(&first)?,
            },
            Kind::Special => return Ok(None),
        };
        let (xattrs, lost) = self.xattrs(&path, &what)?;
        let entry = Entry {
            path: self.path.append(&path)?,
            modified: stat.modified.into(),
            mode: stat.mode,
            is_member: true,
            what,
            extra: Some(Extra {
                uid: stat.uid,
                gid: stat.gid,
                xattrs,
            }),
        };
        let origin = Origin::Member {
            root: Arc::clone(&self.root),
            skip: self.skip,
        };
        let mut offered = Offered::new(entry, origin);
        offered.lost = lost;
        Ok(Some(offered))
    }

    fn file(&self, path: &Relative, stat: &Stat) -> Result<FileEntry, Fault> {
        let cannot_read = |error| Fault::file(&format!("cannot read '{path}'"), &error);
        if stat.size == 0 {
            let file = self.root.open_file(path.as_path()).map_err(cannot_read)?;
            if file.read_at(&mut [0], 0).map_err(cannot_read)? > 0 {
                let text = format!("the system does not know the size of '{path}'");
                return Err(Fault::new(Code::Refused, text).hint("send it by itself"));
            }
        }
        // A small file is moved whole: asking where its data lies costs more than its holes.
        let may_have_holes = stat.size > SMALL_MAX && stat.allocated < stat.size;
        let extents = match may_have_holes {
            true => self.extents(path, stat.size).map_err(cannot_read)?,
            false => None,
        };
        Ok(FileEntry {
            size: stat.size,
            unproven: false,
            is_linked: stat.links > 1,
            extents,
        })
    }

    /// Returns where the data of a file lies; of too many runs, those after the last hole that can
    /// be named count as one.
    fn extents(&self, path: &Relative, size: u64) -> io::Result<Option<Vec<Extent>>> {
        let file = self.root.open_file(path.as_path())?;
        let mut found: Vec<Extent> = Vec::new();
        for run in Extents::new(&file, size) {
            let run = run?;
            if found.len() == EXTENTS_MAX
                && let Some(last) = found.last_mut()
            {
                last.len = size - last.start;
                break;
            }
            match found.last_mut() {
                Some(last) if last.start + last.len == run.start => last.len += run.end - run.start,
                _ => found.push(Extent {
                    start: run.start,
                    len: run.end - run.start,
                }),
            }
        }
        let is_dense = matches!(found[..], [Extent { start: 0, len }] if len == size);
        Ok((!is_dense).then_some(found))
    }

    fn xattrs(&self, path: &Relative, what: &What) -> Result<(Vec<Xattr>, Lost), Fault> {
        let keep = self.policy.keep();
        let is_wanted = keep.xattrs || keep.acls || keep.setuid;
        if !is_wanted || !matches!(what, What::File(_) | What::Directory) {
            return Ok(Default::default());
        }
        let path_or_self = match path.is_root() {
            true => Path::new("."),
            false => path.as_path(),
        };
        let captured = self
            .root
            .open_file(path_or_self)
            .and_then(|file| capture_xattrs(&file, keep));
        captured.map_err(|error| Fault::file(&format!("cannot read '{path}'"), &error))
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{XattrFlags, fsetxattr};

    use super::*;

    #[test]
    fn attributes_that_an_offer_cannot_carry_are_lost() {
        // Other file systems have no attributes of this size.
        let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let place = place.unwrap();
        let file = std::fs::File::create(place.path().join("a")).unwrap();
        for name in ["user.a", "user.b", "user.c"] {
            if fsetxattr(&file, name, &[7; 60_000], XattrFlags::empty()).is_err() {
                println!("SKIPPED: no file system with long extended attributes");
                return;
            }
        }
        let root = Root {
            dir: Dir::open(place.path()).unwrap(),
            path: Relative::root(),
        };
        let policy = Policy {
            xattrs: true,
            ..Policy::default()
        };
        let found = start(vec![root], policy, Options::default()).unwrap();
        let found: Vec<_> = found.iter().collect();
        let [Scanned::Entry(entry), Scanned::End { split: 0 }] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(entry.lost.xattrs, 1);
        assert_eq!(entry.entry.weight(), 1 + 2 * 60_006);
    }
}
