//! N regions, filled in turn. The one being filled is divided into partitions, one for each
//! connection with data; their size follows from their recent number. A region is filled again as
//! far as its front is free: the rest need not be acknowledged yet.

use std::collections::BTreeMap;

use crate::bag::{Memory, Place};
use crate::{ConnId, RegionId};

/// Least bytes of a partition.
const PARTITION_MIN: u64 = 4 << 10;
/// But if a connection's first bytes are so few, its first one is no longer than this, so that
/// connections with little data share pages.
const PARTITION_FIRST: u64 = 1 << 10;
/// Where bytes of the last time are in the way, nothing is cut off before this part of a region is
/// free: else partitions become as small as acknowledgements are.
const FREE_SHARE: u64 = 16;

/// In the last region with free space, a connection that holds more than this leaves one part in
/// [`KEPT_SHARE`] to those that hold less: else they would wait for acknowledgements of others.
const HEAVY: u64 = 64 << 10;
const KEPT_SHARE: u64 = 16;

/// Memory to be filled now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fill {
    /// Which region.
    pub region: RegionId,
    /// From where in it, bytes.
    pub at: u64,
    /// How much, bytes.
    pub len: u64,
}

#[derive(Debug, Default)]
struct Region {
    /// Bytes assigned so far in this pass. Ranges at or after this offset belong to the previous
    /// pass.
    cut: u64,
    /// Ranges in use: start and bytes. They do not overlap.
    ranges: BTreeMap<u64, u64>,
    /// Bytes of them.
    held: u64,
    /// Partitions that may still be filled.
    open: u32,
}

impl Region {
    /// Returns the bytes from `cut` to the next range of the previous pass, or to the end at
    /// `bytes`.
    fn room(&self, cut: u64, bytes: u64) -> u64 {
        let held = self.ranges.range(cut..).next().map(|(at, _)| *at);
        match held.filter(|held| *held < bytes) {
            Some(held) if held - cut < bytes / FREE_SHARE => 0,
            Some(held) => held - cut,
            None => bytes.saturating_sub(cut),
        }
    }

    fn hold(&mut self, at: u64, len: u64) {
        self.held += len;
        if let Some((&before, held)) = self.ranges.range_mut(..at).next_back()
            && before + *held == at
        {
            *held += len;
            return;
        }
        self.ranges.insert(at, len);
    }

    /// A part of one of the ranges is free.
    fn free(&mut self, at: u64, len: u64) {
        let Some((&from, held)) = self.ranges.range_mut(..=at).next_back() else {
            return;
        };
        let end = from + *held;
        self.held -= len;
        *held = at - from;
        if at == from {
            self.ranges.remove(&from);
        }
        if at + len < end {
            self.ranges.insert(at + len, end - at - len);
        }
    }
}

#[derive(Debug)]
struct Partition {
    region: usize,
    at: u64,
    /// `reserved <= left`
    left: u64,
    reserved: u64,
    /// The first of its connection of late, and nothing is in it.
    is_first: bool,
}

#[derive(Debug)]
pub(super) struct Ring {
    regions: Vec<Region>,
    region_bytes: u64,
    filling: usize,
    partitions: BTreeMap<ConnId, Partition>,
    /// Each connection that has filled memory of late: bytes that it holds, and the last
    /// generation that it had a part of.
    users: BTreeMap<ConnId, (u64, u64)>,
    /// Counts regions begun.
    generation: u64,
    /// The region that was being filled is full.
    completed: bool,
}

impl Ring {
    pub(super) fn new(regions: u16, region_bytes: u64) -> Self {
        Self {
            regions: (0..regions).map(|_| Region::default()).collect(),
            region_bytes,
            filling: 0,
            partitions: BTreeMap::new(),
            users: BTreeMap::new(),
            generation: 0,
            completed: false,
        }
    }

    pub(super) const fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    pub(super) fn set_region_bytes(&mut self, bytes: u64) {
        self.region_bytes = bytes;
    }

    pub(super) fn used(&self) -> u64 {
        self.regions.iter().map(|region| region.held).sum()
    }

    /// Returns whether a region has become full since the last call: its data should not wait for
    /// the next one.
    pub(super) fn take_completed(&mut self) -> bool {
        std::mem::take(&mut self.completed)
    }

    pub(super) fn reserve(&mut self, conn: ConnId, want: u64) -> Option<Fill> {
        if self.users.len() > 1
            && self
                .users
                .get(&conn)
                .is_some_and(|(held, _)| *held >= self.most_for_one())
        {
            return None;
        }
        if !self.partitions.contains_key(&conn) {
            self.cut(conn)?;
        }
        let partition = self.partitions.get_mut(&conn)?;
        partition.reserved = partition.left.min(want);
        Some(Fill {
            region: region_id(partition.region),
            at: partition.at,
            len: partition.reserved,
        })
    }

