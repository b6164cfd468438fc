//! How long packets may be: packetization-layer path MTU discovery (RFC 8899, DPLPMTUD).
//!
//! Sizes are those of IP packets, bytes. Most paths carry what both ends' interfaces carry, so a
//! connection begins with that, but not with more than [`START`]. A *raise* sends one probe of each
//! usual size above the one in use; the largest that the peer answers is used. If full packets seem
//! to get lost, a *check* sends a probe of the size in use and one of [`BASE`]. If the peer answers
//! only the short one twice, the path is a black hole for the long one: the size falls to [`BASE`],
//! and a raise finds what still passes. If it answers neither, the path is down, and the result is
//! not used. ICMP's "too big" messages (RFC 1191, RFC 8201) shorten this and are not needed.

use crate::time::{MILLISECOND_NS, SECOND_NS, Time};

/// Every path carries it: IPv6's minimum MTU (RFC 8200 §5). RFC 8899 §5.1.2 calls it `BASE_PLPMTU`.
pub const BASE: u32 = 1_280;
/// Longer packets are probed before they are used.
pub const START: u32 = 1_500;
/// Usual MTUs, and steps of 20 bytes where tunnels shorten Ethernet's (RFC 8899 §5.3.2 allows such
/// a table).
const SIZES: [u32; 16] = [
    9_000, 8_000, 4_352, 2_048, 1_500, 1_492, 1_480, 1_460, 1_440, 1_420, 1_400, 1_380, 1_360,
    1_340, 1_320, 1_300,
];
/// Rounds of probes without an answer that decide: RFC 8899 §5.1.2 has 3 probes, one at a time.
const ROUNDS: u32 = 2;
/// Rounds in which no probe was answered before a check gives up.
const SILENT_ROUNDS: u32 = 3;
/// An answer may be this much later than the RTT estimate.
const SLACK_NS: u64 = 20 * MILLISECOND_NS;
/// From one check to the next: on a path that is down, or loses much, they find nothing.
const REST_NS: u64 = SECOND_NS;
/// When the path may have become wider (RFC 8899 §5.1.1, `PMTU_RAISE_TIMER`).
const RAISE_NS: u64 = 600 * SECOND_NS;

/// The size of packets on one path, and the search for it.
#[derive(Debug)]
pub struct PathMtu {
    max: u32,
    /// `current <= max`
    current: u32,
    search: Option<Search>,
    /// Number of the latest search; probes carry it, so that late answers to older ones do not
    /// count.
    number: u16,
    raise_at: Option<Time>,
    /// The longest probe of the latest search, a raise that ended with no answer to it: that may
    /// be on its way. 0: none.
    unanswered: u32,
    /// No check begins before.
    rests_until: Time,
    /// The latest check drew no answer at all.
    is_silent: bool,
    /// When the size in use last fell.
    fell: Time,
}

#[derive(Debug, Clone, Copy)]
struct Search {
    purpose: Purpose,
    /// Probes are longer than this …
    above: u32,
    /// … and no longer than this.
    longest: u32,
    /// Probes of this round that are written.
    written: usize,
    rounds: u32,
    /// When the next round begins, or the search ends.
    due: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Raise,
    /// The peer answered the short probe in so many rounds before this one, and in this one.
    Check {
        short: u32,
        answered: bool,
    },
}

impl PathMtu {
    /// Starts with what both ends' interfaces carry, but not with more than [`START`].
    #[must_use]
    pub fn new(max: u32) -> Self {
        Self::starting_with(max, max.min(START))
    }

    /// Starts with `max`, which the user states.
    #[must_use]
    pub fn stated(max: u32) -> Self {
        Self::starting_with(max, max)
    }

    fn starting_with(max: u32, current: u32) -> Self {
        Self {
            max,
            current,
            search: None,
            number: 0,
            raise_at: (current < max).then_some(Time::ZERO),
            unanswered: 0,
            rests_until: Time::ZERO,
            is_silent: false,
            fell: Time::ZERO,
        }
    }

