//! What a plain link holds for its user: what has arrived and was not taken, and what was given and
//! has not arrived.
//!
//! Both have a limit from the start and take memory as it is used. Where the system has none left
//! the link ends, not the process.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Range;

use super::place::Place;
use crate::bulk::{Extent, FileRange, Source};

/// Bytes of receive memory that are taken at a time.
pub(super) const PAGE_BYTES: usize = 16 << 10;

/// Receive memory: one slot per packet of the window, or with placement the window itself, in which
/// offsets come round.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Positions come round after so many bytes.
    bytes: u64,
    pages: Vec<Option<Box<[u8]>>>,
    /// Pages that may still be taken.
    left: usize,
}

impl Memory {
    /// In which positions come round after `bytes`, of at most `pages` pages; nothing is taken yet.
    pub(super) fn new(bytes: u64, pages: usize) -> Self {
        let whole = pages_of(bytes);
        Self {
            bytes,
            pages: (0..whole).map(|_| None).collect(),
            left: pages.min(whole),
        }
    }

    /// All of its pages may be taken from now on.
    pub(super) fn open(&mut self) {
        self.left = self.pages.iter().filter(|page| page.is_none()).count();
    }

    /// The page of a position, and the part of it from there to its end; `bytes` ends the last one.
    fn at(&self, position: u64) -> Option<(usize, Range<usize>)> {
        let at = usize::try_from(position.checked_rem(self.bytes)?).ok()?;
        let (page, offset) = (at / PAGE_BYTES, at % PAGE_BYTES);
        let rest = usize::try_from(self.bytes).ok()? - at;
        Some((page, offset..PAGE_BYTES.min(offset + rest)))
    }

    /// What lies at a position in one piece, `len` bytes at most.
    pub(super) fn get(&self, position: u64, len: usize) -> &[u8] {
        let piece = self.at(position).and_then(|(page, range)| {
            let page = self.pages.get(page)?.as_deref()?;
            page.get(range.start..range.end.min(range.start + len))
        });
        piece.unwrap_or_default()
    }

    /// Shows `len` bytes from a position on, piece by piece.
    pub(super) fn visit(&self, mut position: u64, mut len: usize, mut show: impl FnMut(&[u8])) {
        while len > 0 {
            let piece = self.get(position, len);
            if piece.is_empty() {
                return;
            }
            show(piece);
            position += piece.len() as u64;
            len -= piece.len();
        }
    }

    fn page(&mut self, index: usize) -> io::Result<&mut [u8]> {
        let page = self.pages.get_mut(index);
        let page = page.ok_or(io::ErrorKind::InvalidInput)?;
        if page.is_none() {
            let left = self.left.checked_sub(1).ok_or_else(beyond)?;
            let mut octets = Vec::new();
            octets
                .try_reserve_exact(PAGE_BYTES)
                .map_err(|_| io::ErrorKind::OutOfMemory)?;
            octets.resize(PAGE_BYTES, 0);
            (*page, self.left) = (Some(octets.into_boxed_slice()), left);
        }
        page.as_deref_mut()
            .ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }
}

/// Pages that hold so many bytes.
pub(super) fn pages_of(bytes: u64) -> usize {
    usize::try_from(bytes.div_ceil(PAGE_BYTES as u64)).unwrap_or(usize::MAX)
}

fn beyond() -> io::Error {
    let text = "more arrived than is held for one who is not known yet";
    io::Error::new(io::ErrorKind::QuotaExceeded, text)
}

impl Place for Memory {
    fn place(&mut self, mut position: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
        for part in parts {
            let mut part: &[u8] = part;
            while !part.is_empty() {
                let (page, range) = self.at(position).ok_or(io::ErrorKind::InvalidInput)?;
                let (now, then) = part.split_at(part.len().min(range.len()));
                let page = self.page(page)?;
                page[range.start..range.start + now.len()].copy_from_slice(now);
                position += now.len() as u64;
                part = then;
            }
        }
        Ok(())
    }
}

/// What was given to send and has not arrived: bytes from position `start` on.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub(super) start: u64,
    pub(super) bytes: VecDeque<u8>,
}

