//! A work request, as either core takes it.

use haul_iwarp::datagram::rd::RdOp;
use haul_iwarp::datagram::{Destination, UdOp};

/// A work request, as either core takes it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) id: u64,
    pub(super) slot: u32,
    pub(super) to: Destination,
    pub(super) len: u32,
    pub(super) signalled: bool,
    pub(super) fence: bool,
}

/// An operation of either core.
#[derive(Debug, Clone, Copy)]
pub(super) enum Op {
    Ud(UdOp),
    Rd(RdOp),
}
