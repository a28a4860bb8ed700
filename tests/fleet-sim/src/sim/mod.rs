//! The loop: whatever is due next, an arrival or an event.

mod calendar;
mod engines;
pub mod fault;
mod prober;

use std::collections::HashMap;
use std::time::Instant;

use anyhow::{Context, ensure};
use engine_sim::model::{Event, EventKind, Nanos, Request, SubmitError, seconds};

use self::calendar::{Calendar, Due};
use self::engines::Engines;
pub use self::fault::{Fault, Kind};
use self::prober::Prober;
use crate::fleet::Fleet;
use crate::outcome::{Outcome, Served};
use crate::policy::{Answer, Arrival, Ended, Routed, Router};
use crate::workload::{Call, Workload, mix};

/// Which gateway a request comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Spread {
    /// Any, each request anew.
    Request,
    /// All turns of a conversation come to the same one.
    Conversation,
}

/// How a fleet is run.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// Which gateway a request comes to.
    pub spread: Spread,
    /// How often engines are read and gateways report.
    pub interval: Nanos,
    /// How long an answer of the prober, or a snapshot, is under way.
    pub delay: Nanos,
    /// How long it takes until a dead endpoint fails its health checks.
    pub detect: Nanos,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// How often a request is tried, before its answer has begun.
    pub attempts: u8,
    /// Priorities and their shares; the rest has 5.
    pub priorities: Vec<(u8, f64)>,
    /// Requests at the beginning that are not measured.
    pub warm_up: u64,
    /// Whether decisions are timed, by the clock of this computer.
    pub timed: bool,
    /// Decides which gateway and which priority a request has.
    pub seed: u64,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            spread: Spread::Request,
            interval: 250_000_000,
            delay: 2_000_000,
            // Three checks in a row, one every two seconds.
            detect: 6_000_000_000,
            faults: Vec::new(),
            attempts: 3,
            priorities: Vec::new(),
            warm_up: 0,
            timed: false,
            seed: 1,
        }
    }
}

/// A request that has not ended.
#[derive(Debug)]
struct Open {
    gateway: usize,
    call: Call,
    priority: u8,
    arrived: Nanos,
    /// When it was sent to its endpoint first.
    sent: Nanos,
    at: Option<Routed>,
    attempts: u8,
    cached_tokens: u64,
    first_token: Option<Nanos>,
    measured: bool,
}

struct World<'a> {
    setting: &'a Setting,
    calendar: Calendar,
    engines: Engines,
    prober: Prober,
    workload: &'a mut dyn Workload,
    routers: Vec<Box<dyn Router>>,
    open: HashMap<u64, Open>,
    /// The endpoint of each conversation's last turn.
    last: HashMap<u64, usize>,
    outcome: Outcome,
}

/// Runs until everything is answered. There is one router per gateway.
///
/// # Errors
/// When a profile of the fleet makes no sense, or a fault names an endpoint that is not there.
pub fn run(
    fleet: &Fleet,
    workload: &mut dyn Workload,
    routers: Vec<Box<dyn Router>>,
    setting: &Setting,
) -> anyhow::Result<Outcome> {
    ensure!(!routers.is_empty(), "there must be a gateway");
    for fault in &setting.faults {
        let count = fleet.engines.len();
        ensure!(fault.endpoint < count, "fault: endpoint {} is none of 0 to {}", fault.endpoint, count - 1);
    }
    let mut world = World {
        setting,
        calendar: Calendar::default(),
        engines: Engines::new(fleet)?,
        prober: Prober::new(fleet.engines.len(), routers.len()),
        workload,
        routers,
        open: HashMap::new(),
        last: HashMap::new(),
        outcome: Outcome::new(fleet),
    };
    world.start();
    world.play()?;
    Ok(world.end())
}

