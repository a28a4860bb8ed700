//! Values that cannot be.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use weighbridge_routing::snapshot::admission::MAX_WAIT_MS;
use weighbridge_routing::snapshot::{MAX_DECISIONS_PER_SECOND, MAX_MODEL_BYTES, Snapshot, SnapshotError, is_id, wire};
use weighbridge_routing::weight::{Clamp, Weight};

use super::health::health;
use super::networks::networks;
use super::signals::signals;
use super::{Config, Endpoint, FieldError, KeyPlace, LONGEST_DRAIN, Networks, Pool, Probe, Reach, Stands, Tls, raw};
use crate::caps::Sizing;
use crate::store::redis::redacted;
use crate::store::{Place, RedisUrl};

/// No time in a configuration is longer: what is added to the present must be a time as well.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Collects errors while values are checked.
#[derive(Default)]
pub(super) struct Check(Vec<FieldError>);

impl Check {
    #[cfg(test)]
    pub(super) fn into_errors(self) -> Vec<FieldError> {
        self.0
    }

    pub(super) fn that(
        &mut self,
        ok: bool,
        field: impl Into<String>,
        value: impl fmt::Display,
        expected: impl Into<String>,
    ) {
        if !ok {
            let stands = Stands::Value(value.to_string());
            self.0.push(FieldError { field: field.into(), stands, expected: expected.into() });
        }
    }

    pub(super) fn duration(&mut self, field: &str, text: &str, least: Duration) -> Duration {
        match humantime::parse_duration(text) {
            Ok(duration) if duration >= least && duration <= LONGEST => duration,
            _ => {
                let (least, most) = (humantime::format_duration(least), LONGEST.as_secs() / 86_400);
                let expected = format!("a duration of at least {least} and at most {most}days, such as 2s or 6h");
                self.that(false, field, text, expected);
                Duration::ZERO
            }
        }
    }
}

/// The configuration, as far as it can be had, and what is wrong with it.
pub(super) fn checked(raw: raw::Config) -> (Option<Config>, Vec<FieldError>) {
    let mut check = Check::default();
    let config = config(raw, &mut check);
    (config, check.0)
}

