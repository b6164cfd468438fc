//! The way out.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use haul_iwarp::Crc32c;
use haul_iwarp::wire::ddp::{self, Model};
use haul_iwarp::wire::rdmap::Opcode;
use libc::{iovec, msghdr};

use super::{HEAD, PAYLOAD_MAX, TAIL_MAX, load_octets, passes, store_octets, tail_len};
use crate::lock;
use crate::process::Entry;
use crate::sys::{self, Buffers};
use crate::table::Direction;

/// What is remembered between calls.
#[derive(Debug, Default)]
struct Tx {
    /// FPDUs begun.
    count: u32,
    /// Payload of the open FPDU, and how much of it is still to come; it is open while that is not
    /// zero.
    payload: usize,
    left: usize,
    /// Over the open FPDU so far.
    crc: Crc32c,
    /// Bytes of a head or tail that the kernel had no room for.
    owed: [u8; HEAD],
    owed_len: usize,
    /// Bytes for which the kernel had room when it was asked, less what was sent since.
    room: usize,
}

/// What an FPDU may cost of the kernel's room: `sk_buff`s count as well, one for each segment in
/// the worst case.
const fn cost(payload: usize) -> usize {
    2 * (HEAD + payload + TAIL_MAX) + 4_096
}

/// Payload of an FPDU where the kernel may have no room: with the mark before it
/// ([`libc::MSG_EOR`]) it has an `sk_buff` of its own, below any MSS, which the kernel takes whole
/// or not at all, waiting if the socket waits.
const ATOM: usize = 256;

impl Tx {
    fn load(direction: &Direction) -> Self {
        let word = |at: usize| direction.words[at].load(Ordering::Relaxed);
        Self {
            count: word(0),
            payload: (word(1) as usize).min(PAYLOAD_MAX),
            left: (word(2) as usize).min(PAYLOAD_MAX),
            crc: Crc32c::resumed(word(3)),
            owed_len: (word(4) as usize).min(HEAD),
            owed: load_octets(&direction.words[5..10]),
            room: word(10) as usize,
        }
    }

    fn store(&self, direction: &Direction) {
        let number = |value: usize| u32::try_from(value).unwrap_or(0);
        for (word, value) in direction.words.iter().zip([
            self.count,
            number(self.payload),
            number(self.left),
            self.crc.value(),
            number(self.owed_len),
        ]) {
            word.store(value, Ordering::Relaxed);
        }
        store_octets(&direction.words[5..10], &self.owed);
        direction.words[10].store(number(self.room), Ordering::Relaxed);
    }

    /// The kernel has taken so many bytes of an FPDU whose payload is the message's from `at` on;
    /// how many of them are payload.
    fn took(&mut self, fpdu: &Fpdu, taken: usize, (buffers, at): (&[iovec], usize)) -> usize {
        if taken == 0 {
            return 0;
        }
        if fpdu.head_len > 0 {
            self.count = self.count.wrapping_add(1);
            (self.payload, self.left) = (fpdu.payload, fpdu.payload);
        }
        self.crc = fpdu.begun;
        let Some(taken) = taken.checked_sub(fpdu.head_len) else {
            self.owe(&fpdu.head[taken..]);
            return 0;
        };
        let sent = taken.min(fpdu.part);
        self.left -= sent;
        if sent == fpdu.part {
            self.crc = fpdu.crc;
            // Nothing of the tail is taken unless all of the payload is.
            self.owe(&fpdu.tail[taken - sent..fpdu.tail_len]);
        } else {
            let mut crc = fpdu.begun;
            sys::for_each(buffers, at, sent, |octets| crc.update(octets));
            self.crc = crc;
        }
        sent
    }

    /// How much of `rest` bytes goes into the next FPDU, and whether an `sk_buff` must end with it:
    /// nothing of an FPDU may be left with an application that may never come back (a send that
    /// does not wait, a timeout, a signal).
    fn plan(&mut self, fd: c_int, rest: usize) -> (usize, bool) {
        let wanted = rest.min(PAYLOAD_MAX);
        let full = cost(PAYLOAD_MAX);
        if self.room < cost(wanted) + full {
            self.room = sys::send_room(fd);
        }
        let payload = if self.room >= cost(wanted) {
            wanted
        } else {
            let fits = self.room.saturating_sub(cost(0)) / 2;
            wanted.min(fits.max(ATOM))
        };
        self.room = self.room.saturating_sub(cost(payload));
        (payload, self.room < full)
    }

