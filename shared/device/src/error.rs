//! What can go wrong between a kernel and its result.

use cudarc::driver::DriverError;

/// An error of the device layer. Each names the argument, what was expected and what came.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `--device` or `LAB_DEVICE` does not name a device.
    #[error("device: expected auto, cuda, cuda:N or emulator, got '{}'", lab_emulator::shown(.0, 60))]
    Selector(String),
    /// There is no such GPU, or no driver.
    #[error("no CUDA device: {0}")]
    NoCuda(String),
    /// NVRTC or its headers were not found.
    #[error("{0}")]
    NoToolkit(#[from] crate::toolkit::NotFound),
    /// The disassembler was not found.
    #[error("{0}")]
    NoDisassembler(#[from] crate::toolkit::NoDisassembler),
    /// A library that a comparison needs is not here.
    #[error("{library}: {reason}")]
    NoLibrary {
        /// The library.
        library: &'static str,
        /// What was looked for, and how to get it.
        reason: String,
    },
    /// Ranks that train together have not met.
    #[error("{what}: expected {expected}, got {got}")]
    NoRanks {
        /// A variable of the environment, or a rank and where it is.
        what: String,
        /// What it should be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// A rank of several has failed: this one or another.
    #[error("rank {rank}: {reason}")]
    Rank {
        /// From 0.
        rank: usize,
        /// In its own words, or those of who has missed it.
        reason: String,
    },
    /// An instantiation that the kernel's file does not list was asked for where none can be made.
    #[error(
        "{kernel}: expected an instantiation that the stage's build script lists, got '{name}': \
         only on a GPU are others compiled as they are asked for"
    )]
    Unlisted {
        /// The kernel file.
        kernel: String,
        /// What was asked for.
        name: String,
    },
    /// A kernel's object is not embedded, and there is no compiler to make it with.
    #[error("{kernel}: {reason}; {}", crate::object::advice())]
    NoObject {
        /// The kernel file.
        kernel: String,
        /// What was looked for.
        reason: String,
    },
    /// A kernel's object, which is made at its first use, could not be made.
    #[error("{kernel}: compiling it for the emulator, at its first use: {log}")]
    ObjectRefused {
        /// The kernel file.
        kernel: String,
        /// The compiler's messages, or the system's.
        log: String,
    },
    /// A call into the driver failed.
    #[error("{call}: {message}")]
    Driver {
        /// The call.
        call: &'static str,
        /// The driver's own words.
        message: String,
    },
    /// A kernel does not compile for the GPU.
    #[error("{kernel} does not compile for {arch}:\n{log}")]
    Compile {
        /// The kernel file.
        kernel: String,
        /// The architecture.
        arch: String,
        /// NVRTC's messages.
        log: String,
    },
    /// A compiled image could not be written.
    #[error("{}: {reason}", path.display())]
    ImageNotWritten {
        /// Its file.
        path: std::path::PathBuf,
        /// What the system says.
        reason: String,
    },
    /// The device has no room.
    #[error("out of memory: asked for {asked} bytes, {free} of {total} are free")]
    OutOfMemory {
        /// Bytes asked for.
        asked: u64,
        /// Bytes free.
        free: u64,
        /// Bytes in all.
        total: u64,
    },
    /// A copy between a buffer and a slice of another length.
    #[error("buffer: expected {expected} elements, got {got}")]
    Length {
        /// Elements of the buffer.
        expected: usize,
        /// Elements of the slice.
        got: usize,
    },
    /// Things of two devices meet.
    #[error("{what}: expected one of {expected}, got one of {got}")]
    OtherDevice {
        /// A buffer or a stream.
        what: &'static str,
        /// The device it should be of.
        expected: String,
        /// The device it is of.
        got: String,
    },
    /// A launch argument is not what the kernel declares.
    #[error("{kernel}: argument '{name}': expected {expected}, got {got}")]
    Argument {
        /// The kernel.
        kernel: String,
        /// The parameter.
        name: String,
        /// The declared type.
        expected: String,
        /// What came.
        got: String,
    },
    /// A parameter has no argument.
    #[error("{kernel}: argument '{name}': expected {expected}, got none")]
    NoArgument {
        /// The kernel.
        kernel: String,
        /// The parameter.
        name: String,
        /// The declared type.
        expected: String,
    },
    /// An argument's name is no parameter's.
    #[error("{kernel}: argument '{name}': expected one of {expected}")]
    NoParameter {
        /// The kernel.
        kernel: String,
        /// The name given.
        name: String,
        /// The kernel's parameters.
        expected: String,
    },
    /// Two arguments have one name.
    #[error("{kernel}: argument '{name}': expected once, got twice")]
    RepeatedArgument {
        /// The kernel.
        kernel: String,
        /// The parameter.
        name: String,
    },
    /// Memory of somebody else's is not what it is said to be.
    #[error("foreign memory: expected {expected}, got {got}")]
    Foreign {
        /// What it was said to be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// The kernel's file lists no such global variable.
    #[error("global variable: '{name}' is not listed with the kernel's file")]
    NoGlobal {
        /// The name asked for.
        name: String,
    },
    /// A kernel does not say how many threads its blocks have.
    #[error("{kernel}: expected __launch_bounds__ with the threads of a block, got none")]
    NoBlock {
        /// The kernel.
        kernel: String,
    },
    /// A global variable has another size than what is to be written there.
    #[error("global variable '{name}': expected {expected} bytes, got {got}")]
    GlobalSize {
        /// The variable.
        name: String,
        /// Its bytes.
        expected: usize,
        /// The bytes given.
        got: usize,
    },
    /// A buffer is shorter than what the kernel is told to use of it.
    #[error("buffer: expected at least {expected} elements, got {got}")]
    TooSmall {
        /// What is needed.
        expected: usize,
        /// Its length.
        got: usize,
    },
    /// There is no such tensor map.
    #[error("tensor map: {what}: expected {expected}, got {got}")]
    TensorMap {
        /// What is wrong.
        what: String,
        /// What would be right.
        expected: String,
        /// What it is.
        got: String,
    },
    /// Two arguments of a launch overlap, one of them to be written.
    #[error("{kernel}: arguments '{first}' and '{second}': expected memory that lies apart")]
    Overlap {
        /// The kernel.
        kernel: String,
        /// The one.
        first: String,
        /// The other.
        second: String,
    },
    /// The number of launch arguments is not what the kernel declares.
    #[error("{kernel}: expected {expected} arguments, got {got}")]
    ArgumentCount {
        /// The kernel.
        kernel: String,
        /// Declared parameters.
        expected: usize,
        /// Arguments.
        got: usize,
    },
    /// A launch's size is zero or over the device's limit.
    #[error("{kernel}: {what}: expected {min} to {max}, got {got}")]
    LaunchSize {
        /// The kernel.
        kernel: String,
        /// Which size.
        what: &'static str,
        /// The smallest.
        min: u64,
        /// The largest on this device.
        max: u64,
        /// What was asked for.
        got: u64,
    },
    /// Clusters that the grid does not fall into, or in a cooperative launch.
    #[error(
        "{kernel}: blocks of a cluster: expected a divisor of grid.x, {grid}, in a launch that is \
         not cooperative, got {cluster}{}",
        if *.cooperative { " in a cooperative one" } else { "" }
    )]
    Cluster {
        /// The kernel.
        kernel: String,
        /// Blocks of a cluster.
        cluster: u32,
        /// Blocks along x.
        grid: u32,
        /// Whether the launch is cooperative.
        cooperative: bool,
    },
    /// A cooperative launch that is to overlap the one before it.
    #[error(
        "{kernel}: expected a launch that is cooperative or overlaps the one before it, got both"
    )]
    OverlapCooperative {
        /// The kernel.
        kernel: String,
    },
    /// `LAB_KERNEL_OBJECTS` names no directory, or an object there cannot be read.
    #[error("{}: expected {expected}, got {}: {reason}", crate::OBJECTS_VARIABLE, path.display())]
    Replacement {
        /// What it should be.
        expected: &'static str,
        /// What it is.
        path: std::path::PathBuf,
        /// What is wrong with that.
        reason: String,
    },
    /// The emulator could not load a kernel's object.
    #[error(transparent)]
    Module(#[from] lab_emulator::ModuleError),
    /// An emulator option in the environment is not understood.
    #[error(transparent)]
    Option(#[from] lab_emulator::BadOption),
    /// The emulator found the kernel to be wrong.
    #[error(transparent)]
    Emulator(#[from] lab_emulator::LaunchError),
}

impl Error {
    /// Whether it is the machine that lacks something: a device, a driver, a toolkit.
    pub fn is_unavailable(&self) -> bool {
        matches!(
            self,
            Self::NoCuda(_)
                | Self::NoToolkit(_)
                | Self::NoDisassembler(_)
                | Self::NoLibrary { .. }
                | Self::NoRanks { .. }
                | Self::NoObject { .. }
                | Self::Unlisted { .. }
                | Self::Driver { .. }
        )
    }

    /// What the emulator found wrong with the kernel; `None` of any other error.
    pub fn findings(&self) -> Option<&lab_emulator::Findings> {
        match self {
            Self::Emulator(lab_emulator::LaunchError::Kernel { findings, .. }) => Some(findings),
            _ => None,
        }
    }
}

/// What a call of the driver has failed with.
pub(crate) fn driver(call: &'static str) -> impl Fn(DriverError) -> Error {
    move |error| Error::Driver {
        call,
        message: error
            .error_string()
            .map_or_else(|_| format!("{error:?}"), |s| s.to_string_lossy().into_owned()),
    }
}
