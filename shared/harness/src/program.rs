//! A prepared run: buffers and the launches over them, in order.
//!
//! ```no_run
//! # use lab_harness::program::{Program, scalar};
//! # fn demo(device: &lab_device::Device, kernel: lab_device::Kernel, x: &lab_harness::Tensor) -> Result<(), lab_harness::Error> {
//! let mut program = Program::new(device);
//! let x = program.input(x)?;
//! let out = program.output("out", lab_device::DType::F32, &[100])?;
//! program.launch(kernel, lab_device::Launch::new(1, 128), [x.read(), out.write(), scalar(100i32)]);
//! # Ok(())
//! # }
//! ```

use half::{bf16, f16};
use lab_device::{Arg, Buffer, DType, Device, Kernel, Launch};

use crate::{Error, Prepared, Tensor, Tensors};

/// A buffer whose element type is known at run time.
#[derive(Debug)]
#[allow(missing_docs)] // one a type
pub enum Storage {
    F16(Buffer<f16>),
    BF16(Buffer<bf16>),
    F32(Buffer<f32>),
    F64(Buffer<f64>),
    U8(Buffer<u8>),
    I32(Buffer<i32>),
    U32(Buffer<u32>),
    I64(Buffer<i64>),
    U64(Buffer<u64>),
}

/// The same expression on the buffer, whatever its type.
macro_rules! each {
    ($storage:expr, $b:ident => $body:expr) => {
        match $storage {
            Storage::F16($b) => $body,
            Storage::BF16($b) => $body,
            Storage::F32($b) => $body,
            Storage::F64($b) => $body,
            Storage::U8($b) => $body,
            Storage::I32($b) => $body,
            Storage::U32($b) => $body,
            Storage::I64($b) => $body,
            Storage::U64($b) => $body,
        }
    };
}

impl Storage {
    /// A poisoned buffer of `len` elements.
    pub fn new(device: &Device, dtype: DType, len: usize) -> Result<Self, Error> {
        Ok(match dtype {
            DType::F16 => Self::F16(device.buffer(len)?),
            DType::BF16 => Self::BF16(device.buffer(len)?),
            DType::F32 => Self::F32(device.buffer(len)?),
            DType::F64 => Self::F64(device.buffer(len)?),
            DType::U8 => Self::U8(device.buffer(len)?),
            DType::I32 => Self::I32(device.buffer(len)?),
            DType::U32 => Self::U32(device.buffer(len)?),
            DType::I64 => Self::I64(device.buffer(len)?),
            DType::U64 => Self::U64(device.buffer(len)?),
        })
    }

    /// A copy of a tensor.
    pub fn upload(device: &Device, tensor: &Tensor) -> Result<Self, Error> {
        Ok(match tensor.dtype {
            DType::F16 => Self::F16(tensor.upload(device)?),
            DType::BF16 => Self::BF16(tensor.upload(device)?),
            DType::F32 => Self::F32(tensor.upload(device)?),
            DType::F64 => Self::F64(tensor.upload(device)?),
            DType::U8 => Self::U8(tensor.upload(device)?),
            DType::I32 => Self::I32(tensor.upload(device)?),
            DType::U32 => Self::U32(tensor.upload(device)?),
            DType::I64 => Self::I64(tensor.upload(device)?),
            DType::U64 => Self::U64(tensor.upload(device)?),
        })
    }

    /// The elements, under a shape.
    pub fn download(&self, shape: &[usize]) -> Result<Tensor, Error> {
        each!(self, b => Tensor::download(shape, b))
    }

    fn zero(&mut self) -> Result<(), lab_device::Error> {
        each!(self, b => b.zero())
    }

    fn poison(&mut self) -> Result<(), lab_device::Error> {
        each!(self, b => b.poison())
    }

    pub(crate) fn arg(&self) -> Arg<'_> {
        each!(self, b => b.arg())
    }

    pub(crate) fn arg_mut(&mut self) -> Arg<'_> {
        each!(self, b => b.arg_mut())
    }
}

/// A buffer of a [`Program`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(usize);

impl Slot {
    /// As an argument that the kernel only reads.
    pub fn read(self) -> Argument {
        Argument::Read(self.0)
    }
    /// As an argument that the kernel may write.
    pub fn write(self) -> Argument {
        Argument::Write(self.0)
    }
}

