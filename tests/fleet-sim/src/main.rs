//! `fleet-sim`: policies side by side on one simulated fleet.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use fleet_sim::fleet::{Fleet, Overrides};
use fleet_sim::gateway::run;
use fleet_sim::index::recall;
use fleet_sim::policy::Policy;
use fleet_sim::report::{HEAD, Outcome, quantile};
use fleet_sim::workload::synthetic::{Arrivals, Demand, Settings, Synthetic};
use fleet_sim::workload::{Replay, Workload, azure, mooncake};

/// Simulates a fleet of engines behind one gateway.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare policies on one workload.
    Compare {
        /// Which; all when none is named.
        #[arg(long, value_enum, value_delimiter = ',')]
        policy: Vec<Policy>,
        #[command(flatten)]
        scene: Scene,
    },
    /// Ours with affinity at several factors of the allowance.
    SweepK {
        /// Factors.
        #[arg(long, value_delimiter = ',', default_value = "0,0.25,0.5,1,2,4")]
        k: Vec<f64>,
        #[command(flatten)]
        scene: Scene,
    },
    /// How many conversations the holder index remembers.
    Index {
        /// Conversations.
        #[arg(long, value_delimiter = ',', default_value = "1000,5000,10000,20000,40000,80000")]
        conversations: Vec<u64>,
        /// Checkpoints that each grows to.
        #[arg(long, value_delimiter = ',', default_value = "4,8,16,40")]
        checkpoints: Vec<u64>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LoadBy {
    /// Output tokens, against what all engines generate at 16 requests each.
    Decode,
    /// The busiest of: decoding, and prefill at each endpoint, with traffic split by weight and nothing cached.
    Busiest,
}

#[derive(Debug, Clone, Args)]
struct Scene {
    /// 980, 479, 240, a profile's name, or a factor of the small one such as 2x.
    #[arg(long, default_value = "980,479,240,240")]
    fleet: String,
    /// A Mooncake trace instead of the synthetic workload.
    #[arg(long, conflicts_with = "azure")]
    mooncake: Option<PathBuf>,
    /// An Azure trace instead of the synthetic workload.
    #[arg(long)]
    azure: Option<PathBuf>,
    /// How many times as fast a trace is played.
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
    /// The most requests of a trace.
    #[arg(long, default_value_t = usize::MAX)]
    limit: usize,
    /// Load of the synthetic workload, as a share of capacity.
    #[arg(long, default_value_t = 0.86)]
    load: f64,
    /// What load means.
    #[arg(long, value_enum, default_value = "busiest")]
    load_by: LoadBy,
    /// Requests per second instead of a load.
    #[arg(long)]
    rate: Option<f64>,
    /// So many users, each with one request at a time, instead of a rate.
    #[arg(long)]
    users: Option<u64>,
    /// Share of the requests that are turns of conversations.
    #[arg(long, default_value_t = Settings::default().conversations)]
    conversations: f64,
    /// Mean time between an answer and the next turn, in seconds.
    #[arg(long, default_value_t = Settings::default().think_s)]
    think: f64,
    /// Tokens of a system prompt that all share.
    #[arg(long, default_value_t = 0)]
    system: u64,
    /// Mean output in tokens.
    #[arg(long, default_value_t = Settings::default().output_mean)]
    output: f64,
    /// Synthetic requests.
    #[arg(long, default_value_t = 100_000)]
    requests: u64,
    /// Requests at the beginning that are not measured, as a share.
    #[arg(long, default_value_t = 0.1)]
    warm_up: f64,
    /// Context window of every engine, in tokens; for traces, what the longest request needs.
    #[arg(long)]
    window: Option<u64>,
    /// KV cache of every engine, in tokens.
    #[arg(long)]
    kv_tokens: Option<u64>,
    /// Prefill speed of every engine, in tokens/s.
    #[arg(long)]
    prefill_tps: Option<f64>,
    /// Seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON, one object per line.
    #[arg(long)]
    json: bool,
}

/// A workload that can be run again and again.
enum Source {
    Synthetic(Settings),
    Trace(Replay),
}

impl Source {
    fn start(&self) -> Box<dyn Workload> {
        match self {
            Self::Synthetic(settings) => Box::new(Synthetic::new(settings.clone())),
            Self::Trace(replay) => Box::new(replay.clone()),
        }
    }

    fn requests(&self) -> u64 {
        match self {
            Self::Synthetic(settings) => settings.requests,
            Self::Trace(replay) => replay.len() as u64,
        }
    }
}

impl Scene {
    fn set(&self) -> anyhow::Result<(Fleet, Source)> {
        let trace = match (&self.mooncake, &self.azure) {
            (Some(path), _) => Some(mooncake::read(path, self.speed, self.limit)?),
            (None, Some(path)) => Some(azure::read(path, self.speed, self.limit)?),
            (None, None) => None,
        };
        let needed = trace.as_ref().map(|trace| trace.longest().next_power_of_two());
        let overrides = Overrides {
            max_model_len: self.window.or(needed),
            kv_tokens: self.kv_tokens,
            prefill_tps: self.prefill_tps,
        };
        let fleet = Fleet::parse(&self.fleet, overrides)?;
        if let Some(trace) = trace {
            if !self.json {
                println!("trace of {} requests, {:.2} times as fast as recorded", trace.len(), self.speed);
            }
            return Ok((fleet, Source::Trace(trace)));
        }
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
        let capacity = Capacity::of(&fleet, demand);
        let rate = self.rate.unwrap_or_else(|| match self.load_by {
            LoadBy::Decode => self.load * capacity.decode,
            LoadBy::Busiest => self.load * capacity.decode.min(capacity.prefill),
        });
        settings.arrivals = match self.users {
            Some(users) => Arrivals::Users(users),
            None => Arrivals::Poisson(rate),
        };
        if !self.json {
            println!(
                "{:.0} prompt tokens a request, {:.0} of them new, {:.0} output tokens",
                demand.prompt_tokens, demand.new_tokens, demand.output_tokens
            );
            if let Arrivals::Poisson(rate) = settings.arrivals {
                println!(
                    "{rate:.1} requests/s: {:.0} % of decode capacity, {:.0} % of prefill at the busiest with nothing cached, {:.0} % with everything",
                    100.0 * rate / capacity.decode,
                    100.0 * rate / capacity.prefill,
                    100.0 * rate / capacity.prefill * demand.new_tokens / demand.prompt_tokens,
                );
            }
        }
        Ok((fleet, Source::Synthetic(settings)))
    }

    fn run(&self, fleet: &Fleet, source: &Source, policy: Policy, k: f64) -> anyhow::Result<Outcome> {
        let mut workload = source.start();
        let mut router = policy.router(fleet, k, workload.median_output(), !self.seed)?;
        let warm_up = (source.requests() as f64 * self.warm_up) as u64;
        run(fleet, workload.as_mut(), router.as_mut(), warm_up)
    }
}

/// Requests per second that a fleet can serve, by resource.
struct Capacity {
    decode: f64,
    prefill: f64,
}

impl Capacity {
    fn of(fleet: &Fleet, demand: Demand) -> Self {
        let decode = fleet.measured_tps.iter().sum::<f64>() / demand.output_tokens;
        let each = fleet.engines.iter().zip(fleet.shares());
        let prefill = each.map(|(engine, share)| engine.prefill_tps / (share * demand.prompt_tokens));
        Self { decode, prefill: prefill.fold(f64::INFINITY, f64::min) }
    }
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Compare { policy, scene } => compare(&policy, &scene),
        Command::SweepK { k, scene } => sweep_k(&k, &scene),
        Command::Index { conversations, checkpoints } => index(&conversations, &checkpoints),
    }
}

