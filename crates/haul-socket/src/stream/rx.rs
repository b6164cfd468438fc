//! The way in: an FPDU is delivered when it is there whole and its CRC is right (RFC 5044 §7), and
//! nothing before.
//!
//! The kernel's bytes go where the application wants its payload, with room for a head before and a
//! tail after it, and what is whole is moved together there. What is left over, a part of an FPDU
//! or one for which the application has no room, waits in the socket's buffer.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use haul_iwarp::wire::ddp::{self, Model};
use haul_iwarp::wire::rdmap::Opcode;
use haul_iwarp::{CRC_LEN, Crc32c};
use libc::{iovec, msghdr};

use super::{HEAD, PASSES, PAYLOAD_MAX, TAIL_MAX, passes, tail_len};
use crate::buffer::BUFFER;
use crate::lock;
use crate::process::Entry;
use crate::sys::{self, Buffers};
use crate::table::{Direction, Why};

/// Where in the buffer the bytes of a plain peer are put: behind the part of a head that they were
/// taken for.
const PLAIN_AT: usize = 64;

/// What is remembered between calls.
#[derive(Debug, Default)]
struct Rx {
    /// Bytes of an FPDU that is not whole, at the buffer's beginning.
    got: usize,
    /// Bytes for the application in the buffer: where, and how many. Either these are there or a
    /// part is.
    at: usize,
    left: usize,
    /// FPDUs that came whole.
    count: u32,
    /// The stream is damaged or is no such stream.
    failed: bool,
    /// The buffer was ever written to.
    used: bool,
}

impl Rx {
    fn load(direction: &Direction) -> Self {
        let word = |at: usize| direction.words[at].load(Ordering::Relaxed);
        let at = (word(1) as usize).min(BUFFER);
        Self {
            got: (word(0) as usize).min(BUFFER - 1),
            at,
            left: (word(2) as usize).min(BUFFER - at),
            count: word(3),
            failed: word(4) != 0,
            used: word(5) != 0,
        }
    }

    fn store(&self, direction: &Direction) {
        let number = |value: usize| u32::try_from(value).unwrap_or(0);
        for (word, value) in direction.words.iter().zip([
            number(self.got),
            number(self.at),
            number(self.left),
            self.count,
            u32::from(self.failed),
            u32::from(self.used),
        ]) {
            word.store(value, Ordering::Relaxed);
        }
    }

    fn fail(&mut self, entry: &Entry) {
        entry.socket.malformed.fetch_add(1, Ordering::Relaxed);
        (self.failed, self.got, self.left) = (true, 0, 0);
        sys::shutdown(entry.fd, libc::SHUT_RDWR);
    }
}

/// What one step of a receive came to.
enum Step {
    /// So many bytes for the application, and whether the kernel had enough to fill all buffers.
    Got { octets: usize, may_be_more: bool },
    /// Bytes came, but none for the application.
    Nothing,
    /// The peer has ended its direction.
    End,
    /// `errno`.
    Failed,
}

/// Verified bytes that wait.
pub(crate) fn pending(direction: &Direction) -> usize {
    (direction.words[2].load(Ordering::Relaxed) as usize).min(BUFFER)
}

/// Nothing will be received any more by who ends the way in: a part of an FPDU is no damage then.
pub(crate) fn end(entry: &Entry) {
    if let Some(_guard) = lock::try_lock(&entry.socket.rx.lock) {
        entry.socket.rx.words[0].store(0, Ordering::Relaxed);
    }
}

/// A descriptor is closed: an empty buffer weighs nothing.
pub(crate) fn vacate(entry: &Entry, is_last: bool) {
    let direction = &entry.socket.rx;
    let Some(_guard) = lock::try_lock(&direction.lock) else {
        return;
    };
    let mut rx = Rx::load(direction);
    if rx.used && (is_last || rx.got == 0 && rx.left == 0) {
        entry.process.table.streams().vacate(entry.number);
        (rx.used, rx.got, rx.left) = (false, 0, 0);
        rx.store(direction);
    }
}

