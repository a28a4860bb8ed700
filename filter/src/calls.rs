//! HTTP calls to the prober, from a VM's tick.
//!
//! They go to Envoy's cluster [`CLUSTER`], which the operator's configuration has; without it every call fails quietly
//! with [`CallError::NoCluster`], and the filter works on by itself. Bounded: one call per path at a time, so a slow
//! prober sees no pile of them, and an answer of at most [`MAX_ANSWER_BYTES`].
//!
//! A configuration update cancels what the root context before it had asked, and nobody is told; such a call ends with
//! [`CallError::Lost`] at [`expire`]. Every call that [`Calls::post`] took has its `done` run exactly once, unless
//! the VM dies. None runs inside `post`: Envoy reports what fails at once after the callback that asked.

use crate::host::{self, Buffer, Headers};
use crate::vm::{self, Vm};

/// The Envoy cluster that leads to the prober's REST API.
pub(crate) const CLUSTER: &str = "weighbridge-prober";
/// The longest that a call may take.
pub(crate) const TIMEOUT_MS: u32 = 2_000;
/// After this long nobody will answer any more.
const LOST_MS: u64 = TIMEOUT_MS as u64 + 1_000;
/// The largest answer that is read.
const MAX_ANSWER_BYTES: usize = 4 << 20;

/// Why a call gave nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallError {
    /// One for the same path is still under way.
    Busy,
    /// Envoy has no such cluster.
    NoCluster,
    /// Envoy did not take the call.
    NotSent,
    /// Timeout, reset, or nobody there.
    NoAnswer,
    /// An answer with a status other than 2xx.
    Status(u16),
    /// An answer that is too large.
    TooLarge,
    /// A configuration update came in between.
    Lost,
}

impl CallError {
    /// The word used as a metric label.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            CallError::Busy => "busy",
            CallError::NoCluster => "no_cluster",
            CallError::NotSent => "not_sent",
            CallError::NoAnswer => "no_answer",
            CallError::Status(_) => "status",
            CallError::TooLarge => "too_large",
            CallError::Lost => "lost",
        }
    }
}

/// What is done with an answer's body.
pub(crate) type Done = Box<dyn FnOnce(&mut Vm, Result<Vec<u8>, CallError>)>;

struct Pending {
    token: u32,
    path: &'static str,
    asked_ms: u64,
    done: Done,
}

/// The calls of one VM that are under way.
#[derive(Default)]
pub(crate) struct Calls {
    pending: Vec<Pending>,
    /// Value of `authorization`; empty where the prober asks for none.
    authorization: String,
}

impl Calls {
    /// Shows this bearer token from now on; none when it is empty.
    pub(crate) fn authorize(&mut self, token: &str) {
        self.authorization = if token.is_empty() { String::new() } else { format!("Bearer {token}") };
    }

    /// Posts JSON to a path of the prober's API. `done` runs when the answer is there, in the VM that asked.
    ///
    /// # Errors
    /// When the call is not under way; `done` is dropped then.
    pub(crate) fn post(
        &mut self,
        path: &'static str,
        body: &[u8],
        now_ms: u64,
        done: impl FnOnce(&mut Vm, Result<Vec<u8>, CallError>) + 'static,
    ) -> Result<(), CallError> {
        if self.is_busy(path) {
            return Err(CallError::Busy);
        }
        let mut headers =
            vec![(":method", "POST"), (":path", path), (":authority", CLUSTER), ("content-type", "application/json")];
        if !self.authorization.is_empty() {
            headers.push(("authorization", &self.authorization));
        }
        let token = host::http_call(CLUSTER, &headers, body, TIMEOUT_MS).map_err(|error| match error.0 {
            host::BAD_ARGUMENT => CallError::NoCluster,
            _ => CallError::NotSent,
        })?;
        self.pending.push(Pending { token, path, asked_ms: now_ms, done: Box::new(done) });
        Ok(())
    }

    /// Whether a call for this path is under way.
    pub(crate) fn is_busy(&self, path: &str) -> bool {
        self.pending.iter().any(|pending| pending.path == path)
    }

    /// Takes out what nobody will answer any more.
    fn expired(&mut self, now_ms: u64) -> Option<Done> {
        let late = |pending: &Pending| now_ms.saturating_sub(pending.asked_ms) >= LOST_MS;
        let place = self.pending.iter().position(late)?;
        Some(self.pending.swap_remove(place).done)
    }

    fn take(&mut self, token: u32) -> Option<Done> {
        let place = self.pending.iter().position(|pending| pending.token == token)?;
        Some(self.pending.swap_remove(place).done)
    }
}

/// Ends calls that a configuration update has cancelled. To be called on each tick.
pub(crate) fn expire(vm: &mut Vm, now_ms: u64) {
    while let Some(done) = vm.calls.expired(now_ms) {
        done(vm, Err(CallError::Lost));
    }
}

/// Envoy has the answer to a call, or, with no headers, none.
pub(crate) fn answered(token: u32, headers: usize, body_size: usize) {
    vm::with(|vm| {
        let Some(done) = vm.calls.take(token) else { return };
        let result = answer(headers, body_size);
        done(vm, result);
    });
}

fn answer(headers: usize, body_size: usize) -> Result<Vec<u8>, CallError> {
    if headers == 0 {
        return Err(CallError::NoAnswer);
    }
    let status = host::header(Headers::CallResponse, ":status").unwrap_or_default();
    let status: u16 = std::str::from_utf8(&status).ok().and_then(|text| text.parse().ok()).unwrap_or_default();
    match status {
        200..300 if body_size > MAX_ANSWER_BYTES => Err(CallError::TooLarge),
        200..300 => Ok(host::buffer(Buffer::CallResponseBody, 0, body_size).unwrap_or_default()),
        // Envoy's own answers to what did not get through look like the prober's.
        503 | 504 => Err(CallError::NoAnswer),
        status => Err(CallError::Status(status)),
    }
}
