//! A file that is being received: its part file, lock, journal, and final name.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::fs::TryLockError;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use haul_io::file::{
    Dir, FileTime, copy_at, metadata, preallocate, restrict_mode, set_modified, start_writeback,
    write_all_at,
};

use crate::entry::Entry;
use crate::fault::{Code, Fault};
use crate::fs::extents;
use crate::fs::meta::{self, Keep, Lost, Meta};
use crate::fs::tree::{open_share, refuse_other_case};
use crate::journal::{Content, Journal, Subject, Verified};
use crate::layout::Layout;
use crate::name::Name;
use crate::tree::{BlockHasher, Blocks, Digest, Pieces};
use crate::wire::{FILES_OPEN, Policy};
use crate::{lock, read, write};

/// How long to wait for the lock of a part file, which an ending session may hold.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// Blocks of open files, beyond which no other is opened: each takes 50 bytes.
const BLOCKS_OPEN: u64 = 1 << 20;
/// Read size of hashing, bytes: fits a processor's cache.
pub(crate) const HASH_PIECE: usize = 256 << 10;

/// The files that are being received, by id.
#[derive(Debug, Default)]
pub(crate) struct Targets(RwLock<HashMap<u32, Arc<Target>>>);

impl Targets {
    pub(crate) fn get(&self, file: u32) -> Option<Arc<Target>> {
        read(&self.0).get(&file).map(Arc::clone)
    }

    pub(crate) fn insert(&self, file: u32, target: Arc<Target>) {
        write(&self.0).insert(file, target);
    }

    pub(crate) fn remove(&self, file: u32) {
        write(&self.0).remove(&file);
    }

    /// Returns whether another file may be opened. A process that may open few files has each open
    /// in turn.
    pub(crate) fn has_room(&self) -> bool {
        let targets = read(&self.0);
        let blocks = targets
            .values()
            .map(|target| u64::from(target.blocks.count()));
        // A file has a journal; its tree, the other sessions and their connections need more.
        targets.len() < open_share(FILES_OPEN) && blocks.sum::<u64>() < BLOCKS_OPEN
    }
}

