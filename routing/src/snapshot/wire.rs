//! The snapshot as JSON: how it travels.

use serde::{Deserialize, Serialize};

use crate::live::passive::Settings;

/// A whole snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Contract version; see [`super::FORMAT`].
    pub format: u32,
    /// Grows with every change: `max(unix_ms, last + 1)`. A static fallback uses 0.
    pub version: u64,
    /// Settings of the filter itself.
    #[serde(default)]
    pub filter: Filter,
    /// One entry per Envoy cluster.
    pub pools: Vec<Pool>,
}

/// What an operator sets under `filter:`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Filter {
    /// Largest request body in bytes; a larger one is answered 413.
    #[serde(default = "default_max_body")]
    pub max_body: u64,
    /// Request headers of clients that count: `priority`, `max-wait`, `explain`.
    #[serde(default)]
    pub client_headers: Vec<String>,
    /// How many bytes of a prompt are hashed for prefix affinity; what comes after is scanned, not hashed. 0: none.
    #[serde(default = "default_prefix_bytes")]
    pub prefix_bytes: u64,
    /// How many decision records a second an Envoy sends to the prober, sampled above that. 0: none.
    #[serde(default, skip_serializing_if = "is_none_per_second")]
    pub decisions_per_second: u32,
    /// How filters and prober tell each other about load.
    #[serde(default)]
    pub signals: Signals,
    /// What a filter shows the prober when it reports, as a bearer token; empty: nothing. The prober sets it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reports_token: String,
}

/// `signals: {interval_ms: 250}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Signals {
    /// How often, in ms; 0: not at all.
    pub interval_ms: u64,
}

impl Default for Signals {
    fn default() -> Self {
        Signals { interval_ms: 250 }
    }
}

fn is_none_per_second(count: &u32) -> bool {
    *count == 0
}

fn default_max_body() -> u64 {
    16 * 1024 * 1024
}

fn default_prefix_bytes() -> u64 {
    64 * 1024
}

impl Default for Filter {
    fn default() -> Self {
        Filter {
            max_body: default_max_body(),
            client_headers: Vec::new(),
            prefix_bytes: default_prefix_bytes(),
            decisions_per_second: 0,
            signals: Signals::default(),
            reports_token: String::new(),
        }
    }
}

/// One pool: the endpoints that serve the same model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Pool {
    /// The pool's id: stats label, live-table key.
    pub name: String,
    /// The Envoy cluster, when it is not called like the pool (static fallback: `<pool>-static`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The names clients may ask for.
    pub models: Vec<String>,
    /// What the engines call the model; a body that names another one is rewritten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_model: Option<String>,
    /// Names that the engines know themselves, such as LoRA adapters: clients may ask for them, and they are never
    /// rewritten.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<String>,
    /// How to pick.
    #[serde(default)]
    pub policy: Policy,
    /// When to stay with the holder of a prompt's prefix.
    #[serde(default)]
    pub affinity: Affinity,
    /// Median throughput of the measured endpoints, in tokens/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median_tps: Option<f64>,
    /// When to refuse.
    #[serde(default)]
    pub admission: Admission,
    /// When to take an endpoint out for what requests meet there.
    #[serde(default, skip_serializing_if = "PassiveHealth::is_default")]
    pub passive_health: PassiveHealth,
    /// The endpoints, in any order.
    pub endpoints: Vec<Endpoint>,
}

/// `policy: {name: p2c, choices: 2, shadow: {name: score}, canary: {name: score, percent: 5}}`. See [`crate::policy`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Policy {
    /// One of [`AnyPolicy::NAMES`](crate::policy::AnyPolicy::NAMES).
    pub name: String,
    /// How many distinct endpoints are drawn and compared: a number from 1, or `all`. For `p2c`, `least_pending_tokens` and
    /// `least_request`.
    pub choices: Choices,
    /// What `p2c` compares endpoints by; of the shadow and the canary, too.
    #[serde(skip_serializing_if = "By::is_default")]
    pub by: By,
    /// What each term of `score` counts.
    #[serde(skip_serializing_if = "Score::is_default")]
    pub score: Score,
    /// A second policy, which decides too and routes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadow: Option<Shadow>,
    /// A policy that takes some of the requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            name: "p2c".into(),
            choices: Choices::default(),
            by: By::default(),
            score: Score::default(),
            shadow: None,
            canary: None,
        }
    }
}

