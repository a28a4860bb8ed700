//! Room for bodies of so many bytes (the filter's `max_body`) and a little more, so that the filter's own 413, which names its
//! limit, comes first. What a connection may buffer bounds no body on a route that has a limit of its own, and stays as it is.

use serde_json::Value;

use crate::visit;

/// What Envoy buffers beyond the filter's `max_body`, as in the shipped files: 17 MiB for 16.
const ABOVE_MAX_BODY_BYTES: u64 = 1 << 20;
const LIMIT: &str = "request_body_buffer_limit";

/// Raises every limit that is lower; where there is room already, nothing changes.
pub fn make(config: &mut Value, max_body_bytes: u64) {
    let limit = max_body_bytes.saturating_add(ABOVE_MAX_BODY_BYTES);
    let mut raised = Vec::new();
    visit(config, &mut |object| {
        if let Some(old) = object.get(LIMIT).and_then(Value::as_u64).filter(|old| *old < limit) {
            object.insert(LIMIT.to_owned(), limit.into());
            raised.push(old.to_string());
        }
    });
    // Envoy's own 413 names the limit, too.
    visit(config, &mut |object| {
        if let Some(Value::String(message)) = object.get_mut("message")
            && let Some(old) = raised.iter().find(|old| message.contains(old.as_str()))
        {
            *message = message.replace(old.as_str(), &limit.to_string());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn limits_are_raised_and_never_lowered() {
        let mut config = json!({"routes": [{LIMIT: 17_825_792}, {LIMIT: 90_000_000}],
            "error": {"message": "larger than 17825792 bytes"}});
        make(&mut config, 32 << 20);
        assert_eq!(
            config,
            json!({"routes": [{LIMIT: 34_603_008}, {LIMIT: 90_000_000}],
            "error": {"message": "larger than 34603008 bytes"}})
        );
        let known = config.clone();
        make(&mut config, 1 << 20);
        assert_eq!(config, known);
    }
}
