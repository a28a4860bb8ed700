//! How large a request is, by estimate, and whether a context window holds it.
//!
//! | figure | formula (tokens) |
//! |---|---|
//! | prompt | `bytes / bytes_per_token + token ids + 576 x images` |
//! | floor | `bytes / max(1.5 x bytes_per_token, 10) + token ids`; 0 where several texts may be separate prompts |
//! | requested | `max_output`, 0 when the client did not say or the shape generates nothing |
//! | expected output | `min(max_output, the pool's learnt median)`, 0 when the shape generates nothing |
//!
//! Bytes are raw JSON bytes of prompt text, the measure by which [`crate::learnt`] learns bytes per token. Images are neither
//! fetched nor decoded, so each counts [`IMAGE_TOKENS`]: a 336 pixel square in patches of 14, which is what the common vision
//! encoders make of a small image. The floor counts no images, because some models use far fewer.
//!
//! **An estimate must not refuse what might fit.** The engine has the tokenizer and gives its own exact error; a router that
//! refuses by an average refuses prompts that are merely denser than the pool's average (English behind Chinese, prose behind
//! logs), and no client can do anything about it. So the estimate only chooses among windows ([`Need::fits`]), and a refusal
//! needs the floor not to fit ([`Need::might_fit`]): the text would have to have ten bytes per token, twice as many as English
//! prose, or half as many again as the pool's average where that is more, and no image cost anything. Between the two the largest window gets the request, and its engine decides.
//! Completions, embeddings, rerank, score and the like may carry many separate prompts, each of which must fit by itself; their
//! sum says nothing, so their floor is 0 and they are never refused here.
//!
//! **Scarcity.** A request that a smaller window could hold as well leaves [`reserve`] slots of a larger one free, as many as long
//! prompts are expected to need: the cap times their share of the pool's requests. Where nobody sends long prompts nothing is
//! kept back, and never more than half the cap, so that large machines are not idle while small ones are full.
//!
//! Cost: a few operations. Without anything learnt, bytes per token is 4 and the median output 128.

use crate::eligibility::Ask;
use crate::learnt::Learnt;
use crate::request::{Prompt, Shape};

/// Tokens that an image, sound or file is taken for.
pub const IMAGE_TOKENS: u64 = 576;
/// How much denser than the pool's average a text may be before its size is held against it.
pub const OPTIMISM: f64 = 1.5;
/// Bytes per token that any text may have, whatever the pool's average: what one client sends must not get another's prompts
/// refused.
pub const SPARSEST: f64 = 10.0;

/// What a request needs, in tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Need {
    /// The prompt, by estimate.
    pub prompt_tokens: u64,
    /// The least that the prompt can reasonably have.
    pub floor_tokens: u64,
    /// Room for the answer that the client asks for.
    pub requested_tokens: u64,
    /// What the answer will probably have.
    pub output_tokens: u64,
}

impl Need {
    /// Estimates it.
    #[must_use]
    pub fn of(shape: Shape, prompt: &Prompt, max_output: Option<u64>, learnt: &Learnt) -> Self {
        let text_tokens = |bytes_per_token: f64| (prompt.bytes as f64 / bytes_per_token).ceil() as u64;
        let bytes_per_token = learnt.bytes_per_token();
        let images = IMAGE_TOKENS.saturating_mul(prompt.images.into());
        let (requested_tokens, output_tokens) = if shape.generates() {
            (max_output.unwrap_or(0), max_output.unwrap_or(u64::MAX).min(learnt.median_output()))
        } else {
            (0, 0)
        };
        Need {
            prompt_tokens: text_tokens(bytes_per_token).saturating_add(prompt.token_ids).saturating_add(images),
            floor_tokens: if is_one_prompt(shape) {
                text_tokens((OPTIMISM * bytes_per_token).max(SPARSEST)).saturating_add(prompt.token_ids)
            } else {
                0
            },
            requested_tokens,
            output_tokens,
        }
    }

    /// Whether a window of so many tokens holds it, by estimate.
    #[must_use]
    pub fn fits(&self, window: u64) -> bool {
        self.prompt_tokens.saturating_add(self.requested_tokens) <= window
    }

    /// Whether it cannot be ruled out that the window holds it.
    #[must_use]
    pub fn might_fit(&self, window: u64) -> bool {
        self.floor_tokens.saturating_add(self.requested_tokens) <= window
    }

    /// Work that an endpoint has with it which holds so many tokens of its prompt already: what is left of the prompt, and the
    /// expected output.
    #[must_use]
    pub fn pending_tokens(&self, cached_tokens: u64) -> u64 {
        self.prompt_tokens.saturating_sub(cached_tokens).saturating_add(self.output_tokens)
    }

    /// The question to the pool.
    #[must_use]
    pub fn ask(&self, long_share: f64) -> Ask {
        Ask {
            prompt_tokens: self.prompt_tokens,
            floor_tokens: self.floor_tokens,
            requested_tokens: self.requested_tokens,
            output_tokens: self.output_tokens,
            long_share,
            ..Ask::default()
        }
    }
}

/// Whether all text of the request is one prompt.
fn is_one_prompt(shape: Shape) -> bool {
    matches!(shape, Shape::Chat | Shape::Responses | Shape::Messages)
}

