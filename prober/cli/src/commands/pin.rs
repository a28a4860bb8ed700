//! `pin` and `unpin`

use hyper::Method;
use serde_json::{Value, json};

use crate::args::Pin;
use crate::client::{ANSWER, Answer, Prober};
use crate::exit::{Exit, Failure};
use crate::output::{Output, plain};

pub(super) async fn pin(prober: &Prober, out: Output, pin: &Pin) -> Result<Exit, Failure> {
    let body = json!({"weight": pin.weight, "reason": pin.reason});
    let answer = prober.endpoint(Method::PUT, &pin.id, "/pin", Some(&body), ANSWER).await?;
    told(out, &answer, |view| format!("{} is pinned to weight {}", id(view), weight(view)));
    Ok(Exit::Ok)
}

pub(super) async fn unpin(prober: &Prober, out: Output, of: &str) -> Result<Exit, Failure> {
    let answer = prober.endpoint(Method::DELETE, of, "/pin", None, ANSWER).await?;
    told(out, &answer, |view| {
        let source = view.get("weight_source").and_then(Value::as_str).unwrap_or_default();
        format!("{} is not pinned: weight {} ({})", id(view), weight(view), plain(source))
    });
    Ok(Exit::Ok)
}

/// The endpoint as it is after a change.
pub(super) fn told(out: Output, answer: &Answer, words: impl FnOnce(&Value) -> String) {
    out.result(&answer.body, || words(&answer.body));
    if answer.status == 202 {
        out.note("it is in force, but not stored yet: the store does not answer");
    }
}

/// Which endpoint.
pub(super) fn id(view: &Value) -> String {
    plain(view.get("id").and_then(Value::as_str).unwrap_or_default())
}

fn weight(view: &Value) -> String {
    format!("{:.2}", view.get("weight").and_then(Value::as_f64).unwrap_or_default())
}
