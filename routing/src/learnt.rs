//! What a pool's answers teach about its next requests: bytes per token, expected output, share of long prompts.
//!
//! Each VM collects a [`Pending`] and merges it on a tick into one shared value per pool (`learnt/1/<pool>`) with one
//! compare-and-swap ([`publish`]). Everything is a sum, so the order of merges and the division of answers over VMs do not matter
//! but for the decay.
//!
//! | estimate | formula | unit | until known |
//! |---|---|---|---|
//! | bytes per token | `(sum of prompt bytes + 4 * 1000) / (sum of prompt tokens + 1000)`, clamped to 0.5..=32 | raw JSON bytes of prompt text per token | 4.0 |
//! | expected output | median of a histogram of output tokens, centre of its bucket | tokens | 128, below 8 answers |
//! | share of long prompts | long / all | 0..=1 | 0 |
//!
//! - **Bytes per token** is a ratio of sums, so every token has the same say: long prompts, whose size matters for the window,
//!   outweigh short ones, which are mostly the chat template's own tokens. The 1,000 tokens at 4 bytes that it starts from keep
//!   one odd short answer from turning it over. Prompt tokens are those of the whole prompt, cached ones included.
//! - **Median**, not mean: one runaway generation of 100,000 tokens must not make every request look long. Buckets are
//!   logarithmic, 4 per octave, with powers of two at their centres: the result is within 9 % of the true median.
//! - **Decay**: when a sum of answers passes [`HALVE_ABOVE`], it is halved with all that belongs to it. The estimates thus look at
//!   the last one to two thousand answers or so, however much time that is: a pool that nobody used over night wakes up with
//!   what it knew.
//!
//! Cost: an answer adds to one bucket and five sums; a merge reads and writes the value of 372 bytes.
//!
//! | part | bytes | fields |
//! |---|---|---|
//! | header | 8 | `WBLT`, format u8, 3 x 0 |
//! | ratio | 24 | prompt bytes, prompt tokens, answers, each f64 |
//! | share | 16 | long, all, each f64 |
//! | histogram | 324 | answers per bucket, 81 x f32 |
//!
//! A value that is absent, of another format, or holds what no sum can be (negative, infinite, not a number) counts as empty.

use crate::live::{SharedValue, StoreError};

/// Answers in a sum above which it is halved.
pub const HALVE_ABOVE: f64 = 2_048.0;
/// Bytes per token until answers have taught better.
pub const DEFAULT_BYTES_PER_TOKEN: f64 = 4.0;
/// Expected output until answers have taught better, in tokens.
pub const DEFAULT_OUTPUT: u64 = 128;

/// Tokens that the default of bytes per token counts for.
const PRIOR_TOKENS: f64 = 1_000.0;
const MIN_BYTES_PER_TOKEN: f64 = 0.5;
const MAX_BYTES_PER_TOKEN: f64 = 32.0;
/// Answers below which a median says nothing.
const MIN_ANSWERS: f64 = 8.0;
const PER_OCTAVE: f64 = 4.0;
/// Up to 2^20 tokens.
const BUCKETS: usize = 20 * PER_OCTAVE as usize + 1;
/// Tokens that one prompt counts at most; its bytes shrink with them.
const MAX_WEIGHT_TOKENS: u64 = 16 * 1024;
/// Tokens that a chat template, tools of another spelling and the like may add to the text that is seen here.
const TEMPLATE_TOKENS: u64 = 2_048;
/// Only a lie can be longer than this.
const MAX_OUTPUT: u64 = 1 << 20;
/// No sum can be larger.
const MAX_SUM: f64 = 1e15;
const MAX_TRIES: u32 = 16;
const MAGIC: [u8; 8] = *b"WBLT\x01\0\0\0";

/// What one answer teaches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sample {
    /// Raw JSON bytes of the prompt's text, as the request parser counts them; 0 when the prompt's tokens do not come from
    /// text alone (token ids, images), so that they teach nothing about bytes.
    pub prompt_bytes: u64,
    /// Tokens of the whole prompt, cached ones included, as the engine says.
    pub prompt_tokens: Option<u64>,
    /// Tokens that were generated; `None` for shapes that generate none.
    pub output_tokens: Option<u64>,
    /// The prompt would not have fitted into the smallest context window of the pool.
    pub long: bool,
}

