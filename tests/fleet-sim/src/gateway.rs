//! The loop: the next arrival or the next event of an engine, whichever comes first.

use std::collections::HashMap;

use anyhow::Context;
use engine_sim::model::{EventKind, Model, Nanos, Request, seconds};
use weighbridge_routing::signals::{Amount, Share, Signals};

use crate::fleet::Fleet;
use crate::policy::Router;
use crate::report::Outcome;
use crate::workload::{Call, Workload};

/// A request at an engine.
#[derive(Debug, Clone, Copy)]
struct Placed {
    endpoint: usize,
    conversation: u64,
    arrived: Nanos,
    prompt_tokens: u64,
    known_tokens: u64,
    believed_tokens: u64,
    cached_tokens: u64,
    first_token: Option<Nanos>,
    measured: bool,
}

struct Gateway<'a> {
    engines: Vec<Model>,
    /// When each engine's next event is due.
    due: Vec<Option<Nanos>>,
    workload: &'a mut dyn Workload,
    router: &'a mut dyn Router,
    placed: HashMap<u64, Placed>,
    averages: Vec<Averages>,
    /// When the engines are asked next.
    ask_at: Nanos,
    outcome: Outcome,
}

/// How often the engines are asked what they do.
const SIGNALS_EVERY: Nanos = 250_000_000;

/// Moving averages of one endpoint's answers, each new one counting a tenth.
#[derive(Debug, Clone, Copy, Default)]
struct Averages {
    ttft_ms: Option<f64>,
    tps: Option<f64>,
}

fn move_on(average: &mut Option<f64>, value: f64) {
    *average = Some(average.map_or(value, |average| 0.9 * average + 0.1 * value));
}

/// Runs until everything is answered. The first `warm_up` requests are not measured.
///
/// # Errors
/// When a profile of the fleet makes no sense.
pub fn run(
    fleet: &Fleet,
    workload: &mut dyn Workload,
    router: &mut dyn Router,
    warm_up: u64,
) -> anyhow::Result<Outcome> {
    let engines = fleet.engines.iter().map(|profile| Model::new(profile.clone())).collect::<Result<Vec<_>, _>>()?;
    let due = vec![None; engines.len()];
    let outcome = Outcome::new(engines.len());
    let averages = vec![Averages::default(); engines.len()];
    let mut gateway = Gateway { engines, due, workload, router, placed: HashMap::new(), averages, ask_at: 0, outcome };
    let mut id = 0;
    let mut now = 0;
    loop {
        let event = gateway.due.iter().enumerate().filter_map(|(nth, at)| Some(((*at)?, nth))).min();
        match (event, gateway.workload.next_at()) {
            (Some((at, nth)), arrival) if arrival.is_none_or(|arrival| at < arrival) => {
                now = at;
                gateway.engines[nth].advance(at);
                gateway.collect(nth);
            }
            (_, Some(arrival)) => {
                now = arrival.max(now);
                let call = gateway.workload.take().context("a request was announced")?;
                gateway.arrive(id, call, now, id >= warm_up);
                id += 1;
            }
            (None, None) => break,
            (Some(_), None) => unreachable!("the first arm takes it"),
        }
    }
    gateway.outcome.index_bytes = gateway.router.index_bytes();
    gateway.outcome.seconds = seconds(now);
    gateway.outcome.sort();
    Ok(gateway.outcome)
}

