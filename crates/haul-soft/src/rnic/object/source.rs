//! For whoever has the queues of a queue pair outside of this process: receives that are taken
//! from there, and what can be checked of a request before it comes here (docs/adr/0061).

use std::sync::Arc;

use haul_verbs::{Error, QpCapacity, QpType, RecvWr, Result, SendOp, SendWr};

use super::datagram_qp::DatagramQp;
use super::device::ours;
use super::qp::Qp;
use super::srq::Srq;
use crate::rnic::datagram::steps;
use crate::rnic::operation::{Carrier, operations};
use crate::rnic::pair::check;
use crate::rnic::shape::{check_data, check_len, check_pieces};
use crate::rnic::shared_receives::{ReceiveSource, SharedReceives};

const CALLERS_DRIVE: Error = Error::Invalid("receives have a source only where engines drive");

/// Lets a queue pair take its receives from `source`. Nothing may be posted to it then.
///
/// # Errors
/// [`Error::Invalid`] for a queue pair with a shared queue, with a source, of another provider, or
/// of a device that applications drive.
pub fn receive_from(qp: &haul_verbs::Qp, source: Arc<dyn ReceiveSource>) -> Result<()> {
    let own = match ours::<Qp>(qp.ops()) {
        Ok(qp) => qp.own_receives(),
        Err(_) => ours::<DatagramQp>(qp.ops())?.own_receives(),
    };
    own.ok_or(CALLERS_DRIVE)?.set_source(source)
}

/// Lets a shared queue take its receives from `source`. Nothing may be posted to it then.
///
/// # Errors
/// [`Error::Invalid`] for a queue with a source, or of another provider.
pub fn share_receives_from(srq: &haul_verbs::Srq, source: Arc<dyn ReceiveSource>) -> Result<()> {
    let srq: &Srq = ours(srq.ops())?;
    let shared: &SharedReceives = &srq.shared;
    shared.set_source(source)
}

/// Tells a queue pair that its source has more receives: a reliable peer may wait for them, and in
/// error they are flushed.
///
/// # Errors
/// [`Error::Invalid`] for a queue pair of another provider.
pub fn note_receives(qp: &haul_verbs::Qp) -> Result<()> {
    match ours::<Qp>(qp.ops()) {
        Ok(qp) => qp.note_receives(),
        Err(_) => ours::<DatagramQp>(qp.ops())?.note_receives(),
    }
    Ok(())
}

/// Checks of a send request what does not depend on the state of its queue pair or on its peer.
///
/// # Errors
/// As [`Qp::post_send`](haul_verbs::Qp::post_send).
pub fn check_send(qp_type: QpType, capacity: &QpCapacity, wr: &SendWr<'_>) -> Result<()> {
    match qp_type {
        QpType::Ud | QpType::Rd => {
            steps(qp_type, wr)?;
            check_data(capacity, wr)?;
        }
        _ => {
            check(capacity, wr)?;
            // Whether data and immediate fit into one message is the peer's.
            if !matches!(wr.op, SendOp::SendWithImm(_)) {
                operations(wr, Carrier::Connection(None))?;
            }
        }
    }
    Ok(())
}

/// Checks a receive request.
///
/// # Errors
/// As [`Qp::post_recv`](haul_verbs::Qp::post_recv).
pub fn check_receive(max_sge: u32, wr: &RecvWr) -> Result<()> {
    check_pieces(&wr.sges, max_sge)?;
    check_len(wr.sges.total_len()).map(|_| ())
}
