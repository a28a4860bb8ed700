//! What the engine tells about itself.

use std::sync::Arc;

use super::super::launch_args::LaunchArgs;
use super::super::state::{RequestRecord, State};
use super::{Core, Finished, Inner};
use crate::model::{Profile, Stats};

/// What [`crate::server::metrics`] shows.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    pub(crate) stats: Stats,
    pub(crate) profile: Arc<Profile>,
    pub(crate) launch_args: LaunchArgs,
    /// Generation requests ever received, and the most that were under way together at the HTTP level.
    pub(crate) requests: u64,
    pub(crate) in_flight_max: usize,
    /// Requests that hang before they reached the model.
    pub(crate) hanging: usize,
    pub(crate) finished: Finished,
    pub(crate) started_s: f64,
}

impl Core {
    pub(crate) fn reset_max(&self) {
        let mut inner = self.lock();
        inner.model.reset_max();
        inner.http.in_flight_max = inner.http.in_flight;
    }

    pub(crate) fn records(&self) -> Vec<RequestRecord> {
        self.lock().records.iter().cloned().collect()
    }

    pub(crate) fn reading(&self) -> Reading {
        let mut inner = self.lock();
        self.catch_up(&mut inner);
        Reading {
            stats: inner.model.stats(),
            profile: inner.process.profile.clone(),
            launch_args: LaunchArgs::parse(&inner.process.launch_args),
            requests: inner.http.requests,
            in_flight_max: inner.http.in_flight_max,
            hanging: inner.http.hanging,
            finished: inner.finished,
            started_s: inner.process.started_s,
        }
    }

    pub(crate) fn state(&self) -> State {
        let mut inner = self.lock();
        self.catch_up(&mut inner);
        let stats = inner.model.stats();
        let fault = inner.faults.current(std::time::Instant::now()).clone();
        let (http, process) = (&inner.http, &inner.process);
        State {
            name: self.config.name.clone(),
            model: self.config.model.clone(),
            profile: process.profile.name.clone(),
            launch_args: process.launch_args.clone(),
            alive: process.alive,
            process_start_time_seconds: process.started_s,
            restarts: process.restarts,
            running: stats.running,
            waiting: stats.waiting,
            running_max: stats.running_max,
            in_flight: http.in_flight,
            in_flight_max: http.in_flight_max,
            hanging: http.hanging,
            requests_total: http.requests,
            faults_total: http.faults,
            refused_total: http.refused,
            finished_total: stats.finished,
            cancelled_total: stats.cancelled,
            prompt_tokens_total: stats.prompt_tokens,
            generation_tokens_total: stats.generated_tokens,
            prefix_cache_queries_total: stats.cache_query_tokens,
            prefix_cache_hits_total: stats.cache_hit_tokens,
            kv_cache_usage: stats.kv_usage,
            cold_tokens_left: stats.cold_tokens_left,
            fault,
        }
    }

    fn catch_up(&self, inner: &mut Inner) {
        inner.model.advance(self.now());
        inner.dispatch();
        self.rearm(inner);
    }
}
