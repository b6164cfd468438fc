//! What c/preload/haul_socket.h declares. Pointers and numbers come in, results of system calls go
//! out; no panic passes, and `errno` is as it was unless the call failed.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use libc::{msghdr, sockaddr, socklen_t, ssize_t};

pub use crate::datagram::HaulSocketArrival;
use crate::process::{self, Entry, Kind};
use crate::table::Table;
use crate::{connect, datagram, gateway, lock, stream, sys};

/// Runs what reports nothing.
fn quietly(body: impl FnOnce()) {
    let error = sys::errno();
    // What a panic leaves behind is atomic numbers, each of which is checked when it is read.
    let _ = catch_unwind(AssertUnwindSafe(body));
    sys::set_errno(error);
}

/// Runs what a system call would do.
fn call<T: From<i8> + PartialOrd>(body: impl FnOnce() -> T) -> T {
    let error = sys::errno();
    let Ok(result) = catch_unwind(AssertUnwindSafe(body)) else {
        sys::set_errno(libc::EIO);
        return T::from(-1);
    };
    if result >= T::from(0) {
        sys::set_errno(error);
    }
    result
}

/// # Safety
/// NULL, or a string.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller's word.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

/// # Safety
/// Strings, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_socket_start(table: *const c_char, run: *const c_char) -> c_int {
    // SAFETY: the caller's word.
    let table = unsafe { text(table) };
    // SAFETY: likewise.
    let run = unsafe { text(run) };
    let mut active = process::get().is_some();
    quietly(|| {
        let run = run.and_then(|run| run.to_str().ok()?.parse().ok());
        if active {
            connect::again();
        } else if let (Some(table), Some(run)) = (table, run) {
            active = start(Path::new(OsStr::from_bytes(table.to_bytes())), run);
        }
    });
    c_int::from(active)
}

/// Joins the table of a `haul run`.
fn start(table: &Path, run: u32) -> bool {
    let joined = Table::open(table).is_ok_and(|table| process::start(table, run));
    if joined && let Some(process) = process::get() {
        connect::inherit(process);
        // SAFETY: the function is there as long as the process: the shim is not unloaded.
        unsafe { libc::atexit(at_exit) };
    }
    joined
}

extern "C" fn at_exit() {
    quietly(connect::exit);
}

/// Before `fork`.
#[unsafe(no_mangle)]
pub extern "C" fn haul_socket_forking() {
    quietly(connect::forking);
}

/// In the child after `fork`.
#[unsafe(no_mangle)]
pub extern "C" fn haul_socket_forked() {
    lock::forked();
}

/// Called before an application starts that inherits descriptors of this process.
#[unsafe(no_mangle)]
pub extern "C" fn haul_socket_spawning() {
    quietly(connect::spawning);
}

/// Another process will have this descriptor, too.
#[unsafe(no_mangle)]
pub extern "C" fn haul_socket_shared(fd: c_int) {
    with(fd, connect::share);
}

/// Before `exec`.
#[unsafe(no_mangle)]
pub extern "C" fn haul_socket_before_exec() {
    quietly(connect::before_exec);
}

/// After socket(2).
#[unsafe(no_mangle)]
pub extern "C" fn haul_socket_opened(fd: c_int, domain: c_int, kind: c_int, protocol: c_int) {
    quietly(|| {
        if let Some(process) = process::get() {
            process::clear(fd);
            connect::opened(process, fd, domain, kind, protocol);
        }
    });
}

fn with(fd: c_int, body: impl FnOnce(&Entry)) {
    quietly(|| {
        if let Some(entry) = process::entry(fd) {
            body(&entry);
        }
    });
}

/// After bind(2).
#[unsafe(no_mangle)]
pub extern "C" fn haul_socket_bound(fd: c_int) {
    with(fd, |entry| connect::bound(entry, false));
}

/// After listen(2).
#[unsafe(no_mangle)]
pub extern "C" fn haul_socket_listening(fd: c_int) {
    with(fd, |entry| connect::bound(entry, true));
}

/// After accept4(2).
#[unsafe(no_mangle)]
pub extern "C" fn haul_socket_accepted(listener: c_int, fd: c_int) {
    with(listener, |entry| {
        process::clear(fd);
        connect::accepted(entry, fd);
    });
}

/// After setsockopt(2).
#[unsafe(no_mangle)]
pub extern "C" fn haul_socket_option(fd: c_int, level: c_int, name: c_int) {
    with(fd, |entry| connect::option(entry, level, name));
}

/// connect(2).
///
/// # Safety
/// An address of that length, as connect(2) takes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_socket_connect(
    fd: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> c_int {
    call(|| match process::entry(fd) {
        Some(entry) => connect::connect(&entry, to, length),
        None => sys::connect(fd, to, length),
    })
}

/// After getsockopt(2) of `SO_ERROR`.
///
/// # Safety
/// NULL, or a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_socket_error(fd: c_int, error: *mut c_int) {
    // SAFETY: the caller's word.
    let Some(error) = (unsafe { error.as_mut() }) else {
        return;
    };
    with(fd, |entry| {
        if *error != 0 {
            *error = gateway::error(entry).unwrap_or(*error);
        }
    });
}

