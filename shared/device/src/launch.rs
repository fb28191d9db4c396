//! Kernels, their arguments, their launches.

use std::ffi::c_void;
use std::sync::Arc;

use lab_emulator::Parameter;

use crate::argument::{self, Arg, ArgKind};
use crate::device::Inner;
use crate::{BlockSize, Device, Element, Error, Stream};

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
    /// It may begin before the launch before it has ended: see [`Launch::overlap_previous`].
    pub overlap_previous: bool,
}

impl Launch {
    /// `grid` blocks of `block` threads.
    pub fn new(grid: u32, block: u32) -> Self {
        Self::new_3d([grid, 1, 1], [block, 1, 1])
    }

    /// A grid and blocks of up to three dimensions.
    pub fn new_3d(grid: [u32; 3], block: [u32; 3]) -> Self {
        Self {
            grid,
            block,
            dynamic_shared: 0,
            cooperative: false,
            cluster: 1,
            overlap_previous: false,
        }
    }

    /// `grid` blocks of what their kernel's source says ([`Kernel::block`]).
    pub fn of(grid: [u32; 3], block: BlockSize) -> Self {
        Self::new_3d(grid, [block.threads, 1, 1]).shared(block.dynamic_shared)
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

    /// Beginning, if it can, before the launch before it in its queue has ended, whoever made that one: as soon
    /// as all blocks there have said so or have ended. The kernel waits for the rest (`griddep_wait` of
    /// `lab/ptx/grid_dependency.cuh`) before it reads what that launch writes, or writes what that launch
    /// uses; the emulator's checks find what comes too early. Nothing overlaps a copy or a fill, nor the
    /// begin of a graph. On a GPU before sm_90 it is a launch like any other.
    pub fn overlap_previous(self) -> Self {
        Self { overlap_previous: true, ..self }
    }

    pub(crate) fn threads(&self) -> u64 {
        self.block.iter().map(|&n| u64::from(n)).product()
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.grid.iter().map(|&n| u64::from(n)).product()
    }
}

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
    pub(crate) block: Option<BlockSize>,
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

    /// What a launch gives each of its blocks: as many threads as its `__launch_bounds__` allow, all
    /// along x, and as much dynamic shared memory as a constant with its name and `_shared` says; none
    /// where there is no such constant.
    ///
    /// # Errors
    /// [`Error::NoBlock`]: it has no launch bounds.
    pub fn block(&self) -> Result<BlockSize, Error> {
        self.block.ok_or_else(|| Error::NoBlock { kernel: self.name().to_owned() })
    }

    /// A launch of so many such blocks.
    ///
    /// # Errors
    /// As [`Kernel::block`].
    pub fn grid(&self, grid: [u32; 3]) -> Result<Launch, Error> {
        Ok(Launch::of(grid, self.block()?))
    }

    /// A launch with such blocks in a row, and a thread for each of so many elements.
    ///
    /// # Errors
    /// As [`Kernel::block`]; [`Error::LaunchSize`] where they are more than a grid has.
    pub fn grid_over(&self, elements: usize) -> Result<Launch, Error> {
        let block = self.block()?;
        let blocks = elements.div_ceil(block.threads as usize);
        let most = self.device.facts().max_grid[0];
        let refused = || Error::LaunchSize {
            kernel: self.name().to_owned(),
            what: "grid.x",
            min: 1,
            max: u64::from(most),
            got: blocks as u64,
        };
        match u32::try_from(blocks) {
            Ok(blocks) if blocks <= most => Ok(Launch::of([blocks, 1, 1], block)),
            _ => Err(refused()),
        }
    }

    /// Its parameters, in its own order.
    pub fn parameters(&self) -> &[Parameter] {
        self.emulated.parameters()
    }

