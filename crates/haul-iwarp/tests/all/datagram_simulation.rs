//! Several senders, one target, and a network that loses, doubles, delays and spoils, against an
//! oracle: what a record claims was placed and is what was sent, nothing is placed in memory whose
//! record is closed, a Send in segments comes once and whole or not at all, and everything ends.
//!
//! `HAUL_SEED` repeats one seed, `HAUL_SIM_SEEDS` says how many.
#![expect(clippy::cast_possible_truncation, reason = "small numbers from a seed")]

use crate::common;

use std::collections::{HashMap, HashSet};

use common::datagrams::{BASE, MS, Net, Node, SEND, TAG, Weather, config, target};
use common::random::Random;
use haul_iwarp::Operation;
use haul_iwarp::datagram::{
    Record, RecordStatus, UdCompletion, UdEvent, UdReceived, UdStatus, ValidityMap,
};
use haul_iwarp::{Rights, SECOND_NS, Stag};

const SEEDS: u64 = 400;
const SENDERS: u8 = 3;
const MESSAGES: u64 = 12;
const SOURCE: Stag = Stag(0x5500_0001);
const SINK: Stag = Stag(0x6600_0001);
const SINK_LEN: u32 = 20_000;

/// A write: its bytes, and whether its record is closed.
#[derive(Debug)]
struct Written {
    bytes: Vec<u8>,
    closed: bool,
}

#[derive(Debug, Default)]
struct Oracle {
    /// By offset in the region.
    written: HashMap<u64, Written>,
    /// By the number in the first bytes.
    sent: HashMap<u64, Vec<u8>>,
    delivered: HashSet<u64>,
    placed: Vec<bool>,
    /// Placements and events of the target that were looked at.
    looked: (usize, usize),
}

