//! From the work requests of the verbs to the operations of the cores, for every kind of queue
//! pair.

use arrayvec::ArrayVec;
use haul_iwarp::wire::Features;
use haul_iwarp::wire::rdmap::AtomicOp;
use haul_iwarp::{Operation, Params, Stag};
use haul_verbs::{Data, Error, Remote, Result, SendFlags, SendOp, SendWr};

/// A core's requests for one work request: the operation, an immediate behind it, a proof of
/// placement.
pub(super) const STEPS: u32 = 3;
pub(super) type Operations = ArrayVec<Operation, { STEPS as usize }>;

/// What carries a work request.
#[derive(Debug, Clone, Copy)]
pub(super) enum Carrier {
    /// A connection, and what its ends have agreed on, once they have.
    Connection(Option<Params>),
    UnreliableDatagrams,
    ReliableDatagrams,
}

/// In place of the length of a Write before Immediate Data: there is none, it is a Send. No Write
/// is as long.
pub(super) const NO_WRITE: u64 = u32::MAX as u64;

/// Converts a work request: the first operation has its payload, the last reports.
pub(super) fn operations(wr: &SendWr<'_>, carrier: Carrier) -> Result<Operations> {
    let (is_connection, is_reliable, features, tells_len) = match carrier {
        Carrier::Connection(params) => {
            let features = params.map_or_else(Features::default, |params| params.features);
            let is_extended = params.is_some_and(|params| params.extended);
            (true, true, features, is_extended)
        }
        Carrier::UnreliableDatagrams => (false, false, Features::default(), false),
        Carrier::ReliableDatagrams => (false, true, Features::default(), true),
    };
    let solicited = wr.flags.contains(SendFlags::SOLICITED);
    let send = |invalidate| Operation::Send {
        solicited,
        invalidate,
    };
    // The upper half tells a Longhaul peer how long the Write before it is.
    let immediate = |len: u64, imm: u32| Operation::Immediate {
        data: len << 32 | u64::from(imm),
        solicited,
    };
    let mut operations = Operations::new();
    let last = match wr.op {
        SendOp::Send => send(None),
        SendOp::SendWithInv(rkey) if is_reliable => send(Some(Stag(rkey))),
        SendOp::SendWithImm(data) if features.send_immediate => {
            Operation::SendImmediate { data, solicited }
        }
        SendOp::SendWithImm(imm) if wr.data.total_len() == 0 => {
            let behind_send = matches!(carrier, Carrier::ReliableDatagrams);
            immediate(if behind_send { NO_WRITE } else { 0 }, imm)
        }
        SendOp::SendWithImm(_) => {
            return Err(Error::Unsupported(
                "immediate data with the payload of a Send to this peer",
            ));
        }
        SendOp::RdmaWrite(remote) => write(remote),
        SendOp::RdmaWriteWithImm(remote, imm) if is_reliable => {
            operations.push(write(remote));
            let len = if tells_len { wr.data.total_len() } else { 0 };
            immediate(len, imm)
        }
        SendOp::WriteRecord(remote) if !is_connection => write_record(remote, None),
        SendOp::WriteRecordWithImm(remote, imm) if !is_connection => {
            write_record(remote, Some(imm.into()))
        }
        SendOp::RdmaRead(remote) => read(wr, remote)?,
        SendOp::CompareSwap {
            remote,
            compare,
            swap,
        } if is_reliable => {
            let op = AtomicOp::CmpSwap {
                swap,
                swap_mask: u64::MAX,
                compare,
                compare_mask: u64::MAX,
            };
            atomic(wr, remote, op)?
        }
        SendOp::FetchAdd { remote, add } if is_reliable => {
            atomic(wr, remote, AtomicOp::FetchAdd { add, mask: 0 })?
        }
        SendOp::LocalInv(lkey) if is_connection => Operation::LocalInvalidate(Stag(lkey)),
        _ => return Err(Error::Unsupported("this operation on such a queue pair")),
    };
    operations.push(last);
    Ok(operations)
}

fn write(remote: Remote) -> Operation {
    Operation::Write {
        stag: Stag(remote.rkey),
        to: remote.addr,
        placed: false,
    }
}

fn write_record(remote: Remote, immediate: Option<u64>) -> Operation {
    Operation::WriteRecord {
        stag: Stag(remote.rkey),
        to: remote.addr,
        immediate,
    }
}

fn read(wr: &SendWr<'_>, remote: Remote) -> Result<Operation> {
    let sink = match &wr.data {
        Data::Sges(list) => match list.as_slice() {
            [] => Some(Default::default()),
            [sink] => Some(*sink),
            _ => None,
        },
        Data::Inline(_) => None,
    };
    let sink = sink.ok_or(READ_PIECES)?;
    Ok(Operation::Read {
        sink: Stag(sink.lkey),
        sink_to: sink.addr,
        source: Stag(remote.rkey),
        source_to: remote.addr,
    })
}

/// RFC 5040 §4.4.
pub(super) const READ_PIECES: Error =
    Error::Invalid("a Read over iWARP has more than 1 piece, or inline data");

/// Checks the length of an atomic's result.
pub(super) fn check_atomic(data: &Data<'_>) -> Result<()> {
    const FIELD: &str = "the length of an atomic's result";
    Error::at_least(FIELD, data.total_len(), 8)?;
    Error::at_most(FIELD, data.total_len(), 8)
}

fn atomic(wr: &SendWr<'_>, remote: Remote, op: AtomicOp) -> Result<Operation> {
    check_atomic(&wr.data)?;
    Ok(Operation::Atomic {
        stag: Stag(remote.rkey),
        to: remote.addr,
        op,
    })
}