impl Pending {
    /// Takes `bytes` behind what there is. Its own room doubles up to `most`, and is exact beyond.
    pub(super) fn push(&mut self, bytes: &[u8], most: usize) -> io::Result<()> {
        let len = self.bytes.len() + bytes.len();
        if len > self.bytes.capacity() {
            let wanted = len.next_power_of_two().min(most).max(len);
            self.bytes
                .try_reserve_exact(wanted - self.bytes.len())
                .map_err(|_| io::ErrorKind::OutOfMemory)?;
        }
        self.bytes.extend(bytes);
        Ok(())
    }

    /// Everything below `position` has arrived.
    pub(super) fn release(&mut self, position: u64) {
        let gone = position.saturating_sub(self.start);
        self.start += gone;
        let gone = usize::try_from(gone).unwrap_or(usize::MAX);
        self.bytes.drain(..gone.min(self.bytes.len()));
    }
}

impl Source for Pending {
    fn wait(&self, _: u64, _: std::time::Duration) -> Extent {
        Extent {
            end: self.start + self.bytes.len() as u64,
            complete: false,
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let at = offset
            .checked_sub(self.start)
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        if at.saturating_add(buf.len()) > self.bytes.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (to, from) in buf.iter_mut().zip(self.bytes.range(at..)) {
            *to = *from;
        }
        Ok(())
    }

    fn memory_at(&self, offset: u64) -> Option<&[u8]> {
        let at = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        let (front, back) = self.bytes.as_slices();
        match at.checked_sub(front.len()) {
            None => front.get(at..),
            Some(at) => back.get(at..),
        }
    }

    fn file_at(&self, _: u64) -> Option<FileRange<'_>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = PAGE_BYTES as u64;

    fn octets(from: u64, len: usize) -> Vec<u8> {
        (from..).take(len).map(|at| at.to_le_bytes()[0]).collect()
    }

    fn there(memory: &Memory, position: u64, len: usize) -> Vec<u8> {
        let mut there = Vec::new();
        memory.visit(position, len, |piece| there.extend_from_slice(piece));
        there
    }

    #[test]
    fn what_is_placed_across_pages_and_round_the_end_lies_there() {
        // No whole number of pages: the last one is used in part.
        let bytes = 3 * PAGE + 1_000;
        let mut memory = Memory::new(bytes, 4);
        for position in [0, PAGE - 1, 2 * PAGE + 500, bytes - 3, 7 * bytes - 700] {
            let sent = octets(position, 2_000);
            let parts = [
                IoSlice::new(&sent[..700]),
                IoSlice::new(&[]),
                IoSlice::new(&sent[700..]),
            ];
            memory.place(position, &parts).unwrap();
            assert_eq!(there(&memory, position, 2_000), sent, "{position}");
        }
        assert_eq!(there(&memory, 0, 1_300), octets(7 * bytes, 1_300));
    }

    #[test]
    fn only_pages_that_are_used_and_allowed_are_taken() {
        let mut memory = Memory::new(64 * PAGE, 2);
        let taken = |memory: &Memory| memory.pages.iter().flatten().count();
        assert_eq!(taken(&memory), 0);
        let part = [1_u8; 8];
        for position in [5 * PAGE - 4, 5 * PAGE + 100, 69 * PAGE - 9] {
            memory.place(position, &[IoSlice::new(&part)]).unwrap();
        }
        assert_eq!(taken(&memory), 2);
        let refused = memory.place(0, &[IoSlice::new(&part)]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::QuotaExceeded);
        memory.open();
        for page in 0..64 {
            let at = page * PAGE;
            memory.place(at, &[IoSlice::new(&part)]).unwrap();
        }
        assert_eq!(taken(&memory), 64);
    }

    #[test]
    fn what_is_to_be_sent_never_takes_more_than_it_may() {
        const MOST: usize = 100_000;
        let mut pending = Pending::default();
        let mut position = 0;
        for _ in 0..50 {
            while pending.bytes.len() < MOST {
                let len = 7_001.min(MOST - pending.bytes.len());
                pending.push(&octets(position, len), MOST).unwrap();
                position += len as u64;
            }
            assert!(pending.bytes.capacity() <= MOST);
            pending.release(position - 20_000);
            let mut read = vec![0; 20_000];
            pending.read_at(position - 20_000, &mut read).unwrap();
            assert_eq!(read, octets(position - 20_000, 20_000));
        }
    }
}
