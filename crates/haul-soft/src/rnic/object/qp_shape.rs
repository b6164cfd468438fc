//! What every queue pair is made from, and what applications post to where an engine alone drives.

use std::sync::Arc;

use haul_verbs::provider::CqOps;
use haul_verbs::{
    Error, PostError, QpCapacity, QpInit, QpState, QpType, RecvWr, Result, SendWr, SrqInit,
};

use super::cq::Cq;
use super::device::{Pd, ours};
use super::srq::Srq;
use crate::rnic::buffers::Receives;
use crate::rnic::limits::{INLINE_MAX, QP_WR_MAX, SGES_MAX};
use crate::rnic::places::Places;
use crate::rnic::posts::Member;
use crate::rnic::shape::{NOT_SHARED, Shape, View};
use crate::rnic::shard::Shard;
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

/// A queue pair whose shard's engine alone drives: what applications post to.
#[derive(Debug)]
pub(super) struct Front {
    pub(super) shape: Shape,
    pub(super) sends: Arc<Places>,
    /// None: a shared queue, which has its own way.
    own: Option<Arc<SharedReceives>>,
}

impl Front {
    /// None if applications drive.
    pub(super) fn new(
        pd: &Pd,
        shape: &Shape,
        sends: &Arc<Places>,
        own: Option<Arc<SharedReceives>>,
    ) -> Option<Self> {
        pd.rnic.is_offloaded().then(|| Self {
            shape: shape.clone(),
            sends: Arc::clone(sends),
            own,
        })
    }

    /// Leaves those of `requests` to the engine that `admit` takes, up to the first that it does
    /// not.
    pub(super) fn post_send(
        &self,
        shard: &Shard,
        member: Member,
        requests: &[SendWr<'_>],
        admit: impl Fn(&SendWr<'_>) -> Result<()>,
    ) -> Result<(), PostError> {
        shard.post(|batch| {
            for (posted, wr) in requests.iter().enumerate() {
                admit(wr).map_err(|error| PostError::new(posted, error))?;
                batch.push(member, wr);
            }
            Ok(())
        })
    }

    /// Posts receives; the engine looks after them if `is_awaited`, or if the queue pair is in
    /// error.
    pub(super) fn post_recv(
        &self,
        shard: &Shard,
        member: Member,
        requests: &[RecvWr],
        is_awaited: bool,
    ) -> Result<(), PostError> {
        let own = self
            .own
            .as_ref()
            .ok_or_else(|| PostError::new(0, NOT_SHARED))?;
        let posted = own.post(requests).map_err(|refused| match refused.error {
            Error::Full(_) => PostError::new(refused.posted, Error::Full("receive queue")),
            _ => refused,
        });
        let count = match &posted {
            Ok(()) => requests.len(),
            Err(refused) => refused.posted,
        };
        // Whoever sets this state flushes afterwards: it finds them, or they are seen here.
        if count > 0 && (is_awaited || self.shape.view.state() == QpState::Err) {
            shard.post(|batch| batch.call(member));
        }
        posted
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
