//! Path MTU discovery of an open connection ([`haul_cc::path_mtu`]).

use haul_cc::Time;
use haul_cc::path_mtu::{BASE, START};
use haul_cc::time::{MILLISECOND_NS, SECOND_NS};

use super::established::Established;
use crate::config::{HEADER, payload_len};
use crate::wire::ControlWriter;

/// Beyond four round trips: how long nothing is acknowledged before the path's MTU is suspected.
const SUSPECT_NS: u64 = 300 * MILLISECOND_NS;
/// The same while no round trip was measured: those of satellites take a second and more.
const SUSPECT_NS_UNKNOWN: u64 = 3 * SECOND_NS;
/// Probes of the peer that wait for their answers; a raise sends fewer.
const ANSWERS_MAX: usize = 32;
/// A stream that sends less is not worth probes of a longer packet.
const BULK_BYTES: u64 = 4 * START as u64;

impl Established {
    /// Packets are in flight, and none of them was acknowledged for several round trips.
    fn is_stalled(&self, now: Time) -> bool {
        self.stalled_ns(now)
            .is_some_and(|ns| ns >= self.suspect_ns())
    }

    fn suspect_ns(&self) -> u64 {
        match self.rtt.is_sampled() {
            true => SUSPECT_NS + 4 * self.rtt.smoothed_ns(),
            false => SUSPECT_NS_UNKNOWN,
        }
    }

    pub(super) fn wants_fragments(&self, now: Time) -> bool {
        if self.may_shorten() {
            return self.path.is_silent() && self.is_stalled(now);
        }
        // Losses before packets became shorter do not count against the shorter ones.
        let tried_ns = now.since(self.path.fell());
        self.is_stalled(now) && tried_ns >= self.suspect_ns()
    }

    /// This end can make packets shorter than they are.
    fn may_shorten(&self) -> bool {
        self.params.path && self.path.current() > BASE
    }

    pub(super) fn is_path_settled(&self) -> bool {
        !self.params.path || !self.path.is_raising()
    }

    pub(super) fn datagram_max(&self) -> usize {
        if self.params.path {
            (self.path.current() - self.lower_len()) as usize
        } else {
            usize::MAX
        }
    }

    fn lower_len(&self) -> u32 {
        u32::try_from(self.wire_overhead).map_or(0, |bytes| bytes - HEADER)
    }

    fn full_len(&self, size: u32) -> u32 {
        payload_len(size, self.lower_len())
    }

    /// Makes new packets as long as the path carries.
    pub(super) fn follow_path(&mut self) {
        if self.params.path {
            self.sender.set_full_len(self.full_len(self.path.current()));
        }
    }

    /// A stream's first packets are not worth a search for longer ones. Messages have to fit from
    /// the start.
    fn may_search(&self) -> bool {
        let is_bulk = self.sender.has_unacknowledged() && self.sender.position() >= BULK_BYTES;
        let may_begin = is_bulk || !self.sender.is_stream();
        self.params.path && (self.path.is_searching() || may_begin)
    }

    pub(super) fn path_due(&self) -> Option<Time> {
        self.path.due().filter(|_| self.may_search())
    }

    pub(super) fn search_path(&mut self, now: Time) {
        if !self.params.path {
            return;
        }
        let is_stuck = self.sender.take_stuck(self.full_len(BASE));
        if is_stuck || self.is_stalled(now) {
            self.path.suspect(now);
        }
        if self.path_due().is_some_and(|due| now >= due) && self.path.handle_time(now) {
            self.shorten(now);
        }
        if self.wants_fragments(now) {
            self.path.stop_raising();
        }
    }

    /// The path MTU has fallen. Longer packets in flight are lost, which is no evidence about the
    /// path's rate.
    fn shorten(&mut self, now: Time) {
        self.follow_path();
        self.sender.lose_longer(self.full_len(self.path.current()));
        self.timers.waiting_since = now;
        self.timers.timeouts_in_a_row = 0;
    }

    pub(super) fn handle_too_big(&mut self, now: Time, mtu: Option<u32>) -> Option<bool> {
        let shorter = self
            .may_shorten()
            .then(|| self.path.handle_too_big(now, mtu));
        match shorter {
            Some(true) => self.shorten(now),
            Some(false) => {}
            None => self.path.stop_raising(),
        }
        shorter
    }

    pub(super) fn note_probe(&mut self, number: u32) {
        if self.pending.answers.len() < ANSWERS_MAX {
            self.pending.answers.push_back(number);
        }
    }

    pub(super) fn on_probe_answer(&mut self, now: Time, number: u32) {
        if self.path.handle_answer(now, number) {
            self.follow_path();
        }
    }

    /// Writes an answer to a probe, or a probe.
    pub(super) fn write_path(&mut self, now: Time, out: &mut Vec<u8>) -> bool {
        if let Some(number) = self.pending.answers.pop_front() {
            ControlWriter::new(out, self.peer).probe_answer(number);
            return true;
        }
        if !self.may_search() {
            return false;
        }
        let probe = self.path.poll_probe(now, self.rtt.timeout_ns());
        let Some((number, size)) = probe else {
            return false;
        };
        let len = (size - self.lower_len()) as usize;
        ControlWriter::new(out, self.peer).probe(number, len);
        true
    }
}
