//! Conversations: a plain chat template, shared by every shape that has messages.

use serde_json::Value;

use super::{ApiError, Message, Raw};

/// Ends a message.
pub(super) const END: &[u8] = b"<|end|>";

/// A whole chat prompt, ready for the reply.
pub(super) fn read(raw: &Raw) -> Result<Vec<u8>, ApiError> {
    let mut out = Vec::new();
    tools(raw.tools.as_ref(), &mut out);
    messages(raw, &mut out)?;
    Ok(out)
}

/// All messages, of which there must be one, and the beginning of the reply.
pub(super) fn messages(raw: &Raw, out: &mut Vec<u8>) -> Result<(), ApiError> {
    let messages = raw.messages.as_deref().unwrap_or(&[]);
    if messages.is_empty() {
        return Err(ApiError::bad(Some("messages"), "messages: at least one message is required"));
    }
    for message in messages {
        self::message(message, out)?;
    }
    ready(out);
    Ok(())
}

/// Tool definitions stand at the beginning, as in most templates.
pub(super) fn tools(tools: Option<&Value>, out: &mut Vec<u8>) {
    if let Some(tools) = tools.filter(|tools| !tools.is_null()) {
        out.extend_from_slice(tools.to_string().as_bytes());
    }
}

/// The reply begins here. A turn's rendering with its reply is the beginning of the next turn's.
pub(super) fn ready(out: &mut Vec<u8>) {
    open("assistant", out);
}

/// A message begins.
pub(super) fn open(role: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"<|");
    out.extend_from_slice(role.as_bytes());
    out.extend_from_slice(b"|>");
}

fn message(message: &Message, out: &mut Vec<u8>) -> Result<(), ApiError> {
    open(&message.role, out);
    content(message.content.as_ref(), "messages", out)?;
    if let Some(calls) = message.tool_calls.as_ref().filter(|calls| !calls.is_null()) {
        out.extend_from_slice(calls.to_string().as_bytes());
    }
    out.extend_from_slice(END);
    Ok(())
}

/// A text, a list of parts, or nothing.
pub(super) fn content(content: Option<&Value>, param: &'static str, out: &mut Vec<u8>) -> Result<(), ApiError> {
    match content {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) => out.extend_from_slice(text.as_bytes()),
        Some(Value::Array(parts)) => parts.iter().for_each(|part| self::part(part, out)),
        Some(_) => {
            return Err(ApiError::bad(Some(param), format!("{param}: content must be a string or an array of parts")));
        }
    }
    Ok(())
}

fn part(part: &Value, out: &mut Vec<u8>) {
    match part.get("text").and_then(Value::as_str) {
        Some(text) => out.extend_from_slice(text.as_bytes()),
        None => out.extend_from_slice(part.to_string().as_bytes()),
    }
}
