//! The parts of `admission` that are more than numbers: between whom turns are taken, and which pool takes what another
//! would refuse.

use xxhash_rust::xxh3::xxh3_64;

use super::{SnapshotError, refuse, wire};
use crate::admission::Admission;
use crate::live::table::MAX_WAITERS;

/// The longest that a request may wait: an hour.
pub const MAX_WAIT_MS: u32 = 60 * 60 * 1_000;
/// The longest name of a header that tells whom to be fair to, in bytes.
pub const MAX_HEADER_BYTES: usize = 128;

/// Between whom turns are taken inside a priority.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Fairness {
    /// Nobody: first come, first served.
    #[default]
    None,
    /// The values of the body's `user`.
    User,
    /// The values of this request header.
    Header(String),
}

impl Fairness {
    /// Reads `none`, `user` or `header:<name>`.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        match text {
            "none" | "" => Some(Fairness::None),
            "user" => Some(Fairness::User),
            _ => {
                let name = text.strip_prefix("header:")?;
                let legal =
                    |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
                ((1..=MAX_HEADER_BYTES).contains(&name.len()) && name.bytes().all(legal))
                    .then(|| Fairness::Header(name.to_owned()))
            }
        }
    }
}

impl Fairness {
    /// Whose turn a request takes, from the hash of its `user` and its headers; 0 when nobody's in particular.
    #[must_use]
    pub fn key(&self, user: Option<u64>, header: impl FnOnce(&str) -> Option<Vec<u8>>) -> u32 {
        let hash = match self {
            Fairness::None => None,
            Fairness::User => user,
            Fairness::Header(name) => header(name).map(|value| xxh3_64(&value)),
        };
        hash.map_or(0, |hash| ((hash ^ hash >> 32) as u32).max(1))
    }
}

/// Checks everything but `spill_to`, which needs the other pools ([`link`]).
pub(super) fn check(
    field: &impl Fn(&str) -> String,
    raw: &wire::Admission,
) -> Result<(Admission, Fairness), SnapshotError> {
    if raw.base_cap == 0 {
        return refuse(field("admission.base_cap"), 0, "a number from 1");
    }
    if raw.queue as usize > MAX_WAITERS {
        return refuse(field("admission.queue"), raw.queue, "a number from 0 to 4096");
    }
    if raw.max_wait_ms > MAX_WAIT_MS {
        return refuse(field("admission.max_wait_ms"), raw.max_wait_ms, "at most an hour (3600000)");
    }
    if raw.ageing_ms > MAX_WAIT_MS {
        return refuse(field("admission.ageing_ms"), raw.ageing_ms, "at most an hour (3600000), or 0 for none");
    }
    let Some(fairness) = Fairness::of(&raw.fairness) else {
        return refuse(field("admission.fairness"), &raw.fairness, "none, user, or header:<name in lower case>");
    };
    let admission = Admission {
        queue: raw.queue,
        queue_bytes: raw.queue_bytes,
        max_wait_ms: raw.max_wait_ms,
        ageing_ms: raw.ageing_ms,
        prefill_budget_tokens: raw.prefill_budget_tokens,
    };
    Ok((admission, fairness))
}

/// Finds the pools that take what others would refuse. `pools` has a name and the name of its `spill_to` for each.
/// Following them never comes back to where it began.
pub(super) fn link(pools: &[(String, Option<String>)]) -> Result<Vec<Option<usize>>, SnapshotError> {
    let mut places = Vec::with_capacity(pools.len());
    for (index, (_, spill_to)) in pools.iter().enumerate() {
        let Some(wanted) = spill_to else {
            places.push(None);
            continue;
        };
        match pools.iter().position(|(name, _)| name == wanted) {
            Some(place) if place != index => places.push(Some(place)),
            _ => return refuse(spill_field(index), wanted, "the name of another pool"),
        }
    }
    for index in 0..places.len() {
        let mut at = index;
        for _ in 0..places.len() {
            match places.get(at).copied().flatten() {
                Some(next) if next == index => {
                    let name = pools.get(places.get(index).copied().flatten().unwrap_or(index));
                    return refuse(
                        spill_field(index),
                        name.map_or("", |(name, _)| name),
                        "a pool that does not spill back to this one",
                    );
                }
                Some(next) => at = next,
                None => break,
            }
        }
    }
    Ok(places)
}

fn spill_field(index: usize) -> String {
    format!("pools[{index}].admission.spill_to")
}
