//! An NVIDIA GPU, through the driver.

use std::ffi::{CString, c_void};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::sys::CUfunction_attribute_enum as FunctionAttribute;
use cudarc::driver::{DriverError, result, sys};

use crate::{DeviceKind, Error, Facts, KernelSource, Launch};

fn driver(call: &'static str) -> impl Fn(DriverError) -> Error {
    move |error| Error::Driver {
        call,
        message: error
            .error_string()
            .map_or_else(|_| format!("{error:?}"), |s| s.to_string_lossy().into_owned()),
    }
}

/// How many GPUs there are.
pub(crate) fn count() -> Result<u32, Error> {
    // SAFETY: only looks whether the library can be loaded; cudarc would panic later if not.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::NoCuda("the driver (libcuda.so.1) was not found".into()));
    }
    let none = |e: DriverError| Error::NoCuda(driver("cuInit")(e).to_string());
    result::init().map_err(none)?;
    let count = result::device::get_count().map_err(none)?;
    Ok(u32::try_from(count).unwrap_or(0))
}

/// A GPU with its primary context and one stream.
#[derive(Debug)]
pub(crate) struct Cuda {
    pub(crate) ordinal: u32,
    pub(crate) facts: Facts,
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    /// Overwritten before each timed run; allocated when first needed.
    flush: Mutex<Option<u64>>,
    modules: Mutex<Vec<sys::CUmodule>>,
}

// SAFETY: the driver's handles may be used from any thread in which the context is current, which
// every method sees to first.
unsafe impl Send for Cuda {}
// SAFETY: as above; the driver locks what it shares.
unsafe impl Sync for Cuda {}

/// A kernel in the GPU's memory. Alive as long as its device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function(sys::CUfunction);

