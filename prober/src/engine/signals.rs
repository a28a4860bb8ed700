//! The metrics of an engine, in the Prometheus text format.

use serde::Serialize;

/// Who made the engine, told by the prefix of its metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Brand {
    /// vLLM
    Vllm,
    /// SGLang
    Sglang,
    /// llama.cpp's server
    Llamacpp,
}

/// The newest figures of an engine. A failed scrape keeps the old ones and says so: stale is not full.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Signals {
    /// Which engine; `None` when its metrics are of no known brand.
    pub brand: Option<Brand>,
    /// Requests it runs.
    pub running: Option<u64>,
    /// Requests in its own queue.
    pub waiting: Option<u64>,
    /// Filled share of its KV cache, 0 to 1.
    pub kv_usage: Option<f64>,
    /// Tokens that its KV cache holds.
    pub kv_tokens: Option<u64>,
    /// Tokens that it has generated since it started.
    #[serde(skip)]
    pub generated_tokens: Option<u64>,
    /// When they were read, Unix ms.
    pub at_ms: Option<u64>,
    /// Why the last scrape gave nothing.
    pub error: Option<String>,
    /// `process_start_time_seconds`: another value means a restart.
    #[serde(skip)]
    pub started_s: Option<f64>,
    /// The labels of `vllm:cache_config_info` that launch arguments set.
    #[serde(skip)]
    pub cache_config: String,
}

/// Labels of `vllm:cache_config_info` that follow from launch arguments. (The number of blocks differs from start to
/// start with the same ones.)
const CONFIG_LABELS: [&str; 4] = ["block_size", "cache_dtype", "enable_prefix_caching", "gpu_memory_utilization"];

/// Reads the Prometheus text format as far as it matters here. Several engines in one process are summed; of their KV
/// usage the highest counts.
#[must_use]
pub fn parse(text: &str) -> Signals {
    let mut signals = Signals::default();
    let add = |sum: &mut Option<u64>, value: f64| *sum = Some(sum.unwrap_or(0).saturating_add(value.max(0.0) as u64));
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        let (labels, value) = match line.split_once('{') {
            Some((_, rest)) => rest.rsplit_once('}').unwrap_or((rest, "")),
            None => ("", line.get(name.len()..).unwrap_or_default()),
        };
        let Some(value) = value.split_whitespace().next().and_then(|text| text.parse::<f64>().ok()) else { continue };
        let brand = match name.split_once(':').map(|(prefix, _)| prefix) {
            Some("vllm") => Some(Brand::Vllm),
            Some("sglang") => Some(Brand::Sglang),
            Some("llamacpp") => Some(Brand::Llamacpp),
            _ => None,
        };
        signals.brand = signals.brand.or(brand);
        match name {
            "vllm:num_requests_running" | "sglang:num_running_reqs" | "llamacpp:requests_processing" => {
                add(&mut signals.running, value);
            }
            "vllm:num_requests_waiting" | "sglang:num_queue_reqs" | "llamacpp:requests_deferred" => {
                add(&mut signals.waiting, value);
            }
            "vllm:kv_cache_usage_perc" | "vllm:gpu_cache_usage_perc" | "sglang:token_usage" => {
                signals.kv_usage = Some(signals.kv_usage.unwrap_or(0.0).max(value));
            }
            "vllm:generation_tokens_total" | "sglang:generation_tokens_total" | "llamacpp:tokens_predicted_total" => {
                add(&mut signals.generated_tokens, value);
            }
            "sglang:max_total_num_tokens" if value >= 1.0 => add(&mut signals.kv_tokens, value),
            "process_start_time_seconds" => signals.started_s = Some(value),
            "vllm:cache_config_info" => {
                let mut told: Vec<_> =
                    labels.split(',').filter(|label| CONFIG_LABELS.contains(&name_of(label))).collect();
                told.sort_unstable();
                signals.cache_config = told.join(",");
                let number = |wanted| labels.split(',').find(|label| name_of(label) == wanted).and_then(number_of);
                // Some versions print `None` for blocks that they have not counted.
                let tokens = number("num_gpu_blocks").zip(number("block_size"));
                if let Some(tokens) = tokens.and_then(|(blocks, size)| blocks.checked_mul(size)).filter(|n| *n > 0) {
                    signals.kv_tokens = Some(signals.kv_tokens.unwrap_or(0).saturating_add(tokens));
                }
            }
            _ => {}
        }
    }
    if signals.brand.is_none() {
        signals.error = Some("the metrics are of no known engine (vLLM, SGLang, llama.cpp)".into());
    } else if signals.running.is_none() {
        signals.error = Some("the metrics do not tell how many requests run".into());
    }
    signals
}

fn name_of(label: &str) -> &str {
    label.split_once('=').map_or("", |(name, _)| name.trim())
}

fn number_of(label: &str) -> Option<u64> {
    label.split_once('=')?.1.trim().trim_matches('"').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_brands_are_read() {
        let vllm = parse(
            "# HELP x\nvllm:num_requests_running{engine=\"0\",model_name=\"a\"} 3.0\n\
             vllm:num_requests_running{engine=\"1\",model_name=\"a\"} 4.0\nvllm:num_requests_waiting{engine=\"0\"} 1\n\
             vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\nprocess_start_time_seconds 12.5\n\
             vllm:cache_config_info{num_gpu_blocks=\"7\",block_size=\"16\",cache_dtype=\"auto\"} 1.0\n",
        );
        assert_eq!((vllm.brand, vllm.running, vllm.waiting), (Some(Brand::Vllm), Some(7), Some(1)));
        assert_eq!((vllm.kv_usage, vllm.started_s, vllm.error), (Some(0.25), Some(12.5), None));
        assert_eq!(vllm.cache_config, "block_size=\"16\",cache_dtype=\"auto\"");
        let llama = parse("llamacpp:requests_processing 2\nllamacpp:requests_deferred 5\n");
        assert_eq!((llama.brand, llama.running, llama.waiting), (Some(Brand::Llamacpp), Some(2), Some(5)));
        assert_eq!(parse("sglang:num_running_reqs{a=\"b\"} 9").running, Some(9));
    }

    #[test]
    fn the_capacity_of_the_kv_cache_is_summed_over_the_engines() {
        let one = "vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"1000\"} 1.0\n";
        let two = "vllm:cache_config_info{block_size=\"16\",engine=\"1\",num_gpu_blocks=\"500\"} 1.0\n";
        assert_eq!(parse(one).kv_tokens, Some(16_000));
        assert_eq!(parse(&format!("{one}{two}")).kv_tokens, Some(24_000));
        assert_eq!(parse("sglang:max_total_num_tokens{tp_rank=\"0\"} 431248.0").kv_tokens, Some(431_248));
        for unknown in [
            "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1.0",
            "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks_override=\"9\"} 1.0",
            "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"0\"} 1.0",
            "sglang:max_total_num_tokens 0",
            "sglang:max_total_num_tokens NaN",
        ] {
            assert_eq!(parse(unknown).kv_tokens, None, "{unknown}");
        }
    }

    // Case C19: metrics of another brand are reported, not guessed at.
    #[test]
    fn c19_another_brand_is_said() {
        let other = parse("tgi_batch_current_size 3\n");
        assert_eq!((other.brand, other.running), (None, None));
        assert!(other.error.is_some());
        assert!(parse("").error.is_some() && parse("}{ 1\n{\n a").error.is_some());
    }
}
