//! A file that is being received: its part file, lock, journal, and final name.

use std::fs::File;
use std::fs::TryLockError;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use haul_io::file::{
    Dir, FileTime, metadata, preallocate, restrict_mode, set_modified, start_writeback,
};

use crate::fault::{Code, Fault};
use crate::journal::{Content, Journal, Subject, Verified};
use crate::lock;
use crate::name::Name;
use crate::tree::{BlockHasher, Blocks, Digest, Pieces, SIZE_MAX};
use crate::wire::{Entry, Policy, Time};

/// How long to wait for the lock of a part file, which an ending session may hold.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// Read size of hashing, bytes: fits a processor's cache.
pub(crate) const HASH_PIECE: usize = 256 << 10;

/// A part file, held under an exclusive lock.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) name: Name,
    pub(crate) file: File,
    pub(crate) blocks: Blocks,
    pub(crate) size: u64,
    dir: Arc<Dir>,
    modified: FileTime,
    mode: u32,
    replace: bool,
    /// `None` for a file of at most one block.
    journal: Mutex<Option<Journal>>,
}

/// Result of looking for an offered file.
#[derive(Debug)]
pub(crate) enum Found {
    /// A file of the same name, size and time exists.
    Complete,
    /// The part file is open.
    Part {
        target: Box<Target>,
        verified: Vec<Verified>,
        /// A part of another source was discarded.
        restarted: bool,
    },
}

impl Target {
    /// Opens the part file for `entry`, or creates it. Reserves no storage yet.
    pub(crate) fn find(dir: &Arc<Dir>, entry: &Entry, policy: Policy) -> Result<Found, Fault> {
        let name = Name::new(&entry.name)?;
        if entry.size > SIZE_MAX {
            return Err(Fault::new(Code::Refused, format!("'{name}' is too large")));
        }
        let modified = file_time(entry.modified)?;
        let existing = dir
            .metadata(name.as_os_str())
            .map_err(|error| Fault::file(&format!("cannot look at '{name}'"), &error))?;
        if let Some(existing) = existing {
            if !existing.regular {
                return Err(Fault::new(
                    Code::Refused,
                    format!("'{name}' exists at the target and is not a regular file"),
                )
                .hint("remove it or send to another directory"));
            }
            let is_known = !policy.recheck && !entry.unproven && existing.size == entry.size;
            if is_known
                && (existing.modified == modified
                    || is_near(existing.modified, modified)
                        && stored_time(dir, &name, entry.mode, modified)? == existing.modified)
            {
                if dir.metadata(&name.part()).is_ok_and(|part| part.is_none()) {
                    // Left by an end that was killed between naming the file and removing it.
                    let _ = dir.remove(&name.journal());
                }
                return Ok(Found::Complete);
            }
            if !policy.replace {
                return Err(
                    Fault::new(Code::Exists, format!("'{name}' exists at the target"))
                        .hint("leave out --no-replace to replace it"),
                );
            }
        }
        Self::open(dir, entry, name, policy.replace)
    }

    fn open(dir: &Arc<Dir>, entry: &Entry, name: Name, replace: bool) -> Result<Found, Fault> {
        let file = lock_part(dir, &name, entry.mode)?;
        let modified = file_time(entry.modified)?;
        let target = Self {
            file,
            blocks: Blocks::new(entry.size),
            size: entry.size,
            dir: Arc::clone(dir),
            modified,
            mode: entry.mode & 0o777,
            replace,
            journal: Mutex::new(None),
            name,
        };
        let can_keep = target.try_time();
        if can_keep.is_err() && target.is_empty() {
            target.discard();
        }
        can_keep?;
        let (mut verified, mut restarted) = (Vec::new(), false);
        if target.blocks.count() > 1 {
            let content = target.open_journal().map_err(|error| {
                if target.is_empty() {
                    target.discard();
                }
                target.fault("cannot open the journal of", &error)
            })?;
            match content {
                Content::Blocks(blocks) => verified = blocks,
                Content::OtherSource => restarted = true,
                Content::Nothing => {}
            }
            verified.retain(|(block, _)| *block < target.blocks.count());
        }
        Ok(Found::Part {
            target: Box::new(target),
            verified,
            restarted,
        })
    }

    /// Refuses a time that the file system would replace, for example by its latest: the file would
    /// always look changed.
    fn try_time(&self) -> Result<(), Fault> {
        let stored = store_time(&self.file, self.modified)
            .map_err(|error| self.fault("cannot set the time of", &error))?;
        if is_near(stored, self.modified) {
            return Ok(());
        }
        let (name, seconds) = (&self.name, self.modified.seconds);
        let text = format!("the target cannot store the time of '{name}', {seconds} s after 1970");
        Err(Fault::new(Code::Refused, text)
            .hint("give the file another time (touch), or send it to another file system"))
    }

