//! Shared receive queues, as applications hold them.

use std::sync::Arc;

use haul_verbs::provider::SrqOps;
use haul_verbs::{Error, PostError, RecvWr, Result, SrqInit};

use super::device::Pd;
use crate::rnic::limits::SGES_MAX;
use crate::rnic::shared_receives::SharedReceives;

/// Receives for any queue pair that was made with it.
#[derive(Debug)]
pub(super) struct Srq {
    pub(super) shared: Arc<SharedReceives>,
    pub(super) pd: Arc<Pd>,
}

/// Limits of the device.
pub(super) const SRQ_WR_MAX: u32 = 1 << 20;

impl Srq {
    pub(super) fn new(pd: Arc<Pd>, init: &SrqInit) -> Result<Self> {
        Error::at_least("max_wr", init.max_wr.into(), 1)?;
        Error::at_most("max_wr", init.max_wr.into(), SRQ_WR_MAX.into())?;
        Error::at_most("max_sge", init.max_sge.into(), SGES_MAX.into())?;
        Ok(Self {
            shared: Arc::new(SharedReceives::new(init, &pd.rnic.async_events)),
            pd,
        })
    }
}

impl SrqOps for Srq {
    fn post_recv(&self, requests: &[RecvWr]) -> Result<(), PostError> {
        self.shared.post(requests)
    }

    fn arm_limit(&self, limit: u32) -> Result<()> {
        Error::at_most("limit", limit.into(), self.shared.max_wr().into())?;
        self.shared.arm_limit(limit);
        Ok(())
    }
}
