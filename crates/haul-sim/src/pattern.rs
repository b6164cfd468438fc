//! Payload that any byte can be checked of without keeping it: a hash of its position.

/// The byte at `position` of the stream with `seed`.
#[must_use]
pub fn byte(seed: u64, position: u64) -> u8 {
    let word = mix(seed ^ (position >> 3));
    word.to_le_bytes()[usize::try_from(position & 7).unwrap_or(0)]
}

/// Appends `len` bytes from `position` on.
pub fn extend(out: &mut Vec<u8>, seed: u64, position: u64, len: u64) {
    let end = position + len;
    let mut at = position;
    while at < end {
        let word = mix(seed ^ (at >> 3)).to_le_bytes();
        let from = usize::try_from(at & 7).unwrap_or(0);
        let take = (8 - from).min(usize::try_from(end - at).unwrap_or(8));
        out.extend_from_slice(&word[from..from + take]);
        at += take as u64;
    }
}

/// Whether `bytes` are those at `position`.
#[must_use]
pub fn matches(bytes: &[u8], seed: u64, position: u64) -> bool {
    bytes
        .iter()
        .zip(position..)
        .all(|(&found, at)| found == byte(seed, at))
}

fn mix(value: u64) -> u64 {
    let mut x = value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_agree_with_single_bytes() {
        for position in 0..20 {
            let mut run = Vec::new();
            extend(&mut run, 7, position, 30);
            assert_eq!(run.len(), 30);
            assert!(matches(&run, 7, position));
        }
    }
}
