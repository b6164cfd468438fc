//! Pacing: determines when the next batch may leave.
//!
//! Kernels without `fq` do not pace, and a timer per packet costs more than the packet. So the
//! pacer keeps a schedule and lets a *batch* go when its moment has come: the batch is what the
//! rate produces in [`QUANTUM_NS`], within its limit. A sender that woke up late may catch up, at
//! most 10/8 of the rate and only for what it missed within a bounded lag: forgetting the lag would
//! turn every scheduling hiccup into lost throughput, and repaying it at once would be the burst
//! that a shallow queue or a policer drops. Where the burst is limited ([`Pacer::limit_burst`]),
//! the lag is too, so that batches and repaid lag together stay within it.

use crate::controller::Rate;
use crate::time::{MICROSECOND_NS, MILLISECOND_NS, Time};

/// The time that one batch covers at most, but for what [`WAKE_NS`] allows: less on short paths,
/// whose queues are short.
pub const QUANTUM_NS: u64 = MILLISECOND_NS;
const QUANTUM_NS_MIN: u64 = 500 * MICROSECOND_NS;
/// The most that one batch holds, wire bytes, …
pub(crate) const BATCH_BYTES: u64 = 128 << 10;
/// … unless the rate needs more because timers cannot wake it more often than this.
const WAKE_NS: u64 = 600 * MICROSECOND_NS;
/// The longest lag that is made up for; less on short paths, whose queues could not hold what it
/// brings.
const LAG_MAX_NS: u64 = 20 * MILLISECOND_NS;
const LAG_MAX_NS_MIN: u64 = 2 * MILLISECOND_NS;
/// The rate at which lag is made up, in eighths of the paced rate; the module's documentation
/// explains why not more.
const CATCH_UP_EIGHTHS: u64 = 10;

/// A schedule of departures at a rate.
#[derive(Debug, Clone)]
pub struct Pacer {
    rate: Rate,
    quantum_ns: u64,
    lag_max_ns: u64,
    batch_max_bytes: u64,
    packet_bytes: u64,
    /// Bytes that may leave beyond the rate: batches and repaid lag together.
    burst_bytes: Option<u64>,
    batch_limit_bytes: u64,
    /// When the next batch is due if the schedule has been kept.
    due: Time,
    /// Earliest departure while lag is being made up.
    not_before: Time,
    /// The rest of a started batch, which may take several system calls.
    left_bytes: u64,
    begun_bytes: u64,
    begun: Time,
}

impl Pacer {
    /// Makes a pacer whose batches hold at least one packet of `packet_bytes` and at most
    /// `batch_max_bytes` (wire bytes).
    #[must_use]
    pub fn new(rate: Rate, packet_bytes: u64, batch_max_bytes: u64) -> Self {
        Self {
            rate,
            quantum_ns: QUANTUM_NS,
            lag_max_ns: LAG_MAX_NS,
            batch_max_bytes: batch_max_bytes.max(packet_bytes),
            packet_bytes,
            burst_bytes: None,
            batch_limit_bytes: u64::MAX,
            due: Time::ZERO,
            not_before: Time::ZERO,
            left_bytes: 0,
            begun_bytes: 0,
            begun: Time::ZERO,
        }
    }

    /// Changes the rate from the next batch on.
    pub fn set_rate(&mut self, rate: Rate) {
        self.rate = rate;
    }

    /// Fits batches, and the lag that is made up for, to the path's base round-trip time.
    pub fn set_base_rtt(&mut self, rtt_ns: u64) {
        self.quantum_ns = (rtt_ns / 4).clamp(QUANTUM_NS_MIN, QUANTUM_NS);
        self.lag_max_ns = (2 * rtt_ns).clamp(LAG_MAX_NS_MIN, LAG_MAX_NS);
    }

    /// Limits the bytes that leave in any interval to rate × interval + `burst_bytes` (wire bytes;
    /// at least one packet), as a policer's bucket of that size does. Half of it is for batches,
    /// the other half for lag, which is not made up for beyond it.
    pub fn limit_burst(&mut self, burst_bytes: Option<u64>) {
        self.burst_bytes = burst_bytes;
    }

    /// Limits batches beyond that, wire bytes; at least one packet leaves.
    pub fn limit_batch(&mut self, bytes: u64) {
        self.batch_limit_bytes = bytes;
    }

    /// Returns the rate in force.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns the wire bytes that may leave now; zero until [`Pacer::ready_at`].
    #[must_use]
    pub fn budget_bytes(&self, now: Time) -> u64 {
        if self.left_bytes > 0 {
            self.left_bytes
        } else if now < self.ready_at() {
            0
        } else {
            self.batch_bytes()
        }
    }

    /// Returns when the next batch, or the rest of the present one, may leave.
    #[must_use]
    pub fn ready_at(&self) -> Time {
        if self.left_bytes > 0 {
            Time::ZERO
        } else {
            self.due.max(self.not_before)
        }
    }

    /// Returns the size that batches aim for, wire bytes: the rate over a quantum, within one
    /// packet and the burst.
    #[must_use]
    pub fn batch_bytes(&self) -> u64 {
        let most = self.rate.bytes_in(WAKE_NS).max(BATCH_BYTES);
        let wanted = self.rate.bytes_in(self.quantum_ns).min(most);
        let limit = self.burst_bytes.map_or(u64::MAX, |burst| burst / 2);
        let limit = limit
            .min(self.batch_limit_bytes)
            .clamp(self.packet_bytes, self.batch_max_bytes);
        wanted.clamp(self.packet_bytes, limit)
    }

