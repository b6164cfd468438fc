//! The way in.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use haul_iwarp::wire::ddp::{self, Model};
use haul_iwarp::wire::rdmap::Opcode;
use haul_iwarp::{CRC_LEN, Crc32c};
use libc::{iovec, msghdr};

use super::{HEAD, PASSES, PAYLOAD_MAX, TAIL_MAX, load_octets, passes, store_octets, tail_len};
use crate::lock;
use crate::process::Entry;
use crate::sys::{self, Buffers};
use crate::table::{Half, Why};

/// What fits behind the program's buffers, and is held for the next call.
const HELD_MAX: usize = HEAD + TAIL_MAX;

/// Which part of an FPDU comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    #[default]
    Head,
    Body,
    Tail,
}

/// What is remembered between calls.
#[derive(Debug, Default)]
struct Rx {
    phase: Phase,
    /// Octets of head or tail that are there.
    part: [u8; HEAD],
    got: usize,
    /// Payload of the FPDU, and how much of it is still to come.
    payload: usize,
    left: usize,
    crc: Crc32c,
    /// FPDUs begun.
    count: u32,
    /// The stream is damaged or is no such stream.
    failed: bool,
    /// Payload for which the program's buffers had no room.
    held: [u8; HELD_MAX],
    held_len: usize,
}

impl Rx {
    fn load(half: &Half) -> Self {
        let word = |at: usize| half.words[at].load(Ordering::Relaxed);
        let payload = (word(2) as usize).min(PAYLOAD_MAX);
        Self {
            phase: match word(0) {
                1 => Phase::Body,
                2 => Phase::Tail,
                _ => Phase::Head,
            },
            got: (word(1) as usize).min(HEAD - 1),
            payload,
            left: (word(3) as usize).min(payload),
            crc: Crc32c::resumed(word(4)),
            count: word(5),
            failed: word(6) != 0,
            held_len: (word(7) as usize).min(HELD_MAX),
            part: load_octets(&half.words[8..13]),
            held: load_octets(&half.words[13..20]),
        }
    }

    fn store(&self, half: &Half) {
        let number = |value: usize| u32::try_from(value).unwrap_or(0);
        let phase = match self.phase {
            Phase::Head => 0,
            Phase::Body => 1,
            Phase::Tail => 2,
        };
        for (word, value) in half.words.iter().zip([
            phase,
            number(self.got),
            number(self.payload),
            number(self.left),
            self.crc.value(),
            self.count,
            u32::from(self.failed),
            number(self.held_len),
        ]) {
            word.store(value, Ordering::Relaxed);
        }
        store_octets(&half.words[8..13], &self.part);
        store_octets(&half.words[13..20], &self.held);
    }

    /// Octets of head or tail that are missing.
    fn missing(&self) -> usize {
        match self.phase {
            Phase::Head => HEAD.saturating_sub(self.got),
            Phase::Body => 0,
            Phase::Tail => tail_len(self.payload).saturating_sub(self.got),
        }
    }
}

/// What one step of a receive came to.
enum Step {
    /// So many octets for the program, and whether the kernel had enough to fill all buffers.
    Got { octets: usize, may_be_more: bool },
    /// Octets came, but none for the program.
    Nothing,
    /// The peer has ended its half.
    End,
    /// `errno`.
    Failed,
}

/// Octets that wait.
pub(crate) fn pending(half: &Half) -> usize {
    (half.words[7].load(Ordering::Relaxed) as usize).min(HELD_MAX)
}

/// recvmsg(2).
pub(crate) fn receive(entry: &Entry, message: &mut msghdr, flags: c_int) -> isize {
    let half = &entry.socket.rx;
    let is_data = flags & (libc::MSG_ERRQUEUE | libc::MSG_OOB) == 0;
    if !is_data || passes(entry) && pending(half) == 0 {
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
        return if pending(half) > 0 {
            0
        } else {
            sys::recvmsg(entry.fd, message, flags)
        };
    }
    let _guard = lock::lock(&half.lock);
    let mut rx = Rx::load(half);
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
                    // Less than there was room for is the sign that there is no more (epoll(7)): so look.
                    asked |= libc::MSG_DONTWAIT;
                }
            }
            Step::Nothing => {}
            Step::End => break false,
            Step::Failed => break true,
        }
    };
    if !failed && rx.held_len == 0 && rx.phase == Phase::Tail {
        finish(entry, &mut rx);
    }
    if done > 0 && !is_peek {
        take_tail(entry, &mut rx);
    }
    rx.store(half);
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

