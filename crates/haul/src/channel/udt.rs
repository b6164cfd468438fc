//! The UDT channel: reliable UDP that places payload on arrival and paces what it sends.
//!
//! An offset of the transfer space is the same offset of the UDT stream. The client's handshake
//! carries the session's token as initial sequence number and socket id, so binding a connection to
//! its session costs no message.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use haul_cc::algorithm::UnknownName;
use haul_cc::{Algorithm, Rate};
use haul_io::poller::Waker;
use haul_soft::bulk::{Sink, Source};
use haul_soft::udt::{self, Identity, Link, LinkError, Listener, Options, Remote, Seq};
use haul_udt::wire::SocketId;

use super::setup::{Channel, ChannelError, ChannelStats, Setup, Token};
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
        let (local, own) = (SocketAddr::new(any, 0), setup.token.identity());
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

fn unreachable(server: SocketAddr, error: &LinkError) -> Fault {
    let why = match error {
        LinkError::Network(error) => plain(error),
        other => other.to_string(),
    };
    Fault::new(
        Code::Unreachable,
        format!("cannot open a UDP channel to {server}: {why}"),
    )
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
        Err(error @ (LinkError::Protocol(_) | LinkError::Plain)) => {
            Err(ChannelError::Peer(error.to_string()))
        }
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
        }
    }
}

/// Makes the options that both ends use for a channel.
fn options(setup: &Setup) -> Result<Options, Fault> {
    let mut options = Options::default();
    options.config.idle_timeout_ns = nanoseconds(setup.dead_after);
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

impl Token {
    const HALF: u64 = (1 << 31) - 1;

    /// Returns the token as a UDT handshake carries it.
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
#[derive(Debug, Default)]
pub(crate) struct Acceptor {
    expected: Expected,
    /// Of the listeners: a client's handshake may arrive before its session has claimed it.
    wakers: Mutex<Vec<Waker>>,
}

/// The connections that sessions wait for: their options, and where they are handed over.
type Expected = Arc<Mutex<HashMap<Token, (Options, Sender<Link>)>>>;

/// A session's claim on the connection with its token. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    token: Token,
    arrived: Receiver<Link>,
    expected: Expected,
}

impl Claim {
    /// Ends the claim; [`UdtChannel::accept`] returns.
    pub(crate) fn give_up(&self) {
        lock(&self.expected).remove(&self.token);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl Acceptor {
    /// Claims the connection that carries the token of `setup`.
    pub(crate) fn claim(&self, setup: &Setup) -> Result<Claim, Fault> {
        let (sender, arrived) = bounded(1);
        lock(&self.expected).insert(setup.token, (options(setup)?, sender));
        lock(&self.wakers).iter().for_each(Waker::wake);
        Ok(Claim {
            token: setup.token,
            arrived,
            expected: Arc::clone(&self.expected),
        })
    }

    /// Accepts connections until the process ends. A peer without a claimed token gets no further
    /// than the cookie.
    pub(crate) fn serve(&self, listener: &mut Listener) {
        lock(&self.wakers).push(listener.waker());
        loop {
            let mut wanted = |identity| {
                let expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
                expected
                    .get(&Token::from_identity(identity))
                    .map(|(options, _)| options.clone())
            };
            // A failing socket counts as packet loss: sessions time out and report that.
            let Ok(Some((identity, link))) = listener.accept(None, &mut wanted) else {
                continue;
            };
            let claimed = lock(&self.expected).remove(&Token::from_identity(identity));
            if let Some((_, sender)) = claimed {
                // If the session has ended meanwhile, the link closes.
                let _ = sender.send(link);
            }
        }
    }
}

/// Listens for UDT connections at `address`.
pub(crate) fn listen(address: SocketAddr) -> Result<Listener, Fault> {
    let secret = haul_io::random::bytes()
        .map_err(|error| Fault::new(Code::Other, format!("cannot read random bytes: {error}")))?;
    Listener::bind(address, &Options::default(), secret).map_err(|error| {
        Fault::new(
            Code::Other,
            format!("cannot listen on UDP {address}: {}", plain(&error)),
        )
        .hint("another process has that UDP port; choose one with --listen")
    })
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

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
