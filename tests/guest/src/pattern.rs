//! Bytes that are different everywhere, and a sum that notices when two change places.

/// `len` bytes of the pattern that `seed` begins (splitmix64).
pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let words = (1_u64..).map(|index| {
        let mut z = seed.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).to_le_bytes()
    });
    words.flatten().take(len).collect()
}

/// FNV-1a, 64 bits.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
