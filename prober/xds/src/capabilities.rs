//! What the filter's module may do: the host calls that it imports and the callbacks that it exports, by the names that Envoy
//! gives to capabilities. Envoy answers every other call with an error, and makes no other callback.
//!
//! The same list stands in the shipped configurations; a test compares all of them with the module.

use std::collections::HashMap;

use envoy_types::pb::envoy::extensions::wasm::v3::{CapabilityRestrictionConfig, SanitizationConfig};

/// In alphabetical order. Functions that make a module run at all (memory, `_initialize`, the ABI version) are no capabilities.
pub const CAPABILITIES: [&str; 39] = [
    "clock_time_get",
    "environ_get",
    "environ_sizes_get",
    "fd_write",
    "proc_exit",
    "proxy_continue_stream",
    "proxy_define_metric",
    "proxy_dequeue_shared_queue",
    "proxy_enqueue_shared_queue",
    "proxy_get_buffer_bytes",
    "proxy_get_header_map_value",
    "proxy_get_property",
    "proxy_get_shared_data",
    "proxy_http_call",
    "proxy_increment_metric",
    "proxy_log",
    "proxy_on_configure",
    "proxy_on_http_call_response",
    "proxy_on_log",
    "proxy_on_queue_ready",
    "proxy_on_request_body",
    "proxy_on_request_headers",
    "proxy_on_request_trailers",
    "proxy_on_response_body",
    "proxy_on_response_headers",
    "proxy_on_response_trailers",
    "proxy_on_tick",
    "proxy_record_metric",
    "proxy_register_shared_queue",
    "proxy_remove_header_map_value",
    "proxy_replace_header_map_value",
    "proxy_resolve_shared_queue",
    "proxy_send_local_response",
    "proxy_set_buffer_bytes",
    "proxy_set_effective_context",
    "proxy_set_property",
    "proxy_set_shared_data",
    "proxy_set_tick_period_milliseconds",
    "random_get",
];

/// The list as Envoy reads it. It cannot be empty: that would allow everything.
pub(crate) fn restriction() -> CapabilityRestrictionConfig {
    let allowed = CAPABILITIES.map(|name| (name.to_owned(), SanitizationConfig {}));
    CapabilityRestrictionConfig { allowed_capabilities: HashMap::from(allowed) }
}
