//! Random numbers from a seed that the caller brings.
//!
//! SplitMix64 (Steele, Lea, Flood 2014): one addition and a finaliser per number, equidistributed over 64 bits. It
//! spreads requests; nothing secret depends on it.

/// A seeded generator.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The generator that starts from this seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        SplitMix64(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Another generator, whose numbers have nothing to do with this one's; nothing is drawn from this one for it.
    #[must_use]
    pub fn fork(&self) -> Self {
        let mut other = SplitMix64(self.0 ^ 0x5851_F42D_4C95_7F2D);
        SplitMix64(other.next_u64())
    }

    /// A number in `0..bound`, or 0 when `bound` is 0. The bias of the multiplication is below `bound / 2^64`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_numbers_are_those_of_the_published_algorithm() {
        // Reference output of SplitMix64 for seed 0.
        let mut rng = SplitMix64::seeded(0);
        assert_eq!(rng.next_u64(), 0xE220_A839_7B1D_CDAF);
        assert_eq!(rng.next_u64(), 0x6E78_9E6A_A1B9_65F4);
    }

    #[test]
    fn a_fork_draws_nothing_and_goes_its_own_way() {
        let (mut rng, mut untouched) = (SplitMix64::seeded(7), SplitMix64::seeded(7));
        let (mut fork, mut same) = (rng.fork(), 0);
        for _ in 0..64_000 {
            same += u32::from(rng.below(4) == fork.below(4));
        }
        assert!((15_500..16_500).contains(&same), "{same}");
        (0..64_000).for_each(|_| _ = untouched.next_u64());
        assert_eq!(rng.next_u64(), untouched.next_u64());
    }

    #[test]
    fn below_is_even() {
        let mut rng = SplitMix64::seeded(1);
        let mut seen = [0u32; 5];
        for _ in 0..50_000 {
            seen[rng.below(5) as usize] += 1;
        }
        assert!(seen.iter().all(|count| (9_500..10_500).contains(count)), "{seen:?}");
        assert_eq!(rng.below(0), 0);
    }
}
