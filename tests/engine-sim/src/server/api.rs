//! Requests of the OpenAI API: what is read from them, and how they are refused.

use serde::Deserialize;
use serde_json::Value;

use super::prompt::{Prompt, Reply, TOKEN_BYTES, natural_length};

/// Which of the two generation paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Api {
    Chat,
    Completions,
}

/// A request refused, in OpenAI's terms.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ApiError {
    pub(crate) status: u16,
    pub(crate) kind: &'static str,
    pub(crate) param: Option<&'static str>,
    pub(crate) message: String,
}

impl ApiError {
    pub(crate) fn bad(param: Option<&'static str>, message: impl Into<String>) -> Self {
        Self { status: 400, kind: "BadRequestError", param, message: message.into() }
    }

    pub(crate) fn not_found(param: Option<&'static str>, message: impl Into<String>) -> Self {
        Self { status: 404, kind: "NotFoundError", param, message: message.into() }
    }

    /// The body of the response.
    pub(crate) fn body(&self) -> Vec<u8> {
        let error = serde_json::json!({"error": {
            "message": self.message, "type": self.kind, "param": self.param, "code": self.status,
        }});
        error.to_string().into_bytes()
    }
}

/// The fields that matter here; the many others are accepted and ignored, as their values change no timing.
#[derive(Debug, Deserialize)]
struct Raw {
    model: Option<String>,
    messages: Option<Vec<Message>>,
    prompt: Option<Value>,
    tools: Option<Value>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    min_tokens: Option<i64>,
    ignore_eos: Option<bool>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    cache_salt: Option<String>,
    n: Option<i64>,
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
    pub(crate) api: Api,
    pub(crate) prompt: Prompt,
    pub(crate) reply: Reply,
    pub(crate) finish_reason: &'static str,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
}

/// What the engine allows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits<'a> {
    pub(crate) model: &'a str,
    pub(crate) max_model_len: u64,
    pub(crate) mean_output_tokens: f64,
}

/// Reads a request body.
pub(crate) fn parse(api: Api, body: &[u8], limits: Limits<'_>) -> Result<Generation, ApiError> {
    let raw: Raw = serde_json::from_slice(body).map_err(|error| ApiError::bad(None, error.to_string()))?;
    let model = limits.model;
    if let Some(wanted) = raw.model.as_deref().filter(|wanted| *wanted != model) {
        return Err(ApiError::not_found(Some("model"), format!("The model `{wanted}` does not exist.")));
    }
    if raw.n.is_some_and(|n| n != 1) {
        return Err(ApiError::bad(Some("n"), "this simulator generates one choice per request"));
    }
    let rendered = match api {
        Api::Chat => render_chat(&raw)?,
        Api::Completions => render_prompt(raw.prompt.as_ref())?,
    };
    let prompt = Prompt::new(rendered, &[model, raw.cache_salt.as_deref().unwrap_or("")]);
    let (tokens, finish_reason) = output_length(api, &raw, &prompt, limits)?;
    Ok(Generation {
        api,
        reply: Reply::new(prompt.hash(), tokens),
        prompt,
        finish_reason,
        stream: raw.stream.unwrap_or(false),
        include_usage: raw.stream_options.and_then(|options| options.include_usage).unwrap_or(false),
    })
}

fn output_length(api: Api, raw: &Raw, prompt: &Prompt, limits: Limits<'_>) -> Result<(u64, &'static str), ApiError> {
    let window = limits.max_model_len;
    let prompt_tokens = prompt.tokens();
    let too_long = |asked: String| {
        let message = format!("This model's maximum context length is {window} tokens. However, {asked}");
        Err(ApiError::bad(None, message))
    };
    let room = window.saturating_sub(prompt_tokens);
    if room == 0 {
        return too_long(format!("the prompt has {prompt_tokens} tokens."));
    }
    let given = match api {
        Api::Chat => raw.max_completion_tokens.or(raw.max_tokens),
        Api::Completions => Some(raw.max_tokens.unwrap_or(16)),
    };
    let max = match given {
        None => room,
        Some(max) => match u64::try_from(max) {
            Ok(max @ 1..) => max,
            _ => return Err(ApiError::bad(Some("max_tokens"), format!("max_tokens must be at least 1, got {max}."))),
        },
    };
    if max > room {
        return too_long(format!("you requested {max} output tokens and the prompt has {prompt_tokens} tokens."));
    }
    let min = raw.min_tokens.unwrap_or(0);
    let Some(min) = u64::try_from(min).ok().filter(|min| *min <= max) else {
        let message = format!("min_tokens must be between 0 and max_tokens={max}, got {min}.");
        return Err(ApiError::bad(Some("min_tokens"), message));
    };
    if raw.ignore_eos.unwrap_or(false) {
        return Ok((max, "length"));
    }
    let natural = natural_length(prompt.hash(), limits.mean_output_tokens).max(min);
    Ok(if natural < max { (natural, "stop") } else { (max, "length") })
}

/// A plain chat template. A turn's rendering is the beginning of the next turn's.
fn render_chat(raw: &Raw) -> Result<Vec<u8>, ApiError> {
    let messages = raw.messages.as_deref().unwrap_or(&[]);
    if messages.is_empty() {
        return Err(ApiError::bad(Some("messages"), "messages: at least one message is required"));
    }
    let mut out = Vec::new();
    if let Some(tools) = raw.tools.as_ref().filter(|tools| !tools.is_null()) {
        out.extend_from_slice(tools.to_string().as_bytes());
    }
    for message in messages {
        out.extend_from_slice(b"<|");
        out.extend_from_slice(message.role.as_bytes());
        out.extend_from_slice(b"|>");
        match &message.content {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => out.extend_from_slice(text.as_bytes()),
            Some(Value::Array(parts)) => parts.iter().for_each(|part| render_part(part, &mut out)),
            Some(_) => {
                return Err(ApiError::bad(Some("messages"), "messages: content must be a string or an array of parts"));
            }
        }
        if let Some(calls) = message.tool_calls.as_ref().filter(|calls| !calls.is_null()) {
            out.extend_from_slice(calls.to_string().as_bytes());
        }
        out.extend_from_slice(b"<|end|>");
    }
    out.extend_from_slice(b"<|assistant|>");
    Ok(out)
}

