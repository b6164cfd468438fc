//! How much memory, how large a read, how many at a time, how fast: from the path's rate, round
//! trip, reads and policer.

use crate::time::{SECOND_NS, Time};
pub use crate::wire::Mode;

/// Least bytes of a region (part B3, sizing).
pub const REGION_BYTES_MIN: u64 = 1 << 20;
/// Least bytes of a read where no policer asks for less (part B3, read depth).
pub const CHUNK_MIN: u32 = 64 << 10;
/// Bytes that may be asked for where round trips are short.
const FLIGHT_MIN: u64 = 4 << 20;
/// The assumed rate of an unmeasured path, bits per second. A lower one would leave a long path
/// idle while reads and ring grow, one or two round trips for each doubling.
pub(crate) const RATE_START_BPS: u64 = 500_000_000;

/// Measurements of a segment's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathEstimate {
    /// Rate, bits per second.
    pub rate_bps: u64,
    /// Round trip without queues, ns.
    pub rtt_ns: u64,
    /// Burst that a policer lets pass, bytes; `None` without one.
    pub burst_bytes: Option<u64>,
    /// Largest message of the channel, bytes.
    pub message_max: u32,
    /// Reads that may be outstanding (ORD).
    pub reads_max: u16,
}

/// The sizes that follow from a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Bytes of a read.
    pub chunk: u32,
    /// Reads outstanding at a time.
    pub depth: u16,
    /// Bytes that may be asked for back to back.
    pub bucket_bytes: u64,
    /// The reads that the path allows do not fill it: more ORD, or larger messages, would.
    pub starved: bool,
}

/// Bytes that `rate_bps` moves in `ns`.
#[must_use]
pub fn octets_in(rate_bps: u64, ns: u64) -> u64 {
    let octets = u128::from(rate_bps) * u128::from(ns) / (8 * u128::from(SECOND_NS));
    u64::try_from(octets).unwrap_or(u64::MAX)
}

/// Bytes of a ring of `regions` that never makes the path wait: of N regions one is being filled
/// and one drained, so that `B (N - 2) / N` is in flight (part B3, sizing), which must be what the
/// path moves until a region is free again.
#[must_use]
pub fn ring_bytes(rate_bps: u64, rtt_ns: u64, regions: u16, mode: Mode) -> u64 {
    let flight = octets_in(rate_bps, rtt_ns.saturating_mul(mode.round_trips()));
    let regions = u64::from(regions.max(3));
    flight.saturating_mul(regions).div_ceil(regions - 2)
}

impl Plan {
    /// Plans for a path: `depth * chunk` covers twice what is in flight between a read and its
    /// answer, one round trip, so that the path shows whether it carries more than is known; a read
    /// is no more than half of the policer's burst, for its answer leaves at line rate (paper
    /// §V.C).
    #[must_use]
    pub fn for_path(path: &PathEstimate) -> Self {
        let bdp = octets_in(path.rate_bps, path.rtt_ns);
        let reads = u64::from(path.reads_max.max(1));
        let most = u64::from(path.message_max.max(1));
        let most = path
            .burst_bytes
            .map_or(most, |burst| most.min((burst / 2).max(1)));
        let flight = bdp.saturating_mul(2).max(FLIGHT_MIN);
        let chunk = flight
            .div_ceil(reads)
            .clamp(u64::from(CHUNK_MIN).min(most), most);
        // One more than that: while the last bytes of one answer arrive, the next read is in
        // flight.
        let depth = (flight.div_ceil(chunk) + 1).min(reads);
        let bucket = path
            .burst_bytes
            .map_or(u64::MAX, |burst| (burst / 2).max(chunk));
        Self {
            chunk: u32::try_from(chunk).unwrap_or(u32::MAX),
            depth: u16::try_from(depth).unwrap_or(u16::MAX),
            bucket_bytes: bucket,
            starved: depth * chunk < bdp,
        }
    }
}

