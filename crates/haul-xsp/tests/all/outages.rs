//! Two gateways on virtual time, from seeds: a process or a host dies and comes back, the path is
//! interrupted, data channels fail, sessions are closed, in every order. A live end detects in time
//! that the other is gone, sessions survive an interruption of the path alone, and a sent reason
//! for the end arrives.
//!
//! `HAUL_SEED` repeats one seed, `HAUL_SIM_SEEDS` says how many.
#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "what is not there where it must be fails the test; small numbers from a seed"
)]

use crate::common;
use crate::simulation::option;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use haul_xsp::bag::{ConsumerConfig, End, Memory, ProducerConfig, Read};
use haul_xsp::wire::NackStatus;
use haul_xsp::{
    ConnId, Error, Event, SECOND_NS, Session, SessionConfig, SessionId, State, Time, crc32c,
};

use common::app::pattern;
use common::random::Random;
use common::{endpoint, open};

const MS: u64 = 1_000_000;
const SESSION: SessionId = SessionId([0x77; 16]);
/// As the gateway's; an outage may last for four times as long.
const HOLD: u64 = 15 * SECOND_NS;
const LIFETIME: u64 = 60 * SECOND_NS;
const KEEPALIVE: u64 = 3 * SECOND_NS;
const ANSWER: u64 = 2_800 * MS;
const LATENCY_MAX: u64 = 40 * MS;
/// Time in which an attempt at a silent host is given up.
const DIAL: u64 = 2_700 * MS;
const BACKOFF: u64 = 100 * MS;
const BACKOFF_MAX: u64 = 5 * SECOND_NS;
const BACKOFF_GONE_MAX: u64 = SECOND_NS;
/// The reason of a session that ends at once.
const REASON: NackStatus = NackStatus::Forbidden;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Host {
    Up,
    /// The process is dead: the host refuses.
    Refuses,
    /// The host is dead: nothing answers.
    Silent,
}

/// Data that an end sends by a control connection.
enum Item {
    Octets(Vec<u8>),
    Fin,
    Rst,
}

/// A control connection: of each direction what is in flight and when the last of it arrives, and
/// whether the end that sends by it still has it.
#[derive(Default)]
struct Link {
    in_flight: [VecDeque<Item>; 2],
    last: [Time; 2],
    is_open: [bool; 2],
    /// Nothing more is sent.
    is_finished: [bool; 2],
    /// At the acceptor, until the request has arrived.
    fresh: Option<Session>,
}

#[derive(Debug, Default)]
struct Stream {
    total: u64,
    written: u64,
    read: u64,
    asked_at: Option<Time>,
    is_open: bool,
    has_ended: bool,
    got: Option<End>,
    is_closed: bool,
}

struct Gateway {
    host: Host,
    session: Option<Session>,
    link: usize,
    ring: Vec<Vec<u8>>,
    arena: Vec<u8>,
    streams: BTreeMap<ConnId, Stream>,
    /// The data channels that it has.
    chan: Option<u64>,
    finishing_since: Option<Time>,
    ended: Option<(Time, Error)>,
    /// It had the control connection when it ended the session, and could send the reason.
    has_said_why: bool,
    /// When it died, and when it is back.
    died: Option<(Time, Host)>,
    is_back: Option<Time>,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Die(usize, Host),
    Return(usize),
    Interrupt(u64),
    ChannelFails,
    Close(usize, bool),
}

enum What {
    Deliver { link: usize, from: usize },
    Dial,
    Answer { until: Time },
    ChannelUp(u64),
    ChannelLost { end: usize, chan: u64 },
    Fault(Fault),
    Tick(usize),
}

struct World {
    seed: u64,
    random: Random,
    now: Time,
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    happenings: BTreeMap<u64, What>,
    next: u64,
    ends: [Gateway; 2],
    links: Vec<Link>,
    /// Nothing passes before.
    path_up: Time,
    chans: u64,
    backoff: u64,
    is_dialling: bool,
    to_open: u64,
    faults: Vec<(Time, Fault)>,
    met: Met,
}

