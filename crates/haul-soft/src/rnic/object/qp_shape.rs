//! What every queue pair is made from.

use std::sync::Arc;

use haul_verbs::provider::CqOps;
use haul_verbs::{Error, QpCapacity, QpInit, QpType, Result, SrqInit};

use super::cq::Cq;
use super::device::{Pd, ours};
use super::srq::Srq;
use crate::rnic::buffers::Receives;
use crate::rnic::limits::{INLINE_MAX, QP_WR_MAX, SGES_MAX};
use crate::rnic::shape::{Shape, View};
use crate::rnic::shared_receives::SharedReceives;

/// What every queue pair has, with a number of its own; and where its receives come from, if they
/// are shared.
pub(super) fn shape(pd: &Pd, init: &QpInit<'_>) -> Result<(Shape, Option<Receives>)> {
    check_capacity(&init.capacity)?;
    if let Some(limit) = init.rate_limit {
        Error::at_least("rate_limit.bits_per_second", limit.bits_per_second, 1)?;
        if init.qp_type == QpType::Ud {
            return Err(Error::Unsupported(
                "rate_limit of UD (datagram.max_rate limits its payload)",
            ));
        }
    }
    let (send_cq, recv_cq) = (
        queue(pd, init.send_cq.ops())?,
        queue(pd, init.recv_cq.ops())?,
    );
    let srq = match init.srq {
        Some(srq) => {
            let srq: &Srq = ours(srq.ops())?;
            Some(Receives {
                queue: Arc::clone(&srq.shared),
                pd: srq.pd.number,
                own: false,
            })
        }
        None if pd.rnic.is_offloaded() => Some(own_receives(pd, &init.capacity)),
        None => None,
    };
    let shape = Shape {
        view: Arc::new(View::new(pd.rnic.next_qp_num())),
        send_cq: Arc::clone(&send_cq.queue),
        recv_cq: Arc::clone(&recv_cq.queue),
        capacity: init.capacity,
        signal_all: init.signal_all,
        remote_placement: init.remote_placement,
        rate_limit: init.rate_limit,
    };
    Ok((shape, srq))
}

fn own_receives(pd: &Pd, capacity: &QpCapacity) -> Receives {
    let mut init = SrqInit::default();
    (init.max_wr, init.max_sge) = (capacity.max_recv_wr, capacity.max_recv_sge);
    Receives {
        queue: Arc::new(SharedReceives::new(&init, &pd.rnic.async_events)),
        pd: pd.number,
        own: true,
    }
}

fn check_capacity(capacity: &QpCapacity) -> Result<()> {
    let limits = [
        ("max_send_wr", capacity.max_send_wr, QP_WR_MAX),
        ("max_recv_wr", capacity.max_recv_wr, QP_WR_MAX),
        ("max_send_sge", capacity.max_send_sge, SGES_MAX),
        ("max_recv_sge", capacity.max_recv_sge, SGES_MAX),
        ("max_inline", capacity.max_inline, INLINE_MAX),
    ];
    let check =
        |(field, value, limit): (_, u32, u32)| Error::at_most(field, value.into(), limit.into());
    limits.into_iter().try_for_each(check)
}

fn queue<'a>(pd: &Pd, ops: &'a Arc<dyn CqOps>) -> Result<&'a Cq> {
    let cq: &Cq = ours(ops)?;
    if !Arc::ptr_eq(&cq.rnic, &pd.rnic) {
        return Err(Error::Invalid("a completion queue of another context"));
    }
    Ok(cq)
}
