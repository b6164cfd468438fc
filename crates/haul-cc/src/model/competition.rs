//! Competing traffic on the path, inferred from what overflows.
//!
//! A flow that holds its rate does not overflow a queue by itself. If a standing queue loses more
//! packets than random loss explains, some flow's window has outgrown the path: a neighbour's,
//! unless this flow's was growing too and it carries the path's whole recent capacity. The window
//! of a new flow does so once; that of a loss-based neighbour, repeatedly.

use crate::controller::Rate;
use crate::filter::WindowedMax;
use crate::time::{MILLISECOND_NS, SECOND_NS, Time};

/// The rate that the path has carried, its random loss, and evidence of competing flows.
#[derive(Debug)]
pub(super) struct Competition {
    /// When the stretch began, and the bytes acknowledged since.
    stretch: (Time, u64),
    /// The rate of the latest stretch.
    share: Rate,
    /// The most that a stretch has carried lately, bytes per second.
    capacity: WindowedMax,
    /// Share of packets lost in the rounds of late, in millionths: what overflows now and then
    /// hardly shows in it.
    chance_ppm: u64,
    /// Rounds that `chance_ppm` knows of.
    rounds: u32,
    neighbour: Neighbour,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Neighbour {
    Unknown,
    Suspected { first: Time },
    Known { last: Time },
}

/// A round in which a queue stood.
#[derive(Debug, Clone, Copy)]
pub(super) struct Overflow {
    pub(super) lost_packets: u64,
    pub(super) sent_packets: u64,
    pub(super) rtt_ns: u64,
    /// The flow's own window was growing.
    pub(super) growing: bool,
}

const STRETCH_RTTS: u64 = 4;
const STRETCH_NS_MIN: u64 = 100 * MILLISECOND_NS;
const CAPACITY_WINDOW_NS: u64 = 60 * SECOND_NS;
/// A flow with this much of the capacity is alone.
const ALONE_PERCENT: u64 = 92;
/// Losses beyond what chance explains: this many packets, and this many times its share.
const LOST_PACKETS: u64 = 3;
const CHANCE_FACTOR: u64 = 3;
const PPM: u64 = 1_000_000;
/// Rounds over which random loss is estimated.
const ROUNDS: u32 = 32;
/// Overflows closer together than this are one.
const APART_RTTS: u64 = 8;
const APART_NS_MIN: u64 = SECOND_NS;
const SUSPICION_NS: u64 = 30 * SECOND_NS;

impl Competition {
    pub(super) fn new() -> Self {
        Self {
            stretch: (Time::ZERO, 0),
            share: Rate::default(),
            capacity: WindowedMax::new(CAPACITY_WINDOW_NS),
            chance_ppm: 0,
            rounds: 0,
            neighbour: Neighbour::Unknown,
        }
    }

    pub(super) fn handle_ack(&mut self, now: Time, acked_bytes: u64, rtt_ns: u64) {
        let (begun, bytes) = &mut self.stretch;
        *bytes += acked_bytes;
        let length_ns = now.since(*begun);
        if length_ns < (STRETCH_RTTS * rtt_ns).max(STRETCH_NS_MIN) {
            return;
        }
        self.share = Rate::of(*bytes, length_ns);
        self.capacity.update(now, self.share.bytes_per_second());
        self.stretch = (now, 0);
    }

    /// Updates the estimate of random loss from a round.
    pub(super) fn handle_round(&mut self, lost_packets: u64, sent_packets: u64) {
        if let Some(ppm) = (lost_packets * PPM).checked_div(sent_packets) {
            self.rounds = self.rounds.saturating_add(1);
            let weight = u64::from(self.rounds.min(ROUNDS));
            self.chance_ppm = ((weight - 1) * self.chance_ppm + ppm) / weight;
        }
    }

    /// How much of `sent` random loss takes, in packets or bytes.
    pub(super) fn lost_by_chance(&self, sent: u64) -> u64 {
        self.chance_ppm * sent / PPM
    }

    /// Draws its conclusions. True if the flow is found to be alone.
    pub(super) fn handle_overflow(&mut self, now: Time, overflow: &Overflow) -> bool {
        let chance = CHANCE_FACTOR * self.lost_by_chance(overflow.sent_packets);
        if self.rounds < ROUNDS || overflow.lost_packets <= LOST_PACKETS + chance {
            return false;
        }
        let capacity = Rate::from_bytes_per_second(self.capacity.value().unwrap_or(0));
        let alone = overflow.growing && self.share >= capacity.percent(ALONE_PERCENT);
        self.neighbour = if alone {
            Neighbour::Unknown
        } else {
            let apart_ns = (APART_RTTS * overflow.rtt_ns).max(APART_NS_MIN);
            self.neighbour.seen(now, apart_ns)
        };
        alone
    }

    /// A neighbour's window has outgrown the path, more than once, and within `memory_ns`.
    pub(super) fn has_neighbour(&self, now: Time, memory_ns: u64) -> bool {
        matches!(self.neighbour, Neighbour::Known { last } if now.since(last) < memory_ns)
    }
}

impl Neighbour {
    fn seen(self, now: Time, apart_ns: u64) -> Self {
        match self {
            Self::Suspected { first } if now.since(first) < apart_ns => self,
            Self::Suspected { first } if now.since(first) < SUSPICION_NS => {
                Self::Known { last: now }
            }
            Self::Known { .. } => Self::Known { last: now },
            Self::Unknown | Self::Suspected { .. } => Self::Suspected { first: now },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT_NS: u64 = 10 * MILLISECOND_NS;
    const HELD: Overflow = Overflow {
        lost_packets: 20,
        sent_packets: 1_000,
        rtt_ns: RTT_NS,
        growing: false,
    };

    fn at(seconds: u64) -> Time {
        Time::from_ns(seconds * SECOND_NS)
    }

    /// After many rounds of a thousand packets that lost `lost` each.
    fn experienced(lost: u64) -> Competition {
        let mut competition = Competition::new();
        for _ in 0..2 * ROUNDS {
            competition.handle_round(lost, 1_000);
        }
        competition
    }

    #[test]
    fn one_overflow_may_be_a_newcomers_and_two_are_a_neighbours() {
        let mut competition = experienced(0);
        competition.handle_overflow(at(1), &HELD);
        competition.handle_overflow(at(1).after(MILLISECOND_NS), &HELD);
        assert!(!competition.has_neighbour(at(2), SECOND_NS));
        competition.handle_overflow(at(5), &HELD);
        assert!(competition.has_neighbour(at(5), SECOND_NS));
        assert!(!competition.has_neighbour(at(7), SECOND_NS));
    }

    #[test]
    fn random_loss_is_no_overflow_of_a_queue() {
        let mut competition = experienced(10);
        competition.handle_overflow(at(1), &HELD);
        competition.handle_overflow(at(5), &HELD);
        assert!(!competition.has_neighbour(at(5), SECOND_NS));
    }

    #[test]
    fn a_growing_flow_with_all_of_the_path_is_alone_and_with_half_of_it_is_not() {
        let mut competition = experienced(0);
        let growing = Overflow {
            growing: true,
            ..HELD
        };
        competition.handle_ack(at(1), 0, RTT_NS);
        competition.handle_ack(at(2), 1_000_000, RTT_NS);
        assert!(competition.handle_overflow(at(2), &growing));
        competition.handle_ack(at(3), 500_000, RTT_NS);
        assert!(!competition.handle_overflow(at(3), &growing));
    }
}
