//! What the reader reads of any request is what serde_json reads of it.

use std::io::Write;

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Map, Value, json};
use weighbridge_routing::json::Problem;
use weighbridge_routing::request::encoding::Encoding;
use weighbridge_routing::request::{Headers, Reader, Request, RequestError, Shape};

fn read(shape: Shape, body: &[u8], cut: usize) -> Result<Request, RequestError> {
    let mut reader = Reader::new(shape, 65_536);
    for piece in body.chunks(cut.max(1)) {
        reader.feed(piece)?;
    }
    reader.finish()
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (0u64..5_000).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e9..1e9).prop_map(Value::from),
        "[a-z \u{e9}\u{4e2d}\n\"\\\\/]{0,30}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 30, 5, |inner| {
        let key =
            select(vec!["role", "content", "text", "type", "image_url", "model", "input", "x", "tool_calls", "id"]);
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::btree_map(key, inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().map(|(key, value)| (key.into(), value)).collect())),
        ]
    })
}

/// Fields in any order, twice too.
fn any_body() -> impl Strategy<Value = Vec<(&'static str, Value)>> {
    let field = select(vec![
        "model",
        "stream",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "cache_salt",
        "previous_response_id",
        "messages",
        "prompt",
        "input",
        "system",
        "instructions",
        "tools",
        "functions",
        "query",
        "documents",
        "text_1",
        "text_2",
        "tokens",
        "temperature",
        "stop",
    ]);
    let of_field = (field, any_value(), any::<u8>()).prop_map(|(field, value, luck)| {
        // Mostly what a client would send.
        let value = match (field, luck % 4) {
            (_, 0) => value,
            ("model" | "previous_response_id" | "cache_salt", _) => json!(format!("name-{luck}")),
            ("stream", _) => json!(luck > 128),
            ("max_tokens" | "max_completion_tokens" | "max_output_tokens", _) => json!(u64::from(luck) * 7),
            ("messages", _) => json!([{"role": "user", "content": value}]),
            ("prompt" | "input" | "documents", 1) => json!(["a", "b\n"]),
            ("prompt" | "input" | "tokens", 2) => json!([1, 2, luck]),
            (_, 3) => json!("some \"text\""),
            _ => value,
        };
        (field, value)
    });
    proptest::collection::vec(of_field, 0..10)
}