    fn owe(&mut self, octets: &[u8]) {
        self.owed[..octets.len()].copy_from_slice(octets);
        self.owed_len = octets.len();
    }
}

/// Whether anything was ever sent.
pub(super) fn has_sent(entry: &Entry) -> bool {
    entry.socket.tx.words[0].load(Ordering::Relaxed) != 0
}

/// sendmsg(2).
pub(crate) fn send(entry: &Entry, message: &msghdr, flags: c_int) -> isize {
    if passes(entry) {
        let sent = sys::sendmsg(entry.fd, message, flags);
        let octets = u64::try_from(sent).unwrap_or(0);
        entry.socket.plain_out.fetch_add(octets, Ordering::Relaxed);
        return sent;
    }
    if flags & libc::MSG_OOB != 0 {
        sys::set_errno(libc::EOPNOTSUPP);
        return -1;
    }
    let buffers = sys::buffers_of(message);
    let total = sys::total(buffers);
    if total == 0 {
        return sys::sendmsg(entry.fd, message, flags);
    }
    let direction = &entry.socket.tx;
    let _guard = lock::lock(&direction.lock);
    let mut tx = Tx::load(direction);
    let mut done = 0;
    let mut failed = false;
    while done < total {
        let Some((sent, is_whole)) = send_part(entry, &mut tx, (message, buffers), done, flags)
        else {
            failed = true;
            break;
        };
        done += sent;
        if sent > 0 && !is_whole {
            break;
        }
    }
    tx.store(direction);
    let count = &entry.socket.carried_out;
    count.fetch_add(done as u64, Ordering::Relaxed);
    if failed && done == 0 {
        return -1;
    }
    isize::try_from(done).unwrap_or(isize::MAX)
}

/// FPDUs of one system call.
const TOGETHER: usize = 9;

/// An FPDU that is to be sent, or the rest of one.
#[derive(Debug, Clone, Copy, Default)]
struct Fpdu {
    head: [u8; HEAD],
    head_len: usize,
    /// Of the whole FPDU, and of this call.
    payload: usize,
    part: usize,
    tail: [u8; TAIL_MAX],
    tail_len: usize,
    /// Before the part.
    begun: Crc32c,
    /// After it.
    crc: Crc32c,
}

impl Fpdu {
    /// The FPDU that is open, or the next one; bytes of the message from `at` on. Whether an
    /// `sk_buff` must end with it.
    fn next(
        tx: &mut Tx,
        entry: &Entry,
        buffers: &[iovec],
        (at, rest): (usize, usize),
        number: u32,
    ) -> (Self, bool) {
        let mut fpdu = Self::default();
        let is_new = tx.left == 0;
        let mut is_end = false;
        if is_new {
            (fpdu.payload, is_end) = tx.plan(entry.fd, rest);
            fpdu.part = fpdu.payload;
            fpdu.head = head(fpdu.payload, number);
            fpdu.head_len = HEAD;
            fpdu.begun.update(&fpdu.head);
        } else {
            (fpdu.payload, fpdu.part) = (tx.payload, rest.min(tx.left));
            fpdu.begun = tx.crc;
        }
        let mut crc = fpdu.begun;
        sys::for_each(buffers, at, fpdu.part, |octets| crc.update(octets));
        fpdu.crc = crc;
        if is_new || fpdu.part == tx.left {
            fpdu.tail = tail(fpdu.payload, crc);
            fpdu.tail_len = tail_len(fpdu.payload);
        }
        (fpdu, is_end)
    }

    fn len(&self) -> usize {
        self.head_len + self.part + self.tail_len
    }
}

