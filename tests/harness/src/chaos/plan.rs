//! What will go wrong, and when: a pure function of the seed, the stage's shape and the number of rounds.
//!
//! A round is a few seconds of load in which one or two things go wrong and are mended, and ends with everybody pausing,
//! so that what must be true at rest can be looked at. At most one engine of a pool is disturbed at a time: every failure
//! of a request then needs an explanation other than "there was nobody". The exceptions are [`Event::PoolDies`] and what
//! befalls Envoy itself. Every kind of event comes once, in an order that follows from the seed, before one comes twice.

use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::stage::StoreKind;

/// What an engine does wrong while its `/health` says that all is well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sickness {
    /// 500 at once.
    Fails,
    /// 429 with `retry-after`: it is full.
    Full,
    /// Takes requests and never answers.
    Hangs,
    /// 20 times as slow.
    Slow,
    /// The connection is reset in the middle of a stream.
    BreaksOff,
    /// The connection is reset after the request, before the response's headers.
    DiesBeforeHeaders,
    /// An error object inside a 200 stream.
    ErrorInside,
}

/// What happens to the wire before an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cable {
    /// Resets.
    Cut,
    /// Packets vanish.
    Silent,
    /// 100 ms more, each way.
    Slow,
    /// The gateway sees the end of the stream.
    HalfClosed,
}

/// Something that goes wrong, or that an operator does, for the time of its [`Step`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// `kill -9` of an engine, started again at the end.
    EngineDies(String),
    /// SIGSTOP, SIGCONT at the end.
    EngineFreezes(String),
    /// A fault, lifted at the end.
    EngineSickens(String, Sickness),
    /// A bad wire, mended at the end.
    WireFails(String, Cable),
    /// Drained by the API, stopped, started, taken back at the end.
    EngineRestartsDrained(String),
    /// All engines of a pool are killed, and started again at the end.
    PoolDies(String),
    /// `kill -9` of the prober, started again at the end.
    ProberDies,
    /// The same, and its store file is damaged meanwhile: bits flipped, or cut short.
    StoreDamaged {
        /// Cut short instead of flipped bits.
        cut: bool,
    },
    /// The store's file system takes nothing, until the end.
    DiskFull,
    /// `kill -9` of Redis, started again at the end.
    RedisDies,
    /// The filter's VM of one worker panics.
    VmPanics,
    /// `kill -9` of Envoy, started again at the end.
    EnvoyDies,
    /// Weights are pinned at random, one after another; cleared at the end.
    PinsPushed,
    /// A newcomer registers, and leaves at the end.
    NewcomerJoins(String),
    /// Drained by the API, taken back at the end.
    EngineDrained(String),
    /// So many more clients of a pool at once than there are slots.
    LoadSpikes(String),
}

/// An event with its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// From the beginning of the round.
    pub at: Duration,
    /// How long it lasts.
    pub lasts: Duration,
    /// What happens.
    pub event: Event,
}

/// One engine, as the plan sees it.
#[derive(Debug, Clone)]
pub struct Place {
    /// Its name.
    pub name: String,
    /// Its pool.
    pub pool: String,
    /// Whether its wire can fail.
    pub wired: bool,
    /// Unknown to the prober until it registers.
    pub spare: bool,
}

/// What a plan is made for.
#[derive(Debug, Clone)]
pub struct PlanOptions {
    /// Of everything random.
    pub seed: u64,
    /// The engines.
    pub places: Vec<Place>,
    /// The store that will run.
    pub store: StoreKind,
    /// How many rounds.
    pub rounds: usize,
    /// Length of a round.
    pub round: Duration,
    /// Without what takes a whole pool or Envoy itself away.
    pub mild: bool,
}

