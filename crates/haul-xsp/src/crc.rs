//! CRC32C of records, for whoever holds the payload; joined here where records are.

use crc_fast::{CrcAlgorithm, Digest, checksum, checksum_combine};

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

/// CRC32C of what `before` is the CRC of, and `bytes` behind it. For memory that is shown piece by piece: joining two values
/// ([`crc32c_joined`]) takes longer than reading some KiB.
#[must_use]
pub fn crc32c_continued(before: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!before));
    digest.update(bytes);
    narrow(digest.finalize())
}

/// CRC32C of two ranges, one behind the other, from the CRC of each; the second has `second_len` octets.
#[must_use]
pub fn crc32c_joined(first: u32, second: u32, second_len: u64) -> u32 {
    narrow(checksum_combine(
        CrcAlgorithm::Crc32Iscsi,
        u64::from(first),
        u64::from(second),
        second_len,
    ))
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
}
