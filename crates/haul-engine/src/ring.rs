//! Rings in memory that two processes map: one writes entries, the other takes them.
//!
//! Neither end trusts the other. An end keeps its own index to itself, reads the other's once for
//! each look, and takes an index that cannot be as [`Broken`]. An entry is copied once, word by
//! word, and looked at afterwards.
//!
//! A ring is a slice of words of [`SharedMemory`]: the index of the producer, the index of the
//! consumer, words for what both agree on, each on a cache line of its own, then the entries.

use std::sync::atomic::{AtomicU64, Ordering};

use haul_slab::SharedMemory;

/// Words of a cache line.
const LINE: usize = 8;
/// Where the words are that come before the entries.
const PRODUCED: usize = 0;
const CONSUMED: usize = LINE;
const MARK: usize = 2 * LINE;
const ENTRIES: usize = 3 * LINE;

/// Entries of the longest ring.
pub(crate) const ENTRIES_MAX: u32 = 1 << 22;

/// The other end has written an index that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken;

/// Where a ring lies in shared memory: from a word on, with entries of `words` words each.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    memory: SharedMemory,
    start: usize,
    words: usize,
    entries: u32,
}

impl Place {
    /// Bytes of a ring with at least `entries` entries.
    pub(crate) fn bytes(entries: u32, words: usize) -> usize {
        (ENTRIES + words * Self::round(entries) as usize) * size_of::<u64>()
    }

    /// The ring that begins at byte `offset`, a multiple of 8; none if the memory is too short.
    pub(crate) fn new(
        memory: &SharedMemory,
        offset: usize,
        entries: u32,
        words: usize,
    ) -> Option<Self> {
        let end = offset.checked_add(Self::bytes(entries, words))?;
        let fits = entries <= ENTRIES_MAX && offset.is_multiple_of(8) && end <= memory.len();
        fits.then(|| Self {
            memory: memory.clone(),
            start: offset / size_of::<u64>(),
            words,
            entries: Self::round(entries),
        })
    }

    fn round(entries: u32) -> u32 {
        entries.clamp(1, ENTRIES_MAX).next_power_of_two()
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.memory.words()[self.start + index]
    }

    /// The words of the entry with this number.
    fn entry(&self, number: u32) -> &[AtomicU64] {
        let index = (number & (self.entries - 1)) as usize;
        let start = self.start + ENTRIES + index * self.words;
        &self.memory.words()[start..start + self.words]
    }

    /// A word, one of eight, that both ends agree on what it means.
    pub(crate) fn mark(&self, word: usize) -> &AtomicU64 {
        self.word(MARK + word)
    }
}

/// The end that writes.
#[derive(Debug)]
pub(crate) struct Producer {
    place: Place,
    /// Entries written, and entries published.
    written: u32,
}

