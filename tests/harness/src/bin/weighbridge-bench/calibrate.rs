//! The engine time model against a real engine: llama.cpp's server measured, fitted from half of the points, and predicted
//! at the others.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::engine_sim::model::Profile;
use harness::llama::fit::{self, FirstToken, Fitted, Limits, error_percent, halves};
use harness::llama::measure::{self, Clock, Prompts};
use harness::llama::predict::{self, Arrival, Course};
use harness::llama::{LlamaOptions, LlamaServer, MODEL};
use harness::workload::quantile;
use harness::{ProberProcess, artifacts, eventually};
use serde_json::{Value, json};

use crate::output;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Slots of the engine, one run each; prompts and the mixed load are measured with the last.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16")]
    slots: Vec<usize>,
    /// Requests at once.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4,6,8,12,16")]
    concurrency: Vec<u32>,
    /// Lengths of prompts, in words of one token each.
    #[arg(long, value_delimiter = ',', default_value = "64,128,256,512,1024,2048,3072")]
    prompts: Vec<usize>,
    /// Output tokens of a request of a burst.
    #[arg(long, default_value_t = 64)]
    tokens: u32,
    /// Readings of each point, interleaved; their median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Threads of the engine.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Count the seconds in which the engine computed instead of the wall clock's, for bursts and prompts: where the machine has
    /// other things to do. With one thread only.
    #[arg(long)]
    cpu_clock: bool,
    /// Requests of the mixed load.
    #[arg(long, default_value_t = 60)]
    mixed: usize,
    /// The mixed load as a share of what the fitted engine could do.
    #[arg(long, default_value_t = 0.6)]
    load: f64,
}

impl Options {
    fn clock(&self) -> Clock {
        if self.cpu_clock { Clock::Cpu } else { Clock::Wall }
    }
}

/// Tokens that one request may have.
const WINDOW: usize = 4_096;
/// The least share of decoding during a prefill that the model is given. A step that begins during a prefill keeps its
/// length when that ends, so less than this would stall the model long after the engine goes on.
const LEAST_SHARE: f64 = 0.1;
/// Of the prompts.
const SEED: u64 = 1;
/// Prompt and output lengths of the mixed load, log-uniform between these.
const MIXED_PROMPT: (f64, f64) = (32.0, 1_024.0);
const MIXED_OUTPUT: (f64, f64) = (16.0, 128.0);

pub(crate) async fn run(options: &Options) -> Result<()> {
    ensure!(options.concurrency.first() == Some(&1), "--concurrency must begin with 1, where every curve begins");
    ensure!(options.rounds > 0 && options.prompts.len() >= 4, "at least one round, and four lengths of prompts");
    ensure!(!options.cpu_clock || options.threads == 1, "--cpu-clock needs --threads 1, not {}", options.threads);
    let last = *options.slots.last().context("--slots is empty")?;
    let (mut rows, mut report) = (Vec::new(), Report::default());
    for &slots in &options.slots {
        let server = start(options, slots).await?;
        let mut prompts = Prompts::new(SEED);
        let bursts = bursts(options, &server, &mut prompts).await?;
        let limits = Limits { slots, window: WINDOW, burst_prompt_tokens: bursts.prompt_tokens.round() as u64 };
        let curve = bursts.half_curve(slots);
        // Bursts have nothing to prefill beyond what the curve has; so any speed does.
        let by_half = fit::with_prefill("half of the bursts", &curve, 1_000.0, limits)?.profile;
        rows.extend(report.decode(options, slots, &bursts, &by_half)?);
        if slots == last {
            rows.extend(beyond_decode(options, &server, &mut prompts, &bursts, limits, &mut report).await?);
        }
        server.stop().await?;
    }
    report.print(options);
    output::result("calibrate", &rows);
    Ok(())
}

async fn start(options: &Options, slots: usize) -> Result<LlamaServer> {
    eprintln!("llama.cpp with {slots} slots and {} threads", options.threads);
    LlamaServer::start(&LlamaOptions {
        name: "calibrate".into(),
        model: artifacts::real("model.gguf")?,
        slots,
        window: WINDOW,
        threads: options.threads,
        cpus: None,
        cache_mib: 0,
    })
    .await
}

