//! A queue pair's TCP connection: FPDUs gathered into few system calls, and received into their
//! places.
//!
//! Inward: octets come into a buffer that all connections of the shard share. The core reads
//! headers there and says where payload belongs. What of it is in the buffer is copied; what has
//! yet to arrive, if it is much, is received straight into its place, and with it, in the same
//! call, the trailer and the next header into the buffer.
//!
//! Outward: headers, trailers and small payloads are copied behind each other, large payloads are
//! gathered from where they lie. What the socket does not take stays with the connection.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use arrayvec::ArrayVec;
use haul_io::poller::{Interest, Poller};
use haul_io::stream::{self, Stream};
use haul_io::udp::RecvBatch;
use haul_iwarp::{
    Fpdu, HEADER_MAX, Next, Payload, Piece, Placement, StreamConnection, Target, Time,
};
use haul_slab::{Gather, Registry, Scatter};
use haul_verbs::{QpStatistics, RateLimit, SGE_MAX};

use super::buffers::{Buffers, Source, place};
use super::datagram::Outbox;
use super::tap::{Flow, Tap};

/// A connection's socket, and who sleeps until something arrives there.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) stream: Stream,
    /// Threads that sleep on this socket instead of on the poller.
    pub(super) sleepers: AtomicU32,
}

/// A TCP connection and its protocol.
#[derive(Debug)]
pub(super) struct TcpLink {
    socket: Arc<Watched>,
    pub(super) core: StreamConnection,
    token: u64,
    /// What the core wants to be done with the next octets.
    next: Next,
    /// The latest FPDU was large, so the next one probably is.
    bulk: bool,
    /// Nothing more has arrived, while FPDUs were large: the next look is not before then.
    look_at: Time,
    /// A start-up frame on its way, and how much of it is sent.
    frame: Vec<u8>,
    frame_sent: usize,
    /// What the socket has not taken yet.
    left: Option<Box<Batch>>,
    /// The socket is full: the poller says when it is not.
    blocked: bool,
    /// Nothing follows once all is sent.
    ending: bool,
    ended: bool,
    /// The latest batches were not the last.
    more: bool,
    /// The peer sends no more.
    eof: bool,
    flow: Option<Flow>,
}

/// What the links of a shard share.
#[derive(Debug)]
pub(super) struct Scratch {
    bytes: Box<[u8]>,
    /// None while it is filled and sent.
    batch: Option<Box<Batch>>,
    /// For payload that is verified before it is placed; only where that was asked for.
    stage: Option<Box<[u8]>>,
    /// For arrivals over UDP, once there are any.
    datagrams: Option<RecvBatch>,
    /// For datagrams of services on their way out, once there are any.
    outbox: Option<Box<Outbox>>,
}

/// FPDUs for one system call.
#[derive(Debug, Default)]
struct Batch {
    /// Headers, trailers and small payloads.
    flat: Vec<u8>,
    parts: Vec<Part>,
    /// Where FPDUs end in the batch, and their indices.
    ends: Vec<(usize, u64)>,
    len: usize,
    /// sent <= len
    sent: usize,
    /// The first part that is not sent whole, where it starts in `flat`, and how much of it is
    /// sent. Parts before it are not looked at again: their requests may be complete.
    first: usize,
    first_flat: usize,
    skip: usize,
}

#[derive(Debug, Clone, Copy)]
enum Part {
    /// The next so many octets of `flat`.
    Flat(usize),
    Payload(Payload, u32),
}

/// What a link works with.
pub(super) struct Env<'a> {
    pub(super) now: Time,
    pub(super) registry: &'a Registry,
    pub(super) buffers: &'a mut Buffers,
    pub(super) scratch: &'a mut Scratch,
    pub(super) poller: &'a Poller,
}

