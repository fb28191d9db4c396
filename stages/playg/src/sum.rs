//! The sum of all elements in one launch, with a grid-wide sync.

use lab_device::{Buffer, DType, Device, Kernel, Launch};
use lab_harness::tensor::tensors;
use lab_harness::{
    Cost, Dim, Dims, Error, Float, Info, Input, Options, Output, Prepared, Problem, Tensor,
    Tensors, Version, with_float,
};

use crate::{THREADS, grid_stride_blocks, kernels};

static INFO: Info = Info {
    stage: "playg",
    name: "sum",
    family: "sum",
    parent: None,
    change: "one launch: blocks leave partial sums, the whole grid meets, one block adds them up",
    dtypes: &[DType::F32, DType::F64, DType::F16, DType::BF16],
    dims: &[Dim { name: "N", meaning: "elements", small: 10_000, timed: 1 << 26, max: 1 << 40 }],
    settings: &[],
    inputs: &[Input { name: "x", axes: &["N.."] }],
    // f16 and bf16 are summed in f32, and `out` is f32: a sum of halves soon leaves f16's range.
    outputs: &[Output {
        name: "out",
        bounds: &[(DType::F32, 4e-7), (DType::F64, 1e-15), (DType::F16, 4e-7), (DType::BF16, 4e-7)],
    }],
};

/// `playg:sum`. Its `out` is one f32 (f64 for f64).
#[derive(Debug)]
pub struct Sum;

struct Run<T: Float> {
    kernel: Kernel,
    launch: Launch,
    x: Buffer<T>,
    partial: Buffer<T::Math>,
    out: Buffer<T::Math>,
}

impl<T: Float> Prepared for Run<T> {
    fn launch(&mut self) -> Result<(), Error> {
        let n = self.x.len() as u64;
        let args = [self.x.arg(), self.partial.arg_mut(), self.out.arg_mut(), n.into()];
        Ok(self.kernel.launch(self.launch, &args)?)
    }
    fn outputs(&self) -> Result<Tensors, Error> {
        Ok(tensors([("out", Tensor::download(&[], &self.out)?)]))
    }
}

impl Version for Sum {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn inputs(&self, problem: &Problem) -> Tensors {
        // Around 1, not around 0: where a sum cancels, its relative error says nothing.
        let normal = problem.normal(0, &[problem.dims.get("N")]);
        let values: Vec<f64> = normal.values().iter().map(|v| 1.0 + 0.25 * v).collect();
        tensors([("x", Tensor::rounded(problem.dtype, &normal.shape, &values))])
    }

    fn reference(&self, inputs: &Tensors, _: &Options) -> Vec<(&'static str, Vec<f64>)> {
        vec![("out", vec![lab_reference::playg::sum(&inputs["x"].values())])]
    }

    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        let n = dims.get("N") as f64;
        Cost { flops: n, bytes: n * dtype.size() as f64 }
    }

    fn test_shapes(&self) -> Vec<Dims> {
        [1, 31, 33, 1000, 4099, 300_001].map(|n| Dims::new([("N", n)])).into()
    }

    fn prepare(
        &self,
        device: &Device,
        inputs: &Tensors,
        _: &Options,
    ) -> Result<Box<dyn Prepared>, Error> {
        let x = &inputs["x"];
        with_float!(x.dtype, T => {
            let name = format!("sum<{}, {THREADS}>", x.dtype.cpp());
            let kernel = device.kernel(&kernels::SUM, &name)?;
            let packs = x.len().div_ceil(16 / size_of::<T>());
            let resident = kernel.resident_blocks(THREADS, 0)?;
            let blocks = grid_stride_blocks(device, packs).min(resident);
            Ok(Box::new(Run::<T> {
                kernel,
                launch: Launch::new(blocks, THREADS).cooperative(),
                x: x.upload(device)?,
                partial: device.buffer(blocks as usize)?,
                out: device.buffer(1)?,
            }))
        })
    }
}
