//! `drain` and `undrain`

use std::io::IsTerminal;
use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};

use super::pin::{id, told};
use super::probe::Line;
use crate::args::Drain;
use crate::client::{ANSWER, Answer, Prober};
use crate::exit::{Exit, Failure};
use crate::output::{Output, plain};

/// How often it is looked whether somebody is left.
const LOOK: Duration = Duration::from_millis(500);

pub(super) async fn drain(prober: &Prober, out: Output, drain: &Drain) -> Result<Exit, Failure> {
    // Null is as good as nothing: the prober's own deadline.
    let deadline_s = drain.deadline.map(whole_seconds);
    let body = json!({"reason": drain.reason, "deadline_s": deadline_s});
    let answer = prober.endpoint(Method::PUT, &drain.id, "/drain", Some(&body), ANSWER).await?;
    if !drain.wait {
        told(out, &answer, drained);
        return Ok(Exit::Ok);
    }
    out.note(&drained(&answer.body));
    let wait = wait(prober, out, &drain.id);
    let (exit, answer) = tokio::time::timeout(drain.timeout, wait).await.unwrap_or_else(|_| {
        let message = format!("{} is not empty after {}", drain.id, humantime::format_duration(drain.timeout));
        Err(Failure::new(Exit::TimedOut, "timed_out", message))
    })?;
    told(out, &answer, drained);
    Ok(exit)
}

/// As the prober takes it. Nobody gets less than was asked for.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}

/// Until it is empty, too late, or no longer drained.
async fn wait(prober: &Prober, out: Output, of: &str) -> Result<(Exit, Answer), Failure> {
    let mut line = Line::new(!out.json && std::io::stderr().is_terminal());
    loop {
        let answer = prober.endpoint(Method::GET, of, "", None, ANSWER).await?;
        let exit = match answer.body.pointer("/drain/state").and_then(Value::as_str) {
            Some("drained") => Some(Exit::Ok),
            Some("draining") => None,
            // Overdue, or somebody has taken it back.
            _ => Some(Exit::Problems),
        };
        line.show(&drained(&answer.body));
        if let Some(exit) = exit {
            line.end();
            return Ok((exit, answer));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// How far a drain is.
fn drained(view: &Value) -> String {
    let drain = view.get("drain").filter(|drain| !drain.is_null());
    let Some(drain) = drain else { return format!("{} is not drained", id(view)) };
    let left = match drain.get("in_flight").and_then(Value::as_u64) {
        None => "nobody tells how many requests are left".to_owned(),
        Some(0) => "no request is left".to_owned(),
        Some(1) => "1 request is left".to_owned(),
        Some(many) => format!("{many} requests are left"),
    };
    let text = |name: &str| plain(drain.get(name).and_then(Value::as_str).unwrap_or_default());
    let until = if text("state") == "draining" { format!(", until {}", text("deadline")) } else { String::new() };
    format!("{} takes no more requests ({}): {left}{until}", id(view), text("state"))
}

pub(super) async fn undrain(prober: &Prober, out: Output, of: &str) -> Result<Exit, Failure> {
    let answer = prober.endpoint(Method::DELETE, of, "/drain", None, ANSWER).await?;
    let state = |view: &Value| plain(view.get("state").and_then(Value::as_str).unwrap_or_default());
    told(out, &answer, |view| format!("{} is back: {}", id(view), state(view)));
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_of_a_second_counts_as_one() {
        assert_eq!([1_000, 1_001, 2_500].map(|ms| whole_seconds(Duration::from_millis(ms))), [1, 2, 3]);
    }

    #[test]
    fn a_drain_is_told_in_words() {
        let view = |drain: Value| drained(&json!({"id": "a", "drain": drain}));
        assert_eq!(view(Value::Null), "a is not drained");
        assert_eq!(
            view(json!({"state": "draining", "in_flight": 2, "deadline": "T"})),
            "a takes no more requests (draining): 2 requests are left, until T"
        );
        assert_eq!(
            view(json!({"state": "drained", "in_flight": 0})),
            "a takes no more requests (drained): no request is left"
        );
    }
}
