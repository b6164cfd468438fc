//! A read or atomic of the peer, until it is answered.

use crate::wire::rdmap::{AtomicRequest, AtomicResponse, ReadRequest};

/// A request of the peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Response {
    pub(super) kind: Kind,
    /// Its number on queue 1, for a Terminate.
    pub(super) msn: u32,
    /// Bytes that are in segments.
    pub(super) sent: u32,
    pub(super) first_segment: u64,
    pub(super) segments: u32,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Read(ReadRequest),
    Atomic(AtomicRequest),
    /// Performed: a retransmitted response must carry the same value.
    Performed {
        response: AtomicResponse,
        msn: u32,
    },
}
