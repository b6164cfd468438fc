//! One mapping, cut into regions that come back when they are dropped.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use crate::mapping::{Mapping, Pages};
use crate::piece::{Piece, Shared};
use crate::region::{Hold, Region};

/// Memory for regions, mapped once. Cutting is for set-up, not for the data path: it takes a lock.
#[derive(Debug, Clone)]
pub struct Arena(Arc<Shared>);

/// Every region starts on its own cache line, or the owner of a neighbour slows it down.
const ALIGN: usize = 64;

impl Arena {
    /// Maps at least `len` bytes, zeroed: on reserved huge pages if the machine has enough of them,
    /// else asking the kernel for transparent ones.
    ///
    /// # Errors
    /// `InvalidInput` for zero or an impossible length; else that of `mmap(2)`.
    pub fn new(len: usize) -> io::Result<Self> {
        let mapping = Mapping::new(len)?;
        let free = Mutex::new(BTreeMap::from([(0, mapping.len())]));
        Ok(Self(Arc::new(Shared { mapping, free })))
    }

    /// Cuts `len` bytes off, on a cache line of their own; none where no free piece is long enough,
    /// or for zero. The content is zero at first use and what the previous owner left later.
    #[must_use]
    pub fn region(&self, len: usize) -> Option<Region> {
        let taken = len
            .checked_next_multiple_of(ALIGN)
            .filter(|taken| *taken > 0)?;
        let mut free = self.0.free.lock().unwrap_or_else(PoisonError::into_inner);
        let (&offset, &room) = free.iter().find(|(_, room)| **room >= taken)?;
        free.remove(&offset);
        if room > taken {
            free.insert(offset + taken, room - taken);
        }
        drop(free);
        let piece = Piece {
            arena: Arc::clone(&self.0),
            offset,
            len: taken,
        };
        Some(Region::new(piece.start(), len, Hold::Piece(piece)))
    }

    /// Bytes in all, free and taken.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.mapping.len()
    }

    /// Bytes in free pieces.
    #[must_use]
    pub fn available(&self) -> usize {
        let free = self.0.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.values().sum()
    }

    /// What pages it lies on.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.0.mapping.pages()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_back_and_join() {
        let arena = Arena::new(4096).unwrap();
        let regions: Vec<_> = (0..4).map(|_| arena.region(1000).unwrap()).collect();
        assert!(arena.region(1).is_none());
        for index in [2, 0, 3, 1] {
            drop(regions[index].clone());
        }
        assert_eq!(arena.available(), 0);
        drop(regions);
        assert_eq!(arena.available(), 4096);
        assert_eq!(arena.region(4096).unwrap().len(), 4096);
    }

    #[test]
    fn regions_do_not_overlap() {
        let arena = Arena::new(1 << 16).unwrap();
        let count = if cfg!(miri) { 10 } else { 100 };
        let regions: Vec<_> = (1..count).map_while(|len| arena.region(len * 7)).collect();
        for (number, region) in (1_u8..).zip(&regions) {
            region.fill(0, region.len(), number).unwrap();
        }
        for (number, region) in (1_u8..).zip(&regions) {
            let mut bytes = vec![0; region.len()];
            region.read(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == number));
        }
    }
}
