//! Growing conversations on an unequal fleet, under each policy: how much of the prompts the engines had already, and how
//! long the first token took.

use anyhow::Result;
use harness::workload::{Figures, Fleet, Policy, TalksOptions, run_talks, talks};
use serde_json::{Value, json};

use crate::output;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Conversations.
    #[arg(long, default_value_t = 40)]
    conversations: usize,
    /// Turns of each.
    #[arg(long, default_value_t = 8)]
    turns: usize,
    /// How much faster than the wall clock the engines' time runs.
    #[arg(long, default_value_t = 2.0)]
    scale: f64,
    /// Runs with different seeds; the figures are of all of them together in turn.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Mean time that a user thinks, in seconds.
    #[arg(long, default_value_t = 2.0)]
    think: f64,
}

pub(crate) async fn run(options: &Options) -> Result<()> {
    let (mut rows, mut results) = (Vec::new(), Vec::new());
    for seed in 1..=options.seeds {
        let workload = TalksOptions {
            conversations: options.conversations,
            turns: options.turns,
            think_s: options.think,
            seed,
            ..TalksOptions::default()
        };
        let talks = talks(&workload);
        for policy in Policy::ALL {
            let fleet = Fleet::start(policy, options.scale).await?;
            let figures = run_talks(&fleet, &talks).await?;
            eprintln!(
                "{}: {:.0} s, hit rate by the engines' counters {:.3}",
                policy.as_str(),
                figures.elapsed_s,
                fleet.hit_rate()
            );
            rows.push(cells(&format!("{} (seed {seed})", policy.as_str()), &figures));
            results.push(row(policy, seed, &figures)?);
        }
    }
    println!(
        "{} conversations x {} turns; engines of 980, 479, 240 and 240 tok/s at 16; half of the conversations begin with one \
         of two system prompts. Seconds of the engines' time.",
        options.conversations, options.turns
    );
    output::table(&COLUMNS, &rows);
    output::result("multiturn", &results);
    Ok(())
}

pub(crate) const COLUMNS: [&str; 9] =
    ["policy", "hit rate", "TTFT p50", "p95", "p99", "TPOT p50 (ms)", "p99", "end p99", "shares"];

pub(crate) fn cells(label: &str, figures: &Figures) -> Vec<String> {
    let shares: Vec<String> =
        figures.shares.iter().map(|(name, share)| format!("{name} {:.0}%", share * 100.0)).collect();
    vec![
        label.to_owned(),
        format!("{:.3}", figures.hit_rate),
        format!("{:.2}", figures.ttft_p50_s),
        format!("{:.2}", figures.ttft_p95_s),
        format!("{:.2}", figures.ttft_p99_s),
        format!("{:.0}", figures.tpot_p50_ms),
        format!("{:.0}", figures.tpot_p99_ms),
        format!("{:.1}", figures.end_p99_s),
        shares.join(" "),
    ]
}

pub(crate) fn row(policy: Policy, seed: u64, figures: &Figures) -> Result<Value> {
    let mut value = serde_json::to_value(figures)?;
    value["policy"] = json!(policy.as_str());
    value["seed"] = json!(seed);
    Ok(value)
}
