//! Who stands where in a round: the machine's load drifts, and nobody is to be always early, always late, or always behind the
//! same one.

/// The places of `routers` routers, the first to run first. `turn` counts rounds, over all scenarios.
///
/// In `routers` turns each begins once, and whoever begins in one is half of the way down in the next. Every other turn goes
/// backwards, so that everybody comes after different others.
#[must_use]
pub fn order(routers: usize, turn: usize) -> Vec<usize> {
    if routers == 0 {
        return Vec::new();
    }
    let nth_turn = turn % routers;
    let first = nth_turn / 2 + if nth_turn.is_multiple_of(2) { 0 } else { routers.div_ceil(2) };
    let step = |nth: usize| if turn.is_multiple_of(2) { nth } else { routers - nth };
    (0..routers).map(|nth| (first + step(nth)) % routers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stands_in_a_turn_once_and_begins_once_in_as_many_turns() {
        for routers in 0..20 {
            for turn in 0..20 {
                let mut all = order(routers, turn);
                all.sort_unstable();
                assert_eq!(all, (0..routers).collect::<Vec<_>>());
            }
            for from in 0..3 {
                let mut first: Vec<usize> = (from..from + routers).map(|turn| order(routers, turn)[0]).collect();
                first.sort_unstable();
                assert_eq!(first, (0..routers).collect::<Vec<_>>(), "{routers} from {from}");
            }
        }
    }

    #[test]
    fn who_was_among_the_first_is_not_so_again_and_comes_after_others() {
        for routers in 5..20 {
            for turn in 0..20 {
                let (one, next) = (order(routers, turn), order(routers, turn + 1));
                assert!(one[0] != next[0] && one[0] != next[1], "{routers}, {turn}: {one:?}, {next:?}");
                let after = |order: &[usize]| order.windows(2).map(|pair| (pair[0], pair[1])).collect::<Vec<_>>();
                assert!(after(&one).iter().all(|pair| !after(&next).contains(pair)), "{routers}, {turn}");
            }
        }
    }
}