    /// For each parameter, which of these arguments is its own, wherever they lie: what a plan asks
    /// before there is any memory.
    ///
    /// # Errors
    /// [`Error::NoArgument`], [`Error::NoParameter`], [`Error::RepeatedArgument`],
    /// [`Error::Argument`].
    pub fn order(&self, named: &[(&str, ArgKind)]) -> Result<Vec<usize>, Error> {
        argument::order(self.name(), self.parameters(), named)
    }

    /// Runs it with these arguments, by name, in any order. On a GPU this returns before the kernel
    /// has ended; whatever reads a buffer waits.
    ///
    /// # Errors
    /// As [`Kernel::bind`]. On the emulator also what the kernel itself does wrong.
    ///
    /// # Safety
    /// With these numbers the kernel stays within its buffers: it has addresses, and what it is told of their sizes it believes. (On
    /// the emulator with its checks an access beyond them is an error.) What other streams run meanwhile does not use what it
    /// writes. Where a graph records it, all of this holds each time that the graph is launched.
    ///
    /// ```compile_fail,E0133
    /// # fn copy(copy: &lab_device::Kernel, x: &lab_device::Buffer<f32>, out: &mut lab_device::Buffer<f32>) {
    /// // 4096 columns of a buffer of four are other people's memory.
    /// let all = [("x", x.arg()), ("out", out.arg_mut()), ("columns", 4096.into())];
    /// copy.launch(lab_device::Launch::new(1, 256), &all);
    /// # }
    /// ```
    pub unsafe fn launch(
        &self,
        launch: Launch,
        arguments: &[(&str, Arg<'_>)],
    ) -> Result<(), Error> {
        let bound = self.bind(launch, arguments)?;
        // SAFETY: the arguments borrow the buffers until the launch is in its queue, and freeing one waits for that; the rest is
        // the caller's promise.
        unsafe { bound.run(None) }
    }

    /// Runs it on a stream, after all that the device's own queue holds by now.
    ///
    /// # Errors
    /// As [`Kernel::launch`]; also a stream of another device.
    ///
    /// # Safety
    /// As [`Kernel::launch`]. And until the kernel has ended nobody else uses its buffers, reads what it writes, or writes what it
    /// reads: the device's own queue, and with it [`Buffer::write`](crate::Buffer::write), waits for a stream only behind
    /// [`Stream::join`] or [`Stream::synchronize`].
    ///
    /// ```compile_fail,E0133
    /// # fn fill(fill: &lab_device::Kernel, stream: &lab_device::Stream, x: &mut lab_device::Buffer<f32>) {
    /// // On a GPU nobody knows which of the two comes first.
    /// fill.launch_on(stream, lab_device::Launch::new(1, 4), &[("x", x.arg_mut())]);
    /// x.write(&[1.0; 4]);
    /// # }
    /// ```
    pub unsafe fn launch_on(
        &self,
        stream: &Stream,
        launch: Launch,
        arguments: &[(&str, Arg<'_>)],
    ) -> Result<(), Error> {
        let bound = self.bind(launch, arguments)?;
        stream.check_device(&self.device)?;
        stream.follow()?;
        // SAFETY: freeing a buffer waits for all streams; the rest is the caller's promise.
        unsafe { bound.run(Some(stream)) }
    }

    /// A launch with these arguments, by name, in any order; all that can be refused is refused here.
    ///
    /// # Errors
    /// An argument is missing, is none of the kernel's, is given twice, or is not what the kernel
    /// declares; a buffer of another device, at an address that its elements may not have, or
    /// overlapping one that is written; a size that is zero or over the device's limit.
    pub fn bind(&self, launch: Launch, arguments: &[(&str, Arg<'_>)]) -> Result<Bound, Error> {
        let kinds: Vec<(&str, ArgKind)> = arguments.iter().map(|(n, a)| (*n, a.kind)).collect();
        let order = self.order(&kinds)?;
        let ordered: Vec<Arg<'_>> = order.into_iter().map(|at| arguments[at].1).collect();
        self.bind_ordered(launch, &ordered)
    }

    /// As [`Kernel::bind`], with an argument for each parameter in the kernel's order: what
    /// [`Kernel::order`] has put there.
    ///
    /// # Errors
    /// As [`Kernel::bind`].
    pub fn bind_ordered(&self, launch: Launch, arguments: &[Arg<'_>]) -> Result<Bound, Error> {
        let parameters = self.parameters();
        if parameters.len() != arguments.len() {
            return Err(Error::ArgumentCount {
                kernel: self.name().to_owned(),
                expected: parameters.len(),
                got: arguments.len(),
            });
        }
        self.check_size(&launch)?;
        let line = size_of::<Line>();
        let lines = |p: &Parameter| p.size.div_ceil(line);
        let mut values = vec![Line([0; 64]); parameters.iter().map(lines).sum()];
        let (mut pointers, mut rest) = (Vec::new(), &mut values[..]);
        for (n, (parameter, argument)) in parameters.iter().zip(arguments).enumerate() {
            self.check_argument(parameter, argument)?;
            self.check_overlap(n, arguments)?;
            let (own, others) = rest.split_at_mut(lines(parameter));
            rest = others;
            argument::encode(argument, parameter, bytemuck::cast_slice_mut(own));
            pointers.push(own.as_mut_ptr().cast());
        }
        Ok(Bound { kernel: self.clone(), launch, _values: values, pointers })
    }

    /// Sets a `__device__` or `__constant__` variable of this kernel. Each instantiation has its
    /// own on a GPU; on the emulator all of a file share it.
    ///
    /// # Errors
    /// [`Error::NoGlobal`], [`Error::GlobalSize`].
    ///
    /// # Safety
    /// No kernel that uses the variable runs meanwhile: on the emulator none of the same file, whichever thread has launched it; on a
    /// GPU none in another stream than the device's own.
    ///
    /// ```compile_fail,E0133
    /// # fn set(weigh: &lab_device::Kernel) {
    /// // Another thread may launch it at this moment: a kernel may go from thread to thread.
    /// weigh.set_global("offset", &[1i32]);
    /// # }
    /// ```
    pub unsafe fn set_global<T: Element>(&self, name: &str, values: &[T]) -> Result<(), Error> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let sized = |size: usize| {
            if size == bytes.len() {
                Ok(())
            } else {
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
                // SAFETY: the variable has this size; the caller promises that no kernel runs which uses it.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address, size) };
                Ok(())
            }
        }
    }

    /// How many blocks of `threads` threads and so much dynamic shared memory can be resident at
    /// once: enough of them to have work for the whole device.
    pub fn resident_blocks(&self, threads: u32, dynamic_shared: usize) -> Result<u32, Error> {
        match (&*self.device.inner, &self.cuda) {
            (Inner::Cuda(device), Some(function)) => {
                device.resident_blocks(function, threads, dynamic_shared)
            }
            _ => Ok(crate::emulated::resident_blocks(threads, dynamic_shared)),
        }
    }

    /// The largest grid of a cooperative launch: the resident blocks. The emulator takes more than those of the few
    /// multiprocessors that it claims.
    pub fn cooperative_blocks(&self, threads: u32, dynamic_shared: usize) -> Result<u32, Error> {
        match &*self.device.inner {
            Inner::Cuda(_) => self.resident_blocks(threads, dynamic_shared),
            _ => Ok(lab_emulator::MAX_COOPERATIVE_BLOCKS as u32),
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

    fn check_argument(&self, parameter: &Parameter, argument: &Arg<'_>) -> Result<(), Error> {
        let wrong = |got| Error::Argument {
            kernel: self.name().to_owned(),
            name: parameter.name.clone(),
            expected: parameter.type_name.clone(),
            got,
        };
        argument.kind.fits(parameter).map_err(wrong)?;
        if argument.writes().is_some() && argument.device != self.device.identity() {
            return Err(wrong(format!("{} of another device", argument.kind.describe())));
        }
        if !matches!(argument.kind, ArgKind::Buffer { .. }) {
            return Ok(());
        }
        // A vector is loaded as one, up to 16 bytes.
        let alignment = 1 << parameter.pointee_size.trailing_zeros().min(4);
        if !argument.address.is_multiple_of(alignment) {
            let at = argument.address;
            return Err(wrong(format!("{at:#x}, which is not a multiple of {alignment} bytes")));
        }
        Ok(())
    }

    /// What a kernel gets to write it gets once: else it would race with itself.
    fn check_overlap(&self, n: usize, arguments: &[Arg<'_>]) -> Result<(), Error> {
        let written = |a: &Arg<'_>| a.writes() == Some(true);
        let end = |a: &Arg<'_>| a.address + a.bytes as u64;
        let own = &arguments[n];
        let meets = |other: &Arg<'_>| {
            (written(own) || written(other))
                && own.writes().is_some()
                && other.writes().is_some()
                && own.address < end(other)
                && other.address < end(own)
                && !own.lies_beside(other)
        };
        match arguments[..n].iter().position(meets) {
            None => Ok(()),
            Some(other) => {
                let name = |n: usize| self.parameters()[n].name.clone();
                let kernel = self.name().to_owned();
                Err(Error::Overlap { kernel, first: name(other), second: name(n) })
            }
        }
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
        if launch.cooperative && launch.overlap_previous {
            return Err(Error::OverlapCooperative { kernel: self.name().to_owned() });
        }
        if launch.cooperative {
            let threads = launch.threads() as u32;
            let max = u64::from(self.cooperative_blocks(threads, launch.dynamic_shared)?);
            if launch.blocks() > max {
                return Err(refuse("blocks of a cooperative launch", 1, max, launch.blocks()));
            }
        }
        Ok(())
    }
}

/// As much as any argument must be aligned to.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; 64]);

// SAFETY: zeros are bytes.
unsafe impl bytemuck::Zeroable for Line {}
// SAFETY: bytes, without padding.
unsafe impl bytemuck::Pod for Line {}

/// A launch with all its arguments, checked, to be made any number of times: neither allocates nor
/// looks anything up.
#[derive(Debug)]
pub struct Bound {
    kernel: Kernel,
    launch: Launch,
    /// What the pointers lead to; never moved.
    _values: Vec<Line>,
    pointers: Vec<*mut c_void>,
}

// SAFETY: the pointers lead into the values, which nobody writes again.
unsafe impl Send for Bound {}
// SAFETY: a launch, of which there may be several at once, only reads what they lead to.
unsafe impl Sync for Bound {}

impl Bound {
    /// The kernel.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Launches it in the device's own queue, or on a stream.
    ///
    /// # Errors
    /// The driver's; on the emulator also what the kernel itself does wrong.
    ///
    /// # Safety
    /// The buffers that it was bound to are alive until the kernel has ended, and nobody else writes
    /// what it uses meanwhile, or reads what it writes. With the numbers that it was bound to the kernel stays within them. The
    /// stream is one of the kernel's device.
    pub unsafe fn run(&self, stream: Option<&Stream>) -> Result<(), Error> {
        let Self { kernel, launch, pointers, .. } = self;
        // SAFETY: each pointer leads to a value of the parameter's type; the rest is the caller's
        // promise.
        unsafe {
            match (&*kernel.device.inner, &kernel.cuda) {
                (Inner::Cuda(device), Some(function)) => {
                    device.launch(function, launch, pointers, stream.and_then(|s| s.raw.as_ref()))
                }
                (Inner::Emulator(device), _) => {
                    device.launch(&kernel.emulated, launch, pointers, stream.map(|s| s.queue))
                }
                (Inner::Cuda(_), None) => unreachable!("a kernel of a GPU has its function"),
            }
        }
    }
}
