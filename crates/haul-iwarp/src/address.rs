//! Ends of a datagram service.

use std::net::SocketAddr;

/// Where a message goes: an address handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Destination {
    /// Address and port.
    pub addr: SocketAddr,
    /// The queue pair there; [`crate::datagram::wire::ANY_QPN`] with the address of a group.
    pub qpn: u32,
}

/// The sender of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Source {
    /// Address and port.
    pub addr: SocketAddr,
    /// The queue pair there.
    pub qpn: u32,
    /// Which activation of it.
    pub epoch: u32,
}

impl Source {
    /// Returns where answers go.
    #[must_use]
    pub const fn destination(&self) -> Destination {
        Destination {
            addr: self.addr,
            qpn: self.qpn,
        }
    }
}
