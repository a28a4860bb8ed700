//! The shapes of requests that vLLM knows: what is read from each, and how each is answered.
//!
//! A shape is a module with a `read` (from the body to prompts) and a [`Writer`] (from generated tokens to JSON or SSE).

mod audio;
mod chat;
mod completions;
mod error;
mod lengths;
mod messages;
mod multipart;
mod openai;
mod pooling;
mod responses;
mod sse;
pub(crate) mod tokens;

use serde::Deserialize;
use serde_json::Value;

use super::core::unix_seconds;
use super::prompt::{Prompt, Reply};

pub(crate) use audio::read_form;
pub(crate) use error::{ApiError, Style};
pub(crate) use sse::Cutter;
pub use sse::SseStyle;

/// Which of the paths that run the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Chat,
    Completions,
    Responses,
    Messages,
    Embeddings,
    Rerank,
    Score,
    Transcriptions,
}

impl Shape {
    /// By path; `None` for all others.
    pub(crate) fn of_path(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/chat/completions" => Self::Chat,
            "/v1/completions" => Self::Completions,
            "/v1/responses" => Self::Responses,
            "/v1/messages" => Self::Messages,
            "/v1/embeddings" => Self::Embeddings,
            "/v1/rerank" | "/rerank" | "/v2/rerank" => Self::Rerank,
            "/v1/score" | "/score" => Self::Score,
            "/v1/audio/transcriptions" | "/v1/audio/translations" => Self::Transcriptions,
            _ => return None,
        })
    }

    /// Whose errors it speaks.
    pub(crate) fn style(self) -> Style {
        if self == Self::Messages { Style::Anthropic } else { Style::OpenAi }
    }
}

/// The fields that matter here; the many others are accepted and ignored, as their values change no timing.
/// `min_tokens` and `ignore_eos` are understood in every shape.
#[derive(Debug, Default, Deserialize)]
struct Raw {
    model: Option<String>,
    messages: Option<Vec<Message>>,
    system: Option<Value>,
    prompt: Option<Value>,
    input: Option<Value>,
    instructions: Option<String>,
    tools: Option<Value>,
    query: Option<Value>,
    documents: Option<Value>,
    #[serde(alias = "data_1")]
    text_1: Option<Value>,
    #[serde(alias = "data_2")]
    text_2: Option<Value>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    max_output_tokens: Option<i64>,
    min_tokens: Option<i64>,
    ignore_eos: Option<bool>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    cache_salt: Option<String>,
    n: Option<i64>,
    previous_response_id: Option<String>,
    store: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Message {
    role: String,
    content: Option<Value>,
    tool_calls: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// A request understood.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Generation {
    pub(crate) shape: Shape,
    /// The model or adapter that was asked for.
    pub(crate) model: String,
    /// One for each prompt and each of `n`, by index; at least one.
    pub(crate) choices: Vec<Choice>,
    /// Over all prompts; `n` does not count.
    pub(crate) prompt_tokens: u64,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    /// Whether a later request may go on from this one's id.
    pub(crate) store: bool,
    pub(crate) previous_response_id: Option<String>,
}

impl Generation {
    /// Output tokens of all choices.
    pub(crate) fn output_tokens(&self) -> u64 {
        self.choices.iter().map(|choice| choice.reply.tokens).sum()
    }

    /// The conversation with the reply in it, as a later turn begins.
    pub(crate) fn conversation(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some(choice) = self.choices.first() {
            out.extend_from_slice(choice.prompt.bytes());
            choice.reply.write(0, choice.reply.tokens, &mut out);
            out.extend_from_slice(chat::END);
        }
        out
    }
}

/// One sequence to generate.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Choice {
    pub(crate) prompt: Prompt,
    /// The first one of its prompt; the others of `n` find the prompt in the cache.
    pub(crate) is_first: bool,
    pub(crate) reply: Reply,
    pub(crate) finish_reason: &'static str,
}

/// What the engine allows and knows.
#[derive(Clone, Copy)]
pub(crate) struct Limits<'a> {
    pub(crate) model: &'a str,
    pub(crate) adapters: &'a [String],
    pub(crate) max_model_len: u64,
    pub(crate) mean_output_tokens: f64,
    /// The conversation behind a response id.
    pub(crate) conversation: &'a (dyn Fn(&str) -> Option<Vec<u8>> + Send + Sync),
}

impl Limits<'_> {
    /// The name of the model to run: the one asked for, the base model when none was.
    pub(crate) fn model(&self, asked: Option<&str>) -> Result<String, ApiError> {
        match asked {
            None => Ok(self.model.to_owned()),
            Some(asked) if asked == self.model || self.adapters.iter().any(|adapter| adapter == asked) => {
                Ok(asked.to_owned())
            }
            Some(asked) => Err(ApiError::not_found(Some("model"), format!("The model `{asked}` does not exist."))),
        }
    }
}

/// The most choices of one prompt.
const MAX_N: u64 = 128;