/// Octets of the shared buffer.
const BUFFER: usize = 64 << 10;
/// Payload that has yet to arrive and is at least this long is received straight into its place.
const DIRECT_MIN: u32 = 4 << 10;
/// FPDUs with at least this much payload come in series.
const BULK_MIN: u32 = 16 << 10;
/// Octets received behind direct payload: the longest trailer, and a header without the longest
/// ones, which a tagged segment does not have.
const TAIL: usize = 32;
/// Between two looks for the rest of a series of large FPDUs, ns: each takes the socket from the
/// one who brings it, and what comes meanwhile is taken with one call.
const LOOK_EVERY_NS: u64 = 5_000;
/// Octets received of one connection before others have their turn.
const RECEIVE_BYTES: usize = 512 << 10;
/// FPDUs, and octets, of one batch; and batches before other connections have their turn.
const BATCH_FPDUS: usize = 64;
const BATCH_BYTES: usize = 512 << 10;
const BATCHES: usize = 2;
/// A payload no longer than this is copied behind its header: one range for the kernel instead of
/// three.
const FLAT_MAX: u32 = 512;
/// Octets of the longest payload of an FPDU.
const STAGE: usize = 64 << 10;

impl Scratch {
    pub(super) fn new(strict: bool) -> Self {
        Self {
            bytes: vec![0; BUFFER].into(),
            batch: None,
            stage: strict.then(|| vec![0; STAGE].into()),
            datagrams: None,
            outbox: None,
        }
    }

    /// Buffers for datagrams; none where there is no memory for them.
    pub(super) fn take_batch(&mut self) -> Option<RecvBatch> {
        let kept = self.datagrams.take();
        kept.or_else(|| super::udt::batch().ok())
    }

    pub(super) fn give_batch(&mut self, batch: RecvBatch) {
        self.datagrams = Some(batch);
    }

    /// An empty outbox.
    pub(super) fn take_outbox(&mut self) -> Box<Outbox> {
        self.outbox.take().unwrap_or_default()
    }

    pub(super) fn give_outbox(&mut self, outbox: Box<Outbox>) {
        self.outbox = Some(outbox);
    }
}

impl TcpLink {
    pub(super) fn new(
        socket: Stream,
        core: StreamConnection,
        token: u64,
        tap: Option<&Arc<Tap>>,
    ) -> Self {
        let flow = tap.and_then(|tap| Flow::new(tap, socket.local_addr()?, socket.peer_addr()?));
        Self {
            socket: Arc::new(Watched {
                stream: socket,
                sleepers: AtomicU32::new(0),
            }),
            core,
            token,
            next: Next::More { at_least: 1 },
            bulk: false,
            look_at: Time::default(),
            frame: Vec::new(),
            frame_sent: 0,
            left: None,
            blocked: false,
            ending: false,
            ended: false,
            more: false,
            eof: false,
            flow,
        }
    }

    /// Watches the socket.
    pub(super) fn register(&mut self, poller: &Poller, token: u64) -> io::Result<()> {
        self.token = token;
        self.blocked = false;
        poller.add(&self.socket.stream, token, Interest::READ)
    }

    /// Watches the socket no longer.
    pub(super) fn unregister(&self, poller: &Poller) {
        if !self.eof {
            // It fails only for a socket that is not watched.
            let _ = poller.remove(&self.socket.stream);
        }
    }

    /// The kernel paces; without that the rate is the peer's affair and the path's.
    pub(super) fn limit_rate(&self, limit: RateLimit) {
        let _ = self.socket.stream.limit_rate(limit.bits_per_second / 8);
    }

    /// No more is sent once all is.
    pub(super) fn end(&mut self) {
        self.ending = true;
    }

    /// What the kernel tells: its segments are not those of this layer.
    pub(super) fn statistics(&self) -> QpStatistics {
        let stream = &self.socket.stream;
        QpStatistics {
            resent_bytes: stream.resent_octets().unwrap_or(0),
            round_trip_ns: stream.round_trip_ns().unwrap_or(0),
            ..QpStatistics::default()
        }
    }

    /// There is more to send than there was time for.
    pub(super) fn has_more(&self) -> bool {
        !self.blocked && !self.ended && (self.ending || self.more)
    }

