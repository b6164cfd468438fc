//! Accepting: one socket listens and keeps no state; each accepted connection gets a socket of its
//! own on the same port, connected to its peer, so that the kernel tells their packets apart.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use haul_cc::Time;
use haul_io::clock::Clock;
use haul_io::poller::{Events, Interest, Poller, Waker};
use haul_io::udp::{RecvBatch, UdpSocket};
use haul_udt::wire::SocketId;
use haul_udt::{Connection, Identity, Reaction, Request};

use super::budget::Budget;
use super::trouble::{FAILURES, rest};
use super::{Link, LinkError, LinkOptions};

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    acceptor: Acceptor,
    poller: Poller,
    events: Events,
    clock: Clock,
    stop: Arc<AtomicBool>,
    /// Requests that nobody wanted when they came, the oldest first: what announces one may be
    /// slower than the request.
    early: VecDeque<(Request, SocketAddr, Time)>,
}

/// The part of a listener that never waits.
#[derive(Debug)]
pub(crate) struct Acceptor {
    socket: UdpSocket,
    core: haul_udt::Listener,
    batch: RecvBatch,
    reply: Vec<u8>,
    /// Connections accepted last, the oldest first: their client may not have the answer yet and
    /// ask again.
    recent: VecDeque<(SocketAddr, SocketId, Time)>,
    /// What handshakes may cost, where whoever asks is accepted.
    budget: Option<Budget>,
    next_socket: u32,
}

/// Ends [`Listener::accept`] from another thread.
#[derive(Debug, Clone)]
pub struct Stop(Arc<AtomicBool>, Waker);

const TOKEN: u64 = 1;
/// A client repeats its request every 250 ms until a response; its connection sends that.
const RECENT_NS: u64 = 30 * haul_cc::time::SECOND_NS;
const RECENT_MAX: usize = 1_024;
/// Datagrams that are looked at in one call, before its caller does other work.
const DATAGRAMS_MAX: usize = 64;
/// A request that nobody wants is asked about again until its client repeats it.
const EARLY_NS: u64 = 250 * haul_cc::time::MILLISECOND_NS;
const EARLY_MAX: usize = 64;

impl Listener {
    /// Listens at `local`. `secret` must be random: cookies and socket ids are made from it.
    ///
    /// # Errors
    /// Of `bind(2)`.
    pub fn bind(local: SocketAddr, options: &LinkOptions, secret: [u8; 16]) -> io::Result<Self> {
        let acceptor = Acceptor::bind(local, options, secret)?;
        let poller = Poller::new()?;
        poller.add(&acceptor, TOKEN, Interest::READ)?;
        Ok(Self {
            acceptor,
            poller,
            events: Events::with_capacity(4),
            clock: Clock::new(),
            stop: Arc::new(AtomicBool::new(false)),
            early: VecDeque::new(),
        })
    }

