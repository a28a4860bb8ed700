//! Health, tokens and restarts.

use std::time::Duration;

use super::*;

fn told(signals: Signals) -> Result<Signals, EngineError> {
    Ok(signals)
}

fn counted(generated_tokens: u64) -> Result<Signals, EngineError> {
    told(Signals { generated_tokens: Some(generated_tokens), ..Signals::default() })
}

fn identity(fingerprint: &str) -> Identity {
    Identity { fingerprint: fingerprint.into(), ..Identity::default() }
}

/// One of a pool of two that has been measured.
fn measured() -> Registry {
    let mut registry = registry(&["a", "b"]);
    for id in ["a", "b"] {
        registry.identified(id, identity("x"), 1_000, 0);
        probed(&mut registry, id, Some(980.0), 1);
        registry.checked(id, Ok(()), &settings(), 1);
    }
    registry
}

fn due(registry: &Registry, now_ms: u64) -> bool {
    registry.token_due("a", &settings(), now_ms).is_some()
}

const MINUTE: u64 = 60_000;

// Case C18: metrics that fail say nothing of health, however often, and what the engine told last is not taken for full.
#[test]
fn c18_a_failed_scrape_never_changes_health() {
    let mut registry = measured();
    registry.scraped("a", counted(5), 2);
    let (before, epoch) = (registry.get("a").unwrap().health.clone(), registry.get("a").unwrap().epoch);
    for error in
        [EngineError::Http("late".into()), EngineError::Refused("no".into()), EngineError::Unreachable("no".into())]
    {
        let after = registry.scraped("a", Err(error), 3);
        assert!(!after.verdict && !after.publish && !after.restarted);
        assert_eq!((&registry.get("a").unwrap().health, registry.get("a").unwrap().epoch), (&before, epoch));
        assert_eq!(seen(&registry, "a").2, State::Ready);
        assert_eq!(registry.get("a").unwrap().signals.generated_tokens, Some(5));
    }
}

// Case C3: whatever checks say, what Envoys have in flight is what they report.
#[test]
fn c3_no_check_touches_what_is_in_flight() {
    let mut registry = measured();
    let report = serde_json::json!({"envoy": "e", "pools": {"p": {"endpoints": {"a": {"in_flight": 7}}}}});
    registry.exchanged(&serde_json::from_value(report).unwrap(), 10).unwrap();
    for result in [Ok(()), failed(Loss::None), failed(Loss::Certain), Ok(())] {
        registry.checked("a", result, &settings(), 11);
        registry.token_tried("a", Tried::Nothing(Duration::from_secs(30)), 11, &settings(), 11);
        assert_eq!(registry.exchange.in_flight("a", 11), 7);
    }
}

#[test]
fn an_engine_that_hangs_is_unhealthy_though_it_answers() {
    let mut registry = measured();
    let patience = registry.token_due("a", &settings(), 6 * MINUTE).unwrap();
    let tried = registry.token_tried("a", Tried::Nothing(patience), 6 * MINUTE, &settings(), 6 * MINUTE + 30_000);
    assert!(tried.verdict && tried.publish);
    assert_eq!((seen(&registry, "a").2, seen(&registry, "b").2), (State::Unhealthy, State::Ready));
    for now_ms in [7 * MINUTE, 8 * MINUTE] {
        assert!(!registry.checked("a", Ok(()), &settings(), now_ms).verdict);
        let health = &registry.get("a").unwrap().health;
        assert_eq!(health.last_error(), Some("answers /health, but generated no token within 30s"));
        assert!(health.answers() && !health.healthy() && due(&registry, now_ms));
    }
    // While it does not answer at all, there is nothing to ask.
    registry.checked("a", failed(Loss::Certain), &settings(), 9 * MINUTE);
    assert!(!due(&registry, 9 * MINUTE));
    assert_eq!(registry.get("a").unwrap().health.last_error(), Some("no"));
    // Started anew, and answering: still not known to generate.
    registry.checked("a", Ok(()), &settings(), 10 * MINUTE);
    assert_eq!(seen(&registry, "a").2, State::Unhealthy);
    assert!(due(&registry, 10 * MINUTE));
    let tried = registry.token_tried("a", Tried::Token, 10 * MINUTE, &settings(), 10 * MINUTE);
    assert!(tried.verdict && seen(&registry, "a").2 == State::Ready);
    let counts: Vec<_> = registry.token_checks().iter().map(|((_, result), count)| (*result, *count)).collect();
    assert_eq!(counts, [("nothing", 1), ("token", 1)]);
}

#[test]
fn tokens_for_others_bring_a_failed_engine_back() {
    let mut registry = measured();
    registry.scraped("a", counted(5), 6 * MINUTE);
    registry.token_tried("a", Tried::Nothing(Duration::from_secs(30)), 6 * MINUTE, &settings(), 6 * MINUTE);
    assert_eq!(seen(&registry, "a").2, State::Unhealthy);
    assert!(!registry.scraped("a", counted(5), 7 * MINUTE).verdict);
    let back = registry.scraped("a", counted(6), 7 * MINUTE);
    assert!(back.verdict && back.publish);
    assert_eq!(seen(&registry, "a").2, State::Ready);
}

