//! Two ends over a lower layer of messages: lost and repeated, reordered and doubled, on virtual
//! time.

use std::collections::{BTreeMap, BTreeSet};

use haul_iwarp::ReliableConnection as _;
use haul_iwarp::{
    Completion, Crc32c, Datagram, Event, HEADER_MAX, MessageConfig, MessageConnection, Repeat, Time,
};

use super::Ram;
use super::random::Random;

/// One end of a connection over messages.
#[derive(Debug)]
pub struct MessageEnd {
    pub connection: MessageConnection,
    pub ram: Ram,
    pub events: Vec<Event>,
    pub completions: Vec<Completion>,
    /// Messages to be carried: number and bytes.
    pub out: Vec<(u64, Vec<u8>)>,
    pub now: Time,
    /// Payload that was placed while an earlier message was missing, bytes.
    pub placed_early: u64,
    received: BTreeSet<u64>,
    base: u64,
}

impl MessageEnd {
    pub fn new(connection: MessageConnection) -> Self {
        Self {
            connection,
            ram: Ram::default(),
            events: Vec::new(),
            completions: Vec::new(),
            out: Vec::new(),
            now: Time::from_ns(1),
            placed_early: 0,
            received: BTreeSet::new(),
            base: 0,
        }
    }

    pub fn take(&mut self, index: u64, message: &[u8]) {
        assert!(self.connection.verify(message));
        self.received.insert(index);
        while self.received.remove(&self.base) {
            self.base += 1;
        }
        let arrived = self
            .connection
            .handle_message(self.now, &mut self.ram, index, message);
        if let Some(arrived) = arrived {
            let payload = &message[arrived.payload];
            assert_eq!(payload.len(), arrived.placement.len as usize);
            self.ram.place(&arrived.placement, payload);
            self.placed_early += if index >= self.base {
                payload.len() as u64
            } else {
                0
            };
            self.connection.handle_placed(self.now, &mut self.ram);
        }
        self.drain();
    }

    pub fn drain(&mut self) {
        loop {
            self.reap();
            let mut control = Vec::new();
            while let Some(index) = self.connection.poll_control(&mut control) {
                self.out.push((index, std::mem::take(&mut control)));
            }
            let mut header = [0; HEADER_MAX];
            let datagram = self
                .connection
                .poll_transmit(self.now, &mut self.ram, &mut header);
            let Some(datagram) = datagram else {
                self.reap();
                return;
            };
            let octets = self.assemble(&datagram, &header);
            self.out.push((datagram.segment.index, octets));
        }
    }

    fn assemble(&self, datagram: &Datagram, header: &[u8; HEADER_MAX]) -> Vec<u8> {
        let segment = &datagram.segment;
        let mut out = header[..segment.header_len].to_vec();
        out.extend(self.ram.payload(segment.payload, segment.payload_len));
        if datagram.crc {
            let mut digest = Crc32c::new();
            digest.update(&out);
            out.extend(datagram.trailer(digest));
        }
        assert_eq!(out.len(), datagram.wire_len());
        out
    }

    /// The message as the core makes it again, if it still does.
    pub fn again(&self, index: u64) -> Option<Vec<u8>> {
        let (mut header, mut control) = ([0; HEADER_MAX], Vec::new());
        match self
            .connection
            .repeat(&self.ram, index, &mut header, &mut control)?
        {
            Repeat::Control => Some(control),
            Repeat::Datagram(datagram) => Some(self.assemble(&datagram, &header)),
        }
    }

    fn reap(&mut self) {
        while let Some(event) = self.connection.poll_event() {
            if let Event::Completion(completion) = event {
                self.completions.push(completion);
            }
            self.events.push(event);
        }
    }
}

/// Faults that the network applies to messages in flight.
#[derive(Debug, Clone, Copy)]
pub struct Path {
    /// In 1,000.
    pub loss: u64,
    /// In 1,000.
    pub doubles: u64,
    /// Delay is 1 to this, in units of time.
    pub jitter: u64,
}

#[derive(Debug)]
enum Happening {
    Arrives {
        at: usize,
        index: u64,
        octets: Vec<u8>,
    },
    Repeats {
        from: usize,
        index: u64,
    },
    Acknowledged {
        to: usize,
        below: u64,
    },
}

/// Two ends and the messages in flight between them.
#[derive(Debug)]
pub struct Net {
    pub ends: [MessageEnd; 2],
    pub random: Random,
    path: Path,
    now: u64,
    serial: u64,
    agenda: BTreeMap<(u64, u64), Happening>,
}

const REPEAT_AFTER: u64 = 300;

impl Net {
    pub fn new(configs: [MessageConfig; 2], path: Path, seed: u64, private: &[u8]) -> Self {
        let now = Time::from_ns(1);
        let first = MessageConnection::connect(now, configs[0], private).expect("it fits");
        let second = MessageConnection::listen(now, configs[1]);
        Self {
            ends: [MessageEnd::new(first), MessageEnd::new(second)],
            random: Random::new(seed),
            path,
            now: 1,
            serial: 0,
            agenda: BTreeMap::new(),
        }
    }

    fn plan(&mut self, delay: u64, happening: Happening) {
        self.serial += 1;
        self.agenda
            .insert((self.now + delay, self.serial), happening);
    }

    fn carry(&mut self, from: usize, index: u64, octets: &[u8]) {
        let copies = if self.random.chance(self.path.doubles) {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let delay = 1 + self.random.below(self.path.jitter);
            if !self.random.chance(self.path.loss) {
                let (at, octets) = (1 - from, octets.to_vec());
                self.plan(delay, Happening::Arrives { at, index, octets });
            }
        }
        self.plan(REPEAT_AFTER, Happening::Repeats { from, index });
    }

    /// Sends what both ends have, and lets one thing happen. False if nothing is left to happen.
    pub fn step(&mut self) -> bool {
        for from in 0..2 {
            self.ends[from].drain();
            for (index, octets) in std::mem::take(&mut self.ends[from].out) {
                assert_eq!(
                    self.ends[from].again(index).as_ref(),
                    Some(&octets),
                    "made again alike"
                );
                self.carry(from, index, &octets);
            }
        }
        let Some(((now, _), happening)) = self.agenda.pop_first() else {
            return false;
        };
        self.now = now;
        for end in &mut self.ends {
            end.now = Time::from_ns(now);
        }
        match happening {
            Happening::Arrives { at, index, octets } => {
                self.ends[at].take(index, &octets);
                let below = self.ends[at].base;
                let to = 1 - at;
                self.plan(20, Happening::Acknowledged { to, below });
            }
            Happening::Acknowledged { to, below } => {
                let now = self.ends[to].now;
                self.ends[to].connection.handle_released(now, below);
            }
            Happening::Repeats { from, index } => {
                let peer = &self.ends[1 - from];
                let missing = index >= peer.base && !peer.received.contains(&index);
                if missing && let Some(octets) = self.ends[from].again(index) {
                    self.carry(from, index, &octets);
                }
            }
        }
        true
    }

    pub fn settle(&mut self) {
        for _ in 0..1_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("they never come to rest");
    }

    /// Agreed on both sides.
    pub fn establish(&mut self) {
        self.settle();
        assert!(self.ends[1].events.contains(&Event::Request));
        let now = self.ends[1].now;
        self.ends[1].connection.accept(now, b"").expect("a request");
        self.settle();
        assert!(
            self.ends
                .iter()
                .all(|end| end.events.contains(&Event::Established))
        );
    }
}
