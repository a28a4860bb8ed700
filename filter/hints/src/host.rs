//! A stand-in for Envoy: the host calls of proxy-wasm ABI 0.2.1 that the filter makes, as far as a request that goes well needs them.
//!
//! Nothing here depends on the machine or the moment: the clock moves by what the course says, and chance is a sequence.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use wasmi::{Caller, Config, Engine, Extern, Instance, Linker, Module, Store};

use crate::branches::{Count, NOTE};

const OK: u32 = 0;
const NOT_FOUND: u32 = 1;
const CAS_MISMATCH: u32 = 8;

/// Headers and body of one direction.
#[derive(Debug, Default)]
pub(crate) struct Message {
    pub(crate) headers: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) body: Vec<u8>,
}

/// What the module sees of the world.
#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) now_ms: u64,
    pub(crate) configuration: Vec<u8>,
    pub(crate) request: Message,
    pub(crate) answer: Message,
    /// By key: value and number.
    shared: BTreeMap<Vec<u8>, (Vec<u8>, u32)>,
    writes: u32,
    metrics: u32,
    chance: u64,
    counts: Vec<Count>,
    /// Decision records that it has given.
    pub(crate) records: u32,
    /// What the module has answered or logged by itself: nothing, in a course that goes well.
    pub(crate) complaints: Vec<String>,
}

/// A module under this host.
pub(crate) struct Vm {
    store: Store<World>,
    instance: Instance,
}

impl Vm {
    /// Loads a counting module with so many branches.
    ///
    /// # Errors
    /// When it is no module, or imports something that Envoy does not have.
    pub(crate) fn load(module: &[u8], branches: usize) -> Result<Self> {
        let mut config = Config::default();
        config.wasm_simd(true);
        let engine = Engine::new(&config);
        let module = Module::new(&engine, module)?;
        let mut store = Store::new(&engine, World { counts: vec![Count::default(); branches], ..World::default() });
        let instance = linker(&engine)?.instantiate_and_start(&mut store, &module)?;
        let mut vm = Vm { store, instance };
        vm.call("_initialize", &[])?;
        Ok(vm)
    }

    pub(crate) fn world(&mut self) -> &mut World {
        self.store.data_mut()
    }

    /// How often each branch came.
    pub(crate) fn into_counts(self) -> Vec<Count> {
        self.store.into_data().counts
    }

    /// Calls an exported function; what it returns, or 0.
    ///
    /// # Errors
    /// When there is none, or it traps.
    pub(crate) fn call(&mut self, name: &str, arguments: &[u32]) -> Result<u32> {
        let function =
            self.instance.get_func(&self.store, name).with_context(|| format!("the module does not export {name}"))?;
        let arguments: Vec<wasmi::Val> = arguments.iter().map(|argument| wasmi::Val::I32(*argument as i32)).collect();
        let mut results = vec![wasmi::Val::I32(0); function.ty(&self.store).results().len()];
        let called = function.call(&mut self.store, &arguments, &mut results);
        // A panic logs what it is, and traps.
        called.with_context(|| format!("{name}: {}", self.store.data().complaints.join("; ")))?;
        Ok(results.first().and_then(wasmi::Val::i32).unwrap_or_default() as u32)
    }
}

type Envoy<'a> = Caller<'a, World>;

fn memory(envoy: &Envoy<'_>) -> Result<wasmi::Memory, wasmi::Error> {
    envoy.get_export("memory").and_then(Extern::into_memory).ok_or_else(|| wasmi::Error::new("no memory"))
}

fn read(envoy: &Envoy<'_>, at: u32, size: u32) -> Result<Vec<u8>, wasmi::Error> {
    let mut bytes = vec![0; size as usize];
    memory(envoy)?.read(envoy, at as usize, &mut bytes)?;
    Ok(bytes)
}

fn write(envoy: &mut Envoy<'_>, at: u32, bytes: &[u8]) -> Result<(), wasmi::Error> {
    Ok(memory(envoy)?.write(envoy, at as usize, bytes)?)
}

/// Hands bytes over, in memory that the module gives.
fn give(envoy: &mut Envoy<'_>, bytes: Option<Vec<u8>>, at: u32, size_at: u32) -> Result<u32, wasmi::Error> {
    let Some(bytes) = bytes else { return Ok(NOT_FOUND) };
    let size = bytes.len() as u32;
    let mut place = 0;
    if size > 0 {
        let allocate = envoy.get_export("proxy_on_memory_allocate").and_then(Extern::into_func);
        let allocate = allocate.ok_or_else(|| wasmi::Error::new("no proxy_on_memory_allocate"))?;
        place = allocate.typed::<u32, u32>(&*envoy)?.call(&mut *envoy, size)?;
        write(envoy, place, &bytes)?;
    }
    write(envoy, at, &place.to_le_bytes())?;
    write(envoy, size_at, &size.to_le_bytes())?;
    Ok(OK)
}