/// Throughput of bursts.
struct Bursts {
    /// Readings in tok/s by concurrency.
    readings: BTreeMap<u32, Vec<f64>>,
    /// Prompt tokens of a request.
    prompt_tokens: f64,
}

impl Bursts {
    fn median(&self, concurrency: u32) -> f64 {
        self.readings.get(&concurrency).map_or(0.0, |readings| median(readings))
    }

    /// Points of every second concurrency up to the slots: beyond them requests wait, which the model is to predict.
    fn half_curve(&self, slots: usize) -> Vec<(u32, f64)> {
        let within: Vec<u32> = self.readings.keys().copied().filter(|n| *n as usize <= slots).collect();
        halves(&within).0.into_iter().map(|n| (n, self.median(n))).collect()
    }
}

async fn bursts(options: &Options, server: &LlamaServer, prompts: &mut Prompts) -> Result<Bursts> {
    let (mut readings, mut read) = (BTreeMap::<u32, Vec<f64>>::new(), 0.0);
    // The first is not counted, as in a probe.
    measure::burst(server, options.clock(), prompts, 4, options.tokens).await?;
    for _ in 0..options.rounds {
        for &concurrency in &options.concurrency {
            let burst = measure::burst(server, options.clock(), prompts, concurrency as usize, options.tokens).await?;
            readings.entry(concurrency).or_default().push(burst.tps);
            read = burst.prompt_tokens;
        }
    }
    Ok(Bursts { readings, prompt_tokens: read })
}

/// Prompts, caches, a prefill beside a stream, a mixed load; and the same from what a prober measures.
async fn beyond_decode(
    options: &Options,
    server: &LlamaServer,
    prompts: &mut Prompts,
    bursts: &Bursts,
    limits: Limits,
    report: &mut Report,
) -> Result<Vec<Value>> {
    let probed = probed(server, limits).await?;
    let mut points = vec![Vec::new(); options.prompts.len()];
    for _ in 0..options.rounds {
        for (place, &words) in options.prompts.iter().enumerate() {
            points[place].push(measure::first_token(server, options.clock(), &prompts.words(words)).await?.0);
        }
    }
    let points: Vec<FirstToken> = points.iter().map(|readings| typical(readings)).collect();
    let curve = bursts.half_curve(limits.slots);
    let mut fitted = fit::fit("half of the points", &curve, &halves(&points).0, limits)?;
    let mut shares = Vec::new();
    for _ in 0..options.rounds {
        shares.push(measure::decode_share_during_prefill(server, prompts, 1_024).await?);
    }
    let share = median(&shares);
    fitted.profile.decode_share_during_prefill = share.max(LEAST_SHARE);
    report.fitted = Some((fitted.clone(), probed.clone(), share));

    let mut rows = report.prompts(&points, &fitted.profile, &probed.profile)?;
    rows.extend(report.caches(options, server, prompts, &fitted.profile).await?);
    rows.extend(report.mixed(options, server, prompts, &fitted, &probed).await?);
    rows.push(json!({
        "point": "profiles", "slots": limits.slots, "fitted": fitted.profile, "probed": probed.profile,
        "unmodelled_ms": fitted.unmodelled_s * 1e3, "decode_share_during_prefill": share,
    }));
    Ok(rows)
}

/// The profile by what a prober measures of this engine: its sweep of concurrency, and its long prompt.
async fn probed(server: &LlamaServer, limits: Limits) -> Result<Fitted> {
    let dir = tempfile::TempDir::with_prefix("weighbridge-calibrate-")?;
    let config = json!({
        "api": {"listen": "127.0.0.1:0"},
        "xds": {"listen": "127.0.0.1:0"},
        "filter": {"wasm": artifacts::wasm()?},
        "store": {"path": "prober.redb"},
        "pools": [{
            "name": MODEL, "models": [MODEL], "admission": {"cap": "measured"},
            "endpoints": [{"id": "llama", "address": server.address().to_string()}],
        }],
    });
    let prober = ProberProcess::start(&config.to_string(), dir.path()).await?;
    eventually("the prober has measured the engine", Duration::from_secs(600), async || {
        let endpoint = prober.endpoint("llama").await?;
        ensure!(endpoint["weight_source"] == "measured", "{endpoint}");
        Ok(())
    })
    .await?;
    let endpoint = prober.endpoint("llama").await?;
    ensure!(endpoint["curve"].is_array(), "the prober has no curve: {}", endpoint["alarm"]);
    prober.terminate().await?;
    let steps = endpoint["curve"].as_array().context("the endpoint has no curve")?;
    let point =
        |step: &Value| Some((u32::try_from(step["concurrency"].as_u64()?).ok()?, step["throughput_tps"].as_f64()?));
    let mut curve = steps.iter().map(point).collect::<Option<Vec<_>>>().context("a step without its figures")?;
    // Beyond its slots an engine takes turns; the profile knows that by itself.
    curve.retain(|(concurrency, _)| *concurrency as usize <= limits.slots);
    let prefill_tps = endpoint["prefill_tps"].as_f64().context("the prober has not measured prefill")?;
    fit::with_prefill("what a prober measures", &curve, prefill_tps, limits)
}

