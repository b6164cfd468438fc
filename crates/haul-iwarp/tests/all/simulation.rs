//! Random operations of both ends at once, over a stream that is cut anywhere and over messages
//! that are lost, repeated, doubled and reordered, against an oracle: what memory must hold, in
//! which order operations must complete, and that a receive completes only after all that was sent
//! before it is placed.
//!
//! `HAUL_SEED` repeats one seed, `HAUL_SIM_SEEDS` says how many.
#![expect(clippy::cast_possible_truncation, reason = "small numbers from a seed")]

use crate::common;

use std::collections::{HashMap, VecDeque};

use common::packets::{Net, Path};
use common::random::Random;
use common::{End, Ram, config, everything, pattern};
use haul_iwarp::ReliableConnection as _;
use haul_iwarp::wire::rdmap::AtomicOp;
use haul_iwarp::{
    Completion, CompletionKind, Event, MessageConfig, Operation, PostError, QpConfig, RecvWr,
    Rights, SendWr, Stag, Status,
};

const SEEDS: u64 = 150;
const STEPS: u64 = 300;
const WRITE: Stag = Stag(0x100);
const READ: Stag = Stag(0x200);
const SINK: Stag = Stag(0x300);
const WORDS: Stag = Stag(0x400);
const AREA: usize = 1 << 20;
const RECEIVE_LEN: u32 = 6_000;

/// Operations of both kinds of ends.
trait Core {
    fn post_send(&mut self, wr: SendWr) -> Result<(), PostError>;
    fn post_receive(&mut self, wr: RecvWr) -> Result<(), PostError>;
    fn ram(&mut self) -> &mut Ram;
    fn reaped(&mut self) -> Vec<Completion>;
    fn failure(&self) -> Option<haul_iwarp::Error>;
}

impl Core for End {
    fn post_send(&mut self, wr: SendWr) -> Result<(), PostError> {
        self.connection.post_send(wr)
    }

    fn post_receive(&mut self, wr: RecvWr) -> Result<(), PostError> {
        self.connection.post_receive(wr)
    }

    fn ram(&mut self) -> &mut Ram {
        &mut self.ram
    }

    fn reaped(&mut self) -> Vec<Completion> {
        std::mem::take(&mut self.completions)
    }

    fn failure(&self) -> Option<haul_iwarp::Error> {
        self.connection.error()
    }
}

impl Core for common::packets::MessageEnd {
    fn post_send(&mut self, wr: SendWr) -> Result<(), PostError> {
        self.connection.post_send(wr)
    }

    fn post_receive(&mut self, wr: RecvWr) -> Result<(), PostError> {
        self.connection.post_receive(wr)
    }

    fn ram(&mut self) -> &mut Ram {
        &mut self.ram
    }

    fn reaped(&mut self) -> Vec<Completion> {
        std::mem::take(&mut self.completions)
    }

    fn failure(&self) -> Option<haul_iwarp::Error> {
        self.connection.error()
    }
}

/// What the peer must receive next.
#[derive(Debug, Clone)]
struct Message {
    bytes: Vec<u8>,
    kind: CompletionKind,
    /// Bytes of the peer's write area that must be placed by then.
    written: usize,
}

/// The user of one end, and what it knows to be true.
#[derive(Debug, Default)]
struct User {
    posted: VecDeque<u64>,
    next_id: u64,
    /// Bytes of the peer's write area that are written, from the front.
    written: usize,
    write_image: Vec<u8>,
    sink: usize,
    reads: HashMap<u64, (usize, Vec<u8>)>,
    originals: HashMap<u64, u64>,
    words: [u64; 8],
    messages: VecDeque<Message>,
    /// Messages sent that the peer has not yet received.
    in_flight: usize,
    invalidations: u32,
    receives: u32,
    done: u64,
}

fn prepare(core: &mut impl Core, depth: u32, shared: bool, user: &mut User) {
    let ram = core.ram();
    ram.register(WRITE.0, 1 << 33, vec![0; AREA], Rights::REMOTE_WRITE);
    ram.register(READ.0, 5, pattern(AREA, 9), Rights::REMOTE_READ);
    ram.register(SINK.0, 0, vec![0; AREA], Rights::LOCAL_WRITE);
    ram.register(WORDS.0, 64, vec![0; 64], Rights::REMOTE_ATOMIC);
    for at in 0..STEPS as u32 {
        ram.register(0x1_0000 + at, 0, vec![], everything());
    }
    user.write_image = vec![0; AREA];
    for _ in 0..depth {
        add_receive(core, shared, user);
    }
}

