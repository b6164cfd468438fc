//! The places of a work queue: a request takes one when it is posted, and its completion frees it
//! when it is polled.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many requests of one work queue are posted and not yet reported.
#[derive(Debug)]
pub(super) struct Places {
    /// taken <= limit
    taken: AtomicU32,
    limit: u32,
}

impl Places {
    pub(super) fn new(limit: u32) -> Arc<Self> {
        Arc::new(Self {
            taken: AtomicU32::new(0),
            limit,
        })
    }

    pub(super) fn are_taken(&self) -> bool {
        self.taken.load(Ordering::Relaxed) >= self.limit
    }

    /// Takes a place. Whoever posts holds the queue's lock, so that nobody takes one between
    /// [`Places::are_taken`] and this.
    pub(super) fn take(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn free(&self, count: u32) {
        self.taken.fetch_sub(count, Ordering::Relaxed);
    }

    /// Places that are free when the result is dropped.
    pub(super) fn held(self: &Arc<Self>, count: u32) -> Held {
        Held {
            places: Arc::clone(self),
            count,
        }
    }
}

/// The places that a completion frees: its own, and those of the requests before it that report
/// nothing.
#[derive(Debug)]
pub(super) struct Held {
    places: Arc<Places>,
    count: u32,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.places.free(self.count);
    }
}
