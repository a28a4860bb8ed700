//! What ends with a request, however it ends.

use std::ops::Range;
use std::sync::Arc;

use super::Core;

/// A request in the model. Dropped before [`Self::done`], it is cancelled.
#[derive(Debug)]
pub(crate) struct Ticket {
    core: Arc<Core>,
    ids: Range<u64>,
    done: bool,
}

impl Ticket {
    pub(super) fn new(core: Arc<Core>, ids: Range<u64>) -> Self {
        Self { core, ids, done: false }
    }

    /// One more sequence that belongs to it.
    pub(super) fn add(&mut self, id: u64) {
        self.ids.end = id + 1;
    }

    /// A number that no other request of this engine has.
    pub(crate) fn id(&self) -> u64 {
        self.ids.start
    }

    /// Nothing is left to cancel.
    pub(crate) fn done(&mut self) {
        self.done = true;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.done {
            self.core.cancel(self.ids.clone());
        }
    }
}

/// A generation request at the HTTP level, counted until dropped.
#[derive(Debug)]
pub(crate) struct Flight {
    core: Arc<Core>,
    hanging: bool,
}

impl Flight {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self { core, hanging: false }
    }

    /// It never reaches the model; `/metrics` shows it as running all the same, as an engine that is stuck would.
    pub(crate) fn hangs(&mut self) {
        if !std::mem::replace(&mut self.hanging, true) {
            self.core.lock().http.hanging += 1;
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let http = &mut self.core.lock().http;
        http.in_flight -= 1;
        http.hanging -= usize::from(self.hanging);
    }
}
