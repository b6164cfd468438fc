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
mod error;
pub(crate) mod handshake;
mod incoming;
mod link;
mod listener;
mod memory;
mod options;
mod outgoing;
mod place;
pub mod plain;
pub(crate) mod sealing;
pub mod stream;
pub(crate) mod trouble;

use std::net::{IpAddr, SocketAddr};

pub use error::LinkError;
pub use haul_cc::Rate;
pub use haul_seal::{Cipher, Seal, Secret};
pub use haul_udt::{Config, Error, Identity, Refused, Request, Seq, Stats};
pub(crate) use link::BLOCKED_NS;
pub use link::{Link, Remote};
pub(crate) use listener::Acceptor;
pub use listener::{Listener, Stop};
pub use options::LinkOptions;

use haul_io::udp::UdpSocket;

/// Connects to a Longhaul listener (or a plain UDT one) and waits until the connection is open.
///
/// # Errors
/// [`LinkError::Network`] where the address cannot be reached, [`LinkError::Protocol`] where the
/// peer does not answer or refuses.
pub fn connect(
    local: SocketAddr,
    peer: SocketAddr,
    own: Identity,
    options: &LinkOptions,
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
    options: &LinkOptions,
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
        options: &LinkOptions,
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
    options: &LinkOptions,
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
