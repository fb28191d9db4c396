//! Kernels, their arguments, their launches.

use std::marker::PhantomData;
use std::sync::Arc;

use half::{bf16, f16};
use lab_emulator::Parameter;

use crate::device::Inner;
use crate::{DType, Device, Element, Error, Stream};

/// The size of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads a block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory a block, in bytes.
    pub dynamic_shared: usize,
    /// All blocks resident at once, so that they may wait for each other.
    pub cooperative: bool,
    /// Blocks of a cluster, along x; 1 for none.
    pub cluster: u32,
}

impl Launch {
    /// `grid` blocks of `block` threads.
    pub fn new(grid: u32, block: u32) -> Self {
        Self::new_3d([grid, 1, 1], [block, 1, 1])
    }

    /// A grid and blocks of up to three dimensions.
    pub fn new_3d(grid: [u32; 3], block: [u32; 3]) -> Self {
        Self { grid, block, dynamic_shared: 0, cooperative: false, cluster: 1 }
    }

    /// With dynamic shared memory.
    pub fn shared(self, bytes: usize) -> Self {
        Self { dynamic_shared: bytes, ..self }
    }

    /// With all blocks resident.
    pub fn cooperative(self) -> Self {
        Self { cooperative: true, ..self }
    }

    /// In clusters of so many blocks along x, which reach for each other's shared memory.
    pub fn cluster(self, blocks: u32) -> Self {
        Self { cluster: blocks, ..self }
    }

    pub(crate) fn threads(&self) -> u64 {
        self.block.iter().map(|&n| u64::from(n)).product()
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.grid.iter().map(|&n| u64::from(n)).product()
    }
}

/// One argument of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Arg<'a> {
    bytes: [u8; 8],
    dtype: DType,
    kind: Kind,
    _borrow: PhantomData<&'a ()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Scalar,
    Buffer { writable: bool, device: usize },
}

impl Arg<'_> {
    pub(crate) fn buffer(device: &Device, address: u64, dtype: DType, writable: bool) -> Self {
        Self {
            bytes: address.to_ne_bytes(),
            dtype,
            kind: Kind::Buffer { writable, device: device.identity() },
            _borrow: PhantomData,
        }
    }

    fn type_name(&self) -> String {
        match self.kind {
            Kind::Scalar => self.dtype.name().to_owned(),
            Kind::Buffer { writable: true, .. } => format!("{}*", self.dtype),
            Kind::Buffer { writable: false, .. } => format!("const {}*", self.dtype),
        }
    }

    fn fits(&self, declared: &str) -> bool {
        let own = self.type_name();
        // A pointer to vectors (float4*, __half2*) takes a buffer of whatever they are made of.
        if let Kind::Buffer { writable, .. } = self.kind
            && (declared == "const struct*" || declared == "struct*" && writable)
        {
            return true;
        }
        own == declared
            || matches!(self.kind, Kind::Buffer { writable: true, .. })
                && declared.strip_prefix("const ") == Some(&own)
    }
}

macro_rules! scalars {
    ($($t:ty),*) => { $(
        impl From<$t> for Arg<'_> {
            fn from(value: $t) -> Self {
                let mut bytes = [0; 8];
                bytes[..size_of::<$t>()].copy_from_slice(bytemuck::bytes_of(&value));
                Self { bytes, dtype: <$t>::DTYPE, kind: Kind::Scalar, _borrow: PhantomData }
            }
        }
    )* };
}
scalars!(f32, f64, f16, bf16, i32, u32, i64, u64, u8);

/// What a compiled kernel takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Registers a thread.
    pub registers: u32,
    /// Static shared memory a block, in bytes.
    pub shared: u32,
    /// Local memory a thread, in bytes: what is spilled, and arrays that are indexed at run time.
    pub local: u32,
}

/// One instantiation of a kernel template, on a device.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub(crate) device: Device,
    pub(crate) name: Arc<str>,
    /// The emulator's copy, whose signature is held against every launch on either device.
    pub(crate) emulated: lab_emulator::Kernel,
    pub(crate) cuda: Option<crate::cuda::Function>,
}