/// A token bucket: bytes that may be requested now, and when more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pacer {
    /// `None`: no limit.
    rate_bps: Option<u64>,
    bucket: u64,
    /// `0 <= level <= bucket`
    level: u64,
    at: Time,
}

impl Pacer {
    pub(crate) const fn new() -> Self {
        Self {
            rate_bps: None,
            bucket: u64::MAX,
            level: u64::MAX,
            at: Time::from_ns(0),
        }
    }

    pub(crate) fn set(&mut self, now: Time, rate_bps: Option<u64>, bucket: u64) {
        self.refill(now);
        self.rate_bps = rate_bps.filter(|rate| *rate > 0);
        self.bucket = bucket;
        self.level = self.level.min(bucket);
    }

    fn refill(&mut self, now: Time) {
        let Some(rate) = self.rate_bps else {
            (self.level, self.at) = (self.bucket, now);
            return;
        };
        let gained = octets_in(rate, now.since(self.at));
        if gained > 0 {
            self.level = self.level.saturating_add(gained).min(self.bucket);
            // The remainder of a byte's time is carried over.
            self.at = self
                .at
                .after(time_for(rate, gained).min(now.since(self.at)));
        }
    }

    /// Takes `octets`, or returns when they will be available.
    pub(crate) fn take(&mut self, now: Time, octets: u64) -> Result<(), Time> {
        self.refill(now);
        let Some(rate) = self.rate_bps else {
            return Ok(());
        };
        let needed = octets.min(self.bucket);
        if self.level < needed {
            return Err(self.at.after(time_for(rate, needed - self.level)));
        }
        self.level -= needed;
        Ok(())
    }
}

/// Time that `octets` take, ns, rounded up.
fn time_for(rate_bps: u64, octets: u64) -> u64 {
    let ns = u128::from(octets) * 8 * u128::from(SECOND_NS);
    u64::try_from(ns.div_ceil(u128::from(rate_bps.max(1)))).unwrap_or(u64::MAX)
}

/// Round trips until the path counts as wanting a larger ring. Part B3 waits for four, and lets it
/// grow by half: at 100 ms that takes seconds.
const GROW_ROUNDS: u32 = 1;
/// Time after which a ring that was not used whole shrinks, ns.
const SHRINK_NS: u64 = 30 * SECOND_NS;

/// How much of the ring is used: doubles when the path waited for it through a round trip, shrinks
/// by a third when a third was idle for 30 s (part B3, sizing).
#[derive(Debug, Clone, Copy)]
pub(crate) struct RingSize {
    start: u64,
    /// `start <= least <= target <= most`
    least: u64,
    most: u64,
    /// The least that the RTT needs, regardless of `most`.
    needed: u64,
    /// The amount that the path has waited for, regardless of `most`.
    wanted: u64,
    target: u64,
    limited: u32,
    round_from: Time,
    was_limited: bool,
    full_at: Time,
}

impl RingSize {
    pub(crate) fn new(start: u64, most: u64) -> Self {
        let start = start.min(most);
        Self {
            start,
            least: start,
            most,
            needed: start,
            wanted: start,
            target: start,
            limited: 0,
            round_from: Time::default(),
            was_limited: false,
            full_at: Time::default(),
        }
    }

    pub(crate) const fn target(&self) -> u64 {
        self.target
    }

    /// No less than [`RATE_START_BPS`] needs over this round trip. Whether the target changed.
    pub(crate) fn on_rtt(&mut self, rtt_ns: u64, regions: u16, mode: Mode) -> bool {
        let before = self.target;
        self.needed = ring_bytes(RATE_START_BPS, rtt_ns, regions, mode);
        self.least = self.needed.clamp(self.start, self.most);
        self.target = self.target.max(self.least);
        self.target != before
    }

    /// The target without a limit.
    pub(crate) fn wanted(&self) -> u64 {
        self.wanted.max(self.needed).max(self.target)
    }

