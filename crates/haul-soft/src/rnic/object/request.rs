//! Requests for connections, until the application has answered them.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use haul_verbs::cm::ConnParam;
use haul_verbs::provider::{QpOps, RequestOps};
use haul_verbs::{Error, QpState, Result};

use super::device::ours;
use super::qp::{Qp, limits};
use crate::rnic::limits::check_private_data;
use crate::rnic::shard::Shard;

/// A request that waits for an answer; dropped without one, it is rejected.
#[derive(Debug)]
pub(super) struct Request {
    shard: Weak<Shard>,
    number: u32,
    /// Tells the connection from a later one of the same number.
    peer: SocketAddr,
    answered: bool,
}

const GONE: Error = Error::Invalid("the connection, or its listener, is gone");

impl RequestOps for Request {
    fn accept(mut self: Box<Self>, qp: &Arc<dyn QpOps>, param: &ConnParam<'_>) -> Result<()> {
        let qp: &Qp = ours(qp)?;
        check_private_data(param.private_data)?;
        let state = qp.state();
        if state != QpState::Reset {
            return Err(Error::State(state));
        }
        let shard = self.shard.upgrade().ok_or(GONE)?;
        let pending = shard.with(|inner| {
            let pending = inner.pending.get(self.number);
            let ours = pending.is_some_and(|pending| pending.peer == self.peer);
            ours.then(|| inner.take_pending(self.number)).flatten()
        });
        let pending = pending.ok_or(GONE)?;
        self.answered = true;
        let (private, limits) = (param.private_data, limits(param));
        qp.shard()
            .with(|inner| inner.adopt(qp.number(), pending, private, limits))
    }

    fn reject(mut self: Box<Self>, private_data: &[u8]) -> Result<()> {
        let checked = check_private_data(private_data);
        self.turn_away(if checked.is_ok() { private_data } else { &[] });
        checked
    }
}

impl Request {
    pub(super) fn boxed(shard: Weak<Shard>, number: u32, peer: SocketAddr) -> Box<dyn RequestOps> {
        Box::new(Self {
            shard,
            number,
            peer,
            answered: false,
        })
    }

    fn turn_away(&mut self, private_data: &[u8]) {
        if std::mem::replace(&mut self.answered, true) {
            return;
        }
        let Some(shard) = self.shard.upgrade() else {
            return;
        };
        shard.with(|inner| {
            let now = inner.now;
            if let Some(pending) = inner.pending.get_mut(self.number)
                && pending.peer == self.peer
            {
                // It fails where the peer has gone, and then it knows.
                let _ = pending.link.core_mut().reject(now, private_data);
                inner.turn_pending(self.number);
            }
        });
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.turn_away(&[]);
    }
}
