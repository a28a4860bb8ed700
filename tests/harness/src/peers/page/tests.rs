use std::collections::BTreeMap;

use super::*;
use crate::peers::{CommandInfo, Machine, RouterInfo, ScenarioInfo, Span};

/// A cell of the main scenario with these 99th percentiles: TPOT in ms, and how late requests were sent in each round.
fn cell(router: &str, tpot_ms: f64, late_ms: &[f64]) -> Cell {
    let round = |late: &f64| Round { tpot_p99_ms: Some(tpot_ms), late_p99_ms: Some(*late), ..Round::default() };
    Cell {
        scenario: MAIN.into(),
        router: router.into(),
        tpot_ms: Some(Quantiles { p50: 10.0, p99: tpot_ms }),
        rounds: late_ms.iter().map(round).collect(),
        ..Cell::default()
    }
}

fn results(cells: Vec<Cell>) -> Results {
    let info = |cell: &Cell| RouterInfo {
        name: cell.router.clone(),
        how: Router::named(&cell.router).map_or("in a way that nobody knows", |router| router.how).into(),
        version: "1".into(),
        llm_aware: false,
        told: cell.router.ends_with("-weighted"),
        cpu_ms: Some(2.5),
    };
    let scenario = ScenarioInfo {
        command: 0,
        name: MAIN.into(),
        what: "86 % load".into(),
        per_second: 26.0,
        rounds: 2,
        prompt_tokens_per_s: Some(18_000.0),
        prefill_tokens_per_s: Some(24_000.0),
        not_measured: BTreeMap::from([("litellm".into(), "needs 44 ms of CPU per request".into())]),
    };
    let command = CommandInfo {
        command: "scripts/bench peers".into(),
        commit: "abc".into(),
        remark: None,
        load_before: "0.1 0.2 0.3".into(),
        date: "2026-11-30".into(),
        span: Span { warm_up_s: 5.0, measured_s: 15.0 },
        seed: 1,
        routers: cells.iter().map(info).collect(),
        left_out: BTreeMap::new(),
        measured: BTreeMap::new(),
    };
    Results {
        machine: Machine { cores: 2, cpu: "c".into(), memory_bytes: 1, kernel: "k".into() },
        commands: vec![command],
        scenarios: vec![scenario],
        cells,
        costs: Vec::new(),
    }
}

fn has(text: &str, line: &str) {
    assert!(text.lines().any(|have| have == line), "{line} is not in\n{text}");
}

#[test]
fn who_was_told_by_hand_stands_apart() {
    let cells = vec![
        cell(DIRECT, 1.0, &[1.0]),
        cell(OURS, 40.0, &[1.0]),
        cell("nginx", 80.0, &[1.0]),
        cell("haproxy", 60.0, &[1.0]),
        cell("haproxy-weighted", 30.0, &[1.0]),
        cell("nginx-weighted", 50.0, &[1.0]),
    ];
    let text = page(&results(cells));
    // The control is nobody's competitor.
    has(&text, "| TPOT p99, ms | 40.0 | 60.0 (haproxy) | 0.67 | 30.0 (haproxy-weighted) | 1.33 |");
    has(&text, "| load86 | TPOT p99, ms | 40.0 | - | 30.0 (haproxy-weighted) |");
    // As good is not behind.
    assert!(!text.contains("| load86 | TPOT p50"), "{text}");
}

#[test]
fn who_is_ahead_everywhere_is_behind_nowhere() {
    let text = page(&results(vec![cell(OURS, 40.0, &[1.0]), cell("nginx", 80.0, &[1.0])]));
    has(&text, "Nowhere.");
    has(&text, "| TPOT p99, ms | 40.0 | 80.0 (nginx) | 0.50 | - | - |");
}

#[test]
fn what_was_disturbed_is_marked_and_not_hidden() {
    let text = page(&results(vec![cell(OURS, 40.0, &[1.0, 2.0]), cell("nginx", 80.0, &[1.0, 20.1])]));
    has(&text, "| TPOT p99, ms | 40.0 | 80.0 (nginx (disturbed)) | 0.50 | - | - |");
    let row = text.lines().find(|line| line.starts_with("| nginx (disturbed) |")).unwrap();
    assert!(row.ends_with("| 1.0, 20.1 |"), "{row}");
    assert!(text.contains("It was so in 1 of 4 runs."), "{text}");
}

#[test]
fn who_was_not_measured_is_named() {
    let text = page(&results(vec![cell(OURS, 40.0, &[1.0])]));
    has(&text, "Not measured: litellm, which needs 44 ms of CPU per request.");
    assert!(text.contains("75 % of the 24000"), "{text}");
}

#[test]
fn a_set_up_that_has_changed_since_is_marked() {
    let mut of_before = results(vec![cell("nginx", 80.0, &[1.0])]);
    assert!(!page(&of_before).contains("(set up otherwise today)"));
    of_before.commands[0].routers[0].how = "in another way".into();
    has(&page(&of_before), "| nginx | 1 | 2.5 | no | in another way (set up otherwise today) |");
}

#[test]
fn every_command_has_its_own_row() {
    let one = results(vec![cell(OURS, 40.0, &[1.0])]);
    let mut other = results(vec![Cell { scenario: "load50".into(), ..cell(OURS, 30.0, &[1.0]) }]);
    other.scenarios[0].name = "load50".into();
    other.commands[0].command = "scripts/bench peers --scenario load50".into();
    other.commands[0].remark = Some("Somebody else was there.".into());
    other.commands[0].seed = 7;
    let text = page(&one.then(other).unwrap());
    has(&text, "| `scripts/bench peers` | load86 | abc | 2026-11-30 | 0.1 0.2 0.3 |");
    has(&text, "| `scripts/bench peers --scenario load50` | load50 | abc | 2026-11-30 | 0.1 0.2 0.3 |");
    has(&text, "load50: Somebody else was there.");
    assert!(text.contains("warm-up, seed 1.") && text.contains("warm-up, seed 7."), "{text}");
}