    /// Returns the size in use, bytes.
    #[must_use]
    pub const fn current(&self) -> u32 {
        self.current
    }

    /// Whether probes are sent and answers awaited.
    #[must_use]
    pub const fn is_searching(&self) -> bool {
        self.search.is_some()
    }

    /// Whether the latest check drew no answer: not even [`BASE`] passes, or nothing does.
    #[must_use]
    pub const fn is_silent(&self) -> bool {
        self.is_silent
    }

    /// Returns when the size in use last fell.
    #[must_use]
    pub const fn fell(&self) -> Time {
        self.fell
    }

    /// Stops probing longer sizes: packets travel in IP fragments from now on, so an answer would
    /// be no evidence of the path MTU.
    pub fn stop_raising(&mut self) {
        (self.max, self.raise_at, self.unanswered) = (self.current, None, 0);
        self.search = self
            .search
            .filter(|search| search.purpose != Purpose::Raise);
    }

    /// Whether a larger size is being probed, or is to be from the start.
    #[must_use]
    pub fn is_raising(&self) -> bool {
        let raises = |search: Search| search.purpose == Purpose::Raise;
        self.raise_at == Some(Time::ZERO) || self.search.is_some_and(raises)
    }

    /// Returns when [`PathMtu::handle_time`] has something to do.
    #[must_use]
    pub fn due(&self) -> Option<Time> {
        self.search.map(|search| search.due).or(self.raise_at)
    }

    /// Begins or ends what is due. Returns whether the size in use has fallen.
    pub fn handle_time(&mut self, now: Time) -> bool {
        if self.due().is_none_or(|due| now < due) {
            return false;
        }
        let Some(mut search) = self.search else {
            self.begin(now, Purpose::Raise, self.max);
            return false;
        };
        let falls = match &mut search.purpose {
            Purpose::Raise if search.rounds >= ROUNDS => {
                self.unanswered = search.longest;
                self.settle(now);
                return false;
            }
            Purpose::Raise => false,
            Purpose::Check { short, answered } => {
                *short += u32::from(std::mem::take(answered));
                *short >= ROUNDS
            }
        };
        if falls {
            let shorter = |&size: &u32| size < search.longest;
            (self.current, self.fell) = (BASE, now);
            let longest = SIZES.into_iter().find(shorter).unwrap_or(BASE);
            self.begin(now, Purpose::Raise, longest);
        } else if search.rounds >= SILENT_ROUNDS {
            self.search = None;
            self.is_silent = true;
        } else {
            search.written = 0;
            self.search = Some(search);
        }
        falls
    }

    /// Returns the next probe to write: its number and its size. Answers are expected within
    /// `timeout_ns`.
    pub fn poll_probe(&mut self, now: Time, timeout_ns: u64) -> Option<(u32, u32)> {
        let search = self.search.as_mut()?;
        let between = |size: &u32| *size > search.above && *size < search.longest;
        let size = match (search.purpose, search.written) {
            (_, 0) => Some(search.longest),
            (Purpose::Check { .. }, 1) => Some(BASE),
            (Purpose::Check { .. }, _) => None,
            (Purpose::Raise, written) => SIZES.into_iter().filter(between).nth(written - 1),
        };
        match size {
            Some(size) => {
                search.rounds += u32::from(search.written == 0);
                search.written += 1;
                search.due = now.after(timeout_ns + SLACK_NS);
                Some((u32::from(self.number) << 16 | size, size))
            }
            None => None,
        }
    }

