//! What the documentation shows, works: scripts exist, YAML parses, prober configurations pass the prober's own check,
//! links lead somewhere.

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::artifacts;

/// A fenced block: file, language, content.
struct Block {
    file: PathBuf,
    language: String,
    text: String,
}

fn pages() -> Vec<PathBuf> {
    fn collect(directory: &Path, pages: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, pages);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    let mut pages = vec![artifacts::root().join("README.md"), artifacts::root().join("CHANGELOG.md")];
    collect(&artifacts::root().join("docs"), &mut pages);
    pages
}

fn blocks(language: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    for file in pages() {
        let text = std::fs::read_to_string(&file).unwrap();
        let mut open: Option<Block> = None;
        for line in text.lines() {
            match (line.trim_start().strip_prefix("```"), &mut open) {
                (Some(language), None) => {
                    open = Some(Block { file: file.clone(), language: language.trim().into(), text: String::new() });
                }
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (None, Some(block)) => {
                    block.text.push_str(line);
                    block.text.push('\n');
                }
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{}: a block is not closed", file.display());
    }
    blocks.retain(|block| block.language == language);
    blocks
}

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
        let errors = check(&block.text.replace("served_model", "server_model")).unwrap_err();
        assert!(errors.contains("server_model"), "{errors}");
        checked += 1;
    }
    assert!(checked > 0, "the README shows a configuration");
}

#[test]
fn every_relative_link_leads_somewhere() {
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for (_, rest) in text.match_indices("](").map(|(at, _)| text.split_at(at + 2)) {
            let link = rest.split(')').next().unwrap_or_default().split('#').next().unwrap_or_default();
            if link.is_empty() || link.contains("://") {
                continue;
            }
            let target = page.parent().unwrap().join(link);
            assert!(target.exists(), "{}: {link} leads nowhere", page.display());
        }
    }
}
