//! What an engine says of itself: health, context window, and the few metrics that matter, under the names of several
//! brands.

use std::net::SocketAddr;
use std::time::Duration;

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

/// Why an engine did not answer as it should.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No answer, or a broken one.
    #[error("{0}")]
    Http(String),
    /// An answer with another status.
    #[error("{path} answered {status}")]
    Status {
        /// Which path.
        path: &'static str,
        /// The status.
        status: u16,
    },
}

impl From<reqwest::Error> for EngineError {
    fn from(error: reqwest::Error) -> Self {
        // The chain has the reason ("connection refused"), the head only says that sending failed.
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text = cause.to_string();
            source = cause.source();
        }
        EngineError::Http(text)
    }
}

/// A client for engines. It speaks to them directly, never through the gateway.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
}

/// The largest answer that is read, in bytes.
const MAX_ANSWER: usize = 4 << 20;

impl Client {
    /// A client.
    ///
    /// # Errors
    /// When the system does not let it.
    pub fn new() -> Result<Self, reqwest::Error> {
        let http = reqwest::Client::builder().no_proxy().connect_timeout(Duration::from_secs(2)).build()?;
        Ok(Client { http })
    }

    /// `GET /health` must answer 2xx.
    ///
    /// # Errors
    /// When it does not, within `timeout`.
    pub async fn health(&self, engine: SocketAddr, timeout: Duration) -> Result<(), EngineError> {
        self.get(engine, "/health", timeout).await.map(|_| ())
    }

    /// The metrics.
    ///
    /// # Errors
    /// When there are none.
    pub async fn metrics(&self, engine: SocketAddr, timeout: Duration) -> Result<Signals, EngineError> {
        Ok(parse(&self.get(engine, "/metrics", timeout).await?))
    }

    /// The context window of a model, where `/v1/models` tells it.
    ///
    /// # Errors
    /// When there is no such list.
    pub async fn window(&self, engine: SocketAddr, model: &str, timeout: Duration) -> Result<Option<u32>, EngineError> {
        let text = self.get(engine, "/v1/models", timeout).await?;
        // An answer that is no list tells nothing, which is not the same as no answer.
        let Ok(list) = serde_json::from_str::<serde_json::Value>(&text) else { return Ok(None) };
        let mut entries = list.get("data").and_then(|data| data.as_array()).into_iter().flatten();
        let entry = entries.find(|entry| entry.get("id").is_some_and(|id| id == model));
        let length = entry.and_then(|entry| entry.get("max_model_len")?.as_u64());
        Ok(length.and_then(|length| u32::try_from(length).ok()))
    }

    /// One chat completion of exactly `tokens` tokens; the completion tokens that its `usage` reports.
    ///
    /// # Errors
    /// When there is no such answer.
    pub async fn generate(
        &self,
        engine: SocketAddr,
        model: &str,
        prompt: &str,
        tokens: u32,
    ) -> Result<u64, EngineError> {
        let body = serde_json::json!({
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens, "min_tokens": tokens, "ignore_eos": true, "temperature": 0, "stream": false,
        });
        let path = "/v1/chat/completions";
        let response = self.http.post(format!("http://{engine}{path}")).json(&body).send().await?;
        if !response.status().is_success() {
            return Err(EngineError::Status { path, status: response.status().as_u16() });
        }
        let answer: serde_json::Value = response.json().await?;
        answer
            .pointer("/usage/completion_tokens")
            .and_then(serde_json::Value::as_u64)
            .ok_or_else(|| EngineError::Http(format!("{path}: no usage.completion_tokens in the answer")))
    }

    async fn get(&self, engine: SocketAddr, path: &'static str, timeout: Duration) -> Result<String, EngineError> {
        let mut response = self.http.get(format!("http://{engine}{path}")).timeout(timeout).send().await?;
        if !response.status().is_success() {
            return Err(EngineError::Status { path, status: response.status().as_u16() });
        }
        let mut text = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            text.extend_from_slice(&chunk);
            if text.len() > MAX_ANSWER {
                return Err(EngineError::Http(format!("{path}: more than 4 MiB")));
            }
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
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
            "process_start_time_seconds" => signals.started_s = Some(value),
            "vllm:cache_config_info" => {
                let told = labels
                    .split(',')
                    .filter(|label| label.split_once('=').is_some_and(|(name, _)| CONFIG_LABELS.contains(&name)));
                let mut told: Vec<_> = told.collect();
                told.sort_unstable();
                signals.cache_config = told.join(",");
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

    // Case C19: metrics of another brand are reported, not guessed at.
    #[test]
    fn c19_another_brand_is_said() {
        let other = parse("tgi_batch_current_size 3\n");
        assert_eq!((other.brand, other.running), (None, None));
        assert!(other.error.is_some());
        assert!(parse("").error.is_some() && parse("}{ 1\n{\n a").error.is_some());
    }
}
