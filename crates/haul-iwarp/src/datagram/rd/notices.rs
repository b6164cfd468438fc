//! Limits the rate of notices and remembers the last ones for repetition.

use std::collections::VecDeque;

use haul_cc::Time;

use super::work::Remote;
use crate::datagram::wire::{MsgId, NoticeCode, Psn};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Notices {
    pub(super) since: Time,
    pub(super) said: u32,
    /// The latest refusals, kept because a notice may be lost.
    pub(super) refusals: VecDeque<Refusal>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Refusal {
    pub(super) remote: Remote,
    pub(super) epoch: u32,
    pub(super) psn: Psn,
    pub(super) msg: MsgId,
    pub(super) code: NoticeCode,
}
