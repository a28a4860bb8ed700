//! Which VMs are alive: one small shared value in which each VM that serves requests beats.
//!
//! A VM that dies (a panic, a removed worker) never releases what it had in flight. Its row in the live tables is
//! dropped when it has not beaten for [`DEAD_AFTER_MS`]. Shared data cannot delete a key, so all beats live in one
//! bounded value rather than a key per VM. The value also names the VM that holds the lease for work that one VM per
//! Envoy does (dropping dead rows, publishing gauges).
//!
//! | part | bytes | fields |
//! |---|---|---|
//! | header | 24 | `WBHB`, format u8, 3 x 0, lease holder u64, lease until u64 (ms) |
//! | beat | 16 | row id u64, time u64 (ms) |

/// A row whose VM has not beaten for this long is dropped. Well above a tick, so that a busy worker is not taken for a
/// dead one (if it is, its row heals at its next beat), and low enough that leaked requests are gone within 5 s.
pub const DEAD_AFTER_MS: u64 = 2_500;
/// How long the lease lasts without renewal.
pub const LEASE_MS: u64 = 2_000;

const MAGIC: [u8; 8] = *b"WBHB\x01\0\0\0";
const MAX_BEATS: usize = super::table::MAX_ROWS;

/// The decoded value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Beats {
    lease_holder: u64,
    lease_until_ms: u64,
    beats: Vec<(u64, u64)>,
}

/// What a VM learns from its own beat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beat {
    /// Its row was known.
    Known,
    /// Its row was new, or had been taken for dead: what it holds must be written again.
    New,
}

impl Beats {
    /// Takes bytes that [`Beats::encode`] once gave; anything else counts as empty.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Self {
        Self::try_decode(bytes).unwrap_or_default()
    }

    fn try_decode(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let (lease_holder, rest) = take_u64(rest)?;
        let (lease_until_ms, mut rest) = take_u64(rest)?;
        let mut beats = Vec::new();
        while !rest.is_empty() && beats.len() < MAX_BEATS {
            let (id, after) = take_u64(rest)?;
            let (at_ms, after) = take_u64(after)?;
            beats.push((id, at_ms));
            rest = after;
        }
        Some(Beats { lease_holder, lease_until_ms, beats })
    }

    /// The binary form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.lease_holder.to_le_bytes());
        bytes.extend(self.lease_until_ms.to_le_bytes());
        for (id, at_ms) in &self.beats {
            bytes.extend(id.to_le_bytes());
            bytes.extend(at_ms.to_le_bytes());
        }
        bytes
    }

    /// A VM says that it lives.
    pub fn beat(&mut self, id: u64, now_ms: u64) -> Beat {
        if let Some((_, at_ms)) = self.beats.iter_mut().find(|(known, _)| *known == id) {
            *at_ms = now_ms;
            return Beat::Known;
        }
        if self.beats.len() < MAX_BEATS {
            self.beats.push((id, now_ms));
        }
        Beat::New
    }

    /// Whether a row still has a VM behind it.
    #[must_use]
    pub fn is_alive(&self, id: u64, now_ms: u64) -> bool {
        self.beats.iter().any(|(known, at_ms)| *known == id && now_ms.saturating_sub(*at_ms) <= DEAD_AFTER_MS)
    }

    /// How many VMs live.
    #[must_use]
    pub fn alive(&self, now_ms: u64) -> usize {
        self.beats.iter().filter(|(_, at_ms)| now_ms.saturating_sub(*at_ms) <= DEAD_AFTER_MS).count()
    }

    /// Forgets the dead, so that the value stays small.
    pub fn forget_dead(&mut self, now_ms: u64) {
        self.beats.retain(|(_, at_ms)| now_ms.saturating_sub(*at_ms) <= DEAD_AFTER_MS);
    }

    /// Takes or renews the lease; `true` when this VM now holds it.
    pub fn lease(&mut self, id: u64, now_ms: u64) -> bool {
        if self.lease_holder != id && now_ms < self.lease_until_ms {
            return false;
        }
        self.lease_holder = id;
        self.lease_until_ms = now_ms.saturating_add(LEASE_MS);
        true
    }
}

fn take_u64(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (chunk, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*chunk), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_vm_that_stops_beating_is_dead_and_one_that_comes_back_is_new() {
        let mut beats = Beats::default();
        assert_eq!(beats.beat(1, 1_000), Beat::New);
        assert_eq!(beats.beat(2, 1_000), Beat::New);
        assert_eq!(beats.beat(1, 3_000), Beat::Known);
        assert!(beats.is_alive(2, 1_000 + DEAD_AFTER_MS) && !beats.is_alive(2, 1_001 + DEAD_AFTER_MS));
        assert_eq!([1_000, 1_001].map(|after_ms| beats.alive(after_ms + DEAD_AFTER_MS)), [2, 1]);
        beats.forget_dead(1_001 + DEAD_AFTER_MS);
        assert!(beats.is_alive(1, 3_500));
        assert_eq!(beats.beat(2, 4_000), Beat::New);
    }

    #[test]
    fn one_holder_at_a_time_and_another_after_it() {
        let mut beats = Beats::default();
        assert!(beats.lease(1, 10) && !beats.lease(2, 11) && beats.lease(1, 1_000));
        assert!(!beats.lease(2, 1_000 + LEASE_MS - 1) && beats.lease(2, 1_000 + LEASE_MS) && !beats.lease(1, 3_001));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_and_nothing_panics(ids in proptest::collection::vec(any::<u64>(), 0..300), junk in any::<Vec<u8>>()) {
            let mut beats = Beats::default();
            for id in ids {
                beats.beat(id, id);
            }
            prop_assert_eq!(Beats::decode(&beats.encode()), beats);
            let _ = Beats::decode(&junk);
        }
    }
}
