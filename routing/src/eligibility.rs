//! Which endpoints of a pool may take a request, and for each of the others, why not.
//!
//! [`survey`] is linear in the number of endpoints. An endpoint about which nothing is known in the live table carries nothing.

use serde::Serialize;

use crate::live::{Passive, WORTH_TELLING_TOKENS};
use crate::signals::Signals;
use crate::snapshot::{Endpoint, Pool, State};
use crate::window;

/// What the live table says about one endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests in flight, over all VMs of this Envoy, and slots granted to waiters.
    pub in_flight: u32,
    /// Requests in flight there that this Envoy has not sent, as far as it has been told; see
    /// [`Signals`].
    pub elsewhere: u32,
    /// Tokens that these requests still have to compute or generate, by estimate.
    pub pending_tokens: u32,
    /// Of these, tokens of prompts that are being computed (see [`Counts`](crate::live::table::Counts)).
    pub prefill_tokens: u32,
    /// How many prompts these are.
    pub prefills: u32,
    /// Whether its prefill budget is kept for a waiter whose prompt is too long for what is left of it.
    pub prefill_kept: bool,
    /// Passive health.
    pub passive: Passive,
    /// Its token clock; see [`crate::prefix::index`].
    pub clock: u64,
}

impl Load {
    /// Requests in flight, whoever has sent them: what a cap is held against.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.in_flight.saturating_add(self.elsewhere)
    }

    /// The longest prompt, in uncached tokens, that the endpoint may take besides those that it computes; what is not worth
    /// telling it may always.
    #[must_use]
    pub fn prefill_left(&self, endpoint: &Endpoint) -> u64 {
        match endpoint.prefill_budget {
            0 => u64::MAX,
            _ if self.prefills == 0 => u64::MAX,
            _ if self.prefill_kept => 0,
            _ if self.prefills == 1 => u64::MAX,
            budget => budget.saturating_sub(self.prefill_tokens).into(),
        }
    }
}

/// A pool at one moment. The slices have one entry per endpoint of the pool, in the pool's order; where one is missing, the
/// endpoint counts as idle and nothing is said about it.
#[derive(Debug, Clone, Copy, Default)]
pub struct View<'a> {
    /// What the live table says.
    pub loads: &'a [Load],
    /// What others say.
    pub signals: &'a [Signals],
    /// Requests that the pool has placed so far, over all VMs: whose turn it is.
    pub turn: u32,
    /// The time in ms.
    pub now_ms: u64,
}

/// Why an endpoint was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Exclusion {
    /// Registered, not measured yet.
    New,
    /// Under a burst.
    Probing,
    /// Finishing what it has.
    Draining,
    /// Fails its health checks.
    Unhealthy,
    /// Ejected after failures, or its trial after that is still under way.
    Ejected,
    /// Its engine has pushed back a moment ago.
    CoolingDown,
    /// Has as many requests in flight as it may.
    AtCap,
    /// The prompts that it is computing leave no room for this one.
    Prefill,
    /// Its context window cannot hold the request.
    Window,
    /// Its last slots are kept for requests that only a window of its size can hold.
    Reserved,
}

impl Exclusion {
    /// The word used in decisions and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Exclusion::New => "new",
            Exclusion::Probing => "probing",
            Exclusion::Draining => "draining",
            Exclusion::Unhealthy => "unhealthy",
            Exclusion::Ejected => "ejected",
            Exclusion::CoolingDown => "cooling_down",
            Exclusion::AtCap => "at_cap",
            Exclusion::Prefill => "prefill",
            Exclusion::Window => "window",
            Exclusion::Reserved => "reserved",
        }
    }
}

/// What a request needs, as far as choosing depends on it. The default needs nothing and fits everywhere.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Ask {
    /// Tokens of the prompt, by estimate.
    pub prompt_tokens: u64,
    /// The least that the prompt can have: what is certainly too long is refused by this figure.
    pub floor_tokens: u64,
    /// Tokens that the client wants room for in the answer (`max_tokens`); 0 when it did not say.
    pub requested_tokens: u64,
    /// Tokens that the answer is expected to have.
    pub output_tokens: u64,
    /// Share of the pool's requests that not every endpoint can hold, 0 to 1.
    pub long_share: f64,
    /// Hash of the request's id, where it is known: what decides whether a canary policy takes it.
    pub id_hash: Option<u64>,
    /// How it would wait.
    pub patience: Patience,
}

