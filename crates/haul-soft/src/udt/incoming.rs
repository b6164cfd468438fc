//! Where a link's arriving payload waits for a sink that may block.
//!
//! The receiving thread must go on whatever the sink does: a thread that waits for a disk answers
//! no probe and empties no socket buffer. So it copies payload in here, and a thread of its own
//! writes it out. What may be held is what the sender was given as credit: as much as the sink
//! takes in a second, so memory follows the rate of the sink and not the path's.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use haul_cc::Time;
use haul_cc::time::SECOND_NS;
use haul_io::poller::Waker;

use super::place::Place;
use crate::bulk::Sink;

/// Payload that waits for its sink.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Chunk>,
    spare: Vec<Chunk>,
    /// Bytes that arrived and that the sink has not taken; at most what [`Incoming::room`] answered
    /// last.
    held: u64,
    written: u64,
    /// `written` when the receiving thread asked last.
    told: u64,
    /// When the sink's rate was measured last, and `written` then.
    measured: Option<(Time, u64)>,
    rate: u64,
    waiting: bool,
    finished: bool,
    failed: bool,
}

/// Pieces of the transfer space, one behind the other.
#[derive(Debug, Default)]
struct Chunk {
    bytes: Vec<u8>,
    /// Position and length of each, bytes.
    pieces: Vec<(u64, usize)>,
}

/// Room that every sender is given: two round trips of 100 ms at 2 Gb/s.
const ROOM_BYTES_MIN: u64 = 64 << 20;
const ROOM_BYTES_MAX: u64 = 1 << 30;
const CHUNK_BYTES: usize = 256 << 10;
const SPARE_CHUNKS: usize = 16;

impl Incoming {
    /// Bytes that are held, and that may be. Fails once the sink has.
    pub(super) fn room(&self, now: Time) -> io::Result<(u64, u64)> {
        let mut state = self.lock();
        if state.failed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let (since, before) = *state.measured.get_or_insert((now, 0));
        let passed = now.since(since);
        if passed >= SECOND_NS {
            state.rate = (state.written - before).saturating_mul(SECOND_NS) / passed;
            state.measured = Some((now, state.written));
        }
        state.told = state.written;
        let most = state.rate.clamp(ROOM_BYTES_MIN, ROOM_BYTES_MAX);
        Ok((state.held, most))
    }

    /// Nothing follows.
    pub(super) fn finish(&self) {
        self.lock().finished = true;
        self.news.notify_one();
    }

    /// The sink has not taken everything that arrived.
    pub(super) fn holds_payload(&self) -> bool {
        self.lock().held > 0
    }

    /// Gives `sink` what arrives, until there is nothing more, it fails, or the link is `closed`.
    pub(super) fn write_out(
        &self,
        sink: &dyn Sink,
        waker: &Waker,
        closed: &AtomicBool,
    ) -> io::Result<()> {
        while let Some(mut chunk) = self.next() {
            if closed.load(Ordering::Acquire) {
                break;
            }
            let written = chunk.write(sink);
            let len = chunk.bytes.len() as u64;
            let mut state = self.lock();
            state.held -= len;
            state.written += len;
            state.failed = written.is_err();
            if state.spare.len() < SPARE_CHUNKS {
                chunk.bytes.clear();
                chunk.pieces.clear();
                state.spare.push(chunk);
            }
            // A sender without credit sends nothing that would wake the receiving thread.
            let wakes = state.failed || state.written - state.told >= ROOM_BYTES_MIN / 8;
            drop(state);
            if wakes {
                waker.wake();
            }
            written?;
        }
        Ok(())
    }

    fn next(&self) -> Option<Chunk> {
        let mut state = self.lock();
        loop {
            if let Some(chunk) = state.queue.pop_front() {
                return Some(chunk);
            }
            if state.finished {
                return None;
            }
            state.waiting = true;
            state = self
                .news
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.waiting = false;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place for &Incoming {
    fn place(&mut self, mut position: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let mut state = self.lock();
        if state.failed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        for part in parts {
            let mut part: &[u8] = part;
            while !part.is_empty() {
                let taken = state.chunk().take(position, part);
                state.held += taken as u64;
                position += taken as u64;
                part = &part[taken..];
            }
        }
        if state.waiting {
            self.news.notify_one();
        }
        Ok(())
    }
}

impl State {
    /// The last chunk, which has room.
    fn chunk(&mut self) -> &mut Chunk {
        let full = |chunk: &Chunk| chunk.bytes.len() >= CHUNK_BYTES;
        if self.queue.back().is_none_or(full) {
            let mut chunk = self.spare.pop().unwrap_or_default();
            chunk.bytes.reserve_exact(CHUNK_BYTES);
            self.queue.push_back(chunk);
        }
        let last = self.queue.len() - 1;
        &mut self.queue[last]
    }
}

impl Chunk {
    /// Takes as much of `bytes` as fits; how much.
    fn take(&mut self, position: u64, bytes: &[u8]) -> usize {
        let len = bytes.len().min(CHUNK_BYTES - self.bytes.len());
        self.bytes.extend_from_slice(&bytes[..len]);
        match self.pieces.last_mut() {
            Some((start, before)) if *start + *before as u64 == position => *before += len,
            _ => self.pieces.push((position, len)),
        }
        len
    }

    fn write(&self, sink: &dyn Sink) -> io::Result<()> {
        let mut rest = self.bytes.as_slice();
        for &(position, len) in &self.pieces {
            let (piece, behind) = rest.split_at(len);
            sink.place(position, &[IoSlice::new(piece)])?;
            rest = behind;
        }
        Ok(())
    }
}
