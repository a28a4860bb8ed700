//! What the prober knows, and how old it is: the engines as they were when it read them last, each gateway's counts as they
//! were when it reported last.

use engine_sim::model::{Model, Nanos};
use weighbridge_routing::signals::{Amount, Share, Signals};

use crate::policy::{Own, Router};

/// Moving averages of one endpoint's answers, each new one counting a tenth.
#[derive(Debug, Clone, Copy, Default)]
struct Averages {
    ttft_ms: Option<f64>,
    tps: Option<f64>,
}

fn move_on(average: &mut Option<f64>, value: f64) {
    *average = Some(average.map_or(value, |average| 0.9 * average + 0.1 * value));
}

#[derive(Debug)]
pub(super) struct Prober {
    /// How often the engines are read.
    pub(super) read_every: Nanos,
    /// How often each gateway reports; `None` where it does not.
    pub(super) report_every: Vec<Option<Nanos>>,
    /// The answer to each gateway's last report.
    pub(super) answers: Vec<Vec<Signals>>,
    /// Which endpoints pass their health checks.
    pub(super) ready: Vec<bool>,
    averages: Vec<Averages>,
    /// What the engines said last.
    read: Vec<Signals>,
    /// What each gateway reported last.
    reported: Vec<Vec<Own>>,
    /// The sum of that over all gateways.
    all: Vec<Own>,
}

impl Prober {
    pub(super) fn new(endpoints: usize, gateways: usize) -> Self {
        Self {
            read_every: Nanos::MAX,
            report_every: vec![None; gateways],
            answers: vec![Vec::new(); gateways],
            ready: vec![true; endpoints],
            averages: vec![Averages::default(); endpoints],
            read: vec![Signals::default(); endpoints],
            reported: vec![vec![Own::default(); endpoints]; gateways],
            all: vec![Own::default(); endpoints],
        }
    }

    /// An answer of an endpoint has ended.
    pub(super) fn average(&mut self, endpoint: usize, ttft_ms: f64, tpot_ms: Option<f64>) {
        let averages = &mut self.averages[endpoint];
        move_on(&mut averages.ttft_ms, ttft_ms);
        if let Some(tpot_ms) = tpot_ms.filter(|tpot_ms| *tpot_ms > 0.0) {
            move_on(&mut averages.tps, 1e3 / tpot_ms);
        }
    }

    /// Reads the engines' metrics.
    pub(super) fn read(&mut self, engines: &[Model]) {
        for ((read, engine), averages) in self.read.iter_mut().zip(engines).zip(&self.averages) {
            let stats = engine.stats();
            *read = Signals {
                waiting: u32::try_from(stats.waiting).ok(),
                kv: Share::try_new(stats.kv_usage),
                ttft_ms: averages.ttft_ms.and_then(Amount::try_new),
                tps: averages.tps.and_then(Amount::try_new),
                ..Signals::default()
            };
        }
    }

    /// A gateway reports; the answer has what the others have reported.
    pub(super) fn report(&mut self, gateway: usize, router: &dyn Router) {
        let reported = &mut self.reported[gateway];
        for (all, own) in self.all.iter_mut().zip(&*reported) {
            all.in_flight -= own.in_flight;
            all.pending_tokens = all.pending_tokens.saturating_sub(own.pending_tokens);
        }
        router.own(reported);
        let answer = &mut self.answers[gateway];
        answer.clone_from(&self.read);
        for ((all, own), signals) in self.all.iter_mut().zip(&*reported).zip(answer) {
            (signals.others, signals.others_tokens) = (all.in_flight, all.pending_tokens);
            all.in_flight += own.in_flight;
            all.pending_tokens = all.pending_tokens.saturating_add(own.pending_tokens);
        }
    }
}
