//! The opening of a UDT connection: its own handshake, and where it is protected the one that makes
//! its keys.

use std::io::{self, IoSlice};
use std::net::SocketAddr;

use haul_io::udp::{RecvBatch, UdpSocket};
use haul_iwarp::Time;
use haul_seal::Side;
use haul_udt::wire::SEAL_LEN;
use haul_udt::{Connection, Event, Transmit};
use haul_verbs::{Blame, Failure};

use super::{Tapped, UdtTransport, sequence};
use crate::rnic::link::udt_handshake::UdtHandshake;
use crate::udt::sealing::{Sealing, open};

impl UdtTransport {
    /// Drives the opening of the end that connects; whether it is open and the size of segments
    /// known, or why it will not be.
    pub(in crate::rnic) fn open(
        &mut self,
        now: Time,
        batch: &mut RecvBatch,
    ) -> Result<bool, Failure> {
        while !self.is_ready() {
            match self.socket.recv_batch(batch) {
                Ok(count) if count > 0 => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    return Err(broken(error.to_string()));
                }
                _ => break,
            }
            let now = Time::from_ns(batch.now_ns());
            let mut at = 0;
            while let Some(message) = batch.message(at) {
                if let Some(tap) = &self.tap {
                    tap.received(&message);
                }
                for datagram in batch.datagrams_mut(at) {
                    if self.handshake.is_some() {
                        self.handle_securing(now, datagram)?;
                    } else if let Some(packet) =
                        open(&mut self.sealing, &mut self.udt, now, datagram)
                    {
                        // What is not of this opening is ignored.
                        let _ = self.udt.handle_packet(now, now, packet);
                    }
                }
                at += 1;
            }
        }
        self.send_opening(now);
        while let Some(event) = self.udt.poll_event() {
            if let Event::Closed(reason) = event {
                return Err(self.closed_early(reason));
            }
        }
        Ok(self.is_ready())
    }

    fn is_ready(&self) -> bool {
        self.handshake.is_none() && self.udt.is_path_settled()
    }

    /// Why there is no connection.
    fn closed_early(&self, reason: Option<haul_udt::Error>) -> Failure {
        let reason = reason.map(|error| error.to_string());
        broken(reason.unwrap_or_else(|| {
            let ended = match &self.handshake {
                Some(_) => "the peer ended the handshake; protect both ends alike",
                None => "the peer closed",
            };
            ended.into()
        }))
    }

    // ---- while a protected connection gets its keys

    /// Whether packets are those of the handshake, and none are iWARP's.
    pub(super) fn is_securing(&self) -> bool {
        self.handshake.is_some()
    }

    /// Takes a datagram of either connection.
    pub(super) fn handle_securing(
        &mut self,
        now: Time,
        datagram: &mut [u8],
    ) -> Result<(), Failure> {
        let Some(mut handshake) = self.handshake.take() else {
            return Ok(());
        };
        let taken = if handshake.is_of_second(datagram) {
            if let Some(packet) = open(&mut self.sealing, &mut self.udt, now, datagram) {
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
            let taken = handshake.handle_first(now, &mut self.udt, self.initial, datagram);
            if taken.is_ok() {
                self.begin_second(now, &mut handshake);
            }
            taken
        };
        if let Err(error) = taken {
            handshake.refuse(now, &mut self.udt, &error);
            self.handshake = Some(handshake);
            // Once the peer has it.
            self.udt.close(now);
            self.send_opening(now);
            return Err(Failure::new(Blame::Peer, error.to_string()));
        }
        let is_open = handshake.is_sealing() && self.udt.params().is_some();
        self.handshake = (!is_open).then_some(handshake);
        Ok(())
    }

    /// Begins the second connection if the handshake is complete.
    fn begin_second(&mut self, now: Time, handshake: &mut UdtHandshake) {
        handshake.queue(now, &mut self.udt);
        let second = handshake.second(now, self.peer.ip(), &self.config);
        let Some((initial, second, seal)) = second else {
            return;
        };
        let mut first = std::mem::replace(&mut self.udt, second);
        let way = (&self.socket, self.peer, self.tap.as_ref());
        send_first(
            way,
            now,
            (&mut first, self.initial),
            &mut self.transmit,
            handshake,
        );
        handshake.first = (handshake.side() == Side::Initiator).then(|| Box::new(first));
        handshake.first_initial = self.initial;
        self.initial = initial.get().into();
        self.sealing = Some(Sealing::new(Some(seal)));
    }

    /// Sends what both connections want to send.
    pub(super) fn send_opening(&mut self, now: Time) {
        self.udt.handle_timeout(now);
        let Some(mut handshake) = self.handshake.take() else {
            self.send_control(now);
            return;
        };
        if let Some(mut first) = handshake.first.take() {
            first.handle_timeout(now);
            let way = (&self.socket, self.peer, self.tap.as_ref());
            let initial = handshake.first_initial;
            send_first(
                way,
                now,
                (&mut first, initial),
                &mut self.transmit,
                &handshake,
            );
            handshake.first = Some(first);
        }
        if handshake.is_sealing() {
            self.send_control(now);
        } else {
            handshake.queue(now, &mut self.udt);
            let way = (&self.socket, self.peer, self.tap.as_ref());
            let first = (&mut self.udt, self.initial);
            send_first(way, now, first, &mut self.transmit, &handshake);
        }
        self.handshake = Some(handshake);
    }

    /// Sends control packets only: there is no payload yet, or no more.
    pub(super) fn send_control(&mut self, now: Time) {
        while self.udt.poll_transmit(now, &mut self.transmit) {
            let len = self.transmit.control.len();
            let (bytes, len) = match (&mut self.sealing, self.transmit.sealed) {
                (Some(sealing), Some(first)) => {
                    sealing.clear();
                    let control = &self.transmit.control;
                    if sealing
                        .seal_packets(&self.udt, first, control, len)
                        .is_err()
                    {
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
            if let (Ok(_), Some(tap)) = (sent, &self.tap) {
                tap.sent(bytes, len);
            }
        }
    }
}

fn broken(reason: String) -> Failure {
    Failure::new(Blame::Network, reason)
}

/// Sends what the first connection of a protected one wants to send: its packets are few and short.
fn send_first(
    (socket, peer, tap): (&UdpSocket, SocketAddr, Option<&Tapped>),
    now: Time,
    (first, initial): (&mut Connection, u64),
    transmit: &mut Transmit,
    handshake: &UdtHandshake,
) {
    let send = |packet: &[u8]| {
        // A lost packet is like any other.
        let sent = socket.send_segments(peer, packet.len(), &[IoSlice::new(packet)]);
        if let (Ok(_), Some(tap)) = (sent, tap) {
            tap.sent(packet, packet.len());
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