fn config(raw: raw::Config, check: &mut Check) -> Option<Config> {
    let probe = probe(&raw.probe, check);
    let api_listen = raw.api.listen;
    if raw.api.token_file.is_none() && !api_listen.ip().is_loopback() {
        let expected = format!("a file with a token, since api.listen {api_listen} is not on loopback");
        check.0.push(FieldError { field: "api.token_file".into(), stands: Stands::Missing, expected });
    }
    let store = store(&raw.store, check);
    for (nth, url) in raw.envoy_admin.iter().enumerate() {
        let good = url.strip_prefix("http://").is_some_and(|rest| rest.split('/').next().is_some_and(is_address));
        check.that(good, format!("envoy_admin[{nth}]"), url, "http://host:port");
    }
    let max_body = size(&raw.filter.max_body).filter(|size| *size > 0);
    check.that(max_body.is_some(), "filter.max_body", &raw.filter.max_body, "a size above 0, such as 16MiB");
    let prefix_bytes = size(&raw.filter.prefix_bytes);
    let expected = "a size such as 64KiB, or 0 for no affinity";
    check.that(prefix_bytes.is_some(), "filter.prefix_bytes", &raw.filter.prefix_bytes, expected);
    let health = health(&raw.health, check);
    let drain_deadline = check.duration("drain.deadline", &raw.drain.deadline, Duration::ZERO);
    check.that(drain_deadline <= LONGEST_DRAIN, "drain.deadline", &raw.drain.deadline, "at most 7days");
    let decisions = &raw.decisions;
    check.that(
        decisions.per_second <= MAX_DECISIONS_PER_SECOND,
        "decisions.per_second",
        decisions.per_second,
        "0 to 1000",
    );
    check.that(decisions.keep <= 10_000, "decisions.keep", decisions.keep, "0 to 10000");
    let signals = signals(raw.signals, check);
    let filter = wire::Filter {
        // What is not kept need not be sent.
        decisions_per_second: if decisions.keep == 0 { 0 } else { decisions.per_second },
        max_body: max_body.unwrap_or(1),
        client_headers: raw.filter.client_headers,
        prefix_bytes: prefix_bytes.unwrap_or(0),
        signals: wire::Signals { interval_ms: signals.interval.as_millis() as u64 },
        // Known when the token file is read.
        reports_token: String::new(),
    };
    check.that(!raw.pools.is_empty(), "pools", "[]", "at least one pool");
    let mut ids = HashSet::new();
    let networks = networks(raw.networks, check);
    let pools = raw.pools.into_iter().enumerate();
    let pools = pools.map(|(nth, raw)| pool(nth, raw, &networks, &mut ids, check)).collect::<Vec<_>>();
    between_pools(&pools, check);
    if let Some(probe) = &probe
        && pools.iter().any(|pool| pool.sizing.by == wire::By::Curve)
    {
        // A weight is what an endpoint has at so many requests, and its curve says how much of that it has at others.
        let expected = format!("probe.concurrency ({}) or more where a pool has policy.by: curve", probe.concurrency);
        check.that(probe.sweep_max >= probe.concurrency, "probe.sweep_max", probe.sweep_max, expected);
    }
    as_the_filter_sees_it(&filter, &pools, check);
    Some(Config {
        api_listen,
        token_file: raw.api.token_file,
        key_dir: raw.api.key_dir,
        api_tls: raw.api.tls.as_ref().map(Into::into),
        xds_listen: raw.xds.listen,
        xds_tls: raw.xds.tls.as_ref().map(Into::into),
        wasm: raw.filter.wasm,
        filter,
        store,
        probe: probe?,
        health,
        drain_deadline,
        decisions_keep: raw.decisions.keep as usize,
        signals,
        networks,
        envoy_admin: raw.envoy_admin.iter().map(|url| url.trim_end_matches('/').to_owned()).collect(),
        pools,
    })
}

/// Only one of the two can listen there.
pub(super) fn listeners(api: SocketAddr, xds: SocketAddr) -> Option<FieldError> {
    // On [::], connections over IPv4 arrive, too.
    let every = |ip: IpAddr, other: IpAddr| ip.is_unspecified() && (ip.is_ipv6() || other.is_ipv4());
    let (one, other) = (api.ip().to_canonical(), xds.ip().to_canonical());
    let clash = api.port() > 0 && api.port() == xds.port();
    let clash = clash && (one == other || every(one, other) || every(other, one));
    clash.then(|| {
        let expected = format!("another address than api.listen ({api}), such as another port");
        FieldError { field: "xds.listen".into(), stands: Stands::Value(xds.to_string()), expected }
    })
}

impl From<&raw::Tls> for Tls {
    fn from(raw: &raw::Tls) -> Self {
        let raw::Tls { cert_file, key_file, client_ca_file } = raw;
        Tls { cert_file: cert_file.clone(), key_file: key_file.clone(), client_ca_file: client_ca_file.clone() }
    }
}

fn store(raw: &raw::Store, check: &mut Check) -> Place {
    let file = || Place::File(raw.file());
    let Some(url) = &raw.redis else { return file() };
    if let Some(path) = &raw.path {
        check.that(false, "store.path", path.display(), "nothing beside store.redis");
    }
    match RedisUrl::parse(url) {
        Ok(url) => Place::Redis(url),
        Err(error) => {
            check.that(false, "store.redis", redacted(url), error.to_string());
            file()
        }
    }
}