    /// Takes the peer's answer to a probe. Returns whether the size in use has risen.
    pub fn handle_answer(&mut self, now: Time, number: u32) -> bool {
        let (of, size) = (number >> 16, number & 0xffff);
        if of != self.number.into() {
            return false;
        }
        let Some(search) = self.search.as_mut() else {
            // Nobody knew how long a round trip takes here.
            let rises = size > self.current && size <= self.unanswered;
            if rises {
                self.current = size;
                self.settle(now);
            }
            return rises;
        };
        self.is_silent = false;
        let is_longest = size == search.longest;
        match &mut search.purpose {
            Purpose::Raise => {
                let rises = size > self.current && size <= search.longest;
                if rises {
                    (self.current, search.above) = (size, size);
                }
                if is_longest {
                    self.settle(now);
                }
                rises
            }
            Purpose::Check { .. } if is_longest => {
                self.search = None;
                false
            }
            Purpose::Check { answered, .. } => {
                *answered |= size == BASE;
                false
            }
        }
    }

    /// Takes the kernel's report of a packet that was too long for a link of `mtu` bytes, if it is
    /// known. Returns whether the size in use has fallen. A forged message cannot bring it below
    /// [`BASE`] (RFC 8899 §4.6.2).
    pub fn handle_too_big(&mut self, now: Time, mtu: Option<u32>) -> bool {
        let Some(mtu) = mtu
            .map(|mtu| mtu.max(BASE))
            .filter(|&mtu| mtu < self.current)
        else {
            return false;
        };
        (self.current, self.fell, self.unanswered) = (mtu, now, 0);
        self.settle(now);
        true
    }

    /// Checks whether the path drops long packets for their length, unless a search is in progress.
    pub fn suspect(&mut self, now: Time) {
        if self.search.is_none() && self.current > BASE && now >= self.rests_until {
            let purpose = Purpose::Check {
                short: 0,
                answered: false,
            };
            self.begin(now, purpose, self.current);
            self.rests_until = now.after(REST_NS);
        }
    }

    fn begin(&mut self, now: Time, purpose: Purpose, longest: u32) {
        (self.number, self.unanswered) = (self.number.wrapping_add(1), 0);
        if purpose == Purpose::Raise {
            self.raise_at = None;
            if longest <= self.current {
                return self.settle(now);
            }
        }
        self.search = Some(Search {
            purpose,
            above: self.current,
            longest,
            written: 0,
            rounds: 0,
            due: now,
        });
    }

