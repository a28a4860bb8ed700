//! The metrics of an engine, in the Prometheus text format.

use serde::Serialize;

use super::exposition::Line;

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
    pub generated_tokens: Option<u64>,
    /// Tokens that it has looked up in its prefix cache.
    pub prefix_queries: Option<u64>,
    /// Of these, tokens that were there.
    pub prefix_hits: Option<u64>,
    /// The share of them, 0 to 1, where the engine tells that and not the counts.
    pub prefix_hit_rate: Option<f64>,
    /// When they were read, Unix ms.
    pub at_ms: Option<u64>,
    /// Why the last scrape gave nothing.
    pub error: Option<String>,
    /// The engine tells nothing that can be used, and will not by itself: no metrics page, or one of another brand.
    pub alarm: Option<String>,
    /// `process_start_time_seconds`: another value means a restart.
    #[serde(skip)]
    pub started_s: Option<f64>,
    /// The labels of `vllm:cache_config_info` that launch arguments set.
    #[serde(skip)]
    pub cache_config: String,
}

impl Signals {
    /// Requests that it has: running and waiting.
    #[must_use]
    pub fn requests(&self) -> Option<u64> {
        self.running.map(|running| running.saturating_add(self.waiting.unwrap_or(0)))
    }

    /// Whether what it says of its requests may be as old as the reading `before` this one: nothing of what the engine sets together with
    /// it has changed.
    ///
    /// - SGLang sets its gauges together, with every 40th step; its counters move with each request that ends, and say nothing of them.
    /// - vLLM sets gauges and counters with each step: while it works, the tokens differ at least.
    /// - llama.cpp counts its requests when it is asked. Its tokens are counted when a request ends, and nothing else need move.
    #[must_use]
    pub fn may_be_as_old_as(&self, before: &Self) -> bool {
        let gauges = |of: &Self| (of.running, of.waiting, of.kv_usage, of.prefix_hit_rate, of.started_s);
        let counters = |of: &Self| (of.generated_tokens, of.prefix_queries, of.prefix_hits);
        let same = gauges(self) == gauges(before);
        match self.brand {
            Some(Brand::Llamacpp) => false,
            Some(Brand::Sglang) => same,
            Some(Brand::Vllm) | None => same && counters(self) == counters(before),
        }
    }

    /// The figures as long as they are not older than `for_ms`.
    #[must_use]
    pub fn fresh(&self, now_ms: u64, for_ms: u64) -> Option<&Self> {
        self.at_ms.is_some_and(|at_ms| now_ms.abs_diff(at_ms) <= for_ms).then_some(self)
    }

    /// The share of looked-up tokens that its prefix cache had since it started.
    #[must_use]
    pub fn hit_rate(&self) -> Option<f64> {
        let counted = self.prefix_hits.zip(self.prefix_queries).filter(|(_, queries)| *queries > 0);
        counted.map(|(hits, queries)| (hits as f64 / queries as f64).min(1.0)).or(self.prefix_hit_rate)
    }
}

/// Labels of `vllm:cache_config_info` that follow from launch arguments. (The number of blocks differs from start to
/// start with the same ones.)
const CONFIG_LABELS: [&str; 4] = ["block_size", "cache_dtype", "enable_prefix_caching", "gpu_memory_utilization"];