/// A part file, held under an exclusive lock.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) name: Name,
    /// The path in the offer, for people.
    pub(crate) shown: String,
    file: File,
    /// The file that it replaces, and its size, if what both have in common is not transferred.
    old: Option<(File, u64)>,
    layout: Layout,
    /// Of the data of the file.
    pub(crate) blocks: Blocks,
    /// Of the file, bytes.
    pub(crate) size: u64,
    /// No block of it was verified before this session.
    is_new: bool,
    /// It failed and the session goes on: what still arrives for it is dropped.
    is_dropped: AtomicBool,
    dir: Arc<Dir>,
    modified: FileTime,
    mode: u32,
    /// The attributes of a member of a tree, which are set as they are.
    member: Option<(Meta, Keep)>,
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
    /// Looks for the file of `entry` in `dir`: returns whether it is present as offered.
    ///
    /// # Errors
    /// Something else has its name, or it may not be replaced.
    pub(crate) fn is_present(dir: &Dir, entry: &Entry, policy: Policy) -> Result<bool, Fault> {
        let (name, shown) = (name_of(entry)?, entry.shown());
        let modified: FileTime = entry.modified.into();
        let existing = dir
            .metadata(name.as_os_str())
            .map_err(|error| Fault::file(&format!("cannot look at '{shown}'"), &error))?;
        let Some(existing) = existing else {
            return Ok(false);
        };
        if !existing.regular {
            return Err(Fault::new(
                Code::Refused,
                format!("'{shown}' exists at the target and is not a regular file"),
            )
            .hint("remove it or send to another directory"));
        }
        let unproven = entry.file().is_none_or(|file| file.unproven);
        let is_known = !policy.recheck && !unproven && existing.size == entry.size();
        if is_known
            && (existing.modified == modified
                || is_near(existing.modified, modified)
                    && stored_time(dir, &name, entry.mode, modified)? == existing.modified)
        {
            return Ok(true);
        }
        if policy.update && existing.modified > modified {
            return Ok(true);
        }
        if !policy.replace {
            return Err(
                Fault::new(Code::Exists, format!("'{shown}' exists at the target"))
                    .hint("leave out --no-replace to replace it; haul receive replaces none"),
            );
        }
        Ok(false)
    }

    /// Opens the part file for `entry`, or creates it. Reserves no storage yet.
    pub(crate) fn find(dir: &Arc<Dir>, entry: &Entry, policy: Policy) -> Result<Found, Fault> {
        if Self::is_present(dir, entry, policy)? {
            let name = name_of(entry)?;
            if dir.metadata(&name.part()).is_ok_and(|part| part.is_none()) {
                // Left by an end that was killed between naming the file and removing it.
                let _ = dir.remove(&name.journal());
            }
            return Ok(Found::Complete);
        }
        Self::open(dir, entry, policy)
    }

    fn open(dir: &Arc<Dir>, entry: &Entry, policy: Policy) -> Result<Found, Fault> {
        let name = name_of(entry)?;
        let file = lock_part(dir, &name, entry.mode)?;
        let mut target = Self {
            file,
            old: (policy.delta && entry.is_member)
                .then(|| old(dir, &name))
                .flatten(),
            shown: entry.shown(),
            layout: entry.file().map_or_else(Layout::default, Layout::new),
            blocks: Blocks::new(entry.data()),
            size: entry.size(),
            is_new: true,
            is_dropped: AtomicBool::new(false),
            dir: Arc::clone(dir),
            modified: entry.modified.into(),
            mode: entry.mode & 0o777,
            member: entry.is_member.then(|| (entry.meta(), policy.keep())),
            replace: policy.replace,
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
            target.is_new = verified.is_empty();
        }
        Ok(Found::Part {
            target: Box::new(target),
            verified,
            restarted,
        })
    }

    /// Returns the blocks that the file which it replaces may have, whole or in part.
    pub(crate) fn old_blocks(&self) -> impl Iterator<Item = u32> {
        let size = self.old.as_ref().map_or(0, |(_, size)| *size);
        let place = |block| self.layout.place(self.blocks.range(block, 1).0).0;
        (0..self.blocks.count()).take_while(move |block| place(*block) < size)
    }

    /// Copies a block from the file that it replaces, and hashes it.
    pub(crate) fn take_old(&self, index: u32, buffer: &mut [u8]) -> io::Result<Digest> {
        if let Some((old, _)) = &self.old {
            let (position, len) = self.blocks.range(index, 1);
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            let copy = |place, range: Range<usize>| copy_at(old, &self.file, place, range.len());
            // What cannot be copied differs, and is requested.
            let _ = self.layout.each(position, len, copy);
        }
        self.hash_block(index, buffer)
    }

    /// Drops what still arrives for it.
    pub(crate) fn drop_rest(&self) {
        self.is_dropped.store(true, Ordering::Release);
    }

    /// Writes `parts` to the data from `position` on, unless the file failed. The slices are used
    /// up.
    pub(crate) fn write_at(&self, parts: &mut [IoSlice<'_>], position: u64) -> Result<(), Fault> {
        if self.is_dropped.load(Ordering::Acquire) {
            return Ok(());
        }
        let result = if self.layout.is_sparse() {
            let mut at = position;
            parts.iter().try_for_each(|part| {
                let result = self.layout.each(at, part.len(), |place, range| {
                    self.file.write_all_at(&part[range], place)
                });
                at += part.len() as u64;
                result
            })
        } else {
            write_all_at(self.file.as_fd(), parts, position)
        };
        result.map_err(|error| self.fault("cannot write", &error))
    }

    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<()> {
        let len = buf.len();
        let read = |place, range| self.file.read_exact_at(&mut buf[range], place);
        self.layout.each(position, len, read)
    }

    /// Refuses a time that the file system would replace, for example by its latest: the file would
    /// always look changed.
    fn try_time(&self) -> Result<(), Fault> {
        let stored = store_time(&self.file, self.modified)
            .map_err(|error| self.fault("cannot set the time of", &error))?;
        if is_near(stored, self.modified) {
            return Ok(());
        }
        let (name, seconds) = (&self.shown, self.modified.seconds);
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
            layout: self.layout.mark(),
        };
        let file = open_own(&self.dir, &name)?;
        let (mut journal, mut content) = Journal::open(file, subject, haul_io::random::bytes()?)?;
        if meta.size != self.size && matches!(content, Content::Blocks(_)) {
            // A part file whose storage was never reserved holds no block; it reuses the inode of
            // one that was removed.
            journal.restart(haul_io::random::bytes()?)?;
            content = Content::Nothing;
        }
        *lock(&self.journal) = Some(journal);
        Ok(content)
    }

    /// Returns the bytes of storage that the file system must still provide.
    pub(crate) fn missing_storage(&self) -> Result<u64, Fault> {
        let meta = metadata(&self.file).map_err(|error| self.fault("cannot look at", &error))?;
        Ok(self.blocks.len().saturating_sub(meta.allocated))
    }

    /// Reserves the storage of the data, and frees what lies where the file has holes.
    pub(crate) fn reserve(&self) -> Result<(), Fault> {
        let reserve = || {
            if let Some(runs) = self.layout.runs() {
                return extents::reserve(&self.file, self.size, runs);
            }
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

    /// Returns whether no block of it was verified before this session.
    pub(crate) const fn is_new(&self) -> bool {
        self.is_new
    }

    fn is_empty(&self) -> bool {
        metadata(&self.file).is_ok_and(|meta| meta.size == 0)
    }

    /// Reads block `index` back and hashes it.
    pub(crate) fn hash_block(&self, index: u32, buffer: &mut [u8]) -> io::Result<Digest> {
        let hasher = self.blocks.hasher(index);
        hash_range(hasher, self.blocks.range(index, 1), buffer, |buf, at| {
            self.read_at(buf, at)
        })
    }

    /// Reads the pieces of block `index` back and hashes each.
    pub(crate) fn hash_pieces(&self, index: u32, buffer: &mut [u8]) -> io::Result<Vec<Digest>> {
        hash_pieces(self.blocks.pieces(index), buffer, |buf, at| {
            self.read_at(buf, at)
        })
    }

    /// Makes the data durable, then notes the blocks as verified.
    pub(crate) fn commit(&self, verified: &[Verified]) -> Result<(), Fault> {
        let mut journal = lock(&self.journal);
        let Some(journal) = journal.as_mut() else {
            return Ok(());
        };
        journal
            .append(&self.file, verified)
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
    pub(crate) fn settle(&self) -> Result<Lost, Fault> {
        let settle = || {
            if metadata(&self.file)?.size != self.size {
                self.file.set_len(self.size)?;
            }
            set_modified(&self.file, self.modified)?;
            // Another session must be able to open it if this one ends before the file has its
            // name.
            let lost = match &self.member {
                Some((meta, keep)) => {
                    let mode = meta.mode | OPENABLE;
                    meta::apply(
                        &self.file,
                        &Meta {
                            mode,
                            ..meta.clone()
                        },
                        *keep,
                    )
                }
                None => {
                    restrict_mode(&self.file, self.mode | OPENABLE)?;
                    Lost::default()
                }
            };
            self.file.sync_all()?;
            Ok(lost)
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
            refuse_other_case(&self.dir, name, &part)?;
            self.dir.rename(&part, name, self.replace)?;
            self.dir.remove(&self.name.journal())?;
            self.dir.sync()
        };
        publish().map_err(|error| self.fault("cannot complete", &error))
    }

    pub(crate) fn fault(&self, doing: &str, error: &io::Error) -> Fault {
        Fault::file(&format!("{doing} '{}'", self.shown), error)
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
pub(crate) fn is_near(one: FileTime, other: FileTime) -> bool {
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

/// Opens the file that a new one replaces, if it can be read, and returns its size.
fn old(dir: &Dir, name: &Name) -> Option<(File, u64)> {
    let file = dir.open_file(name.as_os_str().as_ref()).ok()?;
    let meta = metadata(&file).ok().filter(|meta| meta.regular)?;
    Some((file, meta.size))
}

fn name_of(entry: &Entry) -> Result<Name, Fault> {
    Name::new(entry.path.name())
}

/// Opens or makes a file that has no other name. One that somebody has put there is removed: what
/// is written into it would appear elsewhere.
fn open_own(dir: &Dir, name: &OsStr) -> io::Result<File> {
    for _ in 0..2 {
        let file = dir.open_or_create(name, 0o600)?;
        let meta = metadata(&file)?;
        if meta.regular && !meta.linked {
            return Ok(file);
        }
        dir.remove(name)?;
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Mode bits of a part file for its owner.
const OPENABLE: u32 = 0o600;

/// Opens the part file and takes its lock.
pub(crate) fn lock_part(dir: &Dir, name: &Name, mode: u32) -> Result<File, Fault> {
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
