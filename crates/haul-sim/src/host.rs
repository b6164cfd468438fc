//! One end of a connection, with a memory to send from and one to receive into.

use haul_cc::Time;
use haul_udt::wire::{HEADER_LEN, Sealed, SocketId, SocketKind, piece_len};
use haul_udt::{Config, Connection, Event, Joiner, Received, Transmit};

use crate::flow::{Flow, MessageOut};
use crate::pattern;
use crate::sealing::{Sealing, open};

/// What a host has received.
#[derive(Debug, Default)]
pub struct Rx {
    /// Payload bytes placed, each counted once.
    pub placed_bytes: u64,
    /// Most payload bytes that waited for the sink at a time.
    pub held_most: u64,
    /// Payload bytes delivered in order.
    pub delivered_bytes: u64,
    /// Messages delivered, with their numbers and lengths.
    pub messages: Vec<(u32, u64)>,
    /// Payload that differed from what was sent.
    pub wrong: Option<String>,
}

/// A host with one connection.
#[derive(Debug)]
pub struct Host {
    /// The connection.
    pub connection: Connection,
    /// What it has received.
    pub rx: Rx,
    /// Check every payload byte, and carry it through the wire; otherwise only lengths travel.
    bytes_matter: bool,
    seed: u64,
    peer_seed: u64,
    kind: SocketKind,
    memory: Vec<u8>,
    /// A packet of which only the beginning travelled.
    padded: Vec<u8>,
    transmit: Transmit,
    joiner: Joiner,
    sealing: Option<Sealing>,
    connected: bool,
    closed: Option<Option<haul_udt::Error>>,
    expected: Expected,
    rest_ns: u64,
    reads_at: Option<Time>,
    sink: Vec<(u64, u64)>,
    /// Bytes that the sink has taken, and until when.
    sunk: (u64, Time),
}

/// Bytes that wait for a sink at most.
pub const ROOM_BYTES: u64 = 64 << 20;
/// How often a sink takes something.
const SINK_NS: u64 = 1_000_000;

/// What the peer sends.
#[derive(Debug)]
struct Expected {
    stream_bytes: u64,
    /// Each message with its position in the peer's send space, and whether it has come.
    messages: Vec<(MessageOut, u64, bool)>,
    /// The latest ordered message that has come.
    ordered: usize,
}

impl Expected {
    fn new(stream_bytes: u64, messages: &[MessageOut]) -> Self {
        let mut position = 0;
        let placed = messages.iter().map(|message| {
            position += message.len;
            (*message, position - message.len, false)
        });
        Self {
            stream_bytes,
            messages: placed.collect(),
            ordered: 0,
        }
    }

    /// Takes note of message `number`; answers its position, or what is wrong.
    fn take(&mut self, number: u32, len: u64) -> Result<u64, String> {
        let index = number as usize;
        let (message, position, came) = index
            .checked_sub(1)
            .and_then(|at| self.messages.get_mut(at))
            .ok_or_else(|| format!("message {number} was never sent"))?;
        if *came {
            return Err(format!("message {number} came twice"));
        }
        if message.len != len {
            return Err(format!(
                "message {number} came with {len} bytes, not {}",
                message.len
            ));
        }
        if index < self.ordered {
            return Err(format!(
                "message {number} came after {}, which is ordered",
                self.ordered
            ));
        }
        if message.in_order {
            self.ordered = index;
        }
        *came = true;
        Ok(*position)
    }

    fn has_all_messages(&self) -> bool {
        self.messages
            .iter()
            .all(|(message, _, came)| *came || message.ttl_ns.is_some())
    }
}

impl Host {
    /// The host on `side` of `flow`, which is the world's `index`th.
    pub(crate) fn new(
        connection: Connection,
        config: &Config,
        flow: &Flow,
        index: usize,
        side: usize,
    ) -> Self {
        let slots = config.receive_slots() as usize * config.mtu as usize;
        let bytes_matter = flow.bytes_matter;
        let memory = if bytes_matter {
            vec![0; slots]
        } else {
            Vec::new()
        };
        let (seed, peer_seed) = (seed(index, side), seed(index, 1 - side));
        Self {
            connection,
            rx: Rx::default(),
            bytes_matter,
            seed,
            peer_seed,
            kind: config.kind,
            memory,
            padded: Vec::new(),
            transmit: Transmit::default(),
            joiner: Joiner::default(),
            sealing: flow
                .seal
                .clone()
                .map(|[client, server]| Sealing::new(if side == 0 { client } else { server })),
            connected: false,
            closed: None,
            expected: Expected::new(flow.stream_bytes_of(1 - side), &flow.messages[1 - side]),
            rest_ns: flow.rest_ns[side],
            reads_at: None,
            sink: if side == 1 {
                flow.sink.clone()
            } else {
                Vec::new()
            },
            sunk: (0, Time::ZERO),
        }
    }

