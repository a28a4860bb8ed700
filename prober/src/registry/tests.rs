//! The rules of the registry.

mod caps;
mod health;
mod leaving;

use weighbridge_routing::snapshot::wire::State;
use weighbridge_routing::weight::Weight;

use super::*;
use crate::engine::{EngineError, Loss};
use crate::exchange::averages;
use weighbridge_routing::exchange::Averages;

fn registry(ids: &[&str]) -> Registry {
    let config = config::Config::parse("pools: [{name: p, models: [m]}]").unwrap();
    let mut registry = Registry::new(&config, Memory::default());
    for id in ids {
        add(&mut registry, id, "args");
    }
    registry
}

fn add(registry: &mut Registry, id: &str, args: &str) -> Registered {
    // Each at its own: the ids of these tests are one letter.
    let address = std::net::SocketAddr::from(([10, 0, 1, id.as_bytes()[0]], 80));
    let written = config::Endpoint {
        reach: config::Reach::default(),
        id: id.into(),
        address: address.to_string(),
        node: id.into(),
        launch_args: Some(args.into()),
        context_window: None,
        max_in_flight: None,
    };
    let registered = registry.register("p", written, address, Origin::Api).unwrap();
    registry.get_mut(id).unwrap().health.checked = true;
    registered
}

fn probed(registry: &mut Registry, id: &str, tps: Option<f64>, at_ms: u64) {
    let error = tps.is_none().then(|| "no".to_owned());
    let kind = ProbeKind::Registration;
    let subject = registry.subject(id).unwrap();
    registry.probed(id, &subject, ProbeRecord { throughput_tps: tps, error, ..ProbeRecord::empty(kind, at_ms) }, None);
}

fn seen(registry: &Registry, id: &str) -> (f64, WeightSource, State) {
    let verdict = registry.verdicts()[id];
    (verdict.weight.get(), verdict.source, verdict.state)
}

#[test]
fn a_new_endpoint_waits_for_its_probe_unless_nobody_is_measured() {
    let mut registry = registry(&["a"]);
    assert_eq!(seen(&registry, "a"), (1.0, WeightSource::Default, State::Ready));
    probed(&mut registry, "a", Some(980.0), 1);
    add(&mut registry, "b", "args");
    assert_eq!(seen(&registry, "b").2, State::New);
    registry.get_mut("b").unwrap().burst = Some(Burst::begin(ProbeKind::Interval, false, 0));
    probed(&mut registry, "b", Some(479.0), 2);
    assert_eq!(seen(&registry, "a"), (1.34, WeightSource::Measured, State::Ready));
    assert_eq!(seen(&registry, "b"), (0.66, WeightSource::Measured, State::Ready));
}

// A prober beside a fleet that serves already: the first result does not close all the others.
#[test]
fn those_who_were_there_before_anybody_was_measured_go_on_serving() {
    let mut registry = registry(&["a", "b", "c"]);
    for id in ["a", "b", "c"] {
        registry.identified(id, Identity::default(), 1_000, 1);
    }
    registry.get_mut("a").unwrap().burst = Some(Burst::begin(ProbeKind::Registration, false, 0));
    assert_eq!(["a", "b", "c"].map(|id| seen(&registry, id).2), [State::Probing, State::Ready, State::Ready]);
    probed(&mut registry, "a", Some(980.0), 2);
    assert_eq!(["a", "b", "c"].map(|id| seen(&registry, id).2), [State::Ready; 3]);
    assert_eq!(seen(&registry, "b").1, WeightSource::Default);
    // One that turns out to be another engine meanwhile has not served before.
    let other = Identity { fingerprint: "other".into(), ..Identity::default() };
    registry.identified("c", other, 1_000, 3);
    assert_eq!(["b", "c"].map(|id| seen(&registry, id).2), [State::Ready, State::New]);
}

#[test]
fn alone_in_its_pool_it_serves_while_it_is_probed() {
    let mut registry = registry(&["a"]);
    registry.get_mut("a").unwrap().burst = Some(Burst::begin(ProbeKind::Interval, false, 0));
    assert_eq!(seen(&registry, "a").2, State::Ready);
}

