//! What a test may ask an engine.

use serde::Serialize;

use super::fault::Fault;

/// A picture of the engine. Counters count since the (re)start, the HTTP ones since the handle was made.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct State {
    /// Value of `x-engine-id`.
    pub name: String,
    /// Served model.
    pub model: String,
    /// Profile name.
    pub profile: String,
    /// Pretended command line.
    pub launch_args: String,
    /// Whether it listens, that is, was not killed.
    pub alive: bool,
    /// Start of the process, in seconds since the epoch.
    pub process_start_time_seconds: f64,
    /// How often it was restarted or revived.
    pub restarts: u64,
    /// Sequences in the batch.
    pub running: usize,
    /// Sequences in the engine's own queue.
    pub waiting: usize,
    /// The most that ran together since the (re)start or `reset_max`.
    pub running_max: usize,
    /// Requests for the model under way at the HTTP level, faulty and hanging ones included.
    pub in_flight: usize,
    /// The most of them since the start or `reset_max`.
    pub in_flight_max: usize,
    /// Those that hang without having reached the model; `/metrics` counts them as running.
    pub hanging: usize,
    /// Such requests ever received, whatever became of them. Survives restarts.
    pub requests_total: u64,
    /// Such requests hit by a fault. Survives restarts.
    pub faults_total: u64,
    /// Such requests refused as invalid. Survives restarts.
    pub refused_total: u64,
    /// Requests done since the (re)start.
    pub finished_total: u64,
    /// Requests whose client left, since the (re)start.
    pub cancelled_total: u64,
    /// Prompt tokens of admitted requests since the (re)start.
    pub prompt_tokens_total: u64,
    /// Tokens generated since the (re)start.
    pub generation_tokens_total: u64,
    /// Prompt tokens looked up in the prefix cache since the (re)start.
    pub prefix_cache_queries_total: u64,
    /// Prompt tokens found there.
    pub prefix_cache_hits_total: u64,
    /// Filled share of the KV cache, 0 to 1.
    pub kv_cache_usage: f64,
    /// Tokens to generate until the engine is warm.
    pub cold_tokens_left: u64,
    /// The fault in force.
    pub fault: Fault,
}

/// How a request ended in the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// All tokens were generated.
    Finished,
    /// The client left before that.
    Cancelled,
    /// The engine was restarted or killed before that.
    Lost,
}

/// One sequence that reached the model: a request with several prompts or `n` leaves several.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RequestRecord {
    /// Number within this engine.
    pub id: u64,
    /// `x-request-id` of the request, if any.
    pub request_id: Option<String>,
    /// Those request headers whose names begin with `x-`, in lower case.
    pub headers: Vec<(String, String)>,
    /// Arrival, in seconds since the epoch.
    pub start_s: f64,
    /// Path of the request.
    pub path: String,
    /// The model or adapter that ran.
    pub model: String,
    /// Whether it asked for a stream.
    pub stream: bool,
    /// Prompt length.
    pub prompt_tokens: u64,
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: u64,
    /// Tokens that were to be generated.
    pub output_tokens: u64,
    /// Model milliseconds from arrival to the first token.
    pub ttft_ms: Option<f64>,
    /// Model milliseconds from arrival to the end.
    pub e2e_ms: f64,
    /// How it ended.
    pub outcome: Outcome,
}
