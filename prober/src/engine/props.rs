//! llama.cpp's `/props`: the context of a slot, and how many slots there are.

use serde_json::Value;

/// What `/props` tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Props {
    /// Tokens that one request may have: `default_generation_settings.n_ctx`.
    pub window: Option<u32>,
    /// Requests at once: `total_slots`.
    pub slots: Option<u64>,
}

impl Props {
    /// Reads the page. What is missing, or is no number, is unknown.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let Ok(page) = serde_json::from_str::<Value>(text) else { return Props::default() };
        let positive = |at| page.pointer(at).and_then(Value::as_u64).filter(|number| *number > 0);
        Props {
            window: positive("/default_generation_settings/n_ctx").and_then(|tokens| u32::try_from(tokens).ok()),
            slots: positive("/total_slots"),
        }
    }

    /// Tokens that the KV cache holds: every slot has a context of its own.
    #[must_use]
    pub fn kv_tokens(self) -> Option<u64> {
        self.slots?.checked_mul(self.window?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_and_capacity_are_read() {
        let page =
            r#"{"default_generation_settings": {"n_ctx": 8192, "params": {}}, "total_slots": 4, "model_path": "m"}"#;
        let props = Props::parse(page);
        assert_eq!((props.window, props.kv_tokens()), (Some(8192), Some(32_768)));
    }

    #[test]
    fn what_is_missing_is_unknown() {
        assert_eq!(Props::parse(r#"{"default_generation_settings": {"n_ctx": 8192}}"#).kv_tokens(), None);
        for page in ["", "[]", "{}", r#"{"default_generation_settings": {"n_ctx": 0}, "total_slots": "4"}"#] {
            assert_eq!(Props::parse(page), Props::default(), "{page}");
        }
    }
}
