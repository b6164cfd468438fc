//! A queue pair's UDT connection: one DDP segment per packet, placed when it arrives, whatever came
//! before it.
//!
//! Inward: packets arrive in batches. The transport tells new ones from repeats, the core reads the
//! headers and names the place of the payload, and it is copied there at once. The two cores see to
//! what is missing; nothing waits here.
//!
//! Outward: the core's segments are announced to the transport as messages. The transport decides
//! when each leaves, and retransmits lost ones. The header is ready for the first transmission, and
//! is made again for every other. Header, payload and checksum go behind each other into one buffer
//! for the kernel to cut. The checksum reads every byte anyway, and to the kernel gathered pieces
//! cost as much as that copy. Where packets are sealed, between peers that both know it, the tag
//! takes the place of the checksum.
//!
//! Map: `opening` what happens before packets are iWARP's.

mod opening;

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;

use haul_cc::{Algorithm, Rate};
use haul_io::poller::{Interest, Poller};
use haul_io::udp::{Received as Arrival, SEGMENTS_MAX, SUPER_PACKET_BYTES_MAX, UdpSocket};
use haul_iwarp::{
    CRC_LEN, Crc32c, Datagram, HEADER_MAX, MessageConfig, MessageConnection, QpConfig,
    ReliableConnection, Repeat, State, StreamConfig, Time,
};
use haul_seal::Side;
use haul_seal::handshake::{HandshakeError, Protect, Transport as HandshakeTransport};
use haul_udt::wire::{HEADER_LEN, SEAL_LEN, SocketKind, is_data, piece_len};
use haul_udt::{Connection, Event, Joiner, Received, Seq, Transmit};
use haul_verbs::{Failure, QpStatistics, RateLimit};

use super::announced::Announced;
use super::env::Env;
use super::plain_peer::hello_refusal;
use super::rnic_link::RnicLink;
use crate::rnic::buffers::place;
use crate::rnic::options::Options;
use crate::rnic::tap::Tap;
use crate::rnic::time::ns;
use crate::udt::BLOCKED_NS;
use crate::udt::LinkOptions;
use crate::udt::handshake::{Shown, UdtHandshake, sequence};
use crate::udt::plain::random_identity;
use crate::udt::sealing::{Sealing, open};
use crate::udt::trouble::{FAILURES, Trouble, rest};

/// A UDT connection without a protocol above it yet.
#[derive(Debug)]
pub(in crate::rnic) struct UdtTransport {
    socket: UdpSocket,
    peer: SocketAddr,
    udt: Connection,
    /// Packet number of the first packet, both ways.
    initial: u64,
    token: u64,
    transmit: Transmit,
    /// Packets that were to leave and did not yet: their bytes, the length of each but the last,
    /// and how many have left.
    flat: Vec<u8>,
    segment_len: usize,
    gone: usize,
    blocked: bool,
    trouble: Trouble,
    joiner: Joiner,
    tap: Option<Tapped>,
    /// Until a protected connection has its keys; `udt` is one that makes them then.
    handshake: Option<Box<UdtHandshake>>,
    /// Of a protected connection, from when its keys are made; with the packets of `flat`, sealed.
    sealing: Option<Sealing>,
    /// What leaves next is not sealed: a handshake of UDT.
    clear: bool,
    /// Of the second connection.
    config: haul_udt::Config,
}

/// Where the packets are shown.
#[derive(Debug)]
struct Tapped {
    tap: Arc<Tap>,
    local: SocketAddr,
    peer: SocketAddr,
}

impl Shown for Tapped {
    fn sent(&self, bytes: &[u8], len: usize) {
        self.tap.datagrams(self.local, self.peer, bytes, len);
    }
}

impl Tapped {
    fn received(&self, message: &Arrival<'_>) {
        for datagram in message.datagrams() {
            let len = datagram.len();
            self.tap.datagrams(self.peer, self.local, datagram, len);
        }
    }
}

