//! A chain of hosts: an opener, gateways, a terminus. Control connections deliver in order after
//! any time, and break; reads and writes take any time, fail where the key is not valid, and
//! sometimes bring wrong bytes.

mod pushed;
mod reception;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use haul_xsp::bag::plan::Mode;
use haul_xsp::bag::{Get, Memory, Place, Put, Read};
use haul_xsp::wire::{Key, Metadata};
use haul_xsp::{
    ConnId, Event, Relay, RelayEvent, Session, SessionConfig, SessionId, Side, SlabSeq, State,
    Time, crc32c,
};

use super::app::{App, pattern};
use super::random::Random;
use super::{endpoint, tcp};

pub const MS: u64 = 1_000_000;
pub const SESSION: SessionId = SessionId([0x5e; 16]);
const TICKET: [u8; 56] = [9; 56];

pub enum Node {
    End(Box<Session>),
    Gateway(Box<Relay>),
    Gone,
}

/// The memory of one end of a segment, and what it has opened to the peer.
#[derive(Default)]
struct Bench {
    ring: Vec<Vec<u8>>,
    arena: Vec<u8>,
    stags: BTreeMap<u32, Place>,
    of_slab: BTreeMap<SlabSeq, Vec<u32>>,
    of_grant: BTreeMap<u64, u32>,
    next_stag: u32,
    /// Counts ways: what was read on an old one is not placed.
    way: u32,
    /// When the last of what was written so far is there; writes that failed: no mark behind them
    /// arrives.
    written_at: Time,
    failed_puts: BTreeSet<(u32, SlabSeq, u64)>,
    /// The attempt that writes of a slab were of.
    attempts: BTreeMap<SlabSeq, u64>,
}

enum Happening {
    Control {
        half: usize,
        epoch: u32,
        octets: Vec<u8>,
    },
    ReadAt {
        half: usize,
        ways: [u32; 2],
        get: Get,
    },
    Arrive {
        half: usize,
        way: u32,
        get: Get,
        octets: Option<Vec<u8>>,
    },
    Write {
        half: usize,
        ways: [u32; 2],
        put: Put,
    },
    Mark(pushed::Mark),
    Reconnect {
        segment: usize,
    },
    Tick {
        node: usize,
    },
    Break {
        segment: usize,
    },
    Crash,
    Detour {
        crash: bool,
    },
}

#[derive(Clone)]
pub struct Setup {
    pub segments: usize,
    pub config: SessionConfig,
    pub end_to_end: bool,
    pub conns: u64,
    pub total_max: u64,
    pub resets: bool,
    pub breaks: u64,
    pub crashes: u64,
    /// How often the opener goes another way.
    pub detours: u64,
    pub corrupt: u64,
    pub latency_max: u64,
}

pub struct World {
    pub seed: u64,
    pub now: Time,
    pub random: Random,
    pub nodes: Vec<Node>,
    pub apps: [App; 2],
    benches: Vec<Bench>,
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    next: u64,
    /// Of each segment: how often its control connection broke; when the last bytes of each
    /// direction arrive.
    epochs: Vec<u32>,
    last: Vec<Time>,
    setup: Setup,
    fresh: Vec<Option<Session>>,
    /// The opener is to take another way as soon as it can.
    wants_detour: bool,
    /// Ways that it has taken.
    pub detours: u64,
    pub corrupted: u64,
    /// Ranges that came with announcements.
    pub inline: u64,
    pub events: u64,
    gone: bool,
}

