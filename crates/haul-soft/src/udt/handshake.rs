//! The handshake of a protected connection over UDT (docs/protocol/sealed.md).
//!
//! A first connection, which is plain, carries the bytes of the handshake as messages. Then a
//! second one begins between the same sockets: both ends know its socket ids from the handshake,
//! and all of its datagrams but its own handshake are sealed. Only packets of the second reach
//! whoever uses the connection.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};

use haul_cc::Time;
use haul_io::udp::UdpSocket;
use haul_seal::handshake::{Handshake, HandshakeError};
use haul_seal::{Seal, Side};
use haul_udt::wire::{Control, Packet, SEAL_LEN, SocketId};
use haul_udt::{Config, Connection, Identity, Received, Seq, Transmit};

use super::sealing::{Sealing, open};

/// Bytes of the handshake in a message: every path carries them in one packet.
const MESSAGE_BYTES: usize = 500;
/// Messages that arrive ahead of one that was lost, at most.
const EARLY_MAX: u64 = 256;

/// See the module.
#[derive(Debug)]
pub(crate) struct UdtHandshake {
    handshake: Box<dyn Handshake>,
    side: Side,
    /// What answers a first message of a peer that begins without a handshake.
    refusal: fn(&[u8]) -> Vec<u8>,
    /// Messages of this end, for as long as the first connection may repeat them.
    sent: Vec<Box<[u8]>>,
    /// Messages of the peer that have not had their turn, and the number of the next.
    early: BTreeMap<u64, Box<[u8]>>,
    next: u64,
    /// Bytes that are not whole.
    rest: Vec<u8>,
    has_failed: bool,
    /// While the second connection opens: socket ids of this end and of the peer.
    ids: Option<[SocketId; 2]>,
    /// At the end that connects, while the second connection opens: the first one, which repeats
    /// the last message where it was lost, and may bring a refusal.
    first: Option<Box<Connection>>,
    /// Number of its first packet.
    first_initial: u64,
}

impl UdtHandshake {
    pub(crate) fn new(
        handshake: Box<dyn Handshake>,
        side: Side,
        refusal: fn(&[u8]) -> Vec<u8>,
    ) -> Self {
        Self {
            handshake,
            side,
            refusal,
            sent: Vec::new(),
            early: BTreeMap::new(),
            next: 0,
            rest: Vec::new(),
            has_failed: false,
            ids: None,
            first: None,
            first_initial: 0,
        }
    }

    /// When the first connection is to be driven though nothing arrives, while the second opens.
    pub(crate) fn poll_timeout(&self, now: Time) -> Option<Time> {
        self.first.as_ref()?.poll_timeout(now)
    }

    /// Whether the second connection has begun.
    fn is_sealing(&self) -> bool {
        self.ids.is_some()
    }

    /// Message `index` of this end.
    fn message(&self, index: u64) -> Option<&[u8]> {
        let index = usize::try_from(index).ok()?;
        self.sent.get(index).map(|message| &**message)
    }

    /// Hands what the handshake wants to send to the first connection, if that is open.
    fn queue(&mut self, now: Time, first: &mut Connection) {
        if first.params().is_none() {
            return;
        }
        let mut bytes = Vec::new();
        self.handshake.write(&mut bytes);
        self.queue_bytes(now, first, &bytes);
    }

    fn queue_bytes(&mut self, now: Time, first: &mut Connection, bytes: &[u8]) {
        for message in bytes.chunks(MESSAGE_BYTES) {
            // A connection that takes no more is about to report its end.
            if first
                .send_message(now, message.len() as u64, false, None)
                .is_err()
            {
                return;
            }
            self.sent.push(message.into());
        }
    }

    /// The handshake failed: queues what tells the peer why, and reads nothing more.
    fn refuse(&mut self, now: Time, first: &mut Connection, error: &HandshakeError) {
        self.has_failed = true;
        if *error == HandshakeError::Unprotected && self.side == Side::Responder {
            let refusal = (self.refusal)(&self.rest);
            self.queue_bytes(now, first, &refusal);
        } else {
            self.queue(now, first);
        }
    }

    /// Takes a packet of the first connection.
    fn handle_first(
        &mut self,
        now: Time,
        first: &mut Connection,
        initial: u64,
        datagram: &[u8],
    ) -> Result<(), HandshakeError> {
        let received = first.handle_datagram(now, now, datagram);
        if let (Ok(Received::Data(_)), Ok(Packet::Data(data))) = (received, Packet::parse(datagram))
        {
            let index = data.seq.extend(initial + self.next).checked_sub(initial);
            let payload = &datagram[haul_udt::wire::HEADER_LEN..];
            if let Some(index) =
                index.filter(|index| (self.next..self.next + EARLY_MAX).contains(index))
            {
                self.early.insert(index, payload.into());
            }
        }
        while let Some(message) = first.front_message() {
            first.take_message(&message, |_| {});
        }
        self.take_early()
    }

