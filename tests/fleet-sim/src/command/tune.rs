//! One setting after the other over its range, all else at its default.

use clap::{Args, ValueEnum};
use fleet_sim::policy::{Policy, Tuning};
use fleet_sim::report::Summary;
use fleet_sim::report::plot::Lines;
use fleet_sim::scene::{Scene, SceneArgs, TuningArgs};
use serde_json::{Value, json};

use super::{Out, document};

/// One setting after the other over its range.
#[derive(Debug, Args)]
pub(crate) struct Tune {
    /// Which settings; all when none is named.
    #[arg(value_enum)]
    what: Vec<What>,
    /// Values to try, in place of the usual ones.
    #[arg(long, value_delimiter = ',')]
    values: Vec<f64>,
    #[command(flatten)]
    scene: SceneArgs,
    #[command(flatten)]
    tuning: TuningArgs,
    #[command(flatten)]
    out: Out,
}

/// One figure of a run.
type Figure = Box<dyn Fn(&Summary) -> f64>;

/// A setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum What {
    /// Factor of affinity's allowance.
    K,
    /// Requests in flight per unit of weight.
    BaseCap,
    /// Endpoints that are drawn and compared; 0 is all.
    Choices,
    /// Uncached prompt tokens that an endpoint computes at once; 0 is any number.
    PrefillBudget,
    /// What a prompt token counts as pending against an output token, with least_pending_tokens.
    PromptWeight,
    /// Seconds of waiting that are worth a step of priority; at 120 % load, with three priorities.
    Ageing,
}

impl What {
    fn values(self) -> &'static [f64] {
        match self {
            What::K => &[0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0],
            What::BaseCap => &[4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0],
            What::Choices => &[1.0, 2.0, 3.0, 4.0, 0.0],
            What::PrefillBudget => &[4_096.0, 8_192.0, 16_384.0, 32_768.0, 65_536.0, 0.0],
            What::PromptWeight => &[0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0],
            What::Ageing => &[0.0, 1.0, 2.0, 5.0, 10.0, 20.0],
        }
    }

    fn set(self, value: f64, base: &Tuning) -> Tuning {
        let tuning = base.clone();
        match self {
            What::K => Tuning { k: value, ..tuning },
            What::BaseCap => Tuning { base_cap: value as u32, ..tuning },
            What::Choices => Tuning { choices: (value > 0.0).then_some(value as u32), ..tuning },
            What::PrefillBudget => Tuning { prefill_budget: value as u32, ..tuning },
            What::PromptWeight => Tuning { prompt_weight: value, ..tuning },
            What::Ageing => Tuning { ageing_ms: (value * 1e3) as u32, ..tuning },
        }
    }

    fn policy(self) -> Policy {
        if self == What::PromptWeight { Policy::LeastPendingTokens } else { Policy::Affinity }
    }

    fn name(self) -> String {
        self.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
    }
}

