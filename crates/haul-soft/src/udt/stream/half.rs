//! What opens streams, whoever uses them.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use haul_seal::Side;
use haul_seal::handshake::Transport;

use super::engine::Securing;
use super::options::{Options, Ready};
use crate::udt::{Link, LinkError, plain, unopened};

/// A stream of this process, or one that another process uses.
pub(super) trait Half: AsFd + Sized {
    /// With `patient`, nobody need be at the peer's port yet.
    fn start(
        link: Link,
        options: &Options,
        patient: bool,
        securing: Option<Securing>,
    ) -> io::Result<Self>;

    /// As [`Stream::poll`](super::Stream::poll), in this process.
    fn poll(&self, wanted: Ready) -> Ready;
}

/// As [`Stream::connect`](super::Stream::connect).
pub(super) fn connect<H: Half>(peer: SocketAddr, options: &Options) -> Result<H, LinkError> {
    let handshake = options.protect.as_ref();
    let handshake = handshake
        .map(|protect| protect.initiate(peer.ip(), Transport::UdtStream))
        .transpose()?;
    let (link, initial) = plain::connecting(peer, &options.first())?;
    let securing = Securing::new(handshake, Side::Initiator, initial, options);
    H::start(link, options, false, securing).map_err(LinkError::System)
}

/// As [`Stream::rendezvous`](super::Stream::rendezvous).
pub(super) fn rendezvous<H: Half>(
    local: SocketAddr,
    peer: SocketAddr,
    options: &Options,
) -> Result<H, LinkError> {
    if options.protect.is_some() {
        return Err(LinkError::System(io::ErrorKind::Unsupported.into()));
    }
    let own = plain::random_identity().map_err(LinkError::System)?;
    let opener = haul_udt::Connection::rendezvous;
    let link = unopened(local, peer, own, &options.link(), opener)?;
    H::start(link, options, true, None).map_err(LinkError::System)
}
