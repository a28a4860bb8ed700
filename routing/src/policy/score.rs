//! A score of seven terms; the lowest wins.
//!
//! ```text
//! score = 100 x active + 10 x queue + 5 x latency + 2 x job - 3 x throughput + 15 x kv + 15 x gpu
//! ```
//!
//! | term | what | scale | where from | when missing |
//! |---|---|---|---|---|
//! | active | requests in flight, from elsewhere too | as it is | the live table, [`Signals::elsewhere`](crate::signals::Signals::elsewhere) | never |
//! | queue | requests that wait inside the engine | as it is | its metrics | absent |
//! | latency | moving average of the time to the first token, ms | over the candidates | earlier answers | absent |
//! | job | tokens that this request costs there: of its prompt what the endpoint does not hold, and its expected answer | over the candidates | the holder index | never |
//! | throughput | moving average of the tokens/s of one request | over the candidates | earlier answers | absent |
//! | kv | how full the KV cache is | 0..1 | its metrics | absent |
//! | gpu | how busy the GPU is | 0..1 | an exporter | absent |
//!
//! **Over the candidates**: `(value - lowest) / (highest - lowest)`, so 0 for the lowest and 1 for the highest; 0 for all when
//! they are equal, and with one candidate.
//!
//! **Missing signals.** A term counts in a decision only when every candidate has it. Else it is absent from that decision for
//! all of them: a candidate of which less is known is neither favoured nor punished for it. The other coefficients are
//! multiplied by `sum of all coefficients / sum of those of the terms that count` (throughput's 3 counted as 3), so that scores
//! keep their scale. With the coefficients above and neither GPU exporter nor averages, `active` counts
//! `100 x 150 / 127 = 118.1`. When nothing is left that has a coefficient, `active` and `job` count 100 and 2 as above: own
//! counts decide, never chance alone.
//!
//! **Rounding.** Each term is rounded to a thousandth of a point before they are added, and the sum is taken in whole thousandths:
//! the terms of a decision record add up to its score exactly, and equal scores are equal. A tie goes to the higher weight,
//! between equal weights to chance.
//!
//! Weights decide ties only: what a machine can do shows in its latency and throughput. With four idle endpoints and four
//! requests each gets one, since a request in flight outweighs everything else but a queue.
//!
//! **Affinity.** A request more costs `active` points wherever it runs, so one request per weight of
//! [allowance](crate::affinity) is worth `active x weight` points.
//!
//! Cost: two passes over the candidates; where somebody holds some of the prompt, a few look-ups for each.

use super::draw::{Draw, Tie, best, draw};
use super::{Candidate, Choice, Choices, Policy, Scene};
use crate::prefix::holders::Holders;
use crate::rng::SplitMix64;
use crate::signals::{Amount, Share};
use crate::weight::Weight;

/// The terms, in the order in which they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Term {
    /// Requests in flight.
    Active,
    /// Requests waiting in the engine.
    Queue,
    /// Time to the first token.
    Latency,
    /// What this request costs.
    Job,
    /// Tokens per second.
    Throughput,
    /// How full the KV cache is.
    Kv,
    /// How busy the GPU is.
    Gpu,
}

const TERMS: usize = 7;

impl Term {
    /// All of them.
    pub const ALL: [Term; TERMS] =
        [Term::Active, Term::Queue, Term::Latency, Term::Job, Term::Throughput, Term::Kv, Term::Gpu];

    /// The word in configurations and decisions.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Term::Active => "active",
            Term::Queue => "queue",
            Term::Latency => "latency",
            Term::Job => "job",
            Term::Throughput => "throughput",
            Term::Kv => "kv",
            Term::Gpu => "gpu",
        }
    }

    fn place(self) -> usize {
        self as usize
    }
}

/// What each term counts, in points.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score([f64; TERMS]);

impl Default for Score {
    fn default() -> Self {
        Score([100.0, 10.0, 5.0, 2.0, 3.0, 15.0, 15.0])
    }
}

impl Score {
    /// The largest coefficient.
    pub const MAX: f64 = 10_000.0;

    /// From coefficients in the order of [`Term::ALL`]; throughput's is subtracted.
    ///
    /// # Errors
    /// The first term whose coefficient is not in `0..=`[`Score::MAX`]; [`Term::Active`] when all are 0.
    pub fn try_new(coefficients: [f64; TERMS]) -> Result<Self, Term> {
        for term in Term::ALL {
            if !coefficients.get(term.place()).is_some_and(|value| (0.0..=Self::MAX).contains(value)) {
                return Err(term);
            }
        }
        if coefficients.iter().all(|value| *value == 0.0) {
            return Err(Term::Active);
        }
        Ok(Score(coefficients))
    }

    /// What a term counts.
    #[must_use]
    pub fn coefficient(&self, term: Term) -> f64 {
        self.0.get(term.place()).copied().unwrap_or_default()
    }
}

/// The lowest and the highest of some values.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Range {
    lowest: f64,
    highest: f64,
}

impl Range {
    const EMPTY: Range = Range { lowest: f64::INFINITY, highest: f64::NEG_INFINITY };

    fn take(&mut self, value: f64) {
        self.lowest = self.lowest.min(value);
        self.highest = self.highest.max(value);
    }

    /// 0 for the lowest, 1 for the highest; 0 when they are equal.
    fn place_of(&self, value: f64) -> f64 {
        if self.highest > self.lowest { (value - self.lowest) / (self.highest - self.lowest) } else { 0.0 }
    }
}

/// What all candidates of one decision share: which terms count, how much, and the ranges that they are normalised over.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Frame {
    /// Points per unit of a term; `None` where it does not count.
    points: [Option<f64>; TERMS],
    latency: Range,
    job: Range,
    throughput: Range,
}

