//! The server's end of a listing.

use std::fs::File;
use std::io;

use haul_control::duplex;
use haul_io::file::{Dir, metadata};
use rustix::fs::FileType;

use super::delete;
use super::digest::{self, BlockDigests};
use super::wire::{
    BATCH_BYTES, BATCH_ENTRIES, Batch, Delete, Deleted, Digests, End, Failed, Item, List, Message,
    WINDOW, encode,
};
use crate::choice::filter_of;
use crate::fault::{Code, Fault, plain};
use crate::fs::entry::{Entry, Kind, Stat};
use crate::fs::path::Relative;
use crate::fs::tree::Tree;
use crate::fs::walk::{Options, Walk};
use crate::room::Room;

/// What a client may list.
pub(crate) enum Root {
    Directory(Dir),
    File(File),
}

impl Root {
    /// Returns the tree of the listing, for removals. No temporary name is made in it.
    fn tree(&self) -> Result<Tree, Fault> {
        let Self::Directory(dir) = self else {
            return Err(Fault::protocol("the client removes entries of a file"));
        };
        let copy = dir.open_beneath(Relative::root().as_path());
        let copy = copy.map_err(|error| Fault::system(&error))?;
        Ok(Tree::new(copy, [0; 8]))
    }

    /// Opens the regular file of a path of the listing.
    fn open(&self, path: &Relative) -> io::Result<File> {
        let file = match self {
            Self::Directory(dir) => dir.open_file(path.as_path())?,
            Self::File(file) if path.is_root() => file.try_clone()?,
            Self::File(_) => return Err(io::ErrorKind::NotFound.into()),
        };
        if metadata(&file)?.regular {
            Ok(file)
        } else {
            Err(io::Error::other("it is no regular file"))
        }
    }
}

/// The two directions of a listing's connection.
pub(crate) struct Link {
    pub(crate) sender: duplex::Sender,
    pub(crate) receiver: duplex::Receiver<Message>,
}

impl Link {
    pub(crate) fn send(&self, message: &Message) -> Result<(), Fault> {
        self.sender.send(encode(message)?)
    }
}

/// Sends what was asked for, then answers requests for digests of blocks, and removes entries if
/// `may_delete` permits it, until the client leaves. `deleted` counts what is removed.
pub(crate) fn serve(
    link: &Link,
    root: &Root,
    request: &List,
    may_delete: &dyn Fn() -> Result<(), Fault>,
    deleted: &mut u64,
) -> Result<(), Fault> {
    let mut batches = Batches {
        link,
        batch: Batch::default(),
        bytes: 0,
        credit: WINDOW,
    };
    let excluded = match root {
        Root::Directory(dir) => list(&mut batches, root, dir, request)?,
        Root::File(file) => {
            let stat = rustix::fs::fstat(file).map_err(|error| Fault::system(&error.into()))?;
            let (stat, kind) = Stat::of(&stat);
            let entry = Entry {
                path: Relative::root(),
                kind: match kind {
                    FileType::RegularFile => Kind::File,
                    _ => Kind::Special,
                },
                stat,
            };
            batches.add(root, entry, request.digests)?;
            0
        }
    };
    batches.flush()?;
    link.send(&Message::End(end(root, excluded)))?;
    let mut tree = None;
    loop {
        match link.receiver.receive() {
            Ok(Message::Blocks(blocks)) => {
                let path = Relative::new(&blocks.path)?;
                link.send(&Message::Digests(blocks_of(root, &path)))?;
            }
            Ok(Message::Delete(delete)) => {
                may_delete()?;
                let tree = match &tree {
                    Some(tree) => tree,
                    None => tree.insert(root.tree()?),
                };
                let outcome = remove(tree, delete)?;
                *deleted += outcome.count;
                link.send(&Message::Deleted(outcome))?;
            }
            // Sent for the last batches.
            Ok(Message::Credit) => {}
            Ok(other) => return Err(other.misplaced()),
            Err(fault) if fault.code == Code::PeerGone => return Ok(()),
            Err(fault) => return Err(fault),
        }
    }
}

fn end(root: &Root, excluded: u64) -> End {
    let (is_file, dir) = match root {
        Root::Directory(dir) => (false, Some(dir)),
        Root::File(_) => (true, None),
    };
    End {
        is_file,
        excluded,
        file_system: dir.and_then(|dir| dir.file_system().ok()),
        room: dir.and_then(|dir| Room::of(dir).ok()),
    }
}

