//! The server's end of a session that reads ranges of files: the ranges, in the order of the
//! requests, are the transfer space.
//!
//! A range is hashed beside the channel, between two looks at the attributes of its file. The
//! client compares the hash with what arrived, so bytes of two states of a file cannot pass.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, select};
use haul_control::server::shutting_down;
use haul_io::file::{Metadata, metadata};
use haul_soft::bulk::{Extent, FileRange, Source};
use rustix::fs::FileType;

use super::bench::{check_end, with_channel};
use super::{CarrierEnd, spawn};
use crate::channel::Opening;
use crate::fault::{Code, Fault};
use crate::fs::tree::open_share;
use crate::link::Link;
use crate::lock;
use crate::printable;
use crate::space::Space;
use crate::wire::{Failed, Found, Message, Range, Ranged, Run, Time};

/// Maximum length of a range, bytes.
pub(crate) const RANGE_MAX: u64 = 16 << 20;
/// Maximum number of requests that the client has not reported as taken.
pub(crate) const REQUESTS_OPEN: u32 = 256;
/// A range is hashed in pieces of this many bytes.
const PIECE: usize = 256 << 10;

/// Opens a file or directory that the client names.
pub(crate) type Open<'a> = dyn Fn(&[u8]) -> Result<File, Fault> + Sync + 'a;

/// Serves attributes and ranges until the client leaves. Once the other end of `drained` is
/// dropped, it ends the session when the client has no request open. `moved` gets how many bytes of
/// ranges the channel has taken so far.
pub(crate) fn serve(
    link: &Link,
    opening: Opening,
    open: &Open<'_>,
    moved: &(dyn Fn(u64) + Sync),
    drained: &Receiver<Infallible>,
) -> Result<(), Fault> {
    let source = Ranges {
        state: Mutex::new(Space::new()),
        changed: Condvar::new(),
        moved,
    };
    with_channel(
        link,
        opening,
        |channel| channel.send(&source),
        |_, ended| {
            std::thread::scope(|scope| {
                let (jobs, queue) = bounded::<Job>(REQUESTS_OPEN as usize);
                let rest = queue.clone();
                spawn(scope, "haul-hash", move || {
                    for job in queue {
                        if link.send(&job.verdict()).is_err() {
                            break;
                        }
                    }
                })?;
                let result = converse(link, &source, open, &jobs, ended, drained);
                while rest.try_recv().is_ok() {}
                result
            })
        },
    )
}

fn converse(
    link: &Link,
    source: &Ranges<'_>,
    open: &Open<'_>,
    jobs: &Sender<Job>,
    ended: &Receiver<CarrierEnd>,
    drained: &Receiver<Infallible>,
) -> Result<(), Fault> {
    let (mut next, mut taken) = (0_u32, 0_u32);
    let (mut ended, mut drained) = (ended.clone(), drained.clone());
    let mut is_draining = false;
    let mut files = Files::default();
    loop {
        if is_draining && taken == next {
            link.report(&shutting_down());
            return Ok(());
        }
        let message = select! {
            recv(link.incoming()) -> message => message,
            recv(drained) -> _ => {
                is_draining = true;
                drained = crossbeam_channel::never();
                continue;
            }
            recv(ended) -> end => match check_end(link, end.ok()) {
                Err(fault) if fault.code == Code::PeerGone => return Ok(()),
                result => {
                    result?;
                    ended = crossbeam_channel::never();
                    continue;
                }
            },
        };
        let message = match message.map_err(|_| Fault::protocol("no control connection"))? {
            // The client has left.
            Err(fault) if fault.code == Code::PeerGone => return Ok(()),
            result => result?,
        };
        if let Message::Taken(message) = &message {
            if message.before > next {
                return Err(Fault::protocol("the client took what it did not request"));
            }
            taken = taken.max(message.before);
            source.retire(taken);
            continue;
        }
        if next - taken >= REQUESTS_OPEN {
            return Err(Fault::protocol("the client has too many requests open"));
        }
        let request = next;
        next = next
            .checked_add(1)
            .ok_or_else(|| Fault::protocol("the client has made too many requests"))?;
        match message {
            Message::Stat(stat) => link.send(&match found(open, request, &stat.path) {
                Ok(found) => Message::Found(found),
                Err(fault) => failed(request, &fault),
            })?,
            Message::Range(range) => {
                let is_inside = (1..=RANGE_MAX).contains(&range.length)
                    && range
                        .offset
                        .checked_add(range.length)
                        .is_some_and(|end| end <= range.size);
                if !is_inside {
                    return Err(Fault::protocol("the client requested an impossible range"));
                }
                let (file, job) = match admit(open, &mut files, request, &range) {
                    Ok(job) => (Some(Arc::clone(&job.file)), Ok(job)),
                    Err(fault) => (None, Err(fault)),
                };
                source.append(request, &range, file)?;
                match job {
                    Ok(job) => {
                        // If the queue is closed, the connection has failed.
                        if let Err(TrySendError::Full(_)) = jobs.try_send(job) {
                            return Err(Fault::protocol(
                                "the client reported a request as taken before its answer",
                            ));
                        }
                    }
                    Err(fault) => link.send(&failed(request, &fault))?,
                }
            }
            other => return Err(other.misplaced()),
        }
    }
}

