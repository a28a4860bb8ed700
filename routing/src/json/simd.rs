//! 64 bytes at a time: where may text stop?
//!
//! One [`Masks`] per block: from four vector compares where the target has simd128 (Envoy's V8 has), else from eight
//! words. A test holds both to the plain meaning.

/// What is in a block of 64 bytes. Bit `i` speaks of byte `i`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Masks {
    /// Quotes, backslashes and control characters.
    pub(super) stops: u64,
    /// Whether a byte is above 127.
    pub(super) high: bool,
}

/// The masks of one block.
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
#[inline]
pub(super) fn masks(block: &[u8; 64]) -> Masks {
    use std::arch::wasm32::{i8x16_bitmask, u8x16_eq, u8x16_lt, u8x16_splat, u64x2, v128_or};

    let (words, _) = block.as_chunks::<16>();
    let (mut stops, mut high) = (0, 0);
    for (nth, word) in words.iter().enumerate() {
        let both = u128::from_le_bytes(*word);
        let bytes = u64x2(both as u64, (both >> 64) as u64);
        let special = v128_or(u8x16_eq(bytes, u8x16_splat(b'"')), u8x16_eq(bytes, u8x16_splat(b'\\')));
        let stop = v128_or(special, u8x16_lt(bytes, u8x16_splat(0x20)));
        stops |= u64::from(i8x16_bitmask(stop)) << (16 * nth);
        high |= i8x16_bitmask(bytes);
    }
    Masks { stops, high: high != 0 }
}

/// The masks of one block.
#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
#[inline]
pub(super) fn masks(block: &[u8; 64]) -> Masks {
    const ONES: u64 = u64::MAX / 255;
    const HIGHS: u64 = ONES * 0x80;
    const LOWS: u64 = ONES * 0x7F;
    // The high bit of each byte that is not zero; no carry goes from one byte to the next.
    let not_zero = |word: u64| ((word & LOWS) + LOWS) | word;

    let (words, _) = block.as_chunks::<8>();
    let (mut stops, mut high) = (0, 0);
    for (nth, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let quote = not_zero(word ^ (ONES * u64::from(b'"')));
        let backslash = not_zero(word ^ (ONES * u64::from(b'\\')));
        let control = not_zero(word & (ONES * 0xE0));
        let stop = !(quote & backslash & control) & HIGHS;
        // One bit of each byte, gathered in the highest byte of the product.
        stops |= ((stop >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) << (8 * nth);
        high |= word;
    }
    Masks { stops, high: high & HIGHS != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slowly(block: &[u8; 64]) -> Masks {
        let stops = (0..64).filter(|nth| matches!(block[*nth], b'"' | b'\\' | 0..0x20)).map(|nth| 1 << nth).sum();
        Masks { stops, high: !block.is_ascii() }
    }

    #[test]
    fn every_byte_at_every_place() {
        for byte in 0..=255u8 {
            for place in 0..64 {
                let mut block = [b'a'; 64];
                block[place] = byte;
                assert_eq!(masks(&block), slowly(&block), "{byte} at {place}");
            }
        }
    }

    proptest! {
        #[test]
        fn it_finds_what_a_slow_reader_finds(block in any::<[u8; 64]>()) {
            prop_assert_eq!(masks(&block), slowly(&block));
        }
    }
}
