//! How long small messages take beside each other, beside bulk, and many at once: on virtual time,
//! over a path of one rate and round trip, whose data channels queue what is too much for it.
#![expect(
    clippy::unwrap_used,
    reason = "what is not there where it must be fails the test"
)]

use crate::common;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use common::{endpoint, open, tcp};
use haul_xsp::bag::plan::{Mode, octets_in};
use haul_xsp::bag::{ConsumerConfig, GetId, ProducerConfig, PutId, Read};
use haul_xsp::wire::{AuthMethod, Key};
use haul_xsp::{AuthConfig, ConnId, Event, Session, SessionConfig, SessionId, SlabSeq, Time};

const MS: u64 = 1_000_000;
const RATE_BPS: u64 = 300_000_000;
const RTT_NS: u64 = 80 * MS;
const RING: u64 = 64 << 20;
const REGIONS: u16 = 8;
/// Bytes of a question and its answer.
const WORD: u64 = 64;
const PUT_BYTES: u32 = 256 << 10;

/// The behaviour of a connection, selected by its port.
const ECHO: u16 = 1;
const BULK: u16 = 2;
const PAGE: u16 = 3;
/// Endless, and its application reads none of it.
const STALLED: u16 = 4;
/// Endless, and its application reads [`SLOW_BYTES`] every [`SLOW_NS`]: 24 Mb/s.
const SLOW: u16 = 5;
const SLOW_BYTES: u64 = 300_000;
const SLOW_NS: u64 = 100 * MS;

enum What {
    Control(usize, Vec<u8>),
    Asked(usize, GetId, u64),
    Got(usize, GetId),
    Put(usize, PutId),
    Mark(usize, SlabSeq),
    Ask(ConnId),
    /// A slow application reads.
    Look(ConnId),
}

#[derive(Default)]
struct Conn {
    port: u16,
    /// Requests of the near end, with their times.
    asked: Time,
    read: u64,
    /// How often it asks; 0: once.
    every_ns: u64,
    /// To be written by the far end, beside what is endless.
    owed: u64,
    times: Vec<u64>,
    done: Option<Time>,
}

struct Path {
    now: Time,
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    what: BTreeMap<u64, What>,
    next: u64,
    /// When the link from an end is free.
    free_at: [Time; 2],
    ends: [Session; 2],
    wanted: Vec<(u16, u64)>,
    conns: BTreeMap<ConnId, Conn>,
    /// Connections on which the far end has something to write.
    owing: BTreeSet<ConnId>,
    page: u64,
    delivered: u64,
    /// Connections that have ended.
    done: usize,
    stag: u32,
    /// When the data channel is up.
    channel_from: Time,
    /// After what time downloads begin, ns.
    bulk_after_ns: u64,
    /// Of every range, where checksums are used.
    crc: Option<u32>,
}

impl Path {
    fn new(mode: Mode, wanted: Vec<(u16, u64)>, page: u64) -> Self {
        let mut offer = tcp();
        offer.params.push = Some((mode == Mode::Push).into());
        let mut open = open(1, false);
        open.hops[0].offers = vec![offer.clone()];
        let config = SessionConfig {
            auth: AuthConfig {
                methods: vec![AuthMethod::Anonymous],
                ..AuthConfig::default()
            },
            protocols: vec![offer],
            producer: ProducerConfig {
                regions: REGIONS,
                region_bytes: RING / u64::from(REGIONS),
                ..ProducerConfig::default()
            },
            consumer: ConsumerConfig {
                arena_bytes: RING,
                verify: false,
                reads_max: 64,
                ..ConsumerConfig::default()
            },
            ..SessionConfig::default()
        };
        let now = Time::from_ns(MS);
        let near = Session::open(config.clone(), now, SessionId([1; 16]), open, [1; 32]).unwrap();
        let far = Session::accept(config, now, [2; 32]).unwrap();
        Self {
            now,
            queue: BinaryHeap::new(),
            what: BTreeMap::new(),
            next: 0,
            free_at: [now; 2],
            ends: [near, far],
            wanted,
            conns: BTreeMap::new(),
            owing: BTreeSet::new(),
            page,
            delivered: 0,
            done: 0,
            stag: 0,
            channel_from: now,
            bulk_after_ns: 0,
            crc: None,
        }
    }

    fn at(&mut self, at: Time, what: What) {
        self.next += 1;
        self.queue.push(Reverse((at, self.next)));
        self.what.insert(self.next, what);
    }