/// After getpeername(2), whose room for an address had `room` bytes.
///
/// # Safety
/// As getpeername(2) takes them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_socket_peer(
    fd: c_int,
    address: *mut sockaddr,
    room: socklen_t,
    length: *mut socklen_t,
) {
    // SAFETY: the caller's word.
    let Some(length) = (unsafe { length.as_mut() }) else {
        return;
    };
    with(fd, |entry| {
        if let Some(peer) = gateway::peer(entry) {
            *length = sys::put_peer(fd, peer, address, room);
        }
    });
}

/// sendmsg(2).
///
/// # Safety
/// A message that sendmsg(2) takes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_socket_sendmsg(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's word.
    let Some(message) = (unsafe { message.as_ref() }) else {
        sys::set_errno(libc::EFAULT);
        return -1;
    };
    call(|| match process::entry(fd) {
        Some(entry) if entry.kind == Kind::Datagram as u32 => {
            datagram::send(&entry, message, flags)
        }
        Some(entry) if entry.kind == Kind::Stream as u32 => stream::send(&entry, message, flags),
        _ => sys::sendmsg(fd, message, flags),
    })
}

/// recvmsg(2).
///
/// # Safety
/// A message that recvmsg(2) takes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_socket_recvmsg(
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's word.
    let Some(message) = (unsafe { message.as_mut() }) else {
        sys::set_errno(libc::EFAULT);
        return -1;
    };
    call(|| match process::entry(fd) {
        Some(entry) if entry.kind == Kind::Datagram as u32 => {
            datagram::receive(&entry, message, flags)
        }
        Some(entry) if entry.kind == Kind::Stream as u32 => stream::receive(&entry, message, flags),
        _ => sys::recvmsg(fd, message, flags),
    })
}

/// Before recvmsg(2) of a datagram.
///
/// # Safety
/// A message that recvmsg(2) takes, and room for what is prepared.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_socket_arrival(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
    arrival: *mut HaulSocketArrival,
) -> c_int {
    if flags & (libc::MSG_ERRQUEUE | libc::MSG_OOB) != 0 {
        return 0;
    }
    // SAFETY: the caller's word.
    let Some(message) = (unsafe { message.as_ref() }) else {
        return 0;
    };
    // SAFETY: likewise; it is pointers and numbers, for which any bytes are a value.
    let Some(arrival) = (unsafe { arrival.as_mut() }) else {
        return 0;
    };
    let mut prepared = false;
    quietly(|| {
        prepared = process::entry(fd)
            .filter(|entry| entry.kind == Kind::Datagram as u32)
            .is_some_and(|entry| datagram::arrival(&entry, message, arrival));
    });
    c_int::from(prepared)
}

/// After it.
///
/// # Safety
/// The same message, and what was prepared.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haul_socket_arrived(
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
    arrival: *const HaulSocketArrival,
    length: ssize_t,
) -> ssize_t {
    // SAFETY: the caller's word.
    let message = unsafe { message.as_mut() };
    // SAFETY: likewise.
    let arrival = unsafe { arrival.as_ref() };
    let mut told = None;
    quietly(|| {
        if let (Some(message), Some(arrival), Ok(length)) =
            (message, arrival, usize::try_from(length))
        {
            told = process::entry(fd)
                .and_then(|entry| datagram::arrived(&entry, message, flags, arrival, length));
        }
        datagram::release();
    });
    told.unwrap_or(-1)
}

/// Bytes that wait in user space.
#[unsafe(no_mangle)]
pub extern "C" fn haul_socket_pending(fd: c_int) -> c_int {
    let held = process::entry(fd)
        .filter(|entry| entry.kind == Kind::Stream as u32)
        .map_or(0, |entry| stream::pending(&entry.socket.rx));
    c_int::try_from(held).unwrap_or(0)
}

/// shutdown(2).
#[unsafe(no_mangle)]
pub extern "C" fn haul_socket_shutdown(fd: c_int, how: c_int) -> c_int {
    call(|| match process::entry(fd) {
        Some(entry) => connect::shutdown(&entry, how),
        None => sys::shutdown(fd, how),
    })
}

/// After dup(2) and its kin.
#[unsafe(no_mangle)]
pub extern "C" fn haul_socket_duplicated(from: c_int, to: c_int) {
    process::duplicate(from, to);
}

/// A descriptor that came from elsewhere.
#[unsafe(no_mangle)]
pub extern "C" fn haul_socket_received(fd: c_int) {
    quietly(|| {
        if let Some(process) = process::get() {
            process::clear(fd);
            connect::received(process, fd);
        }
    });
}

/// Before close(2).
#[unsafe(no_mangle)]
pub extern "C" fn haul_socket_closed(fd: c_int) {
    if process::get().is_some() {
        quietly(|| connect::closed(fd));
    }
}

/// What calls of this descriptor go through.
#[unsafe(no_mangle)]
pub extern "C" fn haul_socket_kind(fd: c_int) -> c_int {
    c_int::try_from(process::kind(fd)).unwrap_or(0)
}
