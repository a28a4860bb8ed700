//! Every call into Envoy.
//!
//! A panic here would take every request of a worker thread down, so each returns an [`Option`] or a [`HostError`]. The ABI
//! is proxy-wasm 0.2.1. Memory that the host hands over was allocated by this module ([`crate::abi`]) with a capacity equal to
//! its length, and is owned from then on.
#![allow(unsafe_code)]

use std::ptr::null_mut;

use weighbridge_routing::live::{SharedValue, StoreError};
use weighbridge_routing::prefix::index::Shards;

/// A status other than OK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HostError(pub(crate) u32);

const OK: u32 = 0;
/// Of a call: Envoy has no such cluster.
pub(crate) const BAD_ARGUMENT: u32 = 2;
const CAS_MISMATCH: u32 = 8;

/// Header maps.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Headers {
    Request = 0,
    Response = 2,
    CallResponse = 6,
}

/// Buffers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Buffer {
    RequestBody = 0,
    ResponseBody = 1,
    CallResponseBody = 4,
    PluginConfiguration = 7,
}

/// Kinds of metric.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Metric {
    Counter = 0,
    Gauge = 1,
    Histogram = 2,
}

/// Severity of a log line.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Level {
    Warn = 3,
    Error = 4,
    Critical = 5,
}

#[cfg(target_arch = "wasm32")]
mod sys {
    #[link(wasm_import_module = "env")]
    unsafe extern "C" {
        pub(super) fn proxy_log(level: u32, message: *const u8, length: usize) -> u32;
        pub(super) fn proxy_set_tick_period_milliseconds(period: u32) -> u32;
        pub(super) fn proxy_get_buffer_bytes(
            buffer: u32,
            start: usize,
            length: usize,
            bytes: *mut *mut u8,
            size: *mut usize,
        ) -> u32;
        pub(super) fn proxy_set_buffer_bytes(
            buffer: u32,
            start: usize,
            length: usize,
            bytes: *const u8,
            size: usize,
        ) -> u32;
        pub(super) fn proxy_get_header_map_value(
            map: u32,
            key: *const u8,
            key_size: usize,
            bytes: *mut *mut u8,
            size: *mut usize,
        ) -> u32;
        pub(super) fn proxy_replace_header_map_value(
            map: u32,
            key: *const u8,
            key_size: usize,
            value: *const u8,
            value_size: usize,
        ) -> u32;
        pub(super) fn proxy_remove_header_map_value(map: u32, key: *const u8, key_size: usize) -> u32;
        pub(super) fn proxy_get_property(
            path: *const u8,
            path_size: usize,
            bytes: *mut *mut u8,
            size: *mut usize,
        ) -> u32;
        pub(super) fn proxy_set_property(path: *const u8, path_size: usize, value: *const u8, size: usize) -> u32;
        pub(super) fn proxy_get_shared_data(
            key: *const u8,
            key_size: usize,
            bytes: *mut *mut u8,
            size: *mut usize,
            cas: *mut u32,
        ) -> u32;
        pub(super) fn proxy_set_shared_data(
            key: *const u8,
            key_size: usize,
            value: *const u8,
            size: usize,
            cas: u32,
        ) -> u32;
        pub(super) fn proxy_register_shared_queue(name: *const u8, size: usize, id: *mut u32) -> u32;
        pub(super) fn proxy_resolve_shared_queue(
            vm: *const u8,
            vm_size: usize,
            name: *const u8,
            size: usize,
            id: *mut u32,
        ) -> u32;
        pub(super) fn proxy_enqueue_shared_queue(id: u32, value: *const u8, size: usize) -> u32;
        pub(super) fn proxy_dequeue_shared_queue(id: u32, bytes: *mut *mut u8, size: *mut usize) -> u32;
        pub(super) fn proxy_set_effective_context(context: u32) -> u32;
        pub(super) fn proxy_continue_stream(stream: u32) -> u32;
        pub(super) fn proxy_define_metric(kind: u32, name: *const u8, size: usize, id: *mut u32) -> u32;
        pub(super) fn proxy_record_metric(id: u32, value: u64) -> u32;
        pub(super) fn proxy_increment_metric(id: u32, by: i64) -> u32;
        pub(super) fn proxy_send_local_response(
            status: u32,
            details: *const u8,
            details_size: usize,
            body: *const u8,
            body_size: usize,
            headers: *const u8,
            headers_size: usize,
            grpc_status: i32,
        ) -> u32;
        pub(super) fn proxy_http_call(
            cluster: *const u8,
            cluster_size: usize,
            headers: *const u8,
            headers_size: usize,
            body: *const u8,
            body_size: usize,
            trailers: *const u8,
            trailers_size: usize,
            timeout_ms: u32,
            token: *mut u32,
        ) -> u32;
    }

