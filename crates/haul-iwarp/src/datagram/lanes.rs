//! Numbers of packets and messages, by destination, in bounded memory.
//!
//! The rules are that the numbers of a destination rise and that no message number comes twice. A
//! queue pair may have a hundred thousand destinations, so they share: a destination always uses
//! the same lane, the first one has its own, and the others are spread over a fixed number. Where
//! destinations share a lane, each sees gaps, so it cannot count lost packets by them.

use std::hash::{Hash, Hasher};

use siphasher::sip::SipHasher13;

use super::wire::{MsgId, Psn};
use crate::address::Destination;

/// Lanes beside the first one: as many as a byte has values.
const LANES: usize = 256;

/// A sequence of packets and messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lane {
    psn: Psn,
    msg_id: MsgId,
    /// Round trip of reads, microseconds, of the last destination; 0 is unknown.
    pub(super) rtt_us: u32,
}

impl Lane {
    /// Messages from 1, packets from anywhere.
    fn start(key: &[u8; 16], seed: u64, at: usize) -> Self {
        let mut hasher = SipHasher13::new_with_key(key);
        (seed, at).hash(&mut hasher);
        Self {
            psn: Psn((hasher.finish() >> 32) as u32),
            msg_id: MsgId(1),
            rtt_us: 0,
        }
    }

    pub(super) const fn next_psn(&mut self) -> Psn {
        let psn = self.psn;
        self.psn = psn.plus(1);
        psn
    }

    pub(super) const fn next_message(&mut self) -> MsgId {
        let id = self.msg_id;
        self.msg_id = id.plus(1);
        id
    }
}

#[derive(Debug)]
pub(super) struct Lanes {
    key: [u8; 16],
    seed: u64,
    first: Option<(Destination, Lane)>,
    others: Option<Box<[Lane]>>,
    /// The lane of the last destination.
    recent: Option<(Destination, usize)>,
}

impl Lanes {
    pub(super) const fn new(seed: u64, key: [u8; 16]) -> Self {
        Self {
            key,
            seed,
            first: None,
            others: None,
            recent: None,
        }
    }

    pub(super) fn lane(&mut self, to: &Destination) -> &mut Lane {
        let (first, lane) = self
            .first
            .get_or_insert_with(|| (*to, Lane::start(&self.key, self.seed, LANES)));
        if first == to {
            return lane;
        }
        let (key, seed) = (&self.key, self.seed);
        let others = self
            .others
            .get_or_insert_with(|| (0..LANES).map(|at| Lane::start(key, seed, at)).collect());
        let at = match self.recent {
            Some((recent, at)) if recent == *to => at,
            _ => {
                let mut hasher = SipHasher13::new_with_key(key);
                to.hash(&mut hasher);
                usize::from(hasher.finish().to_be_bytes()[0])
            }
        };
        self.recent = Some((*to, at));
        &mut others[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_destination_rise_and_messages_never_come_twice() {
        let mut lanes = Lanes::new(3, [5; 16]);
        let mut last = vec![None; 2_000];
        for round in 0..20_u32 {
            for n in 0..2_000_u32 {
                let to = Destination {
                    addr: ([10, 0, 0, 1], 4_000).into(),
                    qpn: n,
                };
                let lane = lanes.lane(&to);
                let (psn, id) = (lane.next_psn(), lane.next_message());
                if let Some((last_psn, last_id)) = last[n as usize] {
                    assert!(psn.past(last_psn) > 0 && id.past(last_id) > 0);
                    assert!(n > 0 || id.past(last_id) == 1, "the first one sees no gaps");
                } else {
                    assert!(round == 0 && (n > 0 || id == MsgId(1)));
                }
                last[n as usize] = Some((psn, id));
            }
        }
    }
}
