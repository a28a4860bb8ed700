//! Walks through one prompt field and hashes what the engine will see of it.
//!
//! The hash of a value: of a string, xxh3 of its canonical text ([`Mode::Raw`]); of an array, a chain over its elements;
//! of an object, the sum of its fields' `mix(key, value)`, so that the order of fields makes no difference. `null` counts as
//! absent. A content array of a single text part is that text, and so is a list of one prompt. An `input` of `/v1/responses`
//! that is a string is the user's message that it will be in the next turn's list of items.
//!
//! A checkpoint inside a text has the hash of the messages before, of the keys and elements on the way to the text, and
//! of the text so far. What stands beside it in the same message (the role) is not in it: it may still come.
//!
//! Fields that come twice in one message both count in the hash: another hash than the engine's reading deserves, so a
//! prefix may be missed, never invented.
//!
//! Memory: one small frame per container, at most [`crate::json::MAX_DEPTH`].

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::RequestError;
use super::key::{KeyBuffer, Name};
use super::section::{Form, Section};
use crate::json::{Kind, Mode};
use crate::prefix::checkpoints::mix;

/// What a container is, which decides what its contents are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    /// The list of messages, items or prompts.
    Items,
    /// One of them.
    Message,
    /// A list of token ids in it.
    Tokens,
    /// A list of content parts.
    Parts,
    /// A content part.
    Part,
    /// An image, sound or file.
    Media,
    /// JSON that the engine shows to the model as such.
    Plain,
    /// No part of the prompt.
    Ignored,
}

#[derive(Debug)]
struct Frame {
    level: Level,
    object: bool,
    /// Sum of the fields, or chain of the elements.
    hash: u64,
    /// How many of those.
    count: u32,
    /// Hash and meaning of the current key.
    key: u64,
    name: Name,
    /// The text, when there is nothing but one text in it.
    text: Option<u64>,
    /// Fields that a text part may have beside its text.
    labels: u32,
}

/// What the scanner is in the middle of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Now {
    Nothing,
    Key,
    Text,
    Label { room: usize },
    Media,
    Number { token: bool },
    Ignored,
}

/// Bytes of a label that are looked at.
const LABEL_BYTES: usize = 1024;

/// Walks through one field at a time.
pub(super) struct Walker {
    section: Section,
    frames: Vec<Frame>,
    now: Now,
    key: KeyBuffer,
    hasher: Xxh3,
    number: u64,
    /// First byte of the current string, and bytes of JSON of it that have been hashed.
    start: u64,
    source: u64,
    /// Whether elements must be objects, and how many have come.
    objects_only: bool,
    items: u64,
}

impl std::fmt::Debug for Walker {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("Walker").field("section", &self.section).finish_non_exhaustive()
    }
}

impl Walker {
    pub(super) fn new() -> Self {
        Walker {
            section: Section::new(Form::Blocks, 0),
            frames: Vec::new(),
            now: Now::Nothing,
            key: KeyBuffer::new(),
            hasher: Xxh3::new(),
            number: 0,
            start: 0,
            source: 0,
            objects_only: false,
            items: 0,
        }
    }

    /// A field begins; its value comes next.
    pub(super) fn begin(&mut self, section: Section, objects_only: bool) {
        self.section = section;
        self.frames.clear();
        self.now = Now::Nothing;
        self.objects_only = objects_only;
        self.items = 0;
    }

    /// The field is complete.
    pub(super) fn take(&mut self) -> Section {
        self.now = Now::Nothing;
        std::mem::replace(&mut self.section, Section::new(Form::Blocks, 0))
    }

    /// Whether no container of the field is open.
    pub(super) fn is_outside(&self) -> bool {
        self.frames.is_empty()
    }

    pub(super) fn value(&mut self, kind: Kind, offset: u64) {
        let parent = self.frames.last().map(|frame| (frame.level, frame.name));
        if parent.is_some_and(|(level, _)| level == Level::Items) {
            if self.objects_only && kind != Kind::Object && self.section.error.is_none() {
                self.section.error = Some(RequestError::ItemKind { index: self.items, found: kind.as_str() });
            }
            self.items += 1;
        }
        match kind {
            Kind::Object | Kind::Array => {
                let level = self.level(parent, kind);
                if level == Level::Media && parent.is_none_or(|(level, _)| level != Level::Media) {
                    self.section.images = self.section.images.saturating_add(1);
                }
                self.frames.push(Frame {
                    level,
                    object: kind == Kind::Object,
                    hash: 0,
                    count: 0,
                    key: 0,
                    name: Name::Other,
                    text: None,
                    labels: 0,
                });
            }
            Kind::String => {
                self.now = Self::string(parent);
                if self.now == Now::Media && parent.is_some_and(|(level, _)| level != Level::Media) {
                    self.section.images = self.section.images.saturating_add(1);
                }
                (self.start, self.source) = (offset, 0);
                if self.section.hashes() {
                    self.hasher.reset();
                }
            }
            Kind::Number => {
                self.number = 0xCBF2_9CE4_8422_2325;
                self.now = match parent {
                    Some((Level::Items | Level::Tokens, _)) => Now::Number { token: true },
                    Some((Level::Ignored, _)) => Now::Ignored,
                    _ => Now::Number { token: false },
                };
            }
            Kind::Bool(value) => self.done(u64::from(value) + 1),
            Kind::Null => {}
        }
    }

