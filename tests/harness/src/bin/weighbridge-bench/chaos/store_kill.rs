//! The prober is killed (`kill -9`) at random moments while pins are written, and its store file is damaged.

use std::time::Instant;

use anyhow::{Result, ensure};
use harness::chaos::store_kill::{damage_store, kill_while_pinning};
use serde_json::json;

use crate::output;

#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Kills.
    #[arg(long, default_value_t = 200)]
    kills: usize,
    /// Damaged files.
    #[arg(long, default_value_t = 60)]
    damages: usize,
    /// Of everything random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(super) async fn run(options: &Options) -> Result<()> {
    let start = Instant::now();
    let counts = kill_while_pinning(options.kills, options.seed).await?;
    println!(
        "The prober was killed {} times in {:.0} s while pins were written: {} changes acknowledged, {} starts at which one was \
         missing; {} that had not been acknowledged yet were there.",
        counts.kills,
        start.elapsed().as_secs_f64(),
        counts.acknowledged,
        counts.lost,
        counts.there_unasked
    );
    let damages = damage_store(options.damages, options.seed).await?;
    println!(
        "{} store files were damaged (cut short, 1 bit flipped, 2,000 bits flipped): the prober started every time; {} were put \
         aside and said to be, {} were whole where it counts, {} lost something without a word.",
        damages.damaged, damages.put_aside, damages.whole, damages.silent
    );
    output::result(
        "chaos store-kill",
        &[json!({
            "kills": counts.kills, "acknowledged": counts.acknowledged, "lost": counts.lost,
            "damaged": damages.damaged, "put_aside": damages.put_aside, "whole": damages.whole, "silent": damages.silent,
        })],
    );
    ensure!(counts.lost == 0 && damages.silent == 0, "something was lost without a word");
    Ok(())
}