    /// Closes the socket: in order if the connection ended so.
    pub(super) fn close(self: Box<Self>) {
        if self.core.error().is_some() && !self.ended {
            self.socket.stream.reset_on_drop();
        }
    }

    /// The socket, while arrivals are all there is to wait for.
    pub(super) fn watched(&self) -> Option<&Arc<Watched>> {
        (!self.eof && !self.blocked).then_some(&self.socket)
    }

    /// Receives and sends what there is; whether that was anything.
    pub(super) fn turn(&mut self, env: &mut Env<'_>) -> bool {
        let looks = !self.bulk || env.now >= self.look_at;
        let received = looks && self.receive(env);
        self.transmit(env) | received
    }

    // ---- inward

    pub(super) fn receive(&mut self, env: &mut Env<'_>) -> bool {
        let mut total = 0;
        while !self.eof && total < RECEIVE_BYTES {
            match self.receive_once(env) {
                Ok((0, _)) => {
                    self.eof = true;
                    let _ = env.poller.remove(&self.socket.stream);
                    self.core.handle_eof(env.now);
                    return true;
                }
                Ok((count, room)) => {
                    total += count;
                    // There was no more.
                    if count < room {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.look_at = env.now.after(LOOK_EVERY_NS);
                    break;
                }
                Err(_) => {
                    self.lose(env);
                    return true;
                }
            }
        }
        total > 0
    }

    fn lose(&mut self, env: &mut Env<'_>) {
        self.eof = true;
        self.ended = true;
        self.left = None;
        let _ = env.poller.remove(&self.socket.stream);
        self.core.handle_lost(env.now);
    }

    /// One call: octets received, and octets there was room for.
    fn receive_once(&mut self, env: &mut Env<'_>) -> io::Result<(usize, usize)> {
        if let Next::Place(placement) = self.next
            && placement.len >= DIRECT_MIN
            && placement.target != Target::Discard
        {
            return self.receive_direct(env, placement);
        }
        let room = if self.bulk && matches!(self.next, Next::More { .. }) {
            TAIL
        } else {
            BUFFER
        };
        let mut bytes = std::mem::take(&mut env.scratch.bytes);
        let received = stream::receive(
            &self.socket.stream,
            &mut [Scatter::from(&mut bytes[..room])],
        );
        if let Ok(count) = received {
            if let Some(flow) = &mut self.flow {
                flow.show(&bytes[..count]);
                flow.received();
            }
            self.take(env, &bytes[..count]);
            // It was no header of a large FPDU.
            self.bulk &= room == BUFFER || count < TAIL || matches!(self.next, Next::Place(_));
        }
        env.scratch.bytes = bytes;
        received.map(|count| (count, room))
    }

    /// Receives payload into its place, and what comes behind it into the buffer.
    fn receive_direct(
        &mut self,
        env: &mut Env<'_>,
        placement: Placement,
    ) -> io::Result<(usize, usize)> {
        let Placement { target, len } = placement;
        let mut bytes = std::mem::take(&mut env.scratch.bytes);
        let Some(ranges) = env.buffers.target(env.registry, target, len) else {
            env.scratch.bytes = bytes;
            self.memory_gone(env);
            return Err(io::ErrorKind::WouldBlock.into());
        };
        let mut scatter = ArrayVec::<Scatter<'_>, { SGE_MAX + 1 }>::new();
        scatter.extend(ranges.iter().filter_map(super::buffers::Range::scatter));
        let room = if len >= BULK_MIN || self.bulk {
            TAIL
        } else {
            BUFFER
        };
        scatter.push(Scatter::from(&mut bytes[..room]));
        let received = stream::receive(&self.socket.stream, &mut scatter);
        drop(scatter);
        if let Ok(count) = received {
            let direct = count.min(len as usize);
            let mut flow = self.flow.as_mut();
            let checked = self.core.params().is_some_and(|params| params.crc);
            let digest = self.core.digest();
            let mut left = direct;
            for range in &ranges {
                let part = left.min(range.len());
                if checked || flow.is_some() {
                    range.visit(part, |bytes| {
                        if checked {
                            digest.update(bytes);
                        }
                        if let Some(flow) = flow.as_deref_mut() {
                            flow.show(bytes);
                        }
                    });
                }
                left -= part;
            }
            drop(ranges);
            let tail = &bytes[..count - direct];
            if let Some(flow) = self.flow.as_mut() {
                flow.show(tail);
                flow.received();
            }
            let placed = u32::try_from(direct).unwrap_or(len);
            self.core.handle_placed(placed);
            self.next = if placed < len {
                Next::Place(advance(placement, placed))
            } else {
                Next::More { at_least: 1 }
            };
            self.bulk |= len >= BULK_MIN;
            self.take(env, tail);
        }
        env.scratch.bytes = bytes;
        received.map(|count| (count, len as usize + room))
    }

    /// Octets of the stream that are in the buffer.
    fn take(&mut self, env: &mut Env<'_>, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.next {
                Next::More { .. } => {
                    let mut memory = env.buffers.memory(env.registry);
                    let received = self.core.handle_bytes(env.now, &mut memory, bytes);
                    bytes = &bytes[received.consumed..];
                    self.next = received.next;
                    if let Next::Place(placement) = self.next {
                        self.bulk = placement.len >= BULK_MIN;
                    }
                    self.unstage(env);
                }
                Next::Place(placement) => {
                    let now = bytes.len().min(placement.len as usize);
                    let (payload, rest) = bytes.split_at(now);
                    if !self.place(env, placement, payload) {
                        return;
                    }
                    bytes = rest;
                }
                Next::Stage { offset, len } => {
                    let now = bytes.len().min(len as usize);
                    let (payload, rest) = bytes.split_at(now);
                    self.stage(env, offset, len, payload);
                    bytes = rest;
                }
                Next::Unstage(_) => self.unstage(env),
            }
        }
    }

    fn place(&mut self, env: &mut Env<'_>, placement: Placement, payload: &[u8]) -> bool {
        let len = u32::try_from(payload.len()).unwrap_or(placement.len);
        let Some(ranges) = env.buffers.target(env.registry, placement.target, len) else {
            self.memory_gone(env);
            return false;
        };
        place(&ranges, payload);
        drop(ranges);
        if self.core.params().is_some_and(|params| params.crc) {
            self.core.digest().update(payload);
        }
        self.core.handle_placed(len);
        self.next = if len < placement.len {
            Next::Place(advance(placement, len))
        } else {
            Next::More { at_least: 1 }
        };
        true
    }

    fn stage(&mut self, env: &mut Env<'_>, offset: u32, len: u32, payload: &[u8]) {
        let staged = u32::try_from(payload.len()).unwrap_or(len);
        let stage = env
            .scratch
            .stage
            .get_or_insert_with(|| vec![0; STAGE].into());
        let from = offset as usize;
        if let Some(place) = stage.get_mut(from..from + payload.len()) {
            place.copy_from_slice(payload);
        }
        self.core.digest().update(payload);
        self.core.handle_placed(staged);
        self.next = if staged < len {
            Next::Stage {
                offset: offset + staged,
                len: len - staged,
            }
        } else {
            Next::More { at_least: 1 }
        };
    }

    /// Copies what is verified to its place.
    fn unstage(&mut self, env: &mut Env<'_>) {
        let Next::Unstage(placement) = self.next else {
            return;
        };
        let Some(ranges) = env
            .buffers
            .target(env.registry, placement.target, placement.len)
        else {
            self.memory_gone(env);
            return;
        };
        if let Some(stage) = &env.scratch.stage {
            place(&ranges, &stage[..placement.len as usize]);
        }
        drop(ranges);
        self.next = Next::More { at_least: 1 };
        let mut memory = env.buffers.memory(env.registry);
        self.core.handle_unstaged(env.now, &mut memory);
    }

    fn memory_gone(&mut self, env: &Env<'_>) {
        self.next = Next::More { at_least: 1 };
        self.bulk = false;
        self.core.handle_memory_gone(env.now);
    }

    // ---- outward

    pub(super) fn transmit(&mut self, env: &mut Env<'_>) -> bool {
        if self.ended {
            return false;
        }
        match self.push_out(env) {
            Ok(moved) => {
                self.note_blocked(env, false);
                moved
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.note_blocked(env, true);
                false
            }
            Err(_) => {
                // What the peer sent before it went, its Terminate above all, says more than this
                // error.
                while self.receive(env) {}
                self.lose(env);
                true
            }
        }
    }

    fn note_blocked(&mut self, env: &Env<'_>, blocked: bool) {
        if self.blocked != blocked && !self.eof {
            self.blocked = blocked;
            let interest = if blocked {
                Interest::BOTH
            } else {
                Interest::READ
            };
            let _ = env.poller.modify(&self.socket.stream, self.token, interest);
        }
    }

    /// Sends until there is nothing more (true where there was something), or `WouldBlock`.
    fn push_out(&mut self, env: &mut Env<'_>) -> io::Result<bool> {
        let mut moved = self.push_frame()?;
        self.more = true;
        for _ in 0..BATCHES {
            let mut batch = match self.left.take() {
                Some(batch) => batch,
                None => {
                    let mut batch = env.scratch.batch.take().unwrap_or_default();
                    self.fill(env, &mut batch);
                    batch
                }
            };
            if batch.len == 0 {
                env.scratch.batch = Some(batch);
                self.more = false;
                break;
            }
            let sent = self.send(env, &mut batch);
            if batch.sent < batch.len {
                self.left = Some(batch);
            } else {
                batch.clear();
                env.scratch.batch = Some(batch);
            }
            sent?;
            moved = true;
        }
        if self.ending && !self.ended && self.left.is_none() {
            self.ended = true;
            self.socket.stream.shutdown_send();
        }
        Ok(moved)
    }

    fn push_frame(&mut self) -> io::Result<bool> {
        let moved = self.core.poll_startup(&mut self.frame);
        while self.frame_sent < self.frame.len() {
            let rest = &self.frame[self.frame_sent..];
            let sent = stream::send(&self.socket.stream, &[Gather::from(rest)], false)?;
            if let Some(flow) = &mut self.flow {
                flow.show(&rest[..sent]);
                flow.sent();
            }
            self.frame_sent += sent;
        }
        if !self.frame.is_empty() {
            (self.frame, self.frame_sent) = (Vec::new(), 0);
        }
        Ok(moved)
    }

    /// Takes FPDUs from the core.
    fn fill(&mut self, env: &mut Env<'_>, batch: &mut Batch) {
        while batch.ends.len() < BATCH_FPDUS && batch.len < BATCH_BYTES {
            let start = batch.flat.len();
            batch.flat.resize(start + HEADER_MAX, 0);
            let Some(header) = batch.flat[start..].first_chunk_mut::<HEADER_MAX>() else {
                return;
            };
            let mut memory = env.buffers.memory(env.registry);
            let Some(fpdu) = self.core.poll_transmit(env.now, &mut memory, header) else {
                batch.flat.truncate(start);
                return;
            };
            batch.flat.truncate(start + fpdu.segment.header_len);
            let segment = &fpdu.segment;
            let source = env
                .buffers
                .source(env.registry, segment.payload, segment.payload_len);
            let Some(source) = source else {
                batch.flat.truncate(start);
                self.core
                    .handle_payload_gone(env.now, segment.payload, false);
                continue;
            };
            batch.add(start, &fpdu, &source);
        }
    }

    /// Sends the rest of a batch.
    fn send(&mut self, env: &mut Env<'_>, batch: &mut Batch) -> io::Result<()> {
        while batch.sent < batch.len {
            let sent = match batch.only_flat() {
                Some(rest) => {
                    let sent = stream::send(&self.socket.stream, &[Gather::from(rest)], false)?;
                    if let Some(flow) = &mut self.flow {
                        batch.show(&[], sent, flow);
                    }
                    sent
                }
                None => self.send_gathered(env, batch)?,
            };
            batch.advance(sent);
            let whole = batch.ends.partition_point(|(end, _)| *end <= batch.sent);
            if let Some((_, index)) = whole.checked_sub(1).and_then(|last| batch.ends.get(last)) {
                self.core.handle_released(env.now, index + 1);
            }
        }
        Ok(())
    }

    /// One call, with payload from where it lies. Apart, for its lists are some pages of stack that
    /// small messages do not need.
    #[inline(never)]
    fn send_gathered(&mut self, env: &mut Env<'_>, batch: &Batch) -> io::Result<usize> {
        let mut sources = ArrayVec::<Source<'_>, BATCH_FPDUS>::new();
        for part in &batch.parts[batch.first..] {
            if let Part::Payload(payload, len) = *part {
                match env.buffers.source(env.registry, payload, len) {
                    Some(source) => sources.push(source),
                    None => {
                        // Half an FPDU cannot be taken back.
                        self.core.handle_payload_gone(env.now, payload, true);
                        return Err(io::ErrorKind::InvalidData.into());
                    }
                }
            }
        }
        let sent = stream::send(&self.socket.stream, &batch.gather(&sources), false)?;
        if let Some(flow) = &mut self.flow {
            batch.show(&sources, sent, flow);
        }
        Ok(sent)
    }
}

