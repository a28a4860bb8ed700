//! Caps: by hand, measured, by weight, and who may change them.

use super::*;
use crate::caps::{CapSource, Curve, Step};

fn measuring() -> Registry {
    let file = "pools: [{name: p, models: [m], admission: {cap: measured, min_tps: 30}}]";
    Registry::new(&config::Config::parse(file).unwrap(), Memory::default())
}

/// The published pair of cards, as its sweep sees it.
fn curve() -> Curve {
    let points = [(1, 94.0), (2, 137.7), (4, 225.1), (8, 400.0), (16, 479.0), (32, 465.0)];
    let step = |(concurrency, tps): (u32, f64)| Step {
        concurrency,
        throughput_tps: tps,
        per_request_tps: tps / f64::from(concurrency),
        ttft_ms: Some(20.0),
    };
    points.map(step).to_vec().try_into().unwrap()
}

fn swept(registry: &mut Registry, id: &str, tps: f64, found: Result<Curve, &str>, at_ms: u64) {
    let subject = registry.subject(id).unwrap();
    let record = ProbeRecord {
        throughput_tps: Some(tps),
        sweep_error: found.as_ref().err().map(|why| (*why).to_owned()),
        ..ProbeRecord::empty(ProbeKind::Registration, at_ms)
    };
    registry.probed(id, &subject, record, found.ok());
}

fn cap_of(registry: &Registry, id: &str) -> (u32, CapSource) {
    let verdict = registry.verdicts()[id];
    (verdict.cap, verdict.cap_source)
}

#[test]
fn by_hand_goes_before_measured_and_measured_before_weight() {
    let mut registry = measuring();
    add(&mut registry, "a", "args");
    assert_eq!(cap_of(&registry, "a"), (24, CapSource::Weight));
    swept(&mut registry, "a", 479.0, Ok(curve()), 1);
    assert_eq!(cap_of(&registry, "a"), (12, CapSource::Measured));
    assert_eq!(registry.snapshot(1, 0).unwrap().pools[0].endpoints[0].cap, Some(12));
    let mut written = registry.get("a").unwrap().written.clone();
    written.max_in_flight = Some(5);
    let address = registry.get("a").unwrap().address;
    assert_eq!(registry.register("p", written, address, Origin::Api), Ok(Registered::Changed));
    assert_eq!(cap_of(&registry, "a"), (5, CapSource::Hand));
    assert_eq!(registry.snapshot(2, 0).unwrap().pools[0].endpoints[0].cap, Some(5));
}

#[test]
fn a_newcomer_changes_nobodys_measured_cap() {
    let mut registry = measuring();
    for (id, tps) in [("a", 980.0), ("b", 479.0)] {
        add(&mut registry, id, "args");
        swept(&mut registry, id, tps, Ok(curve()), 1);
    }
    let before = ["a", "b"].map(|id| (cap_of(&registry, id), seen(&registry, id).0));
    add(&mut registry, "c", "args");
    swept(&mut registry, "c", 5_000.0, Ok(curve()), 2);
    let after = ["a", "b"].map(|id| (cap_of(&registry, id), seen(&registry, id).0));
    // Weights are relative, so theirs have changed.
    assert!(before[0].0 == after[0].0 && before[1].0 == after[1].0, "{before:?} {after:?}");
    assert!(before[0].1 != after[0].1, "{before:?} {after:?}");
}

#[test]
fn a_sweep_that_failed_leaves_the_curve_before_or_else_the_weight() {
    let mut registry = measuring();
    add(&mut registry, "a", "args");
    swept(&mut registry, "a", 479.0, Err("at concurrency 4: no"), 1);
    assert_eq!(cap_of(&registry, "a"), (24, CapSource::Weight));
    let alarm = registry.get("a").unwrap().alarm_line().unwrap();
    assert!(alarm.contains("at concurrency 4: no") && alarm.contains("follows the weight"), "{alarm}");
    swept(&mut registry, "a", 479.0, Ok(curve()), 2);
    assert_eq!((cap_of(&registry, "a"), registry.get("a").unwrap().alarm_line()), ((12, CapSource::Measured), None));
    swept(&mut registry, "a", 479.0, Err("at concurrency 8: no"), 3);
    assert_eq!(cap_of(&registry, "a"), (12, CapSource::Measured));
    assert!(registry.get("a").unwrap().alarm_line().unwrap().contains("stays as measured before"));
    // Other launch arguments: that curve is not this one's.
    add(&mut registry, "a", "other");
    registry.identified("a", Identity::default(), 1_000, 3);
    swept(&mut registry, "a", 479.0, Err("no"), 4);
    assert_eq!(cap_of(&registry, "a"), (24, CapSource::Weight));
}

#[test]
fn a_kept_result_spares_the_sweep_only_when_it_has_one() {
    let mut registry = measuring();
    add(&mut registry, "a", "args");
    // Kept from when the pool had its caps by weight.
    probed(&mut registry, "a", Some(479.0), 1);
    let memory = std::mem::take(&mut registry.memory);
    let mut registry = measuring();
    registry.memory = memory;
    add(&mut registry, "a", "args");
    registry.identified("a", Identity::default(), 1_000, 2);
    assert!(!registry.get("a").unwrap().registered);
    for found in [Ok(curve()), Err("at concurrency 4: no")] {
        swept(&mut registry, "a", 479.0, found, 3);
        let cap = cap_of(&registry, "a");
        let memory = std::mem::take(&mut registry.memory);
        registry = measuring();
        registry.memory = memory;
        add(&mut registry, "a", "args");
        registry.identified("a", Identity::default(), 1_000, 4);
        assert!(registry.get("a").unwrap().registered);
        assert_eq!(cap_of(&registry, "a"), cap);
    }
}

