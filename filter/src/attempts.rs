//! What became of each attempt of a request.
//!
//! A request may be tried at several endpoints, and its filter hears only of the last. Envoy's router logs every attempt
//! (`upstream_log`); this module is the access logger of those that went wrong before an answer had begun, under the root id
//! [`ROOT_ID`]. In the same VM as the filter (the same `vm_id`, the same code) it finds the request by its `x-request-id`. So each
//! failure is told to the live table when it happens, at the endpoint where it happened, as what it was, and the request's count
//! goes on to the next host with the request.
//!
//! An Envoy whose router has no such log works as well, with less knowledge: where an answer came from another endpoint than the
//! first, the first is left alone for a moment, as if it had pushed back, since it may have (`docs/failover.md`).

use std::cell::RefCell;

use weighbridge_routing::live::Outcome;

use crate::host::{self, Headers};
use crate::place::request_id;
use crate::{abi, vm};

/// The root id of the access logger.
const ROOT_ID: &[u8] = b"weighbridge-attempts";
/// Root contexts that are remembered: the one in force, and those of updates before it that still finish something.
const MAX_ROOTS: usize = 16;

/// Envoy's response flags that blame the upstream: timeout, remote reset, connection failure, connection termination, silence,
/// broken protocol. (Not among them: a client that left, and limits of Envoy's own.)
const BLAMES_UPSTREAM: u64 = 0x4 | 0x10 | 0x20 | 0x40 | 0x1_0000 | 0x80_0000;

thread_local! {
    static ROOTS: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// Takes a root context that is this logger's; `false` for any other.
pub(crate) fn configure(root: u32) -> bool {
    if host::property("plugin_root_id").is_none_or(|id| id != ROOT_ID) {
        return false;
    }
    ROOTS.with_borrow_mut(|roots| {
        if roots.len() == MAX_ROOTS {
            roots.remove(0);
        }
        roots.push(root);
    });
    true
}

/// Whether the attempts of this VM's requests are logged here.
pub(crate) fn are_logged() -> bool {
    ROOTS.with_borrow(|roots| !roots.is_empty())
}

/// An attempt is over. Of no interest when `context` is a stream's.
pub(crate) fn log(context: u32) {
    if !ROOTS.with_borrow(|roots| roots.contains(&context)) {
        return;
    }
    let number = |path| host::property(path).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes);
    let outcome = outcome(number("response\0code"), number("response\0flags"), pushed_back);
    let (Some(outcome), Some(address)) = (outcome, host::property("upstream\0address")) else { return };
    let known = request_id().is_some_and(|id| {
        let told = |at| abi::any_stream(|stream| stream.attempt_failed(id, &address, at, outcome));
        // Whose id is not known yet is asked for it: those first whose attempt it most likely was.
        told(true) || told(false)
    });
    // Back from the streams that were asked.
    let _ = host::set_effective_context(context);
    if !known {
        let cluster = host::property("xds\0cluster_name").unwrap_or_default();
        vm::with(|vm| vm.attempt_failed(&cluster, &address, outcome, host::now_ms()));
    }
}

/// What an attempt says of its endpoint: nothing where it went well, or began well (its request tells the rest).
fn outcome(status: u64, flags: u64, pushed_back: impl FnOnce() -> Option<Outcome>) -> Option<Outcome> {
    match status {
        429 | 503 => Some(refused(status == 429, pushed_back())),
        500.. => Some(Outcome::Failure),
        0 if flags & BLAMES_UPSTREAM != 0 => Some(Outcome::Failure),
        _ => None,
    }
}

/// An engine that says when to come back, or 429, has enough to do; one that answers 503 and does not say cannot serve.
pub(crate) fn refused(busy: bool, pushed_back: Option<Outcome>) -> Outcome {
    let untold = if busy { Outcome::Busy { retry_after_ms: None } } else { Outcome::Failure };
    pushed_back.unwrap_or(untold)
}

/// That the answer has a `retry-after`, and what it says where it is a number of seconds (not a date).
pub(crate) fn pushed_back() -> Option<Outcome> {
    let value = host::header(Headers::Response, "retry-after")?;
    let seconds = std::str::from_utf8(&value).ok().and_then(|text| text.trim().parse::<u32>().ok());
    Some(Outcome::Busy { retry_after_ms: seconds.map(|seconds| seconds.saturating_mul(1_000)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_endpoint_is_to_blame_for_counts() {
        let busy = |retry_after_ms| Some(Outcome::Busy { retry_after_ms });
        for (status, flags, pushed_back, expected) in [
            (200, 0, None, None),
            (200, 0x40, None, None), // it began well
            (404, 0, None, None),
            (429, 0, None, busy(None)),
            (429, 0, busy(Some(2_000)), busy(Some(2_000))),
            (503, 0, busy(Some(2_000)), busy(Some(2_000))),
            (503, 0, busy(None), busy(None)), // a date
            (503, 0, None, Some(Outcome::Failure)),
            (500, 0, None, Some(Outcome::Failure)),
            (0, 0x20, None, Some(Outcome::Failure)), // connection refused
            (0, 0x4, None, Some(Outcome::Failure)),  // timeout
            (0, 0x4000, None, None),                 // the client left
            (0, 0x80, None, None),                   // Envoy's own limit
            (0, 0, None, None),
        ] {
            assert_eq!(outcome(status, flags, || pushed_back), expected, "{status} {flags:#x}");
        }
    }
}
