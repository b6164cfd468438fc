//! Compares a local tree with one of a server by digests; no content crosses the network.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use haul_io::file::{Dir, metadata, open_source};

use super::client::{Found, Request, Session};
use super::digest::{self, BlockDigests};
use crate::client::Config;
use crate::fault::{Code, Fault, plain};
use crate::fs::entry::{Entry, Kind, Stat};
use crate::fs::filter::Filter;
use crate::fs::path::Relative;
use crate::fs::tree::Tree;
use crate::fs::walk::{Options, Walk};
use crate::printable;
use crate::report::count_of;

/// Which of the two trees is the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The local one.
    Local,
    /// The server's.
    Remote,
}

/// A finding of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<'a> {
    /// A file that is the same at both ends, with its BLAKE3 hash.
    Same(&'a Relative, [u8; 32]),
    /// An entry of the source that is not the same at the destination.
    Different(&'a Relative, Difference),
    /// What could not be examined or read.
    Failed {
        /// Where, below the root of the trees.
        path: Box<[u8]>,
        /// What and why.
        text: String,
    },
}

/// How an entry of the destination differs from that of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// There is none.
    Missing,
    /// It is something else: a directory instead of a file, for example.
    Kind,
    /// The symbolic link has another target.
    Target,
    /// The file has another size, bytes.
    Size {
        /// At the source.
        source: u64,
        /// At the destination.
        destination: u64,
    },
    /// These ranges of the file differ, in whole blocks of at least 1 MiB.
    Content(Vec<Range<u64>>),
}

/// The counts of a comparison.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Entries that are the same.
    pub same: u64,
    /// Bytes of the files among them.
    pub bytes: u64,
    /// Entries that differ, missing ones not counted.
    pub different: u64,
    /// Entries that the destination lacks.
    pub missing: u64,
    /// Entries that only the destination has.
    pub extra: u64,
    /// Devices, pipes and sockets of the source, which are not compared.
    pub special: u64,
    /// What could not be examined or read.
    pub failures: u64,
}

impl Counts {
    /// Returns the failure of a comparison in which something differs or could not be read.
    #[must_use]
    pub fn fault(&self) -> Option<Fault> {
        let differing = self.different + self.missing;
        if differing > 0 {
            let differing = count_of(
                differing,
                "entry of the source differs",
                "entries of the source differ",
            );
            let text = format!("{differing} at the destination");
            let hint = "send missing ones by the same command again, different ones by their names \
                        with --recheck, which sends complete files again";
            return Some(Fault::new(Code::Integrity, text).hint(hint));
        }
        if self.failures > 0 {
            let text = count_of(
                self.failures,
                "entry could not be examined",
                "entries could not be examined",
            );
            return Some(Fault::new(Code::FileError, text));
        }
        None
    }
}

