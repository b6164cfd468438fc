//! Counters of a connection.

use haul_cc::{Remembered, Snapshot};

use crate::numbering::Refused;
use crate::send::SendTotals;

/// Counters and present values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The sending side.
    pub sent: SendTotals,
    /// Data packets that arrived, repeats included.
    pub received_packets: u64,
    /// Wire bytes that arrived in data packets, repeats included.
    pub received_bytes: u64,
    /// Data packets that had arrived before.
    pub duplicates: u32,
    /// Datagrams that no correct peer sends.
    pub misbehaviour: u32,
    /// Datagrams that a sealed connection did not take.
    pub refused: Refused,
    /// Smoothed round-trip time, ns.
    pub rtt_ns: u64,
    /// Least round-trip time of late, ns.
    pub rtt_min_ns: u64,
    /// Wire bytes in flight.
    pub in_flight_bytes: u64,
    /// The congestion control.
    pub control: Snapshot,
    /// Path state that a later connection may start from
    /// ([`Connection::resume`](crate::Connection::resume)).
    pub shown: Option<Remembered>,
    /// Retransmission timeouts.
    pub timeouts: u32,
}