    fn open_journal(&self) -> io::Result<Content> {
        let name = self.name.journal();
        let meta = metadata(&self.file)?;
        let subject = Subject {
            size: self.size,
            modified: self.modified,
            inode: meta.identity.1,
        };
        let open = || {
            Journal::open(
                self.dir.open_or_create(&name, 0o600)?,
                subject,
                haul_io::random::bytes()?,
            )
        };
        let (mut journal, mut content) = open()?;
        if meta.size != self.size && matches!(content, Content::Blocks(_)) {
            // A part file whose storage was never reserved holds no block; it reuses the inode of
            // one that was removed.
            self.dir.remove(&name)?;
            (journal, content) = open()?;
        }
        *lock(&self.journal) = Some(journal);
        Ok(content)
    }

    /// Returns the bytes of storage that the file system must still provide.
    pub(crate) fn missing_storage(&self) -> Result<u64, Fault> {
        let meta = metadata(&self.file).map_err(|error| self.fault("cannot look at", &error))?;
        Ok(self.size.saturating_sub(meta.allocated))
    }

    /// Reserves the storage of the whole file.
    pub(crate) fn reserve(&self) -> Result<(), Fault> {
        let reserve = || {
            if metadata(&self.file)?.size > self.size {
                self.file.set_len(self.size)?;
            }
            preallocate(&self.file, self.size)
        };
        reserve().map_err(|error| self.fault("cannot reserve storage for", &error))
    }

    /// Removes the part file, which must be empty.
    pub(crate) fn discard(&self) {
        // What cannot be removed stays; the next transfer of the same file uses it.
        let _ = self.dir.remove(&self.name.part());
        if lock(&self.journal).is_some() {
            let _ = self.dir.remove(&self.name.journal());
        }
    }

    fn is_empty(&self) -> bool {
        metadata(&self.file).is_ok_and(|meta| meta.size == 0)
    }

    /// Reads block `index` back and hashes it.
    pub(crate) fn hash_block(&self, index: u32, buffer: &mut [u8]) -> io::Result<Digest> {
        let hasher = self.blocks.hasher(index);
        hash_range(hasher, self.blocks.range(index, 1), buffer, |buf, at| {
            self.file.read_exact_at(buf, at)
        })
    }

    /// Reads the pieces of block `index` back and hashes each.
    pub(crate) fn hash_pieces(&self, index: u32, buffer: &mut [u8]) -> io::Result<Vec<Digest>> {
        hash_pieces(self.blocks.pieces(index), buffer, |buf, at| {
            self.file.read_exact_at(buf, at)
        })
    }

    /// Makes the data durable, then notes the blocks as verified.
    pub(crate) fn commit(&self, verified: &[Verified]) -> Result<(), Fault> {
        let mut journal = lock(&self.journal);
        let Some(journal) = journal.as_mut() else {
            return Ok(());
        };
        self.file
            .sync_data()
            .and_then(|()| journal.append(verified))
            .map_err(|error| self.fault("cannot write", &error))
    }

    /// Forgets, durably, which blocks are verified. It comes before a verified block is written
    /// anew: a kill in the middle would leave a record of what is not there.
    pub(crate) fn forget(&self) -> Result<(), Fault> {
        let mut journal = lock(&self.journal);
        let Some(journal) = journal.as_mut() else {
            return Ok(());
        };
        haul_io::random::bytes()
            .and_then(|id| journal.restart(id))
            .map_err(|error| self.fault("cannot write the journal of", &error))
    }

    /// Starts writeback, so that the final fsync is shorter. Only a hint.
    pub(crate) fn start_writeback(&self) {
        start_writeback(&self.file);
    }

    /// Makes the complete, verified file durable, with its length, time and mode.
    pub(crate) fn settle(&self) -> Result<(), Fault> {
        let settle = || {
            if metadata(&self.file)?.size != self.size {
                self.file.set_len(self.size)?;
            }
            set_modified(&self.file, self.modified)?;
            // Another session must be able to open it if this one ends before the file has its
            // name.
            restrict_mode(&self.file, self.mode | OPENABLE)?;
            self.file.sync_all()
        };
        settle().map_err(|error| self.fault("cannot complete", &error))
    }

