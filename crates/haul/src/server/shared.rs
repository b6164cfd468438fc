//! What all services of a server share: what is served, the clients' places, the counts, the audit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use haul_control::audit::{Audit, Entry};
use haul_control::connection::{Connection, FAREWELL};
use haul_control::frame::TaskId;
use haul_control::server::Log;
use haul_control::trust::Rights;

use super::counters::Counters;
use super::root::Place;
use super::table::{SessionSlot, Table};
use crate::channel::Acceptors;
use crate::fault::Fault;

/// How long a refusal takes at most while as many others take their time as sessions may run. With
/// twice as many it takes no time.
const BRIEF: Duration = Duration::from_millis(50);

/// The state of a server.
pub(super) struct Shared {
    pub(super) root: Place,
    pub(super) read_only: bool,
    pub(super) acceptors: Arc<Acceptors>,
    pub(super) table: Table,
    /// Clients that are being told why they get no place.
    pub(super) refusals: AtomicUsize,
    pub(super) counters: Counters,
    pub(super) log: Log,
    pub(super) audit: Audit,
}

/// What a session does, for the audit.
pub(super) struct Record {
    pub(super) operation: &'static str,
    pub(super) path: String,
    pub(super) other_paths: u64,
    pub(super) bytes: u64,
    begun: Instant,
}

impl Record {
    /// Begins the record of a session that has requested nothing.
    pub(super) fn begin() -> Self {
        Self {
            operation: "session",
            path: String::new(),
            other_paths: 0,
            bytes: 0,
            begun: Instant::now(),
        }
    }
}

impl Shared {
    /// Takes a client's place among the sessions. A client that gets none receives the reason.
    pub(super) fn take_slot(
        &self,
        connection: &mut Connection,
        task: TaskId,
        peer: &str,
    ) -> Option<SessionSlot<'_>> {
        // If that is unknown, the client counts as connected.
        let has_left = || connection.stream().has_hung_up();
        match self.table.enter(task, has_left) {
            Ok(slot) => Some(slot),
            Err(fault) => {
                self.counters.refuse();
                (self.log)(&format!("{peer}: refused: {fault}"));
                let others = self.refusals.fetch_add(1, Ordering::AcqRel);
                let max = self.table.max();
                let patience = match others {
                    _ if others < max => FAREWELL,
                    _ if others < max.saturating_mul(2) => BRIEF,
                    // A flood. Such a client may not learn why, and tries again.
                    _ => Duration::ZERO,
                };
                connection.refuse_within(&fault, patience);
                self.refusals.fetch_sub(1, Ordering::AcqRel);
                None
            }
        }
    }

    /// Counts a session that has ended, and writes it to the audit.
    pub(super) fn end(&self, rights: &Rights, peer: &str, record: &Record, fault: Option<&Fault>) {
        self.counters.end(record.operation, fault.is_some());
        (self.audit)(&Entry {
            identity: &rights.name,
            address: peer,
            operation: record.operation,
            path: &record.path,
            other_paths: record.other_paths,
            bytes: record.bytes,
            seconds: record.begun.elapsed().as_secs_f64(),
            fault,
        });
    }
}
