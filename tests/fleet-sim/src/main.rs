//! Prints the experiment of the design: four endpoints of weights 8, 1, 1, 1 at several loads, two choices drawn by
//! weight against drawn uniformly.

use engine_sim::model::Profile;
use fleet_sim::{Run, quantile, run, scaled};
use weighbridge_routing::policy::Draw;

fn main() -> anyhow::Result<()> {
    println!("weights 8 1 1 1, choices 2, Poisson arrivals, 40,000 requests of 64 output tokens on average");
    println!("load  draw        TPOT p50   p99 ms   TTFT p50   p99 ms   served by each");
    for load in [0.15, 0.3, 0.5, 0.7] {
        for draw in [Draw::ByWeight, Draw::Uniformly] {
            let outcome = run(&Run {
                weights: vec![8.0, 1.0, 1.0, 1.0],
                base: scaled(&Profile::small(), 0.5),
                load,
                choices: 2,
                draw,
                requests: 40_000,
                seed: 1,
            })?;
            println!(
                "{load:.2}  {:<10} {:>8.1} {:>8.1} {:>10.0} {:>8.0}   {:?}",
                format!("{draw:?}"),
                quantile(&outcome.tpot_ms, 0.5),
                quantile(&outcome.tpot_ms, 0.99),
                quantile(&outcome.ttft_ms, 0.5),
                quantile(&outcome.ttft_ms, 0.99),
                outcome.served
            );
        }
    }
    Ok(())
}
