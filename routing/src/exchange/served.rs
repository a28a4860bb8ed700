//! What requests of an endpoint were like: sums that any number of VMs add up, so nothing depends on who counted what.
//!
//! Each VM keeps a [`Batch`] per pool, adds it on a tick to one shared value ([`Batch::publish`]), and the VM that speaks
//! with the prober takes that value out ([`take_all`]) and sends it. What the prober did not take goes back into that VM's own
//! batch. A batch that was taken and whose answer was lost is sent again, so a sample may count twice, which moves an average
//! a little; none is lost but with the VM that holds it.
//!
//! | part | bytes | fields |
//! |---|---|---|
//! | header | 8 | `WBSV`, format u8, 3 x 0 |
//! | endpoint | 52 | key u64, requests u32, errors u32, then of TTFT, end to end and speed each: samples u32, sum f64 |

use serde::{Deserialize, Serialize};

use crate::live::{SharedValue, StoreError};
use crate::snapshot::{EndpointKey, MAX_ENDPOINTS_PER_POOL};

const MAGIC: [u8; 8] = *b"WBSV\x01\0\0\0";
const MAX_TRIES: u32 = 16;

/// A sum and how many samples it has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Sum {
    /// Samples.
    pub n: u32,
    /// Their sum.
    pub sum: f64,
}

impl Sum {
    fn add(&mut self, sample: f64) {
        // What makes no sense is no sample; one that did would spoil the average for minutes.
        if sample.is_finite() && sample >= 0.0 {
            self.merge(Sum { n: 1, sum: sample });
        }
    }

    fn merge(&mut self, other: Sum) {
        self.n = self.n.saturating_add(other.n);
        self.sum += other.sum;
    }

    /// The mean, where there is one that makes sense.
    #[must_use]
    pub fn mean(self) -> Option<f64> {
        let mean = self.sum / f64::from(self.n);
        (self.n > 0 && mean.is_finite() && mean >= 0.0).then_some(mean)
    }
}

/// What some requests of one endpoint were like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Served {
    /// Requests that the endpoint answered or failed.
    pub requests: u32,
    /// Of these, the failed ones: 5xx, resets, timeouts.
    pub errors: u32,
    /// Time to the first token, ms; streams only.
    pub ttft_ms: Sum,
    /// From the decision to the end, ms.
    pub e2e_ms: Sum,
    /// Tokens/s of a request.
    pub tps: Sum,
}

/// One request that has ended.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sample {
    /// Whether the endpoint failed it.
    pub error: bool,
    /// Time to the first token of a stream, ms.
    pub ttft_ms: Option<u64>,
    /// From the decision to the end, ms; of complete answers only.
    pub e2e_ms: Option<u64>,
    /// Tokens of the answer.
    pub tokens: Option<u64>,
}

impl Sample {
    /// Tokens/s as its client sees them: of a stream, all tokens but the first over the time from the first token to the
    /// end; of another answer, all over the whole time, prefill included. `None` below two tokens or 1 ms.
    #[must_use]
    pub fn tps(&self) -> Option<f64> {
        let (tokens, ms) = match (self.ttft_ms, self.e2e_ms?, self.tokens?) {
            (Some(ttft_ms), e2e_ms, tokens) => (tokens.checked_sub(1)?, e2e_ms.checked_sub(ttft_ms)?),
            (None, e2e_ms, tokens) => (tokens, e2e_ms),
        };
        (tokens > 0 && ms > 0).then(|| tokens as f64 * 1_000.0 / ms as f64)
    }
}

impl Served {
    /// Counts a request.
    pub fn add(&mut self, sample: &Sample) {
        self.requests = self.requests.saturating_add(1);
        self.errors = self.errors.saturating_add(u32::from(sample.error));
        for (sum, value) in [(&mut self.ttft_ms, sample.ttft_ms), (&mut self.e2e_ms, sample.e2e_ms)] {
            if let Some(ms) = value {
                sum.add(ms as f64);
            }
        }
        if let Some(tps) = sample.tps() {
            self.tps.add(tps);
        }
    }

