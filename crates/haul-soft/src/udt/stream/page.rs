//! What the two processes of a stream write for each other: the first page of their memory.
//!
//! Each word has one writer, but for those that tell what is waited for. Offsets are of the stream.
//! The other process may write anything at any time: whoever reads a word checks it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use haul_io::notify::Doorbell;
use haul_io::wake::SleepWord;
use haul_slab::SharedMemory;

use super::options::Measured;
use crate::udt::LinkError;

/// Written by the process that uses the stream: bytes given to be sent, bytes received, and
/// whether nothing more will be given.
pub(super) const GIVEN: usize = 0;
pub(super) const TAKEN: usize = 1;
pub(super) const FINISHING: usize = 2;
/// What the watcher of the descriptor and threads wait for. The other process takes it back when it
/// wakes them.
const WATCHED: usize = 16;
const AWAITED: usize = 17;
/// Written by the process that drives it: bytes that have arrived at the peer, that have come from
/// it, as much of `TAKEN` as it has seen, flags, and what it has measured.
pub(super) const ARRIVED: usize = 32;
pub(super) const COME: usize = 33;
pub(super) const NOTED: usize = 34;
pub(super) const FLAGS: usize = 35;
const MEASURED: [usize; 3] = [36, 37, 38];
/// Whether its thread sleeps.
const ASLEEP: usize = 48;
/// Why the connection is over: a kind, a number of the system, a length, and so many bytes.
const OVER: usize = 64;
const OVER_TEXT: std::ops::Range<usize> = OVER + 3..OVER + 67;

bitflags::bitflags! {
    /// What has happened to the connection.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct Flags: u64 {
        const OPEN = 1;
        const PLAIN = 1 << 1;
        const FINISHED = 1 << 2;
        const PEER_FINISHED = 1 << 3;
        const OVER = 1 << 4;
    }
}

/// The page, and what wakes the other process.
#[derive(Debug)]
pub(super) struct Page {
    memory: SharedMemory,
    /// Towards the process that uses the stream: its descriptor. In the other direction: the thread
    /// that drives it.
    pub(super) watch: Arc<Doorbell>,
    /// Of threads that wait.
    pub(super) waiters: Doorbell,
}

impl Page {
    pub(super) fn new(memory: SharedMemory, watch: Arc<Doorbell>, waiters: Doorbell) -> Self {
        Self {
            memory,
            watch,
            waiters,
        }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.memory.words()[at]
    }

    pub(super) fn load(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }

    pub(super) fn store(&self, at: usize, value: u64) {
        self.word(at).store(value, Ordering::Release);
    }

    pub(super) fn asleep(&self) -> SleepWord<'_> {
        SleepWord(self.word(ASLEEP))
    }

    /// Asks to be woken by the descriptor when one of these is so, none any more with 0. What was
    /// published before is to be looked at afterwards.
    pub(super) fn watch_for(&self, wanted: u32) {
        self.word(WATCHED).store(wanted.into(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The same for threads, in addition to what others wait for.
    pub(super) fn wait_for(&self, wanted: u32) {
        self.word(AWAITED)
            .fetch_or(wanted.into(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Wakes whoever waits for something of `ready`, which was published before.
    pub(super) fn rouse(&self, ready: impl Fn() -> u32) {
        fence(Ordering::SeqCst);
        let wanted = [WATCHED, AWAITED].map(|at| self.word(at).load(Ordering::Relaxed));
        if wanted == [0, 0] {
            return;
        }
        let ready = u64::from(ready());
        for (at, wanted, bell) in [
            (WATCHED, wanted[0], &*self.watch),
            (AWAITED, wanted[1], &self.waiters),
        ] {
            if wanted & ready != 0 {
                self.word(at).store(0, Ordering::Relaxed);
                bell.ring();
            }
        }
    }

    pub(super) fn put_measured(&self, measured: Measured) {
        let values = [measured.resent_bytes, measured.rtt_ns, measured.rate_bps];
        for (at, value) in MEASURED.into_iter().zip(values) {
            self.store(at, value);
        }
    }

    /// None before anything was measured.
    pub(super) fn measured(&self) -> Option<Measured> {
        let [resent_bytes, rtt_ns, rate_bps] = MEASURED.map(|at| self.load(at));
        (rtt_ns > 0).then_some(Measured {
            resent_bytes,
            rtt_ns,
            rate_bps,
        })
    }

    /// Writes why the connection is over; [`Flags::OVER`] follows.
    pub(super) fn put_over(&self, over: &LinkError) {
        let (kind, source) = match over {
            LinkError::Protocol(haul_udt::Error::TimedOut) => (0, None),
            LinkError::Silent(source) => (1, Some(source)),
            LinkError::Network(source) => (2, Some(source)),
            LinkError::System(source) => (3, Some(source)),
            LinkError::PeerClosed => (4, None),
            LinkError::Closed => (5, None),
            LinkError::Plain => (6, None),
            _ => (7, None),
        };
        let errno = source.and_then(io::Error::raw_os_error).unwrap_or(0);
        let text = source.map_or_else(|| over.to_string(), ToString::to_string);
        let bytes = text.as_bytes();
        let bytes = &bytes[..bytes.len().min(8 * OVER_TEXT.len())];
        for (at, part) in OVER_TEXT.zip(bytes.chunks(8)) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.store(at, u64::from_ne_bytes(word));
        }
        self.store(OVER + 2, bytes.len() as u64);
        self.store(OVER + 1, errno.unsigned_abs().into());
        self.store(OVER, kind);
    }

    /// Why the connection is over, as the other process has written it.
    pub(super) fn over(&self) -> LinkError {
        let len = usize::try_from(self.load(OVER + 2)).unwrap_or(usize::MAX);
        let words = OVER_TEXT.flat_map(|at| self.load(at).to_ne_bytes());
        let bytes: Vec<u8> = words.take(len).collect();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let source = |text: String| match i32::try_from(self.load(OVER + 1)) {
            Ok(errno) if errno > 0 => io::Error::from_raw_os_error(errno),
            _ => io::Error::other(text),
        };
        match self.load(OVER) {
            0 => LinkError::Protocol(haul_udt::Error::TimedOut),
            1 => LinkError::Silent(source(text)),
            2 => LinkError::Network(source(text)),
            3 => LinkError::System(source(text)),
            4 => LinkError::PeerClosed,
            5 => LinkError::Closed,
            6 => LinkError::Plain,
            _ => LinkError::Told(text),
        }
    }
}
