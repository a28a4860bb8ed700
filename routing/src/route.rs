//! One request, one pool: which endpoint, and the ones to try after it.
//!
//! Pure: [`decide`] looks at loads and returns a [`Pick`] or a [`Refused`]; nothing is counted here ([`crate::live::Row`]
//! does that, in the same compare-and-swap in which the loads were read). What the pool's policy costs ([`crate::policy`]), and a
//! few look-ups in the holder index where staying with a holder depends on what the alternative holds; with a shadow policy, that
//! one's cost again.
//!
//! | situation | answer |
//! |---|---|
//! | no endpoint, none ready | [`Refusal::NoEndpoint`] |
//! | the context window of no endpoint, ready or not, can hold the request | [`Refusal::TooLong`] |
//! | some could serve it, all of them at their cap | [`Refusal::AtCap`] |
//! | every one that could serve it is ejected | ejections are ignored ([`Reason::Panic`]): a stale verdict must not close the pool |
//! | an eligible endpoint holds the prompt's prefix and is not too full | it ([`Reason::Holder`]) |
//! | nobody holds it, and `affinity.cold` is `hash` | the prompt's home, if not too full ([`Reason::Home`]) |
//! | otherwise | the policy's pick among the eligible |
//!
//! "Not too full": its cost is at most that of the cheapest plus the [`allowance`], in the policy's own unit. Policies that do not
//! look at prefixes go straight to the last line.

use crate::affinity::allowance;
use crate::eligibility::{Ask, Exclusion, Load, Survey, View, survey};
use crate::policy::score::{Frame, Terms};
use crate::policy::{AnyPolicy, Candidate, Choice, Policy, Scene};
use crate::prefix::holders::{Holders, home};
use crate::rng::SplitMix64;
use crate::snapshot::{Pool, wire::Cold};

/// How many endpoints a request may try: the pick and two retries.
pub const HOSTS: usize = 3;
/// Candidates whose terms are kept for the decision record.
pub const EXPLAINED: usize = 16;

/// Why a request went where it went. The word is a metric label, a log field and part of the decision record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The only eligible endpoint.
    OnlyOne,
    /// Everybody was idle; the heaviest answers.
    AllIdle,
    /// The lower load among those drawn.
    LowerLoad,
    /// The lowest score.
    LowerScore,
    /// As good as another, but heavier.
    TieHeavier,
    /// As good as another of the same weight, or where weights do not count.
    TieChance,
    /// Its turn.
    Turn,
    /// Chance, and nothing else.
    Chance,
    /// All were ejected, so ejection was ignored.
    Panic,
    /// It holds the prompt's prefix.
    Holder,
    /// Nobody holds the prompt's prefix; this is its home.
    Home,
    /// It waited, and this is where a slot became free.
    Granted,
}

impl Reason {
    /// The word itself.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::OnlyOne => "only_one",
            Reason::AllIdle => "all_idle",
            Reason::LowerLoad => "lower_load",
            Reason::LowerScore => "lower_score",
            Reason::TieHeavier => "tie_heavier",
            Reason::TieChance => "tie_chance",
            Reason::Turn => "turn",
            Reason::Chance => "chance",
            Reason::Panic => "panic",
            Reason::Holder => "holder",
            Reason::Home => "home",
            Reason::Granted => "granted",
        }
    }
}

impl From<Choice> for Reason {
    fn from(choice: Choice) -> Self {
        match choice {
            Choice::OnlyOne => Reason::OnlyOne,
            Choice::AllIdle => Reason::AllIdle,
            Choice::LowerLoad => Reason::LowerLoad,
            Choice::LowerScore => Reason::LowerScore,
            Choice::TieHeavier => Reason::TieHeavier,
            Choice::TieChance => Reason::TieChance,
            Choice::Turn => Reason::Turn,
            Choice::Chance => Reason::Chance,
        }
    }
}

/// Why a request went nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Every endpoint that could serve has as many requests as it may, and the request or the pool does not wait.
    AtCap,
    /// The same, and the queue is full.
    QueueFull,
    /// No endpoint can serve.
    NoEndpoint,
    /// No context window can hold it; the largest has so many tokens.
    TooLong {
        /// Tokens of the largest window.
        window: u64,
    },
}

