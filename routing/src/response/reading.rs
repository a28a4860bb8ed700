//! What one JSON document of an answer says.
//!
//! A [`Sink`] that follows the few paths that matter through the first levels of nesting and lets everything else, such as a
//! megabyte of embeddings, pass unseen.

use xxhash_rust::xxh3::xxh3_64;

use super::Finish;
use crate::json::{Kind, Mode, Sink};

/// Containers around a value that is followed, at most.
const MAX_FOLLOWED: usize = 8;
/// The longest key or string that is looked at. Ids have about 50 bytes.
const MAX_TEXT: usize = 256;

/// Token counts as the APIs state them.
#[derive(Debug, Clone, Default)]
pub(super) struct Usage {
    /// `prompt_tokens`: the whole prompt.
    prompt: Option<u64>,
    /// `input_tokens`: the whole prompt, or (Anthropic) what no cache had to do with.
    input: Option<u64>,
    /// `cache_read_input_tokens`, not part of `input`.
    cache_read: Option<u64>,
    /// `cache_creation_input_tokens`, not part of `input`.
    cache_creation: Option<u64>,
    /// `cached_tokens`, part of the whole.
    cached: Option<u64>,
    total: Option<u64>,
    /// `completion_tokens` or `output_tokens`.
    pub(super) output: Option<u64>,
}

impl Usage {
    /// Takes over what the later one states.
    pub(super) fn update(&mut self, later: &Usage) {
        self.prompt = later.prompt.or(self.prompt);
        self.input = later.input.or(self.input);
        self.cache_read = later.cache_read.or(self.cache_read);
        self.cache_creation = later.cache_creation.or(self.cache_creation);
        self.cached = later.cached.or(self.cached);
        self.total = later.total.or(self.total);
        self.output = later.output.or(self.output);
    }

    pub(super) fn prompt_tokens(&self) -> Option<u64> {
        let caches = self.cache_read.unwrap_or(0).saturating_add(self.cache_creation.unwrap_or(0));
        let input = self.input.map(|input| input.saturating_add(caches));
        let rest = self.total.map(|total| total.saturating_sub(self.output.unwrap_or(0)));
        self.prompt.or(input).or(rest)
    }

    pub(super) fn cached_tokens(&self) -> Option<u64> {
        self.cached.or(self.cache_read)
    }

