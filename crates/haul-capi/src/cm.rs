//! Connections.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use haul_verbs::Failure;
use haul_verbs::cm::{CmEvent, ConnParam, ConnectRequest, EventChannel, Listener};
use libc::{sockaddr, socklen_t};

use crate::abi::*;
use crate::address;
use crate::border::{
    Last, c_text, check_growing, create, destroy, handles, on, read_growing, run, slice, timeout,
    write_growing,
};
use crate::device::haul_context;
use crate::handle::{haul_conn_request, haul_qp};
use crate::status::{Error, Result, blame};

/// A channel for events of connections.
#[derive(Debug)]
pub struct haul_cm_channel {
    channel: EventChannel,
    last: Arc<Last>,
}

/// A listener.
#[derive(Debug)]
pub struct haul_listener {
    listener: Listener,
    last: Arc<Last>,
}

handles!(haul_cm_channel, haul_listener);

const PARAM_DEFAULTS: haul_conn_param = haul_conn_param {
    size: 0,
    private_data_len: 0,
    private_data: std::ptr::null(),
    responder_resources: 16,
    initiator_depth: 16,
    rnr_retry_count: 7,
    retry_count: 7,
    reserved: [0; 2],
};

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_cm_channel_create(
    context: Option<&haul_context>,
    out: Option<&mut MaybeUninit<*mut haul_cm_channel>>,
) -> c_int {
    create(context, "haul_cm_channel_create", out, |context| {
        Ok(haul_cm_channel {
            channel: context.context.create_event_channel()?,
            last: Arc::clone(&context.last),
        })
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_cm_channel_destroy(channel: Option<Box<haul_cm_channel>>) {
    destroy(channel, "haul_cm_channel_destroy");
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_cm_channel_fd(channel: Option<&haul_cm_channel>) -> c_int {
    on(channel, "haul_cm_channel_fd", |channel| {
        Ok(channel.channel.fd().as_raw_fd())
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_cm_channel_poll(
    channel: Option<&haul_cm_channel>,
    out: *mut haul_cm_event,
) -> c_int {
    on(channel, "haul_cm_channel_poll", |handle| {
        // SAFETY: the caller's structure.
        unsafe { take(handle, out, EventChannel::poll) }
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_cm_channel_wait(
    channel: Option<&haul_cm_channel>,
    timeout_ns: i64,
    out: *mut haul_cm_event,
) -> c_int {
    on(channel, "haul_cm_channel_wait", |handle| {
        // SAFETY: the caller's structure.
        unsafe { take(handle, out, |channel| channel.wait(timeout(timeout_ns))) }
    })
}

/// The next event, if any. None is taken where it could not be written down.
///
/// # Safety
/// As [`check_growing`].
unsafe fn take(
    handle: &haul_cm_channel,
    out: *mut haul_cm_event,
    next: impl FnOnce(&EventChannel) -> haul_verbs::Result<Option<CmEvent>>,
) -> Result<c_int> {
    // SAFETY: the caller's contract.
    unsafe { check_growing(out)? };
    let Some(event) = next(&handle.channel)? else {
        return Ok(0);
    };
    // SAFETY: as above.
    unsafe { write_growing(out, &convert(event, &handle.last))? };
    Ok(1)
}

fn convert(event: CmEvent, last: &Arc<Last>) -> haul_cm_event {
    match event {
        CmEvent::ConnectRequest(request) => request_event(request, last),
        CmEvent::Established {
            qp_num,
            established,
        } => haul_cm_event {
            responder_resources: established.responder_resources,
            initiator_depth: established.initiator_depth,
            ..with_data(bare(HAUL_CM_ESTABLISHED, qp_num), &established.private_data)
        },
        CmEvent::Rejected {
            qp_num,
            private_data,
        } => with_data(bare(HAUL_CM_REJECTED, qp_num), &private_data),
        CmEvent::Unreachable { qp_num, failure } => {
            with_failure(bare(HAUL_CM_UNREACHABLE, qp_num), Some(&failure))
        }
        CmEvent::Disconnected { qp_num, failure } => {
            with_failure(bare(HAUL_CM_DISCONNECTED, qp_num), failure.as_ref())
        }
        _ => bare(HAUL_CM_OTHER, 0),
    }
}

fn request_event(request: ConnectRequest, last: &Arc<Last>) -> haul_cm_event {
    let event = haul_cm_event {
        responder_resources: request.responder_resources,
        initiator_depth: request.initiator_depth,
        peer: address::storage(request.peer).0,
        ..with_data(bare(HAUL_CM_CONNECT_REQUEST, 0), &request.private_data)
    };
    let handle = haul_conn_request {
        request,
        last: Arc::clone(last),
    };
    haul_cm_event {
        request: Box::into_raw(Box::new(handle)),
        ..event
    }
}

fn bare(r#type: u32, qp_num: u32) -> haul_cm_event {
    // SAFETY: numbers, arrays of numbers and a pointer: all zeros are a value.
    let zeroed: haul_cm_event = unsafe { std::mem::zeroed() };
    haul_cm_event {
        r#type,
        qp_num,
        ..zeroed
    }
}

fn with_data(mut event: haul_cm_event, data: &[u8]) -> haul_cm_event {
    let len = data.len().min(event.private_data.len());
    event.private_data[..len].copy_from_slice(&data[..len]);
    event.private_data_len = u32::try_from(len).unwrap_or(0);
    event
}

fn with_failure(event: haul_cm_event, failure: Option<&Failure>) -> haul_cm_event {
    haul_cm_event {
        blame: blame(failure),
        reason: c_text(failure.map_or("", |failure| &failure.reason)),
        ..event
    }
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_listen(
    context: Option<&haul_context>,
    address: *const sockaddr,
    address_len: socklen_t,
    channel: Option<&haul_cm_channel>,
    backlog: u32,
    out: Option<&mut MaybeUninit<*mut haul_listener>>,
) -> c_int {
    create(context, "haul_listen", out, |context| {
        let channel = channel.ok_or(NO_CHANNEL)?;
        // SAFETY: the caller's address.
        let address = unsafe { address::read(address, address_len)? };
        Ok(haul_listener {
            listener: context.context.listen(address, &channel.channel, backlog)?,
            last: Arc::clone(&context.last),
        })
    })
}

const NO_CHANNEL: Error = Error::Argument("the channel for events is NULL");

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_listener_address(
    listener: Option<&haul_listener>,
    out: *mut sockaddr,
    len: Option<&mut socklen_t>,
) -> c_int {
    on(listener, "haul_listener_address", |listener| {
        // SAFETY: the caller's place.
        unsafe { address::write(listener.listener.local_addr(), out, len)? };
        Ok(HAUL_OK)
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_listener_destroy(listener: Option<Box<haul_listener>>) {
    destroy(listener, "haul_listener_destroy");
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_connect(
    qp: Option<&haul_qp>,
    address: *const sockaddr,
    address_len: socklen_t,
    param: *const haul_conn_param,
    channel: Option<&haul_cm_channel>,
) -> c_int {
    on(qp, "haul_connect", |qp| {
        let channel = channel.ok_or(NO_CHANNEL)?;
        // SAFETY: the caller's address.
        let peer = unsafe { address::read(address, address_len)? };
        // SAFETY: the caller's structure.
        unsafe { with_param(param, |param| qp.qp.connect(peer, param, &channel.channel))? };
        Ok(HAUL_OK)
    })
}

/// Calls with the parameters of `param`.
///
/// # Safety
/// As [`read_growing`], and its private data is readable.
pub(crate) unsafe fn with_param(
    param: *const haul_conn_param,
    call: impl FnOnce(&ConnParam<'_>) -> haul_verbs::Result<()>,
) -> Result<()> {
    // SAFETY: the caller's contract.
    let param = unsafe { read_growing(param, PARAM_DEFAULTS)? }.unwrap_or(PARAM_DEFAULTS);
    // SAFETY: the caller's contract.
    let private_data = unsafe { data(param.private_data, param.private_data_len)? };
    let mut converted = ConnParam::default();
    converted.private_data = private_data;
    converted.responder_resources = param.responder_resources;
    converted.initiator_depth = param.initiator_depth;
    converted.rnr_retry_count = param.rnr_retry_count;
    converted.retry_count = param.retry_count;
    call(&converted)?;
    Ok(())
}

/// # Safety
/// `len` readable bytes, which do not change while the slice lives.
unsafe fn data<'a>(start: *const c_void, len: u32) -> Result<&'a [u8]> {
    // SAFETY: the caller's contract.
    unsafe { slice(start.cast(), len as usize) }
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_accept(
    request: Option<Box<haul_conn_request>>,
    qp: Option<&haul_qp>,
    param: *const haul_conn_param,
) -> c_int {
    answer(request, "haul_accept", |request| {
        let qp = qp.ok_or(Error::Argument("the queue pair is NULL"))?;
        // SAFETY: the caller's structure.
        unsafe { with_param(param, |param| request.accept(&qp.qp, param)) }
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_reject(
    request: Option<Box<haul_conn_request>>,
    private_data: *const c_void,
    len: u32,
) -> c_int {
    answer(request, "haul_reject", |request| {
        // SAFETY: the caller's bytes.
        let private_data = unsafe { data(private_data, len)? };
        Ok(request.reject(private_data)?)
    })
}

/// Every answer uses the request up.
fn answer(
    request: Option<Box<haul_conn_request>>,
    what: &'static str,
    give: impl FnOnce(ConnectRequest) -> Result<()>,
) -> c_int {
    let Some(request) = request else {
        return on(None::<&haul_conn_request>, what, |_| Ok(HAUL_OK));
    };
    let haul_conn_request { request, last } = *request;
    run(&last, what, || give(request).map(|()| HAUL_OK))
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_disconnect(qp: Option<&haul_qp>) -> c_int {
    on(qp, "haul_disconnect", |qp| {
        qp.qp.disconnect()?;
        Ok(HAUL_OK)
    })
}
