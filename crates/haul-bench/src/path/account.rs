//! The reports that the ends exchange after a measurement.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use super::meter::Spent;

/// The report of one end.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Account {
    /// Resources that it used.
    pub spent: Spent,
    /// The sender's counters, if it was the sender.
    pub sent: Option<Sent>,
    /// The receiver's counters, if it was the receiver.
    pub received: Option<Received>,
}

/// Counters of the sending end.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Sent {
    /// Payload handed to the transport, bytes.
    pub bytes: u64,
    /// Datagrams, for UDP.
    pub datagrams: u64,
    /// From the first to the last call, nanoseconds.
    pub ns: u64,
    /// Payload retransmitted, bytes.
    pub retransmitted: u64,
    /// The kernel made a copy of so many zero-copy sends, per thousand.
    pub copied_per_mille: Option<u32>,
    /// Of the time with something to send, what the receiver's window took, per thousand (TCP).
    pub receiver_limited_per_mille: Option<u32>,
    /// The same of this end's send buffer.
    pub buffer_limited_per_mille: Option<u32>,
    /// Time that the streams waited for the source's file, nanoseconds, of all together.
    pub source_ns: u64,
    /// How the path looked, once an interval.
    pub samples: Vec<Sample>,
    /// Bytes acknowledged since the end of the omitted time, where the receiver cannot measure
    /// arrivals: it reads TCP's bytes in order, and so reads bytes behind a lost packet long after
    /// they arrived.
    #[serde(default)]
    pub acknowledged: Option<Acknowledged>,
}

/// Bytes that the receiver acknowledged, selectively or not, within a span of the sender's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acknowledged {
    /// Payload, bytes.
    pub bytes: u64,
    /// In so many nanoseconds.
    pub ns: NonZeroU64,
}

/// How the path looks to a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Sample {
    /// Since the start, milliseconds.
    pub at_ms: u64,
    /// Smoothed round-trip time, microseconds; of the slowest stream.
    pub rtt_us: u32,
    /// The least round-trip time, microseconds; of the fastest stream.
    pub rtt_us_min: u32,
    /// Bytes that may be, or are, in flight; of all streams.
    pub window: u64,
    /// Payload retransmitted so far, bytes.
    pub retransmitted: u64,
}

/// Counters of the receiving end.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Received {
    /// Payload, bytes.
    pub bytes: u64,
    /// From the first arrival to the last, nanoseconds.
    pub ns: u64,
    /// Bytes of each tenth of a second since the first arrival.
    pub steps: Vec<u64>,
    /// Bytes of each stream.
    pub streams: Vec<u64>,
    /// Of datagrams.
    pub datagrams: Option<Datagrams>,
    /// Time that the streams waited for the sink's file, nanoseconds, of all together.
    pub sink_ns: u64,
    /// Time of the fsync of a sink file on a disk, after the last arrival, nanoseconds.
    pub flush_ns: u64,
}

/// The outcome of datagrams, at the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Datagrams {
    /// They arrived, duplicates included.
    pub received: u64,
    /// They arrived after one that was sent later.
    pub late: u64,
    /// Mean deviation of the delay (RFC 3550 §6.4.1), nanoseconds; of the worst stream.
    pub jitter_ns: u64,
    /// The kernel dropped them because the socket's buffer was full.
    pub kernel_drops: u64,
}

/// Shares of a whole, per thousand.
pub(crate) fn per_mille(part: u64, whole: u64) -> Option<u32> {
    let share = u128::from(part) * 1000 / u128::from(whole.max(1));
    (whole > 0).then(|| u32::try_from(share).unwrap_or(1000).min(1000))
}