    fn take_early(&mut self) -> Result<(), HandshakeError> {
        if self.has_failed {
            self.early.clear();
        }
        while let Some(message) = self.early.remove(&self.next) {
            self.next += 1;
            self.rest.extend_from_slice(&message);
            if self.is_sealing() {
                if let Some(refusal) = self.handshake.refusal(&self.rest) {
                    return Err(refusal);
                }
                self.rest.clear();
                continue;
            }
            let taken = self.handshake.read(&self.rest)?;
            self.rest.drain(..taken);
        }
        Ok(())
    }

    /// The second connection, once the handshake is complete: its number of the first packet, the
    /// connection, and its keys.
    fn second(
        &mut self,
        now: Time,
        peer: IpAddr,
        config: &Config,
    ) -> Option<(Seq, Connection, Seal)> {
        if self.is_sealing() {
            return None;
        }
        let seal = self.handshake.seal()?;
        let mut words = [0; 12];
        seal.secret.expand("haul sockets", &[], &mut words);
        let word = |at: usize| {
            let word = words[at..].first_chunk::<4>().copied().unwrap_or_default();
            u32::from_be_bytes(word)
        };
        // They differ, and neither is zero.
        let (initiator, responder) = (word(0) >> 2 | 1, word(4) >> 2 & !1 | 2);
        let (initiator, responder) = (SocketId(initiator), SocketId(responder));
        let (own, peers) = match self.side {
            Side::Initiator => (initiator, responder),
            Side::Responder => (responder, initiator),
        };
        self.ids = Some([own, peers]);
        let initial = Seq::new(word(8));
        let identity = Identity {
            socket: own,
            initial,
        };
        let mut config = config.clone();
        config.seal = true;
        let seed = u64::from(own.0) << 32 | u64::from(initial.get());
        let second = Connection::rendezvous(now, config, identity, peer, seed);
        Some((initial, second, seal))
    }

    /// Whether a datagram is of the second connection. Late and foreign handshakes are not.
    fn is_of_second(&self, datagram: &[u8]) -> bool {
        let Some([own, peer]) = self.ids else {
            return false;
        };
        match Packet::parse(datagram) {
            Ok(Packet::Control(Control::Handshake { body, .. })) => body.socket == peer,
            // A sealed packet may look like anything behind its header.
            _ => Packet::destination(datagram) == Some(own),
        }
    }
}

/// The sequence number of a data packet.
pub(crate) fn sequence(header: &[u8]) -> Seq {
    let word = header.first_chunk::<4>().copied().unwrap_or_default();
    Seq::new(u32::from_be_bytes(word))
}

/// Shows what leaves.
pub(crate) trait Shown {
    /// `bytes` are packets of `len` bytes each, but for the last.
    fn sent(&self, bytes: &[u8], len: usize);
}

/// A connection that opens, and what its owner has for that.
pub(crate) struct Opening<'a> {
    pub(crate) socket: &'a UdpSocket,
    pub(crate) peer: SocketAddr,
    pub(crate) shown: Option<&'a dyn Shown>,
    /// The first connection, and from when its keys are made the second.
    pub(crate) udt: &'a mut Connection,
    /// Packet number of its first packet.
    pub(crate) initial: &'a mut u64,
    pub(crate) transmit: &'a mut Transmit,
    /// Until the second connection is open, if it is to be protected.
    pub(crate) handshake: &'a mut Option<Box<UdtHandshake>>,
    pub(crate) sealing: &'a mut Option<Sealing>,
    /// Of the second connection.
    pub(crate) config: &'a Config,
}