impl Refusal {
    /// The word used as metric label and log field.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Refusal::AtCap => "at_cap",
            Refusal::QueueFull => "queue_full",
            Refusal::NoEndpoint => "no_endpoint",
            Refusal::TooLong { .. } => "too_long",
        }
    }
}

/// Where a request goes.
#[derive(Debug, Clone, PartialEq)]
pub struct Pick {
    /// Place in the pool of the chosen endpoint, then of the next best, each eligible and under its cap. With fewer
    /// than [`HOSTS`] eligible endpoints they repeat in turn, so that a retry never falls to Envoy's own choice.
    pub hosts: [usize; HOSTS],
    /// Why the first.
    pub reason: Reason,
    /// The policy that decided.
    pub policy: &'static str,
    /// Whether that is the canary.
    pub canary: bool,
    /// Places of the endpoints that were compared.
    pub drawn: Vec<usize>,
    /// Who could have taken it.
    pub survey: Survey,
    /// What prefix affinity had to say; `None` when nobody holds any of the prompt, or the policy does not look at it.
    pub affinity: Option<Affinity>,
    /// Where the policy adds up terms: those of up to [`EXPLAINED`] candidates by their places, the chosen one first.
    pub terms: Vec<(usize, Terms)>,
    /// What the shadow policy would have done.
    pub shadow: Option<Shadow>,
}

/// How staying with a holder was weighed.
#[derive(Debug, Clone, PartialEq)]
pub struct Affinity {
    /// Places of all that hold the longest known prefix, eligible or not. Where none of those is eligible, but somebody is
    /// who holds less of the prompt: of all that hold the longest prefix of which an eligible endpoint is a holder.
    pub holders: Vec<usize>,
    /// Tokens of that prefix.
    pub matched_tokens: u64,
    /// Tokens of the longest known prefix, where that is longer: held by endpoints none of which is eligible.
    pub out_of_reach_tokens: u64,
    /// Of the matched, tokens that the freest endpoint does not have.
    pub missing_tokens: u64,
    /// How much fuller than the freest a holder could be, in requests per weight.
    pub allowance: f64,
}

/// What the shadow policy would have done with the same request in the same state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shadow {
    /// The policy.
    pub policy: &'static str,
    /// Place of the endpoint that it would have chosen.
    pub chosen: usize,
    /// Why.
    pub reason: Reason,
    /// Requests per weight that the endpoint really chosen has with this request, less those that the shadow's choice
    /// would have had with it: above 0 where the shadow would have chosen the freer one. The same unit for all policies.
    pub load_difference: f64,
    /// What the endpoint really chosen costs, less what the shadow's choice costs, both as the shadow reckons and in its own
    /// unit: how much dearer it takes the real choice to be. Below 0 where it would have stayed with a prefix holder.
    pub cost_difference: f64,
}

/// A request that goes nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub refusal: Refusal,
    /// Why for each endpoint.
    pub survey: Survey,
}

impl Pick {
    /// Place of the chosen endpoint.
    #[must_use]
    pub fn chosen(&self) -> usize {
        let [first, ..] = self.hosts;
        first
    }
}

/// Decides.
///
/// # Errors
/// [`Refused`] when no endpoint may take the request now.
pub fn decide(
    pool: &Pool,
    view: View<'_>,
    ask: &Ask,
    prefix: &mut impl Holders,
    rng: &mut SplitMix64,
) -> Result<Pick, Refused> {
    let survey = survey(pool, view.loads, ask, |place| prefix.tokens_at(place), view.now_ms);
    let scene = Scene { pool, view, ask };
    let mut candidates = candidates(pool, &survey);
    // Taken before the first draw: what the shadow draws never changes what is drawn for the request.
    let shadow_rng = rng.fork();
    let (policy, canary) = pool.policy_for(ask.id_hash);
    let Some(decided) = apply(policy.get(), &scene, prefix, survey.panic, &mut candidates, rng) else {
        return Err(Refused { refusal: refusal(pool, &survey, ask), survey });
    };
    let hosts = hosts(decided.chosen.index, &candidates);
    let terms = explain(policy.get(), &scene, prefix, &decided, &hosts, &candidates);
    let shadow = pool.shadow.as_ref().and_then(|policy| {
        shadow(policy, &scene, prefix, survey.panic, &mut candidates, decided.chosen.index, shadow_rng)
    });
    let Decided { reason, drawn, affinity, .. } = decided;
    Ok(Pick { hosts, reason, policy: policy.name(), canary, drawn, survey, affinity, terms, shadow })
}

