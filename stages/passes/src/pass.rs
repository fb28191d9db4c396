//! What the versions of this stage have in common: each is an operation by itself, forward, or forward and backward.

use lab_device::{DType, Device, KernelSource};
use lab_harness::compare::Magnitudes;
use lab_harness::family::Reference as OfFamily;
use lab_harness::{
    Cost, Dims, Error, Family, Info, Options, Plan, Problem, Request, Tensor, Tensors, Version,
};

/// The outputs in f64, by name.
type Reference = fn(&Operands<'_>) -> Vec<(&'static str, Vec<f64>)>;

/// What the roundings of each element are relative to.
type OfRoundings = fn(&Operands<'_>, &OfFamily) -> Magnitudes;

/// What a version computes: a family.
#[derive(Debug)]
pub struct Formula {
    pub(crate) name: &'static str,
    /// Other inputs than standard normal ones: by their names, where they are others.
    pub(crate) draw: fn(&Problem, &mut Tensors),
    pub(crate) reference: Reference,
    pub(crate) magnitudes: OfRoundings,
    pub(crate) cost: fn(&Dims, DType) -> Cost,
}

impl Family for Formula {
    fn name(&self) -> &'static str {
        self.name
    }

    fn draw_inputs(&self, info: &Info, problem: &Problem) -> Tensors {
        let mut all = Tensors::new();
        for (stream, input) in info.inputs.iter().enumerate() {
            let size = |axis: &&str| {
                let name =
                    axis.trim_start_matches(|c: char| c.is_ascii_digit()).trim_end_matches('.');
                let factor = axis
                    [..axis.len() - axis.trim_start_matches(|c: char| c.is_ascii_digit()).len()]
                    .parse()
                    .unwrap_or(1);
                if name.is_empty() { factor } else { factor * problem.dims.get(name) }
            };
            let shape: Vec<usize> = input.axes.iter().map(size).collect();
            let dtype = input.always.unwrap_or(problem.dtype);
            let tensor = problem.normal_around(0.0, dtype, stream as u64, &shape);
            all.insert(input.name.to_owned(), tensor);
        }
        (self.draw)(problem, &mut all);
        all
    }

    fn reference(
        &self,
        info: &Info,
        inputs: &Tensors,
        options: &Options,
    ) -> Vec<(&'static str, Vec<f64>)> {
        let (dims, _) = info.problem_of(inputs).expect("inputs that were checked");
        (self.reference)(&Operands { info, inputs, options, dims })
    }

    fn magnitudes(
        &self,
        info: &Info,
        inputs: &Tensors,
        options: &Options,
        reference: &OfFamily,
    ) -> Magnitudes {
        let (dims, _) = info.problem_of(inputs).expect("inputs that were checked");
        (self.magnitudes)(&Operands { info, inputs, options, dims }, reference)
    }

    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        (self.cost)(dims, dtype)
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
    /// An input's elements in f64.
    pub(crate) fn values(&self, name: &str) -> Vec<f64> {
        self.inputs[name].values()
    }

    /// An input of whole numbers.
    pub(crate) fn ids(&self, name: &str) -> Vec<i64> {
        self.values(name).into_iter().map(|id| id as i64).collect()
    }

    pub(crate) fn tensor(&self, name: &str) -> &Tensor {
        &self.inputs[name]
    }

    pub(crate) fn number(&self, name: &str) -> f64 {
        self.options.number(self.info, name)
    }

    pub(crate) fn text(&self, name: &str) -> &str {
        self.options.text(self.info, name)
    }

    pub(crate) fn dim(&self, name: &str) -> usize {
        self.dims.get(name)
    }
}

/// A cost in elements of the run's type, and bytes of what has a type of its own.
pub(crate) fn bytes(dtype: DType, flops: f64, elements: f64, others: f64) -> Cost {
    Cost { flops, bytes: elements * dtype.size() as f64 + others }
}

/// One operation, one version.
#[derive(Debug)]
pub struct Pass {
    pub(crate) info: Info,
    /// Sizes to be tested, in the order of `info.dims`.
    pub(crate) shapes: &'static [&'static [usize]],
    /// Further sizes that are timed, in the same order, in every type.
    pub(crate) timed: &'static [&'static [usize]],
    /// The files of its kernels.
    pub(crate) sources: &'static [&'static KernelSource],
    /// Adds slots, then the operation.
    pub(crate) plan: fn(&mut Plan, &Request<'_>) -> Result<(), Error>,
}

impl Pass {
    fn sizes(&self, sizes: &[usize]) -> Dims {
        let mut dims = Dims::default();
        self.info.dims.iter().zip(sizes).for_each(|(d, &size)| dims.set(d.name, size));
        dims
    }
}

impl Version for Pass {
    fn info(&self) -> &Info {
        &self.info
    }

    fn test_shapes(&self) -> Vec<Dims> {
        self.shapes.iter().map(|s| self.sizes(s)).collect()
    }

    fn bench_shapes(&self, dtype: DType) -> Vec<Dims> {
        let more = self.timed.iter().map(|s| self.sizes(s));
        std::iter::once(self.info.timed(dtype)).chain(more).collect()
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        self.sources.to_vec()
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let mut plan = Plan::new(device);
        (self.plan)(&mut plan, request)?;
        Ok(plan)
    }
}
