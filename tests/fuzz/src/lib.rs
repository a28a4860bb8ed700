//! What the fuzzer tries. Each function takes any bytes and panics when a promise is broken; `routing/tests/corpus.rs`
//! runs them over the committed corpus, so that what was found once stays found, and makes the seeds that have a live table in them.

use serde_json::Value;
use weighbridge_routing::eligibility::{Ask, Patience};
use weighbridge_routing::live::Passive;
use weighbridge_routing::live::table::{Counts, Table};
use weighbridge_routing::live::{Claim, Outcome, Question, Report, Row, SharedValue, StoreError, Verdict};
use weighbridge_routing::prefix::MAX_CHECKPOINTS;
use weighbridge_routing::prefix::holders::Nobody;
use weighbridge_routing::request::{Headers, Reader, Request, RequestError, Shape};
use weighbridge_routing::response::{Kind, Watcher};
use weighbridge_routing::rng::SplitMix64;
use weighbridge_routing::snapshot::{EndpointKey, Pool, Snapshot};

/// Takes the first `N` bytes, zeros where there are none.
fn take<const N: usize>(data: &mut &[u8]) -> [u8; N] {
    let (head, tail) = data.split_at(N.min(data.len()));
    *data = tail;
    let mut bytes = [0; N];
    bytes[..head.len()].copy_from_slice(head);
    bytes
}

/// Pieces whose sizes come from a seed, some of them empty.
fn cuts(mut data: &[u8], mut seed: u32) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        if data.is_empty() {
            return None;
        }
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let size = match seed >> 30 {
            0 => seed >> 8 & 3,
            1 => seed >> 8 & 15,
            _ => seed >> 8 & 255,
        };
        let (piece, rest) = data.split_at((size as usize).min(data.len()));
        data = rest;
        Some(piece)
    })
}

fn read<'a>(mut reader: Reader, pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Request, RequestError> {
    for piece in pieces {
        reader.feed(piece)?;
    }
    reader.finish()
}

/// Any body of any shape and encoding: the same answer however it is cut, and one that keeps its bounds.
pub fn request(mut data: &[u8]) {
    let [shape, encoding, prefix, seed, more] = take(&mut data);
    let shape = Shape::ALL[usize::from(shape) % Shape::ALL.len()];
    let headers = Headers {
        content_type: b"multipart/form-data; boundary=b",
        content_encoding: [b"".as_slice(), b"gzip", b"deflate"][usize::from(encoding) % 3],
    };
    let reader = || Reader::with_headers(shape, u64::from(prefix) << 9, headers, 1 << 20).expect("supported");
    let whole = read(reader(), [data]);
    let cut = read(reader(), cuts(data, u32::from_le_bytes([seed, more, seed, more])));
    if headers.content_encoding.is_empty() {
        assert_eq!(whole, cut);
    } else {
        // Which of two faults a decoder comes upon first depends on how much it holds.
        assert_eq!(whole.as_ref().ok(), cut.as_ref().ok());
    }
    let Ok(request) = whole else { return };
    if let Some((from, to)) = request.model_span {
        let span = &data[from as usize..to as usize];
        assert!(span.starts_with(b"\"") && span.ends_with(b"\"") && span.len() >= 2);
    }
    if headers.content_encoding.is_empty() {
        assert!(request.prompt.bytes + request.prompt.token_ids <= data.len() as u64);
    }
    let checkpoints = request.prompt.checkpoints.seeded(&request.model);
    assert!(checkpoints.len() <= MAX_CHECKPOINTS);
    assert!(checkpoints.is_sorted_by_key(|checkpoint| checkpoint.bytes));
    assert!(checkpoints.iter().all(|checkpoint| checkpoint.hash != 0));
}

/// The scanner accepts what serde_json accepts, and reads the same from it. It is more lenient in three things: halves
/// of surrogate pairs, numbers beyond f64, and nesting between 128 and 256.
pub fn json_vs_serde(data: &[u8]) {
    let ours = read(Reader::new(Shape::Chat, 1 << 12), [data]);
    match serde_json::from_slice::<Value>(data) {
        Err(error) => {
            let message = error.to_string();
            let lenient = ["surrogate", "hex escape", "unicode code point", "out of range", "recursion limit"];
            if !lenient.iter().any(|word| message.contains(word)) {
                assert!(matches!(ours, Err(RequestError::Json(_))), "{ours:?}, but {message}");
            }
        }
        Ok(Value::Object(theirs)) => match ours {
            Ok(request) => {
                let name = theirs["model"].as_str().expect("a name");
                assert!(request.model == name || name.len() > 256 && name.starts_with(&request.model));
                assert_eq!(request.stream, theirs.get("stream") == Some(&Value::Bool(true)));
                let max = |field| theirs.get(field).and_then(Value::as_u64);
                assert_eq!(request.max_output, max("max_completion_tokens").or(max("max_tokens")));
            }
            Err(RequestError::Json(error)) => panic!("serde_json takes it: {error}"),
            Err(RequestError::NoModel) => assert!(!theirs.contains_key("model")),
            Err(RequestError::EmptyModel) => assert_eq!(theirs["model"], ""),
            Err(RequestError::ModelKind(_)) => assert!(!theirs["model"].is_string()),
            Err(RequestError::Kind { .. }) => assert!(!theirs["messages"].is_array()),
            Err(RequestError::ItemKind { index, .. }) => assert!(!theirs["messages"][index as usize].is_object()),
            Err(other) => panic!("{other:?}"),
        },
        Ok(_) => assert!(matches!(ours, Err(RequestError::NotAnObject(_))), "{ours:?}"),
    }
}

