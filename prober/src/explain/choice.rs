//! Why a request went where it went, and why not elsewhere.

use weighbridge_routing::decision::record::{Candidate, Record};

use super::words::{count, counted, list, plain, tenths};

/// What a policy compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    InFlight,
    Curve,
    PendingTokens,
    Score,
}

impl Unit {
    fn of(record: &Record) -> Self {
        match record.policy.as_str() {
            "least_pending_tokens" => Unit::PendingTokens,
            "score" => Unit::Score,
            _ if record.candidates.iter().any(|candidate| candidate.share.is_some()) => Unit::Curve,
            _ => Unit::InFlight,
        }
    }

    /// What one endpoint carried, with the arithmetic.
    fn load_of(self, candidate: &Candidate) -> String {
        let Candidate { weight, in_flight, load, .. } = candidate;
        let id = plain(&candidate.id);
        let weight = format!("{weight:.2}");
        let weight = weight.trim_end_matches('0').trim_end_matches('.');
        let elsewhere = match candidate.elsewhere {
            0 => String::new(),
            elsewhere => format!(" ({} of them from elsewhere)", count(elsewhere.into())),
        };
        match (self, candidate.score) {
            (Unit::Score, Some(score)) => {
                let mut terms: Vec<_> = candidate.terms.iter().collect();
                terms.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
                let terms: Vec<_> =
                    terms.iter().map(|(term, adds)| format!("{} {}", plain(term), signed(**adds))).collect();
                let terms = if terms.is_empty() { String::new() } else { format!(": {}", terms.join(", ")) };
                format!("{id} scored {}{terms}", tenths(score))
            }
            (Unit::PendingTokens, _) => {
                let tokens = counted(candidate.pending_tokens, "token");
                format!(
                    "{id} had {tokens} still to do at weight {weight}, which is {} per weight",
                    count(load.max(0.0) as u64)
                )
            }
            (Unit::Curve, _) => {
                let (in_flight, share) = (count((*in_flight).into()), candidate.share.unwrap_or(1.0));
                format!(
                    "{id} had {in_flight} in flight{elsewhere}; with one more it has {} of its weight of {weight}, which is {} per weight",
                    percent(share),
                    tenths(*load)
                )
            }
            _ => {
                let in_flight = count((*in_flight).into());
                format!(
                    "{id} had {in_flight} in flight{elsewhere} at weight {weight}, which is {} per weight",
                    tenths(*load)
                )
            }
        }
    }

    fn least(self) -> &'static str {
        match self {
            Unit::InFlight => "the fewest requests for its weight",
            Unit::Curve => "the fewest requests for what its curve leaves of its weight, so the fastest answer",
            Unit::PendingTokens => "the fewest pending tokens for its weight",
            Unit::Score => "the lowest score",
        }
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn signed(number: f64) -> String {
    if number < 0.0 { tenths(number) } else { format!("+{}", tenths(number)) }
}

fn ids<'a>(candidates: impl Iterator<Item = &'a Candidate>) -> Vec<String> {
    candidates.map(|candidate| plain(&candidate.id)).collect()
}

/// Why it went there, or nowhere.
pub(super) fn why(record: &Record) -> Vec<String> {
    let unit = Unit::of(record);
    let Some(picked) = &record.picked else { return refusal(record) };
    let chosen = record.candidates.iter().find(|candidate| candidate.id == *picked);
    let compared: Vec<&Candidate> =
        record.candidates.iter().filter(|candidate| candidate.drawn && candidate.id != *picked).collect();
    let picked = plain(picked);
    let among = match compared.len() {
        0 => String::new(),
        more => format!(" of the {} that were compared", count(more as u64 + 1)),
    };
    let mut sentences = vec![match record.reason.as_str() {
        "only_one" => format!("It went to {picked}, the only endpoint that could take it."),
        "all_idle" if unit == Unit::Curve => {
            format!(
                "It went to {picked}: nobody had anything to do, and {picked} is the fastest of them with one request."
            )
        }
        "all_idle" if chosen.is_some_and(|chosen| compared.iter().all(|other| other.weight == chosen.weight)) => {
            format!("It went to {picked}: nobody had anything to do, and all weigh the same.")
        }
        "all_idle" => format!(
            "It went to {picked}: nobody had anything to do, and {picked} is the fastest of them (highest weight)."
        ),
        "lower_load" => format!("It went to {picked}: it had {}{among}.", unit.least()),
        "tie_heavier" => format!(
            "It went to {picked}: it had {}{among}, as another had, and is the faster of the two.",
            unit.least()
        ),
        "tie_chance" => format!(
            "It went to {picked}: it had {}{among}; another just like it had as few, and chance decided.",
            unit.least()
        ),
        "granted" => format!("It went to {picked}: that had the first slot to come free that it could use."),
        "lower_score" => format!("It went to {picked}: it had the lowest score{among}."),
        "turn" => format!("It went to {picked}, whose turn it was."),
        "chance" => format!("It went to {picked}, which was drawn by chance."),
        "panic" => format!(
            "It went to {picked} although that had been ejected after failures: every endpoint that could serve was ejected, so \
             ejections were ignored."
        ),
        "holder" => {
            format!("It went to {picked}, which holds the beginning of its prompt and was not too full to wait for.")
        }
        "home" => format!(
            "It went to {picked}: nobody is known to hold its prompt, and {picked} is where a prompt that begins like this belongs \
             (affinity.cold: hash)."
        ),
        "spill" => {
            format!("It went to {picked} of this pool because the pool that it was meant for would have refused it.")
        }
        other => format!("It went to {picked}, for the reason {:?}.", plain(other)),
    }];
    if let Some(chosen) = chosen {
        sentences.push(format!("{}.", unit.load_of(chosen)));
    }
    if record.reason != "all_idle" {
        sentences.extend(compared.iter().map(|other| format!("{}.", unit.load_of(other))));
    }
    sentences.extend(affinity(record));
    sentences
}

