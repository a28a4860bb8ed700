//! Statistics: counted in the VM, handed to Envoy on a tick.
//!
//! A host call costs about as much as the pick itself, so the request path only adds to numbers here, and a name is
//! built once. Names carry the labels (`weighbridge_requests.pool.<pool>.endpoint.<id>.reason.<reason>`); the
//! bootstrap's `stats_tags` take them out again. Envoy never frees a metric, and labels come from snapshots only, never
//! from clients; beyond [`MAX_METRICS`] names (a fleet whose endpoints come and go for months) the rest share `other`.

use std::collections::{HashMap, HashSet};

use weighbridge_routing::snapshot::EndpointKey;

use crate::host::{self, Metric};
use crate::quick::Quick;

/// The most metrics of a kind that one VM defines.
const MAX_METRICS: usize = 4_096;
/// Samples of one histogram kept between two ticks; more are dropped (a tick is half a second).
const MAX_SAMPLES: usize = 16_384;

/// What came of looking for the holders of a prompt's prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// Somebody holds some of it.
    Hit,
    /// Nobody does, as far as is known.
    Miss,
    /// There was nothing to look for: the prompt is too short, or affinity is off.
    None,
}

impl Lookup {
    fn as_str(self) -> &'static str {
        match self {
            Lookup::Hit => "hit",
            Lookup::Miss => "miss",
            Lookup::None => "none",
        }
    }
}

/// A metric whose values wait for the next tick.
#[derive(Debug)]
struct Waiting<T> {
    /// `None` when Envoy did not define it; its values are lost then.
    id: Option<u32>,
    values: T,
}

