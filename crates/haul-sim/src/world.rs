//! Virtual time, links, and the flows that share them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use haul_cc::Time;
use haul_netem::{Fate, Link, LinkConfig, Rng};
use haul_seal::TAG_LEN;
use haul_udt::wire::{HEADER_LEN, is_data};
use haul_udt::{Connection, Identity, Listener, Reaction, Seq};

use crate::flow::Flow;
use crate::host::{Host, socket_id};

/// A path of two directions, and spans of time in which nothing passes.
#[derive(Debug, Clone, Default)]
pub struct Path {
    /// From client to server.
    pub forward: LinkConfig,
    /// From server to client.
    pub reverse: LinkConfig,
    /// Blackouts: begin and end, ns.
    pub blackouts: Vec<(u64, u64)>,
}

/// How a flow went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// When all had been delivered.
    pub finished: Option<Time>,
}

#[derive(Debug)]
struct Running {
    flow: Flow,
    hosts: [Option<Host>; 2],
    started: [bool; 2],
    closing: bool,
    written: [bool; 2],
    finished: Option<Time>,
    wakeups: [Time; 2],
    /// The latest stall of each side, or the next: its begin and end, ns.
    stall: [(u64, u64); 2],
}

impl Running {
    fn is_over(&self) -> bool {
        let closed = |host: &Option<Host>| host.as_ref().is_some_and(|h| h.closed().is_some());
        let failed = self
            .hosts
            .iter()
            .flatten()
            .any(|host| matches!(host.closed(), Some(Some(_))));
        failed && !self.closing
            || self.finished.is_some() && (!self.closing || self.hosts.iter().all(closed))
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Packet {
    flow: usize,
    /// The side that it goes to.
    side: usize,
    bytes: Vec<u8>,
    len: usize,
    /// When it came to its host, ns.
    arrived: u64,
    /// It carries the mark of a filling queue.
    marked: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum What {
    Arrive(Packet),
    Wake { flow: usize, side: usize },
    Write { flow: usize, bytes: u64 },
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    at: u64,
    order: u64,
    what: What,
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

/// The world.
#[derive(Debug)]
pub struct World {
    now: u64,
    order: u64,
    queue: BinaryHeap<Reverse<Entry>>,
    links: [Link; 2],
    blackouts: Vec<(u64, u64)>,
    /// From when on the links carry IP packets of at most so many bytes; ascending.
    mtus: Vec<(u64, u32)>,
    flows: Vec<Running>,
    listeners: Vec<Listener>,
    rng: Rng,
    /// Events of the present millisecond: a host that never comes to rest is found out.
    busy: (u64, u32),
    damaged: Damage,
    /// Damaged headers and control packets arrive, as if UDP's checksum had missed all of it.
    misses_damage: bool,
    attacks: Option<Attacks>,
    /// Changes handshakes on their way.
    tamper: Option<fn(&mut [u8])>,
}

/// What an attacker has sent to hosts of sealed flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attacks {
    /// Datagrams of the peer's with some bits flipped, before the genuine one.
    pub flipped: u64,
    /// Datagrams of the peer's once more, after the genuine one.
    pub replayed: u64,
    /// Datagrams with a genuine header, a random number and a random tag.
    pub forged: u64,
    /// Datagrams of other kinds, without a seal: shutdowns.
    pub unsealed: u64,
    /// Datagrams of another flow, or of this host's own.
    pub spliced: u64,
    /// Those of all kinds that a host has opened.
    pub accepted: u64,
}

/// Packets that arrived damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Damage {
    /// Those that UDP's checksum has caught.
    pub caught: u64,
    /// Those that it would have let pass; the world drops them too, as the sums of whole files are
    /// not part of it.
    pub missed: u64,
}

/// More events than this in a millisecond are no traffic: 100 Gb/s are 8,300 packets of 1,500
/// bytes.
const EVENTS_PER_MS_MAX: u32 = 200_000;

const LOWER_LEN: usize = 28;

impl World {
    /// A world with one path. `seed` decides everything random.
    #[must_use]
    pub fn new(path: &Path, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let links = [
            Link::new(path.forward.clone(), rng.next_u64()),
            Link::new(path.reverse.clone(), rng.next_u64()),
        ];
        Self {
            now: 1,
            order: 0,
            queue: BinaryHeap::new(),
            links,
            blackouts: path.blackouts.clone(),
            mtus: Vec::new(),
            flows: Vec::new(),
            listeners: Vec::new(),
            rng,
            busy: (0, 0),
            damaged: Damage::default(),
            misses_damage: false,
            attacks: None,
            tamper: None,
        }
    }

    /// Adds a flow; answers its index.
    pub fn add(&mut self, flow: Flow) -> usize {
        let index = self.flows.len();
        let starts = [Some(flow.starts), flow.rendezvous];
        for &(at, bytes) in &flow.later {
            let flow = index;
            self.push(at.as_ns(), What::Write { flow, bytes });
        }
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&self.rng.next_u64().to_le_bytes());
        self.listeners.push(Listener::new(&flow.server, secret));
        self.flows.push(Running {
            flow,
            hosts: [None, None],
            started: [false; 2],
            closing: false,
            written: [false; 2],
            finished: None,
            wakeups: [Time::from_ns(u64::MAX); 2],
            stall: [(0, 0); 2],
        });
        for (side, at) in starts.into_iter().enumerate() {
            if let Some(at) = at {
                self.push(at.as_ns().max(1), What::Wake { flow: index, side });
            }
        }
        index
    }

    /// From `at` on, later than in any call before, the links drop longer IP packets than `mtu`
    /// without a word.
    pub fn narrow(&mut self, at: Time, mtu: u32) {
        self.mtus.push((at.as_ns(), mtu));
    }

    /// The virtual clock.
    #[must_use]
    pub fn now(&self) -> Time {
        Time::from_ns(self.now)
    }

    /// A flow's host on side 0 (client) or 1 (server), once it exists.
    #[must_use]
    pub fn host(&self, flow: usize, side: usize) -> Option<&Host> {
        self.flows[flow].hosts[side].as_ref()
    }

    /// How a flow went.
    #[must_use]
    pub fn outcome(&self, flow: usize) -> Outcome {
        Outcome {
            finished: self.flows[flow].finished,
        }
    }

    /// What the link in direction 0 (client to server) or 1 has done.
    #[must_use]
    pub fn link(&self, direction: usize) -> &Link {
        &self.links[direction]
    }

    /// From now on no checksum of UDP's finds damage. Payload is spared: its checks are not part of
    /// the world.
    pub fn miss_damage(&mut self) {
        self.misses_damage = true;
    }

    /// From now on each datagram of a sealed flow comes in the company of others that an attacker
    /// made of it.
    pub fn attack(&mut self) {
        self.attacks = Some(Attacks::default());
    }

    /// From now on handshakes pass an attacker who changes them.
    pub fn tamper(&mut self, change: fn(&mut [u8])) {
        self.tamper = Some(change);
    }

    /// What the attacker has done so far.
    #[must_use]
    pub fn attacks(&self) -> Attacks {
        self.attacks.unwrap_or_default()
    }

    /// Packets that arrived damaged so far.
    #[must_use]
    pub fn damaged(&self) -> Damage {
        self.damaged
    }

    /// Closes one side of a flow; from then on [`World::run_until`] goes on until both sides know.
    pub fn close(&mut self, flow: usize, side: usize) {
        let now = self.now();
        self.flows[flow].closing = true;
        if let Some(host) = &mut self.flows[flow].hosts[side] {
            host.connection.close(now);
            self.settle(flow, side);
        }
    }

    /// Runs until `end`, or until all flows have delivered everything, and closed if they were told
    /// to.
    ///
    /// # Panics
    /// If a host never comes to rest.
    pub fn run_until(&mut self, end: Time) {
        while let Some(Reverse(entry)) = self.queue.pop() {
            if entry.at > end.as_ns() {
                self.queue.push(Reverse(entry));
                self.now = end.as_ns();
                return;
            }
            self.now = self.now.max(entry.at);
            self.check_progress();
            if let Some(at) = self.stall_ends(&entry.what) {
                self.push(at, entry.what);
                continue;
            }
            match entry.what {
                What::Arrive(packet) => self.arrive(&packet),
                What::Wake { flow, side } => self.wake(flow, side),
                What::Write { flow, bytes } => self.write(flow, bytes),
            }
            if self.flows.iter().all(Running::is_over) {
                return;
            }
        }
    }

    /// When the thread that this is for runs again, if it is stalled.
    fn stall_ends(&mut self, what: &What) -> Option<u64> {
        let (flow, side) = match *what {
            What::Arrive(Packet { flow, side, .. }) | What::Wake { flow, side } => (flow, side),
            What::Write { .. } => return None,
        };
        let running = &mut self.flows[flow];
        let stalls = running.flow.stalls[side]?;
        let (begin, end) = &mut running.stall[side];
        while *end <= self.now {
            (*begin, *end) = stalls.next(*end, &mut self.rng);
        }
        (*begin <= self.now).then_some(*end)
    }

    fn check_progress(&mut self) {
        let millisecond = self.now / 1_000_000;
        if self.busy.0 != millisecond {
            self.busy = (millisecond, 0);
        }
        self.busy.1 += 1;
        assert!(
            self.busy.1 < EVENTS_PER_MS_MAX,
            "a host spins at {millisecond} ms"
        );
    }

    fn push(&mut self, at: u64, what: What) {
        self.order += 1;
        self.queue.push(Reverse(Entry {
            at,
            order: self.order,
            what,
        }));
    }

    fn arrive(&mut self, packet: &Packet) {
        let now = self.now();
        let (flow, side) = (packet.flow, packet.side);
        let arrived = if self.flows[flow].flow.stamps_arrivals {
            Time::from_ns(packet.arrived)
        } else {
            now
        };
        if self.flows[flow].hosts[side].is_none() {
            if self.flows[flow].flow.rendezvous.is_some() {
                return;
            }
            self.offer_to_listener(packet);
        }
        if let Some(host) = &mut self.flows[flow].hosts[side] {
            if packet.marked {
                host.connection.handle_marks(1);
            }
            let mut attacks = self.attacks.filter(|_| host.sealed().is_some());
            // A handshake has no seal, by which to tell it from another one.
            if let Some(attacks) = &mut attacks
                && host.is_connected()
                && !is_handshake(&packet.bytes)
            {
                let rng = &mut self.rng;
                let mut bad = packet.bytes.clone();
                while bad == packet.bytes {
                    flip(rng, &mut bad);
                }
                attacks.accepted += u64::from(host.handle(now, arrived, &bad, bad.len()));
                attacks.flipped += 1;
                // Its header is genuine; number, beginning and tag are not.
                bad.copy_from_slice(&packet.bytes);
                let tag = bad.len() - TAG_LEN;
                for start in [HEADER_LEN, tag] {
                    bad[start..start + TAG_LEN / 2].copy_from_slice(&rng.next_u64().to_le_bytes());
                }
                attacks.accepted += u64::from(host.handle(now, arrived, &bad, bad.len()));
                attacks.forged += 1;
                let mut shutdown = packet.bytes[..HEADER_LEN + 4].to_vec();
                shutdown[..4].copy_from_slice(&[0x80, 5, 0, 0]);
                attacks.accepted += u64::from(host.handle(now, arrived, &shutdown, shutdown.len()));
                attacks.unsealed += 1;
                host.handle(now, arrived, &packet.bytes, packet.len);
                attacks.accepted += u64::from(host.handle(now, arrived, &packet.bytes, packet.len));
                attacks.replayed += 1;
            } else {
                host.handle(now, arrived, &packet.bytes, packet.len);
            }
            self.attacks = attacks.or(self.attacks);
            self.splice(packet);
            self.settle(flow, side);
        }
    }

    /// The attacker sends a datagram to all hosts but the one that it is for.
    fn splice(&mut self, packet: &Packet) {
        let now = self.now();
        let Some(attacks) = &mut self.attacks else {
            return;
        };
        if is_handshake(&packet.bytes) {
            return;
        }
        for (flow, running) in self.flows.iter_mut().enumerate() {
            for (side, host) in running.hosts.iter_mut().enumerate() {
                let elsewhere = (flow, side) != (packet.flow, packet.side);
                if let Some(host) = host
                    .as_mut()
                    .filter(|host| elsewhere && host.is_connected())
                {
                    attacks.accepted += u64::from(host.handle(now, now, &packet.bytes, packet.len));
                    attacks.spliced += 1;
                }
            }
        }
    }

    fn offer_to_listener(&mut self, packet: &Packet) {
        let now = self.now();
        let from = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9);
        let mut reply = Vec::new();
        let reaction =
            self.listeners[packet.flow].handle_datagram(now, from, &packet.bytes, &mut reply);
        match reaction {
            Reaction::Ignore => {}
            Reaction::Reply => {
                assert!(reply.len() <= packet.len, "a listener must not amplify");
                let len = reply.len();
                self.send(packet.flow, 0, reply, len);
            }
            Reaction::Accept(request) => {
                let running = &mut self.flows[packet.flow];
                let config = running.flow.server.clone();
                let seed = self.rng.next_u64();
                let connection =
                    Connection::accept(now, config.clone(), socket_id(1), &request, seed);
                if let Ok(connection) = connection {
                    running.hosts[1] = Some(Host::new(
                        connection,
                        &config,
                        &running.flow,
                        packet.flow,
                        1,
                    ));
                    self.settle(packet.flow, 1);
                }
            }
        }
    }

