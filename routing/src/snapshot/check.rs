//! From the JSON form to a checked [`Snapshot`].

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{
    Affinity, Canary, ClientHeaders, Endpoint, EndpointKey, FORMAT, MAX_DECISIONS_PER_SECOND, MAX_ENDPOINTS_PER_POOL,
    MAX_MODEL_BYTES, MAX_POOLS, Pool, Snapshot, SnapshotError, admission, is_id, wire,
};
use crate::admission::prefill_budget;
use crate::curve::Curve;
use crate::live::passive;
use crate::policy::{AnyPolicy, Choices, Score};
use crate::weight::{Weight, cap, median};

pub(super) fn refuse<T>(field: String, value: impl ToString, expected: &'static str) -> Result<T, SnapshotError> {
    Err(SnapshotError::Field { field, value: value.to_string(), expected })
}

impl TryFrom<wire::Snapshot> for Snapshot {
    type Error = SnapshotError;

    fn try_from(raw: wire::Snapshot) -> Result<Self, SnapshotError> {
        if raw.format != FORMAT {
            return refuse("format".into(), raw.format, "1");
        }
        if raw.pools.len() > MAX_POOLS {
            return refuse("pools".into(), format!("{} pools", raw.pools.len()), "at most 256 pools");
        }
        let client_headers = client_headers(&raw.filter.client_headers)?;
        let mut alarms = Vec::new();
        let mut by_model = HashMap::new();
        let mut names = HashSet::new();
        let mut pools: Vec<Pool> = Vec::with_capacity(raw.pools.len());
        let spills: Vec<_> =
            raw.pools.iter().map(|pool| (pool.name.clone(), pool.admission.spill_to.clone())).collect();
        for (index, pool) in raw.pools.into_iter().enumerate() {
            let pool = check_pool(index, pool, &mut alarms)?;
            if !names.insert(pool.name.clone()) {
                return refuse(format!("pools[{index}].name"), pool.name, "a name that no other pool has");
            }
            for model in &pool.models {
                if by_model.insert(model.clone(), index).is_some_and(|other| other != index) {
                    return refuse(format!("pools[{index}].models"), model, "a model name that no other pool has");
                }
            }
            pools.push(pool);
        }
        for (pool, spill_to) in pools.iter_mut().zip(admission::link(&spills)?) {
            pool.spill_to = spill_to;
        }
        Ok(Snapshot {
            version: raw.version,
            max_body_bytes: raw.filter.max_body,
            client_headers,
            prefix_bytes: raw.filter.prefix_bytes,
            decisions_per_second: raw.filter.decisions_per_second.min(MAX_DECISIONS_PER_SECOND),
            signals_interval_ms: raw.filter.signals.interval_ms,
            reports_token: raw.filter.reports_token,
            pools,
            alarms,
            by_model,
        })
    }
}

fn client_headers(names: &[String]) -> Result<ClientHeaders, SnapshotError> {
    let mut allowed = ClientHeaders::default();
    for (index, name) in names.iter().enumerate() {
        match name.as_str() {
            "priority" => allowed.priority = true,
            "max-wait" => allowed.max_wait = true,
            "explain" => allowed.explain = true,
            _ => return refuse(format!("filter.client_headers[{index}]"), name, "priority, max-wait or explain"),
        }
    }
    Ok(allowed)
}

fn check_pool(index: usize, raw: wire::Pool, alarms: &mut Vec<String>) -> Result<Pool, SnapshotError> {
    let field = |name: &str| format!("pools[{index}].{name}");
    if !is_id(&raw.name) {
        return refuse(field("name"), raw.name, "1 to 64 of A-Z a-z 0-9 _ -");
    }
    if raw.models.is_empty() {
        return refuse(field("models"), "[]", "at least one model name");
    }
    for model in &raw.models {
        if model.is_empty() || model.len() > MAX_MODEL_BYTES {
            return refuse(field("models"), model, "names of 1 to 256 bytes");
        }
    }
    for adapter in &raw.adapters {
        if !raw.models.contains(adapter) {
            return refuse(field("adapters"), adapter, "names that models lists too");
        }
    }
    let (policy, shadow, canary) = check_policies(&field("policy"), &raw.policy)?;
    let affinity = check_affinity(&field, &raw)?;
    let (admission, fairness) = admission::check(&field, &raw.admission)?;
    let passive_health = check_passive_health(&field, &raw.passive_health)?;
    if raw.endpoints.len() > MAX_ENDPOINTS_PER_POOL {
        return refuse(field("endpoints"), format!("{} endpoints", raw.endpoints.len()), "at most 1024 endpoints");
    }
    let median_prefill_tps = median(raw.endpoints.iter().filter_map(|endpoint| endpoint.prefill_tps));
    let (mut ids, mut holders) = (HashSet::new(), HashSet::new());
    let mut endpoints = Vec::with_capacity(raw.endpoints.len());
    for (nth, endpoint) in raw.endpoints.into_iter().enumerate() {
        let field = field(&format!("endpoints[{nth}]"));
        let mut endpoint = check_endpoint(&field, endpoint, &raw.admission, &raw.affinity, median_prefill_tps, alarms)?;
        if !ids.insert(endpoint.id.clone()) {
            return refuse(format!("{field}.id"), endpoint.id, "an id that is used once in the pool");
        }
        // 16 bits collide now and then; two endpoints that share one would hold each other's prefixes.
        while !holders.insert(endpoint.holder) {
            endpoint.holder = endpoint.holder.wrapping_add(1).max(1);
        }
        endpoints.push(endpoint);
    }
    let by_curve = raw.policy.by == wire::By::Curve;
    if by_curve {
        stand_in(&mut endpoints);
    }
    Ok(Pool {
        by_curve,
        cluster: raw.cluster.unwrap_or_else(|| raw.name.clone()),
        name: raw.name,
        models: raw.models,
        served_model: raw.served_model,
        adapters: raw.adapters,
        policy,
        shadow,
        canary,
        affinity,
        base_cap: raw.admission.base_cap,
        admission,
        passive_health,
        fairness,
        spill_to: None,
        endpoints,
    })
}

