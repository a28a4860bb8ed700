//! `multipart/form-data` (RFC 7578, RFC 2046), of which only the fields `model` and `stream` matter: the sound file that
//! makes up the rest is searched for its end, and not kept.
//!
//! The delimiter `\r\n--boundary` has its only carriage return in front, so a match that fails can only begin again at
//! the byte that failed it: no table, no going back, whatever the cuts.

use memchr::memchr;

use super::encoding::Parse;
use super::{Prompt, Request, RequestError};
use crate::snapshot::MAX_MODEL_BYTES;

/// The longest line of a part's headers.
const MAX_LINE_BYTES: usize = 4096;

/// The longest boundary (RFC 2046).
const MAX_BOUNDARY_BYTES: usize = 70;

/// Why a form could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// Another content type.
    #[error("content-type must be multipart/form-data")]
    ContentType,
    /// No boundary, or one that cannot be.
    #[error("content-type must name a boundary of 1 to 70 characters")]
    Boundary,
    /// Something else than a line end after a boundary.
    #[error("a boundary must be followed by a line end")]
    AfterBoundary,
    /// A header without end.
    #[error("a header of a part is longer than 4096 bytes")]
    Line,
    /// A part that is no form field.
    #[error("a part has no content-disposition: form-data with a name")]
    Name,
    /// The form does not end.
    #[error("the closing boundary is missing")]
    Ends,
    /// `model` is not text.
    #[error("model is not UTF-8")]
    Utf8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In the body of a part, or before the first one: so much of the delimiter has come.
    Body { matched: usize },
    /// After a boundary; with a hyphen or a carriage return already, if that is set.
    Boundary { first: Option<u8> },
    /// In the headers of a part.
    Headers,
    /// After the closing boundary.
    Done,
}

/// The fields that matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Model,
    Stream,
    Other,
}

/// A form as it arrives.
#[derive(Debug)]
pub(super) struct Form {
    /// `\r\n--boundary`
    delimiter: Vec<u8>,
    state: State,
    /// Bytes of the delimiter that came before the content: the line end that is also its.
    before: usize,
    line: Vec<u8>,
    /// Of the current part.
    field: Option<Field>,
    model: Option<Vec<u8>>,
    stream: Vec<u8>,
}

impl Form {
    /// A form whose content type is this.
    pub(super) fn new(content_type: &[u8]) -> Result<Self, FormError> {
        let mut parts = parameters(content_type);
        let kind = parts.next().map(|(kind, _)| kind.to_ascii_lowercase());
        if kind.as_deref() != Some(b"multipart/form-data") {
            return Err(FormError::ContentType);
        }
        let boundary = parts.find(|(name, _)| name.eq_ignore_ascii_case(b"boundary")).map(|(_, value)| value);
        let boundary = boundary.ok_or(FormError::Boundary)?;
        let printable = boundary.iter().all(|byte| matches!(byte, b' '..=b'~'));
        if boundary.is_empty() || boundary.len() > MAX_BOUNDARY_BYTES || !printable {
            return Err(FormError::Boundary);
        }
        Ok(Form {
            delimiter: [b"\r\n--", boundary.as_slice()].concat(),
            // The first boundary may stand at the very beginning, without a line end before it.
            state: State::Body { matched: 2 },
            before: 2,
            line: Vec::new(),
            field: None,
            model: None,
            stream: Vec::new(),
        })
    }

    /// The request, once the body is complete.
    pub(super) fn request(self) -> Result<Request, RequestError> {
        if self.state != State::Done {
            return Err(FormError::Ends.into());
        }
        let model = self.model.ok_or(RequestError::NoModel)?;
        if model.is_empty() {
            return Err(RequestError::EmptyModel);
        }
        // A name that was cut may end within a character; it is none of ours anyway.
        let model = match String::from_utf8(model) {
            Ok(model) => model,
            Err(error) if error.as_bytes().len() > MAX_MODEL_BYTES => String::from_utf8_lossy(error.as_bytes()).into(),
            Err(_) => return Err(FormError::Utf8.into()),
        };
        let stream = self.stream.to_ascii_lowercase();
        Ok(Request {
            model,
            model_span: None,
            stream: matches!(stream.as_slice(), b"true" | b"1" | b"t" | b"yes" | b"y" | b"on"),
            max_output: None,
            prompt: Prompt::default(),
            previous_response: None,
            user: None,
        })
    }

    /// Content of the current part.
    fn content(&mut self, bytes: &[u8]) {
        let value = match (self.field, &mut self.model) {
            (Some(Field::Model), Some(model)) => model,
            (Some(Field::Stream), _) => &mut self.stream,
            _ => return,
        };
        let room = (MAX_MODEL_BYTES + 1).saturating_sub(value.len());
        value.extend(bytes.iter().take(room));
    }