/// The endpoints that may take the request, in the order of the pool, not weighed yet.
fn candidates(pool: &Pool, survey: &Survey) -> Vec<Candidate> {
    let mut candidates = Vec::with_capacity(pool.endpoints.len());
    for (index, (endpoint, excluded)) in pool.endpoints.iter().zip(&survey.excluded).enumerate() {
        if excluded.is_none() {
            candidates.push(Candidate { index, weight: endpoint.weight, cost: 0.0 });
        }
    }
    candidates
}

/// What one policy makes of a request.
struct Decided {
    chosen: Candidate,
    reason: Reason,
    drawn: Vec<usize>,
    affinity: Option<Affinity>,
    frame: Frame,
}

/// The policy's choice, and then affinity's. Leaves what it reckons in the candidates.
fn apply(
    policy: &dyn Policy,
    scene: &Scene<'_>,
    prefix: &mut dyn Holders,
    panic: bool,
    candidates: &mut [Candidate],
    rng: &mut SplitMix64,
) -> Option<Decided> {
    let frame = policy.weigh(scene, prefix, candidates);
    let mut drawn = Vec::new();
    let (mut chosen, choice) = policy.choose(scene, candidates, rng, &mut drawn)?;
    let mut reason = if panic { Reason::Panic } else { choice.into() };
    for place in &mut drawn {
        *place = candidates.get(*place).map_or(chosen.index, |candidate| candidate.index);
    }
    let mut affinity = None;
    if scene.pool.affinity.enabled
        && let Some(stay) = stay(policy, scene, &frame, candidates, prefix)
    {
        affinity = stay.weighed;
        if let Some(preferred) = stay.preferred {
            if !drawn.contains(&preferred.index) {
                drawn.push(preferred.index);
            }
            chosen = preferred;
            if !panic {
                reason = if affinity.is_some() { Reason::Holder } else { Reason::Home };
            }
        }
    }
    Some(Decided { chosen, reason, drawn, affinity, frame })
}

/// The terms of the chosen one, of those that were compared and of the other hosts, as many as a decision record has room for.
fn explain(
    policy: &dyn Policy,
    scene: &Scene<'_>,
    prefix: &mut dyn Holders,
    decided: &Decided,
    hosts: &[usize; HOSTS],
    candidates: &[Candidate],
) -> Vec<(usize, Terms)> {
    let mut explained = Vec::new();
    for index in std::iter::once(&decided.chosen.index).chain(&decided.drawn).chain(hosts) {
        if explained.len() >= EXPLAINED {
            break;
        }
        if explained.iter().any(|(known, _)| known == index) {
            continue;
        }
        // Candidates stand in the order of the pool.
        let place = candidates.binary_search_by_key(index, |candidate| candidate.index).ok();
        let candidate = place.and_then(|place| candidates.get(place));
        let terms = candidate.and_then(|candidate| policy.terms(scene, prefix, &decided.frame, candidate));
        let Some(terms) = terms else { break };
        explained.push((*index, terms));
    }
    explained
}

/// What another policy makes of the same request. It routes nothing.
fn shadow(
    policy: &AnyPolicy,
    scene: &Scene<'_>,
    prefix: &mut dyn Holders,
    panic: bool,
    candidates: &mut [Candidate],
    really: usize,
    mut rng: SplitMix64,
) -> Option<Shadow> {
    let Decided { chosen, reason, .. } = apply(policy.get(), scene, prefix, panic, candidates, &mut rng)?;
    let really = candidates.iter().find(|candidate| candidate.index == really)?;
    let with_it = |candidate: &Candidate| {
        let total = scene.view.loads.get(candidate.index).map_or(0, Load::total);
        (f64::from(total) + 1.0) / candidate.weight.get()
    };
    Some(Shadow {
        policy: policy.name(),
        chosen: chosen.index,
        reason,
        load_difference: with_it(really) - with_it(&chosen),
        cost_difference: really.cost - chosen.cost,
    })
}