fn probe(raw: &raw::Probe, check: &mut Check) -> Option<Probe> {
    check.that((1..=1024).contains(&raw.concurrency), "probe.concurrency", raw.concurrency, "1 to 1024");
    check.that((1..=65_536).contains(&raw.tokens), "probe.tokens", raw.tokens, "1 to 65536");
    let prefill = raw.prefill_tokens;
    check.that(
        prefill == 0 || (64..=131_072).contains(&prefill),
        "probe.prefill_tokens",
        prefill,
        "64 to 131072, or 0 for no such request",
    );
    check.that((1..=4096).contains(&raw.sweep_max), "probe.sweep_max", raw.sweep_max, "1 to 4096");
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
        prefill_tokens: prefill,
        interval: check.duration("probe.interval", &raw.interval, Duration::from_secs(1)),
        keep: check.duration("probe.keep", &raw.keep, Duration::ZERO),
        timeout: check.duration("probe.timeout", &raw.timeout, Duration::from_millis(100)),
        sweep_max: raw.sweep_max,
        clamp: clamp?,
    })
}

fn pool(nth: usize, raw: raw::Pool, networks: &Networks, ids: &mut HashSet<String>, check: &mut Check) -> Pool {
    let field = |name: &str| format!("pools[{nth}].{name}");
    check.that(is_id(&raw.name), field("name"), &raw.name, "1 to 64 of A-Z a-z 0-9 _ -");
    // A pool is an Envoy cluster of this name, and Envoy passes over one that is called like a static cluster.
    let own = !raw.name.starts_with("weighbridge-") && !raw.name.ends_with("-static");
    check.that(own, field("name"), &raw.name, "a name that does not begin with weighbridge- or end with -static");
    check.that(!raw.models.is_empty(), field("models"), "[]", "at least one model name");
    for (at, model) in raw.models.iter().enumerate() {
        let good = (1..=MAX_MODEL_BYTES).contains(&model.len());
        check.that(good, field(&format!("models[{at}]")), model, "a name of 1 to 256 bytes");
    }
    if let Some(served) = &raw.served_model {
        let good = (1..=MAX_MODEL_BYTES).contains(&served.len());
        check.that(good, field("served_model"), served, "a name of 1 to 256 bytes");
    }
    let served_model = raw.served_model.or_else(|| raw.models.first().cloned()).unwrap_or_default();
    let mut endpoints = Vec::new();
    let mut addresses = HashSet::new();
    for (at, raw) in raw.endpoints.into_iter().enumerate() {
        let place = field(&format!("endpoints[{at}]"));
        let node = raw.node.unwrap_or_else(|| raw.id.clone());
        let endpoint = Endpoint {
            id: raw.id,
            address: raw.address,
            node,
            launch_args: raw.launch_args,
            context_window: raw.context_window,
            max_in_flight: raw.max_in_flight,
            reach: Reach::new(raw.tls, raw.api_key_file, raw.api_key_env.clone()),
        };
        let one = raw.api_key_env.is_none() || !matches!(endpoint.reach.api_key, Some(KeyPlace::File(_)));
        check.that(
            one,
            format!("{place}.api_key_env"),
            raw.api_key_env.unwrap_or_default(),
            "nothing beside api_key_file",
        );
        check.0.extend(endpoint.check(&format!("{place}.")));
        check.that(ids.insert(endpoint.id.clone()), format!("{place}.id"), &endpoint.id, "an id that is used once");
        let expected = "an address that no other endpoint of the pool has";
        let address = endpoint.address.parse::<SocketAddr>().ok();
        let new = addresses.insert(address.map_or_else(|| endpoint.address.clone(), |address| address.to_string()));
        check.that(new, format!("{place}.address"), &endpoint.address, expected);
        // What is not even one host's has been refused already; names are looked at as they resolve.
        let permitted = address.is_none_or(|address| !is_one_host(address) || networks.permit(address));
        check.that(permitted, format!("{place}.address"), &endpoint.address, networks.expected());
        endpoints.push(endpoint);
    }
    let sizing = Sizing { mode: raw.admission.cap, by: raw.policy.by, min_tps: raw.admission.min_tps };
    check.that(
        (0.0..=10_000.0).contains(&sizing.min_tps),
        field("admission.min_tps"),
        sizing.min_tps,
        "tokens per second from 0, which is no floor, to 10000",
    );
    let admission = admission(&field, raw.admission, check);
    let passive_health = passive_health(&field, &raw.passive_health, check);
    let wire = wire::Pool {
        name: raw.name,
        models: raw.models,
        served_model: Some(served_model.clone()),
        adapters: raw.adapters,
        policy: raw.policy,
        affinity: raw.affinity,
        admission,
        passive_health,
        ..wire::Pool::default()
    };
    Pool { wire, served_model, endpoints, sizing }
}

