//! Statistics: counted in the VM, handed to Envoy on a tick.
//!
//! A host call costs about as much as the pick itself, so the request path only adds to numbers here. Names carry the
//! labels (`weighbridge_requests.pool.<pool>.endpoint.<id>.reason.<reason>`); the bootstrap's `stats_tags` take them
//! out again. Envoy never frees a metric, and labels come from snapshots only, never from clients; beyond
//! [`MAX_METRICS`] names (a fleet whose endpoints come and go for months) the rest share `other`.

use std::collections::HashMap;

use crate::host::{self, Metric};

/// The most metric names one VM defines.
const MAX_METRICS: usize = 4_096;
/// Samples kept between two ticks; more are dropped (a tick is half a second).
const MAX_SAMPLES: usize = 16_384;

/// A counter with its labels.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Requests {
    /// Pool, or `none` when the request named no model that exists.
    pub(crate) pool: String,
    /// Endpoint, or `none` when it was refused.
    pub(crate) endpoint: String,
    /// Why.
    pub(crate) reason: &'static str,
}

/// What this VM has counted since the last tick, and the ids of the metrics it knows.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    requests: HashMap<Requests, u64>,
    ejections: HashMap<(String, String), u64>,
    ttft_ms: Vec<(String, u64)>,
    unshared: u64,
    ids: HashMap<String, Option<u32>>,
}

impl Stats {
    pub(crate) fn request(&mut self, pool: &str, endpoint: &str, reason: &'static str) {
        let key = Requests { pool: pool.into(), endpoint: endpoint.into(), reason };
        *self.requests.entry(key).or_default() += 1;
    }

    pub(crate) fn ejection(&mut self, pool: &str, endpoint: &str) {
        *self.ejections.entry((pool.into(), endpoint.into())).or_default() += 1;
    }

    pub(crate) fn ttft(&mut self, pool: &str, ms: u64) {
        if self.ttft_ms.len() < MAX_SAMPLES {
            self.ttft_ms.push((pool.into(), ms));
        }
    }

    /// A change of the live table that could not be written and waits for the next one.
    pub(crate) fn unshared(&mut self) {
        self.unshared += 1;
    }

    /// Hands everything to Envoy.
    pub(crate) fn flush(&mut self) {
        for (labels, count) in std::mem::take(&mut self.requests) {
            let Requests { pool, endpoint, reason } = labels;
            self.add(&format!("weighbridge_requests.pool.{pool}.endpoint.{endpoint}.reason.{reason}"), count);
        }
        for ((pool, endpoint), count) in std::mem::take(&mut self.ejections) {
            self.add(&format!("weighbridge_ejections.pool.{pool}.endpoint.{endpoint}"), count);
        }
        for (pool, ms) in std::mem::take(&mut self.ttft_ms) {
            self.record(Metric::Histogram, &format!("weighbridge_ttft_ms.pool.{pool}"), ms);
        }
        let unshared = std::mem::take(&mut self.unshared);
        if unshared > 0 {
            self.add("weighbridge_live_write_failures", unshared);
        }
    }

    /// Sets a gauge at once.
    pub(crate) fn gauge(&mut self, name: &str, value: u64) {
        self.record(Metric::Gauge, name, value);
    }

    fn add(&mut self, name: &str, by: u64) {
        if let Some(id) = self.id(Metric::Counter, name) {
            host::increment_metric(id, by);
        }
    }

    fn record(&mut self, kind: Metric, name: &str, value: u64) {
        if let Some(id) = self.id(kind, name) {
            host::record_metric(id, value);
        }
    }

    fn id(&mut self, kind: Metric, name: &str) -> Option<u32> {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        if self.ids.len() >= MAX_METRICS {
            let family = name.split('.').next().unwrap_or(name);
            return match kind {
                // A gauge shared by several endpoints would say nothing.
                Metric::Gauge => None,
                _ => host::define_metric(kind, &format!("{family}.pool.other.endpoint.other")),
            };
        }
        let id = host::define_metric(kind, name);
        self.ids.insert(name.into(), id);
        id
    }
}
