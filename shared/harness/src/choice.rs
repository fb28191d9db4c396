//! Which of several versions a device runs.

use lab_device::DType;

use crate::Version;

/// A version, chosen for a type and an architecture among those of a family.
#[derive(Clone, Copy)]
pub struct Choice {
    /// The last of them that takes the type and runs on the architecture.
    pub version: &'static dyn Version,
    /// A later one that takes the type, and what it needs in place of this architecture.
    pub better: Option<(&'static dyn Version, &'static str)>,
}

impl Choice {
    /// Of versions in the order of their story, on an architecture as NVRTC names it (`sm_90a`; empty for the
    /// emulator, which runs all). `None` where none takes the type. Where none of them runs there, the last that takes
    /// the type: whoever loads its kernels is told what they need.
    pub fn of(versions: &[&'static dyn Version], dtype: DType, arch: &str) -> Option<Self> {
        let needs = |v: &&'static dyn Version| {
            v.sources().into_iter().find(|source| !source.runs_on(arch)).map(|s| s.least_arch)
        };
        let takes = || versions.iter().copied().filter(|v| v.info().dtypes.contains(&dtype)).rev();
        let last = takes().next()?;
        let version = takes().find(|v| needs(v).is_none()).unwrap_or(last);
        let better =
            needs(&last).filter(|_| !std::ptr::addr_eq(last, version)).map(|needs| (last, needs));
        Some(Self { version, better })
    }
}