/// Tables, and the errors of the predictions.
#[derive(Default)]
struct Report {
    decode_rows: Vec<Vec<String>>,
    prompt_rows: Vec<Vec<String>>,
    cache_rows: Vec<Vec<String>>,
    mixed_rows: Vec<Vec<String>>,
    /// The fit, the prober's, and the share of decoding that is left during a prefill.
    fitted: Option<(Fitted, Fitted, f64)>,
    /// Errors in percent by what was predicted.
    errors: BTreeMap<&'static str, Vec<f64>>,
}

impl Report {
    fn error(&mut self, of: &'static str, predicted: f64, measured: f64) -> f64 {
        let error = error_percent(predicted, measured);
        self.errors.entry(of).or_default().push(error);
        error
    }

    fn decode(&mut self, options: &Options, slots: usize, bursts: &Bursts, by_half: &Profile) -> Result<Vec<Value>> {
        let mut rows = Vec::new();
        for (&concurrency, readings) in &bursts.readings {
            let (measured, spread) = (median(readings), spread_percent(readings));
            let prompt = bursts.prompt_tokens.round() as u64;
            let predicted = predict::burst(by_half, concurrency as usize, prompt, options.tokens.into())?;
            let known = by_half.curve.iter().any(|(n, _)| *n == concurrency);
            let of = if known { "decode, points of the fit" } else { "decode, other points" };
            let error = self.error(of, predicted, measured);
            self.decode_rows.push(vec![
                format!("{slots} slots, {concurrency} at once{}", if known { " (in the fit)" } else { "" }),
                format!("{measured:.0}"),
                format!("{spread:.0}"),
                format!("{predicted:.0}"),
                format!("{error:+.1}"),
            ]);
            rows.push(json!({
                "point": "decode", "slots": slots, "concurrency": concurrency, "in_fit": known, "readings_tps": readings,
                "measured_tps": measured, "spread_percent": spread, "predicted_tps": predicted, "error_percent": error,
            }));
        }
        Ok(rows)
    }

    fn prompts(&mut self, points: &[FirstToken], fitted: &Profile, probed: &Profile) -> Result<Vec<Value>> {
        let mut rows = Vec::new();
        for (nth, point) in points.iter().enumerate() {
            let known = nth % 2 == 0;
            let predicted = predict::first_token(fitted, point.uncached_tokens, 0)?;
            let by_prober = predict::first_token(probed, point.uncached_tokens, 0)?;
            let of = if known { "TTFT by length, points of the fit" } else { "TTFT by length, other points" };
            let error = self.error(of, predicted, point.seconds);
            let prober_error = self.error("TTFT by length, from a probe", by_prober, point.seconds);
            self.prompt_rows.push(vec![
                format!("{} tokens{}", point.uncached_tokens, if known { " (in the fit)" } else { "" }),
                format!("{:.0}", point.seconds * 1e3),
                format!("{:.0}", predicted * 1e3),
                format!("{error:+.1}"),
                format!("{:.0}", by_prober * 1e3),
                format!("{prober_error:+.1}"),
            ]);
            rows.push(json!({
                "point": "ttft", "prompt_tokens": point.uncached_tokens, "in_fit": known, "measured_ms": point.seconds * 1e3,
                "predicted_ms": predicted * 1e3, "error_percent": error,
                "predicted_from_probe_ms": by_prober * 1e3, "error_from_probe_percent": prober_error,
            }));
        }
        Ok(rows)
    }