/// The longest that a request may wait.
const MAX_WAIT: Duration = Duration::from_millis(MAX_WAIT_MS as u64);

fn admission(field: &impl Fn(&str) -> String, raw: raw::Admission, check: &mut Check) -> wire::Admission {
    let queue_bytes = size(&raw.queue_bytes);
    check.that(queue_bytes.is_some(), field("admission.queue_bytes"), &raw.queue_bytes, "a size such as 64MiB");
    let mut wait = |name: &str, text: &str| {
        let name = field(&format!("admission.{name}"));
        let wait = check.duration(&name, text, Duration::ZERO);
        check.that(wait <= MAX_WAIT, &name, text, "at most 1h");
        wait.min(MAX_WAIT).as_millis() as u32
    };
    wire::Admission {
        base_cap: raw.base_cap,
        queue: raw.queue,
        queue_bytes: queue_bytes.unwrap_or_default(),
        max_wait_ms: wait("max_wait", &raw.max_wait),
        ageing_ms: wait("ageing", &raw.ageing),
        prefill_budget_tokens: raw.prefill_budget,
        fairness: raw.fairness,
        spill_to: raw.spill_to,
    }
}

/// The longest ejection and cool-down.
const MAX_OUT: Duration = Duration::from_secs(60 * 60);

fn passive_health(field: &impl Fn(&str) -> String, raw: &raw::PassiveHealth, check: &mut Check) -> wire::PassiveHealth {
    let field = |name: &str| field(&format!("passive_health.{name}"));
    let mut time = |name: &str, text: &str, least: Duration| {
        let time = check.duration(&field(name), text, least);
        check.that(time <= MAX_OUT, field(name), text, "at most 1h");
        time.min(MAX_OUT)
    };
    let ejection = time("ejection", &raw.ejection, Duration::from_millis(1));
    let max_ejection = time("max_ejection", &raw.max_ejection, Duration::from_millis(1));
    let cool_down = time("cool_down", &raw.cool_down, Duration::ZERO);
    let silent_after = time("silent_after", &raw.silent_after, Duration::ZERO);
    let max_cool_down = time("max_cool_down", &raw.max_cool_down, Duration::ZERO);
    check.that(max_ejection >= ejection, field("max_ejection"), &raw.max_ejection, "at least as long as ejection");
    let expected = "at least as long as cool_down";
    check.that(max_cool_down >= cool_down, field("max_cool_down"), &raw.max_cool_down, expected);
    for (name, percent) in [("failure_percent", raw.failure_percent), ("max_ejected_percent", raw.max_ejected_percent)]
    {
        check.that(percent <= 100, field(name), percent, "percent, from 0 to 100");
    }
    for (name, count) in [("consecutive_failures", raw.consecutive_failures), ("min_requests", raw.min_requests)] {
        check.that(count <= u32::from(u16::MAX), field(name), count, "a number from 0 to 65535");
    }
    wire::PassiveHealth {
        consecutive_failures: raw.consecutive_failures,
        failure_percent: raw.failure_percent,
        min_requests: raw.min_requests,
        ejection_ms: ejection.as_millis() as u32,
        max_ejection_ms: max_ejection.as_millis() as u32,
        max_ejected_percent: raw.max_ejected_percent,
        cool_down_ms: cool_down.as_millis() as u32,
        max_cool_down_ms: max_cool_down.as_millis() as u32,
        silent_after_ms: silent_after.as_millis() as u32,
    }
}