    /// Limits the target. Whether it changed.
    pub(crate) fn set_most(&mut self, most: u64) -> bool {
        let before = self.target;
        if most < self.most {
            self.wanted = self.start;
        }
        self.most = most.max(self.start);
        self.least = self.needed.clamp(self.start, self.most);
        self.target = self.target.clamp(self.least, self.most);
        self.target != before
    }

    /// The producer had bytes and no room.
    pub(crate) fn on_limited(&mut self) {
        self.was_limited = true;
    }

    /// `used` bytes are occupied. Whether the target changed.
    pub(crate) fn on_time(&mut self, now: Time, rtt_ns: u64, used: u64) -> bool {
        let before = self.target;
        if used > self.target / 3 * 2 {
            self.full_at = now;
        }
        if now.since(self.round_from) >= rtt_ns.max(1) {
            self.round_from = now;
            self.limited = if self.was_limited {
                self.limited + 1
            } else {
                0
            };
            self.was_limited = false;
            if self.limited >= GROW_ROUNDS {
                self.limited = 0;
                self.wanted = self.target.saturating_mul(2);
                self.target = self.wanted.min(self.most);
                self.full_at = now;
            }
        }
        if now.since(self.full_at) >= SHRINK_NS {
            self.target = (self.target / 3 * 2).max(self.least);
            self.wanted = self.target;
            self.full_at = now;
        }
        self.target != before
    }
}

/// Least bulk bytes in flight.
const FLIGHT_LEAST: u64 = 512 << 10;
/// Rounds of which the best counts.
const FLIGHT_ROUNDS: usize = 4;
/// Ends whose threads take turns need so long to answer, however near they are, ns.
const FLIGHT_ROUND_NS: u64 = SECOND_NS / 250;

/// The limit in flight: twice the bytes acknowledged in the time that a byte is in flight. More
/// would only queue before the path, ahead of connections with little data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flight {
    most: u64,
    /// Bytes acknowledged in each of the last rounds in which more waited.
    rounds: [u64; FLIGHT_ROUNDS],
    from: Time,
    acked: u64,
    waited: bool,
    has_begun: bool,
}

impl Default for Flight {
    fn default() -> Self {
        Self {
            most: FLIGHT_MIN,
            rounds: [0; FLIGHT_ROUNDS],
            from: Time::default(),
            acked: 0,
            waited: false,
            has_begun: false,
        }
    }
}

impl Flight {
    pub(crate) const fn most(&self) -> u64 {
        self.most
    }

    /// Before any measurement: the assumed capacity in `round_ns`.
    pub(crate) fn on_rtt(&mut self, round_ns: u64) {
        if !self.has_begun {
            self.most = octets_in(RATE_START_BPS, round_ns).max(FLIGHT_MIN);
        }
    }

    /// `octets` are acknowledged, and more waits for its turn or does not.
    pub(crate) fn on_acked(&mut self, now: Time, octets: u64, round_ns: u64, waits: bool) {
        self.acked += octets;
        self.waited |= waits;
        if now.since(self.from) < round_ns.max(FLIGHT_ROUND_NS) {
            return;
        }
        let (acked, waited) = (self.acked, self.waited);
        (self.acked, self.waited, self.from) = (0, false, now);
        // Intervals limited by the application are no measurement of the path.
        if !waited && acked <= self.most / 2 {
            return;
        }
        self.has_begun = true;
        self.rounds.rotate_right(1);
        self.rounds[0] = acked;
        let best = self.rounds.iter().max().copied().unwrap_or(0);
        self.most = (best * 2).max(self.most / 8 * 7).max(FLIGHT_LEAST);
    }
}

/// Intervals over which rates and round trips are remembered.
const MEMORY: usize = 10;
/// How long a round trip is remembered, ns.
const RTT_INTERVAL_NS: u64 = SECOND_NS;

/// Returns the measurements: the least RTT of ten seconds, the best rate of ten RTTs.
#[derive(Debug, Clone, Default)]
pub struct Estimate {
    rtts: [Option<u64>; MEMORY],
    rtt_from: Time,
    rates: [u64; MEMORY],
    rate_from: Time,
    octets: u64,
}

