//! Memory of the application that the engine does not map: its bytes are copied into memory that it
//! maps when a request is posted, and out of it when one is complete.
//!
//! That is enough for what this end sends, receives and reads. A peer's own access has no such
//! moment, so regions with rights for peers must be shared (docs/adr/0061).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use haul_slab::Region;
use haul_verbs::Sge;

/// A region and its double.
#[derive(Debug)]
pub(super) struct Bounce {
    pub(super) own: Region,
    pub(super) shared: Region,
    /// The address of its first byte.
    pub(super) base: u64,
}

/// The regions of a context, by their keys.
#[derive(Debug, Default)]
pub(super) struct Bounces {
    /// Whether there was ever one: most contexts have none.
    any: AtomicBool,
    by_key: RwLock<HashMap<u32, Arc<Bounce>>>,
}

impl Bounces {
    pub(super) fn insert(&self, lkey: u32, bounce: Bounce) {
        let mut by_key = self.by_key.write().unwrap_or_else(PoisonError::into_inner);
        by_key.insert(lkey, Arc::new(bounce));
        self.any.store(true, Ordering::Release);
    }

    pub(super) fn remove(&self, lkey: u32) {
        if self.any.load(Ordering::Acquire) {
            let mut by_key = self.by_key.write().unwrap_or_else(PoisonError::into_inner);
            by_key.remove(&lkey);
        }
    }

    fn get(&self, lkey: u32) -> Option<Arc<Bounce>> {
        let by_key = self.by_key.read().unwrap_or_else(PoisonError::into_inner);
        by_key.get(&lkey).cloned()
    }

    /// Copies what is to be sent to where the engine reads it.
    pub(super) fn copy_in(&self, pieces: &[Sge]) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        for piece in pieces {
            if let Some(bounce) = self.get(piece.lkey) {
                bounce.copy(&bounce.own, &bounce.shared, piece, piece.len);
            }
        }
    }

    /// The pieces whose bytes are to be copied when a request is complete: none, or all of it.
    pub(super) fn to_copy_out(&self, pieces: &[Sge]) -> Option<Box<[Sge]>> {
        let is_known = |piece: &Sge| self.get(piece.lkey).is_some();
        let any = self.any.load(Ordering::Acquire) && pieces.iter().any(is_known);
        any.then(|| pieces.into())
    }

    /// Copies the first `len` bytes of a message to the application.
    pub(super) fn copy_out(&self, pieces: &[Sge], mut len: u32) {
        for piece in pieces {
            let part = piece.len.min(len);
            len -= part;
            if let Some(bounce) = self.get(piece.lkey) {
                bounce.copy(&bounce.shared, &bounce.own, piece, part);
            }
        }
    }
}

impl Bounce {
    /// A piece that is outside of the region is the engine's to refuse.
    fn copy(&self, from: &Region, to: &Region, piece: &Sge, len: u32) {
        let Ok(mut at) = usize::try_from(piece.addr.wrapping_sub(self.base)) else {
            return;
        };
        let len = len as usize;
        let _ = from.visit(at, len, |bytes| {
            let _ = to.write(at, bytes);
            at += bytes.len();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_copied_where_their_pieces_are() {
        let region = || Region::map(4096).unwrap();
        let (own, shared) = (region(), region());
        let bounces = Bounces::default();
        let piece = |addr, len| Sge { addr, len, lkey: 7 };
        assert_eq!(bounces.to_copy_out(&[piece(1_000, 4)]), None);
        bounces.insert(
            7,
            Bounce {
                own: own.clone(),
                shared: shared.clone(),
                base: 1_000,
            },
        );
        own.write(10, b"abcdef").unwrap();
        bounces.copy_in(&[piece(1_010, 6), piece(9_000, 8), piece(0, 8)]);
        let read = |region: &Region, at: usize| {
            let mut bytes = [0; 6];
            region.read(at, &mut bytes).unwrap();
            bytes
        };
        assert_eq!(&read(&shared, 10), b"abcdef");
        shared.write(20, b"ghijkl").unwrap();
        let pieces = bounces.to_copy_out(&[piece(1_020, 2), piece(1_024, 2)]);
        bounces.copy_out(&pieces.unwrap(), 3);
        assert_eq!(&read(&own, 20), b"gh\0\0k\0");
        bounces.remove(7);
        assert_eq!(bounces.to_copy_out(&[piece(1_000, 4)]), None);
    }
}
