//! How many conversations the holder index remembers.

use clap::Args;
use fleet_sim::fleet::{Fleet, Overrides};
use fleet_sim::index::recall;
use fleet_sim::policy::Tuning;

/// How many conversations the holder index remembers.
#[derive(Debug, Args)]
pub(crate) struct Index {
    /// Conversations.
    #[arg(long, value_delimiter = ',', default_value = "1000,5000,10000,20000,40000,80000")]
    conversations: Vec<u64>,
    /// Checkpoints that each grows to.
    #[arg(long, value_delimiter = ',', default_value = "4,8,16,40")]
    checkpoints: Vec<u64>,
}

impl Index {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let pool = Fleet::parse("980,479,240,240", Overrides::default())?.pool(&Tuning::default(), &[])?;
        println!("conversations  checkpoints   found whole   in part    lost   wrong   index KiB");
        for &count in &self.conversations {
            for &each in &self.checkpoints {
                let found = recall(&pool, count, each);
                let share = |part: u64| 100.0 * part as f64 / found.asked.max(1) as f64;
                println!(
                    "{count:>13} {each:>12} {:>12.1} % {:>7.1} % {:>5.1} % {:>7} {:>11}",
                    share(found.found),
                    share(found.partly),
                    share(found.asked - found.found - found.partly),
                    found.wrong,
                    found.bytes / 1024,
                );
            }
        }
        Ok(())
    }
}
