//! The comparison that decides: an unequal fleet, several loads, two traces, every policy; how far ours is from the oracle,
//! and where it is not ahead.

use std::path::PathBuf;

use clap::Args;
use fleet_sim::policy::{Policy, Tuning};
use fleet_sim::report::Summary;
use fleet_sim::report::plot::Lines;
use fleet_sim::scene::{SceneArgs, TuningArgs, policies_or_all};
use serde_json::json;

use super::{Out, document, sample, trace_slo};

/// An unequal fleet at several loads, by two traces.
#[derive(Debug, Args)]
pub(crate) struct Show {
    /// An Azure trace; a made-up sample of its form when none is given.
    #[arg(long)]
    azure: Option<PathBuf>,
    /// A Mooncake trace; a made-up sample of its form when none is given.
    #[arg(long)]
    mooncake: Option<PathBuf>,
    /// The fleet.
    #[arg(long, default_value = "1x,1x,2x,4x")]
    fleet: String,
    /// Loads, as shares of what the fleet gets through.
    #[arg(long, value_delimiter = ',', default_value = "0.5,0.8,0.95,1.2")]
    load: Vec<f64>,
    /// Which policies; all when none is named.
    #[arg(long, value_enum, value_delimiter = ',')]
    policy: Vec<Policy>,
    /// The policy that has to be ahead.
    #[arg(long, value_enum, default_value = "affinity")]
    ours: Policy,
    /// Decoding speed of every engine while it computes a prompt, as a share.
    #[arg(long)]
    decode_share: Option<f64>,
    /// Gateways, each with a view of its own.
    #[arg(long, default_value_t = 1)]
    gateways: usize,
    /// The most requests of each trace.
    #[arg(long, default_value_t = usize::MAX)]
    limit: usize,
    /// Seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    tuning: TuningArgs,
    #[command(flatten)]
    out: Out,
}

