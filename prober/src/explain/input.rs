//! The records in a file, whichever way they were saved: one record, an array of them, the answer of
//! `GET /v1/decisions`, lines of Envoy's access log, or records one to a line.

use serde_json::Value;
use weighbridge_routing::decision::record::Record;

/// What was found.
#[derive(Debug, Default)]
pub struct Input {
    /// The records, in the order of the file.
    pub records: Vec<Record>,
    /// Lines of an access log without one, as sentences: those requests were answered before a decision.
    pub undecided: Vec<String>,
}

/// Why nothing can be explained.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// Nothing in it.
    #[error(
        "it is empty: expected a decision record, an array of them, an access-log line, or an answer of GET /v1/decisions"
    )]
    Empty,
    /// An answer without records.
    #[error("it has no decision records: nothing matched")]
    Nothing,
    /// Not JSON.
    #[error("line {line} is not JSON: {why}")]
    NotJson {
        /// From 1.
        line: usize,
        /// The parser's words.
        why: String,
    },
    /// JSON, but not a record.
    #[error("{place} is not a decision record: {why}")]
    NotARecord {
        /// Which part of the file.
        place: String,
        /// What is wrong with it.
        why: String,
    },
}

/// Finds the records.
///
/// # Errors
/// When there are none, or something stands where one should.
pub fn read(text: &str) -> Result<Input, InputError> {
    let text = text.trim_start_matches('\u{feff}').trim();
    if text.is_empty() {
        return Err(InputError::Empty);
    }
    let mut input = Input::default();
    match serde_json::from_str(text) {
        Ok(value) => take(value, "the file", &mut input)?,
        // Not one document: then a document to a line, or broken, which the first bad line tells.
        Err(error) => {
            let lines = || text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
            if lines().count() == 1 {
                return Err(InputError::NotJson { line: error.line(), why: error.to_string() });
            }
            for (nth, line) in lines() {
                let value = serde_json::from_str(line).map_err(|line_error| {
                    // A document over several lines is broken where the whole of it is.
                    let (line, why) =
                        if nth == 0 { (error.line(), error.to_string()) } else { (nth + 1, line_error.to_string()) };
                    InputError::NotJson { line, why }
                })?;
                take(value, &format!("line {}", nth + 1), &mut input)?;
            }
        }
    }
    if input.records.is_empty() && input.undecided.is_empty() {
        return Err(InputError::Nothing);
    }
    Ok(input)
}

fn take(value: Value, place: &str, input: &mut Input) -> Result<(), InputError> {
    let not = |why: String| InputError::NotARecord { place: place.to_owned(), why };
    match value {
        Value::Array(values) => {
            for (nth, value) in values.into_iter().enumerate() {
                take(value, &format!("record {nth} of {place}"), input)?;
            }
            Ok(())
        }
        Value::Object(mut object) => {
            if let Some(Value::Array(values)) = object.remove("decisions") {
                return take(Value::Array(values), place, input);
            }
            if let Some(decision) = object.remove("decision") {
                return line(&object, decision, input).map_err(not);
            }
            if let Some(error) = object.get("error") {
                return Err(not(format!("it is an error answer: {error}")));
            }
            input
                .records
                .push(Record::from_json(&Value::Object(object).to_string()).map_err(|error| not(error.to_string()))?);
            Ok(())
        }
        other => Err(not(format!("it is {}: expected an object", kind(&other)))),
    }
}

/// A line of the access log, which has time and request id beside the record.
fn line(line: &serde_json::Map<String, Value>, decision: Value, input: &mut Input) -> Result<(), String> {
    let text = |name: &str| line.get(name).and_then(Value::as_str).filter(|text| *text != "-");
    let json = match decision {
        Value::String(json) if json != "-" => json,
        Value::Object(object) => Value::Object(object).to_string(),
        _ => {
            let status = line.get("status").map_or_else(String::new, |status| format!(" with {status}"));
            let details = text("details").unwrap_or("no details");
            let details = super::words::plain(details);
            input.undecided.push(format!("This request was answered before a decision{status}: {details}."));
            return Ok(());
        }
    };
    let mut record = Record::from_json(&json).map_err(|error| format!("decision: {error}"))?;
    if record.request_id.is_none() {
        record.request_id = text("request_id").map(str::to_owned);
    }
    if record.time_ms == 0 {
        let time = text("time").and_then(|time| humantime::parse_rfc3339_weak(time).ok());
        let since = time.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        record.time_ms = since.map_or(0, |since| since.as_millis() as u64);
    }
    input.records.push(record);
    Ok(())
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
