//! The sending side of a transfer space: the offered files, and the runs requested of them.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, RwLock};
use std::time::Duration;

use haul_io::file::{FileTime, Metadata, memory_file, metadata};
use haul_soft::bulk::{Extent, FileRange, Source};

use crate::fault::{Code, Fault};
use crate::name::Name;
use crate::space::{Segment, Space};
use crate::tree::{Blocks, SIZE_MAX};
use crate::wire::{Entry, Locate, REPAIRS_MAX, Repair, Run, Time};
use crate::{lock, read, write};

/// A file whose size the system does not know is copied to memory up to this length, bytes, because
/// each read may return different content.
const SNAPSHOT_MAX: usize = 64 << 20;
/// How often to measure a file that is being written to.
const MEASURED: u32 = 3;

/// An offered file.
#[derive(Debug)]
pub(crate) struct SourceFile {
    pub(crate) name: Name,
    file: File,
    pub(crate) size: u64,
    modified: FileTime,
    mode: u32,
    /// What fstat(2) must still return at the end; `None` for a copy, which cannot change.
    stat: Option<Mutex<Stat>>,
    /// The system does not know the size (/proc, some FUSE), so its times prove nothing either.
    unproven: bool,
}

/// What fstat(2) returns for a source.
#[derive(Debug, Clone, Copy)]
struct Stat {
    size: u64,
    modified: FileTime,
    changed: FileTime,
}

/// State of a source since it was offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Unchanged,
    /// Its attributes changed, or its content and the time was put back: only reading it shows.
    Touched,
}

impl SourceFile {
    /// Takes an open file as it is now. `shown` names it in messages.
    pub(crate) fn new(name: Name, file: File, shown: &str) -> Result<Self, Fault> {
        let unreadable = |error: io::Error| Fault::file(&format!("cannot read '{shown}'"), &error);
        for _ in 0..MEASURED {
            let meta = metadata(&file).map_err(unreadable)?;
            if !meta.regular {
                let kind = if file.metadata().is_ok_and(|meta| meta.is_dir()) {
                    "is a directory; haul moves single files so far"
                } else {
                    "is not a regular file"
                };
                return Err(Fault::new(Code::Refused, format!("'{shown}' {kind}"))
                    .hint("name the files themselves"));
            }
            if meta.size > SIZE_MAX {
                return Err(Fault::new(Code::Refused, format!("'{shown}' is too large")));
            }
            if ends_at(&file, meta.size).map_err(unreadable)? {
                return Ok(Self::with(name, file, &meta, meta.size));
            }
            if metadata(&file).map_err(unreadable)?.size == meta.size {
                return Self::measured(name, file, &meta).map_err(unreadable);
            }
            // Its size has changed since fstat(2).
        }
        let fault = changed(&shown, "grew or became shorter");
        Err(fault.with("; it was not delivered"))
    }

    fn with(name: Name, file: File, meta: &Metadata, size: u64) -> Self {
        Self {
            name,
            file,
            size,
            modified: meta.modified,
            mode: meta.mode,
            stat: Some(Mutex::new(Stat {
                size: meta.size,
                modified: meta.modified,
                changed: meta.changed,
            })),
            unproven: false,
        }
    }

    /// Reads a file whose size differs from the system's to its end.
    fn measured(name: Name, file: File, meta: &Metadata) -> io::Result<Self> {
        let (mut content, mut size) = (Vec::new(), 0);
        let mut piece = vec![0; 256 << 10];
        loop {
            let read = read_at(&file, &mut piece, size)?;
            if read == 0 {
                break;
            }
            if content.len() as u64 == size && content.len() + read <= SNAPSHOT_MAX {
                content.extend_from_slice(&piece[..read]);
            }
            size += read as u64;
        }
        let mut source = Self::with(name, file, meta, size);
        source.unproven = true;
        if content.len() as u64 == size {
            source.file = memory_file(&content)?;
            source.stat = None;
        }
        Ok(source)
    }

