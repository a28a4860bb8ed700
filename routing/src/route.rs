//! One request, one pool: which endpoint, and the ones to try after it.
//!
//! Pure: [`decide`] looks at loads and returns a [`Pick`] or a [`Refusal`]; nothing is counted here ([`crate::live::Row`]
//! does that, in the same compare-and-swap in which the loads were read). `O(choices x n)`.
//!
//! | situation | answer |
//! |---|---|
//! | no endpoint, none ready | [`Refusal::NoEndpoint`] |
//! | some ready, all of them at their cap | [`Refusal::AtCap`] |
//! | every ready endpoint is ejected | ejections are ignored ([`Reason::Panic`]): a stale verdict must not close the pool |
//! | otherwise | the policy's pick among the eligible |

use crate::eligibility::{Ejections, Exclusion, Load, exclusion};
use crate::policy::{Candidate, Choice, Draw, pick};
use crate::rng::SplitMix64;
use crate::snapshot::Pool;

/// How many endpoints a request may try: the pick and two retries.
pub const HOSTS: usize = 3;

/// Why a request went where it went. The word is a metric label, a log field and part of the decision record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The only eligible endpoint.
    OnlyOne,
    /// Everybody was idle; the heaviest answers.
    AllIdle,
    /// The lower load per weight among those drawn.
    LowerLoad,
    /// As loaded as another, but heavier.
    TieHeavier,
    /// As loaded as another of the same weight.
    TieChance,
    /// All were ejected, so ejection was ignored.
    Panic,
}

impl Reason {
    /// The word itself.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::OnlyOne => "only_one",
            Reason::AllIdle => "all_idle",
            Reason::LowerLoad => "lower_load",
            Reason::TieHeavier => "tie_heavier",
            Reason::TieChance => "tie_chance",
            Reason::Panic => "panic",
        }
    }
}

/// Why a request went nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Every endpoint that could serve has as many requests as it may.
    AtCap,
    /// No endpoint can serve.
    NoEndpoint,
}

impl Refusal {
    /// The word used as metric label and log field.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Refusal::AtCap => "at_cap",
            Refusal::NoEndpoint => "no_endpoint",
        }
    }
}

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pick {
    /// Place in the pool of the chosen endpoint, then of the next best, each eligible and under its cap. With fewer
    /// than [`HOSTS`] eligible endpoints they repeat in turn, so that a retry never falls to Envoy's own choice.
    pub hosts: [usize; HOSTS],
    /// Why the first.
    pub reason: Reason,
    /// Places of the endpoints that were compared.
    pub drawn: Vec<usize>,
}

impl Pick {
    /// Place of the chosen endpoint.
    #[must_use]
    pub fn chosen(&self) -> usize {
        let [first, ..] = self.hosts;
        first
    }
}

/// Decides. `loads` has one entry per endpoint of the pool, in the pool's order; a missing one counts as idle.
///
/// # Errors
/// A [`Refusal`] when no endpoint may take the request now.
pub fn decide(pool: &Pool, loads: &[Load], now_ms: u64, draw: Draw, rng: &mut SplitMix64) -> Result<Pick, Refusal> {
    let mut ejected_only = false;
    let mut busy = false;
    let mut candidates = Vec::with_capacity(pool.endpoints.len());
    let eligible = |ejections| {
        pool.endpoints.iter().enumerate().map(move |(index, endpoint)| {
            let load = loads.get(index).copied().unwrap_or_default();
            let candidate = Candidate { index, weight: endpoint.weight, in_flight: load.in_flight };
            (candidate, exclusion(endpoint, &load, now_ms, ejections))
        })
    };
    for (candidate, excluded) in eligible(Ejections::Respect) {
        match excluded {
            None => candidates.push(candidate),
            Some(Exclusion::AtCap) => busy = true,
            Some(Exclusion::Ejected) => ejected_only = true,
            Some(_) => {}
        }
    }
    let panic = candidates.is_empty() && ejected_only && !busy;
    if panic {
        for (candidate, excluded) in eligible(Ejections::Ignore) {
            match excluded {
                None => candidates.push(candidate),
                Some(Exclusion::AtCap) => busy = true,
                Some(_) => {}
            }
        }
    }
    let mut drawn = Vec::new();
    let Some((chosen, choice)) = pick(&candidates, pool.choices, draw, rng, &mut drawn) else {
        return Err(if busy { Refusal::AtCap } else { Refusal::NoEndpoint });
    };
    let reason = match choice {
        _ if panic => Reason::Panic,
        Choice::OnlyOne => Reason::OnlyOne,
        Choice::AllIdle => Reason::AllIdle,
        Choice::LowerLoad => Reason::LowerLoad,
        Choice::TieHeavier => Reason::TieHeavier,
        Choice::TieChance => Reason::TieChance,
    };
    for place in &mut drawn {
        *place = candidates.get(*place).map_or(chosen.index, |candidate| candidate.index);
    }
    Ok(Pick { hosts: hosts(chosen, &candidates), reason, drawn })
}

