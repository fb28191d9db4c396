//! out = a·x + y, by a grid-stride loop over packs of 16 bytes.

use lab_device::{Buffer, DType, Device, Kernel, Launch};
use lab_harness::tensor::tensors;
use lab_harness::{
    Cost, Dim, Dims, Error, Float, Info, Input, Options, Output, Prepared, Problem, Setting,
    Tensor, Tensors, Version, with_float,
};

use crate::{THREADS, grid_stride_blocks, kernels};

static INFO: Info = Info {
    stage: "playg",
    name: "saxpy",
    family: "saxpy",
    parent: None,
    change: "a grid-stride loop, 16 bytes a thread at a time",
    dtypes: &[DType::F32, DType::F64, DType::F16, DType::BF16],
    dims: &[Dim { name: "N", meaning: "elements", small: 1000, timed: 1 << 26, max: 1 << 40 }],
    settings: &[Setting { name: "a", meaning: "the factor of x", default: "2" }],
    inputs: &[Input { name: "x", axes: &["N.."] }, Input { name: "y", axes: &["N.."] }],
    // One or two roundings of the sum: observed up to 0.44 units of roundoff where a is 2.
    outputs: &[Output {
        name: "out",
        bounds: &[
            (DType::F32, 6e-8),
            (DType::F64, 1.2e-16),
            (DType::F16, 5e-4),
            (DType::BF16, 4e-3),
        ],
    }],
};

/// `playg:saxpy`.
#[derive(Debug)]
pub struct Saxpy;

struct Run<T: Float> {
    kernel: Kernel,
    launch: Launch,
    a: T::Math,
    x: Buffer<T>,
    y: Buffer<T>,
    out: Buffer<T>,
    shape: Vec<usize>,
}

impl<T: Float> Prepared for Run<T> {
    fn launch(&mut self) -> Result<(), Error> {
        let n = self.x.len() as u64;
        let args = [self.a.into(), self.x.arg(), self.y.arg(), self.out.arg_mut(), n.into()];
        Ok(self.kernel.launch(self.launch, &args)?)
    }
    fn outputs(&self) -> Result<Tensors, Error> {
        Ok(tensors([("out", Tensor::download(&self.shape, &self.out)?)]))
    }
}

impl Version for Saxpy {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn inputs(&self, problem: &Problem) -> Tensors {
        let shape = [problem.dims.get("N")];
        tensors([("x", problem.normal(0, &shape)), ("y", problem.normal(1, &shape))])
    }

    fn reference(&self, inputs: &Tensors, options: &Options) -> Vec<(&'static str, Vec<f64>)> {
        let a = options.number(&INFO, "a");
        let out = lab_reference::playg::saxpy(a, &inputs["x"].values(), &inputs["y"].values());
        vec![("out", out)]
    }

    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        let n = dims.get("N") as f64;
        Cost { flops: 2.0 * n, bytes: 3.0 * n * dtype.size() as f64 }
    }

    fn test_shapes(&self) -> Vec<Dims> {
        [1, 7, 31, 33, 1000, 4099, 300_000].map(|n| Dims::new([("N", n)])).into()
    }

    fn prepare(
        &self,
        device: &Device,
        inputs: &Tensors,
        options: &Options,
    ) -> Result<Box<dyn Prepared>, Error> {
        let (x, y) = (&inputs["x"], &inputs["y"]);
        if x.shape != y.shape {
            return Err(Error::Tensor {
                name: "y".into(),
                expected: format!("the shape of 'x', {:?}", x.shape),
                got: y.describe(),
            });
        }
        with_float!(x.dtype, T => {
            let name = format!("saxpy<{}>", x.dtype.cpp());
            let packs = x.len().div_ceil(16 / size_of::<T>());
            Ok(Box::new(Run::<T> {
                kernel: device.kernel(&kernels::SAXPY, &name)?,
                launch: Launch::new(grid_stride_blocks(device, packs), THREADS),
                a: T::math(options.number(&INFO, "a")),
                x: x.upload(device)?,
                y: y.upload(device)?,
                out: device.buffer(x.len())?,
                shape: x.shape.clone(),
            }))
        })
    }
}
