//! The root context: configuration and ticks. It holds nothing: Envoy makes a new one at every update.

use crate::host::{self, Buffer, Level};
use crate::vm;

/// Two ticks a second: statistics are at most that old, and a dead VM is noticed within three seconds.
const TICK_MS: u32 = 500;

/// `false` makes Envoy refuse the update (a NACK to the prober) and keep what it has.
pub(crate) fn on_configure(size: usize) -> bool {
    let json = host::buffer(Buffer::PluginConfiguration, 0, size).unwrap_or_default();
    match vm::with(|vm| vm.configure(&json)) {
        Ok(()) => {
            host::set_tick_period_ms(TICK_MS);
            true
        }
        Err(error) => {
            host::log(Level::Error, &format!("weighbridge: the snapshot is refused: {error}"));
            false
        }
    }
}

pub(crate) fn on_tick() {
    vm::with(vm::Vm::tick);
}
