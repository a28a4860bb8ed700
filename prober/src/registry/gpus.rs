//! How busy the GPUs of endpoints are, as their exporters tell.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::config;
use crate::engine::{EngineError, Gpu, mean_usage};
use crate::exchange::{STALE_INTERVALS, is_fresh};

/// How often an exporter is asked, at most: DCGM's own figures change about as often.
const LEAST_INTERVAL: Duration = Duration::from_secs(1);

/// The last reading of one exporter.
#[derive(Debug, Clone, Default)]
struct Reading {
    gpus: Vec<Gpu>,
    at_ms: u64,
    error: Option<String>,
}

/// All exporters.
#[derive(Debug)]
pub struct Gpus {
    settings: config::Signals,
    readings: HashMap<String, Reading>,
}

impl Gpus {
    /// Nothing read yet.
    #[must_use]
    pub fn new(settings: config::Signals) -> Self {
        Gpus { settings, readings: HashMap::new() }
    }

    /// The exporters, each once.
    #[must_use]
    pub fn urls(&self) -> BTreeSet<String> {
        self.settings.dcgm.iter().map(|dcgm| dcgm.url.clone()).collect()
    }

    /// How often they are asked.
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.settings.interval.max(LEAST_INTERVAL)
    }

    /// A new reading; a failed one leaves the old figures to grow stale.
    pub fn read(&mut self, url: &str, result: Result<Vec<Gpu>, EngineError>, now_ms: u64) {
        let reading = self.readings.entry(url.to_owned()).or_default();
        match result {
            Ok(gpus) if gpus.is_empty() => {
                *reading = Reading { error: Some("no DCGM_FI_DEV_GPU_UTIL there".into()), ..Reading::default() };
            }
            Ok(gpus) => *reading = Reading { gpus, at_ms: now_ms, error: None },
            Err(error) => reading.error = Some(error.to_string()),
        }
    }

    /// How busy the GPUs of an endpoint are, 0 to 1; nothing without an exporter, or when it has told nothing of late.
    #[must_use]
    pub fn usage(&self, id: &str, node: &str, now_ms: u64) -> Option<f64> {
        let dcgm = self.settings.dcgm_of(id, node)?;
        let reading = self.readings.get(&dcgm.url)?;
        let for_ms = self.interval().as_millis() as u64 * u64::from(STALE_INTERVALS);
        is_fresh(reading.at_ms, now_ms, for_ms).then(|| mean_usage(&reading.gpus, &dcgm.gpus))?
    }

    /// What is wrong with the exporter of an endpoint.
    #[must_use]
    pub fn error(&self, id: &str, node: &str) -> Option<&str> {
        self.readings.get(&self.settings.dcgm_of(id, node)?.url)?.error.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Dcgm, Signals, Whose};

    #[test]
    fn figures_are_of_late_or_none() {
        let settings = Signals {
            interval: Duration::from_millis(250),
            average_over: Duration::from_secs(60),
            dcgm: vec![Dcgm { of: Whose::Node("n".into()), url: "u".into(), gpus: vec!["1".into()] }],
        };
        let mut gpus = Gpus::new(settings);
        let gpu = |index: &str, usage| Gpu { index: index.into(), uuid: String::new(), usage };
        gpus.read("u", Ok(vec![gpu("0", 0.1), gpu("1", 0.7)]), 10_000);
        assert_eq!((gpus.usage("e", "n", 13_000), gpus.usage("e", "other", 10_000)), (Some(0.7), None));
        gpus.read("u", Err(EngineError::Http("timeout".into())), 13_000);
        assert_eq!((gpus.usage("e", "n", 13_000), gpus.error("e", "n")), (Some(0.7), Some("timeout")));
        assert_eq!(gpus.usage("e", "n", 13_001), None);
        gpus.read("u", Ok(Vec::new()), 14_000);
        assert!(gpus.usage("e", "n", 14_000).is_none() && gpus.error("e", "n").is_some());
    }
}
