//! What is known of one prompt field: how much text, how many images, and the hashes of its prefixes.

use super::RequestError;
use crate::prefix::checkpoints::{Trail, mix};

/// Text of one message after which the first checkpoint inside it comes; the next at twice as much, and so on.
const FIRST_MARK: u64 = 4096;

/// How a prompt field is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Messages, items, prompts: a checkpoint after each.
    Conversation,
    /// Text, or content parts; no checkpoint inside.
    Blocks,
    /// JSON that is shown to the model as such.
    Definitions,
}

/// Counts and hashes of one prompt field.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) form: Form,
    /// Whether a bare string means a user's message with that content.
    pub(super) is_user_text: bool,
    /// What is wrong with its type.
    pub(super) error: Option<RequestError>,
    /// Bytes of JSON that are text.
    pub(super) bytes: u64,
    pub(super) token_ids: u64,
    pub(super) images: u32,
    /// Canonical text hashed so far, 4 bytes for a token id.
    pub(super) text: u64,
    /// Where hashing stops; 0 when there is none.
    limit: u64,
    /// Hash of the whole field, or of all messages so far.
    pub(super) hash: u64,
    /// Text of the message so far, and where its next checkpoint comes.
    message_text: u64,
    mark: u64,
    /// Whether the message at hand is a system prompt.
    pub(super) is_system: bool,
    pub(super) trail: Trail,
}

impl Section {
    pub(super) fn new(form: Form, limit: u64) -> Self {
        Section {
            form,
            is_user_text: false,
            error: None,
            bytes: 0,
            token_ids: 0,
            images: 0,
            text: 0,
            limit,
            hash: 0,
            message_text: 0,
            mark: FIRST_MARK,
            is_system: false,
            trail: Trail::default(),
        }
    }

    /// Whether what comes now still counts for the hashes.
    pub(super) fn hashes(&self) -> bool {
        self.text < self.limit
    }

    /// How much text may come until [`Section::add_text`] has to be told.
    pub(super) fn room(&self) -> u64 {
        let to_limit = self.limit.saturating_sub(self.text);
        if self.form == Form::Conversation {
            to_limit.min(self.mark.saturating_sub(self.message_text))
        } else {
            to_limit
        }
    }

    /// Counts canonical text; true when a checkpoint inside the message is due.
    pub(super) fn add_text(&mut self, bytes: u64) -> bool {
        self.text += bytes;
        self.message_text += bytes;
        if self.form != Form::Conversation || (self.message_text < self.mark && self.text < self.limit) {
            return false;
        }
        while self.mark <= self.message_text {
            self.mark *= 2;
        }
        true
    }

    /// Counts text in which no checkpoint can be.
    pub(super) fn add_between(&mut self, bytes: u64) {
        self.text += bytes;
    }

    /// A checkpoint inside a message: `hash` of the message so far; `pending` bytes are not in [`Section::bytes`] yet.
    pub(super) fn checkpoint(&mut self, hash: u64, pending: u64) {
        self.trail.offer(hash, self.text, self.bytes + 4 * self.token_ids + pending);
    }

    /// A message is complete.
    pub(super) fn message(&mut self, hash: u64) {
        if !self.hashes() {
            return;
        }
        self.hash = mix(self.hash, hash);
        if !std::mem::take(&mut self.is_system) {
            self.trail.offer_home(self.hash);
        }
        self.trail.offer(self.hash, self.text, self.bytes + 4 * self.token_ids);
        self.message_text = 0;
        self.mark = FIRST_MARK;
    }

    /// Hash of the field; what came after the limit counts by its length.
    pub(super) fn identity(&self) -> u64 {
        if self.hashes() { self.hash } else { mix(self.hash, self.bytes) }
    }
}