    /// Returns where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.acceptor.local_addr()
    }

    /// Returns a handle that ends [`Listener::accept`].
    #[must_use]
    pub fn stop_handle(&self) -> Stop {
        Stop(Arc::clone(&self.stop), self.poller.waker())
    }

    /// Returns a handle that has [`Listener::accept`] ask again about requests that nobody wanted a
    /// moment ago.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.poller.waker()
    }

    /// Waits for a client, until `deadline` of the [`Clock`]; none when that has passed or a
    /// [`Stop`] was used. `wanted` returns the options for a request that is to be accepted.
    ///
    /// # Errors
    /// [`LinkError::Network`] where the socket fails.
    pub fn accept(
        &mut self,
        deadline: Option<Time>,
        wanted: &mut dyn FnMut(&Request) -> Option<LinkOptions>,
    ) -> Result<Option<(Identity, Link)>, LinkError> {
        loop {
            let now = Time::from_ns(self.clock.now_ns());
            if deadline.is_some_and(|at| now >= at) || self.stop.load(Ordering::Acquire) {
                return Ok(None);
            }
            for _ in 0..self.early.len() {
                let Some((request, local, came)) = self.early.pop_front() else {
                    break;
                };
                if now.since(came) < EARLY_NS
                    && !self.acceptor.is_recent(&request, now)
                    && let Some(accepted) = self.consider(request, local, came, wanted)?
                {
                    return Ok(Some(accepted));
                }
            }
            while let Some((request, local)) = self.acceptor.next_request() {
                if let Some(accepted) = self.consider(request, local, now, wanted)? {
                    return Ok(Some(accepted));
                }
            }
            self.poller
                .wait(&mut self.events, deadline.map(Time::as_ns), self.clock)
                .map_err(LinkError::Network)?;
        }
    }

    /// Opens a connection that is wanted; one that is not may be soon.
    fn consider(
        &mut self,
        request: Request,
        local: SocketAddr,
        came: Time,
        wanted: &mut dyn FnMut(&Request) -> Option<LinkOptions>,
    ) -> Result<Option<(Identity, Link)>, LinkError> {
        let Some(options) = wanted(&request) else {
            if self.early.len() == EARLY_MAX {
                self.early.pop_front();
            }
            self.early.push_back((request, local, came));
            return Ok(None);
        };
        let link = self.open(&request, local, &options)?;
        Ok(link.map(|link| (request.identity(), link)))
    }

    fn open(
        &mut self,
        request: &Request,
        local: SocketAddr,
        options: &LinkOptions,
    ) -> Result<Option<Link>, LinkError> {
        let now = Time::from_ns(self.clock.now_ns());
        let opened = self.acceptor.open(request, local, options, now);
        let Some((socket, connection)) = opened.map_err(LinkError::Network)? else {
            return Ok(None);
        };
        let link = Link::new(socket, request.from, connection, options.sealing());
        let mut link = link.map_err(LinkError::System)?;
        link.wait_open(false)?;
        Ok(Some(link))
    }
}

impl Acceptor {
    /// Listens at `local`; see [`Listener::bind`].
    pub(crate) fn bind(
        local: SocketAddr,
        options: &LinkOptions,
        secret: [u8; 16],
    ) -> io::Result<Self> {
        let mut socket_options = options.socket_options(true);
        socket_options.report_destination = local.ip().is_unspecified();
        socket_options.gro = false;
        let socket = UdpSocket::bind(local, &socket_options)?;
        let [a, b, c, d, ..] = secret;
        Ok(Self {
            core: haul_udt::Listener::new(&options.config, secret),
            // One datagram at a time: as long as a request waits, the socket is readable.
            batch: RecvBatch::new(1, 64 << 10, 0)?,
            reply: Vec::new(),
            recent: VecDeque::new(),
            budget: None,
            next_socket: u32::from_be_bytes([a, b, c, d]) >> 2,
            socket,
        })
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.socket.local_addr()
    }

    /// Completes no more handshakes than a [`Budget`] allows, of each source and in all. A client
    /// that gets no answer repeats its request.
    pub(crate) fn with_budget(self) -> Self {
        Self {
            budget: Some(Budget::default()),
            ..self
        }
    }