    #[link(wasm_import_module = "wasi_snapshot_preview1")]
    unsafe extern "C" {
        pub(super) fn clock_time_get(clock: u32, precision: u64, time: *mut u64) -> u32;
    }
}

/// Off Envoy there is no host: every call says "not found". It lets the crate build and be linted natively.
#[cfg(not(target_arch = "wasm32"))]
#[expect(clippy::too_many_arguments, reason = "the ABI has them")]
mod sys {
    macro_rules! absent {
        ($($name:ident($($argument:ty),*);)*) => {
            $(pub(super) unsafe fn $name($(_: $argument),*) -> u32 { 1 })*
        };
    }
    absent! {
        proxy_log(u32, *const u8, usize);
        proxy_set_tick_period_milliseconds(u32);
        proxy_get_buffer_bytes(u32, usize, usize, *mut *mut u8, *mut usize);
        proxy_set_buffer_bytes(u32, usize, usize, *const u8, usize);
        proxy_get_header_map_value(u32, *const u8, usize, *mut *mut u8, *mut usize);
        proxy_replace_header_map_value(u32, *const u8, usize, *const u8, usize);
        proxy_remove_header_map_value(u32, *const u8, usize);
        proxy_get_property(*const u8, usize, *mut *mut u8, *mut usize);
        proxy_set_property(*const u8, usize, *const u8, usize);
        proxy_get_shared_data(*const u8, usize, *mut *mut u8, *mut usize, *mut u32);
        proxy_set_shared_data(*const u8, usize, *const u8, usize, u32);
        proxy_register_shared_queue(*const u8, usize, *mut u32);
        proxy_resolve_shared_queue(*const u8, usize, *const u8, usize, *mut u32);
        proxy_enqueue_shared_queue(u32, *const u8, usize);
        proxy_dequeue_shared_queue(u32, *mut *mut u8, *mut usize);
        proxy_set_effective_context(u32);
        proxy_continue_stream(u32);
        proxy_define_metric(u32, *const u8, usize, *mut u32);
        proxy_record_metric(u32, u64);
        proxy_increment_metric(u32, i64);
        proxy_send_local_response(u32, *const u8, usize, *const u8, usize, *const u8, usize, i32);
        proxy_http_call(*const u8, usize, *const u8, usize, *const u8, usize, *const u8, usize, u32, *mut u32);
        clock_time_get(u32, u64, *mut u64);
    }
}

/// Takes what the host allocated.
///
/// # Safety
/// `bytes` and `size` must be what a host call just returned.
unsafe fn owned(bytes: *mut u8, size: usize) -> Vec<u8> {
    if bytes.is_null() || size == 0 {
        return Vec::new();
    }
    // SAFETY: `proxy_on_memory_allocate` made it with exactly this capacity, for bytes; the host filled it.
    unsafe { Vec::from_raw_parts(bytes, size, size) }
}

fn checked(status: u32) -> Result<(), HostError> {
    if status == OK { Ok(()) } else { Err(HostError(status)) }
}

/// Writes a line to Envoy's log.
pub(crate) fn log(level: Level, message: &str) {
    // SAFETY: the pointer and length are those of a live string.
    let _ = unsafe { sys::proxy_log(level as u32, message.as_ptr(), message.len()) };
}

