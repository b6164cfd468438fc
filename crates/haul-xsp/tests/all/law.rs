//! How large a ring must be (paper Fig. 7): full rate whenever `B >= flight * N / (N - 2)`, where
//! `flight` is what the path moves until a byte's memory is free again: one round trip where
//! bytes are pushed, two where they are pulled. On virtual time, with bytes coming in at the
//! path's rate and one connection, whose far end has as much memory as the ring.

#![expect(
    clippy::unwrap_used,
    reason = "what is not there where it must be fails the test"
)]

use crate::common;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use common::{endpoint, open, tcp};
use haul_xsp::bag::plan::{Mode, octets_in, ring_bytes};
use haul_xsp::bag::{ConsumerConfig, GetId, ProducerConfig, PutId, Read};
use haul_xsp::wire::{AuthMethod, Key};
use haul_xsp::{AuthConfig, ConnId, Event, Session, SessionConfig, SessionId, SlabSeq, Time};

const RATE_BPS: u64 = 800_000_000;
const RTT_NS: u64 = 20_000_000;
const PART: u64 = 10_000;

enum What {
    Control(usize, Vec<u8>),
    Asked(GetId, u64),
    Got(GetId),
    Put(PutId),
    Mark(SlabSeq),
    Fill,
}

struct Path {
    now: Time,
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    what: BTreeMap<u64, What>,
    next: u64,
    /// When the link towards the consumer is free.
    free_at: Time,
    ends: [Session; 2],
    conn: Option<ConnId>,
    stag: u32,
    waiting: u64,
    delivered: u64,
    /// The path's limits that the consumer receives once the session is open: a rate, and a burst.
    limit: Option<(u64, u64)>,
    /// Bytes of the longest read or write, and the most that a write may have.
    longest: u64,
    put_bytes: u32,
}

impl Path {
    fn new(mode: Mode, regions: u16, region_bytes: u64) -> Self {
        let mut offer = tcp();
        offer.params.push = Some((mode == Mode::Push).into());
        let mut open = open(1, false);
        open.hops[0].offers = vec![offer.clone()];
        let ring = u64::from(regions) * region_bytes;
        let config = SessionConfig {
            auth: AuthConfig {
                methods: vec![AuthMethod::Anonymous],
                ..AuthConfig::default()
            },
            conns_max: 4,
            protocols: vec![offer],
            producer: ProducerConfig {
                regions,
                region_bytes,
                region_bytes_start: region_bytes,
                mode,
                ..ProducerConfig::default()
            },
            consumer: ConsumerConfig {
                arena_bytes: ring.next_power_of_two(),
                extent_bytes_max: (ring.next_power_of_two() / 16).min(4 << 20),
                mode,
                verify: false,
                ..ConsumerConfig::default()
            },
            ..SessionConfig::default()
        };
        let now = Time::from_ns(1_000_000);
        let near = Session::open(config.clone(), now, SessionId([1; 16]), open, [1; 32]).unwrap();
        let far = Session::accept(config, now, [2; 32]).unwrap();
        Self {
            now,
            queue: BinaryHeap::new(),
            what: BTreeMap::new(),
            next: 0,
            free_at: now,
            ends: [near, far],
            conn: None,
            stag: 0,
            waiting: 0,
            delivered: 0,
            limit: None,
            longest: 0,
            put_bytes: 10_000,
        }
    }

    fn at(&mut self, at: Time, what: What) {
        self.next += 1;
        self.queue.push(Reverse((at, self.next)));
        self.what.insert(self.next, what);
    }

    /// When bytes that begin to leave now have left.
    fn carried(&mut self, octets: u64) -> Time {
        self.free_at = self
            .free_at
            .max(self.now)
            .after(octets * 8 * 1_000_000_000 / RATE_BPS);
        self.free_at
    }

    /// Goodput between one and two seconds, as a share of the path's rate in percent.
    fn run(&mut self) -> u64 {
        self.settle();
        let (from, until) = (Time::from_ns(1_000_000_000), Time::from_ns(2_000_000_000));
        let mut before = 0;
        while self.now < until {
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
            if self.now < from {
                before = self.delivered;
            }
        }
        (self.delivered - before) * 100 / octets_in(RATE_BPS, 1_000_000_000)
    }

    fn happen(&mut self, what: What) {
        let (now, half) = (self.now, RTT_NS / 2);
        match what {
            What::Control(end, octets) => {
                self.ends[end].handle_input(now, &octets).unwrap();
            }
            What::Asked(id, len) => {
                let at = self.carried(len).after(half);
                self.at(at, What::Got(id));
            }
            What::Got(id) => self.ends[1].consumer().handle_got(now, id, true).unwrap(),
            What::Put(id) => self.ends[0].producer().handle_put(id, true).unwrap(),
            What::Mark(seq) => self.ends[1].consumer().handle_written(now, seq).unwrap(),
            What::Fill => {
                // The application is stopped while nothing is taken from it, like a TCP that sees a
                // closed window.
                if self.waiting < 2 * PART {
                    self.waiting += PART;
                }
                self.at(now.after(PART * 8 * 1_000_000_000 / RATE_BPS), What::Fill);
            }
        }
    }