impl World {
    pub fn new(seed: u64, setup: Setup) -> Self {
        let mut random = Random::new(seed);
        let segments = setup.segments;
        let app = |from_opener: bool, conns: u64| App {
            from_opener,
            streams: BTreeMap::new(),
            to_open: conns,
            total_max: setup.total_max,
            resets: setup.resets,
        };
        let by_far = random.below(setup.conns / 2 + 1);
        let mut world = Self {
            seed,
            now: Time::from_ns(1_000_000),
            random,
            nodes: (0..=segments).map(|_| Node::Gone).collect(),
            apps: [app(true, setup.conns - by_far), app(false, by_far)],
            benches: Vec::new(),
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            next: 0,
            epochs: vec![0; segments],
            last: vec![Time::default(); segments * 2],
            fresh: (0..segments).map(|_| None).collect(),
            setup,
            wants_detour: false,
            detours: 0,
            corrupted: 0,
            inline: 0,
            events: 0,
            gone: false,
        };
        world.benches = (0..segments * 2).map(|_| world.bench()).collect();
        let mut open = super::open(segments, world.setup.end_to_end);
        for offer in open.hops.iter_mut().flat_map(|hop| &mut hop.offers) {
            // The other end decides the outcome.
            offer.params.push = Some(1);
        }
        let eager = world.random.below(world.apps[0].to_open + 1);
        let first = (endpoint("server", 80), Metadata::default());
        let firsts = vec![first; eager as usize];
        let (config, now) = (world.config(0), world.now);
        let opened = Session::open_with(config, now, SESSION, open, &firsts, [1; 32]);
        let (session, conns) = opened.unwrap();
        world.nodes[0] = Node::End(Box::new(session));
        world.apps[0].to_open -= eager;
        for conn in conns {
            world.apps[0].stream(&mut world.random, conn);
        }
        world.accept(0);
        for node in [0, segments] {
            world.at(0, Happening::Tick { node });
        }
        for _ in 0..world.setup.breaks {
            let segment = world.random.below(segments as u64) as usize;
            let after = world.random.below(400 * MS);
            world.at(after, Happening::Break { segment });
        }
        for _ in 0..world.setup.crashes {
            let after = world.random.below(400 * MS);
            world.at(after, Happening::Crash);
        }
        for _ in 0..world.setup.detours {
            let after = world.random.below(400 * MS);
            let crash = world.random.chance(500);
            world.at(after, Happening::Detour { crash });
        }
        world
    }

    fn bench(&self) -> Bench {
        let (producer, consumer) = (&self.setup.config.producer, &self.setup.config.consumer);
        Bench {
            ring: vec![vec![0; producer.region_bytes as usize]; usize::from(producer.regions)],
            arena: vec![0; consumer.arena_bytes as usize],
            ..Bench::default()
        }
    }

    fn config(&self, node: usize) -> SessionConfig {
        let is_end = node == 0 || node == self.setup.segments;
        let mut offer = tcp();
        offer.params.push = Some((self.setup.config.producer.mode == Mode::Push).into());
        SessionConfig {
            is_end,
            protocols: vec![offer],
            ..self.setup.config.clone()
        }
    }

    fn at(&mut self, after: u64, what: Happening) {
        let id = self.next;
        self.next += 1;
        self.queue.push(Reverse((self.now.after(after), id)));
        self.happenings.insert(id, what);
    }

    /// A control connection arrives at the far end of a segment.
    fn accept(&mut self, segment: usize) {
        let session =
            Session::accept(self.config(segment + 1), self.now, [2 + segment as u8; 32]).unwrap();
        self.fresh[segment] = Some(session);
    }

    pub fn session(&mut self, half: usize) -> Option<&mut Session> {
        let (node, side) = place_of(half);
        match &mut self.nodes[node] {
            Node::End(session) => Some(session),
            Node::Gateway(relay) => Some(relay.side(side)),
            Node::Gone => None,
        }
    }

