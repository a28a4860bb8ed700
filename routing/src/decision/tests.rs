use super::*;
use crate::eligibility::survey;
use crate::live::Charge;
use crate::route::{Affinity, Pick, Reason};
use crate::snapshot::Snapshot;
use proptest::prelude::*;
use serde_json::{Value, json};

fn candidate(id: &str) -> CandidateRecord<'_> {
    CandidateRecord {
        id,
        weight: 1.34,
        in_flight: 10,
        cap: 32,
        pending_tokens: 900,
        load: 7.46,
        share: None,
        drawn: true,
        excluded: None,
        elsewhere: 0,
        score: None,
        terms: Vec::new(),
    }
}

fn decision() -> Decision<'static> {
    Decision {
        time_ms: 1_764_000_000_000,
        pool: "qwen-27b",
        snapshot: 1_764_000_000_000,
        policy: "p2c",
        reason: "holder",
        picked: Some("a"),
        hosts: vec!["a", "b"],
        candidates: vec![candidate("a"), CandidateRecord { drawn: false, excluded: Some("at_cap"), ..candidate("b") }],
        omitted: Omitted::default(),
        prompt_tokens: 8_100,
        output_tokens: 128,
        prefix: None,
        queue: None,
        spilled_from: None,
        signals: None,
        shadow: None,
        result: None,
    }
}

/// A record in which everything is said.
fn full() -> Decision<'static> {
    let mut full = decision();
    let terms = vec![("active", 1_000.0), ("throughput", -3.0)];
    full.candidates[0] =
        CandidateRecord { elsewhere: 2, share: Some(0.915), score: Some(997.0), terms, ..candidate("a") };
    full.omitted = Omitted { endpoints: 3, excluded: vec![(Exclusion::AtCap, 2)] };
    full.prefix = Some(PrefixRecord {
        holders: vec!["a"],
        matched_tokens: 8_000,
        out_of_reach_tokens: 9_000,
        weighed: Some(Weighed { missing_tokens: 0, allowance: 7.6 }),
    });
    full.queue = Some(QueueRecord { ticket: 90, position: 3, wait_ms: 1_200 });
    full.spilled_from = Some("other");
    full.signals = Some("stale");
    full.shadow = Some(ShadowRecord {
        policy: "score",
        picked: Some("b"),
        routed: true,
        load_difference: Some(-0.5),
        cost_difference: Some(107.046),
    });
    full.result = Some(ResultRecord {
        endpoint: Some("a"),
        status: 200,
        attempts: 2,
        ttft_ms: Some(40),
        duration_ms: 900,
        prompt_tokens: Some(8_090),
        cached_tokens: Some(8_000),
        completion_tokens: Some(64),
        finish: Some("stop"),
        error: true,
        tried: vec!["b", "a"],
        details: Some("downstream_remote_disconnect".into()),
    });
    full
}

fn json_of(decision: &Decision) -> Value {
    serde_json::from_str(&decision.to_json()).unwrap()
}

#[test]
fn a_record_says_everything_that_is_known() {
    let expected = json!({
        "time_ms": 1_764_000_000_000u64, "pool": "qwen-27b", "snapshot": 1_764_000_000_000u64, "policy": "p2c",
        "reason": "holder", "picked": "a", "hosts": ["a", "b"],
        "candidates": [
            {"id": "a", "weight": 1.34, "in_flight": 10, "cap": 32, "pending_tokens": 900, "load": 7.46, "share": 0.915, "drawn": true,
                "elsewhere": 2, "score": 997.0, "terms": {"active": 1_000.0, "throughput": -3.0}},
            {"id": "b", "weight": 1.34, "in_flight": 10, "cap": 32, "pending_tokens": 900, "load": 7.46, "excluded": "at_cap"},
        ],
        "omitted": 3, "omitted_excluded": {"at_cap": 2}, "prompt_tokens": 8_100, "output_tokens": 128,
        "prefix": {"holders": ["a"], "matched_tokens": 8_000, "out_of_reach_tokens": 9_000, "missing_tokens": 0, "allowance": 7.6},
        "queue": {"ticket": 90, "position": 3, "wait_ms": 1_200}, "spilled_from": "other", "signals": "stale",
        "shadow": {"policy": "score", "picked": "b", "routed": true, "load_difference": -0.5, "cost_difference": 107.046},
        "result": {"endpoint": "a", "status": 200, "attempts": 2, "ttft_ms": 40, "duration_ms": 900, "prompt_tokens": 8_090,
            "cached_tokens": 8_000, "completion_tokens": 64, "finish": "stop", "error": true, "tried": ["b", "a"],
            "details": "downstream_remote_disconnect"},
    });
    assert_eq!(json_of(&full()), expected);
}

