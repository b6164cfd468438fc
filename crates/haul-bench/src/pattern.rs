//! Bytes that differ with the queue pair, the message and the place in it, so that none can be
//! mistaken for another.

use std::ops::Range;

use haul_slab::{OutOfBounds, Region};

/// Bytes that are made or compared at a time; a multiple of a word.
const WINDOW: usize = 4096;

/// Names a message: its queue pair and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) qp: u64,
    pub(crate) number: u64,
}

/// Writes the message's bytes to `offset`.
pub(crate) fn write(
    region: &Region,
    offset: usize,
    len: usize,
    stamp: Stamp,
) -> Result<(), OutOfBounds> {
    let mut window = [0; WINDOW];
    let mut done = 0;
    while done < len {
        let piece = WINDOW.min(len - done);
        make(&mut window[..piece], done, stamp);
        region.write(offset + done, &window[..piece])?;
        done += piece;
    }
    Ok(())
}

/// Where, counted from `offset`, the first byte is that is not the message's.
pub(crate) fn check(
    region: &Region,
    offset: usize,
    len: usize,
    stamp: Stamp,
) -> Result<Option<usize>, OutOfBounds> {
    let mut window = [0; WINDOW];
    let (mut done, mut wrong) = (0, None);
    region.visit(offset, len, |piece| {
        let expected = &mut window[..piece.len()];
        make(expected, done, stamp);
        if wrong.is_none() && expected != piece {
            let at = expected.iter().zip(piece).position(|(want, is)| want != is);
            wrong = at.map(|at| done + at);
        }
        done += piece.len();
    })?;
    Ok(wrong)
}

/// Where, counted from the message's beginning at `offset`, the first byte of `range` is that is
/// not the message's.
pub(crate) fn check_range(
    region: &Region,
    offset: usize,
    range: Range<usize>,
    stamp: Stamp,
) -> Result<Option<usize>, OutOfBounds> {
    let (mut expected, mut found) = ([0; WINDOW], [0; WINDOW]);
    let mut at = range.start;
    while at < range.end {
        let skip = at % 8;
        let piece = (WINDOW - skip).min(range.end - at);
        make(&mut expected[..skip + piece], at - skip, stamp);
        region.read(offset + at, &mut found[..piece])?;
        let mut pairs = expected[skip..].iter().zip(&found[..piece]);
        if let Some(wrong) = pairs.position(|(want, is)| want != is) {
            return Ok(Some(at + wrong));
        }
        at += piece;
    }
    Ok(None)
}

/// The message's bytes from `at` on, a multiple of a word.
fn make(bytes: &mut [u8], at: usize, stamp: Stamp) {
    let seed = mix(stamp.qp ^ stamp.number.rotate_left(24));
    for (word, place) in bytes.chunks_mut(8).zip(at as u64 / 8..) {
        let value = mix(seed ^ place).to_le_bytes();
        word.copy_from_slice(&value[..word.len()]);
    }
}

/// The finalizer of SplitMix64: every bit of the input moves every bit of the output.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// An offset in this program's own memory.
pub(crate) fn place(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_byte_is_found_where_it_is() {
        let region = Region::map(20_000).unwrap();
        let stamp = Stamp { qp: 3, number: 7 };
        write(&region, 13, 10_001, stamp).unwrap();
        assert_eq!(check(&region, 13, 10_001, stamp).unwrap(), None);
        for at in [0, 4095, 4096, 9_999, 10_000] {
            let mut byte = [0];
            region.read(13 + at, &mut byte).unwrap();
            region.write(13 + at, &[!byte[0]]).unwrap();
            assert_eq!(check(&region, 13, 10_001, stamp).unwrap(), Some(at));
            region.write(13 + at, &byte).unwrap();
        }
    }

    #[test]
    fn a_part_of_a_message_is_checked_by_itself() {
        let region = Region::map(20_000).unwrap();
        let stamp = Stamp { qp: 1, number: 2 };
        write(&region, 64, 10_000, stamp).unwrap();
        region.fill(64, 17, 0).unwrap();
        region.fill(64 + 9_000, 1_000, 0).unwrap();
        let check = |range| check_range(&region, 64, range, stamp).unwrap();
        assert_eq!(check(17..9_000), None);
        assert_eq!(check(4_090..4_100), None);
        assert_eq!(check(0..0), None);
        assert_eq!(check(16..9_000), Some(16));
        assert_eq!(check(17..10_000), Some(9_000));
    }

    #[test]
    fn another_message_does_not_pass() {
        let region = Region::map(4096).unwrap();
        write(&region, 0, 64, Stamp { qp: 0, number: 1 }).unwrap();
        for stamp in [Stamp { qp: 1, number: 0 }, Stamp { qp: 0, number: 2 }] {
            assert!(check(&region, 0, 64, stamp).unwrap().is_some());
        }
        assert!(write(&region, 4090, 64, Stamp { qp: 0, number: 1 }).is_err());
    }
}