// A rollout of two probers, one after the other: each follows the other while that one does not sweep yet.
#[test]
fn a_result_without_the_sweep_that_its_pool_wants_is_due_when_idle() {
    let mut registry = measuring();
    registry.follow(Some(7));
    add(&mut registry, "a", "args");
    let key = registry.subject("a").unwrap().key.unwrap();
    let short =
        Measurement { throughput_tps: 479.0, prefill_tps: None, curve: None, sweep_error: None, measured_at_ms: 1 };
    registry.memory.results.insert(key, short);
    registry.identified("a", Identity::default(), 1_000, 2);
    let due = |registry: &Registry, now_ms| registry.get("a").unwrap().is_due(1_000, now_ms);
    assert!(registry.get("a").unwrap().registered && due(&registry, 3));
    for found in [Err("at concurrency 4: no"), Ok(curve())] {
        swept(&mut registry, "a", 479.0, found, 3);
        assert!(!due(&registry, 4) && due(&registry, 1_003));
    }
}

#[test]
fn a_curve_stands_with_the_result_in_force_and_not_in_the_history() {
    let mut registry = measuring();
    add(&mut registry, "a", "args");
    swept(&mut registry, "a", 479.0, Ok(curve()), 1);
    assert_eq!(registry.get("a").unwrap().kept.as_ref().unwrap().measurement.curve, Some(curve()));
    let stored = serde_json::to_value(&registry.memory.history["a"]).unwrap();
    assert_eq!(stored["records"][0].get("curve"), None, "{stored}");
    // What releases before this one have stored is read.
    let mut before = stored;
    before["records"][0]["curve"] = serde_json::to_value(curve()).unwrap();
    assert_eq!(serde_json::from_value::<History>(before).unwrap(), registry.memory.history["a"]);
}

#[test]
fn one_request_that_is_too_slow_is_an_alarm() {
    let mut registry = measuring();
    add(&mut registry, "a", "args");
    swept(&mut registry, "a", 479.0, Ok(curve().scaled(|_| 0.3)), 1);
    assert_eq!(cap_of(&registry, "a"), (1, CapSource::Measured));
    let alarm = registry.get("a").unwrap().alarm_line().unwrap();
    assert!(alarm.contains("28.2 tokens/s, less than admission.min_tps (30)"), "{alarm}");
}

/// Scrapes an engine that serves at its cap for so many minutes; whether the snapshot was to be published.
fn serves(registry: &mut Registry, minutes: u64, share: f64, from_ms: u64) -> bool {
    let (mut tokens, mut published) = (0.0, false);
    for tick in 0..minutes * 240 {
        let running = cap_of(registry, "a").0;
        tokens += share * curve().throughput_at(running.into()) / 4.0;
        let (running, generated_tokens) = (Some(running.into()), Some(tokens as u64));
        let signals = Signals { running, generated_tokens, ..Signals::default() };
        published |= registry.scraped("a", Ok(signals), from_ms + tick * 250).publish;
    }
    published
}

#[test]
fn serving_refines_a_measured_cap_and_our_own_bursts_do_not() {
    let mut registry = measuring();
    add(&mut registry, "a", "args");
    swept(&mut registry, "a", 479.0, Ok(curve()), 1);
    registry.get_mut("a").unwrap().burst = Some(Burst::begin(ProbeKind::Interval, false, 0));
    assert!(!serves(&mut registry, 30, 0.6, 0));
    registry.get_mut("a").unwrap().burst = None;
    assert!(serves(&mut registry, 30, 0.6, 10_000_000));
    // 0.6 x 400 = 240: 30 tokens/s each are held up to eight; a quarter less than twelve is nine.
    assert_eq!(cap_of(&registry, "a"), (9, CapSource::Measured));
    let points = registry.get("a").unwrap().measured.as_ref().unwrap().observed().points();
    assert!(points.iter().all(|point| (point.ratio - 0.6).abs() < 0.01), "{points:?}");
    // A reconnect is no news; a new sweep begins anew.
    assert_eq!(add(&mut registry, "a", "args"), Registered::Reconnect);
    assert_eq!(cap_of(&registry, "a").0, 9);
    swept(&mut registry, "a", 479.0, Ok(curve().scaled(|_| 1.001)), 2);
    assert_eq!(cap_of(&registry, "a").0, 12);
}

#[test]
fn a_pool_that_compares_by_curve_tells_the_curves_and_any_other_does_not() {
    let file = |by: &str| format!("pools: [{{name: p, models: [m], policy: {{by: {by}}}}}]");
    for (by, told) in
        [("curve", vec![(1, 0.196), (2, 0.287), (4, 0.47), (8, 0.835), (16, 1.0), (32, 0.971)]), ("weight", vec![])]
    {
        let mut registry = Registry::new(&config::Config::parse(&file(by)).unwrap(), Memory::default());
        add(&mut registry, "a", "args");
        swept(&mut registry, "a", 479.0, Ok(curve()), 1);
        assert_eq!(registry.snapshot(1, 0).unwrap().pools[0].endpoints[0].curve, told);
        // Its cap still follows the weight.
        assert_eq!(cap_of(&registry, "a"), (24, CapSource::Weight));
    }
}