impl World<'_> {
    fn start(&mut self) {
        let (gateways, interval) = (self.routers.len(), self.setting.interval);
        let rhythm: Vec<Option<Nanos>> = self.routers.iter().map(|router| router.hears(gateways, interval)).collect();
        if let Some(every) = rhythm.iter().flatten().min() {
            self.prober.read_every = *every;
            self.calendar.put(0, Due::Scrape);
        }
        for (gateway, every) in rhythm.into_iter().enumerate() {
            self.prober.report_every[gateway] = every;
            if let Some(every) = every {
                // Each at a moment of its own.
                self.calendar.put(every * gateway as u64 / gateways as u64, Due::Report { gateway });
            }
        }
        for (nth, fault) in self.setting.faults.iter().enumerate() {
            self.calendar.put(fault.from, Due::Fault { nth, begins: true });
            self.calendar.put(fault.until, Due::Fault { nth, begins: false });
        }
    }

    fn play(&mut self) -> anyhow::Result<()> {
        let mut id = 0;
        loop {
            let arrival = self.workload.next_at().map(|at| at.max(self.outcome.now));
            match (self.calendar.next_at(), arrival) {
                (Some(due), arrival) if arrival.is_none_or(|arrival| due <= arrival) => {
                    if let Some((at, due)) = self.calendar.pop() {
                        self.outcome.now = at.max(self.outcome.now);
                        self.happen(due);
                    }
                }
                (_, Some(at)) => {
                    self.outcome.now = at;
                    let call = self.workload.take().context("a request was announced")?;
                    self.arrive(id, call);
                    id += 1;
                }
                _ => return Ok(()),
            }
        }
    }

    fn end(mut self) -> Outcome {
        self.outcome.left = self.open.len() as u64;
        self.outcome.left_in_flight = self.engines.in_flight.iter().map(|count| u64::from(*count)).sum();
        let sizes = self.routers.iter().map(|router| router.size());
        for size in sizes {
            self.outcome.live_bytes = self.outcome.live_bytes.max(size.live_bytes);
            self.outcome.index_bytes = self.outcome.index_bytes.max(size.index_bytes);
        }
        self.outcome.peak = self.engines.peak;
        self.outcome
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Engine { nth, stamp } => {
                if self.engines.stamps[nth] == stamp {
                    self.engines.models[nth].advance(self.outcome.now);
                    self.collect(nth);
                }
            }
            Due::Patience { gateway, id } => self.lose_patience(gateway, id),
            Due::Scrape => {
                self.prober.read(&self.engines.models);
                self.again(self.prober.read_every, Due::Scrape);
            }
            Due::Report { gateway } => {
                self.prober.report(gateway, self.routers[gateway].as_ref());
                self.calendar.put(self.outcome.now + self.setting.delay, Due::Heard { gateway });
                if let Some(every) = self.prober.report_every[gateway] {
                    self.again(every, Due::Report { gateway });
                }
            }
            Due::Heard { gateway } => {
                let now_ms = self.outcome.now / 1_000_000;
                self.routers[gateway].hear(&self.prober.answers[gateway], now_ms);
                self.send_granted(gateway);
            }
            Due::Fault { nth, begins } => self.fault(nth, begins),
            Due::Health { nth, ready } => self.health(nth, ready),
        }
    }

    /// Puts what comes round again into the calendar, as long as there is anything to come round for.
    fn again(&mut self, every: Nanos, due: Due) {
        if !self.open.is_empty() || self.workload.next_at().is_some() {
            self.calendar.put(self.outcome.now + every, due);
        }
    }

    fn arrive(&mut self, id: u64, call: Call) {
        let now = self.outcome.now;
        let key = match self.setting.spread {
            Spread::Request => id,
            Spread::Conversation => call.conversation,
        };
        let open = Open {
            gateway: (mix(self.setting.seed, key) % self.routers.len() as u64) as usize,
            priority: self.priority(id),
            arrived: now,
            sent: now,
            at: None,
            attempts: 0,
            cached_tokens: 0,
            first_token: None,
            measured: id >= self.setting.warm_up,
            call,
        };
        if open.measured {
            self.outcome.arrives(open.priority, now);
        }
        let gateway = open.gateway;
        let arrival = Arrival { id, call: &open.call, priority: open.priority, now, engines: &self.engines.models };
        let began = self.setting.timed.then(Instant::now);
        let answer = self.routers[gateway].route(&arrival);
        if let Some(began) = began {
            self.outcome.decision_ns.push(u32::try_from(began.elapsed().as_nanos()).unwrap_or(u32::MAX));
        }
        self.open.insert(id, open);
        self.settle(id, answer);
        self.send_granted(gateway);
    }

    fn priority(&self, id: u64) -> u8 {
        let mut draw = (mix(!self.setting.seed, id) >> 11) as f64 / (1u64 << 53) as f64;
        for (priority, share) in &self.setting.priorities {
            if draw < *share {
                return *priority;
            }
            draw -= share;
        }
        weighbridge_routing::eligibility::DEFAULT_PRIORITY
    }

    fn settle(&mut self, id: u64, answer: Answer) {
        match answer {
            Answer::To(routed) => self.send(id, routed),
            Answer::Waits { until_ms } => {
                let Some(open) = self.open.get(&id) else { return };
                self.calendar.put(until_ms * 1_000_000, Due::Patience { gateway: open.gateway, id });
            }
            Answer::Refused => self.shed(id),
        }
    }

    /// Those who waited and have got a slot go there.
    fn send_granted(&mut self, gateway: usize) {
        loop {
            let granted = self.routers[gateway].granted();
            if granted.is_empty() {
                return;
            }
            for (id, routed) in granted {
                self.send(id, routed);
            }
        }
    }

    fn send(&mut self, id: u64, routed: Routed) {
        let (now, nth) = (self.outcome.now, routed.endpoint);
        let keep_blocks = !self.setting.faults.is_empty();
        let Some(open) = self.open.get_mut(&id) else { return };
        open.at = Some(routed);
        open.attempts += 1;
        if open.attempts == 1 {
            open.sent = now;
        }
        if self.engines.down[nth] {
            self.cut_off(id);
            return;
        }
        let mut request = Request::new(id, open.call.prompt_tokens, open.call.output_tokens);
        // Only a request that may be tried again needs them again.
        request.prompt_blocks =
            if keep_blocks { open.call.blocks.clone() } else { std::mem::take(&mut open.call.blocks) };
        request.output_blocks.clone_from(&open.call.output_blocks);
        request.slow = self.engines.slow[nth];
        let submitted = self.engines.models[nth].submit(now, request);
        if submitted.is_ok() {
            self.engines.add(nth);
        }
        self.collect(nth);
        if let Err(SubmitError::TooLong { .. } | SubmitError::Empty | SubmitError::BadFactor) = submitted {
            let gateway = self.open.get(&id).map_or(0, |open| open.gateway);
            self.routers[gateway].ended(id, Ended::TooLong, now / 1_000_000);
            self.shed(id);
            self.send_granted(gateway);
        }
    }

    /// A connection was refused or broke: tried again while nothing of the answer has come.
    fn cut_off(&mut self, id: u64) {
        let now = self.outcome.now;
        let Some(open) = self.open.get_mut(&id) else { return };
        let gateway = open.gateway;
        let again = open.first_token.is_none() && open.attempts < self.setting.attempts;
        let answer = if again {
            let arrival = Arrival { id, call: &open.call, priority: open.priority, now, engines: &self.engines.models };
            self.routers[gateway].retry(&arrival)
        } else {
            self.routers[gateway].ended(id, Ended::Failed, now / 1_000_000);
            Answer::Refused
        };
        match answer {
            Answer::Refused => {
                if let Some(open) = self.open.remove(&id) {
                    self.outcome.failed += u64::from(open.measured);
                    self.workload.ended(open.call.conversation, now, false);
                }
            }
            answer => {
                self.outcome.retried += 1;
                self.settle(id, answer);
            }
        }
        self.send_granted(gateway);
    }

    fn shed(&mut self, id: u64) {
        let Some(open) = self.open.remove(&id) else { return };
        if open.measured {
            self.outcome.shed[usize::from(open.priority)] += 1;
        }
        self.workload.ended(open.call.conversation, self.outcome.now, false);
    }

    fn lose_patience(&mut self, gateway: usize, id: u64) {
        if self.routers[gateway].give_up(id, self.outcome.now / 1_000_000) {
            self.shed(id);
            self.send_granted(gateway);
        }
    }

    /// Takes note of what an engine has done.
    fn collect(&mut self, nth: usize) {
        for event in self.engines.models[nth].take_events() {
            self.note(nth, event);
        }
        self.engines.stamps[nth] += 1;
        if let Some(at) = self.engines.models[nth].next_event() {
            self.calendar.put(at, Due::Engine { nth, stamp: self.engines.stamps[nth] });
        }
    }

    fn note(&mut self, nth: usize, event: Event) {
        let Some(open) = self.open.get_mut(&event.id) else { return };
        let gateway = open.gateway;
        match event.kind {
            EventKind::Admitted { cached_tokens } => open.cached_tokens = cached_tokens,
            EventKind::FirstToken => {
                open.first_token = Some(event.at);
                self.routers[gateway].first_token(event.id, event.at / 1_000_000);
                self.send_granted(gateway);
            }
            EventKind::Tokens { .. } => {}
            EventKind::Finished { output_tokens } => {
                let Some(open) = self.open.remove(&event.id) else { return };
                self.engines.in_flight[nth] -= 1;
                let added_tokens = open.call.prompt_tokens - open.cached_tokens + output_tokens;
                self.routers[gateway].ended(event.id, Ended::Served { added_tokens }, event.at / 1_000_000);
                self.finished(nth, &open, event.at, output_tokens);
                self.workload.ended(open.call.conversation, event.at, true);
                self.send_granted(gateway);
            }
        }
    }

    fn finished(&mut self, endpoint: usize, open: &Open, end: Nanos, output_tokens: u64) {
        let ms = |from: Nanos, to: Nanos| seconds(to.saturating_sub(from)) * 1e3;
        let first = open.first_token.unwrap_or(end);
        let tpot_ms = (output_tokens > 1).then(|| ms(first, end) / (output_tokens - 1) as f64);
        self.prober.average(endpoint, ms(open.sent, first), tpot_ms);
        let before = self.last.insert(open.call.conversation, endpoint);
        if !open.measured {
            return;
        }
        if let Some(before) = before {
            self.outcome.turns += 1;
            self.outcome.moves += u64::from(before != endpoint);
        }
        let believed = open.at.map_or(0, |routed| routed.believed_tokens);
        self.outcome.known_tokens += open.call.known_tokens;
        self.outcome.believed_tokens += believed;
        // Believed, and not there: half a block of rounding is no error.
        self.outcome.believed_wrongly += believed.saturating_sub(open.cached_tokens + 32);
        self.outcome.served.push(Served {
            endpoint: endpoint as u32,
            priority: open.priority,
            ended_s: seconds(end),
            ttft_ms: ms(open.arrived, first),
            tpot_ms,
            e2e_ms: ms(open.arrived, end),
            waited_ms: ms(open.arrived, open.sent),
            prompt_tokens: open.call.prompt_tokens,
            cached_tokens: open.cached_tokens,
            output_tokens,
        });
    }

    fn fault(&mut self, nth: usize, begins: bool) {
        let Some(fault) = self.setting.faults.get(nth).copied() else { return };
        let (endpoint, now) = (fault.endpoint, self.outcome.now);
        match (fault.kind, begins) {
            (Kind::Slow(factor), true) => self.engines.slow[endpoint] = factor,
            (Kind::Slow(_), false) => self.engines.slow[endpoint] = 1.0,
            (Kind::Dead, true) => {
                self.engines.models[endpoint].advance(now);
                self.collect(endpoint);
                self.engines.kill(endpoint, now);
                let at = now + self.setting.detect + self.setting.delay;
                self.calendar.put(at, Due::Health { nth: endpoint, ready: false });
                let there = |open: &Open| open.at.is_some_and(|routed| routed.endpoint == endpoint);
                let mut lost: Vec<u64> = self.open.iter().filter(|(_, open)| there(open)).map(|(id, _)| *id).collect();
                // The order of a map is anybody's guess.
                lost.sort_unstable();
                lost.into_iter().for_each(|id| self.cut_off(id));
            }
            (Kind::Dead, false) => {
                self.engines.down[endpoint] = false;
                let at = now + self.setting.interval + self.setting.delay;
                self.calendar.put(at, Due::Health { nth: endpoint, ready: true });
            }
        }
    }

    fn health(&mut self, nth: usize, ready: bool) {
        // It may have come back before its checks failed.
        self.prober.ready[nth] = !self.engines.down[nth];
        let now_ms = self.outcome.now / 1_000_000;
        for gateway in 0..self.routers.len() {
            self.routers[gateway].health(&self.prober.ready, ready.then_some(nth), now_ms);
            self.send_granted(gateway);
        }
    }
}