/// The pick of a request that was given a slot while it waited: at `chosen`, whose load includes it no more, with the
/// next best behind it as in [`decide`].
pub fn granted(pool: &Pool, loads: &[Load], ask: &Ask, prefix: &mut impl Holders, now_ms: u64, chosen: usize) -> Pick {
    let survey = survey(pool, loads, ask, |place| prefix.tokens_at(place), now_ms);
    let (policy, canary) = pool.policy_for(ask.id_hash);
    let scene = Scene { pool, view: View { loads, now_ms, ..View::default() }, ask };
    let mut candidates = candidates(pool, &survey);
    policy.get().weigh(&scene, prefix, &mut candidates);
    let hosts = hosts(chosen, &candidates);
    let (holders, matched_tokens) = prefix.longest();
    let affinity = (!holders.is_empty()).then(|| Affinity {
        holders: holders.to_vec(),
        matched_tokens,
        out_of_reach_tokens: 0,
        missing_tokens: 0,
        allowance: 0.0,
    });
    let holds = affinity.as_ref().is_some_and(|affinity| affinity.holders.contains(&chosen));
    let reason = if holds { Reason::Holder } else { Reason::Granted };
    Pick {
        hosts,
        reason,
        policy: policy.name(),
        canary,
        drawn: vec![chosen],
        survey,
        affinity,
        terms: Vec::new(),
        shadow: None,
    }
}

/// Too long is for ever, so it is said only when no endpoint of the pool could hold the request, whatever its state.
#[must_use]
pub fn refusal(pool: &Pool, survey: &Survey, ask: &Ask) -> Refusal {
    let largest = pool.endpoints.iter().map(|endpoint| endpoint.context_window.map_or(u64::MAX, u64::from)).max();
    if survey.any(Exclusion::AtCap) || survey.any(Exclusion::Prefill) {
        return Refusal::AtCap;
    }
    match largest {
        Some(window) if survey.any(Exclusion::Window) && ask.least_window_tokens() > window => {
            Refusal::TooLong { window }
        }
        _ => Refusal::NoEndpoint,
    }
}

struct Stay {
    /// Where the prompt's prefix is or belongs, if that one is not too full.
    preferred: Option<Candidate>,
    weighed: Option<Affinity>,
}

/// Weighs the holder, or the home, against the freest. The allowance is counted in the policy's own unit.
fn stay(
    policy: &dyn Policy,
    scene: &Scene<'_>,
    frame: &Frame,
    candidates: &[Candidate],
    prefix: &mut dyn Holders,
) -> Option<Stay> {
    let Scene { pool, ask, .. } = *scene;
    let freest = candidates.iter().min_by(|a, b| a.compare(b))?;
    policy.unit(scene, frame, freest.weight)?;
    let prefill_tps = pool.endpoints.get(freest.index)?.prefill_tps;
    let allowed = |missing_tokens| allowance(&pool.affinity, missing_tokens, prefill_tps, ask.output_tokens);
    let fits = |candidate: &Candidate, allowance: f64| {
        let unit = policy.unit(scene, frame, candidate.weight).unwrap_or_default();
        candidate.cost <= freest.cost + allowance * unit
    };
    let (longest, longest_tokens) = prefix.longest();
    if longest.is_empty() {
        let key = prefix.home().filter(|_| pool.affinity.cold == Cold::Hash)?;
        let home = home(key, pool)?;
        let candidate = candidates.iter().find(|candidate| candidate.index == home).copied();
        let preferred = candidate.filter(|candidate| fits(candidate, allowed(ask.prompt_tokens)));
        return Some(Stay { preferred, weighed: None });
    }
    let is_candidate = |index: &usize| candidates.binary_search_by_key(index, |candidate| candidate.index).is_ok();
    let (mut holders, mut matched_tokens) = (longest.to_vec(), longest_tokens);
    if !holders.iter().any(is_candidate) {
        // Those that could answer from the longest match cannot take the request; somebody may hold most of it.
        let (next, tokens) = prefix.longest_among(&mut |index| is_candidate(&index));
        if !next.is_empty() {
            (holders, matched_tokens) = (next, tokens);
        }
    }
    let out_of_reach_tokens = if matched_tokens < longest_tokens { longest_tokens } else { 0 };
    let holder =
        candidates.iter().filter(|candidate| holders.contains(&candidate.index)).min_by(|a, b| a.compare(b)).copied();
    let missing_tokens = match &holder {
        // What the freest holds need not be looked up when it cannot change the answer.
        Some(holder) if holder.cost > freest.cost && fits(holder, allowed(matched_tokens)) => {
            matched_tokens.saturating_sub(prefix.tokens_at(freest.index))
        }
        _ => matched_tokens,
    };
    let allowance = allowed(missing_tokens);
    let preferred = holder.filter(|holder| fits(holder, allowance));
    let weighed = Affinity { holders, matched_tokens, out_of_reach_tokens, missing_tokens, allowance };
    Some(Stay { preferred, weighed: Some(weighed) })
}

