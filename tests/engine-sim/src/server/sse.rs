//! The text of responses: JSON bodies and SSE events.

use std::fmt::Write;

use super::api::{Api, Generation};
use super::core::unix_seconds;
use super::prompt::Reply;

/// Everything about a response that is fixed once the request is understood.
#[derive(Debug)]
pub(crate) struct Script {
    api: Api,
    choices: Vec<(Reply, &'static str)>,
    prompt_tokens: u64,
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
            choices: generation.choices.iter().map(|choice| (choice.reply, choice.finish_reason)).collect(),
            prompt_tokens: generation.prompt_tokens,
            include_usage: generation.include_usage,
            prefix: format!(r#"{{"id":{id},"object":"{object}","created":{created},"model":{model},"choices":["#),
        }
    }

    /// Output tokens of all choices.
    pub(crate) fn tokens(&self) -> u64 {
        self.choices.iter().map(|(reply, _)| reply.tokens).sum()
    }

    /// The whole response as JSON.
    pub(crate) fn whole(&self, cached_tokens: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.prefix.len() + 400 + self.tokens() as usize * 4);
        out.extend_from_slice(self.prefix.as_bytes());
        for (index, (reply, finish_reason)) in self.choices.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            open_choice(index, &mut out);
            out.extend_from_slice(match self.api {
                Api::Chat => br#""message":{"role":"assistant","content":""#.as_slice(),
                Api::Completions => br#""text":""#,
            });
            reply.write(0, reply.tokens, &mut out);
            out.extend_from_slice(match self.api {
                Api::Chat => br#""},"logprobs":null,"finish_reason":""#.as_slice(),
                Api::Completions => br#"","logprobs":null,"finish_reason":""#,
            });
            out.extend_from_slice(finish_reason.as_bytes());
            out.extend_from_slice(br#""}"#);
        }
        out.extend_from_slice(br#"],"usage":"#);
        out.extend_from_slice(self.usage(cached_tokens).as_bytes());
        out.push(b'}');
        out
    }

    /// The event with `count` tokens of a choice from `from`; before the first token there is one with the role, and the one with the
    /// last token has the reason why it is the last.
    pub(crate) fn tokens_event(&self, index: usize, from: u64, count: u64, out: &mut Vec<u8>) {
        let Some((reply, finish_reason)) = self.choices.get(index) else {
            return;
        };
        if from == 0 && self.api == Api::Chat {
            self.open(out);
            open_choice(index, out);
            out.extend_from_slice(
                br#""delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}"#,
            );
            out.extend_from_slice(b"\n\n");
        }
        self.open(out);
        open_choice(index, out);
        out.extend_from_slice(match self.api {
            Api::Chat => br#""delta":{"content":""#.as_slice(),
            Api::Completions => br#""text":""#,
        });
        reply.write(from, count, out);
        out.extend_from_slice(match self.api {
            Api::Chat => br#""},"logprobs":null,"finish_reason":"#.as_slice(),
            Api::Completions => br#"","logprobs":null,"finish_reason":"#,
        });
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
        let (prompt, output) = (self.prompt_tokens, self.tokens());
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

fn open_choice(index: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"index":"#);
    out.extend_from_slice(index.to_string().as_bytes());
    out.push(b',');
}
