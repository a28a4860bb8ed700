//! What distinguishes one machine from another.

use serde::{Deserialize, Serialize};

use super::curve::Curve;

/// A value in a profile that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("profile field `{field}`: {reason}")]
pub struct ProfileError {
    /// The field at fault.
    pub field: &'static str,
    /// What is wrong with its value.
    pub reason: String,
}

impl ProfileError {
    pub(crate) fn new(field: &'static str, reason: impl Into<String>) -> Self {
        Self { field, reason: reason.into() }
    }
}

/// The penalty of the first requests after a (re)start: compilation, graph capture.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cold {
    /// How many generated tokens the penalty lasts; 0 for none.
    pub tokens: u64,
    /// Decoding speed meanwhile, as a share of the curve, above 0 and at most 1.
    pub speed: f64,
}

impl Cold {
    /// No penalty.
    pub const NONE: Self = Self { tokens: 0, speed: 1.0 };
    /// The published case: the first burst of 16 x 128 tokens shows 275 tok/s instead of 980.
    pub const PUBLISHED: Self = Self { tokens: 16 * 128, speed: 275.0 / 980.0 };
}

/// A machine: its speed, its limits, its memory.
///
/// As JSON, every field except `name` and `curve` has a default; unknown fields are refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// A name for people.
    pub name: String,
    /// Points of (sequences decoding together, total tok/s); see [`Curve`]. Empty: decoding takes no time.
    pub curve: Vec<(u32, f64)>,
    /// Prefill speed in tok/s of uncached prompt tokens; 0: prefill takes no time.
    #[serde(default = "defaults::prefill_tps")]
    pub prefill_tps: f64,
    /// Attention: the place in a prompt, in tokens, where computing one takes twice as long as at the beginning, where it takes
    /// 1 / `prefill_tps`; linear in between and beyond. 0, the default: a token takes as long everywhere.
    #[serde(default)]
    pub prefill_doubles_at_tokens: f64,
    /// Prefills that go on at once, each at `prefill_tps`; the others wait for their turn. The default is one.
    #[serde(default = "defaults::prefill_lanes")]
    pub prefill_lanes: usize,
    /// Uncached prompt tokens per request whose prefill is already inside the curve.
    #[serde(default = "defaults::prefill_included_tokens")]
    pub prefill_included_tokens: u64,
    /// Decoding speed while a prefill runs, as a share of the curve (above 0, at most 1). The default of 1 keeps decodes
    /// undisturbed; real engines lie below it.
    #[serde(default = "defaults::one")]
    pub decode_share_during_prefill: f64,
    /// Sequences that run together at most; the others wait in the engine's queue.
    #[serde(default = "defaults::batch_limit")]
    pub batch_limit: usize,
    /// Room in the KV cache, in tokens.
    #[serde(default = "defaults::kv_capacity_tokens")]
    pub kv_capacity_tokens: u64,
    /// Tokens per KV block.
    #[serde(default = "defaults::block_size_tokens")]
    pub block_size_tokens: u64,
    /// Whether prompt blocks are shared between requests.
    #[serde(default = "defaults::yes")]
    pub prefix_caching: bool,
    /// Prompt plus output tokens that one request may have.
    #[serde(default = "defaults::max_model_len")]
    pub max_model_len: u64,
    /// Mean of the output length, in tokens, of a request that lets the model stop by itself.
    #[serde(default = "defaults::mean_output_tokens")]
    pub mean_output_tokens: f64,
    /// The cold-start penalty.
    #[serde(default = "defaults::cold")]
    pub cold: Cold,
}

mod defaults {
    use super::Cold;

    pub(super) fn prefill_tps() -> f64 {
        6_000.0
    }
    pub(super) fn prefill_lanes() -> usize {
        1
    }
    pub(super) fn prefill_included_tokens() -> u64 {
        64
    }
    pub(super) fn one() -> f64 {
        1.0
    }
    pub(super) fn batch_limit() -> usize {
        32
    }
    pub(super) fn kv_capacity_tokens() -> u64 {
        262_144
    }
    pub(super) fn block_size_tokens() -> u64 {
        16
    }
    pub(super) fn yes() -> bool {
        true
    }
    pub(super) fn max_model_len() -> u64 {
        32_768
    }
    pub(super) fn mean_output_tokens() -> f64 {
        64.0
    }
    pub(super) fn cold() -> Cold {
        Cold::PUBLISHED
    }
}

impl Profile {
    /// A profile with the given curve and defaults for the rest.
    pub fn new(name: impl Into<String>, curve: &[(u32, f64)]) -> Self {
        Self {
            name: name.into(),
            curve: curve.to_vec(),
            prefill_tps: defaults::prefill_tps(),
            prefill_doubles_at_tokens: 0.0,
            prefill_lanes: defaults::prefill_lanes(),
            prefill_included_tokens: defaults::prefill_included_tokens(),
            decode_share_during_prefill: defaults::one(),
            batch_limit: defaults::batch_limit(),
            kv_capacity_tokens: defaults::kv_capacity_tokens(),
            block_size_tokens: defaults::block_size_tokens(),
            prefix_caching: defaults::yes(),
            max_model_len: defaults::max_model_len(),
            mean_output_tokens: defaults::mean_output_tokens(),
            cold: defaults::cold(),
        }
    }

    /// The fast card of the published case: 980 tok/s at 16, 275 when cold.
    pub fn fast() -> Self {
        let mut profile = Self::new("fast", &[(1, 106.0), (8, 688.0), (16, 980.0), (32, 1440.0)]);
        profile.max_model_len = 65_536;
        profile
    }

    /// The pair of cards of the published case: 479 tok/s at 16, and no more at 32.
    pub fn pair() -> Self {
        Self::new("pair", &[(1, 94.0), (8, 400.0), (16, 479.0), (32, 465.0)])
    }

