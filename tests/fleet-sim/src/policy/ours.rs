//! Ours: the live table and the holder index of the filter, in the memory of one process.

use std::collections::HashMap;

use weighbridge_routing::eligibility::Ask;
use weighbridge_routing::live::{Charge, Outcome, Question, Report, Row, SharedValue, StoreError, Verdict};
use weighbridge_routing::prefix::index::{SHARDS, Search, Shards};
use weighbridge_routing::rng::SplitMix64;
use weighbridge_routing::signals::Signals;
use weighbridge_routing::snapshot::Pool;

use super::{Routed, Router};
use crate::workload::Call;

/// The shared values of the index.
#[derive(Debug, Clone)]
pub struct Memory(Vec<Option<Vec<u8>>>);

impl Default for Memory {
    fn default() -> Self {
        Self(vec![None; SHARDS as usize])
    }
}

impl Memory {
    /// Bytes of the shards written so far.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.iter().flatten().map(Vec::len).sum()
    }
}

impl Shards for Memory {
    fn load(&mut self, shard: u64) -> (Option<Vec<u8>>, u32) {
        (self.0.get(shard as usize).cloned().flatten(), 1)
    }

    fn store(&mut self, shard: u64, bytes: &[u8], _: u32) -> Result<(), StoreError> {
        let held = self.0.get_mut(shard as usize).ok_or(StoreError::Failed)?;
        *held = Some(bytes.to_vec());
        Ok(())
    }
}

/// The live table's value.
#[derive(Debug, Clone, Default)]
struct Value(Option<Vec<u8>>);

impl SharedValue for Value {
    fn load(&mut self) -> (Option<Vec<u8>>, u32) {
        (self.0.clone(), 1)
    }

    fn store(&mut self, bytes: &[u8], _: u32) -> Result<(), StoreError> {
        self.0 = Some(bytes.to_vec());
        Ok(())
    }
}

#[derive(Debug)]
struct Placed {
    at: usize,
    charge: Charge,
    /// Its endpoint's token clock when it was placed.
    clock: u64,
    search: Search,
}

/// The filter's routing with one worker thread.
#[derive(Debug)]
pub struct Ours {
    pool: Pool,
    row: Row,
    value: Value,
    memory: Memory,
    rng: SplitMix64,
    median_output: u64,
    placed: HashMap<u64, Placed>,
    signals: Vec<Signals>,
}

impl Ours {
    /// For a pool; `median_output` is what the pool would have learnt.
    #[must_use]
    pub fn new(pool: Pool, median_output: u64, seed: u64) -> Self {
        Self {
            pool,
            row: Row::new(1),
            value: Value::default(),
            memory: Memory::default(),
            rng: SplitMix64::seeded(seed),
            median_output,
            placed: HashMap::new(),
            signals: Vec::new(),
        }
    }
}

impl Router for Ours {
    fn route(&mut self, id: u64, call: &Call, now_ms: u64) -> Option<Routed> {
        let Self { pool, row, value, memory, rng, signals, .. } = self;
        let prefixes = if pool.affinity.enabled { call.prefixes.clone() } else { Vec::new() };
        let home = prefixes.first().map(|prefix| prefix.hash);
        let clock = |place: usize| pool.endpoints.get(place).map_or(0, |endpoint| row.clock(endpoint.key, place));
        let mut search = Search::new(prefixes, home, pool, clock, now_ms, memory);
        let ask = Ask {
            prompt_tokens: call.prompt_tokens,
            floor_tokens: call.prompt_tokens,
            output_tokens: self.median_output,
            ..Ask::default()
        };
        let question = Question { pool, ask: &ask, signals, now_ms };
        let Verdict::Admitted(admitted) = row.admit(value, &question, &mut search.holders(memory), rng).result else {
            return None;
        };
        let at = admitted.pick.chosen();
        let believed_tokens = search.tokens_at(at, memory);
        let clock = admitted.loads.get(at).map_or(0, |load| load.clock);
        self.placed.insert(id, Placed { at, charge: admitted.charge, clock, search });
        Some(Routed { endpoint: at, believed_tokens })
    }

    fn first_token(&mut self, id: u64, now_ms: u64) {
        let Some(placed) = self.placed.get_mut(&id) else { return };
        placed.search.learn(placed.at, placed.clock, &mut self.memory);
        if let Some(endpoint) = self.pool.endpoints.get(placed.at) {
            // The memory here refuses nothing.
            let _ = self.row.first_token(&mut self.value, &self.pool, endpoint, &mut placed.charge, now_ms);
        }
    }

    fn finished(&mut self, id: u64, added_tokens: u64, now_ms: u64) {
        let Some(Placed { at, charge, .. }) = self.placed.remove(&id) else { return };
        if let Some(endpoint) = self.pool.endpoints.get(at) {
            let report = Report { outcome: Outcome::Success, trial: false, added_tokens };
            let _ = self.row.release(&mut self.value, &self.pool, endpoint, charge, report, now_ms);
        }
    }

    fn hear(&mut self, signals: &[Signals]) {
        self.signals.clear();
        self.signals.extend(signals);
    }

    fn index_bytes(&self) -> usize {
        self.memory.bytes()
    }
}
