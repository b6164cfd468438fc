//! The bytes of the packets in flight, in buffers that are used again.
//!
//! Buffers come in a few sizes, so that an acknowledgement does not occupy a super-packet's buffer.
//! The buffer that was freed last is used first, because its memory is most likely in the cache.
//! Memory grows to the path's need, up to a limit, and is kept until packets of another size need
//! it.

use haul_io::tun::TUN_PACKET_MAX;

use crate::packet::Packet;

/// Sizes of buffers, ascending; the last one holds any packet.
const SIZES: [usize; 5] = [256, 2048, 9216, 32_768, TUN_PACKET_MAX];

#[derive(Debug)]
pub(super) struct Pool {
    buffers: Vec<Buffer>,
    /// Indices of buffers that hold nothing, for each size.
    free: [Vec<u32>; SIZES.len()],
    /// Indices without a buffer.
    vacant: Vec<u32>,
    /// `allocated <= limit`, in bytes.
    allocated: usize,
    limit: usize,
    /// Where a packet is read to before its size is known, for packets that are then copied to a
    /// smaller buffer.
    landing: Vec<u8>,
}

/// Names a packet in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u32);

#[derive(Debug)]
struct Buffer {
    bytes: Box<[u8]>,
    size: usize,
    /// Its content, if any.
    held: Option<Held>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    packet: Packet,
    len: usize,
    /// Runs of it that have not been delivered.
    runs: u32,
}

impl Pool {
    /// A pool of at most `limit` bytes, and none to begin with.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            buffers: Vec::with_capacity(4096),
            free: Default::default(),
            vacant: Vec::new(),
            allocated: 0,
            limit,
            landing: vec![0; TUN_PACKET_MAX],
        }
    }

    /// Returns a buffer for any packet, which overwrites the one read before.
    pub(super) fn landing(&mut self) -> &mut [u8] {
        &mut self.landing
    }

    /// The first bytes of what was last read.
    pub(super) fn landed(&self, len: usize) -> &[u8] {
        &self.landing[..len]
    }

    /// Sets a buffer aside for a packet of this length, or `None` if the limit is reached.
    pub(super) fn reserve(&mut self, len: usize) -> Option<Ticket> {
        let size = SIZES.iter().position(|&size| size >= len)?;
        if let Some(index) = self.free[size].pop() {
            return Some(Ticket(index));
        }
        let more = SIZES[size];
        while self.allocated + more > self.limit {
            self.give_back()?;
        }
        self.allocated += more;
        let buffer = Buffer {
            bytes: vec![0; more].into(),
            size,
            held: None,
        };
        if let Some(index) = self.vacant.pop() {
            *self.buffers.get_mut(Ticket(index).index())? = buffer;
            return Some(Ticket(index));
        }
        let index = u32::try_from(self.buffers.len()).ok()?;
        self.buffers.push(buffer);
        Some(Ticket(index))
    }

    /// Frees the memory of the largest buffer that holds nothing: super-packets may have taken all
    /// that segments need now.
    fn give_back(&mut self) -> Option<()> {
        let index = self.free.iter_mut().rev().find_map(Vec::pop)?;
        let buffer = self.buffers.get_mut(Ticket(index).index())?;
        self.allocated -= SIZES[buffer.size];
        buffer.bytes = Box::default();
        self.vacant.push(index);
        Some(())
    }

    /// Puts the packet that was last read into a reserved buffer, until `runs` runs of it have been
    /// released.
    pub(super) fn keep(&mut self, ticket: Ticket, packet: Packet, len: usize, runs: u32) {
        let Some(buffer) = self.buffers.get_mut(ticket.index()) else {
            return;
        };
        if runs == 0 {
            self.free[buffer.size].push(ticket.0);
            return;
        }
        if buffer.bytes.len() == self.landing.len() {
            // Both hold any packet: swaps them instead of copying.
            let trade = std::mem::take(&mut self.landing).into_boxed_slice();
            self.landing = std::mem::replace(&mut buffer.bytes, trade).into_vec();
        } else {
            buffer.bytes[..len].copy_from_slice(&self.landing[..len]);
        }
        buffer.held = Some(Held { packet, len, runs });
    }

    /// The packet with this ticket.
    pub(super) fn packet(&self, ticket: Ticket) -> Option<(&Packet, &[u8])> {
        let buffer = self.buffers.get(ticket.index())?;
        let held = buffer.held.as_ref()?;
        Some((&held.packet, &buffer.bytes[..held.len]))
    }

    /// One run of this packet has been delivered.
    pub(super) fn release(&mut self, ticket: Ticket) {
        let Some(buffer) = self.buffers.get_mut(ticket.index()) else {
            return;
        };
        let Some(held) = &mut buffer.held else { return };
        held.runs -= 1;
        if held.runs == 0 {
            buffer.held = None;
            self.free[buffer.size].push(ticket.0);
        }
    }
}

