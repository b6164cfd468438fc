//! One connection's stream as it arrives: its extents, the announced ranges, and the delivery.

use std::collections::VecDeque;

use crate::bag::{Breach, End};
use crate::crc::crc32c_joined;
use crate::time::Time;
use crate::wire::Record;

/// Below this a window grows faster: each step costs a round trip, or two with pull, and too large
/// a share of so little delays nobody.
const WINDOW_BULK: u64 = 1 << 20;

/// A larger one grows if the application takes this part of it in a round trip: with pull, what was
/// announced before, when the window was a quarter as large. Behind the first step, when it was
/// smaller still, that takes a round trip more.
const READ_SHARE: u64 = 8;
/// On shorter paths, threads and timers are the longer part of a round.
const ROUND_NS_MIN: u64 = 1_000_000;

/// Most bytes of a stream that socket buffers towards its application hold while it does not read.
/// For TCP: the receiver's buffer (about 128 KiB before the first read, `tcp_rmem`), and the
/// sender's.
const ABSORBED: u64 = 1 << 20;

/// The data that a connection has for its application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    /// Bytes, in order.
    Data(Data),
    /// The end of the stream.
    End(End),
}

/// Bytes of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Data {
    /// From which offset of the stream.
    pub offset: u64,
    /// Where in the arena.
    pub at: u64,
    /// Bytes.
    pub len: u64,
    /// Their CRC32C, where they are what records covered.
    pub crc: Option<u32>,
}

/// A part of the arena that a part of the stream goes to.
#[derive(Debug)]
struct Extent {
    offset: u64,
    at: u64,
    len: u64,
    /// Bytes used up. `released + unused <= len`
    released: u64,
    /// Bytes behind the end of the stream.
    unused: u64,
}

/// A range that is announced.
#[derive(Debug)]
struct Range {
    offset: u64,
    len: u64,
    crc: Option<u32>,
    placed: bool,
}

#[derive(Debug)]
pub(super) struct Rx {
    /// In order of the stream. `announced <= credit`, the end of the last.
    extents: VecDeque<Extent>,
    pub(super) credit: u64,
    announced: u64,
    /// Behind the last byte handed out.
    read: u64,
    /// Bytes used up, from anywhere before `read`.
    released: u64,
    /// Where `released` counts from.
    base: u64,
    ranges: VecDeque<Range>,
    /// The end that was announced; nothing comes behind it.
    pub(super) end: Option<End>,
    /// Its record's turn has come.
    end_placed: bool,
    pub(super) end_read: bool,
    /// Bytes that may be promised and not used up.
    pub(super) window: u64,
    pub(super) discarded: bool,
    /// When the use of the window was last measured, and the announced offset and the bytes used up
    /// then.
    mark: (Time, u64, u64),
    /// Reads in flight.
    pub(super) gets: u32,
    /// The application knows that there is something.
    told: bool,
    /// Waits for memory.
    pub(super) hungry: bool,
}

impl Rx {
    pub(super) fn new(from: u64, window: u64) -> Self {
        Self {
            extents: VecDeque::new(),
            credit: from,
            announced: from,
            read: from,
            released: 0,
            base: from,
            ranges: VecDeque::new(),
            end: None,
            end_placed: false,
            end_read: false,
            window,
            discarded: false,
            mark: (Time::default(), from, 0),
            gets: 0,
            told: false,
            hungry: false,
        }
    }

    pub(super) const fn is_open(&self) -> bool {
        self.end.is_none() && !self.discarded
    }

    /// Nothing has been promised yet.
    pub(super) const fn is_new(&self) -> bool {
        self.credit == self.base
    }

    /// Whether its application reads: it has taken more than socket buffers hold.
    pub(super) const fn is_taken(&self) -> bool {
        self.released > ABSORBED
    }

    /// Bytes promised to the peer or occupied by it.
    pub(super) const fn promised(&self) -> u64 {
        self.credit - self.base - self.released
    }

    pub(super) fn push_extent(&mut self, at: u64, len: u64) {
        self.extents.push_back(Extent {
            offset: self.credit,
            at,
            len,
            released: 0,
            unused: 0,
        });
        self.credit += len;
    }

    pub(super) fn extents(self) -> impl Iterator<Item = (u64, u64)> {
        self.extents
            .into_iter()
            .map(|extent| (extent.at, extent.len))
    }