    /// The place of a count, if it is one of usage.
    fn place(&mut self, count: Count) -> Option<&mut Option<u64>> {
        Some(match count {
            Count::Prompt => &mut self.prompt,
            Count::Input => &mut self.input,
            Count::CacheRead => &mut self.cache_read,
            Count::CacheCreation => &mut self.cache_creation,
            Count::Cached => &mut self.cached,
            Count::Total => &mut self.total,
            Count::Output => &mut self.output,
            Count::ErrorCode => return None,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Count {
    Prompt,
    Input,
    CacheRead,
    CacheCreation,
    Cached,
    Total,
    Output,
    /// Not of usage: `code` of an error.
    ErrorCode,
}

/// Where in a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Place {
    /// Nowhere of interest.
    #[default]
    Other,
    Root,
    /// `response` of an event of the responses API.
    Response,
    /// `message` of Anthropic's first event.
    Message,
    Usage,
    UsageDetails,
    Incomplete,
    Choices,
    Choice,
    /// `delta` or `message` of a choice.
    ChoiceDelta,
    /// `delta` of a typed event: a string (responses) or an object (Anthropic).
    TypedDelta,
    // Values.
    Count(Count),
    /// Something generated: a string, or a list of parts or calls, that is not empty.
    Content,
    Error,
    ErrorType,
    Object,
    Type,
    Id,
    ResponseId,
    Status,
    Reason,
    IncompleteReason,
}

impl Place {
    fn of_key(self, key: &[u8]) -> Place {
        match (self, key) {
            (Place::Root | Place::Response | Place::Message, b"usage") => Place::Usage,
            (Place::Root | Place::Response, b"error") => Place::Error,
            (Place::Root | Place::Response, b"status") => Place::Status,
            (Place::Root | Place::Response, b"incomplete_details") => Place::Incomplete,
            // Some engines have what is in `error` at the root.
            (Place::Error | Place::Root, b"code") => Place::Count(Count::ErrorCode),
            (Place::Error, b"type") => Place::ErrorType,
            (Place::Root, b"object") => Place::Object,
            (Place::Root, b"type") => Place::Type,
            (Place::Root, b"id") => Place::Id,
            (Place::Root, b"choices") => Place::Choices,
            (Place::Root, b"response") => Place::Response,
            (Place::Root, b"message") => Place::Message,
            (Place::Root, b"delta") => Place::TypedDelta,
            (Place::Root, b"content" | b"output") => Place::Content,
            (Place::Root | Place::TypedDelta, b"stop_reason") | (Place::Choice, b"finish_reason") => Place::Reason,
            (Place::Response, b"id") => Place::ResponseId,
            (Place::Choice, b"delta" | b"message") => Place::ChoiceDelta,
            (Place::Choice, b"text")
            | (Place::TypedDelta, b"text" | b"thinking" | b"partial_json")
            | (
                Place::ChoiceDelta,
                b"content" | b"reasoning_content" | b"reasoning" | b"refusal" | b"tool_calls" | b"function_call"
                | b"audio",
            ) => Place::Content,
            (Place::Incomplete, b"reason") => Place::IncompleteReason,
            (Place::Usage, b"prompt_tokens") => Place::Count(Count::Prompt),
            (Place::Usage, b"input_tokens") => Place::Count(Count::Input),
            (Place::Usage, b"cache_read_input_tokens") => Place::Count(Count::CacheRead),
            (Place::Usage, b"cache_creation_input_tokens") => Place::Count(Count::CacheCreation),
            (Place::Usage, b"total_tokens") => Place::Count(Count::Total),
            (Place::Usage, b"completion_tokens" | b"output_tokens") => Place::Count(Count::Output),
            (Place::Usage, b"prompt_tokens_details" | b"input_tokens_details") => Place::UsageDetails,
            (Place::UsageDetails, b"cached_tokens") => Place::Count(Count::Cached),
            _ => Place::Other,
        }
    }
}

/// What is being spelt out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Spelling {
    #[default]
    Nothing,
    /// A key of a container at this place.
    Key(Place),
    Text(Place),
    Number(Count),
}

/// What a document said so far.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) usage: Usage,
    /// It has something generated in it.
    pub(super) content: bool,
    /// It names a `type`.
    pub(super) typed: bool,
    error: bool,
    client_error: bool,
    /// `object` is `response`.
    is_response: bool,
    id: Option<u64>,
    response_id: Option<u64>,
    reason: Option<Finish>,
    incomplete_reason: Option<Finish>,
    status: Option<Status>,
    /// The containers around, outermost first.
    places: [Place; MAX_FOLLOWED],
    /// Where the value after the last key is.
    next: Place,
    spelling: Spelling,
    text: Vec<u8>,
    /// The number so far, if it is a whole one.
    number: Option<u64>,
    /// An array of no interest has begun. Whoever feeds takes it back.
    pub(super) in_fresh_array: bool,
}

/// `status` of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Completed,
    Incomplete,
    Failed,
    Cancelled,
}

impl Reading {
    pub(super) fn finish(&self) -> Option<Finish> {
        let of_status = || match self.status.filter(|_| self.is_response || self.response_id.is_some())? {
            Status::Completed => Some(Finish::Stop),
            Status::Incomplete => Some(self.incomplete_reason.unwrap_or(Finish::Other)),
            Status::Failed | Status::Cancelled => Some(Finish::Other),
        };
        self.reason.or_else(of_status)
    }

    pub(super) fn is_error(&self) -> bool {
        self.error
    }

    pub(super) fn is_client_error(&self) -> bool {
        self.error && self.client_error
    }

    pub(super) fn response_id(&self) -> Option<u64> {
        if self.is_response { self.id } else { self.response_id }
    }

    /// The place of the container that a value or key at this depth is in.
    fn around(&self, depth: usize) -> Place {
        depth.checked_sub(1).and_then(|depth| self.places.get(depth)).copied().unwrap_or_default()
    }

    fn string(&mut self, place: Place, text: &[u8]) {
        match place {
            Place::Content => self.content |= !text.is_empty(),
            Place::Object => {
                self.is_response = text == b"response";
                self.error |= text == b"error";
            }
            Place::ErrorType => self.client_error |= is_clients(text),
            Place::Type => {
                self.typed = true;
                self.error |= matches!(text, b"error" | b"response.failed");
            }
            Place::Id => self.id = Some(xxh3_64(text)),
            Place::ResponseId => self.response_id = Some(xxh3_64(text)),
            Place::Reason => self.reason = Some(Finish::of_reason(text)),
            Place::IncompleteReason => self.incomplete_reason = Some(Finish::of_reason(text)),
            Place::Status => {
                self.status = match text {
                    b"completed" => Some(Status::Completed),
                    b"incomplete" => Some(Status::Incomplete),
                    b"failed" => Some(Status::Failed),
                    b"cancelled" => Some(Status::Cancelled),
                    _ => None,
                };
            }
            _ => {}
        }
    }
}

