//! A queue pair's TCP connection: FPDUs gathered into few system calls, and received into their
//! places.
//!
//! Inward: bytes come into a buffer that all connections of the shard share. The core reads
//! headers there and names the place of the payload. Payload in the buffer is copied. If much has
//! yet to arrive, one call receives it straight into its place, and the trailer and the next header
//! into the buffer.
//!
//! Outward: headers, trailers and small payloads are copied behind each other, large payloads are
//! gathered from where they lie. What the socket does not take stays with the connection.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use arrayvec::ArrayVec;
use haul_io::poller::{Interest, Poller};
use haul_io::stream::{self, Stream};
use haul_iwarp::{HEADER_MAX, Next, Placement, ReliableConnection, StreamConnection, Target, Time};
use haul_slab::{Gather, Scatter};
use haul_verbs::{QpStatistics, RateLimit, SGE_MAX};

use super::batch::{BATCH_FPDUS, Batch};
use super::env::{BUFFER, Env, STAGE, Watched};
use super::rnic_link::RnicLink;
use super::sealed_stream::SealedStream;
use crate::rnic::buffers::{Range, Source, place};
use crate::rnic::tap::{Flow, Tap};

/// A TCP connection and its protocol.
#[derive(Debug)]
pub(in crate::rnic) struct TcpLink {
    socket: Arc<Watched>,
    core: StreamConnection,
    token: u64,
    /// What the core wants to be done with the next bytes.
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
    /// The socket is full; the poller reports when it is not.
    blocked: bool,
    /// Nothing follows once all is sent.
    ending: bool,
    ended: bool,
    /// The latest batches were not the last.
    more: bool,
    /// The peer sends no more.
    eof: bool,
    flow: Option<Flow>,
    /// Of a protected connection; none also while it is worked with.
    sealed: Option<Box<SealedStream>>,
}

/// Payload that has yet to arrive and is at least this long is received straight into its place.
const DIRECT_MIN: u32 = 4 << 10;
/// FPDUs with at least this much payload come in series.
const BULK_MIN: u32 = 16 << 10;
/// Bytes received behind direct payload: the longest trailer, and a header without the longest
/// ones, which a tagged segment does not have.
const TAIL: usize = 32;
/// Between two looks for the rest of a series of large FPDUs, ns: each takes the socket from the
/// one who brings it, and what comes meanwhile is taken with one call.
const LOOK_EVERY_NS: u64 = 5_000;
/// Bytes received of one connection before others have their turn.
const RECEIVE_BYTES: usize = 512 << 10;
/// Batches sent before others have theirs.
const BATCHES: usize = 2;
impl RnicLink for TcpLink {
    fn core(&self) -> &dyn ReliableConnection {
        &self.core
    }

    fn core_mut(&mut self) -> &mut dyn ReliableConnection {
        &mut self.core
    }

    fn register(&mut self, poller: &Poller, token: u64) -> io::Result<()> {
        self.token = token;
        self.blocked = false;
        poller.add(&self.socket.stream, token, Interest::READ)
    }

    fn unregister(&self, poller: &Poller) {
        if !self.eof {
            // It fails only for a socket that is not watched.
            let _ = poller.remove(&self.socket.stream);
        }
    }

    fn turn(&mut self, env: &mut Env<'_>) -> bool {
        let looks = !self.bulk || env.now >= self.look_at;
        let received = looks && self.receive(env);
        self.transmit(env) | received
    }

    fn transmit(&mut self, env: &mut Env<'_>) -> bool {
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
                // What the peer sent before, above all its Terminate, explains more than this
                // error.
                while self.receive(env) {}
                self.lose(env);
                true
            }
        }
    }

    fn has_more(&self) -> bool {
        !self.blocked && !self.ended && (self.ending || self.more)
    }

    fn end(&mut self) {
        self.ending = true;
    }

    fn limit_rate(&mut self, limit: RateLimit) {
        let _ = self.socket.stream.limit_rate(limit.bits_per_second / 8);
    }

    fn statistics(&self) -> QpStatistics {
        let stream = &self.socket.stream;
        let mut statistics = QpStatistics::default();
        statistics.resent_bytes = stream.resent_octets().unwrap_or(0);
        statistics.round_trip_ns = stream.round_trip_ns().unwrap_or(0);
        statistics
    }

    fn failure(&self) -> Option<&str> {
        self.sealed.as_ref().and_then(|sealed| sealed.failure())
    }

    fn watched(&self) -> Option<&Arc<Watched>> {
        (!self.eof && !self.blocked).then_some(&self.socket)
    }

    /// Closes the socket: in order if the connection ended so.
    fn close(self: Box<Self>, _now: Time, poller: &Poller) -> Option<Box<dyn RnicLink>> {
        self.unregister(poller);
        if self.core.error().is_some() && !self.ended {
            self.socket.stream.reset_on_drop();
        }
        None
    }
}

