//! What the documentation shows, works: scripts exist, YAML parses, prober configurations pass the prober's own check,
//! links lead somewhere, commands, options, routes and packages that are shown exist, and so do the tests that answers name;
//! the page about requests knows every path and every error, and the one for the on-call person every reason.

use std::process::Command;

use harness::artifacts;
use weighbridge_routing::api_error::ApiError;
use weighbridge_routing::eligibility::{Ask, Exclusion};
use weighbridge_routing::live::table;
use weighbridge_routing::request::{RequestError, Shape, Style};
use weighbridge_routing::route::{Reason, Refusal};
use weighbridge_routing::snapshot;

use crate::pages::{anchors, blocks, pages, quoted};

#[test]
fn every_script_that_is_shown_exists() {
    let mut seen = 0;
    for block in blocks("sh") {
        for word in block.text.split_whitespace().filter(|word| word.starts_with("scripts/")) {
            let path = artifacts::root().join(word);
            let mode =
                std::fs::metadata(&path).map(|meta| std::os::unix::fs::PermissionsExt::mode(&meta.permissions()));
            assert!(mode.is_ok_and(|mode| mode & 0o111 != 0), "{}: {word} cannot be run", block.file.display());
            seen += 1;
        }
        let syntax = Command::new("bash").args(["-n", "-c", &block.text]).output().unwrap();
        assert!(syntax.status.success(), "{}: {}", block.file.display(), String::from_utf8_lossy(&syntax.stderr));
    }
    assert!(seen >= 3, "the README shows run, test and bench");
}

/// What `weighbridge-prober --check` says: Ok, or everything it printed.
fn check(config: &str) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("prober.yaml");
    std::fs::write(&path, config).unwrap();
    let mut command = Command::new(artifacts::prober().unwrap());
    let output = command.current_dir(artifacts::root()).arg("--check").arg(&path).output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&printed).into_owned()) }
}

#[test]
fn every_prober_configuration_that_is_shown_passes_its_check() {
    let mut checked = 0;
    for block in blocks("yaml") {
        let value: serde_json::Value = serde_yaml_ng::from_str(&block.text)
            .unwrap_or_else(|error| panic!("{}: {error}\n{}", block.file.display(), block.text));
        if value.get("pools").is_none() {
            continue;
        }
        check(&block.text).unwrap_or_else(|errors| panic!("{}: {errors}", block.file.display()));
        // The check is one that can fail.
        let errors = check(&format!("{}\nweights: guessed\n", block.text)).unwrap_err();
        assert!(errors.contains("weights"), "{errors}");
        checked += 1;
    }
    assert!(checked > 0, "the README shows a configuration");
}

#[test]
fn every_relative_link_leads_somewhere() {
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for (_, rest) in text.match_indices("](").map(|(at, _)| text.split_at(at + 2)) {
            let link = rest.split(')').next().unwrap_or_default();
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link} leads nowhere", page.display());
            let found = anchor.is_empty() || anchors(&target).iter().any(|known| known == anchor);
            assert!(found, "{}: {link}: there is no such heading", page.display());
        }
    }
}

#[test]
fn the_readme_lists_every_page() {
    let readme = std::fs::read_to_string(artifacts::root().join("README.md")).unwrap();
    let docs = artifacts::root().join("docs");
    for page in pages().iter().filter(|page| page.parent() == Some(&docs)) {
        let link = format!("(docs/{})", page.file_name().unwrap().to_string_lossy());
        let listed = readme.lines().any(|line| line.starts_with("| [docs/") && line.contains(&link));
        assert!(listed, "{link} is not in the README's table");
    }
}

#[test]
fn every_command_that_is_shown_exists_with_its_options() {
    crate::pages::commands::check();
}

#[test]
fn every_route_of_the_prober_that_is_shown_exists() {
    crate::pages::commands::check_routes();
}

#[test]
fn every_answer_to_a_question_names_a_test_that_exists() {
    crate::pages::faq::check();
}

#[test]
fn the_formats_of_a_release_are_those_of_the_code() {
    let page = std::fs::read_to_string(artifacts::root().join("docs/release.md")).unwrap();
    let formats = [("snapshot", u64::from(snapshot::FORMAT)), ("live table", u64::from(table::FORMAT))];
    for (format, now) in formats {
        let row = page.lines().find(|line| line.starts_with(&format!("| {format} |"))).unwrap_or_default();
        assert_eq!(row.split('|').nth(3).map(str::trim), Some(now.to_string().as_str()), "{format}: {row}");
    }
}

#[test]
fn every_package_that_is_run_exists() {
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(artifacts::root())
        .output()
        .unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).unwrap();
    let packages: Vec<&str> =
        metadata["packages"].as_array().unwrap().iter().filter_map(|package| package["name"].as_str()).collect();
    let mut seen = 0;
    for block in blocks("sh") {
        for line in block.text.lines().filter(|line| line.starts_with("cargo run")) {
            let package = line.split_whitespace().skip_while(|word| *word != "-p").nth(1).unwrap_or_default();
            assert!(packages.contains(&package), "{}: {line}: no such package", block.file.display());
            seen += 1;
        }
    }
    assert!(seen > 0, "the README shows the fleet simulator");
}

