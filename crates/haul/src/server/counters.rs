//! What a server counts for its operator.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lock;

/// Counts of a server since its start.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) received: Direction,
    pub(super) sent: Direction,
    refused: AtomicU64,
    sessions: Mutex<BTreeMap<&'static str, Sessions>>,
}

/// What moved in one direction.
#[derive(Debug, Default)]
pub(super) struct Direction {
    bytes: AtomicU64,
    files: AtomicU64,
}

/// Sessions of one operation that have ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sessions {
    /// All of them.
    pub ended: u64,
    /// Those that failed.
    pub failed: u64,
}

/// A copy of a server's counts, and its state now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Payload of files that arrived, bytes; sessions that run are included.
    pub received_bytes: u64,
    /// Payload of files that was sent, bytes; sessions that run are included.
    pub sent_bytes: u64,
    /// Files that arrived and have their final name.
    pub received_files: u64,
    /// Files that were sent and have their final name at the client.
    pub sent_files: u64,
    /// Sessions by operation: `put`, `get`, `list`, `read`, `bench` or `session`, which requested
    /// nothing.
    pub sessions: BTreeMap<&'static str, Sessions>,
    /// Clients that were admitted and found no place.
    pub refused: u64,
    /// Sessions that run now.
    pub active: usize,
    /// Maximum number of sessions at a time.
    pub limit: usize,
}

impl Counters {
    pub(super) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end(&self, operation: &'static str, has_failed: bool) {
        let mut sessions = lock(&self.sessions);
        let sessions = sessions.entry(operation).or_default();
        sessions.ended += 1;
        sessions.failed += u64::from(has_failed);
    }

    pub(super) fn read(&self, active: usize, limit: usize) -> Counts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            received_bytes: read(&self.received.bytes),
            sent_bytes: read(&self.sent.bytes),
            received_files: read(&self.received.files),
            sent_files: read(&self.sent.files),
            sessions: lock(&self.sessions).clone(),
            refused: read(&self.refused),
            active,
            limit,
        }
    }
}

/// What one session moves in one direction.
pub(super) struct Moved<'a> {
    direction: &'a Direction,
    counted: AtomicU64,
}

impl<'a> Moved<'a> {
    pub(super) fn new(direction: &'a Direction) -> Self {
        Self {
            direction,
            counted: AtomicU64::new(0),
        }
    }

    /// Notes that the session has moved `bytes` since its start.
    pub(super) fn reach(&self, bytes: u64) {
        let before = self.counted.fetch_max(bytes, Ordering::Relaxed);
        let more = bytes.saturating_sub(before);
        self.direction.bytes.fetch_add(more, Ordering::Relaxed);
    }

    pub(super) fn file(&self) {
        self.direction.files.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_session_reports_again_counts_once() {
        let counters = Counters::default();
        let moved = Moved::new(&counters.received);
        for bytes in [5, 9, 7, 9] {
            moved.reach(bytes);
        }
        moved.file();
        Moved::new(&counters.received).reach(1);
        counters.end("put", false);
        counters.end("put", true);
        let counts = counters.read(1, 2);
        assert_eq!((counts.received_bytes, counts.received_files), (10, 1));
        assert_eq!((counts.sent_bytes, counts.active, counts.limit), (0, 1, 2));
        let sessions = Sessions {
            ended: 2,
            failed: 1,
        };
        assert_eq!(counts.sessions["put"], sessions);
    }
}