/// Coverage counters of a run: sessions held in vain, forgotten by a host and resumed, reasons
/// received while only final messages were read, connections without an answer.
#[derive(Debug, Default, Clone, Copy)]
struct Met {
    gone: u64,
    forgotten: u64,
    resumed: u64,
    last_words: u64,
    unanswered: u64,
}

impl Met {
    fn add(&mut self, other: Self) {
        self.gone += other.gone;
        self.forgotten += other.forgotten;
        self.resumed += other.resumed;
        self.last_words += other.last_words;
        self.unanswered += other.unanswered;
    }

    fn is_all(self) -> bool {
        let (ends, others) = (
            [self.gone, self.forgotten, self.last_words],
            self.unanswered,
        );
        !ends.contains(&0) && self.resumed > 0 && others > 0
    }
}

fn config() -> SessionConfig {
    SessionConfig {
        keepalive_ns: KEEPALIVE,
        lifetime_ns: LIFETIME,
        hold_ns: HOLD,
        answer_ns: ANSWER,
        conns_max: 16,
        producer: ProducerConfig {
            regions: 4,
            region_bytes: 8 << 10,
            region_bytes_start: 8 << 10,
            ..ProducerConfig::default()
        },
        consumer: ConsumerConfig {
            arena_bytes: 64 << 10,
            extent_bytes_min: 1 << 10,
            extent_bytes_max: 4 << 10,
            ..ConsumerConfig::default()
        },
        ..common::chain::config(None)
    }
}

impl Gateway {
    fn new() -> Self {
        Self {
            host: Host::Up,
            session: None,
            link: 0,
            ring: vec![vec![0; 8 << 10]; 4],
            arena: vec![0; 64 << 10],
            streams: BTreeMap::new(),
            chan: None,
            finishing_since: None,
            ended: None,
            has_said_why: false,
            died: None,
            is_back: None,
        }
    }

    fn is_over(&self) -> bool {
        self.host != Host::Up
            || self.ended.is_some()
            || self.session.is_none()
            || self.streams.values().all(|stream| stream.is_closed)
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let random = Random::new(seed ^ 0x07a6e5);
        let mut world = Self {
            seed,
            random,
            now: Time::from_ns(SECOND_NS),
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            next: 0,
            ends: [Gateway::new(), Gateway::new()],
            links: Vec::new(),
            path_up: Time::default(),
            chans: 0,
            backoff: BACKOFF,
            is_dialling: false,
            to_open: 0,
            faults: Vec::new(),
            met: Met::default(),
        };
        world.to_open = 1 + world.random.below(6);
        let opened = Session::open(config(), world.now, SESSION, open(1, false), [1; 32]);
        world.ends[0].session = Some(opened.unwrap());
        world.connect();
        world.plan();
        world.at(0, What::Tick(0));
        world.at(0, What::Tick(1));
        world
    }

    /// The faults to inject. At most one end crashes, once; it may restart.
    fn plan(&mut self) {
        let within = |random: &mut Random| 300 * MS + random.below(4 * SECOND_NS);
        let mut faults = Vec::new();
        if self.random.chance(550) {
            let end = self.random.below(2) as usize;
            let host = match self.random.chance(600) {
                true => Host::Refuses,
                false => Host::Silent,
            };
            let after = within(&mut self.random);
            faults.push((after, Fault::Die(end, host)));
            if self.random.chance(500) {
                let back = after + 1 + self.random.below(25 * SECOND_NS);
                faults.push((back, Fault::Return(end)));
            }
        }
        let fails = self.random.below(3);
        for _ in 0..fails {
            faults.push((within(&mut self.random), Fault::ChannelFails));
        }
        if self.random.chance(400) {
            // An acceptor whose opener has just ended the control connection, to make another,
            // waits no longer than the hold for it.
            let most = if fails == 0 { 40 } else { 3 } * SECOND_NS;
            let ns = self.random.below(most);
            faults.push((within(&mut self.random), Fault::Interrupt(ns)));
        }
        if self.random.chance(500) {
            let close = Fault::Close(self.random.below(2) as usize, self.random.chance(500));
            faults.push((within(&mut self.random), close));
        }
        for (after, fault) in faults {
            self.at(after, What::Fault(fault));
        }
    }

