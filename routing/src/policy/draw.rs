//! Drawing some of the candidates, and taking the best of those.

use std::cmp::Ordering;

use super::{Candidate, Choice, Choices};
use crate::rng::SplitMix64;

/// How candidates are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Draw {
    /// In proportion to weight.
    #[default]
    ByWeight,
    /// Each with the same chance.
    Uniformly,
}

/// Who wins a tie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tie {
    /// The heavier one; between equal weights, chance.
    Heavier,
    /// Chance.
    Chance,
}

/// Draws `choices` distinct candidates. `drawn` receives their places; all of them when there are no more than that.
pub(super) fn draw(
    candidates: &[Candidate],
    choices: Choices,
    draw: Draw,
    rng: &mut SplitMix64,
    drawn: &mut Vec<usize>,
) {
    drawn.clear();
    let count = match choices {
        Choices::Count(count) if (count.get() as usize) < candidates.len() => count.get(),
        _ => return drawn.extend(0..candidates.len()),
    };
    let share = |candidate: &Candidate| match draw {
        Draw::ByWeight => u64::from(candidate.weight.hundredths()),
        Draw::Uniformly => 1,
    };
    let mut left: u64 = candidates.iter().map(share).sum();
    for _ in 0..count {
        let mut ticket = rng.below(left);
        for (place, candidate) in candidates.iter().enumerate() {
            if drawn.contains(&place) {
                continue;
            }
            let share = share(candidate);
            if ticket < share {
                drawn.push(place);
                left -= share;
                break;
            }
            ticket -= share;
        }
    }
}

/// The cheapest of those drawn; `lower` is what it is called when it is cheaper than all others.
pub(super) fn best(
    candidates: &[Candidate],
    drawn: &[usize],
    tie: Tie,
    lower: Choice,
    rng: &mut SplitMix64,
) -> Option<(Candidate, Choice)> {
    let compare = |a: &Candidate, b: &Candidate| match tie {
        Tie::Heavier => a.compare(b),
        Tie::Chance => a.cost.total_cmp(&b.cost),
    };
    let mut best: Option<Candidate> = None;
    let mut how = if candidates.len() == 1 { Choice::OnlyOne } else { lower };
    let mut equals = 1;
    for candidate in drawn.iter().filter_map(|place| candidates.get(*place)) {
        let Some(held) = best else {
            best = Some(*candidate);
            continue;
        };
        let same_cost = candidate.cost == held.cost;
        match compare(candidate, &held) {
            Ordering::Less => {
                how = if same_cost { Choice::TieHeavier } else { lower };
                best = Some(*candidate);
                equals = 1;
            }
            Ordering::Equal => {
                // Each of k equals ends up chosen with chance 1/k.
                equals += 1;
                how = Choice::TieChance;
                if rng.below(equals) == 0 {
                    best = Some(*candidate);
                }
            }
            Ordering::Greater if how == lower && same_cost => how = Choice::TieHeavier,
            Ordering::Greater => {}
        }
    }
    best.map(|best| (best, how))
}
