//! What happened after the decision: waiting, retries, times, the end.

use weighbridge_routing::decision::record::{Outcome, Record};

use super::words::{count, counted, duration, list, plain, tenths};

/// The parts of a request's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// In our queue.
    Queue,
    /// From the decision to the first token: the network, the engine's own queue, reading the prompt.
    FirstToken,
    /// From there to the end.
    Generation,
    /// All of an answer that came in one piece.
    Whole,
}

/// How long each part took, in ms; the wait in the queue is in none of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) queue_ms: u64,
    pub(super) first_token_ms: Option<u64>,
    pub(super) duration_ms: u64,
    /// Whether the answer came in one piece, so that the first token's time says nothing.
    one_piece: bool,
}

impl Times {
    pub(super) fn of(record: &Record) -> Self {
        let result = record.result.as_ref();
        let queue_ms = record.queue.as_ref().map_or(0, |queue| queue.wait_ms);
        let without_wait = |ms: u64| ms.saturating_sub(queue_ms);
        let duration_ms = without_wait(result.map_or(0, |result| result.duration_ms));
        let first_token_ms = result.and_then(|result| result.ttft_ms);
        let first_token_ms = first_token_ms.map(|ttft_ms| without_wait(ttft_ms).min(duration_ms));
        let tokens = result.and_then(|result| result.completion_tokens).unwrap_or_default();
        let after_ms = first_token_ms.map_or(0, |first_ms| duration_ms - first_ms);
        Times {
            queue_ms,
            first_token_ms,
            duration_ms,
            // Nobody generates tokens at a fifth of a millisecond each.
            one_piece: tokens > 1 && after_ms.saturating_mul(5) < tokens,
        }
    }

    fn generation_ms(&self) -> u64 {
        self.first_token_ms.map_or(0, |first_ms| self.duration_ms - first_ms)
    }

    /// What took longest.
    pub(super) fn longest(&self) -> (Part, u64) {
        let rest = match self.first_token_ms {
            Some(_) if self.one_piece => vec![(Part::Whole, self.duration_ms)],
            Some(first_ms) => vec![(Part::FirstToken, first_ms), (Part::Generation, self.generation_ms())],
            None => vec![(Part::Whole, self.duration_ms)],
        };
        let queue = (Part::Queue, self.queue_ms);
        rest.into_iter().fold(queue, |longest, part| if part.1 > longest.1 { part } else { longest })
    }

    fn total_ms(&self) -> u64 {
        self.queue_ms.saturating_add(self.duration_ms)
    }
}

/// All of it.
pub(super) fn of(record: &Record) -> Vec<String> {
    let mut sentences = Vec::new();
    if let Some(queue) = &record.queue {
        let place = match queue.position {
            0 => ", first in line".to_owned(),
            before => format!(" behind {}", counted(before, "other request")),
        };
        sentences.push(format!("It waited {} in the queue for a free slot{place}.", duration(queue.wait_ms)));
    }
    let Some(result) = &record.result else {
        if record.picked.is_some() {
            sentences.push(
                "How it ended is not in this record: it was written before the answer (a response header).".into(),
            );
        }
        return sentences;
    };
    sentences.extend(retries(record, result));
    sentences.extend(ending(result));
    sentences.extend(timing(record, result));
    sentences.extend(cache(record, result));
    sentences
}

fn retries(record: &Record, result: &Outcome) -> Option<String> {
    if result.attempts < 2 {
        return None;
    }
    let tried: Vec<_> = match result.tried.is_empty() {
        true => record.hosts.iter().take(result.attempts as usize).map(|id| plain(id)).collect(),
        false => result.tried.iter().map(|id| plain(id)).collect(),
    };
    Some(format!("Envoy made {} attempts, at {}.", count(result.attempts.into()), list(&tried)))
}