#[test]
fn a_token_is_asked_for_only_where_nothing_else_tells_and_nobody_is_disturbed() {
    let mut registry = measured();
    assert!(!due(&registry, 1 + 5 * MINUTE - 1) && due(&registry, 1 + 5 * MINUTE));
    let off = config::Health { generate_every: None, ..settings() };
    assert_eq!(registry.token_due("a", &off, 6 * MINUTE), None);
    // A burst runs, here or at another prober, or is about to.
    registry.get_mut("a").unwrap().burst = Some(Burst::begin(ProbeKind::Interval, false, 0));
    assert!(!due(&registry, 6 * MINUTE));
    registry.get_mut("a").unwrap().burst = None;
    registry.get_mut("a").unwrap().probing_elsewhere = true;
    assert!(!due(&registry, 6 * MINUTE));
    registry.get_mut("a").unwrap().probing_elsewhere = false;
    registry.get_mut("a").unwrap().registered = false;
    assert!(!due(&registry, 6 * MINUTE));
    registry.get_mut("a").unwrap().registered = true;
    // It takes no requests.
    registry.get_mut("a").unwrap().drain = Some(Drain { reason: String::new(), at_ms: 0, until_ms: None });
    assert!(!due(&registry, 6 * MINUTE));
    registry.get_mut("a").unwrap().set_drain(None);
    assert!(due(&registry, 6 * MINUTE));
    // Requests are under way, and nobody counts tokens: a long answer and none look the same.
    let report = |served: serde_json::Value| {
        let row = serde_json::json!({"in_flight": 1, "served": served});
        serde_json::from_value(serde_json::json!({"envoy": "e", "pools": {"p": {"endpoints": {"a": row}}}})).unwrap()
    };
    registry.exchanged(&report(serde_json::Value::Null), 6 * MINUTE).unwrap();
    assert!(!due(&registry, 6 * MINUTE));
    registry.scraped("a", counted(5), 6 * MINUTE);
    assert!(due(&registry, 6 * MINUTE));
    // An answer has ended well; one that failed tells nothing.
    registry.exchanged(&report(serde_json::json!({"requests": 1, "errors": 1})), 6 * MINUTE).unwrap();
    assert!(due(&registry, 6 * MINUTE));
    let served = serde_json::json!({"requests": 1, "tps": {"n": 1, "sum": 30.0}});
    registry.exchanged(&report(served), 6 * MINUTE).unwrap();
    assert!(!due(&registry, 11 * MINUTE - 1) && due(&registry, 11 * MINUTE));
}

#[test]
fn a_burst_that_fails_is_looked_into() {
    let mut registry = measured();
    probed(&mut registry, "a", None, 2);
    assert!(due(&registry, 2) && registry.token_due("b", &settings(), 2).is_none());
}

#[test]
fn a_restart_keeps_a_young_result_and_has_an_old_one_measured_anew() {
    for (now_ms, kept) in [(1_000, true), (1_001, false)] {
        let mut registry = measured();
        let start = |started_s| Signals { started_s: Some(started_s), ..Signals::default() };
        registry.scraped("a", told(start(100.0)), 2);
        registry.identified("a", identity("x"), 1_000, 2);
        assert!(registry.get("a").unwrap().registered, "known since when it runs is not started anew");
        let again = registry.scraped("a", told(start(200.0)), now_ms);
        assert!(again.restarted && again.unidentified && again.publish);
        registry.identified("a", identity("x"), 1_000, now_ms);
        // The weight stays until there is another.
        assert_eq!((registry.get("a").unwrap().registered, seen(&registry, "a").0), (kept, 1.0));
        assert_eq!(seen(&registry, "a").2, State::Ready);
        assert!(registry.get("a").unwrap().kept.is_some());
    }
}

#[test]
fn other_arguments_than_those_that_are_written_are_measured_anew() {
    let mut registry = measured();
    let epoch = |registry: &Registry| registry.get("a").unwrap().epoch.value;
    assert!(!registry.identified("a", identity("x"), 1_000, 2).restarted);
    assert!(registry.get("a").unwrap().registered && epoch(&registry) == 0);
    let key = registry.subject("a").unwrap().key;
    let told = registry.identified("a", identity("y"), 1_000, 2);
    assert!(told.restarted, "holders of prefixes are forgotten");
    assert_eq!((told.void, key.is_some()), (key, true), "nor does a restart of the prober bring the result back");
    assert!(!registry.get("a").unwrap().registered && epoch(&registry) == 1);
    assert_eq!(registry.identified("a", identity("y"), 1_000, 2), Identified::default());
    assert!(!registry.get("a").unwrap().registered);
}

#[test]
fn what_the_metrics_tell_of_the_configuration_has_it_asked_again() {
    let mut registry = measured();
    let told = |config: &str| Ok(Signals { cache_config: config.into(), ..Signals::default() });
    for (config, unidentified) in [("one", false), ("one", false), ("two", true)] {
        assert_eq!(registry.scraped("a", told(config), 2).unidentified, unidentified, "{config}");
    }
}

#[test]
fn a_count_of_tokens_that_falls_is_another_life_where_no_start_is_told() {
    let mut registry = measured();
    assert!(!registry.scraped("a", counted(500), 2_000).restarted);
    assert!(!registry.scraped("a", counted(501), 3_000).restarted);
    assert!(registry.scraped("a", counted(2), 4_000).restarted);
    assert_eq!(registry.get("a").unwrap().epoch.value, 4);
    let told = |tokens, started_s| {
        Ok(Signals { generated_tokens: Some(tokens), started_s: Some(started_s), ..Signals::default() })
    };
    registry.scraped("b", told(500, 100.0), 2_000);
    assert!(!registry.scraped("b", told(2, 100.0), 4_000).restarted, "it says itself that it has not");
}
