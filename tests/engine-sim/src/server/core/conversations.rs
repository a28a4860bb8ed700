//! Conversations that `/v1/responses` can go on from.

use std::collections::{HashMap, VecDeque};

/// The most that are kept; the oldest is forgotten first.
const LIMIT: usize = 10_000;

/// Rendered conversations by response id.
#[derive(Debug, Default)]
pub(super) struct Conversations {
    by_id: HashMap<String, Vec<u8>>,
    order: VecDeque<String>,
}

impl Conversations {
    pub(super) fn put(&mut self, id: String, conversation: Vec<u8>) {
        if self.order.len() >= LIMIT
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_id.remove(&oldest);
        }
        self.order.push_back(id.clone());
        self.by_id.insert(id, conversation);
    }

    pub(super) fn get(&self, id: &str) -> Option<Vec<u8>> {
        self.by_id.get(id).cloned()
    }
}
