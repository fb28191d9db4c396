//! Vectors: saxpy and the elementwise operations, by grid-stride loops over packs of 16 bytes.

use lab_device::DType;
use lab_harness::program::{Program, math_scalar, scalar};
use lab_harness::{Dim, Error, Info, Input, Output, Setting};
use lab_reference::playg as reference;

use crate::kernels;
use crate::operation::{Operation, Run, grid_stride, kernel};

const N: Dim = Dim::new("N", "elements", [1000, 1 << 26, 1 << 40]);
const SHAPES: &[&[usize]] = &[&[1], &[7], &[31], &[33], &[1000], &[4099], &[300_000]];
const X: Input = Input::new("x", &["N.."]);
const Y: Input = Input::new("y", &["N.."]);

/// One or two roundings of the result.
const ROUNDED: &[Output] = &[Output {
    name: "out",
    bounds: &[(DType::F32, 6e-8), (DType::F64, 1.2e-16), (DType::F16, 5e-4), (DType::BF16, 4e-3)],
}];

/// exp or tanh in f32, then a rounding: a GPU's are off by up to 2 units in the last place.
const TRANSCENDENTAL: &[Output] = &[Output {
    name: "out",
    bounds: &[(DType::F32, 2e-7), (DType::F16, 5e-4), (DType::BF16, 4e-3)],
}];

const UNARY: Operation = Operation {
    info: Info {
        stage: "playg",
        name: "",
        family: "",
        parent: None,
        change: "",
        dtypes: &[DType::F32, DType::F16, DType::BF16],
        dims: &[N],
        settings: &[],
        inputs: &[X],
        outputs: ROUNDED,
    },
    shapes: SHAPES,
    large: &[1 << 25],
    offset: 0.0,
    flops: 1.0,
    elements: |dims| 2.0 * dims.get("N") as f64,
    cpu: None,
    reference: |_| Vec::new(),
    plan: |program, run| unary(program, run, ""),
};

const BINARY: Operation = Operation {
    info: Info { inputs: &[X, Y], ..UNARY.info },
    elements: |dims| 3.0 * dims.get("N") as f64,
    ..UNARY
};

/// out = a·x + y.
pub static SAXPY: Operation = Operation {
    info: Info {
        name: "saxpy",
        family: "saxpy",
        change: "out = a·x + y by a grid-stride loop, 16 bytes a thread at a time",
        dtypes: &[DType::F32, DType::F64, DType::F16, DType::BF16],
        settings: &[Setting::number("a", "the factor of x", "2")],
        ..BINARY.info
    },
    flops: 2.0,
    cpu: Some(|x, y, out| {
        for ((x, y), out) in x.iter().zip(y).zip(out) {
            *out = 2.0 * x + y;
        }
    }),
    reference: |run| reference::saxpy(run.option("a"), &run.values("x"), &run.values("y")),
    plan: |program, run| {
        let (x, out) = run.x_and_out(program)?;
        let y = program.input(same_shape(run)?)?;
        let name = run.instance("saxpy", "");
        let kernel = kernel(program, &kernels::SAXPY, &name)?;
        let n = run.dim("N");
        let launch = grid_stride(program.device(), n.div_ceil(run.pack()));
        let a = math_scalar(run.dtype, run.option("a"));
        program.launch(kernel, launch, [x.read(), y.read(), out.write(), a, scalar(n as u64)]);
        Ok(())
    },
    ..BINARY
};

/// out = x + y.
pub static ADD: Operation = Operation {
    info: Info { name: "add", family: "add", change: "out = x + y", ..BINARY.info },
    cpu: Some(|x, y, out| {
        for ((x, y), out) in x.iter().zip(y).zip(out) {
            *out = x + y;
        }
    }),
    reference: |run| run.values("x").iter().zip(run.values("y")).map(|(x, y)| x + y).collect(),
    plan: |program, run| binary(program, run, "Plus"),
    ..BINARY
};

/// out = x · y.
pub static MUL: Operation = Operation {
    info: Info { name: "mul", family: "mul", change: "out = x · y", ..BINARY.info },
    cpu: Some(|x, y, out| {
        for ((x, y), out) in x.iter().zip(y).zip(out) {
            *out = x * y;
        }
    }),
    reference: |run| run.values("x").iter().zip(run.values("y")).map(|(x, y)| x * y).collect(),
    plan: |program, run| binary(program, run, "Times"),
    ..BINARY
};

/// out = max(x, 0).
pub static RELU: Operation = Operation {
    info: Info { name: "relu", family: "relu", change: "out = max(x, 0)", ..UNARY.info },
    cpu: Some(|x, _, out| {
        for (x, out) in x.iter().zip(out) {
            *out = if *x < 0.0 { 0.0 } else { *x };
        }
    }),
    reference: |run| run.values("x").into_iter().map(reference::relu).collect(),
    plan: |program, run| unary(program, run, "Relu"),
    ..UNARY
};

/// out = 1 / (1 + exp(−x)).
pub static SIGMOID: Operation = Operation {
    info: Info {
        name: "sigmoid",
        family: "sigmoid",
        change: "out = 1 / (1 + exp(−x))",
        outputs: TRANSCENDENTAL,
        ..UNARY.info
    },
    flops: 4.0,
    cpu: Some(|x, _, out| {
        for (x, out) in x.iter().zip(out) {
            *out = 1.0 / (1.0 + (-x).exp());
        }
    }),
    reference: |run| run.values("x").into_iter().map(reference::sigmoid).collect(),
    plan: |program, run| unary(program, run, "Sigmoid"),
    ..UNARY
};

/// out = tanh(x).
pub static TANH: Operation = Operation {
    info: Info {
        name: "tanh",
        family: "tanh",
        change: "out = tanh(x)",
        outputs: TRANSCENDENTAL,
        ..UNARY.info
    },
    cpu: Some(|x, _, out| {
        for (x, out) in x.iter().zip(out) {
            *out = x.tanh();
        }
    }),
    reference: |run| run.values("x").into_iter().map(f64::tanh).collect(),
    plan: |program, run| unary(program, run, "Tanh"),
    ..UNARY
};

fn unary(program: &mut Program, run: &Run<'_>, op: &str) -> Result<(), Error> {
    let (x, out) = run.x_and_out(program)?;
    let kernel = kernel(program, &kernels::ELEMENTWISE, &run.instance("unary", op))?;
    let n = run.dim("N");
    let launch = grid_stride(program.device(), n.div_ceil(run.pack()));
    program.launch(kernel, launch, [x.read(), out.write(), scalar(n as u64)]);
    Ok(())
}

fn binary(program: &mut Program, run: &Run<'_>, op: &str) -> Result<(), Error> {
    let (x, out) = run.x_and_out(program)?;
    let y = program.input(same_shape(run)?)?;
    let kernel = kernel(program, &kernels::ELEMENTWISE, &run.instance("binary", op))?;
    let n = run.dim("N");
    let launch = grid_stride(program.device(), n.div_ceil(run.pack()));
    program.launch(kernel, launch, [x.read(), y.read(), out.write(), scalar(n as u64)]);
    Ok(())
}

/// `y`, refused where it has another shape than `x` with as many elements.
fn same_shape<'a>(run: &Run<'a>) -> Result<&'a lab_harness::Tensor, Error> {
    let (x, y) = (run.tensor("x"), run.tensor("y"));
    if x.shape == y.shape {
        return Ok(y);
    }
    Err(Error::Tensor {
        name: "y".into(),
        expected: format!("the shape of 'x', {:?}", x.shape),
        got: y.describe(),
    })
}