fn failed(request: u32, fault: &Fault) -> Message {
    Message::Failed(Failed {
        file: request,
        code: fault.code.number(),
        text: fault.text.clone(),
    })
}

fn unreadable(path: &[u8], error: &io::Error) -> Fault {
    Fault::file(&format!("cannot read '{}'", printable(path)), error)
}

fn found(open: &Open<'_>, request: u32, path: &[u8]) -> Result<Found, Fault> {
    let file = open(path)?;
    let stat = rustix::fs::fstat(&file).map_err(|error| unreadable(path, &error.into()))?;
    let meta = metadata(&file).map_err(|error| unreadable(path, &error))?;
    Ok(Found {
        request,
        kind: match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => 0,
            FileType::Directory => 1,
            _ => 4,
        },
        size: meta.size,
        modified: meta.modified.into(),
        mode: meta.mode & 0o7777,
    })
}

/// A range whose file has the attributes that the client expects.
struct Job {
    request: u32,
    file: Arc<File>,
    meta: Metadata,
    range: Range,
}

/// The open files of a session, by their identity.
#[derive(Default)]
struct Files(HashMap<(u64, u64), Weak<File>>);

impl Files {
    /// Takes a file with these attributes. Returns the one that is open already, if it is the same.
    fn share(&mut self, file: File, meta: &Metadata) -> Result<Arc<File>, Fault> {
        let known = self.0.get(&meta.identity).and_then(Weak::upgrade);
        // In an overlay, a file and the copy that was changed may have one identity.
        let is_same = |known: &Arc<File>| metadata(&**known).is_ok_and(|found| found == *meta);
        if let Some(known) = known.filter(is_same) {
            return Ok(known);
        }
        let most = open_share(REQUESTS_OPEN as usize);
        if self.0.len() >= most {
            self.0.retain(|_, file| file.strong_count() > 0);
        }
        if self.0.len() >= most {
            let text = format!("{most} files are read at a time, which is all a session may");
            return Err(Fault::new(Code::ServerBusy, text).hint("read fewer files at a time"));
        }
        let file = Arc::new(file);
        self.0.insert(meta.identity, Arc::downgrade(&file));
        Ok(file)
    }
}

fn admit(open: &Open<'_>, files: &mut Files, request: u32, range: &Range) -> Result<Job, Fault> {
    let file = open(&range.path)?;
    let meta = metadata(&file).map_err(|error| unreadable(&range.path, &error))?;
    if !meta.regular {
        let text = format!("'{}' is not a regular file", printable(&range.path));
        return Err(Fault::new(Code::Refused, text));
    }
    if meta.size != range.size || Time::from(meta.modified) != range.modified {
        return Err(changed(&range.path));
    }
    Ok(Job {
        request,
        file: files.share(file, &meta)?,
        meta,
        range: range.clone(),
    })
}

pub(super) fn changed(path: &[u8]) -> Fault {
    let text = format!("'{}' changed while it was read", printable(path));
    Fault::new(Code::SourceChanged, text).hint("open the file again")
}

impl Job {
    fn verdict(&self) -> Message {
        match self.hash() {
            Ok(blake3) => Message::Ranged(Ranged {
                request: self.request,
                blake3,
            }),
            Err(fault) => failed(self.request, &fault),
        }
    }