/// Compares what `request` names at the server with `local`, and hands each finding to `report`.
///
/// Content is compared by BLAKE3 hashes, links by their targets; attributes are not compared.
/// Memory: 16 bytes for each entry of the server, and the paths of files that differ.
///
/// # Errors
/// The server cannot be reached, or one of the two does not exist.
pub fn verify(
    config: &Config,
    request: &Request,
    local: &Path,
    source: Source,
    report: &mut dyn FnMut(&Event<'_>),
) -> Result<Counts, Fault> {
    let tree = Local::open(local)?;
    let filter = request.choice.filter()?;
    let request = Request {
        is_recursive: true,
        with_digests: true,
        ..request.clone()
    };
    let session = Session::open(config, &request)?;
    let mut comparison = Comparison {
        source,
        seen: HashSet::new(),
        to_locate: Vec::new(),
        counts: Counts::default(),
        report,
    };
    let mut is_file_there = false;
    session.list(|found| {
        match found {
            Found::Entry(entry, digest) => {
                is_file_there |= entry.path.is_root() && entry.kind != Kind::Directory;
                comparison.remote(&tree, &entry, digest);
            }
            Found::Failed { path, text } => comparison.fail(&path, text),
        }
        Ok(())
    })?;
    if is_file_there == matches!(tree, Local::Directory { .. }) {
        return Err(other_kind(local, &request.path, is_file_there));
    }
    if let Local::Directory { path, .. } = &tree {
        comparison.local(path, filter)?;
    }
    comparison.locate(&session, &tree)?;
    Ok(comparison.counts)
}

/// Makes the fault of a file that is compared with a directory.
fn other_kind(local: &Path, there: &[u8], is_file_there: bool) -> Fault {
    let local = printable(local.as_os_str().as_encoded_bytes());
    let there = printable(there);
    let (file, directory) = match is_file_there {
        true => (&there, &local),
        false => (&local, &there),
    };
    let text = format!("'{file}' is a file, and '{directory}' is a directory");
    Fault::new(Code::Integrity, text).hint("name two files or two directories")
}

/// The local tree, or the one file that is compared.
pub(crate) enum Local {
    Directory {
        path: Box<Path>,
        dir: Dir,
        tree: Tree,
    },
    File(File),
}

impl Local {
    pub(crate) fn open(path: &Path) -> Result<Self, Fault> {
        let shown = printable(path.as_os_str().as_encoded_bytes());
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => {
                let text = format!("there is no file or directory '{shown}'");
                Fault::new(Code::FileNotFound, text).hint("check the name")
            }
            _ => Fault::file(&format!("cannot open '{shown}'"), &error),
        };
        match Dir::open(path) {
            Ok(dir) => Ok(Self::Directory {
                path: path.into(),
                // It only looks, so that no temporary name is made.
                tree: Tree::new(Dir::open(path).map_err(failed)?, [0; 8]),
                dir,
            }),
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                open_source(path).map(Self::File).map_err(failed)
            }
            Err(error) => Err(failed(error)),
        }
    }

    pub(crate) fn look(&self, path: &Relative) -> io::Result<Option<(Kind, Stat)>> {
        match self {
            Self::Directory { tree, .. } if !path.is_root() => match tree.look(path) {
                // Something else lies on the way.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::NotADirectory | io::ErrorKind::CrossesDevices
                    ) =>
                {
                    Ok(None)
                }
                result => result,
            },
            Self::File(file) if path.is_root() => {
                let stat = rustix::fs::fstat(file)?;
                Ok(Some((Kind::File, Stat::of(&stat).0)))
            }
            _ => Ok(None),
        }
    }

    pub(crate) fn file(&self, path: &Relative) -> io::Result<File> {
        let file = match self {
            Self::Directory { dir, .. } => dir.open_file(path.as_path())?,
            Self::File(file) => file.try_clone()?,
        };
        match metadata(&file)?.regular {
            true => Ok(file),
            false => Err(io::Error::other("it is no regular file")),
        }
    }
}

struct Comparison<'a> {
    source: Source,
    /// Hashes of the paths that the server has.
    seen: HashSet<[u8; 16]>,
    /// Files of one size with different content.
    to_locate: Vec<Relative>,
    counts: Counts,
    report: &'a mut dyn FnMut(&Event<'_>),
}

