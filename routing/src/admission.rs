//! How a pool lets requests in: the queue's limits and the prefill budget.
//!
//! **Prefill budget.** Of the prompts that it has not answered yet, an endpoint takes a further one when
//!
//! ```text
//! prompts < 2   or   tokens + new <= budget x speed
//! ```
//!
//! with `tokens` the uncached tokens of those prompts and `new` those of the further one; prompts below
//! [`WORTH_TELLING_TOKENS`](crate::live::WORTH_TELLING_TOKENS) do not count and always may. `speed` is the prefill speed over the pool's
//! median, or the weight where it is not known ([`prefill_budget`]): twice the speed computes twice as much in the same time, and
//! the same number for all fills the slow endpoints with more than their share. Two at any length, because an endpoint that computes one prompt only stands still from its end until the gateway knows of it
//! and has sent the next.

/// Checked settings of admission. What a full pool cannot take now waits in the queue of the live table (see
/// [`crate::live::queue`]) within these limits; past them it is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// The most requests that wait at a time; 0: nobody waits.
    pub queue: u32,
    /// The most bytes of bodies that wait at a time. One body may always wait.
    pub queue_bytes: u64,
    /// The longest that a request waits (ms); 0: nobody waits.
    pub max_wait_ms: u32,
    /// Waiting so long (ms) is worth one level of priority; 0: low priorities wait for ever.
    pub ageing_ms: u32,
    /// Prompt tokens that an endpoint may have to compute at a time, at the pool's median prefill speed; 0: any number. Two
    /// prompts always may.
    pub prefill_budget_tokens: u32,
}

impl Default for Admission {
    fn default() -> Self {
        Admission {
            queue: 1_000,
            queue_bytes: 64 << 20,
            max_wait_ms: 30_000,
            ageing_ms: 5_000,
            prefill_budget_tokens: 16_384,
        }
    }
}

/// The prefill budget of an endpoint in tokens: `base x speed`, to the nearest and at least 1; 0, which is no limit, stays 0.
/// `speed` is its prefill speed over the pool's median, so that what is allowed is the same time everywhere; a weight, which is
/// about decoding, only stands in for it.
#[must_use]
pub fn prefill_budget(base: u32, speed: f64) -> u32 {
    if base == 0 { 0 } else { ((f64::from(base) * speed).round() as u32).max(1) }
}

/// The longest that a request may be told to stay away (s).
const MOST_RETRY_S: u32 = 60;

/// `retry-after` (s): how long `ahead` waiters and the request itself take to drain at so many releases per second, at least
/// 1, and at most 60 or `max_wait_ms`: whoever waits now has a slot by then, or has gone. Less than one release a minute
/// says nothing: a pool that was idle has released nothing either. Then it is the most behind others, and 1 behind nobody,
/// since the first slot that frees is to be had.
#[must_use]
pub fn retry_after_s(ahead: usize, releases_per_s: f64, max_wait_ms: u32) -> u32 {
    let most = max_wait_ms.div_ceil(1_000).clamp(1, MOST_RETRY_S);
    if releases_per_s.is_nan() || releases_per_s * f64::from(MOST_RETRY_S) < 1.0 {
        return if ahead == 0 { 1 } else { most };
    }
    let seconds = ((ahead as f64 + 1.0) / releases_per_s).ceil() as u32;
    seconds.clamp(1, most)
}

/// How long (ms) a request that came now would wait, for autoscalers: nothing while a slot is free and nobody waits, else
/// what the waiters take to drain at so many releases per second, and one more; at most `max_wait_ms`, which is also what
/// there is to expect where nothing drains.
#[must_use]
pub fn expected_wait_ms(free_slots: u64, waiting: usize, releases_per_s: f64, max_wait_ms: u32) -> u64 {
    if free_slots > 0 && waiting == 0 {
        return 0;
    }
    let most = f64::from(max_wait_ms);
    let wait = (waiting as f64 + 1.0) / releases_per_s * 1_000.0;
    if wait.is_nan() || wait < 0.0 { max_wait_ms.into() } else { wait.min(most) as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefill_budget_grows_with_the_speed_and_none_stays_none() {
        assert_eq!(prefill_budget(16_384, 1.0), 16_384);
        assert_eq!([prefill_budget(16_384, 2.67), prefill_budget(16_384, 0.67)], [43_745, 10_977]);
        assert_eq!([prefill_budget(0, 2.67), prefill_budget(1, 0.01)], [0, 1]);
        assert_eq!(prefill_budget(u32::MAX, 8.0), u32::MAX);
    }

    #[test]
    fn retry_after_follows_the_drain_rate() {
        let after = |ahead, rate| retry_after_s(ahead, rate, 300_000);
        assert_eq!([after(0, 10.0), after(99, 10.0), after(99, 0.1)], [1, 10, 60]);
        assert_eq!([after(5, 0.0), after(5, -1.0), after(5, f64::NAN)], [60; 3]);
        assert_eq!([after(0, 0.0), after(0, 0.016), after(0, f64::NAN)], [1; 3]);
        // In the first burst after a quiet time nothing is known of the rate: the queue is empty after the longest wait.
        assert_eq!([retry_after_s(5, 0.0, 4_200), retry_after_s(99, 1.0, 4_200)], [5, 5]);
        assert_eq!([retry_after_s(5, 0.0, 0), retry_after_s(5, 0.0, 300)], [1, 1]);
    }

    #[test]
    fn an_expected_wait_is_nothing_while_there_is_room() {
        assert_eq!(expected_wait_ms(3, 0, 0.0, 30_000), 0);
        assert_eq!(expected_wait_ms(0, 0, 10.0, 30_000), 100);
        assert_eq!(expected_wait_ms(0, 49, 10.0, 30_000), 5_000);
        // Free slots that waiters cannot use are none for them.
        assert_eq!(expected_wait_ms(2, 9, 10.0, 30_000), 1_000);
        assert_eq!((expected_wait_ms(0, 9, 0.0, 30_000), expected_wait_ms(0, 9, f64::NAN, 7)), (30_000, 7));
    }
}
