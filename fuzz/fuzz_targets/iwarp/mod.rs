//! An end of a connection, its user and a hostile peer: over a stream and over messages.
//!
//! Whatever the peer sends, nothing panics or spins, payload goes nowhere but into memory that was
//! offered, and every request and receive completes at most once.

use std::collections::{BTreeSet, VecDeque};

use arbitrary::Arbitrary;
use haul_iwarp::wire::Features;
use haul_iwarp::wire::ddp::{Header, Model};
use haul_iwarp::wire::hello::{Hello, Terms};
use haul_iwarp::wire::mpa::{FrameHead, FrameKind};
use haul_iwarp::wire::rdmap::{AtomicOp, AtomicRequest, ReadRequest};
use haul_iwarp::{
    AtomicAccess, Crc32c, Event, HEADER_MAX, Memory, MessageConfig, MessageConnection, Next,
    Operation, Payload, Pd, Placement, QpConfig, QpNum, RecvWr, RegionId, ReliableConnection,
    Rights, SendWr, Stag, StagEntry, StreamConfig, StreamConnection, Target, Time,
};

const REGION_LEN: u64 = 4_096;
const RECEIVE_LEN: u32 = 300;

#[derive(Debug, Arbitrary)]
pub struct Input {
    messages: bool,
    markers: bool,
    strict: bool,
    crc: bool,
    shared: bool,
    opening: Opening,
    steps: Vec<Step>,
}

#[derive(Debug, Arbitrary)]
enum Opening {
    /// As it should be.
    Good {
        flags: u8,
        first: u16,
        second: u16,
    },
    Octets(Vec<u8>),
}

#[derive(Debug, Arbitrary)]
enum Step {
    Octets(Vec<u8>),
    Segment(Segment),
    Request {
        kind: u8,
        len: u16,
        at: u8,
        flags: u8,
    },
    Receive,
    Withdraw(u8),
    Pass {
        ms: u16,
    },
    Released(u8),
    Close,
    Eof,
}

/// A segment that is mostly right.
#[derive(Debug, Arbitrary)]
struct Segment {
    /// Over messages: its number, relative to the next.
    ahead: i8,
    tagged: bool,
    last: bool,
    control: u8,
    stag: u8,
    to: i16,
    queue: u8,
    msn: i8,
    mo: u8,
    own: [u8; 8],
    len: u16,
    bad_crc: bool,
    /// Bytes at a time; none is all at once.
    cut: u8,
}

struct Ram {
    valid: [bool; 8],
    receives: u32,
    shared: VecDeque<RecvWr>,
    /// Posted, or taken from the shared queue.
    open_receives: BTreeSet<u64>,
}

impl Memory for Ram {
    fn lookup(&self, stag: Stag) -> Option<StagEntry> {
        let at = stag.0.checked_sub(0x100)? as usize;
        let valid = *self.valid.get(at)?;
        let rights = [
            Rights::REMOTE_WRITE,
            Rights::REMOTE_READ,
            Rights::LOCAL_WRITE,
            Rights::REMOTE_ATOMIC,
            Rights::REMOTE_INVALIDATE,
        ];
        let all = rights.into_iter().fold(Rights::NONE, Rights::with);
        valid.then_some(StagEntry {
            pd: Pd(u32::from(at == 6)),
            qp: (at == 7).then_some(QpNum(9)),
            base: if at == 5 { u64::MAX - REGION_LEN } else { 0 },
            len: REGION_LEN,
            rights: if at < 5 && at > 0 {
                rights[at - 1]
            } else {
                all
            },
            region: RegionId(at as u64),
        })
    }

    fn invalidate(&mut self, stag: Stag) {
        let valid = &mut self.valid[stag.0 as usize - 0x100];
        assert!(*valid, "it was checked");
        *valid = false;
    }

    fn atomic(&mut self, access: &AtomicAccess) -> u64 {
        assert!(self.valid[access.region.0 as usize]);
        assert!(access.offset + 8 <= REGION_LEN);
        access.op.apply(7)
    }

