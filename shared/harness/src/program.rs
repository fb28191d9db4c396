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

use std::ops::Range;

use half::{bf16, f16};
use lab_device::{Arg, Buffer, DType, Device, Element, Kernel, Launch};

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

    fn arg_parts(
        &mut self,
        parts: &[(Range<usize>, bool)],
    ) -> Result<Vec<Arg<'_>>, lab_device::Error> {
        each!(self, b => b.arg_parts(parts))
    }

    fn len(&self) -> usize {
        each!(self, b => b.len())
    }

    fn dtype(&self) -> DType {
        fn of<T: Element>(_: &Buffer<T>) -> DType {
            T::DTYPE
        }
        each!(self, b => of(b))
    }

    /// The elements of another of the same type and length, on the device.
    fn copy_from(&mut self, from: &Self) -> Result<(), lab_device::Error> {
        match (self, from) {
            (Self::F16(to), Self::F16(from)) => to.copy_from(from),
            (Self::BF16(to), Self::BF16(from)) => to.copy_from(from),
            (Self::F32(to), Self::F32(from)) => to.copy_from(from),
            (Self::F64(to), Self::F64(from)) => to.copy_from(from),
            (Self::U8(to), Self::U8(from)) => to.copy_from(from),
            (Self::I32(to), Self::I32(from)) => to.copy_from(from),
            (Self::U32(to), Self::U32(from)) => to.copy_from(from),
            (Self::I64(to), Self::I64(from)) => to.copy_from(from),
            (Self::U64(to), Self::U64(from)) => to.copy_from(from),
            (to, from) => panic!("a copy of {} into {}", from.dtype(), to.dtype()),
        }
    }

    /// The elements of a tensor of the same type and length.
    fn write(&mut self, tensor: &Tensor) -> Result<(), Error> {
        if self.dtype() != tensor.dtype {
            return Err(Error::bad("tensor to upload", self.dtype().name(), tensor.dtype));
        }
        Ok(each!(self, b => b.write(&bytemuck::pod_collect_to_vec(&tensor.bytes)))?)
    }
}

/// A buffer of a [`Program`], or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    index: usize,
    /// In elements.
    start: usize,
    len: usize,
}

impl Slot {
    /// As an argument that the kernel only reads.
    pub fn read(self) -> Argument {
        Argument::Read(self)
    }
    /// As an argument that the kernel may write.
    pub fn write(self) -> Argument {
        Argument::Write(self)
    }

    /// `len` of its elements, from `start` on: a tensor of several that share a buffer.
    ///
    /// # Panics
    /// It has fewer.
    pub fn part(self, start: usize, len: usize) -> Self {
        let fits = start.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(fits, "{len} elements from {start} on, of {}", self.len);
        Self { start: self.start + start, len, ..self }
    }

    /// Elements.
    #[allow(clippy::len_without_is_empty)] // a kernel gets none that is
    pub fn len(self) -> usize {
        self.len
    }

