//! A request makes the host calls of docs/overhead.md and no others: each costs about as much as the pick itself.

use harness::echo::Echo;
use harness::hostcalls::{self, Step};
use harness::load::Call;
use harness::snapshot::{endpoint, pool, snapshot};
use harness::{Envoy, EnvoyOptions};
use serde_json::json;

fn chat(text: &str) -> Call {
    let messages = json!([{"role": "user", "content": text.repeat(100)}]);
    Call::json("/v1/chat/completions", &json!({"model": "m", "messages": messages, "max_tokens": 16}))
}

fn calls(steps: &[Step]) -> Vec<&str> {
    steps.iter().filter_map(Step::call).collect()
}

const KNOWN: [&str; 17] = [
    "proxy_get_header_map_value", // :path
    "proxy_get_buffer_bytes",     // the body
    "clock_time_get",
    "proxy_get_shared_data",          // who holds the prompt
    "proxy_get_shared_data",          // the live table
    "proxy_set_shared_data",          // the request is counted
    "proxy_replace_header_map_value", // x-weighbridge-cluster
    "proxy_replace_header_map_value", // x-weighbridge-host
    "proxy_get_property",             // upstream.address
    "proxy_get_header_map_value",     // :status
    "proxy_replace_header_map_value", // x-weighbridge-endpoint
    "proxy_get_buffer_bytes",         // the answer
    "clock_time_get",
    "clock_time_get",
    "proxy_get_shared_data", // the live table
    "proxy_set_shared_data", // the request is given back
    "proxy_set_property",    // the decision record
];

#[tokio::test]
async fn a_request_makes_the_calls_that_are_documented() {
    let echo = Echo::start().await.unwrap();
    let fleet = snapshot(vec![pool("m", vec![endpoint("e1", echo.addr(1), 1.0)])]);
    let envoy = Envoy::start(EnvoyOptions { concurrency: 1, ..EnvoyOptions::fixed(fleet) }).await.unwrap();
    let (old, new) = (chat("what the lorry carries "), chat("what the weighbridge says "));
    // Makes what is made once: rows, values, names of metrics.
    for _ in 0..2 {
        hostcalls::of(&envoy, &old).await.unwrap();
    }
    let known = hostcalls::of(&envoy, &old).await.unwrap();
    assert_eq!(calls(&known), KNOWN);

    // A prompt that nobody holds is looked for at each of its checkpoints and learnt: each is read again and written. No swap
    // tells of a first token when the answer comes in one piece. (The lookup that found nothing is a metric that is new.)
    let cold = hostcalls::of(&envoy, &new).await.unwrap();
    let count = |name: &str| calls(&cold).iter().filter(|call| **call == name).count();
    let (reads, writes) = (count("proxy_get_shared_data"), count("proxy_set_shared_data"));
    let checkpoints = writes - 2;
    assert!(checkpoints > 0 && (checkpoints..=2 * checkpoints).contains(&(reads - 2)), "{cold:#?}");
    let others =
        calls(&cold).iter().filter(|call| !call.contains("shared_data") && **call != "proxy_define_metric").count();
    assert_eq!(others, KNOWN.len() - 5, "{cold:#?}");
}