/// The rounds.
#[must_use]
pub fn plan(options: &PlanOptions) -> Vec<Vec<Step>> {
    let mut rng = StdRng::seed_from_u64(options.seed);
    let mut deck = Vec::new();
    let mut rounds = Vec::new();
    for _ in 0..options.rounds {
        let mut round: Vec<Step> = Vec::new();
        for nth in 0..2 {
            if deck.is_empty() {
                deck = kinds(options);
                deck.shuffle(&mut rng);
            }
            // The second only where it may happen beside the first; else it keeps its turn.
            let next = deck.iter().rposition(|kind| round.iter().all(|step| goes_with(step, *kind)));
            let Some(next) = next.filter(|_| nth == 0 || rng.random_bool(0.7)) else { break };
            let busy: Vec<String> = round.iter().filter_map(|step| pool_of(options, &step.event)).collect();
            let Some(event) = event(options, deck[next], &busy, &mut rng) else { break };
            deck.remove(next);
            // Begins in the first third, and is over by the last sixth.
            let at = options.round.mul_f64(rng.random_range(0.05..0.35));
            let lasts = options.round.mul_f64(rng.random_range(0.25..0.45));
            round.push(Step { at, lasts, event });
        }
        round.sort_by_key(|step| step.at);
        rounds.push(round);
    }
    rounds
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KindOf {
    Dies,
    Freezes,
    Sickens(Sickness),
    Wire(Cable),
    RestartsDrained,
    PoolDies,
    ProberDies,
    StoreDamaged(bool),
    DiskFull,
    RedisDies,
    VmPanics,
    EnvoyDies,
    Pins,
    Newcomer,
    Drained,
    Spikes,
}

fn kinds(options: &PlanOptions) -> Vec<KindOf> {
    use KindOf::*;
    let mut kinds = vec![Dies, Freezes, RestartsDrained, ProberDies, VmPanics, Pins, Drained, Spikes];
    kinds.extend(
        [
            Sickness::Fails,
            Sickness::Full,
            Sickness::Hangs,
            Sickness::Slow,
            Sickness::BreaksOff,
            Sickness::DiesBeforeHeaders,
            Sickness::ErrorInside,
        ]
        .map(Sickens),
    );
    if options.places.iter().any(|place| place.wired) {
        kinds.extend([Cable::Cut, Cable::Silent, Cable::Slow, Cable::HalfClosed].map(Wire));
    }
    if options.places.iter().any(|place| place.spare) {
        kinds.push(Newcomer);
    }
    match options.store {
        StoreKind::File => kinds.extend([StoreDamaged(false), StoreDamaged(true), DiskFull]),
        StoreKind::Redis => kinds.push(RedisDies),
    }
    if !options.mild {
        kinds.extend([PoolDies, EnvoyDies]);
    }
    kinds
}

/// Whether this may happen in the same round: never two that need the prober at the same time, and nothing beside what
/// takes away more than one engine.
fn goes_with(step: &Step, kind: KindOf) -> bool {
    let alone = |event: &Event| matches!(event, Event::PoolDies(_) | Event::EnvoyDies);
    let kind_alone = matches!(kind, KindOf::PoolDies | KindOf::EnvoyDies);
    let of_prober = |event: &Event| {
        matches!(
            event,
            Event::ProberDies
                | Event::StoreDamaged { .. }
                | Event::DiskFull
                | Event::RedisDies
                | Event::PinsPushed
                | Event::NewcomerJoins(_)
                | Event::EngineDrained(_)
                | Event::EngineRestartsDrained(_)
        )
    };
    let kind_of_prober = matches!(
        kind,
        KindOf::ProberDies
            | KindOf::StoreDamaged(_)
            | KindOf::DiskFull
            | KindOf::RedisDies
            | KindOf::Pins
            | KindOf::Newcomer
            | KindOf::Drained
            | KindOf::RestartsDrained
    );
    let twice_the_prober = of_prober(&step.event) && kind_of_prober;
    !(alone(&step.event) || kind_alone || twice_the_prober)
}

/// The pool in which an event disturbs an engine or takes slots.
fn pool_of(options: &PlanOptions, event: &Event) -> Option<String> {
    let place = |name: &String| options.places.iter().find(|place| place.name == *name);
    match event {
        Event::EngineDies(name)
        | Event::EngineFreezes(name)
        | Event::EngineSickens(name, _)
        | Event::WireFails(name, _)
        | Event::EngineRestartsDrained(name)
        | Event::EngineDrained(name)
        | Event::NewcomerJoins(name) => Some(place(name)?.pool.clone()),
        Event::PoolDies(pool) | Event::LoadSpikes(pool) => Some(pool.clone()),
        _ => None,
    }
}

/// Says whom it befalls; `None` where everybody is busy already.
fn event(options: &PlanOptions, kind: KindOf, busy: &[String], rng: &mut StdRng) -> Option<Event> {
    let free = |place: &&Place| !busy.contains(&place.pool);
    let mut one = |which: &dyn Fn(&Place) -> bool| {
        let places: Vec<_> = options.places.iter().filter(free).filter(|place| which(place)).collect();
        Some(places.get(rng.random_range(0..places.len().max(1)))?.name.clone())
    };
    let known = |place: &Place| !place.spare;
    Some(match kind {
        KindOf::Dies => Event::EngineDies(one(&known)?),
        KindOf::Freezes => Event::EngineFreezes(one(&known)?),
        KindOf::Sickens(sickness) => Event::EngineSickens(one(&known)?, sickness),
        KindOf::Wire(cable) => Event::WireFails(one(&|place| known(place) && place.wired)?, cable),
        KindOf::RestartsDrained => Event::EngineRestartsDrained(one(&known)?),
        KindOf::Drained => Event::EngineDrained(one(&known)?),
        KindOf::Newcomer => Event::NewcomerJoins(one(&|place| place.spare)?),
        KindOf::PoolDies | KindOf::Spikes => {
            let name = one(&known)?;
            let pool = options.places.iter().find(|place| place.name == name)?.pool.clone();
            if kind == KindOf::PoolDies { Event::PoolDies(pool) } else { Event::LoadSpikes(pool) }
        }
        KindOf::ProberDies => Event::ProberDies,
        KindOf::StoreDamaged(cut) => Event::StoreDamaged { cut },
        KindOf::DiskFull => Event::DiskFull,
        KindOf::RedisDies => Event::RedisDies,
        KindOf::VmPanics => Event::VmPanics,
        KindOf::EnvoyDies => Event::EnvoyDies,
        KindOf::Pins => Event::PinsPushed,
    })
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::EngineDies(name) => write!(f, "{name} is killed"),
            Event::EngineFreezes(name) => write!(f, "{name} is frozen"),
            Event::EngineSickens(name, sickness) => write!(f, "{name}: {sickness:?}"),
            Event::WireFails(name, cable) => write!(f, "the wire to {name}: {cable:?}"),
            Event::EngineRestartsDrained(name) => write!(f, "{name} is drained and restarted"),
            Event::PoolDies(pool) => write!(f, "all engines of {pool} are killed"),
            Event::ProberDies => f.write_str("the prober is killed"),
            Event::StoreDamaged { cut: false } => f.write_str("the prober is killed, bits of its store flip"),
            Event::StoreDamaged { cut: true } => f.write_str("the prober is killed, its store is cut short"),
            Event::DiskFull => f.write_str("the store's disk is full"),
            Event::RedisDies => f.write_str("Redis is killed"),
            Event::VmPanics => f.write_str("a VM panics"),
            Event::EnvoyDies => f.write_str("Envoy is killed"),
            Event::PinsPushed => f.write_str("pins are pushed"),
            Event::NewcomerJoins(name) => write!(f, "{name} registers"),
            Event::EngineDrained(name) => write!(f, "{name} is drained"),
            Event::LoadSpikes(pool) => write!(f, "load of {pool} spikes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(seed: u64) -> PlanOptions {
        let place =
            |name: &str, spare| Place { name: name.into(), pool: name[..1].into(), wired: name.ends_with('1'), spare };
        let places =
            vec![place("a1", false), place("a2", false), place("b1", false), place("b2", false), place("a9", true)];
        let (store, round) = (StoreKind::File, Duration::from_secs(10));
        PlanOptions { seed, places, store, rounds: 60, round, mild: false }
    }

    #[test]
    fn a_seed_is_a_plan_and_another_is_another() {
        assert_eq!(plan(&options(1)), plan(&options(1)));
        assert_ne!(plan(&options(1)), plan(&options(2)));
    }

    #[test]
    fn every_kind_comes_and_no_pool_loses_two_engines() {
        for seed in 0..50 {
            let options = options(seed);
            let rounds = plan(&options);
            let mut seen: Vec<_> = rounds.iter().flatten().map(|step| step.event.to_string()).collect();
            seen.iter_mut().for_each(|words| *words = words.replace(['1', '2', '9'], ""));
            for words in
                ["Envoy is killed", "all engines of", "registers", "cut short", "Silent", "Hangs", "a VM panics"]
            {
                assert!(seen.iter().any(|event| event.contains(words)), "{seed}: no {words}");
            }
            for round in rounds {
                let mut pools: Vec<_> = round.iter().filter_map(|step| pool_of(&options, &step.event)).collect();
                let count = pools.len();
                pools.sort();
                pools.dedup();
                assert_eq!(pools.len(), count, "{seed}: {round:?}");
                assert!(round.iter().all(|step| step.at + step.lasts <= options.round.mul_f64(0.81)), "{round:?}");
            }
        }
    }
}
