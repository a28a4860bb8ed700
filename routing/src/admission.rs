//! How a pool lets requests in: the queue's limits and the prefill budget.

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
    /// Prompt tokens that an endpoint may have to compute at a time; 0: any number. One prompt always may.
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

/// The longest that a request may be told to stay away (s).
const MOST_RETRY_S: u32 = 60;

/// `retry-after` (s): how long `ahead` waiters and the request itself take to drain at so many releases per second, within
/// 1 to 60; 60 when nothing drains.
#[must_use]
pub fn retry_after_s(ahead: usize, releases_per_s: f64) -> u32 {
    if releases_per_s.is_nan() || releases_per_s <= 0.0 {
        return MOST_RETRY_S;
    }
    let seconds = ((ahead as f64 + 1.0) / releases_per_s).ceil() as u32;
    seconds.clamp(1, MOST_RETRY_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_follows_the_drain_rate() {
        assert_eq!(retry_after_s(0, 10.0), 1);
        assert_eq!(retry_after_s(99, 10.0), 10);
        assert_eq!(retry_after_s(99, 0.1), 60);
        assert_eq!((retry_after_s(5, 0.0), retry_after_s(5, -1.0), retry_after_s(5, f64::NAN)), (60, 60, 60));
    }
}