// The only stand-in of a measured endpoint is one that nobody has measured, or has not been seen to live.
#[test]
fn an_endpoint_without_a_sound_stand_in_serves_while_it_is_probed() {
    let mut registry = registry(&["a"]);
    probed(&mut registry, "a", Some(980.0), 1);
    add(&mut registry, "b", "args");
    registry.get_mut("a").unwrap().burst = Some(Burst::begin(ProbeKind::Interval, false, 0));
    assert_eq!((seen(&registry, "a").2, seen(&registry, "b").2), (State::Ready, State::New));
    probed(&mut registry, "b", Some(479.0), 2);
    assert_eq!(seen(&registry, "a").2, State::Probing);
    registry.get_mut("b").unwrap().health.checked = false;
    assert_eq!(seen(&registry, "a").2, State::Ready);
}

#[test]
fn a_long_prompt_that_failed_does_not_take_away_the_prefill_speed() {
    let mut registry = registry(&["a"]);
    let subject = registry.subject("a").unwrap();
    let mut probed = |prefill_tps: Option<f64>, error: Option<&str>, at_ms| {
        let record = ProbeRecord {
            throughput_tps: Some(980.0),
            prefill_tps,
            prefill_error: error.map(str::to_owned),
            ..ProbeRecord::empty(ProbeKind::Interval, at_ms)
        };
        registry.probed("a", &subject, record, None).unwrap().kept.unwrap().measurement.prefill_tps
    };
    assert_eq!(probed(Some(6_000.0), None, 1), Some(6_000.0));
    assert_eq!(probed(None, Some("no answer within 60s"), 2), Some(6_000.0));
    // Not asked for any more.
    assert_eq!(probed(None, None, 3), None);
}

#[test]
fn the_requests_of_a_probe_are_nobody_elses() {
    for (under_burst, outside) in [(false, 16), (true, 0)] {
        let mut registry = registry(&["a"]);
        registry.get_mut("a").unwrap().burst = under_burst.then(|| Burst::begin(ProbeKind::Interval, false, 0));
        for tick in 1..=8 {
            registry.scraped("a", Ok(crate::engine::Signals { running: Some(16), ..Default::default() }), tick * 250);
        }
        assert_eq!(registry.exchange.outside("a", 2_000), outside, "under a burst: {under_burst}");
    }
}

#[test]
fn the_requests_of_a_probe_are_no_others_of_any_pool_at_the_engine() {
    let config = config::Config::parse("pools: [{name: p, models: [m]}, {name: q, models: [lora]}]").unwrap();
    let mut registry = Registry::new(&config, Memory::default());
    add(&mut registry, "b", "args");
    let (address, written) = {
        let b = registry.get("b").unwrap();
        (b.address, config::Endpoint { id: "a".into(), ..b.written.clone() })
    };
    registry.register("q", written, address, Origin::Api).unwrap();
    let mut burst = Burst::begin(ProbeKind::Interval, false, 0);
    registry.get_mut("b").unwrap().burst = Some(burst);
    assert_eq!(outside_after(&mut registry, 5, 0), 5, "it waits until they are done");
    burst.take(Step::Begins(Phase::Kept, 16), 0);
    registry.get_mut("b").unwrap().burst = Some(burst);
    assert_eq!(outside_after(&mut registry, 16, 500), 0, "while it runs");
    probed(&mut registry, "b", Some(980.0), 1_000);
    assert_eq!(outside_after(&mut registry, 16, 1_250), 0, "by a gauge that trails it");
    assert_eq!(outside_after(&mut registry, 19, 32_000), 19);
}

#[test]
fn two_processes_behind_one_address_are_not_a_restart_with_each_scrape() {
    let mut registry = registry(&["a"]);
    let mut restarts = |seconds: f64, times: u64| {
        let told = Signals { started_s: Some(seconds), ..Signals::default() };
        (0..times).filter(|tick| registry.scraped("a", Ok(told.clone()), *tick).restarted).count()
    };
    assert_eq!(restarts(100.0, 1), 1, "the first that is known");
    assert_eq!((0..50).map(|_| restarts(200.0, 1) + restarts(100.0, 1)).sum::<usize>(), 1);
    assert_eq!(restarts(200.0, 3), 0);
    // A clock that was set back, and nobody else there: it is another life after all.
    assert_eq!((restarts(100.0, 19), restarts(100.0, 5)), (0, 1));
    assert_eq!(restarts(300.0, 1), 1);
}

