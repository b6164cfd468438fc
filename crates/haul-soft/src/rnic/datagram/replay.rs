//! Which numbers of sealed datagrams have come.

/// Size of the window below the highest number; lower numbers count as replayed.
const WINDOW: u64 = 65_536;
const WORDS: usize = 1_024;

/// See the module. Without memory as long as numbers come in their order.
#[derive(Debug, Default)]
pub(super) struct Replay {
    /// The number after the highest.
    next: u64,
    /// Everything below counts as seen. `floor <= next <= floor + WINDOW`, and `floor == next`
    /// without bits.
    floor: u64,
    /// Bit `number % WINDOW`, from the floor on.
    bits: Option<Box<[u64; WORDS]>>,
}

impl Replay {
    /// Whether a number has not come yet, as far as is known.
    pub(super) fn is_new(&self, number: u64) -> bool {
        number >= self.next || number >= self.floor && !self.has(number)
    }

    /// A number has come that is new.
    pub(super) fn note(&mut self, number: u64) {
        if number == self.next && self.bits.is_none() {
            self.next += 1;
            self.floor = self.next;
            return;
        }
        let bits = self.bits.get_or_insert_with(|| Box::new([0; WORDS]));
        if number >= self.next {
            if number - self.next >= WINDOW {
                bits.fill(0);
            } else {
                for skipped in self.next..=number {
                    let (word, bit) = place(skipped);
                    bits[word] &= !bit;
                }
            }
            self.next = number + 1;
            self.floor = self.floor.max(self.next.saturating_sub(WINDOW));
        }
        let (word, bit) = place(number);
        bits[word] |= bit;
    }

    fn has(&self, number: u64) -> bool {
        let (word, bit) = place(number);
        self.bits.as_ref().is_none_or(|bits| bits[word] & bit != 0)
    }
}

fn place(number: u64) -> (usize, u64) {
    let at = number % WINDOW;
    let word = usize::try_from(at / 64).unwrap_or(0);
    (word, 1 << (at % 64))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn numbers_in_order_take_no_memory_and_do_not_come_twice() {
        let mut replay = Replay::default();
        for number in 0..100_000 {
            assert!(replay.is_new(number));
            replay.note(number);
            assert!(!replay.is_new(number) && !replay.is_new(number / 2));
        }
        assert!(replay.bits.is_none());
    }

    #[test]
    fn whatever_the_order_no_number_is_new_twice_and_young_ones_are_new_once() {
        let mut state = 7_u64;
        for spread in [3, 1_000, 65_000, 200_000] {
            let (mut replay, mut seen, mut highest) = (Replay::default(), HashSet::new(), 0);
            for step in 0..50_000_u64 {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let number = step + (state >> 33) % spread;
                let is_young = number + WINDOW > highest;
                let is_new = replay.is_new(number);
                assert!(!(is_new && seen.contains(&number)), "{number} twice");
                assert!(is_new || seen.contains(&number) || !is_young, "{number}");
                if is_new {
                    replay.note(number);
                    seen.insert(number);
                    highest = highest.max(number);
                }
            }
        }
    }
}