    pub(crate) fn entry(&self) -> Entry {
        Entry {
            name: self.name.as_bytes().to_vec(),
            size: self.size,
            modified: Time {
                seconds: self.modified.seconds,
                nanos: self.modified.nanos,
            },
            mode: self.mode & 0o777,
            unproven: self.unproven,
        }
    }

    pub(crate) fn blocks(&self) -> Blocks {
        Blocks::new(self.size)
    }

    /// Fills all of `buf` from `position` on.
    ///
    /// # Errors
    /// [`Code::SourceChanged`] if the file ends before, or has changed where it cannot be read.
    pub(crate) fn read_exact_at(&self, mut buf: &mut [u8], position: u64) -> Result<(), Fault> {
        let mut at = position;
        while !buf.is_empty() {
            match read_at(&self.file, buf, at) {
                Ok(0) => return Err(changed(&self.name, "became shorter")),
                Ok(read) => {
                    buf = &mut buf[read..];
                    at += read as u64;
                }
                Err(error) => {
                    self.check_unchanged()?;
                    return Err(self.unreadable(&error));
                }
            }
        }
        Ok(())
    }

    fn unreadable(&self, error: &io::Error) -> Fault {
        Fault::file(&format!("cannot read '{}'", self.name), error)
    }

    /// Checks that the file still is what was offered.
    ///
    /// # Errors
    /// [`Code::SourceChanged`] if it is not.
    pub(crate) fn check_unchanged(&self) -> Result<Standing, Fault> {
        let Some(stat) = &self.stat else {
            return Ok(Standing::Unchanged);
        };
        let failed = |error: io::Error| self.unreadable(&error);
        let before = *lock(stat);
        let now = metadata(&self.file).map_err(failed)?;
        let how = match now.size.cmp(&before.size) {
            std::cmp::Ordering::Less => "became shorter",
            std::cmp::Ordering::Greater => "grew",
            std::cmp::Ordering::Equal if now.modified != before.modified => "was written to",
            std::cmp::Ordering::Equal if !ends_at(&self.file, self.size).map_err(failed)? => {
                "became longer or shorter"
            }
            std::cmp::Ordering::Equal if now.changed != before.changed => {
                return Ok(Standing::Touched);
            }
            std::cmp::Ordering::Equal => return Ok(Standing::Unchanged),
        };
        Err(changed(&self.name, how))
    }

    /// Runs `is_same`, which reads the content, until nothing touches the file meanwhile.
    ///
    /// # Errors
    /// [`Code::SourceChanged`] if the content differs, or the file is touched again and again.
    pub(crate) fn prove(
        &self,
        mut is_same: impl FnMut() -> Result<bool, Fault>,
    ) -> Result<(), Fault> {
        let Some(stat) = &self.stat else {
            return Ok(());
        };
        for _ in 0..MEASURED {
            let meta = metadata(&self.file).map_err(|error| self.unreadable(&error))?;
            lock(stat).changed = meta.changed;
            if !is_same()? {
                break;
            }
            if self.check_unchanged()? == Standing::Unchanged {
                return Ok(());
            }
        }
        Err(changed(&self.name, "was written to"))
    }
}

fn over_and_over() -> Fault {
    Fault::protocol("the receiver requests the same blocks again and again")
}

/// Makes the fault of a source that is no longer what was offered. The caller adds whether it was
/// delivered.
pub(crate) fn changed(name: &dyn fmt::Display, how: &str) -> Fault {
    Fault::new(
        Code::SourceChanged,
        format!("'{name}' {how} while it was being sent"),
    )
    .hint("send it again when nothing writes to it")
}

/// Reads whether the content of `file` ends at `size`.
fn ends_at(file: &File, size: u64) -> io::Result<bool> {
    let mut byte = [0];
    if size > 0 && read_at(file, &mut byte, size - 1)? == 0 {
        return Ok(false);
    }
    Ok(read_at(file, &mut byte, size)? == 0)
}

