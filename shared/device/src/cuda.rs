//! An NVIDIA GPU, through the driver.

use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cudarc::driver::sys::CUfunction_attribute_enum as FunctionAttribute;
use cudarc::driver::{DriverError, result, sys};

use crate::error::driver;
use crate::{
    BlockSize, DType, Error, Facts, KernelSource, Launch, Swizzle, Template, TensorMap, Usage,
    facts,
};

/// How many GPUs there are.
pub(crate) fn count() -> Result<u32, Error> {
    // Asked here: where cudarc loads the driver it would panic later, and where it is linked cudarc does not say.
    // SAFETY: the driver's library runs nothing of ours when it is loaded.
    let is_there = |name: &str| unsafe { libloading::Library::new(name) }.is_ok();
    if !["libcuda.so", "libcuda.so.1"].into_iter().any(is_there) {
        return Err(Error::NoCuda("the driver (libcuda.so.1) was not found".into()));
    }
    let none = |e: DriverError| Error::NoCuda(driver("cuInit")(e).to_string());
    result::init().map_err(none)?;
    let count = result::device::get_count().map_err(none)?;
    Ok(u32::try_from(count).unwrap_or(0))
}

/// Bytes of a copy that sweeps the cache; so much of it is left written, and no more.
const SWEEP: usize = 4 << 20;

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
    /// Whether there was ever a stream but the device's own: then reads and frees wait for all.
    streams: AtomicBool,
    /// Whether work is queued that waits for what never comes: nothing that waits for it is called any more.
    given_up: AtomicBool,
}

// SAFETY: the driver's handles may be used from any thread in which the context is current, which
// every method sees to first.
unsafe impl Send for Cuda {}
// SAFETY: the driver's functions may be called from several threads at once, for it locks what it shares; what is this side's own
// stands behind mutexes and atomics.
unsafe impl Sync for Cuda {}

/// A kernel in the GPU's memory. Alive as long as its device.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    function: sys::CUfunction,
    module: sys::CUmodule,
    /// From the name of each global to its symbol.
    globals: Vec<(&'static str, CString)>,
}

/// A module that the device has loaded, and keeps.
#[derive(Debug)]
pub(crate) struct LoadedModule(sys::CUmodule);

// SAFETY: a handle, like the others.
unsafe impl Send for LoadedModule {}
// SAFETY: the driver takes a module's handle from several threads at once.
unsafe impl Sync for LoadedModule {}

#[derive(Debug)]
pub(crate) struct RawStream {
    stream: sys::CUstream,
    /// Created here; else it is the caller's.
    owned: bool,
}

// SAFETY: a handle, like the others.
unsafe impl Send for RawStream {}
// SAFETY: the driver takes a stream's handle from several threads at once.
unsafe impl Sync for RawStream {}

impl RawStream {
    pub(crate) fn handle(&self) -> *mut c_void {
        self.stream.cast()
    }
}

#[derive(Debug)]
pub(crate) struct RawGraph {
    graph: sys::CUgraph,
    ready: sys::CUgraphExec,
}

