//! The binary form of the live table.
//!
//! Little-endian, fixed offsets, worked on in place:
//!
//! | part | bytes | fields |
//! |---|---|---|
//! | header | 40 | `WBLT`, format u8, 0 u8, slots u16, rows u16, waiters u16, turn u32, next ticket u64, releases per s f32, 0 u32, last release u64 (ms) |
//! | slot, one per endpoint | 56 | key u64, token clock u64, ejected until u64 (ms), cooling until u64 (ms), last failure u64 (ms), failures in a row u16, ejections u16, span u32, ended u16, failed u16, the same of the span before u16 u16 |
//! | row id, one per VM | 8 | u64 |
//! | cell, per row and slot | 13 | in flight u32, pending tokens u32, prefill tokens u32, prefills u8 (255: or more) |
//! | waiter, one per queued request | 80 | see [`super::waiter`] |
//!
//! Bounded by [`MAX_SLOTS`], [`MAX_ROWS`] and [`MAX_WAITERS`]. Any bytes either decode to a table whose every operation is
//! defined, or do not decode; sums saturate. An empty queue takes no bytes beyond the header.

use super::passive::{Passive, Recent};
use super::waiter::{self, Waiter};
use crate::snapshot::EndpointKey;

/// The format that this code writes, and part of the key under which the value is kept (`live/5/<pool>`).
pub const FORMAT: u8 = 5;
/// The most endpoints in one table.
pub const MAX_SLOTS: usize = 2048;
/// The most VMs in one table.
pub const MAX_ROWS: usize = 256;
/// The most waiters in one table.
pub const MAX_WAITERS: usize = 4096;

/// No table has given out more tickets.
const MAX_TICKET: u64 = u64::MAX / 2;

const MAGIC: [u8; 4] = *b"WBLT";
const HEADER: usize = 40;
const TURN: usize = 12;
const SLOT: usize = 56;
const CLOCK: usize = 8;
const PASSIVE: usize = 16;
const ROW_ID: usize = 8;
const CELL: usize = 13;

/// What an endpoint is carrying, in one row or in all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests in flight.
    pub in_flight: u32,
    /// Tokens that these requests still have to compute or generate, by estimate.
    pub pending_tokens: u32,
    /// Of these, prompt tokens of requests without a first token yet; prompts that are hardly worth telling do not count
    /// (see [`WORTH_TELLING_TOKENS`](super::WORTH_TELLING_TOKENS)).
    pub prefill_tokens: u32,
    /// How many prompts these are.
    pub prefills: u32,
}

impl Counts {
    pub(super) fn add(&mut self, more: Counts) {
        self.in_flight = self.in_flight.saturating_add(more.in_flight);
        self.pending_tokens = self.pending_tokens.saturating_add(more.pending_tokens);
        self.prefill_tokens = self.prefill_tokens.saturating_add(more.prefill_tokens);
        self.prefills = self.prefills.saturating_add(more.prefills);
    }

    /// Floors at zero.
    pub(super) fn subtract(&mut self, less: Counts) {
        self.in_flight = self.in_flight.saturating_sub(less.in_flight);
        self.pending_tokens = self.pending_tokens.saturating_sub(less.pending_tokens);
        self.prefill_tokens = self.prefill_tokens.saturating_sub(less.prefill_tokens);
        self.prefills = self.prefills.saturating_sub(less.prefills);
    }
}

/// A decoded live table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    bytes: Vec<u8>,
    slots: usize,
    rows: usize,
    waiters: usize,
}

impl Default for Table {
    fn default() -> Self {
        let mut table = Table { bytes: vec![0; HEADER], slots: 0, rows: 0, waiters: 0 };
        table.write_header();
        table
    }
}