/// A UDT connection and the protocol above it.
#[derive(Debug)]
pub(in crate::rnic) struct UdtLink {
    transport: UdtTransport,
    core: MessageConnection,
    announced: Announced,
    /// Bytes of all messages that were announced.
    announced_bytes: u64,
    /// One past the highest packet number seen.
    seen: u64,
    /// Packets that were placed before one that was sent before them.
    early: u64,
    ending: bool,
    /// The transport has not been told of that yet.
    fresh_end: bool,
    /// Why there are no keys.
    failure: Option<Failure>,
}

/// Receive calls, and batches sent, before other connections have their turn.
const ROUNDS: usize = FAILURES;
const BATCHES: usize = 8;
/// Bytes announced and not sent yet: a few of the transport's bursts.
const AHEAD: u64 = 1 << 20;
/// Slots stand for memory that is never used here: payload does not wait. They bound what is in
/// flight.
const SLOTS_BYTES: u64 = 128 << 20;

/// How links are opened.
pub(in crate::rnic) fn options(given: &Options) -> LinkOptions {
    let mut options = LinkOptions::default();
    if let Some(rate_bps) = given.rate_bps {
        options.config.control = Algorithm::Fixed(Rate::from_bps(rate_bps));
    }
    if let Some(connect) = given.connect_timeout {
        options.config.connect_timeout_ns = ns(connect);
    }
    options.config.idle_timeout_ns = ns(given.peer_timeout);
    options.config.kind = SocketKind::Datagram;
    options.config.slot_memory_bytes = SLOTS_BYTES;
    options
}

/// What the socket takes in one call, of packets of `len` bytes.
fn batch_bytes(len: usize) -> usize {
    (SUPER_PACKET_BYTES_MAX / len).clamp(1, SEGMENTS_MAX) * len
}

impl UdtTransport {
    /// Begins to connect.
    pub(in crate::rnic) fn connect(
        peer: SocketAddr,
        options: &LinkOptions,
        now: Time,
        tap: Option<&Arc<Tap>>,
        protect: Option<&Arc<dyn Protect>>,
    ) -> io::Result<Self> {
        let handshake = protect
            .map(|protect| protect.initiate(peer.ip(), HandshakeTransport::Udt))
            .transpose()
            .map_err(io::Error::other)?;
        let handshake =
            handshake.map(|handshake| UdtHandshake::new(handshake, Side::Initiator, hello_refusal));
        let local: SocketAddr = if peer.is_ipv4() {
            (std::net::Ipv4Addr::UNSPECIFIED, 0).into()
        } else {
            (std::net::Ipv6Addr::UNSPECIFIED, 0).into()
        };
        let socket = UdpSocket::bind(local, &options.socket_options(false))?;
        socket.connect(peer)?;
        let config = options.config_for(peer, socket.path_mtu());
        let own = random_identity()?;
        let seed = u64::from(own.socket.0) << 32 | u64::from(own.initial.get());
        let udt = Connection::connect(now, config.clone(), own, peer.ip(), seed);
        let mut this = Self::new(socket, peer, udt, own.initial, tap, config);
        this.handshake = handshake.map(Box::new);
        Ok(this)
    }

    /// A connection that was accepted.
    pub(in crate::rnic) fn accepted(
        (socket, peer): (UdpSocket, SocketAddr),
        udt: Connection,
        initial: Seq,
        options: &LinkOptions,
        tap: Option<&Arc<Tap>>,
        protect: Option<&Arc<dyn Protect>>,
    ) -> Result<Self, HandshakeError> {
        let handshake = protect
            .map(|protect| protect.respond(HandshakeTransport::Udt))
            .transpose()?;
        let handshake =
            handshake.map(|handshake| UdtHandshake::new(handshake, Side::Responder, hello_refusal));
        let config = options.config_for(peer, socket.path_mtu());
        let mut this = Self::new(socket, peer, udt, initial, tap, config);
        this.handshake = handshake.map(Box::new);
        Ok(this)
    }