/// What endpoints are compared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// Requests per weight.
    #[default]
    Weight,
    /// Requests per what is left of the weight at so many; see [`crate::curve`].
    Curve,
}

impl By {
    fn is_default(&self) -> bool {
        *self == By::default()
    }
}

/// `shadow: {name: score}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shadow {
    /// As [`Policy::name`].
    pub name: String,
    /// As [`Policy::choices`].
    #[serde(default)]
    pub choices: Choices,
    /// As [`Policy::score`].
    #[serde(default, skip_serializing_if = "Score::is_default")]
    pub score: Score,
}

/// `canary: {name: score, percent: 5}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Canary {
    /// As [`Policy::name`].
    pub name: String,
    /// As [`Policy::choices`].
    #[serde(default)]
    pub choices: Choices,
    /// As [`Policy::score`].
    #[serde(default, skip_serializing_if = "Score::is_default")]
    pub score: Score,
    /// Its share of the pool's requests, 0 to 100, in steps of 0.01.
    pub percent: f64,
}

/// `score: {active: 100, queue: 10, ...}`: points per unit of each term, 0 to 10,000. See [`crate::policy::score`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Score {
    /// Each request in flight.
    pub active: f64,
    /// Each request that waits inside the engine.
    pub queue: f64,
    /// The slowest to its first token, of the candidates.
    pub latency: f64,
    /// The one at which the request costs most, of the candidates.
    pub job: f64,
    /// The fastest in tokens/s, of the candidates; subtracted.
    pub throughput: f64,
    /// A full KV cache.
    pub kv: f64,
    /// A busy GPU.
    pub gpu: f64,
}

impl Score {
    fn is_default(&self) -> bool {
        *self == Score::default()
    }
}

impl Default for Score {
    fn default() -> Self {
        use crate::policy::score::Term;
        let points = |term| crate::policy::Score::default().coefficient(term);
        Score {
            active: points(Term::Active),
            queue: points(Term::Queue),
            latency: points(Term::Latency),
            job: points(Term::Job),
            throughput: points(Term::Throughput),
            kv: points(Term::Kv),
            gpu: points(Term::Gpu),
        }
    }
}

/// How many candidates are compared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Choices {
    /// That many distinct ones.
    Count(u32),
    /// `all` (any other word is refused when the snapshot is checked).
    Word(String),
}

impl std::fmt::Display for Choices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Choices::Count(count) => write!(f, "{count}"),
            Choices::Word(word) => f.write_str(word),
        }
    }
}

impl Default for Choices {
    fn default() -> Self {
        Choices::Count(2)
    }
}

/// `affinity: {enabled: true, cold: policy, k: 1.0, max_share: 0.5}`. See [`crate::affinity`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Affinity {
    /// Whether prefixes matter at all.
    pub enabled: bool,
    /// Where a prompt goes whose prefix nobody is known to hold: `policy`, or `hash` (the same home at every Envoy).
    pub cold: Cold,
    /// Factor of the allowance.
    pub k: f64,
    /// The largest allowance, as a share of the pool's base cap.
    pub max_share: f64,
    /// Tokens that an endpoint's KV cache holds, for endpoints that do not tell.
    pub kv_tokens: u64,
    /// Prefill speed in tokens/s of endpoints that have not been measured.
    pub prefill_tps: f64,
}

impl Default for Affinity {
    fn default() -> Self {
        Affinity {
            enabled: true,
            cold: Cold::Policy,
            k: 1.0,
            max_share: 0.5,
            kv_tokens: 256 * 1024,
            prefill_tps: 6_000.0,
        }
    }
}

/// Where a prompt goes whose prefix nobody is known to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cold {
    /// Where the policy says.
    #[default]
    Policy,
    /// To the home that weighted rendezvous hashing gives it, while that one is not much fuller than what the policy would pick.
    Hash,
}

