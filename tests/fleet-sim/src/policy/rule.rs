//! What others do, reduced to the rule: one endpoint out of those that answer their health checks.
//!
//! A rule has no cap and no queue: what an engine cannot run yet waits there. Each gateway counts what it has sent itself and
//! hears nothing of the others, which is so in every one of the peers.

use std::collections::HashMap;

use engine_sim::model::{Model, Nanos};
use weighbridge_routing::rng::SplitMix64;
use weighbridge_routing::signals::Signals;

use super::{Answer, Arrival, Ended, Own, Routed, Router};
use crate::workload::Call;

/// What a rule looks at.
#[derive(Debug, Clone, Copy)]
pub struct Sight<'a> {
    /// Requests in flight at each endpoint, of this gateway.
    pub in_flight: &'a [u32],
    /// Places of the endpoints that answer their health checks, ascending; never empty.
    pub ready: &'a [usize],
    /// What the engines' metrics said last; empty before they have been read, and where nobody reads them.
    pub signals: &'a [Signals],
    /// The engines as they are. Only an oracle may look.
    pub engines: &'a [Model],
    /// Now.
    pub now: Nanos,
}

/// A way to choose.
pub trait Rule {
    /// Which endpoint takes the request, and how many of its prompt tokens are believed to be there; `None` refuses it.
    fn pick(&mut self, call: &Call, sight: &Sight<'_>, rng: &mut SplitMix64) -> Option<Routed>;

    /// A request of this prompt has been sent to the endpoint.
    fn sent(&mut self, _call: &Call, _endpoint: usize, _now: Nanos) {}

    /// An endpoint has come back without what it had cached. Most peers take no notice.
    fn restarted(&mut self, _endpoint: usize) {}

    /// How often it wants the engines' metrics; `None` when it does not look at them.
    fn reads_every(&self) -> Option<Nanos> {
        None
    }

    /// Bytes of what it remembers.
    fn bytes(&self) -> usize {
        0
    }
}

/// A gateway that goes by a rule.
#[derive(Debug)]
pub struct Ruled<R> {
    rule: R,
    in_flight: Vec<u32>,
    ready: Vec<usize>,
    at: HashMap<u64, usize>,
    signals: Vec<Signals>,
    rng: SplitMix64,
}

impl<R: Rule> Ruled<R> {
    /// For so many endpoints.
    pub fn new(rule: R, endpoints: usize, seed: u64) -> Self {
        Self {
            rule,
            in_flight: vec![0; endpoints],
            ready: (0..endpoints).collect(),
            at: HashMap::new(),
            signals: Vec::new(),
            rng: SplitMix64::seeded(seed),
        }
    }
}

impl<R: Rule> Router for Ruled<R> {
    fn route(&mut self, arrival: &Arrival<'_>) -> Answer {
        let everybody: Vec<usize> = (0..self.in_flight.len()).collect();
        let sight = Sight {
            in_flight: &self.in_flight,
            // When all fail their checks, the checks are not believed (Envoy's panic threshold).
            ready: if self.ready.is_empty() { &everybody } else { &self.ready },
            signals: &self.signals,
            engines: arrival.engines,
            now: arrival.now,
        };
        let Some(routed) = self.rule.pick(arrival.call, &sight, &mut self.rng) else { return Answer::Refused };
        self.in_flight[routed.endpoint] += 1;
        self.at.insert(arrival.id, routed.endpoint);
        self.rule.sent(arrival.call, routed.endpoint, arrival.now);
        Answer::To(routed)
    }

    fn first_token(&mut self, _: u64, _: u64) {}

    fn ended(&mut self, id: u64, _: Ended, _: u64) {
        if let Some(endpoint) = self.at.remove(&id) {
            self.in_flight[endpoint] -= 1;
        }
    }

    fn hear(&mut self, signals: &[Signals], _: u64) {
        self.signals.clear();
        self.signals.extend(signals);
    }

    fn hears(&self, _: usize, _: Nanos) -> Option<Nanos> {
        self.rule.reads_every()
    }

    fn health(&mut self, ready: &[bool], restarted: Option<usize>, _: u64) {
        self.ready = ready.iter().enumerate().filter(|(_, ready)| **ready).map(|(place, _)| place).collect();
        if let Some(endpoint) = restarted {
            self.rule.restarted(endpoint);
        }
    }

    fn own(&self, into: &mut Vec<Own>) {
        into.clear();
        into.extend(self.in_flight.iter().map(|in_flight| Own { in_flight: *in_flight, pending_tokens: 0 }));
    }

    fn size(&self) -> super::Size {
        super::Size { live_bytes: 0, index_bytes: self.rule.bytes() }
    }
}

/// Goes there, believing nothing.
pub(super) fn to(endpoint: usize) -> Option<Routed> {
    Some(Routed { endpoint, believed_tokens: 0 })
}

/// One of those with the least value, each as likely.
pub(super) fn least<T: PartialOrd>(
    among: &[usize],
    rng: &mut SplitMix64,
    mut value: impl FnMut(usize) -> T,
) -> Option<usize> {
    let mut best: Option<(usize, T)> = None;
    let mut equals = 1;
    for &place in among {
        let this = value(place);
        match &best {
            Some((_, least)) if this > *least => {}
            Some((_, least)) if this == *least => {
                equals += 1;
                if rng.below(equals) == 0 {
                    best = Some((place, this));
                }
            }
            _ => {
                best = Some((place, this));
                equals = 1;
            }
        }
    }
    best.map(|(place, _)| place)
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// Asks a rule once, with so many in flight at each.
    pub(in crate::policy) fn ask(
        rule: &mut impl Rule,
        call: &Call,
        in_flight: &[u32],
        signals: &[Signals],
        seed: u64,
    ) -> usize {
        let ready: Vec<usize> = (0..in_flight.len()).collect();
        let sight = Sight { in_flight, ready: &ready, signals, engines: &[], now: 0 };
        let routed = rule.pick(call, &sight, &mut SplitMix64::seeded(seed)).unwrap();
        rule.sent(call, routed.endpoint, 0);
        routed.endpoint
    }

    /// A prompt of so many blocks of one conversation.
    pub(in crate::policy) fn prompt(conversation: u64, blocks: u64) -> Call {
        Call {
            conversation,
            prompt_tokens: blocks * crate::workload::BLOCK_TOKENS,
            output_tokens: 10,
            blocks: (1..=blocks).map(|nth| crate::workload::mix(conversation, nth)).collect(),
            first: conversation,
            ..Call::default()
        }
    }

    #[test]
    fn equals_share_and_the_least_wins() {
        let mut seen = [0; 4];
        for seed in 0..3_000 {
            let at = least(&[0, 1, 3], &mut SplitMix64::seeded(seed * 77), |place| [5, 1, 0, 1][place]).unwrap();
            seen[at] += 1;
        }
        assert!(seen[0] == 0 && seen[2] == 0 && (1_300..1_700).contains(&seen[1]), "{seen:?}");
    }
}
