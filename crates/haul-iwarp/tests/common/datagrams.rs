//! Datagram queue pairs on virtual time, and a network between them that loses, doubles, delays and
//! spoils.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use haul_iwarp::Operation;
use haul_iwarp::datagram::wire::{
    Body, CONTROL_MAX, DATA_HEADER_MAX, DataHeader, Datagram, Flags, Kind, MsgId, Opcode, Psn, Shim,
};
use haul_iwarp::datagram::{
    Action, Destination, Record, Source, Transmit, Ud, UdCompletion, UdConfig, UdEvent, UdReceived,
    UdSendWr, ValidityMap,
};
use haul_iwarp::wire::ddp::Model;
use haul_iwarp::{Crc32c, Payload, Pd, Placement, RecvWr, Rights, SECOND_NS, Stag, Target, Time};

use super::random::Random;
use super::{Ram, pattern};

/// One queue pair and its memory.
#[derive(Debug)]
pub struct Node {
    pub ud: Ud,
    pub ram: Ram,
    pub addr: SocketAddr,
    pub qpn: u32,
    pub epoch: u32,
    pub events: Vec<UdEvent>,
    /// Where something was placed, in regions: region, offset, bytes.
    pub placed: Vec<(u64, u64, u32)>,
    pub octets_sent: usize,
    /// Disables the fast path: consecutive datagrams take the full parser.
    pub one_by_one: bool,
    /// Datagrams that came the shorter way, and that left it.
    pub alike: (usize, usize),
    next_slot: u32,
    last: Option<(Transmit, [u8; DATA_HEADER_MAX])>,
}

pub fn config(n: u8) -> UdConfig {
    super::with(UdConfig::default(), |config| {
        config.pd = Pd(7);
        config.qpn = u32::from(n) + 0x10;
        config.epoch = u32::from(n) + 0x1000;
        config.seed = u64::from(n);
        config.key = [n; 16];
        config.datagram_max = 548;
    })
}

impl Node {
    pub fn new(n: u8) -> Self {
        Self::with(n, config(n))
    }

    pub fn with(n: u8, config: UdConfig) -> Self {
        Self {
            addr: ([192, 0, 2, n], 4_791).into(),
            qpn: config.qpn,
            epoch: config.epoch,
            ud: Ud::new(config),
            ram: Ram::default(),
            events: Vec::new(),
            placed: Vec::new(),
            octets_sent: 0,
            one_by_one: false,
            alike: (0, 0),
            next_slot: 0,
            last: None,
        }
    }

    pub fn destination(&self) -> Destination {
        Destination {
            addr: self.addr,
            qpn: self.qpn,
        }
    }

    pub fn source(&self) -> Source {
        Source {
            addr: self.addr,
            qpn: self.qpn,
            epoch: self.epoch,
        }
    }

    fn slot(&mut self) -> u32 {
        self.next_slot += 1;
        self.next_slot
    }

    /// Posts a receive; its id is its slot.
    pub fn receive(&mut self, len: u32) -> u32 {
        let slot = self.slot();
        self.ram.receives.insert(slot, vec![0; len as usize]);
        let id = u64::from(slot);
        self.ud.post_receive(RecvWr::new(id, slot, len)).unwrap();
        slot
    }

    /// Posts a request; its id is its slot.
    pub fn post(&mut self, to: Destination, op: Operation, bytes: Vec<u8>) -> u32 {
        let len = u32::try_from(bytes.len()).unwrap();
        let slot = self.slot();
        self.ram.sends.insert(slot, bytes);
        self.post_len(to, op, slot, len);
        slot
    }

    pub fn read(&mut self, to: Destination, op: Operation, len: u32) -> u32 {
        let slot = self.slot();
        self.post_len(to, op, slot, len);
        slot
    }

    fn post_len(&mut self, to: Destination, op: Operation, slot: u32, len: u32) {
        let wr = UdSendWr::new(u64::from(slot), slot, to, op, len);
        self.ud.post_send(wr).unwrap();
    }

