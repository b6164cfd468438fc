//! Requests, completions and events of a datagram queue pair.

use std::net::SocketAddr;

use super::wire::{MsgId, NoticeCode, Rate};
use crate::address::{Destination, Source};
use crate::memory::Placement;
use crate::operation::Operation;
use crate::qp::Payload;
use crate::stag::Stag;

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UdSendWr {
    /// The user's; comes back with the completion.
    pub id: u64,
    /// The engine's name for the buffers of the request; comes back with segments and with the
    /// completion.
    pub slot: u32,
    /// Where to.
    pub to: Destination,
    /// The operation. Send with Invalidate and atomics are refused: a datagram may be duplicated or
    /// forged.
    pub op: Operation,
    /// Bytes of the message. Ignored for immediates.
    pub len: u32,
    /// Comes back with the completion, for the engine to act on: every request completes here.
    pub signalled: bool,
}

impl UdSendWr {
    /// Makes a signalled request.
    #[must_use]
    pub const fn new(id: u64, slot: u32, to: Destination, op: Operation, len: u32) -> Self {
        Self {
            id,
            slot,
            to,
            op,
            len,
            signalled: true,
        }
    }
}

/// A datagram to be sent: header bytes in the caller's slot, payload by name, then the CRC over
/// both ([`crate::Crc32c::to_wire`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transmit {
    /// Where to.
    pub to: SocketAddr,
    /// Bytes in the header slot.
    pub header_len: usize,
    /// Where the payload lies.
    pub payload: Payload,
    /// Bytes of payload.
    pub payload_len: u32,
    /// Bytes of the datagrams of this message that are not its last. While datagrams have the same
    /// destination and this length they can leave in one batch of segmentation offload; a shorter
    /// one ends the batch.
    pub full_len: usize,
    /// The request that this belongs to, by its slot; none for responses to reads.
    pub slot: Option<u32>,
}

impl Transmit {
    /// Returns the length of the datagram, in bytes.
    #[must_use]
    pub const fn wire_len(&self) -> usize {
        self.header_len + self.payload_len as usize + crate::crc::CRC_LEN
    }
}

/// The action that a datagram requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing: it is dropped and counted.
    Drop(Reason),
    /// Place its whole payload there, then call [`super::Ud::handle_placed`] before any other
    /// method.
    Place(Placement),
    /// It is dealt with; there may be something to poll.
    Done,
}

/// Why a datagram was dropped. Each has a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reason {
    /// Not of this protocol or version.
    Foreign,
    /// Its CRC is wrong.
    BadCrc,
    /// Its fields contradict each other, or those of segments before.
    Malformed,
    /// A type, flag or operation that is not for this service.
    Unsupported,
    /// For another queue pair, or a group that this one has not joined.
    WrongQp,
    /// No receive is posted.
    Rnr,
    /// The message is longer than the receive, or than the limit of its kind.
    TooLong,
    /// The tag is unknown.
    BadStag,
    /// The tag is not for this sender, or not for this operation.
    Access,
    /// Outside of the tag's range.
    Bounds,
    /// The sender has to be validated for this, and is not.
    UnknownPeer,
    /// Its bytes, or its message, are there already.
    Duplicate,
    /// Its message's record has been closed.
    Late,
    /// Its message has too many gaps already.
    MapFull,
    /// A response without an outstanding request.
    Unexpected,
    /// A read that is being answered, or one too many.
    Busy,
    /// A cookie that is forged or out of date.
    BadCookie,
}

/// Number of [`Reason`]s.
pub(super) const REASONS: usize = Reason::BadCookie as usize + 1;

/// Counters since the queue pair was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Datagrams taken.
    pub received: u64,
    /// Their bytes of payload that were placed.
    pub placed_octets: u64,
    /// Datagrams sent.
    pub sent: u64,
    /// Messages delivered to receives.
    pub delivered: u64,
    /// Messages that were given up before they were whole.
    pub abandoned: u64,
    /// Records closed.
    pub records: u64,
    /// Messages given up and records closed in favour of others.
    pub evicted: u64,
    /// Responses not sent, because the queue was full or the rate limit reached.
    pub unanswered: u64,
    pub(super) dropped: [u64; REASONS],
}

impl Counters {
    /// Returns how many datagrams were dropped for a reason.
    #[must_use]
    pub const fn dropped(&self, reason: Reason) -> u64 {
        self.dropped[reason as usize]
    }
}

