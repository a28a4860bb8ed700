//! The last quarter of an hour of each endpoint and pool, for sparklines. Pure: time is an argument (Unix ms).
//!
//! A point every [`STEP_MS`], at most [`STEPS`] of them, some 6 KB an endpoint; those of an endpoint that is gone go with it. In
//! memory only: Prometheus has the rest.
//!
//! ```text
//! tps = (generated tokens now - generated tokens at the point before) / time between the two scrapes
//! ```
//!
//! by the engine's own counter; where it has none, the moving average of one request's speed times the requests in flight. A
//! counter that falls belongs to another life of the engine and tells nothing; a figure that is missing or stale is missing, not 0.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;
use utoipa::ToSchema;

/// How far apart points are.
pub const STEP_MS: u64 = 5_000;
/// How many there are: 15 minutes.
pub const STEPS: usize = 180;

/// What is known of an endpoint at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Reading {
    /// Moving average of the time to the first token.
    pub ttft_ms: Option<f64>,
    /// The engine's counter, and when it was read.
    pub generated: Option<Generated>,
    /// Moving average of one request's tokens per second.
    pub request_tps: Option<f64>,
    /// Requests that Envoys have in flight there.
    pub in_flight: Option<u32>,
    /// Requests in the engine's own queue.
    pub waiting: Option<u32>,
}

/// Tokens that an engine has generated since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generated {
    /// How many.
    pub tokens: u64,
    /// When that was so.
    pub at_ms: u64,
}

impl Generated {
    /// Tokens per second since then.
    fn rate_since(self, before: Generated) -> Option<f64> {
        let tokens = self.tokens.checked_sub(before.tokens)?;
        let ms = self.at_ms.checked_sub(before.at_ms).filter(|ms| *ms > 0)?;
        Some(tokens as f64 * 1e3 / ms as f64)
    }
}

/// What is known of a pool at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolReading {
    /// Requests in the Envoys' queues.
    pub waiting: u64,
    /// Requests that Envoys have in flight at its endpoints.
    pub in_flight: u64,
}

#[derive(Debug)]
struct Point {
    at_ms: u64,
    ttft_ms: Option<f64>,
    tps: Option<f64>,
    in_flight: Option<u32>,
    waiting: Option<u32>,
}

#[derive(Debug, Default)]
struct Track {
    points: VecDeque<Point>,
    generated: Option<Generated>,
}

impl Track {
    fn push(&mut self, reading: Reading, now_ms: u64) {
        let counted = reading.generated.zip(self.generated).and_then(|(now, before)| now.rate_since(before));
        let served = || Some(reading.request_tps? * f64::from(reading.in_flight?));
        let tps = if reading.generated.is_some() { counted } else { served() };
        self.generated = reading.generated;
        let Reading { ttft_ms, in_flight, waiting, .. } = reading;
        bounded(&mut self.points, Point { at_ms: now_ms, ttft_ms, tps, in_flight, waiting });
    }
}

fn bounded<T>(points: &mut VecDeque<T>, point: T) {
    if points.len() >= STEPS {
        points.pop_front();
    }
    points.push_back(point);
}

/// All endpoints and pools.
#[derive(Debug, Default)]
pub struct Series {
    endpoints: BTreeMap<String, Track>,
    pools: BTreeMap<String, VecDeque<(u64, PoolReading)>>,
}

/// What [`Series::since`] finds, a list per figure.
#[derive(Debug, Serialize, PartialEq, ToSchema)]
pub struct Columns {
    step_ms: u64,
    endpoints: BTreeMap<String, EndpointColumns>,
    pools: BTreeMap<String, PoolColumns>,
}

/// Of one endpoint; the lists are of one length.
#[derive(Debug, Default, Serialize, PartialEq, ToSchema)]
struct EndpointColumns {
    /// Unix ms, rising
    at_ms: Vec<u64>,
    /// Moving average of the time to the first token.
    ttft_ms: Vec<Option<f64>>,
    /// Tokens per second of all its requests together.
    tps: Vec<Option<f64>>,
    /// Requests that Envoys have in flight there.
    in_flight: Vec<Option<u32>>,
    /// Requests in the engine's own queue.
    waiting: Vec<Option<u32>>,
}

/// Of one pool; the lists are of one length.
#[derive(Debug, Default, Serialize, PartialEq, ToSchema)]
struct PoolColumns {
    /// Unix ms, rising
    at_ms: Vec<u64>,
    /// Requests in the Envoys' queues.
    waiting: Vec<u64>,
    /// Requests that Envoys have in flight at its endpoints.
    in_flight: Vec<u64>,
}

