//! The configuration file: read strictly, checked whole, and turned into values that cannot be wrong.
//!
//! [`Config::parse`] reports every wrong value of a file at once, each with its field, the value, and what was expected.
//! (A field that does not exist, or has another type, ends the reading: the YAML reader stops there.)

mod raw;

use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use weighbridge_routing::snapshot::{MAX_MODEL_BYTES, Snapshot, is_id, wire};
use weighbridge_routing::weight::{Clamp, Weight};

/// A checked configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the REST API listens.
    pub api_listen: SocketAddr,
    /// The file that holds the bearer token; required unless the API listens on loopback.
    pub token_file: Option<PathBuf>,
    /// Where xDS listens.
    pub xds_listen: SocketAddr,
    /// The filter module, as Envoy sees it.
    pub wasm: PathBuf,
    /// What the snapshot says of the filter.
    pub filter: wire::Filter,
    /// The embedded store's file.
    pub store: PathBuf,
    /// How to probe.
    pub probe: Probe,
    /// How to check health.
    pub health: Health,
    /// How often the engines' metrics are read.
    pub signals_interval: Duration,
    /// Base URLs of Envoy admin interfaces, for the idle check.
    pub envoy_admin: Vec<String>,
    /// The pools.
    pub pools: Vec<Pool>,
}

/// How to probe.
#[derive(Debug, Clone, Copy)]
pub struct Probe {
    /// Requests at once.
    pub concurrency: u32,
    /// Output tokens of each.
    pub tokens: u32,
    /// How often an idle endpoint is measured again.
    pub interval: Duration,
    /// How old a result may be that spares a burst at registration.
    pub keep: Duration,
    /// The longest that one burst may take.
    pub timeout: Duration,
    /// Bounds of measured weights.
    pub clamp: Clamp,
}

/// How to check health.
#[derive(Debug, Clone, Copy)]
pub struct Health {
    /// How often.
    pub interval: Duration,
    /// The longest that one check may take.
    pub timeout: Duration,
    /// Failures in a row that make an endpoint unhealthy.
    pub unhealthy_after: u32,
    /// Successes in a row that make it healthy again.
    pub healthy_after: u32,
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
}

/// One wrong value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value:?}: expected {expected}")]
pub struct FieldError {
    /// Path of the field.
    pub field: String,
    /// What stands there.
    pub value: String,
    /// What could stand there.
    pub expected: String,
}