/// How a request waits when every endpoint that could serve it is full. The default does not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// The longest that it waits; 0 when it does not, and never longer than the pool allows.
    pub max_wait_ms: u32,
    /// 0 is served first, 9 last.
    pub priority: u8,
    /// Size of its body, which is held while it waits.
    pub body_bytes: u32,
    /// A hash of whose request it is; between keys slots go round. 0: nobody's in particular.
    pub key: u32,
}

/// The priority of a request that asks for none.
pub const DEFAULT_PRIORITY: u8 = 5;

impl Default for Patience {
    fn default() -> Self {
        Patience { max_wait_ms: 0, priority: DEFAULT_PRIORITY, body_bytes: 0, key: 0 }
    }
}

impl Ask {
    /// What a context window must hold.
    #[must_use]
    pub fn window_tokens(&self) -> u64 {
        self.prompt_tokens.saturating_add(self.requested_tokens)
    }

    /// The least that a context window must hold.
    #[must_use]
    pub fn least_window_tokens(&self) -> u64 {
        self.floor_tokens.saturating_add(self.requested_tokens)
    }
}

/// Who may take a request, and why not the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// One entry per endpoint of the pool; `None` for those that may.
    pub excluded: Vec<Option<Exclusion>>,
    /// Whether passive ejections were ignored, because nobody else is left: then the least bad are in.
    pub panic: bool,
}

impl Survey {
    /// Whether this is why somebody was left out.
    #[must_use]
    pub fn any(&self, why: Exclusion) -> bool {
        self.excluded.contains(&Some(why))
    }

    /// Whether somebody could take the request later, and is only too busy now.
    #[must_use]
    pub fn has_full(&self) -> bool {
        self.any(Exclusion::AtCap) || self.any(Exclusion::Prefill) || self.any(Exclusion::CoolingDown)
    }

    /// Whether nobody may take the request.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.excluded.iter().all(Option::is_some)
    }
}

/// Looks at every endpoint of a pool. `loads` has one entry per endpoint; a missing one counts as idle. `held` tells the
/// tokens of the prompt that the endpoint at a place holds; it is asked only where a prefill budget is short.
///
/// Windows: an endpoint is left out when its context window is known and smaller than the estimate. The estimate can be
/// wrong, so when no window is large enough, but the largest might be (by [`Ask::floor_tokens`]), those of the largest
/// stay in, and their engine decides.
///
/// Prefill: long prompts that are computed at once slow down every answer that the endpoint generates meanwhile. An
/// endpoint that computes two or more is left out when this one would take it past its budget (see [`crate::admission`]).
/// What does not wait is not refused for that.
///
/// Back-pressure: an endpoint whose engine has pushed back is left out for a moment. A request that does not wait has nothing
/// of that where nobody else could take it later either.
///
/// Panic: when every endpoint that could serve is ejected, those are in that have not failed within
/// [`PANIC_REST_MS`](crate::live::passive::PANIC_REST_MS), or all where there are none: each gets its turn, and the first
/// success ends it.
///
/// Scarcity: requests that a smaller window could hold as well leave the last `cap x long_share` slots (at most half) of
/// a larger window free, as long as somebody with a smaller one can take them now. Where long prompts are rare, nothing
/// is kept from anybody.
#[must_use]
pub fn survey(pool: &Pool, loads: &[Load], ask: &Ask, mut held: impl FnMut(usize) -> u64, now_ms: u64) -> Survey {
    let largest = || {
        let ready = pool.endpoints.iter().filter(|endpoint| endpoint.state == State::Ready);
        ready.map(window_of).max().unwrap_or_default()
    };
    let needed = match ask.window_tokens() {
        0 => 0,
        needed => match largest() {
            largest if needed > largest && ask.least_window_tokens() <= largest => largest,
            _ => needed,
        },
    };
    let mut look = |ejections, budgets, cooling| -> Survey {
        let mut survey = Survey { excluded: Vec::with_capacity(pool.endpoints.len()), panic: false };
        let rules = Rules { needed, ejections, budgets, cooling, now_ms };
        for (place, endpoint) in pool.endpoints.iter().enumerate() {
            let load = loads.get(place).copied().unwrap_or_default();
            let prompt_left = || ask.prompt_tokens.saturating_sub(held(place));
            survey.excluded.push(exclusion(endpoint, &load, &rules, ask.prompt_tokens, prompt_left));
        }
        survey
    };
    let hasty = ask.patience.max_wait_ms == 0;
    let mut survey = look(Ejections::Respect, Budgets::Respect, Cooling::Respect);
    if survey.is_empty() && hasty && survey.any(Exclusion::Prefill) {
        survey = look(Ejections::Respect, Budgets::Ignore, Cooling::Respect);
    }
    if survey.is_empty() && hasty && survey.any(Exclusion::CoolingDown) && !survey.any(Exclusion::AtCap) {
        survey = look(Ejections::Respect, Budgets::Ignore, Cooling::Ignore);
    }
    // A stale verdict must not close the pool.
    if survey.is_empty() && survey.any(Exclusion::Ejected) && !survey.has_full() {
        let (budgets, cooling) =
            if hasty { (Budgets::Ignore, Cooling::Ignore) } else { (Budgets::Respect, Cooling::Respect) };
        let mut least_bad = look(Ejections::OfLate, budgets, cooling);
        if least_bad.is_empty() && !least_bad.has_full() {
            least_bad = look(Ejections::Ignore, budgets, cooling);
        }
        survey = Survey { panic: true, ..least_bad };
    }
    if ask.long_share > 0.0 {
        reserve(&mut survey, pool, loads, ask.long_share);
    }
    survey
}