/// recvmsg(2).
pub(crate) fn receive(entry: &Entry, message: &mut msghdr, flags: c_int) -> isize {
    let direction = &entry.socket.rx;
    let is_data = flags & (libc::MSG_ERRQUEUE | libc::MSG_OOB) == 0;
    if !is_data || passes(entry) && pending(direction) == 0 {
        let received = sys::recvmsg(entry.fd, message, flags);
        if is_data && flags & libc::MSG_PEEK == 0 {
            let octets = u64::try_from(received).unwrap_or(0);
            entry.socket.plain_in.fetch_add(octets, Ordering::Relaxed);
        }
        return received;
    }
    let room = sys::total(sys::buffers_of(message));
    if room == 0 {
        // Only tells whether there is something.
        return if pending(direction) > 0 {
            0
        } else {
            sys::recvmsg(entry.fd, message, flags)
        };
    }
    let _guard = lock::lock(&direction.lock);
    let mut rx = Rx::load(direction);
    let is_peek = flags & libc::MSG_PEEK != 0;
    let wants_all = flags & libc::MSG_WAITALL != 0 && !is_peek;
    let mut asked = flags & !(libc::MSG_WAITALL | libc::MSG_TRUNC);
    let mut done = 0;
    let failed = loop {
        match step(entry, &mut rx, message, done, asked) {
            Step::Got {
                octets,
                may_be_more,
            } => {
                done += octets;
                if done == room || !wants_all && !may_be_more {
                    break false;
                }
                if !wants_all {
                    // Less than there was room for is the sign that there is no more (epoll(7)): so
                    // look.
                    asked |= libc::MSG_DONTWAIT;
                }
            }
            Step::Nothing => {}
            Step::End => break false,
            Step::Failed => break true,
        }
    };
    rx.store(direction);
    if !is_peek {
        let count = if passes(entry) {
            &entry.socket.plain_in
        } else {
            &entry.socket.carried_in
        };
        count.fetch_add(done as u64, Ordering::Relaxed);
    }
    if failed && done == 0 {
        return -1;
    }
    isize::try_from(done).unwrap_or(isize::MAX)
}

fn step(entry: &Entry, rx: &mut Rx, message: &mut msghdr, done: usize, flags: c_int) -> Step {
    let buffers = sys::buffers_of(message);
    let room = sys::total(buffers) - done;
    let is_peek = flags & libc::MSG_PEEK != 0;
    let Some(buffer) = entry.process.table.streams().of(entry.number) else {
        sys::set_errno(libc::ENOBUFS);
        return Step::Failed;
    };
    if rx.left > 0 {
        let given = rx.left.min(room);
        sys::move_forward(&[buffer], rx.at, buffers, done, given);
        if !is_peek {
            (rx.at, rx.left) = (rx.at + given, rx.left - given);
        }
        let may_be_more = !is_peek;
        return Step::Got {
            octets: given,
            may_be_more,
        };
    }
    if rx.failed {
        sys::set_errno(libc::ECONNRESET);
        return Step::Failed;
    }
    let mut front = [0; HEAD];
    let mut back = [0; TAIL_MAX];
    let mut list = Buffers::new();
    if passes(entry) {
        list.push_part(buffers, done, room);
    } else {
        // The rest of the FPDU that has begun, or of its head; then the application's buffers, from
        // where payload that follows belongs at the earliest.
        let payload = if rx.got >= HEAD {
            let mut head = [0; HEAD];
            peek_at(&[buffer], 0, &mut head);
            let Some(payload) = payload_of(&head) else {
                rx.fail(entry);
                sys::set_errno(libc::ECONNRESET);
                return Step::Failed;
            };
            list.push_part(&[buffer], rx.got, wire_len(payload) - rx.got);
            payload
        } else {
            if rx.got > 0 || is_peek {
                rx.used = true;
                list.push_part(&[buffer], rx.got, HEAD - rx.got);
            } else {
                list.push_mut(&mut front);
            }
            0
        };
        if !is_peek && payload <= room {
            list.push_part(buffers, done + payload, room - payload);
            list.push_mut(&mut back[..tail_len(room - payload)]);
        }
    }
    let asked = if passes(entry) {
        flags
    } else {
        flags & !libc::MSG_PEEK
    };
    let mut own = sys::with_buffers(message, &list);
    let received = sys::recvmsg(entry.fd, &mut own, asked);
    message.msg_namelen = own.msg_namelen;
    message.msg_controllen = own.msg_controllen;
    message.msg_flags = own.msg_flags;
    let len = match usize::try_from(received) {
        // An FPDU that ends before its end: what there is of it cannot be verified.
        Ok(0) if rx.got > 0 => {
            rx.fail(entry);
            return Step::Nothing;
        }
        Ok(0) => return Step::End,
        Ok(len) => len,
        Err(_) => return Step::Failed,
    };
    if passes(entry) {
        return Step::Got {
            octets: len,
            may_be_more: false,
        };
    }
    let may_be_more = len == sys::total(list.list());
    let mut whole = Buffers::new();
    whole.push_part(&[buffer], 0, rx.got);
    whole.push_part(list.list(), 0, len);
    let (buffers, done) = if is_peek {
        (&[][..], 0)
    } else {
        (sys::buffers_of(message), done)
    };
    match feed(entry, rx, buffer, whole.list(), (buffers, done)) {
        0 => Step::Nothing,
        octets => Step::Got {
            octets,
            may_be_more,
        },
    }
}

