//! Two Envoys, without and with the filter, in front of the same upstream. Both run all the time and take turns (A B, then
//! B A, ...), so that a noisy machine hurts both alike. Read the ratios; the absolute figures belong to the machine.

use anyhow::{Result, ensure};
use harness::echo::Echo;
use harness::load::{self, Call, Report};
use harness::snapshot::{endpoint, pool, snapshot};
use harness::{Envoy, EnvoyOptions};
use serde_json::{Value, json};

pub(crate) const MODEL: &str = "bench";
const ENDPOINTS: u8 = 4;

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
}

pub(crate) struct Pair {
    plain: Envoy,
    filtered: Envoy,
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
#[derive(Debug, Clone, Copy)]
pub(crate) struct Compared {
    pub(crate) plain: Cost,
    pub(crate) filtered: Cost,
    /// Of the CPU: median, least and greatest.
    pub(crate) ratio: (f64, f64, f64),
}

impl Pair {
    pub(crate) async fn start(concurrency: u32) -> Result<Self> {
        let echo = Echo::start().await?;
        let endpoints = (1..=ENDPOINTS).map(|nth| endpoint(&format!("e{nth}"), echo.addr(nth), 1.0)).collect();
        let fleet = snapshot(vec![pool(MODEL, endpoints)]);
        let envoy = async |filter: bool| {
            Envoy::start(EnvoyOptions { concurrency, filter, ..EnvoyOptions::fixed(fleet.clone()) }).await
        };
        Ok(Self { plain: envoy(false).await?, filtered: envoy(true).await?, _echo: echo })
    }

    /// `requests` requests per turn, taken in turn from `calls`.
    pub(crate) async fn compare(&self, turns: &Turns, requests: usize, calls: &[Call]) -> Result<Compared> {
        let requests = requests.max(turns.connections);
        let turn = async |envoy: &Envoy, requests: usize| cost(envoy, turns.connections, requests, calls).await;
        // Connections, buffers and the engine's code are warm before anything counts.
        for envoy in [&self.plain, &self.filtered] {
            turn(envoy, requests / 4 + 1).await?;
        }
        let (mut plain, mut filtered) = (Vec::new(), Vec::new());
        for round in 0..turns.rounds {
            if round % 2 == 0 {
                plain.push(turn(&self.plain, requests).await?);
                filtered.push(turn(&self.filtered, requests).await?);
            } else {
                filtered.push(turn(&self.filtered, requests).await?);
                plain.push(turn(&self.plain, requests).await?);
            }
        }
        let median = |costs: &[Cost]| Cost {
            cpu_us: spread(costs.iter().map(|cost| cost.cpu_us)).0,
            latency_us: spread(costs.iter().map(|cost| cost.latency_us)).0,
        };
        let ratio = spread(plain.iter().zip(&filtered).map(|(plain, filtered)| filtered.cpu_us / plain.cpu_us));
        Ok(Compared { plain: median(&plain), filtered: median(&filtered), ratio })
    }
}

impl Compared {
    /// The cells of a row after its label.
    pub(crate) fn cells(&self) -> Vec<String> {
        let (ratio, min, max) = self.ratio;
        vec![
            format!("{:.1}", self.plain.cpu_us),
            format!("{:.1}", self.filtered.cpu_us),
            format!("{ratio:.2}"),
            format!("({min:.2} .. {max:.2})"),
        ]
    }

    pub(crate) fn json(&self, label: &str) -> Value {
        json!({
            "what": label, "ratio": self.ratio.0, "ratio_min": self.ratio.1, "ratio_max": self.ratio.2,
            "plain_cpu_us": self.plain.cpu_us, "filter_cpu_us": self.filtered.cpu_us,
            "plain_latency_us": self.plain.latency_us, "filter_latency_us": self.filtered.latency_us,
        })
    }
}

/// What [`Compared::cells`] are.
pub(crate) const COLUMNS: [&str; 4] = ["no filter (us)", "filter (us)", "ratio", "(min .. max)"];

async fn cost(envoy: &Envoy, connections: usize, requests: usize, calls: &[Call]) -> Result<Cost> {
    let calls = calls.to_vec();
    let before = envoy.cpu_seconds()?;
    let report: Report =
        load::closed_loop(envoy.gateway(), connections, requests, move |nth| calls[nth % calls.len()].clone()).await;
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
