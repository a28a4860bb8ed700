//! `/v1/audio/transcriptions` and `/translations`: a form with a file in, a text out.

use serde_json::json;

use super::super::prompt::{Prompt, Reply, natural_length};
use super::{ApiError, Choice, Facts, Generation, Limits, Shape, Writer, multipart, sse};

/// Thirty seconds of audio are so many tokens for a Whisper encoder; longer files are cut here.
const WINDOW_BYTES: usize = 1_500 * super::super::prompt::TOKEN_BYTES;

/// Reads a form: `file` and `model` are required, `stream` is understood.
pub(crate) fn read_form(content_type: &str, body: &[u8], limits: Limits<'_>) -> Result<Generation, ApiError> {
    let Some(boundary) = multipart::boundary(content_type) else {
        return Err(ApiError::bad(None, "expected multipart/form-data with a boundary"));
    };
    let Some(fields) = multipart::fields(body, &boundary) else {
        return Err(ApiError::bad(None, "There was an error parsing the body"));
    };
    // The last of several wins.
    let field = |name: &str| fields.iter().rev().find(|(found, _)| found == name).map(|(_, value)| *value);
    let Some(file) = field("file").filter(|file| !file.is_empty()) else {
        return Err(ApiError::bad(Some("file"), "file: Field required"));
    };
    let Some(model) = field("model").and_then(|model| std::str::from_utf8(model).ok()) else {
        return Err(ApiError::bad(Some("model"), "model: Field required"));
    };
    let model = limits.model(Some(model))?;
    let prompt = Prompt::new(file[..file.len().min(WINDOW_BYTES)].to_vec(), &[model.as_str(), "audio"]);
    let tokens = natural_length(prompt.hash(), limits.mean_output_tokens);
    let room = limits.max_model_len.saturating_sub(prompt.tokens());
    if room == 0 {
        return Err(ApiError::bad(Some("file"), "file: longer than the context window"));
    }
    let (prompt_tokens, reply) = (prompt.tokens(), Reply::new(prompt.hash(), tokens.min(room)));
    let flag = |name: &str| field(name).is_some_and(|value| matches!(value, b"true" | b"True" | b"1"));
    Ok(Generation {
        shape: Shape::Transcriptions,
        model,
        choices: vec![Choice { prompt, is_first: true, reply, finish_reason: "stop" }],
        prompt_tokens,
        stream: flag("stream"),
        include_usage: flag("stream_include_usage"),
        store: false,
        previous_response_id: None,
    })
}

/// The answer.
pub(super) struct Script {
    facts: Facts,
}

impl Script {
    pub(super) fn new(facts: Facts) -> Self {
        Self { facts }
    }

    fn text(&self, from: u64, count: u64) -> String {
        let mut text = Vec::new();
        self.facts.only().0.write(from, count, &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    fn chunk(&self, choices: &serde_json::Value, usage: &serde_json::Value, out: &mut Vec<u8>) {
        let Facts { id, model, created, .. } = &self.facts;
        let mut chunk = json!({"id": id, "object": "transcription.chunk", "created": created, "model": model,
            "choices": choices});
        if !usage.is_null() {
            chunk["usage"] = usage.clone();
        }
        sse::data_line(chunk.to_string().as_bytes(), out);
    }
}

impl Writer for Script {
    fn tokens(&self, _: usize, from: u64, count: u64, out: &mut Vec<u8>) {
        let (reply, finish_reason) = self.facts.only();
        let finish = (from + count >= reply.tokens).then_some(finish_reason);
        let choice = json!([{"delta": {"content": self.text(from, count)}, "finish_reason": finish}]);
        self.chunk(&choice, &serde_json::Value::Null, out);
    }

    fn end(&self, _: u64, out: &mut Vec<u8>) {
        if self.facts.include_usage {
            let (prompt, output) = (self.facts.prompt_tokens, self.facts.tokens());
            let usage = json!({"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output});
            self.chunk(&json!([]), &usage, out);
        }
        sse::data_line(b"[DONE]", out);
    }

    fn error(&self, error: &ApiError, out: &mut Vec<u8>) {
        sse::data_line(&error.body(Shape::Transcriptions.style()), out);
        sse::data_line(b"[DONE]", out);
    }

    fn whole(&self, _: u64) -> Vec<u8> {
        // As vLLM: seconds of audio, no tokens. 50 encoder frames are a second.
        let seconds = self.facts.prompt_tokens.div_ceil(50);
        json!({"text": self.text(0, self.facts.tokens()), "usage": {"type": "duration", "seconds": seconds}})
            .to_string()
            .into_bytes()
    }
}
