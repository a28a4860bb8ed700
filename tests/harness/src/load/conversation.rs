//! A conversation as chat clients have it: every turn sends all that was said before.

use serde_json::{Value, json};

use super::call::Call;
use super::report::Outcome;

/// A conversation so far.
#[derive(Debug, Clone, Default)]
pub struct Conversation {
    messages: Vec<Value>,
}

impl Conversation {
    /// An empty one, with a system prompt unless it is empty.
    #[must_use]
    pub fn new(system: &str) -> Self {
        let mut conversation = Self::default();
        if !system.is_empty() {
            conversation.push("system", system);
        }
        conversation
    }

    /// Adds a message.
    pub fn push(&mut self, role: &str, content: &str) {
        self.messages.push(json!({"role": role, "content": content}));
    }

    /// The user says something; the request that asks for an answer of exactly `tokens` tokens.
    pub fn ask(&mut self, model: &str, content: &str, tokens: u32, stream: bool) -> Call {
        self.push("user", content);
        Call::messages(model, &Value::from(self.messages.clone()), tokens, stream)
    }

    /// Adds the answer.
    pub fn hear(&mut self, outcome: &Outcome) {
        self.push("assistant", &outcome.reply());
    }

    /// All messages so far.
    #[must_use]
    pub fn messages(&self) -> &[Value] {
        &self.messages
    }

    /// The first so many bytes of what is said, for those who hash them.
    #[must_use]
    pub fn beginning(&self, bytes: usize) -> String {
        let all: String = self.messages.iter().filter_map(|message| message["content"].as_str()).collect();
        all.chars().take(bytes).collect()
    }
}
