//! Keys: the current one, and the ones that mean something.

use xxhash_rust::xxh3::xxh3_64;

use super::shape::Shape;
use crate::prefix::checkpoints::mix;

/// The key that was read last. Long ones are folded: only their hash is known.
#[derive(Debug)]
pub(super) struct KeyBuffer {
    bytes: [u8; 64],
    length: usize,
    folded: Option<u64>,
    /// Bytes of the whole key.
    pub(super) total: u64,
}

impl KeyBuffer {
    pub(super) fn new() -> Self {
        KeyBuffer { bytes: [0; 64], length: 0, folded: None, total: 0 }
    }

    pub(super) fn clear(&mut self) {
        self.length = 0;
        self.folded = None;
        self.total = 0;
    }

    pub(super) fn push(&mut self, piece: &[u8]) {
        self.total += piece.len() as u64;
        let mut rest = piece;
        while !rest.is_empty() {
            let Some(room) = self.bytes.get_mut(self.length..).filter(|room| !room.is_empty()) else {
                self.folded = Some(mix(self.folded.unwrap_or_default(), xxh3_64(&self.bytes)));
                self.length = 0;
                continue;
            };
            let fits = room.len().min(rest.len());
            let (now, later) = rest.split_at_checked(fits).unwrap_or((rest, &[]));
            for (to, from) in room.iter_mut().zip(now) {
                *to = *from;
            }
            self.length += fits;
            rest = later;
        }
    }

    /// The key, or nothing when it is longer than any that means something.
    pub(super) fn as_bytes(&self) -> &[u8] {
        if self.folded.is_some() { &[] } else { self.bytes.get(..self.length).unwrap_or_default() }
    }

    pub(super) fn hash(&self) -> u64 {
        let last = xxh3_64(self.bytes.get(..self.length).unwrap_or_default());
        self.folded.map_or(last, |folded| mix(folded, last))
    }
}

/// A key of the outermost object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Field {
    Other,
    Model,
    Stream,
    MaxCompletionTokens,
    MaxOutputTokens,
    MaxTokens,
    CacheSalt,
    PreviousResponse,
    User,
    // What the engine sees first.
    Tools,
    Functions,
    System,
    Instructions,
    // The prompt proper.
    Messages,
    Prompt,
    Input,
    Tokens,
    Query,
    Documents,
    FirstText,
    SecondText,
}

impl Field {
    /// What `key` is in a request of this shape.
    pub(super) fn of(shape: Shape, key: &[u8]) -> Field {
        use Field::*;
        match (key, shape) {
            (b"model", _) => Model,
            (b"stream", _) => Stream,
            (b"max_tokens", Shape::Chat | Shape::Completions | Shape::Messages) => MaxTokens,
            (b"max_completion_tokens", Shape::Chat) => MaxCompletionTokens,
            (b"max_output_tokens", Shape::Responses) => MaxOutputTokens,
            (b"cache_salt", _) => CacheSalt,
            (b"user", _) => User,
            (b"previous_response_id", Shape::Responses) => PreviousResponse,
            (b"tools", Shape::Chat | Shape::Responses | Shape::Messages | Shape::CountTokens | Shape::Tokenize) => {
                Tools
            }
            (b"functions", Shape::Chat) => Functions,
            (b"system", Shape::Messages | Shape::CountTokens) => System,
            (b"instructions", Shape::Responses) => Instructions,
            (b"messages", Shape::Chat | Shape::Messages | Shape::CountTokens | Shape::Embeddings | Shape::Tokenize) => {
                Messages
            }
            (b"prompt", Shape::Completions | Shape::Tokenize) => Prompt,
            (b"input", Shape::Responses | Shape::Embeddings) => Input,
            (b"tokens", Shape::Detokenize) => Tokens,
            (b"query", Shape::Rerank) | (b"queries" | b"data_1", Shape::Score) => Query,
            (b"documents", Shape::Rerank | Shape::Score) | (b"data_2", Shape::Score) => Documents,
            (b"text_1", Shape::Score) => FirstText,
            (b"text_2", Shape::Score) => SecondText,
            _ => Other,
        }
    }

    /// Whether it holds text that the engine reads.
    pub(super) fn is_prompt(self) -> bool {
        self >= Field::Tools
    }

    /// Whether the engine reads it before the conversation.
    pub(super) fn is_preamble(self) -> bool {
        self.is_prompt() && self < Field::Messages
    }

    /// Its key, where an error may have to name it.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Field::Messages => "messages",
            Field::Prompt => "prompt",
            Field::Input => "input",
            _ => "model",
        }
    }
}

/// A key inside a message or a content part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    /// The text of a content part.
    Text,
    /// Text, or content parts.
    Content,
    /// Names, roles, ids: part of the prefix, hardly text.
    Label,
    /// Images, sound, files: part of the prefix, no text.
    Media,
    /// No part of the prefix: hints to the server, or what it added to its answer. They come and go between turns.
    Ignored,
    /// Anything else: part of the prefix, its strings are text.
    Other,
}

impl Name {
    /// What `key` is in a message (or item), or in one of its parts.
    pub(super) fn of(key: &[u8], message: bool) -> Name {
        match key {
            b"text" => Name::Text,
            b"content" | b"output" | b"summary" | b"tool_calls" => Name::Content,
            b"role" | b"type" | b"name" | b"tool_call_id" | b"call_id" | b"tool_use_id" | b"signature" | b"detail"
            | b"format" | b"media_type" | b"encrypted_content" | b"file_id" | b"filename" => Name::Label,
            b"id" if !message => Name::Label,
            b"image_url" | b"input_audio" | b"audio_url" | b"video_url" | b"source" | b"image" | b"audio"
            | b"video" | b"file" | b"file_data" | b"file_url" => Name::Media,
            b"id" | b"cache_control" | b"status" | b"annotations" | b"logprobs" | b"citations" => Name::Ignored,
            _ => Name::Other,
        }
    }
}
