//! In which order an operation tries the versions of a family.

use lab_device::DeviceKind;

/// The place of a version among those of its family, on each kind of device: of the versions that take a call, an operation runs
/// the one with the least. Places are told apart, and leave room between them for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preference {
    gpu: u32,
    emulator: u32,
}

impl Preference {
    /// This place on a GPU, by the records in `benches/history`: the fastest first, then what takes more sizes and types or runs on
    /// older GPUs. The same on the emulator.
    pub const fn new(gpu: u32) -> Self {
        Self { gpu, emulator: gpu }
    }

    /// Another place on the emulator: that of what it takes the least time for, at heads of 32 to 256 columns and some hundred
    /// positions.
    pub const fn on_emulator(self, emulator: u32) -> Self {
        Self { emulator, ..self }
    }

    /// The place on devices of this kind.
    pub const fn on(self, kind: DeviceKind) -> u32 {
        match kind {
            DeviceKind::Cuda => self.gpu,
            DeviceKind::Emulator => self.emulator,
        }
    }
}
