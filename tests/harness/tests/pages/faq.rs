//! `docs/faq.md`: each answer names a test, and there is one.

use harness::artifacts;

/// Fails unless every case of other routers is in it, and every answer names a test that exists.
pub(crate) fn check() {
    let page = std::fs::read_to_string(artifacts::root().join("docs/faq.md")).unwrap();
    let questions: Vec<&str> = page.split("\n### ").skip(1).collect();
    assert!(questions.len() > 25, "{}", questions.len());
    for question in questions {
        let title = question.lines().next().unwrap();
        let shown: Vec<&str> = question.lines().filter(|line| line.starts_with("Shown by ")).collect();
        assert!(!shown.is_empty(), "{title}: no test shows it");
        for line in shown {
            let [file, test]: [&str; 2] = super::quoted(line).collect::<Vec<_>>().try_into().unwrap();
            let source = std::fs::read_to_string(artifacts::root().join(file));
            let source = source.unwrap_or_else(|error| panic!("{title}: {file}: {error}"));
            let (before, _) =
                source.split_once(&format!("fn {test}(")).unwrap_or_else(|| panic!("{title}: {file} has no {test}"));
            let attribute = before.lines().rev().find(|line| line.trim_start().starts_with("#["));
            assert!(attribute.is_some_and(|line| line.contains("test")), "{title}: {test} is no test");
        }
    }
    for case in 1..=25 {
        assert!(page.contains(&format!("(C{case})")), "case C{case} is not answered");
    }
}
