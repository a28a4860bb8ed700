//! What serving says about a curve: points of (running requests, tokens per second) that cost no burst.
//!
//! Between two scrapes, an engine's own token counter tells its throughput, and its running count at what concurrency that
//! was. Real prompts are longer than those of a sweep, and decoding over a long context is slower, so an engine that
//! serves may do less than its curve says. What is kept is therefore the **ratio**
//!
//! ```text
//! r = tokens per second of a window / curve throughput at its mean running count
//! ```
//!
//! as an average per power of two of the running count (1, 2-3, 4-7, 8-15, ...), and [`Observed::factor`] between and
//! beyond those buckets: linear in log2 of the concurrency, flat outside.
//!
//! - A **window** is `WINDOW_MS` long or a little more: counters of some engines move every 40 steps only. It is thrown away when the
//!   running count went up and down in it by more than half of its mean (at least 2), when the counter went back (a
//!   restart), or when scrapes were further apart than `GAP_MS`.
//! - An **average** counts from [`ENOUGH_POINTS`] points on. It begins as their median; after that each point moves it by
//!   `GAIN` of the difference, and a point further off than `OUTLIER` counts as that far off. One wild reading moves it by
//!   0.75 % of itself.
//!
//! **Units.** Tokens/s, requests, Unix ms. **Cost.** A few additions per scrape; memory is fixed. **Missing.** An engine
//! that does not count its tokens gives no points, and its cap stays as measured.

use serde::Serialize;

use super::Curve;

/// How long a window is, in ms.
const WINDOW_MS: u64 = 2_000;
/// Scrapes that are further apart than this belong to no one window, in ms.
const GAP_MS: u64 = 5_000;
/// Points that a bucket needs before it counts.
pub const ENOUGH_POINTS: usize = 15;
/// How much of the difference a new point makes.
const GAIN: f64 = 0.05;
/// How far from the average a point counts at most, as a share of the average.
const OUTLIER: f64 = 0.15;
/// Buckets: 1, 2-3, 4-7, ... up to 4,096 and more.
const BUCKETS: usize = 13;

/// What one scrape tells.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// When, Unix ms.
    pub at_ms: u64,
    /// Requests that the engine runs.
    pub running: u64,
    /// Tokens that it has generated since it started.
    pub tokens: u64,
}

/// What has been seen at some concurrency while the engine served.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Point {
    /// Mean running count.
    pub concurrency: f64,
    /// Tokens per second, all requests together.
    pub throughput_tps: f64,
    /// The same against the curve: 1 where it does what was measured.
    pub ratio: f64,
    /// Windows that it is made of.
    pub windows: u64,
}