/// Slots of an endpoint that stay free for requests that only a window of its size can hold:
/// `ceil(cap x long_share)`, at most half the cap (rounded down, so an endpoint with one slot keeps none). A share that is
/// not a number, or negative, keeps none.
#[must_use]
pub fn reserve(cap: u32, long_share: f64) -> u32 {
    ((f64::from(cap) * long_share).ceil() as u32).min(cap / 2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::learnt::{Pending, Sample};

    fn learnt(prompt_bytes: u64, prompt_tokens: u64, output: u64) -> Learnt {
        let (mut pending, mut learnt) = (Pending::default(), Learnt::default());
        let sample = Sample {
            prompt_bytes,
            prompt_tokens: Some(prompt_tokens),
            output_tokens: Some(output),
            ..Sample::default()
        };
        (0..1_000).for_each(|_| pending.add(&sample));
        pending.merge_into(&mut learnt);
        learnt
    }

    fn prompt(bytes: u64, token_ids: u64, images: u32) -> Prompt {
        Prompt { bytes, token_ids, images, ..Prompt::default() }
    }

    #[test]
    fn the_formulas() {
        let nothing = Learnt::default();
        let need = Need::of(Shape::Chat, &prompt(6_000, 10, 2), Some(64), &nothing);
        let expected = Need {
            prompt_tokens: 1_500 + 10 + 2 * 576,
            floor_tokens: 600 + 10,
            requested_tokens: 64,
            output_tokens: 64,
        };
        assert_eq!(need, expected);
        assert!(need.fits(2_726) && !need.fits(2_725));
        assert!(need.might_fit(674) && !need.might_fit(673));
        assert_eq!((need.pending_tokens(2_000), need.pending_tokens(9_999)), (662 + 64, 64));
    }

    // A pool full of dense text must not get English refused: 25,000 tokens of 4.5 bytes in a window of 32,768.
    #[test]
    fn what_others_send_refuses_nobody() {
        let need = Need::of(Shape::Chat, &prompt(112_500, 0, 0), None, &learnt(20_000, 10_000, 64));
        assert!(!need.fits(32_768) && need.might_fit(32_768));
    }

    #[test]
    fn what_the_pool_has_learnt_counts() {
        let learnt = learnt(20_000, 10_000, 512);
        let need = Need::of(Shape::Chat, &prompt(6_000, 0, 0), None, &learnt);
        assert_eq!((need.prompt_tokens, need.floor_tokens), (3_000, 600));
        assert_eq!(
            (need.requested_tokens, need.output_tokens),
            (0, 512),
            "a client that does not say asks for nothing"
        );
        let need = Need::of(Shape::Messages, &prompt(6_000, 0, 0), Some(100_000), &learnt);
        assert_eq!((need.requested_tokens, need.output_tokens), (100_000, 512), "asked for is not expected");
    }

    #[test]
    fn what_generates_nothing_has_no_output_and_many_prompts_are_not_added_up() {
        let nothing = Learnt::default();
        for shape in [Shape::Embeddings, Shape::Rerank, Shape::Score, Shape::Tokenize, Shape::CountTokens] {
            let need = Need::of(shape, &prompt(4_000_000, 1_000, 0), Some(64), &nothing);
            assert_eq!((need.requested_tokens, need.output_tokens), (0, 0), "{shape:?}");
            assert!(need.prompt_tokens > 1_000_000 && need.might_fit(8_192), "{shape:?}");
        }
        let batch = Need::of(Shape::Completions, &prompt(0, 1_000_000, 0), Some(64), &nothing);
        assert!(!batch.fits(8_192) && batch.might_fit(8_192));
    }

    #[test]
    fn slots_are_kept_by_the_share_of_long_prompts() {
        let cases =
            [(24, 0.0, 0), (24, 0.01, 1), (24, 0.25, 6), (24, 0.9, 12), (25, 1.0, 12), (1, 1.0, 0), (0, 1.0, 0)];
        for (cap, share, kept) in cases {
            assert_eq!(reserve(cap, share), kept, "{cap} {share}");
        }
        assert_eq!((reserve(24, f64::NAN), reserve(24, -1.0), reserve(24, f64::INFINITY)), (0, 0, 12));
    }

    proptest! {
        #[test]
        fn nothing_overflows_and_what_fits_might_fit(
            bytes in any::<u64>(), ids in any::<u64>(), images in any::<u32>(), max in any::<Option<u64>>(), window in any::<u64>(),
            share in any::<f64>(), cap in any::<u32>()
        ) {
            for shape in [Shape::Chat, Shape::Completions, Shape::Embeddings] {
                let need = Need::of(shape, &prompt(bytes, ids, images), max, &Learnt::default());
                prop_assert!(need.floor_tokens <= need.prompt_tokens);
                prop_assert!(!need.fits(window) || need.might_fit(window));
                prop_assert!(need.output_tokens <= 128 && need.pending_tokens(0) >= need.output_tokens);
                prop_assert_eq!(need.ask(0.5).window_tokens(), need.prompt_tokens.saturating_add(need.requested_tokens));
            }
            prop_assert!(reserve(cap, share) <= cap / 2);
        }
    }
}
