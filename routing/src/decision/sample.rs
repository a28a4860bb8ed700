//! Which records of a moment go to the prober, when there are more than it wants.
//!
//! Room for so many records, filled as requests end and emptied when a batch is sent. While there is room, everything is
//! kept. When it is full, a newcomer may take somebody's place, without anybody having to know how many are still to come
//! (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006): each record gets the key
//! `ln(u) / weight`, u uniform in (0, 1), and those with the largest keys stay. Its chance then grows with its weight,
//! which is its time in ms: slow requests are nearly always there, fast ones are there in their share of time.
//!
//! Requests in trouble (failed, refused, cut off, retried) and others have half of the room each, and either may use what the
//! other leaves free: a flood of refusals does not hide the slow request, nor a flood of good ones the failure.
//!
//! Cost of an offer: one logarithm, and a scan over the keys when the room is full. An offer that is declined builds
//! nothing.

use super::json::Json;
use crate::rng::SplitMix64;

/// The most bytes of records that wait for one batch.
pub const MAX_BATCH_BYTES: usize = 256 * 1024;

/// What decides whether a record stays.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Rank {
    troubled: bool,
    key: f64,
}

/// A place for a record, to be filled with [`Sample::put`] at once.
#[derive(Debug, PartialEq)]
pub struct Place {
    rank: Rank,
    /// Whose place it takes.
    instead_of: Option<usize>,
}

/// Records that wait for the next batch.
#[derive(Debug, Default)]
pub struct Sample {
    room: usize,
    records: Vec<(Rank, String)>,
    bytes: usize,
    seen: u64,
    /// Taken so far.
    batches: u64,
}

/// What a batch consists of.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// One more than that of the batch before, of the same VM.
    pub number: u64,
    /// Requests that were offered since the last one.
    pub seen: u64,
    /// The records kept of them.
    pub records: Vec<String>,
}

impl Sample {
    /// So much room from now on; 0 keeps nothing. What is there already stays.
    pub fn resize(&mut self, room: usize) {
        self.room = room;
    }

