//! Plain prompts: a text, or token numbers; or an array of these.

use serde_json::Value;

use super::super::prompt::TOKEN_BYTES;
use super::ApiError;

/// The prompts under the field `param`.
pub(super) fn read(prompt: Option<&Value>, param: &'static str) -> Result<Vec<Vec<u8>>, ApiError> {
    match prompt {
        Some(text @ Value::String(_)) => Ok(vec![one(text, param)?]),
        Some(Value::Array(items)) => match items.as_slice() {
            [] => Err(bad(param, "must not be empty")),
            [Value::Number(_), ..] => Ok(vec![ids(items, param)?]),
            _ => items.iter().map(|item| one(item, param)).collect(),
        },
        _ => Err(bad(param, "a string or an array of token numbers is required")),
    }
}

/// A text or an array of token numbers.
pub(super) fn one(prompt: &Value, param: &'static str) -> Result<Vec<u8>, ApiError> {
    match prompt {
        Value::String(text) => Ok(text.as_bytes().to_vec()),
        Value::Array(items) if !items.is_empty() => ids(items, param),
        _ => Err(bad(param, "neither a string nor an array of token numbers")),
    }
}

/// Token numbers as the bytes they stand for.
pub(super) fn ids(ids: &[Value], param: &'static str) -> Result<Vec<u8>, ApiError> {
    let mut out = Vec::with_capacity(ids.len() * TOKEN_BYTES);
    for id in ids {
        let Some(id) = id.as_u64().and_then(|id| u32::try_from(id).ok()) else {
            return Err(bad(param, "a token number is not an unsigned 32-bit number"));
        };
        out.extend_from_slice(&id.to_le_bytes());
    }
    Ok(out)
}

fn bad(param: &'static str, message: &str) -> ApiError {
    ApiError::bad(Some(param), format!("{param}: {message}"))
}