/// What staying with a holder was worth.
fn affinity(record: &Record) -> Option<String> {
    let prefix = record.prefix.as_ref()?;
    let holders: Vec<_> = prefix.holders.iter().map(|id| plain(id)).collect();
    let held = format!("{} held {} of the prompt", list(&holders), counted(prefix.matched_tokens, "token"));
    let picked = record.picked.as_ref().filter(|picked| prefix.holders.contains(picked));
    let (Some(missing), Some(allowance)) = (prefix.missing_tokens, prefix.allowance) else {
        // A request that waited takes what comes free; any other had a holder that was no fuller than another, or none that could take it.
        let out = picked.is_none() && record.queue.is_none();
        return Some(format!("{held}{}.", if out { "; none that does could take the request" } else { "" }));
    };
    let allowance = tenths(allowance);
    let worth = match missing == prefix.matched_tokens {
        true => format!(
            "that was worth up to {allowance} more per weight than the endpoint that the policy would have picked"
        ),
        false => format!(
            "the endpoint that the policy would have picked lacked {} of these, which was worth up to {allowance} more per weight than it",
            counted(missing, "token")
        ),
    };
    let stayed = match (record.reason.as_str(), picked) {
        ("holder", _) => "",
        (_, Some(_)) => " It was picked on other grounds.",
        (_, None) => " A holder was too full for that, or could not take the request.",
    };
    Some(format!("{held}; {worth}.{stayed}"))
}

fn refusal(record: &Record) -> Vec<String> {
    vec![match record.reason.as_str() {
        "at_cap" => {
            "It was refused with 429: every endpoint that could serve it had as many requests as it may.".to_owned()
        }
        "queue_full" => {
            "It was refused with 429: every endpoint that could serve it was full, and so was the queue.".to_owned()
        }
        "queue_timeout" => {
            "It was refused with 429: it waited for a slot as long as it was allowed to, and none came free.".to_owned()
        }
        "client_left" => "It got no answer: while it waited for a slot, its client closed the connection.".to_owned(),
        "no_endpoint" => "It was refused with 503: no endpoint of the pool could serve it.".to_owned(),
        "too_long" => {
            "It was refused with 400: the context window of no endpoint can hold prompt and answer.".to_owned()
        }
        other => format!("It was refused, for the reason {:?}.", plain(other)),
    }]
}