#[test]
fn another_address_is_another_life_whenever_the_process_there_began() {
    let mut registry = registry(&["a"]);
    let told = |seconds: f64| Ok(Signals { started_s: Some(seconds), ..Signals::default() });
    registry.scraped("a", told(200.0), 1);
    let (subject, before) = (registry.subject("a").unwrap(), registry.get("a").unwrap().epoch.value);
    let written = registry.get("a").unwrap().written.clone();
    registry.register("p", written, "10.0.9.9:80".parse().unwrap(), Origin::Api).unwrap();
    assert_ne!(registry.get("a").unwrap().epoch.value, before);
    assert!(registry.scraped("a", told(100.0), 2).restarted);
    // What was measured at the old one is not of this one, though it is called the same.
    let record = ProbeRecord { throughput_tps: Some(980.0), ..ProbeRecord::empty(ProbeKind::Interval, 3) };
    let told = registry.probed("a", &subject, record, None).unwrap();
    assert_eq!((told.history.key, told.record.throughput_tps), (None, None));
}

#[test]
fn what_is_stored_of_one_that_is_removed_goes_before_it_does() {
    let mut registry = registry(&["a"]);
    let pin = Pin { weight: Weight::try_new(7.0).unwrap(), reason: String::new(), at_ms: 1 };
    registry.learn("a", News::Pin(Some(pin.clone())), 1);
    registry.get_mut("a").unwrap().remove("removed at another prober", std::time::Duration::from_secs(60), 2);
    registry.learn("a", News::Pin(None), 2);
    assert_eq!(registry.get("a").unwrap().pin, Some(pin), "it may register again before it is forgotten");
    registry.get_mut("a").unwrap().stay();
    registry.learn("a", News::Pin(None), 3);
    assert_eq!(registry.get("a").unwrap().pin, None);
}

#[test]
fn an_engine_that_does_not_say_what_it_is_is_an_alarm() {
    let mut registry = registry(&["a"]);
    registry.unidentified("a", &EngineError::Http("/v1/models: more than 4 MiB".into()));
    let alarm = |registry: &Registry| registry.get("a").unwrap().alarm_line();
    assert!(alarm(&registry).unwrap().ends_with("does not say what it runs: /v1/models: more than 4 MiB"));
    registry.identified("a", Identity::default(), 1_000, 1);
    assert_eq!(alarm(&registry), None);
}

/// Three scrapes of a gauge, and what follows from them for `a`.
fn outside_after(registry: &mut Registry, running: u64, from_ms: u64) -> u32 {
    for at_ms in [from_ms, from_ms + 250, from_ms + 500] {
        registry.scraped("a", Ok(crate::engine::Signals { running: Some(running), ..Default::default() }), at_ms);
    }
    registry.exchange.outside("a", from_ms + 500)
}

#[test]
fn a_gauge_that_trails_a_probe_shows_nobody_elses_requests() {
    for elsewhere in [false, true] {
        let mut registry = registry(&["a"]);
        if elsewhere {
            registry.follow(Some(7));
            registry.learn("a", News::Probing(Some(Mark { fence: 7, burst: 1 })), 0);
        } else {
            let mut burst = Burst::begin(ProbeKind::Interval, false, 0);
            burst.take(Step::Begins(Phase::Kept, 16), 0);
            burst.take(Step::Begins(Phase::Prefill, 1), 400);
            registry.get_mut("a").unwrap().burst = Some(burst);
        }
        assert_eq!(outside_after(&mut registry, 16, 500), 0);
        if elsewhere {
            registry.learn("a", News::Probing(None), 1_000);
        } else {
            probed(&mut registry, "a", Some(980.0), 1_000);
        }
        assert_eq!(outside_after(&mut registry, 16, 1_250), 0, "elsewhere: {elsewhere}");
        assert_eq!(outside_after(&mut registry, 16, 31_250), 0, "elsewhere: {elsewhere}");
        // What it says now is of after the probe.
        assert_eq!(outside_after(&mut registry, 19, 32_000), 19);
    }
}

#[test]
fn a_burst_elsewhere_that_no_scrape_has_seen_is_known_all_the_same() {
    let mark = |mark: Option<u64>| News::Probing(mark.map(|fence| Mark { fence, burst: 1 }));
    for by_mark in [true, false] {
        let mut registry = registry(&["a"]);
        registry.follow(Some(7));
        registry.learn("a", mark(Some(7)), 0);
        if by_mark {
            registry.learn("a", mark(None), 900);
        } else {
            registry.follow(Some(8));
        }
        assert_eq!(outside_after(&mut registry, 16, 1_000), 0, "by mark: {by_mark}");
    }
}