fn read_at(file: &File, buf: &mut [u8], position: u64) -> io::Result<usize> {
    loop {
        match file.read_at(buf, position) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// The transfer space as the channel reads it.
#[derive(Debug)]
pub(crate) struct FileSource {
    files: Vec<SourceFile>,
    blocks: usize,
    space: RwLock<Space<Purpose>>,
    gate: Mutex<Gate>,
    changed: Condvar,
    /// Offsets below this one have been taken by the channel.
    taken: AtomicU64,
    /// The hasher sleeps until `taken` reaches this.
    hasher_waits_for: AtomicU64,
}

#[derive(Debug)]
struct Gate {
    end: u64,
    complete: bool,
    /// The hasher's work beside the runs of the space.
    aside: VecDeque<Aside>,
    /// Blocks whose digests were requested without their content; at most all.
    confirmed: usize,
    /// Blocks whose pieces were requested; at most all.
    located: usize,
}

/// Purpose of a run of the space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// The receiver waits for the digests of its blocks.
    Blocks,
    /// It repairs pieces whose digests the receiver has.
    Pieces,
}

/// Work for the hasher that does not depend on the channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aside {
    /// Hash these blocks, which are present at the receiver.
    Confirm(Run),
    /// Hash the pieces of this block.
    Locate(Locate),
    /// Check whether the file still is what was hashed.
    Prove(u32),
}

/// The hasher's next work.
#[derive(Debug)]
pub(crate) enum Work {
    /// Hash this run of the space.
    Run(Run, Segment),
    Aside(Aside),
}

/// Number of blocks confirmed at a time, so that those of the space do not wait long.
const CONFIRM_PIECE: u32 = 8;

impl FileSource {
    pub(crate) fn new(files: Vec<SourceFile>) -> Self {
        let blocks = files
            .iter()
            .map(|file| file.blocks().count() as usize)
            .sum::<usize>();
        Self {
            files,
            blocks,
            space: RwLock::new(Space::new()),
            gate: Mutex::new(Gate {
                end: 0,
                complete: false,
                aside: VecDeque::new(),
                confirmed: 0,
                located: 0,
            }),
            changed: Condvar::new(),
            taken: AtomicU64::new(0),
            hasher_waits_for: AtomicU64::new(u64::MAX),
        }
    }

    pub(crate) fn files(&self) -> &[SourceFile] {
        &self.files
    }

    /// Appends the runs that the receiver requests.
    pub(crate) fn append(&self, runs: &[Run]) -> Result<(), Fault> {
        let placed = runs.iter().map(|run| {
            let (position, len) = self.inside(run)?.range(run.first, run.count);
            Ok((*run, position, len))
        });
        self.extend(placed.collect::<Result<_, Fault>>()?, Purpose::Blocks)
    }

    /// Appends pieces of a block that arrived damaged.
    pub(crate) fn repair(&self, repair: &Repair) -> Result<(), Fault> {
        let (file, first) = (repair.file, repair.block);
        let block = Run {
            file,
            first,
            count: 1,
        };
        let pieces = self.inside(&block)?.pieces(first);
        let placed = repair.runs.iter().map(|run| {
            let end = run.first.checked_add(run.count);
            if run.count == 0 || end.is_none_or(|end| end > pieces.count()) {
                return Err(Fault::protocol(
                    "the receiver asked for pieces that no block has",
                ));
            }
            let (position, len) = pieces.range(run.first, run.count);
            Ok((block, position, len))
        });
        self.extend(placed.collect::<Result<_, Fault>>()?, Purpose::Pieces)
    }

