//! Bulk Asynchronous Get: streams of connections packed into slabs, announced, read by their
//! receiver, acknowledged.
//!
//! This module holds no payload: a [`Place`] names bytes that the engine holds. [`Producer`] packs
//! ready data of connections into slabs and reports when their memory is free; [`Consumer`] places
//! each stream, schedules reads, and delivers each connection's bytes in order. [`plan`] sizes,
//! depths, rates.

mod consumer;
mod extent;
pub mod plan;
mod producer;

pub use consumer::{Consumer, ConsumerConfig, Data, Get, GetId, Grant, Inline, Read, Verify};
pub use producer::{Fill, Producer, ProducerConfig, Put, PutId, TooFewRegions};

use crate::RegionId;

/// Most slabs whose bytes go over data channels that are not acknowledged (docs/protocol/xsp.md,
/// limits). A queue pair has receives for the marks of these, and of as many that are rewritten.
pub const SLABS_MOVED_MAX: u32 = 64;

/// Whose memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Memory {
    /// A region of the producer's ring.
    Region(RegionId),
    /// Memory whose owner keeps it until it is released: at a gateway, the arena of the other
    /// segment.
    Foreign,
}

/// Bytes in the engine's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Whose.
    pub memory: Memory,
    /// From where, bytes from the memory's beginning.
    pub at: u64,
    /// Bytes.
    pub len: u64,
}

/// How a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Half close: no more will come.
    Fin,
    /// The connection was reset, with this code.
    Reset(u16),
}

/// Violations of the slab protocol by the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// Slabs are announced in order.
    #[error("a slab out of order")]
    Order,
    /// More than the window allows.
    #[error("more slabs or records than allowed")]
    Window,
    /// A range that does not continue its connection's stream.
    #[error("a gap in a stream")]
    Gap,
    /// Bytes beyond the credit.
    #[error("bytes beyond the credit")]
    Credit,
    /// More first bytes with requests for connections than agreed on.
    #[error("more first bytes of connections than agreed on")]
    Early,
    /// Bytes behind the end of a stream.
    #[error("bytes behind the end of a stream")]
    PastEnd,
    /// A connection that does not exist.
    #[error("a connection that does not exist")]
    NoConnection,
    /// A connection that exists, or a number of the other end.
    #[error("a connection that may not be opened")]
    Connection,
    /// An answer to a slab that was not announced.
    #[error("an answer about a slab that was not announced")]
    NoSlab,
    /// A slab announced again is not the one that it was.
    #[error("a slab announced again is another one")]
    Changed,
    /// More was delivered than was sent.
    #[error("delivery of what was not sent")]
    Delivered,
    /// The same slab failed again and again.
    #[error("a slab that cannot be moved")]
    Hopeless,
    /// Push without leave, or a grant that goes back.
    #[error("a grant or push that was not agreed on")]
    Push,
}
