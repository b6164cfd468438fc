//! UDT connections over UDP sockets.
//!
//! [`connect`] and [`Listener::accept`] give a [`Link`], which the calling thread then drives:
//! [`Link::send`] and [`Link::receive`] for bulk between Longhaul ends, [`plain::Socket`] for
//! streams and messages with any UDT peer. A [`Remote`] watches or ends a link from another thread.
//!
//! Map: `link` the loop · `outgoing` where payload comes from · `listener` cookies and sockets of
//! its own for each accepted connection, `budget` how many of them · [`plain`] a socket-like face,
//! `memory` what it holds · `sealing` seals what leaves and opens what arrives, `handshake` makes
//! the keys where nobody brings them · [`stream`] the same with a thread of its own, for callers
//! that have none.

mod budget;
pub(crate) mod handshake;
mod incoming;
mod link;
mod listener;
mod memory;
mod outgoing;
mod place;
pub mod plain;
pub(crate) mod sealing;
pub mod stream;
pub(crate) mod trouble;

use std::io;
use std::net::{IpAddr, SocketAddr};

pub use haul_cc::Rate;
pub use haul_seal::{Cipher, Seal, Secret};
pub use haul_udt::{Config, Error, Identity, Refused, Request, Seq, Stats};
pub(crate) use link::BLOCKED_NS;
pub use link::{Link, Remote};
pub(crate) use listener::Acceptor;
pub use listener::{Listener, Stop};

use haul_io::udp::{UdpOptions, UdpSocket};