    /// Extents that more may go to: offset in the stream, place, bytes.
    pub(super) fn open_extents(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let open = self
            .extents
            .iter()
            .filter(|extent| extent.released < extent.len);
        open.map(|extent| (extent.offset, extent.at, extent.len))
    }

    /// Whether the window may have grown, because the peer uses it.
    pub(super) fn on_announce(
        &mut self,
        record: &Record,
        now: Time,
        rtt_ns: u64,
    ) -> Result<bool, Breach> {
        if self.end.is_some() {
            return Err(Breach::PastEnd);
        }
        if record.offset != self.announced {
            return Err(Breach::Gap);
        }
        if record.end() > self.credit {
            return Err(Breach::Credit);
        }
        self.announced = record.end();
        if record.len > 0 && !self.discarded {
            self.ranges.push_back(Range {
                offset: record.offset,
                len: u64::from(record.len),
                crc: record.crc,
                placed: false,
            });
        }
        if let Some(code) = record.reset {
            self.end = Some(End::Reset(code));
        } else if record.fin {
            self.end = Some(End::Fin);
        }
        // The peer uses the whole window in at most two round trips.
        let (since, announced, released) = self.mark;
        let is_limited = self.announced - announced >= self.window / 4;
        // The measured time may be slightly longer than the current one.
        let took_ns = now.since(since);
        if took_ns >= rtt_ns / 4 * 3 {
            // A large window is of no use to an application that is slower; without a round trip
            // there is no telling.
            let round_ns = rtt_ns.max(ROUND_NS_MIN);
            let used = u128::from(self.released.saturating_sub(released)) * u128::from(round_ns);
            let least = u128::from(self.window / READ_SHARE) * u128::from(took_ns);
            let is_read = rtt_ns == 0 || self.window < WINDOW_BULK || used >= least;
            self.mark = (now, self.announced, self.released);
            if is_limited && is_read && self.is_open() {
                let growth = if self.window < WINDOW_BULK { 16 } else { 4 };
                self.window = self.window.saturating_mul(growth);
            }
        }
        Ok(is_limited)
    }

    /// A record is in place. Returns whether to notify the application.
    pub(super) fn on_placed(&mut self, record: &Record) -> bool {
        if record.len > 0
            && let Ok(index) = self
                .ranges
                .binary_search_by_key(&record.offset, |range| range.offset)
        {
            self.ranges[index].placed = true;
            self.join(index);
        }
        self.end_placed |= record.fin || record.reset.is_some();
        self.report()
    }

    fn report(&mut self) -> bool {
        let news = !self.told && !self.discarded && self.is_readable();
        self.told |= news;
        news
    }

    /// Joins a range with the one before it, so that small ones that wait do not pile up.
    fn join(&mut self, index: usize) {
        for index in [index + 1, index] {
            let Some(before) = index
                .checked_sub(1)
                .and_then(|before| self.ranges.get(before))
            else {
                continue;
            };
            let Some(range) = self.ranges.get(index) else {
                continue;
            };
            let whole = before.len + range.len;
            let is_one = before.placed
                && range.placed
                && before.crc.is_some() == range.crc.is_some()
                && self
                    .place(before.offset)
                    .is_some_and(|(_, room)| room >= whole);
            if !is_one {
                continue;
            }
            let (crc, len) = (range.crc, range.len);
            let before = &mut self.ranges[index - 1];
            before.crc = before.crc.zip(crc).map(|(a, b)| crc32c_joined(a, b, len));
            before.len = whole;
            self.ranges.remove(index);
        }
    }

    /// The peer cannot give the rest.
    pub(super) fn on_revoked(&mut self, code: u16) -> bool {
        if self.end_read {
            return false;
        }
        let placed = self.ranges.iter().take_while(|range| range.placed).count();
        self.ranges.truncate(placed);
        (self.end, self.end_placed) = (Some(End::Reset(code)), true);
        self.report()
    }

    /// The stream has ended: credit beyond its end is free now, and the extent of its end as soon
    /// as the data in it is consumed.
    pub(super) fn take_unused(&mut self) -> Vec<(u64, u64)> {
        let mut freed = Vec::new();
        while let Some(last) = self.extents.back_mut() {
            let unused = (last.offset + last.len).saturating_sub(self.announced);
            if unused == 0 {
                break;
            }
            last.unused = unused.min(last.len);
            if last.released + last.unused < last.len {
                break;
            }
            freed.extend(
                self.extents
                    .pop_back()
                    .map(|extent| (extent.at, extent.len)),
            );
        }
        freed
    }

