//! All endpoints are killed under load, and return one by one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::chaos::{End, Ledger, Line, Traffic, TrafficOptions};
use serde_json::json;
use tokio::time::sleep;

use super::set::{ENGINES, POOL, even, stage};
use crate::output;

#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Clients.
    #[arg(long, default_value_t = 16)]
    clients: usize,
    /// How long all are dead, in seconds.
    #[arg(long, value_delimiter = ',', default_values_t = [3, 10, 30])]
    dead: Vec<u64>,
}

pub(super) async fn run(options: &Options) -> Result<()> {
    let (mut rows, mut results, mut slow) = (Vec::new(), Vec::new(), 0);
    for dead in &options.dead {
        let mut stage = stage(even(100.0)).await?;
        let ledger = Arc::new(Ledger::default());
        let (patience, tokens) = (Duration::from_secs(60), (10, 30));
        let load = TrafficOptions { clients: options.clients, tokens, patience, streams_only: false, seed: 1 };
        let traffic = Traffic::start(stage.gateway, &[POOL], load, Arc::clone(&ledger));
        sleep(Duration::from_secs(5)).await;
        let before: Vec<Line> = ledger.take();
        let killed = Instant::now();
        for name in ENGINES {
            stage.engine(name)?.process.kill().await?;
        }
        let all_dead = Instant::now();
        sleep(Duration::from_secs(*dead)).await;
        let mut first_healthy = None;
        for name in ENGINES {
            stage.engine(name)?.process.restart().await?;
            first_healthy.get_or_insert_with(Instant::now);
            sleep(Duration::from_secs(2)).await;
        }
        let first_healthy = first_healthy.unwrap_or(all_dead);
        stage.all_ready().await?;
        let all_back = Instant::now();
        sleep(Duration::from_secs(5)).await;
        traffic.end().await;
        let lines = ledger.take();
        let first_success = lines
            .iter()
            .filter(|line| line.end == End::Served && line.ended() > first_healthy)
            .filter_map(|line| (line.ended() - line.took + line.ttft?).checked_duration_since(first_healthy))
            .min();
        let mut down: BTreeMap<End, usize> = BTreeMap::new();
        let meanwhile = |line: &&Line| line.begun >= killed && line.begun < first_healthy;
        lines.iter().filter(meanwhile).for_each(|line| *down.entry(line.end).or_default() += 1);
        let late = lines.iter().filter(|line| !line.is_good() && line.begun > all_back).count();
        let example = lines.iter().find(|line| line.end == End::GatewaysError).map_or("", |line| line.why.as_str());
        println!("while down, for example: {example}");
        let seconds = first_success.map_or(f64::NAN, |time| time.as_secs_f64());
        slow += usize::from(first_success.is_none_or(|time| time > Duration::from_secs(2)));
        rows.push(vec![
            format!("{dead} s"),
            before.iter().filter(|line| line.is_good()).count().to_string(),
            format!("{down:?}"),
            format!("{seconds:.2}"),
            late.to_string(),
        ]);
        results.push(json!({"dead_s": dead, "first_success_s": seconds, "failed_after_all_back": late,
            "down": format!("{down:?}")}));
    }
    println!("All of four endpoints killed under {} clients; one returns every 2 s.", options.clients);
    let columns = [
        "dead for",
        "served before",
        "ends meanwhile",
        "first success after the first healthy s",
        "failed when all are back",
    ];
    output::table(&columns, &rows);
    output::result("chaos all-dead", &results);
    ensure!(slow == 0, "{slow} times the first success took more than 2 s");
    Ok(())
}