    fn extend(&self, placed: Vec<(Run, u64, u64)>, purpose: Purpose) -> Result<(), Fault> {
        // Each block once, stale ones twice, and pieces as often as a receiver may repair.
        let runs_max = self.blocks.saturating_mul(2).saturating_add(REPAIRS_MAX);
        let mut space = write(&self.space);
        if space.runs().len() + placed.len() > runs_max {
            return Err(over_and_over());
        }
        for (run, position, len) in placed {
            if !space.append(run, position, len, purpose) {
                return Err(Fault::protocol("the receiver asked for too much"));
            }
        }
        let end = space.end();
        drop(space);
        lock(&self.gate).end = end;
        self.changed.notify_all();
        Ok(())
    }

    /// Has the hasher find the digests of a block's pieces.
    pub(crate) fn locate(&self, locate: Locate) -> Result<(), Fault> {
        self.inside(&Run {
            file: locate.file,
            first: locate.block,
            count: 1,
        })?;
        let mut gate = lock(&self.gate);
        gate.located += 1;
        if gate.located > self.blocks {
            return Err(over_and_over());
        }
        gate.aside.push_back(Aside::Locate(locate));
        drop(gate);
        self.changed.notify_all();
        Ok(())
    }

    /// Appends blocks whose digests the receiver wants without their content.
    pub(crate) fn confirm(&self, runs: &[Run]) -> Result<(), Fault> {
        let mut gate = lock(&self.gate);
        for run in runs {
            self.inside(run)?;
            gate.confirmed += run.count as usize;
            if gate.confirmed > self.blocks {
                return Err(over_and_over());
            }
            gate.aside.push_back(Aside::Confirm(*run));
        }
        drop(gate);
        self.changed.notify_all();
        Ok(())
    }

    /// Returns the length in bytes of a run that [`FileSource::append`] has taken.
    pub(crate) fn len(&self, run: &Run) -> u64 {
        self.files[run.file as usize]
            .blocks()
            .range(run.first, run.count)
            .1
    }

    /// Has the hasher check whether the file still is what it hashed.
    pub(crate) fn prove(&self, file: u32) {
        let mut gate = lock(&self.gate);
        if !gate.aside.contains(&Aside::Prove(file)) {
            gate.aside.push_back(Aside::Prove(file));
        }
        drop(gate);
        self.changed.notify_all();
    }

    /// Returns how the file of a run is cut into blocks, if it has the run's.
    fn inside(&self, run: &Run) -> Result<Blocks, Fault> {
        let blocks = self.files.get(run.file as usize).map(SourceFile::blocks);
        let inside = blocks.filter(|blocks| {
            let end = run.first.checked_add(run.count);
            run.count > 0 && end.is_some_and(|end| end <= blocks.count())
        });
        inside.ok_or_else(|| Fault::protocol("the receiver asked for blocks that no file has"))
    }

    /// Completes the space: no more runs follow.
    pub(crate) fn complete(&self) {
        lock(&self.gate).complete = true;
        self.changed.notify_all();
    }

    pub(crate) fn is_complete(&self) -> bool {
        lock(&self.gate).complete
    }