/// Reads a JSON request body.
pub(crate) fn read(shape: Shape, body: &[u8], limits: Limits<'_>) -> Result<Generation, ApiError> {
    let raw: Raw = serde_json::from_slice(body).map_err(|error| ApiError::bad(None, error.to_string()))?;
    let model = limits.model(raw.model.as_deref())?;
    let n = match shape {
        Shape::Chat | Shape::Completions => raw.n.unwrap_or(1),
        _ => 1,
    };
    let Some(n) = u64::try_from(n).ok().filter(|n| (1..=MAX_N).contains(n)) else {
        return Err(ApiError::bad(Some("n"), format!("n must be between 1 and {MAX_N}, got {n}.")));
    };
    let rendered = match shape {
        Shape::Chat => vec![chat::read(&raw)?],
        Shape::Completions => completions::read(raw.prompt.as_ref(), "prompt")?,
        Shape::Responses => vec![responses::read(&raw, limits)?],
        Shape::Messages => vec![messages::read(&raw)?],
        Shape::Embeddings => pooling::read_inputs(&raw)?,
        Shape::Rerank => pooling::read_documents(&raw)?,
        Shape::Score => pooling::read_pairs(&raw)?,
        Shape::Transcriptions => return Err(ApiError::bad(None, "expected multipart/form-data")),
    };
    let salt = [model.as_str(), raw.cache_salt.as_deref().unwrap_or("")];
    let mut choices = Vec::new();
    let mut prompt_tokens = 0;
    for bytes in rendered {
        let prompt = Prompt::new(bytes, &salt);
        let hash = prompt.hash();
        prompt_tokens += prompt.tokens();
        for nth in 0..n {
            let seed = hash.wrapping_add(nth);
            let (tokens, finish_reason) = lengths::output(shape, &raw, prompt.tokens(), seed, limits)?;
            let reply = Reply::new(seed, tokens);
            choices.push(Choice { prompt: prompt.clone(), is_first: nth == 0, reply, finish_reason });
        }
    }
    let streams = matches!(shape, Shape::Chat | Shape::Completions | Shape::Responses | Shape::Messages);
    Ok(Generation {
        shape,
        model,
        choices,
        prompt_tokens,
        stream: streams && raw.stream.unwrap_or(false),
        include_usage: raw.stream_options.and_then(|options| options.include_usage).unwrap_or(false),
        store: shape == Shape::Responses && raw.store.unwrap_or(true),
        previous_response_id: raw.previous_response_id,
    })
}

/// Everything about an answer that is fixed once the request is understood.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) shape: Shape,
    /// The answer's id, with its prefix.
    pub(crate) id: String,
    pub(crate) model: String,
    /// Seconds since the epoch.
    pub(crate) created: u64,
    pub(crate) choices: Vec<(Reply, &'static str)>,
    pub(crate) prompt_tokens: u64,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) previous_response_id: Option<String>,
}

impl Facts {
    /// `nonce` differs between engines and their restarts, `number` between requests.
    pub(crate) fn new(generation: &Generation, nonce: u64, number: u64) -> Self {
        let prefix = match generation.shape {
            Shape::Chat => "chatcmpl-",
            Shape::Completions => "cmpl-",
            Shape::Responses => "resp_",
            Shape::Messages => "msg_",
            Shape::Embeddings => "embd-",
            Shape::Rerank => "rerank-",
            Shape::Score => "score-",
            Shape::Transcriptions => "trsc-",
        };
        Self {
            shape: generation.shape,
            id: format!("{prefix}{nonce:016x}{number:08x}"),
            model: generation.model.clone(),
            created: unix_seconds() as u64,
            choices: generation.choices.iter().map(|choice| (choice.reply, choice.finish_reason)).collect(),
            prompt_tokens: generation.prompt_tokens,
            stream: generation.stream,
            include_usage: generation.include_usage,
            previous_response_id: generation.previous_response_id.clone(),
        }
    }

    /// Output tokens of all choices.
    pub(crate) fn tokens(&self) -> u64 {
        self.choices.iter().map(|(reply, _)| reply.tokens).sum()
    }

    /// The first choice: the only one in most shapes.
    pub(crate) fn only(&self) -> (Reply, &'static str) {
        self.choices.first().copied().unwrap_or((Reply::new(0, 0), "stop"))
    }
}

/// Writes an answer: all at once with `whole`, or event by event with the others.
pub(crate) trait Writer: Send {
    /// The event with `count` tokens of a choice from `from`, and what must come before the first token.
    fn tokens(&self, index: usize, from: u64, count: u64, out: &mut Vec<u8>);
    /// What comes after the last token.
    fn end(&self, cached_tokens: u64, out: &mut Vec<u8>);
    /// An error in the middle of a stream, and the end.
    fn error(&self, error: &ApiError, out: &mut Vec<u8>);
    /// The whole answer as JSON.
    fn whole(&self, cached_tokens: u64) -> Vec<u8>;
}

/// The writer for a shape.
pub(crate) fn writer(facts: Facts) -> Box<dyn Writer> {
    match facts.shape {
        Shape::Chat | Shape::Completions => Box::new(openai::Script::new(facts)),
        Shape::Responses => Box::new(responses::Script::new(facts)),
        Shape::Messages => Box::new(messages::Script::new(facts)),
        Shape::Embeddings | Shape::Rerank | Shape::Score => Box::new(pooling::Script::new(facts)),
        Shape::Transcriptions => Box::new(audio::Script::new(facts)),
    }
}

#[cfg(test)]
mod tests;