/// Its name and unit, and where it stands.
type Figure = (&'static str, fn(&Summary) -> f64);

/// Figures of which ours should be the lowest.
const FIGURES: [Figure; 4] = [
    ("TTFT p50, s", |of| of.ttft_ms.p50 / 1e3),
    ("TTFT p99, s", |of| of.ttft_ms.p99 / 1e3),
    ("TPOT p99, ms", |of| of.tpot_ms.p99),
    ("end to end p99, s", |of| of.e2e_ms.p99 / 1e3),
];

/// The head of the table.
const HEAD: &str = "\
| policy | TTFT p50 / p99, s | TPOT p50 / p99, ms | end to end p99, s | good/s | good | shed, failed | to the oracle: TTFT p99, TPOT p99, end to end p99 |
|---|---|---|---|---|---|---|---|";

/// A row per policy, with its distance to the better oracle, figure by figure.
fn print_rows(rows: &[(Policy, Summary)]) {
    for (policy, of) in rows {
        let distance = |(_, figure): &Figure| {
            let oracles = rows.iter().filter(|(policy, _)| policy.is_oracle()).map(|(_, of)| figure(of));
            let best = oracles.fold(f64::INFINITY, f64::min);
            if best.is_finite() { format!("{:.2}", figure(of) / best) } else { "–".into() }
        };
        let distances: Vec<String> = FIGURES.iter().skip(1).map(distance).collect();
        println!(
            "| `{}` | {:.2} / {:.2} | {:.1} / {:.1} | {:.2} | {:.2} | {:.1} % | {:.1} % | {} |",
            policy.name(),
            of.ttft_ms.p50 / 1e3,
            of.ttft_ms.p99 / 1e3,
            of.tpot_ms.p50,
            of.tpot_ms.p99,
            of.e2e_ms.p99 / 1e3,
            of.goodput_rps,
            100.0 * of.good_share,
            100.0 * (of.shed_share + of.failed_share),
            distances.join(", "),
        );
    }
}

impl Show {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let (mut runs, mut facts) = (Vec::new(), Vec::new());
        for name in ["azure", "mooncake"] {
            let (args, made_up) = self.args(name);
            let slo = trace_slo(name);
            let mut scene = args.prepare()?;
            scene.slo = slo;
            let capacity = scene.facts().capacity_rps;
            facts.push(json!({"trace": name, "made_up": made_up, "slo": slo, "facts": scene.facts()}));
            let mut table: Vec<(f64, Vec<(Policy, Summary)>)> = Vec::new();
            for &load in &self.load {
                let scene = scene.at_rate(load * capacity);
                let made_up = if made_up { " (made-up sample)" } else { "" };
                println!("\n## {name}{made_up} at {:.0} % load\n", 100.0 * load);
                println!("{}; SLO {} ms, {} ms\n\n{HEAD}", scene.describe(), slo.ttft_ms, slo.tpot_ms);
                let policies = policies_or_all(&self.policy);
                let mut rows = Vec::new();
                for policy in policies {
                    let summary = Summary::of(&scene.run(policy, &self.tuning())?, scene.slo);
                    runs.push(json!({"trace": name, "load": load, "policy": policy.name(), "summary": summary}));
                    rows.push((policy, summary));
                }
                print_rows(&rows);
                self.judge(&rows);
                table.push((load, rows));
            }
            self.plot(name, &table)?;
        }
        let parameters = json!({"fleet": self.fleet, "decode_share": self.decode_share, "gateways": self.gateways, "seed": self.seed, "ours": self.ours.name(),
            "tuning": self.tuning(), "traces": facts});
        self.out.document("show", &document("show", &parameters, runs))
    }

    fn tuning(&self) -> Tuning {
        self.tuning.tuning()
    }

    /// The scene of a trace, and whether it is made up.
    fn args(&self, name: &str) -> (SceneArgs, bool) {
        let (given, made_up) = match name {
            "azure" => (&self.azure, sample("azure.csv")),
            _ => (&self.mooncake, sample("mooncake.jsonl")),
        };
        let path = given.clone().unwrap_or(made_up);
        let (azure, mooncake) = if name == "azure" { (Some(path), None) } else { (None, Some(path)) };
        let args = SceneArgs {
            fleet: self.fleet.clone(),
            gateways: self.gateways,
            decode_share: self.decode_share,
            limit: self.limit,
            seed: self.seed,
            load: 1.0,
            azure,
            mooncake,
            ..SceneArgs::default()
        };
        (args, given.is_none())
    }

    /// Says how far ours is from the oracle, and where it is not ahead.
    fn judge(&self, rows: &[(Policy, Summary)]) {
        let Some((_, ours)) = rows.iter().find(|(policy, _)| *policy == self.ours) else { return };
        println!();
        for (name, figure) in FIGURES {
            let best = |wanted: &dyn Fn(Policy) -> bool| {
                let of = rows.iter().filter(|(policy, _)| wanted(*policy)).map(|(policy, of)| (*policy, figure(of)));
                of.min_by(|a, b| a.1.total_cmp(&b.1))
            };
            let value = figure(ours);
            let oracle = best(&Policy::is_oracle)
                .map_or(String::new(), |(_, oracle)| format!("; {:.2} times the oracle's {oracle:.3}", value / oracle));
            let peer = best(&Policy::is_peer);
            let verdict = match peer {
                Some((peer, best)) if value > best => {
                    format!("**not ahead** of {} ({best:.3})", peer.name())
                }
                Some((peer, best)) => format!("ahead: the best of the others is {} ({best:.3})", peer.name()),
                None => "nobody to compare with".into(),
            };
            println!("- {name}: {value:.3}, {verdict}{oracle}");
        }
        let shed = ours.shed_share + ours.failed_share;
        println!("- good: {:.1} %, shed {:.2} %", 100.0 * ours.good_share, 100.0 * shed);
    }

    fn plot(&self, trace: &str, table: &[(f64, Vec<(Policy, Summary)>)]) -> anyhow::Result<()> {
        let policies: Vec<Policy> =
            table.first().map_or(Vec::new(), |(_, rows)| rows.iter().map(|(of, _)| *of).collect());
        let good: Figure = ("good, %", |of| 100.0 * of.good_share);
        for (nth, (y, figure)) in FIGURES.into_iter().chain([good]).enumerate() {
            let of = |policy: Policy| -> Vec<(f64, f64)> {
                let of =
                    |rows: &[(Policy, Summary)]| rows.iter().find(|(of, _)| *of == policy).map(|(_, of)| figure(of));
                table.iter().filter_map(|(load, rows)| Some((100.0 * load, of(rows)?))).collect()
            };
            let lines = Lines {
                title: format!("{trace}: {y}"),
                x: "load, %".into(),
                y: y.into(),
                log_x: false,
                series: policies.iter().map(|policy| (policy.name(), of(*policy))).collect(),
            };
            let name = ["ttft-p50", "ttft-p99", "tpot-p99", "e2e-p99", "good"][nth];
            self.out.write(&format!("show-{trace}-{name}.svg"), &lines.svg())?;
        }
        Ok(())
    }
}
