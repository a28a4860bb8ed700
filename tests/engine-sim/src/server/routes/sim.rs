//! The simulator's own paths.

use hyper::{Response, StatusCode};
use serde::Deserialize;

use super::super::body::Answer;
use super::super::core::Core;
use super::super::fault::Fault;
use super::super::shapes::{ApiError, Style};
use super::respond::{self, JSON, full, json};

pub(super) fn state(core: &Core) -> Response<Answer> {
    match serde_json::to_value(core.state()) {
        Ok(serde_json::Value::Object(mut state)) => {
            state.insert("records".to_owned(), serde_json::json!(core.records()));
            json(&serde_json::Value::Object(state))
        }
        _ => full(StatusCode::INTERNAL_SERVER_ERROR, JSON, "{}"),
    }
}

pub(super) fn fault(core: &Core, body: &[u8]) -> Response<Answer> {
    let fault = serde_json::from_slice::<Fault>(body).map_err(|error| error.to_string());
    match fault.and_then(|fault| fault.check().map(|()| fault)) {
        Ok(fault) => {
            core.set_fault(fault.clone());
            json(&serde_json::json!(fault))
        }
        Err(error) => respond::error(Style::OpenAi, &ApiError::bad(None, error)),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Restart {
    #[serde(default = "yes")]
    cold: bool,
    #[serde(default)]
    launch_args: Option<String>,
}

fn yes() -> bool {
    true
}

pub(super) fn restart(core: &Core, body: &[u8]) -> Response<Answer> {
    let body = if body.is_empty() { b"{}" } else { body };
    match serde_json::from_slice::<Restart>(body) {
        Ok(Restart { cold, launch_args }) => {
            core.restart(cold, launch_args);
            json(&serde_json::json!(core.state()))
        }
        Err(error) => respond::error(Style::OpenAi, &ApiError::bad(None, error.to_string())),
    }
}