#[test]
fn another_start_that_another_prober_has_read_first_is_a_restart_here_too() {
    let started = |seconds: f64| Ok(Signals { started_s: Some(seconds), ..Signals::default() });
    let (mut here, mut there) = (registry(&["a"]), registry(&["a"]));
    for registry in [&mut here, &mut there] {
        registry.scraped("a", started(100.0), 1);
        registry.identified("a", Identity::default(), 1_000, 1);
        probed(registry, "a", Some(980.0), 1);
    }
    there.scraped("a", started(200.0), 5_000);
    let epoch = there.get("a").unwrap().epoch;
    here.learn("a", News::Epoch(Some(epoch)), 5_100);
    assert!(!here.scraped("a", started(200.0), 5_200).restarted, "known");
    here.identified("a", Identity::default(), 1_000, 5_200);
    assert_eq!((here.get("a").unwrap().epoch, here.get("a").unwrap().registered), (epoch, false), "measured anew");
}

#[test]
fn averages_of_an_endpoint_that_is_gone_leave_with_it() {
    let mut registry = registry(&["a"]);
    let averages = Averages { tps: Some(40.0), ..Averages::default() };
    let kept = averages::Kept { averages, at_ms: 1, ..averages::Kept::default() };
    for id in ["a", "gone"] {
        registry.learn(id, News::Averages(Some(kept)), 1);
        registry.learn(id, News::Averages(None), 2);
    }
    let known = ["a", "gone"].map(|id| registry.exchange.averages(id, 2).is_some());
    assert_eq!(known, [true, false]);
}

#[test]
fn a_gauge_that_has_seen_the_end_of_a_probe_is_believed() {
    let mut registry = registry(&["a"]);
    let mut burst = Burst::begin(ProbeKind::Interval, false, 0);
    // Between two scrapes.
    burst.take(Step::Begins(Phase::Kept, 16), 10);
    registry.get_mut("a").unwrap().burst = Some(burst);
    registry.burst_ended("a");
    assert_eq!(outside_after(&mut registry, 16, 250), 0);
    assert_eq!(outside_after(&mut registry, 0, 1_000), 0);
    assert_eq!(outside_after(&mut registry, 16, 1_750), 16);
}

#[test]
fn a_result_counts_only_for_what_was_measured() {
    let mut registry = registry(&["a"]);
    let before = registry.subject("a").unwrap();
    add(&mut registry, "a", "other");
    let record = ProbeRecord { throughput_tps: Some(980.0), ..ProbeRecord::empty(ProbeKind::Registration, 1) };
    let told = registry.probed("a", &before, record, None).unwrap();
    // Whoever asked for it hears that it failed, and other probers do not take it for a probe of what is there now.
    assert_eq!((told.kept, told.record.throughput_tps, told.history.key), (None, None, None));
    assert!(told.record.error.unwrap().contains("something else"));
    assert!(!registry.get("a").unwrap().registered && registry.get("a").unwrap().kept.is_none());
    assert_eq!(registry.probes()[&("p".into(), ProbeKind::Registration, Outcome::Failed)], 1);
}

#[test]
fn a_result_counts_though_the_engine_is_being_asked_again_what_it_is() {
    let result = |registry: &mut Registry, subject: &Subject| {
        let record = ProbeRecord { throughput_tps: Some(980.0), ..ProbeRecord::empty(ProbeKind::Demand, 1) };
        registry.probed("a", subject, record, None).unwrap().kept.map(|kept| kept.key)
    };
    let mut registry = registry(&["a"]);
    let known = registry.subject("a").unwrap();
    let unknown = Subject { key: None, address: known.address };
    assert_eq!(result(&mut registry, &unknown), known.key);
    for (at_the_end, counts) in [(Some("args"), true), (None, true), (Some("other"), false)] {
        let endpoint = registry.get_mut("a").unwrap();
        (endpoint.written.launch_args, endpoint.fingerprint) = (None, at_the_end.map(str::to_owned));
        assert_eq!(result(&mut registry, &known).is_some(), counts, "{at_the_end:?}");
    }
    // Nobody knows what that was.
    registry.get_mut("a").unwrap().fingerprint = None;
    assert_eq!(result(&mut registry, &unknown), None);
}

#[test]
fn a_failed_probe_keeps_the_last_weight_and_raises_an_alarm() {
    let mut registry = registry(&["a", "b"]);
    probed(&mut registry, "a", Some(980.0), 1);
    probed(&mut registry, "b", Some(479.0), 2);
    probed(&mut registry, "a", None, 3);
    assert_eq!(seen(&registry, "a").0, 1.34);
    assert!(registry.get("a").unwrap().alarm.is_some());
    add(&mut registry, "c", "args");
    probed(&mut registry, "c", None, 4);
    assert_eq!(seen(&registry, "c"), (1.0, WeightSource::Default, State::Ready));
    probed(&mut registry, "a", Some(980.0), 5);
    assert!(registry.get("a").unwrap().alarm.is_none());
}