    fn new(
        socket: UdpSocket,
        peer: SocketAddr,
        udt: Connection,
        initial: Seq,
        tap: Option<&Arc<Tap>>,
        config: haul_udt::Config,
    ) -> Self {
        let tapped = |tap: &Arc<Tap>| Tapped {
            tap: Arc::clone(tap),
            local: socket.source_addr().unwrap_or_else(|_| socket.local_addr()),
            peer,
        };
        Self {
            tap: tap.map(tapped),
            socket,
            peer,
            udt,
            initial: initial.get().into(),
            token: 0,
            transmit: Transmit::default(),
            flat: Vec::new(),
            segment_len: 0,
            gone: 0,
            blocked: false,
            trouble: Trouble::default(),
            joiner: Joiner::default(),
            handshake: None,
            sealing: None,
            clear: false,
            config,
        }
    }

    pub(in crate::rnic) fn register(&mut self, poller: &Poller, token: u64) -> io::Result<()> {
        self.token = token;
        self.blocked = false;
        poller.add(&self.socket, token, Interest::READ)
    }

    pub(in crate::rnic) fn unregister(&self, poller: &Poller) {
        // It fails only for a socket that is not watched.
        let _ = poller.remove(&self.socket);
    }

    /// When it wants to be moved though nothing arrives.
    pub(in crate::rnic) fn due(&self, now: Time) -> Option<Time> {
        let handshake = self.handshake.as_ref();
        let first = handshake.and_then(|handshake| handshake.poll_timeout(now));
        let due = self.udt.poll_timeout(now)?;
        let due = first.map_or(due, |first| due.min(first));
        // A socket that stays full does not stop the clock.
        let blocked = self.blocked.then(|| now.after(BLOCKED_NS));
        Some(blocked.map_or(due, |tick| due.max(tick)))
    }

    /// Seals what is to leave, once. What cannot be sealed does not leave.
    fn seal_flat(&mut self) {
        self.clear = self.sealing.is_none()
            || !self.transmit.control.is_empty() && self.transmit.sealed.is_none();
        let Some(sealing) = &mut self.sealing else {
            return;
        };
        sealing.clear();
        if let Some(first) = self.transmit.sealed
            && sealing
                .seal_packets(&self.udt, first, &self.flat, self.segment_len)
                .is_err()
        {
            self.flat.clear();
        }
    }

