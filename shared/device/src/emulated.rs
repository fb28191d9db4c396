//! The emulator as a device.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use lab_emulator::{
    Config, MAX_CLUSTER, MAX_COOPERATIVE_BLOCKS, MAX_DYNAMIC_SHARED, MAX_THREADS_PER_BLOCK, Module,
    Options, Profile, host_memory,
};

use crate::{Build, DeviceKind, Error, Facts, KernelSource, Launch};

/// Multiprocessors that the emulator claims to have: enough that grid-wide syncs cross blocks,
/// few enough that a cooperative launch stays quick.
const MULTIPROCESSORS: u32 = 8;
const THREADS_PER_MULTIPROCESSOR: u32 = 2048;
const SHARED_PER_MULTIPROCESSOR: usize = 228 * 1024;

#[derive(Debug)]
pub(crate) struct Emulated {
    pub(crate) facts: Facts,
    pub(crate) mode: Mode,
    /// Those of a launch in the device's own queue.
    options: Options,
    /// What launches have counted since it was last taken.
    profile: Mutex<Profile>,
}

/// Which build of the kernels the emulator runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The fast one.
    #[default]
    Plain,
    /// The one in which every access is checked.
    Checked,
    /// Checked, and counted: see [`Device::take_profile`](crate::Device::take_profile).
    Counted,
}

impl Mode {
    /// Which object of a kernel file it runs, and the suffix of a file that replaces it.
    pub(crate) fn object(self) -> (Build, &'static str) {
        match self {
            Self::Plain => (Build::Plain, ""),
            Self::Checked | Self::Counted => (Build::Checked, ".checked"),
        }
    }

    /// From `LAB_EMULATOR_MODE`: `plain`, `checked` or `counted`; `otherwise` where it is not set.
    pub fn from_env_or(otherwise: Self) -> Result<Self, Error> {
        const NAME: &str = "LAB_EMULATOR_MODE";
        match std::env::var(NAME).as_deref() {
            Err(_) | Ok("") => Ok(otherwise),
            Ok("plain") => Ok(Self::Plain),
            Ok("checked") => Ok(Self::Checked),
            Ok("counted") => Ok(Self::Counted),
            Ok(other) => Err(lab_emulator::BadOption {
                name: NAME,
                expected: "plain, checked or counted",
                got: other.to_owned(),
            }
            .into()),
        }
    }
}

impl Emulated {
    pub(crate) fn open(mode: Mode) -> Result<Self, Error> {
        Self::with(mode, Options::from_env()?)
    }

    pub(crate) fn with(mode: Mode, options: Options) -> Result<Self, Error> {
        crate::replaced::directory()?;
        let options = Options { count: mode == Mode::Counted, queue: new_queue(), ..options };
        let name = match mode {
            Mode::Plain => format!("CPU emulator on {} threads", options.threads),
            Mode::Checked => "CPU emulator, checked".into(),
            Mode::Counted => "CPU emulator, checked and counted".into(),
        };
        let facts = Facts {
            name,
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
            max_cluster: MAX_CLUSTER,
            ecc: false,
            further: Vec::new(),
        };
        Ok(Self { facts, mode, options, profile: Mutex::default() })
    }

    /// The kernel file's object for this mode.
    pub(crate) fn module(&self, source: &'static KernelSource) -> Result<Arc<Module>, Error> {
        let (build, suffix) = self.mode.object();
        module(match source.replacement(suffix)? {
            Some(object) => object,
            None => source.object(build)?,
        })
    }

    pub(crate) fn take_profile(&self) -> Profile {
        std::mem::take(&mut *self.profile.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Tells the checks what the host has done with a buffer. What is launched next comes after it, and it
    /// after all that was launched: the two do not overlap.
    pub(crate) fn host_wrote(&self, address: u64, written: bool) {
        lab_emulator::grids_ended();
        if self.mode != Mode::Plain {
            lab_emulator::host_wrote(address as *const u8, written);
        }
    }

    pub(crate) fn host_copied(&self, from: u64, to: u64) {
        lab_emulator::grids_ended();
        if self.mode != Mode::Plain {
            lab_emulator::host_copied(from as *const u8, to as *const u8);
        }
    }

    /// In the device's own queue, or another.
    ///
    /// # Safety
    /// As [`lab_emulator::launch`].
    pub(crate) unsafe fn launch(
        &self,
        kernel: &lab_emulator::Kernel,
        launch: &Launch,
        arguments: &[*mut c_void],
        queue: Option<u64>,
    ) -> Result<(), Error> {
        let options = Options { queue: queue.unwrap_or(self.options.queue), ..self.options };
        let config = Config {
            grid: launch.grid,
            block: launch.block,
            dynamic_shared: launch.dynamic_shared,
            cooperative: launch.cooperative,
            cluster: launch.cluster,
            overlap_previous: launch.overlap_previous,
        };
        // SAFETY: the caller's promise.
        let counted = unsafe { lab_emulator::launch(kernel, &config, arguments, &options)? };
        if self.mode == Mode::Counted {
            self.profile.lock().unwrap_or_else(PoisonError::into_inner).add(counted);
        }
        Ok(())
    }
}

/// A number for a queue, which no other has.
pub(crate) fn new_queue() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(crate) fn resident_blocks(threads: u32, dynamic_shared: usize) -> u32 {
    let by_threads = THREADS_PER_MULTIPROCESSOR / threads.max(1).next_multiple_of(32);
    let by_shared = SHARED_PER_MULTIPROCESSOR / dynamic_shared.max(1024);
    let each = by_threads.min(by_shared as u32).min(32);
    (each * MULTIPROCESSORS).min(MAX_COOPERATIVE_BLOCKS as u32)
}

/// A kernel file's object, loaded; each is loaded once a process.
pub(crate) fn module(object: &'static [u8]) -> Result<Arc<Module>, Error> {
    static MODULES: OnceLock<Mutex<HashMap<usize, Arc<Module>>>> = OnceLock::new();
    let modules = MODULES.get_or_init(Mutex::default);
    let mut modules = modules.lock().unwrap_or_else(PoisonError::into_inner);
    let key = object.as_ptr() as usize;
    if let Some(module) = modules.get(&key) {
        return Ok(Arc::clone(module));
    }
    // SAFETY: a `KernelSource` holds what its crate's build script has compiled, or is told to take in its place by whoever runs
    // the program; it is built into the program as the program's own code is.
    let module = unsafe { Module::load(object)? };
    modules.insert(key, Arc::clone(&module));
    Ok(module)
}

pub(crate) fn allocate(bytes: usize) -> Result<u64, Error> {
    // An overcommitting system would hand it out and kill the process at its first use.
    if bytes as u64 > host_memory().0 {
        return Err(out_of_memory(bytes));
    }
    lab_emulator::allocate(bytes).map(|p| p as u64).map_err(|_| out_of_memory(bytes))
}

pub(crate) fn free(address: u64) {
    // SAFETY: allocated above, freed once, by the buffer's drop; no kernel runs that was given it.
    unsafe { lab_emulator::free(address as *mut u8) };
}

fn out_of_memory(bytes: usize) -> Error {
    let (free, total) = host_memory();
    Error::OutOfMemory { asked: bytes as u64, free, total }
}