    /// Blocks for the next run from `index` on to hash, or for other work; `None` once the space is
    /// complete.
    pub(crate) fn work(&self, index: &mut usize) -> Option<Work> {
        let mut gate = lock(&self.gate);
        loop {
            while let Some(placed) = read(&self.space).runs().get(*index) {
                *index += 1;
                if placed.extra == Purpose::Blocks {
                    return Some(Work::Run(placed.run, placed.segment));
                }
            }
            if gate.complete {
                return None;
            }
            if let Some(aside) = gate.next_aside() {
                return Some(Work::Aside(aside));
            }
            gate = self
                .changed
                .wait(gate)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// Returns other work while the channel has not taken the bytes below `offset`.
    pub(crate) fn work_until_taken(&self, offset: u64) -> Option<Aside> {
        if self.taken() >= offset {
            return None;
        }
        lock(&self.gate).next_aside()
    }

    /// Blocks until the channel has taken the bytes below `offset`, so that the hasher finds them
    /// in the page cache. Returns early if the channel stands still.
    pub(crate) fn wait_taken(&self, offset: u64) {
        const STANDSTILL: Duration = Duration::from_millis(500);
        let mut gate = lock(&self.gate);
        self.hasher_waits_for.store(offset, Ordering::SeqCst);
        let mut seen = self.taken.load(Ordering::SeqCst);
        while seen < offset && !gate.complete {
            let waited = self.changed.wait_timeout(gate, STANDSTILL);
            let (held, timeout) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
            gate = held;
            let now = self.taken.load(Ordering::SeqCst);
            if timeout.timed_out() && now == seen {
                break;
            }
            seen = now;
        }
        self.hasher_waits_for.store(u64::MAX, Ordering::SeqCst);
    }

    /// Returns the bytes that the channel has taken to send.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::SeqCst)
    }

    fn note_taken(&self, end: u64) {
        self.taken.fetch_max(end, Ordering::SeqCst);
        if end >= self.hasher_waits_for.load(Ordering::SeqCst) {
            drop(lock(&self.gate));
            self.changed.notify_all();
        }
    }
}

impl Gate {
    fn next_aside(&mut self) -> Option<Aside> {
        let Some(Aside::Confirm(run)) = self.aside.front_mut() else {
            return self.aside.pop_front();
        };
        if run.count <= CONFIRM_PIECE {
            return self.aside.pop_front();
        }
        let piece = Run {
            count: CONFIRM_PIECE,
            ..*run
        };
        run.first += CONFIRM_PIECE;
        run.count -= CONFIRM_PIECE;
        Some(Aside::Confirm(piece))
    }
}

impl Source for FileSource {
    fn wait(&self, offset: u64, timeout: Duration) -> Extent {
        self.note_taken(offset);
        let gate = lock(&self.gate);
        let waited = self
            .changed
            .wait_timeout_while(gate, timeout, |gate| gate.end <= offset && !gate.complete);
        let (gate, _) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        Extent {
            end: gate.end,
            complete: gate.complete,
        }
    }

    fn read_at(&self, mut offset: u64, mut buf: &mut [u8]) -> io::Result<()> {
        self.note_taken(offset);
        while !buf.is_empty() {
            let segment = read(&self.space)
                .rest_of_run(offset)
                .ok_or(io::ErrorKind::InvalidInput)?;
            let len = usize::try_from(segment.len)
                .unwrap_or(usize::MAX)
                .min(buf.len());
            let (now, rest) = buf.split_at_mut(len);
            self.files[segment.file]
                .read_exact_at(now, segment.position)
                .map_err(io::Error::other)?;
            offset += len as u64;
            buf = rest;
        }
        Ok(())
    }

    fn file_at(&self, offset: u64) -> Option<FileRange<'_>> {
        let segment = read(&self.space).rest_of_run(offset)?;
        Some(FileRange {
            fd: self.files[segment.file].file.as_fd(),
            position: segment.position,
            len: segment.len,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::wire::PieceRun;

    const MIB: usize = 1 << 20;

    fn source(sizes: &[usize]) -> FileSource {
        let files = (0_u8..).zip(sizes).map(|(index, size)| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&vec![index; *size]).unwrap();
            let name = Name::new(&[b'a' + index]).unwrap();
            SourceFile::new(name, file, "a file").unwrap()
        });
        FileSource::new(files.collect())
    }

    fn run(file: u32, first: u32, count: u32) -> Run {
        Run { file, first, count }
    }

    #[test]
    fn a_read_may_cross_from_one_file_to_the_next() {
        let source = source(&[MIB + 10, 100]);
        source.append(&[run(0, 1, 1), run(1, 0, 1)]).unwrap();
        let extent = source.wait(0, Duration::ZERO);
        assert_eq!(
            extent,
            Extent {
                end: 110,
                complete: false
            }
        );
        let mut bytes = [9; 110];
        source.read_at(0, &mut bytes).unwrap();
        assert!(bytes[..10] == [0; 10] && bytes[10..] == [1; 100]);
        assert_eq!(
            source.file_at(4).map(|range| (range.position, range.len)),
            Some((MIB as u64 + 4, 6))
        );
        assert!(source.read_at(109, &mut [0; 2]).is_err());
    }