    pub fn run(&mut self) {
        self.settle();
        let mut steps = 0_u64;
        while !self.is_done() {
            steps += 1;
            assert!(
                steps < 3_000_000,
                "seed {}: no end, at {:?}: {:?}",
                self.seed,
                self.now,
                self.apps
            );
            let due = (0..self.benches.len())
                .filter_map(|half| self.session(half)?.poll_timeout())
                .min();
            let queued = self.queue.peek().map(|Reverse((at, _))| *at);
            let Some(at) = due.into_iter().chain(queued).min() else {
                panic!(
                    "seed {}: nothing left to happen: {:?}",
                    self.seed, self.apps
                );
            };
            self.now = self.now.max(at);
            if queued.is_some_and(|queued| queued <= self.now) {
                let Reverse((_, id)) = self.queue.pop().unwrap();
                let what = self.happenings.remove(&id).unwrap();
                self.happen(what);
            }
            let now = self.now;
            for half in 0..self.benches.len() {
                if let Some(session) = self
                    .session(half)
                    .filter(|s| s.poll_timeout().is_some_and(|at| at <= now))
                {
                    session.handle_timeout(now);
                }
            }
            self.settle();
        }
    }

    fn was_open(&mut self) -> bool {
        self.session(0)
            .is_some_and(|session| session.agreed().resumable)
    }

    fn is_done(&self) -> bool {
        self.gone || self.apps.iter().all(App::is_done)
    }

    fn happen(&mut self, what: Happening) {
        let now = self.now;
        match what {
            Happening::Control {
                half,
                epoch,
                octets,
            } => {
                if epoch == self.epochs[half / 2] {
                    self.control(half, &octets);
                }
            }
            Happening::ReadAt {
                half,
                ways: [way, theirs],
                get,
            } => {
                let peer = half ^ 1;
                let is_there = self.benches[peer].way == theirs && self.session(peer).is_some();
                let octets = is_there.then(|| self.remote(peer, get.key, u64::from(get.len)));
                let octets = octets.flatten();
                let after = self.random.below(self.setup.latency_max);
                self.at(
                    after,
                    Happening::Arrive {
                        half,
                        way,
                        get,
                        octets,
                    },
                );
            }
            Happening::Arrive {
                half,
                way,
                get,
                octets,
            } => {
                if way != self.benches[half].way || self.session(half).is_none() {
                    return;
                }
                let is_placed = octets.is_some();
                if let Some(mut octets) = octets {
                    if self.setup.corrupt > 0 && self.random.chance(self.setup.corrupt) {
                        octets[0] ^= 0x80;
                        self.corrupted += 1;
                    }
                    let at = get.at as usize;
                    self.benches[half].arena[at..at + octets.len()].copy_from_slice(&octets);
                }
                let session = self.session(half).unwrap();
                if let Err(breach) = session.consumer().handle_got(now, get.id, is_placed) {
                    session.fail_slab(breach);
                }
            }
            Happening::Write { half, ways, put } => self.push_arrives(half, ways, put),
            Happening::Mark(mark) => self.mark_arrives(mark),
            Happening::Reconnect { segment } => self.reconnect(segment),
            Happening::Tick { node } => {
                self.tick(node);
                let after = self.random.below(3 * MS);
                self.at(after, Happening::Tick { node });
            }
            Happening::Break { segment } => {
                // A session that breaks during its first opening is refused: another test covers
                // that.
                if self.was_open() {
                    self.lose(segment);
                }
            }
            Happening::Crash | Happening::Detour { .. } if !self.was_open() => {}
            Happening::Crash => self.crash(),
            Happening::Detour { crash } => {
                self.wants_detour = true;
                if crash {
                    self.crash_between(1, self.setup.segments - 1);
                } else {
                    self.lose(0);
                }
            }
        }
    }

    /// A gateway crashes, or some that are neighbours.
    fn crash(&mut self) {
        let gateways = self.setup.segments - 1;
        let first = 1 + self.random.below(gateways as u64) as usize;
        let last = first + self.random.below((gateways - first + 1) as u64) as usize;
        self.crash_between(first, last);
    }

    fn crash_between(&mut self, first: usize, last: usize) {
        for node in first..=last {
            self.nodes[node] = Node::Gone;
            for half in [node * 2 - 1, node * 2] {
                let way = self.benches[half].way;
                self.benches[half] = self.bench();
                self.benches[half].way = way + 1;
            }
        }
        (first - 1..=last).for_each(|segment| self.lose(segment));
    }