#[test]
fn other_launch_arguments_are_measured_anew_and_the_same_are_not() {
    let mut registry = registry(&["a"]);
    registry.identified("a", Identity::default(), 1_000, 0);
    assert!(!registry.get("a").unwrap().registered);
    probed(&mut registry, "a", Some(980.0), 10);
    assert_eq!(add(&mut registry, "a", "args"), Registered::Reconnect);
    assert_eq!(add(&mut registry, "a", "other"), Registered::Changed);
    registry.identified("a", Identity::default(), 1_000, 20);
    assert!(!registry.get("a").unwrap().registered && registry.get("a").unwrap().kept.is_none());
    // Back to the first: its result is kept, for as long as it is young.
    assert_eq!(add(&mut registry, "a", "args"), Registered::Changed);
    registry.identified("a", Identity::default(), 1_000, 1_009);
    assert!(registry.get("a").unwrap().registered && registry.get("a").unwrap().history.back().unwrap().reused);
    assert_eq!(add(&mut registry, "a", "other"), Registered::Changed);
    assert_eq!(add(&mut registry, "a", "args"), Registered::Changed);
    registry.identified("a", Identity::default(), 1_000, 1_010);
    assert!(!registry.get("a").unwrap().registered);
}

#[test]
fn a_pin_rules_and_is_not_clamped() {
    let mut registry = registry(&["a", "b"]);
    probed(&mut registry, "a", Some(980.0), 1);
    registry.get_mut("a").unwrap().pin =
        Some(Pin { weight: Weight::try_new(100.0).unwrap(), reason: String::new(), at_ms: 0 });
    assert_eq!(seen(&registry, "a"), (100.0, WeightSource::Pinned, State::Ready));
}

fn settings() -> config::Health {
    config::Config::parse("pools: [{name: p, models: [m]}]").unwrap().health
}

fn failed(loss: Loss) -> Result<(), CheckFailure> {
    Err(CheckFailure { message: "no".into(), loss, answered: false })
}

#[test]
fn health_needs_several_failures_and_one_success() {
    let mut registry = registry(&["a"]);
    let mut check = |result| {
        let verdict = registry.checked("a", result, &settings(), 0).verdict;
        (verdict, seen(&registry, "a").2)
    };
    assert_eq!(check(failed(Loss::None)), (false, State::Ready));
    assert_eq!(check(Ok(())), (false, State::Ready));
    assert_eq!(check(failed(Loss::None)), (false, State::Ready));
    assert_eq!(check(failed(Loss::None)), (false, State::Ready));
    assert_eq!(check(failed(Loss::None)), (true, State::Unhealthy));
    assert_eq!(check(Ok(())), (true, State::Ready));
}

fn told(started_s: Option<f64>, kv_tokens: Option<u64>) -> Result<Signals, EngineError> {
    Ok(Signals { started_s, kv_tokens, ..Signals::default() })
}

fn epoch(registry: &Registry) -> u64 {
    registry.get("a").unwrap().epoch.value
}

#[test]
fn a_restart_is_another_epoch_and_a_missed_scrape_is_not() {
    let mut registry = registry(&["a"]);
    assert_eq!(epoch(&registry), 0);
    let first = registry.scraped("a", told(Some(100.5), None), 1);
    assert!(first.restarted && first.publish);
    for result in
        [Err(EngineError::Http("late".into())), Err(EngineError::Refused("no".into())), told(Some(100.5), None)]
    {
        let seen = registry.scraped("a", result, 2);
        assert_eq!((seen.restarted, seen.publish, epoch(&registry)), (false, false, 100));
    }
    registry.identified("a", Identity::default(), 0, 2);
    let again = registry.scraped("a", told(Some(200.5), None), 3);
    assert!(again.restarted && again.unidentified);
    assert_eq!(epoch(&registry), 200);
}