    fn cut(&mut self, conn: ConnId) -> Option<()> {
        let region = &self.regions[self.filling];
        if region.cut > 0 && region.held == 0 && region.open == 0 {
            self.begin(self.filling);
        } else if self.room() == 0 {
            let next = self.next()?;
            self.close_region(self.filling);
            self.begin(next);
        }
        let is_first = !self.users.contains_key(&conn);
        self.users.entry(conn).or_default().1 = self.generation;
        let share = self.region_bytes / self.users.len() as u64;
        let mut len = share.max(PARTITION_MIN).min(self.room());
        let held = self.users.get(&conn).map_or(0, |(held, _)| *held);
        let (is_alone, is_last) = (self.users.len() == 1, !self.has_other_room());
        if !is_alone {
            // No more than it may fill: the rest would be of no use to anybody.
            let may = self.most_for_one().saturating_sub(held);
            len = len.min(may.max(PARTITION_MIN));
        }
        if is_last {
            let part = self.room() / self.users.len() as u64;
            len = len.min(part.max(PARTITION_MIN));
        }
        if is_last && held > HEAVY {
            // Also for a later connection.
            let kept = self.region_bytes / KEPT_SHARE;
            len = len.min(self.room().saturating_sub(kept));
        }
        if len == 0 {
            return None;
        }
        let region = &mut self.regions[self.filling];
        let at = region.cut;
        region.cut += len;
        region.open += 1;
        let partition = Partition {
            region: self.filling,
            at,
            left: len,
            reserved: 0,
            is_first,
        };
        self.partitions.insert(conn, partition);
        Some(())
    }

    fn room(&self) -> u64 {
        let region = &self.regions[self.filling];
        region.room(region.cut, self.region_bytes)
    }

    /// The region to be filled when there is no room in this one. One whose front alone is free is
    /// for when this one has been cut to its end: else what is in the way here would divide that
    /// one too.
    fn next(&self) -> Option<usize> {
        let n = self.regions.len();
        let is_through = self.regions[self.filling].cut >= self.region_bytes;
        let has_room = |index: &usize| {
            let region = &self.regions[*index];
            let has_front = is_through && region.room(0, self.region_bytes) > 0;
            region.open == 0 && (region.held == 0 || has_front)
        };
        (1..n).map(|step| (self.filling + step) % n).find(has_room)
    }

    /// Whether any region but the one that is being filled has room, if only in its front.
    fn has_other_room(&self) -> bool {
        let others = self.regions.iter().enumerate();
        let mut others = others.filter(|(index, _)| *index != self.filling);
        others.any(|(_, region)| region.open == 0 && region.room(0, self.region_bytes) > 0)
    }

    fn begin(&mut self, index: usize) {
        self.filling = index;
        self.regions[index].cut = 0;
        self.generation += 1;
        let old = self.generation.saturating_sub(self.regions.len() as u64);
        self.users
            .retain(|_, (held, last)| *held > 0 || *last >= old);
    }

    /// Twice the free memory, if others need some: one connection gets two thirds, and each of
    /// eight two seventeenths, in any order (dynamic thresholds, Choudhury and Hahne 1998).
    fn most_for_one(&self) -> u64 {
        let all = self.region_bytes * self.regions.len() as u64;
        all.saturating_sub(self.used()) * 2
    }

    /// Closes a region for new data, except for partitions that are being filled.
    fn close_region(&mut self, index: usize) {
        let idle = |partition: &Partition| partition.region == index && partition.reserved == 0;
        let regions = &mut self.regions;
        self.partitions.retain(|_, partition| {
            let close = idle(partition);
            regions[index].open -= u32::from(close);
            !close
        });
    }

    pub(super) fn commit(&mut self, conn: ConnId, len: u64) -> Option<Place> {
        let partition = self.partitions.get_mut(&conn)?;
        let len = len.min(std::mem::take(&mut partition.reserved));
        if std::mem::take(&mut partition.is_first) {
            self.shorten(conn, len);
        }
        let partition = self.partitions.get_mut(&conn)?;
        let place = Place {
            memory: Memory::Region(region_id(partition.region)),
            at: partition.at,
            len,
        };
        partition.at += len;
        partition.left -= len;
        let region = &mut self.regions[partition.region];
        if len > 0 {
            region.hold(place.at, len);
        }
        self.users.entry(conn).or_default().0 += len;
        if partition.left == 0 || partition.region != self.filling {
            region.open -= 1;
            self.completed |= region.open == 0 && region.cut >= self.region_bytes;
            self.partitions.remove(&conn);
        }
        (len > 0).then_some(place)
    }

