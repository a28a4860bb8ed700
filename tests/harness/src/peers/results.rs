//! All that was measured.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::figures::{Cell, Span};
use super::machine::Machine;

/// Of one run of the benchmark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// What was run.
    pub command: String,
    /// The commit; with a `+`, and changes that were not committed.
    pub commit: String,
    /// What else is to be known about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
    /// Where.
    pub machine: Machine,
    /// When it began: the day.
    pub date: String,
    /// Warm-up and measured time of every run.
    pub span: Span,
    /// Seed of the first round; the next has the next.
    pub seed: u64,
    /// Who took part.
    pub routers: Vec<RouterInfo>,
    /// Who did not, and why.
    pub left_out: BTreeMap<String, String>,
    /// What the prober measured beforehand, by the number of prompts that the engines prefill at once.
    pub measured: BTreeMap<usize, Vec<MeasuredEndpoint>>,
    /// At what load, and what went wrong.
    pub scenarios: Vec<ScenarioInfo>,
    /// A router in a scenario each.
    pub cells: Vec<Cell>,
    /// What a request costs by the size of its body.
    pub costs: Vec<Cost>,
}

/// A router that took part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RouterInfo {
    /// Its name.
    pub name: String,
    /// How it balances.
    pub how: String,
    /// Its version.
    pub version: String,
    /// Whether it reads prompts or models.
    pub llm_aware: bool,
    /// Whether we told it by hand how fast each engine is.
    #[serde(default)]
    pub told: bool,
    /// Its CPU per streamed request at light load, in ms. None where that was not tried.
    #[serde(default)]
    pub cpu_ms: Option<f64>,
}

/// An endpoint as the prober measured it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredEndpoint {
    /// Its id.
    pub id: String,
    /// Tokens per second of a burst.
    pub throughput_tps: f64,
    /// The weight that follows.
    pub weight: f64,
    /// The most requests it is given.
    pub max_in_flight: u64,
}

/// A scenario that was run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScenarioInfo {
    /// Its name.
    pub name: String,
    /// What it is.
    pub what: String,
    /// Requests per second.
    pub per_second: f64,
    /// Rounds.
    pub rounds: usize,
    /// Prompt tokens per second, cached or not. None where it was not counted.
    #[serde(default)]
    pub prompt_tokens_per_s: Option<f64>,
    /// Prompt tokens per second that the engines prefill together at most, where that is a limit.
    #[serde(default)]
    pub prefill_tokens_per_s: Option<f64>,
    /// Routers that were not measured, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub not_measured: BTreeMap<String, String>,
}

/// CPU per request with bodies of a size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Router.
    pub router: String,
    /// `4 KB`, `64 KB` or `1 MB`.
    pub size: String,
    /// CPU per request by part, in microseconds; the median of the rounds.
    pub cpu_us: BTreeMap<String, f64>,
    /// All parts together: median, least and greatest of the rounds.
    pub total_us: [f64; 3],
    /// Median time of a request, in microseconds; the median of the rounds.
    pub latency_us: f64,
}

impl Results {
    /// The figures of a router in a scenario.
    #[must_use]
    pub fn cell(&self, scenario: &str, router: &str) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.scenario == scenario && cell.router == router)
    }

    /// Whether we told the router of this name how fast each engine is.
    #[must_use]
    pub fn was_told(&self, router: &str) -> bool {
        self.routers.iter().any(|info| info.name == router && info.told)
    }

    /// As JSON, lines short enough to compare, numbers to six digits: what is beyond is noise.
    ///
    /// # Errors
    /// When it cannot be written as JSON.
    pub fn to_json(&self) -> serde_json::Result<String> {
        let mut value = serde_json::to_value(self)?;
        round(&mut value);
        Ok(format!("{value:#}\n"))
    }
}

fn round(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let exact = number.as_f64().unwrap_or(0.0);
            *value = format!("{exact:.5e}").parse::<f64>().map_or(Value::Null, Value::from);
        }
        Value::Array(values) => values.iter_mut().for_each(round),
        Value::Object(fields) => fields.values_mut().for_each(round),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_counts_stay() {
        let mut value = serde_json::json!({"a": [0.123_456_789, 12_345_678, 1_234_567.89], "b": 0.0});
        round(&mut value);
        assert_eq!(value, serde_json::json!({"a": [0.123_457, 12_345_678, 1_234_570.0], "b": 0.0}));
    }
}