impl Opening<'_> {
    /// Takes a datagram of either connection.
    pub(crate) fn handle_securing(
        &mut self,
        now: Time,
        datagram: &mut [u8],
    ) -> Result<(), HandshakeError> {
        let Some(mut handshake) = self.handshake.take() else {
            return Ok(());
        };
        let taken = if handshake.is_of_second(datagram) {
            if let Some(packet) = open(self.sealing, self.udt, now, datagram) {
                // What is not of this opening is ignored.
                let _ = self.udt.handle_packet(now, now, packet);
            }
            Ok(())
        } else if let Some(mut first) = handshake.first.take() {
            let initial = handshake.first_initial;
            let taken = handshake.handle_first(now, &mut first, initial, datagram);
            handshake.first = Some(first);
            taken
        } else if handshake.is_sealing() {
            Ok(())
        } else {
            let taken = handshake.handle_first(now, self.udt, *self.initial, datagram);
            if taken.is_ok() {
                self.begin_second(now, &mut handshake);
            }
            taken
        };
        if let Err(error) = taken {
            handshake.refuse(now, self.udt, &error);
            *self.handshake = Some(handshake);
            // Once the peer has it.
            self.udt.close(now);
            self.send_opening(now);
            return Err(error);
        }
        let is_open = handshake.is_sealing() && self.udt.params().is_some();
        *self.handshake = (!is_open).then_some(handshake);
        Ok(())
    }

    /// Begins the second connection if the handshake is complete.
    fn begin_second(&mut self, now: Time, handshake: &mut UdtHandshake) {
        handshake.queue(now, self.udt);
        let second = handshake.second(now, self.peer.ip(), self.config);
        let Some((initial, second, seal)) = second else {
            return;
        };
        let mut first = std::mem::replace(self.udt, second);
        let way = (self.socket, self.peer, self.shown);
        send_first(
            way,
            now,
            (&mut first, *self.initial),
            self.transmit,
            handshake,
        );
        handshake.first = (handshake.side == Side::Initiator).then(|| Box::new(first));
        handshake.first_initial = *self.initial;
        *self.initial = initial.get().into();
        *self.sealing = Some(Sealing::new(Some(seal)));
    }

    /// Sends what both connections want to send.
    pub(crate) fn send_opening(&mut self, now: Time) {
        self.udt.handle_timeout(now);
        let Some(mut handshake) = self.handshake.take() else {
            self.send_control(now);
            return;
        };
        if let Some(mut first) = handshake.first.take() {
            first.handle_timeout(now);
            let way = (self.socket, self.peer, self.shown);
            let initial = handshake.first_initial;
            send_first(way, now, (&mut first, initial), self.transmit, &handshake);
            handshake.first = Some(first);
        }
        if handshake.is_sealing() {
            self.send_control(now);
        } else {
            handshake.queue(now, self.udt);
            let way = (self.socket, self.peer, self.shown);
            send_first(
                way,
                now,
                (self.udt, *self.initial),
                self.transmit,
                &handshake,
            );
        }
        *self.handshake = Some(handshake);
    }

    /// Sends control packets only: there is no payload yet, or no more.
    pub(crate) fn send_control(&mut self, now: Time) {
        while self.udt.poll_transmit(now, self.transmit) {
            let len = self.transmit.control.len();
            let (bytes, len) = match (&mut *self.sealing, self.transmit.sealed) {
                (Some(sealing), Some(first)) => {
                    sealing.clear();
                    let control = &self.transmit.control;
                    if sealing.seal_packets(self.udt, first, control, len).is_err() {
                        continue;
                    }
                    (sealing.rest(len + SEAL_LEN, 0), len + SEAL_LEN)
                }
                // Of a sealed connection, a handshake.
                _ => (self.transmit.control.as_slice(), len),
            };
            // A lost packet is like any other.
            let sent = self
                .socket
                .send_segments(self.peer, len, &[IoSlice::new(bytes)]);
            if let (Ok(_), Some(shown)) = (sent, self.shown) {
                shown.sent(bytes, len);
            }
        }
    }
}

/// Sends what the first connection of a protected one wants to send: its packets are few and short.
fn send_first(
    (socket, peer, shown): (&UdpSocket, SocketAddr, Option<&dyn Shown>),
    now: Time,
    (first, initial): (&mut Connection, u64),
    transmit: &mut Transmit,
    handshake: &UdtHandshake,
) {
    let send = |packet: &[u8]| {
        // A lost packet is like any other.
        let sent = socket.send_segments(peer, packet.len(), &[IoSlice::new(packet)]);
        if let (Ok(_), Some(shown)) = (sent, shown) {
            shown.sent(packet, packet.len());
        }
    };
    while first.poll_transmit(now, transmit) {
        if !transmit.control.is_empty() {
            send(&transmit.control);
            continue;
        }
        for header in &transmit.headers {
            let number = sequence(header).extend(initial);
            let message = number
                .checked_sub(initial)
                .and_then(|index| handshake.message(index));
            if let Some(message) = message {
                send(&[&header[..], message].concat());
            }
        }
    }
}
