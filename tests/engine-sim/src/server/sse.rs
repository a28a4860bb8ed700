//! The text of responses: JSON bodies and SSE events.

use std::fmt::Write;

use super::api::{Api, Generation};
use super::core::unix_seconds;
use super::prompt::Reply;

/// Everything about a response that is fixed once the request is understood.
#[derive(Debug)]
pub(crate) struct Script {
    api: Api,
    reply: Reply,
    prompt_tokens: u64,
    finish_reason: &'static str,
    include_usage: bool,
    /// `{"id":...,"model":...,"choices":[`
    prefix: String,
}

impl Script {
    pub(crate) fn new(generation: &Generation, model: &str, engine: &str, id: u64) -> Self {
        let (prefix, object) = match (generation.api, generation.stream) {
            (Api::Chat, true) => ("chatcmpl", "chat.completion.chunk"),
            (Api::Chat, false) => ("chatcmpl", "chat.completion"),
            (Api::Completions, _) => ("cmpl", "text_completion"),
        };
        let id = serde_json::Value::from(format!("{prefix}-{engine}-{id}"));
        let model = serde_json::Value::from(model);
        let created = unix_seconds() as u64;
        Self {
            api: generation.api,
            reply: generation.reply,
            prompt_tokens: generation.prompt.tokens(),
            finish_reason: generation.finish_reason,
            include_usage: generation.include_usage,
            prefix: format!(r#"{{"id":{id},"object":"{object}","created":{created},"model":{model},"choices":["#),
        }
    }

    /// Tokens in all.
    pub(crate) fn tokens(&self) -> u64 {
        self.reply.tokens
    }

    /// The whole response as JSON.
    pub(crate) fn whole(&self, cached_tokens: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.prefix.len() + 400 + self.reply.tokens as usize * 4);
        out.extend_from_slice(self.prefix.as_bytes());
        out.extend_from_slice(match self.api {
            Api::Chat => br#"{"index":0,"message":{"role":"assistant","content":""#.as_slice(),
            Api::Completions => br#"{"index":0,"text":""#,
        });
        self.reply.write(0, self.reply.tokens, &mut out);
        out.extend_from_slice(match self.api {
            Api::Chat => br#""},"logprobs":null,"finish_reason":""#.as_slice(),
            Api::Completions => br#"","logprobs":null,"finish_reason":""#,
        });
        out.extend_from_slice(self.finish_reason.as_bytes());
        out.extend_from_slice(br#""}],"usage":"#);
        out.extend_from_slice(self.usage(cached_tokens).as_bytes());
        out.push(b'}');
        out
    }

    /// The event with `count` tokens from `from`; before the first token there is one with the role, and the one with the
    /// last token has the reason why it is the last.
    pub(crate) fn tokens_event(&self, from: u64, count: u64, out: &mut Vec<u8>) {
        if from == 0 && self.api == Api::Chat {
            self.open(out);
            out.extend_from_slice(
                br#"{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}"#,
            );
            out.extend_from_slice(b"\n\n");
        }
        self.open(out);
        out.extend_from_slice(match self.api {
            Api::Chat => br#"{"index":0,"delta":{"content":""#.as_slice(),
            Api::Completions => br#"{"index":0,"text":""#,
        });
        self.reply.write(from, count, out);
        out.extend_from_slice(match self.api {
            Api::Chat => br#""},"logprobs":null,"finish_reason":"#.as_slice(),
            Api::Completions => br#"","logprobs":null,"finish_reason":"#,
        });
        if from + count >= self.reply.tokens {
            out.push(b'"');
            out.extend_from_slice(self.finish_reason.as_bytes());
            out.push(b'"');
        } else {
            out.extend_from_slice(b"null");
        }
        out.extend_from_slice(b"}]}\n\n");
    }

    /// The usage event, if it was asked for, and the end of the stream.
    pub(crate) fn end(&self, cached_tokens: u64, out: &mut Vec<u8>) {
        if self.include_usage {
            self.open(out);
            out.extend_from_slice(br#"],"usage":"#);
            out.extend_from_slice(self.usage(cached_tokens).as_bytes());
            out.extend_from_slice(b"}\n\n");
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }

    fn open(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(self.prefix.as_bytes());
    }

    fn usage(&self, cached_tokens: u64) -> String {
        let (prompt, output) = (self.prompt_tokens, self.reply.tokens);
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
