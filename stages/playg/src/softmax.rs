//! Softmax over the last index, a block a row.

use lab_device::{Buffer, DType, Device, Kernel, Launch};
use lab_harness::tensor::tensors;
use lab_harness::{
    Cost, Dim, Dims, Error, Float, Info, Input, Options, Output, Prepared, Problem, Tensor,
    Tensors, Version, with_float,
};

use crate::{THREADS, kernels};

static TWO_PASS: Info = Info {
    stage: "playg",
    name: "softmax",
    family: "softmax",
    parent: None,
    change: "a block a row; the maximum in one pass, the sum in a second",
    dtypes: &[DType::F32, DType::F16, DType::BF16],
    dims: &[
        Dim { name: "R", meaning: "rows", small: 5, timed: 16384, max: i32::MAX as usize },
        Dim { name: "C", meaning: "columns", small: 300, timed: 4096, max: i32::MAX as usize },
    ],
    settings: &[],
    inputs: &[Input { name: "x", axes: &["R..", "C"] }],
    // exp and the quotient in f32, then one rounding.
    outputs: &[Output {
        name: "out",
        bounds: &[(DType::F32, 5e-7), (DType::F16, 5e-4), (DType::BF16, 4e-3)],
    }],
};

static ONLINE: Info = Info {
    name: "softmax_online",
    parent: Some("softmax"),
    change: "maximum and sum in one pass: the row is read twice, not three times",
    ..TWO_PASS
};

/// `playg:softmax` and `playg:softmax_online`.
#[derive(Debug)]
pub struct Softmax {
    info: &'static Info,
}

impl Softmax {
    /// Statistics in two passes.
    pub const TWO_PASS: Self = Self { info: &TWO_PASS };
    /// Statistics in one pass.
    pub const ONLINE: Self = Self { info: &ONLINE };
}

struct Run<T: Float> {
    kernel: Kernel,
    launch: Launch,
    x: Buffer<T>,
    out: Buffer<T>,
    shape: Vec<usize>,
    columns: i32,
}

impl<T: Float> Prepared for Run<T> {
    fn launch(&mut self) -> Result<(), Error> {
        let args = [self.x.arg(), self.out.arg_mut(), self.columns.into()];
        Ok(self.kernel.launch(self.launch, &args)?)
    }
    fn outputs(&self) -> Result<Tensors, Error> {
        Ok(tensors([("out", Tensor::download(&self.shape, &self.out)?)]))
    }
}

impl Version for Softmax {
    fn info(&self) -> &'static Info {
        self.info
    }

    fn inputs(&self, problem: &Problem) -> Tensors {
        let shape = [problem.dims.get("R"), problem.dims.get("C")];
        tensors([("x", problem.normal(0, &shape))])
    }

    fn reference(&self, inputs: &Tensors, _: &Options) -> Vec<(&'static str, Vec<f64>)> {
        let x = &inputs["x"];
        let columns = x.shape.last().copied().unwrap_or(1);
        vec![("out", lab_reference::playg::softmax(&x.values(), columns))]
    }

    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        let n = (dims.get("R") * dims.get("C")) as f64;
        // Subtract, exponential, add, divide; a maximum is a comparison.
        Cost { flops: 4.0 * n, bytes: 2.0 * n * dtype.size() as f64 }
    }

    fn test_shapes(&self) -> Vec<Dims> {
        let all = [(1, 1), (1, 31), (2, 33), (3, 256), (5, 257), (2, 1000), (300, 7), (2, 10_001)];
        all.map(|(r, c)| Dims::new([("R", r), ("C", c)])).into()
    }

    fn prepare(
        &self,
        device: &Device,
        inputs: &Tensors,
        _: &Options,
    ) -> Result<Box<dyn Prepared>, Error> {
        let x = &inputs["x"];
        let (dims, _) = self.info.problem_of(inputs)?;
        with_float!(x.dtype, T => {
            let name = format!("{}<{}, {THREADS}>", self.info.name, x.dtype.cpp());
            Ok(Box::new(Run::<T> {
                kernel: device.kernel(&kernels::SOFTMAX, &name)?,
                launch: Launch::new(dims.get("R") as u32, THREADS),
                x: x.upload(device)?,
                out: device.buffer(x.len())?,
                shape: x.shape.clone(),
                columns: dims.get("C") as i32,
            }))
        })
    }
}