// Access logs are compared and searched as text.
#[test]
fn a_record_has_always_the_same_bytes() {
    let expected = concat!(
        r#"{"time_ms":1764000000000,"pool":"qwen-27b","snapshot":1764000000000,"policy":"p2c","reason":"holder""#,
        r#","picked":"a","hosts":["a","b"],"candidates":[{"id":"a","weight":1.34,"in_flight":10,"cap":32"#,
        r#","pending_tokens":900,"load":7.46,"share":0.915,"drawn":true,"elsewhere":2,"score":997.0,"terms":{"active":1000.0"#,
        r#","throughput":-3.0}},{"id":"b","weight":1.34,"in_flight":10,"cap":32,"pending_tokens":900,"load":7.46"#,
        r#","excluded":"at_cap"}],"omitted":3,"omitted_excluded":{"at_cap":2},"prompt_tokens":8100"#,
        r#","output_tokens":128,"prefix":{"holders":["a"],"matched_tokens":8000,"out_of_reach_tokens":9000"#,
        r#","missing_tokens":0,"allowance":7.6},"queue":{"ticket":90,"position":3,"wait_ms":1200}"#,
        r#","spilled_from":"other","signals":"stale","shadow":{"policy":"score","picked":"b","routed":true"#,
        r#","load_difference":-0.5,"cost_difference":107.046},"result":{"endpoint":"a","status":200,"attempts":2"#,
        r#","ttft_ms":40,"duration_ms":900,"prompt_tokens":8090,"cached_tokens":8000,"completion_tokens":64"#,
        r#","finish":"stop","error":true,"tried":["b","a"],"details":"downstream_remote_disconnect"}}"#,
    );
    assert_eq!(full().to_json(), expected);
}

#[test]
fn numbers_are_rounded_as_everywhere() {
    for number in
        [0.004_999_999_999_999_999, 0.005, 0.015, -0.005, -0.0049, 0.125, 2.675, 99.995, 1e8, 4503599627370497.5, 1e300]
    {
        let mut json = Json::with_capacity(0);
        json.decimal("", number, 2);
        let (whole, parts) = ((number * 100.0).round() as i64 / 100, ((number * 100.0).round() as i64 % 100).abs());
        let sign = if number <= -0.005 && whole == 0 { "-" } else { "" };
        let expected = format!("{sign}{whole}.{parts:02}");
        assert_eq!(json.finish(), expected.strip_suffix('0').unwrap_or(&expected));
    }
}

#[test]
fn readers_see_what_is_written() {
    for written in [decision(), full()] {
        let read: record::Record = serde_json::from_str(&written.to_json()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), json_of(&written));
    }
}

// Every field of a record is explained, and nothing is explained that does not exist.
#[test]
fn the_page_about_records_has_every_field() {
    fn fields(value: &Value, path: &str, into: &mut std::collections::BTreeSet<String>) {
        match value {
            // Their keys are words of other lists: exclusions, terms of the score.
            Value::Object(_) if path.ends_with("omitted_excluded") || path.ends_with("terms") => {}
            Value::Object(object) => {
                for (key, value) in object {
                    let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    into.insert(path.clone());
                    fields(value, &path, into);
                }
            }
            Value::Array(elements) => elements.iter().for_each(|element| fields(element, path, into)),
            _ => {}
        }
    }
    let mut written = std::collections::BTreeSet::new();
    fields(&json_of(&full()), "", &mut written);
    written.extend(record::ADDED.map(str::to_owned));
    let page = include_str!("../../../docs/decisions.md");
    let (_, page) = page.split_once("\n## Fields\n").unwrap();
    let (table, _) = page.split_once("\n## ").unwrap();
    let explained: std::collections::BTreeSet<String> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next().map(|field| field.replace("[]", "")))
        .collect();
    assert_eq!(written, explained);
}

#[test]
fn what_is_not_known_is_left_out() {
    let bare = Decision { time_ms: 0, picked: None, hosts: Vec::new(), candidates: Vec::new(), ..decision() };
    let json = json_of(&bare);
    let keys: Vec<_> = json.as_object().unwrap().keys().cloned().collect();
    assert_eq!(keys, ["candidates", "output_tokens", "policy", "pool", "prompt_tokens", "reason", "snapshot"]);
}

/// A pool of so many endpoints, of which every third is draining and every fourth unhealthy.
fn large_pool(endpoints: usize) -> Pool {
    let state = |nth: usize| match nth {
        nth if nth % 3 == 0 => "draining",
        nth if nth % 4 == 0 => "unhealthy",
        _ => "ready",
    };
    let endpoints: Vec<_> = (0..endpoints)
        .map(|nth| json!({"id": format!("e{nth}"), "address": format!("10.0.{}.{}:80", nth / 250, nth % 250), "weight": 1.0, "state": state(nth)}))
        .collect();
    let snapshot =
        json!({"format": 1, "version": 1, "pools": [{"name": "p", "models": ["m"], "endpoints": endpoints}]});
    Snapshot::from_json(snapshot.to_string().as_bytes()).unwrap().pools.remove(0)
}

