//! Answers to chat and completions: JSON bodies and SSE events. Written by hand, as most tests spend their time here.

use std::fmt::Write;

use super::{ApiError, Facts, Shape, Style, Writer, sse};

/// The answer.
#[derive(Debug)]
pub(super) struct Script {
    facts: Facts,
    /// `{"id":...,"model":...,"choices":[`
    prefix: String,
}

impl Script {
    pub(super) fn new(facts: Facts) -> Self {
        let object = match (facts.shape, facts.stream) {
            (Shape::Chat, true) => "chat.completion.chunk",
            (Shape::Chat, false) => "chat.completion",
            _ => "text_completion",
        };
        let Facts { id, created, model, .. } = &facts;
        let model = serde_json::Value::from(model.as_str());
        let prefix = format!(r#"{{"id":"{id}","object":"{object}","created":{created},"model":{model},"choices":["#);
        Self { facts, prefix }
    }

    fn is_chat(&self) -> bool {
        self.facts.shape == Shape::Chat
    }

    fn open(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(self.prefix.as_bytes());
    }

    fn usage(&self, cached_tokens: u64) -> String {
        let (prompt, output) = (self.facts.prompt_tokens, self.facts.tokens());
        let mut usage = String::with_capacity(128);
        // Writing to a string cannot fail.
        let _ = write!(
            usage,
            r#"{{"prompt_tokens":{prompt},"total_tokens":{},"completion_tokens":{output},"prompt_tokens_details":{{"cached_tokens":{cached_tokens}}}}}"#,
            prompt + output
        );
        usage
    }
}

impl Writer for Script {
    fn whole(&self, cached_tokens: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.prefix.len() + 400 + self.facts.tokens() as usize * 4);
        out.extend_from_slice(self.prefix.as_bytes());
        for (index, (reply, finish_reason)) in self.facts.choices.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            open_choice(index, &mut out);
            let (before, after) = if self.is_chat() {
                (br#""message":{"role":"assistant","content":""#.as_slice(), br#""},"logprobs":null"#.as_slice())
            } else {
                (br#""text":""#.as_slice(), br#"","logprobs":null"#.as_slice())
            };
            out.extend_from_slice(before);
            reply.write(0, reply.tokens, &mut out);
            out.extend_from_slice(after);
            out.extend_from_slice(br#","finish_reason":""#);
            out.extend_from_slice(finish_reason.as_bytes());
            out.extend_from_slice(br#""}"#);
        }
        out.extend_from_slice(br#"],"usage":"#);
        out.extend_from_slice(self.usage(cached_tokens).as_bytes());
        out.push(b'}');
        out
    }

    /// Before the first token there is an event with the role, and the one with the last token has the reason why it is
    /// the last.
    fn tokens(&self, index: usize, from: u64, count: u64, out: &mut Vec<u8>) {
        let Some((reply, finish_reason)) = self.facts.choices.get(index) else {
            return;
        };
        if from == 0 && self.is_chat() {
            self.open(out);
            open_choice(index, out);
            out.extend_from_slice(
                br#""delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}"#,
            );
            out.extend_from_slice(b"\n\n");
        }
        self.open(out);
        open_choice(index, out);
        let (before, after) = if self.is_chat() {
            (br#""delta":{"content":""#.as_slice(), br#""},"logprobs":null,"finish_reason":"#.as_slice())
        } else {
            (br#""text":""#.as_slice(), br#"","logprobs":null,"finish_reason":"#.as_slice())
        };
        out.extend_from_slice(before);
        reply.write(from, count, out);
        out.extend_from_slice(after);
        if from + count >= reply.tokens {
            out.push(b'"');
            out.extend_from_slice(finish_reason.as_bytes());
            out.push(b'"');
        } else {
            out.extend_from_slice(b"null");
        }
        out.extend_from_slice(b"}]}\n\n");
    }

    /// The usage event, if it was asked for, and the end of the stream.
    fn end(&self, cached_tokens: u64, out: &mut Vec<u8>) {
        if self.facts.include_usage {
            self.open(out);
            out.extend_from_slice(br#"],"usage":"#);
            out.extend_from_slice(self.usage(cached_tokens).as_bytes());
            out.extend_from_slice(b"}\n\n");
        }
        sse::data_line(b"[DONE]", out);
    }

    fn error(&self, error: &ApiError, out: &mut Vec<u8>) {
        sse::data_line(&error.body(Style::OpenAi), out);
        sse::data_line(b"[DONE]", out);
    }
}

fn open_choice(index: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"index":"#);
    out.extend_from_slice(index.to_string().as_bytes());
    out.push(b',');
}
