//! Plans by shape, and their launches on candle's memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::backend::{BackendDevice as _, BackendStorage as _};
use candle_core::cpu_backend::CpuDevice;
use candle_core::{DType, Device, DeviceLocation, Layout, Result, Shape, Storage, Tensor, bail};
use lab_calls::{Planned, Rooms};
use lab_harness::plan::SlotKind;

use crate::operation::Output;
use crate::refuse;

/// Pieces of memory begin at multiples of this many bytes.
const ALIGNMENT: usize = 256;

/// The largest access of a kernel in bytes: where a tensor begins is a multiple of it.
const PACK: usize = 16;

/// An error of the lab's as one of candle's.
pub(crate) fn candle_error(error: lab_harness::Error) -> candle_core::Error {
    candle_core::Error::wrap(error)
}

/// The type as the lab has it.
pub(crate) fn lab_type(dtype: DType) -> Option<lab_device::DType> {
    Some(match dtype {
        DType::F32 => lab_device::DType::F32,
        DType::F16 => lab_device::DType::F16,
        DType::BF16 => lab_device::DType::BF16,
        DType::F64 => lab_device::DType::F64,
        // Where packed sequences begin.
        DType::I32 => lab_device::DType::I32,
        _ => return None,
    })
}

fn candle_type(dtype: lab_device::DType) -> Result<DType> {
    Ok(match dtype {
        lab_device::DType::F32 => DType::F32,
        lab_device::DType::F16 => DType::F16,
        lab_device::DType::BF16 => DType::BF16,
        lab_device::DType::F64 => DType::F64,
        other => bail!("expected a tensor of f32, f16, bf16 or f64, got one of {other}"),
    })
}

/// The same tensor as kernels take it: row-major, without gaps, and aligned. A copy where it is not.
pub(crate) fn packed(tensor: &Tensor) -> Result<Tensor> {
    let tensor = tensor.contiguous()?;
    let start = tensor.layout().start_offset() * tensor.dtype().size_in_bytes();
    if start.is_multiple_of(PACK) { Ok(tensor) } else { tensor.force_contiguous() }
}

/// What a plan depends on: what is computed, the device, the tensors, and the options.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) what: &'static str,
    pub(crate) device: String,
    pub(crate) tensors: Vec<(&'static str, DType, Vec<usize>)>,
    pub(crate) options: Vec<String>,
}

