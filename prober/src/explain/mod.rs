//! Puts a decision record into sentences, for somebody who was woken up: what was asked, where it went and why, why not
//! elsewhere, how long what took, and where to read on. Pure: a [`Record`] in, an [`Explanation`] out.
//!
//! - [`input`]: the records in a file, whichever way they were saved.
//! - [`choice`]: why there and not elsewhere.
//! - [`course`]: what happened then.
//! - [`next`]: where to read on.
//! - [`words`]: numbers, times and lists as people read them.

mod choice;
mod course;
pub mod input;
pub mod next;
mod words;

#[cfg(test)]
mod tests;

use std::fmt;

use weighbridge_routing::decision::record::Record;

use words::{count, counted, plain};

/// What a paragraph is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// When, which request, what was asked.
    Request,
    /// Where it went and why, or why nowhere.
    Choice,
    /// Why not to each of the others.
    Others,
    /// Waiting, retries, times, how it ended.
    Course,
    /// Where to read on.
    Next,
}

impl About {
    /// The word for it in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            About::Request => "request",
            About::Choice => "choice",
            About::Others => "others",
            About::Course => "course",
            About::Next => "next",
        }
    }

    /// A heading.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            About::Request => "Request",
            About::Choice => "Choice",
            About::Others => "The others",
            About::Course => "What happened",
            About::Next => "What to do",
        }
    }
}

/// A record in sentences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Never empty; each has at least one sentence.
    pub paragraphs: Vec<(About, Vec<String>)>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (about, sentences) in &self.paragraphs {
            writeln!(f, "{}", about.title())?;
            for sentence in sentences {
                writeln!(f, "  {sentence}")?;
            }
        }
        Ok(())
    }
}

/// Explains all of it, a blank line between one request and the next.
#[must_use]
pub fn text(input: &input::Input) -> String {
    let records = input.records.iter().map(|record| explain(record).to_string());
    let undecided = input.undecided.iter().map(|sentence| format!("{sentence}\n"));
    records.chain(undecided).collect::<Vec<_>>().join("\n")
}

/// Explains a record.
#[must_use]
pub fn explain(record: &Record) -> Explanation {
    let mut paragraphs = vec![
        (About::Request, request(record)),
        (About::Choice, choice::why(record)),
        (About::Others, choice::others(record)),
        (About::Course, course::of(record)),
        (About::Next, next::steps(record).iter().map(ToString::to_string).collect()),
    ];
    paragraphs.retain(|(_, sentences)| !sentences.is_empty());
    Explanation { paragraphs }
}

fn request(record: &Record) -> Vec<String> {
    let mut first = match words::time(record.time_ms) {
        Some(time) => format!("At {time} a request"),
        None => "A request".to_owned(),
    };
    if let Some(id) = &record.request_id {
        first += &format!(" ({})", plain(id));
    }
    first += &format!(" came for pool {}", plain(&record.pool));
    if let Some(envoy) = record.envoy.as_ref().filter(|envoy| !envoy.is_empty()) {
        first += &format!(" at Envoy {}", plain(envoy));
    }
    first.push('.');
    if let Some(asked) = &record.spilled_from {
        first += &format!(" It was meant for pool {}, which was full, and spilled over.", plain(asked));
    }
    let mut sentences = vec![first];
    let answer = match record.output_tokens {
        0 => "no tokens of answer were expected".to_owned(),
        tokens => format!("an answer of about {} was expected", counted(tokens, "token")),
    };
    sentences.push(format!("Its prompt had about {}, {answer}.", counted(record.prompt_tokens, "token")));
    let policy = if record.policy.is_empty() { String::new() } else { format!("policy {}, ", plain(&record.policy)) };
    let signals = match record.signals.as_deref() {
        Some("stale") => ". What engines and other Envoys report was stale, so own counts decided alone",
        _ => "",
    };
    sentences.push(format!("Decided by {policy}snapshot {}{signals}.", record.snapshot));
    if let Some(shadow) = &record.shadow {
        let policy = plain(&shadow.policy);
        let picked = shadow.picked.as_deref().map_or_else(|| "nobody".to_owned(), plain);
        sentences.push(match shadow.routed {
            true => format!(
                "It was one of the requests that the second policy {policy} decides (canary): it picked {picked}."
            ),
            false => format!("The second policy {policy} would have picked {picked}; it was only compared (shadow)."),
        });
    }
    if record.omitted > 0 {
        sentences.push(format!("The pool has {} more endpoints than this record shows.", count(record.omitted)));
    }
    sentences
}