/// The sums of a pool.
#[derive(Debug, Clone, PartialEq)]
pub struct Learnt {
    prompt_bytes: f64,
    prompt_tokens: f64,
    prompt_answers: f64,
    long: f64,
    all: f64,
    outputs: [f32; BUCKETS],
}

impl Default for Learnt {
    fn default() -> Self {
        Learnt {
            prompt_bytes: 0.0,
            prompt_tokens: 0.0,
            prompt_answers: 0.0,
            long: 0.0,
            all: 0.0,
            outputs: [0.0; BUCKETS],
        }
    }
}

impl Learnt {
    /// Takes bytes that [`Learnt::encode`] once gave; anything else counts as empty.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Self {
        Self::try_decode(bytes).unwrap_or_default()
    }

    fn try_decode(bytes: &[u8]) -> Option<Self> {
        let (mut sums, mut rest) = ([0.0; 5], bytes.strip_prefix(&MAGIC)?);
        for sum in &mut sums {
            let (chunk, after) = rest.split_first_chunk()?;
            *sum = f64::from_le_bytes(*chunk);
            rest = after;
        }
        let mut outputs = [0.0; BUCKETS];
        for bucket in &mut outputs {
            let (chunk, after) = rest.split_first_chunk()?;
            *bucket = f32::from_le_bytes(*chunk);
            rest = after;
        }
        let [prompt_bytes, prompt_tokens, prompt_answers, long, all] = sums;
        let possible = |sum: f64| (0.0..=MAX_SUM).contains(&sum);
        let sound = rest.is_empty()
            && sums.iter().all(|sum| possible(*sum))
            && outputs.iter().all(|count| possible((*count).into()));
        sound.then_some(Learnt { prompt_bytes, prompt_tokens, prompt_answers, long, all, outputs })
    }

    /// The binary form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for sum in [self.prompt_bytes, self.prompt_tokens, self.prompt_answers, self.long, self.all] {
            bytes.extend(sum.to_le_bytes());
        }
        for count in self.outputs {
            bytes.extend(count.to_le_bytes());
        }
        bytes
    }

    /// Raw JSON bytes of prompt text per token.
    #[must_use]
    pub fn bytes_per_token(&self) -> f64 {
        let bytes = self.prompt_bytes + DEFAULT_BYTES_PER_TOKEN * PRIOR_TOKENS;
        (bytes / (self.prompt_tokens + PRIOR_TOKENS)).clamp(MIN_BYTES_PER_TOKEN, MAX_BYTES_PER_TOKEN)
    }

    /// The output that half of the answers stay within, in tokens.
    #[must_use]
    pub fn median_output(&self) -> u64 {
        let total = self.outputs_total();
        if total < MIN_ANSWERS {
            return DEFAULT_OUTPUT;
        }
        let mut below = 0.0;
        for (index, count) in self.outputs.iter().enumerate() {
            below += f64::from(*count);
            if below >= total / 2.0 {
                return centre(index);
            }
        }
        DEFAULT_OUTPUT
    }

    /// The share of prompts that are long, 0..=1.
    #[must_use]
    pub fn long_share(&self) -> f64 {
        if self.all > 0.0 { (self.long / self.all).clamp(0.0, 1.0) } else { 0.0 }
    }

    fn outputs_total(&self) -> f64 {
        self.outputs.iter().map(|count| f64::from(*count)).sum()
    }

    fn decay(&mut self) {
        while self.prompt_answers > HALVE_ABOVE {
            self.prompt_bytes /= 2.0;
            self.prompt_tokens /= 2.0;
            self.prompt_answers /= 2.0;
        }
        while self.all > HALVE_ABOVE {
            self.long /= 2.0;
            self.all /= 2.0;
        }
        while self.outputs_total() > HALVE_ABOVE {
            for count in &mut self.outputs {
                *count /= 2.0;
            }
        }
    }
}

