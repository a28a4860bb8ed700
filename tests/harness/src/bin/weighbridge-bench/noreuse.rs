//! Prompts that have nothing in common, at Poisson times: affinity has nothing to give here, and must cost nothing.

use anyhow::Result;
use harness::workload::{Fleet, Policy, SinglesOptions, run_singles, singles};

use crate::multiturn::{COLUMNS, cells, row};
use crate::output;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Requests per run.
    #[arg(long, default_value_t = 600)]
    requests: usize,
    /// Arrivals per second.
    #[arg(long, default_value_t = 10.0)]
    rate: f64,
    /// How much faster than the wall clock the engines' time runs.
    #[arg(long, default_value_t = 2.0)]
    scale: f64,
    /// Runs with different seeds, so that the noise can be seen.
    #[arg(long, default_value_t = 3)]
    seeds: u64,
}

pub(crate) async fn run(options: &Options) -> Result<()> {
    let (mut rows, mut results) = (Vec::new(), Vec::new());
    for seed in 1..=options.seeds {
        let workload =
            SinglesOptions { requests: options.requests, per_second: options.rate, seed, ..SinglesOptions::default() };
        let singles = singles(&workload);
        // In turn, so that a noisy machine hurts both alike.
        let mut policies = [Policy::Affinity, Policy::NoAffinity];
        policies.rotate_left((seed % 2) as usize);
        for policy in policies {
            let fleet = Fleet::start(policy, options.scale).await?;
            let figures = run_singles(&fleet, &singles).await?;
            rows.push(cells(&format!("{} (seed {seed})", policy.as_str()), &figures));
            results.push(row(policy, seed, &figures)?);
        }
    }
    println!(
        "{} prompts of 100 to 4,000 tokens, {} per second. Seconds of the engines' time.",
        options.requests, options.rate
    );
    output::table(&COLUMNS, &rows);
    output::result("noreuse", &results);
    Ok(())
}