// SAFETY: a handle, like the others.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Cuda {
    pub(crate) fn open(ordinal: u32) -> Result<Self, Error> {
        let count = count()?;
        if ordinal >= count {
            let there = match count {
                0 => "the driver reports none".to_owned(),
                n => format!("expected cuda:0 to cuda:{}, got cuda:{ordinal}", n - 1),
            };
            return Err(Error::NoCuda(there));
        }
        let device = result::device::get(ordinal as i32).map_err(driver("cuDeviceGet"))?;
        let facts = facts(device)?;
        // SAFETY: the device was just given by the driver; `drop` releases the context.
        let context = unsafe { result::primary_ctx::retain(device) }
            .map_err(driver("cuDevicePrimaryCtxRetain"))?;
        // SAFETY: the context is alive.
        unsafe { result::ctx::set_current(context) }.map_err(driver("cuCtxSetCurrent"))?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(driver("cuStreamCreate"))?;
        Ok(Self {
            ordinal,
            facts,
            device,
            context,
            stream,
            flush: Mutex::new(None),
            modules: Mutex::new(Vec::new()),
        })
    }

    fn enter(&self) -> Result<(), Error> {
        // SAFETY: the context lives as long as this device.
        unsafe { result::ctx::set_current(self.context) }.map_err(driver("cuCtxSetCurrent"))
    }

    pub(crate) fn synchronize(&self) -> Result<(), Error> {
        self.enter()?;
        // SAFETY: the stream is this device's own.
        unsafe { result::stream::synchronize(self.stream) }.map_err(driver("cuStreamSynchronize"))
    }

    pub(crate) fn allocate(&self, bytes: usize) -> Result<u64, Error> {
        self.enter()?;
        // SAFETY: the context is current.
        match unsafe { result::malloc_sync(bytes.max(1)) } {
            Ok(address) => Ok(address),
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                let (free, total) = result::mem_get_info().unwrap_or((0, 0));
                Err(Error::OutOfMemory {
                    asked: bytes as u64,
                    free: free as u64,
                    total: total as u64,
                })
            }
            Err(error) => Err(driver("cuMemAlloc")(error)),
        }
    }

    pub(crate) fn free(&self, address: u64) {
        if self.synchronize().is_ok() {
            // SAFETY: allocated above, freed once, no work left that uses it.
            let _ = unsafe { result::free_sync(address) };
        }
    }

    pub(crate) fn fill(&self, address: u64, byte: u8, bytes: usize) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        self.enter()?;
        // SAFETY: the buffer's own memory.
        unsafe { result::memset_d8_async(address, byte, bytes, self.stream) }
            .map_err(driver("cuMemsetD8Async"))
    }

    pub(crate) fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        self.enter()?;
        // SAFETY: both buffers have this length (the caller checked).
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream) }
            .map_err(driver("cuMemcpyDtoDAsync"))
    }

    pub(crate) fn copy_in(&self, address: u64, from: &[u8]) -> Result<(), Error> {
        if from.is_empty() {
            return Ok(());
        }
        self.enter()?;
        // SAFETY: the buffer has room (its caller checked); waited for before `from` can go.
        unsafe { result::memcpy_htod_async(address, from, self.stream) }
            .map_err(driver("cuMemcpyHtoDAsync"))?;
        self.synchronize()
    }

    pub(crate) fn copy_out(&self, address: u64, to: &mut [u8]) -> Result<(), Error> {
        if to.is_empty() {
            return self.synchronize();
        }
        self.enter()?;
        // SAFETY: as above.
        unsafe { result::memcpy_dtoh_async(to, address, self.stream) }
            .map_err(driver("cuMemcpyDtoHAsync"))?;
        self.synchronize()
    }

    pub(crate) fn function(
        &self,
        source: &'static KernelSource,
        name: &str,
    ) -> Result<Function, Error> {
        let image = crate::cache::image(source, &[name], &self.facts.arch)?;
        let symbol = image.symbols.get(name).map(String::as_str).unwrap_or(name);
        let symbol = CString::new(symbol).expect("symbols have no NUL");
        self.enter()?;
        // SAFETY: the image is NVRTC's, for this architecture; modules are kept until `drop`.
        unsafe {
            let module = result::module::load_data(image.cubin.as_ptr().cast())
                .map_err(driver("cuModuleLoadData"))?;
            self.modules.lock().unwrap_or_else(PoisonError::into_inner).push(module);
            let function = result::module::get_function(module, symbol)
                .map_err(driver("cuModuleGetFunction"))?;
            // Over 48 KiB of dynamic shared memory is by request only.
            let fixed = result::function::get_function_attribute(
                function,
                FunctionAttribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
            )
            .map_err(driver("cuFuncGetAttribute"))?;
            let room = self.facts.max_shared_per_block as i32 - fixed;
            result::function::set_function_attribute(
                function,
                FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                room.max(0),
            )
            .map_err(driver("cuFuncSetAttribute"))?;
            Ok(Function(function))
        }
    }

    pub(crate) fn resident_blocks(
        &self,
        function: &Function,
        threads: u32,
        dynamic_shared: usize,
    ) -> Result<u32, Error> {
        self.enter()?;
        // SAFETY: the function is alive.
        let each = unsafe {
            result::occupancy::max_active_block_per_multiprocessor(
                function.0,
                threads as i32,
                dynamic_shared,
            )
        }
        .map_err(driver("cuOccupancyMaxActiveBlocksPerMultiprocessor"))?;
        Ok(each as u32 * self.facts.multiprocessors)
    }

    /// # Safety
    /// Each argument points to a value of its parameter's type, and buffers among them are alive.
    pub(crate) unsafe fn launch(
        &self,
        function: &Function,
        launch: &Launch,
        arguments: &mut [*mut c_void],
    ) -> Result<(), Error> {
        self.enter()?;
        let [gx, gy, gz] = launch.grid;
        let [bx, by, bz] = launch.block;
        let (grid, block, shared) = ((gx, gy, gz), (bx, by, bz), launch.dynamic_shared as u32);
        // SAFETY: the caller's promise; the driver copies the values before it returns.
        unsafe {
            if launch.cooperative {
                result::launch_cooperative_kernel(
                    function.0,
                    grid,
                    block,
                    shared,
                    self.stream,
                    arguments,
                )
                .map_err(driver("cuLaunchCooperativeKernel"))
            } else {
                result::launch_kernel(function.0, grid, block, shared, self.stream, arguments)
                    .map_err(driver("cuLaunchKernel"))
            }
        }
    }

    pub(crate) fn time(
        &self,
        times: usize,
        work: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Vec<Duration>, Error> {
        // Larger than the cache, so that nothing of the run before is left in it.
        let flush_bytes = (2 * self.facts.l2 as usize).max(1 << 20);
        let mut flush = self.flush.lock().unwrap_or_else(PoisonError::into_inner);
        let address = match *flush {
            Some(address) => address,
            None => *flush.insert(self.allocate(flush_bytes)?),
        };
        let mut spans = Vec::with_capacity(times);
        for _ in 0..times {
            self.fill(address, 0, flush_bytes)?;
            let (start, end) = (Event::new()?, Event::new()?);
            start.record(self.stream)?;
            work()?;
            self.enter()?;
            end.record(self.stream)?;
            spans.push((start, end));
        }
        self.synchronize()?;
        spans.iter().map(|(start, end)| start.until(end)).collect()
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        if self.synchronize().is_err() {
            return; // the context is beyond repair: leave it to the process's end
        }
        // SAFETY: everything is released once, with no work left on the stream. Functions and
        // buffers hold the device, so none outlives it.
        unsafe {
            if let Some(address) = self.flush.get_mut().unwrap_or_else(PoisonError::into_inner) {
                let _ = result::free_sync(*address);
            }
            for module in self.modules.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
                let _ = result::module::unload(module);
            }
            let _ = result::stream::destroy(self.stream);
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

struct Event(sys::CUevent);

impl Event {
    fn new() -> Result<Self, Error> {
        result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT)
            .map(Self)
            .map_err(driver("cuEventCreate"))
    }
    fn record(&self, stream: sys::CUstream) -> Result<(), Error> {
        // SAFETY: both are alive and of the current context.
        unsafe { result::event::record(self.0, stream) }.map_err(driver("cuEventRecord"))
    }
    fn until(&self, end: &Self) -> Result<Duration, Error> {
        // SAFETY: both were recorded and waited for.
        let ms = unsafe { result::event::elapsed(self.0, end.0) }
            .map_err(driver("cuEventElapsedTime"))?;
        Ok(Duration::from_secs_f64(f64::from(ms) * 1e-3))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created above, destroyed once.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}

fn facts(device: sys::CUdevice) -> Result<Facts, Error> {
    let get = |attribute| -> Result<u32, Error> {
        // SAFETY: the device was given by the driver.
        let value = unsafe { result::device::get_attribute(device, attribute) }
            .map_err(driver("cuDeviceGetAttribute"))?;
        Ok(u32::try_from(value).unwrap_or(0))
    };
    // Left out of some drivers: not worth failing for.
    let maybe = |attribute| get(attribute).unwrap_or(0);
    use Attribute::*;
    let capability = (
        get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    let mut version = 0;
    // SAFETY: writes one integer.
    unsafe { sys::cuDriverGetVersion(&mut version) };
    // SAFETY: the device was given by the driver.
    let memory =
        unsafe { result::device::total_mem(device) }.map_err(driver("cuDeviceTotalMem"))?;
    Ok(Facts {
        name: result::device::get_name(device).map_err(driver("cuDeviceGetName"))?,
        kind: DeviceKind::Cuda,
        compute_capability: capability,
        // From 9.0 on the instructions of one architecture alone are behind the letter.
        arch: format!(
            "sm_{}{}{}",
            capability.0,
            capability.1,
            if capability.0 >= 9 { "a" } else { "" }
        ),
        driver: driver_version(version),
        multiprocessors: get(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        clock_khz: maybe(CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
        memory_clock_khz: maybe(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE),
        memory_bus_bits: maybe(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH),
        memory: memory as u64,
        l2: u64::from(get(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
        max_threads_per_block: get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        max_threads_per_multiprocessor: get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
        max_block: [
            get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X)?,
            get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y)?,
            get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)?,
        ],
        max_grid: [
            get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
            get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?,
            get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)?,
        ],
        max_shared_per_block: u64::from(get(
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?),
        shared_per_multiprocessor: u64::from(get(
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
        )?),
        registers_per_block: get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK)?,
        registers_per_multiprocessor: get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
        warp: get(CU_DEVICE_ATTRIBUTE_WARP_SIZE)?,
        cooperative_launch: get(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)? != 0,
        clusters: maybe(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH) != 0,
        ecc: maybe(CU_DEVICE_ATTRIBUTE_ECC_ENABLED) != 0,
    })
}

/// The driver's own version where its file tells it, with the CUDA version it speaks.
fn driver_version(cuda: i32) -> String {
    let speaks = format!("CUDA {}.{}", cuda / 1000, cuda % 1000 / 10);
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let number = text.split_whitespace().find(|w| w.split('.').count() == 3);
    number.map_or(speaks.clone(), |n| format!("{n} ({speaks})"))
}
