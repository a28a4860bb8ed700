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
    /// One for each prompt and each of `n`, by index; at least one.
    pub(crate) choices: Vec<Choice>,
    /// Over all prompts; `n` does not count.
    pub(crate) prompt_tokens: u64,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
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

/// What the engine allows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits<'a> {
    pub(crate) model: &'a str,
    pub(crate) max_model_len: u64,
    pub(crate) mean_output_tokens: f64,
}

/// The most choices of one prompt.
const MAX_N: u64 = 128;

/// Reads a request body.
pub(crate) fn parse(api: Api, body: &[u8], limits: Limits<'_>) -> Result<Generation, ApiError> {
    let raw: Raw = serde_json::from_slice(body).map_err(|error| ApiError::bad(None, error.to_string()))?;
    let model = limits.model;
    if let Some(wanted) = raw.model.as_deref().filter(|wanted| *wanted != model) {
        return Err(ApiError::not_found(Some("model"), format!("The model `{wanted}` does not exist.")));
    }
    let n = raw.n.unwrap_or(1);
    let Some(n) = u64::try_from(n).ok().filter(|n| (1..=MAX_N).contains(n)) else {
        return Err(ApiError::bad(Some("n"), format!("n must be between 1 and {MAX_N}, got {n}.")));
    };
    let rendered = match api {
        Api::Chat => vec![render_chat(&raw)?],
        Api::Completions => render_prompts(raw.prompt.as_ref())?,
    };
    let mut choices = Vec::new();
    let mut prompt_tokens = 0;
    for bytes in rendered {
        let prompt = Prompt::new(bytes, &[model, raw.cache_salt.as_deref().unwrap_or("")]);
        let hash = prompt.hash();
        prompt_tokens += prompt.tokens();
        for nth in 0..n {
            let seed = hash.wrapping_add(nth);
            let (tokens, finish_reason) = output_length(api, &raw, prompt.tokens(), seed, limits)?;
            let reply = Reply::new(seed, tokens);
            choices.push(Choice { prompt: prompt.clone(), is_first: nth == 0, reply, finish_reason });
        }
    }
    Ok(Generation {
        api,
        choices,
        prompt_tokens,
        stream: raw.stream.unwrap_or(false),
        include_usage: raw.stream_options.and_then(|options| options.include_usage).unwrap_or(false),
    })
}

fn output_length(
    api: Api,
    raw: &Raw,
    prompt_tokens: u64,
    seed: u64,
    limits: Limits<'_>,
) -> Result<(u64, &'static str), ApiError> {
    let window = limits.max_model_len;
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
    let natural = natural_length(seed, limits.mean_output_tokens).max(min);
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

/// A text, or token numbers; or an array of these.
fn render_prompts(prompt: Option<&Value>) -> Result<Vec<Vec<u8>>, ApiError> {
    let bad = |message: &str| ApiError::bad(Some("prompt"), message);
    match prompt {
        Some(text @ Value::String(_)) => Ok(vec![render_prompt(text)?]),
        Some(Value::Array(items)) => match items.as_slice() {
            [] => Err(bad("prompt: must not be empty")),
            [Value::Number(_), ..] => Ok(vec![render_ids(items)?]),
            _ => items.iter().map(render_prompt).collect(),
        },
        _ => Err(bad("prompt: a string or an array of token numbers is required")),
    }
}

fn render_prompt(prompt: &Value) -> Result<Vec<u8>, ApiError> {
    match prompt {
        Value::String(text) => Ok(text.as_bytes().to_vec()),
        Value::Array(ids) if !ids.is_empty() => render_ids(ids),
        _ => Err(ApiError::bad(Some("prompt"), "prompt: neither a string nor an array of token numbers")),
    }
}

fn render_ids(ids: &[Value]) -> Result<Vec<u8>, ApiError> {
    let mut out = Vec::with_capacity(ids.len() * TOKEN_BYTES);
    for id in ids {
        let Some(id) = id.as_u64().and_then(|id| u32::try_from(id).ok()) else {
            return Err(ApiError::bad(Some("prompt"), "prompt: a token number is not an unsigned 32-bit number"));
        };
        out.extend_from_slice(&id.to_le_bytes());
    }
    Ok(out)
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

    fn only(result: Result<Generation, ApiError>) -> Choice {
        let mut choices = result.unwrap().choices;
        assert_eq!(choices.len(), 1);
        choices.remove(0)
    }

    fn refused(result: Result<Generation, ApiError>) -> (u16, Option<&'static str>) {
        let error = result.unwrap_err();
        (error.status, error.param)
    }

    #[test]
    fn the_output_length_is_what_was_asked_for() {
        let exact = only(chat(r#","max_tokens":128,"min_tokens":128"#));
        assert_eq!((exact.reply.tokens, exact.finish_reason), (128, "length"));
        let exact = only(chat(r#","max_completion_tokens":128,"max_tokens":5,"ignore_eos":true"#));
        assert_eq!((exact.reply.tokens, exact.finish_reason), (128, "length"));
        assert!(only(chat(r#","max_tokens":2"#)).reply.tokens <= 2);
        assert!(only(chat(r#","min_tokens":500"#)).reply.tokens >= 500);
        assert_eq!(chat("").unwrap(), chat("").unwrap());
        assert!(only(completion(r#""x""#)).reply.tokens <= 16);
        assert_eq!(only(chat(r#","ignore_eos":true"#)).reply.tokens, 1_000 - chat("").unwrap().prompt_tokens);
    }

    #[test]
    fn prompts_come_as_text_or_tokens() {
        assert_eq!(completion("[1,2,3]").unwrap().prompt_tokens, 3);
        assert_eq!(completion("[[1,2,3]]").unwrap().prompt_tokens, 3);
        assert_eq!(completion(r#"["12345678"]"#).unwrap().prompt_tokens, 2);
        let parts = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"hello"}]}]}"#;
        assert_eq!(parse(Api::Chat, parts.as_bytes(), LIMITS), chat(""));
        assert_ne!(only(chat(r#","cache_salt":"s""#)).prompt, only(chat("")).prompt);
    }

    #[test]
    fn several_prompts_and_several_choices_of_each() {
        let body = br#"{"prompt":["a",[1,2]],"n":2}"#;
        let several = parse(Api::Completions, body, LIMITS).unwrap();
        assert_eq!((several.choices.len(), several.prompt_tokens), (4, 3));
        let firsts: Vec<bool> = several.choices.iter().map(|choice| choice.is_first).collect();
        assert_eq!(firsts, [true, false, true, false]);
        assert_eq!(several.choices[0].prompt, several.choices[1].prompt);
        assert_ne!(several.choices[0].reply, several.choices[1].reply);
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
        assert_eq!(refused(chat(r#","n":0"#)), (400, Some("n")));
        assert_eq!(refused(completion(&format!("\"{}\"", "x".repeat(4_000)))), (400, None));
        assert_eq!(refused(completion("[]")), (400, Some("prompt")));
        assert_eq!(refused(completion(r#"["a",7]"#)), (400, Some("prompt")));
        assert_eq!(refused(completion("null")), (400, Some("prompt")));
    }
}