    fn lag_max_ns(&self) -> u64 {
        let limit = self.burst_bytes.map(|burst| self.rate.time_for(burst / 2));
        limit.map_or(self.lag_max_ns, |limit| self.lag_max_ns.min(limit))
    }

    /// Records that `bytes` left at `now`. Returns true if that was too late to be made up for.
    pub fn handle_sent(&mut self, now: Time, bytes: u64) -> bool {
        let batch_bytes = if self.left_bytes > 0 {
            self.left_bytes
        } else {
            self.batch_bytes()
        };
        if self.begun_bytes == 0 {
            self.begun = now;
        }
        self.begun_bytes += bytes;
        self.left_bytes = batch_bytes.saturating_sub(bytes);
        let earliest = now.before(self.lag_max_ns());
        let late = self.due < earliest;
        self.due = self.due.max(earliest).after(self.rate.time_for(bytes));
        if self.left_bytes < self.packet_bytes {
            self.end_batch();
        }
        late
    }

    /// Notes that the sender had nothing to send until `now`: that time is no lag.
    pub fn handle_idle(&mut self, now: Time) {
        self.due = self.due.max(now);
        if self.left_bytes > 0 {
            self.end_batch();
        }
    }

    fn end_batch(&mut self) {
        let spacing_ns = self.rate.time_for(self.begun_bytes);
        self.not_before = self.begun.after(spacing_ns * 8 / CATCH_UP_EIGHTHS);
        self.left_bytes = 0;
        self.begun_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::SECOND_NS;

    const PACKET: u64 = 1_500;

    fn pacer(bits_per_second: u64) -> Pacer {
        Pacer::new(Rate::from_bps(bits_per_second), PACKET, 64_000)
    }

    /// Sends whenever allowed, with wake-ups by `wake`; returns the wire bytes sent in a second.
    fn sent_in_a_second(mut pacer: Pacer, wake: impl Fn(Time) -> Time) -> u64 {
        let (mut now, mut sent) = (Time::from_ns(SECOND_NS), 0);
        pacer.handle_idle(now);
        while now < Time::from_ns(2 * SECOND_NS) {
            let budget = pacer.budget_bytes(now);
            if budget > 0 {
                pacer.handle_sent(now, budget);
                sent += budget;
            }
            now = wake(pacer.ready_at().max(now));
        }
        sent
    }

    #[test]
    fn an_exact_timer_gives_the_exact_rate() {
        for rate in [10_000_000, 1_000_000_000, 40_000_000_000] {
            let sent = sent_in_a_second(pacer(rate), |due| due);
            assert!(
                sent.abs_diff(rate / 8) <= 64_000 + rate / 8 / 10_000,
                "{rate}: {sent}"
            );
        }
    }

    #[test]
    fn late_wakeups_are_made_up_for() {
        let wakeups = std::cell::Cell::new(0_u32);
        let late = |due: Time| {
            wakeups.set(wakeups.get() + 1);
            if wakeups.get().is_multiple_of(64) {
                due.after(5 * MILLISECOND_NS)
            } else {
                due
            }
        };
        let sent = sent_in_a_second(pacer(1_000_000_000), late);
        assert!(sent > 124_000_000 * 98 / 100, "{sent}");
    }

    #[test]
    fn making_up_never_exceeds_the_catch_up_rate() {
        let mut pacer = pacer(1_000_000_000);
        let mut now = Time::from_ns(SECOND_NS);
        pacer.handle_sent(now, 50_000);
        now = now.after(10 * MILLISECOND_NS);
        let (start, mut sent) = (now, 0);
        while now < start.after(4 * MILLISECOND_NS) {
            let budget = pacer.budget_bytes(now);
            assert!(budget <= 64_000);
            pacer.handle_sent(now, budget);
            sent += budget;
            now = pacer.ready_at().max(now);
        }
        let line = Rate::from_bps(1_250_000_000).bytes_in(now.since(start));
        assert!(sent <= line + 64_000, "{sent} > {line}");
    }

    #[test]
    fn a_limited_burst_passes_a_bucket_of_that_size_however_late_the_wakeups() {
        const RATE: u64 = 250_000_000;
        for burst in [4_000, 32 << 10, 1 << 20] {
            let mut pacer = pacer(RATE);
            pacer.limit_burst(Some(burst));
            let (mut now, mut filled) = (Time::from_ns(SECOND_NS), Time::from_ns(SECOND_NS));
            let rate = Rate::from_bps(RATE);
            let (mut tokens, mut sent) = (burst, 0);
            pacer.handle_idle(now);
            for wakeup in 0_u64..20_000 {
                tokens = burst.min(tokens + rate.bytes_in(now.since(filled)) + 1);
                filled = now;
                let budget = pacer.budget_bytes(now);
                assert!(budget <= tokens, "{budget} of {tokens}");
                pacer.handle_sent(now, budget);
                tokens -= budget;
                sent += budget;
                let late_ns = wakeup * 7_919 % 64 * wakeup * 104_729 % 200_000;
                now = pacer.ready_at().max(now).after(late_ns);
            }
            let could = rate.bytes_in(now.since(Time::from_ns(SECOND_NS)));
            assert!(
                burst < 32 << 10 || sent > could * 97 / 100,
                "{sent} of {could}"
            );
        }
    }

    #[test]
    fn idleness_earns_no_burst() {
        let mut pacer = pacer(1_000_000_000);
        let now = Time::from_ns(SECOND_NS);
        pacer.handle_idle(now);
        pacer.handle_sent(now, 64_000);
        assert!(pacer.ready_at() > now);
        assert_eq!(pacer.ready_at().since(now), 512_000);
    }
}
