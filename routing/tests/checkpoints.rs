//! What prompts share, their checkpoints share, and nothing else does.

use proptest::prelude::*;
use serde_json::{Value, json};
use weighbridge_routing::prefix::Checkpoint;
use weighbridge_routing::request::{Reader, Request, Shape};

const CAP: u64 = 65_536;

fn read_text(shape: Shape, body: &[u8], cut: usize) -> Request {
    let mut reader = Reader::new(shape, CAP);
    for piece in body.chunks(cut.max(1)) {
        reader.feed(piece).unwrap();
    }
    reader.finish().unwrap()
}

fn read(shape: Shape, body: &Value) -> Request {
    read_text(shape, body.to_string().as_bytes(), usize::MAX)
}

fn checkpoints(shape: Shape, body: &Value) -> Vec<Checkpoint> {
    read(shape, body).prompt.checkpoints.seeded("engine-name")
}

fn hashes(shape: Shape, body: &Value) -> Vec<u64> {
    checkpoints(shape, body).iter().map(|checkpoint| checkpoint.hash).collect()
}

fn shared(one: &[u64], other: &[u64]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

fn chat(messages: Value) -> Value {
    json!({"model": "m", "messages": messages})
}

fn words(seed: &str, bytes: usize) -> String {
    (0..).flat_map(|nth| format!("{seed}{nth} ").into_bytes()).take(bytes).map(char::from).collect()
}

fn user<T: Into<Value>>(content: T) -> Value {
    json!({"role": "user", "content": content.into()})
}

fn assistant(content: impl Into<Value>) -> Value {
    json!({"role": "assistant", "content": content.into()})
}

#[test]
fn each_turn_adds_to_the_checkpoints_of_the_turns_before() {
    let turns: Vec<Value> = (0..10).map(|nth| user(words(&format!("turn {nth}"), 400))).collect();
    let mut before = Vec::new();
    for end in 1..=turns.len() {
        let now = hashes(Shape::Chat, &chat(turns[..end].to_vec().into()));
        assert_eq!(now.len(), end);
        assert_eq!(shared(&before, &now), end - 1);
        before = now;
    }
}

// C12
#[test]
fn a_repeated_message_is_another_conversation() {
    let (a, b) = (user(words("a", 300)), user(words("b", 300)));
    let abb = hashes(Shape::Chat, &chat(json!([a, b, b])));
    assert_eq!(abb.len(), 3);
    assert_eq!(shared(&abb, &hashes(Shape::Chat, &chat(json!([a])))), 1);
    for other in [json!([b, b, a]), json!([b, a, b])] {
        let other = hashes(Shape::Chat, &chat(other));
        assert!(abb.iter().all(|hash| !other.contains(hash)));
    }
}

// C13
#[test]
fn what_comes_before_the_messages_separates() {
    let body = chat(json!([user(words("same", 5_000))]));
    let request = read(Shape::Chat, &body);
    let plain: Vec<u64> = request.prompt.checkpoints.seeded("m").iter().map(|checkpoint| checkpoint.hash).collect();
    assert!(plain.len() >= 2);
    let mut others = vec![request.prompt.checkpoints.seeded("m-lora")];
    for (key, value) in [
        ("cache_salt", json!("tenant")),
        ("tools", json!([{"type": "function", "function": {"name": "f"}}])),
        ("functions", json!([{"name": "f"}])),
    ] {
        let mut body = body.clone();
        body[key] = value;
        others.push(read(Shape::Chat, &body).prompt.checkpoints.seeded("m"));
    }
    for (nth, other) in others.iter().enumerate() {
        assert_eq!(other.len(), plain.len());
        assert!(other.iter().all(|checkpoint| !plain.contains(&checkpoint.hash)), "{nth}");
        for another in &others[..nth] {
            assert!(other.iter().zip(another).all(|(one, other)| one.hash != other.hash));
        }
    }
}

#[test]
fn a_long_preamble_has_a_checkpoint_of_its_own() {
    let tools: Vec<Value> = (0..4)
        .map(|nth| json!({"type": "function", "function": {"name": format!("f{nth}"), "description": words("d", 100)}}))
        .collect();
    let with =
        |tools: &[Value], content: &str| json!({"model": "m", "tools": tools, "messages": [user(words(content, 900))]});
    let (one, other) =
        (checkpoints(Shape::Chat, &with(&tools, "one")), checkpoints(Shape::Chat, &with(&tools, "other")));
    assert_eq!((one.len(), one[0]), (2, other[0]));
    assert_ne!(one[1].hash, other[1].hash);
    assert!(one[0].bytes > 400 && one[1].bytes == one[0].bytes + 900);
    assert_eq!(checkpoints(Shape::Chat, &with(&tools[..1], "one")).len(), 1);

    let system = |system: Value| json!({"model": "m", "system": system, "messages": [user(words("a", 300))]});
    let text = words("system", 2_000);
    let plain = hashes(Shape::Messages, &system(text.clone().into()));
    let blocks = json!([{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]);
    assert_eq!((plain.len(), &plain), (2, &hashes(Shape::Messages, &system(blocks))));
    let instructions = json!({"model": "m", "instructions": text, "input": words("a", 300)});
    assert_eq!(hashes(Shape::Responses, &instructions).len(), 2);
}

#[test]
fn what_comes_after_the_prompt_makes_no_difference() {
    let body = chat(json!([user(words("a", 5_000))]));
    let mut other = body.clone();
    other["response_format"] = json!({"type": "json_schema", "json_schema": {"name": "x"}});
    other["temperature"] = json!(0.5);
    other["max_tokens"] = json!(7);
    assert_eq!(hashes(Shape::Chat, &body), hashes(Shape::Chat, &other));
}

#[test]
fn the_same_message_written_another_way_is_the_same() {
    let text = words("text", 5_000);
    let ways = [
        user(text.clone()),
        user(json!([{"type": "text", "text": text}])),
        user(json!([{"text": text, "type": "text"}])),
        user(json!([{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}])),
        json!({"role": "user", "content": text, "name": null}),
    ];
    let plain = hashes(Shape::Chat, &chat(json!([ways[0], assistant("yes"), user(words("b", 300))])));
    assert_eq!(plain.len(), 3);
    for way in &ways {
        assert_eq!(hashes(Shape::Chat, &chat(json!([way, assistant("yes"), user(words("b", 300))]))), plain, "{way}");
    }
    // serde_json sorts keys; clients write the role first, and Python escapes what is not ASCII.
    let (sorted, otherwise) = (
        format!(
            "{{\"messages\":[{{\"content\":\"\u{e9}\u{4e2d}\u{1F600}/{text}\",\"role\":\"user\"}}],\"model\":\"m\"}}"
        ),
        format!(
            "{{ \"model\" : \"m\", \"messages\" : [ {{ \"role\" : \"user\", \"content\" : \"\\u00e9\\u4e2d\\ud83d\\ude00\\/{text}\" }} ] }}"
        ),
    );
    let (one, other) =
        (read_text(Shape::Chat, sorted.as_bytes(), 100), read_text(Shape::Chat, otherwise.as_bytes(), 7));
    let of = |request: &Request| {
        request.prompt.checkpoints.seeded("m").iter().map(|checkpoint| checkpoint.hash).collect::<Vec<_>>()
    };
    assert_eq!(of(&one), of(&other));
    assert_eq!(of(&one).len(), 2);
}

#[test]
fn the_input_of_the_first_turn_is_an_item_of_the_next() {
    let text = words("text", 5_000);
    let first = hashes(Shape::Responses, &json!({"model": "m", "input": text}));
    assert_eq!(first.len(), 2);
    for item in [
        user(text.clone()),
        json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}),
        json!({"id": "msg_1", "status": "completed", "type": "message", "role": "user", "content": text}),
    ] {
        let next = json!({"model": "m", "input": [item, assistant(words("a", 300))]});
        let next = hashes(Shape::Responses, &next);
        assert_eq!((next.len(), shared(&first, &next)), (3, 2), "{item}");
    }
    let tool = json!({"type": "function_call_output", "role": "user", "content": text});
    assert_eq!(shared(&first, &hashes(Shape::Responses, &json!({"model": "m", "input": [tool]}))), 1);
}