/// Whether a prompt of so many bytes can have so many tokens. An engine that reports nonsense must not teach a pool that
/// every prompt is too long.
fn is_plausible(bytes: u64, tokens: u64) -> bool {
    let most = bytes.saturating_add(TEMPLATE_TOKENS);
    let least = bytes.saturating_sub(4_096) / 64;
    bytes > 0 && tokens > 0 && (least..=most).contains(&tokens)
}

/// What one VM has seen since it last published.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pending {
    sums: Learnt,
}

impl Pending {
    /// Counts an answer.
    pub fn add(&mut self, sample: &Sample) {
        let sums = &mut self.sums;
        let tokens = sample.prompt_tokens.unwrap_or(0);
        if is_plausible(sample.prompt_bytes, tokens) {
            // One long prompt must not speak for the whole pool.
            let weight = (MAX_WEIGHT_TOKENS as f64 / tokens as f64).min(1.0);
            sums.prompt_bytes += weight * sample.prompt_bytes as f64;
            sums.prompt_tokens += weight * tokens as f64;
            sums.prompt_answers += 1.0;
        }
        let output = sample.output_tokens.filter(|tokens| *tokens <= MAX_OUTPUT);
        if let Some(count) = output.and_then(|tokens| sums.outputs.get_mut(bucket(tokens))) {
            *count += 1.0;
        }
        sums.long += f64::from(u8::from(sample.long));
        sums.all += 1.0;
        // Bounded also where nobody publishes.
        if sums.all > HALVE_ABOVE {
            sums.decay();
        }
    }

    /// Whether there is nothing to publish.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sums.all == 0.0
    }

    /// Adds to what the pool knows. Keeps what it has, because the write may have to be tried again; see [`Pending::clear`].
    pub fn merge_into(&self, learnt: &mut Learnt) {
        learnt.prompt_bytes += self.sums.prompt_bytes;
        learnt.prompt_tokens += self.sums.prompt_tokens;
        learnt.prompt_answers += self.sums.prompt_answers;
        learnt.long += self.sums.long;
        learnt.all += self.sums.all;
        for (count, more) in learnt.outputs.iter_mut().zip(self.sums.outputs) {
            *count += more;
        }
        learnt.decay();
    }

    /// Forgets everything, after it was published.
    pub fn clear(&mut self) {
        *self = Pending::default();
    }
}

/// Merges into the shared value of the pool and gives what the pool now knows. `pending` is empty afterwards, unless the write
/// failed; then it waits for the next time. With nothing pending it only reads.
///
/// # Errors
/// What the shared memory says; [`StoreError::Conflict`] after 16 tries.
pub fn publish(value: &mut impl SharedValue, pending: &mut Pending) -> Result<Learnt, StoreError> {
    for _ in 0..MAX_TRIES {
        let (bytes, token) = value.load();
        let mut learnt = bytes.map_or_else(Learnt::default, |bytes| Learnt::decode(&bytes));
        if pending.is_empty() {
            return Ok(learnt);
        }
        pending.merge_into(&mut learnt);
        match value.store(&learnt.encode(), token) {
            Ok(()) => {
                pending.clear();
                return Ok(learnt);
            }
            Err(StoreError::Conflict) => {}
            Err(error) => return Err(error),
        }
    }
    Err(StoreError::Conflict)
}

/// The bucket of an output: the one whose centre `2^(index / 4)` is nearest on the logarithmic scale.
fn bucket(tokens: u64) -> usize {
    ((tokens.max(1) as f64).log2() * PER_OCTAVE).round().min((BUCKETS - 1) as f64) as usize
}

