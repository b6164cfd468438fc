//! A request to a core, and where it goes.

use haul_iwarp::SendWr;
use haul_iwarp::datagram::Destination;

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) to: Destination,
    pub(super) wr: SendWr,
}
