//! Commands that the pages show, in `sh` blocks and in running text: our programs know the commands and options, our scripts
//! take them, and the prober serves what is fetched from it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::artifacts;
use weighbridge_routing::request::Shape;

use super::{blocks, pages, prose, quoted};

/// A command with its arguments, and the page that shows it.
struct Shown {
    page: PathBuf,
    words: Vec<String>,
}

impl Shown {
    fn program(&self) -> &str {
        self.words.first().map(String::as_str).unwrap_or_default()
    }

    fn line(&self) -> String {
        format!("{}: {}", self.page.display(), self.words.join(" "))
    }
}

/// Every command of a line of shell, without assignments before it and without comments.
fn split(page: &Path, line: &str) -> Vec<Shown> {
    let line = line.split(" #").next().unwrap_or_default();
    let parts = line.split(['|', ';', '&']).flat_map(|part| part.split("$("));
    let words = parts.map(|part| {
        let words = part.split_whitespace().map(|word| word.trim_matches(['"', '\'', ')']).to_owned());
        words.skip_while(|word| {
            word.split_once('=').is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
        })
    });
    words
        .map(|words| Shown { page: page.to_owned(), words: words.collect() })
        .filter(|shown| !shown.words.is_empty())
        .collect()
}

/// Everything that is shown.
fn all() -> Vec<Shown> {
    let mut all = Vec::new();
    for block in blocks("sh") {
        let text = block.text.replace("\\\n", " ");
        all.extend(
            text.lines().filter(|line| !line.trim_start().starts_with('#')).flat_map(|line| split(&block.file, line)),
        );
    }
    for page in pages() {
        // What a version that is no longer could do is none of ours.
        if page.ends_with("CHANGELOG.md") {
            continue;
        }
        let text = prose(&page);
        // Only what has arguments is a command; the name alone is the program.
        let spans = quoted(&text).filter(|span| span.contains(' ') && !span.contains('\n'));
        all.extend(spans.flat_map(|span| split(&page, span)));
    }
    all
}

/// What a program says of itself, each question asked once.
#[derive(Default)]
struct Helps(HashMap<(PathBuf, String), String>);

impl Helps {
    /// The help of a program, or of one of its commands.
    fn of(&mut self, program: &Path, command: &str) -> &str {
        self.0.entry((program.to_owned(), command.to_owned())).or_insert_with(|| {
            let words = command.split_whitespace().chain(["--help"]);
            let output = Command::new(program).args(words).output();
            let output = output.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
            assert!(output.status.success(), "{} {command} --help failed", program.display());
            String::from_utf8(output.stdout).unwrap()
        })
    }
}

/// The commands that a help lists.
fn commands(help: &str) -> Vec<&str> {
    let list = help.split_once("Commands:\n").map_or("", |(_, list)| list);
    let lines = list.lines().take_while(|line| line.starts_with(' '));
    lines
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .collect()
}

fn has_option(help: &str, option: &str) -> bool {
    help.split(|c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']' | '=' | '`')).any(|word| word == option)
}

/// Fails unless the program at this path knows the command and its options.
fn known(helps: &mut Helps, program: &Path, shown: &Shown) {
    let help = helps.of(program, "").to_owned();
    let listed = commands(&help);
    let arguments: Vec<&str> =
        shown.words.iter().skip(1).take_while(|word| *word != "--").map(String::as_str).collect();
    let command = arguments.iter().find(|word| listed.contains(word)).copied().unwrap_or_default();
    if let Some(first) =
        arguments.first().filter(|first| !listed.is_empty() && first.chars().all(|c| c.is_ascii_lowercase()))
    {
        assert!(listed.contains(first), "{}: there is no command {first}", shown.line());
    }
    let own = if command.is_empty() { String::new() } else { helps.of(program, command).to_owned() };
    for option in arguments.iter().filter(|word| word.starts_with("--")) {
        let option = option.split('=').next().unwrap_or_default();
        assert!(has_option(&help, option) || has_option(&own, option), "{}: there is no {option}", shown.line());
    }
}

/// Fails unless the fleet simulator has the command and its options. It is a program of another crate, which is not built for this:
/// commands and options are looked for among the arguments in its source.
fn known_to_fleet_sim(shown: &Shown) {
    let command = shown.words.get(2).cloned().unwrap_or_else(|| "show".into());
    let read = |path: &str| {
        let path = artifacts::root().join("tests/fleet-sim/src").join(path);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {}: {error}", shown.line(), path.display()))
    };
    let source = [read(&format!("command/{command}.rs")), read("command/mod.rs"), read("scene.rs")].concat();
    for option in shown.words.iter().filter_map(|word| word.strip_prefix("--")).filter(|option| !option.is_empty()) {
        let field = option.split('=').next().unwrap_or_default().replace('-', "_");
        let argument = |line: &str| line.trim_start().trim_start_matches("pub ").starts_with(&format!("{field}: "));
        assert!(source.lines().any(argument), "{}: it takes no --{option}", shown.line());
    }
}

