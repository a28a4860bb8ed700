//! `/v1/responses`: a text or items, and conversations that this engine remembers by response id.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use super::{ApiError, Facts, Limits, Raw, Writer, chat, sse};

/// The conversation so far, if any, and the new items, ready for the reply.
pub(super) fn read(raw: &Raw, limits: Limits<'_>) -> Result<Vec<u8>, ApiError> {
    let mut out = match raw.previous_response_id.as_deref() {
        None => Vec::new(),
        Some(id) => (limits.conversation)(id).ok_or_else(|| {
            ApiError::not_found(Some("previous_response_id"), format!("Response with id '{id}' not found."))
        })?,
    };
    if out.is_empty() {
        chat::tools(raw.tools.as_ref(), &mut out);
    }
    if let Some(instructions) = &raw.instructions {
        chat::open("system", &mut out);
        out.extend_from_slice(instructions.as_bytes());
        out.extend_from_slice(chat::END);
    }
    match &raw.input {
        Some(Value::String(text)) => {
            chat::open("user", &mut out);
            out.extend_from_slice(text.as_bytes());
            out.extend_from_slice(chat::END);
        }
        Some(Value::Array(items)) if !items.is_empty() => {
            for item in items {
                self::item(item, &mut out)?;
            }
        }
        _ => return Err(ApiError::bad(Some("input"), "input: a string or a non-empty array of items is required")),
    }
    chat::ready(&mut out);
    Ok(out)
}

fn item(item: &Value, out: &mut Vec<u8>) -> Result<(), ApiError> {
    match item.get("role").and_then(Value::as_str) {
        Some(role) => {
            chat::open(role, out);
            chat::content(item.get("content"), "input", out)?;
        }
        // Function calls and their results.
        None if item.is_object() => {
            chat::open("item", out);
            out.extend_from_slice(item.to_string().as_bytes());
        }
        None => return Err(ApiError::bad(Some("input"), "input: an item is not an object")),
    }
    out.extend_from_slice(chat::END);
    Ok(())
}

/// The answer.
pub(super) struct Script {
    facts: Facts,
    sequence: AtomicU64,
}

impl Script {
    pub(super) fn new(facts: Facts) -> Self {
        Self { facts, sequence: AtomicU64::new(0) }
    }

    fn response(&self, status: &str, output: &Value, usage: &Value) -> Value {
        let Facts { id, model, created, previous_response_id, .. } = &self.facts;
        let details = if status == "incomplete" { json!({"reason": "max_output_tokens"}) } else { Value::Null };
        json!({"id": id, "object": "response", "created_at": created, "model": model, "status": status,
            "incomplete_details": details, "previous_response_id": previous_response_id, "error": null,
            "output": output, "usage": usage})
    }

    fn done(&self, cached_tokens: u64) -> Value {
        let (_, finish_reason) = self.facts.only();
        let status = if finish_reason == "length" { "incomplete" } else { "completed" };
        let (input, output) = (self.facts.prompt_tokens, self.facts.tokens());
        let usage = json!({"input_tokens": input, "input_tokens_details": {"cached_tokens": cached_tokens},
            "output_tokens": output, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": input + output});
        self.response(status, &json!([self.message("completed", &json!([self.part()]))]), &usage)
    }

    fn text(&self) -> String {
        let mut text = Vec::new();
        let (reply, _) = self.facts.only();
        reply.write(0, reply.tokens, &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    fn part(&self) -> Value {
        json!({"type": "output_text", "text": self.text(), "annotations": []})
    }

    fn message_id(&self) -> String {
        self.facts.id.replacen("resp", "msg", 1)
    }

    fn message(&self, status: &str, content: &Value) -> Value {
        json!({"id": self.message_id(), "type": "message", "role": "assistant", "status": status, "content": content})
    }

    fn event(&self, kind: &str, mut data: Value, out: &mut Vec<u8>) {
        data["type"] = json!(kind);
        data["sequence_number"] = json!(self.sequence.fetch_add(1, Ordering::Relaxed));
        sse::event(kind, &data, out);
    }

    /// Where in the output an event belongs: there is one item with one part.
    fn place(&self) -> Value {
        json!({"item_id": self.message_id(), "output_index": 0, "content_index": 0})
    }
}

impl Writer for Script {
    fn tokens(&self, _: usize, from: u64, count: u64, out: &mut Vec<u8>) {
        if from == 0 {
            let response = self.response("in_progress", &json!([]), &Value::Null);
            self.event("response.created", json!({"response": response}), out);
            self.event("response.in_progress", json!({"response": response}), out);
            let item = self.message("in_progress", &json!([]));
            self.event("response.output_item.added", json!({"output_index": 0, "item": item}), out);
            let mut data = self.place();
            data["part"] = json!({"type": "output_text", "text": "", "annotations": []});
            self.event("response.content_part.added", data, out);
        }
        let mut delta = Vec::new();
        self.facts.only().0.write(from, count, &mut delta);
        let mut data = self.place();
        data["delta"] = json!(String::from_utf8_lossy(&delta));
        self.event("response.output_text.delta", data, out);
    }

    fn end(&self, cached_tokens: u64, out: &mut Vec<u8>) {
        let mut data = self.place();
        data["text"] = json!(self.text());
        self.event("response.output_text.done", data, out);
        let mut data = self.place();
        data["part"] = self.part();
        self.event("response.content_part.done", data, out);
        let item = self.message("completed", &json!([self.part()]));
        self.event("response.output_item.done", json!({"output_index": 0, "item": item}), out);
        self.event("response.completed", json!({"response": self.done(cached_tokens)}), out);
    }

    fn error(&self, error: &ApiError, out: &mut Vec<u8>) {
        let mut response = self.response("failed", &json!([]), &Value::Null);
        response["error"] = json!({"code": "server_error", "message": error.message});
        self.event("response.failed", json!({"response": response}), out);
    }

    fn whole(&self, cached_tokens: u64) -> Vec<u8> {
        self.done(cached_tokens).to_string().into_bytes()
    }
}
