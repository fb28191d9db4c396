//! What the operations of this stage have in common: a table entry each, and one way to run it.

use lab_device::{DType, Device, Instance, KernelSource, Launch};
use lab_harness::compare::each;
use lab_harness::plan::Slot;
use lab_harness::{
    Cost, Dims, Error, Family, Host, Info, Magnitudes, Options, Plan, Problem, Reference, Request,
    Tensor, Tensors, Version,
};
use rayon::prelude::*;

/// Threads of every one-dimensional block here.
pub(crate) const THREADS: u32 = 256;

/// x, y, out on the host.
pub(crate) type Chunk = fn(&[f32], &[f32], &mut [f32]);

/// What an operation computes: a family.
#[derive(Debug)]
pub struct Formula {
    pub(crate) name: &'static str,
    /// Added to the standard normal inputs.
    pub(crate) offset: f64,
    /// Floating-point operations an element of the largest tensor.
    pub(crate) flops: f64,
    /// The size of that tensor, and elements read and written, for the sizes.
    pub(crate) elements: fn(&Dims) -> [f64; 2],
    pub(crate) reference: fn(&Operands<'_>) -> Vec<f64>,
    /// What the rounding errors of each element are relative to.
    pub(crate) magnitude: fn(&Operands<'_>) -> Vec<f64>,
}

impl Family for Formula {
    fn name(&self) -> &'static str {
        self.name
    }

    fn draw_inputs(&self, info: &Info, problem: &Problem) -> Tensors {
        let mut all = Tensors::new();
        for (stream, input) in info.inputs.iter().enumerate() {
            let size = |axis: &&str| problem.dims.get(axis.trim_end_matches('.'));
            let shape: Vec<usize> = input.axes.iter().map(size).collect();
            let mut tensor = problem.normal(stream as u64, &shape);
            if self.offset != 0.0 {
                let moved: Vec<f64> = tensor.values().iter().map(|v| v + self.offset).collect();
                tensor = Tensor::rounded(problem.dtype, &shape, &moved);
            }
            all.insert(input.name.to_owned(), tensor);
        }
        all
    }

    fn reference(
        &self,
        info: &Info,
        inputs: &Tensors,
        options: &Options,
    ) -> Vec<(&'static str, Vec<f64>)> {
        let (dims, _) = info.problem_of(inputs).expect("inputs that were checked");
        vec![("out", (self.reference)(&Operands { info, inputs, options, dims }))]
    }

    fn magnitudes(
        &self,
        info: &Info,
        inputs: &Tensors,
        options: &Options,
        _: &Reference,
    ) -> Magnitudes {
        let (dims, _) = info.problem_of(inputs).expect("inputs that were checked");
        each(vec![("out", (self.magnitude)(&Operands { info, inputs, options, dims }))])
    }

    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        let [largest, moved] = (self.elements)(dims);
        Cost { flops: self.flops * largest, bytes: moved * dtype.size() as f64 }
    }

    fn replayed(&self) -> bool {
        false
    }
}

/// What a reference is computed from.
pub(crate) struct Operands<'a> {
    info: &'a Info,
    inputs: &'a Tensors,
    options: &'a Options,
    dims: Dims,
}

impl Operands<'_> {
    /// The absolute values of an input's elements.
    pub(crate) fn absolute(&self, name: &str) -> Vec<f64> {
        self.values(name).into_iter().map(f64::abs).collect()
    }

    /// An input's elements in f64.
    pub(crate) fn values(&self, name: &str) -> Vec<f64> {
        self.inputs[name].values()
    }

    pub(crate) fn option(&self, name: &str) -> f64 {
        self.options.number(self.info, name)
    }

    pub(crate) fn dim(&self, name: &str) -> usize {
        self.dims.get(name)
    }
}

/// One operation, one version.
#[derive(Debug)]
pub struct Operation {
    pub(crate) info: Info,
    /// Sizes to be tested, in the order of `info.dims`.
    pub(crate) shapes: &'static [&'static [usize]],
    /// A problem of 2^25 elements, in the order of `info.dims`.
    pub(crate) large: &'static [usize],
    /// One chunk on the host: x, y (x again where there is no y), out.
    pub(crate) cpu: Option<Chunk>,
    /// The file of its kernels.
    pub(crate) source: &'static KernelSource,
    /// Adds slots and launches.
    pub(crate) plan: fn(&mut Plan, &Run<'_>) -> Result<(), Error>,
}