fn window_of(endpoint: &Endpoint) -> u64 {
    endpoint.context_window.map_or(u64::MAX, u64::from)
}

fn reserve(survey: &mut Survey, pool: &Pool, loads: &[Load], long_share: f64) {
    let eligible = pool.endpoints.iter().zip(&survey.excluded).filter(|(_, excluded)| excluded.is_none());
    let Some(smallest) = eligible.map(|(endpoint, _)| window_of(endpoint)).min() else { return };
    for (index, (endpoint, excluded)) in pool.endpoints.iter().zip(&mut survey.excluded).enumerate() {
        if excluded.is_some() || window_of(endpoint) <= smallest {
            continue;
        }
        let kept = window::reserve(endpoint.cap, long_share);
        let in_flight = loads.get(index).map_or(0, Load::total);
        if in_flight.saturating_add(kept) >= endpoint.cap {
            *excluded = Some(Exclusion::Reserved);
        }
    }
}

/// Whether passive ejections count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ejections {
    Respect,
    /// Those of endpoints that have failed a moment ago.
    OfLate,
    Ignore,
}

/// Whether prefill budgets count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Budgets {
    Respect,
    Ignore,
}

/// Whether back-pressure counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cooling {
    Respect,
    Ignore,
}

struct Rules {
    /// Tokens that a window must hold.
    needed: u64,
    ejections: Ejections,
    budgets: Budgets,
    cooling: Cooling,
    now_ms: u64,
}

