//! A fleet and what it is asked: what a command line says, made ready to run.

use std::path::PathBuf;

use anyhow::ensure;
use clap::{Args, Parser, ValueEnum};
use serde::Serialize;

use crate::fleet::{Fleet, Overrides};
use crate::outcome::Outcome;
use crate::policy::{Policy, Router, Tuning};
use crate::report::Slo;
use crate::sim::{Fault, Setting, Spread, run};
use crate::workload::arrivals::Process;
use crate::workload::synthetic::{Arrivals, Settings, Synthetic};
use crate::workload::{Call, Replay, Saturation, Workload, azure, mooncake};

/// What is asked of which fleet.
#[derive(Debug, Clone, Args, Serialize)]
pub struct SceneArgs {
    /// 980, 479, 240, a profile's name, or a factor of the small one such as 2x.
    #[arg(long, default_value = "980,479,240,240")]
    pub fleet: String,
    /// So many endpoints: those of the fleet over and over.
    #[arg(long)]
    pub endpoints: Option<usize>,
    /// Gateways, each with a view of its own.
    #[arg(long, default_value_t = 1)]
    pub gateways: usize,
    /// Which gateway a request comes to.
    #[arg(long, value_enum, default_value = "request")]
    pub spread: Spread,
    /// How often gateways report and hear of each other, in ms.
    #[arg(long, default_value_t = 250)]
    pub interval_ms: u64,
    /// How long what they hear is under way, in ms.
    #[arg(long, default_value_t = 2)]
    pub delay_ms: u64,
    /// A Mooncake trace instead of the synthetic workload.
    #[arg(long, conflicts_with = "azure")]
    pub mooncake: Option<PathBuf>,
    /// An Azure trace instead of the synthetic workload.
    #[arg(long)]
    pub azure: Option<PathBuf>,
    /// How many times as fast a trace is played, instead of a load.
    #[arg(long)]
    pub speed: Option<f64>,
    /// The most requests of a trace.
    #[arg(long, default_value_t = usize::MAX)]
    pub limit: usize,
    /// Load, as a share of what the fleet gets through when it never runs dry.
    #[arg(long, default_value_t = 0.86)]
    pub load: f64,
    /// Requests per second instead of a load.
    #[arg(long)]
    pub rate: Option<f64>,
    /// So many users, each with one request at a time, instead of a rate.
    #[arg(long)]
    pub users: Option<u64>,
    /// Coefficient of variation of the gaps between arrivals: 1 is Poisson, above it bursty.
    #[arg(long, default_value_t = 1.0)]
    pub cv: f64,
    /// How far the rate swings around its mean, as a share below 1.
    #[arg(long, default_value_t = 0.0)]
    pub swing: f64,
    /// Length of a swing, in seconds.
    #[arg(long, default_value_t = 3_600.0)]
    pub period: f64,
    /// Share of the requests that are turns of conversations.
    #[arg(long, default_value_t = Settings::default().conversations)]
    pub conversations: f64,
    /// Mean time between an answer and the next turn, in seconds.
    #[arg(long, default_value_t = Settings::default().think_s)]
    pub think: f64,
    /// Tokens of a system prompt that all share.
    #[arg(long, default_value_t = 0)]
    pub system: u64,
    /// Mean output in tokens.
    #[arg(long, default_value_t = Settings::default().output_mean)]
    pub output: f64,
    /// Synthetic requests.
    #[arg(long, default_value_t = 100_000)]
    pub requests: u64,
    /// Requests at the beginning that are not measured, as a share.
    #[arg(long, default_value_t = 0.1)]
    pub warm_up: f64,
    /// Context window of every engine, in tokens; for traces, what the longest request needs.
    #[arg(long)]
    pub window: Option<u64>,
    /// KV cache of every engine, in tokens.
    #[arg(long)]
    pub kv_tokens: Option<u64>,
    /// Prefill speed of every engine, in tokens/s.
    #[arg(long)]
    pub prefill_tps: Option<f64>,
    /// Decoding speed of every engine while it computes a prompt, as a share: 1 where prefills disturb nobody.
    #[arg(long)]
    pub decode_share: Option<f64>,
    /// What goes wrong: kill:ENDPOINT@FROM-UNTIL or slowFACTOR:ENDPOINT@FROM-UNTIL, in seconds.
    #[arg(long, value_delimiter = ',')]
    pub fault: Vec<Fault>,
    /// The longest time to the first token that a client is content with, in ms.
    #[arg(long, default_value_t = 2_000.0)]
    pub slo_ttft: f64,
    /// The longest time per output token that a client is content with, in ms.
    #[arg(long, default_value_t = 100.0)]
    pub slo_tpot: f64,
    /// Everything random follows from it.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// What can be set in a pool, as on the command line.
#[derive(Debug, Clone, Args)]
pub struct TuningArgs {
    /// Factor of affinity's allowance.
    #[arg(long, default_value_t = Tuning::default().k)]
    pub k: f64,
    /// Requests in flight per unit of weight.
    #[arg(long, default_value_t = Tuning::default().base_cap)]
    pub base_cap: u32,
    /// Endpoints that are drawn and compared: a number, or 0 for all.
    #[arg(long, default_value_t = 2)]
    pub choices: u32,
    /// Requests that may wait at a gateway.
    #[arg(long, default_value_t = Tuning::default().queue)]
    pub queue: u32,
    /// The longest wait at a gateway, in ms.
    #[arg(long, default_value_t = Tuning::default().max_wait_ms)]
    pub max_wait_ms: u32,
    /// Waiting so long is worth one step of priority, in ms.
    #[arg(long, default_value_t = Tuning::default().ageing_ms)]
    pub ageing_ms: u32,
    /// Uncached prompt tokens that an endpoint computes at once.
    #[arg(long, default_value_t = Tuning::default().prefill_budget)]
    pub prefill_budget: u32,
    /// What a prompt token counts as pending against an output token; the product has 1 and no setting.
    #[arg(long, default_value_t = Tuning::default().prompt_weight)]
    pub prompt_weight: f64,
}

impl TuningArgs {
    /// The settings.
    #[must_use]
    pub fn tuning(&self) -> Tuning {
        Tuning {
            k: self.k,
            base_cap: self.base_cap,
            choices: (self.choices > 0).then_some(self.choices),
            queue: self.queue,
            max_wait_ms: self.max_wait_ms,
            ageing_ms: self.ageing_ms,
            prefill_budget: self.prefill_budget,
            prompt_weight: self.prompt_weight,
            ..Tuning::default()
        }
    }
}

/// Where requests come from; can be run again and again.
#[derive(Debug, Clone)]
enum Source {
    Synthetic(Settings),
    Trace(Replay),
}

/// A scene, ready to run.
#[derive(Debug, Clone)]
pub struct Scene {
    /// The engines.
    pub fleet: Fleet,
    /// How they are run.
    pub setting: Setting,
    /// What a client is content with.
    pub slo: Slo,
    gateways: usize,
    source: Source,
    facts: Facts,
}

/// What is known of a scene before it is run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Facts {
    /// Requests.
    pub requests: u64,
    /// Requests per second that the fleet gets through when it never runs dry.
    pub capacity_rps: f64,
    /// Requests per second that come; `None` where users wait for their answers.
    pub rate_rps: Option<f64>,
    /// Of a prompt, tokens in the mean.
    pub prompt_tokens: f64,
    /// Of these, tokens that nobody has sent before.
    pub new_tokens: f64,
    /// Of an answer, tokens in the mean.
    pub output_tokens: f64,
}

