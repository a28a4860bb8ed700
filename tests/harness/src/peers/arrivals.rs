//! What comes, and when: open-loop, so that a slow router is not spared the requests that a fast one would have had.
//!
//! Requests arrive in a Poisson stream. Each is a single prompt, or the next turn of a conversation that has rested for a
//! while and repeats all that was said before, the engines' answers included. An engine's answer is a function of the prompt,
//! so every body is known beforehand, and each router is sent the same bytes at the same moments.

use std::time::Duration;

use anyhow::{Result, ensure};
use bytes::Bytes;
use engine_sim::model::Profile;
use engine_sim::server::{EngineConfig, EngineHandle};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use crate::load::{Call, Client, Conversation, Outcome};
use crate::workload::{HASHED_CHARACTERS, MODEL, exponential, hash, log_uniform, prose};

/// Single prompts, in tokens: log-uniform between these.
const SINGLE_TOKENS: (f64, f64) = (100.0, 4_000.0);
/// A conversation's first message, and the later ones of its user, in tokens: uniform between these.
const FIRST_TOKENS: (usize, usize) = (50, 600);
const LATER_TOKENS: (usize, usize) = (20, 150);
/// Turns of a conversation: uniform between these.
const TURNS: (usize, usize) = (2, 14);
/// A conversation's next turn comes no earlier after the one before, in seconds: uniform between these.
const REST_S: (f64, f64) = (4.0, 8.0);
/// The most tokens that a client wants, as most clients say something.
const MAX_TOKENS: u32 = 512;

/// How requests are made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrivals {
    /// For so long, in seconds.
    pub seconds: f64,
    /// So many per second, about: they come a little faster or slower, so that the answers have [`Self::tokens_per_s`].
    pub per_second: f64,
    /// Tokens of all answers, per second. Drawn lengths and gaps alone would miss it by a tenth in half a minute.
    pub tokens_per_s: f64,
    /// Share of them that are turns of conversations.
    pub conversations: f64,
    /// Of everything random.
    pub seed: u64,
}

/// A request to be sent.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// After the beginning.
    pub at: Duration,
    /// The JSON body.
    pub body: Bytes,
    /// Tokens of its prompt, cached or not.
    pub prompt_tokens: u64,
    /// Hash of the first 256 characters of what is said, for those who balance by it.
    pub hash: String,
}

impl Arrival {
    /// As clients of the OpenAI API send it.
    #[must_use]
    pub fn call(&self) -> Call {
        Call::post("/v1/chat/completions", self.body.clone())
            .header("accept", "application/json")
            .header("user-agent", "OpenAI/Python 1.99.0")
    }
}

/// A conversation that may go on.
struct Open {
    conversation: Conversation,
    turns_left: usize,
    rested_at_s: f64,
}

impl Arrivals {
    /// Makes all of them, in their order.
    ///
    /// # Errors
    /// When the engine that says what the answers are cannot be asked.
    pub async fn make(&self) -> Result<Vec<Arrival>> {
        let oracle = Oracle::start().await?;
        let mut rng = StdRng::seed_from_u64(self.seed);
        let (mut made, mut open): (Vec<(f64, Arrival)>, Vec<Open>) = (Vec::new(), Vec::new());
        let (mut at_s, mut tokens) = (0.0, 0);
        while (tokens as f64) < self.tokens_per_s * self.seconds {
            at_s += exponential(&mut rng, 1.0 / self.per_second);
            let (conversation, answer);
            if rng.random::<f64>() < self.conversations {
                let rested = open.iter().position(|open| open.rested_at_s <= at_s);
                let mut turn = match rested {
                    Some(place) => open.remove(place),
                    // Those of the beginning are already under way, or all conversations would be young at once.
                    None => begin(&mut rng, at_s < REST_S.1, &oracle).await?,
                };
                let length = if turn.conversation.messages().is_empty() { FIRST_TOKENS } else { LATER_TOKENS };
                turn.conversation.push("user", &prose_between(&mut rng, length));
                conversation = turn.conversation.clone();
                answer = oracle.answer(&mut turn.conversation).await?;
                turn.turns_left -= 1;
                if turn.turns_left > 0 {
                    turn.rested_at_s = at_s + rng.random_range(REST_S.0..=REST_S.1);
                    open.push(turn);
                }
            } else {
                let (least, most) = SINGLE_TOKENS;
                let length = log_uniform(&mut rng, least, most) as usize;
                let mut single = Conversation::default();
                single.push("user", &prose(&mut rng, length));
                conversation = single.clone();
                answer = oracle.answer(&mut single).await?;
            }
            tokens += answer.tokens;
            let arrival = Arrival {
                at: Duration::ZERO,
                hash: hash(&conversation.beginning(HASHED_CHARACTERS)),
                body: Bytes::from(body(&conversation, true).to_string()),
                prompt_tokens: answer.usage.prompt_tokens.unwrap_or(0),
            };
            made.push((at_s, arrival));
        }
        let stretch = self.seconds / at_s;
        let at = |at_s: f64| Duration::from_secs_f64(at_s * stretch);
        Ok(made.into_iter().map(|(at_s, arrival)| Arrival { at: at(at_s), ..arrival }).collect())
    }
}