impl Key {
    /// Of tensors that lie on one device.
    pub(crate) fn new(
        what: &'static str,
        device: &Device,
        tensors: Vec<(&'static str, DType, Vec<usize>)>,
        options: Vec<String>,
    ) -> Result<Self> {
        let device = match device.location() {
            DeviceLocation::Cpu => "emulator".to_owned(),
            DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
            DeviceLocation::Metal { .. } => {
                return Err(refuse(what, "tensors on the CPU or on a CUDA device", "Metal"));
            }
        };
        Ok(Self { what, device, tensors, options })
    }

    /// The device as the lab has it.
    pub(crate) fn lab_device(&self) -> Result<lab_device::Device> {
        lab_calls::device(&self.device).map_err(candle_error)
    }

    /// The shapes as the lab has them.
    pub(crate) fn shapes(&self) -> Result<lab_harness::Shapes> {
        let shape = |(name, dtype, sizes): &(&str, DType, Vec<usize>)| match lab_type(*dtype) {
            Some(dtype) => {
                Ok(((*name).to_owned(), lab_harness::Shape { dtype, sizes: sizes.clone() }))
            }
            None => Err(refuse(name, "F32, F16, BF16 or F64", format!("{dtype:?}"))),
        };
        self.tensors.iter().map(shape).collect()
    }
}

/// Plans that were made: none, one, or two of one call.
pub(crate) type Plans = Arc<Vec<Planned>>;

/// How many calls' plans are kept. A program has a few shapes; one whose sequences all differ plans anew.
const KEPT: usize = 1024;

/// The plans of a call, made once for all calls like it.
pub(crate) fn plans(key: &Key, make: impl FnOnce() -> Result<Vec<Planned>>) -> Result<Plans> {
    static MADE: Mutex<Option<HashMap<Key, Plans>>> = Mutex::new(None);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let made = made.get_or_insert_default();
    if let Some(plans) = made.get(key) {
        return Ok(Arc::clone(plans));
    }
    let plans = Arc::new(make()?);
    if made.len() == KEPT {
        made.clear();
    }
    made.insert(key.clone(), Arc::clone(&plans));
    Ok(plans)
}

/// What a forward pass leaves to its backward pass: bytes, more than it needs, for they begin at a multiple of [`ALIGNMENT`].
pub(crate) struct Left(Mutex<Storage>);

impl Left {
    pub(crate) fn new(planned: &Planned, device: &Device) -> Result<Self> {
        let shape = Shape::from(planned.left_bytes() + ALIGNMENT);
        Ok(Self(Mutex::new(storage(device, &shape, DType::U8)?)))
    }
}

/// Memory for a tensor whose elements a kernel writes.
fn storage(device: &Device, shape: &Shape, dtype: DType) -> Result<Storage> {
    Ok(match device {
        Device::Cpu => Storage::Cpu(CpuDevice.zeros_impl(shape, dtype)?),
        // SAFETY: nobody reads what the kernels have not written, in the order of the stream.
        Device::Cuda(device) => Storage::Cuda(unsafe { device.alloc_uninit(shape, dtype)? }),
        Device::Metal(_) => bail!("expected the CPU or a CUDA device, got Metal"),
    })
}

/// All of a tensor, from the beginning of other memory on.
fn copy(from: &Storage, to: &mut Storage, layout: &Layout) -> Result<()> {
    match (from, to) {
        (Storage::Cpu(from), Storage::Cpu(to)) => from.copy_strided_src(to, 0, layout),
        (Storage::Cuda(from), Storage::Cuda(to)) => from.copy_strided_src(to, 0, layout),
        _ => bail!("expected both tensors on one device"),
    }
}

/// Runs a plan on these tensors, by the names of the kernels: packed, and of the shapes and types that it was made for. Returns
/// what it writes, by name; of a state that it updates a copy. On CUDA it returns before the launches have ended.
pub(crate) fn run(
    planned: &Planned,
    inputs: &[(&'static str, Tensor)],
    left: Option<&Left>,
    device: &Device,
) -> Result<HashMap<String, Output>> {
    let mut made = Vec::new();
    // Nobody writes a tensor while the launches are made of it.
    let locked: Vec<_> = inputs.iter().map(|(_, tensor)| tensor.storage_and_layout()).collect();
    let given = |name: &str| match inputs.iter().position(|(own, _)| *own == name) {
        Some(n) => Ok(&locked[n]),
        None => bail!("'{name}': expected a tensor, got none"),
    };
    let is_made = |kind: SlotKind| matches!(kind, SlotKind::Output | SlotKind::State);
    for facts in planned.slots().filter(|facts| is_made(facts.kind)) {
        let shape = Shape::from(facts.shape.as_slice());
        let dtype = facts.element.dtype().map(candle_type).transpose()?;
        let Some(dtype) = dtype else { bail!("'{}': expected a tensor of numbers", facts.name) };
        let mut storage = storage(device, &shape, dtype)?;
        if facts.kind == SlotKind::State {
            let (state, layout) = given(&facts.name)?;
            copy(state, &mut storage, layout)?;
        }
        made.push((facts.name.clone(), Output { storage, shape, is_differentiable: true }));
    }
    let mut left = left.map(|left| left.0.lock().unwrap_or_else(PoisonError::into_inner));
    let mut tensors = Vec::new();
    let mut outputs = made.iter_mut();
    for facts in planned.slots() {
        tensors.push(match facts.kind {
            SlotKind::Output | SlotKind::State => {
                let (_, output) = outputs.next().expect("one for each slot");
                Memory::Written(&mut output.storage)
            }
            _ => {
                let (storage, layout) = given(&facts.name)?;
                Memory::Read(storage, layout)
            }
        });
    }
    if let Some(left) = &mut left {
        tensors.push(Memory::Written(left));
    }
    match device {
        Device::Cpu => cpu::run(planned, tensors)?,
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => cuda::run(device, planned, tensors)?,
        #[cfg(not(feature = "cuda"))]
        Device::Cuda(_) => return Err(candle_core::Error::NotCompiledWithCudaSupport),
        Device::Metal(_) => bail!("expected the CPU or a CUDA device, got Metal"),
    }
    Ok(made.into_iter().collect())
}

/// The memory of a tensor: of each that a plan asks for in its order, and of what is left, if anything is.
enum Memory<'a> {
    Read(&'a Storage, &'a Layout),
    Written(&'a mut Storage),
}

/// Makes the launches of a plan on tensors at these addresses, and, behind them, on what is left.
///
/// # Safety
/// As [`Planned::run`].
unsafe fn launch(planned: &Planned, addresses: &[u64], scratch: u64, stream: u64) -> Result<()> {
    let (tensors, left) = addresses.split_at(planned.slots().count().min(addresses.len()));
    let begin = |start: u64| start.next_multiple_of(ALIGNMENT as u64);
    let rooms = Rooms { left: left.first().copied().map_or(0, begin), scratch: begin(scratch) };
    // SAFETY: the caller's promise.
    unsafe { planned.run(tensors, rooms, stream) }.map_err(candle_error)
}

mod cpu {
    //! Launches on the emulator.

    use candle_core::backend::BackendStorage as _;
    use candle_core::{CpuStorage, Result, Storage, bail};
    use lab_calls::Planned;

    use super::{Memory, launch};

    /// As an integer, of a tensor that the emulator reads or writes through it.
    fn address(storage: &CpuStorage) -> Result<usize> {
        Ok(match storage {
            CpuStorage::U32(values) => values.as_ptr().expose_provenance(),
            CpuStorage::I32(values) => values.as_ptr().expose_provenance(),
            CpuStorage::F32(values) => values.as_ptr().expose_provenance(),
            CpuStorage::F16(values) => values.as_ptr().expose_provenance(),
            CpuStorage::BF16(values) => values.as_ptr().expose_provenance(),
            CpuStorage::F64(values) => values.as_ptr().expose_provenance(),
            _ => bail!("expected a tensor of numbers, got {:?}", storage.dtype()),
        })
    }

    fn address_mut(storage: &mut CpuStorage) -> Result<usize> {
        Ok(match storage {
            CpuStorage::U8(values) => values.as_mut_ptr().expose_provenance(),
            CpuStorage::F32(values) => values.as_mut_ptr().expose_provenance(),
            CpuStorage::F16(values) => values.as_mut_ptr().expose_provenance(),
            CpuStorage::BF16(values) => values.as_mut_ptr().expose_provenance(),
            CpuStorage::F64(values) => values.as_mut_ptr().expose_provenance(),
            _ => bail!("expected a tensor of numbers, got {:?}", storage.dtype()),
        })
    }

    /// Runs a plan; the kernels have ended when it returns.
    pub(super) fn run(planned: &Planned, tensors: Vec<Memory<'_>>) -> Result<()> {
        let address = |memory| match memory {
            Memory::Read(Storage::Cpu(storage), layout) => {
                let start = layout.start_offset() * storage.dtype().size_in_bytes();
                Ok((address(storage)? + start) as u64)
            }
            Memory::Written(Storage::Cpu(storage)) => Ok(address_mut(storage)? as u64),
            _ => bail!("expected all tensors on the CPU, got one elsewhere"),
        };
        let addresses = tensors.into_iter().map(address).collect::<Result<Vec<u64>>>()?;
        // SAFETY: the tensors are of the plan's shapes and types, and stay until this returns; what is written nobody else has.
        unsafe { launch(planned, &addresses, 0, 0) }
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    //! Launches in candle's stream.

    use candle_core::cuda::cudarc::driver::{
        CudaSlice, CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop,
    };
    use candle_core::cuda::{CudaStorageSlice, WrapErr as _};
    use candle_core::{CudaDevice, Result, Storage, bail};
    use lab_calls::Planned;

    use super::{ALIGNMENT, Memory, launch};

    /// An address, and what tells cudarc when it is dropped that the stream uses the memory until then.
    type Lent<'a> = (u64, SyncOnDrop<'a>);

    fn at<'a, T>(slice: &'a CudaSlice<T>, start: usize, stream: &'a CudaStream) -> Lent<'a> {
        let (address, used) = slice.device_ptr(stream);
        (address + (start * size_of::<T>()) as u64, used)
    }

    fn lent<'a>(memory: Memory<'a>, stream: &'a CudaStream) -> Result<Lent<'a>> {
        Ok(match memory {
            Memory::Read(Storage::Cuda(storage), layout) => {
                let start = layout.start_offset();
                match &storage.slice {
                    CudaStorageSlice::U32(slice) => at(slice, start, stream),
                    CudaStorageSlice::I32(slice) => at(slice, start, stream),
                    CudaStorageSlice::F32(slice) => at(slice, start, stream),
                    CudaStorageSlice::F16(slice) => at(slice, start, stream),
                    CudaStorageSlice::BF16(slice) => at(slice, start, stream),
                    CudaStorageSlice::F64(slice) => at(slice, start, stream),
                    _ => bail!("expected a tensor of numbers"),
                }
            }
            Memory::Written(Storage::Cuda(storage)) => match &mut storage.slice {
                CudaStorageSlice::U8(slice) => slice.device_ptr_mut(stream),
                CudaStorageSlice::F32(slice) => slice.device_ptr_mut(stream),
                CudaStorageSlice::F16(slice) => slice.device_ptr_mut(stream),
                CudaStorageSlice::BF16(slice) => slice.device_ptr_mut(stream),
                CudaStorageSlice::F64(slice) => slice.device_ptr_mut(stream),
                _ => bail!("expected a tensor of numbers"),
            },
            _ => bail!("expected all tensors on a CUDA device, got one elsewhere"),
        })
    }

    /// Makes the launches of a plan in the device's stream, and does not wait for them.
    pub(super) fn run(
        device: &CudaDevice,
        planned: &Planned,
        tensors: Vec<Memory<'_>>,
    ) -> Result<()> {
        let stream = device.cuda_stream();
        // The lab and cudarc share the device's primary context.
        stream.context().bind_to_thread().w()?;
        // SAFETY: kernels read nothing of it that they have not written.
        let mut scratch = unsafe { device.alloc::<u8>(planned.scratch_bytes() + ALIGNMENT)? };
        let lent = |memory| lent(memory, &stream);
        let all = tensors.into_iter().map(lent).collect::<Result<Vec<Lent<'_>>>>()?;
        let addresses: Vec<u64> = all.iter().map(|(address, _)| *address).collect();
        let (room, _used) = scratch.device_ptr_mut(&stream);
        // SAFETY: the tensors are of the plan's shapes and types, and what is written nobody else has; who frees the memory, the
        // scratch below and tensors later, does so in the stream, behind the launches.
        unsafe { launch(planned, &addresses, room, stream.cu_stream().expose_provenance() as u64) }
    }
}