impl Series {
    /// Takes in what is known now. Whoever is not among these is forgotten.
    pub fn push(
        &mut self,
        endpoints: impl IntoIterator<Item = (String, Reading)>,
        pools: impl IntoIterator<Item = (String, PoolReading)>,
        now_ms: u64,
    ) {
        let mut before = std::mem::take(&mut self.endpoints);
        for (id, reading) in endpoints {
            let mut track = before.remove(&id).unwrap_or_default();
            track.push(reading, now_ms);
            self.endpoints.insert(id, track);
        }
        let mut before = std::mem::take(&mut self.pools);
        for (name, reading) in pools {
            let mut points = before.remove(&name).unwrap_or_default();
            bounded(&mut points, (now_ms, reading));
            self.pools.insert(name, points);
        }
    }

    /// What came after this time.
    #[must_use]
    pub fn since(&self, since_ms: u64) -> Columns {
        let endpoints = self.endpoints.iter().map(|(id, track)| {
            let mut columns = EndpointColumns::default();
            for point in track.points.iter().filter(|point| point.at_ms > since_ms) {
                columns.at_ms.push(point.at_ms);
                columns.ttft_ms.push(point.ttft_ms);
                columns.tps.push(point.tps);
                columns.in_flight.push(point.in_flight);
                columns.waiting.push(point.waiting);
            }
            (id.clone(), columns)
        });
        let pools = self.pools.iter().map(|(name, points)| {
            let mut columns = PoolColumns::default();
            for (at_ms, reading) in points.iter().filter(|(at_ms, _)| *at_ms > since_ms) {
                columns.at_ms.push(*at_ms);
                columns.waiting.push(reading.waiting);
                columns.in_flight.push(reading.in_flight);
            }
            (name.clone(), columns)
        });
        Columns { step_ms: STEP_MS, endpoints: endpoints.collect(), pools: pools.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(tokens: u64, at_ms: u64) -> Reading {
        Reading { generated: Some(Generated { tokens, at_ms }), ..Reading::default() }
    }

    fn tps(readings: &[Reading]) -> Vec<Option<f64>> {
        let mut series = Series::default();
        for (nth, reading) in readings.iter().enumerate() {
            series.push([("e".to_owned(), *reading)], [], nth as u64 + 1);
        }
        series.since(0).endpoints.remove("e").unwrap().tps
    }

    #[test]
    fn speed_is_what_the_engine_counts_else_what_requests_tell() {
        // By the time between two scrapes, whenever they are looked at; the same scrape again tells nothing.
        let rates = tps(&[counted(100, 1_000), counted(600, 6_000), counted(600, 6_000), counted(700, 10_000)]);
        assert_eq!(rates, [None, Some(100.0), None, Some(25.0)]);
        // It has started anew.
        assert_eq!(tps(&[counted(600, 1_000), counted(10, 2_000), counted(20, 3_000)]), [None, None, Some(10.0)]);
        // Stale in between.
        let gap = [counted(100, 1_000), Reading::default(), counted(900, 5_000)];
        assert_eq!(tps(&gap), [None, None, None]);
        let served = Reading { request_tps: Some(30.0), in_flight: Some(3), ..Reading::default() };
        assert_eq!(tps(&[served, Reading { in_flight: None, ..served }]), [Some(90.0), None]);
    }

    #[test]
    fn there_are_so_many_points_and_none_of_whoever_is_gone() {
        let mut series = Series::default();
        let pool = |waiting| ("p".to_owned(), PoolReading { waiting, in_flight: 2 });
        for nth in 1..=STEPS as u64 + 5 {
            series.push([("e".to_owned(), counted(0, 0)), ("f".to_owned(), counted(0, 0))], [pool(nth)], nth);
        }
        let all = series.since(0);
        let at_ms = &all.endpoints["e"].at_ms;
        assert_eq!((at_ms.len(), at_ms[0], all.pools["p"].waiting[0]), (STEPS, 6, 6));
        let last = series.since(STEPS as u64 + 3);
        assert_eq!((&last.endpoints["e"].at_ms, last.pools["p"].in_flight.len()), (&vec![184, 185], 2));
        series.push([("f".to_owned(), counted(0, 0))], [], 1_000);
        assert_eq!(series.since(0).endpoints.keys().collect::<Vec<_>>(), ["f"]);
        assert!(series.since(0).pools.is_empty());
    }
}