    /// The control connection of a segment is gone, for both ends.
    fn cut(&mut self, segment: usize) {
        self.epochs[segment] += 1;
        self.fresh[segment] = None;
        let now = self.now;
        for half in [segment * 2, segment * 2 + 1] {
            if let Some(session) = self.session(half) {
                session.handle_lost(now);
            }
        }
    }

    /// The control connection of a segment breaks, and its opener tries again.
    pub fn lose(&mut self, segment: usize) {
        self.cut(segment);
        let after = MS + self.random.below(50 * MS);
        self.at(after, Happening::Reconnect { segment });
    }

    fn reconnect(&mut self, segment: usize) {
        let now = self.now;
        let is_detour = segment == 0 && self.wants_detour;
        let mut hops = super::hops(self.setup.segments);
        for hop in &mut hops {
            hop.endpoint.port += self.detours as u16 + 1;
            hop.offers[0].params.push = Some(1);
        }
        let Some(session) = self.session(segment * 2) else {
            return;
        };
        let goes_on = match is_detour {
            true => session.reopen(now, hops),
            false => session.reattach(now),
        };
        if goes_on.is_ok() {
            self.wants_detour &= !is_detour;
            self.detours += u64::from(is_detour);
            self.epochs[segment] += 1;
            self.accept(segment);
        }
    }

    fn control(&mut self, half: usize, mut octets: &[u8]) {
        let now = self.now;
        while !octets.is_empty() {
            let fresh = self.fresh[half / 2].is_some() && half % 2 == 1;
            let session = if fresh {
                self.fresh[half / 2].as_mut()
            } else {
                self.session(half)
            };
            let Some(session) = session else {
                return;
            };
            match session.handle_input(now, octets) {
                Ok(0) if session.state() == State::Closed => return,
                Ok(taken) => octets = &octets[taken..],
                // A gateway that loses its opener while it opens reports that before it has
                // authenticated.
                Err(_) if fresh && self.setup.crashes > 0 => {
                    self.fresh[half / 2] = None;
                    return;
                }
                Err(error) => panic!("seed {}: half {half}: {error}", self.seed),
            }
            self.place_inline(half);
            self.settle();
        }
    }

    /// Bytes that have come with announcements.
    fn place_inline(&mut self, half: usize) {
        while let Some(mut inline) = self
            .session(half)
            .and_then(|session| session.consumer().poll_inline())
        {
            if self.setup.corrupt > 0 && self.random.chance(self.setup.corrupt) {
                inline.octets[0] ^= 0x80;
                self.corrupted += 1;
            }
            let at = inline.at as usize;
            self.benches[half].arena[at..at + inline.octets.len()].copy_from_slice(&inline.octets);
            self.inline += 1;
        }
    }

    fn transmit(&mut self, half: usize, epoch: u32, octets: Vec<u8>) {
        let arrives = self
            .now
            .after(self.random.below(self.setup.latency_max))
            .max(self.last[half]);
        self.last[half] = arrives;
        let after = arrives.since(self.now);
        self.at(
            after,
            Happening::Control {
                half: half ^ 1,
                epoch,
                octets,
            },
        );
    }

    /// Everything that can be done at this moment.
    fn settle(&mut self) {
        loop {
            let before = (self.next, self.events);
            for segment in 0..self.setup.segments {
                self.place_fresh(segment);
            }
            for node in 0..self.nodes.len() {
                self.drain_events(node);
            }
            for half in 0..self.benches.len() {
                self.drain(half);
            }
            if (self.next, self.events) == before {
                return;
            }
        }
    }

