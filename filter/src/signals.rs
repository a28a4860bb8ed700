//! Load that is not in this Envoy's live tables: told to the prober, and heard from it.
//!
//! Once per interval of the snapshot, the VM that holds the lease posts what this Envoy has in flight and what its requests
//! were like to `/v1/signals`, and writes the answer into shared data (`signals/<pool>`). `signals/seq` says when there is
//! something new, so a tick costs each VM one read of 16 bytes, and a request nothing: what a decision looks at is made
//! when an answer comes or grows stale.
//!
//! Stale after three intervals: then only this Envoy's own counts decide, until the prober is heard again. The moving
//! averages stay; they are of the last minutes anyway.

use std::collections::BTreeMap;

use weighbridge_routing::exchange::served::{Sample, take_all};
use weighbridge_routing::exchange::{Answer, Batch, EndpointReport, PoolReport, Report, Seen};
use weighbridge_routing::signals::Signals;
use weighbridge_routing::snapshot::{EndpointKey, Pool, Snapshot};

use crate::calls::CallError;
use crate::host::{self, Shared};
use crate::vm::{self, Vm};

const PATH: &str = "/v1/signals";
/// Number and time (ms) of the last answer, 8 bytes each.
const SEQ: &str = "signals/seq";
/// Names this Envoy among those that report to the prober.
const ENVOY: &str = "signals/envoy";
/// Intervals after which an answer is stale; the prober forgets a report after as many.
const STALE_INTERVALS: u64 = 3;
/// Without a cluster for the prober, how long until the next look for one.
const NO_CLUSTER_MS: u64 = 10_000;

/// What one VM knows of the exchange.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    /// The answer that is in force here.
    seq: u64,
    /// When it came; `None` before the first.
    received_ms: Option<u64>,
    stale: bool,
    /// No report before this time.
    not_before_ms: u64,
}

/// How old what the prober said is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Age {
    pub(crate) ms: u64,
    pub(crate) stale: bool,
}

/// What a VM knows of one pool from the prober.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    seen: Option<Seen>,
    /// What decisions take, in the order of the pool's endpoints, whose keys stand beside it.
    signals: Vec<Signals>,
    keys: Vec<EndpointKey>,
    /// This VM's own, not yet shared with the others.
    served: Batch,
}

impl Heard {
    /// A request has ended.
    pub(crate) fn served(&mut self, key: EndpointKey, sample: &Sample) {
        self.served.add(key, sample);
    }

    /// Shares what has been served with the VM that reports; what cannot be shared waits.
    pub(crate) fn publish(&mut self, pool: &str) {
        // A failure is not lost: the samples stay here until the next time.
        let _ = self.served.publish(&mut Shared(&served_key(pool)));
    }

    /// Whether there is something to publish.
    pub(crate) fn is_empty(&self) -> bool {
        self.served.is_empty()
    }

    /// What others say about the endpoints of a pool, in its order. Nothing for the rare request that came under an older
    /// snapshot with other endpoints.
    pub(crate) fn signals(&self, pool: &Pool) -> &[Signals] {
        let fits = self.keys.len() == pool.endpoints.len()
            && self.keys.iter().zip(&pool.endpoints).all(|(key, endpoint)| *key == endpoint.key);
        if fits { &self.signals } else { &[] }
    }

    /// Makes what decisions take of what was heard.
    fn digest(&mut self, pool: &Pool, stale: bool) {
        self.keys.clear();
        self.signals.clear();
        for (hint, endpoint) in pool.endpoints.iter().enumerate() {
            let said = self.seen.as_ref().and_then(|seen| seen.find(endpoint.key, hint));
            self.keys.push(endpoint.key);
            self.signals.push(said.map(|said| said.signals(stale)).unwrap_or_default());
        }
    }
}

impl Exchange {
    /// The decision record's word for it: `fresh`, `stale`, or nothing before the first answer.
    pub(crate) fn word(&self) -> Option<&'static str> {
        self.received_ms.map(|_| if self.stale { "stale" } else { "fresh" })
    }

    /// How old the last answer is; `None` before the first.
    pub(crate) fn age(&self, now_ms: u64) -> Option<Age> {
        let ms = now_ms.saturating_sub(self.received_ms?);
        Some(Age { ms, stale: self.stale })
    }
}

/// Makes the shared values that are swapped. Called when a snapshot is configured, before any worker serves.
pub(crate) fn create_shared(snapshot: &Snapshot, id: u64) {
    vm::create_if_absent(ENVOY, format!("{id:016x}").as_bytes());
    for pool in &snapshot.pools {
        vm::create_if_absent(&served_key(&pool.name), &Batch::default().encode());
    }
}

/// A new configuration may bring the cluster, and other endpoints: what was heard is taken in anew.
pub(crate) fn configured(vm: &mut Vm) {
    let Some(snapshot) = vm.snapshot() else { return };
    vm.exchange.not_before_ms = 0;
    vm.exchange.seq = 0;
    hear(vm, &snapshot, host::now_ms());
}

