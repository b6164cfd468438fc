//! A bounded table of state per source, which evicts the least recently active source.
//!
//! An attacker chooses source addresses, so the hash is keyed. The source of the last datagram is
//! found without it: in a train of datagrams, for all but the first.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::ops::{Index, IndexMut};

use siphasher::sip::SipHasher13;

use super::wire::MsgId;
use crate::address::Source;

/// Closed messages of a source that are remembered.
pub(super) const CLOSED: usize = 64;

const NONE: usize = usize::MAX;

/// The state of a source.
pub(super) trait Known: Default {
    /// Whether it may be evicted.
    fn is_idle(&self) -> bool;
}

#[derive(Debug)]
pub(super) struct Sources<T> {
    index: HashMap<Source, usize, Keyed>,
    entries: Vec<Entry<T>>,
    limit: usize,
    /// The entry that was used last, or [`NONE`].
    newest: usize,
    oldest: usize,
    /// Number of evictions and removals: references to entries from before are void.
    pub(super) generation: u64,
}

#[derive(Debug)]
struct Entry<T> {
    source: Source,
    state: T,
    newer: usize,
    older: usize,
}

/// Hashes with a secret key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keyed(pub(super) [u8; 16]);

impl BuildHasher for Keyed {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_key(&self.0)
    }
}

impl<T: Known> Sources<T> {
    /// At most `limit`, at least one.
    pub(super) fn new(limit: usize, key: [u8; 16]) -> Self {
        Self {
            index: HashMap::with_hasher(Keyed(key)),
            entries: Vec::new(),
            limit: limit.max(1),
            newest: NONE,
            oldest: NONE,
            generation: 0,
        }
    }

    /// The entry of a source, which is now the newest.
    pub(super) fn find(&mut self, source: &Source) -> Option<usize> {
        let entry = self.entries.get(self.newest)?;
        if entry.source == *source {
            return Some(self.newest);
        }
        let at = *self.index.get(source)?;
        self.touch(at);
        Some(at)
    }

    /// Returns the entry of a source; a new one evicts the oldest idle entry if the table is full.
    /// There must be an idle one.
    pub(super) fn enter(&mut self, source: &Source) -> usize {
        if let Some(at) = self.find(source) {
            return at;
        }
        let entry = Entry {
            source: *source,
            state: T::default(),
            newer: NONE,
            older: NONE,
        };
        let at = if self.entries.len() < self.limit {
            self.entries.push(entry);
            self.entries.len() - 1
        } else {
            let at = self.oldest_idle();
            self.unlink(at);
            self.index.remove(&self.entries[at].source);
            self.entries[at] = entry;
            self.generation += 1;
            at
        };
        self.index.insert(*source, at);
        self.link(at);
        at
    }

    /// Busy ones at the end are moved to the front, so that they are passed once and not each time.
    fn oldest_idle(&mut self) -> usize {
        for _ in 0..self.entries.len() {
            if self.entries[self.oldest].state.is_idle() {
                break;
            }
            self.touch(self.oldest);
        }
        debug_assert!(self.entries[self.oldest].state.is_idle());
        self.oldest
    }

    fn touch(&mut self, at: usize) {
        if at != self.newest {
            self.unlink(at);
            self.link(at);
        }
    }

    fn unlink(&mut self, at: usize) {
        let (newer, older) = (self.entries[at].newer, self.entries[at].older);
        match self.entries.get_mut(newer) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
        match self.entries.get_mut(older) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
    }

    fn link(&mut self, at: usize) {
        let second = self.newest;
        self.entries[at].newer = NONE;
        self.entries[at].older = second;
        match self.entries.get_mut(second) {
            Some(entry) => entry.newer = at,
            None => self.oldest = at,
        }
        self.newest = at;
    }
}

impl<T> Index<usize> for Sources<T> {
    type Output = T;

    fn index(&self, at: usize) -> &T {
        &self.entries[at].state
    }
}