    fn settle(&mut self, now: Time) {
        self.search = None;
        self.raise_at = (self.current < self.max).then(|| now.after(RAISE_NS));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIMEOUT_NS: u64 = 100 * MILLISECOND_NS;

    #[test]
    fn where_ip_fragments_nothing_longer_is_probed() {
        let mut path = PathMtu::new(9_000);
        path.handle_time(Time::ZERO);
        assert!(path.poll_probe(Time::ZERO, TIMEOUT_NS).is_some());
        path.stop_raising();
        assert!(!path.is_raising());
        assert_eq!(path.due(), None);
        let later = Time::from_ns(3_600 * 1_000 * MILLISECOND_NS);
        assert!(!path.handle_time(later));
        assert_eq!(path.poll_probe(later, TIMEOUT_NS), None);
        assert_eq!(path.current(), START);
    }

    const RTT_NS: u64 = 50 * MILLISECOND_NS;

    fn after(ms: u64) -> Time {
        Time::from_ns(ms * MILLISECOND_NS)
    }

    /// Lets `path` search for `ms` on a path that carries `mtu`, loses the probes that `lost`
    /// names, and answers after [`RTT_NS`].
    fn search(path: &mut PathMtu, from: Time, ms: u64, mtu: u32, mut lost: impl FnMut() -> bool) {
        let mut answers = std::collections::VecDeque::new();
        for step in 0..ms {
            let now = from.after(step * MILLISECOND_NS);
            path.handle_time(now);
            while let Some((number, size)) = path.poll_probe(now, TIMEOUT_NS) {
                if size <= mtu && !lost() {
                    answers.push_back((now.after(RTT_NS), number));
                }
            }
            while answers.front().is_some_and(|(at, _)| *at <= now) {
                let (_, number) = answers.pop_front().unwrap();
                path.handle_answer(now, number);
            }
            assert!((BASE.min(path.max)..=path.max).contains(&path.current));
        }
    }

    /// The largest size of the table, or of both ends, that a path of `mtu` carries.
    fn best(mtu: u32, max: u32) -> u32 {
        let sizes = SIZES.into_iter().chain([max, BASE]);
        sizes
            .filter(|&size| size <= mtu && size <= max)
            .max()
            .unwrap()
    }

    proptest! {
        #[test]
        fn a_black_hole_ends_with_what_passes(mtu in BASE..9_300, max in BASE..9_217) {
            let mut path = PathMtu::new(max);
            path.suspect(after(0));
            search(&mut path, after(0), 2_000, mtu, || false);
            // A check that found nothing lets the raise begin.
            search(&mut path, after(2_000), 2_000, mtu, || false);
            prop_assert_eq!(path.current(), best(mtu, max));
            prop_assert!(!path.is_searching());
            // The path narrows, and becomes wide again.
            path.suspect(after(10_000));
            search(&mut path, after(10_000), 2_000, BASE, || false);
            prop_assert_eq!(path.current(), BASE);
            search(&mut path, after(700_000), 2_000, mtu, || false);
            prop_assert_eq!(path.current(), best(mtu, max));
        }

        #[test]
        fn loss_alone_leaves_most_of_the_size(seed in any::<u64>()) {
            let mut path = PathMtu::new(1_500);
            let mut state = seed;
            let mut lost = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                state >> 33 & 7 == 0
            };
            for round in 0..10 {
                path.suspect(after(round * 3_000));
                search(&mut path, after(round * 3_000), 2_000, 1_500, &mut lost);
            }
            prop_assert!(path.current() >= 1_400, "{}", path.current());
        }

        #[test]
        fn hints_answers_and_time_in_any_order_keep_it_in_bounds(
            max in 576_u32..9_217,
            steps in prop::collection::vec((0_u8..5, any::<u32>(), 0_u64..2_000), 1..60),
        ) {
            let (mut path, mut now) = (PathMtu::new(max), Time::ZERO);
            let mut sent = Vec::new();
            for (what, value, ms) in steps {
                now = now.after(ms * MILLISECOND_NS);
                match what {
                    0 => path.suspect(now),
                    1 => drop(path.handle_too_big(now, Some(value % 10_000))),
                    2 => drop(path.handle_answer(now, value)),
                    3 if !sent.is_empty() => {
                        let number = sent[value as usize % sent.len()];
                        path.handle_answer(now, number);
                    }
                    _ => drop(path.handle_time(now)),
                }
                for _ in 0..40 {
                    sent.extend(path.poll_probe(now, TIMEOUT_NS).map(|(number, _)| number));
                }
                prop_assert_eq!(path.poll_probe(now, TIMEOUT_NS), None, "a round ends");
                prop_assert!(path.current() >= BASE.min(max) && path.current() <= max);
            }
        }
    }

    #[test]
    fn an_outage_shortens_nothing_and_is_reported() {
        let mut path = PathMtu::new(1_500);
        path.suspect(after(0));
        search(&mut path, after(0), 2_000, 1_500, || true);
        assert!(path.is_silent() && path.current() == 1_500);
        path.suspect(after(2_000));
        search(&mut path, after(2_000), 2_000, 1_500, || false);
        assert!(!path.is_silent() && path.current() == 1_500);
    }

    #[test]
    fn a_late_answer_to_an_older_search_does_not_count() {
        let mut path = PathMtu::new(9_000);
        path.handle_time(after(0));
        let (old, size) = path.poll_probe(after(0), TIMEOUT_NS).unwrap();
        assert_eq!(size, 9_000);
        assert!(path.handle_too_big(after(1), Some(1_400)));
        path.suspect(after(2));
        assert!(!path.handle_answer(after(3), old));
        assert_eq!(path.current(), 1_400);
    }
}
