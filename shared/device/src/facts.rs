//! What the driver says about a GPU.

use cudarc::driver::sys::CUdevice_attribute::{self as Attribute, *};
use cudarc::driver::{result, sys};

use lab_emulator::MAX_CLUSTER;

use crate::error::driver;
use crate::{DeviceKind, Error, Facts};

/// Of a GPU.
pub(crate) fn of(device: sys::CUdevice) -> Result<Facts, Error> {
    let get = |attribute| -> Result<u32, Error> {
        // SAFETY: the device was given by the driver.
        let value = unsafe { result::device::get_attribute(device, attribute) }
            .map_err(driver("cuDeviceGetAttribute"))?;
        Ok(u32::try_from(value).unwrap_or(0))
    };
    // Left out of some drivers: not worth failing for.
    let maybe = |attribute| get(attribute).unwrap_or(0);
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
        max_cluster: if maybe(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH) != 0 { MAX_CLUSTER } else { 1 },
        ecc: maybe(CU_DEVICE_ATTRIBUTE_ECC_ENABLED) != 0,
        further: further_facts(|attribute| get(attribute).ok())
            .into_iter()
            .chain(peers(device))
            .collect(),
    })
}

/// The driver's own version where its file tells it, with the CUDA version it speaks.
fn driver_version(cuda: i32) -> String {
    let speaks = format!("CUDA {}.{}", cuda / 1000, cuda % 1000 / 10);
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let number = text.split_whitespace().find(|w| w.split('.').count() == 3);
    number.map_or(speaks.clone(), |n| format!("{n} ({speaks})"))
}

/// How the numbers of one fact are said.
enum Say {
    /// As they are.
    Number,
    /// 0 is no.
    YesNo,
    /// Of memory.
    Bytes,
    /// What processes may use the GPU.
    ComputeMode,
}

/// What else NVIDIA's own list (`deviceQuery`) says. Several numbers are the sizes of one thing, and the number of its layers.
const FURTHER: &[(&str, &[Attribute], Say)] = &[
    (
        "PCI domain, bus, device",
        &[
            CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
            CU_DEVICE_ATTRIBUTE_PCI_BUS_ID,
            CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID,
        ],
        Say::Number,
    ),
    ("compute mode", &[CU_DEVICE_ATTRIBUTE_COMPUTE_MODE], Say::ComputeMode),
    ("copy engines", &[CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT], Say::Number),
    ("kernels at once", &[CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS], Say::YesNo),
    ("kernels have a time limit", &[CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT], Say::YesNo),
    ("kernels can be suspended", &[CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED], Say::YesNo),
    ("shares the host's memory", &[CU_DEVICE_ATTRIBUTE_INTEGRATED], Say::YesNo),
    ("maps the host's memory", &[CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY], Say::YesNo),
    ("one address space with the host", &[CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING], Say::YesNo),
    ("managed memory", &[CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY], Say::YesNo),
    (
        "managed memory, used by both at once",
        &[CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS],
        Say::YesNo,
    ),
    (
        "shared memory per block, if it asks for no more",
        &[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK],
        Say::Bytes,
    ),
    ("constant memory", &[CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY], Say::Bytes),
    ("pitch of a copy, at most", &[CU_DEVICE_ATTRIBUTE_MAX_PITCH], Say::Bytes),
    ("alignment of textures", &[CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT], Say::Bytes),
    ("alignment of surfaces", &[CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT], Say::Bytes),
    ("1-D texture, at most", &[CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH], Say::Number),
    (
        "2-D texture, at most",
        &[
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT,
        ],
        Say::Number,
    ),
    (
        "3-D texture, at most",
        &[
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH,
        ],
        Say::Number,
    ),
    (
        "layers of 1-D textures, at most",
        &[
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS,
        ],
        Say::Number,
    ),
    (
        "layers of 2-D textures, at most",
        &[
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS,
        ],
        Say::Number,
    ),
];

impl Say {
    fn words(&self, numbers: &[u32]) -> String {
        let first = numbers.first().copied().unwrap_or(0);
        match self {
            Self::Number => numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(" × "),
            Self::YesNo => if first == 0 { "no" } else { "yes" }.to_owned(),
            Self::Bytes => format!("{first} B"),
            Self::ComputeMode => match first {
                0 => "any process".to_owned(),
                2 => "no process".to_owned(),
                3 => "one process at a time".to_owned(),
                other => other.to_string(),
            },
        }
    }
}

/// Those of [`FURTHER`] that the driver knows.
fn further_facts(get: impl Fn(Attribute) -> Option<u32>) -> Vec<(&'static str, String)> {
    let known = |(name, attributes, say): &(&'static str, &[Attribute], Say)| {
        let numbers: Option<Vec<u32>> =
            attributes.iter().map(|&attribute| get(attribute)).collect();
        Some((*name, say.words(&numbers?)))
    };
    FURTHER.iter().filter_map(known).collect()
}

/// The other GPUs whose memory this one can read; nothing where it is the only one.
fn peers(device: sys::CUdevice) -> Option<(&'static str, String)> {
    let count = result::device::get_count().ok().filter(|count| *count > 1)?;
    let all = (0..count).filter_map(|n| Some((n, result::device::get(n).ok()?)));
    let is_read = |other: sys::CUdevice| {
        let mut yes = 0;
        // SAFETY: both devices were given by the driver; it writes one integer.
        let said = unsafe { sys::cuDeviceCanAccessPeer(&mut yes, device, other) };
        said == sys::CUresult::CUDA_SUCCESS && yes != 0
    };
    let others = all.filter(|(_, other)| *other != device && is_read(*other));
    let numbers: Vec<String> = others.map(|(n, _)| n.to_string()).collect();
    let value = if numbers.is_empty() { "none".to_owned() } else { numbers.join(", ") };
    Some(("reads the memory of GPUs", value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_driver_does_not_know_is_left_out() {
        let said = further_facts(|attribute| match attribute {
            CU_DEVICE_ATTRIBUTE_COMPUTE_MODE => Some(3),
            CU_DEVICE_ATTRIBUTE_MAX_PITCH => Some(2_147_483_647),
            CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY => Some(1),
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH => Some(131_072),
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH => Some(32_768),
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS => Some(2_048),
            _ => None,
        });
        let expected = [
            ("compute mode", "one process at a time"),
            ("managed memory", "yes"),
            ("pitch of a copy, at most", "2147483647 B"),
            ("layers of 1-D textures, at most", "32768 × 2048"),
        ];
        assert_eq!(said, expected.map(|(name, value)| (name, value.to_owned())));
    }
}
