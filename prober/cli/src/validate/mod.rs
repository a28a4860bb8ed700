//! Says what is wrong with a configuration before anything runs with it: a prober's file, or an Envoy bootstrap with our filter.
//! Pure: a text in, a [`Report`] out (only a prober's file names others, which are looked at).
//!
//! - [`document`]: which kind it is, whichever way it is written.
//! - [`place`]: a value and where it stands.
//! - [`wiring`]: what of an Envoy configuration is ours.
//! - [`rules`]: one trap each.

pub mod document;
pub mod place;
pub mod rules;
pub mod wiring;

use serde::Serialize;
use weighbridge_prober::config::Config;

use document::Document;
pub use rules::{RULES, Rule};
use wiring::Wiring;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Requests would fail, go elsewhere, or be steered by clients.
    Error,
    /// It works, and yet not as well as it could.
    Warning,
}

impl Severity {
    /// In JSON and in front of a line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Which rule says so; `prober` for what the prober's own check says.
    pub rule: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// Where, such as `static_resources.listeners[0].name`.
    pub path: String,
    /// What stands there, and what comes of it.
    pub found: String,
    /// What to write instead.
    pub change: String,
}

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A prober's configuration.
    Prober,
    /// A whole Envoy bootstrap.
    Bootstrap,
    /// Parts of one, as `envoy/mesh/envoy-snippet.yaml` has them.
    Fragment,
}

impl Kind {
    /// For people.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Kind::Prober => "configuration of a prober",
            Kind::Bootstrap => "Envoy bootstrap",
            Kind::Fragment => "part of an Envoy configuration",
        }
    }
}

/// What is said of a file.
#[derive(Debug, Serialize)]
pub struct Report {
    /// What it is.
    pub kind: Kind,
    /// What is wrong with it, in the order of the rules.
    pub findings: Vec<Finding>,
}

impl Report {
    /// How many findings are this bad.
    #[must_use]
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }
}

/// What the configuration of the prober says that an Envoy of its must suit.
#[derive(Debug, Clone)]
pub struct Expected {
    /// The largest body in bytes that the filter takes.
    pub max_body: u64,
    /// The pools, each of which is a cluster.
    pub pools: Vec<String>,
}

impl Default for Expected {
    fn default() -> Self {
        Expected { max_body: weighbridge_routing::snapshot::wire::Filter::default().max_body, pools: Vec::new() }
    }
}

impl From<&Config> for Expected {
    fn from(config: &Config) -> Self {
        Expected {
            max_body: config.filter.max_body,
            pools: config.pools.iter().map(|pool| pool.wire.name.clone()).collect(),
        }
    }
}

/// Checks a file's content.
///
/// # Errors
/// When it is not even a configuration.
pub fn check(text: &str, expected: &Expected) -> Result<Report, document::NoDocument> {
    let document = document::read(text)?;
    let findings = match &document {
        Document::Prober => prober(text),
        Document::Envoy { root, fragment } => {
            let wiring = Wiring::of(root, *fragment, expected);
            RULES.iter().flat_map(|rule| rule.findings(&wiring)).collect()
        }
    };
    Ok(Report { kind: document.kind(), findings })
}

/// What `weighbridge-prober --check` says. Each sentence begins with the field.
fn prober(text: &str) -> Vec<Finding> {
    let report = Config::check(text);
    let errors = report.errors.into_iter().map(|sentence| (Severity::Error, sentence));
    let warnings = report.warnings.into_iter().map(|sentence| (Severity::Warning, sentence));
    let finding = |(severity, sentence): (Severity, String)| {
        let (found, change) = match sentence.split_once(": expected ") {
            Some((found, expected)) => (found.to_owned(), format!("expected {expected}")),
            None => (sentence, String::new()),
        };
        let (path, found) = match found.split_once(" is ") {
            Some((path, is)) if !path.contains(' ') => (path.to_owned(), format!("is {is}")),
            _ => (String::new(), found),
        };
        Finding { rule: "prober", severity, path, found, change }
    };
    errors.chain(warnings).map(finding).collect()
}
