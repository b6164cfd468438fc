//! The operations of send requests, and receives, of every kind of queue pair.

use crate::stag::Stag;
use crate::wire::rdmap::AtomicOp;

/// The operation of a send request. A queue pair refuses an operation that its transport does not
/// have with [`crate::PostError::Unsupported`]:
///
/// | operation | connection (RC) | unreliable datagrams (UD) | reliable datagrams (RD) |
/// |---|---|---|---|
/// | `Send` | yes | without `invalidate` | yes |
/// | `SendImmediate` | if the peer knows it | no | no |
/// | `Immediate` | if the peer knows it | yes | yes |
/// | `Write` | yes | without `placed` | without `placed` |
/// | `WriteRecord` | no | yes | yes |
/// | `Read` | yes | yes, to a peer that knows this end | yes |
/// | `Atomic` | if the peer knows it | no | yes |
/// | `LocalInvalidate` | yes | no | no |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Sends a message into a receive of the peer.
    Send {
        /// The peer is to be woken.
        solicited: bool,
        /// The peer's tag that ends with it.
        invalidate: Option<Stag>,
    },
    /// Sends a message into a receive of the peer, with 32 bits for its completion: one message,
    /// unlike a Send and [`Operation::Immediate`]. For peers that know it
    /// ([`crate::wire::Features::send_immediate`]).
    SendImmediate {
        /// The bits.
        data: u32,
        /// The peer is to be woken.
        solicited: bool,
    },
    /// Sends eight bytes into a receive of the peer. After a Write it is InfiniBand's write with
    /// immediate.
    Immediate {
        /// The bytes, as a big-endian number.
        data: u64,
        /// The peer is to be woken.
        solicited: bool,
    },
    /// Writes into memory of the peer. Over a connection it completes when its bytes are no longer
    /// needed here (RFC 5040 §5.5 rule 9); by reliable datagrams, when they are placed; by
    /// unreliable ones, when they are sent.
    Write {
        /// The peer's tag.
        stag: Stag,
        /// Tagged offset.
        to: u64,
        /// Completes only when all bytes are placed at the peer: a zero-length Read follows, and
        /// its response proves it (RFC 5040 §5.5 rule 12). Takes one of the reads that may be
        /// outstanding.
        placed: bool,
    },
    /// Writes into memory of the peer, which records the arrived ranges.
    WriteRecord {
        /// The peer's tag.
        stag: Stag,
        /// Tagged offset.
        to: u64,
        /// Comes with the record.
        immediate: Option<u64>,
    },
    /// Reads from memory of the peer into one range here.
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
    /// Changes a 64-bit word of the peer; the old value comes with the completion.
    Atomic {
        /// The peer's tag.
        stag: Stag,
        /// Tagged offset, a multiple of eight.
        to: u64,
        /// The operation.
        op: AtomicOp,
    },
    /// Ends a tag of this end. Nothing is sent; it waits until all requests before it are complete,
    /// and those behind it wait for it.
    LocalInvalidate(Stag),
}

impl Operation {
    /// Whether the peer answers it with a message.
    pub(crate) const fn is_answered(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Atomic { .. })
    }

    /// Returns the operation for the completion; `original` is the word before an atomic.
    pub(crate) const fn kind(&self, original: u64) -> CompletionKind {
        match self {
            Self::Send { .. } | Self::SendImmediate { .. } => CompletionKind::Send,
            Self::Immediate { .. } => CompletionKind::Immediate,
            Self::Write { .. } | Self::WriteRecord { .. } => CompletionKind::Write,
            Self::Read { .. } => CompletionKind::Read,
            Self::Atomic { .. } => CompletionKind::Atomic { original },
            Self::LocalInvalidate(_) => CompletionKind::LocalInvalidate,
        }
    }
}

/// Which operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompletionKind {
    /// [`Operation::Send`], [`Operation::SendImmediate`].
    Send,
    /// [`Operation::Write`].
    Write,
    /// [`Operation::Read`].
    Read,
    /// [`Operation::Atomic`], with the word as it was.
    Atomic {
        /// The word as it was.
        original: u64,
    },
    /// [`Operation::Immediate`].
    Immediate,
    /// [`Operation::LocalInvalidate`].
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
        /// The bytes, as a big-endian number.
        data: u64,
        /// The sender asked for this end to be woken.
        solicited: bool,
    },
}

/// A receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecvWr {
    /// The user's; comes back with the completion.
    pub id: u64,
    /// The engine's name for the buffers; comes back with placements and with the completion.
    pub slot: u32,
    /// Bytes of the buffers together.
    pub len: u32,
}

impl RecvWr {
    /// Makes a receive into buffers of `len` bytes together.
    #[must_use]
    pub const fn new(id: u64, slot: u32, len: u32) -> Self {
        Self { id, slot, len }
    }
}