/// Any form with any content type: the same answer however it is cut.
pub fn multipart(mut data: &[u8]) {
    let seed = u32::from_le_bytes(take(&mut data));
    let line = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (content_type, body) = data.split_at(line);
    for content_type in [content_type, b"multipart/form-data; boundary=b"] {
        let headers = Headers { content_type, ..Headers::default() };
        let Ok(reader) = Reader::with_headers(Shape::Transcriptions, 0, headers, 0) else { continue };
        let again = Reader::with_headers(Shape::Transcriptions, 0, headers, 0).expect("as before");
        let whole = read(reader, [body]);
        assert_eq!(whole, read(again, cuts(body, seed)));
        if let Ok(request) = whole {
            assert!(!request.model.is_empty() && request.model.len() <= 3 * 257);
        }
    }
}

/// Any bytes that decode make a table whose operations are defined, and that decodes again.
pub fn live_table(mut data: &[u8]) {
    let length = u16::from_le_bytes(take(&mut data));
    let (bytes, mut orders) = data.split_at(usize::from(length).min(data.len()));
    let mut table = Table::decode(bytes.to_vec()).unwrap_or_default();
    while !orders.is_empty() {
        let [order, one, other] = take(&mut orders);
        let (row, slot) = (usize::from(one) % (table.rows() + 1), usize::from(other) % table.slots().max(1));
        let key = EndpointKey::of("p", &other.to_string());
        match order % 9 {
            0 => {
                let found = table.find_or_add(key, slot);
                assert!(found.is_none_or(|slot| table.key(slot) == key));
            }
            1 => {
                let found = table.row_or_add(one.into());
                assert!(found.is_none_or(|row| table.row_id(row) == u64::from(one)));
            }
            2 => {
                table.drop_rows(|id| id % 2 == u64::from(one % 2));
            }
            3 => {
                table.drop_idle_slots(u64::from(one), |of| of == key);
            }
            4 => {
                let counts = Counts {
                    in_flight: u32::from(one) << 24,
                    pending_tokens: u32::from(other) << 24,
                    prefill_tokens: 1,
                    prefills: other.into(),
                };
                table.set_cell(row, slot, counts);
                assert!(row >= table.rows() || slot >= table.slots() || table.cell(row, slot) == counts);
            }
            5 => {
                let (failures, ejections) = (one.into(), other.into());
                let passive = Passive { ejected_until_ms: u64::from(one), failures, ejections, ..Passive::default() };
                table.set_passive(slot, passive);
                assert!(slot >= table.slots() || table.passive(slot) == passive);
            }
            6 => table.advance_clock(slot, u64::MAX >> (one % 64)),
            7 => {
                let total = table.total(slot);
                let cells = (0..table.rows()).map(|row| table.cell(row, slot).in_flight);
                let granted = (0..table.waiters()).filter_map(|place| table.waiter(place)?.grant);
                let granted = granted.filter(|grant| grant.slot == slot).count() as u32;
                assert_eq!(total.in_flight, cells.fold(0, u32::saturating_add).saturating_add(granted));
                assert_eq!(table.totals().get(slot).copied().unwrap_or_default(), total);
            }
            _ => {
                assert!(table.find(key, slot).is_none_or(|slot| table.key(slot) == key));
                assert!(table.row(one.into()).is_none_or(|row| table.row_id(row) == u64::from(one)));
                table.advance_clock(slot, 0);
            }
        }
    }
    assert_eq!(Table::decode(table.bytes().to_vec()), Some(table));
}

/// A value in memory that nobody else writes.
pub struct Alone(pub Option<Vec<u8>>);

impl SharedValue for Alone {
    fn load(&mut self) -> (Option<Vec<u8>>, u32) {
        (self.0.clone(), 0)
    }

    fn store(&mut self, bytes: &[u8], _: u32) -> Result<(), StoreError> {
        self.0 = Some(bytes.to_vec());
        Ok(())
    }
}

