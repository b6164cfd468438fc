//! Ranges of lost packets in compressed form.

use super::field::{CONTROL_BIT, ParseError, word};
use crate::seq::Seq;

/// Ranges of lost packets, checked to be well-formed (UDT4 draft, appendix: loss information
/// compression).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LossRanges<'a> {
    words: &'a [u8],
}

impl<'a> LossRanges<'a> {
    /// Checks form: whole words, every range has an end that does not precede its start.
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, ParseError> {
        let words = &body[..body.len() / 4 * 4];
        let mut index = 0;
        while index < words.len() / 4 {
            let value = word(words, index);
            index += 1;
            if value & CONTROL_BIT == 0 {
                continue;
            }
            if index >= words.len() / 4 {
                return Err(ParseError::LossList);
            }
            let (first, last) = (Seq::new(value), word(words, index));
            index += 1;
            let length = Seq::new(last).get().wrapping_sub(first.get()) & (CONTROL_BIT - 1);
            if last & CONTROL_BIT != 0 || length >= CONTROL_BIT / 2 {
                return Err(ParseError::LossList);
            }
        }
        Ok(Self { words })
    }

    /// Returns the first and the last packet of each range.
    pub fn iter(&self) -> impl Iterator<Item = (Seq, Seq)> + 'a {
        let (ranges, mut index) = (*self, 0);
        std::iter::from_fn(move || {
            let (first, last, words) = ranges.range_at(index)?;
            index += words;
            Some((first, last))
        })
    }

    /// First and last packet of the range that begins at word `index`, and its length in words.
    pub(crate) fn range_at(&self, index: usize) -> Option<(Seq, Seq, usize)> {
        if index >= self.words.len() / 4 {
            return None;
        }
        let value = word(self.words, index);
        let first = Seq::new(value);
        if value & CONTROL_BIT == 0 {
            return Some((first, first, 1));
        }
        Some((first, Seq::new(word(self.words, index + 1)), 2))
    }

    /// Returns the bytes on the wire.
    #[must_use]
    pub fn wire_len(&self) -> usize {
        self.words.len()
    }
}

impl LossRanges<'static> {
    /// No loss.
    pub(crate) const NONE: Self = Self { words: &[] };
}

/// Appends the range of packets `first..=last` to `out` in compressed form.
pub(crate) fn push_range(out: &mut Vec<u8>, first: u64, last: u64) {
    if first == last {
        out.extend_from_slice(&Seq::of(first).get().to_be_bytes());
    } else {
        out.extend_from_slice(&(Seq::of(first).get() | CONTROL_BIT).to_be_bytes());
        out.extend_from_slice(&Seq::of(last).get().to_be_bytes());
    }
}
