//! The engine behind HTTP: what vLLM answers, at the model's pace.
//!
//! | path | what |
//! |---|---|
//! | `POST /v1/chat/completions`, `/v1/completions`, `/v1/responses`, `/v1/messages` | generation, JSON or SSE |
//! | `POST /v1/embeddings`, `/v1/rerank`, `/v1/score` (and their other names) | one forward pass, counted as one token |
//! | `POST /v1/audio/transcriptions`, `/v1/audio/translations` | a form; JSON or SSE |
//! | `POST /tokenize`, `/detokenize`, `/v1/messages/count_tokens` | at once |
//! | `GET /v1/models`, `/version`, `/health`, `/metrics` | as vLLM |
//! | `POST /sim/fault` | a [`Fault`] as JSON; `{"kind":"none"}` ends it |
//! | `POST /sim/restart` | `{"cold":true,"launch_args":"..."}`, both optional |
//! | `GET /sim/state` | [`State`] and the last [`RequestRecord`]s |
//! | `POST /sim/reset_max` | `running_max` and `in_flight_max` start again |
//!
//! Every response carries `x-engine-id`. One task per engine drives the model; a token costs no timer of its own, and
//! tokens that are due together travel in one SSE event. As vLLM, it does not decode request bodies: a compressed one is
//! answered 400.

mod body;
mod config;
mod core;
mod fault;
mod handle;
mod launch_args;
mod metrics;
mod net;
mod prompt;
mod routes;
mod shapes;
mod state;
mod subscriber;

pub use config::EngineConfig;
pub use fault::{Fault, FaultKind};
pub use handle::EngineHandle;
pub use shapes::SseStyle;
pub use state::{Outcome, RequestRecord, State};