    fn hash(&self) -> Result<[u8; 32], Fault> {
        let path = &self.range.path;
        let mut hasher = blake3::Hasher::new();
        let mut piece = vec![0; PIECE];
        let (mut at, end) = (self.range.offset, self.range.offset + self.range.length);
        while at < end {
            let len = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
            match self.file.read_exact_at(&mut piece[..len], at) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(changed(path));
                }
                result => result.map_err(|error| unreadable(path, &error))?,
            }
            hasher.update(&piece[..len]);
            at += len as u64;
        }
        let now = metadata(&*self.file).map_err(|error| unreadable(path, &error))?;
        let state = |meta: &Metadata| (meta.size, meta.modified, meta.changed);
        if state(&now) != state(&self.meta) {
            return Err(changed(path));
        }
        Ok(*hasher.finalize().as_bytes())
    }
}

/// The requested ranges. Those that cannot be read keep their place, filled with zeros.
struct Ranges<'a> {
    state: Mutex<Space<Option<Arc<File>>>>,
    changed: Condvar,
    moved: &'a (dyn Fn(u64) + Sync),
}

impl Ranges<'_> {
    fn append(&self, request: u32, range: &Range, file: Option<Arc<File>>) -> Result<(), Fault> {
        let run = Run {
            file: request,
            first: 0,
            count: 1,
        };
        if !lock(&self.state).append(run, range.offset, range.length, file) {
            return Err(Fault::protocol("the client requested too much"));
        }
        self.changed.notify_all();
        Ok(())
    }

    fn retire(&self, taken: u32) {
        lock(&self.state).retire(|placed| placed.run.file < taken);
    }
}

impl Source for Ranges<'_> {
    fn wait(&self, offset: u64, timeout: Duration) -> Extent {
        (self.moved)(offset);
        let space = lock(&self.state);
        let waited = self
            .changed
            .wait_timeout_while(space, timeout, |space| space.end() <= offset);
        let (space, _) = waited.unwrap_or_else(PoisonError::into_inner);
        Extent {
            end: space.end(),
            complete: false,
        }
    }

    fn read_at(&self, mut offset: u64, mut buf: &mut [u8]) -> io::Result<()> {
        while !buf.is_empty() {
            let (left, place) = {
                let space = lock(&self.state);
                match space.rest_of_run(offset) {
                    Some(rest) => {
                        let file = space.at(offset).and_then(|placed| placed.extra.clone());
                        (rest.len, file.map(|file| (file, rest.position)))
                    }
                    // The client has it.
                    None if offset < space.begin() => (space.begin() - offset, None),
                    None => return Err(io::ErrorKind::InvalidInput.into()),
                }
            };
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
            let (now, rest) = buf.split_at_mut(len);
            let read = place.map(|(file, position)| file.read_exact_at(now, position));
            if !matches!(read, Some(Ok(()))) {
                // The hash shows it.
                now.fill(0);
            }
            (offset, buf) = (offset + len as u64, rest);
        }
        Ok(())
    }

    fn file_at(&self, _offset: u64) -> Option<FileRange<'_>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_one_file_share_it() {
        let file = tempfile::tempfile().unwrap();
        let before = metadata(&file).unwrap();
        let mut files = Files::default();
        let share = |files: &mut Files, file: &File, meta: &Metadata| {
            files.share(file.try_clone().unwrap(), meta).unwrap()
        };
        let one = share(&mut files, &file, &before);
        assert!(Arc::ptr_eq(&one, &share(&mut files, &file, &before)));
        file.set_len(10).unwrap();
        let after = metadata(&file).unwrap();
        assert!(Arc::ptr_eq(&one, &share(&mut files, &file, &after)));
        // One that looks different is another.
        assert!(!Arc::ptr_eq(&one, &share(&mut files, &file, &before)));
    }

    #[test]
    fn a_session_has_a_limited_number_of_files_open() {
        let mut files = Files::default();
        let mut open = || {
            let file = tempfile::tempfile().unwrap();
            let meta = metadata(&file).unwrap();
            files.share(file, &meta)
        };
        let most = open_share(REQUESTS_OPEN as usize);
        let mut held: Vec<_> = (0..most).map(|_| open().unwrap()).collect();
        assert_eq!(open().unwrap_err().code, Code::ServerBusy);
        held.pop();
        assert!(open().is_ok());
    }
}