/// How often `on_tick` comes.
pub(crate) fn set_tick_period_ms(period: u32) {
    // SAFETY: no pointers.
    let _ = unsafe { sys::proxy_set_tick_period_milliseconds(period) };
}

/// Part of a buffer; shorter than asked when it ends.
pub(crate) fn buffer(which: Buffer, start: usize, length: usize) -> Option<Vec<u8>> {
    let (mut bytes, mut size) = (null_mut(), 0);
    // SAFETY: both out-pointers are live; `owned` takes what came back.
    unsafe {
        let status = sys::proxy_get_buffer_bytes(which as u32, start, length, &mut bytes, &mut size);
        (status == OK).then(|| owned(bytes, size))
    }
}

/// Replaces a whole buffer. (Envoy refuses to replace a part.)
pub(crate) fn set_buffer(which: Buffer, bytes: &[u8]) -> Result<(), HostError> {
    // SAFETY: the pointer and length are those of a live slice.
    checked(unsafe { sys::proxy_set_buffer_bytes(which as u32, 0, usize::MAX >> 1, bytes.as_ptr(), bytes.len()) })
}

/// A header's value, as bytes: clients send what is not UTF-8.
pub(crate) fn header(map: Headers, name: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut size) = (null_mut(), 0);
    // SAFETY: as in `buffer`.
    unsafe {
        let status = sys::proxy_get_header_map_value(map as u32, name.as_ptr(), name.len(), &mut bytes, &mut size);
        (status == OK).then(|| owned(bytes, size))
    }
}

/// Sets a header, in place of any that has this name.
pub(crate) fn set_header(map: Headers, name: &str, value: &str) -> Result<(), HostError> {
    // SAFETY: pointers and lengths are those of live strings.
    checked(unsafe {
        sys::proxy_replace_header_map_value(map as u32, name.as_ptr(), name.len(), value.as_ptr(), value.len())
    })
}

/// Removes a header.
pub(crate) fn remove_header(map: Headers, name: &str) {
    // SAFETY: pointer and length are those of a live string.
    let _ = unsafe { sys::proxy_remove_header_map_value(map as u32, name.as_ptr(), name.len()) };
}

/// A property; `path` has a NUL between its parts. Absent where Envoy does not have it (yet).
pub(crate) fn property(path: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut size) = (null_mut(), 0);
    // SAFETY: as in `buffer`.
    unsafe {
        let status = sys::proxy_get_property(path.as_ptr(), path.len(), &mut bytes, &mut size);
        (status == OK).then(|| owned(bytes, size))
    }
}

/// Sets filter state `wasm.<path>`.
pub(crate) fn set_property(path: &str, value: &str) -> Result<(), HostError> {
    // SAFETY: pointers and lengths are those of live strings.
    checked(unsafe { sys::proxy_set_property(path.as_ptr(), path.len(), value.as_ptr(), value.len()) })
}

/// Headers in the form of the ABI.
fn encoded(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut map = (headers.len() as u32).to_le_bytes().to_vec();
    for (name, value) in headers {
        map.extend((name.len() as u32).to_le_bytes());
        map.extend((value.len() as u32).to_le_bytes());
    }
    for text in headers.iter().flat_map(|(name, value)| [name, value]) {
        map.extend(text.as_bytes());
        map.push(0);
    }
    map
}

