//! A packet between its checks and its effects.

use super::control::PeerId;
use super::receiving::{Effect, Part};
use crate::datagram::wire::MsgId;

/// A packet that has passed its checks and is not yet counted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pending {
    pub(super) id: PeerId,
    pub(super) psn: u64,
    pub(super) msg: MsgId,
    pub(super) part: Option<Part>,
    pub(super) effect: Option<Effect>,
    pub(super) octets: u32,
    pub(super) timestamp: u32,
    pub(super) at_once: bool,
}
