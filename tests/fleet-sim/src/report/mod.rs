//! What a run comes to: percentiles, goodput, rates, fairness; as a table and as JSON.

pub mod plot;

use serde::Serialize;

use crate::outcome::{Outcome, quantile};

/// What a client is content with.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Slo {
    /// The longest time to the first token.
    pub ttft_ms: f64,
    /// The longest time per output token.
    pub tpot_ms: f64,
}

/// Percentiles.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub p50: f64,
    /// 90 in 100 are below.
    pub p90: f64,
    /// 99 in 100 are below.
    pub p99: f64,
    /// 999 in 1,000 are below.
    pub p999: f64,
    /// The mean.
    pub mean: f64,
}

impl Spread {
    fn of(ascending: &[f64]) -> Self {
        let at = |q| quantile(ascending, q);
        let mean = ascending.iter().sum::<f64>() / ascending.len().max(1) as f64;
        Self { p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999), mean }
    }
}

/// The requests of one priority.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct OfPriority {
    /// 0 is served first.
    pub priority: u8,
    /// Those that arrived.
    pub arrived: u64,
    /// Share of these that were shed.
    pub shed_share: f64,
    /// Time to the first token of those that were served.
    pub ttft_ms: Spread,
}

/// The figures of one run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Measured requests that arrived.
    pub arrived: u64,
    /// Those that were served.
    pub served: u64,
    /// Share of the arrived that were turned away or waited in vain.
    pub shed_share: f64,
    /// Share of the arrived that failed with their endpoint.
    pub failed_share: f64,
    /// Time to the first token, waiting included.
    pub ttft_ms: Spread,
    /// Time per output token after the first.
    pub tpot_ms: Spread,
    /// From arrival to the last token.
    pub e2e_ms: Spread,
    /// Waiting at the gateway.
    pub waited_ms: Spread,
    /// Requests that met the SLO, per second of arrivals.
    pub goodput_rps: f64,
    /// Share of the arrived that met the SLO.
    pub good_share: f64,
    /// Cached share of the prompt tokens.
    pub hit_rate: f64,
    /// What one endless cache for everybody would have reached.
    pub ideal_hit_rate: f64,
    /// Believed to be cached and not there, as a share of what was believed.
    pub believed_wrongly: f64,
    /// Share of the turns that another endpoint served than the turn before.
    pub moved_share: f64,
    /// Each endpoint's share of the requests.
    pub shares: Vec<f64>,
    /// What each endpoint generated, as a share of the most that it could have in the time.
    pub decode_utilisation: Vec<f64>,
    /// What each endpoint prefilled, as a share of the most that it could have in the time.
    pub prefill_utilisation: Vec<f64>,
    /// Jain's index of the tokens per weight that the endpoints computed: 1 when each got its due, `1 / n` when one got all.
    pub fairness: f64,
    /// The most requests that each endpoint had at a time.
    pub peak: Vec<u32>,
    /// The largest live table of a gateway.
    pub live_bytes: usize,
    /// The largest index of a gateway.
    pub index_bytes: usize,
    /// Simulated seconds.
    pub seconds: f64,
    /// By priority, where there are several.
    pub priorities: Vec<OfPriority>,
}

/// Jain's index of fairness: `(sum x)^2 / (n sum x^2)`; 1 where nobody has anything.
#[must_use]
pub fn jain(values: &[f64]) -> f64 {
    let (sum, squares) = values.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    if squares == 0.0 { 1.0 } else { sum * sum / (values.len() as f64 * squares) }
}