    fn drain_events(&mut self, node: usize) {
        let now = self.now;
        if let Node::Gateway(relay) = &mut self.nodes[node] {
            let mut events = VecDeque::new();
            while let Some(event) = relay.poll(now) {
                events.push_back(event);
            }
            for event in events {
                self.events += 1;
                match event {
                    RelayEvent::Suspended(Side::Far) => {
                        self.at(20 * MS, Happening::Reconnect { segment: node });
                    }
                    RelayEvent::Closed(..) => {
                        for segment in [node - 1, node] {
                            self.at(20 * MS, Happening::Break { segment });
                        }
                    }
                    RelayEvent::HopFailed(error) => {
                        if let Node::Gateway(relay) = &mut self.nodes[node] {
                            relay.give_up(&error);
                        }
                    }
                    _ => {}
                }
            }
            return;
        }
        let half = if node == 0 { 0 } else { node * 2 - 1 };
        while let Some(event) = self.session(half).and_then(Session::poll_event) {
            self.events += 1;
            self.on_event(half, node, event);
        }
    }

    fn on_event(&mut self, half: usize, node: usize, event: Event) {
        let app = &mut self.apps[usize::from(node != 0)];
        match event {
            Event::ConnRequest { conn, early, .. } => {
                // Opened and reset here before, which its opener never learned.
                if app.streams.get(&conn).is_some_and(|stream| stream.closed) {
                    assert!(early.is_empty(), "{conn:?}: first bytes come twice");
                    self.session(half).unwrap().refuse_conn(conn, 104).unwrap();
                    return;
                }
                for (offset, octet) in (0..).zip(&early) {
                    assert_eq!(*octet, pattern(conn, !app.from_opener, offset));
                }
                let stream = app.stream(&mut self.random, conn);
                (stream.open, stream.read) = (true, early.len() as u64);
                self.session(half).unwrap().accept_conn(conn).unwrap();
            }
            Event::ConnAccepted(conn) => app.stream(&mut self.random, conn).open = true,
            Event::ConnRefused { conn, .. } => {
                // While the next hop is away.
                app.streams.get_mut(&conn).unwrap().closed = true;
            }
            Event::ConnClosed(conn) => {
                let stream = app.streams.get_mut(&conn).unwrap();
                assert!(!stream.closed, "seed {}: {conn:?} closed twice", self.seed);
                stream.closed = true;
            }
            Event::ConnLost(conn) => {
                let stream = app.streams.get_mut(&conn).unwrap();
                // Only where the far end reset it and is done with it.
                (stream.closed, stream.was_reset) = (true, true);
                let other = &self.apps[usize::from(node == 0)].streams;
                assert!(
                    other.get(&conn).is_none_or(|other| other.was_reset),
                    "seed {}: {conn:?} lost",
                    self.seed
                );
            }
            Event::Suspended if node == 0 => {
                self.at(20 * MS, Happening::Reconnect { segment: 0 });
            }
            Event::Stopped { conn, .. } => app.streams.get_mut(&conn).unwrap().stopped = true,
            Event::Resumed { anew: true } => {
                self.benches[half].way += 1;
                for stream in app.streams.values_mut() {
                    if let Some(held) = stream.held.take() {
                        stream.read = held.offset;
                    }
                }
            }
            Event::Closed(error) => {
                assert!(
                    self.setup.crashes > 0 && !self.setup.end_to_end,
                    "seed {}: half {half}: {error}",
                    self.seed
                );
                self.gone = true;
            }
            _ => {}
        }
    }

    /// An application does something, or lets it be.
    fn tick(&mut self, node: usize) {
        let half = if node == 0 { 0 } else { node * 2 - 1 };
        let now = self.now;
        let is_open = self
            .session(half)
            .is_some_and(|session| session.state() == State::Open);
        // Progress that is being reported to a peer must stay valid until the peer has answered.
        if self
            .session(half)
            .is_some_and(|session| matches!(session.state(), State::Greeting | State::Opening))
        {
            return;
        }
        let app = usize::from(node != 0);
        if is_open && self.apps[app].to_open > 0 && self.random.chance(500) {
            self.open_conn(half, app);
        }
        let conns: Vec<ConnId> = self.apps[app].streams.keys().copied().collect();
        for conn in conns {
            let stream = &self.apps[app].streams[&conn];
            if stream.closed
                || !stream.open
                || stream.stalled_until > now
                || self.session(half).is_none()
            {
                continue;
            }
            if self.random.chance(30) {
                let until = now.after(self.random.below(100 * MS));
                self.apps[app].streams.get_mut(&conn).unwrap().stalled_until = until;
            }
            self.write(half, app, conn);
            self.read(half, app, conn);
        }
    }