    fn at(&mut self, after: u64, what: What) {
        let id = self.next;
        self.next += 1;
        self.queue.push(Reverse((self.now.after(after), id)));
        self.happenings.insert(id, what);
    }

    fn is_path_up(&self) -> bool {
        self.now >= self.path_up
    }

    /// The opener has a control connection to a process that is there.
    fn connect(&mut self) {
        let fresh = Session::accept(config(), self.now, [3; 32]).unwrap();
        self.links.push(Link {
            is_open: [true; 2],
            fresh: Some(fresh),
            ..Link::default()
        });
        self.ends[0].link = self.links.len() - 1;
    }

    fn send(&mut self, link: usize, from: usize, item: Item) {
        let after = self.random.below(LATENCY_MAX);
        let queue = &mut self.links[link];
        let arrives = self.now.after(after).max(queue.last[from]);
        queue.last[from] = arrives;
        queue.in_flight[from].push_back(item);
        let after = arrives.since(self.now);
        self.at(after, What::Deliver { link, from });
    }

    /// An end has no use for a control connection any more.
    fn shut(&mut self, link: usize, end: usize) {
        if std::mem::take(&mut self.links[link].is_open[end]) {
            self.finish(link, end);
        }
    }

    fn finish(&mut self, link: usize, end: usize) {
        if !std::mem::replace(&mut self.links[link].is_finished[end], true) {
            self.send(link, end, Item::Fin);
        }
    }

    /// An end has no data channels any more: the other learns it at any time.
    fn end_channels(&mut self, end: usize) {
        if let Some(chan) = self.ends[end].chan.take() {
            let after = match self.is_path_up() && self.ends[end].host != Host::Silent {
                true => self.random.below(80 * MS),
                false => 5 * SECOND_NS,
            };
            self.at(after, What::ChannelLost { end: end ^ 1, chan });
        }
    }

    fn run(&mut self) {
        self.settle();
        let end = self.now.after(300 * SECOND_NS);
        while self.now < end {
            let due = self.ends.iter().filter(|end| end.host == Host::Up);
            let due = due.filter_map(|end| end.session.as_ref()?.poll_timeout());
            let queued = self.queue.peek().map(|Reverse((at, _))| *at);
            let Some(at) = due.chain(queued).min() else {
                break;
            };
            self.now = self.now.max(at);
            if queued.is_some_and(|queued| queued <= self.now) {
                let Reverse((_, id)) = self.queue.pop().unwrap();
                let what = self.happenings.remove(&id).unwrap();
                self.happen(what);
            }
            let now = self.now;
            for end in self.ends.iter_mut().filter(|end| end.host == Host::Up) {
                if let Some(session) = &mut end.session
                    && session.poll_timeout().is_some_and(|at| at <= now)
                {
                    session.handle_timeout(now);
                }
            }
            self.settle();
        }
    }

    fn happen(&mut self, what: What) {
        let now = self.now;
        match what {
            What::Deliver { link, from } => self.deliver(link, from),
            What::Dial => {
                if self.ends[0].host == Host::Up && !self.is_dialling {
                    self.is_dialling = true;
                    let until = now.after(DIAL);
                    let after = self.random.below(2 * LATENCY_MAX);
                    self.at(after, What::Answer { until });
                }
            }
            What::Answer { until } => self.answer(until),
            What::ChannelUp(chan) => {
                for end in &mut self.ends {
                    let is_up = end.session.as_ref().is_some_and(|session| {
                        session.state() == State::Open && !session.is_finishing()
                    });
                    end.chan = Some(chan).filter(|_| is_up);
                }
            }
            What::ChannelLost { end, chan } => {
                if self.ends[end].chan == Some(chan) {
                    self.lose_channels(end);
                }
            }
            What::Fault(fault) => {
                self.faults.push((now, fault));
                self.fail(fault);
            }
            What::Tick(end) => {
                self.work(end);
                let is_early = now < Time::from_ns(40 * SECOND_NS);
                if is_early || !self.ends.iter().all(Gateway::is_over) {
                    let after = 1 + self.random.below(50 * MS);
                    self.at(after, What::Tick(end));
                }
            }
        }
    }

