//! Whether a datagram may touch memory. Looked up for each one: a tag that was taken away is
//! refused from that moment.

use super::config::UdConfig;
use super::work::Reason;
use crate::address::Source;
use crate::memory::{Memory, Target};
use crate::stag::{Rights, Stag, StagEntry};

/// Top byte of the tags that a group may write.
const GROUP_TAG: u32 = 0xff;

/// The sender of a request, as the access checks need it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Access<'a> {
    pub(super) config: &'a UdConfig,
    pub(super) from: Source,
    pub(super) is_validated: bool,
    pub(super) group: bool,
}

impl Access<'_> {
    /// The entry of a tag that the sender may use for this.
    pub(super) fn entry<M: Memory + ?Sized>(
        &self,
        memory: &M,
        stag: Stag,
        rights: Rights,
    ) -> Result<StagEntry, Reason> {
        let entry = local_entry(self.config, memory, stag)?;
        if !entry.rights.contains(rights) {
            return Err(Reason::Access);
        }
        if self.group && !(self.config.group_writes && stag.0 >> 24 == GROUP_TAG) {
            return Err(Reason::Access);
        }
        if !memory.admits(stag, &self.from, self.is_validated) {
            return Err(if self.is_validated {
                Reason::Access
            } else {
                Reason::UnknownPeer
            });
        }
        Ok(entry)
    }
}

/// The entry of a tag of this domain.
pub(super) fn local_entry<M: Memory + ?Sized>(
    config: &UdConfig,
    memory: &M,
    stag: Stag,
) -> Result<StagEntry, Reason> {
    let entry = memory.lookup(stag).ok_or(Reason::BadStag)?;
    if entry.pd != config.pd || entry.qp.is_some_and(|qp| qp != config.qp) {
        return Err(Reason::Access);
    }
    Ok(entry)
}

/// Where `to..to + len` is, which does not wrap.
pub(super) fn place(entry: &StagEntry, to: u64, len: u32) -> Result<Target, Reason> {
    let offset = to.checked_sub(entry.base).ok_or(Reason::Bounds)?;
    let end = offset.checked_add(u64::from(len)).ok_or(Reason::Bounds)?;
    if end > entry.len {
        return Err(Reason::Bounds);
    }
    Ok(Target::Region {
        region: entry.region,
        offset,
    })
}
