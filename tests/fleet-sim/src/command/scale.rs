//! What grows with the number of endpoints and of gateways.

use clap::Args;
use fleet_sim::outcome::{Outcome, quantile};
use fleet_sim::policy::{Policy, Tuning};
use fleet_sim::report::Summary;
use fleet_sim::report::plot::Lines;
use fleet_sim::scene::{SceneArgs, TuningArgs};
use serde_json::json;

use super::{Out, Stopwatch, document};

/// 10 to 1,000 endpoints and 1 to 64 gateways.
#[derive(Debug, Args)]
pub(crate) struct Scale {
    /// Endpoints: those of the fleet over and over.
    #[arg(long, value_delimiter = ',', default_value = "10,100,1000")]
    endpoints: Vec<usize>,
    /// Gateways.
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64")]
    gateways: Vec<usize>,
    /// The fleet that is repeated.
    #[arg(long, default_value = "1x,1x,2x,4x")]
    fleet: String,
    /// The policy.
    #[arg(long, value_enum, default_value = "affinity")]
    policy: Policy,
    /// Load, as a share of what the fleet gets through.
    #[arg(long, default_value_t = 0.8)]
    load: f64,
    /// Simulated seconds; longer where that makes fewer than `--least` requests.
    #[arg(long, default_value_t = 40.0)]
    seconds: f64,
    /// The fewest requests of a run.
    #[arg(long, default_value_t = 20_000)]
    least: u64,
    /// KV cache of every engine, in tokens; what the simulator needs most of its memory for.
    #[arg(long, default_value_t = 65_536)]
    kv_tokens: u64,
    /// How often gateways report and hear of each other, in ms.
    #[arg(long, default_value_t = 250)]
    interval_ms: u64,
    /// Seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    tuning: TuningArgs,
    #[command(flatten)]
    out: Out,
}

impl Scale {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let tuning = self.tuning.tuning();
        println!(
            "| endpoints | gateways | requests | decision p50 / p99, us | live value, KiB | index, KiB | snapshot, KiB | TTFT p50 / p99, s | TPOT p99, ms | end to end p99, s | most over cap | simulated per s of processor |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
        let (mut runs, mut plots) = (Vec::new(), Vec::new());
        for &endpoints in &self.endpoints {
            let args = SceneArgs {
                fleet: self.fleet.clone(),
                endpoints: Some(endpoints),
                kv_tokens: Some(self.kv_tokens),
                interval_ms: self.interval_ms,
                load: self.load,
                requests: self.least,
                seed: self.seed,
                ..SceneArgs::default()
            };
            let rate = args.prepare()?.facts().rate_rps.unwrap_or_default();
            let requests = self.least.max((rate * self.seconds) as u64);
            let mut scene = SceneArgs { requests, rate: Some(rate), ..args }.prepare()?;
            scene.setting.timed = true;
            let snapshot_bytes = scene.fleet.snapshot(&tuning, &[]).len();
            let caps: Vec<u32> = scene.fleet.pool(&tuning, &[])?.endpoints.iter().map(|of| of.cap).collect();
            let mut points = Vec::new();
            for &gateways in &self.gateways {
                let scene = scene.behind(gateways);
                let watch = Stopwatch::start();
                let outcome = scene.run(self.policy, &tuning)?;
                let per_s = requests as f64 / watch.seconds();
                let summary = Summary::of(&outcome, scene.slo);
                let (p50_us, p99_us) = decisions_us(&outcome);
                let over = outcome.peak.iter().zip(&caps).map(|(peak, cap)| f64::from(*peak) / f64::from(*cap));
                let over = over.fold(0.0, f64::max);
                println!(
                    "| {endpoints} | {gateways} | {requests} | {p50_us:.1} / {p99_us:.1} | {:.1} | {:.0} | {:.1} | {:.3} / {:.2} | {:.1} | {:.2} | {over:.2} | {per_s:.0} |",
                    outcome.live_bytes as f64 / 1024.0,
                    outcome.index_bytes as f64 / 1024.0,
                    snapshot_bytes as f64 / 1024.0,
                    summary.ttft_ms.p50 / 1e3,
                    summary.ttft_ms.p99 / 1e3,
                    summary.tpot_ms.p99,
                    summary.e2e_ms.p99 / 1e3,
                );
                runs.push(json!({"endpoints": endpoints, "gateways": gateways, "requests": requests,
                    "decision_us": {"p50": p50_us, "p99": p99_us}, "snapshot_bytes": snapshot_bytes,
                    "peak_per_cap": over, "simulated_per_s": per_s, "summary": trimmed(summary.clone())}));
                points.push((gateways as f64, p50_us, summary));
            }
            plots.push((format!("{endpoints} endpoints"), points));
        }
        let lines = |title: &str, y: &str, of: &dyn Fn(f64, &Summary) -> f64| Lines {
            title: title.into(),
            x: "gateways".into(),
            y: y.into(),
            log_x: true,
            series: plots
                .iter()
                .map(|(name, points)| (name.clone(), points.iter().map(|(x, us, sum)| (*x, of(*us, sum))).collect()))
                .collect(),
        };
        self.out.write("scale-decision.svg", &lines("Time of a decision", "median, us", &|us, _| us).svg())?;
        self.out.write("scale-ttft.svg", &lines("TTFT p99", "s", &|_, of| of.ttft_ms.p99 / 1e3).svg())?;
        self.out.write("scale-tpot.svg", &lines("TPOT p99", "ms", &|_, of| of.tpot_ms.p99).svg())?;
        let parameters = json!({"fleet": self.fleet, "policy": self.policy.name(), "load": self.load, "seed": self.seed,
            "kv_tokens": self.kv_tokens, "interval_ms": self.interval_ms, "tuning": Tuning::clone(&tuning)});
        self.out.document("scale", &document("scale", &parameters, runs))
    }
}

fn decisions_us(outcome: &Outcome) -> (f64, f64) {
    let mut us: Vec<f64> = outcome.decision_ns.iter().map(|ns| f64::from(*ns) / 1e3).collect();
    us.sort_by(f64::total_cmp);
    (quantile(&us, 0.5), quantile(&us, 0.99))
}

/// Without the lists by endpoint.
fn trimmed(summary: Summary) -> Summary {
    let none = Vec::new;
    Summary { shares: none(), decode_utilisation: none(), prefill_utilisation: none(), peak: Vec::new(), ..summary }
}
