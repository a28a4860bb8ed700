//! Whole explanations, compared with files in `tests/explain/`: `NAME.json` becomes `NAME.txt`. To write them anew after a
//! change of wording: `UPDATE_EXPLANATIONS=1 cargo test -p weighbridge-prober explain`, then look at the difference.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::json;
use weighbridge_routing::decision::record::Record;
use weighbridge_routing::eligibility::Exclusion;
use weighbridge_routing::route::{Reason, Refusal};

use super::input::{self, InputError};
use super::{explain, next};

fn golden() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/explain");
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "json")).collect();
    files.sort();
    files
}

#[test]
fn explanations_are_as_they_were_agreed() {
    let mut seen = 0;
    for path in golden() {
        let input = input::read(&std::fs::read_to_string(&path).unwrap())
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut text: String = input.records.iter().map(|record| explain(record).to_string()).collect();
        text.extend(input.undecided.iter().map(|sentence| format!("{sentence}\n")));
        let expected = path.with_extension("txt");
        if std::env::var_os("UPDATE_EXPLANATIONS").is_some() {
            std::fs::write(&expected, &text).unwrap();
        }
        let agreed = std::fs::read_to_string(&expected).unwrap_or_default();
        assert_eq!(text, agreed, "{}", path.display());
        seen += 1;
    }
    assert!(seen >= 10);
}

// A new reason must be put into words before it is put into records.
#[test]
fn every_reason_and_every_exclusion_has_words() {
    let record = |reason: &str, picked: Option<&str>, excluded: Option<&str>| -> Record {
        let candidates = json!([{"id": "a", "weight": 1.0, "in_flight": 1, "cap": 2, "excluded": excluded}]);
        let record = json!({"pool": "p", "snapshot": 1, "reason": reason, "picked": picked, "candidates": candidates});
        serde_json::from_value(record).unwrap()
    };
    let unknown = |record: &Record| {
        let text = explain(record).to_string();
        text.contains("for the reason") || text.contains("left out as")
    };
    assert!(unknown(&record("whim", Some("a"), None)));
    assert!(unknown(&record("whim", None, None)));
    assert!(unknown(&record("at_cap", None, Some("whim"))));
    use Reason::{AllIdle, Holder, Home, LowerLoad, OnlyOne, Panic, TieChance, TieHeavier};
    for reason in [OnlyOne, AllIdle, LowerLoad, TieHeavier, TieChance, Panic, Holder, Home] {
        assert!(!unknown(&record(reason.as_str(), Some("a"), None)), "{reason:?}");
    }
    for refusal in [Refusal::AtCap, Refusal::NoEndpoint, Refusal::TooLong { window: 1 }] {
        assert!(!unknown(&record(refusal.as_str(), None, None)), "{refusal:?}");
    }
    use Exclusion::{AtCap, Draining, Ejected, New, Probing, Reserved, Unhealthy, Window};
    for exclusion in [New, Probing, Draining, Unhealthy, Ejected, AtCap, Window, Reserved] {
        assert!(!unknown(&record("at_cap", None, Some(exclusion.as_str()))), "{exclusion:?}");
    }
}

#[test]
fn why_not_to_those_that_could_have_taken_it_is_what_the_record_knows() {
    // a was picked, b compared with it, c neither; two more are not shown, or, without c, all of them.
    let others = |policy: &str, reason: &str, c: bool, more: serde_json::Value| {
        let candidate =
            |id: &str, drawn: bool| json!({"id": id, "weight": 1.0, "in_flight": 1, "cap": 2, "drawn": drawn});
        let mut candidates = vec![candidate("a", true), candidate("b", true)];
        candidates.extend(c.then(|| candidate("c", false)));
        let mut record = json!({
            "pool": "p", "snapshot": 1, "policy": policy, "reason": reason, "picked": "a", "candidates": candidates, "omitted": 2,
        });
        record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let record: Record = serde_json::from_value(record).unwrap();
        super::choice::others(&record).join("\n")
    };
    let none = || json!({});
    let shown = |policy: &str, reason: &str| others(policy, reason, true, none());
    assert_eq!(
        shown("p2c", "lower_load"),
        "Not c and 2 more: could have taken it, and were not among those drawn for comparison (policy.choices)."
    );
    let canary = json!({"shadow": {"policy": "least_request", "picked": "a", "routed": true}});
    assert!(others("p2c", "lower_load", true, canary).contains("(policy.canary.choices)"));
    assert!(shown("p2c", "holder").ends_with(", nor the one that was preferred for what it holds of the prompt."));
    let waited = json!({"queue": {"wait_ms": 9}});
    assert!(others("p2c", "holder", true, waited).ends_with("and the slot that it was given came free elsewhere."));
    assert!(shown("p2c", "home").ends_with("nor where a prompt that begins like this belongs."));
    assert!(
        shown("p2c", "granted")
            .ends_with("and another slot was given to it, the first to come free that it could use.")
    );
    assert!(shown("round_robin", "turn").ends_with("and it was not their turn."));
    assert!(shown("random", "chance").ends_with("and chance fell on another."));
    assert!(
        shown("p2c", "panic")
            .starts_with("Not c and 2 more: ejected, as all that could serve were, and were not among")
    );
    assert!(shown("score", "panic").ends_with("could have taken it; the record does not say why they did not."));
    assert!(shown("p2c", "whim").ends_with("could have taken it; the record does not say why they did not."));

    // All that are shown were compared, and perhaps not only they.
    let unseen = |policy: &str, reason: &str| others(policy, reason, false, none());
    assert_eq!(unseen("p2c", "all_idle"), "Not 2 endpoints: had nothing to do either, and are no faster.");
    assert_eq!(
        unseen("score", "lower_score"),
        "Not 2 endpoints: were compared too, and scored no lower; this record has no room for them."
    );
    assert!(unseen("p2c", "lower_load").ends_with("and does not say whether they were compared."));
    // Nobody is left over whom the record leaves out for another reason.
    assert!(!others("p2c", "lower_load", false, json!({"omitted_excluded": {"at_cap": 2}})).contains("could"));
}