    #[test]
    fn blocks_that_no_file_has_cannot_be_asked_for() {
        let source = source(&[MIB + 10, 0]);
        for bad in [
            run(0, 2, 1),
            run(0, 0, 3),
            run(0, 0, 0),
            run(0, u32::MAX, 2),
            run(1, 0, 1),
            run(2, 0, 1),
        ] {
            assert_eq!(
                source.append(&[bad]).unwrap_err().code,
                Code::Protocol,
                "{bad:?}"
            );
        }
        let again = std::iter::repeat_n(run(0, 0, 1), REPAIRS_MAX + 5).collect::<Vec<_>>();
        assert!(source.append(&again).is_err());
    }

    #[test]
    fn pieces_that_no_block_has_cannot_be_asked_for() {
        let source = source(&[MIB + 10]);
        let repair = |block, first, count| {
            let runs = vec![PieceRun { first, count }];
            let file = 0;
            source.repair(&Repair { file, block, runs })
        };
        repair(0, 60, 4).unwrap();
        repair(1, 0, 1).unwrap();
        assert_eq!(source.wait(0, Duration::ZERO).end, 4 * (16 << 10) + 10);
        for (block, first, count) in [
            (0, 60, 5),
            (0, 0, 0),
            (1, 1, 1),
            (2, 0, 1),
            (0, u32::MAX, 2),
        ] {
            let refused = repair(block, first, count).unwrap_err();
            assert_eq!(refused.code, Code::Protocol, "{block} {first} {count}");
        }
        let locate = |block| source.locate(Locate { file: 0, block });
        assert!(locate(2).is_err());
        locate(0).unwrap();
        locate(1).unwrap();
        assert!(locate(1).is_err());
    }

    /// What becomes of a file whose size the system does not know, as some of FUSE are.
    fn unknown(content: &[u8], len: u64) -> (SourceFile, File) {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file.set_len(len).unwrap();
        let told = metadata(&file).unwrap();
        let name = Name::new(b"a").unwrap();
        let source = SourceFile::measured(name, file.try_clone().unwrap(), &told).unwrap();
        assert!(source.unproven && source.size == len);
        (source, file)
    }

    #[test]
    fn a_short_file_of_unknown_size_is_sent_as_it_was_read() {
        let (source, file) = unknown(b"content", 7);
        file.write_all_at(b"changed and longer", 0).unwrap();
        let mut read = [0; 7];
        source.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(&read, b"content");
        assert_eq!(source.check_unchanged().unwrap(), Standing::Unchanged);
    }

    #[test]
    fn a_long_file_of_unknown_size_is_read_in_place_and_may_not_change() {
        let len = SNAPSHOT_MAX as u64 + 1;
        for changed in [len + 1, len - 1] {
            let (source, file) = unknown(b"content", len);
            let mut read = [0; 7];
            source.read_exact_at(&mut read, 0).unwrap();
            assert_eq!(&read, b"content");
            assert_eq!(source.check_unchanged().unwrap(), Standing::Unchanged);
            file.set_len(changed).unwrap();
            let fault = source.check_unchanged().unwrap_err();
            assert_eq!(fault.code, Code::SourceChanged);
        }
    }

    #[test]
    fn waiting_ends_when_the_space_grows_or_is_complete() {
        let source = source(&[10]);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| source.wait(0, Duration::from_secs(20)).end);
            source.append(&[run(0, 0, 1)]).unwrap();
            assert_eq!(waiter.join().unwrap(), 10);
            let waiter = scope.spawn(|| source.wait(10, Duration::from_secs(20)).complete);
            source.complete();
            assert!(waiter.join().unwrap());
        });
    }
}
