//! Missing packets: the gaps between the first missing packet and the highest that arrived.
//!
//! A lossy path has few gaps and a window has many packets, so the receiver keeps the gaps: arrival
//! in order costs nothing, and the memory is bounded, whatever the peer sends, by the number of
//! gaps that the window's length allows.

use std::collections::VecDeque;

use haul_cc::Time;

/// Gaps that may be kept whatever the window, and at most.
const HOLES_LEAST: usize = 1 << 15;
const HOLES_MOST: usize = 1 << 20;

/// A run of missing packets and the stream bytes it must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hole {
    /// First missing packet.
    pub(crate) start: u64,
    /// One past the last missing packet; `start < end`.
    pub(crate) end: u64,
    /// Stream offset at which the first missing packet begins.
    pub(crate) offset_start: u64,
    /// Stream offset at which the packet behind the hole begins; `offset_start <= offset_end`.
    pub(crate) offset_end: u64,
    /// When a packet behind it arrived first.
    pub(crate) noticed: Time,
    /// When it was last reported to a plain UDT peer.
    pub(crate) reported: Time,
}

/// The classification of an arriving packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Next in order.
    Next,
    /// Beyond missing ones: a hole opened before it.
    Ahead,
    /// Filled a hole that was noticed then.
    Filled(Time),
    /// Had arrived before.
    Duplicate,
    /// Would need more holes than are kept.
    Refused,
    /// Its offset contradicts its neighbours'.
    Contradiction,
}

/// The packets from `next()` to `highest()` less the holes have arrived.
#[derive(Debug, Default)]
pub(crate) struct Holes {
    /// Ascending, disjoint, not adjacent.
    holes: VecDeque<Hole>,
    /// A packet that would open one more is not taken and will be retransmitted.
    most: usize,
    highest: u64,
    offset_highest: u64,
}

impl Holes {
    /// Nothing has arrived; the first packet will be `first`. Keeps about `most` gaps.
    pub(crate) fn new(first: u64, most: usize) -> Self {
        Self {
            highest: first,
            most: most.clamp(HOLES_LEAST, HOLES_MOST),
            ..Self::default()
        }
    }

    /// First packet that is missing.
    pub(crate) fn next(&self) -> u64 {
        self.holes.front().map_or(self.highest, |hole| hole.start)
    }

    /// Stream offset below which everything has arrived.
    pub(crate) fn offset_next(&self) -> u64 {
        self.holes
            .front()
            .map_or(self.offset_highest, |hole| hole.offset_start)
    }

    /// One past the highest packet that arrived.
    pub(crate) fn highest(&self) -> u64 {
        self.highest
    }