    /// The first `len` bytes of a connection are about to be written to its partition: returns its
    /// excess to others.
    fn shorten(&mut self, conn: ConnId, len: u64) {
        let Some(partition) = self.partitions.get_mut(&conn) else {
            return;
        };
        let region = &mut self.regions[partition.region];
        let is_last =
            partition.region == self.filling && partition.at + partition.left == region.cut;
        if !is_last || len > PARTITION_FIRST || partition.left <= PARTITION_FIRST {
            return;
        }
        if len > 0 {
            region.cut = partition.at + PARTITION_FIRST;
            partition.left = PARTITION_FIRST;
        } else {
            region.cut = partition.at;
            region.open -= 1;
            self.partitions.remove(&conn);
            self.users.remove(&conn);
        }
    }

    /// The connection is gone: drops its reservation, which the engine no longer fills.
    pub(super) fn close_partition(&mut self, conn: ConnId) {
        if let Some(partition) = self.partitions.remove(&conn) {
            self.regions[partition.region].open -= 1;
        }
    }

    pub(super) fn free(&mut self, conn: ConnId, place: Place) {
        let Memory::Region(region) = place.memory else {
            return;
        };
        self.regions[usize::from(region.0)].free(place.at, place.len);
        if let Some((held, _)) = self.users.get_mut(&conn) {
            *held -= place.len;
        }
    }
}

