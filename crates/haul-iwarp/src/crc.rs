//! CRC32C over ranges, so that whoever holds the payload computes it and the core only compares
//! (RFC 5044 §4.4).

use crc_fast::{CrcAlgorithm, Digest};

/// Octets of a CRC on the wire.
pub const CRC_LEN: usize = 4;

/// A CRC32C (Castagnoli) in the making. Four octets; copying it forks the computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crc32c(u32);

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc32c {
    /// The CRC of nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(u32::MAX)
    }

    /// Goes on from where the value of another was taken.
    #[must_use]
    pub const fn resumed(value: u32) -> Self {
        Self(!value)
    }

    /// Continues over `bytes`.
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

    /// The value.
    #[must_use]
    pub const fn value(self) -> u32 {
        !self.0
    }

    /// The value as it stands on the wire: least significant octet first, as in iSCSI (RFC 5044
    /// Fig. 5).
    #[must_use]
    pub const fn to_wire(self) -> [u8; CRC_LEN] {
        self.value().to_le_bytes()
    }
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
}
