//! A sick endpoint among four: how much of the traffic it gets, second by second.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::ValueEnum;
use harness::chaos::{End, Ledger, Line, Traffic, TrafficOptions};
use harness::engine_sim::server::Fault;
use serde_json::json;
use tokio::time::sleep;

use super::set::{POOL, even, logged, quantile_ms, stage, unix_ms};
use crate::output;

#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Clients.
    #[arg(long, default_value_t = 32)]
    clients: usize,
    /// Seconds of health before, of sickness, and of health after.
    #[arg(long, value_delimiter = ',', default_values_t = [5, 25, 20])]
    seconds: Vec<u64>,
    /// A client gives up after so many seconds.
    #[arg(long, default_value_t = 10)]
    patience: u64,
    /// Only these.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Sick>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sick {
    /// Accepts and never answers; /health says all is well.
    Hangs,
    /// Answers 500 at once.
    Fails,
    /// 20 times as slow.
    Slow,
    /// Frozen (SIGSTOP): nothing answers, /health neither.
    Frozen,
}

pub(super) async fn run(options: &Options) -> Result<()> {
    let [before, during, after] = options.seconds[..] else {
        bail!("--seconds: {} numbers, expected 3: before, during, after", options.seconds.len());
    };
    let mut results = Vec::new();
    for (sick, words) in [
        (Sick::Hangs, "accepts and never answers, /health does"),
        (Sick::Frozen, "is frozen: nothing answers"),
        (Sick::Fails, "answers 500 at once"),
        (Sick::Slow, "is 20 times as slow"),
    ] {
        if !options.only.is_empty() && !options.only.contains(&sick) {
            continue;
        }
        let mut stage = stage(even(100.0)).await?;
        let ledger = Arc::new(Ledger::default());
        let patience = Duration::from_secs(options.patience);
        let load = TrafficOptions { clients: options.clients, tokens: (10, 40), patience, streams_only: true, seed: 1 };
        let begun_ms = unix_ms();
        let traffic = Traffic::start(stage.gateway, &[POOL], load, Arc::clone(&ledger));
        sleep(Duration::from_secs(before)).await;
        let patient = &stage.engine("a")?.process;
        match sick {
            Sick::Hangs => patient.set_fault(&Fault::hang()).await?,
            Sick::Fails => patient.set_fault(&Fault::status(500)).await?,
            Sick::Slow => patient.set_fault(&Fault::slow(20.0)).await?,
            Sick::Frozen => patient.freeze().await?,
        }
        let sick_ms = unix_ms() - begun_ms;
        sleep(Duration::from_secs(during)).await;
        match sick {
            Sick::Frozen => patient.thaw().await?,
            _ => patient.set_fault(&Fault::none()).await?,
        }
        let well_ms = unix_ms() - begun_ms;
        sleep(Duration::from_secs(after)).await;
        traffic.end().await;
        let lines = ledger.take();
        let log = logged(&stage, &lines).await?;
        let mut seconds: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
        for one in log.values() {
            let second = seconds.entry(one.sent_ms().saturating_sub(begun_ms) / 1_000).or_default();
            second.0 += usize::from(one.picked == "a");
            second.1 += 1;
        }
        let there = log
            .values()
            .filter(|one| one.picked == "a" && (sick_ms..well_ms).contains(&one.sent_ms().saturating_sub(begun_ms)))
            .count();
        let failed: Vec<&Line> = lines.iter().filter(|line| !line.is_good()).collect();
        let others = lines.iter().filter(|line| line.end == End::Served && line.engine != "a");
        println!("\n{words}, from {:.1} s to {:.1} s", sick_ms as f64 / 1e3, well_ms as f64 / 1e3);
        let share: Vec<String> =
            seconds.values().map(|(there, all)| format!("{:.0}", 100.0 * *there as f64 / *all as f64)).collect();
        println!("share of the traffic, % per second: {}", share.join(" "));
        println!(
            "requests per second:                {}",
            seconds.values().map(|(_, all)| all.to_string()).collect::<Vec<_>>().join(" ")
        );
        let mut ends: BTreeMap<End, usize> = BTreeMap::new();
        failed.iter().for_each(|line| *ends.entry(line.end).or_default() += 1);
        let p99 = quantile_ms(others.filter_map(|line| line.ttft), 0.99);
        println!(
            "{there} were sent there while it was sick; {} of {} failed: {ends:?}; TTFT p99 of the others {p99:.0} ms",
            failed.len(),
            lines.len()
        );
        let retried = log.values().filter(|one| one.attempts > 1).count();
        println!("{retried} were tried more than once");
        results.push(json!({
            "what": words, "sick_ms": sick_ms, "well_ms": well_ms, "sent_there": there, "requests": lines.len(),
            "failed": failed.len(), "failed_how": format!("{ends:?}"), "retried": retried, "ttft_p99_others_ms": p99,
            "per_second": seconds.values().collect::<Vec<_>>(),
        }));
    }
    output::result("chaos sick", &results);
    Ok(())
}
