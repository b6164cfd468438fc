//! The UDT channel: reliable UDP that places payload on arrival and paces what it sends.
//!
//! An offset of the transfer space is the same offset of the UDT stream. The client's handshake
//! carries the session's ticket as initial sequence number and socket id, so binding a connection
//! to its session costs no message.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use haul_cc::algorithm::UnknownName;
use haul_cc::{Algorithm, Rate, Remembered, Time};
use haul_io::clock::Clock;
use haul_io::poller::Waker;
use haul_seal::Seal;
use haul_soft::bulk::{Sink, Source};
use haul_soft::udt::{
    self, Identity, Link, LinkError, LinkOptions, Listener, Remote, Request, Seq,
};
use haul_udt::wire::SocketId;

use super::setup::{Channel, ChannelError, ChannelStats, Setup, Ticket};
use crate::fault::{Code, Fault, plain};
use crate::lock;
use crate::wire::Causes;

/// An open UDT channel.
#[derive(Debug)]
pub(crate) struct UdtChannel {
    link: Mutex<Link>,
    remote: Remote,
}

/// A UDT channel that the client is opening.
pub(crate) struct Connecting {
    server: SocketAddr,
    connecting: udt::Connecting,
}

impl Connecting {
    /// Begins to connect to the server; [`Connecting::finish`] blocks no longer than `timeout`.
    pub(crate) fn begin(
        setup: &Setup,
        server: SocketAddr,
        timeout: Duration,
    ) -> Result<Self, Fault> {
        let any: IpAddr = match server {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let mut options = options(setup)?;
        options.config.connect_timeout_ns = nanoseconds(timeout);
        let (local, own) = (SocketAddr::new(any, 0), setup.ticket.identity());
        let connecting = udt::Connecting::begin(local, server, own, &options);
        let connecting = connecting.map_err(|error| unreachable(server, &error))?;
        Ok(Self { server, connecting })
    }

    /// Returns the handle that cancels it from another thread.
    pub(crate) fn remote(&self) -> Remote {
        self.connecting.remote()
    }

    /// Blocks until it is open.
    pub(crate) fn finish(self) -> Result<UdtChannel, Fault> {
        let link = self.connecting.finish();
        link.map(UdtChannel::new)
            .map_err(|error| unreachable(self.server, &error))
    }
}

/// How failures of [`unreachable()`] begin.
const UNOPENED: &str = "cannot open a UDP channel to ";

/// Returns whether `fault` is that of a path without UDP.
pub(crate) fn is_unopened(fault: &Fault) -> bool {
    fault.code == Code::Unreachable && fault.text.starts_with(UNOPENED)
}

fn unreachable(server: SocketAddr, error: &LinkError) -> Fault {
    let why = match error {
        LinkError::Network(error) => plain(error),
        other => other.to_string(),
    };
    Fault::new(Code::Unreachable, format!("{UNOPENED}{server}: {why}"))
        .hint("is UDP let through to that port? --channel tcp needs only TCP")
}

impl UdtChannel {
    /// Blocks until the client has connected.
    pub(crate) fn accept(claim: &Claim, deadline: Instant) -> Result<Self, Fault> {
        let link = claim
            .arrived
            .recv_deadline(deadline)
            .map_err(|_| Fault::new(Code::PeerGone, "the client opened no UDP channel"))?;
        Ok(Self::new(link))
    }

    fn new(link: Link) -> Self {
        Self {
            remote: link.remote(),
            link: Mutex::new(link),
        }
    }
}

/// Maps the link's errors; a link that this end closed did not fail.
fn settle(result: Result<(), LinkError>) -> Result<(), ChannelError> {
    match result {
        Ok(()) | Err(LinkError::Closed) => Ok(()),
        Err(LinkError::Source(error)) => Err(ChannelError::store(error)),
        // The sinks of this crate wrap a fault: the link itself refuses what came to a sender.
        Err(LinkError::Sink(error)) => Err(match error.downcast() {
            Ok(fault) => ChannelError::Store(fault),
            Err(error) => ChannelError::Peer(plain(&error)),
        }),
        Err(LinkError::System(error)) => Err(ChannelError::System(error)),
        Err(LinkError::Network(error) | LinkError::Silent(error)) => {
            Err(ChannelError::lost(&error))
        }
        Err(
            error @ (LinkError::PeerClosed
            | LinkError::Protocol(haul_udt::Error::TimedOut | haul_udt::Error::Closed)),
        ) => Err(ChannelError::Lost(error.to_string())),
        // The last is of byte streams only.
        Err(
            error @ (LinkError::Protocol(_)
            | LinkError::Handshake(_)
            | LinkError::Plain
            | LinkError::Told(_)),
        ) => Err(ChannelError::Peer(error.to_string())),
    }
}

impl Channel for UdtChannel {
    fn send(&self, source: &dyn Source) -> Result<(), ChannelError> {
        let result = lock(&self.link).send(source);
        settle(result)
    }

