//! The holder index: which endpoints hold which prompt prefixes, shared by all worker threads of one Envoy.
//!
//! A set-associative table from checkpoint hash to holder in [`SHARDS`] shared values of [`SHARD_BYTES`] each
//! (`prefix/<n>`), 8 sets of 8 entries of 8 bytes. It is bounded from the first byte (2 MiB, 262,144 entries), whatever
//! the traffic; a new entry takes the place of the oldest of its set (case C14).
//!
//! | entry | bits | |
//! |---|---|---|
//! | tag | 24 | of the checkpoint's hash; with shard and set, 39 bits tell prefixes apart |
//! | holder | 16 | [`Endpoint::holder`](crate::snapshot::Endpoint::holder); 0 marks an empty entry |
//! | clock | 12 | the holder's token clock when it was last seen to hold this, in 64ths of its KV cache |
//! | time | 12 | when, in units of 16 s: for eviction only |
//!
//! **How long an entry is good for** is counted in tokens, not in seconds: an engine forgets a prefix when so many newer
//! tokens have come in that its cache is full, and an idle one forgets nothing. Each endpoint has a token clock in the
//! live table, advanced by what each request adds (uncached prompt and answer). An entry older than the holder's whole
//! cache does not count. An ejection moves the clock on by two caches: forgotten.
//!
//! **Look-up**: whoever holds a checkpoint holds all shorter ones, so the longest match is found by looking at the three
//! longest (a conversation's next turn matches there) and then by bisection: at most `3 + log2(n)` reads of 512 bytes for
//! n checkpoints. Where an eviction tore a hole, a shorter match is found; that costs a little affinity, never correctness.
//!
//! **Learning**: when a response begins, the checkpoints beyond the known match are written for the endpoint that
//! answers. Those below are written again only after an eighth of the cache has been turned over.
//!
//! A false match (another prefix with the same 39 bits) sends one request to a place that turns out to be cold. Endpoints
//! of one pool never share a holder id.

use super::holders::Holders;
use crate::live::StoreError;
use crate::snapshot::Pool;

/// Shared values of the index.
pub const SHARDS: u64 = 4096;
/// Bytes of one of them.
pub const SHARD_BYTES: usize = SETS * WAYS * ENTRY;
const SETS: usize = 8;
const WAYS: usize = 8;
const ENTRY: usize = 8;
/// The most holders of one prefix that one set remembers, so that a prefix of everybody leaves room for others.
const HOLDERS_PER_PREFIX: usize = 6;
/// Parts of a KV cache in which age is counted.
const CACHE_PARTS: u64 = 64;
/// Age from which an entry is written again.
const REFRESH_PARTS: u64 = CACHE_PARTS / 8;
const CLOCK_MASK: u64 = 0xFFF;
/// Length of a time unit in ms.
const TIME_UNIT_MS: u64 = 16_000;
/// How often a write is tried when others write the same shard.
const TRIES: u32 = 8;
/// The longest prefixes are looked at one by one.
const LOOK_AT_LONGEST: usize = 3;

/// The shared values.
pub trait Shards {
    /// The bytes of a shard (`None` when nobody has written any) and a token for [`Shards::store`].
    fn load(&mut self, shard: u64) -> (Option<Vec<u8>>, u32);

    /// Writes if nobody has written since the `load` that gave the token; whatever stands there when there was nothing.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when somebody has, [`StoreError::Failed`] when the memory refuses.
    fn store(&mut self, shard: u64, bytes: &[u8], token: u32) -> Result<(), StoreError>;
}

/// A prefix of one prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// Its checkpoint's hash.
    pub hash: u64,
    /// Its length in tokens, by estimate.
    pub tokens: u64,
}

/// An endpoint as the index knows it.
#[derive(Debug, Clone, Copy)]
struct Holder {
    id: u16,
    /// Tokens of one part of its cache.
    part: u64,
    /// Its token clock, in parts of its cache.
    parts: u64,
}

/// An endpoint that holds a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    place: usize,
    /// Parts of the cache that have been turned over since.
    age: u64,
}

/// One prompt's search through the index. What was read is kept, and learning later needs no second look.
#[derive(Debug, Clone, Default)]
pub struct Search {
    prefixes: Vec<Prefix>,
    home: Option<u64>,
    holders: Vec<Holder>,
    /// Per prefix, who holds it; `None` where nobody looked.
    seen: Vec<Option<Vec<Held>>>,
    /// Places of the holders of the longest match.
    longest: Vec<usize>,
    matched: Option<usize>,
    time: u64,
}

