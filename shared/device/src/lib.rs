//! One interface over both devices: an NVIDIA GPU through the CUDA driver and NVRTC, and the CPU
//! emulator. The same kernel source, the same buffers, the same launch.
//!
//! ```no_run
//! # fn demo(source: &'static lab_device::KernelSource) -> Result<(), lab_device::Error> {
//! use lab_device::{Device, Launch, Selector};
//! let device = Device::open(Selector::from_env()?)?;
//! let x = device.upload(&[1f32; 1000])?;
//! let mut y = device.upload(&[2f32; 1000])?;
//! let saxpy = device.kernel(source, "saxpy<float>")?;
//! let arguments =
//!     [("x", x.arg()), ("out", y.arg_mut()), ("a", 2f32.into()), ("n", 1000usize.into())];
//! // SAFETY: x and y have 1000 elements, and n is 1000.
//! unsafe { saxpy.launch(Launch::new(4, 256), &arguments)? };
//! assert_eq!(y.download()?, vec![4f32; 1000]);
//! # Ok(())
//! # }
//! ```
//!
//! A launch is checked against the kernel's own C++ signature on both devices before anything
//! runs: an argument for each parameter, by name, their types, whether a pointer may be written
//! through.

use std::ops::Deref;

mod argument;
mod buffer;
pub mod cache;
mod communicator;
pub mod cublas;
mod cuda;
mod device;
pub mod dlpack;
mod element;
mod emulated;
mod error;
mod facts;
mod group;
mod headers;
mod image;
mod instance;
mod launch;
pub mod nccl;
pub mod nvrtc;
mod object;
mod peak;
mod promise;
mod raw;
pub mod record;
mod replaced;
mod stream;
mod tensor_map;
pub mod toolkit;

pub use argument::{Arg, ArgKind};
pub use buffer::Buffer;
pub use communicator::{Call, Collective, Communicator, Watch, has_given_up};
pub use device::{Device, DeviceKind, Facts, Memory, Selector};
pub use element::{DType, Element, ElementType};
pub use emulated::Mode;
pub use error::Error;
pub use group::{Group, GroupEnd, Place, RankFailure};
pub use image::Image;
pub use instance::{Instance, Template};
pub use lab_emulator as emulator;
pub use lab_emulator::BlockSize;
pub use lab_kernel_build::Build;
pub use launch::{Bound, Kernel, Launch, Usage};
pub use object::{OBJECTS_DIRECTORY, Object, Told, compile_missing};
pub use peak::Arithmetic;
pub use promise::LaunchPromise;
pub use raw::{Fill, RawBuffer};
pub use record::Record;
pub use replaced::OBJECTS_VARIABLE;
pub use stream::{Graph, Mark, Stream};
pub use tensor_map::{Swizzle, TensorMap};

/// What a crate knows of one `.cu` file: its text for NVRTC, and the objects that the host's compiler makes of it for the emulator.
#[derive(Clone, Copy, Debug)]
pub struct KernelFile {
    /// The crate that embeds it.
    pub crate_name: &'static str,
    /// The file's name without its ending.
    pub name: &'static str,
    /// Its path within the stage.
    pub file: &'static str,
    /// Its path from the workspace's root.
    pub place: &'static str,
    /// The text.
    pub source: &'static str,
    /// The device headers (`lab/*.cuh`, and those beside it): name and text.
    pub headers: &'static [(&'static str, &'static str)],
    /// The C++ expressions that name the instantiations.
    pub instantiations: &'static [&'static str],
    /// What they are instantiations of.
    pub templates: &'static [Template],
    /// Its `__device__` and `__constant__` variables that the host may set.
    pub globals: &'static [&'static str],
    /// The first GPU architecture that has its instructions (`sm_80`); empty where any has.
    pub least_arch: &'static str,
    /// Most bytes that a thread stores for lack of registers on an sm_90a GPU.
    pub spills: u32,
    /// The emulator's shared object.
    pub plain: Object,
    /// The same, compiled for the emulator's checks.
    pub checked: Object,
    /// The directory of the build in which objects are kept that are compiled when they are first used; empty where
    /// all are embedded.
    pub kept_in: &'static str,
}

/// A kernel file that is embedded in this program, as `lab-kernel-build` writes it: its fields are read as those of its
/// [`KernelFile`].
///
/// What it holds is loaded and run as this program's own code is. So only an `unsafe` call makes one, and nothing changes it after.
#[derive(Debug)]
pub struct KernelSource(KernelFile);

impl KernelSource {
    /// The file, to be loaded and run.
    ///
    /// # Safety
    /// The objects are those that `lab-kernel-build` makes of this text, with these instantiations and variables, or are made so when
    /// they are first used. To load them and to run their host code does no harm.
    ///
    /// ```compile_fail,E0133
    /// # fn load(file: lab_device::KernelFile) {
    /// // The bytes of its objects may be anybody's: what they do when they are loaded, nobody knows.
    /// let source = lab_device::KernelSource::new(file);
    /// # }
    /// ```
    pub const unsafe fn new(file: KernelFile) -> Self {
        Self(file)
    }
}

impl Deref for KernelSource {
    type Target = KernelFile;

    fn deref(&self) -> &KernelFile {
        &self.0
    }
}

impl KernelSource {
    /// Whether GPUs of this architecture (`sm_90a`) have the instructions that it uses. One with a
    /// letter behind it (`sm_90a`) is needed as it is: neither `sm_90` nor `sm_100a` has all that it
    /// has. Of a name that is none, the compiler tells.
    pub fn runs_on(&self, arch: &str) -> bool {
        runs_on(self.least_arch, arch)
    }
}

fn runs_on(least: &str, arch: &str) -> bool {
    let number = |arch: &str| -> Option<(u32, bool)> {
        let digits = arch.strip_prefix("sm_")?;
        let plain = digits.trim_end_matches(|c: char| c.is_ascii_lowercase());
        Some((plain.parse().ok()?, plain.len() < digits.len()))
    };
    match (number(least), number(arch)) {
        (Some((_, true)), Some(_)) => least == arch,
        (Some((least, false)), Some((arch, _))) => arch >= least,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::runs_on;

    #[test]
    fn an_architecture_with_a_letter_is_needed_as_it_is() {
        for (least, arch, runs) in [
            ("", "sm_75", true),
            ("sm_80", "sm_75", false),
            ("sm_80", "sm_90a", true),
            ("sm_90a", "sm_90a", true),
            ("sm_90a", "sm_90", false),
            ("sm_90a", "sm_100a", false),
            ("sm_90", "sm_100a", true),
        ] {
            assert_eq!(runs_on(least, arch), runs, "{least} on {arch}");
        }
    }
}