fn centre(index: usize) -> u64 {
    (index as f64 / PER_OCTAVE).exp2().round() as u64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::live::testing::Memory;

    fn answer(prompt_bytes: u64, prompt_tokens: u64, output_tokens: u64) -> Sample {
        Sample { prompt_bytes, prompt_tokens: Some(prompt_tokens), output_tokens: Some(output_tokens), long: false }
    }

    fn learn(samples: &[Sample], per_merge: usize) -> Learnt {
        let mut learnt = Learnt::default();
        for part in samples.chunks(per_merge) {
            let mut pending = Pending::default();
            part.iter().for_each(|sample| pending.add(sample));
            pending.merge_into(&mut learnt);
        }
        learnt
    }

    #[test]
    fn nothing_learnt_yet() {
        let learnt = Learnt::default();
        assert_eq!((learnt.bytes_per_token(), learnt.median_output(), learnt.long_share()), (4.0, 128, 0.0));
        let learnt = learn(&[answer(10, 40, 3); 7], 7);
        assert_eq!(learnt.median_output(), 128, "seven answers are too few for a median");
        assert!(learnt.bytes_per_token() > 3.0, "short prompts are mostly template");
    }

    #[test]
    fn it_follows_what_the_pool_serves() {
        let mut samples = vec![answer(30_000, 10_000, 512); 1_000];
        samples.extend([Sample { long: true, ..answer(30_000, 10_000, 100_000) }; 250]);
        let learnt = learn(&samples, 10);
        assert!((learnt.bytes_per_token() - 3.0).abs() < 0.01);
        assert_eq!((learnt.median_output(), learnt.long_share()), (512, 0.2));
        // The traffic changes: after as many answers again as are remembered, the new ones are the majority.
        let mut changed = samples;
        changed.extend(vec![answer(15_000, 10_000, 64); 4_096]);
        let learnt = learn(&changed, 50);
        assert!((learnt.bytes_per_token() - 1.5).abs() < 0.15, "{}", learnt.bytes_per_token());
        assert!(learnt.median_output() == 64 && learnt.long_share() < 0.05);
    }

    #[test]
    fn what_says_nothing_about_a_figure_does_not_change_it() {
        let samples = [
            Sample { prompt_bytes: 0, prompt_tokens: Some(90_000), ..Sample::default() },
            Sample { prompt_bytes: 90_000, prompt_tokens: None, ..Sample::default() },
            Sample { prompt_bytes: 90_000, prompt_tokens: Some(0), ..Sample::default() },
        ];
        let learnt = learn(&samples.repeat(10), 30);
        assert_eq!((learnt.bytes_per_token(), learnt.median_output()), (4.0, 128));
    }

    #[test]
    fn many_vms_lose_nothing() {
        let memory = Memory::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let mut value = Memory(Arc::clone(&memory.0));
                scope.spawn(move || {
                    for _ in 0..100 {
                        let mut pending = Pending::default();
                        pending.add(&answer(300, 100, 32));
                        while publish(&mut value, &mut pending).is_err() {}
                        assert!(pending.is_empty());
                    }
                });
            }
        });
        let learnt = publish(&mut { memory }, &mut Pending::default()).unwrap();
        assert_eq!((learnt.all, learnt.prompt_bytes, learnt.outputs_total()), (400.0, 120_000.0, 400.0));
    }

    #[test]
    fn a_write_that_fails_keeps_what_is_pending() {
        struct Full;
        impl SharedValue for Full {
            fn load(&mut self) -> (Option<Vec<u8>>, u32) {
                (None, 0)
            }
            fn store(&mut self, _: &[u8], _: u32) -> Result<(), StoreError> {
                Err(StoreError::Failed)
            }
        }
        let mut pending = Pending::default();
        pending.add(&answer(1, 1, 1));
        assert_eq!(publish(&mut Full, &mut pending), Err(StoreError::Failed));
        assert!(!pending.is_empty());
    }

    #[test]
    fn a_value_that_no_sums_can_have_is_empty() {
        for (place, value) in [(8, f64::NAN), (16, f64::INFINITY), (24, -1.0), (40, 1e300)] {
            let mut bytes = learn(&[answer(300, 100, 32); 20], 20).encode();
            bytes[place..place + 8].copy_from_slice(&value.to_le_bytes());
            assert_eq!(Learnt::decode(&bytes), Learnt::default());
        }
        let mut bytes = Learnt::default().encode();
        bytes.push(0);
        assert_eq!(Learnt::decode(&bytes), Learnt::default());
        assert_eq!(bytes.len(), 373);
    }

    /// The median of the samples themselves.
    fn true_median(mut outputs: Vec<u64>) -> u64 {
        outputs.sort_unstable();
        outputs[(outputs.len() - 1) / 2].max(1)
    }

    #[test]
    fn nonsense_teaches_nothing() {
        let (mut pending, mut learnt) = (Pending::default(), Learnt::default());
        let sane =
            Sample { prompt_bytes: 4_000, prompt_tokens: Some(1_000), output_tokens: Some(64), ..Sample::default() };
        (0..20).for_each(|_| pending.add(&sane));
        let lie =
            Sample { prompt_bytes: 40, prompt_tokens: Some(10u64.pow(18)), output_tokens: Some(u64::MAX), long: false };
        pending.add(&lie);
        pending.add(&Sample { prompt_bytes: u64::MAX, prompt_tokens: Some(1), ..lie });
        pending.merge_into(&mut learnt);
        assert!((learnt.bytes_per_token() / 4.0 - 1.0).abs() < 0.1, "{}", learnt.bytes_per_token());
        assert!(learnt.median_output() < 100, "{}", learnt.median_output());
    }

    proptest! {
        #[test]
        fn the_median_is_right_however_the_answers_are_divided(
            outputs in proptest::collection::vec(0u64..1_000_000, 8..500), per_merge in 1usize..100, rotate in 0usize..500
        ) {
            let samples: Vec<_> = outputs.iter().map(|tokens| answer(400, 100, *tokens)).collect();
            let learnt = learn(&samples, per_merge);
            let mut other = samples;
            let by = rotate % other.len();
            other.rotate_left(by);
            let ratio = learnt.median_output() as f64 / true_median(outputs) as f64;
            prop_assert_eq!(learn(&other, 1_000), learnt);
            prop_assert!((0.9..1.11).contains(&ratio), "{}", ratio);
        }

        #[test]
        fn decay_hardly_moves_the_median(seed in any::<u64>(), one in 1usize..3_000, two in 1usize..3_000) {
            // One distribution, uniform on the logarithmic scale from 1 to 4,096: whatever the merges, its median is about 64.
            let mut rng = crate::rng::SplitMix64::seeded(seed);
            let samples: Vec<_> = (0..6_000).map(|_| answer(400, 100, 2f64.powf(rng.below(12_000) as f64 / 1_000.0) as u64)).collect();
            for per_merge in [one, two] {
                let learnt = learn(&samples, per_merge);
                prop_assert!((40..=104).contains(&learnt.median_output()), "{}", learnt.median_output());
                prop_assert!(learnt.outputs_total() <= HALVE_ABOVE && learnt.all <= HALVE_ABOVE);
            }
        }

        #[test]
        fn whatever_comes_the_estimates_are_numbers(
            samples in proptest::collection::vec((any::<u64>(), any::<Option<u64>>(), any::<Option<u64>>(), any::<bool>()), 0..50),
            times in 1usize..100
        ) {
            let samples: Vec<_> = samples.into_iter().map(|(prompt_bytes, prompt_tokens, output_tokens, long)| {
                Sample { prompt_bytes, prompt_tokens, output_tokens, long }
            }).collect();
            let learnt = learn(&samples.repeat(times), 70);
            prop_assert!((0.5..=32.0).contains(&learnt.bytes_per_token()));
            prop_assert!((1..=1 << 20).contains(&learnt.median_output()));
            prop_assert!((0.0..=1.0).contains(&learnt.long_share()));
            prop_assert_eq!(Learnt::decode(&learnt.encode()), learnt);
        }

        #[test]
        fn any_bytes_are_something_defined(junk in proptest::collection::vec(any::<u8>(), 364), prefix in any::<bool>()) {
            let bytes = if prefix { [&MAGIC[..], &junk].concat() } else { junk };
            let learnt = Learnt::decode(&bytes);
            prop_assert!((0.5..=32.0).contains(&learnt.bytes_per_token()));
            prop_assert!((1..=1 << 20).contains(&learnt.median_output()));
            prop_assert!((0.0..=1.0).contains(&learnt.long_share()));
        }
    }
}
