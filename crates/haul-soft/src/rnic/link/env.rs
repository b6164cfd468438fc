//! What links work with: their shard's.

use std::io;
use std::sync::atomic::AtomicU32;

use haul_io::poller::Poller;
use haul_io::stream::Stream;
use haul_io::udp::RecvBatch;
use haul_iwarp::Time;
use haul_slab::Registry;

use super::batch::Batch;
use crate::rnic::buffers::Buffers;

/// A connection's socket, and who sleeps until something arrives there.
#[derive(Debug)]
pub(in crate::rnic) struct Watched {
    pub(in crate::rnic) stream: Stream,
    /// Threads that sleep on this socket instead of on the poller.
    pub(in crate::rnic) sleepers: AtomicU32,
}

/// What a link works with.
pub(in crate::rnic) struct Env<'a> {
    pub(in crate::rnic) now: Time,
    pub(in crate::rnic) registry: &'a Registry,
    pub(in crate::rnic) buffers: &'a mut Buffers,
    pub(in crate::rnic) scratch: &'a mut Scratch,
    pub(in crate::rnic) poller: &'a Poller,
}

/// What the links of a shard share.
#[derive(Debug)]
pub(in crate::rnic) struct Scratch {
    pub(super) bytes: Box<[u8]>,
    /// None while it is filled and sent.
    pub(super) batch: Option<Box<Batch>>,
    /// For payload that is verified before it is placed; only where that was asked for.
    pub(super) stage: Option<Box<[u8]>>,
    /// For arrivals over UDP, once there are any.
    datagrams: Option<RecvBatch>,
}

/// Bytes of the shared buffer.
pub(super) const BUFFER: usize = 64 << 10;
/// Bytes of the longest payload of an FPDU.
pub(super) const STAGE: usize = 64 << 10;
const MESSAGES: usize = 8;
const MESSAGE_BYTES: usize = 64 << 10;

impl Scratch {
    pub(in crate::rnic) fn new(strict: bool) -> Self {
        Self {
            bytes: vec![0; BUFFER].into(),
            batch: None,
            stage: strict.then(|| vec![0; STAGE].into()),
            datagrams: None,
        }
    }

    /// Buffers for datagrams; none where there is no memory for them.
    pub(in crate::rnic) fn take_batch(&mut self) -> Option<RecvBatch> {
        let kept = self.datagrams.take();
        kept.or_else(|| batch().ok())
    }

    pub(in crate::rnic) fn give_batch(&mut self, batch: RecvBatch) {
        self.datagrams = Some(batch);
    }
}

/// Buffers for arrivals, which a shard's connections share.
fn batch() -> io::Result<RecvBatch> {
    RecvBatch::new(MESSAGES, MESSAGE_BYTES, 0)
}
