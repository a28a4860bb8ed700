use super::*;

const LIMITS: Limits<'_> = Limits {
    model: "m",
    adapters: &[],
    max_model_len: 1_000,
    mean_output_tokens: 64.0,
    conversation: &|id| (id == "resp_1").then(|| b"<|user|>known<|end|>".to_vec()),
};

fn chat(extra: &str) -> Result<Generation, ApiError> {
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hello"}}]{extra}}}"#);
    read(Shape::Chat, body.as_bytes(), LIMITS)
}

fn completion(prompt: &str) -> Result<Generation, ApiError> {
    read(Shape::Completions, format!(r#"{{"prompt":{prompt}}}"#).as_bytes(), LIMITS)
}

fn only(result: Result<Generation, ApiError>) -> Choice {
    let mut choices = result.unwrap().choices;
    assert_eq!(choices.len(), 1);
    choices.remove(0)
}

fn refused(result: Result<Generation, ApiError>) -> (u16, Option<&'static str>) {
    let error = result.unwrap_err();
    (error.status, error.param)
}

#[test]
fn the_output_length_is_what_was_asked_for() {
    let exact = only(chat(r#","max_tokens":128,"min_tokens":128"#));
    assert_eq!((exact.reply.tokens, exact.finish_reason), (128, "length"));
    let exact = only(chat(r#","max_completion_tokens":128,"max_tokens":5,"ignore_eos":true"#));
    assert_eq!((exact.reply.tokens, exact.finish_reason), (128, "length"));
    assert!(only(chat(r#","max_tokens":2"#)).reply.tokens <= 2);
    assert!(only(chat(r#","min_tokens":500"#)).reply.tokens >= 500);
    assert_eq!(chat("").unwrap(), chat("").unwrap());
    assert!(only(completion(r#""x""#)).reply.tokens <= 16);
    assert_eq!(only(chat(r#","ignore_eos":true"#)).reply.tokens, 1_000 - chat("").unwrap().prompt_tokens);
}

#[test]
fn prompts_come_as_text_or_tokens() {
    assert_eq!(completion("[1,2,3]").unwrap().prompt_tokens, 3);
    assert_eq!(completion("[[1,2,3]]").unwrap().prompt_tokens, 3);
    assert_eq!(completion(r#"["12345678"]"#).unwrap().prompt_tokens, 2);
    let parts = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"hello"}]}]}"#;
    assert_eq!(read(Shape::Chat, parts.as_bytes(), LIMITS), chat(""));
}

#[test]
fn other_models_adapters_and_salts_share_nothing() {
    let adapters = ["lora".to_owned()];
    let limits = Limits { adapters: &adapters, ..LIMITS };
    let first_block = |extra: &str| {
        let text = "x".repeat(100);
        let body = format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}],"max_tokens":1{extra}}}"#);
        let choice = only(read(Shape::Chat, body.as_bytes(), limits));
        choice.prompt.blocks(&choice.reply, 16).prompt[0]
    };
    let hashes = [r#""#, r#","model":"lora""#, r#","cache_salt":"s""#, r#","model":"lora","cache_salt":"s""#];
    let hashes: std::collections::HashSet<u64> = hashes.map(first_block).into_iter().collect();
    assert_eq!(hashes.len(), 4);
    assert_eq!(first_block(""), first_block(r#","model":"m""#));
}

#[test]
fn several_prompts_and_several_choices_of_each() {
    let body = br#"{"prompt":["a",[1,2]],"n":2}"#;
    let several = read(Shape::Completions, body, LIMITS).unwrap();
    assert_eq!((several.choices.len(), several.prompt_tokens), (4, 3));
    let firsts: Vec<bool> = several.choices.iter().map(|choice| choice.is_first).collect();
    assert_eq!(firsts, [true, false, true, false]);
    assert_eq!(several.choices[0].prompt, several.choices[1].prompt);
    assert_ne!(several.choices[0].reply, several.choices[1].reply);
}

// The same conversation in three shapes is the same prompt, so that each finds what the others left.
#[test]
fn a_conversation_is_the_same_in_every_shape() {
    let turns = r#"[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"X","text":"b"}]},{"role":"user","content":"c"}]"#;
    let system = r#"{"role":"system","content":"s"},"#;
    let body = format!(r#"{{"messages":[{system}{}}}"#, &turns[1..]);
    let as_chat = only(read(Shape::Chat, body.as_bytes(), LIMITS)).prompt;
    let body = format!(r#"{{"max_tokens":9,"system":[{{"type":"text","text":"s"}}],"messages":{turns}}}"#);
    assert_eq!(only(read(Shape::Messages, body.as_bytes(), LIMITS)).prompt, as_chat);
    let body = format!(r#"{{"instructions":"s","input":{turns}}}"#);
    assert_eq!(only(read(Shape::Responses, body.as_bytes(), LIMITS)).prompt, as_chat);
}

#[test]
fn a_response_goes_on_from_one_that_is_known() {
    let go_on = |id: &str| {
        read(Shape::Responses, format!(r#"{{"input":"x","previous_response_id":"{id}"}}"#).as_bytes(), LIMITS)
    };
    assert!(only(go_on("resp_1")).prompt.bytes().starts_with(b"<|user|>known<|end|><|user|>x"));
    assert_eq!(refused(go_on("resp_2")), (404, Some("previous_response_id")));
}

#[test]
fn what_vllm_refuses_is_refused() {
    let read = |shape, body: &[u8]| refused(super::read(shape, body, LIMITS));
    assert_eq!(read(Shape::Chat, b"{"), (400, None));
    assert_eq!(read(Shape::Chat, br#"{"model":3,"messages":[]}"#), (400, None));
    assert_eq!(read(Shape::Chat, br#"{"model":"m"}"#), (400, Some("messages")));
    assert_eq!(read(Shape::Chat, br#"{"model":"x","messages":[]}"#), (404, Some("model")));
    assert_eq!(read(Shape::Messages, br#"{"max_tokens":1,"messages":[]}"#), (400, Some("messages")));
    assert_eq!(read(Shape::Messages, br#"{"messages":[{"role":"user","content":"x"}]}"#), (400, Some("max_tokens")));
    assert_eq!(read(Shape::Responses, br#"{"input":[]}"#), (400, Some("input")));
    assert_eq!(read(Shape::Embeddings, b"{}"), (400, Some("input")));
    assert_eq!(read(Shape::Rerank, br#"{"query":"x","documents":[]}"#), (400, Some("documents")));
    assert_eq!(read(Shape::Score, br#"{"text_1":["a","b"],"text_2":["c"]}"#), (400, Some("text_1")));
    assert_eq!(refused(chat(r#","max_tokens":0"#)), (400, Some("max_tokens")));
    assert_eq!(refused(chat(r#","max_tokens":10,"min_tokens":11"#)), (400, Some("min_tokens")));
    assert_eq!(refused(chat(r#","max_tokens":1000"#)), (400, Some("input_tokens")));
    assert_eq!(refused(chat(r#","n":0"#)), (400, Some("n")));
    assert_eq!(refused(completion(&format!("\"{}\"", "x".repeat(4_000)))), (400, Some("input_tokens")));
    assert_eq!(refused(completion("[]")), (400, Some("prompt")));
    assert_eq!(refused(completion(r#"["a",7]"#)), (400, Some("prompt")));
    assert_eq!(refused(completion("null")), (400, Some("prompt")));
}

#[test]
fn tokens_go_there_and_back() {
    let tokens = tokens::tokenize(br#"{"prompt":"hello w\u00f6rld"}"#, LIMITS).unwrap();
    assert_eq!(tokens["count"], 3);
    let body = serde_json::json!({"tokens": tokens["tokens"]}).to_string();
    assert_eq!(tokens::detokenize(body.as_bytes(), LIMITS).unwrap()["prompt"], "hello w\u{f6}rld");
    let messages = br#"{"messages":[{"role":"user","content":"hello"}]}"#;
    assert_eq!(tokens::count(messages, LIMITS).unwrap()["input_tokens"], chat("").unwrap().prompt_tokens);
    assert_eq!(tokens::tokenize(messages, LIMITS).unwrap()["count"], chat("").unwrap().prompt_tokens);
    assert_eq!(tokens::tokenize(b"{}", LIMITS).unwrap_err().param, Some("prompt"));
}