fn message<'a>(envoy: &'a mut Envoy<'_>, map: u32) -> &'a mut Message {
    // 0 and 1 are the request's headers and trailers.
    if map < 2 { &mut envoy.data_mut().request } else { &mut envoy.data_mut().answer }
}

/// The host calls: all that the module imports, or it does not load. Those that a request of the course should not come to complain.
fn linker(engine: &Engine) -> Result<Linker<World>> {
    type Done = Result<u32, wasmi::Error>;
    let mut linker = Linker::new(engine);
    linker.func_wrap(NOTE.0, NOTE.1, |mut envoy: Envoy<'_>, condition: u32, branch: u32| {
        if let Some(count) = envoy.data_mut().counts.get_mut(branch as usize) {
            count.times += 1;
            count.held += u64::from(condition != 0);
        }
        condition
    })?;
    linker.func_wrap("env", "proxy_log", |mut envoy: Envoy<'_>, _: u32, at: u32, size: u32| -> Done {
        let line = String::from_utf8_lossy(&read(&envoy, at, size)?).into_owned();
        envoy.data_mut().complaints.push(line);
        Ok(OK)
    })?;
    linker.func_wrap(
        "env",
        "proxy_get_buffer_bytes",
        |mut envoy: Envoy<'_>, which: u32, start: u32, length: u32, at: u32, size_at: u32| -> Done {
            let world = envoy.data();
            let buffer = match which {
                0 => &world.request.body,
                1 => &world.answer.body,
                _ => &world.configuration,
            };
            let end = buffer.len().min(start.saturating_add(length) as usize);
            let bytes = buffer.get(start as usize..end).map(<[u8]>::to_vec);
            give(&mut envoy, bytes, at, size_at)
        },
    )?;
    linker.func_wrap(
        "env",
        "proxy_get_header_map_value",
        |mut envoy: Envoy<'_>, map: u32, name: u32, name_size: u32, at: u32, size_at: u32| -> Done {
            let name = read(&envoy, name, name_size)?;
            let value = message(&mut envoy, map).headers.get(&name).cloned();
            give(&mut envoy, value, at, size_at)
        },
    )?;
    linker.func_wrap(
        "env",
        "proxy_replace_header_map_value",
        |mut envoy: Envoy<'_>, map: u32, name: u32, name_size: u32, value: u32, value_size: u32| -> Done {
            let (name, value) = (read(&envoy, name, name_size)?, read(&envoy, value, value_size)?);
            message(&mut envoy, map).headers.insert(name, value);
            Ok(OK)
        },
    )?;
    linker.func_wrap(
        "env",
        "proxy_get_property",
        |mut envoy: Envoy<'_>, path: u32, path_size: u32, at: u32, size_at: u32| -> Done {
            let value = match read(&envoy, path, path_size)?.as_slice() {
                b"upstream\0address" => envoy.data().first_host(),
                b"request\0id" => Some(b"00000000-0000-4000-8000-000000000000".to_vec()),
                b"xds\0node\0id" => Some(b"envoy".to_vec()),
                _ => None,
            };
            give(&mut envoy, value, at, size_at)
        },
    )?;
    linker.func_wrap("env", "proxy_set_property", |mut envoy: Envoy<'_>, _: u32, _: u32, _: u32, _: u32| {
        envoy.data_mut().records += 1;
        OK
    })?;
    linker.func_wrap(
        "env",
        "proxy_get_shared_data",
        |mut envoy: Envoy<'_>, key: u32, key_size: u32, at: u32, size_at: u32, number_at: u32| -> Done {
            let key = read(&envoy, key, key_size)?;
            let Some((value, number)) = envoy.data().shared.get(&key).cloned() else { return Ok(NOT_FOUND) };
            write(&mut envoy, number_at, &number.to_le_bytes())?;
            give(&mut envoy, Some(value), at, size_at)
        },
    )?;
    linker.func_wrap(
        "env",
        "proxy_set_shared_data",
        |mut envoy: Envoy<'_>, key: u32, key_size: u32, value: u32, value_size: u32, number: u32| -> Done {
            let (key, value) = (read(&envoy, key, key_size)?, read(&envoy, value, value_size)?);
            let world = envoy.data_mut();
            if number != 0 && world.shared.get(&key).is_none_or(|(_, stands)| *stands != number) {
                return Ok(CAS_MISMATCH);
            }
            world.writes += 1;
            world.shared.insert(key, (value, world.writes));
            Ok(OK)
        },
    )?;
    linker.func_wrap(
        "env",
        "proxy_define_metric",
        |mut envoy: Envoy<'_>, _: u32, _: u32, _: u32, number_at: u32| -> Done {
            envoy.data_mut().metrics += 1;
            let number = envoy.data().metrics;
            write(&mut envoy, number_at, &number.to_le_bytes())?;
            Ok(OK)
        },
    )?;
    linker.func_wrap("env", "proxy_record_metric", |_: u32, _: u64| OK)?;
    linker.func_wrap("env", "proxy_increment_metric", |_: u32, _: i64| OK)?;
    linker.func_wrap("env", "proxy_set_tick_period_milliseconds", |_: u32| OK)?;
    linker.func_wrap("env", "proxy_set_effective_context", |_: u32| OK)?;
    linker.func_wrap("env", "proxy_continue_stream", |_: u32| OK)?;
    linker.func_wrap("env", "proxy_remove_header_map_value", |_: u32, _: u32, _: u32| OK)?;
    linker.func_wrap(
        "env",
        "proxy_set_buffer_bytes",
        |mut envoy: Envoy<'_>, _: u32, _: u32, _: u32, _: u32, _: u32| {
            envoy.data_mut().complaints.push("a body was changed".to_owned());
            OK
        },
    )?;
    linker.func_wrap(
        "env",
        "proxy_register_shared_queue",
        |mut envoy: Envoy<'_>, _: u32, _: u32, number_at: u32| -> Done {
            write(&mut envoy, number_at, &1u32.to_le_bytes())?;
            Ok(OK)
        },
    )?;
    linker.func_wrap("env", "proxy_resolve_shared_queue", |_: u32, _: u32, _: u32, _: u32, _: u32| NOT_FOUND)?;
    linker.func_wrap("env", "proxy_enqueue_shared_queue", |_: u32, _: u32, _: u32| NOT_FOUND)?;
    linker.func_wrap("env", "proxy_dequeue_shared_queue", |_: u32, _: u32, _: u32| NOT_FOUND)?;
    linker.func_wrap(
        "env",
        "proxy_send_local_response",
        |mut envoy: Envoy<'_>, status: u32, _: u32, _: u32, at: u32, size: u32, _: u32, _: u32, _: i32| -> Done {
            let body = String::from_utf8_lossy(&read(&envoy, at, size)?).into_owned();
            envoy.data_mut().complaints.push(format!("answered by itself: {status} {body}"));
            Ok(OK)
        },
    )?;
    // There is no prober.
    linker.func_wrap(
        "env",
        "proxy_http_call",
        |_: u32, _: u32, _: u32, _: u32, _: u32, _: u32, _: u32, _: u32, _: u32, _: u32| NOT_FOUND,
    )?;
    wasi(&mut linker)?;
    Ok(linker)
}