fn advance(placement: Placement, placed: u32) -> Placement {
    let target = match placement.target {
        Target::Region { region, offset } => Target::Region {
            region,
            offset: offset + u64::from(placed),
        },
        Target::Receive { slot, offset } => Target::Receive {
            slot,
            offset: offset + placed,
        },
        Target::Discard => Target::Discard,
    };
    Placement {
        target,
        len: placement.len - placed,
    }
}

/// Ranges of one system call: a flat part before and behind each payload.
const RANGES: usize = BATCH_FPDUS * (SGE_MAX + 1) + 1;

impl Batch {
    fn clear(&mut self) {
        self.flat.clear();
        self.parts.clear();
        self.ends.clear();
        (self.len, self.sent) = (0, 0);
        (self.first, self.first_flat, self.skip) = (0, 0, 0);
    }

    /// So much more is sent.
    fn advance(&mut self, sent: usize) {
        self.sent += sent;
        self.skip += sent;
        while let Some(part) = self.parts.get(self.first) {
            let (len, flat) = match *part {
                Part::Flat(len) => (len, len),
                Part::Payload(_, len) => (len as usize, 0),
            };
            if self.skip < len {
                return;
            }
            self.skip -= len;
            self.first_flat += flat;
            self.first += 1;
        }
    }

