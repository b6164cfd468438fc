//! How fast data arrives at the receiver, from its reports.

use std::collections::VecDeque;

use crate::controller::{Rate, RateSample};
use crate::pacer::QUANTUM_NS;
use crate::time::{MILLISECOND_NS, Time};

/// Reports of a receiver, oldest first.
#[derive(Debug, Default)]
pub struct Arrivals {
    reports: VecDeque<Report>,
    /// Samples that begin below this count of arrived bytes were limited by the application.
    app_limited_until: u64,
    /// Samples that begin below this count were limited by how late the sender's machine woke it.
    late_until: u64,
}

#[derive(Debug, Clone, Copy)]
struct Report {
    /// By the receiver's clock, ns.
    at_ns: u64,
    /// Wire bytes that had arrived.
    bytes: u64,
    /// When the last of them to leave had left, by the sender's clock.
    newest_sent: Time,
}

const KEPT: usize = 128;
const INTERVAL_NS_MIN: u64 = MILLISECOND_NS / 2;

impl Arrivals {
    /// Takes a report: by `at_ns` of the receiver's clock, `bytes` wire bytes had arrived, the last
    /// of which to leave had left at `newest_sent`. Returns the rate since the youngest report that
    /// is `interval_ns` back. Packets that were delayed on the path or by the receiver's thread
    /// arrive at once and faster than the path carries, but on the whole never faster than they
    /// left.
    pub fn take(
        &mut self,
        at_ns: u64,
        bytes: u64,
        newest_sent: Time,
        interval_ns: u64,
    ) -> Option<RateSample> {
        let end = Report {
            at_ns,
            bytes,
            newest_sent,
        };
        let interval_ns = interval_ns.max(INTERVAL_NS_MIN);
        let start = self
            .reports
            .iter()
            .rev()
            .find(|then| then.at_ns.saturating_add(interval_ns) <= at_ns)
            .copied();
        if self.reports.back().is_none_or(|last| last.at_ns < at_ns) {
            if self.reports.len() == KEPT {
                self.reports.pop_front();
            }
            self.reports.push_back(end);
        }
        let start = start?;
        let bytes = bytes.checked_sub(start.bytes).filter(|&bytes| bytes > 0)?;
        let arrival_ns = at_ns - start.at_ns;
        // Known to within a batch at either end.
        let departure_ns = newest_sent.since(start.newest_sent);
        let interval_ns = arrival_ns.max(departure_ns.saturating_sub(2 * QUANTUM_NS));
        Some(RateSample {
            rate: Rate::of(bytes, interval_ns),
            interval_ns,
            bytes,
            app_limited: start.bytes < self.app_limited_until,
            late: start.bytes < self.late_until,
            whole_train: false,
        })
    }

    /// Notes that the application has nothing more to send while `in_flight` bytes are in flight.
    pub fn note_app_limited(&mut self, in_flight: u64) {
        self.app_limited_until = self.arrived_with(in_flight);
    }

    /// Notes that the sender woke too late to keep its pace, while `in_flight` bytes are in flight.
    pub fn note_late(&mut self, in_flight: u64) {
        self.late_until = self.arrived_with(in_flight);
    }

    /// Whether the application limited the latest sample.
    #[must_use]
    pub fn is_app_limited(&self) -> bool {
        self.arrived() < self.app_limited_until
    }

    fn arrived(&self) -> u64 {
        self.reports.back().map_or(0, |last| last.bytes)
    }

    /// The count of arrived bytes at which everything now in flight has arrived.
    fn arrived_with(&self, in_flight: u64) -> u64 {
        self.arrived().saturating_add(in_flight + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arrives_at_once_counts_over_the_time_in_which_it_left() {
        let mut arrivals = Arrivals::default();
        let at = |ms: u64| ms * MILLISECOND_NS;
        let sent = |ms: u64| Time::from_ns(at(ms));
        assert_eq!(arrivals.take(at(100), 1_000, sent(50), at(10)), None);
        // As fast as it left.
        let sample = arrivals.take(at(110), 2_000, sent(60), at(10)).unwrap();
        assert_eq!((sample.bytes, sample.interval_ns), (1_000, at(10)));
        // Nothing for 30 ms, then three times as much in 10 ms.
        assert_eq!(arrivals.take(at(140), 2_000, sent(60), at(10)), None);
        let sample = arrivals.take(at(150), 6_000, sent(100), at(10)).unwrap();
        assert_eq!((sample.bytes, sample.interval_ns), (4_000, at(38)));
    }
}
