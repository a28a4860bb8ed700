//! What routing needs to know of a request, read while the body arrives, in one pass and without keeping it.
//!
//! Which fields those are depends on the [`Shape`]; `model` is required in all. A key that comes twice counts as its last
//! value, as JSON readers have it. Fields that nobody here needs are none of our business, whatever is in them: the engine
//! judges them.
//!
//! - [`shape`]: which API a path belongs to.
//! - `fields`: the fields of the outermost object.
//! - `walker`, `section`: through a prompt field, its [checkpoints](crate::prefix::checkpoints).
//! - [`encoding`]: gzip and deflate; [`multipart`]: forms.

pub mod encoding;
mod fields;
mod key;
pub mod multipart;
mod section;
pub mod shape;
mod walker;
pub mod wish;

use encoding::{Decoder, Encoding, Parse};
use fields::Fields;
use multipart::{Form, FormError};
pub use shape::{Shape, Style};

use crate::json::{JsonError, Scanner};
use crate::prefix::Checkpoints;

/// A request that could be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The model asked for. Longer names than a snapshot can hold are cut; no pool has them.
    pub model: String,
    /// Where the value of `model` stands in the body, quotes included: first byte and first byte after. `None` where it
    /// cannot be replaced in place: in a form, or in an encoded body.
    pub model_span: Option<(u64, u64)>,
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// The most tokens that may be generated (`max_completion_tokens`, `max_output_tokens`, `max_tokens`, the first of
    /// these that is a whole number).
    pub max_output: Option<u64>,
    /// What is known of the prompt.
    pub prompt: Prompt,
    /// xxh3 of `previous_response_id`: the conversation goes on where that response ended.
    pub previous_response: Option<u64>,
    /// xxh3 of `user`, where it is a string: whom [fairness](crate::snapshot::Fairness) may be between. Never 0.
    pub user: Option<u64>,
}

/// What is known of a prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompt {
    /// Bytes of JSON that are text, escapes included; images, roles and ids are not text.
    pub bytes: u64,
    /// Token ids where text could be.
    pub token_ids: u64,
    /// Images, sounds and files.
    pub images: u32,
    /// Where a prefix may end.
    pub checkpoints: Checkpoints,
}

/// Why a request could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The body is not JSON.
    #[error("the request body is not valid JSON: {0}")]
    Json(#[from] JsonError),
    /// The body is JSON, but not an object.
    #[error("the request body is {0}: expected a JSON object")]
    NotAnObject(&'static str),
    /// No `model`.
    #[error("model is missing: expected the name of a model as a string")]
    NoModel,
    /// `model` is something else than a string.
    #[error("model is {0}: expected the name of a model as a string")]
    ModelKind(&'static str),
    /// `model` is `""`.
    #[error("model is empty: expected the name of a model")]
    EmptyModel,
    /// A prompt field has the wrong type.
    #[error("{field} is {found}: expected {expected}")]
    Kind {
        /// Its key.
        field: &'static str,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// A message is no object.
    #[error("messages[{index}] is {found}: expected an object")]
    ItemKind {
        /// Which.
        index: u64,
        /// What it is.
        found: &'static str,
    },
    /// The body is no form, or none with a `model`.
    #[error("the request body is not valid multipart/form-data: {0}")]
    Form(#[from] FormError),
    /// An encoding that is not supported.
    #[error("content-encoding {0} is not supported: expected identity, gzip or deflate")]
    Encoding(String),
    /// The encoded body cannot be decoded.
    #[error("the request body is not valid {encoding}: {why}")]
    Broken {
        /// What it should be.
        encoding: &'static str,
        /// What the decoder says.
        why: String,
    },
    /// Decoded, the body is larger than this many bytes.
    #[error("The request body is larger than {0} bytes (filter.max_body) when it is decoded.")]
    TooLarge(u64),
}

impl RequestError {
    /// The field to blame, when it is one.
    #[must_use]
    pub fn param(&self) -> Option<&'static str> {
        match self {
            RequestError::Json(_)
            | RequestError::NotAnObject(_)
            | RequestError::Form(_)
            | RequestError::Encoding(_)
            | RequestError::Broken { .. }
            | RequestError::TooLarge(_) => None,
            RequestError::NoModel | RequestError::ModelKind(_) | RequestError::EmptyModel => Some("model"),
            RequestError::Kind { field, .. } => Some(field),
            RequestError::ItemKind { .. } => Some("messages"),
        }
    }

    /// The HTTP status that says so.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            RequestError::Encoding(_) => 415,
            RequestError::TooLarge(_) => 413,
            _ => 400,
        }
    }
}

#[derive(Debug)]
struct Json {
    scanner: Scanner,
    fields: Fields,
}

impl Json {
    fn body(shape: Shape, prefix_bytes: u64) -> Body {
        Body::Json(Box::new(Json { scanner: Scanner::default(), fields: Fields::new(shape, prefix_bytes) }))
    }
}

/// A body in its own format.
#[derive(Debug)]
enum Body {
    Json(Box<Json>),
    Form(Form),
}

impl Parse for Body {
    fn feed(&mut self, piece: &[u8]) -> Result<(), RequestError> {
        match self {
            Body::Json(json) => Ok(json.scanner.feed(piece, &mut json.fields)?),
            Body::Form(form) => form.feed(piece),
        }
    }
}

/// What the headers say about a body.
#[derive(Debug, Clone, Copy, Default)]
pub struct Headers<'a> {
    /// `content-type`; only forms need it.
    pub content_type: &'a [u8],
    /// `content-encoding`; empty when there is none.
    pub content_encoding: &'a [u8],
}

/// Reads one body.
#[derive(Debug)]
pub struct Reader {
    body: Decoder<Body>,
}

impl Reader {
    /// Reads a JSON body of this shape. Checkpoints cover the first `prefix_bytes` of the conversation's text (and of each
    /// of tools and system prompt); 0: there are none, and nothing is hashed.
    #[must_use]
    pub fn new(shape: Shape, prefix_bytes: u64) -> Self {
        Reader { body: Decoder::Identity(Json::body(shape, prefix_bytes)) }
    }

    /// The same for a body that may be encoded, and then must not have more than `limit` bytes decoded, or a form, where
    /// the shape has one.
    ///
    /// # Errors
    /// When the encoding is not supported, or the form has no boundary.
    pub fn with_headers(
        shape: Shape,
        prefix_bytes: u64,
        headers: Headers<'_>,
        limit: u64,
    ) -> Result<Self, RequestError> {
        let encoding = Encoding::of_header(headers.content_encoding)?;
        let body = match shape {
            Shape::Transcriptions => Body::Form(Form::new(headers.content_type)?),
            _ => Json::body(shape, prefix_bytes),
        };
        Ok(Reader { body: Decoder::new(encoding, body, limit) })
    }

    /// Reads the next piece of the body.
    ///
    /// # Errors
    /// When the body so far cannot become a request; the reader must not be fed again.
    pub fn feed(&mut self, piece: &[u8]) -> Result<(), RequestError> {
        self.body.feed(piece)
    }

    /// Says that the body is complete.
    ///
    /// # Errors
    /// When it is not a request.
    pub fn finish(self) -> Result<Request, RequestError> {
        let plain = matches!(self.body, Decoder::Identity(_));
        let mut request = match self.body.finish()? {
            Body::Json(mut json) => {
                json.scanner.finish(&mut json.fields)?;
                json.fields.request()?
            }
            Body::Form(form) => form.request()?,
        };
        if !plain {
            request.model_span = None;
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests;
