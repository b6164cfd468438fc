//! Bytes that nothing on the path can compress.

use haul_netem::Rng;

/// Makes so many bytes.
pub(crate) fn noise(rng: &mut Rng, len: usize) -> Vec<u8> {
    let words = std::iter::repeat_with(|| rng.next_u64().to_le_bytes());
    words.flatten().take(len).collect()
}