impl Summary {
    /// Of a run.
    #[must_use]
    pub fn of(outcome: &Outcome, slo: Slo) -> Self {
        let arrived = outcome.total();
        let share = |count: u64| count as f64 / arrived.max(1) as f64;
        let good = |tpot_ms: Option<f64>| tpot_ms.is_none_or(|tpot_ms| tpot_ms <= slo.tpot_ms);
        let good = outcome.served.iter().filter(|of| of.ttft_ms <= slo.ttft_ms && good(of.tpot_ms)).count() as u64;
        let count = outcome.weights.len();
        let (mut generated, mut computed) = (vec![0.0; count], vec![0.0; count]);
        for served in &outcome.served {
            generated[served.endpoint as usize] += served.output_tokens as f64;
            computed[served.endpoint as usize] += (served.prompt_tokens - served.cached_tokens) as f64;
        }
        let from_s = outcome.window.map_or(0.0, |(from, _)| from as f64 / 1e9);
        let end_s = outcome.served.iter().map(|of| of.ended_s).fold(from_s, f64::max);
        let per_capacity = |tokens: &[f64], tps: &[f64]| {
            let could = tps.iter().map(|tps| (tps * (end_s - from_s)).max(f64::MIN_POSITIVE));
            tokens.iter().zip(could).map(|(tokens, could)| tokens / could).collect::<Vec<f64>>()
        };
        let per_weight: Vec<f64> =
            outcome.weights.iter().enumerate().map(|(at, weight)| (generated[at] + computed[at]) / weight).collect();
        let several = outcome.arrived.iter().filter(|count| **count > 0).count() > 1;
        let of_priority = |priority: u8| {
            let arrived = outcome.arrived[usize::from(priority)];
            let ttft = outcome.ascending(|of| (of.priority == priority).then_some(of.ttft_ms));
            let shed_share = outcome.shed[usize::from(priority)] as f64 / arrived.max(1) as f64;
            OfPriority { priority, arrived, shed_share, ttft_ms: Spread::of(&ttft) }
        };
        Self {
            arrived,
            served: outcome.served.len() as u64,
            shed_share: share(outcome.total_shed()),
            failed_share: share(outcome.failed),
            ttft_ms: Spread::of(&outcome.ascending(|of| Some(of.ttft_ms))),
            tpot_ms: Spread::of(&outcome.ascending(|of| of.tpot_ms)),
            e2e_ms: Spread::of(&outcome.ascending(|of| Some(of.e2e_ms))),
            waited_ms: Spread::of(&outcome.ascending(|of| Some(of.waited_ms))),
            goodput_rps: good as f64 / outcome.window_s().max(f64::MIN_POSITIVE),
            good_share: share(good),
            hit_rate: outcome.hit_rate(),
            ideal_hit_rate: outcome.ideal_hit_rate(),
            believed_wrongly: outcome.believed_wrongly as f64 / outcome.believed_tokens.max(1) as f64,
            moved_share: outcome.moves as f64 / outcome.turns.max(1) as f64,
            shares: outcome.shares(),
            decode_utilisation: per_capacity(&generated, &outcome.best_tps),
            prefill_utilisation: per_capacity(&computed, &outcome.prefill_tps),
            fairness: jain(&per_weight),
            peak: outcome.peak.clone(),
            live_bytes: outcome.live_bytes,
            index_bytes: outcome.index_bytes,
            seconds: outcome.now as f64 / 1e9,
            priorities: if several {
                (0..10).map(of_priority).filter(|of| of.arrived > 0).collect()
            } else {
                Vec::new()
            },
        }
    }

    /// One line of a table under [`DETAIL_HEAD`]: the other percentiles, and what each endpoint was used for of what it can.
    #[must_use]
    pub fn detail(&self, name: &str) -> String {
        format!(
            "| {name:<22} | {:.3} / {:.2} | {:.1} / {:.1} | {:.2} / {:.2} | {} | {} |",
            self.ttft_ms.p90 / 1e3,
            self.ttft_ms.p999 / 1e3,
            self.tpot_ms.p90,
            self.tpot_ms.p999,
            self.e2e_ms.p90 / 1e3,
            self.e2e_ms.p999 / 1e3,
            percent(&self.decode_utilisation),
            percent(&self.prefill_utilisation),
        )
    }

