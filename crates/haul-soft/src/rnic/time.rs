//! Durations and deadlines in nanoseconds of the clock.

use std::time::Duration;

use haul_io::clock::Clock;

pub(super) fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// When `timeout` is over, nanoseconds of the clock; none is never.
pub(super) fn deadline(clock: Clock, timeout: Option<Duration>) -> Option<u64> {
    Some(clock.now_ns().saturating_add(ns(timeout?)))
}

/// How long it is from `now` to `end`.
pub(super) fn remaining(end: Option<u64>, now: u64) -> Option<u64> {
    end.map(|end| end.saturating_sub(now))
}
