//! How fast data arrived at the peer, by the clock and the count that its ACKs carry.

use std::collections::VecDeque;

use haul_cc::time::{MICROSECOND_NS, MILLISECOND_NS};
use haul_cc::{Rate, RateSample, Time};

/// Reports of a peer, oldest first.
#[derive(Debug, Default)]
pub(super) struct Samples {
    reports: VecDeque<Report>,
    /// Samples that begin below this count were limited by the user.
    app_limited_until: u64,
    /// Samples that begin below this count were limited by how late this end was woken.
    late_until: u64,
}

#[derive(Debug, Clone, Copy)]
struct Report {
    /// The peer's clock, us.
    at_us: u64,
    /// Wire octets that had arrived.
    octets: u64,
    /// When the last of them to leave had left.
    newest_sent: Time,
}

const KEPT: usize = 128;
const INTERVAL_NS_MIN: u64 = MILLISECOND_NS / 2;

impl Samples {
    /// Takes a report; answers the rate since the youngest one that is `interval_ns` back. `newest_sent`: when the last packet to
    /// leave of those that have arrived had left. What waited on the way arrives at once, but never on the whole faster than it
    /// left.
    pub(super) fn take(
        &mut self,
        clock_us: u32,
        octets: u32,
        newest_sent: Time,
        interval_ns: u64,
    ) -> Option<RateSample> {
        let Some(&last) = self.reports.back() else {
            self.reports.push_back(Report {
                at_us: u64::from(clock_us),
                octets: u64::from(octets),
                newest_sent,
            });
            return None;
        };
        let end = Report {
            at_us: forward(last.at_us, clock_us)?,
            octets: forward(last.octets, octets)?,
            newest_sent,
        };
        if end.at_us == last.at_us {
            return None;
        }
        let interval_us = interval_ns.max(INTERVAL_NS_MIN) / MICROSECOND_NS;
        let start = self
            .reports
            .iter()
            .rev()
            .find(|then| then.at_us + interval_us <= end.at_us)
            .copied();
        if self.reports.len() == KEPT {
            self.reports.pop_front();
        }
        self.reports.push_back(end);
        let start = start?;
        let bytes = (end.octets - start.octets).max(1);
        let arrival_ns = (end.at_us - start.at_us) * MICROSECOND_NS;
        let interval_ns = arrival_ns.max(end.newest_sent.since(start.newest_sent));
        Some(RateSample {
            rate: Rate::of(bytes, interval_ns),
            interval_ns,
            bytes,
            app_limited: start.octets < self.app_limited_until,
            late: start.octets < self.late_until,
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
        self.reports.back().map_or(0, |last| last.octets)
    }
}

/// The number with the low half `low` that is `last` or up to 2^31 further; none if it is before.
fn forward(last: u64, low: u32) -> Option<u64> {
    let ahead = low.wrapping_sub(super::low(last));
    (ahead < 1 << 31).then(|| last + u64::from(ahead))
}