/// Takes the bytes of the stream that lie in `list`, from the beginning of an FPDU on, and moves
/// the payload of those that are whole and right to where the application wants it, `done` bytes
/// into its buffers. How many bytes there are for the application.
fn feed(
    entry: &Entry,
    rx: &mut Rx,
    buffer: iovec,
    list: &[iovec],
    (buffers, done): (&[iovec], usize),
) -> usize {
    let room = sys::total(buffers) - done;
    let len = sys::total(list);
    let (mut given, mut at) = (0, 0);
    rx.got = 0;
    while at < len {
        let mut head = [0; HEAD];
        let have = peek_at(list, at, &mut head);
        if !may_be_head(&head[..have], rx.count) {
            if rx.count == 0 && !super::tx::has_sent(entry) {
                return pass(entry, rx, buffer, list, (buffers, done));
            }
            rx.fail(entry);
            return given;
        }
        if have < HEAD {
            break;
        }
        let Some(payload) = payload_of(&head) else {
            rx.fail(entry);
            return given;
        };
        if len - at < wire_len(payload) {
            break;
        }
        if !is_intact(list, at, payload) {
            rx.fail(entry);
            return given;
        }
        rx.count = rx.count.wrapping_add(1);
        if payload <= room - given {
            sys::move_forward(list, at + HEAD, buffers, done + given, payload);
            given += payload;
        } else {
            // The last one: there was no more room to receive into.
            sys::move_forward(list, at + HEAD, &[buffer], HEAD, payload);
            let now = room - given;
            sys::move_forward(&[buffer], HEAD, buffers, done + given, now);
            (rx.at, rx.left, rx.used) = (HEAD + now, payload - now, true);
            return room;
        }
        at += wire_len(payload);
    }
    if at < len {
        sys::move_forward(list, at, &[buffer], 0, len - at);
        (rx.got, rx.used) = (len - at, true);
    }
    given
}

/// Bytes of an FPDU on the wire.
fn wire_len(payload: usize) -> usize {
    HEAD + payload + tail_len(payload)
}

/// Copies bytes out of a list; how many there were.
fn peek_at(list: &[iovec], at: usize, into: &mut [u8]) -> usize {
    let mut have = 0;
    sys::for_each(list, at, into.len(), |octets| {
        into[have..have + octets.len()].copy_from_slice(octets);
        have += octets.len();
    });
    have
}

/// Whether the bytes can begin a Send, the next in order, in one segment.
fn may_be_head(start: &[u8], count: u32) -> bool {
    let mut expected = [0; HEAD];
    let model = Model::Untagged {
        ulp: 0,
        qn: ddp::QN_SEND,
        msn: count.wrapping_add(1),
        mo: 0,
    };
    let header = ddp::Header {
        last: true,
        control: Opcode::Send.emit(),
        model,
    };
    header.emit(&mut expected[2..]);
    let len = start.len().max(2);
    start.get(2..) == Some(&expected[2..len]) || start.len() < 2
}

/// Bytes of payload, if a socket sends FPDUs of that length.
fn payload_of(head: &[u8; HEAD]) -> Option<usize> {
    let ulpdu = usize::from(u16::from_be_bytes([head[0], head[1]]));
    let payload = ulpdu.checked_sub(ddp::UNTAGGED_LEN)?;
    (1..=PAYLOAD_MAX).contains(&payload).then_some(payload)
}

/// Whether the CRC of the FPDU at `at` is right.
fn is_intact(list: &[iovec], at: usize, payload: usize) -> bool {
    let covered = wire_len(payload) - CRC_LEN;
    let mut crc = Crc32c::new();
    sys::for_each(list, at, covered, |octets| crc.update(octets));
    let mut found = [0; CRC_LEN];
    peek_at(list, at + covered, &mut found);
    found == crc.to_wire()
}

/// The first bytes are no FPDU, and nothing was sent yet: the peer is a plain one after all, and
/// its bytes are the application's as they are.
fn pass(
    entry: &Entry,
    rx: &mut Rx,
    buffer: iovec,
    list: &[iovec],
    (buffers, done): (&[iovec], usize),
) -> usize {
    entry.socket.taken.store(PASSES, Ordering::Relaxed);
    entry.socket.refuse(Why::PeerPlain);
    let len = sys::total(list);
    let given = len.min(sys::total(buffers) - done);
    // What has no room in the application's buffers, before anything is moved over it: no more than
    // was received around them.
    sys::move_forward(list, given, &[buffer], PLAIN_AT, len - given);
    (rx.at, rx.left, rx.used) = (PLAIN_AT, len - given, true);
    sys::move_backward(list, 0, buffers, done, given);
    given
}
