//! Growing conversations on an unequal fleet: how much of the prompts the engines had already. `scripts/bench multiturn` is the
//! same at full size, and prints times as well.

use harness::workload::{Figures, Fleet, Policy, TalksOptions, run_talks, talks};

#[tokio::test(flavor = "multi_thread")]
async fn affinity_comes_near_the_ideal_hit_rate() {
    let options = TalksOptions {
        conversations: 12,
        turns: 5,
        first_tokens: (600, 1_200),
        later_tokens: (100, 300),
        output_tokens: 60.0,
        think_s: 1.0,
        start_within_s: 4.0,
        ..TalksOptions::default()
    };
    let talks = talks(&options);
    let run = async |policy: Policy| -> Figures {
        let fleet = Fleet::start(policy, 3.0).await.unwrap();
        let figures = run_talks(&fleet, &talks).await.unwrap();
        assert_eq!(figures.requests, 60);
        // What the answers say is what the engines counted.
        assert!((figures.hit_rate - fleet.hit_rate()).abs() < 0.02, "{} and {}", figures.hit_rate, fleet.hit_rate());
        println!("{}: hit rate {:.3}, shares {:.2?}", policy.as_str(), figures.hit_rate, figures.shares);
        figures
    };
    let (with, without, ideal) = (
        run(Policy::Affinity).await.hit_rate,
        run(Policy::NoAffinity).await.hit_rate,
        run(Policy::Pinned).await.hit_rate,
    );
    assert!(with > ideal - 0.10, "{with} with affinity, {ideal} at best");
    assert!(with > without + 0.05, "{with} with affinity, {without} without");
}
