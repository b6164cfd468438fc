//! Between the words of the verbs and those of the core.

use haul_iwarp::Stag;
use haul_iwarp::datagram::rd::{RdOp, RdQp, RdStatus};
use haul_iwarp::datagram::{
    self as core, Counters, Destination, Reason, Source, UdOp, UdStatus, ValidityMap,
};
use haul_iwarp::wire::rdmap::AtomicOp;
use haul_verbs::{
    Data, DatagramStatistics, Error, Peer, RecordMode, RecordStatus, Remote, Result, SendFlags,
    SendOp, SendWr, WcOpcode, WcStatus, WriteRecord,
};

use super::request::Op;
use crate::rnic::shape::lower_half;

/// What the core of reliable datagrams is to do for a work request, and what behind it.
pub(super) fn reliable_ops(wr: &SendWr<'_>) -> Result<(Op, Option<Op>)> {
    let SendOp::RdmaWriteWithImm(remote, imm) = wr.op else {
        return Ok((Op::Rd(reliable_op(wr)?), None));
    };
    let write = RdOp::Write {
        stag: Stag(remote.rkey),
        to: remote.addr,
    };
    // The upper half tells the peer how long the Write is.
    let immediate = RdOp::Immediate {
        data: wr.data.total_len() << 32 | u64::from(imm),
        solicited: wr.flags.contains(SendFlags::SOLICITED),
    };
    Ok((Op::Rd(write), Some(Op::Rd(immediate))))
}

fn reliable_op(wr: &SendWr<'_>) -> Result<RdOp> {
    let atomic = |remote: Remote, op| RdOp::Atomic {
        stag: Stag(remote.rkey),
        to: remote.addr,
        op,
    };
    Ok(match wr.op {
        SendOp::SendWithInv(rkey) => RdOp::Send {
            solicited: wr.flags.contains(SendFlags::SOLICITED),
            invalidate: Some(Stag(rkey)),
        },
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } if wr.data.total_len() != 8 => {
            return Err(Error::Invalid("an atomic's result has 8 octets"));
        }
        SendOp::CompareSwap {
            remote,
            compare,
            swap,
        } => {
            let op = AtomicOp::CmpSwap {
                swap,
                swap_mask: u64::MAX,
                compare,
                compare_mask: u64::MAX,
            };
            atomic(remote, op)
        }
        SendOp::FetchAdd { remote, add } => atomic(remote, AtomicOp::FetchAdd { add, mask: 0 }),
        _ => match op(wr)? {
            UdOp::Send { solicited } => RdOp::Send {
                solicited,
                invalidate: None,
            },
            UdOp::Immediate { data, solicited } => RdOp::Immediate { data, solicited },
            UdOp::Write { stag, to } => RdOp::Write { stag, to },
            UdOp::WriteRecord {
                stag,
                to,
                immediate,
            } => RdOp::WriteRecord {
                stag,
                to,
                immediate,
            },
            UdOp::Read {
                sink,
                sink_to,
                source,
                source_to,
            } => RdOp::Read {
                sink,
                sink_to,
                source,
                source_to,
            },
        },
    })
}

/// What the core is to do for a work request.
pub(super) fn op(wr: &SendWr<'_>) -> Result<UdOp> {
    let solicited = wr.flags.contains(SendFlags::SOLICITED);
    match wr.op {
        SendOp::Send => Ok(UdOp::Send { solicited }),
        SendOp::SendWithImm(imm) if wr.data.total_len() == 0 => Ok(UdOp::Immediate {
            data: imm.into(),
            solicited,
        }),
        SendOp::SendWithImm(_) => Err(Error::Unsupported(
            "immediate data with the payload of a Send",
        )),
        SendOp::RdmaWrite(remote) => Ok(UdOp::Write {
            stag: Stag(remote.rkey),
            to: remote.addr,
        }),
        SendOp::WriteRecord(remote) => Ok(write_record(remote, None)),
        SendOp::WriteRecordWithImm(remote, imm) => Ok(write_record(remote, Some(imm.into()))),
        SendOp::RdmaRead(remote) => read(wr, remote),
        _ => Err(Error::Unsupported("this operation by datagrams")),
    }
}

fn write_record(remote: Remote, immediate: Option<u64>) -> UdOp {
    UdOp::WriteRecord {
        stag: Stag(remote.rkey),
        to: remote.addr,
        immediate,
    }
}

fn read(wr: &SendWr<'_>, remote: Remote) -> Result<UdOp> {
    let sink = match &wr.data {
        Data::Sges(list) => match list.as_slice() {
            [] => Some(Default::default()),
            [sink] => Some(*sink),
            _ => None,
        },
        Data::Inline(_) => None,
    };
    let sink = sink.ok_or(Error::Invalid("an iWARP read has one sink (RFC 5040 §4.4)"))?;
    Ok(UdOp::Read {
        sink: Stag(sink.lkey),
        sink_to: sink.addr,
        source: Stag(remote.rkey),
        source_to: remote.addr,
    })
}

pub(super) fn opcode(op: SendOp) -> WcOpcode {
    match op {
        SendOp::RdmaWrite(_) | SendOp::RdmaWriteWithImm(..) => WcOpcode::RdmaWrite,
        SendOp::WriteRecord(_) | SendOp::WriteRecordWithImm(..) => WcOpcode::WriteRecord,
        SendOp::RdmaRead(_) => WcOpcode::RdmaRead,
        SendOp::CompareSwap { .. } => WcOpcode::CompSwap,
        SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
        _ => WcOpcode::Send,
    }
}

/// An IPv4 address in IPv6 clothes is an IPv4 address: what arrives is told apart by it.
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
    WriteRecord {
        status: match record.status {
            None => RecordStatus::Open,
            Some(Closed::Full) => RecordStatus::Full,
            Some(Closed::Partial) => RecordStatus::Partial,
            Some(Closed::Aged) => RecordStatus::Aged,
            Some(Closed::Superseded) => RecordStatus::Superseded,
            Some(Closed::Evicted) => RecordStatus::Evicted,
            Some(Closed::Revoked) => RecordStatus::Revoked,
        },
        source: peer(&record.from),
        message: record.msg_id.0,
        target: Remote {
            addr: record.to,
            rkey: record.stag.0,
        },
        len: record.len,
        valid: record.valid,
        valid_ranges: valid_ranges(&record.map, record.len),
        imm: record.immediate.map(lower_half),
    }
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
    WriteRecord {
        status: RecordStatus::Partial,
        source,
        message: 0,
        target: Remote {
            addr: to,
            rkey: sink.0,
        },
        len,
        valid,
        valid_ranges: valid_ranges(map, len),
        imm: None,
    }
}

/// A chunk as a record of its own: where the message begins, and the one range that came.
pub(super) fn chunk(chunk: &core::Chunk) -> WriteRecord {
    WriteRecord {
        status: RecordStatus::Chunk,
        source: peer(&chunk.from),
        message: chunk.msg_id.0,
        target: Remote {
            addr: chunk.to.wrapping_sub(chunk.offset.into()),
            rkey: chunk.stag.0,
        },
        len: chunk.message_len,
        valid: chunk.len,
        valid_ranges: std::iter::once(chunk.offset..chunk.offset + chunk.len).collect(),
        imm: chunk.immediate.map(lower_half),
    }
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
        Reason::Stranger,
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
    statistics.unknown_qp = stats.stranger;
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
    WriteRecord {
        status: RecordStatus::Full,
        source: from,
        message,
        target,
        len,
        valid: len,
        valid_ranges: valid_ranges(&ValidityMap::Full, len),
        imm: immediate.map(lower_half),
    }
}
