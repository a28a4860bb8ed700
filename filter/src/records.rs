//! Decision records on their way to the prober.
//!
//! Each VM keeps those of requests that have ended (and of refusals) until its next tick, bounded and sampled
//! ([`weighbridge_routing::decision::sample`]), and posts them in one batch. A batch that does not get through is posted
//! once more at a later tick, then dropped and counted in `weighbridge_decisions_dropped`. Fail-open: nothing here touches a
//! request.

use weighbridge_routing::decision::sample::{Batch, Sample, with_request_id};
use weighbridge_routing::rng::SplitMix64;

use crate::host;
use crate::vm::Vm;

const PATH: &str = "/v1/decisions";
/// Batches per second: one per tick.
const BATCHES_PER_SECOND: u32 = 2;

/// How a request went, as far as keeping its record depends on it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Went {
    /// It failed, was refused, cut off or retried.
    pub(crate) troubled: bool,
    /// Wait and answer together.
    pub(crate) total_ms: u64,
}

/// A batch that has been posted.
struct UnderWay {
    batch: Batch,
    /// Whether it may be posted once more.
    first: bool,
    /// What it says was lost before it.
    dropped: u64,
}

/// What one VM has for the prober.
#[derive(Default)]
pub(crate) struct Records {
    sample: Sample,
    /// Which Envoy this is.
    envoy: String,
    under_way: Option<UnderWay>,
    /// A batch that did not get through, for its second try.
    again: Option<Batch>,
    /// Lost since the prober last heard of it.
    dropped: u64,
}

impl Records {
    /// Says which Envoy this is.
    pub(crate) fn name(&mut self, envoy: String) {
        self.envoy = envoy;
    }

    /// So many records a second may be sent, shared by this many VMs.
    pub(crate) fn share(&mut self, per_second: u32, vms: usize) {
        let shares = vms.max(1) * BATCHES_PER_SECOND as usize;
        self.sample.resize((per_second as usize).div_ceil(shares));
    }

    /// A request has ended and its record is written.
    pub(crate) fn offer(&mut self, record: &str, went: Went, rng: &mut SplitMix64) {
        let Some(place) = self.sample.offer(went.troubled, went.total_ms, rng) else { return };
        // Only of those that are kept: it is a host call.
        let id = host::property("request\0id").unwrap_or_default();
        let id = String::from_utf8_lossy(&id);
        let record = if id.is_empty() { record.to_owned() } else { with_request_id(record, &id) };
        if !self.sample.put(place, record) {
            self.dropped += 1;
        }
    }

    /// What is to be posted now: nothing while a batch is under way.
    fn next(&mut self) -> Option<UnderWay> {
        if self.under_way.is_some() {
            return None;
        }
        let (batch, first) = match self.again.take() {
            Some(batch) => (batch, false),
            None => (self.sample.take()?, true),
        };
        Some(UnderWay { batch, first, dropped: std::mem::take(&mut self.dropped) })
    }

    /// A batch has arrived, or not. Returns how many records were lost for good.
    fn ended(&mut self, arrived: bool) -> usize {
        let Some(UnderWay { batch, first, dropped }) = self.under_way.take() else { return 0 };
        if arrived {
            return 0;
        }
        self.dropped += dropped;
        if first {
            self.again = Some(batch);
            return 0;
        }
        self.dropped += batch.records.len() as u64;
        batch.records.len()
    }
}

/// Posts what there is. To be called on each tick.
pub(crate) fn send(vm: &mut Vm, now_ms: u64) {
    let Some(under_way) = vm.records.next() else { return };
    let body = under_way.batch.to_json(&vm.records.envoy, vm.id, under_way.dropped);
    vm.records.under_way = Some(under_way);
    let posted = vm.calls.post(PATH, body.as_bytes(), now_ms, |vm, result| ended(vm, result.is_ok()));
    if posted.is_err() {
        ended(vm, false);
    }
}

fn ended(vm: &mut Vm, arrived: bool) {
    let lost = vm.records.ended(arrived);
    if lost > 0 {
        vm.stats.decisions_dropped(lost as u64);
    }
}
