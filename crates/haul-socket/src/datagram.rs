//! A UDP socket on UD: what goes to a peer that speaks is framed, everything else is as it was.
//!
//! One system call per call of the program. On the way out head, payload and CRC are gathered. On the way in a datagram goes
//! where the program wants it: while framed ones come, the head is received apart; while plain ones come, the other way
//! round; and only what comes as it was not expected is moved.

use std::cell::Cell;
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};

use haul_iwarp::{CRC_LEN, Crc32c};
use libc::{iovec, msghdr};

use crate::frame::{self, Head, SEND_HEAD};
use crate::process::Entry;
use crate::sys::{self, Buffers};
use crate::table::{Key, Named, Peer, Protocol, Verdict, Why, words};

/// Flags of calls that send with which framing does not go together: more is to come, the octets are to stay where they are,
/// or it is not data.
const PLAIN_FLAGS: c_int = libc::MSG_OOB | libc::MSG_MORE | libc::MSG_ZEROCOPY | MSG_PROBE;

/// Of the kernel's `linux/socket.h`: find the path's MTU, send nothing.
const MSG_PROBE: c_int = 0x10;

/// sendmsg(2).
pub(crate) fn send(entry: &Entry, message: &msghdr, flags: c_int) -> isize {
    let buffers = sys::buffers_of(message);
    let to = destination(entry, message);
    let known = to.ok().and_then(|to| {
        let port = entry.port();
        let key = Key::of_words(Protocol::Udp, port, to);
        (port != 0).then(|| (key, find(entry, &key)))
    });
    if let Some((key, Some((at, peer, Verdict::Yes(named))))) = known {
        match may_frame(message, buffers, flags) {
            Ok(()) => {
                let sent = send_framed(entry, message, flags, (peer, named));
                if sent >= 0 || sys::errno() != libc::EMSGSIZE {
                    if sent < 0 && sys::errno() == libc::ECONNREFUSED {
                        // Whatever is there now does not listen; ask again before the next one is framed.
                        entry.process.table.forget(at, &key, Verdict::Yes(named));
                    }
                    return sent;
                }
                entry.socket.refuse(Why::TooLong);
            }
            Err(why) => entry.socket.refuse(why),
        }
        return send_plain(entry, message, flags);
    }
    let sent = send_plain(entry, message, flags);
    match (to, known) {
        (Err(why), _) => entry.socket.refuse(why),
        (Ok(_), Some((_, Some((_, _, Verdict::No(why)))))) => entry.socket.refuse(why),
        (Ok(_), Some((_, Some(_)))) => {}
        (Ok(to), _) if sent >= 0 => {
            let error = sys::errno();
            ask(entry, to);
            sys::set_errno(error);
        }
        _ => {}
    }
    sent
}

/// Where a message goes, or why it cannot be carried there.
fn destination(entry: &Entry, message: &msghdr) -> Result<[u32; 5], Why> {
    if message.msg_name.is_null() || message.msg_namelen == 0 {
        let remote = entry.socket.remote.load();
        return if remote[4] == 0 {
            Err(Why::None)
        } else {
            Ok(remote)
        };
    }
    let (to, link) =
        sys::socket_address(message.msg_name.cast(), message.msg_namelen).ok_or(Why::Address)?;
    may_ask(to, link).map(|()| words(to))
}

/// Whether there can be an agent for that address.
pub(crate) fn may_ask(to: SocketAddr, link: u32) -> Result<(), Why> {
    let several = match to.ip() {
        IpAddr::V4(ip) => ip.is_multicast() || ip.is_broadcast() || ip.is_unspecified(),
        IpAddr::V6(ip) => ip.is_multicast() || ip.is_unspecified(),
    };
    if several || link != 0 || to.port() == 0 {
        return Err(Why::Address);
    }
    Ok(())
}

