//! What is printed: text with colours only where somebody looks, or JSON.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::exit::Failure;

/// Where a command writes to.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    /// JSON on stdout, errors as JSON on stderr.
    pub json: bool,
}

impl Output {
    /// The result: as JSON, or in words.
    pub fn result(self, json: &impl Serialize, words: impl FnOnce() -> String) {
        // Whoever reads may have seen enough.
        let _ = match self.json {
            true => self.line(&serde_json::to_string_pretty(json).unwrap_or_default()),
            false => self.line(words().trim_end()),
        };
    }

    /// Lines on stdout. Colours are taken out where it is no terminal, or `NO_COLOR` is set.
    ///
    /// # Errors
    /// When it cannot be written, such as to a reader that has gone.
    pub fn line(self, text: &str) -> io::Result<()> {
        writeln!(anstream::stdout(), "{text}")
    }

    /// What belongs to the result and must not stand within it: on stderr, as JSON or in words.
    pub fn beside(self, json: &impl Serialize, words: impl FnOnce() -> String) {
        let text = match self.json {
            true => serde_json::to_string(json).unwrap_or_default(),
            false => words().trim_end().to_owned(),
        };
        let _ = writeln!(anstream::stderr(), "{text}");
    }

    /// Something beside the result, for people.
    pub fn note(self, text: &str) {
        if !self.json {
            let _ = writeln!(anstream::stderr(), "{text}");
        }
    }

    /// Why it failed.
    pub fn failure(self, failure: &Failure) {
        let _ = match self.json {
            true => writeln!(anstream::stderr(), "{}", failure.json()),
            false => writeln!(
                anstream::stderr(),
                "{}error:{} {}",
                crate::paint::BAD,
                crate::paint::END,
                plain(&failure.message)
            ),
        };
    }

    /// Whether somebody looks at stdout.
    #[must_use]
    pub fn is_watched(self) -> bool {
        !self.json && std::io::stdout().is_terminal()
    }
}

/// A text from elsewhere without anything that a terminal might obey; lines stay.
#[must_use]
pub fn plain(text: &str) -> String {
    text.chars()
        .map(|character| if character.is_control() && character != '\n' { '\u{fffd}' } else { character })
        .collect()
}