impl Table {
    /// Takes bytes that [`Table::bytes`] once gave; `None` for anything else.
    #[must_use]
    pub fn decode(bytes: Vec<u8>) -> Option<Self> {
        if bytes.get(..4)? != MAGIC || *bytes.get(4)? != FORMAT {
            return None;
        }
        let slots = usize::from(u16::from_le_bytes(bytes.get(6..8)?.try_into().ok()?));
        let rows = usize::from(u16::from_le_bytes(bytes.get(8..10)?.try_into().ok()?));
        let waiters = usize::from(u16::from_le_bytes(bytes.get(10..12)?.try_into().ok()?));
        if slots > MAX_SLOTS || rows > MAX_ROWS || waiters > MAX_WAITERS || bytes.len() != size(slots, rows, waiters) {
            return None;
        }
        let table = Table { bytes, slots, rows, waiters };
        // This code does not get so far; where tickets ended, two waiters would have the same.
        if table.next_ticket() > MAX_TICKET {
            return None;
        }
        let sound = |place| {
            let bytes = table.waiter_bytes(place);
            waiter::row_of(bytes) < rows && waiter::granted_slot(bytes).is_none_or(|slot| slot < slots)
        };
        (0..waiters).all(sound).then_some(table)
    }

    /// The binary form.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many slots there are.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// How many rows there are.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Requests that the pool has placed so far, over all VMs; starts again at 0 after 2^32.
    #[must_use]
    pub fn turn(&self) -> u32 {
        self.u32_at(TURN)
    }

    /// Counts a request that was placed.
    pub fn take_turn(&mut self) {
        self.put_u32(TURN, self.turn().wrapping_add(1));
    }

    /// The endpoint of a slot; slots start at 0.
    #[must_use]
    pub fn key(&self, slot: usize) -> EndpointKey {
        EndpointKey(self.u64_at(HEADER + slot * SLOT))
    }

    /// The slot of an endpoint. `hint` is looked at first: where VMs agree on the snapshot it is right.
    #[must_use]
    pub fn find(&self, key: EndpointKey, hint: usize) -> Option<usize> {
        if hint < self.slots && self.key(hint) == key {
            return Some(hint);
        }
        (0..self.slots).find(|slot| self.key(*slot) == key)
    }

    /// The slot of an endpoint, made when it has none; `None` when the table is full.
    pub fn find_or_add(&mut self, key: EndpointKey, hint: usize) -> Option<usize> {
        if let Some(slot) = self.find(key, hint) {
            return Some(slot);
        }
        if self.slots >= MAX_SLOTS {
            return None;
        }
        let slot = self.slots;
        self.reshape(|keep| keep.slots.push(None));
        self.put_u64(HEADER + slot * SLOT, key.0);
        Some(slot)
    }

    /// The row of a VM.
    #[must_use]
    pub fn row(&self, id: u64) -> Option<usize> {
        (0..self.rows).find(|row| self.row_id(*row) == id)
    }

    /// The id of a row.
    #[must_use]
    pub fn row_id(&self, row: usize) -> u64 {
        self.u64_at(HEADER + self.slots * SLOT + row * ROW_ID)
    }

    /// The row of a VM, made when it has none; `None` when the table is full.
    pub fn row_or_add(&mut self, id: u64) -> Option<usize> {
        if let Some(row) = self.row(id) {
            return Some(row);
        }
        if !self.has_room_for_a_row() {
            return None;
        }
        let row = self.rows;
        self.reshape(|keep| keep.rows.push(None));
        self.put_u64(HEADER + self.slots * SLOT + row * ROW_ID, id);
        Some(row)
    }

    /// Drops the rows whose id is dead, and what they counted.
    pub fn drop_rows(&mut self, mut dead: impl FnMut(u64) -> bool) -> usize {
        let before = self.rows;
        let ids: Vec<bool> = (0..before).map(|row| dead(self.row_id(row))).collect();
        if ids.iter().any(|dead| *dead) {
            self.reshape(|keep| {
                keep.rows.retain(|row| row.is_none_or(|row| !ids.get(row).copied().unwrap_or_default()));
            });
        }
        before - self.rows
    }

    /// Drops the slots of endpoints that carry nothing, are not ejected at `now_ms`, and that `keep` does not name.
    pub fn drop_idle_slots(&mut self, now_ms: u64, mut keep: impl FnMut(EndpointKey) -> bool) -> usize {
        let (before, totals) = (self.slots, self.totals());
        let drop: Vec<bool> = (0..before)
            .map(|slot| {
                totals.get(slot) == Some(&Counts::default())
                    && !self.passive(slot).is_ejected(now_ms)
                    && !keep(self.key(slot))
            })
            .collect();
        if drop.iter().any(|drop| *drop) {
            self.reshape(|keep| {
                keep.slots.retain(|slot| slot.is_none_or(|slot| !drop.get(slot).copied().unwrap_or_default()));
            });
        }
        before - self.slots
    }