/// Everything that is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not YAML, a field that does not exist, or a value of another type.
    #[error("{0}")]
    Yaml(#[from] serde_yaml_ng::Error),
    /// Values that cannot be.
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

/// Collects errors while values are checked.
#[derive(Default)]
struct Check(Vec<FieldError>);

impl Check {
    fn that(&mut self, ok: bool, field: impl Into<String>, value: impl fmt::Display, expected: impl Into<String>) {
        if !ok {
            self.0.push(FieldError { field: field.into(), value: value.to_string(), expected: expected.into() });
        }
    }

    fn duration(&mut self, field: &str, text: &str, least: Duration) -> Duration {
        match humantime::parse_duration(text) {
            Ok(duration) if duration >= least => duration,
            _ => {
                let least = humantime::format_duration(least);
                self.that(false, field, text, format!("a duration of at least {least}, such as 2s or 6h"));
                Duration::ZERO
            }
        }
    }
}

impl Config {
    /// Reads and checks a file's content.
    ///
    /// # Errors
    /// With everything that is wrong.
    pub fn parse(yaml: &str) -> Result<Self, ConfigError> {
        let raw: raw::Config = serde_yaml_ng::from_str(yaml)?;
        let mut check = Check::default();
        let config = checked(raw, &mut check);
        match config {
            Some(config) if check.0.is_empty() => Ok(config),
            _ => Err(ConfigError::Fields(check.0)),
        }
    }
}

fn checked(raw: raw::Config, check: &mut Check) -> Option<Config> {
    let probe = probe(&raw.probe, check);
    let api_listen = raw.api.listen;
    check.that(
        raw.api.token_file.is_some() || api_listen.ip().is_loopback(),
        "api.token_file",
        "missing",
        format!("a file with a token, since api.listen {api_listen} is not on loopback"),
    );
    check.that(raw.store.redis.is_none(), "store.redis", "set", "store.path: Redis is not supported yet");
    for (nth, url) in raw.envoy_admin.iter().enumerate() {
        let good = url.strip_prefix("http://").is_some_and(|rest| rest.split('/').next().is_some_and(is_address));
        check.that(good, format!("envoy_admin[{nth}]"), url, "http://host:port");
    }
    let max_body = size(&raw.filter.max_body);
    check.that(max_body.is_some(), "filter.max_body", &raw.filter.max_body, "a size above 0, such as 16MiB");
    let health = Health {
        interval: check.duration("health.interval", &raw.health.interval, Duration::from_millis(50)),
        timeout: check.duration("health.timeout", &raw.health.timeout, Duration::from_millis(10)),
        unhealthy_after: raw.health.unhealthy_after,
        healthy_after: raw.health.healthy_after,
    };
    check.that(health.unhealthy_after > 0, "health.unhealthy_after", 0, "a number from 1");
    check.that(health.healthy_after > 0, "health.healthy_after", 0, "a number from 1");
    let signals_interval = check.duration("signals.interval", &raw.signals.interval, Duration::from_millis(20));
    let filter = wire::Filter {
        max_body: max_body.unwrap_or(1),
        client_headers: raw.filter.client_headers,
        ..wire::Filter::default()
    };
    check.that(!raw.pools.is_empty(), "pools", "[]", "at least one pool");
    let mut ids = HashSet::new();
    let pools = raw.pools.into_iter().enumerate().map(|(nth, raw)| pool(nth, raw, &mut ids, check)).collect::<Vec<_>>();
    // What the filter would refuse is refused here, by the filter's own rules.
    if check.0.is_empty() {
        let pools = pools.iter().map(|pool| pool.wire.clone()).collect();
        let snapshot = wire::Snapshot { format: 1, version: 0, filter: filter.clone(), pools };
        if let Err(error) = Snapshot::try_from(snapshot) {
            match error {
                weighbridge_routing::snapshot::SnapshotError::Field { field, value, expected } => {
                    check.that(false, field, value, expected);
                }
                weighbridge_routing::snapshot::SnapshotError::Json(error) => {
                    check.that(false, "pools", error, "pools that the filter accepts");
                }
            }
        }
    }
    Some(Config {
        api_listen,
        token_file: raw.api.token_file,
        xds_listen: raw.xds.listen,
        wasm: raw.filter.wasm,
        filter,
        store: raw.store.path,
        probe: probe?,
        health,
        signals_interval,
        envoy_admin: raw.envoy_admin.iter().map(|url| url.trim_end_matches('/').to_owned()).collect(),
        pools,
    })
}

fn probe(raw: &raw::Probe, check: &mut Check) -> Option<Probe> {
    check.that((1..=1024).contains(&raw.concurrency), "probe.concurrency", raw.concurrency, "1 to 1024");
    check.that((1..=65_536).contains(&raw.tokens), "probe.tokens", raw.tokens, "1 to 65536");
    let [least, most] = raw.clamp;
    let clamp = match (Weight::try_new(least), Weight::try_new(most)) {
        (Ok(least), Ok(most)) => Clamp::new(least, most),
        _ => None,
    };
    check.that(
        clamp.is_some(),
        "probe.clamp",
        format!("[{least}, {most}]"),
        "[least, most], both above 0 and in order",
    );
    Some(Probe {
        concurrency: raw.concurrency,
        tokens: raw.tokens,
        interval: check.duration("probe.interval", &raw.interval, Duration::from_secs(1)),
        keep: check.duration("probe.keep", &raw.keep, Duration::ZERO),
        timeout: check.duration("probe.timeout", &raw.timeout, Duration::from_millis(100)),
        clamp: clamp?,
    })
}

fn pool(nth: usize, raw: raw::Pool, ids: &mut HashSet<String>, check: &mut Check) -> Pool {
    let field = |name: &str| format!("pools[{nth}].{name}");
    check.that(is_id(&raw.name), field("name"), &raw.name, "1 to 64 of A-Z a-z 0-9 _ -");
    check.that(!raw.models.is_empty(), field("models"), "[]", "at least one model name");
    for (at, model) in raw.models.iter().enumerate() {
        let good = (1..=MAX_MODEL_BYTES).contains(&model.len());
        check.that(good, field(&format!("models[{at}]")), model, "a name of 1 to 256 bytes");
    }
    let served_model = raw.served_model.or_else(|| raw.models.first().cloned()).unwrap_or_default();
    let mut endpoints = Vec::new();
    for (at, raw) in raw.endpoints.into_iter().enumerate() {
        let place = field(&format!("endpoints[{at}]"));
        let node = raw.node.unwrap_or_else(|| raw.id.clone());
        let endpoint = Endpoint {
            id: raw.id,
            address: raw.address,
            node,
            launch_args: raw.launch_args,
            context_window: raw.context_window,
        };
        check.0.extend(endpoint.check(&format!("{place}.")));
        check.that(ids.insert(endpoint.id.clone()), format!("{place}.id"), &endpoint.id, "an id that is used once");
        endpoints.push(endpoint);
    }
    check.duration(&field("admission.max_wait"), &raw.admission.max_wait, Duration::ZERO);
    let wire = wire::Pool {
        name: raw.name,
        models: raw.models,
        served_model: Some(served_model.clone()),
        policy: raw.policy,
        admission: wire::Admission { base_cap: raw.admission.base_cap },
        ..wire::Pool::default()
    };
    Pool { wire, served_model, endpoints }
}

impl Endpoint {
    /// What is wrong with the values, each field named with `prefix` before it.
    #[must_use]
    pub fn check(&self, prefix: &str) -> Vec<FieldError> {
        let mut check = Check::default();
        let field = |name: &str| format!("{prefix}{name}");
        check.that(is_id(&self.id), field("id"), &self.id, "1 to 64 of A-Z a-z 0-9 _ -");
        check.that(is_address(&self.address), field("address"), &self.address, "host:port");
        let short = |text: &str| text.len() <= 4096 && !text.contains('\0');
        check.that(!self.node.is_empty() && short(&self.node), field("node"), &self.node, "1 to 4096 bytes");
        check.that(
            self.launch_args.as_deref().is_none_or(short),
            field("launch_args"),
            "too long",
            "at most 4096 bytes",
        );
        check.that(self.context_window != Some(0), field("context_window"), 0, "a number from 1, or nothing");
        check.0
    }
}

/// `host:port`, where host is a name, an IPv4 address, or an IPv6 address in brackets.
fn is_address(text: &str) -> bool {
    if text.parse::<SocketAddr>().is_ok() {
        return true;
    }
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let label = |label: &str| {
        (1..=63).contains(&label.len()) && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    port.parse::<u16>().is_ok_and(|port| port > 0) && host.len() <= 253 && host.split('.').all(label)
}

/// `16MiB`, `1GB`, `4096`.
fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match text.get(digits.len()..)?.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => return None,
    };
    digits.trim().parse::<u64>().ok()?.checked_mul(factor).filter(|size| *size > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../example.yaml");

    #[test]
    fn the_example_is_valid_and_has_the_documented_defaults() {
        let config = Config::parse(EXAMPLE).unwrap();
        assert_eq!(config.filter.max_body, 16 << 20);
        assert_eq!(config.probe.interval, Duration::from_secs(6 * 3600));
        let short = Config::parse("pools: [{name: p, models: [m]}]").unwrap();
        assert_eq!(short.probe.concurrency, config.probe.concurrency);
        assert_eq!((short.api_listen.port(), short.xds_listen.port()), (7070, 7071));
        assert_eq!(short.health.unhealthy_after, 3);
        assert_eq!(short.pools[0].served_model, "m");
    }

    #[test]
    fn every_wrong_value_is_reported_at_once() {
        let yaml = r#"
api: {listen: "0.0.0.0:7070"}
store: {redis: "redis://127.0.0.1"}
filter: {max_body: 16 apples}
probe: {concurrency: 0, interval: soon, clamp: [8, 0.25]}
health: {unhealthy_after: 0}
envoy_admin: ["127.0.0.1:9901"]
pools:
- name: a.b
  models: []
  endpoints:
  - {id: "x y", address: "10.0.0.1"}
  - {id: same, address: "10.0.0.1:80", context_window: 0}
  - {id: same, address: "gpu-1.example:80"}
"#;
        let ConfigError::Fields(errors) = Config::parse(yaml).unwrap_err() else { panic!("not fields") };
        let fields: Vec<_> = errors.iter().map(|error| error.field.as_str()).collect();
        for field in [
            "api.token_file",
            "store.redis",
            "filter.max_body",
            "probe.concurrency",
            "probe.interval",
            "probe.clamp",
            "health.unhealthy_after",
            "envoy_admin[0]",
            "pools[0].name",
            "pools[0].models",
            "pools[0].endpoints[0].id",
            "pools[0].endpoints[0].address",
            "pools[0].endpoints[1].context_window",
            "pools[0].endpoints[2].id",
        ] {
            assert!(fields.contains(&field), "{field} not in {fields:?}");
        }
    }

    #[test]
    fn what_the_filter_would_refuse_is_refused() {
        let error = Config::parse("pools: [{name: p, models: [m], policy: {name: best}}]").unwrap_err().to_string();
        assert!(error.contains("pools[0].policy.name") && error.contains("best"), "{error}");
        let error = Config::parse("pools: [{name: p, models: [m]}, {name: q, models: [m]}]").unwrap_err().to_string();
        assert!(error.contains("pools[1].models"), "{error}");
        let error = Config::parse("filter: {client_headers: [all]}\npools: [{name: p, models: [m]}]").unwrap_err();
        assert!(error.to_string().contains("filter.client_headers[0]"), "{error}");
    }

    #[test]
    fn an_unknown_field_is_named() {
        let error = Config::parse("pools: [{name: p, models: [m], wieght: 3}]").unwrap_err().to_string();
        assert!(error.contains("wieght"), "{error}");
    }

    #[test]
    fn addresses_and_sizes() {
        for good in ["10.0.0.1:80", "[::1]:80", "gpu-1:8000", "vllm.default.svc.cluster.local:8000"] {
            assert!(is_address(good), "{good}");
        }
        for bad in ["10.0.0.1", "gpu:0", "gpu:99999", ":80", "a b:80", "http://gpu:80", ""] {
            assert!(!is_address(bad), "{bad}");
        }
        assert_eq!((size("16MiB"), size("1000"), size("0"), size("MiB")), (Some(16 << 20), Some(1000), None, None));
    }
}