/// Why not to each of the others, grouped by why.
pub(super) fn others(record: &Record) -> Vec<String> {
    let mut sentences = Vec::new();
    let excluded = |candidate: &&Candidate| candidate.excluded.is_some();
    let mut reasons: Vec<&str> =
        record.candidates.iter().filter_map(|candidate| candidate.excluded.as_deref()).collect();
    reasons.extend(record.omitted_excluded.keys().map(String::as_str));
    let mut seen: Vec<&str> = Vec::new();
    for reason in reasons {
        if seen.contains(&reason) {
            continue;
        }
        seen.push(reason);
        let of_reason = record.candidates.iter().filter(|candidate| candidate.excluded.as_deref() == Some(reason));
        let named = of_reason.map(|candidate| match reason {
            "at_cap" | "reserved" => {
                let (in_flight, cap) = (count(candidate.in_flight.into()), count(candidate.cap.into()));
                format!("{} ({in_flight} of {cap})", plain(&candidate.id))
            }
            _ => plain(&candidate.id),
        });
        let mut named: Vec<_> = named.collect();
        match record.omitted_excluded.get(reason) {
            Some(more) if named.is_empty() => named.push(counted(*more, "endpoint")),
            Some(more) => named.push(format!("{} more", count(*more))),
            None => {}
        }
        sentences.push(format!("Not {}: {}.", list(&named), excluded_because(reason)));
    }
    let passed_over = record.candidates.iter().filter(|candidate| !excluded(candidate) && !weighed(record, candidate));
    let mut passed_over = ids(passed_over);
    let excluded_unseen: u64 = record.omitted_excluded.values().fold(0, |sum, count| sum.saturating_add(*count));
    let unseen = record.omitted.saturating_sub(excluded_unseen);
    // The picked one and those that were compared are shown first: where another one is shown, there was room for all of them.
    let why = if passed_over.is_empty() { unseen_because(record) } else { passed_over_because(record) };
    match unseen {
        0 => {}
        more if passed_over.is_empty() => passed_over.push(counted(more, "endpoint")),
        more => passed_over.push(format!("{} more", count(more))),
    }
    if !passed_over.is_empty() {
        sentences.push(format!("Not {}: {why}.", list(&passed_over)));
    }
    sentences
}

/// Whether the choice was between this one and others.
fn weighed(record: &Record, candidate: &Candidate) -> bool {
    candidate.drawn || Some(&candidate.id) == record.picked.as_ref()
}

/// The policy that decided.
fn decided_by(record: &Record) -> &str {
    let canary = record.shadow.as_ref().filter(|shadow| shadow.routed);
    canary.map_or(&record.policy, |canary| &canary.policy)
}

/// Why not to endpoints that could have taken it, and were not among those compared.
fn passed_over_because(record: &Record) -> String {
    let canary = record.shadow.as_ref().is_some_and(|shadow| shadow.routed);
    let choices = if canary { "policy.canary.choices" } else { "policy.choices" };
    let undrawn = format!("not among those drawn for comparison ({choices})");
    let why = match record.reason.as_str() {
        // It waited: nothing was drawn, whatever is said of its prompt.
        "granted" => "another slot was given to it, the first to come free that it could use".to_owned(),
        "holder" if record.queue.is_some() => "the slot that it was given came free elsewhere".to_owned(),
        "lower_load" | "tie_heavier" | "tie_chance" => format!("were {undrawn}"),
        "holder" => format!("were {undrawn}, nor the one that was preferred for what it holds of the prompt"),
        "home" => format!("were {undrawn}, nor where a prompt that begins like this belongs"),
        "turn" => "it was not their turn".to_owned(),
        "chance" => "chance fell on another".to_owned(),
        "panic" | "spill" => match decided_by(record) {
            "p2c" | "least_pending_tokens" | "least_request" => format!("were {undrawn}"),
            "round_robin" => "it was not their turn".to_owned(),
            "random" => "chance fell on another".to_owned(),
            _ => return unknown(),
        },
        _ => return unknown(),
    };
    let could = if record.reason == "panic" { "ejected, as all that could serve were" } else { "could have taken it" };
    format!("{could}, and {why}")
}

/// The same of endpoints that the record does not show, when all that it shows were compared.
fn unseen_because(record: &Record) -> String {
    match (record.reason.as_str(), decided_by(record)) {
        _ if record.picked.is_none() => unknown(),
        ("all_idle", _) => "had nothing to do either, and are no faster".to_owned(),
        ("lower_score" | "tie_heavier" | "tie_chance", "score") => {
            "were compared too, and scored no lower; this record has no room for them".to_owned()
        }
        // Of these, one is drawn, and that is the picked one.
        ("turn" | "chance" | "granted", _) => passed_over_because(record),
        _ => "could have taken it; this record has no room for them, and does not say whether they were compared"
            .to_owned(),
    }
}

fn unknown() -> String {
    "could have taken it; the record does not say why they did not".to_owned()
}

/// Why an endpoint could not take a request.
fn excluded_because(reason: &str) -> String {
    match reason {
        "new" => "not measured yet: the registration probe has to come first",
        "probing" => "under a burst of the prober, and out of traffic meanwhile",
        "draining" => "draining, to finish what is under way and get nothing new",
        "unhealthy" => "health checks fail",
        "ejected" => "ejected after failures, or still on trial after that",
        "cooling_down" => "left alone for a moment, because its engine had pushed back",
        "at_cap" => "as many requests in flight as it may have",
        "prefill" => "as many prompt tokens still to read as it may have at a time",
        "window" => "a context window too small for prompt and answer",
        "reserved" => "the last slots are kept for requests that only a window of that size can hold",
        other => return format!("left out as {:?}", plain(other)),
    }
    .to_owned()
}