    /// When bytes that an end begins to send now have left.
    fn carried(&mut self, end: usize, octets: u64) -> Time {
        let begins = self.free_at[end].max(self.now);
        self.free_at[end] = begins.after(octets * 8 * 1_000_000_000 / RATE_BPS);
        self.free_at[end]
    }

    /// Until a moment, or there is nothing but keep-alives.
    fn run(&mut self, until_ms: u64) {
        self.settle();
        while self.now < Time::from_ns(until_ms * MS) && !self.is_over() {
            let due = self.ends.iter().filter_map(Session::poll_timeout).min();
            let queued = self.queue.peek().map(|Reverse((at, _))| *at);
            self.now = self.now.max(due.into_iter().chain(queued).min().unwrap());
            if queued.is_some_and(|at| at <= self.now) {
                let Reverse((_, id)) = self.queue.pop().unwrap();
                let what = self.what.remove(&id).unwrap();
                self.happen(what);
            } else {
                let now = self.now;
                self.ends.iter_mut().for_each(|end| end.handle_timeout(now));
            }
            self.settle();
        }
    }

    fn is_over(&self) -> bool {
        self.done > 0 && self.done == self.conns.len()
    }

    fn happen(&mut self, what: What) {
        let (now, half) = (self.now, RTT_NS / 2);
        match what {
            What::Control(end, mut octets) => {
                // Like a gateway, as much as the session takes before it is drained.
                while !octets.is_empty() {
                    let taken = self.ends[end].handle_input(now, &octets).unwrap();
                    octets.drain(..taken);
                    while self.ends[end].consumer().poll_inline().is_some() {}
                    self.drain_events(end);
                }
            }
            What::Asked(end, id, len) => {
                let at = self.carried(end ^ 1, len).after(half);
                self.at(at, What::Got(end, id));
            }
            What::Got(end, id) => self.ends[end].consumer().handle_got(now, id, true).unwrap(),
            What::Put(end, id) => self.ends[end].producer().handle_put(id, true).unwrap(),
            What::Mark(end, seq) => self.ends[end].consumer().handle_written(now, seq).unwrap(),
            What::Ask(id) => {
                let conn = self.conns.get_mut(&id).unwrap();
                conn.asked = now;
                if conn.every_ns > 0 {
                    let at = now.after(conn.every_ns);
                    self.at(at, What::Ask(id));
                }
                assert_eq!(self.write(0, id, WORD), WORD);
            }
            What::Look(id) => {
                self.read(0, id, SLOW_BYTES);
                self.at(now.after(SLOW_NS), What::Look(id));
            }
        }
    }

    fn write(&mut self, end: usize, conn: ConnId, most: u64) -> u64 {
        let mut written = 0;
        while written < most
            && let Some(fill) = {
                let producer = self.ends[end].producer();
                producer.reserve(self.now, conn, (most - written).min(256 << 10))
            }
        {
            let producer = self.ends[end].producer();
            producer.commit(self.now, conn, fill.len, self.crc);
            written += fill.len;
        }
        written
    }

    /// The far end writes what it owes, as far as there is room.
    fn answer(&mut self) {
        for id in self.owing.clone() {
            let conn = &self.conns[&id];
            let is_endless = matches!(conn.port, BULK | STALLED | SLOW);
            let most = if is_endless { 1 << 20 } else { conn.owed };
            let written = self.write(1, id, most);
            let conn = self.conns.get_mut(&id).unwrap();
            if is_endless {
                continue;
            }
            conn.owed -= written;
            if conn.owed > 0 {
                continue;
            }
            self.owing.remove(&id);
            if conn.port == PAGE {
                self.ends[1].finish_conn(id);
            }
        }
    }

    fn drain_events(&mut self, end: usize) {
        while let Some(event) = self.ends[end].poll_event() {
            self.on_event(end, event);
        }
    }