fn region_id(index: usize) -> RegionId {
    RegionId(u16::try_from(index).unwrap_or(u16::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    fn fill(ring: &mut Ring, conn: u32, want: u64) -> Option<Place> {
        let fill = ring.reserve(ConnId(conn), want)?;
        ring.commit(ConnId(conn), fill.len)
    }

    #[test]
    fn one_connection_has_whole_regions_and_then_waits() {
        let mut ring = Ring::new(3, 16 * KIB);
        let places: Vec<Place> = std::iter::from_fn(|| fill(&mut ring, 1, 16 * KIB)).collect();
        assert_eq!(places.len(), 3);
        assert_eq!(ring.reserve(ConnId(1), KIB), None);
        ring.free(ConnId(1), places[0]);
        let again = fill(&mut ring, 1, u64::MAX).unwrap();
        assert_eq!(again, places[0]);
    }

    #[test]
    fn partitions_are_cut_anew_as_connections_come_and_go() {
        let mut ring = Ring::new(3, 32 * KIB);
        let mut lens = Vec::new();
        for conn in [1, 2, 3, 4, 1, 2] {
            let place = fill(&mut ring, conn, u64::MAX).unwrap();
            lens.push(place.len / KIB);
            ring.free(ConnId(conn), place);
        }
        // Alone; the second, and what is left of its region for the third; quarters from then on.
        assert_eq!(lens, [32, 16, 10, 8, 8, 8]);
        for _ in 0..20 {
            let place = fill(&mut ring, 4, u64::MAX).unwrap();
            lens.push(place.len / KIB);
            ring.free(ConnId(4), place);
        }
        assert_eq!(lens.last(), Some(&32), "the others have gone quiet");
    }

    #[test]
    fn connections_with_little_data_share_pages() {
        let mut ring = Ring::new(3, 64 * KIB);
        let mut say = |conn, len| {
            ring.reserve(ConnId(conn), u64::MAX).unwrap();
            ring.commit(ConnId(conn), len)
                .map(|place| (place.at, place.len))
        };
        // A connection that has not sent anything holds nothing.
        assert_eq!(say(9, 0), None);
        for conn in 0..4 {
            assert_eq!(say(conn, 1), Some((u64::from(conn) * KIB, 1)));
        }
        assert_eq!(say(2, 10), Some((2 * KIB + 1, 10)));
        // A connection that begins with more has its share.
        assert_eq!(say(5, 2 * KIB), Some((4 * KIB, 2 * KIB)));
        assert_eq!(say(5, 1), Some((6 * KIB, 1)));
        // And so has one that continues.
        assert_eq!(say(0, KIB - 1), Some((1, KIB - 1)));
        let next = say(0, 4 * KIB).unwrap();
        assert_eq!(next.1, 4 * KIB);
        assert!(next.0 >= 4 * KIB + 64 * KIB / 5, "{next:?}");
    }

    #[test]
    fn repeated_empty_requests_evict_no_peer() {
        let mut ring = Ring::new(3, 8 * KIB);
        let place = fill(&mut ring, 1, u64::MAX).unwrap();
        for _ in 0..20 {
            ring.reserve(ConnId(2), u64::MAX).unwrap();
            assert_eq!(ring.commit(ConnId(2), 0), None);
        }
        assert_eq!((ring.generation, ring.users.len()), (1, 1));
        ring.free(ConnId(1), place);
    }

    #[test]
    fn no_connection_holds_more_than_two_thirds_while_others_need_some() {
        let mut ring = Ring::new(8, 64 * KIB);
        fill(&mut ring, 2, KIB).unwrap();
        let mut fill_all = |conn| -> u64 {
            let places = std::iter::from_fn(|| fill(&mut ring, conn, 4 * KIB));
            places.map(|place| place.len).sum()
        };
        let held = fill_all(1);
        assert!((338 * KIB..=345 * KIB).contains(&held), "{held}");
        // Twice the remaining memory, for any connection.
        let later = fill_all(3);
        assert!((108 * KIB..=116 * KIB).contains(&later), "{later}");
        assert!(fill(&mut ring, 2, KIB).is_some());
    }

    #[test]
    fn a_single_connection_leaves_memory_for_others() {
        let mut ring = Ring::new(8, 64 * KIB);
        let fill_all = |ring: &mut Ring| -> Vec<Place> {
            std::iter::from_fn(|| fill(ring, 1, 4 * KIB)).collect()
        };
        let mut held = fill_all(&mut ring);
        assert_eq!(ring.used(), (8 * 64 - 4) * KIB);
        // Also after it has gone on, and shares the ring.
        for turn in 0..200 {
            held.drain(..4)
                .for_each(|place| ring.free(ConnId(1), place));
            held.extend(fill_all(&mut ring));
            assert!(ring.used() >= 300 * KIB, "{turn}");
            let place = fill(&mut ring, 2, KIB).unwrap();
            ring.free(ConnId(2), place);
        }
    }

    #[test]
    fn a_region_is_filled_anew_as_far_as_its_front_is_free() {
        let mut ring = Ring::new(3, 16 * KIB);
        let places: Vec<Place> = std::iter::from_fn(|| fill(&mut ring, 1, 4 * KIB)).collect();
        assert_eq!(places.len(), 12);
        // Ranges after the front are not reached.
        ring.free(ConnId(1), places[1]);
        assert_eq!(ring.reserve(ConnId(1), KIB), None);
        ring.free(ConnId(1), places[0]);
        let mut again = || fill(&mut ring, 1, u64::MAX);
        assert_eq!(
            again().map(|place| (place.at, place.len)),
            Some((0, 8 * KIB))
        );
        assert_eq!(again(), None);
        ring.free(ConnId(1), places[2]);
        assert_eq!(fill(&mut ring, 1, u64::MAX), Some(places[2]));
        // Further regions wait until this one has been cut to its end, unless all of them is free.
        ring.free(ConnId(1), places[4]);
        assert_eq!(fill(&mut ring, 1, u64::MAX), None);
        (8..12).for_each(|index| ring.free(ConnId(1), places[index]));
        assert_eq!(fill(&mut ring, 1, 4 * KIB), Some(places[8]));
    }

    #[test]
    fn nothing_is_handed_out_that_is_held() {
        let (mut ring, mut state) = (Ring::new(4, 64 * KIB), 11_u64);
        let mut held: Vec<(u32, Place)> = Vec::new();
        let mut dice = move |sides: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            usize::try_from(state >> 33).unwrap() % sides
        };
        let mut filled = 0;
        for _ in 0..50_000 {
            let conn = u32::try_from(dice(5)).unwrap();
            if dice(2) == 0 {
                let want = 1 + dice(20) as u64 * 500;
                let Some(place) = fill(&mut ring, conn, want) else {
                    continue;
                };
                filled += place.len;
                let overlaps = |(_, other): &(u32, Place)| {
                    let before = place.at + place.len <= other.at;
                    other.memory == place.memory && !before && other.at + other.len > place.at
                };
                assert!(!held.iter().any(overlaps), "{place:?} among {held:?}");
                held.push((conn, place));
            } else if !held.is_empty() {
                // Mostly in order, as slabs are acknowledged; in parts, as streams are delivered.
                let among = if dice(8) == 0 { held.len() } else { 1 };
                let index = dice(among);
                let (conn, place) = held[index];
                let len = if dice(3) == 0 {
                    1 + place.len / 2
                } else {
                    place.len
                };
                ring.free(ConnId(conn), Place { len, ..place });
                (held[index].1.at, held[index].1.len) = (place.at + len, place.len - len);
                held.retain(|(_, place)| place.len > 0);
            }
            let sum: u64 = held.iter().map(|(_, place)| place.len).sum();
            assert_eq!(ring.used(), sum);
        }
        assert!(filled > 100 * 256 * KIB, "{filled}");
        held.iter()
            .for_each(|(conn, place)| ring.free(ConnId(*conn), *place));
        assert!(ring.regions.iter().all(|region| region.ranges.is_empty()));
    }
}