    fn take_receive(&mut self) -> Option<RecvWr> {
        let wr = self.shared.pop_front()?;
        self.open_receives.insert(wr.id);
        Some(wr)
    }
}

impl Ram {
    /// Whether the memory is still there; everything else must be right.
    fn check(&self, placement: &Placement) -> bool {
        assert!(placement.len > 0);
        match placement.target {
            Target::Discard => {}
            Target::Region { region, offset } => {
                assert!(
                    region.0 < 6,
                    "other domains and queue pairs are out of reach"
                );
                assert!(offset + u64::from(placement.len) <= REGION_LEN);
                return self.valid[region.0 as usize];
            }
            Target::Receive { slot, offset } => {
                assert!(slot < self.receives);
                assert!(offset + placement.len <= RECEIVE_LEN);
            }
        }
        true
    }
}

enum Core {
    Stream(Box<StreamConnection>),
    Messages(Box<MessageConnection>),
}

pub struct Host {
    core: Core,
    ram: Ram,
    now: Time,
    strict: bool,
    /// Over messages: the number of the peer's next.
    index: u64,
    msns: [u32; 4],
    sent: u64,
    open_sends: BTreeSet<u64>,
    shared: bool,
    next_id: u64,
    staged: u32,
    disconnected: bool,
}

impl Host {
    fn new(input: &Input, initiator: bool) -> Self {
        let mut qp = QpConfig::default();
        (qp.pd, qp.qp) = (Pd(0), QpNum(1));
        (qp.send_depth, qp.recv_depth) = (8, 8);
        qp.shared_receive = input.shared;
        (qp.ird, qp.ord) = (3, 3);
        let now = Time::from_ns(1);
        let mut stream = StreamConfig::default();
        stream.qp = qp;
        stream.markers = input.markers;
        stream.strict = input.strict;
        stream.crc = input.crc;
        let mut messages = MessageConfig::default();
        messages.qp = qp;
        messages.window = 4_096;
        messages.sealed = !input.crc;
        let core = match (input.messages, initiator) {
            (false, true) => {
                let connection = StreamConnection::connect(now, stream, b"hello");
                Core::Stream(Box::new(connection.expect("it fits")))
            }
            (false, false) => Core::Stream(Box::new(StreamConnection::listen(now, stream))),
            (true, true) => {
                let connection = MessageConnection::connect(now, messages, b"hello");
                Core::Messages(Box::new(connection.expect("it fits")))
            }
            (true, false) => Core::Messages(Box::new(MessageConnection::listen(now, messages))),
        };
        let ram = Ram {
            valid: [true; 8],
            receives: 0,
            shared: VecDeque::new(),
            open_receives: BTreeSet::new(),
        };
        Self {
            core,
            ram,
            now,
            strict: input.strict,
            index: 0,
            msns: [1; 4],
            sent: 0,
            open_sends: BTreeSet::new(),
            shared: input.shared,
            next_id: 0,
            staged: 0,
            disconnected: false,
        }
    }

