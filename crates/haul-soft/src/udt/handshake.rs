//! The handshake of a protected connection over UDT (docs/protocol/sealed.md).
//!
//! A first connection, which is plain, carries the bytes of the handshake as messages. Then a
//! second one begins between the same sockets: both ends know its socket ids from the handshake,
//! and all of its datagrams but its own handshake are sealed. Only packets of the second reach
//! iWARP.

use std::collections::BTreeMap;
use std::net::IpAddr;

use haul_iwarp::Time;
use haul_seal::handshake::{Handshake, HandshakeError};
use haul_seal::{Seal, Side};
use haul_udt::wire::{Control, Packet, SocketId};
use haul_udt::{Config, Connection, Identity, Received, Seq};

use super::plain_peer::hello_refusal;

/// Bytes of the handshake in a message: every path carries them in one packet.
const MESSAGE_BYTES: usize = 500;
/// Messages that arrive ahead of one that was lost, at most.
const EARLY_MAX: u64 = 256;

/// See the module.
#[derive(Debug)]
pub(super) struct UdtHandshake {
    handshake: Box<dyn Handshake>,
    side: Side,
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
    pub(super) first: Option<Box<Connection>>,
    /// Number of its first packet.
    pub(super) first_initial: u64,
}

impl UdtHandshake {
    pub(super) fn new(handshake: Box<dyn Handshake>, side: Side) -> Self {
        Self {
            handshake,
            side,
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

    /// Whether the second connection has begun.
    pub(super) fn is_sealing(&self) -> bool {
        self.ids.is_some()
    }

    pub(super) fn side(&self) -> Side {
        self.side
    }

    /// Message `index` of this end.
    pub(super) fn message(&self, index: u64) -> Option<&[u8]> {
        let index = usize::try_from(index).ok()?;
        self.sent.get(index).map(|message| &**message)
    }

    /// Hands what the handshake wants to send to the first connection, if that is open.
    pub(super) fn queue(&mut self, now: Time, first: &mut Connection) {
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
    pub(super) fn refuse(&mut self, now: Time, first: &mut Connection, error: &HandshakeError) {
        self.has_failed = true;
        if *error == HandshakeError::Unprotected && self.side == Side::Responder {
            let refusal = hello_refusal(&self.rest);
            self.queue_bytes(now, first, &refusal);
        } else {
            self.queue(now, first);
        }
    }

    /// Takes a packet of the first connection.
    pub(super) fn handle_first(
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
    pub(super) fn second(
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
    pub(super) fn is_of_second(&self, datagram: &[u8]) -> bool {
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