impl Default for Frame {
    fn default() -> Self {
        Frame { points: [None; TERMS], latency: Range::EMPTY, job: Range::EMPTY, throughput: Range::EMPTY }
    }
}

impl Frame {
    fn points(&self, term: Term) -> Option<f64> {
        self.points.get(term.place()).copied().flatten()
    }
}

/// The terms of one candidate's score, in thousandths of a point; `None` where one does not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Terms([Option<i64>; TERMS]);

impl Terms {
    /// The score, in thousandths of a point.
    #[must_use]
    pub fn total(&self) -> i64 {
        self.0.iter().flatten().fold(0, |sum, term| sum.saturating_add(*term))
    }

    /// The terms that count, with their values in thousandths of a point.
    pub fn iter(&self) -> impl Iterator<Item = (Term, i64)> {
        Term::ALL.into_iter().zip(self.0).filter_map(|(term, value)| Some((term, value?)))
    }
}

/// What a candidate brings to its score; `None` where nothing is known.
struct Facts {
    active: u32,
    queue: Option<u32>,
    latency: Option<f64>,
    throughput: Option<f64>,
    kv: Option<f64>,
    gpu: Option<f64>,
}

impl Facts {
    fn of(scene: &Scene<'_>, candidate: &Candidate) -> Self {
        let signals = scene.signals(candidate);
        Facts {
            active: scene.load(candidate).total(),
            queue: signals.waiting,
            latency: signals.ttft_ms.map(Amount::get),
            throughput: signals.tps.map(Amount::get),
            kv: signals.kv.map(Share::get),
            gpu: signals.gpu.map(Share::get),
        }
    }
}

/// Tokens that the request costs at an endpoint.
fn job(scene: &Scene<'_>, prefix: &mut dyn Holders, held: bool, candidate: &Candidate) -> f64 {
    let cached = if held { prefix.tokens_at(candidate.index) } else { 0 };
    scene.ask.prompt_tokens.saturating_sub(cached).saturating_add(scene.ask.output_tokens) as f64
}

impl Score {
    /// Which terms count, and how much. `known`: the terms that every candidate has.
    fn points(&self, known: [bool; TERMS]) -> [Option<f64>; TERMS] {
        let all: f64 = self.0.iter().sum();
        let counted: f64 = self.0.iter().zip(known).filter(|(_, known)| *known).map(|(value, _)| value).sum();
        let mut points = [None; TERMS];
        for ((points, term), known) in points.iter_mut().zip(Term::ALL).zip(known) {
            *points = if counted > 0.0 {
                // In this order nothing overflows: no coefficient is above the sum of those that count.
                known.then(|| self.coefficient(term) / counted * all)
            } else {
                matches!(term, Term::Active | Term::Job).then(|| Score::default().coefficient(term))
            };
        }
        points
    }

    fn score(frame: &Frame, facts: &Facts, job: f64) -> Terms {
        let values = [
            Some(f64::from(facts.active)),
            facts.queue.map(f64::from),
            facts.latency.map(|value| frame.latency.place_of(value)),
            Some(frame.job.place_of(job)),
            facts.throughput.map(|value| -frame.throughput.place_of(value)),
            facts.kv,
            facts.gpu,
        ];
        let mut terms = [None; TERMS];
        for ((term, value), points) in terms.iter_mut().zip(values).zip(frame.points) {
            *term = value.zip(points).map(|(value, points)| (1_000.0 * points * value).round() as i64);
        }
        Terms(terms)
    }
}

/// Thousandths as a cost.
fn points(thousandths: i64) -> f64 {
    thousandths as f64 / 1_000.0
}

impl Policy for Score {
    fn weigh(&self, scene: &Scene<'_>, prefix: &mut dyn Holders, candidates: &mut [Candidate]) -> Frame {
        let mut known = [true; TERMS];
        let mut frame = Frame::default();
        let held = !prefix.longest().0.is_empty();
        for candidate in candidates.iter_mut() {
            let facts = Facts::of(scene, candidate);
            let job = job(scene, prefix, held, candidate);
            let has = [
                true,
                facts.queue.is_some(),
                facts.latency.is_some(),
                true,
                facts.throughput.is_some(),
                facts.kv.is_some(),
                facts.gpu.is_some(),
            ];
            for (known, has) in known.iter_mut().zip(has) {
                *known &= has;
            }
            frame.job.take(job);
            frame.latency.take(facts.latency.unwrap_or_default());
            frame.throughput.take(facts.throughput.unwrap_or_default());
            // Kept for the second pass.
            candidate.cost = job;
        }
        frame.points = self.points(known);
        for candidate in candidates.iter_mut() {
            let terms = Self::score(&frame, &Facts::of(scene, candidate), candidate.cost);
            candidate.cost = points(terms.total());
        }
        frame
    }

    fn choose(
        &self,
        _: &Scene<'_>,
        candidates: &[Candidate],
        rng: &mut SplitMix64,
        drawn: &mut Vec<usize>,
    ) -> Option<(Candidate, Choice)> {
        draw(candidates, Choices::All, Draw::Uniformly, rng, drawn);
        best(candidates, drawn, Tie::Heavier, Choice::LowerScore, rng)
    }

    fn unit(&self, _: &Scene<'_>, frame: &Frame, weight: Weight) -> Option<f64> {
        Some(frame.points(Term::Active).unwrap_or_default() * weight.get())
    }

    fn terms(
        &self,
        scene: &Scene<'_>,
        prefix: &mut dyn Holders,
        frame: &Frame,
        candidate: &Candidate,
    ) -> Option<Terms> {
        let held = !prefix.longest().0.is_empty();
        let job = job(scene, prefix, held, candidate);
        Some(Self::score(frame, &Facts::of(scene, candidate), job))
    }
}

#[cfg(test)]
mod tests;