/// The averages of one engine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observed {
    window: Option<Window>,
    buckets: [Bucket; BUCKETS],
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Window {
    first: Reading,
    last: Reading,
    least: u64,
    most: u64,
    /// Running requests x ms.
    area: f64,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Bucket {
    /// The ratios of the first windows, until there are enough.
    first: Vec<f64>,
    ratio: f64,
    concurrency: f64,
    throughput_tps: f64,
    windows: u64,
}

impl Observed {
    /// Takes a scrape. `true` when it completed a window that counted.
    pub fn take(&mut self, curve: &Curve, now: Reading) -> bool {
        let Some(window) = self.window.and_then(|window| window.with(now)) else {
            self.window = (now.running > 0).then(|| Window::begin(now));
            return false;
        };
        let length_ms = now.at_ms.saturating_sub(window.first.at_ms);
        if length_ms < WINDOW_MS {
            self.window = Some(window);
            return false;
        }
        self.window = Some(Window::begin(now));
        let concurrency = window.area / length_ms as f64;
        let tps = now.tokens.saturating_sub(window.first.tokens) as f64 * 1e3 / length_ms as f64;
        let ratio = tps / curve.throughput_at(concurrency);
        // Beyond the curve there is nothing to compare with: requests wait in the engine.
        let comparable = (1.0..=f64::from(curve.largest())).contains(&concurrency) && ratio.is_finite() && tps > 0.0;
        let bucket = self.buckets.get_mut(concurrency.log2() as usize);
        match bucket.filter(|_| comparable) {
            Some(bucket) => {
                bucket.take(ratio, concurrency, tps);
                true
            }
            None => false,
        }
    }

    /// Leaves out what happens until the next reading: somebody else's burst is under way.
    pub fn interrupt(&mut self) {
        self.window = None;
    }

    /// What has been seen often enough, by concurrency.
    #[must_use]
    pub fn points(&self) -> Vec<Point> {
        let known = self.buckets.iter().filter(|bucket| bucket.counts());
        known
            .map(|bucket| Point {
                concurrency: bucket.concurrency,
                throughput_tps: bucket.throughput_tps,
                ratio: bucket.ratio,
                windows: bucket.windows,
            })
            .collect()
    }

    /// What the curve is to be multiplied by at a concurrency; 1 where nothing has been seen at all.
    #[must_use]
    pub fn factor(&self, concurrency: f64) -> f64 {
        let at = concurrency.max(1.0).log2();
        let mut below: Option<(f64, f64)> = None;
        for bucket in self.buckets.iter().filter(|bucket| bucket.counts()) {
            let here = (bucket.concurrency.log2(), bucket.ratio);
            if at <= here.0 {
                let Some((from, ratio)) = below else { return here.1 };
                return ratio + (here.1 - ratio) * (at - from) / (here.0 - from).max(f64::MIN_POSITIVE);
            }
            below = Some(here);
        }
        below.map_or(1.0, |(_, ratio)| ratio)
    }
}

impl Window {
    fn begin(first: Reading) -> Self {
        Window { first, last: first, least: first.running, most: first.running, area: 0.0 }
    }

    /// The window with one more reading, unless that cannot belong to it.
    fn with(self, now: Reading) -> Option<Self> {
        let took_ms = now.at_ms.checked_sub(self.last.at_ms).filter(|ms| (1..=GAP_MS).contains(ms))?;
        let (least, most) = (self.least.min(now.running), self.most.max(now.running));
        let mean = least.midpoint(most);
        if now.tokens < self.last.tokens || most - least > (mean / 2).max(2) || now.running == 0 {
            return None;
        }
        let area = self.area + (self.last.running + now.running) as f64 / 2.0 * took_ms as f64;
        Some(Window { last: now, least, most, area, ..self })
    }
}

impl Bucket {
    fn counts(&self) -> bool {
        self.windows >= ENOUGH_POINTS as u64
    }

    fn take(&mut self, ratio: f64, concurrency: f64, tps: f64) {
        self.windows = self.windows.saturating_add(1);
        let weight = GAIN.max(1.0 / self.windows as f64);
        self.concurrency += weight * (concurrency - self.concurrency);
        if self.first.len() < ENOUGH_POINTS {
            self.throughput_tps += weight * (tps - self.throughput_tps);
            self.first.push(ratio);
            self.ratio = weighbridge_routing::weight::median(self.first.iter().copied()).unwrap_or(ratio);
            return;
        }
        let near = |old: f64, new: f64| old + GAIN * (new - old).clamp(-OUTLIER * old, OUTLIER * old);
        self.ratio = near(self.ratio, ratio);
        self.throughput_tps = near(self.throughput_tps, tps);
    }
}

#[cfg(test)]
mod tests {
    use super::super::curve::tests::even;
    use super::*;

    fn curve() -> Curve {
        even(&[(1, 100.0), (16, 1_000.0), (32, 1_200.0)])
    }

    /// An engine that serves, scraped every 250 ms.
    #[derive(Default)]
    struct Serving {
        observed: Observed,
        at_ms: u64,
        tokens: f64,
    }

    impl Serving {
        fn scrape(&mut self, running: u64, tps: f64) -> bool {
            self.at_ms += 250;
            self.tokens += tps / 4.0;
            let reading = Reading { at_ms: self.at_ms, running, tokens: self.tokens as u64 };
            self.observed.take(&curve(), reading)
        }

        fn windows(&mut self, count: usize, running: u64, tps: f64) {
            let taken = (0..9 * count).filter(|_| self.scrape(running, tps)).count();
            assert!(taken >= count, "{taken}");
        }
    }

    #[test]
    fn an_engine_that_does_what_was_measured_has_a_ratio_of_one() {
        let mut serving = Serving::default();
        serving.windows(ENOUGH_POINTS, 16, 1_000.0);
        let points = serving.observed.points();
        assert_eq!(points.len(), 1);
        assert!((points[0].ratio - 1.0).abs() < 0.01 && (points[0].concurrency - 16.0).abs() < 1e-9, "{points:?}");
        assert!((serving.observed.factor(3.0) - 1.0).abs() < 0.01);
    }

    #[test]
    fn a_few_windows_say_nothing_yet() {
        let mut serving = Serving::default();
        for _ in 0..9 * (ENOUGH_POINTS - 2) {
            serving.scrape(16, 500.0);
        }
        assert!(serving.observed.points().is_empty());
        assert_eq!(serving.observed.factor(16.0), 1.0);
    }

    #[test]
    fn between_two_buckets_the_factor_is_between_theirs_and_outside_it_is_theirs() {
        let mut serving = Serving::default();
        serving.windows(ENOUGH_POINTS, 1, 100.0);
        serving.windows(ENOUGH_POINTS, 16, 800.0);
        let factor = |concurrency| serving.observed.factor(concurrency);
        assert!((factor(4.0) - 0.9).abs() < 0.01, "{}", factor(4.0));
        assert!((factor(32.0) - 0.8).abs() < 0.01 && (factor(1.0) - 1.0).abs() < 0.01);
    }

    #[test]
    fn wild_readings_move_an_average_little() {
        let mut serving = Serving::default();
        serving.windows(ENOUGH_POINTS + 5, 16, 1_000.0);
        serving.windows(2, 16, 50_000.0);
        let factor = serving.observed.factor(16.0);
        assert!((1.0..1.03).contains(&factor), "{factor}");
        // One among the first few does not matter at all.
        let mut serving = Serving::default();
        serving.windows(3, 16, 50_000.0);
        serving.windows(ENOUGH_POINTS, 16, 1_000.0);
        assert!((serving.observed.factor(16.0) - 1.0).abs() < 0.02);
    }

    #[test]
    fn what_is_not_steady_is_no_window() {
        let mut serving = Serving::default();
        for nth in 0..500 {
            serving.scrape(if nth % 4 == 0 { 2 } else { 20 }, 700.0);
        }
        // Idle, and beyond the curve.
        for running in [0, 33] {
            for _ in 0..500 {
                serving.scrape(running, 700.0);
            }
        }
        // A counter that starts anew, again and again.
        for _ in 0..100 {
            serving.tokens = 0.0;
            for _ in 0..6 {
                serving.scrape(16, 700.0);
            }
        }
        // Scrapes that hang.
        for _ in 0..100 {
            serving.at_ms += GAP_MS;
            serving.scrape(16, 700.0);
        }
        assert!(serving.observed.points().is_empty(), "{:?}", serving.observed.points());
    }

    #[test]
    fn arrivals_and_departures_are_steady_enough() {
        let mut serving = Serving::default();
        let running = [15, 16, 17, 18, 16, 14, 15];
        let taken = running.iter().cycle().take(500).filter(|running| serving.scrape(**running, 900.0)).count();
        assert!(taken > 40, "{taken}");
    }
}