fn exclusion(
    endpoint: &Endpoint,
    load: &Load,
    rules: &Rules,
    prompt_tokens: u64,
    prompt_left: impl FnOnce() -> u64,
) -> Option<Exclusion> {
    match endpoint.state {
        State::Ready => {}
        State::New => return Some(Exclusion::New),
        State::Probing => return Some(Exclusion::Probing),
        State::Draining => return Some(Exclusion::Draining),
        State::Unhealthy => return Some(Exclusion::Unhealthy),
    }
    if endpoint.context_window.is_some_and(|window| rules.needed > u64::from(window)) {
        return Some(Exclusion::Window);
    }
    let passive = &load.passive;
    let is_out = passive.is_ejected(rules.now_ms)
        && match rules.ejections {
            Ejections::Respect => true,
            Ejections::OfLate => passive.failed_just_now(rules.now_ms),
            Ejections::Ignore => false,
        };
    if is_out {
        return Some(Exclusion::Ejected);
    }
    if rules.cooling == Cooling::Respect && passive.is_cooling(rules.now_ms) {
        return Some(Exclusion::CoolingDown);
    }
    if load.total() >= endpoint.cap {
        return Some(Exclusion::AtCap);
    }
    // Most endpoints compute little at the moment, and most prompts would fit: what the endpoint holds of this one is
    // looked up only where neither is so.
    let (most, least) = (load.prefill_left(endpoint), u64::from(WORTH_TELLING_TOKENS));
    let short = |tokens: u64| tokens >= least && tokens > most;
    let matters = rules.budgets == Budgets::Respect && most < u64::MAX;
    (matters && short(prompt_tokens) && short(prompt_left())).then_some(Exclusion::Prefill)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Snapshot;
    use serde_json::json;

    fn pool(windows: &[Option<u32>]) -> Pool {
        let endpoints: Vec<_> = windows
            .iter()
            .enumerate()
            .map(|(nth, window)| json!({"id": format!("e{nth}"), "address": format!("10.0.0.{nth}:80"), "weight": 1.0, "cap": 8, "context_window": window}))
            .collect();
        let snapshot =
            json!({"format": 1, "version": 1, "pools": [{"name": "p", "models": ["m"], "endpoints": endpoints}]});
        Snapshot::from_json(snapshot.to_string().as_bytes()).unwrap().pools.remove(0)
    }

    fn busy(in_flight: u32) -> Load {
        Load { in_flight, ..Load::default() }
    }

    #[test]
    fn a_window_must_hold_prompt_and_answer() {
        let pool = pool(&[Some(1_000), Some(8_000), None]);
        let ask = |prompt_tokens, requested_tokens| Ask { prompt_tokens, requested_tokens, ..Ask::default() };
        let excluded = |ask: Ask| survey(&pool, &[], &ask, |_| 0, 0).excluded;
        assert_eq!(excluded(ask(900, 100)), [None, None, None]);
        assert_eq!(excluded(ask(900, 101)), [Some(Exclusion::Window), None, None]);
        assert_eq!(excluded(ask(9_000, 0)), [Some(Exclusion::Window), Some(Exclusion::Window), None]);
    }

    #[test]
    fn what_might_fit_goes_to_the_largest_window() {
        let pool = pool(&[Some(1_000), Some(8_000)]);
        let ask = |floor_tokens| Ask { prompt_tokens: 9_000, floor_tokens, ..Ask::default() };
        assert_eq!(survey(&pool, &[], &ask(6_000), |_| 0, 0).excluded, [Some(Exclusion::Window), None]);
        assert!(survey(&pool, &[], &ask(8_001), |_| 0, 0).is_empty());
    }

    #[test]
    fn a_prefill_budget_delays_but_refuses_nothing() {
        let pool = pool(&[None, None]);
        let hasty = Ask { prompt_tokens: 9_000, ..Ask::default() };
        let patient = Ask { patience: Patience { max_wait_ms: 1, ..Patience::default() }, ..hasty };
        let computing = |prefill_tokens| Load { in_flight: 2, prefill_tokens, prefills: 2, ..Load::default() };
        let ejected = |load| Load { passive: Passive { ejected_until_ms: 9, ..Passive::default() }, ..load };
        let with = |loads: [Load; 2], ask: &Ask, held| survey(&pool, &loads, ask, |_| held, 0);
        let loads = [computing(9_000), computing(7_000)];
        assert_eq!(with(loads, &hasty, 0).excluded, [Some(Exclusion::Prefill), None]);
        assert_eq!(with(loads, &hasty, 2_000).excluded, [None, None]);
        let loads = [computing(9_000), computing(9_000)];
        assert_eq!(with(loads, &patient, 0).excluded, [Some(Exclusion::Prefill); 2]);
        assert_eq!(with(loads, &hasty, 0).excluded, [None, None]);
        let loads = [ejected(loads[0]), ejected(loads[1])];
        assert_eq!((with(loads, &hasty, 0).excluded, with(loads, &hasty, 0).panic), (vec![None, None], true));
        // One by itself may come however long it is, and so may one beside one.
        let (any, one) = (Ask { prompt_tokens: 90_000, ..patient }, Load { prefills: 1, ..computing(90_000) });
        assert_eq!(with([busy(1), one], &any, 0).excluded, [None, None]);
        assert_eq!(with([Load { prefill_kept: true, ..one }, one], &any, 0).excluded, [Some(Exclusion::Prefill), None]);
    }

    #[test]
    fn twice_the_prefill_speed_is_twice_the_budget_and_the_weight_stands_in_for_it() {
        for endpoints in [
            r#"{"id": "a", "address": "10.0.0.1:80", "weight": 0.5}, {"id": "b", "address": "10.0.0.2:80", "weight": 2.0}"#,
            // However fast they decode.
            r#"{"id": "a", "address": "10.0.0.1:80", "weight": 3.0, "prefill_tps": 1000},
               {"id": "b", "address": "10.0.0.2:80", "weight": 0.5, "prefill_tps": 4000},
               {"id": "c", "address": "10.0.0.3:80", "state": "draining", "prefill_tps": 2000}"#,
        ] {
            a_has_a_quarter_of_b(endpoints);
        }
    }

    fn a_has_a_quarter_of_b(endpoints: &str) {
        let text = format!(
            r#"{{"format": 1, "version": 1, "pools": [{{"name": "p", "models": ["m"],
            "admission": {{"prefill_budget_tokens": 10000}}, "endpoints": [{endpoints}]}}]}}"#
        );
        let pool = Snapshot::from_json(text.as_bytes()).unwrap().pools.pop().unwrap();
        let ask = |prompt_tokens| Ask {
            prompt_tokens,
            patience: Patience { max_wait_ms: 1, ..Patience::default() },
            ..Ask::default()
        };
        let loads = |prefill_tokens| [Load { prefills: 2, prefill_tokens, ..Load::default() }; 3];
        let with = |computing, new| survey(&pool, &loads(computing), &ask(new), |_| 0, 0).excluded[..2].to_vec();
        assert_eq!(with(4_000, 1_000), [None, None]);
        assert_eq!(with(4_000, 1_001), [Some(Exclusion::Prefill), None]);
        assert_eq!(with(19_000, 1_000), [Some(Exclusion::Prefill), None]);
        assert_eq!(with(19_000, 1_001), [Some(Exclusion::Prefill); 2]);
    }

    // Case C21: whoever has pushed back is passed over, waited for by those who wait, and asked by those who do not only where
    // nobody else could have them.
    #[test]
    fn c21_an_engine_that_pushed_back_is_left_alone() {
        let pool = pool(&[None, None]);
        let cooling = |load: Load| Load { passive: Passive { cool_until_ms: 9, ..load.passive }, ..load };
        let hasty = Ask::default();
        let patient = Ask { patience: Patience { max_wait_ms: 1, ..Patience::default() }, ..hasty };
        let with = |loads: [Load; 2], ask: &Ask, now_ms| survey(&pool, &loads, ask, |_| 0, now_ms).excluded;
        assert_eq!(with([cooling(busy(0)), busy(7)], &hasty, 8), [Some(Exclusion::CoolingDown), None]);
        assert_eq!(with([cooling(busy(0)), busy(7)], &hasty, 9), [None, None]);
        let both = [cooling(busy(0)), cooling(busy(8))];
        assert_eq!(with(both, &patient, 8), [Some(Exclusion::CoolingDown); 2]);
        assert_eq!(with(both, &hasty, 8), [None, Some(Exclusion::AtCap)]);
        let full = [cooling(busy(0)), busy(8)];
        assert_eq!(with(full, &hasty, 8), [Some(Exclusion::CoolingDown), Some(Exclusion::AtCap)]);
    }

    #[test]
    fn when_all_are_ejected_the_least_bad_are_in() {
        let pool = pool(&[None, None, None]);
        let ejected = |failed_ms| Load {
            passive: Passive { ejected_until_ms: 9_000, failed_ms, ejections: 1, ..Passive::default() },
            ..Load::default()
        };
        let of = |failed: [u64; 3]| {
            let survey = survey(&pool, &failed.map(ejected), &Ask::default(), |_| 0, 5_000);
            (survey.panic, survey.excluded)
        };
        assert_eq!(of([4_500, 3_000, 2_000]), (true, vec![Some(Exclusion::Ejected), None, None]));
        assert_eq!(of([4_500, 4_600, 4_700]), (true, vec![None; 3]));
        // Somebody who is fine, but full, is waited for.
        let loads = [ejected(0), busy(8), ejected(0)];
        let survey = survey(&pool, &loads, &Ask::default(), |_| 0, 5_000);
        assert!(survey.is_empty() && !survey.panic && survey.has_full());
    }

    #[test]
    fn large_windows_are_kept_for_long_prompts_only_where_those_come() {
        let pool = pool(&[Some(1_000), Some(8_000)]);
        let short = |long_share| Ask { prompt_tokens: 100, long_share, ..Ask::default() };
        let with = |loads: [Load; 2], ask: Ask| survey(&pool, &loads, &ask, |_| 0, 0).excluded;
        assert_eq!(with([busy(0), busy(7)], short(0.0)), [None, None]);
        assert_eq!(with([busy(0), busy(5)], short(0.2)), [None, None]); // 2 of 8 are kept
        assert_eq!(with([busy(0), busy(6)], short(0.2)), [None, Some(Exclusion::Reserved)]);
        assert_eq!(with([busy(0), busy(3)], short(1.0)), [None, None]); // never more than half
        // The small one is full: nothing is kept from the short ones, since they have nowhere else to go.
        assert_eq!(with([busy(8), busy(6)], short(0.2)), [Some(Exclusion::AtCap), None]);
        // A long one may have the last slot.
        let long = Ask { prompt_tokens: 2_000, long_share: 0.2, ..Ask::default() };
        assert_eq!(with([busy(0), busy(7)], long), [Some(Exclusion::Window), None]);
    }
}
