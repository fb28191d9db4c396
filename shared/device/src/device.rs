//! Devices: which there are, which is meant, what they can do.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lab_emulator::Profile;
use serde::Serialize;

use crate::cuda::Cuda;
use crate::emulated::{Emulated, Mode};
use crate::{
    Buffer, Element, Error, Graph, Instance, Kernel, KernelSource, RawBuffer, Stream, TensorMap,
};

/// Which device is wanted: `auto`, `cuda`, `cuda:N`, `emulator`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Selector {
    /// The first GPU where there is one, else the emulator.
    #[default]
    Auto,
    /// The GPU of this number.
    Cuda(u32),
    /// The CPU emulator.
    Emulator,
}

impl Selector {
    /// From `LAB_DEVICE`; `auto` where it is not set.
    pub fn from_env() -> Result<Self, Error> {
        match std::env::var("LAB_DEVICE") {
            Ok(text) if !text.is_empty() => text.parse(),
            _ => Ok(Self::Auto),
        }
    }
}

impl FromStr for Selector {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "auto" => Ok(Self::Auto),
            "cuda" => Ok(Self::Cuda(0)),
            "emulator" => Ok(Self::Emulator),
            _ => text
                .strip_prefix("cuda:")
                .and_then(|n| n.parse().ok())
                .map(Self::Cuda)
                .ok_or_else(|| Error::Selector(text.to_owned())),
        }
    }
}

/// What kind of device it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// An NVIDIA GPU.
    Cuda,
    /// The CPU emulator.
    Emulator,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Cuda => "cuda",
            Self::Emulator => "emulator",
        })
    }
}

/// What a device can do. Sizes in bytes, clocks in kHz; 0 where a fact does not apply to the
/// emulator.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)] // the names are the CUDA driver's own
pub struct Facts {
    pub name: String,
    pub kind: DeviceKind,
    pub compute_capability: (u32, u32),
    /// NVRTC's name of the architecture: `sm_90a`; empty for the emulator.
    pub arch: String,
    pub driver: String,
    pub multiprocessors: u32,
    pub clock_khz: u32,
    pub memory_clock_khz: u32,
    pub memory_bus_bits: u32,
    pub memory: u64,
    pub l2: u64,
    pub max_threads_per_block: u32,
    pub max_threads_per_multiprocessor: u32,
    pub max_block: [u32; 3],
    pub max_grid: [u32; 3],
    /// With the opt-in that launches take care of.
    pub max_shared_per_block: u64,
    pub shared_per_multiprocessor: u64,
    pub registers_per_block: u32,
    pub registers_per_multiprocessor: u32,
    pub warp: u32,
    pub cooperative_launch: bool,
    /// Blocks of a cluster, at most; 1 where there are none. A device may have no room for so many, as
    /// [`Kernel::resident_clusters`](crate::Kernel::resident_clusters) says.
    pub max_cluster: u32,
    pub ecc: bool,
    /// What else the driver says, in words: copy engines, textures, the place on the bus. Empty for the emulator.
    pub further: Vec<(&'static str, String)>,
}

/// How much of a device's memory is in use. In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// In buffers that are alive.
    pub live: u64,
    /// The most that was alive at once, since [`Device::restart_peak`] if that was called.
    pub peak: u64,
    /// Buffers ever made.
    pub allocations: u64,
    /// Free on the device.
    pub free: u64,
    /// Freed and kept for the next buffers.
    pub kept: u64,
    /// In all.
    pub total: u64,
}

impl Memory {
    /// What new buffers can have.
    pub fn available(&self) -> u64 {
        self.free.saturating_add(self.kept)
    }
}

#[derive(Debug, Default)]
struct Counters {
    live: AtomicU64,
    peak: AtomicU64,
    allocations: AtomicU64,
}

#[derive(Debug)]
pub(crate) enum Inner {
    Cuda(Cuda),
    Emulator(Emulated),
}

