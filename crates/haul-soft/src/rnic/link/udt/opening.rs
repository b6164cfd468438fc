//! The opening of a UDT connection: its own handshake, and where it is protected the one that makes
//! its keys.

use std::io;

use haul_io::udp::RecvBatch;
use haul_iwarp::Time;
use haul_udt::Event;
use haul_verbs::{Blame, Failure};

use super::UdtTransport;
use crate::udt::handshake::{Opening, Shown};
use crate::udt::sealing::open;

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
        let taken = self.opening().handle_securing(now, datagram);
        taken.map_err(|error| Failure::new(Blame::Peer, error.to_string()))
    }

    /// Sends what both connections want to send.
    pub(super) fn send_opening(&mut self, now: Time) {
        self.opening().send_opening(now);
    }

    /// Sends control packets only: there is no payload yet, or no more.
    pub(super) fn send_control(&mut self, now: Time) {
        self.opening().send_control(now);
    }

    fn opening(&mut self) -> Opening<'_> {
        Opening {
            socket: &self.socket,
            peer: self.peer,
            shown: self.tap.as_ref().map(|tap| tap as &dyn Shown),
            udt: &mut self.udt,
            initial: &mut self.initial,
            transmit: &mut self.transmit,
            handshake: &mut self.handshake,
            sealing: &mut self.sealing,
            config: &self.config,
        }
    }
}

fn broken(reason: String) -> Failure {
    Failure::new(Blame::Network, reason)
}
