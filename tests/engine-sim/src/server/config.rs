//! What an engine is started with.

use std::net::{Ipv4Addr, SocketAddr};

use super::launch_args::LaunchArgs;
use super::shapes::SseStyle;
use crate::model::{Profile, ProfileError};

/// Start parameters of one engine.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The machine.
    pub profile: Profile,
    /// Name of the served model.
    pub model: String,
    /// Names of LoRA adapters, served like models beside the base model.
    pub adapters: Vec<String>,
    /// Value of `x-engine-id`.
    pub name: String,
    /// Command line that the engine pretends to run with, vLLM's. `--max-model-len`, `--max-num-seqs`,
    /// `--[no-]enable-prefix-caching` take effect, these and `--gpu-memory-utilization`, `--kv-cache-dtype` show in
    /// `vllm:cache_config_info` or `/v1/models`; the rest is only kept.
    pub launch_args: String,
    /// Context window in tokens; 0 takes the profile's. `--max-model-len` in `launch_args` comes first. The KV cache grows
    /// to hold it where needed.
    pub max_model_len: u32,
    /// Model seconds per wall-clock second, above 0; 10 makes everything ten times as fast.
    pub time_scale: f64,
    /// Whether the cold-start penalty is due at the start and after [`super::EngineHandle::revive`].
    pub cold: bool,
    /// Seed of the faults' dice.
    pub seed: u64,
    /// How streams look on the wire.
    pub sse: SseStyle,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            profile: Profile::instant(),
            model: "sim".to_owned(),
            adapters: Vec::new(),
            name: "engine".to_owned(),
            launch_args: String::new(),
            max_model_len: 0,
            time_scale: 1.0,
            cold: true,
            seed: 0,
            sse: SseStyle::default(),
        }
    }
}

impl EngineConfig {
    /// The profile as launched with these arguments, checked.
    pub(crate) fn effective_profile(&self, launch_args: &LaunchArgs) -> Result<Profile, ProfileError> {
        let mut profile = self.profile.clone();
        if self.max_model_len > 0 {
            profile.max_model_len = u64::from(self.max_model_len);
        }
        let profile = launch_args.apply(profile);
        if !self.time_scale.is_finite() || self.time_scale <= 0.0 {
            return Err(ProfileError::new("time_scale", "must be a number above 0"));
        }
        profile.validate()?;
        Ok(profile)
    }
}
