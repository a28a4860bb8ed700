//! `/v1/embeddings`, rerank and score: prompts in, numbers out, nothing generated.

use serde_json::{Value, json};

use super::super::prompt::Reply;
use super::{ApiError, Facts, Raw, Shape, Writer, chat, completions};

/// Numbers in an embedding.
const DIMENSIONS: u64 = 8;

/// `input` as text or token numbers, or `messages`.
pub(super) fn read_inputs(raw: &Raw) -> Result<Vec<Vec<u8>>, ApiError> {
    match (&raw.input, &raw.messages) {
        (None, Some(_)) => Ok(vec![chat::read(raw)?]),
        (input, _) => completions::read(input.as_ref(), "input"),
    }
}

/// `query` and each of `documents`.
pub(super) fn read_documents(raw: &Raw) -> Result<Vec<Vec<u8>>, ApiError> {
    let query = texts(raw.query.as_ref(), "query")?;
    let documents = texts(raw.documents.as_ref(), "documents")?;
    Ok(pairs(&query, &documents))
}

/// `text_1` with each of `text_2`, or one by one when both are lists of the same length.
pub(super) fn read_pairs(raw: &Raw) -> Result<Vec<Vec<u8>>, ApiError> {
    let first = texts(raw.text_1.as_ref().or(raw.query.as_ref()), "text_1")?;
    let second = texts(raw.text_2.as_ref().or(raw.documents.as_ref()), "text_2")?;
    if first.len() != 1 && first.len() != second.len() {
        return Err(ApiError::bad(Some("text_1"), "text_1: one text, or as many as text_2 has"));
    }
    Ok(pairs(&first, &second))
}

fn texts(value: Option<&Value>, param: &'static str) -> Result<Vec<Vec<u8>>, ApiError> {
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Object(object) => object.get("text")?.as_str().map(|text| text.as_bytes().to_vec()),
        _ => None,
    };
    let texts = match value {
        Some(Value::Array(items)) => items.iter().map(text).collect(),
        Some(value) => text(value).map(|text| vec![text]),
        None => None,
    };
    let texts = texts.filter(|texts: &Vec<Vec<u8>>| !texts.is_empty());
    texts.ok_or_else(|| ApiError::bad(Some(param), format!("{param}: a string or a non-empty array of strings")))
}

fn pairs(first: &[Vec<u8>], second: &[Vec<u8>]) -> Vec<Vec<u8>> {
    first.iter().cycle().zip(second).map(|(first, second)| [first, b"<|sep|>".as_slice(), second].concat()).collect()
}

/// The answer.
pub(super) struct Script {
    facts: Facts,
}

impl Script {
    pub(super) fn new(facts: Facts) -> Self {
        Self { facts }
    }
}

/// A number from 0 to 1 that depends on the prompt, in steps of 1/1000.
fn score(reply: &Reply, salt: u64) -> f64 {
    (reply.seed().wrapping_add(salt.wrapping_mul(7_919)) % 1_000) as f64 / 1_000.0
}

impl Writer for Script {
    fn tokens(&self, _: usize, _: u64, _: u64, _: &mut Vec<u8>) {}

    fn end(&self, _: u64, _: &mut Vec<u8>) {}

    fn error(&self, _: &ApiError, _: &mut Vec<u8>) {}

    fn whole(&self, cached_tokens: u64) -> Vec<u8> {
        let Facts { id, model, created, prompt_tokens, choices, .. } = &self.facts;
        let usage = json!({"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens, "completion_tokens": 0,
            "prompt_tokens_details": {"cached_tokens": cached_tokens}});
        let replies = choices.iter().map(|(reply, _)| reply).enumerate();
        let answer = match self.facts.shape {
            Shape::Embeddings => {
                let vector = |reply: &Reply| (0..DIMENSIONS).map(|n| score(reply, n)).collect::<Vec<_>>();
                let data: Vec<Value> = replies
                    .map(|(index, reply)| json!({"index": index, "object": "embedding", "embedding": vector(reply)}))
                    .collect();
                json!({"id": id, "object": "list", "created": created, "model": model, "data": data, "usage": usage})
            }
            Shape::Rerank => {
                let mut results: Vec<(usize, f64)> = replies.map(|(index, reply)| (index, score(reply, 0))).collect();
                results.sort_by(|a, b| b.1.total_cmp(&a.1));
                let results: Vec<Value> = results
                    .into_iter()
                    .map(|(index, score)| json!({"index": index, "relevance_score": score}))
                    .collect();
                json!({"id": id, "model": model, "usage": usage, "results": results})
            }
            _ => {
                let data: Vec<Value> = replies
                    .map(|(index, reply)| json!({"index": index, "object": "score", "score": score(reply, 0)}))
                    .collect();
                json!({"id": id, "object": "list", "created": created, "model": model, "data": data, "usage": usage})
            }
        };
        answer.to_string().into_bytes()
    }
}
