//! Scheduling of data into slabs: connections with little data at once, the others in turn, as fast
//! as the path takes it.

use super::stream::{Slab, SlabState};
use super::{Mode, Producer};
use crate::bag;
use crate::time::Time;
use crate::wire::INLINE_MAX;

/// Least bytes that a connection gets into a slab at its turn.
const QUANTUM_MIN: u64 = 4 << 10;
/// A slab is no larger than this part of the ring, because its memory is free only when all of it
/// is acknowledged. Smaller ones are not worth an announcement each.
const SLAB_SHARE: u64 = 32;
const SLAB_BYTES: u64 = 1 << 20;
/// Nor larger than this part of the limit in flight, because it is delivered only as a whole.
const FLIGHT_SHARE: u64 = 16;
const FLIGHT_SLAB_BYTES: u64 = 64 << 10;
/// Records that are not acknowledged (docs/protocol/xsp.md, limits).
const RECORDS_IN_FLIGHT: usize = 16 << 10;
/// Where less inline room is left, connections with little data use the data channels, unless what
/// they have fits.
const INLINE_LEAST: u64 = INLINE_MAX as u64 / 8;
const SLABS_MOVED_MAX: usize = bag::SLABS_MOVED_MAX as usize;
/// The part of [`SLABS_MOVED_MAX`] that bulk connections may use.
const SLABS_BULK: usize = 48;

impl Producer {
    /// Whether a slab would be packed now, if nothing held it.
    #[must_use]
    pub fn is_due(&self, now: Time) -> bool {
        self.is_little_due(now) || self.is_round_due(now)
    }

    fn is_little_due(&self, now: Time) -> bool {
        self.may_pack_little() && self.little_due() <= now
    }

    /// Whether slabs, their records and their bytes may be more.
    fn has_window(&self) -> bool {
        self.slabs.len() < self.slabs_max()
            && self.unacked_bytes < self.window_bytes
            && self.unacked_records < RECORDS_IN_FLIGHT
    }

    pub(super) fn may_pack_little(&self) -> bool {
        let has_room = self.moved < SLABS_MOVED_MAX || self.little_room() > 0;
        !self.little.is_empty() && self.has_window() && has_room
    }

    /// The inline room that connections with little data fill. If they also filled the last of it,
    /// each small acknowledgement would bring a small slab, and all slabs would soon be in use.
    fn little_room(&self) -> u64 {
        let room = self.inline_room();
        if room < INLINE_LEAST { 0 } else { room }
    }

    /// Bulk connections leave the last slabs to connections with little data.
    pub(super) fn may_pack_round(&self) -> bool {
        let most = (self.slabs_max() * 3 / 4).clamp(1, SLABS_BULK);
        !self.round.is_empty()
            && self.has_window()
            && self.moved < most
            && self.unacked_bytes < self.flight.most()
    }

    fn is_round_due(&self, now: Time) -> bool {
        if !self.may_pack_round() {
            return false;
        }
        let is_full = self.ready_bytes >= self.slab_bytes();
        let is_late = self.flush_at().is_none_or(|at| at <= now);
        self.slabs.is_empty() || self.urgent || is_full || is_late
    }

    /// Slabs in flight: as many as the peer takes.
    fn slabs_max(&self) -> usize {
        usize::from(self.window_slabs.min(self.config.slabs_max))
    }

    /// Most bytes of a slab.
    fn slab_bytes(&self) -> u64 {
        let share = (self.size.target() / SLAB_SHARE).max(SLAB_BYTES);
        let flight = (self.flight.most() / FLIGHT_SHARE).max(FLIGHT_SLAB_BYTES);
        self.ring.region_bytes().min(share).min(flight)
    }

    /// Returns how long the next slab waits for more data. If half of `most` slabs are in flight,
    /// the rest is spread over the time that a slab is in flight.
    fn slab_wait_ns(&self, in_flight: usize, most: usize) -> u64 {
        let half = most.div_ceil(2).max(1);
        if in_flight >= half {
            self.rtt_ns * self.config.mode.round_trips() / half as u64
        } else {
            0
        }
    }

    /// Returns when connections with little data get their next slab: at once, unless many of its
    /// kind are in flight.
    pub(super) fn little_due(&self) -> Time {
        let wait = self.slab_wait_ns(self.slabs.len(), self.slabs_max());
        let moved = self.slab_wait_ns(self.moved, SLABS_MOVED_MAX);
        let wait = if self.little_room() > 0 {
            wait
        } else {
            wait.max(moved)
        };
        self.little_at.after(wait)
    }

