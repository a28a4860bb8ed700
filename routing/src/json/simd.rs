//! 64 bytes at a time: where may text stop?
//!
//! One [`Block`] is four vectors where the target has simd128 (Envoy's V8 has), else eight words. Bit `i` of each mask speaks
//! of byte `i`. A test holds what it is built for, natively the words, to the plain
//! meaning; the vectors run in every test with Envoy.

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod vectors {
    use std::arch::wasm32::{
        i8x16_bitmask, i8x16_lt, i8x16_min, u8x16_eq, u8x16_lt, u8x16_min, u8x16_splat, u64x2, v128, v128_any_true,
        v128_or, v128_xor,
    };

    /// 64 bytes of text.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Block([v128; 4]);

    impl Block {
        #[inline]
        pub(crate) fn new(bytes: &[u8; 64]) -> Self {
            let (words, _) = bytes.as_chunks::<16>();
            let mut block = [u64x2(0, 0); 4];
            for (to, from) in block.iter_mut().zip(words) {
                let both = u128::from_le_bytes(*from);
                *to = u64x2(both as u64, (both >> 64) as u64);
            }
            Block(block)
        }

        fn mask(&self, test: impl Fn(v128) -> v128) -> u64 {
            let bits = |nth: usize, vector: &v128| u64::from(i8x16_bitmask(test(*vector))) << (16 * nth);
            self.0.iter().enumerate().fold(0, |mask, (nth, vector)| mask | bits(nth, vector))
        }

        /// Whether a byte is above 127.
        #[inline]
        pub(in super::super) fn is_high(&self) -> bool {
            let [a, b, c, d] = self.0;
            i8x16_bitmask(v128_or(v128_or(a, b), v128_or(c, d))) != 0
        }

        /// Whether every byte is ASCII and none may end text.
        #[inline]
        pub(in super::super) fn is_plain(&self) -> bool {
            // Flipping the second bit makes a quote a blank and leaves control characters below it, and bytes above 127 below zero: then
            // the least of all decides. The same way, a backslash becomes a zero.
            let flipped = |bit: u8| self.0.map(|bytes| v128_xor(bytes, u8x16_splat(bit)));
            let ([a, b, c, d], [e, f, g, h]) = (flipped(2), flipped(b'\\'));
            let least = i8x16_min(i8x16_min(a, b), i8x16_min(c, d));
            let zero = u8x16_min(u8x16_min(e, f), u8x16_min(g, h));
            !v128_any_true(v128_or(i8x16_lt(least, u8x16_splat(b' ' + 1)), u8x16_eq(zero, u8x16_splat(0))))
        }

        /// What may end text: quotes, backslashes and control characters.
        #[inline]
        pub(in super::super) fn stops(&self) -> u64 {
            self.mask(special) & !self.mask(|bytes| bytes)
        }

        /// This byte.
        #[inline]
        pub(crate) fn is(&self, byte: u8) -> u64 {
            self.mask(|bytes| u8x16_eq(bytes, u8x16_splat(byte)))
        }

        /// Quotes and control characters.
        #[inline]
        pub(in super::super) fn ends(&self) -> u64 {
            self.mask(is_end)
        }

        /// Backslashes.
        #[inline]
        pub(in super::super) fn backslashes(&self) -> u64 {
            self.mask(is_backslash)
        }

        /// Bytes that may follow a backslash and stand for one character, `/` aside.
        #[inline]
        pub(in super::super) fn letters(&self) -> u64 {
            self.mask(|bytes| {
                let is = |byte| u8x16_eq(bytes, u8x16_splat(byte));
                let or = v128_or;
                or(or(or(is(b'"'), is(b'\\')), or(is(b'b'), is(b'f'))), or(or(is(b'n'), is(b'r')), is(b't')))
            })
        }

        /// Slashes.
        #[inline]
        pub(in super::super) fn slashes(&self) -> u64 {
            self.mask(|bytes| u8x16_eq(bytes, u8x16_splat(b'/')))
        }
    }

    /// See the other one.
    #[inline]
    pub(in super::super) fn first_special(bytes: &[u8; 16]) -> usize {
        let both = u128::from_le_bytes(*bytes);
        let bytes = u64x2(both as u64, (both >> 64) as u64);
        i8x16_bitmask(special(bytes)).trailing_zeros() as usize
    }

    /// Quotes, backslashes, control characters and bytes above 127.
    fn special(bytes: v128) -> v128 {
        // Signed, bytes above 127 are below zero; and a signed comparison is one instruction where an unsigned one is three.
        let other = i8x16_lt(bytes, u8x16_splat(0x20));
        v128_or(v128_or(u8x16_eq(bytes, u8x16_splat(b'"')), is_backslash(bytes)), other)
    }

    fn is_end(bytes: v128) -> v128 {
        v128_or(u8x16_eq(bytes, u8x16_splat(b'"')), u8x16_lt(bytes, u8x16_splat(0x20)))
    }

    fn is_backslash(bytes: v128) -> v128 {
        u8x16_eq(bytes, u8x16_splat(b'\\'))
    }
}