impl Gateway<'_> {
    fn arrive(&mut self, id: u64, call: Call, now: Nanos, measured: bool) {
        self.ask_engines(now);
        let Some(routed) = self.router.route(id, &call, now / 1_000_000) else {
            self.refuse(&call, now, measured);
            return;
        };
        let Call { conversation, prompt_tokens, known_tokens, .. } = call;
        let placed = Placed {
            endpoint: routed.endpoint,
            conversation,
            arrived: now,
            prompt_tokens,
            known_tokens,
            believed_tokens: routed.believed_tokens,
            cached_tokens: 0,
            first_token: None,
            measured,
        };
        let request = Request::new(id, prompt_tokens, call.output_tokens);
        let request = request.with_blocks(call.blocks.clone(), call.output_blocks.clone());
        self.placed.insert(id, placed);
        if self.engines[routed.endpoint].submit(now, request).is_err() {
            // Too long for this engine.
            self.placed.remove(&id);
            self.router.finished(id, 0, now / 1_000_000);
            self.refuse(&call, now, measured);
        }
        self.collect(routed.endpoint);
    }

    /// Tells the router what the engines say, when it is time to.
    fn ask_engines(&mut self, now: Nanos) {
        if now < self.ask_at {
            return;
        }
        self.ask_at = now + SIGNALS_EVERY;
        let signals: Vec<Signals> = self
            .engines
            .iter()
            .zip(&self.averages)
            .map(|(engine, averages)| {
                let stats = engine.stats();
                Signals {
                    waiting: u32::try_from(stats.waiting).ok(),
                    kv: Share::try_new(stats.kv_usage),
                    ttft_ms: averages.ttft_ms.and_then(Amount::try_new),
                    tps: averages.tps.and_then(Amount::try_new),
                    ..Signals::default()
                }
            })
            .collect();
        self.router.hear(&signals);
    }

    fn refuse(&mut self, call: &Call, now: Nanos, measured: bool) {
        self.outcome.refused += u64::from(measured);
        self.workload.ended(call.conversation, now, false);
    }

    /// Takes note of what an engine has done.
    fn collect(&mut self, nth: usize) {
        for event in self.engines[nth].take_events() {
            let Some(placed) = self.placed.get_mut(&event.id) else { continue };
            match event.kind {
                EventKind::Admitted { cached_tokens } => placed.cached_tokens = cached_tokens,
                EventKind::FirstToken => {
                    placed.first_token = Some(event.at);
                    self.router.first_token(event.id, event.at / 1_000_000);
                }
                EventKind::Tokens { .. } => {}
                EventKind::Finished { output_tokens } => {
                    let placed = *placed;
                    self.placed.remove(&event.id);
                    let added = placed.prompt_tokens - placed.cached_tokens + output_tokens;
                    self.router.finished(event.id, added, event.at / 1_000_000);
                    self.average(&placed, event.at, output_tokens);
                    self.workload.ended(placed.conversation, event.at, true);
                    if placed.measured {
                        self.measure(&placed, event.at, output_tokens);
                    }
                }
            }
        }
        self.due[nth] = self.engines[nth].next_event();
    }

    fn average(&mut self, placed: &Placed, end: Nanos, output_tokens: u64) {
        let Some((first, averages)) = placed.first_token.zip(self.averages.get_mut(placed.endpoint)) else { return };
        move_on(&mut averages.ttft_ms, seconds(first.saturating_sub(placed.arrived)) * 1e3);
        if output_tokens > 1 && end > first {
            move_on(&mut averages.tps, (output_tokens - 1) as f64 / seconds(end - first));
        }
    }

    fn measure(&mut self, placed: &Placed, end: Nanos, output_tokens: u64) {
        let ms = |from: Nanos, to: Nanos| seconds(to.saturating_sub(from)) * 1e3;
        let first = placed.first_token.unwrap_or(end);
        let outcome = &mut self.outcome;
        outcome.ttft_ms.push(ms(placed.arrived, first));
        outcome.e2e_ms.push(ms(placed.arrived, end));
        if output_tokens > 1 {
            outcome.tpot_ms.push(ms(first, end) / (output_tokens - 1) as f64);
        }
        outcome.served[placed.endpoint] += 1;
        outcome.prompt_tokens += placed.prompt_tokens;
        outcome.output_tokens += output_tokens;
        outcome.known_tokens += placed.known_tokens;
        outcome.cached_tokens += placed.cached_tokens;
        outcome.believed_tokens += placed.believed_tokens;
        // Believed, and not there: half a block of rounding is no error.
        outcome.believed_wrongly += placed.believed_tokens.saturating_sub(placed.cached_tokens + 32);
    }
}
