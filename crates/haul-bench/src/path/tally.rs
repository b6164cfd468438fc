//! Counters of running streams: shared by their threads, read by the progress reports.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The receiver counts by spans of this length.
pub(crate) const STEP: Duration = Duration::from_millis(100);
/// Spans that are kept: an hour and ten minutes.
const STEPS: usize = 42_000;

/// Bytes that arrive, in all, by stream and by time.
#[derive(Debug)]
pub(crate) struct Tally {
    first: OnceLock<Instant>,
    last_ns: AtomicU64,
    streams: Vec<AtomicU64>,
    steps: Vec<AtomicU64>,
}

impl Tally {
    pub(crate) fn new(streams: u16) -> Self {
        let zeros = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self {
            first: OnceLock::new(),
            last_ns: AtomicU64::new(0),
            streams: zeros(usize::from(streams)),
            steps: zeros(STEPS),
        }
    }

    /// Counts arrived bytes of a stream.
    pub(crate) fn add(&self, stream: usize, bytes: u64) {
        let since = self.first.get_or_init(Instant::now).elapsed();
        let ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        self.last_ns.fetch_max(ns, Ordering::Relaxed);
        let step = usize::try_from(since.as_nanos() / STEP.as_nanos()).unwrap_or(STEPS);
        if let Some(count) = self.steps.get(step.min(STEPS - 1)) {
            count.fetch_add(bytes, Ordering::Relaxed);
        }
        if let Some(count) = self.streams.get(stream) {
            count.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Since the first arrival; none where nothing has arrived.
    pub(crate) fn elapsed(&self) -> Option<Duration> {
        self.first.get().map(Instant::elapsed)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.streams().iter().sum()
    }

    pub(crate) fn streams(&self) -> Vec<u64> {
        let counts = self.streams.iter();
        counts.map(|count| count.load(Ordering::Relaxed)).collect()
    }

    /// From the first arrival to the last, nanoseconds.
    pub(crate) fn ns(&self) -> u64 {
        self.last_ns.load(Ordering::Relaxed)
    }

    /// Bytes of each span since the first arrival.
    pub(crate) fn steps(&self) -> Vec<u64> {
        let counts = self.steps.iter();
        let mut counts: Vec<u64> = counts.map(|count| count.load(Ordering::Relaxed)).collect();
        let used = counts.iter().rposition(|count| *count > 0);
        counts.truncate(used.map_or(0, |last| last + 1));
        counts
    }
}

/// How much is still to be sent, by all streams together.
#[derive(Debug)]
pub(crate) struct Budget {
    until: Option<Instant>,
    left: Option<AtomicU64>,
}

impl Budget {
    pub(crate) fn time(time: Duration) -> Self {
        Self {
            until: Some(Instant::now() + time),
            left: None,
        }
    }

    pub(crate) fn bytes(bytes: u64) -> Self {
        Self {
            until: None,
            left: Some(AtomicU64::new(bytes)),
        }
    }

    /// Whether its time, if it has one, is over.
    pub(crate) fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// The length of the next message of at most `len` bytes; none when all is sent.
    pub(crate) fn take(&self, len: u32) -> Option<u32> {
        if self.is_over() {
            return None;
        }
        let Some(left) = &self.left else {
            return Some(len);
        };
        let take = |left: u64| Some(left.saturating_sub(len.into()));
        let before = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let before = before.unwrap_or(0).min(len.into());
        u32::try_from(before).ok().filter(|len| *len > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_counted_by_stream_and_by_time() {
        let tally = Tally::new(2);
        tally.add(0, 5);
        tally.add(1, 7);
        assert_eq!((tally.bytes(), tally.streams()), (12, vec![5, 7]));
        assert_eq!(tally.steps(), [12]);
    }

    #[test]
    fn a_budget_of_bytes_is_spent_exactly() {
        let budget = Budget::bytes(10);
        let mut taken = Vec::new();
        while let Some(len) = budget.take(4) {
            taken.push(len);
        }
        assert_eq!(taken, [4, 4, 2]);
        assert_eq!(Budget::time(Duration::ZERO).take(1), None);
        assert_eq!(Budget::time(Duration::from_secs(60)).take(1), Some(1));
    }
}
