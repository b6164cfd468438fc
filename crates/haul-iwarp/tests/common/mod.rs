//! Two ends on virtual time with memory of their own: what an engine does, in the plainest way.
#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    clippy::allow_attributes,
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "each test uses its part of it"
)]

pub mod datagrams;
pub mod packets;
#[path = "../../../../tests/random.rs"]
pub mod random;
pub mod rd;

use std::collections::HashMap;

use haul_iwarp::ReliableConnection as _;
use haul_iwarp::datagram::Source;
use haul_iwarp::{
    AtomicAccess, Completion, Crc32c, Event, Fpdu, HEADER_MAX, Memory, Next, Operation, Payload,
    Pd, Piece, Placement, QpNum, RecvWr, RegionId, Rights, SendWr, Stag, StagEntry, StreamConfig,
    StreamConnection, Target, Time,
};

/// Registered memory of one end.
#[derive(Debug, Default, Clone)]
pub struct Ram {
    pub regions: Vec<Vec<u8>>,
    pub stags: HashMap<Stag, StagEntry>,
    pub shared: std::collections::VecDeque<RecvWr>,
    pub receives: HashMap<u32, Vec<u8>>,
    pub sends: HashMap<u32, Vec<u8>>,
    /// Bytes placed, anywhere.
    pub placed: u64,
    pub invalidated: Vec<Stag>,
    /// Tags that any sender of datagrams may use; others are for those that are validated.
    pub open: std::collections::HashSet<Stag>,
}

impl Ram {
    pub fn register(&mut self, stag: u32, base: u64, bytes: Vec<u8>, rights: Rights) -> Stag {
        let region = RegionId(self.regions.len() as u64);
        let entry = StagEntry {
            pd: Pd(7),
            qp: None,
            base,
            len: bytes.len() as u64,
            rights,
            region,
        };
        self.regions.push(bytes);
        self.stags.insert(Stag(stag), entry);
        Stag(stag)
    }

    pub fn place(&mut self, placement: &Placement, bytes: &[u8]) {
        assert!(bytes.len() <= placement.len as usize);
        let (buffer, offset) = match placement.target {
            Target::Discard => return,
            Target::Region { region, offset } => {
                let region = usize::try_from(region.0).unwrap();
                (&mut self.regions[region], usize::try_from(offset).unwrap())
            }
            Target::Receive { slot, offset } => {
                (self.receives.get_mut(&slot).unwrap(), offset as usize)
            }
        };
        buffer[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.placed += bytes.len() as u64;
    }

    pub fn payload(&self, payload: Payload, len: u32) -> Vec<u8> {
        let (buffer, offset) = match payload {
            Payload::None => return Vec::new(),
            Payload::Request { slot, offset } => (&self.sends[&slot], offset as usize),
            Payload::Region { region, offset } => (
                &self.regions[usize::try_from(region.0).unwrap()],
                usize::try_from(offset).unwrap(),
            ),
        };
        buffer[offset..offset + len as usize].to_vec()
    }
}

impl Memory for Ram {
    fn lookup(&self, stag: Stag) -> Option<StagEntry> {
        self.stags.get(&stag).copied()
    }

    fn invalidate(&mut self, stag: Stag) {
        assert!(self.stags.remove(&stag).is_some());
        self.invalidated.push(stag);
    }

    fn atomic(&mut self, access: &AtomicAccess) -> u64 {
        let region = &mut self.regions[usize::try_from(access.region.0).unwrap()];
        let at = usize::try_from(access.offset).unwrap();
        let word: &mut [u8; 8] = region[at..].first_chunk_mut().unwrap();
        let original = u64::from_le_bytes(*word);
        *word = access.op.apply(original).to_le_bytes();
        original
    }

    fn take_receive(&mut self) -> Option<RecvWr> {
        self.shared.pop_front()
    }