impl Estimate {
    /// Returns the round trip without queues, ns, as far as known.
    #[must_use]
    pub fn rtt_ns(&self) -> Option<u64> {
        self.rtts.iter().flatten().min().copied()
    }

    /// Returns the best recent rate, bits per second; 0 before anything arrived.
    #[must_use]
    pub fn rate_bps(&self) -> u64 {
        self.rates.iter().max().copied().unwrap_or(0)
    }

    pub(crate) fn on_rtt(&mut self, now: Time, rtt_ns: u64) {
        if self.rtts[0].is_none() || now.since(self.rtt_from) >= RTT_INTERVAL_NS {
            self.rtt_from = now;
            self.rtts.rotate_right(1);
            self.rtts[0] = Some(rtt_ns);
        }
        self.rtts[0] = self.rtts[0].map(|least| least.min(rtt_ns));
    }

    /// Whether an interval has ended, so that a plan may be made anew.
    pub(crate) fn on_arrival(&mut self, now: Time, octets: u64) -> bool {
        self.octets = self.octets.saturating_add(octets);
        let Some(rtt) = self.rtt_ns() else {
            return false;
        };
        let elapsed = now.since(self.rate_from);
        if elapsed < rtt.max(1) {
            return false;
        }
        // An idle interval is no measurement of the path.
        if elapsed < rtt.saturating_mul(4) {
            let bits = u128::from(self.octets) * 8 * u128::from(SECOND_NS);
            self.rates.rotate_right(1);
            self.rates[0] = u64::try_from(bits / u128::from(elapsed)).unwrap_or(u64::MAX);
        }
        (self.octets, self.rate_from) = (0, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const GBIT: u64 = 1_000_000_000;

    fn path(reads_max: u16, burst_bytes: Option<u64>) -> PathEstimate {
        PathEstimate {
            rate_bps: 10 * GBIT,
            rtt_ns: 100 * MS,
            burst_bytes,
            message_max: 16 << 20,
            reads_max,
        }
    }

    #[test]
    fn read_depth_follows_the_reads_allowed() {
        // Part B3: 125 MB in flight; 16 reads need 8 MiB each, 128 need 1 MiB, and as much again to
        // measure more.
        let few = Plan::for_path(&path(16, None));
        assert_eq!((few.chunk, few.depth, few.starved), (15_625_000, 16, false));
        let many = Plan::for_path(&path(128, None));
        assert_eq!((many.chunk, many.depth), (1_953_125, 128));
        let none = Plan::for_path(&PathEstimate {
            rate_bps: 0,
            ..path(128, None)
        });
        assert_eq!((none.chunk, none.depth), (CHUNK_MIN, 65));
    }

    #[test]
    fn a_policer_makes_reads_small_and_reports_when_they_are_too_few() {
        let plan = Plan::for_path(&path(16, Some(256 << 10)));
        assert_eq!((plan.chunk, plan.bucket_bytes), (128 << 10, 128 << 10));
        assert!(plan.starved, "16 reads of 128 KiB are not 125 MB");
        assert_eq!(
            Plan::for_path(&path(u16::MAX, Some(64 << 10))).chunk,
            32 << 10
        );
        assert!(!Plan::for_path(&path(u16::MAX, Some(64 << 10))).starved);
    }

    #[test]
    fn rings_need_what_part_b_says() {
        let of = |regions, mode| ring_bytes(10 * GBIT, 100 * MS, regions, mode);
        assert_eq!(of(3, Mode::Push), 375_000_000);
        assert_eq!(of(4, Mode::Push), 250_000_000);
        assert_eq!(of(8, Mode::Push), 166_666_667);
        assert_eq!(of(8, Mode::Pull), 333_333_334);
    }

    #[test]
    fn the_pacer_keeps_its_rate_and_its_burst() {
        let (mut pacer, mut now, mut sent) = (Pacer::new(), Time::from_ns(0), 0);
        pacer.set(now, Some(8_000_000), 10_000);
        while now < Time::from_ns(SECOND_NS) {
            match pacer.take(now, 1_000) {
                Ok(()) => sent += 1_000,
                Err(at) => {
                    assert!(at > now);
                    now = at;
                }
            }
            assert!(sent <= 10_000 + octets_in(8_000_000, now.as_ns()) + 1);
        }
        assert!(sent >= 1_000_000, "{sent} octets of a million");
    }

    #[test]
    fn a_ring_grows_when_it_limits_and_shrinks_when_idle() {
        let mut size = RingSize::new(1 << 20, 10 << 20);
        let mut now = Time::from_ns(0);
        for _ in 0..40 {
            now = now.after(100 * MS);
            size.on_limited();
            size.on_time(now, 100 * MS, size.target());
        }
        assert_eq!(size.target(), 10 << 20);
        for _ in 0..20 {
            now = now.after(30 * SECOND_NS);
            size.on_time(now, 100 * MS, 0);
        }
        assert_eq!(size.target(), 1 << 20);
    }

    #[test]
    fn a_ring_over_a_long_round_trip_begins_with_what_the_path_may_carry() {
        let of = |rtt_ms| {
            let mut size = RingSize::new(8 << 20, 64 << 20);
            let changed = size.on_rtt(rtt_ms * MS, 8, Mode::Pull);
            assert_eq!(changed, size.target() > 8 << 20);
            size
        };
        assert_eq!(of(20).target(), 8 << 20);
        assert_eq!(of(120).target(), 20_000_000);
        assert_eq!(of(1_000).target(), 64 << 20);
        // An idle one keeps that; one whose round trip turned out to be short does not.
        let (mut idle, now) = (of(120), Time::from_ns(30 * SECOND_NS));
        assert!(!idle.on_time(now, 120 * MS, 0));
        assert!(!idle.on_rtt(20 * MS, 8, Mode::Pull));
        assert!(idle.on_time(now.after(30 * SECOND_NS), 20 * MS, 0));
    }

    #[test]
    fn a_ring_is_no_larger_than_it_may_be_and_grows_when_it_may() {
        let mut size = RingSize::new(8 << 20, 64 << 20);
        assert!(!size.set_most(8 << 20));
        assert!(!size.on_rtt(SECOND_NS / 10, 8, Mode::Pull));
        assert_eq!(size.target(), 8 << 20);
        // The need of the path is remembered.
        let needed = ring_bytes(RATE_START_BPS, SECOND_NS / 10, 8, Mode::Pull);
        assert_eq!(size.wanted(), needed);
        assert!(size.set_most(12 << 20) && size.target() == 12 << 20);
        // So is the amount that the path has waited for.
        for round in 1..=u64::from(GROW_ROUNDS) + 1 {
            size.on_limited();
            size.on_time(Time::from_ns(round * SECOND_NS), SECOND_NS / 10, 12 << 20);
        }
        assert_eq!((size.target(), size.wanted()), (12 << 20, 24 << 20));
        assert!(size.set_most(64 << 20));
        assert_eq!(size.target(), needed);
        assert!(size.set_most(1) && size.target() == 8 << 20);
    }

    #[test]
    fn estimates_keep_the_least_round_trip_and_the_best_rate() {
        let (mut estimate, mut now) = (Estimate::default(), Time::from_ns(0));
        for rtt in [12, 10, 30] {
            estimate.on_rtt(now, rtt * MS);
        }
        assert_eq!(estimate.rtt_ns(), Some(10 * MS));
        for octets in [1_250, 12_500, 2_500] {
            now = now.after(10 * MS);
            assert!(estimate.on_arrival(now, octets));
        }
        assert_eq!(estimate.rate_bps(), 10_000_000);
        now = now.after(SECOND_NS);
        estimate.on_arrival(now, 1);
        assert_eq!(estimate.rate_bps(), 10_000_000);
    }
}
