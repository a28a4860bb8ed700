//! The launch arguments that real engines have, as far as they change what is simulated or shown.

use crate::model::Profile;

/// Read from one string of arguments. What is unknown, unreadable or impossible has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LaunchArgs {
    max_model_len: Option<u64>,
    max_num_seqs: Option<usize>,
    prefix_caching: Option<bool>,
    pub(crate) gpu_memory_utilization: String,
    pub(crate) cache_dtype: String,
}

impl LaunchArgs {
    /// Takes `--flag value` and `--flag=value`.
    pub(crate) fn parse(text: &str) -> Self {
        let mut args = Self {
            max_model_len: None,
            max_num_seqs: None,
            prefix_caching: None,
            gpu_memory_utilization: "0.9".to_owned(),
            cache_dtype: "auto".to_owned(),
        };
        let mut words = text.split_whitespace().peekable();
        while let Some(word) = words.next() {
            let (flag, inline) = match word.split_once('=') {
                Some((flag, value)) => (flag, Some(value)),
                None => (word, None),
            };
            let mut value = || inline.or_else(|| words.next_if(|next| !next.starts_with("--")));
            match flag {
                "--max-model-len" => args.max_model_len = value().and_then(|v| v.parse().ok()).filter(|len| *len >= 2),
                "--max-num-seqs" => args.max_num_seqs = value().and_then(|v| v.parse().ok()).filter(|n| *n >= 1),
                "--enable-prefix-caching" => args.prefix_caching = Some(true),
                "--no-enable-prefix-caching" => args.prefix_caching = Some(false),
                "--gpu-memory-utilization" => args.gpu_memory_utilization = value().unwrap_or("0.9").to_owned(),
                "--kv-cache-dtype" => args.cache_dtype = value().unwrap_or("auto").to_owned(),
                _ => {}
            }
        }
        args
    }

    /// The machine as launched with these arguments. The KV cache grows to hold the context window where needed.
    pub(crate) fn apply(&self, mut profile: Profile) -> Profile {
        profile.max_model_len = self.max_model_len.unwrap_or(profile.max_model_len);
        profile.batch_limit = self.max_num_seqs.unwrap_or(profile.batch_limit);
        profile.prefix_caching = self.prefix_caching.unwrap_or(profile.prefix_caching);
        let block = profile.block_size_tokens.max(1);
        let needed = profile.max_model_len.div_ceil(block).saturating_mul(block);
        profile.kv_capacity_tokens = profile.kv_capacity_tokens.max(needed);
        profile
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_change_the_machine() {
        let args = LaunchArgs::parse(
            "-tp 2 --max-model-len 524288 --max-num-seqs=8 --no-enable-prefix-caching --kv-cache-dtype fp8",
        );
        let profile = args.apply(Profile::fast());
        assert_eq!((profile.max_model_len, profile.batch_limit, profile.prefix_caching), (524_288, 8, false));
        assert_eq!(args.cache_dtype, "fp8");
        profile.validate().unwrap();
    }

    #[test]
    fn what_makes_no_sense_changes_nothing() {
        let args = LaunchArgs::parse("--max-model-len lots --max-num-seqs 0 --foo --gpu-memory-utilization");
        assert_eq!(args.apply(Profile::pair()), Profile::pair());
        assert_eq!(args.gpu_memory_utilization, "0.9");
    }
}