    fn fail(&mut self, fault: Fault) {
        let now = self.now;
        match fault {
            Fault::Die(end, host) => {
                self.end_channels(end);
                self.ends[end].host = host;
                self.ends[end].died = Some((now, host));
                self.ends[end].session = None;
                for link in 0..self.links.len() {
                    self.links[link].fresh = self.links[link].fresh.take().filter(|_| end == 0);
                    if std::mem::take(&mut self.links[link].is_open[end]) && host == Host::Refuses {
                        self.send(link, end, Item::Rst);
                    }
                }
            }
            Fault::Return(end) => {
                self.ends[end].host = Host::Up;
                self.ends[end].is_back = Some(now);
            }
            Fault::Interrupt(ns) => self.path_up = self.path_up.max(now.after(ns)),
            Fault::ChannelFails => {
                for end in 0..2 {
                    if let Some(chan) = self.ends[end].chan {
                        let after = self.random.below(80 * MS);
                        self.at(after, What::ChannelLost { end, chan });
                    }
                }
            }
            Fault::Close(end, abort) => {
                let link = self.ends[end].link;
                let is_up = self.links[link].is_open == [true; 2];
                if let Some(session) = &mut self.ends[end].session {
                    let is_up = is_up && matches!(session.state(), State::Open | State::Draining);
                    self.ends[end].has_said_why = is_up && abort && !session.is_finishing();
                    session.close(REASON, abort);
                }
            }
        }
    }

    /// As a gateway does.
    fn lose_channels(&mut self, end: usize) {
        let (now, link) = (self.now, self.ends[end].link);
        let Some(session) = &mut self.ends[end].session else {
            return;
        };
        if session.state() == State::Closed || session.is_finishing() {
            return;
        }
        session.finish_link(now);
        self.ends[end].finishing_since = Some(now);
        self.finish(link, end);
        self.end_channels(end);
    }

    fn deliver(&mut self, link: usize, from: usize) {
        let to = from ^ 1;
        if !self.is_path_up() {
            let after = self.path_up.since(self.now) + self.random.below(SECOND_NS);
            return self.at(after, What::Deliver { link, from });
        }
        let Some(item) = self.links[link].in_flight[from].pop_front() else {
            return;
        };
        if self.ends[to].host == Host::Silent {
            return;
        }
        if !self.links[link].is_open[to] {
            if matches!(item, Item::Octets(_)) && self.links[link].is_open[from] {
                self.send(link, to, Item::Rst);
            }
            return;
        }
        match item {
            Item::Octets(octets) => self.take(link, to, &octets),
            Item::Fin | Item::Rst => {
                if matches!(item, Item::Rst) {
                    self.links[link].is_open[to] = false;
                }
                self.left(link, to);
            }
        }
    }

    /// The peer has ended a control connection.
    fn left(&mut self, link: usize, end: usize) {
        let now = self.now;
        self.links[link].fresh = self.links[link].fresh.take().filter(|_| end == 0);
        self.shut(link, end);
        if self.ends[end].link == link
            && let Some(session) = &mut self.ends[end].session
        {
            session.handle_left(now);
        }
    }

    fn take(&mut self, link: usize, end: usize, mut octets: &[u8]) {
        let now = self.now;
        while !octets.is_empty() {
            let fresh = self.links[link].fresh.as_mut().filter(|_| end == 1);
            let own = self.ends[end].session.as_mut();
            let is_own = self.ends[end].link == link;
            let Some(session) = fresh.or_else(|| own.filter(|_| is_own)) else {
                return;
            };
            match session.handle_input(now, octets) {
                Ok(0) => return,
                Ok(taken) => octets = &octets[taken..],
                Err(error) => panic!("seed {}: end {end}: {error}", self.seed),
            }
            self.place(end);
            self.settle();
        }
    }

