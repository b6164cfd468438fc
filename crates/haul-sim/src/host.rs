//! One end of a connection, with a memory to send from and one to receive into.

use haul_cc::Time;
use haul_udt::wire::{HEADER_LEN, SocketId, SocketKind};
use haul_udt::{Config, Connection, Event, Received, Transmit};

use crate::pattern;

/// What a host has received.
#[derive(Debug, Default)]
pub struct Rx {
    /// Payload octets placed, each counted once.
    pub placed_bytes: u64,
    /// Payload octets delivered in order.
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
    transmit: Transmit,
    connected: bool,
    closed: Option<Option<haul_udt::Error>>,
}

impl Host {
    /// A host whose payload is the pattern of `seed` and whose peer's is that of `peer_seed`.
    #[must_use]
    pub fn new(
        connection: Connection,
        config: &Config,
        seed: u64,
        peer_seed: u64,
        bytes_matter: bool,
    ) -> Self {
        let slots = config.receive_slots() as usize * config.mtu as usize;
        let memory = if bytes_matter {
            vec![0; slots]
        } else {
            Vec::new()
        };
        Self {
            connection,
            rx: Rx::default(),
            bytes_matter,
            seed,
            peer_seed,
            kind: config.kind,
            memory,
            transmit: Transmit::default(),
            connected: false,
            closed: None,
        }
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

    /// Takes a datagram that has passed the checksum. `len` is its true length where bytes do not travel.
    pub(crate) fn handle(&mut self, now: Time, datagram: &[u8], len: usize) {
        let padded;
        let view = if datagram.len() == len {
            datagram
        } else {
            padded = [datagram, &vec![0; len - datagram.len()]].concat();
            &padded
        };
        if let Ok(Received::Data(placement)) = self.connection.handle_datagram(now, now, view) {
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
        self.deliver(now);
        while let Some(event) = self.connection.poll_event() {
            self.note(event);
        }
    }

    /// Lets time pass.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        self.connection.handle_timeout(now);
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
                send(packet, len);
            }
            for (header, range) in self.transmit.headers.iter().zip(&self.transmit.payload) {
                let mut packet = header.to_vec();
                if self.bytes_matter {
                    pattern::extend(&mut packet, self.seed, range.position, u64::from(range.len));
                }
                send(packet, HEADER_LEN + range.len as usize);
            }
        }
        while let Some(event) = self.connection.poll_event() {
            self.note(event);
        }
    }

    fn note(&mut self, event: Event) {
        match event {
            Event::Connected(_) => self.connected = true,
            Event::PeerClosed => {}
            Event::Closed(reason) => self.closed = Some(reason),
        }
    }

    fn deliver(&mut self, now: Time) {
        let Some(params) = self.connection.params() else {
            return;
        };
        if params.placement && self.kind == SocketKind::Stream {
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
            if total != message.len {
                self.rx.wrong = Some(format!("message {} has {total} bytes", message.number));
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
            self.rx.wrong = Some(format!("stream differs at offset {stream_offset}"));
        }
    }
}

/// The id of the host on side `side`.
pub(crate) fn socket_id(side: usize) -> SocketId {
    SocketId(0x1000 + u32::from(side == 1))
}