/// Removes what the client names, of which every path is below the directory of the request.
fn remove(tree: &Tree, delete: Delete) -> Result<Deleted, Fault> {
    if delete.items.len() > BATCH_ENTRIES {
        return Err(Fault::protocol(
            "the client removes too many entries at once",
        ));
    }
    let entries = delete.items.into_iter().map(|item| {
        let (entry, _) = item.into_entry()?;
        match entry.path.is_root() {
            true => Err(Fault::protocol("the client removes the directory itself")),
            false => Ok(entry),
        }
    });
    let entries = entries.collect::<Result<Vec<_>, Fault>>()?;
    let outcome = delete::delete(tree, entries).map_err(|error| Fault::system(&error))?;
    let failures = outcome.failures.into_iter();
    Ok(Deleted {
        count: outcome.deleted,
        failures: failures.map(|(path, text)| Failed { path, text }).collect(),
        not_empty: outcome.not_empty.into_iter().map(Into::into).collect(),
    })
}

/// Returns how many entries were excluded.
fn list(batches: &mut Batches<'_>, root: &Root, dir: &Dir, request: &List) -> Result<u64, Fault> {
    let options = Options {
        filter: filter_of(&request.rules, request.ignore_files)?,
        is_recursive: request.recursive,
        ..Options::default()
    };
    let copy = dir.open_beneath(Relative::root().as_path());
    let mut walk = copy
        .and_then(|dir| Walk::start(dir, &options))
        .map_err(|error| Fault::system(&error))?;
    for found in walk.by_ref() {
        match found {
            Ok(entry) => batches.add(root, entry, request.digests)?,
            Err(failure) => batches.fail(&failure.path, failure.to_string())?,
        }
    }
    Ok(walk.counts().excluded)
}

/// Entries on their way to the client.
struct Batches<'a> {
    link: &'a Link,
    batch: Batch,
    bytes: usize,
    /// Batches that the client has room for.
    credit: usize,
}

impl Batches<'_> {
    fn add(&mut self, root: &Root, entry: Entry, digests: bool) -> Result<(), Fault> {
        let mut blake3 = None;
        if digests && matches!(entry.kind, Kind::File | Kind::HardLink(_)) {
            let hashed = root
                .open(&entry.path)
                .and_then(|file| digest::of_file(&file));
            match hashed {
                Ok((hash, _)) => blake3 = Some(hash),
                Err(error) => {
                    let text = format!("cannot read '{}': {}", entry.path, plain(&error));
                    return self.fail(entry.path.as_bytes(), text);
                }
            }
        }
        let item = Item::new(&entry, blake3);
        self.bytes += item.len();
        self.batch.items.push(item);
        self.flush_if_full()
    }

    fn fail(&mut self, path: &[u8], text: String) -> Result<(), Fault> {
        self.bytes += path.len() + text.len();
        let path = path.to_vec();
        self.batch.failures.push(Failed { path, text });
        self.flush_if_full()
    }

    fn flush_if_full(&mut self) -> Result<(), Fault> {
        let entries = self.batch.items.len() + self.batch.failures.len();
        if self.bytes >= BATCH_BYTES || entries >= BATCH_ENTRIES {
            self.flush()?;
        }
        Ok(())
    }

    /// Sends the batch. Blocks while the client has no room for it.
    fn flush(&mut self) -> Result<(), Fault> {
        let batch = std::mem::take(&mut self.batch);
        if batch == Batch::default() {
            return Ok(());
        }
        self.bytes = 0;
        if self.credit == 0 {
            match self.link.receiver.receive()? {
                Message::Credit => self.credit += 1,
                other => return Err(other.misplaced()),
            }
        }
        self.credit -= 1;
        self.link.send(&Message::Batch(batch))
    }
}

fn blocks_of(root: &Root, path: &Relative) -> Digests {
    let hashed = root.open(path).and_then(|file| {
        let size = metadata(&file)?.size;
        BlockDigests::of_file(&file, size)
    });
    match hashed {
        Ok(blocks) => Digests {
            size: blocks.size(),
            digests: blocks.to_bytes(),
            failure: None,
        },
        Err(error) => Digests {
            size: 0,
            digests: Vec::new(),
            failure: Some(plain(&error)),
        },
    }
}