    fn on_event(&mut self, end: usize, event: Event) {
        match event {
            Event::OpenRequest(_) => self.ends[end].accept_session(self.now, None, None).unwrap(),
            Event::Opened(_) => {
                for (port, every_ns) in std::mem::take(&mut self.wanted) {
                    let id = self.ends[end].open_conn(endpoint("server", port)).unwrap();
                    let conn = Conn {
                        port,
                        every_ns,
                        ..Conn::default()
                    };
                    self.conns.insert(id, conn);
                }
            }
            Event::ConnRequest { conn, .. } => self.ends[end].accept_conn(conn).unwrap(),
            Event::ConnAccepted(conn) => {
                // A connection with repeated requests begins when bulk has filled the memory.
                let is_beside = self.conns.values().any(|other| other.port == BULK);
                let after = match self.conns[&conn] {
                    Conn { port: BULK, .. } => self.bulk_after_ns,
                    Conn { every_ns: 1.., .. } if is_beside => 3_000 * MS,
                    _ => 0,
                };
                if self.conns[&conn].port == SLOW {
                    self.at(self.now.after(SLOW_NS), What::Look(conn));
                }
                self.at(self.now.after(after), What::Ask(conn));
            }
            Event::Readable(conn)
                if end == 0 && matches!(self.conns[&conn].port, STALLED | SLOW) => {}
            Event::Readable(conn) => self.read(end, conn, u64::MAX),
            _ => {}
        }
    }

    fn read(&mut self, end: usize, id: ConnId, most: u64) {
        let mut left = most;
        while left > 0
            && let Some(read) = self.ends[end].consumer().read(id, left)
        {
            let conn = self.conns.get_mut(&id).unwrap();
            let Read::Data(data) = read else {
                if end == 0 {
                    conn.done = Some(self.now);
                    self.done += 1;
                    self.ends[end].finish_conn(id);
                }
                continue;
            };
            left -= data.len;
            if end == 0 {
                self.delivered += data.len;
                conn.read += data.len;
                if conn.port == ECHO {
                    conn.times.push(self.now.since(conn.asked));
                }
            } else {
                self.owing.insert(id);
                conn.owed += match conn.port {
                    ECHO => data.len,
                    PAGE => self.page,
                    _ => 1,
                };
            }
            let consumer = self.ends[end].consumer();
            consumer.release(id, data.offset, data.len);
        }
    }

    fn settle(&mut self) {
        loop {
            let before = (self.next, self.delivered);
            for end in 0..2 {
                self.drain_events(end);
            }
            self.answer();
            for end in 0..2 {
                self.move_octets(end);
            }
            if (self.next, self.delivered) == before {
                return;
            }
        }
    }

    fn move_octets(&mut self, end: usize) {
        let has_channel = self.now >= self.channel_from;
        self.ends[end].set_channel(has_channel);
        if has_channel {
            self.move_by_channel(end);
        } else {
            self.announce_inline(end);
        }
        self.transmit(end);
    }

    fn transmit(&mut self, end: usize) {
        while let Some(octets) = self.ends[end].poll_transmit(self.now) {
            let at = self.now.after(RTT_NS / 2);
            self.at(at, What::Control(end ^ 1, octets));
        }
    }

    fn announce_inline(&mut self, end: usize) {
        let producer = self.ends[end].producer();
        while producer.poll_retired().is_some() {}
        // Like a gateway, which looks again when something has happened.
        producer.release();
        while let Some(seq) = producer.poll_keyless(self.now) {
            let octets: u64 = producer.records(seq).map(|(_, place)| place.len).sum();
            producer.announce_inline(seq, vec![0; usize::try_from(octets).unwrap()]);
        }
        if producer.is_due(self.now) {
            producer.hold(self.now.after(100 * MS));
        }
        while self.ends[end].consumer().poll_closed().is_some() {}
    }

    fn move_by_channel(&mut self, end: usize) {
        let (now, half) = (self.now, RTT_NS / 2);
        let producer = self.ends[end].producer();
        while producer.poll_retired().is_some() {}
        while let Some(seq) = producer.poll_sealed(now) {
            if producer.is_inline(seq) {
                let octets: u64 = producer.records(seq).map(|(_, place)| place.len).sum();
                producer.announce_inline(seq, vec![0; usize::try_from(octets).unwrap()]);
            } else {
                producer.announce(seq, |_| Key { stag: 1, to: 0 });
            }
        }
        let consumer = self.ends[end].consumer();
        while consumer.poll_closed().is_some() {}
        while let Some(grant) = consumer.poll_grant() {
            self.stag += 1;
            let key = Key {
                stag: self.stag,
                to: 0,
            };
            consumer.granted(&grant, key);
        }
        loop {
            let put = self.ends[end].producer().poll_put(now, PUT_BYTES);
            while let Some(seq) = self.ends[end].producer().poll_mark() {
                let at = self.carried(end, 0).after(half);
                self.at(at, What::Mark(end ^ 1, seq));
            }
            let Some(put) = put else {
                break;
            };
            // The transport's acknowledgement.
            let at = self.carried(end, put.place.len).after(2 * half);
            self.at(at, What::Put(end, put.id));
        }
        while let Some(get) = self.ends[end].consumer().poll_get(now) {
            self.at(now.after(half), What::Asked(end, get.id, get.len.into()));
        }
    }