fn add_receive(core: &mut impl Core, shared: bool, user: &mut User) {
    user.receives += 1;
    let slot = user.receives;
    let wr = RecvWr::new(slot.into(), slot, RECEIVE_LEN);
    core.ram()
        .receives
        .insert(slot, vec![0; RECEIVE_LEN as usize]);
    if shared {
        core.ram().shared.push_back(wr);
    } else {
        core.post_receive(wr).expect("there is room");
    }
}

/// Posts something.
fn act(random: &mut Random, core: &mut impl Core, user: &mut User, credit: usize) {
    let len = match random.below(4) {
        0 => 0,
        1 => random.below(100),
        _ => random.below(RECEIVE_LEN.into()),
    } as usize;
    let bytes = pattern(len, random.next() as u8);
    let id = user.next_id;
    let mut message = None;
    let op = match random.below(10) {
        0..=2 if user.written + len <= AREA => {
            let to = (1 << 33) + user.written as u64;
            let placed = random.chance(200);
            Operation::Write {
                stag: WRITE,
                to,
                placed,
            }
        }
        3 | 4 if user.in_flight < credit => {
            let solicited = random.chance(300);
            let invalidate = random
                .chance(200)
                .then_some(Stag(0x1_0000 + user.invalidations));
            message = Some(CompletionKind::Receive {
                solicited,
                invalidated: invalidate,
            });
            Operation::Send {
                solicited,
                invalidate,
            }
        }
        5 if user.in_flight < credit => {
            let (data, solicited) = (random.next(), random.chance(300));
            message = Some(CompletionKind::ReceiveImmediate { data, solicited });
            Operation::Immediate { data, solicited }
        }
        9 if user.in_flight < credit => {
            let (data, solicited) = (random.below(1 << 32) as u32, random.chance(300));
            message = Some(CompletionKind::ReceiveSendImmediate { data, solicited });
            Operation::SendImmediate { data, solicited }
        }
        6 | 7 if user.sink + len <= AREA => Operation::Read {
            sink: SINK,
            sink_to: user.sink as u64,
            source: READ,
            source_to: 5 + random.below((AREA - len) as u64),
        },
        8 => Operation::Atomic {
            stag: WORDS,
            to: 64 + 8 * random.below(8),
            op: atomic(random),
        },
        _ => return,
    };
    let mut wr = SendWr::new(id, id as u32, op, len as u32);
    wr.signalled = random.chance(700);
    wr.fence = random.chance(100);
    match core.post_send(wr) {
        Err(PostError::Full | PostError::NoReads) => return,
        other => other.expect("it is taken"),
    }
    core.ram().sends.insert(wr.slot, bytes.clone());
    user.next_id += 1;
    user.posted.push_back(id);
    user.record(id, op, bytes, message);
}

fn atomic(random: &mut Random) -> AtomicOp {
    let mask = [0, u64::MAX, 0x8000_8000_8000_8000][random.below(3) as usize];
    if random.chance(500) {
        let add = random.next();
        AtomicOp::FetchAdd { add, mask }
    } else {
        AtomicOp::CmpSwap {
            swap: random.next(),
            swap_mask: mask,
            compare: random.below(2),
            compare_mask: u64::from(random.chance(500)),
        }
    }
}

impl User {
    /// The expected outcome.
    fn record(&mut self, id: u64, op: Operation, bytes: Vec<u8>, message: Option<CompletionKind>) {
        if let Some(kind) = message {
            let is_send = matches!(op, Operation::Send { .. } | Operation::SendImmediate { .. });
            let bytes = if is_send { bytes.clone() } else { Vec::new() };
            let written = self.written;
            self.messages.push_back(Message {
                bytes,
                kind,
                written,
            });
            self.in_flight += 1;
            let invalidates = matches!(
                op,
                Operation::Send {
                    invalidate: Some(_),
                    ..
                }
            );
            self.invalidations += u32::from(invalidates);
        }
        match op {
            Operation::Write { .. } => {
                let end = self.written + bytes.len();
                self.write_image[self.written..end].copy_from_slice(&bytes);
                self.written = end;
            }
            Operation::Read { source_to, .. } => {
                let from = (source_to - 5) as usize;
                let expected = pattern(AREA, 9)[from..from + bytes.len()].to_vec();
                self.reads.insert(id, (self.sink, expected));
                self.sink += bytes.len();
            }
            Operation::Atomic { to, op, .. } => {
                let word = &mut self.words[((to - 64) / 8) as usize];
                self.originals.insert(id, *word);
                *word = op.apply(*word);
            }
            _ => {}
        }
    }
}

