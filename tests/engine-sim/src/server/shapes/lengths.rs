//! How many tokens an answer has, and why it ends.

use super::super::prompt::natural_length;
use super::{ApiError, Limits, Raw, Shape};

/// Tokens to generate and the finish reason, or why the request does not fit.
pub(super) fn output(
    shape: Shape,
    raw: &Raw,
    prompt_tokens: u64,
    seed: u64,
    limits: Limits<'_>,
) -> Result<(u64, &'static str), ApiError> {
    let window = limits.max_model_len;
    let too_long = |asked: String| {
        let message = format!(
            "This model's maximum context length is {window} tokens. However, {asked} Please reduce the length of the \
             input messages or the number of requested output tokens."
        );
        Err(ApiError::bad(Some("input_tokens"), message))
    };
    let room = window.saturating_sub(prompt_tokens);
    if room == 0 {
        return too_long(format!("your request has {prompt_tokens} input tokens."));
    }
    let (given, field) = match shape {
        Shape::Chat => (raw.max_completion_tokens.or(raw.max_tokens), "max_tokens"),
        Shape::Completions => (Some(raw.max_tokens.unwrap_or(16)), "max_tokens"),
        Shape::Responses => (raw.max_output_tokens, "max_output_tokens"),
        Shape::Messages => match raw.max_tokens {
            None => return Err(ApiError::bad(Some("max_tokens"), "max_tokens: Field required")),
            given => (given, "max_tokens"),
        },
        // One forward pass and nothing generated; the model of time calls that one token.
        Shape::Embeddings | Shape::Rerank | Shape::Score => return Ok((1, "stop")),
        Shape::Transcriptions => (None, "max_tokens"),
    };
    let max = match given {
        None => room,
        Some(max) => match u64::try_from(max) {
            Ok(max @ 1..) => max,
            _ => return Err(ApiError::bad(Some(field), format!("{field} must be at least 1, got {max}."))),
        },
    };
    if max > room {
        return too_long(format!(
            "you requested {max} output tokens and your prompt contains {prompt_tokens} input tokens, for a total of \
             {} tokens.",
            prompt_tokens.saturating_add(max)
        ));
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
