//! Shared receive queues.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use crate::error::{Error, PostError, Result};
use crate::work::RecvWr;

/// Parameters of a new shared receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SrqInit {
    /// Receive work requests that are posted and whose completions have not been polled.
    pub max_wr: u32,
    /// Pieces of each.
    pub max_sge: u32,
    /// Identifies it in [`AsyncEvent::SrqLimitReached`](crate::AsyncEvent::SrqLimitReached).
    pub token: u64,
}

impl Default for SrqInit {
    fn default() -> Self {
        Self {
            max_wr: 1_024,
            max_sge: 1,
            token: 0,
        }
    }
}

/// A shared receive queue. Clones are the same.
#[derive(Debug, Clone)]
pub struct Srq(Arc<dyn SrqOps>);

impl Srq {
    pub(crate) fn from_ops(ops: Arc<dyn SrqOps>) -> Self {
        Self(ops)
    }

    /// Returns the provider's object.
    #[must_use]
    pub fn ops(&self) -> &Arc<dyn SrqOps> {
        &self.0
    }

    /// Posts receive work requests.
    ///
    /// # Errors
    /// As `Qp::post_recv`.
    pub fn post_recv(&self, requests: &[RecvWr]) -> Result<(), PostError> {
        self.0.post_recv(requests)
    }

    /// Reports once, as an asynchronous event, that fewer than `limit` work requests are left. Zero
    /// turns it off.
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    pub fn arm_limit(&self, limit: u32) -> Result<()> {
        self.0.arm_limit(limit)
    }
}

/// A provider's part of [`Srq`].
pub trait SrqOps: Any + Debug + Send + Sync {
    /// See [`Srq::post_recv`](crate::Srq::post_recv).
    fn post_recv(&self, requests: &[RecvWr]) -> Result<(), PostError>;
    /// See [`Srq::arm_limit`](crate::Srq::arm_limit).
    fn arm_limit(&self, _limit: u32) -> Result<()> {
        Err(Error::Unsupported("a limit event"))
    }
}