    fn level(&self, parent: Option<(Level, Name)>, kind: Kind) -> Level {
        let array = kind == Kind::Array;
        match parent {
            None => match self.section.form {
                Form::Conversation if array => Level::Items,
                Form::Blocks if array => Level::Parts,
                _ => Level::Plain,
            },
            Some((Level::Items, _)) if array => Level::Tokens,
            Some((Level::Items, _)) => Level::Message,
            Some((Level::Message | Level::Part, name)) => match name {
                Name::Content if array => Level::Parts,
                Name::Content => Level::Part,
                Name::Media => Level::Media,
                Name::Ignored => Level::Ignored,
                _ => Level::Plain,
            },
            Some((Level::Parts, _)) if !array => Level::Part,
            Some((Level::Media, _)) => Level::Media,
            Some((Level::Ignored, _)) => Level::Ignored,
            Some((Level::Parts | Level::Tokens | Level::Plain, _)) => Level::Plain,
        }
    }

    fn string(parent: Option<(Level, Name)>) -> Now {
        match parent {
            Some((Level::Message | Level::Part, Name::Label)) => Now::Label { room: LABEL_BYTES },
            Some((Level::Message | Level::Part, Name::Media)) | Some((Level::Media, _)) => Now::Media,
            Some((Level::Message | Level::Part, Name::Ignored)) | Some((Level::Ignored, _)) => Now::Ignored,
            _ => Now::Text,
        }
    }

    pub(super) fn key(&mut self, offset: u64) {
        self.now = Now::Key;
        self.start = offset;
        self.key.clear();
    }

    pub(super) fn mode(&self) -> Mode {
        match self.now {
            Now::Nothing | Now::Number { .. } | Now::Ignored | Now::Label { room: 0 } => Mode::Skip,
            Now::Key => match self.frames.last().map(|frame| frame.level) {
                Some(Level::Message | Level::Part) => Mode::Decoded,
                Some(Level::Plain | Level::Media) if self.section.hashes() => Mode::Decoded,
                _ => Mode::Skip,
            },
            Now::Text | Now::Label { .. } | Now::Media => {
                if self.section.hashes() {
                    Mode::Raw
                } else {
                    Mode::Skip
                }
            }
        }
    }

    /// Text of a key.
    pub(super) fn text(&mut self, piece: &str) {
        self.key.push(piece.as_bytes());
    }

    pub(super) fn raw(&mut self, piece: &[u8], source: usize) {
        match &mut self.now {
            Now::Text => self.prompt_text(piece, source),
            Now::Label { room } => {
                let (seen, _) = piece.split_at_checked(*room).unwrap_or((piece, &[]));
                *room -= seen.len();
                self.hasher.update(seen);
            }
            Now::Media => self.hasher.update(piece),
            _ => {}
        }
    }

    /// All of a key or a string that is ASCII and has no escapes.
    pub(super) fn word(&mut self, word: &[u8]) {
        match self.mode() {
            Mode::Skip => {}
            Mode::Decoded => self.key.push(word),
            Mode::Raw if word.is_empty() => {}
            Mode::Raw => self.raw(word, word.len()),
        }
    }

    fn prompt_text(&mut self, mut piece: &[u8], source: usize) {
        // Each byte of a piece stands for the same number of bytes of JSON.
        let factor = (source / piece.len().max(1)) as u64;
        while !piece.is_empty() && self.section.hashes() {
            let room = usize::try_from(self.section.room()).unwrap_or(usize::MAX);
            let (now, later) = piece.split_at_checked(room).unwrap_or((piece, &[]));
            piece = later;
            self.hasher.update(now);
            self.source += factor * now.len() as u64;
            if self.section.add_text(now.len() as u64) {
                let hash = mix(self.so_far(), self.hasher.digest());
                self.section.checkpoint(hash, self.source);
            }
        }
    }

    /// Hash of the messages before and of the way to the current text.
    fn so_far(&self) -> u64 {
        if self.frames.is_empty() && self.section.is_user_text {
            return mix(self.section.hash, xxh3_64(b"content"));
        }
        self.frames.iter().fold(self.section.hash, |hash, frame| match frame {
            Frame { object: true, name: Name::Text, .. } | Frame { object: false, count: 0, .. } => hash,
            Frame { object: true, key, .. } => mix(hash, *key),
            Frame { hash: elements, .. } => mix(hash, *elements),
        })
    }

