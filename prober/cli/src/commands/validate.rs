//! `validate`

use std::path::Path;

use weighbridge_prober::config::Config;

use super::files;
use crate::args::Validate;
use crate::exit::{Exit, Failure};
use crate::output::{Output, plain};
use crate::paint::{BAD, GOOD, HEAD, WARN, in_style};
use crate::validate::{Expected, Report, Severity, check};

pub(super) fn run(options: &Validate, out: Output) -> Result<Exit, Failure> {
    let expected = match &options.prober {
        Some(path) => Expected::from(&config(path)?),
        None => Expected::default(),
    };
    let text = files::read(&options.config)?;
    let name = files::shown(&options.config);
    let report = check(&text, &expected)
        .map_err(|error| Failure::new(Exit::Problems, "no_configuration", format!("{name}: {error}")))?;
    out.result(&report, || words(&name, &report));
    Ok(verdict(&report, options.strict))
}

/// How bad it is for scripts. `strict`: warnings count, too.
pub(super) fn verdict(report: &Report, strict: bool) -> Exit {
    let strict = strict && report.count(Severity::Warning) > 0;
    if report.count(Severity::Error) > 0 || strict { Exit::Problems } else { Exit::Ok }
}

/// A prober's configuration that is to be good.
pub(super) fn config(path: &Path) -> Result<Config, Failure> {
    let text = files::read(path)?;
    Config::parse(&text).map_err(|error| {
        let message = format!("{} is not a valid configuration of a prober:\n{error}", files::shown(path));
        Failure::new(Exit::Problems, "no_configuration", message)
    })
}

/// How many of something.
fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// The findings, for people.
pub(super) fn words(name: &str, report: &Report) -> String {
    let (errors, warnings) = (report.count(Severity::Error), report.count(Severity::Warning));
    let verdict = match report.findings.is_empty() {
        true => in_style(GOOD, "nothing is wrong"),
        false => in_style(HEAD, &format!("{}, {}", counted(errors, "error"), counted(warnings, "warning"))),
    };
    let mut text = format!("{name} ({}): {verdict}\n", report.kind.words());
    for finding in &report.findings {
        let style = if finding.severity == Severity::Error { BAD } else { WARN };
        let severity = in_style(style, finding.severity.as_str());
        let place = if finding.path.is_empty() { String::new() } else { format!(" {}", plain(&finding.path)) };
        text += &format!("{severity} [{}]{place}\n  {}\n", finding.rule, plain(&finding.found));
        if !finding.change.is_empty() {
            text += &format!("  change: {}\n", plain(&finding.change));
        }
    }
    text
}
