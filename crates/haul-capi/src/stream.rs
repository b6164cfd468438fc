//! Byte streams over UDT.

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use haul_soft::udt::stream::{Listener, Options, Ready, Received, Stream};
use libc::{sockaddr, socklen_t};

use crate::abi::*;
use crate::address;
use crate::border::{
    Last, NULL_OUT, c_text, count, create, destroy, handles, on, places, read_growing, slice,
    timeout, write_growing,
};
use crate::device::haul_context;
use crate::status::{Error, Result};

/// A byte stream.
#[derive(Debug)]
pub struct haul_stream {
    stream: Stream,
    last: Arc<Last>,
}

/// A listener for byte streams.
#[derive(Debug)]
pub struct haul_stream_listener {
    listener: Mutex<AnyListener>,
    address: SocketAddr,
    fd: RawFd,
    last: Arc<Last>,
}

/// Who drives its streams.
#[derive(Debug)]
enum AnyListener {
    ThisProcess(Box<Listener>),
    Engine(haul_engine::StreamListener),
}

handles!(haul_stream, haul_stream_listener);

const OPTION_DEFAULTS: haul_stream_options = haul_stream_options {
    size: 0,
    reserved: 0,
    send_bytes: 16 << 20,
    receive_bytes: 16 << 20,
    connect_timeout_ns: 10 * SECOND_NS,
    silence_timeout_ns: 30 * SECOND_NS,
};
const SECOND_NS: u64 = 1_000_000_000;
/// Of either ring.
const RING_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 30;
/// What a call moves at most: its count is an `int`.
const CALL_BYTES: usize = 1 << 30;

