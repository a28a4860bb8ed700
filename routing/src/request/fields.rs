//! The fields of the outermost object.

use xxhash_rust::xxh3::xxh3_64;

use super::key::{Field, KeyBuffer};
use super::section::{Form, Section};
use super::shape::Shape;
use super::walker::Walker;
use super::{Prompt, Request, RequestError};
use crate::json::{Kind, Mode, Sink};
use crate::prefix::checkpoints::{Checkpoints, Preamble, mix};
use crate::snapshot::MAX_MODEL_BYTES;

/// A string that is kept, up to a length that no sensible value has.
#[derive(Debug, Default)]
struct Capture(String);

impl Capture {
    /// Longer ones are cut somewhere beyond this.
    const MAX_BYTES: usize = MAX_MODEL_BYTES;

    fn push(&mut self, piece: &str) {
        let room = (Self::MAX_BYTES + 1).saturating_sub(self.0.len());
        if piece.len() <= room {
            self.0.push_str(piece);
        } else {
            self.0.extend(piece.chars().take(room));
        }
    }
}

/// What `model` is.
#[derive(Debug, Default)]
enum Model {
    #[default]
    Missing,
    Other(Kind),
    Name(Capture, (u64, u64)),
}

/// What the scanner is in the middle of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Within {
    Nothing,
    /// A key of the outermost object.
    Key,
    /// The value of a field that is kept.
    Value,
    /// A prompt field, at any depth.
    Prompt,
}

/// Hears the scanner, and knows the request in the end.
#[derive(Debug)]
pub(super) struct Fields {
    shape: Shape,
    prefix_bytes: u64,
    root: Option<Kind>,
    within: Within,
    key: KeyBuffer,
    field: Field,
    model: Model,
    stream: bool,
    /// `max_completion_tokens`, `max_output_tokens`, `max_tokens`.
    max: [Option<u64>; 3],
    number: Option<u64>,
    salt: Option<Capture>,
    previous: Option<Capture>,
    user: Option<Capture>,
    walker: Walker,
    /// One for each prompt field that has come.
    sections: Vec<(Field, Section)>,
}

impl Fields {
    pub(super) fn new(shape: Shape, prefix_bytes: u64) -> Self {
        Fields {
            shape,
            // Where nothing is generated there is no prefix to come back for.
            prefix_bytes: if shape.generates() { prefix_bytes } else { 0 },
            root: None,
            within: Within::Nothing,
            key: KeyBuffer::new(),
            field: Field::Other,
            model: Model::Missing,
            stream: false,
            max: [None; 3],
            number: None,
            salt: None,
            previous: None,
            user: None,
            walker: Walker::new(),
            sections: Vec::new(),
        }
    }

    /// The request, once the body is complete.
    pub(super) fn request(mut self) -> Result<Request, RequestError> {
        match self.root {
            Some(Kind::Object) => {}
            other => return Err(RequestError::NotAnObject(other.map_or("empty", Kind::as_str))),
        }
        let (model, span) = match std::mem::take(&mut self.model) {
            Model::Missing => return Err(RequestError::NoModel),
            Model::Other(kind) => return Err(RequestError::ModelKind(kind.as_str())),
            Model::Name(Capture(name), _) if name.is_empty() => return Err(RequestError::EmptyModel),
            Model::Name(Capture(name), span) => (name, span),
        };
        if let Some(error) = self.sections.iter_mut().find_map(|(_, section)| section.error.take()) {
            return Err(error);
        }
        let hash =
            |capture: &Option<Capture>| capture.as_ref().map_or(0, |capture| xxh3_64(capture.0.as_bytes()).max(1));
        let previous = self.previous.as_ref().map(|_| hash(&self.previous));
        Ok(Request {
            model,
            model_span: Some(span),
            stream: self.stream,
            max_output: self.max.into_iter().flatten().next(),
            previous_response: previous,
            user: self.user.as_ref().map(|_| hash(&self.user)),
            prompt: self.prompt(previous, hash(&self.salt)),
        })
    }

    fn prompt(&mut self, previous: Option<u64>, salt: u64) -> Prompt {
        let mut prompt = Prompt::default();
        let mut preamble = Preamble { hash: salt, previous: previous.unwrap_or_default(), ..Preamble::default() };
        let mut trail = None;
        // In an order that does not depend on the body's.
        self.sections.sort_by_key(|(field, _)| *field);
        for (field, section) in &mut self.sections {
            prompt.bytes += section.bytes;
            prompt.token_ids += section.token_ids;
            prompt.images = prompt.images.saturating_add(section.images);
            if field.is_preamble() {
                preamble.hash = mix(mix(preamble.hash, *field as u64), section.identity());
                preamble.text += section.text;
                preamble.bytes += section.bytes;
            } else if trail.is_none() {
                trail = Some(std::mem::take(&mut section.trail));
            }
        }
        if self.prefix_bytes > 0 {
            prompt.checkpoints = Checkpoints::new(preamble, trail.unwrap_or_default());
        }
        prompt
    }

