//! Clients that read attributes and ranges of files.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use haul_control::server::{Client, Service};

use super::asked::open_channel;
use super::counters::Moved;
use super::permit::permit;
use super::shared::{Record, Shared};
use crate::link::Link;
use crate::printable;
use crate::session::ranges;
use crate::wire::READ_SERVICE;

/// Serves ranges of what the transfers serve.
pub(super) struct Reading(pub(super) Arc<Shared>);

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
        let shared = &*self.0;
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
        let (first, sent) = (OnceLock::new(), AtomicU64::new(0));
        let opened = open_channel(shared, &link, &rights, dead_after);
        slot.note_asked();
        let result = opened.and_then(|(opening, _)| {
            record.operation = "read";
            let place = shared.root.below(&rights.directory)?;
            let open = |path: &[u8]| {
                first.get_or_init(|| printable(path));
                place.file(path).map(|(_, file)| file)
            };
            let moved = Moved::new(&shared.counters.sent);
            ranges::serve(&link, opening, &open, &|bytes| {
                sent.fetch_max(bytes, Ordering::Relaxed);
                moved.reach(bytes);
            })
        });
        record.path = first.into_inner().unwrap_or_default();
        record.bytes = sent.into_inner();
        if let Err(fault) = &result {
            link.report(fault);
        }
        shared.end(&rights, &name, &record, result.as_ref().err());
    }
}