/// Whether an error of this `type` is the request's fault. Engines have Python's names or OpenAI's.
fn is_clients(kind: &[u8]) -> bool {
    let kind = kind.to_ascii_lowercase();
    [&b"badrequest"[..], b"invalid_request", b"notfound", b"not_found", b"validation", b"unprocessable"]
        .iter()
        .any(|word| memchr::memmem::find(&kind, word).is_some())
}

impl Sink for Reading {
    fn value(&mut self, kind: Kind, depth: usize, _: u64) {
        let around = self.around(depth);
        let place = match (std::mem::take(&mut self.next), around) {
            (Place::Other, Place::Other) if depth == 0 => Place::Root,
            (Place::Other, Place::Choices) => Place::Choice,
            (Place::Other, Place::Content) => {
                self.content = true;
                Place::Other
            }
            (place, _) => place,
        };
        self.spelling = Spelling::Nothing;
        self.in_fresh_array = kind == Kind::Array && place == Place::Other;
        let followed = match (kind, place) {
            (Kind::Array, Place::Choices | Place::Content) => place,
            (Kind::Object, Place::Error) => {
                self.error = true;
                Place::Error
            }
            (Kind::Object, Place::Content) => {
                self.content = true;
                Place::Other
            }
            (Kind::Object, Place::Count(_) | Place::Choices) => Place::Other,
            (Kind::Object, _) => place,
            (Kind::String, Place::Error) => {
                self.error = true;
                return;
            }
            (Kind::String, Place::Other) => return,
            (Kind::String, _) => {
                let place = if place == Place::TypedDelta { Place::Content } else { place };
                self.spelling = Spelling::Text(place);
                self.text.clear();
                return;
            }
            (Kind::Number, Place::Count(count)) => {
                self.spelling = Spelling::Number(count);
                self.number = Some(0);
                return;
            }
            _ => Place::Other,
        };
        if matches!(kind, Kind::Object | Kind::Array)
            && let Some(around) = self.places.get_mut(depth)
        {
            *around = followed;
        }
    }

    fn key(&mut self, depth: usize, _: u64) {
        self.spelling = match self.around(depth) {
            Place::Other => Spelling::Nothing,
            place => Spelling::Key(place),
        };
        self.text.clear();
    }

    fn mode(&self) -> Mode {
        match self.spelling {
            Spelling::Nothing => Mode::Skip,
            Spelling::Text(Place::Content) if self.content => Mode::Skip,
            Spelling::Key(_) | Spelling::Text(_) | Spelling::Number(_) => Mode::Decoded,
        }
    }

    fn text(&mut self, piece: &str) {
        match self.spelling {
            Spelling::Nothing | Spelling::Number(_) => {}
            Spelling::Text(Place::Content) => self.content |= !piece.is_empty(),
            Spelling::Key(_) | Spelling::Text(_) => {
                if self.text.len() + piece.len() <= MAX_TEXT {
                    self.text.extend_from_slice(piece.as_bytes());
                } else {
                    self.spelling = Spelling::Nothing;
                }
            }
        }
    }

    fn raw(&mut self, _: &[u8], _: usize) {}

    fn number(&mut self, piece: &[u8]) {
        if matches!(self.spelling, Spelling::Number(_)) {
            self.number = piece.iter().fold(self.number, |number, digit| match digit {
                b'0'..=b'9' => number?.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
                _ => None,
            });
        }
    }

    fn close(&mut self, _: usize, _: u64) {}

    fn end(&mut self, offset: u64) {
        if let Spelling::Number(count) = self.spelling {
            // A count that is not a whole number is not a count.
            if let Some(number) = self.number {
                match self.usage.place(count) {
                    Some(place) => *place = Some(number),
                    None => self.client_error |= (400..500).contains(&number),
                }
            }
            self.spelling = Spelling::Nothing;
            return;
        }
        let text = std::mem::take(&mut self.text);
        self.word(&text, offset);
        self.text = text;
    }

    fn word(&mut self, word: &[u8], _: u64) {
        match std::mem::take(&mut self.spelling) {
            Spelling::Nothing | Spelling::Number(_) => {}
            Spelling::Key(around) => self.next = around.of_key(word),
            Spelling::Text(place) => self.string(place, word),
        }
    }

    fn pauses(&self) -> bool {
        self.in_fresh_array
    }
}