impl Search {
    /// Looks for the longest prefix (`prefixes`: shortest first) that an endpoint of the pool holds. `clock` tells each
    /// endpoint's token clock by its place, as far as it is known.
    pub fn new(
        prefixes: Vec<Prefix>,
        home: Option<u64>,
        pool: &Pool,
        clock: impl Fn(usize) -> u64,
        now_ms: u64,
        shards: &mut impl Shards,
    ) -> Self {
        let holders = pool.endpoints.iter().enumerate().map(|(place, endpoint)| {
            let part = (endpoint.kv_tokens / CACHE_PARTS).max(1);
            Holder { id: endpoint.holder, part, parts: clock(place) / part }
        });
        let mut search = Search {
            seen: vec![None; prefixes.len()],
            // Nothing to look for needs nobody to look for it at.
            holders: if prefixes.is_empty() { Vec::new() } else { holders.collect() },
            prefixes,
            home,
            longest: Vec::new(),
            matched: None,
            time: (now_ms / TIME_UNIT_MS) & CLOCK_MASK,
        };
        let count = search.prefixes.len();
        let one_by_one = count.saturating_sub(LOOK_AT_LONGEST);
        search.matched = (one_by_one..count)
            .rev()
            .find(|nth| !search.look(*nth, shards).is_empty())
            .or_else(|| last_true(one_by_one, |nth| !search.look(nth, shards).is_empty()));
        if let Some(nth) = search.matched {
            search.longest = search.look(nth, shards).iter().map(|held| held.place).collect();
        }
        search
    }

    /// What was looked for, to look anew: in another pool, or after a new snapshot.
    #[must_use]
    pub fn into_prompt(self) -> (Vec<Prefix>, Option<u64>) {
        (self.prefixes, self.home)
    }

    /// The search as a decision asks it.
    pub fn holders<'a, S: Shards>(&'a mut self, shards: &'a mut S) -> Searched<'a, S> {
        Searched { search: self, shards }
    }

    /// Tokens of the longest match; 0 when there is none.
    #[must_use]
    pub fn matched_tokens(&self) -> u64 {
        self.matched.and_then(|nth| self.prefixes.get(nth)).map_or(0, |prefix| prefix.tokens)
    }

    /// Whether there was anything to look for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.prefixes.is_empty()
    }

    /// How many prefixes the prompt has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.prefixes.len()
    }

    /// Tokens of the prompt that an endpoint holds.
    pub fn tokens_at(&mut self, place: usize, shards: &mut impl Shards) -> u64 {
        self.held_by(place, shards).and_then(|(nth, _)| self.prefixes.get(nth)).map_or(0, |prefix| prefix.tokens)
    }

    /// The longest prefix that one of the `wanted` holds, all that hold it, and its tokens. Prefixes are tried as in
    /// [`Search::new`], so this costs at most `3 + log2(n)` reads more, and none of a prefix that was looked at before.
    fn longest_among(
        &mut self,
        wanted: &mut dyn FnMut(usize) -> bool,
        shards: &mut impl Shards,
    ) -> Option<(Vec<usize>, u64)> {
        let count = self.matched? + 1;
        let mut held = |nth| self.look(nth, shards).iter().any(|held| wanted(held.place));
        let one_by_one = count.saturating_sub(LOOK_AT_LONGEST);
        let nth = (one_by_one..count).rev().find(|nth| held(*nth)).or_else(|| last_true(one_by_one, held))?;
        let places = self.look(nth, shards).iter().map(|held| held.place).collect();
        Some((places, self.prefixes.get(nth)?.tokens))
    }

    /// Writes down that the endpoint at `place`, whose token clock is `clock`, has the whole prompt now. Returns how many
    /// entries were written.
    pub fn learn(&mut self, place: usize, clock: u64, shards: &mut impl Shards) -> usize {
        let Some(holder) = self.holders.get(place).copied() else { return 0 };
        let holder = Holder { parts: clock / holder.part, ..holder };
        let from = match self.held_by(place, shards) {
            Some((nth, held)) if held.age < REFRESH_PARTS => nth + 1,
            _ => 0,
        };
        let new = self.prefixes.get(from..).unwrap_or_default();
        new.iter().filter(|prefix| write(prefix.hash, holder, self.time, shards)).count()
    }

    /// The longest prefix that one endpoint holds.
    fn held_by(&mut self, place: usize, shards: &mut impl Shards) -> Option<(usize, Held)> {
        let up_to = self.matched? + 1;
        let mut held = |nth| self.look(nth, shards).iter().find(|held| held.place == place).copied();
        if let Some(held) = held(up_to - 1) {
            return Some((up_to - 1, held));
        }
        let nth = last_true(up_to - 1, |nth| held(nth).is_some())?;
        held(nth).map(|held| (nth, held))
    }

    /// Who holds a prefix; read once.
    fn look(&mut self, nth: usize, shards: &mut impl Shards) -> &[Held] {
        let (Some(prefix), Some(seen)) = (self.prefixes.get(nth), self.seen.get_mut(nth)) else { return &[] };
        seen.get_or_insert_with(|| read(prefix.hash, &self.holders, shards))
    }
}

/// A search with the shards that it may have to look at again.
#[derive(Debug)]
pub struct Searched<'a, S> {
    search: &'a mut Search,
    shards: &'a mut S,
}

impl<S: Shards> Holders for Searched<'_, S> {
    fn longest(&mut self) -> (&[usize], u64) {
        (&self.search.longest, self.search.matched_tokens())
    }

    fn longest_among(&mut self, wanted: &mut dyn FnMut(usize) -> bool) -> (Vec<usize>, u64) {
        self.search.longest_among(wanted, self.shards).unwrap_or_default()
    }

    fn tokens_at(&mut self, endpoint: usize) -> u64 {
        self.search.tokens_at(endpoint, self.shards)
    }

    fn home(&self) -> Option<u64> {
        self.search.home
    }
}

