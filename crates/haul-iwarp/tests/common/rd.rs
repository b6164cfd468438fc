//! Reliable-datagram queue pairs on virtual time, and the links between them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use haul_iwarp::Operation;
use haul_iwarp::SendWr;
use haul_iwarp::datagram::rd::{
    RD_HEADER_MAX, RdCompletion, RdConfig, RdEvent, RdQp, RdStatus, Remote,
};
use haul_iwarp::{Crc32c, Pd, PostError, QpConfig, RecvWr, Time};
use haul_netem::{Fate, Link, LinkConfig, Rng};

use super::Ram;

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000 * MS;

/// One end.
pub struct End {
    pub qp: RdQp,
    pub ram: Ram,
    pub at: SocketAddr,
    pub config: RdConfig,
    pub events: Vec<RdEvent>,
    /// It neither receives nor sends.
    pub dead: bool,
    next: u64,
}

impl End {
    pub fn remote(&self) -> Remote {
        Remote {
            addr: self.at,
            qpn: self.config.qpn,
        }
    }

    /// Completions so far, taken.
    pub fn completions(&mut self) -> Vec<RdCompletion> {
        let events = std::mem::take(&mut self.events);
        let (done, other): (Vec<_>, Vec<_>) = events
            .into_iter()
            .partition(|event| matches!(event, RdEvent::Completion(_)));
        self.events = other;
        let completion = |event| match event {
            RdEvent::Completion(completion) => completion,
            _ => unreachable!(),
        };
        done.into_iter().map(completion).collect()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub bytes: Vec<u8>,
}

#[derive(PartialEq, Eq)]
struct Entry {
    at: u64,
    order: u64,
    packet: Packet,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// All ends, any of which reaches any other over a link of its own.
pub struct World {
    pub now: u64,
    pub ends: Vec<End>,
    pub link: LinkConfig,
    links: HashMap<(SocketAddr, SocketAddr), Link>,
    queue: BinaryHeap<Reverse<Entry>>,
    order: u64,
    rng: Rng,
    /// Decides what is dropped, beside the link.
    pub drop: Box<dyn FnMut(&Packet) -> bool>,
    /// Changes what is sent.
    pub change: Box<dyn FnMut(&mut Packet)>,
    /// Everything sent, if it is wanted.
    pub seen: Option<Vec<Packet>>,
}

pub fn config(index: usize) -> RdConfig {
    super::with(RdConfig::default(), |config| {
        config.qp = super::with(QpConfig::default(), |config| config.pd = Pd(7));
        config.qpn = 0x10 + index as u32;
        config.epoch = 0x1000 + index as u32;
        config.secret = [index as u8; 16];
    })
}

pub fn address(index: usize) -> SocketAddr {
    SocketAddr::new(
        IpAddr::V4(Ipv4Addr::new(10, 0, (index >> 8) as u8, index as u8)),
        4_791,
    )
}

impl World {
    pub fn new(ends: usize, link: LinkConfig, seed: u64) -> Self {
        Self::with(ends, link, seed, |_, _| {})
    }

