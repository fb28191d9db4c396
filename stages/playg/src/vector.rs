//! Vectors: saxpy and the elementwise operations, by grid-stride loops over packs of 16 bytes.

use lab_device::DType;
use lab_harness::compare::unit;
use lab_harness::plan::Slot;
use lab_harness::{Dim, Error, Info, Input, Output, Plan, Setting, arguments};
use lab_reference::playg as reference;

use crate::kernels;
use crate::operation::{Formula, Operation, Run, grid_stride};

const N: Dim = Dim::new("N", "elements", [1000, 1 << 26, 1 << 40]);
const SHAPES: &[&[usize]] = &[&[1], &[7], &[31], &[33], &[1000], &[4099], &[300_000]];
const X: Input = Input::new("x", &["N.."]);
const Y: Input = Input::new("y", &["N.."]);

/// One or two roundings of the result.
const ROUNDED: &[Output] = &[Output {
    name: "out",
    bounds: &[(DType::F32, 6e-8), (DType::F64, 1.2e-16), (DType::F16, 5e-4), (DType::BF16, 4e-3)],
    elements: &[
        (DType::F32, unit::F32),
        (DType::F64, unit::F64),
        (DType::F16, unit::F32),
        (DType::BF16, unit::F32),
    ],
}];

/// exp or tanh in f32, then a rounding: a GPU's are off by up to 2 units in the last place.
const TRANSCENDENTAL: &[Output] = &[Output {
    name: "out",
    bounds: &[(DType::F32, 2e-7), (DType::F16, 5e-4), (DType::BF16, 4e-3)],
    elements: &[
        (DType::F32, 4.0 * unit::F32),
        (DType::F16, 4.0 * unit::F32),
        (DType::BF16, 4.0 * unit::F32),
    ],
}];

const OF_ONE: Formula = Formula {
    name: "",
    offset: 0.0,
    flops: 1.0,
    elements: |dims| [dims.get("N") as f64, 2.0 * dims.get("N") as f64],
    reference: |_| Vec::new(),
    magnitude: |of| of.absolute("x"),
};

const OF_TWO: Formula =
    Formula { elements: |dims| [dims.get("N") as f64, 3.0 * dims.get("N") as f64], ..OF_ONE };

static SAXPY_FORMULA: Formula = Formula {
    name: "saxpy",
    flops: 2.0,
    reference: |of| reference::saxpy(of.option("a"), &of.values("x"), &of.values("y")),
    magnitude: |of| reference::saxpy(of.option("a").abs(), &of.absolute("x"), &of.absolute("y")),
    ..OF_TWO
};

static ADD_FORMULA: Formula = Formula {
    name: "add",
    reference: |of| of.values("x").iter().zip(of.values("y")).map(|(x, y)| x + y).collect(),
    magnitude: |of| reference::saxpy(1.0, &of.absolute("x"), &of.absolute("y")),
    ..OF_TWO
};

static MUL_FORMULA: Formula = Formula {
    name: "mul",
    reference: |of| of.values("x").iter().zip(of.values("y")).map(|(x, y)| x * y).collect(),
    magnitude: |of| of.absolute("x").iter().zip(of.absolute("y")).map(|(x, y)| x * y).collect(),
    ..OF_TWO
};

static RELU_FORMULA: Formula = Formula {
    name: "relu",
    reference: |of| of.values("x").into_iter().map(reference::relu).collect(),
    ..OF_ONE
};

static SIGMOID_FORMULA: Formula = Formula {
    name: "sigmoid",
    flops: 4.0,
    reference: |of| of.values("x").into_iter().map(reference::sigmoid).collect(),
    // 1 + exp(−x) is off by its own roundings, and exp(−x) by that of its exponent as well.
    magnitude: |of| {
        let of_one = |x: f64| reference::sigmoid(x) * (1.0 + x.abs() * reference::sigmoid(-x));
        of.values("x").into_iter().map(of_one).collect()
    },
    ..OF_ONE
};

static TANH_FORMULA: Formula = Formula {
    name: "tanh",
    reference: |of| of.values("x").into_iter().map(f64::tanh).collect(),
    magnitude: |of| of.values("x").into_iter().map(|x| x.tanh().abs()).collect(),
    ..OF_ONE
};