    /// Gives the durable file its final name, durably.
    pub(crate) fn publish(&self) -> Result<(), Fault> {
        let (part, name) = (self.name.part(), self.name.as_os_str());
        let publish = || {
            if self.mode & OPENABLE != OPENABLE {
                restrict_mode(&self.file, self.mode)?;
                self.file.sync_all()?;
            }
            self.dir.rename(&part, name, self.replace)?;
            self.dir.remove(&self.name.journal())?;
            self.dir.sync()
        };
        publish().map_err(|error| self.fault("cannot complete", &error))
    }

    pub(crate) fn fault(&self, doing: &str, error: &io::Error) -> Fault {
        Fault::file(&format!("{doing} '{}'", self.name), error)
    }
}

/// Hashes `left` bytes from `position` on, as `read` returns them.
pub(crate) fn hash_range<E>(
    mut hasher: BlockHasher,
    (mut position, mut left): (u64, u64),
    buffer: &mut [u8],
    read: impl Fn(&mut [u8], u64) -> Result<(), E>,
) -> Result<Digest, E> {
    while left > 0 {
        let piece = usize::try_from(left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        read(&mut buffer[..piece], position)?;
        hasher.update(&buffer[..piece]);
        position += piece as u64;
        left -= piece as u64;
    }
    Ok(hasher.finish())
}

/// Hashes each piece of a block, as `read` returns its bytes.
pub(crate) fn hash_pieces<E>(
    pieces: Pieces,
    buffer: &mut [u8],
    read: impl Fn(&mut [u8], u64) -> Result<(), E>,
) -> Result<Vec<Digest>, E> {
    (0..pieces.count())
        .map(|index| hash_range(pieces.hasher(index), pieces.range(index, 1), buffer, &read))
        .collect()
}

/// Coarsest time stamps of file systems: 2 s for FAT, 1 s for NFS version 2 and
/// ext4 with small inodes.
const COARSE_NS: u128 = 2_000_000_000;

/// Returns whether a file system may have rounded one of these times to the other.
fn is_near(one: FileTime, other: FileTime) -> bool {
    let ns = |time: FileTime| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos);
    ns(one).abs_diff(ns(other)) < COARSE_NS
}

/// Sets the time of a file and returns the time that its file system stored.
fn store_time(file: &File, modified: FileTime) -> io::Result<FileTime> {
    set_modified(file, modified)?;
    Ok(metadata(file)?.modified)
}

/// Returns the time that the file system of `dir` stores, tried with the part file.
fn stored_time(dir: &Dir, name: &Name, mode: u32, modified: FileTime) -> Result<FileTime, Fault> {
    let part = name.part();
    let file = lock_part(dir, name, mode)?;
    let failed = |error: io::Error| Fault::file(&format!("cannot write '{name}'"), &error);
    let stored = store_time(&file, modified).map_err(failed)?;
    if metadata(&file).map_err(failed)?.size == 0 {
        // A part file with content existed before. One that cannot be removed stays; the next
        // transfer uses it.
        let _ = dir.remove(&part);
    }
    Ok(stored)
}

fn file_time(time: Time) -> Result<FileTime, Fault> {
    if time.nanos >= 1_000_000_000 {
        return Err(Fault::protocol("the peer sent a time that there is not"));
    }
    Ok(FileTime {
        seconds: time.seconds,
        nanos: time.nanos,
    })
}

/// Mode bits of a part file for its owner.
const OPENABLE: u32 = 0o600;

/// Opens the part file and takes its lock.
fn lock_part(dir: &Dir, name: &Name, mode: u32) -> Result<File, Fault> {
    let part = name.part();
    let fault = |error: io::Error| Fault::file(&format!("cannot write '{name}'"), &error);
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        let file = dir
            .open_or_create(&part, (mode & 0o777) | 0o600)
            .map_err(fault)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
            Err(TryLockError::WouldBlock) => {
                return Err(Fault::new(
                    Code::TargetBusy,
                    format!("another transfer is writing '{name}'"),
                )
                .hint("wait for it to end; if it died, the server notices within half a minute"));
            }
            Err(TryLockError::Error(error)) => return Err(fault(error)),
        }
        let meta = metadata(&file).map_err(fault)?;
        if !meta.regular || meta.linked {
            return Err(Fault::new(
                Code::Refused,
                format!("the part file of '{name}' is not a plain file of its own"),
            )
            .hint("remove the .haul-part file beside the target"));
        }
        // The former holder of the lock may have renamed the file to its final name.
        let named = dir.metadata(&part).map_err(fault)?;
        if named.is_some_and(|named| named.identity == meta.identity) {
            return Ok(file);
        }
    }
}