    /// Stream offset behind the highest packet that arrived.
    pub(crate) fn offset_highest(&self) -> u64 {
        self.offset_highest
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Hole> {
        self.holes.iter()
    }

    /// The gaps that end above packet `number`, ascending.
    pub(crate) fn iter_from(&self, number: u64) -> impl Iterator<Item = &Hole> {
        let index = self.first_from(number).unwrap_or(self.holes.len());
        self.holes.range(index..)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Hole> {
        self.holes.iter_mut()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.holes.is_empty()
    }

    /// Takes packet `number`, which holds the stream bytes `offset..offset + len`.
    pub(crate) fn take(&mut self, now: Time, number: u64, offset: u64, len: u64) -> Arrival {
        if number < self.highest {
            return self.fill(number, offset, len);
        }
        if number == self.highest {
            if offset != self.offset_highest {
                return Arrival::Contradiction;
            }
            self.highest += 1;
            self.offset_highest += len;
            return Arrival::Next;
        }
        if offset < self.offset_highest {
            return Arrival::Contradiction;
        }
        if self.holes.len() >= self.most {
            return Arrival::Refused;
        }
        self.holes.push_back(Hole {
            start: self.highest,
            end: number,
            offset_start: self.offset_highest,
            offset_end: offset,
            noticed: now,
            reported: Time::ZERO,
        });
        self.highest = number + 1;
        self.offset_highest = offset + len;
        Arrival::Ahead
    }

    /// Treats the packets `first..=last` as if they had arrived (their sender gave them up).
    /// Without offsets: for the slotted discipline only, where all offsets are zero.
    pub(crate) fn give_up(&mut self, now: Time, first: u64, last: u64) {
        if last >= self.highest {
            if self.highest < first {
                let _ = self.take(now, first, 0, 0);
            }
            self.highest = self.highest.max(last + 1);
        }
        let mut number = first;
        while number <= last {
            let Some(index) = self.find(number).or_else(|| self.first_from(number)) else {
                return;
            };
            let hole = self.holes[index];
            number = number.max(hole.start);
            if number > last {
                return;
            }
            self.split(index, number, last.min(hole.end - 1), 0, 0);
            number = hole.end;
        }
    }

    fn fill(&mut self, number: u64, offset: u64, len: u64) -> Arrival {
        let Some(index) = self.find(number) else {
            return Arrival::Duplicate;
        };
        let hole = self.holes[index];
        let end = offset + len;
        let starts_right = if number == hole.start {
            offset == hole.offset_start
        } else {
            offset >= hole.offset_start
        };
        let ends_right = if number + 1 == hole.end {
            end == hole.offset_end
        } else {
            end <= hole.offset_end
        };
        if !starts_right || !ends_right {
            return Arrival::Contradiction;
        }
        let splits = number != hole.start && number + 1 != hole.end;
        if splits && self.holes.len() >= self.most {
            return Arrival::Refused;
        }
        self.split(index, number, number, offset, end);
        Arrival::Filled(hole.noticed)
    }

    /// Takes `first..=last`, which hold the bytes `offset..end`, out of the hole at `index`.
    fn split(&mut self, index: usize, first: u64, last: u64, offset: u64, end: u64) {
        let hole = self.holes[index];
        let left = Hole {
            end: first,
            offset_end: offset,
            ..hole
        };
        let right = Hole {
            start: last + 1,
            offset_start: end,
            ..hole
        };
        match (left.start < left.end, right.start < right.end) {
            (false, false) => {
                self.holes.remove(index);
            }
            (true, false) => self.holes[index] = left,
            (false, true) => self.holes[index] = right,
            (true, true) => {
                self.holes[index] = left;
                self.holes.insert(index + 1, right);
            }
        }
    }

    fn first_from(&self, number: u64) -> Option<usize> {
        let index = self.holes.partition_point(|hole| hole.end <= number);
        (index < self.holes.len()).then_some(index)
    }

    fn find(&self, number: u64) -> Option<usize> {
        self.first_from(number)
            .filter(|&index| self.holes[index].start <= number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const PACKET: u64 = 100;

    proptest! {
        #[test]
        fn agrees_with_a_set_of_packets(order in prop::collection::vec(0_u64..200, 1..400)) {
            let mut holes = Holes::new(0, 0);
            let mut seen = BTreeSet::new();
            for number in order {
                let arrival = holes.take(Time::ZERO, number, number * PACKET, PACKET);
                prop_assert_eq!(arrival == Arrival::Duplicate, !seen.insert(number));
                let next = (0..).find(|n| !seen.contains(n)).unwrap();
                prop_assert_eq!(holes.next(), next);
                prop_assert_eq!(holes.offset_next(), next * PACKET);
                let missing: Vec<u64> = (0..holes.highest()).filter(|n| !seen.contains(n)).collect();
                let listed: Vec<u64> = holes.iter().flat_map(|hole| hole.start..hole.end).collect();
                prop_assert_eq!(missing, listed);
            }
        }

        #[test]
        fn giving_up_equals_arrival(
            arrived in prop::collection::vec(0_u64..60, 0..40),
            drops in prop::collection::vec((0_u64..60, 0_u64..10), 0..10),
        ) {
            let mut holes = Holes::new(0, 0);
            let mut seen = BTreeSet::new();
            for number in arrived {
                holes.take(Time::ZERO, number, 0, 0);
                seen.insert(number);
            }
            for (first, more) in drops {
                holes.give_up(Time::ZERO, first, first + more);
                seen.extend(first..=first + more);
            }
            let missing: Vec<u64> = (0..holes.highest()).filter(|n| !seen.contains(n)).collect();
            let listed: Vec<u64> = holes.iter().flat_map(|hole| hole.start..hole.end).collect();
            prop_assert_eq!(missing, listed);
        }
    }

    #[test]
    fn offsets_that_contradict_their_neighbours_are_refused() {
        let mut holes = Holes::new(0, 0);
        assert_eq!(holes.take(Time::ZERO, 0, 0, 100), Arrival::Next);
        assert_eq!(holes.take(Time::ZERO, 3, 300, 100), Arrival::Ahead);
        for (number, offset) in [(1, 50), (1, 250), (2, 150), (2, 250), (4, 350), (5, 350)] {
            assert_eq!(
                holes.take(Time::ZERO, number, offset, 100),
                Arrival::Contradiction
            );
        }
        assert_eq!(
            holes.take(Time::ZERO, 2, 200, 100),
            Arrival::Filled(Time::ZERO)
        );
        assert_eq!(holes.offset_next(), 100);
    }

    #[test]
    fn memory_is_bounded() {
        let mut holes = Holes::new(0, 0);
        let mut refused = 0;
        for number in 0..HOLES_LEAST as u64 + 10 {
            let arrival = holes.take(Time::ZERO, number * 2 + 1, 0, 0);
            refused += u32::from(arrival == Arrival::Refused);
        }
        assert_eq!(refused, 10);
    }
}
