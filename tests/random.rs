//! Numbers from a seed (SplitMix64).

#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 0 <= x < most; 0 if most is 0.
    pub fn below(&mut self, most: u64) -> u64 {
        self.next().checked_rem(most).unwrap_or(0)
    }

    pub fn chance(&mut self, in_thousand: u64) -> bool {
        self.below(1_000) < in_thousand
    }
}