    /// The next datagram of a message.
    pub fn next(&mut self, now: Time) -> Option<(SocketAddr, Vec<u8>)> {
        let alike = self.last.take().and_then(|last| self.neighbour(last));
        let (transmit, header) = match alike {
            Some(alike) => alike,
            None => {
                let mut header = [0; DATA_HEADER_MAX];
                let transmit = self.ud.poll_transmit(now, &self.ram, &mut header)?;
                (transmit, header)
            }
        };
        self.last = Some((transmit, header));
        let mut bytes = header[..transmit.header_len].to_vec();
        bytes.extend(self.ram.payload(transmit.payload, transmit.payload_len));
        let mut crc = Crc32c::new();
        crc.update(&bytes);
        bytes.extend_from_slice(&crc.to_wire());
        assert_eq!(bytes.len(), transmit.wire_len());
        assert!(bytes.len() <= transmit.full_len);
        Some((transmit.to, bytes))
    }

    /// The datagram after the last one, if it differs in its numbers only.
    fn neighbour(
        &mut self,
        (mut transmit, mut header): (Transmit, [u8; DATA_HEADER_MAX]),
    ) -> Option<(Transmit, [u8; DATA_HEADER_MAX])> {
        if self.one_by_one {
            return None;
        }
        let start = self.ud.poll_alike(&mut header)?;
        let Payload::Request { offset, .. } = &mut transmit.payload else {
            panic!("a neighbour of what is no part of a request");
        };
        *offset = start;
        self.alike.1 += 1;
        Some((transmit, header))
    }

    /// All that is to be sent now.
    pub fn transmit(&mut self, now: Time) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut out: Vec<_> = std::iter::from_fn(|| self.next(now)).collect();
        let mut control = [0; 9_000];
        while let Some((to, len)) = self.ud.poll_control(now, &mut control) {
            assert!(len <= CONTROL_MAX || control[1] == 8);
            out.push((to, control[..len].to_vec()));
        }
        self.octets_sent += out.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
        self.poll();
        out
    }

    /// Sends something long to a queue pair, and answers the probes of the path that go with it.
    pub fn find_path(&mut self, now: Time, peer: &Self) {
        self.post(peer.destination(), SEND, vec![0; 3_000]);
        for (_, bytes) in self.transmit(now) {
            let Body::Probe(probe) = Datagram::open(&bytes).unwrap().body else {
                continue;
            };
            let shim = Shim {
                kind: Kind::ProbeAck,
                flags: Flags::NONE,
                dst_qpn: self.qpn,
                src_qpn: peer.qpn,
                epoch: peer.epoch,
                psn: Psn(0),
                msg_id: MsgId(0),
                msg_len: 0,
                seg_off: 0,
            };
            let mut answer = [0; CONTROL_MAX];
            let len = Body::ProbeAck(probe).emit(&shim, &mut answer);
            self.take(now, peer.addr, &answer[..len]);
        }
        self.events.clear();
    }

    /// The datagrams of one request, which is the only one.
    pub fn segments(&mut self, to: Destination, op: Operation, bytes: Vec<u8>) -> Vec<Vec<u8>> {
        self.post(to, op, bytes);
        let sent = self.transmit(Time::default());
        self.events.clear();
        sent.into_iter().map(|(_, bytes)| bytes).collect()
    }

    /// A datagram arrives, and what it asks for is done.
    pub fn take(&mut self, now: Time, from: SocketAddr, bytes: &[u8]) -> Action {
        if let (false, Ok(covered)) = (self.one_by_one, Datagram::check(bytes))
            && let Some((target, payload)) = self.ud.handle_alike(&self.ram, from, covered)
        {
            self.alike.0 += 1;
            let len = u32::try_from(payload.len()).unwrap();
            let placement = Placement { target, len };
            self.place(now, &placement, payload);
            self.poll();
            return Action::Place(placement);
        }
        let datagram = match Datagram::open(bytes) {
            Ok(datagram) => datagram,
            Err(reject) => {
                let action = self.ud.handle_reject(now, from, reject);
                self.poll();
                return action;
            }
        };
        let action = self.ud.handle_datagram(now, &mut self.ram, from, &datagram);
        if let Action::Place(placement) = action {
            let Body::Data(segment) = datagram.body else {
                panic!("a placement of no data");
            };
            assert_eq!(placement.len as usize, segment.payload.len());
            self.place(now, &placement, segment.payload);
        }
        self.poll();
        action
    }

    fn place(&mut self, now: Time, placement: &Placement, payload: &[u8]) {
        if let Target::Region { region, offset } = placement.target {
            self.placed.push((region.0, offset, placement.len));
        }
        self.ram.place(placement, payload);
        self.ud.handle_placed(now, true);
    }

    pub fn poll(&mut self) {
        while let Some(event) = self.ud.poll_event() {
            self.events.push(event);
        }
    }

    pub fn pass(&mut self, now: Time) {
        self.ud.handle_timeout(now);
        self.poll();
    }
}

