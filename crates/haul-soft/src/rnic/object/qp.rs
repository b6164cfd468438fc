//! Queue pairs, as applications hold them.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use haul_verbs::cm::ConnParam;
use haul_verbs::provider::{EventChannelOps, QpOps};
use haul_verbs::{
    Endpoint, Error, Failure, PostError, QpCapacity, QpInit, QpState, QpStatistics, RecvWr, Result,
    SendWr,
};

use super::device::{Pd, ours};
use super::endpoint::Rendezvous;
use super::event_channel::EventChannel;
use super::front::Front;
use super::qp_shape::shape;
use crate::rnic::buffers::{Buffers, Receives};
use crate::rnic::limits::{QP_WR_MAX, RD_ATOMIC_MAX, check_private_data};
use crate::rnic::lock::lock;
use crate::rnic::pair::{ConnectionState, Pair, admit};
use crate::rnic::posts::Member;
use crate::rnic::shape::View;
use crate::rnic::shard::Shard;
use crate::rnic::shared_receives::SharedReceives;

/// A queue pair: its place in a shard.
#[derive(Debug)]
pub(super) struct Qp {
    view: Arc<View>,
    capacity: QpCapacity,
    /// None: applications drive.
    front: Option<Front>,
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
        let own = srq.as_ref().and_then(Receives::own_queue);
        let receives = srq.as_ref().map_or(capacity.max_recv_wr, |_| QP_WR_MAX);
        let buffers = Buffers::new(
            pd.number,
            srq,
            Pair::send_slots(&capacity),
            receives,
            capacity.max_inline as usize,
        );
        let pair = Pair::new(shape, buffers);
        let front = Front::new(&pd, &pair.shape, &pair.sends, own);
        let shard = pd.rnic.next_shard();
        let number = shard.with(|inner| inner.insert(pair))?;
        Ok(Self {
            view,
            capacity,
            front,
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

    fn member(&self) -> Member {
        Member::Pair(self.number)
    }

    /// The queue that it alone takes receives from, where an engine drives.
    pub(super) fn own_receives(&self) -> Option<&SharedReceives> {
        self.front.as_ref()?.own()
    }

    /// There are more receives in that queue.
    pub(super) fn note_receives(&self) {
        if let Some(front) = &self.front {
            front.note_receives(&self.shard, self.member(), false);
        }
    }
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
                    Some(ConnectionState::Up(link)) => Some(link.statistics()),
                    _ => None,
                },
            );
        statistics.ok_or_else(|| Error::State(self.view.state()))
    }

    fn post_send(&self, requests: &[SendWr<'_>]) -> Result<(), PostError> {
        if let Some(front) = &self.front {
            return front.post_send(&self.shard, self.member(), requests, |wr| {
                admit(&front.shape, &front.sends, wr).map(|_| ())
            });
        }
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
        if let Some(front) = &self.front {
            return front.post_recv(&self.shard, self.member(), requests, false);
        }
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
        check_private_data(param.private_data)?;
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
                Some(ConnectionState::Up(link)) => link.core_mut().close(now),
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