    pub(super) fn number(&mut self, digits: &[u8]) {
        if self.section.hashes() {
            // FNV-1a: numbers are short.
            for digit in digits {
                self.number = (self.number ^ u64::from(*digit)).wrapping_mul(0x0100_0000_01B3);
            }
        }
    }

    pub(super) fn end(&mut self, offset: u64) {
        // Without the quotes.
        let length = offset.saturating_sub(self.start + 2);
        match std::mem::replace(&mut self.now, Now::Nothing) {
            Now::Key => self.end_key(length),
            Now::Text => {
                self.section.bytes += length;
                self.end_string();
            }
            Now::Label { .. } | Now::Media => self.end_string(),
            Now::Number { token: true } => self.end_token(),
            Now::Number { token: false } => self.done(self.number),
            Now::Ignored | Now::Nothing => {}
        }
    }

    fn end_key(&mut self, length: u64) {
        let Some(frame) = self.frames.last_mut() else { return };
        let hashes = self.section.hashes();
        frame.key = if hashes { self.key.hash() } else { 0 };
        match frame.level {
            Level::Message | Level::Part => frame.name = Name::of(self.key.as_bytes(), frame.level == Level::Message),
            // The model reads these keys.
            Level::Plain => {
                self.section.bytes += length;
                if hashes {
                    self.section.add_between(self.key.total);
                }
            }
            _ => {}
        }
    }

    fn end_string(&mut self) {
        let hash = if self.section.hashes() { self.hasher.digest() } else { 0 };
        self.done_text(hash);
    }

    fn end_token(&mut self) {
        self.section.token_ids += 1;
        if !self.section.hashes() {
            return;
        }
        if let Some(frame) = self.frames.last_mut() {
            frame.hash = mix(frame.hash, self.number);
            frame.count += 1;
        }
        if self.section.add_text(4) {
            let hash = self.so_far();
            self.section.checkpoint(hash, 0);
        }
    }

    pub(super) fn close(&mut self) {
        self.now = Now::Nothing;
        let Some(frame) = self.frames.pop() else { return };
        if !self.section.hashes() {
            return;
        }
        match frame {
            // Its elements have been counted one by one, unless they are tokens.
            Frame { level: Level::Items, count: 0, .. } | Frame { level: Level::Ignored, .. } => {}
            Frame { level: Level::Items, hash, .. } => self.section.message(hash),
            Frame { level: Level::Part, text: Some(text), count, labels, .. } if count <= 1 + labels => {
                self.done_text(text);
            }
            Frame { level: Level::Parts, text: Some(text), count: 1, .. } => self.done_text(text),
            Frame { hash, count, .. } => self.done(mix(hash, count.into())),
        }
    }

    /// A value is complete that is nothing but text.
    fn done_text(&mut self, hash: u64) {
        if let Some(frame) = self.frames.last_mut() {
            match frame {
                Frame { object: false, .. } | Frame { name: Name::Text, .. } => frame.text = Some(hash),
                Frame { name: Name::Label, key, .. } if *key == xxh3_64(b"type") => frame.labels += 1,
                Frame { level: Level::Message, name: Name::Label, key, .. } if *key == xxh3_64(b"role") => {
                    self.section.is_system = hash == xxh3_64(b"system") || hash == xxh3_64(b"developer");
                }
                _ => {}
            }
        }
        self.done(hash);
    }

    /// A value is complete.
    fn done(&mut self, hash: u64) {
        if !self.section.hashes() {
            return;
        }
        match self.frames.last_mut() {
            None if self.section.is_user_text => {
                let fields = [(b"role".as_slice(), xxh3_64(b"user")), (b"content", hash)];
                let sum = fields.iter().fold(0, |sum: u64, (key, value)| sum.wrapping_add(mix(xxh3_64(key), *value)));
                self.section.message(mix(sum, 2));
            }
            None if self.section.form == Form::Conversation => self.section.message(hash),
            None => self.section.hash = hash,
            Some(Frame { level: Level::Items, .. }) => self.section.message(hash),
            Some(Frame { level: Level::Message | Level::Part, object: true, name: Name::Ignored, .. }) => {}
            // An item without a type is a message.
            Some(Frame { level: Level::Message, name: Name::Label, key, .. })
                if *key == xxh3_64(b"type") && hash == xxh3_64(b"message") => {}
            Some(frame) if frame.object => {
                frame.hash = frame.hash.wrapping_add(mix(frame.key, hash));
                frame.count += 1;
            }
            Some(frame) => {
                frame.hash = mix(frame.hash, hash);
                frame.count += 1;
            }
        }
    }
}
