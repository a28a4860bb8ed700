//! Envoy's statistics.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Deserialize;

/// Counters and gauges by name, at one moment.
#[derive(Debug, Clone)]
pub struct Stats(BTreeMap<String, u64>);

#[derive(Deserialize)]
struct Page {
    stats: Vec<Entry>,
}

/// Histograms have other fields and are passed over.
#[derive(Deserialize)]
struct Entry {
    name: Option<String>,
    value: Option<serde_json::Value>,
}

impl Stats {
    /// Reads the answer of `/stats?format=json`.
    pub(super) fn parse(json: &str) -> Result<Self> {
        let page: Page = serde_json::from_str(json)?;
        let number = |entry: Entry| Some((entry.name?, entry.value?.as_u64()?));
        Ok(Self(page.stats.into_iter().filter_map(number).collect()))
    }

    /// One value; 0 when Envoy has not made it yet.
    #[must_use]
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// All whose name starts so.
    pub fn with_prefix<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, u64)> {
        self.0.iter().filter(move |(name, _)| name.starts_with(prefix)).map(|(name, value)| (name.as_str(), *value))
    }

    /// Sum of all whose name starts so.
    #[must_use]
    pub fn sum(&self, prefix: &str) -> u64 {
        self.with_prefix(prefix).map(|(_, value)| value).sum()
    }

    /// Requests of a pool per endpoint, over all reasons, as `weighbridge_requests` counts them.
    #[must_use]
    pub fn requests_by_endpoint(&self, pool: &str) -> BTreeMap<String, u64> {
        let prefix = format!("wasmcustom.weighbridge_requests.pool.{pool}.endpoint.");
        let mut counts = BTreeMap::new();
        for (name, value) in self.with_prefix(&prefix) {
            let rest = &name[prefix.len()..];
            let endpoint = rest.split_once('.').map_or(rest, |(endpoint, _)| endpoint);
            *counts.entry(endpoint.to_owned()).or_insert(0) += value;
        }
        counts
    }

    /// `weighbridge_in_flight` of one endpoint.
    #[must_use]
    pub fn in_flight(&self, pool: &str, endpoint: &str) -> u64 {
        self.get(&format!("wasmcustom.weighbridge_in_flight.pool.{pool}.endpoint.{endpoint}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_summed_over_reasons() {
        let stats = Stats::parse(
            r#"{"stats":[
            {"name":"wasmcustom.weighbridge_requests.pool.q.endpoint.a.reason.weighted","value":3},
            {"name":"wasmcustom.weighbridge_requests.pool.q.endpoint.a.reason.only_one","value":4},
            {"name":"wasmcustom.weighbridge_requests.pool.q2.endpoint.a.reason.weighted","value":9},
            {"histograms":{"supported_quantiles":[]}}]}"#,
        )
        .unwrap();
        assert_eq!(stats.requests_by_endpoint("q"), BTreeMap::from([("a".to_owned(), 7)]));
        assert_eq!(stats.get("absent"), 0);
    }
}