    /// Where a byte of the stream goes, and how many behind it go there too.
    pub(super) fn place(&self, offset: u64) -> Option<(u64, u64)> {
        let index = self
            .extents
            .partition_point(|extent| extent.offset + extent.len <= offset);
        let extent = self.extents.get(index)?;
        let inside = offset.checked_sub(extent.offset)?;
        Some((extent.at + inside, extent.len - inside))
    }

    pub(super) fn is_readable(&self) -> bool {
        match self.ranges.front() {
            Some(range) => range.placed,
            None => self.end_placed && !self.end_read,
        }
    }

    pub(super) fn read(&mut self, most: u64) -> Option<Read> {
        if !self.is_readable() {
            self.told = false;
            return None;
        }
        let Some(range) = self.ranges.front() else {
            self.end_read = true;
            return self.end.map(Read::End);
        };
        if most == 0 {
            return None;
        }
        let (at, room) = self.place(range.offset)?;
        let (offset, len) = (range.offset, range.len.min(room).min(most));
        let crc = range.crc.filter(|_| len == range.len);
        if len == range.len {
            self.ranges.pop_front();
        } else {
            let range = &mut self.ranges[0];
            range.offset += len;
            range.len -= len;
            range.crc = None;
        }
        self.read = offset + len;
        Some(Read::Data(Data {
            offset,
            at,
            len,
            crc,
        }))
    }

    /// Extents that are free now.
    pub(super) fn release(&mut self, mut offset: u64, len: u64) -> Vec<(u64, u64)> {
        let end = offset.saturating_add(len).min(self.read);
        let mut freed = Vec::new();
        while offset < end {
            let index = self
                .extents
                .partition_point(|extent| extent.offset + extent.len <= offset);
            let Some(extent) = self
                .extents
                .get_mut(index)
                .filter(|extent| extent.offset <= offset)
            else {
                break;
            };
            let part = (end - offset)
                .min(extent.offset + extent.len - offset)
                .min(extent.len - extent.released - extent.unused);
            if part == 0 {
                break;
            }
            extent.released += part;
            self.released += part;
            offset += part;
            if extent.released + extent.unused == extent.len {
                freed.extend(
                    self.extents
                        .remove(index)
                        .map(|extent| (extent.at, extent.len)),
                );
            }
        }
        freed
    }

    pub(super) const fn is_settled(&self) -> bool {
        self.base + self.released == self.read
    }

    pub(super) fn delivered(&self) -> (u64, bool) {
        (self.base + self.released, self.end_read)
    }

    /// The stream continues after the consumed data; later announcements are repeated.
    pub(super) fn restart(&mut self) {
        let at = self.base + self.released;
        (self.announced, self.read) = (at, at);
        (self.mark.1, self.mark.2) = (at, self.released);
        self.ranges.clear();
        self.gets = 0;
        self.told = false;
        if !self.end_read {
            (self.end, self.end_placed) = (None, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ConnId;
    use crate::wire::Key;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_window_grows_once_in_each_round_trip_in_which_it_is_used() {
        let mut rx = Rx::new(0, 8 << 10);
        rx.push_extent(0, 64 << 20);
        let mut now = Time::from_ns(1_000 * MS);
        // The round trip was measured a little longer than it is.
        let mut announce = |rx: &mut Rx, after_ms: u64, len: u32| {
            now = now.after(after_ms * MS);
            let record = Record {
                conn: ConnId(1),
                offset: rx.announced,
                len,
                crc: None,
                fin: false,
                reset: None,
                key: Key::default(),
            };
            rx.on_announce(&record, now, 64 * MS).unwrap();
            rx.window
        };
        assert_eq!(announce(&mut rx, 0, 8 << 10), 128 << 10);
        assert_eq!(announce(&mut rx, 61, 64 << 10), 2 << 20);
        assert_eq!(announce(&mut rx, 10, 1 << 20), 2 << 20);
        // Little has been read.
        rx.released = 128 << 10;
        assert_eq!(announce(&mut rx, 51, 1 << 20), 2 << 20);
        rx.released = 1 << 20;
        assert_eq!(announce(&mut rx, 61, 1 << 20), 8 << 20);
        assert_eq!(announce(&mut rx, 61, 4 << 10), 8 << 20);
    }
}
