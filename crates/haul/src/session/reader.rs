//! The client's end of a session that reads attributes and ranges of files.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender, bounded};
use haul_io::file::FileTime;
use haul_soft::bulk::Sink;

use super::ranges::{REQUESTS_OPEN, changed};
use super::{Carrier, CarrierEnd, GRACE};
use crate::cancel::Cancel;
use crate::channel::Opening;
use crate::fault::{Code, Fault};
use crate::link::Link;
use crate::lock;
use crate::wire::{self, Message, Taken};

/// A longer range is requested in pieces of this many bytes.
const PIECE: u64 = 4 << 20;
/// Bytes of pieces that are in flight, or have arrived and wait for the caller.
const WINDOW: u64 = 128 << 20;

/// What a path of a server names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A device, a pipe or a socket.
    Special,
}

/// Attributes of a file or directory of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// What it is.
    pub kind: Kind,
    /// Bytes.
    pub size: u64,
    /// When its content changed last.
    pub modified: FileTime,
    /// Permission bits.
    pub mode: u32,
}

/// A range of a file of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    /// The file, relative to what is served.
    pub path: Vec<u8>,
    /// Where it begins, bytes.
    pub offset: u64,
    /// Bytes; with `offset` at most `size`.
    pub length: u64,
    /// Size that the file must have, bytes.
    pub size: u64,
    /// Time of its last change that the file must have.
    pub modified: FileTime,
}

/// A session that reads; any number of threads may use it at a time.
pub(crate) struct Reader {
    inner: Arc<Inner>,
    carrier: Arc<Carrier>,
    hang_up: Cancel,
}

#[derive(Debug)]
struct Inner {
    link: Link,
    state: Mutex<State>,
    /// Something was released, or the session failed.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Requests that are not taken, in order.
    slots: VecDeque<Slot>,
    /// Number of the first of them.
    first: u32,
    /// End of the transfer space.
    end: u64,
    /// Bytes of the window in use.
    held: u64,
    failed: Option<Fault>,
}

/// A request in flight.
#[derive(Debug)]
struct Slot {
    /// Offset in the transfer space.
    start: u64,
    /// Bytes of the window that it uses.
    length: u64,
    buffer: Vec<u8>,
    arrived: usize,
    verdict: Option<Result<Verdict, Fault>>,
    is_over: bool,
    /// Its caller has left: it uses the window until it is taken.
    is_abandoned: bool,
    reply: Sender<Result<Answer, Fault>>,
}

#[derive(Debug, Clone, Copy)]
enum Verdict {
    Found(Stat),
    Hash([u8; 32]),
}

#[derive(Debug)]
enum Answer {
    Found(Stat),
    Bytes(Vec<u8>, [u8; 32]),
}

/// A piece that was requested. It uses the window until it is dropped and its bytes have arrived.
struct Pending<'a> {
    inner: &'a Inner,
    request: u32,
    length: u64,
    answer: Receiver<Result<Answer, Fault>>,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        lock(&self.inner.state).leave(self.request, self.length);
        self.inner.changed.notify_all();
    }
}