/// Judges what one end has reaped.
fn judge(core: &mut impl Core, shared: bool, own: &mut User, peer: &mut User) {
    assert_eq!(core.failure(), None);
    for done in core.reaped() {
        assert_eq!(done.status, Status::Success);
        own.done += 1;
        match done.kind {
            CompletionKind::Receive { .. }
            | CompletionKind::ReceiveSendImmediate { .. }
            | CompletionKind::ReceiveImmediate { .. } => {
                let message = peer.messages.pop_front().expect("it was sent");
                peer.in_flight -= 1;
                assert_eq!(done.kind, message.kind);
                let placed =
                    core.ram().regions[0][..message.written] == peer.write_image[..message.written];
                assert!(placed, "what was written before is there");
                let got = &core.ram().receives[&done.slot][..message.bytes.len()];
                assert!(got == message.bytes, "the message is as it was sent");
                if !matches!(done.kind, CompletionKind::ReceiveImmediate { .. }) {
                    assert_eq!(done.len as usize, message.bytes.len());
                }
                add_receive(core, shared, own);
            }
            kind => {
                assert_eq!(
                    own.posted.pop_front(),
                    Some(done.id),
                    "in the order of posting"
                );
                match kind {
                    CompletionKind::Read => {
                        let (at, expected) = own.reads.remove(&done.id).expect("a read");
                        let got = &core.ram().regions[2][at..at + expected.len()];
                        assert!(got == expected, "the read is as the source");
                    }
                    CompletionKind::Atomic { original } => {
                        assert_eq!(Some(original), own.originals.remove(&done.id));
                    }
                    _ => {}
                }
            }
        }
    }
}

/// All that was asked for is done, and memory holds what it must.
fn finish(core: &mut impl Core, own: &User, peer: &User) {
    assert!(own.posted.is_empty() && own.messages.is_empty());
    assert!(core.ram().regions[0] == peer.write_image);
    for (at, word) in peer.words.iter().enumerate() {
        let bytes = &core.ram().regions[3][8 * at..8 * at + 8];
        assert_eq!(bytes, word.to_le_bytes());
    }
    assert_eq!(core.ram().invalidated.len() as u32, peer.invalidations);
}

fn queues(random: &mut Random) -> QpConfig {
    common::with(config().qp, |config| {
        config.send_depth = 2 + random.below(40) as u32;
        config.recv_depth = 1 + random.below(20) as u32;
        config.shared_receive = random.chance(300);
        config.ird = 1 + random.below(6) as u16;
        config.ord = 1 + random.below(6) as u16;
    })
}

fn seeds() -> Vec<u64> {
    let number = |name: &str| {
        #[expect(
            clippy::disallowed_methods,
            reason = "the environment names the seed to repeat"
        )]
        let text = std::env::var(name).ok()?;
        text.parse::<u64>().ok()
    };
    number("HAUL_SEED").map_or_else(
        || (0..number("HAUL_SIM_SEEDS").unwrap_or(SEEDS)).collect(),
        |seed| vec![seed],
    )
}

fn for_all_seeds(run: impl Fn(u64) + std::panic::RefUnwindSafe) {
    let failed: Vec<u64> = seeds()
        .into_iter()
        .filter(|seed| std::panic::catch_unwind(|| run(*seed)).is_err())
        .collect();
    assert!(
        failed.is_empty(),
        "these seeds failed (repeat one with HAUL_SEED=…): {failed:?}"
    );
}

#[test]
fn both_ends_of_a_stream_do_what_the_oracle_says() {
    for_all_seeds(over_a_stream);
}

