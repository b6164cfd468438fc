//! Virtual time, links, and the flows that share them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use haul_cc::Time;
use haul_netem::{Fate, Link, LinkConfig, Rng};
use haul_udt::wire::Handshake;
use haul_udt::{Config, Connection, Identity, Listener, Reaction, Seq};

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

/// A connection from the client side to the server side.
#[derive(Debug, Clone)]
pub struct Flow {
    /// Both ends' choices.
    pub client: Config,
    /// The server's.
    pub server: Config,
    /// When the client connects.
    pub starts: Time,
    /// Stream bytes that each side writes: client, server.
    pub stream_bytes: [u64; 2],
    /// Messages that the client sends: lengths, whether ordered, time to live.
    pub messages: Vec<(u64, bool, Option<u64>)>,
    /// Carry and check every byte.
    pub bytes_matter: bool,
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
    started: bool,
    written: [bool; 2],
    finished: Option<Time>,
    wakeups: [Time; 2],
}

#[derive(Debug, PartialEq, Eq)]
struct Packet {
    flow: usize,
    /// The side that it goes to.
    side: usize,
    bytes: Vec<u8>,
    len: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum What {
    Arrive(Packet),
    Wake { flow: usize, side: usize },
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
    flows: Vec<Running>,
    listeners: Vec<Listener>,
    rng: Rng,
}

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
            flows: Vec::new(),
            listeners: Vec::new(),
            rng,
        }
    }

    /// Adds a flow; answers its index.
    pub fn add(&mut self, flow: Flow) -> usize {
        let index = self.flows.len();
        let at = flow.starts.as_ns().max(1);
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&self.rng.next_u64().to_le_bytes());
        self.listeners.push(Listener::new(&flow.server, secret));
        self.flows.push(Running {
            flow,
            hosts: [None, None],
            started: false,
            written: [false; 2],
            finished: None,
            wakeups: [Time::from_ns(u64::MAX); 2],
        });
        self.push(
            at,
            What::Wake {
                flow: index,
                side: 0,
            },
        );
        index
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

    /// Runs until `end`, or until all flows have delivered everything.
    pub fn run_until(&mut self, end: Time) {
        while let Some(Reverse(entry)) = self.queue.pop() {
            if entry.at > end.as_ns() {
                self.queue.push(Reverse(entry));
                self.now = end.as_ns();
                return;
            }
            self.now = self.now.max(entry.at);
            match entry.what {
                What::Arrive(packet) => self.arrive(&packet),
                What::Wake { flow, side } => self.wake(flow, side),
            }
            if self.flows.iter().all(|running| running.finished.is_some()) {
                return;
            }
        }
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
        if self.flows[flow].hosts[side].is_none() {
            self.offer_to_listener(packet);
        }
        if let Some(host) = &mut self.flows[flow].hosts[side] {
            host.handle(now, &packet.bytes, packet.len);
            self.settle(flow, side);
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
                    let (own, peer) = (seeds(packet.flow, 1), seeds(packet.flow, 0));
                    let bytes_matter = running.flow.bytes_matter;
                    running.hosts[1] =
                        Some(Host::new(connection, &config, own, peer, bytes_matter));
                    self.settle(packet.flow, 1);
                }
            }
        }
    }

    fn wake(&mut self, flow: usize, side: usize) {
        let now = self.now();
        if side == 0 && !self.flows[flow].started {
            self.start(flow);
        }
        if self.flows[flow].wakeups[side] <= now {
            self.flows[flow].wakeups[side] = Time::from_ns(u64::MAX);
        }
        if let Some(host) = &mut self.flows[flow].hosts[side] {
            host.handle_timeout(now);
            self.settle(flow, side);
        }
    }

    fn start(&mut self, flow: usize) {
        let now = self.now();
        let (initial, seed) = (self.rng.next_u64(), self.rng.next_u64());
        let running = &mut self.flows[flow];
        running.started = true;
        let config = running.flow.client.clone();
        #[expect(clippy::cast_possible_truncation, reason = "any 31 bits will do")]
        let own = Identity {
            socket: socket_id(0),
            initial: Seq::new(initial as u32),
        };
        let peer = Handshake::peer_words(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let connection = Connection::connect(now, config.clone(), own, peer, seed);
        let (own, peer) = (seeds(flow, 0), seeds(flow, 1));
        running.hosts[0] = Some(Host::new(
            connection,
            &config,
            own,
            peer,
            running.flow.bytes_matter,
        ));
    }

    /// Writes what is to be written, sends what is to be sent, sets the next alarm, and sees whether all is done.
    fn settle(&mut self, flow: usize, side: usize) {
        let now = self.now();
        let running = &mut self.flows[flow];
        let Some(host) = &mut running.hosts[side] else {
            return;
        };
        if host.is_connected() && !running.written[side] {
            running.written[side] = true;
            let bytes = running.flow.stream_bytes[side];
            if bytes > 0 {
                let _ = host.connection.write(now, bytes, true);
            }
            if side == 0 {
                for &(len, in_order, ttl_ns) in &running.flow.messages {
                    let _ = host.connection.send_message(now, len, in_order, ttl_ns);
                }
            }
        }
        let mut packets = Vec::new();
        host.drain(now, |bytes, len| packets.push((bytes, len)));
        let alarm = host
            .connection
            .poll_timeout(now)
            .map(|at| at.max(now.after(1)));
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
        let sent: u64 = running.flow.messages.iter().map(|(len, ..)| *len).sum();
        let all = server.rx.delivered_bytes >= running.flow.stream_bytes[0] + sent
            && client.rx.delivered_bytes >= running.flow.stream_bytes[1];
        let settled = client.connection.is_drained() && server.connection.is_drained();
        let messages_dropped = sent > 0 && settled && running.written == [true; 2];
        if all && settled || messages_dropped {
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
        let Fate::Delivered {
            at_ns,
            corrupted,
            duplicate_at_ns,
        } = self.links[1 - side].admit(now, wire_bytes)
        else {
            return;
        };
        if corrupted && !self.corrupt(&mut bytes) {
            return;
        }
        if let Some(at_ns) = duplicate_at_ns {
            let packet = Packet {
                flow,
                side,
                bytes: bytes.clone(),
                len,
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
            }),
        );
    }

    /// Flips bits; answers whether UDP's checksum would still let the datagram pass.
    fn corrupt(&mut self, bytes: &mut [u8]) -> bool {
        let before = checksum(bytes);
        for _ in 0..=self.rng.below(3) {
            let bit = self.rng.below(bytes.len() as u64 * 8);
            if let Some(byte) = usize::try_from(bit / 8)
                .ok()
                .and_then(|at| bytes.get_mut(at))
            {
                *byte ^= 1 << (bit % 8);
            }
        }
        checksum(bytes) == before
    }
}

fn seeds(flow: usize, side: usize) -> u64 {
    flow as u64 * 2 + side as u64 + 1
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