impl Reader {
    /// Takes over a session whose greeting has been sent.
    pub(crate) fn start(link: Link, opening: Opening) -> Result<Self, Fault> {
        let hang_up = link.cancel();
        let carrier = Arc::new(Carrier::new(&opening));
        let inner = Arc::new(Inner {
            link,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let reader = Self {
            inner: Arc::clone(&inner),
            carrier: Arc::clone(&carrier),
            hang_up,
        };
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let builder = std::thread::Builder::new().name(name.into());
            let spawned = builder.spawn(work);
            spawned.map(drop).map_err(|error| Fault::system(&error))
        };
        let sink = Arc::clone(&inner);
        let receive = move || {
            let fault = match carrier.run(opening, |channel| channel.receive(&*sink)) {
                CarrierEnd::NotOpened(fault) => fault,
                CarrierEnd::Ran(Err(error)) => error.fault(),
                CarrierEnd::Ran(Ok(())) => Fault::new(Code::PeerGone, "the data connection ended"),
            };
            sink.fail_later(fault);
        };
        spawn("haul-read", Box::new(receive))?;
        let listen = move || {
            loop {
                let taken = inner.link.receive().and_then(|message| inner.take(message));
                if let Err(fault) = taken {
                    inner.link.report(&fault);
                    return inner.fail(fault);
                }
            }
        };
        spawn("haul-answers", Box::new(listen))?;
        Ok(reader)
    }

    /// Returns the attributes of a file or directory.
    ///
    /// # Errors
    /// It cannot be opened, or the session failed.
    pub(crate) fn stat(&self, path: &[u8]) -> Result<Stat, Fault> {
        let request = Message::Stat(wire::Stat {
            path: path.to_vec(),
        });
        let pending = self.inner.begin(&request, 0, true)?;
        match pending.map(|pending| pending.answer.recv()) {
            Some(Ok(Ok(Answer::Found(stat)))) => Ok(stat),
            Some(Ok(Err(fault))) => Err(fault),
            _ => Err(wrong()),
        }
    }

    /// Reads a range and hands its bytes to `each`, in order. Advances `range` by what `each` has
    /// taken.
    ///
    /// # Errors
    /// The file is not as expected or cannot be read, the session failed, or `each` did.
    pub(crate) fn read(
        &self,
        range: &mut Range,
        each: &mut dyn FnMut(Vec<u8>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut pieces: VecDeque<Pending<'_>> = VecDeque::new();
        let (mut at, end) = (range.offset, range.offset.saturating_add(range.length));
        while at < end || !pieces.is_empty() {
            if at < end {
                let length = PIECE.min(end - at);
                let request = Message::Range(wire::Range {
                    path: range.path.clone(),
                    offset: at,
                    length,
                    size: range.size,
                    modified: range.modified.into(),
                });
                if let Some(piece) = self.inner.begin(&request, length, pieces.is_empty())? {
                    pieces.push_back(piece);
                    at += length;
                    continue;
                }
            }
            let Some(piece) = pieces.pop_front() else {
                continue;
            };
            let (bytes, hash) = match piece.answer.recv() {
                Ok(Ok(Answer::Bytes(bytes, hash))) => (bytes, hash),
                Ok(Err(fault)) => return Err(fault),
                _ => return Err(wrong()),
            };
            if *blake3::hash(&bytes).as_bytes() != hash {
                return Err(changed(&range.path));
            }
            each(bytes)?;
            range.offset += piece.length;
            range.length -= piece.length;
        }
        Ok(())
    }

    /// Returns whether the session has ended.
    pub(crate) fn has_failed(&self) -> bool {
        lock(&self.inner.state).failed.is_some()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.hang_up.cancel();
        self.carrier.close();
    }
}

fn wrong() -> Fault {
    Fault::protocol("the server answered another request")
}

impl Inner {
    /// Sends a request that uses `length` bytes of the window. `None` if there is no room, unless
    /// it `may_wait`.
    fn begin(
        &self,
        request: &Message,
        length: u64,
        may_wait: bool,
    ) -> Result<Option<Pending<'_>>, Fault> {
        let mut state = lock(&self.state);
        loop {
            if let Some(fault) = &state.failed {
                return Err(fault.clone());
            }
            let is_full = state.slots.len() >= REQUESTS_OPEN as usize
                || state.held > 0 && state.held.saturating_add(length) > WINDOW;
            if !is_full {
                break;
            }
            if !may_wait {
                return Ok(None);
            }
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        // With the lock: requests have the order of their slots. The server never waits for this
        // end to send.
        self.link.send(request)?;
        let (request, answer) = state.push(length);
        Ok(Some(Pending {
            inner: self,
            request,
            length,
            answer,
        }))
    }

    fn take(&self, message: Message) -> Result<(), Fault> {
        let (request, verdict) = match message {
            Message::Found(found) => {
                let kind = match found.kind {
                    0 => Kind::File,
                    1 => Kind::Directory,
                    _ => Kind::Special,
                };
                let stat = Stat {
                    kind,
                    size: found.size,
                    modified: found.modified.into(),
                    mode: found.mode,
                };
                (found.request, Ok(Verdict::Found(stat)))
            }
            Message::Ranged(ranged) => (ranged.request, Ok(Verdict::Hash(ranged.blake3))),
            Message::Failed(failed) => (failed.file, Err(failed.fault())),
            other => return Err(other.misplaced()),
        };
        let mut state = lock(&self.state);
        let index = request.checked_sub(state.first).ok_or_else(wrong)?;
        let slot = state.slots.get_mut(index as usize).ok_or_else(wrong)?;
        let has_bytes = matches!(verdict, Ok(Verdict::Hash(_)));
        let is_answered = slot.is_over || slot.verdict.is_some();
        if is_answered || verdict.is_ok() && has_bytes == slot.buffer.is_empty() {
            return Err(wrong());
        }
        slot.verdict = Some(verdict);
        let taken = state.settle(index as usize);
        self.release(state, taken)
    }

    /// Reports what is over, before another thread can send a request in its place.
    fn release(&self, state: MutexGuard<'_, State>, taken: Option<u32>) -> Result<(), Fault> {
        let Some(before) = taken else {
            return Ok(());
        };
        let sent = self.link.send(&Message::Taken(Taken { before }));
        drop(state);
        self.changed.notify_all();
        sent
    }

    fn fail(&self, fault: Fault) {
        let mut state = lock(&self.state);
        for slot in state.slots.drain(..) {
            // Its caller may have left.
            let _ = slot.reply.try_send(Err(fault.clone()));
        }
        state.failed.get_or_insert(fault);
        self.changed.notify_all();
    }

    /// Fails unless the control connection brings the reason soon.
    fn fail_later(&self, fault: Fault) {
        let state = lock(&self.state);
        let waited = self
            .changed
            .wait_timeout_while(state, GRACE, |state| state.failed.is_none());
        drop(waited);
        self.fail(fault);
    }
}

impl State {
    /// Appends a request of `length` bytes. Returns its number, and where its answer arrives.
    fn push(&mut self, length: u64) -> (u32, Receiver<Result<Answer, Fault>>) {
        let (reply, answer) = bounded(1);
        // At most `REQUESTS_OPEN` slots.
        let request = self.first + u32::try_from(self.slots.len()).unwrap_or(0);
        self.slots.push_back(Slot {
            start: self.end,
            length,
            buffer: vec![0; usize::try_from(length).unwrap_or(0)],
            arrived: 0,
            verdict: None,
            is_over: false,
            is_abandoned: false,
            reply,
        });
        self.end += length;
        self.held += length;
        (request, answer)
    }

    /// Gives back the window of a request whose caller leaves; if its bytes still arrive, once it
    /// is taken.
    fn leave(&mut self, request: u32, length: u64) {
        let index = request.checked_sub(self.first);
        match index.and_then(|index| self.slots.get_mut(index as usize)) {
            Some(slot) if !slot.is_over => slot.is_abandoned = true,
            _ => self.held -= length,
        }
    }

    /// Answers a request that is complete. Returns the number of the first that is not, if it has
    /// changed.
    fn settle(&mut self, index: usize) -> Option<u32> {
        let slot = self.slots.get_mut(index)?;
        if slot.arrived < slot.buffer.len() {
            return None;
        }
        let verdict = slot.verdict.take()?;
        let bytes = std::mem::take(&mut slot.buffer);
        let answer = verdict.map(|verdict| match verdict {
            Verdict::Found(stat) => Answer::Found(stat),
            Verdict::Hash(hash) => Answer::Bytes(bytes, hash),
        });
        slot.is_over = true;
        // Its caller may have left.
        let _ = slot.reply.try_send(answer);
        let before = self.first;
        while let Some(slot) = self.slots.front().filter(|slot| slot.is_over) {
            if slot.is_abandoned {
                self.held -= slot.length;
            }
            self.slots.pop_front();
            self.first += 1;
        }
        (self.first > before).then_some(self.first)
    }

    /// Places bytes at an offset of the space. Returns the slots that they complete.
    fn place(&mut self, mut offset: u64, mut bytes: &[u8]) -> io::Result<Option<u32>> {
        let outside = || Fault::protocol("the server sent bytes that were not requested");
        let mut taken = None;
        while !bytes.is_empty() {
            let after = self.slots.partition_point(|slot| slot.start <= offset);
            let index = after.checked_sub(1);
            let index = index.ok_or_else(|| io::Error::other(outside()))?;
            let slot = &mut self.slots[index];
            let at = usize::try_from(offset - slot.start).unwrap_or(usize::MAX);
            let room = slot.buffer.len().saturating_sub(at).min(bytes.len());
            if room == 0 {
                return Err(io::Error::other(outside()));
            }
            let (now, rest) = bytes.split_at(room);
            slot.buffer[at..at + room].copy_from_slice(now);
            slot.arrived += room;
            taken = self.settle(index).or(taken);
            (offset, bytes) = (offset + room as u64, rest);
        }
        Ok(taken)
    }
}

impl Sink for Inner {
    fn place(&self, offset: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let mut state = lock(&self.state);
        let (mut at, mut taken) = (offset, None);
        for part in parts {
            taken = state.place(at, part)?.or(taken);
            at += part.len() as u64;
        }
        self.release(state, taken).map_err(io::Error::other)
    }

    fn may_block(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_has_room_once_the_caller_left_and_the_bytes_arrived() {
        let mut state = State::default();
        let (first, answer) = state.push(2);
        let (second, _) = state.push(3);
        assert_eq!((first, second, state.held, state.end), (0, 1, 5, 5));
        // Its bytes are in flight.
        drop(answer);
        state.leave(first, 2);
        assert_eq!(state.held, 5);
        state.slots[0].verdict = Some(Ok(Verdict::Hash([0; 32])));
        state.slots[1].verdict = Some(Err(wrong()));
        // The second is over and has a caller; the first is in front of it.
        assert_eq!(state.place(2, b"xyz").unwrap(), None);
        assert_eq!(state.held, 5);
        assert_eq!(state.place(0, b"ab").unwrap(), Some(2));
        assert_eq!((state.held, state.slots.len()), (3, 0));
        state.leave(second, 3);
        assert_eq!(state.held, 0);
        // Nothing of it may arrive again.
        assert!(state.place(0, b"ab").is_err());
    }

    #[test]
    fn a_caller_that_leaves_behind_another_request_gives_its_window_back_at_once() {
        let mut state = State::default();
        let (_first, _in_flight) = state.push(2);
        let (second, answer) = state.push(3);
        state.slots[1].verdict = Some(Ok(Verdict::Hash([0; 32])));
        assert_eq!(state.place(2, b"xyz").unwrap(), None);
        assert!(matches!(answer.try_recv(), Ok(Ok(Answer::Bytes(bytes, _))) if bytes == b"xyz"));
        state.leave(second, 3);
        assert_eq!(state.held, 2);
    }
}