/// How it ended.
fn ending(result: &Outcome) -> Option<String> {
    let details = result.details.as_deref().unwrap_or_default();
    let said = if details.is_empty() { String::new() } else { format!(" Envoy says: {}.", plain(details)) };
    let who = result.endpoint.as_deref().map(plain);
    let sentence = match (who, result.status) {
        _ if details.starts_with("downstream") || details.starts_with("http1.codec_error") => {
            let before = if result.status == 0 { "before an answer began" } else { "before the answer was complete" };
            format!("The client left {before}.{said}")
        }
        (Some(who), 200..300) if result.error => {
            format!("{who} answered {}, but an error object came inside the answer.{said}", result.status)
        }
        (Some(who), 200..300) if !details.is_empty() => {
            format!("{who} answered {}, and the answer broke off.{said}", result.status)
        }
        (Some(who), 200..300) => {
            let finish =
                result.finish.as_deref().map_or_else(String::new, |finish| format!(" (finish: {})", plain(finish)));
            format!("{who} answered {}{finish}.", result.status)
        }
        (Some(who), 429) => format!("{who} itself answered 429: it had too much to do.{said}"),
        (Some(who), 400..500) => format!("{who} itself answered {}: it did not like the request.{said}", result.status),
        (Some(who), status) => format!("{who} itself answered {status}: the engine failed.{said}"),
        (None, 0) => format!("Nobody answered.{said}"),
        (None, status) => format!("No endpoint answered; Envoy did, with {status}.{said}"),
    };
    Some(sentence)
}

/// Tokens per second, where there is something to divide by.
fn speed(tokens: u64, ms: u64) -> Option<f64> {
    (tokens > 1 && ms > 0).then(|| tokens as f64 / (ms as f64 / 1e3))
}

fn timing(record: &Record, result: &Outcome) -> Vec<String> {
    let times = Times::of(record);
    if times.total_ms() == 0 {
        return Vec::new();
    }
    let tokens = result.completion_tokens.unwrap_or_default();
    let mut parts = Vec::new();
    if times.queue_ms > 0 {
        parts.push(format!("{} in the queue", duration(times.queue_ms)));
    }
    match times.first_token_ms {
        Some(first_ms) if !times.one_piece => {
            parts.push(format!("{} to the first token", duration(first_ms)));
            let rest = times.generation_ms();
            if rest > 0 {
                // The first token is there when this time begins.
                let speed = speed(tokens.saturating_sub(1), rest).map(|tps| format!(" ({} tokens/s)", tenths(tps)));
                let what = match tokens {
                    0 => "for the rest".to_owned(),
                    tokens => format!("for the rest of {}", counted(tokens, "token")),
                };
                parts.push(format!("{} {what}{}", duration(rest), speed.unwrap_or_default()));
            }
        }
        _ => {
            let speed = speed(tokens, times.duration_ms)
                .map(|tps| format!(" ({} tokens/s, reading the prompt included)", tenths(tps)));
            let what = match tokens {
                0 => "at the endpoint".to_owned(),
                tokens => format!("for an answer of {} in one piece", counted(tokens, "token")),
            };
            parts.push(format!("{} {what}{}", duration(times.duration_ms), speed.unwrap_or_default()));
        }
    }
    let mut sentences = vec![format!("It took {}: {}.", duration(times.total_ms()), list(&parts))];
    let (part, ms) = times.longest();
    let share = ms.saturating_mul(100) / times.total_ms().max(1);
    let what = match part {
        Part::Queue => "waiting for a free slot",
        Part::FirstToken => {
            "waiting for the first token: the way there, the engine's own queue, and reading the prompt"
        }
        Part::Generation => "generating",
        Part::Whole => return sentences,
    };
    if parts.len() > 1 {
        sentences.push(format!("Most of it ({share} %) was {what}."));
    }
    sentences
}

/// What the engine had of the prompt, against what we believed.
fn cache(record: &Record, result: &Outcome) -> Option<String> {
    let prompt = result.prompt_tokens?;
    let counted_prompt = counted(prompt, "token");
    let Some(cached) = result.cached_tokens else {
        return Some(format!("The engine counted {counted_prompt} of prompt; it does not say how many it had cached."));
    };
    let read = format!(
        "Of {counted_prompt} of prompt the engine had {} cached and read {}.",
        count(cached),
        count(prompt.saturating_sub(cached))
    );
    let believed = record.prefix.as_ref().filter(|prefix| {
        let there = |id: &String| result.endpoint.as_ref() == Some(id);
        prefix.holders.iter().any(there)
    });
    match believed {
        Some(prefix) if cached.saturating_mul(2) < prefix.matched_tokens => {
            let matched = count(prefix.matched_tokens);
            Some(format!("{read} We believed that it held {matched}: it had forgotten."))
        }
        _ => Some(read),
    }
}
