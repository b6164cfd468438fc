//! What applications post to where an engine alone drives: a queue pair's queues, without the
//! shard's baton (docs/adr/0057).

use std::sync::Arc;

use haul_verbs::{Error, PostError, QpState, RecvWr, Result, SendWr};

use super::device::Pd;
use crate::rnic::places::Places;
use crate::rnic::posts::Member;
use crate::rnic::shape::{NOT_SHARED, Shape};
use crate::rnic::shard::Shard;
use crate::rnic::shared_receives::SharedReceives;

/// See the module.
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
        if count > 0 {
            self.note_receives(shard, member, is_awaited);
        }
        posted
    }

    /// There are more receives.
    pub(super) fn note_receives(&self, shard: &Shard, member: Member, is_awaited: bool) {
        // Whoever sets this state flushes afterwards: it finds them, or they are seen here.
        if is_awaited || self.shape.view.state() == QpState::Err {
            shard.post(|batch| batch.call(member));
        }
    }

    /// The queue of receives, if it is not a shared one.
    pub(super) fn own(&self) -> Option<&SharedReceives> {
        self.own.as_deref()
    }
}
