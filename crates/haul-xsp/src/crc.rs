//! CRC32C of records, for whoever holds the payload; joined here where records are.

use crc_fast::{CrcAlgorithm, Digest, checksum};

#[expect(
    clippy::cast_possible_truncation,
    reason = "a CRC32's value has 32 bits"
)]
const fn narrow(value: u64) -> u32 {
    value as u32
}

/// CRC32C (Castagnoli) of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    narrow(checksum(CrcAlgorithm::Crc32Iscsi, bytes))
}

/// CRC32C of what `before` is the CRC of, and `bytes` behind it. For memory that is shown piece by
/// piece: joining two values ([`crc32c_joined`]) takes longer than reading some KiB.
#[must_use]
pub fn crc32c_continued(before: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!before));
    digest.update(bytes);
    narrow(digest.finalize())
}

/// CRC32C of two ranges, one behind the other, from the CRC of each; the second has `second_len`
/// octets.
#[must_use]
pub fn crc32c_joined(first: u32, second: u32, second_len: u64) -> u32 {
    // What comes behind the first range moves it up by eight powers of x for each octet.
    let mut moved = first;
    let mut left = second_len;
    while left > 0 {
        moved = product(moved, EIGHTH_POWERS[left.trailing_zeros() as usize]);
        left &= left - 1;
    }
    moved ^ second
}

/// The generator polynomial (RFC 3385), x^31 in the lowest bit as everywhere here, without x^32.
const GENERATOR: u32 = 0x82f6_3b78;

/// x^8 raised to the powers of two, modulo the generator.
const EIGHTH_POWERS: [u32; 64] = {
    let mut powers = [1 << (31 - 8); 64];
    let mut index = 1;
    while index < powers.len() {
        powers[index] = product(powers[index - 1], powers[index - 1]);
        index += 1;
    }
    powers
};

/// The product of two polynomials modulo the generator.
const fn product(first: u32, mut second: u32) -> u32 {
    let mut sum = 0;
    let mut power = 0;
    while power < 32 {
        sum ^= second & ((first << power).cast_signed() >> 31).cast_unsigned();
        second = second >> 1 ^ GENERATOR & (second & 1).wrapping_neg();
        power += 1;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_comes_out_whole_and_joined() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        for at in 0..=9 {
            let (first, second) = b"123456789".split_at(at);
            let joined = crc32c_joined(crc32c(first), crc32c(second), second.len() as u64);
            assert_eq!(joined, 0xe306_9283, "split at {at}");
            let continued = crc32c_continued(crc32c(first), second);
            assert_eq!(continued, 0xe306_9283, "continued at {at}");
        }
    }

    #[test]
    fn ranges_of_any_length_are_joined_as_the_library_joins_them() {
        let lens =
            (0..64).flat_map(|power| [1_u64 << power, (1 << power) - 1, 0x9e37_79b9 << power]);
        for (index, len) in (0_u32..).zip(lens) {
            let (first, second) = (
                0xe306_9283 ^ index.wrapping_mul(0x9e37_79b9),
                0x1234_5678 ^ index,
            );
            let theirs = crc_fast::checksum_combine(
                CrcAlgorithm::Crc32Iscsi,
                first.into(),
                second.into(),
                len,
            );
            assert_eq!(
                crc32c_joined(first, second, len),
                narrow(theirs),
                "{len} octets"
            );
        }
    }
}
