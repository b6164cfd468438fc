//! The Internet checksum (RFC 1071).

/// A running one's-complement sum. Every part added but the last has an even length.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum(u64);

impl Sum {
    pub(super) fn add(self, bytes: &[u8]) -> Self {
        let mut words = bytes.chunks_exact(4);
        let mut sum = self.0;
        for word in &mut words {
            sum += u64::from(u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
        }
        let mut last = [0; 4];
        last[..words.remainder().len()].copy_from_slice(words.remainder());
        Self(sum + u64::from(u32::from_be_bytes(last)))
    }

    /// The sum as 16 bits, not inverted.
    pub(super) fn folded(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        u16::try_from(sum).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_that_of_the_rfc() {
        // RFC 1071 §3.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::default().add(&bytes).folded(), 0xddf2);
        assert_eq!(
            Sum::default().add(&bytes[..2]).add(&bytes[2..]).folded(),
            0xddf2
        );
        assert_eq!(Sum::default().add(&[0x12]).folded(), 0x1200);
    }
}
