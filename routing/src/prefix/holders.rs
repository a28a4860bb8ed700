//! Who holds how much of a prompt, as a decision asks it; and where a prompt belongs that nobody holds.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::snapshot::{Pool, State};

/// What is known of the endpoints that hold a prompt's prefix. Endpoints are named by their place in the pool.
pub trait Holders {
    /// The endpoints that hold the longest known prefix, and its tokens; nobody and 0 when none is known.
    fn longest(&mut self) -> (&[usize], u64);
    /// The endpoints that hold the longest prefix of which one that `wanted` accepts is a holder, and its tokens; nobody and 0
    /// when no such endpoint holds any. For when the holders of the longest one cannot be had.
    fn longest_among(&mut self, wanted: &mut dyn FnMut(usize) -> bool) -> (Vec<usize>, u64);
    /// Tokens of the prompt that an endpoint is known to hold, at most those of the longest.
    fn tokens_at(&mut self, endpoint: usize) -> u64;
    /// The key of the prompt's home: the same for every turn of a conversation. `None` for prompts too short to have one.
    fn home(&self) -> Option<u64>;
}

/// Nothing is known, and nothing belongs anywhere.
#[derive(Debug, Clone, Copy, Default)]
pub struct Nobody;

impl Holders for Nobody {
    fn longest(&mut self) -> (&[usize], u64) {
        (&[], 0)
    }

    fn longest_among(&mut self, _: &mut dyn FnMut(usize) -> bool) -> (Vec<usize>, u64) {
        (Vec::new(), 0)
    }

    fn tokens_at(&mut self, _: usize) -> u64 {
        0
    }

    fn home(&self) -> Option<u64> {
        None
    }
}

/// The place in the pool of the home of `key`: weighted rendezvous hashing over the endpoints that are ready. Each gets
/// its share by weight, and a change of the fleet moves only what has to move.
///
/// Score of an endpoint: `-weight / ln(u)`, with `u` in (0, 1) a hash of key and endpoint; the highest wins. (Schindelhauer
/// and Schomaker, "Weighted distributed hash tables", 2005.) Linear in the number of endpoints.
#[must_use]
pub fn home(key: u64, pool: &Pool) -> Option<usize> {
    let score = |endpoint: &crate::snapshot::Endpoint| {
        let hash = xxh3_64_with_seed(&endpoint.key.0.to_le_bytes(), key);
        // 53 bits and a half step: never 0 and never 1.
        let u = ((hash >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        -endpoint.weight.get() / u.ln()
    };
    let ready = pool.endpoints.iter().enumerate().filter(|(_, endpoint)| endpoint.state == State::Ready);
    ready.max_by(|(_, a), (_, b)| score(a).total_cmp(&score(b))).map(|(place, _)| place)
}

#[cfg(test)]
pub(crate) mod testing {
    use super::Holders;

    /// Which endpoint holds how many tokens of the prompt.
    pub(crate) struct Fixed(Vec<(usize, u64)>, Vec<usize>);

    impl Fixed {
        pub(crate) fn new(of: &[(usize, u64)]) -> Self {
            let most = of.iter().map(|(_, tokens)| *tokens).max().unwrap_or_default();
            Fixed(of.to_vec(), of.iter().filter(|(_, tokens)| *tokens == most).map(|(index, _)| *index).collect())
        }
    }

    impl Holders for Fixed {
        fn longest(&mut self) -> (&[usize], u64) {
            (&self.1, self.0.iter().map(|(_, tokens)| *tokens).max().unwrap_or_default())
        }

        fn longest_among(&mut self, wanted: &mut dyn FnMut(usize) -> bool) -> (Vec<usize>, u64) {
            let wanted = self.0.iter().filter(|(index, _)| wanted(*index));
            let most = wanted.map(|(_, tokens)| *tokens).max().unwrap_or_default();
            let holders = self.0.iter().filter(|(_, tokens)| *tokens >= most && most > 0);
            (holders.map(|(index, _)| *index).collect(), most)
        }

        fn tokens_at(&mut self, endpoint: usize) -> u64 {
            self.0.iter().find(|(index, _)| *index == endpoint).map_or(0, |(_, tokens)| *tokens)
        }

        fn home(&self) -> Option<u64> {
            Some(7)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Snapshot;
    use serde_json::json;

    fn pool(weights: &[f64]) -> Pool {
        let endpoints: Vec<_> = weights
            .iter()
            .enumerate()
            .map(|(nth, weight)| json!({"id": format!("e{nth}"), "address": format!("10.0.0.{nth}:80"), "weight": weight}))
            .collect();
        let snapshot =
            json!({"format": 1, "version": 1, "pools": [{"name": "p", "models": ["m"], "endpoints": endpoints}]});
        Snapshot::from_json(snapshot.to_string().as_bytes()).unwrap().pools.remove(0)
    }

    #[test]
    fn homes_follow_the_weights() {
        let pool = pool(&[2.0, 1.0, 0.5, 0.5]);
        let mut homes = [0; 4];
        for key in 0..20_000u64 {
            homes[home(key.wrapping_mul(0x9E37_79B9_7F4A_7C15), &pool).unwrap()] += 1;
        }
        for (count, share) in homes.iter().zip([0.5, 0.25, 0.125, 0.125]) {
            assert!((f64::from(*count) / 20_000.0 - share).abs() < 0.02, "{homes:?}");
        }
    }

    #[test]
    fn only_what_has_to_move_moves() {
        let (all, mut fewer) = (pool(&[1.0; 5]), pool(&[1.0; 5]));
        fewer.endpoints[2].state = State::Draining;
        for key in 0..2_000u64 {
            let before = home(key, &all).unwrap();
            let after = home(key, &fewer).unwrap();
            assert!(after == before || before == 2, "{key}: {before} to {after}");
            assert_ne!(after, 2);
        }
        assert_eq!(home(1, &pool(&[])), None);
    }
}