fn requests_page() -> String {
    std::fs::read_to_string(artifacts::root().join("docs/requests.md")).unwrap()
}

/// The paths in the table of shapes.
fn paths() -> Vec<String> {
    let page = requests_page();
    let (_, rest) = page.split_once("\n## Shapes\n").unwrap();
    let (table, _) = rest.split_once("\n## ").unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `/"));
    rows.flat_map(|row| quoted(row.split('|').nth(1).unwrap())).map(str::to_owned).collect()
}

#[test]
fn the_table_of_shapes_has_every_shape_and_no_other_path() {
    let mut shapes = Vec::new();
    for path in paths() {
        let shape = Shape::of_path(path.as_bytes()).unwrap_or_else(|| panic!("{path} is served by nobody"));
        shapes.push(shape);
    }
    for shape in Shape::ALL {
        assert!(shapes.contains(&shape), "{shape:?} is missing");
    }
}

#[test]
fn a_path_that_is_not_served_is_told_all_that_are() {
    let config = std::fs::read_to_string(artifacts::root().join("envoy/envoy.yaml")).unwrap();
    let (_, message) = config.split_once("this gateway serves ").unwrap();
    let (message, _) = message.split_once('"').unwrap();
    let told: Vec<&str> = message.split([' ', ',']).filter(|word| word.starts_with('/')).collect();
    for path in paths() {
        assert!(told.contains(&path.as_str()), "{path} is missing in {message:?}");
    }
}

#[test]
fn the_table_of_errors_has_every_error() {
    let page = requests_page();
    let (_, table) = page.split_once("\n## Errors\n").unwrap();
    let ask = Ask::default();
    let errors = [
        ApiError::unreadable(&RequestError::NoModel),
        ApiError::unreadable(&RequestError::Encoding("br".into())),
        ApiError::unreadable(&RequestError::TooLarge(1)),
        ApiError::model_not_found("m"),
        ApiError::not_renamed("a", "b"),
        ApiError::method_not_allowed("GET", "/"),
        ApiError::too_large(1),
        ApiError::refused(Refusal::TooLong { window: 1 }, "p", &ask, Shape::Chat),
        ApiError::refused(Refusal::AtCap, "p", &ask, Shape::Chat),
        ApiError::refused(Refusal::QueueFull, "p", &ask, Shape::Chat),
        ApiError::refused(Refusal::NoEndpoint, "p", &ask, Shape::Chat),
        ApiError::queue_timeout("p", 1, 1),
        ApiError::pool_gone("p"),
        ApiError::header("h", b"v", "e"),
        ApiError::not_configured(),
    ];
    for error in errors {
        let openai: serde_json::Value = serde_json::from_slice(&error.body(Style::OpenAi)).unwrap();
        let anthropic: serde_json::Value = serde_json::from_slice(&error.body(Style::Anthropic)).unwrap();
        let code = openai["error"]["code"].as_str().unwrap();
        let begins = format!("| {} | `{code}` |", error.status);
        let row = table.lines().find(|line| line.starts_with(&begins)).unwrap_or_else(|| panic!("no row {begins}"));
        let kind = quoted(row).last().unwrap();
        assert_eq!(anthropic["error"]["type"], kind, "{row}");
        let retry = error.retry_after_s.map(|seconds| format!("`retry-after: {seconds}`"));
        assert_eq!(row.contains("`retry-after"), retry.is_some(), "{row}");
        assert!(retry.is_none_or(|retry| row.contains(&retry)), "{row}");
    }
}

#[test]
fn the_on_call_page_explains_every_reason() {
    use Exclusion::{AtCap, Draining, Ejected, New, Prefill, Probing, Reserved, Unhealthy, Window};
    let page = std::fs::read_to_string(artifacts::root().join("docs/operations.md")).unwrap();
    let explained: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).flat_map(quoted).collect();
    let reasons = [
        Reason::OnlyOne,
        Reason::AllIdle,
        Reason::LowerLoad,
        Reason::LowerScore,
        Reason::TieHeavier,
        Reason::TieChance,
        Reason::Turn,
        Reason::Chance,
        Reason::Panic,
        Reason::Holder,
        Reason::Home,
        Reason::Granted,
    ];
    let refusals = [Refusal::AtCap, Refusal::QueueFull, Refusal::NoEndpoint, Refusal::TooLong { window: 1 }];
    let ours = ["spill", "queue_timeout", "client_left"];
    for word in reasons.map(Reason::as_str).into_iter().chain(refusals.map(Refusal::as_str)).chain(ours) {
        assert!(explained.contains(&word), "{word} has no row");
    }
    let all: Vec<&str> = quoted(&page).collect();
    for exclusion in [New, Probing, Draining, Unhealthy, Ejected, AtCap, Prefill, Window, Reserved] {
        assert!(all.contains(&exclusion.as_str()), "{exclusion:?} is not explained");
    }
}