/// Faults that a network applies to datagrams, in thousandths.
#[derive(Debug, Clone, Copy, Default)]
pub struct Weather {
    pub loss: u64,
    pub double: u64,
    pub spoil: u64,
    /// One way, nanoseconds: at least, and more at most.
    pub delay_ns: u64,
    pub jitter_ns: u64,
}

/// Nodes, and datagrams between them.
#[derive(Debug)]
pub struct Net {
    pub nodes: Vec<Node>,
    pub now: Time,
    pub weather: Weather,
    pub random: Random,
    flight: BTreeMap<(Time, u64), (SocketAddr, SocketAddr, Vec<u8>)>,
    count: u64,
}

impl Net {
    pub fn new(nodes: Vec<Node>, weather: Weather, seed: u64) -> Self {
        Self {
            nodes,
            now: Time::from_ns(1),
            weather,
            random: Random::new(seed),
            flight: BTreeMap::new(),
            count: 0,
        }
    }

    fn launch(&mut self, from: SocketAddr, to: SocketAddr, bytes: Vec<u8>) {
        if self.random.chance(self.weather.loss) {
            return;
        }
        let copies = 1 + u64::from(self.random.chance(self.weather.double));
        for _ in 0..copies {
            let mut bytes = bytes.clone();
            if self.random.chance(self.weather.spoil) {
                let at = self.random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << self.random.below(8);
            }
            let delay = self.weather.delay_ns + self.random.below(self.weather.jitter_ns + 1);
            self.count += 1;
            let when = (self.now.after(delay), self.count);
            self.flight.insert(when, (from, to, bytes));
        }
    }

    /// Drops everything from now on, datagrams in flight included.
    pub fn lose_all(&mut self) {
        self.weather.loss = 1_000;
        self.flight.clear();
    }

    /// Sends what is to be sent.
    pub fn flush(&mut self) {
        for at in 0..self.nodes.len() {
            let from = self.nodes[at].addr;
            for (to, bytes) in self.nodes[at].transmit(self.now) {
                self.launch(from, to, bytes);
            }
        }
    }

    /// The next thing that happens, not after `until`. False: nothing does.
    pub fn step(&mut self, until: Time, mut seen: impl FnMut(&mut Node, usize)) -> bool {
        self.flush();
        let arrival = self.flight.keys().next().map(|(when, _)| *when);
        let timers = self.nodes.iter().filter_map(|node| node.ud.poll_timeout());
        let Some(next) = timers.chain(arrival).min().filter(|next| *next <= until) else {
            return false;
        };
        self.now = self.now.max(next);
        if arrival.is_some_and(|arrival| arrival <= self.now)
            && let Some((_, (from, to, bytes))) = self.flight.pop_first()
            && let Some(at) = self.nodes.iter().position(|node| node.addr == to)
        {
            self.nodes[at].take(self.now, from, &bytes);
            seen(&mut self.nodes[at], at);
        }
        for (at, node) in self.nodes.iter_mut().enumerate() {
            node.pass(self.now);
            seen(node, at);
        }
        true
    }

    pub fn run(&mut self, ns: u64) {
        let until = self.now.after(ns);
        while self.step(until, |_, _| ()) {}
        self.now = until;
    }
}

