//! Numbers, key generations and the replay window of sealed datagrams (docs/protocol/udt.md). The
//! cryptography is the engine's.

use haul_cc::Time;

use crate::wire::{Sealed, phase_and_number};

/// How many numbers below the highest one a receiver still takes: at least so many, …
const WINDOW: u64 = 1 << 16;
/// … more if they pass in less time than this, as they do above 10 Gb/s, …
const WINDOW_NS: u64 = 79 * haul_cc::time::MILLISECOND_NS;
/// … and never more than that.
const WINDOW_MAX: u64 = 1 << 22;
/// Datagrams that one key seals at most.
const KEY_MAX: u64 = 1 << 23;
/// A key replaced keeps opening late datagrams for so many retransmission timeouts.
const PREVIOUS_TIMEOUTS: u64 = 3;
/// The number on the wire has 31 bits.
const WIRE_RANGE: u64 = 1 << 31;

/// Datagrams of a sealed connection that were not taken, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Refused {
    /// Without a seal, or too short for one.
    pub unsealed: u64,
    /// Not sealed by the peer under a key in use, or modified on the path.
    pub forged: u64,
    /// With a repeated number, or one too old to check.
    pub replayed: u64,
}

/// The keys that open the peer's datagrams.
pub trait Opener {
    /// Opens `text`, ciphertext and tag, in place and returns the length of the plaintext at its
    /// beginning; none where it was not sealed with `head` under that key and number. The first
    /// datagram that opens under the next generation makes that the present one.
    fn open(&mut self, sealed: Sealed, head: &[u8], text: &mut [u8]) -> Option<usize>;

    /// Erases the key of the generation before the present one.
    fn forget_previous(&mut self);
}

/// The state of one end.
#[derive(Debug)]
pub(crate) struct Numbering {
    /// The next datagram's number.
    next: u64,
    /// The generation that this end seals with, and its first number.
    generation: u64,
    since: u64,
    rekey_packets: u64,
    /// The latest generation of the peer's that opened a datagram, and its lowest number so far.
    peer_generation: u64,
    peer_since: u64,
    /// Until when the generation before that opens.
    previous_until: Option<Time>,
    /// One past the highest number that was opened.
    end: u64,
    /// Of the numbers below `end`, as many as it has bits: which were opened, by number modulo
    /// that.
    opened: Box<[u64]>,
    /// When the window was last compared with the time in which its numbers pass, and `end` then.
    compared: (Time, u64),
    pub(crate) refused: Refused,
}

impl Numbering {
    /// Begins with generation 0 in both directions. Keys change after `rekey_packets` datagrams of
    /// one direction.
    pub(crate) fn new(rekey_packets: u64) -> Self {
        Self {
            next: 0,
            generation: 0,
            since: 0,
            rekey_packets,
            peer_generation: 0,
            peer_since: 0,
            previous_until: None,
            end: 0,
            opened: bits(WINDOW, 0),
            compared: (Time::ZERO, 0),
            refused: Refused::default(),
        }
    }

    /// Numbers `count` datagrams that leave now and returns the first; none where the key has
    /// sealed all that it may and the peer does not follow to the next.
    pub(crate) fn assign(&mut self, count: usize) -> Option<Sealed> {
        // A datagram of the peer's under this generation acknowledges it.
        let is_acknowledged = self.generation == self.peer_generation;
        if is_acknowledged && self.next - self.since >= self.rekey_packets {
            self.begin(self.generation + 1);
        }
        let first = Sealed {
            generation: self.generation,
            number: self.next,
        };
        let end = self.next + count as u64;
        (end - self.since <= KEY_MAX).then(|| {
            self.next = end;
            first
        })
    }

    fn begin(&mut self, generation: u64) {
        self.generation = generation;
        self.since = self.next;
    }

    /// Reads which key and number would open a datagram; none, and it is counted, where none may.
    pub(crate) fn examine(&mut self, now: Time, datagram: &[u8]) -> Option<Sealed> {
        let Some((phase, number)) = phase_and_number(datagram) else {
            self.refused.unsealed += 1;
            return None;
        };
        let number = self.extend(number);
        if self.is_replayed(number) {
            self.refused.replayed += 1;
            return None;
        }
        let generation = if phase == (self.peer_generation & 1 == 1) {
            self.peer_generation
        } else if number >= self.peer_since {
            self.peer_generation + 1
        } else if self.previous_until.is_some_and(|until| now < until) {
            self.peer_generation - 1
        } else {
            self.refused.replayed += 1;
            return None;
        };
        Some(Sealed { generation, number })
    }

    /// The number whose lower 31 bits these are and that is closest to the expected one.
    fn extend(&self, low: u32) -> u64 {
        let expected = self.end;
        let candidate = expected - expected % WIRE_RANGE + u64::from(low);
        if candidate + WIRE_RANGE / 2 <= expected {
            candidate + WIRE_RANGE
        } else if candidate > expected + WIRE_RANGE / 2 {
            candidate.checked_sub(WIRE_RANGE).unwrap_or(candidate)
        } else {
            candidate
        }
    }