    /// So long the first byte of much waits for more: less than is felt.
    pub(super) fn flush_at(&self) -> Option<Time> {
        let wait = (self.rtt_ns / 4).min(self.config.flush_max_ns);
        // Marks and acknowledgements of each slab cost time of both ends.
        let left = SLABS_BULK.saturating_sub(self.moved).max(1) as u64;
        let span = self.rtt_ns * self.config.mode.round_trips() / (2 * left);
        let slabs = self.slab_wait_ns(self.slabs.len(), self.slabs_max());
        self.ready_since
            .map(|since| since.after(wait.max(span).max(slabs)))
    }

    /// Packs a slab of at most `most` bytes, if one [is due](Self::is_due): how many it has.
    pub fn pack(&mut self, now: Time, most: u64) -> u64 {
        self.held = None;
        let before = self.unacked_bytes;
        let next = self.next_seq();
        // A connection that had little data may have much by now, and wait with the others.
        for _ in 0..2 {
            if self.next_seq() == next && self.is_due(now) {
                self.fill_slab(now, most);
            }
        }
        self.unacked_bytes - before
    }

    /// Connections with little data, otherwise deficit round-robin over the others.
    fn fill_slab(&mut self, now: Time, most: u64) {
        let is_little = self.is_little_due(now);
        let most = self
            .slab_bytes()
            .min(most)
            .min(self.window_bytes - self.unacked_bytes)
            .min(u64::from(u32::MAX));
        let room = self.inline_room();
        // Data that fits goes inline, the rest with the other connections.
        let most = if is_little && self.little_room() > 0 {
            most.min(room)
        } else {
            most
        };
        let records_max = self
            .config
            .records_max
            .min(RECORDS_IN_FLIGHT - self.unacked_records.min(RECORDS_IN_FLIGHT));
        let mut queue = std::mem::take(if is_little {
            &mut self.little
        } else {
            &mut self.round
        });
        let quantum = (most / (queue.len() as u64).max(1)).max(QUANTUM_MIN);
        let mut slab = Slab {
            records: Vec::new(),
            bytes: 0,
            is_inline: false,
            is_pushed: false,
            inline: Vec::new(),
            state: SlabState::Sealed,
            tries: 0,
            cursor: (0, 0),
            attempt: self.attempts,
        };
        let mut turns = queue.len();
        while turns > 0 && slab.bytes < most && slab.records.len() < records_max {
            turns -= 1;
            let Some(conn) = queue.pop_front() else {
                break;
            };
            let Some(tx) = self.conns.get_mut(&conn) else {
                continue;
            };
            // It has more than before.
            if is_little && !tx.has_little() {
                self.round.push_back(conn);
                continue;
            }
            let (before, debt) = (slab.bytes, tx.debt);
            if is_little {
                // What little it has delays nobody: debts are between bulk connections.
                tx.debt = 0;
            }
            let retain = self.config.retain;
            let waits = tx.take(conn, quantum, most, records_max, retain, &mut slab);
            self.ready_bytes -= slab.bytes - before;
            if waits {
                // The next slab begins with it: it must not lose its turn.
                queue.push_front(conn);
                break;
            }
            if !tx.packable() {
                tx.in_round = false;
                continue;
            }
            turns += usize::from(slab.bytes > before || tx.debt < debt);
            queue.push_back(conn);
        }
        if is_little {
            self.little = queue;
        } else {
            self.round = queue;
        }
        if self.round.is_empty() {
            self.urgent = false;
        }
        self.ready_since = match self.ready_since {
            _ if self.round.is_empty() => None,
            Some(since) if is_little => Some(since),
            _ => Some(now),
        };
        if slab.records.is_empty() {
            return;
        }
        if is_little {
            self.little_at = now;
        }
        for (record, ..) in &slab.records {
            if let Some(tx) = self.conns.get_mut(&record.conn) {
                tx.in_slabs += 1;
                tx.unacked += u64::from(record.len);
            }
        }
        self.unacked_bytes += slab.bytes;
        self.unacked_records += slab.records.len();
        // Written data takes no longer than inline data, and leaves inline space to others.
        let may_inline = is_little || self.config.mode == Mode::Pull || most <= room;
        slab.is_inline = may_inline && slab.bytes > 0 && slab.bytes <= room;
        slab.is_pushed = self.config.mode == Mode::Push && slab.bytes > 0 && !slab.is_inline;
        self.inline_bytes += slab.inline_bytes();
        self.moved += usize::from(slab.is_moved());
        let seq = self.next_seq();
        self.queue_of(slab.is_pushed).push_back(seq);
        self.slabs.push_back(slab);
    }
}