/// Requests of the run that finds out what a fleet gets through.
const SATURATION_REQUESTS: usize = 3_000;

/// Requests per second that a fleet gets through when it never runs dry: as many requests at a time as all engines run
/// together, placed by the oracle that looks at everybody.
///
/// # Errors
/// When a profile of the fleet makes no sense.
pub fn capacity_rps(fleet: &Fleet, calls: Vec<Call>) -> anyhow::Result<f64> {
    let together = fleet.engines.iter().map(|engine| engine.batch_limit).sum();
    let router = Policy::OracleAll.router(fleet, &Tuning { max_wait_ms: u32::MAX, ..Tuning::default() }, 1)?;
    let outcome = run(fleet, &mut Saturation::new(calls, together), vec![router], &Setting::default())?;
    Ok(outcome.throughput_rps())
}

impl Default for SceneArgs {
    /// What the command line says when it says nothing.
    fn default() -> Self {
        #[derive(Parser)]
        struct Nothing {
            #[command(flatten)]
            scene: SceneArgs,
        }
        Nothing::parse_from(["fleet-sim"]).scene
    }
}

impl SceneArgs {
    /// Reads traces, finds out what the fleet can do, and sets the rate.
    ///
    /// # Errors
    /// Names what cannot be read or makes no sense.
    pub fn prepare(&self) -> anyhow::Result<Scene> {
        ensure!(self.gateways > 0, "--gateways 0: expected 1 or more");
        ensure!(self.load > 0.0 && self.cv > 0.0, "--load and --cv must be above 0");
        ensure!((0.0..1.0).contains(&self.swing), "--swing {}: expected 0 to below 1", self.swing);
        let trace = match (&self.mooncake, &self.azure) {
            (Some(path), _) => Some(mooncake::read(path, self.limit)?),
            (None, Some(path)) => Some(azure::read(path, self.limit)?),
            (None, None) => None,
        };
        ensure!(trace.as_ref().is_none_or(|trace| trace.len() > 1), "the trace has fewer than two requests");
        let needed = trace.as_ref().map(|trace| trace.longest().next_power_of_two());
        let overrides = Overrides {
            max_model_len: self.window.or(needed),
            kv_tokens: self.kv_tokens,
            prefill_tps: self.prefill_tps,
            decode_share: self.decode_share,
        };
        let base = Fleet::parse(&self.fleet, overrides)?;
        let fleet = base.repeated(self.endpoints.unwrap_or(base.engines.len()));
        // Capacity grows with the number of endpoints; it is found out with the few that repeat.
        let times = fleet.measured_tps.iter().sum::<f64>() / base.measured_tps.iter().sum::<f64>();
        let capacity = |calls| Ok::<f64, anyhow::Error>(times * capacity_rps(&base, calls)?);
        let (source, facts) = match trace {
            Some(trace) => self.trace(trace, capacity)?,
            None => self.synthetic(&base, capacity)?,
        };
        let setting = Setting {
            spread: self.spread,
            interval: self.interval_ms.max(1) * 1_000_000,
            delay: self.delay_ms * 1_000_000,
            faults: self.fault.clone(),
            warm_up: (facts.requests as f64 * self.warm_up) as u64,
            seed: self.seed,
            ..Setting::default()
        };
        let slo = Slo { ttft_ms: self.slo_ttft, tpot_ms: self.slo_tpot };
        Ok(Scene { fleet, setting, slo, gateways: self.gateways, source, facts })
    }

