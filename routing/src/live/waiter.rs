//! One waiting request, as it stands in the live table.
//!
//! Little-endian, 80 bytes; a value of the table carries all that any VM needs to give the waiter a slot:
//!
//! | offset | field |
//! |---|---|
//! | 0 | ticket u64 |
//! | 8 | enqueued u64 (ms) |
//! | 16 | patience u32 (ms from then) |
//! | 20 | body u32 (bytes) |
//! | 24 | fairness key u32 (0: none) |
//! | 28 | fairness round u32 |
//! | 32 | prompt u32, certain prompt u32, requested output u32, expected output u32 (tokens) |
//! | 48 | share of long requests u16 (in 65,535ths), row u16, granted slot + 1 u16 (0: none), priority u8, times passed u8 |
//! | 56 | granted after u32 (ms), prompt to compute there u32 (tokens) |
//! | 64 | 4 x holder u16 (0: none), tokens it holds u16 (in 64s) |

use super::table::Counts;
use crate::eligibility::{Ask, Patience};
use crate::prefix::holders::Holders;
use crate::snapshot::{Endpoint, Pool};

/// Bytes of one waiter.
pub(super) const SIZE: usize = 80;
/// Holders of its prefix that a waiter remembers.
pub const HOLDERS: usize = 4;

const HOLDER_UNIT: u64 = 64;

/// A request in the queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Waiter {
    /// Its number; unique within its row, and in the order of arrival.
    pub ticket: u64,
    /// The row of its VM, by number.
    pub row: usize,
    /// When it began to wait (ms).
    pub enqueued_ms: u64,
    /// How long it may wait.
    pub patience_ms: u32,
    /// Size of its body.
    pub body_bytes: u32,
    /// On whose account it waits; 0 when nobody's.
    pub key: u32,
    /// Its turn among those of the same priority.
    pub round: u32,
    /// Tokens of its prompt, by estimate.
    pub prompt_tokens: u32,
    /// The least that the prompt can have.
    pub floor_tokens: u32,
    /// Tokens that it wants room for in the answer.
    pub requested_tokens: u32,
    /// Tokens that its answer is expected to have.
    pub output_tokens: u32,
    /// Share of the pool's requests that not every endpoint can hold, in 65,535ths.
    pub long_share: u16,
    /// 0 is served first.
    pub priority: u8,
    /// How often somebody behind it was preferred.
    pub passed: u8,
    /// Endpoints that hold some of its prompt.
    pub holders: [Holder; HOLDERS],
    /// The slot it has been given.
    pub grant: Option<Grant>,
}

/// An endpoint that holds some of a waiter's prompt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Holder {
    /// [`Endpoint::holder`]; 0 is nobody.
    pub holder: u16,
    /// Tokens that it holds, in 64s, rounded down.
    pub tokens_64: u16,
}

/// A slot that a waiter has been given and that it has not come for yet. It counts as in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Which slot of the table.
    pub slot: usize,
    /// How long it had waited then.
    pub after_ms: u32,
    /// Tokens of its prompt that the endpoint has to compute.
    pub prompt_tokens: u32,
}

impl Waiter {
    /// A request that begins to wait. Ticket, row and round are the queue's to give.
    #[must_use]
    pub fn new(ask: &Ask, patience_ms: u32, prefix: &mut impl Holders, pool: &Pool, now_ms: u64) -> Self {
        let mut holders = [Holder::default(); HOLDERS];
        let (longest, tokens) = prefix.longest();
        let tokens_64 = u16::try_from(tokens / HOLDER_UNIT).unwrap_or(u16::MAX);
        let known = longest.iter().filter_map(|place| pool.endpoints.get(*place));
        for (holder, endpoint) in holders.iter_mut().zip(known) {
            *holder = Holder { holder: endpoint.holder, tokens_64 };
        }
        let tokens = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        Waiter {
            ticket: 0,
            row: 0,
            enqueued_ms: now_ms,
            patience_ms,
            body_bytes: ask.patience.body_bytes,
            key: ask.patience.key,
            round: 0,
            prompt_tokens: tokens(ask.prompt_tokens),
            floor_tokens: tokens(ask.floor_tokens),
            requested_tokens: tokens(ask.requested_tokens),
            output_tokens: tokens(ask.output_tokens),
            long_share: (ask.long_share.clamp(0.0, 1.0) * f64::from(u16::MAX)).round() as u16,
            priority: ask.patience.priority,
            passed: 0,
            holders,
            grant: None,
        }
    }

    /// What decides its place: priority, fairness round, ticket.
    #[must_use]
    pub fn rank(&self) -> (u8, u32, u64) {
        (self.priority, self.round, self.ticket)
    }