    /// Takes what it can of `rest` as content or delimiter. Returns how much.
    fn body(&mut self, rest: &[u8], mut matched: usize) -> usize {
        let mut took = 0;
        if matched == 0 {
            took = memchr(b'\r', rest).unwrap_or(rest.len());
            self.content(rest.get(..took).unwrap_or_default());
        }
        for byte in rest.get(took..).unwrap_or_default() {
            if self.delimiter.get(matched) != Some(byte) {
                if matched > 0 {
                    let delimiter = std::mem::take(&mut self.delimiter);
                    let before = std::mem::take(&mut self.before);
                    self.content(delimiter.get(before..matched).unwrap_or_default());
                    self.delimiter = delimiter;
                    matched = 0;
                }
                if *byte != b'\r' {
                    // Content again: skip through it.
                    break;
                }
            }
            matched += 1;
            took += 1;
            if matched == self.delimiter.len() {
                self.state = State::Boundary { first: None };
                return took;
            }
        }
        self.state = State::Body { matched };
        took
    }

    /// A byte after a boundary.
    fn boundary(&mut self, first: Option<u8>, byte: u8) -> Result<(), FormError> {
        self.state = match (first, byte) {
            // Padding that transport may have added.
            (None, b' ' | b'\t') => State::Boundary { first },
            (None, b'-' | b'\r') => State::Boundary { first: Some(byte) },
            (Some(b'-'), b'-') => State::Done,
            (Some(b'\r'), b'\n') => {
                self.field = None;
                self.line.clear();
                State::Headers
            }
            _ => return Err(FormError::AfterBoundary),
        };
        Ok(())
    }

    /// Takes what it can of `rest` as a header line. Returns how much.
    fn header(&mut self, rest: &[u8]) -> Result<usize, FormError> {
        let end = memchr(b'\n', rest);
        let took = end.map_or(rest.len(), |end| end + 1);
        if self.line.len() + took > MAX_LINE_BYTES {
            return Err(FormError::Line);
        }
        self.line.extend_from_slice(rest.get(..took).unwrap_or_default());
        if end.is_none() {
            return Ok(took);
        }
        let line = std::mem::take(&mut self.line);
        let line = line.trim_ascii();
        if line.is_empty() {
            match self.field.ok_or(FormError::Name)? {
                // The last of two counts.
                Field::Model => self.model = Some(Vec::new()),
                Field::Stream => self.stream.clear(),
                Field::Other => {}
            }
            // The delimiter's line end may be the one that ended the headers: an empty part.
            self.state = State::Body { matched: 2 };
            self.before = 2;
            return Ok(took);
        }
        if let Some(field) = disposition(line) {
            self.field = Some(field);
        }
        Ok(took)
    }
}

impl Parse for Form {
    fn feed(&mut self, piece: &[u8]) -> Result<(), RequestError> {
        let mut rest = piece;
        while let Some(byte) = rest.first() {
            let took = match self.state {
                State::Body { matched } => self.body(rest, matched),
                State::Boundary { first } => {
                    self.boundary(first, *byte)?;
                    1
                }
                State::Headers => self.header(rest)?,
                State::Done => return Ok(()),
            };
            rest = rest.get(took..).unwrap_or_default();
        }
        Ok(())
    }
}

/// Which field a header line announces, when it is a content-disposition.
fn disposition(line: &[u8]) -> Option<Field> {
    let colon = memchr(b':', line)?;
    let (name, value) = line.split_at_checked(colon)?;
    if !name.trim_ascii().eq_ignore_ascii_case(b"content-disposition") {
        return None;
    }
    let mut parts = parameters(value.get(1..).unwrap_or_default());
    if !parts.next()?.0.eq_ignore_ascii_case(b"form-data") {
        return None;
    }
    let (_, name) = parts.find(|(name, _)| name.eq_ignore_ascii_case(b"name"))?;
    Some(match name.as_slice() {
        b"model" => Field::Model,
        b"stream" => Field::Stream,
        _ => Field::Other,
    })
}

/// The parts of a header value between semicolons, as names and values, without quotes.
fn parameters(value: &[u8]) -> impl Iterator<Item = (&[u8], Vec<u8>)> {
    let mut rest = Some(value);
    std::iter::from_fn(move || {
        let all = rest?;
        let (mut quoted, mut escaped) = (false, false);
        let end = all.iter().position(|byte| {
            let special = !std::mem::take(&mut escaped);
            match byte {
                b'"' if special => quoted = !quoted,
                b'\\' if special && quoted => escaped = true,
                b';' => return !quoted,
                _ => {}
            }
            false
        });
        let (part, after) = all.split_at_checked(end.unwrap_or(all.len()))?;
        rest = after.get(1..);
        let (name, value) = match memchr(b'=', part) {
            Some(at) => part.split_at_checked(at)?,
            None => (part, &[] as &[u8]),
        };
        Some((name.trim_ascii(), unquoted(value.get(1..).unwrap_or_default().trim_ascii())))
    })
}