    fn trace(
        &self,
        trace: Replay,
        capacity: impl Fn(Vec<Call>) -> anyhow::Result<f64>,
    ) -> anyhow::Result<(Source, Facts)> {
        let capacity_rps = capacity(trace.calls().take(SATURATION_REQUESTS).cloned().collect())?;
        let speed = match (self.speed, self.rate) {
            (Some(speed), _) => speed,
            (None, Some(rate)) => rate / trace.rate(),
            (None, None) => self.load * capacity_rps / trace.rate(),
        };
        ensure!(speed.is_finite() && speed > 0.0, "a trace cannot be played {speed} times as fast");
        let trace = trace.faster(speed);
        let mean = |of: fn(&Call) -> u64| trace.calls().map(of).sum::<u64>() as f64 / trace.len() as f64;
        let facts = Facts {
            requests: trace.len() as u64,
            capacity_rps,
            rate_rps: Some(trace.rate()),
            prompt_tokens: mean(|call| call.prompt_tokens),
            new_tokens: mean(|call| call.prompt_tokens - call.known_tokens.min(call.prompt_tokens)),
            output_tokens: mean(|call| call.output_tokens),
        };
        Ok((Source::Trace(trace), facts))
    }

    fn synthetic(
        &self,
        base: &Fleet,
        capacity: impl Fn(Vec<Call>) -> anyhow::Result<f64>,
    ) -> anyhow::Result<(Source, Facts)> {
        let mut settings = Settings {
            conversations: self.conversations,
            think_s: self.think,
            system: self.system,
            output_mean: self.output,
            requests: self.requests,
            seed: self.seed,
            ..Settings::default()
        };
        let demand = Synthetic::demand(&settings);
        // Turns of many conversations are mixed as they are when it runs: about as fast as it can decode.
        let guess = base.measured_tps.iter().sum::<f64>() / demand.output_tokens;
        settings.arrivals = Arrivals::poisson(guess);
        let capacity_rps = capacity(Synthetic::sample(&settings, SATURATION_REQUESTS as u64))?;
        let rate = self.rate.unwrap_or(self.load * capacity_rps);
        let process = Process { rate, cv: self.cv, swing: self.swing, period_s: self.period };
        settings.arrivals = self.users.map_or(Arrivals::Open(process), Arrivals::Users);
        let facts = Facts {
            requests: settings.requests,
            capacity_rps,
            rate_rps: self.users.is_none().then_some(rate),
            prompt_tokens: demand.prompt_tokens,
            new_tokens: demand.new_tokens,
            output_tokens: demand.output_tokens,
        };
        Ok((Source::Synthetic(settings), facts))
    }
}