#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
mod vectors {
    const ONES: u64 = u64::MAX / 255;
    const HIGHS: u64 = ONES * 0x80;
    const LOWS: u64 = ONES * 0x7F;

    /// 64 bytes of text.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Block([u64; 8]);

    impl Block {
        #[inline]
        pub(crate) fn new(bytes: &[u8; 64]) -> Self {
            let (words, _) = bytes.as_chunks::<8>();
            let mut block = [0; 8];
            for (to, from) in block.iter_mut().zip(words) {
                *to = u64::from_le_bytes(*from);
            }
            Block(block)
        }

        /// `not_zero` gives a word whose bytes have their high bit set where the byte is not meant.
        fn mask(&self, not_meant: impl Fn(u64) -> u64) -> u64 {
            // One bit of each byte, gathered in the highest byte of the product.
            let bits = |word: u64| (((!not_meant(word) & HIGHS) >> 7).wrapping_mul(0x0102_0408_1020_4080)) >> 56;
            self.0.iter().enumerate().fold(0, |mask, (nth, word)| mask | bits(*word) << (8 * nth))
        }

        /// Whether a byte is above 127.
        #[inline]
        pub(in super::super) fn is_high(&self) -> bool {
            self.0.iter().fold(0, |all, word| all | word) & HIGHS != 0
        }

        /// Whether every byte is ASCII and none may end text.
        #[inline]
        pub(in super::super) fn is_plain(&self) -> bool {
            let plain = |word: u64| !word & is_no_end(word) & is_not(word, b'\\') & HIGHS;
            self.0.iter().fold(HIGHS, |all, word| all & plain(*word)) == HIGHS
        }

        /// What may end text: quotes, backslashes and control characters.
        #[inline]
        pub(in super::super) fn stops(&self) -> u64 {
            self.mask(|word| is_no_end(word) & is_not(word, b'\\'))
        }

        /// This byte.
        #[inline]
        pub(crate) fn is(&self, byte: u8) -> u64 {
            self.mask(|word| is_not(word, byte))
        }

        /// Quotes and control characters.
        #[inline]
        pub(in super::super) fn ends(&self) -> u64 {
            self.mask(is_no_end)
        }

        /// Backslashes.
        #[inline]
        pub(in super::super) fn backslashes(&self) -> u64 {
            self.mask(|word| is_not(word, b'\\'))
        }

        /// Bytes that may follow a backslash and stand for one character, `/` aside.
        #[inline]
        pub(in super::super) fn letters(&self) -> u64 {
            self.mask(|word| b"\"\\bfnrt".iter().fold(u64::MAX, |none, letter| none & is_not(word, *letter)))
        }

        /// Slashes.
        #[inline]
        pub(in super::super) fn slashes(&self) -> u64 {
            self.mask(|word| is_not(word, b'/'))
        }
    }

    /// Where the first quote, backslash, control character or byte above 127 is; 16 or more when there is none.
    #[inline]
    pub(in super::super) fn first_special(bytes: &[u8; 16]) -> usize {
        let special = |byte: &u8| !byte.is_ascii() || matches!(byte, b'"' | b'\\' | 0..0x20);
        bytes.iter().position(special).unwrap_or(16)
    }