    pub fn with(
        ends: usize,
        link: LinkConfig,
        seed: u64,
        adjust: impl Fn(usize, &mut RdConfig),
    ) -> Self {
        let mut rng = Rng::new(seed);
        let ends = (0..ends).map(|index| {
            let mut config = config(index);
            config.secret[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
            config.epoch = (rng.next_u64() as u32).max(1);
            adjust(index, &mut config);
            Self::end(index, config)
        });
        Self {
            now: SECOND,
            ends: ends.collect(),
            link,
            links: HashMap::new(),
            queue: BinaryHeap::new(),
            order: 0,
            rng: Rng::new(seed ^ 1),
            drop: Box::new(|_| false),
            change: Box::new(|_| {}),
            seen: None,
        }
    }

    fn end(index: usize, config: RdConfig) -> End {
        End {
            qp: RdQp::new(config.clone()),
            ram: Ram::default(),
            at: address(index),
            config,
            events: Vec::new(),
            dead: false,
            next: 0,
        }
    }

    /// The process behind an end dies, and another takes its place.
    pub fn restart(&mut self, index: usize) {
        let mut config = self.ends[index].config.clone();
        config.epoch = config.epoch.wrapping_add(77).max(1);
        config.secret[0] ^= 0x55;
        self.ends[index] = Self::end(index, config);
    }

    pub fn time(&self) -> Time {
        Time::from_ns(self.now)
    }

    pub fn remote(&self, index: usize) -> Remote {
        self.ends[index].remote()
    }

    /// Posts; the id is also the slot.
    pub fn post(&mut self, from: usize, to: usize, op: Operation, bytes: Vec<u8>) -> u64 {
        let len = bytes.len() as u32;
        self.try_post(from, to, op, bytes, len, false)
            .expect("it is taken")
    }

    pub fn try_post(
        &mut self,
        from: usize,
        to: usize,
        op: Operation,
        bytes: Vec<u8>,
        len: u32,
        fence: bool,
    ) -> Result<u64, PostError> {
        let (now, to) = (self.time(), self.remote(to));
        let end = &mut self.ends[from];
        let id = end.next;
        let slot = id as u32;
        let mut wr = SendWr::new(id, slot, op, len);
        wr.fence = fence;
        end.qp.post_send(now, to, wr)?;
        end.next += 1;
        end.ram.sends.insert(slot, bytes);
        self.settle(from);
        Ok(id)
    }

    pub fn post_receive(&mut self, at: usize, slot: u32, len: u32) {
        let now = self.time();
        let end = &mut self.ends[at];
        end.ram.receives.insert(slot, vec![0; len as usize]);
        let wr = RecvWr::new(slot.into(), slot, len);
        end.qp.post_receive(now, wr).expect("there is room");
        self.settle(at);
    }

    /// A datagram from anywhere arrives now.
    pub fn inject(&mut self, packet: &Packet) {
        let now = self.time();
        let Some(index) = self
            .ends
            .iter()
            .position(|end| end.at == packet.to && !end.dead)
        else {
            return;
        };
        let end = &mut self.ends[index];
        let arrived = end
            .qp
            .handle_datagram(now, &mut end.ram, packet.from, &packet.bytes);
        if let Some(arrived) = arrived {
            end.ram
                .place(&arrived.placement, &packet.bytes[arrived.payload]);
            end.qp.handle_placed(now, &mut end.ram);
        }
        self.settle(index);
    }

    /// Drains all outputs, as an engine does after every input.
    pub fn settle(&mut self, index: usize) {
        let now = self.time();
        let mut header = [0; RD_HEADER_MAX];
        for round in 0.. {
            assert!(round < 100_000, "an end spins");
            self.send_probes(index);
            let end = &mut self.ends[index];
            let transmit = end.qp.poll_transmit(now, &end.ram, &mut header);
            while let Some(event) = end.qp.poll_event() {
                end.events.push(event);
            }
            let Some(transmit) = transmit else {
                return;
            };
            let mut bytes = header[..transmit.header_len].to_vec();
            bytes.extend(end.ram.payload(transmit.payload, transmit.payload_len));
            if transmit.needs_crc {
                let mut crc = Crc32c::new();
                crc.update(&bytes);
                bytes.extend(crc.to_wire());
            }
            let packet = Packet {
                from: end.at,
                to: transmit.to,
                bytes,
            };
            if !end.dead {
                self.send(packet);
            }
        }
    }

    fn send_probes(&mut self, index: usize) {
        let now = self.time();
        let mut whole = [0; 9_000];
        while let Some((to, len)) = self.ends[index].qp.poll_probe(now, &mut whole) {
            let end = &self.ends[index];
            let packet = Packet {
                from: end.at,
                to,
                bytes: whole[..len].to_vec(),
            };
            if !end.dead {
                self.send(packet);
            }
        }
    }

    fn send(&mut self, mut packet: Packet) {
        (self.change)(&mut packet);
        if let Some(seen) = &mut self.seen {
            seen.push(packet.clone());
        }
        if (self.drop)(&packet) {
            return;
        }
        let seed = &mut self.rng;
        let config = &self.link;
        let link = self
            .links
            .entry((packet.from, packet.to))
            .or_insert_with(|| Link::new(config.clone(), seed.next_u64()));
        let wire_bytes = packet.bytes.len() as u32 + 28;
        let Fate::Delivered {
            at_ns,
            corrupted,
            duplicate_at_ns,
            ..
        } = link.admit(self.now, wire_bytes)
        else {
            return;
        };
        if corrupted {
            let bit = self.rng.below(packet.bytes.len() as u64 * 8);
            packet.bytes[bit as usize / 8] ^= 1 << (bit % 8);
        }
        if let Some(at_ns) = duplicate_at_ns {
            self.push(at_ns, packet.clone());
        }
        self.push(at_ns, packet);
    }

    fn push(&mut self, at: u64, packet: Packet) {
        self.order += 1;
        let order = self.order;
        self.queue.push(Reverse(Entry { at, order, packet }));
    }

    fn next_timer(&self) -> Option<(u64, usize)> {
        let ends = self.ends.iter().enumerate().filter(|(_, end)| !end.dead);
        ends.filter_map(|(index, end)| Some((end.qp.poll_timeout()?.as_ns(), index)))
            .min()
    }

    /// Runs until `end`, or until nothing is left to happen.
    pub fn run_until(&mut self, end: u64) {
        self.run_while(end, |_| true);
    }

    /// Runs on while `wanted`, not beyond `end`.
    pub fn run_while(&mut self, end: u64, wanted: impl Fn(&Self) -> bool) {
        while wanted(self) {
            let arrival = self.queue.peek().map(|Reverse(entry)| entry.at);
            let timer = self.next_timer();
            let at = match (arrival, timer) {
                (Some(at), Some((due, _))) => at.min(due),
                (Some(at), None) => at,
                (None, Some((due, _))) => due,
                (None, None) => break,
            };
            if at > end {
                self.now = end;
                return;
            }
            self.now = self.now.max(at);
            if arrival == Some(at) {
                let Some(Reverse(entry)) = self.queue.pop() else {
                    return;
                };
                self.inject(&entry.packet);
            } else if let Some((_, index)) = timer {
                let now = self.time();
                self.ends[index].qp.handle_timeout(now);
                self.settle(index);
            }
        }
    }

    pub fn run_for(&mut self, ns: u64) {
        let end = self.now + ns;
        self.run_until(end);
        self.now = end;
    }
}

/// All requests among `completions` that have succeeded.
pub fn succeeded(completions: &[RdCompletion]) -> usize {
    completions
        .iter()
        .filter(|done| done.status == RdStatus::Success)
        .count()
}

pub fn send() -> Operation {
    Operation::Send {
        solicited: false,
        invalidate: None,
    }
}