/// A device, open. Clones are the same device.
#[derive(Clone, Debug)]
pub struct Device {
    pub(crate) inner: Arc<Inner>,
    kernels: Arc<Mutex<KernelCache>>,
    memory: Arc<Counters>,
}

/// By the address of the file's object and the instantiation.
type KernelCache = HashMap<(usize, String), Kernel>;

impl Device {
    /// Opens the device that is meant.
    ///
    /// # Errors
    /// A GPU was asked for and there is none, or the emulator's options are not understood. `auto`
    /// never fails for want of a GPU.
    pub fn open(selector: Selector) -> Result<Self, Error> {
        let inner = match selector {
            Selector::Emulator => Inner::Emulator(Self::default_emulator()?),
            Selector::Cuda(ordinal) => Inner::Cuda(Cuda::open(ordinal)?),
            Selector::Auto => match Self::usable_cuda() {
                Ok(cuda) => Inner::Cuda(cuda),
                Err(_) => Inner::Emulator(Self::default_emulator()?),
            },
        };
        Ok(Self::of(inner))
    }

    fn of(inner: Inner) -> Self {
        Self { inner: Arc::new(inner), kernels: Arc::default(), memory: Arc::default() }
    }

    fn default_emulator() -> Result<Emulated, Error> {
        Emulated::open(Mode::from_env_or(Mode::Plain)?)
    }

    /// The first GPU, if kernels can be compiled for it.
    fn usable_cuda() -> Result<Cuda, Error> {
        let cuda = Cuda::open(0)?;
        crate::nvrtc::Nvrtc::get()?;
        Ok(cuda)
    }

    /// Why `auto` is the emulator here: no GPU, no driver, no toolkit. `None` where it is a GPU.
    pub fn why_no_cuda() -> Option<Error> {
        Self::usable_cuda().err()
    }

    /// The emulator, in the mode that `LAB_EMULATOR_MODE` says, which is plain where it is not set.
    pub fn emulator() -> Result<Self, Error> {
        Self::open(Selector::Emulator)
    }

    /// The emulator, in this mode.
    pub fn emulator_in(mode: Mode) -> Result<Self, Error> {
        Ok(Self::of(Inner::Emulator(Emulated::open(mode)?)))
    }

    /// The emulator, in this mode and with these options (schedule, OS threads, …) in place of what
    /// the environment says.
    pub fn emulator_with(mode: Mode, options: lab_emulator::Options) -> Result<Self, Error> {
        Ok(Self::of(Inner::Emulator(Emulated::with(mode, options)?)))
    }

    /// The emulator's mode; `None` of a GPU.
    pub fn mode(&self) -> Option<Mode> {
        match &*self.inner {
            Inner::Cuda(_) => None,
            Inner::Emulator(d) => Some(d.mode),
        }
    }

    /// What the launches since the last call have asked of the memory system: on an emulator in
    /// [`Mode::Counted`]; empty on any other device.
    pub fn take_profile(&self) -> Profile {
        match &*self.inner {
            Inner::Cuda(_) => Profile::default(),
            Inner::Emulator(d) => d.take_profile(),
        }
    }

    /// How many GPUs there are, or why none can be used.
    pub fn cuda_count() -> Result<u32, Error> {
        crate::cuda::count()
    }

    /// The device's name, with its kind: `NVIDIA H200 (cuda:0)`.
    pub fn name(&self) -> String {
        match &*self.inner {
            Inner::Cuda(d) => format!("{} (cuda:{})", d.facts.name, d.ordinal),
            Inner::Emulator(d) => format!("{} (emulator)", d.facts.name),
        }
    }

    /// A GPU's number; 0 of the emulator.
    pub fn ordinal(&self) -> u32 {
        match &*self.inner {
            Inner::Cuda(d) => d.ordinal,
            Inner::Emulator(_) => 0,
        }
    }

    /// GPU or emulator.
    pub fn kind(&self) -> DeviceKind {
        self.facts().kind
    }

