//! What happens when, in order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use engine_sim::model::Nanos;

/// Something that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// An engine's next event, unless it has been asked since.
    Engine { nth: usize, stamp: u64 },
    /// A request has waited as long as it would.
    Patience { gateway: usize, id: u64 },
    /// The prober reads the engines' metrics.
    Scrape,
    /// A gateway reports what it has in flight.
    Report { gateway: usize },
    /// The answer to a report reaches its gateway.
    Heard { gateway: usize },
    /// A fault begins or ends.
    Fault { nth: usize, begins: bool },
    /// The prober has found out which endpoints are there, and tells the gateways.
    Health { nth: usize, ready: bool },
}

/// A queue of what is due; of what is due at the same time, that which was put in first comes first.
#[derive(Debug, Default)]
pub(super) struct Calendar {
    heap: BinaryHeap<Reverse<(Nanos, u64, Due)>>,
    put: u64,
}

impl Calendar {
    pub(super) fn put(&mut self, at: Nanos, due: Due) {
        self.put += 1;
        self.heap.push(Reverse((at, self.put, due)));
    }

    pub(super) fn next_at(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse((at, _, _))| *at)
    }

    pub(super) fn pop(&mut self) -> Option<(Nanos, Due)> {
        self.heap.pop().map(|Reverse((at, _, due))| (at, due))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_time_and_then_by_who_came_first() {
        let mut calendar = Calendar::default();
        for (at, gateway) in [(5, 1), (3, 2), (5, 0), (3, 1)] {
            calendar.put(at, Due::Report { gateway });
        }
        let order: Vec<_> = std::iter::from_fn(|| calendar.pop()).collect();
        let report = |gateway| Due::Report { gateway };
        assert_eq!(order, [(3, report(2)), (3, report(1)), (5, report(1)), (5, report(0))]);
        assert_eq!(calendar.next_at(), None);
    }
}
