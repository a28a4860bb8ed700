//! `/v1/messages`, in Anthropic's shape as vLLM serves it.
//!
//! As there, `input_tokens` is the whole prompt, cached tokens included (Anthropic's own service leaves them out), and a
//! stream ends with `[DONE]` after `message_stop`.

use serde_json::{Value, json};

use super::{ApiError, Facts, Raw, Writer, chat, sse};

/// System prompt and messages, ready for the reply.
pub(super) fn read(raw: &Raw) -> Result<Vec<u8>, ApiError> {
    let mut out = Vec::new();
    chat::tools(raw.tools.as_ref(), &mut out);
    if let Some(system) = raw.system.as_ref().filter(|system| !system.is_null()) {
        chat::open("system", &mut out);
        chat::content(Some(system), "system", &mut out)?;
        out.extend_from_slice(chat::END);
    }
    chat::messages(raw, &mut out)?;
    Ok(out)
}

/// The answer.
pub(super) struct Script {
    facts: Facts,
}

impl Script {
    pub(super) fn new(facts: Facts) -> Self {
        Self { facts }
    }

    fn message(&self, content: &Value, stop_reason: &Value, usage: &Value) -> Value {
        json!({"id": self.facts.id, "type": "message", "role": "assistant", "model": self.facts.model,
            "content": content, "stop_reason": stop_reason, "stop_sequence": null, "usage": usage})
    }

    fn stop_reason(&self) -> &'static str {
        if self.facts.only().1 == "length" { "max_tokens" } else { "end_turn" }
    }

    fn usage(&self, cached_tokens: u64) -> Value {
        json!({"input_tokens": self.facts.prompt_tokens, "output_tokens": self.facts.tokens(),
            "cache_read_input_tokens": cached_tokens})
    }

    fn text(&self, from: u64, count: u64) -> String {
        let mut text = Vec::new();
        self.facts.only().0.write(from, count, &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }
}

fn event(kind: &str, mut data: Value, out: &mut Vec<u8>) {
    data["type"] = json!(kind);
    sse::event(kind, &data, out);
}

impl Writer for Script {
    fn tokens(&self, _: usize, from: u64, count: u64, out: &mut Vec<u8>) {
        if from == 0 {
            let usage = json!({"input_tokens": self.facts.prompt_tokens, "output_tokens": 0});
            event("message_start", json!({"message": self.message(&json!([]), &Value::Null, &usage)}), out);
            let block = json!({"index": 0, "content_block": {"type": "text", "text": ""}});
            event("content_block_start", block, out);
        }
        let delta = json!({"type": "text_delta", "text": self.text(from, count)});
        event("content_block_delta", json!({"index": 0, "delta": delta}), out);
    }

    fn end(&self, cached_tokens: u64, out: &mut Vec<u8>) {
        event("content_block_stop", json!({"index": 0}), out);
        let delta = json!({"stop_reason": self.stop_reason(), "stop_sequence": null});
        event("message_delta", json!({"delta": delta, "usage": self.usage(cached_tokens)}), out);
        event("message_stop", json!({}), out);
        sse::data_line(b"[DONE]", out);
    }

    fn error(&self, error: &ApiError, out: &mut Vec<u8>) {
        event("error", json!({"error": {"type": "api_error", "message": error.message}}), out);
    }

    fn whole(&self, cached_tokens: u64) -> Vec<u8> {
        let text = self.text(0, self.facts.tokens());
        let content = json!([{"type": "text", "text": text}]);
        self.message(&content, &json!(self.stop_reason()), &self.usage(cached_tokens)).to_string().into_bytes()
    }
}