    fn place(&mut self, end: usize) {
        let end = &mut self.ends[end];
        while let Some(inline) = end
            .session
            .as_mut()
            .and_then(|session| session.consumer().poll_inline())
        {
            let at = inline.at as usize;
            end.arena[at..at + inline.octets.len()].copy_from_slice(&inline.octets);
        }
    }

    /// How an attempt to reach the acceptor has gone.
    fn answer(&mut self, until: Time) {
        let now = self.now;
        let is_there = self.is_path_up() && self.ends[1].host != Host::Silent;
        if self.ends[0].host != Host::Up {
            self.is_dialling = false;
            return;
        }
        if !is_there && now < until {
            return self.at(100 * MS, What::Answer { until });
        }
        self.is_dialling = false;
        let Some(session) = &mut self.ends[0].session else {
            return;
        };
        if !matches!(session.state(), State::Suspended(_)) {
            return;
        }
        if is_there && self.ends[1].host == Host::Up {
            session.reattach(now).unwrap();
            return self.connect();
        }
        let most = match is_there {
            true => {
                session.note_gone(now);
                session.refuse_asked(NackStatus::CannotConnect);
                BACKOFF_GONE_MAX
            }
            false => {
                session.note_silent();
                BACKOFF_MAX
            }
        };
        self.backoff = (self.backoff * 2).min(most);
        self.at(self.backoff, What::Dial);
    }

    /// Everything that can be done at this moment.
    fn settle(&mut self) {
        loop {
            let before = self.next;
            let mut has_moved = false;
            for link in 0..self.links.len() {
                self.greet(link);
            }
            for end in 0..2 {
                has_moved |= self.drain(end);
            }
            if self.next == before && !has_moved {
                return;
            }
        }
    }

    /// Handles the messages of an incoming control connection, and replies.
    fn greet(&mut self, link: usize) {
        let now = self.now;
        let Some(fresh) = self.links[link].fresh.as_mut() else {
            return;
        };
        let own = &mut self.ends[1];
        let mut is_taken = false;
        match fresh.poll_event() {
            Some(Event::OpenRequest(_)) => {
                fresh.accept_session(now, None, Some([9; 56])).unwrap();
                own.session = self.links[link].fresh.take();
                is_taken = true;
            }
            Some(Event::ResumeRequest(request)) => {
                let session = own.session.as_mut();
                let session = session.filter(|session| session.holds(&request.ticket));
                match session.map(|session| session.adopt(now, fresh, &request)) {
                    Some(Ok(())) => is_taken = true,
                    _ => fresh
                        .refuse_session(NackStatus::UnknownSession, 0, "unknown")
                        .unwrap(),
                }
            }
            _ => {}
        }
        if is_taken {
            let old = std::mem::replace(&mut self.ends[1].link, link);
            self.links[link].fresh = None;
            self.ends[1].finishing_since = None;
            if old != link {
                self.shut(old, 1);
            }
            self.end_channels(1);
            return;
        }
        let fresh = self.links[link].fresh.as_mut().unwrap();
        let mut out = Vec::new();
        while let Some(octets) = fresh.poll_transmit(now) {
            out.push(octets);
        }
        for octets in out {
            self.send(link, 1, Item::Octets(octets));
        }
    }