#[test]
fn without_a_start_time_a_lost_process_is_another_epoch() {
    let mut registry = registry(&["a"]);
    let check = |registry: &mut Registry, result| registry.checked("a", result, &settings(), 9_000).restarted;
    // Slow, or broken, but there.
    for _ in 0..4 {
        assert!(!check(&mut registry, failed(Loss::None)));
    }
    assert!(!check(&mut registry, Ok(())));
    // No way to it, but not for long.
    assert!(!check(&mut registry, failed(Loss::Suspected)) && !check(&mut registry, Ok(())));
    assert_eq!(epoch(&registry), 0);
    for _ in 0..3 {
        check(&mut registry, failed(Loss::Suspected));
    }
    assert!(check(&mut registry, Ok(())));
    assert_eq!(epoch(&registry), 9);
    // Nobody listened: that once is enough, and it may be something else now.
    registry.identified("a", Identity::default(), 0, 0);
    assert!(!check(&mut registry, failed(Loss::Certain)));
    assert_eq!(seen(&registry, "a").2, State::Unhealthy);
    let back = registry.checked("a", Ok(()), &settings(), 9_000);
    assert!(back.restarted && back.unidentified && back.verdict);
    assert_eq!(epoch(&registry), 10);
    assert!(!check(&mut registry, Ok(())));
    add(&mut registry, "a", "args");
    assert_eq!(epoch(&registry), 10);
    add(&mut registry, "a", "other");
    assert_eq!(epoch(&registry), 11);
}

#[test]
fn the_snapshot_has_what_was_measured_and_told_and_noise_is_no_news() {
    let mut registry = registry(&["a", "b"]);
    let subject = registry.subject("a").unwrap();
    let record = |throughput: f64, prefill: Option<f64>, at_ms| ProbeRecord {
        throughput_tps: Some(throughput),
        prefill_tps: prefill,
        ..ProbeRecord::empty(ProbeKind::Interval, at_ms)
    };
    registry.probed("a", &subject, record(980.4, Some(6_123.4), 1), None);
    probed(&mut registry, "b", Some(480.0), 1);
    registry.scraped("a", told(Some(100.5), Some(431_248)), 1);
    let snapshot = registry.snapshot(1, 0).unwrap();
    let pool = &snapshot.pools[0];
    assert_eq!(pool.median_tps, Some(730.0));
    let a = &pool.endpoints[0];
    assert_eq!((a.prefill_tps, a.kv_tokens, a.epoch), (Some(6_120.0), Some(431_248), 100));
    assert_eq!((pool.endpoints[1].prefill_tps, pool.endpoints[1].kv_tokens), (None, None));
    registry.probed("a", &subject, record(980.0, Some(6_117.0), 2), None);
    // A scrape that does not tell the capacity leaves it as it was.
    registry.scraped("a", told(Some(100.5), None), 2);
    assert_eq!(registry.snapshot(2, 0), None);
    registry.probed("a", &subject, record(980.0, None, 3), None);
    assert_eq!(registry.snapshot(3, 0).unwrap().pools[0].endpoints[0].prefill_tps, None);
}

#[test]
fn a_spared_burst_has_the_kept_prefill_speed() {
    let mut registry = registry(&["a"]);
    registry.identified("a", Identity::default(), 1_000, 0);
    let subject = registry.subject("a").unwrap();
    let kind = ProbeKind::Registration;
    let found = ProbeRecord { throughput_tps: Some(9.0), prefill_tps: Some(7.0), ..ProbeRecord::empty(kind, 1) };
    registry.probed("a", &subject, found, None);
    add(&mut registry, "a", "other");
    registry.identified("a", Identity::default(), 1_000, 2);
    assert!(registry.get("a").unwrap().kept.is_none());
    add(&mut registry, "a", "args");
    let identity = Identity { kv_tokens: Some(32_768), window: Some(8_192), ..Identity::default() };
    registry.identified("a", identity, 1_000, 3);
    let a = registry.get("a").unwrap();
    assert_eq!(a.kept.as_ref().unwrap().measurement.prefill_tps, Some(7.0));
    assert_eq!(a.history.back().unwrap().prefill_tps, Some(7.0));
    assert_eq!((a.kv_tokens, a.context_window()), (Some(32_768), Some(8_192)));
    let counted: Vec<_> = registry.probes().iter().map(|((_, _, outcome), count)| (*outcome, *count)).collect();
    assert_eq!(counted, [(Outcome::Measured, 1), (Outcome::Reused, 1)]);
}