    /// Adds an FPDU, whose header is the end of `flat` from `start` on.
    fn add(&mut self, start: usize, fpdu: &Fpdu, source: &Source<'_>) {
        if fpdu.markers {
            self.add_with_markers(start, fpdu, source);
        } else {
            let payload_len = fpdu.segment.payload_len;
            let mut digest = haul_iwarp::Crc32c::new();
            // What answers a read may be changed by anybody at any time: its CRC is that of a copy,
            // and the copy is sent.
            let shared = matches!(fpdu.segment.payload, Payload::Region { .. });
            let copied = payload_len <= FLAT_MAX || shared && fpdu.crc;
            if copied {
                source.visit(|bytes| self.flat.extend_from_slice(bytes));
                if fpdu.crc {
                    digest.update(&self.flat[start..]);
                }
            } else {
                if fpdu.crc {
                    digest.update(&self.flat[start..]);
                    source.visit(|bytes| digest.update(bytes));
                }
                self.add_flat(self.flat.len() - start);
                self.parts
                    .push(Part::Payload(fpdu.segment.payload, payload_len));
                self.len += payload_len as usize;
            }
            let flat_end = self.flat.len();
            self.flat.extend_from_slice(fpdu.trailer(digest).as_bytes());
            let behind = if copied { start } else { flat_end };
            self.add_flat(self.flat.len() - behind);
        }
        self.ends.push((self.len, fpdu.segment.index));
    }

