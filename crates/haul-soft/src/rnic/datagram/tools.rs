//! What a service works with.

use haul_io::poller::Poller;
use haul_iwarp::Time;
use haul_slab::Registry;

use super::outbox::Outbox;
use crate::rnic::link::Scratch;
use crate::rnic::tap::Tap;

/// What a service works with: its shard's.
pub(in crate::rnic) struct Tools<'a> {
    pub(in crate::rnic) now: Time,
    pub(in crate::rnic) registry: &'a Registry,
    pub(in crate::rnic) scratch: &'a mut Scratch,
    /// An empty outbox, once there was one; a service with a full socket keeps its own.
    pub(in crate::rnic) outbox: &'a mut Option<Box<Outbox>>,
    pub(in crate::rnic) poller: &'a Poller,
    pub(in crate::rnic) tap: Option<&'a Tap>,
}
