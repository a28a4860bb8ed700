//! The configuration file: read strictly, checked whole, and turned into values that cannot be wrong.
//!
//! [`Config::parse`] reports everything that is wrong with a file at once, each with its field, the value, and what was
//! expected: fields that do not exist ([`fields`]) and values of another type ([`shape`]), then values that cannot be ([`checked`]).
//! Only what is not YAML ends the reading.

mod checked;
mod fields;
mod health;
mod networks;
mod raw;
mod reach;
pub mod reference;
mod shape;
mod signals;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_yaml_ng::Value;
use weighbridge_routing::snapshot::wire;
use weighbridge_routing::weight::Clamp;

use crate::api::Token;
use crate::caps::Sizing;
use crate::engine::access::{Access, May};
use crate::store::Place;
use crate::tls;
pub use health::Health;
pub use networks::Networks;
pub use reach::{EngineTls, KeyPlace, Reach};
pub use signals::{Dcgm, Signals, Whose};

/// The longest that an endpoint may be given to become empty.
pub const LONGEST_DRAIN: Duration = Duration::from_secs(7 * 24 * 3_600);

/// A checked configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the REST API listens.
    pub api_listen: SocketAddr,
    /// The file that holds the bearer token; required unless the API listens on loopback.
    pub token_file: Option<PathBuf>,
    /// Where files are that registrations may name.
    pub key_dir: Option<PathBuf>,
    /// TLS of the REST API.
    pub api_tls: Option<Tls>,
    /// Where xDS listens.
    pub xds_listen: SocketAddr,
    /// TLS of xDS.
    pub xds_tls: Option<Tls>,
    /// The filter module, as Envoy sees it.
    pub wasm: PathBuf,
    /// What the snapshot says of the filter.
    pub filter: wire::Filter,
    /// Where the store is.
    pub store: Place,
    /// How to probe.
    pub probe: Probe,
    /// How to check health.
    pub health: Health,
    /// How long a drained or removed endpoint may take to become empty, when nothing else is said.
    pub drain_deadline: Duration,
    /// Decision records kept per pool.
    pub decisions_keep: usize,
    /// How to watch load.
    pub signals: Signals,
    /// Where endpoints may be.
    pub networks: Networks,
    /// Base URLs of Envoy admin interfaces, for the idle check.
    pub envoy_admin: Vec<String>,
    /// The pools.
    pub pools: Vec<Pool>,
}

/// The files of a listener's TLS, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The certificate with its chain, the own one first.
    pub cert_file: PathBuf,
    /// Its private key.
    pub key_file: PathBuf,
    /// Authorities, one of which must have signed what clients show; `None`: they need not show anything.
    pub client_ca_file: Option<PathBuf>,
}

/// How to probe.
#[derive(Debug, Clone, Copy)]
pub struct Probe {
    /// Requests at once.
    pub concurrency: u32,
    /// Output tokens of each.
    pub tokens: u32,
    /// About how many tokens the long prompt has that measures prefill; 0: no such request.
    pub prefill_tokens: u32,
    /// How often an idle endpoint is measured again.
    pub interval: Duration,
    /// How old a result may be that spares a burst at registration.
    pub keep: Duration,
    /// The longest that one burst, the long prompt, or one step of the sweep may take.
    pub timeout: Duration,
    /// The most requests at once that a sweep of concurrency tries.
    pub sweep_max: u32,
    /// Bounds of measured weights.
    pub clamp: Clamp,
}

/// One pool.
#[derive(Debug, Clone)]
pub struct Pool {
    /// The pool without endpoints, as the snapshot has it.
    pub wire: wire::Pool,
    /// What the engines call the model.
    pub served_model: String,
    /// The endpoints that the file names.
    pub endpoints: Vec<Endpoint>,
    /// What their curves are for.
    pub sizing: Sizing,
}

/// One endpoint as written, in the file or in a registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Its id.
    pub id: String,
    /// `host:port`; the host may be a name.
    pub address: String,
    /// The machine; the id when not written.
    pub node: String,
    /// Launch arguments, when written.
    pub launch_args: Option<String>,
    /// Context window in tokens, when written.
    pub context_window: Option<u32>,
    /// The most requests at once, when written.
    pub max_in_flight: Option<u32>,
    /// TLS towards it, and its key.
    pub reach: Reach,
}

/// One wrong value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {stands}: expected {expected}")]
pub struct FieldError {
    /// Path of the field.
    pub field: String,
    /// What stands there.
    pub stands: Stands,
    /// What could stand there.
    pub expected: String,
}

/// What stands in a field that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stands {
    /// This value.
    Value(String),
    /// A value that is too long to be shown, by its kind.
    A(&'static str),
    /// Nothing.
    Missing,
    /// Something, but there is no such field.
    Unknown,
}

impl Stands {
    fn of(value: &Value) -> Self {
        match value {
            Value::Null => Stands::Missing,
            Value::Bool(flag) => Stands::Value(flag.to_string()),
            Value::Number(number) => Stands::Value(number.to_string()),
            Value::String(text) if text.len() <= 200 => Stands::Value(text.clone()),
            Value::String(_) => Stands::A("long text"),
            Value::Sequence(_) => Stands::A("a list"),
            Value::Mapping(_) => Stands::A("a section"),
            Value::Tagged(_) => Stands::A("a tagged value"),
        }
    }
}

impl fmt::Display for Stands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stands::Value(value) => write!(f, "{value:?}"),
            Stands::A(kind) => f.write_str(kind),
            Stands::Missing => f.write_str("missing"),
            Stands::Unknown => f.write_str("unknown"),
        }
    }
}

