//! Sending a workload.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::figures::Figures;
use super::fleet::{Fleet, HASH_HEADER, MODEL};
use super::plan::{Single, Talk};
use crate::load::{self, Call, Conversation, Outcome};

/// Characters whose hash the client computes.
pub(crate) const HASHED_CHARACTERS: usize = 256;

/// Has all conversations, each turn when the answer before has come and the user has thought.
///
/// # Errors
/// When a request is not answered.
pub async fn run_talks(fleet: &Fleet, talks: &[Talk]) -> Result<Figures> {
    let (begin, scale) = (Instant::now(), fleet.scale);
    let mut running = JoinSet::new();
    for (talk, target) in talks.iter().cloned().zip(fleet.targets(talks.len())?) {
        running.spawn(async move {
            let mut conversation = Conversation::new(&talk.system);
            let mut outcomes = Vec::with_capacity(talk.turns.len());
            let mut at = begin + Duration::from_secs_f64(talk.start_s / scale);
            for turn in &talk.turns {
                sleep_until(at).await;
                let call = conversation.ask(MODEL, &turn.text, turn.output_tokens, true);
                let hash = hash(&conversation.beginning(HASHED_CHARACTERS));
                let outcome = load::send(target, call.header(HASH_HEADER, &hash).timeout(LONG)).await;
                conversation.hear(&outcome);
                outcomes.push(outcome);
                at = Instant::now() + Duration::from_secs_f64(turn.think_s / scale);
            }
            outcomes
        });
    }
    figures(fleet, running.join_all().await.into_iter().flatten().collect(), begin)
}

/// Sends each prompt at its time, whatever became of those before.
///
/// # Errors
/// When a request is not answered.
pub async fn run_singles(fleet: &Fleet, singles: &[Single]) -> Result<Figures> {
    let (begin, scale) = (Instant::now(), fleet.scale);
    let mut running = JoinSet::new();
    for (single, target) in singles.iter().cloned().zip(fleet.targets(singles.len())?) {
        running.spawn(async move {
            sleep_until(begin + Duration::from_secs_f64(single.at_s / scale)).await;
            let call = Call::chat_stream(MODEL, &single.text, single.output_tokens);
            load::send(target, call.header(HASH_HEADER, &hash(&single.text)).timeout(LONG)).await
        });
    }
    figures(fleet, running.join_all().await, begin)
}

/// No request takes so long.
const LONG: Duration = Duration::from_secs(600);

pub(crate) fn hash(text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

fn figures(fleet: &Fleet, outcomes: Vec<Outcome>, begin: Instant) -> Result<Figures> {
    if let Some(failed) = outcomes.iter().find(|outcome| !outcome.is_ok()) {
        let body = String::from_utf8_lossy(&failed.body);
        ensure!(failed.is_ok(), "status {:?}, {:?}: {}", failed.status, failed.error, body);
    }
    Ok(Figures::new(&outcomes, fleet.scale, begin.elapsed().as_secs_f64() * fleet.scale))
}
