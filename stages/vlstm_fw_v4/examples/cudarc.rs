//! The forward pass on memory and a stream of a program that uses cudarc: no tensor is copied, and the host does not
//! wait.
//!
//! ```sh
//! cargo run -p vlstm_fw_v4 --example cudarc
//! ```
//!
//! It wants a GPU of Hopper's, and says so where there is none.

use std::collections::BTreeMap;

use cudarc::driver::{CudaContext, CudaSlice, DevicePtrMut};
use lab_device::dlpack::DLTensor;
use lab_device::{DType, Device, ElementType, Selector, Stream};
use lab_families::qkv;
use lab_harness::plan::{SlotFacts, SlotKind};
use lab_harness::{Options, Problem, Request, Tensor, Version};

const SIZES: [usize; 5] = [2, 8, 512, 128, 256]; // B, NH, S, DHQK, DHHV

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = match Device::open(Selector::Cuda(0)) {
        Err(error) if error.is_unavailable() => {
            println!("nothing to run on: {error}");
            return Ok(());
        }
        opened => opened?,
    };
    let (forward, options) = (&vlstm_fw_v4::ROLES, Options::default());
    let tensors = forward.inputs(&Problem::new(qkv::sizes(SIZES), DType::BF16));

    // ANCHOR: own
    // The caller's: a context, a stream, and what a layer before has left there.
    let stream = CudaContext::new(0)?.new_stream()?;
    let mut memory: BTreeMap<String, CudaSlice<u8>> = BTreeMap::new();
    for (name, tensor) in &tensors {
        memory.insert(name.clone(), stream.clone_htod(&tensor.bytes)?);
    }
    // ANCHOR_END: own

    // ANCHOR: bind
    // From shapes alone: which tensors there are besides, and how large they are.
    let plan = forward.plan(&device, &Request::of(forward.info(), &tensors, &options)?)?;
    let is_own = |slot: &&SlotFacts| slot.kind != SlotKind::Scratch;
    let slots: Vec<SlotFacts> = plan.slots().iter().filter(is_own).cloned().collect();
    for output in slots.iter().filter(|slot| slot.kind == SlotKind::Output) {
        memory.insert(output.name.clone(), stream.alloc_zeros(output.bytes())?);
    }
    let mut binder = plan.bind();
    for slot in &slots {
        let ElementType::Scalar(dtype) = slot.element else { continue };
        let shape: Vec<i64> = slot.shape.iter().map(|&size| size as i64).collect();
        let own = memory.get_mut(&slot.name).ok_or("a tensor without memory")?;
        let (address, _in_use) = own.device_ptr_mut(&stream);
        let tensor = DLTensor::contiguous(address as *mut _, &device, dtype, &shape);
        // SAFETY: the memory outlives the binding, and this stream alone uses it meanwhile.
        binder = unsafe { binder.foreign(&slot.name, &tensor)? };
    }
    // SAFETY: cudarc's context is the device's primary one, and its stream outlives the binding.
    let on = unsafe { Stream::foreign(&device, stream.cu_stream().cast()) };
    let mut binding = binder.on(on).finish()?;
    for _step in 0..3 {
        binding.run()?; // behind what the stream has to do, and before what comes next
    }
    // ANCHOR_END: bind
    stream.synchronize()?;
    drop(binding);

    let shape = slots.iter().find(|slot| slot.name == "h").ok_or("no output h")?.shape.clone();
    let h = Tensor { dtype: DType::BF16, shape, bytes: stream.clone_dtoh(&memory["h"])? };
    let reference = forward.reference(&tensors, &options);
    let (_, expected) =
        reference.iter().find(|(name, _)| *name == "h").ok_or("no reference of h")?;
    let differences =
        h.values().into_iter().zip(expected).map(|(got, expected)| (got - expected).abs());
    let (worst, largest) =
        (differences.fold(0.0, f64::max), expected.iter().fold(0.0, |m: f64, x| m.max(x.abs())));
    println!("{}: h {:?} differs by {worst:.1e} at most, of {largest:.2}", device.name(), h.shape);
    if worst < 0.02 * largest { Ok(()) } else { Err("h is not what the equations say".into()) }
}