/// Answers the request from here. At most once per stream.
pub(crate) fn respond(status: u16, details: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<(), HostError> {
    let map = encoded(headers);
    // SAFETY: pointers and lengths are those of live slices. -1: no gRPC status.
    checked(unsafe {
        sys::proxy_send_local_response(
            status.into(),
            details.as_ptr(),
            details.len(),
            body.as_ptr(),
            body.len(),
            map.as_ptr(),
            map.len(),
            -1,
        )
    })
}

/// Defines a metric, or finds the one of this name.
pub(crate) fn define_metric(kind: Metric, name: &str) -> Option<u32> {
    let mut id = 0;
    // SAFETY: the out-pointer is live; the name is a live string.
    let status = unsafe { sys::proxy_define_metric(kind as u32, name.as_ptr(), name.len(), &mut id) };
    (status == OK).then_some(id)
}

/// Sets a gauge, or adds a sample to a histogram.
pub(crate) fn record_metric(id: u32, value: u64) {
    // SAFETY: no pointers.
    let _ = unsafe { sys::proxy_record_metric(id, value) };
}

/// Adds to a counter.
pub(crate) fn increment_metric(id: u32, by: u64) {
    // SAFETY: no pointers.
    let _ = unsafe { sys::proxy_increment_metric(id, by.min(i64::MAX as u64) as i64) };
}

/// A value in shared data with its CAS number, or nothing and 0.
pub(crate) fn shared_data(key: &str) -> (Option<Vec<u8>>, u32) {
    let (mut bytes, mut size, mut cas) = (null_mut(), 0, 0);
    // SAFETY: as in `buffer`.
    unsafe {
        let status = sys::proxy_get_shared_data(key.as_ptr(), key.len(), &mut bytes, &mut size, &mut cas);
        if status == OK { (Some(owned(bytes, size)), cas) } else { (None, 0) }
    }
}

/// Writes a value to shared data; `cas` 0 writes whatever stands there.
pub(crate) fn set_shared_data(key: &str, value: &[u8], cas: u32) -> Result<(), HostError> {
    // SAFETY: pointers and lengths are those of live slices.
    checked(unsafe { sys::proxy_set_shared_data(key.as_ptr(), key.len(), value.as_ptr(), value.len(), cas) })
}

/// A shared queue, by which one VM calls another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Queue(u32);

impl Queue {
    /// Makes this VM the one that hears of what comes into the queue of this name: on the root context that is active
    /// now. When that context is gone, so is the hearing, and the name must be registered again.
    pub(crate) fn register(name: &str) -> Result<Self, HostError> {
        let mut id = 0;
        // SAFETY: the out-pointer is live; the name is a live string.
        checked(unsafe { sys::proxy_register_shared_queue(name.as_ptr(), name.len(), &mut id) })?;
        Ok(Queue(id))
    }

    /// The queue that a VM with this `vm_id` has registered under this name.
    pub(crate) fn find(vm_id: &[u8], name: &str) -> Result<Self, HostError> {
        let mut id = 0;
        // SAFETY: the out-pointer is live; the names are live slices.
        checked(unsafe {
            sys::proxy_resolve_shared_queue(vm_id.as_ptr(), vm_id.len(), name.as_ptr(), name.len(), &mut id)
        })?;
        Ok(Queue(id))
    }

    /// The queue of this number, as `on_queue_ready` gives it.
    pub(crate) fn numbered(id: u32) -> Self {
        Queue(id)
    }

    /// Puts a message in; the VM at the other end is called soon, on its own thread.
    pub(crate) fn put(self, message: &[u8]) -> Result<(), HostError> {
        // SAFETY: the pointer and length are those of a live slice.
        checked(unsafe { sys::proxy_enqueue_shared_queue(self.0, message.as_ptr(), message.len()) })
    }

    /// Takes a message out; `None` when there is none left.
    pub(crate) fn take(self) -> Option<Vec<u8>> {
        let (mut bytes, mut size) = (null_mut(), 0);
        // SAFETY: as in `buffer`.
        unsafe {
            let status = sys::proxy_dequeue_shared_queue(self.0, &mut bytes, &mut size);
            (status == OK).then(|| owned(bytes, size))
        }
    }
}

/// Makes the calls that follow concern another context of this VM: a stream that is paused, or the root.
pub(crate) fn set_effective_context(context: u32) -> Result<(), HostError> {
    // SAFETY: no pointers.
    checked(unsafe { sys::proxy_set_effective_context(context) })
}

/// Lets the effective context's request go on, once this callback is over.
pub(crate) fn resume_request() -> Result<(), HostError> {
    // SAFETY: no pointers. 0: the request, in HTTP.
    checked(unsafe { sys::proxy_continue_stream(0) })
}

/// A key of shared data, seen as a [`SharedValue`].
pub(crate) struct Shared<'a>(pub(crate) &'a str);