    fn write(&mut self, half: usize, app: usize, conn: ConnId) {
        let now = self.now;
        let stream = &self.apps[app].streams[&conn];
        let (from_opener, written) = (self.apps[app].from_opener, stream.written);
        if stream.ended {
            return;
        }
        if stream.reset_at.is_some_and(|at| written >= at) || stream.stopped {
            let is_own = !stream.stopped;
            self.session(half).unwrap().reset_conn(conn, 104);
            let stream = self.apps[app].streams.get_mut(&conn).unwrap();
            (stream.ended, stream.was_reset) = (true, true);
            assert!(is_own || self.setup.resets);
            return;
        }
        let left = stream.reset_at.unwrap_or(stream.total) - written;
        let want = left.min(1 + self.random.below(4_000));
        if left == 0 {
            self.session(half).unwrap().finish_conn(conn);
            self.apps[app].streams.get_mut(&conn).unwrap().ended = true;
            return;
        }
        let Some(fill) = self
            .session(half)
            .unwrap()
            .producer()
            .reserve(now, conn, want)
        else {
            return;
        };
        let len = 1 + self.random.below(fill.len);
        let at = fill.at as usize;
        let octets =
            &mut self.benches[half].ring[usize::from(fill.region.0)][at..at + len as usize];
        for (offset, octet) in (written..).zip(octets.iter_mut()) {
            *octet = pattern(conn, from_opener, offset);
        }
        let crc = crc32c(octets);
        let session = self.session(half).unwrap();
        session.producer().commit(now, conn, len, Some(crc));
        self.apps[app].streams.get_mut(&conn).unwrap().written += len;
    }

    fn read(&mut self, half: usize, app: usize, conn: ConnId) {
        let held = self.apps[app].streams.get_mut(&conn).unwrap().held.take();
        if let Some(data) = held {
            self.session(half)
                .unwrap()
                .consumer()
                .release(conn, data.offset, data.len);
        }
        for _ in 0..self.random.below(6) {
            let most = 1 + self.random.below(8_000);
            let (got, from_opener) = (
                self.session(half).unwrap().consumer().read(conn, most),
                !self.apps[app].from_opener,
            );
            let seed = self.seed;
            match got {
                None => return,
                Some(Read::End(end)) => {
                    let stream = self.apps[app].streams.get_mut(&conn).unwrap();
                    assert!(
                        stream.got.replace(end).is_none(),
                        "seed {seed}: {conn:?} two ends"
                    );
                    if matches!(end, haul_xsp::bag::End::Reset(_)) {
                        stream.was_reset |= !stream.ended;
                        stream.ended = true;
                        self.session(half).unwrap().reset_conn(conn, 104);
                    }
                    return;
                }
                Some(Read::Data(data)) => {
                    let stream = self.apps[app].streams.get_mut(&conn).unwrap();
                    assert_eq!(
                        stream.read, data.offset,
                        "seed {seed}: {conn:?} out of order"
                    );
                    let at = data.at as usize;
                    let octets = &self.benches[half].arena[at..at + data.len as usize];
                    for (offset, octet) in (data.offset..).zip(octets) {
                        assert_eq!(
                            *octet,
                            pattern(conn, from_opener, offset),
                            "seed {seed}: {conn:?} at {offset}"
                        );
                    }
                    stream.read += data.len;
                    if self.random.chance(200) {
                        self.apps[app].streams.get_mut(&conn).unwrap().held = Some(data);
                        return;
                    }
                    self.session(half)
                        .unwrap()
                        .consumer()
                        .release(conn, data.offset, data.len);
                }
            }
        }
    }

