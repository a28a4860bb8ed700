//! The pages of the documentation, and what is in them.

pub(crate) mod commands;
pub(crate) mod faq;

use std::path::{Path, PathBuf};

use harness::artifacts;

/// A fenced block: file, language, content.
pub(crate) struct Block {
    pub(crate) file: PathBuf,
    pub(crate) language: String,
    pub(crate) text: String,
}

pub(crate) fn pages() -> Vec<PathBuf> {
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

pub(crate) fn blocks(language: &str) -> Vec<Block> {
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

/// A page without its fenced blocks.
pub(crate) fn prose(file: &Path) -> String {
    let text = std::fs::read_to_string(file).unwrap();
    let mut inside = false;
    let lines = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        !inside && !fence
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// What stands between backticks.
pub(crate) fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The anchors that GitHub gives to the headings of a page.
pub(crate) fn anchors(file: &Path) -> Vec<String> {
    let text = prose(file);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| -> String {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}