fn over_a_stream(seed: u64) {
    let mut random = Random::new(seed);
    let configs = [0, 1].map(|_| {
        common::with(config(), |config| {
            config.qp = queues(&mut random);
            config.markers = random.chance(300);
            config.strict = random.chance(300);
            config.crc = random.chance(700);
            config.fpdu_max = [512, 4_096, 65_536][random.below(3) as usize];
            config.peer_to_peer = random
                .chance(500)
                .then_some(haul_iwarp::wire::mpa::RtrKinds {
                    send: random.chance(500),
                    write: random.chance(500),
                    read: true,
                });
        })
    });
    let depths = configs.map(|config| config.qp.recv_depth);
    let shared = configs.map(|config| config.qp.shared_receive);
    let (mut a, mut b) = common::pair(configs[0], configs[1]);
    let mut users = [User::default(), User::default()];
    prepare(&mut a, depths[0], shared[0], &mut users[0]);
    prepare(&mut b, depths[1], shared[1], &mut users[1]);
    // The responder may send only after the initiator's first message: its requests wait.
    let mut steps = 0;
    while steps < STEPS || !(a.wire.is_empty() && b.wire.is_empty()) {
        steps += 1;
        assert!(steps < 500_000, "they never come to rest");
        if steps < STEPS {
            act(&mut random, &mut a, &mut users[0], depths[1] as usize);
            act(&mut random, &mut b, &mut users[1], depths[0] as usize);
        } else if steps == STEPS {
            // Regardless of the outcome, the initiator sends once more, so that the responder may
            // send.
            while a
                .try_post_send(u64::from(u32::MAX), nothing(), vec![], false)
                .is_err()
            {
                common::settle(&mut a, &mut b);
            }
            users[0].posted.push_back(u32::MAX.into());
        }
        a.drain();
        b.drain();
        let most = 1 + random.below(3_000) as usize;
        for (from, to) in [(&mut a, true), (&mut b, false)].map(|(end, to_b)| {
            let len = end.wire.len().min(most);
            (end.wire.drain(..len).collect::<Vec<u8>>(), to_b)
        }) {
            if to { b.feed(&from) } else { a.feed(&from) }
        }
        let [first, second] = &mut users;
        judge(&mut a, shared[0], first, second);
        judge(&mut b, shared[1], second, first);
    }
    finish(&mut a, &users[0], &users[1]);
    finish(&mut b, &users[1], &users[0]);
}

fn nothing() -> Operation {
    Operation::Write {
        stag: WRITE,
        to: 0,
        placed: false,
    }
}

#[test]
fn both_ends_over_messages_do_what_the_oracle_says() {
    for_all_seeds(|seed| {
        over_messages(seed);
    });
}

/// Bytes that were placed while an earlier message was missing.
fn over_messages(seed: u64) -> u64 {
    let mut random = Random::new(seed ^ 0xdead_beef);
    let configs = [0, 1].map(|_| {
        common::with(MessageConfig::default(), |config| {
            config.qp = queues(&mut random);
            config.segment_max = [256, 1_452, 8_000][random.below(3) as usize];
            config.sealed = random.chance(500);
        })
    });
    let path = Path {
        loss: random.below(2) * random.below(150),
        doubles: random.below(100),
        jitter: 1 + random.below(100),
    };
    let depths = configs.map(|config| config.qp.recv_depth);
    let shared = configs.map(|config| config.qp.shared_receive);
    let mut net = Net::new(configs, path, seed, b"");
    net.establish();
    let mut users = [User::default(), User::default()];
    for at in 0..2 {
        prepare(&mut net.ends[at], depths[at], shared[at], &mut users[at]);
    }
    let mut steps = 0;
    loop {
        if steps < STEPS {
            for at in 0..2 {
                let credit = depths[1 - at] as usize;
                act(&mut random, &mut net.ends[at], &mut users[at], credit);
            }
        }
        steps += 1;
        assert!(steps < 1_000_000, "they never come to rest");
        let happened = (0..random.below(8)).map(|_| net.step()).last();
        let [first, second] = &mut users;
        judge(&mut net.ends[0], shared[0], first, second);
        judge(&mut net.ends[1], shared[1], second, first);
        if steps >= STEPS && happened == Some(false) {
            break;
        }
    }
    for at in 0..2 {
        finish(&mut net.ends[at], &users[at], &users[1 - at]);
        assert_eq!(net.ends[at].connection.waiting(), 0);
    }
    let now = net.ends[0].now;
    net.ends[0].connection.close(now);
    net.settle();
    assert!(
        net.ends[1].events.contains(&Event::Disconnect),
        "the Finish has arrived"
    );
    net.ends.iter().map(|end| end.placed_early).sum()
}

#[test]
fn payload_is_placed_before_what_precedes_it_arrives() {
    let early: u64 = (0..10).map(over_messages).sum();
    assert!(early > 0, "a lost message holds up nothing but completions");
}
