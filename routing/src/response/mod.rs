//! What an answer says while it streams through untouched: tokens, finish reason, errors, the first token.
//!
//! [`Watcher::feed`] takes the body in whatever pieces it comes and changes nothing; [`Watcher::facts`] can be asked at any
//! time. The facts at the end do not depend on how the body was cut. Two forms: JSON, read by the scanner of [`crate::json`]
//! as it arrives, and server-sent events ([`sse`]), one JSON document per event. An engine may answer a request for a stream
//! with one document after all: no event can begin with a brace, so a body that does is read as JSON.
//!
//! | fact | OpenAI chat, completions, embeddings | OpenAI responses | Anthropic messages |
//! |---|---|---|---|
//! | prompt tokens | `usage.prompt_tokens`, else `total_tokens` less the output | `usage.input_tokens` | `input_tokens` + `cache_read_input_tokens` + `cache_creation_input_tokens` |
//! | of them cached | `usage.prompt_tokens_details.cached_tokens` | `usage.input_tokens_details.cached_tokens` | `cache_read_input_tokens` |
//! | output tokens | `usage.completion_tokens` | `usage.output_tokens` | `usage.output_tokens` |
//! | finish | `choices[].finish_reason` | `status`, `incomplete_details.reason` | `stop_reason` |
//! | error | `error` | `error`, `response.error`, `response.failed` | `"type": "error"`, `event: error` |
//! | whose fault | `error.code` 4xx, `error.type` | the same | `error.type` |
//!
//! In event streams the responses API nests all of it in `response`, Anthropic the first usage in `message`. Of a number that
//! comes several times the last one counts.
//!
//! **Cost.** A token event is searched for the few keys that can matter ([`marks`]) and read only when one of them is there with
//! something other than `null`, or when nothing of content has come yet. What is read decides, never the mark alone:
//! generated text that looks like a mark has its quotes escaped, or turns out not to be one. `routing/benches/response.rs`
//! prints the time per event.
//!
//! **Failure.** Nothing is ever an error to the client. What cannot be read is passed over, after `[DONE]` nothing is read at
//! all, and a fact that nobody stated stays unknown. Memory: [`sse::MAX_CARRIED`] twice per stream at most.

mod document;
mod marks;
mod reading;
mod sse;
#[cfg(test)]
mod tests;

use document::Document;
use reading::{Reading, Usage};

/// How an answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One JSON document.
    Json,
    /// Server-sent events.
    Sse,
}

impl Kind {
    /// The kind that a `content-type` header names, `None` for one that is not watched. Parameters do not matter.
    #[must_use]
    pub fn of_content_type(value: &[u8]) -> Option<Self> {
        let essence = value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        if essence.eq_ignore_ascii_case(b"text/event-stream") {
            Some(Kind::Sse)
        } else if essence.eq_ignore_ascii_case(b"application/json") {
            Some(Kind::Json)
        } else {
            None
        }
    }
}

/// Why an engine stopped generating.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// It was done, or met a stop sequence.
    Stop,
    /// The output limit or the context window was reached.
    Length,
    /// It calls a tool.
    ToolCalls,
    /// It refused, or a filter did.
    ContentFilter,
    /// Anything else, such as an abort.
    Other,
}

impl Finish {
    /// From a `finish_reason` (OpenAI), a `stop_reason` (Anthropic) or an `incomplete_details.reason` (responses).
    fn of_reason(reason: &[u8]) -> Self {
        match reason {
            b"stop" | b"end_turn" | b"stop_sequence" | b"eos" => Finish::Stop,
            b"length" | b"max_tokens" | b"max_output_tokens" | b"model_context_window_exceeded" => Finish::Length,
            b"tool_calls" | b"function_call" | b"tool_use" => Finish::ToolCalls,
            b"content_filter" | b"refusal" => Finish::ContentFilter,
            _ => Finish::Other,
        }
    }

    /// The word for records and labels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::ToolCalls => "tool_calls",
            Finish::ContentFilter => "content_filter",
            Finish::Other => "other",
        }
    }
}

/// What is known of an answer so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Tokens of the whole prompt, cached ones included.
    pub prompt_tokens: Option<u64>,
    /// Those of them that the engine took from its prefix cache.
    pub cached_tokens: Option<u64>,
    /// Tokens that were generated.
    pub completion_tokens: Option<u64>,
    /// Why generation ended.
    pub finish: Option<Finish>,
    /// The answer is, or contains, an error object, whatever its status code.
    pub error: bool,
    /// That error is the request's fault, by its code (4xx) or its type.
    pub client_error: bool,
    /// Events with content: a lower bound of the tokens, because an event may carry several. Always 0 for JSON.
    pub events: u64,
    /// Generated content has been seen (text, reasoning or a tool call; an opening chunk with only a role is none).
    pub first_token: bool,
    /// xxh3_64 of the id of a `/v1/responses` answer, which a later request can name as `previous_response_id`.
    pub response_id: Option<u64>,
}