    /// Hands what is to leave to the socket; false when it is full.
    fn push(&mut self, now: Time) -> bool {
        while self.gone * self.segment_len < self.flat.len() {
            self.fit();
            let (rest, len) = match &self.sealing {
                Some(sealing) if !self.clear => {
                    let len = self.segment_len + SEAL_LEN;
                    (sealing.rest(len, self.gone), len)
                }
                _ => (&self.flat[self.gone * self.segment_len..], self.segment_len),
            };
            if rest.is_empty() {
                break;
            }
            let rest = &rest[..rest.len().min(batch_bytes(len))];
            match self
                .socket
                .send_segments(self.peer, len, &[IoSlice::new(rest)])
            {
                Ok(count) => {
                    if let Some(tap) = &self.tap {
                        let taken = rest.len().min(count * len);
                        tap.sent(&rest[..taken], len);
                    }
                    self.gone += count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                // As if lost on the way, unless these packets deserve another try.
                Err(error) => {
                    let (socket, udt) = (&self.socket, &mut self.udt);
                    if !self.trouble.note(now, error, socket, udt) {
                        break;
                    }
                }
            }
        }
        self.flat.clear();
        self.gone = 0;
        true
    }

    /// Cuts data packets that are too long for the path into pieces.
    fn fit(&mut self) {
        let max = self.udt.datagram_max();
        if self.segment_len <= max || !is_data(&self.flat) {
            return;
        }
        let len = piece_len(self.segment_len, max);
        let mut pieces = Vec::with_capacity(2 * self.flat.len());
        if let Some(sealing) = &mut self.sealing {
            sealing.clear();
        }
        for packet in self.flat.chunks(self.segment_len).skip(self.gone) {
            let start = pieces.len();
            let (_, first) = self.udt.cut(packet, len, &mut pieces);
            let Some(sealing) = &mut self.sealing else {
                continue;
            };
            // Pieces are other packets and have numbers of their own.
            let is_sealed = first.is_some_and(|first| {
                let pieces = &pieces[start..];
                sealing.seal_packets(&self.udt, first, pieces, len).is_ok()
            });
            if !is_sealed {
                sealing.clear();
                pieces.clear();
                break;
            }
        }
        (self.flat, self.segment_len, self.gone) = (pieces, len, 0);
    }

    /// Bytes of a segment that the path carries whole.
    fn segment_max(&self) -> u32 {
        let payload = self
            .udt
            .params()
            .map_or(0, |params| params.payload_len as usize);
        let len = payload.min(self.udt.datagram_max().saturating_sub(HEADER_LEN));
        u32::try_from(len.saturating_sub(CRC_LEN)).unwrap_or(u32::MAX)
    }

    /// Its protocol's, which takes as long for its steps as one over a stream.
    fn config(&self, qp: QpConfig, times: &StreamConfig) -> MessageConfig {
        let mut config = MessageConfig::default();
        config.qp = qp;
        config.segment_max = self.segment_max();
        config.sealed = self.handshake.is_some() || self.sealing.is_some();
        config.startup_timeout_ns = times.startup_timeout_ns;
        config.close_timeout_ns = times.close_timeout_ns;
        config
    }
}

impl RnicLink for UdtLink {
    fn core(&self) -> &dyn ReliableConnection {
        &self.core
    }

    fn core_mut(&mut self) -> &mut dyn ReliableConnection {
        &mut self.core
    }

    fn register(&mut self, poller: &Poller, token: u64) -> io::Result<()> {
        self.transport.register(poller, token)
    }

    fn unregister(&self, poller: &Poller) {
        self.transport.unregister(poller);
    }

    fn turn(&mut self, env: &mut Env<'_>) -> bool {
        let received = self.receive(env);
        self.transmit(env) | received
    }

    fn transmit(&mut self, env: &mut Env<'_>) -> bool {
        let moved = self.push_out(env);
        if self.core.poll_timeout().is_some_and(|due| env.now >= due) {
            self.core.handle_timeout(env.now);
        }
        moved
    }

    fn has_more(&self) -> bool {
        self.fresh_end
    }

    fn end(&mut self) {
        (self.ending, self.fresh_end) = (true, true);
    }

    fn limit_rate(&mut self, limit: RateLimit) {
        let rate = Rate::from_bps(limit.bits_per_second);
        self.transport.udt.limit_rate(rate, limit.max_burst_bytes);
    }

    fn statistics(&self) -> QpStatistics {
        let stats = self.transport.udt.stats();
        let mut statistics = QpStatistics::default();
        statistics.resent_segments = stats.map_or(0, |stats| stats.sent.resent_packets);
        statistics.resent_bytes = stats.map_or(0, |stats| stats.sent.resent_bytes);
        statistics.early_segments = self.early;
        statistics.duplicate_segments = stats.map_or(0, |stats| stats.duplicates.into());
        statistics.round_trip_ns = stats.map_or(0, |stats| stats.rtt_ns);
        statistics
    }

    fn failure(&self) -> Option<&str> {
        self.failure.as_ref().map(|failure| &*failure.reason)
    }

    fn fit_segments(&mut self) {
        self.core.set_segment_max(self.transport.segment_max());
    }