    fn receive(&self, sink: &dyn Sink) -> Result<(), ChannelError> {
        let result = lock(&self.link).receive(sink);
        settle(result)
    }

    fn close(&self) {
        self.remote.close();
    }

    fn set_seal(&self, seal: Seal) {
        lock(&self.link).set_seal(seal);
    }

    fn resume(&self, remembered: Remembered) {
        lock(&self.link).resume(remembered);
    }

    fn stats(&self) -> ChannelStats {
        let stats = self.remote.stats();
        ChannelStats {
            sent: stats.map(|stats| {
                stats
                    .sent
                    .payload_bytes
                    .saturating_sub(stats.sent.resent_bytes)
            }),
            retransmitted: stats.map_or(0, |stats| stats.sent.resent_bytes),
            causes: stats.map(|stats| Causes {
                lost: stats.sent.path_lost_bytes(),
                reordered: stats.sent.reordered_bytes,
                refused: stats.sent.refused_bytes,
                timer: stats.sent.timer_bytes,
            }),
            rtt_us: stats.and_then(|stats| u32::try_from(stats.rtt_ns / 1_000).ok()),
            shown: stats.and_then(|stats| stats.shown),
        }
    }
}

/// Makes the options that both ends use for a channel.
fn options(setup: &Setup) -> Result<LinkOptions, Fault> {
    let mut options = LinkOptions::default();
    options.config.idle_timeout_ns = nanoseconds(setup.dead_after);
    options.config.seal = setup.sealed.is_some();
    options.config.control = match (setup.rate_bps, &setup.congestion) {
        (Some(rate_bps), _) => Algorithm::Fixed(Rate::from_bps(rate_bps)),
        (None, Some(name)) => control(name)?,
        (None, None) => Algorithm::default(),
    };
    Ok(options)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Parses the name of a congestion control.
pub(crate) fn control(name: &str) -> Result<Algorithm, Fault> {
    name.parse()
        .map_err(|error: UnknownName| Fault::new(Code::Usage, error.to_string()))
}

impl Ticket {
    const HALF: u64 = (1 << 31) - 1;

    /// Returns the ticket as a UDT handshake carries it.
    fn identity(self) -> Identity {
        let half = |value: u64| u32::try_from(value & Self::HALF).unwrap_or(0);
        Identity {
            initial: Seq::new(half(self.to_wire() >> 31)),
            socket: SocketId(half(self.to_wire())),
        }
    }

    fn from_identity(identity: Identity) -> Self {
        let (initial, socket) = (identity.initial.get(), identity.socket.0);
        Self::from_wire(u64::from(initial) << 31 | u64::from(socket))
    }
}

/// Accepts a server's UDT connections for the sessions that claim them.
///
/// A connection usually arrives before its session: the UDT handshake takes as long as that of the
/// control connection, and the session's first message follows it. So a client whose address the
/// cookie has proved is accepted at once, within [`Pending`]'s limits, and can send data together
/// with that message. The data waits in the socket's buffer, unread, until the session claims it.
#[derive(Debug, Default)]
pub(crate) struct Acceptor {
    state: Arc<Mutex<State>>,
    /// Of the listeners: a client's handshake may arrive before its session has claimed it.
    wakers: Mutex<Vec<Waker>>,
}

#[derive(Debug, Default)]
struct State {
    /// The connections that sessions wait for: their options, and where their links go.
    expected: HashMap<Ticket, (LinkOptions, Sender<Link>)>,
    pending: Pending,
    /// Of sessions that ended before their connection came, the latest.
    ended: VecDeque<Ticket>,
}

impl State {
    /// Returns the options for a request, if it is to be accepted now.
    fn options_for(&self, request: &Request, now: Instant) -> Option<LinkOptions> {
        let ticket = Ticket::from_identity(request.identity());
        if let Some((options, _)) = self.expected.get(&ticket) {
            return Some(options.clone());
        }
        let is_taken = request.offer.placement
            && !self.ended.contains(&ticket)
            && self.pending.has_room(request.from.ip(), now);
        is_taken.then(|| {
            let mut options = LinkOptions::default();
            options.recv_buffer_bytes = PENDING_BUFFER_BYTES;
            options.config.seal = request.offer.seal;
            options
        })
    }

    /// Hands a connection to the session that waits for it, or keeps it until one does.
    fn take(&mut self, ticket: Ticket, mut link: Link, now: Instant) {
        match self.expected.remove(&ticket) {
            // If the session has ended meanwhile, the link closes.
            Some((options, sender)) if link.configure(&options) => drop(sender.send(link)),
            // Its peer has not agreed to the seal, or nobody demanded one: it is another's.
            Some(waiting) => drop(self.expected.insert(ticket, waiting)),
            // Nobody will claim it.
            None if self.ended.contains(&ticket) => {}
            None => self.pending.put(ticket, link, now),
        }
    }

    /// No session waits for this connection any more.
    fn give_up(&mut self, ticket: Ticket) {
        if self.expected.remove(&ticket).is_some() {
            self.ended.push_back(ticket);
            if self.ended.len() > ENDED_MAX {
                self.ended.pop_front();
            }
        }
    }
}

/// Connections that no session has claimed yet, the oldest first. They are few: whoever has an
/// address can make them.
#[derive(Debug, Default)]
struct Pending(VecDeque<Early>);

#[derive(Debug)]
struct Early {
    ticket: Ticket,
    link: Link,
    until: Instant,
}

/// Maximum number of unclaimed connections, …
const PENDING_MAX: usize = 32;
/// … of those from one address; further ones are accepted when their session claims them, …
const PENDING_PER_ADDRESS: usize = 4;
/// … and how long one waits.
const PENDING_FOR: Duration = Duration::from_secs(10);
/// Ended sessions whose connections are not kept.
const ENDED_MAX: usize = 64;
/// Receive buffer of an unclaimed connection, bytes: twice what its peer may send before it is
/// acknowledged, because the kernel counts its own structures.
const PENDING_BUFFER_BYTES: usize = 2 << 20;

impl Pending {
    fn has_room(&self, from: IpAddr, now: Instant) -> bool {
        let waiting = || self.0.iter().filter(|early| early.until > now);
        let same = waiting().filter(|early| early.link.peer().ip() == from);
        waiting().count() < PENDING_MAX && same.count() < PENDING_PER_ADDRESS
    }

    fn put(&mut self, ticket: Ticket, link: Link, now: Instant) {
        self.expire(now);
        let until = now + PENDING_FOR;
        self.0.push_back(Early {
            ticket,
            link,
            until,
        });
    }

    fn expire(&mut self, now: Instant) {
        self.0.retain(|early| early.until > now);
    }

    /// Removes a connection with this ticket.
    fn claim(&mut self, ticket: Ticket) -> Option<Link> {
        let at = self.0.iter().position(|early| early.ticket == ticket)?;
        self.0.remove(at).map(|early| early.link)
    }
}

/// A session's claim on the connection with its ticket. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    ticket: Ticket,
    arrived: Receiver<Link>,
    state: Arc<Mutex<State>>,
}

impl Claim {
    /// Ends the claim; [`UdtChannel::accept`] returns.
    pub(crate) fn give_up(&self) {
        lock(&self.state).give_up(self.ticket);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl Acceptor {
    /// Claims the connection that carries the ticket of `setup`.
    pub(crate) fn claim(&self, setup: &Setup) -> Result<Claim, Fault> {
        let (sender, arrived) = bounded(1);
        {
            let mut state = lock(&self.state);
            state
                .expected
                .insert(setup.ticket, (options(setup)?, sender));
            while state.expected.contains_key(&setup.ticket)
                && let Some(link) = state.pending.claim(setup.ticket)
            {
                state.take(setup.ticket, link, Instant::now());
            }
        }
        lock(&self.wakers).iter().for_each(Waker::wake);
        Ok(Claim {
            ticket: setup.ticket,
            arrived,
            state: Arc::clone(&self.state),
        })
    }

    /// Accepts connections until the process ends.
    pub(crate) fn serve(&self, listener: &mut Listener) {
        let clock = Clock::new();
        lock(&self.wakers).push(listener.waker());
        loop {
            let mut wanted = |request: &Request| {
                let now = Instant::now();
                lock(&self.state).options_for(request, now)
            };
            let first = lock(&self.state).pending.0.front().map(|early| early.until);
            let left = first.map(|until| until.saturating_duration_since(Instant::now()));
            let until = left.map(|left| Time::from_ns(clock.now_ns()).after(nanoseconds(left)));
            // A failing socket counts as packet loss: sessions time out and report that.
            let accepted = listener.accept(until, &mut wanted);
            let mut state = lock(&self.state);
            state.pending.expire(Instant::now());
            if let Ok(Some((identity, link))) = accepted {
                state.take(Ticket::from_identity(identity), link, Instant::now());
            }
        }
    }
}

/// Listens for UDT connections at `address`.
pub(crate) fn listen(address: SocketAddr) -> Result<Listener, Fault> {
    let secret = haul_io::random::bytes()
        .map_err(|error| Fault::new(Code::Other, format!("cannot read random bytes: {error}")))?;
    Listener::bind(address, &LinkOptions::default(), secret).map_err(|error| {
        let text = format!("cannot listen on UDP {address}: {}", plain(&error));
        let fault = Fault::new(Code::Other, text);
        if error.kind() == io::ErrorKind::AddrInUse {
            fault.hint("another process has that UDP port; choose one with --listen")
        } else {
            fault
        }
    })
}

#[cfg(test)]
mod tests {
    use std::io;

    use haul_seal::Cipher;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn setup(sealed: Option<Cipher>) -> Setup {
        Setup {
            kind: super::super::ChannelKind::Udt,
            ticket: Ticket::random().unwrap(),
            streams: 1,
            rate_bps: None,
            congestion: None,
            dead_after: TIMEOUT,
            sealed,
        }
    }

    /// A server that accepts, and where.
    fn serving() -> (Arc<Acceptor>, SocketAddr) {
        let mut listener = listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let (acceptor, address) = (Arc::new(Acceptor::default()), listener.local_addr());
        let serving = Arc::clone(&acceptor);
        std::thread::spawn(move || serving.serve(&mut listener));
        (acceptor, address)
    }

    fn connect(setup: &Setup, server: SocketAddr, timeout: Duration) -> Result<UdtChannel, Fault> {
        Connecting::begin(setup, server, timeout)?.finish()
    }

    #[test]
    fn a_client_is_connected_before_its_session_and_claimed_later() {
        for sealed in [None, Some(Cipher::preferred())] {
            let (acceptor, server) = serving();
            let setup = setup(sealed);
            let client = connect(&setup, server, TIMEOUT).unwrap();
            let other = Setup {
                ticket: Ticket::random().unwrap(),
                ..setup.clone()
            };
            let strange = acceptor.claim(&other).unwrap();
            assert!(strange.arrived.try_recv().is_err());
            let claim = acceptor.claim(&setup).unwrap();
            let link = claim.arrived.recv_timeout(TIMEOUT).unwrap();
            assert_eq!(link.peer().port(), lock(&client.link).local_addr().port());
            assert!(lock(&acceptor.state).pending.0.is_empty());
        }
    }

    #[test]
    fn a_session_that_seals_claims_no_connection_in_clear() {
        let (acceptor, server) = serving();
        let setup = setup(None);
        let client = connect(&setup, server, TIMEOUT).unwrap();
        let sealed = Setup {
            sealed: Some(Cipher::preferred()),
            ..setup
        };
        let claim = acceptor.claim(&sealed).unwrap();
        assert!(claim.arrived.try_recv().is_err());
        let state = lock(&acceptor.state);
        assert!(state.pending.0.is_empty() && state.expected.len() == 1);
        drop(client);
    }

    #[test]
    fn a_connection_behind_its_session_is_not_kept() {
        let (acceptor, server) = serving();
        let setup = setup(None);
        drop(acceptor.claim(&setup).unwrap());
        let late = connect(&setup, server, Duration::from_millis(300));
        assert!(late.is_err());
        assert!(lock(&acceptor.state).pending.0.is_empty());
    }

    #[test]
    fn one_address_has_few_unclaimed_connections_and_the_rest_wait_for_their_session() {
        let (acceptor, server) = serving();
        let clients: Vec<_> = (0..PENDING_PER_ADDRESS)
            .map(|_| connect(&setup(None), server, TIMEOUT).unwrap())
            .collect();
        let last = setup(None);
        let connecting = Connecting::begin(&last, server, TIMEOUT).unwrap();
        let opening = std::thread::spawn(move || connecting.finish());
        // The listener has handled the last client's request once another's has been answered.
        let late = connect(&setup(None), server, Duration::from_millis(300));
        assert!(late.is_err());
        assert_eq!(lock(&acceptor.state).pending.0.len(), clients.len());
        let claim = acceptor.claim(&last).unwrap();
        claim.arrived.recv_timeout(TIMEOUT).unwrap();
        opening.join().unwrap().unwrap();
    }

    #[test]
    fn payload_that_arrives_at_a_sender_is_the_fault_of_the_peer() {
        let code = |error| {
            settle(Err(LinkError::Sink(error)))
                .unwrap_err()
                .fault()
                .code
        };
        let full = Fault::new(Code::DiskFull, "no room");
        assert_eq!(code(io::Error::other(full)), Code::DiskFull);
        assert_eq!(code(io::ErrorKind::InvalidInput.into()), Code::Protocol);
    }
}
