//! What both ends know of the memory that they share, beside rings.
//!
//! The words of a completion queue's mark, each written as named. The doorbell's memory has one
//! word: not zero while the engine sleeps. Who publishes executes a fence and looks whether the
//! other sleeps; who goes to sleep says so, executes a fence and looks once more
//! (`haul_io::wake::SleepWord`, whose model covers it).

use haul_slab::SharedMemory;
use haul_verbs::QpCapacity;

use crate::entry;
use crate::ring::Place;

/// How many threads of the client sleep until there is a completion. By the client.
pub(crate) const SLEEPERS: usize = 0;
/// Whether the client wants a token on its channel: [`ANY`] or [`SOLICITED`]. By the client; the
/// engine takes it.
pub(crate) const ARMED: usize = 1;
pub(crate) const ANY: u64 = 1;
pub(crate) const SOLICITED: u64 = 2;
/// Not zero if the engine has more completions than there is room. By the engine; the client takes
/// it and rings.
pub(crate) const WANTS_ROOM: usize = 2;
/// Not zero if completions were lost. By the engine.
pub(crate) const OVERFLOWED: usize = 3;

/// Bytes of a completion queue's ring.
pub(crate) fn queue_bytes(entries: u32) -> usize {
    Place::bytes(entries, entry::COMPLETION)
}

/// Where the rings of a queue pair lie in its memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QpRings {
    sends: u32,
    receives: Option<(usize, u32)>,
    pub(crate) bytes: usize,
}

impl QpRings {
    pub(crate) fn of(capacity: QpCapacity, has_srq: bool) -> Self {
        let inline = entry::entries(capacity.max_inline);
        let sends = capacity.max_send_wr.saturating_mul(inline);
        let first = Place::bytes(sends, entry::REQUEST);
        let count = capacity.max_recv_wr;
        let second = Place::bytes(count, entry::REQUEST);
        Self {
            sends,
            receives: (!has_srq).then_some((first, count)),
            bytes: first + if has_srq { 0 } else { second },
        }
    }

    /// The ring of sends, and that of receives.
    pub(crate) fn places(&self, memory: &SharedMemory) -> Option<(Place, Option<Place>)> {
        let sends = Place::new(memory, 0, self.sends, entry::REQUEST)?;
        let receives = match self.receives {
            None => None,
            Some((at, count)) => Some(Place::new(memory, at, count, entry::REQUEST)?),
        };
        Some((sends, receives))
    }
}
