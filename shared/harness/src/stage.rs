//! A stage: versions of an idea, their kernels, and what must hold of them.

use lab_device::{Device, Kernel, KernelSource};

use crate::suite::{Check, VersionCheck};
use crate::{Error, Peer, Version};

/// What [`Stage::load_all`] has loaded.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The kernels.
    pub kernels: Vec<Kernel>,
    /// Files that this device is too old for.
    pub skipped: Vec<&'static KernelSource>,
}

/// A stage: its versions and their kernels.
pub struct Stage {
    /// The crate's name.
    pub name: &'static str,
    /// What it teaches, in a line.
    pub teaches: &'static str,
    /// Its versions, in the order of the story.
    pub versions: &'static [&'static dyn Version],
    /// Whether its versions go by chunks, where their families count the operations of all pairs of positions: these compute only
    /// those within a chunk, so that TFLOP/s by what is counted say nothing.
    pub is_chunkwise: bool,
    /// Its kernel files.
    pub kernels: &'static [&'static KernelSource],
    /// What must hold of each version beside its error bounds and the checks of its family.
    pub version_checks: &'static [VersionCheck],
    /// What else must hold, beside [`suite::KERNELS_LOAD`](crate::suite::KERNELS_LOAD).
    pub checks: &'static [Check],
    /// What a user would take in place of these kernels.
    pub peers: &'static [&'static dyn Peer],
}

impl Stage {
    /// What a stage need not have: `Stage { name: …, ..Stage::EMPTY }`.
    pub const EMPTY: Self = Self {
        name: "",
        teaches: "",
        versions: &[],
        is_chunkwise: false,
        kernels: &[],
        version_checks: &[],
        checks: &[],
        peers: &[],
    };

    /// What must hold of a version beside its error bounds: the checks of its family, and the stage's.
    pub fn checks_of(&self, version: &dyn Version) -> Vec<VersionCheck> {
        let family = version.info().family.checks().iter();
        let all = family.chain(self.version_checks).copied();
        all.filter(|check| check.concerns(version)).collect()
    }

    /// Every instantiation of a kernel file on `device`, compiled: finds what does not load. Files
    /// that need a newer GPU are left out and named.
    ///
    /// # Errors
    /// The first that does not load.
    pub fn load_all(&self, device: &Device) -> Result<Loaded, Error> {
        let arch = &device.facts().arch;
        device.compile_missing(self.kernels)?;
        let mut loaded = Loaded::default();
        for source in self.kernels {
            if !source.runs_on(arch) {
                loaded.skipped.push(source);
                continue;
            }
            for name in source.instantiations {
                loaded.kernels.push(device.kernel(source, name)?);
            }
        }
        Ok(loaded)
    }

    /// The peers of a family.
    pub fn peers_of(&self, family: &str) -> impl Iterator<Item = &'static dyn Peer> {
        self.peers.iter().copied().filter(move |p| p.info().family == family)
    }
}
