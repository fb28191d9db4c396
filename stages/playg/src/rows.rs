//! Rows: softmax and layer norm over the last index, a block a row.

use lab_device::{DType, Instance, Launch};
use lab_harness::compare::unit;
use lab_harness::{Dim, Error, Info, Input, Output, Plan, Setting, arguments};
use lab_reference::playg as reference;

use crate::kernels;
use crate::operation::{Formula, Operation, Run, THREADS};

const LARGEST: usize = i32::MAX as usize;
const ROWS: Dim = Dim::new("R", "rows", [5, 16384, LARGEST]);
const COLUMNS: Dim = Dim::new("C", "columns", [300, 4096, LARGEST]);
/// What the registers of a block of 1024 threads hold.
const REGISTER_COLUMNS: Dim = Dim { max: 16384, ..COLUMNS };
const X: Input = Input::new("x", &["R..", "C"]);

/// Subtract, exponential, add, divide; a maximum is a comparison.
static SOFTMAXES: Formula = Formula {
    name: "softmax",
    offset: 0.0,
    flops: 4.0,
    elements: |dims| {
        let all = (dims.get("R") * dims.get("C")) as f64;
        [all, 2.0 * all]
    },
    reference: |of| reference::softmax(&of.values("x"), of.dim("C")),
    magnitude: |of| reference::softmax_magnitude(&of.values("x"), of.dim("C")),
};

/// A sum, a difference, a square and its sum, and three for the result.
static LAYERNORMS: Formula = Formula {
    name: "layernorm",
    offset: 0.0,
    flops: 8.0,
    elements: |dims| {
        let (rows, columns) = (dims.get("R") as f64, dims.get("C") as f64);
        [rows * columns, (2.0 * rows + 2.0) * columns]
    },
    reference: |of| {
        let (x, gamma, beta) = (of.values("x"), of.values("gamma"), of.values("beta"));
        reference::layernorm(&x, &gamma, &beta, of.option("eps"))
    },
    magnitude: |of| {
        let (x, gamma, beta) = (of.values("x"), of.absolute("gamma"), of.absolute("beta"));
        reference::layernorm_magnitude(&x, &gamma, &beta, of.option("eps"))
    },
};

/// Statistics in two passes.
pub static SOFTMAX: Operation = Operation {
    info: Info {
        stage: "playg",
        name: "softmax",
        family: &SOFTMAXES,
        parent: None,
        change: "a block a row; the maximum in one pass, the sum in a second",
        dtypes: &[DType::F32, DType::F16, DType::BF16],
        dims: &[ROWS, COLUMNS],
        settings: &[],
        inputs: &[X],
        // exp and a quotient in f32, then one rounding.
        outputs: &[Output {
            name: "out",
            bounds: &[(DType::F32, 5e-7), (DType::F16, 5e-4), (DType::BF16, 4e-3)],
            elements: &[
                (DType::F32, 4.0 * unit::F32),
                (DType::F16, 4.0 * unit::F32),
                (DType::BF16, 4.0 * unit::F32),
            ],
        }],
    },
    shapes: &[
        &[1, 1],
        &[1, 31],
        &[2, 33],
        &[3, 256],
        &[5, 257],
        &[2, 1000],
        &[2, 4096],
        &[300, 7],
        &[2, 10_001],
        &[1, 16384],
    ],
    large: &[8192, 4096],
    cpu: None,
    source: &kernels::SOFTMAX,
    plan: |plan, run| add_softmax(plan, run, "softmax"),
};

/// Statistics in one pass.
pub static SOFTMAX_ONLINE: Operation = Operation {
    info: Info {
        name: "softmax_online",
        parent: Some("softmax"),
        change: "maximum and sum in one pass: the row is read twice, not three times",
        ..SOFTMAX.info
    },
    plan: |plan, run| add_softmax(plan, run, "softmax_online"),
    ..SOFTMAX
};

fn add_softmax(plan: &mut Plan, run: &Run<'_>, name: &str) -> Result<(), Error> {
    let [x, out] = run.x_and_out(plan);
    let name = run.instance(name, &THREADS.to_string());
    let kernel = run.kernel(plan, &name)?;
    let launch = Launch::new(run.dim("R") as u32, THREADS);
    plan.launch(&kernel, launch, arguments![x, out, columns: run.dim("C")])
}

/// The row in registers.
pub static SOFTMAX_REGISTERS: Operation = Operation {
    info: Info {
        name: "softmax_registers",
        parent: Some("softmax"),
        change: "the row stays in registers: it is read once, 16 bytes a thread",
        dims: &[ROWS, REGISTER_COLUMNS],
        ..SOFTMAX.info
    },
    plan: |plan, run| {
        let [x, out] = run.x_and_out(plan);
        let instance = holding_the_row(run, "softmax_registers");
        let kernel = plan.device().load(instance)?;
        let launch = kernel.grid([run.dim("R") as u32, 1, 1])?;
        plan.launch(&kernel, launch, arguments![x, out, columns: run.dim("C")])
    },
    ..SOFTMAX
};

/// Layer norm.
pub static LAYERNORM: Operation = Operation {
    info: Info {
        name: "layernorm",
        family: &LAYERNORMS,
        change: "the row in registers; mean, then variance from the differences",
        dims: &[ROWS, REGISTER_COLUMNS],
        settings: &[Setting::number("eps", "added to the variance", "1e-5")],
        inputs: &[X, Input::new("gamma", &["C"]), Input::new("beta", &["C"])],
        outputs: &[Output {
            name: "out",
            bounds: &[(DType::F32, 5e-7), (DType::F16, 5e-4), (DType::BF16, 4e-3)],
            elements: &[
                (DType::F32, 1.7 * unit::F32),
                (DType::F16, 1.7 * unit::F32),
                (DType::BF16, 1.7 * unit::F32),
            ],
        }],
        ..SOFTMAX.info
    },
    plan: |plan, run| {
        let [x, out] = run.x_and_out(plan);
        let [gamma, beta] = ["gamma", "beta"].map(|name| run.input(plan, name));
        let instance = holding_the_row(run, "layernorm");
        let kernel = plan.device().load(instance)?;
        let launch = kernel.grid([run.dim("R") as u32, 1, 1])?;
        let (columns, eps) = (run.dim("C"), run.option("eps"));
        plan.launch(&kernel, launch, arguments![x, gamma, beta, out, columns, eps])
    },
    source: &kernels::LAYERNORM,
    ..SOFTMAX
};

/// The first instantiation of a kernel that holds the row in a block's registers, in packs where columns
/// come in whole ones.
fn holding_the_row(run: &Run<'_>, kernel: &str) -> Instance {
    let columns = run.dim("C");
    let pack = if columns.is_multiple_of(run.pack()) { run.pack() } else { 1 };
    let holds = |i: &Instance| {
        i.has("T", run.dtype().cpp())
            && i.size("N") == pack
            && i.size("THREADS") * i.size("PACKS") * pack >= columns
    };
    run.instances(kernel).find(holds).expect("the columns were checked")
}
