//! Whose memory a peer may use (RFC 5041 §8.2, RFC 5040 §7.2).

use crate::memory::Memory;
use crate::qp::QpConfig;
use crate::stag::{Pd, QpNum, RegionId, Rights, Stag, StagEntry};

/// The identity of a queue pair towards memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Access {
    pd: Pd,
    qp: QpNum,
}

impl Access {
    pub(super) fn new(config: &QpConfig) -> Self {
        Self {
            pd: config.pd,
            qp: config.qp,
        }
    }

    /// The region behind `len` bytes at `to`, if the tag is valid, this queue pair's, and allows
    /// `rights` there.
    pub(super) fn find(
        &self,
        memory: &impl Memory,
        (stag, to, len): (Stag, u64, u32),
        rights: Rights,
    ) -> Option<(RegionId, u64)> {
        let entry = self.entry(memory, stag, rights)?;
        let end = to.checked_add(u64::from(len))?;
        let offset = to.checked_sub(entry.base)?;
        (end - entry.base <= entry.len).then_some((entry.region, offset))
    }

    /// Whether the tag may be invalidated on a peer's behalf.
    pub(super) fn may_invalidate(&self, memory: &impl Memory, stag: Stag) -> bool {
        self.entry(memory, stag, Rights::REMOTE_INVALIDATE)
            .is_some()
    }

    fn entry(&self, memory: &impl Memory, stag: Stag, rights: Rights) -> Option<StagEntry> {
        memory.lookup(stag).filter(|entry| {
            let mine = entry.pd == self.pd && entry.qp.is_none_or(|qp| qp == self.qp);
            mine && entry.rights.contains(rights)
        })
    }
}
