//! Between the words of the verbs and those of the core.

use haul_iwarp::Stag;
use haul_iwarp::datagram::rd::{RdQp, RdStatus};
use haul_iwarp::datagram::{
    self as core, Counters, Destination, Reason, Source, UdStatus, ValidityMap,
};
use haul_verbs::{
    DatagramStatistics, Peer, RecordMode, RecordStatus, Remote, WcStatus, WriteRecord,
};

use crate::rnic::shape::lower_half;

/// Converts a peer to a destination. An IPv4-mapped IPv6 address becomes the IPv4 address that
/// arrivals have.
pub(super) fn destination(peer: Peer) -> Destination {
    let mut addr = peer.addr;
    addr.set_ip(addr.ip().to_canonical());
    Destination {
        addr,
        qpn: peer.qp_num,
    }
}

pub(super) fn peer(source: &Source) -> Peer {
    Peer::new(source.addr, source.qpn)
}

pub(super) fn status(status: UdStatus) -> WcStatus {
    match status {
        UdStatus::Success => WcStatus::Success,
        UdStatus::Partial | UdStatus::TimedOut => WcStatus::RespTimeoutErr,
        UdStatus::LocalProtection => WcStatus::LocProtErr,
        UdStatus::Flushed => WcStatus::WrFlushErr,
    }
}

pub(super) fn reliable_status(status: RdStatus) -> WcStatus {
    match status {
        RdStatus::Success => WcStatus::Success,
        RdStatus::Flushed => WcStatus::WrFlushErr,
        RdStatus::LocalProtection => WcStatus::LocProtErr,
        RdStatus::RemoteAccess => WcStatus::RemAccessErr,
        RdStatus::RemoteOperation => WcStatus::RemInvReqErr,
        RdStatus::ReceiverNotReady => WcStatus::RnrRetryExcErr,
        RdStatus::Unreachable => WcStatus::RetryExcErr,
    }
}

pub(super) fn record_mode(mode: RecordMode) -> core::RecordMode {
    match mode {
        RecordMode::Aggregate => core::RecordMode::Aggregate,
        RecordMode::PerChunk => core::RecordMode::PerChunk,
        RecordMode::Query => core::RecordMode::Query,
    }
}

pub(super) fn valid_ranges(map: &ValidityMap, len: u32) -> Vec<std::ops::Range<u32>> {
    match map {
        ValidityMap::Full if len == 0 => Vec::new(),
        ValidityMap::Full => std::iter::once(0..len).collect(),
        ValidityMap::Ranges(ranges) => ranges.iter().map(|&(start, end)| start..end).collect(),
    }
}

pub(super) fn record(record: &core::Record) -> WriteRecord {
    use core::RecordStatus as Closed;
    let status = match record.status {
        None => RecordStatus::Open,
        Some(Closed::Full) => RecordStatus::Full,
        Some(Closed::Partial) => RecordStatus::Partial,
        Some(Closed::Aged) => RecordStatus::Aged,
        Some(Closed::Superseded) => RecordStatus::Superseded,
        Some(Closed::Evicted) => RecordStatus::Evicted,
        Some(Closed::Revoked) => RecordStatus::Revoked,
    };
    let target = Remote {
        addr: record.to,
        rkey: record.stag.0,
    };
    let source = peer(&record.from);
    let mut found = WriteRecord::new(status, source, record.msg_id.0, target, record.len);
    found.valid = record.valid;
    found.valid_ranges = valid_ranges(&record.map, record.len);
    found.imm = record.immediate.map(lower_half);
    found
}

/// What a Read has brought that did not come whole.
pub(super) fn read_record(
    sink: Stag,
    to: u64,
    len: u32,
    valid: u32,
    map: &ValidityMap,
    source: Peer,
) -> WriteRecord {
    let target = Remote {
        addr: to,
        rkey: sink.0,
    };
    let mut record = WriteRecord::new(RecordStatus::Partial, source, 0, target, len);
    record.valid = valid;
    record.valid_ranges = valid_ranges(map, len);
    record
}

/// A chunk as a record of its own: where the message begins, and the one range that came.
pub(super) fn chunk(chunk: &core::Chunk) -> WriteRecord {
    let target = Remote {
        addr: chunk.to.wrapping_sub(chunk.offset.into()),
        rkey: chunk.stag.0,
    };
    let (source, message) = (peer(&chunk.from), chunk.msg_id.0);
    let status = RecordStatus::Chunk;
    let mut record = WriteRecord::new(status, source, message, target, chunk.message_len);
    record.valid = chunk.len;
    record.valid_ranges = std::iter::once(chunk.offset..chunk.offset + chunk.len).collect();
    record.imm = chunk.immediate.map(lower_half);
    record
}

pub(super) fn statistics(counters: &Counters) -> DatagramStatistics {
    let dropped = |reasons: &[Reason]| reasons.iter().map(|reason| counters.dropped(*reason)).sum();
    let mut statistics = DatagramStatistics::default();
    statistics.sent = counters.sent;
    statistics.bad_checksum = dropped(&[Reason::BadCrc]);
    statistics.malformed = dropped(&[
        Reason::Foreign,
        Reason::Malformed,
        Reason::Unsupported,
        Reason::BadCookie,
    ]);
    statistics.unknown_qp = dropped(&[Reason::WrongQp]);
    statistics.no_receive = dropped(&[Reason::Rnr]);
    statistics.too_long = dropped(&[Reason::TooLong]);
    statistics.duplicates = dropped(&[Reason::Duplicate]);
    statistics.incomplete = counters.abandoned;
    statistics.refused = dropped(&[
        Reason::BadStag,
        Reason::Access,
        Reason::Bounds,
        Reason::UnknownPeer,
        Reason::Unexpected,
    ]);
    statistics.late = dropped(&[Reason::Late]);
    statistics.evicted = dropped(&[Reason::MapFull, Reason::Busy]);
    statistics
}

pub(super) fn reliable_statistics(core: &RdQp) -> DatagramStatistics {
    let stats = core.stats();
    let mut statistics = DatagramStatistics::default();
    statistics.sent = stats.sent;
    statistics.malformed = stats.malformed + stats.bad_cookie;
    statistics.unknown_qp = stats.unknown_peer;
    statistics.no_receive = stats.no_receive + stats.early;
    statistics.duplicates = stats.duplicate;
    statistics.too_long = stats.too_long;
    statistics.refused = stats.denied;
    // Those who were not let in had no room, or nothing in common.
    statistics.evicted = stats.evicted + stats.refused;
    statistics.resent = stats.repeated;
    statistics.peers = core.peer_count() as u64;
    statistics.peer_bytes = core.peers_bytes() as u64;
    statistics
}

/// The record of a reliable Write-Record: always whole.
pub(super) fn whole_record(
    from: Peer,
    message: u32,
    target: Remote,
    len: u32,
    immediate: Option<u64>,
) -> WriteRecord {
    let mut record = WriteRecord::new(RecordStatus::Full, from, message, target, len);
    record.valid = len;
    record.valid_ranges = valid_ranges(&ValidityMap::Full, len);
    record.imm = immediate.map(lower_half);
    record
}