fn admitted(pool: &Pool, chosen: usize, drawn: Vec<usize>, holders: Vec<usize>) -> Admitted {
    let loads = vec![Load { in_flight: u32::MAX, pending_tokens: u32::MAX, ..Load::default() }; pool.endpoints.len()];
    let affinity = Affinity {
        holders,
        matched_tokens: u64::MAX,
        out_of_reach_tokens: 0,
        weighed: Some(Weighed { missing_tokens: u64::MAX, allowance: 1e9 }),
    };
    let survey = survey(pool, &[], &Ask::default(), |_| 0, 0);
    let hosts = [chosen, chosen + 1, chosen];
    let pick = Pick {
        hosts,
        reason: Reason::TieHeavier,
        policy: "p2c",
        canary: false,
        drawn,
        survey,
        affinity: Some(affinity),
        terms: Vec::new(),
        shadow: None,
    };
    Admitted { pick, loads, charge: Charge::default(), waited: None }
}

#[test]
fn a_large_pools_record_is_small_and_counts_the_rest() {
    let pool = large_pool(1_000);
    let admitted = admitted(&pool, 700, vec![500, 700], (100..200).collect());
    let decision = Decision::admitted(&pool, 1, &Ask::default(), &admitted);
    let shown: Vec<&str> = decision.candidates.iter().map(|candidate| candidate.id).collect();
    assert_eq!(shown.len(), MAX_CANDIDATES);
    assert_eq!(shown[..5], ["e700", "e500", "e701", "e100", "e101"]);
    assert_eq!(decision.prefix.as_ref().unwrap().holders.len(), MAX_HOLDERS);
    let json = decision.to_json();
    assert!(json.len() < 4_096, "{} bytes", json.len());
    // Of 1,000, 334 drain and 166 more are unhealthy; those that are shown are not counted again.
    let Omitted { endpoints, excluded } = &decision.omitted;
    let shown =
        |why: Exclusion| decision.candidates.iter().filter(|shown| shown.excluded == Some(why.as_str())).count();
    let counted = |why| excluded.iter().find(|(other, _)| *other == why).map_or(0, |(_, count)| *count);
    assert_eq!(*endpoints, 1_000 - MAX_CANDIDATES);
    assert_eq!(counted(Exclusion::Draining) + shown(Exclusion::Draining), 334);
    assert_eq!(counted(Exclusion::Unhealthy) + shown(Exclusion::Unhealthy), 166);
}

#[test]
fn the_chosen_one_is_shown_though_all_were_compared() {
    let pool = large_pool(100);
    let admitted = admitted(&pool, 98, (0..100).collect(), Vec::new());
    let decision = Decision::admitted(&pool, 1, &Ask::default(), &admitted);
    assert!(decision.candidates.iter().any(|candidate| candidate.id == "e98"));
}

proptest! {
    #[test]
    fn any_numbers_are_json(
        number in any::<u64>(), load in any::<f64>(), weight in 0.01f64..100.0, in_flight in any::<u32>(), term in any::<f64>()
    ) {
        let terms = vec![("active", term)];
        let one = CandidateRecord { weight, load, in_flight, score: Some(term), terms, ..candidate("a") };
        let record = Decision { snapshot: number, candidates: vec![one], ..decision() };
        let json = json_of(&record);
        prop_assert_eq!(&json["snapshot"], &json!(number));
        prop_assert_eq!(&json["candidates"][0]["in_flight"], &json!(in_flight));
        let written = json["candidates"][0]["weight"].as_f64().unwrap();
        prop_assert!((written - weight).abs() <= 0.005 + 1e-9);
        if term.abs() < 1e9 {
            let written = json["candidates"][0]["score"].as_f64().unwrap();
            prop_assert!((written - term).abs() <= 0.005 + 1e-6, "{written} {term}");
        }
    }

    #[test]
    fn whatever_envoy_says_is_json(details in ".{0,400}") {
        let mut record = full();
        record.result.as_mut().unwrap().details = Some(details.clone());
        let json = record.to_json();
        prop_assert!(!json.bytes().any(|byte| byte < b' '));
        let json: Value = serde_json::from_str(&json).unwrap();
        let written = json["result"]["details"].as_str().unwrap();
        prop_assert!(details.starts_with(written));
        prop_assert!(written == details || written.len() > json::MAX_FOREIGN_BYTES - 4);
    }
}