/// No two pools share a name or a model, and where one spills to another, there is one.
fn between_pools(pools: &[Pool], check: &mut Check) {
    let mut names = HashSet::new();
    let mut models = HashMap::new();
    for (nth, pool) in pools.iter().enumerate() {
        let new = names.insert(pool.wire.name.as_str());
        check.that(new, format!("pools[{nth}].name"), &pool.wire.name, "a name that no other pool has");
        if let Some(spill_to) = &pool.wire.admission.spill_to {
            let known = pools.iter().enumerate().any(|(at, other)| at != nth && other.wire.name == *spill_to);
            check.that(known, format!("pools[{nth}].admission.spill_to"), spill_to, "the name of another pool");
        }
        for (at, model) in pool.wire.models.iter().enumerate() {
            let owner = *models.entry(model.as_str()).or_insert(nth);
            let field = format!("pools[{nth}].models[{at}]");
            check.that(owner == nth, field, model, format!("a model name that pools[{owner}] has not"));
        }
    }
}

/// What the filter would refuse is refused here, by the filter's own rules. It stops at the first thing it refuses, so it
/// is shown one setting at a time, and the whole when nothing is wrong so far.
fn as_the_filter_sees_it(filter: &wire::Filter, pools: &[Pool], check: &mut Check) {
    for (nth, header) in filter.client_headers.iter().enumerate() {
        let filter = wire::Filter { client_headers: vec![header.clone()], ..wire::Filter::default() };
        if let Some(error) = refusal(filter, Vec::new()) {
            let field = format!("filter.client_headers[{nth}]");
            check.0.push(FieldError { field, ..error });
        }
    }
    for (nth, pool) in pools.iter().enumerate() {
        for part in parts(&pool.wire) {
            if let Some(error) = refusal(wire::Filter::default(), vec![part]) {
                let field = error.field.replacen("pools[0]", &format!("pools[{nth}]"), 1);
                check.0.push(FieldError { field, ..error });
            }
        }
    }
    if check.0.is_empty()
        && let Some(error) = refusal(filter.clone(), pools.iter().map(|pool| pool.wire.clone()).collect())
    {
        check.0.push(error);
    }
}

/// Pools in which everything is right except perhaps one setting of this one.
fn parts(pool: &wire::Pool) -> Vec<wire::Pool> {
    let sound = || wire::Pool { name: "p".into(), models: vec!["m".into()], ..wire::Pool::default() };
    let (affinity, admission) = (wire::Affinity::default, wire::Admission::default);
    let given = &pool.affinity;
    let mut parts: Vec<wire::Pool> =
        policies(&pool.policy).into_iter().map(|policy| wire::Pool { policy, ..sound() }).collect();
    parts.extend([
        wire::Pool { affinity: wire::Affinity { k: given.k, ..affinity() }, ..sound() },
        wire::Pool { affinity: wire::Affinity { max_share: given.max_share, ..affinity() }, ..sound() },
        wire::Pool { affinity: wire::Affinity { kv_tokens: given.kv_tokens, ..affinity() }, ..sound() },
        wire::Pool { affinity: wire::Affinity { prefill_tps: given.prefill_tps, ..affinity() }, ..sound() },
        wire::Pool { admission: wire::Admission { base_cap: pool.admission.base_cap, ..admission() }, ..sound() },
        wire::Pool { admission: wire::Admission { queue: pool.admission.queue, ..admission() }, ..sound() },
        wire::Pool {
            admission: wire::Admission { fairness: pool.admission.fairness.clone(), ..admission() },
            ..sound()
        },
    ]);
    for adapter in &pool.adapters {
        // Whether the models are right is looked at elsewhere; here it matters whether the adapter is one of them.
        let known = pool.models.contains(adapter);
        let models = if known && !adapter.is_empty() { vec![adapter.clone()] } else { vec!["m".into()] };
        parts.push(wire::Pool { models, adapters: vec![adapter.clone()], ..sound() });
    }
    parts
}

