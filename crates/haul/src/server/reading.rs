//! Clients that read attributes and ranges of files.

use std::collections::HashSet;
use std::convert::Infallible;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crossbeam_channel::{Receiver, Sender, bounded};
use haul_control::server::{Client, Service};

use super::asked::open_channel;
use super::counters::Moved;
use super::permit::permit;
use super::shared::{Record, Shared};
use crate::link::Link;
use crate::lock;
use crate::printable;
use crate::session::ranges;
use crate::wire::READ_SERVICE;

/// Paths that are counted for the audit.
const PATHS_MAX: usize = 4096;

/// The paths that a client has named.
#[derive(Default)]
struct Named {
    first: Option<String>,
    hashes: HashSet<u64>,
    hasher: RandomState,
}

impl Named {
    fn add(&mut self, path: &[u8]) {
        self.first.get_or_insert_with(|| printable(path));
        if self.hashes.len() < PATHS_MAX {
            self.hashes.insert(self.hasher.hash_one(path));
        }
    }
}

/// Serves ranges of what the transfers serve.
pub(super) struct Reading {
    shared: Arc<Shared>,
    /// Dropped when the server drains.
    serving: Mutex<Option<Sender<Infallible>>>,
    drained: Receiver<Infallible>,
}

impl Reading {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let (serving, drained) = bounded(0);
        Self {
            shared,
            serving: Mutex::new(Some(serving)),
            drained,
        }
    }
}

impl Service for Reading {
    fn name(&self) -> &'static str {
        READ_SERVICE
    }

    fn serve(&self, client: Client) {
        let Client {
            mut connection,
            greeting,
            rights,
            name,
            dead_after,
        } = client;
        let shared = &*self.shared;
        if let Err(fault) = permit(rights.read, &rights, "read files of this server") {
            // It takes no place from those that may.
            return connection.refuse(&fault);
        }
        let Some(slot) = shared.take_slot(&mut connection, greeting.task, &name) else {
            return;
        };
        let Ok(link) = Link::start(connection, dead_after) else {
            return;
        };
        slot.hold(link.cancel());
        let mut record = Record::begin();
        let (named, sent) = (Mutex::new(Named::default()), AtomicU64::new(0));
        let opened = open_channel(shared, &link, &rights, dead_after);
        slot.note_asked();
        let result = opened.and_then(|(opening, _)| {
            record.operation = "read";
            let place = shared.root.below(&rights.directory)?;
            let open = |path: &[u8]| {
                lock(&named).add(path);
                place.open(path)
            };
            let moved = Moved::new(&shared.counters.sent);
            let moved = |bytes| {
                sent.fetch_max(bytes, Ordering::Relaxed);
                moved.reach(bytes);
            };
            ranges::serve(&link, opening, &open, &moved, &self.drained)
        });
        let named = std::mem::take(&mut *lock(&named));
        record.other_paths = named.hashes.len().saturating_sub(1) as u64;
        record.path = named.first.unwrap_or_default();
        record.bytes = sent.into_inner();
        if let Err(fault) = &result {
            link.report(fault);
        }
        shared.end(&rights, &name, &record, result.as_ref().err());
    }

    fn drain(&self) {
        *lock(&self.serving) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_is_counted_once() {
        let mut named = Named::default();
        for path in [&b"a\n"[..], b"b", b"a\n", b"c", b"b"] {
            named.add(path);
        }
        assert_eq!(named.first, Some(printable(b"a\n")));
        assert_eq!(named.hashes.len(), 3);
        for number in 0..2 * PATHS_MAX {
            named.add(&number.to_ne_bytes());
        }
        assert_eq!(named.hashes.len(), PATHS_MAX);
    }
}
