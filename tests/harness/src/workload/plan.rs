//! What users send.

use std::f64::consts::E;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Bytes of text that a simulated engine counts as a token.
const TOKEN_BYTES: usize = 4;

/// A conversation to be had.
#[derive(Debug, Clone)]
pub struct Talk {
    /// When it begins, in seconds.
    pub start_s: f64,
    /// System prompt; empty for none.
    pub system: String,
    /// What the user says, turn by turn.
    pub turns: Vec<Turn>,
}

/// One thing that a user says.
#[derive(Debug, Clone)]
pub struct Turn {
    /// The message.
    pub text: String,
    /// Length of the answer, in tokens.
    pub output_tokens: u32,
    /// How long the user thinks after the answer, in seconds.
    pub think_s: f64,
}

/// How conversations are made.
#[derive(Debug, Clone)]
pub struct TalksOptions {
    /// How many conversations.
    pub conversations: usize,
    /// Turns of each.
    pub turns: usize,
    /// Share of the conversations that begin with one of [`Self::system_prompts`]; the others have none.
    pub system_share: f64,
    /// Different system prompts.
    pub system_prompts: usize,
    /// Length of a system prompt, in tokens.
    pub system_tokens: usize,
    /// Length of the first message (a document and a question), in tokens: uniform between these.
    pub first_tokens: (usize, usize),
    /// Length of each later message.
    pub later_tokens: (usize, usize),
    /// Mean length of an answer; exponentially distributed, at most four times as much.
    pub output_tokens: f64,
    /// Mean time that a user thinks, in seconds; exponentially distributed.
    pub think_s: f64,
    /// The conversations begin within so many seconds.
    pub start_within_s: f64,
    /// Of everything random.
    pub seed: u64,
}

impl Default for TalksOptions {
    fn default() -> Self {
        Self {
            conversations: 40,
            turns: 8,
            system_share: 0.5,
            system_prompts: 2,
            system_tokens: 500,
            first_tokens: (1_000, 3_000),
            later_tokens: (200, 800),
            output_tokens: 200.0,
            think_s: 2.0,
            start_within_s: 15.0,
            seed: 1,
        }
    }
}

/// Makes conversations.
#[must_use]
pub fn talks(options: &TalksOptions) -> Vec<Talk> {
    let mut rng = StdRng::seed_from_u64(options.seed);
    let systems: Vec<String> = (0..options.system_prompts).map(|_| prose(&mut rng, options.system_tokens)).collect();
    (0..options.conversations)
        .map(|_| {
            let with_system = rng.random::<f64>() < options.system_share && !systems.is_empty();
            let system = if with_system { systems[rng.random_range(0..systems.len())].clone() } else { String::new() };
            let turns = (0..options.turns)
                .map(|nth| {
                    let (least, most) = if nth == 0 { options.first_tokens } else { options.later_tokens };
                    let tokens = rng.random_range(least..=most);
                    Turn {
                        text: prose(&mut rng, tokens),
                        output_tokens: output_tokens(&mut rng, options.output_tokens),
                        think_s: exponential(&mut rng, options.think_s),
                    }
                })
                .collect();
            Talk { start_s: rng.random::<f64>() * options.start_within_s, system, turns }
        })
        .collect()
}

/// A prompt that has nothing in common with any other.
#[derive(Debug, Clone)]
pub struct Single {
    /// When it is sent, in seconds.
    pub at_s: f64,
    /// The prompt.
    pub text: String,
    /// Length of the answer, in tokens.
    pub output_tokens: u32,
}

/// How single prompts are made.
#[derive(Debug, Clone)]
pub struct SinglesOptions {
    /// How many.
    pub requests: usize,
    /// Arrivals per second (Poisson).
    pub per_second: f64,
    /// Length in tokens: log-uniform between these.
    pub prompt_tokens: (f64, f64),
    /// Mean length of an answer, in tokens.
    pub output_tokens: f64,
    /// Of everything random.
    pub seed: u64,
}

impl Default for SinglesOptions {
    fn default() -> Self {
        Self { requests: 600, per_second: 10.0, prompt_tokens: (100.0, 4_000.0), output_tokens: 128.0, seed: 1 }
    }
}

/// Makes single prompts, in the order of their arrival.
#[must_use]
pub fn singles(options: &SinglesOptions) -> Vec<Single> {
    let mut rng = StdRng::seed_from_u64(options.seed);
    let (least, most) = options.prompt_tokens;
    let mut at_s = 0.0;
    (0..options.requests)
        .map(|_| {
            at_s += exponential(&mut rng, 1.0 / options.per_second);
            let tokens = log_uniform(&mut rng, least, most) as usize;
            let output_tokens = output_tokens(&mut rng, options.output_tokens);
            Single { at_s, text: prose(&mut rng, tokens), output_tokens }
        })
        .collect()
}

/// As many between 100 and 200 as between 200 and 400.
pub(crate) fn log_uniform(rng: &mut StdRng, least: f64, most: f64) -> f64 {
    E.powf(least.ln() + rng.random::<f64>() * (most / least).ln())
}

pub(crate) fn exponential(rng: &mut StdRng, mean: f64) -> f64 {
    -(1.0 - rng.random::<f64>()).ln() * mean
}

fn output_tokens(rng: &mut StdRng, mean: f64) -> u32 {
    exponential(rng, mean).clamp(1.0, 4.0 * mean) as u32
}

/// Words without meaning, a line break every dozen of them.
pub(crate) fn prose(rng: &mut StdRng, tokens: usize) -> String {
    const WORDS: [&str; 16] = [
        "lorry", "scale", "load", "bridge", "axle", "ton", "road", "gate", "yard", "crane", "ramp", "dock", "belt",
        "cargo", "port", "rail",
    ];
    let mut text = format!("{:016x} ", rng.random::<u64>());
    let mut words = 0;
    while text.len() < tokens * TOKEN_BYTES {
        text.push_str(WORDS[rng.random_range(0..WORDS.len())]);
        words += 1;
        text.push(if words % 12 == 0 { '\n' } else { ' ' });
    }
    text.truncate(tokens * TOKEN_BYTES);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_workload() {
        let options = TalksOptions::default();
        let (one, other) = (talks(&options), talks(&options));
        assert_eq!(format!("{one:?}"), format!("{other:?}"));
        assert_ne!(format!("{one:?}"), format!("{:?}", talks(&TalksOptions { seed: 2, ..options })));
        assert!(one.len() == 40 && one.iter().all(|talk| talk.turns.len() == 8));
        let with_system = one.iter().filter(|talk| !talk.system.is_empty()).count();
        assert!((10..=30).contains(&with_system), "{with_system}");
    }

    #[test]
    fn single_prompts_come_as_often_as_asked() {
        let made = singles(&SinglesOptions { requests: 4_000, ..SinglesOptions::default() });
        let rate = 4_000.0 / made.last().unwrap().at_s;
        assert!((rate / 10.0 - 1.0).abs() < 0.1, "{rate}");
        assert!(made.iter().all(|single| (396..=16_000).contains(&single.text.len())));
    }
}
