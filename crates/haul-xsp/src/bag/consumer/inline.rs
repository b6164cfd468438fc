//! Slabs whose bytes come with their announcements.

use super::{Consumer, Inline};
use crate::wire::SlabAnnounce;

impl Consumer {
    /// Returns the placement of bytes that arrived inline in their announcement.
    pub(super) fn take_inline(&mut self, slab: &SlabAnnounce) {
        let mut octets = slab.inline.as_slice();
        for (index, record) in slab.records.iter().enumerate() {
            let Some((mut own, rest)) = octets.split_at_checked(record.len as usize) else {
                return;
            };
            octets = rest;
            let is_done = self.item(slab.seq, index).is_none_or(|item| item.done);
            if is_done || !self.is_wanted(record.conn) {
                continue;
            }
            let places: Vec<_> = self
                .places(record.conn, record.offset, u64::from(record.len))
                .collect();
            for (at, len) in places {
                let len = usize::try_from(len).map_or(own.len(), |len| len.min(own.len()));
                let (part, rest) = own.split_at(len);
                own = rest;
                let octets = part.to_vec();
                self.inline.push_back(Inline { at, octets });
            }
        }
    }

    /// Returns bytes to be copied to the arena before any other call, also if the input was an
    /// error: they count as placed.
    pub fn poll_inline(&mut self) -> Option<Inline> {
        self.inline.pop_front()
    }
}