    fn settle(&mut self) {
        let (now, half) = (self.now, RTT_NS / 2);
        loop {
            let before = (self.next, self.delivered);
            for end in 0..2 {
                while let Some(event) = self.ends[end].poll_event() {
                    self.on_event(end, event);
                }
                while let Some(octets) = self.ends[end].poll_transmit(now) {
                    self.at(now.after(half), What::Control(end ^ 1, octets));
                }
            }
            self.fill();
            let producer = self.ends[0].producer();
            while producer.poll_retired().is_some() {}
            while let Some(seq) = producer.poll_sealed(now) {
                producer.announce(seq, |_| Key { stag: 1, to: 0 });
            }
            loop {
                let put = self.ends[0].producer().poll_put(now, self.put_bytes);
                while let Some(seq) = self.ends[0].producer().poll_mark() {
                    let at = self.carried(0).after(half);
                    self.at(at, What::Mark(seq));
                }
                let Some(put) = put else {
                    break;
                };
                self.longest = self.longest.max(put.place.len);
                // The transport's acknowledgement.
                let at = self.carried(put.place.len).after(2 * half);
                self.at(at, What::Put(put.id));
            }
            while let Some(get) = self.ends[1].consumer().poll_get(now) {
                self.longest = self.longest.max(get.len.into());
                self.at(now.after(half), What::Asked(get.id, u64::from(get.len)));
            }
            let consumer = self.ends[1].consumer();
            while consumer.poll_closed().is_some() {}
            while let Some(grant) = consumer.poll_grant() {
                self.stag += 1;
                consumer.granted(
                    &grant,
                    Key {
                        stag: self.stag,
                        to: 0,
                    },
                );
            }
            if (self.next, self.delivered) == before {
                return;
            }
        }
    }

    fn on_event(&mut self, end: usize, event: Event) {
        match event {
            Event::OpenRequest(_) => {
                self.ends[end].accept_session(self.now, None, None).unwrap();
                if let Some((rate, burst)) = self.limit {
                    let consumer = self.ends[end].consumer();
                    consumer.set_limit(self.now, Some(rate), Some(burst));
                }
            }
            Event::Opened(_) => {
                if let Some((rate, burst)) = self.limit {
                    let producer = self.ends[end].producer();
                    producer.set_limit(self.now, Some(rate), Some(burst));
                }
                self.ends[end].open_conn(endpoint("sink", 9)).unwrap();
            }
            Event::ConnRequest { conn, .. } => self.ends[end].accept_conn(conn).unwrap(),
            Event::ConnAccepted(conn) => {
                self.conn = Some(conn);
                self.at(self.now, What::Fill);
            }
            Event::Readable(conn) => {
                while let Some(Read::Data(data)) = self.ends[end].consumer().read(conn, u64::MAX) {
                    self.delivered += data.len;
                    self.ends[end]
                        .consumer()
                        .release(conn, data.offset, data.len);
                }
            }
            _ => {}
        }
    }

    fn fill(&mut self) {
        let Some(conn) = self.conn else {
            return;
        };
        while self.waiting > 0
            && let Some(fill) = self.ends[0]
                .producer()
                .reserve(self.now, conn, self.waiting)
        {
            self.ends[0]
                .producer()
                .commit(self.now, conn, fill.len, None);
            self.waiting -= fill.len;
        }
    }
}

fn share(mode: Mode, regions: u16, ring: u64) -> u64 {
    Path::new(mode, regions, ring / u64::from(regions)).run()
}

#[test]
fn rings_of_the_size_that_the_law_asks_for_give_the_full_rate_and_a_third_of_it_does_not() {
    for mode in [Mode::Push, Mode::Pull] {
        for regions in [3, 4, 8, 16] {
            let ring = ring_bytes(RATE_BPS, RTT_NS, regions, mode);
            let (whole, third) = (share(mode, regions, ring), share(mode, regions, ring / 3));
            println!("{mode:?} N={regions:2} B={ring:8}: {whole:3} %, a third of it {third:3} %");
            assert!(
                whole >= 95,
                "{mode:?}, {regions} regions of {ring} octets in all: {whole} %"
            );
            assert!(
                third < 95 && third + 5 <= whole,
                "{mode:?}, {regions} regions of {} octets in all: {third} %",
                ring / 3
            );
        }
    }
}

#[test]
fn three_regions_of_one_rtt_are_enough_although_pulled_data_occupies_memory_for_two() {
    // Paper §IV.B: one is filled, one announced, one read. `BDP * N / (N - 2)` is three times what
    // is in flight.
    let ring = ring_bytes(RATE_BPS, RTT_NS, 3, Mode::Push);
    let (whole, less) = (share(Mode::Pull, 3, ring), share(Mode::Pull, 3, ring / 2));
    println!("Pull N= 3 B={ring:8}: {whole:3} %, half of it {less:3} %");
    assert!(whole >= 95, "{whole} %");
    // Half of it is less than two round trips.
    assert!(less <= 75, "{less} %");
}

#[test]
fn a_limit_that_is_heard_of_when_the_session_is_open_is_kept_by_reads_and_by_writes() {
    for mode in [Mode::Pull, Mode::Push] {
        let ring = ring_bytes(RATE_BPS, RTT_NS, 8, mode);
        let mut path = Path::new(mode, 8, ring / 8);
        let burst = 64 << 10;
        (path.limit, path.put_bytes) = (Some((RATE_BPS / 2, burst)), 1 << 20);
        let share = path.run();
        assert!((45..=50).contains(&share), "{mode:?}: {share} %");
        let longest = path.longest;
        assert!((1..=burst / 2).contains(&longest), "{mode:?}: {longest}");
    }
}
