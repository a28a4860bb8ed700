//! The root context: configuration, ticks, wake-ups. It holds nothing: Envoy makes a new one at every update.

use std::cell::Cell;

use crate::host::{self, Buffer, Level, Queue};
use crate::signals;
use crate::vm::{self, Due};
use crate::waiting::{Turn, Waiting};
use crate::wake;
use crate::{abi, attempts};

/// Twice a second come the slow ticks: statistics are at most that old, and a dead VM is noticed within three seconds.
const SLOW_MS: u32 = 500;
/// While requests of this VM wait: deadlines are met so closely, and a wake-up that was lost costs at most twice this.
const WAITING_TICK_MS: u32 = 50;

/// The root context in force, and how often it ticks.
#[derive(Debug, Clone, Copy)]
struct Pace {
    root: u32,
    tick_ms: u32,
    /// When the work of a slow tick is due again.
    slow_due_ms: u64,
}

thread_local! {
    static PACE: Cell<Pace> = const { Cell::new(Pace { root: 0, tick_ms: 0, slow_due_ms: 0 }) };
}

/// `false` makes Envoy refuse the update (a NACK to the prober) and keep what it has.
pub(crate) fn on_configure(root: u32, size: usize) -> bool {
    if attempts::configure(root) {
        return true;
    }
    let json = host::buffer(Buffer::PluginConfiguration, 0, size).unwrap_or_default();
    match vm::with(|vm| vm.configure(&json)) {
        Ok(()) => {
            // What the root context before this one had registered goes with it.
            vm::with(|vm| vm.hear());
            let tick_ms = tick_ms();
            PACE.set(Pace { root, tick_ms, slow_due_ms: PACE.get().slow_due_ms });
            host::set_tick_period_ms(tick_ms);
            vm::with(|vm| vm.dispatch(host::now_ms()));
            true
        }
        Err(error) => {
            host::log(Level::Error, &format!("weighbridge: the snapshot is refused: {error}"));
            false
        }
    }
}

fn tick_ms() -> u32 {
    vm::with(|vm| if vm.has_waiters() { WAITING_TICK_MS } else { vm.tick_ms() })
}

pub(crate) fn on_tick() {
    let now_ms = host::now_ms();
    let mut pace = PACE.get();
    vm::with(|vm| signals::tick(vm, now_ms));
    if now_ms >= pace.slow_due_ms {
        // Half a fast tick early rather than late.
        pace.slow_due_ms = now_ms + u64::from(SLOW_MS - WAITING_TICK_MS / 2);
        PACE.set(pace);
        vm::with(vm::Vm::tick);
    }
    for (context, due) in vm::with(|vm| vm.due(now_ms)) {
        turn(context, |waiting| match due {
            Due::Stands(standing) => waiting.stands(standing),
            Due::PoolGone => waiting.pool_gone(),
        });
    }
    back_to_root();
    let tick_ms = tick_ms();
    if tick_ms != pace.tick_ms {
        PACE.set(Pace { tick_ms, ..pace });
        host::set_tick_period_ms(tick_ms);
    }
}

/// Requests of this VM may have got slots.
pub(crate) fn on_queue_ready(queue: u32) {
    let queue = Queue::numbered(queue);
    while let Some(message) = queue.take() {
        for (pool, ticket) in wake::read(&message) {
            if let Some(context) = vm::with(|vm| vm.seated(pool, ticket)) {
                turn(context, Waiting::claim);
            }
        }
    }
    back_to_root();
}

/// Ticks more often, now that a request of this stream waits.
pub(crate) fn hurry(stream: u32) {
    let pace = PACE.get();
    if pace.tick_ms != WAITING_TICK_MS && host::set_effective_context(pace.root).is_ok() {
        PACE.set(Pace { tick_ms: WAITING_TICK_MS, ..pace });
        host::set_tick_period_ms(WAITING_TICK_MS);
        let _ = host::set_effective_context(stream);
    }
}

/// Lets a waiting request do something, as if from a callback of its own.
fn turn(context: u32, what: impl FnOnce(Box<Waiting>) -> Turn) {
    if host::set_effective_context(context).is_ok() {
        abi::with_stream(context, |stream| stream.on_turn(what));
    }
}

fn back_to_root() {
    let _ = host::set_effective_context(PACE.get().root);
}