#[test]
fn everything_that_the_model_sees_makes_a_difference() {
    let long = words("x", 300);
    let differ = [
        user(long.clone()),
        assistant(long.clone()),
        json!({"role": "user", "content": long, "name": "bob"}),
        json!({"role": "tool", "content": long, "tool_call_id": "1"}),
        json!({"role": "tool", "content": long, "tool_call_id": "2"}),
        json!({"role": "assistant", "content": long, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}),
        json!({"role": "assistant", "content": long, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "g", "arguments": "{}"}}]}),
        json!({"role": "assistant", "content": long, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{1}"}}]}),
        user(json!([{"type": "text", "text": long}, {"type": "text", "text": long}])),
        user(
            json!([{"type": "text", "text": long}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]),
        ),
        user(
            json!([{"type": "text", "text": long}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAB"}}]),
        ),
        user(
            json!([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, {"type": "text", "text": long}]),
        ),
        user(
            json!([{"type": "text", "text": long}, {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]),
        ),
        json!({"role": "user", "content": [{"type": "text", "text": long}, {"type": "tool_result", "tool_use_id": "a", "content": "x"}]}),
        json!({"role": "user", "content": [{"type": "text", "text": long}, {"type": "tool_result", "tool_use_id": "a", "content": "y"}]}),
        json!({"role": "user", "content": [{"type": "text", "text": long}, {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}]}),
        json!({"role": "user", "content": [{"type": "text", "text": long}, {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 2}}]}),
        json!({"role": "user", "content": [{"type": "text", "text": long}, {"type": "tool_use", "id": "a", "name": "f", "input": {"y": 1}}]}),
        json!({"role": "user", "content": [{"type": "text", "text": long}, {"type": "tool_use", "id": "a", "name": "f", "input": {"x": true}}]}),
    ];
    let of: Vec<Vec<u64>> = differ.iter().map(|message| hashes(Shape::Chat, &chat(json!([message])))).collect();
    for (nth, one) in of.iter().enumerate() {
        assert_eq!(one.len(), 1, "{}", differ[nth]);
        for (other, earlier) in of[..nth].iter().zip(&differ) {
            assert_ne!(one, other, "{} and {earlier}", differ[nth]);
        }
    }
}

#[test]
fn images_are_counted_and_are_no_text() {
    let image = "A".repeat(100_000);
    let content = json!([
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{image}"), "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": image, "format": "wav"}},
    ]);
    let prompt = read(Shape::Chat, &chat(json!([user(content)]))).prompt;
    assert_eq!((prompt.bytes, prompt.images), (13, 2));
    let content = json!([
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": image}},
        {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
        {"type": "tool_result", "tool_use_id": "a", "content": [
            {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}, {"type": "text", "text": "seen"},
        ]},
    ]);
    let prompt = read(Shape::Messages, &chat(json!([user(content)]))).prompt;
    assert_eq!((prompt.bytes, prompt.images), (4, 3));
    let content = json!([{"role": "user", "content": [
        {"type": "input_text", "text": "hi"}, {"type": "input_image", "image_url": format!("data:,{image}")},
    ]}]);
    let prompt = read(Shape::Responses, &json!({"model": "m", "input": content})).prompt;
    assert_eq!((prompt.bytes, prompt.images), (2, 1));
}

#[test]
fn a_long_text_has_checkpoints_inside_at_doubling_sizes() {
    let (text, other) = (words("long", 40_000), words("long", 20_000) + &words("other", 20_000));
    for shape in [Shape::Chat, Shape::Completions, Shape::Responses] {
        let body = |text: &str| match shape {
            Shape::Chat => chat(json!([user(text)])),
            Shape::Completions => json!({"model": "m", "prompt": text}),
            _ => json!({"model": "m", "input": text}),
        };
        let of = checkpoints(shape, &body(&text));
        assert_eq!(
            of.iter().map(|checkpoint| checkpoint.bytes).collect::<Vec<_>>(),
            [4096, 8192, 16384, 32768, 40_000]
        );
        assert_eq!(shared(&hashes(shape, &body(&text)), &hashes(shape, &body(&other))), 3);
    }
    let string = hashes(Shape::Completions, &json!({"model": "m", "prompt": text}));
    assert_eq!(string, hashes(Shape::Completions, &json!({"model": "m", "prompt": [text]})));
}

#[test]
fn token_ids_have_checkpoints_too() {
    let ids: Vec<u32> = (0..5_000).collect();
    let mut other = ids.clone();
    other[3_000] = 7;
    let body = |ids: Value| json!({"model": "m", "prompt": ids});
    let request = read(Shape::Completions, &body(ids.clone().into()));
    assert_eq!((request.prompt.bytes, request.prompt.token_ids), (0, 5_000));
    let of = request.prompt.checkpoints.seeded("m");
    assert_eq!(of.iter().map(|checkpoint| checkpoint.bytes).collect::<Vec<_>>(), [4096, 8192, 16384, 20_000]);
    let flat = hashes(Shape::Completions, &body(ids.clone().into()));
    assert_eq!(shared(&flat, &hashes(Shape::Completions, &body(other.clone().into()))), 2);
    let nested = hashes(Shape::Completions, &body(json!([ids, other])));
    assert_eq!(shared(&nested, &hashes(Shape::Completions, &body(json!([ids])))), 4);
    assert_eq!(read(Shape::Completions, &body(json!([ids, other]))).prompt.token_ids, 10_000);
    assert_eq!(read(Shape::Detokenize, &json!({"model": "m", "tokens": ids})).prompt.token_ids, 5_000);
}

#[test]
fn hashing_stops_and_counting_goes_on() {
    let long = chat(json!([user(words("a", 50_000)), assistant(words("b", 50_000)), user(words("c", 50_000))]));
    let request = read(Shape::Chat, &long);
    assert_eq!(request.prompt.bytes, 150_000);
    let of = request.prompt.checkpoints.seeded("m");
    assert_eq!(of.last().unwrap().bytes, CAP);
    let mut other = long.clone();
    other["messages"][2] = user("else");
    assert_eq!(hashes(Shape::Chat, &long), hashes(Shape::Chat, &other));

    let mut reader = Reader::new(Shape::Chat, 0);
    reader.feed(long.to_string().as_bytes()).unwrap();
    let request = reader.finish().unwrap();
    assert_eq!((request.prompt.bytes, request.prompt.checkpoints.seeded("m").len()), (150_000, 0));
}

#[test]
fn a_continued_response_is_another_beginning() {
    let body = |previous: Value| json!({"model": "m", "input": words("a", 5_000), "previous_response_id": previous});
    let (none, one, other) = (body(Value::Null), body(json!("resp_1")), body(json!("resp_2")));
    assert_eq!(read(Shape::Responses, &none).previous_response, None);
    assert_eq!(read(Shape::Responses, &one).previous_response, Some(xxhash_rust::xxh3::xxh3_64(b"resp_1")));
    let (none, one, other) =
        (hashes(Shape::Responses, &none), hashes(Shape::Responses, &one), hashes(Shape::Responses, &other));
    assert_eq!((none.len(), one.len()), (2, 2));
    assert!(shared(&none, &one) == 0 && shared(&one, &other) == 0);
}

#[test]
fn the_last_of_two_prompts_counts() {
    let twice = format!(
        r#"{{"model":"m","messages":[{{"role":"user","content":"{}"}}],"messages":[{{"role":"user","content":"{}"}}]}}"#,
        words("a", 700),
        words("b", 500)
    );
    let request = read_text(Shape::Chat, twice.as_bytes(), 11);
    assert_eq!(request.prompt, read(Shape::Chat, &chat(json!([user(words("b", 500))]))).prompt);
}

#[test]
fn where_nothing_is_generated_there_are_no_checkpoints() {
    let text = words("a", 5_000);
    for (shape, body, bytes) in [
        (Shape::Embeddings, json!({"model": "m", "input": [text, "b"]}), 5_001),
        (Shape::Embeddings, json!({"model": "m", "messages": [user(text.clone())]}), 5_000),
        (Shape::Rerank, json!({"model": "m", "query": "q", "documents": [text, {"text": "b"}]}), 5_002),
        (Shape::Score, json!({"model": "m", "text_1": "q", "text_2": [text, "b"]}), 5_002),
        (Shape::Tokenize, json!({"model": "m", "prompt": text}), 5_000),
        (Shape::CountTokens, json!({"model": "m", "system": "s", "messages": [user(text)]}), 5_001),
    ] {
        let prompt = read(shape, &body).prompt;
        assert_eq!((prompt.bytes, prompt.checkpoints.seeded("m").len()), (bytes, 0), "{shape:?}");
    }
}

fn any_message() -> impl Strategy<Value = Value> {
    let text =
        || prop_oneof!["[a-z \u{e9}\u{4e2d}\u{1F600}\n\"\\\\/]{0,40}", (0usize..9_000).prop_map(|n| words("w\n", n))];
    let part = prop_oneof![
        text().prop_map(|text| json!({"type": "text", "text": text})),
        text().prop_map(|text| json!({"type": "image_url", "image_url": {"url": text}})),
        text().prop_map(|text| json!({"type": "tool_use", "id": "x", "input": {"a": [1, text, null]}})),
    ];
    prop_oneof![
        text().prop_map(user),
        proptest::collection::vec(part, 0..4).prop_map(user::<Vec<Value>>),
        text().prop_map(|text| json!({"role": "tool", "content": text, "tool_call_id": "7"})),
        text().prop_map(
            |text| json!({"role": "assistant", "tool_calls": [{"id": "7", "function": {"arguments": text}}]})
        ),
    ]
}

/// As Python writes it.
fn ascii(text: &str) -> String {
    let mut units = [0; 2];
    text.chars()
        .map(|letter| match letter {
            ' '..='~' => letter.to_string(),
            _ => letter.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")).collect(),
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_cut_makes_no_difference(messages in proptest::collection::vec(any_message(), 0..8), cut in 1usize..5_000) {
        let text = chat(messages.into()).to_string();
        for text in [ascii(&text), text] {
            let whole = read_text(Shape::Chat, text.as_bytes(), usize::MAX);
            prop_assert_eq!(&whole, &read_text(Shape::Chat, text.as_bytes(), cut));
            prop_assert_eq!(&whole, &read_text(Shape::Chat, text.as_bytes(), 1));
        }
    }

    #[test]
    fn how_it_is_escaped_makes_no_difference(messages in proptest::collection::vec(any_message(), 0..8)) {
        let text = chat(messages.into()).to_string();
        let of = |text: &str| {
            let request = read_text(Shape::Chat, text.as_bytes(), usize::MAX);
            request.prompt.checkpoints.seeded("m").iter().map(|checkpoint| checkpoint.hash).collect::<Vec<_>>()
        };
        prop_assert_eq!(of(&ascii(&text)), of(&text));
    }

    /// Two conversations share their checkpoints exactly up to where they part.
    #[test]
    fn shared_messages_are_shared_checkpoints(
        common in proptest::collection::vec(any_message(), 0..6),
        one in proptest::collection::vec(any_message(), 0..3),
        other in proptest::collection::vec(any_message(), 0..3),
    ) {
        prop_assume!(one.first() != other.first());
        let with = |more: &[Value]| checkpoints(Shape::Chat, &chat([common.as_slice(), more].concat().into()));
        let (alone, one, other) = (with(&[]), with(&one), with(&other));
        prop_assert!(one.starts_with(&alone) && other.starts_with(&alone));
        let common_bytes = read(Shape::Chat, &chat(common.into())).prompt.bytes;
        let both = one.iter().zip(&other).take_while(|(one, other)| one.hash == other.hash).count();
        // Beyond the common messages, only text that both begin with can be shared: a checkpoint inside a message.
        for checkpoint in &one[alone.len()..both] {
            prop_assert!(checkpoint.bytes >= common_bytes + 4096 || common_bytes > CAP);
        }
        // A hash never comes back at another place.
        for checkpoint in &one[both..] {
            prop_assert!(other.iter().all(|theirs| theirs.hash != checkpoint.hash));
        }
    }
}

/// Text and images of a message as [`any_message`] makes them.
fn measure(message: &Value) -> (u64, u32) {
    let length = |text: &Value| text.to_string().len() as u64 - 2;
    let of_part = |part: &Value| match part["type"].as_str().unwrap() {
        "text" => (length(&part["text"]), 0),
        "image_url" => (0, 1),
        // What the model sees as JSON counts with its keys.
        _ => (1 + length(&part["input"]["a"][1]), 0),
    };
    match (&message["content"], &message["tool_calls"]) {
        (Value::String(_), _) => (length(&message["content"]), 0),
        (Value::Array(parts), _) => parts.iter().map(of_part).fold((0, 0), |(a, b), (c, d)| (a + c, b + d)),
        (_, calls) => ("arguments".len() as u64 + length(&calls[0]["function"]["arguments"]), 0),
    }
}

proptest! {
    #[test]
    fn text_and_images_are_counted(messages in proptest::collection::vec(any_message(), 0..8), cap in prop_oneof![Just(0), 1u64..100_000]) {
        let (bytes, images) = messages.iter().map(measure).fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
        let mut reader = Reader::new(Shape::Chat, cap);
        reader.feed(chat(messages.into()).to_string().as_bytes()).unwrap();
        let prompt = reader.finish().unwrap().prompt;
        prop_assert_eq!((prompt.bytes, prompt.images), (bytes, images));
        prop_assert!(prompt.checkpoints.seeded("m").iter().all(|checkpoint| checkpoint.bytes <= bytes));
    }
}
