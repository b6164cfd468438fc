//! A piece of an arena, returned to it on drop.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use crate::mapping::Mapping;

/// The memory of an arena, which its pieces keep mapped.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) mapping: Mapping,
    /// Free pieces by offset; neighbours are joined.
    pub(crate) free: Mutex<BTreeMap<usize, usize>>,
}

/// A piece of an arena, given back on drop.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) arena: Arc<Shared>,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

impl Piece {
    pub(crate) fn start(&self) -> NonNull<u8> {
        // SAFETY: pieces are cut out of the mapping, so the offset lies in it.
        unsafe { self.arena.mapping.start().add(self.offset) }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let (mut offset, mut len) = (self.offset, self.len);
        let mut free = self
            .arena
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(next) = free.remove(&(offset + len)) {
            len += next;
        }
        if let Some((&before, &room)) = free.range(..offset).next_back()
            && before + room == offset
        {
            offset = before;
            len += room;
        }
        free.insert(offset, len);
    }
}