    fn is_no_end(word: u64) -> u64 {
        is_not(word, b'"') & not_zero(word & (ONES * 0xE0))
    }

    fn is_not(word: u64, byte: u8) -> u64 {
        not_zero(word ^ (ONES * u64::from(byte)))
    }

    /// The high bit of each byte that is not zero; no carry goes from one byte to the next.
    fn not_zero(word: u64) -> u64 {
        ((word & LOWS) + LOWS) | word
    }
}

pub(crate) use vectors::Block;
pub(super) use vectors::first_special;

/// The bytes that stand behind a backslash which is not itself behind one. `carried` is 1 when the last byte of the block
/// before was such a backslash, and then says the same of this one.
///
/// A row of backslashes escapes what follows it when its length is odd: adding the starts of the rows that begin at odd places
/// to the backslashes carries each such row to the byte behind it, so that places of rows that begin at even and at odd places
/// can be told apart. (Langdale and Lemire, "Parsing gigabytes of JSON per second", 2019.)
#[inline]
pub(super) fn behind_backslashes(backslashes: u64, carried: &mut u64) -> u64 {
    const EVEN: u64 = 0x5555_5555_5555_5555;
    let backslashes = backslashes & !*carried;
    let follows = backslashes << 1 | *carried;
    let odd_starts = backslashes & !EVEN & !follows;
    let (rows, overflow) = odd_starts.overflowing_add(backslashes);
    *carried = overflow.into();
    (EVEN ^ (rows << 1)) & follows
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bits(block: &[u8; 64], meant: impl Fn(u8) -> bool) -> u64 {
        (0..64).filter(|nth| meant(block[*nth])).map(|nth| 1 << nth).sum()
    }

    fn check(bytes: &[u8; 64]) {
        let block = Block::new(bytes);
        assert_eq!(block.ends(), bits(bytes, |byte| matches!(byte, b'"' | 0..0x20)), "{bytes:?}");
        assert_eq!(block.backslashes(), bits(bytes, |byte| byte == b'\\'), "{bytes:?}");
        assert_eq!(block.stops(), block.ends() | block.backslashes());
        assert_eq!(block.letters(), bits(bytes, |byte| b"\"\\bfnrt".contains(&byte)), "{bytes:?}");
        assert_eq!(block.slashes(), bits(bytes, |byte| byte == b'/'), "{bytes:?}");
        assert_eq!(block.is_high(), !bytes.is_ascii(), "{bytes:?}");
        assert_eq!(block.is_plain(), block.stops() == 0 && !block.is_high(), "{bytes:?}");
        for byte in [b'"', b'n', 0, bytes[0], bytes[63]] {
            assert_eq!(block.is(byte), bits(bytes, |at| at == byte), "{byte} in {bytes:?}");
        }
    }

    #[test]
    fn every_byte_at_every_place() {
        for byte in 0..=255u8 {
            for place in 0..64 {
                let mut block = [b'a'; 64];
                block[place] = byte;
                check(&block);
            }
        }
    }

    proptest! {
        #[test]
        fn it_finds_what_a_slow_reader_finds(block in any::<[u8; 64]>()) {
            check(&block);
        }

        #[test]
        fn what_is_escaped_is_what_a_slow_reader_says(
            blocks in proptest::collection::vec(prop_oneof![any::<u64>(), any::<u64>().prop_map(|bits| bits | bits >> 1 | bits << 3), Just(u64::MAX)], 1..5)
        ) {
            let (mut carried, mut behind) = (0, false);
            for backslashes in blocks {
                let mut slowly = 0;
                for place in 0..64 {
                    let is_backslash = backslashes >> place & 1 == 1;
                    slowly |= u64::from(behind) << place;
                    behind = is_backslash && !behind;
                }
                prop_assert_eq!(behind_backslashes(backslashes, &mut carried), slowly);
                prop_assert_eq!(carried == 1, behind);
            }
        }
    }
}
