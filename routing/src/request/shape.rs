//! Which API a path belongs to.

/// The kinds of request that carry a `model` and go to an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shape {
    /// OpenAI chat completions.
    Chat,
    /// OpenAI (legacy) completions.
    Completions,
    /// OpenAI responses.
    Responses,
    /// Anthropic messages.
    Messages,
    /// Anthropic: how many tokens messages are.
    CountTokens,
    /// OpenAI embeddings.
    Embeddings,
    /// Documents in the order of their relevance to a query.
    Rerank,
    /// How similar texts are.
    Score,
    /// Text to token ids.
    Tokenize,
    /// Token ids to text.
    Detokenize,
    /// Speech to text; the body is `multipart/form-data`.
    Transcriptions,
}

/// Whose clients talk: decides what errors look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Style {
    /// `{"error": {"message", "type", "param", "code"}}`
    #[default]
    OpenAi,
    /// `{"type": "error", "error": {"type", "message"}}`
    Anthropic,
}

impl Shape {
    /// Every shape.
    pub const ALL: [Shape; 11] = [
        Shape::Chat,
        Shape::Completions,
        Shape::Responses,
        Shape::Messages,
        Shape::CountTokens,
        Shape::Embeddings,
        Shape::Rerank,
        Shape::Score,
        Shape::Tokenize,
        Shape::Detokenize,
        Shape::Transcriptions,
    ];

    /// The shape of requests to `path` (without query).
    #[must_use]
    pub fn of_path(path: &[u8]) -> Option<Shape> {
        Some(match path {
            b"/v1/chat/completions" => Shape::Chat,
            b"/v1/completions" => Shape::Completions,
            b"/v1/responses" => Shape::Responses,
            b"/v1/messages" => Shape::Messages,
            b"/v1/messages/count_tokens" => Shape::CountTokens,
            b"/v1/embeddings" => Shape::Embeddings,
            b"/v1/rerank" | b"/rerank" | b"/v2/rerank" => Shape::Rerank,
            b"/v1/score" | b"/score" => Shape::Score,
            b"/tokenize" => Shape::Tokenize,
            b"/detokenize" => Shape::Detokenize,
            b"/v1/audio/transcriptions" | b"/v1/audio/translations" => Shape::Transcriptions,
            _ => return None,
        })
    }

    /// Whose errors its clients understand.
    #[must_use]
    pub fn style(self) -> Style {
        match self {
            Shape::Messages | Shape::CountTokens => Style::Anthropic,
            _ => Style::OpenAi,
        }
    }

    /// Whether the engine generates tokens from a prompt: only then are there output tokens and a cached prefix.
    #[must_use]
    pub fn generates(self) -> bool {
        matches!(self, Shape::Chat | Shape::Completions | Shape::Responses | Shape::Messages)
    }

    /// The field that holds most of the prompt, for errors about its length.
    #[must_use]
    pub fn prompt_field(self) -> &'static str {
        match self {
            Shape::Chat | Shape::Messages | Shape::CountTokens => "messages",
            Shape::Completions | Shape::Tokenize => "prompt",
            Shape::Responses | Shape::Embeddings => "input",
            Shape::Rerank => "documents",
            Shape::Score => "text_2",
            Shape::Detokenize => "tokens",
            Shape::Transcriptions => "file",
        }
    }

    /// Name for logs and labels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Shape::Chat => "chat",
            Shape::Completions => "completions",
            Shape::Responses => "responses",
            Shape::Messages => "messages",
            Shape::CountTokens => "count_tokens",
            Shape::Embeddings => "embeddings",
            Shape::Rerank => "rerank",
            Shape::Score => "score",
            Shape::Tokenize => "tokenize",
            Shape::Detokenize => "detokenize",
            Shape::Transcriptions => "transcriptions",
        }
    }
}