/// One system call: what is owed, and as much of the message from `done` on as goes into the open
/// FPDU or into new ones. Bytes of the message that the kernel took, and whether it took all that
/// was given; `None` is `errno`.
fn send_part(
    entry: &Entry,
    tx: &mut Tx,
    (message, buffers): (&msghdr, &[iovec]),
    done: usize,
    flags: c_int,
) -> Option<(usize, bool)> {
    let total = sys::total(buffers);
    let mut fpdus = [Fpdu::default(); TOGETHER];
    let (mut count, mut at, mut is_end) = (0, done, false);
    while at < total && count < TOGETHER && !is_end {
        let number = tx.count.wrapping_add(u32::try_from(count).unwrap_or(0) + 1);
        (fpdus[count], is_end) = Fpdu::next(tx, entry, buffers, (at, total - at), number);
        at += fpdus[count].part;
        count += 1;
        if tx.left > 0 {
            break; // the rest of the open one goes alone
        }
    }
    let fpdus = &fpdus[..count];

    let owed = tx.owed;
    let mut list = Buffers::new();
    list.push_slice(&owed[..tx.owed_len]);
    let mut from = done;
    for fpdu in fpdus {
        list.push_slice(&fpdu.head[..fpdu.head_len]);
        list.push_part(buffers, from, fpdu.part);
        list.push_slice(&fpdu.tail[..fpdu.tail_len]);
        from += fpdu.part;
    }
    let more = if at < total { libc::MSG_MORE } else { 0 };
    let end = if is_end { libc::MSG_EOR } else { 0 };
    let own = if done == 0 {
        sys::with_buffers(message, &list)
    } else {
        sys::bare(&list)
    };
    let flags = (flags | more | end) & !libc::MSG_ZEROCOPY;
    let taken = usize::try_from(sys::sendmsg(entry.fd, &own, flags)).ok()?;

    let Some(mut taken) = taken.checked_sub(tx.owed_len) else {
        let (from, len) = (taken, tx.owed_len);
        tx.owe(&owed[from..len]);
        return Some((0, false));
    };
    tx.owed_len = 0;
    let mut sent = 0;
    for fpdu in fpdus {
        let some = taken.min(fpdu.len());
        taken -= some;
        sent += tx.took(fpdu, some, (buffers, done + sent));
        if some < fpdu.len() {
            return Some((sent, false));
        }
    }
    Some((sent, true))
}

fn head(payload: usize, number: u32) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    let ulpdu = u16::try_from(payload + ddp::UNTAGGED_LEN).unwrap_or(u16::MAX);
    head[..2].copy_from_slice(&ulpdu.to_be_bytes());
    let model = Model::Untagged {
        ulp: 0,
        qn: ddp::QN_SEND,
        msn: number,
        mo: 0,
    };
    let header = ddp::Header {
        last: true,
        control: Opcode::Send.emit(),
        model,
    };
    header.emit(&mut head[2..]);
    head
}

fn tail(payload: usize, mut crc: Crc32c) -> [u8; TAIL_MAX] {
    let mut tail = [0; TAIL_MAX];
    let pad = tail_len(payload) - haul_iwarp::CRC_LEN;
    crc.update(&tail[..pad]);
    tail[pad..pad + haul_iwarp::CRC_LEN].copy_from_slice(&crc.to_wire());
    tail
}

/// Sends what is owed, before this direction is closed. Without `flags` it waits as the
/// socket does.
pub(crate) fn flush(entry: &Entry, flags: c_int) {
    let direction = &entry.socket.tx;
    let Some(_guard) = lock::try_lock(&direction.lock) else {
        return; // whoever sends sends that as well
    };
    let mut tx = Tx::load(direction);
    while tx.owed_len > 0 {
        let owed = tx.owed;
        let mut list = Buffers::new();
        list.push_slice(&owed[..tx.owed_len]);
        let sent = sys::sendmsg(entry.fd, &sys::bare(&list), flags | libc::MSG_NOSIGNAL);
        let Ok(taken @ 1..) = usize::try_from(sent) else {
            break;
        };
        let len = tx.owed_len;
        tx.owe(&owed[taken.min(len)..len]);
    }
    tx.store(direction);
}