    /// The tasks of one end of a segment: invalidate, announce, read, write, check, transmit.
    fn drain(&mut self, half: usize) {
        let (now, mode, latency) = (
            self.now,
            self.setup.config.consumer.mode,
            self.setup.latency_max,
        );
        if let Some(session) = &mut self.fresh[half / 2]
            && half % 2 == 1
        {
            let mut octets = Vec::new();
            while let Some(pdu) = session.poll_transmit(now) {
                octets.push(pdu);
            }
            let epoch = self.epochs[half / 2];
            octets
                .into_iter()
                .for_each(|octets| self.transmit(half, epoch, octets));
        }
        if self.session(half).is_none() {
            return;
        }
        while let Some(seq) = self.session(half).unwrap().producer().poll_retired() {
            self.invalidate(half, seq);
        }
        while let Some((at, len)) = self.session(half).unwrap().consumer().poll_closed() {
            let stags: Vec<u64> = self.benches[half]
                .of_grant
                .range(at..at + len)
                .map(|(at, _)| *at)
                .collect();
            for at in stags {
                let stag = self.benches[half].of_grant.remove(&at).unwrap();
                self.benches[half].stags.remove(&stag);
            }
        }
        while let Some(seq) = self.session(half).unwrap().producer().poll_sealed(now) {
            self.invalidate(half, seq);
            let places: Vec<Place> = self
                .session(half)
                .unwrap()
                .producer()
                .records(seq)
                .map(|(_, place)| place)
                .collect();
            self.complete_crcs(half, seq);
            // Some hosts that are read from do, some do not.
            let may = mode == Mode::Push || seq.0.is_multiple_of(2);
            if may && self.session(half).unwrap().producer().is_inline(seq) {
                let filled = places.iter().filter(|place| place.len > 0);
                let octets = filled.flat_map(|place| self.local(half, *place));
                let octets = octets.collect();
                let producer = self.session(half).unwrap().producer();
                producer.announce_inline(seq, octets);
                continue;
            }
            let keys: Vec<(Place, Key)> = places
                .iter()
                .map(|place| (*place, self.register(half, seq, *place)))
                .collect();
            let key = |wanted| keys.iter().find(|(place, _)| *place == wanted).unwrap().1;
            self.session(half).unwrap().producer().announce(seq, key);
        }
        self.move_octets(half, now, mode, latency);
        let epoch = self.epochs[half / 2];
        while let Some(octets) = self.session(half).unwrap().poll_transmit(now) {
            self.transmit(half, epoch, octets);
        }
        let ring = &self.setup.config.producer;
        let most = u64::from(ring.regions) * ring.region_bytes;
        let (used, _) = self.session(half).unwrap().producer().occupancy();
        assert!(used <= most, "seed {}: the ring holds {used}", self.seed);
        let (used, all) = self.session(half).unwrap().consumer().occupancy();
        assert!(
            used <= all,
            "seed {}: the arena holds {used} of {all}",
            self.seed
        );
    }

    /// Grants, writes, reads and checks.
    fn move_octets(&mut self, half: usize, now: Time, mode: Mode, latency: u64) {
        while mode == Mode::Push
            && let Some(grant) = self.session(half).unwrap().consumer().poll_grant()
        {
            let place = Place {
                memory: Memory::Foreign,
                at: grant.at,
                len: grant.len,
            };
            let key = self.open_stag(half, place);
            if let Some(old) = self.benches[half].of_grant.insert(grant.at, key.stag) {
                self.benches[half].stags.remove(&old);
            }
            self.session(half).unwrap().consumer().granted(&grant, key);
        }
        self.push(half, now, latency);
        while let Some(get) = self.session(half).unwrap().consumer().poll_get(now) {
            let ways = [half, half ^ 1].map(|half| self.benches[half].way);
            let after = self.random.below(latency);
            self.at(after, Happening::ReadAt { half, ways, get });
        }
        while let Some(verify) = self.session(half).unwrap().consumer().poll_verify() {
            let places: Vec<(u64, u64)> = self
                .session(half)
                .unwrap()
                .consumer()
                .places(verify.conn, verify.offset, u64::from(verify.len))
                .collect();
            let arena = &self.benches[half].arena;
            let octets: Vec<u8> = places
                .iter()
                .flat_map(|(at, len)| &arena[*at as usize..(at + len) as usize])
                .copied()
                .collect();
            let session = self.session(half).unwrap();
            if let Err(breach) = session.consumer().handle_verified(&verify, crc32c(&octets)) {
                session.fail_slab(breach);
            }
            self.events += 1;
        }
    }

