//! The numbers of a datagram queue pair: all limits and all times.

use crate::stag::{Pd, QpNum};
use crate::time::SECOND_NS;

use super::work::RecordMode;

const MS: u64 = SECOND_NS / 1_000;
const MIB: u32 = 1 << 20;

/// Bytes of UDP payload that are always tried: IPv4's least MTU in practice, 576 less 28.
pub const DATAGRAM_MIN: u32 = 548;

/// How a datagram queue pair is to be. Memory is taken as tables are used, never beyond these.
/// Build it from [`UdConfig::default`], then set fields.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UdConfig {
    /// Its protection domain.
    pub pd: Pd,
    /// Its name, for tags that are narrowed to it.
    pub qp: QpNum,
    /// Its number on the wire, 1..=[`super::wire::QPN_MAX`].
    pub qpn: u32,
    /// This activation of it: random, not zero.
    pub epoch: u32,
    /// Where packet numbers start: random.
    pub seed: u64,
    /// Random and secret: the key of cookies and tables. Queue pairs that share a port may share
    /// it.
    pub key: [u8; 16],

    /// Requests that may be posted and not completed.
    pub send_depth: u32,
    /// Receives that may be posted and not completed.
    pub recv_depth: u32,
    /// Receives come from a shared queue: [`crate::Memory::take_receive`].
    pub shared_receive: bool,
    /// Bytes of UDP payload that the path carries; [`DATAGRAM_MIN`] at least.
    pub datagram_max: u32,
    /// Bytes that sealing adds to each datagram.
    pub around: u32,
    /// Bytes of a Send at most, in both directions.
    pub send_max: u32,
    /// Bytes of a Write or Write-Record at most, in both directions.
    pub record_max: u32,
    /// Bytes of a Read at most, in both directions.
    pub read_max: u32,

    /// Sends of several segments that may be incomplete.
    pub slots: usize,
    /// Of these, by one source.
    pub slots_per_source: usize,
    /// Bytes that incomplete Sends may announce together.
    pub slot_octets: u64,
    /// How long after a segment the next one may come.
    pub slot_idle_ns: u64,
    /// How long the whole message may take.
    pub slot_total_ns: u64,

    /// Records that may be open.
    pub records: usize,
    /// Of these, by one source: its next message closes its oldest.
    pub records_per_source: usize,
    /// How long segments that the last one has overtaken may take.
    pub record_grace_ns: u64,
    /// How many packets of the source may come from behind an incomplete message before it is given
    /// up: the same grace, without a clock.
    pub record_grace_packets: u32,
    /// Bounds of the time between two segments, which is eight times the usual interval.
    pub record_idle_ns: (u64, u64),
    /// How long the whole message may take.
    pub record_total_ns: u64,
    /// How records are reported.
    pub record_mode: RecordMode,
    /// Closed records that are kept for [`RecordMode::Query`].
    pub records_kept: usize,
    /// A newer message of the same source to an overlapping range closes the older.
    pub supersede_overlapping: bool,
    /// Write-Record by group is taken, to tags whose top byte is 0xff.
    pub group_writes: bool,

    /// Sources that are remembered, for each kind of message: more than slots and records.
    pub sources: usize,
    /// Validated sources that are remembered.
    pub validated: usize,
    /// How long a cookie is good.
    pub cookie_ns: u64,
    /// Most concurrent validations by this end.
    pub validations: usize,

    /// Reads that this end may have outstanding.
    pub reads: usize,
    /// How long the first response may take while nothing is known of the path.
    pub read_first_ns: u64,
    /// Requests in a row that bring nothing before a read is given up.
    pub read_tries: u32,
    /// How long a read may take in all.
    pub read_total_ns: u64,
    /// Reads of others that are being answered.
    pub read_jobs: usize,
    /// Of these, for one source.
    pub read_jobs_per_source: usize,

    /// A copy of the last segment goes ahead of this many others, for messages of more; 0 sends
    /// none.
    pub tail_copy: u32,
    /// Sends peers a NOTICE for each refused datagram, at most ten a second.
    pub notices: bool,
}

impl Default for UdConfig {
    fn default() -> Self {
        Self {
            pd: Pd(0),
            qp: QpNum(0),
            qpn: 1,
            epoch: 1,
            seed: 0,
            key: [0; 16],
            send_depth: 128,
            recv_depth: 128,
            shared_receive: false,
            datagram_max: 1_472,
            around: 0,
            send_max: MIB,
            record_max: 256 * MIB,
            read_max: 64 * MIB,
            slots: 256,
            slots_per_source: 16,
            slot_octets: 64 << 20,
            slot_idle_ns: 500 * MS,
            slot_total_ns: 2 * SECOND_NS,
            records: 256,
            records_per_source: 8,
            record_grace_ns: 2 * MS,
            record_grace_packets: 64,
            record_idle_ns: (10 * MS, 200 * MS),
            record_total_ns: 2 * SECOND_NS,
            record_mode: RecordMode::Aggregate,
            records_kept: 256,
            supersede_overlapping: false,
            group_writes: false,
            sources: 1_024,
            validated: 4_096,
            cookie_ns: 10 * SECOND_NS,
            validations: 64,
            reads: 16,
            read_first_ns: 100 * MS,
            read_tries: 8,
            read_total_ns: 30 * SECOND_NS,
            read_jobs: 64,
            read_jobs_per_source: 8,
            tail_copy: 8,
            notices: false,
        }
    }
}
