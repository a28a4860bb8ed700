//! `explain`

use std::path::Path;

use serde_json::json;
use weighbridge_prober::explain::input::{self, Input, InputError};
use weighbridge_prober::explain::{self};

use super::files;
use crate::args::Explain;
use crate::client::{Prober, encoded};
use crate::exit::{Exit, Failure};
use crate::output::Output;

/// What is in a file.
pub(super) fn file(path: &Path, out: Output) -> Result<Exit, Failure> {
    let text = files::read(path)?;
    let unreadable = |error: InputError| {
        let exit = if error == InputError::Nothing { Exit::Problems } else { Exit::Usage };
        Failure::new(exit, "no_records", format!("{} cannot be explained: {error}", files::shown(path)))
    };
    print(&input::read(&text).map_err(unreadable)?, out);
    Ok(Exit::Ok)
}

/// What the prober has kept.
pub(super) async fn asked(prober: &Prober, out: Output, options: &Explain) -> Result<Exit, Failure> {
    let answer = prober.get(&query(options)).await?;
    match input::read(&answer.to_string()) {
        Ok(input) => {
            print(&input, out);
            Ok(Exit::Ok)
        }
        Err(InputError::Nothing) => {
            let message = "no kept decision record matches; docs/decisions.md says which are kept";
            Err(Failure::new(Exit::Problems, "no_records", message))
        }
        Err(error) => Err(Failure::new(Exit::Refused, "no_records", format!("the prober's answer: {error}"))),
    }
}

fn query(options: &Explain) -> String {
    let slow_ms = options.slow_ms.map(|ms| ms.to_string());
    let parameters = [
        ("request_id", &options.request_id),
        ("slow_ms", &slow_ms),
        ("endpoint", &options.endpoint),
        ("pool", &options.pool),
        ("since", &options.since),
    ];
    let given =
        parameters.into_iter().filter_map(|(name, value)| Some(format!("&{name}={}", encoded(value.as_ref()?))));
    format!("/v1/decisions?limit={}{}", options.limit, given.collect::<String>())
}

fn print(input: &Input, out: Output) {
    let paragraphs = |record| {
        let paragraphs = explain::explain(record).paragraphs.into_iter();
        paragraphs.map(|(about, sentences)| json!({"title": about.title(), "sentences": sentences})).collect::<Vec<_>>()
    };
    let explanations: Vec<_> = input.records.iter().map(paragraphs).collect();
    out.result(&json!({"explanations": explanations, "undecided": input.undecided}), || explain::text(input));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_given_is_asked_for() {
        let options = Explain {
            file: None,
            request_id: Some("a/b&c".into()),
            slow_ms: Some(900),
            endpoint: None,
            pool: None,
            since: Some("2026-01-31T03:00:00Z".into()),
            limit: 3,
        };
        assert_eq!(
            query(&options),
            "/v1/decisions?limit=3&request_id=a%2Fb%26c&slow_ms=900&since=2026-01-31T03%3A00%3A00Z"
        );
    }
}
