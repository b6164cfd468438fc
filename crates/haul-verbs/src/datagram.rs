//! Datagram services: queue pairs that talk to many.

use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use crate::address::{Peer, Remote};
use crate::seal::SealKey;

/// How the target of Write-Record reports what was placed (datagram-iwarp-2011 §IV.B: per chunk, or
/// aggregated).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RecordMode {
    /// One completion per message, when its record closes.
    #[default]
    Aggregate,
    /// One completion per segment, when it is placed.
    PerChunk,
    /// No completions: poll with [`Qp::records`](crate::Qp::records).
    Query,
}

/// How a record ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RecordStatus {
    /// Not yet: more may be placed.
    Open,
    /// Every byte is there.
    Full,
    /// The last segment came, others did not.
    Partial,
    /// Nothing came any more.
    Aged,
    /// The source went on to later messages.
    Superseded,
    /// This end ran out of room for records.
    Evicted,
    /// The region's key was taken away.
    Revoked,
    /// One segment, with [`RecordMode::PerChunk`].
    Chunk,
}

/// The record of a Write-Record that arrived in a region of this end.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteRecord {
    /// How it ended.
    pub status: RecordStatus,
    /// Who wrote.
    pub source: Peer,
    /// The writer's number for the message.
    pub message: u32,
    /// Where the message begins in this end's memory.
    pub target: Remote,
    /// Bytes of the whole message.
    pub len: u32,
    /// Bytes that are valid: the sum of `valid_ranges`.
    pub valid: u32,
    /// What is valid, as offsets in the message, ascending and not touching. Never claims what was
    /// not placed; may leave out what was, where the message came in too many pieces.
    pub valid_ranges: Vec<Range<u32>>,
    /// Immediate data, if its segment came.
    pub imm: Option<u32>,
}

impl WriteRecord {
    /// Describes a message of which nothing is known to be valid.
    #[must_use]
    pub const fn new(
        status: RecordStatus,
        source: Peer,
        message: u32,
        target: Remote,
        len: u32,
    ) -> Self {
        Self {
            status,
            source,
            message,
            target,
            len,
            valid: 0,
            valid_ranges: Vec::new(),
            imm: None,
        }
    }
}

/// Which sources may write to, or read from, a region by datagrams. What the rights of the region
/// forbid stays forbidden.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Sources {
    /// Those that have shown that they receive at the address they send from.
    #[default]
    Validated,
    /// Any for Writes; for Reads and atomics as [`Sources::Validated`].
    Any,
    /// Those at these addresses with this queue pair number, if one is given.
    Of(Vec<(IpAddr, Option<u32>)>),
}

/// Parameters of a queue pair of a datagram service, beyond [`QpInit`](crate::QpInit).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatagramInit {
    /// How Write-Records are reported here.
    pub records: RecordMode,
    /// The largest IP packet that reaches every peer, bytes; 0: 1,500, or less if the route or the
    /// network reports less.
    pub path_mtu: u16,
    /// The most payload bytes per second sent, to all peers together (UD); none: as fast as the
    /// machine can.
    pub max_rate: Option<u64>,
    /// Hops that packets to multicast groups may take.
    pub multicast_ttl: u8,
    /// Members on this host receive what this queue pair sends to a group.
    pub multicast_loop: bool,
    /// Writes by Write-Record may come from groups.
    pub group_writes: bool,
    /// A copy of the last segment of a Write-Record of nine segments or more goes ahead of the last
    /// eight (UD); 0: none does.
    pub tail_repeats: u8,
    /// How long a Read waits for what is missing before it asks for it again while no round trip is
    /// known; 0: 100 ms.
    pub read_timeout: Duration,
    /// How often a Read asks again, or RD resends without an answer, before it gives up.
    pub retries: u8,
    /// RD: packets in flight in a direction, 64 to 65,536; 0: 1,024. With fewer than rate times
    /// round trip, RD does not fill the path.
    pub window: u32,
    /// RD: an unreachable peer ends the queue pair, not only the work requests to that peer.
    pub peer_error_is_fatal: bool,
    /// RD: a receive is given only to a message of which nothing before it is missing; others are
    /// retransmitted. Where anybody may be a peer, nobody holds receives by leaving out what comes
    /// before.
    pub receives_in_order: bool,
    /// Every datagram is encrypted and authenticated under keys that follow from this one, and
    /// others are dropped; none: nothing is. The first request to a peer takes one RTT more. Groups
    /// cannot be addressed.
    pub seal_key: Option<SealKey>,
}

impl Default for DatagramInit {
    fn default() -> Self {
        Self {
            records: RecordMode::Aggregate,
            path_mtu: 0,
            max_rate: None,
            multicast_ttl: 1,
            multicast_loop: false,
            group_writes: false,
            tail_repeats: 1,
            read_timeout: Duration::ZERO,
            retries: 8,
            window: 0,
            peer_error_is_fatal: false,
            receives_in_order: false,
            seal_key: None,
        }
    }
}

/// Counters of a datagram service. None of these events ended it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct DatagramStatistics {
    /// Datagrams of messages sent.
    pub sent: u64,
    /// Datagrams received, of any kind.
    pub received: u64,
    /// Checksum wrong.
    pub bad_checksum: u64,
    /// Not of this protocol, or contradicting itself.
    pub malformed: u64,
    /// For a queue pair that is not here.
    pub unknown_qp: u64,
    /// No receive work request was posted.
    pub no_receive: u64,
    /// Longer than the receive work request.
    pub too_long: u64,
    /// Messages received again after they were complete.
    pub duplicates: u64,
    /// Messages given up with parts missing.
    pub incomplete: u64,
    /// Writes or Reads refused: key, right, bounds, source.
    pub refused: u64,
    /// Segments of a record that was closed; not placed.
    pub late: u64,
    /// Room for messages in parts, for records, or for their completions was short; RD: for peers,
    /// or nothing was common with them.
    pub evicted: u64,
    /// RD: segments retransmitted.
    pub resent: u64,
    /// RD: peers with state.
    pub peers: u64,
    /// Bytes of that state.
    pub peer_bytes: u64,
    /// Datagrams that the kernel dropped because its receive buffer was full.
    pub kernel_drops: u64,
    /// Datagrams sent that the network, or this host, reported as undelivered.
    pub undelivered: u64,
    /// Sealed service: not sealed.
    pub unsealed: u64,
    /// Sealed service: sealed under another key, or changed on the way.
    pub forged: u64,
    /// Sealed service: came before.
    pub replayed: u64,
}
