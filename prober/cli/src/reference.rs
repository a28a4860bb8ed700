//! The parts of `docs/cli.md` that are made of the program itself.

use std::fmt::Write;

use clap::{Arg, Command, CommandFactory};

use crate::args::Options;
use crate::exit::Exit;
use crate::validate::RULES;

/// A part of the page: its name, and what stands there.
#[must_use]
pub fn parts() -> [(&'static str, String); 3] {
    [("commands", commands()), ("exit codes", exits()), ("rules", rules())]
}

/// The page with its parts as they should be.
///
/// # Errors
/// When it lacks the marks of a part, which are these two lines: `<!-- begin NAME -->`, `<!-- end NAME -->`.
pub fn renewed(page: &str) -> Result<String, String> {
    let mut page = page.to_owned();
    for (name, content) in parts() {
        let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->"));
        let (before, rest) = page.split_once(&begin).ok_or_else(|| format!("no line {begin:?}"))?;
        let (_, after) = rest.split_once(&end).ok_or_else(|| format!("no line {end:?}"))?;
        page = format!("{before}{begin}\n{}\n\n{end}{after}", content.trim());
    }
    Ok(page)
}

fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn exits() -> String {
    let mut text = "| code | means |\n|---|---|\n".to_owned();
    for (exit, means) in Exit::ALL {
        let _ = writeln!(text, "| {} | {means} |", exit as u8);
    }
    text
}

fn rules() -> String {
    let mut text = "| rule | | what comes of it | change |\n|---|---|---|---|\n".to_owned();
    for rule in RULES {
        let severity = rule.severity.as_str();
        let _ = writeln!(text, "| `{}` | {severity} | {} | {} |", rule.id, escaped(rule.trap), escaped(rule.change));
    }
    text
}

fn commands() -> String {
    let mut root = Options::command();
    root.build();
    let mut text = String::new();
    let global: Vec<_> = root.get_arguments().filter(|arg| arg.is_global_set()).cloned().collect();
    let _ = writeln!(text, "### Options of every command\n\n{}", options(&global));
    for command in root.get_subcommands().filter(|command| command.get_name() != "help") {
        let about = sentence(command.get_about().map(ToString::to_string).unwrap_or_default());
        let _ = writeln!(text, "### weighbridge {}\n\n{about}\n\n```\n{}\n```\n", command.get_name(), usage(command));
        let own: Vec<_> =
            command.get_arguments().filter(|arg| !arg.is_global_set() && !is_usual(arg)).cloned().collect();
        if !own.is_empty() {
            let _ = writeln!(text, "{}", options(&own));
        }
    }
    text
}

/// clap takes the last full stop away.
fn sentence(text: String) -> String {
    if text.is_empty() || text.ends_with('.') { text } else { text + "." }
}

fn is_usual(arg: &Arg) -> bool {
    ["help", "version"].contains(&arg.get_id().as_str())
}

fn usage(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    usage.trim_start_matches("Usage: ").trim().to_owned()
}

fn options(args: &[Arg]) -> String {
    let mut text = "| option | |\n|---|---|\n".to_owned();
    for arg in args {
        let values =
            arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let takes = arg.get_action().takes_values();
        let name = match arg.get_long() {
            None => values,
            Some(long) if takes => format!("--{long} {values}"),
            Some(long) => format!("--{long}"),
        };
        let mut about = sentence(arg.get_help().map(ToString::to_string).unwrap_or_default());
        let choices: Vec<_> = arg.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
        if takes && !choices.is_empty() {
            about += &format!(" One of {}.", choices.join(", "));
        }
        let default: Vec<_> = arg
            .get_default_values()
            .iter()
            .filter_map(|value| value.to_str())
            .filter(|text| !text.is_empty())
            .collect();
        if takes && !default.is_empty() {
            about += &format!(" Default: `{}`.", default.join(", "));
        }
        if let Some(variable) = arg.get_env().and_then(|name| name.to_str()) {
            about += &format!(" Variable: `{variable}`.");
        }
        let _ = writeln!(text, "| `{}` | {} |", name.trim(), escaped(&about));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_made_of_the_program() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
        let page = std::fs::read_to_string(&path).unwrap();
        let renewed = renewed(&page).unwrap();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &renewed).unwrap();
        } else {
            assert!(page == renewed, "docs/cli.md is not what the program says: run the tests with UPDATE_DOCS=1");
        }
    }
}
