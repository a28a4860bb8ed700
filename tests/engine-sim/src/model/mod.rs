//! The engine's model of time: pure, deterministic, without clock, sockets or tasks.
//!
//! Time is an argument everywhere, in nanoseconds ([`Nanos`]) since whatever origin the caller likes. The same model
//! drives the HTTP simulator (wall clock) and a discrete-event simulation (virtual clock):
//!
//! ```
//! use engine_sim::model::{EventKind, Model, Profile, Request};
//! let mut model = Model::new(Profile::fast().warm()).unwrap();
//! model.submit(0, Request::new(1, 20, 128)).unwrap();
//! let mut finished = None;
//! while let Some(at) = model.next_event() {
//!     model.advance(at);
//!     for event in model.take_events() {
//!         if let EventKind::Finished { .. } = event.kind {
//!             finished = Some(event.at);
//!         }
//!     }
//! }
//! // 128 tokens at 106 tok/s
//! assert_eq!(finished.unwrap() / 1_000_000, 1207);
//! ```
//!
//! # What is modelled
//! - **Continuous batching in steps.** A step of `n` sequences takes `n / curve(n)` seconds and gives each of them one
//!   token, so each decodes at `curve(n) / n` tok/s. Sequences join and leave at step boundaries.
//! - **Prefill** takes `max(0, uncached prompt tokens - prefill_included_tokens) / prefill_tps` seconds; where attention counts
//!   (`prefill_doubles_at_tokens`), a token at place x of its prompt takes `1 + x / prefill_doubles_at_tokens` times as long.
//!   Prefills are served first come first served, `prefill_lanes` at a time (one by default), while decodes go on (slowed to
//!   `decode_share_during_prefill`, 1 by default). The published curves were measured by bursts of short prompts, so
//!   the prefill of a short prompt is already inside them: `prefill_included_tokens` (64) keeps it from counting twice,
//!   and a warmed burst shows the curve's own figure.
//! - **An own queue**: at most `batch_limit` sequences run, and only while the KV cache has room for their whole
//!   length; the others wait, first come first served. Nothing is preempted.
//! - **KV cache** of prefix blocks with eviction of the least recently used (see [`KvCache`]).
//! - **Cold start**: the first `cold.tokens` generated tokens after a (re)start come at `cold.speed` of the curve,
//!   however long that takes. Being cold ends by work done, not by time passed.
//!
//! # What is not
//! Preemption, chunked prefill, speculative decoding, several ranks.

mod curve;
mod forecast;
mod kv;
mod machine;
mod profile;
mod request;

pub use curve::Curve;
pub use forecast::Forecast;
pub use kv::KvCache;
pub use machine::{Model, Stats};
pub use profile::{Cold, Profile, ProfileError};
pub use request::{Event, EventKind, Request, SubmitError};

/// Nanoseconds since an origin of the caller's choice.
pub type Nanos = u64;

/// Seconds to nanoseconds, saturating; negative and NaN count as zero.
pub fn nanos(seconds: f64) -> Nanos {
    (seconds * 1e9).round() as Nanos
}

/// Nanoseconds to seconds.
pub fn seconds(nanos: Nanos) -> f64 {
    nanos as f64 / 1e9
}