    fn is_replayed(&self, number: u64) -> bool {
        if number >= self.end {
            return false;
        }
        let (word, bit) = self.place(number);
        number + self.window() < self.end || self.opened[word] & bit != 0
    }

    /// Numbers of the replay window, a power of two.
    fn window(&self) -> u64 {
        self.opened.len() as u64 * 64
    }

    /// Returns the place of a number's bit.
    fn place(&self, number: u64) -> (usize, u64) {
        place(number, self.window())
    }

    /// Doubles the window if its numbers have passed faster than a datagram may be late.
    fn fit_window(&mut self, now: Time) {
        let (then, end) = self.compared;
        if self.end < end + self.window() {
            return;
        }
        self.compared = (now, self.end);
        if now.since(then) >= WINDOW_NS || self.window() >= WINDOW_MAX {
            return;
        }
        // Nobody knows which of the numbers below the window were opened: none of them is taken.
        let numbers = self.end - self.window()..self.end;
        let wider = bits(2 * self.window(), u64::MAX);
        let narrow = std::mem::replace(&mut self.opened, wider);
        for number in numbers.clone() {
            let (word, bit) = place(number, numbers.end - numbers.start);
            if narrow[word] & bit == 0 {
                let (word, bit) = self.place(number);
                self.opened[word] &= !bit;
            }
        }
    }

    /// Records that a datagram was opened, and is therefore authentic.
    pub(crate) fn note_opened(&mut self, now: Time, sealed: Sealed, timeout_ns: u64) {
        let Sealed { generation, number } = sealed;
        // Clears the bits of packets that leave the window, for reuse.
        for passed in self.end.max(number.saturating_sub(self.window()))..number {
            let (word, bit) = self.place(passed);
            self.opened[word] &= !bit;
        }
        self.end = self.end.max(number + 1);
        let (word, bit) = self.place(number);
        self.opened[word] |= bit;
        self.fit_window(now);
        if generation > self.peer_generation {
            self.peer_generation = generation;
            self.peer_since = number;
            self.previous_until = Some(now.after(PREVIOUS_TIMEOUTS * timeout_ns));
            if generation > self.generation {
                self.begin(generation);
            }
        } else if generation == self.peer_generation {
            self.peer_since = self.peer_since.min(number);
        }
    }

    /// Whether the key before the peer's present one has opened its last datagram, once.
    pub(crate) fn take_expired(&mut self, now: Time) -> bool {
        self.previous_until.take_if(|until| now >= *until).is_some()
    }
}

/// Returns the place of a number's bit in a map of `window` bits, a power of two.
fn place(number: u64, window: u64) -> (usize, u64) {
    let at = number & (window - 1);
    (usize::try_from(at / 64).unwrap_or(0), 1 << (at % 64))
}