/// Reads the Prometheus text format as far as it matters here. Several engines in one process are summed; of their KV
/// usage the highest counts. A sample that is no number, infinite or negative says nothing, as if it were not there.
#[must_use]
pub fn parse(text: &str) -> Signals {
    let mut signals = Signals::default();
    for Line { name, labels, value } in text.lines().filter_map(Line::parse) {
        let brand = match name.split_once(':').map(|(prefix, _)| prefix) {
            Some("vllm") => Some(Brand::Vllm),
            Some("sglang") => Some(Brand::Sglang),
            Some("llamacpp") => Some(Brand::Llamacpp),
            _ => None,
        };
        signals.brand = signals.brand.or(brand);
        let Some(value) = value else { continue };
        let add = |sum: &mut Option<u64>| *sum = Some(sum.unwrap_or(0).saturating_add(value as u64));
        let highest = |share: &mut Option<f64>| *share = Some(share.unwrap_or(0.0).max(value.min(1.0)));
        match name {
            "vllm:num_requests_running" | "sglang:num_running_reqs" | "llamacpp:requests_processing" => {
                add(&mut signals.running);
            }
            "vllm:num_requests_waiting" | "sglang:num_queue_reqs" | "llamacpp:requests_deferred" => {
                add(&mut signals.waiting);
            }
            "vllm:kv_cache_usage_perc"
            | "vllm:gpu_cache_usage_perc"
            | "sglang:token_usage"
            | "llamacpp:kv_cache_usage_ratio" => highest(&mut signals.kv_usage),
            "vllm:generation_tokens_total" | "sglang:generation_tokens_total" | "llamacpp:tokens_predicted_total" => {
                add(&mut signals.generated_tokens);
            }
            "vllm:prefix_cache_queries_total" | "llamacpp:prompt_tokens_total" => add(&mut signals.prefix_queries),
            "vllm:prefix_cache_hits_total" => add(&mut signals.prefix_hits),
            "llamacpp:prompt_tokens_cached_total" => {
                add(&mut signals.prefix_hits);
                // Its other counter has only the tokens that it had to compute.
                add(&mut signals.prefix_queries);
            }
            "sglang:cache_hit_rate" => highest(&mut signals.prefix_hit_rate),
            "sglang:max_total_num_tokens" if value >= 1.0 => add(&mut signals.kv_tokens),
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
        signals.alarm = Some("the metrics are of no known engine (vLLM, SGLang, llama.cpp)".into());
    } else if signals.running.is_none() {
        signals.alarm = Some("the metrics do not tell how many requests run".into());
    }
    signals.error.clone_from(&signals.alarm);
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
    fn a_gauge_may_be_old_by_what_the_engine_sets_with_it() {
        let again = |before: &str, after: &str| parse(after).may_be_as_old_as(&parse(before));
        // A request has ended, which its tokens tell and its gauges do not yet.
        let sglang = |running: u32, tokens: u32, usage: f64| {
            format!(
                "sglang:num_running_reqs {running}\nsglang:generation_tokens_total {tokens}\nsglang:token_usage {usage}\n"
            )
        };
        assert!(again(&sglang(16, 100, 0.5), &sglang(16, 200, 0.5)));
        assert!(!again(&sglang(16, 100, 0.5), &sglang(16, 100, 0.4)));
        let vllm = |tokens: u32| format!("vllm:num_requests_running 16\nvllm:generation_tokens_total {tokens}\n");
        assert!(again(&vllm(100), &vllm(100)) && !again(&vllm(100), &vllm(101)));
        let llama = "llamacpp:requests_processing 4\nllamacpp:tokens_predicted_total 9\n";
        assert!(!again(llama, llama), "counted when it is asked");
    }

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

    #[test]
    fn counters_and_hit_rates_are_read() {
        let vllm = parse(
            "# TYPE vllm:generation_tokens_total counter\n\
             vllm:generation_tokens_total{engine=\"0\",model_name=\"a b}c # d\"} 1.5e+03\n\
             vllm:generation_tokens_total{engine=\"1\",model_name=\"\\\"}\"} 500.0 # {trace=\"1\"} 3.0\n\
             vllm:prefix_cache_queries_total{engine=\"0\"} 1000.0\nvllm:prefix_cache_hits_total{engine=\"0\"} 250.0\n",
        );
        assert_eq!((vllm.generated_tokens, vllm.hit_rate()), (Some(2_000), Some(0.25)));
        let sglang = parse(
            "sglang:num_running_reqs{engine_type=\"unified\",tp_rank=\"0\"} 4.0\nsglang:num_queue_reqs 2.0\n\
             sglang:token_usage 0.28\nsglang:cache_hit_rate 0.0075\nsglang:generation_tokens_total 7557572.0\n",
        );
        assert_eq!((sglang.brand, sglang.requests(), sglang.kv_usage), (Some(Brand::Sglang), Some(6), Some(0.28)));
        assert_eq!((sglang.hit_rate(), sglang.generated_tokens), (Some(0.0075), Some(7_557_572)));
        let llama = parse(
            "# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.\nllamacpp:prompt_tokens_total 40\n\
             llamacpp:tokens_predicted_total 128\nllamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n",
        );
        assert_eq!((llama.requests(), llama.generated_tokens, llama.kv_usage), (Some(1), Some(128), None));
        assert_eq!((parse("").hit_rate(), parse("").requests()), (None, None));
    }

    #[test]
    fn what_is_no_number_says_nothing() {
        for nonsense in ["NaN", "+Inf", "-Inf", "-1", "1e999", "x", "", "0x10"] {
            let text =
                format!("vllm:num_requests_running {nonsense}\nvllm:kv_cache_usage_perc{{a=\"b\"}} {nonsense}\n");
            let signals = parse(&text);
            assert_eq!((signals.running, signals.kv_usage), (None, None), "{nonsense:?}");
            assert!(signals.alarm.is_some() && signals.brand == Some(Brand::Vllm), "{nonsense:?}");
        }
        assert_eq!(parse("vllm:kv_cache_usage_perc 1.02").kv_usage, Some(1.0));
        for garbage in ["{", "}", "a{b", "a{b=\"", "a{b=\"c\\", " ", "\u{0}\u{ffff}", "vllm:", ":::: 1 2 3"] {
            assert!(parse(garbage).alarm.is_some(), "{garbage:?}");
        }
    }

    #[test]
    fn figures_grow_stale() {
        let signals = Signals { at_ms: Some(1_000), ..parse("vllm:num_requests_running 3\n") };
        assert!(signals.fresh(1_750, 750).is_some() && signals.fresh(1_751, 750).is_none());
        assert!(Signals::default().fresh(0, 750).is_none());
    }

    // Case C19: metrics of another brand are reported, not guessed at.
    #[test]
    fn c19_another_brand_is_said() {
        let other = parse("tgi_batch_current_size 3\n");
        assert_eq!((other.brand, other.running), (None, None));
        assert!(other.error.is_some() && other.alarm.is_some());
        assert!(parse("").error.is_some() && parse("}{ 1\n{\n a").error.is_some());
    }
}
