//! What routing needs to know of a chat or completions request, read while the body arrives.
//!
//! Only fields of the outermost object count; `model` often comes after `messages`, so the whole body is read, without
//! keeping it. A key that comes twice counts as its last value, as JSON readers have it.

use crate::json::{JsonError, Kind, Scanner, Sink};
use crate::snapshot::MAX_MODEL_BYTES;

/// A request that could be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The model asked for. Longer names than a snapshot can hold are cut; no pool has them.
    pub model: String,
    /// Where the value of `model` stands in the body, quotes included: first byte and first byte after.
    pub model_span: (u64, u64),
    /// Whether the answer is to be streamed.
    pub stream: bool,
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
}

impl RequestError {
    /// The field to blame, when it is one.
    #[must_use]
    pub fn param(&self) -> Option<&'static str> {
        match self {
            RequestError::Json(_) | RequestError::NotAnObject(_) => None,
            RequestError::NoModel | RequestError::ModelKind(_) | RequestError::EmptyModel => Some("model"),
        }
    }
}

/// Reads one body.
#[derive(Debug, Default)]
pub struct Reader {
    scanner: Scanner,
    fields: Fields,
}

impl Reader {
    /// Reads the next piece of the body.
    ///
    /// # Errors
    /// When the body so far cannot become JSON.
    pub fn feed(&mut self, piece: &[u8]) -> Result<(), RequestError> {
        Ok(self.scanner.feed(piece, &mut self.fields)?)
    }

    /// Says that the body is complete.
    ///
    /// # Errors
    /// When it is not a request.
    pub fn finish(mut self) -> Result<Request, RequestError> {
        self.scanner.finish(&mut self.fields)?;
        let fields = self.fields;
        match fields.root {
            Some(Kind::Object) => {}
            other => return Err(RequestError::NotAnObject(other.map_or("empty", Kind::as_str))),
        }
        match fields.model {
            Model::Missing => Err(RequestError::NoModel),
            Model::Other(kind) => Err(RequestError::ModelKind(kind.as_str())),
            Model::Name(name, _) if name.is_empty() => Err(RequestError::EmptyModel),
            Model::Name(model, model_span) => Ok(Request { model, model_span, stream: fields.stream }),
        }
    }
}

#[derive(Debug, Default)]
enum Model {
    #[default]
    Missing,
    Other(Kind),
    Name(String, (u64, u64)),
}

/// What the scanner is in the middle of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Within {
    /// Nothing of interest.
    #[default]
    Other,
    /// A key of the outermost object.
    Key,
    /// The name of the model.
    Model,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Model,
    Stream,
    Other,
}

#[derive(Debug)]
struct Fields {
    root: Option<Kind>,
    within: Within,
    /// The key read last at depth 1, as far as it could matter.
    key: String,
    field: Field,
    model: Model,
    stream: bool,
}

impl Default for Fields {
    fn default() -> Self {
        Fields {
            root: None,
            within: Within::Other,
            key: String::new(),
            field: Field::Other,
            model: Model::Missing,
            stream: false,
        }
    }
}

/// Longer keys are none of ours.
const MAX_KEY_BYTES: usize = 16;

impl Sink for Fields {
    fn value(&mut self, kind: Kind, depth: usize, offset: u64) {
        self.within = Within::Other;
        match (depth, self.field) {
            (0, _) => self.root = Some(kind),
            (1, Field::Model) if kind == Kind::String => {
                self.within = Within::Model;
                self.model = Model::Name(String::new(), (offset, offset));
            }
            (1, Field::Model) => self.model = Model::Other(kind),
            (1, Field::Stream) => self.stream = kind == Kind::Bool(true),
            _ => {}
        }
    }

    fn key(&mut self, depth: usize) {
        self.within = if depth == 1 { Within::Key } else { Within::Other };
        self.key.clear();
    }

    fn wants_text(&self) -> bool {
        self.within != Within::Other
    }