fn write(body: &[(&'static str, Value)], pretty: bool) -> String {
    let space = if pretty { "\r\n\t " } else { "" };
    let fields: Vec<String> = body
        .iter()
        .map(|(key, value)| {
            let value = if pretty { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) };
            format!("{space}\"{key}\"{space}:{space}{}{space}", value.unwrap())
        })
        .collect();
    format!("{space}{{{}}}{space}", fields.join(","))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// What is wrong with it, field by field; any of these may be reported.
fn faults(shape: Shape, body: &Map<String, Value>) -> Vec<String> {
    let mut faults = Vec::new();
    match body.get("model") {
        None => return vec!["model is missing: expected the name of a model as a string".into()],
        Some(Value::String(name)) if name.is_empty() => {
            return vec!["model is empty: expected the name of a model".into()];
        }
        Some(Value::String(_)) => {}
        Some(other) => return vec![format!("model is {}: expected the name of a model as a string", kind(other))],
    }
    let takes = |field: &str| match field {
        "messages" => {
            matches!(shape, Shape::Chat | Shape::Messages | Shape::CountTokens | Shape::Embeddings | Shape::Tokenize)
        }
        "prompt" => matches!(shape, Shape::Completions | Shape::Tokenize),
        _ => matches!(shape, Shape::Responses | Shape::Embeddings),
    };
    for field in ["messages", "prompt", "input"].into_iter().filter(|field| takes(field)) {
        match (field, body.get(field)) {
            (_, None | Some(Value::Null)) | ("prompt" | "input", Some(Value::String(_) | Value::Array(_))) => {}
            ("messages", Some(Value::Array(items))) => {
                if let Some((index, item)) = items.iter().enumerate().find(|(_, item)| !item.is_object()) {
                    faults.push(format!("messages[{index}] is {}: expected an object", kind(item)));
                }
            }
            ("messages", Some(other)) => {
                faults.push(format!("messages is {}: expected an array of objects", kind(other)));
            }
            (_, Some(other)) => faults.push(format!("{field} is {}: expected a string or an array", kind(other))),
        }
    }
    faults
}

fn max_output(shape: Shape, body: &Map<String, Value>) -> Option<u64> {
    let fields: &[&str] = match shape {
        Shape::Chat => &["max_completion_tokens", "max_tokens"],
        Shape::Completions | Shape::Messages => &["max_tokens"],
        Shape::Responses => &["max_output_tokens"],
        _ => &[],
    };
    fields.iter().find_map(|field| body.get(*field)?.as_u64())
}

fn json_shapes() -> impl Strategy<Value = Shape> {
    select(Shape::ALL.into_iter().filter(|shape| *shape != Shape::Transcriptions).collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn every_field_is_read_as_serde_json_reads_it(
        shape in json_shapes(), body in any_body(), pretty in any::<bool>(), cut in 1usize..60,
    ) {
        let text = write(&body, pretty);
        // As serde_json has it, the last of two counts.
        let theirs: Map<String, Value> = serde_json::from_str(&text).unwrap();
        let ours = read(shape, text.as_bytes(), cut);
        prop_assert_eq!(&ours, &read(shape, text.as_bytes(), usize::MAX));
        prop_assert_eq!(&ours, &read(shape, text.as_bytes(), 1));
        let faults = faults(shape, &theirs);
        match ours {
            Err(error) => prop_assert!(faults.contains(&error.to_string()), "{error}, not of {faults:?}: {text}"),
            Ok(request) => {
                prop_assert!(faults.is_empty(), "{faults:?}: {text}");
                prop_assert_eq!(Some(request.model.as_str()), theirs["model"].as_str());
                let (from, to) = request.model_span.unwrap();
                let named: String = serde_json::from_str(&text[from as usize..to as usize]).unwrap();
                prop_assert_eq!(named, request.model);
                prop_assert_eq!(request.stream, theirs.get("stream") == Some(&Value::Bool(true)));
                prop_assert_eq!(request.max_output, max_output(shape, &theirs), "{}", text);
                let previous = theirs.get("previous_response_id").and_then(Value::as_str).filter(|_| shape == Shape::Responses);
                prop_assert_eq!(request.previous_response.is_some(), previous.is_some());
                prop_assert!(request.prompt.bytes <= text.len() as u64);
            }
        }
    }

    #[test]
    fn encoded_bodies_are_read_the_same(shape in json_shapes(), body in any_body(), cut in 1usize..60, broken in any::<Index>()) {
        let text = write(&body, false);
        let plain = read(shape, text.as_bytes(), usize::MAX);
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(text.as_bytes()).unwrap();
        zlib.write_all(text.as_bytes()).unwrap();
        for (encoding, bytes) in [("gzip", gzip.finish().unwrap()), ("Deflate", zlib.finish().unwrap())] {
            let read = |bytes: &[u8], limit| {
                let headers = Headers { content_encoding: encoding.as_bytes(), ..Headers::default() };
                let mut reader = Reader::with_headers(shape, 65_536, headers, limit)?;
                for piece in bytes.chunks(cut) {
                    reader.feed(piece)?;
                }
                reader.finish()
            };
            let expected = plain.clone().map(|request| Request { model_span: None, ..request });
            prop_assert_eq!(&read(&bytes, text.len() as u64), &expected);
            let too_large = read(&bytes, text.len() as u64 - 1);
            prop_assert!(
                matches!(too_large, Err(RequestError::TooLarge(_))) || plain.is_err(),
                "{too_large:?}"
            );
            // A body that ends early is no request.
            let cut_off = &bytes[..broken.index(bytes.len())];
            prop_assert!(read(cut_off, u64::MAX).is_err());
        }
    }
}

#[test]
fn a_bomb_does_not_go_off() {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(br#"{"model":"m","prompt":""#).unwrap();
    for _ in 0..1_000 {
        gzip.write_all(&[b'a'; 65_536]).unwrap();
    }
    let bomb = gzip.finish().unwrap();
    assert!(bomb.len() < 200_000);
    let headers = Headers { content_encoding: b"gzip", ..Headers::default() };
    let mut reader = Reader::with_headers(Shape::Completions, 65_536, headers, 1_000_000).unwrap();
    assert_eq!(reader.feed(&bomb), Err(RequestError::TooLarge(1_000_000)));
}

#[test]
fn other_encodings_are_refused_by_name() {
    for name in ["zstd", "br", "gzip, gzip", "compress"] {
        let error = Encoding::of_header(name.as_bytes()).unwrap_err();
        assert_eq!(error.status(), 415);
        assert_eq!(
            error.to_string(),
            format!("content-encoding {name} is not supported: expected identity, gzip or deflate")
        );
    }
    assert_eq!(Encoding::of_header(b" X-GZip "), Ok(Encoding::Gzip));
    assert_eq!(Encoding::of_header(b"identity"), Ok(Encoding::Identity));
    let headers = Headers { content_encoding: b"gzip", ..Headers::default() };
    let mut reader = Reader::with_headers(Shape::Chat, 0, headers, 1_000).unwrap();
    let error = reader.feed(b"{\"model\":\"m\"}").unwrap_err();
    assert!(error.to_string().starts_with("the request body is not valid gzip: "), "{error}");
}

#[test]
fn what_is_no_json_is_said_so() {
    let deep = format!(r#"{{"model":"m","messages":{}"#, "[".repeat(300));
    let cases: [(&[u8], Problem); 7] = [
        (b"", Problem::Empty),
        (b"\xef\xbb\xbf{\"model\":\"m\"}", Problem::Bom),
        (b"{\"model\":\"m\"}\0", Problem::Trailing),
        (b"{\"model\":\"m\",\"prompt\":\"\xff\"}", Problem::Utf8),
        (b"{\"model\":\"m\",\"prompt\":\"\0\"}", Problem::Control),
        (b"{\"model\":\"m\",\"prompt\":\"a", Problem::Ends),
        (deep.as_bytes(), Problem::Depth),
    ];
    for shape in Shape::ALL {
        for (body, problem) in &cases {
            for cut in [1, 1_000] {
                match read(shape, body, cut) {
                    Err(RequestError::Json(error)) => assert_eq!(error.problem, *problem),
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    // Numbers that no machine word holds are the engine's business.
    let huge = br#"{"model":"m","max_tokens":99999999999999999999999,"temperature":1e99999,"seed":-0.0}"#;
    assert_eq!(read(Shape::Chat, huge, 3).unwrap().max_output, None);
}