/// The last of `0..count` for which `test` holds, when it holds for a beginning of them. Logarithmic.
fn last_true(count: usize, mut test: impl FnMut(usize) -> bool) -> Option<usize> {
    let (mut from, mut to) = (0, count);
    while from < to {
        let middle = from + (to - from) / 2;
        if test(middle) {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    from.checked_sub(1)
}

/// Where a hash lives: shard, first byte of its set, and tag.
fn locate(hash: u64) -> (u64, usize, u64) {
    let set = (hash / SHARDS % SETS as u64) as usize;
    (hash % SHARDS, set * WAYS * ENTRY, hash >> 40)
}

/// One entry, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    tag: u64,
    holder: u16,
    clock: u64,
    time: u64,
}

impl Entry {
    fn decode(word: u64) -> Option<Self> {
        let holder = (word >> 24) as u16;
        (holder != 0).then_some(Entry {
            tag: word >> 40,
            holder,
            clock: word >> 12 & CLOCK_MASK,
            time: word & CLOCK_MASK,
        })
    }

    fn encode(self) -> u64 {
        self.tag << 40 | u64::from(self.holder) << 24 | (self.clock & CLOCK_MASK) << 12 | (self.time & CLOCK_MASK)
    }
}

fn words(bytes: &[u8], at: usize) -> impl Iterator<Item = u64> {
    let set = bytes.get(at..at + WAYS * ENTRY).unwrap_or_default();
    set.as_chunks::<ENTRY>().0.iter().map(|chunk| u64::from_le_bytes(*chunk))
}

fn read(hash: u64, holders: &[Holder], shards: &mut impl Shards) -> Vec<Held> {
    let (shard, at, tag) = locate(hash);
    let Some(bytes) = shards.load(shard).0 else { return Vec::new() };
    let entries = words(&bytes, at).filter_map(Entry::decode).filter(|entry| entry.tag == tag);
    let held = entries.flat_map(|entry| {
        let known = holders.iter().enumerate().filter(move |(_, holder)| holder.id == entry.holder);
        known.map(move |(place, holder)| Held { place, age: age(holder.parts, entry.clock) })
    });
    held.filter(|held| held.age <= CACHE_PARTS).collect()
}

/// Parts of the cache that have been turned over since `written`. The clock that a VM knows is a moment old, so an entry of
/// another VM may be ahead of it, by up to a whole cache: that one is new.
fn age(now: u64, written: u64) -> u64 {
    match now.wrapping_sub(written) & CLOCK_MASK {
        ahead if ahead > CLOCK_MASK - CACHE_PARTS => 0,
        age => age,
    }
}

/// Writes an entry; `false` when it could not be written, which costs a match and nothing else.
fn write(hash: u64, holder: Holder, time: u64, shards: &mut impl Shards) -> bool {
    let (shard, at, tag) = locate(hash);
    let entry = Entry { tag, holder: holder.id, clock: holder.parts & CLOCK_MASK, time };
    for _ in 0..TRIES {
        let (bytes, token) = shards.load(shard);
        // Bytes of another length can only be those of another format.
        let mut bytes = bytes.filter(|bytes| bytes.len() == SHARD_BYTES).unwrap_or_else(|| vec![0; SHARD_BYTES]);
        let way = victim(words(&bytes, at), entry);
        if let Some(place) = bytes.get_mut(at + way * ENTRY..).and_then(|rest| rest.first_chunk_mut()) {
            *place = entry.encode().to_le_bytes();
        }
        match shards.store(shard, &bytes, token) {
            Ok(()) => return true,
            Err(StoreError::Conflict) => {}
            Err(StoreError::Failed) => return false,
        }
    }
    false
}

/// Which way of a set a new entry takes: its own from before; with enough holders of this prefix, the oldest of those;
/// an empty one; the oldest of all.
fn victim(words: impl Iterator<Item = u64>, new: Entry) -> usize {
    let entries: Vec<Option<Entry>> = words.map(Entry::decode).collect();
    let known = || entries.iter().enumerate().filter_map(|(way, entry)| Some((way, (*entry)?)));
    let age = |entry: &Entry| new.time.wrapping_sub(entry.time) & CLOCK_MASK;
    if let Some((way, _)) = known().find(|(_, entry)| entry.tag == new.tag && entry.holder == new.holder) {
        return way;
    }
    let same = || known().filter(|(_, entry)| entry.tag == new.tag);
    if same().count() >= HOLDERS_PER_PREFIX {
        return same().max_by_key(|(_, entry)| age(entry)).map_or(0, |(way, _)| way);
    }
    let empty = entries.iter().position(Option::is_none);
    empty.unwrap_or_else(|| known().max_by_key(|(_, entry)| age(entry)).map_or(0, |(way, _)| way))
}

#[cfg(test)]
mod tests;
