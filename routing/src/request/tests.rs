use super::*;
use proptest::prelude::*;

fn read(body: &[u8], cut: usize) -> Result<Request, RequestError> {
    let mut reader = Reader::new(Shape::Chat, 65_536);
    for piece in body.chunks(cut) {
        reader.feed(piece)?;
    }
    reader.finish()
}

#[test]
fn the_model_is_found_wherever_it_stands() {
    let body = br#"{"messages":[{"role":"user","content":"say \"model\": x","model":"inner"}],"stream":true, "model" : "qwen-27b"}"#;
    for cut in [1, 2, 7, 1000] {
        let request = read(body, cut).unwrap();
        assert_eq!((request.model.as_str(), request.stream), ("qwen-27b", true));
        let (from, to) = request.model_span.unwrap();
        assert_eq!(&body[from as usize..to as usize], br#""qwen-27b""#);
    }
}

#[test]
fn the_last_of_two_counts_and_escapes_are_read() {
    let request = read(br#"{"model":"a","mod\u0065l":"\u0062","stream":true,"stream":false}"#, 3).unwrap();
    assert_eq!((request.model.as_str(), request.stream), ("b", false));
    assert_eq!(read(br#"{"model":"a","model":7}"#, 3), Err(RequestError::ModelKind("a number")));
}

#[test]
fn what_is_wrong_names_the_field() {
    for (body, message) in [
        ("", "the request body is not valid JSON: the text is empty at byte 0"),
        ("[]", "the request body is an array: expected a JSON object"),
        ("\"x\"", "the request body is a string: expected a JSON object"),
        ("{}", "model is missing: expected the name of a model as a string"),
        ("{\"model\":null}", "model is null: expected the name of a model as a string"),
        ("{\"model\":{\"model\":\"a\"}}", "model is an object: expected the name of a model as a string"),
        ("{\"model\":\"\"}", "model is empty: expected the name of a model"),
        ("{\"messages\":[{\"model\":\"a\"}]}", "model is missing: expected the name of a model as a string"),
    ] {
        assert_eq!(read(body.as_bytes(), 1).unwrap_err().to_string(), message);
    }
}

#[test]
fn a_name_without_end_is_cut() {
    let body = format!("{{\"model\":\"{}\"}}", "x".repeat(100_000));
    assert!(read(body.as_bytes(), 999).unwrap().model.len() <= 2 * crate::snapshot::MAX_MODEL_BYTES);
}

proptest! {
    #[test]
    fn it_reads_what_serde_json_reads(model in any::<String>(), content in any::<String>(), stream in any::<bool>(), first in any::<bool>(), cut in 1usize..50) {
        let mut body = serde_json::Map::new();
        let messages = serde_json::json!([{"role": "user", "content": content}]);
        if first {
            body.insert("model".into(), model.clone().into());
        }
        body.insert("messages".into(), messages);
        body.insert("stream".into(), stream.into());
        body.insert("model".into(), model.clone().into());
        let body = serde_json::to_vec(&body).unwrap();
        match read(&body, cut) {
            Ok(request) => {
                prop_assert_eq!(&request.model, &model);
                prop_assert_eq!(request.stream, stream);
                let (from, to) = request.model_span.unwrap();
                prop_assert_eq!(serde_json::from_slice::<String>(&body[from as usize..to as usize]).unwrap(), model);
            }
            Err(error) => prop_assert!(model.is_empty(), "{error}"),
        }
    }
}

#[test]
fn users_are_told_apart_without_being_kept() {
    let user = |value: &str| read(format!("{{\"user\":{value},\"model\":\"m\"}}").as_bytes(), 5).unwrap().user;
    assert_eq!(user("\"ann\""), user("\"\\u0061nn\""));
    assert_ne!(user("\"ann\""), user("\"bob\""));
    assert!(user("\"\"").is_some_and(|hash| hash != 0));
    assert_eq!((user("7"), user("{\"id\":\"ann\"}"), user("null")), (None, None, None));
}