    /// All of it is copied: peers that ask for markers are rare, and their FPDUs short.
    fn add_with_markers(&mut self, start: usize, fpdu: &Fpdu, source: &Source<'_>) {
        let header: ArrayVec<u8, HEADER_MAX> = self.flat.drain(start..).collect();
        let mut payload = Vec::with_capacity(fpdu.segment.payload_len as usize);
        source.visit(|bytes| payload.extend_from_slice(bytes));
        for piece in fpdu.pieces() {
            match piece {
                Piece::Header(range) => self.flat.extend_from_slice(&header[range]),
                Piece::Marker(marker) => self.flat.extend_from_slice(&marker),
                Piece::Payload(range) => {
                    let bytes = &payload[range.start as usize..range.end as usize];
                    self.flat.extend_from_slice(bytes);
                }
                Piece::Pad(len) => self.flat.resize(self.flat.len() + len, 0),
            }
        }
        let mut digest = haul_iwarp::Crc32c::new();
        digest.update(&self.flat[start..]);
        let trailer = fpdu.trailer_of(digest);
        self.flat.extend_from_slice(&trailer.as_bytes()[fpdu.pad..]);
        self.add_flat(self.flat.len() - start);
    }

    fn add_flat(&mut self, len: usize) {
        self.len += len;
        match self.parts.last_mut() {
            Some(Part::Flat(before)) => *before += len,
            _ => self.parts.push(Part::Flat(len)),
        }
    }

