//! `/tokenize`, `/detokenize` and `/v1/messages/count_tokens`: nothing runs, so nothing waits.

use serde_json::{Value, json};

use super::super::prompt::TOKEN_BYTES;
use super::{ApiError, Limits, Raw, chat, completions, messages};

/// The answer to `POST /tokenize`, of a `prompt` or of `messages`.
pub(crate) fn tokenize(body: &[u8], limits: Limits<'_>) -> Result<Value, ApiError> {
    let raw = raw(body, limits)?;
    let bytes = match (&raw.prompt, &raw.messages) {
        (Some(prompt @ Value::String(_)), _) => completions::one(prompt, "prompt")?,
        (None, Some(_)) => chat::read(&raw)?,
        _ => return Err(ApiError::bad(Some("prompt"), "prompt: a string, or messages, are required")),
    };
    let tokens: Vec<u32> = bytes
        .chunks(TOKEN_BYTES)
        .map(|chunk| {
            let mut token = [0; TOKEN_BYTES];
            token[..chunk.len()].copy_from_slice(chunk);
            u32::from_le_bytes(token)
        })
        .collect();
    Ok(json!({"count": tokens.len(), "max_model_len": limits.max_model_len, "tokens": tokens, "token_strs": null}))
}

/// The answer to `POST /detokenize`.
pub(crate) fn detokenize(body: &[u8], limits: Limits<'_>) -> Result<Value, ApiError> {
    let value: Value = serde_json::from_slice(body).map_err(|error| ApiError::bad(None, error.to_string()))?;
    limits.model(value.get("model").and_then(Value::as_str))?;
    let Some(Value::Array(tokens)) = value.get("tokens") else {
        return Err(ApiError::bad(Some("tokens"), "tokens: an array of token numbers is required"));
    };
    let mut bytes = completions::ids(tokens, "tokens")?;
    // The last token may have been shorter than the others.
    let text = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    bytes.truncate(text);
    Ok(json!({"prompt": String::from_utf8_lossy(&bytes)}))
}

/// The answer to `POST /v1/messages/count_tokens`.
pub(crate) fn count(body: &[u8], limits: Limits<'_>) -> Result<Value, ApiError> {
    let bytes = messages::read(&raw(body, limits)?)?;
    Ok(json!({"input_tokens": bytes.len().div_ceil(TOKEN_BYTES)}))
}

fn raw(body: &[u8], limits: Limits<'_>) -> Result<Raw, ApiError> {
    let raw: Raw = serde_json::from_slice(body).map_err(|error| ApiError::bad(None, error.to_string()))?;
    limits.model(raw.model.as_deref())?;
    Ok(raw)
}
