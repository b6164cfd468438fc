//! A file as a tree of blocks whose hashes join to the plain BLAKE3 hash of the file.
//!
//! A block is a subtree of BLAKE3's own tree, so its chaining value can be computed, exchanged and
//! checked by itself, in any order, and the values of all blocks merge to the hash that `b3sum`
//! prints.

use blake3::Hasher;
use blake3::hazmat::{self, ChainingValue, HasherExt, Mode};

/// Minimum block, bytes.
const BLOCK_MIN: u64 = 1 << 20;
/// Maximum number of blocks of a file.
const BLOCKS_MAX: u64 = 1 << 16;
/// Minimum piece of a block for repair, bytes: a page, which databases and disk images change.
const PIECE_MIN: u64 = 4 << 10;
/// Maximum piece where blocks are small enough: a dozen packets, so that one piece in two arrives
/// whole if one packet in 20 is damaged.
const PIECE_MAX: u64 = 16 << 10;
/// Number of pieces above which larger ones, up to [`PIECE_MAX`], cost less than their digests.
const PIECES: u64 = 1 << 10;
/// Maximum number of pieces of a block: their digests fit into one message.
const PIECES_MAX: u64 = 1 << 16;
/// Maximum file, bytes: the range of `off_t`.
pub(crate) const SIZE_MAX: u64 = i64::MAX.unsigned_abs();

/// Digest of one block: a chaining value, or the root hash of a file of one block.
pub(crate) type Digest = ChainingValue;

/// Division of a file into blocks. Both ends derive it from the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Blocks {
    size: u64,
    block: u64,
}

impl Blocks {
    pub(crate) fn new(size: u64) -> Self {
        let block = size.div_ceil(BLOCKS_MAX).next_power_of_two().max(BLOCK_MIN);
        Self { size, block }
    }

    /// Returns the length of all blocks, bytes.
    pub(crate) const fn len(self) -> u64 {
        self.size
    }

    /// Returns the length of each block but the last, bytes.
    pub(crate) fn block_size(self) -> u64 {
        self.block
    }

    /// Returns the number of blocks; 0 for an empty file.
    pub(crate) fn count(self) -> u32 {
        u32::try_from(self.size.div_ceil(self.block)).unwrap_or(u32::MAX)
    }

    /// Returns position and length of the blocks `first..first + count`, bytes.
    pub(crate) fn range(self, first: u32, count: u32) -> (u64, u64) {
        let start = (u64::from(first) * self.block).min(self.size);
        let end = (u64::from(first) + u64::from(count))
            .saturating_mul(self.block)
            .min(self.size);
        (start, end - start)
    }

    /// Starts hashing block `index`.
    pub(crate) fn hasher(self, index: u32) -> BlockHasher {
        let mut hasher = Hasher::new();
        hasher.set_input_offset(u64::from(index) * self.block);
        BlockHasher {
            hasher,
            whole_file: self.count() == 1,
        }
    }

    /// Returns how block `index` is divided for repair.
    pub(crate) fn pieces(self, index: u32) -> Pieces {
        let (start, len) = self.range(index, 1);
        let piece = (self.block / PIECES).clamp(PIECE_MIN, PIECE_MAX);
        Pieces {
            start,
            len,
            piece: piece.max(self.block / PIECES_MAX),
            whole_file: self.count() == 1,
        }
    }

    /// Merges the digests of all blocks, in order, to the BLAKE3 hash of the file.
    pub(crate) fn root(self, digests: &[Digest]) -> blake3::Hash {
        debug_assert_eq!(digests.len(), self.count() as usize);
        match digests {
            [] => blake3::hash(b""),
            [only] => blake3::Hash::from_bytes(*only),
            _ => root(digests),
        }
    }
}

/// Division of a block into pieces for repair: subtrees, as blocks are of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pieces {
    start: u64,
    len: u64,
    piece: u64,
    whole_file: bool,
}

impl Pieces {
    /// Returns the number of pieces.
    pub(crate) fn count(self) -> u32 {
        u32::try_from(self.len.div_ceil(self.piece)).unwrap_or(u32::MAX)
    }

    /// Returns the length of the block, bytes.
    pub(crate) const fn len(self) -> u64 {
        self.len
    }

    /// Returns position in the file and length of the pieces `first..first + count`, bytes.
    pub(crate) fn range(self, first: u32, count: u32) -> (u64, u64) {
        let offset = |index: u64| index.saturating_mul(self.piece).min(self.len);
        let start = offset(first.into());
        let end = offset(u64::from(first) + u64::from(count));
        (self.start + start, end - start)
    }

    /// Starts hashing piece `index`.
    pub(crate) fn hasher(self, index: u32) -> BlockHasher {
        let mut hasher = Hasher::new();
        hasher.set_input_offset(self.range(index, 1).0);
        BlockHasher {
            hasher,
            whole_file: self.whole_file && self.count() == 1,
        }
    }

    /// Merges the digests of all pieces, in order, to the digest of the block.
    pub(crate) fn block(self, digests: &[Digest]) -> Digest {
        debug_assert_eq!(digests.len(), self.count() as usize);
        if self.whole_file && digests.len() > 1 {
            *root(digests).as_bytes()
        } else {
            subtree(digests)
        }
    }
}

