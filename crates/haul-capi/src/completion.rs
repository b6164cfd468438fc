//! Completion channels and queues.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use haul_verbs::{CompletionChannel, Cq, Notify, WcData, WcOpcode, WcStatus, WorkCompletion};

use crate::abi::*;
use crate::border::{Last, NULL_OUT, count, create, destroy, handles, on, places, timeout};
use crate::datagram::peer_of;
use crate::device::haul_context;
use crate::handle::haul_cq;
use crate::status::Result;

/// A completion channel.
#[derive(Debug)]
pub struct haul_comp_channel {
    channel: CompletionChannel,
    last: Arc<Last>,
}

handles!(haul_comp_channel);

/// Completions that are turned into C's form at a time, on the stack.
const CHUNK: usize = 32;

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_comp_channel_create(
    context: Option<&haul_context>,
    out: Option<&mut MaybeUninit<*mut haul_comp_channel>>,
) -> c_int {
    create(context, "haul_comp_channel_create", out, |context| {
        Ok(haul_comp_channel {
            channel: context.context.create_completion_channel()?,
            last: Arc::clone(&context.last),
        })
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_comp_channel_destroy(channel: Option<Box<haul_comp_channel>>) {
    destroy(channel, "haul_comp_channel_destroy");
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_comp_channel_fd(channel: Option<&haul_comp_channel>) -> c_int {
    on(channel, "haul_comp_channel_fd", |channel| {
        Ok(channel.channel.fd().as_raw_fd())
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_comp_channel_poll(
    channel: Option<&haul_comp_channel>,
    token: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    on(channel, "haul_comp_channel_poll", |channel| {
        take(token, || channel.channel.poll_event())
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_comp_channel_wait(
    channel: Option<&haul_comp_channel>,
    timeout_ns: i64,
    token: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    on(channel, "haul_comp_channel_wait", |channel| {
        take(token, || channel.channel.wait_event(timeout(timeout_ns)))
    })
}

/// A queue's token, if there is one. None is taken where there is nowhere to put it.
fn take(
    out: Option<&mut MaybeUninit<u64>>,
    next: impl FnOnce() -> haul_verbs::Result<Option<u64>>,
) -> Result<c_int> {
    let out = out.ok_or(NULL_OUT)?;
    let Some(token) = next()? else {
        return Ok(0);
    };
    out.write(token);
    Ok(1)
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_cq_create(
    context: Option<&haul_context>,
    entries: u32,
    channel: Option<&haul_comp_channel>,
    token: u64,
    out: Option<&mut MaybeUninit<*mut haul_cq>>,
) -> c_int {
    create(context, "haul_cq_create", out, |context| {
        let channel = channel.map(|channel| &channel.channel);
        Ok(haul_cq {
            cq: context.context.create_cq(entries, channel, token)?,
            last: Arc::clone(&context.last),
        })
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_cq_destroy(cq: Option<Box<haul_cq>>) {
    destroy(cq, "haul_cq_destroy");
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_cq_poll(cq: Option<&haul_cq>, out: *mut haul_wc, len: u32) -> c_int {
    on(cq, "haul_cq_poll", |cq| {
        // SAFETY: the caller's array.
        let out = unsafe { places(out, len as usize)? };
        poll(&cq.cq, out).map(count)
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_cq_wait(
    cq: Option<&haul_cq>,
    timeout_ns: i64,
    out: *mut haul_wc,
    len: u32,
) -> c_int {
    on(cq, "haul_cq_wait", |cq| {
        // SAFETY: the caller's array.
        let out = unsafe { places(out, len as usize)? };
        wait(&cq.cq, out, timeout(timeout_ns)).map(count)
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_cq_arm(cq: Option<&haul_cq>, solicited_only: c_int) -> c_int {
    on(cq, "haul_cq_arm", |cq| {
        let notify = if solicited_only == 0 {
            Notify::Any
        } else {
            Notify::Solicited
        };
        cq.cq.arm(notify)?;
        Ok(HAUL_OK)
    })
}

fn poll(cq: &Cq, out: &mut [MaybeUninit<haul_wc>]) -> Result<usize> {
    let mut taken = 0;
    let mut chunk = [WorkCompletion::default(); CHUNK];
    for places in out.chunks_mut(CHUNK) {
        let found = match cq.poll(&mut chunk[..places.len()]) {
            Ok(found) => found,
            // What was taken before must not be lost; the next call fails again.
            Err(_) if taken > 0 => break,
            Err(error) => return Err(error.into()),
        };
        convert(&chunk[..found], places);
        taken += found;
        if found < places.len() {
            break;
        }
    }
    Ok(taken)
}

fn wait(cq: &Cq, out: &mut [MaybeUninit<haul_wc>], timeout: Option<Duration>) -> Result<usize> {
    let (first, rest) = out.split_at_mut(out.len().min(CHUNK));
    let mut chunk = [WorkCompletion::default(); CHUNK];
    let found = cq.wait(&mut chunk[..first.len()], timeout)?;
    convert(&chunk[..found], first);
    if found < first.len() || rest.is_empty() {
        return Ok(found);
    }
    Ok(found + poll(cq, rest).unwrap_or(0))
}

fn convert(from: &[WorkCompletion], to: &mut [MaybeUninit<haul_wc>]) {
    for (place, wc) in to.iter_mut().zip(from) {
        place.write(completion(wc));
    }
}

fn completion(wc: &WorkCompletion) -> haul_wc {
    let (flags, data) = match wc.data {
        WcData::Imm(data) => (HAUL_WC_WITH_IMM, data),
        WcData::InvalidatedRkey(rkey) => (HAUL_WC_WITH_INV, rkey),
        _ => (0, 0),
    };
    let source = wc.src.map(peer_of);
    haul_wc {
        wr_id: wc.wr_id,
        status: status(wc.status),
        opcode: opcode(wc.opcode),
        byte_len: wc.byte_len,
        qp_num: wc.qp_num,
        flags: flags | source.map_or(0, |_| HAUL_WC_WITH_SRC),
        data,
        src_qp: source.map_or(0, |peer| peer.qp_num),
        vendor_err: wc.vendor_err,
        src_addr: source.map_or([0; 16], |peer| peer.addr),
        src_scope_id: source.map_or(0, |peer| peer.scope_id),
        src_port: source.map_or(0, |peer| peer.port),
        reserved: 0,
    }
}

fn status(status: WcStatus) -> u32 {
    match status {
        WcStatus::Success => HAUL_WC_SUCCESS,
        WcStatus::LocLenErr => HAUL_WC_LOC_LEN_ERR,
        WcStatus::LocQpOpErr => HAUL_WC_LOC_QP_OP_ERR,
        WcStatus::LocProtErr => HAUL_WC_LOC_PROT_ERR,
        WcStatus::WrFlushErr => HAUL_WC_WR_FLUSH_ERR,
        WcStatus::MwBindErr => HAUL_WC_MW_BIND_ERR,
        WcStatus::BadRespErr => HAUL_WC_BAD_RESP_ERR,
        WcStatus::LocAccessErr => HAUL_WC_LOC_ACCESS_ERR,
        WcStatus::RemInvReqErr => HAUL_WC_REM_INV_REQ_ERR,
        WcStatus::RemAccessErr => HAUL_WC_REM_ACCESS_ERR,
        WcStatus::RemOpErr => HAUL_WC_REM_OP_ERR,
        WcStatus::RetryExcErr => HAUL_WC_RETRY_EXC_ERR,
        WcStatus::RnrRetryExcErr => HAUL_WC_RNR_RETRY_EXC_ERR,
        WcStatus::RemAbortErr => HAUL_WC_REM_ABORT_ERR,
        WcStatus::FatalErr => HAUL_WC_FATAL_ERR,
        WcStatus::RespTimeoutErr => HAUL_WC_RESP_TIMEOUT_ERR,
        _ => HAUL_WC_GENERAL_ERR,
    }
}

fn opcode(opcode: WcOpcode) -> u32 {
    match opcode {
        WcOpcode::Send => HAUL_WC_SEND,
        WcOpcode::RdmaWrite => HAUL_WC_RDMA_WRITE,
        WcOpcode::RdmaRead => HAUL_WC_RDMA_READ,
        WcOpcode::CompSwap => HAUL_WC_COMPARE_SWAP,
        WcOpcode::FetchAdd => HAUL_WC_FETCH_ADD,
        WcOpcode::LocalInv => HAUL_WC_LOCAL_INV,
        WcOpcode::Recv => HAUL_WC_RECV,
        WcOpcode::RecvRdmaWithImm => HAUL_WC_RECV_RDMA_WITH_IMM,
        WcOpcode::WriteRecord => HAUL_WC_WRITE_RECORD,
        WcOpcode::RecvWriteRecord => HAUL_WC_RECV_WRITE_RECORD,
        _ => HAUL_WC_OTHER,
    }
}