    /// A small card, for a fleet of more than two speeds: 240 tok/s at 16.
    pub fn small() -> Self {
        Self::new("small", &[(1, 60.0), (8, 200.0), (16, 240.0), (32, 235.0)])
    }

    /// Seconds that computing the tokens of a prompt from one place to another takes: with `d = prefill_doubles_at_tokens`, the
    /// integral of `(1 + x / d) / prefill_tps` over x.
    pub fn prefill_s(&self, from: u64, to: u64) -> f64 {
        if self.prefill_tps == 0.0 || to <= from {
            return 0.0;
        }
        let (from, to) = (from as f64, to as f64);
        let attention = match self.prefill_doubles_at_tokens {
            0.0 => 0.0,
            doubles_at => (to * to - from * from) / (2.0 * doubles_at),
        };
        (to - from + attention) / self.prefill_tps
    }

    /// Answers at once, whatever the load: for tests of the machinery around it.
    pub fn instant() -> Self {
        let mut profile = Self::new("instant", &[]);
        profile.prefill_tps = 0.0;
        profile.batch_limit = 1024;
        profile.max_model_len = 1 << 20;
        profile.kv_capacity_tokens = 1 << 21;
        profile.cold = Cold::NONE;
        profile
    }

    /// A built-in profile by name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "fast" => Some(Self::fast()),
            "pair" => Some(Self::pair()),
            "small" => Some(Self::small()),
            "instant" => Some(Self::instant()),
            _ => None,
        }
    }

    /// The same machine without the cold-start penalty.
    #[must_use]
    pub fn warm(mut self) -> Self {
        self.cold = Cold::NONE;
        self
    }

    /// The KV cache's size in blocks, rounded down.
    pub fn kv_blocks(&self) -> u64 {
        self.kv_capacity_tokens / self.block_size_tokens.max(1)
    }

    /// Checks every field; the curve comes back ready for use.
    pub fn validate(&self) -> Result<Curve, ProfileError> {
        let curve = Curve::try_new(&self.curve)?;
        let fail = |field, reason: &str| Err(ProfileError::new(field, reason));
        let share = |value: f64| value > 0.0 && value <= 1.0;
        if !self.prefill_tps.is_finite() || self.prefill_tps < 0.0 {
            return fail("prefill_tps", "must be a number, at least 0");
        }
        if !self.prefill_doubles_at_tokens.is_finite() || self.prefill_doubles_at_tokens < 0.0 {
            return fail("prefill_doubles_at_tokens", "must be a number, at least 0");
        }
        if self.prefill_lanes == 0 {
            return fail("prefill_lanes", "must be at least 1");
        }
        if !share(self.decode_share_during_prefill) {
            return fail("decode_share_during_prefill", "must be above 0 and at most 1");
        }
        if !share(self.cold.speed) {
            return fail("cold.speed", "must be above 0 and at most 1");
        }
        if self.batch_limit == 0 {
            return fail("batch_limit", "must be at least 1");
        }
        if self.block_size_tokens == 0 {
            return fail("block_size_tokens", "must be at least 1");
        }
        if self.max_model_len < 2 {
            return fail("max_model_len", "must be at least 2");
        }
        if self.kv_blocks() * self.block_size_tokens < self.max_model_len {
            return fail("kv_capacity_tokens", "must hold at least one request of max_model_len");
        }
        if !self.mean_output_tokens.is_finite() || self.mean_output_tokens < 1.0 {
            return fail("mean_output_tokens", "must be at least 1");
        }
        Ok(curve)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_profiles_are_valid() {
        for name in ["fast", "pair", "small", "instant"] {
            let profile = Profile::named(name).unwrap();
            assert_eq!(profile.name, name);
            profile.validate().unwrap();
        }
        assert!(Profile::named("huge").is_none());
    }

    #[test]
    fn json_has_defaults_and_refuses_unknown_fields() {
        let profile: Profile = serde_json::from_str(r#"{"name":"x","curve":[[1,50.0]]}"#).unwrap();
        assert_eq!(profile, Profile::new("x", &[(1, 50.0)]));
        let error = serde_json::from_str::<Profile>(r#"{"name":"x","curve":[],"sped":1}"#).unwrap_err();
        assert!(error.to_string().contains("sped"), "{error}");
    }

    #[test]
    fn errors_name_the_field() {
        let mut profile = Profile::fast();
        profile.kv_capacity_tokens = 1000;
        assert_eq!(profile.validate().unwrap_err().field, "kv_capacity_tokens");
        let mut profile = Profile::fast();
        profile.cold.speed = 0.0;
        assert_eq!(profile.validate().unwrap_err().field, "cold.speed");
        let profile = Profile { prefill_doubles_at_tokens: -1.0, ..Profile::fast() };
        assert_eq!(profile.validate().unwrap_err().field, "prefill_doubles_at_tokens");
    }

    #[test]
    fn attention_makes_the_end_of_a_prompt_dearer_than_its_beginning() {
        let linear = Profile { prefill_tps: 1_000.0, ..Profile::fast() };
        assert_eq!(
            [linear.prefill_s(0, 2_000), linear.prefill_s(1_500, 2_000), linear.prefill_s(5, 5)],
            [2.0, 0.5, 0.0]
        );
        let profile = Profile { prefill_doubles_at_tokens: 1_000.0, ..linear };
        // A token at 0 takes 1 ms, one at 1,000 takes 2, one at 2,000 takes 3.
        assert_eq!([profile.prefill_s(0, 2_000), profile.prefill_s(1_000, 2_000)], [4.0, 2.5]);
        assert_eq!(Profile { prefill_tps: 0.0, ..profile }.prefill_s(0, 2_000), 0.0);
    }
}
