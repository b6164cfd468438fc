//! A UDP socket on UD: what goes to a peer that speaks is framed, everything else is as it was.
//!
//! One system call per call of the application. On the way out head, payload and CRC are gathered.
//! On the way in a datagram goes where the application wants it: while framed ones come, the head
//! is received apart; while plain ones come, the other way round; and only what comes as it was not
//! expected is moved.

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

/// Flags of calls that send with which framing does not go together: more is to come, the bytes
/// are to stay where they are, or it is not data.
const PLAIN_FLAGS: c_int = libc::MSG_OOB | libc::MSG_MORE | libc::MSG_ZEROCOPY | MSG_PROBE;

/// Of the kernel's `linux/socket.h`: find the path's MTU, send nothing.
const MSG_PROBE: c_int = 0x10;

/// Maximum payload that is copied before it is sent: what an Ethernet packet holds.
const COPIED_MAX: usize = 1_472;

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
                        // Whatever is there now does not listen; ask again before the next one is
                        // framed.
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
    // Read by every sender, written rarely: the line stays where it is.
    if peer.used.load(Ordering::Relaxed) == 0 {
        peer.used.store(1, Ordering::Relaxed);
    }
    let mut head = [0; SEND_HEAD];
    let wire_len = u32::try_from(len).unwrap_or(0);
    let write_record = entry.process.options.write_record;
    let head_len = frame::emit(&mut head, named, own, number, wire_len, write_record);
    let head = &head[..head_len];
    let sent = if len <= COPIED_MAX && message.msg_controllen == 0 {
        send_copied(entry.fd, message, flags, head, len)
    } else {
        send_gathered(entry.fd, message, flags, head, len)
    };
    if sent < 0 {
        return sent;
    }
    if write_record && entry.socket.write_record.load(Ordering::Relaxed) == 0 {
        entry.socket.write_record.store(1, Ordering::Relaxed);
    }
    count(&entry.socket.carried_out, len);
    isize::try_from(len).unwrap_or(isize::MAX)
}

/// In one piece: for few bytes a copy costs less than a list of buffers that the kernel reads, and
/// one pass makes the CRC.
fn send_copied(fd: c_int, message: &msghdr, flags: c_int, head: &[u8], len: usize) -> isize {
    let mut wire = [0; frame::OVERHEAD + COPIED_MAX];
    let end = head.len() + len;
    wire[..head.len()].copy_from_slice(head);
    let mut at = head.len();
    sys::for_each(sys::buffers_of(message), 0, len, |octets| {
        wire[at..at + octets.len()].copy_from_slice(octets);
        at += octets.len();
    });
    let mut crc = Crc32c::new();
    crc.update(&wire[..end]);
    wire[end..end + CRC_LEN].copy_from_slice(&crc.to_wire());
    sys::sendto(fd, &wire[..end + CRC_LEN], flags, message)
}

/// From where the bytes are.
fn send_gathered(fd: c_int, message: &msghdr, flags: c_int, head: &[u8], len: usize) -> isize {
    let buffers = sys::buffers_of(message);
    let mut crc = Crc32c::new();
    crc.update(head);
    sys::for_each(buffers, 0, len, |octets| crc.update(octets));
    let trailer = crc.to_wire();
    let mut list = Buffers::new();
    list.push_slice(head);
    list.push_part(buffers, 0, len);
    list.push_slice(&trailer);
    sys::sendmsg(fd, &sys::with_buffers(message, &list), flags)
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

/// How the next datagram is received: as the last one of its socket was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Way {
    /// It is plain: to where the application wants it.
    Plain = 0,
    /// It is framed: the head apart, and the payload to where the application wants it.
    Framed = 1,
    /// It is framed and short: in one piece, which costs less than a list of buffers, and then
    /// copied.
    Short = 2,
}

impl Way {
    fn of(entry: &Entry, message: &msghdr) -> Self {
        match entry.socket.last_framed.load(Ordering::Relaxed) {
            1 => Self::Framed,
            2 if message.msg_controllen == 0 => Self::Short,
            2 => Self::Framed,
            _ => Self::Plain,
        }
    }
}

/// Buffers of an application with which an [`HaulSocketArrival`] has room.
const VECTORS: usize = 4;

/// A datagram that is to be received by whoever made this, with `message`, and then given to
/// [`arrived`]. Its layout is `struct haul_socket_arrival` in c/preload/haul_socket.h.
#[repr(C)]
#[derive(Debug)]
pub struct HaulSocketArrival {
    message: msghdr,
    vectors: [iovec; VECTORS + 2],
    head: [u8; SEND_HEAD],
    way: u8,
}

// As the header has it.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(SEND_HEAD == 50 && size_of::<HaulSocketArrival>() == 208);

