//! An Envoy without the filter and one with it, in front of the same upstream; or several with it, to compare builds of the
//! filter. All run all the time and take turns (A B, then B A, ...), so that a noisy machine hurts all alike. Read the
//! ratios; the absolute figures belong to the machine.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use harness::echo::Echo;
use harness::envoy::Edit;
use harness::load::{self, Call, Report};
use harness::snapshot::{endpoint, pool, snapshot};
use harness::{Envoy, EnvoyOptions};
use serde_json::{Value, json};

pub(crate) const MODEL: &str = "bench";

/// How long and how wide.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Turns {
    /// Rounds; each gives one ratio.
    #[arg(long, default_value_t = 9)]
    pub(crate) rounds: usize,
    /// Keep-alive connections.
    #[arg(long, default_value_t = 16)]
    pub(crate) connections: usize,
    /// Worker threads of each Envoy.
    #[arg(long, default_value_t = 2)]
    pub(crate) concurrency: u32,
    #[command(flatten)]
    pub(crate) sides: Sides,
}

/// What is compared with an Envoy without the filter.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Sides {
    /// A build of the filter; several are compared in one run. Without any: the one that `scripts/build` makes.
    #[arg(long = "module", value_name = "LABEL=PATH", value_parser = labelled)]
    modules: Vec<(String, PathBuf)>,
    /// Sizes of the pool; several are compared in one run, to see what a decision costs in Envoy. (256 at most: their
    /// addresses are 127.0.x.y.)
    #[arg(long, value_name = "N", default_value = "4", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=256))]
    endpoints: Vec<u16>,
    /// Takes the access log out on all sides.
    #[arg(long)]
    no_access_log: bool,
}

impl Sides {
    /// The builds of the filter, with their labels; `None` is the one that `scripts/build` makes.
    pub(crate) fn builds(&self) -> Vec<(&str, Option<PathBuf>)> {
        if self.modules.is_empty() {
            return vec![("", None)];
        }
        self.modules.iter().map(|(label, path)| (label.as_str(), Some(path.clone()))).collect()
    }
}

fn labelled(text: &str) -> Result<(String, PathBuf), String> {
    let (label, path) = text.split_once('=').ok_or("expected LABEL=PATH")?;
    let path = std::fs::canonicalize(path).map_err(|error| format!("{path}: {error}"))?;
    Ok((label.to_owned(), path))
}

pub(crate) struct Pair {
    plain: Envoy,
    /// With their labels; empty when there is only one.
    filtered: Vec<(String, Envoy)>,
    _echo: Echo,
}

/// One measure of a turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    /// CPU of the Envoy process per request, in microseconds.
    pub(crate) cpu_us: f64,
    /// Median duration of a request, in microseconds.
    pub(crate) latency_us: f64,
}

/// Medians over the rounds.
#[derive(Debug, Clone)]
pub(crate) struct Compared {
    /// Which build of the filter; empty when there is only one.
    label: String,
    pub(crate) plain: Cost,
    pub(crate) filtered: Cost,
    /// Of the CPU: median, least and greatest.
    pub(crate) ratio: (f64, f64, f64),
}

impl Pair {
    pub(crate) async fn start(concurrency: u32, sides: &Sides) -> Result<Self> {
        let echo = Echo::start().await?;
        let envoy = async |filter: bool, wasm: Option<PathBuf>, endpoints: u16| {
            let endpoints = (1..=endpoints).map(|nth| endpoint(&format!("e{nth}"), echo.addr(nth), 1.0)).collect();
            let fleet = snapshot(vec![pool(MODEL, endpoints)]);
            let edit = sides.no_access_log.then_some(Box::new(without_access_log) as Edit);
            Envoy::start(EnvoyOptions { concurrency, filter, wasm, edit, ..EnvoyOptions::fixed(fleet) }).await
        };
        let plain = envoy(false, None, sides.endpoints.first().copied().unwrap_or(1)).await?;
        let mut filtered = Vec::new();
        for (label, path) in sides.builds() {
            for count in &sides.endpoints {
                let size = if sides.endpoints.len() > 1 { format!("{count} endpoints") } else { String::new() };
                let label = [label, &size].join(" ").trim().to_owned();
                filtered.push((label, envoy(true, path.clone(), *count).await?));
            }
        }
        Ok(Self { plain, filtered, _echo: echo })
    }