    /// One line of a table under [`HEAD`].
    #[must_use]
    pub fn row(&self, name: &str) -> String {
        let s = |ms: f64| ms / 1e3;
        let shares = percent(&self.shares);
        format!(
            "| {name:<22} | {:>7.3} / {:>7.2} | {:>5.1} / {:>6.1} | {:>6.2} / {:>7.2} | {:>6.2} | {:>6.1} % | {:>6.2} % | {:.2} | {:>3.0} % | {:.2} | {shares} |",
            s(self.ttft_ms.p50),
            s(self.ttft_ms.p99),
            self.tpot_ms.p50,
            self.tpot_ms.p99,
            s(self.e2e_ms.p50),
            s(self.e2e_ms.p99),
            self.goodput_rps,
            100.0 * self.good_share,
            100.0 * (self.shed_share + self.failed_share),
            self.hit_rate,
            100.0 * self.moved_share,
            self.fairness,
        )
    }
}

/// Shares in percent; of many endpoints the least and the most.
fn percent(shares: &[f64]) -> String {
    let shown: Vec<String> = shares.iter().map(|share| format!("{:.0}", share * 100.0)).collect();
    if shown.len() <= 8 {
        return shown.join(" ");
    }
    let (least, most) = shares.iter().fold((f64::MAX, 0.0), |(least, most), of| (of.min(least), of.max(most)));
    format!("{} endpoints, {:.2} to {:.2}", shown.len(), least * 100.0, most * 100.0)
}

/// The head of the table of [`Summary::detail`].
pub const DETAIL_HEAD: &str = "\
| policy                 | TTFT p90 / p99.9, s | TPOT p90 / p99.9, ms | end to end p90 / p99.9, s | decoding by endpoint, % | prefill by endpoint, % |
|---|---|---|---|---|---|";

/// The head of the table.
pub const HEAD: &str = "\
| policy                 | TTFT p50 / p99, s | TPOT p50 / p99, ms | end to end p50 / p99, s | good/s | good | shed, failed | hits | moved | Jain | requests by endpoint, % |
|---|---|---|---|---|---|---|---|---|---|---|";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Served;

    #[test]
    fn fairness_of_all_some_and_none() {
        assert_eq!((jain(&[2.0, 2.0]), jain(&[1.0, 0.0, 0.0, 0.0]), jain(&[0.0, 0.0])), (1.0, 0.25, 1.0));
        assert!((jain(&[1.0, 3.0]) - 0.8).abs() < 1e-12);
    }

    #[test]
    fn goodput_counts_what_met_both_limits() {
        let served = |ttft_ms, tpot_ms, endpoint| Served {
            endpoint,
            priority: 5,
            ended_s: 10.0,
            ttft_ms,
            tpot_ms,
            e2e_ms: 5_000.0,
            waited_ms: 0.0,
            prompt_tokens: 100,
            cached_tokens: 50,
            output_tokens: 50,
        };
        let mut outcome = Outcome {
            served: vec![
                served(1_000.0, Some(50.0), 0),
                served(1_001.0, Some(50.0), 0),
                served(900.0, Some(51.0), 0),
                served(1.0, None, 1),
            ],
            weights: vec![3.0, 1.0],
            best_tps: vec![100.0, 10.0],
            prefill_tps: vec![1_000.0, 100.0],
            window: Some((0, 5_000_000_000)),
            ..Outcome::default()
        };
        outcome.arrived[5] = 8;
        outcome.shed[5] = 3;
        outcome.failed = 1;
        let summary = Summary::of(&outcome, Slo { ttft_ms: 1_000.0, tpot_ms: 50.0 });
        assert_eq!((summary.goodput_rps, summary.good_share), (0.4, 0.25));
        assert_eq!((summary.shed_share, summary.failed_share, summary.hit_rate), (0.375, 0.125, 0.5));
        assert_eq!((summary.fairness, summary.shares.clone()), (1.0, vec![0.75, 0.25]));
        assert_eq!((summary.decode_utilisation[0], summary.decode_utilisation[1]), (0.15, 0.5));
        assert!(summary.priorities.is_empty());
        // A tenth of a thousandth of eight is the last one.
        let detail = summary.detail("ours");
        assert!(detail.contains("| 1.001 / 1.00 |") && detail.ends_with("| 15 50 | 2 5 |"), "{detail}");
    }
}