impl SharedValue for Shared<'_> {
    fn load(&mut self) -> (Option<Vec<u8>>, u32) {
        shared_data(self.0)
    }

    fn store(&mut self, bytes: &[u8], token: u32) -> Result<(), StoreError> {
        set_shared_data(self.0, bytes, token).map_err(|HostError(status)| match status {
            CAS_MISMATCH => StoreError::Conflict,
            _ => StoreError::Failed,
        })
    }
}

/// The shards of the holder index: `prefix/<n>`. They are made when something is first written to them.
#[derive(Debug)]
pub(crate) struct Index;

impl Shards for Index {
    fn load(&mut self, shard: u64) -> (Option<Vec<u8>>, u32) {
        Shared(ShardKey::new(shard).as_str()).load()
    }

    fn store(&mut self, shard: u64, bytes: &[u8], token: u32) -> Result<(), StoreError> {
        Shared(ShardKey::new(shard).as_str()).store(bytes, token)
    }
}

/// `prefix/<n>`, written without an allocation: every prompt looks at several shards.
struct ShardKey {
    bytes: [u8; 27],
    from: usize,
}

impl ShardKey {
    fn new(mut shard: u64) -> Self {
        const NAME: &[u8; 7] = b"prefix/";
        let mut key = ShardKey { bytes: [0; 27], from: 27 };
        loop {
            key.put(b'0' + (shard % 10) as u8);
            shard /= 10;
            if shard == 0 {
                break;
            }
        }
        NAME.iter().rev().for_each(|letter| key.put(*letter));
        key
    }

    /// Puts a letter before what is there.
    fn put(&mut self, letter: u8) {
        self.from = self.from.saturating_sub(1);
        if let Some(place) = self.bytes.get_mut(self.from) {
            *place = letter;
        }
    }

    fn as_str(&self) -> &str {
        self.bytes.get(self.from..).and_then(|key| std::str::from_utf8(key).ok()).unwrap_or_default()
    }
}

/// Sends a request to a cluster of Envoy's. The answer comes to [`crate::calls::answered`] with the token that is
/// returned. Envoy has no cluster of this name: [`BAD_ARGUMENT`].
pub(crate) fn http_call(
    cluster: &str,
    headers: &[(&str, &str)],
    body: &[u8],
    timeout_ms: u32,
) -> Result<u32, HostError> {
    let (map, no_trailers) = (encoded(headers), encoded(&[]));
    let mut token = 0;
    // SAFETY: pointers and lengths are those of live slices; the out-pointer is live.
    let status = unsafe {
        sys::proxy_http_call(
            cluster.as_ptr(),
            cluster.len(),
            map.as_ptr(),
            map.len(),
            body.as_ptr(),
            body.len(),
            no_trailers.as_ptr(),
            no_trailers.len(),
            timeout_ms,
            &mut token,
        )
    };
    checked(status).map(|()| token)
}

/// Milliseconds on a clock that never goes back, the same for all VMs of one Envoy.
pub(crate) fn now_ms() -> u64 {
    clock(1).or_else(|| clock(0)).unwrap_or_default() / 1_000_000
}

/// Milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    clock(0).unwrap_or_default() / 1_000_000
}

fn clock(which: u32) -> Option<u64> {
    let mut time = 0;
    // SAFETY: the out-pointer is live.
    let status = unsafe { sys::clock_time_get(which, 1_000_000, &mut time) };
    (status == OK).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_have_the_names_that_they_always_had() {
        for shard in [0, 9, 10, 4_095, u64::MAX] {
            assert_eq!(ShardKey::new(shard).as_str(), format!("prefix/{shard}"));
        }
    }
}