/// # Errors
/// What cannot be.
///
/// # Safety
/// As [`read_growing`].
unsafe fn options(context: &haul_context, from: *const haul_stream_options) -> Result<Options> {
    // SAFETY: the caller's contract.
    let from = unsafe { read_growing(from, OPTION_DEFAULTS)? }.unwrap_or(OPTION_DEFAULTS);
    let limits = [
        ("send_bytes", from.send_bytes, RING_BYTES),
        ("receive_bytes", from.receive_bytes, RING_BYTES),
        ("connect_timeout_ns", from.connect_timeout_ns, 1..=u64::MAX),
        ("silence_timeout_ns", from.silence_timeout_ns, 1..=u64::MAX),
    ];
    for (field, value, limits) in limits {
        haul_verbs::Error::at_least(field, value, *limits.start())?;
        haul_verbs::Error::at_most(field, value, *limits.end())?;
    }
    Error::reserved("haul_stream_options", from.reserved == 0)?;
    let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut options = Options::default();
    options.send_bytes = bytes(from.send_bytes);
    options.receive_bytes = bytes(from.receive_bytes);
    options.rate_bps = context.stream_rate_bps()?;
    options.engine_cpus = context.engine_cpus.clone();
    options.protect = context.stream_protect();
    options.udt.config.connect_timeout_ns = from.connect_timeout_ns;
    options.udt.config.idle_timeout_ns = from.silence_timeout_ns;
    options.udt.config.slot_memory_bytes = from.receive_bytes;
    Ok(options)
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_stream_listen(
    context: Option<&haul_context>,
    address: *const sockaddr,
    address_len: socklen_t,
    options: *const haul_stream_options,
    out: Option<&mut MaybeUninit<*mut haul_stream_listener>>,
) -> c_int {
    create(context, "haul_stream_listen", out, |context| {
        // SAFETY: the caller's address.
        let address = unsafe { address::read(address, address_len)? };
        // SAFETY: the caller's structure.
        let options = unsafe { self::options(context, options)? };
        let (address, fd, listener) = match haul_engine::streams(&context.context) {
            None => {
                let listener = Listener::bind(address, options).map_err(Error::os("listening"))?;
                let (address, fd) = (listener.local_addr(), listener.as_fd().as_raw_fd());
                (address, fd, AnyListener::ThisProcess(Box::new(listener)))
            }
            Some(streams) => {
                let listener = streams.listen(address, &options)?;
                let (address, fd) = (listener.local_addr(), listener.as_fd().as_raw_fd());
                (address, fd, AnyListener::Engine(listener))
            }
        };
        Ok(haul_stream_listener {
            address,
            fd,
            listener: Mutex::new(listener),
            last: Arc::clone(&context.last),
        })
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_stream_listener_address(
    listener: Option<&haul_stream_listener>,
    out: *mut sockaddr,
    len: Option<&mut socklen_t>,
) -> c_int {
    on(listener, "haul_stream_listener_address", |listener| {
        // SAFETY: the caller's place.
        unsafe { address::write(listener.address, out, len)? };
        Ok(HAUL_OK)
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_stream_listener_fd(listener: Option<&haul_stream_listener>) -> c_int {
    on(listener, "haul_stream_listener_fd", |listener| {
        Ok(listener.fd)
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_stream_listener_destroy(listener: Option<Box<haul_stream_listener>>) {
    destroy(listener, "haul_stream_listener_destroy");
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_stream_accept(
    listener: Option<&haul_stream_listener>,
    out: Option<&mut MaybeUninit<*mut haul_stream>>,
) -> c_int {
    let now = Some(Duration::ZERO);
    accept(listener, "haul_stream_accept", out, now)
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_stream_accept_wait(
    listener: Option<&haul_stream_listener>,
    timeout_ns: i64,
    out: Option<&mut MaybeUninit<*mut haul_stream>>,
) -> c_int {
    let timeout = timeout(timeout_ns);
    accept(listener, "haul_stream_accept_wait", out, timeout)
}

fn accept(
    listener: Option<&haul_stream_listener>,
    what: &'static str,
    out: Option<&mut MaybeUninit<*mut haul_stream>>,
    timeout: Option<Duration>,
) -> c_int {
    on(listener, what, |handle| {
        let out = out.ok_or(NULL_OUT)?.write(std::ptr::null_mut());
        let mut listener = handle
            .listener
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let accepted = match &mut *listener {
            AnyListener::ThisProcess(listener) => {
                listener.wait(timeout).map_err(Error::os("accepting"))?
            }
            AnyListener::Engine(listener) => listener.wait(timeout)?,
        };
        let Some(stream) = accepted else {
            return Ok(0);
        };
        let last = Arc::clone(&handle.last);
        *out = Box::into_raw(Box::new(haul_stream { stream, last }));
        Ok(1)
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_stream_connect(
    context: Option<&haul_context>,
    address: *const sockaddr,
    address_len: socklen_t,
    options: *const haul_stream_options,
    out: Option<&mut MaybeUninit<*mut haul_stream>>,
) -> c_int {
    create(context, "haul_stream_connect", out, |context| {
        // SAFETY: the caller's address.
        let peer = unsafe { address::read(address, address_len)? };
        // SAFETY: the caller's structure.
        let options = unsafe { self::options(context, options)? };
        Ok(haul_stream {
            stream: match haul_engine::streams(&context.context) {
                None => Stream::connect(peer, &options).map_err(|error| Error::from(&error))?,
                Some(streams) => streams.connect(peer, &options)?,
            },
            last: Arc::clone(&context.last),
        })
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_stream_rendezvous(
    context: Option<&haul_context>,
    local: *const sockaddr,
    local_len: socklen_t,
    address: *const sockaddr,
    address_len: socklen_t,
    options: *const haul_stream_options,
    out: Option<&mut MaybeUninit<*mut haul_stream>>,
) -> c_int {
    create(context, "haul_stream_rendezvous", out, |context| {
        // SAFETY: the caller's addresses.
        let local = unsafe { address::read(local, local_len)? };
        // SAFETY: as above.
        let peer = unsafe { address::read(address, address_len)? };
        haul_verbs::Error::at_least("the local port", local.port().into(), 1)?;
        if local.is_ipv4() != peer.is_ipv4() {
            return Err(Error::Text(format!(
                "the local address is {local} and the peer's is {peer}, and both must be of one family"
            )));
        }
        // SAFETY: the caller's structure.
        let options = unsafe { self::options(context, options)? };
        if options.protect.is_some() {
            return Err(haul_verbs::Error::Unsupported("protection of a rendezvous").into());
        }
        Ok(haul_stream {
            stream: match haul_engine::streams(&context.context) {
                None => Stream::rendezvous(local, peer, &options)
                    .map_err(|error| Error::from(&error))?,
                Some(streams) => streams.rendezvous(local, peer, &options)?,
            },
            last: Arc::clone(&context.last),
        })
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_stream_fd(stream: Option<&haul_stream>) -> c_int {
    on(stream, "haul_stream_fd", |handle| {
        Ok(handle.stream.as_fd().as_raw_fd())
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_stream_poll(stream: Option<&haul_stream>, wanted: u32) -> c_int {
    on(stream, "haul_stream_poll", |handle| {
        Ok(number(handle.stream.poll(ready(wanted)?)))
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_stream_wait(
    stream: Option<&haul_stream>,
    wanted: u32,
    timeout_ns: i64,
) -> c_int {
    on(stream, "haul_stream_wait", |handle| {
        let wanted = ready(wanted)?;
        Ok(number(handle.stream.wait(wanted, timeout(timeout_ns))))
    })
}

fn ready(wanted: u32) -> Result<Ready> {
    let ready = Ready::from_bits(wanted).filter(|ready| !ready.is_empty());
    ready.ok_or_else(|| Error::unknown("wanted", wanted, "of HAUL_STREAM_…"))
}

fn number(ready: Ready) -> c_int {
    ready.bits().cast_signed()
}

const _: () = assert!(
    Ready::OPEN.bits() == HAUL_STREAM_OPEN
        && Ready::READABLE.bits() == HAUL_STREAM_READABLE
        && Ready::WRITABLE.bits() == HAUL_STREAM_WRITABLE
        && Ready::SENT.bits() == HAUL_STREAM_SENT
        && Ready::OVER.bits() == HAUL_STREAM_OVER
);

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_stream_send(
    stream: Option<&haul_stream>,
    start: *const c_void,
    len: usize,
) -> c_int {
    on(stream, "haul_stream_send", |handle| {
        // SAFETY: the caller's bytes.
        let bytes: &[u8] = unsafe { slice(start.cast(), len.min(CALL_BYTES))? };
        Ok(count(handle.stream.send(bytes).map_err(Error::from)?))
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_stream_recv(
    stream: Option<&haul_stream>,
    start: *mut c_void,
    len: usize,
) -> c_int {
    on(stream, "haul_stream_recv", |handle| {
        // SAFETY: the caller's room.
        let room = unsafe { places::<u8>(start.cast(), len.min(CALL_BYTES))? };
        let (to, most) = (room.as_mut_ptr(), room.len());
        let copy = |bytes: &[u8]| {
            // SAFETY: `bytes` are no more than `most`, and memory of the library's.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len()) };
        };
        match handle.stream.recv_with(most, copy).map_err(Error::from)? {
            Received::Bytes(bytes) => Ok(count(bytes)),
            Received::Nothing => Ok(0),
            Received::End => Err(Error::Ended),
        }
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_stream_shutdown(stream: Option<&haul_stream>) -> c_int {
    on(stream, "haul_stream_shutdown", |handle| {
        handle.stream.finish();
        Ok(HAUL_OK)
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_stream_query(
    stream: Option<&haul_stream>,
    out: *mut haul_stream_info,
) -> c_int {
    on(stream, "haul_stream_query", |handle| {
        let stream = &handle.stream;
        let flag = |so: bool, flag: u32| if so { flag } else { 0 };
        // Before what has come, which is not more when it is so.
        let ended = flag(stream.has_peer_ended(), HAUL_STREAM_PEER_ENDED);
        let [given_bytes, arrived_bytes, come_bytes, received_bytes] = stream.counts();
        let measured = stream.measured();
        let reason: [c_char; 256] = match stream.over() {
            Some(over) => c_text(&over.to_string()),
            None => [0; 256],
        };
        let info = haul_stream_info {
            size: 0,
            flags: flag(stream.is_plain(), HAUL_STREAM_PLAIN) | ended,
            peer: address::storage(stream.peer()).0,
            given_bytes,
            arrived_bytes,
            come_bytes,
            received_bytes,
            resent_bytes: measured.map_or(0, |measured| measured.resent_bytes),
            rtt_ns: measured.map_or(0, |measured| measured.rtt_ns),
            rate_bps: measured.map_or(0, |measured| measured.rate_bps),
            reason,
        };
        // SAFETY: the caller's structure.
        unsafe { write_growing(out, &info)? };
        Ok(HAUL_OK)
    })
}

/// See include/haul.h.
#[unsafe(no_mangle)]
pub extern "C" fn haul_stream_destroy(stream: Option<Box<haul_stream>>) {
    destroy(stream, "haul_stream_destroy");
}