fn wasi(linker: &mut Linker<World>) -> Result<()> {
    type Done = Result<u32, wasmi::Error>;
    const WASI: &str = "wasi_snapshot_preview1";
    linker.func_wrap(WASI, "clock_time_get", |mut envoy: Envoy<'_>, _: u32, _: u64, at: u32| -> Done {
        let now = envoy.data().now_ms * 1_000_000;
        write(&mut envoy, at, &now.to_le_bytes())?;
        Ok(OK)
    })?;
    linker.func_wrap(WASI, "random_get", |mut envoy: Envoy<'_>, at: u32, size: u32| -> Done {
        let bytes: Vec<u8> = (0..size)
            .map(|_| {
                let world = envoy.data_mut();
                world.chance =
                    world.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (world.chance >> 56) as u8
            })
            .collect();
        write(&mut envoy, at, &bytes)?;
        Ok(OK)
    })?;
    linker.func_wrap(WASI, "environ_sizes_get", |mut envoy: Envoy<'_>, count_at: u32, size_at: u32| -> Done {
        write(&mut envoy, count_at, &[0; 4])?;
        write(&mut envoy, size_at, &[0; 4])?;
        Ok(OK)
    })?;
    linker.func_wrap(WASI, "environ_get", |_: u32, _: u32| OK)?;
    // "Bad file descriptor".
    linker.func_wrap(WASI, "fd_write", |_: u32, _: u32, _: u32, _: u32| 8u32)?;
    linker.func_wrap(WASI, "proc_exit", |status: u32| -> Result<(), wasmi::Error> {
        Err(wasmi::Error::new(format!("exit with status {status}")))
    })?;
    Ok(())
}

impl World {
    /// The endpoint that a request went to: the first that it was steered to.
    fn first_host(&self) -> Option<Vec<u8>> {
        let hosts = self.request.headers.get(b"x-weighbridge-host".as_slice())?;
        hosts.split(|byte| *byte == b',').next().map(<[u8]>::to_vec)
    }

    /// Whether the request has been given an endpoint.
    pub(crate) fn was_steered(&self) -> bool {
        self.first_host().is_some_and(|host| !host.is_empty())
    }

    /// That the module has logged nothing and answered nothing by itself.
    ///
    /// # Errors
    /// What it said.
    pub(crate) fn check_quiet(&self) -> Result<()> {
        if self.complaints.is_empty() {
            return Ok(());
        }
        bail!("the module says: {}", self.complaints.join("; "))
    }
}
