//! The binary form of the live table.
//!
//! Little-endian, fixed offsets, worked on in place:
//!
//! | part | bytes | fields |
//! |---|---|---|
//! | header | 16 | `WBLT`, format u8, 0 u8, slots u16, rows u16, 0 u16, turn u32 |
//! | slot, one per endpoint | 32 | key u64, ejected until u64 (ms), failures in a row u16, ejections u16, 0 u32, token clock u64 |
//! | row id, one per VM | 8 | u64 |
//! | cell, per row and slot | 8 | in flight u32, pending tokens u32 |
//!
//! Bounded by [`MAX_SLOTS`] and [`MAX_ROWS`]. Any bytes either decode to a table whose every operation is defined, or
//! do not decode; sums saturate.

use crate::snapshot::EndpointKey;

/// The format that this code writes, and part of the key under which the value is kept (`live/2/<pool>`).
pub const FORMAT: u8 = 2;
/// The most endpoints in one table.
pub const MAX_SLOTS: usize = 2048;
/// The most VMs in one table.
pub const MAX_ROWS: usize = 256;

const MAGIC: [u8; 4] = *b"WBLT";
const HEADER: usize = 16;
const TURN: usize = 12;
const SLOT: usize = 32;
const ROW_ID: usize = 8;
const CELL: usize = 8;

/// What an endpoint is carrying, in one row or in all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests in flight.
    pub in_flight: u32,
    /// Tokens that these requests still have to compute or generate, by estimate.
    pub pending_tokens: u32,
}

/// What the passive health check remembers of an endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Passive {
    /// Takes no traffic before this time (ms on the caller's clock); 0 when it was never ejected.
    pub ejected_until_ms: u64,
    /// Failures since the last success.
    pub failures: u16,
    /// Ejections since the last success; each doubles the next one's length.
    pub ejections: u16,
}

/// A decoded live table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    bytes: Vec<u8>,
    slots: usize,
    rows: usize,
}