    fn wake(&mut self, flow: usize, side: usize) {
        let now = self.now();
        let opens = side == 0 || self.flows[flow].flow.rendezvous.is_some();
        if opens && !self.flows[flow].started[side] {
            self.start(flow, side);
        }
        if self.flows[flow].wakeups[side] <= now {
            self.flows[flow].wakeups[side] = Time::from_ns(u64::MAX);
        }
        if let Some(host) = &mut self.flows[flow].hosts[side] {
            host.handle_timeout(now);
            self.settle(flow, side);
        }
    }

    fn write(&mut self, flow: usize, bytes: u64) {
        let now = self.now();
        if let Some(host) = &mut self.flows[flow].hosts[0] {
            let _ = host.connection.write(now, bytes, true);
            self.settle(flow, 0);
        }
    }

    fn start(&mut self, flow: usize, side: usize) {
        let now = self.now();
        let (initial, seed) = (self.rng.next_u64(), self.rng.next_u64());
        // Every fourth connection soon sees its sequence numbers wrap.
        let initial = if initial & 3 == 0 {
            !(initial >> 56)
        } else {
            initial >> 8
        };
        let running = &mut self.flows[flow];
        running.started[side] = true;
        let config = [&running.flow.client, &running.flow.server][side].clone();
        #[expect(clippy::cast_possible_truncation, reason = "any 31 bits will do")]
        let own = Identity {
            socket: socket_id(side),
            initial: Seq::new(initial as u32),
        };
        let peer = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let connection = if running.flow.rendezvous.is_some() {
            Connection::rendezvous(now, config.clone(), own, peer, seed)
        } else {
            Connection::connect(now, config.clone(), own, peer, seed)
        };
        running.hosts[side] = Some(Host::new(connection, &config, &running.flow, flow, side));
    }