    fn open(&mut self, opening: &Opening, initiator: bool) {
        let octets = match *opening {
            Opening::Octets(ref octets) => octets.clone(),
            Opening::Good {
                flags,
                first,
                second,
            } => match self.core {
                Core::Stream(_) => frame(initiator, flags, first, second),
                Core::Messages(_) => hello(initiator, first, second),
            },
        };
        self.feed(0, &octets, usize::MAX);
        self.index = 1;
        self.settle();
        let accepted = match &mut self.core {
            Core::Stream(connection) => connection.accept(self.now, b"ok"),
            Core::Messages(connection) => connection.accept(self.now, b"ok"),
        };
        assert!(!initiator || accepted.is_err());
        self.settle();
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Octets(ref octets) => {
                let index = self.index;
                self.feed(index, octets, 7);
            }
            Step::Segment(ref segment) => self.segment(segment),
            Step::Request {
                kind,
                len,
                at,
                flags,
            } => self.request(kind, len, at, flags),
            Step::Receive => self.receive(),
            Step::Withdraw(at) => self.ram.valid[usize::from(at) % 8] = false,
            Step::Pass { ms } => {
                self.now = self.now.after(u64::from(ms) * 1_000_000);
                match &mut self.core {
                    Core::Stream(connection) => connection.handle_timeout(self.now),
                    Core::Messages(connection) => connection.handle_timeout(self.now),
                }
            }
            Step::Released(index) => match &mut self.core {
                Core::Stream(connection) => connection.handle_released(self.now, index.into()),
                Core::Messages(connection) => connection.handle_released(self.now, index.into()),
            },
            Step::Close => match &mut self.core {
                Core::Stream(connection) => connection.close(self.now),
                Core::Messages(connection) => connection.close(self.now),
            },
            Step::Eof => match &mut self.core {
                Core::Stream(connection) => connection.handle_eof(self.now),
                Core::Messages(connection) => connection.handle_eof(self.now),
            },
        }
    }

    fn segment(&mut self, segment: &Segment) {
        let queue = usize::from(segment.queue % 5);
        let (stag, to) = (
            0x100 + u32::from(segment.stag % 10),
            i64::from(segment.to) as u64,
        );
        let msn = self
            .msns
            .get(queue)
            .map_or(1, |next| next.wrapping_add(i32::from(segment.msn) as u32));
        if segment.last && segment.msn == 0 && !segment.tagged && queue < 4 {
            self.msns[queue] = self.msns[queue].wrapping_add(1);
        }
        let model = if segment.tagged {
            Model::Tagged {
                stag: Stag(stag),
                to,
            }
        } else {
            let (qn, mo) = (queue as u32, u32::from(segment.mo));
            Model::Untagged {
                ulp: stag,
                qn,
                msn,
                mo,
            }
        };
        let header = Header {
            last: segment.last,
            control: segment.control,
            model,
        };
        let mut ulpdu = vec![0; 18];
        let header_len = header.emit(&mut ulpdu);
        ulpdu.truncate(header_len);
        ulpdu.extend(self.own(segment, Stag(stag), to));
        if let Core::Messages(connection) = &self.core {
            if connection.params().is_none_or(|params| params.crc) {
                let crc = crc(&ulpdu, segment.bad_crc);
                ulpdu.extend(crc);
            }
            let index = self.index.wrapping_add_signed(segment.ahead.into());
            self.index += u64::from(segment.ahead == 0);
            self.feed(index, &ulpdu, usize::MAX);
            return;
        }
        let len = u16::try_from(ulpdu.len()).expect("a short segment");
        let mut fpdu = len.to_be_bytes().to_vec();
        fpdu.extend(ulpdu);
        fpdu.resize(fpdu.len().next_multiple_of(4), 0);
        let crc = crc(&fpdu, segment.bad_crc);
        fpdu.extend(crc);
        let cut = if segment.cut == 0 {
            usize::MAX
        } else {
            segment.cut.into()
        };
        self.feed(0, &fpdu, cut);
    }

    /// What follows the DDP header.
    fn own(&self, segment: &Segment, stag: Stag, to: u64) -> Vec<u8> {
        let number = u64::from_be_bytes(segment.own);
        match segment.control & 0xf {
            1 => ReadRequest {
                sink: Stag(0x100),
                sink_to: number,
                len: segment.len.into(),
                source: stag,
                source_to: to,
            }
            .emit()
            .to_vec(),
            8 | 9 => segment.own.to_vec(),
            0xa => AtomicRequest {
                id: 1,
                stag,
                to,
                op: AtomicOp::FetchAdd {
                    add: number,
                    mask: 0,
                },
            }
            .emit()
            .to_vec(),
            0xb => [&[0; 4][..], &segment.own].concat(),
            _ => vec![segment.own[0]; usize::from(segment.len % 700)],
        }
    }

    fn feed(&mut self, index: u64, octets: &[u8], most: usize) {
        match &mut self.core {
            Core::Messages(connection) => {
                if !connection.verify(octets) {
                    return;
                }
                let arrived = connection.handle_message(self.now, &mut self.ram, index, octets);
                if let Some(arrived) = arrived {
                    assert!(
                        self.ram.check(&arrived.placement),
                        "it was looked up just now"
                    );
                    assert_eq!(
                        octets[arrived.payload].len(),
                        arrived.placement.len as usize
                    );
                    connection.handle_placed(self.now, &mut self.ram);
                }
            }
            Core::Stream(_) => {
                for part in octets.chunks(most.min(octets.len().max(1))) {
                    self.take(part);
                }
            }
        }
    }

    fn take(&mut self, octets: &[u8]) {
        let Core::Stream(connection) = &mut self.core else {
            return;
        };
        let mut at = 0;
        for _ in 0..10_000 {
            let received = connection.handle_bytes(self.now, &mut self.ram, &octets[at..]);
            at += received.consumed;
            let left = &octets[at..];
            match received.next {
                Next::More { at_least } => {
                    assert!(left.is_empty() && at_least > 0);
                    return;
                }
                Next::Unstage(placement) => {
                    assert!(self.ram.check(&placement), "it was looked up just now");
                    assert_eq!(placement.len, self.staged);
                    connection.handle_unstaged(self.now, &mut self.ram);
                    self.staged = 0;
                    continue;
                }
                Next::Place(_) | Next::Stage { .. } if left.is_empty() => return,
                Next::Place(placement) => {
                    assert!(!self.strict);
                    if !self.ram.check(&placement) {
                        connection.handle_memory_gone(self.now);
                        continue;
                    }
                }
                Next::Stage { offset, len } => {
                    assert!(offset + len <= 65_536);
                    self.staged = offset;
                }
            }
            let len = match received.next {
                Next::Place(placement) => placement.len,
                Next::Stage { len, .. } => len,
                _ => 0,
            };
            let part = &left[..left.len().min(len as usize)];
            connection.digest().update(part);
            connection.handle_placed(part.len() as u32);
            self.staged += part.len() as u32;
            at += part.len();
        }
        panic!("it never comes to rest");
    }

    fn request(&mut self, kind: u8, len: u16, at: u8, flags: u8) {
        let (stag, to) = (Stag(0x100 + u32::from(at % 8)), u64::from(flags) * 8);
        let op = match kind % 6 {
            0 => Operation::Send {
                solicited: flags & 1 != 0,
                invalidate: (flags & 2 != 0).then_some(stag),
            },
            1 => Operation::Write {
                stag,
                to,
                placed: flags & 4 != 0,
            },
            2 => Operation::Read {
                sink: Stag(0x100),
                sink_to: to,
                source: stag,
                source_to: to,
            },
            3 => Operation::Atomic {
                stag,
                to,
                op: AtomicOp::FetchAdd { add: 1, mask: 0 },
            },
            4 => Operation::SendImmediate {
                data: flags.into(),
                solicited: flags & 1 != 0,
            },
            _ => Operation::Immediate {
                data: to,
                solicited: false,
            },
        };
        let mut wr = SendWr::new(self.next_id, 0, op, len.into());
        wr.fence = flags & 8 != 0;
        let taken = match &mut self.core {
            Core::Stream(connection) => connection.post_send(wr),
            Core::Messages(connection) => connection.post_send(wr),
        };
        if taken.is_ok() {
            self.open_sends.insert(wr.id);
            self.next_id += 1;
            assert!(self.open_sends.len() <= 8, "the depth is kept");
        }
    }

    fn receive(&mut self) {
        let id = u64::from(self.ram.receives);
        let wr = RecvWr::new(id, self.ram.receives, RECEIVE_LEN);
        let posted = match &mut self.core {
            _ if self.shared => {
                self.ram.shared.push_back(wr);
                self.ram.receives += 1;
                return;
            }
            Core::Stream(connection) => connection.post_receive(wr),
            Core::Messages(connection) => connection.post_receive(wr),
        };
        if posted.is_ok() {
            self.ram.receives += 1;
            self.ram.open_receives.insert(id);
        }
    }

    /// What an engine does after every input.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            self.reap();
            let (mut header, mut control) = ([0; HEADER_MAX], Vec::new());
            let index = match &mut self.core {
                Core::Stream(connection) => {
                    connection.poll_startup(&mut control);
                    let fpdu = connection.poll_transmit(self.now, &mut self.ram, &mut header);
                    fpdu.map(|fpdu| {
                        assert_eq!(fpdu.wire_len() % 4, 0);
                        fpdu.segment
                    })
                }
                Core::Messages(connection) => {
                    while connection.poll_control(&mut control).is_some() {}
                    let datagram = connection.poll_transmit(self.now, &mut self.ram, &mut header);
                    datagram.map(|datagram| datagram.segment)
                }
            };
            let Some(segment) = index else {
                self.reap();
                return;
            };
            if let Payload::Region { region, offset } = segment.payload {
                assert!(self.ram.valid[region.0 as usize]);
                assert!(offset + u64::from(segment.payload_len) <= REGION_LEN);
            }
            self.sent = segment.index + 1;
            if let Core::Stream(connection) = &mut self.core {
                connection.handle_released(self.now, self.sent);
            }
        }
        panic!("it never comes to rest");
    }

    fn reap(&mut self) {
        loop {
            let event = match &mut self.core {
                Core::Stream(connection) => connection.poll_event(),
                Core::Messages(connection) => connection.poll_event(),
            };
            let Some(event) = event else {
                return;
            };
            assert!(!self.disconnected, "nothing follows the end");
            match event {
                Event::Completion(done) => {
                    use haul_iwarp::CompletionKind::{
                        Receive, ReceiveImmediate, ReceiveSendImmediate,
                    };
                    let open = match done.kind {
                        Receive { .. } | ReceiveImmediate { .. } | ReceiveSendImmediate { .. } => {
                            &mut self.ram.open_receives
                        }
                        _ => &mut self.open_sends,
                    };
                    assert!(open.remove(&done.id), "it completes once");
                }
                Event::Disconnect => {
                    self.disconnected = true;
                    assert!(self.open_sends.is_empty() && self.ram.open_receives.is_empty());
                }
                _ => {}
            }
        }
    }
}