    fn admits(&self, stag: Stag, _: &Source, is_validated: bool) -> bool {
        is_validated || self.open.contains(&stag)
    }
}

/// One end of a stream.
#[derive(Debug)]
pub struct End {
    pub connection: StreamConnection,
    pub ram: Ram,
    pub events: Vec<Event>,
    pub completions: Vec<Completion>,
    /// Bytes in flight to the peer.
    pub wire: Vec<u8>,
    /// FPDUs sent, as they stood on the wire.
    pub fpdus: Vec<Vec<u8>>,
    stage: Vec<u8>,
    pub shut_down: bool,
    pub now: Time,
}

impl End {
    pub fn new(connection: StreamConnection) -> Self {
        Self {
            connection,
            ram: Ram::default(),
            events: Vec::new(),
            completions: Vec::new(),
            wire: Vec::new(),
            fpdus: Vec::new(),
            stage: vec![0; 65_536],
            shut_down: false,
            now: Time::from_ns(1),
        }
    }

    pub fn post_send(&mut self, id: u64, op: Operation, bytes: Vec<u8>) {
        self.try_post_send(id, op, bytes, false)
            .expect("it is taken");
    }

    pub fn try_post_send(
        &mut self,
        id: u64,
        op: Operation,
        bytes: Vec<u8>,
        fence: bool,
    ) -> Result<(), haul_iwarp::PostError> {
        let slot = u32::try_from(id).unwrap();
        let mut wr = SendWr::new(id, slot, op, u32::try_from(bytes.len()).unwrap());
        wr.fence = fence;
        self.connection.post_send(wr)?;
        self.ram.sends.insert(slot, bytes);
        Ok(())
    }

    /// A read has a length and no bytes here.
    pub fn post_read(&mut self, id: u64, op: Operation, len: u32) {
        let wr = SendWr::new(id, 0, op, len);
        self.connection.post_send(wr).expect("it is taken");
    }

    pub fn post_receive(&mut self, id: u64, len: u32) {
        let slot = u32::try_from(id).unwrap();
        let wr = RecvWr::new(id, slot, len);
        self.connection.post_receive(wr).expect("it is taken");
        self.ram.receives.insert(slot, vec![0; len as usize]);
    }

    /// Takes bytes as they are, in one piece.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.feed_in(bytes, usize::MAX);
    }

    /// Takes bytes, at most `most` at a time.
    pub fn feed_in(&mut self, bytes: &[u8], most: usize) {
        let mut at = 0;
        while at < bytes.len() {
            let end = bytes.len().min(at.saturating_add(most));
            self.take(&bytes[at..end]);
            at = end;
        }
        self.drain();
    }

    fn take(&mut self, bytes: &[u8]) {
        let mut at = 0;
        loop {
            let received = self
                .connection
                .handle_bytes(self.now, &mut self.ram, &bytes[at..]);
            at += received.consumed;
            let left = &bytes[at..];
            match received.next {
                Next::More { .. } => {
                    assert!(left.is_empty(), "all is taken");
                    return;
                }
                Next::Unstage(placement) => {
                    let len = placement.len as usize;
                    self.ram.place(&placement, &self.stage[..len]);
                    self.connection.handle_unstaged(self.now, &mut self.ram);
                }
                Next::Place(_) | Next::Stage { .. } if left.is_empty() => return,
                Next::Place(placement) => {
                    let part = &left[..left.len().min(placement.len as usize)];
                    self.ram.place(&placement, part);
                    self.connection.digest().update(part);
                    self.connection
                        .handle_placed(u32::try_from(part.len()).unwrap());
                    at += part.len();
                }
                Next::Stage { offset, len } => {
                    let part = &left[..left.len().min(len as usize)];
                    let offset = offset as usize;
                    self.stage[offset..offset + part.len()].copy_from_slice(part);
                    self.connection.digest().update(part);
                    self.connection
                        .handle_placed(u32::try_from(part.len()).unwrap());
                    at += part.len();
                }
            }
        }
    }