    fn range(self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

/// An argument of a launch.
#[derive(Clone, Copy, Debug)]
pub enum Argument {
    /// A buffer that is only read.
    Read(Slot),
    /// A buffer that may be written.
    Write(Slot),
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

#[derive(Clone)]
enum Step {
    Launch { kernel: Kernel, launch: Launch, arguments: Vec<Argument> },
    Zero(usize),
    Copy { from: usize, to: usize },
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
        let len = storage.len();
        self.buffers.push(storage);
        Slot { index: self.buffers.len() - 1, start: 0, len }
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
        self.outputs.push((name.into(), slot.index, shape.to_vec()));
        Ok(slot)
    }

    /// A poisoned buffer that nobody sees.
    pub fn scratch(&mut self, dtype: DType, len: usize) -> Result<Slot, Error> {
        let storage = Storage::new(&self.device, dtype, len)?;
        Ok(self.add(storage))
    }

    /// A buffer of zeros, which nobody sees. They are written now, not at each run: see
    /// [`Program::zero`].
    pub fn zeros(&mut self, dtype: DType, len: usize) -> Result<Slot, Error> {
        let mut storage = Storage::new(&self.device, dtype, len)?;
        storage.zero()?;
        Ok(self.add(storage))
    }

    /// Copies a tensor of the same type and number of elements into a whole buffer.
    ///
    /// # Errors
    /// It is of another type or length, or the device's.
    ///
    /// # Panics
    /// The slot is a part of a buffer.
    pub fn write(&mut self, slot: Slot, tensor: &Tensor) -> Result<(), Error> {
        let storage = &mut self.buffers[slot.index];
        assert_eq!(slot.range(), 0..storage.len(), "a whole buffer");
        storage.write(tensor)
    }

    /// What a whole buffer holds.
    ///
    /// # Errors
    /// The device's.
    ///
    /// # Panics
    /// The slot is a part of a buffer.
    pub fn read(&self, slot: Slot) -> Result<Tensor, Error> {
        let storage = &self.buffers[slot.index];
        assert_eq!(slot.range(), 0..storage.len(), "a whole buffer");
        storage.download(&[slot.len])
    }

    /// Bytes of all its buffers: inputs, outputs and temporaries.
    pub fn bytes(&self) -> usize {
        self.buffers.iter().map(|b| each!(b, b => b.bytes())).sum()
    }

    /// Adds a launch.
    pub fn launch(&mut self, kernel: Kernel, launch: Launch, arguments: impl Into<Vec<Argument>>) {
        self.steps.push(Step::Launch { kernel, launch, arguments: arguments.into() });
    }

    /// Adds a step that sets a buffer to zero, all of it.
    pub fn zero(&mut self, slot: Slot) {
        self.steps.push(Step::Zero(slot.index));
    }

    /// How many launches and other steps it has.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Adds what stands from step `first` on so many times more.
    pub fn repeat(&mut self, first: usize, times: usize) {
        let again = self.steps[first..].to_vec();
        for _ in 0..times {
            self.steps.extend(again.iter().cloned());
        }
    }

    /// Adds a step that copies a buffer into another.
    ///
    /// # Panics
    /// They are one, or of different types or lengths, or a slot is a part of a buffer.
    pub fn copy(&mut self, from: Slot, to: Slot) {
        let of = |slot: Slot| {
            let storage = &self.buffers[slot.index];
            assert_eq!(slot.range(), 0..storage.len(), "a whole buffer");
            (storage.dtype(), storage.len())
        };
        assert!(from.index != to.index && of(from) == of(to), "another buffer, like it");
        self.steps.push(Step::Copy { from: from.index, to: to.index });
    }
}

impl Program {
    /// Makes all launches, in their order.
    ///
    /// # Errors
    /// What the device reports of one; those behind it are not made.
    pub fn run(&mut self) -> Result<(), lab_device::Error> {
        let Self { buffers, steps, .. } = self;
        for step in steps {
            match step {
                Step::Zero(index) => buffers[*index].zero()?,
                Step::Copy { from, to } => {
                    let pair = buffers.get_disjoint_mut([*from, *to]);
                    let [from, to] = pair.expect("two buffers");
                    to.copy_from(from)?;
                }
                Step::Launch { kernel, launch, arguments } => {
                    let args = resolve(buffers, arguments);
                    kernel.launch(*launch, &args)?;
                }
            }
        }
        Ok(())
    }
}

impl Prepared for Program {
    fn launch(&mut self) -> Result<(), lab_device::Error> {
        self.run()
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
            Step::Zero(_) | Step::Copy { .. } => None,
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

/// The launch's arguments. What a kernel gets to write it gets once: else it would race with
/// itself.
fn resolve<'a>(buffers: &'a mut [Storage], arguments: &[Argument]) -> Vec<Arg<'a>> {
    let mut lent: Vec<Option<&'a mut Storage>> = buffers.iter_mut().map(Some).collect();
    let mut resolved: Vec<Option<Arg<'a>>> = vec![None; arguments.len()];
    for at in 0..arguments.len() {
        let slot = match arguments[at] {
            Argument::Scalar(value) => {
                resolved[at] = Some(value);
                continue;
            }
            Argument::Read(slot) | Argument::Write(slot) => slot,
        };
        // The first of a buffer's arguments resolves them all.
        let Some(storage) = lent[slot.index].take() else { continue };
        let (places, parts): (Vec<usize>, Vec<_>) = (at..arguments.len())
            .filter_map(|n| match arguments[n] {
                Argument::Read(s) if s.index == slot.index => Some((n, (s.range(), false))),
                Argument::Write(s) if s.index == slot.index => Some((n, (s.range(), true))),
                _ => None,
            })
            .unzip();
        let args = storage.arg_parts(&parts).expect("what is written is passed once");
        for (place, arg) in places.into_iter().zip(args) {
            resolved[place] = Some(arg);
        }
    }
    resolved.into_iter().map(|arg| arg.expect("each is a number or of a buffer")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_one(arguments: &[Argument]) -> usize {
        let device = Device::emulator().unwrap();
        let mut buffers = [Storage::new(&device, DType::F32, 10).unwrap()];
        resolve(&mut buffers, arguments).len()
    }

    const WHOLE: Slot = Slot { index: 0, start: 0, len: 10 };

    #[test]
    fn parts_that_lie_apart_are_lent_together() {
        let [one, other] = [WHOLE.part(0, 4), WHOLE.part(4, 6).part(1, 5)];
        assert_eq!(other, Slot { index: 0, start: 5, len: 5 });
        assert_eq!(of_one(&[one.write(), scalar(1i32), other.write()]), 3);
        assert_eq!(of_one(&[one.read(), WHOLE.read(), one.read()]), 3);
    }

    #[test]
    #[should_panic(expected = "passed once: Overlap")]
    fn a_written_part_meets_no_other() {
        of_one(&[WHOLE.part(0, 5).read(), WHOLE.part(4, 6).write()]);
    }

    #[test]
    #[should_panic(expected = "passed once: Overlap")]
    fn a_written_buffer_is_passed_once() {
        of_one(&[WHOLE.write(), WHOLE.write()]);
    }

    #[test]
    #[should_panic(expected = "6 elements from 5 on, of 10")]
    fn a_part_ends_within_its_buffer() {
        WHOLE.part(5, 6);
    }

    #[test]
    fn a_buffer_is_written_and_read_as_what_it_is() {
        let device = Device::emulator().unwrap();
        let mut program = Program::new(&device);
        let slot = program.zeros(DType::F32, 3).unwrap();
        assert_eq!(program.read(slot).unwrap().values(), [0.0; 3]);
        let tensor = Tensor::new(&[3], &[1f32, 2.0, 3.0]);
        program.write(slot, &tensor).unwrap();
        assert_eq!(program.read(slot).unwrap(), tensor);
        assert!(program.write(slot, &Tensor::new(&[3], &[1f64; 3])).is_err());
        assert!(program.write(slot, &Tensor::new(&[2], &[1f32; 2])).is_err());
        let other = program.zeros(DType::F32, 3).unwrap();
        program.copy(slot, other);
        program.run().unwrap();
        assert_eq!(program.read(other).unwrap(), tensor);
    }

    #[test]
    #[should_panic(expected = "another buffer, like it")]
    fn a_copy_is_of_the_same_type() {
        let mut program = Program::new(&Device::emulator().unwrap());
        let [from, to] = [DType::F32, DType::F64].map(|d| program.zeros(d, 3).unwrap());
        program.copy(from, to);
    }
}