/// An argument of a launch.
#[derive(Clone, Copy, Debug)]
pub enum Argument {
    /// A buffer that is only read.
    Read(usize),
    /// A buffer that may be written.
    Write(usize),
    /// A number.
    Scalar(Arg<'static>),
}

/// A number as an argument.
pub fn scalar(value: impl Into<Arg<'static>>) -> Argument {
    Argument::Scalar(value.into())
}

/// A number as an argument of the type that kernels compute in for `dtype` (`math_t`).
pub fn math_scalar(dtype: DType, value: f64) -> Argument {
    if dtype == DType::F64 { scalar(value) } else { scalar(value as f32) }
}

enum Step {
    Launch { kernel: Kernel, launch: Launch, arguments: Vec<Argument> },
    Zero(usize),
}

/// Buffers and steps.
pub struct Program {
    device: Device,
    buffers: Vec<Storage>,
    steps: Vec<Step>,
    outputs: Vec<(String, usize, Vec<usize>)>,
}

impl Program {
    /// An empty program.
    pub fn new(device: &Device) -> Self {
        Self { device: device.clone(), buffers: Vec::new(), steps: Vec::new(), outputs: Vec::new() }
    }

    /// The device that it runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn add(&mut self, storage: Storage) -> Slot {
        self.buffers.push(storage);
        Slot(self.buffers.len() - 1)
    }

    /// A buffer with a copy of `tensor`.
    pub fn input(&mut self, tensor: &Tensor) -> Result<Slot, Error> {
        let storage = Storage::upload(&self.device, tensor)?;
        Ok(self.add(storage))
    }

    /// A poisoned buffer that becomes the output `name`.
    pub fn output(
        &mut self,
        name: impl Into<String>,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Slot, Error> {
        let slot = self.scratch(dtype, shape.iter().product())?;
        self.outputs.push((name.into(), slot.0, shape.to_vec()));
        Ok(slot)
    }

    /// A poisoned buffer that nobody sees.
    pub fn scratch(&mut self, dtype: DType, len: usize) -> Result<Slot, Error> {
        let storage = Storage::new(&self.device, dtype, len)?;
        Ok(self.add(storage))
    }

    /// Bytes of all its buffers: inputs, outputs and temporaries.
    pub fn bytes(&self) -> usize {
        self.buffers.iter().map(|b| each!(b, b => b.bytes())).sum()
    }

    /// Adds a launch.
    pub fn launch<const N: usize>(
        &mut self,
        kernel: Kernel,
        launch: Launch,
        arguments: [Argument; N],
    ) {
        self.steps.push(Step::Launch { kernel, launch, arguments: arguments.into() });
    }

    /// Adds a step that sets a buffer to zero.
    pub fn zero(&mut self, slot: Slot) {
        self.steps.push(Step::Zero(slot.0));
    }
}

impl Prepared for Program {
    fn launch(&mut self) -> Result<(), lab_device::Error> {
        let Self { buffers, steps, .. } = self;
        for step in steps {
            match step {
                Step::Zero(index) => buffers[*index].zero()?,
                Step::Launch { kernel, launch, arguments } => {
                    let args = resolve(buffers, arguments);
                    kernel.launch(*launch, &args)?;
                }
            }
        }
        Ok(())
    }

    fn outputs(&self) -> Result<Tensors, Error> {
        self.outputs
            .iter()
            .map(|(name, index, shape)| Ok((name.clone(), self.buffers[*index].download(shape)?)))
            .collect()
    }

    fn kernels(&self) -> Vec<Kernel> {
        let launched = self.steps.iter().filter_map(|step| match step {
            Step::Launch { kernel, .. } => Some(kernel.clone()),
            Step::Zero(_) => None,
        });
        launched.collect()
    }

    fn poison_outputs(&mut self) -> Result<(), Error> {
        for (_, index, _) in &self.outputs {
            self.buffers[*index].poison()?;
        }
        Ok(())
    }
}

/// The launch's arguments. Each buffer is lent out once: a kernel that gets one twice, once to
/// write, would race with itself.
fn resolve<'a>(buffers: &'a mut [Storage], arguments: &[Argument]) -> Vec<Arg<'a>> {
    let mut lent: Vec<Option<&'a mut Storage>> = buffers.iter_mut().map(Some).collect();
    let mut shared: Vec<Option<Arg<'a>>> = vec![None; lent.len()];
    arguments
        .iter()
        .map(|argument| match *argument {
            Argument::Scalar(value) => value,
            Argument::Write(index) => {
                lent[index].take().expect("a written buffer is passed once").arg_mut()
            }
            Argument::Read(index) => *shared[index].get_or_insert_with(|| {
                let storage: &'a Storage = lent[index].take().expect("not written as well");
                storage.arg()
            }),
        })
        .collect()
}