    fn due(&self, now: Time) -> Option<Time> {
        let (transport, core) = (self.transport.due(now), self.core.poll_timeout());
        match (transport, core) {
            (Some(transport), Some(core)) => Some(transport.min(core)),
            (transport, core) => transport.or(core),
        }
    }

    fn is_closed(&self) -> bool {
        self.transport.udt.is_closed()
    }

    fn is_clocked(&self) -> bool {
        true
    }

    fn close(mut self: Box<Self>, now: Time, _poller: &Poller) -> Option<Box<dyn RnicLink>> {
        if self.core.error().is_some() && !self.ending {
            self.transport.udt.abort(now);
        } else {
            self.transport.udt.close(now);
        }
        self.transport.send_control_if_closed(now);
        Some(self)
    }
}

impl UdtLink {
    /// The initiator's end of an open connection. None where the private data does not fit.
    pub(in crate::rnic) fn initiate(
        transport: UdtTransport,
        now: Time,
        qp: QpConfig,
        times: &StreamConfig,
        private: &[u8],
    ) -> Option<Self> {
        let core = MessageConnection::connect(now, transport.config(qp, times), private).ok()?;
        Some(Self::new(transport, core))
    }

    /// The responder's end of an open connection.
    pub(in crate::rnic) fn respond(
        transport: UdtTransport,
        now: Time,
        times: &StreamConfig,
    ) -> Self {
        let core = MessageConnection::listen(now, transport.config(QpConfig::default(), times));
        Self::new(transport, core)
    }

    fn new(transport: UdtTransport, core: MessageConnection) -> Self {
        Self {
            seen: transport.initial,
            transport,
            core,
            announced: Announced::default(),
            announced_bytes: 0,
            early: 0,
            ending: false,
            fresh_end: false,
            failure: None,
        }
    }

    // ---- inward

    fn receive(&mut self, env: &mut Env<'_>) -> bool {
        let Some(mut batch) = env.scratch.take_batch() else {
            return false;
        };
        let (mut moved, mut failed) = (false, 0);
        for _ in 0..ROUNDS {
            match self.transport.socket.recv_batch(&mut batch) {
                Ok(0) => break,
                Ok(_) => self.transport.trouble.clear(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    let now = env.now;
                    let (socket, udt) = (&self.transport.socket, &mut self.transport.udt);
                    self.transport.trouble.note(now, error, socket, udt);
                    failed += 1;
                    continue;
                }
            }
            moved = true;
            let now = Time::from_ns(batch.now_ns());
            let mut at = 0;
            while let Some(message) = batch.message(at) {
                if let Some(tap) = &self.transport.tap {
                    tap.received(&message);
                }
                let arrived = Time::from_ns(message.arrived_ns);
                for datagram in batch.datagrams_mut(at) {
                    self.handle_datagram(env, now, arrived, datagram);
                }
                at += 1;
            }
            self.free_slots();
        }
        if failed == ROUNDS {
            rest();
        }
        env.scratch.give_batch(batch);
        let now = env.now;
        self.transport.udt.handle_timeout(now);
        if self.transport.udt.wants_fragments(now) {
            self.transport.socket.allow_fragments();
        }
        self.note_events(env.now);
        moved
    }

    fn handle_datagram(
        &mut self,
        env: &mut Env<'_>,
        now: Time,
        arrived: Time,
        datagram: &mut [u8],
    ) {
        let transport = &mut self.transport;
        if transport.is_securing() {
            if let Err(failure) = transport.handle_securing(now, datagram) {
                self.failure = Some(failure);
            }
            self.seen = self.transport.initial;
            return;
        }
        if let Some(packet) = open(&mut transport.sealing, &mut transport.udt, now, datagram) {
            self.handle_packet(env, now, arrived, packet);
        }
    }