    /// What one VM has at an endpoint.
    #[must_use]
    pub fn cell(&self, row: usize, slot: usize) -> Counts {
        // Behind the last cell stand the waiters.
        if row >= self.rows || slot >= self.slots {
            return Counts::default();
        }
        let at = self.cell_at(row, slot);
        self.bytes.get(at..at + CELL).map_or(Counts::default(), read_cell)
    }

    /// Sets what one VM has at an endpoint.
    pub fn set_cell(&mut self, row: usize, slot: usize, counts: Counts) {
        if row >= self.rows || slot >= self.slots {
            return;
        }
        let at = self.cell_at(row, slot);
        self.put_u32(at, counts.in_flight);
        self.put_u32(at + 4, counts.pending_tokens);
        self.put_u32(at + 8, counts.prefill_tokens);
        if let Some(place) = self.bytes.get_mut(at + 12) {
            *place = u8::try_from(counts.prefills).unwrap_or(u8::MAX);
        }
    }

    /// Sets what one VM has to nothing, everywhere.
    pub(super) fn clear_row(&mut self, row: usize) {
        let cells = self.cell_at(row, 0)..self.cell_at(row + 1, 0);
        if row < self.rows
            && let Some(cells) = self.bytes.get_mut(cells)
        {
            cells.fill(0);
        }
    }

    /// What an endpoint carries: what all VMs together have there, and what has been granted to waiters that have not
    /// come for it yet.
    #[must_use]
    pub fn total(&self, slot: usize) -> Counts {
        let mut total = Counts::default();
        (0..self.rows).for_each(|row| total.add(self.cell(row, slot)));
        let granted = self.grants().filter(|(at, _)| *at == slot);
        granted.for_each(|(_, counts)| total.add(counts));
        total
    }

    /// [`Table::total`] of every slot, in one pass.
    #[must_use]
    pub fn totals(&self) -> Vec<Counts> {
        let mut totals = vec![Counts::default(); self.slots];
        let cells = self.bytes.get(self.cell_at(0, 0)..self.waiter_at(0)).unwrap_or_default();
        for row in cells.chunks_exact((self.slots * CELL).max(1)) {
            for (total, cell) in totals.iter_mut().zip(row.chunks_exact(CELL)) {
                total.add(read_cell(cell));
            }
        }
        for (slot, counts) in self.grants() {
            if let Some(total) = totals.get_mut(slot) {
                total.add(counts);
            }
        }
        totals
    }

    fn grants(&self) -> impl Iterator<Item = (usize, Counts)> {
        (0..self.waiters).filter_map(|place| {
            let slot = waiter::granted_slot(self.waiter_bytes(place))?;
            Some((slot, self.waiter(place)?.granted_counts()))
        })
    }

    /// The passive health of an endpoint.
    #[must_use]
    pub fn passive(&self, slot: usize) -> Passive {
        let at = HEADER + slot * SLOT + PASSIVE;
        let pair = |at: usize| {
            let both = self.u32_at(at);
            (both as u16, (both >> 16) as u16)
        };
        let ((failures, ejections), (ended, failed), (ended_before, failed_before)) =
            (pair(at + 24), pair(at + 32), pair(at + 36));
        Passive {
            ejected_until_ms: self.u64_at(at),
            cool_until_ms: self.u64_at(at + 8),
            failed_ms: self.u64_at(at + 16),
            failures,
            ejections,
            recent: Recent { span: self.u32_at(at + 28), ended, failed, ended_before, failed_before },
        }
    }

