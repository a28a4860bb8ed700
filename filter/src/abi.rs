//! What Envoy calls: the exports of proxy-wasm ABI 0.2.1, and the streams that they are about.
//!
//! Written by hand instead of taken from the SDK, because every exported function costs each request (one to two
//! microseconds on Envoy's way into the VM), whether there is anything to do or not: Envoy does not call what a module does
//! not export. So there is no `proxy_on_context_create` (a stream begins with its headers), no `proxy_on_done` and no
//! `proxy_on_delete` (a stream ends with its log entry, which comes on every way out, and is the last thing that comes).
//! See `docs/adr/0013-exports-by-hand.md`.
//!
//! A callback for a stream that is not known is passed by: its VM may be newer than the stream.
#![allow(unsafe_code)]

use std::alloc::Layout;
use std::cell::RefCell;
use std::collections::HashMap;

use crate::host::{self, Level};
use crate::quick::Quick;
use crate::stream::Stream;
use crate::{attempts, calls, root, vm};

/// What Envoy is to do with a stream after a callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Goes on.
    Continue = 0,
    /// Waits, and keeps what has come.
    Pause = 1,
}

type Streams = HashMap<u32, Stream, Quick>;

thread_local! {
    static STREAMS: RefCell<Streams> = RefCell::new(Streams::default());
}

/// Works on a stream, from its own callbacks or from those of the root context; `None` when it is over. Nothing that a
/// stream does calls this again: Envoy puts off what host calls lead to until the callback has returned.
pub(crate) fn with_stream<T>(id: u32, work: impl FnOnce(&mut Stream) -> T) -> Option<T> {
    STREAMS.with_borrow_mut(|streams| streams.get_mut(&id).map(work))
}

/// Shows the streams that are under way to `work`, until one is what it looks for.
pub(crate) fn any_stream(work: impl FnMut(&mut Stream) -> bool) -> bool {
    STREAMS.with_borrow_mut(|streams| streams.values_mut().any(work))
}

fn act(id: u32, work: impl FnOnce(&mut Stream) -> Action) -> u32 {
    with_stream(id, work).unwrap_or(Action::Continue) as u32
}

#[unsafe(no_mangle)]
extern "C" fn proxy_abi_version_0_2_1() {}

#[cfg(target_os = "wasi")]
unsafe extern "C" {
    fn __wasm_call_ctors();
}

/// Called once, before anything else.
#[unsafe(no_mangle)]
extern "C" fn _initialize() {
    #[cfg(target_os = "wasi")]
    // SAFETY: the linker makes it; it is called here and nowhere else.
    unsafe {
        __wasm_call_ctors();
    }
    // A panic traps, and the trap tells nothing.
    std::panic::set_hook(Box::new(|panic| host::log(Level::Critical, &panic.to_string())));
}

/// Envoy puts what it hands over into memory that it gets here; [`host`] takes it from there.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_memory_allocate(size: usize) -> *mut u8 {
    match Layout::array::<u8>(size) {
        // SAFETY: the size is not zero.
        Ok(layout) if size > 0 => unsafe { std::alloc::alloc(layout) },
        // Null tells Envoy that there is none; of nothing, it writes nothing.
        _ => std::ptr::null_mut(),
    }
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_configure(root: u32, size: usize) -> u32 {
    root::on_configure(root, size).into()
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_tick(_: u32) {
    root::on_tick();
}

/// The answer to [`host::http_call`], or with no headers, none.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_http_call_response(_: u32, token: u32, headers: usize, body_size: usize, _: u32) {
    calls::answered(token, headers, body_size);
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_queue_ready(_: u32, queue: u32) {
    root::on_queue_ready(queue);
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_request_headers(id: u32, _: u32, end_of_stream: u32) -> u32 {
    vm::with(vm::Vm::serve);
    let mut stream = Stream::new(id);
    let action = stream.on_http_request_headers(end_of_stream != 0);
    if !stream.is_passing() {
        STREAMS.with_borrow_mut(|streams| streams.insert(id, stream));
    }
    action as u32
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_request_body(id: u32, size: usize, end_of_stream: u32) -> u32 {
    act(id, |stream| stream.on_http_request_body(size, end_of_stream != 0))
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_request_trailers(id: u32, _: u32) -> u32 {
    act(id, Stream::on_http_request_trailers)
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_response_headers(id: u32, _: u32, end_of_stream: u32) -> u32 {
    act(id, |stream| stream.on_http_response_headers(end_of_stream != 0))
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_response_body(id: u32, size: usize, end_of_stream: u32) -> u32 {
    act(id, |stream| stream.on_http_response_body(size, end_of_stream != 0))
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_response_trailers(id: u32, _: u32) -> u32 {
    act(id, Stream::on_http_response_trailers)
}

/// The last callback of a stream; of a root context, the log entry of an attempt.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_log(id: u32) {
    match STREAMS.with_borrow_mut(|streams| streams.remove(&id)) {
        Some(mut stream) => stream.on_log(),
        None => attempts::log(id),
    }
}
