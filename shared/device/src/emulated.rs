//! The emulator as a device.

use std::alloc::Layout;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use lab_emulator::{
    Config, MAX_COOPERATIVE_BLOCKS, MAX_DYNAMIC_SHARED, MAX_THREADS_PER_BLOCK, Module, Options,
};

use crate::{DeviceKind, Error, Facts, KernelSource, Launch};

/// Alignment of `cudaMalloc`.
const ALIGNMENT: usize = 256;
/// Multiprocessors that the emulator claims to have: enough that grid-wide syncs cross blocks,
/// few enough that a cooperative launch stays quick.
const MULTIPROCESSORS: u32 = 8;
const THREADS_PER_MULTIPROCESSOR: u32 = 2048;
const SHARED_PER_MULTIPROCESSOR: usize = 228 * 1024;

#[derive(Debug)]
pub(crate) struct Emulated {
    pub(crate) facts: Facts,
    options: Options,
}

impl Emulated {
    pub(crate) fn open() -> Result<Self, Error> {
        let options = Options::from_env()?;
        crate::replaced::directory()?;
        let facts = Facts {
            name: format!("CPU emulator on {} threads", options.threads),
            kind: DeviceKind::Emulator,
            compute_capability: (0, 0),
            arch: String::new(),
            driver: String::new(),
            multiprocessors: MULTIPROCESSORS,
            clock_khz: 0,
            memory_clock_khz: 0,
            memory_bus_bits: 0,
            memory: host_memory().1,
            l2: 0,
            max_threads_per_block: MAX_THREADS_PER_BLOCK as u32,
            max_threads_per_multiprocessor: THREADS_PER_MULTIPROCESSOR,
            max_block: [1024, 1024, 64],
            max_grid: [i32::MAX as u32, 65535, 65535],
            max_shared_per_block: MAX_DYNAMIC_SHARED as u64,
            shared_per_multiprocessor: SHARED_PER_MULTIPROCESSOR as u64,
            registers_per_block: 0,
            registers_per_multiprocessor: 0,
            warp: 32,
            cooperative_launch: true,
            clusters: false,
            ecc: false,
        };
        Ok(Self { facts, options })
    }

    /// # Safety
    /// As [`lab_emulator::launch`].
    pub(crate) unsafe fn launch(
        &self,
        kernel: &lab_emulator::Kernel,
        launch: &Launch,
        arguments: &mut [*mut c_void],
    ) -> Result<(), Error> {
        let config = Config {
            grid: launch.grid,
            block: launch.block,
            dynamic_shared: launch.dynamic_shared,
            cooperative: launch.cooperative,
        };
        // SAFETY: the caller's promise.
        unsafe { lab_emulator::launch(kernel, &config, arguments, &self.options)? };
        Ok(())
    }
}

pub(crate) fn resident_blocks(threads: u32, dynamic_shared: usize) -> u32 {
    let by_threads = THREADS_PER_MULTIPROCESSOR / threads.max(1).next_multiple_of(32);
    let by_shared = SHARED_PER_MULTIPROCESSOR / dynamic_shared.max(1024);
    let each = by_threads.min(by_shared as u32).min(32);
    (each * MULTIPROCESSORS).min(MAX_COOPERATIVE_BLOCKS as u32)
}

/// The loaded object of a kernel file; each is loaded once a process.
pub(crate) fn module(source: &'static KernelSource) -> Result<Arc<Module>, Error> {
    static MODULES: OnceLock<Mutex<HashMap<usize, Arc<Module>>>> = OnceLock::new();
    let modules = MODULES.get_or_init(Mutex::default);
    let mut modules = modules.lock().unwrap_or_else(PoisonError::into_inner);
    let key = source.object.as_ptr() as usize;
    if let Some(module) = modules.get(&key) {
        return Ok(Arc::clone(module));
    }
    let module = Module::load(source.replacement("")?.unwrap_or(source.object))?;
    modules.insert(key, Arc::clone(&module));
    Ok(module)
}

fn layout(bytes: usize) -> Result<Layout, Error> {
    Layout::from_size_align(bytes.max(1), ALIGNMENT).map_err(|_| out_of_memory(bytes))
}

pub(crate) fn allocate(bytes: usize) -> Result<u64, Error> {
    // An overcommitting system would hand it out and kill the process at its first use.
    if bytes as u64 > host_memory().0 {
        return Err(out_of_memory(bytes));
    }
    // SAFETY: the layout's size is not zero.
    let memory = unsafe { std::alloc::alloc(layout(bytes)?) };
    if memory.is_null() { Err(out_of_memory(bytes)) } else { Ok(memory as u64) }
}

pub(crate) fn free(address: u64, bytes: usize) {
    if let Ok(layout) = layout(bytes) {
        // SAFETY: allocated above with this layout, freed once, by the buffer's drop.
        unsafe { std::alloc::dealloc(address as *mut u8, layout) };
    }
}

fn out_of_memory(bytes: usize) -> Error {
    let (free, total) = host_memory();
    Error::OutOfMemory { asked: bytes as u64, free, total }
}

/// Available and total memory of the host.
pub(crate) fn host_memory() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let read = |field: &str| {
        let line = text.lines().find(|l| l.starts_with(field))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
    };
    let total = read("MemTotal:").unwrap_or(u64::MAX);
    (read("MemAvailable:").unwrap_or(total), total)
}