/// The chosen one and the cheapest of the rest.
fn hosts(chosen: usize, candidates: &[Candidate]) -> [usize; HOSTS] {
    let better = |a: &Candidate, b: Option<Candidate>| b.is_none_or(|b| a.compare(&b).is_lt());
    let (mut second, mut third): (Option<Candidate>, Option<Candidate>) = (None, None);
    for candidate in candidates.iter().filter(|candidate| candidate.index != chosen) {
        if better(candidate, second) {
            (second, third) = (Some(*candidate), second);
        } else if better(candidate, third) {
            third = Some(*candidate);
        }
    }
    let second = second.map_or(chosen, |candidate| candidate.index);
    [chosen, second, third.map_or(chosen, |candidate| candidate.index)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::table::Passive;
    use crate::policy::{Choices, LeastPendingTokens};
    use crate::prefix::holders::Nobody;
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
        let passive = Passive { ejected_until_ms, failures: 0, ejections };
        Load { in_flight, passive, ..Load::default() }
    }

    fn run(pool: &Pool, loads: &[Load]) -> Result<Pick, Refusal> {
        ask(pool, loads, &Ask::default(), &mut Nobody)
    }

    fn ask(pool: &Pool, loads: &[Load], ask: &Ask, prefix: &mut impl Holders) -> Result<Pick, Refusal> {
        let view = View { loads, now_ms: 100, ..View::default() };
        decide(pool, view, ask, prefix, &mut SplitMix64::seeded(1)).map_err(|refused| refused.refusal)
    }

    /// Which endpoint holds how many tokens of the prompt.
    struct Fixed(Vec<(usize, u64)>, Vec<usize>);

    impl Fixed {
        fn new(of: &[(usize, u64)]) -> Self {
            let most = of.iter().map(|(_, tokens)| *tokens).max().unwrap_or_default();
            Fixed(of.to_vec(), of.iter().filter(|(_, tokens)| *tokens == most).map(|(index, _)| *index).collect())
        }
    }

    impl Holders for Fixed {
        fn longest(&mut self) -> (&[usize], u64) {
            (&self.1, self.0.iter().map(|(_, tokens)| *tokens).max().unwrap_or_default())
        }

        fn longest_among(&mut self, wanted: &mut dyn FnMut(usize) -> bool) -> (Vec<usize>, u64) {
            let of = |(index, _): &&(usize, u64)| wanted(*index);
            let most = self.0.iter().filter(of).map(|(_, tokens)| *tokens).max().unwrap_or_default();
            let holders = self.0.iter().filter(|(_, tokens)| *tokens >= most && most > 0);
            (holders.map(|(index, _)| *index).collect(), most)
        }

        fn tokens_at(&mut self, endpoint: usize) -> u64 {
            self.0.iter().find(|(index, _)| *index == endpoint).map_or(0, |(_, tokens)| *tokens)
        }

        fn home(&self) -> Option<u64> {
            Some(7)
        }
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

    /// Two endpoints of the mission's example: 1.34 and 0.66, caps by weight, the pool's median 730 tok/s.
    fn example(cold: &str) -> Pool {
        let pool = json!({"name": "p", "models": ["m"], "median_tps": 730.0, "affinity": {"cold": cold}, "endpoints": [
            {"id": "a", "address": "10.0.0.1:80", "weight": 1.34, "prefill_tps": 6000.0},
            {"id": "b", "address": "10.0.0.2:80", "weight": 0.66, "prefill_tps": 6000.0},
        ]});
        let snapshot = json!({"format": 1, "version": 1, "pools": [pool]});
        Snapshot::from_json(snapshot.to_string().as_bytes()).unwrap().pools.remove(0)
    }

    // Row 5 of the mission: 10 at 1.34 (7.5) against 3 at 0.66 (4.5).
    #[test]
    fn a_long_conversation_stays_and_a_short_prompt_moves() {
        let pool = example("policy");
        let loads = [load(10, 0, 0), load(3, 0, 0)];
        let of = |tokens| Ask { prompt_tokens: tokens, output_tokens: 128, ..Ask::default() };
        let long = ask(&pool, &loads, &of(8_100), &mut Fixed::new(&[(0, 8_000)])).unwrap();
        assert_eq!((long.chosen(), long.reason), (0, Reason::Holder));
        let short = ask(&pool, &loads, &of(110), &mut Fixed::new(&[(0, 100)])).unwrap();
        assert_eq!((short.chosen(), short.reason), (1, Reason::LowerLoad));
        assert_eq!(short.affinity.unwrap().holders, [0]);
        // A full small machine loses its conversation: 15 of its 16 slots are as much as 22.7, at the cap it is not asked.
        for in_flight in [15, 16] {
            let lost = ask(&pool, &[load(2, 0, 0), load(in_flight, 0, 0)], &of(8_100), &mut Fixed::new(&[(1, 8_000)]));
            assert_eq!(lost.unwrap().chosen(), 0);
        }
    }

    #[test]
    fn what_everybody_holds_keeps_nobody() {
        let pool = example("policy");
        let loads = [load(10, 0, 0), load(3, 0, 0)];
        let of = Ask { prompt_tokens: 8_100, output_tokens: 128, ..Ask::default() };
        // Both hold the 8,000 tokens of the system prompt, the first a hundred tokens more.
        let pick = ask(&pool, &loads, &of, &mut Fixed::new(&[(0, 8_100), (1, 8_000)])).unwrap();
        assert_eq!((pick.chosen(), pick.affinity.unwrap().missing_tokens), (1, 100));
    }

    #[test]
    fn of_several_holders_the_freest_takes_it() {
        let pool = pool(&[(1.0, READY), (1.0, READY), (1.0, READY)]);
        let of = Ask { prompt_tokens: 900, output_tokens: 128, ..Ask::default() };
        let pick =
            ask(&pool, &[load(1, 0, 0), load(0, 0, 0), load(0, 0, 0)], &of, &mut Fixed::new(&[(0, 800), (2, 800)]));
        assert_eq!(pick.unwrap().chosen(), 2);
    }

    // Case C11: a holder that is not eligible is passed over.
    #[test]
    fn c11_an_unhealthy_holder_is_passed_over() {
        let pool = pool(&[(1.0, State::Unhealthy), (1.0, READY)]);
        let of = Ask { prompt_tokens: 900, output_tokens: 128, ..Ask::default() };
        let pick = ask(&pool, &[], &of, &mut Fixed::new(&[(0, 800)])).unwrap();
        assert_eq!((pick.chosen(), pick.reason), (1, Reason::OnlyOne));
    }

    // Case C11, second half: those that hold most of it cannot be had, but somebody holds part of it.
    #[test]
    fn c11_the_second_best_holder_is_asked() {
        let mut pool = pool(&[(1.0, State::Unhealthy), (1.0, READY), (1.0, READY)]);
        pool.endpoints.iter_mut().for_each(|endpoint| endpoint.cap = 20);
        let of = Ask { prompt_tokens: 4_100, output_tokens: 128, ..Ask::default() };
        let loads = [load(0, 0, 0), load(2, 0, 0), load(0, 0, 0)];
        let pick = ask(&pool, &loads, &of, &mut Fixed::new(&[(0, 4_000), (1, 3_000)])).unwrap();
        assert_eq!((pick.chosen(), pick.reason), (1, Reason::Holder));
        let affinity = pick.affinity.unwrap();
        assert_eq!(
            (affinity.holders, affinity.matched_tokens, affinity.out_of_reach_tokens),
            (vec![0, 1], 3_000, 4_000)
        );
        // Nobody eligible holds anything: as before, with what is known in the record.
        let pick = ask(&pool, &loads, &of, &mut Fixed::new(&[(0, 4_000)])).unwrap();
        let affinity = pick.affinity.unwrap();
        assert_eq!((affinity.holders, affinity.out_of_reach_tokens), (vec![0], 0));
        assert_ne!(pick.hosts[0], 0);
    }

    #[test]
    fn a_cold_prompt_goes_home_unless_home_is_full() {
        let pool = example("hash");
        let of = Ask { prompt_tokens: 4_000, output_tokens: 128, ..Ask::default() };
        let pick = ask(&pool, &[], &of, &mut Fixed::new(&[])).unwrap();
        let home = pick.chosen();
        assert_eq!(pick.reason, Reason::Home);
        let mut loads = [load(0, 0, 0), load(0, 0, 0)];
        loads[home] = load(15, 0, 0);
        assert_ne!(ask(&pool, &loads, &of, &mut Fixed::new(&[])).unwrap().chosen(), home);
        assert_eq!(ask(&example("policy"), &[], &of, &mut Fixed::new(&[])).unwrap().reason, Reason::AllIdle);
    }

    #[test]
    fn what_no_window_can_hold_is_refused_with_the_largest() {
        let mut pool = pool(&[(1.0, READY), (1.0, READY), (1.0, State::Unhealthy)]);
        for (endpoint, window) in pool.endpoints.iter_mut().zip([1_000, 4_000, 9_000]) {
            endpoint.context_window = Some(window);
        }
        let pool = pool;
        let of = |prompt_tokens| Ask { prompt_tokens, floor_tokens: prompt_tokens, ..Ask::default() };
        assert_eq!(ask(&pool, &[], &of(2_000), &mut Nobody).unwrap().hosts, [1, 1, 1]);
        assert_eq!(ask(&pool, &[], &of(9_001), &mut Nobody), Err(Refusal::TooLong { window: 9_000 }));
        // The one that could hold it will be back.
        assert_eq!(ask(&pool, &[], &of(5_000), &mut Nobody), Err(Refusal::NoEndpoint));
        let full = [load(0, 0, 0), load(2, 0, 0)];
        assert_eq!(ask(&pool, &full, &of(2_000), &mut Nobody), Err(Refusal::AtCap));
    }

    #[test]
    fn pending_tokens_decide_where_the_policy_says_so() {
        let mut pool = pool(&[(1.0, READY), (1.0, READY)]);
        let loads = [
            Load { in_flight: 1, pending_tokens: 9_000, ..Load::default() },
            Load { in_flight: 2 - 1, pending_tokens: 300, ..Load::default() },
        ];
        pool.policy = AnyPolicy::LeastPendingTokens(LeastPendingTokens { choices: Choices::All });
        assert_eq!(run(&pool, &loads).unwrap().chosen(), 1);
    }

    proptest! {
        #[test]
        fn every_host_named_may_take_the_request(
            fleet in proptest::collection::vec((0.01f64..100.0, 0u8..5, 0u32..4, 0u64..200, 0u16..3), 0..12), seed in any::<u64>()
        ) {
            let states = [READY, READY, READY, State::Draining, State::Probing];
            let pool = pool(&fleet.iter().map(|(w, s, ..)| (*w, states[usize::from(*s)])).collect::<Vec<_>>());
            let loads: Vec<Load> = fleet.iter().map(|(_, _, n, until, times)| load(*n, *until, *times)).collect();
            let mut rng = SplitMix64::seeded(seed);
            let view = View { loads: &loads, now_ms: 100, ..View::default() };
            if let Ok(pick) = decide(&pool, view, &Ask::default(), &mut Nobody, &mut rng) {
                for host in pick.hosts {
                    prop_assert_eq!(pick.survey.excluded[host], None);
                }
                prop_assert!(pick.drawn.contains(&pick.chosen()));
            }
        }
    }
}