    /// Sets the passive health of an endpoint.
    pub fn set_passive(&mut self, slot: usize, passive: Passive) {
        if slot >= self.slots {
            return;
        }
        let at = HEADER + slot * SLOT + PASSIVE;
        let pair = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
        let recent = passive.recent;
        self.put_u64(at, passive.ejected_until_ms);
        self.put_u64(at + 8, passive.cool_until_ms);
        self.put_u64(at + 16, passive.failed_ms);
        self.put_u32(at + 24, pair(passive.failures, passive.ejections));
        self.put_u32(at + 28, recent.span);
        self.put_u32(at + 32, pair(recent.ended, recent.failed));
        self.put_u32(at + 36, pair(recent.ended_before, recent.failed_before));
    }

    /// Tokens that an endpoint has put into its KV cache since the slot was made, as far as this Envoy knows: the age of
    /// what it holds is measured by it (see [`crate::prefix::index`]).
    #[must_use]
    pub fn clock(&self, slot: usize) -> u64 {
        self.u64_at(HEADER + slot * SLOT + CLOCK)
    }

    /// Moves an endpoint's token clock on.
    pub fn advance_clock(&mut self, slot: usize, tokens: u64) {
        if slot >= self.slots {
            return;
        }
        let at = HEADER + slot * SLOT + CLOCK;
        self.put_u64(at, self.u64_at(at).saturating_add(tokens));
    }

    fn cell_at(&self, row: usize, slot: usize) -> usize {
        HEADER + self.slots * SLOT + self.rows * ROW_ID + (row * self.slots + slot) * CELL
    }

    /// Builds the table anew with other slots or rows. `edit` gets the present ones by number; `None` is a new one.
    fn reshape(&mut self, edit: impl FnOnce(&mut Kept)) {
        let mut kept = Kept { slots: (0..self.slots).map(Some).collect(), rows: (0..self.rows).map(Some).collect() };
        edit(&mut kept);
        let (slots, rows) = (kept.slots.len(), kept.rows.len());
        let place_of = |kept: &[Option<usize>], number| kept.iter().position(|from| *from == Some(number));
        let waiters: Vec<Waiter> = (0..self.waiters)
            .filter_map(|place| self.waiter(place))
            .filter_map(|waiter| {
                let row = place_of(&kept.rows, waiter.row)?;
                let grant = waiter.grant.and_then(|grant| {
                    let slot = place_of(&kept.slots, grant.slot)?;
                    Some(waiter::Grant { slot, ..grant })
                });
                Some(Waiter { row, grant, ..waiter })
            })
            .collect();
        let mut next = Table { bytes: vec![0; size(slots, rows, waiters.len())], slots, rows, waiters: waiters.len() };
        if let (Some(to), Some(from)) = (next.bytes.get_mut(..HEADER), self.bytes.get(..HEADER)) {
            to.copy_from_slice(from);
        }
        next.write_header();
        for (place, waiter) in waiters.iter().enumerate() {
            next.set_waiter(place, waiter);
        }
        for (to, from) in kept.slots.iter().enumerate() {
            let Some(from) = *from else { continue };
            next.put_u64(HEADER + to * SLOT, self.key(from).0);
            next.set_passive(to, self.passive(from));
            next.advance_clock(to, self.clock(from));
        }
        for (to_row, from_row) in kept.rows.iter().enumerate() {
            let Some(from_row) = *from_row else { continue };
            next.put_u64(HEADER + slots * SLOT + to_row * ROW_ID, self.row_id(from_row));
            for (to, from) in kept.slots.iter().enumerate() {
                let Some(from) = *from else { continue };
                next.set_cell(to_row, to, self.cell(from_row, from));
            }
        }
        *self = next;
    }

    fn write_header(&mut self) {
        self.put_u32(0, u32::from_le_bytes(MAGIC));
        self.put_u32(4, u32::from(FORMAT) | (self.slots as u32) << 16);
        self.put_u32(8, self.rows as u32 | (self.waiters as u32) << 16);
    }

    /// How many waiters there are, those with a grant among them.
    #[must_use]
    pub fn waiters(&self) -> usize {
        self.waiters
    }

    /// The waiter at a place; places start at 0, in the order of [`Waiter::rank`].
    #[must_use]
    pub fn waiter(&self, place: usize) -> Option<Waiter> {
        if place < self.waiters { Waiter::decode(self.waiter_bytes(place)) } else { None }
    }

