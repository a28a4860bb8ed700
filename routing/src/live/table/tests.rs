//! Tests of the binary form.

use super::*;
use proptest::prelude::*;

fn counts(in_flight: u32) -> Counts {
    Counts { in_flight, pending_tokens: in_flight * 10, prefill_tokens: in_flight, prefills: in_flight }
}

fn passive(nth: u64) -> Passive {
    let recent = Recent { span: 9, ended: 8, failed: 7, ended_before: 6, failed_before: 5 };
    Passive { ejected_until_ms: nth, cool_until_ms: 1, failed_ms: 4, failures: 3, ejections: 2, recent }
}

#[test]
fn slots_and_rows_keep_their_content_when_the_shape_changes() {
    let mut table = Table::default();
    for nth in 0..5u64 {
        let slot = table.find_or_add(EndpointKey(100 + nth), 0).unwrap();
        let row = table.row_or_add(7 + nth).unwrap();
        table.set_cell(row, slot, counts(nth as u32 + 1));
        table.set_passive(slot, passive(nth));
        table.advance_clock(slot, 1_000 * nth);
    }
    assert_eq!(table.drop_rows(|id| id == 9), 1);
    let table = Table::decode(table.bytes().to_vec()).unwrap();
    for nth in [0u64, 1, 3, 4] {
        let slot = table.find(EndpointKey(100 + nth), 0).unwrap();
        assert_eq!(table.total(slot), counts(nth as u32 + 1));
        assert_eq!(table.passive(slot), passive(nth));
        assert_eq!(table.clock(slot), 1_000 * nth);
    }
    assert_eq!(table.total(table.find(EndpointKey(102), 0).unwrap()), Counts::default());
}

#[test]
fn a_cell_holds_as_many_prompts_as_it_can_tell() {
    let mut table = Table::default();
    let (slot, row) = (table.find_or_add(EndpointKey(1), 0).unwrap(), table.row_or_add(1).unwrap());
    for (prefills, told) in [(0, 0), (2, 2), (255, 255), (70_000, 255)] {
        table.set_cell(row, slot, Counts { prefills, ..counts(9) });
        assert_eq!(table.cell(row, slot), Counts { prefills: told, ..counts(9) });
    }
}

#[test]
fn beyond_the_last_cell_there_is_nothing_though_waiters_stand_there() {
    let mut table = Table::default();
    let (slot, row) = (table.find_or_add(EndpointKey(1), 0).unwrap(), table.row_or_add(1).unwrap());
    let bytes = [0xff; waiter::SIZE];
    table.insert_waiter(&Waiter { row, grant: None, ..Waiter::decode(&bytes).unwrap() }).unwrap();
    for (row, slot) in [(row + 1, slot), (row, slot + 1), (row + 1, slot + 1)] {
        table.set_cell(row, slot, counts(9));
        assert_eq!((table.cell(row, slot), table.total(slot)), (Counts::default(), Counts::default()), "{row} {slot}");
    }
    table.drop_idle_slots(0, |_| false);
    assert_eq!((table.slots(), table.waiters(), table.total(0)), (0, 1, Counts::default()));
}

#[test]
fn a_table_without_tickets_is_none() {
    let mut table = Table::default();
    for (ticket, decodes) in [(MAX_TICKET, true), (MAX_TICKET + 1, false), (u64::MAX, false)] {
        table.set_next_ticket(ticket);
        assert_eq!(Table::decode(table.bytes().to_vec()).is_some(), decodes, "{ticket}");
    }
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
            bytes.resize(size(slots.into(), rows.into(), 0), 0xff);
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