/// Everything that is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not YAML.
    #[error("{0}")]
    Yaml(#[from] serde_yaml_ng::Error),
    /// Fields that do not exist, and values that cannot be.
    #[error("{}", Lines(.0))]
    Fields(Vec<FieldError>),
}

struct Lines<'a>(&'a [FieldError]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, error) in self.0.iter().enumerate() {
            if nth > 0 {
                writeln!(f)?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

/// What [`Config::check`] has to say of a file, a sentence each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// What keeps the prober from serving with it.
    pub errors: Vec<String>,
    /// What may be wrong.
    pub warnings: Vec<String>,
}

impl Config {
    /// Reads and checks a file's content.
    ///
    /// # Errors
    /// With everything that is wrong.
    pub fn parse(yaml: &str) -> Result<Self, ConfigError> {
        let (_, config, errors) = read(yaml)?;
        match config {
            Some(config) if errors.is_empty() => Ok(config),
            _ => Err(ConfigError::Fields(errors)),
        }
    }

    /// What is risky about it, and yet may be meant.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let known = self.xds_tls.as_ref().is_some_and(|tls| tls.client_ca_file.is_some());
        let open = !self.xds_listen.ip().is_loopback() && !known;
        open.then(|| {
            format!(
                "xds.listen {} is not on loopback, and xds.tls.client_ca_file is not set: whoever reaches it is told everything \
                 that Envoys are, the keys of engines and the token of their reports included",
                self.xds_listen
            )
        })
    }

    /// Reads and checks a file's content, and looks at the files that it names.
    #[must_use]
    pub fn check(yaml: &str) -> Report {
        let (files, config, errors) = match read(yaml) {
            Ok(read) => read,
            Err(error) => return Report { errors: vec![error.to_string()], ..Report::default() },
        };
        let mut report = Report { errors: errors.iter().map(ToString::to_string).collect(), ..Report::default() };
        let wrong = |field: &str, path: &Path, expected: &str| {
            let stands = Stands::Value(path.display().to_string());
            FieldError { field: field.into(), stands, expected: expected.into() }.to_string()
        };
        if let Some(store) = &files.store
            && store.parent().is_some_and(|parent| !parent.as_os_str().is_empty() && !parent.is_dir())
        {
            report.errors.push(wrong("store.path", store, "a file in a directory that exists"));
        }
        if let Some(Err(error)) = files.token.as_deref().map(Token::read) {
            report.errors.push(error.to_string());
        }
        for (field, tls) in [("api.tls", &files.api_tls), ("xds.tls", &files.xds_tls)] {
            // What is missing stands for itself as an empty name.
            let told = report.errors.iter().any(|error| error.starts_with(field));
            let tls = tls.as_ref().filter(|_| !told);
            if let Some(Err(error)) = tls.map(|tls| tls::Terminator::read(field, tls, b"")) {
                report.errors.push(error.to_string());
            }
        }
        if let Some(directory) = files.key_dir.as_deref().filter(|directory| !directory.is_dir()) {
            report.errors.push(wrong("api.key_dir", directory, "a directory that exists"));
        }
        let pools = config.iter().flat_map(|config| config.pools.iter().enumerate());
        for (nth, (at, endpoint)) in
            pools.flat_map(|(nth, pool)| pool.endpoints.iter().enumerate().map(move |of| (nth, of)))
        {
            if let Err(error) = Access::read(&endpoint.reach, &endpoint.address, May::NameAll) {
                report.errors.push(
                    FieldError { field: format!("pools[{nth}].endpoints[{at}].{}", error.field), ..error }.to_string(),
                );
            }
        }
        report.warnings.extend(config.as_ref().and_then(Config::warning));
        if !files.wasm.is_file() {
            // Envoy opens it, perhaps in another container.
            report.warnings.push(wrong("filter.wasm", &files.wasm, "a file that exists, unless only Envoy sees it"));
        }
        report
    }
}

/// The files that a configuration names.
struct Files {
    wasm: PathBuf,
    /// `None` where the store is no file.
    store: Option<PathBuf>,
    token: Option<PathBuf>,
    key_dir: Option<PathBuf>,
    api_tls: Option<Tls>,
    xds_tls: Option<Tls>,
}

/// What a file says, as far as it can be read, and everything that is wrong with it, each thing once.
fn read(yaml: &str) -> Result<(Files, Option<Config>, Vec<FieldError>), serde_yaml_ng::Error> {
    let mut file: Value = serde_yaml_ng::from_str(yaml)?;
    let mut errors = shape::tidy(&mut file);
    let raw: raw::Config = serde_yaml_ng::from_value(file)?;
    let files = Files {
        wasm: raw.filter.wasm.clone(),
        store: raw.store.redis.is_none().then(|| raw.store.file()),
        token: raw.api.token_file.clone(),
        key_dir: raw.api.key_dir.clone(),
        api_tls: raw.api.tls.as_ref().map(Into::into),
        xds_tls: raw.xds.tls.as_ref().map(Into::into),
    };
    // Where api.listen is no address, another one stands in for it.
    let known = !errors.iter().any(|error| is_inside("api.listen", &error.field));
    let clash = checked::listeners(raw.api.listen, raw.xds.listen).filter(|_| known);
    let (config, mut found) = checked::checked(raw);
    found.extend(clash);
    // What only stands in for something wrong may be wrong itself.
    let shape = errors.len();
    for error in found {
        let told = |known: &FieldError| is_inside(&error.field, &known.field);
        if !errors.iter().take(shape).any(told) && !errors.contains(&error) {
            errors.push(error);
        }
    }
    Ok((files, config, errors))
}

/// Whether `field` is `outer`, or something in it.
fn is_inside(field: &str, outer: &str) -> bool {
    field.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

#[cfg(test)]
mod tests;
