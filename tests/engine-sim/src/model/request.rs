//! What goes into the model and what comes out.

use super::Nanos;

/// One sequence to generate.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The caller's name for it; unique among those that run or wait.
    pub id: u64,
    /// Length of the prompt in tokens, at least 1.
    pub prompt_tokens: u64,
    /// Tokens that will be generated, at least 1.
    pub output_tokens: u64,
    /// Chain hashes of the prompt's full blocks, first block first. Empty: nothing is shared.
    pub prompt_blocks: Vec<u64>,
    /// Chain hashes of the blocks that the output fills; cached once the request is done, so that the next turn of a
    /// conversation finds the reply.
    pub output_blocks: Vec<u64>,
    /// Whether each token is an event ([`super::EventKind::Tokens`]) at the time of its step.
    pub stream: bool,
    /// This sequence takes `slow` times as many steps and as much prefill; at least 1.
    pub slow: f64,
}

impl Request {
    /// A request that shares no prefix, does not stream and is not slowed.
    pub fn new(id: u64, prompt_tokens: u64, output_tokens: u64) -> Self {
        Self {
            id,
            prompt_tokens,
            output_tokens,
            prompt_blocks: Vec::new(),
            output_blocks: Vec::new(),
            stream: false,
            slow: 1.0,
        }
    }

    /// The same with a token event per step.
    #[must_use]
    pub fn streaming(mut self) -> Self {
        self.stream = true;
        self
    }

    /// The same with block hashes.
    #[must_use]
    pub fn with_blocks(mut self, prompt: Vec<u64>, output: Vec<u64>) -> Self {
        self.prompt_blocks = prompt;
        self.output_blocks = output;
        self
    }
}

/// Why a request was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// No prompt or no output.
    #[error("prompt and output need at least one token each")]
    Empty,
    /// Longer than `max_model_len`.
    #[error("{tokens} tokens are more than the {limit} of the context window")]
    TooLong {
        /// Prompt plus output.
        tokens: u64,
        /// `max_model_len`.
        limit: u64,
    },
    /// `slow` below 1, or not a number.
    #[error("the slowdown factor must be a number from 1")]
    BadFactor,
}

/// Something that happened at a point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The request it happened to.
    pub id: u64,
    /// When.
    pub at: Nanos,
    /// What.
    pub kind: EventKind,
}

/// What happened to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// It left the engine's queue; so many of its prompt tokens were in the cache.
    Admitted {
        /// Prompt tokens that need no prefill.
        cached_tokens: u64,
    },
    /// Its first token is there (streaming or not).
    FirstToken,
    /// So many new tokens (streaming requests only). One per event when the caller advances from event to event; more when
    /// it advances further.
    Tokens {
        /// New tokens since the last such event.
        count: u64,
    },
    /// All its tokens are generated and its slot is free.
    Finished {
        /// Tokens generated in all.
        output_tokens: u64,
    },
}
