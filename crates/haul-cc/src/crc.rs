//! CRC32C (Castagnoli; RFC 3385): for payload, for records that arrive in pieces, and for headers.
//!
//! The holder of the payload computes its CRC; a protocol core only compares and combines values.

use crc_fast::{CrcAlgorithm, Digest};

/// Bytes of a CRC on the wire.
pub const CRC_LEN: usize = 4;

/// The generator polynomial (RFC 3385) without x^32; x^31 is the lowest bit, as everywhere here.
const GENERATOR: u32 = 0x82f6_3b78;

/// The state of a CRC32C computation. Four bytes; a copy forks the computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crc32c(u32);

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc32c {
    /// Starts a computation over no bytes.
    #[must_use]
    pub const fn new() -> Self {
        Self(u32::MAX)
    }

    /// Continues the computation that returned `value`.
    #[must_use]
    pub const fn resumed(value: u32) -> Self {
        Self(!value)
    }

    /// Adds `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(self.0));
        digest.update(bytes);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a CRC32's state has 32 bits"
        )]
        let state = digest.get_state() as u32;
        self.0 = state;
    }

    /// Returns the CRC of all bytes added so far.
    #[must_use]
    pub const fn value(self) -> u32 {
        !self.0
    }

    /// Returns the value in wire order: least significant byte first, as in iSCSI (RFC 5044
    /// Fig. 5).
    #[must_use]
    pub const fn to_wire(self) -> [u8; CRC_LEN] {
        self.value().to_le_bytes()
    }
}

/// Computes the CRC32C of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c_continued(0, bytes)
}

/// Computes the CRC32C of a range of which `before` is the CRC, followed by `bytes`.
///
/// For up to some KiB this is faster than [`crc32c_joined`].
#[must_use]
pub fn crc32c_continued(before: u32, bytes: &[u8]) -> u32 {
    let mut crc = Crc32c::resumed(before);
    crc.update(bytes);
    crc.value()
}

/// Computes the CRC32C of two adjacent ranges from the CRC of each; the second has `second_len`
/// bytes.
#[must_use]
pub fn crc32c_joined(first: u32, second: u32, second_len: u64) -> u32 {
    // Each byte behind the first range multiplies it by x^8.
    let mut moved = first;
    let mut left = second_len;
    while left > 0 {
        moved = product(moved, EIGHTH_POWERS[left.trailing_zeros() as usize]);
        left &= left - 1;
    }
    moved ^ second
}

/// Computes the CRC32C of a header.
///
/// A header has some tens of bytes. For so few, choosing the processor's instructions at run time,
/// as [`crc32c`] does, takes longer than these tables.
#[must_use]
pub fn crc32c_header(bytes: &[u8]) -> u32 {
    let (eights, rest) = bytes.as_chunks::<8>();
    let by = |table: usize, byte: u32| TABLES[table][(byte & 0xff) as usize];
    let crc = eights
        .iter()
        .fold(u32::MAX, |crc, &[a, b, c, d, e, f, g, h]| {
            let low = crc ^ u32::from_le_bytes([a, b, c, d]);
            let high = u32::from_le_bytes([e, f, g, h]);
            by(7, low)
                ^ by(6, low >> 8)
                ^ by(5, low >> 16)
                ^ by(4, low >> 24)
                ^ by(3, high)
                ^ by(2, high >> 8)
                ^ by(1, high >> 16)
                ^ by(0, high >> 24)
        });
    !rest
        .iter()
        .fold(crc, |crc, &byte| by(0, crc ^ u32::from(byte)) ^ (crc >> 8))
}

/// The CRC contribution of a byte that 0 to 7 other bytes follow.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256_u32 {
        let (mut crc, mut bit) = (byte, 0);
        while bit < 8 {
            crc = (crc >> 1) ^ (GENERATOR * (crc & 1));
            bit += 1;
        }
        tables[0][byte as usize] = crc;
        byte += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut byte = 0;
        while byte < 256 {
            let crc = tables[table - 1][byte];
            tables[table][byte] = (crc >> 8) ^ tables[0][(crc & 0xff) as usize];
            byte += 1;
        }
        table += 1;
    }
    tables
}

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

/// Multiplies two polynomials modulo the generator.
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

    fn of(bytes: &[u8]) -> Crc32c {
        let mut crc = Crc32c::new();
        crc.update(bytes);
        crc
    }

    #[test]
    fn the_vectors_of_rfc_3720_come_out() {
        let ascending: Vec<u8> = (0..32).collect();
        let descending: Vec<u8> = (0..32).rev().collect();
        let mut read = [0; 48];
        for (at, value) in [
            (0, 0x01),
            (1, 0xc0),
            (16, 0x14),
            (22, 0x04),
            (27, 0x14),
            (31, 0x18),
        ] {
            read[at] = value;
        }
        (read[32], read[40]) = (0x28, 0x02);
        for (bytes, value) in [
            (&[0; 32][..], 0x8a91_36aa),
            (&[0xff; 32], 0x62a8_ab43),
            (&ascending, 0x46dd_794e),
            (&descending, 0x113f_db5c),
            (b"123456789", 0xe306_9283),
            (&read, 0xd996_3a56),
        ] {
            assert_eq!(of(bytes).value(), value, "{bytes:02x?}");
            assert_eq!(crc32c_header(bytes), value, "{bytes:02x?}");
        }
        assert_eq!(of(&[0; 32]).to_wire(), [0xaa, 0x36, 0x91, 0x8a]);
    }

    #[test]
    fn it_may_be_computed_in_pieces() {
        let bytes: Vec<u8> = (0..=255).cycle().take(3_000).collect();
        for split in [0, 1, 14, 20, 1_400, 3_000] {
            let mut crc = of(&bytes[..split]);
            crc.update(&bytes[split..]);
            assert_eq!(crc, of(&bytes), "split at {split}");
        }
    }

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
                u32::try_from(theirs).unwrap(),
                "{len} bytes"
            );
        }
    }
}