fn unquoted(value: &[u8]) -> Vec<u8> {
    let Some(inner) = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")) else {
        return value.to_vec();
    };
    let mut escaped = false;
    inner
        .iter()
        .copied()
        .filter(|byte| {
            escaped = *byte == b'\\' && !escaped;
            !escaped
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TYPE: &[u8] = b"multipart/form-data; boundary=XyZ";

    fn read(content_type: &[u8], body: &[u8], cut: usize) -> Result<Request, RequestError> {
        let mut form = Form::new(content_type)?;
        for piece in body.chunks(cut.max(1)) {
            form.feed(piece)?;
        }
        form.request()
    }

    fn part(name: &str, content: &[u8]) -> Vec<u8> {
        [format!("--XyZ\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n").as_bytes(), content, b"\r\n"]
            .concat()
    }

    fn form(parts: &[(&str, &[u8])]) -> Vec<u8> {
        let mut body: Vec<u8> = parts.iter().flat_map(|(name, content)| part(name, content)).collect();
        body.extend_from_slice(b"--XyZ--\r\n");
        body
    }

    #[test]
    fn the_fields_are_found_wherever_they_stand() {
        let file = b"RIFF\r\n--Xy\r\r\n--XyQ--\r\n\0\xff";
        for parts in [
            [("file", file.as_slice()), ("model", b"whisper"), ("stream", b"True")],
            [("model", b"whisper"), ("stream", b"1"), ("file", file.as_slice())],
        ] {
            for cut in [1, 2, 3, 7, 1000] {
                let request = read(TYPE, &form(&parts), cut).unwrap();
                assert_eq!((request.model.as_str(), request.stream, request.model_span), ("whisper", true, None));
            }
        }
    }

    #[test]
    fn what_clients_may_write_is_read() {
        let quoted = b"Multipart/Form-Data; charset=utf-8; Boundary=\"a;b\"";
        let body = b"preamble\r\n--a;b \t\r\ncontent-type: text/plain\r\nCONTENT-DISPOSITION:form-data;filename=\"name=x;\\\"\";name=model\r\n\r\na\r\nb\r\n--a;b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n\r\n--a;b\r\nContent-Disposition: form-data; name=model\r\n\r\nlast\r\n--a;b--epilogue\r\n--a;b";
        for cut in [1, 5, 1000] {
            assert_eq!(read(quoted, body, cut).unwrap().model, "last");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let long = [b"--XyZ\r\nX: ".as_slice(), &[b'x'; 5000]].concat();
        let cases: [(&[u8], Vec<u8>, &str); 12] = [
            (b"application/json", form(&[]), "content-type must be multipart/form-data"),
            (b"", form(&[]), "content-type must be multipart/form-data"),
            (b"multipart/form-data", form(&[]), "content-type must name a boundary of 1 to 70 characters"),
            (b"multipart/form-data; boundary=", form(&[]), "content-type must name a boundary of 1 to 70 characters"),
            (TYPE, Vec::new(), "the closing boundary is missing"),
            (TYPE, part("model", b"a"), "the closing boundary is missing"),
            (TYPE, b"--XyZZ\r\n".to_vec(), "a boundary must be followed by a line end"),
            (TYPE, b"--XyZ\r\n\r\na\r\n--XyZ--".to_vec(), "a part has no content-disposition: form-data with a name"),
            (TYPE, long, "a header of a part is longer than 4096 bytes"),
            (TYPE, form(&[("file", b"x")]), "model is missing: expected the name of a model as a string"),
            (TYPE, form(&[("model", b"")]), "model is empty: expected the name of a model"),
            (TYPE, form(&[("model", b"\xff")]), "model is not UTF-8"),
        ];
        for (content_type, body, message) in cases {
            for cut in [1, 1000] {
                let error = read(content_type, &body, cut).unwrap_err().to_string();
                assert!(error.ends_with(message), "{error}");
            }
        }
        assert!(read(TYPE, &form(&[("model", &[b'x'; 100_000])]), 999).unwrap().model.len() <= MAX_MODEL_BYTES + 1);
    }

    proptest! {
        #[test]
        fn any_content_and_any_cut_give_the_same_answer(
            file in proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'-'), Just(b'X'), Just(b'y'), any::<u8>()], 0..300),
            model in "[a-z\r\n-]{1,40}", first in any::<bool>(), stream in any::<bool>(), cut in 1usize..40,
        ) {
            prop_assume!(!file.windows(7).any(|bytes| bytes == b"\r\n--XyZ") && !model.contains("\r\n--"));
            let flag: &[u8] = if stream { b"true" } else { b"false" };
            let mut parts = [("file", file.as_slice()), ("model", model.as_bytes()), ("stream", flag)];
            if first {
                parts.reverse();
            }
            let request = read(TYPE, &form(&parts), cut).unwrap();
            prop_assert_eq!((request.model.as_str(), request.stream), (model.as_str(), stream));
        }

        #[test]
        fn no_bytes_panic(body in proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'-'), Just(b'X'), Just(b'y'), Just(b'Z'), any::<u8>()], 0..300), content_type in any::<Vec<u8>>(), cut in 1usize..9) {
            prop_assert_eq!(read(TYPE, &body, cut), read(TYPE, &body, 1000));
            let _ = read(&content_type, &body, cut);
        }
    }
}