/// Fails unless everything that is shown of our programs and scripts exists.
pub(crate) fn check() {
    let mut helps = Helps::default();
    let dist = artifacts::root().join("dist");
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for shown in all() {
        let options = || shown.words.iter().skip(1).filter(|word| word.starts_with("--"));
        let name = match shown.program() {
            "weighbridge-prober" | "dist/weighbridge-prober" => {
                known(&mut helps, &artifacts::prober().unwrap(), &shown);
                "weighbridge-prober"
            }
            "weighbridge" | "dist/weighbridge" => {
                known(&mut helps, &dist.join("weighbridge"), &shown);
                "weighbridge"
            }
            "scripts/run" => {
                known(&mut helps, Path::new(env!("CARGO_BIN_EXE_weighbridge-run")), &shown);
                "scripts/run"
            }
            "scripts/bench" if shown.words.get(1).is_some_and(|word| word == "sim") => {
                known_to_fleet_sim(&shown);
                "scripts/bench"
            }
            // Done by the script itself.
            "scripts/bench"
                if shown.words.get(1).is_some_and(|word| word.starts_with("--install-") || word == "hotpath") =>
            {
                let script = std::fs::read_to_string(artifacts::root().join("scripts/bench")).unwrap();
                let case = format!("{})", shown.words[1]);
                let known = script.lines().any(|line| line.trim_start().starts_with(&case));
                assert!(known, "{}: there is no such case", shown.line());
                "scripts/bench"
            }
            "scripts/bench" => {
                known(&mut helps, Path::new(env!("CARGO_BIN_EXE_weighbridge-bench")), &shown);
                "scripts/bench"
            }
            // What follows goes to cargo.
            "scripts/test" => continue,
            program if program.starts_with("scripts/") => {
                let script = std::fs::read_to_string(artifacts::root().join(program));
                let script = script.unwrap_or_else(|error| panic!("{}: {error}", shown.line()));
                for option in options() {
                    assert!(script.contains(&format!("{option})")), "{}: it takes no {option}", shown.line());
                }
                "other scripts"
            }
            _ => continue,
        };
        *seen.entry(name).or_default() += 1;
    }
    for name in ["weighbridge", "weighbridge-prober", "scripts/run", "scripts/bench", "other scripts"] {
        assert!(seen.get(name).is_some_and(|count| *count > 1), "{name}: {seen:?}");
    }
}

/// Whether a path is that of a route, in which `{...}` stands for one part.
fn leads_to(path: &str, route: &str) -> bool {
    let (path, route): (Vec<&str>, Vec<&str>) = (path.split('/').collect(), route.split('/').collect());
    path.len() == route.len()
        && path.iter().zip(&route).all(|(part, of)| part == of || of.starts_with('{') && !part.is_empty())
}

/// Fails unless every route of the prober that a page names is in `docs/api.md`, which is made of the API itself.
pub(crate) fn check_routes() {
    let api = std::fs::read_to_string(artifacts::root().join("docs/api.md")).unwrap();
    let routes: Vec<(&str, &str)> =
        api.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`')?.split_once(' ')).collect();
    assert!(routes.len() > 12, "{routes:?}");
    let exists = |method: &str, path: &str| {
        let path = path.split(['?', '#']).next().unwrap_or_default();
        // The gateway's own paths look alike.
        let gateway = Shape::of_path(path.as_bytes()).is_some() || path.starts_with("/v1/models");
        gateway || routes.iter().any(|(known, route)| *known == method && leads_to(path, route))
    };
    let mut seen = 0;
    for page in pages().iter().filter(|page| !page.ends_with("CHANGELOG.md")) {
        for span in quoted(&prose(page)) {
            let Some((method, path)) = span.split_once(' ') else { continue };
            if ["GET", "POST", "PUT", "DELETE"].contains(&method) && path.starts_with("/v1/") {
                let path = path.split_whitespace().next().unwrap_or_default();
                assert!(exists(method, path), "{}: there is no {method} {path}", page.display());
                seen += 1;
            }
        }
    }
    for block in blocks("sh") {
        let text = block.text.replace("\\\n", " ");
        for shown in text.lines().flat_map(|line| split(&block.file, line)).filter(|shown| shown.program() == "curl") {
            let Some(path) = shown.words.iter().find_map(|word| word.split_once(":7070").map(|(_, path)| path)) else {
                continue;
            };
            let given = shown.words.iter().skip_while(|word| *word != "-X" && *word != "--request").nth(1);
            let method = given.map_or("GET", String::as_str);
            assert!(path.contains('$') || exists(method, path), "{}: there is no {method} {path}", shown.line());
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen}");
}