impl Comparison<'_> {
    fn fail(&mut self, path: &[u8], text: String) {
        self.counts.failures += 1;
        let path = path.into();
        (self.report)(&Event::Failed { path, text });
    }

    fn differ(&mut self, path: &Relative, difference: Difference) {
        match difference {
            Difference::Missing => self.counts.missing += 1,
            _ => self.counts.different += 1,
        }
        (self.report)(&Event::Different(path, difference));
    }

    /// Compares an entry of the server with the local one.
    fn remote(&mut self, tree: &Local, entry: &Entry, digest: Option<[u8; 32]>) {
        self.seen.insert(entry.path.short_hash());
        if entry.kind == Kind::Special {
            self.counts.special += u64::from(self.source == Source::Remote);
            return;
        }
        match tree.look(&entry.path) {
            Ok(Some((kind, stat))) => self.both(tree, entry, digest, (&kind, &stat)),
            Ok(None) if self.source == Source::Remote => {
                self.differ(&entry.path, Difference::Missing);
            }
            Ok(None) => self.counts.extra += 1,
            Err(error) => {
                let text = format!("cannot examine '{}': {}", entry.path, plain(&error));
                self.fail(entry.path.as_bytes(), text);
            }
        }
    }

    fn both(
        &mut self,
        tree: &Local,
        entry: &Entry,
        digest: Option<[u8; 32]>,
        (kind, stat): (&Kind, &Stat),
    ) {
        let path = &entry.path;
        let is_same = match (&entry.kind, kind) {
            (Kind::Directory, Kind::Directory) => true,
            (Kind::Symlink(one), Kind::Symlink(other)) if one == other => true,
            (Kind::Symlink(_), Kind::Symlink(_)) => {
                return self.differ(path, Difference::Target);
            }
            (Kind::File | Kind::HardLink(_), Kind::File) => {
                return self.files(tree, entry, digest, stat.size);
            }
            _ => false,
        };
        if is_same {
            self.counts.same += 1;
        } else {
            self.differ(path, Difference::Kind);
        }
    }

    fn files(&mut self, tree: &Local, entry: &Entry, digest: Option<[u8; 32]>, size: u64) {
        let path = &entry.path;
        if entry.stat.size != size {
            let (source, destination) = match self.source {
                Source::Local => (size, entry.stat.size),
                Source::Remote => (entry.stat.size, size),
            };
            let difference = Difference::Size {
                source,
                destination,
            };
            return self.differ(path, difference);
        }
        let hashed = tree.file(path).and_then(|file| digest::of_file(&file));
        match (hashed, digest) {
            (Ok((hash, size)), Some(digest)) if hash == digest => {
                self.counts.same += 1;
                self.counts.bytes += size;
                (self.report)(&Event::Same(path, hash));
            }
            (Ok(_), Some(_)) => self.to_locate.push(path.clone()),
            (Ok(_), None) => {
                let text = format!("the server sent no digest of '{path}'");
                self.fail(path.as_bytes(), text);
            }
            (Err(error), _) => self.unreadable(path, &error),
        }
    }

    fn unreadable(&mut self, path: &Relative, error: &io::Error) {
        let text = format!("cannot read '{path}': {}", plain(error));
        self.fail(path.as_bytes(), text);
    }

    /// Finds local entries that the server does not have.
    fn local(&mut self, path: &Path, filter: Filter) -> Result<(), Fault> {
        let options = Options {
            filter,
            ..Options::default()
        };
        let walk = Dir::open(path).and_then(|dir| Walk::start(dir, &options));
        let walk = walk.map_err(|error| Fault::file("cannot read the local directory", &error))?;
        for found in walk {
            match found {
                Ok(entry) if entry.kind == Kind::Special => {
                    self.counts.special += u64::from(self.source == Source::Local);
                }
                Ok(entry) if self.seen.contains(&entry.path.short_hash()) => {}
                Ok(entry) if self.source == Source::Local => {
                    self.differ(&entry.path, Difference::Missing);
                }
                Ok(_) => self.counts.extra += 1,
                Err(failure) => self.fail(&failure.path, failure.to_string()),
            }
        }
        Ok(())
    }

    /// Finds where files with different content differ.
    fn locate(&mut self, session: &Session, tree: &Local) -> Result<(), Fault> {
        for path in std::mem::take(&mut self.to_locate) {
            let blocks = |file: File| BlockDigests::of_file(&file, metadata(&file)?.size);
            let own = tree.file(&path).and_then(blocks);
            let theirs = match session.blocks(&path) {
                Err(fault) if fault.code == Code::FileError => Err(fault.to_string()),
                result => Ok(result?),
            };
            match (own, theirs) {
                (Ok(own), Ok(theirs)) => {
                    // No ranges: one of the files has changed meanwhile.
                    let ranges = own.differing(&theirs).unwrap_or_default();
                    self.differ(&path, Difference::Content(ranges));
                }
                (Err(error), _) => self.unreadable(&path, &error),
                (_, Err(text)) => self.fail(path.as_bytes(), text),
            }
        }
        Ok(())
    }
}