/// Gives endpoints without a curve that of the one nearest in weight. As steady, which is what no curve means, they would look several
/// times as fast as their equals with few requests.
fn stand_in(endpoints: &mut [Endpoint]) {
    let known: Vec<(f64, Curve)> =
        endpoints.iter().filter_map(|endpoint| Some((endpoint.weight.get(), endpoint.curve.clone()?))).collect();
    for endpoint in endpoints.iter_mut().filter(|endpoint| endpoint.curve.is_none()) {
        let apart = |weight: f64| (weight / endpoint.weight.get()).ln().abs();
        let nearest = known.iter().min_by(|(one, _), (other, _)| apart(*one).total_cmp(&apart(*other)));
        endpoint.curve = nearest.map(|(_, curve)| curve.clone());
    }
}

/// The longest ejection and cool-down: an hour, in ms.
const MAX_OUT_MS: u32 = 60 * 60 * 1_000;

fn check_passive_health(
    field: &impl Fn(&str) -> String,
    raw: &wire::PassiveHealth,
) -> Result<passive::Settings, SnapshotError> {
    let field = |name: &str| field(&format!("passive_health.{name}"));
    let count = |name: &str, value: u32| match u16::try_from(value) {
        Ok(value) => Ok(value),
        Err(_) => refuse(field(name), value, "a number from 0 to 65535"),
    };
    let percent = |name: &str, value: u32| match u8::try_from(value) {
        Ok(value) if value <= 100 => Ok(value),
        _ => refuse(field(name), value, "percent, from 0 to 100"),
    };
    let time = |name: &str, value: u32, least: u32, expected: &'static str| match value {
        value if value < least || value > MAX_OUT_MS => refuse(field(name), value, expected),
        value => Ok(value),
    };
    let ejection_ms = time("ejection_ms", raw.ejection_ms, 1, "ms from 1 to an hour (3600000)")?;
    Ok(passive::Settings {
        consecutive_failures: count("consecutive_failures", raw.consecutive_failures)?,
        failure_percent: percent("failure_percent", raw.failure_percent)?,
        min_requests: count("min_requests", raw.min_requests)?,
        ejection_ms,
        max_ejection_ms: time(
            "max_ejection_ms",
            raw.max_ejection_ms,
            ejection_ms,
            "ms from ejection_ms to an hour (3600000)",
        )?,
        max_ejected_percent: percent("max_ejected_percent", raw.max_ejected_percent)?,
        cool_down_ms: time("cool_down_ms", raw.cool_down_ms, 0, "ms from 0 to an hour (3600000)")?,
        silent_after_ms: time("silent_after_ms", raw.silent_after_ms, 0, "ms from 0 to an hour (3600000)")?,
        max_cool_down_ms: time("max_cool_down_ms", raw.max_cool_down_ms, 0, "ms from 0 to an hour (3600000)")?,
    })
}

/// The policy, the shadow and the canary.
type Policies = (AnyPolicy, Option<AnyPolicy>, Option<Canary>);

fn check_policies(field: &str, raw: &wire::Policy) -> Result<Policies, SnapshotError> {
    let policy = check_policy(field, &raw.name, &raw.choices, &raw.score)?;
    let shadow = match &raw.shadow {
        Some(shadow) => Some(check_policy(&format!("{field}.shadow"), &shadow.name, &shadow.choices, &shadow.score)?),
        None => None,
    };
    let canary = match &raw.canary {
        Some(canary) => {
            let field = format!("{field}.canary");
            if !(0.0..=100.0).contains(&canary.percent) {
                return refuse(format!("{field}.percent"), canary.percent, "a number from 0 to 100");
            }
            let policy = check_policy(&field, &canary.name, &canary.choices, &canary.score)?;
            Some(Canary { policy, per_ten_thousand: (canary.percent * 100.0).round() as u16 })
        }
        None => None,
    };
    // The order of those who waited, and of retries, is by what the pool's own policy compares.
    if raw.by == wire::By::Curve && !matches!(policy, AnyPolicy::P2c(_)) {
        return refuse(format!("{field}.by"), "curve", "weight, where the policy is not p2c");
    }
    Ok((policy, shadow, canary))
}

