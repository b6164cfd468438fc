//! Where a stream's bytes come from and where they go.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use haul::endless::pattern;
use haul::fault::{Code, Fault};
use haul_io::file::memory_file;

use super::failure::Failure;
use super::plan::{Medium, PathPlan};

/// A stream writes so much of the sink's file before it begins again, bytes.
const SINK_ROUND: u64 = 1 << 30;
/// The same of a file in memory.
const RAMDISK_ROUND: u64 = 64 << 20;

/// The files that an end may use; its peer cannot choose them.
#[derive(Debug, Clone, Default)]
pub struct Files {
    /// The file to send, if the source is a file.
    pub source: Option<PathBuf>,
    /// The file to write, if the sink is a file; it is created, or truncated.
    pub sink: Option<PathBuf>,
}

/// Where bytes come from, for all streams.
#[derive(Debug)]
pub(crate) struct SourceStore {
    /// In memory.
    pub(crate) memory: Option<Vec<u8>>,
    pub(crate) file: Option<File>,
    /// Bytes before it begins again.
    pub(crate) round: u64,
    /// Time that all streams waited for the file, nanoseconds.
    waited_ns: AtomicU64,
}

impl SourceStore {
    pub(crate) fn open(plan: &PathPlan, files: &Files) -> Result<Self, Fault> {
        let round = plan.round();
        let bytes = || pattern(usize::try_from(round).unwrap_or(0));
        match plan.source {
            Medium::Memory => Ok(Self {
                memory: Some(bytes()),
                file: None,
                round,
                waited_ns: AtomicU64::new(0),
            }),
            Medium::Ramdisk => Ok(Self {
                memory: None,
                file: Some(memory_file(&bytes()).map_err(|error| no_memory(&error))?),
                round,
                waited_ns: AtomicU64::new(0),
            }),
            Medium::File => {
                let path = chosen(files.source.as_ref(), "--source-file")?;
                let (file, len) = open_source(path)?;
                Ok(Self {
                    memory: None,
                    file: Some(file),
                    round: len,
                    waited_ns: AtomicU64::new(0),
                })
            }
        }
    }

    /// Reads from the file.
    pub(crate) fn read(&self, file: &File, buffer: &mut [u8], at: u64) -> Result<(), Failure> {
        let begun = Instant::now();
        file.read_exact_at(buffer, at).map_err(Failure::Source)?;
        add(&self.waited_ns, begun);
        Ok(())
    }

    /// Time that all streams waited for the file, nanoseconds.
    pub(crate) fn waited_ns(&self) -> u64 {
        self.waited_ns.load(Ordering::Relaxed)
    }
}

fn add(sum: &AtomicU64, begun: Instant) {
    let ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    sum.fetch_add(ns, Ordering::Relaxed);
}

fn open_source(path: &Path) -> Result<(File, u64), Fault> {
    let name = haul::printable(path.as_os_str().as_encoded_bytes());
    let failed = |error: io::Error| Fault::file(&format!("cannot read '{name}'"), &error);
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() || metadata.len() == 0 {
        let text = format!("'{name}' is not a regular file with something in it");
        return Err(Fault::new(Code::Refused, text));
    }
    Ok((file, metadata.len()))
}

/// Where the bytes of all streams go.
#[derive(Debug)]
pub(crate) struct SinkStore {
    /// None where they are dropped once they are in memory.
    pub(crate) file: Option<File>,
    /// Bytes that a stream writes before it begins again.
    pub(crate) round: u64,
    /// Memory of each stream.
    memories: Vec<Mutex<Vec<u8>>>,
    /// Time that all streams waited for the file, nanoseconds.
    waited_ns: AtomicU64,
}

impl SinkStore {
    pub(crate) fn open(plan: &PathPlan, files: &Files) -> Result<Self, Fault> {
        let len = usize::try_from(plan.round()).unwrap_or(0);
        let memories = (0..plan.streams).map(|_| Mutex::new(vec![0; len]));
        let memories = memories.collect();
        let (file, round) = match plan.sink {
            Medium::Memory => (None, plan.round()),
            Medium::Ramdisk => {
                let file = memory_file(&[]).map_err(|error| no_memory(&error))?;
                (Some(file), RAMDISK_ROUND)
            }
            Medium::File => {
                let path = chosen(files.sink.as_ref(), "--sink-file")?;
                let name = haul::printable(path.as_os_str().as_encoded_bytes());
                let file = OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .open(path)
                    .map_err(|error| Fault::file(&format!("cannot write '{name}'"), &error))?;
                (Some(file), SINK_ROUND)
            }
        };
        Ok(Self {
            file,
            round,
            memories,
            waited_ns: AtomicU64::new(0),
        })
    }

    /// The memory that a stream receives into.
    pub(crate) fn with_memory<T>(&self, stream: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
        match self.memories.get(stream) {
            Some(memory) => work(&mut memory.lock().unwrap_or_else(PoisonError::into_inner)),
            None => work(&mut []),
        }
    }

    /// Where `offset` of a stream lies in the file, and how much fits before the stream begins
    /// again.
    pub(crate) fn place(&self, stream: usize, offset: u64) -> (u64, u64) {
        let inside = offset % self.round;
        (stream as u64 * self.round + inside, self.round - inside)
    }

    /// Writes arrived data at `offset` of a stream, if there is a file.
    pub(crate) fn write(&self, stream: usize, mut offset: u64, mut bytes: &[u8]) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let begun = Instant::now();
        while !bytes.is_empty() {
            let (place, room) = self.place(stream, offset);
            let piece = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len());
            file.write_all_at(&bytes[..piece], place)?;
            offset += piece as u64;
            bytes = &bytes[piece..];
        }
        add(&self.waited_ns, begun);
        Ok(())
    }

    /// Time that all streams waited for the file, nanoseconds.
    pub(crate) fn waited_ns(&self) -> u64 {
        self.waited_ns.load(Ordering::Relaxed)
    }

    /// Fsyncs the sink file, if it is on a disk.
    pub(crate) fn finish(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), File::sync_data)
    }
}

fn chosen<'a>(path: Option<&'a PathBuf>, option: &str) -> Result<&'a PathBuf, Fault> {
    path.ok_or_else(|| {
        Fault::new(Code::Usage, "no file is named at the end that needs one")
            .hint(format!("start that end with {option} PATH"))
    })
}

fn no_memory(error: &io::Error) -> Fault {
    Fault::new(Code::Other, format!("no memory for a ramdisk: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::plan::Engine;

    #[test]
    fn a_sink_begins_again_at_its_end_and_streams_do_not_meet() {
        let mut plan = PathPlan::new(Engine::Tcp);
        (plan.sink, plan.streams) = (Medium::Ramdisk, 2);
        let mut sink = SinkStore::open(&plan, &Files::default()).unwrap();
        sink.round = 10;
        sink.write(0, 0, b"0123456789").unwrap();
        sink.write(1, 8, b"abcd").unwrap();
        let mut all = [0; 20];
        sink.file
            .as_ref()
            .unwrap()
            .read_exact_at(&mut all, 0)
            .unwrap();
        assert_eq!(&all, b"0123456789cd\0\0\0\0\0\0ab");
        sink.finish().unwrap();
    }

    #[test]
    fn an_end_without_a_file_reports_what_is_missing() {
        let mut plan = PathPlan::new(Engine::Tcp);
        plan.source = Medium::File;
        let fault = SourceStore::open(&plan, &Files::default()).unwrap_err();
        assert!(fault.hint.unwrap().contains("--source-file"));
    }
}
