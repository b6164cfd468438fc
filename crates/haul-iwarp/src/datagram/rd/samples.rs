//! How fast data arrived at the peer, by the clock and the count that its ACKs carry.

use std::collections::VecDeque;

use haul_cc::time::{MICROSECOND_NS, MILLISECOND_NS};
use haul_cc::{Rate, RateSample};

/// Reports of a peer, oldest first.
#[derive(Debug, Default)]
pub(super) struct Samples {
    /// Its clock, us, and wire octets that had arrived.
    reports: VecDeque<(u64, u64)>,
    /// Samples that begin below this count were limited by the user.
    app_limited_until: u64,
    /// Samples that begin below this count were limited by how late this end was woken.
    late_until: u64,
}

const KEPT: usize = 128;
const INTERVAL_NS_MIN: u64 = MILLISECOND_NS / 2;

impl Samples {
    /// Takes a report; answers the rate since the youngest one that is `interval_ns` back.
    pub(super) fn take(
        &mut self,
        clock_us: u32,
        octets: u32,
        interval_ns: u64,
    ) -> Option<RateSample> {
        let Some(&(last_us, last_octets)) = self.reports.back() else {
            self.reports
                .push_back((u64::from(clock_us), u64::from(octets)));
            return None;
        };
        let at_us = forward(last_us, clock_us)?;
        let octets = forward(last_octets, octets)?;
        if at_us == last_us {
            return None;
        }
        let interval_us = interval_ns.max(INTERVAL_NS_MIN) / MICROSECOND_NS;
        let start = self
            .reports
            .iter()
            .rev()
            .find(|(then_us, _)| then_us + interval_us <= at_us)
            .copied();
        if self.reports.len() == KEPT {
            self.reports.pop_front();
        }
        self.reports.push_back((at_us, octets));
        let (start_us, start_octets) = start?;
        let bytes = (octets - start_octets).max(1);
        let interval_ns = (at_us - start_us) * MICROSECOND_NS;
        Some(RateSample {
            rate: Rate::of(bytes, interval_ns),
            interval_ns,
            bytes,
            app_limited: start_octets < self.app_limited_until,
            late: start_octets < self.late_until,
            whole_train: false,
        })
    }

    pub(super) fn is_app_limited(&self) -> bool {
        self.arrived() < self.app_limited_until
    }

    pub(super) fn note_app_limited(&mut self, in_flight: u64) {
        self.app_limited_until = self.arrived() + in_flight + 1;
    }

    pub(super) fn note_late(&mut self, in_flight: u64) {
        self.late_until = self.arrived() + in_flight + 1;
    }

    fn arrived(&self) -> u64 {
        self.reports.back().map_or(0, |&(_, octets)| octets)
    }
}

/// The number with the low half `low` that is `last` or up to 2^31 further; none if it is before.
fn forward(last: u64, low: u32) -> Option<u64> {
    let ahead = low.wrapping_sub(super::low(last));
    (ahead < 1 << 31).then(|| last + u64::from(ahead))
}