/// The chosen one and the least loaded of the rest.
fn hosts(chosen: Candidate, candidates: &[Candidate]) -> [usize; HOSTS] {
    let better = |a: &Candidate, b: Option<Candidate>| b.is_none_or(|b| a.compare(&b).is_lt());
    let (mut second, mut third): (Option<Candidate>, Option<Candidate>) = (None, None);
    for candidate in candidates.iter().filter(|candidate| candidate.index != chosen.index) {
        if better(candidate, second) {
            (second, third) = (Some(*candidate), second);
        } else if better(candidate, third) {
            third = Some(*candidate);
        }
    }
    let second = second.map_or(chosen.index, |candidate| candidate.index);
    [chosen.index, second, third.map_or(chosen.index, |candidate| candidate.index)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::table::Passive;
    use crate::snapshot::{Snapshot, State, wire};
    use proptest::prelude::*;
    use serde_json::json;

    fn pool(endpoints: &[(f64, State)]) -> Pool {
        let endpoints: Vec<_> = endpoints
            .iter()
            .enumerate()
            .map(|(nth, (weight, state))| wire::Endpoint {
                id: format!("e{nth}"),
                address: format!("10.0.0.{nth}:80"),
                weight: json!(weight),
                cap: Some(2),
                state: *state,
                ..wire::Endpoint::default()
            })
            .collect();
        let pool = json!({"name": "p", "models": ["m"], "endpoints": endpoints});
        let snapshot = json!({"format": 1, "version": 1, "pools": [pool]});
        Snapshot::from_json(snapshot.to_string().as_bytes()).unwrap().pools.remove(0)
    }

    fn load(in_flight: u32, ejected_until_ms: u64, ejections: u16) -> Load {
        Load { in_flight, passive: Passive { ejected_until_ms, failures: 0, ejections } }
    }

    fn run(pool: &Pool, loads: &[Load]) -> Result<Pick, Refusal> {
        decide(pool, loads, 100, Draw::ByWeight, &mut SplitMix64::seeded(1))
    }

    const READY: State = State::Ready;

    #[test]
    fn nobody_is_sent_to_an_endpoint_that_is_not_ready() {
        let pool = pool(&[
            (9.0, State::New),
            (9.0, State::Probing),
            (9.0, State::Draining),
            (9.0, State::Unhealthy),
            (0.3, READY),
        ]);
        let pick = run(&pool, &[]).unwrap();
        assert_eq!((pick.hosts, pick.reason), ([4, 4, 4], Reason::OnlyOne));
        assert_eq!(run(&self::pool(&[(1.0, State::Unhealthy)]), &[]), Err(Refusal::NoEndpoint));
        assert_eq!(run(&self::pool(&[]), &[]), Err(Refusal::NoEndpoint));
    }

    #[test]
    fn a_full_pool_refuses() {
        let pool = pool(&[(1.0, READY), (1.0, READY), (1.0, State::Draining)]);
        assert_eq!(run(&pool, &[load(2, 0, 0), load(3, 0, 0)]), Err(Refusal::AtCap));
        assert_eq!(run(&pool, &[load(2, 0, 0), load(1, 0, 0)]).unwrap().hosts, [1, 1, 1]);
        // The one that is not full is ejected: its verdict stands as long as somebody else could serve.
        assert_eq!(run(&pool, &[load(2, 0, 0), load(0, 200, 1)]), Err(Refusal::AtCap));
    }

    #[test]
    fn the_next_best_stand_behind_the_pick() {
        let pool = pool(&[(1.0, READY), (1.0, READY), (2.0, READY), (1.0, READY)]);
        let pick = run(&pool, &[load(1, 0, 0), load(2, 0, 0), load(1, 0, 0), load(0, 0, 0)]);
        let pick = pick.unwrap();
        let mut hosts = pick.hosts.to_vec();
        hosts.sort_unstable();
        assert_eq!(hosts, [0, 2, 3]); // 1 is at its cap
    }

    #[test]
    fn an_ejected_endpoint_is_left_out_until_its_time_is_over() {
        let pool = pool(&[(8.0, READY), (1.0, READY)]);
        assert_eq!(run(&pool, &[load(0, 101, 1), load(1, 0, 0)]).unwrap().chosen(), 1);
        assert_eq!(run(&pool, &[load(0, 100, 1), load(1, 0, 0)]).unwrap().chosen(), 0);
    }

    #[test]
    fn when_all_are_ejected_ejection_is_ignored() {
        let pool = pool(&[(1.0, READY), (1.0, READY), (1.0, State::Unhealthy)]);
        let pick = run(&pool, &[load(1, 500, 3), load(0, 900, 3)]).unwrap();
        assert_eq!((pick.chosen(), pick.reason), (1, Reason::Panic));
        assert_eq!(run(&pool, &[load(2, 500, 3), load(2, 900, 3)]), Err(Refusal::AtCap));
    }

    proptest! {
        #[test]
        fn every_host_named_may_take_the_request(
            fleet in proptest::collection::vec((0.01f64..100.0, 0u8..5, 0u32..4, 0u64..200, 0u16..3), 0..12), seed in any::<u64>()
        ) {
            let states = [READY, READY, READY, State::Draining, State::Probing];
            let pool = pool(&fleet.iter().map(|(w, s, ..)| (*w, states[usize::from(*s)])).collect::<Vec<_>>());
            let loads: Vec<Load> = fleet.iter().map(|(_, _, n, until, times)| load(*n, *until, *times)).collect();
            if let Ok(pick) = decide(&pool, &loads, 100, Draw::ByWeight, &mut SplitMix64::seeded(seed)) {
                let ejections = if pick.reason == Reason::Panic { Ejections::Ignore } else { Ejections::Respect };
                for host in pick.hosts {
                    prop_assert_eq!(exclusion(&pool.endpoints[host], &loads[host], 100, ejections), None);
                }
                prop_assert!(pick.drawn.contains(&pick.chosen()));
            }
        }
    }
}