    /// What is not sent yet, if there is no payload in it.
    fn only_flat(&self) -> Option<&[u8]> {
        match self.parts[self.first..] {
            [Part::Flat(len)] => {
                let from = self.first_flat;
                self.flat.get(from + self.skip..from + len)
            }
            _ => None,
        }
    }

    /// What is not sent yet, as ranges.
    fn gather<'b>(&'b self, sources: &'b [Source<'_>]) -> ArrayVec<Gather<'b>, RANGES> {
        let mut ranges = ArrayVec::new();
        let (mut skip, mut flat) = (self.skip, self.first_flat);
        let mut sources = sources.iter();
        let mut push = |range: Gather<'b>| {
            let passed = skip.min(range.len());
            skip -= passed;
            if passed < range.len() {
                ranges.push(range.skip(passed));
            }
        };
        for part in &self.parts[self.first..] {
            match part {
                Part::Flat(len) => {
                    push(Gather::from(&self.flat[flat..flat + len]));
                    flat += len;
                }
                Part::Payload(..) => match sources.next() {
                    Some(Source::Ranges(list)) => {
                        list.iter()
                            .filter_map(super::buffers::Range::gather)
                            .for_each(&mut push);
                    }
                    Some(Source::Inline(bytes)) => push(Gather::from(*bytes)),
                    None => {}
                },
            }
        }
        ranges
    }

    /// Shows the next `sent` octets to the tap.
    fn show(&self, sources: &[Source<'_>], sent: usize, flow: &mut Flow) {
        let (mut skip, mut left, mut flat) = (self.skip, sent, self.first_flat);
        let mut sources = sources.iter();
        let mut show = |bytes: &[u8]| {
            let passed = skip.min(bytes.len());
            skip -= passed;
            let rest = &bytes[passed..];
            let now = &rest[..rest.len().min(left)];
            left -= now.len();
            flow.show(now);
        };
        for part in &self.parts[self.first..] {
            match part {
                Part::Flat(len) => {
                    show(&self.flat[flat..flat + len]);
                    flat += len;
                }
                Part::Payload(..) => {
                    if let Some(source) = sources.next() {
                        source.visit(&mut show);
                    }
                }
            }
        }
        flow.sent();
    }
}
