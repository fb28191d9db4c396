//! A plan that is bound to its own inputs as it is made, with launches whose arguments come in the
//! kernel's order.

use lab_device::{Arg, DType, Device, Kernel, Launch};

use crate::plan::Plan;
use crate::{Binding, Error, Prepared, Tensor, Tensors};

pub use crate::plan::{Argument, Slot};

impl Slot {
    /// As an argument that the kernel only reads.
    pub fn read(self) -> Argument {
        Argument::Slot(self)
    }
    /// As an argument that the kernel may write.
    pub fn write(self) -> Argument {
        Argument::Slot(self)
    }
}

/// A number as an argument.
pub fn scalar(value: impl Into<Arg<'static>>) -> Argument {
    Argument::Number(value.into())
}

/// A number as an argument of the type that kernels compute in for `dtype` (`math_t`).
pub fn math_scalar(_: DType, value: f64) -> Argument {
    scalar(value)
}

/// Buffers and steps.
pub struct Program {
    plan: Option<Plan>,
    uploads: Vec<(String, Tensor)>,
    binding: Option<Binding>,
}

impl Program {
    /// An empty program.
    pub fn new(device: &Device) -> Self {
        Self { plan: Some(Plan::new(device)), uploads: Vec::new(), binding: None }
    }

    fn plan(&self) -> &Plan {
        let bound = self.binding.as_ref().map(Binding::plan);
        self.plan.as_ref().or(bound).expect("a plan, or one that is bound")
    }

    fn plan_mut(&mut self) -> &mut Plan {
        self.plan.as_mut().expect("a program that has not run")
    }

    fn bound(&mut self) -> Result<&mut Binding, Error> {
        if let Some(plan) = self.plan.take() {
            let mut binder = plan.bind();
            for (name, tensor) in &self.uploads {
                binder = binder.upload(name, tensor)?;
            }
            self.binding = Some(binder.finish()?);
            self.uploads.clear();
        }
        Ok(self.binding.as_mut().expect("bound above"))
    }

    /// The device that it runs on.
    pub fn device(&self) -> &Device {
        self.plan().device()
    }

    /// A buffer with a copy of `tensor`.
    pub fn input(&mut self, tensor: &Tensor) -> Result<Slot, Error> {
        let name = format!("upload {}", self.uploads.len());
        let slot = self.plan_mut().state(&name, tensor.dtype, &[tensor.len()]);
        self.uploads.push((name, tensor.clone()));
        Ok(slot)
    }

    /// A poisoned buffer that becomes the output `name`.
    pub fn output(
        &mut self,
        name: impl Into<String>,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Slot, Error> {
        Ok(self.plan_mut().output(&name.into(), dtype, shape))
    }

    /// A poisoned buffer that nobody sees.
    pub fn scratch(&mut self, dtype: DType, len: usize) -> Result<Slot, Error> {
        Ok(self.plan_mut().scratch(dtype, len))
    }

    /// A buffer of structs.
    pub fn records(&mut self, name: &'static str, bytes: usize, len: usize) -> Slot {
        self.plan_mut().records(name, bytes, len)
    }

    /// A buffer of zeros, which nobody sees. They are written once, not at each run.
    pub fn zeros(&mut self, dtype: DType, len: usize) -> Result<Slot, Error> {
        Ok(self.plan_mut().zeros(dtype, len))
    }

    /// Copies a tensor of the same type and number of elements into a whole buffer.
    ///
    /// # Errors
    /// It is of another type or length, or the device's.
    pub fn write(&mut self, slot: Slot, tensor: &Tensor) -> Result<(), Error> {
        self.bound()?.write(slot, tensor)
    }

    /// What a whole buffer holds.
    ///
    /// # Errors
    /// The device's.
    pub fn read(&self, slot: Slot) -> Result<Tensor, Error> {
        self.binding.as_ref().expect("a program that has run").read(slot)
    }

    /// Bytes of all its buffers: inputs, outputs and temporaries.
    pub fn bytes(&self) -> usize {
        self.plan().bytes()
    }

    /// Adds a launch.
    ///
    /// # Panics
    /// The arguments are not the kernel's.
    pub fn launch(&mut self, kernel: Kernel, launch: Launch, arguments: impl Into<Vec<Argument>>) {
        let parameters = kernel.parameters().iter().map(|p| p.name.as_str());
        let named = parameters.zip(arguments.into());
        self.plan_mut().launch(&kernel, launch, named).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Adds a step that sets a buffer to zero, all of it.
    pub fn zero(&mut self, slot: Slot) {
        self.plan_mut().zero(slot);
    }

    /// How many launches and other steps it has.
    pub fn len(&self) -> usize {
        self.plan().len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.plan().is_empty()
    }

    /// Adds what stands from step `first` on so many times more.
    pub fn repeat(&mut self, first: usize, times: usize) {
        self.plan_mut().repeat(first, times);
    }

    /// Adds a step that copies a buffer into another.
    pub fn copy(&mut self, from: Slot, to: Slot) {
        self.plan_mut().copy(from, to);
    }

    /// Makes all launches, in their order.
    ///
    /// # Errors
    /// What the device reports of one; those behind it are not made.
    pub fn run(&mut self) -> Result<(), lab_device::Error> {
        match self.bound() {
            Ok(binding) => binding.run(),
            Err(Error::Device(error)) => Err(error),
            Err(error) => panic!("{error}"),
        }
    }
}

impl Prepared for Program {
    fn launch(&mut self) -> Result<(), lab_device::Error> {
        self.run()
    }

    fn outputs(&self) -> Result<Tensors, Error> {
        self.binding.as_ref().expect("a program that has run").outputs()
    }

    fn kernels(&self) -> Vec<Kernel> {
        self.plan().kernels()
    }

    fn poison_outputs(&mut self) -> Result<(), Error> {
        self.bound()?.poison_outputs()
    }
}