    /// A value of the outermost object.
    fn field(&mut self, kind: Kind, offset: u64) {
        match self.field {
            Field::Model if kind == Kind::String => {
                self.model = Model::Name(Capture::default(), (offset, offset));
                self.within = Within::Value;
            }
            Field::Model => self.model = Model::Other(kind),
            Field::Stream => self.stream = kind == Kind::Bool(true),
            Field::MaxCompletionTokens | Field::MaxOutputTokens | Field::MaxTokens => {
                self.set_max(None);
                if kind == Kind::Number {
                    self.number = Some(0);
                    self.within = Within::Value;
                }
            }
            Field::CacheSalt | Field::PreviousResponse | Field::User => {
                let capture = (kind == Kind::String).then(Capture::default);
                if capture.is_some() {
                    self.within = Within::Value;
                }
                match self.field {
                    Field::CacheSalt => self.salt = capture,
                    Field::PreviousResponse => self.previous = capture,
                    _ => self.user = capture,
                }
            }
            Field::Other => {}
            prompt => self.begin_prompt(prompt, kind, offset),
        }
    }

    fn set_max(&mut self, value: Option<u64>) {
        let place = match self.field {
            Field::MaxCompletionTokens => 0,
            Field::MaxOutputTokens => 1,
            _ => 2,
        };
        if let Some(max) = self.max.get_mut(place) {
            *max = value;
        }
    }

    fn begin_prompt(&mut self, field: Field, kind: Kind, offset: u64) {
        // The last of two counts.
        self.sections.retain(|(earlier, _)| *earlier != field);
        if kind == Kind::Null {
            return;
        }
        let form = match field {
            Field::Tools | Field::Functions => Form::Definitions,
            _ if field.is_preamble() => Form::Blocks,
            _ => Form::Conversation,
        };
        let expected = match field {
            Field::Messages if kind != Kind::Array => Some("an array of objects"),
            Field::Prompt | Field::Input if !matches!(kind, Kind::String | Kind::Array) => Some("a string or an array"),
            _ => None,
        };
        let mut section = Section::new(form, self.prefix_bytes);
        section.is_user_text = field == Field::Input && self.shape == Shape::Responses;
        section.error =
            expected.map(|expected| RequestError::Kind { field: field.as_str(), expected, found: kind.as_str() });
        self.walker.begin(section, field == Field::Messages);
        self.walker.value(kind, offset);
        if matches!(kind, Kind::Bool(_)) {
            self.end_prompt();
        } else {
            self.within = Within::Prompt;
        }
    }

    fn end_prompt(&mut self) {
        self.within = Within::Nothing;
        self.sections.push((self.field, self.walker.take()));
    }
}

impl Sink for Fields {
    fn value(&mut self, kind: Kind, depth: usize, offset: u64) {
        match (depth, self.within) {
            (0, _) => self.root = Some(kind),
            (_, Within::Prompt) => self.walker.value(kind, offset),
            (1, _) if self.root == Some(Kind::Object) => self.field(kind, offset),
            _ => {}
        }
    }

    fn key(&mut self, depth: usize, offset: u64) {
        if self.within == Within::Prompt {
            self.walker.key(offset);
        } else if depth == 1 {
            self.within = Within::Key;
            self.key.clear();
        }
    }

    fn mode(&self) -> Mode {
        match self.within {
            Within::Nothing => Mode::Skip,
            Within::Key | Within::Value => Mode::Decoded,
            Within::Prompt => self.walker.mode(),
        }
    }

    fn text(&mut self, piece: &str) {
        match (self.within, self.field) {
            (Within::Prompt, _) => self.walker.text(piece),
            (Within::Key, _) => self.key.push(piece.as_bytes()),
            (Within::Value, Field::Model) => {
                if let Model::Name(name, _) = &mut self.model {
                    name.push(piece);
                }
            }
            (Within::Value, Field::CacheSalt) => self.salt.get_or_insert_default().push(piece),
            (Within::Value, Field::PreviousResponse) => self.previous.get_or_insert_default().push(piece),
            (Within::Value, Field::User) => self.user.get_or_insert_default().push(piece),
            _ => {}
        }
    }

    fn raw(&mut self, piece: &[u8], source: usize) {
        self.walker.raw(piece, source);
    }

    fn number(&mut self, digits: &[u8]) {
        match self.within {
            Within::Prompt => self.walker.number(digits),
            Within::Value => {
                for digit in digits {
                    // A sign, a point, an exponent or too many digits: not a number of tokens.
                    self.number = match (self.number, digit) {
                        (Some(number), b'0'..=b'9') => {
                            number.checked_mul(10).and_then(|number| number.checked_add(u64::from(digit - b'0')))
                        }
                        _ => None,
                    };
                }
            }
            _ => {}
        }
    }

    fn end(&mut self, offset: u64) {
        match (self.within, self.field) {
            (Within::Prompt, _) => {
                self.walker.end(offset);
                if self.walker.is_outside() {
                    self.end_prompt();
                }
                return;
            }
            (Within::Key, _) => self.field = Field::of(self.shape, self.key.as_bytes()),
            (Within::Value, Field::Model) => {
                if let Model::Name(_, span) = &mut self.model {
                    span.1 = offset;
                }
            }
            (Within::Value, Field::MaxCompletionTokens | Field::MaxOutputTokens | Field::MaxTokens) => {
                self.set_max(self.number);
            }
            _ => {}
        }
        self.within = Within::Nothing;
    }

    fn word(&mut self, word: &[u8], offset: u64) {
        match self.within {
            Within::Prompt => self.walker.word(word),
            Within::Key => self.key.push(word),
            Within::Value => self.text(std::str::from_utf8(word).unwrap_or_default()),
            Within::Nothing => {}
        }
        self.end(offset);
    }

    fn close(&mut self, _: usize, _: u64) {
        if self.within == Within::Prompt {
            self.walker.close();
            if self.walker.is_outside() {
                self.end_prompt();
            }
        }
    }
}