    /// Adds what somebody else has counted.
    pub fn merge(&mut self, other: &Served) {
        self.requests = self.requests.saturating_add(other.requests);
        self.errors = self.errors.saturating_add(other.errors);
        self.ttft_ms.merge(other.ttft_ms);
        self.e2e_ms.merge(other.e2e_ms);
        self.tps.merge(other.tps);
    }

    /// The share of failed requests, 0 to 1.
    #[must_use]
    pub fn error_rate(&self) -> Option<f64> {
        (self.requests > 0).then(|| (f64::from(self.errors) / f64::from(self.requests)).min(1.0))
    }
}

/// What the requests of a pool were like, by endpoint. Bounded by the endpoints that a pool can have.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch(Vec<(EndpointKey, Served)>);

impl Batch {
    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Counts a request.
    pub fn add(&mut self, key: EndpointKey, sample: &Sample) {
        if let Some(served) = self.entry(key) {
            served.add(sample);
        }
    }

    /// Adds another batch.
    pub fn merge(&mut self, other: &Batch) {
        for (key, more) in &other.0 {
            if let Some(served) = self.entry(*key) {
                served.merge(more);
            }
        }
    }

    /// Of one endpoint.
    #[must_use]
    pub fn get(&self, key: EndpointKey) -> Option<&Served> {
        self.0.iter().find(|(known, _)| *known == key).map(|(_, served)| served)
    }

    fn entry(&mut self, key: EndpointKey) -> Option<&mut Served> {
        let place = match self.0.iter().position(|(known, _)| *known == key) {
            Some(place) => place,
            None if self.0.len() < MAX_ENDPOINTS_PER_POOL => {
                self.0.push((key, Served::default()));
                self.0.len() - 1
            }
            None => return None,
        };
        self.0.get_mut(place).map(|(_, served)| served)
    }

    /// Adds it to the shared value and empties it; where that fails, it waits for the next time. Empty, it costs nothing.
    ///
    /// # Errors
    /// What the shared memory says; [`StoreError::Conflict`] after 16 tries.
    pub fn publish(&mut self, value: &mut impl SharedValue) -> Result<(), StoreError> {
        if self.is_empty() {
            return Ok(());
        }
        for _ in 0..MAX_TRIES {
            let (bytes, token) = value.load();
            let mut shared = bytes.map_or_else(Batch::default, |bytes| Batch::decode(&bytes));
            shared.merge(self);
            match value.store(&shared.encode(), token) {
                Ok(()) => {
                    self.0.clear();
                    return Ok(());
                }
                Err(StoreError::Conflict) => {}
                Err(error) => return Err(error),
            }
        }
        Err(StoreError::Conflict)
    }

    /// Takes bytes that [`Batch::encode`] once gave; anything else counts as empty.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Self {
        Self::try_decode(bytes).unwrap_or_default()
    }

    fn try_decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes.strip_prefix(&MAGIC)?;
        let mut batch = Batch::default();
        while !rest.is_empty() && batch.0.len() < MAX_ENDPOINTS_PER_POOL {
            let key = EndpointKey(u64::from_le_bytes(take(&mut rest)?));
            let requests = u32::from_le_bytes(take(&mut rest)?);
            let errors = u32::from_le_bytes(take(&mut rest)?);
            let mut sum = || -> Option<Sum> {
                let (n, sum) = (u32::from_le_bytes(take(&mut rest)?), f64::from_le_bytes(take(&mut rest)?));
                (sum.is_finite() && sum >= 0.0).then_some(Sum { n, sum })
            };
            let (ttft_ms, e2e_ms, tps) = (sum()?, sum()?, sum()?);
            batch.0.push((key, Served { requests, errors, ttft_ms, e2e_ms, tps }));
        }
        Some(batch)
    }

    /// The binary form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for (key, served) in &self.0 {
            bytes.extend(key.0.to_le_bytes());
            bytes.extend(served.requests.to_le_bytes());
            bytes.extend(served.errors.to_le_bytes());
            for sum in [served.ttft_ms, served.e2e_ms, served.tps] {
                bytes.extend(sum.n.to_le_bytes());
                bytes.extend(sum.sum.to_le_bytes());
            }
        }
        bytes
    }
}