/// Policies in which everything is right except perhaps one setting of this one.
fn policies(given: &wire::Policy) -> Vec<wire::Policy> {
    let sound = wire::Policy::default;
    let mut policies: Vec<_> = rules(&given.name, &given.choices, &given.score)
        .map(|(name, choices, score)| wire::Policy { name, choices, score, ..sound() })
        .collect();
    if let Some(wire::Shadow { name, choices, score }) = &given.shadow {
        policies.extend(rules(name, choices, score).map(|(name, choices, score)| {
            let shadow = Some(wire::Shadow { name, choices, score });
            wire::Policy { shadow, ..sound() }
        }));
    }
    if let Some(wire::Canary { name, choices, score, percent }) = &given.canary {
        policies.extend(rules(name, choices, score).map(|(name, choices, score)| {
            let canary = Some(wire::Canary { name, choices, score, percent: 0.0 });
            wire::Policy { canary, ..sound() }
        }));
        let wire::Policy { name, choices, score, .. } = sound();
        let canary = Some(wire::Canary { name, choices, score, percent: *percent });
        policies.push(wire::Policy { canary, ..sound() });
    }
    policies
}

/// Name, choices and coefficients, each in turn as given, with everything else as it is by default.
fn rules<'a>(
    name: &'a str,
    choices: &'a wire::Choices,
    score: &'a wire::Score,
) -> impl Iterator<Item = (String, wire::Choices, wire::Score)> + 'a {
    let sound = wire::Policy::default();
    [
        (name.to_owned(), sound.choices.clone(), sound.score),
        (sound.name.clone(), choices.clone(), sound.score),
        (sound.name, sound.choices, *score),
    ]
    .into_iter()
}

/// What the filter says to a snapshot.
fn refusal(filter: wire::Filter, pools: Vec<wire::Pool>) -> Option<FieldError> {
    match Snapshot::try_from(wire::Snapshot { format: 1, version: 0, filter, pools }) {
        Ok(_) => None,
        Err(SnapshotError::Field { field, value, expected }) => {
            Some(FieldError { field, stands: Stands::Value(value), expected: expected.into() })
        }
        Err(error @ SnapshotError::Json(_)) => Some(FieldError {
            field: "pools".into(),
            stands: Stands::Value(error.to_string()),
            expected: "pools that the filter accepts".into(),
        }),
    }
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
        self.reach.check(&self.address, &field, &mut check);
        check.that(self.max_in_flight != Some(0), field("max_in_flight"), 0, "a number from 1, or nothing");
        check.0
    }
}

/// Whether something can listen there that can be reached from elsewhere by that address alone.
pub(super) fn is_one_host(address: SocketAddr) -> bool {
    let ip = address.ip().to_canonical();
    let scoped = matches!(address, SocketAddr::V6(address) if address.scope_id() != 0);
    let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    address.port() != 0 && !(ip.is_unspecified() || ip.is_multicast() || broadcast || scoped)
}

/// `host:port`, where host is a name, an IPv4 address, or an IPv6 address in brackets.
pub(super) fn is_address(text: &str) -> bool {
    if let Ok(address) = text.parse() {
        return is_one_host(address);
    }
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    port.parse::<u16>().is_ok_and(|port| port > 0) && is_name(host)
}

/// A host name, as far as its form goes.
pub(super) fn is_name(host: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len()) && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    host.len() <= 253 && host.split('.').all(label)
}

/// `16MiB`, `1GB`, `4096`.
pub(super) fn size(text: &str) -> Option<u64> {
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
    digits.trim().parse::<u64>().ok()?.checked_mul(factor)
}