/// Makes a map of `count` bits out of words that are `word`.
fn bits(count: u64, word: u64) -> Box<[u64]> {
    vec![word; usize::try_from(count / 64).unwrap_or(0)].into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{HEADER_LEN, SEAL_LEN};

    const RTO_NS: u64 = 1_000;

    fn at(ns: u64) -> Time {
        Time::from_ns(ns)
    }

    fn datagram(generation: u64, number: u64) -> Vec<u8> {
        let head = Sealed { generation, number }.head(&[0; HEADER_LEN]);
        [&head[..], &[0; SEAL_LEN]].concat()
    }

    /// Examines a datagram of the peer's, which opens.
    fn arrive(
        numbering: &mut Numbering,
        now: Time,
        generation: u64,
        number: u64,
    ) -> Option<Sealed> {
        let examined = numbering.examine(now, &datagram(generation, number));
        if let Some(sealed) = examined {
            numbering.note_opened(now, sealed, RTO_NS);
        }
        examined
    }

    fn sealed(generation: u64, number: u64) -> Option<Sealed> {
        Some(Sealed { generation, number })
    }

    #[test]
    fn a_number_opens_once_in_any_order_within_the_window() {
        let mut numbering = Numbering::new(1 << 22);
        let order = [0, 7, 3, 200_000, 200_001 - WINDOW, 199_999, 1 << 20];
        // Slowly, so that the window stays as it is.
        for (number, turn) in order.into_iter().zip(1..) {
            let now = at(turn * WINDOW_NS);
            assert_eq!(arrive(&mut numbering, now, 0, number), sealed(0, number));
        }
        for number in order {
            assert_eq!(arrive(&mut numbering, at(0), 0, number), None);
        }
        // One past the window, and one within it.
        let highest = 1 << 20;
        assert_eq!(arrive(&mut numbering, at(0), 0, highest - WINDOW), None);
        let last = highest + 1 - WINDOW;
        assert_eq!(arrive(&mut numbering, at(0), 0, last), sealed(0, last));
        assert_eq!(numbering.refused.replayed, 8);
    }

    #[test]
    fn every_number_is_taken_once_however_they_arrive() {
        let mut numbering = Numbering::new(1 << 22);
        let mut taken = std::collections::BTreeSet::new();
        let mut state = 1_u64;
        for step in 0..300_000_u64 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let number = step.saturating_sub((state >> 33) % 70_000);
            let is_new = !taken.contains(&number);
            let is_near = number + WINDOW > numbering.end.saturating_sub(1);
            let expected = if is_new && is_near {
                sealed(0, number)
            } else {
                None
            };
            let now = at(step * 2_000);
            assert_eq!(arrive(&mut numbering, now, 0, number), expected, "{step}");
            if is_new && is_near {
                taken.insert(number);
            }
        }
    }

    #[test]
    fn the_window_grows_with_the_rate_and_takes_no_number_twice() {
        let mut numbering = Numbering::new(1 << 22);
        // One number in three is lost, at 50 million a second.
        let end = 40 * WINDOW;
        for number in (0..end).filter(|number| number % 3 > 0) {
            assert_eq!(
                arrive(&mut numbering, at(number * 20), 0, number),
                sealed(0, number)
            );
        }
        assert_eq!(numbering.window(), 32 * WINDOW);
        // It last grew at 31 times the first window, from 16 times that: what had left it by then
        // is not taken again.
        for number in (0..14 * WINDOW).chain(16 * WINDOW..end) {
            let expected = sealed(0, number).filter(|_| number % 3 == 0 && number > 15 * WINDOW);
            assert_eq!(
                arrive(&mut numbering, at(end * 20), 0, number),
                expected,
                "{number}"
            );
        }
    }

    #[test]
    fn numbers_are_extended_across_the_wrap_of_their_31_bits() {
        let mut numbering = Numbering::new(1 << 22);
        for wrap in 1..5 {
            let middle = wrap * WIRE_RANGE;
            for number in [middle - 3, middle + 2, middle - 1, middle + WIRE_RANGE / 2] {
                assert_eq!(arrive(&mut numbering, at(0), 0, number), sealed(0, number));
            }
        }
    }

    #[test]
    fn a_forged_number_moves_nothing() {
        let mut numbering = Numbering::new(1 << 22);
        arrive(&mut numbering, at(0), 0, 5);
        // Examined and not opened.
        let far = numbering.examine(at(0), &datagram(1, 1 << 29));
        assert_eq!(far, sealed(1, 1 << 29));
        assert_eq!(arrive(&mut numbering, at(0), 0, 6), sealed(0, 6));
        assert_eq!((numbering.end, numbering.peer_generation), (7, 0));
        let short = [0; HEADER_LEN + SEAL_LEN - 1];
        assert_eq!(numbering.examine(at(0), &short), None);
        assert_eq!(numbering.refused.unsealed, 1);
    }

    #[test]
    fn a_key_change_waits_for_the_acknowledgement_of_the_one_before() {
        let mut numbering = Numbering::new(100);
        let generation = |numbering: &mut Numbering| numbering.assign(50).map(|it| it.generation);
        assert_eq!(generation(&mut numbering), Some(0));
        assert_eq!(generation(&mut numbering), Some(0));
        assert_eq!(generation(&mut numbering), Some(1));
        for _ in 0..10 {
            assert_eq!(generation(&mut numbering), Some(1), "not acknowledged");
        }
        arrive(&mut numbering, at(0), 0, 0);
        assert_eq!(generation(&mut numbering), Some(1), "an older key's");
        arrive(&mut numbering, at(0), 1, 1);
        assert_eq!(generation(&mut numbering), Some(2));
    }

    #[test]
    fn a_key_never_seals_more_than_it_may() {
        let mut numbering = Numbering::new(1 << 22);
        let (mut under_first, mut under_second) = (0, 0);
        while let Some(first) = numbering.assign(64) {
            match first.generation {
                0 => under_first += 64,
                _ => under_second += 64,
            }
            assert!(under_second <= KEY_MAX);
        }
        assert_eq!((under_first, under_second), (1 << 22, KEY_MAX));
        arrive(&mut numbering, at(0), 1, 0);
        assert_eq!(numbering.assign(64).map(|it| it.generation), Some(2));
    }

    #[test]
    fn an_end_follows_its_peer_and_takes_late_datagrams_for_three_timeouts() {
        let mut numbering = Numbering::new(100);
        for number in 0..10 {
            arrive(&mut numbering, at(0), 0, number);
        }
        assert_eq!(arrive(&mut numbering, at(0), 1, 20), sealed(1, 20));
        assert_eq!(numbering.assign(1).map(|it| it.generation), Some(1));
        // Reordered: some of the new key's came before others of it, some of the old key's late.
        assert_eq!(arrive(&mut numbering, at(10), 1, 15), sealed(1, 15));
        assert_eq!(arrive(&mut numbering, at(10), 0, 12), sealed(0, 12));
        assert!(!numbering.take_expired(at(3 * RTO_NS - 1)));
        assert_eq!(arrive(&mut numbering, at(3 * RTO_NS), 0, 13), None);
        assert!(numbering.take_expired(at(3 * RTO_NS)));
        assert!(!numbering.take_expired(at(3 * RTO_NS)));
        assert_eq!(arrive(&mut numbering, at(4 * RTO_NS), 2, 21), sealed(2, 21));
    }
}
