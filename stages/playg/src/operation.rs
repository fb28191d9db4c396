//! What the operations of this stage have in common: a table entry each, and one way to run it.

use lab_device::{DType, Device, KernelSource, Launch};
use lab_harness::program::{Program, Slot};
use lab_harness::{
    Cost, Dims, Error, Host, Info, Options, Prepared, Problem, Tensor, Tensors, Version,
};
use rayon::prelude::*;

/// Threads of every one-dimensional block here.
pub(crate) const THREADS: u32 = 256;

/// x, y, out on the host.
pub(crate) type Chunk = fn(&[f32], &[f32], &mut [f32]);

/// One operation, one version.
#[derive(Debug)]
pub struct Operation {
    pub(crate) info: Info,
    /// Sizes to be tested, in the order of `info.dims`.
    pub(crate) shapes: &'static [&'static [usize]],
    /// A problem of 2^25 elements, in the order of `info.dims`.
    pub(crate) large: &'static [usize],
    /// Added to the standard normal inputs.
    pub(crate) offset: f64,
    /// Floating-point operations an element of the first input.
    pub(crate) flops: f64,
    /// Elements read and written, for the sizes.
    pub(crate) elements: fn(&Dims) -> f64,
    /// One chunk on the host: x, y (x again where there is no y), out.
    pub(crate) cpu: Option<Chunk>,
    pub(crate) reference: fn(&Run<'_>) -> Vec<f64>,
    /// Adds buffers and launches.
    pub(crate) plan: fn(&mut Program, &Run<'_>) -> Result<(), Error>,
}

/// The inputs of a run, checked.
pub(crate) struct Run<'a> {
    pub(crate) info: &'a Info,
    pub(crate) inputs: &'a Tensors,
    pub(crate) options: &'a Options,
    pub(crate) dims: Dims,
    pub(crate) dtype: DType,
}

impl<'a> Run<'a> {
    fn new(info: &'a Info, inputs: &'a Tensors, options: &'a Options) -> Result<Self, Error> {
        let (dims, dtype) = info.problem_of(inputs)?;
        Ok(Self { info, inputs, options, dims, dtype })
    }

    pub(crate) fn tensor(&self, name: &str) -> &'a Tensor {
        &self.inputs[name]
    }

    /// An input's elements in f64.
    pub(crate) fn values(&self, name: &str) -> Vec<f64> {
        self.tensor(name).values()
    }

    pub(crate) fn option(&self, name: &str) -> f64 {
        self.options.number(self.info, name)
    }

    pub(crate) fn dim(&self, name: &str) -> usize {
        self.dims.get(name)
    }

    /// `name<float, arguments>` for this run's type.
    pub(crate) fn instance(&self, name: &str, arguments: &str) -> String {
        let comma = if arguments.is_empty() { "" } else { ", " };
        format!("{name}<{}{comma}{arguments}>", self.dtype.cpp())
    }

    /// Elements of this run's type in 16 bytes.
    pub(crate) fn pack(&self) -> usize {
        16 / self.dtype.size()
    }

    /// The type that sums are in.
    pub(crate) fn sum_type(&self) -> DType {
        if self.dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }

    /// Input `x` and an output like it.
    pub(crate) fn x_and_out(&self, program: &mut Program) -> Result<(Slot, Slot), Error> {
        let x = self.tensor("x");
        Ok((program.input(x)?, program.output("out", self.dtype, &x.shape)?))
    }
}

/// A grid for a grid-stride loop over `packs` packs: no more blocks than the work needs, no more
/// than fill the device.
pub(crate) fn grid_stride(device: &Device, packs: usize) -> Launch {
    let facts = device.facts();
    let full = facts.multiprocessors * (facts.max_threads_per_multiprocessor / THREADS);
    Launch::new(packs.div_ceil(THREADS as usize).clamp(1, full as usize) as u32, THREADS)
}

/// An instantiation of one of this stage's kernels, on the program's device.
pub(crate) fn kernel(
    program: &Program,
    source: &'static KernelSource,
    name: &str,
) -> Result<lab_device::Kernel, Error> {
    Ok(program.device().kernel(source, name)?)
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

    fn inputs(&self, problem: &Problem) -> Tensors {
        let mut all = Tensors::new();
        for (stream, input) in self.info.inputs.iter().enumerate() {
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

    fn reference(&self, inputs: &Tensors, options: &Options) -> Vec<(&'static str, Vec<f64>)> {
        let run = Run::new(&self.info, inputs, options).expect("inputs that were checked");
        vec![("out", (self.reference)(&run))]
    }

    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        let first: usize = self.info.dims.iter().map(|d| dims.get(d.name)).product();
        Cost {
            flops: self.flops * first as f64,
            bytes: (self.elements)(dims) * dtype.size() as f64,
        }
    }

    fn test_shapes(&self) -> Vec<Dims> {
        self.shapes.iter().map(|s| self.sizes(s)).collect()
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

    fn prepare(
        &self,
        device: &Device,
        inputs: &Tensors,
        options: &Options,
    ) -> Result<Box<dyn Prepared>, Error> {
        let run = Run::new(&self.info, inputs, options)?;
        let mut program = Program::new(device);
        (self.plan)(&mut program, &run)?;
        Ok(Box::new(program))
    }
}