impl Producer {
    pub(crate) fn new(place: Place) -> Self {
        Self { place, written: 0 }
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Entries that there is room for.
    pub(crate) fn room(&self) -> Result<u32, Broken> {
        // Acquire: the consumer has copied what it gives back.
        let consumed = index(self.place.word(CONSUMED).load(Ordering::Acquire))?;
        let used = self.written.wrapping_sub(consumed);
        self.place.entries.checked_sub(used).ok_or(Broken)
    }

    /// Writes an entry behind the others. The caller has asked for room.
    pub(crate) fn write<const WORDS: usize>(&mut self, entry: &[u64; WORDS]) {
        for (to, from) in self.place.entry(self.written).iter().zip(entry) {
            to.store(*from, Ordering::Relaxed);
        }
        self.written = self.written.wrapping_add(1);
    }

    /// Shows the consumer what was written.
    pub(crate) fn publish(&self) {
        let produced = self.place.word(PRODUCED);
        // Release: the entries come first.
        produced.store(self.written.into(), Ordering::Release);
    }
}

/// The end that takes.
#[derive(Debug)]
pub(crate) struct Consumer {
    place: Place,
    taken: u32,
}

impl Consumer {
    pub(crate) fn new(place: Place) -> Self {
        Self { place, taken: 0 }
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Entries that are there.
    pub(crate) fn available(&self) -> Result<u32, Broken> {
        // Acquire: the entries were written before.
        let produced = index(self.place.word(PRODUCED).load(Ordering::Acquire))?;
        let available = produced.wrapping_sub(self.taken);
        if available > self.place.entries {
            return Err(Broken);
        }
        Ok(available)
    }

    /// The index behind the last entry that is there, which changes with each.
    pub(crate) fn end(&self) -> Result<u32, Broken> {
        Ok(self.taken.wrapping_add(self.available()?))
    }

    /// Copies the next entry. The caller has found it available.
    pub(crate) fn take<const WORDS: usize>(&mut self) -> [u64; WORDS] {
        let mut entry = [0; WORDS];
        for (to, from) in entry.iter_mut().zip(self.place.entry(self.taken)) {
            *to = from.load(Ordering::Relaxed);
        }
        self.taken = self.taken.wrapping_add(1);
        entry
    }

    /// Gives the room of what was taken back.
    pub(crate) fn release(&self) {
        let consumed = self.place.word(CONSUMED);
        // Release: the copies come first.
        consumed.store(self.taken.into(), Ordering::Release);
    }
}

fn index(word: u64) -> Result<u32, Broken> {
    u32::try_from(word).map_err(|_| Broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(entries: u32) -> (Producer, Consumer) {
        let memory = SharedMemory::create(Place::bytes(entries, 2)).unwrap();
        let place = || Place::new(&memory, 0, entries, 2).unwrap();
        (Producer::new(place()), Consumer::new(place()))
    }

    #[test]
    fn entries_arrive_in_order_over_many_rounds() {
        let (mut producer, mut consumer) = ends(5);
        let (mut sent, mut seen) = (0, 0);
        while seen < 1_000 {
            for _ in 0..producer.room().unwrap().min(3) {
                producer.write(&[sent, !sent]);
                sent += 1;
            }
            assert_eq!(consumer.available(), Ok(0));
            producer.publish();
            for _ in 0..consumer.available().unwrap() {
                assert_eq!(consumer.take(), [seen, !seen]);
                seen += 1;
            }
            consumer.release();
        }
    }

    #[test]
    fn a_full_ring_has_no_room() {
        let (mut producer, mut consumer) = ends(8);
        for number in 0..8 {
            assert_eq!(producer.room(), Ok(8 - u32::try_from(number).unwrap()));
            producer.write(&[number, 0]);
        }
        producer.publish();
        assert_eq!(producer.room(), Ok(0));
        assert_eq!(consumer.take(), [0, 0]);
        assert_eq!(producer.room(), Ok(0));
        consumer.release();
        assert_eq!(producer.room(), Ok(1));
    }

    #[test]
    fn an_index_that_cannot_be_is_noticed() {
        for wrong in [9, 1 << 31, (1 << 32) - 9, 1 << 32, u64::MAX] {
            let (producer, consumer) = ends(8);
            consumer
                .place
                .word(PRODUCED)
                .store(wrong, Ordering::Relaxed);
            assert_eq!(consumer.available(), Err(Broken));
            producer
                .place
                .word(CONSUMED)
                .store(wrong, Ordering::Relaxed);
            assert_eq!(producer.room(), Err(Broken));
        }
    }

    #[test]
    fn a_ring_lies_inside_its_memory() {
        let memory = SharedMemory::create(4096).unwrap();
        assert!(Place::new(&memory, 0, 16, 16).is_some());
        assert!(Place::new(&memory, 4, 16, 16).is_none());
        assert!(Place::new(&memory, 2048, 16, 16).is_none());
        assert!(Place::new(&memory, usize::MAX - 7, 1, 1).is_none());
        assert!(Place::new(&memory, 0, u32::MAX, 1).is_none());
    }
}