#[test]
fn every_step_leads_to_a_chapter() {
    let page = include_str!("../../../docs/operations.md");
    let headings: Vec<String> = page
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| {
            let text = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
            text.chars().filter(|character| character.is_alphanumeric() || "-_".contains(*character)).collect()
        })
        .collect();
    for step in next::ALL {
        assert!(headings.iter().any(|heading| heading == step.anchor), "{}: {headings:?}", step.anchor);
    }
}

#[test]
fn records_are_found_however_they_were_saved() {
    let record = json!({"time_ms": 5, "pool": "p", "snapshot": 1, "reason": "only_one", "picked": "a"});
    let line =
        json!({"time": "2026-01-01T00:00:00.000Z", "request_id": "r", "status": 200, "decision": record.to_string()});
    let early = json!({"request_id": "r", "status": 404, "details": "weighbridge_model_not_found", "decision": null});
    let found = |text: &str| {
        let input = input::read(text).unwrap();
        (input.records.len(), input.undecided.len())
    };
    assert_eq!(found(&record.to_string()), (1, 0));
    assert_eq!(found(&format!("{record:#}")), (1, 0));
    assert_eq!(found(&json!([record, record]).to_string()), (2, 0));
    assert_eq!(found(&json!({"decisions": [record], "matched": 1, "kept": 9}).to_string()), (1, 0));
    assert_eq!(found(&format!("{line}\n{early}\n\n{record}\n")), (2, 1));
    let read = input::read(&line.to_string()).unwrap();
    assert_eq!((read.records[0].request_id.as_deref(), read.records[0].time_ms), (Some("r"), 5));
    let read = input::read(&early.to_string()).unwrap();
    assert!(read.undecided[0].contains("404") && read.undecided[0].contains("model_not_found"), "{:?}", read.undecided);
}

#[test]
fn what_is_no_record_is_said_to_be_none() {
    let error = |text: &str| input::read(text).unwrap_err();
    assert_eq!(error(" \n"), InputError::Empty);
    assert_eq!(error(r#"{"decisions": []}"#), InputError::Nothing);
    assert_eq!(error("[]"), InputError::Nothing);
    for (text, word) in [
        ("what happened?", "line 1"),
        ("{\"pool\": 1\n\n,}", "line 3"),
        ("{\"decision\": null}\n\nnope", "line 3"),
        ("7", "a number"),
        ("[7]", "record 0 of the file"),
        (r#"{"pool": "p"}"#, "missing field"),
        (r#"{"error": {"code": "unauthorized"}}"#, "error answer"),
        (r#"{"decision": "{"}"#, "decision: EOF"),
        (r#"{"pool": 7, "snapshot": 1, "reason": "x"}"#, "expected a string"),
    ] {
        let said = error(text).to_string();
        assert!(said.contains(word), "{text}: {said}");
    }
}

proptest! {
    #[test]
    fn any_text_is_explained_or_refused(text in ".{0,200}") {
        let _ = input::read(&text);
    }

    // Numbers that no filter writes must not bring the program down, and foreign words must not reach a terminal raw.
    #[test]
    fn any_record_can_be_explained(
        numbers in proptest::collection::vec(any::<u64>(), 8), load in any::<f64>(), status in any::<u16>(), words in "\\PC*\u{1b}\u{7}\r\\PC*"
    ) {
        let [a, b, c, d, e, f, g, h] = numbers[..] else { unreachable!() };
        let in_flight = a as u32;
        let record = json!({
            "time_ms": a, "pool": words, "snapshot": b, "reason": words, "picked": words, "omitted": c, "request_id": words,
            "omitted_excluded": {&words: d, "at_cap": e}, "prompt_tokens": f, "output_tokens": g,
            "candidates": [{"id": words, "weight": load, "in_flight": in_flight, "cap": in_flight, "load": load, "drawn": true,
                "score": load, "terms": {&words: load}, "elsewhere": in_flight, "excluded": words}],
            "prefix": {"holders": [words], "matched_tokens": a, "missing_tokens": b, "allowance": load},
            "queue": {"wait_ms": h, "position": a, "ticket": b}, "spilled_from": words, "signals": words, "shadow": {"policy": words, "picked": words},
            "result": {"endpoint": words, "status": status, "attempts": in_flight, "ttft_ms": a, "duration_ms": b,
                "prompt_tokens": c, "cached_tokens": d, "completion_tokens": e, "finish": words, "tried": [words], "details": words},
        });
        // JSON has no word for what is not a number.
        if let Ok(record) = serde_json::from_value::<Record>(record) {
            let text = explain(&record).to_string();
            prop_assert!(!text.chars().any(|character| character.is_control() && character != '\n'));
        }
    }
}
