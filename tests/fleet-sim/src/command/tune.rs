//! One setting after the other over its range, all else at its default.

use std::path::PathBuf;

use anyhow::bail;
use clap::{Args, ValueEnum};
use fleet_sim::policy::{Policy, Tuning};
use fleet_sim::report::plot::{Panel, Panels};
use fleet_sim::report::{OfPriority, Summary};
use fleet_sim::scene::{Scene, SceneArgs, TuningArgs};
use serde_json::{Value, json};

use super::{Out, document, trace_slo};

/// One setting after the other over its range.
#[derive(Debug, Args)]
pub(crate) struct Tune {
    /// Which settings; all when none is named.
    #[arg(value_enum)]
    what: Vec<What>,
    /// Values to try, in place of the usual ones.
    #[arg(long, value_delimiter = ',')]
    values: Vec<f64>,
    /// The same over these traces, at the same load: what ends in .csv is of Azure's form, .jsonl of Mooncake's.
    #[arg(long, value_delimiter = ',')]
    trace: Vec<PathBuf>,
    #[command(flatten)]
    scene: SceneArgs,
    #[command(flatten)]
    tuning: TuningArgs,
    #[command(flatten)]
    out: Out,
}

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
    /// Uncached prompt tokens that an endpoint of the median prefill speed computes at once, beyond two prompts; 0 is any number.
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
            What::BaseCap => &[6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0],
            What::Choices => &[1.0, 2.0, 3.0, 4.0, 0.0],
            What::PrefillBudget => &[4_096.0, 8_192.0, 16_384.0, 32_768.0, 65_536.0, 0.0],
            What::PromptWeight => &[0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0],
            What::Ageing => &[1.0, 2.0, 5.0, 10.0, 20.0, 0.0],
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

    /// What the product has when nothing is said.
    fn default(self) -> f64 {
        let of = Tuning::default();
        match self {
            What::K => of.k,
            What::BaseCap => of.base_cap.into(),
            What::Choices => of.choices.unwrap_or(0).into(),
            What::PrefillBudget => of.prefill_budget.into(),
            What::PromptWeight => of.prompt_weight,
            What::Ageing => f64::from(of.ageing_ms) / 1e3,
        }
    }

    fn shown(self, value: f64) -> String {
        match (self, value) {
            (What::Choices, 0.0) => "all".into(),
            (What::PrefillBudget, 0.0) => "any".into(),
            (What::Ageing, 0.0) => "never".into(),
            _ => value.to_string(),
        }
    }

    fn title(self) -> &'static str {
        match self {
            What::K => "affinity.k: how much longer a conversation stays with the holder of its prefix",
            What::BaseCap => "admission.base_cap: how many requests an endpoint takes at once",
            What::Choices => "policy.choices: how many endpoints are drawn by weight and compared",
            What::PrefillBudget => "admission.prefill_budget: how much of long prompts an endpoint takes at once",
            What::PromptWeight => "What a prompt token counts against an output token, with least_pending_tokens",
            What::Ageing => "admission.ageing: after how long a wait a request goes one priority better",
        }
    }

    fn unit(self) -> &'static str {
        match self {
            What::K => "k (factor of the allowance)",
            What::BaseCap => "base_cap (requests in flight per unit of weight)",
            What::Choices => "choices (endpoints)",
            What::PrefillBudget => "prefill_budget (uncached prompt tokens at the median prefill speed)",
            What::PromptWeight => "a prompt token, in output tokens",
            What::Ageing => "ageing (s)",
        }
    }

    fn policy(self) -> Policy {
        if self == What::PromptWeight { Policy::LeastPendingTokens } else { Policy::Affinity }
    }

    fn name(self) -> String {
        self.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
    }
}