    fn handle_packet(&mut self, env: &mut Env<'_>, now: Time, arrived: Time, datagram: &[u8]) {
        if let Some(piece) = self.transport.udt.piece(datagram) {
            let mut joiner = std::mem::take(&mut self.transport.joiner);
            if let Some(packet) = joiner.join(&piece) {
                self.handle_packet(env, now, arrived, packet);
            }
            self.transport.joiner = joiner;
            return;
        }
        let data = is_data(datagram);
        let message = datagram.get(HEADER_LEN..).unwrap_or_default();
        if data && !self.core.verify(message) {
            return;
        }
        let received = self.transport.udt.handle_packet(now, arrived, datagram);
        if !matches!(received, Ok(Received::Data(_))) {
            // Before what came after it: that may end the connection.
            self.note_released(env.now);
            return;
        }
        let number = sequence(datagram).extend(self.seen);
        self.early += u64::from(number > self.seen);
        self.seen = self.seen.max(number + 1);
        let Some(index) = number.checked_sub(self.transport.initial) else {
            return;
        };
        let mut memory = env.buffers.memory(env.registry);
        let arrived = self
            .core
            .handle_message(env.now, &mut memory, index, message);
        let Some(arrived) = arrived else { return };
        let wanted = arrived.placement;
        let ranges = env.buffers.target(env.registry, wanted.target, wanted.len);
        let (Some(ranges), Some(payload)) = (ranges, message.get(arrived.payload)) else {
            self.core.handle_memory_gone(env.now);
            return;
        };
        place(&ranges, payload);
        drop(ranges);
        let mut memory = env.buffers.memory(env.registry);
        self.core.handle_placed(env.now, &mut memory);
    }

    /// Payload is in its place already: nothing waits in the transport.
    fn free_slots(&mut self) {
        while let Some(message) = self.transport.udt.front_message() {
            self.transport.udt.take_message(&message, |_| {});
        }
    }

    fn note_events(&mut self, now: Time) {
        while let Some(event) = self.transport.udt.poll_event() {
            match event {
                Event::Connected(_) => {}
                Event::PeerClosed | Event::Closed(None) => self.core.handle_eof(now),
                Event::Closed(Some(_)) => self.core.handle_lost(now),
            }
        }
        // At once: a queue pair's user, unlike a transfer, has no other way to learn that its peer
        // was killed.
        if self.transport.trouble.take_refusal() && !self.transport.udt.is_closed() {
            self.transport.udt.abort(now);
            self.core.handle_lost(now);
        }
        self.note_released(now);
    }

    fn note_released(&mut self, now: Time) {
        if self.transport.is_securing() {
            return;
        }
        // Each message is one packet.
        let acknowledged = self.transport.udt.acknowledged_packets();
        self.core.handle_released(now, acknowledged);
    }

    // ---- outward

    fn push_out(&mut self, env: &mut Env<'_>) -> bool {
        if self.transport.is_securing() {
            self.transport.send_opening(env.now);
            if std::mem::take(&mut self.fresh_end) {
                self.transport.udt.close(env.now);
            }
            return false;
        }
        let mut moved = false;
        for _ in 0..BATCHES {
            let room = self.transport.push(env.now);
            self.note_blocked(env.poller, !room);
            if !room {
                break;
            }
            self.announce(env);
            let now = env.now;
            let transport = &mut self.transport;
            if !transport.udt.poll_transmit(now, &mut transport.transmit) {
                break;
            }
            moved = true;
            if transport.transmit.control.is_empty() {
                self.assemble(env);
            } else {
                transport.segment_len = transport.transmit.control.len();
                transport
                    .flat
                    .extend_from_slice(&transport.transmit.control);
            }
            self.transport.seal_flat();
        }
        moved
    }

    fn note_blocked(&mut self, poller: &Poller, blocked: bool) {
        if self.transport.blocked != blocked {
            self.transport.blocked = blocked;
            let interest = if blocked {
                Interest::BOTH
            } else {
                Interest::READ
            };
            // It fails only for a socket that is not watched.
            let _ = poller.modify(&self.transport.socket, self.transport.token, interest);
        }
    }