impl TcpLink {
    pub(in crate::rnic) fn new(
        socket: Stream,
        core: StreamConnection,
        token: u64,
        tap: Option<&Arc<Tap>>,
        sealed: Option<SealedStream>,
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
            sealed: sealed.map(Box::new),
        }
    }

    // ---- inward

    fn receive(&mut self, env: &mut Env<'_>) -> bool {
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

    /// One call: bytes received, and bytes there was room for.
    fn receive_once(&mut self, env: &mut Env<'_>) -> io::Result<(usize, usize)> {
        if let Some(mut sealed) = self.sealed.take() {
            let received = self.receive_sealed(env, &mut sealed);
            self.sealed = Some(sealed);
            return received;
        }
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

    /// As [`TcpLink::receive_once`] where the connection is protected: records are opened in the
    /// buffer, and payload is copied from there.
    fn receive_sealed(
        &mut self,
        env: &mut Env<'_>,
        sealed: &mut SealedStream,
    ) -> io::Result<(usize, usize)> {
        let mut bytes = std::mem::take(&mut env.scratch.bytes);
        let kept = sealed.restore(&mut bytes);
        let room = BUFFER - kept;
        let received = stream::receive(
            &self.socket.stream,
            &mut [Scatter::from(&mut bytes[kept..BUFFER])],
        );
        let end = kept + received.as_ref().map_or(0, |count| *count);
        if let Some(flow) = &mut self.flow {
            flow.show(&bytes[kept..end]);
            flow.received();
        }
        let mut at = 0;
        let opened = loop {
            match sealed.open(&mut bytes[at..end]) {
                Ok(Some(opened)) => {
                    let record = &bytes[at..at + opened.consumed];
                    at += opened.consumed;
                    self.take(env, &record[opened.data]);
                }
                Ok(None) => {
                    sealed.keep(&bytes[at..end]);
                    break Ok(());
                }
                Err(broken) => break Err(broken),
            }
        };
        env.scratch.bytes = bytes;
        if opened.is_err() {
            // The peer learns why, if there is room.
            let last = sealed.pending();
            let _ = stream::send(&self.socket.stream, &[Gather::from(last)], false);
            return Err(io::ErrorKind::InvalidData.into());
        }
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
        scatter.extend(ranges.iter().filter_map(Range::scatter));
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

    /// Bytes of the stream that are in the buffer.
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
        if let Some(mut sealed) = self.sealed.take() {
            let pushed = self.push_sealed(env, &mut sealed);
            self.sealed = Some(sealed);
            return pushed;
        }
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
            if batch.is_empty() {
                env.scratch.batch = Some(batch);
                self.more = false;
                break;
            }
            let sent = self.send(env, &mut batch);
            if !batch.is_sent() {
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

    /// As [`TcpLink::push_out`] where the connection is protected: a batch is copied and sealed,
    /// and its memory is not needed any more.
    fn push_sealed(&mut self, env: &mut Env<'_>, sealed: &mut SealedStream) -> io::Result<bool> {
        let mut moved = self.drain(sealed)?;
        for _ in 0..BATCHES {
            self.more = sealed.is_open() && self.seal_batch(env, sealed)?;
            moved |= self.drain(sealed)?;
            if !self.more {
                break;
            }
        }
        if self.ending && !self.more {
            self.ended = true;
            self.socket.stream.shutdown_send();
        }
        Ok(moved)
    }

    /// Seals what the core wants to send, up to a batch; whether there was something.
    fn seal_batch(&mut self, env: &mut Env<'_>, sealed: &mut SealedStream) -> io::Result<bool> {
        if self.core.poll_startup(&mut self.frame) {
            let frame = std::mem::take(&mut self.frame);
            sealed.seal(&frame).map_err(io::Error::other)?;
        }
        let mut batch = env.scratch.batch.take().unwrap_or_default();
        batch.set_copies(true);
        self.fill(env, &mut batch);
        let bytes = batch.only_flat().unwrap_or_default();
        let (len, done) = (bytes.len(), sealed.seal(bytes));
        batch.advance(len);
        if let Some(index) = batch.released() {
            self.core.handle_released(env.now, index);
        }
        batch.clear();
        batch.set_copies(false);
        env.scratch.batch = Some(batch);
        done.map_err(io::Error::other)?;
        Ok(len > 0)
    }

    /// Sends what is sealed; whether there was something.
    fn drain(&mut self, sealed: &mut SealedStream) -> io::Result<bool> {
        let mut moved = false;
        loop {
            let rest = sealed.pending();
            if rest.is_empty() {
                break;
            }
            let sent = stream::send(&self.socket.stream, &[Gather::from(rest)], false)?;
            if let Some(flow) = &mut self.flow {
                flow.show(&rest[..sent]);
                flow.sent();
            }
            sealed.advance(sent);
            moved = true;
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
        while !batch.is_full() {
            let (start, room) = batch.begin();
            let Some(header) = room.first_chunk_mut::<HEADER_MAX>() else {
                return;
            };
            let mut memory = env.buffers.memory(env.registry);
            let Some(fpdu) = self.core.poll_transmit(env.now, &mut memory, header) else {
                batch.cancel(start);
                return;
            };
            let segment = &fpdu.segment;
            let source = env
                .buffers
                .source(env.registry, segment.payload, segment.payload_len);
            let Some(source) = source else {
                batch.cancel(start);
                self.core
                    .handle_payload_gone(env.now, segment.payload, false);
                continue;
            };
            batch.add(start, &fpdu, &source);
        }
    }

    /// Sends the rest of a batch.
    fn send(&mut self, env: &mut Env<'_>, batch: &mut Batch) -> io::Result<()> {
        while !batch.is_sent() {
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
            if let Some(index) = batch.released() {
                self.core.handle_released(env.now, index);
            }
        }
        Ok(())
    }

    /// One call, with payload from where it lies. Apart, for its lists are some pages of stack that
    /// small messages do not need.
    #[inline(never)]
    fn send_gathered(&mut self, env: &mut Env<'_>, batch: &Batch) -> io::Result<usize> {
        let mut sources = ArrayVec::<Source<'_>, BATCH_FPDUS>::new();
        for (payload, len) in batch.payloads() {
            match env.buffers.source(env.registry, payload, len) {
                Some(source) => sources.push(source),
                None => {
                    // Half an FPDU cannot be taken back.
                    self.core.handle_payload_gone(env.now, payload, true);
                    return Err(io::ErrorKind::InvalidData.into());
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