    fn text(&mut self, piece: &str) {
        match (self.within, &mut self.model) {
            (Within::Key, _) if self.key.len() <= MAX_KEY_BYTES => {
                self.key.extend(piece.chars().take(MAX_KEY_BYTES + 1));
            }
            (Within::Model, Model::Name(name, _)) if name.len() <= MAX_MODEL_BYTES => {
                name.extend(piece.chars().take(MAX_MODEL_BYTES + 1));
            }
            _ => {}
        }
    }

    fn number(&mut self, _: &str) {}

    fn end(&mut self, offset: u64) {
        match (self.within, &mut self.model) {
            (Within::Key, _) => {
                self.field = match self.key.as_str() {
                    "model" => Field::Model,
                    "stream" => Field::Stream,
                    _ => Field::Other,
                };
            }
            (Within::Model, Model::Name(_, span)) => span.1 = offset,
            _ => {}
        }
        self.within = Within::Other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(body: &[u8], cut: usize) -> Result<Request, RequestError> {
        let mut reader = Reader::default();
        for piece in body.chunks(cut) {
            reader.feed(piece)?;
        }
        reader.finish()
    }

    #[test]
    fn the_model_is_found_wherever_it_stands() {
        let body = br#"{"messages":[{"role":"user","content":"say \"model\": x","model":"inner"}],"stream":true, "model" : "qwen-27b"}"#;
        for cut in [1, 2, 7, 1000] {
            let request = read(body, cut).unwrap();
            assert_eq!((request.model.as_str(), request.stream), ("qwen-27b", true));
            let (from, to) = request.model_span;
            assert_eq!(&body[from as usize..to as usize], br#""qwen-27b""#);
        }
    }

    #[test]
    fn the_last_of_two_counts_and_escapes_are_read() {
        let request = read(br#"{"model":"a","mod\u0065l":"\u0062","stream":true,"stream":false}"#, 3).unwrap();
        assert_eq!((request.model.as_str(), request.stream), ("b", false));
        assert_eq!(read(br#"{"model":"a","model":7}"#, 3), Err(RequestError::ModelKind("a number")));
    }

    #[test]
    fn what_is_wrong_names_the_field() {
        for (body, message) in [
            ("", "the request body is not valid JSON: the text is empty at byte 0"),
            ("[]", "the request body is an array: expected a JSON object"),
            ("\"x\"", "the request body is a string: expected a JSON object"),
            ("{}", "model is missing: expected the name of a model as a string"),
            ("{\"model\":null}", "model is null: expected the name of a model as a string"),
            ("{\"model\":{\"model\":\"a\"}}", "model is an object: expected the name of a model as a string"),
            ("{\"model\":\"\"}", "model is empty: expected the name of a model"),
            ("{\"messages\":[{\"model\":\"a\"}]}", "model is missing: expected the name of a model as a string"),
        ] {
            assert_eq!(read(body.as_bytes(), 1).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn a_name_without_end_is_cut() {
        let body = format!("{{\"model\":\"{}\"}}", "x".repeat(100_000));
        assert!(read(body.as_bytes(), 999).unwrap().model.len() <= 2 * MAX_MODEL_BYTES + 2);
    }

    proptest! {
        #[test]
        fn it_reads_what_serde_json_reads(model in any::<String>(), content in any::<String>(), stream in any::<bool>(), first in any::<bool>(), cut in 1usize..50) {
            let mut body = serde_json::Map::new();
            let messages = serde_json::json!([{"role": "user", "content": content}]);
            if first {
                body.insert("model".into(), model.clone().into());
            }
            body.insert("messages".into(), messages);
            body.insert("stream".into(), stream.into());
            body.insert("model".into(), model.clone().into());
            let body = serde_json::to_vec(&body).unwrap();
            match read(&body, cut) {
                Ok(request) => {
                    prop_assert_eq!(&request.model, &model);
                    prop_assert_eq!(request.stream, stream);
                    let (from, to) = request.model_span;
                    prop_assert_eq!(serde_json::from_slice::<String>(&body[from as usize..to as usize]).unwrap(), model);
                }
                Err(error) => prop_assert!(model.is_empty(), "{error}"),
            }
        }
    }
}
