//! What a request's attempts and its answer say of the endpoints: whom to blame, and where it counts meanwhile.

use weighbridge_routing::exchange::served::Sample as Served;
use weighbridge_routing::live::{Outcome, Report};
use weighbridge_routing::response::Watcher;

use super::Placed;
use crate::place::request_id;
use crate::{attempts, host, vm};

impl Placed {
    /// Whether the request is counted at the endpoint with this address.
    pub(crate) fn is_at(&self, address: &[u8]) -> bool {
        self.endpoint().is_some_and(|endpoint| endpoint.address.as_bytes() == address)
    }

    /// The place of the endpoint at this address, at which it is or was to be tried: of several there the one that it is counted at, or
    /// one of its hosts.
    fn place_at(&self, address: &[u8]) -> Option<usize> {
        if self.is_at(address) { Some(self.at) } else { self.pool()?.place_at(address, &self.admitted.pick.hosts) }
    }

    /// Whether this is the request with this id. Its own is read from its headers when it is asked for the first time, which is
    /// seldom: an attempt must have failed. Its stream is the effective context then.
    pub(crate) fn is(&mut self, id: u64) -> bool {
        if self.known.id.is_none() && host::set_effective_context(self.known.context).is_ok() {
            self.known.id = Some(request_id());
        }
        self.known.id == Some(Some(id))
    }

    /// One of its attempts went wrong at this address: its endpoint gets the report, and if nothing of an answer has come yet,
    /// the count goes on to the next host, as the request does. (Where Envoy does not try again, its own answer follows at once,
    /// and [`Placed::follow`] takes the count back.)
    pub(crate) fn attempt_failed(&mut self, address: &[u8], outcome: Outcome) -> bool {
        let Some(at) = self.place_at(address) else { return false };
        let Some(pool) = self.snapshot.pools.get(self.pool) else { return false };
        let Some(from) = pool.endpoints.get(at) else { return false };
        // Of several attempts at one endpoint the first says it all.
        let outcome = if self.failed.contains(&at) { Outcome::Neutral } else { outcome };
        self.failed.push(at);
        let report = Report { outcome, trial: self.was_ejected(at) && !self.trial_told, added_tokens: 0 };
        let is_open = self.status == 0 && self.released_ms.is_none() && self.at == at;
        let next = self.admitted.pick.hosts.get(self.failed.len()).copied().filter(|next| is_open && *next != at);
        let now_ms = host::now_ms();
        vm::with(|vm| match next.and_then(|next| Some((next, pool.endpoints.get(next)?))) {
            Some((next, to)) => {
                vm.shift(pool, from, to, self.admitted.charge, report, now_ms);
                self.at = next;
            }
            None => vm.report(pool, from, report, now_ms),
        });
        if outcome == Outcome::Failure {
            vm::with(|vm| vm.served(pool, from, &Served { error: true, ..Served::default() }));
        }
        true
    }

    /// The count follows the endpoint that was really used. With several attempts the pick has failed or pushed back, which
    /// [`attempts`] tells where it hears of them; with one, Envoy did not know its address (yet), which is nobody's fault.
    pub(super) fn follow(&mut self) {
        let Some(address) = host::property("upstream\0address") else { return };
        let Some(at) = self.place_at(&address).filter(|at| *at != self.at) else { return };
        let Some(pool) = self.snapshot.pools.get(self.pool) else { return };
        if let (Some(from), Some(to)) = (pool.endpoints.get(self.at), pool.endpoints.get(at)) {
            let unknown = !attempts::are_logged() && attempt_count() > 1;
            let outcome = if unknown { Outcome::Busy { retry_after_ms: None } } else { Outcome::Neutral };
            let report = Report { outcome, trial: self.on_trial(), added_tokens: 0 };
            vm::with(|vm| vm.shift(pool, from, to, self.admitted.charge, report, host::now_ms()));
            self.at = at;
        }
    }

    /// Whether the endpoint that the request is counted at had been ejected when it was picked.
    pub(super) fn on_trial(&self) -> bool {
        self.was_ejected(self.at) && !self.trial_told
    }

    fn was_ejected(&self, place: usize) -> bool {
        self.admitted.loads.get(place).is_some_and(|load| load.passive.ejections > 0)
    }

    /// A trial has succeeded as soon as its answer begins: the end of a long stream would be too late. What comes after that is
    /// no trial any more.
    pub(super) fn report_trial(&mut self) {
        if !self.answered || !self.on_trial() || self.outcome() != Outcome::Success {
            return;
        }
        if let (Some(pool), Some(endpoint)) = (self.pool(), self.endpoint()) {
            let report = Report { outcome: Outcome::Success, trial: true, added_tokens: 0 };
            vm::with(|vm| vm.report(pool, endpoint, report, host::now_ms()));
            self.trial_told = true;
        }
    }

    /// How a request that got a whole answer went.
    pub(super) fn outcome(&self) -> Outcome {
        match self.status {
            200..300 => match self.watcher.as_ref().map(Watcher::facts) {
                Some(facts) if facts.client_error => Outcome::Neutral,
                Some(facts) if facts.error => Outcome::Failure,
                _ => Outcome::Success,
            },
            // Told already.
            429 | 500.. if attempts::are_logged() => Outcome::Neutral,
            429 => attempts::refused(true, self.pushed_back),
            503 if self.answered => attempts::refused(false, self.pushed_back),
            500.. => Outcome::Failure,
            // The client's mistake, or the operator's at this endpoint (a wrong key, path or model), told by what stands before
            // the engine proper. No failure, and no reason to trust it.
            400..500 => Outcome::Neutral,
            _ => Outcome::Success,
        }
    }

    /// How a request ended that got no whole answer. Only what Envoy blames on the upstream counts against the endpoint:
    /// a client that leaves (which HTTP/1 and HTTP/2 name differently) says nothing about it.
    pub(super) fn outcome_of_cut(&self, details: &[u8], now_ms: u64) -> Outcome {
        let told = matches!(self.status, 0 | 429 | 500..) && attempts::are_logged();
        match details.starts_with(b"upstream_") {
            true if !told => Outcome::Failure,
            false if self.was_silent(now_ms) => Outcome::Failure,
            _ => Outcome::Neutral,
        }
    }

    /// Whether its client gave up after a long wait in which its endpoint sent nobody anything. Only streams tell: any other
    /// answer is silent until it is complete.
    fn was_silent(&self, now_ms: u64) -> bool {
        let silent_after_ms = self.pool().map_or(0, |pool| pool.passive_health.silent_after_ms);
        let (pulse, then) = &self.pulse;
        silent_after_ms > 0
            && self.known.stream
            && !self.heard
            && self.failed.is_empty()
            && pulse.get() == *then
            && now_ms.saturating_sub(self.given_ms()) >= u64::from(silent_after_ms).saturating_add(self.prefill_ms())
    }

    /// How long its endpoint needs, by what is known, to compute its prompt and those before it.
    fn prefill_ms(&self) -> u64 {
        let Some(endpoint) = self.endpoint() else { return 0 };
        let before = self.admitted.loads.get(self.at).map_or(0, |load| load.prefill_tokens);
        let tokens = self.known.ask.prompt_tokens.saturating_add(before.into());
        (tokens as f64 * 1_000.0 / endpoint.prefill_tps) as u64
    }
}

/// How often Envoy tried.
pub(super) fn attempt_count() -> u32 {
    let bytes = host::property("upstream\0request_attempt_count").unwrap_or_default();
    bytes.try_into().map_or(0, u64::from_le_bytes).try_into().unwrap_or_default()
}
