//! Endpoints on their way out.

use std::time::Duration;

use super::*;

const DEADLINE: Duration = Duration::from_secs(900);

fn report(registry: &mut Registry, in_flight: u32, now_ms: u64) {
    let report = serde_json::json!({"envoy": "e", "pools": {"p": {"endpoints": {"a": {"in_flight": in_flight}}}}});
    registry.exchanged(&serde_json::from_value(report).unwrap(), now_ms).unwrap();
}

/// A look as the members' task has it, with one Envoy that has applied everything.
fn look(registry: &mut Registry, now_ms: u64) -> Option<Progress> {
    registry.going();
    let left = registry.left("a", 1, false, now_ms).count();
    registry.looked_at("a", true, left, now_ms)
}

#[test]
fn an_endpoint_is_forgotten_when_it_is_empty() {
    let mut registry = registry(&["a", "b"]);
    registry.snapshot(100, 0);
    registry.get_mut("a").unwrap().remove("test", DEADLINE, 1_000);
    let version = registry.snapshot(1_000, 0).unwrap().version;
    assert_eq!(
        registry.going().iter().map(|going| (going.id.as_str(), going.version)).collect::<Vec<_>>(),
        [("a", version)]
    );
    assert_eq!(seen(&registry, "a").2, State::Draining);
    let mut now_ms = 1_000;
    for in_flight in [1, 1, 1, 1, 1, 0] {
        now_ms += 500;
        report(&mut registry, in_flight, now_ms);
        look(&mut registry, now_ms);
        assert_eq!(registry.may_be_forgotten("a", now_ms), in_flight == 0, "{now_ms}");
    }
    assert!(!registry.may_be_forgotten("b", u64::MAX));
    // Registered again before that: it stays.
    add(&mut registry, "a", "args");
    assert!(!registry.may_be_forgotten("a", u64::MAX) && registry.get("a").unwrap().emptying.is_none());
}

#[test]
fn without_a_word_of_what_is_left_only_the_deadline_counts() {
    let mut registry = registry(&["a"]);
    registry.get_mut("a").unwrap().remove("test", DEADLINE, 0);
    for now_ms in [0, 10_000, 899_999] {
        look(&mut registry, now_ms);
        assert_eq!(
            (registry.may_be_forgotten("a", now_ms), registry.get("a").unwrap().emptying.unwrap().left),
            (false, None)
        );
    }
    assert!(registry.may_be_forgotten("a", 900_000));
    // The engine tells; what it told long ago does not count.
    registry.get_mut("a").unwrap().signals = Signals { running: Some(0), at_ms: Some(10_000), ..Signals::default() };
    look(&mut registry, 10_000);
    assert!(registry.may_be_forgotten("a", 10_000));
    look(&mut registry, 20_000);
    assert!(!registry.may_be_forgotten("a", 20_000));
}

#[test]
fn a_drain_ends_by_no_deadline_and_says_once_that_it_is_late() {
    let mut registry = registry(&["a", "b"]);
    let drain = Drain { reason: "fans".into(), at_ms: 0, until_ms: Some(5_000) };
    registry.get_mut("a").unwrap().set_drain(Some(drain.clone()));
    report(&mut registry, 1, 4_000);
    assert_eq!(look(&mut registry, 4_000), Some(Progress::Draining));
    report(&mut registry, 1, 5_000);
    assert_eq!((look(&mut registry, 5_000), look(&mut registry, 5_000)), (Some(Progress::Overdue), None));
    let alarm = registry.get("a").unwrap().alarm_line().unwrap();
    assert!(alarm.contains("1 requests left"), "{alarm}");
    assert!(!registry.may_be_forgotten("a", u64::MAX));
    report(&mut registry, 0, 6_000);
    assert_eq!(look(&mut registry, 6_000), Some(Progress::Drained));
    assert!(registry.get("a").unwrap().alarm_line().is_none());
    assert_eq!((seen(&registry, "a").2, registry.may_be_forgotten("a", u64::MAX)), (State::Draining, false));
    // To be removed now, too: with the deadline that it has, and it stays empty.
    registry.get_mut("a").unwrap().remove("test", DEADLINE, 6_000);
    assert_eq!(registry.get("a").unwrap().removal.as_ref().unwrap().until_ms, 5_000);
    assert!(registry.may_be_forgotten("a", 4_000));
    registry.get_mut("a").unwrap().removal = None;
    registry.get_mut("a").unwrap().set_drain(None);
    assert_eq!((seen(&registry, "a").2, registry.get("a").unwrap().emptying), (State::Ready, None));
    // Another drain begins from the beginning.
    registry.get_mut("a").unwrap().set_drain(Some(drain));
    assert_eq!(registry.get("a").unwrap().progress(1), Some(Progress::Draining));
}