#[test]
fn a_result_is_forgotten_when_it_is_old_and_spares_no_probe() {
    let mut registry = registry(&["a"]);
    probed(&mut registry, "a", Some(980.0), 0);
    let young =
        Measurement { throughput_tps: 1.0, prefill_tps: None, curve: None, sweep_error: None, measured_at_ms: 1 };
    registry.learn("young", News::Result(Some(young)), 2);
    let of_a = registry.subject("a").unwrap().key.unwrap();
    assert!(registry.prune(2 * OLD_MS, 2 * OLD_MS).is_empty());
    assert_eq!(registry.prune(1_000, OLD_MS + 1), [of_a]);
    assert_eq!(registry.memory.results.keys().collect::<Vec<_>>(), ["young"]);
    assert_eq!(seen(&registry, "a").1, WeightSource::Measured, "what is in force stays");
}

#[test]
fn an_endpoint_at_another_address_waits_until_it_is_known_there() {
    let mut registry = registry(&["a", "b"]);
    probed(&mut registry, "a", Some(980.0), 1);
    probed(&mut registry, "b", Some(479.0), 1);
    assert_eq!(seen(&registry, "b").2, State::Ready);
    let written = config::Endpoint { address: "10.0.0.2:80".into(), ..registry.get("b").unwrap().written.clone() };
    let moved = registry.register("p", written, "10.0.0.2:80".parse().unwrap(), Origin::Api);
    assert_eq!(moved.unwrap(), Registered::Changed);
    assert_eq!(seen(&registry, "b").2, State::New, "nobody has looked at that address");
    // What was measured counts again when the engine there says that it is the same.
    registry.identified("b", Identity::default(), 1_000, 2);
    assert_eq!((seen(&registry, "b").1, seen(&registry, "b").2), (WeightSource::Measured, State::Ready));
}

#[test]
fn versions_only_grow_and_only_when_something_changed() {
    let mut registry = registry(&["a"]);
    let first = registry.snapshot(100, 0).unwrap().version;
    assert_eq!((first, registry.snapshot(200, 0)), (100, None));
    registry.get_mut("a").unwrap().drain = Some(Drain { reason: String::new(), at_ms: 0, until_ms: None });
    assert_eq!(registry.snapshot(50, 0).unwrap().version, 101);
    // An Envoy that holds a higher one, from another prober or a lost store.
    assert_eq!(registry.snapshot(50, 500).unwrap().version, 501);
    assert_eq!(registry.snapshot(50, 501), None);
    assert_eq!(registry.snapshot(50, u64::MAX), None);
}

#[test]
fn what_another_prober_measures_counts_here() {
    let (mut here, mut there) = (registry(&["a", "b"]), registry(&["a", "b"]));
    here.follow(Some(7));
    probed(&mut there, "b", Some(479.0), 1);
    probed(&mut there, "a", Some(980.0), 2);
    for id in ["a", "b"] {
        // The mark of the prober that bursts; that of another one says nothing.
        here.learn(id, News::Probing(Some(Mark { fence: 6, burst: 1 })), 3);
        assert!(!here.get(id).unwrap().under_burst());
        let endpoint = there.get(id).unwrap();
        here.learn(id, News::Last(endpoint.kept.clone()), 3);
        here.learn(id, News::History(there.memory.history.get(id).cloned()), 3);
        assert!(here.get(id).unwrap().registered);
        assert_eq!(here.get(id).unwrap().history, endpoint.history);
    }
    // A weight depends on all that have been measured.
    for id in ["a", "b"] {
        assert_eq!(seen(&here, id), seen(&there, id));
    }
    let mark = Mark { fence: 7, burst: 2 };
    here.learn("a", News::Probing(Some(mark)), 3);
    assert_eq!((seen(&here, "a").2, here.marked().collect::<Vec<_>>()), (State::Probing, vec![("a", mark)]));
    let burst = here.burst_elsewhere("a", true).unwrap();
    assert_eq!((burst.kind, burst.begun_ms, here.burst_elsewhere("b", true)), (ProbeKind::Demand, 3, None));
    // The prober that burst has gone: its marks end.
    here.follow(Some(8));
    assert_eq!(seen(&here, "a").2, State::Ready);
    // A failure ends the wait for a registration probe, too.
    add(&mut here, "a", "other");
    add(&mut there, "a", "other");
    probed(&mut there, "a", None, 4);
    here.learn("a", News::History(there.memory.history.get("a").cloned()), 5);
    let a = here.get("a").unwrap();
    assert!(a.registered && a.alarm.as_ref().is_some_and(|alarm| alarm.contains("no")), "{a:?}");
    // What was measured with other arguments says nothing of these.
    add(&mut here, "b", "other");
    here.learn("b", News::History(there.memory.history.get("b").cloned()), 5);
    assert!(!here.get("b").unwrap().registered);
}