impl Default for Table {
    fn default() -> Self {
        let mut table = Table { bytes: vec![0; HEADER], slots: 0, rows: 0 };
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
        if slots > MAX_SLOTS || rows > MAX_ROWS || bytes.len() != size(slots, rows) {
            return None;
        }
        Some(Table { bytes, slots, rows })
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
        if self.rows >= MAX_ROWS {
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
        let before = self.slots;
        let drop: Vec<bool> = (0..before)
            .map(|slot| {
                self.total(slot) == Counts::default()
                    && self.passive(slot).ejected_until_ms <= now_ms
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
        let at = self.cell_at(row, slot);
        Counts { in_flight: self.u32_at(at), pending_tokens: self.u32_at(at + 4) }
    }

    /// Sets what one VM has at an endpoint.
    pub fn set_cell(&mut self, row: usize, slot: usize, counts: Counts) {
        let at = self.cell_at(row, slot);
        self.put_u32(at, counts.in_flight);
        self.put_u32(at + 4, counts.pending_tokens);
    }

    /// What all VMs together have at an endpoint.
    #[must_use]
    pub fn total(&self, slot: usize) -> Counts {
        (0..self.rows).fold(Counts::default(), |sum, row| {
            let cell = self.cell(row, slot);
            Counts {
                in_flight: sum.in_flight.saturating_add(cell.in_flight),
                pending_tokens: sum.pending_tokens.saturating_add(cell.pending_tokens),
            }
        })
    }

    /// The passive health of an endpoint.
    #[must_use]
    pub fn passive(&self, slot: usize) -> Passive {
        let at = HEADER + slot * SLOT + 8;
        let both = self.u32_at(at + 8);
        Passive { ejected_until_ms: self.u64_at(at), failures: both as u16, ejections: (both >> 16) as u16 }
    }

    /// Sets the passive health of an endpoint.
    pub fn set_passive(&mut self, slot: usize, passive: Passive) {
        let at = HEADER + slot * SLOT + 8;
        self.put_u64(at, passive.ejected_until_ms);
        self.put_u32(at + 8, u32::from(passive.failures) | u32::from(passive.ejections) << 16);
    }

    /// Tokens that an endpoint has put into its KV cache since the slot was made, as far as this Envoy knows: the age of
    /// what it holds is measured by it (see [`crate::prefix::index`]).
    #[must_use]
    pub fn clock(&self, slot: usize) -> u64 {
        self.u64_at(HEADER + slot * SLOT + 24)
    }

    /// Moves an endpoint's token clock on.
    pub fn advance_clock(&mut self, slot: usize, tokens: u64) {
        let at = HEADER + slot * SLOT + 24;
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
        let mut next = Table { bytes: vec![0; size(slots, rows)], slots, rows };
        next.write_header();
        next.put_u32(TURN, self.turn());
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
        self.put_u32(8, self.rows as u32);
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

fn size(slots: usize, rows: usize) -> usize {
    HEADER + slots * SLOT + rows * ROW_ID + rows * slots * CELL
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counts(in_flight: u32) -> Counts {
        Counts { in_flight, pending_tokens: in_flight * 10 }
    }

    #[test]
    fn slots_and_rows_keep_their_content_when_the_shape_changes() {
        let mut table = Table::default();
        for nth in 0..5u64 {
            let slot = table.find_or_add(EndpointKey(100 + nth), 0).unwrap();
            let row = table.row_or_add(7 + nth).unwrap();
            table.set_cell(row, slot, counts(nth as u32 + 1));
            table.set_passive(slot, Passive { ejected_until_ms: nth, failures: 3, ejections: 2 });
            table.advance_clock(slot, 1_000 * nth);
        }
        assert_eq!(table.drop_rows(|id| id == 9), 1);
        let table = Table::decode(table.bytes().to_vec()).unwrap();
        for nth in [0u64, 1, 3, 4] {
            let slot = table.find(EndpointKey(100 + nth), 0).unwrap();
            assert_eq!(table.total(slot), counts(nth as u32 + 1));
            assert_eq!(table.passive(slot), Passive { ejected_until_ms: nth, failures: 3, ejections: 2 });
            assert_eq!(table.clock(slot), 1_000 * nth);
        }
        assert_eq!(table.total(table.find(EndpointKey(102), 0).unwrap()), Counts::default());
    }

    #[test]
    fn only_idle_slots_that_nobody_names_are_dropped() {
        let mut table = Table::default();
        let row = table.row_or_add(1).unwrap();
        for key in 1..=4 {
            table.find_or_add(EndpointKey(key), 0).unwrap();
        }
        table.set_cell(row, 0, counts(1)); // 1 is busy
        table.set_passive(1, Passive { ejected_until_ms: 50, ..Passive::default() }); // 2 is ejected, 3 is named
        assert_eq!(table.drop_idle_slots(49, |key| key == EndpointKey(3)), 1);
        assert_eq!(table.find(EndpointKey(4), 0), None);
        assert_eq!(table.drop_idle_slots(50, |key| key == EndpointKey(3)), 1);
        assert_eq!(table.find(EndpointKey(2), 0), None);
        assert_eq!(table.total(table.find(EndpointKey(1), 3).unwrap()), counts(1));
    }

    #[test]
    fn the_table_is_bounded() {
        let mut table = Table::default();
        for key in 1..=MAX_SLOTS as u64 {
            assert!(table.find_or_add(EndpointKey(key), key as usize).is_some());
        }
        assert_eq!(table.find_or_add(EndpointKey(u64::MAX), 0), None);
        for id in 0..MAX_ROWS as u64 {
            assert!(table.row_or_add(id).is_some());
        }
        assert_eq!(table.row_or_add(u64::MAX), None);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_to_something_defined(
            slots in 0u16..5, rows in 0u16..4, mut bytes in proptest::collection::vec(any::<u8>(), 0..200), fit in any::<bool>()
        ) {
            if fit {
                bytes.resize(size(slots.into(), rows.into()), 0xff);
                bytes[..4].copy_from_slice(&MAGIC);
                bytes[4] = FORMAT;
                bytes[6..8].copy_from_slice(&slots.to_le_bytes());
                bytes[8..10].copy_from_slice(&rows.to_le_bytes());
            }
            if let Some(mut table) = Table::decode(bytes) {
                for slot in 0..table.slots() + 1 {
                    let _ = (table.total(slot), table.passive(slot), table.key(slot), table.clock(slot));
                    table.advance_clock(slot, u64::MAX);
                }
                let slot = table.find_or_add(EndpointKey(5), 3).unwrap();
                let row = table.row_or_add(9).unwrap();
                table.set_cell(row, slot, counts(2));
                table.drop_rows(|id| id != 9);
                prop_assert_eq!(table.total(slot), counts(2));
                prop_assert!(Table::decode(table.bytes().to_vec()).is_some());
            }
        }
    }
}