    /// `requests` requests per turn, taken in turn from `calls`, the same for all sides. One result for each build of the filter.
    pub(crate) async fn compare(&self, turns: &Turns, requests: usize, calls: &[Call]) -> Result<Vec<Compared>> {
        let requests = requests.max(turns.connections);
        let turn = async |envoy: &Envoy, from: usize, requests: usize| {
            cost(envoy, turns.connections, from, requests, calls).await
        };
        let warm_up = requests / 4 + 1;
        let envoys: Vec<&Envoy> =
            std::iter::once(&self.plain).chain(self.filtered.iter().map(|(_, envoy)| envoy)).collect();
        // Connections, buffers and the engine's code are warm before anything counts.
        for envoy in &envoys {
            turn(envoy, 0, warm_up).await?;
        }
        let mut costs = vec![Vec::new(); envoys.len()];
        for round in 0..turns.rounds {
            for nth in 0..envoys.len() {
                let nth = if round % 2 == 0 { nth } else { envoys.len() - 1 - nth };
                costs[nth].push(turn(envoys[nth], warm_up + round * requests, requests).await?);
            }
        }
        let median = |costs: &[Cost]| Cost {
            cpu_us: spread(costs.iter().map(|cost| cost.cpu_us)).0,
            latency_us: spread(costs.iter().map(|cost| cost.latency_us)).0,
        };
        let (plain, filtered) = costs.split_first().context("there is always one")?;
        let compared = self.filtered.iter().zip(filtered).map(|((label, _), costs)| Compared {
            label: label.clone(),
            plain: median(plain),
            filtered: median(costs),
            ratio: spread(plain.iter().zip(costs).map(|(plain, filtered)| filtered.cpu_us / plain.cpu_us)),
        });
        Ok(compared.collect())
    }
}

/// A million lines of it would fill the disk, and writing them costs both sides.
pub(crate) fn without_access_log(config: &mut Value) {
    let manager = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
    if let Some(manager) = config.pointer_mut(manager).and_then(Value::as_object_mut) {
        manager.remove("access_log");
    }
}

impl Compared {
    /// The cells of a row that begins with what was measured.
    pub(crate) fn cells(&self, what: &str) -> Vec<String> {
        let (ratio, min, max) = self.ratio;
        vec![
            [what, &self.label].join(" ").trim_end().to_owned(),
            format!("{:.1}", self.plain.cpu_us),
            format!("{:.1}", self.filtered.cpu_us),
            format!("{ratio:.2}"),
            format!("({min:.2} .. {max:.2})"),
        ]
    }

    pub(crate) fn json(&self, what: &str) -> Value {
        json!({
            "what": what, "module": self.label, "ratio": self.ratio.0, "ratio_min": self.ratio.1, "ratio_max": self.ratio.2,
            "plain_cpu_us": self.plain.cpu_us, "filter_cpu_us": self.filtered.cpu_us,
            "plain_latency_us": self.plain.latency_us, "filter_latency_us": self.filtered.latency_us,
        })
    }
}

/// What [`Compared::cells`] are.
pub(crate) const COLUMNS: [&str; 4] = ["no filter (us)", "filter (us)", "ratio", "(min .. max)"];

async fn cost(envoy: &Envoy, connections: usize, from: usize, requests: usize, calls: &[Call]) -> Result<Cost> {
    let calls = calls.to_vec();
    let before = envoy.cpu_seconds()?;
    let report: Report =
        load::closed_loop(envoy.gateway(), connections, requests, move |nth| calls[(from + nth) % calls.len()].clone())
            .await;
    let used = envoy.cpu_seconds()? - before;
    ensure!(report.ok() == requests, "not every request was answered: {:?}", report.by_status());
    let latency_us = report.duration_quantile(0.5).as_secs_f64() * 1e6;
    Ok(Cost { cpu_us: used * 1e6 / requests as f64, latency_us })
}

/// Median, least and greatest.
fn spread(values: impl Iterator<Item = f64>) -> (f64, f64, f64) {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
    (at(values.len() / 2), at(0), at(values.len().saturating_sub(1)))
}

/// How much of a text must be escaped in JSON.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Escapes {
    /// Nothing.
    None,
    /// Prose: a line break about every 80 characters.
    Prose,
    /// Code: quotes, backslashes and short lines.
    Code,
}

impl Escapes {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Escapes::None => "no escapes",
            Escapes::Prose => "prose",
            Escapes::Code => "code",
        }
    }

    fn line(self, nth: usize) -> String {
        match self {
            Escapes::None => {
                format!("Request {nth}: the lorry drives over the weighbridge before anyone says what it carries. ")
            }
            Escapes::Prose => {
                format!("Request {nth}: the lorry drives over the weighbridge before anyone says what it carries.\n")
            }
            Escapes::Code => format!("\tlet load = json!({{\"lorry\": \"{nth}\", \"path\": \"C:\\\\yard\"}});\n"),
        }
    }
}

/// A conversation of about this many bytes, laid out as the common clients do: `messages` first, then `model`.
pub(crate) fn chat(bytes: usize, escapes: Escapes, nth: usize) -> Call {
    let line = escapes.line(nth);
    let mut messages = vec![json!({"role": "system", "content": "You answer briefly."})];
    let per_message = (bytes / 4).max(512);
    let mut written = 0;
    while written < bytes {
        let text = line.repeat((per_message.min(bytes - written) / line.len()).max(1));
        written += json!(text).to_string().len();
        let role = if messages.len() % 2 == 1 { "user" } else { "assistant" };
        messages.push(json!({"role": role, "content": text}));
    }
    // Written by hand: a JSON map would sort the keys.
    let body = format!(r#"{{"messages":{},"model":"{MODEL}","max_tokens":16}}"#, json!(messages));
    Call::post("/v1/chat/completions", body)
}