/// Hashes one block.
pub(crate) struct BlockHasher {
    hasher: Hasher,
    whole_file: bool,
}

impl BlockHasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    pub(crate) fn finish(self) -> Digest {
        if self.whole_file {
            *self.hasher.finalize().as_bytes()
        } else {
            self.hasher.finalize_non_root()
        }
    }
}

/// Merges at least two subtrees to the root.
fn root(digests: &[Digest]) -> blake3::Hash {
    let (left, right) = digests.split_at(left_half(digests.len()));
    hazmat::merge_subtrees_root(&subtree(left), &subtree(right), Mode::Hash)
}

fn subtree(digests: &[Digest]) -> Digest {
    match digests {
        [only] => *only,
        _ => {
            let (left, right) = digests.split_at(left_half(digests.len()));
            hazmat::merge_subtrees_non_root(&subtree(left), &subtree(right), Mode::Hash)
        }
    }
}

/// The left subtree of BLAKE3 is the largest power of two that leaves something for the right one.
fn left_half(blocks: usize) -> usize {
    blocks.div_ceil(2).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn root_of(content: &[u8], blocks: Blocks) -> blake3::Hash {
        let digests: Vec<Digest> = (0..blocks.count())
            .map(|index| {
                let (start, len) = blocks.range(index, 1);
                let mut hasher = blocks.hasher(index);
                let (start, len) = (
                    usize::try_from(start).unwrap(),
                    usize::try_from(len).unwrap(),
                );
                hasher.update(&content[start..start + len]);
                hasher.finish()
            })
            .collect();
        blocks.root(&digests)
    }

    #[test]
    fn blocks_stay_few_and_at_least_a_mebibyte() {
        assert_eq!(Blocks::new(0).count(), 0);
        assert_eq!(Blocks::new(1).count(), 1);
        assert_eq!(Blocks::new(1 << 40).block_size(), 1 << 24);
        for size in [1, BLOCK_MIN, BLOCK_MIN + 1, (1 << 36) + 1, SIZE_MAX] {
            let blocks = Blocks::new(size);
            assert!(u64::from(blocks.count()) <= BLOCKS_MAX && blocks.block_size() >= BLOCK_MIN);
            assert_eq!(blocks.range(0, blocks.count()), (0, size));
        }
    }

    #[test]
    fn the_root_of_the_blocks_is_the_plain_hash_of_the_file() {
        let content: Vec<u8> = (0..251_u8).cycle().take(9 << 20 | 17).collect();
        for size in [
            0,
            1,
            1024,
            BLOCK_MIN - 1,
            BLOCK_MIN,
            BLOCK_MIN + 1,
            2 * BLOCK_MIN,
            3 * BLOCK_MIN,
            4 * BLOCK_MIN + 1,
            5 * BLOCK_MIN,
            9 * BLOCK_MIN + 17,
        ] {
            let content = &content[..usize::try_from(size).unwrap()];
            assert_eq!(
                root_of(content, Blocks::new(size)),
                blake3::hash(content),
                "{size}"
            );
        }
    }

    #[test]
    fn the_pieces_of_a_block_merge_to_its_digest() {
        let content: Vec<u8> = (0..251_u8).cycle().take(3 << 20 | 17).collect();
        let slice = |(start, len): (u64, u64)| {
            let start = usize::try_from(start).unwrap();
            &content[start..start + usize::try_from(len).unwrap()]
        };
        for size in [
            1,
            PIECE_MIN - 1,
            PIECE_MIN,
            PIECE_MIN + 1,
            5 * PIECE_MIN,
            BLOCK_MIN,
            BLOCK_MIN + 1,
            3 * BLOCK_MIN + 17,
        ] {
            let blocks = Blocks::new(size);
            for block in 0..blocks.count() {
                let pieces = blocks.pieces(block);
                let digest = |index| {
                    let mut hasher = pieces.hasher(index);
                    hasher.update(slice(pieces.range(index, 1)));
                    hasher.finish()
                };
                let digests: Vec<_> = (0..pieces.count()).map(digest).collect();
                let mut whole = blocks.hasher(block);
                whole.update(slice(blocks.range(block, 1)));
                assert_eq!(pieces.block(&digests), whole.finish(), "{size}: {block}");
                assert_eq!(pieces.range(0, pieces.count()), blocks.range(block, 1));
            }
        }
        for (size, piece) in [
            (1, 4),
            (1 << 36, 4),
            (1 << 39, 8),
            (1 << 40, 16),
            (1 << 46, 16),
        ] {
            assert_eq!(Blocks::new(size).pieces(0).piece, piece << 10, "{size}");
        }
        let huge = Blocks::new(SIZE_MAX).pieces(7);
        assert!(u64::from(huge.count()) <= PIECES_MAX);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn any_block_count_merges_to_the_plain_hash(size in 1_usize..80_000, power in 10_u32..14) {
            let content: Vec<u8> = (0..253_u8).cycle().step_by(7).take(size).collect();
            let blocks = Blocks { size: size as u64, block: 1 << power };
            prop_assert_eq!(root_of(&content, blocks), blake3::hash(&content));
        }
    }
}
