//! The interface that all versions of a kernel idea share.

use lab_device::{Arithmetic, DType, Device, KernelSource};

use crate::compare::Magnitudes;
use crate::{
    Dims, Error, Expected, Host, Info, Options, Plan, Preference, Prepared, Problem, Reference,
    Request, Tensors, Tiling,
};

/// What a problem costs at least.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Floating-point operations that the mathematics needs.
    pub flops: f64,
    /// Bytes that must cross device memory: each input read once, each output written once.
    pub bytes: f64,
}

/// One kernel idea. What it shares with the other versions of its family is the family's own.
pub trait Version: Sync {
    /// What it says of itself.
    fn info(&self) -> &Info;
    /// Random inputs for a problem: the family's.
    fn inputs(&self, problem: &Problem) -> Tensors {
        self.info().family.draw_inputs(self.info(), problem)
    }
    /// The outputs in f64, by name: the family's.
    fn reference(&self, inputs: &Tensors, options: &Options) -> Vec<(&'static str, Vec<f64>)> {
        self.info().family.reference(self.info(), inputs, options)
    }
    /// What the rounding errors of each element are relative to, beside that reference: the family's.
    fn magnitudes(&self, inputs: &Tensors, options: &Options, reference: &Reference) -> Magnitudes {
        self.info().family.magnitudes(self.info(), inputs, options, reference)
    }
    /// What it costs at least: the family's.
    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        self.info().family.cost(dims, dtype)
    }
    /// Whether its time is told as that of a replayed graph as well: by default as the family's.
    fn replayed(&self) -> bool {
        self.info().family.replayed()
    }
    /// Its place among the versions that an operation chooses from; none where it runs by its name alone.
    fn preference(&self) -> Option<Preference> {
        None
    }
    /// Whether an operation chooses it for these sizes, which it takes, where nobody names it: not where another is faster.
    fn is_chosen_for(&self, _dims: &Dims) -> bool {
        true
    }
    /// What must come of it under these options.
    fn expected(&self, _options: &Options) -> Expected {
        Expected::Right
    }
    /// Problems that every dtype must get right (or wrong, where that is expected): one row,
    /// ragged, several tiles, large.
    fn test_shapes(&self) -> Vec<Dims>;
    /// The same on the host's cores, in f32, to be timed beside the GPU; where that is a fair
    /// comparison.
    fn cpu(&self, _inputs: &Tensors) -> Option<Host> {
        None
    }
    /// The units that it computes with in this type, whose peak is its roofline: by default the
    /// fastest that keep what the inputs hold.
    fn arithmetic(&self, dtype: DType) -> Option<Arithmetic> {
        Arithmetic::fastest_for(dtype)
    }
    /// The problems that `lab bench` times in this type, the smallest first: by default the family's.
    /// More than one make a plot over the size.
    fn bench_shapes(&self, dtype: DType) -> Vec<Dims> {
        self.info().family.bench_shapes(self.info(), dtype)
    }
    /// The kernel files that it launches from; none where that is not told, which stands for all
    /// of its stage.
    fn sources(&self) -> Vec<&'static KernelSource> {
        Vec::new()
    }
    /// Its slots, under the names of the family's tensors, and its launches.
    ///
    /// # Errors
    /// A shape or option that passed the checks of [`Info`] and does not suit this version; what the
    /// device says of its kernels; with a tiling, also those of [`Device::instantiate`].
    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error>;
    /// The tile parameters that `lab tune` tries at these sizes and in this type, the one in use
    /// first; none where there is nothing to choose. Not all need compile or fit the GPU.
    fn tilings(&self, _dims: &Dims, _dtype: DType) -> Vec<Tiling> {
        Vec::new()
    }
    /// Plans it for these inputs, uploads them, and binds the plan to them.
    ///
    /// # Errors
    /// Those of [`Request::new`], [`Version::plan`] and [`Binder::finish`](crate::Binder::finish).
    fn prepare(
        &self,
        device: &Device,
        inputs: &Tensors,
        options: &Options,
    ) -> Result<Box<dyn Prepared>, Error> {
        let request = Request::of(self.info(), inputs, options)?;
        let plan = self.plan(device, &request)?;
        Ok(Box::new(plan.bind().upload_inputs(inputs)?.finish()?))
    }
    /// As [`Version::prepare`], with one of [`Version::tilings`].
    ///
    /// # Errors
    /// As there; also that it has none.
    fn prepare_tiled(
        &self,
        device: &Device,
        inputs: &Tensors,
        options: &Options,
        tiling: &Tiling,
    ) -> Result<Box<dyn Prepared>, Error> {
        let request = Request::of(self.info(), inputs, options)?.with_tiling(tiling);
        if self.tilings(&request.dims, request.dtype).is_empty() {
            let what = format!("tiling of {}", self.info().full_name());
            return Err(Error::bad(what, "none: it has no tile parameters", tiling));
        }
        let plan = self.plan(device, &request)?;
        Ok(Box::new(plan.bind().upload_inputs(inputs)?.finish()?))
    }
}

/// Checks the inputs, sets the version up, runs it once, and brings the outputs back, which must be written
/// whole.
pub fn run(
    version: &dyn Version,
    device: &Device,
    inputs: &Tensors,
    options: &Options,
) -> Result<Tensors, Error> {
    let mut prepared = version.prepare(device, inputs, options)?;
    prepared.launch()?;
    prepared.all_written()?;
    prepared.outputs()
}
