//! The active end of connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use haul_io::poller::Interest;
use haul_io::stream::Stream;
use haul_iwarp::{QpConfig, StreamConfig, StreamConnection};
use haul_seal::Side;
use haul_seal::handshake::{HandshakeError, Transport as HandshakeTransport};
use haul_verbs::{Blame, Error, Failure, QpState, Result, Transport};

use super::{Inner, Subject};
use crate::rnic::events::CmEvents;
use crate::rnic::link::{RnicLink, SealedStream, TcpLink, UdtLink, UdtTransport};
use crate::rnic::pair::{Attempt, ConnectionState, Opening};

impl Inner {
    pub(in crate::rnic) fn connect(
        &mut self,
        number: u32,
        peer: SocketAddr,
        private: &[u8],
        (ird, ord): (u16, u16),
        channel: &Arc<CmEvents>,
    ) -> Result<()> {
        let deadline = self.now.after(self.connect_ns);
        let pair = self.pairs.get_mut(number);
        let pair = pair.ok_or(Error::Invalid("the queue pair is gone"))?;
        let state = pair.shape.view.state();
        if state != QpState::Reset {
            return Err(Error::State(state));
        }
        pair.events = Some(Arc::clone(channel));
        pair.shape.view.set_state(QpState::Rtr);
        let opening = match self.start_connect(number, peer) {
            Ok(opening) => opening,
            Err(error) => {
                self.give_up(number, &error.to_string());
                return Ok(());
            }
        };
        let clocked = matches!(opening, Opening::Udt(_));
        if let Some(pair) = self.pairs.get_mut(number) {
            pair.link = ConnectionState::Connecting(Box::new(Attempt {
                socket: opening,
                private: private.to_vec(),
                qp: pair.qp_config(ird, ord),
                deadline,
            }));
        }
        self.set_timer();
        if clocked {
            self.clocked.push(Subject::Pair(number));
            self.open(number);
            self.note_due();
        }
        Ok(())
    }

    fn start_connect(&mut self, number: u32, peer: SocketAddr) -> io::Result<Opening> {
        let token = Subject::Pair(number).token();
        if self.transport == Transport::IwarpUdt {
            let (tap, protect) = (self.tap.as_ref(), self.protect.as_ref());
            let mut transport = UdtTransport::connect(peer, &self.udt, self.now, tap, protect)?;
            transport.register(&self.poller, token)?;
            return Ok(Opening::Udt(Box::new(transport)));
        }
        let socket = Stream::start_connect(peer)?;
        self.setup_poller.add(&socket, token, Interest::WRITE)?;
        Ok(Opening::Tcp(socket))
    }

    /// Takes a queue pair's attempt to connect, to go on with it.
    fn take_attempt(&mut self, number: u32) -> Option<Attempt> {
        let pair = self.pairs.get_mut(number)?;
        match std::mem::replace(&mut pair.link, ConnectionState::None) {
            ConnectionState::Connecting(attempt) => Some(*attempt),
            other => {
                pair.link = other;
                None
            }
        }
    }

    /// The socket of a queue pair is connected, or has failed to.
    pub(super) fn connected(&mut self, number: u32) {
        let Some(attempt) = self.take_attempt(number) else {
            return;
        };
        attempt.socket.unregister(&self.poller, &self.setup_poller);
        let Opening::Tcp(socket) = attempt.socket else {
            return;
        };
        if let Err(error) = socket.connected() {
            self.give_up(number, &error.to_string());
            return;
        }
        let sealed = match self.protect_stream(&socket, Side::Initiator) {
            Ok(sealed) => sealed,
            Err(error) => {
                self.give_up(number, &error.to_string());
                return;
            }
        };
        let config = self.prepare(&socket, attempt.qp);
        let Ok(core) = StreamConnection::connect(self.now, config, &attempt.private) else {
            self.give_up(number, "the private data is too long");
            return;
        };
        let token = Subject::Pair(number).token();
        let tap = self.tap.as_ref();
        let link = Box::new(TcpLink::new(socket, core, token, tap, sealed));
        self.begin(number, link, true);
    }

    /// Drives the opening of a queue pair's UDT connection.
    pub(super) fn open(&mut self, number: u32) {
        let Some(mut attempt) = self.take_attempt(number) else {
            return;
        };
        let Some(mut batch) = self.scratch.take_batch() else {
            self.give_up(number, "no memory for arrivals");
            return;
        };
        let Opening::Udt(transport) = &mut attempt.socket else {
            return;
        };
        let open = transport.open(self.now, &mut batch);
        self.scratch.give_batch(batch);
        match open {
            Ok(false) => {
                if let Some(pair) = self.pairs.get_mut(number) {
                    pair.link = ConnectionState::Connecting(Box::new(attempt));
                }
            }
            Ok(true) => {
                if let Opening::Udt(transport) = attempt.socket {
                    let link = UdtLink::initiate(
                        *transport,
                        self.now,
                        attempt.qp,
                        &self.config,
                        &attempt.private,
                    );
                    match link {
                        Some(link) => self.begin(number, Box::new(link), false),
                        None => self.give_up(number, "the private data is too long"),
                    }
                }
            }
            Err(failure) => {
                attempt.socket.unregister(&self.poller, &self.setup_poller);
                self.fail(number, failure);
            }
        }
    }

    /// The transport of a queue pair is there: its protocol begins.
    fn begin(&mut self, number: u32, mut link: Box<dyn RnicLink>, watch: bool) {
        let token = Subject::Pair(number).token();
        if watch && link.register(&self.poller, token).is_err() {
            self.give_up(number, "the socket cannot be watched");
            return;
        }
        if let Some(pair) = self.pairs.get_mut(number) {
            pair.attach(link);
            self.up.push(number);
            self.note_only();
            self.turn(number);
        }
    }

    pub(super) fn give_up(&mut self, number: u32, why: &str) {
        self.fail(number, network(why));
    }

    fn fail(&mut self, number: u32, failure: Failure) {
        if let Some(pair) = self.pairs.get_mut(number) {
            pair.unreachable(Some(failure));
            self.report(number);
        }
    }

    /// Begins the handshake of a TCP connection that is to be protected.
    pub(super) fn protect_stream(
        &self,
        socket: &Stream,
        side: Side,
    ) -> Result<Option<SealedStream>, HandshakeError> {
        let Some(protect) = &self.protect else {
            return Ok(None);
        };
        let handshake = match side {
            Side::Initiator => {
                let peer = socket.peer_addr().map(|peer| peer.ip());
                let gone = || HandshakeError::Failed("the connection is gone".into());
                protect.initiate(peer.ok_or_else(gone)?, HandshakeTransport::Tcp)?
            }
            Side::Responder => protect.respond(HandshakeTransport::Tcp)?,
        };
        Ok(Some(SealedStream::new(handshake, side)))
    }

    /// Sets a connected socket up, and returns the configuration of its protocol.
    pub(super) fn prepare(&self, socket: &Stream, qp: QpConfig) -> StreamConfig {
        if let Some(bytes) = self.socket_buffer {
            socket.set_buffers(bytes);
        }
        // Without it a dead peer is noticed later, or by nobody while nothing is sent; everything
        // else works.
        let _ = socket.detect_dead_peer(self.peer_timeout);
        let emss = socket.segment_len().unwrap_or(self.config.emss);
        let mut config = self.config;
        config.qp = qp;
        config.emss = emss.min(self.config.fpdu_max);
        config
    }
}

fn network(why: &str) -> Failure {
    Failure::new(Blame::Network, why)
}