    fn drain(&mut self, end: usize) -> bool {
        let (now, link) = (self.now, self.ends[end].link);
        let mut has_moved = false;
        while let Some(event) = self.ends[end]
            .session
            .as_mut()
            .and_then(|session| session.poll_event())
        {
            has_moved = true;
            self.on_event(end, event);
        }
        let gateway = &mut self.ends[end];
        let Some(session) = &mut gateway.session else {
            return has_moved;
        };
        let producer = session.producer();
        while producer.poll_retired().is_some() {}
        while let Some(seq) = producer.poll_keyless(now) {
            let mut octets = Vec::new();
            for (_, place) in producer.records(seq) {
                if let Memory::Region(region) = place.memory {
                    let at = place.at as usize;
                    let ring = &gateway.ring[usize::from(region.0)];
                    octets.extend(&ring[at..at + place.len as usize]);
                }
            }
            producer.announce_inline(seq, octets);
        }
        let mut out = Vec::new();
        while let Some(octets) = session.poll_transmit(now) {
            out.push(octets);
        }
        if self.links[link].is_open[end] {
            for octets in out {
                self.send(link, end, Item::Octets(octets));
            }
        }
        has_moved
    }

    fn on_event(&mut self, end: usize, event: Event) {
        let (now, link) = (self.now, self.ends[end].link);
        let gateway = &mut self.ends[end];
        let session = gateway.session.as_mut().unwrap();
        self.met.resumed += u64::from(matches!(event, Event::Resumed { .. }));
        match event {
            Event::Opened(_) | Event::Resumed { .. } => {
                self.backoff = BACKOFF;
                if end == 0 {
                    self.chans += 1;
                    let (chan, after) = (self.chans, 20 * MS + self.random.below(80 * MS));
                    self.at(after, What::ChannelUp(chan));
                }
            }
            Event::Suspended => {
                if !matches!(session.state(), State::Suspended(_)) {
                    return;
                }
                check_finished(self.seed, now, gateway.finishing_since.take(), &self.faults);
                self.shut(link, end);
                self.end_channels(end);
                if end == 0 {
                    self.at(self.backoff, What::Dial);
                }
            }
            Event::Closed(error) => {
                check_finished(self.seed, now, gateway.finishing_since.take(), &self.faults);
                let is_reason = matches!(error, Error::Ended { status: REASON, .. });
                self.met.last_words += u64::from(is_reason && session.is_finishing());
                self.met.gone += u64::from(error == Error::Gone);
                self.met.forgotten += u64::from(error.status() == NackStatus::UnknownSession);
                gateway.ended = Some((now, error));
                for stream in gateway.streams.values_mut() {
                    stream.is_closed = true;
                }
                let mut out = Vec::new();
                while let Some(octets) = session.poll_transmit(now) {
                    out.push(octets);
                }
                gateway.session = None;
                if self.links[link].is_open[end] {
                    for octets in out {
                        self.send(link, end, Item::Octets(octets));
                    }
                }
                self.shut(link, end);
                self.end_channels(end);
            }
            Event::ConnRequest { conn, .. } => {
                let total = self.random.below(3_000);
                let stream = Stream {
                    total,
                    is_open: true,
                    ..Stream::default()
                };
                gateway.streams.insert(conn, stream);
                session.accept_conn(conn).unwrap();
            }
            Event::ConnAccepted(conn) => {
                gateway.streams.get_mut(&conn).unwrap().is_open = true;
                self.answered(conn);
            }
            Event::ConnRefused { conn, status } => {
                self.met.unanswered += u64::from(status == NackStatus::TimedOut.code());
                let stream = gateway.streams.get_mut(&conn).unwrap();
                assert!(!stream.is_closed && !stream.is_open, "{conn:?} refused");
                stream.is_closed = true;
                self.answered(conn);
            }
            Event::ConnClosed(conn) | Event::ConnLost(conn) => {
                gateway.streams.get_mut(&conn).unwrap().is_closed = true;
            }
            Event::Stopped { conn, code } => session.end_conn(conn, End::Reset(code)),
            _ => {}
        }
    }

    /// No request for a connection waits longer than this for a silent far end.
    fn answered(&self, conn: ConnId) {
        let asked_at = self.ends[0].streams[&conn].asked_at.unwrap();
        let last = self.faults.last().map_or(asked_at, |(at, _)| *at);
        let waited = self.now.since(asked_at.max(last));
        assert!(
            waited <= ANSWER + 2 * LATENCY_MAX,
            "seed {}: {conn:?} waited for {} ms",
            self.seed,
            waited / MS
        );
    }