    /// Writes what is to be written, sends what is to be sent, sets the next alarm, and sees
    /// whether all is done.
    fn settle(&mut self, flow: usize, side: usize) {
        let now = self.now();
        let running = &mut self.flows[flow];
        let Some(host) = &mut running.hosts[side] else {
            return;
        };
        if host.is_connected() && !running.written[side] {
            running.written[side] = true;
            if let (0, Some(remembered)) = (side, running.flow.remembered) {
                host.connection.resume(remembered);
            }
            let bytes = running.flow.stream_bytes[side];
            if bytes > 0 {
                let _ = host.connection.write(now, bytes, true);
            }
            for message in &running.flow.messages[side] {
                host.connection
                    .send_message(now, message.len, message.in_order, message.ttl_ns)
                    .expect("the message fits");
            }
        }
        let mut packets = Vec::new();
        host.drain(now, |bytes, len| packets.push((bytes, len)));
        let alarm = host
            .connection
            .poll_timeout(now)
            .into_iter()
            .chain(host.reads_at(now))
            .map(|at| at.max(now.after(1)))
            .min();
        for (bytes, len) in packets {
            self.send(flow, 1 - side, bytes, len);
        }
        if let Some(at) = alarm
            && at < self.flows[flow].wakeups[side]
            && at.as_ns() < u64::MAX
        {
            self.flows[flow].wakeups[side] = at;
            self.push(at.as_ns(), What::Wake { flow, side });
        }
        self.note_finished(flow);
    }

