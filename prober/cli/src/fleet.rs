//! What `GET /v1/fleet` says, as far as it is shown. What a prober of another version leaves out, is empty.

use serde::Deserialize;
use serde_json::Value;

use crate::exit::{Exit, Failure};

/// The whole state.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Fleet {
    /// When this was so, in Unix ms.
    pub now_ms: u64,
    /// The snapshot's version.
    pub version: u64,
    /// Every Envoy has the snapshot, and every endpoint is measured.
    pub ready: bool,
    /// This prober is the one that measures.
    pub leads: bool,
    /// Its version.
    pub prober_version: String,
    /// Pools.
    pub pools: Vec<Pool>,
    /// Endpoints.
    pub endpoints: Vec<Endpoint>,
    /// Envoys that are, or were, connected.
    pub envoys: Vec<Envoy>,
    /// What is wrong.
    pub alarms: Vec<Alarm>,
}

/// One pool.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// What clients ask for.
    pub models: Vec<String>,
    /// Who of those that may take a request does.
    pub policy: String,
    /// Median of throughputs, tokens/s.
    pub median_tps: Option<f64>,
    /// Sum of the caps of those that take traffic.
    pub capacity: u64,
    /// Requests in flight.
    pub in_flight: u64,
    /// Requests in queues.
    pub waiting: u64,
}

/// One endpoint.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Endpoint {
    /// Its id.
    pub id: String,
    /// Its pool.
    pub pool: String,
    /// `ip:port`
    pub address: String,
    /// `ready`, `new`, `probing`, `draining` or `unhealthy`
    pub state: String,
    /// Relative capacity.
    pub weight: f64,
    /// `measured`, `pinned` or `default`
    pub weight_source: String,
    /// Of the warmed burst.
    pub throughput_tps: Option<f64>,
    /// The most requests at once.
    pub max_in_flight: u32,
    /// As all Envoys report; nothing when none does.
    pub in_flight: Option<u64>,
    /// How many Envoys have it ejected.
    pub ejected: u64,
    /// How many let it rest after a 429.
    pub cooling_down: u64,
    /// An operator's.
    pub pin: Option<Why>,
    /// An operator has taken it out of service.
    pub drain: Option<Leaving>,
    /// Health.
    pub health: Health,
    /// What engines and Envoys tell.
    pub signals: Signals,
    /// A burst is under way.
    pub burst: Option<Burst>,
    /// A probe on demand waits.
    pub asked: bool,
}

/// Why somebody did something.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Why {
    /// In their words.
    pub reason: String,
}

/// An endpoint that takes no more requests.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Leaving {
    /// In somebody's words.
    pub reason: String,
    /// When it is to be empty, RFC 3339
    pub deadline: Option<String>,
    /// `draining`, `drained` or `overdue`
    pub state: String,
    /// Requests left there.
    pub in_flight: Option<u64>,
}

/// Whether it answers.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Health {
    /// It may serve.
    pub healthy: bool,
    /// What the last check said when it failed.
    pub last_error: Option<String>,
}

/// What is told of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Signals {
    /// Requests in the engine's own queue.
    pub waiting: Option<u64>,
    /// 0 to 1
    pub kv_usage: Option<f64>,
    /// Moving averages.
    pub averages: Averages,
}

/// Moving averages.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Averages {
    /// Time to the first token, ms.
    pub ttft_ms: Option<f64>,
    /// Tokens per second of one request.
    pub tps: Option<f64>,
    /// Share of requests that failed.
    pub error_rate: Option<f64>,
}

/// A burst that is under way.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Burst {
    /// `waiting`, `warmup`, `settling`, `kept`, `prefill` or `sweep`
    pub phase: String,
    /// When this phase began, Unix ms.
    pub phase_begun_ms: u64,
    /// Requests of this phase that are done.
    pub done: u64,
    /// All of its requests.
    pub of: u64,
    /// Another prober runs it, and nothing of it but that is known here.
    pub elsewhere: bool,
    /// How long this phase takes by what was measured before.
    pub expected_ms: Option<u64>,
    /// Of the first burst.
    pub warmup_tps: Option<f64>,
    /// Of the second.
    pub kept_tps: Option<f64>,
}

/// One Envoy.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Envoy {
    /// `node.id`
    pub node_id: String,
    /// It has a stream.
    pub connected: bool,
    /// The snapshot that its filter has.
    pub applied_version: Option<u64>,
    /// It refuses what it was sent last: why.
    pub refuses: Option<String>,
}

/// Something that is wrong.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Alarm {
    /// docs/alarms.md has an entry for each.
    pub code: String,
    /// Whom it is about.
    pub subject: Subject,
    /// In words.
    pub message: String,
    /// Since when, Unix ms.
    pub since_ms: Option<u64>,
}

/// Whom an alarm is about.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Subject {
    /// An endpoint's id; the prober itself has none.
    pub id: Option<String>,
}

impl Fleet {
    /// A document.
    ///
    /// # Errors
    /// When it is no object, or a field has another type than ours: the field is named.
    pub fn of(document: &Value) -> Result<Self, Failure> {
        serde_path_to_error::deserialize(document).map_err(|error| {
            let field = error.path().to_string();
            // The path of the document itself is a dot.
            let field = if field == "." { String::new() } else { format!(" ({field})") };
            let message = format!("the fleet is not understood{field}: {}: is this a prober?", error.inner());
            Failure::new(Exit::Refused, "no_fleet", message)
        })
    }

    /// One endpoint.
    #[must_use]
    pub fn endpoint(&self, id: &str) -> Option<&Endpoint> {
        self.endpoints.iter().find(|endpoint| endpoint.id == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_field_of_another_type_is_named() {
        let fleet = Fleet::of(&json!({"ready": true, "endpoints": [{"id": "a", "of tomorrow": 1}]})).unwrap();
        assert!(fleet.ready && fleet.endpoint("a").is_some());
        let wrong = |document: Value| Fleet::of(&document).unwrap_err();
        let failure = wrong(json!({"endpoints": [{"id": "a"}, {"id": "b", "weight": "heavy"}]}));
        assert_eq!((failure.exit, failure.code.as_str()), (Exit::Refused, "no_fleet"));
        assert!(failure.message.contains("(endpoints[1].weight)") && failure.message.contains("heavy"), "{failure}");
        assert!(wrong(Value::Null).message.starts_with("the fleet is not understood: "));
    }
}