/// Why a link could not be opened, or ended early.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The protocol ended it: the peer refused, fell silent, or is not compatible.
    #[error(transparent)]
    Protocol(#[from] Error),
    /// The network: no route, refused, not permitted.
    #[error("UDP: {0}")]
    Network(#[source] io::Error),
    /// The peer does not answer, and this is the latest error of the socket.
    #[error("the peer does not answer (UDP: {0})")]
    Silent(#[source] io::Error),
    /// This host has no thread, memory or descriptor for it.
    #[error("this host has no room for it: {0}")]
    System(#[source] io::Error),
    /// The source of what was to be sent.
    #[error("reading what is to be sent: {0}")]
    Source(#[source] io::Error),
    /// The sink of what arrived.
    #[error("writing what arrived: {0}")]
    Sink(#[source] io::Error),
    /// The peer closed before everything had passed.
    #[error("the peer closed the channel early")]
    PeerClosed,
    /// [`Remote::close`] was called.
    #[error("the channel was closed")]
    Closed,
    /// A protected connection got no keys.
    #[error(transparent)]
    Handshake(#[from] haul_seal::handshake::HandshakeError),
    /// The peer is a plain UDT socket; bulk needs Longhaul's extension.
    #[error("the peer speaks plain UDT, without placement")]
    Plain,
}

/// How to open links. Build it from [`Options::default`], then set fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// The protocol's choices. `lower_len` and `mtu` are set from the address family and the route.
    /// With `seal`, every datagram but handshakes is sealed, and peers that do not are refused.
    pub config: Config,
    /// The secret of a sealed connection, and of that one only; it implies `seal`. Where it is not
    /// known before the connection opens, [`Link::set_seal`] takes it.
    pub seal: Option<Seal>,
    /// Receive buffer to ask the kernel for, bytes.
    pub recv_buffer_bytes: usize,
    /// Send buffer to ask the kernel for, bytes.
    pub send_buffer_bytes: usize,
}

/// A few milliseconds of tens of gigabits; what an unprivileged process gets is often less.
const SOCKET_BUFFER_BYTES: usize = 16 << 20;

impl Default for Options {
    fn default() -> Self {
        Self {
            config: Config::default(),
            seal: None,
            recv_buffer_bytes: SOCKET_BUFFER_BYTES,
            send_buffer_bytes: SOCKET_BUFFER_BYTES / 4,
        }
    }
}

impl Options {
    /// The keys of a link with these options, if it is sealed.
    fn sealing(&self) -> Option<sealing::Sealing> {
        let seals = self.config.seal || self.seal.is_some();
        seals.then(|| sealing::Sealing::new(self.seal.clone()))
    }

    pub(crate) fn socket_options(&self, share_port: bool) -> UdpOptions {
        let mut options = UdpOptions::default();
        options.recv_buffer_bytes = self.recv_buffer_bytes;
        options.send_buffer_bytes = self.send_buffer_bytes;
        options.share_port = share_port;
        options
    }

    /// The protocol's choices for packets to `peer`, whose route carries `mtu` bytes.
    pub(crate) fn config_for(&self, peer: SocketAddr, mtu: Option<u32>) -> Config {
        let lower_len = if peer.is_ipv4() {
            haul_udt::wire::LOWER_LEN_V4
        } else {
            haul_udt::wire::LOWER_LEN_V6
        };
        let mut config = self.config.clone();
        config.lower_len = u32::try_from(lower_len).unwrap_or(u32::MAX);
        config.mtu = mtu.unwrap_or(self.config.mtu).min(MTU_MAX);
        config.seal |= self.seal.is_some();
        config
    }
}

/// Above it a batch would hold few packets and a lost one would cost much; loopback offers 64 KiB.
const MTU_MAX: u32 = 9_216;

/// Connects to a Longhaul listener (or a plain UDT one) and waits until the connection is open.
///
/// # Errors
/// [`LinkError::Network`] where the address cannot be reached, [`LinkError::Protocol`] where the
/// peer does not answer or refuses.
pub fn connect(
    local: SocketAddr,
    peer: SocketAddr,
    own: Identity,
    options: &Options,
) -> Result<Link, LinkError> {
    Connecting::begin(local, peer, own, options)?.finish()
}

/// Connects to a peer that does the same from and to these addresses (UDT's rendezvous).
///
/// # Errors
/// As [`connect`].
pub fn rendezvous(
    local: SocketAddr,
    peer: SocketAddr,
    own: Identity,
    options: &Options,
) -> Result<Link, LinkError> {
    let mut link = unopened(local, peer, own, options, haul_udt::Connection::rendezvous)?;
    link.wait_open(true)?;
    Ok(link)
}

/// A connection that another thread may call off while it opens.
#[derive(Debug)]
pub struct Connecting(Link);

impl Connecting {
    /// As [`connect`], and does not wait.
    ///
    /// # Errors
    /// [`LinkError::Network`] where the address cannot be reached.
    pub fn begin(
        local: SocketAddr,
        peer: SocketAddr,
        own: Identity,
        options: &Options,
    ) -> Result<Self, LinkError> {
        let link = unopened(local, peer, own, options, haul_udt::Connection::connect)?;
        Ok(Self(link))
    }

    /// Returns the handle whose [`Remote::close`] ends [`Connecting::finish`], and the link that
    /// comes of it.
    #[must_use]
    pub fn remote(&self) -> Remote {
        self.0.remote()
    }

    /// Waits until the connection is open.
    ///
    /// # Errors
    /// As [`connect`]; [`LinkError::Closed`] where it was called off.
    pub fn finish(mut self) -> Result<Link, LinkError> {
        self.0.wait_open(false)?;
        Ok(self.0)
    }
}

type Opener = fn(haul_cc::Time, Config, Identity, IpAddr, u64) -> haul_udt::Connection;

fn unopened(
    local: SocketAddr,
    peer: SocketAddr,
    own: Identity,
    options: &Options,
    opener: Opener,
) -> Result<Link, LinkError> {
    let socket =
        UdpSocket::bind(local, &options.socket_options(false)).map_err(LinkError::Network)?;
    socket.connect(peer).map_err(LinkError::Network)?;
    let config = options.config_for(peer, socket.path_mtu());
    let clock = haul_io::clock::Clock::new();
    let now = haul_cc::Time::from_ns(clock.now_ns());
    let seed = u64::from(own.socket.0) << 32 | u64::from(own.initial.get());
    let connection = opener(now, config, own, peer.ip(), seed);
    Link::new(socket, peer, connection, options.sealing()).map_err(LinkError::System)
}