    /// Applications write and read.
    fn work(&mut self, end: usize) {
        let now = self.now;
        let gateway = &mut self.ends[end];
        let Some(session) = &mut gateway.session else {
            if end == 0 || gateway.died.is_some() {
                self.to_open = 0;
            }
            return;
        };
        if matches!(session.state(), State::Greeting | State::Opening) {
            return;
        }
        if end == 0 && self.to_open > 0 && self.random.chance(200) {
            let asked = session.open_conn(endpoint("server", 80));
            if let Ok(conn) = asked {
                let stream = Stream {
                    total: self.random.below(3_000),
                    asked_at: Some(now),
                    ..Stream::default()
                };
                gateway.streams.insert(conn, stream);
                self.to_open -= 1;
            } else if session.state() == State::Draining {
                self.to_open = 0;
            }
        }
        for (conn, stream) in &mut gateway.streams {
            if stream.is_closed || !stream.is_open {
                continue;
            }
            let left = stream.total - stream.written;
            if !stream.has_ended && left == 0 {
                session.finish_conn(*conn);
                stream.has_ended = true;
            } else if !stream.has_ended
                && let Some(fill) = session.producer().reserve(now, *conn, left.min(700))
            {
                let at = fill.at as usize;
                let octets = &mut gateway.ring[usize::from(fill.region.0)];
                let octets = &mut octets[at..at + fill.len as usize];
                for (offset, octet) in (stream.written..).zip(octets.iter_mut()) {
                    *octet = pattern(*conn, end == 0, offset);
                }
                let crc = Some(crc32c(octets));
                session.producer().commit(now, *conn, fill.len, crc);
                stream.written += fill.len;
            }
            while let Some(verify) = session.consumer().poll_verify() {
                let (conn, offset) = (verify.conn, verify.offset);
                let len = u64::from(verify.len);
                let mut octets = Vec::new();
                for (at, len) in session.consumer().places(conn, offset, len) {
                    octets.extend(&gateway.arena[at as usize..(at + len) as usize]);
                }
                let crc = crc32c(&octets);
                session.consumer().handle_verified(&verify, crc).unwrap();
            }
            match session.consumer().read(*conn, 900) {
                Some(Read::Data(data)) => {
                    let at = data.at as usize;
                    let octets = &gateway.arena[at..at + data.len as usize];
                    for (offset, octet) in (data.offset..).zip(octets) {
                        assert_eq!(*octet, pattern(*conn, end != 0, offset));
                    }
                    stream.read += data.len;
                    session.consumer().release(*conn, data.offset, data.len);
                }
                Some(Read::End(how)) => {
                    stream.got = Some(how);
                    if matches!(how, End::Reset(_)) {
                        session.reset_conn(*conn, 104);
                        stream.has_ended = true;
                    }
                }
                None => {}
            }
        }
    }

    fn has(&self, is_it: impl Fn(&Fault) -> bool) -> bool {
        self.faults.iter().any(|(_, fault)| is_it(fault))
    }

