//! One connection's bytes as they leave, and slabs as they are made of them.

use std::collections::VecDeque;

use crate::ConnId;
use crate::bag::{End, Memory, Place};
use crate::crc::crc32c_joined;
use crate::wire::{Key, Record};

/// A connection with no more than this ready and in flight counts as having little data. It goes
/// first, in slabs of its kind, and does not wait for more.
const LITTLE: u64 = 4 << 10;

/// A range of a stream that is not in a slab yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    pub(super) offset: u64,
    pub(super) place: Place,
    pub(super) crc: Option<u32>,
}

/// A connection as its bytes leave.
#[derive(Debug, Default)]
pub(super) struct Tx {
    /// The peer takes bytes before this.
    pub(super) credit: u64,
    /// Behind the last byte handed in. `packed <= next <= credit`
    pub(super) next: u64,
    /// Behind the last byte in a slab.
    pub(super) packed: u64,
    /// Before this all has arrived at the far end of the session; with the end of the stream, one
    /// more.
    pub(super) delivered: u64,
    /// The most that was ever in slabs, the end of the stream counted: more cannot have been
    /// delivered.
    pub(super) high: u64,
    /// Records in slabs that are not done with, and their bytes.
    pub(super) in_slabs: u32,
    pub(super) unacked: u64,
    pub(super) ready: VecDeque<Range>,
    /// In slabs and not delivered, if memory is kept so long.
    pub(super) retained: VecDeque<Range>,
    pub(super) end: Option<End>,
    pub(super) end_packed: bool,
    pub(super) end_acked: bool,
    /// The far end has reported that the end of the stream arrived.
    pub(super) end_told: bool,
    /// The far end has closed its receiving side, and will not report progress.
    pub(super) abandoned: bool,
    /// Waits in `Producer::round`.
    pub(super) in_round: bool,
    /// Bytes by which its turns have exceeded their quanta.
    pub(super) debt: u64,
    /// Memory that the peer lets this end write: stream offset, bytes, key.
    pub(super) grants: VecDeque<(u64, u64, Key)>,
}

/// A slab until it is acknowledged.
#[derive(Debug)]
pub(super) struct Slab {
    /// Announced ranges, and their places here.
    pub(super) records: Vec<(Record, Memory, u64)>,
    pub(super) bytes: u64,
    pub(super) is_inline: bool,
    /// Its bytes are written to where the peer has granted memory (push).
    pub(super) is_pushed: bool,
    /// Its bytes, until they are sent with the announcement.
    pub(super) inline: Vec<u8>,
    pub(super) state: SlabState,
    pub(super) tries: u8,
    /// Push: records before this one, and bytes of it, have been handed out.
    pub(super) cursor: (usize, u64),
    /// Which attempt the writes belong to.
    pub(super) attempt: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlabState {
    /// Waits for its keys, or in push mode for its writes.
    Sealed,
    /// Announced, or about to be.
    Announced,
    Revoking,
    Done,
}

impl Tx {
    /// Whether so little is ready and in flight that others do not wait long for it.
    pub(super) const fn has_little(&self) -> bool {
        self.unpacked() + self.unacked <= LITTLE
    }

    /// Bytes that are in no slab yet.
    pub(super) const fn unpacked(&self) -> u64 {
        self.next - self.packed
    }

    pub(super) fn packable(&self) -> bool {
        let octets = !self.ready.is_empty() && self.packed < self.credit;
        octets || self.ready.is_empty() && self.end.is_some() && !self.end_packed
    }

    /// Moves ready data to `slab`: `quantum` bytes less its debt, and what completes the last one:
    /// whole ranges if they fit, because a part has no checksum. Returns whether its next range
    /// waits for an empty slab.
    pub(super) fn take(
        &mut self,
        conn: ConnId,
        quantum: u64,
        most: u64,
        records_max: usize,
        retain: bool,
        slab: &mut Slab,
    ) -> bool {
        let mut taken = std::mem::take(&mut self.debt);
        while let Some(range) = self.ready.front().copied() {
            let room = (most - slab.bytes).min(self.credit.saturating_sub(self.packed));
            let is_cut = range.place.len > room && range.crc.is_some();
            let waits = is_cut && !slab.records.is_empty();
            if taken >= quantum || room == 0 || slab.records.len() == records_max || waits {
                self.debt = taken.saturating_sub(quantum);
                return waits && taken < quantum;
            }
            self.ready.pop_front();
            let (now, later) = split(range, room);
            if let Some(later) = later {
                self.ready.push_front(later);
            }
            taken += now.place.len;
            self.packed += now.place.len;
            slab.push(conn, now);
            if retain {
                self.retained.push_back(now);
            }
        }
        self.debt = taken.saturating_sub(quantum);
        if let Some(end) = self.end.filter(|_| !self.end_packed)
            && slab.records.len() < records_max
        {
            self.end_packed = true;
            slab.push_end(conn, self.packed, end);
        }
        false
    }

