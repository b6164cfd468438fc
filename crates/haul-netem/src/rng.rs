//! Seeded random numbers: xoshiro256++ (Blackman and Vigna, 2019), its state filled by SplitMix64.

/// A small, fast, reproducible generator. Not for secrets.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The same seed gives the same numbers, on every machine.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut seeder = seed;
        Self {
            state: std::array::from_fn(|_| split_mix(&mut seeder)),
        }
    }

    /// Another generator, whose numbers are unrelated to this one's; it moves this one on by one
    /// number.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self::new(self.next_u64())
    }

    /// 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// A number in `0..bound`, or 0 if the bound is 0 (Lemire's multiplication; its bias is below
    /// `bound / 2^64`).
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// A number in `0.0..1.0`.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit a double exactly")]
        let bits = (self.next_u64() >> 11) as f64;
        bits / 9_007_199_254_740_992.0
    }

    /// True with this probability; at most 0 or not a number is never, at least 1 is always.
    #[inline]
    pub fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.unit() < probability
    }
}

/// Steele, Lea and Flood's SplitMix64, with Vigna's constants.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_mix_matches_its_published_sequence() {
        let mut state = 1_234_567;
        let first: Vec<u64> = (0..3).map(|_| split_mix(&mut state)).collect();
        assert_eq!(
            first,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn xoshiro_matches_its_published_sequence() {
        let mut rng = Rng {
            state: [1, 2, 3, 4],
        };
        let first: Vec<u64> = (0..4).map(|_| rng.next_u64()).collect();
        assert_eq!(
            first,
            [
                41_943_041,
                58_720_359,
                3_588_806_011_781_223,
                3_591_011_842_654_386
            ]
        );
    }

    #[test]
    fn chance_honours_its_ends() {
        let mut rng = Rng::new(7);
        assert!((0..1000).all(|_| rng.chance(1.0)));
        assert!(!(0..1000).any(|_| rng.chance(0.0) || rng.chance(f64::NAN) || rng.chance(-1.0)));
    }

    #[test]
    fn numbers_below_a_bound_cover_it_evenly() {
        let mut rng = Rng::new(3);
        let mut seen = [0_u32; 7];
        for _ in 0..70_000 {
            seen[usize::try_from(rng.below(7)).unwrap()] += 1;
        }
        assert!(
            seen.iter().all(|&n| (9_500..10_500).contains(&n)),
            "{seen:?}"
        );
        assert_eq!(rng.below(0), 0);
    }
}