// SAFETY: a handle, like the others.
unsafe impl Send for Function {}
// SAFETY: the driver takes a function's handle from several threads at once.
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
        let facts = facts::of(device)?;
        // SAFETY: the device was just given by the driver; `drop` releases the context.
        let context = unsafe { result::primary_ctx::retain(device) }
            .map_err(driver("cuDevicePrimaryCtxRetain"))?;
        // SAFETY: the context is alive.
        unsafe { result::ctx::set_current(context) }.map_err(driver("cuCtxSetCurrent"))?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(driver("cuStreamCreate"))?;
        keep_freed_memory(device)?;
        Ok(Self {
            ordinal,
            facts,
            device,
            context,
            stream,
            flush: Mutex::new(None),
            modules: Mutex::new(Vec::new()),
            streams: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
        })
    }

    /// The device's own queue, for libraries that launch into it.
    pub(crate) fn stream_handle(&self) -> *mut c_void {
        self.stream.cast()
    }

    /// Lets all calls fail from now on: those that wait for queued work would do so for ever, as those do that free memory.
    pub(crate) fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
    }

    pub(crate) fn enter(&self) -> Result<(), Error> {
        if self.given_up.load(Ordering::Acquire) {
            let message = "the GPU waits for a rank that has failed".to_owned();
            return Err(Error::Driver { call: "cuCtxSetCurrent", message });
        }
        // SAFETY: the context lives as long as this device.
        unsafe { result::ctx::set_current(self.context) }.map_err(driver("cuCtxSetCurrent"))
    }

    pub(crate) fn synchronize(&self) -> Result<(), Error> {
        self.enter()?;
        // SAFETY: the stream is this device's own.
        unsafe { result::stream::synchronize(self.stream) }.map_err(driver("cuStreamSynchronize"))
    }

    /// Waits for every stream, where there are others than the device's own.
    fn quiesce(&self) -> Result<(), Error> {
        if !self.streams.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.finish_all()
    }

    /// Waits for all that is queued on the device.
    pub(crate) fn finish_all(&self) -> Result<(), Error> {
        self.enter()?;
        result::ctx::synchronize().map_err(driver("cuCtxSynchronize"))
    }

    /// From the device's pool, in the order of its own stream: a freed buffer's memory is used
    /// again without a word to the driver's allocator.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<u64, Error> {
        self.enter()?;
        // SAFETY: the stream is this device's own.
        match unsafe { result::malloc_async(self.stream, bytes.max(1)) } {
            Ok(address) => Ok(address),
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                let (free, total) = self.free_and_total()?;
                Err(Error::OutOfMemory { asked: bytes as u64, free, total })
            }
            Err(error) => Err(driver("cuMemAllocAsync")(error)),
        }
    }

    pub(crate) fn free(&self, address: u64) {
        if self.quiesce().is_ok() && self.enter().is_ok() {
            // SAFETY: allocated above, freed once; other streams' work that used it has ended, and
            // this one's comes before.
            let _ = unsafe { result::free_async(address, self.stream) };
        }
    }

    /// Lets all other GPUs of this process that can reach this one's memory read and write what its pool has: of memory from a pool
    /// the driver does not by itself.
    pub(crate) fn open_pool_to_peers(&self) -> Result<(), Error> {
        self.enter()?;
        for other in 0..count()? {
            let peer = result::device::get(other as i32).map_err(driver("cuDeviceGet"))?;
            let mut reaches = 0;
            // SAFETY: both devices were given by the driver; writes one integer.
            unsafe { sys::cuDeviceCanAccessPeer(&mut reaches, peer, self.device) }
                .result()
                .map_err(driver("cuDeviceCanAccessPeer"))?;
            if other == self.ordinal || reaches == 0 {
                continue;
            }
            // By its words: the names of its fields are not those of every CUDA version.
            let access = [
                sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as i32,
                other as i32,
                sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as i32,
            ];
            const { assert!(size_of::<sys::CUmemAccessDesc>() == size_of::<[i32; 3]>()) };
            // SAFETY: the pool is the device's own; the description is read before the call returns.
            unsafe {
                let pool = result::device::get_default_mem_pool(self.device)
                    .map_err(driver("cuDeviceGetDefaultMemPool"))?;
                sys::cuMemPoolSetAccess(pool, access.as_ptr().cast(), 1)
                    .result()
                    .map_err(driver("cuMemPoolSetAccess"))?;
            }
        }
        Ok(())
    }

    /// Bytes of the device's pool that no buffer has.
    pub(crate) fn kept(&self) -> Result<u64, Error> {
        self.enter()?;
        // SAFETY: the device was given by the driver; both attributes are 64-bit numbers.
        unsafe {
            let pool = result::device::get_default_mem_pool(self.device)
                .map_err(driver("cuDeviceGetDefaultMemPool"))?;
            let get = |attribute| {
                let mut bytes = 0u64;
                sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut bytes).cast())
                    .result()
                    .map_err(driver("cuMemPoolGetAttribute"))?;
                Ok::<_, Error>(bytes)
            };
            use sys::CUmemPool_attribute as Pool;
            let reserved = get(Pool::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
            Ok(reserved.saturating_sub(get(Pool::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?))
        }
    }

    /// The allocation of this device that an address lies in: where it begins, and its length.
    ///
    /// # Errors
    /// The driver knows of none there, or it is another device's; the message says which.
    pub(crate) fn allocation_of(&self, address: u64) -> Result<(u64, usize), String> {
        self.enter().map_err(|e| e.to_string())?;
        let (mut ordinal, mut start, mut length) = (-1i32, 0u64, 0usize);
        use sys::CUpointer_attribute as Pointer;
        let mut attributes = [
            Pointer::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            Pointer::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            Pointer::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        ];
        let mut to: [*mut c_void; 3] =
            [(&raw mut ordinal).cast(), (&raw mut start).cast(), (&raw mut length).cast()];
        // SAFETY: each attribute is written to a variable of its type; of an address that the driver
        // does not know it writes zeros.
        let asked = unsafe {
            sys::cuPointerGetAttributes(3, attributes.as_mut_ptr(), to.as_mut_ptr(), address)
        };
        asked.result().map_err(|e| driver("cuPointerGetAttributes")(e).to_string())?;
        if length == 0 {
            return Err("an address that is no device memory".into());
        }
        match u32::try_from(ordinal) {
            Ok(own) if own == self.ordinal => Ok((start, length)),
            _ => Err(format!("memory of cuda:{ordinal}")),
        }
    }

    pub(crate) fn encode_tensor_map(
        &self,
        address: u64,
        map: &TensorMap,
    ) -> Result<[u64; 16], Error> {
        use sys::CUtensorMapDataType as Type;
        use sys::CUtensorMapFloatOOBfill as Outside;
        use sys::CUtensorMapL2promotion as Fetch;
        use sys::CUtensorMapSwizzle as Mode;
        let facts = map.facts();
        let dtype = match facts.dtype {
            // TMA moves bytes: a box has no sums.
            DType::I8 | DType::U8 => Type::CU_TENSOR_MAP_DATA_TYPE_UINT8,
            DType::F16 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            DType::BF16 => Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            DType::F32 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
            DType::F64 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
            DType::I32 => Type::CU_TENSOR_MAP_DATA_TYPE_INT32,
            DType::U32 => Type::CU_TENSOR_MAP_DATA_TYPE_UINT32,
            DType::I64 => Type::CU_TENSOR_MAP_DATA_TYPE_INT64,
            DType::U64 => Type::CU_TENSOR_MAP_DATA_TYPE_UINT64,
        };
        let swizzle = match facts.swizzle {
            Swizzle::None => Mode::CU_TENSOR_MAP_SWIZZLE_NONE,
            Swizzle::Bytes32 => Mode::CU_TENSOR_MAP_SWIZZLE_32B,
            Swizzle::Bytes64 => Mode::CU_TENSOR_MAP_SWIZZLE_64B,
            Swizzle::Bytes128 => Mode::CU_TENSOR_MAP_SWIZZLE_128B,
        };
        let outside = if facts.nan {
            Outside::CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA
        } else {
            Outside::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE
        };
        // What of a row misses L2 is fetched by whole lines.
        let fetch = Fetch::CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
        let mut made = sys::CUtensorMap { opaque: [0; 16] };
        self.enter()?;
        // SAFETY: the lists have as many entries as any rank; the driver writes the map and keeps
        // nothing.
        let encoded = unsafe {
            sys::cuTensorMapEncodeTiled(
                &raw mut made,
                dtype,
                facts.rank,
                address as *mut c_void,
                facts.sizes.as_ptr(),
                facts.strides.as_ptr(),
                facts.extents.as_ptr(),
                facts.steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                fetch,
                outside,
            )
        };
        encoded.result().map_err(driver("cuTensorMapEncodeTiled"))?;
        Ok(made.opaque)
    }

    pub(crate) fn free_and_total(&self) -> Result<(u64, u64), Error> {
        self.enter()?;
        let (free, total) = result::mem_get_info().map_err(driver("cuMemGetInfo"))?;
        Ok((free as u64, total as u64))
    }

    pub(crate) fn fill(
        &self,
        address: u64,
        byte: u8,
        bytes: usize,
        on: Option<&RawStream>,
    ) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        self.enter()?;
        // SAFETY: the buffer's own memory.
        unsafe { result::memset_d8_async(address, byte, bytes, self.queue(on)) }
            .map_err(driver("cuMemsetD8Async"))
    }

    pub(crate) fn copy(
        &self,
        from: u64,
        to: u64,
        bytes: usize,
        on: Option<&RawStream>,
    ) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        self.enter()?;
        // SAFETY: both buffers have this length (the caller checked).
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.queue(on)) }
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
        self.quiesce()?;
        if to.is_empty() {
            return self.synchronize();
        }
        self.enter()?;
        // SAFETY: the buffer has as many bytes (its caller checked); waited for before `to` can go.
        unsafe { result::memcpy_dtoh_async(to, address, self.stream) }
            .map_err(driver("cuMemcpyDtoHAsync"))?;
        self.synchronize()
    }

    pub(crate) fn function(
        &self,
        source: &'static KernelSource,
        name: &str,
    ) -> Result<Function, Error> {
        self.load(source, name, source.globals, "")
    }

    /// With what its source says of its blocks. Of an instantiation that the emulator's object does
    /// not have, the compiled image alone can tell: as a variable.
    pub(crate) fn function_with_block(
        &self,
        source: &'static KernelSource,
        name: &str,
        template: &Template,
    ) -> Result<(Function, BlockSize), Error> {
        const BLOCK: &str = "lab_block";
        let Template { kernel, head, threads, has_shared, .. } = template;
        let arguments = name.find('<').map_or("", |at| &name[at..]);
        let shared =
            if *has_shared { format!("{kernel}_shared{arguments}") } else { "0".to_owned() };
        let text = format!(
            "\n{head} constexpr int lab_threads = {threads};\n\
             __constant__ int {BLOCK}[] = {{lab_threads{arguments}, {shared}}};\n"
        );
        let globals = [source.globals, &[BLOCK]].concat();
        let function = self.load(source, name, &globals, &text)?;
        let (address, _) = self.global(&function, BLOCK)?;
        let mut values = [0u32; 2];
        self.copy_out(address, bytemuck::bytes_of_mut(&mut values))?;
        let [threads, shared] = values;
        Ok((function, BlockSize { threads, dynamic_shared: shared as usize }))
    }

    fn load(
        &self,
        source: &'static KernelSource,
        name: &str,
        globals: &[&'static str],
        appended: &str,
    ) -> Result<Function, Error> {
        // A global's expression is its address; its symbol is looked up by that.
        let expressions: Vec<String> = globals.iter().map(|g| format!("&{g}")).collect();
        let mut names = vec![name];
        names.extend(expressions.iter().map(String::as_str));
        let image = crate::cache::image(source, appended, &names, &self.facts.arch)?;
        let symbol_of = |name: &str| {
            let symbol = image.symbols.get(name).map_or(name, String::as_str);
            CString::new(symbol).expect("symbols have no NUL")
        };
        let symbol = symbol_of(name);
        let globals = globals.iter().map(|g| (*g, symbol_of(&format!("&{g}")))).collect();
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
            // So are clusters of more than 8 blocks. Which a device may not have: `resident_clusters`.
            if self.facts.max_cluster > 8 {
                let _ = result::function::set_function_attribute(
                    function,
                    FunctionAttribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
                    1,
                );
            }
            Ok(Function { function, module, globals })
        }
    }

    /// PTX or machine code; of PTX that does not compile the driver's compiler says why.
    pub(crate) fn load_image(&self, mut image: Vec<u8>) -> Result<LoadedModule, Error> {
        // PTX ends with a NUL.
        image.push(0);
        let mut said = vec![0u8; 1 << 16];
        let mut options = [
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values = [said.as_mut_ptr().cast::<c_void>(), said.len() as *mut c_void];
        let mut module = std::ptr::null_mut();
        self.enter()?;
        // SAFETY: both lists have two entries; the driver writes its words into `said`, no more than it has room for.
        let loaded = unsafe {
            sys::cuModuleLoadDataEx(
                &mut module,
                image.as_ptr().cast(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        if let Err(error) = loaded.result() {
            let end = said.iter().position(|byte| *byte == 0).unwrap_or(said.len());
            let said = String::from_utf8_lossy(&said[..end]);
            let message = format!("{}: {}", driver("cuModuleLoadDataEx")(error), said.trim());
            return Err(Error::Driver { call: "cuModuleLoadDataEx", message });
        }
        self.modules.lock().unwrap_or_else(PoisonError::into_inner).push(module);
        Ok(LoadedModule(module))
    }

    /// A kernel of an image.
    pub(crate) fn function_of(
        &self,
        LoadedModule(module): &LoadedModule,
        name: &str,
    ) -> Result<Function, Error> {
        let symbol =
            CString::new(name).map_err(|_| Error::NoGlobal { name: name.replace('\0', "\\0") })?;
        self.enter()?;
        // SAFETY: modules are kept until `drop`.
        let function = unsafe { result::module::get_function(*module, symbol) }
            .map_err(driver("cuModuleGetFunction"))?;
        Ok(Function { function, module: *module, globals: Vec::new() })
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
                function.function,
                threads as i32,
                dynamic_shared,
            )
        }
        .map_err(driver("cuOccupancyMaxActiveBlocksPerMultiprocessor"))?;
        Ok(each as u32 * self.facts.multiprocessors)
    }

    pub(crate) fn resident_clusters(
        &self,
        function: &Function,
        launch: &Launch,
    ) -> Result<u32, Error> {
        if self.facts.max_cluster == 1 {
            return Ok(0);
        }
        self.enter()?;
        let mut clusters = 0;
        let attributes = &mut [in_clusters(launch.cluster)];
        // SAFETY: the function is alive, and both pointers for the call.
        let result = with_attributes(launch, attributes, std::ptr::null_mut(), |config| unsafe {
            sys::cuOccupancyMaxActiveClusters(&raw mut clusters, function.function, config)
        });
        match result {
            sys::CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE => Ok(0),
            result => {
                result.result().map_err(driver("cuOccupancyMaxActiveClusters"))?;
                Ok(u32::try_from(clusters).unwrap_or(0))
            }
        }
    }

    pub(crate) fn usage(&self, function: &Function) -> Result<Usage, Error> {
        self.enter()?;
        let get = |attribute| -> Result<u32, Error> {
            // SAFETY: the function is alive.
            let value =
                unsafe { result::function::get_function_attribute(function.function, attribute) }
                    .map_err(driver("cuFuncGetAttribute"))?;
            Ok(u32::try_from(value).unwrap_or(0))
        };
        use FunctionAttribute::*;
        Ok(Usage {
            registers: get(CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            shared: get(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            local: get(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
        })
    }

    /// Where a `__device__` or `__constant__` variable of the kernel's module is.
    pub(crate) fn global(&self, function: &Function, name: &str) -> Result<(u64, usize), Error> {
        self.enter()?;
        let symbol = function.globals.iter().find(|g| g.0 == name).map(|g| g.1.clone());
        let symbol = symbol.ok_or_else(|| Error::NoGlobal { name: name.to_owned() })?;
        // SAFETY: the module is kept until `drop`.
        unsafe { result::module::get_global(function.module, symbol) }
            .map_err(driver("cuModuleGetGlobal"))
    }

    /// # Safety
    /// Each argument points to a value of its parameter's type, and buffers among them are alive.
    pub(crate) unsafe fn launch(
        &self,
        function: &Function,
        launch: &Launch,
        arguments: &[*mut c_void],
        on: Option<&RawStream>,
    ) -> Result<(), Error> {
        self.enter()?;
        let stream = self.queue(on);
        let [gx, gy, gz] = launch.grid;
        let [bx, by, bz] = launch.block;
        let (shared, function) = (launch.dynamic_shared as u32, function.function);
        // The driver copies the values before it returns, and writes none.
        let values = arguments.as_ptr().cast_mut();
        let none = std::ptr::null_mut();
        // Before sm_90 nothing overlaps, and a launch that waits for all before it is right, too.
        let overlaps = launch.overlap_previous && self.facts.compute_capability.0 >= 9;
        let attributes = &mut [in_clusters(launch.cluster), OVERLAPPING];
        let attributes = match (launch.cluster > 1, overlaps) {
            (true, true) => &mut attributes[..],
            (true, false) => &mut attributes[..1],
            (false, true) => &mut attributes[1..],
            (false, false) => &mut [],
        };
        // SAFETY: the caller's promise.
        unsafe {
            if launch.cooperative {
                sys::cuLaunchCooperativeKernel(
                    function, gx, gy, gz, bx, by, bz, shared, stream, values,
                )
                .result()
                .map_err(driver("cuLaunchCooperativeKernel"))
            } else if !attributes.is_empty() {
                with_attributes(launch, attributes, stream, |config| {
                    sys::cuLaunchKernelEx(config, function, values, none)
                })
                .result()
                .map_err(driver("cuLaunchKernelEx"))
            } else {
                sys::cuLaunchKernel(
                    function,
                    gx,
                    gy,
                    gz,
                    bx,
                    by,
                    bz,
                    shared,
                    stream,
                    values,
                    none.cast(),
                )
                .result()
                .map_err(driver("cuLaunchKernel"))
            }
        }
    }

    /// The device's own queue, or another.
    fn queue(&self, on: Option<&RawStream>) -> sys::CUstream {
        on.map_or(self.stream, |other| other.stream)
    }

    /// What is queued on a stream from now on waits for what is queued in the device's own queue by now.
    pub(crate) fn follow(&self, stream: &RawStream) -> Result<(), Error> {
        self.enter()?;
        self.order(self.stream, stream.stream)
    }

    /// What is queued on `then` from now on waits for what is queued on `first` by now.
    fn order(&self, first: sys::CUstream, then: sys::CUstream) -> Result<(), Error> {
        let event = Event::new()?;
        event.record(first)?;
        event.hold(then)
    }

    pub(crate) fn new_stream(&self) -> Result<RawStream, Error> {
        self.enter()?;
        self.streams.store(true, Ordering::Relaxed);
        result::stream::create(result::stream::StreamKind::NonBlocking)
            .map(|stream| RawStream { stream, owned: true })
            .map_err(driver("cuStreamCreate"))
    }

    /// One whose blocks go before those of other streams that wait for a multiprocessor.
    pub(crate) fn new_urgent_stream(&self) -> Result<RawStream, Error> {
        self.enter()?;
        self.streams.store(true, Ordering::Relaxed);
        let (mut least, mut greatest, mut stream) = (0, 0, std::ptr::null_mut());
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current; the first call writes two integers, the second a handle.
        unsafe {
            sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest)
                .result()
                .map_err(driver("cuCtxGetStreamPriorityRange"))?;
            sys::cuStreamCreateWithPriority(&mut stream, flags, greatest)
                .result()
                .map_err(driver("cuStreamCreateWithPriority"))?;
        }
        Ok(RawStream { stream, owned: true })
    }

    /// A stream that somebody else has created and will destroy.
    pub(crate) fn foreign_stream(&self, handle: *mut c_void) -> RawStream {
        self.streams.store(true, Ordering::Relaxed);
        RawStream { stream: handle.cast(), owned: false }
    }

    pub(crate) fn synchronize_stream(&self, stream: &RawStream) -> Result<(), Error> {
        self.enter()?;
        // SAFETY: alive until `drop_stream`.
        unsafe { result::stream::synchronize(stream.stream) }.map_err(driver("cuStreamSynchronize"))
    }

    pub(crate) fn join(&self, stream: &RawStream) -> Result<(), Error> {
        self.enter()?;
        self.order(stream.stream, self.stream)
    }

    /// What is queued on `then` from now on waits for what is queued on `first` by now; none is the device's own queue.
    pub(crate) fn order_streams(
        &self,
        first: Option<&RawStream>,
        then: Option<&RawStream>,
    ) -> Result<(), Error> {
        self.enter()?;
        self.order(self.queue(first), self.queue(then))
    }

    pub(crate) fn new_mark(&self) -> Result<RawMark, Error> {
        self.enter()?;
        Event::new().map(RawMark)
    }

    /// Puts a mark behind what is queued by now on a stream, or in the device's own queue.
    pub(crate) fn mark(&self, mark: &RawMark, on: Option<&RawStream>) -> Result<(), Error> {
        self.enter()?;
        mark.0.record(self.queue(on))
    }

    /// What is queued from now on waits for what a mark stands behind.
    pub(crate) fn wait_for_mark(
        &self,
        mark: &RawMark,
        on: Option<&RawStream>,
    ) -> Result<(), Error> {
        self.enter()?;
        mark.0.hold(self.queue(on))
    }

    /// Whether all is done that a mark stands behind.
    pub(crate) fn has_passed(&self, mark: &RawMark) -> Result<bool, Error> {
        self.enter()?;
        // SAFETY: the event is alive, and was recorded.
        match unsafe { result::event::query(mark.0.0) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(driver("cuEventQuery")(error)),
        }
    }

    pub(crate) fn drop_stream(&self, stream: &RawStream) {
        if stream.owned && self.enter().is_ok() {
            // SAFETY: created above, destroyed once; the driver lets its work end first.
            let _ = unsafe { result::stream::destroy(stream.stream) };
        }
    }

    /// Records what `work` launches in the device's own queue, or on a stream.
    pub(crate) fn capture(
        &self,
        on: Option<&RawStream>,
        work: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<RawGraph, Error> {
        self.enter()?;
        let stream = self.queue(on);
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is of this device; the capture is ended on every path.
        unsafe { result::stream::begin_capture(stream, mode) }
            .map_err(driver("cuStreamBeginCapture"))?;
        let worked = work();
        // SAFETY: the stream is the one whose capture has begun.
        let graph = unsafe { result::stream::end_capture(stream) };
        worked?;
        let graph = graph.map_err(driver("cuStreamEndCapture"))?;
        // SAFETY: the graph was just captured.
        match unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) } {
            Ok(ready) => Ok(RawGraph { graph, ready }),
            Err(error) => {
                // SAFETY: destroyed once.
                let _ = unsafe { result::graph::destroy(graph) };
                Err(driver("cuGraphInstantiate")(error))
            }
        }
    }

    pub(crate) fn launch_graph(
        &self,
        graph: &RawGraph,
        on: Option<&RawStream>,
    ) -> Result<(), Error> {
        self.enter()?;
        // SAFETY: alive until `drop_graph`; its buffers are held by the closure that made it.
        unsafe { result::graph::launch(graph.ready, self.queue(on)) }
            .map_err(driver("cuGraphLaunch"))
    }

    pub(crate) fn drop_graph(&self, graph: &RawGraph) {
        if self.synchronize().is_ok() {
            // SAFETY: each is destroyed once, with no launch of it left.
            unsafe {
                let _ = result::graph::exec_destroy(graph.ready);
                let _ = result::graph::destroy(graph.graph);
            }
        }
    }

    fn flush_bytes(&self) -> usize {
        (2 * self.facts.l2 as usize).next_multiple_of(SWEEP).max(2 * SWEEP)
    }

    /// Replaces what the L2 cache holds by lines that nobody needs. By reading: a cache full of
    /// what a fill has *written* would go back to memory during the next kernel, at its expense.
    fn sweep(&self, address: u64) -> Result<(), Error> {
        for piece in 1..self.flush_bytes() / SWEEP {
            self.copy(address + (piece * SWEEP) as u64, address, SWEEP, None)?;
        }
        Ok(())
    }

    pub(crate) fn time(
        &self,
        times: usize,
        work: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Vec<Duration>, Error> {
        let mut flush = self.flush.lock().unwrap_or_else(PoisonError::into_inner);
        let address = match *flush {
            Some(address) => address,
            None => *flush.insert(self.allocate(self.flush_bytes())?),
        };
        let mut spans = Vec::with_capacity(times);
        for _ in 0..times {
            self.sweep(address)?;
            let (start, end) = (Event::new()?, Event::new()?);
            start.record(self.stream)?;
            work()?;
            self.enter()?;
            end.record(self.stream)?;
            spans.push((start, end));
        }
        self.synchronize()?;
        spans.iter().map(|(start, end)| start.elapsed_until(end)).collect()
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
                let _ = result::free_async(*address, self.stream);
                let _ = result::stream::synchronize(self.stream);
            }
            for module in self.modules.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
                let _ = result::module::unload(module);
            }
            let _ = result::stream::destroy(self.stream);
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

/// Lets the pool keep what is freed: by default it gives everything back at each synchronisation.
fn keep_freed_memory(device: sys::CUdevice) -> Result<(), Error> {
    // SAFETY: the device was given by the driver; the attribute is a 64-bit number.
    unsafe {
        let pool = result::device::get_default_mem_pool(device)
            .map_err(driver("cuDeviceGetDefaultMemPool"))?;
        let mut threshold = u64::MAX;
        result::mem_pool::set_attribute(
            pool,
            sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
            (&raw mut threshold).cast(),
        )
        .map_err(driver("cuMemPoolSetAttribute"))
    }
}

#[derive(Debug)]
struct Event(sys::CUevent);

/// A place in a stream.
#[derive(Debug)]
pub(crate) struct RawMark(Event);

// SAFETY: the driver takes an event from any thread.
unsafe impl Send for RawMark {}
// SAFETY: as above; its calls may overlap.
unsafe impl Sync for RawMark {}

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
    /// Lets what is queued on a stream from now on wait for it.
    fn hold(&self, then: sys::CUstream) -> Result<(), Error> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are alive; the driver keeps what it needs of the event.
        unsafe { result::stream::wait_event(then, self.0, flags) }
            .map_err(driver("cuStreamWaitEvent"))
    }
    fn elapsed_until(&self, end: &Self) -> Result<Duration, Error> {
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

/// Of a launch that may begin before the one before it has ended.
const OVERLAPPING: sys::CUlaunchAttribute = sys::CUlaunchAttribute {
    id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
    pad: [0; 4],
    value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
};

/// Of a launch in clusters of so many blocks.
fn in_clusters(blocks: u32) -> sys::CUlaunchAttribute {
    let dimension = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: blocks, y: 1, z: 1 };
    sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue { clusterDim: dimension },
    }
}

/// Calls `f` with the configuration of a launch with attributes.
fn with_attributes<R>(
    launch: &Launch,
    attributes: &mut [sys::CUlaunchAttribute],
    stream: sys::CUstream,
    f: impl FnOnce(*const sys::CUlaunchConfig) -> R,
) -> R {
    let [gx, gy, gz] = launch.grid;
    let [bx, by, bz] = launch.block;
    let config = sys::CUlaunchConfig {
        gridDimX: gx,
        gridDimY: gy,
        gridDimZ: gz,
        blockDimX: bx,
        blockDimY: by,
        blockDimZ: bz,
        sharedMemBytes: launch.dynamic_shared as u32,
        hStream: stream,
        attrs: attributes.as_mut_ptr(),
        numAttrs: attributes.len() as u32,
    };
    f(&raw const config)
}