/// What this VM has counted since the last tick.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    /// By family or reason, and by what it is about.
    counters: HashMap<(&'static str, u64), Waiting<u64>, Quick>,
    histograms: HashMap<(&'static str, u64), Waiting<Vec<u64>>, Quick>,
    gauges: HashMap<String, Option<u32>>,
}

impl Stats {
    /// A request that was given to an endpoint.
    pub(crate) fn placed(&mut self, pool: &str, endpoint: &str, key: EndpointKey, reason: &'static str) {
        self.count(reason, key.0 ^ pool_key(pool), || {
            format!("weighbridge_requests.pool.{pool}.endpoint.{endpoint}.reason.{reason}")
        });
    }

    /// A request that was answered from here; `pool` is `none` when it named no model that exists.
    pub(crate) fn refused(&mut self, pool: &str, reason: &'static str) {
        self.count(reason, pool_key(pool), || {
            format!("weighbridge_requests.pool.{pool}.endpoint.none.reason.{reason}")
        });
    }

    /// A look for the holders of a prompt's prefix.
    pub(crate) fn prefix_lookup(&mut self, pool: &str, result: Lookup) {
        let result = result.as_str();
        self.count(result, pool_key(pool), || format!("weighbridge_prefix_lookups.pool.{pool}.result.{result}"));
    }

    /// What the shadow policy would have done: `load_difference` is how many requests per weight fewer (or, below 0, more)
    /// the endpoint that it would have chosen has; summed in thousandths.
    pub(crate) fn shadow(&mut self, pool: &str, agrees: bool, load_difference: f64) {
        let result = if agrees { "agree" } else { "differ" };
        self.count(result, pool_key(pool), || format!("weighbridge_shadow_decisions.pool.{pool}.result.{result}"));
        let result = if load_difference < 0.0 { "higher" } else { "lower" };
        // Saturates.
        let thousandths = (load_difference.abs() * 1_000.0).round() as u64;
        if thousandths > 0 {
            self.add(result, pool_key(pool), thousandths, || {
                format!("weighbridge_shadow_load_milli.pool.{pool}.result.{result}")
            });
        }
    }

    /// Which of a pool's two policies had a request, where it has a canary.
    pub(crate) fn canary(&mut self, pool: &str, canary: bool) {
        let result = if canary { "canary" } else { "main" };
        self.count(result, pool_key(pool), || format!("weighbridge_canary_requests.pool.{pool}.result.{result}"));
    }

    /// An endpoint that was ejected.
    pub(crate) fn ejection(&mut self, pool: &str, endpoint: &str, key: EndpointKey) {
        self.count("ejection", key.0 ^ pool_key(pool), || {
            format!("weighbridge_ejections.pool.{pool}.endpoint.{endpoint}")
        });
    }

    /// A change of the live table that could not be written and waits for the next one.
    pub(crate) fn unshared(&mut self) {
        self.count("unshared", 0, || "weighbridge_live_write_failures".to_owned());
    }

    /// Decision records that could not be brought to the prober.
    pub(crate) fn decisions_dropped(&mut self, count: u64) {
        self.add("decisions_dropped", 0, count, || "weighbridge_decisions_dropped".to_owned());
    }

    /// A slot whose wake-up did not come, found by a tick.
    pub(crate) fn late_wake(&mut self) {
        self.count("late_wake", 0, || "weighbridge_queue_late_wakes".to_owned());
    }

    /// How long a request waited for its slot.
    pub(crate) fn queue_wait(&mut self, pool: &str, ms: u64) {
        self.sample("weighbridge_queue_wait_ms", pool, ms);
    }

    /// A call to the prober of this family, by how it ended.
    pub(crate) fn call(&mut self, family: &'static str, result: &'static str) {
        self.count(result, pool_key(family), || format!("{family}.result.{result}"));
    }

    /// Time to the first token of a stream, or the first byte of another answer.
    pub(crate) fn ttft(&mut self, pool: &str, ms: u64) {
        self.sample("weighbridge_ttft_ms", pool, ms);
    }

    fn sample(&mut self, family: &'static str, pool: &str, value: u64) {
        let full = self.histograms.len() >= MAX_METRICS;
        let key = (family, if full { 0 } else { pool_key(pool) });
        let waiting = self.histograms.entry(key).or_insert_with(|| Waiting {
            id: host::define_metric(Metric::Histogram, &format!("{family}.pool.{}", if full { "other" } else { pool })),
            values: Vec::new(),
        });
        if waiting.values.len() < MAX_SAMPLES {
            waiting.values.push(value);
        }
    }

    /// Sets a gauge at once.
    pub(crate) fn gauge(&mut self, name: &str, value: u64) {
        // A gauge that several endpoints share would say nothing, so beyond the bound there is none.
        if !self.gauges.contains_key(name) && self.gauges.len() < MAX_METRICS {
            self.gauges.insert(name.to_owned(), host::define_metric(Metric::Gauge, name));
        }
        if let Some(id) = self.gauges.get(name).copied().flatten() {
            host::record_metric(id, value);
        }
    }

    /// Sets the gauges of a family to zero that `keep` does not name: those of endpoints that are gone.
    pub(crate) fn zero_gauges(&self, family: &str, keep: &HashSet<String>) {
        for (name, id) in &self.gauges {
            if let Some(id) = id.filter(|_| name.starts_with(family) && !keep.contains(name)) {
                host::record_metric(id, 0);
            }
        }
    }

    /// Hands everything to Envoy.
    pub(crate) fn flush(&mut self) {
        for Waiting { id, values } in self.counters.values_mut().filter(|waiting| waiting.values > 0) {
            let count = std::mem::take(values);
            if let Some(id) = *id {
                host::increment_metric(id, count);
            }
        }
        for Waiting { id, values } in self.histograms.values_mut() {
            for value in values.drain(..) {
                if let Some(id) = *id {
                    host::record_metric(id, value);
                }
            }
        }
    }

    fn count(&mut self, what: &'static str, about: u64, name: impl FnOnce() -> String) {
        self.add(what, about, 1, name);
    }

    fn add(&mut self, what: &'static str, about: u64, by: u64, name: impl FnOnce() -> String) {
        let full = self.counters.len() >= MAX_METRICS;
        let key = if full && !self.counters.contains_key(&(what, about)) { (what, u64::MAX) } else { (what, about) };
        let waiting = self.counters.entry(key).or_insert_with(|| {
            let mut name = name();
            if key.1 == u64::MAX {
                let family = name.split('.').next().unwrap_or_default();
                let result = if name.contains(".result.") { "result" } else { "endpoint.other.reason" };
                name = format!("{family}.pool.other.{result}.{what}");
            }
            Waiting { id: host::define_metric(Metric::Counter, &name), values: 0 }
        });
        waiting.values = waiting.values.saturating_add(by);
    }
}

fn pool_key(pool: &str) -> u64 {
    EndpointKey::of("", pool).0
}