fn crc(octets: &[u8], bad: bool) -> [u8; 4] {
    let mut digest = Crc32c::new();
    digest.update(octets);
    let mut crc = digest.to_wire();
    crc[0] ^= u8::from(bad);
    crc
}

/// The peer's start-up frame.
fn frame(initiator: bool, flags: u8, first: u16, second: u16) -> Vec<u8> {
    let head = FrameHead {
        kind: if initiator {
            FrameKind::Reply
        } else {
            FrameKind::Request
        },
        markers: flags & 1 != 0,
        crc: flags & 2 != 0,
        reject: flags & 0x30 == 0x30,
        enhanced: flags & 4 == 0,
        revision: if flags & 4 == 0 { 2 } else { 1 },
        private_len: 12,
    };
    let mut frame = head.emit().to_vec();
    frame.extend(first.to_be_bytes());
    frame.extend(second.to_be_bytes());
    frame.extend(b"RXX1\0\x07\0\x10");
    frame
}

fn hello(initiator: bool, first: u16, second: u16) -> Vec<u8> {
    let terms = Terms {
        features: Features {
            no_crc: first & 8 != 0,
            ..Features::ALL
        },
        ird: first & 7,
        ord: second & 3,
        segment_max: 300 + u32::from(second),
        private: b"hello",
    };
    let hello = if initiator {
        Hello::Reply(terms)
    } else {
        Hello::Request(terms)
    };
    let mut octets = Vec::new();
    hello.emit(&mut octets);
    octets
}

pub fn run(input: &Input, initiator: bool) {
    let mut host = Host::new(input, initiator);
    host.settle();
    host.open(&input.opening, initiator);
    for step in &input.steps {
        host.step(step);
        host.settle();
    }
}