    /// The bytes of the waiter at a place, for a look at one field.
    pub(super) fn waiter_bytes(&self, place: usize) -> &[u8] {
        let at = self.waiter_at(place);
        self.bytes.get(at..at + waiter::SIZE).unwrap_or_default()
    }

    /// Overwrites the waiter at a place; its rank must stay.
    pub(super) fn set_waiter(&mut self, place: usize, waiter: &Waiter) {
        let at = self.waiter_at(place);
        if let Some(bytes) = self.bytes.get_mut(at..at + waiter::SIZE) {
            bytes.copy_from_slice(&waiter.encode());
        }
    }

    /// Whether one more waiter of a VM can be put in.
    pub(super) fn has_room(&self, id: u64) -> bool {
        self.has_room_for_a_waiter() && (self.row(id).is_some() || self.has_room_for_a_row())
    }

    fn has_room_for_a_row(&self) -> bool {
        self.rows < MAX_ROWS
    }

    fn has_room_for_a_waiter(&self) -> bool {
        self.waiters < MAX_WAITERS
    }

    /// Puts a waiter into its place; returns that, or `None` when the table is full.
    pub(super) fn insert_waiter(&mut self, waiter: &Waiter) -> Option<usize> {
        if !self.has_room_for_a_waiter() {
            return None;
        }
        let (mut place, mut end) = (0, self.waiters);
        while place < end {
            let middle = place.midpoint(end);
            if waiter::rank_of(self.waiter_bytes(middle)) < waiter.rank() { place = middle + 1 } else { end = middle }
        }
        let at = self.waiter_at(place);
        self.bytes.splice(at..at, waiter.encode());
        self.waiters += 1;
        self.write_header();
        Some(place)
    }

    /// Removes the waiter at a place.
    pub(super) fn remove_waiter(&mut self, place: usize) {
        if place < self.waiters {
            let at = self.waiter_at(place);
            self.bytes.drain(at..at + waiter::SIZE);
            self.waiters -= 1;
            self.write_header();
        }
    }

    /// The ticket that the next waiter gets.
    pub(super) fn next_ticket(&self) -> u64 {
        self.u64_at(16)
    }

    pub(super) fn set_next_ticket(&mut self, ticket: u64) {
        self.put_u64(16, ticket);
    }

    /// Releases per second as they were at the last release, and when that was.
    pub(super) fn drained(&self) -> (f32, u64) {
        (f32::from_bits(self.u32_at(24)), self.u64_at(32))
    }

    pub(super) fn set_drained(&mut self, per_s: f32, at_ms: u64) {
        self.put_u32(24, per_s.to_bits());
        self.put_u64(32, at_ms);
    }

    fn waiter_at(&self, place: usize) -> usize {
        size(self.slots, self.rows, place)
    }

    // Reads beyond the end give 0 and writes there do nothing: a slot or row number that a caller got wrong can
    // miscount, but never take the VM down.
    fn u64_at(&self, at: usize) -> u64 {
        self.bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |chunk| u64::from_le_bytes(*chunk))
    }

    fn u32_at(&self, at: usize) -> u32 {
        self.bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |chunk| u32::from_le_bytes(*chunk))
    }

    fn put_u64(&mut self, at: usize, value: u64) {
        if let Some(place) = self.bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
            *place = value.to_le_bytes();
        }
    }

    fn put_u32(&mut self, at: usize, value: u32) {
        if let Some(place) = self.bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
            *place = value.to_le_bytes();
        }
    }
}

struct Kept {
    slots: Vec<Option<usize>>,
    rows: Vec<Option<usize>>,
}

fn size(slots: usize, rows: usize, waiters: usize) -> usize {
    HEADER + slots * SLOT + rows * ROW_ID + rows * slots * CELL + waiters * waiter::SIZE
}

fn read_cell(bytes: &[u8]) -> Counts {
    let word =
        |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |chunk| u32::from_le_bytes(*chunk));
    let prefills = bytes.get(12).copied().unwrap_or_default().into();
    Counts { in_flight: word(0), pending_tokens: word(4), prefill_tokens: word(8), prefills }
}

#[cfg(test)]
mod tests;
