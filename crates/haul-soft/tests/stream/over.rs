//! Streams of this process.

use std::net::SocketAddr;

use haul_soft::udt::LinkError;
use haul_soft::udt::stream::{self, Options, Stream};

pub(crate) type Listener = stream::Listener<Stream>;

pub(crate) fn connect(peer: SocketAddr, options: &Options) -> Result<Stream, LinkError> {
    Stream::connect(peer, options)
}

pub(crate) fn rendezvous(
    local: SocketAddr,
    peer: SocketAddr,
    options: &Options,
) -> Result<Stream, LinkError> {
    Stream::rendezvous(local, peer, options)
}
