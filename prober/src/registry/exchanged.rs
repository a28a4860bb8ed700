//! What an Envoy is answered: the exchange's sums and the engines' figures, for the endpoints that it has asked about.

use std::collections::BTreeMap;

use weighbridge_routing::exchange::{Answer, EndpointAnswer, Figures, Report};

use super::{Endpoint, Registry};
use crate::exchange::Crowded;

impl Registry {
    /// Takes in a report and answers it.
    ///
    /// # Errors
    /// When too many Envoys report.
    pub fn exchanged(&mut self, report: &Report, now_ms: u64) -> Result<Answer, Crowded> {
        let endpoints = &self.endpoints;
        let exists = |pool: &str, id: &str| endpoints.get(id).is_some_and(|endpoint| endpoint.pool == pool);
        self.exchange.report(report, exists, now_ms)?;
        let mut answer = Answer::default();
        for (name, told) in &report.pools {
            for (id, row) in &told.endpoints {
                // A complete answer had tokens to its end. What makes a failed engine healthy again, publishes: not this.
                if row.served.is_some_and(|served| served.tps.n > 0)
                    && let Some(endpoint) = self.endpoints.get_mut(id).filter(|endpoint| endpoint.pool == *name)
                    && endpoint.health.tokens.error().is_none()
                {
                    endpoint.health.tokens.proven(now_ms);
                }
            }
            let known = told.endpoints.keys().filter_map(|id| {
                let endpoint = self.endpoints.get(id).filter(|endpoint| endpoint.pool == *name)?;
                Some((id.clone(), self.answer(&report.envoy, id, endpoint, now_ms)))
            });
            answer.pools.insert(name.clone(), known.collect::<BTreeMap<_, _>>());
        }
        Ok(answer)
    }

    fn answer(&self, envoy: &str, id: &str, endpoint: &Endpoint, now_ms: u64) -> EndpointAnswer {
        let figures = self.figures(id, endpoint, now_ms);
        EndpointAnswer {
            engine: (figures != Figures::default()).then_some(figures),
            ..self.exchange.seen_by(envoy, id, now_ms)
        }
    }

    /// Requests that an endpoint has, as its engine tells, else as the Envoys do; `None` when nobody tells.
    #[must_use]
    pub fn busy(&self, id: &str, endpoint: &Endpoint, now_ms: u64) -> Option<u64> {
        let Figures { running, waiting, .. } = self.figures(id, endpoint, now_ms);
        let engine = running.map(|running| u64::from(running) + u64::from(waiting.unwrap_or(0)));
        let told = || (self.exchange.envoys(now_ms) > 0).then(|| self.exchange.in_flight(id, now_ms).into());
        engine.or_else(told)
    }

    /// What is known of an engine and its GPUs now; what is stale is missing.
    #[must_use]
    pub fn figures(&self, id: &str, endpoint: &Endpoint, now_ms: u64) -> Figures {
        let narrow = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let signals = endpoint.signals.fresh(now_ms, self.exchange.settings().stale_after_ms());
        Figures {
            running: signals.and_then(|signals| signals.running).map(narrow),
            waiting: signals.and_then(|signals| signals.waiting).map(narrow),
            kv_usage: signals.and_then(|signals| signals.kv_usage),
            gpu_usage: self.gpus.usage(id, &endpoint.written.node, now_ms),
        }
    }
}