impl Oracle {
    /// Looks at what the target did since it last looked.
    fn look(&mut self, node: &Node) {
        for (region, offset, len) in &node.placed[self.looked.0..] {
            assert_eq!(*region, 0);
            let message = self.message_at(*offset);
            assert!(!message.closed, "placed at {offset} after the close");
            let octets = *offset as usize..*offset as usize + *len as usize;
            self.placed[octets].fill(true);
        }
        self.looked.0 = node.placed.len();
        for event in &node.events[self.looked.1..] {
            match event {
                UdEvent::Record(record) => self.on_record(node, record),
                UdEvent::Received(received) => self.on_received(node, received),
                UdEvent::Validated { .. } | UdEvent::Dropped { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        self.looked.1 = node.events.len();
    }

    fn message_at(&mut self, offset: u64) -> &mut Written {
        let start = offset - offset % SLOT;
        self.written.get_mut(&start).expect("somebody wrote there")
    }

    fn on_record(&mut self, node: &Node, record: &Record) {
        let start = record.to - BASE;
        let message = self.written.get_mut(&start).expect("it was written");
        assert!(!message.closed, "reported twice");
        message.closed = true;
        assert_eq!(record.len as usize, message.bytes.len());
        let mut valid = 0;
        for (from, to) in ranges(&record.map, record.len) {
            let octets = start as usize + from as usize..start as usize + to as usize;
            assert!(
                self.placed[octets.clone()].iter().all(|placed| *placed),
                "claimed"
            );
            let wanted = &message.bytes[from as usize..to as usize];
            assert_eq!(&node.ram.regions[0][octets], wanted);
            valid += to - from;
        }
        assert_eq!(valid, record.valid);
        assert_eq!(
            record.status == Some(RecordStatus::Full),
            valid == record.len
        );
    }

    fn on_received(&mut self, node: &Node, received: &UdReceived) {
        assert_eq!(received.status, UdStatus::Success);
        let bytes = &node.ram.receives[&received.slot][..received.len as usize];
        let id = u64::from_be_bytes(*bytes.first_chunk().expect("at least a number"));
        assert_eq!(bytes, self.sent[&id]);
        let is_first = self.delivered.insert(id);
        assert!(is_first, "delivered twice");
    }
}

/// Room for each Write-Record, at a place of its own.
const SLOT: u64 = 16_384;

fn ranges(map: &ValidityMap, len: u32) -> Vec<(u32, u32)> {
    match map {
        ValidityMap::Full if len == 0 => Vec::new(),
        ValidityMap::Full => vec![(0, len)],
        ValidityMap::Ranges(ranges) => ranges.to_vec(),
    }
}

fn octets(random: &mut Random, id: u64, len: u64) -> Vec<u8> {
    let mut bytes = id.to_be_bytes().to_vec();
    while (bytes.len() as u64) < len {
        bytes.extend(random.next().to_be_bytes());
    }
    bytes.truncate(len.max(8) as usize);
    bytes
}

fn weather(random: &mut Random) -> Weather {
    let most = [0, 10, 100, 300][random.below(4) as usize];
    Weather {
        loss: random.below(most + 1),
        double: random.below(most + 1),
        spoil: random.below(most / 4 + 1),
        delay_ns: random.below(5 * MS),
        jitter_ns: [0, MS / 10, 5 * MS][random.below(3) as usize],
    }
}

fn nodes(random: &mut Random) -> Vec<Node> {
    let mut limits = config(2);
    limits.records = 2 + random.below(8) as usize;
    limits.records_per_source = 1 + random.below(8) as usize;
    limits.slots = 2 + random.below(8) as usize;
    limits.slots_per_source = 1 + random.below(4) as usize;
    limits.sources = 1 + random.below(8) as usize;
    let mut nodes = vec![target(limits)];
    let source = octets(random, 0, 100_000);
    nodes[0]
        .ram
        .register(SOURCE.0, 0, source, Rights::REMOTE_READ);
    for n in 0..SENDERS {
        let mut node = Node::with(
            10 + n,
            common::with(config(10 + n), |config| {
                config.tail_copy = random.below(10) as u32
            }),
        );
        let sink = vec![0; SINK_LEN as usize];
        node.ram.register(SINK.0, 0, sink, Rights::LOCAL_WRITE);
        nodes.push(node);
    }
    nodes
}

/// One message, of whichever kind.
fn post(net: &mut Net, oracle: &mut Oracle, random: &mut Random, id: u64) {
    let to = net.nodes[0].destination();
    let node = &mut net.nodes[1 + random.below(u64::from(SENDERS)) as usize];
    let len =
        [random.below(100), random.below(3_000), random.below(SLOT)][random.below(3) as usize];
    match random.below(4) {
        0 => {
            let bytes = octets(random, id, len.min(8_000));
            oracle.sent.insert(id, bytes.clone());
            node.post(to, SEND, bytes);
        }
        1 => {
            let op = Operation::Read {
                sink: SINK,
                sink_to: 0,
                source: SOURCE,
                source_to: random.below(50_000),
            };
            node.read(to, op, len as u32);
        }
        _ => {
            let bytes = octets(random, id, len);
            let op = Operation::WriteRecord {
                stag: TAG,
                to: BASE + id * SLOT,
                immediate: random.chance(300).then_some(id),
            };
            let written = Written {
                bytes: bytes.clone(),
                closed: false,
            };
            oracle.written.insert(id * SLOT, written);
            node.post(to, op, bytes);
        }
    }
}

fn run(seed: u64) {
    let mut random = Random::new(seed);
    let nodes = nodes(&mut random);
    let mut net = Net::new(nodes, weather(&mut random), seed);
    let mut oracle = Oracle {
        placed: vec![false; 1 << 20],
        ..Oracle::default()
    };
    for _ in 0..6 {
        net.nodes[0].receive(8_000);
    }
    for id in 0..MESSAGES {
        post(&mut net, &mut oracle, &mut random, id);
        let pause = random.below(20 * MS);
        let until = net.now.after(pause);
        while net.step(until, |node, at| {
            if at == 0 {
                oracle.look(node);
            }
        }) {}
        net.now = until;
        if random.chance(700) {
            net.nodes[0].receive(8_000);
        }
    }
    let until = net.now.after(100 * SECOND_NS);
    while net.step(until, |node, at| {
        if at == 0 {
            oracle.look(node);
        }
    }) {}
    check_end(&net, &oracle);
}

fn check_end(net: &Net, oracle: &Oracle) {
    for node in &net.nodes {
        assert_eq!(node.ud.poll_timeout(), None);
        assert_eq!(node.ud.outstanding(), 0);
    }
    for (start, message) in &oracle.written {
        let octets = *start as usize..*start as usize + message.bytes.len();
        let arrived = oracle.placed[octets].iter().any(|placed| *placed);
        assert_eq!(message.closed, arrived, "one record for all that came");
    }
    let source = &net.nodes[0].ram.regions[1];
    for node in &net.nodes[1..] {
        let mut completions = Vec::new();
        for event in &node.events {
            if let UdEvent::Completion(completion) = event {
                completions.push(completion);
            }
        }
        // Only the last read's bytes are sure to be in the sink.
        let reads: Vec<&&UdCompletion> = completions
            .iter()
            .filter(|completion| matches!(completion.op, Operation::Read { .. }))
            .collect();
        if let [read] = reads[..]
            && let Operation::Read { source_to, .. } = read.op
        {
            let mut valid = 0;
            for (from, to) in ranges(&read.map, read.len) {
                let wanted = source_to as usize + from as usize..source_to as usize + to as usize;
                let got = &node.ram.regions[0][from as usize..to as usize];
                assert_eq!(got, &source[wanted]);
                valid += to - from;
            }
            assert_eq!(valid, read.len);
        }
    }
}

#[test]
fn records_and_messages_are_what_the_oracle_says() {
    let number = |name| {
        #[expect(clippy::disallowed_methods, reason = "which seeds to run")]
        let text = std::env::var(name).ok()?;
        text.parse::<u64>().ok()
    };
    let seeds: Vec<u64> = number("HAUL_SEED").map_or_else(
        || (0..number("HAUL_SIM_SEEDS").unwrap_or(SEEDS)).collect(),
        |seed| vec![seed],
    );
    let failed: Vec<u64> = seeds
        .into_iter()
        .filter(|seed| std::panic::catch_unwind(|| run(*seed)).is_err())
        .collect();
    assert!(
        failed.is_empty(),
        "these seeds failed (repeat one with HAUL_SEED=…): {failed:?}"
    );
}
