//! A hash for maps whose keys nobody outside chooses: context ids, and names of metrics that come from snapshots.
//!
//! The standard one resists keys that are chosen to collide, and costs several times as much; a request looks into such maps
//! a dozen times.

use std::hash::{BuildHasherDefault, Hasher};

/// For `HashMap<_, _, Quick>`.
pub(crate) type Quick = BuildHasherDefault<Multiplying>;

/// Multiplies by a large odd number, which carries every bit upward; the map takes its bits from both ends, so the highest
/// come down again.
#[derive(Debug, Default)]
pub(crate) struct Multiplying(u64);

impl Hasher for Multiplying {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.write_u64(u64::from_le_bytes(*word)));
        rest.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ mixed >> 32;
    }

    fn finish(&self) -> u64 {
        self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }
}