/// What is known about a peer; the one that was sent to last is looked for first.
fn find<'a>(entry: &'a Entry, key: &Key) -> Option<(usize, &'a Peer, Verdict)> {
    let table = &entry.process.table;
    let last = entry.socket.last_peer.load(Ordering::Relaxed) as usize;
    if let Some(at) = last.checked_sub(1)
        && let Some(peer) = table.peer(at)
        && let Some(verdict) = peer.verdict(key)
    {
        return Some((at, peer, verdict));
    }
    let found = table.find(key)?;
    let at = u32::try_from(found.0 + 1).unwrap_or(0);
    entry.socket.last_peer.store(at, Ordering::Relaxed);
    Some(found)
}

fn may_frame(message: &msghdr, buffers: &[iovec], flags: c_int) -> Result<(), Why> {
    if flags & PLAIN_FLAGS != 0 || sys::has_control(message, libc::SOL_UDP, libc::UDP_SEGMENT) {
        return Err(Why::Flag);
    }
    if sys::total(buffers) > frame::PAYLOAD_MAX {
        return Err(Why::TooLong);
    }
    Ok(())
}

fn send_framed(entry: &Entry, message: &msghdr, flags: c_int, to: (&Peer, Named)) -> isize {
    let (peer, named) = to;
    let buffers = sys::buffers_of(message);
    let len = sys::total(buffers);
    let own = entry.socket.named();
    let number = peer.sent.fetch_add(1, Ordering::Relaxed);
    peer.used.store(1, Ordering::Relaxed);
    let mut head = [0; SEND_HEAD];
    let wire_len = u32::try_from(len).unwrap_or(0);
    let write_record = entry.process.options.write_record;
    let head_len = frame::emit(&mut head, named, own, number, wire_len, write_record);
    let mut crc = Crc32c::new();
    crc.update(&head[..head_len]);
    sys::for_each(buffers, 0, len, |octets| crc.update(octets));
    let trailer = crc.to_wire();

    let mut list = Buffers::new();
    list.push_slice(&head[..head_len]);
    list.push_part(buffers, 0, len);
    list.push_slice(&trailer);
    let sent = sys::sendmsg(entry.fd, &sys::with_buffers(message, &list), flags);
    if sent < 0 {
        return sent;
    }
    if write_record {
        entry.socket.write_record.store(1, Ordering::Relaxed);
    }
    count(&entry.socket.carried_out, len);
    isize::try_from(len).unwrap_or(isize::MAX)
}

fn send_plain(entry: &Entry, message: &msghdr, flags: c_int) -> isize {
    let sent = sys::sendmsg(entry.fd, message, flags);
    if let Ok(len) = usize::try_from(sent) {
        count(&entry.socket.plain_out, len);
    }
    sent
}

/// A peer that is not known: the socket has a port by now, and what comes back may be framed.
fn ask(entry: &Entry, to: [u32; 5]) {
    if entry.port() == 0 || entry.socket.published.load(Ordering::Relaxed) == 0 {
        entry.publish();
    }
    let port = entry.port();
    if port == 0 || !entry.is_wanted() {
        return;
    }
    if !entry.process.has_agent() {
        return entry.socket.refuse(Why::NoLocalAgent);
    }
    let key = Key::of_words(Protocol::Udp, port, to);
    if entry.process.table.find(&key).is_none() {
        entry.process.table.ask(&key, entry.number);
    }
}

/// recvmsg(2).
pub(crate) fn receive(entry: &Entry, message: &mut msghdr, flags: c_int) -> isize {
    if flags & (libc::MSG_ERRQUEUE | libc::MSG_OOB) != 0 {
        return sys::recvmsg(entry.fd, message, flags);
    }
    loop {
        let received = receive_one(entry, message, flags);
        if let Some(received) = received {
            return received;
        }
    }
}