    /// Checks the invariants at the end.
    fn judge(&self) {
        let seed = self.seed;
        let faults = &self.faults;
        let is_interrupted = self.has(|fault| matches!(fault, Fault::Interrupt(_)));
        let dies = self.has(|fault| matches!(fault, Fault::Die(..)));
        let aborts = self.has(|fault| matches!(fault, Fault::Close(_, true)));
        for (number, end) in self.ends.iter().enumerate() {
            let other = &self.ends[number ^ 1];
            let shown = || {
                format!(
                    "seed {seed}, end {number}: {:?} {:?} {faults:?}",
                    end.ended, end.streams
                )
            };
            if end.died.is_some() {
                continue;
            }
            assert!(end.is_over(), "waits for ever: {}", shown());
            // It learns in time that the other is dead.
            if let (Some((died, how)), Some((ended, error))) = (other.died, &end.ended)
                && *error != Error::Closed
                && *ended > died
            {
                let slack = 2 * SECOND_NS;
                let mut within = match how {
                    Host::Refuses if !is_interrupted => HOLD,
                    _ => 3 * KEEPALIVE + LIFETIME + DIAL + BACKOFF_MAX,
                };
                if let Some(back) = other.is_back
                    && how == Host::Refuses
                    && !is_interrupted
                    && number == 0
                {
                    // It asks the new process, which knows nothing of the session.
                    within = within.min(back.since(died) + BACKOFF_GONE_MAX);
                }
                let took = ended.since(died);
                assert!(took <= within + slack, "{} ms: {}", took / MS, shown());
            }
            if other.died.is_some_and(|(_, how)| how == Host::Refuses) && !is_interrupted {
                assert!(
                    end.ended.is_some() || end.streams.values().all(|stream| stream.is_closed),
                    "has not noticed: {}",
                    shown()
                );
            }
            if dies || aborts {
                continue;
            }
            // Whatever happened to the path and the channels, everything has gone on.
            let ends_alone = matches!(
                &end.ended,
                Some((
                    _,
                    Error::Gone
                        | Error::TimedOut
                        | Error::Ended {
                            status: NackStatus::UnknownSession,
                            ..
                        }
                ))
            );
            if let Some((_, error)) = &end.ended {
                // A session without unfinished data ends while it is suspended, and sends nothing.
                let mut streams = end.streams.values().chain(other.streams.values());
                let is_left = ends_alone
                    && matches!(other.ended, Some((_, Error::Closed)))
                    && streams.all(|stream| !stream.is_open || stream.got == Some(End::Fin));
                assert!(*error == Error::Closed || is_left, "{}", shown());
            }
            for (conn, stream) in &end.streams {
                let Some(theirs) = other.streams.get(conn).filter(|_| stream.is_open) else {
                    continue;
                };
                if theirs.got == Some(End::Fin) || stream.got == Some(End::Fin) {
                    assert_eq!(stream.read, theirs.total, "{conn:?} {}", shown());
                }
            }
        }
        // A reason that could be sent has arrived.
        if dies || is_interrupted {
            return;
        }
        for (end, other) in [(0, 1), (1, 0)] {
            let ended = self.ends[other].ended.as_ref();
            if self.ends[end].has_said_why
                && let Some((_, error)) = ended
                && *error != Error::Closed
            {
                assert!(
                    matches!(error, Error::Ended { status, .. } if *status == REASON),
                    "seed {seed}: end {other}: {error} {faults:?}"
                );
            }
        }
    }
}

/// Last messages are not waited for in vain where both ends are there.
fn check_finished(seed: u64, now: Time, since: Option<Time>, faults: &[(Time, Fault)]) {
    let may_be_silent = |(_, fault): &(Time, Fault)| {
        matches!(
            fault,
            Fault::Die(..) | Fault::Return(_) | Fault::Interrupt(_)
        )
    };
    let waited = since.map_or(0, |since| now.since(since));
    assert!(
        waited <= 4 * LATENCY_MAX || faults.iter().any(may_be_silent),
        "seed {seed}: last messages were waited for {} ms: {faults:?}",
        waited / MS
    );
}

#[test]
fn whatever_dies_returns_or_closes_everybody_alive_learns_it_in_time() {
    let seeds = match option("HAUL_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=option("HAUL_SIM_SEEDS").unwrap_or(300).min(1_000_000),
    };
    let is_one = seeds.clone().count() < 300;
    let mut met = Met::default();
    let mut failed: Vec<u64> = Vec::new();
    for seed in seeds {
        let run = || {
            let mut world = World::new(seed);
            world.run();
            world.judge();
            world.met
        };
        match std::panic::catch_unwind(run) {
            Ok(run) => met.add(run),
            Err(_) => failed.push(seed),
        }
    }
    assert!(
        failed.is_empty(),
        "{} seeds failed (repeat one with HAUL_SEED=…): {failed:?}",
        failed.len()
    );
    println!("{met:?}");
    assert!(is_one || met.is_all(), "{met:?}");
}