    async fn caches(
        &mut self,
        options: &Options,
        server: &LlamaServer,
        prompts: &mut Prompts,
        fitted: &Profile,
    ) -> Result<Vec<Value>> {
        const WORDS: usize = 2_048;
        let percents = [0, 25, 50, 75, 90];
        let mut readings = vec![(Vec::new(), 0); percents.len()];
        for _ in 0..options.rounds {
            for (percent, (points, cached)) in percents.iter().zip(&mut readings) {
                let shared = WORDS * percent / 100;
                let (shared, rest) = (prompts.words(shared), WORDS - shared);
                let (earlier, later) = (prompts.words(rest), prompts.words(rest));
                measure::first_token(server, options.clock(), &format!("{shared}{earlier}")).await?;
                let (point, found) = measure::first_token(server, options.clock(), &format!("{shared}{later}")).await?;
                points.push(point);
                *cached = found;
            }
        }
        let mut rows = Vec::new();
        for (percent, (points, cached)) in percents.iter().zip(&readings) {
            let point = typical(points);
            let predicted = predict::first_token(fitted, point.uncached_tokens + cached, *cached)?;
            let error = self.error("TTFT by cached prefix", predicted, point.seconds);
            self.cache_rows.push(vec![
                format!("{percent} % shared: {cached} of {} tokens cached", point.uncached_tokens + cached),
                format!("{:.0}", point.seconds * 1e3),
                format!("{:.0}", predicted * 1e3),
                format!("{error:+.1}"),
            ]);
            rows.push(json!({
                "point": "cached", "shared_percent": percent, "cached_tokens": cached,
                "prompt_tokens": point.uncached_tokens + cached, "measured_ms": point.seconds * 1e3,
                "predicted_ms": predicted * 1e3, "error_percent": error,
            }));
        }
        Ok(rows)
    }

    async fn mixed(
        &mut self,
        options: &Options,
        server: &LlamaServer,
        prompts: &mut Prompts,
        fitted: &Fitted,
        probed: &Fitted,
    ) -> Result<Vec<Value>> {
        let mut wanted = prompts.arrivals(options.mixed, 1.0, MIXED_PROMPT, MIXED_OUTPUT);
        // One per second so far; so often that the engine is busy for the wanted share of the time.
        let per_second = options.load / work_s(&wanted, &fitted.profile)?;
        wanted.iter_mut().for_each(|arrival| arrival.at_s /= per_second);
        let seen = measure::arrivals(server, prompts, &wanted).await?;
        let (arrivals, measured): (Vec<Arrival>, Vec<Course>) = seen.into_iter().unzip();
        let by_fit = predict::replay(&fitted.profile, &arrivals)?;
        let by_probe = predict::replay(&probed.profile, &arrivals)?;
        let mut rows = Vec::new();
        for (figure, unit, of) in FIGURES {
            let (measured, by_fit, by_probe) = (of(&measured), of(&by_fit), of(&by_probe));
            let error = self.error("mixed load, from the fit", by_fit, measured);
            let probe_error = self.error("mixed load, from a probe", by_probe, measured);
            self.mixed_rows.push(vec![
                format!("{figure} ({unit})"),
                format!("{measured:.0}"),
                format!("{by_fit:.0}"),
                format!("{error:+.1}"),
                format!("{by_probe:.0}"),
                format!("{probe_error:+.1}"),
            ]);
            rows.push(json!({
                "point": "mixed", "figure": figure, "unit": unit, "per_second": per_second, "requests": arrivals.len(),
                "measured": measured, "predicted": by_fit, "error_percent": error,
                "predicted_from_probe": by_probe, "error_from_probe_percent": probe_error,
            }));
        }
        Ok(rows)
    }