/// On each tick: takes in what the prober has said, and, in the VM that leads, says once per interval what this Envoy has.
pub(crate) fn tick(vm: &mut Vm, now_ms: u64) {
    let Some(snapshot) = vm.snapshot() else { return };
    let interval_ms = snapshot.signals_interval_ms;
    if interval_ms == 0 {
        return;
    }
    hear(vm, &snapshot, now_ms);
    if vm.leads(now_ms) && now_ms >= vm.exchange.not_before_ms {
        // A tick may come a little early.
        vm.exchange.not_before_ms = now_ms.saturating_add(interval_ms - interval_ms / 8);
        report(vm, &snapshot, now_ms);
    }
}

/// Takes in an answer that is new here, or notes that the last one is stale now.
fn hear(vm: &mut Vm, snapshot: &Snapshot, now_ms: u64) {
    let (seq, received_ms) = seq();
    let after_ms = snapshot.signals_interval_ms.saturating_mul(STALE_INTERVALS);
    let stale = now_ms.saturating_sub(received_ms) > after_ms;
    if seq == vm.exchange.seq && stale == vm.exchange.stale {
        return;
    }
    let is_new = seq != vm.exchange.seq;
    vm.exchange.seq = seq;
    vm.exchange.received_ms = (seq > 0).then_some(received_ms);
    vm.exchange.stale = stale;
    for pool in &snapshot.pools {
        vm.heard(&pool.name, |heard| {
            if is_new {
                heard.seen = host::shared_data(&seen_key(&pool.name)).0.and_then(|bytes| Seen::decode(&bytes));
            }
            heard.digest(pool, stale);
        });
        vm.take_in(pool);
    }
}

fn seq() -> (u64, u64) {
    let read = |bytes: Vec<u8>| -> Option<(u64, u64)> {
        let (seq, rest) = bytes.split_first_chunk::<8>()?;
        Some((u64::from_le_bytes(*seq), u64::from_le_bytes(*rest.first_chunk()?)))
    };
    host::shared_data(SEQ).0.and_then(read).unwrap_or_default()
}

/// Posts what this Envoy has. What the prober does not take of the samples goes back among this VM's own.
fn report(vm: &mut Vm, snapshot: &Snapshot, now_ms: u64) {
    if vm.calls.is_busy(PATH) {
        return;
    }
    let envoy = host::shared_data(ENVOY).0.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
    let mut taken = Vec::new();
    let mut pools = BTreeMap::new();
    for pool in &snapshot.pools {
        let batch = take_all(&mut Shared(&served_key(&pool.name)));
        pools.insert(pool.name.clone(), pool_report(vm, pool, &batch, now_ms));
        if !batch.is_empty() {
            taken.push((pool.name.clone(), batch));
        }
    }
    let body = serde_json::to_vec(&Report { envoy, pools }).unwrap_or_default();
    let back = taken.clone();
    let posted = vm.calls.post(PATH, &body, now_ms, move |vm, result| {
        let word = match answered(vm, result) {
            Ok(()) => "ok",
            Err(error) => {
                give_back(vm, back);
                error
            }
        };
        vm.stats.call("weighbridge_signals_calls", word);
    });
    if let Err(error) = posted {
        give_back(vm, taken);
        if error == CallError::NoCluster {
            vm.exchange.not_before_ms = now_ms.saturating_add(NO_CLUSTER_MS);
        }
        vm.stats.call("weighbridge_signals_calls", error.as_str());
    }
}

fn pool_report(vm: &mut Vm, pool: &Pool, batch: &Batch, now_ms: u64) -> PoolReport {
    let (waiting, loads) = vm.own_loads(pool, now_ms);
    let endpoints = pool.endpoints.iter().zip(loads).map(|(endpoint, load)| {
        let served = batch.get(endpoint.key).copied();
        (endpoint.id.clone(), EndpointReport { served, ..load })
    });
    PoolReport { waiting, endpoints: endpoints.collect() }
}

fn give_back(vm: &mut Vm, taken: Vec<(String, Batch)>) {
    for (pool, batch) in taken {
        vm.heard(&pool, |heard| heard.served.merge(&batch));
    }
}

/// Shares an answer with the other VMs.
fn answered(vm: &mut Vm, result: Result<Vec<u8>, CallError>) -> Result<(), &'static str> {
    let body = result.map_err(CallError::as_str)?;
    let answer: Answer = serde_json::from_slice(&body).map_err(|_| "unreadable")?;
    let Some(snapshot) = vm.snapshot() else { return Ok(()) };
    let now_ms = host::now_ms();
    let none = BTreeMap::new();
    for pool in &snapshot.pools {
        let said = answer.pools.get(&pool.name).unwrap_or(&none);
        let seen = Seen::of(pool, said, now_ms);
        host::set_shared_data(&seen_key(&pool.name), &seen.encode(), 0).map_err(|_| "not_shared")?;
    }
    let (seq, _) = seq();
    let mut next = seq.wrapping_add(1).max(1).to_le_bytes().to_vec();
    next.extend(now_ms.to_le_bytes());
    host::set_shared_data(SEQ, &next, 0).map_err(|_| "not_shared")?;
    hear(vm, &snapshot, now_ms);
    Ok(())
}

fn seen_key(pool: &str) -> String {
    format!("signals/1/{pool}")
}

fn served_key(pool: &str) -> String {
    format!("served/1/{pool}")
}
