//! Where work requests go: to a peer of a datagram service, to memory of a peer.

use std::fmt;
use std::net::SocketAddr;

/// A queue pair of a datagram service somewhere else, as work requests name it and completions
/// report it (IBTA's address handle and queue pair number in one).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Where it is bound.
    pub addr: SocketAddr,
    /// Its number, 24 bits.
    pub qp_num: u32,
}

impl Peer {
    /// Every queue pair that is attached to a group (IBTA 1.4 §10.5.2.2).
    pub const GROUP_QP: u32 = 0x00ff_ffff;

    /// Names the queue pair `qp_num` at `addr`.
    #[must_use]
    pub fn new(addr: SocketAddr, qp_num: u32) -> Self {
        Self { addr, qp_num }
    }

    /// All members of the multicast group at `addr`, or all hosts of a network for a broadcast
    /// address.
    #[must_use]
    pub fn group(addr: SocketAddr) -> Self {
        Self::new(addr, Self::GROUP_QP)
    }

    /// Whether it stands for a group.
    #[must_use]
    pub fn is_group(&self) -> bool {
        self.qp_num == Self::GROUP_QP
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.addr, self.qp_num)
    }
}

/// Memory of the peer, as it has named it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Remote {
    /// Address of the first byte, as the peer's memory region counts.
    pub addr: u64,
    /// The peer's key.
    pub rkey: u32,
}
