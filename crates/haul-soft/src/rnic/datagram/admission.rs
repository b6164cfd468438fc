//! Which work requests a datagram service takes, and what it makes of them.

use haul_verbs::{Error, Peer, QpState, QpType, Result, SendWr};

use crate::rnic::operation::{Carrier, Operations, operations};
use crate::rnic::places::Places;
use crate::rnic::shape::Shape;

/// Checks a work request and takes its place among `sends`, for a caller that holds the lock of the
/// send queue.
pub(in crate::rnic) fn admit(
    shape: &Shape,
    qp_type: QpType,
    sends: &Places,
    wr: &SendWr<'_>,
) -> Result<(Peer, Operations)> {
    let steps = steps(qp_type, wr)?;
    shape.check_data(wr)?;
    let state = shape.view.state();
    if !matches!(state, QpState::Rts | QpState::Err) {
        return Err(Error::State(state));
    }
    if sends.are_taken() {
        return Err(Error::Full("send queue"));
    }
    sends.take();
    Ok(steps)
}

/// The peer of a work request, and the core's requests.
pub(in crate::rnic) fn steps(qp_type: QpType, wr: &SendWr<'_>) -> Result<(Peer, Operations)> {
    let peer = wr.peer.ok_or(Error::Invalid(
        "the work request has no peer, which a datagram service needs",
    ))?;
    let carrier = match qp_type {
        QpType::Rd => Carrier::ReliableDatagrams,
        _ => Carrier::UnreliableDatagrams,
    };
    Ok((peer, operations(wr, carrier)?))
}

/// Requests that so many work requests may become: a reliable Write with immediate data is two.
pub(super) fn send_slots(qp_type: QpType, max_send_wr: u32) -> u32 {
    match qp_type {
        QpType::Rd => 2 * max_send_wr,
        _ => max_send_wr,
    }
}