    fn print(&self, options: &Options) {
        println!(
            "llama.cpp, {} thread(s), {} tokens a request; the median of {} readings, `spread` is (highest - lowest) / median. \
             Bursts and prompts by {}; the mixed load by the wall clock.",
            options.threads,
            options.tokens,
            options.rounds,
            if options.cpu_clock { "the engine's CPU time" } else { "the wall clock" }
        );
        println!("\nDecoding (tok/s)");
        output::table(&["", "measured", "spread %", "predicted", "error %"], &self.decode_rows);
        println!("\nTime to the first token by length of prompt (ms)");
        let columns = ["", "measured", "predicted", "error %", "from a probe", "error %"];
        output::table(&columns, &self.prompt_rows);
        println!("\nTime to the first token by cached prefix (ms)");
        output::table(&["", "measured", "predicted", "error %"], &self.cache_rows);
        println!(
            "\nA mixed load of {} requests at {:.0} % of what the fitted engine can do",
            options.mixed,
            options.load * 100.0
        );
        output::table(&columns, &self.mixed_rows);
        if let Some((fitted, probed, share)) = &self.fitted {
            println!(
                "\nPrefill: {:.0} tok/s by the fit at the beginning of a prompt{}; {:.0} by a probe, on average over its long prompt. {:.0} ms before a first token have no place in the model. \
                 While a prompt is read, a stream beside it gets {:.0} % of its speed.",
                fitted.profile.prefill_tps,
                match fitted.profile.prefill_doubles_at_tokens {
                    0.0 => String::new(),
                    tokens => format!(", half of that after {tokens:.0} tokens"),
                },
                probed.profile.prefill_tps,
                fitted.unmodelled_s * 1e3,
                share * 100.0
            );
        }
        println!("\nErrors of the predictions (%)");
        let rows: Vec<Vec<String>> = self
            .errors
            .iter()
            .map(|(of, errors)| {
                let sizes: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
                let worst = errors.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(0.0);
                vec![
                    (*of).to_owned(),
                    errors.len().to_string(),
                    format!("{:.1}", median(&sizes)),
                    format!("{worst:+.1}"),
                ]
            })
            .collect();
        output::table(&["", "points", "median size", "largest"], &rows);
    }
}

type Figure = (&'static str, &'static str, fn(&[Course]) -> f64);
/// What is compared of the mixed load.
const FIGURES: [Figure; 6] = [
    ("TTFT p50", "ms", |courses| quantile(&ttft_ms(courses), 0.5)),
    ("TTFT p90", "ms", |courses| quantile(&ttft_ms(courses), 0.9)),
    ("TPOT p50", "ms", |courses| quantile(&tpot_ms(courses), 0.5)),
    ("TPOT p90", "ms", |courses| quantile(&tpot_ms(courses), 0.9)),
    ("end to end p50", "ms", |courses| quantile(&end_ms(courses), 0.5)),
    ("end to end p90", "ms", |courses| quantile(&end_ms(courses), 0.9)),
];

fn ttft_ms(courses: &[Course]) -> Vec<f64> {
    courses.iter().map(|course| course.ttft_s * 1e3).collect()
}

fn tpot_ms(courses: &[Course]) -> Vec<f64> {
    courses.iter().filter_map(|course| Some(course.tpot_s()? * 1e3)).collect()
}

fn end_ms(courses: &[Course]) -> Vec<f64> {
    courses.iter().map(|course| course.end_s * 1e3).collect()
}

/// Seconds that the engine has work for with one request, when it is always full: its share of all that must be read and
/// generated.
fn work_s(arrivals: &[Arrival], profile: &Profile) -> Result<f64> {
    let best_tps = profile.curve.iter().map(|(_, tps)| *tps).fold(0.0, f64::max);
    ensure!(best_tps > 0.0 && profile.prefill_tps > 0.0, "the fitted engine takes no time: {profile:?}");
    let prefill = arrivals.iter().map(|arrival| profile.prefill_s(0, arrival.prompt_tokens)).sum::<f64>();
    let decode = arrivals.iter().map(|arrival| arrival.output_tokens).sum::<u64>() as f64 / best_tps;
    Ok((prefill + decode) / arrivals.len() as f64)
}

/// The reading in the middle.
fn typical(readings: &[FirstToken]) -> FirstToken {
    let seconds: Vec<f64> = readings.iter().map(|reading| reading.seconds).collect();
    let uncached_tokens = readings.iter().map(|reading| reading.uncached_tokens).max().unwrap_or(0);
    FirstToken { uncached_tokens, seconds: median(&seconds) }
}

fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

fn spread_percent(values: &[f64]) -> f64 {
    let (least, most) = values.iter().fold((f64::MAX, 0.0_f64), |(least, most), v| (least.min(*v), most.max(*v)));
    if values.is_empty() { 0.0 } else { (most - least) / median(values) * 100.0 }
}