impl Tune {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let scene = self.scene.prepare()?;
        println!("{}", scene.describe());
        let mut runs = Vec::new();
        let all: Vec<What> = if self.what.is_empty() { What::value_variants().to_vec() } else { self.what.clone() };
        for what in all {
            let scene = if what == What::Ageing { crowded(&scene) } else { scene.clone() };
            runs.extend(self.sweep(what, &scene)?);
        }
        let parameters =
            json!({"scene": self.scene, "tuning": self.tuning.tuning(), "facts": scene.facts(), "slo": scene.slo});
        self.out.document("tune", &document("tune", &parameters, runs))
    }

    fn sweep(&self, what: What, scene: &Scene) -> anyhow::Result<Vec<Value>> {
        println!("\n## {} ({})\n", what.name(), what.policy().name());
        if what == What::Ageing {
            println!("| {} | TTFT p99 of priority 0, s | 5 | 9 | shed of priority 0, % | 5 | 9 |", what.name());
            println!("|---|---|---|---|---|---|---|");
        } else {
            println!(
                "| {} | TTFT p50, s | p99 | TPOT p50, ms | p99 | end to end p99, s | good, % | shed, % | hits | moved, % |",
                what.name()
            );
            println!("|---|---|---|---|---|---|---|---|---|---|");
        }
        let values = if self.values.is_empty() { what.values() } else { &self.values };
        let (mut points, mut runs) = (Vec::new(), Vec::new());
        for (nth, value) in values.iter().copied().enumerate() {
            let tuning = what.set(value, &self.tuning.tuning());
            let summary = Summary::of(&scene.run(what.policy(), &tuning)?, scene.slo);
            let shown = match (what, value) {
                (What::Choices, 0.0) => "all".to_owned(),
                (What::PrefillBudget, 0.0) => "any".to_owned(),
                (What::Ageing, 0.0) => "never".to_owned(),
                _ => value.to_string(),
            };
            println!("{}", if what == What::Ageing { by_priority(&shown, &summary) } else { row(&shown, &summary) });
            runs.push(
                json!({"setting": what.name(), "value": value, "policy": what.policy().name(), "summary": summary}),
            );
            // What has no number stands at the end.
            let x =
                if shown.parse::<f64>().is_ok() || value > 0.0 { value } else { values[nth.saturating_sub(1)] * 2.0 };
            points.push((x, summary));
        }
        let series: Vec<(String, Figure)> = if what == What::Ageing {
            let of = |nth: usize| -> Figure {
                Box::new(move |of| of.priorities.get(nth).map_or(f64::NAN, |of| of.ttft_ms.p99 / 1e3))
            };
            vec![("priority 0".into(), of(0)), ("priority 5".into(), of(1)), ("priority 9".into(), of(2))]
        } else {
            vec![
                ("TTFT p50, s".into(), Box::new(|of| of.ttft_ms.p50 / 1e3)),
                ("TTFT p99, s".into(), Box::new(|of| of.ttft_ms.p99 / 1e3)),
                ("TPOT p99, tenths of s".into(), Box::new(|of| of.tpot_ms.p99 / 100.0)),
                ("end to end p99, s".into(), Box::new(|of| of.e2e_ms.p99 / 1e3)),
                ("good, share".into(), Box::new(|of| of.good_share)),
                ("hits, share".into(), Box::new(|of| of.hit_rate)),
            ]
        };
        let lines = Lines {
            title: format!("{} ({})", what.name(), what.policy().name()),
            x: what.name(),
            y: if what == What::Ageing { "TTFT p99, s".into() } else { "see legend".into() },
            log_x: points.iter().all(|(x, _)| *x > 0.0),
            series: series
                .iter()
                .map(|(name, of)| (name.clone(), points.iter().map(|(x, sum)| (*x, of(sum))).collect()))
                .collect(),
        };
        self.out.write(&format!("tune-{}.svg", what.name()), &lines.svg())?;
        Ok(runs)
    }
}

/// More than the fleet gets through, of three priorities.
fn crowded(scene: &Scene) -> Scene {
    let mut scene = scene.at_rate(1.2 * scene.facts().capacity_rps);
    scene.setting.priorities = vec![(0, 0.2), (9, 0.2)];
    scene
}

fn row(value: &str, of: &Summary) -> String {
    format!(
        "| {value} | {:.3} | {:.3} | {:.1} | {:.1} | {:.2} | {:.1} | {:.2} | {:.2} | {:.0} |",
        of.ttft_ms.p50 / 1e3,
        of.ttft_ms.p99 / 1e3,
        of.tpot_ms.p50,
        of.tpot_ms.p99,
        of.e2e_ms.p99 / 1e3,
        100.0 * of.good_share,
        100.0 * of.shed_share,
        of.hit_rate,
        100.0 * of.moved_share,
    )
}

fn by_priority(value: &str, of: &Summary) -> String {
    let all = |figure: fn(&fleet_sim::report::OfPriority) -> f64| {
        of.priorities.iter().map(|of| format!("{:.2}", figure(of))).collect::<Vec<_>>().join(" | ")
    };
    format!("| {value} | {} | {} |", all(|of| of.ttft_ms.p99 / 1e3), all(|of| 100.0 * of.shed_share))
}