fn check_policy(
    field: &str,
    name: &str,
    choices: &wire::Choices,
    score: &wire::Score,
) -> Result<AnyPolicy, SnapshotError> {
    let choices = match choices {
        wire::Choices::Word(word) if word == "all" => Choices::All,
        wire::Choices::Count(count) if *count > 0 => {
            Choices::Count(std::num::NonZeroU32::new(*count).unwrap_or(std::num::NonZeroU32::MIN))
        }
        other => return refuse(format!("{field}.choices"), other, "a number from 1, or all"),
    };
    let coefficients = [score.active, score.queue, score.latency, score.job, score.throughput, score.kv, score.gpu];
    let score = match Score::try_new(coefficients) {
        Ok(score) => score,
        Err(_) if coefficients.iter().all(|value| *value == 0.0) => {
            return refuse(format!("{field}.score"), "0 throughout", "at least one coefficient above 0");
        }
        Err(term) => {
            let value = coefficients.get(term as usize).copied().unwrap_or_default();
            return refuse(format!("{field}.score.{}", term.as_str()), value, "a number from 0 to 10000");
        }
    };
    match AnyPolicy::named(name, choices, score) {
        Some(policy) => Ok(policy),
        None => refuse(
            format!("{field}.name"),
            name,
            "p2c, score, least_pending_tokens, round_robin, random or least_request",
        ),
    }
}

/// What stands in for the pool's median throughput until somebody is measured, in tokens/s.
const DEFAULT_MEDIAN_TPS: f64 = 730.0;

fn check_affinity(field: &impl Fn(&str) -> String, pool: &wire::Pool) -> Result<Affinity, SnapshotError> {
    let raw = &pool.affinity;
    if !(0.0..=1_000.0).contains(&raw.k) {
        return refuse(field("affinity.k"), raw.k, "a number from 0 to 1000");
    }
    if !(0.0..=1.0).contains(&raw.max_share) {
        return refuse(field("affinity.max_share"), raw.max_share, "a number from 0 to 1");
    }
    if raw.kv_tokens == 0 {
        return refuse(field("affinity.kv_tokens"), 0, "a number from 1");
    }
    if !is_speed(raw.prefill_tps) {
        return refuse(field("affinity.prefill_tps"), raw.prefill_tps, "a positive number");
    }
    Ok(Affinity {
        enabled: raw.enabled,
        cold: raw.cold,
        k: raw.k,
        max_allowance: raw.max_share * f64::from(pool.admission.base_cap),
        median_tps: pool.median_tps.filter(|tps| is_speed(*tps)).unwrap_or(DEFAULT_MEDIAN_TPS),
    })
}

fn is_speed(tps: f64) -> bool {
    tps.is_finite() && tps > 0.0
}

fn check_endpoint(
    field: &str,
    raw: wire::Endpoint,
    admission: &wire::Admission,
    affinity: &wire::Affinity,
    median_prefill_tps: Option<f64>,
    alarms: &mut Vec<String>,
) -> Result<Endpoint, SnapshotError> {
    if !is_id(&raw.id) {
        return refuse(format!("{field}.id"), raw.id, "1 to 64 of A-Z a-z 0-9 _ -");
    }
    let Ok(address) = raw.address.parse::<SocketAddr>() else {
        return refuse(format!("{field}.address"), raw.address, "ip:port");
    };
    let weight = raw.weight.as_f64().and_then(|value| Weight::try_new(value).ok()).unwrap_or_else(|| {
        alarms.push(format!("{field}.weight of {} is {}: counted as 1.0", raw.id, raw.weight));
        Weight::ONE
    });
    let curve = match Curve::try_new(&raw.curve) {
        _ if raw.curve.is_empty() => None,
        Ok(curve) => Some(curve),
        Err(why) => {
            alarms.push(format!("{field}.curve of {} has {why}: counted as no curve", raw.id));
            None
        }
    };
    let measured_tps = raw.prefill_tps.filter(|tps| is_speed(*tps));
    // Without a reading the weight stands in: what decodes faster mostly computes prompts faster, too.
    let prefill_speed = match (measured_tps, median_prefill_tps) {
        (Some(tps), Some(median_tps)) => tps / median_tps,
        _ => weight.get(),
    };
    if raw.cap == Some(0) {
        return refuse(format!("{field}.cap"), 0, "a number from 1, or nothing");
    }
    let address = address.to_string();
    let key = EndpointKey::of(&raw.id, &address);
    Ok(Endpoint {
        key,
        holder: (xxh3_64_with_seed(&raw.epoch.to_le_bytes(), key.0) as u16).max(1),
        id: raw.id,
        address,
        weight,
        curve,
        cap: raw.cap.unwrap_or_else(|| cap(admission.base_cap, weight)),
        prefill_budget: prefill_budget(admission.prefill_budget_tokens, prefill_speed),
        context_window: raw.context_window,
        prefill_tps: measured_tps.unwrap_or(affinity.prefill_tps),
        kv_tokens: raw.kv_tokens.unwrap_or(affinity.kv_tokens).max(1),
        epoch: raw.epoch,
        state: raw.state,
    })
}
