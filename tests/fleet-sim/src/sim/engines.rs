//! The engines, and what the simulation knows of each.

use engine_sim::model::{Model, Nanos, ProfileError};

use crate::fleet::Fleet;

/// One entry per endpoint in each.
#[derive(Debug)]
pub(super) struct Engines {
    pub(super) models: Vec<Model>,
    /// Counts how often an engine's next event was looked up: an older entry of the calendar is void.
    pub(super) stamps: Vec<u64>,
    /// Whether its process is gone.
    pub(super) down: Vec<bool>,
    /// How many times as long everything takes there.
    pub(super) slow: Vec<f64>,
    /// Requests there, of all gateways.
    pub(super) in_flight: Vec<u32>,
    /// The most that were ever there at a time.
    pub(super) peak: Vec<u32>,
}

impl Engines {
    pub(super) fn new(fleet: &Fleet) -> Result<Self, ProfileError> {
        let models = fleet.engines.iter().map(|profile| Model::new(profile.clone())).collect::<Result<Vec<_>, _>>()?;
        let count = models.len();
        Ok(Self {
            models,
            stamps: vec![0; count],
            down: vec![false; count],
            slow: vec![1.0; count],
            in_flight: vec![0; count],
            peak: vec![0; count],
        })
    }

    /// A request has been accepted.
    pub(super) fn add(&mut self, nth: usize) {
        self.in_flight[nth] += 1;
        self.peak[nth] = self.peak[nth].max(self.in_flight[nth]);
    }

    /// The process is gone, and with it all that it had.
    pub(super) fn kill(&mut self, nth: usize, now: Nanos) {
        self.down[nth] = true;
        self.in_flight[nth] = 0;
        self.stamps[nth] += 1;
        let profile = self.models[nth].profile().clone();
        // A profile that was accepted is accepted again.
        let _ = self.models[nth].restart(now, profile, false);
    }
}