/// Its name and where it stands.
type Figure = (&'static str, fn(&Summary) -> f64);

/// One figure of a priority's requests.
type PriorityFigure = fn(&OfPriority) -> f64;

/// What is drawn in multiples of what the default gives.
const RELATIVE: [Figure; 3] =
    [("TTFT p99", |of| of.ttft_ms.p99), ("TPOT p99", |of| of.tpot_ms.p99), ("end to end p99", |of| of.e2e_ms.p99)];

/// Multiples above this are written, not drawn.
const MOST: f64 = 2.0;

impl Tune {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let scenes = self.scenes()?;
        for (name, scene) in &scenes {
            println!("{name}: {}", scene.describe());
        }
        let mut runs = Vec::new();
        let all: Vec<What> = if self.what.is_empty() { What::value_variants().to_vec() } else { self.what.clone() };
        for what in all {
            runs.extend(if what == What::Ageing { self.ageing(&scenes)? } else { self.sweep(what, &scenes)? });
        }
        let facts: Vec<Value> = scenes
            .iter()
            .map(|(name, scene)| json!({"name": name, "facts": scene.facts(), "slo": scene.slo}))
            .collect();
        let parameters =
            json!({"scene": self.scene, "traces": self.trace, "tuning": self.tuning.tuning(), "workloads": facts});
        self.out.document("tune", &document("tune", &parameters, runs))
    }

    /// The workloads with their names.
    fn scenes(&self) -> anyhow::Result<Vec<(String, Scene)>> {
        let own = match (&self.scene.azure, &self.scene.mooncake) {
            (None, None) => "conversations",
            (Some(_), _) => "Azure",
            _ => "Mooncake",
        };
        let mut scenes = vec![(own.to_owned(), self.scene.prepare()?)];
        for path in &self.trace {
            let mut args = SceneArgs { azure: None, mooncake: None, ..self.scene.clone() };
            let name = match path.extension().and_then(|ending| ending.to_str()) {
                Some("csv") => {
                    args.azure = Some(path.clone());
                    "Azure"
                }
                Some("jsonl") => {
                    args.mooncake = Some(path.clone());
                    "Mooncake"
                }
                _ => bail!("--trace {}: expected a name that ends in .csv or .jsonl", path.display()),
            };
            let mut scene = args.prepare()?;
            scene.slo = trace_slo(name);
            scenes.push((name.to_owned(), scene));
        }
        Ok(scenes)
    }

    fn fleet(&self) -> String {
        let SceneArgs { fleet, endpoints, gateways, .. } = &self.scene;
        let count = endpoints.map_or(String::new(), |count| format!(" over and over, {count} endpoints"));
        format!("fleet {fleet}{count}, gateways: {gateways}")
    }

    fn values(&self, what: What) -> Vec<f64> {
        if self.values.is_empty() { what.values().to_vec() } else { self.values.clone() }
    }

    /// Where the default stands among the values, and a picture that lacks only its panels.
    fn picture(&self, what: What, subtitle: String, series: Vec<String>) -> (Option<usize>, Panels) {
        let values = self.values(what);
        let default = values.iter().position(|value| *value == what.default());
        let values = values.iter().map(|value| what.shown(*value)).collect();
        let (title, x) = (what.title().into(), what.unit().into());
        (default, Panels { title, subtitle, x, values, default, series, panels: Vec::new() })
    }

    fn sweep(&self, what: What, scenes: &[(String, Scene)]) -> anyhow::Result<Vec<Value>> {
        let (mut runs, mut table): (_, Vec<Vec<Summary>>) = (Vec::new(), Vec::new());
        for (name, scene) in scenes {
            println!("\n## {} ({}), {name}\n", what.name(), what.policy().name());
            println!(
                "| {} | TTFT p50, s | p99 | TPOT p50, ms | p99 | end to end p99, s | good, % | shed, % | hits | moved, % |",
                what.name()
            );
            println!("|---|---|---|---|---|---|---|---|---|---|");
            let mut column = Vec::new();
            for value in self.values(what) {
                let tuning = what.set(value, &self.tuning.tuning());
                let summary = Summary::of(&scene.run(what.policy(), &tuning)?, scene.slo);
                println!("{}", row(&what.shown(value), &summary));
                runs.push(json!({"setting": what.name(), "workload": name, "value": value, "policy": what.policy().name(), "summary": summary}));
                column.push(summary);
            }
            table.push(column);
        }
        let load = 100.0 * self.scene.load;
        let subtitle =
            format!("policy {}, {}, {load:.0} % load, one run per point", what.policy().name(), self.fleet());
        let (default, mut picture) =
            self.picture(what, subtitle, scenes.iter().map(|(name, _)| name.clone()).collect());
        for (name, of) in RELATIVE {
            let series = table.iter().map(|column| {
                let base = default.and_then(|place| column.get(place)).or(column.first()).map_or(f64::NAN, of);
                column.iter().map(|summary| of(summary) / base).collect()
            });
            let title = format!("{name}, 1 = with the default (lower is better)");
            picture.panels.push(Panel { title, most: Some(MOST), series: series.collect() });
        }
        let good = |column: &Vec<Summary>| column.iter().map(|of| 100.0 * of.good_share).collect();
        let title = "requests that met the SLO, % (higher is better)".into();
        picture.panels.push(Panel { title, most: None, series: table.iter().map(good).collect() });
        self.out.write(&format!("tune-{}.svg", what.name()), &picture.svg())?;
        Ok(runs)
    }

    /// Only the first workload, by priority.
    fn ageing(&self, scenes: &[(String, Scene)]) -> anyhow::Result<Vec<Value>> {
        let Some((name, scene)) = scenes.first() else { return Ok(Vec::new()) };
        let (what, scene) = (What::Ageing, crowded(scene));
        println!("\n## {} ({}), {name} at 120 % load\n", what.name(), what.policy().name());
        println!("| {} | TTFT p99 of priority 0, s | 5 | 9 | shed of priority 0, % | 5 | 9 |", what.name());
        println!("|---|---|---|---|---|---|---|");
        let (mut runs, mut column) = (Vec::new(), Vec::new());
        for value in self.values(what) {
            let summary = Summary::of(&scene.run(what.policy(), &what.set(value, &self.tuning.tuning()))?, scene.slo);
            println!("{}", by_priority(&what.shown(value), &summary));
            runs.push(json!({"setting": what.name(), "workload": name, "value": value, "policy": what.policy().name(), "summary": summary}));
            column.push(summary);
        }
        let subtitle =
            format!("{name}, {}, 120 % load: 20 % of the requests have priority 0, 60 % 5, 20 % 9", self.fleet());
        let names = ["priority 0 (first)", "priority 5", "priority 9 (last)"].map(String::from).to_vec();
        let (_, mut picture) = self.picture(what, subtitle, names);
        let figures: [(&str, PriorityFigure); 2] = [
            ("TTFT p99 of the served, s (lower is better)", |of| of.ttft_ms.p99 / 1e3),
            ("shed, % (lower is better)", |of| 100.0 * of.shed_share),
        ];
        for (title, of) in figures {
            let series =
                (0..3).map(|nth| column.iter().map(|sum| sum.priorities.get(nth).map_or(f64::NAN, of)).collect());
            picture.panels.push(Panel { title: title.into(), most: None, series: series.collect() });
        }
        self.out.write(&format!("tune-{}.svg", what.name()), &picture.svg())?;
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
    let all = |figure: PriorityFigure| {
        of.priorities.iter().map(|of| format!("{:.2}", figure(of))).collect::<Vec<_>>().join(" | ")
    };
    format!("| {value} | {} | {} |", all(|of| of.ttft_ms.p99 / 1e3), all(|of| 100.0 * of.shed_share))
}