/// `admission: {base_cap: 24, queue: 1000, max_wait_ms: 30000}`. See [`crate::admission::Admission`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Admission {
    /// In-flight requests per unit of weight.
    pub base_cap: u32,
    /// The most requests that wait at a time.
    pub queue: u32,
    /// The most bytes of bodies that wait at a time.
    pub queue_bytes: u64,
    /// The longest that a request waits (ms).
    pub max_wait_ms: u32,
    /// Waiting so long (ms) is worth one level of priority.
    pub ageing_ms: u32,
    /// Prompt tokens that an endpoint may have to compute at a time, at the pool's median prefill speed.
    pub prefill_budget_tokens: u32,
    /// Between whom turns are taken inside a priority: `none`, `user`, or `header:<name>`.
    pub fairness: String,
    /// The pool that takes what this one would refuse.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spill_to: Option<String>,
}

impl Default for Admission {
    fn default() -> Self {
        let limits = crate::admission::Admission::default();
        Admission {
            base_cap: 24,
            queue: limits.queue,
            queue_bytes: limits.queue_bytes,
            max_wait_ms: limits.max_wait_ms,
            ageing_ms: limits.ageing_ms,
            prefill_budget_tokens: limits.prefill_budget_tokens,
            fairness: "none".into(),
            spill_to: None,
        }
    }
}

/// `passive_health: {consecutive_failures: 5, failure_percent: 50, ...}`. See [`crate::live::passive::Settings`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PassiveHealth {
    /// Failures in a row that eject; 0: they do not.
    pub consecutive_failures: u32,
    /// Share of failures that ejects, in percent; 0: it does not.
    pub failure_percent: u32,
    /// Requests that must have ended before their share of failures says something.
    pub min_requests: u32,
    /// Length of the first ejection (ms).
    pub ejection_ms: u32,
    /// Length of the longest (ms).
    pub max_ejection_ms: u32,
    /// How many of the pool's endpoints may be out at a time, in percent.
    pub max_ejected_percent: u32,
    /// How long an endpoint that pushes back is left alone where it does not say (ms).
    pub cool_down_ms: u32,
    /// The longest, whatever it says (ms).
    pub max_cool_down_ms: u32,
    /// After how long (ms) a stream that its client gives up without a byte is a failure; 0: never.
    pub silent_after_ms: u32,
}

impl PassiveHealth {
    fn is_default(&self) -> bool {
        *self == PassiveHealth::default()
    }
}

impl Default for PassiveHealth {
    fn default() -> Self {
        let settings = Settings::default();
        PassiveHealth {
            consecutive_failures: settings.consecutive_failures.into(),
            failure_percent: settings.failure_percent.into(),
            min_requests: settings.min_requests.into(),
            ejection_ms: settings.ejection_ms,
            max_ejection_ms: settings.max_ejection_ms,
            max_ejected_percent: settings.max_ejected_percent.into(),
            cool_down_ms: settings.cool_down_ms,
            max_cool_down_ms: settings.max_cool_down_ms,
            silent_after_ms: settings.silent_after_ms,
        }
    }
}

/// One endpoint.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Endpoint {
    /// `[A-Za-z0-9_-]{1,64}`.
    pub id: String,
    /// `ip:port`; names are resolved by the prober.
    pub address: String,
    /// Relative capacity. Anything that is not a positive number counts as 1.0 and raises an alarm.
    #[serde(default)]
    pub weight: serde_json::Value,
    /// In-flight cap set by hand; otherwise `base_cap x weight`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap: Option<u32>,
    /// Context window in tokens, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_window: Option<u32>,
    /// Shares of its weight that it has at so many requests at once, from 1 upwards; see [`crate::curve`]. Empty: 1 throughout.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curve: Vec<(u32, f64)>,
    /// Measured prefill speed in tokens/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_tps: Option<f64>,
    /// Tokens that its KV cache holds, where the engine tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_tokens: Option<u64>,
    /// Changes when the engine restarts: what it held before is gone.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub epoch: u64,
    /// Whether it takes traffic.
    #[serde(default)]
    pub state: State,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Whether an endpoint takes traffic, and if not, why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Takes traffic.
    #[default]
    Ready,
    /// Registered, not measured yet.
    New,
    /// Under a burst.
    Probing,
    /// Finishing what it has.
    Draining,
    /// Fails its health checks.
    Unhealthy,
}

impl State {
    /// The word used in JSON, in decisions and in stats.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            State::Ready => "ready",
            State::New => "new",
            State::Probing => "probing",
            State::Draining => "draining",
            State::Unhealthy => "unhealthy",
        }
    }
}