/// An event. Drain all after every call that takes `&mut`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UdEvent {
    /// A message has arrived in a receive.
    Received(UdReceived),
    /// A request ended.
    Completion(UdCompletion),
    /// A record was closed ([`RecordMode::Aggregate`]).
    Record(Record),
    /// A segment of a Write-Record was placed ([`RecordMode::PerChunk`]).
    Chunk(Chunk),
    /// The peer knows this end; reads may be posted. Or it does not answer.
    Validated {
        /// The peer.
        to: Destination,
        /// Whether it does.
        known: bool,
    },
    /// A peer refused something that this end has sent.
    Notice {
        /// The peer.
        from: Source,
        /// The message.
        msg_id: MsgId,
        /// Why.
        code: NoticeCode,
    },
    /// A peer's report on this end's datagrams.
    Rate {
        /// The peer.
        from: Source,
        /// The report.
        rate: Rate,
    },
    /// A probe has arrived at a peer.
    Probed {
        /// The peer.
        from: Source,
        /// From [`super::Ud::probe`].
        token: u32,
        /// Bytes of UDP payload.
        size: u32,
    },
    /// Datagrams were dropped for the sender's fault; not more than one of these comes in a second.
    /// Counters have the rest.
    Dropped {
        /// Of the last one.
        from: SocketAddr,
        /// Why.
        reason: Reason,
    },
}

/// A message in a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UdReceived {
    /// From the receive.
    pub id: u64,
    /// From the receive.
    pub slot: u32,
    /// The outcome; unless it is success, the other fields are meaningless.
    pub status: UdStatus,
    /// Bytes of the message.
    pub len: u32,
    /// The sender.
    pub from: Source,
    /// The sender asked for this end to be woken.
    pub solicited: bool,
    /// It is not a Send, but Immediate Data: the bytes as a big-endian number. The buffers are as
    /// they were.
    pub immediate: Option<u64>,
    /// It was sent to a group.
    pub group: bool,
}

/// How a request or receive ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UdStatus {
    /// Sent, received, or read in whole.
    Success,
    /// A read that came in part, and not more after all repeats.
    Partial,
    /// A read of which nothing came.
    TimedOut,
    /// Memory of a receive, or the sink of a read, was withdrawn.
    LocalProtection,
    /// Not done: it was cancelled, or the queue pair was closed.
    Flushed,
}

/// The end of a request. From here on the core does not name its buffers again.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UdCompletion {
    /// From the request.
    pub id: u64,
    /// From the request.
    pub slot: u32,
    /// From the request.
    pub op: Operation,
    /// How.
    pub status: UdStatus,
    /// Bytes sent, or valid in the sink.
    pub len: u32,
    /// The valid ranges of a Read that arrived in part.
    pub map: ValidityMap,
    /// From the request.
    pub signalled: bool,
}

/// Which bytes of a message are valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValidityMap {
    /// All.
    Full,
    /// These ranges (start, end exclusive), in order, with gaps between them. Others may be there
    /// as well, without being known.
    Ranges(Box<[(u32, u32)]>),
}

/// Why a record was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecordStatus {
    /// All bytes are there.
    Full,
    /// The last segment was seen, and the time for those overtaken has passed.
    Partial,
    /// Nothing came for a while.
    Aged,
    /// The source went on to newer messages.
    Superseded,
    /// Evicted in favour of others.
    Evicted,
    /// The tag was made invalid.
    Revoked,
}

/// The arrived part of a Write-Record.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// Who wrote.
    pub from: Source,
    /// The source's number of the message.
    pub msg_id: MsgId,
    /// Where: the tag.
    pub stag: Stag,
    /// Tagged offset of the message's first byte.
    pub to: u64,
    /// Bytes of the message.
    pub len: u32,
    /// Bytes known to be valid.
    pub valid: u32,
    /// Which.
    pub map: ValidityMap,
    /// Why it was closed; none while it is open.
    pub status: Option<RecordStatus>,
    /// Immediate data.
    pub immediate: Option<u64>,
}

/// A segment of a Write-Record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Chunk {
    /// Who wrote.
    pub from: Source,
    /// The source's number of the message.
    pub msg_id: MsgId,
    /// Where: the tag.
    pub stag: Stag,
    /// Tagged offset of the segment's first byte.
    pub to: u64,
    /// Bytes.
    pub len: u32,
    /// Offset of the segment in the message.
    pub offset: u32,
    /// Bytes of the message.
    pub message_len: u32,
    /// Immediate data.
    pub immediate: Option<u64>,
}

/// How records are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RecordMode {
    /// [`UdEvent::Record`], once for each.
    #[default]
    Aggregate,
    /// [`UdEvent::Chunk`], once for each segment that brings something.
    PerChunk,
    /// Not at all: [`super::Ud::validity`] and [`super::Ud::take_record`] are asked.
    Query,
}