    /// Whether anything is kept at all.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.room > 0
    }

    /// A request has ended. Gives the place for its record, if it is to be kept.
    pub fn offer(&mut self, troubled: bool, total_ms: u64, rng: &mut SplitMix64) -> Option<Place> {
        if self.room == 0 {
            return None;
        }
        self.seen += 1;
        // In (0, 1]: the top 53 bits, and never 0.
        let uniform = ((rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        let rank = Rank { troubled, key: uniform.ln() / (total_ms as f64 + 1.0) };
        if self.records.len() < self.room {
            return Some(Place { rank, instead_of: None });
        }
        let of_its_kind = self.records.iter().filter(|(held, _)| held.troubled == troubled).count();
        // Of an odd number of places the one in the middle is for those in trouble.
        let share = if troubled { self.room.div_ceil(2) } else { self.room / 2 };
        let takes_share = of_its_kind < share && of_its_kind < self.records.len();
        let rivals =
            self.records.iter().enumerate().filter(|(_, (held, _))| (held.troubled == troubled) != takes_share);
        let (weakest, key) = rivals.map(|(at, (held, _))| (at, held.key)).min_by(|a, b| a.1.total_cmp(&b.1))?;
        (takes_share || rank.key > key).then_some(Place { rank, instead_of: Some(weakest) })
    }

    /// Keeps a record in the place that [`Sample::offer`] gave. `false` when the bytes do not suffice: then it is lost, and
    /// whoever had the place keeps it.
    pub fn put(&mut self, place: Place, record: String) -> bool {
        let freed = place.instead_of.and_then(|at| self.records.get(at)).map_or(0, |(_, old)| old.len());
        let bytes = self.bytes.saturating_sub(freed) + record.len();
        if bytes > MAX_BATCH_BYTES {
            return false;
        }
        self.bytes = bytes;
        match place.instead_of.and_then(|at| self.records.get_mut(at)) {
            Some(held) => *held = (place.rank, record),
            None => self.records.push((place.rank, record)),
        }
        true
    }

    /// Takes everything for a batch; `None` when no request has ended since the last.
    pub fn take(&mut self) -> Option<Batch> {
        if self.seen == 0 {
            return None;
        }
        self.bytes = 0;
        let records = std::mem::take(&mut self.records).into_iter().map(|(_, record)| record).collect();
        self.batches += 1;
        Some(Batch { number: self.batches, seen: std::mem::take(&mut self.seen), records })
    }
}

impl Batch {
    /// The body of `POST /v1/decisions`. The name of the Envoy is not ours and is escaped; the records are JSON already.
    /// The prober knows by `vm` and the number of the batch when one comes again.
    #[must_use]
    pub fn to_json(&self, envoy: &str, vm: u64, dropped: u64) -> String {
        let length: usize = self.records.iter().map(|record| record.len() + 1).sum();
        let mut json = Json::with_capacity(length + envoy.len() + 144);
        json.foreign(r#"{"envoy":""#, envoy);
        json.text(r#","vm":""#, &format!("{vm:016x}"));
        json.number(r#","batch":"#, self.number);
        json.number(r#","seen":"#, self.seen);
        json.number(r#","dropped":"#, dropped);
        let mut before = r#","decisions":["#;
        for record in &self.records {
            json.put(before);
            json.put(record);
            before = ",";
        }
        json.put(if self.records.is_empty() { r#","decisions":[]}"# } else { "]}" });
        json.finish()
    }
}

/// A record with the request's id in front. Ids of a mesh can be anything, so it is escaped.
#[must_use]
pub fn with_request_id(record: &str, id: &str) -> String {
    let mut json = Json::with_capacity(record.len() + id.len() + 20);
    json.foreign(r#"{"request_id":""#, id);
    json.put(",");
    // The rest of an object that has members.
    json.put(record.strip_prefix('{').unwrap_or(record));
    json.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Offers requests in this order and returns the numbers of those that are kept.
    fn kept(room: usize, requests: impl IntoIterator<Item = (bool, u64)>, seed: u64) -> Vec<usize> {
        let mut sample = Sample::default();
        sample.resize(room);
        let mut rng = SplitMix64::seeded(seed);
        for (nth, (troubled, total_ms)) in requests.into_iter().enumerate() {
            if let Some(place) = sample.offer(troubled, total_ms, &mut rng) {
                assert!(sample.put(place, nth.to_string()));
            }
        }
        sample.take().unwrap().records.iter().map(|record| record.parse().unwrap()).collect()
    }

    #[test]
    fn everything_is_kept_while_there_is_room() {
        assert_eq!(kept(9, (0..9).map(|nth| (nth % 2 == 0, 10)), 1), (0..9).collect::<Vec<_>>());
    }

    #[test]
    fn a_flood_is_sampled_evenly() {
        let mut first_half = 0;
        for seed in 0..200 {
            let kept = kept(10, (0..1_000).map(|_| (false, 50)), seed);
            assert_eq!(kept.len(), 10);
            first_half += kept.iter().filter(|nth| **nth < 500).count();
        }
        // 2,000 draws at one half: 1,000 give or take five standard deviations of 22.
        assert!((890..=1_110).contains(&first_half), "{first_half}");
    }

    #[test]
    fn a_slow_request_is_nearly_always_there() {
        let flood = || (0..1_000).map(|nth| (false, if nth == 300 { 30_000 } else { 50 }));
        let found = (0..100).filter(|seed| kept(10, flood(), *seed).contains(&300)).count();
        assert!(found >= 95, "{found}");
    }

    #[test]
    fn neither_kind_hides_the_other() {
        // One failure among good ones is always there, and good ones still are when everything else fails.
        for seed in 0..50 {
            assert!(kept(10, (0..1_000).map(|nth| (nth == 300, 50)), seed).contains(&300));
            let good =
                kept(10, (0..1_000).map(|nth| (nth >= 100, 50)), seed).into_iter().filter(|nth| *nth < 100).count();
            assert_eq!(good, 5);
        }
        assert_eq!(kept(1, [(true, 1), (false, 1), (false, 1)], 1), [0]);
    }

    #[test]
    fn bytes_are_bounded() {
        let mut sample = Sample::default();
        sample.resize(100);
        let mut rng = SplitMix64::seeded(1);
        let mut lost = 0;
        for _ in 0..100 {
            let place = sample.offer(false, 1, &mut rng).unwrap();
            lost += u32::from(!sample.put(place, "x".repeat(4_096)));
        }
        let batch = sample.take().unwrap();
        assert_eq!((batch.records.len(), lost, batch.seen), (64, 36, 100));
        assert_eq!(sample.take(), None);
    }

    #[test]
    fn without_room_nothing_is_even_counted() {
        let mut sample = Sample::default();
        assert_eq!(sample.offer(true, 9, &mut SplitMix64::seeded(1)), None);
        assert_eq!((sample.take(), sample.is_on()), (None, false));
    }

    proptest! {
        #[test]
        fn there_are_never_more_than_there_is_room(
            room in 1usize..20, requests in proptest::collection::vec((any::<bool>(), any::<u64>()), 1..200), seed in any::<u64>()
        ) {
            let length = requests.len();
            let mut kept = kept(room, requests, seed);
            prop_assert_eq!(kept.len(), room.min(length));
            kept.sort_unstable();
            kept.dedup();
            prop_assert_eq!(kept.len(), room.min(length));
        }

        #[test]
        fn batches_and_ids_are_json(envoy in ".{0,300}", id in ".{0,300}") {
            let record = with_request_id(r#"{"pool":"p"}"#, &id);
            let batch = Batch { number: 3, seen: 7, records: vec![record.clone(), record] };
            let json: serde_json::Value = serde_json::from_str(&batch.to_json(&envoy, 0xab, 2)).unwrap();
            prop_assert_eq!(&json["decisions"][1]["pool"], "p");
            prop_assert_eq!((&json["vm"], &json["batch"]), (&"00000000000000ab".into(), &3.into()));
            prop_assert_eq!((&json["seen"], &json["dropped"]), (&7.into(), &2.into()));
            prop_assert!(id.starts_with(json["decisions"][0]["request_id"].as_str().unwrap()));
            prop_assert!(envoy.starts_with(json["envoy"].as_str().unwrap()));
        }
    }
}
