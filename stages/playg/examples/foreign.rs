//! A kernel of the lab on tensors that somebody else owns: planned from shapes, bound to memory that
//! stands in a DLPack descriptor, as PyTorch and others hand it out, run twice.
//!
//! ```sh
//! cargo run -p playg --example foreign
//! ```

use lab_device::dlpack::DLTensor;
use lab_device::{DType, Device, DeviceKind, RawBuffer, Selector};
use lab_harness::{Options, Request, Shape, Version};

const SHAPE: [i64; 2] = [2, 3];

/// Memory that a framework would own: on a GPU there, for the emulator in this process.
struct Owner {
    host: [f32; 6],
    gpu: Option<RawBuffer>,
}

impl Owner {
    fn new(device: &Device, host: [f32; 6]) -> Result<Self, lab_device::Error> {
        if device.kind() == DeviceKind::Emulator {
            return Ok(Self { host, gpu: None });
        }
        let gpu = device.raw_buffer(size_of_val(&host))?;
        // SAFETY: nobody uses it yet.
        unsafe { gpu.write(0, bytemuck::cast_slice(&host))? };
        Ok(Self { host, gpu: Some(gpu) })
    }

    fn tensor(&mut self, device: &Device) -> DLTensor {
        let host = self.host.as_mut_ptr().cast();
        let data = self.gpu.as_ref().map_or(host, |gpu| gpu.address() as *mut _);
        DLTensor::contiguous(data, device, DType::F32, &SHAPE)
    }

    fn values(&self) -> Result<[f32; 6], lab_device::Error> {
        let mut values = self.host;
        if let Some(gpu) = &self.gpu {
            gpu.read(0, bytemuck::cast_slice_mut(&mut values))?;
        }
        Ok(values)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open(Selector::from_env()?)?;
    let mut x = Owner::new(&device, [1.0, 2.0, 3.0, 0.0, 0.0, 1e9])?;
    let mut out = Owner::new(&device, [0.0; 6])?;

    // ANCHOR: plan
    let (softmax, options) = (&playg::SOFTMAX, Options::default());
    let shape = Shape { dtype: DType::F32, sizes: vec![2, 3] };
    let request = Request::new(softmax.info(), [("x".to_owned(), shape)].into(), &options)?;
    let plan = softmax.plan(&device, &request)?;
    println!(
        "{}: {} launches, {} bytes of scratch",
        device.name(),
        plan.len(),
        plan.scratch_bytes()
    );

    // SAFETY: x and out outlive the binding, and nobody else uses them during a run.
    let binder = unsafe {
        plan.bind().foreign("x", &x.tensor(&device))?.foreign("out", &out.tensor(&device))?
    };
    let mut binding = binder.finish()?;
    binding.run()?;
    binding.run()?;
    // ANCHOR_END: plan
    device.synchronize()?;
    drop(binding);
    println!("{:.4?}", out.values()?);
    Ok(())
}