    /// Answers what has arrived, up to the next request with a valid cookie; with it the address
    /// that it was sent to. None also where much arrives and no request is among the first
    /// [`DATAGRAMS_MAX`]: the socket stays readable then. Receive calls that fail are like lost
    /// packets.
    pub(crate) fn next_request(&mut self) -> Option<(Request, SocketAddr)> {
        let mut failed = 0;
        for _ in 0..DATAGRAMS_MAX {
            match self.socket.recv_batch(&mut self.batch) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(_) if failed < FAILURES => {
                    failed += 1;
                    continue;
                }
                Err(_) => {
                    rest();
                    return None;
                }
            }
            let now = Time::from_ns(self.batch.now_ns());
            for message in self.batch.iter() {
                let mut local = message.to.unwrap_or_else(|| self.socket.local_addr());
                local.set_port(self.socket.local_addr().port());
                for datagram in message.datagrams() {
                    let reaction =
                        self.core
                            .handle_datagram(now, message.from, datagram, &mut self.reply);
                    match reaction {
                        Reaction::Ignore => {}
                        Reaction::Reply => {
                            // A lost reply is like any lost packet: the client asks again.
                            let _ = self.socket.send_from(local, message.from, &self.reply);
                        }
                        Reaction::Accept(request) => {
                            if self.is_recent(&request, now) {
                                continue;
                            }
                            let budget = self.budget.as_mut();
                            if budget.is_none_or(|budget| budget.take(now, request.from.ip())) {
                                return Some((request, local));
                            }
                        }
                    }
                }
            }
        }
        None
    }

    fn is_recent(&self, request: &Request, now: Time) -> bool {
        let same = |(from, socket, at): &(SocketAddr, SocketId, Time)| {
            *from == request.from
                && *socket == request.handshake.socket
                && now.since(*at) < RECENT_NS
        };
        self.recent.iter().any(same)
    }

    /// A socket at `local` and a connection for a request; none where the client is not compatible.
    /// A client takes packets from the address that it asked, and from no other.
    pub(crate) fn open(
        &mut self,
        request: &Request,
        local: SocketAddr,
        options: &LinkOptions,
        now: Time,
    ) -> io::Result<Option<(UdpSocket, Connection)>> {
        let socket = UdpSocket::bind(local, &options.socket_options(true))?;
        socket.connect(request.from)?;
        let config = options.config_for(request.from, socket.path_mtu());
        self.next_socket = self.next_socket % 0x3fff_ffff + 1;
        let id = SocketId(self.next_socket);
        let seed = u64::from(id.0) << 32 | u64::from(request.handshake.initial.get());
        let Ok(connection) = Connection::accept(now, config, id, request, seed) else {
            return Ok(None);
        };
        let is_old = |(.., at): &(SocketAddr, SocketId, Time)| now.since(*at) >= RECENT_NS;
        while self.recent.len() == RECENT_MAX || self.recent.front().is_some_and(is_old) {
            self.recent.pop_front();
        }
        self.recent
            .push_back((request.from, request.handshake.socket, now));
        Ok(Some((socket, connection)))
    }
}

impl AsFd for Acceptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Stop {
    /// Ends a running or the next [`Listener::accept`].
    pub fn stop(&self) {
        self.0.store(true, Ordering::Release);
        self.1.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that has its cookie, and has not asked with it yet.
    struct Client {
        socket: UdpSocket,
        udt: Connection,
        clock: Clock,
        server: SocketAddr,
    }

    impl Client {
        fn with_cookie(acceptor: &mut Acceptor) -> Self {
            let (options, server, clock) =
                (LinkOptions::default(), acceptor.local_addr(), Clock::new());
            let local = (std::net::Ipv4Addr::LOCALHOST, 0).into();
            let own = Identity {
                socket: SocketId(7),
                initial: haul_udt::Seq::new(1),
            };
            let config = options.config_for(server, None);
            let now = Time::from_ns(clock.now_ns());
            let mut client = Self {
                socket: UdpSocket::bind(local, &options.socket_options(false)).unwrap(),
                udt: Connection::connect(now, config, own, server.ip(), 1),
                clock,
                server,
            };
            client.ask();
            let mut batch = RecvBatch::new(1, 2_048, 0).unwrap();
            while !matches!(client.socket.recv_batch(&mut batch), Ok(1..)) {
                assert!(acceptor.next_request().is_none());
            }
            let now = Time::from_ns(clock.now_ns());
            for datagram in batch.iter().flat_map(|message| message.datagrams()) {
                client.udt.handle_datagram(now, now, datagram).unwrap();
            }
            client
        }

        fn ask(&mut self) {
            let mut transmit = haul_udt::Transmit::default();
            let now = Time::from_ns(self.clock.now_ns());
            while self.udt.poll_transmit(now, &mut transmit) {
                let local = self.socket.local_addr();
                self.socket
                    .send_from(local, self.server, &transmit.control)
                    .unwrap();
            }
        }
    }

    #[test]
    fn clients_that_ask_together_are_all_heard() {
        let local = (std::net::Ipv4Addr::LOCALHOST, 0).into();
        let mut acceptor = Acceptor::bind(local, &LinkOptions::default(), [1; 16]).unwrap();
        let mut clients: Vec<_> = (0..6).map(|_| Client::with_cookie(&mut acceptor)).collect();
        for client in &mut clients {
            client.ask();
        }
        // Loopback delivers at once, so what does not come now was dropped.
        for client in &clients {
            let (request, _) = acceptor.next_request().unwrap();
            assert_eq!(request.from, client.socket.local_addr());
        }
        assert!(acceptor.next_request().is_none());
    }
}
