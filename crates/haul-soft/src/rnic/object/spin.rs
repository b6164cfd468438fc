//! How a thread that finds nothing waits: it *looks* for arrivals for a moment before it sleeps, or
//! it *sleeps* at once.
//!
//! Looking saves what a wake-up across processors costs, some 50 µs on virtual machines; where the
//! peer needs this very processor, it only keeps the answer from being made. Which of the two it is
//! shows in how long waits take. So now and then the other way is tried, and the quicker one is
//! taken; where they are equal, sleeping, which leaves the processor to others.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// How long a thread looks before it sleeps, ns: a few times what a wake-up costs, for the peer may
/// have to be woken too. It does not yield meanwhile: to a scheduler that is more than a moment,
/// and any idle thread may take it.
const LOOK_NS: u64 = 200_000;
/// Waits that are longer are all the same, ns.
const LONG_NS: u64 = 4 * LOOK_NS;
/// Waits that the usual way's figure is made of.
const SMOOTHING: u64 = 32;
/// Waits between two tries of the other way: few after a change, and ever more while it does not
/// pay.
const TRY_EVERY_MIN: u32 = 16;
const TRY_EVERY_MAX: u32 = 2_048;

/// See the module. Threads that share one disturb each other's figures, and nothing else.
#[derive(Debug)]
pub(super) struct SpinPolicy {
    /// The way that is the quicker one of late.
    looks: AtomicBool,
    /// How long waits take, ns, smoothed.
    looking_ns: AtomicU64,
    sleeping_ns: AtomicU64,
    /// The quicker way's figure when the other one was last tried: another one calls for tries.
    settled_ns: AtomicU64,
    /// Waits between two tries, and how many are left until the next.
    left: AtomicU32,
    try_every: AtomicU32,
}

/// A wait that has begun.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wait {
    pub(super) since_ns: u64,
    pub(super) looks: bool,
}

impl Wait {
    /// Whether it is time to sleep.
    pub(super) fn is_asleep(&self, now_ns: u64) -> bool {
        !self.looks || now_ns.saturating_sub(self.since_ns) >= LOOK_NS
    }
}

impl SpinPolicy {
    pub(super) fn new() -> Self {
        Self {
            looks: AtomicBool::new(true),
            looking_ns: AtomicU64::new(0),
            sleeping_ns: AtomicU64::new(LOOK_NS),
            settled_ns: AtomicU64::new(0),
            left: AtomicU32::new(TRY_EVERY_MIN),
            try_every: AtomicU32::new(TRY_EVERY_MIN),
        }
    }

    /// Nothing is there at `now_ns`.
    pub(super) fn begin(&self, now_ns: u64) -> Wait {
        let usual = self.looks.load(Ordering::Relaxed);
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        Wait {
            since_ns: now_ns,
            looks: usual != (left == 0),
        }
    }

    /// Something is there at `now_ns`.
    pub(super) fn end(&self, wait: Wait, now_ns: u64) {
        let took_ns = now_ns.saturating_sub(wait.since_ns).min(LONG_NS);
        let usual = self.looks.load(Ordering::Relaxed);
        let tried = wait.looks != usual;
        let before_ns = self.figure(wait.looks).load(Ordering::Relaxed);
        let after_ns = if tried {
            // Tries are rare, so each counts for much.
            u64::midpoint(before_ns, took_ns)
        } else {
            // One wait, however long, changes little; but where every twentieth is long, the others
            // do not make up for it.
            before_ns - before_ns / SMOOTHING + took_ns / SMOOTHING
        };
        self.figure(wait.looks).store(after_ns, Ordering::Relaxed);
        let looking_ns = self.looking_ns.load(Ordering::Relaxed);
        let sleeping_ns = self.sleeping_ns.load(Ordering::Relaxed);
        let looks = looking_ns < sleeping_ns / 5 * 4;
        let settled_ns = self.settled_ns.load(Ordering::Relaxed);
        let apart = |more: u64, less: u64| more > 2 * less + LONG_NS / SMOOTHING;
        let changed = !tried && (apart(after_ns, settled_ns) || apart(settled_ns, after_ns));
        if looks != usual || changed {
            self.looks.store(looks, Ordering::Relaxed);
            self.settle(looks, TRY_EVERY_MIN);
        } else if tried {
            let every = self.try_every.load(Ordering::Relaxed);
            self.settle(usual, (2 * every).min(TRY_EVERY_MAX));
        }
    }

    fn figure(&self, looks: bool) -> &AtomicU64 {
        if looks {
            &self.looking_ns
        } else {
            &self.sleeping_ns
        }
    }

    fn settle(&self, looks: bool, every: u32) {
        let figure_ns = self.figure(looks).load(Ordering::Relaxed);
        self.settled_ns.store(figure_ns, Ordering::Relaxed);
        self.try_every.store(every, Ordering::Relaxed);
        self.left.store(every, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many waits, each of which takes what `took_ns` says of its way; how many of the last half
    /// looked.
    fn carry_out(spin: &SpinPolicy, waits: u32, took_ns: impl Fn(bool) -> u64) -> u32 {
        let mut now_ns = 1;
        let mut looked = 0;
        for number in 0..waits {
            let wait = spin.begin(now_ns);
            now_ns += took_ns(wait.looks);
            spin.end(wait, now_ns);
            looked += u32::from(wait.looks && number >= waits / 2);
        }
        looked
    }

    const WAKE_NS: u64 = 50_000;

    #[test]
    fn it_looks_where_a_wake_up_costs_more_and_sleeps_where_the_peer_needs_the_processor() {
        let apart = |looks: bool| if looks { 5_000 } else { WAKE_NS };
        let shared = |looks: bool| if looks { LOOK_NS + 5_000 } else { 5_000 };
        let spin = SpinPolicy::new();
        for _ in 0..3 {
            assert!(carry_out(&spin, 4_000, apart) > 1_980);
            assert!(carry_out(&spin, 4_000, shared) < 20);
        }
    }

    #[test]
    fn long_waits_are_slept_through() {
        let spin = SpinPolicy::new();
        let long = |looks: bool| 2_000_000 + if looks { 0 } else { WAKE_NS };
        assert!(carry_out(&spin, 4_000, long) < 20);
    }

    #[test]
    fn two_that_sleep_wake_each_other_up_for_good() {
        // Each end's wait is its own wake-up, if it slept, and the peer's.
        let ends = [SpinPolicy::new(), SpinPolicy::new()];
        for end in &ends {
            carry_out(end, 4_000, |_| 2_000_000);
        }
        let mut slept = 0;
        let mut peer_slept = true;
        for number in 0..8_000 {
            let end = &ends[number % 2];
            let wait = end.begin(1);
            let own = if wait.looks { 0 } else { WAKE_NS };
            let peers = if peer_slept { WAKE_NS } else { 0 };
            end.end(wait, 1 + 2_500 + own + peers);
            peer_slept = !wait.looks;
            slept += u32::from(!wait.looks && number >= 4_000);
        }
        assert!(slept < 20, "{slept}");
    }

    #[test]
    fn a_rare_long_wait_changes_nothing() {
        let spin = SpinPolicy::new();
        carry_out(&spin, 4_000, |looks| if looks { 5_000 } else { WAKE_NS });
        for _ in 0..20 {
            carry_out(&spin, 1, |_| 10_000_000);
            let looked = carry_out(&spin, 100, |looks| if looks { 5_000 } else { WAKE_NS });
            assert!(looked > 40, "{looked}");
        }
    }
}
