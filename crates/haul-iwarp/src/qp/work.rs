//! What users of a connection hand in and get back.

use crate::error::Error;
use crate::stag::{Pd, QpNum, RegionId, Stag};
use crate::wire::rdmap::AtomicOp;

/// Sizes of a queue pair, fixed when it is made. Memory is taken as the queues are used, never
/// beyond these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
pub struct SendWr {
    /// The user's; comes back with the completion.
    pub id: u64,
    /// The engine's name for the buffers of the request; comes back with segments and with the
    /// completion.
    pub slot: u32,
    /// What to do.
    pub op: SendOp,
    /// Octets of the message. 8 for atomics, by convention; ignored for immediates and
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

/// The operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendOp {
    /// A message into a receive of the peer.
    Send {
        /// The peer is to be woken.
        solicited: bool,
        /// The peer's tag that ends with it.
        invalidate: Option<Stag>,
    },
    /// A message into a receive of the peer, with 32 bits for its completion: one message, unlike a
    /// Send and [`SendOp::Immediate`]. For peers that know it
    /// ([`crate::wire::Features::send_immediate`]).
    SendImmediate {
        /// The bits.
        data: u32,
        /// The peer is to be woken.
        solicited: bool,
    },
    /// Into memory of the peer. Completes when its octets are no longer needed here (RFC 5040 §5.5
    /// rule 9).
    Write {
        /// The peer's tag.
        stag: Stag,
        /// Tagged offset.
        to: u64,
        /// Completes only when all octets are placed at the peer: a zero-length Read follows, and
        /// its response proves it (RFC 5040 §5.5 rule 12). Takes one of the reads that may be
        /// outstanding.
        placed: bool,
    },
    /// From memory of the peer into one range here.
    Read {
        /// This end's tag, with [`crate::Rights::LOCAL_WRITE`].
        sink: Stag,
        /// Tagged offset there.
        sink_to: u64,
        /// The peer's tag.
        source: Stag,
        /// Tagged offset there.
        source_to: u64,
    },
    /// On a 64-bit word of the peer; the old value comes with the completion.
    Atomic {
        /// The peer's tag.
        stag: Stag,
        /// Tagged offset, a multiple of eight.
        to: u64,
        /// What to do.
        op: AtomicOp,
    },
    /// Eight octets into a receive of the peer. After a Write it is InfiniBand's write with
    /// immediate.
    Immediate {
        /// The octets, as a big-endian number.
        data: u64,
        /// The peer is to be woken.
        solicited: bool,
    },
    /// A tag of this end ends. Nothing is sent; it waits until all requests before it are complete,
    /// and those behind it wait for it.
    LocalInvalidate(Stag),
}

pub(crate) fn is_read(op: &SendOp) -> bool {
    matches!(op, SendOp::Read { .. } | SendOp::Atomic { .. })
}

/// A receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecvWr {
    /// The user's; comes back with the completion.
    pub id: u64,
    /// The engine's name for the buffers; comes back with placements and with the completion.
    pub slot: u32,
    /// Octets of the buffers together.
    pub len: u32,
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

/// Which operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompletionKind {
    /// [`SendOp::Send`], [`SendOp::SendImmediate`].
    Send,
    /// [`SendOp::Write`].
    Write,
    /// [`SendOp::Read`].
    Read,
    /// [`SendOp::Atomic`], with the word as it was.
    Atomic {
        /// The word as it was.
        original: u64,
    },
    /// [`SendOp::Immediate`].
    Immediate,
    /// [`SendOp::LocalInvalidate`].
    LocalInvalidate,
    /// A receive, by a Send.
    Receive {
        /// The sender asked for this end to be woken.
        solicited: bool,
        /// The tag that the sender ended.
        invalidated: Option<Stag>,
    },
    /// A receive, by a Send with immediate data.
    ReceiveSendImmediate {
        /// The bits.
        data: u32,
        /// The sender asked for this end to be woken.
        solicited: bool,
    },
    /// A receive, by Immediate Data; the buffers are as they were.
    ReceiveImmediate {
        /// The octets, as a big-endian number.
        data: u64,
        /// The sender asked for this end to be woken.
        solicited: bool,
    },
}

/// The end of an operation. From here on the core does not name its buffers again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// From the request or receive.
    pub id: u64,
    /// From the request or receive.
    pub slot: u32,
    /// How.
    pub status: Status,
    /// What.
    pub kind: CompletionKind,
    /// Octets of the message.
    pub len: u32,
    /// From the request; true for receives.
    pub signalled: bool,
}

/// What happened to a connection. Drain after every call that takes `&mut`.
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
    /// Nothing follows what has been polled: close the sending half of the lower layer once that is
    /// sent.
    ShutdownSend,
    /// Close the lower layer: the connection is over. The last event.
    Disconnect,
}

/// Where a segment's payload lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// It has none beyond its header.
    None,
    /// In the buffers of a request, `offset` octets into the message.
    Request {
        /// [`SendWr::slot`].
        slot: u32,
        /// Octets from the start of the message.
        offset: u32,
    },
    /// In registered memory: the response to a read.
    Region {
        /// The memory.
        region: RegionId,
        /// Octets from its start.
        offset: u64,
    },
}