    /// Bytes that each application of this behaviour has received.
    fn read_of(&self, port: u16) -> Vec<u64> {
        let conns = self.conns.values().filter(|conn| conn.port == port);
        conns.map(|conn| conn.read).collect()
    }

    /// Earlier responses do not count.
    fn forget(&mut self) {
        self.conns.values_mut().for_each(|conn| conn.times.clear());
    }

    /// The slowest answer, and that of 99 in 100, ns, of what was asked more than once.
    fn echoes(&self) -> (u64, u64) {
        let mut times: Vec<u64> = self
            .conns
            .values()
            .flat_map(|conn| conn.times.clone())
            .collect();
        times.sort_unstable();
        assert!(times.len() >= 100, "{} answers", times.len());
        (times[times.len() - 1], times[times.len() * 99 / 100])
    }
}

#[test]
fn interactive_connections_of_a_session_do_not_slow_each_other_down() {
    for mode in [Mode::Push, Mode::Pull] {
        for count in [1_u64, 2, 50] {
            let wanted = (0..count).map(|index| (ECHO, 100 * MS + index * 1_700_000));
            let mut path = Path::new(mode, wanted.collect(), 0);
            path.run(1_000);
            path.forget();
            path.run(12_000);
            let (slowest, _) = path.echoes();
            assert!(
                slowest <= RTT_NS + MS,
                "{mode:?}, {count} connections: {slowest} ns"
            );
        }
    }
}

#[test]
fn a_thousand_connections_in_turn_do_not_use_up_the_slabs_of_a_session() {
    // 800 words are in flight in each direction, of which 224 fit inline. The consumer refuses a
    // 257th slab.
    let wanted = (0..1_000).map(|index| (ECHO, 100 * MS + index * MS / 10));
    let mut path = Path::new(Mode::Push, wanted.collect(), 0);
    path.run(2_000);
    path.forget();
    path.run(6_000);
    let (slowest, most) = path.echoes();
    assert!(most <= RTT_NS + 5 * MS, "{most} ns, {slowest} ns at most");
}

#[test]
fn an_interactive_connection_is_fast_beside_bulk_that_fills_the_path() {
    let modes = [
        (Mode::Push, None),
        (Mode::Push, Some(0)),
        (Mode::Pull, None),
    ];
    let cases = modes.map(|mode| [1, 2].map(|bulk| (mode, vec![(BULK, 0); bulk])));
    for ((mode, crc), bulk) in cases.into_iter().flatten() {
        let mut path = Path::new(mode, [bulk, vec![(ECHO, 101 * MS)]].concat(), 0);
        path.crc = crc;
        path.run(2_000);
        let before = path.delivered;
        path.run(14_000);
        let share = (path.delivered - before) * 100 / octets_in(RATE_BPS, 12_000 * MS);
        let (slowest, most) = path.echoes();
        assert!(
            most <= RTT_NS + 20 * MS && slowest <= RTT_NS + 40 * MS && share >= 97,
            "{mode:?}: {most} ns, {slowest} ns at most; bulk has {share} % of the rate"
        );
    }
}

#[test]
fn many_small_answers_come_in_one_round_trip_and_the_time_that_the_path_takes() {
    for (count, bytes) in [
        (200_u64, 10_000),
        (1_000, 10_000),
        (2_000, 1_000),
        (200, 100_000),
    ] {
        let wanted = vec![(PAGE, 0); usize::try_from(count).unwrap()];
        let mut path = Path::new(Mode::Push, wanted, bytes);
        path.run(20_000);
        assert_eq!(path.delivered, count * bytes);
        let done = path.conns.values().map(|conn| conn.done.unwrap()).max();
        let asked = path.conns.values().map(|conn| conn.asked).min();
        let took = done.unwrap().since(asked.unwrap());
        let path_ns = count * bytes * 8 * 1_000_000_000 / RATE_BPS;
        // A connection begins with a window, which grows once for the longest.
        let rounds = if bytes > 32 << 10 { 2 } else { 1 };
        let most = (rounds * RTT_NS + path_ns) / 10 * 11;
        assert!(took <= most, "{count} of {bytes}: {took} ns of {most}");
    }
}