/// The pool of [`live_queue`].
#[must_use]
pub fn queue_pool() -> Pool {
    const POOL: &str = r#"{"format": 1, "version": 1, "pools": [{"name": "p", "models": ["m"],
        "admission": {"queue": 8, "queue_bytes": 1000, "max_wait_ms": 1000, "ageing_ms": 100}, "endpoints": [
        {"id": "a", "address": "10.0.0.1:80", "weight": 1.0, "cap": 2, "context_window": 4000},
        {"id": "b", "address": "10.0.0.2:80", "weight": 2.0, "cap": 1}]}]}"#;
    Snapshot::from_json(POOL.as_bytes()).expect("a snapshot").pools.remove(0)
}

/// Any bytes that decode make a queue that works: a VM comes and goes through it, whoever else is said to wait, and leaves
/// nothing of its own behind.
pub fn live_queue(mut data: &[u8]) {
    let length = u16::from_le_bytes(take(&mut data));
    let (bytes, mut orders) = data.split_at(usize::from(length).min(data.len()));
    let pool = queue_pool();
    let (mut value, mut row, mut rng) = (Alone(Some(bytes.to_vec())), Row::new(7), SplitMix64::seeded(1));
    let (mut running, mut waiting, mut now_ms) = (Vec::new(), Vec::new(), 0);
    while !orders.is_empty() {
        let [order, one, other] = take(&mut orders);
        match order % 6 {
            0 => {
                let patience = Patience {
                    max_wait_ms: u32::from(one) * 8,
                    priority: other % 10,
                    body_bytes: u32::from(other) * 4,
                    key: u32::from(one % 4),
                };
                let prompt_tokens = u64::from(other) * 40;
                let ask = Ask { prompt_tokens, floor_tokens: prompt_tokens, patience, ..Ask::default() };
                let question = Question { pool: &pool, ask: &ask, signals: &[], now_ms };
                match row.admit(&mut value, &question, &mut Nobody, &mut rng).result {
                    Verdict::Admitted(admitted) => running.push((admitted.pick.chosen(), admitted.charge)),
                    Verdict::Queued(queued) => waiting.push(queued.ticket),
                    Verdict::Refused(_) => {}
                }
            }
            1 if !running.is_empty() => {
                let (at, charge) = running.swap_remove(usize::from(one) % running.len());
                let outcome = if other % 2 == 0 { Outcome::Success } else { Outcome::Failure };
                let report = Report { outcome, trial: other % 4 < 2, added_tokens: u64::MAX >> (other % 64) };
                let _ = row.release(&mut value, &pool, &pool.endpoints[at], charge, report, now_ms);
            }
            2 if !waiting.is_empty() => {
                let place = usize::from(one) % waiting.len();
                let claim = row.claim(&mut value, &pool, waiting[place], &mut Nobody, now_ms).result;
                if let Claim::Admitted(admitted) = claim {
                    waiting.swap_remove(place);
                    running.push((admitted.pick.chosen(), admitted.charge));
                }
            }
            3 if !waiting.is_empty() => {
                let ticket = waiting.swap_remove(usize::from(one) % waiting.len());
                let _ = row.leave(&mut value, &pool, ticket, now_ms);
            }
            4 => now_ms += u64::from(one) << (other % 16),
            _ => {
                let _ = row.sweep(&mut value, &pool, |id| id != 7 && id % 3 == u64::from(one % 3), now_ms);
                assert_eq!(row.standing(&mut value, &pool, now_ms).len(), waiting.len());
            }
        }
    }
    for ticket in waiting {
        let _ = row.leave(&mut value, &pool, ticket, now_ms);
    }
    for (at, charge) in running {
        let report = Report { outcome: Outcome::Neutral, trial: false, added_tokens: 0 };
        let _ = row.release(&mut value, &pool, &pool.endpoints[at], charge, report, now_ms);
    }
    assert!(row.is_idle());
    // What the value said of it before it came goes when it writes, and it may not have had to.
    row.rewrite(&mut value).expect("nobody else writes");
    let _ = row.sweep(&mut value, &pool, |id| id != 7, now_ms);
    if let Some(table) = value.0.and_then(Table::decode) {
        let own = table.row(7).is_some_and(|row| {
            (0..table.slots()).any(|slot| table.cell(row, slot).in_flight > 0)
                || (0..table.waiters()).filter_map(|place| table.waiter(place)).any(|waiter| waiter.row == row)
        });
        assert!(!own, "something of its own is left");
    }
}

/// Any answer: the same facts however it is cut.
pub fn response(mut data: &[u8]) {
    let [kind, a, b, c, d] = take(&mut data);
    let kind = if kind % 2 == 0 { Kind::Sse } else { Kind::Json };
    let facts = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut watcher = Watcher::new(kind);
        for piece in pieces {
            watcher.feed(piece);
        }
        watcher.finish();
        format!("{:?}", watcher.facts())
    };
    let whole = facts(&mut std::iter::once(data));
    assert_eq!(whole, facts(&mut cuts(data, u32::from_le_bytes([a, b, c, d]))));
}