    /// Records that a gateway made of parts get checksums of their own.
    fn complete_crcs(&mut self, half: usize, seq: SlabSeq) {
        let producer = self.session(half).unwrap().producer();
        let records = producer.records(seq).enumerate();
        let bare: Vec<(usize, Place)> = records
            .filter(|(_, (record, _))| record.crc.is_none() && record.len > 0)
            .map(|(index, (_, place))| (index, place))
            .collect();
        for (index, place) in bare {
            let crc = crc32c(&self.local(half, place));
            self.session(half)
                .unwrap()
                .producer()
                .set_crc(seq, index, crc);
        }
    }

    fn register(&mut self, half: usize, seq: SlabSeq, place: Place) -> Key {
        let key = self.open_stag(half, place);
        self.benches[half]
            .of_slab
            .entry(seq)
            .or_default()
            .push(key.stag);
        key
    }

    fn open_stag(&mut self, half: usize, place: Place) -> Key {
        let bench = &mut self.benches[half];
        bench.next_stag += 1;
        bench.stags.insert(bench.next_stag, place);
        Key {
            stag: bench.next_stag,
            to: 0,
        }
    }

    fn invalidate(&mut self, half: usize, seq: SlabSeq) {
        for stag in self.benches[half].of_slab.remove(&seq).unwrap_or_default() {
            self.benches[half].stags.remove(&stag);
        }
    }

    /// Performs a read: the key may have become invalid, and its bounds are enforced.
    fn remote(&self, half: usize, key: Key, len: u64) -> Option<Vec<u8>> {
        let place = *self.benches[half].stags.get(&key.stag)?;
        assert!(
            key.to + len <= place.len,
            "seed {}: a read beyond its record",
            self.seed
        );
        let at = place.at + key.to;
        Some(self.local(half, Place { at, len, ..place }))
    }

    fn local(&self, half: usize, place: Place) -> Vec<u8> {
        let memory = match place.memory {
            Memory::Region(region) => &self.benches[half].ring[usize::from(region.0)],
            // At a gateway, what came in on the other segment.
            Memory::Foreign => &self.benches[neighbour(half)].arena,
        };
        memory[place.at as usize..(place.at + place.len) as usize].to_vec()
    }

    /// Bytes that anybody still holds.
    pub fn held(&mut self) -> u64 {
        (0..self.benches.len())
            .filter_map(|half| {
                let session = self.session(half)?;
                Some(session.producer().occupancy().0 + session.consumer().occupancy().0)
            })
            .sum()
    }

    pub fn drain_all(&mut self, for_ns: u64) {
        let until = self.now.after(for_ns);
        while let Some(Reverse((at, id))) = self.queue.pop() {
            if at > until {
                return;
            }
            self.now = self.now.max(at);
            let what = self.happenings.remove(&id).unwrap();
            self.happen(what);
            self.settle();
        }
    }
}

/// Node and side of one end of a segment.
fn place_of(half: usize) -> (usize, Side) {
    if half.is_multiple_of(2) {
        (half / 2, Side::Far)
    } else {
        (half / 2 + 1, Side::Near)
    }
}

/// The other segment's end at the same gateway.
fn neighbour(half: usize) -> usize {
    if half.is_multiple_of(2) {
        half - 1
    } else {
        half + 1
    }
}