/// An answer of so many bytes where the data channel is up so long after the session's start: how
/// long it takes.
fn answer_before_a_channel(mode: Mode, bytes: u64, channel_after_ns: u64) -> u64 {
    let mut path = Path::new(mode, vec![(PAGE, 0)], bytes);
    path.channel_from = path.now.after(channel_after_ns);
    path.run(20_000);
    assert_eq!(path.delivered, bytes, "{mode:?}");
    let conn = path.conns.values().next().unwrap();
    conn.done.unwrap().since(conn.asked)
}

#[test]
fn a_first_message_of_64_kib_does_not_wait_for_a_data_channel() {
    for mode in [Mode::Push, Mode::Pull] {
        let took = answer_before_a_channel(mode, 64 << 10, 19_000 * MS);
        // The credit that a connection begins with grows once.
        assert!(took <= 2 * RTT_NS + MS, "{mode:?}: {took} ns");
    }
}

#[test]
fn what_is_more_goes_on_over_the_channel_when_it_is_up() {
    for mode in [Mode::Push, Mode::Pull] {
        for after in [0, 300 * MS, 777 * MS] {
            let took = answer_before_a_channel(mode, 4 << 20, after);
            assert!(
                took <= 800 * MS + 8 * RTT_NS,
                "{mode:?}, {after}: {took} ns"
            );
        }
    }
}

#[test]
fn unread_connections_slow_a_download_by_a_tenth_at_most() {
    for mode in [Mode::Push, Mode::Pull] {
        let delivered = |stalled: usize| {
            let wanted = [vec![(STALLED, 0); stalled], vec![(BULK, 0)]].concat();
            let mut path = Path::new(mode, wanted, 0);
            // Until their windows are full, they share the path.
            path.run(6_000);
            let before = path.delivered;
            path.run(16_000);
            path.delivered - before
        };
        let (alone, beside) = (delivered(0), delivered(64));
        assert!(
            beside * 10 >= alone * 9,
            "{mode:?}: {beside} bytes of {alone}"
        );
    }
}

#[test]
fn downloads_share_what_slow_readers_leave() {
    const BULKS: u64 = 8;
    for (mode, crc) in [
        (Mode::Push, None),
        (Mode::Push, Some(0)),
        (Mode::Pull, None),
        (Mode::Pull, Some(0)),
    ] {
        for slow in [0_u64, 1, 2, 8] {
            let wanted = [(SLOW, slow), (BULK, BULKS)]
                .map(|(port, count)| vec![(port, 0); usize::try_from(count).unwrap()]);
            let mut path = Path::new(mode, wanted.concat(), 0);
            path.crc = crc;
            // By then the slow ones hold as much memory as they get.
            path.bulk_after_ns = 4_000 * MS;
            path.run(6_000);
            let before = (path.read_of(BULK), path.read_of(SLOW));
            path.run(12_000);
            let since = |now: Vec<u64>, before: Vec<u64>| -> Vec<u64> {
                let both = now.into_iter().zip(before);
                both.map(|(now, before)| now - before).collect()
            };
            let bulk = since(path.read_of(BULK), before.0);
            let slow_ones = since(path.read_of(SLOW), before.1);
            let (sum, squares) = bulk.iter().fold((0, 0), |(sum, squares), read| {
                (sum + read, squares + u128::from(*read).pow(2))
            });
            // Jain's index, in thousandths.
            let fairness = u128::from(sum).pow(2) * 1000 / (u128::from(BULKS) * squares);
            let what = format!("{mode:?}, {crc:?}, {slow} slow: {bulk:?}, {slow_ones:?}");
            assert!(fairness >= 970, "{what}");
            let rate = octets_in(RATE_BPS, 6_000 * MS);
            let most = (6_000 * MS / SLOW_NS * SLOW_BYTES).min(rate / (slow + BULKS));
            assert!(slow_ones.iter().all(|read| read * 10 >= most * 9), "{what}");
            let all = sum + slow_ones.iter().sum::<u64>();
            assert!(all * 10 >= rate * 9, "{what}");
        }
    }
}