/// The problem of a run, and the file of its kernels.
pub(crate) struct Run<'a> {
    request: &'a Request<'a>,
    source: &'static KernelSource,
}

impl Run<'_> {
    pub(crate) fn dtype(&self) -> DType {
        self.request.dtype
    }

    pub(crate) fn option(&self, name: &str) -> f64 {
        self.request.number(name)
    }

    pub(crate) fn dim(&self, name: &str) -> usize {
        self.request.dim(name)
    }

    /// The sizes of an input.
    pub(crate) fn sizes(&self, name: &str) -> &[usize] {
        &self.request.shape(name).sizes
    }

    pub(crate) fn input(&self, plan: &mut Plan, name: &str) -> Slot {
        self.request.input(plan, name)
    }

    /// An instantiation of one of its kernels, on the plan's device.
    pub(crate) fn kernel(&self, plan: &Plan, name: &str) -> Result<lab_device::Kernel, Error> {
        Ok(plan.device().kernel(self.source, name)?)
    }

    /// The instantiations of one of its kernels.
    pub(crate) fn instances(&self, kernel: &str) -> impl Iterator<Item = Instance> {
        self.source.instances(kernel)
    }

    /// `name<float, arguments>` for this run's type.
    pub(crate) fn instance(&self, name: &str, arguments: &str) -> String {
        let comma = if arguments.is_empty() { "" } else { ", " };
        format!("{name}<{}{comma}{arguments}>", self.dtype().cpp())
    }

    /// Elements of this run's type in 16 bytes.
    pub(crate) fn pack(&self) -> usize {
        16 / self.dtype().size()
    }

    /// The type that sums are in.
    pub(crate) fn sum_type(&self) -> DType {
        if self.dtype() == DType::F64 { DType::F64 } else { DType::F32 }
    }

    /// Input `x` and an output like it.
    pub(crate) fn x_and_out(&self, plan: &mut Plan) -> [Slot; 2] {
        [self.input(plan, "x"), plan.output("out", self.dtype(), self.sizes("x"))]
    }
}

/// A grid for a grid-stride loop over `packs` packs: no more blocks than the work needs, no more
/// than fill the device.
pub(crate) fn grid_stride(device: &Device, packs: usize) -> Launch {
    let facts = device.facts();
    let full = facts.multiprocessors * (facts.max_threads_per_multiprocessor / THREADS);
    Launch::new(packs.div_ceil(THREADS as usize).clamp(1, full as usize) as u32, THREADS)
}

impl Operation {
    fn sizes(&self, sizes: &[usize]) -> Dims {
        let mut dims = Dims::default();
        self.info.dims.iter().zip(sizes).for_each(|(d, &size)| dims.set(d.name, size));
        dims
    }

    /// A problem of 2^25 elements.
    pub fn large(&self) -> Dims {
        self.sizes(self.large)
    }
}

impl Version for Operation {
    fn info(&self) -> &Info {
        &self.info
    }

    fn test_shapes(&self) -> Vec<Dims> {
        self.shapes.iter().map(|s| self.sizes(s)).collect()
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        vec![self.source]
    }

    fn cpu(&self, inputs: &Tensors) -> Option<Host> {
        let work = self.cpu?;
        let elements = |name: &str| -> Option<Vec<f32>> {
            let tensor = inputs.get(name)?;
            (tensor.dtype == DType::F32)
                .then(|| tensor.values().into_iter().map(|v| v as f32).collect())
        };
        let x = elements("x")?;
        let y = elements("y").unwrap_or_else(|| x.clone());
        const CHUNK: usize = 1 << 16;
        Some(Host {
            out: vec![f32::NAN; x.len()],
            work: Box::new(move |out| {
                let chunks = x.par_chunks(CHUNK).zip(y.par_chunks(CHUNK));
                out.par_chunks_mut(CHUNK).zip(chunks).for_each(|(out, (x, y))| work(x, y, out));
            }),
        })
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let mut plan = Plan::new(device);
        (self.plan)(&mut plan, &Run { request, source: self.source })?;
        Ok(plan)
    }
}