impl Kernel {
    /// The C++ expression that names it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it takes of a GPU's multiprocessor, as the driver tells; `None` on the emulator.
    ///
    /// # Errors
    /// The driver's.
    pub fn usage(&self) -> Result<Option<Usage>, Error> {
        match (&*self.device.inner, &self.cuda) {
            (Inner::Cuda(device), Some(function)) => device.usage(function).map(Some),
            _ => Ok(None),
        }
    }

    /// Runs it. On a GPU this returns before the kernel has ended; whatever reads a buffer waits.
    ///
    /// # Errors
    /// Refused before it runs: wrong number or type of arguments, a buffer of another device, a
    /// size that is zero or over the device's limit. On the emulator also what the kernel itself
    /// does wrong.
    pub fn launch(&self, launch: Launch, arguments: &[Arg<'_>]) -> Result<(), Error> {
        self.enqueue(None, launch, arguments)
    }

    /// Runs it on a stream, after all that the device's own queue holds by now.
    ///
    /// # Errors
    /// As [`Kernel::launch`]; also a stream of another device.
    pub fn launch_on(
        &self,
        stream: &Stream,
        launch: Launch,
        arguments: &[Arg<'_>],
    ) -> Result<(), Error> {
        if stream.device.identity() != self.device.identity() {
            return Err(Error::OtherDevice {
                what: "stream",
                expected: self.device.name(),
                got: stream.device.name(),
            });
        }
        self.enqueue(stream.raw.as_ref(), launch, arguments)
    }

    /// Sets a `__device__` or `__constant__` variable of this kernel. Each instantiation has its
    /// own on a GPU; on the emulator all of a file share it.
    ///
    /// # Errors
    /// [`Error::NoGlobal`], [`Error::GlobalSize`].
    pub fn set_global<T: Element>(&self, name: &str, values: &[T]) -> Result<(), Error> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let sized = |size: usize| match size == bytes.len() {
            true => Ok(()),
            false => {
                Err(Error::GlobalSize { name: name.to_owned(), expected: size, got: bytes.len() })
            }
        };
        match (&*self.device.inner, &self.cuda) {
            (Inner::Cuda(device), Some(function)) => {
                let (address, size) = device.global(function, name)?;
                sized(size)?;
                device.copy_in(address, bytes)
            }
            _ => {
                let (address, size) = self
                    .emulated
                    .global(name)
                    .ok_or_else(|| Error::NoGlobal { name: name.to_owned() })?;
                sized(size)?;
                // SAFETY: the variable has this size, and no kernel runs: a launch on the emulator
                // returns when it is over.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address, size) };
                Ok(())
            }
        }
    }

    fn enqueue(
        &self,
        stream: Option<&crate::cuda::RawStream>,
        launch: Launch,
        arguments: &[Arg<'_>],
    ) -> Result<(), Error> {
        self.check_arguments(arguments)?;
        self.check_size(&launch)?;
        let mut values: Vec<[u8; 8]> = arguments.iter().map(|a| a.bytes).collect();
        let mut pointers: Vec<*mut std::ffi::c_void> =
            values.iter_mut().map(|v| v.as_mut_ptr().cast()).collect();
        // SAFETY: each pointer leads to a value of the parameter's type (checked above); buffers
        // are alive, for the arguments borrow them. What a kernel does within or past a buffer is
        // the kernel's affair: its tests run it under the emulator's checks.
        unsafe {
            match (&*self.device.inner, &self.cuda) {
                (Inner::Cuda(device), Some(function)) => {
                    device.launch(function, &launch, &mut pointers, stream)
                }
                (Inner::Emulator(device), _) => {
                    device.launch(&self.emulated, &launch, &mut pointers)
                }
                (Inner::Cuda(_), None) => unreachable!("a kernel of a GPU has its function"),
            }
        }
    }

    /// How many blocks of `threads` threads and so much dynamic shared memory can be resident at
    /// once: the largest grid of a cooperative launch.
    pub fn resident_blocks(&self, threads: u32, dynamic_shared: usize) -> Result<u32, Error> {
        match (&*self.device.inner, &self.cuda) {
            (Inner::Cuda(device), Some(function)) => {
                device.resident_blocks(function, threads, dynamic_shared)
            }
            _ => Ok(crate::emulated::resident_blocks(threads, dynamic_shared)),
        }
    }

    /// How many of the launch's clusters can be resident at once; 0 where the device has none so large.
    pub fn resident_clusters(&self, launch: &Launch) -> Result<u32, Error> {
        match (&*self.device.inner, &self.cuda) {
            (Inner::Cuda(device), Some(function)) => device.resident_clusters(function, launch),
            // One after the other.
            _ => Ok(u32::from(launch.cluster <= lab_emulator::MAX_CLUSTER)),
        }
    }

    fn check_arguments(&self, arguments: &[Arg<'_>]) -> Result<(), Error> {
        let parameters: &[Parameter] = self.emulated.parameters();
        let kernel = || self.name().to_owned();
        if parameters.len() != arguments.len() {
            return Err(Error::ArgumentCount {
                kernel: kernel(),
                expected: parameters.len(),
                got: arguments.len(),
            });
        }
        for (index, (parameter, argument)) in parameters.iter().zip(arguments).enumerate() {
            let wrong = |got: String| Error::Argument {
                kernel: kernel(),
                index,
                expected: parameter.type_name.to_owned(),
                got,
            };
            if !argument.fits(parameter.type_name) {
                return Err(wrong(argument.type_name()));
            }
            if let Kind::Buffer { device, .. } = argument.kind
                && device != self.device.identity()
            {
                return Err(wrong(format!("{} of another device", argument.type_name())));
            }
        }
        Ok(())
    }

    fn check_size(&self, launch: &Launch) -> Result<(), Error> {
        let facts = self.device.facts();
        let [gx, gy, gz] = launch.grid.map(u64::from);
        let [bx, by, bz] = launch.block.map(u64::from);
        let [max_gx, max_gy, max_gz] = facts.max_grid.map(u64::from);
        let [max_bx, max_by, max_bz] = facts.max_block.map(u64::from);
        let refuse = |what, min, max, got| Error::LaunchSize {
            kernel: self.name().to_owned(),
            what,
            min,
            max,
            got,
        };
        for (what, min, max, got) in [
            ("grid.x", 1, max_gx, gx),
            ("grid.y", 1, max_gy, gy),
            ("grid.z", 1, max_gz, gz),
            ("block.x", 1, max_bx, bx),
            ("block.y", 1, max_by, by),
            ("block.z", 1, max_bz, bz),
            ("threads per block", 1, u64::from(facts.max_threads_per_block), launch.threads()),
            (
                "dynamic shared memory in bytes",
                0,
                facts.max_shared_per_block,
                launch.dynamic_shared as u64,
            ),
        ] {
            if got < min || got > max {
                return Err(refuse(what, min, max, got));
            }
        }
        if launch.cluster != 1 {
            let max = u64::from(facts.max_cluster);
            if launch.cluster == 0 || u64::from(launch.cluster) > max {
                return Err(refuse("blocks of a cluster", 1, max, u64::from(launch.cluster)));
            }
            if launch.cooperative || !gx.is_multiple_of(u64::from(launch.cluster)) {
                return Err(Error::Cluster {
                    kernel: self.name().to_owned(),
                    cluster: launch.cluster,
                    grid: launch.grid[0],
                    cooperative: launch.cooperative,
                });
            }
        }
        if launch.cooperative {
            let max =
                u64::from(self.resident_blocks(launch.threads() as u32, launch.dynamic_shared)?);
            if launch.blocks() > max {
                return Err(refuse("blocks of a cooperative launch", 1, max, launch.blocks()));
            }
        }
        Ok(())
    }
}
