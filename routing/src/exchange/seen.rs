//! The prober's answer as the VMs of one Envoy share it: one binary value per pool (`signals/<pool>`), written by the VM that
//! asked and read by each VM once per change.
//!
//! Endpoints are named by their key, as in the live table. A missing figure is not a zero: it is written as a value that no
//! figure can have (`u32::MAX`, NaN).
//!
//! | part | bytes | fields |
//! |---|---|---|
//! | header | 16 | `WBSG`, format u8, 3 x 0, received u64 (ms, the Envoy's clock) |
//! | endpoint | 56 | key u64; others, others' tokens, outside, running, waiting: u32; KV, GPU, TTFT, end to end, speed, errors: f32; 0 u32 |

use super::{Averages, EndpointAnswer, Figures};
use crate::snapshot::{self, EndpointKey, MAX_ENDPOINTS_PER_POOL};

const MAGIC: [u8; 8] = *b"WBSG\x01\0\0\0";

/// What is known of one endpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Which one.
    pub key: EndpointKey,
    /// What the prober said.
    pub said: EndpointAnswer,
}

/// What is known of a pool's endpoints.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pool {
    /// When the answer came.
    pub received_ms: u64,
    /// At most one row per endpoint.
    pub rows: Vec<Row>,
}

impl Pool {
    /// From an answer; endpoints that the snapshot does not name are left out.
    #[must_use]
    pub fn of(
        pool: &snapshot::Pool,
        answer: &std::collections::BTreeMap<String, EndpointAnswer>,
        received_ms: u64,
    ) -> Self {
        let rows = pool
            .endpoints
            .iter()
            .filter_map(|endpoint| Some(Row { key: endpoint.key, said: answer.get(&endpoint.id)?.clone() }));
        Pool { received_ms, rows: rows.collect() }
    }

    /// Of one endpoint; `hint` is its likely place.
    #[must_use]
    pub fn find(&self, key: EndpointKey, hint: usize) -> Option<&EndpointAnswer> {
        let likely = self.rows.get(hint).filter(|row| row.key == key);
        likely.or_else(|| self.rows.iter().find(|row| row.key == key)).map(|row| &row.said)
    }

    /// Takes bytes that [`Pool::encode`] once gave; anything else counts as nothing known.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes.strip_prefix(&MAGIC)?;
        let mut pool = Pool { received_ms: u64::from_le_bytes(take(&mut rest)?), rows: Vec::new() };
        while !rest.is_empty() && pool.rows.len() < MAX_ENDPOINTS_PER_POOL {
            let key = EndpointKey(u64::from_le_bytes(take(&mut rest)?));
            let mut count = || Some(u32::from_le_bytes(take(&mut rest)?));
            let (others, others_tokens, outside) = (count()?, count()?, count()?);
            let (running, waiting) = (count()?, count()?);
            let mut figure = || Some(f32::from_le_bytes(take(&mut rest)?));
            let (kv, gpu, ttft, e2e, tps, errors) = (figure()?, figure()?, figure()?, figure()?, figure()?, figure()?);
            let _padding: [u8; 4] = take(&mut rest)?;
            let told = |count: u32| (count != u32::MAX).then_some(count);
            let known = |value: f32| (value.is_finite() && value >= 0.0).then_some(f64::from(value));
            let engine =
                Figures { running: told(running), waiting: told(waiting), kv_usage: known(kv), gpu_usage: known(gpu) };
            let averages =
                Averages { ttft_ms: known(ttft), e2e_ms: known(e2e), tps: known(tps), error_rate: known(errors) };
            pool.rows.push(Row {
                key,
                said: EndpointAnswer {
                    others,
                    others_tokens,
                    outside,
                    engine: (engine != Figures::default()).then_some(engine),
                    averages: (averages != Averages::default()).then_some(averages),
                },
            });
        }
        Some(pool)
    }

    /// The binary form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.received_ms.to_le_bytes());
        for Row { key, said } in &self.rows {
            let engine = said.engine.unwrap_or_default();
            let averages = said.averages.unwrap_or_default();
            bytes.extend(key.0.to_le_bytes());
            let count = |count: Option<u32>| count.unwrap_or(u32::MAX);
            for count in [said.others, said.others_tokens, said.outside, count(engine.running), count(engine.waiting)] {
                bytes.extend(count.to_le_bytes());
            }
            let figures = [
                engine.kv_usage,
                engine.gpu_usage,
                averages.ttft_ms,
                averages.e2e_ms,
                averages.tps,
                averages.error_rate,
            ];
            for figure in figures {
                bytes.extend(figure.map_or(f32::NAN, |value| value as f32).to_le_bytes());
            }
            bytes.extend([0; 4]);
        }
        bytes
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (chunk, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*chunk)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn missing_is_not_zero() {
        let said = |engine, averages| EndpointAnswer { others: 3, others_tokens: 4, outside: 5, engine, averages };
        let engine = Figures { running: Some(0), waiting: None, kv_usage: Some(0.5), gpu_usage: None };
        let averages = Averages { ttft_ms: Some(120.0), tps: Some(0.0), ..Averages::default() };
        let pool = Pool {
            received_ms: 9,
            rows: vec![
                Row { key: EndpointKey(1), said: said(Some(engine), Some(averages)) },
                Row { key: EndpointKey(2), said: said(None, None) },
            ],
        };
        assert_eq!(Pool::decode(&pool.encode()), Some(pool.clone()));
        // A hint may be wrong.
        assert_eq!(pool.find(EndpointKey(2), 0), Some(&said(None, None)));
        assert_eq!(pool.find(EndpointKey(3), 0), None);
    }

    #[test]
    fn what_makes_no_sense_is_missing() {
        let engine = Figures { kv_usage: Some(f64::INFINITY), gpu_usage: Some(-1.0), ..Figures::default() };
        let said = EndpointAnswer { engine: Some(engine), ..EndpointAnswer::default() };
        let pool = Pool { received_ms: 0, rows: vec![Row { key: EndpointKey(1), said }] };
        assert_eq!(Pool::decode(&pool.encode()).unwrap().rows[0].said, EndpointAnswer::default());
    }

    proptest! {
        #[test]
        fn nothing_panics(junk in any::<Vec<u8>>(), cut in 0usize..72) {
            let _ = Pool::decode(&junk);
            let pool = Pool { received_ms: 1, rows: vec![Row { key: EndpointKey(1), said: EndpointAnswer::default() }] };
            let bytes = pool.encode();
            let decoded = Pool::decode(&bytes[..cut.min(bytes.len())]);
            prop_assert_eq!(decoded.is_some(), cut >= bytes.len() || cut == 16);
        }
    }
}