/// Prepares a receive; false if the application has too many buffers.
pub(crate) fn arrival(entry: &Entry, message: &msghdr, arrival: &mut HaulSocketArrival) -> bool {
    let buffers = sys::buffers_of(message);
    if buffers.len() > VECTORS {
        return false;
    }
    let way = Way::of(entry, message);
    arrival.way = way as u8;
    let mut count = 0;
    let mut push = |buffer: iovec| {
        arrival.vectors[count] = buffer;
        count += 1;
    };
    if way == Way::Framed {
        push(iovec {
            iov_base: arrival.head.as_mut_ptr().cast(),
            iov_len: SEND_HEAD,
        });
    }
    if way != Way::Short {
        buffers.iter().for_each(|buffer| push(*buffer));
    }
    if way == Way::Short || sys::total(buffers) < LONGEST {
        push(spare());
    }
    arrival.message = *message;
    arrival.message.msg_iov = arrival.vectors.as_mut_ptr();
    arrival.message.msg_iovlen = count;
    true
}

/// Delivers what was received; `None` for a datagram that arrived damaged, which is dropped
/// as the kernel drops one.
pub(crate) fn arrived(
    entry: &Entry,
    message: &mut msghdr,
    flags: c_int,
    arrival: &HaulSocketArrival,
    len: usize,
) -> Option<isize> {
    let way = match arrival.way {
        1 => Way::Framed,
        2 => Way::Short,
        _ => Way::Plain,
    };
    deliver(entry, message, flags, way, (&arrival.message, len))
}

/// recvmsg(2), for what an [`HaulSocketArrival`] is not for.
pub(crate) fn receive(entry: &Entry, message: &mut msghdr, flags: c_int) -> isize {
    if flags & (libc::MSG_ERRQUEUE | libc::MSG_OOB) != 0 {
        return sys::recvmsg(entry.fd, message, flags);
    }
    let (mut own, mut head) = (*message, [0; SEND_HEAD]);
    loop {
        let way = match Way::of(entry, message) {
            Way::Short => Way::Framed,
            way => way,
        };
        let buffers = sys::buffers_of(message);
        let mut list = Buffers::new();
        if way == Way::Framed {
            list.push_mut(&mut head);
        }
        list.push_part(buffers, 0, sys::total(buffers));
        list.push(spare());
        own.msg_iov = list.list().as_ptr().cast_mut();
        own.msg_iovlen = list.list().len();
        let received = sys::recvmsg(entry.fd, &mut own, flags & !libc::MSG_TRUNC);
        let told = match usize::try_from(received) {
            Ok(len) => deliver(entry, message, flags, way, (&own, len)),
            Err(_) => Some(received),
        };
        release();
        if let Some(told) = told {
            return told;
        }
        (own.msg_namelen, own.msg_controllen) = (message.msg_namelen, message.msg_controllen);
    }
}

/// Gives the application the datagram of `len` bytes that was received in `own`.
fn deliver(
    entry: &Entry,
    message: &mut msghdr,
    flags: c_int,
    way: Way,
    (own, len): (&msghdr, usize),
) -> Option<isize> {
    let (list, buffers) = (sys::buffers_of(own), sys::buffers_of(message));
    let room = sys::total(buffers);
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
    let given = octets.min(room);
    // Where the application's buffers begin in what was received.
    let sink = if way == Way::Framed { SEND_HEAD } else { 0 };
    if way == Way::Short || from > sink {
        sys::move_forward(list, from, buffers, 0, given);
    } else if from < sink {
        sys::move_backward(list, from, list, sink, given);
    }
    if !is_peek {
        let (counter, next) = match framed {
            None => (&entry.socket.plain_in, Way::Plain),
            Some(_) if octets <= COPIED_MAX => (&entry.socket.carried_in, Way::Short),
            Some(_) => (&entry.socket.carried_in, Way::Framed),
        };
        count(counter, octets);
        if entry.socket.last_framed.load(Ordering::Relaxed) != next as u32 {
            entry
                .socket
                .last_framed
                .store(next as u32, Ordering::Relaxed);
        }
    }
    message.msg_namelen = own.msg_namelen;
    message.msg_controllen = own.msg_controllen;
    message.msg_flags = own.msg_flags & !libc::MSG_TRUNC;
    if octets > room {
        message.msg_flags |= libc::MSG_TRUNC;
    }
    let told = if flags & libc::MSG_TRUNC != 0 {
        octets
    } else {
        given
    };
    Some(isize::try_from(told).unwrap_or(isize::MAX))
}

/// Whether the datagram of `len` bytes is framed, for this socket.
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

/// Whether the CRC that follows the first `len` bytes is theirs.
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

thread_local! {
    /// Made when the thread first receives, and of no weight until a datagram is that long. The
    /// second one is for a signal's handler that receives while the first one is in use.
    static SPARES: [Cell<Option<Box<[u8]>>>; 2] = const { [Cell::new(None), Cell::new(None)] };
    static IN_USE: Cell<bool> = const { Cell::new(false) };
}

/// Room for what the application's buffers do not hold, of which a checksum must still be made: the
/// thread's own, until [`release`].
fn spare() -> iovec {
    let which = usize::from(IN_USE.replace(true));
    SPARES.with(|spares| {
        let spare = &spares[which];
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

/// What was received is delivered.
pub(crate) fn release() {
    IN_USE.set(false);
}