/// All payload of an FPDU is delivered: what is left of it is no reason for the socket to be readable.
fn finish(entry: &Entry, rx: &mut Rx) {
    let mut tail = [0; TAIL_MAX];
    let mut list = Buffers::new();
    list.push_mut(&mut tail[..rx.missing()]);
    let error = sys::errno();
    let got = sys::recvmsg(entry.fd, &mut sys::bare(&list), libc::MSG_DONTWAIT);
    if let Ok(len) = usize::try_from(got) {
        feed(entry, rx, list.list(), len, (&[], 0));
    }
    sys::set_errno(error);
}

fn step(entry: &Entry, rx: &mut Rx, message: &mut msghdr, done: usize, flags: c_int) -> Step {
    let buffers = sys::buffers_of(message);
    let room = sys::total(buffers) - done;
    let is_peek = flags & libc::MSG_PEEK != 0;
    if rx.held_len > 0 {
        let given = sys::put(buffers, done, &rx.held[..rx.held_len.min(room)]);
        if !is_peek {
            rx.held.copy_within(given..rx.held_len, 0);
            rx.held_len -= given;
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
    let mut list = Buffers::new();
    let (mut front, mut middle, mut back) = ([0; HEAD], [0; HEAD], [0; TAIL_MAX]);
    let mut asked = flags;
    if passes(entry) {
        list.push_part(buffers, done, room);
    } else if is_peek && rx.phase != Phase::Body {
        // What lies before the payload is nothing to peek at.
        list.push_mut(&mut front[..rx.missing()]);
        asked &= !libc::MSG_PEEK;
    } else if is_peek || rx.phase == Phase::Body && rx.left > room {
        list.push_part(buffers, done, room.min(rx.left));
    } else {
        let tail = tail_len(rx.payload);
        match rx.phase {
            Phase::Head => list.push_mut(&mut front[..rx.missing()]),
            Phase::Tail => list.push_mut(&mut front[..rx.missing()]),
            Phase::Body => {
                list.push_part(buffers, done, rx.left);
                list.push_mut(&mut front[..tail]);
            }
        }
        if rx.phase != Phase::Head {
            list.push_mut(&mut middle);
        }
        let before = if rx.phase == Phase::Body { rx.left } else { 0 };
        list.push_part(buffers, done + before, room - before);
        list.push_mut(&mut back);
    }
    let mut own = sys::with_buffers(message, &list);
    let received = sys::recvmsg(entry.fd, &mut own, asked);
    message.msg_namelen = own.msg_namelen;
    message.msg_controllen = own.msg_controllen;
    message.msg_flags = own.msg_flags;
    let len = match usize::try_from(received) {
        Ok(0) => return Step::End,
        Ok(len) => len,
        Err(_) => return Step::Failed,
    };
    if passes(entry) || is_peek && rx.phase == Phase::Body {
        return Step::Got {
            octets: len,
            may_be_more: false,
        };
    }
    let may_be_more = len == sys::total(list.list());
    let got = feed(
        entry,
        rx,
        list.list(),
        len,
        (sys::buffers_of(message), done),
    );
    match got {
        0 if rx.failed => {
            sys::set_errno(libc::ECONNRESET);
            Step::Failed
        }
        0 => Step::Nothing,
        octets => Step::Got {
            octets,
            may_be_more,
        },
    }
}

/// After the last octet of an FPDU was delivered from what was held: takes its tail, if it is there, so that the kernel does
/// not call a socket readable that has nothing for the program.
fn take_tail(entry: &Entry, rx: &mut Rx) {
    if rx.held_len > 0 || rx.failed || rx.phase != Phase::Tail {
        return;
    }
    let mut front = [0; HEAD];
    let mut list = Buffers::new();
    list.push_mut(&mut front[..rx.missing()]);
    let received = sys::recvmsg(entry.fd, &mut sys::bare(&list), libc::MSG_DONTWAIT);
    if let Ok(len @ 1..) = usize::try_from(received) {
        feed(entry, rx, list.list(), len, (&[], 0));
    }
}

/// Takes `len` octets of the stream that lie in `list`, and moves payload to where the program wants it, `done` octets into its
/// buffers, unless it is there already. How many octets there are for the program.
fn feed(
    entry: &Entry,
    rx: &mut Rx,
    list: &[iovec],
    len: usize,
    (buffers, done): (&[iovec], usize),
) -> usize {
    let room = sys::total(buffers) - done;
    // What was delivered, and how much of it before the present FPDU.
    let (mut given, mut verified) = (0, 0);
    let mut at = 0;
    while at < len {
        let take = match rx.phase {
            Phase::Body => rx.left.min(len - at),
            _ => rx.missing().min(len - at),
        };
        let mut good = true;
        match rx.phase {
            Phase::Head => {
                fill(rx, list, at, take);
                if !may_be_head(rx) {
                    if rx.count == 0 && !super::tx::has_sent(entry) {
                        return pass(entry, rx, list, (at + take, len), (buffers, done));
                    }
                    good = false;
                } else if rx.got == HEAD {
                    good = begin(rx);
                    verified = given;
                }
            }
            Phase::Body => {
                let mut crc = rx.crc;
                sys::for_each(list, at, take, |octets| crc.update(octets));
                rx.crc = crc;
                let now = take.min(room - given);
                sys::move_forward(list, at, buffers, done + given, now);
                given += now;
                good = hold(rx, list, at + now, take - now);
                rx.left -= take;
                if rx.left == 0 {
                    (rx.phase, rx.got) = (Phase::Tail, 0);
                }
            }
            Phase::Tail => {
                fill(rx, list, at, take);
                if rx.missing() == 0 {
                    good = is_intact(rx);
                    (rx.phase, rx.got) = (Phase::Head, 0);
                }
            }
        }
        if !good {
            entry.socket.malformed.fetch_add(1, Ordering::Relaxed);
            rx.failed = true;
            rx.held_len = 0;
            sys::shutdown(entry.fd, libc::SHUT_RDWR);
            return verified;
        }
        at += take;
    }
    given
}

/// Adds octets to the head or tail that is being collected.
fn fill(rx: &mut Rx, list: &[iovec], at: usize, take: usize) {
    let (part, got) = (&mut rx.part, &mut rx.got);
    sys::for_each(list, at, take, |octets| {
        part[*got..*got + octets.len()].copy_from_slice(octets);
        *got += octets.len();
    });
}

/// Payload that has no room in the program's buffers: never more than the few octets that were received behind them.
fn hold(rx: &mut Rx, list: &[iovec], at: usize, len: usize) -> bool {
    if len > HELD_MAX - rx.held_len {
        return false;
    }
    let (held, held_len) = (&mut rx.held, &mut rx.held_len);
    sys::for_each(list, at, len, |octets| {
        held[*held_len..*held_len + octets.len()].copy_from_slice(octets);
        *held_len += octets.len();
    });
    true
}

/// Whether the octets so far can begin a Send, the next in order, in one segment.
fn may_be_head(rx: &Rx) -> bool {
    let mut expected = [0; HEAD];
    let model = Model::Untagged {
        ulp: 0,
        qn: ddp::QN_SEND,
        msn: rx.count.wrapping_add(1),
        mo: 0,
    };
    let header = ddp::Header {
        last: true,
        control: Opcode::Send.emit(),
        model,
    };
    header.emit(&mut expected[2..]);
    let got = rx.got.max(2);
    rx.part[2..got] == expected[2..got]
}

/// The head is complete.
fn begin(rx: &mut Rx) -> bool {
    let ulpdu = usize::from(u16::from_be_bytes([rx.part[0], rx.part[1]]));
    let Some(payload @ 1..=PAYLOAD_MAX) = ulpdu.checked_sub(ddp::UNTAGGED_LEN) else {
        return false;
    };
    rx.crc = Crc32c::new();
    rx.crc.update(&rx.part);
    rx.count = rx.count.wrapping_add(1);
    (rx.payload, rx.left) = (payload, payload);
    rx.phase = Phase::Body;
    true
}

/// The tail is complete: padding is zero by the CRC's word.
fn is_intact(rx: &Rx) -> bool {
    let len = tail_len(rx.payload);
    let mut crc = rx.crc;
    crc.update(&rx.part[..len - CRC_LEN]);
    rx.part[len - CRC_LEN..len] == crc.to_wire()
}

/// The first octets are no FPDU, and nothing was sent yet: the peer is a plain one after all, and its octets are the program's
/// as they are. They are what was collected as a head, then the list from `at` on.
fn pass(
    entry: &Entry,
    rx: &mut Rx,
    list: &[iovec],
    (at, len): (usize, usize),
    (buffers, done): (&[iovec], usize),
) -> usize {
    entry.socket.taken.store(PASSES, Ordering::Relaxed);
    entry.socket.refuse(Why::PeerPlain);
    let room = sys::total(buffers) - done;
    let (front, front_len) = (rx.part, rx.got);
    let rest = len - at;
    let direct = rest.min(room.saturating_sub(front_len));
    // What has no room in the program's buffers, before anything is moved over it.
    rx.held_len = 0;
    let given = front_len.min(room);
    rx.held[..front_len - given].copy_from_slice(&front[given..front_len]);
    rx.held_len = front_len - given;
    hold(rx, list, at + direct, rest - direct);
    sys::move_backward(list, at, buffers, done + given, direct);
    sys::put(buffers, done, &front[..given]);
    rx.got = 0;
    given + direct
}