    /// Sends and reaps all there is.
    pub fn drain(&mut self) {
        loop {
            self.reap();
            let frame = self.connection.poll_startup(&mut self.wire);
            let mut header = [0; HEADER_MAX];
            let fpdu = self
                .connection
                .poll_transmit(self.now, &mut self.ram, &mut header);
            let Some(fpdu) = fpdu else {
                self.reap();
                if frame {
                    continue;
                }
                return;
            };
            let octets = assemble(&self.ram, &fpdu, &header);
            assert_eq!(octets.len() as u64, fpdu.wire_len());
            self.wire.extend_from_slice(&octets);
            self.fpdus.push(octets);
            self.connection
                .handle_released(self.now, fpdu.segment.index + 1);
        }
    }

    fn reap(&mut self) {
        while let Some(event) = self.connection.poll_event() {
            match event {
                Event::Completion(completion) => self.completions.push(completion),
                Event::ShutdownSend => self.shut_down = true,
                _ => {}
            }
            self.events.push(event);
        }
    }

    pub fn has(&self, event: Event) -> bool {
        self.events.contains(&event)
    }
}

/// An FPDU as it stands on the wire.
pub fn assemble(ram: &Ram, fpdu: &Fpdu, header: &[u8; HEADER_MAX]) -> Vec<u8> {
    let segment = &fpdu.segment;
    let payload = ram.payload(segment.payload, segment.payload_len);
    let mut out = Vec::new();
    for piece in fpdu.pieces() {
        match piece {
            Piece::Header(range) => out.extend_from_slice(&header[range]),
            Piece::Marker(marker) => out.extend_from_slice(&marker),
            Piece::Payload(range) => {
                out.extend_from_slice(&payload[range.start as usize..range.end as usize]);
            }
            Piece::Pad(len) => out.resize(out.len() + len, 0),
        }
    }
    let mut digest = Crc32c::new();
    digest.update(&out);
    let trailer = fpdu.trailer_of(digest);
    out.extend_from_slice(&trailer.as_bytes()[fpdu.pad..]);
    out
}

/// Carries bytes between two ends until both are silent.
pub fn settle(a: &mut End, b: &mut End) {
    settle_in(a, b, usize::MAX);
}

pub fn settle_in(a: &mut End, b: &mut End, most: usize) {
    for _ in 0..10_000 {
        a.drain();
        b.drain();
        if a.wire.is_empty() && b.wire.is_empty() {
            return;
        }
        let (to_b, to_a) = (std::mem::take(&mut a.wire), std::mem::take(&mut b.wire));
        b.feed_in(&to_b, most);
        a.feed_in(&to_a, most);
    }
    panic!("they never come to rest");
}

/// A value with some of its fields set anew.
pub fn with<T>(mut value: T, set: impl FnOnce(&mut T)) -> T {
    set(&mut value);
    value
}

pub fn config() -> StreamConfig {
    let mut config = StreamConfig::default();
    (config.qp.pd, config.qp.qp) = (Pd(7), QpNum(1));
    config
}

/// Initiator and responder, before any byte is sent.
pub fn ends(initiator: StreamConfig, responder: StreamConfig, private: &[u8]) -> (End, End) {
    let now = Time::from_ns(1);
    let a = StreamConnection::connect(now, initiator, private).expect("it fits");
    let b = StreamConnection::listen(now, responder);
    (End::new(a), End::new(b))
}

/// Initiator and responder, established.
pub fn pair(initiator: StreamConfig, responder: StreamConfig) -> (End, End) {
    let (mut a, mut b) = ends(initiator, responder, b"");
    settle(&mut a, &mut b);
    assert!(b.has(Event::Request), "{:?}", b.events);
    b.connection.accept(b.now, b"").expect("a request");
    settle(&mut a, &mut b);
    assert!(a.has(Event::Established) && b.has(Event::Established));
    (a, b)
}

pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed))
        .collect()
}

pub fn everything() -> Rights {
    Rights::LOCAL_WRITE
        .with(Rights::REMOTE_WRITE)
        .with(Rights::REMOTE_READ)
        .with(Rights::REMOTE_ATOMIC)
        .with(Rights::REMOTE_INVALIDATE)
}
