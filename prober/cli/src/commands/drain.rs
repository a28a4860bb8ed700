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
use crate::paint::{WARN, in_style};

/// How often it is looked whether somebody is left.
const LOOK: Duration = Duration::from_millis(500);

pub(super) async fn drain(prober: &Prober, out: Output, drain: &Drain) -> Result<Exit, Failure> {
    // Null is as good as nothing: the prober's own deadline.
    let deadline_s = drain.deadline.map(whole_seconds);
    let body = json!({"reason": drain.reason, "deadline_s": deadline_s});
    // Before it is one of those that serve no more. Nobody is kept from draining by an answer that does not come.
    let before = prober.get("/v1/endpoints").await.unwrap_or_default();
    let mut answer = prober.endpoint(Method::PUT, &drain.id, "/drain", Some(&body), ANSWER).await?;
    if let Some(pool) = served_alone(&before, &drain.id) {
        warn(out, &drain.id, &pool);
    }
    if !drain.wait {
        if is_uncounted(&answer.body) {
            // The prober has not looked yet.
            tokio::time::sleep(LOOK).await;
            if let Ok(counted) = prober.endpoint(Method::GET, &drain.id, "", None, ANSWER).await {
                answer.body = counted.body;
            }
        }
        told(out, &answer, drained);
        return Ok(Exit::Ok);
    }
    if !is_uncounted(&answer.body) {
        out.note(&drained(&answer.body));
    }
    let wait = wait(prober, out, &drain.id);
    let (exit, answer) = tokio::time::timeout(drain.timeout, wait).await.unwrap_or_else(|_| {
        let message = format!("{} is not empty after {}", drain.id, humantime::format_duration(drain.timeout));
        Err(Failure::new(Exit::TimedOut, "timed_out", message))
    })?;
    told(out, &answer, drained);
    Ok(exit)
}

/// Whether an endpoint drains, and nothing is said of the requests that it has left.
fn is_uncounted(view: &Value) -> bool {
    view.pointer("/drain/state").is_some() && view.pointer("/drain/in_flight").is_none_or(Value::is_null)
}

/// The pool of which this endpoint is the only one that takes requests, in an answer of `GET /v1/endpoints`.
fn served_alone(endpoints: &Value, of: &str) -> Option<String> {
    let list = endpoints.get("endpoints")?.as_array()?;
    let is = |view: &Value, field: &str, text: &str| view.get(field).and_then(Value::as_str) == Some(text);
    let serving = || list.iter().filter(|view| is(view, "state", "ready"));
    let pool = serving().find(|view| is(view, "id", of))?.get("pool")?.as_str()?;
    let alone = serving().filter(|view| is(view, "pool", pool)).count() == 1;
    alone.then(|| pool.to_owned())
}

fn warn(out: Output, of: &str, pool: &str) {
    let message = format!(
        "{} was the last endpoint of pool {} that serves: until another one does, or `weighbridge undrain`, the pool's requests are \
         refused, unless it has a pool to spill to (admission.spill_to)",
        plain(of),
        plain(pool)
    );
    let json = json!({"warning": {"code": "last_serving", "message": message}});
    out.beside(&json, || format!("{} {message}", in_style(WARN, "warning:")));
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
    let text = |name: &str| plain(drain.get(name).and_then(Value::as_str).unwrap_or_default());
    let draining = text("state") == "draining";
    let left = match drain.get("in_flight").and_then(Value::as_u64) {
        None => {
            let then = if draining { "; it will be once they do, as `weighbridge status` shows" } else { "" };
            format!(
                "how many requests are left there is not known, since not every Envoy reports (or none does), and the engine does not \
                 tell{then}"
            )
        }
        Some(0) => "no request is left".to_owned(),
        Some(1) => "1 request is left".to_owned(),
        Some(many) => format!("{many} requests are left"),
    };
    let until = if draining { format!("; the deadline is {}", text("deadline")) } else { String::new() };
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
            "a takes no more requests (draining): 2 requests are left; the deadline is T"
        );
        assert_eq!(
            view(json!({"state": "drained", "in_flight": 0})),
            "a takes no more requests (drained): no request is left"
        );
        let unknown = "how many requests are left there is not known, since not every Envoy reports (or none does), and the engine \
                       does not tell";
        assert_eq!(
            view(json!({"state": "draining", "in_flight": null, "deadline": "T"})),
            format!(
                "a takes no more requests (draining): {unknown}; it will be once they do, as `weighbridge status` shows; the deadline \
                 is T"
            )
        );
        assert_eq!(view(json!({"state": "overdue"})), format!("a takes no more requests (overdue): {unknown}"));
    }

    #[test]
    fn what_is_not_counted_yet_is_asked_for_again() {
        let view = |drain: Value| is_uncounted(&json!({"id": "a", "drain": drain}));
        assert!(view(json!({"state": "draining", "in_flight": null})) && view(json!({"state": "draining"})));
        assert!(!view(json!({"state": "draining", "in_flight": 0})) && !view(Value::Null));
    }

    #[test]
    fn the_last_that_serves_is_known() {
        let alone = |states: &[(&str, &str, &str)]| {
            let list = states.iter().map(|(id, pool, state)| json!({"id": id, "pool": pool, "state": state}));
            served_alone(&json!({"endpoints": list.collect::<Vec<_>>()}), "a")
        };
        let last = Some("p".to_owned());
        assert_eq!(alone(&[("a", "p", "ready")]), last);
        assert_eq!(alone(&[("a", "p", "ready"), ("b", "p", "ready")]), None);
        for out in ["draining", "unhealthy", "new", "probing"] {
            assert_eq!(alone(&[("a", "p", "ready"), ("b", "p", out), ("c", "q", "ready")]), last, "{out}");
            // It serves no more itself: nobody loses anything.
            assert_eq!(alone(&[("a", "p", out), ("b", "p", out)]), None, "{out}");
        }
        assert_eq!((alone(&[]), served_alone(&Value::Null, "a")), (None, None));
    }
}