    /// Whether its time is over.
    #[must_use]
    pub fn is_expired(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.enqueued_ms) >= u64::from(self.patience_ms)
    }

    /// Whether it waits for a slot.
    #[must_use]
    pub fn is_waiting(&self, now_ms: u64) -> bool {
        self.grant.is_none() && !self.is_expired(now_ms)
    }

    /// What it needs.
    #[must_use]
    pub fn ask(&self) -> Ask {
        Ask {
            prompt_tokens: self.prompt_tokens.into(),
            floor_tokens: self.floor_tokens.into(),
            requested_tokens: self.requested_tokens.into(),
            output_tokens: self.output_tokens.into(),
            long_share: f64::from(self.long_share) / f64::from(u16::MAX),
            id_hash: None,
            patience: Patience {
                max_wait_ms: self.patience_ms,
                priority: self.priority,
                body_bytes: self.body_bytes,
                key: self.key,
            },
        }
    }

    /// Tokens of its prompt that an endpoint is known to hold.
    #[must_use]
    pub fn tokens_at(&self, endpoint: &Endpoint) -> u64 {
        let held = self.holders.iter().find(|held| held.holder != 0 && held.holder == endpoint.holder);
        held.map_or(0, |held| u64::from(held.tokens_64) * HOLDER_UNIT)
    }

    /// What its grant counts as.
    #[must_use]
    pub fn granted_counts(&self) -> Counts {
        self.grant.map_or(Counts::default(), |grant| {
            super::Charge { prompt_tokens: grant.prompt_tokens, output_tokens: self.charged_output() }.counts()
        })
    }

    pub(super) fn charged_output(&self) -> u32 {
        self.output_tokens.min(super::MOST_CHARGED_TOKENS)
    }

    #[rustfmt::skip]
    pub(super) fn encode(&self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            if let Some(place) = bytes.get_mut(at..at + field.len()) {
                place.copy_from_slice(field);
            }
            at += field.len();
        };
        put(&self.ticket.to_le_bytes());
        put(&self.enqueued_ms.to_le_bytes());
        for field in [
            self.patience_ms, self.body_bytes, self.key, self.round,
            self.prompt_tokens, self.floor_tokens, self.requested_tokens, self.output_tokens,
        ] {
            put(&field.to_le_bytes());
        }
        let slot = self.grant.map_or(0, |grant| grant.slot as u16 + 1);
        for field in [self.long_share, self.row as u16, slot] {
            put(&field.to_le_bytes());
        }
        put(&[self.priority, self.passed]);
        let (after_ms, prompt_tokens) = self.grant.map_or((0, 0), |grant| (grant.after_ms, grant.prompt_tokens));
        put(&after_ms.to_le_bytes());
        put(&prompt_tokens.to_le_bytes());
        for held in &self.holders {
            put(&held.holder.to_le_bytes());
            put(&held.tokens_64.to_le_bytes());
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut holders = [Holder::default(); HOLDERS];
        for (nth, held) in holders.iter_mut().enumerate() {
            *held = Holder { holder: u16_at(bytes, 64 + 4 * nth), tokens_64: u16_at(bytes, 66 + 4 * nth) };
        }
        let grant = granted_slot(bytes).map(|slot| Grant {
            slot,
            after_ms: u32_at(bytes, 56),
            prompt_tokens: u32_at(bytes, 60),
        });
        (bytes.len() == SIZE).then(|| Waiter {
            ticket: u64_at(bytes, 0),
            row: row_of(bytes),
            enqueued_ms: u64_at(bytes, 8),
            patience_ms: u32_at(bytes, 16),
            body_bytes: u32_at(bytes, 20),
            key: u32_at(bytes, 24),
            round: u32_at(bytes, 28),
            prompt_tokens: u32_at(bytes, 32),
            floor_tokens: u32_at(bytes, 36),
            requested_tokens: u32_at(bytes, 40),
            output_tokens: u32_at(bytes, 44),
            long_share: u16_at(bytes, 48),
            priority: bytes.get(54).copied().unwrap_or_default(),
            passed: bytes.get(55).copied().unwrap_or_default(),
            holders,
            grant,
        })
    }
}

pub(super) fn row_of(bytes: &[u8]) -> usize {
    u16_at(bytes, 50).into()
}

pub(super) fn granted_slot(bytes: &[u8]) -> Option<usize> {
    usize::from(u16_at(bytes, 52)).checked_sub(1)
}

pub(super) fn ticket_of(bytes: &[u8]) -> u64 {
    u64_at(bytes, 0)
}

pub(super) fn enqueued_of(bytes: &[u8]) -> u64 {
    u64_at(bytes, 8)
}

pub(super) fn body_of(bytes: &[u8]) -> u32 {
    u32_at(bytes, 20)
}

pub(super) fn key_of(bytes: &[u8]) -> u32 {
    u32_at(bytes, 24)
}

pub(super) fn priority_of(bytes: &[u8]) -> u8 {
    bytes.get(54).copied().unwrap_or_default()
}

pub(super) fn rank_of(bytes: &[u8]) -> (u8, u32, u64) {
    (priority_of(bytes), u32_at(bytes, 28), ticket_of(bytes))
}

/// Whether a waiter has no grant and its time is not over.
pub(super) fn is_waiting(bytes: &[u8], now_ms: u64) -> bool {
    u16_at(bytes, 52) == 0 && now_ms.saturating_sub(enqueued_of(bytes)) < u64::from(u32_at(bytes, 16))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |chunk| u32::from_le_bytes(*chunk))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |chunk| u16::from_le_bytes(*chunk))
}