/// One datagram, or `None` for one that was damaged on its way, which is dropped as the kernel drops one.
fn receive_one(entry: &Entry, message: &mut msghdr, flags: c_int) -> Option<isize> {
    let buffers = sys::buffers_of(message);
    let room = sys::total(buffers);
    let expected = entry.socket.last_framed.load(Ordering::Relaxed) == 1;
    let mut head = [0; SEND_HEAD];
    let mut list = Buffers::new();
    if expected {
        list.push_mut(&mut head);
    }
    list.push_part(buffers, 0, room);
    if room < LONGEST {
        list.push(spare());
    }
    let mut own = sys::with_buffers(message, &list);
    let received = sys::recvmsg(entry.fd, &mut own, flags & !libc::MSG_TRUNC);
    let Ok(len) = usize::try_from(received) else {
        return Some(received);
    };
    message.msg_namelen = own.msg_namelen;
    message.msg_controllen = own.msg_controllen;
    message.msg_flags = own.msg_flags & !libc::MSG_TRUNC;

    // Where the datagram begins, and where the program's buffers do.
    let list = list.list();
    let sink = if expected { SEND_HEAD } else { 0 };
    let framed = recognise(entry, list, len);
    let is_peek = flags & libc::MSG_PEEK != 0;
    let (from, octets) = match framed {
        None => (0, len),
        Some(Head { len: from, payload }) => {
            if !crc_matches(list, from + payload) {
                entry.socket.malformed.fetch_add(1, Ordering::Relaxed);
                if is_peek {
                    discard(entry.fd);
                }
                return None;
            }
            (from, payload)
        }
    };
    if from > sink {
        sys::move_forward(list, from, list, sink, octets.min(room));
    } else if from < sink {
        sys::move_backward(list, from, list, sink, octets.min(room));
    }
    if !is_peek {
        let counter = match framed {
            None => &entry.socket.plain_in,
            Some(_) => &entry.socket.carried_in,
        };
        count(counter, octets);
        let now = u32::from(framed.is_some());
        if now != u32::from(expected) {
            entry.socket.last_framed.store(now, Ordering::Relaxed);
        }
    }
    if octets > room {
        message.msg_flags |= libc::MSG_TRUNC;
    }
    let told = if flags & libc::MSG_TRUNC != 0 {
        octets
    } else {
        octets.min(room)
    };
    Some(isize::try_from(told).unwrap_or(isize::MAX))
}

/// Whether the datagram of `len` octets is framed, for this socket.
fn recognise(entry: &Entry, list: &[iovec], len: usize) -> Option<Head> {
    let mut start = [0; SEND_HEAD];
    let mut have = 0;
    sys::for_each(list, 0, SEND_HEAD.min(len), |octets| {
        start[have..have + octets.len()].copy_from_slice(octets);
        have += octets.len();
    });
    let own = entry.socket.named();
    frame::parse(&start[..have], len, own)
}

/// Whether the CRC that follows the first `len` octets is theirs.
fn crc_matches(list: &[iovec], len: usize) -> bool {
    let mut crc = Crc32c::new();
    sys::for_each(list, 0, len, |octets| crc.update(octets));
    let (mut found, mut have) = ([0; CRC_LEN], 0);
    sys::for_each(list, len, CRC_LEN, |octets| {
        found[have..have + octets.len()].copy_from_slice(octets);
        have += octets.len();
    });
    found == crc.to_wire()
}

/// Takes a datagram that was only peeked at.
fn discard(fd: c_int) {
    let mut nothing = sys::bare(&Buffers::new());
    sys::recvmsg(fd, &mut nothing, libc::MSG_DONTWAIT);
}

fn count(counter: &AtomicU64, octets: usize) {
    counter.fetch_add(octets as u64, Ordering::Relaxed);
}

/// The peer of a socket that was connected, for sends without an address.
pub(crate) fn connected(entry: &Entry) {
    let remote = sys::remote(entry.fd).filter(|remote| may_ask(*remote, 0).is_ok());
    entry.socket.remote.store(remote.map_or([0; 5], words));
    entry.publish();
}

/// The longest datagram there is, with room for a head.
const LONGEST: usize = 65_535 + SEND_HEAD;

/// Room for what the program's buffers do not hold, of which a checksum must still be made: the thread's own, made when it
/// first receives, and of no weight until a datagram is that long.
fn spare() -> iovec {
    thread_local! {
        static SPARE: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
    }
    SPARE.with(|spare| {
        let mut octets = spare
            .take()
            .unwrap_or_else(|| vec![0; LONGEST].into_boxed_slice());
        let buffer = iovec {
            iov_base: octets.as_mut_ptr().cast(),
            iov_len: octets.len(),
        };
        spare.set(Some(octets));
        buffer
    })
}