fn compare(policies: &[Policy], scene: &Scene) -> anyhow::Result<()> {
    let (fleet, source) = scene.set()?;
    let policies = if policies.is_empty() { &Policy::ALL } else { policies };
    if !scene.json {
        println!("{HEAD}");
    }
    let mut last = None;
    for &policy in policies {
        let outcome = scene.run(&fleet, &source, policy, 1.0)?;
        if scene.json {
            println!("{}", outcome.summary(&policy.name()));
        } else {
            println!("{}", outcome.row(&policy.name()));
        }
        last = Some(outcome);
    }
    if let Some(outcome) = last.filter(|_| !scene.json) {
        println!("ideal hit rate (one endless cache for all): {:.2}", outcome.ideal_hit_rate());
    }
    Ok(())
}

fn sweep_k(factors: &[f64], scene: &Scene) -> anyhow::Result<()> {
    let (fleet, source) = scene.set()?;
    println!("    k   TTFT p50    p99 s   TPOT p99 ms   end to end p99 s   hits   believed wrongly");
    for &k in factors {
        let outcome = scene.run(&fleet, &source, Policy::Affinity, k)?;
        let wrongly = outcome.believed_wrongly as f64 / outcome.believed_tokens.max(1) as f64;
        println!(
            "{k:>5.2} {:>10.3} {:>8.3} {:>13.1} {:>18.2} {:>6.2} {:>16.4}",
            quantile(&outcome.ttft_ms, 0.5) / 1e3,
            quantile(&outcome.ttft_ms, 0.99) / 1e3,
            quantile(&outcome.tpot_ms, 0.99),
            quantile(&outcome.e2e_ms, 0.99) / 1e3,
            outcome.hit_rate(),
            wrongly,
        );
    }
    Ok(())
}

fn index(conversations: &[u64], checkpoints: &[u64]) -> anyhow::Result<()> {
    let pool = Fleet::parse("980,479,240,240", Overrides::default())?.pool("p2c", 2, true, 1.0)?;
    println!("conversations  checkpoints   found whole   in part    lost   wrong   index KiB");
    for &count in conversations {
        for &each in checkpoints {
            let found = recall(&pool, count, each);
            let share = |part: u64| 100.0 * part as f64 / found.asked.max(1) as f64;
            println!(
                "{count:>13} {each:>12} {:>12.1} % {:>7.1} % {:>5.1} % {:>7} {:>11}",
                share(found.found),
                share(found.partly),
                share(found.asked - found.found - found.partly),
                found.wrong,
                found.bytes / 1024,
            );
        }
    }
    Ok(())
}
