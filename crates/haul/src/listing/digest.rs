//! Digests of files: of a whole one, and of its blocks, which show where two files differ.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::tree::{Blocks, Digest};

/// Read size, bytes: fits a processor's cache.
const PIECE: usize = 256 << 10;

/// Hashes a file from its start; returns the BLAKE3 hash, and the number of bytes.
///
/// # Errors
/// That of `read(2)`.
pub fn of_file(mut file: &File) -> io::Result<([u8; 32], u64)> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; PIECE];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok((*hasher.finalize().as_bytes(), hasher.count())),
            Ok(read) => hasher.update(&buffer[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
    }
}

/// The digests of the blocks of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockDigests {
    size: u64,
    digests: Vec<Digest>,
}

impl BlockDigests {
    /// Hashes the blocks of a file of `size` bytes.
    ///
    /// # Errors
    /// That of `pread(2)`; `UnexpectedEof` where the file is shorter.
    pub fn of_file(file: &File, size: u64) -> io::Result<Self> {
        let blocks = Blocks::new(size);
        let mut buffer = vec![0; PIECE];
        let digest = |index| {
            let mut hasher = blocks.hasher(index);
            let (mut at, mut left) = blocks.range(index, 1);
            while left > 0 {
                let piece = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
                file.read_exact_at(&mut buffer[..piece], at)?;
                hasher.update(&buffer[..piece]);
                at += piece as u64;
                left -= piece as u64;
            }
            Ok(hasher.finish())
        };
        let digests = (0..blocks.count()).map(digest).collect::<io::Result<_>>()?;
        Ok(Self { size, digests })
    }

    /// Takes what a peer sent; `None` if these are not the digests of a file of that size.
    pub(super) fn new(size: u64, bytes: &[u8]) -> Option<Self> {
        if size > crate::tree::SIZE_MAX {
            return None;
        }
        let (digests, rest) = bytes.as_chunks();
        let count = usize::try_from(Blocks::new(size).count()).ok()?;
        (rest.is_empty() && digests.len() == count).then(|| Self {
            size,
            digests: digests.to_vec(),
        })
    }

    /// Returns the size that was hashed.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Returns the digests, one after another.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        self.digests.concat()
    }

    /// Returns the ranges in which two files of one size differ, by whole blocks, adjacent ones
    /// joined; `None` where the sizes differ.
    #[must_use]
    pub fn differing(&self, other: &Self) -> Option<Vec<Range<u64>>> {
        if self.size != other.size {
            return None;
        }
        let blocks = Blocks::new(self.size);
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let pairs = (0_u32..).zip(self.digests.iter().zip(&other.digests));
        for (index, _) in pairs.filter(|(_, (one, other))| one != other) {
            let (start, len) = blocks.range(index, 1);
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end += len,
                _ => ranges.push(start..start + len),
            }
        }
        Some(ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn digests(content: &[u8]) -> BlockDigests {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(content, 0).unwrap();
        let (hash, size) = of_file(&file).unwrap();
        assert_eq!(
            (hash, size),
            (*blake3::hash(content).as_bytes(), content.len() as u64)
        );
        BlockDigests::of_file(&file, size).unwrap()
    }

    #[test]
    fn the_blocks_that_differ_are_named_and_joined() {
        let one: Vec<u8> = (0..251_u8).cycle().take(5 * MIB + 17).collect();
        let mut other = one.clone();
        assert_eq!(digests(&one).differing(&digests(&other)), Some(Vec::new()));
        for at in [MIB, 2 * MIB + 5, 5 * MIB + 16] {
            other[at] ^= 1;
        }
        let mib = MIB as u64;
        let expected = vec![mib..3 * mib, 5 * mib..5 * mib + 17];
        assert_eq!(digests(&one).differing(&digests(&other)), Some(expected));
        other.pop();
        assert_eq!(digests(&one).differing(&digests(&other)), None);
        assert_eq!(digests(b"").differing(&digests(b"")), Some(Vec::new()));
    }

    #[test]
    fn digests_of_a_peer_must_fit_the_size() {
        let one = digests(&[7; 2 * MIB + 1]);
        let bytes = one.to_bytes();
        assert_eq!(BlockDigests::new(one.size(), &bytes), Some(one));
        assert!(BlockDigests::new(2 << 20, &bytes).is_none());
        assert!(BlockDigests::new((2 << 20) + 1, &bytes[1..]).is_none());
        assert!(BlockDigests::new(u64::MAX, &bytes).is_none());
    }
}
