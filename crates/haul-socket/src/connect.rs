//! From socket(2) to close(2): what a socket becomes, and when.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libc::socklen_t;

use crate::process::{self, Entry, Kind, Process};
use crate::table::{Key, Protocol, Socket, Verdict, Why, words};
use crate::{datagram, gateway, stream, sys};

/// The longest that connect(2) waits for the answer of the peer's agent.
const PATIENCE: Duration = Duration::from_millis(1_000);

/// After socket(2).
pub(crate) fn opened(
    process: &'static Process,
    fd: c_int,
    family: c_int,
    kind: c_int,
    proto: c_int,
) {
    if family != libc::AF_INET && family != libc::AF_INET6 {
        return;
    }
    match (kind & 0xf, proto) {
        (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => process.open(fd, Protocol::Udp),
        (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => process.open(fd, Protocol::Tcp),
        _ => None,
    };
}

/// After bind(2) or listen(2).
pub(crate) fn bound(entry: &Entry, listening: bool) {
    match entry.socket.protocol() {
        Some(Protocol::Udp) => entry.publish(),
        Some(Protocol::Tcp) if listening => {
            entry.socket.listening.store(1, Ordering::Release);
            if entry.process.options.gateway {
                entry.socket.refuse(Why::Excluded);
            }
            entry.publish();
        }
        _ => {}
    }
}

/// connect(2).
pub(crate) fn connect(entry: &Entry, to: *const libc::sockaddr, len: socklen_t) -> c_int {
    let plain = || sys::connect(entry.fd, to, len);
    let Some(target) = sys::socket_address(to, len) else {
        let connected = plain();
        match entry.socket.protocol() {
            // AF_UNSPEC: not connected any more
            Some(Protocol::Udp) if connected == 0 => datagram::connected(entry),
            Some(Protocol::Tcp) if connected == 0 => gateway::forget(entry),
            _ => {}
        }
        return connected;
    };
    if entry.socket.protocol() == Some(Protocol::Udp) {
        let connected = plain();
        if connected == 0 {
            datagram::connected(entry);
        }
        return connected;
    }
    if entry.process.options.gateway {
        return gateway::connect(entry, to, len, target);
    }
    let again = entry.socket.remote.load()[4] != 0;
    if again || entry.kind != Kind::Kernel as u32 {
        return plain(); // asks how the first one went
    }
    entry.socket.remote.store(words(target.0));
    if !entry.is_wanted() {
        return plain();
    }
    let agreed = agree(entry, target);
    if let Err(why) = agreed {
        entry.socket.refuse(why);
        let connected = plain();
        entry.note_local();
        return connected;
    }
    entry.socket.taken.store(stream::TAKEN, Ordering::Release);
    process::set(entry.fd, entry.number, Kind::Stream);
    let connected = plain();
    if connected != 0 && sys::errno() != libc::EINPROGRESS && sys::errno() != libc::EINTR {
        entry.socket.taken.store(0, Ordering::Release);
        entry.socket.remote.store([0; 5]);
        process::set(entry.fd, entry.number, Kind::Kernel);
    }
    entry.note_local();
    connected
}

/// Asks the peer's agent whether the connection that is about to be made may be RC, so that both
/// ends know before its first byte.
fn agree(entry: &Entry, (target, link): (SocketAddr, u32)) -> Result<(), Why> {
    datagram::may_ask(target, link)?;
    if !entry.process.has_agent() {
        return Err(Why::NoLocalAgent);
    }
    let mut local = sys::local(entry.fd).ok_or(Why::Address)?;
    if local.port() == 0 {
        let family = sys::option(entry.fd, libc::SOL_SOCKET, libc::SO_DOMAIN);
        if !sys::bind_any(entry.fd, family == Some(libc::AF_INET)) {
            return Err(Why::Option); // bound to an address without a port
        }
        local = sys::local(entry.fd).ok_or(Why::Address)?;
    }
    entry.socket.local.store(words(local));
    if let Some(inode) = sys::inode(entry.fd) {
        entry.socket.inode.store(inode, Ordering::Release);
    }
    let table = &entry.process.table;
    let key = Key::new(Protocol::Tcp, local.port(), target);
    let ask = || table.ask(&key, entry.number).ok_or(Why::NoLocalAgent);
    let mut at = ask()?;
    let deadline = now() + PATIENCE;
    loop {
        let peer = table.peer(at).ok_or(Why::NoAgent)?;
        match peer.verdict(&key) {
            Some(Verdict::Yes(named)) => {
                // Good for this connection only.
                table.forget(at, &key, Verdict::Yes(named));
                return Ok(());
            }
            Some(Verdict::No(why)) => return Err(why),
            // Another question has taken the place of this one.
            None if !peer.is_being_written() => at = ask()?,
            Some(Verdict::Asked) | None => {}
        }
        let Some(left) = deadline
            .checked_duration_since(now())
            .filter(|left| !left.is_zero())
        else {
            return Err(Why::NoAgent);
        };
        if let Some(peer) = table.peer(at) {
            peer.wait(left);
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "connect(2) is the program's own thread, and waits for a bounded time"
)]
fn now() -> Instant {
    Instant::now()
}

/// After accept4(2).
pub(crate) fn accepted(listener: &Entry, fd: c_int) {
    let process = listener.process;
    let (Some(local), Some(remote)) = (sys::local(fd), sys::remote(fd)) else {
        return;
    };
    let Some(entry) = process.open(fd, Protocol::Tcp) else {
        return;
    };
    entry.socket.local.store(words(local));
    entry.socket.remote.store(words(remote));
    if let Some(inode) = sys::inode(fd) {
        entry.socket.inode.store(inode, Ordering::Release);
    }
    let key = Key::new(Protocol::Tcp, local.port(), remote);
    if let Some((at, _, verdict @ Verdict::Yes(_))) = process.table.find(&key)
        && entry.is_wanted()
    {
        process.table.forget(at, &key, verdict);
        entry.socket.taken.store(stream::TAKEN, Ordering::Release);
        process::set(fd, entry.number, Kind::Stream);
    } else if process.options.gateway {
        entry.socket.refuse(Why::Excluded);
    } else if entry.is_wanted() {
        entry.socket.refuse(Why::NoSocket);
    }
}

/// After setsockopt(2).
pub(crate) fn option(entry: &Entry, level: c_int, name: c_int) {
    let refused = match entry.socket.protocol() {
        Some(Protocol::Udp) => {
            level == libc::SOL_UDP
                && matches!(name, libc::UDP_SEGMENT | libc::UDP_GRO | libc::UDP_CORK)
        }
        Some(Protocol::Tcp) => {
            level == libc::SOL_SOCKET && name == libc::SO_ZEROCOPY
                || level == libc::IPPROTO_TCP
                    && matches!(
                        name,
                        libc::TCP_ULP | libc::TCP_REPAIR | libc::TCP_FASTOPEN_CONNECT
                    )
        }
        None => false,
    };
    let is_untouched = entry.socket.taken.load(Ordering::Relaxed) == 0;
    if refused && is_untouched {
        entry.give_back(Why::Option);
    }
}

/// A descriptor that came from elsewhere: with a record, if another process under the same table
/// had it.
pub(crate) fn received(process: &'static Process, fd: c_int) {
    let Some(inode) = sys::inode(fd) else {
        return;
    };
    let known = process.table.sockets().find(|(_, socket)| {
        socket.state.load(Ordering::Acquire) == Socket::OPEN
            && socket.inode.load(Ordering::Acquire) == inode
    });
    if let Some((number, socket)) = known {
        socket.shared.store(1, Ordering::Relaxed);
        let taken = socket.taken.load(Ordering::Acquire) != 0;
        let kind = match socket.protocol() {
            Some(Protocol::Udp) => Kind::Datagram,
            _ if taken => Kind::Stream,
            _ => Kind::Kernel,
        };
        process::set(fd, number, kind);
        if let Some(entry) = process::entry(fd) {
            let listens = socket.listening.load(Ordering::Relaxed) == 1;
            bound(&entry, listens);
            if !entry.is_wanted() {
                process::set(fd, number, Kind::Kernel);
            }
        }
        return;
    }
    let of = |name| sys::option(fd, libc::SOL_SOCKET, name);
    let (Some(family), Some(kind), Some(proto)) = (
        of(libc::SO_DOMAIN),
        of(libc::SO_TYPE),
        of(libc::SO_PROTOCOL),
    ) else {
        return;
    };
    opened(process, fd, family, kind, proto);
    let Some(entry) = process::entry(fd) else {
        return;
    };
    entry.socket.shared.store(1, Ordering::Relaxed);
    match entry.socket.protocol() {
        Some(Protocol::Udp) => datagram::connected(&entry),
        _ if of(libc::SO_ACCEPTCONN) == Some(1) => bound(&entry, true),
        _ => {
            if let (Some(local), Some(remote)) = (sys::local(fd), sys::remote(fd)) {
                entry.socket.local.store(words(local));
                entry.socket.remote.store(words(remote));
                entry.socket.refuse(Why::Inherited);
            }
        }
    }
}

/// After an `exec` that failed.
pub(crate) fn again() {
    for entry in process::entries() {
        let is_udp = entry.socket.protocol() == Some(Protocol::Udp);
        let listens = entry.socket.listening.load(Ordering::Relaxed) == 1;
        if listens || is_udp && entry.port() != 0 {
            entry.publish();
        }
    }
}

/// Takes up the sockets that the process was started with.
pub(crate) fn inherit(process: &'static Process) {
    let Ok(list) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    let names = list.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let descriptors: Vec<c_int> = names.collect();
    for fd in descriptors {
        received(process, fd);
    }
}

/// Called when the application exits without closing its connections.
pub(crate) fn exit() {
    for entry in process::entries() {
        finish(&entry);
    }
}

/// What is known about a connection at its end.
fn finish(entry: &Entry) {
    let socket = entry.socket;
    if entry.kind == Kind::Stream as u32 {
        stream::flush(entry, libc::MSG_DONTWAIT);
    } else if socket.protocol() == Some(Protocol::Tcp)
        && let Some((written, received)) = sys::tcp_octets(entry.fd)
    {
        let (out, back) = match socket.gateway.load(Ordering::Relaxed) {
            0 => (&socket.plain_out, &socket.plain_in),
            _ => (&socket.carried_out, &socket.carried_in),
        };
        out.store(written, Ordering::Relaxed);
        back.store(received, Ordering::Relaxed);
    }
}

/// Before close(2).
pub(crate) fn closed(fd: c_int) {
    let Some((entry, is_last)) = process::clear(fd) else {
        return;
    };
    let socket = entry.socket;
    finish(&entry);
    let is_over = is_last && socket.shared.load(Ordering::Relaxed) == 0;
    if entry.kind == Kind::Stream as u32 {
        stream::vacate(&entry, is_over);
    }
    if is_over {
        socket.published.store(0, Ordering::Release);
        socket.state.store(Socket::CLOSED, Ordering::Release);
    }
}

/// shutdown(2).
pub(crate) fn shutdown(entry: &Entry, how: c_int) -> c_int {
    if how != libc::SHUT_RD && entry.kind == Kind::Stream as u32 {
        stream::flush(entry, 0);
    }
    if how != libc::SHUT_WR && entry.kind == Kind::Stream as u32 {
        stream::end(entry);
    }
    sys::shutdown(entry.fd, how)
}

/// Another process will have it, too: whoever closes it first does not end its record.
pub(crate) fn share(entry: &Entry) {
    entry.socket.shared.store(1, Ordering::Release);
}

/// Before fork(2). In the child it would be too late: the parent may close a socket before the
/// child runs.
pub(crate) fn forking() {
    process::entries().for_each(|entry| share(&entry));
}

/// Before posix_spawn(3), and before exec(3) in the child of a vfork(2).
pub(crate) fn spawning() {
    let is_kept = |entry: &Entry| sys::is_kept_by_exec(entry.fd);
    process::entries()
        .filter(is_kept)
        .for_each(|entry| share(&entry));
}

/// Before exec(3): the next application publishes the sockets of this process again.
pub(crate) fn before_exec() {
    let own = sys::process_id();
    for entry in process::entries() {
        let is_own = entry.socket.pid.load(Ordering::Relaxed) == own;
        if is_own {
            entry.socket.published.store(0, Ordering::Release);
            share(&entry);
        }
    }
}
