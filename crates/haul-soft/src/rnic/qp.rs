//! Queue pairs, as applications hold them.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use haul_verbs::cm::ConnParam;
use haul_verbs::provider::{CqOps, EventChannelOps, QpOps};
use haul_verbs::{
    Endpoint, Error, Failure, PostError, QpCapacity, QpInit, QpState, QpStatistics, QpType, RecvWr,
    Result, SendWr,
};

use super::buffers::Buffers;
use super::context::ours;
use super::cq::Cq;
use super::endpoint::Rendezvous;
use super::events::EventChannel;
use super::memory::Pd;
use super::pair::{Link, Pair, Shape, View};
use super::shard::Shard;
use super::srq::Srq;
use super::{INLINE_MAX, PRIVATE_DATA_MAX, QP_WR_MAX, RD_ATOMIC_MAX, SGES_MAX, lock};

/// A queue pair: its place in a shard.
#[derive(Debug)]
pub(super) struct Qp {
    view: Arc<View>,
    capacity: QpCapacity,
    shard: Arc<Shard>,
    number: u32,
    /// Where a peer may come to without the connection manager, if the application has asked.
    rendezvous: Mutex<Option<Rendezvous>>,
    /// What it was made from, the context before all.
    pd: Arc<Pd>,
}

/// IRD and ORD that an application asks for.
pub(super) fn limits(param: &ConnParam<'_>) -> (u16, u16) {
    let ird = param.responder_resources.min(RD_ATOMIC_MAX);
    (ird, param.initiator_depth.min(RD_ATOMIC_MAX))
}

impl Qp {
    pub(super) fn new(pd: Arc<Pd>, init: &QpInit<'_>) -> Result<Self> {
        let (shape, srq) = shape(&pd, init)?;
        let (view, capacity) = (Arc::clone(&shape.view), shape.capacity);
        let receives = srq.as_ref().map_or(capacity.max_recv_wr, |_| QP_WR_MAX);
        let buffers = Buffers::new(
            pd.number,
            srq,
            Pair::send_slots(&capacity),
            receives,
            capacity.max_inline as usize,
        );
        let shard = pd.rnic.next_shard();
        let number = shard.with(|inner| inner.insert(Pair::new(shape, buffers)))?;
        Ok(Self {
            view,
            capacity,
            shard,
            number,
            rendezvous: Mutex::new(None),
            pd,
        })
    }

    pub(super) fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }
}

/// A shared receive queue, and its protection domain.
pub(super) type Shared = (Arc<super::srq::Shared>, u32);

/// What every queue pair has, with a number of its own; and where its receives come from, if they
/// are shared.
pub(super) fn shape(pd: &Pd, init: &QpInit<'_>) -> Result<(Shape, Option<Shared>)> {
    check_capacity(&init.capacity)?;
    match init.rate_limit {
        Some(limit) if limit.bits_per_second == 0 => {
            return Err(Error::Invalid("nothing is sent at a rate of 0"));
        }
        Some(_) if init.qp_type == QpType::Ud => {
            return Err(Error::Unsupported(
                "a limit of unreliable datagrams on the wire: max_rate is of payload",
            ));
        }
        _ => {}
    }
    let (send_cq, recv_cq) = (
        queue(pd, init.send_cq.ops())?,
        queue(pd, init.recv_cq.ops())?,
    );
    let srq = match init.srq {
        Some(srq) => {
            let srq: &Srq = ours(srq.ops())?;
            Some((Arc::clone(&srq.shared), srq.pd.number))
        }
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

impl QpOps for Qp {
    fn qp_num(&self) -> u32 {
        self.view.qp_num
    }

    fn state(&self) -> QpState {
        self.view.state()
    }

    fn failure(&self) -> Option<Failure> {
        self.view.failure()
    }

    fn capacity(&self) -> QpCapacity {
        self.capacity
    }

    fn statistics(&self) -> Result<QpStatistics> {
        let statistics =
            self.shard.with(
                |inner| match inner.pair(self.number).map(|pair| &pair.link) {
                    Some(Link::Up(link)) => Some(link.statistics()),
                    _ => None,
                },
            );
        statistics.ok_or_else(|| Error::State(self.view.state()))
    }

    fn post_send(&self, requests: &[SendWr<'_>]) -> Result<(), PostError> {
        self.shard.with(|inner| {
            let posted = match inner.pair(self.number) {
                Some(pair) => pair.post_send(requests),
                None => Ok(()),
            };
            inner.transmit(self.number);
            posted
        })
    }

    fn post_recv(&self, requests: &[RecvWr]) -> Result<(), PostError> {
        self.shard.with(|inner| {
            let posted = match inner.pair(self.number) {
                Some(pair) => pair.post_recv(requests),
                None => Ok(()),
            };
            inner.report(self.number);
            posted
        })
    }

    fn connect(
        self: Arc<Self>,
        peer: SocketAddr,
        param: &ConnParam<'_>,
        channel: &Arc<dyn EventChannelOps>,
    ) -> Result<()> {
        let channel: &EventChannel = ours(channel)?;
        let limit = PRIVATE_DATA_MAX as u64;
        Error::at_most("private_data", param.private_data.len() as u64, limit)?;
        let (private, limits) = (param.private_data, limits(param));
        self.shard
            .with(|inner| inner.connect(self.number, peer, private, limits, &channel.events))
    }

    fn endpoint(&self) -> Result<Endpoint> {
        let rendezvous = self.rendezvous()?;
        let own = rendezvous.own();
        *lock(&self.rendezvous) = Some(rendezvous);
        Ok(own)
    }

    fn connect_endpoint(
        self: Arc<Self>,
        peer: &Endpoint,
        param: &ConnParam<'_>,
        timeout: Duration,
    ) -> Result<()> {
        let rendezvous = self.rendezvous()?;
        rendezvous.meet(self, peer, param, timeout)
    }

    fn disconnect(&self) -> Result<()> {
        self.shard.with(|inner| {
            let now = inner.now;
            match inner.pair(self.number).map(|pair| &mut pair.link) {
                Some(Link::Up(link)) => link.finish(now),
                _ => return Err(Error::State(self.view.state())),
            }
            inner.transmit(self.number);
            Ok(())
        })
    }
}

impl Qp {
    fn rendezvous(&self) -> Result<Rendezvous> {
        match lock(&self.rendezvous).take() {
            Some(rendezvous) => Ok(rendezvous),
            None => Rendezvous::new(&self.pd.rnic, self.view.qp_num),
        }
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.shard.with(|inner| inner.orphan(self.number));
    }
}