#[test]
fn a_result_that_the_store_brings_late_spares_the_burst_only_while_it_is_young() {
    for (now_ms, spared) in [(900, true), (2_000, false)] {
        let (mut here, mut there) = (registry(&["a"]), registry(&["a"]));
        here.identified("a", Identity::default(), 1_000, 0);
        probed(&mut there, "a", Some(980.0), 1);
        let kept = there.get("a").unwrap().kept.clone().unwrap();
        here.learn(&kept.key, News::Result(Some(kept.measurement.clone())), now_ms);
        here.learn("a", News::Last(Some(kept)), now_ms);
        assert!(!here.get("a").unwrap().registered && here.get("a").unwrap().fingerprint.is_none());
        here.identified("a", Identity::default(), 1_000, now_ms);
        assert_eq!(here.get("a").unwrap().registered, spared);
    }
}

#[test]
fn operators_at_another_prober_are_obeyed_before_and_after_an_endpoint_comes() {
    let mut registry = registry(&["a"]);
    let pin = Pin { weight: Weight::try_new(2.5).unwrap(), reason: String::new(), at_ms: 1 };
    let drain = Drain { reason: String::new(), at_ms: 1, until_ms: None };
    for id in ["a", "b"] {
        registry.learn(id, News::Pin(Some(pin.clone())), 1);
        registry.learn(id, News::Drain(Some(drain.clone())), 1);
    }
    add(&mut registry, "b", "args");
    for id in ["a", "b"] {
        assert_eq!(seen(&registry, id), (2.5, WeightSource::Pinned, State::Draining));
        registry.learn(id, News::Pin(None), 2);
        registry.learn(id, News::Drain(None), 2);
        assert_eq!(seen(&registry, id), (1.0, WeightSource::Default, State::Ready));
    }
}

#[test]
fn two_probers_publish_the_same_content_under_the_same_version() {
    let (mut a, mut b) = (registry(&["e"]), registry(&["e"]));
    let first = a.snapshot(100, 0).unwrap();
    b.learn("newest", News::Snapshot(a.take_issued()), 90);
    assert_eq!(b.snapshot(90, 0).unwrap(), first);
    assert_eq!(b.take_issued(), None);
    // Both change at once, and give two numbers to the same content: the higher one stays, and no third follows.
    let drain = Drain { reason: String::new(), at_ms: 0, until_ms: None };
    for registry in [&mut a, &mut b] {
        registry.get_mut("e").unwrap().drain = Some(drain.clone());
    }
    assert_eq!((a.snapshot(200, 0).unwrap().version, b.snapshot(210, 0).unwrap().version), (200, 210));
    let (of_a, of_b) = (a.take_issued(), b.take_issued());
    a.learn("newest", News::Snapshot(of_b), 220);
    b.learn("newest", News::Snapshot(of_a), 220);
    assert_eq!((a.snapshot(220, 0).unwrap().version, b.snapshot(220, 0)), (210, None));
    assert_eq!((a.take_issued(), a.snapshot(230, 0)), (None, None));
    // What they see differs: each keeps its own number, and nothing goes back and forth.
    a.get_mut("e").unwrap().drain = None;
    assert_eq!(a.snapshot(300, 0).unwrap().version, 300);
    b.learn("newest", News::Snapshot(a.take_issued()), 310);
    assert_eq!(b.snapshot(310, 0), None);
    // An Envoy moves from A to B: it is told something newer than what it has.
    assert_eq!(b.snapshot(310, 300).unwrap().version, 310);
}

#[test]
fn an_engine_that_tells_nothing_is_as_busy_as_the_envoys_say_and_never_idle() {
    let mut registry = registry(&["a"]);
    let busy = |registry: &Registry, now_ms| registry.busy("a", registry.get("a").unwrap(), now_ms);
    assert_eq!(busy(&registry, 10), None);
    let report = serde_json::json!({"envoy": "e", "pools": {"p": {"endpoints": {"a": {"in_flight": 7}}}}});
    registry.exchanged(&serde_json::from_value(report).unwrap(), 10).unwrap();
    assert_eq!(busy(&registry, 10), Some(7));
    let signals = Signals { running: Some(2), waiting: Some(1), at_ms: Some(20), ..Signals::default() };
    registry.get_mut("a").unwrap().signals = signals;
    assert_eq!(busy(&registry, 20), Some(3));
    // Its figures are stale, and so is what the Envoy said.
    assert_eq!(busy(&registry, 100_000), None);
}
