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
//! | some could serve it, all of them at their cap, or left alone because they pushed back | [`Refusal::AtCap`] |
//! | every one that could serve it is ejected | ejections are ignored, the least bad are in ([`Reason::Panic`]): a stale verdict must not close the pool |
//! | an eligible endpoint holds the prompt's prefix and is not too full | it ([`Reason::Holder`]) |
//! | nobody holds it, and `affinity.cold` is `hash` | the prompt's home, if not too full ([`Reason::Home`]) |
//! | otherwise | the policy's pick among the eligible |
//!
//! "Not too full": its cost is at most that of the policy's pick, where the request would go otherwise, plus the [`allowance`], in
//! the policy's own unit. Not that of the freest of all: with two choices the pick is mostly another one, and moving there for
//! the freest one's sake pays for a miss and gains little. Policies that do not look at prefixes go straight to the last line.

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
    /// Place in the pool of the chosen endpoint, then of the next best to try if it fails: eligible and under their caps, and
    /// where there are not enough of those, such as are merely full, since what was let in is not to be lost with its endpoint.
    /// With fewer than [`HOSTS`] the chosen one repeats, so that a retry never falls to Envoy's own choice.
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
    /// What staying was worth; absent where that was not weighed: the holder was no fuller than the policy's pick, or could not
    /// take the request, or the request waited and took what came free.
    pub weighed: Option<Weighed>,
}

/// What staying with a holder was worth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weighed {
    /// Of the matched, tokens that the policy's pick does not have.
    pub missing_tokens: u64,
    /// How much fuller than the policy's pick a holder could be, in requests per weight.
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
    let hosts = hosts(pool, view.loads, &survey, decided.chosen.index, &candidates);
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
        && let Some(stay) = stay(policy, scene, &frame, candidates, &chosen, prefix)
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
        candidate.weight.per_weight(f64::from(total) + 1.0)
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
    let hosts = hosts(pool, loads, &survey, chosen, &candidates);
    let (holders, matched_tokens) = prefix.longest();
    let affinity = (!holders.is_empty()).then(|| Affinity {
        holders: holders.to_vec(),
        matched_tokens,
        out_of_reach_tokens: 0,
        weighed: None,
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
    if survey.has_full() {
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

/// Weighs the holder, or the home, against the `pick` of the policy. The allowance is counted in the policy's own unit.
fn stay(
    policy: &dyn Policy,
    scene: &Scene<'_>,
    frame: &Frame,
    candidates: &[Candidate],
    pick: &Candidate,
    prefix: &mut dyn Holders,
) -> Option<Stay> {
    let Scene { pool, ask, .. } = *scene;
    policy.unit(scene, frame, pick.weight)?;
    let prefill_tps = pool.endpoints.get(pick.index)?.prefill_tps;
    let allowed = |missing_tokens| allowance(&pool.affinity, missing_tokens, prefill_tps, ask.output_tokens);
    let fits = |candidate: &Candidate, allowance: f64| {
        let unit = policy.unit(scene, frame, candidate.weight).unwrap_or_default();
        candidate.cost <= pick.cost + allowance * unit
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
    // A holder that is no fuller than the pick, or is the pick, needs no allowance.
    let weighed = holder.filter(|holder| holder.cost > pick.cost).map(|holder| {
        // What the pick holds need not be looked up when it cannot change the answer.
        let held = if fits(&holder, allowed(matched_tokens)) { prefix.tokens_at(pick.index) } else { 0 };
        let missing_tokens = matched_tokens.saturating_sub(held);
        Weighed { missing_tokens, allowance: allowed(missing_tokens) }
    });
    let preferred = holder.filter(|holder| fits(holder, weighed.map_or(0.0, |weighed| weighed.allowance)));
    Some(Stay { preferred, weighed: Some(Affinity { holders, matched_tokens, out_of_reach_tokens, weighed }) })
}

/// An endpoint at its cap: its place, and its load per weight.
type Full = (usize, f64);

/// The chosen one and the cheapest of the rest; behind those, the least loaded of the endpoints that are at their cap.
fn hosts(pool: &Pool, loads: &[Load], survey: &Survey, chosen: usize, candidates: &[Candidate]) -> [usize; HOSTS] {
    // One that was ejected is on trial, and is not what to fall back upon.
    let suspect = |a: &Candidate| loads.get(a.index).is_some_and(|load| load.passive.ejections > 0);
    let better = |a: &Candidate, b: Option<Candidate>| {
        b.is_none_or(|b| suspect(a).cmp(&suspect(&b)).then_with(|| a.compare(&b)).is_lt())
    };
    let (mut second, mut third): (Option<Candidate>, Option<Candidate>) = (None, None);
    for candidate in candidates.iter().filter(|candidate| candidate.index != chosen) {
        if better(candidate, second) {
            (second, third) = (Some(*candidate), second);
        } else if better(candidate, third) {
            third = Some(*candidate);
        }
    }
    if let (Some(second), Some(third)) = (second, third) {
        return [chosen, second.index, third.index];
    }
    let (mut fuller, mut fullest): (Option<Full>, Option<Full>) = (None, None);
    for (index, (endpoint, excluded)) in pool.endpoints.iter().zip(&survey.excluded).enumerate() {
        if *excluded != Some(Exclusion::AtCap) || index == chosen {
            continue;
        }
        let full = (index, pool.load(endpoint, loads.get(index).map_or(0, Load::total)));
        if fuller.is_none_or(|(_, least)| full.1 < least) {
            (fuller, fullest) = (Some(full), fuller);
        } else if fullest.is_none_or(|(_, least)| full.1 < least) {
            fullest = Some(full);
        }
    }
    let mut rest =
        second.map(|second| second.index).into_iter().chain([fuller, fullest].into_iter().flatten().map(|full| full.0));
    [chosen, rest.next().unwrap_or(chosen), rest.next().unwrap_or(chosen)]
}

#[cfg(test)]
mod tests;