    /// Everything that the peer sends has been delivered, but for messages that it may have given
    /// up.
    pub(crate) fn has_all(&self) -> bool {
        let stream = self.kind == SocketKind::Datagram
            || self.rx.delivered_bytes >= self.expected.stream_bytes;
        stream && self.expected.has_all_messages() && self.reads_at.is_none() && self.held() == 0
    }

    /// When the application wakes up to read.
    pub(crate) fn reads_at(&self, now: Time) -> Option<Time> {
        let sinks = (self.held() > 0).then(|| self.sunk.1.after(SINK_NS));
        let at = self.reads_at.into_iter().chain(sinks).min();
        at.map(|at| at.max(now))
    }

    /// The handshake is done.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.connected
    }

    /// How the connection ended, if it has.
    #[must_use]
    pub fn closed(&self) -> Option<Option<haul_udt::Error>> {
        self.closed
    }

    /// Bytes that wait for the sink.
    fn held(&self) -> u64 {
        if self.sink.is_empty() {
            return 0;
        }
        self.rx.placed_bytes - self.sunk.0
    }

    /// The sink takes what its rate allows, and the connection offers the room that this makes.
    fn sink(&mut self, now: Time) {
        let at_ns = now.as_ns();
        let Some(&(_, rate_bps)) = self.sink.iter().rev().find(|(from, _)| *from <= at_ns) else {
            return;
        };
        let passed = now.since(self.sunk.1);
        if passed >= SINK_NS {
            let bytes = rate_bps / 8 * passed.min(2 * SINK_NS) / 1_000_000_000;
            self.sunk = (self.sunk.0 + bytes.min(self.held()), now);
        }
        self.rx.held_most = self.rx.held_most.max(self.held());
        self.connection.limit_room(now, self.held(), ROOM_BYTES);
    }

    /// Datagrams that it has sealed, and how often its key has changed; none if it does not seal.
    #[must_use]
    pub fn sealed(&self) -> Option<(usize, u64)> {
        let sealing = self.sealing.as_ref()?;
        Some((sealing.sealed(), sealing.generations()))
    }

    /// Takes a datagram that came at `arrived` and has passed the checksum. `len` is its true
    /// length where bytes do not travel. Answers whether it opened.
    pub(crate) fn handle(&mut self, now: Time, arrived: Time, datagram: &[u8], len: usize) -> bool {
        if self.sealing.is_none() {
            self.handle_packet(now, arrived, datagram, len);
            return true;
        }
        let packet = open(&mut self.sealing, &mut self.connection, now, datagram);
        if let Some(packet) = &packet {
            self.handle_packet(now, arrived, packet, packet.len());
        }
        packet.is_some()
    }

    fn handle_packet(&mut self, now: Time, arrived: Time, datagram: &[u8], len: usize) {
        if let Some(piece) = self.connection.piece(datagram) {
            let mut joiner = std::mem::take(&mut self.joiner);
            if let Some(packet) = joiner.join(&piece) {
                self.handle_packet(now, arrived, packet, packet.len());
            }
            self.joiner = joiner;
            return;
        }
        let mut padded = std::mem::take(&mut self.padded);
        let view = if datagram.len() == len {
            datagram
        } else {
            // Nobody looks at the rest.
            padded.resize(len, 0);
            padded[..datagram.len()].copy_from_slice(datagram);
            &padded
        };
        if let Ok(Received::Data(placement)) = self.connection.handle_packet(now, arrived, view) {
            let payload = &view[HEADER_LEN..];
            self.rx.placed_bytes += u64::from(placement.len);
            if payload.len() != placement.len as usize {
                self.rx.wrong = Some(format!(
                    "{} bytes placed as {}",
                    payload.len(),
                    placement.len
                ));
            }
            let placed = self
                .connection
                .params()
                .is_some_and(|params| params.placement);
            if placed && self.kind == SocketKind::Stream {
                self.check(payload, placement.position);
            } else if self.bytes_matter
                && let Ok(at) = usize::try_from(placement.position)
            {
                self.memory[at..at + payload.len()].copy_from_slice(payload);
            }
        }
        self.padded = padded;
        self.deliver(now);
        while let Some(event) = self.connection.poll_event() {
            self.note(event);
        }
    }

    /// Lets time pass.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        self.connection.handle_timeout(now);
        self.deliver(now);
        while let Some(event) = self.connection.poll_event() {
            self.note(event);
        }
    }

    /// Hands each packet that the connection wants to send now to `send`: bytes and true length.
    pub(crate) fn drain(&mut self, now: Time, mut send: impl FnMut(Vec<u8>, usize)) {
        while self.connection.poll_transmit(now, &mut self.transmit) {
            if !self.transmit.control.is_empty() {
                let packet = self.transmit.control.clone();
                let len = packet.len();
                self.send(packet, len, self.transmit.sealed, &mut send);
            }
            let packets = self.transmit.headers.iter().zip(&self.transmit.payload);
            let packets: Vec<_> = packets.map(|(header, range)| (*header, *range)).collect();
            let (segment_len, max) = (self.transmit.segment_len(), self.connection.datagram_max());
            for (at, (header, range)) in packets.into_iter().enumerate() {
                let sealed = self.transmit.sealed.map(|first| first.plus(at));
                let mut packet = header.to_vec();
                if self.bytes_matter {
                    pattern::extend(&mut packet, self.seed, range.position, u64::from(range.len));
                }
                let len = HEADER_LEN + range.len as usize;
                // Of a batch all are cut or none: pieces have later numbers.
                if segment_len <= max {
                    self.send(packet, len, sealed, &mut send);
                    continue;
                }
                packet.resize(len, 0);
                let (piece_len, mut pieces) = (piece_len(segment_len, max), Vec::new());
                let (_, first) = self.connection.cut(&packet, piece_len, &mut pieces);
                for (at, piece) in pieces.chunks(piece_len).enumerate() {
                    let sealed = first.map(|first| first.plus(at));
                    self.send(piece.to_vec(), piece_len, sealed, &mut send);
                }
            }
        }
        while let Some(event) = self.connection.poll_event() {
            self.note(event);
        }
    }

    /// Hands a packet to `send`, sealed where it has to be; only whole packets can be.
    fn send(
        &mut self,
        mut packet: Vec<u8>,
        len: usize,
        sealed: Option<Sealed>,
        send: &mut impl FnMut(Vec<u8>, usize),
    ) {
        let (Some(sealing), Some(sealed)) = (&mut self.sealing, sealed) else {
            send(packet, len);
            return;
        };
        packet.resize(len, 0);
        let packet = sealing.seal(&self.connection, sealed, &packet);
        let len = packet.len();
        send(packet, len);
    }

    fn note(&mut self, event: Event) {
        match event {
            Event::Connected(_) => self.connected = true,
            Event::PeerClosed => {}
            Event::Closed(reason) => self.closed = Some(reason),
        }
    }

    /// The application reads, if it does not rest.
    fn deliver(&mut self, now: Time) {
        self.sink(now);
        if self.reads_at.is_some_and(|at| now < at) {
            return;
        }
        let before = self.rx.delivered_bytes;
        self.read(now);
        let read = self.rx.delivered_bytes > before;
        self.reads_at = (read && self.rest_ns > 0).then(|| now.after(self.rest_ns));
    }

    fn read(&mut self, now: Time) {
        let placed = self
            .connection
            .params()
            .is_some_and(|params| params.placement);
        if placed && self.kind == SocketKind::Stream {
            self.rx.delivered_bytes = self.connection.delivered_offset();
            self.connection.consume(now, self.rx.delivered_bytes);
            return;
        }
        if self.kind == SocketKind::Stream {
            while let Some(piece) = self.connection.front_piece() {
                self.check_memory(piece.position, piece.len, self.rx.delivered_bytes);
                self.rx.delivered_bytes += u64::from(piece.len);
                self.connection.pop_piece();
            }
            return;
        }
        while let Some(message) = self.connection.front_message() {
            let mut pieces = Vec::new();
            self.connection
                .take_message(&message, |piece| pieces.push(piece));
            let total: u64 = pieces.iter().map(|piece| u64::from(piece.len)).sum();
            match self.expected.take(message.number, total) {
                Err(wrong) => self.rx.wrong = Some(wrong),
                Ok(mut position) => {
                    for piece in pieces {
                        self.check_memory(piece.position, piece.len, position);
                        position += u64::from(piece.len);
                    }
                }
            }
            self.rx.messages.push((message.number, message.len));
            self.rx.delivered_bytes += message.len;
        }
    }

    fn check(&mut self, payload: &[u8], position: u64) {
        if self.bytes_matter && !pattern::matches(payload, self.peer_seed, position) {
            self.rx.wrong = Some(format!("stream differs at offset {position}"));
        }
    }

    fn check_memory(&mut self, position: u64, len: u32, stream_offset: u64) {
        if !self.bytes_matter {
            return;
        }
        let Ok(at) = usize::try_from(position) else {
            return;
        };
        let piece = &self.memory[at..at + len as usize];
        if !pattern::matches(piece, self.peer_seed, stream_offset) {
            self.rx.wrong = Some(format!("what was sent from {stream_offset} on differs"));
        }
    }
}

fn seed(flow: usize, side: usize) -> u64 {
    flow as u64 * 2 + side as u64 + 1
}

/// The id of the host on side `side`.
pub(crate) fn socket_id(side: usize) -> SocketId {
    SocketId(0x1000 + u32::from(side == 1))
}