async fn begin(rng: &mut StdRng, under_way: bool, oracle: &Oracle) -> Result<Open> {
    let turns = rng.random_range(TURNS.0..=TURNS.1);
    let before = if under_way { rng.random_range(0..turns) } else { 0 };
    let mut conversation = Conversation::default();
    for nth in 0..before {
        let tokens = if nth == 0 { FIRST_TOKENS } else { LATER_TOKENS };
        conversation.push("user", &prose_between(rng, tokens));
        oracle.answer(&mut conversation).await?;
    }
    Ok(Open { conversation, turns_left: turns - before, rested_at_s: 0.0 })
}

fn prose_between(rng: &mut StdRng, (least, most): (usize, usize)) -> String {
    let tokens = rng.random_range(least..=most);
    prose(rng, tokens)
}

/// The engine decides when an answer ends, as real ones do.
fn body(conversation: &Conversation, stream: bool) -> Value {
    let mut body = json!({"messages": conversation.messages(), "model": MODEL, "max_tokens": MAX_TOKENS});
    if stream {
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
    }
    body
}

/// An engine that takes no time.
struct Oracle(EngineHandle);

impl Oracle {
    async fn start() -> Result<Self> {
        let config = EngineConfig { model: MODEL.into(), profile: Profile::instant(), ..EngineConfig::default() };
        Ok(Self(EngineHandle::start(config).await?))
    }

    /// Adds the answer that every engine would give.
    async fn answer(&self, conversation: &mut Conversation) -> Result<Outcome> {
        let call = Call::json("/v1/chat/completions", &body(conversation, false));
        let outcome = Client::new(self.0.addr()).send(call).await;
        ensure!(outcome.is_ok(), "the engine that knows the answers: {:?} {:?}", outcome.status, outcome.error);
        conversation.hear(&outcome);
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: Arrivals =
        Arrivals { seconds: 20.0, per_second: 20.0, tokens_per_s: 1_280.0, conversations: 0.6, seed: 7 };

    fn messages(arrival: &Arrival) -> Vec<Value> {
        let body: Value = serde_json::from_slice(&arrival.body).unwrap();
        body["messages"].as_array().unwrap().clone()
    }

    #[tokio::test]
    async fn the_same_seed_brings_the_same_requests() {
        let (one, other) = (FEW.make().await.unwrap(), FEW.make().await.unwrap());
        assert_eq!(one.len(), other.len());
        assert!(one.iter().zip(&other).all(|(one, other)| one.body == other.body && one.at == other.at));
        let third = Arrivals { seed: 8, ..FEW }.make().await.unwrap();
        assert!(third.iter().zip(&one).any(|(third, one)| third.body != one.body));
    }

    #[tokio::test]
    async fn conversations_grow_and_their_share_is_as_asked() {
        let made = FEW.make().await.unwrap();
        assert!((300..500).contains(&made.len()), "{}", made.len());
        assert_eq!(made.last().unwrap().at, Duration::from_secs(20));
        // What one has said before begins what it says next; single prompts have nothing before them.
        let grown = made.iter().enumerate().filter(|(nth, arrival)| {
            let (now, earlier) = (messages(arrival), &made[..*nth]);
            earlier.iter().any(|before| now.len() > 1 && now.starts_with(&messages(before)))
        });
        let share = grown.count() as f64 / made.len() as f64;
        assert!((0.25..0.55).contains(&share), "{share}");
        let alone = Arrivals { conversations: 0.0, ..FEW }.make().await.unwrap();
        assert!(alone.iter().all(|arrival| messages(arrival).len() == 1));
    }
}