impl Scene {
    /// What is known of it.
    #[must_use]
    pub fn facts(&self) -> Facts {
        self.facts
    }

    /// The same at another load: at so many requests per second.
    #[must_use]
    pub fn at_rate(&self, rate: f64) -> Self {
        let mut scene = self.clone();
        match &mut scene.source {
            Source::Trace(trace) => *trace = trace.faster(rate / trace.rate()),
            Source::Synthetic(settings) => {
                if let Arrivals::Open(process) = &mut settings.arrivals {
                    process.rate = rate;
                }
            }
        }
        scene.facts.rate_rps = Some(rate);
        scene
    }

    /// The same behind so many gateways.
    #[must_use]
    pub fn behind(&self, gateways: usize) -> Self {
        Self { gateways, ..self.clone() }
    }

    fn start(&self) -> Box<dyn Workload> {
        match &self.source {
            Source::Synthetic(settings) => Box::new(Synthetic::new(settings.clone())),
            Source::Trace(trace) => Box::new(trace.clone()),
        }
    }

    /// Runs it with one policy at every gateway.
    ///
    /// # Errors
    /// When the routing code refuses the pool.
    pub fn run(&self, policy: Policy, tuning: &Tuning) -> anyhow::Result<Outcome> {
        let mut workload = self.start();
        let tuning = Tuning { median_output: workload.median_output(), ..tuning.clone() };
        let seed = |gateway: u64| !self.setting.seed ^ gateway.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let routers: Vec<Box<dyn Router>> = (0..self.gateways as u64)
            .map(|gateway| policy.router(&self.fleet, &tuning, seed(gateway)))
            .collect::<anyhow::Result<_>>()?;
        run(&self.fleet, workload.as_mut(), routers, &self.setting)
    }

    /// A sentence for people.
    #[must_use]
    pub fn describe(&self) -> String {
        let Facts { requests, capacity_rps, rate_rps, prompt_tokens, new_tokens, output_tokens } = self.facts;
        let rate = rate_rps.map_or("users who wait for their answers".to_owned(), |rate| {
            format!(
                "{rate:.2} requests/s, {:.0} % of the {capacity_rps:.2} it gets through",
                100.0 * rate / capacity_rps
            )
        });
        format!(
            "{requests} requests of {prompt_tokens:.0} prompt tokens ({new_tokens:.0} new) and {output_tokens:.0} output tokens; {} endpoints, {} gateways; {rate}",
            self.fleet.engines.len(),
            self.gateways,
        )
    }
}

/// Policies of a list, or all that a gateway can run when it is empty.
#[must_use]
pub fn policies_or_all(of: &[Policy]) -> Vec<Policy> {
    if of.is_empty() { Policy::value_variants().to_vec() } else { of.to_vec() }
}