impl Ticket {
    fn index(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
impl Ticket {
    pub(super) const TEST: Self = Self(7);
}

#[cfg(test)]
mod tests {
    use haul_netem::Rng;

    use super::*;

    fn packet(len: usize) -> (Vec<u8>, Packet) {
        let mut bytes = vec![0; len];
        bytes[10] = 0x45;
        let packet = Packet::parse(&bytes).unwrap();
        (bytes, packet)
    }

    fn keep(pool: &mut Pool, len: usize, mark: u8) -> Option<Ticket> {
        let (mut bytes, packet) = packet(len);
        bytes[30..].fill(mark);
        pool.landing()[..len].copy_from_slice(&bytes);
        assert_eq!(pool.landed(len), bytes);
        let ticket = pool.reserve(len)?;
        pool.keep(ticket, packet, len, 1);
        Some(ticket)
    }

    #[test]
    fn packets_keep_their_bytes_while_buffers_change_hands() {
        let mut pool = Pool::new(2_000_000);
        let mut rng = Rng::new(1);
        let mut held: Vec<(Ticket, usize, u8)> = Vec::new();
        for round in 0..20_000_u64 {
            let mark = u8::try_from(round % 251).unwrap();
            let len = 40
                + usize::try_from(rng.below(65_000)).unwrap() / [1, 10, 100][usize::from(mark) % 3];
            held.push((keep(&mut pool, len, mark).unwrap(), len, mark));
            while held.len() > 10 {
                let which = usize::try_from(rng.below(held.len() as u64)).unwrap();
                let (ticket, len, mark) = held.swap_remove(which);
                let (_, bytes) = pool.packet(ticket).unwrap();
                assert_eq!(bytes.len(), len);
                assert!(bytes[30..].iter().all(|&byte| byte == mark));
                pool.release(ticket);
            }
        }
        assert!(pool.allocated < 2_000_000);
    }

    #[test]
    fn memory_of_super_packets_becomes_that_of_segments_and_back() {
        let mut pool = Pool::new(10 * TUN_PACKET_MAX);
        for (len, at_least) in [(60_000, 10), (1_500, 300), (60_000, 9), (100, 2_000)] {
            let mut held = Vec::new();
            while let Some(ticket) = keep(&mut pool, len, 3) {
                held.push(ticket);
            }
            assert!(held.len() >= at_least, "{} of {len}", held.len());
            assert!(pool.allocated <= pool.limit);
            held.into_iter().for_each(|ticket| pool.release(ticket));
        }
    }

    #[test]
    fn a_full_pool_refuses_until_something_is_released() {
        let mut pool = Pool::new(2 * TUN_PACKET_MAX);
        let first = keep(&mut pool, 60_000, 1).unwrap();
        let _second = keep(&mut pool, 60_000, 2).unwrap();
        assert!(pool.reserve(60_000).is_none() && pool.reserve(100).is_none());
        pool.release(first);
        assert!(pool.reserve(60_000).is_some());
    }

    #[test]
    fn a_packet_stays_until_its_last_run_and_one_without_runs_not_at_all() {
        let mut pool = Pool::new(1_000_000);
        let (_, packet) = packet(100);
        let ticket = pool.reserve(100).unwrap();
        pool.keep(ticket, packet, 100, 2);
        pool.release(ticket);
        assert!(pool.packet(ticket).is_some());
        pool.release(ticket);
        assert!(pool.packet(ticket).is_none());
        let ticket = pool.reserve(100).unwrap();
        pool.keep(ticket, packet, 100, 0);
        assert!(pool.packet(ticket).is_none());
        assert_eq!(pool.reserve(100), Some(ticket), "its buffer is free again");
    }
}