    /// The peer's window for writes from an offset on; `None` before its first grant.
    pub(super) fn granted(&self, offset: u64) -> Option<Granted> {
        if self.abandoned {
            return Some(Granted::Used(u64::MAX));
        }
        let (at, len, key) = *self.grants.iter().find(|(at, len, _)| offset < at + len)?;
        let Some(inside) = offset.checked_sub(at) else {
            return Some(Granted::Used(at - offset));
        };
        let to = key.to.wrapping_add(inside);
        Some(Granted::Key(Key { to, ..key }, len - inside))
    }
}

/// Whether bytes of a slab may be written.
pub(super) enum Granted {
    /// With this key, so many bytes.
    Key(Key, u64),
    /// So many bytes have no memory any more, because the peer has used them up: it has them from
    /// a former attempt.
    Used(u64),
}

impl Slab {
    pub(super) const fn inline_bytes(&self) -> u64 {
        if self.is_inline { self.bytes } else { 0 }
    }

    /// Its bytes go over the data channels.
    pub(super) const fn is_moved(&self) -> bool {
        self.bytes > 0 && !self.is_inline
    }

    /// From the beginning, with new keys.
    pub(super) fn begin(&mut self, attempt: u64) {
        self.state = SlabState::Sealed;
        self.inline.clear();
        (self.cursor, self.attempt) = ((0, 0), attempt);
    }

    pub(super) fn push(&mut self, conn: ConnId, range: Range) {
        self.bytes += range.place.len;
        let Place { memory, at, len } = range.place;
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        if let Some((last, last_memory, last_at)) = self.records.last_mut()
            && last.conn == conn
            && *last_memory == memory
            && *last_at + u64::from(last.len) == at
            && last.end() == range.offset
            && last.crc.is_some() == range.crc.is_some()
            && let Some(sum) = last.len.checked_add(len)
        {
            last.crc = last
                .crc
                .zip(range.crc)
                .map(|(a, b)| crc32c_joined(a, b, u64::from(len)));
            last.len = sum;
            return;
        }
        let record = Record {
            conn,
            offset: range.offset,
            len,
            crc: range.crc,
            fin: false,
            reset: None,
            key: Key::default(),
        };
        self.records.push((record, memory, at));
    }

    pub(super) fn push_end(&mut self, conn: ConnId, offset: u64, end: End) {
        let reset = match end {
            End::Reset(code) => Some(code),
            End::Fin => None,
        };
        if let Some((last, ..)) = self.records.last_mut()
            && last.conn == conn
            && reset.is_none()
        {
            last.fin = true;
            return;
        }
        let record = Record {
            conn,
            offset,
            len: 0,
            crc: None,
            fin: reset.is_none(),
            reset,
            key: Key::default(),
        };
        self.records.push((record, Memory::Foreign, 0));
    }
}

pub(super) fn join(last: &mut Range, next: &Range) -> bool {
    let continues = last.place.memory == next.place.memory
        && last.place.at + last.place.len == next.place.at
        && last.crc.is_some() == next.crc.is_some();
    if continues {
        last.crc = last
            .crc
            .zip(next.crc)
            .map(|(a, b)| crc32c_joined(a, b, next.place.len));
        last.place.len += next.place.len;
    }
    continues
}

/// Splits off the first `len` bytes. Only a whole range keeps its checksum.
fn split(range: Range, len: u64) -> (Range, Option<Range>) {
    if range.place.len <= len {
        return (range, None);
    }
    let (mut first, mut second) = (range, range);
    (first.crc, second.crc) = (None, None);
    first.place.len = len;
    second.offset += len;
    second.place.at += len;
    second.place.len -= len;
    (first, Some(second))
}

/// Takes away all before `offset`.
pub(super) fn trim(ranges: &mut VecDeque<Range>, offset: u64) -> Vec<Range> {
    let mut freed = Vec::new();
    while let Some(range) = ranges.pop_front() {
        let before = offset.saturating_sub(range.offset);
        if before == 0 {
            ranges.push_front(range);
            break;
        }
        let (first, rest) = split(range, before);
        freed.push(first);
        if let Some(rest) = rest {
            ranges.push_front(rest);
            break;
        }
    }
    freed
}
