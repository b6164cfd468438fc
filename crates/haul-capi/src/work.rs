//! Posting: C's work requests become those of `haul-verbs`, a few at a time, on the stack.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use arrayvec::ArrayVec;
use haul_verbs::{
    Data, PostError, Qp, RecvWr, Remote, SGE_MAX, SendFlags, SendOp, SendWr, Sge, SgeList,
};

use crate::abi::*;
use crate::border::{on, slice};
use crate::datagram::destination;
use crate::handle::{haul_qp, haul_srq};
use crate::status::{Error, Result};

/// Work requests that are converted and posted at a time.
const CHUNK: usize = 16;

const INLINE_BYTES: usize = HAUL_INLINE_MAX as usize;

const _: () = assert!(SGE_MAX == HAUL_SGE_MAX as usize);

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_post_send(
    qp: Option<&haul_qp>,
    requests: *const haul_send_wr,
    len: usize,
    posted: Option<&mut MaybeUninit<usize>>,
) -> c_int {
    on(qp, "haul_post_send", |qp| {
        let mut done = 0;
        // SAFETY: the caller's array.
        let result = unsafe { slice(requests, len) }.and_then(|requests| {
            // SAFETY: what requests point to is the caller's as well.
            unsafe { post_all(&qp.qp, requests, &[], &mut done) }
        });
        finish(posted, done, result)
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_post_send_to(
    qp: Option<&haul_qp>,
    peers: *const haul_peer,
    requests: *const haul_send_wr,
    len: usize,
    posted: Option<&mut MaybeUninit<usize>>,
) -> c_int {
    on(qp, "haul_post_send_to", |qp| {
        let mut done = 0;
        // SAFETY: the caller's array.
        let requests = unsafe { slice(requests, len) };
        // SAFETY: as above.
        let peers = unsafe { slice(peers, len) };
        let result = requests.and_then(|requests| {
            // SAFETY: what requests point to is the caller's as well.
            unsafe { post_all(&qp.qp, requests, peers?, &mut done) }
        });
        finish(posted, done, result)
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_post_recv(
    qp: Option<&haul_qp>,
    requests: *const haul_recv_wr,
    len: usize,
    posted: Option<&mut MaybeUninit<usize>>,
) -> c_int {
    on(qp, "haul_post_recv", |qp| {
        let mut done = 0;
        let post = |batch: &[RecvWr]| qp.qp.post_recv(batch);
        // SAFETY: the caller's array and what it points to.
        let result = unsafe { receive_all(requests, len, &mut done, post) };
        finish(posted, done, result)
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_srq_post_recv(
    srq: Option<&haul_srq>,
    requests: *const haul_recv_wr,
    len: usize,
    posted: Option<&mut MaybeUninit<usize>>,
) -> c_int {
    on(srq, "haul_srq_post_recv", |srq| {
        let mut done = 0;
        let post = |batch: &[RecvWr]| srq.srq.post_recv(batch);
        // SAFETY: the caller's array and what it points to.
        let result = unsafe { receive_all(requests, len, &mut done, post) };
        finish(posted, done, result)
    })
}

fn finish(
    posted: Option<&mut MaybeUninit<usize>>,
    done: usize,
    result: Result<()>,
) -> Result<c_int> {
    if let Some(posted) = posted {
        posted.write(done);
    }
    result.map(|()| HAUL_OK)
}

/// A send work request on its way.
enum Converted<'a> {
    Ready(SendWr<'a>),
    /// Inline data in several pieces, which are brought together first.
    Scattered(SendWr<'static>, &'a [haul_sge]),
}

/// Posts in order, to a peer each where there are any; `done` counts.
///
/// # Safety
/// Arrays and inline data that the requests point to are readable until it returns.
unsafe fn post_all(
    qp: &Qp,
    requests: &[haul_send_wr],
    peers: &[haul_peer],
    done: &mut usize,
) -> Result<()> {
    let mut batch = ArrayVec::<SendWr<'_>, CHUNK>::new();
    for (index, request) in requests.iter().enumerate() {
        // SAFETY: the caller's contract.
        match unsafe { convert(request, peers.get(index)) } {
            Ok(Converted::Ready(converted)) => {
                if batch.is_full() {
                    flush(qp, &mut batch, done)?;
                }
                batch.push(converted);
            }
            Ok(Converted::Scattered(converted, pieces)) => {
                flush(qp, &mut batch, done)?;
                // SAFETY: the caller's contract.
                unsafe { post_scattered(qp, converted, pieces)? };
                *done += 1;
            }
            Err(error) => {
                flush(qp, &mut batch, done)?;
                return Err(error);
            }
        }
    }
    flush(qp, &mut batch, done)
}

fn flush(qp: &Qp, batch: &mut ArrayVec<SendWr<'_>, CHUNK>, done: &mut usize) -> Result<()> {
    if batch.is_empty() {
        return Ok(());
    }
    let result = qp.post_send(batch);
    counted(result, batch.len(), done)?;
    batch.clear();
    Ok(())
}

fn counted(result: Result<(), PostError>, all: usize, done: &mut usize) -> Result<()> {
    match result {
        Ok(()) => {
            *done += all;
            Ok(())
        }
        Err(error) => {
            *done += error.posted;
            Err(error.into())
        }
    }
}

/// # Safety
/// As [`post_all`].
unsafe fn convert<'a>(request: &haul_send_wr, peer: Option<&haul_peer>) -> Result<Converted<'a>> {
    let known = HAUL_SEND_SIGNALED | HAUL_SEND_FENCE | HAUL_SEND_SOLICITED | HAUL_SEND_INLINE;
    if request.flags & !known != 0 {
        return Err(Error::unknown("flags", request.flags, "of HAUL_SEND_…"));
    }
    Error::reserved("haul_send_wr", request.reserved == 0)?;
    let mut wr = SendWr::new(request.wr_id, operation(request)?, SgeList::EMPTY);
    wr.flags = SendFlags::from_bits_truncate(request.flags & !HAUL_SEND_INLINE);
    wr.peer = peer.map(destination).transpose()?;
    // SAFETY: the caller's contract.
    let pieces: &[haul_sge] = unsafe { slice(request.sges, request.num_sge as usize)? };
    if request.flags & HAUL_SEND_INLINE == 0 {
        wr.data = Data::Sges(list(pieces)?);
        return Ok(Converted::Ready(wr));
    }
    check_pieces(pieces)?;
    match pieces {
        [] => Ok(Converted::Ready(wr)),
        [piece] => {
            // SAFETY: the caller's contract.
            wr.data = Data::Inline(unsafe { inline(piece)? });
            Ok(Converted::Ready(wr))
        }
        pieces => Ok(Converted::Scattered(wr, pieces)),
    }
}

/// # Safety
/// The piece is readable while the slice lives.
unsafe fn inline<'a>(piece: &haul_sge) -> Result<&'a [u8]> {
    check_inline(piece.len.into())?;
    haul_verbs::Error::at_most("addr of inline data", piece.addr, usize::MAX as u64)?;
    let start = usize::try_from(piece.addr).unwrap_or(usize::MAX);
    let start = std::ptr::with_exposed_provenance(start);
    // SAFETY: the caller's contract.
    unsafe { slice(start, piece.len as usize) }
}

/// # Safety
/// The pieces are readable.
unsafe fn post_scattered(qp: &Qp, wr: SendWr<'_>, pieces: &[haul_sge]) -> Result<()> {
    let mut bytes = ArrayVec::<u8, INLINE_BYTES>::new();
    for piece in pieces {
        // SAFETY: the caller's contract.
        let piece = unsafe { inline(piece)? };
        check_inline((bytes.len() + piece.len()) as u64)?;
        bytes.extend(piece.iter().copied());
    }
    let mut wr = wr;
    wr.data = Data::Inline(&bytes);
    Ok(qp.post_send(&[wr])?)
}

fn check_inline(len: u64) -> Result<()> {
    haul_verbs::Error::at_most("the length of inline data", len, HAUL_INLINE_MAX.into())?;
    Ok(())
}

fn check_pieces(pieces: &[haul_sge]) -> Result<()> {
    haul_verbs::Error::at_most("num_sge", pieces.len() as u64, HAUL_SGE_MAX.into())?;
    Ok(())
}

fn operation(request: &haul_send_wr) -> Result<SendOp> {
    let remote = Remote {
        addr: request.remote_addr,
        rkey: request.rkey,
    };
    Ok(match request.opcode {
        HAUL_WR_SEND => SendOp::Send,
        HAUL_WR_SEND_WITH_IMM => SendOp::SendWithImm(request.data),
        HAUL_WR_SEND_WITH_INV => SendOp::SendWithInv(request.data),
        HAUL_WR_RDMA_WRITE => SendOp::RdmaWrite(remote),
        HAUL_WR_RDMA_WRITE_WITH_IMM => SendOp::RdmaWriteWithImm(remote, request.data),
        HAUL_WR_RDMA_READ => SendOp::RdmaRead(remote),
        HAUL_WR_COMPARE_SWAP => SendOp::CompareSwap {
            remote,
            compare: request.compare_add,
            swap: request.swap,
        },
        HAUL_WR_FETCH_ADD => SendOp::FetchAdd {
            remote,
            add: request.compare_add,
        },
        HAUL_WR_LOCAL_INV => SendOp::LocalInv(request.data),
        HAUL_WR_WRITE_RECORD => SendOp::WriteRecord(remote),
        HAUL_WR_WRITE_RECORD_WITH_IMM => SendOp::WriteRecordWithImm(remote, request.data),
        other => return Err(Error::unknown("opcode", other, "one of HAUL_WR_…")),
    })
}

fn list(pieces: &[haul_sge]) -> Result<SgeList> {
    check_pieces(pieces)?;
    let pieces = pieces.iter().map(|piece| Sge {
        addr: piece.addr,
        len: piece.len,
        lkey: piece.lkey,
    });
    let converted: ArrayVec<Sge, SGE_MAX> = pieces.take(SGE_MAX).collect();
    Ok(SgeList::new(&converted).unwrap_or_default())
}

/// Posts in order; `done` counts.
///
/// # Safety
/// `len` readable requests, and as many pieces behind each as it says.
unsafe fn receive_all(
    requests: *const haul_recv_wr,
    len: usize,
    done: &mut usize,
    post: impl Fn(&[RecvWr]) -> Result<(), PostError>,
) -> Result<()> {
    // SAFETY: the caller's contract.
    let requests: &[haul_recv_wr] = unsafe { slice(requests, len)? };
    for chunk in requests.chunks(CHUNK) {
        let mut batch = ArrayVec::<RecvWr, CHUNK>::new();
        let mut refused = None;
        for request in chunk {
            // SAFETY: the caller's contract.
            match unsafe { convert_recv(request) } {
                Ok(converted) => batch.push(converted),
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        counted(post(&batch), batch.len(), done)?;
        if let Some(error) = refused {
            return Err(error);
        }
    }
    Ok(())
}

/// # Safety
/// As many readable pieces behind the request as it says.
unsafe fn convert_recv(request: &haul_recv_wr) -> Result<RecvWr> {
    Error::reserved("haul_recv_wr", request.reserved == 0)?;
    // SAFETY: the caller's contract.
    let pieces: &[haul_sge] = unsafe { slice(request.sges, request.num_sge as usize)? };
    Ok(RecvWr::new(request.wr_id, list(pieces)?))
}

/// The flags have the numbers of `haul-verbs`, which `convert` relies on.
const _: () = {
    assert!(SendFlags::SIGNALED.bits() == HAUL_SEND_SIGNALED);
    assert!(SendFlags::FENCE.bits() == HAUL_SEND_FENCE);
    assert!(SendFlags::SOLICITED.bits() == HAUL_SEND_SOLICITED);
};