pub const MS: u64 = SECOND_NS / 1_000;
/// Payload of a segment of Write-Record in datagrams of 548 bytes, and of a Send.
pub const SEG: u32 = 548 - 50;
pub const SEND_SEG: u32 = 548 - 54;
pub const TAG: Stag = Stag(0x1122_3300);
pub const BASE: u64 = 0x1000;
pub const SEND: Operation = Operation::Send {
    solicited: false,
    invalidate: None,
};

pub fn record_op() -> Operation {
    Operation::WriteRecord {
        stag: TAG,
        to: BASE,
        immediate: None,
    }
}

/// A node with a region that anybody may write.
pub fn target(config: UdConfig) -> Node {
    let mut node = Node::with(2, config);
    node.ram
        .register(TAG.0, BASE, vec![0; 1 << 20], Rights::REMOTE_WRITE);
    node.ram.open.insert(TAG);
    node
}

pub fn two() -> (Node, Node) {
    (Node::new(1), target(config(2)))
}

pub fn at(ms: u64) -> Time {
    Time::from_ns(1 + ms * MS)
}

pub fn records(node: &Node) -> Vec<&Record> {
    let found = node.events.iter().filter_map(|event| match event {
        UdEvent::Record(record) => Some(record),
        _ => None,
    });
    found.collect()
}

pub fn received(node: &Node) -> Vec<&UdReceived> {
    let found = node.events.iter().filter_map(|event| match event {
        UdEvent::Received(received) => Some(received),
        _ => None,
    });
    found.collect()
}

pub fn completions(node: &Node) -> Vec<&UdCompletion> {
    let found = node.events.iter().filter_map(|event| match event {
        UdEvent::Completion(completion) => Some(completion),
        _ => None,
    });
    found.collect()
}

pub fn region(node: &Node) -> &[u8] {
    &node.ram.regions[0]
}

pub fn ranges(record: &Record) -> Vec<(u32, u32)> {
    match &record.map {
        ValidityMap::Full => vec![(0, record.len)],
        ValidityMap::Ranges(ranges) => ranges.to_vec(),
    }
}

/// Waits until nothing is open.
pub fn settle(node: &mut Node, from: Time) -> Time {
    let mut now = from;
    while let Some(deadline) = node.ud.poll_timeout() {
        assert!(deadline < from.after(60 * SECOND_NS));
        now = now.max(deadline);
        node.pass(now);
    }
    now
}

pub fn resealed(bytes: &[u8], change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = bytes[..bytes.len() - 4].to_vec();
    change(&mut bytes);
    let mut crc = Crc32c::new();
    crc.update(&bytes);
    bytes.extend_from_slice(&crc.to_wire());
    bytes
}

/// A datagram with a segment of a Write-Record.
pub fn forged(
    from: &Node,
    to: &Node,
    change: impl FnOnce(&mut DataHeader<'static>),
    len: usize,
) -> Vec<u8> {
    let mut header = DataHeader {
        shim: Shim {
            kind: Kind::Data,
            flags: Flags::NONE,
            dst_qpn: to.qpn,
            src_qpn: from.qpn,
            epoch: from.epoch,
            psn: Psn(7),
            msg_id: MsgId(70),
            msg_len: 1_000,
            seg_off: 0,
        },
        ext: &[],
        opcode: Opcode::WriteRecord,
        model: Model::Tagged {
            stag: TAG,
            to: BASE,
        },
    };
    change(&mut header);
    let mut out = vec![0; DATA_HEADER_MAX];
    let head = header.emit(&mut out);
    out.truncate(head);
    out.extend(pattern(len, header.shim.seg_off as u8));
    let mut crc = Crc32c::new();
    crc.update(&out);
    out.extend_from_slice(&crc.to_wire());
    out
}

pub fn at_offset(offset: u32) -> impl Fn(&mut DataHeader<'static>) {
    move |header| {
        header.shim.seg_off = offset;
        header.model = Model::Tagged {
            stag: TAG,
            to: BASE + u64::from(offset),
        };
    }
}
