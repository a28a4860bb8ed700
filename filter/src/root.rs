//! The root context: configuration and ticks. It holds nothing: Envoy makes a new one at every update.

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::ContextType;

use crate::calls;
use crate::host::{self, Buffer, Level};
use crate::stream::Stream;
use crate::vm;

/// Two ticks a second: statistics are at most that old, and a dead VM is noticed within three seconds.
const TICK_MS: u32 = 500;

pub(crate) struct Root;

impl Context for Root {
    fn on_http_call_response(&mut self, token: u32, headers: usize, body_size: usize, _: usize) {
        calls::answered(token, headers, body_size);
    }
}

impl RootContext for Root {
    /// `false` makes Envoy refuse the update (a NACK to the prober) and keep what it has.
    fn on_configure(&mut self, size: usize) -> bool {
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

    fn on_tick(&mut self) {
        vm::with(vm::Vm::tick);
    }

    fn create_http_context(&self, _: u32) -> Option<Box<dyn HttpContext>> {
        vm::with(vm::Vm::serve);
        Some(Box::new(Stream::default()))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}