    fn note_finished(&mut self, flow: usize) {
        let now = self.now();
        let running = &mut self.flows[flow];
        if running.finished.is_some() {
            return;
        }
        let [Some(client), Some(server)] = &running.hosts else {
            return;
        };
        let settled = client.connection.is_drained() && server.connection.is_drained();
        let all = client.has_all() && server.has_all();
        if all && settled && running.written == [true; 2] {
            running.finished = Some(now);
        }
    }

    fn send(&mut self, flow: usize, side: usize, mut bytes: Vec<u8>, len: usize) {
        let now = self.now;
        if self
            .blackouts
            .iter()
            .any(|&(from, to)| (from..to).contains(&now))
        {
            return;
        }
        let wire_bytes = u32::try_from(len + LOWER_LEN).unwrap_or(u32::MAX);
        let mtu = self.mtus.iter().rev().find(|(at, _)| *at <= now);
        if mtu.is_some_and(|&(_, mtu)| wire_bytes > mtu) {
            return;
        }
        if let Some(tamper) = self.tamper
            && is_handshake(&bytes)
        {
            tamper(&mut bytes);
        }
        let sender = self.flows[flow].hosts[1 - side].as_ref();
        let ecn_capable = sender.is_some_and(|host| host.connection.is_ecn_capable());
        let Fate::Delivered {
            at_ns,
            marked,
            corrupted,
            duplicate_at_ns,
        } = self.links[1 - side].admit(now, wire_bytes)
        else {
            return;
        };
        if corrupted {
            let header_len = bytes.len().min(HEADER_LEN);
            if self.misses_damage {
                let exposed_len = if is_data(&bytes) {
                    header_len
                } else {
                    bytes.len()
                };
                self.corrupt(&mut bytes[..exposed_len]);
                self.damaged.missed += 1;
            } else {
                if self.corrupt(&mut bytes) {
                    self.damaged.missed += 1;
                } else {
                    self.damaged.caught += 1;
                }
                return;
            }
        }
        if let Some(at_ns) = duplicate_at_ns {
            let packet = Packet {
                flow,
                side,
                bytes: bytes.clone(),
                len,
                arrived: at_ns,
                marked: marked && ecn_capable,
            };
            self.push(at_ns, What::Arrive(packet));
        }
        self.push(
            at_ns,
            What::Arrive(Packet {
                flow,
                side,
                bytes,
                len,
                arrived: at_ns,
                marked: marked && ecn_capable,
            }),
        );
    }

    /// Flips bits; answers whether UDP's checksum would still let the datagram pass.
    fn corrupt(&mut self, bytes: &mut [u8]) -> bool {
        let before = checksum(bytes);
        flip(&mut self.rng, bytes);
        checksum(bytes) == before
    }
}

/// Control type 0.
fn is_handshake(bytes: &[u8]) -> bool {
    bytes[..2] == [0x80, 0]
}

/// Flips one bit to four.
fn flip(rng: &mut Rng, bytes: &mut [u8]) {
    for _ in 0..=rng.below(3) {
        let bit = rng.below(bytes.len() as u64 * 8);
        if let Some(byte) = usize::try_from(bit / 8)
            .ok()
            .and_then(|at| bytes.get_mut(at))
        {
            *byte ^= 1 << (bit % 8);
        }
    }
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&low| u32::from(low)))
        .fold(0, |sum, word| {
            let sum = sum + word;
            (sum & 0xffff) + (sum >> 16)
        });
    u16::try_from(sum & 0xffff).unwrap_or(0)
}