/// Reads an answer as it passes.
#[derive(Debug)]
pub struct Watcher {
    learner: Learner,
    reader: Reader,
    /// Whether it is known that events really come where they were asked for.
    certain: bool,
}

#[derive(Debug)]
enum Reader {
    Json(Box<Document>),
    Sse(sse::Splitter),
    /// Nothing more to learn.
    Done,
}

impl Watcher {
    /// For a body of this kind.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        let reader = match kind {
            Kind::Json => Reader::Json(Box::default()),
            Kind::Sse => Reader::Sse(sse::Splitter::default()),
        };
        Watcher { learner: Learner::default(), reader, certain: kind == Kind::Json }
    }

    /// Takes the next piece of the body.
    pub fn feed(&mut self, piece: &[u8]) {
        if !self.certain
            && let Some(first) = piece.iter().find(|byte| !byte.is_ascii_whitespace())
        {
            self.certain = true;
            if *first == b'{' {
                self.reader = Reader::Json(Box::default());
            }
        }
        match &mut self.reader {
            Reader::Json(document) => {
                document.feed(piece);
                self.learner.facts.first_token |= document.has_content();
                if document.is_broken() {
                    self.reader = Reader::Done;
                }
            }
            Reader::Sse(splitter) => {
                splitter.feed(piece, &mut self.learner);
                if self.learner.done {
                    self.reader = Reader::Done;
                }
            }
            Reader::Done => {}
        }
    }

    /// Says that the body is complete. A last event counts even when its blank line is missing.
    pub fn finish(&mut self) {
        match std::mem::replace(&mut self.reader, Reader::Done) {
            Reader::Json(document) => {
                if let Some(reading) = document.finish() {
                    self.learner.learn(&reading);
                }
            }
            Reader::Sse(mut splitter) => splitter.finish(&mut self.learner),
            Reader::Done => {}
        }
    }

    /// Whether the body is one JSON document that is all here: nothing but its end is to be expected.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        matches!(&self.reader, Reader::Json(document) if document.is_whole())
    }

    /// What is known so far.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.learner.facts
    }
}

/// Turns documents into facts.
#[derive(Debug, Default)]
struct Learner {
    facts: Facts,
    usage: Usage,
    /// The events name their `type` (responses, Anthropic), and only some of them are deltas.
    typed: bool,
    done: bool,
    /// The event that is too long to be carried.
    long: Option<Box<Document>>,
}

impl Learner {
    fn learn(&mut self, reading: &Reading) {
        let facts = &mut self.facts;
        self.usage.update(&reading.usage);
        facts.prompt_tokens = self.usage.prompt_tokens();
        facts.cached_tokens = self.usage.cached_tokens();
        facts.completion_tokens = self.usage.output;
        facts.finish = reading.finish().or(facts.finish);
        facts.error |= reading.is_error();
        facts.client_error |= reading.is_client_error();
        facts.first_token |= reading.content;
        facts.response_id = reading.response_id().or(facts.response_id);
        self.typed |= reading.typed;
    }

    fn learn_event(&mut self, reading: &Reading) {
        self.learn(reading);
        self.facts.events += u64::from(reading.content);
    }
}

impl sse::Events for Learner {
    fn event(&mut self, data: &[u8], named_error: bool) {
        if self.done {
            return;
        }
        self.facts.error |= named_error;
        // The opening events carry what no mark tells (ids, types), so everything is read until content has come.
        if !self.facts.first_token || marks::any(data, self.typed) {
            if data.trim_ascii() == b"[DONE]" {
                self.done = true;
                return;
            }
            let mut document = Document::default();
            document.feed(data);
            if let Some(reading) = document.finish() {
                self.learn_event(&reading);
            }
        } else if data.first() == Some(&b'{') {
            self.facts.events += u64::from(!self.typed || marks::delta(data));
        } else if data.trim_ascii() == b"[DONE]" {
            self.done = true;
        }
    }

    fn long(&mut self, piece: &[u8]) {
        if !self.done {
            self.long.get_or_insert_default().feed(piece);
        }
    }

    fn long_end(&mut self, named_error: bool) {
        self.facts.error |= named_error && !self.done;
        if let Some(reading) = self.long.take().and_then(|document| document.finish()) {
            self.learn_event(&reading);
        }
    }
}