fn render_part(part: &Value, out: &mut Vec<u8>) {
    match part.get("text").and_then(Value::as_str) {
        Some(text) => out.extend_from_slice(text.as_bytes()),
        None => out.extend_from_slice(part.to_string().as_bytes()),
    }
}

/// A text, or token numbers; or an array of exactly one of these.
fn render_prompt(prompt: Option<&Value>) -> Result<Vec<u8>, ApiError> {
    let bad = |message: &str| Err(ApiError::bad(Some("prompt"), message));
    match prompt {
        Some(Value::String(text)) => Ok(text.as_bytes().to_vec()),
        Some(Value::Array(items)) => match items.as_slice() {
            [] => bad("prompt: must not be empty"),
            [one @ (Value::String(_) | Value::Array(_))] => render_prompt(Some(one)),
            [Value::Number(_), ..] => {
                let mut out = Vec::with_capacity(items.len() * TOKEN_BYTES);
                for item in items {
                    let Some(token) = item.as_u64().and_then(|token| u32::try_from(token).ok()) else {
                        return bad("prompt: a token number is not an unsigned 32-bit number");
                    };
                    out.extend_from_slice(&token.to_le_bytes());
                }
                Ok(out)
            }
            _ => bad("prompt: this simulator takes one prompt per request"),
        },
        _ => bad("prompt: a string or an array of token numbers is required"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits<'_> = Limits { model: "m", max_model_len: 1_000, mean_output_tokens: 64.0 };

    fn chat(extra: &str) -> Result<Generation, ApiError> {
        let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hello"}}]{extra}}}"#);
        parse(Api::Chat, body.as_bytes(), LIMITS)
    }

    fn completion(prompt: &str) -> Result<Generation, ApiError> {
        parse(Api::Completions, format!(r#"{{"prompt":{prompt}}}"#).as_bytes(), LIMITS)
    }

    fn refused(result: Result<Generation, ApiError>) -> (u16, Option<&'static str>) {
        let error = result.unwrap_err();
        (error.status, error.param)
    }

    #[test]
    fn the_output_length_is_what_was_asked_for() {
        let exact = chat(r#","max_tokens":128,"min_tokens":128"#).unwrap();
        assert_eq!((exact.reply.tokens, exact.finish_reason), (128, "length"));
        let exact = chat(r#","max_completion_tokens":128,"max_tokens":5,"ignore_eos":true"#).unwrap();
        assert_eq!((exact.reply.tokens, exact.finish_reason), (128, "length"));
        assert!(chat(r#","max_tokens":2"#).unwrap().reply.tokens <= 2);
        assert!(chat(r#","min_tokens":500"#).unwrap().reply.tokens >= 500);
        assert_eq!(chat("").unwrap(), chat("").unwrap());
        assert!(completion(r#""x""#).unwrap().reply.tokens <= 16);
        assert_eq!(chat(r#","ignore_eos":true"#).unwrap().reply.tokens, 1_000 - chat("").unwrap().prompt.tokens());
    }

    #[test]
    fn prompts_come_as_text_or_tokens() {
        assert_eq!(completion("[1,2,3]").unwrap().prompt.tokens(), 3);
        assert_eq!(completion("[[1,2,3]]").unwrap().prompt.tokens(), 3);
        assert_eq!(completion(r#"["12345678"]"#).unwrap().prompt.tokens(), 2);
        let parts = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"hello"}]}]}"#;
        assert_eq!(parse(Api::Chat, parts.as_bytes(), LIMITS).unwrap().prompt, chat("").unwrap().prompt);
        assert_ne!(chat(r#","cache_salt":"s""#).unwrap().prompt, chat("").unwrap().prompt);
    }

    #[test]
    fn what_vllm_refuses_is_refused() {
        assert_eq!(refused(parse(Api::Chat, b"{", LIMITS)), (400, None));
        assert_eq!(refused(parse(Api::Chat, br#"{"model":3,"messages":[]}"#, LIMITS)), (400, None));
        assert_eq!(refused(parse(Api::Chat, br#"{"model":"m"}"#, LIMITS)), (400, Some("messages")));
        assert_eq!(refused(parse(Api::Chat, br#"{"model":"x","messages":[]}"#, LIMITS)), (404, Some("model")));
        assert_eq!(refused(chat(r#","max_tokens":0"#)), (400, Some("max_tokens")));
        assert_eq!(refused(chat(r#","max_tokens":10,"min_tokens":11"#)), (400, Some("min_tokens")));
        assert_eq!(refused(chat(r#","max_tokens":1000"#)), (400, None));
        assert_eq!(refused(chat(r#","n":2"#)), (400, Some("n")));
        assert_eq!(refused(completion(&format!("\"{}\"", "x".repeat(4_000)))), (400, None));
        assert_eq!(refused(completion("[]")), (400, Some("prompt")));
        assert_eq!(refused(completion(r#"["a","b"]"#)), (400, Some("prompt")));
        assert_eq!(refused(completion("null")), (400, Some("prompt")));
    }
}
