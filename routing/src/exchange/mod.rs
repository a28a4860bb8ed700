//! What a filter and the prober tell each other at `POST /v1/signals`.
//!
//! A filter sends what its own Envoy has in flight ([`Report`]) and what its requests were like since the last report
//! ([`Served`]); the [`Answer`] has what *others* have in flight at the same endpoints. Nobody has to subtract anything: the
//! prober leaves the asking Envoy's own rows out, and the filter adds the answer to its own exact counts (case C5).
//!
//! - [`served`]: batches for the moving averages, collected over the VMs of one Envoy.
//! - [`seen`]: the answer as the VMs of one Envoy share it.
//!
//! The JSON form tolerates unknown fields on both sides, so that prober and filter can be updated one after the other.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::signals::{Amount, Share, Signals};

pub mod seen;
pub mod served;

pub use seen::{Pool as Seen, Row as SeenRow};
pub use served::{Batch, Served};

/// What one Envoy tells.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Which Envoy: random, the same as long as its process lives. `[A-Za-z0-9_-]{1,64}`
    pub envoy: String,
    /// By pool.
    pub pools: BTreeMap<String, PoolReport>,
}

/// Of one pool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolReport {
    /// Requests in this Envoy's own queue.
    #[serde(default)]
    pub waiting: u32,
    /// By endpoint id.
    #[serde(default)]
    pub endpoints: BTreeMap<String, EndpointReport>,
}

/// Of one endpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EndpointReport {
    /// Requests that this Envoy has in flight there.
    #[serde(default)]
    pub in_flight: u32,
    /// Tokens that these still have to compute or generate, by estimate.
    #[serde(default)]
    pub pending_tokens: u32,
    /// This Envoy has it ejected: requests have failed there.
    #[serde(default, skip_serializing_if = "is_false")]
    pub ejected: bool,
    /// This Envoy leaves it alone for a moment: it has pushed back.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cooling_down: bool,
    /// What requests that have ended since the last report were like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served: Option<Served>,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// What the prober answers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// By pool, those that were asked about; endpoint by id.
    pub pools: BTreeMap<String, BTreeMap<String, EndpointAnswer>>,
}

/// Of one endpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EndpointAnswer {
    /// Requests that the other Envoys have in flight there: their own rows, summed.
    #[serde(default)]
    pub others: u32,
    /// Tokens that those still have to compute or generate.
    #[serde(default)]
    pub others_tokens: u32,
    /// Requests that the engine has beyond those of all Envoys.
    #[serde(default)]
    pub outside: u32,
    /// What the engine says of itself; nothing when that is stale or it does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<Figures>,
    /// Moving averages; nothing until a request has been served there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub averages: Option<Averages>,
}

/// Figures of an engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Requests it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<u32>,
    /// Requests in its own queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<u32>,
    /// Filled share of its KV cache, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_usage: Option<f64>,
    /// How busy its GPUs are, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_usage: Option<f64>,
}

impl EndpointAnswer {
    /// As decisions take it. Stale, only the moving averages count: what was in flight seconds ago is not.
    #[must_use]
    pub fn signals(&self, stale: bool) -> Signals {
        let averages = self.averages.unwrap_or_default();
        let engine = self.engine.filter(|_| !stale).unwrap_or_default();
        let counts = if stale { (0, 0, 0) } else { (self.others, self.others_tokens, self.outside) };
        let (others, others_tokens, outside) = counts;
        Signals {
            others,
            others_tokens,
            outside,
            waiting: engine.waiting,
            kv: engine.kv_usage.and_then(Share::try_new),
            gpu: engine.gpu_usage.and_then(Share::try_new),
            ttft_ms: averages.ttft_ms.and_then(Amount::try_new),
            e2e_ms: averages.e2e_ms.and_then(Amount::try_new),
            tps: averages.tps.and_then(Amount::try_new),
            errors: averages.error_rate.and_then(Share::try_new),
        }
    }
}

/// Moving averages of one endpoint; a part is missing until something was served that tells it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Averages {
    /// Time to the first token of a stream, in ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<f64>,
    /// From the decision to the end of the answer, in ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub e2e_ms: Option<f64>,
    /// Tokens per second of one request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tps: Option<f64>,
    /// Share of requests that failed, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_rate: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    // Prober and filter are updated one after the other.
    #[test]
    fn an_older_side_says_and_hears_nothing_of_ejections() {
        let said: EndpointReport = serde_json::from_str(r#"{"in_flight": 1}"#).unwrap();
        assert_eq!((said.ejected, said.cooling_down), (false, false));
        let sound = serde_json::to_value(&said).unwrap();
        assert_eq!(sound, serde_json::json!({"in_flight": 1, "pending_tokens": 0}));
        let out = EndpointReport { ejected: true, cooling_down: true, ..said };
        let again: EndpointReport = serde_json::from_value(serde_json::to_value(&out).unwrap()).unwrap();
        assert_eq!(again, out);
    }

    // Case C18: stale is neither full nor idle, it is unknown.
    #[test]
    fn c18_stale_figures_are_missing_and_averages_stay() {
        let said: EndpointAnswer = serde_json::from_str(
            r#"{"others": 3, "outside": 2, "engine": {"waiting": 4, "kv_usage": 1.0, "novel": 1}, "averages": {"ttft_ms": 80.0}}"#,
        )
        .unwrap();
        let fresh = said.signals(false);
        assert_eq!((fresh.elsewhere(), fresh.waiting, fresh.kv.map(Share::get)), (5, Some(4), Some(1.0)));
        assert_eq!((fresh.gpu, fresh.ttft_ms.map(Amount::get)), (None, Some(80.0)));
        let stale = said.signals(true);
        assert_eq!(stale, Signals { ttft_ms: fresh.ttft_ms, ..Signals::default() });
    }
}
