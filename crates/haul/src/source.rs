//! The sending side of a transfer space: the offered files, and the runs asked for of them.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, RwLock};
use std::time::Duration;

use haul_io::file::metadata;
use haul_soft::bulk::{Extent, FileRange, Source};

use crate::fault::{Code, Fault, plain};
use crate::name::Name;
use crate::space::{Segment, Space};
use crate::tree::{Blocks, SIZE_MAX};
use crate::wire::{Entry, Run};
use crate::{lock, read, write};

/// A file that is offered.
#[derive(Debug)]
pub(crate) struct SourceFile {
    pub(crate) name: Name,
    file: File,
    pub(crate) size: u64,
    modified_ns: i64,
    mode: u32,
}

impl SourceFile {
    /// Takes an open file as it is now. `shown` is how messages name it.
    pub(crate) fn new(name: Name, file: File, shown: &str) -> Result<Self, Fault> {
        let meta = metadata(&file)
            .map_err(|error| Fault::file(&format!("cannot read '{shown}'"), &error))?;
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
        Ok(Self {
            name,
            file,
            size: meta.size,
            modified_ns: meta.modified_ns,
            mode: meta.mode,
        })
    }

    pub(crate) fn entry(&self) -> Entry {
        Entry {
            name: self.name.as_bytes().to_vec(),
            size: self.size,
            modified_ns: self.modified_ns,
            mode: self.mode & 0o777,
        }
    }

    pub(crate) fn blocks(&self) -> Blocks {
        Blocks::new(self.size)
    }

    pub(crate) fn read_exact_at(&self, buf: &mut [u8], position: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, position)
    }

    /// Fails where the file is no longer what was offered.
    pub(crate) fn check_unchanged(&self) -> Result<(), Fault> {
        let meta = metadata(&self.file)
            .map_err(|error| Fault::file(&format!("cannot read '{}'", self.name), &error))?;
        if (meta.size, meta.modified_ns) == (self.size, self.modified_ns) {
            return Ok(());
        }
        let how = match meta.size.cmp(&self.size) {
            std::cmp::Ordering::Less => "became shorter",
            std::cmp::Ordering::Equal => "was written to",
            std::cmp::Ordering::Greater => "grew",
        };
        Err(Fault::new(
            Code::SourceChanged,
            format!(
                "'{}' {how} while it was being sent; it was not delivered",
                self.name
            ),
        )
        .hint("send it again when nothing writes to it"))
    }
}

/// What the channel reads.
#[derive(Debug)]
pub(crate) struct FileSource {
    files: Vec<SourceFile>,
    /// Every block once, and some of them again.
    runs_max: usize,
    space: RwLock<Space<()>>,
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
}

impl FileSource {
    pub(crate) fn new(files: Vec<SourceFile>) -> Self {
        let blocks = files
            .iter()
            .map(|file| file.blocks().count() as usize)
            .sum::<usize>();
        Self {
            files,
            runs_max: blocks.saturating_mul(6).saturating_add(64),
            space: RwLock::new(Space::new()),
            gate: Mutex::new(Gate {
                end: 0,
                complete: false,
            }),
            changed: Condvar::new(),
            taken: AtomicU64::new(0),
            hasher_waits_for: AtomicU64::new(u64::MAX),
        }
    }

    pub(crate) fn files(&self) -> &[SourceFile] {
        &self.files
    }

    /// Appends what the receiver asks for.
    pub(crate) fn append(&self, runs: &[Run]) -> Result<(), Fault> {
        let mut space = write(&self.space);
        if space.runs().len() + runs.len() > self.runs_max {
            return Err(Fault::protocol(
                "the receiver asks for the same over and over",
            ));
        }
        for run in runs {
            let blocks = self.files.get(run.file as usize).map(SourceFile::blocks);
            let inside = blocks.filter(|blocks| {
                run.count > 0
                    && run
                        .first
                        .checked_add(run.count)
                        .is_some_and(|end| end <= blocks.count())
            });
            let Some(blocks) = inside else {
                return Err(Fault::protocol(
                    "the receiver asked for blocks that no file has",
                ));
            };
            let (position, len) = blocks.range(run.first, run.count);
            if !space.append(*run, position, len, ()) {
                return Err(Fault::protocol("the receiver asked for too much"));
            }
        }
        let end = space.end();
        drop(space);
        lock(&self.gate).end = end;
        self.changed.notify_all();
        Ok(())
    }

    /// Nothing more will be asked for.
    pub(crate) fn complete(&self) {
        lock(&self.gate).complete = true;
        self.changed.notify_all();
    }

    /// The run with this index, waiting for it; `None` when there will be none.
    pub(crate) fn run(&self, index: usize) -> Option<(Run, Segment)> {
        let mut gate = lock(&self.gate);
        loop {
            if let Some(placed) = read(&self.space).runs().get(index) {
                return Some((placed.run, placed.segment));
            }
            if gate.complete {
                return None;
            }
            gate = self
                .changed
                .wait(gate)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// Waits until the channel has taken the bytes below `offset`, so that whoever reads them next
    /// finds them in memory; gives up waiting when the channel stands still.
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

    /// Bytes that the channel has taken to send.
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
            self.files[segment.file].read_exact_at(now, segment.position)?;
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

/// The failure behind an error of the channel, which may be the source's or the connection's.
pub(crate) fn blame(source: &FileSource, error: &io::Error) -> Fault {
    for file in source.files() {
        if let Err(fault) = file.check_unchanged() {
            return fault;
        }
    }
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Fault::new(
            Code::SourceChanged,
            "a source ended early; it was not delivered",
        )
        .hint("send it again when nothing writes to it"),
        io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::NotConnected
        | io::ErrorKind::TimedOut
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::NetworkDown => Fault::new(
            Code::PeerGone,
            format!("the data connection failed: {}", plain(error)),
        )
        .hint("run the same command again; what has arrived is not sent twice"),
        _ => Fault::file("cannot read a source", error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

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
        let again = std::iter::repeat_n(run(0, 0, 1), 100).collect::<Vec<_>>();
        assert!(source.append(&again).is_err(), "the same over and over");
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