/// Takes everything out of the shared value. Where that fails it stays there, and nothing comes back.
pub fn take_all(value: &mut impl SharedValue) -> Batch {
    for _ in 0..MAX_TRIES {
        let (bytes, token) = value.load();
        let batch = bytes.map_or_else(Batch::default, |bytes| Batch::decode(&bytes));
        if batch.is_empty() {
            break;
        }
        match value.store(&Batch::default().encode(), token) {
            Ok(()) => return batch,
            Err(StoreError::Conflict) => {}
            Err(StoreError::Failed) => break,
        }
    }
    Batch::default()
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (chunk, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*chunk)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::testing::Memory;
    use proptest::prelude::*;

    const A: EndpointKey = EndpointKey(7);

    fn stream(ttft_ms: u64, e2e_ms: u64, tokens: u64) -> Sample {
        Sample { error: false, ttft_ms: Some(ttft_ms), e2e_ms: Some(e2e_ms), tokens: Some(tokens) }
    }

    #[test]
    fn the_speed_of_a_stream_is_that_after_its_first_token() {
        assert_eq!(stream(100, 1_100, 51).tps(), Some(50.0));
        assert_eq!(Sample { ttft_ms: None, ..stream(0, 1_000, 50) }.tps(), Some(50.0));
        for unknown in [stream(100, 1_100, 1), stream(100, 100, 9), stream(200, 100, 9), Sample::default()] {
            assert_eq!(unknown.tps(), None, "{unknown:?}");
        }
    }

    #[test]
    fn what_every_vm_counted_is_taken_once() {
        let mut memory = Memory::default();
        memory.store(&Batch::default().encode(), 0).unwrap();
        let (mut one, mut two) = (Batch::default(), Batch::default());
        one.add(A, &stream(100, 1_100, 51));
        two.add(A, &Sample { error: true, ..Sample::default() });
        two.add(EndpointKey(8), &stream(1, 2, 3));
        one.publish(&mut memory).unwrap();
        two.publish(&mut memory).unwrap();
        assert!(one.is_empty() && two.is_empty());
        let taken = take_all(&mut memory);
        let of_a = taken.get(A).unwrap();
        assert_eq!((of_a.requests, of_a.errors, of_a.error_rate()), (2, 1, Some(0.5)));
        assert_eq!((of_a.ttft_ms.mean(), of_a.tps.mean()), (Some(100.0), Some(50.0)));
        assert!(take_all(&mut memory).is_empty());
        // What the prober did not take waits, and is taken with what came since.
        one.merge(&taken);
        one.add(A, &Sample::default());
        one.publish(&mut memory).unwrap();
        assert_eq!(take_all(&mut memory).get(A).unwrap().requests, 3);
    }

    #[test]
    fn nothing_to_say_says_nothing() {
        let served = Served::default();
        assert_eq!((served.error_rate(), served.ttft_ms.mean()), (None, None));
        assert_eq!(Sum { n: 1, sum: f64::NAN }.mean(), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_and_nothing_panics(
            samples in proptest::collection::vec((any::<u64>(), any::<bool>(), any::<Option<u64>>(), any::<Option<u64>>()), 0..50),
            junk in any::<Vec<u8>>(),
        ) {
            let mut batch = Batch::default();
            for (key, error, ttft_ms, e2e_ms) in samples {
                batch.add(EndpointKey(key), &Sample { error, ttft_ms, e2e_ms, tokens: ttft_ms });
            }
            prop_assert_eq!(Batch::decode(&batch.encode()), batch);
            let _ = Batch::decode(&junk);
        }
    }
}
