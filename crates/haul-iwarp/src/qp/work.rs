//! Requests, completions and events of a connection.

use crate::error::Error;
use crate::operation::{CompletionKind, Operation};
use crate::stag::{Pd, QpNum, RegionId};

/// Sizes of a queue pair, fixed when it is made. Memory is taken as the queues are used, never
/// beyond these. Build it from [`QpConfig::default`], then set fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpConfig {
    /// Its protection domain.
    pub pd: Pd,
    /// Its name, for tags that are narrowed to it.
    pub qp: QpNum,
    /// Requests that may be posted and not completed. A Write with proof of placement takes two.
    pub send_depth: u32,
    /// Receives that may be posted and not completed.
    pub recv_depth: u32,
    /// Receives come from a shared queue: [`crate::Memory::take_receive`].
    pub shared_receive: bool,
    /// Reads and atomics of the peer that are taken at once, 0..0x3fff. Negotiation may lower it.
    pub ird: u16,
    /// Reads and atomics that this end may have outstanding, 0..0x3fff. Negotiation may lower it.
    pub ord: u16,
}

impl Default for QpConfig {
    fn default() -> Self {
        Self {
            pd: Pd(0),
            qp: QpNum(0),
            send_depth: 128,
            recv_depth: 128,
            shared_receive: false,
            ird: 16,
            ord: 16,
        }
    }
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SendWr {
    /// The user's; comes back with the completion.
    pub id: u64,
    /// The engine's name for the buffers of the request; comes back with segments and with the
    /// completion.
    pub slot: u32,
    /// The operation.
    pub op: Operation,
    /// Bytes of the message. 8 for atomics, by convention; ignored for immediates and
    /// invalidations.
    pub len: u32,
    /// Comes back with the completion, for the engine to act on: every request completes here.
    pub signalled: bool,
    /// Not begun before all earlier reads and atomics are complete.
    pub fence: bool,
    /// Part of the same work as the request before it, which completes no earlier: an error of that
    /// one finds it still there.
    pub continues: bool,
}

impl SendWr {
    /// Makes a signalled request that neither fences nor continues another.
    #[must_use]
    pub const fn new(id: u64, slot: u32, op: Operation, len: u32) -> Self {
        Self {
            id,
            slot,
            op,
            len,
            signalled: true,
            fence: false,
            continues: false,
        }
    }
}

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Well.
    Success,
    /// Not done, or not known to be done: the connection ended before.
    Flushed,
    /// The peer refused access to its memory.
    RemoteAccess,
    /// The peer could not take or understand the operation: no receive was posted, a receive was
    /// too small.
    RemoteOperation,
    /// Local memory does not allow it.
    LocalProtection,
}

/// The end of an operation. From here on the core does not name its buffers again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Completion {
    /// From the request or receive.
    pub id: u64,
    /// From the request or receive.
    pub slot: u32,
    /// How.
    pub status: Status,
    /// What.
    pub kind: CompletionKind,
    /// Bytes of the message.
    pub len: u32,
    /// From the request; true for receives.
    pub signalled: bool,
}

/// An event of a connection. Drain all after every call that takes `&mut`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Responder: a request is there; answer with `accept` or `reject`.
    Request,
    /// Both ends have agreed; requests may be posted.
    Established,
    /// An operation ended.
    Completion(Completion),
    /// The connection has failed; comes once, before the flushed completions.
    Error(Error),
    /// No more data follows the polled segments: close the sending direction of the lower layer
    /// once they are sent.
    ShutdownSend,
    /// Close the lower layer: the connection is over. The last event.
    Disconnect,
}

/// Where a segment's payload lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// It has none beyond its header.
    None,
    /// In the buffers of a request, `offset` bytes into the message.
    Request {
        /// [`SendWr::slot`].
        slot: u32,
        /// Bytes from the start of the message.
        offset: u32,
    },
    /// In registered memory: the response to a read.
    Region {
        /// The memory.
        region: RegionId,
        /// Bytes from its start.
        offset: u64,
    },
}