    /// What it can do.
    pub fn facts(&self) -> &Facts {
        match &*self.inner {
            Inner::Cuda(d) => &d.facts,
            Inner::Emulator(d) => &d.facts,
        }
    }

    /// A buffer of `len` elements, poisoned: see [`Buffer::poison`].
    pub fn buffer<T: Element>(&self, len: usize) -> Result<Buffer<T>, Error> {
        Buffer::new(self, len)
    }

    /// A buffer of `len` elements as the allocator gives it, for tools that watch who writes what:
    /// to them, poison is a write like any other.
    pub fn unwritten_buffer<T: Element>(&self, len: usize) -> Result<Buffer<T>, Error> {
        Buffer::unwritten(self, len)
    }

    /// Bytes without a type, as the allocator gives them.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn raw_buffer(&self, bytes: usize) -> Result<RawBuffer, Error> {
        RawBuffer::unwritten(self, bytes)
    }

    /// A buffer with a copy of `from`.
    pub fn upload<T: Element>(&self, from: &[T]) -> Result<Buffer<T>, Error> {
        let mut buffer = self.buffer(from.len())?;
        buffer.write(from)?;
        Ok(buffer)
    }

    /// An instantiation of a kernel file: compiled for this GPU (or taken from the cache on disk),
    /// or loaded into the emulator.
    pub fn kernel(&self, source: &'static KernelSource, name: &str) -> Result<Kernel, Error> {
        let key = (std::ptr::from_ref(source) as usize, name.to_owned());
        let cached = |k: &Mutex<KernelCache>| {
            k.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
        };
        if let Some(kernel) = cached(&self.kernels) {
            return Ok(kernel);
        }
        let (module, cuda) = match &*self.inner {
            Inner::Cuda(device) => (
                crate::emulated::module(source.either_object()?)?,
                Some(device.function(source, name)?),
            ),
            Inner::Emulator(device) => (device.module(source)?, None),
        };
        let emulated = module.kernel(name)?;
        let block = emulated.block();
        let kernel = Kernel {
            device: self.clone_without_kernels(),
            name: name.into(),
            emulated,
            cuda,
            block,
        };
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(kernels.entry(key).or_insert(kernel).clone())
    }

    /// Compiles, on all cores, what this device lacks of the emulator's objects of these files: [`Device::kernel`] does so
    /// with one after the other. On a GPU they say what launches are held against.
    ///
    /// # Errors
    /// As [`KernelSource::object`].
    pub fn compile_missing(&self, sources: &[&'static KernelSource]) -> Result<(), Error> {
        let (build, suffix) = self.mode().unwrap_or_default().object();
        let mut wanted = Vec::new();
        for source in sources {
            if source.replaced_by(suffix)?.is_none() {
                wanted.push((*source, build));
            }
        }
        crate::compile_missing(wanted)
    }

    /// The same, of an instance that was found by its arguments.
    ///
    /// # Errors
    /// As [`Device::kernel`].
    pub fn load(&self, instance: Instance) -> Result<Kernel, Error> {
        self.kernel(instance.source(), instance.name())
    }

    /// An instantiation that the kernel's file does not list, compiled for this GPU: how a set of
    /// template arguments is tried. `like` is a listed one of the same template and types: its
    /// parameters are those that launches are held against.
    ///
    /// # Errors
    /// [`Error::Unlisted`] on the emulator, which has only what was built with it, unless `name`
    /// is listed after all; [`Error::Compile`] where the arguments do not fit the template or the
    /// GPU.
    pub fn instantiate(
        &self,
        source: &'static KernelSource,
        name: &str,
        like: &str,
    ) -> Result<Kernel, Error> {
        if source.instantiations.contains(&name) {
            return self.kernel(source, name);
        }
        let Inner::Cuda(device) = &*self.inner else {
            let (kernel, name) = (source.file.to_owned(), name.to_owned());
            return Err(Error::Unlisted { kernel, name });
        };
        let key = (std::ptr::from_ref(source) as usize, name.to_owned());
        let of = |k: &Mutex<KernelCache>| {
            k.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
        };
        if let Some(kernel) = of(&self.kernels) {
            return Ok(kernel);
        }
        let emulated = crate::emulated::module(source.either_object()?)?.kernel(like)?;
        let template = source.template_of(name).filter(|t| !t.threads.is_empty());
        let (function, block) = match template {
            Some(template) => {
                let (function, block) = device.function_with_block(source, name, template)?;
                (function, Some(block))
            }
            None => (device.function(source, name)?, None),
        };
        let cuda = Some(function);
        let kernel = Kernel {
            device: self.clone_without_kernels(),
            name: name.into(),
            emulated,
            cuda,
            block,
        };
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(kernels.entry(key).or_insert(kernel).clone())
    }

    /// The same device with a cache of its own: kernels live in the cache, and one that held the
    /// cache itself would keep it alive for ever.
    fn clone_without_kernels(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            kernels: Arc::default(),
            memory: Arc::clone(&self.memory),
        }
    }

    /// How much memory is in use.
    pub fn memory(&self) -> Result<Memory, Error> {
        let ((free, total), kept) = match &*self.inner {
            Inner::Cuda(d) => (d.free_and_total()?, d.kept()?),
            Inner::Emulator(_) => (lab_emulator::host_memory(), 0),
        };
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Ok(Memory {
            live: read(&self.memory.live),
            peak: read(&self.memory.peak),
            allocations: read(&self.memory.allocations),
            free,
            kept,
            total,
        })
    }

    /// Counts [`Memory::peak`] anew, from what is alive now: so many bytes.
    pub fn restart_peak(&self) -> u64 {
        let live = self.memory.live.load(Ordering::Relaxed);
        self.memory.peak.store(live, Ordering::Relaxed);
        live
    }

    /// A queue of launches that may overlap with the device's own.
    pub fn stream(&self) -> Result<Stream, Error> {
        Stream::new(self)
    }

    /// Records the launches that `work` makes, to be made again as one. `work` may launch kernels
    /// and fill buffers, nothing that waits; what it borrows stays borrowed while the graph lives.
    pub fn graph<'a>(
        &self,
        work: impl FnMut() -> Result<(), Error> + 'a,
    ) -> Result<Graph<'a>, Error> {
        Graph::new(self, None, work)
    }

    /// The same, of launches that `work` makes on a stream; so will the graph's be.
    ///
    /// # Errors
    /// Those of `work`, the driver's, and a stream of another device or one that cannot be recorded
    /// (the default one).
    pub fn graph_on<'a>(
        &self,
        stream: &Arc<Stream>,
        work: impl FnMut() -> Result<(), Error> + 'a,
    ) -> Result<Graph<'a>, Error> {
        stream.check_device(self)?;
        Graph::new(self, Some(Arc::clone(stream)), work)
    }

    /// Waits for all work to end.
    pub fn synchronize(&self) -> Result<(), Error> {
        match &*self.inner {
            Inner::Cuda(d) => d.synchronize(),
            Inner::Emulator(_) => {
                lab_emulator::grids_ended();
                Ok(())
            }
        }
    }

    /// Times `work` (launches on this device) `times` times, each alone on the device.
    ///
    /// On a GPU by device events, queued ahead so that no launch waits for the host, with the L2
    /// cache overwritten before each. On the emulator by the host's clock, which says what the
    /// emulation costs and nothing about a GPU.
    pub fn time(
        &self,
        times: usize,
        mut work: impl FnMut() -> Result<(), Error>,
    ) -> Result<Vec<Duration>, Error> {
        match &*self.inner {
            Inner::Cuda(d) => d.time(times, &mut work),
            Inner::Emulator(_) => (0..times)
                .map(|_| {
                    let start = std::time::Instant::now();
                    work()?;
                    Ok(start.elapsed())
                })
                .collect(),
        }
    }

    /// Whether both are handles of one device: memory and launches of the one are the other's.
    pub fn is(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }

    /// Whatever tells this device from others.
    pub(crate) fn identity(&self) -> usize {
        Arc::as_ptr(&self.inner) as usize
    }

    pub(crate) fn allocate(&self, bytes: usize) -> Result<u64, Error> {
        let address = match &*self.inner {
            Inner::Cuda(d) => d.allocate(bytes),
            Inner::Emulator(_) => crate::emulated::allocate(bytes),
        }?;
        let live = self.memory.live.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        self.memory.peak.fetch_max(live, Ordering::Relaxed);
        self.memory.allocations.fetch_add(1, Ordering::Relaxed);
        Ok(address)
    }

    pub(crate) fn free(&self, address: u64, bytes: usize) {
        self.memory.live.fetch_sub(bytes as u64, Ordering::Relaxed);
        match &*self.inner {
            Inner::Cuda(d) => d.free(address),
            Inner::Emulator(_) => crate::emulated::free(address),
        }
    }

    /// Sets every byte of a buffer. Poison counts as unwritten to the emulator's checks.
    pub(crate) fn fill(
        &self,
        address: u64,
        byte: u8,
        bytes: usize,
        poison: bool,
        stream: Option<&Stream>,
    ) -> Result<(), Error> {
        match &*self.inner {
            Inner::Cuda(d) => d.fill(address, byte, bytes, stream.and_then(|s| s.raw.as_ref())),
            Inner::Emulator(d) => {
                d.host_wrote(address, !poison);
                // SAFETY: the buffer's own memory.
                unsafe { std::ptr::write_bytes(address as *mut u8, byte, bytes) };
                Ok(())
            }
        }
    }

    pub(crate) fn copy(
        &self,
        from: u64,
        to: u64,
        bytes: usize,
        stream: Option<&Stream>,
    ) -> Result<(), Error> {
        match &*self.inner {
            Inner::Cuda(d) => d.copy(from, to, bytes, stream.and_then(|s| s.raw.as_ref())),
            Inner::Emulator(d) => {
                d.host_copied(from, to);
                // SAFETY: two buffers of this length (the caller checked), which do not overlap:
                // one is borrowed mutably.
                unsafe {
                    std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes);
                }
                Ok(())
            }
        }
    }

    /// What a kernel takes as a tensor map of a tensor at this address. A GPU's driver is asked for its
    /// own rules, the emulator for those of [`TensorMap::check`].
    ///
    /// # Errors
    /// The driver's; on the emulator [`Error::TensorMap`].
    pub fn encode_tensor_map(&self, address: u64, map: &TensorMap) -> Result<[u64; 16], Error> {
        match &*self.inner {
            Inner::Cuda(d) => d.encode_tensor_map(address, map),
            Inner::Emulator(_) => map.check().map(|()| map.emulated(address).encode()),
        }
    }

    pub(crate) fn copy_in(&self, address: u64, from: &[u8]) -> Result<(), Error> {
        match &*self.inner {
            Inner::Cuda(d) => d.copy_in(address, from),
            Inner::Emulator(d) => {
                d.host_wrote(address, true);
                // SAFETY: the buffer's own memory, of at least this length (its caller checked).
                unsafe {
                    std::ptr::copy_nonoverlapping(from.as_ptr(), address as *mut u8, from.len());
                }
                Ok(())
            }
        }
    }

    pub(crate) fn copy_out(&self, address: u64, to: &mut [u8]) -> Result<(), Error> {
        match &*self.inner {
            Inner::Cuda(d) => d.copy_out(address, to),
            Inner::Emulator(_) => {
                lab_emulator::grids_ended();
                // SAFETY: the buffer's own memory, of at least this length (its caller checked), and no kernel runs: its launches have ended.
                unsafe {
                    std::ptr::copy_nonoverlapping(address as *const u8, to.as_mut_ptr(), to.len());
                }
                Ok(())
            }
        }
    }
}