    /// Tells the transport what there is to send.
    fn announce(&mut self, env: &mut Env<'_>) {
        let mut header = [0; HEADER_MAX];
        let now = env.now;
        while self.announced_bytes - self.transport.udt.sent_position() < AHEAD {
            let before = self.announced.bytes_len();
            let len = if self.core.poll_control(self.announced.room()).is_some() {
                let len = self.announced.bytes_len() - before;
                self.announced.add_control(len);
                len
            } else {
                let mut memory = env.buffers.memory(env.registry);
                let made = self.core.poll_transmit(now, &mut memory, &mut header);
                let Some(datagram) = made else { break };
                let header = &header[..datagram.segment.header_len];
                self.announced.add_segment(datagram, header);
                datagram.wire_len()
            };
            let announced = self
                .transport
                .udt
                .send_message(now, len as u64, false, None)
                .is_ok();
            if !announced {
                self.core.handle_lost(now);
                return;
            }
            self.announced_bytes += len as u64;
        }
        if std::mem::take(&mut self.fresh_end) {
            self.transport.udt.close(now);
        }
    }

    /// Makes the packets that the transport wants to leave now.
    fn assemble(&mut self, env: &mut Env<'_>) {
        let near = self.transport.initial + self.transport.udt.acknowledged_packets();
        self.transport.segment_len = self.transport.transmit.segment_len();
        for at in 0..self.transport.transmit.headers.len() {
            let header = self.transport.transmit.headers[at];
            let index = sequence(&header)
                .extend(near)
                .saturating_sub(self.transport.initial);
            let start = self.transport.flat.len();
            self.transport.flat.extend_from_slice(&header);
            if !self.append(env, index) {
                self.transport.flat.truncate(start);
            }
        }
        self.announced.compact();
    }

    /// Appends message `index`; false where it is not needed any more.
    fn append(&mut self, env: &mut Env<'_>, index: u64) -> bool {
        let start = self.transport.flat.len();
        // What was posted ends with the connection: only the core knows what of it is still sent.
        let ended = matches!(self.core.state(), State::Terminating | State::Closed);
        let segment = match self.announced.take(index) {
            Some((bytes, segment)) if !ended => {
                self.transport.flat.extend_from_slice(bytes);
                segment
            }
            _ => match self.make_again(env, index) {
                Some(segment) => segment,
                None => return false,
            },
        };
        let Some(datagram) = segment else {
            return true;
        };
        let named = datagram.segment;
        let source = env
            .buffers
            .source(env.registry, named.payload, named.payload_len);
        let Some(source) = source else {
            self.core.handle_payload_gone(env.now, named.payload);
            return false;
        };
        let flat = &mut self.transport.flat;
        if !datagram.crc {
            source.visit(|bytes| flat.extend_from_slice(bytes));
            return true;
        }
        let mut digest = Crc32c::new();
        digest.update(&flat[start..]);
        source.visit(|bytes| {
            digest.update(bytes);
            flat.extend_from_slice(bytes);
        });
        flat.extend_from_slice(&datagram.trailer(digest));
        true
    }

    /// Appends a control message whole, or the header of the segment that is returned.
    fn make_again(&mut self, env: &mut Env<'_>, index: u64) -> Option<Option<Datagram>> {
        let mut header = [0; HEADER_MAX];
        let memory = env.buffers.memory(env.registry);
        let flat = &mut self.transport.flat;
        match self.core.repeat(&memory, index, &mut header, flat)? {
            Repeat::Control => Some(None),
            Repeat::Datagram(datagram) => {
                flat.extend_from_slice(&header[..datagram.segment.header_len]);
                Some(Some(datagram))
            }
        }
    }
}

impl UdtTransport {
    /// Sends the control packets of a closed transport, unless it has payload to retransmit.
    fn send_control_if_closed(&mut self, now: Time) {
        if self.udt.is_closed() {
            self.send_control(now);
        }
    }
}