impl<T> IndexMut<usize> for Sources<T> {
    fn index_mut(&mut self, at: usize) -> &mut T {
        &mut self.entries[at].state
    }
}

/// The messages of a source that were closed last.
#[derive(Debug)]
pub(super) struct Closed {
    ids: [u32; CLOSED],
    /// How many were closed in all; the next goes to this index, modulo the size.
    count: usize,
    newest: MsgId,
}

impl Default for Closed {
    fn default() -> Self {
        Self {
            ids: [0; CLOSED],
            count: 0,
            newest: MsgId(0),
        }
    }
}

impl Closed {
    pub(super) fn push(&mut self, id: MsgId) {
        if self.count == 0 || id.past(self.newest) > 0 {
            self.newest = id;
        }
        self.ids[self.count % CLOSED] = id.0;
        self.count += 1;
    }

    /// Returns whether a message was closed, or is older than all remembered ones: further segments
    /// are too late.
    pub(super) fn contains(&self, id: MsgId) -> bool {
        if self.count == 0 || id.past(self.newest) > 0 {
            return false;
        }
        let known = &self.ids[..self.count.min(CLOSED)];
        let is_older = |closed: &u32| MsgId(*closed).past(id) > 0;
        known.contains(&id.0) || self.count >= CLOSED && known.iter().all(is_older)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct State {
        busy: bool,
        value: u32,
    }

    impl Known for State {
        fn is_idle(&self) -> bool {
            !self.busy
        }
    }

    fn source(n: u32) -> Source {
        Source {
            addr: ([192, 0, 2, 1], 4_791).into(),
            qpn: n,
            epoch: 1,
        }
    }

    #[test]
    fn the_oldest_idle_source_makes_room() {
        let mut sources = Sources::<State>::new(3, [1; 16]);
        for n in 0..3 {
            let at = sources.enter(&source(n));
            sources[at] = State {
                busy: n == 0,
                value: n,
            };
        }
        let at = sources.find(&source(1)).unwrap();
        assert_eq!(sources[at].value, 1);
        sources.enter(&source(9));
        assert!(sources.find(&source(2)).is_none(), "older than 1, and idle");
        for n in [0, 1, 9] {
            assert!(sources.find(&source(n)).is_some(), "{n}");
        }
        assert_eq!(sources.generation, 1);
    }

    #[test]
    fn no_more_sources_are_kept_than_allowed_and_all_that_are_kept_are_found() {
        let mut sources = Sources::<State>::new(16, [2; 16]);
        let mut recent: Vec<u32> = Vec::new();
        let mut state = 1_u32;
        for _ in 0..5_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let n = (state >> 10) % 40;
            let at = sources.enter(&source(n));
            sources[at].value = n;
            recent.retain(|other| *other != n);
            recent.push(n);
            if recent.len() > 16 {
                recent.remove(0);
            }
            let probe = recent[recent.len() / 2];
            let at = sources.index[&source(probe)];
            assert_eq!(sources[at].value, probe);
            assert_eq!(sources.index.len(), recent.len());
        }
    }

    #[test]
    fn closed_messages_stay_closed_also_when_they_are_forgotten() {
        for start in [1, u32::MAX - 30] {
            let mut closed = Closed::default();
            for n in 0..200 {
                let id = MsgId(start).plus(n);
                assert!(!closed.contains(id), "{id:?}");
                closed.push(id);
                assert!(closed.contains(id));
                assert!(closed.contains(MsgId(start)), "after {n}");
            }
            assert!(!closed.contains(MsgId(start).plus(1_000)));
        }
        let mut gaps = Closed::default();
        for n in (0..400).step_by(4) {
            gaps.push(MsgId(n));
        }
        assert!(!gaps.contains(MsgId(394)), "overtaken by one message");
        assert!(gaps.contains(MsgId(2)), "overtaken by a hundred");
    }
}
