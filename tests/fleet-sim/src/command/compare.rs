//! Policies side by side on one workload.

use clap::Args;
use fleet_sim::policy::Policy;
use fleet_sim::report::plot::Bars;
use fleet_sim::report::{DETAIL_HEAD, HEAD, Summary};
use fleet_sim::scene::{SceneArgs, TuningArgs, policies_or_all};
use serde_json::json;

use super::{Out, Stopwatch, document};

/// Compare policies on one workload.
#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// Which; all when none is named.
    #[arg(long, value_enum, value_delimiter = ',')]
    policy: Vec<Policy>,
    #[command(flatten)]
    scene: SceneArgs,
    #[command(flatten)]
    tuning: TuningArgs,
    /// Print the JSON document instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    out: Out,
}

impl Compare {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let (scene, tuning) = (self.scene.prepare()?, self.tuning.tuning());
        if !self.json {
            println!("{}\n\n{HEAD}", scene.describe());
        }
        let (mut runs, mut bars, mut ideal) = (Vec::new(), Vec::new(), 0.0);
        let (mut requests, mut details, watch) = (0, Vec::new(), Stopwatch::start());
        for policy in policies_or_all(&self.policy) {
            let outcome = scene.run(policy, &tuning)?;
            let summary = Summary::of(&outcome, scene.slo);
            if !self.json {
                println!("{}", summary.row(&policy.name()));
                details.push(summary.detail(&policy.name()));
            }
            requests += scene.facts().requests;
            ideal = summary.ideal_hit_rate.max(ideal);
            bars.push((
                policy.name(),
                vec![summary.ttft_ms.p99 / 1e3, summary.tpot_ms.p99 / 100.0, summary.e2e_ms.p99 / 1e3],
            ));
            runs.push(json!({"policy": policy.name(), "summary": summary}));
        }
        let took_s = watch.seconds();
        let parameters = json!({"scene": self.scene, "tuning": tuning, "facts": scene.facts(), "slo": scene.slo});
        let document = document("compare", &parameters, runs);
        if self.json {
            println!("{document:#}");
        } else {
            println!("\n{DETAIL_HEAD}\n{}", details.join("\n"));
            println!("\nideal hit rate (one endless cache for all): {ideal:.2}");
            println!(
                "{requests} requests simulated in {took_s:.1} s of processor time: {:.0} per second",
                requests as f64 / took_s
            );
        }
        let bars = Bars {
            title: "p99 of each policy".into(),
            y: "seconds; TPOT in tenths of a second".into(),
            groups: vec!["TTFT".into(), "TPOT".into(), "end to end".into()],
            series: bars,
        };
        self.out.write("compare.svg", &bars.svg())?;
        self.out.document("compare", &document)
    }
}
