//! Who bursts. Of all probers over one store, exactly one holds the lease; the others serve, watch, and wait.
//!
//! The holder renews every [`RENEW`]; when it dies, the lease ends after [`TTL`] and another takes it at its next try,
//! within TTL + RENEW. The holder counts on it [`MARGIN`] less than the store does, by its own monotonic clock from before
//! it asked: a prober that was stopped for a while, or whose clock jumps, does not think that it still has it. Should it
//! write all the same, the fence that goes with its results tells the store. Without a store that answers nobody can
//! hold the lease, and nobody bursts.
//!
//! The others take the holder to have it for [`TTL`] after they last heard so: it may burst for as long, and one answer that
//! does not come must not put an endpoint under a burst back into service.

use std::time::Duration;

use tokio::time::Instant;

use super::backend::LeaseHolder;

/// How long a lease lasts that nobody renews.
pub const TTL: Duration = Duration::from_secs(6);
/// How often it is renewed, or tried for.
pub const RENEW: Duration = Duration::from_secs(1);
/// How much earlier than the store the holder takes it to have ended.
pub const MARGIN: Duration = Duration::from_secs(1);

/// What this prober knows of the lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lease {
    /// It has it.
    Mine {
        /// Goes with what it writes.
        fence: u64,
        /// Until then; `None`: there is nobody else.
        until: Option<Instant>,
    },
    /// Another has it.
    Others {
        /// Who.
        holder: LeaseHolder,
        /// It may still have it until then, if the store says nothing more.
        until: Instant,
    },
    /// The store does not say.
    Unknown,
}

impl Lease {
    /// What an answer of the store means that was asked for at `asked` and came at `now`.
    pub(super) fn answered(holder: LeaseHolder, me: &str, asked: Instant, now: Instant, shared: bool) -> Self {
        if holder.who != me {
            // It may have renewed up to the answer, which is after the question.
            return Lease::Others { holder, until: now + TTL };
        }
        Lease::Mine { fence: holder.fence, until: shared.then(|| asked + TTL - MARGIN) }
    }

    /// What it means that the store did not answer.
    pub(super) fn unanswered(self, now: Instant) -> Self {
        let holds = match &self {
            Lease::Others { until, .. } => now < *until,
            Lease::Mine { .. } => self.fence(now).is_some(),
            Lease::Unknown => false,
        };
        if holds { self } else { Lease::Unknown }
    }

    /// The fence, while this prober has the lease.
    #[must_use]
    pub fn fence(&self, now: Instant) -> Option<u64> {
        match self {
            Lease::Mine { fence, until } if until.is_none_or(|until| now < until) => Some(*fence),
            _ => None,
        }
    }

    /// Whether another prober has it.
    #[must_use]
    pub fn is_others(&self) -> bool {
        matches!(self, Lease::Others { .. })
    }

    /// The fence of whoever has it, as last heard.
    #[must_use]
    pub fn current_fence(&self) -> Option<u64> {
        match self {
            Lease::Mine { fence, .. } => Some(*fence),
            Lease::Others { holder, .. } => Some(holder.fence),
            Lease::Unknown => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(who: &str) -> LeaseHolder {
        LeaseHolder { who: who.into(), fence: 7 }
    }

    #[test]
    fn it_ends_here_before_it_ends_in_the_store() {
        let asked = Instant::now();
        let lease = Lease::answered(holder("me"), "me", asked, asked, true);
        let last = asked + TTL - MARGIN;
        assert_eq!(lease.fence(last - Duration::from_millis(1)), Some(7));
        assert_eq!(lease.fence(last), None);
        // No answer: it stays until it ends.
        assert_eq!(lease.clone().unanswered(asked), lease);
        assert_eq!(lease.unanswered(last), Lease::Unknown);
    }

    #[test]
    fn anothers_is_not_mine_and_alone_it_never_ends() {
        let now = Instant::now();
        let others = Lease::answered(holder("you"), "me", now, now, true);
        assert!(others.is_others() && others.fence(now).is_none() && others.current_fence() == Some(7));
        // One that bursts is not taken to have gone because the store did not answer here.
        let last = now + TTL - Duration::from_millis(1);
        assert_eq!(others.clone().unanswered(last), others);
        assert_eq!(others.unanswered(now + TTL), Lease::Unknown);
        let alone = Lease::answered(holder("me"), "me", now, now, false);
        assert_eq!(alone.fence(now + Duration::from_secs(1_000_000)), Some(7));
    }
}