const UNARY: Operation = Operation {
    info: Info {
        stage: "playg",
        name: "",
        family: &OF_ONE,
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
    cpu: None,
    source: &kernels::ELEMENTWISE,
    plan: |plan, run| add_unary(plan, run, ""),
};

const BINARY: Operation = Operation { info: Info { inputs: &[X, Y], ..UNARY.info }, ..UNARY };

/// out = a·x + y.
pub static SAXPY: Operation = Operation {
    info: Info {
        name: "saxpy",
        family: &SAXPY_FORMULA,
        change: "out = a·x + y by a grid-stride loop, 16 bytes a thread at a time",
        dtypes: &[DType::F32, DType::F64, DType::F16, DType::BF16],
        settings: &[Setting::number("a", "the factor of x", "2")],
        ..BINARY.info
    },
    cpu: Some(|x, y, out| {
        for ((x, y), out) in x.iter().zip(y).zip(out) {
            *out = 2.0 * x + y;
        }
    }),
    plan: |plan, run| {
        let [x, out] = run.x_and_out(plan);
        let y = input_like_x(plan, run)?;
        let name = run.instance("saxpy", "");
        let kernel = run.kernel(plan, &name)?;
        let n = run.dim("N");
        let launch = grid_stride(plan.device(), n.div_ceil(run.pack()));
        plan.launch(&kernel, launch, arguments![x, y, out, a: run.option("a"), n])
    },
    source: &kernels::SAXPY,
    ..BINARY
};

/// out = x + y.
pub static ADD: Operation = Operation {
    info: Info { name: "add", family: &ADD_FORMULA, change: "out = x + y", ..BINARY.info },
    cpu: Some(|x, y, out| {
        for ((x, y), out) in x.iter().zip(y).zip(out) {
            *out = x + y;
        }
    }),
    plan: |plan, run| add_binary(plan, run, "Plus"),
    ..BINARY
};

/// out = x · y.
pub static MUL: Operation = Operation {
    info: Info { name: "mul", family: &MUL_FORMULA, change: "out = x · y", ..BINARY.info },
    cpu: Some(|x, y, out| {
        for ((x, y), out) in x.iter().zip(y).zip(out) {
            *out = x * y;
        }
    }),
    plan: |plan, run| add_binary(plan, run, "Times"),
    ..BINARY
};

/// out = max(x, 0).
pub static RELU: Operation = Operation {
    info: Info { name: "relu", family: &RELU_FORMULA, change: "out = max(x, 0)", ..UNARY.info },
    cpu: Some(|x, _, out| {
        for (x, out) in x.iter().zip(out) {
            *out = if *x < 0.0 { 0.0 } else { *x };
        }
    }),
    plan: |plan, run| add_unary(plan, run, "Relu"),
    ..UNARY
};

/// out = 1 / (1 + exp(−x)).
pub static SIGMOID: Operation = Operation {
    info: Info {
        name: "sigmoid",
        family: &SIGMOID_FORMULA,
        change: "out = 1 / (1 + exp(−x))",
        outputs: TRANSCENDENTAL,
        ..UNARY.info
    },
    cpu: Some(|x, _, out| {
        for (x, out) in x.iter().zip(out) {
            *out = 1.0 / (1.0 + (-x).exp());
        }
    }),
    plan: |plan, run| add_unary(plan, run, "Sigmoid"),
    ..UNARY
};

/// out = tanh(x).
pub static TANH: Operation = Operation {
    info: Info {
        name: "tanh",
        family: &TANH_FORMULA,
        change: "out = tanh(x)",
        outputs: TRANSCENDENTAL,
        ..UNARY.info
    },
    cpu: Some(|x, _, out| {
        for (x, out) in x.iter().zip(out) {
            *out = x.tanh();
        }
    }),
    plan: |plan, run| add_unary(plan, run, "Tanh"),
    ..UNARY
};

fn add_unary(plan: &mut Plan, run: &Run<'_>, op: &str) -> Result<(), Error> {
    let [x, out] = run.x_and_out(plan);
    let kernel = run.kernel(plan, &run.instance("unary", op))?;
    let n = run.dim("N");
    let launch = grid_stride(plan.device(), n.div_ceil(run.pack()));
    plan.launch(&kernel, launch, arguments![x, out, n])
}

fn add_binary(plan: &mut Plan, run: &Run<'_>, op: &str) -> Result<(), Error> {
    let [x, out] = run.x_and_out(plan);
    let y = input_like_x(plan, run)?;
    let kernel = run.kernel(plan, &run.instance("binary", op))?;
    let n = run.dim("N");
    let launch = grid_stride(plan.device(), n.div_ceil(run.pack()));
    plan.launch(&kernel, launch, arguments![x, y, out, n])
}

/// `y`, refused where it has another shape than `x` with as many elements.
fn input_like_x(plan: &mut Plan, run: &Run<'_>) -> Result<Slot, Error> {
    let (x, y) = (run.sizes("x"), run.sizes("y"));
    if x == y {
        return Ok(run.input(plan, "y"));
    }
    Err(Error::Tensor {
        name: "y".into(),
        expected: format!("the shape of 'x', {x:?}"),
        got: format!("{} {y:?}", run.dtype()),
    })
}
