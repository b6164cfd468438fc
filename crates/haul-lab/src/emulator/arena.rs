//! The bytes of the packets in flight: a ring into which packets are read in the order of their arrival.
//!
//! A packet stays until all its runs have been delivered; its room is used again once those before it have gone, too.

use std::collections::VecDeque;

use haul_io::tun::TUN_PACKET_MAX;

use crate::packet::Packet;

#[derive(Debug)]
pub(super) struct Arena {
    bytes: Vec<u8>,
    /// Oldest first. The packet with ticket `t` is at `t - first_ticket`.
    packets: VecDeque<Held>,
    first_ticket: u64,
    /// Where the next packet goes.
    tail: usize,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    start: usize,
    len: usize,
    packet: Packet,
    /// Runs of it that have not been delivered.
    runs: u32,
}

impl Arena {
    /// Room for at least two of the largest packets. The memory is not touched before it is used.
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            bytes: vec![0; bytes.max(2 * TUN_PACKET_MAX)],
            packets: VecDeque::with_capacity(4096),
            first_ticket: 0,
            tail: 0,
        }
    }

    /// Room for the largest packet, or `None` if the ring is full.
    pub(super) fn room(&mut self) -> Option<&mut [u8]> {
        let start = match self.packets.front() {
            None => 0,
            Some(oldest) if oldest.start < self.tail => {
                if self.bytes.len() - self.tail >= TUN_PACKET_MAX {
                    self.tail
                } else if oldest.start >= TUN_PACKET_MAX {
                    0
                } else {
                    return None;
                }
            }
            Some(oldest) if oldest.start - self.tail >= TUN_PACKET_MAX => self.tail,
            Some(_) => return None,
        };
        self.tail = start;
        Some(&mut self.bytes[start..start + TUN_PACKET_MAX])
    }

    /// What was last written into the room.
    pub(super) fn peek(&self, len: usize) -> &[u8] {
        &self.bytes[self.tail..self.tail + len]
    }

    /// The ticket that [`keep`](Self::keep) gives next.
    pub(super) fn next_ticket(&self) -> u64 {
        self.first_ticket + self.packets.len() as u64
    }

    /// Keeps the first `len` bytes written into the room until `runs` runs have been released. With no runs nothing is kept.
    pub(super) fn keep(&mut self, packet: Packet, len: usize, runs: u32) {
        if runs > 0 {
            self.packets.push_back(Held {
                start: self.tail,
                len,
                packet,
                runs,
            });
            self.tail += len;
        }
    }

    /// The packet with this ticket.
    pub(super) fn packet(&self, ticket: u64) -> Option<(&Packet, &[u8])> {
        let held = self.packets.get(self.position(ticket)?)?;
        Some((&held.packet, &self.bytes[held.start..held.start + held.len]))
    }

    /// One run of this packet has been delivered.
    pub(super) fn release(&mut self, ticket: u64) {
        if let Some(position) = self.position(ticket)
            && let Some(held) = self.packets.get_mut(position)
        {
            held.runs = held.runs.saturating_sub(1);
        }
        while self.packets.front().is_some_and(|held| held.runs == 0) {
            self.packets.pop_front();
            self.first_ticket += 1;
        }
    }

    fn position(&self, ticket: u64) -> Option<usize> {
        usize::try_from(ticket.checked_sub(self.first_ticket)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use haul_netem::Rng;

    use super::*;

    fn packet(len: usize) -> (Vec<u8>, Packet) {
        let mut bytes = vec![0; len];
        bytes[10] = 0x45;
        let packet = Packet::parse(&bytes).unwrap();
        (bytes, packet)
    }

    fn keep(arena: &mut Arena, len: usize, mark: u8) -> Option<u64> {
        let (mut bytes, packet) = packet(len);
        bytes[30..].fill(mark);
        arena.room()?[..len].copy_from_slice(&bytes);
        let ticket = arena.next_ticket();
        arena.keep(packet, len, 1);
        Some(ticket)
    }

    #[test]
    fn packets_keep_their_bytes_while_the_ring_turns() {
        let mut arena = Arena::new(1_000_000);
        let mut rng = Rng::new(1);
        let mut held: VecDeque<(u64, usize, u8)> = VecDeque::new();
        let mut kept = 0;
        for round in 0..20_000_u64 {
            let len = 40 + usize::try_from(rng.below(65_000)).unwrap();
            let mark = u8::try_from(round % 251).unwrap();
            let ticket = keep(&mut arena, len, mark);
            held.extend(ticket.map(|ticket| (ticket, len, mark)));
            kept += u32::from(ticket.is_some());
            while ticket.is_none() || held.len() > 12 || (!held.is_empty() && rng.chance(0.4)) {
                // Mostly in order, but not always; a full ring is emptied.
                let which = usize::try_from(rng.below(held.len().min(3) as u64)).unwrap();
                let Some((ticket, len, mark)) = held.remove(which) else {
                    break;
                };
                let (_, bytes) = arena.packet(ticket).unwrap();
                assert_eq!(bytes.len(), len);
                assert!(bytes[30..].iter().all(|&byte| byte == mark));
                arena.release(ticket);
            }
        }
        assert!(kept > 19_000, "{kept}");
    }

    #[test]
    fn a_full_ring_refuses_and_a_drained_one_starts_afresh() {
        let mut arena = Arena::new(0);
        let first = keep(&mut arena, TUN_PACKET_MAX - 10, 1).unwrap();
        let second = keep(&mut arena, TUN_PACKET_MAX - 10, 2).unwrap();
        assert!(arena.room().is_none());
        arena.release(second);
        assert!(
            arena.room().is_none(),
            "the first packet still holds its place"
        );
        arena.release(first);
        assert!(arena.room().is_some());
        assert_eq!(arena.tail, 0);
    }
}
